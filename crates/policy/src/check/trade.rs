//! The plan checker's books of exchanges: which exchanges are in force, and whether each of them is well
//! formed.
//!
//! Checked: an exchange moves tickets around a ring of units, each of which lends one resource and borrows
//! another. An exchange that is made was not in force before. An exchange that is undone was in force in
//! exactly this form.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::{Contract, UnitId};

use crate::plan::Plan;
use crate::rights::{Deal, Trade};

/// Exchanges in force, by number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TradeBooks(BTreeMap<u64, Deal>);

impl TradeBooks {
    /// Replays the decisions about exchanges, and appends what is wrong with them to `errors`.
    pub(super) fn replay(&mut self, contract: &Contract, plan: &Plan, errors: &mut Vec<String>) {
        for trade in &plan.decisions.trade {
            match trade {
                Trade::Made { deal, what, .. } => {
                    errors.extend(flaw(contract, what).map(|flaw| format!("exchange {deal} {flaw}")));
                    if self.0.insert(*deal, what.clone()).is_some() {
                        errors.push(format!("exchange {deal} is made while it is in force"));
                    }
                }
                Trade::Undone { deal, what, .. } => {
                    if self.0.remove(deal).as_ref() != Some(what) {
                        errors.push(format!("exchange {deal} is undone, and was not in force in this form"));
                    }
                }
                Trade::Offered { .. } | Trade::Withdrawn { .. } => {}
            }
        }
    }
}

/// The first flaw of an exchange, as the end of a sentence; `None` if the exchange is well formed.
fn flaw(contract: &Contract, deal: &Deal) -> Option<&'static str> {
    // The common parts trade nothing.
    let unit = |unit: UnitId| (contract.has(unit) && !unit.is_common()).then(|| contract.unit(unit));
    for leg in &deal.legs {
        let (Some(from), Some(to)) = (unit(leg.from), unit(leg.to)) else {
            return Some("is of a unit that the contract does not have");
        };
        if (from.parent, to.parent) != (leg.of, leg.into) {
            return Some("is of tickets of another currency than its units' enclosers");
        }
        if leg.what.is_nothing() {
            return Some("moves nothing");
        }
    }
    let givers: BTreeSet<UnitId> = deal.legs.iter().map(|leg| leg.from).collect();
    let receivers: BTreeSet<UnitId> = deal.legs.iter().map(|leg| leg.to).collect();
    let mut successive_legs = deal.legs.iter().zip(deal.legs.iter().cycle().skip(1));
    let is_ring = givers.len() == deal.legs.len()
        && givers.len() > 1
        && givers == receivers
        && successive_legs.all(|(leg, next)| leg.to == next.from && leg.what.resource != next.what.resource);
    (!is_ring).then_some("is no ring of units, each lending one resource for another")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Decisions;
    use crate::rights::{Ending, Leg, Offer};
    use alloc::vec;
    use commonhold_contract::Resource::{Cpu, Disk};

    fn leg(from: UnitId, to: UnitId, resource: commonhold_contract::Resource, tickets: u64) -> Leg {
        Leg { from, to, what: Offer::tickets(resource, tickets), of: None, into: None }
    }

    fn plan(trade: Vec<Trade>) -> Plan {
        Plan { decisions: Decisions { trade, ..Decisions::default() }, ..Plan::default() }
    }

    #[test]
    fn a_malformed_exchange_is_rejected() {
        let mut contract = Contract::default();
        let (a, b) = (contract.add(None, "a"), contract.add(None, "b"));
        let inside = contract.add(Some(a), "inside");
        let flaw = |legs: Vec<Leg>| {
            super::flaw(&contract, &Deal { legs, since: 0, until: None, bound: false }).unwrap_or("")
        };
        assert_eq!(flaw(vec![leg(a, b, Disk, 3), leg(b, a, Cpu, 2)]), "");
        let ring = "is no ring of units, each lending one resource for another";
        for no_ring in [
            vec![],
            vec![leg(a, b, Disk, 3)],
            vec![leg(a, a, Disk, 3)],
            vec![leg(a, b, Disk, 3), leg(a, b, Cpu, 2)],
            vec![leg(a, b, Disk, 3), leg(b, a, Disk, 2)],
        ] {
            assert_eq!(flaw(no_ring), ring);
        }
        let lot = Leg { into: Some(a), ..leg(b, inside, Disk, 3) };
        assert_eq!(flaw(vec![lot, Leg { of: Some(a), ..leg(inside, b, Cpu, 2) }]), "");
        assert!(flaw(vec![lot, leg(inside, b, Cpu, 2)]).contains("another currency"));
        assert_eq!(flaw(vec![leg(a, b, Disk, 0), leg(b, a, Cpu, 2)]), "moves nothing");
        let gone = UnitId(77);
        assert!(flaw(vec![leg(a, gone, Disk, 3), leg(gone, a, Cpu, 2)]).contains("does not have"));
    }

    #[test]
    fn an_exchange_begins_and_ends_once() {
        let mut contract = Contract::default();
        let (a, b) = (contract.add(None, "a"), contract.add(None, "b"));
        let what =
            Deal { legs: vec![leg(a, b, Disk, 3), leg(b, a, Cpu, 2)], since: 0, until: None, bound: false };
        let other = Deal { legs: vec![leg(a, b, Disk, 4), leg(b, a, Cpu, 2)], ..what.clone() };
        let made = |what: &Deal| Trade::Made { deal: 3, offers: vec![1, 2], what: what.clone() };
        let undone = |what: &Deal| Trade::Undone { deal: 3, why: Ending::Over, what: what.clone() };
        let wrong = |trades: Vec<Trade>| {
            let (mut books, mut wrong) = (TradeBooks::default(), Vec::new());
            books.replay(&contract, &plan(trades), &mut wrong);
            wrong.len()
        };
        assert_eq!(wrong(vec![made(&what), undone(&what), made(&what)]), 0);
        assert_eq!(wrong(vec![made(&what), made(&what)]), 1);
        assert_eq!(wrong(vec![undone(&what)]), 1);
        assert_eq!(wrong(vec![made(&what), undone(&other)]), 1);
    }
}
