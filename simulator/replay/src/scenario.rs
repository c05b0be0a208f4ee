//! Makes a scenario of a recording.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::{Contract, Each, Given, MemberKind, Newcomer, Principal, UnitId};
use commonhold_machine::Machine;
use commonhold_recording::DiskSample;
use commonhold_sim::Time;
use commonhold_sim::scenario::{
    Amount, BatchChosen, Disk, DiskModel, Enforces, Event, File, Hardware, Job, KernelCosts, Op, Program,
    SECTOR, Scenario, Spread, Workload,
};
use commonhold_sim::trace::{End, Recorded as Task, Step};

use crate::recorded::{Recorded, ReplayError};

/// The name of the job that lasts as long as the recording.
pub const LENGTH: &str = "recording";

/// The most tasks: a million takes some GiB of memory.
const TASKS_MAX: usize = 1 << 20;
/// Tasks in no unit that used less CPU time are left out.
const OTHERS_MIN_NS: Time = 1_000_000;
/// The files of a disk take this part of it, so that they fit.
const FILE_PART: u64 = 3;
/// The default of `reuse` in a workload.
const REUSE_NS: Time = 300_000_000;
/// The largest request to a disk: 16 MiB.
const REQUEST_SECTORS: u32 = 1 << 15;
/// The size of a disk whose size is unknown.
const DISK_BYTES: u64 = 1 << 40;
/// The rate of a disk whose rate is unknown, in bytes per second.
const DISK_BYTES_PER_S: u64 = 500_000_000;

/// The scenario of a recording under a contract. `machine` replaces the recorded machine.
///
/// # Errors
///
/// [`ReplayError::Units`] if tasks are in units that the contract lacks, [`ReplayError::Tasks`] if there are
/// too many.
pub fn scenario(
    recorded: &Recorded,
    contract: &Contract,
    machine: Option<&Machine>,
) -> Result<Scenario, ReplayError> {
    let activity = &recorded.activity;
    let others = activity.others.iter().filter(|task| task.used_ns() >= OTHERS_MIN_NS);
    let tasks: Vec<&Task> = activity.tasks.iter().chain(others).collect();
    if tasks.len() > TASKS_MAX {
        return Err(ReplayError::Tasks { tasks: tasks.len(), most: TASKS_MAX });
    }
    let (contract, units) = units(&tasks, contract)?;
    let hardware = hardware(recorded, machine.unwrap_or(&recorded.machine));
    let disks = Disks::of(recorded, &hardware);
    let mut workload = Workload {
        horizon_ns: activity.length_ns,
        files: (0..hardware.disks.len()).map(|disk| file(&hardware.disks[disk], disk)).collect(),
        ..Workload::default()
    };
    let mut with_memory = BTreeSet::new();
    let family = Family::of(&tasks, activity.length_ns);
    for (index, task) in tasks.iter().enumerate() {
        let name = format!("task-{index}-{}", task.pid);
        let ops = ops(task, activity.length_ns, &disks, &family);
        let mut program = program(name.clone(), ops);
        (program.memory_bytes, program.resident) = memory(recorded, task, &mut with_memory);
        workload.programs.push(program);
        if !family.forked.contains_key(&task.serial) {
            let start_ns = task.start_ns.min(activity.length_ns.saturating_sub(1));
            workload.jobs.push(job(name, unit(task, &units), index, start_ns, true));
        }
    }
    workload.events = family.events();
    // The simulation ends when this job does, at the end of the recording.
    let length = vec![Op::Sleep { span: constant(activity.length_ns) }];
    let first = workload.jobs.first().map_or(UnitId::SHARED, |job| job.unit);
    let index = workload.programs.len();
    workload.programs.push(program(LENGTH.to_owned(), length));
    workload.jobs.push(job(LENGTH.to_owned(), first, index, 0, false));
    Ok(Scenario { contract, hardware, workload })
}

/// The contract with the sub-units that its keys `each` have created, and the units of tasks by path.
fn units(tasks: &[&Task], contract: &Contract) -> Result<(Contract, BTreeMap<String, UnitId>), ReplayError> {
    let mut contract = contract.clone();
    let paths: BTreeSet<&str> =
        tasks.iter().map(|task| task.unit.as_str()).filter(|path| !path.is_empty()).collect();
    let mut missing = Vec::new();
    for path in &paths {
        if contract.find(path).is_none() && !create(&mut contract, path) {
            missing.push(format!("`{path}`"));
        }
    }
    if !missing.is_empty() {
        return Err(ReplayError::Units(missing));
    }
    let units = paths.into_iter().filter_map(|path| Some((path.to_owned(), contract.find(path)?))).collect();
    Ok((contract, units))
}

