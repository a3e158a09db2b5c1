//! Messages: how a call becomes an op, and its landing a result.
//!
//! As on a stream there is one receive and one send in the air at a time, in the order of asking. What a dropped receive
//! got is kept for the next, whole: bytes, sender and descriptors. A message's header lives in a letter, which travels with
//! the flight and is used again, so that a message costs no allocation.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use crate::byte_stream::count;
use crate::descriptor::{Descriptor, OwnedDescriptor};
use crate::driver::Landing;
use crate::error::from_code;
use crate::flight::{Fate, Flying};
use crate::io::{BufResult, IoBuf, IoBufMut, ManagedBuf, no_room, rest_of, room_of};
use crate::op::{MAX_LEN, Op};
use crate::sys::{Enclosure, Envelope, Letter, Name, errno};

/// What a managed receive takes from the heap when the pool is empty: room for any datagram.
const HEAP_LEN: usize = 64 * 1024;

/// Letters that are not in the air: one to receive with and one to send.
#[derive(Default)]
#[allow(clippy::vec_box, reason = "a flight carries the box")]
pub(crate) struct Letters(RefCell<Vec<Box<Letter>>>);

impl Letters {
    fn take(&self) -> Box<Letter> {
        self.0.borrow_mut().pop().unwrap_or_else(Letter::new)
    }

    pub(super) fn put_back(&self, letter: Box<Letter>) {
        let mut letters = self.0.borrow_mut();
        if letters.len() < 2 {
            letters.push(letter);
        }
    }
}

/// Receives one message into `buf`, with up to so many descriptors. On a stream, which has no ends of messages, what does
/// not fit stays for the next.
pub(crate) async fn receive<B: IoBufMut>(
    owned: &OwnedDescriptor,
    letters: &Letters,
    mut buf: B,
    descriptors: usize,
    is_stream: bool,
) -> BufResult<(usize, Envelope), B> {
    if buf.capacity() == 0 {
        return (Err(no_room()), buf);
    }
    let descriptor = &owned.descriptor;
    let (core, lane, fd) = (&*descriptor.core, &descriptor.read, descriptor.fd);
    let _hold = lane.hold().await;
    lane.settle(core).await;
    if lane.has_unread(core).await
        && let Some(served) = lane.serve_message(&mut buf, is_stream)
    {
        let limited = |(count, envelope): (usize, Envelope)| (count, envelope.with_at_most(descriptors));
        return (served.map(limited).map_err(from_code), buf);
    }
    let mut letter = letters.take();
    letter.make_room(descriptors);
    let load = (descriptor.clone(), letter, buf);
    let plan = |(_, letter, buf): &mut (Rc<Descriptor>, Box<Letter>, B)| {
        let (ptr, len) = room_of(buf);
        let message = letter.ready_to_receive(ptr, len.min(MAX_LEN));
        Op::RecvMessage { fd, message }
    };
    let (landing, (_, mut letter, mut buf)) = Flying::launch(core, lane, Fate::Keep, load, 0, plan).await;
    let result = count(landing.outcome);
    if let Ok(count) = result {
        // SAFETY: the kernel has written this many bytes, which is no more than the capacity.
        unsafe { buf.set_filled(count) };
    }
    let mut envelope = letter.open();
    letters.put_back(letter);
    if lane.has_bytes() {
        // A bridge beside has put back what came before.
        let received = *result.as_ref().unwrap_or(&0);
        // SAFETY: the kernel has written this many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(buf.as_ptr(), received) };
        lane.is_overtaken(
            bytes,
            result.is_ok().then(|| std::mem::take(&mut envelope)),
            landing.outcome,
        );
        if let Some(Ok((count, envelope))) = lane.serve_message(&mut buf, is_stream) {
            return (Ok((count, envelope.with_at_most(descriptors))), buf);
        }
    }
    let envelope = envelope.with_at_most(descriptors);
    (result.map(|count| (count, envelope)), buf)
}

