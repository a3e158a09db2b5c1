//! Static files, read on windlass's drivers: `tower_http::services::ServeDir` needs tokio's runtime.
//!
//! ```
//! use axum::Router;
//! use windlass_web::files::Dir;
//!
//! let app: Router = Router::new().nest_service("/static", Dir::new("public"));
//! ```

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, IF_MODIFIED_SINCE, IF_RANGE, LAST_MODIFIED,
    RANGE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tower_service::Service;
use windlass::fs::{File, Metadata};

use windlass::compat::ThreadBound;

/// The longest piece that is read at once.
const PIECE: u64 = 64 * 1024;

/// A directory of files, as a tower service: GET and HEAD, one range, `if-modified-since`, `index.html` for directories.
///
/// A request's path cannot leave the directory by `..`; symbolic links are followed. The type of a file follows from its
/// extension, for common ones.
#[derive(Clone, Debug)]
pub struct Dir {
    root: Arc<Path>,
}

impl Dir {
    /// The files below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Dir {
        Dir {
            root: root.into().into(),
        }
    }

    /// Percent-decodes a request's path and appends it to the root. `None` if it would leave it.
    fn path_of(&self, path: &str) -> Option<PathBuf> {
        let decoded = percent_encoding::percent_decode_str(path.trim_start_matches('/'))
            .decode_utf8()
            .ok()?;
        let relative = Path::new(&*decoded);
        let is_inside = relative.components().all(|part| match part {
            // On Windows, `c:` and reserved names would be reached by a path that is one component.
            Component::Normal(name) => !cfg!(windows) || !name.to_string_lossy().contains(':'),
            Component::CurDir => true,
            _ => false,
        });
        (is_inside && !decoded.contains('\0')).then(|| self.root.join(relative))
    }
}

impl<B> Service<Request<B>> for Dir {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ThreadBound<Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = self.path_of(request.uri().path());
        let (parts, _) = request.into_parts();
        ThreadBound::new(Box::pin(async move {
            let Some(mut path) = path else {
                return Ok(empty(StatusCode::NOT_FOUND));
            };
            if windlass::fs::metadata(&path)
                .await
                .is_ok_and(|metadata| metadata.is_dir())
            {
                path.push("index.html");
            }
            Ok(send(path, &parts.method, &parts.headers)
                .await
                .unwrap_or_else(|error| empty(status_of(&error))))
        }))
    }
}

fn status_of(error: &io::Error) -> StatusCode {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            StatusCode::NOT_FOUND
        }
        io::ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The response for one file, for handlers that choose it themselves: to GET and HEAD, with one range and
/// `if-modified-since`. Only regular files are sent.
///
/// # Errors
///
/// If the file cannot be opened: `NotFound`, `PermissionDenied`, or as [`File::open`].
///
/// ```
/// use axum::{http::{HeaderMap, Method, StatusCode}, response::{IntoResponse, Response}};
///
/// async fn report(method: Method, headers: HeaderMap) -> Response {
///     match windlass_web::files::response("report.pdf", method, headers).await {
///         Ok(response) => response.into_response(),
///         Err(_) => StatusCode::NOT_FOUND.into_response(),
///     }
/// }
/// # let _: axum::Router = axum::Router::new().route("/", axum::routing::any(report));
/// ```
pub fn response(
    path: impl Into<PathBuf>,
    method: Method,
    headers: HeaderMap,
) -> impl Future<Output = io::Result<Response<Body>>> + Send + 'static {
    let path = path.into();
    ThreadBound::future(async move { send(path, &method, &headers).await })
}

async fn send(path: PathBuf, method: &Method, headers: &HeaderMap) -> io::Result<Response<Body>> {
    if method != Method::GET && method != Method::HEAD {
        let mut refused = empty(StatusCode::METHOD_NOT_ALLOWED);
        refused
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(refused);
    }
    let file = File::open(&path).await?;
    let metadata = file.metadata().await?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let (len, modified) = (metadata.len(), modified(&metadata));
    if let (Some(modified), Some(since)) = (modified, date(headers, IF_MODIFIED_SINCE))
        && modified <= since
    {
        return Ok(empty(StatusCode::NOT_MODIFIED));
    }
    // Ranges apply to GET only; with `if-range`, only to the same version of the file.
    let is_current = !headers.contains_key(IF_RANGE) || modified.is_some() && date(headers, IF_RANGE) == modified;
    let range = headers.get(RANGE).filter(|_| method == Method::GET && is_current);
    let wanted = range
        .and_then(|range| range.to_str().ok())
        .map(|range| parse_range(range, len));
    let (status, begin, end) = match wanted {
        None | Some(Range::Unclear) => (StatusCode::OK, 0, len),
        Some(Range::Part(begin, end)) => (StatusCode::PARTIAL_CONTENT, begin, end),
        Some(Range::Outside) => (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0),
    };
    let body = match status == StatusCode::RANGE_NOT_SATISFIABLE || method == Method::HEAD || begin == end {
        true => Body::default(),
        false => Body {
            reading: Some(read(file, begin, end - begin)),
            at: begin,
            left: end - begin,
        },
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(end - begin));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(type_of(&path)));
    if let Some(modified) = modified {
        headers.insert(LAST_MODIFIED, header(httpdate::fmt_http_date(modified)));
    }
    match status {
        StatusCode::PARTIAL_CONTENT => {
            headers.insert(CONTENT_RANGE, header(format!("bytes {begin}-{}/{len}", end - 1)));
        }
        StatusCode::RANGE_NOT_SATISFIABLE => {
            headers.insert(CONTENT_RANGE, header(format!("bytes */{len}")));
        }
        _ => {}
    }
    Ok(response)
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = status;
    response
}

