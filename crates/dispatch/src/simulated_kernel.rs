//! The kernel's part of `sched_ext`, for a simulated machine.
//!
//! This module does what Linux does around a `sched_ext` scheduler (kernel/sched/ext.c). It makes no
//! scheduling decisions. The caller passes the time to each function.
//! - When a task wakes, the module asks the scheduler to choose a CPU for the task, and then to queue it.
//! - When a CPU needs a task, the module takes the first task of the CPU's local queue. If that queue is
//!   empty, the module asks the scheduler to move a task there.
//! - When a task has used up its slice, the module asks the scheduler to queue the task again.
//! - A CPU takes a task from a queue only if the task's affinity includes the CPU ([`affinity`]).
//! - When CPUs go offline or come online, the scheduler ends and is loaded again ([`hotplug`]).
//!
//! Not simulated: other scheduling classes, tasks with migration disabled, core scheduling, and `sched_ext`'s
//! bypass mode. A slice ends exactly when it is used up, as on a kernel with a high-resolution tick; other
//! kernels end it at the next tick.
//!
//! Cost: a wake-up or a switch is O(log n) for n tasks in the queue. If an idle CPU searches for a unit that
//! may borrow it, a switch is O(units), as in the scheduler itself.

mod affinity;
mod hotplug;

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ptr;

use crate::tables::native::{Task, World};
use crate::tables::{
    Account, CPUS_MAX, Cpu, GANGS_MAX, History, NOBODY, Near, Occupancy, Own, Owned, Pairs, Recall, Rescue,
    Rescues, Rules, Setting, UNITS_MAX, Unit, WAITS_BLOCK,
};
use crate::unit_rules::UnitRules;
use crate::waits::take_pairs;

pub use hotplug::Reload;

/// A task's number: an index, reused after the task has ended.
pub type TaskId = u32;

const QUEUED: u32 = 1;
const WAKE_SYNC: u64 = 1 << 4;
const ENQ_WAKEUP: u64 = 1;
const ENQ_HEAD: u64 = 1 << 4;
const ENQ_PREEMPT: u64 = 1 << 32;
const ENQ_LAST: u64 = 1 << 41;
const DSQ_LOCAL: u64 = (1 << 63) | 2;
const DSQ_LOCAL_ON: u64 = (1 << 63) | (1 << 62);
/// `SEAT_LOOKS` in seats.h.
const SEAT_LOOKS: usize = 8;
const KICK_IDLE: u64 = 1;
const KICK_PREEMPT: u64 = 2;

unsafe extern "C" {
    fn dispatch_select_cpu(task: *mut Task, last: i32, wake_flags: u64) -> i32;
    fn dispatch_enqueue(task: *mut Task, flags: u64);
    fn dispatch_dispatch(cpu: i32, prev: *mut Task);
    fn dispatch_running(task: *mut Task);
    fn dispatch_stopping(task: *mut Task, runnable: bool);
    fn dispatch_tick(task: *mut Task);
    fn dispatch_init_task(task: *mut Task, args: *const core::ffi::c_void) -> i32;
    fn dispatch_own(owned: *mut Owned) -> i32;
    fn dispatch_set_unit(setting: *mut Setting) -> i32;
    fn dispatch_change_unit(task: *mut Task, unit: u32);
    fn dispatch_turn();
    fn dispatch_fits(task: *const Own, pool: u32, late: u64) -> bool;
    fn dispatch_enter(world: *mut World);
}

thread_local! {
    /// The simulated kernel that is calling the scheduler. The scheduler's calls back into the kernel act on
    /// it.
    static CALLER: Cell<*mut Kernel> = const { Cell::new(ptr::null_mut()) };
}

/// The configuration of a simulated kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// CPUs, numbered from 0; at most [`CPUS_MAX`].
    pub cpus: u32,
    /// Units, numbered from 0; at most [`UNITS_MAX`].
    pub units: u32,
    /// The slice of a task, in ns.
    pub slice_ns: u64,
    /// The margin for preemption, in ns. If a waking task finds no idle CPU, it preempts the task on the CPU
    /// where it ran last, provided that the running task is ahead by more CPU time than the margin. 0: a
    /// waking task never preempts.
    pub preempt_ns: u64,
    /// The groups of near CPUs: an element per CPU, or empty if distances do not matter.
    pub near: Vec<Near>,
    /// How lent CPUs are called back.
    pub recall: Recall,
    /// Whether any unit may have a discipline other than [`Discipline::Stride`].
    pub disciplined: bool,
    /// Whether tasks may have seats, in units with [`SEATS`](crate::SEATS).
    pub seated: bool,
    /// Whether tasks may be in gangs: see [`Kernel::gate`].
    pub gated: bool,
    /// The seed of the simulated kernel's random numbers.
    pub seed: u64,
}

impl Settings {
    /// Settings with the given numbers of CPUs and units, and the given slice. Lent CPUs are called back at
    /// once; everything optional is off.
    pub const fn of(cpus: u32, units: u32, slice_ns: u64) -> Settings {
        Settings {
            cpus,
            units,
            slice_ns,
            preempt_ns: 0,
            near: Vec::new(),
            recall: Recall::Now,
            disciplined: false,
            seated: false,
            gated: false,
            seed: 0,
        }
    }

