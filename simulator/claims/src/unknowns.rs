//! The unknowns: what the documents leave unsaid, and the models need.
//!
//! Each unknown has the range that the document's text, its hardware and its time allow, the source of that
//! range, and the *guess* that the scenario's files contain. A structural unknown is a choice between
//! variants of the model. [`crate::fit`] draws settings from the ranges, keeps those that reproduce one half
//! of a document's rows, and predicts the other half with them.
//!
//! An unknown is not varied if the document prints the value, or if the value follows from what it prints.

use commonhold_contract::{Amount as Size, Discipline};
use commonhold_sim::scenario::{Amount, BusDivision, DiskModel, Op, Program, Scenario, Spread};
use commonhold_sim_report::claims::digits;

use crate::experiments::Experiment;

/// One of the five documents (ARCHITECTURE.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Document {
    /// 000: performance isolation.
    Isolation,
    /// 001: processor pools.
    Pools,
    /// 002: scalability and disciplines.
    Scalability,
    /// 003: gangs and the memory bus.
    Bus,
    /// 004: tickets and exchanges.
    Tickets,
}

impl Document {
    /// All documents.
    pub const ALL: [Document; 5] =
        [Document::Isolation, Document::Pools, Document::Scalability, Document::Bus, Document::Tickets];

    /// The number by which ARCHITECTURE.md cites it.
    pub const fn seed(self) -> &'static str {
        ["000", "001", "002", "003", "004"][self as usize]
    }

    /// The beginning of its rows' names.
    pub const fn prefix(self) -> &'static str {
        ["PI-", "PP-", "CH-", "BB-", "TK-"][self as usize]
    }
}

/// The values that an unknown may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// A number, each value as likely as any other.
    Even {
        /// The smallest.
        low: f64,
        /// The largest.
        high: f64,
    },
    /// A number, each factor as likely as any other. `low` is above 0.
    Log {
        /// The smallest.
        low: f64,
        /// The largest.
        high: f64,
    },
    /// One of several variants, by index.
    OneOf(&'static [&'static str]),
}

impl Range {
    /// The value at a fraction of the range, from 0 up to but not including 1.
    pub fn at(self, fraction: f64) -> f64 {
        match self {
            Range::Even { low, high } => low + (high - low) * fraction,
            Range::Log { low, high } => low * libm::exp(libm::log(high / low) * fraction),
            Range::OneOf(variants) => libm::floor(fraction * crate::measure::real(variants.len() as u64)),
        }
    }

    /// The fraction of the range at which a value lies; of a variant, the middle of its part.
    pub fn fraction(self, value: f64) -> f64 {
        match self {
            Range::Even { low, high } => (value - low) / (high - low),
            Range::Log { low, high } => libm::log(value / low) / libm::log(high / low),
            Range::OneOf(variants) => (value + 0.5) / crate::measure::real(variants.len() as u64),
        }
    }
}

/// What a document leaves unsaid.
#[derive(Debug)]
pub struct Unknown {
    /// The document.
    pub document: Document,
    /// Its name, unique within the document.
    pub name: &'static str,
    /// What it is.
    pub says: &'static str,
    /// The unit of measure; empty for a variant or a factor.
    pub unit: &'static str,
    /// The values that it may have.
    pub range: Range,
    /// The value in the scenario's files.
    pub guess: f64,
    /// Where the range comes from.
    pub source: &'static str,
    /// The folders of the scenarios that it concerns.
    folders: &'static [&'static str],
    /// Sets the value in a scenario. The guess changes nothing.
    apply: fn(&mut Scenario, f64),
}

impl Unknown {
    /// Whether it concerns the scenarios of a folder.
    pub fn concerns(&self, folder: &str) -> bool {
        self.folders.contains(&folder)
    }

    /// A value in words: `1.5 ms`, or the name of a variant.
    pub fn value(&self, value: f64) -> String {
        match self.range {
            Range::OneOf(variants) => {
                let index = usize::try_from(whole(value)).unwrap_or(usize::MAX);
                variants.get(index).copied().unwrap_or_default().to_owned()
            }
            Range::Even { .. } | Range::Log { .. } => {
                format!("{} {}", digits(value), self.unit).trim_end().to_owned()
            }
        }
    }
}

/// A value for each unknown of a document, in the order of [`unknowns`]; the guesses are not stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Setting(Vec<(&'static str, f64)>);

