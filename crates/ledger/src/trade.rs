//! The accounts of exchanges of tickets: exchanges in force and the last that ended, with the negotiator's
//! findings, and each unit's costs and gains from negotiated exchanges.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use commonhold_contract::{Contract, Scheme, UnitId};
use commonhold_policy::negotiate::{self, Move, Negotiation, Why};
use commonhold_policy::rights::{Deal, Ending, Leg, Offer, Trade};
use commonhold_policy::{Plan, Time};

use crate::Imbalance;

/// The number of ended exchanges kept; the oldest are dropped first.
const ENDED_MAX: usize = 100;

/// An exchange of tickets. Times are in nanoseconds since the ledger was opened.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Exchange {
    /// The number of the exchange.
    pub number: u64,
    /// The amounts that the units lend each other.
    pub lent: Vec<Lent>,
    /// When it began.
    pub began_ns: u64,
    /// When it expires, or would have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
    /// When it ended; `None` while in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ns: Option<u64>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Ending>,
    /// The negotiator's findings, if it made the exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
}

/// The negotiator's findings on an exchange.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Trial {
    /// The trial's number; one trial makes an exchange for each level.
    pub number: u64,
    /// The amount exchanged, in thousandths of the smaller holdings.
    pub level: u64,
    /// The last move.
    pub done: Done,
    /// Why it was undone, or less is exchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Cause>,
    /// The path of the unit that lost progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// Both sides.
    pub sides: Vec<Side>,
}

/// A move of the negotiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Done {
    /// It is on trial.
    Tried,
    /// It was good for both; a larger amount was tried.
    Good,
    /// Another amount was tried instead.
    Left,
    /// It is kept.
    Kept,
    /// It was suspended to measure a new baseline.
    Suspended,
    /// It was undone.
    Undone,
}

/// Why an exchange was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A unit lost progress.
    Lost,
    /// There was no significant gain for both.
    NoGain,
    /// Units came or went during the measurement.
    Changed,
    /// The exchange of tickets was refused.
    Refused,
    /// It was ended from outside the negotiator.
    Ended,
    /// A unit no longer negotiates.
    Withdrawn,
}

/// One side of an exchange on trial. Progress is in millionths of a CPU.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Side {
    /// The unit's path.
    pub unit: String,
    /// The unit's progress without the exchange.
    pub without: u64,
    /// The unit's latest measured progress with the exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<u64>,
    /// The smallest significant difference between `with` and `without`.
    pub noise: u64,
}

/// Cumulative costs and gains of a unit that negotiates, in ns of its CPU time. All 0 before its first trial.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Negotiated {
    /// The unit's path.
    pub unit: String,
    /// An upper bound of the unit's cost of trials.
    pub risked_ns: u64,
    /// The unit's measured loss in trials.
    pub lost_ns: u64,
    /// The unit's measured gain from exchanges.
    pub gained_ns: u64,
    /// The number of the unit's trials, including one in progress.
    #[serde(default)]
    pub trials: u64,
}

/// The amount that a unit lends to another in an exchange.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Lent {
    /// The lender's path; `?` if it left the contract.
    pub from: String,
    /// The borrower's path.
    pub to: String,
    /// The amount.
    pub what: Offer,
    /// The path of the unit whose currency the amount is in, if the borrower is in another currency; `None`:
    /// the base currency, or both units are in the same currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

/// The accounts of exchanges.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exchanges {
    in_force: BTreeMap<u64, Deal>,
    /// Ended exchanges, the latest last, each with its number, and when and why it ended.
    ended: VecDeque<(u64, Deal, Time, Ending)>,
    /// The negotiator's last entry on each exchange kept here.
    tried: BTreeMap<u64, Negotiation>,
    /// The latest figures of each unit.
    tallies: BTreeMap<UnitId, Tally>,
}

/// A unit's trials.
#[derive(Debug, Clone)]
struct Tally {
    /// The unit's side of its last trial.
    side: negotiate::Side,
    /// The number of its last trial.
    trial: u64,
    /// How many trials the unit has had.
    trials: u64,
}

