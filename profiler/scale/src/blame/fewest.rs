//! Which of several places explain what was seen.
//!
//! Problem: of a lock that does not say who holds it, a look finds several threads in functions that take it. One of them
//! holds it. The others have it behind them, or before.
//!
//! Algorithm: where a holder is, it is found in every look at which others wait. Where others happen to be, they are found in
//! some. So the place that is in most looks, by their weight, explains all of these; of the rest, the place that is in most
//! of the rest, and so on, until too little is left. This is the greedy cover of a set by few others.
//!
//! Properties: a place that is the only one of a look explains it. No look is explained by a place that it did not find.
//!
//! Limits: a place where others always are, too, as where every thread of a large crowd computes, may take the holder's part.

use std::collections::BTreeMap;

/// Explanations that explain less of all are none.
const LEAST: f64 = 0.1;

/// One look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<P> {
    /// What it counts.
    pub weight: u64,
    /// Where threads were that may hold the lock.
    pub places: Vec<P>,
    /// All of them were found.
    pub is_whole: bool,
}

/// By look, the place that explains it, if any does.
pub fn fewest<P: Ord + Clone>(looks: &[Found<P>]) -> Vec<Option<P>> {
    let all: u64 = looks.iter().map(|look| look.weight).sum();
    let mut explained: Vec<Option<P>> = vec![None; looks.len()];
    loop {
        let mut weights: BTreeMap<&P, u64> = BTreeMap::new();
        for (look, _) in looks.iter().zip(&explained).filter(|(look, by)| look.is_whole && by.is_none()) {
            let mut places: Vec<&P> = look.places.iter().collect();
            places.sort();
            places.dedup();
            for place in places {
                *weights.entry(place).or_default() += look.weight;
            }
        }
        let Some((best, weight)) = weights.into_iter().max_by_key(|(_, weight)| *weight) else { break };
        if crate::real(weight) < crate::real(all) * LEAST || weight == 0 {
            break;
        }
        for (look, by) in looks.iter().zip(&mut explained) {
            if by.is_none() && look.places.contains(best) {
                *by = Some(best.clone());
            }
        }
    }
    explained
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(weight: u64, places: &[&'static str]) -> Found<&'static str> {
        Found { weight, places: places.into(), is_whole: true }
    }

    #[test]
    fn the_place_that_is_always_there_holds_and_not_the_one_that_is_there_often() {
        let looks = [look(1, &["under", "before"]), look(1, &["under"]), look(1, &["before", "under"])];
        assert_eq!(fewest(&looks), [Some("under"); 3]);
        // Another place explains what is left, if that is not too little.
        let looks =
            [look(5, &["under", "before"]), look(4, &["under"]), look(2, &["other"]), look(1, &["before"])];
        assert_eq!(fewest(&looks), [Some("under"), Some("under"), Some("other"), None]);
    }

    #[test]
    fn what_was_not_found_whole_is_no_evidence() {
        let torn = Found { is_whole: false, ..look(9, &["before"]) };
        let looks = [look(1, &["under"]), torn, Found { is_whole: false, ..look(1, &["under", "before"]) }];
        assert_eq!(fewest(&looks[..1]), [Some("under")]);
        assert_eq!(fewest(&[looks[1].clone()]), [None]);
        assert_eq!(fewest(&[look(2, &["under"]), looks[2].clone()]), [Some("under"), Some("under")]);
        assert_eq!(fewest::<u8>(&[]), []);
        assert_eq!(fewest(&[look(3, &[])]), [None]);
    }
}
