//! What a simulation does to a host's disk: latencies, crashes, and the handle for the test.

use std::time::{Duration, SystemTime};

use super::FileSystem;
use super::config::Disk;
use super::faults::{DiskFaults, Faults};
use super::image::DiskHandle;
use crate::sim::chaos::DiskError;
use crate::sim::files::{Files, Volume};
use crate::sim::handle::Sim;
use crate::sim::host::Host;
use crate::sim::mount::HostFiles;
use crate::sim::rng::Rng;

impl Disk {
    /// The open files, none, of a host with a new disk like this. The faults draw from `rng`.
    pub(crate) fn mount(&self, now: SystemTime, rng: Rng) -> Files {
        let faults = Faults::new(self.faults.clone(), self.latency.clone(), rng);
        Files::new(Volume::new(self.format(now), Some(faults)))
    }
}

impl Files {
    /// The files of a host for which the test has described no disk.
    pub(crate) fn of_host(now: SystemTime, rng: Rng) -> Option<Files> {
        Some(Disk::posix().mount(now, rng))
    }

    /// The process crashes: its files are closed, and nothing is lost.
    pub(crate) fn process_crash(&mut self) {
        while let Some(&fd) = self.open.keys().next() {
            self.close(fd);
        }
    }

    /// The power fails: of what is not durable, `rng` decides what survives. No file is open afterwards. Returns what was
    /// lost, as text; `None` if everything was synced.
    pub(crate) fn power_loss(&mut self, rng: &mut Rng) -> Option<String> {
        self.process_crash();
        let loss = self.volume.borrow_mut().fs.power_loss(rng);
        loss.map(|loss| loss.to_string())
    }

    /// From now on, operations of this kind fail.
    pub(crate) fn begin_error(&mut self, error: DiskError) {
        self.with_faults(|faults| faults.begin_error(error));
    }

    /// Ends [`begin_error`](Files::begin_error).
    pub(crate) fn end_error(&mut self, error: DiskError) {
        self.with_faults(|faults| faults.end_error(error));
    }

    /// Operations that start before this time start then, in nanoseconds.
    pub(crate) fn stall_until(&mut self, until_ns: u64) {
        self.with_faults(|faults| faults.stall_until(until_ns));
    }

    /// Ends all faults.
    pub(crate) fn calm(&mut self) {
        self.with_faults(Faults::calm);
    }

    fn with_faults(&self, change: impl FnOnce(&mut Faults)) {
        if let Some(faults) = &mut self.volume.borrow_mut().faults {
            change(faults);
        }
    }

    /// The test's access to the disk.
    pub(crate) fn handle(&self) -> DiskHandle {
        DiskHandle::new(self.volume.clone())
    }
}

impl Host {
    /// Gives the host this disk, empty. Without this call it has a [`Disk::posix`] without faults.
    pub fn disk(self, disk: Disk) -> Host {
        let disk = match self.state.settings.knobs.off.disk {
            true => disk.faults(DiskFaults::none()),
            false => disk,
        };
        let rng = self.state.streams.stream_of("disk/", &self.state.name_of(self.number));
        let mut kernel = self.state.kernel.borrow_mut();
        let (host, clock) = (usize::from(self.number), kernel.clock);
        let now = kernel.schedule().clocks[host].wall(clock);
        kernel.files[host] = HostFiles::Mounted(disk.mount(now, rng));
        drop(kernel);
        self
    }
}

impl Sim {
    /// A host's disk, to read and change it from outside.
    ///
    /// ```
    /// # fn example(sim: windlass::sim::Sim) -> std::io::Result<()> {
    /// sim.disk("server").write("/etc/server.conf", "port = 7000")?;
    /// sim.crash("server", windlass::sim::Crash::Power);
    /// println!("{:?}", sim.disk("server"));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn disk(&self, host: &str) -> DiskHandle {
        let host = usize::from(self.state.host(host));
        let mut kernel = self.state.kernel.borrow_mut();
        match kernel.files[host].mount() {
            Some(files) => files.handle(),
            None => unreachable!("every host of a world has a disk"),
        }
    }
}

impl Volume {
    /// Replaces everything on the disk. Open files fail from now on.
    pub(super) fn replace(&mut self, fs: FileSystem) {
        self.fs = fs;
        self.generation += 1;
        if let Some(faults) = &mut self.faults {
            faults.replaced();
        }
    }

    pub(super) fn stall(&mut self, length: Duration) {
        if let Some(faults) = &mut self.faults {
            faults.delay_next(length);
        }
    }
}