impl Exchanges {
    /// Enters the plan's events of the market. An exchange that begins twice, or ends without having been in
    /// force, is an imbalance.
    pub(crate) fn book(&mut self, plan: &Plan) -> Vec<Imbalance> {
        let mut imbalances = Vec::new();
        for trade in &plan.decisions.trade {
            match trade {
                Trade::Made { deal, what, .. } => {
                    if self.in_force.insert(*deal, what.clone()).is_some() {
                        imbalances.push(Imbalance::Exchange { number: *deal });
                    }
                }
                Trade::Undone { deal, why, what } => {
                    if self.in_force.remove(deal).as_ref() != Some(what) {
                        imbalances.push(Imbalance::Exchange { number: *deal });
                    }
                    self.ended.push_back((*deal, what.clone(), plan.at, *why));
                    if self.ended.len() > ENDED_MAX {
                        self.ended.pop_front();
                    }
                }
                Trade::Offered { .. } | Trade::Withdrawn { .. } => {}
            }
        }
        for entry in &plan.decisions.negotiated {
            for side in &entry.sides {
                self.tally(entry.trial, side);
            }
            let Some(deal) = entry.deal else { continue };
            let mut entry = *entry;
            if entry.done == Move::Watched {
                entry.done = Move::Kept;
            }
            self.tried.insert(deal, entry);
        }
        // Now and then, drop the entries of exchanges that are no longer kept.
        if self.tried.len() > 2 * ENDED_MAX + self.in_force.len() {
            let ended: BTreeSet<u64> = self.ended.iter().map(|(number, ..)| *number).collect();
            self.tried.retain(|deal, _| self.in_force.contains_key(deal) || ended.contains(deal));
        }
        imbalances
    }

    /// Enters a unit's figures from a trial. A unit takes part in one trial at a time, so a new number means
    /// a new trial.
    fn tally(&mut self, trial: u64, side: &negotiate::Side) {
        let tally = self.tallies.entry(side.unit).or_insert(Tally { side: *side, trial, trials: 1 });
        tally.side = *side;
        if tally.trial != trial {
            tally.trial = trial;
            tally.trials += 1;
        }
    }

    /// Drops units that left the contract.
    pub(crate) fn adopt(&mut self, contract: &Contract) {
        self.tallies.retain(|unit, _| contract.has(*unit));
    }

    /// Results of negotiation by unit, in the order of unit numbers. A unit that negotiates has a row from
    /// the start, so that its owner can tell that the negotiator is on.
    pub(crate) fn negotiated(&self, contract: &Contract) -> Vec<Negotiated> {
        // Under `smp` nothing is controlled, so no unit negotiates.
        let is_on = contract.machine.scheme != Scheme::Smp;
        let negotiates = |unit: &UnitId| is_on && contract.unit(*unit).negotiate;
        let units: BTreeSet<UnitId> =
            self.tallies.keys().copied().chain(contract.held().filter(negotiates)).collect();
        let row = |unit: UnitId| {
            let untried = Negotiated { unit: name(contract, unit), ..Negotiated::default() };
            let Some(Tally { side, trials, .. }) = self.tallies.get(&unit) else { return untried };
            Negotiated {
                risked_ns: side.risked_ns,
                lost_ns: side.lost_ns,
                gained_ns: side.gained_ns,
                trials: *trials,
                ..untried
            }
        };
        units.into_iter().map(row).collect()
    }

