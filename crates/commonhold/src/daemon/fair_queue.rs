//! Determines the order in which clients are served: round robin over users, and for each user round robin
//! over the user's connections. Token buckets limit the CPU time for each user, and for all users together.
//!
//! **Problem.** One thread runs the control loop and also answers clients. Any local user may connect, so a
//! hostile program can send requests at any rate. If requests were served first come, first served, that
//! program could stop the control loop.
//!
//! **Algorithm.** A client is *ready* when it has something for the daemon to do. [`FairQueue::next`] returns
//! one client of the least recently served user. The daemon does one request's worth of work for this client,
//! and then charges the CPU time used ([`FairQueue::charge`]). Token buckets bound that time, in nanoseconds
//! of CPU time per second: one bucket for each user ([`PER_USER`]), and a joint bucket for all users
//! ([`ALL_USERS`]). A user whose bucket is empty waits until the bucket fills again. Every cost of a request
//! is charged alike, whether it comes from parsing junk, from a forced turn of the control loop or from
//! writing a state file. So no kind of request needs a limit of its own.
//!
//! **Properties.** Before a user's request is served, at most one request of every other user is. Requests
//! take at most [`ALL_USERS`] of a CPU on average. The cost of connecting is charged to the user's own
//! bucket, not to the joint bucket. So a user who opens any number of connections cannot empty the joint
//! bucket, for which other users would have to wait. Root and the daemon's own user have no bucket: they may
//! stop the daemon anyway, and an administrator must reach the daemon during an attack.
//!
//! **Limits.** A request that has begun is not interrupted, so a user may overdraw the bucket by the cost of
//! one request. The resulting debt counts up to [`DEBT_MAX_NS`].

use std::collections::{BTreeMap, VecDeque};

use commonhold_policy::Time;

/// The party charged for a client's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Party {
    /// Root, and the user that runs the daemon.
    Privileged,
    /// Any other user. A process in a user namespace counts as the user that created the namespace.
    User(u32),
    /// All processes that exited before the daemon accepted their connection: their user namespaces are
    /// unknown.
    Exited,
}

/// A token bucket's parameters; tokens are nanoseconds of the loop's CPU time.
#[derive(Debug, Clone, Copy)]
struct Rate {
    /// The refill rate in milliseconds per second.
    per_mille: i64,
    /// The most that the bucket holds.
    burst_ns: i64,
}

/// A user's budget: 10 % of a CPU on average. The burst allows a shell script some dozens of requests at
/// once.
const PER_USER: Rate = Rate { per_mille: 100, burst_ns: 50_000_000 };
/// The joint budget of all users but root: its rate is twice that of one user's budget, and its burst exceeds
/// one user's burst and largest debt together. So one user alone cannot exhaust it.
const ALL_USERS: Rate = Rate { per_mille: 200, burst_ns: 150_000_000 };
/// The largest debt of a bucket, so that one expensive request locks its user out for half a second at most.
const DEBT_MAX_NS: i64 = 50_000_000;
/// Hysteresis: a user with an empty bucket is served again when the bucket holds this much. Otherwise cheap
/// requests would wake the loop one by one, and a wake-up costs more than such a request.
const RESUME_NS: i64 = 1_000_000;
/// When there are this many accounts, those without a ready client and with a full bucket are forgotten.
const REMEMBERED_MAX: usize = 1_024;

/// A token bucket. Its level is computed when needed.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// The level at the time `at`; negative: a debt.
    level_ns: i64,
    /// Whether the bucket ran empty and has not been refilled to [`RESUME_NS`] since then.
    is_empty: bool,
    /// The time at which `level_ns` was computed.
    at: Time,
}

impl Bucket {
    fn full(rate: Rate, now: Time) -> Bucket {
        Bucket { level_ns: rate.burst_ns, is_empty: false, at: now }
    }

    /// The present level.
    fn level_ns(self, rate: Rate, now: Time) -> i64 {
        let elapsed_ns = i64::try_from(now.saturating_sub(self.at)).unwrap_or(i64::MAX);
        let refilled_ns = elapsed_ns.saturating_mul(rate.per_mille) / 1_000;
        self.level_ns.saturating_add(refilled_ns).min(rate.burst_ns)
    }

    /// Draws `ns` from the bucket. Returns the amount drawn, which is less than `ns` if the debt reaches its
    /// limit.
    fn charge(&mut self, rate: Rate, ns: u64, now: Time) -> u64 {
        let ns = i64::try_from(ns).unwrap_or(i64::MAX);
        let before_ns = self.level_ns(rate, now);
        let level_ns = before_ns.saturating_sub(ns).max(-DEBT_MAX_NS);
        let is_empty = level_ns <= 0 || (self.is_empty && before_ns < RESUME_NS);
        *self = Bucket { level_ns, is_empty, at: now };
        u64::try_from(before_ns.saturating_sub(level_ns)).unwrap_or(0)
    }

