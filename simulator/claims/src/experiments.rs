//! The experiments: each is the files of a scenario, a scheme, and changes to the files.
//!
//! The texts are those of `scenarios/`. They are compiled in, so that the claims can be checked on a machine
//! that has only the program.

use crate::unknowns::{Document, unknowns};
use commonhold_contract::{Amount, CpuMode, Discipline, Gangs, Placement, PoolForm, Resource, Scheme};
use commonhold_policy::rights::{self, Offer};
use commonhold_sim::scenario::{CallBack, DiskOrder, Job, Scenario, Scheduler};

/// The three texts of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Files {
    /// The name in reports: the folder in `scenarios/`, and the files of machine and workload there.
    pub name: &'static str,
    contract: &'static str,
    machine: &'static str,
    workload: &'static str,
}

impl Files {
    /// The folder in `scenarios/`.
    pub fn folder(&self) -> &'static str {
        self.name.split_once('/').map_or(self.name, |(folder, _)| folder)
    }
}

#[cfg(test)]
impl Files {
    /// A scenario from texts of a test.
    pub(crate) const fn of(
        name: &'static str,
        contract: &'static str,
        machine: &'static str,
        workload: &'static str,
    ) -> Files {
        Files { name, contract, machine, workload }
    }
}

/// The scenario of a folder in `scenarios/`: its contract (`contract.toml` unless named), a machine and a
/// workload.
macro_rules! files {
    ($folder:literal, $machine:literal, $workload:literal) => {
        files!($folder, "contract", $machine, $workload)
    };
    ($folder:literal, $contract:literal, $machine:literal, $workload:literal) => {
        Files {
            name: concat!($folder, "/{", $machine, ", ", $workload, "}"),
            contract: include_str!(concat!("../../../scenarios/", $folder, "/", $contract, ".toml")),
            machine: include_str!(concat!("../../../scenarios/", $folder, "/", $machine, ".toml")),
            workload: include_str!(concat!("../../../scenarios/", $folder, "/", $workload, ".toml")),
        }
    };
}

