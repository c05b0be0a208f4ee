//! The negotiator: exchanges proposed on behalf of units, tried, measured, and kept or undone.
//!
//! Problem: what a ticket is worth to a unit depends on its own load and on everyone else's. A unit cannot
//! name a ratio beforehand (seed 004, section 5.6). So an exchange is tried for a while, and both sides are
//! measured.
//!
//! Terms:
//! - A *window* is [`WINDOW_NS`] long. All measurements are of whole windows.
//! - A unit's *progress* is the time in which its tasks, and those of its sub-units, waited for nothing:
//!   their CPU time, in millionths of a CPU. Every backend reports it.
//! - A *want* of a resource is the fraction of a window in which the unit's tasks waited for it: runnable
//!   without a CPU, stalled for a disk, or stalled for memory. Disk stalls while refaulting count as memory
//!   as well.
//! - A unit's *baseline* is its progress without the exchange, in the windows just before.
//! - A *level* is the amount exchanged, in thousandths of the smaller of both sides' holdings of each
//!   resource.
//! - *Noise* is the larger of 0.5 % of the baseline and three standard errors of the difference. Two
//!   measurements differ if their difference exceeds it.
//!
//! Algorithm: one *trial* at a time.
//! 1. Find two siblings that negotiate, one of which waits more for one resource than for another, while the
//!    other does the opposite. Choose the pair whose wants differ most. Each gives what it waits for less.
//! 2. The first level is a tenth. After [`SETTLE`] windows, [`MEASURE`] to [`MEASURE_MAX`] are measured.
//! 3. If both sides' progress grew, the level is good, and twice the amount is tried. If one lost, the level
//!    is undone. If there is no significant difference, larger levels are tried, up to [`BLIND_MAX`].
//! 4. A larger level is good if neither side has less than at the previous one, and one has more. If not, the
//!    previous level is restored, and the next step is half as large. The result is *kept* once steps fall
//!    below a tenth.
//! 5. A kept exchange is watched. A side that falls below its baseline ends it. From time to time, and when
//!    other units come or go, it is suspended, a new baseline is measured, and it is tried again. The
//!    interval doubles, up to [`CHECK_MAX_NS`].
//! 6. A pair whose trial failed backs off exponentially, up to [`REST_MAX_NS`].
//!
//! Cost of a trial: a unit that gives away a fraction of a resource loses at most that fraction of its
//! progress, as long as progress is concave in what it holds. It cannot lose more than all of it, nor more
//! than the machine has beyond its present progress. This bound is what a trial *risks* of a unit while it
//! lasts; a kept exchange risks it from the last time it was found good. A unit whose undone trials risked
//! more than [`ALLOWANCE_NS`] plus 1 % of elapsed time is left alone.
//!
//! Properties (tested): tickets are conserved. A kept exchange benefits both sides. No unit falls behind its
//! progress without trade by more than was risked.
//!
//! Limits: a unit takes part in one negotiated exchange at a time. A loss that begins after a check and ends
//! before the next, while the unit stays above its old baseline, goes unnoticed. Wasted CPU time (spinning,
//! page faults) counts as progress. What a unit would do without an exchange is known as of the last check
//! only. The memory bus is not controlled, and so not exchanged.
//!
//! Cost: O(n log n) for n units once a window; nothing if no unit negotiates.
//!
//! Source: seed 004, sections 5.5, 5.6 and 7, which call for negotiators and describe none.

mod measure;
mod seen;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use commonhold_contract::{Resource, UnitId};
use serde::{Deserialize, Serialize};

use crate::input::Input;
use crate::rights::share::part_of;
use crate::rights::{Bid, Offer, Refused, Rights, Trade};
use crate::time::Time;
use measure::{Sample, Sign};
pub(crate) use seen::{Facts, Seen};

