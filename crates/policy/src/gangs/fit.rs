//! The choice of gangs to run beside those already chosen, by one of two algorithms.
//!
//! Algorithm of [`fittest`] (seed 003, section 4): ABBW/proc is the remaining bus bandwidth per remaining
//! CPU, and BBW/thread the bandwidth that each thread of a gang uses. The fittest gang maximises
//!
//! ```text
//! fitness = 1000 / (1 + | ABBW/proc - BBW/thread |)
//! ```
//!
//! that is, it minimises the difference between ABBW/proc and BBW/thread. The fitness is computed anew after
//! each choice. When the bus is overcommitted, ABBW/proc is negative, and the fittest gang is the one that
//! transfers least. If the shared resource is the caches, bytes held take the place of bytes per second. Ties
//! go to the gang that waited longest. For example, if 8 GB/s and 4 CPUs remain, ABBW/proc is 2 GB/s: a gang
//! whose threads transfer 1.5 GB/s each is fitter than a gang whose threads transfer 3 GB/s each.
//!
//! Algorithm of [`together`]: a full bus slows every thread on it, so the gangs left for the next quantum
//! matter, too. For example, the head wants half of the bus, gangs A and B want none of it, and gangs C and D
//! want half of it each. A and B could run with the head, or C and D. If C and D run with the head, the bus
//! is full in this quantum, but in the next no gang suffers from a full bus. So take the longest-waiting
//! gangs, as many as fill the CPUs twice. Divide them into two halves, for this quantum and the next, such
//! that both halves together make the most progress, by [`super::queue`]. Up to [`EXHAUSTIVE_MAX`] gangs, the
//! search is exhaustive. For more gangs, it is a local search: it starts with the longest-waiting gangs in
//! the half for this quantum, and swaps pairs between the halves while that helps, in at most [`TRIES_MAX`]
//! tries.
//!
//! Properties: both choose only gangs that fit into the remaining CPUs. [`together`] always chooses the head;
//! it ignores gangs beyond those that fill the CPUs twice. The result depends only on the candidates and
//! their order.

use alloc::vec::Vec;

use crate::bus::queue::{Streams, WHOLE, progress};

/// The largest number of gangs for which all divisions are tried.
const EXHAUSTIVE_MAX: usize = 9;

/// Bound on the exchanges tried by local search.
const TRIES_MAX: usize = 64;

/// A gang that could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its index in the queue of gangs.
    pub(super) index: usize,
    /// Its place in the list; the lowest is the head.
    pub(super) place: u64,
    /// CPUs that it needs.
    pub(super) cpus: u32,
    /// The amount of the shared resource that each of its threads is assumed to use; of the bus, in bytes per
    /// second.
    pub(super) rate: u64,
}

/// The CPUs and the amount of the shared resource that remain on a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Remaining {
    pub(super) cpus: u32,
    /// Of the shared resource, in its own measure; negative: overcommitted.
    pub(super) amount: i64,
}

impl Remaining {
    /// The remaining amount of the shared resource per remaining CPU.
    pub(super) fn per_cpu(self) -> i64 {
        self.amount / i64::from(self.cpus.max(1))
    }

    /// Subtracts what a chosen gang uses.
    pub(super) fn take(&mut self, candidate: &Candidate) {
        self.cpus = self.cpus.saturating_sub(candidate.cpus);
        let used = candidate.rate.saturating_mul(u64::from(candidate.cpus));
        self.amount = self.amount.saturating_sub_unsigned(used);
    }
}

/// The index of the fittest candidate; `None`: none fits.
pub(super) fn fittest(candidates: &[Candidate], remaining: Remaining) -> Option<usize> {
    let per_cpu = i128::from(remaining.per_cpu());
    let fitting = candidates.iter().enumerate().filter(|(_, candidate)| candidate.cpus <= remaining.cpus);
    let fittest =
        fitting.min_by_key(|(_, candidate)| ((per_cpu - i128::from(candidate.rate)).abs(), candidate.place));
    fittest.map(|(number, _)| number)
}

