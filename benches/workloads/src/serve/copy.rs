//! Copies of a file through the program, in blocks: a client asks for one copy after the other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MIB: usize = 16;
const BLOCK: usize = 64 * 1024;
const CLIENTS: usize = 4;

/// The source, and a new name for a copy.
fn paths() -> (PathBuf, PathBuf) {
    static COPIES: AtomicUsize = AtomicUsize::new(0);
    let folder = std::env::temp_dir();
    let number = COPIES.fetch_add(1, Ordering::Relaxed);
    let copy = folder.join(format!("windlass-workloads-{}-{number}", std::process::id()));
    (folder.join("windlass-workloads-source"), copy)
}

/// Answers each byte when a copy is done.
pub async fn on_windlass(stream: windlass::net::TcpStream) {
    let (source, target) = paths();
    while let (Ok(()), byte) = stream.read_exact([0]).await {
        let copied = copy_on_windlass(&source, &target).await;
        copied.expect("the copy succeeds");
        if stream.write_all(byte).await.0.is_err() {
            break;
        }
    }
    let _ = std::fs::remove_file(target);
}

async fn copy_on_windlass(source: &PathBuf, target: &PathBuf) -> std::io::Result<()> {
    use windlass::fs::File;
    let (source, target) = (File::open(source).await?, File::create(target).await?);
    let mut buf = Vec::with_capacity(BLOCK);
    let mut offset = 0;
    loop {
        let (result, bytes) = source.read_at(buf, offset).await;
        if result? == 0 {
            return Ok(());
        }
        let len = bytes.len() as u64;
        let (result, bytes) = target.write_all_at(bytes, offset).await;
        result?;
        offset += len;
        buf = bytes;
        buf.clear();
    }
}

pub async fn on_tokio(mut stream: tokio::net::TcpStream) {
    let (source, target) = paths();
    let mut byte = [0];
    while stream.read_exact(&mut byte).await.is_ok() {
        let copied = copy_on_tokio(&source, &target).await;
        copied.expect("the copy succeeds");
        if stream.write_all(&byte).await.is_err() {
            break;
        }
    }
    let _ = std::fs::remove_file(target);
}

async fn copy_on_tokio(source: &PathBuf, target: &PathBuf) -> std::io::Result<()> {
    use tokio::fs::File;
    let (mut source, mut target) = (File::open(source).await?, File::create(target).await?);
    let mut buf = vec![0; BLOCK];
    loop {
        let count = source.read(&mut buf).await?;
        if count == 0 {
            // Waits for the last write, which runs in the background.
            return target.flush().await;
        }
        target.write_all(&buf[..count]).await?;
    }
}

/// Has copies made for a time by several clients. Prints the MiB, the MiB per second and the errors.
pub fn load(port: u16, seconds: u64) {
    let (source, _) = paths();
    std::fs::write(source, vec![7; MIB << 20]).expect("a file in the temporary directory");
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let client = || -> std::io::Result<usize> {
        let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
        let mut copies = 0;
        while Instant::now() < end {
            let mut byte = [1];
            stream.write_all(&byte)?;
            stream.read_exact(&mut byte)?;
            copies += 1;
        }
        Ok(copies)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("no panic"))
            .collect()
    });
    let errors = results.iter().filter(|result| result.is_err()).count();
    let mib = MIB * results.into_iter().flatten().sum::<usize>();
    println!("{mib} {} {errors}", mib as f64 / begin.elapsed().as_secs_f64());
}
