//! Which gangs run beside those already chosen.
//!
//! Algorithm, [`fittest`] (seed 003, section 4): ABBW/proc is the remaining bus bandwidth per remaining CPU, and BBW/thread the
//! bandwidth that each thread of a gang uses. The fittest gang maximises
//!
//! ```text
//! fitness = 1000 / (1 + | ABBW/proc - BBW/thread |)
//! ```
//!
//! that is, minimises the distance. It is computed anew after each choice. When the bus is overcommitted, ABBW/proc is
//! negative, and the fittest gang is the one that transfers least. For caches, bytes held take the place of bytes per second;
//! for cores, instructions per second. Ties go to the gang that waited longest.
//!
//! Algorithm, [`together`]: a full bus slows every thread on it, so the composition of the next quantum matters too. For
//! example, the head wants half of the bus; two other gangs want nothing and two want half of it. Either pair could run with
//! the head. With the second pair, the bus is full in this quantum, but no gang suffers from it in the next. So the
//! longest-waiting gangs that fill the CPUs twice are divided into two halves, such that both together make the most progress,
//! by [`super::queue`]. Up to [`ALL_MAX`] gangs the search is exhaustive; beyond, the list is cut in two, and pairs are
//! exchanged while that helps (local search, at most [`TRIES_MAX`] tries).
//!
//! Properties: both choose only gangs that fit into the remaining CPUs. The head is always chosen; `together` ignores gangs
//! beyond the second filling of the machine. The result depends only on the candidates and their order.

use alloc::vec::Vec;

use crate::bus::queue::{Streams, WHOLE, progress};

/// Exhaustive search up to this many gangs.
const ALL_MAX: usize = 9;

/// Bound on the exchanges tried by local search.
const TRIES_MAX: usize = 64;

/// A gang that could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its index.
    pub(super) at: usize,
    /// Its place in the list; the lowest is the head.
    pub(super) place: u64,
    /// CPUs that it needs.
    pub(super) cpus: u32,
    /// What each of its threads is assumed to use of the shared resource; of the bus, in bytes per second.
    pub(super) rate: u64,
}

/// What is left of a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) cpus: u32,
    /// Of the shared resource, in its own measure; negative: over-committed.
    pub(super) amount: i64,
}

impl Left {
    /// The amount per CPU.
    pub(super) fn each(self) -> i64 {
        self.amount / i64::from(self.cpus.max(1))
    }

    pub(super) fn take(&mut self, candidate: &Candidate) {
        self.cpus = self.cpus.saturating_sub(candidate.cpus);
        let takes = candidate.rate.saturating_mul(u64::from(candidate.cpus));
        self.amount = self.amount.saturating_sub_unsigned(takes);
    }
}

/// The index of the fittest candidate; `None`: none fits.
pub(super) fn fittest(candidates: &[Candidate], left: Left) -> Option<usize> {
    let each = i128::from(left.each());
    let fits = candidates.iter().enumerate().filter(|(_, candidate)| candidate.cpus <= left.cpus);
    let found =
        fits.min_by_key(|(_, candidate)| ((each - i128::from(candidate.rate)).abs(), candidate.place));
    found.map(|(number, _)| number)
}

/// The indices of the candidates to run beside `running`, the head among them, and the progress of this and the next half, in
/// permille of a CPU per thread. `bus` is in bytes per second.
pub(super) fn together(
    candidates: &[Candidate],
    running: &[Candidate],
    cpus: u32,
    bus: u64,
) -> (Vec<usize>, u32) {
    let all = cpus + running.iter().map(|gang| gang.cpus).sum::<u32>();
    let window = window(candidates, cpus, cpus.saturating_add(all));
    if window.is_empty() {
        return (Vec::new(), 0);
    }
    let demand = |gang: &Candidate| {
        u64::try_from(u128::from(gang.rate) * u128::from(WHOLE) / u128::from(bus.max(1)))
            .map_or(WHOLE, |part| part.min(WHOLE))
    };
    let wants = |gang: &Candidate| Streams::new(gang.cpus, demand(gang));
    let sets: Vec<Streams> = window.iter().map(|number| wants(&candidates[*number])).collect();
    let beside: Vec<Streams> = running.iter().map(wants).collect();
    let division = Division { cpus, beside: &beside, sets: &sets };
    let chosen = if sets.len() <= ALL_MAX { division.best_of_all() } else { division.best_by_exchange() };
    let gained = division.gains(&chosen);
    let threads: u64 = sets.iter().chain(&beside).map(|set| u64::from(set.threads)).sum();
    let permille = gained * 1_000 / WHOLE / threads.max(1);
    let numbers = (0..sets.len()).filter(|at| chosen[*at]).map(|at| window[at]).collect();
    (numbers, u32::try_from(permille).unwrap_or(1_000))
}