impl Setting {
    /// The guesses of all documents: the scenario's files as they are.
    pub const GUESS: Setting = Setting(Vec::new());

    /// The values of a document's unknowns, in their order.
    pub fn new(document: Document, values: &[f64]) -> Setting {
        Setting(unknowns(document).zip(values).map(|(unknown, value)| (unknown.name, *value)).collect())
    }

    /// The values, in the order of the unknowns; empty for the guesses.
    pub fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.0.iter().map(|(_, value)| *value)
    }

    /// Sets the values in the scenario of an experiment of this document.
    pub(crate) fn apply(&self, document: Document, experiment: &Experiment, scenario: &mut Scenario) {
        let folder = experiment.files.folder();
        for (unknown, (_, value)) in unknowns(document).zip(&self.0) {
            #[expect(clippy::float_cmp, reason = "a guess is copied, not computed")]
            if unknown.concerns(folder) && *value != unknown.guess {
                (unknown.apply)(scenario, *value);
            }
        }
    }
}

/// The unknowns of a document.
pub fn unknowns(document: Document) -> impl Iterator<Item = &'static Unknown> {
    UNKNOWNS.iter().filter(move |unknown| unknown.document == document)
}

const MS: f64 = 1e6;

/// The folders of seed 000 whose jobs are parallel makes on machines of the paper.
const MAKES: &[&str] =
    &["four-way", "kernel-intensive", "memory-isolation", "disk-make-and-copy", "kernel-locks"];
const COPIES: &[&str] = &["disk-make-and-copy", "disk-two-copies"];
const BUS: &[&str] = &["bus"];
const POOLS: &[&str] = &["pools"];
/// The folders of seed 004 whose tasks read a disk page by page.
const READERS: &[&str] = &["tickets-disk", "tickets-exchange"];

/// How a task waits at a barrier.
const WAITS: &[&str] = &[
    "OpenMP's threads spin, others sleep",
    "all spin",
    "all spin for 200 ms, then sleep",
    "all spin for 1 ms, then sleep",
    "all sleep",
];
/// How far apart files lie: the variants of a gap, and their values in MiB. With larger gaps, the files of
/// some scenarios would not fit on the HP 97560, and would overlap.
const GAPS: &[&str] = &["adjacent", "2 MiB", "10 MiB", "30 MiB", "100 MiB"];
const GAPS_MIB: [u64; 5] = [0, 2, 10, 30, 100];

/// How a program's work is divided among its processes, and the pieces for each process.
const PIECES: &[&str] =
    &["beforehand", "2 pieces for each process", "8 pieces for each", "32 pieces for each"];
const PIECES_EACH: [u32; 4] = [1, 2, 8, 32];

