//! A child that was not yet seen to end: how its end is heard of, and who inherits it.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::Location;
use std::process::ExitStatus;
use std::rc::Rc;

use super::extras::Extras;
use super::orphan_reaper::{self, OrphanedChild};
use crate::event_loop::core::LoopCore;
use crate::io::AsyncFd;
use crate::signal::{Signal, SignalKind, signal};
use crate::sys;
use crate::task::spawn_unchecked;

pub(super) struct Running {
    core: Rc<LoopCore>,
    child: std::process::Child,
    news: News,
}

/// What says that the child may have ended.
enum News {
    /// Its own descriptor.
    Descriptor(AsyncFd<OwnedFd>),
    /// Some child of this process has.
    Signal(Signal),
}

impl News {
    fn of(child: &std::process::Child) -> io::Result<News> {
        // Nobody has waited for the child, so the number is its own.
        match sys::processes::descriptor_of(child.id()) {
            Ok(descriptor) => AsyncFd::new(descriptor).map(News::Descriptor),
            // An old kernel, another system, a sandbox; or no descriptor is left, of which the signal needs at most two.
            Err(_) => signal(SignalKind::child()).map(News::Signal),
        }
    }

    /// Waits for news.
    async fn come(&mut self) -> io::Result<()> {
        match self {
            News::Descriptor(descriptor) => descriptor.readable().await,
            News::Signal(signal) => match signal.recv().await {
                Some(()) => Ok(()),
                None => Err(crate::error::LoopClosed.into()),
            },
        }
    }
}

impl Running {
    /// If its end could not be heard of, the child is killed.
    pub(super) fn new(core: &LoopCore, mut child: std::process::Child, _extras: Extras) -> io::Result<Running> {
        match News::of(&child) {
            Ok(news) => Ok(Running {
                core: core.rc(),
                child,
                news,
            }),
            Err(error) => {
                let _ = child.kill();
                orphan_reaper::inherit(OrphanedChild::new(child, None));
                Err(error)
            }
        }
    }

    /// Whether this process is a fork of the one that started the child, which is not this one's then.
    pub(super) fn is_forked(&self) -> bool {
        self.core.is_forked()
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    pub(super) fn send_signal(&self, number: i32) -> io::Result<()> {
        // Nobody has waited for the child, so the number is its own.
        sys::processes::send_signal(self.child.id(), number)
    }

    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the end. Looking comes first: the news may have come before anybody waited for it.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            self.news.come().await?;
        }
    }

    /// The handle is gone: the loop waits for the end.
    #[track_caller]
    pub(super) fn leave_behind(mut self) {
        if self.is_forked() {
            return;
        }
        // An error means that somebody else has waited for it, so there is nothing left to wait for.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let core = self.core.clone();
        let inheritance = Inheritance(Some(self));
        if core.is_closed() {
            return;
        }
        let name = format!("reaper of child {}", inheritance.id()).into_boxed_str();
        let reap = reap(inheritance);
        // SAFETY: the future is `'static`: it borrows nothing that could end.
        drop(unsafe { spawn_unchecked(&core, reap, Some(name), Location::caller()) });
    }
}

/// The task that inherits a child.
async fn reap(mut inheritance: Inheritance) {
    if let Some(running) = &mut inheritance.0
        && running.ended().await.is_ok()
    {
        drop(inheritance.0.take());
    }
}

/// A child without a handle. If the loop ends first, it passes to the thread for those.
struct Inheritance(Option<Running>);

impl Inheritance {
    fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Running::id)
    }
}

impl Drop for Inheritance {
    fn drop(&mut self) {
        if let Some(Running { child, news, .. }) = self.0.take() {
            let descriptor = match news {
                News::Descriptor(descriptor) => Some(descriptor.into_inner()),
                News::Signal(_) => None,
            };
            orphan_reaper::inherit(OrphanedChild::new(child, descriptor));
        }
    }
}
