//! The simulated machine against theory: for each of the five documents five quantities with a closed form.
//! The references are computed here, by formulas that the simulator does not use.
//!
//! Each comparison has a tolerance that is known before the result: where the outcome is random, 3.9 standard
//! errors of the mean, from the run's batches or from the model's own variance; where it is not, the length
//! of what may be in progress at the end, such as a slice or a request. `cargo test -p commonhold-sim --test
//! theory -- --nocapture` prints what is compared.
//!
//! These closed forms are tested elsewhere, nearer to the code. Here they are repeated only where a formula
//! is another, or where a process sees the result through the whole machine:
//!
//! - 000: seeks, sustained rate and random reads of the HP 97560 over the whole disk (`sim/disk/hp97560.rs`);
//!   waits for the kernel's lock by mean value analysis (`sim/contention/kernel`); CPU time and disk
//!   bandwidth by tickets (`sim/tests/perturbed.rs`, `sim/tests/cpu.rs`);
//! - 001: memory that does not fit into the own node (`sim/tests/numa.rs`);
//! - 002: Gunther's peak (`scale/law.rs`); shares of 1 : 2 : 3, the chi square of a lottery's turns, and
//!   `decay`, by the squares of weights (`dispatch/tests/disciplines.rs`);
//! - 003: the bus as a product-form network, by the sum over all its states (`sim/contention/bus`); the
//!   length of an epoch of Linux 2.4, and what a sleeper saves up (`sim/baseline`);
//! - 004: sectors under YFQ, and half of the disk for each of two tasks with one request at a time
//!   (`sim/disk`).
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::format_push_string,
    reason = "texts and means of tests"
)]

#[path = "scene/chance.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod chance;
mod scene;

use chance::Chance;
use commonhold_sim::outcome::Outcome;
use commonhold_sim::scenario::Job;
use scene::{S, contract, jobs, machine, outcome, response, run_with, scenario, unit, workload};

/// The number of standard errors that are allowed. Student's t with 19 degrees of freedom is beyond it once
/// in a thousand runs, and a normal variable less often.
const ERRORS: f64 = 3.9;
/// The number of batches from which a standard error is computed.
const BATCHES: usize = 20;

/// A program that computes for ever.
const ENDLESS: (&str, &str) = ("endless", "{ repeat = \"forever\", do = [{ cpu = \"1s\" }] }");

/// Asserts that a quantity is no farther from theory than `within`.
#[track_caller]
fn agrees(what: &str, is: f64, theory: f64, within: f64) {
    println!("{what}: {is:.6}, in theory {theory:.6}, within {within:.6}");
    assert!((is - theory).abs() <= within, "{what}: {is} is not within {within} of {theory}");
}

/// Asserts that the mean of successive observations is as theory has it. Neighbours in a queue are not
/// independent, but the means of long batches nearly are: the standard error is theirs (batch means: Law and
/// Kelton, Simulation Modeling and Analysis). An error too large to notice a deviation by the part `finest`
/// fails too.
#[track_caller]
fn mean_agrees(what: &str, observed: &[f64], theory: f64, finest: f64) {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let means: Vec<f64> = observed.chunks_exact(observed.len() / BATCHES).map(mean).collect();
    let overall = mean(&means);
    let squares: f64 = means.iter().map(|batch| (batch - overall) * (batch - overall)).sum();
    let error = (squares / ((means.len() - 1) * means.len()) as f64).sqrt();
    assert!(ERRORS * error <= finest * theory, "{what}: an error of {error} is too large for {theory}");
    agrees(what, overall, theory, ERRORS * error);
}

/// The response times of a job's copies, or of the runs of a program that is a job, in ms.
fn responses_ms(end: &Outcome, name: &str) -> Vec<f64> {
    jobs(end, name).iter().map(|job| job.response_ns().unwrap() as f64 / 1e6).collect()
}

/// The machine with the kernel of seed 000, which schedules disks by units' shares.
fn irix(machine: &str) -> String {
    machine.replace("\n[kernel]", "\nenforces = \"irix\"\n[kernel]")
}

/// A machine whose disk serves every request of a page in 4 ms and some microseconds, in this order.
fn paging(order: &str) -> String {
    let kernel = "cluster = 1\nread_ahead = 0\nrequest_sectors = 8";
    let disk = "[disk.d0]\nmodel = \"fixed\"\naccess = \"4ms\"\nrate = \"1GiB/s\"\nsize = \"256GiB\"\n";
    irix(&machine(1, kernel)) + disk + order
}

/// Reads pages of a large file at random, for ever.
const READER: &str = "[program.reader]\ndo = [{ repeat = \"forever\", do = [{ read = \"big\", bytes = \"4KiB\", random = true }, \
     { cpu = \"1us\" }] }]\n[file.big]\nsize = \"2GiB\"\n";

/// Readers in these units, each unit with a number of processes, for `horizon`.
fn readers(horizon: &str, units: &[(&str, u32)]) -> String {
    let mut text = format!("version = 1\nhorizon = \"{horizon}\"\n{READER}");
    for (number, (unit, count)) in units.iter().enumerate() {
        text += &format!(
            "[job.j{number}]\nunit = \"{unit}\"\nprogram = \"reader\"\ncount = {count}\nbackground = true\n"
        );
    }
    text
}

/// The number of a unit's requests that the disk has served.
fn requests(end: &Outcome, name: &str) -> f64 {
    end.disks[0].units.iter().find(|used| used.unit == name).unwrap().requests as f64
}

