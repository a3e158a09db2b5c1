//! A running child on Unix: waiting for its exit, and reaping it after its handle is dropped.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::Location;
use std::process::ExitStatus;
use std::rc::Rc;

use super::extras::Extras;
use super::orphan_reaper::{self, OrphanedChild};
use crate::error::LoopClosed;
use crate::event_loop::core::LoopCore;
use crate::io::AsyncFd;
use crate::signal::{Signal, SignalKind, signal};
use crate::sys;
use crate::task::spawn_on;

pub(super) struct Running {
    core: Rc<LoopCore>,
    pub(super) child: std::process::Child,
    exit_event: ExitEvent,
}

/// The event after which the child may have exited.
enum ExitEvent {
    /// Its pidfd is readable.
    Descriptor(AsyncFd<OwnedFd>),
    /// `SIGCHLD`: some child of this process has exited.
    Signal(Signal),
}

impl ExitEvent {
    fn of(child: &std::process::Child) -> io::Result<ExitEvent> {
        // The child was not reaped, so the process ID is its own.
        match sys::processes::descriptor_of(child.id()) {
            Ok(descriptor) => AsyncFd::new(descriptor).map(ExitEvent::Descriptor),
            // An old kernel, another system, a sandbox, or no free descriptor; a signal listener needs at most two.
            Err(_) => signal(SignalKind::child()).map(ExitEvent::Signal),
        }
    }

    async fn wait(&mut self) -> io::Result<()> {
        match self {
            ExitEvent::Descriptor(descriptor) => descriptor.readable().await,
            ExitEvent::Signal(signal) => signal.recv().await.ok_or_else(|| LoopClosed.into()),
        }
    }
}

impl Running {
    /// If the loop cannot wait for the child, it is killed.
    pub(super) fn new(core: &LoopCore, mut child: std::process::Child, _extras: Extras) -> io::Result<Running> {
        match ExitEvent::of(&child) {
            Ok(exit_event) => Ok(Running {
                core: core.rc(),
                child,
                exit_event,
            }),
            Err(error) => {
                let _ = child.kill();
                orphan_reaper::adopt(OrphanedChild {
                    child,
                    descriptor: None,
                });
                Err(error)
            }
        }
    }

    /// Whether this process was forked from the one that started the child, and so is not its parent.
    pub(super) fn is_forked(&self) -> bool {
        self.core.is_forked()
    }

    pub(super) fn send_signal(&self, number: i32) -> io::Result<()> {
        // The child was not reaped, so the process ID is its own.
        sys::processes::send_signal(self.child.id(), number)
    }

    /// Waits for the exit. Checks first, because the event may have come before this call.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            self.exit_event.wait().await?;
        }
    }

    /// Called when the handle is dropped: a task of the loop reaps the child.
    #[track_caller]
    pub(super) fn detach(mut self) {
        if self.is_forked() {
            return;
        }
        // An error means that other code has reaped the child.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let core = self.core.clone();
        let name = format!("reaper of child {}", self.child.id()).into_boxed_str();
        let child = HandlelessChild(Some(self));
        if core.is_closed() {
            return;
        }
        let reap = reap(child);
        drop(spawn_on(&core, reap, Some(name), Location::caller()));
    }
}

/// The task that reaps a child without a handle.
async fn reap(mut child: HandlelessChild) {
    if let Some(running) = &mut child.0
        && running.wait().await.is_ok()
    {
        drop(child.0.take());
    }
}

/// A child without a handle. If the loop ends first, the orphan reaper takes it.
struct HandlelessChild(Option<Running>);

impl Drop for HandlelessChild {
    fn drop(&mut self) {
        if let Some(Running { child, exit_event, .. }) = self.0.take() {
            let descriptor = match exit_event {
                ExitEvent::Descriptor(descriptor) => Some(descriptor.into_inner()),
                ExitEvent::Signal(_) => None,
            };
            orphan_reaper::adopt(OrphanedChild { child, descriptor });
        }
    }
}
