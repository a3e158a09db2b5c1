//! The raft log of a node, in one file.
//!
//! Everything that raft must remember is a record at the end of the file: entries, votes, truncations, purges. A record is
//! durable once [`sync_data`](windlass::fs::File::sync_data) has returned, and only then is its caller told so. Records that
//! come in during a write share the next one and its sync (group commit).
//!
//! After a power loss the file may end in any part of what was not synced. It is cut before the first record whose checksum
//! is wrong: nothing behind it was acknowledged.
//!
//! Purging entries makes the file rewrite itself once it is large: a new file with the current contents replaces it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use openraft::OptionalSend;
use openraft::storage::{RaftLogReader, RaftLogStorage};
use serde::{Deserialize, Serialize};
use windlass::fs::File;
use windlass::sync::{Notify, oneshot};

use crate::disk;
use crate::node::Bug;
use crate::types::{Entry, IOFlushed, LogId, LogState, TypeConfig, Vote};

const FILE: &str = "log";

/// The log, as openraft uses it. Clones share it.
#[derive(Clone)]
pub struct LogStore(Rc<Shared>);

/// Writes the records of a log. The log waits for it: [`run`](Writer::run) it as long as the log is used.
pub struct Writer {
    shared: Rc<Shared>,
    path: PathBuf,
    file: File,
    /// Where the next record begins.
    end: u64,
    rewrite_at: u64,
    bug: Option<Bug>,
}

#[derive(Default)]
struct Shared {
    state: RefCell<State>,
    queue: RefCell<Queue>,
    queued: Notify,
}

/// The contents of the log, with what is not written yet.
#[derive(Default)]
struct State {
    vote: Option<Vote>,
    purged: Option<LogId>,
    entries: BTreeMap<u64, Entry>,
}

/// Records that are not written yet, in order.
#[derive(Default)]
struct Queue {
    records: Vec<Vec<u8>>,
    callers: Vec<Caller>,
    has_purge: bool,
    /// Set after an error: what the disk has is then unknown.
    has_failed: bool,
}

/// The caller that waits until a record is durable.
enum Caller {
    Append(IOFlushed),
    Wait(oneshot::Sender<io::Result<()>>),
}

#[derive(Serialize, Deserialize)]
enum Record<E, V, L> {
    Entry(E),
    Vote(V),
    /// Entries after this one are gone.
    TruncateAfter(Option<L>),
    /// Entries up to this one are gone.
    Purge(L),
}

type OwnedRecord = Record<Entry, Vote, LogId>;
type RecordRef<'a> = Record<&'a Entry, &'a Vote, LogId>;

impl LogStore {
    /// Opens the log in a directory, or makes an empty one. The file is rewritten after a purge if it is longer than
    /// `rewrite_at` bytes.
    pub async fn open(dir: &Path, rewrite_at: u64, bug: Option<Bug>) -> io::Result<(LogStore, Writer)> {
        disk::make_dir(dir).await?;
        let path = dir.join(FILE);
        let file = File::options().read(true).write(true).create(true).open(&path).await?;
        let bytes = disk::read_if_exists(&path).await?.unwrap_or_default();
        let (state, end) = State::parse(&bytes)?;
        // What was read may not have been synced, and a torn record must not be completed by a later one.
        file.set_len(end).await?;
        file.sync_all().await?;
        disk::sync_dir(dir).await?;
        let shared = Rc::new(Shared {
            state: RefCell::new(state),
            ..Shared::default()
        });
        let writer = Writer {
            shared: shared.clone(),
            path,
            file,
            end,
            rewrite_at,
            bug,
        };
        Ok((LogStore(shared), writer))
    }

    fn push(&self, record: &RecordRef<'_>) -> io::Result<()> {
        let mut queue = self.0.queue.borrow_mut();
        queue.records.push(serde_json::to_vec(record)?);
        queue.has_purge |= matches!(record, Record::Purge(_));
        self.0.queued.notify_one();
        Ok(())
    }

    /// Waits until everything that was pushed is durable.
    async fn flush(&self) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut queue = self.0.queue.borrow_mut();
            if queue.has_failed {
                return Err(failed());
            }
            queue.callers.push(Caller::Wait(sender));
        }
        self.0.queued.notify_one();
        receiver.await.map_err(|_| failed())?
    }
}

fn failed() -> io::Error {
    io::Error::other("an earlier write to the log has failed")
}

impl State {
    /// The valid records of a log's bytes, and where they end.
    fn parse(bytes: &[u8]) -> io::Result<(State, u64)> {
        let (mut state, mut end) = (State::default(), 0);
        while let Some(contents) = disk::record_at(bytes, end) {
            // The checksum is right, so this is a log of another version.
            state.apply(serde_json::from_slice(contents)?);
            end += disk::record_len(contents);
        }
        Ok((state, end as u64))
    }

