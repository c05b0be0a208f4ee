//! The negotiator: proposes exchanges on behalf of units, tries and measures them, and keeps or undoes them.
//!
//! Problem: what a ticket is worth to a unit depends on the load of this unit and of all others. So a unit
//! cannot say beforehand how many tickets of one resource it would give for one of another (seed 004, section
//! 5.6). Instead, the negotiator tries an exchange for a while, and measures the progress of both units.
//!
//! Terms:
//! - A *window* is [`WINDOW_NS`] long. All measurements are of whole windows.
//! - A unit's *progress* is the rate at which its tasks, and those of its sub-units, use CPU time, in
//!   millionths of a CPU. A task that uses CPU time waits for nothing; and every backend reports CPU time.
//! - A unit's *want* of a resource is the fraction of a window in which its tasks waited for the resource:
//!   runnable without a CPU, stalled for a disk, or stalled for memory. A disk stall during a refault counts
//!   for the disk and for memory.
//! - A unit's *baseline* is its progress without the exchange, measured in the windows just before the
//!   exchange.
//! - The *level* of an exchange says how much is exchanged, in thousandths. For each of the two resources,
//!   the basis is the smaller of the two units' numbers of tickets.
//! - *Noise* is the larger of 0.5 % of the baseline and three standard errors of the difference. Two
//!   measurements count as different if their difference exceeds the noise.
//!
//! Algorithm: one *trial* at a time.
//! 1. Find two siblings that negotiate and have opposite wants: one waits more for resource X than for Y, the
//!    other more for Y than for X. Choose the pair whose wants differ most. Each unit gives the resource for
//!    which it waits less.
//! 2. The first level is a tenth. Skip [`SETTLE`] windows, then measure [`MEASURE`] to [`MEASURE_MAX`]
//!    windows.
//! 3. If both units' progress grew, the level is good, and twice the level is tried. If a unit lost progress,
//!    the exchange is undone. If neither unit's progress changed significantly, larger levels are tried, up
//!    to [`BLIND_MAX`].
//! 4. A larger level is good if one of the units makes more progress than at the previous level, and the
//!    other no less. If not, the previous level is restored, and the next step is half as large. Once the
//!    steps fall below a tenth, the exchange is *kept*.
//! 5. A kept exchange is watched. If a unit's progress falls below its baseline, the exchange ends. From time
//!    to time, and when other units come or go, the exchange is suspended, a new baseline is measured, and
//!    the exchange is tried again. The interval between two such checks doubles, up to [`CHECK_MAX_NS`].
//! 6. After a failed trial, the pair is not tried again for some time. With each further failure that time
//!    grows exponentially, up to [`REST_MAX_NS`].
//!
//! Risk of a trial: there are two bounds on the progress that a unit can lose. If progress is concave in the
//! unit's holdings, a unit that gives away a fraction of a resource loses at most that fraction of its
//! progress. And a unit's loss, compared with what it could have reached, is at most the number of CPUs of
//! the machine less its present progress. The smaller bound, times the duration, is what a trial *risks* of a
//! unit. A kept exchange risks it from the last time that the exchange was found good. Once a unit's undone
//! trials have risked more than [`ALLOWANCE_NS`] plus 1 % of elapsed time, the negotiator makes no more
//! trials with the unit.
//!
//! Properties (tested): tickets are conserved. A kept exchange benefits both units. No unit falls behind the
//! progress that it would make without exchanges by more than was risked.
//!
//! Limits: a unit takes part in one negotiated exchange at a time. A loss goes unnoticed if it begins after a
//! check and ends before the next one, while the unit stays above its old baseline. Wasted CPU time
//! (spinning, page faults) counts as progress. A unit's progress without the exchange is known only from the
//! last check. The memory bus is not controlled, and so its tickets are not exchanged.
//!
//! Cost: O(n log n) for n units once a window; nothing if no unit negotiates.
//!
//! Source: seed 004, sections 5.5, 5.6 and 7, which call for negotiators without describing one.

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
/// The largest level tried while no smaller level has been found good.
pub const BLIND_MAX: u64 = 400;
/// How long a kept exchange runs before its first retrial.
pub const CHECK_NS: Time = 240_000_000_000;
/// The longest interval between retrials.
pub const CHECK_MAX_NS: Time = 3_600_000_000_000;
/// Back-off of a pair after its first failure.
pub const REST_NS: Time = 60_000_000_000;
/// The longest back-off of a pair.
pub const REST_MAX_NS: Time = 61_440_000_000_000;
/// The CPU time that undone trials may risk of a unit, beyond 1 % of elapsed time.
pub const ALLOWANCE_NS: Time = 20_000_000_000;
/// The least want for which a unit may be given a resource: a fraction of a window, in millionths.
const WANT_MIN: u64 = 50_000;
/// Candidates considered on each side of a pair.
const CANDIDATES_MAX: usize = 8;
/// The resources that are exchanged.
const TRADED: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Disk];

