//! Minimal io_uring servers: no queue, no timers, no tasks. Two variants: one-shot receives into a buffer per
//! connection; and multishot receives from a shared buffer ring with direct descriptors.

use std::alloc::{Layout, alloc_zeroed};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::BufRingEntry;
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::hand_epoll::{BUFFER_LEN, listen};
use super::limits;

/// The user data of an operation: the kind in the upper half, the connection in the lower half.
const ACCEPT: u64 = 0;
const RECV: u64 = 1 << 32;
const SEND: u64 = 2 << 32;
const CLOSE: u64 = 3 << 32;

struct Connection {
    fd: OwnedFd,
    buffer: Box<[u8]>,
}

/// Serves until killed, with one-shot operations. The first line on standard output is the port. The rings have room for
/// this many connections.
pub(crate) fn serve(connections: usize) -> io::Result<()> {
    let mut ring = ring(connections)?;
    let listener = listen()?;
    let door = listener.as_raw_fd();
    let mut connections: Vec<Option<Connection>> = Vec::with_capacity(connections);
    let mut free = Vec::new();
    push(&mut ring, accept(door))?;
    loop {
        wait(&mut ring)?;
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
                    let place = free.pop().unwrap_or(connections.len());
                    admit(&mut connections, place, result)?;
                    push(&mut ring, receive(&mut connections, place))?;
                }
                push(&mut ring, accept(door))?;
            } else if result <= 0 {
                // The connection has no operation in the kernel any more: it never has two at once.
                connections[place] = None;
                free.push(place);
            } else if what == RECV {
                push(&mut ring, send(&connections, place, result as u32))?;
            } else {
                push(&mut ring, receive(&mut connections, place))?;
            }
        }
    }
}

/// A ring whose completion queue does not overflow when all of these connections are ready at once.
pub(crate) fn ring(connections: usize) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_cqsize((2 * connections).next_power_of_two().clamp(4096, 32 * 1024) as u32)
        .build(256)
}

/// Submits, and waits for a completion. EINTR counts as none.
fn wait(ring: &mut IoUring) -> io::Result<()> {
    match ring.submit_and_wait(1) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Sleeps: waits with a timeout while no operation is in flight.
pub(crate) fn sleep(ring: &mut IoUring, pause: Duration) -> io::Result<()> {
    let time = types::Timespec::from(pause);
    let timeout = types::SubmitArgs::new().timespec(&time);
    match ring.submitter().submit_with_args(1, &timeout) {
        Err(error) if error.raw_os_error() != Some(libc::ETIME) => Err(error),
        _ => Ok(()),
    }
}

/// Stores a new connection in a free slot.
fn admit(connections: &mut Vec<Option<Connection>>, place: usize, fd: RawFd) -> io::Result<()> {
    // SAFETY: the accept has just made this descriptor, and it has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let stream = std::net::TcpStream::from(fd);
    stream.set_nodelay(true)?;
    let connection = Connection {
        fd: stream.into(),
        buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
    };
    if place == connections.len() {
        connections.push(None);
    }
    connections[place] = Some(connection);
    Ok(())
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
        // SAFETY: the entry points into a connection's buffer or into the shared ones, which stay where they are until
        // its one operation has completed; the listener and the connection are open as long.
        if unsafe { ring.submission().push(&entry) }.is_ok() {
            return Ok(());
        }
        ring.submit()?;
    }
}

/// A buffer ring. It is leaked: it lives as long as the process.
pub(crate) struct Buffers {
    entries: *mut BufRingEntry,
    memory: *mut u8,
    count: u16,
    tail: u16,
    /// The number of buffers that the kernel has.
    pub(crate) left: u16,
}

/// As many buffers as in windlass' pool, or as connections if these are more: as the lower bound, this server should not
/// run out of buffers.
fn buffers_for(connections: usize) -> u16 {
    connections.next_power_of_two().clamp(256, 16 * 1024) as u16
}