/// Minimum length of a window.
pub const WINDOW_NS: Time = 4_000_000_000;
/// Windows skipped after a change of tickets.
pub const SETTLE: u32 = 1;
/// Windows measured before the first verdict.
pub const MEASURE: u32 = 4;
/// Windows after which a verdict is forced.
pub const MEASURE_MAX: u32 = 8;
/// The first level, and the smallest step between levels, in thousandths.
pub const FIRST: u64 = 100;
/// The largest level.
pub const LARGEST: u64 = 900;
/// The largest level tried before any smaller one was found good.
pub const BLIND_MAX: u64 = 400;
/// How long a kept exchange runs before its first retrial.
pub const CHECK_NS: Time = 240_000_000_000;
/// The longest interval between retrials.
pub const CHECK_MAX_NS: Time = 3_600_000_000_000;
/// Back-off of a pair after its first failure.
pub const REST_NS: Time = 60_000_000_000;
/// The longest back-off of a pair.
pub const REST_MAX_NS: Time = 61_440_000_000_000;
/// What undone trials may risk of a unit beyond 1 % of elapsed time.
pub const ALLOWANCE_NS: Time = 20_000_000_000;
/// A unit that waits for a smaller part of a window does not want the resource; in millionths.
const WANT_MIN: u64 = 50_000;
/// Candidates considered on each side of a pair.
const LOOKED_AT: usize = 8;
/// The resources that are exchanged.
const TRADED: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Disk];

const MILLION: u64 = 1_000_000;

/// One side of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The unit.
    pub unit: UnitId,
    /// What it gives.
    pub gives: Offer,
    /// Its progress without the exchange, in millionths of a CPU.
    pub without: u64,
    /// Its progress with it, in millionths of a CPU; `None`: not measured.
    pub with: Option<u64>,
    /// The smallest significant difference between the two.
    pub noise: u64,
    /// Upper bound of what trials cost it so far, in ns of CPU time.
    pub risked_ns: u64,
    /// Measured loss in trials, in ns of CPU time.
    pub lost_ns: u64,
    /// Measured gain from exchanges, in ns of CPU time.
    pub gained_ns: u64,
}

/// A move of the negotiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Move {
    /// An exchange is tried.
    Tried,
    /// It is good for both; a larger one is tried next.
    Good,
    /// It was not good, and less is exchanged next; or more, if there was no significant difference.
    Left {
        /// The reason.
        why: Why,
    },
    /// It is kept.
    Kept,
    /// It was measured again and continues.
    Watched,
    /// It is suspended to measure a new baseline.
    Suspended,
    /// It is undone.
    Undone {
        /// The reason.
        why: Why,
    },
}

/// Why a trial or an exchange is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// A unit lost progress.
    Lost {
        /// The unit.
        unit: UnitId,
    },
    /// There is no significant difference, or one side gained nothing.
    NoGain,
    /// Units came or went during the measurement.
    Changed,
    /// The exchange of tickets was refused.
    Refused {
        /// The reason.
        refused: Refused,
    },
    /// It was ended from outside the negotiator.
    Ended,
    /// A unit no longer negotiates, or is gone.
    Withdrawn,
}

/// An entry for the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Negotiation {
    /// The trial's number.
    pub trial: u64,
    /// The exchange; `None`: none was made.
    pub deal: Option<u64>,
    /// The amount, in thousandths of the smaller holdings.
    pub level: u64,
    /// The move.
    pub done: Move,
    /// Both sides.
    pub sides: [Side; 2],
}

/// Two siblings, and the resource that each of them gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    units: [UnitId; 2],
    gets: [Resource; 2],
}

/// A unit's progress and wants in a window, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Activity {
    progress: u64,
    wants: [u64; TRADED.len()],
}

/// A level that was found good, with both sides' progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Good {
    level: u64,
    with: [Sample; 2],
}

/// An exchange on trial, or kept.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trial {
    number: u64,
    pair: Pair,
    /// The exchange in force; `None` while the baseline is measured.
    deal: Option<u64>,
    offers: [Offer; 2],
    level: u64,
    /// The smallest level found not good in this trial.
    ceiling: Option<u64>,
    good: Option<Good>,
    /// Whether this is a retrial of a kept exchange.
    again: bool,
    without: [Sample; 2],
    with: [Sample; 2],
    /// Windows still to be skipped.
    settle: u32,
    /// The fraction of its holdings that each side gives, in millionths.
    fractions: [u64; 2],
    /// What each side may have lost since the exchange began or was last found good: as weighted time, and in
    /// ns of CPU time.
    unsure: [(Time, u64); 2],
    /// The same for the time for which it was kept before this retrial.
    doubt: [(Time, u64); 2],
    /// The time covered by `with`.
    block_ns: Time,
    /// When it is to be suspended next (0 for a trial), and the interval.
    check_at: Time,
    check_ns: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct BackOff {
    failures: u32,
    until: Time,
}

