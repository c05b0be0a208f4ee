//! Carries out a plan's orders about jobs: where their tasks run, and where their pages go.
//!
//! To the policy, a job is a run of a program with `job = true`. In a workload without such programs, its own
//! jobs are.
//!
//! Under the project's scheduler a seat is a preference, as on a live machine (`dispatch/src/seats.h`). The
//! daemon's loop sees a new task at its next sample; until then the task has no seat. Pages that a plan moves
//! to other nodes arrive after the time that copying them takes.
//!
//! Under Hurricane's scheduler, each task has a dedicated CPU. A new task of a unit that has jobs waits until
//! a plan gives it a pool. The loop takes a turn for that at once, like the call to the scheduling server in
//! seed 001, section 3. The task gets a random free CPU of its pool, until it ends or a plan moves it to
//! another pool. If no pool has a free CPU, the first task of a job keeps waiting, and any other task ends
//! without having run. Pages stay where they are, as on Hurricane.
//!
//! Limits: copying pages takes no CPU time from any task.

use std::collections::BTreeMap;

use commonhold_contract::{Gangs, JobKind, UnitId};
use commonhold_dispatch::TaskId;
use commonhold_machine::CpuSet;
use commonhold_policy::plan::{NodePart, Plan, SeatOrder};
use commonhold_policy::{JobFacts, JobId, Seats, ThreadFacts, ThreadId};

use super::Engine;
use super::gates::GangUse;
use super::task::TaskState;
use crate::Time;
use crate::chance::Chance;
use crate::contention::Sharer;
use crate::memory::SpaceId;
use crate::scenario::{Scenario, Scheduler};

/// Bytes that `migrate_pages(2)` copies in a nanosecond.
const COPIED_PER_NS: u64 = 1;

/// Which CPUs are taken, and by which tasks.
#[derive(Debug)]
pub(super) struct Seating {
    /// Which orders about seats the scheduler can carry out.
    means: Seats,
    /// Whether jobs are gangs.
    gangs: bool,
    /// By unit: what counts as a job of the unit; `None` if its tasks are not placed.
    kinds: Vec<Option<JobKind>>,
    /// Whether some program is a job; then only runs of such programs are placed.
    only_programs: bool,
    /// The number of tasks started so far, which is the latest task's serial number.
    started: u64,
    /// The live tasks that the policy places, by serial number.
    by_serial: BTreeMap<u64, TaskId>,
    /// The task that each CPU is dedicated to.
    taken: Vec<Option<TaskId>>,
    chance: Chance,
    /// Copies of pages to other nodes in progress.
    migrations: Vec<Migration>,
}

/// Pages of a job that are being copied to other nodes.
#[derive(Debug)]
struct Migration {
    /// When the copy is complete.
    ends: Time,
    job: JobId,
    /// The nodes, each with its part of the pages.
    parts: Vec<NodePart>,
    /// Whether all pages are divided among the nodes, or only the pages that lie elsewhere: see
    /// `Memory::migrate`.
    divided: bool,
}

impl Seating {
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Seating {
        let contract = &scenario.contract;
        let kinds: Vec<_> = contract.ids().map(|id| contract.unit(id).job).collect();
        let means = match scenario.hardware.kernel.scheduler {
            _ if kinds.iter().all(Option::is_none) => Seats::None,
            Scheduler::Commonhold => Seats::Cpus,
            Scheduler::Hurricane => Seats::Fixed,
            Scheduler::IrixDecay | Scheduler::Linux24 => Seats::None,
        };
        Seating {
            means,
            gangs: contract.machine.gangs.by != Gangs::Off,
            kinds,
            only_programs: scenario.workload.programs.iter().any(|program| program.is_job),
            started: 0,
            by_serial: BTreeMap::new(),
            taken: vec![None; scenario.hardware.machine.cpus.len()],
            chance: Chance::of(seed, u64::MAX - 1),
            migrations: Vec::new(),
        }
    }

    /// Which orders about seats the scheduler can carry out.
    pub(super) fn means(&self) -> Seats {
        self.means
    }

    /// Whether jobs are gangs.
    pub(super) fn has_gangs(&self) -> bool {
        self.gangs
    }

