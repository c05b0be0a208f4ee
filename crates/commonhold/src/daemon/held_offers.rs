//! Records which clients hold offers and exchanges, so that these end with the client, and which clients wait
//! for the outcome of an offer or exchange.
//!
//! A client may *hold* its offer, and the exchange that serves the offer. When the client's connection
//! closes, the next turn takes back the offer or ends the exchange. A client may also wait for the outcome of
//! any offer or exchange. Such a client is answered when the outcome is known. Until then, its other requests
//! are not served.
//!
//! A client that holds an offer or exchange, or waits, is called *kept*: its connection is never closed to
//! make room for others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use commonhold_policy::Time;
use commonhold_policy::plan::RightsChange;
use commonhold_policy::rights::{Bid, Change, Trade};

use crate::protocol::{AwaitReply, Awaited};

/// The number of ended offers and exchanges whose outcomes are remembered; the oldest are forgotten first.
const REMEMBERED_MAX: usize = 4_096;

/// The holder of an offer that no turn has made or refused yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// No client holds the offer, so it stays open until it is taken back.
    Nobody,
    Client(u64),
    /// The connection of the offer's client is closed.
    Disconnected,
}

/// A client's wait for an outcome.
#[derive(Debug)]
struct Wait {
    /// The number of the offer or exchange.
    number: u64,
    /// The deadline of the wait.
    until: Option<Time>,
    /// The answer to send once the outcome is known, or at the deadline.
    answer: Awaited,
    is_outcome_known: bool,
}

/// The offers and exchanges that clients hold, and the clients that wait. A client is identified by its
/// connection's number.
#[derive(Debug, Default)]
pub(super) struct HeldOffers {
    /// Queued offers that no turn has made or refused yet, oldest first.
    undecided: VecDeque<(Bid, Holder)>,
    /// The clients that hold an offer or an exchange, by the number of the offer or exchange.
    holders: BTreeMap<u64, BTreeSet<u64>>,
    /// Offers and exchanges of disconnected clients, to be taken back.
    orphans: BTreeSet<u64>,
    /// The waits, by client.
    waits: BTreeMap<u64, Wait>,
    /// The outcomes of ended offers and exchanges, newest last.
    outcomes: VecDeque<(u64, Awaited)>,
}

impl HeldOffers {
    /// Records a queued offer, which a later turn will make or refuse. If `client` is given, that client
    /// holds the offer.
    pub(super) fn add(&mut self, bid: Bid, client: Option<u64>) {
        self.undecided.push_back((bid, client.map_or(Holder::Nobody, Holder::Client)));
    }

    /// Records that a client's connection closed. The offers and exchanges that the client held become
    /// orphans.
    pub(super) fn close(&mut self, client: u64) {
        self.waits.remove(&client);
        for (_, holder) in self.undecided.iter_mut().filter(|(_, holder)| *holder == Holder::Client(client)) {
            *holder = Holder::Disconnected;
        }
        let orphans = &mut self.orphans;
        self.holders.retain(|number, clients| {
            let was_holder = clients.remove(&client);
            if was_holder {
                orphans.insert(*number);
            }
            !was_holder
        });
    }

    /// The offers and exchanges of disconnected clients whose withdrawal is not queued yet.
    pub(super) fn orphans(&self) -> Vec<u64> {
        self.orphans.iter().copied().collect()
    }

    /// Records that the withdrawal of an orphan is queued.
    pub(super) fn mark_cancelled(&mut self, number: u64) {
        self.orphans.remove(&number);
    }

    /// The kept clients: those that hold an offer or exchange, or wait.
    pub(super) fn kept(&self) -> BTreeSet<u64> {
        let with_undecided_offers = self.undecided.iter().filter_map(|(_, holder)| match holder {
            Holder::Client(client) => Some(client),
            Holder::Nobody | Holder::Disconnected => None,
        });
        self.holders
            .values()
            .flatten()
            .chain(self.waits.keys())
            .chain(with_undecided_offers)
            .copied()
            .collect()
    }

