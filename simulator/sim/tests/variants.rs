//! Variants of the model that documents leave open, on machines where the result can be computed by hand:
//! how tasks wait at barriers, how work is divided, who gets a spin lock, where files lie, and when a
//! sequential reader waits.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "texts and means of tests")]

mod scene;

use commonhold_sim::outcome::Outcome;
use scene::{MS, contract, jobs, machine, outcome, response, workload};

/// A process waits at a barrier for another, which computes for `late` before it comes.
fn meets(keys: &str, late: &str) -> Outcome {
    let first = format!("{{ barrier = 2{keys} }}");
    let second = format!("{{ cpu = \"{late}\" }}, {{ barrier = 2 }}");
    let both = "{ run = \"first\", beside = true }, { run = \"second\", beside = true }";
    let programs = [("first", &*first), ("second", &*second), ("both", both)];
    outcome(&contract("smp", "", ""), &machine(2, ""), &workload(&programs, &[("p", "a", "both", "")]))
}

#[test]
fn a_task_spins_and_then_sleeps() {
    let spun = |keys: &str, late: &str| {
        let end = meets(keys, late);
        (end.ended_ns, jobs(&end, "p")[0].spent.spin_ns)
    };
    assert_eq!(spun("", "100ms"), (100 * MS, 0));
    assert_eq!(spun(", spin = true", "100ms"), (100 * MS, 100 * MS));
    assert_eq!(spun(", spin = true, spin_for = \"30ms\"", "100ms"), (100 * MS, 30 * MS));
    assert_eq!(spun(", spin = true, spin_for = \"300ms\"", "100ms"), (100 * MS, 100 * MS));
}

/// A task that may spin for 5 ms loses its CPU before that, to one of two tasks that compute. When it has a
/// CPU again, its time to spin has passed, and it sleeps at once.
#[test]
fn the_time_to_spin_ends_without_a_cpu_too() {
    let programs = [
        ("waits", "{ cpu = \"28ms\" }, { barrier = 2, spin = true, spin_for = \"5ms\" }"),
        ("comes", "{ sleep = \"1s\" }, { barrier = 2 }"),
        ("both", "{ run = \"waits\", beside = true }, { run = \"comes\", beside = true }"),
        ("hog", "{ cpu = \"300ms\" }"),
    ];
    let work = workload(&programs, &[("p", "a", "both", ""), ("hogs", "a", "hog", "count = 2")]);
    let end = outcome(&contract("smp", "", ""), &machine(1, ""), &work);
    let spent = jobs(&end, "p")[0].spent;
    assert_eq!((end.ended_ns, spent.spin_ns), (1030 * MS, 2 * MS));
}

/// Two processes share 30 pieces of 10 ms. Interrupts take half of one CPU. Together the CPUs do 1.5 pieces
/// in 10 ms, so all are done after 200 ms, and one piece is in progress at most. Divided in halves
/// beforehand, the work would take 300 ms on the slow CPU.
#[test]
fn processes_take_pieces_as_they_get_on() {
    let machine = machine(2, "") + "[interrupts]\npart = \"50%\"\ncpu = 1\n";
    let took = |steps: &str| {
        let programs = [("other", steps), ("p", &*format!("{{ run = \"other\", beside = true }}, {steps}"))];
        let programs = programs.map(|(name, steps)| (name, steps));
        let end = outcome(&contract("smp", "", ""), &machine, &workload(&programs, &[("p", "a", "p", "")]));
        end.ended_ns
    };
    let pieces = took("{ pieces = 30, do = [{ cpu = \"10ms\" }] }");
    assert!((200 * MS..=220 * MS).contains(&pieces), "{pieces}");
    assert_eq!(took("{ cpu = \"150ms\" }"), 300 * MS);
}

/// Each run of a program that is a job has its own supply of pieces.
#[test]
fn each_job_has_its_own_pieces() {
    let text = "version = 1\nhorizon = \"1min\"\n[program.p]\njob = true\ndo = [{ pieces = 3, do = [{ cpu = \"10ms\" }] }]\n\
                [program.shell]\ndo = [{ repeat = 4, do = [{ run = \"p\" }] }]\n\
                [job.shell]\nunit = \"a\"\nprogram = \"shell\"\n";
    let end = outcome(&contract("smp", "", ""), &machine(1, ""), text);
    assert_eq!(end.ended_ns, 4 * 3 * 10 * MS);
}