/// Creates a sub-unit of a unit with `each`. Returns whether it was created.
fn create(contract: &mut Contract, path: &str) -> bool {
    let Some((parent, name)) = path.rsplit_once('/') else { return false };
    let Some(unit) = contract.find(parent) else { return false };
    let whose = match contract.unit(unit).each {
        Some(Each::User) => MemberKind::User(Principal::Name(name.to_owned())),
        Some(Each::Cgroup) => MemberKind::Cgroup(name.to_owned()),
        None => return false,
    };
    let newcomer = Newcomer { unit, whose, name: name.to_owned(), given: Given::default() };
    contract.welcome(&[newcomer], &BTreeSet::new());
    contract.find(path).is_some()
}

/// A task's unit. Tasks in no unit belong to the built-in unit `shared`, as the simulator's daemons do.
fn unit(task: &Task, units: &BTreeMap<String, UnitId>) -> UnitId {
    units.get(&task.unit).copied().unwrap_or(UnitId::SHARED)
}

/// The machine, with a kernel whose work costs nothing: recorded CPU time includes it.
fn hardware(recorded: &Recorded, machine: &Machine) -> Hardware {
    let mut kernel = KernelCosts::modern(machine.memory_bytes());
    (kernel.switch_ns, kernel.fork_ns, kernel.fault_ns, kernel.request_ns) = (0, 0, 0, 0);
    // A task's requests between two sleeps are one: the kernel had most of them in service at once.
    kernel.request_sectors = REQUEST_SECTORS;
    let longest = recorded.delays_ns.last().max(recorded.idle_delays_ns.last());
    kernel.ipi_ns = longest.copied().unwrap_or(kernel.ipi_ns);
    kernel.ipi_delays_ns.clone_from(if recorded.delays_ns.is_empty() {
        &recorded.idle_delays_ns
    } else {
        &recorded.delays_ns
    });
    kernel.idle_delays_ns.clone_from(&recorded.idle_delays_ns);
    let samples: BTreeMap<&str, &(DiskSample, DiskSample)> =
        recorded.disks.iter().map(|pair| (pair.0.name.as_str(), pair)).collect();
    let mut machine = machine.clone();
    if machine.disks.is_empty() {
        // Simulated processes with memory need a disk to swap to.
        machine.disks.push(commonhold_machine::Disk { name: "swap".to_owned(), bytes: 0, bytes_per_s: None });
    }
    let of =
        |facts: &commonhold_machine::Disk| disk(facts, samples.get(facts.name.as_str()).copied(), recorded);
    let disks: Vec<Disk> = machine.disks.iter().map(of).collect();
    Hardware {
        machine,
        enforces: Enforces::Linux,
        kernel,
        latency: None,
        cache: None,
        last_cache_miss: 0,
        bus: None,
        contention: None,
        interrupts: None,
        disturbance: None,
        disks,
    }
}

/// A disk: its rate is the machine's or, if that is not known, its mean rate while it was busy; its access
/// time is the tenth percentile of the recorded waits for it, less the transfers.
fn disk(
    facts: &commonhold_machine::Disk,
    samples: Option<&(DiskSample, DiskSample)>,
    recorded: &Recorded,
) -> Disk {
    let bytes = if facts.bytes == 0 { DISK_BYTES } else { facts.bytes };
    let busy_rate = samples.and_then(|(first, last)| {
        let sum = |disk: &DiskSample| disk.reads.1.saturating_add(disk.writes.1);
        let moved = sum(last).saturating_sub(sum(first));
        let busy_ns = last.busy_ns.saturating_sub(first.busy_ns);
        (busy_ns > 1_000_000_000).then(|| moved.saturating_mul(1_000) / (busy_ns / 1_000_000))
    });
    let rate = facts.bytes_per_s.or(busy_rate).unwrap_or(DISK_BYTES_PER_S).max(1_000_000);
    let sector_ns = (SECTOR * 1_000_000_000 / rate).max(1);
    let device = samples.map(|(first, _)| first.device);
    let access_ns = device.and_then(|device| access_ns(recorded, device, sector_ns)).unwrap_or(100_000);
    Disk {
        name: facts.name.clone(),
        model: DiskModel::Fixed { access_ns, sector_ns, sectors: bytes / SECTOR },
        order: None,
        weighs: false,
        depth: None,
        threshold_sectors: 64,
        half_life_ns: 500_000_000,
        batch: 2,
        batch_chosen: BatchChosen::AtCompletion,
    }
}

/// The access time of a disk.
fn access_ns(recorded: &Recorded, device: u32, sector_ns: Time) -> Option<Time> {
    let activity = &recorded.activity;
    let steps = activity.tasks.iter().chain(&activity.others).flat_map(|task| &task.steps);
    let mut waits: Vec<Time> = steps
        .filter_map(|step| match step {
            Step::Transfer { device: of, bytes, took_ns, .. } if *of == device => {
                Some(took_ns.saturating_sub((bytes / SECTOR).saturating_mul(sector_ns)))
            }
            _ => None,
        })
        .collect();
    waits.sort_unstable();
    waits.get(waits.len() / 10).copied()
}

