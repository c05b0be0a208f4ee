//! The initial values of the tables' entries.

use super::native::{Entity, Task};
use super::{
    Cpu, Deadlines, History, INTERVALS, Interval, LATENCIES, Memory, NOBODY, Order, Own, PAIRS, Pair, Pairs,
    RANKS, STRETCHES, Stretch, Unit,
};

/// Which CPUs are near each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Near {
    /// The number, below twice the number of CPUs, of the group of CPUs that share the last-level cache;
    /// [`NOBODY`]: that group is the whole node.
    pub cache: u32,
    /// The number of the group of CPUs of the NUMA node; [`NOBODY`]: that group is the whole machine.
    pub node: u32,
    /// The number of the group of CPUs of the socket; [`NOBODY`]: that group is one node, or the whole
    /// machine.
    pub socket: u32,
}

impl Unit {
    /// An outermost unit with the default rules, a weight of 100 and no flags.
    pub fn new(number: u32) -> Unit {
        Unit {
            parent: NOBODY,
            top: number,
            depth: 0,
            weight: 100,
            flags: 0,
            below: 0,
            own_active: 0,
            active: 0,
            away: 0,
            busy: 0,
            own_busy: 0,
            discipline: 0,
            among: 0,
            number,
            orders: number,
            vtime: 0,
            served: 0,
            slice: 0,
            pass: 0,
            own_pass: 0,
            loan_pass: 0,
            credit: 0,
            frontier: 0,
            slow_ns: 0,
            clock_set: 0,
            clock_was: 0,
            old: 0,
            overdue: 0,
            memory: Memory::default(),
            own_memory: Memory::default(),
            deadlines: Deadlines::default(),
            tasks: Order::default(),
            subs: Order::default(),
            clocks: [0; RANKS],
            recalls: 0,
            recall_ns: 0,
            recall_ns_max: 0,
            recall_classes: [0; LATENCIES],
        }
    }

    /// The unit in a scheduler that is loaded again: only its counters remain.
    pub(crate) fn reloaded(&self, slice_ns: u64) -> Unit {
        Unit {
            deadlines: Deadlines { had: self.deadlines.had, ..Deadlines::default() },
            recalls: self.recalls,
            recall_ns: self.recall_ns,
            recall_ns_max: self.recall_ns_max,
            recall_classes: self.recall_classes,
            ..Unit::with_slices(self.number, slice_ns)
        }
    }

    /// A unit with the default rules, under a scheduler with slices of `slice_ns`.
    pub(crate) fn with_slices(number: u32, slice_ns: u64) -> Unit {
        Unit { slice: slice_ns, ..Unit::new(number) }
    }
}

impl Cpu {
    /// The CPU in a scheduler that is loaded again: only the latest interval in which a unit had it remains.
    pub(crate) fn reloaded(&self) -> Cpu {
        let near = Near { cache: self.cache, node: self.node, socket: self.socket };
        let (had_from, had_until, had_by) = (self.had_from, self.had_until, self.had_by);
        Cpu { had_from, had_until, had_by, ..Cpu::new(near) }
    }

    /// A CPU without an owner that runs nothing.
    pub(crate) fn new(near: Near) -> Cpu {
        Cpu {
            since: 0,
            booked: 0,
            recalled: 0,
            in_vain: 0,
            vtime: 0,
            looks_at: 0,
            seeks_at: 0,
            higher: [Stretch { from: 0, to: 0, had: 0 }; STRETCHES],
            had_from: 0,
            had_until: 0,
            home: NOBODY,
            runs: NOBODY,
            cache: near.cache,
            node: near.node,
            turn: 0,
            strays: 0,
            looks: 0,
            on_loan: 0,
            rescue: 0,
            outranked: 0,
            stretches: 0,
            occupied: 0,
            pays: NOBODY,
            socket: near.socket,
            pool: NOBODY,
            apart: 0,
            wanted: NOBODY,
            gang: NOBODY,
            had_by: NOBODY,
            unused: 0,
        }
    }
}

impl Own {
    /// The task in a scheduler that is loaded again: only its unit remains.
    pub(crate) fn reloaded(&self) -> Own {
        Own { unit: self.pays, ..Own::default() }
    }
}

impl History {
    /// A history without intervals.
    pub(crate) const EMPTY: History = History {
        intervals: [Interval { from: 0, until: 0, had: 0, all: 0, before: 0, unit: 0, unused: 0 }; INTERVALS],
        count: 0,
        unused: 0,
    };
}

impl Pairs {
    /// A table without pairs.
    pub(crate) const EMPTY: Pairs =
        Pairs { used: [0; 2], halves: [[Pair { key: 0, unused: 0, ns: 0 }; PAIRS]; 2] };
}

impl Task {
    /// A task that is not runnable, has no affinity, and ran last on CPU 0 of a machine of `cpus` CPUs.
    pub(crate) fn new(id: u32, unit: u32, cpus: u32) -> Self {
        Task {
            scx: Entity { slice: 0, flags: 0, weight: 100 },
            own: Own { unit, ..Own::default() },
            id,
            cpu: 0,
            nr_cpus_allowed: i32::try_from(cpus).unwrap_or(i32::MAX),
            unused: 0,
            allowed: core::ptr::null(),
        }
    }
}