/// All unknowns, in the order of the documents.
pub static UNKNOWNS: &[Unknown] = &[
    Unknown {
        document: Document::Isolation,
        name: "memory",
        says: "memory of the four-way machine of figures 2 and 10; the uniprocessor has a quarter",
        unit: "MiB",
        range: Range::Even { low: 20.0, high: 64.0 },
        guess: 44.0,
        source: "table 2: the machines of the other experiments have 16, 44 and 64 MB; the jobs need 20",
        folders: &["four-way"],
        apply: |scenario, mib| {
            for node in &mut scenario.hardware.machine.nodes {
                node.memory_bytes = scaled(node.memory_bytes, mib / 44.0) / 4096 * 4096;
            }
        },
    },
    Unknown {
        document: Document::Isolation,
        name: "reuse",
        says: "CPU time between two uses of the same page by a compile",
        unit: "ms",
        range: Range::Log { low: 50.0, high: 2000.0 },
        guess: 100.0,
        source: "a compile computes for 0.5 s: between using its pages again and again, and each about once",
        folders: MAKES,
        apply: |scenario, ms| {
            for program in named(scenario, &["compile", "link"]) {
                program.reuse_ns = whole(ms * MS);
            }
        },
    },
    Unknown {
        document: Document::Isolation,
        name: "read-ahead",
        says: "read-ahead requests outstanding for a file that is read in sequence",
        unit: "",
        range: Range::OneOf(&["1", "2", "3", "4"]),
        guess: 0.0,
        source: "section 4.5 has 4 to 5.8 requests of the copy in the queue, reads and writes together",
        folders: COPIES,
        apply: |scenario, index| scenario.hardware.kernel.read_ahead = small(index) + 1,
    },
    Unknown {
        document: Document::Isolation,
        name: "write-behind",
        says: "write-behind requests outstanding at once",
        unit: "",
        range: Range::OneOf(&["1", "2", "3", "4"]),
        guess: 1.0,
        source: "section 4.5 has 4 to 5.8 requests of the copy in the queue, reads and writes together",
        folders: COPIES,
        apply: |scenario, index| scenario.hardware.kernel.write_behind = small(index) + 1,
    },
    Unknown {
        document: Document::Isolation,
        name: "gap",
        says: "free space between the files of the two copies",
        unit: "",
        range: Range::OneOf(GAPS),
        guess: 0.0,
        source: "each file is contiguous; where the four lie on a disk of 1.3 GB is not said",
        folders: &["disk-two-copies"],
        apply: gap,
    },
    Unknown {
        document: Document::Isolation,
        name: "gap-make",
        says: "free space between files, on the disk of the make and the copy",
        unit: "",
        range: Range::OneOf(GAPS),
        guess: 0.0,
        source: "not said",
        folders: &["disk-make-and-copy"],
        apply: gap,
    },
    Unknown {
        document: Document::Isolation,
        name: "depth",
        says: "requests that the kernel hands to the disk at once, beyond the reach of its scheduler",
        unit: "",
        range: Range::OneOf(&["1", "2", "4", "8"]),
        guess: 0.0,
        source: "not said; SCSI disks of the time queue up to 8 commands or more",
        folders: COPIES,
        apply: |scenario, index| {
            for disk in &mut scenario.hardware.disks {
                disk.depth = Some(1 << small(index)).filter(|depth| *depth > 1);
            }
        },
    },
    Unknown {
        document: Document::Isolation,
        name: "threshold",
        says: "bandwidth-difference threshold: by how much a unit may be ahead on a disk",
        unit: "sectors",
        range: Range::Log { low: 8.0, high: 8192.0 },
        guess: 64.0,
        source: "section 3.3: between equal shares at each request (0) and the order by position (infinite)",
        folders: COPIES,
        apply: |scenario, sectors| {
            for disk in &mut scenario.hardware.disks {
                // The rows about thresholds set others.
                if disk.threshold_sectors == 64 {
                    disk.threshold_sectors = whole(sectors);
                }
            }
        },
    },
    Unknown {
        document: Document::Isolation,
        name: "disks",
        says: "speed of the disks of figures 2 and 10, relative to an HP 97560",
        unit: "",
        range: Range::OneOf(&["1", "2", "4", "8"]),
        guess: 0.0,
        source: "not said; table 2 has fast disks for three workloads, and an HP 97560 of twice its speed for one",
        folders: &["four-way"],
        apply: |scenario, index| {
            for disk in &mut scenario.hardware.disks {
                if let DiskModel::Hp97560 { scale } = &mut disk.model {
                    *scale = 1 << small(index);
                }
            }
        },
    },
    Unknown {
        document: Document::Isolation,
        name: "extents",
        says: "size of the contiguous pieces of the make's files",
        unit: "KiB",
        range: Range::Log { low: 8.0, high: 124.0 },
        guess: 16.0,
        source: "between a block of IRIX's extent file system and its largest extent",
        folders: MAKES,
        apply: |scenario, kib| {
            for file in scenario
                .workload
                .files
                .iter_mut()
                .filter(|file| ["sources", "objects"].contains(&&*file.name))
            {
                file.fragment_bytes = whole(kib * 1024.0);
            }
        },
    },
    Unknown {
        document: Document::Isolation,
        name: "dump",
        says: "size of the contiguous pieces of the core dump",
        unit: "KiB",
        range: Range::Log { low: 124.0, high: 65_536.0 },
        guess: 124.0,
        source: "one extent, or the whole dump in one piece, on a disk that is otherwise empty",
        folders: &["four-way"],
        apply: |scenario, kib| {
            for file in scenario.workload.files.iter_mut().filter(|file| file.name == "core") {
                file.fragment_bytes = whole(kib * 1024.0);
            }
        },
    },
    Unknown {
        document: Document::Isolation,
        name: "dirty-limit",
        says: "fraction of memory above which dirty pages are written behind",
        unit: "%",
        range: Range::Even { low: 5.0, high: 40.0 },
        guess: 15.0,
        source: "table 5: 5.5 MB of 44 MB stay in memory, so 12.5 % at least there; not said for the other machines",
        folders: &["four-way", "disk-make-and-copy"],
        apply: |scenario, percent| scenario.hardware.kernel.dirty_limit = whole(percent * 1e4),
    },
    Unknown {
        document: Document::Isolation,
        name: "daemons",
        says: "CPU time of the system's own processes",
        unit: "%",
        range: Range::Log { low: 0.1, high: 4.0 },
        guess: 1.0,
        source: "any machine of the time has a clock daemon, a flusher and a network; none is mentioned",
        folders: &["four-way", "kernel-intensive", "memory-isolation"],
        apply: daemons,
    },
    Unknown {
        document: Document::Pools,
        name: "memory-part",
        says: "fraction of the speed-up lost in table 2 that is due to memory; the rest is imbalance",
        unit: "%",
        range: Range::Even { low: 10.0, high: 90.0 },
        guess: 40.0,
        source: "table 2 has only the sum of both",
        folders: POOLS,
        apply: |scenario, percent| {
            for program in &mut scenario.workload.programs {
                let before = f64::from(program.shares) / 1e6;
                let after = (before * percent / 40.0).min(0.95);
                program.shares = small(after * 1e6);
                // A shared access within a station takes 10 / 19 longer on three of four modules. The sum of
                // work and waits stays, so that S(4) stays as printed.
                let longer = |shares: f64| 1.0 + shares * 0.75 * 10.0 / 19.0;
                scale_work(program, longer(before) / longer(after));
            }
        },
    },
    Unknown {
        document: Document::Pools,
        name: "of-first",
        says: "shared data in the first process's memory, as a factor of the guesses (25 % to 90 % by program)",
        unit: "",
        range: Range::Even { low: 0.0, high: 1.1 },
        guess: 1.0,
        source: "from data spread evenly to all matrices of MM at the first process",
        folders: POOLS,
        apply: |scenario, factor| {
            for program in &mut scenario.workload.programs {
                program.of_first = small((f64::from(program.of_first) * factor).min(1e6));
            }
        },
    },
    Unknown {
        document: Document::Pools,
        name: "spread",
        says: "largest deviation of a process's work from the mean",
        unit: "%",
        range: Range::Even { low: 0.0, high: 30.0 },
        guess: 5.0,
        source: "0 if the run-time system gives work to processes piece by piece; S(4) allows 30 % of imbalance",
        folders: POOLS,
        apply: |scenario, percent| {
            for op in scenario.workload.programs.iter_mut().flat_map(|program| &mut program.ops) {
                if let Op::Cpu { work: Amount { spread: Spread::Uniform(part), .. }, .. } = op {
                    *part = small(percent * 1e4);
                }
            }
        },
    },
    Unknown {
        document: Document::Pools,
        name: "pieces",
        says: "how a program divides its work among its processes",
        unit: "",
        range: Range::OneOf(PIECES),
        guess: 0.0,
        source: "not said; run-time systems of the time do either, depending on the program",
        folders: POOLS,
        apply: |scenario, variant| {
            if let Some(pieces) =
                PIECES_EACH.get(small(variant) as usize).copied().filter(|pieces| *pieces > 1)
            {
                divide_into_pieces(scenario, pieces);
            }
        },
    },
    Unknown {
        document: Document::Pools,
        name: "module",
        says: "time for which a line keeps a memory module busy, as a factor of the guess (19 cycles)",
        unit: "",
        range: Range::Even { low: 0.5, high: 3.0 },
        guess: 1.0,
        source: "table 1 has latencies; a line that is replaced may be written back, and an atomic access takes two",
        folders: POOLS,
        apply: |scenario, factor| {
            let latency = scenario.hardware.latency.as_mut();
            if let Some(service) = latency.and_then(|latency| latency.service.as_mut()) {
                service.module_ns = scaled(service.module_ns, factor);
            }
        },
    },
    Unknown {
        document: Document::Pools,
        name: "length",
        says: "how long the programs run, as a factor of the guesses (8 to 20 s on one processor)",
        unit: "",
        range: Range::Log { low: 0.3, high: 3.0 },
        guess: 1.0,
        source: "not said; figure 1's jobs take tens of seconds",
        folders: POOLS,
        apply: |scenario, factor| {
            for program in &mut scenario.workload.programs {
                scale_work(program, factor);
            }
        },
    },
    Unknown {
        document: Document::Pools,
        name: "pause",
        says: "mean delay between two programs of a stream",
        unit: "ms",
        range: Range::Log { low: 5.0, high: 2000.0 },
        guess: 20.0,
        source: "section 5.2: small and random",
        folders: POOLS,
        apply: |scenario, ms| {
            for op in scenario.workload.programs.iter_mut().flat_map(|program| &mut program.ops) {
                if let Op::Sleep { span } = op {
                    span.mean = whole(ms * MS);
                }
            }
        },
    },
    Unknown {
        document: Document::Scalability,
        name: "kernel",
        says: "fraction of a multi-user process's work that is kernel work",
        unit: "%",
        range: Range::Log { low: 2.0, high: 40.0 },
        guess: 10.0,
        source: "a multi-user benchmark of computing, files and pipes; the lecture has no figure",
        folders: &["aim7", "tree-lock"],
        apply: |scenario, percent| {
            for op in scenario.workload.programs.iter_mut().flat_map(|program| &mut program.ops) {
                if let Op::Cpu { kernel, .. } = op
                    && *kernel > 0
                {
                    *kernel = small(percent * 1e4);
                }
            }
        },
    },
    Unknown {
        document: Document::Scalability,
        name: "file-system",
        says: "work under the file system's lock, as a factor of the guess (3 ms of 43)",
        unit: "",
        range: Range::Log { low: 0.3, high: 3.0 },
        guess: 1.0,
        source: "ext3 of Linux 2.4 works under the big kernel lock; for how long is not said",
        folders: &["aim7"],
        apply: |scenario, factor| {
            for op in scenario.workload.programs.iter_mut().flat_map(|program| &mut program.ops) {
                if let Op::Cpu { work, .. } = op
                    && work.mean == 3_000_000
                {
                    work.mean = scaled(work.mean, factor);
                }
            }
        },
    },
    Unknown {
        document: Document::Scalability,
        name: "hold",
        says: "distribution of the times for which tree_lock is held, and between holds",
        unit: "",
        range: Range::OneOf(&["exponential", "constant"]),
        guess: 0.0,
        source: "the printed row has a mean of 0.5 us and a longest hold of 9.5 us",
        folders: &["tree-lock"],
        apply: |scenario, variant| {
            for op in scenario.workload.programs.iter_mut().flat_map(|program| &mut program.ops) {
                if let Op::Cpu { work, .. } = op
                    && variant >= 1.0
                {
                    work.spread = Spread::None;
                }
            }
        },
    },
    Unknown {
        document: Document::Scalability,
        name: "line",
        says: "time to move tree_lock's cache line to one CPU",
        unit: "ns",
        range: Range::Log { low: 10.0, high: 150.0 },
        guess: 38.0,
        source: "the printed row gives 38 ns if every waiting CPU gets the line; a miss between nodes takes 150 ns",
        folders: &["tree-lock"],
        apply: |scenario, ns| {
            for lock in &mut scenario.workload.locks {
                lock.line_ns = whole(ns);
            }
        },
    },
    Unknown {
        document: Document::Scalability,
        name: "order",
        says: "which CPU gets tree_lock when it is released",
        unit: "",
        range: Range::OneOf(&["first come, first served", "its last holder first"]),
        guess: 0.0,
        source: "a spin lock of Linux 2.6 is a test-and-set lock, without an order",
        folders: &["tree-lock"],
        apply: |scenario, variant| {
            for lock in &mut scenario.workload.locks {
                lock.unfair |= variant >= 1.0;
            }
        },
    },
    Unknown {
        document: Document::Scalability,
        name: "burst",
        says: "number of times that a process takes tree_lock in a burst",
        unit: "",
        range: Range::Log { low: 1.0, high: 200.0 },
        guess: 1.0,
        source: "a read looks up page after page; the printed longest wait is 40,000 holds",
        folders: &["tree-lock"],
        apply: bursts,
    },
    Unknown {
        document: Document::Scalability,
        name: "barrier",
        says: "work between barriers, as a factor of the guesses (2 and 5 ms)",
        unit: "",
        range: Range::Log { low: 0.3, high: 5.0 },
        guess: 1.0,
        source: "not said",
        folders: &["gangs", "interrupts"],
        apply: |scenario, factor| {
            for program in &mut scenario.workload.programs {
                scale_work(program, factor);
            }
        },
    },
    Unknown {
        document: Document::Bus,
        name: "waits",
        says: "how a thread waits at a barrier",
        unit: "",
        range: Range::OneOf(WAITS),
        guess: 0.0,
        source: "section 3 names the programs, not their run-time systems' settings; OpenMP of the time spun for 200 ms \
                 by default",
        folders: BUS,
        apply: |scenario, variant| {
            for op in scenario.workload.programs.iter_mut().flat_map(|program| &mut program.ops) {
                if let Op::Barrier { spin_ns, .. } = op
                    && variant >= 1.0
                {
                    *spin_ns = [u64::MAX, 200_000_000, 1_000_000, 0][(small(variant) as usize - 1).min(3)];
                }
            }
        },
    },
    Unknown {
        document: Document::Bus,
        name: "barrier",
        says: "work between two barriers",
        unit: "ms",
        range: Range::Log { low: 2.0, high: 200.0 },
        guess: 20.0,
        source: "not said; the NAS programs of this size have iterations of 1 to 200 ms",
        folders: BUS,
        apply: |scenario, ms| {
            for program in &mut scenario.workload.programs {
                let ops = &mut program.ops;
                if !ops.iter().any(|op| matches!(op, Op::Barrier { .. })) {
                    continue;
                }
                // The work as a whole stays: fewer rounds of more work.
                for op in ops {
                    match op {
                        Op::Cpu { work, .. } => work.mean = whole(ms * MS),
                        Op::Again { times, counter, .. }
                            if *times > 1 && (*counter > 0 || *times == 1000) =>
                        {
                            *times = small(f64::from(*times) * 20.0 / ms).max(1);
                        }
                        _ => {}
                    }
                }
            }
        },
    },
    Unknown {
        document: Document::Bus,
        name: "first-rate",
        says: "rate assumed for a thread before it is measured, relative to a CPU's part of the bus",
        unit: "%",
        range: Range::Even { low: 0.0, high: 200.0 },
        guess: 100.0,
        source: "not said: nothing is known of a new job, or it is measured alone first",
        folders: BUS,
        apply: |scenario, percent| {
            scenario.contract.machine.gangs.first_rate = Size::Part(whole(percent * 1e4));
        },
    },
    Unknown {
        document: Document::Bus,
        name: "counter-age",
        says: "how old the programs' counters are when the manager reads them at the end of a quantum",
        unit: "ms",
        range: Range::Even { low: 0.0, high: 100.0 },
        guess: 0.0,
        source: "section 4: each program publishes its counters twice in a quantum of 200 ms",
        folders: BUS,
        apply: |scenario, ms| scenario.hardware.kernel.counter_age_ns = whole(ms * MS),
    },
    Unknown {
        document: Document::Bus,
        name: "starts",
        says: "time within which the programs start one after another",
        unit: "ms",
        range: Range::Log { low: 1.0, high: 5000.0 },
        guess: 20.0,
        source: "a script starts them, and they connect to the manager one by one",
        folders: BUS,
        apply: |scenario, ms| {
            if let Some(disturbance) = &mut scenario.hardware.disturbance {
                disturbance.starts_ns = whole(ms * MS);
            }
        },
    },
    Unknown {
        document: Document::Bus,
        name: "division",
        says: "how the front-side bus divides its capacity when it is full",
        unit: "",
        range: Range::OneOf(&["queue", "even"]),
        guess: 0.0,
        source: "the processor's manuals promise a round robin among agents; transactions of one agent queue",
        folders: BUS,
        apply: |scenario, variant| {
            if let (Some(bus), true) = (&mut scenario.hardware.bus, variant >= 1.0) {
                bus.division = BusDivision::Even;
            }
        },
    },
    Unknown {
        document: Document::Bus,
        name: "slice",
        says: "CPU time of a task in an epoch of Linux 2.4",
        unit: "ms",
        range: Range::Even { low: 50.0, high: 210.0 },
        guess: 60.0,
        source: "six ticks of 10 ms in 2.4; section 5 speaks of 100 ms; 2.2's kernels had 200 ms",
        folders: BUS,
        apply: |scenario, ms| scenario.hardware.kernel.slice_ns = whole(ms * MS),
    },
    Unknown {
        document: Document::Bus,
        name: "daemons",
        says: "CPU time of the system's own processes",
        unit: "%",
        range: Range::Log { low: 0.1, high: 4.0 },
        guess: 1.0,
        source: "any machine of the time has some; none is mentioned",
        folders: BUS,
        apply: daemons,
    },
    Unknown {
        document: Document::Tickets,
        name: "request",
        says: "CPU time to set up one read of a page",
        unit: "us",
        range: Range::Log { low: 100.0, high: 1000.0 },
        guess: 300.0,
        source: "a page fault that reads, on 200 MHz; not said",
        folders: READERS,
        apply: |scenario, us| scenario.hardware.kernel.request_ns = whole(us * 1e3),
    },
    Unknown {
        document: Document::Tickets,
        name: "gap",
        says: "free space between the readers' files",
        unit: "",
        range: Range::OneOf(GAPS),
        guess: 0.0,
        source: "not said; with more, the files do not fit the simulated disk",
        folders: READERS,
        apply: gap,
    },
    Unknown {
        document: Document::Tickets,
        name: "slice",
        says: "quantum of the CPU scheduler",
        unit: "ms",
        range: Range::Log { low: 10.0, high: 100.0 },
        guess: 100.0,
        source: "the paper on lottery scheduling has 100 ms; VINO's own quantum is not said",
        folders: &["tickets-cpu", "tickets-memory", "tickets-disk", "tickets-exchange"],
        apply: |scenario, ms| scenario.hardware.kernel.slice_ns = whole(ms * MS),
    },
    Unknown {
        document: Document::Tickets,
        name: "discipline",
        says: "how the CPU is divided by tickets",
        unit: "",
        range: Range::OneOf(&["lottery", "stride"]),
        guess: 0.0,
        source: "the paper adopts lottery scheduling; where its figures are averages, stride comes nearer to them",
        folders: &["tickets-exchange"],
        apply: |scenario, variant| {
            for unit in scenario.contract.units.iter_mut().filter(|_| variant >= 1.0) {
                unit.discipline = Discipline::Stride;
            }
        },
    },
];

