//! `Pin`, which cpus the thread of each shard may run on.

use std::fmt;
use std::io;

use crate::sys::{self, CpuSet, Topology};

/// The cpus that the thread of each shard is bound to.
///
/// Only cpus that the process was started with are used: those of its affinity mask, as set by `taskset`, `start
/// /affinity` or a cpuset of its control group. Shards are spread evenly over the NUMA nodes. With more shards than there
/// are cpus, cores or nodes, the assignment wraps around, so that several shards share one.
///
/// Threads of [`spawn_blocking`](crate::spawn_blocking) and io_uring's own are not bound to the cpus of their shard.
///
/// ```
/// use windlass::shards::Pin;
/// // Leaves cpu 0 to interrupts: shard 0 runs on cpu 1, shard 1 on cpu 2, and so on.
/// let pin = Pin::To(Box::new(|shard| vec![shard + 1]));
/// assert_eq!(format!("{pin:?}"), "To(..)");
/// ```
///
/// # Platform differences
///
/// Linux, FreeBSD and Windows can bind a thread to cpus; elsewhere, everything but `No` is an error of kind
/// [`Unsupported`](io::ErrorKind::Unsupported). Cores and NUMA nodes are known on Linux. On the others each cpu counts as
/// a core of its own, and all of them as one node. On Windows, cpu `n` is number `n % 64` of processor group `n / 64`,
/// and a shard's cpus must be in one group to be used together.
#[derive(Default)]
#[non_exhaustive]
pub enum Pin {
    /// The OS chooses, and may move threads at any time.
    #[default]
    No,
    /// One cpu for each shard. The first shards get cores of their own; after that come the other hyperthreads.
    OneCpuEach,
    /// All hyperthreads of one core for each shard.
    OneCoreEach,
    /// All cpus of one NUMA node for each shard. A node with more cpus gets more shards.
    NodeEach,
    /// The cpus that the function returns for the number of a shard. A set that is empty, or contains a cpu that the process
    /// may not use, is an error of kind [`InvalidInput`](io::ErrorKind::InvalidInput).
    To(Box<dyn Fn(usize) -> Vec<usize> + Send + Sync>),
}

impl Pin {
    /// [`plan`](Pin::plan) for this process and machine. `No` asks for neither, so it cannot fail.
    pub(crate) fn plan_here(&self, shards: usize) -> io::Result<Vec<Option<CpuSet>>> {
        match self {
            Pin::No => self.plan(shards, &CpuSet::default(), &Topology::default()),
            _ => self.plan(shards, sys::process_mask()?, &sys::topology()),
        }
    }

