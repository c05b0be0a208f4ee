//! Tasks: processes of one thread each, and the jobs that they belong to.

use commonhold_contract::UnitId;
use commonhold_dispatch::TaskId;

use super::gates::{Gate, Had};
use super::patience::Wait;
use super::program::NEW;
use super::{Engine, NONE, number};
use crate::Time;
use crate::chance::Chance;
use crate::contention::Left;
use crate::memory::SpaceId;
use crate::scenario::LOOPS_MAX;

/// What a task does. Most states name what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskState {
    /// It runs, or waits for a CPU.
    Runnable,
    /// Until its timer goes off.
    Sleeping,
    /// Until its transfers are done.
    Transfer,
    /// Until pages of a file have arrived.
    File,
    /// Until its unit has a frame for it.
    Frame,
    /// Until less of memory is dirty.
    Throttled,
    /// Until a lock is granted to it.
    Lock,
    /// Until the other tasks have reached the barrier.
    Barrier,
    /// Until a child has ended.
    Children,
    /// Until it has a CPU of its own.
    Seat,
    /// Until its job, which was stopped, is continued.
    Stopped,
    /// It has ended; its number may be reused.
    Ended,
}

/// One process.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) program: u16,
    /// Loop counters by depth.
    pub(super) counters: [u32; LOOPS_MAX],
    /// Index of the op that it is at.
    pub(super) pc: u32,
    /// How far it is within the op: [`NEW`], or a later stage that the op defines.
    pub(super) stage: u32,
    pub(super) state: TaskState,
    /// It waits busily, on its CPU.
    pub(super) spins: bool,
    pub(super) instance: u32,
    pub(super) parent: TaskId,
    /// Children that it still has to start, and those that have not ended.
    pub(super) to_start: u32,
    pub(super) alive: u32,
    /// The work that it still computes, in ns alone on a CPU: until the next page that it touches, and after it.
    pub(super) left: Time,
    pub(super) beyond: Time,
    /// The kernel's part of this work, in millionths; bus transactions per ms.
    pub(super) kernel: u32,
    pub(super) bus: u32,
    /// Bytes that it reuses in the last-level cache; the part of a core that it uses, in millionths.
    pub(super) working: u64,
    pub(super) core: u32,
    pub(super) space: SpaceId,
    /// Pages of its working set that it has touched so far.
    pub(super) touched: u64,
    /// Of its op: pages that are left, transfers in flight, and the next page.
    pub(super) pages: u32,
    pub(super) transfers: u32,
    pub(super) from_page: u64,
    /// Pages of a read that may have to be copied into the reader's own cache.
    pub(super) copies: u32,
    /// Where its next sequential access to a file begins, in bytes.
    pub(super) positions: Vec<(u16, u64)>,
    pub(super) chance: Chance,
    /// When its present wait began.
    pub(super) since: Time,
    /// It woke, and has had no CPU since.
    pub(super) woke: bool,
    /// When its latest sleep ended, if it has not slept again.
    pub(super) up_since: Option<Time>,
    /// The unit that it belongs to, and the one that it runs for.
    pub(super) unit: u32,
    pub(super) runs_for: u32,
    /// The locks with inheritance that it holds, in the order in which it took them.
    pub(super) held: Vec<u16>,
    /// How many spin locks it holds. While it holds any and computes, it keeps its CPU.
    pub(super) keeps: u32,
    /// Its wait for a CPU, if it waits for one.
    pub(super) waits: Option<Wait>,
    /// The cache of the CPU that it ran on last, as it left it.
    pub(super) cache: Option<Left>,
    /// Its number in the order in which tasks came.
    pub(super) serial: u64,
    /// The CPU that it ran on last; before it ran, its creator's.
    pub(super) cpu: u32,
    /// It was runnable at some time since the last sample.
    pub(super) wanted: bool,
    /// Whether the policy places it.
    pub(super) is_placed: bool,
    /// Whether its job may run, and what it had used of the resources that gangs share.
    pub(super) gate: Gate,
    pub(super) had: Had,
    /// The CPU of its seat.
    pub(super) seat: Option<u32>,
    /// The node of its data, as its place among the nodes: where it ran first.
    pub(super) data: Option<usize>,
}

/// One copy of a job.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) job: u32,
    /// The program, if each run of it counts as a job.
    pub(crate) program: Option<u16>,
    /// Its tasks, the first one first: a part of the data that they share is in that one's node.
    pub(super) members: Vec<TaskId>,
    pub(crate) unit: UnitId,
    pub(super) disk: usize,
    pub(crate) started: Time,
    pub(crate) ended: Option<Time>,
    /// Its files, by the workload's number; [`NONE`] where it has not opened it.
    pub(super) files: Vec<u32>,
    /// Where the CPU time of its tasks went, in ns.
    pub(crate) spent: Spent,
}