/// Costs and gains of a unit's trials, in ns of its CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Account {
    since: Option<Time>,
    risked_ns: u64,
    /// Sum over undone trials of the fraction given times duration.
    spent_ns: u64,
    lost_ns: u64,
    gained_ns: u64,
}

/// What must stay constant during a measurement: the busy units, tickets, and exchanges of others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Conditions {
    busy: Vec<UnitId>,
    tickets: Vec<(UnitId, u64)>,
    deals: Vec<u64>,
}

/// The negotiator's memory between steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Negotiator {
    stalls: seen::LastStalls,
    /// The open window: when it began, and the counters then.
    open: Option<(Time, Vec<Facts>)>,
    conditions: Conditions,
    /// Activity of each unit by window, under the present conditions, the newest last; at most [`MEASURE`]
    /// windows.
    history: Vec<BTreeMap<UnitId, Activity>>,
    last: u64,
    /// The machine's capacity in millionths of a CPU.
    cpus: u64,
    trial: Option<Trial>,
    kept: Vec<Trial>,
    rests: BTreeMap<Pair, BackOff>,
    accounts: BTreeMap<UnitId, Account>,
}

/// The outcome of a step.
#[derive(Debug, Default)]
pub(crate) struct NegotiationStep {
    /// Moves for the ledger.
    pub(crate) moves: Vec<Negotiation>,
    /// The exchanges made and ended by these.
    pub(crate) traded: Vec<Trade>,
    /// When the negotiator needs the next step.
    pub(crate) next: Option<Time>,
}

/// One step of the negotiator.
pub(crate) fn step(
    negotiator: &mut Arc<Negotiator>,
    now: Time,
    input: Input<'_>,
    rights: &mut Arc<Rights>,
) -> NegotiationStep {
    let negotiates = input.contract.held().any(|unit| input.contract.unit(unit).negotiate);
    if !negotiates && !negotiator.is_at_work() {
        return NegotiationStep::default();
    }
    let negotiator = Arc::make_mut(negotiator);
    negotiator.stalls.note(input.snapshot);
    if let Some(next) = negotiator.next().filter(|next| *next > now) {
        return NegotiationStep { next: Some(next), ..NegotiationStep::default() };
    }
    let seen = negotiator.stalls.units(input);
    let rights = Arc::make_mut(rights);
    let moves = negotiator.observe(now, &seen, rights);
    NegotiationStep { moves, traded: rights.settle(now), next: negotiator.next() }
}

/// The offers of both sides of a pair.
fn bids(pair: Pair, offers: [Offer; 2]) -> [Bid; 2] {
    let bid = |of: usize, by: usize| Bid {
        by: pair.units[of],
        gives: offers[of],
        wants: offers[by],
        with: Some(pair.units[by]),
        for_ns: None,
        at_least: None,
        bound: true,
    };
    [bid(0, 1), bid(1, 0)]
}

impl Negotiator {
    fn is_at_work(&self) -> bool {
        self.trial.is_some() || !self.kept.is_empty()
    }

    /// When the open window ends.
    pub(crate) fn next(&self) -> Option<Time> {
        self.open.as_ref().map(|(began, _)| began.saturating_add(WINDOW_NS))
    }

    /// Takes a sample. Only one at the end of a window has an effect.
    pub(crate) fn observe(&mut self, now: Time, seen: &Seen, rights: &mut Rights) -> Vec<Negotiation> {
        let mut moves = Vec::new();
        let before = match self.open.take() {
            Some((began, before)) if now < began.saturating_add(WINDOW_NS) => {
                self.open = Some((began, before));
                return moves;
            }
            before => before,
        };
        self.open = Some((now, seen.units.clone()));
        self.cpus = seen.cpus;
        self.forget(now, seen, rights, &mut moves);
        let Some((began, before)) = before else { return moves };
        // After a pause, such as suspend to RAM, the window is void.
        if now - began > 3 * WINDOW_NS {
            self.history.clear();
            return moves;
        }
        let (activity, busy) = activities(&before, &seen.units);
        for unit in activity.keys() {
            self.accounts.entry(*unit).or_default().since.get_or_insert(began);
        }
        let conditions = self.conditions(busy, seen, rights);
        let same = conditions == self.conditions;
        self.conditions = conditions;
        if !same {
            self.history.clear();
        }
        self.history.push(activity.clone());
        if self.history.len() > MEASURE as usize {
            self.history.remove(0);
        }
        self.watch(now, now - began, &activity, same, rights, &mut moves);
        match self.trial.take() {
            Some(trial) => self.go_on(trial, now, now - began, &activity, same, rights, &mut moves),
            None => self.begin(now, seen, rights, &mut moves),
        }
        // The negotiator's own changes are not changes of conditions, but they invalidate earlier
        // measurements.
        if moves.iter().any(|entry| entry.done != Move::Watched) {
            self.conditions.deals = self.others_deals(rights);
            self.history.clear();
        }
        moves
    }

