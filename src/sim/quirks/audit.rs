//! Checks from below that loop and inner driver keep the driver contract.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::kind::{Kind, NAMES};
use super::memory::fingerprint;
use crate::driver::{Control, Fd, FdSpace, FileOp, Op, OpId, OsResult, Reply};

/// The violations of the driver contract that wrapped drivers have seen, and how often each quirk has occurred; see
/// [`Quirks::wrap_audited`].
///
/// Each violation is also a panic. These are checked:
///
/// - No operation and no control call uses a descriptor of the driver's own numbers after it was closed.
/// - No descriptor is closed while an operation on it is in flight, except a wait for the readiness of a descriptor that
///   the program owns.
/// - No operation is started under an id that is in flight, and only operations that were started are cancelled.
/// - While an operation is in flight, neither the op nor the bytes that it sends change.
/// - The inner driver completes an operation once, and gives out no descriptor that is open.
/// - When the driver is dropped, every operation has completed and every descriptor was closed.
///
/// [`Quirks::wrap_audited`]: super::Quirks::wrap_audited
#[derive(Clone, Debug, Default)]
pub struct Audit {
    violations: Rc<RefCell<Vec<String>>>,
    counts: Rc<RefCell<[u64; NAMES.len()]>>,
}

impl Audit {
    /// Without violations yet.
    pub fn new() -> Audit {
        Audit::default()
    }

    /// The violations so far, each with the operation's name.
    pub fn violations(&self) -> Vec<String> {
        self.violations.borrow().clone()
    }

    /// The quirks that have occurred: their names, and how often.
    pub fn quirks(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.borrow();
        let counts = NAMES.into_iter().zip(counts.iter().copied());
        counts.filter(|(_, count)| *count > 0).collect()
    }

    pub(super) fn count(&self, kind: Kind) {
        self.counts.borrow_mut()[kind as usize] += 1;
    }

    /// Notes a violation and panics, unless the thread is panicking already.
    pub(super) fn violated(&self, what: String) {
        self.violations.borrow_mut().push(what.clone());
        if !std::thread::panicking() {
            panic!("windlass: the driver contract was violated: {what}");
        }
    }
}

/// What a driver has to know for the checks.
pub(super) struct Ledger {
    audit: Audit,
    space: FdSpace,
    /// The last id that was started, by its index.
    started: Vec<Option<OpId>>,
    fds: BTreeMap<Fd, FdState>,
}

#[derive(Default)]
struct FdState {
    is_open: bool,
    /// How often it is watched although the program owns it.
    watches: u32,
    in_flight: u32,
}

/// The descriptor that must stay open until the operation completes. Not that of a wait for readiness: the program may own
/// the descriptor, and close it right after it has removed its reader, while the cancel is on its way.
fn held_open(op: &Op) -> Option<Fd> {
    match op {
        Op::Readiness { .. } => None,
        op => op.fd(),
    }
}

impl Ledger {
    pub(super) fn new(audit: &Audit, space: FdSpace) -> Ledger {
        Ledger {
            audit: audit.clone(),
            space,
            started: Vec::new(),
            fds: BTreeMap::new(),
        }
    }

    /// Whether a descriptor is one of the driver's own numbers.
    pub(super) fn is_own(&self, fd: Fd) -> bool {
        self.space != FdSpace::Kernel && !self.space.is_kernel(fd)
    }

    pub(super) fn violated(&self, what: String) {
        self.audit.violated(what);
    }

    /// A call or operation uses this descriptor.
    pub(super) fn uses(&self, fd: Fd, name: &dyn std::fmt::Debug) {
        // The program may close a descriptor that it owns while the loop watches it.
        let is_known = |state: &FdState| state.is_open || state.watches > 0;
        if self.is_own(fd) && !self.fds.get(&fd).is_some_and(is_known) {
            self.violated(format!("{name:?} uses descriptor {fd}, which is closed"));
        }
    }

    fn opened(&mut self, fd: Fd, name: &str) {
        if !self.is_own(fd) {
            return;
        }
        let state = self.fds.entry(fd).or_default();
        if std::mem::replace(&mut state.is_open, true) {
            self.violated(format!("{name} returned descriptor {fd}, which is open"));
        }
    }

    fn closing(&mut self, fd: Fd, call: &Control<'_>) {
        self.uses(fd, call);
        let Some(state) = self.fds.get_mut(&fd) else { return };
        state.is_open = false;
        if state.in_flight > 0 {
            self.violated(format!("{call:?} while an operation on the descriptor is in flight"));
        }
        self.tidy(fd);
    }

