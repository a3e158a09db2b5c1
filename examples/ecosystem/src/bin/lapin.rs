use async_rs::Runtime;
use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::{Task, TaskImpl, simple_block_on};
use futures_util::io::{AsyncRead, AsyncWrite};
use futures_util::stream::{Stream, StreamExt, unfold};
use lapin::{Connection, ConnectionProperties};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};
use windlass::compat::Bridge;
use windlass::net::TcpStream;
use windlass::{LoopHandle, RemoteHandle};

/// Tasks, timers and sockets of a loop, which must run until the connection is closed.
#[derive(Clone, Debug)]
struct OnLoop(LoopHandle);

/// The result of a task of the loop, awaited on any thread.
struct Job<T>(RemoteHandle<T>);

impl OnLoop {
    fn start<F>(&self, make: impl FnOnce() -> F + Send + 'static) -> Job<F::Output>
    where
        F: Future<Output: Send> + 'static,
    {
        Job(self.0.spawn_with(make).expect("the loop has not closed"))
    }
}

impl<T> Future for Job<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(cx).map(|result| result.expect("no panic"))
    }
}

impl<T: Send + 'static> TaskImpl for Job<T> {}

impl RuntimeKit for OnLoop {}

impl Executor for OnLoop {
    type Task<T: Send + 'static> = Job<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        simple_block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(&self, future: F) -> Task<Job<T>> {
        self.start(|| future).into()
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(&self, work: F) -> Task<Job<T>> {
        let job = self.start(|| async { windlass::spawn_blocking(work).await.expect("no panic") });
        job.into()
    }
}

impl Reactor for OnLoop {
    /// lapin polls it on a thread of its own. The socket stays on the loop, at the other end of a pipe.
    type TcpStream = Compat<DuplexStream>;
    type Sleep = Job<()>;

    fn register<H>(&self, _: H) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static>
    where
        H: Read + Write + Send + 'static,
    {
        Err::<Self::TcpStream, _>(io::ErrorKind::Unsupported.into()) // lapin does not call it
    }

    fn sleep(&self, duration: Duration) -> Job<()> {
        self.start(move || windlass::time::sleep(duration))
    }

    fn interval(&self, period: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        unfold((self.clone(), Duration::ZERO), move |(runtime, wait)| async move {
            runtime.sleep(wait).await;
            Some((Instant::now(), (runtime, period)))
        })
    }

    fn tcp_connect_addr(&self, addr: SocketAddr) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        self.start(move || async move {
            let mut socket = Bridge::new(TcpStream::builder().nodelay(true).connect(addr).await?);
            let (near, mut far) = duplex(64 * 1024);
            // An error ends both directions of the pipe, which lapin sees.
            windlass::spawn(async move { _ = copy_bidirectional(&mut socket, &mut far).await });
            Ok(near.compat())
        })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let uri = std::env::args().nth(1).ok_or("usage: lapin amqp://127.0.0.1:5672")?;
    windlass::run(async {
        let runtime = Runtime::new(OnLoop(LoopHandle::current().expect("inside of a loop")));
        let connection = Connection::connect_with_runtime(&uri, ConnectionProperties::default(), runtime).await?;
        let channel = connection.create_channel().await?;
        let queue = channel.queue_declare("".into(), Default::default(), Default::default());
        let queue = queue.await?.name().clone(); // the server chooses it
        let consumer = channel.basic_consume(queue.clone(), "".into(), Default::default(), Default::default());
        let mut consumer = consumer.await?;
        for number in 0..100u8 {
            let (options, body, properties) = (Default::default(), [number], Default::default());
            let publish = channel.basic_publish("".into(), queue.clone(), options, &body, properties);
            publish.await?.await?;
        }
        for number in 0..100u8 {
            let delivery = consumer.next().await.ok_or("the consumer has ended")??;
            assert_eq!(delivery.data, [number]);
            delivery.ack(Default::default()).await?;
        }
        connection.close(200, "done".into()).await?;
        Ok(())
    })?
}
