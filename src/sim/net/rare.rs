//! Rare random events, drawn as the number of trials until the next one.
//!
//! A fault of one message in a thousand would otherwise cost a random number per message. The trials until the next
//! occurrence have a geometric distribution, so that one number per occurrence gives the same faults on average.

use crate::rand::{Rng, ln};

/// An event that occurs with a fixed probability in each trial.
pub(super) struct Rare {
    probability: f64,
    /// The trials before the next occurrence.
    left: u64,
}

impl Rare {
    pub(super) fn new(probability: f64, rng: &mut Rng) -> Rare {
        let mut rare = Rare { probability, left: 0 };
        rare.draw(rng);
        rare
    }

    /// Changes the probability. The distribution has no memory, so trials without an occurrence do not count.
    pub(super) fn set(&mut self, probability: f64, rng: &mut Rng) {
        if self.probability != probability {
            *self = Rare::new(probability, rng);
        }
    }

    /// One trial: whether the event occurs.
    #[inline(always)]
    pub(super) fn occurs(&mut self, rng: &mut Rng) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.draw(rng);
        true
    }

    #[cold]
    fn draw(&mut self, rng: &mut Rng) {
        self.left = match self.probability {
            always if always >= 1.0 => 0,
            // Exponential with the same chance of a whole trial; for tiny probabilities, `1 - p` is 1 and `ln` is zero.
            some if some > 0.0 => match -ln(1.0 - some) {
                rate if rate > 0.0 => rng.exponential(1.0 / rate) as u64,
                _ => u64::MAX,
            },
            _ => u64::MAX,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_occur_as_often_as_their_probability_says() {
        let mut rng = Rng::from_seed(5);
        let trials = if cfg!(miri) { 2_000 } else { 200_000 };
        for probability in [0.001, 1.0 / 64.0, 0.3, 0.9] {
            let mut rare = Rare::new(probability, &mut rng);
            let count = (0..trials).filter(|_| rare.occurs(&mut rng)).count() as f64;
            let (expected, tolerance) = (
                probability * f64::from(trials),
                6.0 * (probability * f64::from(trials)).sqrt(),
            );
            assert!((count - expected).abs() < tolerance, "{probability}: {count}");
        }
    }

    #[test]
    fn impossible_events_never_occur_and_certain_ones_always() {
        let mut rng = Rng::from_seed(5);
        for (probability, expected) in [
            (0.0, 0),
            (-1.0, 0),
            (f64::NAN, 0),
            (1e-300, 0),
            (1.0, 1_000),
            (7.0, 1_000),
        ] {
            let mut rare = Rare::new(probability, &mut rng);
            assert_eq!(
                (0..1_000).filter(|_| rare.occurs(&mut rng)).count(),
                expected,
                "{probability}"
            );
        }
        let mut rare = Rare::new(0.0, &mut rng);
        rare.set(1.0, &mut rng);
        assert!(rare.occurs(&mut rng));
    }
}
