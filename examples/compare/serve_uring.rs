//! The least that io_uring can do: one-shot receives and sends, one buffer per connection, no queue, no timer, no task.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use crate::serve::{BUFFER_LEN, listen};

/// What an operation's user data says: in the upper half which operation, in the lower half whose.
const ACCEPT: u64 = 0;
const RECV: u64 = 1 << 32;
const SEND: u64 = 2 << 32;

struct Connection {
    fd: OwnedFd,
    buffer: Box<[u8]>,
}

pub(crate) fn serve() -> io::Result<()> {
    let mut ring = ring()?;
    let listener = listen()?;
    let door = listener.as_raw_fd();
    let mut connections: Vec<Option<Connection>> = Vec::new();
    push(&mut ring, accept(door))?;
    loop {
        ring.submit_and_wait(1)?;
        loop {
            let Some(completion) = ring.completion().next() else {
                break;
            };
            let result = completion.result();
            let (what, place) = (
                completion.user_data() >> 32 << 32,
                completion.user_data() as u32 as usize,
            );
            if what == ACCEPT {
                if result >= 0 {
                    let place = admit(&mut connections, result)?;
                    push(&mut ring, receive(&mut connections, place))?;
                }
                push(&mut ring, accept(door))?;
            } else if result <= 0 {
                // Nothing of this connection is in the kernel any more: it never has two operations at once.
                connections[place] = None;
            } else if what == RECV {
                push(&mut ring, send(&connections, place, result as u32))?;
            } else {
                push(&mut ring, receive(&mut connections, place))?;
            }
        }
    }
}

pub(crate) fn ring() -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .build(256)
}

/// Waits for a completion, of which there is none, with a timeout.
pub(crate) fn sleep(ring: &mut IoUring, pause: Duration) -> io::Result<()> {
    let time = types::Timespec::from(pause);
    let timeout = types::SubmitArgs::new().timespec(&time);
    match ring.submitter().submit_with_args(1, &timeout) {
        Err(error) if error.raw_os_error() != Some(libc::ETIME) => Err(error),
        _ => Ok(()),
    }
}

/// Finds a place for a new connection.
fn admit(connections: &mut Vec<Option<Connection>>, fd: RawFd) -> io::Result<usize> {
    // SAFETY: the accept has just made this descriptor, and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let stream = std::net::TcpStream::from(fd);
    stream.set_nodelay(true)?;
    let connection = Connection {
        fd: stream.into(),
        buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
    };
    let place = connections
        .iter()
        .position(Option::is_none)
        .unwrap_or(connections.len());
    if place == connections.len() {
        connections.push(None);
    }
    connections[place] = Some(connection);
    Ok(place)
}

fn accept(door: RawFd) -> squeue::Entry {
    let none = std::ptr::null_mut();
    let entry = opcode::Accept::new(types::Fd(door), none, none.cast());
    entry.flags(libc::SOCK_CLOEXEC).build().user_data(ACCEPT)
}

fn receive(connections: &mut [Option<Connection>], place: usize) -> squeue::Entry {
    let connection = connections[place].as_mut().expect("the connection is open");
    let fd = types::Fd(connection.fd.as_raw_fd());
    let entry = opcode::Recv::new(fd, connection.buffer.as_mut_ptr(), BUFFER_LEN as u32);
    entry.build().user_data(RECV | place as u64)
}

fn send(connections: &[Option<Connection>], place: usize, count: u32) -> squeue::Entry {
    let connection = connections[place].as_ref().expect("the connection is open");
    let fd = types::Fd(connection.fd.as_raw_fd());
    let entry = opcode::Send::new(fd, connection.buffer.as_ptr(), count);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    entry.flags(flags).build().user_data(SEND | place as u64)
}

fn push(ring: &mut IoUring, entry: squeue::Entry) -> io::Result<()> {
    loop {
        // SAFETY: the entry points into a connection's buffer, which is boxed and dropped only when its one operation has
        // completed; the listener and the connection are open as long.
        if unsafe { ring.submission().push(&entry) }.is_ok() {
            return Ok(());
        }
        ring.submit()?;
    }
}
