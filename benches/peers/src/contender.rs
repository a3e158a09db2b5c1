//! Who takes part, and in what.

use std::io;

use ::windlass::DriverChoice;

use crate::compio::Compio;
use crate::glommio::Glommio;
use crate::kit::{hand_epoll, hand_uring};
use crate::monoio::Monoio;
use crate::plan::{Job, Workload};
use crate::event_loop::builder::Runtime;
use crate::smol::Smol;
use crate::tokio::Tokio;
use crate::windlass::{DEFAULTS, EAGER, NO_LOOKOUT, PRECISE, Proactor, Reactor};
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
    /// Which sleep as soon as there is nothing to do.
    ProactorNoLookout,
    ReactorNoLookout,
    /// Whose tasks begin inside of the call that spawns them.
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
        Contender::ProactorNoLookout,
        Contender::ReactorNoLookout,
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
            Contender::ProactorNoLookout => "proactor-no-lookout",
            Contender::ReactorNoLookout => "reactor-no-lookout",
            Contender::ProactorEager => "proactor-eager",
            Contender::ReactorEager => "reactor-eager",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Contender::Epoll => "epoll by hand",
            Contender::Uring => "io_uring by hand",
            Contender::UringMultishot => "io_uring by hand, multishot",
            Contender::Pread => "pread by hand",
            Contender::Proactor => "windlass proactor",
            Contender::Reactor => "windlass reactor",
            Contender::ProactorPrecise => "windlass proactor, precise",
            Contender::ReactorPrecise => "windlass reactor, precise",
            Contender::ProactorNoLookout => "windlass proactor, lookout off",
            Contender::ReactorNoLookout => "windlass reactor, lookout off",
            Contender::ProactorEager => "windlass proactor, eager",
            Contender::ReactorEager => "windlass reactor, eager",
            peer => peer.name(),
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Contender, String> {
        let found = Contender::ALL.into_iter().find(|contender| contender.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = Contender::ALL.iter().map(|contender| contender.name()).collect();
            format!("no contender is called '{name}': choose of {}", names.join(", "))
        })
    }

    /// A loop by hand: the limit.
    pub(crate) fn is_hand(self) -> bool {
        use Contender::*;
        matches!(self, Epoll | Uring | UringMultishot | Pread)
    }

    /// Another's runtime.
    pub(crate) fn is_peer(self) -> bool {
        use Contender::*;
        matches!(self, Tokio | Compio | Monoio | Glommio | Smol)
    }

    /// A loop by hand has no tasks and no timers; it takes part where it can do the same thing. A setting of windlass takes
    /// part where it matters.
    pub(crate) fn takes_part(self, workload: Workload, job: &Job) -> bool {
        use Contender::*;
        match job {
            // Whether looking out costs anything is told by windlass with and without; the others are to compare with.
            Job::Paced { .. } => {
                return matches!(
                    self,
                    Epoll | Uring | Tokio | Proactor | ProactorNoLookout | Reactor | ReactorNoLookout
                );
            }
            // Its receives overtake its sends where a connection has more than one request in the air.
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
            Contender::ProactorNoLookout | Contender::ReactorNoLookout => false,
            _ => true,
        }
    }

    pub(crate) fn driver(self) -> Option<DriverChoice> {
        use Contender::*;
        match self {
            Proactor | ProactorPrecise | ProactorNoLookout | ProactorEager => Some(DriverChoice::Proactor),
            Reactor | ReactorPrecise | ReactorNoLookout | ReactorEager => Some(DriverChoice::Reactor),
            _ => None,
        }
    }

    /// The crate whose version counts.
    fn package(self) -> Option<&'static str> {
        match self {
            Contender::Epoll | Contender::Pread => None,
            Contender::Uring | Contender::UringMultishot => Some("io-uring"),
            peer if peer.is_peer() => Some(peer.name()),
            _ => Some("windlass"),
        }
    }

    /// As this program was built: the lock file is what the build obeys.
    pub(crate) fn version(self) -> &'static str {
        const LOCK: &str = include_str!("../Cargo.lock");
        let Some(package) = self.package() else {
            return "";
        };
        // monoio brings an older io-uring along; of two versions the last is ours.
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
                "the same with multishot accepts and receives, a ring of 256 buffers of 8 KiB (as windlass), direct descriptors"
            }
            Contender::Pread => "the system call alone, one thread",
            Contender::Tokio => Tokio::SETTINGS,
            Contender::Compio => Compio::SETTINGS,
            Contender::Monoio => Monoio::SETTINGS,
            Contender::Glommio => Glommio::SETTINGS,
            Contender::Smol => Smol::SETTINGS,
            Contender::Proactor | Contender::Reactor => Proactor::<DEFAULTS>::SETTINGS,
            Contender::ProactorPrecise | Contender::ReactorPrecise => Proactor::<PRECISE>::SETTINGS,
            Contender::ProactorNoLookout | Contender::ReactorNoLookout => Proactor::<NO_LOOKOUT>::SETTINGS,
            Contender::ProactorEager | Contender::ReactorEager => Proactor::<EAGER>::SETTINGS,
        }
    }

    /// Is the echo server until killed. The first line on standard output is the port.
    pub(crate) fn serve(self) -> io::Result<()> {
        match self {
            Contender::Epoll => hand_epoll::serve(),
            Contender::Uring => hand_uring::serve(),
            Contender::UringMultishot => hand_uring::serve_multishot(),
            Contender::Pread => Err(io::Error::other("pread serves nobody")),
            Contender::Tokio => serve::<Tokio>(),
            Contender::Compio => serve::<Compio>(),
            Contender::Monoio => serve::<Monoio>(),
            Contender::Glommio => serve::<Glommio>(),
            Contender::Smol => serve::<Smol>(),
            Contender::Proactor => serve::<Proactor<DEFAULTS>>(),
            Contender::Reactor => serve::<Reactor<DEFAULTS>>(),
            Contender::ProactorPrecise => serve::<Proactor<PRECISE>>(),
            Contender::ReactorPrecise => serve::<Reactor<PRECISE>>(),
            Contender::ProactorNoLookout => serve::<Proactor<NO_LOOKOUT>>(),
            Contender::ReactorNoLookout => serve::<Reactor<NO_LOOKOUT>>(),
            Contender::ProactorEager => serve::<Proactor<EAGER>>(),
            Contender::ReactorEager => serve::<Reactor<EAGER>>(),
        }
    }

    /// Measures in this process, and gives the figures in the order of the table's columns.
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
            Contender::ProactorNoLookout => work::run::<Proactor<NO_LOOKOUT>>(task),
            Contender::ReactorNoLookout => work::run::<Reactor<NO_LOOKOUT>>(task),
            Contender::ProactorEager => work::run::<Proactor<EAGER>>(task),
            Contender::ReactorEager => work::run::<Reactor<EAGER>>(task),
        }
    }
}

fn serve<R: Runtime>() -> io::Result<()> {
    R::run(R::serve())?
}