    /// The usual margin for preemption: a quarter of a slice. A task that sleeps gets a credit of one slice.
    /// So a waking task that recently used less than three quarters of a slice preempts a running task that
    /// used a whole slice. But two tasks that alternate do not preempt each other all the time.
    pub const fn preempt_ns(slice_ns: u64) -> u64 {
        slice_ns / 4
    }
}

/// The usual slice, in ns. Isolation does not depend on the slice, since a call-back preempts. Within a unit,
/// a task waits for at most one slice per task ahead of it in the queue. 5 ms is short enough to be
/// unnoticeable at a keyboard, and long enough that refilling a cache after a switch (well below a
/// millisecond) costs little.
pub const SLICE_NS: u64 = 5_000_000;

/// An interrupt that makes a CPU choose its task again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kick {
    /// The CPU's number.
    pub cpu: u32,
    /// Whether the CPU's task is preempted even if its slice has not expired.
    pub preempt: bool,
}

/// An entry of a unit's queue. Entries are ordered by virtual time, the smallest first; entries of equal
/// virtual time are in the order of insertion. Virtual times are signed here, so that one just below 0 (in
/// the scheduler, a large unsigned number) is small, as in the kernel, which compares virtual times by their
/// difference.
///
/// An entry is not removed from the heap when its task leaves the queue. It is then *stale*: its serial
/// number is not that of the task's [`Position`]. Stale entries are dropped when they come first.
#[derive(Debug, Clone, Copy)]
struct Entry {
    vtime: i64,
    /// The serial number of the insertion.
    serial: u64,
    id: TaskId,
}

impl Entry {
    /// Virtual time and serial number as one number, which can be compared without a branch.
    fn key(&self) -> i128 {
        i128::from(self.vtime) << 64 | i128::from(self.serial)
    }
}

impl Ord for Entry {
    /// Reversed, since the heap is a max-heap.
    fn cmp(&self, other: &Entry) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

/// The queue that a task is in, and the task's valid entry there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    /// The serial number of the task's valid [`Entry`]; its entries with other numbers are stale. 0: the task
    /// is in no queue.
    serial: u64,
    /// The index of the queue.
    queue: u32,
}

/// One CPU's side of the kernel.
#[derive(Debug, Clone)]
struct Run {
    current: Option<TaskId>,
    /// The time until which the current task's slice was charged.
    charged: u64,
    /// Whether an interrupt that ends the current task's turn is in flight.
    preempted: bool,
    /// The CPU's local queue: tasks that run on it next, before the scheduler is asked for another.
    local: VecDeque<TaskId>,
}

/// A simulated kernel, with the scheduler loaded.
pub struct Kernel {
    /// The scheduler's view: pointers to the tables below, which never move or grow.
    world: World,
    units: Vec<Unit>,
    accounts: Vec<Account>,
    table: Vec<Cpu>,
    #[expect(dead_code, reason = "only the scheduler accesses it, through `world`")]
    histories: Vec<History>,
    #[expect(dead_code, reason = "only the scheduler accesses it, through `world`")]
    occupancies: Vec<Occupancy>,
    pairs: Vec<Pairs>,
    /// The sums of what was taken out of `pairs`.
    waits_for_others: BTreeMap<(u32, u32), u64>,
    idle: Vec<u64>,
    /// The online CPUs: a bit mask in words of 64 bits.
    online: Vec<u64>,
    masks: Vec<u64>,
    #[expect(dead_code, reason = "only the scheduler accesses it, through `world`")]
    groups: Vec<u64>,
    queued: Vec<u32>,
    waits: Vec<u32>,
    gates: Vec<u32>,
    /// While the scheduler iterates over a queue: the tasks that it has not seen yet, in reverse order. The
    /// next task is the last element.
    iteration: Vec<TaskId>,
    tasks: Vec<Task>,
    /// By task: a bit mask of CPUs in words of 64 bits; `None`: any CPU.
    affinities: Vec<Option<Box<[u64]>>>,
    positions: Vec<Position>,
    queues: Vec<BinaryHeap<Entry>>,
    runs: Vec<Run>,
    /// The serial number of the last insertion into a queue.
    last_serial: u64,
    kicks: Vec<Kick>,
    /// The CPU for which the scheduler is being called.
    cpu: u32,
}

