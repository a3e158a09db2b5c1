//! The driver that wraps another one and adds quirks.
//!
//! Every operation of the loop has an entry here until its completion is reported, and runs in the inner driver under an
//! id of this driver's: an attempt has no id of the loop's, and a send may take several operations of the inner driver.
//!
//! While something is held back (a start, a cancel or a completion), the inner driver is polled without blocking. So a
//! delay is a number of polls, the loop never sleeps over it, and a virtual clock stands still.

mod calls;

use std::io;
use std::ptr::NonNull;

use super::Quirks;
use super::audit::{Audit, Ledger};
use super::kind::Kind;
use super::memory::{adapt, fingerprint, rest_of, scribble, send_len};
use crate::driver::{Completion, Driver, DriverCounters, Fd, FileOp, Op, OpId, OpResult, Scratch, Start, Wait};
use crate::rand::Rng;
use crate::sim::rng::Streams;
use crate::sys::errno;

/// Called with each quirk that occurs.
pub(in crate::sim) type Observer = Box<dyn FnMut(Kind)>;

pub(super) struct QuirkyDriver {
    quirks: Quirks,
    audit: Audit,
    observer: Option<Observer>,
    inner: Box<dyn Driver>,
    ledger: Ledger,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The entry of the loop's operation, by the index of its id.
    by_index: Vec<Option<u32>>,
    /// Starts and cancels that the inner driver gets in a later poll.
    queued: Vec<Queued>,
    /// Results that the loop gets in a later poll, oldest first.
    results: Vec<Late>,
    /// The memory of the inner driver's completions.
    buffer: Vec<Completion>,
    /// Starts and cancels since the last poll.
    submitted: u32,
    /// The last poll was an empty one: the inner driver may have completions.
    was_empty: bool,
    counters: DriverCounters,
    rngs: Rngs,
}

/// One stream per purpose, so that one quirk's rate does not change where the others occur.
struct Rngs {
    starts: Rng,
    attempts: Rng,
    lengths: Rng,
    errors: Rng,
    cancels: Rng,
    polls: Rng,
    completions: Rng,
}

impl Rngs {
    fn errors(&mut self) -> &mut Rng {
        &mut self.errors
    }
}

struct Entry {
    state: State,
    /// How often the entry was used before.
    generation: u64,
    /// The loop's id; `None` for an attempt.
    id: Option<OpId>,
    /// The loop's op and scratch: in place until the completion is reported.
    op: *const Op,
    scratch: *mut Scratch,
    /// The op that the inner driver gets instead, if it differs: owned by the entry, freed when the inner driver has
    /// completed it.
    copy: Option<NonNull<Op>>,
    fingerprint: u64,
    /// The bytes that earlier parts of a send have sent.
    sent: u32,
    is_cancelled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Free,
    /// The inner driver does not know it yet.
    Queued,
    /// In flight in the inner driver.
    Inner,
    /// The inner driver has nothing to do with it any more. The result has not been reported.
    Done,
}

struct Queued {
    entry: u32,
    generation: u64,
    polls: u32,
    is_cancel: bool,
}

struct Late {
    entry: u32,
    result: OpResult,
    polls: u32,
}

impl QuirkyDriver {
    pub(super) fn new(
        quirks: Quirks,
        inner: Box<dyn Driver>,
        audit: &Audit,
        observer: Option<Observer>,
    ) -> QuirkyDriver {
        let streams = Streams::new(quirks.seed);
        let stream = |name: &str| streams.stream(&format!("quirk/{name}"));
        QuirkyDriver {
            ledger: Ledger::new(audit, inner.fd_space()),
            audit: audit.clone(),
            observer,
            quirks,
            inner,
            entries: Vec::new(),
            free: Vec::new(),
            by_index: Vec::new(),
            queued: Vec::new(),
            results: Vec::new(),
            buffer: Vec::new(),
            submitted: 0,
            was_empty: false,
            counters: DriverCounters::default(),
            rngs: Rngs {
                starts: stream("starts"),
                attempts: stream("attempts"),
                lengths: stream("lengths"),
                errors: stream("errors"),
                cancels: stream("cancels"),
                polls: stream("polls"),
                completions: stream("completions"),
            },
        }
    }

    fn occurred(&mut self, kind: Kind) {
        self.audit.count(kind);
        if let Some(observe) = &mut self.observer {
            observe(kind);
        }
    }

    /// Whether a quirk with this rate occurs now.
    fn occurs(&mut self, kind: Kind, rate: f64, rng: impl FnOnce(&mut Rngs) -> &mut Rng) -> bool {
        let occurs = rng(&mut self.rngs).chance(rate);
        if occurs {
            self.occurred(kind);
        }
        occurs
    }

