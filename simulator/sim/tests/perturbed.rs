//! Metamorphic tests: relations between the outcomes of two scenarios that differ in one aspect:
//! - more of a resource does not hurt;
//! - twice the work takes twice as long;
//! - shares are as the tickets say;
//! - under isolation, a unit's neighbours do not matter.
#![allow(clippy::unwrap_used, clippy::format_push_string, reason = "texts of tests")]

mod scene;

use commonhold_sim::outcome::Outcome;
use scene::{MS, S, jobs, near, outcome, response, run_with, scenario, unit};

/// A parallel make: 24 compiles, four at a time, that compute for a given time, read and write files, and use
/// memory.
const MAKE: &str = r#"
[file.source]
size = "8MiB"
fragment = "16KiB"
[file.object]
size = "2MiB"
[program.compile]
memory = "1MiB"
reuse = "20ms"
do = [
    { read = "source", bytes = "12KiB", random = true },
    { cpu = "30ms", spread = "30%" },
    { metadata = "object", delayed = true },
    { cpu = "30ms", spread = "30%" },
    { write = "object", bytes = "16KiB" },
]
[program.make]
memory = "256KiB"
do = [{ run = "compile", times = 24, at_once = 4 }]
"#;

struct Machine {
    cpus: u64,
    memory_mib: u64,
    disk: &'static str,
    kernel: &'static str,
}

const MACHINE: Machine =
    Machine { cpus: 4, memory_mib: 64, disk: "model = \"hp97560\"\nscale = 2", kernel: "tick = \"10ms\"" };

/// A machine with a fast disk, so that the CPUs are the bottleneck.
const QUICK_DISK: Machine = Machine { disk: "model = \"hp97560\"\nscale = 50", ..MACHINE };

impl Machine {
    fn text(&self) -> String {
        let Machine { cpus, memory_mib, disk, kernel } = self;
        format!(
            "version = 1\nshape = \"cpus:{cpus} memory:{memory_mib}MiB\"\nenforces = \"irix\"\n[kernel]\nslice = \
             \"30ms\"\n{kernel}\n[disk.d0]\n{disk}\n"
        )
    }
}

fn contract(scheme: &str, tickets_b: u64) -> String {
    format!("version = 1\n[machine]\nscheme = \"{scheme}\"\n[unit.a]\n[unit.b]\ntickets = {tickets_b}\n")
}

/// Jobs by name, unit, program and number, beside what the texts say.
fn workload(texts: &str, jobs: &[(&str, &str, &str, u64)]) -> String {
    let mut text = format!("version = 1\nhorizon = \"1h\"\n{texts}\n");
    for (name, unit, program, count) in jobs {
        text += &format!("[job.{name}]\nunit = \"{unit}\"\nprogram = \"{program}\"\ncount = {count}\n");
    }
    text
}

/// The mean over five seeds.
fn mean(contract: &str, machine: &Machine, work: &str, what: impl Fn(&Outcome) -> u64) -> u64 {
    let scenario = scenario(contract, &machine.text(), work);
    (1..=5).map(|seed| what(&run_with(&scenario, seed))).sum::<u64>() / 5
}

/// The number of page faults of a job's copies that needed the disk.
fn faults(end: &Outcome, name: &str) -> u64 {
    jobs(end, name).iter().map(|job| job.spent.faults).sum()
}

/// Asserts that no value exceeds the previous value by more than `per_mille`.
#[track_caller]
fn falls(values: &[u64], per_mille: u64) {
    assert!(values.windows(2).all(|pair| pair[1] * 1000 <= pair[0] * (1000 + per_mille)), "{values:?}");
}

#[test]
fn more_cpus_do_not_slow_a_make_down() {
    let work = workload(MAKE, &[("a", "a", "make", 1)]);
    for scheme in ["isolate", "quota", "smp"] {
        let span = |cpus| {
            mean(&contract(scheme, 100), &Machine { cpus, ..QUICK_DISK }, &work, |end| response(end, "a"))
        };
        let spans = [1, 2, 3, 4, 6, 8].map(span);
        falls(&spans, 10);
        // On a single time-shared CPU, quota does not limit a unit. So machines with two and with four CPUs
        // are compared.
        assert!(2 * spans[1] > 3 * spans[3], "{scheme}: four at a time use four CPUs: {spans:?}");
    }
}