// Seed 000.

/// A random read of a page takes the controller's overhead, the mean seek among the file's cylinders, half a
/// revolution, and the transfer (Ruemmler and Wilkes 1994, the disk's table). Two cylinders of N, drawn at
/// random, lie d apart with probability 2 (N - d) / N^2, and are the same with 1 / N; then 18 of 19 heads are
/// another. A track has nine whole pages, so no transfer is interrupted.
#[test]
fn a_random_read_seeks_turns_and_transfers() {
    const CYLINDERS: u32 = 384;
    const READS: u32 = 8_000;
    let file = u64::from(CYLINDERS) * 19 * 72 * 512;
    let text = format!(
        "version = 1\nhorizon = \"10min\"\n[file.data]\nsize = \"{file}B\"\n[program.p]\ndo = [{{ repeat = {READS}, \
         do = [{{ read = \"data\", bytes = \"4KiB\", random = true }}] }}]\n[job.p]\nunit = \"a\"\nprogram = \"p\"\n"
    );
    let kernel = "cluster = 1\nread_ahead = 0\nrequest_sectors = 8";
    let machine = machine(1, kernel) + "[disk.d0]\nmodel = \"hp97560\"\n";
    let end = outcome(&contract("smp", "", ""), &machine, &text);

    let n = f64::from(CYLINDERS);
    let seeks = (1..CYLINDERS).map(|d| {
        let d = f64::from(d);
        (2.0 * (n - d) / (n * n), 3.24 + 0.4 * d.sqrt())
    });
    let moves: Vec<(f64, f64)> = seeks.chain([(18.0 / 19.0 / n, 1.6), (1.0 / 19.0 / n, 0.0)]).collect();
    let seek: f64 = moves.iter().map(|(part, ms)| part * ms).sum();
    let seek_variance: f64 = moves.iter().map(|(part, ms)| part * (ms - seek) * (ms - seek)).sum();
    let revolution = 60_000.0 / 4_002.0;
    let theory = 2.2 + seek + revolution / 2.0 + 8.0 * revolution / 72.0;
    let disk = &end.disks[0];
    let variance = seek_variance + revolution * revolution / 12.0;
    let error = (variance / disk.requests as f64).sqrt();
    agrees("000: a random read, ms", disk.latency_ms, theory, ERRORS * error);
}

/// A file that is read in sequence comes at the rate of the medium: the 1,368 sectors of a cylinder in the
/// time of 1,368 sectors, 18 skews of 8 and one of 18 (Ruemmler and Wilkes 1994). What precedes the first
/// sector takes at most the overhead, the longest seek and a revolution. The kernel reads nothing ahead, the
/// drive does.
#[test]
fn a_file_is_read_at_the_rate_of_the_medium() {
    let text = "version = 1\nhorizon = \"1min\"\n[file.data]\nsize = \"24MiB\"\n[program.p]\ndo = [{ repeat = 384, \
                do = [{ read = \"data\", bytes = \"64KiB\" }] }]\n[job.p]\nunit = \"a\"\nprogram = \"p\"\n";
    let machine = machine(1, "read_ahead = 0") + "[disk.d0]\nmodel = \"hp97560\"\n";
    let end = outcome(&contract("smp", "", ""), &machine, text);
    let (revolution, sectors) = (60_000.0 / 4_002.0, 24.0 * 2_048.0);
    let theory = sectors * (1_368.0 + 18.0 * 8.0 + 18.0) / 1_368.0 * revolution / 72.0;
    agrees("000: 24 MiB in sequence, ms", end.ended_ns as f64 / 1e6, theory, 2.2 + 23.7 + revolution);
}

/// The throughput of N CPUs of which each needs a server for a part `demand` of its time: that of machines
/// and one repairman, by the probability that no machine is broken (Feller, volume 1, chapter XVII). In CPUs'
/// worth of work.
fn repairman(cpus: u32, demand: f64) -> f64 {
    let ratio = demand / (1.0 - demand);
    let mut terms = vec![1.0];
    for broken in 0..cpus {
        terms.push(terms[broken as usize] * f64::from(cpus - broken) * ratio);
    }
    (1.0 - 1.0 / terms.iter().sum::<f64>()) / demand
}

/// CPUs that work in the kernel share its lock as machines share a repairman. The simulator has each CPU's
/// wait from mean value analysis, a recursion over the number of CPUs; it rounds to millionths.
#[test]
fn cpus_share_the_kernels_lock_as_machines_a_repairman() {
    for (cpus, percent) in [(2, 30), (4, 12), (8, 12), (8, 40)] {
        let jobs = [("p", "a", "p", &*format!("count = {cpus}"))];
        let work = workload(&[("p", "{ cpu = \"1s\", kernel = \"100%\" }")], &jobs);
        let machine = machine(cpus, "") + &format!("[contention]\nlock = \"{percent}%\"\n");
        let end = outcome(&contract("smp", "", ""), &machine, &work);
        let throughput = f64::from(cpus) * 1e9 / end.ended_ns as f64;
        let theory = repairman(cpus, f64::from(percent) / 100.0);
        agrees(&format!("000: {cpus} CPUs, lock {percent} %"), throughput, theory, 1e-5 * theory);
    }
}

