//! Planned faults: a seeded list of episodes, as data.
//!
//! An [`Episode`] is one fault with a beginning and an end, such as "b loses power at 3.1 s, for 2 s". The whole list is
//! drawn before the first episode begins, from a stream of its own, so shrinking can leave single episodes out without
//! changing the others.
//!
//! Swarm testing: each seed switches a random half of the kinds on, with random rates. A run with few kinds of faults, but
//! many of each, gets into states that a run with a little of everything never reaches.

use std::fmt;
use std::time::Duration;

use crate::sim::rng::Rng;

/// A plan of faults for [`Sim::chaos`](crate::sim::Sim::chaos): which kinds, how often, and what is spared.
///
/// ```
/// use std::time::Duration;
/// use windlass::sim::{Chaos, FaultKind};
///
/// // The seed picks the kinds and rates. Two of the hosts are always up and connected to each other.
/// let any = Chaos::swarm().keep_quorum(2).clock_skew(Duration::from_millis(200));
/// // Power failures only, about one every five seconds.
/// let power = Chaos::only([FaultKind::PowerLoss]).every(Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Chaos {
    kinds: Vec<FaultKind>,
    is_swarm: bool,
    /// The mean time between two faults of one kind.
    gap: Option<Duration>,
    length: Option<Duration>,
    quorum: usize,
    skew: Duration,
    period: Duration,
}

/// The kinds of planned faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FaultKind {
    /// Some hosts cannot reach the others, in both directions.
    Cut,
    /// Some hosts cannot reach the others, but hear from them.
    CutOneWay,
    /// A link has a multiple of its latency.
    Slow,
    /// Datagrams are lost, duplicated and reordered; connections are delayed by retransmissions.
    Lossy,
    /// A process ends without cleanup and starts again later. Its disk keeps everything.
    Kill,
    /// A host loses power and starts again later. Its disk loses what was not synced.
    PowerLoss,
    /// A process gets no processor time, as with `SIGSTOP`.
    Pause,
    /// A host's wall clock jumps.
    ClockJump,
    /// A disk answers nothing for a while.
    DiskStall,
    /// Reads, writes or syncs of a disk fail.
    DiskError,
}

const ALL: [FaultKind; 10] = [
    FaultKind::Cut,
    FaultKind::CutOneWay,
    FaultKind::Slow,
    FaultKind::Lossy,
    FaultKind::Kill,
    FaultKind::PowerLoss,
    FaultKind::Pause,
    FaultKind::ClockJump,
    FaultKind::DiskStall,
    FaultKind::DiskError,
];

/// Episodes of one kind in a plan.
const MAX_PER_KIND: usize = 32;

impl Chaos {
    /// Every kind of fault may happen; the seed picks about half of them for a run, and how often each happens.
    pub fn swarm() -> Chaos {
        Chaos {
            is_swarm: true,
            ..Chaos::only(ALL)
        }
    }

    /// These kinds of faults, all of them in each run.
    pub fn only(kinds: impl IntoIterator<Item = FaultKind>) -> Chaos {
        Chaos {
            kinds: kinds.into_iter().collect(),
            is_swarm: false,
            gap: None,
            length: None,
            quorum: 0,
            skew: Duration::ZERO,
            period: Duration::from_secs(60),
        }
    }

    /// Never this kind of fault.
    pub fn without(mut self, kind: FaultKind) -> Chaos {
        self.kinds.retain(|other| *other != kind);
        self
    }

    /// At each moment at least this many hosts are running, connected to each other and have a working disk.
    pub fn keep_quorum(mut self, hosts: usize) -> Chaos {
        self.quorum = hosts;
        self
    }

    /// The wall clock of each host is wrong by up to this much, either way; jumps stay within it too. Without this
    /// call, wall clocks begin right, and are wrong by up to an hour after a jump.
    pub fn clock_skew(mut self, most: Duration) -> Chaos {
        self.skew = most;
        self
    }

    /// The mean time between two faults of one kind. By default the seed picks it, between 0.5 and 20 seconds.
    pub fn every(mut self, mean: Duration) -> Chaos {
        self.gap = Some(mean);
        self
    }

