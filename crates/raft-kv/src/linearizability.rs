//! Decides whether a history of requests is linearizable: whether each could have happened at one moment between its begin
//! and its end, all of them on a single copy.
//!
//! It is the algorithm of Wing and Gong with Lowe's cache of states. Keys are independent, so each is checked alone. The
//! search takes requests in an order that respects the real one, goes back when a result does not fit, and never visits the
//! same set of requests with the same value twice.
//!
//! A change without a result may have happened at any time after its begin, or never. If no other request has seen its
//! value, then leaving it out changes nothing for the others, so it is left out. That keeps the search short.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// A request and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The key.
    pub key: String,
    /// What was requested, and what came out.
    pub action: Action,
    /// The number of the event at which it began. Events are numbered in the order in which they happened.
    pub begin: u64,
    /// The number of the event at which its result was there; `None` if the result is unknown.
    pub end: Option<u64>,
}

/// What a request did. The results of one that has no end are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read this value; `None`: the key was absent.
    Get(Option<String>),
    /// Set this value.
    Put(String),
    /// Compared and set.
    Cas {
        /// The value that the key must have.
        expect: Option<String>,
        /// The new value.
        value: String,
        /// `Err`: the key had this value instead.
        result: Result<(), Option<String>>,
    },
}

/// A history that no single copy could have produced.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The key whose requests cannot be put into an order.
    pub key: String,
    /// The requests up to the first that does not fit, at most 30.
    pub ops: Vec<Op>,
}

/// Checks a history. Returns the number of requests that were put into an order.
pub fn check(history: &[Op]) -> Result<usize, Violation> {
    let mut by_key: BTreeMap<&str, Vec<&Op>> = BTreeMap::new();
    for op in history {
        by_key.entry(&op.key).or_default().push(op);
    }
    let mut count = 0;
    for (key, mut ops) in by_key {
        ops.sort_by_key(|op| op.begin);
        let mut search = Search::new(&ops);
        if !search.run() {
            let stuck = search.furthest.min(ops.len() - 1);
            let shown = ops[..=stuck].iter().rev().take(30).rev();
            return Err(Violation {
                key: key.to_owned(),
                ops: shown.map(|op| (*op).clone()).collect(),
            });
        }
        count += search.steps.len();
    }
    Ok(count)
}

/// A value of the key, by number; 0 is absent.
type Value = u32;

#[derive(Clone, Copy)]
enum Step {
    Get(Value),
    Put(Value),
    /// The result is known to be that the value was set, or unknown.
    Set(Value, Value),
    /// The key had this value, not the expected one.
    Mismatch {
        expect: Value,
        current: Value,
    },
}

impl Step {
    /// The value after this step, or `None` if its result does not fit.
    fn apply(self, value: Value) -> Option<Value> {
        match self {
            Step::Get(seen) => (seen == value).then_some(value),
            Step::Put(new) => Some(new),
            Step::Set(expect, new) => (expect == value).then_some(new),
            Step::Mismatch { expect, current } => (current == value && expect != value).then_some(value),
        }
    }
}

struct Search {
    /// By their begin.
    steps: Vec<(Step, u64, Option<u64>)>,
    /// The index of each step in the history of the key.
    origin: Vec<usize>,
    /// The steps that have been taken, as a set of bits.
    taken: Vec<u64>,
    /// The first step that has not been taken.
    first: usize,
    /// Steps with a known result that have not been taken.
    left: usize,
    seen: HashSet<(Vec<u64>, Value)>,
    /// How far into the history of the key the search has come.
    furthest: usize,
}

