//! Tasks: processes of one thread each, and the jobs that they belong to.

use commonhold_contract::UnitId;
use commonhold_dispatch::TaskId;

use super::gates::{GangUse, Gate};
use super::patience::Wait;
use super::program::NEW;
use super::{Engine, NONE, number};
use crate::Time;
use crate::chance::Chance;
use crate::contention::Left;
use crate::memory::SpaceId;
use crate::scenario::LOOPS_MAX;

/// What a task does now. A state other than `Runnable` and `Ended` names what the task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskState {
    /// It runs, or waits for a CPU.
    Runnable,
    /// Waits for its timer to expire.
    Sleeping,
    /// Waits for its disk transfers.
    Transfer,
    /// Waits for pages of a file to be read into the cache.
    File,
    /// Waits for a page frame for its unit.
    Frame,
    /// Waits until less of memory is dirty.
    Throttled,
    /// Waits for a lock.
    Lock,
    /// Waits for other tasks to reach the barrier.
    Barrier,
    /// Waits for a signal of an event.
    Event,
    /// Waits for a child to end.
    Children,
    /// Waits for a dedicated CPU.
    Seat,
    /// Stopped with its job, until the job is continued.
    Stopped,
    /// It has ended; its number may be reused.
    Ended,
}

/// One process.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) program: u32,
    /// When it started.
    pub(super) begun: Time,
    /// Loop counters by depth, and when each loop that ends after a time began.
    pub(super) counters: [u32; LOOPS_MAX],
    pub(super) loops_begun: [Time; LOOPS_MAX],
    /// Index of the current op.
    pub(super) pc: u32,
    /// Progress within the op: [`NEW`], or a later stage that the op defines.
    pub(super) stage: u32,
    pub(super) state: TaskState,
    /// It waits busily, on its CPU.
    pub(super) spins: bool,
    pub(super) instance: u32,
    pub(super) parent: TaskId,
    /// The number of children that it still has to start, and of started children that have not ended.
    pub(super) to_start: u32,
    pub(super) alive: u32,
    /// The remaining work of the op, in ns alone on a CPU: up to the next touch of a page, and after that
    /// touch.
    pub(super) left: Time,
    pub(super) beyond: Time,
    /// The fraction of this work done in the kernel, in millionths; and the work's bus transactions per ms.
    pub(super) kernel: u32,
    pub(super) bus: u32,
    /// Bytes that the work reuses in the last-level cache; the fraction of a core's throughput that it uses,
    /// in millionths.
    pub(super) working: u64,
    pub(super) core: u32,
    pub(super) space: SpaceId,
    /// Pages of the task's working set that it has touched so far.
    pub(super) touched: u64,
    /// Of the current op: the remaining pages, the transfers in flight, and the next page.
    pub(super) pages: u32,
    pub(super) transfers: u32,
    pub(super) from_page: u64,
    /// Pages of a read that may have to be copied into the reader's own cache.
    pub(super) copies: u32,
    /// By file: where the next sequential access begins, in bytes.
    pub(super) positions: Vec<(u16, u64)>,
    /// By timer of its own: the last release.
    pub(super) releases: Vec<(u16, Time)>,
    /// Until when it stays on its CPU, during `Op::Busy`.
    pub(super) busy_until: Option<Time>,
    pub(super) chance: Chance,
    /// When the present wait or stop began.
    pub(super) since: Time,
    /// It has woken up, and has not had a CPU since.
    pub(super) woke: bool,
    /// When its latest sleep ended, if it has not slept again.
    pub(super) up_since: Option<Time>,
    /// The unit that it belongs to, and the unit that it runs for (see `locks.rs`).
    pub(super) unit: u32,
    pub(super) runs_for: u32,
    /// The locks with inheritance that it holds, in the order in which it took them.
    pub(super) held: Vec<u16>,
    /// How many spin locks it holds. A task that holds one keeps its CPU as long as it computes.
    pub(super) spin_locks: u32,
    /// The present wait for a CPU; `None` if the task runs or is blocked.
    pub(super) waits: Option<Wait>,
    /// The state of the last CPU's cache when the task left that CPU.
    pub(super) cache: Option<Left>,
    /// Consecutive number of the task; never reused, unlike the task's index.
    pub(super) serial: u64,
    /// The CPU that the task ran on last; before its first run, its creator's.
    pub(super) cpu: u32,
    /// It was runnable at some time since the last sample.
    pub(super) wanted: bool,
    /// Whether the policy places it.
    pub(super) is_placed: bool,
    /// Whether the task's job may run.
    pub(super) gate: Gate,
    /// What the task has used so far of the resources that gangs share.
    pub(super) gang_use: GangUse,
    /// The CPU of its seat.
    pub(super) seat: Option<u32>,
    /// The node where the task ran first, which has its data: an index into the machine's nodes.
    pub(super) data: Option<usize>,
}

