//! monoio: `RuntimeBuilder::<IoUringDriver>::new().enable_timer()`, built without its epoll driver, with the feature
//! `sync`, which wakes from other threads need; `monoio::spawn`, `time::sleep`. It has no yield: a future that wakes
//! itself once is used instead.
//!
//! Echo: owned reads into one reused buffer of 8 KiB, `write_all`, as in its README. Files:
//! `fs::File::read_exact_at`.

use std::future::Future;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use monoio::fs::File;
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};

use crate::kit::hand_epoll::print_port;
use crate::runtime::{BUFFER_LEN, PlainYield, Runtime};

pub(crate) struct Monoio;

impl Runtime for Monoio {
    const SETTINGS: &'static str = "IoUringDriver, enable_timer, 1024 entries (default), built with its feature sync \
        (which wakes from other threads need); echo: owned reads of 8 KiB, one buffer; files: read_exact_at";

    fn run<T: 'static>(main: impl Future<Output = T> + 'static) -> io::Result<T> {
        let mut runtime = RuntimeBuilder::<IoUringDriver>::new().enable_timer().build()?;
        Ok(runtime.block_on(main))
    }

    fn spawn(task: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static {
        monoio::spawn(task)
    }

    fn sleep(length: Duration) -> impl Future<Output = ()> + 'static {
        monoio::time::sleep(length)
    }

    fn yield_now() -> impl Future<Output = ()> {
        PlainYield::default()
    }

    async fn serve() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        print_port(listener.local_addr()?.port())?;
        loop {
            let (stream, _) = listener.accept().await?;
            monoio::spawn(echo(stream));
        }
    }

    type File = File;

    async fn open(path: &Path) -> io::Result<File> {
        File::open(path).await
    }

    async fn read_at(file: &Rc<File>, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        let (result, buffer) = file.read_exact_at(buffer, offset).await;
        result.map(|()| buffer)
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(BUFFER_LEN);
    loop {
        let (result, back) = stream.read(buffer).await;
        if result? == 0 {
            return Ok(());
        }
        // A read sets the length, so this sends the received bytes.
        let (result, back) = stream.write_all(back).await;
        result?;
        buffer = back;
        buffer.clear();
    }
}