impl Search {
    fn new(ops: &[&Op]) -> Search {
        let observed: HashSet<&str> = ops.iter().flat_map(|op| observes(op)).collect();
        let mut numbers = HashMap::new();
        let mut number = |value: Option<&str>| match value {
            None => 0,
            Some(value) => {
                let next = numbers.len() as Value + 1;
                *numbers.entry(value.to_owned()).or_insert(next)
            }
        };
        let (mut steps, mut origin) = (Vec::new(), Vec::new());
        for (index, op) in ops.iter().enumerate() {
            let step = match &op.action {
                Action::Get(_) if op.end.is_none() => continue,
                Action::Put(value) | Action::Cas { value, .. }
                    if op.end.is_none() && !observed.contains(value.as_str()) =>
                {
                    continue;
                }
                Action::Get(value) => Step::Get(number(value.as_deref())),
                Action::Put(value) => Step::Put(number(Some(value))),
                Action::Cas {
                    expect,
                    result: Err(current),
                    ..
                } if op.end.is_some() => Step::Mismatch {
                    expect: number(expect.as_deref()),
                    current: number(current.as_deref()),
                },
                Action::Cas { expect, value, .. } => Step::Set(number(expect.as_deref()), number(Some(value))),
            };
            steps.push((step, op.begin, op.end));
            origin.push(index);
        }
        Search {
            taken: vec![0; steps.len().div_ceil(64)],
            first: 0,
            left: steps.iter().filter(|(_, _, end)| end.is_some()).count(),
            seen: HashSet::new(),
            furthest: 0,
            steps,
            origin,
        }
    }

    /// Whether there is an order.
    fn run(&mut self) -> bool {
        let mut value = 0;
        let mut path: Vec<(usize, Value)> = Vec::new();
        let mut from = 0;
        while self.left > 0 {
            match self.next(from, value) {
                Some((index, new)) => {
                    self.toggle(index);
                    path.push((index, value));
                    (value, from) = (new, 0);
                }
                None => {
                    let Some((index, before)) = path.pop() else {
                        return false;
                    };
                    self.toggle(index);
                    (value, from) = (before, index + 1);
                }
            }
        }
        true
    }

    /// The next step that can be taken now, from this index on, and the value after it. A step can be taken if no other one
    /// that is left had ended when it began.
    fn next(&mut self, from: usize, value: Value) -> Option<(usize, Value)> {
        let mut first_end = u64::MAX;
        for index in self.first..self.steps.len() {
            let (step, begin, end) = self.steps[index];
            if begin > first_end {
                break;
            }
            if self.is_taken(index) {
                continue;
            }
            self.furthest = self.furthest.max(self.origin[index]);
            first_end = first_end.min(end.unwrap_or(u64::MAX));
            if index < from {
                continue;
            }
            if let Some(new) = step.apply(value) {
                let mut taken = self.taken.clone();
                taken[index / 64] ^= 1 << (index % 64);
                if self.seen.insert((taken, new)) {
                    return Some((index, new));
                }
            }
        }
        None
    }

    fn is_taken(&self, index: usize) -> bool {
        self.taken[index / 64] & 1 << (index % 64) != 0
    }

    fn toggle(&mut self, index: usize) {
        self.taken[index / 64] ^= 1 << (index % 64);
        let has_end = usize::from(self.steps[index].2.is_some());
        if self.is_taken(index) {
            self.left -= has_end;
            while self.first < self.steps.len() && self.is_taken(self.first) {
                self.first += 1;
            }
        } else {
            self.left += has_end;
            self.first = self.first.min(index);
        }
    }
}

/// The values whose presence a request has shown, or relies on.
fn observes(op: &Op) -> impl Iterator<Item = &str> {
    let (one, other) = match &op.action {
        Action::Get(value) if op.end.is_some() => (value.as_deref(), None),
        Action::Cas {
            expect,
            result: Err(current),
            ..
        } if op.end.is_some() => (current.as_deref(), expect.as_deref()),
        Action::Cas { expect, .. } => (expect.as_deref(), None),
        _ => (None, None),
    };
    one.into_iter().chain(other)
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not linearizable: key {}", self.key)?;
        self.ops.iter().try_for_each(|op| write!(f, "\n  {op}"))
    }
}

