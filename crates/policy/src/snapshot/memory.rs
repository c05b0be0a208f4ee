//! The facts that a backend observed about memory, and the orders that it can carry out for memory.

use alloc::vec::Vec;

use crate::time::Time;

/// The kinds of order about memory that a backend can carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryMeans {
    /// A unit's memory can be bounded. Beyond the bound, the unit's own pages are reclaimed: at once, while
    /// the unit stalls (memory.high), or at the next sample.
    pub bounds: bool,
    /// A unit's memory can be protected from reclaim for others (memory.min, memory.low).
    pub guarantees: bool,
    /// Pages can be reclaimed from a unit immediately (memory.reclaim).
    pub reclaim: bool,
    /// A unit that reaches its bound triggers a turn immediately (memory.events).
    pub alarms: bool,
    /// The order in which the out-of-memory killer chooses among units can be set (`oom_score_adj`).
    pub kill_order: bool,
    /// The machine allocates memory frame by frame itself.
    pub frames: Option<Frames>,
}

/// Memory that a machine allocates itself, like the kernel of seed 000 (section 3.2): it refuses requests
/// beyond a unit's bound, and knows exactly what each unit has. So no pages need to be reclaimed by order,
/// and nothing is estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frames {
    /// The size of a frame, in bytes.
    pub bytes: u64,
    /// The shortest interval between increases of loans, in nanoseconds.
    pub period_ns: Time,
    /// Whether loans are limited to what can be called back in time; otherwise all idle memory may be lent,
    /// as in the source.
    pub in_time: bool,
}

impl MemoryMeans {
    /// No means.
    pub const NONE: MemoryMeans = MemoryMeans {
        bounds: false,
        guarantees: false,
        reclaim: false,
        alarms: false,
        kill_order: false,
        frames: None,
    };
}

/// The machine's memory at one sample, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryFacts {
    /// All memory that the kernel manages.
    pub total: u64,
    /// Kernel memory charged to no unit.
    pub kernel: u64,
    /// Memory of processes outside all units that only paging could free.
    pub shared: u64,
    /// Free swap space.
    pub swap_free: u64,
    /// An identifier of the swap area that is filled next; 0 if unknown.
    pub swap_next: u64,
    /// Memory that a swapped-out byte still takes, in thousandths: 0 unless swap is compressed memory (zram,
    /// zswap).
    pub packed_permille: u64,
    /// Indexed by unit; units beyond its end count as empty.
    pub units: Vec<UnitMemory>,
}

/// A unit's memory, sub-units excluded. In bytes unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitMemory {
    /// Memory charged to the unit, plus `packed`.
    pub used: u64,
    /// Memory taken by the unit's compressed swap (zram). The kernel charges it to no unit, so no bound
    /// limits it.
    pub packed: u64,
    /// The part of `used` without a file: only swapping could free it.
    pub anonymous: u64,
    /// The part of `anonymous` with a valid copy in swap: it can be dropped.
    pub swap_cached: u64,
    /// Its pages in swap, whether also in memory or not; 0 if the machine does not report it.
    pub swapped: u64,
    /// File pages that must be written before they can be freed.
    pub dirty: u64,
    /// Unreclaimable kernel memory on its behalf.
    pub kernel: u64,
    /// Growth of `used` since the last sample of its parts: memory of unknown kind.
    pub uncounted: u64,
    /// The part not accessed for a long time, if the machine can tell.
    pub cold: u64,
    /// The part of `cold` without a file.
    pub cold_anonymous: u64,
    /// How often the unit was stopped at its bound, since its creation.
    pub refused: u64,
    /// Bytes refaulted soon after reclaim, since its creation.
    pub refaulted: u64,
    /// Time in which at least one of its processes was stalled for memory, in nanoseconds since its creation;
    /// 0 if the kernel does not report it.
    pub stalled_ns: u64,
    /// Processes killed because memory ran out, since its creation.
    pub killed: u64,
    /// Bytes reclaimed from it for any reason, since its creation; 0 if not counted.
    pub reclaimed: u64,
    /// Bytes reclaimed from the unit by order, since its creation.
    pub taken: u64,
    /// Time spent on reclaiming these, in nanoseconds.
    pub taking_ns: u64,
    /// Whether reclaim is in progress, on a machine that allocates frames itself.
    pub taking: bool,
    /// Anonymous memory of its processes that is charged elsewhere, since they allocated it before joining
    /// the unit.
    pub elsewhere: u64,
    /// The part of `used` attributed to other units: file pages that their processes also map, in equal
    /// parts. An estimate; 0 if the machine does not report sharing.
    pub for_others: u64,
}

impl UnitMemory {
    /// The bytes that can be freed without writing: clean file pages, and anonymous pages with a copy in
    /// swap.
    pub fn droppable(&self) -> u64 {
        self.clean().saturating_add(self.swap_cached.min(self.anonymous))
    }

    /// Whether `bytes` can be freed by dropping at most half of the clean file pages.
    pub(crate) fn has_to_drop(&self, bytes: u64) -> bool {
        self.clean() / 2 >= bytes
    }

    /// The bytes in clean file pages; 0 if the machine does not report such pages separately.
    pub fn clean(&self) -> u64 {
        self.used
            .saturating_sub(self.packed)
            .saturating_sub(self.anonymous)
            .saturating_sub(self.dirty)
            .saturating_sub(self.kernel)
            .saturating_sub(self.uncounted)
    }
}