/// The indices of the longest-waiting candidates that together fill `enough` CPUs, the head first.
fn window(candidates: &[Candidate], cpus: u32, enough: u32) -> Vec<usize> {
    let mut fits: Vec<usize> =
        (0..candidates.len()).filter(|number| candidates[*number].cpus <= cpus).collect();
    // A gang needs at least one CPU, which bounds the number of gangs.
    let most = enough as usize;
    let by_place = |number: &usize| candidates[*number].place;
    if fits.len() > most {
        fits.select_nth_unstable_by_key(most - 1, by_place);
        fits.truncate(most);
    }
    fits.sort_unstable_by_key(by_place);
    let mut filled = 0;
    let within = fits.iter().take_while(|number| {
        let is_in = filled < enough;
        filled += candidates[**number].cpus;
        is_in
    });
    let within = within.count();
    fits.truncate(within);
    fits
}

/// The division problem.
struct Division<'a> {
    /// CPUs left.
    cpus: u32,
    /// Gangs that already run.
    beside: &'a [Streams],
    /// Candidates, the head first.
    sets: &'a [Streams],
}

impl Division<'_> {
    /// The progress of the chosen gangs, plus that of the others after them.
    fn gains(&self, chosen: &[bool]) -> u64 {
        let with_choice = |wanted: bool| {
            self.sets.iter().zip(chosen).filter(move |(_, is)| **is == wanted).map(|(set, _)| *set)
        };
        let now: Vec<Streams> = self.beside.iter().copied().chain(with_choice(true)).collect();
        let next: Vec<Streams> = with_choice(false).collect();
        progress(&now) + progress(&next)
    }

    fn threads(&self, chosen: &[bool]) -> u32 {
        self.sets.iter().zip(chosen).filter(|(_, is)| **is).map(|(set, _)| set.threads).sum()
    }

    /// Whether the chosen gangs fit, and none of the others fits beside them.
    fn fills(&self, chosen: &[bool]) -> bool {
        let Some(left) = self.cpus.checked_sub(self.threads(chosen)) else { return false };
        self.sets.iter().zip(chosen).all(|(set, is)| *is || set.threads > left)
    }

    fn best_of_all(&self) -> Vec<bool> {
        let others = self.sets.len() - 1;
        // Prefer the longest-waiting gangs among equals: try their subsets first.
        let ways = (0u32..1 << others).rev().map(|way| {
            let is_in = |at: usize| at == 0 || way >> (others - at) & 1 == 1;
            (0..self.sets.len()).map(is_in).collect::<Vec<bool>>()
        });
        let mut best: Option<(u64, Vec<bool>)> = None;
        for chosen in ways.filter(|chosen| self.fills(chosen)) {
            let gains = self.gains(&chosen);
            if best.as_ref().is_none_or(|(most, _)| gains > *most) {
                best = Some((gains, chosen));
            }
        }
        best.map_or_else(|| self.first(), |(_, chosen)| chosen)
    }

    /// The longest-waiting candidates that fit.
    fn first(&self) -> Vec<bool> {
        let mut left = self.cpus;
        let mut take = |set: &Streams| match left.checked_sub(set.threads) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        self.sets.iter().map(&mut take).collect()
    }

    fn best_by_exchange(&self) -> Vec<bool> {
        let mut chosen = self.first();
        let mut gains = self.gains(&chosen);
        let mut tries = 0;
        loop {
            let mut helped = false;
            for out in 1..self.sets.len() {
                for into in 1..self.sets.len() {
                    let (leaves, comes) = (self.sets[out], self.sets[into]);
                    if !chosen[out] || chosen[into] || leaves.threads != comes.threads || leaves == comes {
                        continue;
                    }
                    if tries == TRIES_MAX {
                        return chosen;
                    }
                    tries += 1;
                    (chosen[out], chosen[into]) = (false, true);
                    let now = self.gains(&chosen);
                    if now > gains {
                        (gains, helped) = (now, true);
                    } else {
                        (chosen[out], chosen[into]) = (true, false);
                    }
                }
            }
            if !helped {
                return chosen;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn candidates(of: &[(u32, u64)]) -> Vec<Candidate> {
        let one = |(at, (cpus, rate)): (usize, &(u32, u64))| Candidate {
            at,
            place: at as u64,
            cpus: *cpus,
            rate: *rate,
        };
        of.iter().enumerate().map(one).collect()
    }

    /// 8 GB/s and 4 CPUs are left: 2 GB/s for each.
    #[test]
    fn the_nearest_to_what_is_left_for_each_cpu_is_the_fittest() {
        let left = Left { cpus: 4, amount: 8_000_000_000 };
        let gangs = candidates(&[(1, 3 * GB), (2, GB + GB / 2), (2, GB), (5, 2 * GB)]);
        assert_eq!(fittest(&gangs, left), Some(1), "the last is nearer, and does not fit");
        let same = candidates(&[(1, 3 * GB), (1, GB)]);
        assert_eq!(fittest(&same, left), Some(0), "ties go to the longest wait");
        assert_eq!(fittest(&candidates(&[(5, GB)]), left), None);
    }

    #[test]
    fn where_too_much_was_given_the_one_that_transfers_least_is_the_fittest() {
        let left = Left { cpus: 2, amount: -3_000_000_000 };
        assert_eq!(fittest(&candidates(&[(1, 3 * GB), (1, 2 * GB), (1, GB)]), left), Some(2));
    }

    /// Two gangs of two threads that want half of the bus each, and four that want most of it: the former run together, and
    /// leave the latter to each other.
    #[test]
    fn gangs_that_fill_the_bus_go_together() {
        let gangs =
            candidates(&[(2, 5 * GB), (2, 5 * GB), (1, 8 * GB), (1, 8 * GB), (1, 8 * GB), (1, 8 * GB)]);
        assert_eq!(together(&gangs, &[], 4, 10 * GB).0, [0, 1]);
    }

    /// Beside idle gangs, one that wants half of the bus runs with those.
    #[test]
    fn bus_bound_gangs_run_beside_idle_ones() {
        let gangs = candidates(&[(2, 4 * GB), (2, 4 * GB), (1, 0), (1, 0), (1, 0), (1, 0)]);
        assert_eq!(together(&gangs, &[], 4, 10 * GB).0, [0, 2, 3]);
    }

    #[test]
    fn the_head_is_always_among_them_and_all_fit() {
        for cpus in 1..9 {
            let sizes: Vec<(u32, u64)> = (0u64..20).map(|at| ((at % 3) as u32 + 1, at % 5 * GB)).collect();
            let gangs = candidates(&sizes);
            let (chosen, _) = together(&gangs, &[], cpus, 10 * GB);
            assert_eq!(chosen.first(), Some(&0), "{cpus} CPUs");
            assert!(chosen.iter().map(|number| gangs[*number].cpus).sum::<u32>() <= cpus);
        }
    }

    /// Eight that want half of the bus are ahead of eight that want nothing. Exchanges put half of each kind together.
    #[test]
    fn many_gangs_are_divided_by_exchanges() {
        let sizes: Vec<(u32, u64)> = (0..16).map(|at| (1, if at < 8 { 5 * GB } else { 0 })).collect();
        let gangs = candidates(&sizes);
        let (chosen, _) = together(&gangs, &[], 8, 10 * GB);
        let hungry = chosen.iter().filter(|number| gangs[**number].rate > 0).count();
        assert!((3..=5).contains(&hungry), "{chosen:?}");
    }
}
