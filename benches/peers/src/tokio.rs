//! tokio: `Builder::new_current_thread().enable_all()`, built as a `LocalRuntime`, which its documentation offers for
//! tasks that stay on one thread; `spawn_local`, `time::sleep`, `task::yield_now`.
//!
//! Echo: `read(&mut buffer)` with 8 KiB, `write_all`. Files: `spawn_blocking` around a positioned read of the standard
//! library. `tokio::fs::File` does the same inside, but has no positioned read: a seek and a read would be two trips to
//! the pool instead of one. (Its io_uring for files is behind `tokio_unstable`.)

use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::{spawn_blocking, spawn_local};

use crate::kit::hand_epoll::print_port;
use crate::runtime::{BUFFER_LEN, Runtime};

pub(crate) struct Tokio;

impl Runtime for Tokio {
    const SETTINGS: &'static str =
        "current_thread LocalRuntime, enable_all; echo: read(&mut 8 KiB); files: spawn_blocking with pread";

    fn run<T: 'static>(main: impl Future<Output = T> + 'static) -> io::Result<T> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())?;
        Ok(runtime.block_on(main))
    }

    fn spawn(task: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static {
        let handle = spawn_local(task);
        async { handle.await.expect("no task of these panics") }
    }

    fn sleep(length: Duration) -> impl Future<Output = ()> + 'static {
        tokio::time::sleep(length)
    }

    fn yield_now() -> impl Future<Output = ()> {
        tokio::task::yield_now()
    }

    async fn serve() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        print_port(listener.local_addr()?.port())?;
        loop {
            let (stream, _) = listener.accept().await?;
            spawn_local(echo(stream));
        }
    }

    type File = Arc<std::fs::File>;

    async fn open(path: &Path) -> io::Result<Self::File> {
        let file = tokio::fs::File::open(path).await?;
        Ok(Arc::new(file.into_std().await))
    }

    async fn read_at(file: &Rc<Self::File>, mut buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        let file = Arc::clone(file);
        let read = move || file.read_exact_at(&mut buffer, offset).map(|()| buffer);
        spawn_blocking(read).await.expect("a read does not panic")
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count]).await?;
    }
}