/// Receives one message into a buffer of the runtime's.
pub(crate) async fn receive_managed(owned: &OwnedDescriptor, letters: &Letters) -> io::Result<(ManagedBuf, Envelope)> {
    let descriptor = &owned.descriptor;
    let (core, lane, fd) = (&*descriptor.core, &descriptor.read, descriptor.fd);
    {
        let _hold = lane.hold().await;
        lane.settle(core).await;
        if lane.has_unread(core).await
            && let Some(served) = lane.serve_whole_message()
        {
            let (bytes, envelope) = served.map_err(from_code)?;
            return Ok((ManagedBuf::from_heap(bytes), envelope));
        }
        let load = (descriptor.clone(), letters.take());
        let plan = |(_, letter): &mut (Rc<Descriptor>, Box<Letter>)| {
            letter.make_room(0);
            let message = letter.ready_to_receive(std::ptr::null_mut(), 0);
            Op::RecvMessageManaged { fd, message }
        };
        let (landing, (_, mut letter)) = Flying::launch(core, lane, Fate::Keep, load, 0, plan).await;
        let envelope = letter.open();
        letters.put_back(letter);
        match landing {
            Landing {
                outcome: Err(errno::NO_BUFFERS),
                ..
            } => {}
            Landing {
                buffer: Some(buffer), ..
            } => return Ok((ManagedBuf::from_pool(buffer), envelope)),
            Landing { outcome, .. } => {
                return count(outcome).map(|_| (ManagedBuf::from_heap(Vec::new()), envelope));
            }
        }
    }
    let (result, mut bytes) = receive(owned, letters, Vec::with_capacity(HEAP_LEN), 0, false).await;
    // Whoever keeps many small ones keeps no more than they are.
    bytes.shrink_to_fit();
    result.map(|(_, envelope)| (ManagedBuf::from_heap(bytes), envelope))
}

/// Sends one message, to a name or to who the socket is connected to, with descriptors.
pub(crate) async fn send<B: IoBuf>(
    owned: &OwnedDescriptor,
    letters: &Letters,
    buf: B,
    to: Option<&Name>,
    enclosure: Enclosure,
) -> BufResult<usize, B> {
    let lane = &owned.descriptor.write;
    let _hold = lane.hold().await;
    lane.settle(owned.core()).await;
    let (landing, (_, mut letter, buf)) = launch_send(owned, letters, buf, to, enclosure, false).await;
    drop(letter.take_enclosed());
    letters.put_back(letter);
    (count(landing.outcome), buf)
}

/// One send. `at_once` is told when there is no room, and does not wait.
pub(super) fn launch_send<'a, B: IoBuf>(
    owned: &'a OwnedDescriptor,
    letters: &Letters,
    buf: B,
    to: Option<&Name>,
    enclosure: Enclosure,
    at_once: bool,
) -> Flying<'a, SendLoad<B>> {
    let descriptor = &owned.descriptor;
    let fd = descriptor.fd;
    let mut letter = letters.take();
    letter.address(to);
    letter.enclose(enclosure);
    let load = (descriptor.clone(), letter, buf);
    let plan = |(_, letter, buf): &mut SendLoad<B>| {
        let (ptr, len) = rest_of(buf, 0);
        let message = letter.ready_to_send(ptr, len.min(MAX_LEN));
        Op::SendMessage { fd, at_once, message }
    };
    Flying::launch(&descriptor.core, &descriptor.write, Fate::Discard, load, 0, plan)
}

/// Small enough to lie in a flight's place, also with a buffer of the pool.
pub(super) type SendLoad<B> = (Rc<Descriptor>, Box<Letter>, B);

/// The error for a message that was larger than the place for it. What did fit is in the buffer.
pub(super) fn cut_off(room: usize) -> io::Error {
    crate::error::context(
        format_args!("a datagram of more than {room} bytes was cut off: give a larger buffer"),
        io::Error::from_raw_os_error(errno::TOO_LONG),
    )
}
