//! Exchanges of tickets: which are in force, which were, and between whom.

use std::collections::{BTreeMap, VecDeque};

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::rights::{Deal, Ending, Leg, Offer, Trade};
use commonhold_policy::{Plan, Time};

use crate::Imbalance;

/// So many exchanges that ended are remembered; the oldest are forgotten.
const ENDED_MAX: usize = 100;

/// An exchange of tickets. Times are in nanoseconds since the ledger was opened.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Exchange {
    /// Its number, by which it is ended.
    pub number: u64,
    /// What each of its units lends.
    pub lent: Vec<Lent>,
    /// When it began.
    pub began_ns: u64,
    /// When it ends by itself, or would have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
    /// When it ended; nothing: it is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ns: Option<u64>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Ending>,
}

/// What a unit lends to another.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Lent {
    /// The path of the unit whose tickets they are; `?` of one that is gone.
    pub from: String,
    /// The path of the unit that has them meanwhile.
    pub to: String,
    /// What it lends.
    pub what: Offer,
    /// The path of the unit whose currency that is, where the other unit is in another one; nothing: the base currency, or the
    /// one that both are in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Exchanges {
    in_force: BTreeMap<u64, Deal>,
    ended: VecDeque<(u64, Deal, Time, Ending)>,
}

impl Exchanges {
    /// Enters what came of offers. An exchange that ends and was not in force, or begins twice, does not come out.
    pub(crate) fn book(&mut self, plan: &Plan) -> Vec<Imbalance> {
        let mut wrong = Vec::new();
        for trade in &plan.decisions.trade {
            match trade {
                Trade::Made { deal, what, .. } => {
                    if self.in_force.insert(*deal, what.clone()).is_some() {
                        wrong.push(Imbalance::Exchange { number: *deal });
                    }
                }
                Trade::Undone { deal, why, what } => {
                    if self.in_force.remove(deal).as_ref() != Some(what) {
                        wrong.push(Imbalance::Exchange { number: *deal });
                    }
                    self.ended.push_back((*deal, what.clone(), plan.at, *why));
                    if self.ended.len() > ENDED_MAX {
                        self.ended.pop_front();
                    }
                }
                Trade::Offered { .. } | Trade::Withdrawn { .. } => {}
            }
        }
        wrong
    }

    /// All that are remembered, in the order of their numbers; times since the ledger was opened.
    pub(crate) fn statement(&self, contract: &Contract, opened: Time) -> Vec<Exchange> {
        let name = |unit: UnitId| {
            let known = contract.units.get(unit.index()).filter(|_| contract.has(unit));
            known.map_or_else(|| "?".to_owned(), |unit| unit.path.clone())
        };
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
        };
        let over =
            self.ended.iter().map(|(number, deal, at, why)| exchange(*number, deal, Some((*at, *why))));
        let mut all: Vec<Exchange> =
            over.chain(self.in_force.iter().map(|(number, deal)| exchange(*number, deal, None))).collect();
        all.sort_by_key(|exchange| exchange.number);
        all
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
    fn an_exchange_is_told_from_its_begin_to_its_end() {
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
        let what = Deal { legs: legs.clone(), since: 1_000, until: None };
        let made = || Trade::Made { deal: 3, offers: vec![1, 2], what: what.clone() };
        let undone = || Trade::Undone { deal: 3, why: Ending::Ended, what: what.clone() };
        let mut exchanges = Exchanges::default();
        assert_eq!(exchanges.book(&plan(1_000, made())), []);
        assert_eq!(exchanges.book(&plan(1_000, made())), [Imbalance::Exchange { number: 3 }]);
        let told = &exchanges.statement(&contract, 400)[0];
        assert_eq!((told.began_ns, told.ended_ns, told.lent.len()), (600, None, 2));
        assert_eq!((&*told.lent[0].from, &*told.lent[0].to, told.lent[0].what), ("a", "b", legs[0].what));
        assert_eq!(exchanges.book(&plan(5_000, undone())), []);
        assert_eq!(exchanges.book(&plan(6_000, undone())), [Imbalance::Exchange { number: 3 }]);
        let told = exchanges.statement(&contract, 400);
        assert_eq!((told.len(), told[0].ended_ns, told[0].why), (2, Some(4_600), Some(Ending::Ended)));
    }

    #[test]
    fn old_ones_are_forgotten() {
        let mut exchanges = Exchanges::default();
        for deal in 0..150 {
            let what = Deal { legs: Vec::new(), since: 0, until: None };
            let _ = exchanges.book(&plan(0, Trade::Made { deal, offers: Vec::new(), what: what.clone() }));
            let _ = exchanges.book(&plan(0, Trade::Undone { deal, why: Ending::Over, what }));
        }
        let told = exchanges.statement(&Contract::default(), 0);
        assert_eq!((told.len(), told[0].number), (100, 50));
    }
}
