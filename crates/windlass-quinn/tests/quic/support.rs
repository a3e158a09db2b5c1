//! Drivers, certificates, a lossy proxy, a socket that counts.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::process;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use windlass::{Builder, DriverChoice};
use windlass_quinn::Runtime;
use windlass_quinn::quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use windlass_quinn::quinn::rustls::pki_types::PrivateKeyDer;
use windlass_quinn::quinn::rustls::{self, RootCertStore};
use windlass_quinn::quinn::udp::{RecvMeta, Transmit};
use windlass_quinn::quinn::{AsyncUdpSocket, ClientConfig, Runtime as _, ServerConfig, UdpPoller};

/// A test that takes longer than this hangs.
pub(crate) const HANG: Duration = Duration::from_secs(300);

/// Runs a test on each driver that this machine has.
pub(crate) fn on_every_driver<F: Future>(test: impl Fn() -> F) {
    on_every_driver_within(HANG, test);
}

pub(crate) fn on_every_driver_within<F: Future>(limit: Duration, test: impl Fn() -> F) {
    let mut tested = 0;
    for choice in [DriverChoice::Proactor, DriverChoice::Reactor] {
        let event_loop = match Builder::new().driver(choice).build() {
            Ok(event_loop) => event_loop,
            Err(error) => {
                println!("skipped {choice:?}: {error}");
                continue;
            }
        };
        let watchdog = Watchdog::start(limit);
        println!("{choice:?}");
        event_loop.run_until_complete(test()).expect("the loop runs");
        event_loop.close();
        drop(watchdog);
        tested += 1;
    }
    assert!(tested > 0, "no driver was available");
}

/// Ends the process, with a message, if it is not dropped in time.
pub(crate) struct Watchdog {
    _dropped: mpsc::Sender<()>,
}

impl Watchdog {
    pub(crate) fn start(limit: Duration) -> Watchdog {
        let (dropped, is_dropped) = mpsc::channel::<()>();
        let test = thread::current().name().unwrap_or_default().to_owned();
        thread::spawn(move || {
            if let Err(mpsc::RecvTimeoutError::Timeout) = is_dropped.recv_timeout(limit) {
                eprintln!("{test} hangs");
                process::abort();
            }
        });
        Watchdog { _dropped: dropped }
    }
}

/// Configurations of a server named `localhost` and of clients that trust it.
pub(crate) fn configs(protocol: &str) -> (ServerConfig, ClientConfig) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());

    let mut server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    server.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    (
        ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server).unwrap())),
        ClientConfig::new(Arc::new(QuicClientConfig::try_from(client).unwrap())),
    )
}

/// Byte `at` of a long body: a reader notices bytes that are missing, doubled or out of order.
pub(crate) fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

pub(crate) fn block(at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(byte).collect()
}

/// Forwards datagrams between one client and a server, and drops some in each direction, by count.
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    /// Dropped to the server, and to the client.
    pub(crate) dropped: Rc<[std::cell::Cell<u64>; 2]>,
}

impl Proxy {
    /// A proxy on the current loop: drops datagrams number `every`, `2 * every`, ..., and the first `first`.
    pub(crate) async fn start(server: SocketAddr, every: u64, first: u64) -> Proxy {
        let large = || {
            windlass::net::UdpSocket::builder()
                .recv_buffer(4 << 20)
                .send_buffer(4 << 20)
        };
        let outer = Rc::new(large().bind("127.0.0.1:0").await.unwrap());
        let inner = Rc::new(large().connect(server).await.unwrap());
        let proxy = Proxy {
            addr: outer.local_addr().unwrap(),
            dropped: Rc::default(),
        };
        let client = Rc::new(std::cell::Cell::new(None));
        let (from_client, to_server, seen, dropped) =
            (outer.clone(), inner.clone(), client.clone(), proxy.dropped.clone());
        windlass::spawn(async move {
            let mut buf = Vec::with_capacity(65_536);
            for number in 1_u64.. {
                buf.clear();
                let (result, received) = from_client.recv_from(buf).await;
                seen.set(Some(result.unwrap().1));
                buf = received;
                if number <= first || number.is_multiple_of(every) {
                    dropped[0].set(dropped[0].get() + 1);
                } else {
                    buf = to_server.send(buf).await.1;
                }
            }
        })
        .detach();
        let dropped = proxy.dropped.clone();
        windlass::spawn(async move {
            let mut buf = Vec::with_capacity(65_536);
            for number in 1_u64.. {
                buf.clear();
                let (result, received) = inner.recv(buf).await;
                result.unwrap();
                buf = received;
                if number.is_multiple_of(every) {
                    dropped[1].set(dropped[1].get() + 1);
                } else if let Some(client) = client.get() {
                    buf = outer.send_to(buf, client).await.1;
                }
            }
        })
        .detach();
        proxy
    }
}

/// System calls and datagrams of a socket.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sends: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) received: AtomicU64,
}

impl Counts {
    pub(crate) fn per_send(&self) -> f64 {
        self.sent.load(Ordering::Relaxed) as f64 / self.sends.load(Ordering::Relaxed) as f64
    }

    pub(crate) fn per_message(&self) -> f64 {
        self.received.load(Ordering::Relaxed) as f64 / self.messages.load(Ordering::Relaxed) as f64
    }
}

/// Counts what passes through the runtime's socket.
pub(crate) struct Counting {
    socket: Arc<dyn AsyncUdpSocket>,
    counts: Arc<Counts>,
}

impl Counting {
    pub(crate) fn new(runtime: &Runtime, counts: Arc<Counts>) -> Arc<Counting> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = runtime.wrap_udp_socket(socket).unwrap();
        Arc::new(Counting { socket, counts })
    }
}

impl AsyncUdpSocket for Counting {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)?;
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        self.counts.sends.fetch_add(1, Ordering::Relaxed);
        self.counts
            .sent
            .fetch_add(transmit.contents.len().div_ceil(segment) as u64, Ordering::Relaxed);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let polled = self.socket.poll_recv(cx, bufs, meta);
        if let Poll::Ready(Ok(count)) = polled {
            let datagrams: usize = meta[..count]
                .iter()
                .map(|meta| meta.len.div_ceil(meta.stride.max(1)))
                .sum();
            self.counts.messages.fetch_add(count as u64, Ordering::Relaxed);
            self.counts.received.fetch_add(datagrams as u64, Ordering::Relaxed);
        }
        polled
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").field("counts", &self.counts).finish()
    }
}