    /// Deals other than that of the trial in progress.
    fn others_deals(&self, rights: &Rights) -> Vec<u64> {
        let own = self.trial.as_ref().and_then(|trial| trial.deal);
        rights.deals().keys().copied().filter(|deal| Some(*deal) != own).collect()
    }

    fn conditions(&self, busy: Vec<UnitId>, seen: &Seen, rights: &Rights) -> Conditions {
        let tickets = |unit: &Facts| TRADED.map(|resource| (unit.unit, rights.tickets(unit.unit, resource)));
        Conditions {
            busy,
            tickets: seen.units.iter().flat_map(tickets).collect(),
            deals: self.others_deals(rights),
        }
    }

    /// Drops exchanges that a unit ended, and those of units that no longer negotiate.
    fn forget(&mut self, now: Time, seen: &Seen, rights: &mut Rights, moves: &mut Vec<Negotiation>) {
        let all: Vec<Trial> = self.trial.take().into_iter().chain(core::mem::take(&mut self.kept)).collect();
        for mut trial in all {
            let in_force = trial.deal.is_none_or(|deal| rights.deals().contains_key(&deal));
            let negotiate = trial.pair.units.iter().all(|unit| seen.negotiates(*unit));
            let kept = trial.check_at > 0;
            match (in_force, negotiate) {
                (true, true) if kept => self.kept.push(trial),
                (true, true) => self.trial = Some(trial),
                (false, _) => {
                    self.risk(&mut trial);
                    self.fail(&trial, now, Why::Ended, moves);
                }
                (true, false) => self.undo(trial, now, Why::Withdrawn, rights, moves),
            }
        }
        self.rests.retain(|pair, _| pair.units.iter().all(|unit| seen.negotiates(*unit)));
        self.accounts.retain(|unit, _| seen.negotiates(*unit));
    }

    /// Measures kept exchanges, and undoes those by which a side loses.
    fn watch(
        &mut self,
        now: Time,
        elapsed: Time,
        activity: &BTreeMap<UnitId, Activity>,
        same: bool,
        rights: &mut Rights,
        moves: &mut Vec<Negotiation>,
    ) {
        for mut trial in core::mem::take(&mut self.kept) {
            if !same {
                // Not at once: otherwise a unit that comes and goes would end all exchanges.
                trial.check_at =
                    trial.check_at.min(now.max(trial.check_at.saturating_sub(trial.check_ns - CHECK_NS / 4)));
            }
            let progress = progress(&trial, activity);
            trial.passed(elapsed, progress, self.cpus);
            add(&mut trial.with, progress);
            let lost = (0..2).find(|side| {
                trial.far_below(*side, progress[*side])
                    || trial.with[*side].n() >= MEASURE
                        && trial.without[*side].sign(&trial.with[*side]) == Sign::Less
            });
            if let Some(side) = lost {
                let why = Why::Lost { unit: trial.pair.units[side] };
                self.undo(trial, now, why, rights, moves);
                continue;
            }
            if trial.with[0].n() >= MEASURE {
                self.account(&mut trial);
                moves.push(self.entry(&trial, Move::Watched));
                trial.with = [Sample::default(); 2];
            }
            self.kept.push(trial);
        }
    }