/// One job on a machine of one CPU (figure 2, UP).
pub const UNIPROCESSOR: Files = files!("four-way", "uniprocessor", "alone");
/// User A's job beside 0 to 5 jobs of other users (figure 2; the first is MP1, the last MP6).
pub const OTHERS: [Files; 6] = [
    files!("four-way", "machine", "alone"),
    files!("four-way", "machine", "others-1"),
    files!("four-way", "machine", "others-2"),
    files!("four-way", "machine", "others-3"),
    files!("four-way", "machine", "others-4"),
    files!("four-way", "machine", "workload"),
];
/// A job of each user, and a core dump to user A's disk (figure 2, MP4+D).
pub const DUMP: Files = files!("four-way", "machine", "dump");
/// Eight users with a job each (figure 3).
pub const KERNEL_BALANCED: Files = files!("kernel-intensive", "machine", "balanced");
/// Four users with one job each, four with two (figure 3).
pub const KERNEL_UNBALANCED: Files = files!("kernel-intensive", "machine", "workload");
/// [`KERNEL_UNBALANCED`] with enough memory for all jobs.
pub const KERNEL_AMPLE: Files = files!("kernel-intensive", "ample", "workload");
/// One job, alone, of one of eight users (section 4.2.3).
pub const KERNEL_ONE: Files = files!("kernel-intensive", "machine", "alone-one");
/// Two jobs, alone, of one of eight users (section 4.2.3).
pub const KERNEL_TWO: Files = files!("kernel-intensive", "machine", "alone-two");
/// Ocean beside Flashlite and VCS (section 4.3).
pub const CPU_ISOLATION: Files = files!("cpu-isolation", "machine", "workload");
/// [`CPU_ISOLATION`] on two NUMA nodes. Beyond the paper.
pub const CPU_ISOLATION_NUMA: Files = files!("cpu-isolation", "numa", "workload");
/// Two users with a job each (section 4.4).
pub const MEMORY_BALANCED: Files = files!("memory-isolation", "machine", "balanced");
/// Two users, one of them with two jobs (section 4.4).
pub const MEMORY_UNBALANCED: Files = files!("memory-isolation", "machine", "workload");
/// [`MEMORY_UNBALANCED`] with enough memory for all jobs.
pub const MEMORY_AMPLE: Files = files!("memory-isolation", "ample", "workload");
/// One job on half of the machine of [`MEMORY_BALANCED`] (section 4.4).
pub const MEMORY_HALF: Files = files!("memory-isolation", "half", "alone");
/// A parallel make beside a copy of 20 MB on one disk (table 4).
pub const MAKE_AND_COPY: Files = files!("disk-make-and-copy", "machine", "workload");
/// The parallel make of [`MAKE_AND_COPY`] with the disk to itself.
pub const MAKE_ALONE: Files = files!("disk-make-and-copy", "machine", "alone");
/// A copy of 500 KB beside one of 5 MB on one disk (table 5).
pub const TWO_COPIES: Files = files!("disk-two-copies", "machine", "workload");
/// A light user: alone, and beside a load of two and of four times the other half of the machine. Beyond the
/// paper.
pub const CALL_BACK: [Files; 3] = [
    files!("call-back", "machine", "alone"),
    files!("call-back", "machine", "workload"),
    files!("call-back", "machine", "double"),
];
/// A user whose memory lies idle between bursts, beside a user that always wants more memory. Beyond the
/// paper.
pub const RESERVE: Files = files!("memory-reserve", "machine", "workload");
/// Four users of one file system, with both fixes of section 3.4.
pub const LOCKS_FIXED: Files = files!("kernel-locks", "machine", "workload");
/// [`LOCKS_FIXED`] with a semaphore for look-ups: without the first fix.
pub const LOCKS_INODE: Files = files!("kernel-locks", "machine", "inode-semaphore");
/// [`LOCKS_FIXED`] with one semaphore for insertions of pages: without the second fix.
pub const LOCKS_INSERT: Files = files!("kernel-locks", "machine", "one-insert-lock");
/// [`LOCKS_FIXED`] without either fix.
pub const LOCKS_STOCK: Files = files!("kernel-locks", "machine", "stock");

/// Two currencies of equal worth, with five tasks (seed 004, section 5.2).
pub const TICKETS_CPU: Files = files!("tickets-cpu", "machine", "workload");
/// Two tasks with memory guaranteed, two without (seed 004, section 5.3).
pub const TICKETS_MEMORY: Files = files!("tickets-memory", "machine", "workload");
/// A task with half of a disk beside four others (seed 004, section 5.4).
pub const TICKETS_DISK: Files = files!("tickets-disk", "machine", "workload");
/// The task of [`TICKETS_DISK`] beside one other (seed 004, section 5.6).
pub const TICKETS_DISK_TWO: Files = files!("tickets-disk", "machine", "two");
/// Two tasks compute and five read (seed 004, section 5.5).
pub const TICKETS_EXCHANGE: Files = files!("tickets-exchange", "machine", "workload");
/// [`TICKETS_EXCHANGE`] under lottery scheduling, as in the paper.
pub const TICKETS_EXCHANGE_LOTTERY: Files =
    files!("tickets-exchange", "lottery", "machine", "lottery-workload");
/// [`TICKETS_EXCHANGE`] for longer, with a file large enough for that. Beyond the paper.
pub const TICKETS_EXCHANGE_LONG: Files = files!("tickets-exchange", "machine", "long");

/// Two databases and four tasks that read, without an exchange (seed 004, section 5.6).
pub const DATABASES: Files = files!("tickets-databases", "machine", "workload");
/// [`DATABASES`] with offers of the two databases to each other.
pub const DATABASES_OFFERS: Files = files!("tickets-databases", "machine", "offers");

