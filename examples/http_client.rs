//! An HTTP client on hyper: fetches URLs sequentially, over one connection if they have the same host.
//!
//! `cargo run --release --features hyper --example http_client -- [--http2] http://127.0.0.1:8080/ ...` prints the
//! status, headers and body of each.

#[path = "support/mod.rs"]
mod support;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, Uri};
use support::outln;
use windlass::compat::Bridge;
use windlass::hyper::{Executor, Timer};
use windlass::net::TcpStream;
use windlass::time::timeout;
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: http_client [--http2] [--driver auto|proactor|reactor] [--timeout SECONDS] URL...";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Options {
    http2: bool,
    driver: DriverChoice,
    timeout: Duration,
    urls: Vec<Uri>,
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            outln!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("{wrong}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has closed it.
        Err(error) if error.is::<OutputClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    let event_loop = Builder::new().driver(options.driver).build()?;
    event_loop.run_until_complete(async {
        // The connection of the previous fetch, if it can be reused.
        let mut kept: Option<(String, Connection)> = None;
        for url in options.urls {
            let host = url
                .authority()
                .map_or_else(String::new, |authority| authority.to_string());
            let mut connection = match kept.take() {
                Some((to, connection)) if to == host && connection.is_ready() => connection,
                _ => timeout(options.timeout, Connection::open(&url, options.http2)).await??,
            };
            let response = timeout(options.timeout, connection.fetch(&url, &host)).await??;
            timeout(options.timeout, print(response)).await??;
            kept = Some((host, connection));
        }
        Ok(())
    })?
}

/// The request side of a connection; the connection itself runs in a task.
enum Connection {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Connection {
    async fn open(url: &Uri, is_http2: bool) -> Result<Connection> {
        // An IPv6 address has brackets in a URL only.
        let host = url.host().unwrap_or_default();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let stream = TcpStream::connect((host, url.port_u16().unwrap_or(80))).await?;
        stream.set_nodelay(true)?;
        let stream = Bridge::new(stream);
        if is_http2 {
            let (sender, connection) = http2::Builder::new(Executor).timer(Timer).handshake(stream).await?;
            windlass::spawn(connection);
            return Ok(Connection::Http2(sender));
        }
        let (sender, connection) = http1::handshake(stream).await?;
        windlass::spawn(connection);
        Ok(Connection::Http1(sender))
    }

    /// Whether the peer has kept the connection open.
    fn is_ready(&self) -> bool {
        match self {
            Connection::Http1(sender) => !sender.is_closed(),
            Connection::Http2(sender) => !sender.is_closed(),
        }
    }

    async fn fetch(&mut self, url: &Uri, host: &str) -> Result<Response<Incoming>> {
        let mut request = Request::new(Empty::new());
        request
            .headers_mut()
            .insert(USER_AGENT, HeaderValue::from_static("windlass-http_client"));
        match self {
            Connection::Http1(sender) => {
                // In HTTP/1.1 the host is a header, and the request line has only the path.
                request.headers_mut().insert(HOST, HeaderValue::from_str(host)?);
                *request.uri_mut() = url.path_and_query().map_or("/", |path| path.as_str()).parse()?;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Connection::Http2(sender) => {
                *request.uri_mut() = url.clone();
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
        }
    }
}

async fn print(response: Response<Incoming>) -> Result<()> {
    let mut out = Vec::new();
    writeln!(out, "{:?} {}", response.version(), response.status())?;
    for (name, value) in response.headers() {
        writeln!(out, "{name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
    }
    writeln!(out)?;
    show(&out)?;
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            show(&data)?;
        }
    }
    Ok(())
}

/// Standard output was closed. A separate type, to distinguish it from a closed connection.
#[derive(Debug)]
struct OutputClosed;

impl std::fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("standard output was closed")
    }
}

impl std::error::Error for OutputClosed {}

fn show(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        shown => Ok(shown?),
    }
}

fn options(mut args: impl Iterator<Item = String>) -> std::result::Result<Option<Options>, String> {
    let mut options = Options {
        http2: false,
        driver: DriverChoice::Auto,
        timeout: Duration::from_secs(30),
        urls: Vec::new(),
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--http2" => options.http2 = true,
            "--driver" => options.driver = value()?.parse().map_err(|error: io::Error| error.to_string())?,
            "--timeout" => {
                let seconds = value()?
                    .parse()
                    .ok()
                    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                options.timeout = seconds.ok_or("--timeout needs a number of seconds")?;
            }
            "--help" | "-h" => return Ok(None),
            other if other.starts_with('-') => return Err(format!("unknown option {other}")),
            url => {
                let parsed: Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
                if parsed.scheme_str() != Some("http") || parsed.host().is_none() {
                    return Err(format!("{url}: only http:// URLs are supported"));
                }
                options.urls.push(parsed);
            }
        }
    }
    match options.urls.is_empty() {
        true => Err("no URL given".into()),
        false => Ok(Some(options)),
    }
}
