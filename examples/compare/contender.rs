//! Who is compared: the names, and who of them can be had here.

use std::io;
use std::sync::OnceLock;

use windlass::{Builder, DriverChoice};

use super::python::Python;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What asyncio calls a selector.
    Reactor,
    Proactor,
    /// The least that epoll can do. Its sleep is epoll_pwait2(2), which takes nanoseconds (Linux 5.11), with a
    /// timer slack of 1 ns.
    Epoll,
    /// The least that io_uring can do, with one-shot operations.
    Uring,
    /// The same with everything that the kernel has.
    UringMultishot,
    Asyncio,
    Uvloop,
    /// A system call alone, which no loop can beat by much. It sleeps, and serves nobody.
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

    /// For people. A driver says by itself what it stands on.
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
            Kind::Epoll => "epoll by hand",
            Kind::Uring => "io_uring by hand",
            Kind::UringMultishot => "io_uring by hand, multishot",
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
        found.ok_or(format!("nobody here is called '{name}'"))
    }
}

/// Who takes part.
pub(crate) struct Field {
    kinds: Vec<Kind>,
    pub(crate) python: Option<Python>,
}

impl Field {
    /// Tries everybody once, and notes who cannot be had.
    pub(crate) fn look(python: Option<Python>, missing: &mut Vec<String>) -> Field {
        let mut kinds = Vec::new();
        for kind in Kind::ALL {
            let tried = match kind {
                Kind::Reactor | Kind::Proactor => try_driver(kind),
                Kind::Uring | Kind::UringMultishot => try_ring(),
                Kind::Epoll | Kind::Kernel => Ok(true),
                // Why there is none was noted by who looked for it.
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
        // Both ways of io_uring sleep alike.
        self.kinds.iter().copied().filter(|kind| *kind != Kind::UringMultishot)
    }

    /// Those with tasks that can be stalled.
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
    super::kit::hand_uring::ring().map(|_| true)
}

#[cfg(not(feature = "proactor"))]
fn try_ring() -> io::Result<bool> {
    Err(io::Error::other("built without the feature proactor"))
}
