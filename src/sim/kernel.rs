//! The state behind the drivers of a simulation: the clock, the network, and the operations of each loop.

use std::collections::BTreeSet;
use std::time::Duration;

use super::files::Files;
use super::mount::HostFiles;
use super::names::Zone;
use super::net::{NetEvent, Network, Table, Wire};
use super::ops::LoopOps;
use super::schedule::{Event, Schedule};
use crate::driver::{Completion, Control, FdSpace, FileOp, Job, OpId};
use crate::rand::Rng;
use crate::sys::Instant;

/// The kernel that the loops of a simulation share.
pub(super) struct Kernel {
    /// The true time, in nanoseconds.
    pub(super) clock: u64,
    pub(super) network: Network,
    /// The files of each host, by its number.
    pub(super) files: Vec<HostFiles>,
    /// The operations of each loop, by its index.
    pub(super) loops: Vec<LoopOps>,
    /// `None` for a host on its own.
    pub(super) world: Option<Box<Shared>>,
}

/// What the hosts of a world share besides the network.
pub(super) struct Shared {
    pub(super) zone: Zone,
    /// Blocking jobs with their loops.
    pub(super) jobs: Table<(u32, Job)>,
    job_times: Rng,
    /// The programs' random numbers, by host.
    pub(super) entropy: Vec<Rng>,
    /// What a power loss leaves on the disk, by host.
    pub(super) power_losses: Vec<Rng>,
    /// The tasks that use files of this machine.
    pub(super) real_files: BTreeSet<Option<String>>,
}

/// Blocking jobs take between these times.
const JOB_TIMES: (u64, u64) = (10_000, 5_000_000);

/// The time at which every simulation begins. Not zero, so that `now - duration` does not saturate by accident.
pub(super) const START: Duration = Duration::from_secs(1);

impl Kernel {
    /// A host on its own.
    pub(super) fn standalone() -> Kernel {
        Kernel {
            clock: START.as_nanos() as u64,
            network: Network::default(),
            files: Vec::new(),
            loops: Vec::new(),
            world: None,
        }
    }

    /// A world without hosts.
    pub(super) fn world(wire: Wire, zone: Zone, job_times: Rng) -> Kernel {
        let mut kernel = Kernel::standalone();
        kernel.network.wire = Some(Box::new(wire));
        kernel.world = Some(Box::new(Shared {
            zone,
            jobs: Table::default(),
            job_times,
            entropy: Vec::new(),
            power_losses: Vec::new(),
            real_files: BTreeSet::new(),
        }));
        kernel.set_clock(START.as_nanos() as u64);
        kernel
    }

    /// The schedule of a world.
    #[inline]
    pub(super) fn schedule(&mut self) -> &mut Schedule {
        let wire = self.network.wire.as_mut();
        &mut wire.expect("only a world has a schedule").schedule
    }

    /// What the hosts of a world share.
    pub(super) fn shared(&mut self) -> &mut Shared {
        self.world.as_mut().expect("only the hosts of a world share it")
    }

    /// Adds a loop, and returns its index.
    pub(super) fn add_loop(&mut self, host: u16) -> u32 {
        let index = self.loops.len() as u32;
        self.loops.push(LoopOps::new(index, host));
        if let Some(wire) = &mut self.network.wire {
            wire.schedule.add_loop(host);
        }
        index
    }

    pub(super) fn set_clock(&mut self, now: u64) {
        self.clock = now;
        if let Some(wire) = &mut self.network.wire {
            wire.now = now;
        }
    }

    /// The time on a host's monotonic clock.
    #[inline]
    pub(super) fn now(&self, host: u16) -> Instant {
        Instant::from_nanos(match &self.network.wire {
            Some(wire) => wire.schedule.clocks[usize::from(host)].local(self.clock),
            None => self.clock,
        })
    }

    /// `EMFILE` if a host's process cannot open the descriptors of this call.
    pub(super) fn check_descriptors(&self, host: u16, call: &Control<'_>) -> Result<(), i32> {
        let more = match call {
            Control::Socket { .. } => 1,
            Control::Pair { .. } | Control::Pipe => 2,
            _ => return Ok(()),
        };
        let files = self.files[usize::from(host)].used().map_or(0, Files::open_count);
        self.network.check_descriptors(host, files, more)
    }

    /// The operations of a loop, and the network on which they are carried out.
    pub(super) fn parts(&mut self, index: u32) -> (&mut LoopOps, &mut Network) {
        (&mut self.loops[index as usize], &mut self.network)
    }

    /// Queues the operations whose sockets have changed with their loops, to be tried again.
    #[inline]
    pub(super) fn distribute(&mut self) {
        if !self.network.woken.is_empty() {
            self.distribute_changes();
        }
    }

    fn distribute_changes(&mut self) {
        let now = self.clock;
        for at in 0..self.network.woken.len() {
            let waiter = self.network.woken[at];
            self.loops[waiter.loop_index as usize].try_again(waiter.slot);
            if let Some(wire) = &mut self.network.wire {
                wire.schedule.run(waiter.loop_index, now);
            }
        }
        self.network.woken.clear();
    }

