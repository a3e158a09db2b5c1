//! Carries out the plan of a [`Chaos`]: begins and ends its episodes, and ends all of them for [`Sim::calm`].

use std::time::Duration;

use super::Crash;
use super::chaos::{Chaos, Episode, Fault};
use super::files::Files;
use super::handle::Sim;

/// The episodes of a run that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct Episodes {
    /// Goes up with each `calm`: what was planned before does not happen any more.
    calms: u32,
    active: Vec<Fault>,
}

impl Sim {
    /// Plans faults for the hosts that have been added, and brings them about from now on, until [`calm`](Sim::calm).
    ///
    /// The seed decides on the plan. Shrinking leaves out episodes that a failure does not need.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::sim::{self, Chaos};
    ///
    /// sim::sweep(0..10, |sim| async move {
    ///     for name in ["a", "b", "c"] {
    ///         sim.host(name).start(std::future::pending::<()>);
    ///     }
    ///     sim.chaos(Chaos::swarm().keep_quorum(2));
    ///     windlass::time::sleep(Duration::from_secs(30)).await; // requests, and checks that no answer is wrong
    ///     sim.calm();
    ///     Ok(()) // requests, and checks that each of them is answered
    /// });
    /// ```
    pub fn chaos(&self, chaos: Chaos) {
        let hosts = self.state.program_hosts();
        let plan = self.state.run.borrow_mut().plan(&chaos, &hosts);
        let calms = self.state.episodes.borrow().calms;
        for episode in plan {
            self.after(Duration::from_nanos(episode.from_ns), move |sim| {
                if sim.state.episodes.borrow().calms == calms && sim.begin(&episode) {
                    sim.end_later(episode, calms);
                }
            });
        }
    }

    fn end_later(&self, episode: Episode, calms: u32) {
        let length = Duration::from_nanos(episode.until_ns - episode.from_ns);
        self.state.episodes.borrow_mut().active.push(episode.fault.clone());
        self.after(length, move |sim| {
            if sim.state.episodes.borrow().calms == calms {
                sim.state
                    .episodes
                    .borrow_mut()
                    .active
                    .retain(|fault| *fault != episode.fault);
                sim.state.note_fault(&format!("over: {}", episode.fault));
                sim.end(&episode.fault);
            }
        });
    }

    /// Ends all faults, those of [`chaos`](Sim::chaos) and the test's own: links lose nothing and are neither cut, held nor
    /// slow, paused hosts go on, hosts that a plan has crashed start again, disks work, sockets have memory, wall clocks are
    /// right.
    ///
    /// From now on the test can ask for progress: each request is answered in the end.
    pub fn calm(&self) {
        let active = {
            let mut episodes = self.state.episodes.borrow_mut();
            episodes.calms += 1;
            std::mem::take(&mut episodes.active)
        };
        self.state.note_fault("calm");
        for fault in active {
            self.end(&fault);
        }
        self.state.calm_network();
        for host in self.state.program_hosts() {
            if self.state.is_paused(&host) {
                self.resume(&host);
            }
            self.state.set_wall_offset(&host, 0);
            self.state.with_files(&host, Files::calm);
        }
    }

    /// Begins an episode; false if there is nothing to do.
    fn begin(&self, episode: &Episode) -> bool {
        let fault = &episode.fault;
        if fault.host().is_some_and(|host| !self.state.is_running(host)) {
            // A program that has ended stays so, and a host that the test has crashed is the test's.
            return false;
        }
        self.state.note_fault(&fault.to_string());
        match fault {
            Fault::Cut {
                from,
                to,
                both_ways: true,
            } => self.cut(from, to),
            Fault::Cut {
                from,
                to,
                both_ways: false,
            } => self.cut_one_way(from, to),
            Fault::Slow { from, to, factor } => self.slow([from], [to], f64::from(*factor)),
            Fault::Lossy {
                loss,
                duplicate,
                reorder,
            } => self.state.set_lossy(*loss, *duplicate, *reorder),
            Fault::Crash { host, power: true } => self.crash(host, Crash::Power),
            Fault::Crash { host, power: false } => self.crash(host, Crash::Process),
            Fault::Pause { host } => self.pause(host),
            Fault::WallClock { host, off_by_ns } => self.state.set_wall_offset(host, *off_by_ns),
            Fault::DiskStall { host } => {
                let until = self.state.clock() + (episode.until_ns - episode.from_ns);
                self.state.with_files(host, |files| files.stall_until(until));
            }
            Fault::DiskError { host, error } => self.state.with_files(host, |files| files.begin_error(*error)),
        }
        true
    }

    /// Ends the fault of an episode.
    fn end(&self, fault: &Fault) {
        match fault {
            Fault::Cut { from, to, both_ways } => self.state.mend(from, to, *both_ways),
            Fault::Slow { from, to, .. } => self.slow([from], [to], 1.0),
            Fault::Lossy { .. } => self.state.set_lossy(0.0, 0.0, 0.0),
            Fault::Crash { host, .. } if self.state.is_running(host) => {}
            Fault::Crash { host, .. } => self.restart(host),
            Fault::Pause { host } if self.state.is_paused(host) => self.resume(host),
            // A wall clock stays wrong until the next jump.
            Fault::Pause { .. } | Fault::WallClock { .. } => {}
            Fault::DiskStall { host } => self.state.with_files(host, |files| files.stall_until(0)),
            Fault::DiskError { host, error } => self.state.with_files(host, |files| files.end_error(*error)),
        }
    }
}