/// The indices of the candidates to run beside `running`, with the head first, and the expected progress in
/// this and the next quantum, in permille per thread: 1,000 if no thread is slowed. `bus` is the capacity in
/// bytes per second.
pub(super) fn together(
    candidates: &[Candidate],
    running: &[Candidate],
    cpus: u32,
    bus: u64,
) -> (Vec<usize>, u32) {
    // The free CPUs in this quantum, and all CPUs in the next.
    let all_cpus = cpus + running.iter().map(|gang| gang.cpus).sum::<u32>();
    let window = window(candidates, cpus, cpus.saturating_add(all_cpus));
    if window.is_empty() {
        return (Vec::new(), 0);
    }
    let demand = |gang: &Candidate| {
        u64::try_from(u128::from(gang.rate) * u128::from(WHOLE) / u128::from(bus.max(1)))
            .map_or(WHOLE, |part| part.min(WHOLE))
    };
    let streams = |gang: &Candidate| Streams::new(gang.cpus, demand(gang));
    let sets: Vec<Streams> = window.iter().map(|number| streams(&candidates[*number])).collect();
    let beside: Vec<Streams> = running.iter().map(streams).collect();
    let division = Division { cpus, beside: &beside, sets: &sets };
    let chosen =
        if sets.len() <= EXHAUSTIVE_MAX { division.best_of_all() } else { division.best_by_exchange() };
    let progress = division.progress(&chosen);
    let threads: u64 = sets.iter().chain(&beside).map(|set| u64::from(set.threads)).sum();
    let permille = progress * 1_000 / WHOLE / threads.max(1);
    let chosen_numbers = (0..sets.len()).filter(|index| chosen[*index]).map(|index| window[index]).collect();
    (chosen_numbers, u32::try_from(permille).unwrap_or(1_000))
}

/// The indices of the longest-waiting candidates that together fill `cpus_to_fill` CPUs, the head first.
/// Gangs that need more than the `cpus` that are free now are left out.
fn window(candidates: &[Candidate], cpus: u32, cpus_to_fill: u32) -> Vec<usize> {
    let mut fitting: Vec<usize> =
        (0..candidates.len()).filter(|number| candidates[*number].cpus <= cpus).collect();
    // A gang needs at least one CPU, which bounds the number of gangs, so that a few of many need not be
    // sorted with all.
    let gangs_max = cpus_to_fill as usize;
    let by_place = |number: &usize| candidates[*number].place;
    if fitting.len() > gangs_max {
        fitting.select_nth_unstable_by_key(gangs_max - 1, by_place);
        fitting.truncate(gangs_max);
    }
    fitting.sort_unstable_by_key(by_place);
    let mut filled = 0;
    let needed = fitting.iter().take_while(|number| {
        let is_needed = filled < cpus_to_fill;
        filled += candidates[**number].cpus;
        is_needed
    });
    let needed = needed.count();
    fitting.truncate(needed);
    fitting
}

/// The problem of dividing candidates between this quantum and the next. A division is a list of flags, one
/// for each candidate: whether the candidate runs in this quantum.
struct Division<'a> {
    /// CPUs that are free in this quantum.
    cpus: u32,
    /// Gangs that run in this quantum already.
    beside: &'a [Streams],
    /// Candidates, the head first.
    sets: &'a [Streams],
}