/// The one file of a disk, in which all tasks read and write anywhere.
fn file(disk: &Disk, index: usize) -> File {
    let sectors = match disk.model {
        DiskModel::Fixed { sectors, .. } | DiskModel::Ssd { sectors, .. } => sectors,
        DiskModel::Hp97560 { .. } => 0,
    };
    File {
        name: format!("data-{}", disk.name),
        bytes: sectors / FILE_PART * SECTOR,
        disk: u16::try_from(index).ok(),
        shared: true,
        fragment_bytes: 0,
        gap_bytes: 0,
        buffer_bytes: 0,
        hot: 0,
        hot_reads: 0,
    }
}

/// By device of a recorded disk: the file on the simulated disk of the same name.
struct Disks(BTreeMap<u32, u16>);

impl Disks {
    fn of(recorded: &Recorded, hardware: &Hardware) -> Disks {
        let file = |first: &DiskSample| {
            let index = hardware.disks.iter().position(|disk| disk.name == first.name)?;
            Some((first.device, u16::try_from(index).ok()?))
        };
        Disks(recorded.disks.iter().filter_map(|(first, _)| file(first)).collect())
    }

    fn file(&self, device: u32) -> Option<u16> {
        self.0.get(&device).copied()
    }
}

/// Who forks and wakes whom in the replay.
struct Family<'a> {
    tasks: BTreeMap<u32, &'a Task>,
    /// By serial number: the program of each task that its parent forks.
    forked: BTreeMap<u32, u32>,
    /// Tasks whose steps begin again: by themselves, or since their parents fork them again.
    again: BTreeSet<u32>,
    /// By serial number of a task that others wake: the event that it waits for.
    waits: BTreeMap<u32, u16>,
}