const MILLION: u64 = 1_000_000;

/// One side of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The unit.
    pub unit: UnitId,
    /// The amount that the unit gives to the other side.
    pub gives: Offer,
    /// The unit's progress without the exchange, in millionths of a CPU.
    pub without: u64,
    /// The unit's progress with the exchange, in millionths of a CPU; `None`: not measured.
    pub with: Option<u64>,
    /// The smallest significant difference between `with` and `without`.
    pub noise: u64,
    /// An upper bound of the CPU time that trials have cost the unit so far, in ns.
    pub risked_ns: u64,
    /// The unit's measured loss in trials, in ns of CPU time.
    pub lost_ns: u64,
    /// The unit's measured gain from exchanges, in ns of CPU time.
    pub gained_ns: u64,
}

/// A move of the negotiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Move {
    /// An exchange is tried.
    Tried,
    /// The level is good for both sides; a larger level is tried next.
    Good,
    /// The level is not good; a smaller level is tried next, or a larger one if there was no significant
    /// difference.
    Left {
        /// The reason.
        why: Why,
    },
    /// The exchange is kept.
    Kept,
    /// A kept exchange was measured again, and continues.
    Watched,
    /// A kept exchange is suspended to measure a new baseline.
    Suspended,
    /// The exchange is undone.
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
    /// A unit, not the negotiator, ended the exchange.
    Ended,
    /// A unit no longer negotiates, or left the contract.
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

/// Two siblings, and the resource that each sibling gets.
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

/// A level that was found good, with both sides' progress at that level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Good {
    level: u64,
    with: [Sample; 2],
}

/// The cost that an exchange may have had for one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Risk {
    /// The duration of the exchange times the fraction that the side gave, for the side's allowance.
    weighted_ns: Time,
    /// An upper bound of the progress lost, in ns of CPU time.
    cpu_ns: u64,
}

/// An exchange on trial, or kept. Arrays of two have an element for each side.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trial {
    number: u64,
    pair: Pair,
    /// The exchange in force; `None` while the baseline is measured.
    deal: Option<u64>,
    /// The amounts that the sides give.
    offers: [Offer; 2],
    level: u64,
    /// The smallest level above `good` that was found not good in this trial.
    ceiling: Option<u64>,
    /// The largest level found good in this trial.
    good: Option<Good>,
    /// Whether this is a retrial of a kept exchange.
    is_retrial: bool,
    /// Progress without the exchange: the baseline.
    without: [Sample; 2],
    /// Progress with the exchange, at the present level.
    with: [Sample; 2],
    /// The number of windows still to be skipped before measuring.
    settle: u32,
    /// The fraction of its holdings that each side gives, in millionths.
    fractions: [u64; 2],
    /// The risk since the exchange began or was last found good.
    unsettled: [Risk; 2],
    /// In a retrial, the risk from the time when the exchange was last found good to its suspension.
    before_retrial: [Risk; 2],
    /// The time covered by `with`.
    measured_ns: Time,
    /// When a kept exchange is to be suspended for a retrial; 0 during a trial.
    check_at: Time,
    /// The interval between retrials.
    check_ns: Time,
}

/// The exponential back-off of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct BackOff {
    failures: u32,
    until: Time,
}

/// Costs and gains of a unit's trials, in ns of its CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Account {
    /// When the unit was first measured.
    since: Option<Time>,
    /// The sum of [`Risk::cpu_ns`] over all trials.
    risked_ns: u64,
    /// The sum of [`Risk::weighted_ns`] over undone trials: the used part of the unit's allowance.
    spent_ns: u64,
    lost_ns: u64,
    gained_ns: u64,
}