fn header(value: String) -> HeaderValue {
    HeaderValue::from_str(&value).expect("digits and dates are header values")
}

/// In whole seconds, as in headers.
fn modified(metadata: &Metadata) -> Option<SystemTime> {
    let modified = metadata.modified().ok()?;
    // Not before 1970, which an HTTP date cannot express.
    modified.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    httpdate::parse_http_date(&httpdate::fmt_http_date(modified)).ok()
}

fn date(headers: &HeaderMap, name: http::HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

/// A parsed `range` header.
#[derive(Debug, PartialEq)]
enum Range {
    /// Start and exclusive end.
    Part(u64, u64),
    Outside,
    /// Several ranges, other units or invalid: a server may then send the whole file.
    Unclear,
}

fn parse_range(range: &str, len: u64) -> Range {
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Range::Unclear;
    };
    let (begin, end) = match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.saturating_add(1).min(len)),
        (Ok(first), Err(_)) if last.trim().is_empty() => (first, len),
        (Err(_), Ok(count)) if first.trim().is_empty() => (len.saturating_sub(count), len),
        _ => return Range::Unclear,
    };
    if begin < end {
        Range::Part(begin, end)
    } else {
        Range::Outside
    }
}

fn type_of(path: &Path) -> &'static str {
    let extension = path
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default();
    match &*extension.to_ascii_lowercase() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "txt" | "md" => "text/plain; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "json" | "map" => "application/json",
        "xml" => "application/xml",
        "pdf" => "application/pdf",
        "wasm" => "application/wasm",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        _ => "application/octet-stream",
    }
}

type Reading = ThreadBound<Pin<Box<dyn Future<Output = (io::Result<Bytes>, File)>>>>;

/// Reads the next piece of a range.
fn read(file: File, at: u64, left: u64) -> Reading {
    ThreadBound::new(Box::pin(async move {
        let (result, mut piece) = file.read_at(Vec::with_capacity(left.min(PIECE) as usize), at).await;
        let result = result.map(|count| {
            piece.truncate(count);
            Bytes::from(piece)
        });
        (result, file)
    }))
}

/// A range of a file, read one piece at a time, at the client's pace. It is `Send`, and stays on its loop.
#[derive(Default)]
pub struct Body {
    reading: Option<Reading>,
    at: u64,
    left: u64,
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(reading) = &mut self.reading else {
            return Poll::Ready(None);
        };
        let (result, file) = ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        let piece = result?;
        if piece.is_empty() {
            // The file shrank, but the promised content length is longer.
            return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
        }
        self.at += piece.len() as u64;
        self.left -= piece.len() as u64;
        if self.left > 0 {
            self.reading = Some(read(file, self.at, self.left));
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.reading.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("left", &self.left).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(parse_range("bytes=0-0", 10), Range::Part(0, 1));
        assert_eq!(parse_range("bytes=5-", 10), Range::Part(5, 10));
        assert_eq!(parse_range("bytes=-3", 10), Range::Part(7, 10));
        assert_eq!(parse_range("bytes=-30", 10), Range::Part(0, 10));
        assert_eq!(parse_range("bytes=2-99999999999", 10), Range::Part(2, 10));
        for outside in ["bytes=10-", "bytes=10-20", "bytes=-0"] {
            assert_eq!(parse_range(outside, 10), Range::Outside, "{outside}");
        }
        assert_eq!(parse_range("bytes=0-", 0), Range::Outside);
        for unclear in [
            "bytes=2-1",
            "bytes=0-1,3-4",
            "lines=0-1",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "",
        ] {
            assert_eq!(parse_range(unclear, 10), Range::Unclear, "{unclear}");
        }
    }

    #[test]
    fn paths_stay_inside() {
        let dir = Dir::new("root");
        assert_eq!(dir.path_of("/a/b%20c.txt"), Some("root/a/b c.txt".into()));
        assert_eq!(dir.path_of("/"), Some("root/".into()));
        assert_eq!(dir.path_of("/./a"), Some("root/./a".into()));
        for outside in [
            "/../a",
            "/a/../../b",
            "/%2e%2e/a",
            "/a/%2E%2E/%2e%2e/b",
            "/%2Fetc/passwd",
            "/a%00b",
            "/%ff",
        ] {
            assert_eq!(dir.path_of(outside), None, "{outside}");
        }
        assert_eq!(dir.path_of("//etc/passwd"), Some("root/etc/passwd".into()));
    }
}