impl Kernel {
    /// A kernel without tasks. All CPUs are idle and have no owner.
    ///
    /// # Panics
    /// If there are no CPUs, no units, or more than [`CPUS_MAX`] or [`UNITS_MAX`]. The scenario's check
    /// excludes this.
    pub fn new(settings: &Settings) -> Kernel {
        let &Settings {
            cpus,
            units,
            slice_ns,
            preempt_ns,
            ref near,
            recall,
            disciplined,
            seated,
            gated,
            seed,
        } = settings;
        assert!((1..=CPUS_MAX).contains(&cpus) && (1..=UNITS_MAX).contains(&units));
        let words = cpus.div_ceil(64);
        let mut masks = vec![0; (units as usize + 1) * 2 * words as usize];
        // All CPUs are time-shared until a unit owns them.
        let time_shared = units as usize * 2 * words as usize;
        for cpu in 0..cpus as usize {
            masks[time_shared + cpu / 64] |= 1 << (cpu % 64);
        }
        let mut idle = vec![0; words as usize];
        idle.copy_from_slice(&masks[time_shared..time_shared + words as usize]);
        let rules = Rules { slice_ns, preempt_ns, units, cpus, recall: recall as u32, pairs_half: 0 };
        let mut table: Vec<Cpu> = (0..cpus as usize)
            .map(|cpu| {
                Cpu::new(near.get(cpu).copied().unwrap_or(Near {
                    cache: NOBODY,
                    node: NOBODY,
                    socket: NOBODY,
                }))
            })
            .collect();
        let mut groups = group_masks(&table, words as usize);
        let mut unit_table: Vec<Unit> = (0..units).map(|unit| Unit::with_slices(unit, slice_ns)).collect();
        let mut accounts = vec![Account::default(); units as usize];
        let mut histories = vec![History::EMPTY; cpus as usize];
        let mut occupancies = vec![Occupancy::default(); cpus as usize * (units as usize + 1)];
        let mut pairs = vec![Pairs::EMPTY; cpus as usize];
        let mut gates = vec![0; if gated { GANGS_MAX as usize } else { 0 }];
        // A queue per unit, one per CPU, and one for the parked tasks of shut gangs.
        let mut queued = vec![0; (units + cpus + 1) as usize];
        let mut waits = vec![0; (units + units.div_ceil(WAITS_BLOCK)) as usize];
        Kernel {
            world: World {
                rules,
                now: 0,
                pass: 0,
                rescues: Rescues::default(),
                loan_pass: 0,
                units: unit_table.as_mut_ptr(),
                accounts: accounts.as_mut_ptr(),
                cpus: table.as_mut_ptr(),
                histories: histories.as_mut_ptr(),
                occupancies: occupancies.as_mut_ptr(),
                pairs: pairs.as_mut_ptr(),
                idle: idle.as_mut_ptr(),
                masks: masks.as_mut_ptr(),
                groups: groups.as_mut_ptr(),
                queued: queued.as_mut_ptr(),
                waits: waits.as_mut_ptr(),
                words,
                idling: cpus,
                here: NOBODY,
                disciplined: u32::from(disciplined),
                seated: u32::from(seated),
                away: 0,
                gated: u32::from(gated),
                unused: 0,
                gates: gates.as_mut_ptr(),
                // Never 0, whatever the seed is.
                random: (seed ^ 0x9e37_79b9_7f4a_7c15) | 1,
            },
            units: unit_table,
            accounts,
            groups,
            table,
            histories,
            occupancies,
            pairs,
            waits_for_others: BTreeMap::new(),
            online: idle.clone(),
            idle,
            masks,
            queued,
            waits,
            gates,
            iteration: Vec::new(),
            tasks: Vec::new(),
            affinities: Vec::new(),
            positions: Vec::new(),
            queues: vec![BinaryHeap::new(); (units + cpus + 1) as usize],
            runs: vec![
                Run { current: None, charged: 0, preempted: false, local: VecDeque::new() };
                cpus as usize
            ],
            last_serial: 0,
            kicks: Vec::new(),
            cpu: 0,
        }
    }

    /// Adds a task to a unit, not yet runnable. The caller chooses `id`: the next unused index, or one whose
    /// task has ended.
    pub fn start(&mut self, now: u64, id: TaskId, unit: u32) {
        let task = Task::new(id, unit, self.world.rules.cpus);
        let position = Position { serial: 0, queue: 0 };
        if id as usize == self.tasks.len() {
            self.tasks.push(task);
            self.affinities.push(None);
            self.positions.push(position);
        } else {
            self.tasks[id as usize] = task;
            self.affinities[id as usize] = None;
            self.positions[id as usize] = position;
        }
        self.call(now, 0, |kernel| {
            // SAFETY: `call` has set up the world; the task is in the table and stays there.
            unsafe { dispatch_init_task((*kernel).task(id), ptr::null()) };
        });
    }

    /// Makes a task runnable. If a CPU must therefore choose its task again, adds a [`Kick`] to
    /// [`Kernel::kicks`].
    pub fn wake(&mut self, now: u64, id: TaskId) {
        self.wake_by(now, id, 0);
    }

    /// As [`Kernel::wake`], for a task that is woken by a task about to sleep. The kernel assumes this of a
    /// task that writes into a pipe.
    pub fn wake_by_message(&mut self, now: u64, id: TaskId) {
        self.wake_by(now, id, WAKE_SYNC);
    }

    /// As [`Kernel::wake`], for a task that is woken by an interrupt on the CPU where it ran last, such as
    /// its timer. (The simulator does not use this: its workloads do not specify what wakes a task, and the
    /// wake-up counts as one from another CPU.)
    pub fn wake_by_timer(&mut self, now: u64, id: TaskId) {
        self.world.here = self.tasks[id as usize].cpu;
        self.wake_by(now, id, 0);
        self.world.here = NOBODY;
    }