/// The circumstances that must stay constant during a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Conditions {
    /// The units that run or wait at all.
    busy: Vec<UnitId>,
    /// Every unit's tickets of each traded resource.
    tickets: Vec<(UnitId, u64)>,
    /// The exchanges in force other than that of the trial in progress.
    deals: Vec<u64>,
}

/// The negotiator's memory between steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Negotiator {
    stalls: seen::LastStalls,
    /// The current window: when it began, and the counters at that time.
    window: Option<(Time, Vec<Facts>)>,
    conditions: Conditions,
    /// Activity of each unit by window, under the present conditions, the newest last; at most [`MEASURE`]
    /// windows.
    history: Vec<BTreeMap<UnitId, Activity>>,
    /// The number of the latest trial.
    last: u64,
    /// The machine's capacity in millionths of a CPU.
    cpus: u64,
    /// The trial in progress.
    trial: Option<Trial>,
    /// The kept exchanges.
    kept: Vec<Trial>,
    back_offs: BTreeMap<Pair, BackOff>,
    accounts: BTreeMap<UnitId, Account>,
}

/// The outcome of a step.
#[derive(Debug, Default)]
pub(crate) struct NegotiationStep {
    /// Moves for the ledger.
    pub(crate) moves: Vec<Negotiation>,
    /// The exchanges made and ended by these moves.
    pub(crate) traded: Vec<Trade>,
    /// When the negotiator needs the next step.
    pub(crate) next: Option<Time>,
}

/// One step of the negotiator. Acts only at the end of a window; costs nothing if no unit negotiates.
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

/// The two offers of an exchange in which each side gives its element of `offers`.
fn bids(pair: Pair, offers: [Offer; 2]) -> [Bid; 2] {
    let bid = |side: usize, partner: usize| Bid {
        by: pair.units[side],
        gives: offers[side],
        wants: offers[partner],
        with: Some(pair.units[partner]),
        for_ns: None,
        at_least: None,
        bound: true,
    };
    [bid(0, 1), bid(1, 0)]
}

impl Negotiator {
    /// Whether there are exchanges of the negotiator.
    fn is_at_work(&self) -> bool {
        self.trial.is_some() || !self.kept.is_empty()
    }

    /// When the current window ends.
    pub(crate) fn next(&self) -> Option<Time> {
        self.window.as_ref().map(|(began, _)| began.saturating_add(WINDOW_NS))
    }

    /// Takes a sample. If the sample ends a window, measures and moves; otherwise does nothing.
    pub(crate) fn observe(&mut self, now: Time, seen: &Seen, rights: &mut Rights) -> Vec<Negotiation> {
        let mut moves = Vec::new();
        let ended_window = match self.window.take() {
            Some((began, before)) if now < began.saturating_add(WINDOW_NS) => {
                self.window = Some((began, before));
                return moves;
            }
            ended_window => ended_window,
        };
        self.window = Some((now, seen.units.clone()));
        self.cpus = seen.cpus;
        self.drop_ended(now, seen, rights, &mut moves);
        let Some((began, before)) = ended_window else { return moves };
        // After a pause, such as suspend to RAM, the window is void.
        if now - began > 3 * WINDOW_NS {
            self.history.clear();
            return moves;
        }
        let (activity, busy) = activities(&before, &seen.units);
        for unit in activity.keys() {
            self.accounts.entry(*unit).or_default().since.get_or_insert(began);
        }
        // Windows under different conditions cannot be compared.
        let conditions = self.conditions(busy, seen, rights);
        let is_steady = conditions == self.conditions;
        self.conditions = conditions;
        if !is_steady {
            self.history.clear();
        }
        self.history.push(activity.clone());
        if self.history.len() > MEASURE as usize {
            self.history.remove(0);
        }
        let elapsed = now - began;
        self.watch_kept(now, elapsed, &activity, is_steady, rights, &mut moves);
        match self.trial.take() {
            Some(trial) => self.continue_trial(trial, now, elapsed, &activity, is_steady, rights, &mut moves),
            None => self.begin_trial(now, seen, rights, &mut moves),
        }
        // The negotiator's own changes are not changes of conditions, but they invalidate earlier
        // measurements.
        if moves.iter().any(|entry| entry.done != Move::Watched) {
            self.conditions.deals = self.other_deals(rights);
            self.history.clear();
        }
        moves
    }

