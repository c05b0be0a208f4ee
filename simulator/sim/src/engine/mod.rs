//! The engine: one simulated machine, from event to event.
//!
//! Between two events everything proceeds at a constant rate: a CPU's task makes progress at the speed that
//! contention leaves it, a disk transfers, a sleeper sleeps. An event settles the progress made so far,
//! changes something, and sets the timers that follow from the change. There are no time steps: a machine
//! where nothing happens costs nothing.
//!
//! The switch-time scheduler (`commonhold_dispatch`, or a baseline) decides which task runs where. The
//! policies (`commonhold_policy`) decide which unit owns which CPU and how much memory. The engine carries
//! out their decisions.

mod audit;
mod backend;
mod cpu;
mod files;
mod gates;
mod hotplug;
mod linux;
mod loans;
mod locks;
mod occupancy;
mod patience;
mod program;
mod rounds;
mod seating;
mod signals;
mod speed;
mod stuck;
mod switcher;
mod tally;
mod task;
mod units;
mod windows;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicU64;

use commonhold_contract::Scheme;
use commonhold_dispatch::{Kick, TaskId};
use commonhold_steward::Steward;

use crate::Time;
use crate::chance::Chance;
use crate::contention;
use crate::disk::{Drive, Stalls};
use crate::disturbance;
use crate::memory::{Memory, TooSmall};
use crate::outcome::Outcome;
use crate::scenario::{DiskOrder, Enforces, Scenario};
use crate::timers::{TimerId, Timers};

use audit::Audit;
use backend::BackendState;
use cpu::Cpu;
use files::{FileState, Purpose};
use gates::Gates;
use hotplug::Hotplug;
use loans::Loans;
use locks::Lock;
use patience::Patience;
use program::Group;
use rounds::Rounds;
use seating::Seating;
use signals::EventState;
use switcher::Switcher;
use task::{Instance, Task};
use units::Units;
use windows::{Waits, Windows};

pub use task::Spent;

/// No task, no file.
const NONE: u32 = u32::MAX;

/// A simulated machine in the middle of a run.
pub(crate) struct Engine<'a> {
    scenario: &'a Scenario,
    seed: u64,
    /// Reports the time to a caller that watches the run.
    clock: &'a AtomicU64,
    now: Time,
    timers: Timers,
    /// The number of events so far: timers that expired.
    events: u64,

    /// The switch-time scheduler.
    kernel: Switcher,
    /// A buffer for CPUs that the scheduler asks to choose another task; empty between events.
    kicks: Vec<Kick>,
    cpus: Vec<Cpu>,
    /// The set of running tasks has changed, so that the tasks' speeds under contention have to be computed
    /// again.
    running_set_changed: bool,
    // The models of contention; `None` where the machine file, or the workload, does not need the model.
    contention: Option<contention::Kernel>,
    bus: Option<contention::Bus>,
    caches: Option<contention::Caches>,
    remote: Option<contention::Remote>,
    shared: Option<contention::Shared>,
    last_caches: Option<contention::LastCaches>,
    cores: Option<contention::Cores>,
    /// Buffers: the bus transactions per ms of each running task, and the task's slowdown by the bus.
    rates: Vec<u32>,
    slowdowns: Vec<u64>,

    tasks: Vec<Task>,
    /// Numbers of ended tasks, which new tasks reuse.
    free: Vec<TaskId>,
    instances: Vec<Instance>,
    /// By job: how many copies have been started so far.
    arrived: Vec<u32>,
    /// How many copies of foreground jobs have not ended. The run ends when there are none left.
    unfinished: u32,
    /// The tasks that wait at each group's barrier.
    barriers: BTreeMap<Group, Vec<TaskId>>,
    locks: Vec<Lock>,
    /// By event: the tasks that wait for it.
    signals: Vec<EventState>,
    /// By timer: the last release, if the timer is shared and was used.
    releases: Vec<Option<Time>>,

    memory: Memory,
    /// Tasks that wait for a frame, by unit.
    starved: Vec<VecDeque<TaskId>>,
    files: Vec<FileState>,
    drives: Vec<Drive>,
    /// For how long units wait for disks.
    stalls: Stalls,
    /// By number of a disk request: what the request is for. `free_purposes` has the numbers that are free.
    purposes: Vec<Purpose>,
    free_purposes: Vec<u32>,
    /// By drive: its completed requests whose interrupts have not arrived, each with the time of the
    /// interrupt.
    interrupts: Vec<BTreeSet<(Time, u32)>>,
    /// Random numbers for the delays of interrupts.
    chance: Chance,
    /// Where the next page goes in each drive's swap area, in sectors from its start.
    swap_at: Vec<u64>,
    /// By drive: the sector at which the next file is allocated.
    file_at: Vec<u64>,
    /// Tasks that wait until fewer pages of the cache are dirty.
    throttled: VecDeque<TaskId>,
    /// The number of write-behind requests in flight.
    flushing: u32,

    /// How many of the workload's timed changes of rights have been made.
    changed: usize,
    hotplug: Hotplug,
    rounds: Rounds,
    windows: Windows,
    /// By job: how long its tasks waited for a CPU after waking up.
    wakes: Vec<Waits>,
    /// The daemon's loop. `None` while the loop runs: it borrows the engine as its backend.
    steward: Option<Steward>,
    backend: BackendState,
    units: Units,
    loans: Loans,
    audit: Audit,
    patience: Patience,
    seating: Seating,
    gates: Gates,
    occupancy: Option<crate::outcome::Occupancy>,
}

