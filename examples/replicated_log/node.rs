//! One node of the replicated log.
//!
//! Node 0 is the leader. It appends an entry to its own log, syncs it, and sends it to the followers, which append and sync
//! it too. It acknowledges an entry when [`QUORUM`] nodes have synced it: the entry survives a power loss of all nodes, and
//! the loss of one disk.
//!
//! A follower gets only what the leader has synced, so its log is a prefix of the leader's, and no log is ever rewritten.
//! Any number of entries share one write and one sync (group commit).
//!
//! What it does not do: elect another leader, change the set of nodes, delete old entries, or recognize an entry that a
//! client sends twice.
//!
//! The protocol is text, one line per message:
//!
//! | request | reply |
//! |---|---|
//! | `add TEXT`, from a client to the leader | `added INDEX` |
//! | `get INDEX`, from a client to the leader | `entry TEXT` |
//! | `follow`, from the leader to a follower | `have COUNT` |
//! | `entries FIRST COUNT` and COUNT lines, from the leader to a follower | `have COUNT` |

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use windlass::io::{AsyncWrite, BufReader, Lines};
use windlass::net::{TcpListener, TcpStream};
use windlass::sync::watch;
use windlass::task::{Either, select};
use windlass::time::{sleep, timeout};

use super::log::Log;

/// How many nodes must have synced an entry before it is acknowledged.
pub(crate) const QUORUM: usize = 2;

const LEADER: usize = 0;
/// How often the leader sends something to a follower, and for how long it waits for the reply.
const HEARTBEAT: Duration = Duration::from_secs(1);
const REPLY: Duration = Duration::from_secs(2);
/// A connection without requests is closed: its peer may have lost power, and will never say so.
const IDLE: Duration = Duration::from_secs(30);
const MAX_LINE: usize = 64 << 10;
/// Entries in one message.
const MAX_BATCH: usize = 1_000;

/// Mistakes that the tests switch on, to see that they are found. Leave them out of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A node that receives several entries at once, after it was cut off, does not sync them.
    UnsyncedBatch,
    /// The leader counts a follower when it has sent the entries, not when the follower has synced them.
    CountsSent,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The number of this node.
    pub(crate) node: usize,
    /// The address of each node.
    pub(crate) addrs: Vec<String>,
    /// Where the log is.
    pub(crate) dir: PathBuf,
    pub(crate) bug: Option<Bug>,
}

struct Node {
    config: Config,
    /// All entries, also those that are not synced yet.
    entries: RefCell<Vec<String>>,
    /// The number of all entries.
    added: watch::Sender<usize>,
    /// How many entries each node has synced. A follower knows only about itself.
    synced: watch::Sender<Vec<usize>>,
}

/// Runs a node until its disk fails: after a failed write or sync the contents of the disk are unknown.
pub(crate) async fn run(config: Config) -> io::Result<()> {
    let (log, entries) = Log::open(&config.dir).await?;
    let mut synced = vec![0; config.addrs.len()];
    synced[config.node] = entries.len();
    let node = Rc::new(Node {
        added: watch::channel(entries.len()).0,
        entries: RefCell::new(entries),
        synced: watch::channel(synced).0,
        config,
    });
    let listener = bind(&node.config.addrs[node.config.node]).await?;
    if node.config.node == LEADER {
        for follower in 1..node.config.addrs.len() {
            let node = node.clone();
            windlass::spawn(async move { node.replicate(follower).await }).detach();
        }
    }
    match select(node.write(log), node.clone().accept(listener)).await {
        Either::Left(result) | Either::Right(result) => result,
    }
}

/// Listens. The address may be in use for a moment when a node starts again: the sockets of a process that was killed are
/// closed in the background if it used io_uring.
async fn bind(addr: &str) -> io::Result<TcpListener> {
    for _ in 0..100 {
        match TcpListener::bind(addr).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => sleep(Duration::from_millis(50)).await,
            bound => return bound,
        }
    }
    TcpListener::bind(addr).await
}

impl Node {
    /// Writes entries to the log as they are added.
    async fn write(&self, mut log: Log) -> io::Result<()> {
        let mut added = self.added.subscribe();
        loop {
            let written = log.len();
            let is_behind = added.wait_for(|added| *added > written).await;
            drop(is_behind.map_err(io::Error::other)?);
            let batch = self.entries.borrow()[written..].to_vec();
            log.append(&batch).await?;
            if self.config.bug != Some(Bug::UnsyncedBatch) || batch.len() == 1 {
                log.sync().await?;
            }
            self.set_synced(self.config.node, log.len());
        }
    }

    fn set_synced(&self, node: usize, count: usize) {
        self.synced.send_modify(|synced| synced[node] = count);
    }