    /// The mean time that a fault lasts. By default the seed picks it, between 0.1 and 10 seconds.
    pub fn lasting(mut self, mean: Duration) -> Chaos {
        self.length = Some(mean);
        self
    }

    /// How long new faults begin, from the call of `Sim::chaos` on. By default one minute.
    pub fn during(mut self, period: Duration) -> Chaos {
        self.period = period;
        self
    }

    /// The plan for these hosts, sorted by its beginning.
    pub(crate) fn plan(&self, rng: &mut Rng, hosts: &[String]) -> Vec<Episode> {
        let mut plan = Plan {
            hosts,
            spare: hosts.len().saturating_sub(self.quorum),
            episodes: Vec::new(),
        };
        if !self.skew.is_zero() {
            for host in hosts {
                let fault = Fault::WallClock {
                    host: host.clone(),
                    off_by_ns: signed(rng, self.skew),
                };
                plan.episodes.push((
                    Episode {
                        from_ns: 0,
                        until_ns: 0,
                        fault,
                    },
                    Vec::new(),
                ));
            }
        }
        for &kind in &self.kinds {
            // Drawn for each kind, used or not: leaving a kind out does not change the others.
            let mut rng = Rng::from_seed(rng.next_u64());
            let is_on = rng.chance(0.5);
            let gap = self
                .gap
                .map_or_else(|| log_uniform(&mut rng, 0.5, 20.0), |gap| gap.as_secs_f64());
            let length = self
                .length
                .map_or_else(|| log_uniform(&mut rng, 0.1, 10.0), |length| length.as_secs_f64());
            if !is_on && self.is_swarm {
                continue;
            }
            let mut at = rng.exponential(gap);
            let mut count = 0;
            while at < self.period.as_secs_f64() && count < MAX_PER_KIND {
                let end = at + rng.exponential(length).max(0.001);
                plan.draw(&mut rng, kind, nanos(at), nanos(end), self.skew);
                at += rng.exponential(gap);
                count += 1;
            }
        }
        // A stable sort by time: ties keep the order of the kinds.
        plan.episodes.sort_by_key(|(episode, _)| episode.from_ns);
        plan.episodes.into_iter().map(|(episode, _)| episode).collect()
    }
}

/// One planned fault, in nanoseconds after the plan's beginning.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Episode {
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
    pub(crate) fault: Fault,
}

/// What happens in an episode. Hosts by name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    Cut {
        from: Vec<String>,
        to: Vec<String>,
        both_ways: bool,
    },
    Slow {
        from: String,
        to: String,
        factor: u32,
    },
    Lossy {
        loss: f64,
        duplicate: f64,
        reorder: f64,
    },
    Crash {
        host: String,
        power: bool,
    },
    Pause {
        host: String,
    },
    /// The host's wall clock is wrong by this much from now on, until another episode changes it.
    WallClock {
        host: String,
        off_by_ns: i64,
    },
    DiskStall {
        host: String,
    },
    DiskError {
        host: String,
        error: DiskError,
    },
}

/// What a failing disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskError {
    Read,
    Write,
    /// The sync fails and drops the pages; the next sync succeeds.
    Sync,
    NoSpace,
}

impl Episode {
    /// Whether two episodes happen at one time.
    fn overlaps(&self, other: &Episode) -> bool {
        self.from_ns <= other.until_ns && other.from_ns <= self.until_ns
    }
}

impl Fault {
    /// The host that the fault is about, if it is one.
    pub(crate) fn host(&self) -> Option<&str> {
        self.slot().1
    }

    /// The setting that the fault changes. Two episodes that change the same one never overlap, so that the end of one
    /// does not end the other.
    fn slot(&self) -> (u8, Option<&str>) {
        match self {
            Fault::Cut { .. } => (0, None),
            Fault::Slow { .. } => (1, None),
            Fault::Lossy { .. } => (2, None),
            Fault::Crash { host, .. } | Fault::Pause { host } => (3, Some(host)),
            Fault::WallClock { host, .. } => (4, Some(host)),
            Fault::DiskStall { host } | Fault::DiskError { host, .. } => (5, Some(host)),
        }
    }
}

