//! An HTTP server on hyper: HTTP/1.1 and HTTP/2 on one port, a file with ranges, uploads, graceful shutdown.
//!
//! `cargo run --release --features hyper --example http_server -- [--listen 127.0.0.1:8080] [--file README.md]`, then
//! `curl http://127.0.0.1:8080/`, `curl -r 0-99 .../file`, `curl -T Cargo.lock .../upload`, `curl
//! --http2-prior-knowledge ...`.
//!
//! Slow clients cannot block it or use much of its memory for long:
//!
//! - A client that sends nothing, or stops within its headers or an upload, is disconnected after `--patience` seconds.
//! - After `--patience` seconds, an upload must be faster than `--upload-rate` bytes per second.
//! - A client that reads nothing of its response for `--write-timeout` seconds is disconnected; the data queued for it
//!   is bounded.
//!
//! On Ctrl-C or SIGTERM it stops accepting, lets connections finish their current request, and cuts the rest after
//! `--grace` seconds. hyper-util's `auto` detects the HTTP version from the first bytes of a connection.
//!
//! One loop on one thread serves by default. `--shards N` starts a pool of N loops, and `--shards all` one for each cpu:
//! each accepts its own connections and runs the same code.

#[path = "support/mod.rs"]
mod support;

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RANGE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use support::{accept_failed, outln, reap};
use windlass::compat::Bridge;
use windlass::fs::File;
use windlass::hyper::{Executor, Timer};
use windlass::net::{TcpBuilder, TcpListener, TcpStream};
use windlass::shards::{self, Accept};
use windlass::task::JoinSet;
use windlass::time::{Instant, timeout, timeout_at};
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: http_server [--listen HOST:PORT] [--driver auto|proactor|reactor] [--shards N|all] \
                     [--file PATH] [--grace SECONDS] [--patience SECONDS] [--write-timeout SECONDS] \
                     [--upload-rate BYTES]";

/// Data queued for a client is limited per connection: by this in the kernel,
const SEND_BUFFER: usize = 128 * 1024;
/// and by this in hyper, which requests the next chunk of a file when it has room.
const WRITE_BUFFER: usize = 32 * 1024;
/// How long a shard may take to cut its connections.
const CUT_TIME: Duration = Duration::from_secs(5);
/// The maximum number of concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 32;

#[derive(Clone)]
struct Options {
    listen: String,
    driver: DriverChoice,
    /// The number of shards, 0 for one per cpu; without it, one loop on this thread.
    shards: Option<usize>,
    file: PathBuf,
    grace: Duration,
    patience: Duration,
    write_timeout: Duration,
    upload_rate: f64,
}

/// State shared by the connections of a loop. It has one thread, so a plain `Cell` is enough.
struct Shared {
    file: PathBuf,
    /// How long a client may send nothing while the server waits for it.
    patience: Duration,
    /// How long a client may read nothing of its response.
    write_timeout: Duration,
    /// The minimum rate of an upload, in bytes per second.
    upload_rate: f64,
    served: Cell<u64>,
}

