//! `Instant`: a point in time on a monotonic clock, in nanoseconds since the clock's origin.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point in time on the loop's clock, with nanosecond resolution.
///
/// Not std's `Instant`, because a loop may run on a virtual clock. Arithmetic saturates: adding `Duration::MAX` gives
/// [`NEVER`](Instant::NEVER).
///
/// ```
/// use std::time::Duration;
/// use windlass::time::Instant;
/// let start = Instant::now();
/// assert!(start + Duration::MAX > start + Duration::from_secs(1));
/// assert!(start.elapsed() < Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    ns: u64,
}

impl Instant {
    /// A time that is never reached. Arithmetic that overflows saturates to it.
    pub const NEVER: Instant = Instant { ns: u64::MAX };

    /// The time `since` after the clock's origin. For drivers.
    pub fn from_origin(since: Duration) -> Instant {
        let ns = saturating_nanos(since);
        Instant { ns }
    }

    #[inline]
    pub(crate) const fn from_nanos(ns: u64) -> Instant {
        Instant { ns }
    }

    #[inline]
    pub(crate) const fn as_nanos(self) -> u64 {
        self.ns
    }

    /// The time since the clock's origin. For drivers.
    pub fn since_origin(self) -> Duration {
        Duration::from_nanos(self.ns)
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub fn duration_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }
}

/// The nanoseconds of a duration, without `Duration::as_nanos`' 128 bits.
#[inline]
fn saturating_nanos(duration: Duration) -> u64 {
    let secs = duration.as_secs().checked_mul(1_000_000_000);
    let ns = secs.and_then(|ns| ns.checked_add(u64::from(duration.subsec_nanos())));
    ns.unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, duration: Duration) -> Instant {
        Instant {
            ns: self.ns.saturating_add(saturating_nanos(duration)),
        }
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, duration: Duration) -> Instant {
        Instant {
            ns: self.ns.saturating_sub(saturating_nanos(duration)),
        }
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instant({:?})", self.since_origin())
    }
}