    /// The exchanges in force other than that of the trial in progress.
    fn other_deals(&self, rights: &Rights) -> Vec<u64> {
        let own = self.trial.as_ref().and_then(|trial| trial.deal);
        rights.deals().keys().copied().filter(|deal| Some(*deal) != own).collect()
    }

    fn conditions(&self, busy: Vec<UnitId>, seen: &Seen, rights: &Rights) -> Conditions {
        let tickets = |unit: &Facts| TRADED.map(|resource| (unit.unit, rights.tickets(unit.unit, resource)));
        Conditions {
            busy,
            tickets: seen.units.iter().flat_map(tickets).collect(),
            deals: self.other_deals(rights),
        }
    }

    /// Drops the exchanges that a unit ended, and undoes those of units that no longer negotiate.
    fn drop_ended(&mut self, now: Time, seen: &Seen, rights: &mut Rights, moves: &mut Vec<Negotiation>) {
        let kept = core::mem::take(&mut self.kept);
        let trials: Vec<Trial> = self.trial.take().into_iter().chain(kept).collect();
        for mut trial in trials {
            let is_in_force = trial.deal.is_none_or(|deal| rights.deals().contains_key(&deal));
            let both_negotiate = trial.pair.units.iter().all(|unit| seen.negotiates(*unit));
            let is_kept = trial.check_at > 0;
            match (is_in_force, both_negotiate) {
                (true, true) if is_kept => self.kept.push(trial),
                (true, true) => self.trial = Some(trial),
                (false, _) => {
                    self.charge_risk(&mut trial);
                    self.end_failed(&trial, now, Why::Ended, moves);
                }
                (true, false) => self.undo(trial, now, Why::Withdrawn, rights, moves),
            }
        }
        self.back_offs.retain(|pair, _| pair.units.iter().all(|unit| seen.negotiates(*unit)));
        self.accounts.retain(|unit, _| seen.negotiates(*unit));
    }

    /// Adds a window to the measurements of kept exchanges, and undoes those in which a side loses.
    fn watch_kept(
        &mut self,
        now: Time,
        elapsed: Time,
        activity: &BTreeMap<UnitId, Activity>,
        is_steady: bool,
        rights: &mut Rights,
        moves: &mut Vec<Negotiation>,
    ) {
        for mut trial in core::mem::take(&mut self.kept) {
            if !is_steady {
                // Retry sooner, but not at once: otherwise a unit that comes and goes would end all
                // exchanges.
                trial.check_at =
                    trial.check_at.min(now.max(trial.check_at.saturating_sub(trial.check_ns - CHECK_NS / 4)));
            }
            let progress = progress(&trial, activity);
            trial.add_risk(elapsed, progress, self.cpus);
            add(&mut trial.with, progress);
            let loser = (0..2).find(|side| {
                trial.is_far_below(*side, progress[*side])
                    || trial.with[*side].n() >= MEASURE
                        && trial.without[*side].sign(&trial.with[*side]) == Sign::Less
            });
            if let Some(side) = loser {
                let why = Why::Lost { unit: trial.pair.units[side] };
                self.undo(trial, now, why, rights, moves);
                continue;
            }
            if trial.with[0].n() >= MEASURE {
                self.book_progress(&mut trial);
                moves.push(self.ledger_entry(&trial, Move::Watched));
                trial.with = [Sample::default(); 2];
            }
            self.kept.push(trial);
        }
    }

