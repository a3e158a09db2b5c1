//! Sending datagrams within the machine.

use std::rc::Rc;
use std::time::Duration;

use crate::byte_stream::count;
use crate::descriptor::{Descriptor, OwnedDescriptor};
use crate::error::from_code;
use crate::flight::{Fate, Flying};
use crate::io::{BufResult, IoBuf};
use crate::net::datagram::{Letters, launch_send};
use crate::op::{Direction, Op};
use crate::sys::{self, Enclosure, Name, errno};
use crate::time::sleep;

/// Sends one message from a Unix socket for datagrams, whose sends have to wait while the other's queue is full.
///
/// They wait here and not in the kernel. io_uring's own way is to try again with the same list of bytes, of which the
/// first try has used up all: what it sends then is empty (Linux 6.18). And a socket that is not connected is told
/// nothing when there is room again, so that it can only be tried, ever less often.
pub(super) async fn send_with_patience<B: IoBuf>(
    owned: &OwnedDescriptor,
    letters: &Letters,
    mut buf: B,
    to: Option<&Name>,
    mut enclosure: Enclosure,
) -> BufResult<usize, B> {
    let descriptor = &owned.descriptor;
    let (core, lane, fd) = (&*descriptor.core, &descriptor.write, descriptor.fd);
    let _hold = lane.hold().await;
    lane.settle(core).await;
    let mut pause = Duration::from_millis(1);
    loop {
        let (landing, mut letter);
        (landing, (_, letter, buf)) = launch_send(owned, letters, buf, to, enclosure, true).await;
        enclosure = letter.take_enclosed();
        letters.put_back(letter);
        match landing.outcome {
            Err(errno::AGAIN) if to.is_none() => {
                let direction = Direction::Write;
                let plan = |_: &mut Rc<Descriptor>| Op::Readiness { fd, direction };
                let (landing, _) = Flying::launch(core, lane, Fate::Discard, descriptor.clone(), 0, plan).await;
                if let Err(code) = landing.outcome {
                    return (Err(from_code(code)), buf);
                }
            }
            Err(code) if sys::is_full_queue(code) => {
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            outcome => return (count(outcome), buf),
        }
    }
}
