//! Within which time what is lent is to be back.
//!
//! Problem: how long an owner may be held up depends on how long it left its memory idle ([`Promise`]). So units lend with different times, and so may a single one. If all owners
//! wake at once, each is to have its memory back in its own time.
//!
//! Terms:
//! - A *class* is all that is idle for which there is the same time. Times are rounded down to an eighth of an octave, so
//!   that there are few of them.
//! - What could be called back from a unit in a class's time, if from no other unit, is *callable* from it.
//!
//! Algorithm:
//! - What is lent comes from the classes with the longest times first. What is left of the excess, the reserve, is so of
//!   those with the shortest.
//! - When all owners call, what was promised earlier is taken first. So loans *fit* if for each class this holds: what is
//!   lent within its time or a shorter one can be taken in its time. All borrowers give the same part of their loans for
//!   it, one after another.
//! - Loans that do not fit are cut: each by the same part of what is beyond its floor.
//! - Lenders are chosen for what is lent then: first for what they do not use, so that nothing is taken from any unit for
//!   it, then for what is cold. Within both, what was idle longest goes first, as far as that fits.
//!
//! Source: the condition is that of deadlines on one resource (Liu and Layland, 1973): what is due by each deadline fits
//! into the time until then.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Promise, UnitId};

use super::{Division, part_of_time};
use crate::memory::idleness::Piece;
use crate::memory::pace::relied;
use crate::rights::share::split;
use crate::time::Time;

/// The time that there is for calling back.
pub(super) const ALL_TIME: u64 = 1 << 30;
/// Of an octave, times are kept in so many steps.
const STEPS_BITS: u32 = 3;
/// How finely it is searched for what fits.
const CUT_BITS: u32 = 20;

/// What is idle with the same time to be back in. Frames.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    within_ns: Time,
    /// By unit.
    idle: Vec<u64>,
    /// In all, with what no unit is entitled to.
    all: u64,
    /// From each unit; `None`: any amount.
    callable: Vec<Option<u64>>,
}

/// All classes, the shortest time first. There is one at least.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Terms(Vec<Class>);

/// What is lent of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// It is to be back within this time, in nanoseconds.
    pub within_ns: Time,
    /// So many frames, with those that no unit is entitled to.
    pub lent: u64,
    /// In that time, so many could be taken from the borrowers; `None`: any number.
    pub callable: Option<u64>,
}

/// What units lend.
pub(super) struct Lent {
    /// Frames by unit.
    pub(super) frames: Vec<u64>,
    /// Within what time all of a unit's are to be back.
    pub(super) within_ns: Vec<Option<Time>>,
    pub(super) terms: Vec<Term>,
}

