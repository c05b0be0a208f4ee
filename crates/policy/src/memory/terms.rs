//! Computes how much can be lent so that every loan could be called back in time.
//!
//! Problem: how long an owner may wait for its memory depends on how long it left that memory idle
//! ([`Promise`]). So loans have different call-back times, even loans of one unit. If all owners call back at
//! the same time, each must get its memory within the time that was promised to it.
//!
//! Terms:
//! - A *class* is all idle memory with the same call-back time. Times are rounded down to an eighth of an
//!   octave, so that there are few classes.
//! - The *callable* frames of a unit are those that could be called back from it within a class's time, if no
//!   other unit gave anything back.
//!
//! Algorithm:
//! - Memory of the classes with the longest times is lent first. So the idle memory that is not lent belongs
//!   to the classes with the shortest times.
//! - When all owners call back, the memory with the earliest deadline is reclaimed first. So loans *fit* if
//!   the following holds for each class, whose time is t: all frames that are lent with a time of at most t
//!   can be reclaimed within t. It is assumed that all borrowers give back the same fraction of their loans,
//!   one after another.
//! - If loans do not fit, each is cut by the same fraction of its amount above its floor.
//! - Then the lenders are chosen. Unused frames are lent first, since nothing has to be reclaimed to lend
//!   them, then cold frames. Among the unused frames, and among the cold ones, those that were idle longest
//!   are lent first, while loans fit.
//!
//! Source: the condition for deadlines on one resource (Liu and Layland, 1973): the work due by each deadline
//! fits into the time until that deadline.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use commonhold_contract::{Promise, UnitId};

use super::frames::Division;
use super::idleness::Piece;
use super::reclaim_curve::reliable;
use crate::rights::share::split;
use crate::time::Time;

/// The denominator of fractions of a class's call-back time.
const ALL_TIME: u64 = 1 << 30;
/// Call-back times are rounded to 2^3 steps per octave.
const STEPS_BITS: u32 = 3;
/// The precision of the search for loans that fit, in bits.
const CUT_BITS: u32 = 20;

/// Idle memory with the same call-back time. Amounts are in frames.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    within_ns: Time,
    /// Idle frames of each unit.
    idle: Vec<u64>,
    /// The sum of `idle`, plus the frames that no unit is entitled to if they are in this class.
    all: u64,
    /// Callable frames of each unit; `None`: any number.
    callable: Vec<Option<u64>>,
}

/// All classes, the shortest time first. There is at least one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Terms(Vec<Class>);

/// The loans of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// The time within which these loans must be back, in nanoseconds.
    pub within_ns: Time,
    /// Lent frames, including those that no unit is entitled to.
    pub lent: u64,
    /// Frames that could be reclaimed from the borrowers in this time; `None`: any number.
    pub callable: Option<u64>,
}

/// The lenders' side of all loans.
pub(super) struct Lent {
    /// The frames that each unit lends.
    pub(super) frames: Vec<u64>,
    /// For each unit, the time within which all its lent frames must be back; `None`: the unit lends nothing.
    pub(super) within_ns: Vec<Option<Time>>,
    pub(super) terms: Vec<Term>,
}

