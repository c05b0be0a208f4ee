//! The scheduler's tables as Rust sees them: the mirror of `intf.h` and `native/world.h`.

/// No unit, and no CPU.
pub const NOBODY: u32 = u32::MAX;
/// The unit of the kernel's own threads: runs anywhere, at once.
pub const KERNEL: u32 = 0;
/// Units that a machine can have.
pub const UNITS_MAX: u32 = 1024;
/// CPU numbers are below this.
pub const CPUS_MAX: u32 = 4096;
/// The unit of tasks that belong to no other.
pub const COMMON: u32 = 1;
/// Levels of units within units.
pub const DEPTH_MAX: u32 = 20;
/// Classes of latencies: below 1.024 us, 2.048 us, and so on, doubling; the last has no end.
pub const LATENCIES: usize = 24;
/// Units in a block of those that are counted together.
pub(crate) const WAITS_BLOCK: u32 = 32;

/// How a lent CPU is called back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Recall {
    /// The borrower is interrupted.
    Now = 0,
    /// At the next tick.
    Tick = 1,
}

/// Its idle home CPUs may run tasks of other units.
pub const LENDS: u32 = 1;
/// Its tasks may run on CPUs that others lend.
pub const BORROWS: u32 = 2;

/// Of [`COMMON`] alone: every CPU runs its tasks in turns with its owner's.
pub const ANYWHERE: u32 = 4;

/// Who of a unit's own tasks and sub-units is next: see `discipline/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Discipline {
    /// Least CPU time for its weight.
    #[default]
    Stride,
    /// At random, by weight.
    Lottery,
    /// Least decayed usage for its weight, over seconds.
    Entitlement,
    /// Least decayed usage for its weight's square, over minutes.
    Decay,
    /// First in, first out.
    Fifo,
    /// Round robin.
    Rr,
    /// Round robin with long turns.
    Batch,
    /// Time is handed out at intervals; who used less goes first.
    Job,
    /// Sub-units take turns on all CPUs at once.
    Gang,
    /// Sub-units have deadlines, of which a few may be missed.
    Dwcs,
    /// All tasks within it are equal, whatever sub-unit they are in.
    Smp,
    /// Sub-units of a higher class go first.
    Classes,
}

impl Discipline {
    /// All of them, by their numbers.
    pub const ALL: [Discipline; 12] = [
        Discipline::Stride,
        Discipline::Lottery,
        Discipline::Entitlement,
        Discipline::Decay,
        Discipline::Fifo,
        Discipline::Rr,
        Discipline::Batch,
        Discipline::Job,
        Discipline::Gang,
        Discipline::Dwcs,
        Discipline::Smp,
        Discipline::Classes,
    ];
}

/// What a discipline remembers of one that it orders.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Memory {
    mark: u64,
    at: u64,
}

/// What a unit wants under [`Discipline::Dwcs`], and how often it had that.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Deadlines {
    period: u32,
    budget: u32,
    misses: u16,
    of: u16,
    unused: u32,
    /// What became of them.
    pub had: Had,
}

/// What became of a unit's deadlines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Had {
    /// Those before which it had its budget.
    pub met: u64,
    /// Those before which it had not.
    pub missed: u64,
    /// Of these, those that were missed though no more might be.
    pub violated: u64,
}

impl std::ops::AddAssign for Had {
    fn add_assign(&mut self, other: Had) {
        self.met += other.met;
        self.missed += other.missed;
        self.violated += other.violated;
    }
}

/// What a discipline keeps of all that it orders.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Order {
    handed: u64,
    used: u64,
    at: u64,
    last: u64,
}

/// What a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitRules {
    /// The unit around it, or [`NOBODY`].
    pub parent: u32,
    /// Its part among its siblings, 1 to 10,000; the parent's own tasks together have 100.
    pub weight: u32,
    /// [`LENDS`], [`BORROWS`] and [`ANYWHERE`].
    pub flags: u32,
    /// Of an outermost unit: the CPU time, in ms, that it lent beyond what it was lent, as far as that counts in who borrows
    /// next; below 0: the other way.
    pub credit_ms: i32,
    /// That of its own tasks and its sub-units. Another than [`Discipline::Stride`] only where the scheduler was set up for that.
    pub discipline: Discipline,
    /// What it wants where [`Discipline::Dwcs`] orders it among its siblings.
    pub deadline: Deadline,
}

impl UnitRules {
    /// An outermost unit with a weight of 100.
    pub const USUAL: UnitRules = UnitRules {
        parent: NOBODY,
        weight: 100,
        flags: 0,
        credit_ms: 0,
        discipline: Discipline::Stride,
        deadline: Deadline::NONE,
    };
}

