//! A running child on Windows. A process object is freed with its last handle, so a dropped child needs no reaping.

use std::future::poll_fn;
use std::io;
use std::os::windows::io::AsHandle;
use std::process::ExitStatus;

use super::extras::Extras;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;
use crate::on_drop::OnDrop;
use crate::sys::processes::{EndWait, send_ctrl_break};
use crate::task::{WaitReason, set_wait_reason};

pub(super) struct Running {
    pub(super) child: std::process::Child,
    /// Registered by the first wait and reused by later ones.
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

    pub(super) fn send_ctrl_break(&self) -> io::Result<()> {
        if !self.extras.leads_a_group() {
            let message = "the child is not in a process group of its own: see Command::creation_flags";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        // We hold a handle of the child, so the process ID is still its own.
        send_ctrl_break(self.child.id())
    }

    /// Waits for the exit.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        let wait = match self.wait.take() {
            Some(wait) => wait,
            None => EndWait::of(self.child.as_handle(), |waker| guard("a waker", || waker.wake()))?,
        };
        let wait = &*self.wait.insert(wait);
        // Also when this future is dropped.
        let forget_waker = OnDrop(|| wait.forget_waker());
        poll_fn(|cx| {
            let polled = wait.poll(cx);
            if polled.is_pending() {
                set_wait_reason(WaitReason::Named(&"a child's end"));
            }
            polled
        })
        .await;
        drop(forget_waker);
        // The child has exited, so this does not block.
        self.child.wait()
    }

    /// Closes the handle.
    pub(super) fn detach(self) {}
}
