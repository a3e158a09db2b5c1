//! quinn's UDP sockets: quinn-udp's system calls, and the loop's readiness.
//!
//! quinn-udp sends and receives several datagrams per call: `UDP_SEGMENT` to send, `UDP_GRO` and `recvmmsg` to receive. It needs
//! the loop only to wait, so the part that is bound to the loop's thread is the registration. Sending works on any thread, and
//! quinn does it: refusing a connection sends a datagram on the caller's thread.
//!
//! Waiting is avoided where the answer is known:
//! - quinn asks before each send whether the socket is writable. It is, until a send returned `WouldBlock`.
//! - A receive that returned fewer datagrams than it had room for has emptied the queue. The next one waits first, which saves
//!   the system call that would return EAGAIN.
//!
//! Receives of bulk data are coalesced: after several datagrams, the endpoint's task yields for some turns before it waits for
//! more. A loop polls for I/O in every turn, so otherwise it receives few datagrams at a time, between the turns in which the
//! connection and the stream's reader handle the previous ones. Each batch is acknowledged, which costs a send, a receive and a
//! poll of the connection on both sides.

use std::fmt;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use windlass::compat::ThreadBound;
use windlass::io::AsyncFd;

/// For how many turns the endpoint's task yields after it has received several datagrams. 64 MiB between two loops, speed against
/// quinn on tokio, which polls for I/O only when no task is ready, on io_uring and epoll: without yielding 0.97 and 0.97 (3,300 and
/// 2,900 acknowledgements, tokio 1,600), 4 turns 1.02 and 0.98, 8 turns 1.03 and 1.00 (2,100), 16 turns 1.06 and 1.03 (1,600). With
/// client and server on one loop, 4 turns 1.03 and 1.01, 8 turns 1.01 and 1.00, 16 turns 1.00 and 0.99: there the client fills the
/// receive buffer meanwhile.
const TURNS_BETWEEN_RECEIVES: u8 = 8;

/// A socket of an endpoint.
pub(crate) struct Socket {
    /// Declared before the socket, which it refers to: the descriptor is unregistered before it is closed.
    readiness: ThreadBound<AsyncFd<Shared>>,
    socket: Arc<UdpSocket>,
    state: UdpSocketState,
    /// Whether a receive may find a datagram. Used by the endpoint's task alone.
    may_receive: AtomicBool,
    /// For how many more turns the endpoint's task yields before it waits for datagrams. Used by that task alone.
    turns_to_yield: AtomicU8,
    /// Whether the last send returned `WouldBlock`.
    is_full: AtomicBool,
    writers: Arc<Writers>,
}

/// The owner of the descriptor that is registered.
struct Shared(Arc<UdpSocket>);

#[cfg(unix)]
impl std::os::fd::AsRawFd for Shared {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(windows)]
impl std::os::windows::io::AsRawSocket for Shared {
    fn as_raw_socket(&self) -> std::os::windows::io::RawSocket {
        self.0.as_raw_socket()
    }
}

impl Socket {
    pub(crate) fn new(socket: UdpSocket) -> io::Result<Socket> {
        // Also makes it non-blocking.
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let socket = Arc::new(socket);
        Ok(Socket {
            readiness: ThreadBound::new(AsyncFd::new(Shared(socket.clone()))?),
            socket,
            state,
            may_receive: AtomicBool::new(true),
            turns_to_yield: AtomicU8::new(0),
            is_full: AtomicBool::new(false),
            writers: Arc::default(),
        })
    }

