//! What the console says about the process: from `/proc` on Linux, unknown elsewhere.

use std::time::Duration;

/// The process, as far as known.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) descriptors: Option<u64>,
    pub(super) descriptor_limit: Option<u64>,
    pub(super) cpu: Option<Duration>,
    pub(super) threads: Option<u64>,
    /// The time since the process started.
    pub(super) uptime: Option<Duration>,
}

/// The unit of times in `/proc`, USER_HZ, is 100 per second on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

impl Process {
    pub(super) fn read() -> Process {
        if cfg!(not(target_os = "linux")) {
            return Process::default();
        }
        let file = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
        let status = file("/proc/self/status");
        let number = |line: &str, at: usize| {
            line.split_whitespace()
                .nth(at)
                .and_then(|word| word.parse::<u64>().ok())
        };
        let status = |key: &str| {
            status
                .lines()
                .find(|line| line.starts_with(key))
                .and_then(|line| number(line, 1))
        };
        let limits = file("/proc/self/limits");
        // The command in parentheses may contain spaces.
        let stat = file("/proc/self/stat");
        let stat = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let seconds = |field: usize| number(stat, field - 3).map(|ticks| ticks as f64 / TICKS_PER_SECOND);
        let (user, system, started) = (seconds(14), seconds(15), seconds(22));
        let since_boot = file("/proc/uptime");
        let since_boot = since_boot
            .split_whitespace()
            .next()
            .and_then(|word| word.parse::<f64>().ok());
        Process {
            resident_bytes: status("VmRSS:").map(|kib| kib * 1024),
            virtual_bytes: status("VmSize:").map(|kib| kib * 1024),
            // Without the descriptor that reads the folder.
            descriptors: std::fs::read_dir("/proc/self/fd")
                .ok()
                .map(|files| files.count() as u64 - 1),
            descriptor_limit: limits
                .lines()
                .find(|line| line.starts_with("Max open files"))
                .and_then(|line| number(line, 3)),
            cpu: user
                .zip(system)
                .map(|(user, system)| Duration::from_secs_f64(user + system)),
            threads: status("Threads:"),
            uptime: since_boot
                .zip(started)
                .map(|(now, started)| Duration::from_secs_f64((now - started).max(0.0))),
        }
    }
}