/// Shortens the experiments that would take too long to be repeated under many settings: streams of jobs in
/// pools have a quarter of their rounds. Ratios of times, which the rows measure, stay about the same.
pub(crate) fn shorten(document: Document, scenario: &mut Scenario) {
    if document != Document::Pools {
        return;
    }
    for op in scenario.workload.programs.iter_mut().flat_map(|program| &mut program.ops) {
        if let Op::Again { times: times @ 10..100, .. } = op {
            *times /= 4;
        }
    }
}

/// An integer from a value that is not negative.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "ranges are far below 2^53")]
fn whole(value: f64) -> u64 {
    libm::round(value.max(0.0)) as u64
}

fn small(value: f64) -> u32 {
    u32::try_from(whole(value)).unwrap_or(u32::MAX)
}

fn scaled(amount: u64, factor: f64) -> u64 {
    whole(crate::measure::real(amount) * factor)
}

/// The free space behind each file, by the index of a variant of [`GAPS`].
fn gap(scenario: &mut Scenario, variant: f64) {
    let mib = GAPS_MIB.get(small(variant) as usize).copied().unwrap_or(0);
    for file in &mut scenario.workload.files {
        file.gap_bytes = mib << 20;
    }
}

/// Divides the work of a job's processes into pieces that the processes take one by one. In the scenarios of
/// pools, a process has one computation that varies at random, and its job has as many processes as its first
/// process starts, and that one.
fn divide_into_pieces(scenario: &mut Scenario, each: u32) {
    let is_varied = |op: &Op| matches!(op, Op::Cpu { work, .. } if work.spread != Spread::None);
    let started = |program: &Program| {
        program.ops.iter().find_map(|op| match op {
            Op::Run { program, times, beside: true, .. } => Some((*program as usize, *times)),
            _ => None,
        })
    };
    let programs = &mut scenario.workload.programs;
    let started: Vec<Option<(usize, u32)>> = programs.iter().map(started).collect();
    for (index, program) in programs.iter_mut().enumerate() {
        let of_first = started.iter().flatten().find(|(child, _)| *child == index);
        let Some((_, others)) = started[index].as_ref().or(of_first) else { continue };
        let pieces = each.saturating_mul(others + 1);
        let Some(at) = program.ops.iter().position(is_varied) else { continue };
        if let Op::Cpu { work, .. } = &mut program.ops[at] {
            work.mean = (work.mean / u64::from(each)).max(1);
        }
        let to = small(crate::measure::real(at as u64)) + 1;
        let piece = Op::Piece { pieces, to, past: to + 2 };
        program.ops.insert(at, piece);
        program.ops.insert(at + 2, piece);
    }
}