/// Where CPU time went, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Spent {
    /// Work, as if alone on the machine.
    pub work_ns: u64,
    /// Spinning for the kernel's lock.
    pub lock_ns: u64,
    /// Waiting for memory that other CPUs had in their caches, or for the bus, or for interrupts to end.
    pub stall_ns: u64,
    /// Waiting for memory of other nodes for longer than for that of its own; but see `switch_ns`.
    pub remote_ns: u64,
    /// Waiting on a CPU for other tasks of the job.
    pub spin_ns: u64,
    /// Switches, and cache refills from wherever they come.
    pub switch_ns: u64,
    /// Runnable without a CPU.
    pub waited_ns: u64,
    /// Blocked: on disks, memory, locks and each other.
    pub blocked_ns: u64,
    /// Page faults that needed a disk.
    pub faults: u64,
    /// Transactions over the memory bus, in millionths.
    #[serde(skip_serializing_if = "is_nothing")]
    pub transferred: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands in a reference")]
fn is_nothing(count: &u64) -> bool {
    *count == 0
}

impl Spent {
    /// Time on CPUs for the work itself, with what hindered it.
    pub fn computing_ns(&self) -> u64 {
        self.work_ns + self.lock_ns + self.stall_ns + self.remote_ns
    }

    /// All time on CPUs: for the work, waiting there for locks, and switches.
    pub fn on_cpus_ns(&self) -> u64 {
        self.computing_ns() + self.spin_ns + self.switch_ns
    }

    /// Adds what another task, or job, spent.
    pub fn add(&mut self, other: &Spent) {
        self.work_ns += other.work_ns;
        self.lock_ns += other.lock_ns;
        self.stall_ns += other.stall_ns;
        self.remote_ns += other.remote_ns;
        self.spin_ns += other.spin_ns;
        self.switch_ns += other.switch_ns;
        self.waited_ns += other.waited_ns;
        self.blocked_ns += other.blocked_ns;
        self.faults += other.faults;
        self.transferred += other.transferred;
    }
}