    /// The polls that something is delayed by, if it is.
    fn delay(&mut self, kind: Kind, rate: f64, rng: impl FnOnce(&mut Rngs) -> &mut Rng) -> u32 {
        let rng = rng(&mut self.rngs);
        match rng.chance(rate) {
            true => {
                let polls = rng.range(1..=u64::from(self.quirks.most_polls)) as u32;
                self.occurred(kind);
                polls
            }
            false => 0,
        }
    }

    /// The entry of an operation in flight.
    fn find(&self, id: OpId) -> Option<u32> {
        let at = self.by_index.get(id.index()).copied().flatten()?;
        Some(at).filter(|&at| self.entries[at as usize].id == Some(id))
    }

    fn insert(&mut self, id: Option<OpId>, op: &Op, scratch: *mut Scratch) -> u32 {
        let entry = Entry {
            state: State::Queued,
            generation: 0,
            id,
            op,
            scratch,
            copy: None,
            // SAFETY: the operation is being started, so it has not completed.
            fingerprint: unsafe { fingerprint(op) },
            sent: 0,
            is_cancelled: false,
        };
        let at = match self.free.pop() {
            Some(at) => {
                let generation = self.entries[at as usize].generation + 1;
                self.entries[at as usize] = Entry { generation, ..entry };
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        if let Some(id) = id {
            if self.by_index.len() <= id.index() {
                self.by_index.resize(id.index() + 1, None);
            }
            self.by_index[id.index()] = Some(at);
        }
        at
    }

    /// Ends an entry whose operation is not in flight in the inner driver.
    fn remove(&mut self, at: u32) {
        self.free_copy(at);
        let entry = &mut self.entries[at as usize];
        debug_assert!(entry.state != State::Inner && entry.state != State::Free);
        entry.state = State::Free;
        if let Some(id) = entry.id {
            self.by_index[id.index()] = None;
            // SAFETY: the loop learns of the completion only after this.
            self.ledger.ended(unsafe { &*entry.op });
        }
        self.free.push(at);
    }

    fn free_copy(&mut self, at: u32) {
        if let Some(copy) = self.entries[at as usize].copy.take() {
            // SAFETY: `set_copy` made it from a box, and the inner driver has completed the operation that used it.
            drop(unsafe { Box::from_raw(copy.as_ptr()) });
        }
    }

    fn set_copy(&mut self, at: u32, op: Op) {
        self.free_copy(at);
        // A raw pointer: moving a box would invalidate the pointer that the inner driver keeps.
        self.entries[at as usize].copy = Some(NonNull::from(Box::leak(Box::new(op))));
    }

    fn inner_id(&self, at: u32) -> OpId {
        OpId::new(at, self.entries[at as usize].generation)
    }

    fn inner_op(&self, at: u32) -> *const Op {
        let entry = &self.entries[at as usize];
        entry.copy.map_or(entry.op, |copy| copy.as_ptr().cast_const())
    }

    /// Starts an entry in the inner driver. `Blocking` ends nothing: the caller decides.
    fn start_inner(&mut self, at: u32) -> Start {
        let (id, op) = (self.inner_id(at), self.inner_op(at));
        let entry = &mut self.entries[at as usize];
        entry.state = State::Inner;
        // SAFETY: the loop keeps its memory in place until it learns of the completion, and this driver its copy until
        // the inner driver has completed the operation. Entries have distinct ids in the inner driver.
        let start = unsafe { self.inner.start(id, &*op, entry.scratch) };
        if !matches!(start, Start::Pending) {
            entry.state = State::Queued;
        }
        start
    }

    /// Starts an entry after the loop's call of `start` has returned.
    fn start_late(&mut self, at: u32) {
        match self.start_inner(at) {
            Start::Pending => {}
            Start::Done(result) => self.inner_done(at, result),
            // Too late for a thread.
            Start::Blocking => self.inner_done(at, OpResult::new(Err(errno::NOT_SUPPORTED))),
        }
    }

    /// The inner driver has completed an entry's operation, or part of a send.
    fn inner_done(&mut self, at: u32, result: OpResult) {
        let copy = self.entries[at as usize].copy;
        // SAFETY: the entry owns its copy.
        let part = copy.and_then(|copy| send_len(unsafe { copy.as_ref() }));
        let entry = &mut self.entries[at as usize];
        entry.state = State::Done;
        // SAFETY: the operation's completion has not been reported.
        let op = unsafe { &*entry.op };
        let result = match (result.res(), entry.sent) {
            (Ok(count), _) if part.is_some() => {
                entry.sent += count;
                let is_whole = part == Some(count as usize);
                let rest = rest_of(op, entry.sent as usize).filter(|_| is_whole && !entry.is_cancelled);
                if entry.id.is_some()
                    && let Some(rest) = rest
                    && self.occurs(Kind::ContinuedSend, self.quirks.continued_sends, |rngs| {
                        &mut rngs.lengths
                    })
                {
                    return self.go_on(at, rest);
                }
                OpResult::new(Ok(self.entries[at as usize].sent))
            }
            (Err(_), sent @ 1..) => {
                if entry.is_cancelled {
                    self.occurred(Kind::CancelHalfway);
                }
                OpResult::new(Ok(sent))
            }
            (Err(_), 0) if self.quirks.scribbles => {
                // SAFETY: the operation has not completed, and the inner driver does not use its memory any more.
                if unsafe { scribble(op, self.rngs.errors.next_u64() as u8) } {
                    self.occurred(Kind::Scribble);
                }
                result
            }
            _ => result,
        };
        self.finish(at, result);
    }

    /// Sends the rest of a shortened send. If it does not complete soon, it is cancelled: its caller must learn what was
    /// sent even if the peer does not read.
    fn go_on(&mut self, at: u32, rest: Op) {
        self.set_copy(at, rest);
        let entry = &mut self.entries[at as usize];
        entry.state = State::Queued;
        entry.generation += 1;
        let generation = entry.generation;
        let polls = self.rngs.lengths.range(0..=u64::from(self.quirks.most_polls)) as u32;
        let mut queue = |polls, is_cancel| {
            self.queued.push(Queued {
                entry: at,
                generation,
                polls,
                is_cancel,
            });
        };
        queue(polls, false);
        queue(polls + 1, true);
    }

    /// Keeps a result for a later poll.
    fn finish(&mut self, at: u32, result: OpResult) {
        self.free_copy(at);
        self.entries[at as usize].state = State::Done;
        let polls = self.delay(Kind::LateCompletion, self.quirks.late_completions, |rngs| {
            &mut rngs.completions
        });
        self.results.push(Late {
            entry: at,
            result,
            polls,
        });
    }

    /// Ends an entry whose result is returned to the loop right after this.
    fn report(&mut self, at: u32, result: OpResult) -> OpResult {
        let entry = &self.entries[at as usize];
        // SAFETY: the completion is reported only after this.
        let op = unsafe { &*entry.op };
        // SAFETY: as above.
        unsafe { self.ledger.completing(op, entry.fingerprint, result.res()) };
        self.remove(at);
        result
    }

    /// Polls the inner driver and keeps its results.
    fn poll_inner(&mut self, wait: Wait) -> io::Result<()> {
        let mut completed = std::mem::take(&mut self.buffer);
        let result = self.inner.poll(&mut completed, wait);
        for Completion { id, result } in completed.drain(..) {
            let at = id.index() as u32;
            let entry = self.entries.get(at as usize);
            match entry {
                Some(entry) if entry.state == State::Inner && self.inner_id(at) == id => self.inner_done(at, result),
                _ => self
                    .ledger
                    .violated(format!("the inner driver completed {id:?}, which is not in flight")),
            }
        }
        self.buffer = completed;
        result
    }

    /// Takes the result of an entry that need not wait for a poll.
    fn take_result(&mut self, at: u32) -> Option<OpResult> {
        let position = self.results.iter().position(|late| late.entry == at)?;
        Some(self.results.remove(position).result)
    }

    /// Whether the submission queue has an entry left before the next poll.
    fn has_space(&mut self) -> bool {
        let is_full = self
            .quirks
            .queue_entries
            .is_some_and(|entries| self.submitted >= entries);
        self.submitted += 1;
        self.counters.sq_full += u64::from(is_full);
        !is_full
    }

    fn queue(&mut self, at: u32, polls: u32, is_cancel: bool) {
        self.queued.push(Queued {
            entry: at,
            generation: self.entries[at as usize].generation,
            polls,
            is_cancel,
        });
    }

    fn cancel_inner(&mut self, at: u32) {
        let (id, op) = (self.inner_id(at), self.inner_op(at));
        // SAFETY: the operation is in flight in the inner driver, so its op is in place.
        self.inner.cancel(id, unsafe { &*op });
    }

    /// Passes queued starts and cancels on whose time has come, as many as the submission queue takes.
    fn submit(&mut self) {
        self.submitted = 0;
        let mut left = Vec::new();
        for mut queued in std::mem::take(&mut self.queued) {
            let at = queued.entry;
            let entry = &self.entries[at as usize];
            let wanted = if queued.is_cancel { State::Inner } else { State::Queued };
            let is_current = entry.generation == queued.generation && entry.state != State::Free;
            match queued.polls {
                // It has completed meanwhile, or was cancelled before it was started.
                _ if !is_current || entry.state == State::Done => {}
                0 if entry.state != wanted => left.push(queued),
                0 if !self.has_space() => left.push(queued),
                0 if queued.is_cancel => self.cancel_inner(at),
                0 => self.start_late(at),
                _ => {
                    queued.polls -= 1;
                    left.push(queued);
                }
            }
        }
        // What these calls have queued comes after what was there before.
        left.append(&mut self.queued);
        self.queued = left;
    }

    /// Reports the results whose time has come.
    fn report_due(&mut self, completed: &mut Vec<Completion>) {
        let mut due = Vec::new();
        self.results.retain_mut(|late| match late.polls {
            0 => {
                due.push((late.entry, late.result));
                false
            }
            _ => {
                late.polls -= 1;
                true
            }
        });
        if self.quirks.permuted && due.len() > 1 {
            let before: Vec<u32> = due.iter().map(|(entry, _)| *entry).collect();
            self.rngs.completions.shuffle(&mut due);
            if !due.iter().map(|(entry, _)| *entry).eq(before) {
                self.occurred(Kind::Permuted);
            }
        }
        if due.len() > 1 && self.occurs(Kind::SplitPoll, self.quirks.split_polls, |rngs| &mut rngs.completions) {
            let kept = due.split_off(self.rngs.completions.range(1..due.len() as u64) as usize);
            let kept = kept.into_iter().map(|(entry, result)| Late {
                entry,
                result,
                polls: 0,
            });
            self.results.splice(0..0, kept);
        }
        for (at, result) in due {
            let id = self.entries[at as usize]
                .id
                .expect("an attempt's result is taken at once");
            let result = self.report(at, result);
            completed.push(Completion { id, result });
        }
    }

    fn is_holding(&self) -> bool {
        !self.queued.is_empty() || !self.results.is_empty()
    }

    /// The error that an operation fails with instead of being started.
    fn injected(&mut self, op: &Op) -> Option<i32> {
        let (empty_pool, aborted_accepts) = (self.quirks.empty_pool, self.quirks.aborted_accepts);
        match op {
            Op::RecvManaged { .. } | Op::RecvMessageManaged { .. }
                if self.occurs(Kind::EmptyPool, empty_pool, Rngs::errors) =>
            {
                self.counters.pool_empty += 1;
                Some(errno::NO_BUFFERS)
            }
            Op::Accept { .. } if self.occurs(Kind::AbortedAccept, aborted_accepts, Rngs::errors) => {
                Some(errno::ABORTED)
            }
            Op::Accept { .. } | Op::File(FileOp::Open { .. }) => self.exhausted(),
            _ => None,
        }
    }

    /// How many messages of a batch are passed on; `None` if the batch is refused.
    fn batch_len(&mut self, fd: Fd, name: &str, len: usize) -> Option<usize> {
        self.ledger.uses(fd, &name);
        if len == 0 {
            return None;
        }
        if let Some(rate) = self.quirks.attempts_served
            && !self.rngs.attempts.chance(rate)
        {
            self.occurred(Kind::AttemptRefused);
            return None;
        }
        let shorten = self.rngs.lengths.chance(self.quirks.short_counts);
        Some(match shorten {
            true => self.rngs.lengths.range(1..=len as u64) as usize,
            false => len,
        })
    }

    fn exhausted(&mut self) -> Option<i32> {
        let codes = [errno::PROCESS_FILES, errno::SYSTEM_FILES];
        self.occurs(Kind::NoDescriptor, self.quirks.no_descriptors, Rngs::errors)
            .then(|| codes[self.rngs.errors.below(2) as usize])
    }

    /// The entry's operation with a shorter length, or at least as a copy whose address is this driver's.
    ///
    /// # Safety
    ///
    /// The operation owns its memory.
    unsafe fn adapt(&mut self, at: u32, op: &Op) {
        let shorten = self.rngs.lengths.chance(self.quirks.short_counts);
        // SAFETY: the caller's promise.
        let (adapted, is_shorter) = unsafe { adapt(op, shorten, &mut self.rngs.lengths) };
        if is_shorter {
            self.occurred(Kind::ShortCount);
        }
        self.set_copy(at, adapted);
    }

    /// Whether an operation may reach the inner driver later: one that it does not leave to a thread. On files and paths
    /// of the kernel only its answer tells.
    fn may_wait(&self, op: &Op) -> bool {
        op.waits_for().is_some() || op.fd().is_some_and(|fd| self.ledger.is_own(fd))
    }
}

impl Drop for QuirkyDriver {
    fn drop(&mut self) {
        let in_flight = self.entries.iter().filter(|entry| entry.state != State::Free);
        // SAFETY: these operations have not completed.
        let names: Vec<_> = in_flight.map(|entry| unsafe { &*entry.op }.name()).collect();
        self.ledger.dropping(&names);
    }
}