impl Division<'_> {
    /// Sorts the idle frames, given by unit, into classes by their call-back times.
    pub(super) fn loan_terms(&self, idle: &[u64]) -> Terms {
        let contract = self.input.contract;
        let first_ns = contract.machine.call_back_memory_ns;
        // The class with the contract's call-back time always exists, for the frames that no unit is entitled
        // to.
        let mut by_time: BTreeMap<Time, Vec<u64>> = BTreeMap::from([(first_ns, self.zeros())]);
        for id in contract.held().filter(|id| idle[id.index()] > 0) {
            let promise = contract.promise(id);
            let (own, idle) = (self.entitlement.own(id), idle[id.index()]);
            for Piece { frames, idle_ns } in self.idleness[id.index()].pieces(self.input.now, own, own - idle)
            {
                let within_ns = rounded(promise, idle_ns);
                by_time.entry(within_ns).or_insert_with(|| self.zeros())[id.index()] += frames;
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

    /// Cuts loans until they fit: of each loan's amount above its floor, the same largest possible fraction
    /// is kept.
    pub(super) fn fit_in_time(&self, loans: &mut [u64], floors: &[u64]) {
        if self.terms.fit(loans) {
            return;
        }
        // Fractions are integers, with the denominator 2^`CUT_BITS`.
        let keep_fraction = |kept: u64| -> Vec<u64> {
            let cut_loan = |(loan, floor): (&u64, &u64)| {
                let above_floor = (u128::from(loan.saturating_sub(*floor)) * u128::from(kept)) >> CUT_BITS;
                floor + u64::try_from(above_floor).unwrap_or(u64::MAX)
            };
            loans.iter().zip(floors).map(cut_loan).collect()
        };
        let (mut fits, mut too_much) = (0, 1 << CUT_BITS);
        while too_much - fits > 1 {
            let kept = u64::midpoint(fits, too_much);
            if self.terms.fit(&keep_fraction(kept)) { fits = kept } else { too_much = kept }
        }
        let cut_loans = keep_fraction(fits);
        loans.copy_from_slice(&cut_loans);
    }

    /// Chooses the units that lend for these loans, and the terms. `loans` and `idle` are frames by unit.
    pub(super) fn lenders(&self, loans: &[u64], idle: &[u64]) -> Lent {
        let classes = &self.terms.0;
        let all: u64 = loans.iter().sum();
        // Frames that no unit is entitled to are lent first: no unit will call them back.
        let unheld = all.min(self.entitlement.unheld);
        let mut remaining = all - unheld;
        let callable: Vec<Option<u64>> = classes.iter().map(|class| class.callable(loans, all)).collect();
        // For each class, the frames that are lent with this or a shorter time.
        let mut due = vec![unheld; callable.len()];
        let mut idle_left: Vec<Vec<u64>> = classes.iter().map(|class| class.idle.clone()).collect();
        let unused = self.per_unit(|id| self.unused(id).min(idle[id.index()]));
        let mut lent = self.zeros();
        let mut within_ns = vec![None; lent.len()];
        // Three passes: unused frames, then cold frames, and at last the few frames that rounding kept from
        // fitting.
        for (lent_max, must_fit) in [(&unused[..], true), (idle, true), (idle, false)] {
            // The class with the longest time first.
            for class in (0..classes.len()).rev() {
                // A loan of this class is also due in all classes with longer times.
                let rooms = (class..due.len())
                    .map(|longer| callable[longer].map_or(u64::MAX, |most| most.saturating_sub(due[longer])));
                let room = if must_fit { rooms.min().unwrap_or(0) } else { u64::MAX };
                let available: Vec<u64> = idle_left[class]
                    .iter()
                    .zip(lent_max)
                    .zip(&lent)
                    .map(|((idle, max), lent)| *idle.min(&max.saturating_sub(*lent)))
                    .collect();
                let take = remaining.min(room).min(available.iter().sum());
                if take == 0 {
                    continue;
                }
                let parts = split(take, &available).into_iter().enumerate();
                for (i, part) in parts.filter(|(_, part)| *part > 0) {
                    idle_left[class][i] -= part;
                    lent[i] += part;
                    within_ns[i] = within_ns[i].max(Some(classes[class].within_ns));
                }
                remaining -= take;
                due[class..].iter_mut().for_each(|due| *due += take);
            }
        }
        // `due` is cumulative over the classes, so a class lends the difference to the class before it.
        let due_before = core::iter::once(0).chain(due.iter().copied());
        let terms = classes.iter().zip(due_before.zip(&due)).zip(callable);
        let term = |((class, (due_before, due)), callable): ((&Class, (u64, &u64)), _)| Term {
            within_ns: class.within_ns,
            lent: due - due_before,
            callable,
        };
        let terms = terms.map(term).filter(|term| term.lent > 0).collect();
        Lent { frames: lent, within_ns, terms }
    }
}

impl Terms {
    /// Whether all loans, given by borrower, could be back in time.
    pub(super) fn fit(&self, loans: &[u64]) -> bool {
        let all: u64 = loans.iter().sum();
        // Idle frames of the classes with longer times. These are lent first, so only the rest is due in this
        // class.
        let mut longer: u64 = self.0.iter().map(|class| class.all).sum();
        self.0.iter().all(|class| {
            longer -= class.all;
            let due = all.saturating_sub(longer);
            due == 0 || class.callable(loans, all).is_none_or(|callable| due <= callable)
        })
    }

    /// The largest loan to a unit that fits while no other unit borrows; `None`: unlimited.
    pub(super) fn loan_max(&self, unit: UnitId) -> Option<u64> {
        // Idle frames of the classes with longer times, as in `fit`.
        let mut longer: u64 = self.0.iter().map(|class| class.all).sum();
        let class_max = |class: &Class| {
            longer -= class.all;
            let callable = class.callable.get(unit.index()).copied().flatten();
            callable.map(|callable| callable.saturating_add(longer))
        };
        self.0.iter().filter_map(class_max).min()
    }

    /// Whether there are loans, and no loan would still fit if it were larger by `more` frames.
    pub(super) fn are_full(&self, loans: &[u64], more: u64) -> bool {
        let mut tried_loans = loans.to_vec();
        let mut fits_more = |i: usize| {
            tried_loans[i] += more;
            let fits = self.fit(&tried_loans);
            tried_loans[i] -= more;
            fits
        };
        let borrowers = || (0..loans.len()).filter(|i| loans[*i] > 0);
        borrowers().next().is_some() && !borrowers().any(&mut fits_more)
    }
}

impl Class {
    /// How many frames could be reclaimed from all borrowers within the class's time if each gave back the
    /// same fraction of its loan, one after another. `all` is the sum of the loans. `None`: any number.
    fn callable(&self, loans: &[u64], all: u64) -> Option<u64> {
        let time_for = |(loan, callable): (&u64, &Option<u64>)| u128::from(part_of_time(*loan, *callable));
        // To call back all loans takes `time`; so in `ALL_TIME`, `all * ALL_TIME / time` frames come back.
        let time: u128 = loans.iter().zip(&self.callable).map(time_for).sum();
        let callable = (u128::from(all) * u128::from(ALL_TIME)).checked_div(time)?;
        Some(u64::try_from(callable).unwrap_or(u64::MAX))
    }
}

/// How much of [`ALL_TIME`] the call-back of a loan takes if `callable` frames could be called back in all of
/// that time; `None`: any number. More than `ALL_TIME` for a loan that is too large.
fn part_of_time(loan: u64, callable: Option<u64>) -> u64 {
    match callable {
        None => 0,
        _ if loan == 0 => 0,
        Some(callable) => {
            let part = (u128::from(loan) * u128::from(ALL_TIME)).div_ceil(u128::from(callable.max(1)));
            // Bounded so that the times of thousands of loans can be summed.
            u64::try_from(part).unwrap_or(u64::MAX).min(ALL_TIME << 16)
        }
    }
}

/// The call-back time promised for memory that was idle for `idle_ns`, rounded down to the leading
/// [`STEPS_BITS`] + 1 bits. The shortest and the longest times are exactly the contract's.
fn rounded(promise: Promise, idle_ns: Time) -> Time {
    let time = promise.after(idle_ns);
    if time == promise.most_ns {
        return time;
    }
    let dropped_bits = (u64::BITS - time.leading_zeros()).saturating_sub(STEPS_BITS + 1);
    (time >> dropped_bits << dropped_bits).max(promise.first_ns)
}