    /// The earliest time at which the bucket's owner may be served: as soon as the bucket no longer counts as
    /// empty.
    fn usable_at(self, rate: Rate, now: Time) -> Time {
        let least_ns = if self.is_empty { RESUME_NS } else { 1 };
        let missing_ns = least_ns - self.level_ns(rate, now);
        if missing_ns <= 0 {
            return now;
        }
        // The wait is rounded up. If it were rounded down, the bucket would still be empty when the loop
        // wakes up, and the loop would spin.
        let wait_ns = missing_ns.saturating_mul(1_000) / rate.per_mille + 1;
        now.saturating_add(u64::try_from(wait_ns).unwrap_or(0))
    }
}

/// A party's bucket, and its ready clients in the order in which they will be served.
#[derive(Debug)]
struct Account {
    bucket: Bucket,
    ready: VecDeque<u64>,
}

/// The ready clients.
#[derive(Debug)]
pub(super) struct FairQueue {
    accounts: BTreeMap<Party, Account>,
    /// The parties with ready clients, least recently served first.
    order: VecDeque<Party>,
    all_users: Bucket,
}

impl FairQueue {
    pub(super) fn new(now: Time) -> FairQueue {
        FairQueue {
            accounts: BTreeMap::new(),
            order: VecDeque::new(),
            all_users: Bucket::full(ALL_USERS, now),
        }
    }

    /// Marks a client as ready to be served. A client that is ready already keeps its position in the queue.
    pub(super) fn push(&mut self, party: Party, client: u64, now: Time) {
        let account = self.account(party, now);
        if account.ready.contains(&client) {
            return;
        }
        account.ready.push_back(client);
        if account.ready.len() == 1 {
            self.order.push_back(party);
        }
    }

    /// Removes a client whose connection closed. Without this, a party with an empty bucket that connects
    /// again and again would leave one entry in the queue for every past connection.
    pub(super) fn forget(&mut self, party: Party, client: u64) {
        let Some(account) = self.accounts.get_mut(&party) else { return };
        account.ready.retain(|ready| *ready != client);
        if account.ready.is_empty() {
            self.order.retain(|other| *other != party);
        }
    }

    /// Takes the next client whose party may be served now.
    pub(super) fn next(&mut self, now: Time) -> Option<(Party, u64)> {
        let at = self.order.iter().position(|party| self.may_be_served_at(*party, now) <= now)?;
        let party = self.order.remove(at)?;
        let account = self.accounts.get_mut(&party)?;
        let client = account.ready.pop_front()?;
        if !account.ready.is_empty() {
            self.order.push_back(party);
        }
        Some((party, client))
    }

    /// When [`FairQueue::next`] will return a client; `None` if no client is ready.
    pub(super) fn due(&self, now: Time) -> Option<Time> {
        self.order.iter().map(|party| self.may_be_served_at(*party, now)).min()
    }

    /// Whether to accept another connection of a party. A party whose bucket is empty may still connect, and
    /// then waits. The party is turned away once its debt exceeds half of [`DEBT_MAX_NS`], which shows that
    /// it went on connecting. While the joint bucket has such a debt, only parties whose own bucket is more
    /// than half full may connect.
    pub(super) fn may_connect(&self, party: Party, now: Time) -> bool {
        if party == Party::Privileged {
            return true;
        }
        let own_ns = self
            .accounts
            .get(&party)
            .map_or(PER_USER.burst_ns, |account| account.bucket.level_ns(PER_USER, now));
        let all_ns = self.all_users.level_ns(ALL_USERS, now);
        let least_ns = if all_ns > -DEBT_MAX_NS / 2 { -DEBT_MAX_NS / 2 } else { PER_USER.burst_ns / 2 };
        own_ns > least_ns
    }

    /// Charges a party for the CPU time that the loop spent on the party's requests, up to the party's
    /// largest debt. The joint bucket is charged the same amount as the party's own. If it were charged the
    /// full time, a party that reaches its largest debt again and again could drain twice its own budget from
    /// the joint bucket, which is the whole joint budget.
    pub(super) fn charge(&mut self, party: Party, ns: u64, now: Time) {
        if party == Party::Privileged {
            return;
        }
        let paid_ns = self.account(party, now).bucket.charge(PER_USER, ns, now);
        self.all_users.charge(ALL_USERS, paid_ns, now);
    }

