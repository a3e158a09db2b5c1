//! The echo server.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use async_tungstenite::tungstenite::error::{Error, ProtocolError};
use async_tungstenite::tungstenite::protocol::CloseFrame;
use async_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use async_tungstenite::{WebSocketStream, accept_async_with_config};
use futures_util::{AsyncWriteExt, StreamExt};
use windlass::compat::Bridge;
use windlass::net::{TcpListener, TcpStream};
use windlass::task::{CancelToken, JoinSet};
use windlass::time::timeout;

use crate::support::{accept_failed, outln, reap};
use crate::{Options, config};

/// The time limit for a handshake, and for reading the reason of a refusal.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How the connections ended.
#[derive(Default)]
struct Ledger {
    accepted: u64,
    messages: u64,
    /// Ended with a close frame, by its code.
    closed: BTreeMap<u16, u64>,
    /// Failed the WebSocket handshake.
    refused: u64,
    /// Disconnected without a close frame.
    left: u64,
    /// Disconnected because they did not read.
    stalled: u64,
}

/// How a connection ended.
enum Ending {
    Closed(CloseCode),
    Left,
    Stalled,
}

impl Ledger {
    /// The connections that have not ended yet.
    fn open(&self) -> u64 {
        self.accepted - self.closed.values().sum::<u64>() - self.refused - self.left - self.stalled
    }
}

type Shared = Rc<RefCell<Ledger>>;
type Socket<'a> = WebSocketStream<&'a mut Bridge<TcpStream>>;

pub(crate) async fn serve(options: Options) -> io::Result<()> {
    let listener = TcpListener::builder()
        .backlog(4096)
        .nodelay(true)
        .listen(options.addr.as_str())
        .await?;
    let mut shutdown = windlass::signal::shutdown()?;
    outln!("listening on {}", listener.local_addr()?);
    let (grace, options) = (options.grace, Rc::new(options));
    let ledger = Shared::default();
    let stop = CancelToken::new();
    let mut connections = JoinSet::new();
    while let Some(accepted) = shutdown.run_until_shutdown(listener.accept()).await {
        let (stream, _) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                accept_failed(error).await;
                continue;
            }
        };
        ledger.borrow_mut().accepted += 1;
        reap(&mut connections);
        connections.spawn(connection(stream, options.clone(), ledger.clone(), stop.clone()));
    }
    // From here on, new connections are refused.
    drop(listener);
    stop.cancel();
    outln!("stopped accepting; closing {} connections", ledger.borrow().open());
    let drained = timeout(grace, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_err() {
        connections.shutdown().await;
    }
    outln!("{}", ledger.borrow());
    Ok(())
}

/// Serves one connection from handshake to end, and records how it ended.
async fn connection(stream: TcpStream, options: Rc<Options>, ledger: Shared, stop: CancelToken) {
    let mut bridge = Bridge::new(stream).write_timeout(options.write_timeout);
    let handshake = accept_async_with_config(&mut bridge, Some(config(options.max_message)));
    let socket = match timeout(TIMEOUT, handshake).await {
        Ok(Ok(socket)) => socket,
        refused => {
            ledger.borrow_mut().refused += 1;
            let why = match refused {
                Ok(Err(error)) => error.to_string(),
                _ => "no request within the time limit".to_owned(),
            };
            refuse(bridge, &why).await;
            return;
        }
    };
    let ending = echo(socket, &ledger, &stop).await;
    {
        let mut ledger = ledger.borrow_mut();
        match ending {
            Ending::Closed(code) => *ledger.closed.entry(code.into()).or_default() += 1,
            Ending::Left => ledger.left += 1,
            Ending::Stalled => ledger.stalled += 1,
        }
    }
    // A peer that does not read gets no close frame either: dropping the connection resets it.
    if !matches!(ending, Ending::Stalled) {
        finish(bridge).await;
    }
}