impl Division<'_> {
    /// The progress of the chosen gangs in this quantum, plus that of the others in the next.
    fn progress(&self, chosen: &[bool]) -> u64 {
        let sets_where = |wanted: bool| {
            let sets = self.sets.iter().zip(chosen);
            sets.filter(move |(_, is_chosen)| **is_chosen == wanted).map(|(set, _)| *set)
        };
        let now: Vec<Streams> = self.beside.iter().copied().chain(sets_where(true)).collect();
        let next: Vec<Streams> = sets_where(false).collect();
        progress(&now) + progress(&next)
    }

    /// The number of threads of the chosen gangs.
    fn threads(&self, chosen: &[bool]) -> u32 {
        self.sets.iter().zip(chosen).filter(|(_, is_chosen)| **is_chosen).map(|(set, _)| set.threads).sum()
    }

    /// Whether the chosen gangs fit into the free CPUs, and no other gang fits beside them.
    fn fills(&self, chosen: &[bool]) -> bool {
        let Some(free) = self.cpus.checked_sub(self.threads(chosen)) else { return false };
        self.sets.iter().zip(chosen).all(|(set, is_chosen)| *is_chosen || set.threads > free)
    }

    /// The division with the most progress, by exhaustive search. It includes the head.
    fn best_of_all(&self) -> Vec<bool> {
        let others = self.sets.len() - 1;
        // The bits of a number are the flags of all gangs but the head, the longest-waiting gang in the
        // highest bit. In descending order of these numbers, divisions with longer-waiting gangs come first,
        // and win ties.
        let divisions = (0u32..1 << others).rev().map(|bits| {
            let is_chosen = |index: usize| index == 0 || bits >> (others - index) & 1 == 1;
            (0..self.sets.len()).map(is_chosen).collect::<Vec<bool>>()
        });
        let mut best: Option<(u64, Vec<bool>)> = None;
        for chosen in divisions.filter(|chosen| self.fills(chosen)) {
            let progress = self.progress(&chosen);
            if best.as_ref().is_none_or(|(best_progress, _)| progress > *best_progress) {
                best = Some((progress, chosen));
            }
        }
        best.map_or_else(|| self.longest_waiting(), |(_, chosen)| chosen)
    }

    /// The division with the longest-waiting candidates that fit.
    fn longest_waiting(&self) -> Vec<bool> {
        let mut free = self.cpus;
        let mut take = |set: &Streams| match free.checked_sub(set.threads) {
            Some(rest) => {
                free = rest;
                true
            }
            None => false,
        };
        self.sets.iter().map(&mut take).collect()
    }

    /// A good division by local search: exchanges gangs of equal size between the quanta while progress
    /// grows. The head stays.
    fn best_by_exchange(&self) -> Vec<bool> {
        let mut chosen = self.longest_waiting();
        let mut progress = self.progress(&chosen);
        let mut tries = 0;
        loop {
            let mut improved = false;
            for out in 1..self.sets.len() {
                for into in 1..self.sets.len() {
                    let (leaving, coming) = (self.sets[out], self.sets[into]);
                    let can_exchange = chosen[out] && !chosen[into] && leaving.threads == coming.threads;
                    if !can_exchange || leaving == coming {
                        continue;
                    }
                    if tries == TRIES_MAX {
                        return chosen;
                    }
                    tries += 1;
                    (chosen[out], chosen[into]) = (false, true);
                    let new_progress = self.progress(&chosen);
                    if new_progress > progress {
                        (progress, improved) = (new_progress, true);
                    } else {
                        (chosen[out], chosen[into]) = (true, false);
                    }
                }
            }
            if !improved {
                return chosen;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    /// Gangs with these CPUs and rates per thread, the head first.
    fn candidates(gangs: &[(u32, u64)]) -> Vec<Candidate> {
        let candidate = |(index, (cpus, rate)): (usize, &(u32, u64))| Candidate {
            index,
            place: index as u64,
            cpus: *cpus,
            rate: *rate,
        };
        gangs.iter().enumerate().map(candidate).collect()
    }

    /// 8 GB/s and 4 CPUs are left: 2 GB/s for each.
    #[test]
    fn the_nearest_to_what_is_left_for_each_cpu_is_the_fittest() {
        let remaining = Remaining { cpus: 4, amount: 8_000_000_000 };
        let gangs = candidates(&[(1, 3 * GB), (2, GB + GB / 2), (2, GB), (5, 2 * GB)]);
        assert_eq!(fittest(&gangs, remaining), Some(1), "the last is nearer, and does not fit");
        let same = candidates(&[(1, 3 * GB), (1, GB)]);
        assert_eq!(fittest(&same, remaining), Some(0), "ties go to the longest wait");
        assert_eq!(fittest(&candidates(&[(5, GB)]), remaining), None);
    }

    #[test]
    fn where_too_much_was_given_the_one_that_transfers_least_is_the_fittest() {
        let remaining = Remaining { cpus: 2, amount: -3_000_000_000 };
        assert_eq!(fittest(&candidates(&[(1, 3 * GB), (1, 2 * GB), (1, GB)]), remaining), Some(2));
    }

    /// Two gangs of two threads that want half of the bus each, and four that want most of it: the former run
    /// together, and leave the latter to each other.
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
    fn the_head_is_always_chosen_and_all_chosen_gangs_fit() {
        for cpus in 1..9 {
            let sizes: Vec<(u32, u64)> = (0u64..20).map(|at| ((at % 3) as u32 + 1, at % 5 * GB)).collect();
            let gangs = candidates(&sizes);
            let (chosen, _) = together(&gangs, &[], cpus, 10 * GB);
            assert_eq!(chosen.first(), Some(&0), "{cpus} CPUs");
            assert!(chosen.iter().map(|number| gangs[*number].cpus).sum::<u32>() <= cpus);
        }
    }

    /// Eight that want half of the bus are ahead of eight that want nothing. Exchanges put half of each kind
    /// together.
    #[test]
    fn many_gangs_are_divided_by_exchanges() {
        let sizes: Vec<(u32, u64)> = (0..16).map(|at| (1, if at < 8 { 5 * GB } else { 0 })).collect();
        let gangs = candidates(&sizes);
        let (chosen, _) = together(&gangs, &[], 8, 10 * GB);
        let hungry = chosen.iter().filter(|number| gangs[**number].rate > 0).count();
        assert!((3..=5).contains(&hungry), "{chosen:?}");
    }
}