    /// Updates holders and outcomes after a turn. `decided` are the changes that the turn made or refused,
    /// `traded` what happened to offers and exchanges.
    pub(super) fn record_turn(&mut self, decided: &[RightsChange], traded: &[Trade]) {
        let mut offered = traded.iter().filter_map(|trade| match trade {
            Trade::Offered { offer, bid } => Some((*offer, bid)),
            _ => None,
        });
        // Offers that were made get their numbers and holders.
        for decided in decided {
            let Change::Offer { bid } = decided.change else { continue };
            // Of several equal offers, the first in the list was queued first.
            let position = self.undecided.iter().position(|(queued, _)| *queued == bid);
            let Some((_, holder)) = position.and_then(|at| self.undecided.remove(at)) else { continue };
            if decided.refused.is_some() {
                continue;
            }
            let Some((number, _)) = offered.find(|(_, made)| **made == bid) else { continue };
            match holder {
                Holder::Nobody => {}
                Holder::Client(client) => drop(self.holders.insert(number, BTreeSet::from([client]))),
                Holder::Disconnected => drop(self.orphans.insert(number)),
            }
        }
        // An exchange inherits the holders of the offers that it serves.
        for trade in traded {
            match trade {
                Trade::Offered { .. } => {}
                Trade::Withdrawn { offer } => self.end(*offer, Awaited::Withdrawn),
                Trade::Made { deal, offers, .. } => {
                    for offer in offers {
                        if let Some(clients) = self.holders.remove(offer) {
                            self.holders.entry(*deal).or_default().extend(clients);
                        }
                        if self.orphans.remove(offer) {
                            self.orphans.insert(*deal);
                        }
                        self.end(*offer, Awaited::Served { exchange: *deal });
                    }
                }
                Trade::Undone { deal, why, .. } => self.end(*deal, Awaited::Ended { why: *why }),
            }
        }
    }

    /// Records the end of an offer or an exchange, with its outcome.
    fn end(&mut self, number: u64, outcome: Awaited) {
        self.holders.remove(&number);
        self.orphans.remove(&number);
        for wait in self.waits.values_mut().filter(|wait| wait.number == number) {
            (wait.answer, wait.is_outcome_known) = (outcome, true);
        }
        self.outcomes.push_back((number, outcome));
        if self.outcomes.len() > REMEMBERED_MAX {
            self.outcomes.pop_front();
        }
    }

    /// The outcome of an ended offer or exchange, if it is remembered.
    pub(super) fn outcome(&self, number: u64) -> Option<Awaited> {
        self.outcomes.iter().rev().find(|(other, _)| *other == number).map(|(_, outcome)| *outcome)
    }

    /// Registers a client that waits for the outcome of an offer or exchange. If the wait times out, the
    /// answer is `state`, its present state.
    pub(super) fn wait(&mut self, client: u64, number: u64, until: Option<Time>, state: Awaited) {
        self.waits.insert(client, Wait { number, until, answer: state, is_outcome_known: false });
    }

