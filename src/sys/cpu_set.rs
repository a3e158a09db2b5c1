//! `CpuSet`, a set of processors by their numbers in the OS.
//!
//! A sorted list of numbers rather than `cpu_set_t`, which ends at 1,024. As a bit mask it consists of words of the
//! pointer's size. That is the layout on Linux and FreeBSD; on Windows, word `n` is the mask of processor group `n`.

use std::fmt;
use std::io;

/// Numbers from here on are refused, so that a wrong number does not make a mask of gigabytes. The largest kernels
/// support 8,192 processors.
const LIMIT: usize = 1 << 16;

/// A set of processors.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct CpuSet {
    /// Ascending, each once.
    cpus: Vec<usize>,
}

impl CpuSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.cpus.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.cpus.len()
    }

    pub(crate) fn contains(&self, cpu: usize) -> bool {
        self.cpus.binary_search(&cpu).is_ok()
    }

    /// In ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.cpus.iter().copied()
    }

    /// The processors that are in both sets.
    pub(crate) fn intersection(&self, other: &CpuSet) -> CpuSet {
        self.iter().filter(|&cpu| other.contains(cpu)).collect()
    }

    /// The processors that are not in the other set.
    pub(crate) fn difference(&self, other: &CpuSet) -> CpuSet {
        self.iter().filter(|&cpu| !other.contains(cpu)).collect()
    }

    /// Parses the kernel's list format, such as `0-3,8`. An empty line is the empty set: a node without processors.
    pub(crate) fn parse(list: &str) -> Option<CpuSet> {
        let list = list.trim();
        if list.is_empty() {
            return Some(CpuSet::default());
        }
        let mut cpus = Vec::new();
        for part in list.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            if first > last || last >= LIMIT {
                return None;
            }
            cpus.extend(first..=last);
        }
        Some(CpuSet::from_iter(cpus))
    }
}

/// As a bit mask.
#[cfg_attr(
    not(any(target_os = "linux", target_os = "freebsd", windows)),
    allow(dead_code, reason = "other systems have no thread affinity")
)]
impl CpuSet {
    const WORD: usize = usize::BITS as usize;

    /// The bit mask, in as many words as the largest number needs. Fails for numbers that no system has.
    pub(crate) fn to_mask(&self) -> io::Result<Vec<usize>> {
        let most = self.cpus.last().copied().unwrap_or(0);
        if most >= LIMIT {
            let why = format!("no system has a cpu {most}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut mask = vec![0; most / Self::WORD + 1];
        for cpu in self.iter() {
            mask[cpu / Self::WORD] |= 1 << (cpu % Self::WORD);
        }
        Ok(mask)
    }

    pub(crate) fn from_mask(mask: &[usize]) -> CpuSet {
        let is_set = |cpu: &usize| mask[cpu / Self::WORD] & 1 << (cpu % Self::WORD) != 0;
        (0..mask.len() * Self::WORD).filter(is_set).collect()
    }

    /// Reads a mask of a size that only the kernel knows: calls `read` with larger and larger buffers while `is_too_small`
    /// says so of its error.
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    pub(super) fn read_mask(
        bits: impl IntoIterator<Item = usize>,
        is_too_small: i32,
        mut read: impl FnMut(&mut [usize]) -> io::Result<()>,
    ) -> io::Result<CpuSet> {
        let mut result = Err(io::Error::from_raw_os_error(is_too_small));
        for bits in bits {
            let mut mask = vec![0; bits / Self::WORD];
            result = read(&mut mask).map(|()| CpuSet::from_mask(&mask));
            let code = result.as_ref().err().and_then(io::Error::raw_os_error);
            if code != Some(is_too_small) {
                break;
            }
        }
        result
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> CpuSet {
        let mut cpus: Vec<usize> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        CpuSet { cpus }
    }
}

/// The kernel's list format, as [`CpuSet::parse`] reads it.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for run in self.cpus.chunk_by(|one, next| one + 1 == *next) {
            match *run {
                [first, .., last] => write!(f, "{separator}{first}-{last}")?,
                _ => write!(f, "{separator}{}", run[0])?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::CpuSet;

    #[test]
    fn lists_are_parsed_and_printed() {
        for (list, cpus, printed) in [
            ("0\n", vec![0], "0"),
            ("0-3\n", vec![0, 1, 2, 3], "0-3"),
            ("8,0-1, 9-9\n", vec![0, 1, 8, 9], "0-1,8-9"),
            ("4095,5-6,6", vec![5, 6, 4095], "5-6,4095"),
            (" \n", vec![], ""),
        ] {
            let set = CpuSet::parse(list).expect("a list");
            assert_eq!(set.iter().collect::<Vec<_>>(), cpus, "{list:?}");
            assert_eq!(set.to_string(), printed);
        }
        for wrong in ["x", "1-", "-1", "3-1", "1,,2", "0-99999999999", "0x3", "1;2"] {
            assert_eq!(CpuSet::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn masks_have_as_many_words_as_needed() {
        for cpus in [vec![0], vec![63, 64], vec![1, 1023], vec![1024, 8191]] {
            let set = CpuSet::from_iter(cpus.clone());
            let mask = set.to_mask().expect("numbers of a system");
            assert_eq!(mask.len(), cpus.last().unwrap() / usize::BITS as usize + 1);
            assert_eq!(
                mask.iter().map(|word| word.count_ones()).sum::<u32>() as usize,
                set.len()
            );
            assert_eq!(CpuSet::from_mask(&mask), set);
        }
        let refused = CpuSet::from_iter([3, usize::MAX]).to_mask().expect_err("no such cpu");
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    }

    #[test]
    fn sets_are_sorted_and_compared() {
        let set = CpuSet::from_iter([5, 3, 5, 4]);
        assert_eq!(format!("{set:?}"), "{3-5}");
        assert!(set.contains(4) && !set.contains(6) && set.len() == 3 && !set.is_empty());
        assert_eq!(set.intersection(&CpuSet::from_iter([4, 9])), CpuSet::from_iter([4]));
        assert_eq!(set.difference(&CpuSet::from_iter([4, 9])), CpuSet::from_iter([3, 5]));
    }
}