    /// Continues the trial in progress after a window.
    #[expect(clippy::too_many_arguments, reason = "one window's measurements, and where results go")]
    fn go_on(
        &mut self,
        mut trial: Trial,
        now: Time,
        elapsed: Time,
        activity: &BTreeMap<UnitId, Activity>,
        same: bool,
        rights: &mut Rights,
        moves: &mut Vec<Negotiation>,
    ) {
        let progress = progress(&trial, activity);
        if trial.deal.is_some() {
            trial.passed(elapsed, progress, self.cpus);
        }
        if !same {
            return self.undo(trial, now, Why::Changed, rights, moves);
        }
        if trial.settle > 0 {
            trial.settle -= 1;
            self.trial = Some(trial);
            return;
        }
        let Some(_) = trial.deal else {
            add(&mut trial.without, progress);
            if trial.without[0].n() < MEASURE {
                self.trial = Some(trial);
                return;
            }
            let level = trial.level;
            return self.strike(trial, level, now, rights, moves);
        };
        add(&mut trial.with, progress);
        if let Some(side) = (0..2).find(|side| trial.far_below(*side, progress[*side])) {
            let unit = trial.pair.units[side];
            return self.smaller(trial, now, Why::Lost { unit }, rights, moves);
        }
        if trial.with[0].n() < MEASURE {
            self.trial = Some(trial);
            return;
        }
        self.judge(trial, now, rights, moves);
    }

    /// Decides whether a level is good.
    fn judge(&mut self, mut trial: Trial, now: Time, rights: &mut Rights, moves: &mut Vec<Negotiation>) {
        let signs = |before: &[Sample; 2]| [0, 1].map(|side| before[side].sign(&trial.with[side]));
        let from_none = signs(&trial.without);
        let from_good = trial.good.map(|good| signs(&good.with));
        let lost = |signs: [Sign; 2]| (0..2).find(|side| signs[*side] == Sign::Less);
        if let Some(side) = lost(from_none).or(from_good.and_then(lost)) {
            let unit = trial.pair.units[side];
            return self.smaller(trial, now, Why::Lost { unit }, rights, moves);
        }
        let both = from_none == [Sign::More; 2];
        if both && from_good.is_none_or(|signs| signs.contains(&Sign::More)) {
            self.account(&mut trial);
            // The measured part of the doubt is settled; what the trial might have cost still counts.
            for (unit, (_, ns)) in trial.pair.units.into_iter().zip(core::mem::take(&mut trial.unsure)) {
                self.accounts.entry(unit).or_default().risked_ns += ns;
            }
            trial.doubt = Default::default();
            trial.good = Some(Good { level: trial.level, with: trial.with });
            moves.push(self.entry(&trial, Move::Good));
            return match trial.next() {
                Some(next) => self.strike(trial, next, now, rights, moves),
                None => self.keep(trial, now, moves),
            };
        }
        if trial.with[0].n() < MEASURE_MAX {
            self.trial = Some(trial);
            return;
        }
        if trial.good.is_none() && !trial.again && trial.level < BLIND_MAX {
            self.account(&mut trial);
            self.risk(&mut trial);
            moves.push(self.entry(&trial, Move::Left { why: Why::NoGain }));
            let next = trial.level * 2;
            return self.strike(trial, next, now, rights, moves);
        }
        self.smaller(trial, now, Why::NoGain, rights, moves);
    }

    /// Retreats from a level that was not good: to the last good one, or to half of what was kept. Otherwise
    /// ends the trial.
    fn smaller(
        &mut self,
        mut trial: Trial,
        now: Time,
        why: Why,
        rights: &mut Rights,
        moves: &mut Vec<Negotiation>,
    ) {
        if let Some(good) = trial.good {
            self.account(&mut trial);
            self.risk(&mut trial);
            moves.push(self.entry(&trial, Move::Left { why }));
            trial.ceiling = Some(trial.level);
            let next = trial.next().unwrap_or(good.level);
            return self.strike(trial, next, now, rights, moves);
        }
        if trial.again && trial.level / 2 >= FIRST {
            self.account(&mut trial);
            self.risk(&mut trial);
            moves.push(self.entry(&trial, Move::Left { why }));
            let next = trial.level / 2;
            return self.strike(trial, next, now, rights, moves);
        }
        self.undo(trial, now, why, rights, moves);
    }