    /// Adds a window to the trial in progress: skips it, or adds it to the baseline or to the measurement.
    /// Moves once there are enough windows.
    #[expect(clippy::too_many_arguments, reason = "one window's measurements, and where results go")]
    fn continue_trial(
        &mut self,
        mut trial: Trial,
        now: Time,
        elapsed: Time,
        activity: &BTreeMap<UnitId, Activity>,
        is_steady: bool,
        rights: &mut Rights,
        moves: &mut Vec<Negotiation>,
    ) {
        let progress = progress(&trial, activity);
        if trial.deal.is_some() {
            trial.add_risk(elapsed, progress, self.cpus);
        }
        if !is_steady {
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
            return self.set_level(trial, level, now, rights, moves);
        };
        add(&mut trial.with, progress);
        if let Some(side) = (0..2).find(|side| trial.is_far_below(*side, progress[*side])) {
            let unit = trial.pair.units[side];
            return self.retreat(trial, now, Why::Lost { unit }, rights, moves);
        }
        if trial.with[0].n() < MEASURE {
            self.trial = Some(trial);
            return;
        }
        self.judge(trial, now, rights, moves);
    }

    /// Decides after a measurement whether the present level is good, and makes the negotiator's next move.
    fn judge(&mut self, mut trial: Trial, now: Time, rights: &mut Rights, moves: &mut Vec<Negotiation>) {
        // The change of each side's progress, from the baseline and from the last good level.
        let signs = |before: &[Sample; 2]| [0, 1].map(|side| before[side].sign(&trial.with[side]));
        let from_baseline = signs(&trial.without);
        let from_good = trial.good.map(|good| signs(&good.with));
        let loser = |signs: [Sign; 2]| (0..2).find(|side| signs[*side] == Sign::Less);
        if let Some(side) = loser(from_baseline).or(from_good.and_then(loser)) {
            let unit = trial.pair.units[side];
            return self.retreat(trial, now, Why::Lost { unit }, rights, moves);
        }
        let both_gain = from_baseline == [Sign::More; 2];
        if both_gain && from_good.is_none_or(|signs| signs.contains(&Sign::More)) {
            self.book_progress(&mut trial);
            // A good trial uses up none of the unit's allowance, but the CPU time that it risked still
            // counts. If a retrial is good, the exchange counts as good also for the time before the retrial.
            for (unit, risk) in trial.pair.units.into_iter().zip(core::mem::take(&mut trial.unsettled)) {
                self.accounts.entry(unit).or_default().risked_ns += risk.cpu_ns;
            }
            trial.before_retrial = Default::default();
            trial.good = Some(Good { level: trial.level, with: trial.with });
            moves.push(self.ledger_entry(&trial, Move::Good));
            return match trial.next() {
                Some(next) => self.set_level(trial, next, now, rights, moves),
                None => self.keep(trial, now, moves),
            };
        }
        // No significant difference yet: measure longer, then try a larger level.
        if trial.with[0].n() < MEASURE_MAX {
            self.trial = Some(trial);
            return;
        }
        if trial.good.is_none() && !trial.is_retrial && trial.level < BLIND_MAX {
            self.book_progress(&mut trial);
            self.charge_risk(&mut trial);
            moves.push(self.ledger_entry(&trial, Move::Left { why: Why::NoGain }));
            let next = trial.level * 2;
            return self.set_level(trial, next, now, rights, moves);
        }
        self.retreat(trial, now, Why::NoGain, rights, moves);
    }

    /// Leaves a level that was not good. The next level is a smaller step above the last good level, or that
    /// level itself; in a retrial, it is half the present level. If there is no such level, undoes the
    /// exchange.
    fn retreat(
        &mut self,
        mut trial: Trial,
        now: Time,
        why: Why,
        rights: &mut Rights,
        moves: &mut Vec<Negotiation>,
    ) {
        if let Some(good) = trial.good {
            self.book_progress(&mut trial);
            self.charge_risk(&mut trial);
            moves.push(self.ledger_entry(&trial, Move::Left { why }));
            trial.ceiling = Some(trial.level);
            let next = trial.next().unwrap_or(good.level);
            return self.set_level(trial, next, now, rights, moves);
        }
        if trial.is_retrial && trial.level / 2 >= FIRST {
            self.book_progress(&mut trial);
            self.charge_risk(&mut trial);
            moves.push(self.ledger_entry(&trial, Move::Left { why }));
            let next = trial.level / 2;
            return self.set_level(trial, next, now, rights, moves);
        }
        self.undo(trial, now, why, rights, moves);
    }