#[test]
fn more_memory_does_not_mean_more_faults() {
    let work = workload(MAKE, &[("a", "a", "make", 2), ("b", "b", "make", 1)]);
    for scheme in ["isolate", "quota", "smp"] {
        let mean_faults = |memory_mib| {
            mean(&contract(scheme, 100), &Machine { memory_mib, ..QUICK_DISK }, &work, |end| {
                faults(end, "a") + faults(end, "b")
            })
        };
        let counts = [3, 4, 5, 6, 8, 32].map(mean_faults);
        falls(&counts, 50);
        assert!(counts[0] > 100 && counts[5] == 0, "{scheme}: {counts:?}");
    }
}

#[test]
fn a_faster_disk_does_not_slow_anybody_down() {
    let work = workload(MAKE, &[("a", "a", "make", 1), ("b", "b", "make", 1)]);
    let disks = [1, 2, 4, 16].map(|scale| format!("model = \"hp97560\"\nscale = {scale}").leak() as &str);
    for scheme in ["isolate", "smp"] {
        let mean_response = |disk| {
            mean(&contract(scheme, 100), &Machine { disk, ..MACHINE }, &work, |end| {
                response(end, "a") + response(end, "b")
            })
        };
        let spans = disks.map(mean_response);
        falls(&spans, 10);
        assert!(spans[0] > spans[3], "the disk matters: {spans:?}");
    }
}

/// A program that copies a file of this size in pieces of 64 KiB.
fn copy(mib: u64) -> String {
    let rounds = mib * 16;
    format!(
        "[file.from]\nsize = \"{mib}MiB\"\n[file.to]\nsize = \"{mib}MiB\"\n[program.copy]\ndo = [{{ repeat = {rounds}, \
         do = [{{ read = \"from\", bytes = \"64KiB\" }}, {{ write = \"to\", bytes = \"64KiB\", sync = true }}] }}]\n"
    )
}

#[test]
fn larger_files_take_longer_in_proportion() {
    let machine = Machine { disk: "model = \"fixed\"\naccess = \"2ms\"\nrate = \"4MiB/s\"", ..MACHINE };
    let span = |mib| {
        let work = workload(&copy(mib), &[("a", "a", "copy", 1)]);
        response(&outcome(&contract("isolate", 100), &machine.text(), &work), "a")
    };
    let four = span(4);
    // Each MiB passes the disk twice, at 4 MiB/s: half a second at least.
    assert!(four > 2 * S, "{four}");
    near(span(8), 2 * four, 30);
    near(span(16), 4 * four, 40);
}

#[test]
fn cpu_time_is_divided_by_tickets_when_both_are_busy() {
    let hog = "[program.hog]\ndo = [{ repeat = \"forever\", do = [{ cpu = \"7ms\" }] }]\n";
    let jobs = "[job.a]\nunit = \"a\"\nprogram = \"hog\"\ncount = 5\nbackground = true\n\
                [job.b]\nunit = \"b\"\nprogram = \"hog\"\ncount = 5\nbackground = true\n";
    let work = format!("version = 1\nhorizon = \"30s\"\n{hog}{jobs}");
    for cpus in [1, 2, 3, 4] {
        let machine = Machine { cpus, ..MACHINE };
        for scheme in ["isolate", "quota"] {
            let end = outcome(&contract(scheme, 300), &machine.text(), &work);
            near(unit(&end, "b").used_ns, 3 * unit(&end, "a").used_ns, 20);
        }
    }
}

#[test]
fn disk_bandwidth_is_divided_by_tickets_when_both_are_backlogged() {
    let read = "{ repeat = \"forever\", do = [{ read = \"big\", bytes = \"16KiB\", random = true }, { cpu = \"1us\" }] }";
    let text = format!("[file.big]\nsize = \"512MiB\"\n[program.reader]\ndo = [{read}]\n");
    let jobs = "[job.a]\nunit = \"a\"\nprogram = \"reader\"\ncount = 6\nbackground = true\n\
                [job.b]\nunit = \"b\"\nprogram = \"reader\"\ncount = 6\nbackground = true\n";
    let work = format!("version = 1\nhorizon = \"60s\"\n{text}{jobs}");
    let machine = Machine {
        disk: "model = \"fixed\"\naccess = \"4ms\"\nrate = \"8MiB/s\"\norder = \"fair\"\nthreshold = 0\nsize = \"8GiB\"",
        ..MACHINE
    };
    let end = outcome(&contract("isolate", 300), &machine.text(), &work);
    let sectors = |name: &str| end.disks[0].units.iter().find(|used| used.unit == name).unwrap().sectors;
    near(sectors("b"), 3 * sectors("a"), 50);
}

