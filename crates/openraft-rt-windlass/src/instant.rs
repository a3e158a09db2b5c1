//! The loop's clock, as openraft's `Instant`.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use windlass::time::Instant;

/// A time of the current loop's clock, which is virtual in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindlassInstant(pub Instant);

impl openraft_rt::Instant for WindlassInstant {
    fn now() -> WindlassInstant {
        WindlassInstant(Instant::now())
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

impl Add<Duration> for WindlassInstant {
    type Output = WindlassInstant;

    fn add(self, duration: Duration) -> WindlassInstant {
        WindlassInstant(self.0 + duration)
    }
}

impl AddAssign<Duration> for WindlassInstant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for WindlassInstant {
    type Output = WindlassInstant;

    fn sub(self, duration: Duration) -> WindlassInstant {
        WindlassInstant(self.0 - duration)
    }
}

impl SubAssign<Duration> for WindlassInstant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub for WindlassInstant {
    type Output = Duration;

    fn sub(self, earlier: WindlassInstant) -> Duration {
        self.0 - earlier.0
    }
}