/// A CPU that is called back at the borrower's next tick comes after half a tick on average, if the owner
/// wakes at a moment that has nothing to do with the clock (seed 000, section 3.1). Sleeps are uniform over
/// ten whole ticks, so their ends are uniform within a tick, with a standard deviation of a tick by the root
/// of 12.
#[test]
fn a_call_back_waits_for_half_a_tick() {
    let steps = [
        ENDLESS,
        ("owner", "{ repeat = 3000, do = [{ sleep = \"50ms\", spread = \"100%\" }, { cpu = \"2ms\" }] }"),
    ];
    let jobs = [("b", "b", "owner", ""), ("a", "a", "endless", "count = 2\nbackground = true")];
    let machine = machine(2, "call_back = \"tick\"\ntick = \"10ms\"\nslice = \"1s\"");
    let end = outcome(&contract("isolate", "", ""), &machine, &workload(&steps, &jobs));
    let owner = unit(&end, "b");
    assert!(owner.called_back > 2_900, "{} call-backs", owner.called_back);
    let error = 10.0 / (12.0 * owner.called_back as f64).sqrt();
    agrees("000: call-back, ms", owner.call_back_mean_ns as f64 / 1e6, 5.0, ERRORS * error);
}

/// After a long time alone, a unit's count of sectors is R H / ln 2, at rate R and with a half-life of H.
/// While a newcomer is served alone, the old count is halved in H, and the newcomer's grows to half of R H /
/// ln 2: the two are equal after exactly one half-life, whatever the rate (seed 000, section 3.3). From then
/// on they take turns.
#[test]
fn a_newcomer_has_the_disk_for_one_half_life() {
    let machine = paging("order = \"isolation\"\nhalf_life = \"2s\"\n");
    let work = readers("40s", &[("a", 4), ("b", 4)]).replace("[job.j1]", "[job.j1]\nstart = \"20s\"");
    let end = outcome(&contract("isolate", "", ""), &machine, &work);
    let by = |seconds: u64| end.rounds[0].by(seconds * S) as f64;
    let requests = |name: &str| requests(&end, name);
    let all = requests("a") + requests("b");
    // A request under way and the next one, of each unit.
    agrees("000: the old unit in the first half-life", by(22) - by(20), 0.0, 4.0);
    agrees("000: the old unit, 20 s and half of 18", requests("a"), all * 29.0 / 40.0, 4.0);
    agrees("000: the newcomer, 2 s and half of 18", requests("b"), all * 11.0 / 40.0, 4.0);
}

// Seed 001.

/// A machine of Hurricane's, on which only what `latency` says takes time.
fn hector(shape: &str, latency: &str) -> String {
    let costs: String =
        ["switch", "ipi", "fault", "request", "fork"].map(|key| format!("{key} = \"0s\"\n")).concat();
    format!(
        "version = 1\nshape = \"{shape}\"\n[kernel]\nscheduler = \"hurricane\"\n{costs}[latency]\n{latency}\n"
    )
}

/// All CPUs are one pool.
fn one_pool(cpus: u32) -> String {
    format!(
        "version = 1\n[machine]\nscheme = \"smp\"\npools = {cpus}\nplacement = \"worst-fit\"\nrepartition = false\n\
         [unit.jobs]\nmembers = []\njob = \"tree\"\n"
    )
}

/// The time that `children` processes take for a unit of work, each of which waits all of its time for data
/// of the job's first process. They have a CPU each, in nodes of their own.
fn at_the_first(children: u32, shape: &str, latency: &str) -> f64 {
    let text = format!(
        "version = 1\nhorizon = \"1h\"\n[program.child]\nshares = \"100%\"\nof_first = \"100%\"\ndo = [{{ cpu = \"1s\" }}]\n\
         [program.job]\ndo = [{{ cpu = \"1us\" }}, {{ run = \"child\", times = {children}, beside = true }}]\n\
         [job.a]\nunit = \"jobs\"\nprogram = \"job\"\n"
    );
    let end = outcome(&one_pool(8), &hector(shape, latency), &text);
    (response(&end, "a") - 1_000) as f64 / 1e9
}

/// Loads queue at the memory of the node where the data lies. For N equal customers, Schweitzer's equation
/// for the wait W at a server that takes s, visited V times in a unit of work that takes R otherwise, is
/// quadratic: V W^2 + (R - (N - 1) s V) W = (N - 1) s^2 V (P. Schweitzer 1979). Its positive root is exact,
/// where the simulator iterates over all tasks and servers. It rounds slowdowns and speeds to millionths.
#[test]
fn processes_queue_at_a_memory() {
    let (local, remote, module) = (100.0, 150.0, 60.0);
    let visits = 1.0 / local;
    for children in [1u32, 2, 4, 7] {
        let otherwise = remote / local;
        let others = f64::from(children - 1) * module * visits;
        let half = (otherwise - others) / 2.0;
        let wait = ((half * half + visits * others * module).sqrt() - half) / visits;
        let latency = "local = \"100ns\"\nremote = \"150ns\"\nmodule = \"60ns\"";
        let time = at_the_first(children, "nodes:8 cpus:1 memory:64MiB", latency);
        let theory = otherwise + visits * wait;
        agrees(&format!("001: {children} at a memory"), time, theory, 1e-6 * (1.0 + theory));
    }
}