    /// Puts another level into force.
    fn strike(
        &mut self,
        mut trial: Trial,
        level: u64,
        now: Time,
        rights: &mut Rights,
        moves: &mut Vec<Negotiation>,
    ) {
        if let Some(deal) = trial.deal.take() {
            rights.end(deal);
        }
        trial.block_ns = 0;
        let pair = trial.pair;
        let has = |unit: UnitId, resource: Resource| {
            let (lent, _) = rights.lent_and_borrowed(unit, resource);
            rights.tickets(unit, resource).saturating_sub(lent)
        };
        let smaller = |resource: Resource| has(pair.units[0], resource).min(has(pair.units[1], resource));
        // A level is in thousandths. What one side gets, the other gives.
        let given = [pair.gets[1], pair.gets[0]]
            .map(|resource| (resource, times(level * 1_000, smaller(resource)).max(1)));
        trial.offers = given.map(|(resource, tickets)| Offer::tickets(resource, tickets));
        trial.fractions = [0, 1].map(|side| {
            let (resource, tickets) = given[side];
            millionths(tickets, has(pair.units[side], resource))
        });
        (trial.level, trial.settle) = (level, SETTLE);
        match rights.conclude(now, bids(pair, trial.offers)) {
            Ok(deal) => trial.deal = Some(deal),
            Err(refused) => return self.fail(&trial, now, Why::Refused { refused }, moves),
        }
        if let Some(good) = trial.good.filter(|good| good.level == level) {
            trial.with = good.with;
            return self.keep(trial, now, moves);
        }
        trial.with = [Sample::default(); 2];
        moves.push(self.entry(&trial, Move::Tried));
        self.trial = Some(trial);
    }

    fn keep(&mut self, mut trial: Trial, now: Time, moves: &mut Vec<Negotiation>) {
        moves.push(self.entry(&trial, Move::Kept));
        trial.check_ns = if trial.again { (trial.check_ns * 2).min(CHECK_MAX_NS) } else { CHECK_NS };
        trial.check_at = now.saturating_add(trial.check_ns);
        trial.with = [Sample::default(); 2];
        self.rests.remove(&trial.pair);
        self.kept.push(trial);
    }

    fn undo(
        &mut self,
        mut trial: Trial,
        now: Time,
        why: Why,
        rights: &mut Rights,
        moves: &mut Vec<Negotiation>,
    ) {
        self.account(&mut trial);
        self.risk(&mut trial);
        if let Some(deal) = trial.deal {
            rights.end(deal);
        }
        self.fail(&trial, now, why, moves);
    }

    /// Ends a failed trial and has the pair back off.
    fn fail(&mut self, trial: &Trial, now: Time, why: Why, moves: &mut Vec<Negotiation>) {
        let rest = self.rests.entry(trial.pair).or_default();
        if !matches!(why, Why::Changed) {
            rest.failures += 1;
        }
        let longer = rest.failures.saturating_sub(1).min(10);
        rest.until = now.saturating_add((REST_NS << longer).min(REST_MAX_NS));
        self.history.clear();
        moves.push(self.entry(trial, Move::Undone { why }));
    }

    /// Charges what may have been lost since the exchange began or was last found good.
    fn risk(&mut self, trial: &mut Trial) {
        let (unsure, doubt) = (core::mem::take(&mut trial.unsure), core::mem::take(&mut trial.doubt));
        let units = trial.pair.units;
        for (unit, (time, ns)) in units.into_iter().zip(unsure).chain(units.into_iter().zip(doubt)) {
            let account = self.accounts.entry(unit).or_default();
            account.spent_ns += time;
            account.risked_ns += ns;
        }
    }

    /// Books measured gains and losses.
    fn account(&mut self, trial: &mut Trial) {
        let time = core::mem::take(&mut trial.block_ns);
        for side in 0..2 {
            if trial.with[side].n() > 0 {
                let account = self.accounts.entry(trial.pair.units[side]).or_default();
                let (with, without) = (trial.with[side].mean(), trial.without[side].mean());
                account.lost_ns += times(without.saturating_sub(with), time);
                account.gained_ns += times(with.saturating_sub(without), time);
            }
        }
    }