/// Two tasks take a lock ten times each, hold it for 1 us, and come back after 100 ns. Its line takes 1 us to
/// the other CPU.
fn taken_in_bursts(unfair: bool) -> (u64, u64, u64) {
    let steps = "{ repeat = 10, do = [{ lock = \"l\", do = [{ cpu = \"1us\" }] }, { cpu = \"100ns\" }] }";
    let work = workload(&[("p", steps)], &[("p", "a", "p", "count = 2")])
        + &format!("[lock.l]\nspins = true\nline = \"1us\"\nunfair = {unfair}\n");
    let end = outcome(&contract("smp", "", ""), &machine(2, ""), &work);
    (end.locks[0].taken, end.locks[0].waits, end.ended_ns)
}

#[test]
fn an_unfair_lock_goes_to_its_last_holder() {
    // The first to come fetches the line. Then the lock goes to and fro, and each but the first take waits:
    // 20 transfers and 20 holds, and the last takes' 100 ns.
    assert_eq!(taken_in_bursts(false), (20, 19, 40_100));
    // The first task takes the lock ten times before the second, which waits once, has it.
    let (taken, waits, ended) = taken_in_bursts(true);
    assert_eq!((taken, waits), (20, 1));
    // Two transfers of the line, 20 holds, and 20 times 100 ns of which the two tasks' overlap.
    assert!((22_000 + 1_900..=22_000 + 2_100).contains(&ended), "{ended}");
}

/// A disk serves a page in 10 ms, and one page is read ahead. A process computes for 1 ms between two reads:
/// it finds the next page on its way and waits for it, so each page takes 10 ms.
#[test]
fn a_reader_waits_for_pages_that_are_read_ahead() {
    let machine = machine(1, "read_ahead = 1\nrequest_sectors = 8")
        + "[disk.d0]\nmodel = \"fixed\"\naccess = \"10ms\"\nrate = \"10GiB/s\"\nsize = \"1GiB\"\n";
    let text = "version = 1\nhorizon = \"1min\"\n[file.f]\nsize = \"80KiB\"\n[program.p]\ndo = [{ repeat = 20, do = [{ read = \
                \"f\", bytes = \"4KiB\" }, { cpu = \"1ms\" }] }]\n[job.p]\nunit = \"a\"\nprogram = \"p\"\n";
    let took = response(&outcome(&contract("smp", "", ""), &machine, text), "p");
    assert!((201 * MS..=202 * MS).contains(&took), "{took}");
}

/// A process reads pages of two files in turns. 400 MiB are 599 cylinders of an HP 97560, which its arm
/// crosses in 8 + 0.008 x 599 = 12.8 ms.
#[test]
fn files_lie_apart() {
    let took = |gap: &str| {
        let machine = machine(1, "read_ahead = 0\nrequest_sectors = 8") + "[disk.d0]\nmodel = \"hp97560\"\n";
        let text = format!(
            "version = 1\nhorizon = \"1min\"\n[file.f]\nsize = \"256KiB\"\n{gap}\n[file.g]\nsize = \"256KiB\"\n[program.p]\n\
             do = [{{ repeat = 200, do = [{{ read = \"f\", bytes = \"4KiB\", random = true }}, {{ read = \"g\", bytes = \
             \"4KiB\", random = true }}] }}]\n[job.p]\nunit = \"a\"\nprogram = \"p\"\n"
        );
        outcome(&contract("smp", "", ""), &machine, &text)
    };
    let (near, far) = (took(""), took("gap = \"400MiB\""));
    let mean_ms = |end: &Outcome| {
        let disk = &end.disks[0];
        disk.units.iter().map(|unit| unit.requests).sum::<u64>() as f64 / end.ended_ns as f64 * 1e6
    };
    let between = 1.0 / mean_ms(&far) - 1.0 / mean_ms(&near);
    assert!((8.0..14.0).contains(&between), "{between} ms");
}

/// With a gap that leaves no place for the second file, the scenario is refused: the files would overlap.
#[test]
fn files_and_their_gaps_have_to_fit() {
    let found = |gap: &str| {
        let machine = machine(1, "") + "[disk.d0]\nmodel = \"hp97560\"\n";
        let text = format!(
            "version = 1\nhorizon = \"1min\"\n[file.f]\nsize = \"16MiB\"\ngap = \"{gap}\"\n[program.p]\ndo = [{{ read = \
             \"f\", bytes = \"4KiB\" }}]\n[job.p]\nunit = \"a\"\nprogram = \"p\"\ncount = 5\n"
        );
        let read = commonhold_sim::scenario::read(&contract("smp", "", ""), &machine, &text);
        let found = read.findings.into_iter().flat_map(|finding| finding.diagnostics);
        found.filter(commonhold_contract::Diagnostic::is_error).map(|found| found.code).collect::<Vec<_>>()
    };
    assert_eq!(found("100MiB"), [] as [&str; 0]);
    assert_eq!(found("400MiB"), ["disk-full"]);
}