/// The ring is passed once for each load from another station. Whatever the order of service, a unit of work
/// takes no less than without others, nor than the ring takes for all N processes; and no more than if each
/// load found all others in front of it (asymptotic bounds: Denning and Buzen 1978).
#[test]
fn a_ring_is_bounded_by_its_capacity() {
    let (alone, ring): (f64, f64) = (300.0 / 100.0, 150.0 / 100.0);
    for children in 1..=7 {
        let latency = "local = \"100ns\"\nremote = \"300ns\"\nring = \"150ns\"";
        let time = at_the_first(children, "sockets:8 nodes:8 cpus:1 memory:64MiB", latency);
        let (n, rounding) = (f64::from(children), 2e-6);
        println!("001: {children} over the ring: {time:.6}");
        assert!(time >= alone.max(n * ring) - rounding, "{children}: {time}");
        assert!(time <= alone + (n - 1.0) * ring + rounding, "{children}: {time}");
    }
}

/// Processes of a job that each use the data of all others alike: of three others, on two stations of two,
/// one is near and two are beyond the ring. The part m of the time that is for such data is longer by the
/// mean latency: 1 + m (mean / local - 1) (seed 001, table 1 and section 5.1).
#[test]
fn uniform_data_takes_the_mean_latency() {
    for percent in [10, 50, 100] {
        let spread = format!("shares = \"{percent}%\"\nof_first = \"33.3333%\"\ndo = [{{ cpu = \"1us\" }}");
        let text = format!(
            "version = 1\nhorizon = \"1h\"\n[program.child]\n{spread}, {{ cpu = \"1s\" }}]\n\
             [program.job]\n{spread}, {{ run = \"child\", times = 3, beside = true }}, {{ cpu = \"1s\" }}]\n\
             [job.a]\nunit = \"jobs\"\nprogram = \"job\"\n"
        );
        let latency = "local = \"1140ns\"\nnear = \"1740ns\"\nremote = \"2220ns\"";
        let machine = hector("sockets:2 nodes:4 cpus:1 memory:64MiB", latency);
        let end = outcome(&one_pool(4), &machine, &text);
        let mean = (1_740.0 + 2.0 * 2_220.0) / 3.0;
        let theory = 1.0 + f64::from(percent) / 100.0 * (mean / 1_140.0 - 1.0);
        // What precedes the children's work takes some microseconds.
        agrees(
            &format!("001: {percent} % of uniform data, s"),
            response(&end, "a") as f64 / 1e9,
            theory,
            1e-5,
        );
    }
}

/// A job of two processes in a pool of two stations of four: each has a CPU at random, so the second is in
/// the first one's station for 3 of 7 CPUs (a draw without replacement). The mean time of the job is that of
/// the mean latency.
#[test]
fn processes_meet_in_a_station_by_chance() {
    let step = "shares = \"100%\"\ndo = [{ cpu = \"1us\" }";
    let text = format!(
        "version = 1\nhorizon = \"1h\"\n[program.child]\n{step}, {{ cpu = \"10ms\" }}]\n\
         [program.job]\njob = true\n{step}, {{ run = \"child\", beside = true }}, {{ cpu = \"10ms\" }}]\n\
         [program.shell]\ndo = [{{ run = \"job\", times = 2000 }}]\n[job.a]\nunit = \"jobs\"\nprogram = \"shell\"\n"
    );
    let latency = "local = \"1000ns\"\nnear = \"1500ns\"\nremote = \"4000ns\"";
    let end = outcome(&one_pool(8), &hector("sockets:2 nodes:8 cpus:1 memory:64MiB", latency), &text);
    let theory = 10.0 * (3.0 * 1.5 + 4.0 * 4.0) / 7.0;
    mean_agrees("001: two processes in a pool of two stations, ms", &responses_ms(&end, "job"), theory, 0.04);
}

/// A job ends with the last of its processes. Of n processes with a CPU each, the longest of n exponential
/// times is 1 + 1/2 + ... + 1/n means; of n times that are uniform up to twice their mean, 2n / (n + 1)
/// (order statistics). That is what imbalance costs a job (seed 001, section 5.2).
#[test]
fn a_job_takes_as_long_as_its_longest_process() {
    for n in [2u32, 4, 8] {
        let harmonic: f64 = (1..=n).map(|k| 1.0 / f64::from(k)).sum();
        let uniform = 2.0 * f64::from(n) / f64::from(n + 1);
        for (spread, theory) in [("exponential", harmonic), ("100%", uniform)] {
            let steps = format!("{{ run = \"process\", times = {n}, at_once = {n} }}");
            let programs = [
                ("process", &*format!("{{ cpu = \"1ms\", spread = \"{spread}\" }}")),
                ("shell", "{ run = \"job\", times = 2000 }"),
            ];
            let text = workload(&programs, &[("a", "a", "shell", "")]);
            let text = text + &format!("[program.job]\njob = true\ndo = [{steps}]\n");
            let end = outcome(&contract("smp", "", ""), &machine(n, ""), &text);
            mean_agrees(&format!("001: {n} {spread}, ms"), &responses_ms(&end, "job"), theory, 0.08);
        }
    }
}

// Seed 002.

/// The number of requests of an open queue, of which the first find the queue emptier than the others do.
const REQUESTS: usize = 4_000;
const FIRST: usize = 400;
/// The number of such queues, each with a seed of its own: their means are independent.
const QUEUES: u64 = 20;