    fn poll_writable(&self, cx: &mut Context<'_>, place: usize) -> Poll<io::Result<()>> {
        if !self.is_full.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        // Before the poll, which may be followed by a wake-up at once.
        self.writers.wait(place, cx.waker());
        let all = Waker::from(self.writers.clone());
        let result = ready!(self.readiness.poll_writable(&mut Context::from_waker(&all)));
        self.is_full.store(false, Ordering::Relaxed);
        // The connections that waited before this one did not see the readiness.
        self.writers.leave(place);
        all.wake();
        Poll::Ready(result)
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        let place = self.writers.enter();
        Box::pin(Poller { socket: self, place })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let result = self.state.send(UdpSockRef::from(&*self.socket), transmit);
        if matches!(&result, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            self.is_full.store(true, Ordering::Relaxed);
        }
        result
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            if !self.may_receive.load(Ordering::Relaxed) {
                let turns = self.turns_to_yield.load(Ordering::Relaxed);
                if turns > 0 {
                    self.turns_to_yield.store(turns - 1, Ordering::Relaxed);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                ready!(self.readiness.poll_readable(cx))?;
                self.may_receive.store(true, Ordering::Relaxed);
            }
            match self.state.recv(UdpSockRef::from(&*self.socket), bufs, meta) {
                Ok(count) => {
                    let room = bufs.len().min(meta.len());
                    self.may_receive.store(room == 1 || count == room, Ordering::Relaxed);
                    // A single datagram may be a request, whose answer must not be late.
                    let is_bulk = count > 1 || meta[0].len > meta[0].stride;
                    let turns = if is_bulk { TURNS_BETWEEN_RECEIVES } else { 0 };
                    self.turns_to_yield.store(turns, Ordering::Relaxed);
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.may_receive.store(false, Ordering::Relaxed),
                Err(error) if is_of_another_datagram(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// Errors that a receive reports for a datagram sent earlier. They may be forged, so they must not end an endpoint.
fn is_of_another_datagram(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
    )
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// A connection's view of the socket.
struct Poller {
    socket: Arc<Socket>,
    place: usize,
}

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_writable(cx, self.place)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.socket.writers.exit(self.place);
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("socket", &self.socket).finish()
    }
}

/// The connections that wait until a socket is writable: all are woken. The registration has room for one waker, this one.
#[derive(Default)]
struct Writers {
    places: Mutex<Vec<Place>>,
}

enum Place {
    Free,
    Idle,
    Waiting(Waker),
}

impl Writers {
    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        // Nothing panics under the lock.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> usize {
        let mut places = self.places();
        let free = places.iter().position(|place| matches!(place, Place::Free));
        match free {
            Some(at) => {
                places[at] = Place::Idle;
                at
            }
            None => {
                places.push(Place::Idle);
                places.len() - 1
            }
        }
    }

    fn wait(&self, at: usize, waker: &Waker) {
        let waker = Place::Waiting(waker.clone());
        let old = std::mem::replace(&mut self.places()[at], waker);
        // A waker's destructor is foreign code: not under the lock.
        drop(old);
    }

    fn leave(&self, at: usize) {
        let old = std::mem::replace(&mut self.places()[at], Place::Idle);
        drop(old);
    }

    fn exit(&self, at: usize) {
        let old = std::mem::replace(&mut self.places()[at], Place::Free);
        drop(old);
    }
}

impl Wake for Writers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waiting: Vec<Waker> = self
            .places()
            .iter_mut()
            .filter(|place| matches!(place, Place::Waiting(_)))
            .filter_map(|place| match std::mem::replace(place, Place::Idle) {
                Place::Waiting(waker) => Some(waker),
                Place::Free | Place::Idle => None,
            })
            .collect();
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use windlass::{Builder, DriverChoice};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn on_every_driver<F: Future<Output = ()>>(test: fn() -> F) {
        for choice in [DriverChoice::Proactor, DriverChoice::Reactor] {
            let Ok(event_loop) = Builder::new().driver(choice).build() else {
                println!("skipped {choice:?}");
                continue;
            };
            event_loop.run_until_complete(test()).expect("the loop runs");
        }
    }

    #[test]
    fn other_tasks_run_between_a_bulk_receive_and_the_wait_for_more() {
        on_every_driver(yield_between_receives);
    }

    async fn yield_between_receives() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = receiver.local_addr().unwrap();
        let receiver = Socket::new(receiver).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let wakes = || count.0.load(Ordering::Relaxed);
        // The number of datagrams that were received.
        let receive = || {
            let mut bytes = [[0; 64]; 4];
            let mut metas = [RecvMeta::default(); 4];
            let mut bufs = bytes.each_mut().map(|bytes| IoSliceMut::new(bytes));
            match receiver.poll_recv(&mut Context::from_waker(&waker), &mut bufs, &mut metas) {
                Poll::Ready(result) => Some(result.unwrap()),
                Poll::Pending => None,
            }
        };
        // A datagram to the loopback address has arrived when the send returns.
        for (datagrams, turns) in [(1, 0), (3, TURNS_BETWEEN_RECEIVES), (1, 0), (2, TURNS_BETWEEN_RECEIVES)] {
            for len in 1..=datagrams {
                // Of different lengths, so that the kernel does not coalesce them.
                sender.send_to(&[7; 8][..len], addr).unwrap();
            }
            // After the first, they are received once the readiness is known.
            let received = loop {
                match receive() {
                    Some(count) => break count,
                    None => windlass::time::sleep(Duration::from_millis(1)).await,
                }
            };
            assert_eq!(received, datagrams);
            let before = wakes();
            for turn in 1..=usize::from(turns) {
                assert_eq!(receive(), None);
                assert_eq!(wakes(), before + turn, "the task runs again in the next turn");
            }
            assert_eq!(receive(), None);
            windlass::task::yield_now().await;
            assert_eq!(wakes(), before + usize::from(turns), "woken without a datagram");
        }
    }

    /// A loopback socket always has room, so the state after a send that did not is made by hand.
    #[test]
    fn all_connections_that_wait_for_room_are_woken() {
        on_every_driver(wait_for_room);
    }

    async fn wait_for_room() {
        let socket = Arc::new(Socket::new(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap());
        let counts: [Arc<Count>; 3] = Default::default();
        let wakers = counts.clone().map(Waker::from);
        let mut pollers = [0; 4].map(|_| socket.clone().create_io_poller());
        let mut poll = |at: usize| {
            let mut cx = Context::from_waker(&wakers[at]);
            pollers[at].as_mut().poll_writable(&mut cx).is_ready()
        };
        assert!(poll(0), "there is room until a send fails");
        assert!(socket.writers.places().iter().all(|place| matches!(place, Place::Idle)));

        socket.is_full.store(true, Ordering::Relaxed);
        assert!(![poll(0), poll(1), poll(2), poll(0)].contains(&true));
        while counts.iter().all(|count| count.0.load(Ordering::Relaxed) == 0) {
            windlass::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(counts.iter().all(|count| count.0.load(Ordering::Relaxed) == 1));
        assert!([poll(0), poll(1), poll(2)].iter().all(|&is_ready| is_ready));

        // The place of a connection that has ended is used again.
        drop(pollers);
        drop(socket.clone().create_io_poller());
        assert_eq!(socket.writers.places().len(), 4);
    }
}