/// A plan under construction.
struct Plan<'a> {
    hosts: &'a [String],
    /// The number of hosts that may be hit at the same time.
    spare: usize,
    /// With the numbers of the hosts that do not count for the quorum meanwhile.
    episodes: Vec<(Episode, Vec<usize>)>,
}

impl Plan<'_> {
    /// Draws the details of an episode, and adds it if the quorum and the other episodes allow it.
    fn draw(&mut self, rng: &mut Rng, kind: FaultKind, from_ns: u64, until_ns: u64, skew: Duration) {
        let count = self.hosts.len();
        if count == 0 {
            return;
        }
        // Drawn in any case, so that one kind's details do not depend on which of its episodes were possible.
        let order = {
            let mut order: Vec<usize> = (0..count).collect();
            rng.shuffle(&mut order);
            order
        };
        let (size, word, amount) = (rng.next_u64(), rng.next_u64(), rng.unit());
        let host = || self.hosts[order[0]].clone();
        let (fault, hit) = match kind {
            FaultKind::Cut | FaultKind::CutOneWay => {
                if count < 2 {
                    return;
                }
                // The smaller side is the one that is lost to the others.
                let most = (count / 2).min(self.spare);
                if most == 0 {
                    return;
                }
                let cut_off = 1 + (size % most as u64) as usize;
                let names = |numbers: &[usize]| numbers.iter().map(|number| self.hosts[*number].clone()).collect();
                let (few, many) = (names(&order[..cut_off]), names(&order[cut_off..]));
                let both_ways = kind == FaultKind::Cut;
                let (from, to) = if both_ways || word & 1 == 0 {
                    (few, many)
                } else {
                    (many, few)
                };
                (Fault::Cut { from, to, both_ways }, order[..cut_off].to_vec())
            }
            FaultKind::Slow => {
                let Some(&other) = order.get(1) else { return };
                let factor = 2 + (word % 99) as u32;
                (
                    Fault::Slow {
                        from: host(),
                        to: self.hosts[other].clone(),
                        factor,
                    },
                    vec![],
                )
            }
            FaultKind::Lossy => {
                let part = |bits: u64| (bits % 1_000) as f64 / 1_000.0;
                let (duplicate, reorder) = (0.3 * part(word), 0.5 * part(word >> 32));
                (
                    Fault::Lossy {
                        loss: 0.5 * amount * amount,
                        duplicate,
                        reorder,
                    },
                    vec![],
                )
            }
            FaultKind::Kill => (
                Fault::Crash {
                    host: host(),
                    power: false,
                },
                vec![order[0]],
            ),
            FaultKind::PowerLoss => (
                Fault::Crash {
                    host: host(),
                    power: true,
                },
                vec![order[0]],
            ),
            FaultKind::Pause => (Fault::Pause { host: host() }, vec![order[0]]),
            FaultKind::ClockJump => {
                let most = if skew.is_zero() {
                    Duration::from_secs(3_600)
                } else {
                    skew
                };
                (
                    Fault::WallClock {
                        host: host(),
                        off_by_ns: signed(rng, most),
                    },
                    vec![],
                )
            }
            FaultKind::DiskStall => (Fault::DiskStall { host: host() }, vec![order[0]]),
            FaultKind::DiskError => {
                let errors = [DiskError::Read, DiskError::Write, DiskError::Sync, DiskError::NoSpace];
                let error = errors[(word % 4) as usize];
                (Fault::DiskError { host: host(), error }, vec![order[0]])
            }
        };
        let episode = Episode {
            from_ns,
            until_ns,
            fault,
        };
        if self.allows(&episode, &hit) {
            self.episodes.push((episode, hit));
        }
    }

    fn allows(&self, episode: &Episode, hit: &[usize]) -> bool {
        let mut lost: Vec<usize> = hit.to_vec();
        for (other, other_hit) in self.episodes.iter().filter(|(other, _)| other.overlaps(episode)) {
            if other.fault.slot() == episode.fault.slot() {
                return false;
            }
            // More than are lost at any one moment, if the others do not overlap each other: the careful side.
            lost.extend(other_hit);
        }
        lost.sort_unstable();
        lost.dedup();
        hit.is_empty() || lost.len() <= self.spare
    }
}