const BURSTS: &str = "[program.bursts]\ndo = [{ repeat = 50, do = [{ cpu = \"20ms\" }, { sleep = \"13ms\" }] }]\n\
                      [program.work]\ndo = [{ repeat = 500, do = [{ cpu = \"2ms\" }] }]\n";

/// The light unit's response time beside `heavy` jobs of the heavy unit, and the heavy unit's.
fn light_and_heavy(scheme: &str, light: &str, heavy: u64, kernel: &'static str) -> (u64, u64) {
    let work = workload(BURSTS, &[("light", "a", light, 2), ("heavy", "b", "work", heavy)]);
    let end = outcome(&contract(scheme, 100), &Machine { kernel, ..MACHINE }.text(), &work);
    (response(&end, "light"), response(&end, "heavy"))
}

#[test]
fn the_heavy_units_jobs_do_not_slow_the_light_one_down() {
    for light in ["work", "bursts"] {
        let (alone, _) = light_and_heavy("isolate", light, 1, "tick = \"10ms\"");
        for heavy in [2, 4, 8, 16] {
            let (beside, _) = light_and_heavy("isolate", light, heavy, "tick = \"10ms\"");
            near(beside, alone, 50);
        }
    }
    // And under smp they do.
    assert!(
        light_and_heavy("smp", "work", 16, "tick = \"10ms\"").0
            > 2 * light_and_heavy("smp", "work", 1, "tick = \"10ms\"").0
    );
}

#[test]
fn the_heavy_unit_gains_by_sharing() {
    for light in ["work", "bursts"] {
        for heavy in [1, 2, 4, 8, 16] {
            let (_, shared) = light_and_heavy("isolate", light, heavy, "tick = \"10ms\"");
            let (_, held) = light_and_heavy("quota", light, heavy, "tick = \"10ms\"");
            falls(&[held, shared], 20);
        }
    }
    assert!(
        light_and_heavy("isolate", "bursts", 16, "").1 * 100
            < light_and_heavy("quota", "bursts", 16, "").1 * 95
    );
}

#[test]
fn later_call_backs_do_not_help_the_lender() {
    let kernels = [
        "call_back = \"now\"",
        "call_back = \"tick\"\ntick = \"1ms\"",
        "call_back = \"tick\"\ntick = \"4ms\"",
        "call_back = \"tick\"\ntick = \"10ms\"",
        "call_back = \"tick\"\ntick = \"25ms\"",
    ];
    let spans = kernels.map(|kernel| light_and_heavy("isolate", "bursts", 16, kernel).0);
    assert!(spans.is_sorted(), "{spans:?}");
    assert!(spans[4] > spans[0] + 50 * 5 * MS, "a mean of half a tick for each of fifty bursts: {spans:?}");
}

#[test]
fn cpu_time_is_conserved() {
    for scheme in ["isolate", "quota", "smp"] {
        for cpus in [1, 2, 3, 5] {
            let work = workload(BURSTS, &[("light", "a", "bursts", 2), ("heavy", "b", "work", 3)]);
            let end = outcome(
                &contract(scheme, 100),
                &Machine { cpus, kernel: "switch = \"0s\"", ..MACHINE }.text(),
                &work,
            );
            assert_eq!(end.busy_ns + end.idle_ns, cpus * end.ended_ns);
            let used: u64 = end.units.iter().map(|unit| unit.used_ns).sum();
            let spent: u64 = end.jobs.iter().map(|job| job.spent.work_ns).sum();
            assert_eq!((used, spent), (end.busy_ns, end.busy_ns));
            // The programs' own work does not depend on their neighbours: 50 times 20 ms, and 500 times 2 ms.
            assert!(end.jobs.iter().all(|job| job.spent.work_ns == S));
        }
    }
}
