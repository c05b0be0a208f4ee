//! How much can be lent so that every loan could be called back in its time.
//!
//! Problem: how long an owner may be held up depends on how long it left its memory idle ([`Promise`]). So units lend
//! on different terms, and a single unit may lend on several. If all owners call back at once, each is to have its
//! memory within its own time.
//!
//! Terms:
//! - A *class* is all idle memory with the same call-back time. Times are rounded down to an eighth of an octave, so
//!   that there are few classes.
//! - What is *callable* from a unit is what could be called back from it within a class's time, if from no other unit.
//!
//! Algorithm:
//! - Loans are made from the classes with the longest times first. So the reserve, the part of the excess that is not
//!   lent, is of the classes with the shortest times.
//! - When all owners call back, what was promised earliest is reclaimed first. So loans *fit* if for each class, all
//!   that is lent on its time or a shorter one can be reclaimed within its time. All borrowers give the same fraction
//!   of their loans, one after another.
//! - Loans that do not fit are cut, each by the same fraction of its amount above its floor.
//! - Lenders are then chosen: first for what they do not use, since nothing has to be reclaimed to lend it, then for
//!   what is cold. Within both, memory that was idle longest is lent first, while that fits.
//!
//! Source: the condition is that of deadlines on one resource (Liu and Layland, 1973): what is due by each deadline fits
//! into the time until then.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Promise, UnitId};

use super::frames::Division;
use super::idleness::Piece;
use super::reclaim_curve::reliable;
use crate::rights::share::split;
use crate::time::Time;

/// The whole time for calling back, to which fractions of it refer.
const ALL_TIME: u64 = 1 << 30;
/// Times are kept in 2^3 steps of an octave.
const STEPS_BITS: u32 = 3;
/// The precision of the search for loans that fit, in bits.
const CUT_BITS: u32 = 20;

/// Idle memory with the same call-back time. Frames.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    within_ns: Time,
    /// By unit.
    idle: Vec<u64>,
    /// In all, including frames that no unit is entitled to.
    all: u64,
    /// From each unit; `None`: any amount.
    callable: Vec<Option<u64>>,
}

/// All classes, the shortest time first. There is at least one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Terms(Vec<Class>);

/// What is lent of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// The time within which it is to be back, in nanoseconds.
    pub within_ns: Time,
    /// Frames, including those that no unit is entitled to.
    pub lent: u64,
    /// Frames that could be reclaimed from the borrowers in that time; `None`: any number.
    pub callable: Option<u64>,
}

/// What units lend.
pub(super) struct Lent {
    /// Frames by unit.
    pub(super) frames: Vec<u64>,
    /// The time within which all that a unit lends is to be back.
    pub(super) within_ns: Vec<Option<Time>>,
    pub(super) terms: Vec<Term>,
}