    fn wake_by(&mut self, now: u64, id: TaskId, wake_flags: u64) {
        let last = self.tasks[id as usize].cpu;
        self.tasks[id as usize].scx.flags |= QUEUED;
        let pinned_to = self.only_allowed_cpu(id);
        self.call(now, last, |kernel| {
            // SAFETY: as in `start`; `kernel` is the one that the callbacks act on, and no other reference to
            // it exists.
            unsafe {
                let task = (*kernel).task(id);
                let chosen = match pinned_to {
                    Some(cpu) => cpu,
                    None => dispatch_select_cpu(task, last.cast_signed(), wake_flags).cast_unsigned(),
                };
                let chosen = (*kernel).allowed_instead_of(chosen, id);
                let is_dispatched = (*kernel).is_queued(id);
                (*task).cpu = chosen;
                if is_dispatched {
                    // The scheduler inserted it into "the local queue", which on waking is that of the chosen
                    // CPU.
                    (&mut (*kernel).runs)[chosen as usize].local.push_back(id);
                    (*kernel).take_out(id);
                    (*kernel).kick(chosen, false);
                } else {
                    dispatch_enqueue(task, ENQ_WAKEUP);
                    (*kernel).move_to_local_of(id, chosen);
                    if (*kernel).is_idle(chosen) {
                        (*kernel).kick(chosen, false);
                    }
                }
            }
        });
    }

    /// Has a CPU choose its next task, and returns that task: the current one or another. `None`: the CPU
    /// becomes idle. `runnable` says whether the current task could continue.
    pub fn schedule(&mut self, now: u64, cpu: u32, runnable: bool) -> Option<TaskId> {
        self.charge(now, cpu);
        let run = &mut self.runs[cpu as usize];
        let previous = run.current.take();
        run.preempted = false;
        let mut next = None;
        self.call(now, cpu, |kernel| {
            // SAFETY: as in `wake`.
            next = unsafe { Kernel::pick(kernel, cpu, previous, runnable) };
        });
        let run = &mut self.runs[cpu as usize];
        run.current = next;
        run.charged = now;
        if run.preempted
            && let Some(id) = next
        {
            // The CPU was called back during the choice: the interrupt preempts the chosen task as soon as it
            // runs.
            self.tasks[id as usize].scx.slice = 0;
        }
        self.set_idle(cpu, next.is_none());
        next
    }

    /// A clock tick on a CPU. Returns whether the CPU's task is preempted.
    pub fn tick(&mut self, now: u64, cpu: u32) -> bool {
        self.charge(now, cpu);
        let Some(id) = self.runs[cpu as usize].current else { return false };
        self.call(now, cpu, |kernel| {
            // SAFETY: as in `start`.
            unsafe { dispatch_tick((*kernel).task(id)) };
        });
        self.tasks[id as usize].scx.slice == 0
    }

    /// Sets the owner of a CPU; [`NOBODY`]: the CPU is time-shared.
    pub fn own(&mut self, now: u64, cpu: u32, unit: u32) {
        let mut owned = Owned { cpu, unit };
        self.call(now, cpu, |_| {
            // SAFETY: `call` has set up the world.
            unsafe { dispatch_own(&raw mut owned) };
        });
    }

    /// Sets the pool of each CPU, by number.
    pub fn set_pools(&mut self, pools: &[u32]) {
        for (cpu, pool) in self.table.iter_mut().zip(pools) {
            cpu.pool = *pool;
        }
    }

    /// Gives a task a seat in the pool of a CPU; [`NOBODY`]: takes its seat away.
    pub fn seat(&mut self, id: TaskId, cpu: u32) {
        self.tasks[id as usize].own.seat = cpu;
    }

    /// Sets the gang of a task, below [`GANGS_MAX`]; [`NOBODY`]: no gang.
    pub fn join(&mut self, id: TaskId, gang: u32) {
        self.tasks[id as usize].own.gang = gang;
    }

    /// Shuts gangs (true) or opens them. Tasks of shut gangs do not run, and do not count as waiting.
    ///
    /// # Panics
    /// If the kernel was not set up for gangs.
    pub fn gate(&mut self, now: u64, gangs: &[(u32, bool)]) {
        for (gang, shut) in gangs {
            self.gates[*gang as usize] = u32::from(*shut);
        }
        self.call(now, 0, |_| {
            // SAFETY: `call` has set up the world.
            unsafe { dispatch_turn() };
        });
    }

    /// The number of tasks that wait for their gangs' gates.
    pub fn parked(&self) -> u32 {
        self.queued[self.index_of_gates() as usize]
    }

    /// Sets a unit's rules. Returns whether they were accepted: a weight is 1 to 10,000, there are at most
    /// [`crate::DEPTH_MAX`] levels of units, and a unit with tasks or sub-units keeps its parent.
    pub fn set_unit(&mut self, now: u64, unit: u32, rules: UnitRules) -> bool {
        let mut setting = Setting::new(unit, rules);
        let mut answer = 0;
        self.call(now, 0, |_| {
            // SAFETY: `call` has set up the world.
            answer = unsafe { dispatch_set_unit(&raw mut setting) };
        });
        answer == 0
    }

