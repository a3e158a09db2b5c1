//! Interleaved rounds; and several ways to do one thing, measured in such rounds and told in one table.

use std::io;

use super::stats::{Spread, paired_ratio};
use super::text::{cells, lay_out, ratio};

/// Gives every contender its turn in every round, each round beginning with the next (A B C, B C A, C A B): a machine
/// that slows down slows down everybody, and nobody is always the first. A turn is told its round, counted from one;
/// who fails in it is out.
pub(crate) fn take_turns<T>(rounds: usize, contenders: &mut Vec<T>, mut turn: impl FnMut(usize, &mut T) -> bool) {
    for round in 1..=rounds {
        contenders.retain_mut(|contender| turn(round, contender));
        if !contenders.is_empty() {
            contenders.rotate_left(1);
        }
    }
}

/// One way to do it.
pub(crate) struct Way<'a> {
    pub(crate) name: String,
    /// Measures one round and gives its figure.
    pub(crate) measure: Box<dyn FnMut() -> io::Result<f64> + 'a>,
}

impl<'a> Way<'a> {
    pub(crate) fn new(name: impl Into<String>, measure: impl FnMut() -> io::Result<f64> + 'a) -> Way<'a> {
        Way {
            name: name.into(),
            measure: Box::new(measure),
        }
    }
}

/// What each way measured, round by round; of one that failed, why.
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) figures: Result<Vec<f64>, String>,
}

/// Measures all ways in each round, in turns; what they measured is in the order that they were given in. One that
/// fails is left out of the rounds that follow.
pub(crate) fn interleave(rounds: usize, ways: Vec<Way<'_>>) -> Vec<Measured> {
    let mut measured: Vec<Measured> = Vec::new();
    let mut ways = ways;
    for way in &ways {
        let (name, figures) = (way.name.clone(), Ok(Vec::new()));
        measured.push(Measured { name, figures });
    }
    let mut contenders: Vec<_> = ways.iter_mut().zip(&mut measured).collect();
    take_turns(rounds, &mut contenders, |_, (way, row)| {
        let Ok(figures) = &mut row.figures else {
            return false;
        };
        match (way.measure)() {
            Ok(figure) => figures.push(figure),
            Err(error) => row.figures = Err(error.to_string()),
        }
        row.figures.is_ok()
    });
    measured
}

/// A table: the median of each way, the least and the most, and its ratio to the first way, round by round.
pub(crate) fn table(title: &str, unit: &str, measured: &[Measured], tell: impl Fn(f64) -> String) -> String {
    let first = measured.first();
    let limit = first.and_then(|row| row.figures.as_ref().ok());
    let against = format!("x {}", first.map_or("", |row| &row.name));
    let mut rows = vec![cells([title, unit, "least to most", &against, ""])];
    let mut refusals = String::new();
    for row in measured {
        let figures = match &row.figures {
            Ok(figures) => figures.clone(),
            Err(why) => {
                refusals += &format!("  {} was left out: {why}\n", row.name);
                continue;
            }
        };
        let spread = Spread::of(figures.iter().copied());
        let beside = limit.map_or(f64::NAN, |limit| paired_ratio(figures, limit.iter().copied()).median);
        rows.push(vec![
            row.name.clone(),
            tell(spread.median),
            format!("{} to {}", tell(spread.least), tell(spread.most)),
            ratio(beside),
            if spread.is_noisy() { "noisy" } else { "" }.to_string(),
        ]);
    }
    lay_out(&rows, &[0, 4]) + &refusals
}
