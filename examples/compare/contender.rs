//! The contenders: their names, and which of them run on this machine.

use std::io;
use std::sync::OnceLock;

use windlass::{Builder, DriverChoice};

use super::python::Python;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// windlass' counterpart of asyncio's selector loop.
    Reactor,
    Proactor,
    /// A minimal epoll loop. Its sleep is epoll_pwait2(2), which takes nanoseconds (Linux 5.11), with a
    /// timer slack of 1 ns.
    Epoll,
    /// A minimal io_uring loop, with one-shot operations.
    Uring,
    /// The same with multishot operations, a buffer ring and direct descriptors.
    UringMultishot,
    Asyncio,
    Uvloop,
    /// A bare system call, the lower bound for sleeps. It is not a server.
    Kernel,
}

impl Kind {
    pub(crate) const ALL: [Kind; 8] = [
        Kind::Reactor,
        Kind::Proactor,
        Kind::Epoll,
        Kind::Uring,
        Kind::UringMultishot,
        Kind::Asyncio,
        Kind::Uvloop,
        Kind::Kernel,
    ];

    /// For the command line and for programs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Reactor => "reactor",
            Kind::Proactor => "proactor",
            Kind::Epoll => "epoll",
            Kind::Uring => "uring",
            Kind::UringMultishot => "uring-multishot",
            Kind::Asyncio => "asyncio",
            Kind::Uvloop => "uvloop",
            Kind::Kernel => "kernel",
        }
    }

    /// For people. A windlass driver names its kernel interface.
    pub(crate) fn title(self) -> &'static str {
        static REACTOR: OnceLock<String> = OnceLock::new();
        static PROACTOR: OnceLock<String> = OnceLock::new();
        let named = |driver: DriverChoice| match Builder::new().driver(driver).build() {
            Ok(event_loop) => format!("windlass {driver:?} ({})", event_loop.describe().name),
            Err(_) => format!("windlass {driver:?}"),
        };
        match self {
            Kind::Reactor => REACTOR.get_or_init(|| named(DriverChoice::Reactor)),
            Kind::Proactor => PROACTOR.get_or_init(|| named(DriverChoice::Proactor)),
            Kind::Epoll => "hand-written epoll",
            Kind::Uring => "hand-written io_uring",
            Kind::UringMultishot => "hand-written io_uring, multishot",
            Kind::Asyncio => "asyncio SelectorEventLoop",
            Kind::Uvloop => "uvloop",
            Kind::Kernel => "the kernel alone (nanosleep, timer slack 1 ns)",
        }
    }

    pub(crate) fn driver(self) -> Option<DriverChoice> {
        match self {
            Kind::Reactor => Some(DriverChoice::Reactor),
            Kind::Proactor => Some(DriverChoice::Proactor),
            _ => None,
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Kind, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or(format!("unknown contender '{name}'"))
    }
}

/// The contenders that run on this machine.
pub(crate) struct Field {
    kinds: Vec<Kind>,
    pub(crate) python: Option<Python>,
}

impl Field {
    /// Tries each contender once, and records why one is missing.
    pub(crate) fn probe(python: Option<Python>, missing: &mut Vec<String>) -> Field {
        let mut kinds = Vec::new();
        for kind in Kind::ALL {
            let tried = match kind {
                Kind::Reactor | Kind::Proactor => try_driver(kind),
                Kind::Uring | Kind::UringMultishot => try_ring(),
                Kind::Epoll | Kind::Kernel => Ok(true),
                // The search for Python has recorded why it is missing.
                Kind::Asyncio => Ok(python.is_some()),
                Kind::Uvloop => Ok(python.as_ref().is_some_and(|python| python.uvloop.is_some())),
            };
            match tried {
                Ok(true) => kinds.push(kind),
                Ok(false) => {}
                Err(error) => missing.push(format!("{}: {error}", kind.title())),
            }
        }
        Field { kinds, python }
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = Kind> {
        self.kinds.iter().copied().filter(|kind| *kind != Kind::Kernel)
    }

    pub(crate) fn sleepers(&self) -> impl Iterator<Item = Kind> {
        // Both io_uring loops sleep in the same way.
        self.kinds.iter().copied().filter(|kind| *kind != Kind::UringMultishot)
    }

    /// The contenders with tasks, which can block the loop.
    pub(crate) fn runtimes(&self) -> impl Iterator<Item = Kind> {
        let has_tasks = |kind: &Kind| matches!(kind, Kind::Reactor | Kind::Proactor | Kind::Asyncio | Kind::Uvloop);
        self.kinds.iter().copied().filter(has_tasks)
    }
}

fn try_driver(kind: Kind) -> io::Result<bool> {
    match kind.driver() {
        Some(driver) => Builder::new().driver(driver).build().map(|_| true),
        None => Ok(false),
    }
}

#[cfg(feature = "proactor")]
fn try_ring() -> io::Result<bool> {
    super::kit::hand_uring::ring(1).map(|_| true)
}

#[cfg(not(feature = "proactor"))]
fn try_ring() -> io::Result<bool> {
    Err(io::Error::other("built without the feature proactor"))
}