    /// Puts a level into force. If it is the last good level, keeps the exchange; otherwise measures it.
    fn set_level(
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
        trial.measured_ns = 0;
        let pair = trial.pair;
        let holding = |unit: UnitId, resource: Resource| {
            let (lent, _) = rights.lent_and_borrowed(unit, resource);
            rights.tickets(unit, resource).saturating_sub(lent)
        };
        let smaller_holding =
            |resource: Resource| holding(pair.units[0], resource).min(holding(pair.units[1], resource));
        // A level is in thousandths. Each side gives the resource that the other side gets.
        let gives = [pair.gets[1], pair.gets[0]]
            .map(|resource| (resource, fraction_of(level * 1_000, smaller_holding(resource)).max(1)));
        trial.offers = gives.map(|(resource, tickets)| Offer::tickets(resource, tickets));
        trial.fractions = [0, 1].map(|side| {
            let (resource, tickets) = gives[side];
            millionths(tickets, holding(pair.units[side], resource))
        });
        (trial.level, trial.settle) = (level, SETTLE);
        match rights.conclude(now, bids(pair, trial.offers)) {
            Ok(deal) => trial.deal = Some(deal),
            Err(refused) => return self.end_failed(&trial, now, Why::Refused { refused }, moves),
        }
        if let Some(good) = trial.good.filter(|good| good.level == level) {
            trial.with = good.with;
            return self.keep(trial, now, moves);
        }
        trial.with = [Sample::default(); 2];
        moves.push(self.ledger_entry(&trial, Move::Tried));
        self.trial = Some(trial);
    }

    /// Keeps the exchange in force, and sets the time of its next retrial.
    fn keep(&mut self, mut trial: Trial, now: Time, moves: &mut Vec<Negotiation>) {
        moves.push(self.ledger_entry(&trial, Move::Kept));
        trial.check_ns = if trial.is_retrial { (trial.check_ns * 2).min(CHECK_MAX_NS) } else { CHECK_NS };
        trial.check_at = now.saturating_add(trial.check_ns);
        trial.with = [Sample::default(); 2];
        self.back_offs.remove(&trial.pair);
        self.kept.push(trial);
    }

    /// Ends an exchange, on trial or kept, and books its results and its risk.
    fn undo(
        &mut self,
        mut trial: Trial,
        now: Time,
        why: Why,
        rights: &mut Rights,
        moves: &mut Vec<Negotiation>,
    ) {
        self.book_progress(&mut trial);
        self.charge_risk(&mut trial);
        if let Some(deal) = trial.deal {
            rights.end(deal);
        }
        self.end_failed(&trial, now, why, moves);
    }

    /// Ends a failed trial and has the pair back off.
    fn end_failed(&mut self, trial: &Trial, now: Time, why: Why, moves: &mut Vec<Negotiation>) {
        let back_off = self.back_offs.entry(trial.pair).or_default();
        // Changed conditions say nothing about the pair.
        if !matches!(why, Why::Changed) {
            back_off.failures += 1;
        }
        let doublings = back_off.failures.saturating_sub(1).min(10);
        back_off.until = now.saturating_add((REST_NS << doublings).min(REST_MAX_NS));
        self.history.clear();
        moves.push(self.ledger_entry(trial, Move::Undone { why }));
    }

    /// Charges the units' accounts with the risk since the exchange began or was last found good.
    fn charge_risk(&mut self, trial: &mut Trial) {
        let unsettled = core::mem::take(&mut trial.unsettled);
        let before_retrial = core::mem::take(&mut trial.before_retrial);
        let units = trial.pair.units;
        for (unit, risk) in units.into_iter().zip(unsettled).chain(units.into_iter().zip(before_retrial)) {
            let account = self.accounts.entry(unit).or_default();
            account.spent_ns += risk.weighted_ns;
            account.risked_ns += risk.cpu_ns;
        }
    }

    /// Books the gains and losses measured at the present level on the units' accounts.
    fn book_progress(&mut self, trial: &mut Trial) {
        let measured_ns = core::mem::take(&mut trial.measured_ns);
        for side in 0..2 {
            if trial.with[side].n() > 0 {
                let account = self.accounts.entry(trial.pair.units[side]).or_default();
                let (with, without) = (trial.with[side].mean(), trial.without[side].mean());
                account.lost_ns += fraction_of(without.saturating_sub(with), measured_ns);
                account.gained_ns += fraction_of(with.saturating_sub(without), measured_ns);
            }
        }
    }