/// The currencies of [`TICKETS_CPU`] with short slices. Beyond the paper.
pub const TICKETS_CPU_FINE: Files = files!("tickets-cpu", "fine", "workload");
/// Three users with shares of 1 : 2 : 3 (seed 002, shares).
pub const ENTITLEMENT_SHARES: Files = files!("entitlement-shares", "machine", "workload");
/// Two users, one with a hundredth of the other's share (seed 002, infinities).
pub const SMALLEST_SHARE: Files = files!("smallest-share", "machine", "workload");
/// A user who sleeps for a minute before he computes (seed 002, processes that sleep).
pub const SLEEPER: Files = files!("sleeper", "machine", "workload");
/// A user who sleeps for two seconds. Beyond the paper.
pub const NAP: Files = files!("sleeper", "machine", "nap");
/// Users who come in turns after long sleeps (seed 002, feedback can starve).
pub const BOOSTING: Files = files!("boosting", "machine", "workload");
/// A user who waits again and again (seed 002, inactive entity problem).
pub const INACTIVE: Files = files!("inactive-entity", "machine", "workload");
/// A user who uses a fifth of each turn (seed 002, inactive entity problem).
pub const GIVES_UP: Files = files!("inactive-entity", "machine", "gives-up");
/// One process of a user beside nine of another's, in one unit (seed 002, shares).
pub const MANY_PROCESSES: Files = files!("many-processes", "machine", "workload");
/// [`MANY_PROCESSES`] with a sub-unit for each user.
pub const MANY_BY_USER: Files = files!("many-processes", "users", "machine", "users-workload");
/// A long job before short ones. Beyond the paper.
pub const FIRST_COME: Files = files!("first-come", "machine", "workload");

/// A server's offered load: low, four fifths of its capacity, and twice its capacity (seed 002, system
/// performance).
pub const QUEUE: [Files; 3] = [
    files!("open-queue", "machine", "light"),
    files!("open-queue", "machine", "workload"),
    files!("open-queue", "machine", "overload"),
];
/// The second and the third of [`QUEUE`] with two CPUs.
pub const QUEUE_TWO: [Files; 2] =
    [files!("open-queue", "two", "workload"), files!("open-queue", "two", "overload")];
/// Processes on twelve CPUs that only compute (seed 002, scalability in practice).
pub const TREE_NONE: Files = files!("tree-lock", "machine", "cpu-only");
/// The processes of [`TREE_NONE`], but taking one spin lock again and again.
pub const TREE_SPIN: Files = files!("tree-lock", "machine", "workload");
/// The processes of [`TREE_NONE`], but taking a lock that allows several readers.
pub const TREE_READERS: Files = files!("tree-lock", "machine", "readers");
/// A multi-user benchmark with one CPU, and with two (seed 002, scalability in practice).
pub const AIM7_FEW: [Files; 2] = [files!("aim7", "one", "workload"), files!("aim7", "two", "workload")];
/// The benchmark of [`AIM7_FEW`] on sixteen CPUs: with a single disk, a RAID, and a RAM disk; and without
/// disk accesses.
pub const AIM7: [Files; 4] = [
    files!("aim7", "machine", "workload"),
    files!("aim7", "raid", "workload"),
    files!("aim7", "ram", "workload"),
    files!("aim7", "ram", "cpu-only"),
];
/// Sequential and random reads of a file (seed 002, disks).
pub const DISK_ACCESS: [Files; 2] =
    [files!("disk-access", "machine", "workload"), files!("disk-access", "machine", "random")];
/// Two programs whose threads meet at barriers (seed 002, gang scheduling).
pub const GANGS: Files = files!("gangs", "machine", "workload");
/// Seven threads, and eight threads, on eight CPUs of which one takes all interrupts (seed 002, interrupts).
pub const INTERRUPTED: [Files; 2] =
    [files!("interrupts", "machine", "seven"), files!("interrupts", "machine", "workload")];
/// Eight threads, with interrupts spread over all CPUs.
pub const INTERRUPTS_SPREAD: Files = files!("interrupts", "spread", "workload");

