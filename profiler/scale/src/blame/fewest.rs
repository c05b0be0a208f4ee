//! Finds the places in a program where a lock is held, by greedy set cover: the fewest places that explain
//! all samples.
//!
//! Problem: if a lock does not store its holder, a sample finds several threads inside functions that take
//! the lock. One of these threads holds the lock; the others have released it already, or have not taken it
//! yet.
//!
//! Algorithm: the holder's place is in every sample in which threads wait, while other places are in some of
//! these samples only. So the place with the largest total weight explains all samples that contain it. This
//! is repeated for the remaining samples until the best place explains too little.
//!
//! Properties: if a sample has only one place, that place explains the sample. No sample is explained by a
//! place that it does not contain.
//!
//! Limits: a place where some thread is at all times, such as the computation of a large thread pool, may be
//! mistaken for the holder's place.

use std::collections::BTreeMap;

/// A place must explain at least this fraction of the total weight.
const LEAST: f64 = 0.1;

/// One sample of the threads that may hold a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderSample<P> {
    /// The sample's weight: the time that it stands for.
    pub weight: u64,
    /// The places of the threads that may hold the lock.
    pub places: Vec<P>,
    /// Whether the places of all such threads are known. An incomplete sample is no evidence for a place.
    pub is_whole: bool,
}

/// For each sample, the place of the holder; `None` if no place explains the sample.
pub fn fewest<P: Ord + Clone>(samples: &[HolderSample<P>]) -> Vec<Option<P>> {
    let total: u64 = samples.iter().map(|sample| sample.weight).sum();
    let mut holders: Vec<Option<P>> = vec![None; samples.len()];
    loop {
        let mut weights: BTreeMap<&P, u64> = BTreeMap::new();
        for (sample, _) in
            samples.iter().zip(&holders).filter(|(sample, holder)| sample.is_whole && holder.is_none())
        {
            let mut places: Vec<&P> = sample.places.iter().collect();
            places.sort();
            places.dedup();
            for place in places {
                *weights.entry(place).or_default() += sample.weight;
            }
        }
        let Some((best, weight)) = weights.into_iter().max_by_key(|(_, weight)| *weight) else { break };
        if crate::real(weight) < crate::real(total) * LEAST || weight == 0 {
            break;
        }
        for (sample, holder) in samples.iter().zip(&mut holders) {
            if holder.is_none() && sample.places.contains(best) {
                *holder = Some(best.clone());
            }
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(weight: u64, places: &[&'static str]) -> HolderSample<&'static str> {
        HolderSample { weight, places: places.into(), is_whole: true }
    }

    #[test]
    fn the_holder_is_the_place_in_all_samples_and_not_one_in_many() {
        let samples =
            [sample(1, &["under", "before"]), sample(1, &["under"]), sample(1, &["before", "under"])];
        assert_eq!(fewest(&samples), [Some("under"); 3]);
        // Another place explains what is left, if that is not too little.
        let samples = [
            sample(5, &["under", "before"]),
            sample(4, &["under"]),
            sample(2, &["other"]),
            sample(1, &["before"]),
        ];
        assert_eq!(fewest(&samples), [Some("under"), Some("under"), Some("other"), None]);
    }

    #[test]
    fn incomplete_samples_are_no_evidence() {
        let torn = HolderSample { is_whole: false, ..sample(9, &["before"]) };
        let samples = [
            sample(1, &["under"]),
            torn,
            HolderSample { is_whole: false, ..sample(1, &["under", "before"]) },
        ];
        assert_eq!(fewest(&samples[..1]), [Some("under")]);
        assert_eq!(fewest(&[samples[1].clone()]), [None]);
        assert_eq!(fewest(&[sample(2, &["under"]), samples[2].clone()]), [Some("under"), Some("under")]);
        assert_eq!(fewest::<u8>(&[]), []);
        assert_eq!(fewest(&[sample(3, &[])]), [None]);
    }
}