    /// The end of a watch, or the program takes the descriptor over.
    fn forgetting(&mut self, fd: Fd, call: &Control<'_>) {
        self.uses(fd, call);
        let Some(state) = self.fds.get_mut(&fd) else { return };
        match state.watches {
            0 => state.is_open = false,
            _ => state.watches -= 1,
        }
        self.tidy(fd);
    }

    fn tidy(&mut self, fd: Fd) {
        if let Some(FdState {
            is_open: false,
            watches: 0,
            in_flight: 0,
        }) = self.fds.get(&fd)
        {
            self.fds.remove(&fd);
        }
    }

    pub(super) fn calling(&mut self, call: &Control<'_>) {
        match *call {
            Control::Socket { .. } | Control::Pair { .. } | Control::Pipe => {}
            // A number of the program's.
            Control::Adopt { .. } | Control::Watch { .. } => {}
            Control::Bind { fd, .. }
            | Control::Listen { fd, .. }
            | Control::LocalName { fd }
            | Control::PeerName { fd }
            | Control::PeerCredentials { fd }
            | Control::SetOption { fd, .. }
            | Control::Option { fd, .. }
            | Control::Shutdown { fd, .. }
            | Control::Seek { fd, .. } => self.uses(fd, call),
            Control::Close { fd } | Control::Reset { fd } => self.closing(fd, call),
            Control::Forget { fd } => self.forgetting(fd, call),
        }
    }

    /// A call has succeeded.
    pub(super) fn called(&mut self, call: &Control<'_>, reply: &Reply) {
        if let Control::Watch { fd } = *call {
            self.fds.entry(fd).or_default().watches += 1;
        }
        match *reply {
            Reply::Fd(fd) => self.opened(fd, "a control call"),
            Reply::Pair(one, other) => {
                self.opened(one, "a control call");
                self.opened(other, "a control call");
            }
            _ => {}
        }
    }

    pub(super) fn starting(&mut self, id: OpId, op: &Op, is_in_flight: bool) {
        if is_in_flight {
            self.violated(format!(
                "{} is started under the id {id:?}, which is in flight",
                op.name()
            ));
        }
        if self.started.len() <= id.index() {
            self.started.resize(id.index() + 1, None);
        }
        self.started[id.index()] = Some(id);
        if let Some(fd) = op.fd() {
            self.uses(fd, &op.name());
        }
        if let Some(fd) = held_open(op) {
            self.fds.entry(fd).or_default().in_flight += 1;
        }
    }

    /// An operation is not in flight any more.
    pub(super) fn ended(&mut self, op: &Op) {
        let Some(fd) = held_open(op) else { return };
        let Some(state) = self.fds.get_mut(&fd) else { return };
        state.in_flight -= 1;
        self.tidy(fd);
    }

    /// The driver is about to report this result.
    ///
    /// # Safety
    ///
    /// The operation has not completed.
    pub(super) unsafe fn completing(&mut self, op: &Op, before: u64, res: OsResult) {
        // SAFETY: the caller's promise.
        if unsafe { fingerprint(op) } != before {
            self.violated(format!(
                "the op or buffer of {} changed while it was in flight",
                op.name()
            ));
        }
        if let (Op::Accept { .. } | Op::File(FileOp::Open { .. }), Ok(fd)) = (op, res) {
            self.opened(fd as Fd, op.name());
        }
    }

    /// An attempt has no id.
    pub(super) fn attempting(&self, op: &Op) {
        if let Some(fd) = op.fd() {
            self.uses(fd, &op.name());
        }
    }

    /// Cancels an operation that is not in flight: legal if it has been.
    pub(super) fn cancelling(&self, id: OpId, op: &Op) {
        let last = self.started.get(id.index()).copied().flatten();
        if last.is_none_or(|last| last.to_u64() < id.to_u64()) {
            self.violated(format!("{} is cancelled as {id:?}, which was never started", op.name()));
        }
    }

    /// The driver is dropped; these operations are in flight.
    pub(super) fn dropping(&self, in_flight: &[&'static str]) {
        if !in_flight.is_empty() {
            self.violated(format!(
                "the driver is dropped while in flight: {}",
                in_flight.join(", ")
            ));
        }
        let open: Vec<Fd> = self
            .fds
            .iter()
            .filter(|(_, state)| state.is_open)
            .map(|(fd, _)| *fd)
            .collect();
        if !open.is_empty() {
            self.violated(format!(
                "the driver is dropped, and these descriptors were never closed: {open:?}"
            ));
        }
    }
}