/// Lets each process of the lock scenario take the lock `burst` times in a row, with [`WITHIN_BURST`] between
/// two times; the mean work for each time stays.
fn bursts(scenario: &mut Scenario, burst: f64) {
    let times = small(burst);
    if times <= 1 {
        return;
    }
    for program in &mut scenario.workload.programs {
        let [
            Op::Cpu { work, .. },
            Op::Acquire { .. },
            hold @ Op::Cpu { .. },
            Op::Release { .. },
            Op::Again { .. },
        ] = &mut program.ops[..]
        else {
            continue;
        };
        let mut between = *hold;
        if let Op::Cpu { work, .. } = &mut between {
            work.mean = WITHIN_BURST;
        }
        work.mean = (work.mean * u64::from(times)).saturating_sub(WITHIN_BURST * u64::from(times)).max(1);
        program.ops.insert(4, between);
        program.ops.insert(5, Op::Again { to: 1, times, counter: 1 });
    }
}

/// Work between two takes of a lock in a burst, in ns: the rest of a look-up.
const WITHIN_BURST: u64 = 100;

fn named<'a>(scenario: &'a mut Scenario, names: &'a [&str]) -> impl Iterator<Item = &'a mut Program> {
    scenario.workload.programs.iter_mut().filter(|program| names.contains(&&*program.name))
}

