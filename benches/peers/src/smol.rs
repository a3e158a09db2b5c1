//! smol: `smol::block_on` around a `smol::LocalExecutor` (that of the crate async-executor), as in the documentation of
//! the executor; `smol::Timer`, `smol::future::yield_now`. Its I/O thread starts automatically, but a waiting
//! `block_on` polls the kernel itself.
//!
//! Echo: `read(&mut buffer)` with 8 KiB, `write_all`. Files: `smol::unblock` around a positioned read of the standard
//! library. `smol::fs::File` does the same inside, but has no positioned read: a seek and a read would be two trips to
//! the pool instead of one.

use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smol::LocalExecutor;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::{TcpListener, TcpStream};

use crate::kit::hand_epoll::print_port;
use crate::runtime::{BUFFER_LEN, Runtime};

pub(crate) struct Smol;

thread_local! {
    /// Lets a task spawn another, as in the other runtimes.
    static EXECUTOR: LocalExecutor<'static> = const { LocalExecutor::new() };
}

impl Runtime for Smol {
    const SETTINGS: &'static str =
        "smol::block_on(LocalExecutor::run); echo: read(&mut 8 KiB); files: smol::unblock with pread";

    fn run<T: 'static>(main: impl Future<Output = T> + 'static) -> io::Result<T> {
        Ok(EXECUTOR.with(|executor| smol::block_on(executor.run(main))))
    }

    fn spawn(task: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static {
        EXECUTOR.with(|executor| executor.spawn(task))
    }

    fn sleep(length: Duration) -> impl Future<Output = ()> + 'static {
        let timer = smol::Timer::after(length);
        async {
            timer.await;
        }
    }

    fn yield_now() -> impl Future<Output = ()> {
        smol::future::yield_now()
    }

    async fn serve() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        print_port(listener.local_addr()?.port())?;
        loop {
            let (stream, _) = listener.accept().await?;
            EXECUTOR.with(|executor| executor.spawn(echo(stream))).detach();
        }
    }

    type File = Arc<std::fs::File>;

    async fn open(path: &Path) -> io::Result<Self::File> {
        let path = path.to_path_buf();
        Ok(Arc::new(smol::unblock(|| std::fs::File::open(path)).await?))
    }

    async fn read_at(file: &Rc<Self::File>, mut buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        let file = Arc::clone(file);
        let read = move || file.read_exact_at(&mut buffer, offset).map(|()| buffer);
        smol::unblock(read).await
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
