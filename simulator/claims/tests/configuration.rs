//! The scenarios have the machines, users and jobs of the papers (seed 000, sections 1.1, 4.1 to 4.5, tables
//! 2 and 3; seed 004, section 5; seed 002, scalability in practice). The tests only read the scenarios, and
//! simulate nothing.
#![allow(clippy::unwrap_used)]

use commonhold_claims::experiments::{self, Files, on};
use commonhold_contract::{Amount, Discipline, Resource, Scheme};
use commonhold_policy::rights::Change;
use commonhold_sim::scenario::{
    Amount as Span, BatchChosen, CallBack, DiskModel, DiskOrder, Op, Scenario, Spread,
};

const MIB: u64 = 1 << 20;

fn scenario(files: Files) -> Scenario {
    on(files, Scheme::Isolate).scenario().unwrap()
}

/// The number of CPUs, and the memory in MiB.
fn size(scenario: &Scenario) -> (usize, u64) {
    let machine = &scenario.hardware.machine;
    (machine.cpus.len(), machine.memory_bytes() / MIB)
}

/// The jobs by unit and program, with the number of copies, in the order of the text.
fn jobs(scenario: &Scenario) -> Vec<String> {
    let workload = &scenario.workload;
    let name = |job: &commonhold_sim::scenario::Job| {
        let program = &workload.programs[job.program as usize].name;
        format!("{} {} {}", scenario.contract.unit(job.unit).path, job.count, program)
    };
    workload.jobs.iter().map(name).collect()
}

/// The number of children that the job's program runs at once.
fn at_once(scenario: &Scenario, job: usize) -> u32 {
    let program = &scenario.workload.programs[scenario.workload.jobs[job].program as usize];
    let runs = program.ops.iter().map(|op| if let Op::Run { at_once, .. } = op { *at_once } else { 0 });
    runs.max().unwrap()
}

/// Whether every unit's jobs are on a disk that no other unit uses.
fn disks_are_separate(scenario: &Scenario) -> bool {
    let jobs = &scenario.workload.jobs;
    jobs.iter().all(|job| jobs.iter().all(|other| (job.unit == other.unit) == (job.disk == other.disk)))
}

/// All machines of section 4.1 have the same tick and the same cache, and no scenario changes the units'
/// shares.
fn is_of_the_paper(scenario: &Scenario) {
    let kernel = &scenario.hardware.kernel;
    assert_eq!((kernel.tick_ns, kernel.call_back), (10_000_000, CallBack::Entry));
    assert_eq!(kernel.frame_bytes, 4096);
    let cache = scenario.hardware.cache.unwrap();
    assert_eq!((cache.bytes, cache.line_bytes, cache.miss_ns), (MIB, 128, 500));
    let rules = &scenario.contract.machine;
    assert_eq!((rules.reserve, rules.rotation_ns), (Amount::Part(80_000), 250_000_000));
    let units = scenario.contract.held().map(|id| scenario.contract.unit(id));
    let asked: Vec<_> = units.map(|u| (u.tickets, &u.hard, &u.limit, &u.lend, &u.borrow)).collect();
    assert!(asked.iter().all(|one| *one == asked[0]), "shares are not equal: {asked:?}");
}

#[test]
fn four_ways_are_four_uniprocessors() {
    let (one, four) = (scenario(experiments::UNIPROCESSOR), scenario(experiments::OTHERS[5]));
    let ((cpus, memory), disks) = (size(&one), one.hardware.disks.len());
    assert_eq!((size(&four), four.hardware.disks.len()), ((4 * cpus, 4 * memory), 4 * disks));
    assert_eq!(one.workload.programs, four.workload.programs);
    assert_eq!(jobs(&one), ["a 1 pmake"]);
    for (others, files) in (0u32..).zip(experiments::OTHERS) {
        let step = scenario(files);
        is_of_the_paper(&step);
        assert!(disks_are_separate(&step) && at_once(&step, 0) == 2);
        assert_eq!(step.workload.jobs.iter().map(|job| job.count).sum::<u32>(), 1 + others);
        assert_eq!(jobs(&step)[0], "a 1 pmake");
        assert_eq!(
            (step.hardware, step.workload.programs),
            (four.hardware.clone(), four.workload.programs.clone())
        );
    }
    let dump = scenario(experiments::DUMP);
    assert_eq!(jobs(&dump), ["a 1 pmake", "b 1 pmake", "c 1 pmake", "d 1 pmake", "d 1 dump"]);
    // It writes to the disk of user A.
    let core = dump.workload.files.iter().find(|file| file.name == "core").unwrap();
    assert_eq!(core.disk, Some(dump.workload.jobs[0].disk));
}

