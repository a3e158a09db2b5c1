//! The HTTP server: a few clients at a time, one request per connection, every wait bounded.

use std::cell::Cell;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use super::document::Selection;
use super::http::{self, Access, MAX_HEAD, Refusal, Request, head_len};
use super::prometheus;
use super::state::State;
use super::watchdog;
use crate::net::{TcpListener, TcpStream};
use crate::on_drop::OnDrop;
use crate::sync::Semaphore;
use crate::time::{sleep, timeout};

/// How long a client may take to send its request, and to take a part of the response.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connections beyond the limit that are answered, with an error. Further ones are closed at once.
const REFUSED_CLIENTS: usize = 4;

/// A response is written in parts of this size.
const PART: usize = 64 * 1024;

/// The time between two events.
const EVENT_PERIOD: Duration = Duration::from_millis(500);

/// If nothing changes, a snapshot is still sent after this number of periods: it contains times.
const MAX_SKIPPED: u32 = 10;

/// The tasks of each loop in an event: by default, and at most.
const EVENT_TASKS: usize = 500;
const MAX_EVENT_TASKS: usize = 10_000;

/// The tasks of each loop in other documents: by default, and at most.
const TASKS: usize = 20_000;
const MAX_TASKS: usize = 100_000;

/// Large documents that are made or sent at the same time. Others wait: this bounds memory.
const MAX_LARGE: usize = 2;

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'nonce-NONCE'; script-src 'nonce-NONCE'; connect-src 'self'; \
                                       img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) struct Server {
    state: Rc<State>,
    access: Access,
    max_clients: usize,
    captures_stacks: bool,
    clients: Cell<usize>,
    large: Semaphore,
}

struct Response {
    status: &'static str,
    content_type: &'static str,
    /// Further header lines.
    headers: String,
    body: Vec<u8>,
}

impl Response {
    fn new(content_type: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response {
            status: "200 OK",
            content_type,
            headers: String::new(),
            body: body.into(),
        }
    }

    fn refusal(Refusal(status, reason): Refusal) -> Response {
        let headers = match status.as_bytes() {
            [b'4', b'0', b'1', ..] => "WWW-Authenticate: Bearer\r\n",
            [b'4', b'0', b'5', ..] => "Allow: GET, HEAD\r\n",
            _ => "",
        };
        Response {
            status,
            headers: headers.to_owned(),
            ..Response::new("text/plain; charset=utf-8", format!("{reason}\n"))
        }
    }

    /// The head; without a length for a stream of events.
    fn head(&self, len: Option<usize>) -> String {
        let length = len.map(|len| format!("Content-Length: {len}\r\n")).unwrap_or_default();
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\n{length}{}X-Content-Type-Options: nosniff\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\nX-Frame-Options: DENY\r\n\
             Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n",
            self.status, self.content_type, self.headers
        )
    }
}

impl Server {
    pub(super) fn new(state: Rc<State>, access: Access, max_clients: usize, captures_stacks: bool) -> Server {
        Server {
            state,
            access,
            max_clients,
            captures_stacks,
            clients: Cell::new(0),
            large: Semaphore::new(MAX_LARGE),
        }
    }

    pub(super) async fn run(self: Rc<Server>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok(_) if self.clients.get() >= self.max_clients + REFUSED_CLIENTS => {}
                Ok((stream, _)) => {
                    let is_surplus = self.clients.get() >= self.max_clients;
                    self.clients.set(self.clients.get() + 1);
                    let server = self.clone();
                    crate::spawn(async move {
                        let _leave = OnDrop(|| server.clients.set(server.clients.get() - 1));
                        // A client that goes away is no error of the program.
                        drop(server.serve(&stream, is_surplus).await);
                    })
                    .detach();
                }
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn serve(&self, stream: &TcpStream, is_surplus: bool) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let request = match timeout(PATIENCE, read_head(stream)).await {
            Ok(head) => head?.and_then(|head| Request::parse(&head)),
            Err(_) => return Ok(()),
        };
        let local = stream.local_addr()?;
        let checked = request.and_then(|request| request.check(&self.access, local).map(|()| request));
        match checked {
            Ok(_) if is_surplus => refuse(stream, http::BUSY).await,
            Ok(request) => self.answer(stream, &request).await,
            Err(refusal) => refuse(stream, refusal).await,
        }
    }