/// Six programs on Hector, with two processes each (seed 001, section 5).
pub const POOLS_TWO: Files = files!("pools", "machine", "two");
/// Six programs on Hector, with four processes each.
pub const POOLS_FOUR: Files = files!("pools", "machine", "workload");
/// Six programs on Hector, with six processes each.
pub const POOLS_SIX: Files = files!("pools", "machine", "six");
/// Six programs on Hector, with eight processes each.
pub const POOLS_EIGHT: Files = files!("pools", "machine", "eight");

/// Eleven programs of two threads, and two that saturate the bus or leave it idle (seed 003, sections 3 and
/// 5).
pub const BUS: Files = files!("bus", "machine", "workload");

/// An experiment: a scenario under a scheme, with changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experiment {
    /// The texts of the scenario.
    pub files: Files,
    /// The scheme; it replaces the contract's.
    pub scheme: Scheme,
    /// The changes to the texts.
    pub change: Change,
}

/// Changes to the texts of a scenario. `None`, false, zero and an empty list leave the scenario's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The scheduler that decides which task a CPU runs next.
    pub scheduler: Option<Scheduler>,
    /// The order in which every disk serves its queue.
    pub order: Option<DiskOrder>,
    /// The number of sectors by which a unit may be ahead, on every disk.
    pub threshold_sectors: Option<u64>,
    /// Removes contention in the kernel.
    pub uncontended: bool,
    /// When lent CPUs return to their owners.
    pub call_back: Option<CallBack>,
    /// The period of the clock tick, in ns. Slices become at least as long, so that no slice ends a loan
    /// before the tick does.
    pub tick_ns: Option<u64>,
    /// The reserve: memory that is never lent, in millionths of the machine's memory.
    pub reserve: Option<u64>,
    /// Makes tasks that wait for a lock lend their CPUs to the holder.
    pub inherit: bool,
    /// CPU mode `proportional`: all CPUs are time-shared by weight, not partitioned.
    pub in_time: bool,
    /// The latest end of the run, in s.
    pub until_s: Option<u64>,
    /// The number of disk tickets that the contract's first unit gives for the same number of CPU tickets of
    /// the second unit, before the run begins.
    pub exchanged: u64,
    /// Makes the contract's first two units negotiate.
    pub negotiate: bool,
    /// The disk tickets and the pages in every offer: tickets for pages or pages for tickets.
    pub offered: Option<(u64, u64)>,
    /// The discipline of every unit.
    pub discipline: Option<Discipline>,
    /// The number of copies of the workload's first job.
    pub copies: Option<u32>,
    /// How pools are formed.
    pub pools: Option<PoolForm>,
    /// How jobs are placed in pools.
    pub placement: Option<Placement>,
    /// Enables repartitioning: threads of a job are moved to one pool.
    pub repartition: bool,
    /// The cycles that Hector's delay switches add (seed 001, section 3).
    pub delay: u64,
    /// Records which job occupies each CPU.
    pub traced: bool,
    /// Programs, each with its number of copies, that replace the workload's jobs. The run does not wait for
    /// endless programs.
    pub jobs: &'static [(&'static str, u32)],
    /// Which jobs run together as gangs.
    pub gangs: Option<Gangs>,
    /// The capacity of the bus, in percent of the machine file's.
    pub bus_percent: u16,
}

const UNCHANGED: Change = Change {
    scheduler: None,
    order: None,
    threshold_sectors: None,
    uncontended: false,
    call_back: None,
    tick_ns: None,
    reserve: None,
    inherit: false,
    in_time: false,
    until_s: None,
    exchanged: 0,
    negotiate: false,
    offered: None,
    discipline: None,
    copies: None,
    pools: None,
    placement: None,
    repartition: false,
    delay: 0,
    traced: false,
    jobs: &[],
    gangs: None,
    bus_percent: 100,
};

/// The unchanged files under a scheme. Under `smp` the scheduler is that of IRIX 5.3, the paper's system
/// without isolation (section 4.2, table 3).
pub const fn on(files: Files, scheme: Scheme) -> Experiment {
    let scheduler = if matches!(scheme, Scheme::Smp) { Some(Scheduler::IrixDecay) } else { None };
    Experiment { files, scheme, change: Change { scheduler, ..UNCHANGED } }
}