impl Division<'_> {
    /// The classes of what is idle.
    pub(super) fn terms(&self, idle: &[u64]) -> Terms {
        let contract = self.input.contract;
        let first_ns = contract.machine.call_back_memory_ns;
        let mut by_time: BTreeMap<Time, Vec<u64>> = BTreeMap::from([(first_ns, self.nothing())]);
        for id in contract.held().filter(|id| idle[id.index()] > 0) {
            let promise = contract.promise(id);
            let (own, idle) = (self.entitlement.own(id), idle[id.index()]);
            for Piece { frames, idle_ns } in self.idleness[id.index()].pieces(self.input.now, own, own - idle)
            {
                let within_ns = rounded(promise, idle_ns);
                by_time.entry(within_ns).or_insert_with(|| self.nothing())[id.index()] += frames;
            }
        }
        let class = |(within_ns, idle): (Time, Vec<u64>)| {
            let time = relied(within_ns.saturating_sub(self.input.delay_ns));
            let callable = self.facts.iter().map(|facts| Some(facts.callable?.within(time))).collect();
            let unheld = if within_ns == first_ns { self.entitlement.unheld } else { 0 };
            Class { within_ns, all: idle.iter().sum::<u64>() + unheld, idle, callable }
        };
        Terms(by_time.into_iter().map(class).collect())
    }

    /// Cuts what of loans is beyond `floor` until they fit.
    pub(super) fn fit_in_time(&self, loans: &mut [u64], floor: &[u64]) {
        if self.terms.fit(loans) {
            return;
        }
        let cut = |kept: u64| -> Vec<u64> {
            let part = |(loan, floor): (&u64, &u64)| {
                let above = (u128::from(loan.saturating_sub(*floor)) * u128::from(kept)) >> CUT_BITS;
                floor + u64::try_from(above).unwrap_or(u64::MAX)
            };
            loans.iter().zip(floor).map(part).collect()
        };
        let (mut fits, mut too_much) = (0, 1 << CUT_BITS);
        while too_much - fits > 1 {
            let kept = u64::midpoint(fits, too_much);
            if self.terms.fit(&cut(kept)) { fits = kept } else { too_much = kept }
        }
        let kept = cut(fits);
        loans.copy_from_slice(&kept);
    }

    /// Which units lend for these loans.
    pub(super) fn lenders(&self, loans: &[u64], idle: &[u64]) -> Lent {
        let all: u64 = loans.iter().sum();
        // What no unit is entitled to is lent first: no unit will call it back.
        let unheld = all.min(self.entitlement.unheld);
        let mut left = all - unheld;
        let callable: Vec<Option<u64>> =
            self.terms.0.iter().map(|class| class.callable(loans, all)).collect();
        // Of each class, what is lent within its time or a shorter one.
        let mut due = vec![unheld; callable.len()];
        let mut rest: Vec<Vec<u64>> = self.terms.0.iter().map(|class| class.idle.clone()).collect();
        let unused = self.per_unit(|id| self.unused(id).min(idle[id.index()]));
        let mut lent = self.nothing();
        let mut within_ns = vec![None; lent.len()];
        // What is not used, then what is cold, and at last what was lost to rounding.
        for (most, in_time) in [(&unused[..], true), (idle, true), (idle, false)] {
            for k in (0..rest.len()).rev() {
                let room =
                    (k..due.len()).map(|j| callable[j].map_or(u64::MAX, |most| most.saturating_sub(due[j])));
                let room = if in_time { room.min().unwrap_or(0) } else { u64::MAX };
                let some: Vec<u64> = rest[k]
                    .iter()
                    .zip(most)
                    .zip(&lent)
                    .map(|((rest, most), lent)| *rest.min(&most.saturating_sub(*lent)))
                    .collect();
                let take = left.min(room).min(some.iter().sum());
                if take == 0 {
                    continue;
                }
                for (i, part) in split(take, &some).into_iter().enumerate().filter(|(_, part)| *part > 0) {
                    rest[k][i] -= part;
                    lent[i] += part;
                    within_ns[i] = within_ns[i].max(Some(self.terms.0[k].within_ns));
                }
                left -= take;
                due[k..].iter_mut().for_each(|due| *due += take);
            }
        }
        let before = core::iter::once(0).chain(due.iter().copied());
        let terms = self.terms.0.iter().zip(before.zip(&due)).zip(callable);
        let term = |((class, (before, due)), callable): ((&Class, (u64, &u64)), _)| Term {
            within_ns: class.within_ns,
            lent: due - before,
            callable,
        };
        let terms = terms.map(term).filter(|term| term.lent > 0).collect();
        Lent { frames: lent, within_ns, terms }
    }
}

impl Terms {
    /// Whether everything that is lent so could be back in its time.
    pub(super) fn fit(&self, loans: &[u64]) -> bool {
        let all: u64 = loans.iter().sum();
        let mut longer: u64 = self.0.iter().map(|class| class.all).sum();
        self.0.iter().all(|class| {
            longer -= class.all;
            let due = all.saturating_sub(longer);
            due == 0 || class.callable(loans, all).is_none_or(|callable| due <= callable)
        })
    }

    /// The largest loan to one unit, where no other borrows; `None`: any.
    pub(super) fn most(&self, unit: UnitId) -> Option<u64> {
        let mut longer: u64 = self.0.iter().map(|class| class.all).sum();
        let most = |class: &Class| {
            longer -= class.all;
            class
                .callable
                .get(unit.index())
                .copied()
                .flatten()
                .map(|callable| callable.saturating_add(longer))
        };
        self.0.iter().filter_map(most).min()
    }

    /// Whether there are loans, and none of them could be larger by so many frames.
    pub(super) fn are_full(&self, loans: &[u64], more: u64) -> bool {
        let mut with = loans.to_vec();
        let mut fits_more = |i: usize| {
            with[i] += more;
            let fits = self.fit(&with);
            with[i] -= more;
            fits
        };
        let borrowers = || (0..loans.len()).filter(|i| loans[*i] > 0);
        borrowers().next().is_some() && !borrowers().any(&mut fits_more)
    }
}

impl Class {
    /// What could be taken from all borrowers in its time, each giving the same part of its loan; `all` is what they sum to.
    /// `None`: any amount.
    fn callable(&self, loans: &[u64], all: u64) -> Option<u64> {
        let part = |(loan, callable): (&u64, &Option<u64>)| u128::from(part_of_time(*loan, *callable));
        let time: u128 = loans.iter().zip(&self.callable).map(part).sum();
        let callable = (u128::from(all) * u128::from(ALL_TIME)).checked_div(time)?;
        Some(u64::try_from(callable).unwrap_or(u64::MAX))
    }
}

/// The time after so long an idleness, rounded down; the first and the last are as the contract says.
fn rounded(promise: Promise, idle_ns: Time) -> Time {
    let time = promise.after(idle_ns);
    if time == promise.most_ns {
        return time;
    }
    let below = (u64::BITS - time.leading_zeros()).saturating_sub(STEPS_BITS + 1);
    (time >> below << below).max(promise.first_ns)
}