#[test]
fn kernel_intensive() {
    let (balanced, unbalanced) =
        (scenario(experiments::KERNEL_BALANCED), scenario(experiments::KERNEL_UNBALANCED));
    for scenario in [&balanced, &unbalanced] {
        is_of_the_paper(scenario);
        assert_eq!((size(scenario), scenario.contract.held().count()), ((8, 44), 8));
        assert!(disks_are_separate(scenario) && (0..8).all(|job| at_once(scenario, job) == 2));
    }
    let counts = |scenario: &Scenario| scenario.workload.jobs.iter().map(|job| job.count).collect::<Vec<_>>();
    assert_eq!((counts(&balanced), counts(&unbalanced)), (vec![1; 8], vec![1, 1, 1, 1, 2, 2, 2, 2]));
    // The single workstation is the same machine and contract with one user's jobs.
    for (files, expected) in
        [(experiments::KERNEL_ONE, "u1 1 pmake"), (experiments::KERNEL_TWO, "u1 2 pmake")]
    {
        let alone = scenario(files);
        assert_eq!(jobs(&alone), [expected]);
        assert_eq!((alone.hardware, alone.contract), (balanced.hardware.clone(), balanced.contract.clone()));
    }
}

#[test]
fn cpu_isolation() {
    let scenario = scenario(experiments::CPU_ISOLATION);
    is_of_the_paper(&scenario);
    assert_eq!(size(&scenario), (8, 64));
    assert_eq!(jobs(&scenario), ["ocean 1 ocean", "others 3 flashlite", "others 3 vcs"]);
    assert_eq!(at_once(&scenario, 0), 4);
    assert!(disks_are_separate(&scenario));
    // Kernel work at the start only, and no files.
    for program in &scenario.workload.programs {
        let kernel = |op: &Op| matches!(op, Op::Cpu { kernel, .. } if *kernel > 0);
        assert!(program.ops.iter().skip(1).all(|op| !kernel(op)), "{}", program.name);
    }
    assert!(scenario.workload.files.is_empty());
    // Memory is not a factor: all that ever runs at once fits beside the kernel.
    let four = |name: &str| if name == "thread" { 4 } else { 3 };
    let needed: u64 = scenario.workload.programs.iter().map(|p| four(&p.name) * p.memory_bytes).sum();
    assert!(needed + scenario.hardware.kernel.memory_bytes < 64 * MIB);
}

#[test]
fn memory_isolation() {
    let (balanced, unbalanced) =
        (scenario(experiments::MEMORY_BALANCED), scenario(experiments::MEMORY_UNBALANCED));
    for scenario in [&balanced, &unbalanced] {
        is_of_the_paper(scenario);
        assert_eq!((size(scenario), scenario.contract.held().count()), ((4, 16), 2));
        assert!(disks_are_separate(scenario) && at_once(scenario, 0) == 4 && at_once(scenario, 1) == 4);
    }
    assert_eq!(jobs(&balanced), ["u1 1 pmake", "u2 1 pmake"]);
    assert_eq!(jobs(&unbalanced), ["u1 1 pmake", "u2 2 pmake"]);
    let half = scenario(experiments::MEMORY_HALF);
    assert_eq!((size(&half).0, jobs(&half)), (2, vec!["u1 1 pmake".to_owned()]));
    // The kernel is equally large on both machines, so users have half of the rest.
    let users = |scenario: &Scenario| {
        scenario.hardware.machine.memory_bytes() - scenario.hardware.kernel.memory_bytes
    };
    assert_eq!(2 * users(&half), users(&balanced));
}

/// Whether at most every third request to a file begins a new contiguous piece.
fn is_mostly_contiguous(scenario: &Scenario, file: &commonhold_sim::scenario::File) -> bool {
    let request = u64::from(scenario.hardware.kernel.request_sectors) * 512;
    file.fragment_bytes == 0 || file.fragment_bytes >= 3 * request
}