/// So much CPU time in each period; of any `of` deadlines in a row, `misses` may be missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// In ns; 0: none.
    pub period_ns: u32,
    /// In ns, no more than the period.
    pub budget_ns: u32,
    /// No more than `of`.
    pub misses: u32,
    /// 1 to 1,000.
    pub of: u32,
}

impl Deadline {
    /// None.
    pub const NONE: Deadline = Deadline { period_ns: 0, budget_ns: 0, misses: 0, of: 0 };
}

/// Which CPUs are near each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Near {
    /// The group of those that share the last-level cache, by a number of its own below twice the CPUs; [`NOBODY`]: it is
    /// no smaller than the node.
    pub cache: u32,
    /// Those of the NUMA node, likewise; [`NOBODY`]: it is the whole machine.
    pub node: u32,
}

/// What holds for the whole machine.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Rules {
    pub(crate) slice_ns: u64,
    pub(crate) preempt_ns: u64,
    pub(crate) units: u32,
    pub(crate) cpus: u32,
    pub(crate) recall: u32,
    pub(crate) unused: u32,
}

/// One unit.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Unit {
    pub(crate) parent: u32,
    pub(crate) top: u32,
    pub(crate) depth: u32,
    /// Its part among its siblings, 1 to 10,000.
    pub weight: u32,
    /// [`LENDS`], [`BORROWS`] and [`ANYWHERE`].
    pub flags: u32,
    pub(crate) below: u32,
    pub(crate) own_active: u32,
    pub(crate) active: u32,
    pub(crate) away: u32,
    pub(crate) busy: u32,
    own_busy: u32,
    discipline: u16,
    among: u16,
    number: u32,
    orders: u32,
    pub(crate) vtime: u64,
    served: u64,
    slice: u64,
    pub(crate) pass: u64,
    pub(crate) own_pass: u64,
    pub(crate) loan_pass: u64,
    credit: u64,
    pub(crate) frontier: u64,
    slow_ns: u64,
    clock_set: u64,
    clock_was: u64,
    memory: Memory,
    own_memory: Memory,
    /// Its deadlines, and what became of them.
    pub deadlines: Deadlines,
    tasks: Order,
    subs: Order,
    clocks: [u64; 4],
    /// CPUs called back.
    pub recalls: u64,
    /// From the call to the first task of its own that ran there, summed, in ns.
    pub recall_ns: u64,
    /// The longest of them.
    pub recall_ns_max: u64,
    /// How many of them took less than 1.024 us, 2.048 us, and so on, doubling; the last class has no end.
    pub recall_classes: [u32; LATENCIES],
}

impl Unit {
    /// An outermost unit of which nothing was said yet.
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
            memory: Memory::default(),
            own_memory: Memory::default(),
            deadlines: Deadlines::default(),
            tasks: Order::default(),
            subs: Order::default(),
            clocks: [0; 4],
            recalls: 0,
            recall_ns: 0,
            recall_ns_max: 0,
            recall_classes: [0; LATENCIES],
        }
    }

    /// One of the usual weight, under a scheduler with such slices.
    pub(crate) fn with_slices(number: u32, slice_ns: u64) -> Unit {
        Unit { slice: slice_ns, ..Unit::new(number) }
    }

    /// Its call-backs since the start.
    pub fn call_backs(&self) -> CallBacks {
        let classes = self.recall_classes.map(u64::from);
        CallBacks { count: self.recalls, sum_ns: self.recall_ns, max_ns: self.recall_ns_max, classes }
    }
}

/// A unit's call-backs of lent CPUs: how many, and how long they took, from the call to the first task of its own that ran
/// there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallBacks {
    /// How many.
    pub count: u64,
    /// Their times summed, in ns.
    pub sum_ns: u64,
    /// The longest, in ns.
    pub max_ns: u64,
    /// How many took less than 1.024 us, 2.048 us, and so on, doubling; the last class has no end.
    pub classes: [u64; LATENCIES],
}

impl CallBacks {
    /// By how long they took: the least of the class in ns, what it is below (nothing: the class has no end), and how many.
    pub fn classes(&self) -> impl Iterator<Item = (u64, Option<u64>, u64)> + '_ {
        self.classes.iter().enumerate().map(|(class, count)| {
            let from = if class == 0 { 0 } else { 512 << class };
            (from, (class + 1 < LATENCIES).then_some(1024 << class), *count)
        })
    }

    /// A time that this part of them (in millionths) did not exceed, in ns: the upper end of its class, and no more than
    /// the longest. Nothing where none was called back.
    pub fn within_ns(&self, millionths: u64) -> Option<u64> {
        let all: u64 = self.classes.iter().sum();
        let wanted = (all * millionths).div_ceil(1_000_000).max(1);
        let mut sum = 0;
        let class = self.classes.iter().position(|count| {
            sum += count;
            sum >= wanted
        })?;
        Some(if class + 1 < LATENCIES { self.max_ns.min(1024 << class) } else { self.max_ns })
    }
}