/// The unchanged files under a scheme, with the scheduler that the machine file names.
pub const fn as_it_is(files: Files, scheme: Scheme) -> Experiment {
    Experiment { files, scheme, change: UNCHANGED }
}

impl Experiment {
    /// Sets the order of every disk's queue.
    #[must_use]
    pub const fn order(mut self, order: DiskOrder) -> Self {
        self.change.order = Some(order);
        self
    }

    /// Sets the fair order and its threshold, in sectors, on every disk.
    #[must_use]
    pub const fn threshold(mut self, sectors: u64) -> Self {
        self.change.order = Some(DiskOrder::Fair);
        self.change.threshold_sectors = Some(sectors);
        self
    }

    /// Removes contention in the kernel.
    #[must_use]
    pub const fn uncontended(mut self) -> Self {
        self.change.uncontended = true;
        self
    }

    /// Sets when lent CPUs return to their owners.
    #[must_use]
    pub const fn call_back(mut self, when: CallBack) -> Self {
        self.change.call_back = Some(when);
        self
    }

    /// Sets the period of the clock tick, in ns.
    #[must_use]
    pub const fn tick(mut self, ns: u64) -> Self {
        self.change.tick_ns = Some(ns);
        self
    }

    /// Sets the part of memory that is never lent, in millionths.
    #[must_use]
    pub const fn reserve(mut self, millionths: u64) -> Self {
        self.change.reserve = Some(millionths);
        self
    }

    /// Makes tasks that wait for a lock lend their CPUs to the holder.
    #[must_use]
    pub const fn inherit(mut self) -> Self {
        self.change.inherit = true;
        self
    }

    /// Time-shares all CPUs by weight.
    #[must_use]
    pub const fn in_time(mut self) -> Self {
        self.change.in_time = true;
        self
    }

    /// Ends the run after `s` seconds.
    #[must_use]
    pub const fn until(mut self, s: u64) -> Self {
        self.change.until_s = Some(s);
        self
    }

    /// Exchanges `tickets` disk tickets of the first unit for as many CPU tickets of the second.
    #[must_use]
    pub const fn exchange(mut self, tickets: u64) -> Self {
        self.change.exchanged = tickets;
        self
    }

    /// Makes the first two units negotiate.
    #[must_use]
    pub const fn negotiate(mut self) -> Self {
        self.change.negotiate = true;
        self
    }

    /// Offers `disk` disk tickets for `pages` pages.
    #[must_use]
    pub const fn offer(mut self, disk: u64, pages: u64) -> Self {
        self.change.offered = Some((disk, pages));
        self
    }

    /// Sets the discipline of every unit.
    #[must_use]
    pub const fn under(mut self, discipline: Discipline) -> Self {
        self.change.discipline = Some(discipline);
        self
    }

    /// Starts `copies` copies of the first job.
    #[must_use]
    pub const fn copies(mut self, copies: u32) -> Self {
        self.change.copies = Some(copies);
        self
    }

    /// Sets how pools are formed.
    #[must_use]
    pub const fn pools(mut self, form: PoolForm) -> Self {
        self.change.pools = Some(form);
        self
    }

    /// Sets how jobs are placed in pools.
    #[must_use]
    pub const fn placed(mut self, placement: Placement) -> Self {
        self.change.placement = Some(placement);
        self
    }

    /// Enables repartitioning.
    #[must_use]
    pub const fn repartitioned(mut self) -> Self {
        self.change.repartition = true;
        self
    }

    /// Sets Hector's delay switches to `cycles` cycles.
    #[must_use]
    pub const fn delay(mut self, cycles: u64) -> Self {
        self.change.delay = cycles;
        self
    }

    /// Records which job occupies each CPU, ten times a second.
    #[must_use]
    pub const fn traced(mut self) -> Self {
        self.change.traced = true;
        self
    }