#[test]
fn disk_isolation() {
    let scenario = scenario(experiments::MAKE_AND_COPY);
    is_of_the_paper(&scenario);
    assert_eq!(size(&scenario), (2, 44));
    assert_eq!(jobs(&scenario), ["make 1 pmake", "copy 1 copy"]);
    let [disk] = scenario.hardware.disks.as_slice() else { panic!("one disk") };
    assert_eq!((&disk.model, disk.half_life_ns), (&DiskModel::Hp97560 { scale: 2 }, 500_000_000));
    let size_of = |name: &str| scenario.workload.files.iter().find(|file| file.name == name).unwrap();
    for name in ["from", "to"] {
        assert_eq!(size_of(name).bytes, 20 * MIB);
        assert!(is_mostly_contiguous(&scenario, size_of(name)));
    }
    // 20 MiB read and 20 MiB written in requests of 78 sectors: 40 * 2^20 / (78 * 512) = 1050.3.
    assert_eq!(40 * MIB / (u64::from(scenario.hardware.kernel.request_sectors) * 512), 1050);
    // The make's files lie in pieces.
    assert!(!is_mostly_contiguous(&scenario, size_of("sources")));
}

#[test]
fn two_copies() {
    let scenario = scenario(experiments::TWO_COPIES);
    is_of_the_paper(&scenario);
    assert_eq!(scenario.hardware.disks, crate::scenario(experiments::MAKE_AND_COPY).hardware.disks);
    let mut units = jobs(&scenario);
    units.sort();
    assert_eq!(units, ["big 1 big", "small 1 small"]);
    let files = &scenario.workload.files;
    let sizes: Vec<u64> = files.iter().map(|file| file.bytes).collect();
    assert_eq!(sizes, [500 << 10, 500 << 10, 5 * MIB, 5 * MIB]);
    assert!(files.iter().all(|file| is_mostly_contiguous(&scenario, file)));
}

#[test]
fn the_make_and_its_machine_are_the_same_everywhere() {
    let first = scenario(experiments::OTHERS[0]);
    let program = |scenario: &Scenario, name: &str| {
        scenario.workload.programs.iter().find(|program| program.name == name).unwrap().clone()
    };
    let with_a_make = [
        experiments::UNIPROCESSOR,
        experiments::OTHERS[1],
        experiments::OTHERS[2],
        experiments::OTHERS[3],
        experiments::OTHERS[4],
        experiments::OTHERS[5],
        experiments::DUMP,
        experiments::KERNEL_BALANCED,
        experiments::KERNEL_UNBALANCED,
        experiments::KERNEL_AMPLE,
        experiments::KERNEL_ONE,
        experiments::KERNEL_TWO,
        experiments::MEMORY_BALANCED,
        experiments::MEMORY_UNBALANCED,
        experiments::MEMORY_AMPLE,
        experiments::MEMORY_HALF,
        experiments::MAKE_AND_COPY,
        experiments::MAKE_ALONE,
    ];
    for files in with_a_make {
        let other = scenario(files);
        for name in ["compile", "link"] {
            assert_eq!(program(&other, name), program(&first, name), "{} of {}", name, files.name);
        }
        assert_eq!(other.hardware.kernel, first.hardware.kernel, "{}", files.name);
        assert_eq!(other.hardware.contention, first.hardware.contention, "{}", files.name);
    }
    // With locks, a compile takes the same time.
    let work = |scenario: &Scenario| -> u64 {
        let mut round = 0;
        let mut sum = 0;
        for op in &program(scenario, "compile").ops {
            match op {
                Op::Cpu { work, .. } => round += work.mean,
                // The only loop repeats everything since the first step.
                Op::Again { times, .. } => {
                    sum += (round - 40_000_000) * u64::from(times - 1);
                }
                _ => {}
            }
        }
        sum + round
    };
    for files in [
        experiments::LOCKS_FIXED,
        experiments::LOCKS_INODE,
        experiments::LOCKS_INSERT,
        experiments::LOCKS_STOCK,
    ] {
        let other = scenario(files);
        assert_eq!(work(&other), work(&first), "{}", files.name);
        assert_eq!(other.hardware.kernel, first.hardware.kernel, "{}", files.name);
    }
}

/// The tickets of units for a resource, by path.
fn tickets_of(scenario: &Scenario, resource: Resource) -> Vec<(&str, u64)> {
    let contract = &scenario.contract;
    contract.held().map(|id| contract.unit(id)).map(|unit| (&*unit.path, unit.tickets[resource])).collect()
}

