//! The kinds of events in the log, and how their two words are printed.

/// The kinds of events, with the meaning of the two words.
///
/// New kinds go to the end of their group; [`EventKind::parts`] says how to print them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub(crate) enum EventKind {
    // The loops.
    /// A loop ran a turn: entries run, time that it took.
    Turn,
    /// An operation was started: its kind, its descriptor.
    Start,
    /// An operation that takes a time of its own, on a file or a name, completed: its kind, the result (a count, or minus
    /// the error code).
    Complete,
    /// A cancel was requested: the operation's kind, its descriptor.
    Cancel,
    /// Blocking work ran: its number, the virtual time that it took.
    Job,
    /// Random bytes were handed to the program: their number, their hash.
    Entropy,

    // The network.
    Connect,
    /// The client's side of a connection is established.
    Connected,
    Accept,
    Refuse,
    Send,
    Deliver,
    Lose,
    Duplicate,
    Reset,
    /// A FIN was sent.
    Finish,

    /// A disk misbehaved: how (see [`DISK_FAULTS`]), the number of the sector.
    DiskFault,

    // Faults and commands, with a text.
    Fault,
    Crash,
    Restart,
    Pause,
    Resume,
    Signal,
    WallJump,
    /// Legal but unusual behaviour of the driver: its kind. Or with a text: the quirks of a loop.
    Quirk,
    /// The program's or the test's own line.
    Note,
    /// `Sim::sometimes`.
    Mark,
}

/// The first word of [`EventKind::DiskFault`], as text.
pub(crate) const DISK_FAULTS: &[&str] = &[
    "read error",
    "write error",
    "no space",
    "failed sync",
    "lost write",
    "misdirected write",
    "bit rot",
];

/// How a word of a record is printed.
#[derive(Clone, Copy)]
pub(super) enum Word {
    Unused,
    Count(&'static str),
    Signed(&'static str),
    Hash(&'static str),
    Host(&'static str),
    Nanos(&'static str),
    Op(&'static str),
    DiskFault,
    /// A kind of quirk.
    Quirk,
}

impl EventKind {
    pub(super) fn parts(self) -> (&'static str, Word, Word) {
        use Word::{Count, DiskFault, Hash, Host, Nanos, Op, Quirk, Signed, Unused};
        match self {
            EventKind::Turn => ("turn", Count("entries"), Nanos("took")),
            EventKind::Start => ("start", Op("op"), Signed("fd")),
            EventKind::Complete => ("complete", Op("op"), Signed("result")),
            EventKind::Cancel => ("cancel", Op("op"), Signed("fd")),
            EventKind::Job => ("blocking job", Count("number"), Nanos("took")),
            EventKind::Entropy => ("entropy", Count("bytes"), Hash("hash")),
            EventKind::Connect => ("connect", Host("to"), Count("port")),
            EventKind::Connected => ("connected", Host("to"), Unused),
            EventKind::Accept => ("accept", Host("from"), Count("port")),
            EventKind::Refuse => ("refuse", Host("from"), Count("port")),
            EventKind::Send => ("send", Host("to"), Count("bytes")),
            EventKind::Deliver => ("deliver", Host("from"), Count("bytes")),
            EventKind::Lose => ("lose", Host("to"), Count("bytes")),
            EventKind::Duplicate => ("duplicate", Host("to"), Count("bytes")),
            EventKind::Reset => ("reset", Host("to"), Unused),
            EventKind::Finish => ("end of stream", Host("to"), Unused),
            EventKind::DiskFault => ("disk fault:", DiskFault, Count("sector")),
            EventKind::Fault => ("fault", Unused, Unused),
            EventKind::Crash => ("crash", Unused, Unused),
            EventKind::Restart => ("restart", Unused, Unused),
            EventKind::Pause => ("pause", Unused, Unused),
            EventKind::Resume => ("resume", Unused, Unused),
            EventKind::Signal => ("signal", Signed("number"), Unused),
            EventKind::WallJump => ("wall clock jumps", Signed("by ns"), Unused),
            EventKind::Quirk => ("quirk", Quirk, Unused),
            EventKind::Note => ("note", Unused, Unused),
            EventKind::Mark => ("mark", Unused, Unused),
        }
    }

    /// What the kind is called in a timeline.
    pub(crate) fn name(self) -> &'static str {
        self.parts().0
    }
}