    async fn answer(&self, stream: &TcpStream, request: &Request) -> io::Result<()> {
        let state = &self.state;
        let response = match request.path.as_str() {
            "/" => page(),
            "/events" => return self.events(stream, request).await,
            "/health" => Response::new("text/plain; charset=utf-8", "ok\n"),
            "/metrics" => {
                state.refresh().await;
                Response::new(prometheus::CONTENT_TYPE, state.metrics())
            }
            "/tasks.json" | "/dump.txt" => {
                let _permit = self.large.acquire().await;
                state.refresh().await;
                let selection = Selection::of(request, TASKS, MAX_TASKS);
                let response = match request.path.as_str() {
                    "/dump.txt" => Response::new("text/plain; charset=utf-8", state.dump(selection.limit)),
                    _ => Response::new("application/json", state.json(&selection)),
                };
                return send(stream, &response, request.is_head).await;
            }
            _ => Response::refusal(http::NOT_FOUND),
        };
        send(stream, &response, request.is_head).await
    }

    async fn events(&self, stream: &TcpStream, request: &Request) -> io::Result<()> {
        let response = Response::new("text/event-stream; charset=utf-8", "");
        write(stream, response.head(None).into_bytes()).await?;
        if request.is_head {
            return Ok(());
        }
        if self.captures_stacks {
            watchdog::warm_up();
        }
        let selection = Selection::of(request, EVENT_TASKS, MAX_EVENT_TASKS);
        let (mut sent, mut skipped) = (None, 0);
        loop {
            self.state.refresh().await;
            let version = self.state.version();
            if sent.as_ref() == Some(&version) && !version.has_stall() && skipped < MAX_SKIPPED {
                skipped += 1;
                write(stream, b": keep-alive\n\n".to_vec()).await?;
            } else {
                let event = format!("event: snapshot\ndata: {}\n\n", self.state.json(&selection));
                write(stream, event.into_bytes()).await?;
                (sent, skipped) = (Some(version), 0);
            }
            // A client sends nothing more. If its side ends, it has gone, and its place is free at once.
            let gone = timeout(EVENT_PERIOD, stream.read(Vec::with_capacity(16))).await;
            if gone.is_ok() {
                return Ok(());
            }
        }
    }
}

/// Reads until the end of the head. The inner error is a head that is too large or cut off.
async fn read_head(stream: &TcpStream) -> io::Result<Result<Vec<u8>, Refusal>> {
    let mut head = Vec::new();
    loop {
        let (result, bytes) = stream.read(Vec::with_capacity(2048)).await;
        let read = result?;
        if read == 0 {
            return Ok(Err(http::BAD_REQUEST));
        }
        head.extend_from_slice(&bytes);
        if let Some(len) = head_len(&head) {
            head.truncate(len);
            return Ok(if len > MAX_HEAD { Err(http::TOO_LARGE) } else { Ok(head) });
        }
        if head.len() > MAX_HEAD {
            return Ok(Err(http::TOO_LARGE));
        }
    }
}

async fn refuse(stream: &TcpStream, refusal: Refusal) -> io::Result<()> {
    send(stream, &Response::refusal(refusal), false).await?;
    // Closing with unread bytes would reset the connection, and the client might not see the response.
    stream.shutdown(Shutdown::Write).await?;
    // A client that does not close is disconnected.
    let _ = timeout(Duration::from_millis(200), drain(stream)).await;
    Ok(())
}

async fn drain(stream: &TcpStream) {
    let mut buffer = Vec::with_capacity(PART);
    for _ in 0..16 {
        let result;
        (result, buffer) = stream.read(buffer).await;
        if !matches!(result, Ok(1..)) {
            return;
        }
        buffer.clear();
    }
}

async fn send(stream: &TcpStream, response: &Response, is_head: bool) -> io::Result<()> {
    write(stream, response.head(Some(response.body.len())).into_bytes()).await?;
    if !is_head {
        for part in response.body.chunks(PART) {
            write(stream, part.to_vec()).await?;
        }
    }
    Ok(())
}

/// Writes a part of a response. A client that does not take it in time is disconnected.
async fn write(stream: &TcpStream, bytes: Vec<u8>) -> io::Result<()> {
    match timeout(PATIENCE, stream.write_all(bytes)).await {
        Ok((result, _)) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// The page, with style and script inside, under a new nonce.
fn page() -> Response {
    let mut bytes = [0; 16];
    crate::sys::entropy(&mut bytes);
    let nonce: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let html = include_str!("page/index.html").replace("NONCE", &nonce);
    let html = html.replacen("/*STYLE*/", include_str!("page/style.css"), 1);
    let html = html.replacen("/*SCRIPT*/", include_str!("page/app.js"), 1);
    Response {
        headers: format!(
            "Content-Security-Policy: {}\r\n",
            CONTENT_SECURITY_POLICY.replace("NONCE", &nonce)
        ),
        ..Response::new("text/html; charset=utf-8", html)
    }
}
