//! Tasks with CPUs of their own: how the orders about jobs are carried out.
//!
//! A job, to the policy, is a run of a program with `job = true`; in a workload without such programs, each job of it is one.
//! A new task of a unit that has jobs waits until a plan gives it a pool. The loop has a turn for that at once: this is the
//! call of the scheduling server in seed 001, section 3. The task has a free CPU of its pool, any one with the same chance,
//! until it ends or a plan sends it to another pool. If no pool has a free CPU, the first task of a job goes on waiting, and
//! another one never begins.

use std::collections::BTreeMap;

use commonhold_contract::{JobKind, UnitId};
use commonhold_dispatch::{NOBODY, TaskId};
use commonhold_machine::CpuSet;
use commonhold_policy::plan::{NodePart, PlaceOrder, Plan};
use commonhold_policy::{JobFacts, JobId, Seats, ThreadFacts, ThreadId};

use super::Engine;
use super::task::State;
use crate::chance::Chance;
use crate::contention::Sharer;
use crate::memory::SpaceId;
use crate::scenario::{Scenario, Scheduler};

/// Which CPUs are taken, and by which tasks.
#[derive(Debug)]
pub(super) struct Seating {
    /// Whether each task has a CPU of its own on this machine.
    fixed: bool,
    /// What is a job in each unit.
    kinds: Vec<Option<JobKind>>,
    /// Some program is a job.
    only_programs: bool,
    /// Tasks that came so far.
    came: u64,
    /// Those that are placed and there.
    by_serial: BTreeMap<u64, TaskId>,
    /// By CPU.
    taken: Vec<Option<TaskId>>,
    chance: Chance,
}

impl Seating {
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Seating {
        let contract = &scenario.contract;
        Seating {
            fixed: scenario.hardware.kernel.scheduler == Scheduler::Hurricane,
            kinds: contract.ids().map(|id| contract.unit(id).job).collect(),
            only_programs: scenario.workload.programs.iter().any(|program| program.is_job),
            came: 0,
            by_serial: BTreeMap::new(),
            taken: vec![None; scenario.hardware.machine.cpus.len()],
            chance: Chance::of(seed, u64::MAX - 1),
        }
    }

    /// What can be ordered of tasks' places.
    pub(super) fn means(&self) -> Seats {
        if self.fixed && self.kinds.iter().any(Option::is_some) { Seats::Fixed } else { Seats::None }
    }

    /// Whether a task of a unit is placed, which is of the run of a program that is a job, or of none.
    pub(super) fn places(&self, unit: UnitId, program: Option<u16>) -> bool {
        self.fixed && self.kinds[unit.index()].is_some() && (program.is_some() || !self.only_programs)
    }

    /// The task that has a CPU for itself.
    pub(super) fn sits_at(&self, cpu: usize) -> Option<TaskId> {
        self.taken[cpu]
    }

    /// The number of a task that comes.
    pub(super) fn came(&mut self) -> u64 {
        self.came += 1;
        self.came
    }
}