/// Seed 004, sections 5.1 to 5.5.
#[test]
fn tickets() {
    let cpu = scenario(experiments::TICKETS_CPU);
    assert_eq!((size(&cpu), cpu.workload.horizon_ns), ((1, 128), 200_000_000_000));
    let expected =
        [("a", 100), ("a/a1", 100), ("a/a2", 200), ("b", 100), ("b/b1", 100), ("b/b2", 200), ("b/b3", 300)];
    assert_eq!(tickets_of(&cpu, Resource::Cpu), expected);
    assert!(jobs(&cpu).iter().all(|job| job.ends_with("dhrystone") != job.starts_with("b/b3")));

    let memory = scenario(experiments::TICKETS_MEMORY);
    let kernel = &memory.hardware.kernel;
    assert_eq!(
        (size(&memory), kernel.frame_bytes, kernel.memory_bytes),
        ((1, 8), 4096, 8 * MIB - 1_075 * 4096)
    );
    let hard = memory.contract.held().map(|id| memory.contract.unit(id).hard[Resource::Memory]);
    let pages = |pages: u64| Some(Amount::Absolute(pages * 4096));
    assert_eq!(hard.collect::<Vec<_>>(), [pages(500), pages(350), None, None]);
    let file = &memory.workload.files[0];
    assert_eq!(
        (file.bytes, file.shared, memory.workload.programs[0].memory_bytes),
        (16 * MIB, true, 4 * MIB)
    );

    let disk = scenario(experiments::TICKETS_DISK);
    let (drive, kernel) = (&disk.hardware.disks[0], &disk.hardware.kernel);
    assert_eq!(
        (drive.order, drive.batch, drive.batch_chosen, kernel.read_ahead, kernel.request_sectors),
        (Some(DiskOrder::Yfq), 2, BatchChosen::AfterResubmission, 0, 8)
    );
    assert_eq!(
        disk.contract.unit(disk.workload.jobs[0].unit).hard[Resource::Disk],
        Some(Amount::Part(500_000))
    );
    assert_eq!(disk.workload.files[0].bytes, 4_096 * 4_096);
    assert_eq!(disk.workload.jobs.len(), 5);
    let two = scenario(experiments::TICKETS_DISK_TWO);
    assert_eq!((two.workload.jobs.len(), &two.hardware), (2, &disk.hardware));

    let seven = scenario(experiments::TICKETS_EXCHANGE);
    assert_eq!((&seven.hardware.disks, seven.workload.horizon_ns), (&disk.hardware.disks, 100_000_000_000));
    let computes = jobs(&seven).iter().filter(|job| job.ends_with("dhrystone")).count();
    assert_eq!((jobs(&seven).len(), computes), (7, 2));
    for resource in [Resource::Cpu, Resource::Disk] {
        assert!(tickets_of(&seven, resource).iter().all(|(_, tickets)| *tickets == 1_000));
    }
    let lottery = scenario(experiments::TICKETS_EXCHANGE_LOTTERY);
    assert_eq!(lottery.hardware, seven.hardware);
    assert_eq!(
        lottery.contract.unit(lottery.contract.find("tasks").unwrap()).discipline,
        Discipline::Lottery
    );
    assert_eq!(jobs(&lottery).len(), 7);
    for (files, around) in [(experiments::TICKETS_EXCHANGE, 0), (experiments::TICKETS_EXCHANGE_LOTTERY, 1)] {
        let exchanged = on(files, Scheme::Isolate).exchange(300).scenario().unwrap();
        let first = |resource| {
            let tickets = tickets_of(&exchanged, resource);
            tickets[around..around + 3].iter().map(|(_, n)| *n).collect::<Vec<_>>()
        };
        assert_eq!(
            (first(Resource::Cpu), first(Resource::Disk)),
            (vec![1_300, 700, 1_000], vec![700, 1_300, 1_000])
        );
    }
}