impl std::ops::AddAssign for CallBacks {
    fn add_assign(&mut self, other: CallBacks) {
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        for (class, count) in self.classes.iter_mut().zip(other.classes) {
            *class += count;
        }
    }
}

/// A unit's account since the start; times in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Account {
    /// Its tasks on its own CPUs.
    pub home_ns: u64,
    /// Its tasks on CPUs of others, which lent them.
    pub borrowed_ns: u64,
    /// Its tasks on CPUs of others where they had turns: those that run anywhere, or could run nowhere else.
    pub visiting_ns: u64,
    /// Its tasks on CPUs without an owner.
    pub shared_ns: u64,
    /// Others' tasks on its own CPUs, which it lent.
    pub lent_ns: u64,
    /// Others' tasks on its own CPUs where they had turns.
    pub visited_ns: u64,
    /// What its tasks waited for others of their own unit, or on time-shared CPUs for any.
    pub waited_own_ns: u64,
    /// What they waited for a CPU on loan that was called back.
    pub waited_loan_ns: u64,
    /// What they waited for real-time and deadline tasks that had their CPU, or the one where they came to run.
    pub waited_higher_ns: u64,
    /// Times that a task moved to a CPU with the same last-level cache.
    pub moved_cache: u64,
    /// Times that one moved to another of the same node.
    pub moved_node: u64,
    /// Times that one moved farther.
    pub moved_far: u64,
    /// Times that one waited on a CPU of others since its affinity allows none of the unit's.
    pub strays: u64,
    /// Times that one began to run.
    pub switches: u64,
    /// Times that one began to run out of turn, after waiting for too long.
    pub rescues: u64,
}

impl Account {
    /// CPU time of its tasks, wherever.
    pub fn used_ns(&self) -> u64 {
        self.home_ns + self.borrowed_ns + self.visiting_ns + self.shared_ns
    }
}

impl std::ops::AddAssign for Account {
    fn add_assign(&mut self, other: Account) {
        self.home_ns += other.home_ns;
        self.borrowed_ns += other.borrowed_ns;
        self.visiting_ns += other.visiting_ns;
        self.shared_ns += other.shared_ns;
        self.lent_ns += other.lent_ns;
        self.visited_ns += other.visited_ns;
        self.waited_own_ns += other.waited_own_ns;
        self.waited_loan_ns += other.waited_loan_ns;
        self.waited_higher_ns += other.waited_higher_ns;
        self.moved_cache += other.moved_cache;
        self.moved_node += other.moved_node;
        self.moved_far += other.moved_far;
        self.strays += other.strays;
        self.switches += other.switches;
        self.rescues += other.rescues;
    }
}

/// A time in which a higher class had a CPU.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Stretch {
    from: u64,
    to: u64,
    had: u64,
}

/// One CPU.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Cpu {
    pub(crate) since: u64,
    pub(crate) booked: u64,
    pub(crate) recalled: u64,
    pub(crate) vtime: u64,
    looks_at: u64,
    seeks_at: u64,
    higher: [Stretch; 8],
    pub(crate) home: u32,
    pub(crate) runs: u32,
    pub(crate) cache: u32,
    pub(crate) node: u32,
    turn: u32,
    strays: u32,
    looks: u32,
    on_loan: u32,
    pub(crate) rescue: u32,
    outranked: u32,
    stretches: u32,
    occupied: u32,
    pub(crate) pays: u32,
    unused: u32,
}

/// A CPU runs a task out of turn that had waited for too long.
pub(crate) const RESCUE_RUNS: u32 = 2;

impl Cpu {
    /// One without an owner that runs nothing.
    pub(crate) fn new(near: Near) -> Cpu {
        Cpu {
            since: 0,
            booked: 0,
            recalled: 0,
            vtime: 0,
            looks_at: 0,
            seeks_at: 0,
            higher: [Stretch { from: 0, to: 0, had: 0 }; 8],
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
            unused: 0,
        }
    }
}

/// What the scheduler keeps of a task.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Own {
    pub(crate) vtime: u64,
    placed_at: u64,
    since: u64,
    memory: Memory,
    pub(crate) unit: u32,
    state: u16,
    cause: u8,
    placed: u8,
    cpu: u32,
    at: u32,
    destined: u32,
    heir: u32,
    base: u32,
    pub(crate) pays: u32,
}