impl Engine<'_> {
    /// A new task waits for its CPU.
    pub(super) fn await_seat(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        task.state = State::Seat;
        self.seating.by_serial.insert(task.serial, id);
        self.units.blocked(task.runs_for);
        self.turn_by(self.now);
    }

    /// A task ends.
    pub(super) fn leave_seat(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        if !task.is_placed {
            return;
        }
        self.seating.by_serial.remove(&task.serial);
        if let Some(cpu) = task.seat.take() {
            self.seating.taken[cpu as usize] = None;
        }
        // What waits may come, and what lies apart may come together.
        self.turn_by(self.now);
    }

    /// The jobs as the policy sees them.
    pub(super) fn jobs(&self) -> Vec<JobFacts> {
        let mut jobs: BTreeMap<JobId, JobFacts> = BTreeMap::new();
        for (serial, id) in &self.seating.by_serial {
            let task = &self.tasks[*id as usize];
            let (unit, job) = (UnitId(task.unit), self.placed_job(*serial, *id));
            let name = || self.name_of(&self.instances[task.instance as usize]).to_owned();
            let facts = jobs.entry(job).or_insert_with(|| JobFacts {
                job,
                name: name(),
                unit,
                threads: Vec::new(),
                memory: None,
            });
            let cpu = Some(task.seat.unwrap_or(task.creator));
            facts.threads.push(ThreadFacts { thread: ThreadId(*serial), wants: true, cpu, tied: None });
        }
        if self.memory.has_nodes() {
            for facts in jobs.values_mut() {
                facts.memory = Some(self.memory_by_node(facts.job));
            }
        }
        jobs.into_values().collect()
    }

    fn placed_job(&self, serial: u64, id: TaskId) -> JobId {
        let task = &self.tasks[id as usize];
        let unit = UnitId(task.unit);
        match self.seating.kinds[unit.index()] {
            Some(JobKind::Unit) => JobId(u32::MAX - unit.0),
            Some(JobKind::Process) => JobId(u32::try_from(serial).unwrap_or(u32::MAX)),
            _ => JobId(task.instance),
        }
    }

    /// The memory of a job's processes.
    fn spaces_of(&self, job: JobId) -> Vec<SpaceId> {
        let tasks =
            self.seating.by_serial.iter().filter(|(serial, id)| self.placed_job(**serial, **id) == job);
        tasks.map(|(_, id)| self.tasks[*id as usize].space).collect()
    }

    /// By node, in bytes.
    fn memory_by_node(&self, job: JobId) -> Vec<(u32, u64)> {
        let nodes = &self.scenario.hardware.machine.nodes;
        let mut memory: Vec<(u32, u64)> = nodes.iter().map(|node| (node.id, 0)).collect();
        for space in self.spaces_of(job) {
            for ((_, sum), pages) in memory.iter_mut().zip(self.memory.pages_by_node(space)) {
                *sum += pages * self.frame_bytes();
            }
        }
        memory
    }

    /// A job's pages come to nodes, and its tasks see at once how far these are.
    fn bring(&mut self, job: JobId, parts: &[NodePart], divided: bool) {
        let nodes = &self.scenario.hardware.machine.nodes;
        let place = |part: &NodePart| Some((nodes.iter().position(|node| node.id == part.node)?, part.part));
        let parts: Vec<(usize, u64)> = parts.iter().filter_map(place).collect();
        let spaces = self.spaces_of(job);
        self.memory.bring(&spaces, &parts, divided);
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
            self.look_at_memory(cpu);
            self.arm(u32::try_from(cpu).unwrap_or(NOBODY));
        }
    }

    /// Carries out what a plan orders about jobs. All that move get up before anybody sits down: two may change places.
    pub(super) fn order_places(&mut self, plan: &Plan) {
        let seats = plan.orders.place.iter().filter_map(|step| match &step.action {
            PlaceOrder::Seat { thread, cpus, .. } => {
                Some((*self.seating.by_serial.get(&thread.0)?, cpus.clone()))
            }
            PlaceOrder::Bring { .. } => None,
        });
        let seats: Vec<(TaskId, Option<CpuSet>)> = seats.collect();
        for (id, cpus) in &seats {
            let task = &mut self.tasks[*id as usize];
            let moves = |cpu: &mut u32| cpus.as_ref().is_some_and(|cpus| !cpus.contains(*cpu));
            if let Some(cpu) = task.seat.take_if(moves) {
                self.seating.taken[cpu as usize] = None;
            }
        }
        for (id, cpus) in seats {
            match cpus {
                Some(cpus) => self.seat(id, &cpus),
                None => self.refuse(id),
            }
        }
        for step in &plan.orders.place {
            if let PlaceOrder::Bring { job, nodes, divided, .. } = &step.action {
                self.bring(*job, nodes, *divided);
            }
        }
        self.crowd_changed |= self.contended();
    }

    fn seat(&mut self, id: TaskId, cpus: &CpuSet) {
        if self.tasks[id as usize].seat.is_some() {
            return;
        }
        let free: Vec<u32> = cpus.iter().filter(|cpu| self.seating.taken[*cpu as usize].is_none()).collect();
        let Some(last) = (free.len() as u64).checked_sub(1) else {
            self.audit.note(self.now, &format!("cpus {cpus} are all taken, and task {id} is to have one"));
            return;
        };
        let at = usize::try_from(self.seating.chance.below(last + 1)).unwrap_or(0);
        let cpu = free[at];
        self.seating.taken[cpu as usize] = Some(id);
        self.tasks[id as usize].seat = Some(cpu);
        self.kernel.seat(id, cpu);
        if self.tasks[id as usize].state == State::Seat {
            self.wake(id);
        }
    }

    /// There is no CPU for a new task.
    fn refuse(&mut self, id: TaskId) {
        let task = &self.tasks[id as usize];
        let is_first = self.instances[task.instance as usize].members.first() == Some(&id);
        if task.state == State::Seat && !is_first {
            self.end(id);
        }
    }

    /// What the task on a CPU shares with the others of its job.
    pub(super) fn sharer(&self, at: usize) -> Option<Sharer> {
        let (remote, id) = (self.remote.as_ref()?, self.cpus[at].task?);
        let task = &self.tasks[id as usize];
        let program = &self.scenario.workload.programs[task.program as usize];
        let shares = if task.spins { 0 } else { program.shares };
        let members = &self.instances[task.instance as usize].members;
        let data = |member: TaskId| self.tasks[member as usize].data;
        let mut targets: Vec<(usize, u64)> = Vec::new();
        if shares > 0 {
            let first = members.first().copied().filter(|first| *first != id);
            let others = members.iter().skip(1).copied().filter(|other| *other != id);
            let others: Vec<usize> = others.filter_map(data).collect();
            let whole = 1_000_000;
            let of_first = match first.and_then(data) {
                Some(node) => {
                    let weight = if others.is_empty() { whole } else { u64::from(program.of_first) };
                    targets.push((node, weight * others.len().max(1) as u64));
                    weight
                }
                None => 0,
            };
            targets.extend(others.iter().map(|node| (*node, whole - of_first)));
        }
        Some(Sharer { node: remote.node(at), shares, targets })
    }
}

/// Whether any program shares data: nobody has to look at that otherwise.
pub(super) fn any_shares(scenario: &Scenario) -> bool {
    scenario.workload.programs.iter().any(|program| program.shares > 0)
}