    /// All exchanges kept, in the order of their numbers; times since the ledger was opened.
    pub(crate) fn statement(&self, contract: &Contract, opened: Time) -> Vec<Exchange> {
        let name = |unit: UnitId| name(contract, unit);
        let lent = |leg: &Leg| Lent {
            from: name(leg.from),
            to: name(leg.to),
            what: leg.what,
            of: leg.of.filter(|_| leg.of != leg.into).map(name),
        };
        let since = |at: Time| at.saturating_sub(opened);
        let exchange = |number: u64, deal: &Deal, ended: Option<(Time, Ending)>| Exchange {
            number,
            lent: deal.legs.iter().map(lent).collect(),
            began_ns: since(deal.since),
            until_ns: deal.until.map(since),
            ended_ns: ended.map(|(at, _)| since(at)),
            why: ended.map(|(_, why)| why),
            trial: self.tried.get(&number).map(|entry| trial(contract, entry)),
        };
        let ended =
            self.ended.iter().map(|(number, deal, at, why)| exchange(*number, deal, Some((*at, *why))));
        let mut exchanges: Vec<Exchange> =
            ended.chain(self.in_force.iter().map(|(number, deal)| exchange(*number, deal, None))).collect();
        exchanges.sort_by_key(|exchange| exchange.number);
        exchanges
    }
}

/// A unit's path; `?` if it left the contract.
fn name(contract: &Contract, unit: UnitId) -> String {
    let known = contract.units.get(unit.index()).filter(|_| contract.has(unit));
    known.map_or_else(|| "?".to_owned(), |unit| unit.path.clone())
}