    /// Replaces the workload's jobs by these programs, each with its number of copies.
    #[must_use]
    pub const fn jobs(mut self, jobs: &'static [(&'static str, u32)]) -> Self {
        self.change.jobs = jobs;
        self
    }

    /// Sets which jobs run together as gangs.
    #[must_use]
    pub const fn gangs(mut self, by: Gangs) -> Self {
        self.change.gangs = Some(by);
        self
    }

    /// Sets the bus's capacity, in percent of the machine file's.
    #[must_use]
    pub const fn bus_percent(mut self, percent: u16) -> Self {
        self.change.bus_percent = percent;
        self
    }

    /// The experiment's name in reports: files, scheme, changes.
    pub fn name(&self) -> String {
        format!("{} {}{}", self.files.name, self.scheme, self.change.words())
    }

    /// Whether an unknown of the document concerns the experiment's scenario.
    pub fn is_touched_by(&self, document: Document) -> bool {
        unknowns(document).any(|unknown| unknown.concerns(self.files.folder()))
    }

    /// The scenario to run. The error lists the mistakes in the built-in texts.
    pub fn scenario(&self) -> Result<Scenario, String> {
        let Files { name, contract, machine, workload } = self.files;
        let read = commonhold_sim::scenario::read(contract, machine, workload);
        let Some(mut scenario) = read.scenario else {
            let diagnostics: Vec<String> = read
                .findings
                .iter()
                .flat_map(|finding| &finding.diagnostics)
                .map(|d| format!("{d:?}"))
                .collect();
            return Err(format!("{name} is no scenario: {}", diagnostics.join("; ")));
        };
        scenario.contract.machine.scheme = self.scheme;
        self.change.apply(&mut scenario);
        Ok(scenario)
    }
}

/// The number of packets that a delay switch delays, each once, when a cache line comes from another station
/// (seed 001, table 1: 37 + 3 d).
const DELAYED_PACKETS: u64 = 3;

/// The interval at which the occupancy of CPUs is recorded, in ns.
const TRACE_NS: u64 = 100_000_000;

/// A cycle of Hector's processors, in ns (seed 001, section 3).
const HECTOR_CYCLE_NS: u64 = 60;

impl Change {
    /// The changes in words, such as `, order fair, threshold 64`; empty without changes.
    fn words(&self) -> String {
        let millionths = |part: u64| format!("{}.{} %", part / 10_000, part / 1_000 % 10);
        let words = [
            self.scheduler.map(|scheduler| format!("scheduler {scheduler}")),
            self.order.map(|order| format!("order {}", format!("{order:?}").to_lowercase())),
            self.threshold_sectors.map(|sectors| format!("threshold {sectors}")),
            self.uncontended.then(|| "no contention".to_owned()),
            self.call_back.map(|when| format!("call back {}", format!("{when:?}").to_lowercase())),
            self.tick_ns.map(|ns| format!("tick {} ms", ns / 1_000_000)),
            self.reserve.map(|part| format!("reserve {}", millionths(part))),
            self.inherit.then(|| "locks inherit".to_owned()),
            self.in_time.then(|| "shared in time".to_owned()),
            self.until_s.map(|s| format!("until {s} s")),
            (self.exchanged > 0).then(|| format!("exchanged {}", self.exchanged)),
            self.negotiate.then(|| "negotiating".to_owned()),
            self.offered.map(|(disk, pages)| format!("{disk} disk tickets for {pages} pages")),
            self.discipline.map(|discipline| format!("discipline {discipline}")),
            self.copies.map(|copies| format!("{copies} copies")),
            self.pools.map(|form| match form {
                PoolForm::Size(cpus) => format!("pools of {cpus}"),
                named => format!("pools by {}", named.word().unwrap_or("auto")),
            }),
            self.placement.map(|placement| placement.to_string()),
            self.repartition.then(|| "repartitioned".to_owned()),
            (self.delay > 0).then(|| format!("delay {}", self.delay)),
            self.traced.then(|| "traced".to_owned()),
            (!self.jobs.is_empty()).then(|| {
                let jobs: Vec<String> =
                    self.jobs.iter().map(|(program, copies)| format!("{copies} {program}")).collect();
                jobs.join(" + ")
            }),
            self.gangs.map(|by| format!("gangs {by}")),
            (self.bus_percent != 100).then(|| format!("bus {} %", self.bus_percent)),
        ];
        words.into_iter().flatten().flat_map(|word| [", ".to_owned(), word]).collect()
    }