    fn entry(&self, trial: &Trial, done: Move) -> Negotiation {
        let side = |at: usize| {
            let unit = trial.pair.units[at];
            let account = self.accounts.get(&unit).copied().unwrap_or_default();
            Side {
                unit,
                gives: trial.offers[at],
                without: trial.without[at].mean(),
                with: (trial.with[at].n() > 0).then(|| trial.with[at].mean()),
                noise: trial.without[at].noise(&trial.with[at]),
                risked_ns: account.risked_ns,
                lost_ns: account.lost_ns,
                gained_ns: account.gained_ns,
            }
        };
        Negotiation {
            trial: trial.number,
            deal: trial.deal,
            level: trial.level,
            done,
            sides: [side(0), side(1)],
        }
    }

    /// Starts the next trial: of a kept exchange that is due, else of a new pair.
    fn begin(&mut self, now: Time, seen: &Seen, rights: &mut Rights, moves: &mut Vec<Negotiation>) {
        if let Some(at) = self.kept.iter().position(|trial| trial.check_at <= now) {
            let mut trial = self.kept.remove(at);
            moves.push(self.entry(&trial, Move::Suspended));
            if let Some(deal) = trial.deal.take() {
                rights.end(deal);
            }
            self.account(&mut trial);
            // The retrial decides whether it was good until now.
            let doubt = core::mem::take(&mut trial.unsure);
            self.trial = Some(Trial {
                doubt,
                good: None,
                again: true,
                ceiling: None,
                without: [Sample::default(); 2],
                with: [Sample::default(); 2],
                settle: SETTLE,
                check_at: 0,
                ..trial
            });
            return;
        }
        if self.history.len() < MEASURE as usize {
            return;
        }
        let Some(pair) = self.proposal(now, seen) else { return };
        let without = pair.units.map(|unit| {
            let mut sample = Sample::default();
            let windows = self.history.iter().filter_map(|window| window.get(&unit));
            windows.for_each(|activity| sample.add(activity.progress));
            sample
        });
        self.last += 1;
        let trial = Trial {
            number: self.last,
            pair,
            deal: None,
            offers: pair.gets.map(|resource| Offer::tickets(resource, 0)),
            level: 0,
            ceiling: None,
            good: None,
            again: false,
            without,
            with: [Sample::default(); 2],
            settle: 0,
            fractions: [0; 2],
            unsure: Default::default(),
            doubt: Default::default(),
            block_ns: 0,
            check_at: 0,
            check_ns: 0,
        };
        self.strike(trial, FIRST, now, rights, moves);
    }

    /// The pair whose wants differ most, if any.
    fn proposal(&self, now: Time, seen: &Seen) -> Option<Pair> {
        let mut levels: BTreeMap<Option<UnitId>, Vec<(UnitId, [u64; TRADED.len()])>> = BTreeMap::new();
        for unit in seen.units.iter().filter(|unit| self.may_try(unit, now)) {
            let windows: Vec<&Activity> =
                self.history.iter().filter_map(|window| window.get(&unit.unit)).collect();
            if windows.len() < MEASURE as usize || windows.iter().all(|activity| activity.progress == 0) {
                continue;
            }
            let mut wants = [0; TRADED.len()];
            for (at, want) in wants.iter_mut().enumerate() {
                *want = windows.iter().map(|activity| activity.wants[at]).sum::<u64>() / windows.len() as u64;
            }
            levels.entry(unit.parent).or_default().push((unit.unit, wants));
        }
        let mut best: Option<(u64, Reverse<Pair>)> = None;
        for units in levels.values() {
            for (x, y) in [(0, 1), (0, 2), (1, 2)] {
                if !(seen.held[x] && seen.held[y]) {
                    continue;
                }
                let ones = most(units, x, y);
                let others = most(units, y, x);
                for (one, by) in &ones {
                    for (other, by_other) in &others {
                        let pair = Pair { units: [*one, *other], gets: [TRADED[x], TRADED[y]] };
                        let rests = self.rests.get(&pair).is_some_and(|rest| rest.until > now);
                        let candidate = Some((by + by_other, Reverse(pair)));
                        if !rests && candidate > best {
                            best = candidate;
                        }
                    }
                }
            }
        }
        best.map(|(_, Reverse(pair))| pair)
    }

    fn may_try(&self, unit: &Facts, now: Time) -> bool {
        let account = self.accounts.get(&unit.unit).copied().unwrap_or_default();
        let time = account.since.map_or(0, |since| now.saturating_sub(since));
        unit.negotiates
            && account.spent_ns <= ALLOWANCE_NS + time / 100
            && self.kept.iter().all(|kept| !kept.pair.units.contains(&unit.unit))
    }
}