    /// Whether each placed task has a dedicated CPU.
    pub(super) fn is_fixed(&self) -> bool {
        self.means == Seats::Fixed
    }

    /// Whether the policy places a task of this unit. `program` is the program whose run is the task's job,
    /// if there is one.
    pub(super) fn places(&self, unit: UnitId, program: Option<u32>) -> bool {
        (self.means != Seats::None || self.gangs)
            && self.kinds[unit.index()].is_some()
            && (program.is_some() || !self.only_programs)
    }

    /// Records a new task that the policy places.
    pub(super) fn enter(&mut self, serial: u64, id: TaskId) {
        self.by_serial.insert(serial, id);
    }

    /// The task that a CPU is dedicated to.
    pub(super) fn task_seated_at(&self, cpu: usize) -> Option<TaskId> {
        self.taken[cpu]
    }

    /// Counts a new task. Returns its serial number.
    pub(super) fn next_serial(&mut self) -> u64 {
        self.started += 1;
        self.started
    }
}

impl Engine<'_> {
    /// Lets a new task wait for a dedicated CPU.
    pub(super) fn await_seat(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        task.state = TaskState::Seat;
        self.units.blocked(task.runs_for);
        self.advance_turn(self.now);
    }

    /// Frees the seat of a task that ends.
    pub(super) fn leave_seat(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        if !task.is_placed {
            return;
        }
        self.seating.by_serial.remove(&task.serial);
        if let Some(cpu) = task.seat.take() {
            self.seating.taken[cpu as usize] = None;
        }
        // The free CPU may seat a waiting task, or let a job's scattered tasks come together.
        if self.seating.is_fixed() {
            self.advance_turn(self.now);
        }
    }

    /// The job of a task that the policy places.
    pub(super) fn placed_job(&self, id: TaskId) -> JobId {
        let task = &self.tasks[id as usize];
        match self.seating.kinds[task.unit as usize] {
            Some(JobKind::Unit) => JobId(u32::MAX - task.unit),
            Some(JobKind::Process) => JobId(u32::try_from(task.serial).unwrap_or(u32::MAX)),
            _ => JobId(task.instance),
        }
    }

    /// Whether plans may move pages to other nodes.
    pub(super) fn can_migrate_pages(&self) -> bool {
        self.seating.means == Seats::Cpus && self.remote.is_some()
    }

    /// The facts about jobs for a snapshot. Resets each task's record of whether it was runnable since the
    /// last snapshot.
    pub(super) fn jobs(&mut self) -> Vec<JobFacts> {
        let mut jobs: BTreeMap<JobId, JobFacts> = BTreeMap::new();
        let (fixed, can_migrate) = (self.seating.is_fixed(), self.can_migrate_pages());
        let placed: Vec<(u64, TaskId)> =
            self.seating.by_serial.iter().map(|(serial, id)| (*serial, *id)).collect();
        for (serial, id) in placed {
            let job = self.placed_job(id);
            let task = &mut self.tasks[id as usize];
            let wants = core::mem::replace(&mut task.wanted, task.state == TaskState::Runnable);
            let task = &self.tasks[id as usize];
            let facts = jobs.entry(job).or_insert_with(|| JobFacts {
                job,
                name: self.name_of(&self.instances[task.instance as usize]).to_owned(),
                unit: UnitId(task.unit),
                threads: Vec::new(),
                memory: can_migrate.then(Vec::new),
                shared: None,
            });
            let cpu = Some(task.seat.unwrap_or(task.cpu));
            let wants = wants || fixed;
            facts.threads.push(ThreadFacts { thread: ThreadId(serial), wants, cpu, tied: None });
            if let Some(memory) = &mut facts.memory {
                let nodes = self.scenario.hardware.machine.nodes.iter().map(|node| node.id);
                let pages = self.memory.pages_by_node(task.space).iter().copied();
                memory.extend(nodes.zip(pages.map(|pages| pages * self.frame_bytes())));
            }
        }
        // Sums each job's bytes by node.
        for memory in jobs.values_mut().filter_map(|facts| facts.memory.as_mut()) {
            memory.sort_unstable();
            memory.dedup_by(|later, sum| {
                let same = later.0 == sum.0;
                sum.1 += if same { later.1 } else { 0 };
                same
            });
            memory.retain(|(_, bytes)| *bytes > 0);
        }
        if self.seating.has_gangs() {
            for (job, facts) in &mut jobs {
                let threads =
                    facts.threads.iter().filter_map(|facts| self.seating.by_serial.get(&facts.thread.0));
                let live_use = threads.map(|id| self.tasks[*id as usize].gang_use);
                let live_use = live_use.fold(GangUse::default(), GangUse::plus);
                facts.shared = self.shared_use(*job, live_use);
            }
        }
        jobs.into_values().collect()
    }

    /// Carries out a plan's orders about seats and pages of jobs.
    pub(super) fn order_seats(&mut self, plan: &Plan) {
        match self.seating.means {
            Seats::None => {}
            Seats::Cpus => self.order_preferences(plan),
            Seats::Fixed => self.order_fixed(plan),
        }
    }

    /// Under the project's scheduler: sets preferences, and starts to copy pages.
    fn order_preferences(&mut self, plan: &Plan) {
        for step in &plan.orders.seats {
            match &step.action {
                SeatOrder::Seat { thread, cpus, .. } => {
                    // A task that has ended meanwhile needs no seat.
                    let Some(id) = self.seating.by_serial.get(&thread.0).copied() else { continue };
                    self.kernel.seat(id, cpus.as_ref().and_then(|cpus| cpus.iter().next()));
                }
                SeatOrder::Bring { job, nodes, divided, .. } => {
                    let bytes = self.bytes_elsewhere(*job, nodes);
                    let ends = self.now.saturating_add(bytes / COPIED_PER_NS).max(self.now + 1);
                    let migration = Migration { ends, job: *job, parts: nodes.clone(), divided: *divided };
                    self.seating.migrations.push(migration);
                }
            }
        }
    }

    /// The live tasks of a job that the policy places.
    pub(super) fn tasks_of(&self, job: JobId) -> Vec<TaskId> {
        self.seating.by_serial.values().copied().filter(|id| self.placed_job(*id) == job).collect()
    }

    /// Converts nodes' numbers to indices into the machine's nodes; each node keeps its part.
    fn node_indices(&self, parts: &[NodePart]) -> Vec<(usize, u64)> {
        let nodes = &self.scenario.hardware.machine.nodes;
        let index = |part: &NodePart| Some((nodes.iter().position(|node| node.id == part.node)?, part.part));
        parts.iter().filter_map(index).collect()
    }

    /// How many bytes of a job's memory lie outside `nodes`.
    fn bytes_elsewhere(&self, job: JobId, nodes: &[NodePart]) -> u64 {
        let targets = self.node_indices(nodes);
        let is_target = |node: usize| targets.iter().any(|(target, _)| *target == node);
        let pages_elsewhere = |id: TaskId| -> u64 {
            let by_node = self.memory.pages_by_node(self.tasks[id as usize].space).iter().enumerate();
            by_node.filter(|(node, _)| !is_target(*node)).map(|(_, pages)| pages).sum()
        };
        self.tasks_of(job).into_iter().map(pages_elsewhere).sum::<u64>() * self.frame_bytes()
    }

    /// Moves the pages of completed copies to their nodes, and updates the speeds of running tasks.
    pub(super) fn complete_migrations(&mut self) {
        let (complete, in_progress): (Vec<_>, Vec<_>) = core::mem::take(&mut self.seating.migrations)
            .into_iter()
            .partition(|migration| migration.ends <= self.now);
        self.seating.migrations = in_progress;
        for Migration { job, parts, divided, .. } in complete {
            let tasks = self.tasks_of(job);
            let spaces: Vec<SpaceId> = tasks.iter().map(|id| self.tasks[*id as usize].space).collect();
            self.memory.migrate(&spaces, &self.node_indices(&parts), divided);
        }
        for cpu in 0..self.cpus.len() {
            self.update_remote_slowdown(cpu);
            self.arm(super::number(cpu));
        }
    }

    /// When the next copy of pages completes; `None` if no copy is in progress.
    pub(super) fn next_migration_end(&self) -> Option<Time> {
        self.seating.migrations.iter().map(|migration| migration.ends).min()
    }

    /// Under Hurricane: gives each task a free CPU of the pool in its order, or refuses the task if the order
    /// has no pool. Vacates the seats of all tasks that move before it assigns any, since two tasks may swap
    /// seats.
    fn order_fixed(&mut self, plan: &Plan) {
        let seats = plan.orders.seats.iter().filter_map(|step| match &step.action {
            SeatOrder::Seat { thread, cpus, .. } => {
                Some((*self.seating.by_serial.get(&thread.0)?, cpus.clone()))
            }
            SeatOrder::Bring { .. } => None,
        });
        let seats: Vec<(TaskId, Option<CpuSet>)> = seats.collect();
        for (id, cpus) in &seats {
            let task = &mut self.tasks[*id as usize];
            let is_outside = |cpu: &mut u32| cpus.as_ref().is_some_and(|cpus| !cpus.contains(*cpu));
            if let Some(cpu) = task.seat.take_if(is_outside) {
                self.seating.taken[cpu as usize] = None;
            }
        }
        for (id, cpus) in seats {
            match cpus {
                Some(cpus) => self.seat(id, &cpus),
                None => self.refuse(id),
            }
        }
        self.running_set_changed |= self.has_contention();
    }

    /// Dedicates a random free CPU of `cpus` to a task that has no seat.
    fn seat(&mut self, id: TaskId, cpus: &CpuSet) {
        if self.tasks[id as usize].seat.is_some() {
            return;
        }
        let free: Vec<u32> = cpus.iter().filter(|cpu| self.seating.taken[*cpu as usize].is_none()).collect();
        let Some(last) = (free.len() as u64).checked_sub(1) else {
            self.audit.note(self.now, &format!("cpus {cpus} are all taken, and task {id} is to have one"));
            return;
        };
        let drawn = usize::try_from(self.seating.chance.below(last + 1)).unwrap_or(0);
        let cpu = free[drawn];
        self.seating.taken[cpu as usize] = Some(id);
        self.tasks[id as usize].seat = Some(cpu);
        self.kernel.seat(id, Some(cpu));
        if self.tasks[id as usize].state == TaskState::Seat {
            self.wake(id);
        }
    }

    /// Ends a new task for which there is no CPU, unless it is the first of its job.
    fn refuse(&mut self, id: TaskId) {
        let task = &self.tasks[id as usize];
        let is_first = self.instances[task.instance as usize].members.first() == Some(&id);
        if task.state == TaskState::Seat && !is_first {
            self.end(id);
        }
    }

    /// How a CPU's task accesses data of its job's other tasks: how often, and with which weight in which
    /// node. `None` if the CPU is idle or the machine has one node. A task that spins accesses no data.
    pub(super) fn sharer(&self, index: usize) -> Option<Sharer> {
        let (remote, id) = (self.remote.as_ref()?, self.cpus[index].task?);
        let task = &self.tasks[id as usize];
        let program = &self.scenario.workload.programs[task.program as usize];
        let shares = if task.spins { 0 } else { program.shares };
        let members = &self.instances[task.instance as usize].members;
        let data_node = |member: TaskId| self.tasks[member as usize].data;
        let mut targets: Vec<(usize, u64)> = Vec::new();
        if shares > 0 {
            let first = members.first().copied().filter(|first| *first != id);
            let others = members.iter().skip(1).copied().filter(|other| *other != id);
            let others: Vec<usize> = others.filter_map(data_node).collect();
            // A fraction `of_first` of the accesses, in millionths, goes to the first task's data, and the
            // rest evenly to the others'. Weights are fractions times the number of others.
            let all_accesses = 1_000_000;
            let to_first = match first.and_then(data_node) {
                Some(node) => {
                    let weight = if others.is_empty() { all_accesses } else { u64::from(program.of_first) };
                    targets.push((node, weight * others.len().max(1) as u64));
                    weight
                }
                None => 0,
            };
            targets.extend(others.iter().map(|node| (*node, all_accesses - to_first)));
        }
        Some(Sharer { node: remote.node(index), shares, targets })
    }
}

/// Whether any program shares data; if none does, [`Engine::sharer`] need not be called.
pub(super) fn any_shares(scenario: &Scenario) -> bool {
    scenario.workload.programs.iter().any(|program| program.shares > 0)
}