/// A body that need not be `Send`.
type Answer = Pin<Box<dyn Body<Data = Bytes, Error = io::Error>>>;

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
    let served = match options.shards {
        None => serve_on_one_loop(options),
        Some(count) => serve_on_shards(options, count),
    };
    match served {
        Ok(served) => {
            outln!("{served} requests were served");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn listener() -> TcpBuilder {
    TcpListener::builder().nodelay(true).send_buffer(SEND_BUFFER)
}

fn serve_on_one_loop(options: Options) -> io::Result<u64> {
    let event_loop = Builder::new().driver(options.driver).build()?;
    outln!("driver: {}", event_loop.describe());
    event_loop.run_until_complete(async {
        let listener = listener().listen(options.listen.as_str()).await?;
        let mut shutdown = windlass::signal::shutdown()?;
        outln!("listening on {}", listener.local_addr()?);
        let accept = async move || shutdown.run_until_shutdown(listener.accept()).await;
        Ok(serve(&options, "", accept).await)
    })?
}

fn serve_on_shards(options: Options, count: usize) -> io::Result<u64> {
    let driver = options.driver;
    let mut builder = shards::Builder::new()
        .stop_on_signals()
        // The shards cut their connections after the grace period. The pool's own is for a shard that does not.
        .grace(options.grace + CUT_TIME)
        .each_loop(move |_shard, builder| builder.driver(driver));
    if count > 0 {
        builder = builder.count(count);
    }
    let pool = builder.build()?;
    let listener = pool.listen_with(listener(), options.listen.as_str(), Accept::default())?;
    let shards = pool.shard(0).count();
    outln!("{shards} shards\nlistening on {}", listener.local_addr());
    let served = pool.run(move |shard| {
        let options = options.clone();
        async move {
            let accept = async || listener.accept().await.transpose();
            let label = format!("shard {}: ", shard.index());
            Ok::<_, io::Error>(serve(&options, &label, accept).await)
        }
    })?;
    Ok(served.iter().sum())
}

/// Serves connections until `accept` returns `None`, then drains. Returns the number of requests.
async fn serve(
    options: &Options,
    label: &str,
    mut accept: impl AsyncFnMut() -> Option<io::Result<(TcpStream, SocketAddr)>>,
) -> u64 {
    let shared = Rc::new(Shared {
        file: options.file.clone(),
        patience: options.patience,
        write_timeout: options.write_timeout,
        upload_rate: options.upload_rate,
        served: Cell::new(0),
    });
    let graceful = GracefulShutdown::new();
    let mut http = auto::Builder::new(Executor);
    // For the headers of every HTTP/1.1 request. It starts when the version is known: see `serve_connection`.
    http.http1()
        .timer(Timer)
        .header_read_timeout(options.patience)
        .max_buf_size(WRITE_BUFFER);
    http.http2()
        .timer(Timer)
        .keep_alive_interval(Duration::from_secs(30))
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(WRITE_BUFFER);
    let http = Rc::new(http);
    let mut connections = JoinSet::new();
    while let Some(accepted) = accept().await {
        match accepted {
            Ok((stream, _)) => {
                reap(&mut connections);
                let (http, watcher) = (http.clone(), graceful.watcher());
                connections.spawn(serve_connection(stream, http, watcher, shared.clone()));
            }
            Err(error) => accept_failed(error).await,
        }
    }

    // From here on, new connections are refused.
    drop(accept);
    outln!("{label}stopping: {} connections are left", graceful.count());
    match timeout(options.grace, graceful.shutdown()).await {
        Ok(()) => outln!("{label}all finished"),
        Err(_) => outln!("{label}grace period over: the remaining connections are cut"),
    }
    connections.shutdown().await;
    shared.served.get()
}

async fn serve_connection(stream: TcpStream, http: Rc<auto::Builder<Executor>>, watcher: Watcher, shared: Rc<Shared>) {
    let has_asked = Cell::new(false);
    let service = service_fn(|request| {
        has_asked.set(true);
        answer(request, shared.clone())
    });
    let stream = Bridge::new(stream).write_timeout(shared.write_timeout);
    let connection = http.serve_connection(stream, service);
    let mut connection = pin!(watcher.watch(connection));
    // While hyper-util waits for the bytes that identify the version, hyper runs no timer.
    let result = match timeout(shared.patience, connection.as_mut()).await {
        Ok(result) => result,
        Err(_) if has_asked.get() => connection.await,
        Err(_) => Err("no request within the time limit".into()),
    };
    if let Err(error) = result {
        eprintln!("connection: {error}");
    }
}

async fn answer(request: Request<Incoming>, shared: Rc<Shared>) -> io::Result<Response<Answer>> {
    shared.served.set(shared.served.get() + 1);
    let is_head = request.method() == Method::HEAD;
    let mut response = route(request, &shared).await?;
    if is_head {
        // HEAD has the headers of a GET.
        if let Some(len) = response.body().size_hint().exact() {
            response.headers_mut().entry(CONTENT_LENGTH).or_insert(len.into());
        }
        *response.body_mut() = Box::pin(Empty::new().map_err(|never| match never {}));
    }
    Ok(response)
}

async fn route(request: Request<Incoming>, shared: &Shared) -> io::Result<Response<Answer>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/") => Ok(text(StatusCode::OK, "hello\n")),
        (&Method::GET | &Method::HEAD, "/file") => match send_file(&request, shared).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(text(StatusCode::NOT_FOUND, "no such file\n")),
            answer => answer,
        },
        (&Method::PUT | &Method::POST, "/upload") => take_upload(request.into_body(), shared).await,
        (_, "/" | "/file") => Ok(refused("GET, HEAD")),
        (_, "/upload") => Ok(refused("PUT, POST")),
        _ => Ok(text(StatusCode::NOT_FOUND, "not found: try /, /file or /upload\n")),
    }
}

