//! The plan checker's books of jobs: which thread sits in which pool.
//!
//! Checked: pools exist, and no more threads sit in a pool than the pool has CPUs. A thread with a seat in a
//! pool of several CPUs is restricted to CPUs of that pool. A thread without a seat is not restricted. Pages
//! move to existing nodes.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use commonhold_contract::Contract;
use commonhold_machine::Machine;
use commonhold_machine::pools::Pools;

use crate::plan::{NodePart, Plan, SeatOrder};
use crate::snapshot::ThreadId;

/// Threads with a seat, according to the plans so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SeatBooks {
    /// The pool in which each thread has its seat.
    pool: BTreeMap<ThreadId, u32>,
}

impl SeatBooks {
    /// Replays the decisions and orders about seats, and appends what is wrong with them to `errors`.
    pub(super) fn replay(
        &mut self,
        contract: &Contract,
        machine: &Machine,
        plan: &Plan,
        errors: &mut Vec<String>,
    ) {
        if plan.decisions.seats.is_empty() && plan.orders.seats.is_empty() {
            return;
        }
        let pools = crate::pools(machine, contract.machine.pools);
        for seat in plan.decisions.seats.iter().map(|step| step.action) {
            let thread = seat.thread.0;
            match seat.pool {
                Some(pool) => {
                    if pools.pools.get(pool as usize).is_none() {
                        errors.push(format!("thread {thread} sits in pool {pool}, which does not exist"));
                    }
                    self.pool.insert(seat.thread, pool);
                }
                None => {
                    self.pool.remove(&seat.thread);
                }
            }
        }
        let mut taken: BTreeMap<u32, usize> = BTreeMap::new();
        for pool in self.pool.values() {
            *taken.entry(*pool).or_default() += 1;
        }
        for (pool, taken) in taken {
            let cpus = pools.pools.get(pool as usize).map_or(0, |pool| pool.cpus.len());
            if taken > cpus {
                errors.push(format!("{taken} threads sit in pool {pool}, which has {cpus} cpus"));
            }
        }
        for order in plan.orders.seats.iter().map(|step| &step.action) {
            self.check_order(order, &pools, machine, errors);
        }
    }

    /// Checks an order against the seats in the books.
    fn check_order(&self, order: &SeatOrder, pools: &Pools, machine: &Machine, errors: &mut Vec<String>) {
        match order {
            SeatOrder::Seat { thread, cpus: None, .. } => {
                let pool = self.pool.get(thread).and_then(|pool| pools.pools.get(*pool as usize));
                if pools.pools.len() > 1 && pool.is_some_and(|pool| pool.cpus.len() > 1) {
                    errors.push(format!("thread {} has a seat, and is not restricted to its pool", thread.0));
                }
            }
            SeatOrder::Seat { thread, cpus: Some(cpus), .. } => {
                let pool = self.pool.get(thread).and_then(|pool| pools.pools.get(*pool as usize));
                let contains_cpus = |pool: &commonhold_machine::pools::Pool| {
                    !cpus.is_empty() && cpus.iter().all(|cpu| pool.cpus.contains(&cpu))
                };
                if !pool.is_some_and(contains_cpus) {
                    errors.push(format!(
                        "thread {} is restricted to cpus {cpus}, which are not in its pool",
                        thread.0
                    ));
                }
            }
            SeatOrder::Bring { job, nodes, .. } => {
                let node_exists =
                    |part: &NodePart| part.part > 0 && machine.nodes.iter().any(|node| node.id == part.node);
                let is_repeated = |i: usize| nodes[..i].iter().any(|part| part.node == nodes[i].node);
                if nodes.is_empty() || !nodes.iter().all(node_exists) || (0..nodes.len()).any(is_repeated) {
                    let nodes: Vec<u32> = nodes.iter().map(|part| part.node).collect();
                    errors.push(format!("pages of job {} move to nodes {nodes:?}", job.0));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Reason, Seat, Step};
    use crate::snapshot::JobId;
    use alloc::vec;
    use commonhold_contract::UnitId;
    use commonhold_machine::CpuSet;

    const UNIT: UnitId = UnitId(2);

    fn seat(thread: u64, pool: Option<u32>) -> Step<Seat> {
        Step {
            action: Seat { thread: ThreadId(thread), job: JobId(1), unit: UNIT, pool },
            reason: Reason::Rests,
        }
    }

    fn order(thread: u64, cpus: Option<&[u32]>) -> Step<SeatOrder> {
        let cpus = cpus.map(|cpus| cpus.iter().copied().collect::<CpuSet>());
        let action = SeatOrder::Seat { thread: ThreadId(thread), job: JobId(1), unit: UNIT, cpus };
        Step { action, reason: Reason::Rests }
    }

    /// The errors of a plan on two pools of two CPUs.
    fn wrong(books: &mut SeatBooks, seats: Vec<Step<Seat>>, orders: Vec<Step<SeatOrder>>) -> Vec<String> {
        let machine = Machine::synthetic("nodes:2 cpus:2").unwrap();
        let mut plan = Plan::default();
        (plan.decisions.seats, plan.orders.seats) = (seats, orders);
        let mut wrong = Vec::new();
        books.replay(&Contract::default(), &machine, &plan, &mut wrong);
        wrong
    }

    #[test]
    fn a_correct_plan_passes_and_is_remembered() {
        let books = &mut SeatBooks::default();
        let seats = vec![seat(1, Some(0)), seat(2, Some(0)), seat(3, Some(1))];
        let orders = vec![order(1, Some(&[0, 1])), order(2, Some(&[1])), order(3, Some(&[2, 3]))];
        assert_eq!(wrong(books, seats, orders), [""; 0]);
        let third = wrong(books, vec![seat(4, Some(0))], vec![]);
        assert_eq!(third, ["3 threads sit in pool 0, which has 2 cpus"]);
        assert_eq!(wrong(books, vec![seat(1, None)], vec![order(1, None)]), [""; 0]);
    }

    #[test]
    fn errors_in_seats_are_reported() {
        let books = &mut SeatBooks::default();
        assert_eq!(
            wrong(books, vec![seat(1, Some(2))], vec![])[0],
            "thread 1 sits in pool 2, which does not exist"
        );
        let books = &mut SeatBooks::default();
        let elsewhere = wrong(books, vec![seat(1, Some(0))], vec![order(1, Some(&[1, 2]))]);
        assert_eq!(elsewhere, ["thread 1 is restricted to cpus 1-2, which are not in its pool"]);
        assert_eq!(
            wrong(books, vec![], vec![order(1, None)]),
            ["thread 1 has a seat, and is not restricted to its pool"]
        );
        let nodes = [0, 7].map(|node| NodePart { node, part: 1 }).to_vec();
        let bring = SeatOrder::Bring { job: JobId(1), unit: UNIT, nodes, divided: true };
        let bring = Step { action: bring, reason: Reason::PagesApart { bytes: 1 } };
        assert_eq!(wrong(books, vec![], vec![bring]), ["pages of job 1 move to nodes [0, 7]"]);
    }
}