/// Seed 004, section 5.6.
#[test]
fn databases() {
    const PAGE: u64 = 4096;
    let none = scenario(experiments::DATABASES);
    let (kernel, drive) = (&none.hardware.kernel, &none.hardware.disks[0]);
    assert_eq!((size(&none), kernel.frame_bytes, none.workload.horizon_ns), ((1, 16), PAGE, 300_000_000_000));
    // 11.1 MB, where 1,375 pages are 5.5 MB.
    assert_eq!(16 * MIB - kernel.memory_bytes, 11_100_000 / 4_000 * PAGE);
    assert_eq!((drive.order, drive.batch, kernel.request_sectors), (Some(DiskOrder::Yfq), 2, 8));
    let files: Vec<_> = none.workload.files.iter().map(|file| (file.bytes, file.buffer_bytes)).collect();
    assert_eq!(files, [(4 * MIB, 4 * MIB), (64 * MIB, 500 << 10), (16 * MIB, 0)]);
    assert_eq!(jobs(&none).iter().filter(|job| job.ends_with("iohog")).count(), 4);
    for resource in [Resource::Cpu, Resource::Disk] {
        assert!(
            tickets_of(&none, resource)
                .iter()
                .all(|(unit, tickets)| *tickets == 1_000 && !unit.contains('/'))
        );
    }
    let databases = none.contract.held().take(2).map(|id| none.contract.unit(id).hard[Resource::Memory]);
    assert!(databases.into_iter().all(|hard| hard == Some(Amount::Absolute(1_375 * PAGE))));

    let offers = on(experiments::DATABASES_OFFERS, Scheme::Isolate).offer(800, 300).scenario().unwrap();
    assert_eq!((&offers.contract, &offers.hardware), (&none.contract, &none.hardware));
    let [big] = &offers.workload.changes[..] else { panic!("{:?}", offers.workload.changes) };
    let [small] = &offers.workload.awaited[..] else { panic!("{:?}", offers.workload.awaited) };
    let job = &offers.workload.jobs[usize::from(small.job)].name;
    assert_eq!((big.at_ns, job.as_str(), small.rounds), (0, "small", 10_000));
    let asked = [big.change, small.change].map(|change| match change {
        Change::Offer { bid } => (bid.gives.to_string(), bid.wants.to_string()),
        other => panic!("{other:?}"),
    });
    let [disk, memory] = ["disk:800".to_owned(), "memory:1200KiB".to_owned()];
    assert_eq!(asked, [(memory.clone(), disk.clone()), (disk, memory)]);
}

/// Seed 002, memory hierarchy: local memory takes hundreds of ns. Remote memory takes a few us at most, not
/// ms.
#[test]
fn the_memory_hierarchy_by_orders_of_magnitude() {
    let miss_ns = scenario(experiments::KERNEL_BALANCED).hardware.cache.unwrap().miss_ns;
    assert!((100..1_000).contains(&miss_ns), "{miss_ns}");
    let latency = scenario(experiments::CPU_ISOLATION_NUMA).hardware.latency.unwrap();
    let (local_ns, remote_ns) = (latency.local_ns, latency.between_ns[0][1]);
    assert!(local_ns < remote_ns && remote_ns < 10_000, "{local_ns} {remote_ns}");
}

/// Seed 002, scalability in practice: the machines that it names.
#[test]
fn machines_of_the_lecture() {
    let shape = |files| {
        let machine = scenario(files).hardware.machine;
        (machine.nodes.len(), machine.cpus.len())
    };
    for files in [experiments::TREE_NONE, experiments::TREE_SPIN, experiments::TREE_READERS] {
        assert_eq!(shape(files), (4, 12));
    }
    assert_eq!(experiments::AIM7_FEW.map(shape), [(1, 1), (1, 2)]);
    let [spindle, raid, ram, none] = experiments::AIM7.map(scenario);
    // They differ in the disk, and the last in what it does.
    for other in [&raid, &ram] {
        let (one, other) = (spindle.clone(), other.clone());
        assert_eq!((one.workload, one.hardware.kernel), (other.workload, other.hardware.kernel));
        assert_eq!(one.hardware.machine.cpus, other.hardware.machine.cpus);
    }
    assert_eq!(none.hardware, ram.hardware);
    assert!(none.workload.programs[0].ops.iter().all(|op| matches!(op, Op::Cpu { .. } | Op::Again { .. })));
}