impl fmt::Display for Episode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ns: u64| ns as f64 / 1e9;
        write!(
            f,
            "{:.3}-{:.3} s: {}",
            seconds(self.from_ns),
            seconds(self.until_ns),
            self.fault
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Cut { from, to, both_ways } => {
                let arrow = if *both_ways { "<->" } else { "->" };
                write!(f, "cut {} {arrow} {}", from.join(","), to.join(","))
            }
            Fault::Slow { from, to, factor } => write!(f, "{from} -> {to} {factor} times slower"),
            Fault::Lossy {
                loss,
                duplicate,
                reorder,
            } => {
                write!(
                    f,
                    "lossy network: loss {loss:.3}, duplicates {duplicate:.3}, reordered {reorder:.3}"
                )
            }
            Fault::Crash { host, power: true } => write!(f, "{host} loses power"),
            Fault::Crash { host, power: false } => write!(f, "{host} is killed"),
            Fault::Pause { host } => write!(f, "{host} is paused"),
            Fault::WallClock { host, off_by_ns } => {
                write!(f, "wall clock of {host} is wrong by {:.6} s", *off_by_ns as f64 / 1e9)
            }
            Fault::DiskStall { host } => write!(f, "disk of {host} stalls"),
            Fault::DiskError { host, error } => {
                let what = match error {
                    DiskError::Read => "reads fail (EIO)",
                    DiskError::Write => "writes fail (EIO)",
                    DiskError::Sync => "syncs fail and lose pages (EIO)",
                    DiskError::NoSpace => "no space (ENOSPC)",
                };
                write!(f, "disk of {host}: {what}")
            }
        }
    }
}

/// Seconds between `low` and `high`, each order of magnitude as likely.
fn log_uniform(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low * crate::rand::exp(crate::rand::ln(high / low) * rng.unit())
}