impl std::error::Error for Violation {}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        match self.end {
            Some(end) => write!(f, "{:>6} to {end:>6}  ", self.begin)?,
            None => write!(f, "{:>6} to unknown ", self.begin)?,
        }
        match &self.action {
            Action::Get(value) => write!(f, "get: {}", text(value)),
            Action::Put(value) => write!(f, "put {value}"),
            Action::Cas { expect, value, result } => {
                write!(f, "cas {} to {value}", text(expect))?;
                match result {
                    Err(current) if self.end.is_some() => write!(f, ": is {}", text(current)),
                    _ => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass::rand::Rng;

    use super::*;

    fn op(action: Action, begin: u64, end: impl Into<Option<u64>>) -> Op {
        let (key, end) = ("k".to_owned(), end.into());
        Op {
            key,
            action,
            begin,
            end,
        }
    }

    fn get(value: &str, begin: u64, end: u64) -> Op {
        op(Action::Get(some(value)), begin, end)
    }

    fn put(value: &str, begin: u64, end: impl Into<Option<u64>>) -> Op {
        op(Action::Put(value.to_owned()), begin, end)
    }

    fn cas(expect: &str, value: &str, begin: u64, end: impl Into<Option<u64>>) -> Op {
        cas_with(expect, value, Ok(()), begin, end)
    }

    fn cas_with(
        expect: &str,
        value: &str,
        result: Result<(), Option<String>>,
        begin: u64,
        end: impl Into<Option<u64>>,
    ) -> Op {
        let (expect, value) = (some(expect), value.to_owned());
        op(Action::Cas { expect, value, result }, begin, end)
    }

    /// The empty text is an absent key.
    fn some(value: &str) -> Option<String> {
        (!value.is_empty()).then(|| value.to_owned())
    }

    fn accepts(history: &[Op]) {
        check(history).unwrap();
    }

    fn rejects(history: &[Op]) {
        assert!(check(history).is_err(), "{history:?}");
    }

    #[test]
    fn one_after_the_other() {
        accepts(&[]);
        accepts(&[
            get("", 1, 2),
            put("a", 3, 4),
            get("a", 5, 6),
            cas("a", "b", 7, 8),
            get("b", 9, 10),
        ]);
        rejects(&[get("a", 1, 2)]);
        rejects(&[put("a", 1, 2), get("", 3, 4)]);
        rejects(&[put("a", 1, 2), put("b", 3, 4), get("a", 5, 6)]);
    }

    #[test]
    fn concurrent_requests_take_any_order() {
        accepts(&[put("a", 1, 10), get("", 2, 3), get("a", 4, 5)]);
        accepts(&[put("a", 1, 10), put("b", 2, 9), get("b", 11, 12)]);
        accepts(&[put("a", 1, 10), put("b", 2, 9), get("a", 11, 12)]);
        // The new value, and then the old one.
        rejects(&[put("a", 1, 10), get("a", 2, 3), get("", 4, 5)]);
        rejects(&[put("a", 1, 10), put("b", 2, 9), get("a", 11, 12), get("b", 13, 14)]);
    }

    #[test]
    fn compare_and_set_succeeds_once() {
        accepts(&[cas("", "a", 1, 9), cas_with("", "b", Err(some("a")), 2, 8)]);
        rejects(&[cas("", "a", 1, 9), cas("", "b", 2, 8)]);
        rejects(&[put("a", 1, 2), cas_with("a", "b", Err(some("a")), 3, 4)]);
        rejects(&[put("a", 1, 2), cas_with("b", "c", Err(some("d")), 3, 4)]);
        rejects(&[put("a", 1, 2), cas("b", "c", 3, 4)]);
    }

    #[test]
    fn unknown_results() {
        // It may have happened, never, or later.
        accepts(&[put("a", 1, None), get("", 2, 3)]);
        accepts(&[put("a", 1, None), get("a", 2, 3)]);
        accepts(&[put("a", 1, None), get("", 2, 3), get("a", 4, 5)]);
        accepts(&[
            put("a", 1, 2),
            put("b", 3, None),
            get("a", 4, 5),
            put("c", 6, 7),
            get("b", 8, 9),
        ]);
        accepts(&[cas("", "a", 1, None), cas("a", "b", 2, None), get("b", 3, 4)]);
        accepts(&[put("a", 1, None), cas("a", "b", 2, None), get("b", 3, 4)]);
        // Not before it began, not twice, and not where it does not fit.
        rejects(&[get("a", 1, 2), put("a", 3, None)]);
        rejects(&[
            put("a", 1, None),
            get("a", 2, 3),
            put("b", 4, 5),
            get("b", 6, 7),
            get("a", 8, 9),
        ]);
        rejects(&[put("x", 1, 2), cas("", "a", 3, None), get("a", 4, 5)]);
    }

    #[test]
    fn a_lost_write_and_a_stale_read_are_found() {
        let lost = [put("a", 1, 2), put("b", 3, 4), get("b", 5, 6), get("a", 7, 8)];
        let violation = check(&lost).unwrap_err().to_string();
        assert!(
            violation.contains("key k") && violation.contains("get: a"),
            "{violation}"
        );
        // On one key among others.
        let mut history = vec![Op {
            key: "other".to_owned(),
            ..get("", 1, 2)
        }];
        history.extend(lost);
        rejects(&history);
    }

    /// Histories of a real single copy, with random overlaps and lost results, are accepted; with a changed result most of
    /// them are not, and the one that the last request saw never is.
    #[test]
    fn random_histories() {
        let mut rng = Rng::from_seed(1);
        for round in 0..500 {
            let mut history = single_copy(&mut rng, 60);
            accepts(&history);
            let end = 10_000;
            let last = match history.iter().filter(|op| op.end.is_some()).count() {
                0 => continue,
                _ => get("never written", end, end + 1),
            };
            history.push(last);
            assert!(check(&history).is_err(), "round {round}");
        }
    }

    /// Changing one value that a read saw into the one before it must be noticed, unless the two requests overlap.
    #[test]
    fn every_stale_read_is_found() {
        for position in 1..40 {
            let mut history = Vec::new();
            for number in 0..40u64 {
                let begin = number * 4;
                history.push(put(&number.to_string(), begin, begin + 1));
                history.push(get(&number.to_string(), begin + 2, begin + 3));
            }
            accepts(&history);
            history[position * 2 + 1].action = Action::Get(Some((position - 1).to_string()));
            rejects(&history);
        }
    }

    /// Several clients on one copy. Each request takes effect at a random moment between its begin and end.
    fn single_copy(rng: &mut Rng, count: u64) -> Vec<Op> {
        let mut ops: Vec<(u64, Op)> = Vec::new();
        for number in 0..count {
            let begin = number * 10;
            let at = begin + rng.below(40);
            let end = at + rng.below(40);
            let value = number.to_string();
            let action = match rng.below(3) {
                0 => Action::Get(None),
                1 => Action::Put(value),
                _ => Action::Cas {
                    expect: Some(rng.below(count).to_string()).filter(|_| number > 3),
                    value,
                    result: Ok(()),
                },
            };
            ops.push((at, op(action, begin, Some(end))));
        }
        ops.sort_by_key(|(at, _)| *at);
        let mut current = None;
        for (_, op) in &mut ops {
            let is_lost = rng.chance(0.2);
            match &mut op.action {
                Action::Get(seen) => *seen = current.clone(),
                // Lost before it took effect.
                _ if is_lost && rng.chance(0.5) => op.end = None,
                Action::Put(value) => current = Some(value.clone()),
                Action::Cas { expect, value, result } => match *expect == current {
                    true => current = Some(value.clone()),
                    false => *result = Err(current.clone()),
                },
            }
            if is_lost {
                op.end = None;
            }
        }
        ops.into_iter().map(|(_, op)| op).collect()
    }
}