/// The response times in ms of requests to one unit that serves them in the order in which they come, on
/// `cpus` CPUs. Each takes 1 ms, spread as `spread` says; they come at even times, or at random (a Poisson
/// process), and load that many CPUs. A process that sleeps keeps the unit active between them, else each
/// would need a step of the policy.
///
/// Each request begins as soon as a CPU is free for it, and ends when its work is done: so the times follow
/// from arrivals and work alone (J. Kiefer and J. Wolfowitz 1955; on one CPU, D. Lindley 1952).
fn served(cpus: u32, spread: &str, load: f64, at_random: bool) -> Vec<f64> {
    let steps = format!("{{ cpu = \"1ms\", spread = \"{spread}\" }}");
    let programs = [("request", &*steps), ("sleeper", "{ sleep = \"1h\" }")];
    let text = workload(
        &programs,
        &[("request", "server", "request", ""), ("s", "server", "sleeper", "background = true")],
    );
    let contract = "version = 1\n[unit.server]\ndiscipline = \"fifo\"\n";
    let scenario = scenario(contract, &machine(cpus, ""), &text);
    let queue = |seed: u64| {
        let mut chance = Chance::of(seed);
        let mut gap = || match at_random {
            true => -libm::log(1.0 - (chance.next() >> 11) as f64 / (1u64 << 53) as f64),
            false => 1.0,
        };
        let mut scenario = scenario.clone();
        let request = scenario.workload.jobs[0].clone();
        let mut at = 0.0;
        let arrival = |_| {
            at += gap() / load * 1e6;
            Job { start_ns: at as u64, ..request.clone() }
        };
        let sleeper = scenario.workload.jobs[1].clone();
        scenario.workload.jobs = (0..REQUESTS).map(arrival).collect();
        scenario.workload.jobs.push(sleeper);
        let end = run_with(&scenario, seed);
        let mut free_at = vec![0; cpus as usize];
        for job in jobs(&end, "request") {
            let first = free_at.iter_mut().min().unwrap();
            *first = job.spent.work_ns + job.started_ns.max(*first);
            assert_eq!(
                job.ended_ns,
                Some(*first),
                "{} ns of work from {} on",
                job.spent.work_ns,
                job.started_ns
            );
        }
        responses_ms(&end, "request").split_off(FIRST)
    };
    (1..=QUEUES).flat_map(queue).collect()
}

/// Poisson arrivals, exponential service, one CPU: the mean response time is 1 / (1 - rho) services (M/M/1:
/// Kleinrock, Queueing Systems 1, chapter 3).
#[test]
fn requests_at_random() {
    for (load, finest) in [(0.3, 0.05), (0.5, 0.08), (0.7, 0.15)] {
        let observed = served(1, "exponential", load, true);
        mean_agrees(&format!("002: M/M/1 at {load}, ms"), &observed, 1.0 / (1.0 - load), finest);
    }
}

/// Requests that all take the same wait half as long: 1 + rho / (2 (1 - rho)) services (M/D/1, by the formula
/// of Pollaczek and Khinchine: Kleinrock, chapter 5).
#[test]
fn requests_that_take_the_same() {
    for (load, finest) in [(0.3, 0.02), (0.5, 0.03), (0.7, 0.1)] {
        let observed = served(1, "0%", load, true);
        let theory = 1.0 + load / (2.0 * (1.0 - load));
        mean_agrees(&format!("002: M/D/1 at {load}, ms"), &observed, theory, finest);
    }
}

/// Requests that come at even times: 1 / (1 - sigma) services, where sigma is the root below 1 of sigma =
/// e^(-(1 - sigma) / rho) (D/M/1: Kleinrock, chapter 6).
#[test]
fn requests_at_even_times() {
    for (load, finest) in [(0.4, 0.05), (0.6, 0.08), (0.8, 0.2)] {
        let mut sigma: f64 = 0.0;
        for _ in 0..1_000 {
            sigma = libm::exp(-(1.0 - sigma) / load);
        }
        let observed = served(1, "exponential", load, false);
        mean_agrees(&format!("002: D/M/1 at {load}, ms"), &observed, 1.0 / (1.0 - sigma), finest);
    }
}

/// Two CPUs serve one queue: a request waits with the probability of Erlang's C formula, and then on average
/// for 1 / (2 - a) services, where a is the load in CPUs (M/M/2: Kleinrock, chapter 3).
#[test]
fn requests_to_two_cpus() {
    for (load, finest) in [(0.8, 0.05), (1.4, 0.1)] {
        let queued = load * load / 2.0 / (1.0 - load / 2.0);
        let waits = queued / (1.0 + load + queued);
        let observed = served(2, "exponential", load, true);
        let theory = 1.0 + waits / (2.0 - load);
        mean_agrees(&format!("002: M/M/2 at {load}, ms"), &observed, theory, finest);
    }
}

/// Sub-units that compute, on one CPU with slices of 5 ms, under a discipline, and their CPU time by windows.
fn computing(discipline: &str, tickets: &[u64], seconds: u64) -> Vec<Vec<u64>> {
    let mut contract = format!("version = 1\n[unit.lab]\ndiscipline = \"{discipline}\"\n");
    let mut work =
        format!("version = 1\nhorizon = \"{seconds}s\"\n[program.endless]\ndo = [{}]\n", ENDLESS.1);
    for (number, tickets) in tickets.iter().enumerate() {
        contract += &format!("[unit.lab.unit.u{number}]\ntickets = {tickets}\n");
        work +=
            &format!("[job.j{number}]\nunit = \"lab/u{number}\"\nprogram = \"endless\"\nbackground = true\n");
    }
    let end = outcome(&contract, &machine(1, "slice = \"5ms\""), &work);
    let windows = |number: usize| unit(&end, &format!("lab/u{number}")).used_by_window_ns.clone();
    assert_eq!(end.window_ns, S);
    (0..tickets.len()).map(windows).collect()
}

