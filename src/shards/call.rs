//! `Call`, the future of a call to another shard.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::MAX_HOPS;
use super::error::CallError;
use super::packet::{Packet, StartLimit};
use super::shard::Shard;
use super::state::{ShardState, current_hop};
use crate::error::LoopClosed;
use crate::event_loop::handle::RemoteHandle;
use crate::sync::{Closed, OwnedPermit};
use crate::task::{WaitReason, set_wait_reason};
use crate::time::{Instant, Sleep, sleep};

/// A call to a shard, from [`Shard::call`] or [`Shard::ask`]: resolves to its result. It is sent when it is first polled.
/// Dropping it cancels it.
#[must_use = "a call is sent when it is awaited"]
pub struct Call<R> {
    target: Shard,
    start_within: Option<Duration>,
    /// As if from outside of the pool: it takes no unit.
    is_unlimited: bool,
    state: State,
    result: PhantomData<fn() -> R>,
}

enum State {
    New {
        packet: Box<dyn Packet>,
        /// The unit that it has already, and its class.
        unit: Option<(OwnedPermit, u8)>,
    },
    /// All units of its class are in use.
    Waiting {
        state: Rc<ShardState>,
        packet: Box<dyn Packet>,
        unit: Pin<Box<dyn Future<Output = Result<OwnedPermit, Closed>>>>,
        limit: Option<Sleep>,
    },
    Sent {
        state: Rc<ShardState>,
        slot: usize,
    },
    /// On the caller's own shard.
    Here(Pin<Box<dyn Future<Output = Box<dyn Packet>>>>),
    /// From outside of the pool.
    Foreign(RemoteHandle<Box<dyn Packet>>),
    Done,
}

impl<R: 'static> Call<R> {
    pub(super) fn new(target: Shard, packet: Box<dyn Packet>) -> Call<R> {
        Call {
            target,
            start_within: None,
            is_unlimited: false,
            state: State::New { packet, unit: None },
            result: PhantomData,
        }
    }

    /// The unit that the call needs, and its class, if it was acquired before.
    pub(super) fn with_unit(mut self, acquired: Option<(OwnedPermit, u8)>) -> Call<R> {
        if let State::New { unit, .. } = &mut self.state {
            *unit = acquired;
        }
        self
    }

    /// For diagnostics: the call waits for no other calls, and its answer arrives also while the pool ends.
    pub(super) fn unlimited(mut self) -> Call<R> {
        self.is_unlimited = true;
        self
    }

    /// The call fails with [`CallError::Late`] if it has not started on the shard this long after it was first polled. It is
    /// then never started, so a caller that has given up causes no work.
    ///
    /// Once the call is sent, the shard checks this, not the caller: a shard that is stuck answers when it continues. A call
    /// that has started is not limited. If the caller must not wait longer, it uses [`timeout`](crate::time::timeout) as well.
    pub fn start_within(mut self, limit: Duration) -> Call<R> {
        self.start_within = Some(limit);
        self
    }

    /// The first poll: runs the call here, or sends it, or waits for a unit.
    fn begin(&self, mut packet: Box<dyn Packet>, unit: Option<(OwnedPermit, u8)>, cx: &mut Context<'_>) -> Begun {
        let Some(state) = ShardState::current_of(self.target.shared()) else {
            return self.begin_outside(packet);
        };
        if state.index == self.target.index() {
            return match packet.run_now() {
                true => Begun::Ended(packet),
                false => Begun::Goes(State::Here(packet.run_here())),
            };
        }
        if self.is_unlimited {
            return self.begin_outside(packet);
        }
        // A call belongs to the class of its unit, also if another task awaits it.
        let hop = unit.as_ref().map_or_else(current_hop, |&(_, hop)| hop);
        if usize::from(hop) >= MAX_HOPS || state.refuses_calls.get() {
            packet.fail(match state.refuses_calls.get() {
                true => CallError::Gone,
                false => CallError::TooDeep,
            });
            return Begun::Ended(packet);
        }
        let header = packet.header_mut();
        header.hop = hop;
        header.limit = self.start_within.map(|within| {
            let by = Instant::now() + within;
            Box::new(StartLimit { within, by })
        });
        let unit = match unit {
            Some((unit, _)) => Ok(unit),
            None => state.units(self.target.index(), hop).clone().try_acquire_owned(),
        };
        Begun::Goes(match unit {
            Ok(unit) => self.send(state, packet, unit, cx),
            Err(_) => {
                state.note_unit_wait();
                let units = state.units(self.target.index(), hop).clone();
                State::Waiting {
                    state,
                    packet,
                    unit: Box::pin(units.acquire_owned()),
                    limit: self.start_within.map(sleep),
                }
            }
        })
    }

    /// A call from outside of the pool.
    fn begin_outside(&self, mut packet: Box<dyn Packet>) -> Begun {
        let Some(handle) = self.target.handle().filter(|handle| !handle.is_closed()) else {
            packet.fail(CallError::Gone);
            return Begun::Ended(packet);
        };
        // A deadline beyond the range of the clock is none.
        let start_by = self
            .start_within
            .and_then(|limit| std::time::Instant::now().checked_add(limit));
        let run = move || async move {
            if start_by.is_some_and(|start_by| std::time::Instant::now() > start_by) {
                packet.fail(CallError::Late);
                return packet;
            }
            packet.run_here().await
        };
        match handle.spawn_with(run) {
            Ok(handle) => Begun::Goes(State::Foreign(handle)),
            // It has closed since.
            Err(LoopClosed) => Begun::Gone,
        }
    }

    fn send(&self, state: Rc<ShardState>, packet: Box<dyn Packet>, unit: OwnedPermit, cx: &mut Context<'_>) -> State {
        let slot = state.send(self.target.index(), packet, unit, cx);
        State::Sent { state, slot }
    }

    fn note_wait(&self) {
        let shard = self.target.index() as u32;
        set_wait_reason(WaitReason::Call {
            shard,
            hop: current_hop(),
        });
    }
}

