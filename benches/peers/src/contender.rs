//! The contenders, and the workloads they take part in.

use std::io;

use ::windlass::DriverChoice;

use crate::compio::Compio;
use crate::glommio::Glommio;
use crate::kit::{hand_epoll, hand_uring};
use crate::monoio::Monoio;
use crate::plan::{Job, Workload};
use crate::runtime::Runtime;
use crate::smol::Smol;
use crate::tokio::Tokio;
use crate::windlass::{DEFAULTS, EAGER, NO_BUSY_POLL, PRECISE, Proactor, Reactor};
use crate::{hand, work};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Epoll,
    Uring,
    UringMultishot,
    Pread,
    Tokio,
    Compio,
    Monoio,
    Glommio,
    Smol,
    Proactor,
    Reactor,
    /// With precise timers.
    ProactorPrecise,
    ReactorPrecise,
    /// Without busy-polling.
    ProactorNoBusyPoll,
    ReactorNoBusyPoll,
    /// With eager tasks.
    ProactorEager,
    ReactorEager,
}

impl Contender {
    pub(crate) const ALL: [Contender; 17] = [
        Contender::Epoll,
        Contender::Uring,
        Contender::UringMultishot,
        Contender::Pread,
        Contender::Tokio,
        Contender::Compio,
        Contender::Monoio,
        Contender::Glommio,
        Contender::Smol,
        Contender::Proactor,
        Contender::Reactor,
        Contender::ProactorPrecise,
        Contender::ReactorPrecise,
        Contender::ProactorNoBusyPoll,
        Contender::ReactorNoBusyPoll,
        Contender::ProactorEager,
        Contender::ReactorEager,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Contender::Epoll => "epoll",
            Contender::Uring => "uring",
            Contender::UringMultishot => "uring-multishot",
            Contender::Pread => "pread",
            Contender::Tokio => "tokio",
            Contender::Compio => "compio",
            Contender::Monoio => "monoio",
            Contender::Glommio => "glommio",
            Contender::Smol => "smol",
            Contender::Proactor => "proactor",
            Contender::Reactor => "reactor",
            Contender::ProactorPrecise => "proactor-precise",
            Contender::ReactorPrecise => "reactor-precise",
            Contender::ProactorNoBusyPoll => "proactor-no-busy-poll",
            Contender::ReactorNoBusyPoll => "reactor-no-busy-poll",
            Contender::ProactorEager => "proactor-eager",
            Contender::ReactorEager => "reactor-eager",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Contender::Epoll => "hand-written epoll",
            Contender::Uring => "hand-written io_uring",
            Contender::UringMultishot => "hand-written io_uring, multishot",
            Contender::Pread => "plain pread",
            Contender::Proactor => "windlass proactor",
            Contender::Reactor => "windlass reactor",
            Contender::ProactorPrecise => "windlass proactor, precise",
            Contender::ReactorPrecise => "windlass reactor, precise",
            Contender::ProactorNoBusyPoll => "windlass proactor, no busy-polling",
            Contender::ReactorNoBusyPoll => "windlass reactor, no busy-polling",
            Contender::ProactorEager => "windlass proactor, eager",
            Contender::ReactorEager => "windlass reactor, eager",
            peer => peer.name(),
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Contender, String> {
        let found = Contender::ALL.into_iter().find(|contender| contender.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = Contender::ALL.iter().map(|contender| contender.name()).collect();
            format!("unknown contender '{name}': choose one of {}", names.join(", "))
        })
    }

    /// A hand-written loop: the lower bound.
    pub(crate) fn is_hand(self) -> bool {
        use Contender::*;
        matches!(self, Epoll | Uring | UringMultishot | Pread)
    }