    /// Moves a task to another unit. A waiting task moves to the queue of the new unit at once. A running
    /// task continues to run, but, as in the kernel, the scheduler sees it stop in the old unit and start in
    /// the new one. So each unit is charged for the CPU time that the task used while in that unit, and the
    /// scheduler knows the unit of the task on the CPU.
    pub fn move_to_unit(&mut self, now: u64, id: TaskId, unit: u32) {
        if self.tasks[id as usize].own.pays == unit {
            return;
        }
        let cpu = self.tasks[id as usize].cpu;
        let runs = self.runs[cpu as usize].current == Some(id);
        if runs {
            self.call(now, cpu, |kernel| {
                // SAFETY: as in `wake`.
                unsafe { dispatch_stopping((*kernel).task(id), true) };
            });
        }
        let waits = !runs && self.is_queued(id);
        if waits {
            self.take_out(id);
        }
        self.call(now, cpu, |kernel| {
            // SAFETY: as in `wake`.
            unsafe { dispatch_change_unit((*kernel).task(id), unit) };
        });
        if runs {
            self.call(now, cpu, |kernel| {
                // SAFETY: as in `wake`.
                unsafe { dispatch_running((*kernel).task(id)) };
            });
        } else if waits {
            self.call(now, cpu, |kernel| {
                // SAFETY: as in `wake`.
                unsafe {
                    dispatch_enqueue((*kernel).task(id), 0);
                    (*kernel).move_to_local_of(id, cpu);
                }
            });
        }
    }

    /// A CPU's task yields the rest of its turn without sleeping: the next [`Kernel::schedule`] ends the
    /// turn.
    pub fn give_turn_up(&mut self, cpu: u32) {
        if let Some(id) = self.runs[cpu as usize].current {
            self.tasks[id as usize].scx.slice = 0;
        }
    }

    /// The remaining slice of the task on a CPU, in ns; 0 on an idle CPU. `u64::MAX` for a preempted task,
    /// whose turn ends when the interrupt arrives, not when the slice expires.
    #[inline]
    pub fn slice_left(&self, now: u64, cpu: u32) -> u64 {
        let run = &self.runs[cpu as usize];
        if run.preempted {
            return u64::MAX;
        }
        run.current.map_or(0, |id| self.tasks[id as usize].scx.slice.saturating_sub(now - run.charged))
    }

    /// Appends the kicks since the previous call to `kicks`, in the order in which they were sent.
    pub fn kicks(&mut self, kicks: &mut Vec<Kick>) {
        kicks.append(&mut self.kicks);
    }

    /// Whether any CPU was kicked since the last call of [`Kernel::kicks`].
    #[inline]
    pub fn has_kicks(&self) -> bool {
        !self.kicks.is_empty()
    }

    /// The number of tasks that run or wait for a CPU.
    pub fn runnable(&self) -> u64 {
        let on_cpu = |run: &Run| u64::from(run.current.is_some()) + run.local.len() as u64;
        self.waiting() + self.runs.iter().map(on_cpu).sum::<u64>()
    }

    /// The CPU time that running tasks used and that is not booked in their units' accounts yet: a sum over
    /// all CPUs, in ns.
    pub fn uncharged(&self, now: u64) -> u64 {
        let running = self.runs.iter().zip(&self.table).filter(|(run, _)| run.current.is_some());
        running.map(|(_, cpu)| now - cpu.booked).sum()
    }

    /// The number of tasks in the units' queues and the CPUs' own queues.
    pub fn waiting(&self) -> u64 {
        self.queued[..self.index_of_gates() as usize].iter().map(|n| u64::from(*n)).sum()
    }

    /// The number of tasks in one unit's queue.
    pub fn waiting_in(&self, unit: u32) -> u32 {
        self.queued[unit as usize]
    }

    /// The unit whose task a CPU runs, or [`NOBODY`].
    pub fn runs(&self, cpu: u32) -> u32 {
        self.table[cpu as usize].runs
    }

    /// Whether the owner of a lent CPU can call it back, or has called it back.
    pub fn can_come_back(&self, cpu: u32) -> bool {
        let Cpu { home, recalled, .. } = self.table[cpu as usize];
        // The second mask of a unit is `MASK_LENT`: its home CPUs that are lent.
        let lent = (home as usize * 2 + 1) * self.world.words as usize;
        recalled != 0 || self.masks[lent + cpu as usize / 64] >> (cpu % 64) & 1 == 1
    }

    /// Whether a CPU runs a rescued task: one that got its turn because it had waited for too long.
    pub fn is_rescuing(&self, cpu: u32) -> bool {
        self.table[cpu as usize].rescue == Rescue::Runs as u32
    }

    /// A unit's account.
    pub fn account(&self, unit: u32) -> &Account {
        &self.accounts[unit as usize]
    }

