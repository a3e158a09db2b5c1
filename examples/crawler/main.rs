//! A crawler: fetches the pages of a site that can be reached by links, several at a time.
//!
//! `cargo run --release --example crawler -- http://127.0.0.1:8000/ [JOBS [SECONDS]]`: at most `JOBS` pages at a time (8),
//! each within `SECONDS` (5). On Ctrl-C or SIGTERM it reports what it has. The exit code is 1 if a page could not be
//! fetched.

#[path = "../support/mod.rs"]
mod support;

mod site;

use std::collections::{HashSet, VecDeque};
use std::io;
use std::process::ExitCode;
use std::rc::Rc;

use site::{Options, Page, links, parse_response, request};
use support::outln;
use windlass::io::AsyncRead;
use windlass::net::TcpStream;
use windlass::task::JoinSet;
use windlass::time::timeout;

fn main() -> io::Result<ExitCode> {
    let Some(options) = Options::parse(std::env::args().skip(1)) else {
        eprintln!("{}", site::USAGE);
        return Ok(ExitCode::from(2));
    };
    windlass::run(async {
        let mut counts = Counts::default();
        let mut shutdown = windlass::signal::shutdown()?;
        if shutdown.run_until_shutdown(crawl(options, &mut counts)).await.is_none() {
            outln!("interrupted");
        }
        outln!("{} pages, {} failed", counts.pages, counts.failed);
        Ok(ExitCode::from(u8::from(counts.failed > 0)))
    })?
}

#[derive(Default)]
struct Counts {
    pages: usize,
    failed: usize,
}

async fn crawl(options: Options, counts: &mut Counts) {
    let options = Rc::new(options);
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

/// Fetches one page.
async fn fetch(host: &str, path: &str) -> io::Result<Page> {
    let mut stream = TcpStream::connect(site::address(host)).await?;
    stream.write_all(request(host, path)).await.0?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response, site::MAX_LEN).await?;
    parse_response(&response)
}
