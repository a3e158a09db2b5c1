//! `examples/crawler` on tokio.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use site::{Options, Page, links, parse_response, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_equivalents::{Shutdown, outln};

#[path = "../../../crawler/site.rs"]
mod site;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<ExitCode> {
    let Some(options) = Options::parse(std::env::args().skip(1)) else {
        eprintln!("{}", site::USAGE);
        return Ok(ExitCode::from(2));
    };
    let mut counts = Counts::default();
    let mut shutdown = Shutdown::new()?;
    tokio::select! {
        () = crawl(options, &mut counts) => {}
        () = shutdown.recv() => outln!("interrupted"),
    }
    outln!("{} pages, {} failed", counts.pages, counts.failed);
    Ok(ExitCode::from(u8::from(counts.failed > 0)))
}

#[derive(Default)]
struct Counts {
    pages: usize,
    failed: usize,
}

async fn crawl(options: Options, counts: &mut Counts) {
    let options = Arc::new(options);
    let mut seen = HashSet::from([options.path.clone()]);
    let mut queue = VecDeque::from([options.path.clone()]);
    let mut jobs = JoinSet::new();
    loop {
        while jobs.len() < options.jobs
            && let Some(path) = queue.pop_front()
        {
            let options = options.clone();
            jobs.spawn(async move { (timeout(options.patience, fetch(&options.host, &path)).await, path) });
        }
        let Some(result) = jobs.join_next().await else { return };
        let (page, path) = result.expect("a job does not panic");
        match page.unwrap_or_else(|elapsed| Err(elapsed.into())) {
            Ok(Page { status, body }) => {
                outln!("{status} {path}, {} bytes", body.len());
                counts.pages += 1;
                for link in links(&options.host, &path, &body) {
                    if seen.len() < site::MAX_PAGES && seen.insert(link.clone()) {
                        queue.push_back(link);
                    }
                }
            }
            Err(error) => {
                outln!("{path}: {error}");
                counts.failed += 1;
            }
        }
    }
}

async fn fetch(host: &str, path: &str) -> io::Result<Page> {
    let mut stream = TcpStream::connect(site::address(host)).await?;
    stream.write_all(request(host, path).as_bytes()).await?;
    let mut response = Vec::new();
    let limit = site::MAX_LEN as u64;
    stream.take(limit + 1).read_to_end(&mut response).await?;
    if response.len() > site::MAX_LEN {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the page is too long"));
    }
    parse_response(&response)
}