    fn add(&self, entry: &str) {
        let mut entries = self.entries.borrow_mut();
        entries.push(entry.to_owned());
        self.added.send_replace(entries.len());
    }

    async fn accept(self: Rc<Node>, listener: TcpListener) -> io::Result<()> {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(Duration::from_millis(50)).await;
                continue;
            };
            let node = self.clone();
            // An error ends this connection alone.
            windlass::spawn(async move { drop(node.serve(stream).await) }).detach();
        }
    }

    async fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let mut lines = BufReader::new(stream).max_line_len(MAX_LINE).lines();
        while let Some(request) = timeout(IDLE, lines.next_line()).await?? {
            let (verb, rest) = request.split_once(' ').unwrap_or((&request, ""));
            let reply = match verb {
                "add" if self.config.node == LEADER => {
                    self.add(rest);
                    let count = *self.added.borrow();
                    self.wait_for_quorum(count).await?;
                    format!("added {}\n", count - 1)
                }
                "get" if self.config.node == LEADER => {
                    let index: usize = rest.parse().map_err(io::Error::other)?;
                    self.wait_for_quorum(index + 1).await?;
                    format!("entry {}\n", self.entries.borrow()[index])
                }
                "follow" => self.have(),
                "entries" => {
                    self.receive(rest, &mut lines).await?;
                    self.have()
                }
                _ => "error\n".to_owned(),
            };
            timeout(REPLY, lines.get_mut().write_all(reply)).await?.0?;
        }
        Ok(())
    }

    /// Waits until a quorum has synced this many entries.
    async fn wait_for_quorum(&self, count: usize) -> io::Result<()> {
        let mut synced = self.synced.subscribe();
        let has_quorum = |synced: &Vec<usize>| synced.iter().filter(|synced| **synced >= count).count() >= QUORUM;
        synced.wait_for(has_quorum).await.map(drop).map_err(io::Error::other)
    }

    fn have(&self) -> String {
        format!("have {}\n", self.synced.borrow()[self.config.node])
    }

    /// Appends entries of the leader and waits until they are synced.
    async fn receive(&self, range: &str, lines: &mut Lines<TcpStream>) -> io::Result<()> {
        let (first, count) = parse_range(range).ok_or(io::ErrorKind::InvalidData)?;
        for index in first..first + count {
            let entry = timeout(IDLE, lines.next_line()).await??;
            let entry = entry.ok_or(io::ErrorKind::UnexpectedEof)?;
            let len = self.entries.borrow().len();
            // An older connection may have delivered this entry. One that leaves a gap is from a confused leader.
            if index > len {
                return Err(io::ErrorKind::InvalidData.into());
            } else if index == len {
                self.add(&entry);
            }
        }
        let (mut synced, own) = (self.synced.subscribe(), self.config.node);
        let wait = synced.wait_for(|synced| synced[own] >= first + count);
        wait.await.map(drop).map_err(io::Error::other)
    }

    /// Keeps a follower up to date, over as many connections as it takes.
    async fn replicate(&self, follower: usize) {
        loop {
            // Refused, reset or too late: the next connection begins where the follower's log ends.
            let _ = self.replicate_once(follower).await;
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn replicate_once(&self, follower: usize) -> io::Result<()> {
        let addr = self.config.addrs[follower].as_str();
        let stream = timeout(REPLY, TcpStream::connect(addr)).await??;
        let mut lines = BufReader::new(stream).lines();
        let mut synced = self.synced.subscribe();
        let mut message = "follow\n".to_owned();
        loop {
            timeout(REPLY, lines.get_mut().write_all(message)).await?.0?;
            let reply = timeout(REPLY, lines.next_line()).await??.unwrap_or_default();
            let have = reply.strip_prefix("have ").and_then(|count| count.parse().ok());
            let have: usize = have.ok_or(io::ErrorKind::InvalidData)?;
            self.set_synced(follower, have);
            // More to send, or a heartbeat without entries.
            let _ = timeout(HEARTBEAT, synced.wait_for(|synced| synced[LEADER] > have)).await;
            let end = self.synced.borrow()[LEADER].min(have + MAX_BATCH);
            let entries = self.entries.borrow();
            // The follower has more than its leader has synced: one of them was given the wrong disk.
            let batch = entries.get(have..end).ok_or(io::ErrorKind::InvalidData)?;
            message = format!("entries {have} {}\n", batch.len());
            message.extend(batch.iter().flat_map(|entry| [entry, "\n"]));
            if self.config.bug == Some(Bug::CountsSent) {
                self.set_synced(follower, end);
            }
        }
    }
}

fn parse_range(text: &str) -> Option<(usize, usize)> {
    let (first, count) = text.split_once(' ')?;
    Some((first.parse().ok()?, count.parse().ok()?))
}