    /// The cpus of each shard, within `allowed`; `None` for a thread that is not bound.
    pub(crate) fn plan(&self, shards: usize, allowed: &CpuSet, topology: &Topology) -> io::Result<Vec<Option<CpuSet>>> {
        let nodes = || topology.grouped(allowed);
        let choices = match self {
            Pin::No => return Ok(vec![None; shards]),
            Pin::OneCpuEach => one_cpu_each(&interleave(nodes())),
            Pin::OneCoreEach => interleave(nodes()),
            Pin::NodeEach => node_each(&nodes(), shards),
            Pin::To(choose) => {
                let chosen = (0..shards).map(|shard| check(shard, choose(shard), allowed).map(Some));
                return chosen.collect();
            }
        };
        if choices.is_empty() && shards > 0 {
            let why = "no cpu is allowed, so shards cannot be bound to any";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(choices.into_iter().cycle().take(shards).map(Some).collect())
    }
}

/// All cores, one from each node in turn.
fn interleave(nodes: Vec<Vec<CpuSet>>) -> Vec<CpuSet> {
    let most = nodes.iter().map(Vec::len).max().unwrap_or(0);
    let rounds = (0..most).flat_map(|round| nodes.iter().filter_map(move |cores| cores.get(round)));
    rounds.cloned().collect()
}

/// The first hyperthread of each core, then the second of each, and so on.
fn one_cpu_each(cores: &[CpuSet]) -> Vec<CpuSet> {
    let most = cores.iter().map(CpuSet::len).max().unwrap_or(0);
    let cpus = (0..most).flat_map(|thread| cores.iter().filter_map(move |core| core.iter().nth(thread)));
    cpus.map(|cpu| CpuSet::from_iter([cpu])).collect()
}

/// The node of each shard: each goes to the node that has the most cpus for each of its shards.
fn node_each(nodes: &[Vec<CpuSet>], shards: usize) -> Vec<CpuSet> {
    let nodes: Vec<CpuSet> = nodes
        .iter()
        .map(|cores| cores.iter().flat_map(CpuSet::iter).collect())
        .collect();
    let mut counts = vec![0; nodes.len()];
    let mut next = || {
        // `a / b > c / d` without fractions. Of equal ones the first.
        let best = (0..nodes.len()).reduce(|best, node| {
            let is_better = nodes[node].len() * (counts[best] + 1) > nodes[best].len() * (counts[node] + 1);
            if is_better { node } else { best }
        })?;
        counts[best] += 1;
        Some(nodes[best].clone())
    };
    (0..shards).map_while(|_| next()).collect()
}

/// Refuses an empty set and cpus that are not allowed.
fn check(shard: usize, cpus: Vec<usize>, allowed: &CpuSet) -> io::Result<CpuSet> {
    let cpus = CpuSet::from_iter(cpus);
    let refused = cpus.difference(allowed);
    let why = if cpus.is_empty() {
        format!("Pin::To returned no cpu for shard {shard}")
    } else if !refused.is_empty() {
        format!(
            "Pin::To returned cpus {cpus} for shard {shard}, but this process may not use {refused}: only {allowed}"
        )
    } else {
        return Ok(cpus);
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pin::No => "No",
            Pin::OneCpuEach => "OneCpuEach",
            Pin::OneCoreEach => "OneCoreEach",
            Pin::NodeEach => "NodeEach",
            Pin::To(_) => "To(..)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &str) -> CpuSet {
        CpuSet::parse(list).expect("a list")
    }

    /// Two nodes of four cores with two hyperthreads each. As on most machines, the second hyperthreads come after all
    /// first ones: core 0 has cpus 0 and 8, and node 0 has cores 0 to 3.
    fn two_nodes() -> Topology {
        Topology {
            cores: (0..8).map(|core| CpuSet::from_iter([core, core + 8])).collect(),
            nodes: vec![set("0-3,8-11"), set("4-7,12-15")],
        }
    }

    fn plan_on(topology: &Topology, pin: &Pin, shards: usize, allowed: &str) -> Vec<String> {
        let plan = pin.plan(shards, &set(allowed), topology).expect("a plan");
        assert_eq!(plan.len(), shards);
        let name = |cpus: Option<CpuSet>| cpus.map_or("-".to_owned(), |cpus| cpus.to_string());
        plan.into_iter().map(name).collect()
    }

    #[track_caller]
    fn assert_plan(pin: Pin, shards: usize, allowed: &str, expected: &[&str]) {
        assert_eq!(plan_on(&two_nodes(), &pin, shards, allowed), expected, "{pin:?}");
    }

    #[test]
    fn by_default_nothing_is_bound() {
        assert_plan(Pin::default(), 3, "0-15", &["-", "-", "-"]);
        // Nor is an affinity needed.
        assert_plan(Pin::No, 2, "", &["-", "-"]);
    }

    #[test]
    fn one_cpu_each_takes_cores_before_hyperthreads() {
        assert_plan(Pin::OneCpuEach, 4, "0-15", &["0", "4", "1", "5"]);
        let all = plan_on(&two_nodes(), &Pin::OneCpuEach, 16, "0-15");
        assert_eq!(all[..8], ["0", "4", "1", "5", "2", "6", "3", "7"]);
        assert_eq!(all[8..], ["8", "12", "9", "13", "10", "14", "11", "15"]);
    }

    #[test]
    fn one_core_each_takes_all_hyperthreads() {
        assert_plan(Pin::OneCoreEach, 3, "0-15", &["0,8", "4,12", "1,9"]);
        let all = plan_on(&two_nodes(), &Pin::OneCoreEach, 8, "0-15");
        assert_eq!(all, ["0,8", "4,12", "1,9", "5,13", "2,10", "6,14", "3,11", "7,15"]);
    }

    #[test]
    fn node_each_alternates_between_equal_nodes() {
        let (first, second) = ("0-3,8-11", "4-7,12-15");
        assert_plan(Pin::NodeEach, 3, "0-15", &[first, second, first]);
    }

    #[test]
    fn more_shards_than_cpus_wrap_around() {
        assert_plan(Pin::OneCpuEach, 5, "2,6", &["2", "6", "2", "6", "2"]);
        assert_plan(Pin::OneCoreEach, 5, "0,8,4", &["0,8", "4", "0,8", "4", "0,8"]);
        assert_plan(Pin::OneCpuEach, 18, "0-15", &{
            let mut all = vec!["0", "4", "1", "5", "2", "6", "3", "7"];
            all.extend(["8", "12", "9", "13", "10", "14", "11", "15", "0", "4"]);
            all
        });
    }

    #[test]
    fn only_allowed_cpus_are_used() {
        // One core of the first node, and one hyperthread of each core of the second.
        let allowed = "3,11,12-15";
        assert_plan(Pin::OneCpuEach, 6, allowed, &["3", "12", "13", "14", "15", "11"]);
        assert_plan(Pin::OneCoreEach, 5, allowed, &["3,11", "12", "13", "14", "15"]);
        // Twice as many shards where there are twice as many cpus.
        assert_plan(Pin::NodeEach, 3, allowed, &["12-15", "3,11", "12-15"]);
        let shards = plan_on(&two_nodes(), &Pin::NodeEach, 12, allowed);
        assert_eq!(shards.iter().filter(|cpus| *cpus == "3,11").count(), 4);
        // One node is left.
        assert_plan(Pin::NodeEach, 2, "5-6", &["5-6", "5-6"]);
    }

    #[test]
    fn without_a_topology_each_cpu_is_a_core_of_one_node() {
        let plan = |pin| plan_on(&Topology::default(), &pin, 3, "1-3");
        assert_eq!(plan(Pin::OneCpuEach), ["1", "2", "3"]);
        assert_eq!(plan(Pin::OneCoreEach), ["1", "2", "3"]);
        assert_eq!(plan(Pin::NodeEach), ["1-3", "1-3", "1-3"]);
    }

    #[test]
    fn the_chosen_cpus_are_checked() {
        let pairs = || Pin::To(Box::new(|shard| vec![shard * 2 + 1, shard * 2]));
        assert_plan(pairs(), 3, "0-15", &["0-1", "2-3", "4-5"]);
        let refuse = |pin: Pin, allowed: &str| {
            let refused = pin.plan(3, &set(allowed), &two_nodes()).expect_err("a wrong set");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
            refused.to_string()
        };
        assert_eq!(
            refuse(pairs(), "0-2"),
            "Pin::To returned cpus 2-3 for shard 1, but this process may not use 3: only 0-2"
        );
        let none = Pin::To(Box::new(|shard| (shard..2).collect()));
        assert_eq!(refuse(none, "0-15"), "Pin::To returned no cpu for shard 2");
        let far = Pin::To(Box::new(|_| vec![usize::MAX]));
        assert!(refuse(far, "0-15").contains(&usize::MAX.to_string()));
    }

    #[test]
    fn no_allowed_cpu_is_an_error() {
        for pin in [Pin::OneCpuEach, Pin::OneCoreEach, Pin::NodeEach] {
            let refused = pin.plan(2, &CpuSet::default(), &two_nodes()).expect_err("no cpu");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(pin.plan(0, &CpuSet::default(), &two_nodes()).expect("no shard"), []);
        }
    }
}