    /// How long tasks of one unit waited while tasks of another had the CPU that they got, in ns, by the two
    /// units: first the one that waited. [`Account::waited_for_ns`] has the other parts of a unit's waits.
    pub fn waits_for_others(&mut self) -> &BTreeMap<(u32, u32), u64> {
        for pairs in &mut self.pairs {
            // SAFETY: the scheduler accesses the table only within `Kernel::call`.
            unsafe {
                take_pairs(pairs, 0, |waiter, runner, ns| {
                    *self.waits_for_others.entry((waiter, runner)).or_default() += ns;
                });
            }
        }
        &self.waits_for_others
    }

    /// The present state of a unit.
    pub fn unit(&self, unit: u32) -> &Unit {
        &self.units[unit as usize]
    }

    /// The owner of a CPU, or [`NOBODY`].
    pub fn home(&self, cpu: u32) -> u32 {
        self.table[cpu as usize].home
    }

    /// Calls into the scheduler. The closure gets a pointer to this kernel, not a reference, since the
    /// callbacks modify the kernel during the call.
    fn call(&mut self, now: u64, cpu: u32, act: impl FnOnce(*mut Kernel)) {
        self.cpu = cpu;
        self.world.now = now;
        let kernel: *mut Kernel = self;
        let outer = CALLER.replace(kernel);
        // SAFETY: the tables are this kernel's and outlive the call; they never grow.
        unsafe { dispatch_enter(&raw mut (*kernel).world) };
        act(kernel);
        CALLER.set(outer);
    }

    fn task(&mut self, id: TaskId) -> *mut Task {
        &raw mut self.tasks[id as usize]
    }

    /// Whether a task is in a queue of the scheduler, or was inserted into a local queue during the current
    /// call.
    fn is_queued(&self, id: TaskId) -> bool {
        self.positions[id as usize].serial != 0
    }

    fn set_idle(&mut self, cpu: u32, idle: bool) {
        let (word, bit) = (&mut self.idle[cpu as usize / 64], 1u64 << (cpu % 64));
        match (*word & bit != 0, idle) {
            (false, true) => self.world.idling += 1,
            (true, false) => self.world.idling -= 1,
            _ => {}
        }
        *word = if idle { *word | bit } else { *word & !bit };
    }

    fn is_idle(&self, cpu: u32) -> bool {
        self.idle[cpu as usize / 64] >> (cpu % 64) & 1 == 1
    }

    fn is_online(&self, cpu: u32) -> bool {
        self.online[cpu as usize / 64] >> (cpu % 64) & 1 == 1
    }

    /// Sends an interrupt to a CPU, unless the CPU is offline.
    fn kick(&mut self, cpu: u32, preempt: bool) {
        if !self.is_online(cpu) {
            return;
        }
        if preempt {
            let run = &mut self.runs[cpu as usize];
            run.preempted = true;
            if let Some(id) = run.current {
                self.tasks[id as usize].scx.slice = 0;
            }
        }
        self.kicks.push(Kick { cpu, preempt });
    }

    /// Deducts the time since the last charge from the current task's slice.
    fn charge(&mut self, now: u64, cpu: u32) {
        let run = &mut self.runs[cpu as usize];
        if let Some(id) = run.current {
            let slice = &mut self.tasks[id as usize].scx.slice;
            *slice = slice.saturating_sub(now - run.charged);
        }
        run.charged = now;
    }

    /// Chooses a CPU's next task: the kernel's `balance`, `pick_task` and `put_prev_task`. Works on a
    /// pointer, since the callbacks modify the same kernel.
    ///
    /// # Safety
    /// Within [`Kernel::call`], with its pointer.
    unsafe fn pick(
        kernel: *mut Kernel,
        cpu: u32,
        previous: Option<TaskId>,
        runnable: bool,
    ) -> Option<TaskId> {
        let at = cpu as usize;
        // SAFETY: the caller's promise; every reference made here ends before the scheduler is called.
        unsafe {
            let slice_of = |id: TaskId| (*(*kernel).task(id)).scx.slice;
            let nothing_local = || (&(*kernel).runs)[at].local.is_empty();
            let mut kept = previous;
            if let Some(id) = previous
                && !runnable
            {
                let task = (*kernel).task(id);
                (*task).scx.flags &= !QUEUED;
                dispatch_stopping(task, false);
                kept = None;
            }
            if let Some(id) = kept
                && !(*kernel).allows(id, cpu)
            {
                Kernel::move_away(kernel, id);
                kept = None;
            }
            if kept.is_some_and(|id| slice_of(id) > 0) {
                return kept;
            }
            if nothing_local() {
                let prev = kept.map_or(ptr::null_mut(), |id| (*kernel).task(id));
                dispatch_dispatch(cpu.cast_signed(), prev);
                if kept.is_some_and(|id| slice_of(id) > 0) {
                    return kept;
                }
            }
            if let Some(id) = kept {
                let last = if nothing_local() { ENQ_LAST } else { 0 };
                dispatch_stopping((*kernel).task(id), true);
                dispatch_enqueue((*kernel).task(id), last);
                (*kernel).move_to_local_of(id, cpu);
            }
            let next = (&mut (*kernel).runs)[at].local.pop_front()?;
            let task = (*kernel).task(next);
            (*task).cpu = cpu;
            if (*task).scx.slice == 0 {
                (*task).scx.slice = (*kernel).world.rules.slice_ns;
            }
            dispatch_running(task);
            Some(next)
        }
    }