/// Echoes until one side closes, and returns how the connection ended.
async fn echo(mut socket: Socket<'_>, ledger: &Shared, stop: &CancelToken) -> Ending {
    loop {
        let received = match stop.run_until_cancelled(socket.next()).await {
            Some(received) => received,
            // A cancelled `next` loses nothing, so the close frame can be sent now.
            None => return close(socket, CloseCode::Away, "the server is shutting down").await,
        };
        let (code, why) = match received {
            Some(Ok(message)) if message.is_text() || message.is_binary() => {
                ledger.borrow_mut().messages += 1;
                match socket.send(message).await {
                    Ok(()) => continue,
                    Err(error) => return without_close_frame(&error),
                }
            }
            // tungstenite replies with the same code; `next` fails or ends once the reply is sent.
            Some(Ok(message)) if message.is_close() => {
                let code = match message {
                    async_tungstenite::tungstenite::Message::Close(Some(frame)) => frame.code,
                    _ => CloseCode::Status,
                };
                while socket.next().await.is_some_and(|more| more.is_ok()) {}
                return Ending::Closed(code);
            }
            // tungstenite answers pings.
            Some(Ok(_)) => continue,
            Some(Err(Error::Capacity(error))) => (CloseCode::Size, error.to_string()),
            Some(Err(Error::Utf8(error))) => (CloseCode::Invalid, error),
            Some(Err(
                error @ (Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)
                | Error::Io(_)
                | Error::WriteBufferFull(_)),
            )) => return without_close_frame(&error),
            None => return Ending::Left,
            Some(Err(error)) => (CloseCode::Protocol, error.to_string()),
        };
        return close(socket, code, &why).await;
    }
}

/// The ending for an error after which no close frame can be sent.
fn without_close_frame(error: &Error) -> Ending {
    match error {
        // The bridge's write timeout, or more pongs than the buffer can hold.
        Error::WriteBufferFull(_) => Ending::Stalled,
        Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => Ending::Stalled,
        _ => Ending::Left,
    }
}

/// Sends a close frame, and waits for the peer's close frame unless the peer violated the protocol.
async fn close(mut socket: Socket<'_>, code: CloseCode, why: &str) -> Ending {
    // A close frame has room for 123 bytes.
    let reason: String = why.chars().take(30).collect();
    let frame = CloseFrame {
        code,
        reason: reason.into(),
    };
    if let Err(error) = socket.close(Some(frame)).await {
        return without_close_frame(&error);
    }
    if code != CloseCode::Away {
        return Ending::Closed(code);
    }
    loop {
        match socket.next().await {
            Some(Ok(_)) => {}
            Some(Err(Error::ConnectionClosed)) | None => return Ending::Closed(code),
            Some(Err(error)) => return without_close_frame(&error),
        }
    }
}

/// Shuts down the write side and discards incoming data: closing over unread data sends a RST, which can overtake the
/// close frame.
async fn finish(mut bridge: Bridge<TcpStream>) {
    if bridge.close().await.is_err() {
        return;
    }
    let stream = bridge.into_inner();
    let draining = async {
        while let Ok(bytes) = stream.read_managed().await {
            if bytes.is_empty() {
                break;
            }
        }
    };
    let _ = timeout(TIMEOUT, draining).await;
}

/// Answers a request that is not a WebSocket handshake.
async fn refuse(mut bridge: Bridge<TcpStream>, why: &str) {
    let body = format!("this is a WebSocket server: {why}\n");
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    if bridge.write_all(answer.as_bytes()).await.is_ok() {
        finish(bridge).await;
    }
}

impl std::fmt::Display for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ledger {
            accepted,
            messages,
            refused,
            left,
            stalled,
            ..
        } = self;
        let cut = self.open();
        write!(f, "{accepted} connections, {messages} messages; closed:")?;
        for (code, count) in &self.closed {
            write!(f, " {count} with {code},")?;
        }
        write!(
            f,
            " {refused} refused, {left} left without a close frame, {stalled} did not read, {cut} cut at the deadline"
        )
    }
}