    /// The earliest deadline of a wait.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.waits.values().filter_map(|wait| wait.until).min()
    }

    /// Removes one client whose wait has ended or timed out, and returns the client with the answer for it.
    pub(super) fn take_due(&mut self, now: Time) -> Option<(u64, AwaitReply)> {
        let is_due = |wait: &Wait| wait.is_outcome_known || wait.until.is_some_and(|until| until <= now);
        let client = *self.waits.iter().find(|(_, wait)| is_due(wait))?.0;
        let Wait { number, answer: state, .. } = self.waits.remove(&client)?;
        Some((client, AwaitReply { number, state }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use commonhold_contract::UnitId;
    use commonhold_policy::rights::{Deal, Ending};

    fn bid() -> Bid {
        let (gives, wants) = ("disk:3".parse().unwrap(), "cpu:2".parse().unwrap());
        Bid { by: UnitId(2), gives, wants, with: None, for_ns: None, at_least: None, bound: false }
    }

    fn offered(offer: u64) -> ([RightsChange; 1], Trade) {
        (
            [RightsChange { change: Change::Offer { bid: bid() }, refused: None }],
            Trade::Offered { offer, bid: bid() },
        )
    }

    fn deal() -> Deal {
        Deal { legs: Vec::new(), since: 0, until: None, bound: false }
    }

    fn make(held: &mut HeldOffers, client: Option<u64>, offer: u64) {
        held.add(bid(), client);
        let (decided, traded) = offered(offer);
        held.record_turn(&decided, &[traded]);
    }

    #[test]
    fn a_clients_offers_are_orphans_when_its_connection_closes() {
        let mut held = HeldOffers::default();
        make(&mut held, Some(7), 1);
        make(&mut held, None, 2);
        make(&mut held, Some(8), 3);
        assert_eq!(held.kept(), BTreeSet::from([7, 8]));
        // When an offer is served, its exchange is held instead, by the clients of all its offers.
        held.record_turn(&[], &[Trade::Made { deal: 4, offers: vec![1, 3], what: deal() }]);
        held.close(9);
        assert_eq!(held.orphans(), [] as [u64; 0]);
        held.close(7);
        assert_eq!(held.orphans(), [4]);
        held.mark_cancelled(4);
        held.record_turn(&[], &[Trade::Undone { deal: 4, why: Ending::Ended, what: deal() }]);
        held.close(8);
        assert_eq!((held.orphans(), held.kept()), (vec![], BTreeSet::new()));
    }

    /// A turn failed, and the client disconnected before the next one.
    #[test]
    fn an_offer_that_is_made_after_its_client_is_gone_is_taken_back() {
        let mut held = HeldOffers::default();
        held.add(bid(), None);
        held.add(bid(), Some(7));
        held.close(7);
        let (decided, first) = offered(1);
        held.record_turn(&decided, &[first]);
        assert_eq!(held.orphans(), [] as [u64; 0], "the first is nobody's");
        let (decided, second) = offered(2);
        held.record_turn(&decided, &[second, Trade::Made { deal: 3, offers: vec![2], what: deal() }]);
        assert_eq!(held.orphans(), [3]);
    }

    #[test]
    fn a_waiting_client_is_answered_once_at_the_outcome_or_the_deadline() {
        let mut held = HeldOffers::default();
        make(&mut held, None, 1);
        held.wait(7, 1, None, Awaited::Stands);
        held.wait(8, 1, Some(50), Awaited::Stands);
        assert_eq!((held.next_deadline(), held.take_due(49).is_none()), (Some(50), true));
        let (client, reply) = held.take_due(50).unwrap();
        assert_eq!((client, reply.state), (8, Awaited::Stands));
        held.record_turn(&[], &[Trade::Made { deal: 2, offers: vec![1], what: deal() }]);
        let (client, reply) = held.take_due(50).unwrap();
        assert_eq!((client, reply.state), (7, Awaited::Served { exchange: 2 }));
        assert!(held.take_due(u64::MAX).is_none());
        assert_eq!((held.outcome(1), held.outcome(2)), (Some(Awaited::Served { exchange: 2 }), None));
        let answer = serde_json::to_string(&reply).unwrap();
        assert_eq!(answer, "{\"number\":1,\"state\":\"served\",\"exchange\":2}");
    }

    #[test]
    fn the_oldest_outcomes_are_forgotten() {
        let mut held = HeldOffers::default();
        for offer in 0..5_000 {
            held.record_turn(&[], &[Trade::Withdrawn { offer }]);
        }
        assert_eq!((held.outcomes.len(), held.outcome(0)), (REMEMBERED_MAX, None));
        assert_eq!(held.outcome(4_999), Some(Awaited::Withdrawn));
    }
}