/// An entry of the negotiator in the form of a statement, with paths for unit numbers.
fn trial(contract: &Contract, entry: &Negotiation) -> Trial {
    let (done, why) = match entry.done {
        Move::Tried => (Done::Tried, None),
        Move::Good => (Done::Good, None),
        Move::Kept | Move::Watched => (Done::Kept, None),
        Move::Suspended => (Done::Suspended, None),
        Move::Left { why } => (Done::Left, Some(why)),
        Move::Undone { why } => (Done::Undone, Some(why)),
    };
    let cause = |why| match why {
        Why::Lost { .. } => Cause::Lost,
        Why::NoGain => Cause::NoGain,
        Why::Changed => Cause::Changed,
        Why::Refused { .. } => Cause::Refused,
        Why::Ended => Cause::Ended,
        Why::Withdrawn => Cause::Withdrawn,
    };
    let lost = why.and_then(|why| if let Why::Lost { unit } = why { Some(unit) } else { None });
    let side = |side: &negotiate::Side| Side {
        unit: name(contract, side.unit),
        without: side.without,
        with: side.with,
        noise: side.noise,
    };
    Trial {
        number: entry.trial,
        level: entry.level,
        done,
        why: why.map(cause),
        lost: lost.map(|unit| name(contract, unit)),
        sides: entry.sides.iter().map(side).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_contract::Resource;
    use commonhold_policy::plan::Decisions;

    fn plan(at: Time, trade: Trade) -> Plan {
        Plan { at, decisions: Decisions { trade: vec![trade], ..Decisions::default() }, ..Plan::default() }
    }

    #[test]
    fn a_trial_is_listed_with_its_exchange_and_its_units() {
        let mut contract = Contract::default();
        let (a, b) = (contract.add(None, "a"), contract.add(None, "b"));
        let leg =
            |from, to, resource| Leg { from, to, what: Offer::tickets(resource, 10), of: None, into: None };
        let what = Deal {
            legs: vec![leg(a, b, Resource::Disk), leg(b, a, Resource::Cpu)],
            since: 0,
            until: None,
            bound: false,
        };
        let side = |unit, resource, lost_ns| negotiate::Side {
            unit,
            gives: Offer::tickets(resource, 10),
            without: 500,
            with: Some(400),
            noise: 5,
            risked_ns: 70,
            lost_ns,
            gained_ns: 0,
        };
        let entry = |done| Negotiation {
            trial: 1,
            deal: Some(3),
            level: 100,
            done,
            sides: [side(a, Resource::Disk, 60), side(b, Resource::Cpu, 0)],
        };
        let mut exchanges = Exchanges::default();
        let mut made = plan(0, Trade::Made { deal: 3, offers: Vec::new(), what });
        made.decisions.negotiated = vec![entry(Move::Tried)];
        assert_eq!(exchanges.book(&made), []);
        let listed = |exchanges: &Exchanges| exchanges.statement(&contract, 0)[0].trial.clone().unwrap();
        assert_eq!((listed(&exchanges).done, listed(&exchanges).why), (Done::Tried, None));
        let mut lost = Plan::default();
        lost.decisions.negotiated = vec![entry(Move::Undone { why: Why::Lost { unit: a } })];
        assert_eq!(exchanges.book(&lost), []);
        let trial = listed(&exchanges);
        assert_eq!(
            (trial.done, trial.why, trial.lost.as_deref()),
            (Done::Undone, Some(Cause::Lost), Some("a"))
        );
        let came = exchanges.negotiated(&contract);
        let (unit, risked_ns, gained_ns) = ("a".to_owned(), 70, 0);
        assert_eq!(came[0], Negotiated { unit, risked_ns, lost_ns: 60, gained_ns, trials: 1 });
        lost.decisions.negotiated[0].trial = 2;
        assert_eq!(exchanges.book(&lost), []);
        assert_eq!(exchanges.negotiated(&contract)[0].trials, 2);
        exchanges.adopt(&Contract::default());
        assert_eq!(exchanges.negotiated(&contract), []);
    }

    #[test]
    fn a_unit_that_negotiates_has_a_row_before_its_first_trial() {
        let mut contract = Contract::default();
        let (a, _) = (contract.add(None, "a"), contract.add(None, "b"));
        let exchanges = Exchanges::default();
        assert_eq!(exchanges.negotiated(&contract), []);
        contract.units[a.index()].negotiate = true;
        let untried = Negotiated { unit: "a".to_owned(), ..Negotiated::default() };
        assert_eq!(exchanges.negotiated(&contract), [untried]);
        contract.machine.scheme = Scheme::Smp;
        assert_eq!(exchanges.negotiated(&contract), [], "nothing is held, so no unit negotiates");
    }

    #[test]
    fn an_exchange_is_listed_from_begin_to_end() {
        let mut contract = Contract::default();
        let (a, b) = (contract.add(None, "a"), contract.add(None, "b"));
        let leg = |from, to, resource, tickets| Leg {
            from,
            to,
            what: Offer::tickets(resource, tickets),
            of: None,
            into: None,
        };
        let legs = vec![leg(a, b, Resource::Disk, 300), leg(b, a, Resource::Cpu, 200)];
        let what = Deal { legs: legs.clone(), since: 1_000, until: None, bound: false };
        let made = || Trade::Made { deal: 3, offers: vec![1, 2], what: what.clone() };
        let undone = || Trade::Undone { deal: 3, why: Ending::Ended, what: what.clone() };
        let mut exchanges = Exchanges::default();
        assert_eq!(exchanges.book(&plan(1_000, made())), []);
        assert_eq!(exchanges.book(&plan(1_000, made())), [Imbalance::Exchange { number: 3 }]);
        let listed = &exchanges.statement(&contract, 400)[0];
        assert_eq!((listed.began_ns, listed.ended_ns, listed.lent.len()), (600, None, 2));
        assert_eq!(
            (&*listed.lent[0].from, &*listed.lent[0].to, listed.lent[0].what),
            ("a", "b", legs[0].what)
        );
        assert_eq!(exchanges.book(&plan(5_000, undone())), []);
        assert_eq!(exchanges.book(&plan(6_000, undone())), [Imbalance::Exchange { number: 3 }]);
        let listed = exchanges.statement(&contract, 400);
        assert_eq!((listed.len(), listed[0].ended_ns, listed[0].why), (2, Some(4_600), Some(Ending::Ended)));
    }

    #[test]
    fn only_the_latest_ended_exchanges_are_kept() {
        let mut exchanges = Exchanges::default();
        for deal in 0..150 {
            let what = Deal { legs: Vec::new(), since: 0, until: None, bound: false };
            let _ = exchanges.book(&plan(0, Trade::Made { deal, offers: Vec::new(), what: what.clone() }));
            let _ = exchanges.book(&plan(0, Trade::Undone { deal, why: Ending::Over, what }));
        }
        let listed = exchanges.statement(&Contract::default(), 0);
        assert_eq!((listed.len(), listed[0].number), (100, 50));
    }
}