/// What is due when a timer expires.
enum Event {
    Cpu(u32),
    Drive(usize),
    Policy,
    Memory,
    Rights,
    Hotplug,
    Job(usize),
    Task(TaskId),
}

impl<'a> Engine<'a> {
    /// Builds a scenario's machine at time 0, with timers for the arrivals of its jobs. An error means that
    /// the machine has too little memory.
    pub(crate) fn new(
        scenario: &'a Scenario,
        seed: u64,
        clock: &'a AtomicU64,
    ) -> Result<Engine<'a>, TooSmall> {
        let hardware = &scenario.hardware;
        let cpus = u32::try_from(hardware.machine.cpus.len()).unwrap_or(u32::MAX);
        let units = scenario.contract.units.len();
        let scheme = scenario.contract.machine.scheme;
        let order = match (hardware.enforces, scheme) {
            (Enforces::Linux, _) => DiskOrder::Linux,
            (Enforces::Irix, Scheme::Smp) => DiskOrder::Position,
            (Enforces::Irix, Scheme::Quota | Scheme::Isolate) => DiskOrder::Fair,
        };
        let parents: Vec<_> = scenario.contract.ids().map(|id| scenario.contract.unit(id).parent).collect();
        // No unit has a share before the first plan.
        let shares = vec![0; units];
        let rounds = Rounds::new(&scenario.workload);
        let mut engine = Engine {
            scenario,
            seed,
            clock,
            now: 0,
            timers: Timers::default(),
            events: 0,
            kernel: Switcher::new(scenario, seed),
            kicks: Vec::new(),
            cpus: (0..cpus)
                .map(|cpu| Cpu::new(cpu, cpus, hardware.kernel.tick_ns, hardware.interrupts.as_ref()))
                .collect(),
            running_set_changed: false,
            contention: hardware
                .contention
                .as_ref()
                .map(|costs| contention::Kernel::new(costs, cpus as usize)),
            bus: hardware.bus.as_ref().map(contention::Bus::new),
            caches: hardware.cache.as_ref().map(|cache| contention::Caches::new(cache, cpus as usize)),
            remote: hardware
                .latency
                .as_ref()
                .and_then(|latency| contention::Remote::new(latency, &hardware.machine)),
            shared: (hardware.latency.as_ref())
                .filter(|_| seating::any_shares(scenario))
                .and_then(|latency| contention::Shared::new(latency, &hardware.machine)),
            last_caches: contention::LastCaches::new(hardware)
                .filter(|_| speed::any_works_in_cache(scenario)),
            cores: contention::Cores::new(&hardware.machine).filter(|_| speed::any_has_appetite(scenario)),
            rates: Vec::new(),
            slowdowns: Vec::new(),
            tasks: Vec::new(),
            free: Vec::new(),
            instances: Vec::new(),
            arrived: vec![0; scenario.workload.jobs.len()],
            unfinished: 0,
            barriers: BTreeMap::new(),
            locks: scenario.workload.locks.iter().map(|_| Lock::default()).collect(),
            signals: scenario.workload.events.iter().map(|_| EventState::default()).collect(),
            releases: vec![None; scenario.workload.timers.len()],
            memory: Memory::new(hardware, &scenario.contract)?,
            starved: vec![VecDeque::new(); units],
            files: Vec::new(),
            drives: hardware
                .disks
                .iter()
                .map(|disk| {
                    let drive = match disk.order.unwrap_or(order) {
                        DiskOrder::Linux => Drive::linux(disk, &parents, disk.weighs),
                        order => Drive::new(disk, order, &shares),
                    };
                    match disk.depth {
                        Some(depth) => drive.with_depth(depth as usize),
                        None => drive,
                    }
                })
                .collect(),
            stalls: Stalls::new(units),
            purposes: Vec::new(),
            free_purposes: Vec::new(),
            interrupts: vec![BTreeSet::new(); hardware.disks.len()],
            chance: Chance::of(seed, u64::MAX),
            swap_at: vec![0; hardware.disks.len()],
            file_at: vec![0; hardware.disks.len()],
            throttled: VecDeque::new(),
            flushing: 0,
            changed: 0,
            hotplug: Hotplug::new(scenario),
            windows: Windows::new(units, rounds.every_ns),
            rounds,
            wakes: vec![Waits::default(); scenario.workload.jobs.len()],
            steward: Some(Steward::new(scenario.contract.clone(), hardware.machine.clone())),
            backend: BackendState::new(scenario),
            units: Units::new(scenario),
            loans: Loans::new(scenario),
            audit: Audit::new(units),
            patience: Patience::new(scenario),
            seating: Seating::new(scenario, seed),
            gates: Gates::default(),
            occupancy: None,
        };
        engine.set_first_timers();
        Ok(engine)
    }

    /// Sets the timers of time 0: arrivals of jobs, the policy, memory, and the first change of rights.
    fn set_first_timers(&mut self) {
        self.prepare_units();
        self.begin_hotplug();
        for (number, job) in self.scenario.workload.jobs.iter().enumerate() {
            if !job.background {
                self.unfinished += job.count;
            }
            self.timers.set(self.job_timer(number), self.start_of(number, 0));
        }
        self.timers.set(self.policy_timer(), 0);
        self.timers.set(self.policy_timer() + 1, 0);
        self.await_change();
    }

    /// Runs until all foreground jobs have ended, or to the horizon.
    pub(crate) fn run(mut self) -> Outcome {
        self.run_events();
        self.finish()
    }

    fn run_events(&mut self) {
        let horizon = self.scenario.workload.horizon_ns;
        // A workload with background jobs alone runs to the horizon.
        let runs_to_horizon = self.unfinished == 0;
        while runs_to_horizon || self.unfinished > 0 {
            let Some((at, id)) = self.timers.pop() else { break };
            self.end_windows(at.min(horizon));
            self.note_occupancy(at.min(horizon));
            if at > horizon {
                self.now = horizon;
                self.memory.at(horizon);
                break;
            }
            self.now = at;
            self.events += 1;
            self.memory.at(at);
            match self.event(id) {
                Event::Cpu(cpu) => self.cpu_event(cpu),
                Event::Drive(drive) => self.drive_event(drive),
                Event::Policy => self.policy_event(),
                Event::Memory => self.memory_event(),
                Event::Rights => self.rights_event(),
                Event::Hotplug => self.hotplug_event(),
                Event::Job(job) => self.job_event(job),
                Event::Task(task) => self.task_event(task),
            }
            self.follow_up();
        }
    }

    /// Completes an event: makes a change of the CPUs that waited for it, sends interrupts to kicked CPUs,
    /// updates the speeds of tasks whose neighbours changed, and lets Linux reclaim memory in the background.
    fn follow_up(&mut self) {
        self.continue_hotplug();
        if self.kernel.has_kicks() {
            self.deliver_kicks();
        }
        if self.running_set_changed {
            self.running_set_changed = false;
            self.set_speeds();
        }
        if self.enforces() == Enforces::Linux {
            self.reclaim_in_background();
        }
    }

    /// Which kernel the machine's memory and disks behave like.
    fn enforces(&self) -> Enforces {
        self.scenario.hardware.enforces
    }

    /// What a timer is for. Timers are numbered in this order: CPUs, drives, policy, memory, changes of
    /// rights, hotplug, jobs, tasks.
    fn event(&self, id: TimerId) -> Event {
        let (cpus, drives) = (self.cpus.len(), self.drives.len());
        let jobs = self.scenario.workload.jobs.len();
        let index = id as usize;
        if index < cpus {
            Event::Cpu(id)
        } else if index < cpus + drives {
            Event::Drive(index - cpus)
        } else if index == cpus + drives {
            Event::Policy
        } else if index == cpus + drives + 1 {
            Event::Memory
        } else if index == cpus + drives + 2 {
            Event::Rights
        } else if index == cpus + drives + 3 {
            Event::Hotplug
        } else if index < cpus + drives + 4 + jobs {
            Event::Job(index - cpus - drives - 4)
        } else {
            Event::Task(id - self.task_timer(0))
        }
    }

    fn drive_timer(&self, drive: usize) -> TimerId {
        number(self.cpus.len() + drive)
    }

    /// The policy's timer. The next three numbers are the timers of memory, of changes of rights, and of
    /// hotplug.
    fn policy_timer(&self) -> TimerId {
        number(self.cpus.len() + self.drives.len())
    }

    fn job_timer(&self, job: usize) -> TimerId {
        number(self.cpus.len() + self.drives.len() + 4 + job)
    }

    fn task_timer(&self, task: TaskId) -> TimerId {
        number(self.cpus.len() + self.drives.len() + 4 + self.scenario.workload.jobs.len()) + task
    }

    /// Starts the next copy of a job.
    fn job_event(&mut self, number: usize) {
        let job = &self.scenario.workload.jobs[number];
        let instance = self.new_instance(number);
        let chance = Chance::of(self.seed, (number as u64) << 32 | u64::from(self.arrived[number]));
        self.spawn(job.program, instance, NONE, chance);
        self.arrived[number] += 1;
        if self.arrived[number] < job.count {
            let start = self.start_of(number, self.arrived[number]);
            self.timers.set(self.job_timer(number), start.max(self.now));
        }
    }

    /// When a copy of a job starts, unless the copy before it starts later.
    fn start_of(&self, job_number: usize, copy: u32) -> Time {
        let job = &self.scenario.workload.jobs[job_number];
        let delay = disturbance::delay(self.scenario, self.seed, number(job_number), copy);
        job.start_ns.saturating_add(job.every_ns.saturating_mul(u64::from(copy))).saturating_add(delay)
    }

    /// Settles all progress up to now, makes the ledger's last entry, judges the contract, audits the machine
    /// a last time, and sums up.
    fn finish(mut self) -> Outcome {
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
        }
        self.account_last();
        self.judge();
        self.audit_all();
        self.count_waits_in_progress();
        self.count_missed_deadlines();
        let outcome = self.outcome();
        self.audit_ledger(outcome)
    }
}

/// Converts an index to the 32-bit number that the kernel's tables use. The checks of scenarios keep indices
/// far below 2^32.
pub(crate) fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