/// Strides: of what any two clients have together, each is never farther from its part than one quantum
/// (Waldspurger and Weihl 1995), at every second.
#[test]
fn strides_err_by_a_quantum_at_most() {
    let tickets = [700, 300, 200, 110, 30];
    let windows = computing("stride", &tickets, 60);
    let mut had = [0u64; 5];
    let mut worst: f64 = 0.0;
    for second in 0..60 {
        for (had, windows) in had.iter_mut().zip(&windows) {
            *had += windows[second];
        }
        for one in 0..5 {
            for other in 0..one {
                let part = tickets[one] as f64 / (tickets[one] + tickets[other]) as f64;
                let error = had[one] as f64 - part * (had[one] + had[other]) as f64;
                worst = worst.max(error.abs() / 5e6);
            }
        }
    }
    println!("002: the largest error of strides: {worst:.3} quanta, in theory 1 at most");
    assert!(worst <= 1.0, "{worst} quanta");
}

/// A lottery: of n quanta a client with the part p of the tickets has n p on average, with a variance of n p
/// (1 - p) (Waldspurger and Weihl 1994, section 2.2). A second has 200 quanta. The variance of m seconds has
/// a standard error of the root of 2 / (m - 1), as a part.
#[test]
fn a_lottery_varies_as_chance_does() {
    let windows = &computing("lottery", &[100, 300], 600)[0];
    let quanta: Vec<f64> = windows.iter().map(|ns| *ns as f64 / 5e6).collect();
    let m = quanta.len() as f64;
    mean_agrees("002: lottery, quanta of 200", &quanta, 50.0, 0.05);
    let mean = quanta.iter().sum::<f64>() / m;
    let variance = quanta.iter().map(|won| (won - mean) * (won - mean)).sum::<f64>() / (m - 1.0);
    let theory = 200.0 * 0.25 * 0.75;
    agrees("002: lottery, variance", variance, theory, ERRORS * theory * (2.0 / (m - 1.0)).sqrt());
}

// Seed 003.

/// A machine of four CPUs with a bus of 10 transactions per microsecond.
fn on_a_bus(more: &str) -> String {
    machine(4, more) + "[bus]\ntransactions = 10000\n"
}

/// Tasks with one stream of transactions each are the machines, and the bus is the repairman: n tasks that
/// use the bus for the part u of their time when alone do the work of fewer tasks (seed 003, section 3, has
/// the measured slowdowns). The bus rounds to millionths.
#[test]
fn equal_tasks_share_a_bus_as_machines_a_repairman() {
    for (tasks, thousandths) in [(2u32, 100u32), (3, 300), (4, 200), (4, 450)] {
        let rate = f64::from(thousandths) / 100.0;
        let work = workload(
            &[("p", &format!("{{ cpu = \"1s\", bus = {rate} }}"))],
            &[("p", "a", "p", &format!("count = {tasks}"))],
        );
        let end = outcome(&contract("smp", "", ""), &on_a_bus(""), &work);
        let throughput = f64::from(tasks) * 1e9 / end.ended_ns as f64;
        let theory = repairman(tasks, rate / 10.0);
        agrees(&format!("003: {tasks} tasks of {rate}"), throughput, theory, 1e-5 * theory);
    }
}

/// Each of two tasks finds the other at the bus with the probability of its load there: both are slowed by
/// the product of their loads, the modest one as much as the greedy one (the network's two states with one
/// task at the bus, by hand; seed 003, section 3).
#[test]
fn two_tasks_are_slowed_alike() {
    for (one, other) in [(4.0, 4.0), (4.5, 1.0), (3.0, 0.5)] {
        let steps = |rate: f64| format!("{{ cpu = \"1s\", bus = {rate} }}");
        let work = workload(
            &[("one", &steps(one)), ("other", &steps(other))],
            &[("one", "a", "one", ""), ("other", "b", "other", "")],
        );
        let end = outcome(&contract("smp", "", ""), &on_a_bus(""), &work);
        for name in ["one", "other"] {
            let theory = 1.0 + one * other / 100.0;
            agrees(&format!("003: {one} and {other}, s"), response(&end, name) as f64 / 1e9, theory, 2e-6);
        }
    }
}

/// The bus carries no more than it can: 10 transactions in each microsecond of the run. Where each task would
/// fill it alone, it carries as much, a quarter for each task (conservation of work).
#[test]
fn a_bus_carries_what_it_can() {
    for rates in [[10.0, 10.0, 10.0, 10.0], [10.0, 9.0, 9.0, 9.0], [9.0, 8.0, 7.0, 1.0], [2.0, 2.0, 6.0, 5.0]]
    {
        let mut work = "version = 1\nhorizon = \"2s\"\n".to_owned();
        for (number, rate) in rates.iter().enumerate() {
            work += &format!(
                "[program.p{number}]\ndo = [{{ cpu = \"1h\", bus = {rate} }}]\n\
                 [job.j{number}]\nunit = \"a\"\nprogram = \"p{number}\"\n"
            );
        }
        let end = outcome(&contract("smp", "", ""), &on_a_bus(""), &work);
        // In transactions per microsecond.
        let carried: Vec<f64> = end.jobs.iter().map(|job| job.spent.transferred as f64 / 1e6 / 2e6).collect();
        let all: f64 = carried.iter().sum();
        println!("003: {rates:?}: {all:.6} of 10");
        assert!(all <= 10.0 + 1e-4, "{rates:?}: {carried:?}");
        if rates.iter().all(|rate| *rate >= 10.0) {
            for carried in carried {
                agrees("003: a quarter of a full bus", carried, 2.5, 1e-4);
            }
        }
    }
}

