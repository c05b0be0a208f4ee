//! Makes a scenario of a recording.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::{Contract, UnitId};
use commonhold_machine::Machine;
use commonhold_recording::DiskSample;
use commonhold_sim::Time;
use commonhold_sim::scenario::{
    Amount, BatchChosen, Disk, DiskModel, Enforces, File, Hardware, Job, KernelCosts, Op, Program, SECTOR,
    Scenario, Spread, Workload,
};
use commonhold_sim::trace::{End, Recorded as Task, Step};

use crate::recorded::{Recorded, ReplayError};

/// The name of the job that lasts as long as the recording.
pub const LENGTH: &str = "recording";

/// The most tasks: programs are numbered in 16 bits, and one lasts as long as the recording.
const TASKS_MAX: usize = u16::MAX as usize - 1;
/// Tasks in no unit that used less CPU time are left out.
const OTHERS_MIN_NS: Time = 1_000_000;
/// The files of a disk take this part of it, so that they fit.
const FILE_PART: u64 = 3;
/// The step of a task that computes on.
const ON_NS: Time = 1_000_000_000;
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
    let units = units(&tasks, contract)?;
    let hardware = hardware(recorded, machine.unwrap_or(&recorded.machine));
    let devices: Vec<u32> = recorded.disks.iter().map(|(first, _)| first.device).collect();
    let disks = Disks { devices, count: hardware.disks.len() };
    let mut workload = Workload {
        horizon_ns: activity.length_ns,
        files: (0..hardware.disks.len()).map(|disk| file(&hardware.disks[disk], disk)).collect(),
        ..Workload::default()
    };
    let mut with_memory = BTreeSet::new();
    for (index, task) in tasks.iter().enumerate() {
        let name = format!("task-{index}-{}", task.pid);
        let memory_bytes = memory(recorded, task, &mut with_memory);
        workload.programs.push(program(name.clone(), ops(task, activity.length_ns, &disks), memory_bytes));
        let start_ns = task.start_ns.min(activity.length_ns.saturating_sub(1));
        workload.jobs.push(job(name, unit(task, &units), index, start_ns, true));
    }
    // The simulation ends when this job does, at the end of the recording.
    let length = vec![Op::Sleep { span: constant(activity.length_ns) }];
    let first = workload.jobs.first().map_or(UnitId::SHARED, |job| job.unit);
    let index = workload.programs.len();
    workload.programs.push(program(LENGTH.to_owned(), length, 0));
    workload.jobs.push(job(LENGTH.to_owned(), first, index, 0, false));
    Ok(Scenario { contract: contract.clone(), hardware, workload })
}

/// The units of tasks, by path.
fn units(tasks: &[&Task], contract: &Contract) -> Result<BTreeMap<String, UnitId>, ReplayError> {
    let paths: BTreeSet<&str> =
        tasks.iter().map(|task| task.unit.as_str()).filter(|path| !path.is_empty()).collect();
    let missing: Vec<String> =
        paths.iter().filter(|path| contract.find(path).is_none()).map(|path| format!("`{path}`")).collect();
    if !missing.is_empty() {
        return Err(ReplayError::Units(missing));
    }
    Ok(paths.into_iter().filter_map(|path| Some((path.to_owned(), contract.find(path)?))).collect())
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
    if let Some(longest) = recorded.delays_ns.last() {
        (kernel.ipi_ns, kernel.ipi_delays_ns) = (*longest, recorded.delays_ns.clone());
    }
    let samples: BTreeMap<&str, &(DiskSample, DiskSample)> =
        recorded.disks.iter().map(|pair| (pair.0.name.as_str(), pair)).collect();
    let disks: Vec<Disk> = machine
        .disks
        .iter()
        .map(|facts| disk(facts, samples.get(facts.name.as_str()).copied(), recorded))
        .collect();
    Hardware {
        machine: machine.clone(),
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

/// A disk: its rate is the machine's or, if that is not known, the highest that the recording shows; its
/// access time is the shortest tenth of the recorded waits for it, less the transfer.
fn disk(
    facts: &commonhold_machine::Disk,
    samples: Option<&(DiskSample, DiskSample)>,
    recorded: &Recorded,
) -> Disk {
    let bytes = if facts.bytes == 0 { DISK_BYTES } else { facts.bytes };
    let busy_rate = samples.and_then(|(first, last)| {
        let moved = (last.reads.1 + last.writes.1).saturating_sub(first.reads.1 + first.writes.1);
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
                Some(took_ns.saturating_sub(bytes / SECTOR * sector_ns))
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

/// The recorded disks, by the simulated disk's index.
struct Disks {
    devices: Vec<u32>,
    count: usize,
}

impl Disks {
    fn file(&self, device: u32) -> Option<u16> {
        let index = self.devices.iter().position(|other| *other == device)?;
        u16::try_from(index).ok().filter(|_| index < self.count)
    }
}

/// A task's steps.
fn ops(task: &Task, length_ns: Time, disks: &Disks) -> Vec<Op> {
    let mut ops: Vec<Op> = task.steps.iter().map(|step| op(step, disks)).collect();
    match task.end {
        End::Computing => {
            let to = u32::try_from(ops.len()).unwrap_or(0);
            ops.push(cpu(ON_NS));
            ops.push(Op::Again { to, times: 0, counter: 0 });
        }
        End::Asleep => ops.push(Op::Sleep { span: constant(length_ns) }),
        // A program needs at least one step.
        End::Gone if ops.is_empty() => ops.push(cpu(1_000)),
        End::Gone => {}
    }
    ops
}

fn op(step: &Step, disks: &Disks) -> Op {
    match *step {
        Step::Cpu(ns) => cpu(ns),
        Step::Sleep(ns) => Op::Sleep { span: constant(ns) },
        Step::Transfer { device, bytes, write, took_ns, .. } => match disks.file(device) {
            Some(file) if write => {
                Op::Write { file, bytes: constant(bytes.max(1)), random: true, sync: true }
            }
            Some(file) => Op::Read { file, bytes: constant(bytes.max(1)), random: true },
            None => Op::Sleep { span: constant(took_ns) },
        },
    }
}

fn cpu(ns: Time) -> Op {
    Op::Cpu { work: constant(ns), kernel: 0, bus_per_ms: 0, cache_bytes: 0, core: 0 }
}

fn constant(mean: u64) -> Amount {
    Amount { mean, spread: Spread::None }
}

/// The memory of a task: that of its process, if it is the first of the process's tasks.
fn memory(recorded: &Recorded, task: &Task, with_memory: &mut BTreeSet<u32>) -> u64 {
    let Some(process) = recorded.processes.get(&task.pid) else { return 0 };
    if !with_memory.insert(*process) {
        return 0;
    }
    recorded.memory.get(process).copied().unwrap_or(0)
}

fn program(name: String, ops: Vec<Op>, memory_bytes: u64) -> Program {
    Program {
        name,
        memory_bytes,
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
        program: u16::try_from(program).unwrap_or(u16::MAX),
        start_ns,
        count: 1,
        every_ns: 0,
        deadline_ns: None,
        disk: 0,
        background,
    }
}
