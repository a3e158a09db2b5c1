//! The load generator: opens all connections at once, checks each reply, and closes each connection with a close frame.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use async_tungstenite::tungstenite::Message;
use async_tungstenite::tungstenite::protocol::CloseFrame;
use async_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use async_tungstenite::{WebSocketStream, client_async_with_config};
use futures_util::StreamExt;
use windlass::compat::Bridge;
use windlass::net::TcpStream;
use windlass::sync::{Barrier, Semaphore};
use windlass::time::timeout;

use crate::support::outln;
use crate::{Options, config};

/// The maximum number of concurrent handshakes.
const HANDSHAKES: usize = 256;
/// The time limit for a reply; after that, the connection counts as dropped.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How the connections ended: each is counted once.
#[derive(Default)]
struct Ledger {
    /// Got every reply, and a close frame with 1000.
    completed: usize,
    /// Closed early by the server, with a close frame.
    closed: usize,
    /// Could not be opened.
    unopened: usize,
    /// Ended without a close frame, or without a reply.
    dropped: usize,
    replies: u64,
    /// The first errors.
    errors: Vec<String>,
}

enum Ending {
    Closed(String),
    Dropped(String),
}

/// Returns whether every connection completed.
pub(crate) async fn load(options: Options) -> io::Result<bool> {
    let begin = Instant::now();
    let ledger = Rc::new(RefCell::new(Ledger::default()));
    let options = Rc::new(options);
    let handshakes = Rc::new(Semaphore::new(HANDSHAKES));
    // Clients whose connection failed pass the barrier too.
    let all_open = Rc::new(Barrier::new(options.connections + 1));
    let clients: Vec<_> = (0..options.connections)
        .map(|number| {
            let (ledger, options) = (ledger.clone(), options.clone());
            let (handshakes, all_open) = (handshakes.clone(), all_open.clone());
            windlass::spawn(async move {
                let permit = handshakes.acquire().await;
                let opened = timeout(TIMEOUT, open(&options)).await;
                drop(permit);
                all_open.wait().await.expect("the barrier is never broken");
                let mut socket = match opened {
                    Ok(Ok(socket)) => socket,
                    Ok(Err(error)) => return ledger.borrow_mut().note_unopened(error),
                    Err(_) => return ledger.borrow_mut().note_unopened("handshake timed out".into()),
                };
                let ended = exchange(&mut socket, number, &options, &ledger).await;
                ledger.borrow_mut().note(ended);
            })
        })
        .collect();
    all_open.wait().await.expect("the barrier is never broken");
    outln!("all connections open after {:.1?}", begin.elapsed());
    for client in clients {
        client.await?;
    }
    let ledger = ledger.borrow();
    outln!(
        "{} connections, {} replies in {:.1?}: {} completed and closed with 1000, {} closed early, {} not opened, {} \
         dropped silently",
        options.connections,
        ledger.replies,
        begin.elapsed(),
        ledger.completed,
        ledger.closed,
        ledger.unopened,
        ledger.dropped
    );
    for error in &ledger.errors {
        outln!("  {error}");
    }
    let expected = options.connections as u64 * u64::from(options.messages);
    Ok(ledger.completed == options.connections && ledger.replies == expected)
}

async fn open(options: &Options) -> Result<WebSocketStream<Bridge<TcpStream>>, String> {
    let stream = TcpStream::connect(options.addr.as_str())
        .await
        .map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let url = format!("ws://{}/", options.addr);
    let config = config(options.size.max(1024));
    match client_async_with_config(url, Bridge::new(stream), Some(config)).await {
        Ok((socket, _)) => Ok(socket),
        Err(error) => Err(error.to_string()),
    }
}

/// Sends messages and checks their echoes, then exchanges close frames.
async fn exchange(
    socket: &mut WebSocketStream<Bridge<TcpStream>>,
    number: usize,
    options: &Options,
    ledger: &RefCell<Ledger>,
) -> Result<(), Ending> {
    for round in 0..options.messages {
        let sent = format!("{number}:{round}:{:.<size$}", "", size = options.size);
        socket
            .send(Message::text(sent.as_str()))
            .await
            .map_err(|error| Ending::Dropped(format!("connection {number}: {error}")))?;
        match next_message(socket, number).await? {
            Message::Text(echo) if echo.as_str() == sent => ledger.borrow_mut().replies += 1,
            Message::Close(frame) => return Err(Ending::Closed(format!("connection {number}: closed, {frame:?}"))),
            other => {
                return Err(Ending::Dropped(format!(
                    "connection {number}: unexpected reply {other}"
                )));
            }
        }
    }
    let close = CloseFrame {
        code: CloseCode::Normal,
        reason: "done".into(),
    };
    socket
        .close(Some(close))
        .await
        .map_err(|error| Ending::Dropped(format!("connection {number}: {error}")))?;
    match next_message(socket, number).await? {
        Message::Close(Some(frame)) if frame.code == CloseCode::Normal => Ok(()),
        other => Err(Ending::Closed(format!("connection {number}: closed, {other:?}"))),
    }
}

async fn next_message(socket: &mut WebSocketStream<Bridge<TcpStream>>, number: usize) -> Result<Message, Ending> {
    match timeout(TIMEOUT, socket.next()).await {
        Ok(Some(Ok(message))) => Ok(message),
        Ok(Some(Err(error))) => Err(Ending::Dropped(format!("connection {number}: {error}"))),
        Ok(None) => Err(Ending::Dropped(format!(
            "connection {number}: ended without a close frame"
        ))),
        Err(_) => Err(Ending::Dropped(format!("connection {number}: no reply"))),
    }
}

impl Ledger {
    fn note(&mut self, ended: Result<(), Ending>) {
        match ended {
            Ok(()) => self.completed += 1,
            Err(Ending::Closed(what)) => {
                self.closed += 1;
                self.note_error(what);
            }
            Err(Ending::Dropped(what)) => {
                self.dropped += 1;
                self.note_error(what);
            }
        }
    }

    fn note_unopened(&mut self, error: String) {
        self.unopened += 1;
        self.note_error(error);
    }

    fn note_error(&mut self, error: String) {
        if self.errors.len() < 10 {
            self.errors.push(error);
        }
    }
}