impl Buffers {
    pub(crate) fn register(ring: &IoUring, count: u16) -> io::Result<Buffers> {
        let layout = |len: usize, align: usize| Layout::from_size_align(len, align).expect("a few MiB");
        let entries_len = usize::from(count) * size_of::<BufRingEntry>();
        // The kernel requires page alignment for the entries. The buffers are allocated without touching them, as in
        // windlass, so that their memory counts when connections use it. SAFETY: neither layout is empty.
        let (entries, memory) = unsafe {
            (
                alloc_zeroed(layout(entries_len, 4096)).cast::<BufRingEntry>(),
                alloc_zeroed(layout(usize::from(count) * BUFFER_LEN, 16)),
            )
        };
        let mut buffers = Buffers {
            entries,
            memory,
            count,
            tail: 0,
            left: 0,
        };
        // SAFETY: the array is page-aligned, has that many entries, and is never freed.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(entries as u64, count, 0, 0)
        }?;
        for index in 0..count {
            buffers.give(index);
        }
        Ok(buffers)
    }

    pub(crate) fn address(&self, index: u16) -> *const u8 {
        self.memory.wrapping_add(usize::from(index) * BUFFER_LEN)
    }

    pub(crate) fn give(&mut self, index: u16) {
        let address = self.address(index);
        // SAFETY: the place is within the array, and there are no more buffers than places. The tail lies in the first
        // entry and is shared with the kernel as an atomic.
        unsafe {
            let entry = &mut *self.entries.add(usize::from(self.tail & (self.count - 1)));
            entry.set_addr(address as u64);
            entry.set_len(BUFFER_LEN as u32);
            entry.set_bid(index);
            self.tail = self.tail.wrapping_add(1);
            self.left += 1;
            let tail = &*BufRingEntry::tail(self.entries).cast::<AtomicU16>();
            tail.store(self.tail, Ordering::Release);
        }
    }
}

/// The same with multishot accepts and receives, a buffer ring and direct descriptors. The user data of a send names
/// its buffer, which returns to the ring on completion. With several requests in flight, receives of a connection could
/// overtake its sends: this server supports one request at a time.
pub(crate) fn serve_multishot(connections: usize) -> io::Result<()> {
    let mut ring = ring(connections)?;
    // The table of direct descriptors must not be longer than RLIMIT_NOFILE.
    let room = limits::open_files().unwrap_or(1024).min(16 * 1024);
    ring.submitter().register_files_sparse(room as u32)?;
    let mut buffers = Buffers::register(&ring, buffers_for(connections))?;
    let listener = listen()?;
    // Accepted connections inherit it.
    socket2::SockRef::from(&listener).set_tcp_nodelay(true)?;
    let accept = opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd()))
        .allocate_file_index(true)
        .build()
        .user_data(ACCEPT);
    push(&mut ring, accept.clone())?;
    // Connections that found no buffer: they receive again as soon as there is one.
    let mut starved = Vec::new();
    loop {
        wait(&mut ring)?;
        loop {
            let Some(completion) = ring.completion().next() else {
                break;
            };
            let (result, flags) = (completion.result(), completion.flags());
            let what = completion.user_data() & (0xff << 32);
            let place = completion.user_data() as u32;
            match what {
                ACCEPT => {
                    if result >= 0 {
                        push(&mut ring, receive_multishot(result as u32))?;
                    }
                    if !cqueue::more(flags) {
                        push(&mut ring, accept.clone())?;
                    }
                }
                RECV if result > 0 => {
                    let index = cqueue::buffer_select(flags).expect("received bytes have a buffer");
                    buffers.left -= 1;
                    let fd = types::Fixed(place);
                    let entry = opcode::Send::new(fd, buffers.address(index), result as u32)
                        .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
                        .build();
                    push(
                        &mut ring,
                        entry.user_data(SEND | u64::from(index) << 40 | u64::from(place)),
                    )?;
                    if !cqueue::more(flags) {
                        push(&mut ring, receive_multishot(place))?;
                    }
                }
                RECV if result == -libc::ENOBUFS => starved.push(place),
                RECV => {
                    let close = opcode::Close::new(types::Fixed(place)).build();
                    push(&mut ring, close.user_data(CLOSE))?;
                }
                SEND => buffers.give((completion.user_data() >> 40) as u16),
                _ => {}
            }
        }
        // If none is left, sends are in flight, and each returns a buffer.
        if buffers.left > 0 {
            for place in starved.drain(..) {
                push(&mut ring, receive_multishot(place))?;
            }
        }
    }
}

fn receive_multishot(place: u32) -> squeue::Entry {
    let entry = opcode::RecvMulti::new(types::Fixed(place), 0).build();
    entry.user_data(RECV | u64::from(place))
}