    /// Charges a party for the CPU time of accepting or refusing a connection. The joint bucket is not
    /// charged: it does not limit connections, so one user could drain it by connecting.
    pub(super) fn charge_connection(&mut self, party: Party, ns: u64, now: Time) {
        if party != Party::Privileged {
            self.account(party, now).bucket.charge(PER_USER, ns, now);
        }
    }

    /// The earliest time at which a party may be served: as soon as neither the party's own bucket nor the
    /// joint one is empty.
    fn may_be_served_at(&self, party: Party, now: Time) -> Time {
        if party == Party::Privileged {
            return now;
        }
        let own = self.accounts.get(&party).map_or(now, |account| account.bucket.usable_at(PER_USER, now));
        own.max(self.all_users.usable_at(ALL_USERS, now))
    }

    /// A party's account; a new one has a full bucket.
    fn account(&mut self, party: Party, now: Time) -> &mut Account {
        if self.accounts.len() >= REMEMBERED_MAX && !self.accounts.contains_key(&party) {
            // An account with no ready client and a full bucket equals a new account, so it can be forgotten.
            self.accounts.retain(|_, account| {
                !account.ready.is_empty() || account.bucket.level_ns(PER_USER, now) < PER_USER.burst_ns
            });
        }
        self.accounts
            .entry(party)
            .or_insert_with(|| Account { bucket: Bucket::full(PER_USER, now), ready: VecDeque::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const ANA: Party = Party::User(1_000);
    const BO: Party = Party::User(1_001);

    #[test]
    fn users_take_turns_and_so_do_the_connections_of_each() {
        let mut queue = FairQueue::new(0);
        for client in [1, 2, 3] {
            queue.push(ANA, client, 0);
        }
        queue.push(BO, 10, 0);
        queue.push(Party::Privileged, 20, 0);
        // Already ready: it is not queued twice.
        queue.push(ANA, 1, 0);
        let order: Vec<u64> = std::iter::from_fn(|| queue.next(0)).map(|(_, client)| client).collect();
        assert_eq!(order, [1, 10, 20, 2, 3]);
        assert_eq!(queue.due(0), None);
    }

    /// Ana overdraws her bucket by 20 ms: at 100 ms a second she alone waits for 200 ms.
    #[test]
    fn a_user_over_budget_waits_until_its_bucket_refills() {
        let mut queue = FairQueue::new(0);
        queue.charge(ANA, 70 * MS, 0);
        queue.push(ANA, 1, 0);
        queue.push(BO, 2, 0);
        assert_eq!((queue.next(0), queue.next(0)), (Some((BO, 2)), None));
        let ana = queue.due(0).unwrap_or(0);
        // 10 ms more, until the bucket holds 1 ms.
        assert!((210 * MS..=211 * MS).contains(&ana), "{ana}");
        assert_eq!((queue.next(ana - MS), queue.next(ana)), (None, Some((ANA, 1))));
    }

    /// Four users overdraw the joint bucket by 50 ms, which takes 250 ms at 200 ms a second. Root is served
    /// meanwhile.
    #[test]
    fn users_together_wait_for_the_joint_bucket() {
        let mut queue = FairQueue::new(0);
        for uid in 1..5 {
            queue.charge(Party::User(uid), 50 * MS, 0);
        }
        queue.push(BO, 2, 0);
        queue.push(Party::Privileged, 3, 0);
        queue.charge(Party::Privileged, 1_000 * MS, 0);
        assert_eq!((queue.next(0), queue.next(0)), (Some((Party::Privileged, 3)), None));
        let bo = queue.due(0).unwrap_or(0);
        assert!((255 * MS..=256 * MS).contains(&bo), "{bo}");
        assert_eq!(queue.next(bo), Some((BO, 2)));
    }

    /// A request that took a minute locks its user out for at most 500 ms.
    #[test]
    fn debts_are_bounded() {
        let mut queue = FairQueue::new(0);
        queue.charge(ANA, 60_000 * MS, 0);
        queue.push(ANA, 1, 0);
        assert!(queue.due(0).is_some_and(|at| at <= 511 * MS), "{:?}", queue.due(0));
    }

    #[test]
    fn a_debt_outlasts_the_connection_and_memory_is_bounded() {
        let mut queue = FairQueue::new(0);
        queue.charge(ANA, 60 * MS, 0);
        for uid in 2_000..20_000 {
            queue.push(Party::User(uid), 1, 900 * MS);
            assert_eq!(queue.next(900 * MS), Some((Party::User(uid), 1)));
        }
        assert!(queue.accounts.len() <= REMEMBERED_MAX, "{}", queue.accounts.len());
        assert!(!queue.accounts.contains_key(&ANA), "paid back by then");
    }

    #[test]
    fn who_only_connects_is_turned_away_and_others_are_not() {
        let mut queue = FairQueue::new(0);
        queue.charge(ANA, 60 * MS, 0);
        assert!(queue.may_connect(ANA, 0), "a little over its budget, it waits");
        queue.charge(ANA, 20 * MS, 0);
        assert!(!queue.may_connect(ANA, 0) && queue.may_connect(BO, 0));
        for uid in 1..5 {
            queue.charge(Party::User(uid), 100 * MS, 0);
        }
        assert!(queue.may_connect(BO, 0) && queue.may_connect(Party::Privileged, 0));
        queue.charge(BO, 30 * MS, 0);
        assert!(!queue.may_connect(BO, 0), "all users together are in debt");
        assert!(queue.may_connect(ANA, 1_000 * MS));
    }

    /// A party in debt goes on connecting, and its connections close before any of them is served.
    #[test]
    fn a_client_whose_connection_is_closed_is_not_ready_any_more() {
        let mut queue = FairQueue::new(0);
        queue.charge(ANA, 60 * MS, 0);
        for client in 0..10_000 {
            queue.push(ANA, client, 0);
            queue.forget(ANA, client);
        }
        assert!(queue.accounts[&ANA].ready.is_empty() && queue.order.is_empty());
        assert_eq!(queue.due(0), None);
        // The other clients keep their order, and the party its turn.
        for client in [1, 2, 3] {
            queue.push(BO, client, 0);
        }
        queue.forget(BO, 2);
        queue.forget(ANA, 2);
        queue.forget(Party::User(7), 2);
        assert_eq!((queue.next(0), queue.next(0), queue.next(0)), (Some((BO, 1)), Some((BO, 3)), None));
    }

    /// Each request of Ana's takes 200 ms, of which she pays a part.
    #[test]
    fn long_requests_of_one_user_do_not_use_up_the_budget_of_all() {
        let mut queue = FairQueue::new(0);
        let mut now = 0;
        for _ in 0..50 {
            queue.push(ANA, 1, now);
            now = queue.due(now).unwrap_or(now);
            assert_eq!(queue.next(now), Some((ANA, 1)));
            queue.charge(ANA, 200 * MS, now);
            queue.push(BO, 2, now);
            assert_eq!(queue.next(now), Some((BO, 2)), "at {now}");
        }
    }

    /// Bo is served no matter how often Ana connects.
    #[test]
    fn connections_of_one_user_do_not_use_up_the_budget_of_all() {
        let mut queue = FairQueue::new(0);
        for ms in 0..2_000 {
            for party in [ANA, Party::Exited] {
                queue.charge_connection(party, MS, ms * MS);
                queue.push(party, 1, ms * MS);
            }
        }
        let now = 2_000 * MS;
        assert!(!queue.may_connect(ANA, now) && queue.may_connect(BO, now));
        queue.push(BO, 2, now);
        assert_eq!((queue.next(now), queue.next(now)), (Some((BO, 2)), None));
    }

    proptest! {
        /// For any costs of requests, all users together stay within their budget, and a user with few
        /// requests is served once per round.
        #[test]
        fn a_flood_stays_within_its_budget(costs in prop::collection::vec(1_000u64..3 * MS, 100..400)) {
            let mut queue = FairQueue::new(0);
            let (mut now, mut spent, mut waited_max) = (0, 0, 0);
            let mut bo_ready_since = None;
            for (n, cost) in costs.iter().enumerate() {
                queue.push(ANA, 1, now);
                queue.push(ANA, 2, now);
                if n % 20 == 0 {
                    queue.push(BO, 3, now);
                    bo_ready_since.get_or_insert(now);
                }
                now = queue.due(now).expect("two clients are ready").max(now);
                let (party, _) = queue.next(now).expect("it is due");
                if party == BO {
                    waited_max = waited_max.max(now - bo_ready_since.take().unwrap_or(now));
                }
                let cost = if party == BO { 10_000 } else { *cost };
                now += cost;
                spent += cost;
                queue.charge(party, cost, now);
            }
            // A burst, one request that overdraws, and 10 % of the time; Bo's requests cost next to nothing.
            prop_assert!(spent <= 50 * MS + 3 * MS + now / 10 + MS, "{spent} of {now}");
            // At most one request of the other user first.
            prop_assert!(waited_max <= 3 * MS, "{waited_max}");
        }
    }
}