impl<'a> Family<'a> {
    /// A parent forks its children in its own unit. A child that outlived its parent begins by itself:
    /// otherwise it would begin again each time that a task further up begins again.
    fn of(tasks: &[&'a Task], length_ns: Time) -> Family<'a> {
        let by_serial: BTreeMap<u32, &Task> = tasks.iter().map(|task| (task.serial, *task)).collect();
        let programs: BTreeMap<u32, u32> =
            (0..).zip(tasks).map(|(program, task)| (task.serial, program)).collect();
        let mut family = Family {
            tasks: by_serial,
            forked: BTreeMap::new(),
            again: BTreeSet::new(),
            waits: BTreeMap::new(),
        };
        for (serial, task) in family.tasks.clone() {
            let parent = task.parent.and_then(|parent| family.tasks.get(&parent));
            let parent = parent.filter(|parent| {
                let is_orphan = is_alive(task) && !is_alive(parent);
                parent.unit == task.unit && parent.serial < serial && !is_orphan
            });
            let is_again = match task.end {
                End::Gone => parent.is_some_and(|parent| family.again.contains(&parent.serial)),
                _ => family.begins_again(task, length_ns),
            };
            if parent.is_some() {
                family.forked.insert(serial, programs[&serial]);
            }
            if is_again {
                family.again.insert(serial);
            }
        }
        let waiting = family.tasks.values().filter(|task| {
            let mut steps = task.steps.iter();
            steps.any(|step| matches!(step, Step::Wait { by, .. } if family.wakes(*by, task.serial)))
        });
        family.waits = waiting.map(|task| task.serial).zip(0..=u16::MAX).collect();
        family
    }

    /// Whether the steps of a task that was there when the recording ended begin again, since the replay may
    /// be faster. If it had slept most of the time since it forked a child, then it waits for that child.
    fn begins_again(&self, task: &Task, length_ns: Time) -> bool {
        let is_waiting = match (task.end, self.youngest_ns(task)) {
            (End::Asleep { slept_ns }, Some(forked)) => slept_ns > length_ns.saturating_sub(forked) / 2,
            _ => false,
        };
        task.used_ns() > 0 && !is_waiting
    }

    /// Whether a task wakes another one in the replay: both are in units, and no task that begins again waits
    /// for one that does not.
    fn wakes(&self, by: u32, sleeper: u32) -> bool {
        let is_member = |serial: u32| self.tasks.get(&serial).is_some_and(|task| !task.unit.is_empty());
        is_member(by) && is_member(sleeper) && (self.again.contains(&by) || !self.again.contains(&sleeper))
    }

    /// The event that a task waits for until another one wakes it.
    fn event(&self, by: u32, sleeper: u32) -> Option<u16> {
        self.waits.get(&sleeper).copied().filter(|_| self.wakes(by, sleeper))
    }

    /// The events, in the order of their numbers.
    fn events(&self) -> Vec<Event> {
        let of = |serial: &u32| Event { name: format!("wakes-{serial}"), counts: true };
        self.waits.keys().map(of).collect()
    }

    /// When the youngest of a task's children that were there at the end was forked.
    fn youngest_ns(&self, task: &Task) -> Option<Time> {
        let children = task.steps.iter().filter_map(|step| match step {
            Step::Fork { child } => self.tasks.get(child),
            _ => None,
        });
        children.filter(|child| is_alive(child)).map(|child| child.start_ns).max()
    }
}

/// Whether a task was there when the recording ended.
fn is_alive(task: &Task) -> bool {
    task.end != End::Gone
}

/// A task's steps.
fn ops(task: &Task, length_ns: Time, disks: &Disks, family: &Family<'_>) -> Vec<Op> {
    let steps = |again: bool| {
        let is_again = move |step: &&Step| match step {
            Step::Fork { child } => !again || family.tasks.get(child).is_some_and(|child| !is_alive(child)),
            _ => true,
        };
        task.steps.iter().filter(is_again).filter_map(|step| op(task, step, disks, family))
    };
    let mut ops: Vec<Op> = steps(false).collect();
    if !is_alive(task) {
        // A program needs a step that takes time.
        if ops.iter().all(|op| matches!(op, Op::Run { .. } | Op::Signal { .. })) {
            ops.push(cpu(1_000));
        }
        return ops;
    }
    if !family.again.contains(&task.serial) {
        ops.push(Op::Sleep { span: constant(length_ns) });
        return ops;
    }
    // The last burst and the first are parts of one, or the last sleep and the first.
    let sleep = match task.end {
        End::Asleep { slept_ns } => Some(Op::Sleep { span: constant(slept_ns.max(1)) }),
        _ => None,
    };
    ops.extend(sleep);
    let mut to = 0;
    if family.youngest_ns(task).is_some() {
        to = ops.len();
        ops.extend(steps(true).chain(sleep));
    }
    ops.push(Op::Again { to: u32::try_from(to).unwrap_or(0), times: 0, counter: 0 });
    ops
}

/// A step of a task; `None` for what another one does by itself.
fn op(task: &Task, step: &Step, disks: &Disks, family: &Family<'_>) -> Option<Op> {
    Some(match *step {
        Step::Cpu(ns) => cpu(ns),
        Step::Sleep(ns) => Op::Sleep { span: constant(ns) },
        Step::Wait { slept_ns, by } => match family.event(by, task.serial) {
            Some(event) => Op::Wait { event, lock: None },
            None => Op::Sleep { span: constant(slept_ns) },
        },
        Step::Wake { task: sleeper } => Op::Signal { event: family.event(task.serial, sleeper)?, all: false },
        Step::Fork { child } => {
            let program = *family.forked.get(&child)?;
            Op::Run { program, times: 1, at_once: 1, beside: true }
        }
        Step::Transfer { device, bytes, write, took_ns, .. } => match disks.file(device) {
            Some(file) if write => {
                Op::Write { file, bytes: constant(bytes.max(1)), random: true, sync: true, direct: true }
            }
            Some(file) => Op::Read { file, bytes: constant(bytes.max(1)), random: true, direct: true },
            None => Op::Sleep { span: constant(took_ns) },
        },
    })
}

fn cpu(ns: Time) -> Op {
    Op::Cpu { work: constant(ns), kernel: 0, bus_per_ms: 0, cache_bytes: 0, core: 0 }
}

fn constant(mean: u64) -> Amount {
    Amount { mean, spread: Spread::None }
}

/// The memory of a task, and whether it is resident at once: that of its process, if it is the first of the
/// process's tasks.
fn memory(recorded: &Recorded, task: &Task, with_memory: &mut BTreeSet<u32>) -> (u64, bool) {
    let process = recorded.processes.get(&task.pid).filter(|process| with_memory.insert(**process));
    let Some(process) = process else { return (0, false) };
    (recorded.memory.get(process).copied().unwrap_or(0), recorded.present.contains(process))
}

fn program(name: String, ops: Vec<Op>) -> Program {
    Program {
        name,
        memory_bytes: 0,
        resident: false,
        reuse_ns: REUSE_NS,
        hot_bytes: 0,
        stalled: 0,
        shares: 0,
        of_first: 0,
        is_job: false,
        ops,
    }
}

fn job(name: String, unit: UnitId, program: usize, start_ns: Time, background: bool) -> Job {
    Job {
        name,
        unit,
        program: u32::try_from(program).unwrap_or(u32::MAX),
        start_ns,
        count: 1,
        every_ns: 0,
        deadline_ns: None,
        disk: 0,
        background,
    }
}