/// One copy of a job.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) job: u32,
    /// The program, if each run of the program counts as a job.
    pub(crate) program: Option<u32>,
    /// The live tasks by age. A part of the data that they share is in the first task's node.
    pub(super) members: Vec<TaskId>,
    pub(crate) unit: UnitId,
    pub(super) disk: usize,
    pub(crate) started: Time,
    pub(crate) ended: Option<Time>,
    /// By the workload's number of a file: the open file's index, or [`NONE`] if the instance has not opened
    /// the file.
    pub(super) files: Vec<u32>,
    /// How many pieces of the job's work its tasks have taken.
    pub(super) pieces: u32,
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
    /// The extra time of accesses to memory of other nodes, compared with local memory. Refills after a
    /// switch count as `switch_ns`.
    pub remote_ns: u64,
    /// Spinning on a CPU for other tasks of the job.
    pub spin_ns: u64,
    /// Switches, and cache refills after them, from any node.
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
    /// Time on CPUs for the work itself, including the slowdown by contention.
    pub fn computing_ns(&self) -> u64 {
        self.work_ns + self.lock_ns + self.stall_ns + self.remote_ns
    }

    /// All time on CPUs: work, spinning and switches.
    pub fn on_cpus_ns(&self) -> u64 {
        self.computing_ns() + self.spin_ns + self.switch_ns
    }

    /// Adds the time of another task or job.
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
    /// Adds an instance for the next copy of a job. Returns the instance's index.
    pub(super) fn new_instance(&mut self, job: usize) -> u32 {
        let definition = &self.scenario.workload.jobs[job];
        self.instances.push(Instance {
            job: number(job),
            program: None,
            members: Vec::new(),
            unit: definition.unit,
            disk: definition.disk as usize,
            started: self.now,
            ended: None,
            files: vec![NONE; self.scenario.workload.files.len()],
            pieces: 0,
            spent: Spent::default(),
        });
        number(self.instances.len() - 1)
    }

    /// The instance of a run of a program: the caller's, or a new one if the program is a job.
    pub(super) fn instance_for(&mut self, program: u32, instance: u32) -> u32 {
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
            pieces: 0,
            spent: Spent::default(),
        });
        number(self.instances.len() - 1)
    }

    /// Starts a process. `parent` is [`NONE`] for the first process of a job.
    pub(super) fn spawn(&mut self, program: u32, instance: u32, parent: TaskId, chance: Chance) {
        let unit = self.instances[instance as usize].unit;
        let is_placed = self.seating.places(unit, self.instances[instance as usize].program);
        let waits_for_seat = is_placed && self.seating.is_fixed();
        let serial = self.seating.next_serial();
        let creator = self.tasks.get(parent as usize).filter(|_| parent != NONE);
        let cpu = creator.map_or(0, |creator| creator.seat.unwrap_or(creator.cpu));
        let (space, touched) = self.open_space(program, unit);
        let task = Task {
            program,
            begun: self.now,
            counters: [0; LOOPS_MAX],
            loops_begun: [0; LOOPS_MAX],
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
            space,
            touched,
            pages: 0,
            transfers: 0,
            from_page: 0,
            copies: 0,
            positions: Vec::new(),
            releases: Vec::new(),
            busy_until: None,
            chance,
            since: self.now,
            woke: false,
            up_since: None,
            unit: unit.0,
            runs_for: unit.0,
            held: Vec::new(),
            spin_locks: 0,
            waits: (!waits_for_seat).then(|| self.patience.begin(self.now, unit.0)),
            cache: None,
            serial,
            cpu,
            wanted: true,
            is_placed,
            gate: Gate::Open,
            gang_use: GangUse::default(),
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
        self.patience.task_entered(unit.0);
        if self.units.add_process(unit.0) {
            // A unit that may not borrow would have no CPU until the next policy step, a quarter of a second
            // later.
            self.advance_turn(self.now);
            self.sample_memory_next_turn();
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

    /// Makes a blocked task runnable.
    pub(super) fn wake(&mut self, id: TaskId) {
        self.count_block(id);
        let task = &mut self.tasks[id as usize];
        if matches!(task.state, TaskState::Sleeping | TaskState::Event) {
            task.up_since = Some(self.now);
        }
        task.state = TaskState::Runnable;
        task.since = self.now;
        (task.woke, task.wanted) = (true, true);
        task.waits = Some(self.patience.begin(self.now, task.runs_for));
        self.units.became_runnable(task.runs_for);
        self.kernel.wake(self.now, id);
    }

    /// Adds the time for which a task has been blocked to the sums of its instance and unit.
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

    /// At the end of the run: adds the waits in progress. During the run, a wait is added when it ends.
    pub(super) fn count_waits_in_progress(&mut self) {
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

    /// Ends a task that has done its last op: frees its memory, seat and number, and wakes a parent that
    /// waits for it.
    pub(super) fn end(&mut self, id: TaskId) {
        self.count_answer(id);
        let task = &mut self.tasks[id as usize];
        task.state = TaskState::Ended;
        let (space, parent, instance) = (task.space, task.parent, task.instance);
        let (unit, runs_for) = (task.unit, task.runs_for);
        self.kernel.end(self.now, id, Some(parent).filter(|parent| *parent != NONE));
        self.memory.close_space(space);
        self.feed_starved();
        self.units.remove_process(unit);
        self.patience.task_left(runs_for);
        self.leave_gang(id);
        self.leave_seat(id);
        self.free.push(id);
        let copy = &mut self.instances[instance as usize];
        let is_first = copy.members.first() == Some(&id);
        if is_first {
            copy.ended = Some(self.now);
        }
        copy.members.retain(|member| *member != id);
        if parent == NONE {
            let instance = &self.instances[instance as usize];
            if !self.scenario.workload.jobs[instance.job as usize].background {
                self.unfinished -= 1;
            }
            return;
        }
        let parent_task = &mut self.tasks[parent as usize];
        parent_task.alive -= 1;
        if parent_task.state == TaskState::Children {
            self.wake(parent);
        }
    }

    /// A task's timer has expired: its sleep or the time for which it may spin ends, a lock's cache line
    /// arrives, or the signal that continues it arrives.
    pub(super) fn task_event(&mut self, id: TaskId) {
        let task = &self.tasks[id as usize];
        match task.state {
            TaskState::Stopped => self.resume(id),
            _ if task.spins => {
                if !self.give_up_spinning(id) {
                    self.end_spin(id);
                }
            }
            _ => self.wake(id),
        }
    }
}
