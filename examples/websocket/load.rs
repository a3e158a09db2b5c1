//! The load: all connections open at once, each message answered, each connection closed with a code.

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

/// How many shake hands at once.
const SHAKING: usize = 256;
/// How long an answer may take before its connection counts as dropped.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of the connections: each is in exactly one of these.
#[derive(Default)]
struct Ledger {
    /// Had every answer, and a close frame with 1000.
    whole: usize,
    /// Were told by a close frame with another code, or none.
    told: usize,
    /// Could not be opened, and know why.
    unopened: usize,
    /// Went without a word, or were never answered.
    dropped: usize,
    replies: u64,
    /// Some of what went wrong.
    errors: Vec<String>,
}

enum Ending {
    Told(String),
    Dropped(String),
}

/// True if nobody was dropped.
pub(crate) async fn load(options: Options) -> io::Result<bool> {
    let begin = Instant::now();
    let ledger = Rc::new(RefCell::new(Ledger::default()));
    let options = Rc::new(options);
    let shaking = Rc::new(Semaphore::new(SHAKING));
    // Who could not be opened comes too: nobody waits for them in vain.
    let all_open = Rc::new(Barrier::new(options.connections + 1));
    let clients: Vec<_> = (0..options.connections)
        .map(|number| {
            let (ledger, options) = (ledger.clone(), options.clone());
            let (shaking, all_open) = (shaking.clone(), all_open.clone());
            windlass::spawn(async move {
                let permit = shaking.acquire().await;
                let opened = timeout(PATIENCE, open(&options)).await;
                drop(permit);
                all_open.wait().await.expect("nobody breaks it");
                let mut socket = match opened {
                    Ok(Ok(socket)) => socket,
                    Ok(Err(error)) => return ledger.borrow_mut().note_unopened(error),
                    Err(_) => return ledger.borrow_mut().note_unopened("no answer to the handshake".into()),
                };
                let ended = talk(&mut socket, number, &options, &ledger).await;
                ledger.borrow_mut().note(ended);
            })
        })
        .collect();
    all_open.wait().await.expect("nobody breaks it");
    outln!("all are open after {:.1?}", begin.elapsed());
    for client in clients {
        client.await?;
    }
    let ledger = ledger.borrow();
    outln!(
        "{} connections, {} replies in {:.1?}: {} whole and closed with 1000, {} told otherwise, {} not opened, {} dropped \
         silently",
        options.connections,
        ledger.replies,
        begin.elapsed(),
        ledger.whole,
        ledger.told,
        ledger.unopened,
        ledger.dropped
    );
    for error in &ledger.errors {
        outln!("  {error}");
    }
    let expected = options.connections as u64 * u64::from(options.messages);
    Ok(ledger.whole == options.connections && ledger.replies == expected)
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

/// Says something, waits for it to come back, and at the end says goodbye and waits for that too.
async fn talk(
    socket: &mut WebSocketStream<Bridge<TcpStream>>,
    number: usize,
    options: &Options,
    ledger: &RefCell<Ledger>,
) -> Result<(), Ending> {
    for round in 0..options.messages {
        let said = format!("{number}:{round}:{:.<size$}", "", size = options.size);
        socket
            .send(Message::text(said.as_str()))
            .await
            .map_err(|error| Ending::Dropped(format!("connection {number}: {error}")))?;
        match answer(socket, number).await? {
            Message::Text(echo) if echo.as_str() == said => ledger.borrow_mut().replies += 1,
            Message::Close(frame) => return Err(Ending::Told(format!("connection {number}: closed, {frame:?}"))),
            other => {
                return Err(Ending::Dropped(format!(
                    "connection {number}: a strange answer, {other}"
                )));
            }
        }
    }
    let goodbye = CloseFrame {
        code: CloseCode::Normal,
        reason: "done".into(),
    };
    socket
        .close(Some(goodbye))
        .await
        .map_err(|error| Ending::Dropped(format!("connection {number}: {error}")))?;
    match answer(socket, number).await? {
        Message::Close(Some(frame)) if frame.code == CloseCode::Normal => Ok(()),
        other => Err(Ending::Told(format!("connection {number}: closed, {other:?}"))),
    }
}

async fn answer(socket: &mut WebSocketStream<Bridge<TcpStream>>, number: usize) -> Result<Message, Ending> {
    match timeout(PATIENCE, socket.next()).await {
        Ok(Some(Ok(message))) => Ok(message),
        Ok(Some(Err(error))) => Err(Ending::Dropped(format!("connection {number}: {error}"))),
        Ok(None) => Err(Ending::Dropped(format!("connection {number}: ended without a word"))),
        Err(_) => Err(Ending::Dropped(format!("connection {number}: no answer"))),
    }
}

impl Ledger {
    fn note(&mut self, ended: Result<(), Ending>) {
        match ended {
            Ok(()) => self.whole += 1,
            Err(Ending::Told(what)) => {
                self.told += 1;
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
