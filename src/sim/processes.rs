//! What happens between turns: processes start, end, crash and get signals, and woken loops get turns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;

use super::host::{Crash, Launch};
use super::log::EventKind;
use super::misuse;
use super::settings::{Failure, FailureKind};
use super::state::Command;
use super::world::{World, error_failure, guarded};
use crate::EventLoop;
use crate::sys::lock;

impl World {
    #[inline(never)]
    pub(super) fn carry_out_commands(&mut self) {
        loop {
            let Some(command) = self.state.commands.borrow_mut().pop_front() else {
                return;
            };
            match command {
                Command::Start { host } => self.start(host),
                Command::Bury { loop_index } => {
                    if let Some(event_loop) = self.loops[loop_index as usize].take() {
                        event_loop.abandon();
                    }
                }
                Command::Kill { loop_index } => self.kill(loop_index),
                Command::Ended { loop_index, error } => self.ended(loop_index, error),
                Command::Signal { host, number } => self.signal(host, number),
            }
        }
    }

    fn start(&mut self, host: u16) {
        let launch = self.state.hosts.borrow()[usize::from(host)].launch.clone();
        self.state.network(|network| network.power_on(host));
        let Some(launch) = launch else { return };
        match catch_unwind(AssertUnwindSafe(|| self.launch(host, &launch))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.failed_to_start(host, error),
            Err(payload) => self.state.fail_by_panic(&*payload),
        }
    }

    /// Makes the loops of a process, then their programs.
    fn launch(&mut self, host: u16, launch: &Launch) -> Result<(), String> {
        let process = launch()?;
        let mut added = Vec::new();
        for configure in process.loops {
            match self.add_loop(host, configure) {
                Ok(loop_index) => added.push(loop_index),
                Err(error) => return Err(format!("an event loop: {error}")),
            }
        }
        {
            let info = &mut self.state.hosts.borrow_mut()[usize::from(host)];
            (info.loops, info.running) = (added.clone(), added.clone());
            info.closes_loops = process.closes_loops;
        }
        let loops: Vec<&EventLoop> = added
            .iter()
            .filter_map(|loop_index| self.loops[*loop_index as usize].as_ref())
            .collect();
        let programs = (process.programs)(&loops)?;
        for (loop_index, program) in added.into_iter().zip(programs) {
            let state = self.state.clone();
            self.spawn_on(loop_index, async move {
                if let Some(error) = guarded(&state, program).await {
                    let mut commands = state.commands.borrow_mut();
                    commands.push_back(Command::Ended { loop_index, error });
                }
            });
        }
        Ok(())
    }

    fn failed_to_start(&mut self, host: u16, error: String) {
        self.report_error(host, error);
        self.state.crash(host, Crash::Process);
    }

    /// A program has returned an error.
    fn report_error(&self, host: u16, error: String) {
        let (may_fail, name) = {
            let info = &self.state.hosts.borrow()[usize::from(host)];
            (info.may_fail, info.name.clone())
        };
        match may_fail {
            true => self.state.note(host, EventKind::Note, format!("ended: {error}")),
            false => self.state.fail(error_failure(format!("host {name}: {error}"))),
        }
    }

    /// The program of a loop has ended; with the last one, the process ends.
    fn ended(&mut self, loop_index: u32, error: Option<String>) {
        let Some(host) = self.end_program(loop_index) else {
            return;
        };
        if let Some(error) = error {
            self.report_error(host, error);
        }
        if self.state.hosts.borrow()[usize::from(host)].closes_loops {
            self.close_loop(loop_index);
        }
        self.end_if_idle(host);
    }

    /// The host of a loop whose program ends now.
    fn end_program(&self, loop_index: u32) -> Option<u16> {
        let mut hosts = self.state.hosts.borrow_mut();
        let host = hosts.iter().position(|host| host.running.contains(&loop_index))?;
        hosts[host].running.retain(|other| *other != loop_index);
        Some(host as u16)
    }

    fn end_if_idle(&self, host: u16) {
        if self.state.hosts.borrow()[usize::from(host)].running.is_empty() {
            self.state.crash(host, Crash::Process);
        }
    }

    /// Ends a loop as if its driver had failed.
    fn kill(&mut self, loop_index: u32) {
        let host = self.end_program(loop_index);
        self.close_loop(loop_index);
        if let Some(host) = host {
            self.end_if_idle(host);
        }
    }

    /// Closes a loop whose process continues: its sockets are closed, and its operations fail.
    fn close_loop(&mut self, loop_index: u32) {
        let Some(event_loop) = self.loops[loop_index as usize].take() else {
            return;
        };
        {
            let mut kernel = self.state.kernel.borrow_mut();
            kernel.loops[loop_index as usize].fails_ops = true;
            kernel.schedule().end_loop(loop_index);
        }
        event_loop.abandon();
        let mut kernel = self.state.kernel.borrow_mut();
        kernel.loops[loop_index as usize].is_dead = true;
        kernel.distribute();
    }

    fn signal(&mut self, host: u16, number: i32) {
        self.state
            .wire(|wire| wire.log.record(wire.now, host, EventKind::Signal, number as u64, 0));
        let loops = self.state.hosts.borrow()[usize::from(host)].loops.clone();
        let mut is_heard = false;
        for loop_index in &loops {
            if let Some(event_loop) = &self.loops[*loop_index as usize] {
                is_heard |= event_loop.core().deliver_signal(number);
                let mut kernel = self.state.kernel.borrow_mut();
                let now = kernel.clock;
                kernel.schedule().run(*loop_index, now);
            }
        }
        if !is_heard && !crate::sys::is_ignored_by_default(number) {
            self.state.note(host, EventKind::Crash, format!("signal {number}"));
            self.state.crash(host, Crash::Process);
        }
    }

    /// Plans turns for loops that were woken from outside of their turns; `turned` is the loop that has just run.
    #[inline(never)]
    pub(super) fn collect_notifications(&mut self, turned: Option<u32>) {
        let notified = &self.state.notified;
        if !notified.is_any.swap(false, SeqCst) {
            return;
        }
        if let Some(name) = lock(&notified.foreign).take() {
            self.state.fail(Failure {
                kind: FailureKind::Misuse,
                message: misuse::foreign_thread(&name),
                location: None,
                details: Vec::new(),
            });
        }
        let mut kernel = self.state.kernel.borrow_mut();
        let now = kernel.clock;
        for loop_index in lock(&notified.loops).drain(..) {
            let schedule = kernel.schedule();
            let host = schedule.host_of(loop_index);
            // A loop that notifies itself is awake. Nothing but a loop of its process can wake another one.
            let wakes_peer = turned.is_some_and(|turned| turned != loop_index);
            let has_peers = || self.state.hosts.borrow()[usize::from(host)].loops.len() > 1;
            let delay = match wakes_peer && has_peers() {
                true => self.state.wake_delay(),
                false => 0,
            };
            schedule.run(loop_index, now + delay);
        }
    }
}
