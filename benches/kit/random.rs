//! Pseudo-random numbers, the same in every run.

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Random {
        Random(1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        const FACTOR: u64 = 6_364_136_223_846_793_005;
        self.0 = self.0.wrapping_mul(FACTOR).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
