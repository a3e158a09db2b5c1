//! A call in transit: one allocation that travels to the target shard with the work and back with the result.
//!
//! The caller allocates the packet and frees it, so memory does not migrate between the allocator's threads. A packet is
//! owned by one place at a time (an outbox, an inbox, the serving task, the caller's table), so it needs no lock.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::CallError;
use super::defect::Defect;
use super::state::ShardState;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{guard, panic_message};
use crate::peer::{Link, PeerMessage};
use crate::task::create;
use crate::time::Instant;

/// What a packet's route depends on.
pub(super) struct Header {
    link: Link,
    /// The caller's shard, the call's place in its table for the target, and a number that tells apart the calls that have
    /// used the place.
    pub(super) caller: u32,
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// The shard that is called. A pool has [fewer](super::MAX_SHARDS) than this can hold.
    pub(super) target: u16,
    /// The length of the chain of calls that this one is part of.
    pub(super) hop: u8,
    /// On its way back.
    pub(super) is_answer: bool,
    /// In a box: few calls have a limit, and a packet should fill few cache lines.
    pub(super) limit: Option<Box<StartLimit>>,
    /// Where the call was made.
    pub(super) made_at: &'static Location<'static>,
}

/// When a call may start.
pub(super) struct StartLimit {
    /// Not later than this after it was sent.
    pub(super) within: Duration,
    /// Not after this time.
    pub(super) by: Instant,
}

impl Header {
    pub(super) fn new(made_at: &'static Location<'static>) -> Header {
        Header {
            link: Link::default(),
            caller: 0,
            slot: 0,
            generation: 0,
            target: 0,
            hop: 0,
            is_answer: false,
            limit: None,
            made_at,
        }
    }
}

pub(super) trait Packet: PeerMessage {
    fn header(&self) -> &Header;

    fn header_mut(&mut self) -> &mut Header;

    /// Runs the work on the target shard, at once or in a task. The packet then returns to the caller.
    fn serve(self: Box<Self>, state: &Rc<ShardState>, core: &LoopCore);

    /// Runs work that does not wait, on the caller's own shard. False if it needs [`run_here`](Packet::run_here).
    fn run_now(&mut self) -> bool;

    /// Runs the work in the task that polls the future, which returns the packet with the result.
    fn run_here(self: Box<Self>) -> Pin<Box<dyn Future<Output = Box<dyn Packet>>>>;

    fn fail(&mut self, error: CallError);

    /// Moves the result into `out`, an `Option<Result<R, CallError>>`.
    fn take_result(&mut self, out: &mut dyn Any);
}

/// Work that does not wait.
pub(super) struct Ask<M, R> {
    pub(super) header: Header,
    pub(super) work: Option<M>,
    pub(super) result: Option<Result<R, CallError>>,
}

/// Work that may wait: `work` makes a future on the target shard.
pub(super) struct Task<M, R> {
    pub(super) header: Header,
    pub(super) work: Option<M>,
    pub(super) result: Option<Result<R, CallError>>,
}

impl<M, R> Packet for Ask<M, R>
where
    M: FnOnce() -> Result<R, CallError> + Send + 'static,
    R: Send + 'static,
{
    fn header(&self) -> &Header {
        &self.header
    }

    fn header_mut(&mut self) -> &mut Header {
        &mut self.header
    }

    fn serve(mut self: Box<Self>, state: &Rc<ShardState>, _core: &LoopCore) {
        state.locals_of(self.header.hop).run(|| self.run_now());
        state.answer(self);
    }

    fn run_now(&mut self) -> bool {
        if let Some(work) = self.work.take() {
            self.result = Some(match catch_unwind(AssertUnwindSafe(work)) {
                Ok(result) => result,
                Err(payload) => Err(panicked(payload)),
            });
        }
        true
    }

    fn run_here(mut self: Box<Self>) -> Pin<Box<dyn Future<Output = Box<dyn Packet>>>> {
        Box::pin(async move {
            self.run_now();
            self as Box<dyn Packet>
        })
    }

    fn fail(&mut self, error: CallError) {
        self.result = Some(Err(error));
    }

    fn take_result(&mut self, out: &mut dyn Any) {
        take(&mut self.result, out);
    }
}

impl<M, F, R> Packet for Task<M, R>
where
    M: FnOnce() -> F + Send + 'static,
    F: Future<Output = Result<R, CallError>> + 'static,
    R: Send + 'static,
{
    fn header(&self) -> &Header {
        &self.header
    }

    fn header_mut(&mut self) -> &mut Header {
        &mut self.header
    }

    fn serve(self: Box<Self>, state: &Rc<ShardState>, core: &LoopCore) {
        let Header {
            caller,
            slot,
            generation,
            hop,
            made_at,
            ..
        } = self.header;
        let mut serving = Serving {
            packet: Some(self),
            state: state.clone(),
        };
        let task = async move {
            let work = serving.packet.as_mut().and_then(|packet| packet.work.take());
            let result = run(work).await;
            serving.finish(result);
        };
        let task = state.locals_of(hop).run(|| create(core, task, None, made_at));
        // Before the first poll, which may be the last.
        state.note_served(caller, slot, generation, task.raw());
        task.raw().start_now(core);
    }

    fn run_now(&mut self) -> bool {
        false
    }

    fn run_here(mut self: Box<Self>) -> Pin<Box<dyn Future<Output = Box<dyn Packet>>>> {
        Box::pin(async move {
            let result = run(self.work.take()).await;
            self.result = Some(result);
            self as Box<dyn Packet>
        })
    }

    fn fail(&mut self, error: CallError) {
        self.result = Some(Err(error));
    }

    fn take_result(&mut self, out: &mut dyn Any) {
        take(&mut self.result, out);
    }
}