    /// Applies the changes that concern pools, placement and Hector's delay switches, which delay loads from
    /// another station (socket).
    fn apply_to_pools(&self, scenario: &mut Scenario) {
        if self.traced {
            scenario.workload.trace_ns = Some(TRACE_NS);
        }
        let rules = &mut scenario.contract.machine;
        rules.pools = self.pools.unwrap_or(rules.pools);
        rules.placement = self.placement.unwrap_or(rules.placement);
        rules.repartition |= self.repartition;
        let machine = &scenario.hardware.machine;
        let station = |node: u32| machine.cpus.iter().find(|cpu| cpu.node == node).map(|cpu| cpu.socket);
        let stations: Vec<Option<u32>> = machine.nodes.iter().map(|node| station(node.id)).collect();
        let Some(latency) = &mut scenario.hardware.latency else { return };
        for (row, cpu_station) in latency.between_ns.iter_mut().zip(&stations) {
            for (ns, memory_station) in row.iter_mut().zip(&stations) {
                if cpu_station != memory_station {
                    *ns += self.delay * DELAYED_PACKETS * HECTOR_CYCLE_NS;
                }
            }
        }
    }

    /// Applies the changes that concern gangs, the bus and the list of jobs.
    fn apply_to_bus(&self, scenario: &mut Scenario) {
        let rules = &mut scenario.contract.machine.gangs;
        rules.by = self.gangs.unwrap_or(rules.by);
        if let Some(bus) = &mut scenario.hardware.bus {
            bus.transactions_per_ms = bus.transactions_per_ms * u64::from(self.bus_percent) / 100;
            let rate = &mut scenario.hardware.machine.bus_bytes_per_s;
            *rate = rate.map(|rate| rate * u64::from(self.bus_percent) / 100);
        }
        if self.jobs.is_empty() {
            return;
        }
        let workload = &mut scenario.workload;
        let Some(unit) = workload.jobs.first().map(|job| job.unit) else { return };
        let job = |(name, count): &(&str, u32)| {
            let program = workload.programs.iter().position(|program| program.name == *name)?;
            Some(Job {
                name: (*name).to_owned(),
                unit,
                program: u32::try_from(program).ok()?,
                start_ns: 0,
                count: *count,
                every_ns: 0,
                deadline_ns: None,
                disk: 0,
                background: workload.programs[program].runs_for_ever(),
            })
        };
        workload.jobs = self.jobs.iter().filter_map(job).collect();
    }

