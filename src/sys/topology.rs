//! Which processors share a core or a NUMA node.

use std::fs;
use std::path::Path;

use super::CpuSet;

/// The cores and NUMA nodes of the machine. A processor that is in none of `cores` is a core of its own, and all
/// processors that are in none of `nodes` form one more node. So the default, without either, suits every machine whose
/// topology is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    /// Disjoint: the hyperthreads of each core.
    pub(crate) cores: Vec<CpuSet>,
    /// Disjoint: the processors of each node.
    pub(crate) nodes: Vec<CpuSet>,
}

impl Topology {
    /// Reads Linux's `/sys/devices/system`, given as `folder`. Leaves out whatever is missing or cannot be parsed: sysfs
    /// may not be mounted, a kernel without NUMA has no nodes, and an offline processor has no topology.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "the layout of Linux"))]
    pub(crate) fn read(folder: &Path) -> Topology {
        let of_cpu = |cpu: &Path| {
            // Linux 5.4 renamed the second to the first.
            let lists = ["topology/core_cpus_list", "topology/thread_siblings_list"];
            lists.iter().find_map(|list| read_list(&cpu.join(list)))
        };
        Topology {
            cores: read_numbered(&folder.join("cpu"), "cpu", of_cpu),
            nodes: read_numbered(&folder.join("node"), "node", |node| read_list(&node.join("cpulist"))),
        }
    }

    /// The allowed processors by core and node: for each node its cores, without empty ones.
    pub(crate) fn grouped(&self, allowed: &CpuSet) -> Vec<Vec<CpuSet>> {
        let mut nodes: Vec<CpuSet> = self.nodes.iter().map(|node| node.intersection(allowed)).collect();
        let rest = nodes.iter().fold(allowed.clone(), |rest, node| rest.difference(node));
        nodes.push(rest);
        let cores_of = |node: &CpuSet| {
            let mut cores: Vec<CpuSet> = self.cores.iter().map(|core| core.intersection(node)).collect();
            let rest = cores.iter().fold(node.clone(), |rest, core| rest.difference(core));
            cores.extend(rest.iter().map(|cpu| CpuSet::from_iter([cpu])));
            cores.retain(|core| !core.is_empty());
            cores.sort_by_key(|core| core.iter().next());
            cores
        };
        let grouped = nodes.iter().map(cores_of);
        grouped.filter(|cores| !cores.is_empty()).collect()
    }
}

/// The sets that `read` gives for the entries of `folder` named `prefix` and a number, in the order of the numbers. A
/// processor belongs to the first set that names it, and empty sets are left out.
fn read_numbered(folder: &Path, prefix: &str, read: impl Fn(&Path) -> Option<CpuSet>) -> Vec<CpuSet> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number_of = |name: &str| name.strip_prefix(prefix)?.parse().ok();
    let numbers = entries.filter_map(|entry| number_of(entry.file_name().to_str()?));
    let (mut sets, mut seen) = (Vec::new(), CpuSet::default());
    for number in CpuSet::from_iter(numbers).iter() {
        let set = read(&folder.join(format!("{prefix}{number}"))).unwrap_or_default();
        let set = set.difference(&seen);
        seen = seen.iter().chain(set.iter()).collect();
        sets.push(set);
    }
    sets.retain(|set| !set.is_empty());
    sets
}

fn read_list(path: &Path) -> Option<CpuSet> {
    CpuSet::parse(&fs::read_to_string(path).ok()?)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder that is laid out as `/sys/devices/system`, removed when it is dropped.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new(name: &str, files: &[(&str, &str)]) -> Sysfs {
            let folder = std::env::temp_dir().join(format!("windlass-sysfs-{}-{name}", std::process::id()));
            for (file, text) in files {
                let file = folder.join(file);
                fs::create_dir_all(file.parent().expect("a folder")).expect("a temporary folder");
                fs::write(file, text).expect("a temporary file");
            }
            Sysfs(folder)
        }

        fn topology(&self) -> Topology {
            Topology::read(&self.0)
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn set(list: &str) -> CpuSet {
        CpuSet::parse(list).expect("a list")
    }

    fn sets(lists: &[&str]) -> Vec<CpuSet> {
        lists.iter().map(|list| set(list)).collect()
    }

    #[test]
    fn cores_and_nodes_are_read() {
        let sysfs = Sysfs::new(
            "whole",
            &[
                ("cpu/cpu0/topology/core_cpus_list", "0,4\n"),
                ("cpu/cpu1/topology/core_cpus_list", "1,5\n"),
                ("cpu/cpu4/topology/core_cpus_list", "0,4\n"),
                ("cpu/cpu5/topology/core_cpus_list", "1,5\n"),
                // The older name, which is not used where both exist.
                ("cpu/cpu0/topology/thread_siblings_list", "0-5\n"),
                ("cpu/cpu10/topology/thread_siblings_list", "10-11\n"),
                ("cpu/cpu11/topology/thread_siblings_list", "10-11\n"),
                // Entries that are not processors.
                ("cpu/cpufreq/topology/core_cpus_list", "7\n"),
                ("cpu/cpuidle/current_driver", "none\n"),
                ("node/node0/cpulist", "0-1,4-5\n"),
                ("node/node10/cpulist", "\n"),
                ("node/node2/cpulist", "10-11\n"),
                ("node/online", "0,2,10\n"),
            ],
        );
        let topology = sysfs.topology();
        assert_eq!(topology.cores, sets(&["0,4", "1,5", "10-11"]));
        assert_eq!(topology.nodes, sets(&["0-1,4-5", "10-11"]));
        let grouped = topology.grouped(&set("0-1,4-5,10-11"));
        assert_eq!(grouped, [sets(&["0,4", "1,5"]), sets(&["10-11"])]);
    }

    #[test]
    fn unreadable_parts_are_left_out() {
        let sysfs = Sysfs::new(
            "partial",
            &[
                ("cpu/cpu0/topology/core_cpus_list", "0-1\n"),
                ("cpu/cpu1/topology/core_cpus_list", "0-1\n"),
                ("cpu/cpu2/topology/core_cpus_list", "garbage\n"),
                ("cpu/cpu3/online", "0\n"),
                // Contradicts `cpu0`: the first set counts.
                ("cpu/cpu4/topology/core_cpus_list", "1,4\n"),
            ],
        );
        let topology = sysfs.topology();
        assert_eq!(topology.cores, sets(&["0-1", "4"]));
        assert_eq!(topology.nodes, []);
        assert_eq!(topology.grouped(&set("0-4")), [sets(&["0-1", "2", "3", "4"])]);
    }

    #[test]
    fn without_sysfs_each_cpu_is_a_core_of_one_node() {
        let topology = Sysfs::new("none", &[]).topology();
        assert_eq!(topology, Topology::default());
        assert_eq!(topology.grouped(&set("1,3")), [sets(&["1", "3"])]);
        assert_eq!(topology.grouped(&CpuSet::default()), [] as [Vec<CpuSet>; 0]);
    }

    #[test]
    fn groups_contain_only_allowed_cpus() {
        let topology = Topology {
            cores: sets(&["0,4", "1,5", "2,6", "3,7"]),
            nodes: sets(&["0-1,4-5", "2-3,6-7"]),
        };
        assert_eq!(topology.grouped(&set("4-5")), [sets(&["4", "5"])]);
        // 8 and 9 are in no node: they form one more.
        let grouped = topology.grouped(&set("0,4,7-9"));
        assert_eq!(grouped, [sets(&["0,4"]), sets(&["7"]), sets(&["8", "9"])]);
    }
}