/// Multiplies the work of all steps of a program.
fn scale_work(program: &mut Program, factor: f64) {
    for op in &mut program.ops {
        if let Op::Cpu { work, .. } = op {
            work.mean = scaled(work.mean, factor).max(1);
        }
    }
}

/// The part of CPU time that the daemons take, in per cent. The machine files have a daemon for each CPU.
fn daemons(scenario: &mut Scenario, percent: f64) {
    if let Some(disturbance) = &mut scenario.hardware.disturbance {
        disturbance.every_ns = scaled(disturbance.runs_ns, 100.0 / percent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit;
    use crate::rows::rows;
    use crate::run::needed;

    /// The experiments of a document's rows.
    fn experiments(document: Document) -> Vec<Experiment> {
        let rows: Vec<_> = rows().into_iter().filter(|row| fit::document(row) == Some(document)).collect();
        needed(&rows)
    }

    #[test]
    fn names_are_unique_and_guesses_are_in_range() {
        for document in Document::ALL {
            let names: Vec<&str> = unknowns(document).map(|unknown| unknown.name).collect();
            for (index, unknown) in unknowns(document).enumerate() {
                assert!(!names[..index].contains(&unknown.name), "{}", unknown.name);
                let fraction = unknown.range.fraction(unknown.guess);
                assert!((0.0..=1.0).contains(&fraction), "{}: {fraction}", unknown.name);
                assert!(!unknown.says.is_empty() && !unknown.source.is_empty(), "{}", unknown.name);
            }
        }
    }

    /// A guess is what the scenario's files contain, and every other value changes a scenario of the
    /// document.
    #[test]
    fn guesses_change_nothing_and_other_values_do() {
        for document in Document::ALL {
            let experiments = experiments(document);
            for unknown in unknowns(document) {
                let concerned = || experiments.iter().filter(|run| unknown.concerns(run.files.folder()));
                assert!(concerned().count() > 0, "{} concerns no experiment", unknown.name);
                let changes = |value: f64| {
                    concerned().any(|experiment| {
                        let plain = experiment.scenario().unwrap();
                        let mut changed = plain.clone();
                        (unknown.apply)(&mut changed, value);
                        changed != plain
                    })
                };
                assert!(!changes(unknown.guess), "the guess of {} is not the files'", unknown.name);
                let ends = [unknown.range.at(0.0), unknown.range.at(0.999)];
                assert!(ends.into_iter().any(changes), "{} has no effect", unknown.name);
            }
        }
    }
}
