//! Offers that end with their clients, and offers and exchanges that clients wait for.
//!
//! A client may *hold* its offer, and the exchange that serves it. When its connection closes, the next turn takes back the
//! offer or ends the exchange. A client may also wait for the outcome of any offer or exchange: it is answered when the outcome
//! is known, and no other request of it is served until then.
//!
//! A *kept* client holds something or waits. Its connection is never closed to make room for others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use commonhold_policy::Time;
use commonhold_policy::plan::RightsChange;
use commonhold_policy::rights::{Bid, Change, Trade};

use crate::protocol::{AwaitReply, Awaited};

/// The number of ended offers and exchanges whose outcomes are remembered; the oldest are forgotten first.
const REMEMBERED_MAX: usize = 4_096;

/// The holder of an offer that no turn has made yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// No client holds it: it stays open until it is taken back.
    Nobody,
    Client(u64),
    /// Its client's connection is closed.
    Gone,
}

/// A client's wait for an outcome.
#[derive(Debug)]
struct Wait {
    number: u64,
    until: Option<Time>,
    /// The present answer; sent once `is_due`, or at `until`.
    answer: Awaited,
    is_due: bool,
}

/// The offers and exchanges that clients hold, and the clients that wait. A client is identified by its connection's number.
#[derive(Debug, Default)]
pub(super) struct HeldOffers {
    /// Accepted offers that no turn has made or refused yet, oldest first.
    taken: VecDeque<(Bid, Holder)>,
    /// The clients that hold an offer or an exchange, by its number.
    holders: BTreeMap<u64, BTreeSet<u64>>,
    /// Offers and exchanges of disconnected clients, to be taken back.
    orphans: BTreeSet<u64>,
    waits: BTreeMap<u64, Wait>,
    /// The outcomes of ended offers and exchanges, newest last.
    became: VecDeque<(u64, Awaited)>,
}

impl HeldOffers {
    /// Records an accepted offer, which a later turn makes or refuses. `client` holds it from now on.
    pub(super) fn take(&mut self, bid: Bid, client: Option<u64>) {
        self.taken.push_back((bid, client.map_or(Holder::Nobody, Holder::Client)));
    }

    /// Records that a connection closed: what its client held is to be taken back.
    pub(super) fn gone(&mut self, client: u64) {
        self.waits.remove(&client);
        for (_, holder) in self.taken.iter_mut().filter(|(_, holder)| *holder == Holder::Client(client)) {
            *holder = Holder::Gone;
        }
        let orphans = &mut self.orphans;
        self.holders.retain(|number, clients| {
            let held = clients.remove(&client);
            if held {
                orphans.insert(*number);
            }
            !held
        });
    }

    /// Offers and exchanges that are to be taken back, without those queued for it.
    pub(super) fn orphans(&self) -> Vec<u64> {
        self.orphans.iter().copied().collect()
    }

    /// Records that the next turn takes this one back.
    pub(super) fn taken_back(&mut self, number: u64) {
        self.orphans.remove(&number);
    }

    /// The clients that hold something or wait.
    pub(super) fn kept(&self) -> BTreeSet<u64> {
        let taken = self.taken.iter().filter_map(|(_, holder)| match holder {
            Holder::Client(client) => Some(client),
            Holder::Nobody | Holder::Gone => None,
        });
        self.holders.values().flatten().chain(self.waits.keys()).chain(taken).copied().collect()
    }

    /// Records a turn's decisions on offers.
    pub(super) fn book(&mut self, decided: &[RightsChange], traded: &[Trade]) {
        let mut offered = traded.iter().filter_map(|trade| match trade {
            Trade::Offered { offer, bid } => Some((*offer, bid)),
            _ => None,
        });
        for decided in decided {
            let Change::Offer { bid } = decided.change else { continue };
            // Of several equal offers, the first was accepted first.
            let at = self.taken.iter().position(|(taken, _)| *taken == bid);
            let Some((_, holder)) = at.and_then(|at| self.taken.remove(at)) else { continue };
            if decided.refused.is_some() {
                continue;
            }
            let Some((number, _)) = offered.find(|(_, made)| **made == bid) else { continue };
            match holder {
                Holder::Nobody => {}
                Holder::Client(client) => drop(self.holders.insert(number, BTreeSet::from([client]))),
                Holder::Gone => drop(self.orphans.insert(number)),
            }
        }
        for trade in traded {
            match trade {
                Trade::Offered { .. } => {}
                Trade::Withdrawn { offer } => self.became(*offer, Awaited::Withdrawn),
                Trade::Made { deal, offers, .. } => {
                    for offer in offers {
                        if let Some(clients) = self.holders.remove(offer) {
                            self.holders.entry(*deal).or_default().extend(clients);
                        }
                        if self.orphans.remove(offer) {
                            self.orphans.insert(*deal);
                        }
                        self.became(*offer, Awaited::Served { exchange: *deal });
                    }
                }
                Trade::Undone { deal, why, .. } => self.became(*deal, Awaited::Ended { why: *why }),
            }
        }
    }