    /// Puts the task into this CPU's local queue if the scheduler inserted it into "the local queue"
    /// ([`LOCAL`]).
    fn move_to_local_of(&mut self, id: TaskId, cpu: u32) {
        if self.positions[id as usize] == LOCAL {
            self.take_out(id);
            self.runs[cpu as usize].local.push_back(id);
        } else if self.positions[id as usize] == LOCAL_FIRST {
            self.take_out(id);
            self.runs[cpu as usize].local.push_front(id);
            self.kick(cpu, true);
        }
    }

    /// Removes a task from its queue. The task's entry stays in the heap, but is stale from now on.
    fn take_out(&mut self, id: TaskId) {
        let position = &mut self.positions[id as usize];
        if position.queue != NO_QUEUE {
            self.queued[position.queue as usize] -= 1;
        }
        *position = Position { serial: 0, queue: 0 };
    }

    fn insert(&mut self, id: TaskId, queue: u64, slice: u64, vtime: u64, flags: u64) {
        self.tasks[id as usize].scx.slice = slice;
        let first = flags & (ENQ_PREEMPT | ENQ_HEAD) != 0;
        if queue & DSQ_LOCAL_ON == DSQ_LOCAL_ON {
            self.put_on(id, u32::try_from(queue & u64::from(u32::MAX)).unwrap_or(NOBODY), first);
            return;
        }
        if queue == DSQ_LOCAL {
            self.positions[id as usize] = if first { LOCAL_FIRST } else { LOCAL };
            return;
        }
        self.last_serial += 1;
        let (serial, queue) = (self.last_serial, self.index_of(queue));
        self.positions[id as usize] = Position { serial, queue };
        self.queues[queue as usize].push(Entry { vtime: vtime.cast_signed(), serial, id });
        self.queued[queue as usize] += 1;
    }

    /// Inserts a task directly into the local queue of a CPU, and kicks the CPU.
    fn put_on(&mut self, id: TaskId, cpu: u32, first: bool) {
        self.positions[id as usize] = Position { serial: 0, queue: 0 };
        let local = &mut self.runs[cpu as usize].local;
        if first {
            local.push_front(id);
        } else {
            local.push_back(id);
        }
        self.kick(cpu, first);
    }

    /// Translates the scheduler's number of a queue to the queue's index in `queues` and `queued`: there the
    /// units' queues come first, then the queues of CPUs, then the queue of parked tasks.
    fn index_of(&self, queue: u64) -> u32 {
        let (queue, units) = (u32::try_from(queue).unwrap_or(NO_QUEUE), self.world.rules.units);
        match queue {
            ..UNITS_MAX => queue,
            QUEUE_OF_GATES => self.index_of_gates(),
            _ => units.saturating_add(queue - UNITS_MAX),
        }
    }

    /// The index of the queue of parked tasks, whose gangs are shut.
    fn index_of_gates(&self) -> u32 {
        self.world.rules.units + self.world.rules.cpus
    }

    /// Moves a task from a queue to the calling CPU's local queue: the first task in the queue that may run
    /// on that CPU. Returns whether the queue has such a task.
    fn move_to_local(&mut self, queue: u64) -> bool {
        let heap = self.index_of(queue) as usize;
        if self.queued[heap] == 0 {
            return false;
        }
        self.move_first(heap, usize::MAX, |_| true)
    }

    /// As [`Kernel::move_to_local`], but passes over tasks for which `fits` is false, and gives up after
    /// `looks_max` tasks.
    fn move_first(&mut self, heap: usize, looks_max: usize, fits: impl Fn(&Task) -> bool) -> bool {
        let (mut skipped, mut first_fitting) = (Vec::new(), None);
        while skipped.len() < looks_max
            && let Some(entry) = self.queues[heap].pop()
        {
            if self.is_stale(&entry) {
                continue;
            }
            if self.allows(entry.id, self.cpu) && fits(&self.tasks[entry.id as usize]) {
                first_fitting = Some(entry.id);
                break;
            }
            skipped.push(entry);
        }
        if !skipped.is_empty() {
            self.queues[heap].extend(skipped);
        }
        let Some(id) = first_fitting else { return false };
        self.take_out(id);
        self.runs[self.cpu as usize].local.push_back(id);
        true
    }

    /// Begins an iteration over the tasks of a queue, in order.
    fn begin_iteration(&mut self, queue: u64) {
        let heap = self.index_of(queue) as usize;
        let mut entries: Vec<Entry> = self.queues[heap].iter().copied().collect();
        entries.retain(|entry| !self.is_stale(entry));
        entries.sort_unstable();
        self.iteration = entries.into_iter().map(|entry| entry.id).collect();
    }

