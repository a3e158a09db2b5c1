//! Interleaved rounds, and tables that compare several ways to do one thing.

use std::io;

use super::stats::{Spread, paired_ratio};
use super::text::{cells, lay_out, ratio};

/// Runs every contender in every round, each round starting with the next one (A B C, B C A, C A B): a machine that
/// slows down affects all of them, and none is always first. The callback gets the round, counted from one; a contender
/// that fails is left out of later rounds.
pub(crate) fn take_turns<T>(rounds: usize, contenders: &mut Vec<T>, mut turn: impl FnMut(usize, &mut T) -> bool) {
    for round in 1..=rounds {
        contenders.retain_mut(|contender| turn(round, contender));
        if !contenders.is_empty() {
            contenders.rotate_left(1);
        }
    }
}

/// One of the compared ways.
pub(crate) struct Way<'a> {
    pub(crate) name: String,
    /// Measures one round.
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

/// The figures of a way, round by round, or its error.
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) figures: Result<Vec<f64>, String>,
}

/// Measures all ways in interleaved rounds; the results are in the order of the arguments. A way that fails is left out
/// of later rounds.
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

/// A table: median, minimum and maximum of each way, and its ratio to the first way, computed within the rounds.
pub(crate) fn table(title: &str, unit: &str, measured: &[Measured], tell: impl Fn(f64) -> String) -> String {
    let first = measured.first();
    let limit = first.and_then(|row| row.figures.as_ref().ok());
    let against = format!("x {}", first.map_or("", |row| &row.name));
    let mut rows = vec![cells([title, unit, "min to max", &against, ""])];
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