    fn ledger_entry(&self, trial: &Trial, done: Move) -> Negotiation {
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

    /// Begins the next trial: the retrial of a kept exchange that is due, else a trial of a new pair, if any.
    fn begin_trial(&mut self, now: Time, seen: &Seen, rights: &mut Rights, moves: &mut Vec<Negotiation>) {
        if let Some(at) = self.kept.iter().position(|trial| trial.check_at <= now) {
            let mut trial = self.kept.remove(at);
            moves.push(self.ledger_entry(&trial, Move::Suspended));
            if let Some(deal) = trial.deal.take() {
                rights.end(deal);
            }
            self.book_progress(&mut trial);
            // The retrial decides whether the exchange was good until now.
            let before_retrial = core::mem::take(&mut trial.unsettled);
            self.trial = Some(Trial {
                before_retrial,
                good: None,
                is_retrial: true,
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
        let Some(pair) = self.best_pair(now, seen) else { return };
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
            is_retrial: false,
            without,
            with: [Sample::default(); 2],
            settle: 0,
            fractions: [0; 2],
            unsettled: Default::default(),
            before_retrial: Default::default(),
            measured_ns: 0,
            check_at: 0,
            check_ns: 0,
        };
        self.set_level(trial, FIRST, now, rights, moves);
    }

    /// The pair of siblings whose opposite wants differ most; `None` if no pair may be tried now.
    fn best_pair(&self, now: Time, seen: &Seen) -> Option<Pair> {
        // The mean wants of the units that may take part, by encloser.
        let mut wants_by_encloser: BTreeMap<Option<UnitId>, Vec<(UnitId, [u64; TRADED.len()])>> =
            BTreeMap::new();
        for unit in seen.units.iter().filter(|unit| self.can_try(unit, now)) {
            let windows: Vec<&Activity> =
                self.history.iter().filter_map(|window| window.get(&unit.unit)).collect();
            if windows.len() < MEASURE as usize || windows.iter().all(|activity| activity.progress == 0) {
                continue;
            }
            let mut wants = [0; TRADED.len()];
            for (at, want) in wants.iter_mut().enumerate() {
                *want = windows.iter().map(|activity| activity.wants[at]).sum::<u64>() / windows.len() as u64;
            }
            wants_by_encloser.entry(unit.parent).or_default().push((unit.unit, wants));
        }
        // Ties go to the smaller pair, hence `Reverse`.
        let mut best: Option<(u64, Reverse<Pair>)> = None;
        for units in wants_by_encloser.values() {
            for (x, y) in [(0, 1), (0, 2), (1, 2)] {
                if !(seen.held[x] && seen.held[y]) {
                    continue;
                }
                let wanting_x = by_excess_want(units, x, y);
                let wanting_y = by_excess_want(units, y, x);
                for (one, excess) in &wanting_x {
                    for (other, other_excess) in &wanting_y {
                        let pair = Pair { units: [*one, *other], gets: [TRADED[x], TRADED[y]] };
                        let backs_off =
                            self.back_offs.get(&pair).is_some_and(|back_off| back_off.until > now);
                        let candidate = Some((excess + other_excess, Reverse(pair)));
                        if !backs_off && candidate > best {
                            best = candidate;
                        }
                    }
                }
            }
        }
        best.map(|(_, Reverse(pair))| pair)
    }

    /// Whether a unit may take part in a new trial: it negotiates, has allowance left, and has no kept
    /// exchange.
    fn can_try(&self, unit: &Facts, now: Time) -> bool {
        let account = self.accounts.get(&unit.unit).copied().unwrap_or_default();
        let elapsed = account.since.map_or(0, |since| now.saturating_sub(since));
        unit.negotiates
            && account.spent_ns <= ALLOWANCE_NS + elapsed / 100
            && self.kept.iter().all(|kept| !kept.pair.units.contains(&unit.unit))
    }
}

impl Trial {
    /// The level to try after a good level: twice the level or, if a larger level was not good, half-way to
    /// that one. In a retrial, one step more. `None` if the step would be too small, or the level too large.
    fn next(&self) -> Option<u64> {
        let good = self.good?.level;
        let next = match self.ceiling {
            Some(_) if self.is_retrial => return None,
            Some(ceiling) => good + (ceiling - good) / 2,
            None if self.is_retrial => good + FIRST,
            None => good * 2,
        };
        Some(next.min(LARGEST)).filter(|next| *next >= good + FIRST)
    }

    /// Adds the risk of a period with the exchange. If a unit gives the fraction p of a resource and progress
    /// is concave, then without the exchange the unit would make at most progress / (1 - p); and at most
    /// `cpus`, in millionths of a CPU.
    fn add_risk(&mut self, elapsed: Time, progress: [u64; 2], cpus: u64) {
        self.measured_ns += elapsed;
        for (side, progress) in progress.into_iter().enumerate() {
            let weighted_ns = fraction_of(self.fractions[side], elapsed);
            let progress_without = millionths(progress, MILLION.saturating_sub(self.fractions[side]).max(1));
            let loss_max = fraction_of(progress_without.max(self.without[side].mean()), weighted_ns);
            let risk = &mut self.unsettled[side];
            risk.weighted_ns += weighted_ns;
            risk.cpu_ns += loss_max.min(fraction_of(cpus.saturating_sub(progress), elapsed));
        }
    }

    /// Whether a side's progress in one window is so far below its baseline that further measuring is
    /// pointless. There is a least progress that the exchange could leave of the baseline; the progress
    /// measured is below this by more than noise.
    fn is_far_below(&self, side: usize, progress: u64) -> bool {
        let (mean, spread) = (self.without[side].mean(), self.without[side].spread());
        let least_expected = fraction_of(mean, MILLION - self.fractions[side]);
        progress.saturating_add(3 * spread).saturating_add(mean / 200) < least_expected
    }
}

/// The units that want resource `x` and wait more for it than for `y`, each with the difference, the largest
/// difference first; at most [`CANDIDATES_MAX`]. `x` and `y` are indices of [`TRADED`].
fn by_excess_want(units: &[(UnitId, [u64; TRADED.len()])], x: usize, y: usize) -> Vec<(UnitId, u64)> {
    let with_excess = |(unit, wants): &(UnitId, [u64; TRADED.len()])| {
        let excess = wants[x].checked_sub(wants[y]).filter(|by| *by > 0 && wants[x] >= WANT_MIN)?;
        Some((*unit, excess))
    };
    let mut candidates: Vec<(UnitId, u64)> = units.iter().filter_map(with_excess).collect();
    candidates.sort_unstable_by_key(|(unit, excess)| (Reverse(*excess), *unit));
    candidates.truncate(CANDIDATES_MAX);
    candidates
}

/// The activity of each negotiating unit between two samples, and all busy units: units that ran or waited
/// for at least 1 % of the time.
fn activities(before: &[Facts], now: &[Facts]) -> (BTreeMap<UnitId, Activity>, Vec<UnitId>) {
    let earlier: BTreeMap<UnitId, &Facts> = before.iter().map(|facts| (facts.unit, facts)).collect();
    let (mut activity_of, mut busy) = (BTreeMap::new(), vec![]);
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
            activity_of.insert(facts.unit, Activity { progress, wants });
        }
    }
    (activity_of, busy)
}

/// Adds a window's progress to the samples of both sides.
fn add(samples: &mut [Sample; 2], progress: [u64; 2]) {
    for (sample, progress) in samples.iter_mut().zip(progress) {
        sample.add(progress);
    }
}

/// The progress of both sides in a window; 0 for a unit that was not measured.
fn progress(trial: &Trial, activity: &BTreeMap<UnitId, Activity>) -> [u64; 2] {
    trial.pair.units.map(|unit| activity.get(&unit).map_or(0, |activity| activity.progress))
}

/// `amount / whole` in millionths; 0 if `whole` is 0.
fn millionths(amount: u64, whole: u64) -> u64 {
    let part = (u128::from(amount) * u128::from(MILLION)).checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// The fraction `millionths` of `amount`, rounded down.
fn fraction_of(millionths: u64, amount: u64) -> u64 {
    part_of(amount, millionths, MILLION)
}

#[cfg(test)]
mod tests;