/// The kernel's side of a task.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Task {
    pub(crate) slice: u64,
    pub(crate) flags: u32,
    pub(crate) weight: u32,
    pub(crate) own: Own,
    pub(crate) id: u32,
    pub(crate) cpu: u32,
    pub(crate) nr_cpus_allowed: i32,
    unused: u32,
    pub(crate) allowed: *const u64,
}

impl Task {
    pub(crate) fn new(id: u32, unit: u32, cpus: u32) -> Self {
        Task {
            slice: 0,
            flags: 0,
            weight: 100,
            own: Own { unit, ..Own::default() },
            id,
            cpu: 0,
            nr_cpus_allowed: i32::try_from(cpus).unwrap_or(i32::MAX),
            unused: 0,
            allowed: core::ptr::null(),
        }
    }
}

/// Whose tasks are rescued, and when.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Rescues {
    at: u64,
    unit: u32,
    given: u32,
}

/// One simulated machine's tables.
#[repr(C)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) now: u64,
    pub(crate) pass: u64,
    pub(crate) rescues: Rescues,
    pub(crate) loan_pass: u64,
    pub(crate) units: *mut Unit,
    pub(crate) accounts: *mut Account,
    pub(crate) cpus: *mut Cpu,
    pub(crate) idle: *mut u64,
    pub(crate) masks: *mut u64,
    pub(crate) groups: *mut u64,
    pub(crate) queued: *mut u32,
    pub(crate) waits: *mut u32,
    pub(crate) words: u32,
    pub(crate) idling: u32,
    pub(crate) here: u32,
    pub(crate) disciplined: u32,
    pub(crate) random: u64,
}

/// The argument of `dispatch_own`.
#[repr(C)]
pub(crate) struct Owned {
    pub(crate) cpu: u32,
    pub(crate) unit: u32,
}

/// The argument of `dispatch_set_unit`.
#[repr(C)]
pub(crate) struct Setting {
    pub(crate) unit: u32,
    pub(crate) parent: u32,
    pub(crate) weight: u32,
    pub(crate) flags: u32,
    pub(crate) credit_ms: i32,
    pub(crate) discipline: u32,
    pub(crate) period: u32,
    pub(crate) budget: u32,
    pub(crate) misses: u32,
    pub(crate) of: u32,
}

impl Setting {
    pub(crate) fn new(unit: u32, rules: UnitRules) -> Setting {
        let UnitRules { parent, weight, flags, credit_ms, discipline, deadline } = rules;
        let Deadline { period_ns: period, budget_ns: budget, misses, of } = deadline;
        Setting {
            unit,
            parent,
            weight,
            flags,
            credit_ms,
            discipline: discipline as u32,
            period,
            budget,
            misses,
            of,
        }
    }

    /// As the kernel takes it.
    #[cfg(feature = "kernel")]
    pub(crate) fn words(&self) -> [u32; 10] {
        let &Setting { unit, parent, weight, flags, credit_ms, discipline, period, budget, misses, of } =
            self;
        [unit, parent, weight, flags, credit_ms.cast_unsigned(), discipline, period, budget, misses, of]
    }
}

const _: () = assert!(size_of::<Setting>() == 40);
const _: () = assert!(size_of::<Rules>() == 32);
const _: () = assert!(size_of::<Unit>() == 432);
const _: () = assert!(size_of::<Account>() == 120);
const _: () = assert!(size_of::<Cpu>() == 296);
const _: () = assert!(size_of::<Own>() == 72);
const _: () = assert!(size_of::<Task>() == 112);
const _: () = assert!(size_of::<World>() == 160);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_call_backs_took_no_longer_than_its_class_ends() {
        let mut some = CallBacks { count: 100, sum_ns: 0, max_ns: 5_000_000, classes: [0; LATENCIES] };
        assert_eq!(some.within_ns(500_000), None);
        (some.classes[3], some.classes[10], some.classes[LATENCIES - 1]) = (50, 49, 1);
        assert_eq!(some.within_ns(500_000), Some(8_192));
        assert_eq!(some.within_ns(990_000), Some(1_048_576));
        assert_eq!(some.within_ns(1_000_000), Some(5_000_000));
        let classes: Vec<_> = some.classes().filter(|(_, _, count)| *count > 0).collect();
        assert_eq!(
            classes,
            [(4_096, Some(8_192), 50), (524_288, Some(1_048_576), 49), (4_294_967_296, None, 1)]
        );
        assert_eq!(some.classes().next(), Some((0, Some(1_024), 0)));
        // No class reaches beyond the longest.
        some.max_ns = 1_000_000;
        assert_eq!(some.within_ns(990_000), Some(1_000_000));
    }
}