/// Seed 002, lock metering: the time between two holds and the transfer time of the lock's cache line follow
/// from the printed figures for twelve CPUs.
#[test]
fn the_lock_is_that_of_the_printed_row() {
    let (taken, held_us, wait_us, cpus) = (50_542_055.0, 0.5, 29.0, 12.0);
    let (used, waits, spun) = (0.723, 0.131, 0.425);
    let between_us = held_us / used; // of two takes, by whichever CPU
    let round_us = between_us * cpus;
    assert!((taken * between_us / 1e6 - 35.0_f64).abs() < 0.1);
    let think_us = round_us - held_us - waits * wait_us;
    let line_ns = (between_us - held_us) / (spun * cpus) * 1e3;
    assert!((think_us - 4.0).abs() < 0.05 && (line_ns - 38.0).abs() < 0.5, "{think_us} us, {line_ns} ns");
    let (spin, readers) = (scenario(experiments::TREE_SPIN), scenario(experiments::TREE_READERS));
    let exactly = |mean| Span { mean, spread: Spread::Exponential };
    let cpu = |op: &Op| if let Op::Cpu { work, kernel: 0, .. } = op { Some(*work) } else { None };
    let times: Vec<_> = spin.workload.programs[0].ops.iter().filter_map(cpu).collect();
    assert_eq!(times, [exactly(4_000), exactly(500)]);
    let lock = &spin.workload.locks[0];
    assert_eq!((lock.spins, lock.line_ns, lock.readers), (true, 38, false));
    // The other lock differs in who may hold it, and in nothing else.
    let mut same = lock.clone();
    same.readers = true;
    assert_eq!((&same, spin.hardware), (&readers.workload.locks[0], readers.hardware));
    assert!(readers.workload.programs[0].ops.iter().any(|op| matches!(op, Op::Acquire { read: true, .. })));
}

fn hector_of(files: Files) -> Scenario {
    experiments::as_it_is(files, Scheme::Smp).scenario().unwrap()
}

const POOLS: [(Files, usize, u32); 4] = [
    (experiments::POOLS_TWO, 2, 300),
    (experiments::POOLS_FOUR, 4, 225),
    (experiments::POOLS_SIX, 6, 90),
    (experiments::POOLS_EIGHT, 8, 125),
];