fn refused(allowed: &'static str) -> Response<Answer> {
    let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
    refused.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    refused
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Answer> {
    let body: Answer = Box::pin(Full::new(body.into()).map_err(|never| match never {}));
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// The file, or the requested range of it, read at the client's pace.
async fn send_file(request: &Request<Incoming>, shared: &Shared) -> io::Result<Response<Answer>> {
    let file = File::open(&shared.file).await?;
    let len = file.metadata().await?.len();
    // Ranges apply to GET only.
    let range = request.headers().get(RANGE).filter(|_| request.method() == Method::GET);
    let wanted = range.and_then(|range| range.to_str().ok());
    let (status, (begin, end)) = match wanted.map(|range| parse_range(range, len)) {
        None | Some(Asked::Unclear) => (StatusCode::OK, (0, len)),
        Some(Asked::Part(begin, end)) => (StatusCode::PARTIAL_CONTENT, (begin, end)),
        Some(Asked::Outside) => {
            let mut refused = text(StatusCode::RANGE_NOT_SATISFIABLE, "the file is not that long\n");
            refused
                .headers_mut()
                .insert(CONTENT_RANGE, header(format!("bytes */{len}"))?);
            return Ok(refused);
        }
    };
    let mut response = Response::new(Box::pin(StreamBody::new(pieces(file, begin, end))) as Answer);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(end - begin));
    if status == StatusCode::PARTIAL_CONTENT {
        headers.insert(CONTENT_RANGE, header(format!("bytes {begin}-{}/{len}", end - 1))?);
    }
    Ok(response)
}

fn header(value: String) -> io::Result<HeaderValue> {
    HeaderValue::from_str(&value).map_err(io::Error::other)
}

/// A range of a file, one chunk at a time.
fn pieces(file: File, begin: u64, end: u64) -> impl stream::Stream<Item = io::Result<Frame<Bytes>>> {
    stream::unfold((file, begin), move |(file, at)| async move {
        let left = end.checked_sub(at).filter(|&left| left > 0)?;
        let (result, piece) = file
            .read_at(Vec::with_capacity(left.min(WRITE_BUFFER as u64) as usize), at)
            .await;
        match result {
            // The file shrank, but the promised content length is longer.
            Ok(0) => Some((Err(io::ErrorKind::UnexpectedEof.into()), (file, end))),
            Ok(count) => Some((Ok(Frame::data(Bytes::from(piece))), (file, at + count as u64))),
            Err(error) => Some((Err(error), (file, end))),
        }
    })
}

/// A parsed `Range` header.
enum Asked {
    /// Start and exclusive end.
    Part(u64, u64),
    Outside,
    /// Several ranges, other units or invalid: a server may then send the whole file.
    Unclear,
}

fn parse_range(range: &str, len: u64) -> Asked {
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Asked::Unclear;
    };
    let part = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.saturating_add(1).min(len)),
        (Ok(first), Err(_)) if last.is_empty() => (first, len),
        (Err(_), Ok(count)) if first.is_empty() => (len.saturating_sub(count), len),
        _ => return Asked::Unclear,
    };
    match part {
        (begin, end) if begin < end => Asked::Part(begin, end),
        _ => Asked::Outside,
    }
}

/// Counts the bytes of an upload and sums them.
async fn take_upload(mut body: Incoming, shared: &Shared) -> io::Result<Response<Answer>> {
    let (mut count, mut sum) = (0u64, 0u64);
    let begin = Instant::now();
    loop {
        // The average rate must reach the minimum, and a pause is limited, however fast the upload was before.
        let earned = Duration::try_from_secs_f64(count as f64 / shared.upload_rate).unwrap_or(Duration::MAX);
        let deadline = (begin + shared.patience + earned).min(Instant::now() + shared.patience);
        let frame = match timeout_at(deadline, body.frame()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(_) => return Ok(text(StatusCode::REQUEST_TIMEOUT, "the upload was too slow\n")),
        };
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else {
            continue;
        };
        count += data.len() as u64;
        sum = data.iter().fold(sum, |sum, &byte| sum.wrapping_add(byte.into()));
    }
    Ok(text(StatusCode::OK, format!("{count} bytes, sum {sum}\n")))
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options {
        listen: "127.0.0.1:8080".into(),
        driver: DriverChoice::Auto,
        shards: None,
        file: "README.md".into(),
        grace: Duration::from_secs(10),
        patience: Duration::from_secs(30),
        write_timeout: Duration::from_secs(30),
        upload_rate: 1024.0,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--listen" => options.listen = value()?,
            "--driver" => options.driver = value()?.parse().map_err(|error: io::Error| error.to_string())?,
            "--shards" => {
                let count = Some(value()?).map(|count| if count == "all" { Some(0) } else { count.parse().ok() });
                options.shards = Some(count.flatten().ok_or("--shards needs a number or 'all'")?);
            }
            "--file" => options.file = value()?.into(),
            "--grace" => options.grace = seconds(&arg, &value()?)?,
            "--patience" => options.patience = seconds(&arg, &value()?)?,
            "--write-timeout" => options.write_timeout = seconds(&arg, &value()?)?,
            "--upload-rate" => {
                let rate = value()?.parse().ok().filter(|&rate: &f64| rate > 0.0);
                options.upload_rate = rate.ok_or("--upload-rate needs a number of bytes per second")?;
            }
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(Some(options))
}

fn seconds(option: &str, value: &str) -> Result<Duration, String> {
    let seconds = value
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or(format!("{option} needs a number of seconds"))
}