impl Engine<'_> {
    pub(super) fn new_instance(&mut self, job: usize) -> u32 {
        let what = &self.scenario.workload.jobs[job];
        self.instances.push(Instance {
            job: number(job),
            program: None,
            members: Vec::new(),
            unit: what.unit,
            disk: what.disk as usize,
            started: self.now,
            ended: None,
            files: vec![NONE; self.scenario.workload.files.len()],
            spent: Spent::default(),
        });
        number(self.instances.len() - 1)
    }

    /// The instance of a run of a program: the caller's, or a new one if the program is a job.
    pub(super) fn instance_for(&mut self, program: u16, instance: u32) -> u32 {
        if !self.scenario.workload.programs[program as usize].is_job {
            return instance;
        }
        let Instance { job, unit, disk, .. } = self.instances[instance as usize];
        let files = vec![NONE; self.scenario.workload.files.len()];
        self.instances.push(Instance {
            job,
            program: Some(program),
            members: Vec::new(),
            unit,
            disk,
            started: self.now,
            ended: None,
            files,
            spent: Spent::default(),
        });
        number(self.instances.len() - 1)
    }

    /// Starts a process.
    pub(super) fn spawn(&mut self, program: u16, instance: u32, parent: TaskId, chance: Chance) {
        let unit = self.instances[instance as usize].unit;
        let is_placed = self.seating.places(unit, self.instances[instance as usize].program);
        let waits_for_seat = is_placed && self.seating.is_fixed();
        let serial = self.seating.came();
        let creator = self.tasks.get(parent as usize).filter(|_| parent != NONE);
        let cpu = creator.map_or(0, |creator| creator.seat.unwrap_or(creator.cpu));
        let task = Task {
            program,
            counters: [0; LOOPS_MAX],
            pc: 0,
            stage: NEW,
            state: TaskState::Runnable,
            spins: false,
            instance,
            parent,
            to_start: 0,
            alive: 0,
            left: 0,
            beyond: 0,
            kernel: 0,
            bus: 0,
            working: 0,
            core: 0,
            space: self.memory.open_space(unit, self.scenario.workload.programs[program as usize].reuse_ns),
            touched: 0,
            pages: 0,
            transfers: 0,
            from_page: 0,
            copies: 0,
            positions: Vec::new(),
            chance,
            since: self.now,
            woke: false,
            up_since: None,
            unit: unit.0,
            runs_for: unit.0,
            held: Vec::new(),
            keeps: 0,
            waits: (!waits_for_seat).then(|| self.patience.begin(self.now, unit.0)),
            cache: None,
            serial,
            cpu,
            wanted: true,
            is_placed,
            gate: Gate::Open,
            had: Had::default(),
            seat: None,
            data: None,
        };
        let id = if let Some(id) = self.free.pop() {
            self.tasks[id as usize] = task;
            id
        } else {
            self.tasks.push(task);
            number(self.tasks.len() - 1)
        };
        self.instances[instance as usize].members.push(id);
        self.kernel.start(self.now, id, unit.0, Some(parent).filter(|parent| *parent != NONE));
        self.patience.came(unit.0);
        if self.units.came(unit.0) {
            // A unit that may not borrow would have no CPU until the next policy step, a quarter of a second later.
            self.turn_by(self.now);
            self.memory_is_due();
        }
        if is_placed {
            self.seating.enter(serial, id);
        }
        if waits_for_seat {
            self.await_seat(id);
        } else {
            self.kernel.wake(self.now, id);
        }
        self.stop_with_its_job(id);
    }

    /// A task that was blocked can go on.
    pub(super) fn wake(&mut self, id: TaskId) {
        self.count_block(id);
        let task = &mut self.tasks[id as usize];
        if task.state == TaskState::Sleeping {
            task.up_since = Some(self.now);
        }
        task.state = TaskState::Runnable;
        task.since = self.now;
        (task.woke, task.wanted) = (true, true);
        task.waits = Some(self.patience.begin(self.now, task.runs_for));
        self.units.became_runnable(task.runs_for);
        self.kernel.wake(self.now, id);
    }

    /// Counts for how long a task has been blocked.
    fn count_block(&mut self, id: TaskId) {
        let task = &self.tasks[id as usize];
        debug_assert!(!matches!(task.state, TaskState::Runnable | TaskState::Ended));
        let blocked = self.now - task.since;
        self.instances[task.instance as usize].spent.blocked_ns += blocked;
        if task.state == TaskState::Frame {
            self.loans.waited(task.unit, blocked);
        }
        self.stall_ends(id);
    }

    /// At the end of the run: counts waits in progress, which are otherwise counted when they end.
    pub(super) fn count_waits_that_go_on(&mut self) {
        for id in 0..number(self.tasks.len()) {
            let task = &self.tasks[id as usize];
            match task.state {
                TaskState::Runnable if task.waits.is_some() => {
                    self.instances[task.instance as usize].spent.waited_ns += self.now - task.since;
                }
                TaskState::Stopped => {
                    self.instances[task.instance as usize].spent.waited_ns += self.now - task.since;
                }
                TaskState::Runnable | TaskState::Ended => {}
                _ => self.count_block(id),
            }
        }
    }

    /// A task has done its last op.
    pub(super) fn end(&mut self, id: TaskId) {
        self.count_answer(id);
        let task = &mut self.tasks[id as usize];
        task.state = TaskState::Ended;
        let (space, parent, instance) = (task.space, task.parent, task.instance);
        let (unit, runs_for) = (task.unit, task.runs_for);
        self.kernel.end(self.now, id, Some(parent).filter(|parent| *parent != NONE));
        self.memory.close_space(space);
        self.feed_starved();
        self.units.went(unit);
        self.patience.went(runs_for);
        self.leave_gang(id);
        self.leave_seat(id);
        self.free.push(id);
        let whole = &mut self.instances[instance as usize];
        let is_first = whole.members.first() == Some(&id);
        if is_first {
            whole.ended = Some(self.now);
        }
        whole.members.retain(|member| *member != id);
        if parent == NONE {
            let instance = &self.instances[instance as usize];
            if !self.scenario.workload.jobs[instance.job as usize].background {
                self.unfinished -= 1;
            }
            return;
        }
        let above = &mut self.tasks[parent as usize];
        above.alive -= 1;
        if above.state == TaskState::Children {
            self.wake(parent);
        }
    }

    /// A sleep has ended, or a lock's cache line has arrived.
    pub(super) fn task_event(&mut self, id: TaskId) {
        let task = &self.tasks[id as usize];
        match task.state {
            TaskState::Stopped => self.resume(id),
            _ if task.spins => self.end_spin(id),
            _ => self.wake(id),
        }
    }
}