/// Nanoseconds up to `most`, either way.
fn signed(rng: &mut Rng, most: Duration) -> i64 {
    let most = i64::try_from(most.as_nanos()).unwrap_or(i64::MAX / 2).min(i64::MAX / 2);
    rng.below(2 * most as u64 + 1) as i64 - most
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("h{number}")).collect()
    }

    /// The hosts that an episode takes out of the quorum: the smaller side of a cut.
    fn hit(fault: &Fault) -> Vec<&String> {
        match fault {
            Fault::Cut { from, to, .. } => if from.len() <= to.len() { from } else { to }.iter().collect(),
            Fault::Crash { host, .. } | Fault::Pause { host } => vec![host],
            Fault::DiskStall { host } | Fault::DiskError { host, .. } => vec![host],
            Fault::Slow { .. } | Fault::Lossy { .. } | Fault::WallClock { .. } => vec![],
        }
    }

    #[test]
    fn a_plan_depends_on_the_seed_alone_and_seeds_differ() {
        let chaos = Chaos::swarm().keep_quorum(2).clock_skew(Duration::from_millis(200));
        let plan = |seed| chaos.plan(&mut Rng::from_seed(seed), &names(3));
        assert_eq!(plan(5), plan(5));
        assert_ne!(plan(5), plan(6));
        let lens: Vec<usize> = (0..100).map(|seed| plan(seed).len()).collect();
        assert!(
            lens.iter().any(|len| *len > 70) && lens.iter().any(|len| *len < 25),
            "{lens:?}"
        );
    }

    #[test]
    fn every_kind_happens_in_some_seed_and_is_missing_in_another() {
        for (kind, is_kind) in [
            (
                FaultKind::Cut,
                (|fault| matches!(fault, Fault::Cut { both_ways: true, .. })) as fn(&Fault) -> bool,
            ),
            (FaultKind::CutOneWay, |fault| {
                matches!(fault, Fault::Cut { both_ways: false, .. })
            }),
            (FaultKind::Slow, |fault| matches!(fault, Fault::Slow { .. })),
            (FaultKind::Lossy, |fault| matches!(fault, Fault::Lossy { .. })),
            (FaultKind::Kill, |fault| {
                matches!(fault, Fault::Crash { power: false, .. })
            }),
            (FaultKind::PowerLoss, |fault| {
                matches!(fault, Fault::Crash { power: true, .. })
            }),
            (FaultKind::Pause, |fault| matches!(fault, Fault::Pause { .. })),
            (FaultKind::ClockJump, |fault| matches!(fault, Fault::WallClock { .. })),
            (FaultKind::DiskStall, |fault| matches!(fault, Fault::DiskStall { .. })),
            (FaultKind::DiskError, |fault| matches!(fault, Fault::DiskError { .. })),
        ] {
            let has = |chaos: &Chaos, seed| {
                chaos
                    .plan(&mut Rng::from_seed(seed), &names(3))
                    .iter()
                    .any(|episode| is_kind(&episode.fault))
            };
            let swarm = Chaos::swarm();
            let count = (0..100).filter(|seed| has(&swarm, *seed)).count();
            assert!((20..80).contains(&count), "{kind:?} in {count} of 100 seeds");
            let without = Chaos::swarm().without(kind);
            assert!((0..100).all(|seed| !has(&without, seed)), "{kind:?}");
            let only = Chaos::only([kind]).every(Duration::from_secs(2));
            assert!((0..20).all(|seed| has(&only, seed)), "{kind:?}");
        }
    }

    #[test]
    fn a_quorum_is_left_at_each_moment_and_no_setting_is_used_twice() {
        let chaos = Chaos::only(ALL).every(Duration::from_secs(2)).keep_quorum(3);
        for seed in 0..50 {
            let plan = chaos.plan(&mut Rng::from_seed(seed), &names(5));
            assert!(plan.len() > 20, "{}", plan.len());
            assert!(plan.is_sorted_by_key(|episode| episode.from_ns));
            for episode in &plan {
                let now = episode.from_ns;
                let active: Vec<&Episode> = plan
                    .iter()
                    .filter(|other| other.from_ns <= now && now <= other.until_ns)
                    .collect();
                let mut lost: Vec<&String> = active.iter().flat_map(|other| hit(&other.fault)).collect();
                lost.sort();
                lost.dedup();
                assert!(lost.len() <= 2, "seed {seed}: {lost:?}");
                let mut slots: Vec<_> = active.iter().map(|other| other.fault.slot()).collect();
                slots.sort();
                let len = slots.len();
                slots.dedup();
                assert_eq!(slots.len(), len, "seed {seed}: {active:?}");
            }
        }
    }

    #[test]
    fn a_lonely_or_precious_host_is_spared() {
        for seed in 0..20 {
            let lonely = Chaos::only([FaultKind::Cut, FaultKind::CutOneWay, FaultKind::Slow]);
            assert!(lonely.plan(&mut Rng::from_seed(seed), &names(1)).is_empty());
            let precious = Chaos::swarm().keep_quorum(3).plan(&mut Rng::from_seed(seed), &names(3));
            assert!(precious.iter().all(|episode| hit(&episode.fault).is_empty()));
            assert!(Chaos::swarm().plan(&mut Rng::from_seed(seed), &[]).is_empty());
        }
    }

    #[test]
    fn skew_bounds_jumps() {
        let most = Duration::from_millis(200);
        let chaos = Chaos::only([FaultKind::ClockJump])
            .every(Duration::from_secs(1))
            .clock_skew(most);
        let plan = chaos.plan(&mut Rng::from_seed(1), &names(3));
        assert!(plan.len() > 20);
        for episode in plan {
            let Fault::WallClock { off_by_ns, .. } = episode.fault else {
                panic!("{episode}")
            };
            assert!(off_by_ns.unsigned_abs() <= most.as_nanos() as u64);
        }
    }
}