/// How a call begins.
enum Begun {
    Goes(State),
    Ended(Box<dyn Packet>),
    Gone,
}

impl<R: 'static> Future for Call<R> {
    type Output = Result<R, CallError>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let packet = loop {
            match std::mem::replace(&mut this.state, State::Done) {
                State::New { packet, unit } => match this.begin(packet, unit, cx) {
                    Begun::Goes(state) => this.state = state,
                    Begun::Ended(packet) => break packet,
                    Begun::Gone => return Poll::Ready(Err(CallError::Gone)),
                },
                State::Waiting {
                    state,
                    packet,
                    mut unit,
                    mut limit,
                } => match unit.as_mut().poll(cx) {
                    Poll::Ready(Ok(_)) if state.refuses_calls.get() => return Poll::Ready(Err(CallError::Gone)),
                    Poll::Ready(Ok(unit)) => this.state = this.send(state, packet, unit, cx),
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(CallError::Gone)),
                    Poll::Pending => {
                        if limit.as_mut().is_some_and(|limit| Pin::new(limit).poll(cx).is_ready()) {
                            return Poll::Ready(Err(CallError::Late));
                        }
                        this.state = State::Waiting {
                            state,
                            packet,
                            unit,
                            limit,
                        };
                        this.note_wait();
                        return Poll::Pending;
                    }
                },
                State::Sent { state, slot } => match state.poll_answer(this.target.index(), slot, cx) {
                    Poll::Ready(packet) => break packet,
                    Poll::Pending => {
                        this.state = State::Sent { state, slot };
                        this.note_wait();
                        return Poll::Pending;
                    }
                },
                State::Here(mut work) => match work.as_mut().poll(cx) {
                    Poll::Ready(packet) => break packet,
                    Poll::Pending => {
                        this.state = State::Here(work);
                        return Poll::Pending;
                    }
                },
                State::Foreign(mut handle) => match Pin::new(&mut handle).poll(cx) {
                    Poll::Ready(Ok(packet)) => break packet,
                    // The work's panics are results, so the loop has closed.
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(CallError::Gone)),
                    Poll::Pending => {
                        this.state = State::Foreign(handle);
                        return Poll::Pending;
                    }
                },
                State::Done => panic!("a call was polled after it had returned its result"),
            }
        };
        let (mut packet, mut result) = (packet, None::<Result<R, CallError>>);
        packet.take_result(&mut result);
        Poll::Ready(result.expect("a call that has ended has a result"))
    }
}

impl<R> Drop for Call<R> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Sent { state, slot } => state.abandon(self.target.index(), slot),
            State::Foreign(handle) => handle.cancel(),
            State::New { .. } | State::Waiting { .. } | State::Here(_) | State::Done => {}
        }
    }
}

impl<R> fmt::Debug for Call<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::New { .. } => "new",
            State::Waiting { .. } => "waiting",
            State::Sent { .. } | State::Here(_) | State::Foreign(_) => "running",
            State::Done => "done",
        };
        f.debug_struct("Call")
            .field("shard", &self.target.index())
            .field("state", &state)
            .finish()
    }
}