    /// Records the end of an offer or an exchange.
    fn became(&mut self, number: u64, what: Awaited) {
        self.holders.remove(&number);
        self.orphans.remove(&number);
        for wait in self.waits.values_mut().filter(|wait| wait.number == number) {
            (wait.answer, wait.is_due) = (what, true);
        }
        self.became.push_back((number, what));
        if self.became.len() > REMEMBERED_MAX {
            self.became.pop_front();
        }
    }

    /// The outcome of an ended offer or exchange, if it is remembered.
    pub(super) fn outcome(&self, number: u64) -> Option<Awaited> {
        self.became.iter().rev().find(|(other, _)| *other == number).map(|(_, what)| *what)
    }

    /// Has a client wait for the outcome of an offer or an exchange, whose present state is `now`.
    pub(super) fn wait(&mut self, client: u64, number: u64, until: Option<Time>, now: Awaited) {
        self.waits.insert(client, Wait { number, until, answer: now, is_due: false });
    }

    /// The earliest deadline of a wait.
    pub(super) fn next(&self) -> Option<Time> {
        self.waits.values().filter_map(|wait| wait.until).min()
    }

    /// Takes out a client whose wait has ended, with its answer.
    pub(super) fn due(&mut self, now: Time) -> Option<(u64, AwaitReply)> {
        let is_due = |wait: &Wait| wait.is_due || wait.until.is_some_and(|until| until <= now);
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
        held.take(bid(), client);
        let (decided, traded) = offered(offer);
        held.book(&decided, &[traded]);
    }

    #[test]
    fn what_a_client_held_is_taken_back_when_it_is_gone() {
        let mut held = HeldOffers::default();
        make(&mut held, Some(7), 1);
        make(&mut held, None, 2);
        make(&mut held, Some(8), 3);
        assert_eq!(held.kept(), BTreeSet::from([7, 8]));
        // When an offer is served, its exchange is held instead, by the clients of all its offers.
        held.book(&[], &[Trade::Made { deal: 4, offers: vec![1, 3], what: deal() }]);
        held.gone(9);
        assert_eq!(held.orphans(), [] as [u64; 0]);
        held.gone(7);
        assert_eq!(held.orphans(), [4]);
        held.taken_back(4);
        held.book(&[], &[Trade::Undone { deal: 4, why: Ending::Ended, what: deal() }]);
        held.gone(8);
        assert_eq!((held.orphans(), held.kept()), (vec![], BTreeSet::new()));
    }

    /// A turn failed, and the client disconnected before the next one.
    #[test]
    fn an_offer_that_is_made_after_its_client_is_gone_is_taken_back() {
        let mut held = HeldOffers::default();
        held.take(bid(), None);
        held.take(bid(), Some(7));
        held.gone(7);
        let (decided, first) = offered(1);
        held.book(&decided, &[first]);
        assert_eq!(held.orphans(), [] as [u64; 0], "the first is nobody's");
        let (decided, second) = offered(2);
        held.book(&decided, &[second, Trade::Made { deal: 3, offers: vec![2], what: deal() }]);
        assert_eq!(held.orphans(), [3]);
    }

    #[test]
    fn who_waits_is_answered_once_when_it_is_known_or_the_time_is_over() {
        let mut held = HeldOffers::default();
        make(&mut held, None, 1);
        held.wait(7, 1, None, Awaited::Stands);
        held.wait(8, 1, Some(50), Awaited::Stands);
        assert_eq!((held.next(), held.due(49).is_none()), (Some(50), true));
        let (client, reply) = held.due(50).unwrap();
        assert_eq!((client, reply.state), (8, Awaited::Stands));
        held.book(&[], &[Trade::Made { deal: 2, offers: vec![1], what: deal() }]);
        let (client, reply) = held.due(50).unwrap();
        assert_eq!((client, reply.state), (7, Awaited::Served { exchange: 2 }));
        assert!(held.due(u64::MAX).is_none());
        assert_eq!((held.outcome(1), held.outcome(2)), (Some(Awaited::Served { exchange: 2 }), None));
        let answer = serde_json::to_string(&reply).unwrap();
        assert_eq!(answer, "{\"number\":1,\"state\":\"served\",\"exchange\":2}");
    }

    #[test]
    fn only_so_much_is_remembered() {
        let mut held = HeldOffers::default();
        for offer in 0..5_000 {
            held.book(&[], &[Trade::Withdrawn { offer }]);
        }
        assert_eq!((held.became.len(), held.outcome(0)), (REMEMBERED_MAX, None));
        assert_eq!(held.outcome(4_999), Some(Awaited::Withdrawn));
    }
}