    fn apply(&mut self, record: OwnedRecord) {
        match record {
            Record::Entry(entry) => drop(self.entries.insert(entry.log_id.index, entry)),
            Record::Vote(vote) => self.vote = Some(vote),
            Record::TruncateAfter(last) => self.truncate_after(last),
            Record::Purge(log_id) => self.purge(log_id),
        }
    }

    fn truncate_after(&mut self, last: Option<LogId>) {
        self.entries.split_off(&last.map_or(0, |last| last.index + 1));
    }

    fn purge(&mut self, log_id: LogId) {
        self.entries = self.entries.split_off(&(log_id.index + 1));
        self.purged = self.purged.max(Some(log_id));
    }

    /// A file with these contents and no others.
    fn image(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut push = |record: RecordRef<'_>| {
            disk::push_record(&mut bytes, 0, &serde_json::to_vec(&record)?);
            io::Result::Ok(())
        };
        if let Some(vote) = &self.vote {
            push(Record::Vote(vote))?;
        }
        if let Some(purged) = self.purged {
            push(Record::Purge(purged))?;
        }
        for entry in self.entries.values() {
            push(Record::Entry(entry))?;
        }
        Ok(bytes)
    }
}

impl Writer {
    /// Writes records until a write fails. Nothing can be written after that: what the file contains is unknown.
    pub async fn run(mut self) -> io::Result<()> {
        loop {
            let batch = std::mem::take(&mut *self.shared.queue.borrow_mut());
            if batch.records.is_empty() && batch.callers.is_empty() {
                self.shared.queued.notified().await;
                continue;
            }
            let written = self.write(&batch).await;
            if written.is_err() {
                self.shared.queue.borrow_mut().has_failed = true;
            }
            let later = match written {
                Ok(()) => Vec::new(),
                Err(_) => std::mem::take(&mut self.shared.queue.borrow_mut().callers),
            };
            for caller in batch.callers.into_iter().chain(later) {
                let result = written
                    .as_ref()
                    .map(|_| ())
                    .map_err(|error| io::Error::new(error.kind(), error.to_string()));
                match caller {
                    Caller::Append(flushed) => flushed.io_completed(result),
                    Caller::Wait(sender) => drop(sender.send(result)),
                }
            }
            written?;
        }
    }

    async fn write(&mut self, batch: &Queue) -> io::Result<()> {
        if batch.has_purge && self.end >= self.rewrite_at {
            // The state contains the whole batch.
            let image = self.shared.state.borrow().image()?;
            self.end = image.len() as u64;
            self.file = disk::replace(&self.path, image).await?;
            return Ok(());
        }
        let mut bytes = Vec::new();
        for record in &batch.records {
            disk::push_record(&mut bytes, self.end, record);
        }
        let len = bytes.len() as u64;
        if len == 0 {
            return Ok(());
        }
        self.file.write_all_at(bytes, self.end).await.0?;
        self.end += len;
        match self.bug {
            Some(Bug::UnsyncedLog) => Ok(()),
            _ => self.file.sync_data().await,
        }
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + fmt::Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        // An empty range makes a `BTreeMap` panic.
        let (start, end) = (range.start_bound().cloned(), range.end_bound().cloned());
        let first = match start {
            Bound::Included(first) => first,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let state = self.0.state.borrow();
        let entries = state.entries.range(first..).map(|(_, entry)| entry);
        let entries = entries.take_while(|entry| match end {
            Bound::Included(last) => entry.log_id.index <= last,
            Bound::Excluded(end) => entry.log_id.index < end,
            Bound::Unbounded => true,
        });
        Ok(entries.cloned().collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.0.state.borrow().vote)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState> {
        let state = self.0.state.borrow();
        let last = state.entries.values().next_back().map(|entry| entry.log_id);
        Ok(LogState {
            last_purged_log_id: state.purged,
            last_log_id: last.or(state.purged),
        })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.0.state.borrow_mut().vote = Some(*vote);
        self.push(&Record::Vote(vote))?;
        self.flush().await
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        for entry in entries {
            self.push(&Record::Entry(&entry))?;
            self.0.state.borrow_mut().entries.insert(entry.log_id.index, entry);
        }
        let mut queue = self.0.queue.borrow_mut();
        match queue.has_failed {
            true => Err(failed()),
            false => {
                queue.callers.push(Caller::Append(flushed));
                self.0.queued.notify_one();
                Ok(())
            }
        }
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.0.state.borrow_mut().truncate_after(last);
        self.push(&Record::TruncateAfter(last))?;
        self.flush().await
    }

    /// Not flushed: the snapshot that replaces the entries is durable, so they may as well come back.
    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.0.state.borrow_mut().purge(log_id);
        self.push(&Record::Purge(log_id))
    }
}

impl fmt::Debug for LogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.borrow();
        f.debug_struct("LogStore")
            .field("vote", &state.vote)
            .field("purged", &state.purged)
            .field("entries", &state.entries.len())
            .finish()
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("path", &self.path)
            .field("end", &self.end)
            .finish()
    }
}