/// A unit has one reader on a disk of 10 ms, and the other has eight. If the kernel hands the disk one
/// request at a time, each unit has half of them; if it hands the disk all nine, the lone reader waits for
/// all others.
#[test]
fn what_a_disk_was_given_is_beyond_its_scheduler() {
    let served = |depth: u32| {
        let kernel = "cluster = 1\nread_ahead = 0\nrequest_sectors = 8";
        let disk = format!(
            "[disk.d0]\nmodel = \"fixed\"\naccess = \"10ms\"\nrate = \"8GiB/s\"\nsize = \"64GiB\"\ndepth = {depth}\n\
             threshold = 0\n"
        );
        let machine = machine(1, kernel).replace("\n[kernel]", "\nenforces = \"irix\"\n[kernel]") + &disk;
        let text = "version = 1\nhorizon = \"20s\"\n[file.big]\nsize = \"2GiB\"\n[program.reader]\ndo = [{ repeat = \"forever\", \
                    do = [{ read = \"big\", bytes = \"4KiB\", random = true }, { cpu = \"1us\" }] }]\n\
                    [job.one]\nunit = \"a\"\nprogram = \"reader\"\nbackground = true\n\
                    [job.many]\nunit = \"b\"\nprogram = \"reader\"\ncount = 8\nbackground = true\n";
        let end = outcome(&contract("isolate", "", ""), &machine, text);
        let of =
            |name: &str| end.disks[0].units.iter().find(|unit| unit.unit == name).unwrap().requests as f64;
        of("a") / (of("a") + of("b"))
    };
    let (one, nine) = (served(1), served(9));
    assert!((0.48..0.52).contains(&one) && (0.10..0.13).contains(&nine), "{one} {nine}");
}

/// A disk serves a page in 10 ms. A process reads the only page of a file ten times: from the disk once or,
/// past the page cache, each time. It writes ten times: into the cache, or to the disk.
#[test]
fn direct_accesses_go_to_the_disk() {
    let machine = machine(1, "request_sectors = 8")
        + "[disk.d0]\nmodel = \"fixed\"\naccess = \"10ms\"\nrate = \"10GiB/s\"\nsize = \"1GiB\"\n";
    let took = |step: &str| {
        let text = format!(
            "version = 1\nhorizon = \"1min\"\n[file.f]\nsize = \"4KiB\"\n[program.p]\ndo = [{{ repeat = 10, do = [{{ {step} }}] \
             }}]\n[job.p]\nunit = \"a\"\nprogram = \"p\"\n"
        );
        let end = outcome(&contract("smp", "", ""), &machine, &text);
        (response(&end, "p") / MS, end.disks[0].units.iter().map(|unit| unit.sectors).sum::<u64>())
    };
    let read = "read = \"f\", bytes = \"4KiB\", random = true";
    assert_eq!(took(read), (10, 8));
    assert_eq!(took(&format!("{read}, direct = true")), (100, 80));
    let write = "write = \"f\", bytes = \"4KiB\"";
    assert_eq!(took(write).0, 0);
    assert_eq!(took(&format!("{write}, direct = true")), (100, 80));
}

/// A process with 16 MiB that sleeps has them only if they were there from the beginning.
#[test]
fn a_process_that_was_there_before_has_its_memory() {
    let used_mib = |keys: &str| {
        let text = format!(
            "version = 1\nhorizon = \"1min\"\n[program.p]\nmemory = \"16MiB\"\n{keys}\ndo = [{{ sleep = \"10s\" }}]\n[job.p]\n\
             unit = \"a\"\nprogram = \"p\"\n"
        );
        let machine = machine(1, "") + "[disk.d0]\nmodel = \"hp97560\"\n";
        let end = outcome(&contract("isolate", "", ""), &machine, &text);
        let account = end.ledger.accounts.iter().find(|account| account.unit == "a").unwrap();
        account.memory.as_ref().unwrap().used_mean >> 20
    };
    assert_eq!(used_mib(""), 0);
    let resident = used_mib("resident = true");
    assert!((15..=16).contains(&resident), "{resident} MiB");
}
