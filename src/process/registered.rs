//! A child that was not yet seen to end, on Windows: how its end is heard of.
//!
//! A process is gone with its last handle, so a child without a handle of ours needs nobody to wait for it.

use std::future::poll_fn;
use std::io;
use std::os::windows::io::AsHandle;
use std::process::ExitStatus;

use super::extras::Extras;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;
use crate::sys::processes::{EndWait, send_ctrl_break};
use crate::task::{WaitReason, set_wait_reason};

pub(super) struct Running {
    pub(super) child: std::process::Child,
    /// Made by who first waits, and kept for who waits again.
    wait: Option<EndWait>,
    extras: Extras,
}

impl Running {
    pub(super) fn new(_core: &LoopCore, child: std::process::Child, extras: Extras) -> io::Result<Running> {
        let wait = None;
        Ok(Running { child, wait, extras })
    }

    /// Windows has no fork.
    pub(super) fn is_forked(&self) -> bool {
        false
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    pub(super) fn send_ctrl_break(&self) -> io::Result<()> {
        if !self.extras.leads_a_group() {
            let why = "a child that does not lead a process group shares ours: see Command::creation_flags";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // We have a handle of the child, so the number is its own.
        send_ctrl_break(self.child.id())
    }

    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the end.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        let wait = match self.wait.take() {
            Some(wait) => wait,
            None => EndWait::of(self.child.as_handle(), |waker| guard("a waker", || waker.wake()))?,
        };
        // Nobody is woken for a future that is gone.
        let waiting = Waiting(self.wait.insert(wait));
        poll_fn(|cx| {
            let polled = waiting.0.poll(cx);
            if polled.is_pending() {
                set_wait_reason(WaitReason::Named("a child's end"));
            }
            polled
        })
        .await;
        drop(waiting);
        // It has ended, so this does not block.
        self.child.wait()
    }

    /// The handle is gone, and with it all that we have of the child.
    pub(super) fn leave_behind(self) {}
}

/// Takes the waker along when a wait ends.
struct Waiting<'a>(&'a EndWait);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.forget_waker();
    }
}