/// Under Linux 2.4, n tasks that compute have a slice each in every epoch, in some order. With k slices of
/// work they end in epoch k, one slice after another: after (k - 1) n + (n + 1) / 2 slices on average (seed
/// 003, section 5: the scheduler to compare with).
#[test]
fn epochs_end_jobs_one_slice_after_another() {
    for (n, k) in [(2u32, 5u32), (5, 3), (9, 4)] {
        let steps = format!("{{ cpu = \"{}ms\" }}", 60 * k);
        let work = workload(&[("p", &steps)], &[("p", "a", "p", &format!("count = {n}"))]);
        let machine = machine(1, "scheduler = \"linux-2.4\"\nslice = \"60ms\"");
        let end = outcome(&contract("smp", "", ""), &machine, &work);
        let theory = 60.0 * (f64::from((k - 1) * n) + f64::midpoint(f64::from(n), 1.0));
        // Nothing is random, and all of it is in whole slices.
        agrees(&format!("003: {n} tasks of {k} slices, ms"), response(&end, "p") as f64 / 1e6, theory, 1e-3);
        agrees("003: the last, ms", end.ended_ns as f64 / 1e6, 60.0 * f64::from(n * k), 1e-3);
    }
}

/// Gangs of three threads on four CPUs cannot run together, so they take turns of a quantum, and none is
/// ahead of another by more than one: each of three has three CPUs for a third of the time, and the fourth
/// CPU idles, where without gangs all four would be busy (seed 003, section 4).
#[test]
fn gangs_take_turns_of_a_quantum() {
    let text = "version = 1\nhorizon = \"24s\"\n[program.gang]\ndo = [{ run = \"thread\", times = 3, at_once = 3 }]\n\
                [program.thread]\ndo = [{ repeat = \"forever\", do = [{ cpu = \"20ms\", bus = 1 }] }]\n\
                [job.g]\nunit = \"jobs\"\nprogram = \"gang\"\ncount = 3\nbackground = true\n";
    let contract = "version = 1\n[machine]\nscheme = \"smp\"\ngangs = \"demand\"\nquantum = \"200ms\"\n\
                    [unit.jobs]\nmembers = []\njob = \"tree\"\n";
    let machine = on_a_bus("scheduler = \"linux-2.4\"\nslice = \"60ms\"\nsignal = \"0s\"");
    let end = outcome(contract, &machine, text);
    for job in jobs(&end, "g") {
        // A quantum is 0.6 s of three CPUs. In the first one, the manager does not know the gangs yet.
        let cpu_time = job.spent.on_cpus_ns() as f64 / 1e9;
        agrees("003: a gang's CPU time, s", cpu_time, 24.0 * 3.0 / 3.0, 2.0 * 0.6);
    }
}

// Seed 004.

/// The CPU time of units' computing tasks, one for each unit, on one CPU that is shared by tickets, after
/// `seconds`. No unit is farther from its part than two slices of 5 ms.
fn funded(contract: &str, units: &[&str], seconds: u64, more: &str) -> Vec<f64> {
    let mut work =
        format!("version = 1\nhorizon = \"{seconds}s\"\n[program.endless]\ndo = [{}]\n{more}", ENDLESS.1);
    for (number, unit) in units.iter().enumerate() {
        work += &format!("[job.j{number}]\nunit = \"{unit}\"\nprogram = \"endless\"\nbackground = true\n");
    }
    let end = outcome(contract, &machine(1, "slice = \"5ms\""), &work);
    units.iter().map(|name| unit(&end, name).used_ns as f64 / 1e9).collect()
}

/// Of seven tasks with 1,000 tickets each, one gives t to another: the receiver gains t of 1,000, the giver
/// loses as much, and the others neither gain nor lose, since the sum of all tickets is the same (seed 004,
/// section 5.5).
#[test]
fn an_exchange_gains_the_part_that_it_moves() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let units = names.map(|name| format!("[unit.{name}]\ntickets = {{ cpu = 1000 }}\n")).concat();
    let contract = format!("version = 1\n[machine]\ncpu = \"proportional\"\n{units}");
    for moved in [100u32, 400, 800] {
        let change = format!(
            "[change.c]\nat = \"0s\"\nunit = \"a\"\nresource = \"cpu\"\ntickets = {moved}\nto = \"b\"\n"
        );
        let used = funded(&contract, &names, 21, &change);
        let moved = f64::from(moved) / 1_000.0;
        agrees(&format!("004: {moved} given, s"), used[0], 3.0 * (1.0 - moved), 0.01);
        agrees(&format!("004: {moved} received, s"), used[1], 3.0 * (1.0 + moved), 0.01);
        for other in &used[2..] {
            agrees("004: another, s", *other, 3.0, 0.01);
        }
    }
}