    /// An event of the network happens. Returns a loop that gets its turn at once; true if its completions are in
    /// `completed` already.
    #[inline]
    pub(super) fn happen(&mut self, event: NetEvent, completed: &mut Vec<Completion>) -> Option<(u32, bool)> {
        if let NetEvent::Segment { conn, end } = event
            && let Some(waiter) = self.network.bytes_arrive(conn, end.into())
        {
            let schedule = &mut self.network.wire.as_mut()?.schedule;
            if !schedule.run_at_once(waiter.loop_index, self.clock) {
                self.loops[waiter.loop_index as usize].try_again(waiter.slot);
                schedule.run(waiter.loop_index, self.clock);
                return None;
            }
            let ops = &mut self.loops[waiter.loop_index as usize];
            let is_reaped = ops.recv_at_once(&mut self.network, waiter.slot, conn.index, end.into(), completed);
            return Some((waiter.loop_index, is_reaped));
        }
        self.happen_rarely(event)
    }

    #[inline(never)]
    fn happen_rarely(&mut self, event: NetEvent) -> Option<(u32, bool)> {
        self.network.happen(event);
        if let (&[waiter], Some(wire)) = (&self.network.woken[..], &mut self.network.wire)
            && wire.schedule.run_at_once(waiter.loop_index, self.clock)
        {
            self.network.woken.clear();
            self.loops[waiter.loop_index as usize].try_again(waiter.slot);
            return Some((waiter.loop_index, false));
        }
        self.distribute();
        None
    }

    /// The turn of a loop that was planned for now, if it takes place: as `happen` returns it.
    #[cfg(feature = "sim")]
    pub(super) fn begin_turn(&mut self, index: u32) -> Option<(u32, bool)> {
        let now = self.clock;
        self.schedule().begin_turn(index, now).then_some((index, false))
    }

    /// The time of an operation that takes one has come.
    #[cfg(feature = "sim")]
    pub(super) fn op_due(&mut self, index: u32, id: OpId) {
        if self.loops[index as usize].due(id) {
            let now = self.clock;
            self.schedule().run(index, now);
        }
    }

    /// Tries the queued operations of a loop until one completes or none is left, and moves the completions to
    /// `completed`.
    pub(super) fn reap(&mut self, index: u32, completed: &mut Vec<Completion>) {
        let before = completed.len();
        let done = &mut self.loops[index as usize].done;
        if !done.is_empty() {
            completed.append(done);
        }
        while self.advance(index, completed) && completed.len() == before {}
    }

    /// Tries the queued operations of a loop, and pushes the completions of those that are done. An operation that one
    /// of them enables is tried in a later call. True if others are queued already.
    pub(super) fn advance(&mut self, index: u32, completed: &mut Vec<Completion>) -> bool {
        self.distribute();
        let ops = &mut self.loops[index as usize];
        if !ops.has_queued() {
            return false;
        }
        ops.advance(
            &mut self.network,
            &mut self.world,
            &mut self.files,
            self.clock,
            completed,
        );
        self.distribute();
        self.loops[index as usize].has_queued()
    }

    /// Carries out what a loop has started during its turn. Its next poll reports what is done: true if it has to.
    #[inline]
    pub(super) fn submit(&mut self, index: u32) -> bool {
        if !self.network.woken.is_empty() || self.loops[index as usize].has_queued() {
            self.submit_queued(index);
        }
        self.loops[index as usize].has_pending()
    }

    #[inline(never)]
    fn submit_queued(&mut self, index: u32) {
        self.distribute();
        if !self.loops[index as usize].has_queued() {
            return;
        }
        let mut done = std::mem::take(&mut self.loops[index as usize].done);
        self.advance(index, &mut done);
        self.loops[index as usize].done = done;
    }

    /// Whether an operation is on a simulated file, or on a path of a host that has such files.
    pub(super) fn has_file(&self, host: u16, op: &FileOp) -> bool {
        let is_own = op.fd().is_none_or(|fd| !FdSpace::Split.is_kernel(fd));
        is_own && self.files[usize::from(host)].is_simulated()
    }

    /// Plans the end of a file operation, if it takes time: false on a host on its own.
    pub(super) fn start_file(&mut self, host: u16, loop_index: u32, id: OpId, op: &FileOp) -> bool {
        let (Some(wire), Some(files)) = (&mut self.network.wire, self.files[usize::from(host)].mount()) else {
            return false;
        };
        let at = files.done_at(op, self.clock);
        wire.schedule.push(at, Event::op(loop_index, id));
        true
    }

    /// Closes the files of a host. If it loses power, returns what was lost.
    #[cfg(feature = "sim")]
    pub(super) fn crash_files(&mut self, host: u16, is_power: bool) -> Option<String> {
        let host = usize::from(host);
        // A disk that was not used has nothing to lose.
        self.files[host].used()?;
        let files = self.files[host].mount()?;
        files.process_crash();
        let world = self.world.as_mut().filter(|_| is_power)?;
        files.power_loss(&mut world.power_losses[host])
    }

    /// Takes a blocking job over; it runs later.
    pub(super) fn offload(&mut self, loop_index: u32, job: Job) -> Result<(), Job> {
        let now = self.clock;
        let Some(world) = &mut self.world else { return Err(job) };
        let (least, most) = JOB_TIMES;
        let at = now + least + world.job_times.below(most - least);
        let job = world.jobs.insert((loop_index, job));
        self.schedule().push(at, Event::Job { job });
        Ok(())
    }
}
