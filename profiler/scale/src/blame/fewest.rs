//! Greedy set cover: the fewest places that explain all samples.
//!
//! Problem: if a lock does not store its holder, a sample finds several threads inside functions that take it. One of them holds it;
//! the others have released it already or have not taken it yet.
//!
//! Algorithm: the holder's place is in every sample in which others wait, while other places are in some of them. So the place with
//! the largest total weight explains all samples that contain it. The same is repeated for the remaining samples until the best
//! place explains too little.
//!
//! Properties: the only place of a sample explains it. No sample is explained by a place that it does not contain.
//!
//! Limits: a place where some thread is at all times, such as the computation of a large thread pool, may be taken for the
//! holder's.

use std::collections::BTreeMap;

/// A place must explain at least this part of the total weight.
const LEAST: f64 = 0.1;

/// One sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<P> {
    /// Its weight: the time that it counts for.
    pub weight: u64,
    /// Where the threads are that may hold the lock.
    pub places: Vec<P>,
    /// The places of all candidates are known.
    pub is_whole: bool,
}

/// For each sample, the place that explains it, if any does.
pub fn fewest<P: Ord + Clone>(samples: &[Found<P>]) -> Vec<Option<P>> {
    let all: u64 = samples.iter().map(|sample| sample.weight).sum();
    let mut explained: Vec<Option<P>> = vec![None; samples.len()];
    loop {
        let mut weights: BTreeMap<&P, u64> = BTreeMap::new();
        for (sample, _) in
            samples.iter().zip(&explained).filter(|(sample, by)| sample.is_whole && by.is_none())
        {
            let mut places: Vec<&P> = sample.places.iter().collect();
            places.sort();
            places.dedup();
            for place in places {
                *weights.entry(place).or_default() += sample.weight;
            }
        }
        let Some((best, weight)) = weights.into_iter().max_by_key(|(_, weight)| *weight) else { break };
        if crate::real(weight) < crate::real(all) * LEAST || weight == 0 {
            break;
        }
        for (sample, by) in samples.iter().zip(&mut explained) {
            if by.is_none() && sample.places.contains(best) {
                *by = Some(best.clone());
            }
        }
    }
    explained
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(weight: u64, places: &[&'static str]) -> Found<&'static str> {
        Found { weight, places: places.into(), is_whole: true }
    }

    #[test]
    fn the_place_that_is_always_there_holds_and_not_the_one_that_is_there_often() {
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
    fn what_was_not_found_whole_is_no_evidence() {
        let torn = Found { is_whole: false, ..sample(9, &["before"]) };
        let samples =
            [sample(1, &["under"]), torn, Found { is_whole: false, ..sample(1, &["under", "before"]) }];
        assert_eq!(fewest(&samples[..1]), [Some("under")]);
        assert_eq!(fewest(&[samples[1].clone()]), [None]);
        assert_eq!(fewest(&[sample(2, &["under"]), samples[2].clone()]), [Some("under"), Some("under")]);
        assert_eq!(fewest::<u8>(&[]), []);
        assert_eq!(fewest(&[sample(3, &[])]), [None]);
    }
}