    /// Waits for readiness with epoll; the others wait for completions of io_uring. Plain `pread` does neither.
    fn uses_epoll(self) -> Option<bool> {
        use Contender::*;
        match self {
            Pread => None,
            Epoll | Tokio | Smol | Reactor | ReactorPrecise | ReactorNoBusyPoll | ReactorEager => Some(true),
            Uring | UringMultishot | Compio | Monoio | Glommio => Some(false),
            Proactor | ProactorPrecise | ProactorNoBusyPoll | ProactorEager => Some(false),
        }
    }

    /// A hand-written loop on the same interface of the kernel as `other`.
    pub(crate) fn is_hand_of_kind(self, other: Contender) -> bool {
        self.is_hand() && (self.uses_epoll().is_none() || self.uses_epoll() == other.uses_epoll())
    }

    /// Another runtime.
    pub(crate) fn is_peer(self) -> bool {
        use Contender::*;
        matches!(self, Tokio | Compio | Monoio | Glommio | Smol)
    }

    /// A hand-written loop has no tasks and no timers; it takes part where it can do the same work. A setting of
    /// windlass takes part where it matters.
    pub(crate) fn takes_part(self, workload: Workload, job: &Job) -> bool {
        use Contender::*;
        match job {
            // windlass with and without busy-polling shows its cost; the others are for comparison.
            Job::Paced { .. } => {
                return matches!(
                    self,
                    Epoll | Uring | Tokio | Proactor | ProactorNoBusyPoll | Reactor | ReactorNoBusyPoll
                );
            }
            // Its receives could overtake its sends if a connection had several requests in flight.
            Job::Echo { shape, .. } if shape.in_flight > 1 && self == UringMultishot => return false,
            _ => {}
        }
        self.is_in(workload)
    }

    fn is_in(self, workload: Workload) -> bool {
        use Workload::*;
        match self {
            Contender::Epoll => matches!(workload, Echo | Timers | Wake | Memory | Instructions),
            Contender::Uring => matches!(workload, Echo | Timers | Files | Memory | Instructions),
            Contender::UringMultishot => matches!(workload, Echo | Memory | Instructions),
            Contender::Pread => workload == Files,
            Contender::ProactorPrecise | Contender::ReactorPrecise => workload == Timers,
            Contender::ProactorEager | Contender::ReactorEager => workload == Tasks,
            Contender::ProactorNoBusyPoll | Contender::ReactorNoBusyPoll => false,
            _ => true,
        }
    }

    pub(crate) fn driver(self) -> Option<DriverChoice> {
        use Contender::*;
        match self {
            Proactor | ProactorPrecise | ProactorNoBusyPoll | ProactorEager => Some(DriverChoice::Proactor),
            Reactor | ReactorPrecise | ReactorNoBusyPoll | ReactorEager => Some(DriverChoice::Reactor),
            _ => None,
        }
    }

