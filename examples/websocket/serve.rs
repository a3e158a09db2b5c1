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
}

impl Ledger {
    /// Those of which nobody knows yet how they end.
    fn open(&self) -> u64 {
        self.accepted - self.closed.values().sum::<u64>() - self.refused - self.left
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
    println!("listening on {}", listener.local_addr()?);
    let ledger = Shared::default();
    let stop = CancelToken::new();
    let accepting = windlass::spawn(accept(listener, options.max_message, ledger.clone(), stop.clone()));

    windlass::signal::ctrl_c().await?;
    stop.cancel();
    let mut connections = accepting.await??;
    connections.retain(|connection| !connection.is_finished());
    println!("stopped accepting; telling {} connections", ledger.borrow().open());
    let told = timeout(options.grace, async {
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
    println!("{}", ledger.borrow());
    Ok(())
}

/// The connections that there are when it is told to stop.
async fn accept(
    listener: TcpListener,
    max_message: usize,
    ledger: Shared,
    stop: CancelToken,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    let mut room = 1024;
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (stream, _) = accepted?;
        ledger.borrow_mut().accepted += 1;
        let (ledger, stop) = (ledger.clone(), stop.clone());
        connections.push(windlass::spawn(connection(stream, max_message, ledger, stop)));
        // Not at each one: that would be a square.
        if connections.len() >= room {
            connections.retain(|connection| !connection.is_finished());
            room = (connections.len() * 2).max(1024);
        }
    }
    Ok(connections)
}

/// From the first byte to the last; whatever happens is in the ledger.
async fn connection(stream: TcpStream, max_message: usize, ledger: Shared, stop: CancelToken) {
    let mut bridge = Bridge::new(stream);
    let shaking = accept_async_with_config(&mut bridge, Some(config(max_message)));
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
    let code = talk(socket, &ledger, &stop).await;
    {
        let mut ledger = ledger.borrow_mut();
        match code {
            Some(code) => *ledger.closed.entry(code.into()).or_default() += 1,
            None => ledger.left += 1,
        }
    }
    leave(bridge).await;
}

/// Echoes until one of the two says goodbye, and gives the code that it was said with.
async fn talk(mut socket: Socket<'_>, ledger: &Shared, stop: &CancelToken) -> Option<CloseCode> {
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
                    Err(_) => return None,
                }
            }
            // tungstenite has answered with the same code, and says so when that is sent.
            Some(Ok(message)) if message.is_close() => {
                let code = match message {
                    async_tungstenite::tungstenite::Message::Close(Some(frame)) => frame.code,
                    _ => CloseCode::Status,
                };
                while socket.next().await.is_some_and(|more| more.is_ok()) {}
                return Some(code);
            }
            // Pings are answered by tungstenite.
            Some(Ok(_)) => continue,
            Some(Err(Error::Capacity(error))) => (CloseCode::Size, error.to_string()),
            Some(Err(Error::Utf8(error))) => (CloseCode::Invalid, error),
            Some(Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) | Error::Io(_))) | None => {
                return None;
            }
            Some(Err(error)) => (CloseCode::Protocol, error.to_string()),
        };
        return goodbye(socket, code, &why).await;
    }
}

/// Says why, and waits for the other's goodbye where there still is one to be understood.
async fn goodbye(mut socket: Socket<'_>, code: CloseCode, why: &str) -> Option<CloseCode> {
    // A close frame has room for 123 bytes.
    let reason: String = why.chars().take(30).collect();
    let frame = CloseFrame {
        code,
        reason: reason.into(),
    };
    socket.close(Some(frame)).await.ok()?;
    if code != CloseCode::Away {
        return Some(code);
    }
    loop {
        match socket.next().await {
            Some(Ok(_)) => {}
            Some(Err(Error::ConnectionClosed)) | None => return Some(code),
            Some(Err(_)) => return None,
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
            ..
        } = self;
        let cut = self.open();
        write!(f, "{accepted} connections, {messages} messages; closed:")?;
        for (code, count) in &self.closed {
            write!(f, " {count} with {code},")?;
        }
        write!(
            f,
            " {refused} refused, {left} left without a word, {cut} cut at the deadline"
        )
    }
}
