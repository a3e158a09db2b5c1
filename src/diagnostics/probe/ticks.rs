//! The clock of the probe: the processor's time-stamp counter where it is usable, else the system's clock.
//!
//! The probe reads a clock after every poll. `clock_gettime` takes 20 to 32 ns, a tenth of a short poll; the counter takes a third
//! of that. It counts at a constant rate if the processor says so (invariant TSC). The rate is measured once, when the first
//! console starts.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::sys;

/// The upper bounds of the histograms' buckets, in microseconds. A last bucket has no bound.
pub(crate) const BOUNDS_US: [u64; 15] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 100_000, 1_000_000,
];

/// How long the counter's rate is measured.
const CALIBRATION: Duration = Duration::from_millis(5);

/// The length of a bin of the timeline.
pub(crate) const BIN: Duration = Duration::from_millis(250);

/// Set before the first console starts, never cleared.
static USES_COUNTER: AtomicBool = AtomicBool::new(false);

/// What the probe compares with, in ticks.
#[derive(Debug)]
pub(crate) struct Scale {
    per_second: f64,
    pub(crate) bounds: [u64; BOUNDS_US.len()],
    pub(crate) bin: u64,
}

static SCALE: OnceLock<Scale> = OnceLock::new();

impl Scale {
    /// The scale; `None` before the first console has started.
    #[inline]
    pub(crate) fn get() -> Option<&'static Scale> {
        SCALE.get()
    }

    /// Measures the counter's rate, once per process.
    pub(crate) fn measure() -> &'static Scale {
        SCALE.get_or_init(|| {
            let per_second = match counter::is_usable() {
                true => measure_rate(),
                false => 1e9,
            };
            USES_COUNTER.store(counter::is_usable(), Relaxed);
            let ticks = |time: Duration| (time.as_secs_f64() * per_second) as u64;
            Scale {
                per_second,
                bounds: BOUNDS_US.map(|us| ticks(Duration::from_micros(us))),
                bin: ticks(BIN).max(1),
            }
        })
    }

    pub(crate) fn ticks(&self, time: Duration) -> u64 {
        (time.as_secs_f64() * self.per_second) as u64
    }

    pub(crate) fn seconds(&self, ticks: u64) -> f64 {
        ticks as f64 / self.per_second
    }

    pub(crate) fn duration(&self, ticks: u64) -> Duration {
        Duration::from_secs_f64(self.seconds(ticks))
    }
}

/// Ticks per second of the counter.
fn measure_rate() -> f64 {
    let (began, first) = (sys::monotonic(), counter::read());
    std::thread::sleep(CALIBRATION);
    let (ended, last) = (sys::monotonic(), counter::read());
    let seconds = (ended - began).as_secs_f64();
    (last.saturating_sub(first) as f64 / seconds).max(1.0)
}

/// The time in ticks; never 0. Only meaningful once the [`Scale`] is known.
#[inline]
pub(crate) fn now() -> u64 {
    match USES_COUNTER.load(Relaxed) {
        true => counter::read() | 1,
        false => sys::monotonic().as_nanos() | 1,
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    #[inline(always)]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has the instruction. If the process has disabled it with `prctl`, it is not used:
        // see `is_usable`.
        unsafe { _rdtsc() }
    }

    /// Whether the counter has a constant rate and the process may read it.
    pub(super) fn is_usable() -> bool {
        const LAST_EXTENDED: u32 = 0x8000_0000;
        const POWER: u32 = 0x8000_0007;
        const INVARIANT_TSC: u32 = 1 << 8;
        #[allow(unused_unsafe, reason = "the intrinsic is safe from Rust 1.94 on")]
        // SAFETY: every x86-64 processor has the instruction.
        let has_power = unsafe { __cpuid(LAST_EXTENDED) }.eax >= POWER;
        #[allow(unused_unsafe, reason = "as above")]
        // SAFETY: as above.
        let is_invariant = has_power && unsafe { __cpuid(POWER) }.edx & INVARIANT_TSC != 0;
        is_invariant && is_allowed()
    }

    #[cfg(target_os = "linux")]
    fn is_allowed() -> bool {
        let mut mode: libc::c_int = 0;
        // SAFETY: the kernel writes to the local during the call.
        let result = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut mode) };
        result == 0 && mode == libc::PR_TSC_ENABLE
    }

    #[cfg(not(target_os = "linux"))]
    fn is_allowed() -> bool {
        true
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod counter {
    pub(super) fn read() -> u64 {
        0
    }

    pub(super) fn is_usable() -> bool {
        false
    }
}