    /// The next task of the iteration, or `None` at its end.
    fn next_of_iteration(&mut self) -> Option<TaskId> {
        self.iteration.pop()
    }

    /// Whether the entry's task has left the queue since the entry was inserted.
    fn is_stale(&self, entry: &Entry) -> bool {
        self.positions[entry.id as usize].serial != entry.serial
    }

    /// The first task of a queue, and its virtual time. Drops the stale entries before that task's.
    fn first_in(&mut self, queue: u64) -> Option<(TaskId, u64)> {
        let heap = self.index_of(queue) as usize;
        while let Some(entry) = self.queues[heap].peek() {
            if !self.is_stale(entry) {
                return Some((entry.id, entry.vtime.cast_unsigned()));
            }
            self.queues[heap].pop();
        }
        None
    }
}

/// The masks of the groups of near CPUs, by number.
fn group_masks(table: &[Cpu], words: usize) -> Vec<u64> {
    let is_group = |group: &u32| *group != NOBODY;
    let count = table
        .iter()
        .flat_map(|cpu| [cpu.cache, cpu.node, cpu.socket])
        .filter(is_group)
        .max()
        .map_or(0, |last| last + 1);
    let mut masks = vec![0; count as usize * words];
    for (number, cpu) in table.iter().enumerate() {
        for group in [cpu.cache, cpu.node, cpu.socket].into_iter().filter(is_group) {
            masks[group as usize * words + number / 64] |= 1 << (number % 64);
        }
    }
    masks
}

/// As in world.h.
const QUEUE_OF_GATES: u32 = UNITS_MAX + CPUS_MAX;
const NO_QUEUE: u32 = u32::MAX;
/// The position of a task that the scheduler inserted into "the local queue" (`SCX_DSQ_LOCAL`). Whose CPU's
/// local queue is meant is known only when the scheduler's callback has returned: see
/// [`Kernel::move_to_local_of`].
const LOCAL: Position = Position { serial: u64::MAX, queue: NO_QUEUE };
/// As [`LOCAL`], for a task inserted at the head of the queue. Such a task preempts the CPU's current task.
const LOCAL_FIRST: Position = Position { serial: u64::MAX - 1, queue: NO_QUEUE };

/// The kernel that is calling the scheduler.
fn caller() -> *mut Kernel {
    CALLER.get()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn scx_bpf_dsq_insert(task: *mut Task, queue: u64, slice: u64, flags: u64) {
    // SAFETY: only the scheduler calls this, within `Kernel::call`, with a task of that kernel.
    unsafe { (*caller()).insert((*task).id, queue, slice, 0, flags) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn scx_bpf_dsq_insert_vtime(
    task: *mut Task,
    queue: u64,
    slice: u64,
    vtime: u64,
    flags: u64,
) {
    // SAFETY: as above.
    unsafe { (*caller()).insert((*task).id, queue, slice, vtime, flags) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn scx_bpf_dsq_move_to_local(queue: u64) -> bool {
    // SAFETY: as above.
    unsafe { (*caller()).move_to_local(queue) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn take_fitting(queue: u64, pool: u32, late: u64) -> bool {
    // SAFETY: as above; `fits_pool` only reads tables.
    unsafe {
        let kernel = caller();
        let heap = (*kernel).index_of(queue) as usize;
        (*kernel).move_first(heap, SEAT_LOOKS, |task| dispatch_fits(&raw const task.own, pool, late))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn first_in(queue: u64, vtime: *mut u64, weight: *mut u32) -> bool {
    // SAFETY: as above; the scheduler passes pointers to its own local variables.
    unsafe {
        let kernel = caller();
        let Some((id, first)) = (*kernel).first_in(queue) else { return false };
        *vtime = first;
        *weight = (&(*kernel).tasks)[id as usize].scx.weight;
    }
    true
}

#[unsafe(no_mangle)]
unsafe extern "C" fn scx_bpf_kick_cpu(cpu: u32, flags: u64) {
    // SAFETY: as above.
    unsafe {
        let kernel = caller();
        if flags & KICK_IDLE == 0 || (&(*kernel).runs)[cpu as usize].current.is_none() {
            (*kernel).kick(cpu, flags & KICK_PREEMPT != 0);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpf_iter_scx_dsq_new(_: *mut core::ffi::c_void, queue: u64, _: u64) -> i32 {
    // SAFETY: as above.
    unsafe { (*caller()).begin_iteration(queue) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bpf_iter_scx_dsq_next(_: *mut core::ffi::c_void) -> *mut Task {
    // SAFETY: as above; the task is in the table and stays there.
    unsafe {
        let kernel = caller();
        (*kernel).next_of_iteration().map_or(ptr::null_mut(), |id| (*kernel).task(id))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn move_from(_: *mut core::ffi::c_void, task: *mut Task, queue: u64, vtime: u64) -> bool {
    // SAFETY: as above; the task is one of the iteration, which is in a queue.
    unsafe {
        let (kernel, id, slice) = (caller(), (*task).id, (*task).scx.slice);
        (*kernel).take_out(id);
        (*kernel).insert(id, queue, slice, vtime, 0);
    }
    true
}
