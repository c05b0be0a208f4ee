//! Sets of CPUs, and the kernel's list format `0-3,8`. A set can have any size, since the kernel's masks can
//! be larger than the 1,024 CPUs of libc's `cpu_set_t`.

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// A set of CPU numbers.
#[derive(Clone, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub struct CpuSet {
    /// CPU `n` is bit `n % 64` of word `n / 64`. There are no zero words at the end, so that equal sets
    /// compare equal.
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    pub const fn new() -> Self {
        CpuSet { words: Vec::new() }
    }

    /// Adds a CPU.
    pub fn insert(&mut self, cpu: u32) {
        let word = cpu as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % 64);
    }

    /// Removes a CPU.
    pub fn remove(&mut self, cpu: u32) {
        if let Some(word) = self.words.get_mut(cpu as usize / 64) {
            *word &= !(1 << (cpu % 64));
        }
        self.trim();
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get(cpu as usize / 64).is_some_and(|word| word & (1 << (cpu % 64)) != 0)
    }

    /// The number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip(0u32..).flat_map(|(word, i)| {
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| i * 64 + bit)
        })
    }

    /// CPUs in either set.
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        let n = self.words.len().max(other.words.len());
        let word = |set: &CpuSet, i: usize| set.words.get(i).copied().unwrap_or(0);
        CpuSet::from_words((0..n).map(|i| word(self, i) | word(other, i)).collect())
    }

    /// CPUs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        CpuSet::from_words(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// CPUs in this set and not in the other.
    #[must_use]
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        let not_in_other = |i: usize| !other.words.get(i).copied().unwrap_or(0);
        CpuSet::from_words(self.words.iter().enumerate().map(|(i, word)| word & not_in_other(i)).collect())
    }

    /// The set as bits, 64 CPUs in each word, the lowest first. The kernel's affinity calls use this form.
    pub fn as_words(&self) -> &[u64] {
        &self.words
    }

    /// The set with these bits, in the form of [`CpuSet::as_words`].
    pub fn from_words(words: Vec<u64>) -> CpuSet {
        let mut set = CpuSet { words };
        set.trim();
        set
    }

    /// Drops trailing zero words.
    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

/// The kernel's list format: `0-3,8`; the empty set is the empty string.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut cpus = self.iter().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            let comma = if text.is_empty() { "" } else { "," };
            match last - first {
                0 => write!(text, "{comma}{first}")?,
                _ => write!(text, "{comma}{first}-{last}")?,
            }
        }
        f.pad(&text)
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// A malformed list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of CPUs: write numbers and ranges such as `0-3,8`, below {MAX_CPUS}")]
pub struct CpuListError(String);

/// CPU numbers must be below this number, which is more than any kernel supports. Otherwise a typing error
/// could allocate gigabytes of bits.
pub(crate) const MAX_CPUS: u32 = 65_536;

impl FromStr for CpuSet {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let err = || CpuListError(text.to_owned());
        let number = |t: &str| t.parse::<u32>().ok().filter(|n| *n < MAX_CPUS).ok_or_else(err);
        let mut set = CpuSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(err());
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

impl serde::Serialize for CpuSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for CpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_kernels_list_format() {
        for text in ["", "0", "0-3,8", "63-64", "0,2,4-5,127-129"] {
            assert_eq!(text.parse::<CpuSet>().map(|set| set.to_string()), Ok(text.to_owned()));
        }
        for bad in ["x", "3-1", "-1", "1-", "99999999"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn set_algebra(
            a in proptest::collection::btree_set(0u32..300, 0..40),
            b in proptest::collection::btree_set(0u32..300, 0..40),
        ) {
            let (x, y): (CpuSet, CpuSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert_eq!(x.union(&y).iter().collect::<Vec<_>>(), a.union(&b).copied().collect::<Vec<_>>());
            prop_assert_eq!(x.intersection(&y).iter().collect::<Vec<_>>(), a.intersection(&b).copied().collect::<Vec<_>>());
            prop_assert_eq!(x.difference(&y).iter().collect::<Vec<_>>(), a.difference(&b).copied().collect::<Vec<_>>());
            prop_assert_eq!(x.to_string().parse::<CpuSet>(), Ok(x.clone()));
            prop_assert_eq!(x.len(), a.len());
        }
    }
}
