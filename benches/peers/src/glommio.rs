//! glommio: `LocalExecutorBuilder::new(Placement::Unbound)` (the process is pinned to a core already), with defaults:
//! rings of 128 entries, no spinning; `spawn_local`, `timer::Timer`, `executor().yield_now()`. It needs locked memory:
//! 512 KiB by its documentation; the limit is raised as far as possible at the start.
//!
//! Echo: `read(&mut buffer)` with 8 KiB and `write_all` on an unbuffered `TcpStream`, as its own examples. Files:
//! `BufferedFile::read_at`, which allocates each buffer itself; its `DmaFile` bypasses the page cache that is measured
//! here.

use std::future::Future;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use glommio::io::BufferedFile;
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement};
use smol::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::hand_epoll::print_port;
use crate::runtime::{BUFFER_LEN, Runtime};

pub(crate) struct Glommio;

impl Runtime for Glommio {
    const SETTINGS: &'static str =
        "LocalExecutor, Placement::Unbound, defaults; echo: read(&mut 8 KiB); files: BufferedFile::read_at";

    fn run<T: 'static>(main: impl Future<Output = T> + 'static) -> io::Result<T> {
        let executor = LocalExecutorBuilder::new(Placement::Unbound).make()?;
        Ok(executor.run(main))
    }

    fn spawn(task: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static {
        glommio::spawn_local(task)
    }

    fn sleep(length: Duration) -> impl Future<Output = ()> + 'static {
        glommio::timer::sleep(length)
    }

    async fn yield_now() {
        glommio::executor().yield_now().await;
    }

    async fn serve() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        print_port(listener.local_addr()?.port())?;
        loop {
            let stream = listener.accept().await?;
            glommio::spawn_local(echo(stream)).detach();
        }
    }

    type File = BufferedFile;

    async fn open(path: &Path) -> io::Result<BufferedFile> {
        Ok(BufferedFile::open(path).await?)
    }

    async fn read_at(file: &Rc<BufferedFile>, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        let block = file.read_at(offset, buffer.len()).await?;
        match block.len() == buffer.len() {
            true => Ok(buffer),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
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
