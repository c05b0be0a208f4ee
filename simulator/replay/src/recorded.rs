//! Folds the blocks of a recording into tasks and measured figures.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use commonhold_contract::Contract;
use commonhold_machine::{CpuSet, Machine};
use commonhold_recording::{
    Block, DiskSample, End, Event, Header, HoldingChange, Left, Method, ProcessSample, Reader,
    RecordingError, Sample, UnitSample, Usage,
};
use commonhold_sim::Time;
use commonhold_sim::trace::{self, History, Step, SwitchReason, Transfer};

use crate::figures::{Figures, UnitFigures};

/// The part of an interval below which a thread that ran or waited counts as runnable all the time, since
/// clocks are not read at exact intervals.
const ASLEEP_MIN: u64 = 50;
/// The most bursts into which a thread's CPU time in an interval is divided.
const BURSTS_MAX: u64 = 32;

/// The most steps of all tasks, so that they fit in memory: some GiB. A hostile file of some KiB could have
/// more.
const STEPS_MAX: usize = 100_000_000;
const DAY_NS: Time = 86_400_000_000_000;
const LENGTH_MAX_NS: Time = 366 * DAY_NS;
/// The most units whose home CPUs are kept.
const UNITS_MAX: usize = 1 << 16;

/// Among as many wake-ups, some are by threads.
const WAKES_MIN: u64 = 1_000;

/// The most delays of interrupts that are kept.
pub const DELAYS_MAX: usize = 1_000;

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file cannot be read as a recording.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The recorded machine cannot be read.
    #[error("the recording's machine cannot be read: {0}")]
    Machine(String),
    /// The recorded contract cannot be read.
    #[error("the recording's contract cannot be read: {0}")]
    Contract(String),
    /// There is nothing to replay.
    #[error("{0}")]
    Empty(&'static str),
    /// Tasks of the recording are in units that the contract lacks.
    #[error("it has no unit {}, in which the recording has tasks", .0.join(", "))]
    Units(Vec<String>),
    /// The recording is longer than a simulation may be.
    #[error("the recording says that it lasted {} days, and a replay lasts at most a year: it is damaged", .0 / DAY_NS)]
    Length(Time),
    /// More steps than a replay has room for.
    #[error("the recording has more than {STEPS_MAX} bursts and sleeps: record for less time")]
    Steps,
    /// More tasks than a scenario has room for.
    #[error("the recording has {tasks} tasks, and a replay at most {most}: record for less time")]
    Tasks {
        /// The number of tasks.
        tasks: usize,
        /// The most.
        most: usize,
    },
}

/// A recording, read whole.
#[derive(Debug)]
pub struct Recorded {
    /// What it says of itself.
    pub header: Header,
    /// How it ended; `None`: it was cut short.
    pub end: Option<End>,
    /// Where it is damaged. What follows is missing.
    pub damage: Option<String>,
    /// Whether the recorder could tell wake-ups by threads from those by interrupts.
    pub knows_wakers: bool,
    /// Since when and why CPU time was not held, if that happened.
    pub not_held: Option<HoldingChange>,
    /// The most processes and threads that the recorder left out at a time, as there were too many.
    pub left_out: u32,
    /// The number of switches that are missing: a task left a CPU on which another one had run last.
    pub missing: u64,
    /// The number of events that were impossible in the state of their task, since others are missing.
    pub impossible: u64,
    /// The machine.
    pub machine: Machine,
    /// The contract in force when the recording began.
    pub contract: Contract,
    /// The number of times that another contract, or other tickets, came into force meanwhile.
    pub contract_changes: usize,
    /// The units' tasks, and those in no unit.
    pub activity: trace::Recording,
    /// By task of `activity.tasks` and then of `activity.others`: its process, if it is known.
    pub processes: BTreeMap<u32, u32>,
    /// By process: the mean of its own memory, in bytes.
    pub memory: BTreeMap<u32, u64>,
    /// The processes that were there when the recording began.
    pub present: BTreeSet<u32>,
    /// The first and the last sample of each disk, in the order of the first.
    pub disks: Vec<(DiskSample, DiskSample)>,
    /// How long an interrupt took to arrive: how long woken tasks waited for a CPU of their own unit that was
    /// on loan, in ns, ascending. At most [`DELAYS_MAX`] of them, evenly spaced; empty without events.
    pub delays_ns: Vec<Time>,
    /// The same for a CPU that was idle.
    pub idle_delays_ns: Vec<Time>,
    /// What was measured.
    pub measured: Figures,
}