    /// Applies all changes.
    fn apply(&self, scenario: &mut Scenario) {
        self.apply_to_pools(scenario);
        self.apply_to_bus(scenario);
        let kernel = &mut scenario.hardware.kernel;
        kernel.scheduler = self.scheduler.unwrap_or(kernel.scheduler);
        for disk in &mut scenario.hardware.disks {
            disk.order = self.order.or(disk.order);
            disk.threshold_sectors = self.threshold_sectors.unwrap_or(disk.threshold_sectors);
        }
        if self.uncontended {
            scenario.hardware.contention = None;
        }
        kernel.call_back = self.call_back.unwrap_or(kernel.call_back);
        if let Some(ns) = self.tick_ns {
            kernel.tick_ns = ns;
            kernel.slice_ns = kernel.slice_ns.max(ns);
        }
        if let Some(part) = self.reserve {
            scenario.contract.machine.reserve = Amount::Part(part);
        }
        for lock in &mut scenario.workload.locks {
            lock.inherit |= self.inherit;
        }
        for unit in &mut scenario.contract.units {
            unit.discipline = self.discipline.unwrap_or(unit.discipline);
        }
        if let (Some(copies), Some(job)) = (self.copies, scenario.workload.jobs.first_mut()) {
            job.count = copies;
        }
        if self.in_time {
            scenario.contract.machine.cpu = CpuMode::Proportional;
        }
        let horizon_ns = &mut scenario.workload.horizon_ns;
        *horizon_ns = self.until_s.map_or(*horizon_ns, |s| *horizon_ns.min(&mut (s * 1_000_000_000)));
        if let Some((disk, pages)) = self.offered {
            let frame = scenario.hardware.kernel.frame_bytes;
            let timed = scenario.workload.changes.iter_mut().map(|change| &mut change.change);
            let awaited = scenario.workload.awaited.iter_mut().map(|change| &mut change.change);
            for change in timed.chain(awaited) {
                let rights::Change::Offer { bid } = change else { continue };
                for offer in [&mut bid.gives, &mut bid.wants] {
                    *offer = match offer.resource {
                        Resource::Disk => Offer::tickets(Resource::Disk, disk),
                        resource => Offer::hard(resource, Amount::Absolute(pages * frame)),
                    };
                }
            }
        }
        let contract = &scenario.contract;
        let around: Vec<_> = contract.held().filter_map(|unit| contract.unit(unit).parent).collect();
        let pair: Vec<_> = contract.held().filter(|unit| !around.contains(unit)).take(2).collect();
        for unit in &pair {
            scenario.contract.units[unit.index()].negotiate |= self.negotiate;
        }
        if let [first, second] = pair[..] {
            for (from, to, resource) in [(first, second, Resource::Disk), (second, first, Resource::Cpu)] {
                scenario.contract.units[from.index()].tickets[resource] -= self.exchanged;
                scenario.contract.units[to.index()].tickets[resource] += self.exchanged;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_different() {
        let experiment =
            on(MAKE_AND_COPY, Scheme::Isolate).threshold(16).reserve(80_000).call_back(CallBack::Now);
        assert_eq!(
            experiment.name(),
            "disk-make-and-copy/{machine, workload} isolate, order fair, threshold 16, call back now, reserve 8.0 %"
        );
        assert_eq!(on(DUMP, Scheme::Smp).name(), "four-way/{machine, dump} smp, scheduler irix-decay");
    }

    #[test]
    fn differences_arrive_in_the_scenario() {
        let plain = on(LOCKS_STOCK, Scheme::Smp).scenario().unwrap();
        assert_eq!(plain.contract.machine.scheme, Scheme::Smp);
        assert_eq!(plain.hardware.kernel.scheduler, Scheduler::IrixDecay);
        assert!(plain.hardware.contention.is_some() && !plain.workload.locks[0].inherit);
        let changed = on(LOCKS_STOCK, Scheme::Quota)
            .threshold(7)
            .uncontended()
            .call_back(CallBack::Now)
            .tick(1_000_000_000)
            .reserve(0)
            .inherit()
            .in_time()
            .under(Discipline::Rr)
            .copies(3)
            .scenario()
            .unwrap();
        assert_eq!(changed.contract.machine.scheme, Scheme::Quota);
        assert_eq!(changed.hardware.kernel.scheduler, Scheduler::Commonhold);
        assert_eq!(changed.contract.machine.reserve, Amount::Part(0));
        assert_eq!(changed.contract.machine.cpu, CpuMode::Proportional);
        assert!(changed.contract.units.iter().all(|unit| unit.discipline == Discipline::Rr));
        let hardware = changed.hardware;
        assert!(hardware.disks.iter().all(|d| d.order == Some(DiskOrder::Fair) && d.threshold_sectors == 7));
        assert!(hardware.contention.is_none());
        assert_eq!(
            (hardware.kernel.call_back, hardware.kernel.tick_ns, hardware.kernel.slice_ns),
            (CallBack::Now, 1_000_000_000, 1_000_000_000)
        );
        assert!(changed.workload.locks.iter().all(|lock| lock.inherit));
        assert_eq!(changed.workload.jobs[0].count, 3);
        // What is not changed stays.
        assert_eq!(changed.workload.programs, plain.workload.programs);
    }
}
