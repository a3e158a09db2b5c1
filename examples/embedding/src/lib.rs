//! A key-value store with a line-based text protocol: `put KEY VALUE`, `keep MILLISECONDS KEY VALUE`, `get KEY`,
//! `count`, `quit`.
//!
//! This part does not depend on a driver. [`answer`] serves one client over any stream, so a test can use an in-memory
//! one; [`serve`] accepts clients from a listener. The program that runs the loop chooses the driver.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use windlass::io::{AsyncRead, AsyncWrite, BufReader, Halves};
use windlass::net::TcpListener;
use windlass::task::{CancelToken, JoinSet};
use windlass::time::{sleep, timeout};

/// The maximum length of a request line.
const MAX_LINE: usize = 4096;

/// The keys and values. Clones share them; there is one thread, so no lock is needed.
#[derive(Clone, Debug, Default)]
pub struct Store {
    values: Rc<RefCell<HashMap<String, Entry>>>,
}

#[derive(Debug)]
struct Entry {
    value: String,
    /// Counts the changes of the key: a timer must not remove a newer value.
    version: u64,
}

impl Store {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<String> {
        self.values.borrow().get(key).map(|entry| entry.value.clone())
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.values.borrow().len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the value of a key, and returns the number of this change.
    pub fn put(&self, key: &str, value: &str) -> u64 {
        let mut values = self.values.borrow_mut();
        let version = values.get(key).map_or(0, |entry| entry.version) + 1;
        let value = value.to_owned();
        values.insert(key.to_owned(), Entry { value, version });
        version
    }

    /// Sets the value of a key for a limited time. Must be called inside a loop.
    pub fn keep(&self, key: &str, value: &str, time: Duration) {
        let version = self.put(key, value);
        let (store, key) = (self.clone(), key.to_owned());
        windlass::spawn(async move {
            sleep(time).await;
            let mut values = store.values.borrow_mut();
            if values.get(&key).is_some_and(|entry| entry.version == version) {
                values.remove(&key);
            }
        })
        .detach();
    }

    /// The response to one line. `None` closes the connection.
    fn ask(&self, line: &str) -> Option<String> {
        let mut words = line.splitn(4, ' ');
        let answer = match (
            words.next().unwrap_or_default(),
            words.next(),
            words.next(),
            words.next(),
        ) {
            ("quit", None, ..) => return None,
            ("count", None, ..) => self.len().to_string(),
            ("get", Some(key), None, _) => match self.get(key) {
                Some(value) => format!("= {value}"),
                None => "none".to_owned(),
            },
            ("put", Some(key), Some(value), rest) => {
                let value = [Some(value), rest].into_iter().flatten().collect::<Vec<_>>().join(" ");
                self.put(key, &value);
                "ok".to_owned()
            }
            ("keep", Some(millis), Some(key), Some(value)) => match millis.parse() {
                Ok(millis) => {
                    self.keep(key, value, Duration::from_millis(millis));
                    "ok".to_owned()
                }
                Err(_) => format!("error: {millis} is not a number of milliseconds"),
            },
            _ => "error: put KEY VALUE, keep MILLISECONDS KEY VALUE, get KEY, count or quit".to_owned(),
        };
        Some(answer)
    }
}

/// Serves one client until it quits or disconnects.
pub async fn answer<S: Halves>(store: Store, mut stream: S) -> io::Result<()> {
    let (reader, mut writer) = stream.halves();
    let mut lines = BufReader::new(reader).max_line_len(MAX_LINE).lines();
    loop {
        let answer = match lines.next_line().await {
            Ok(Some(line)) => store.ask(&line),
            Ok(None) => None,
            // Too long, or not UTF-8: the next line is read normally.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Some(format!("error: {error}")),
            Err(error) => return Err(error),
        };
        match answer {
            Some(answer) => writer.write_all(answer + "\n").await.0?,
            None => return writer.shutdown().await,
        }
    }
}

/// Serves every client that connects, until `stop` is cancelled. Then it stops listening and waits for the open
/// connections to end, for at most `grace`.
pub async fn serve(store: Store, listener: TcpListener, stop: CancelToken, grace: Duration) {
    let mut connections = JoinSet::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // The listener is still usable. The pause keeps a repeated error from using a whole core.
            Err(error) => {
                eprintln!("accept: {error}");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Takes the results of connections that have ended.
        while connections.try_join_next().is_some() {}
        let store = store.clone();
        connections.spawn(async move {
            if let Err(error) = answer(store, stream).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
    drop(listener);
    let ended = timeout(grace, async { while connections.join_next().await.is_some() {} });
    if ended.await.is_err() {
        connections.shutdown().await;
    }
}

/// Sends one request over a stream and returns the response: for clients.
pub async fn ask<S: AsyncRead + AsyncWrite>(stream: &mut S, question: &str) -> io::Result<String> {
    stream.write_all(format!("{question}\n")).await.0?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\n") {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&bytes);
    }
    answer.pop();
    String::from_utf8(answer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