impl Division<'_> {
    /// The classes of the idle memory.
    pub(super) fn loan_terms(&self, idle: &[u64]) -> Terms {
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
            let time = reliable(within_ns.saturating_sub(self.input.delay_ns));
            let callable = self.facts.iter().map(|facts| Some(facts.callable?.within(time))).collect();
            let unheld = if within_ns == first_ns { self.entitlement.unheld } else { 0 };
            Class { within_ns, all: idle.iter().sum::<u64>() + unheld, idle, callable }
        };
        Terms(by_time.into_iter().map(class).collect())
    }

    /// Cuts what loans have above `floor` until they fit.
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

    /// Which units lend for these loans, and on what terms.
    pub(super) fn lenders(&self, loans: &[u64], idle: &[u64]) -> Lent {
        let classes = &self.terms.0;
        let all: u64 = loans.iter().sum();
        // What no unit is entitled to is lent first: no unit will call it back.
        let unheld = all.min(self.entitlement.unheld);
        let mut left = all - unheld;
        let callable: Vec<Option<u64>> = classes.iter().map(|class| class.callable(loans, all)).collect();
        // For each class, what is lent on its time or a shorter one.
        let mut due = vec![unheld; callable.len()];
        let mut idle_left: Vec<Vec<u64>> = classes.iter().map(|class| class.idle.clone()).collect();
        let unused = self.per_unit(|id| self.unused(id).min(idle[id.index()]));
        let mut lent = self.nothing();
        let mut within_ns = vec![None; lent.len()];
        // Unused frames, then cold ones, and at last what was lost to rounding.
        for (lent_max, in_time) in [(&unused[..], true), (idle, true), (idle, false)] {
            for class in (0..classes.len()).rev() {
                let rooms = (class..due.len())
                    .map(|later| callable[later].map_or(u64::MAX, |most| most.saturating_sub(due[later])));
                let room = if in_time { rooms.min().unwrap_or(0) } else { u64::MAX };
                let available: Vec<u64> = idle_left[class]
                    .iter()
                    .zip(lent_max)
                    .zip(&lent)
                    .map(|((idle, max), lent)| *idle.min(&max.saturating_sub(*lent)))
                    .collect();
                let take = left.min(room).min(available.iter().sum());
                if take == 0 {
                    continue;
                }
                let parts = split(take, &available).into_iter().enumerate();
                for (i, part) in parts.filter(|(_, part)| *part > 0) {
                    idle_left[class][i] -= part;
                    lent[i] += part;
                    within_ns[i] = within_ns[i].max(Some(classes[class].within_ns));
                }
                left -= take;
                due[class..].iter_mut().for_each(|due| *due += take);
            }
        }
        let shorter = core::iter::once(0).chain(due.iter().copied());
        let terms = classes.iter().zip(shorter.zip(&due)).zip(callable);
        let term = |((class, (shorter, due)), callable): ((&Class, (u64, &u64)), _)| Term {
            within_ns: class.within_ns,
            lent: due - shorter,
            callable,
        };
        let terms = terms.map(term).filter(|term| term.lent > 0).collect();
        Lent { frames: lent, within_ns, terms }
    }
}

impl Terms {
    /// Whether everything that is lent could be back in its time.
    pub(super) fn fit(&self, loans: &[u64]) -> bool {
        let all: u64 = loans.iter().sum();
        let mut longer: u64 = self.0.iter().map(|class| class.all).sum();
        self.0.iter().all(|class| {
            longer -= class.all;
            let due = all.saturating_sub(longer);
            due == 0 || class.callable(loans, all).is_none_or(|callable| due <= callable)
        })
    }

    /// The largest loan to one unit while no other borrows; `None`: unlimited.
    pub(super) fn loan_max(&self, unit: UnitId) -> Option<u64> {
        let mut longer: u64 = self.0.iter().map(|class| class.all).sum();
        let class_max = |class: &Class| {
            longer -= class.all;
            let callable = class.callable.get(unit.index()).copied().flatten();
            callable.map(|callable| callable.saturating_add(longer))
        };
        self.0.iter().filter_map(class_max).min()
    }

    /// Whether there are loans, and none of them could be larger by `more` frames.
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
    /// What could be reclaimed from all borrowers within the class's time, each giving the same fraction of its loan;
    /// `all` is the sum of the loans. `None`: any amount.
    fn callable(&self, loans: &[u64], all: u64) -> Option<u64> {
        let time_for = |(loan, callable): (&u64, &Option<u64>)| u128::from(part_of_time(*loan, *callable));
        let time: u128 = loans.iter().zip(&self.callable).map(time_for).sum();
        let callable = (u128::from(all) * u128::from(ALL_TIME)).checked_div(time)?;
        Some(u64::try_from(callable).unwrap_or(u64::MAX))
    }
}

/// The part of [`ALL_TIME`] that calling back a loan takes if `callable` could be called back in all of it. It exceeds
/// `ALL_TIME` for a loan that is too large.
fn part_of_time(loan: u64, callable: Option<u64>) -> u64 {
    match callable {
        None => 0,
        _ if loan == 0 => 0,
        Some(callable) => {
            let part = (u128::from(loan) * u128::from(ALL_TIME)).div_ceil(u128::from(callable.max(1)));
            // Bounded so that thousands of these can be summed.
            u64::try_from(part).unwrap_or(u64::MAX).min(ALL_TIME << 16)
        }
    }
}

/// The call-back time after this much idleness, rounded down. The shortest and the longest are exactly the contract's.
fn rounded(promise: Promise, idle_ns: Time) -> Time {
    let time = promise.after(idle_ns);
    if time == promise.most_ns {
        return time;
    }
    let below = (u64::BITS - time.leading_zeros()).saturating_sub(STEPS_BITS + 1);
    (time >> below << below).max(promise.first_ns)
}