    /// The crate whose version is printed.
    fn package(self) -> Option<&'static str> {
        match self {
            Contender::Epoll | Contender::Pread => None,
            Contender::Uring | Contender::UringMultishot => Some("io-uring"),
            peer if peer.is_peer() => Some(peer.name()),
            _ => Some("windlass"),
        }
    }

    /// The version from the lock file of this build.
    pub(crate) fn version(self) -> &'static str {
        const LOCK: &str = include_str!("../Cargo.lock");
        let Some(package) = self.package() else {
            return "";
        };
        // monoio depends on an older io-uring; the last version in the file is ours.
        let start = LOCK.rfind(&format!("name = \"{package}\"\nversion = \""));
        let version = start.and_then(|start| LOCK[start..].lines().nth(1));
        version.and_then(|line| line.split('"').nth(1)).unwrap_or("")
    }

    pub(crate) fn settings(self) -> &'static str {
        match self {
            Contender::Epoll => {
                "epoll_wait, level-triggered, one recv and one send; sleeps: epoll_pwait2, timer slack 1 ns; wakes: an eventfd"
            }
            Contender::Uring => "single_issuer, defer_taskrun; one-shot operations, a buffer per connection",
            Contender::UringMultishot => {
                "the same with multishot accepts and receives, a ring of buffers of 8 KiB (256 as windlass, or one per connection if \
                 these are more), direct descriptors"
            }
            Contender::Pread => "the plain system call, one thread",
            Contender::Tokio => Tokio::SETTINGS,
            Contender::Compio => Compio::SETTINGS,
            Contender::Monoio => Monoio::SETTINGS,
            Contender::Glommio => Glommio::SETTINGS,
            Contender::Smol => Smol::SETTINGS,
            Contender::Proactor | Contender::Reactor => Proactor::<DEFAULTS>::SETTINGS,
            Contender::ProactorPrecise | Contender::ReactorPrecise => Proactor::<PRECISE>::SETTINGS,
            Contender::ProactorNoBusyPoll | Contender::ReactorNoBusyPoll => Proactor::<NO_BUSY_POLL>::SETTINGS,
            Contender::ProactorEager | Contender::ReactorEager => Proactor::<EAGER>::SETTINGS,
        }
    }

    /// Runs the echo server until killed. The first line on standard output is the port. The hand-written servers on
    /// io_uring size their rings for this many connections; the runtimes have their default sizes.
    pub(crate) fn serve(self, connections: usize) -> io::Result<()> {
        match self {
            Contender::Epoll => hand_epoll::serve(),
            Contender::Uring => hand_uring::serve(connections),
            Contender::UringMultishot => hand_uring::serve_multishot(connections),
            Contender::Pread => Err(io::Error::other("plain pread is not a server")),
            Contender::Tokio => serve::<Tokio>(),
            Contender::Compio => serve::<Compio>(),
            Contender::Monoio => serve::<Monoio>(),
            Contender::Glommio => serve::<Glommio>(),
            Contender::Smol => serve::<Smol>(),
            Contender::Proactor => serve::<Proactor<DEFAULTS>>(),
            Contender::Reactor => serve::<Reactor<DEFAULTS>>(),
            Contender::ProactorPrecise => serve::<Proactor<PRECISE>>(),
            Contender::ReactorPrecise => serve::<Reactor<PRECISE>>(),
            Contender::ProactorNoBusyPoll => serve::<Proactor<NO_BUSY_POLL>>(),
            Contender::ReactorNoBusyPoll => serve::<Reactor<NO_BUSY_POLL>>(),
            Contender::ProactorEager => serve::<Proactor<EAGER>>(),
            Contender::ReactorEager => serve::<Reactor<EAGER>>(),
        }
    }

    /// Measures in this process, and returns the figures in the order of the table's columns.
    pub(crate) fn work(self, task: &work::Task) -> io::Result<Vec<f64>> {
        match self {
            Contender::Epoll | Contender::Uring | Contender::UringMultishot | Contender::Pread => {
                hand::work(self, task)
            }
            Contender::Tokio => work::run::<Tokio>(task),
            Contender::Compio => work::run::<Compio>(task),
            Contender::Monoio => work::run::<Monoio>(task),
            Contender::Glommio => work::run::<Glommio>(task),
            Contender::Smol => work::run::<Smol>(task),
            Contender::Proactor => work::run::<Proactor<DEFAULTS>>(task),
            Contender::Reactor => work::run::<Reactor<DEFAULTS>>(task),
            Contender::ProactorPrecise => work::run::<Proactor<PRECISE>>(task),
            Contender::ReactorPrecise => work::run::<Reactor<PRECISE>>(task),
            Contender::ProactorNoBusyPoll => work::run::<Proactor<NO_BUSY_POLL>>(task),
            Contender::ReactorNoBusyPoll => work::run::<Reactor<NO_BUSY_POLL>>(task),
            Contender::ProactorEager => work::run::<Proactor<EAGER>>(task),
            Contender::ReactorEager => work::run::<Reactor<EAGER>>(task),
        }
    }
}

fn serve<R: Runtime>() -> io::Result<()> {
    R::run(R::serve())?
}