/// A ticket of a currency within a currency is worth the product of the parts along its path (seed 004,
/// section 3; Waldspurger and Weihl 1994, section 3.3).
#[test]
fn currencies_multiply() {
    let contract = "version = 1\n[machine]\ncpu = \"proportional\"\n[unit.a]\ntickets = 200\n[unit.a.unit.x]\n\
                    tickets = 300\n[unit.a.unit.x.unit.p]\ntickets = 100\n[unit.a.unit.x.unit.q]\ntickets = 600\n\
                    [unit.a.unit.y]\n[unit.b]\ntickets = 300\n";
    let used = funded(contract, &["a/x/p", "a/x/q", "a/y", "b"], 42, "");
    let (a, x) = (2.0 / 5.0, 3.0 / 4.0);
    for (used, part) in used.iter().zip([a * x / 7.0, a * x * 6.0 / 7.0, a * (1.0 - x), 1.0 - a]) {
        agrees("004: a product of parts, s", *used, 42.0 * part, 0.01);
    }
}

/// With M of a file's F pages in memory, a random read misses with probability 1 - M / F, whichever the M
/// pages are (W. King 1971). The first M misses fill the memory, during F (1/F + 1/(F - 1) + ... + 1/(F - M +
/// 1)) reads on average, as a collector's coupons. So guaranteed pages are worth their part of the reads
/// (seed 004, section 5.6).
#[test]
fn pages_in_memory_are_worth_their_part() {
    const PAGES: u32 = 400;
    const READS: u32 = 8_000;
    for held in [100u32, 300] {
        let contract = format!(
            "version = 1\n[machine]\nreserve = \"0%\"\n[unit.a]\nlimit = {{ memory = \"{}KiB\" }}\n",
            held * 4
        );
        let text = format!(
            "version = 1\nhorizon = \"10min\"\n[file.data]\nsize = \"{}KiB\"\n[program.p]\ndo = [{{ repeat = {READS}, \
             do = [{{ read = \"data\", bytes = \"4KiB\", random = true }}] }}]\n[job.p]\nunit = \"a\"\nprogram = \"p\"\n",
            PAGES * 4
        );
        let end = outcome(&contract, &paging("order = \"position\"\n"), &text);
        let filling: f64 = (0..held).map(|there| f64::from(PAGES) / f64::from(PAGES - there)).sum();
        let missing = 1.0 - f64::from(held) / f64::from(PAGES);
        let later = f64::from(READS) - filling;
        let theory = f64::from(held) + later * missing;
        let error = (later * missing * (1.0 - missing)).sqrt();
        agrees(
            &format!("004: misses with {held} of {PAGES}"),
            end.disks[0].requests as f64,
            theory,
            ERRORS * error,
        );
    }
}

/// Fair queueing by virtual finish times: units that always have requests waiting have bandwidth by the worth
/// of their tickets, also within a currency, up to a batch and a request (seed 004, section 5.4; Bruno et al.
/// 1999).
#[test]
fn a_backlogged_disk_is_divided_by_currencies() {
    let contract = "version = 1\n[unit.u]\ntickets = { disk = 300 }\n[unit.u.unit.x]\ntickets = { disk = 100 }\n\
                    [unit.u.unit.y]\ntickets = { disk = 200 }\n[unit.v]\ntickets = { disk = 100 }\n";
    let work = readers("40s", &[("u/x", 6), ("u/y", 6), ("v", 6)]);
    let end = outcome(contract, &paging("order = \"yfq\"\nbatch = 2\n"), &work);
    let requests = |name: &str| requests(&end, name);
    let all = requests("u/x") + requests("u/y") + requests("v");
    for (name, part) in [("u/x", 0.25), ("u/y", 0.5), ("v", 0.25)] {
        agrees(&format!("004: requests of {name}"), requests(name), part * all, 3.0);
    }
}

/// A task with one request at a time is in a batch of two at most once, so it has half of the disk at most,
/// whatever it holds (seed 004, section 5.6). If it was served last, the next batch is chosen before its next
/// request comes, and is without it. How often that happens follows from the sweep, with the task's file on
/// the lowest sectors, below those of a backlog. From a head at the part u of the backlog's sectors, the task
/// goes first with probability u, when the other request lies before the head, where the head is then:
/// uniform below u. So the task is in e^u batches in succession, on average. A batch without the task ends at
/// the higher of two sectors, which makes that 2: the task is in two of three batches, and has a third of the
/// disk. In B batches the number varies by (4 e - 10) B / 27 (renewal theory: Feller, volume 2, chapter XI).
#[test]
fn one_request_at_a_time_is_in_two_of_three_batches() {
    for tickets in [1, 3, 1_000] {
        let contract = format!(
            "version = 1\n[unit.a]\ntickets = {{ disk = {tickets} }}\n[unit.b]\ntickets = {{ disk = 1 }}\n"
        );
        let machine = paging("order = \"yfq\"\nbatch = 2\n");
        let end = outcome(&contract, &machine, &readers("40s", &[("a", 1), ("b", 8)]));
        let requests = |name: &str| requests(&end, name);
        let batches = f64::midpoint(requests("a"), requests("b"));
        let error = ((4.0 * std::f64::consts::E - 10.0) * batches / 27.0).sqrt();
        let what = format!("004: one at a time, {tickets} to 1");
        agrees(&what, requests("a"), 2.0 * batches / 3.0, ERRORS * error);
    }
}
