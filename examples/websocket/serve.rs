//! The server.

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
use windlass::JoinHandle;
use windlass::compat::Bridge;
use windlass::net::{TcpListener, TcpStream};
use windlass::task::CancelToken;
use windlass::time::timeout;

use crate::support::{accept_failed, outln};
use crate::{Options, config};

/// How long a client may take to ask for a WebSocket, and to read why it is shown the door.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of the connections.
#[derive(Default)]
struct Ledger {
    accepted: u64,
    messages: u64,
    /// By the code of the close frame that ended them.
    closed: BTreeMap<u16, u64>,
    /// Who asked for something else than a WebSocket.
    refused: u64,
    /// Who went without a word.
    left: u64,
    /// Those that did not read what was sent to them, and were cut off.
    stalled: u64,
}

/// How a connection ended.
enum Ending {
    Closed(CloseCode),
    Left,
    Stalled,
}

impl Ledger {
    /// Those of which nobody knows yet how they end.
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
    let accepting = windlass::spawn(accept(listener, options, ledger.clone(), stop.clone()));

    shutdown.recv().await;
    stop.cancel();
    let mut connections = accepting.await?;
    connections.retain(|connection| !connection.is_finished());
    outln!("stopped accepting; telling {} connections", ledger.borrow().open());
    let told = timeout(grace, async {
        for connection in &mut connections {
            let _ = connection.await;
        }
    });
    if told.await.is_err() {
        connections.retain(|connection| !connection.is_finished());
        for connection in connections {
            connection.cancel();
            let _ = connection.await;
        }
    }
    outln!("{}", ledger.borrow());
    Ok(())
}

/// The connections that there are when it is told to stop.
async fn accept(listener: TcpListener, options: Rc<Options>, ledger: Shared, stop: CancelToken) -> Vec<JoinHandle<()>> {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    let mut room = 1024;
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (stream, _) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                accept_failed(error).await;
                continue;
            }
        };
        ledger.borrow_mut().accepted += 1;
        let (options, ledger, stop) = (options.clone(), ledger.clone(), stop.clone());
        connections.push(windlass::spawn(connection(stream, options, ledger, stop)));
        // Not at each one: that would be a square.
        if connections.len() >= room {
            connections.retain(|connection| !connection.is_finished());
            room = (connections.len() * 2).max(1024);
        }
    }
    connections
}

/// From the first byte to the last; whatever happens is in the ledger.
async fn connection(stream: TcpStream, options: Rc<Options>, ledger: Shared, stop: CancelToken) {
    let mut bridge = Bridge::new(stream).write_timeout(options.write_timeout);
    let shaking = accept_async_with_config(&mut bridge, Some(config(options.max_message)));
    let socket = match timeout(PATIENCE, shaking).await {
        Ok(Ok(socket)) => socket,
        refused => {
            ledger.borrow_mut().refused += 1;
            let why = match refused {
                Ok(Err(error)) => error.to_string(),
                _ => "nothing was asked for".to_owned(),
            };
            refuse(bridge, &why).await;
            return;
        }
    };
    let ending = talk(socket, &ledger, &stop).await;
    {
        let mut ledger = ledger.borrow_mut();
        match ending {
            Ending::Closed(code) => *ledger.closed.entry(code.into()).or_default() += 1,
            Ending::Left => ledger.left += 1,
            Ending::Stalled => ledger.stalled += 1,
        }
    }
    // A peer that does not read gets no goodbye either: dropping the connection resets it.
    if !matches!(ending, Ending::Stalled) {
        leave(bridge).await;
    }
}

/// Echoes until one of the two says goodbye, and gives the code that it was said with.
async fn talk(mut socket: Socket<'_>, ledger: &Shared, stop: &CancelToken) -> Ending {
    loop {
        let received = match stop.run_until_cancelled(socket.next()).await {
            Some(received) => received,
            // What it had read of a message is still there, so it can be told in between.
            None => return goodbye(socket, CloseCode::Away, "the server is shutting down").await,
        };
        let (code, why) = match received {
            Some(Ok(message)) if message.is_text() || message.is_binary() => {
                ledger.borrow_mut().messages += 1;
                match socket.send(message).await {
                    Ok(()) => continue,
                    Err(error) => return without_goodbye(&error),
                }
            }
            // tungstenite has answered with the same code, and says so when that is sent.
            Some(Ok(message)) if message.is_close() => {
                let code = match message {
                    async_tungstenite::tungstenite::Message::Close(Some(frame)) => frame.code,
                    _ => CloseCode::Status,
                };
                while socket.next().await.is_some_and(|more| more.is_ok()) {}
                return Ending::Closed(code);
            }
            // Pings are answered by tungstenite.
            Some(Ok(_)) => continue,
            Some(Err(Error::Capacity(error))) => (CloseCode::Size, error.to_string()),
            Some(Err(Error::Utf8(error))) => (CloseCode::Invalid, error),
            Some(Err(
                error @ (Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)
                | Error::Io(_)
                | Error::WriteBufferFull(_)),
            )) => return without_goodbye(&error),
            None => return Ending::Left,
            Some(Err(error)) => (CloseCode::Protocol, error.to_string()),
        };
        return goodbye(socket, code, &why).await;
    }
}

/// An error after which the peer cannot be told anything.
fn without_goodbye(error: &Error) -> Ending {
    match error {
        // The bridge's write timeout, or more answers than the buffer has room for.
        Error::WriteBufferFull(_) => Ending::Stalled,
        Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => Ending::Stalled,
        _ => Ending::Left,
    }
}

/// Says why, and waits for the other's goodbye where there still is one to be understood.
async fn goodbye(mut socket: Socket<'_>, code: CloseCode, why: &str) -> Ending {
    // A close frame has room for 123 bytes.
    let reason: String = why.chars().take(30).collect();
    let frame = CloseFrame {
        code,
        reason: reason.into(),
    };
    if let Err(error) = socket.close(Some(frame)).await {
        return without_goodbye(&error);
    }
    if code != CloseCode::Away {
        return Ending::Closed(code);
    }
    loop {
        match socket.next().await {
            Some(Ok(_)) => {}
            Some(Err(Error::ConnectionClosed)) | None => return Ending::Closed(code),
            Some(Err(error)) => return without_goodbye(&error),
        }
    }
}

/// Ends our side, and takes what still comes: closing over unread bytes is a reset, which can overtake the close frame.
async fn leave(mut bridge: Bridge<TcpStream>) {
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
    let _ = timeout(PATIENCE, draining).await;
}

/// For who asked for something else.
async fn refuse(mut bridge: Bridge<TcpStream>, why: &str) {
    let body = format!("this is a WebSocket server: {why}\n");
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    if bridge.write_all(answer.as_bytes()).await.is_ok() {
        leave(bridge).await;
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
            " {refused} refused, {left} left without a word, {stalled} did not read, {cut} cut at the deadline"
        )
    }
}
