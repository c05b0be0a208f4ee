//! Which gang runs beside those that were chosen before.
//!
//! Algorithm, [`fittest`] (seed 003, section 4): with ABBW/proc, what was left of the bus for each CPU that was left, and
//! BBW/thread, what each thread of a gang transfers, the fittest has the largest
//!
//! ```text
//! fitness = 1000 / (1 + | ABBW/proc - BBW/thread |)
//! ```
//!
//! which is the one with the smallest distance. It is worked out anew after each choice. Where too much was given already,
//! ABBW/proc is below 0, and the fittest is the one that transfers least. Of caches, bytes held take the place of bytes per
//! second, and of cores, instructions per second. Of equally fit ones, it is the one that waited longest.
//!
//! Algorithm, [`together`]: a full bus costs all threads beside it, so what goes together matters for those that wait as well.
//! For example, a gang that wants half of the bus waits longest; two that want nothing and two that want half of it wait, too.
//! Beside the first run the two that want nothing, or two that want half of the bus. In the second case the bus is full for a
//! while, and nobody suffers from it afterwards. Those that waited longest and fill the CPUs twice are divided in two, so that
//! both halves together get on most, by [`super::queue`]. With up to [`ALL_MAX`] gangs all ways are tried; with more, the list is cut in two, and pairs are exchanged as
//! long as that helps, at most [`TRIES_MAX`] times.
//!
//! Properties: both choose only what fits into the CPUs that are left. The head of the list is always chosen, so `together`
//! looks at no gang that comes after twice the machine. Nothing depends on anything but the candidates and their order.

use alloc::vec::Vec;

use crate::bus::queue::{WHOLE, Wants, progress};

/// Up to so many gangs, all ways to divide them are tried.
const ALL_MAX: usize = 9;

/// With more, so many exchanges are tried at most.
const TRIES_MAX: usize = 64;

/// A gang that could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Which: its index.
    pub(super) at: usize,
    /// Its place in the list; the lowest is the head.
    pub(super) place: u64,
    /// CPUs that it needs.
    pub(super) cpus: u32,
    /// What each of its threads is taken to have of what they share: of the bus, bytes per second.
    pub(super) rate: u64,
}

/// What is left of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) cpus: u32,
    /// Of what they share, in its own measure; below 0 where more was given than there is.
    pub(super) amount: i64,
}

impl Left {
    /// For each CPU.
    pub(super) fn each(self) -> i64 {
        self.amount / i64::from(self.cpus.max(1))
    }

    pub(super) fn take(&mut self, candidate: &Candidate) {
        self.cpus = self.cpus.saturating_sub(candidate.cpus);
        let takes = candidate.rate.saturating_mul(u64::from(candidate.cpus));
        self.amount = self.amount.saturating_sub_unsigned(takes);
    }
}

/// The fittest of the candidates, by its place among them; `None`: none fits.
pub(super) fn fittest(candidates: &[Candidate], left: Left) -> Option<usize> {
    let each = i128::from(left.each());
    let fits = candidates.iter().enumerate().filter(|(_, candidate)| candidate.cpus <= left.cpus);
    let found =
        fits.min_by_key(|(_, candidate)| ((each - i128::from(candidate.rate)).abs(), candidate.place));
    found.map(|(number, _)| number)
}

/// Which candidates run beside those that run already, the head among them: their places among the candidates, and how well
/// they and those that come next get on, in permille of a CPU. `bus` is in bytes per second.
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
    let part = |gang: &Candidate| {
        u64::try_from(u128::from(gang.rate) * u128::from(WHOLE) / u128::from(bus.max(1)))
            .map_or(WHOLE, |part| part.min(WHOLE))
    };
    let wants = |gang: &Candidate| Wants::new(gang.cpus, part(gang));
    let sets: Vec<Wants> = window.iter().map(|number| wants(&candidates[*number])).collect();
    let beside: Vec<Wants> = running.iter().map(wants).collect();
    let room = Room { cpus, beside: &beside, sets: &sets };
    let chosen = if sets.len() <= ALL_MAX { room.best_of_all() } else { room.best_by_exchange() };
    let gained = room.gains(&chosen);
    let threads: u64 = sets.iter().chain(&beside).map(|set| u64::from(set.threads)).sum();
    let permille = gained * 1_000 / WHOLE / threads.max(1);
    let numbers = (0..sets.len()).filter(|at| chosen[*at]).map(|at| window[at]).collect();
    (numbers, u32::try_from(permille).unwrap_or(1_000))
}

