//! What a backend observed of memory, and what it can enforce.

use alloc::vec::Vec;

use crate::time::Time;

/// What a backend can enforce for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryMeans {
    /// A unit's memory can be bounded: beyond that its own pages are taken, and it waits (memory.high); or they are taken at the
    /// next look.
    pub bounds: bool,
    /// What a unit is entitled to can be kept from others' wants (memory.min, memory.low).
    pub guarantees: bool,
    /// Pages can be taken from a unit at once (memory.reclaim).
    pub reclaim: bool,
    /// A unit that meets its bound is seen at once, whenever a look is due (memory.events).
    pub alarms: bool,
    /// Units can be told from each other when a kernel that is out of memory kills (`oom_score_adj`).
    pub kill_order: bool,
    /// The machine hands memory out itself, frame by frame.
    pub frames: Option<Frames>,
}

/// Memory that a machine hands out itself, as the kernel of seed 000 does (section 3.2): it refuses what is beyond a
/// unit's bound at the request itself, and knows exactly what each unit has. So nothing has to be taken by order, and
/// nothing is guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frames {
    /// The size of a frame, in bytes.
    pub bytes: u64,
    /// How often loans may grow, in nanoseconds.
    pub period_ns: Time,
    /// Loans are to be no larger than what comes back in time; else everything idle may be lent, as in the source.
    pub in_time: bool,
}

impl MemoryMeans {
    /// Nothing can be held.
    pub const NONE: MemoryMeans = MemoryMeans {
        bounds: false,
        guarantees: false,
        reclaim: false,
        alarms: false,
        kill_order: false,
        frames: None,
    };
}

/// The machine's memory at one moment, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryFacts {
    /// All that the kernel manages.
    pub total: u64,
    /// What the kernel keeps for itself, charged to no unit.
    pub kernel: u64,
    /// What others than units hold and would not give up without paging, charged to no unit.
    pub shared: u64,
    /// Swap space that is free.
    pub swap_free: u64,
    /// The swap area that is filled next, by any number that it keeps; 0 where nobody can tell.
    pub swap_next: u64,
    /// What a byte that is swapped out takes of the memory all the same, in thousandths: 0 unless swap is memory itself, and
    /// compressed (zram, zswap).
    pub packed_permille: u64,
    /// One per unit of the contract; units that the list has not are taken as empty.
    pub units: Vec<UnitMemory>,
}

/// One unit's memory: of its own processes, sub-units left out. Bytes, unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitMemory {
    /// Charged to it, and what is `packed`.
    pub used: u64,
    /// What its pages take that were swapped out to memory (zram): charged to no unit, so that no bound counts it.
    pub packed: u64,
    /// The part of it that belongs to no file: only swap could take it.
    pub anonymous: u64,
    /// The part of `anonymous` that is in swap as well: it only has to be dropped.
    pub swap_cached: u64,
    /// What it has in swap, in memory as well or not; 0 where the machine does not tell.
    pub swapped: u64,
    /// The part that belongs to files and must be written before it can be given up.
    pub dirty: u64,
    /// The part that the kernel keeps for it, and would not give up.
    pub kernel: u64,
    /// The part that came since the others were counted: it may be of any kind.
    pub uncounted: u64,
    /// The part that was not touched for long, if the machine can tell.
    pub cold: u64,
    /// The part of `cold` that belongs to no file: only swap could take it.
    pub cold_anonymous: u64,
    /// How often it was held at its bound since it was made.
    pub refused: u64,
    /// What came back soon after it was taken, summed since it was made.
    pub refaulted: u64,
    /// Time in which one of its processes at least waited for memory, in nanoseconds since it was made; 0 where the
    /// kernel does not tell.
    pub stalled_ns: u64,
    /// Processes that the kernel killed for want of memory, since it was made.
    pub killed: u64,
    /// What was taken from it by anybody, for its own bound or others' need, since it was made; 0 where nobody counts.
    pub reclaimed: u64,
    /// What was taken from it by order, since it was made.
    pub taken: u64,
    /// The time in which that was at work, in nanoseconds.
    pub taking_ns: u64,
    /// Whether more is being taken now; where the machine hands out frames itself.
    pub taking: bool,
    /// What its processes use without a file and is charged elsewhere: they had it before they came to the unit.
    pub elsewhere: u64,
    /// The part of `used` that is others': pages of files that their processes map too, in equal parts. An estimate; 0 where
    /// the machine does not tell.
    pub for_others: u64,
}

impl UnitMemory {
    /// The part that only has to be dropped, in files or not.
    pub fn droppable(&self) -> u64 {
        self.clean().saturating_add(self.swap_cached.min(self.anonymous))
    }

    /// Whether so much can be taken of clean pages of files, and is no more than half of these.
    pub(crate) fn has_to_drop(&self, bytes: u64) -> bool {
        self.clean() / 2 >= bytes
    }

    /// The part in files that only has to be dropped: pages of files that are as they are on disk. 0 where the machine does not tell these
    /// apart.
    pub fn clean(&self) -> u64 {
        self.used
            .saturating_sub(self.packed)
            .saturating_sub(self.anonymous)
            .saturating_sub(self.dirty)
            .saturating_sub(self.kernel)
            .saturating_sub(self.uncounted)
    }
}