impl Recorded {
    /// Reads a recording. One that was cut short or damaged is read up to there.
    ///
    /// # Errors
    ///
    /// See [`ReplayError`].
    pub fn read(from: impl Read) -> Result<Recorded, ReplayError> {
        let mut reader = Reader::open(from)?;
        let header = reader.header().clone();
        let machine =
            Machine::from_toml(&header.machine).map_err(|error| ReplayError::Machine(error.to_string()))?;
        let contract = contract(&header.contract)?;
        let mut fold = Fold::default();
        let damage = loop {
            match reader.next_block() {
                Ok(Some(block)) => fold.block(block)?,
                Ok(None) => break None,
                Err(error @ RecordingError::Damaged { .. }) => break Some(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        };
        fold.finish(header, machine, contract, damage)
    }
}

/// A contract without errors.
fn contract(text: &str) -> Result<Contract, ReplayError> {
    let parsed = commonhold_contract::parse(text);
    parsed.contract.ok_or_else(|| {
        let first = parsed.diagnostics.iter().find(|diagnostic| diagnostic.is_error());
        ReplayError::Contract(first.map_or_else(String::new, |diagnostic| diagnostic.message.clone()))
    })
}

#[derive(Default)]
struct Fold {
    history: History,
    impossible: u64,
    missing: u64,
    /// By CPU: the task that runs there.
    running: BTreeMap<u32, u32>,
    processes: BTreeMap<u32, u32>,
    first: Option<Sample>,
    last: Option<Sample>,
    /// By process: the sum and the number of samples of its own memory.
    memory: BTreeMap<u32, (u64, u64)>,
    /// By unit: the sum of its processes' own memory in all samples.
    unit_memory: BTreeMap<String, u64>,
    /// The number of samples with processes.
    memory_samples: u64,
    present: BTreeSet<u32>,
    contract_changes: usize,
    /// Wake-ups by interrupts or by what is unknown, and by threads.
    wakes_by_interrupts: u64,
    wakes_by_threads: u64,
    not_held: Option<HoldingChange>,
    left_out: u32,
    /// The steps of all tasks so far.
    steps: usize,
    /// By unit: what its accounts say of the time between samples.
    accounts: BTreeMap<String, UnitFigures>,
    end: Option<End>,
    /// Woken tasks that have not run yet, with the time when they were woken.
    woken: BTreeMap<u32, Time>,
    /// How long woken tasks waited for a CPU of their own unit that was on loan, or idle.
    delays: Vec<Time>,
    idle_delays: Vec<Time>,
    /// Each unit's home CPUs, by the last sample.
    owned: BTreeMap<String, CpuSet>,
    /// With clocks: each thread's steps.
    clocks: BTreeMap<u32, Clocked>,
    units: BTreeMap<u32, String>,
    clocked_until: Time,
}

/// A thread whose clocks are known.
#[derive(Default)]
struct Clocked {
    steps: Vec<Step>,
    begin: Option<Time>,
    until: Time,
    waited_ns: Time,
    /// Whether it was runnable to the end of its last interval.
    runnable: bool,
}

impl Fold {
    fn block(&mut self, block: Block) -> Result<(), ReplayError> {
        match block {
            Block::Threads(threads) => {
                // Events from before `seen_ns` follow: the recorder holds them back to put them in order. So
                // the history's time does not advance here.
                for thread in threads {
                    if !thread.unit.is_empty() {
                        self.history.add_member(thread.tid, &thread.unit);
                        self.units.insert(thread.tid, thread.unit);
                    }
                    self.processes.insert(thread.tid, thread.pid);
                }
            }
            Block::Events(events) => {
                // An event ends a burst and a sleep at most.
                let events_steps = 2 * events.len();
                for timed in events {
                    self.history.advance(timed.at_ns);
                    self.resume(&timed.event);
                    self.time_interrupt(timed.at_ns, &timed.event);
                    self.impossible += u64::from(self.history.event(converted(timed.event)).is_err());
                }
                self.steps = self.steps.saturating_add(events_steps);
            }
            Block::Usage(usage) => self.usage(&usage),
            Block::Sample(sample) => self.sample(sample),
            Block::Contract(_) => self.contract_changes += 1,
            Block::Holding(change) if change.resource == "cpu" && !change.is_held => {
                self.not_held.get_or_insert(change);
            }
            Block::Holding(_) => {}
            Block::End(end) => self.end = Some(end),
        }
        let last_ns =
            self.history.now().max(self.clocked_until).max(self.end.as_ref().map_or(0, |end| end.at_ns));
        if last_ns > LENGTH_MAX_NS {
            return Err(ReplayError::Length(last_ns));
        }
        if self.steps > STEPS_MAX { Err(ReplayError::Steps) } else { Ok(()) }
    }

    /// If a task leaves a CPU on which another one was seen last, a switch is missing: the other one has
    /// left, and this one has come.
    fn resume(&mut self, event: &Event) {
        let Event::Switch { cpu, from, to, .. } = *event else { return };
        if let Some(last) = self.running.insert(cpu, to).filter(|last| *last != from) {
            self.missing += 1;
            // These repair the state, so whether they were possible does not matter.
            let _ = self.history.event(trace::Event::Vanish { pid: last });
            let came = trace::Event::Switch { from: 0, reason: SwitchReason::Preempted, to: from };
            let _ = self.history.event(came);
        }
    }

    /// Measures how long a woken task waits for a CPU of its own unit that is idle or on loan: such a CPU
    /// runs it as soon as the interrupt arrives.
    fn time_interrupt(&mut self, at: Time, event: &Event) {
        match *event {
            Event::Wake { thread, by_interrupt, .. } => {
                let wakes =
                    if by_interrupt { &mut self.wakes_by_interrupts } else { &mut self.wakes_by_threads };
                *wakes += 1;
                let unit = self.history.unit_of(thread).map(outermost);
                let owned = unit.and_then(|unit| self.owned.get(unit));
                let is_free = |cpu| match self.running.get(&cpu) {
                    None => false,
                    Some(0) => true,
                    Some(running) => self.is_guest(*running, unit),
                };
                if owned.is_some_and(|owned| owned.iter().any(is_free)) {
                    self.woken.entry(thread).or_insert(at);
                }
            }
            Event::Switch { cpu, from, left, to } => {
                // A thread that runs cannot be woken: the event had no effect.
                self.woken.remove(&from);
                let Some(woken) = self.woken.remove(&to) else { return };
                let unit = self.history.unit_of(to).map(outermost);
                let is_own =
                    unit.and_then(|unit| self.owned.get(unit)).is_some_and(|owned| owned.contains(cpu));
                if is_own && from == 0 {
                    self.idle_delays.push(at.saturating_sub(woken));
                } else if is_own && left == Left::Preempted && self.is_guest(from, unit) {
                    self.delays.push(at.saturating_sub(woken));
                }
            }
            Event::Fork { child, .. } => {
                // Its first wake-up is not one from a sleep.
                self.woken.remove(&child);
            }
            Event::Transfer { .. } => {}
        }
    }

    /// Whether a task is in another outermost unit. Tasks in no unit are not guests: the scheduler runs them
    /// anywhere, and does not call CPUs back from them.
    fn is_guest(&self, task: u32, unit: Option<&str>) -> bool {
        self.history.unit_of(task).is_some_and(|other| Some(outermost(other)) != unit)
    }

    fn usage(&mut self, usage: &Usage) {
        let begin = usage.at_ns.saturating_sub(usage.over_ns);
        for thread in &usage.threads {
            let clocked = self.clocks.entry(thread.tid).or_default();
            clocked.begin.get_or_insert(begin);
            if begin > clocked.until && !clocked.steps.is_empty() {
                clocked.steps.push(Step::Sleep(begin - clocked.until));
            }
            let ran_ns = thread.ran_ns.min(usage.over_ns);
            let busy = ran_ns.saturating_add(thread.waited_ns);
            let asleep = usage.over_ns.saturating_sub(busy);
            let is_runnable = asleep < usage.over_ns / ASLEEP_MIN;
            let bursts = if is_runnable { 1 } else { u64::from(thread.turns).clamp(1, BURSTS_MAX) };
            self.steps += usize::try_from(2 * bursts).unwrap_or(usize::MAX);
            for _ in 0..bursts {
                clocked.steps.push(Step::Cpu((ran_ns / bursts).max(1_000)));
                if !is_runnable {
                    clocked.steps.push(Step::Sleep((asleep / bursts).max(1_000)));
                }
            }
            clocked.waited_ns = clocked.waited_ns.saturating_add(thread.waited_ns);
            (clocked.until, clocked.runnable) = (usage.at_ns, is_runnable);
        }
        self.clocked_until = self.clocked_until.max(usage.at_ns);
    }

    fn sample(&mut self, sample: Sample) {
        self.left_out = self.left_out.max(sample.processes_left_out);
        for ProcessSample { pid, anonymous, .. } in &sample.processes {
            let (sum, count) = self.memory.entry(*pid).or_default();
            *sum = sum.saturating_add(*anonymous);
            *count += 1;
            if let Some(unit) = self.units.get(pid) {
                let sum = self.unit_memory.entry(unit.clone()).or_default();
                *sum = sum.saturating_add(*anonymous);
            }
        }
        if !sample.processes.is_empty() {
            if self.memory_samples == 0 {
                self.present = sample.processes.iter().map(|process| process.pid).collect();
            }
            self.memory_samples += 1;
        }
        if sample.units.is_empty() && self.first.is_some() {
            // No daemon answered: its accounts continue in a later sample.
            return;
        }
        let last = self.last.take();
        let before: BTreeMap<&str, &UnitSample> =
            last.iter().flat_map(|last| &last.units).map(|unit| (unit.path.as_str(), unit)).collect();
        // A unit that was not there in the sample before has begun its accounts since.
        let new = UnitSample::default();
        for unit in &sample.units {
            if self.accounts.len() < UNITS_MAX || self.accounts.contains_key(&unit.path) {
                let before = match last {
                    Some(_) => before.get(unit.path.as_str()).copied().unwrap_or(&new),
                    None => unit,
                };
                let figures =
                    self.accounts.entry(unit.path.clone()).or_insert_with(|| UnitFigures::of(&unit.path));
                figures.account(before, unit);
            }
            if (self.owned.len() < UNITS_MAX || self.owned.contains_key(&unit.path))
                && let Ok(owned) = unit.owned.parse()
            {
                self.owned.insert(unit.path.clone(), owned);
            }
        }
        self.first.get_or_insert_with(|| sample.clone());
        self.last = Some(sample);
    }

    fn finish(
        mut self,
        header: Header,
        machine: Machine,
        contract: Contract,
        damage: Option<String>,
    ) -> Result<Recorded, ReplayError> {
        if let Some(end) = &self.end {
            self.history.advance(end.at_ns);
        }
        let activity = match header.method {
            Method::Events => std::mem::take(&mut self.history).close(),
            Method::Clocks { .. } => self.close_clocks(),
        };
        if activity.tasks.is_empty() {
            return Err(ReplayError::Empty(
                "the recording has no tasks in units: record while units have processes",
            ));
        }
        if activity.length_ns == 0 {
            return Err(ReplayError::Empty("the recording has no length: record for some seconds"));
        }
        let measured = self.measured(&activity, header.method);
        let mean = |(sum, count): &(u64, u64)| sum / (*count).max(1);
        Ok(Recorded {
            memory: self.memory.iter().map(|(pid, sums)| (*pid, mean(sums))).collect(),
            present: std::mem::take(&mut self.present),
            disks: self.disks(),
            delays_ns: spaced(std::mem::take(&mut self.delays)),
            idle_delays_ns: spaced(std::mem::take(&mut self.idle_delays)),
            header,
            end: self.end,
            damage,
            knows_wakers: self.wakes_by_threads > 0 || self.wakes_by_interrupts < WAKES_MIN,
            not_held: self.not_held,
            left_out: self.left_out,
            missing: self.missing,
            impossible: self.impossible,
            machine,
            contract,
            contract_changes: self.contract_changes,
            activity,
            processes: self.processes,
            measured,
        })
    }

    /// The activity of threads whose clocks were read.
    fn close_clocks(&mut self) -> trace::Recording {
        let length_ns = self.end.as_ref().map_or(self.clocked_until, |end| end.at_ns);
        let clocks = std::mem::take(&mut self.clocks);
        let units = &self.units;
        let tasks = (0..).zip(clocks).filter_map(|(serial, (tid, clocked))| {
            let lasted = clocked.until.saturating_add(1_000_000_000) >= length_ns;
            let mut waits = trace::Waits::default();
            waits.sum_ns = clocked.waited_ns;
            Some(trace::Recorded {
                serial,
                parent: None,
                pid: tid,
                unit: units.get(&tid)?.clone(),
                start_ns: clocked.begin.unwrap_or(0),
                steps: clocked.steps,
                waits,
                end: match (clocked.runnable, lasted) {
                    (true, true) => trace::End::Computing,
                    (false, true) => trace::End::Asleep { slept_ns: length_ns.saturating_sub(clocked.until) },
                    (_, false) => trace::End::Gone,
                },
            })
        });
        trace::Recording { length_ns, tasks: tasks.collect(), others: Vec::new(), unwoken: 0 }
    }

    /// The first and the last sample of each disk.
    fn disks(&self) -> Vec<(DiskSample, DiskSample)> {
        let (Some(first), Some(last)) = (&self.first, &self.last) else { return Vec::new() };
        let pair = |disk: &DiskSample| {
            Some((disk.clone(), last.disks.iter().find(|other| other.name == disk.name)?.clone()))
        };
        first.disks.iter().filter_map(pair).collect()
    }

    /// What was measured of each unit that had tasks.
    fn measured(&self, activity: &trace::Recording, method: Method) -> Figures {
        let mut units: BTreeMap<&str, UnitFigures> = BTreeMap::new();
        for task in &activity.tasks {
            let unit = units.entry(&task.unit).or_insert_with(|| UnitFigures::of(&task.unit));
            unit.used_ns = unit.used_ns.saturating_add(task.used_ns());
            unit.waited_ns = unit.waited_ns.saturating_add(task.waits.sum_ns);
            unit.wakes.merge(&task.waits.after_wakes);
            unit.responses.merge(&task.waits.responses);
            for step in &task.steps {
                match step {
                    Step::Cpu(_) | Step::Fork { .. } | Step::Wake { .. } => {}
                    Step::Sleep(_) | Step::Wait { .. } => unit.sleeps += 1,
                    Step::Transfer { bytes, .. } => {
                        unit.sleeps += 1;
                        unit.transferred = unit.transferred.saturating_add(*bytes);
                    }
                }
            }
        }
        let events = method == Method::Events;
        for unit in units.values_mut() {
            unit.has_wakes = events;
            let path = &unit.unit;
            unit.memory = self.unit_memory.get(path).and_then(|sum| sum.checked_div(self.memory_samples));
            let Some(account) = self.accounts.get(path) else { continue };
            unit.called_back = account.called_back;
            unit.call_back_classes.clone_from(&account.call_back_classes);
            unit.call_back_max_ns = account.call_back_max_ns;
            unit.waits.clone_from(&account.waits);
            unit.verdicts.clone_from(&account.verdicts);
        }
        Figures::new(activity.length_ns, units.into_values().collect())
    }
}

/// The outermost unit around a unit.
fn outermost(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

/// At most [`DELAYS_MAX`] of the values, evenly spaced in their order.
fn spaced(mut values: Vec<Time>) -> Vec<Time> {
    values.sort_unstable();
    let kept = values.len().min(DELAYS_MAX);
    (0..kept).map(|index| values[(2 * index + 1) * values.len() / (2 * kept)]).collect()
}

/// An event for the state machine that follows tasks.
fn converted(event: Event) -> trace::Event {
    match event {
        Event::Switch { from, left, to, .. } => {
            let reason = match left {
                Left::Preempted => SwitchReason::Preempted,
                Left::Asleep => SwitchReason::Asleep,
                Left::Blocked => SwitchReason::Blocked,
                Left::Ended => SwitchReason::Ended,
            };
            trace::Event::Switch { from, reason, to }
        }
        Event::Wake { thread, by, by_interrupt, .. } => {
            trace::Event::Wake { pid: thread, by: if by_interrupt { 0 } else { by } }
        }
        Event::Fork { parent, child } => trace::Event::Fork { parent, child },
        Event::Transfer { thread, device, sector, bytes, write } => {
            let transfer = Transfer { device, sector, bytes: u64::from(bytes), write };
            trace::Event::Transfer { pid: thread, transfer }
        }
    }
}
