//! Medians and spreads.

/// Median, minimum and maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// A spread above this share of the median is marked as noisy.
const NOISY: f64 = 0.15;

impl Spread {
    /// All NaN if there are no figures.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Spread {
        let mut all: Vec<f64> = figures.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (all.first(), all.last()) else {
            return Spread {
                median: f64::NAN,
                least: f64::NAN,
                most: f64::NAN,
            };
        };
        let middle = all.len() / 2;
        let median = match all.len() % 2 {
            1 => all[middle],
            _ => (all[middle - 1] + all[middle]) / 2.0,
        };
        Spread { median, least, most }
    }

    pub(crate) fn is_noisy(self) -> bool {
        (self.most - self.least) / self.median > NOISY
    }
}

/// The median of the ratios of two series, computed within each round.
pub(crate) fn paired_ratio(ours: impl IntoIterator<Item = f64>, theirs: impl IntoIterator<Item = f64>) -> Spread {
    Spread::of(ours.into_iter().zip(theirs).map(|(ours, theirs)| ours / theirs))
}