impl Trial {
    /// The level to try after a good one: twice as large, or half-way to one that was not good.
    fn next(&self) -> Option<u64> {
        let good = self.good?.level;
        let next = match self.ceiling {
            Some(_) if self.again => return None,
            Some(ceiling) => good + (ceiling - good) / 2,
            None if self.again => good + FIRST,
            None => good * 2,
        };
        Some(next.min(LARGEST)).filter(|next| *next >= good + FIRST)
    }

    /// Accounts for time with the exchange. A unit that holds the fraction p less and makes some progress
    /// would, without the exchange, make at most progress / (1 - p), as long as progress is concave; and at
    /// most `cpus`, in millionths of a CPU.
    fn passed(&mut self, elapsed: Time, progress: [u64; 2], cpus: u64) {
        self.block_ns += elapsed;
        for (side, progress) in progress.into_iter().enumerate() {
            let time = times(self.fractions[side], elapsed);
            let would = millionths(progress, MILLION.saturating_sub(self.fractions[side]).max(1));
            self.unsure[side].0 += time;
            let less = times(would.max(self.without[side].mean()), time);
            self.unsure[side].1 += less.min(times(cpus.saturating_sub(progress), elapsed));
        }
    }

    /// Whether a side's progress in a window is so far below the least that it could have that measuring on
    /// is pointless.
    fn far_below(&self, side: usize, progress: u64) -> bool {
        let (mean, spread) = (self.without[side].mean(), self.without[side].spread());
        let left = times(mean, MILLION - self.fractions[side]);
        progress.saturating_add(3 * spread).saturating_add(mean / 200) < left
    }
}

/// The units that want resource `x` and wait more for it than for `y`, by how much, the largest differences
/// first.
fn most(units: &[(UnitId, [u64; TRADED.len()])], x: usize, y: usize) -> Vec<(UnitId, u64)> {
    let more = |(unit, wants): &(UnitId, [u64; TRADED.len()])| {
        let by = wants[x].checked_sub(wants[y]).filter(|by| *by > 0 && wants[x] >= WANT_MIN)?;
        Some((*unit, by))
    };
    let mut all: Vec<(UnitId, u64)> = units.iter().filter_map(more).collect();
    all.sort_unstable_by_key(|(unit, by)| (Reverse(*by), *unit));
    all.truncate(LOOKED_AT);
    all
}

/// The activity of each negotiating unit between two samples, and all busy units.
fn activities(before: &[Facts], now: &[Facts]) -> (BTreeMap<UnitId, Activity>, Vec<UnitId>) {
    let earlier: BTreeMap<UnitId, &Facts> = before.iter().map(|facts| (facts.unit, facts)).collect();
    let (mut all, mut busy) = (BTreeMap::new(), vec![]);
    for facts in now {
        let Some(before) = earlier.get(&facts.unit) else { continue };
        let elapsed = facts.at.saturating_sub(before.at);
        let progress = millionths(facts.used_ns.saturating_sub(before.used_ns), elapsed);
        let wants = [0, 1, 2].map(|at| {
            millionths(facts.waited_ns[at].saturating_sub(before.waited_ns[at]), elapsed).min(MILLION)
        });
        if progress + wants.iter().sum::<u64>() >= MILLION / 100 {
            busy.push(facts.unit);
        }
        if facts.negotiates && elapsed > 0 {
            all.insert(facts.unit, Activity { progress, wants });
        }
    }
    (all, busy)
}

fn add(samples: &mut [Sample; 2], progress: [u64; 2]) {
    for (sample, progress) in samples.iter_mut().zip(progress) {
        sample.add(progress);
    }
}

fn progress(trial: &Trial, activity: &BTreeMap<UnitId, Activity>) -> [u64; 2] {
    trial.pair.units.map(|unit| activity.get(&unit).map_or(0, |activity| activity.progress))
}

/// `amount / whole` in millionths; 0 if `whole` is 0.
fn millionths(amount: u64, whole: u64) -> u64 {
    let part = (u128::from(amount) * u128::from(MILLION)).checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// `of` times `millionths`.
fn times(millionths: u64, of: u64) -> u64 {
    part_of(of, millionths, MILLION)
}

#[cfg(test)]
mod tests;