/// Three of Hector's four stations, with a memory module of 4 MB for each processor, and the programs of
/// table 2 (seed 001, sections 3 and 4).
#[test]
fn hector() {
    let speedups =
        [("fft", 2.9), ("hough", 3.4), ("mm", 3.4), ("neural", 3.8), ("pde", 3.7), ("simplex", 2.4)];
    for (files, processes, _) in POOLS {
        let scenario = hector_of(files);
        let machine = &scenario.hardware.machine;
        assert_eq!(size(&scenario), (12, 48));
        let sockets: Vec<u32> = machine.cpus.iter().map(|cpu| cpu.socket).collect();
        assert_eq!(sockets, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        assert!(machine.cpus.iter().all(|cpu| cpu.node == cpu.id));
        assert_eq!(scenario.hardware.kernel.scheduler, commonhold_sim::scenario::Scheduler::Hurricane);
        for program in scenario.workload.programs.iter().filter(|program| program.is_job) {
            let (_, speedup) = speedups.iter().find(|(name, _)| *name == program.name).unwrap();
            // Memory is 40 % of the loss: lines take 29 cycles from the station's other modules, 19 from the
            // own one.
            let lost = 4.0 / speedup - 1.0;
            let shares = 0.4 * lost / (1.0 + 0.6 * lost) * 19.0 / 10.0;
            assert!((f64::from(program.shares) / 1e6 - shares).abs() < 6e-4, "{}", program.name);
            let children: u32 =
                program.ops.iter().map(|op| if let Op::Run { times, .. } = op { *times } else { 0 }).sum();
            assert_eq!(children as usize + 1, processes, "{}", program.name);
        }
    }
}

/// Table 1, in cycles of 60 ns: 19 for local memory, 29 within the station, and 37 plus three times the delay
/// over the ring.
#[test]
fn hectors_latencies() {
    for (delay, ring) in [(0, 37), (4, 49), (8, 61), (16, 85), (32, 133), (64, 229)] {
        let run = experiments::as_it_is(experiments::POOLS_FOUR, Scheme::Smp).delay(delay);
        let latency = run.scenario().unwrap().hardware.latency.unwrap();
        assert_eq!(latency.local_ns, 19 * 60);
        for (here, row) in latency.between_ns.iter().enumerate() {
            for (there, ns) in row.iter().enumerate() {
                let cycles = match (here == there, here / 4 == there / 4) {
                    (true, _) => 19,
                    (_, true) => 29,
                    _ => ring,
                };
                assert_eq!(*ns, cycles * 60, "{here} {there} with a delay of {delay}");
            }
        }
    }
}

/// Streams that run all programs repeatedly, each in its own order (sections 5.2 to 5.4).
#[test]
fn streams_of_jobs() {
    for (files, processes, jobs) in POOLS {
        let scenario = hector_of(files);
        let programs = &scenario.workload.programs;
        let streams = &scenario.workload.jobs;
        assert_eq!(streams.len(), 12 / processes);
        let orders: Vec<(Vec<&str>, u32)> = streams
            .iter()
            .map(|stream| {
                let ops = &programs[stream.program as usize].ops;
                let runs = ops.iter().filter_map(|op| match op {
                    Op::Run { program, times: 1, .. } => Some(programs[*program as usize].name.as_str()),
                    _ => None,
                });
                let rounds = ops
                    .iter()
                    .find_map(|op| if let Op::Again { times, .. } = op { Some(*times) } else { None });
                (runs.collect(), rounds.unwrap())
            })
            .collect();
        let all: u32 =
            orders.iter().map(|(order, rounds)| u32::try_from(order.len()).unwrap() * rounds).sum();
        assert_eq!(all, jobs, "{}", files.name);
        assert!(orders.iter().enumerate().all(|(at, order)| orders[..at].iter().all(|other| other != order)));
    }
}

/// Four Xeons with 256 KB of cache each, 1 GB of memory, and a bus of 29.5 transactions per microsecond, 64
/// bytes each (seed 003, section 3).
#[test]
fn four_xeons() {
    let scenario = experiments::as_it_is(experiments::BUS, Scheme::Smp).scenario().unwrap();
    assert_eq!(size(&scenario), (4, 1024));
    assert_eq!(scenario.hardware.kernel.scheduler, commonhold_sim::scenario::Scheduler::Linux24);
    assert_eq!(scenario.hardware.cache.map(|cache| (cache.bytes, cache.line_bytes)), Some((256 << 10, 64)));
    assert_eq!(scenario.hardware.bus.map(|bus| bus.transactions_per_ms), Some(29_500));
    // 1797 MB/s, of 2^20 bytes.
    let carries = scenario.hardware.machine.bus_bytes_per_s.unwrap() >> 20;
    assert!(carries.abs_diff(1_797) <= 4, "{carries}");
}

/// Eleven programs of two threads in the order of their rates, and BBMA and nBBMA; the jobs that the
/// experiments run (seed 003, sections 3 and 5).
#[test]
fn sets_of_programs_on_a_bus() {
    use commonhold_sim::scenario::Op;
    let scenario = experiments::as_it_is(experiments::BUS, Scheme::Smp).scenario().unwrap();
    assert_eq!(scenario.contract.machine.gangs.quantum_ns, 200_000_000);
    let rate = |name: &str| -> u32 {
        let program = scenario.workload.programs.iter().find(|program| program.name == name).unwrap();
        let rates = program.ops.iter().filter_map(|op| match op {
            Op::Cpu { bus_per_ms, .. } => Some(*bus_per_ms),
            _ => None,
        });
        let rates: Vec<u32> = rates.collect();
        rates.iter().sum::<u32>() / u32::try_from(rates.len()).unwrap()
    };
    let order =
        ["radiosity", "water-nsqr", "volrend", "barnes", "fmm", "lu-cb", "bt", "sp", "mg", "raytrace", "cg"];
    let rates = order.map(|name| rate(&format!("{name}-thread")));
    assert!(rates.is_sorted(), "{rates:?}");
    assert_eq!((rate("bbma"), rate("nbbma")), (23_600, 4));
    for (jobs, threads) in [
        (&[("cg", 2), ("bbma", 4)][..], 8),
        (&[("cg", 2), ("nbbma", 4)], 8),
        (&[("cg", 2), ("bbma", 2), ("nbbma", 2)], 8),
        (&[("cg", 1), ("bbma", 2)], 4),
        (&[("cg", 2)], 4),
    ] {
        let run = experiments::as_it_is(experiments::BUS, Scheme::Smp).jobs(jobs);
        let jobs = run.scenario().unwrap().workload.jobs;
        let threads_of =
            |job: &commonhold_sim::scenario::Job| if job.background { job.count } else { 2 * job.count };
        assert_eq!(jobs.iter().map(threads_of).sum::<u32>(), threads);
    }
}
