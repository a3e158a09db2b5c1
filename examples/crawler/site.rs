//! Options, URLs, pages and links, without I/O.

use std::io;
use std::time::Duration;

pub(crate) const USAGE: &str = "usage: crawler http://HOST/PATH [JOBS [SECONDS]]";

/// The maximum number of pages.
pub(crate) const MAX_PAGES: usize = 10_000;
/// The maximum length of a page.
pub(crate) const MAX_LEN: usize = 1 << 20;

pub(crate) struct Options {
    pub(crate) host: String,
    pub(crate) path: String,
    /// How many pages are fetched at a time.
    pub(crate) jobs: usize,
    /// How long a page may take.
    pub(crate) patience: Duration,
}

impl Options {
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Option<Options> {
        let args: Vec<String> = args.collect();
        let (host, path) = split_url(args.first()?)?;
        let jobs = args.get(1).map_or(Some(8), |jobs| jobs.parse().ok());
        let seconds = args.get(2).map_or(Some(5.0), |seconds| seconds.parse().ok())?;
        (args.len() <= 3).then_some(Options {
            host: host.to_owned(),
            path: path.to_owned(),
            jobs: jobs.filter(|jobs| *jobs > 0)?,
            patience: Duration::try_from_secs_f64(seconds).ok()?,
        })
    }
}

/// Splits `http://HOST/PATH` into host (with a port) and path.
fn split_url(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    (!host.is_empty()).then_some((host, if path.is_empty() { "/" } else { path }))
}

/// The address of a host: port 80 unless it names one.
pub(crate) fn address(host: &str) -> String {
    match host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
        _ => format!("{host}:80"),
    }
}

/// A request for one page. The server closes the connection after its response.
pub(crate) fn request(host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: crawler\r\nConnection: close\r\n\r\n")
}

pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) body: String,
}

pub(crate) fn parse_response(response: &[u8]) -> io::Result<Page> {
    let parse = || {
        let end = response.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&response[..end]).ok()?;
        let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
        let body = String::from_utf8_lossy(&response[end + 4..]).into_owned();
        Some(Page { status, body })
    };
    parse().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is not an HTTP response"))
}

/// The pages that a page links to and that are on the same host.
pub(crate) fn links(host: &str, path: &str, body: &str) -> Vec<String> {
    let targets = body.split("href=\"").skip(1).filter_map(|rest| rest.split_once('"'));
    targets.filter_map(|(target, _)| resolve(host, path, target)).collect()
}

/// The path of a link on the page `path`, if it leads to the same host.
fn resolve(host: &str, path: &str, link: &str) -> Option<String> {
    let link = link.split('#').next().filter(|link| !link.is_empty())?;
    let path = match link.strip_prefix("http://") {
        Some(_) => split_url(link).filter(|(other, _)| *other == host)?.1.to_owned(),
        // Another scheme, or another host with the same scheme.
        None if link.starts_with("//") || link.split('/').next()?.contains(':') => return None,
        None if link.starts_with('/') => link.to_owned(),
        None => {
            let folder = path.split('?').next()?;
            format!("{}{link}", &folder[..=folder.rfind('/')?])
        }
    };
    // White space would end the request line.
    if path.contains(|char: char| char.is_whitespace() || char.is_control()) {
        return None;
    }
    let mut parts = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Some(format!("/{}", parts.join("/")))
}