/// Those that waited longest, and fill so many CPUs: their places among the candidates, the head first.
fn window(candidates: &[Candidate], cpus: u32, enough: u32) -> Vec<usize> {
    let mut fits: Vec<usize> =
        (0..candidates.len()).filter(|number| candidates[*number].cpus <= cpus).collect();
    // A gang has a CPU at least: no more than so many are needed.
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

/// What is to be divided.
struct Room<'a> {
    /// CPUs that are left.
    cpus: u32,
    /// Those that run already.
    beside: &'a [Wants],
    /// Those that could, the head first.
    sets: &'a [Wants],
}

impl Room<'_> {
    /// How far the chosen ones get, and the others after them.
    fn gains(&self, chosen: &[bool]) -> u64 {
        let of = |wanted: bool| {
            self.sets.iter().zip(chosen).filter(move |(_, is)| **is == wanted).map(|(set, _)| *set)
        };
        let now: Vec<Wants> = self.beside.iter().copied().chain(of(true)).collect();
        let next: Vec<Wants> = of(false).collect();
        progress(&now) + progress(&next)
    }

    fn threads(&self, chosen: &[bool]) -> u32 {
        self.sets.iter().zip(chosen).filter(|(_, is)| **is).map(|(set, _)| set.threads).sum()
    }

    /// Whether they fit, and none of the others does beside them.
    fn fills(&self, chosen: &[bool]) -> bool {
        let Some(left) = self.cpus.checked_sub(self.threads(chosen)) else { return false };
        self.sets.iter().zip(chosen).all(|(set, is)| *is || set.threads > left)
    }

    fn best_of_all(&self) -> Vec<bool> {
        let others = self.sets.len() - 1;
        // From the ones that waited longest on, so that these are taken where it makes no difference.
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

    /// Those that waited longest, as far as they fit.
    fn first(&self) -> Vec<bool> {
        let mut left = self.cpus;
        let mut take = |set: &Wants| match left.checked_sub(set.threads) {
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
        let of = candidates(&[(1, 3 * GB), (2, GB + GB / 2), (2, GB), (5, 2 * GB)]);
        assert_eq!(fittest(&of, left), Some(1), "the last is nearer, and does not fit");
        let same = candidates(&[(1, 3 * GB), (1, GB)]);
        assert_eq!(fittest(&same, left), Some(0), "of equally fit ones, the one that waited longest");
        assert_eq!(fittest(&candidates(&[(5, GB)]), left), None);
    }

    #[test]
    fn where_too_much_was_given_the_one_that_transfers_least_is_the_fittest() {
        let left = Left { cpus: 2, amount: -3_000_000_000 };
        assert_eq!(fittest(&candidates(&[(1, 3 * GB), (1, 2 * GB), (1, GB)]), left), Some(2));
    }

    /// Two of two threads that want half of the bus each, and four that want most of it: the two go together, and leave the
    /// others to each other.
    #[test]
    fn what_fills_the_bus_anyway_goes_together() {
        let of = candidates(&[(2, 5 * GB), (2, 5 * GB), (1, 8 * GB), (1, 8 * GB), (1, 8 * GB), (1, 8 * GB)]);
        assert_eq!(together(&of, &[], 4, 10 * GB).0, [0, 1]);
    }

    /// Where idle ones are there, a gang that wants half of the bus runs beside them.
    #[test]
    fn who_wants_the_bus_runs_beside_who_does_not() {
        let of = candidates(&[(2, 4 * GB), (2, 4 * GB), (1, 0), (1, 0), (1, 0), (1, 0)]);
        assert_eq!(together(&of, &[], 4, 10 * GB).0, [0, 2, 3]);
    }

    #[test]
    fn the_head_is_always_among_them_and_all_fit() {
        for cpus in 1..9 {
            let sizes: Vec<(u32, u64)> = (0u64..20).map(|at| ((at % 3) as u32 + 1, at % 5 * GB)).collect();
            let of = candidates(&sizes);
            let (chosen, _) = together(&of, &[], cpus, 10 * GB);
            assert_eq!(chosen.first(), Some(&0), "{cpus} CPUs");
            assert!(chosen.iter().map(|number| of[*number].cpus).sum::<u32>() <= cpus);
        }
    }

    /// Eight that want half of the bus are ahead of eight that want nothing. Exchanges bring half of each together.
    #[test]
    fn many_gangs_are_divided_by_exchanges() {
        let sizes: Vec<(u32, u64)> = (0..16).map(|at| (1, if at < 8 { 5 * GB } else { 0 })).collect();
        let of = candidates(&sizes);
        let (chosen, _) = together(&of, &[], 8, 10 * GB);
        let hungry = chosen.iter().filter(|number| of[**number].rate > 0).count();
        assert!((3..=5).contains(&hungry), "{chosen:?}");
    }
}