/// Makes and awaits a future. A panic of either is a result.
async fn run<M, F, R>(work: Option<M>) -> Result<R, CallError>
where
    M: FnOnce() -> F,
    F: Future<Output = Result<R, CallError>>,
{
    let Some(work) = work else {
        return Err(CallError::Cancelled);
    };
    let future = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(future) => future,
        Err(payload) => return Err(panicked(payload)),
    };
    match catch(future).await {
        Ok(result) => result,
        Err(message) => Err(CallError::Panicked(message)),
    }
}

/// The output of a future, or the message of its panic: in a poll, or in its destructor.
pub(super) async fn catch<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(Some(future));
    let mut poll = |cx: &mut Context<'_>| {
        let polled = future.as_mut().as_pin_mut().map(|future| future.poll(cx));
        let output = std::task::ready!(polled.expect("the future is present until it has ended"));
        future.set(None);
        Poll::Ready(output)
    };
    let result = std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(payload) => Poll::Ready(Err(message(payload))),
    })
    .await;
    // After a panic in a poll, its destructor may panic as well.
    guard("a future's destructor", || future.set(None));
    result
}

fn panicked(payload: Box<dyn Any + Send>) -> CallError {
    CallError::Panicked(message(payload))
}

/// The message of a panic. The payload is the user's, so its destructor may panic.
pub(super) fn message(payload: Box<dyn Any + Send>) -> String {
    let message = panic_message(&*payload).to_owned();
    guard("a panic's payload", || drop(payload));
    message
}

fn take<R: 'static>(result: &mut Option<Result<R, CallError>>, out: &mut dyn Any) {
    if let Some(out) = out.downcast_mut::<Option<Result<R, CallError>>>() {
        *out = result.take();
    }
}

/// Sends the packet back when the serving task ends, however it ends.
struct Serving<M: 'static, R: 'static>
where
    Task<M, R>: Packet,
{
    packet: Option<Box<Task<M, R>>>,
    state: Rc<ShardState>,
}

impl<M: 'static, R: 'static> Serving<M, R>
where
    Task<M, R>: Packet,
{
    fn finish(&mut self, result: Result<R, CallError>) {
        if let Some(mut packet) = self.packet.take() {
            packet.result = Some(result);
            self.state.end_served(packet.header.caller, packet.header.slot);
            self.state.answer(packet);
        }
    }
}

impl<M: 'static, R: 'static> Drop for Serving<M, R>
where
    Task<M, R>: Packet,
{
    fn drop(&mut self) {
        let error = match self.state.is_closing() {
            true => CallError::Gone,
            false => CallError::Cancelled,
        };
        self.finish(Err(error));
    }
}

impl<M, R> PeerMessage for Ask<M, R>
where
    M: FnOnce() -> Result<R, CallError> + Send + 'static,
    R: Send + 'static,
{
    fn link(&mut self) -> Option<&mut Link> {
        Some(&mut self.header.link)
    }

    fn deliver(self: Box<Self>, core: &LoopCore) {
        deliver(self, core);
    }

    fn undelivered(self: Box<Self>) {
        undelivered(self);
    }
}

impl<M, F, R> PeerMessage for Task<M, R>
where
    M: FnOnce() -> F + Send + 'static,
    F: Future<Output = Result<R, CallError>> + 'static,
    R: Send + 'static,
{
    fn link(&mut self) -> Option<&mut Link> {
        Some(&mut self.header.link)
    }

    fn deliver(self: Box<Self>, core: &LoopCore) {
        deliver(self, core);
    }

    fn undelivered(self: Box<Self>) {
        undelivered(self);
    }
}

fn deliver(packet: Box<dyn Packet>, core: &LoopCore) {
    match ShardState::of(core) {
        Some(state) if packet.header().is_answer => state.complete(packet),
        Some(state) => state.receive(packet, core),
        None => drop(packet),
    }
}

fn undelivered(mut packet: Box<dyn Packet>) {
    match ShardState::current() {
        Some(state) if !packet.header().is_answer => {
            if state.is_closing() && state.shared().has(Defect::LostAnswers) {
                return;
            }
            packet.fail(CallError::Gone);
            state.answer(packet);
        }
        // The caller has ended. The values in the packet are `Send`, so they may be dropped here.
        _ => guard("the destructor of a call's value", || drop(packet)),
    }
}
