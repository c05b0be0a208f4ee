//! Programs that report their transfers: in Rust, and with OpenMP threads, which know nothing of gangs.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::gangs::{Running, built, contract, no_problem};
use crate::programs::{built_example, compile};
use crate::support::{Daemon, Place, eventually, kill, said, state};

fn example() -> PathBuf {
    built_example("gang").join("gang")
}

/// Runs the example with one thread until it is killed.
fn begin(program: &PathBuf, place: &Place) -> Running {
    Running::start(Command::new(program).arg(place.socket()).args(["0", "1"]))
}

/// Reloads a contract that has these.
fn hold(place: &Place, daemon: &Daemon, gangs: &[Running]) -> Vec<u32> {
    eventually("all have joined", || gangs.iter().all(Running::has_joined));
    let pids: Vec<u32> = gangs.iter().map(Running::pid).collect();
    place.write(&contract(&pids));
    daemon.signal(libc::SIGHUP);
    pids
}

#[test]
fn a_program_in_rust_is_a_gang_and_status_says_so() {
    let place = Place::with(&contract(&[]));
    let daemon = place.run(&[]);
    let program = example();
    let cpus = std::thread::available_parallelism().unwrap().get();
    let gangs: Vec<Running> = (0..=cpus).map(|_| begin(&program, &place)).collect();
    let pids = hold(&place, &daemon, &gangs);
    for pid in &pids {
        eventually("each is stopped once", || state(*pid) == 'T');
        eventually("and runs again", || state(*pid) == 'R');
    }
    let mut last = serde_json::Value::Null;
    eventually("each is chosen by what it told", || {
        last = place.status();
        let jobs = last["jobs"].as_array().unwrap();
        let told = jobs.iter().filter(|job| {
            let gang = &job["gang"];
            gang["known"] == "told" && gang["bytes_per_s"].as_u64().unwrap_or(0) > 1_000_000
        });
        told.count() == pids.len()
    });
    let account = &last["accounts"][0]["gangs"];
    let (running, waiting) = (account["running"].as_u64().unwrap(), account["waiting"].as_u64().unwrap());
    assert!(running >= 1 && waiting >= 1 && running + waiting <= pids.len() as u64, "{account}");
    assert!(account["ran"].as_u64() > Some(0) && account["longest"].as_u64() > Some(0), "{account}");
    let status = said(&mut place.command(&["status"])).out;
    assert!(status.contains(" wait") && status.contains("told") && status.contains("quanta"), "{status}");
    no_problem(&place);
}

/// The library's thread notices the daemon's end only after ten seconds.
fn joined_again(gangs: &[Running], daemon: &Daemon) -> bool {
    let begin = Instant::now();
    let pages = || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
        maps.matches("memfd:commonhold-gang").count()
    };
    while begin.elapsed() < Duration::from_secs(40) {
        if pages() == gangs.len() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

#[test]
fn programs_that_reported_to_one_daemon_join_the_next() {
    let place = Place::with(&contract(&[]));
    let in_c = built(&place).join("bbma");
    let daemon = place.run(&[]);
    let gangs = [
        begin(&example(), &place),
        Running::start(Command::new(in_c).arg("0").env("COMMONHOLD_SOCKET", place.socket())),
    ];
    hold(&place, &daemon, &gangs);
    let told = |place: &Place| {
        let status = place.status();
        let jobs = status["jobs"].as_array().unwrap();
        jobs.len() == 2 && jobs.iter().all(|job| job["gang"]["known"] == "told")
    };
    eventually("both are known", || told(&place));
    drop(daemon);
    let daemon = place.run(&[]);
    assert!(joined_again(&gangs, &daemon), "not within 40 s");
    eventually("both are known again", || told(&place));
    // Their total transfers would exceed what their CPU time since then allows.
    no_problem(&place);
}

/// It knows nothing of gangs.
const OPENMP: &str = r#"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
	long rounds = count > 1 ? atol(arguments[1]) : 1, round, sum = 0;
	for (round = 0; rounds == 0 || round < rounds; round++) {
#pragma omp parallel for reduction(+ : sum)
		for (long n = 0; n < 10000000; n++)
			sum += n % (round + 2);
	}
	printf("%d threads, %ld\n", omp_get_max_threads(), sum);
	return 0;
}
"#;

/// The threads of a team, by their state in the kernel.
fn states_of_threads(pid: u32) -> Vec<char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).ok();
    tasks.filter_map(stat).filter_map(|stat| stat.rsplit(") ").next()?.chars().next()).collect()
}

/// Whether hardware counters of cache misses are available: virtual machines often have none.
fn has_counters(place: &Place) -> bool {
    let (source, program) = (place.path().join("counts.c"), place.path().join("counts"));
    let text = "#define _GNU_SOURCE\n#define COMMONHOLD_GANG_IMPLEMENTATION\n#include \"commonhold_gang.h\"\n\
                int main(void) { return ch__gang_open(0, 0) < 0; }\n";
    std::fs::write(&source, text).unwrap();
    compile(source.to_str().unwrap(), &program);
    said(&mut Command::new(program)).code == Some(0)
}

#[test]
fn an_openmp_program_that_knows_nothing_of_gangs_is_one() {
    let place = Place::with(&contract(&[]));
    let shim = built(&place).join("libcommonhold-gang.so");
    let (source, program) = (place.path().join("openmp.c"), place.path().join("openmp"));
    std::fs::write(&source, OPENMP).unwrap();
    let mut cc = Command::new("cc");
    let built = said(cc.args(["-O2", "-fopenmp", "-o"]).args([&program, &source]));
    assert_eq!(built.code, Some(0), "install gcc with libgomp, as scripts/packages-run says: {built:?}");
    let team = |rounds: &str| {
        let mut command = Command::new(&program);
        command.arg(rounds).env("OMP_NUM_THREADS", "3").env("LD_PRELOAD", &shim);
        command.env("COMMONHOLD_SOCKET", place.socket());
        command
    };
    // With the library, it computes the same result as without.
    let daemon = place.run(&[]);
    let plain = said(team("2").env_remove("LD_PRELOAD"));
    let beside = said(&mut team("2"));
    assert_eq!((beside.code, &*beside.out), (Some(0), &*plain.out));
    // Without counters the library reports only that, once.
    let uncounted = !has_counters(&place);
    let says = beside.err.starts_with("commonhold-gang: process") && beside.err.contains("cannot count what");
    assert_eq!((uncounted, usize::from(uncounted)), (says, beside.err.lines().count()), "{beside:?}");
    assert!(plain.out.starts_with("3 threads, "), "{plain:?}");
    // Two of them have more threads than most machines have CPUs: all threads of one are stopped together.
    let cpus = std::thread::available_parallelism().unwrap().get();
    let gangs: Vec<Running> = (0..=cpus.div_ceil(3)).map(|_| Running::start(&mut team("0"))).collect();
    let pids = hold(&place, &daemon, &gangs);
    for pid in &pids {
        // Three of the team, and the library's.
        eventually("its team is there", || states_of_threads(*pid).len() == 4);
        eventually("all of it is stopped", || states_of_threads(*pid).iter().all(|state| *state == 'T'));
        eventually("and runs again", || states_of_threads(*pid).contains(&'R'));
    }
    let status = place.status();
    let jobs = status["jobs"].as_array().unwrap();
    let cpus_of = |job: &serde_json::Value| job["gang"]["cpus"].as_u64().unwrap();
    assert!(
        jobs.len() == pids.len() && jobs.iter().any(|job| cpus_of(job) >= cpus.min(2) as u64),
        "{jobs:?}"
    );
    if uncounted {
        // This is reported after a second of CPU time, which takes long on a busy machine.
        let patience = Instant::now() + Duration::from_secs(120);
        loop {
            let status = place.status();
            let is_said = status["problems"].to_string().contains("nothing measures what process");
            let taken = |job: &serde_json::Value| job["gang"]["known"] == "taken";
            assert!(status["jobs"].as_array().unwrap().iter().all(taken), "nobody told: {status}");
            if is_said {
                break;
            }
            assert!(Instant::now() < patience, "status does not say that nothing measures it: {status}");
            std::thread::sleep(Duration::from_millis(100));
        }
    } else {
        no_problem(&place);
    }
    for pid in pids {
        kill(pid, libc::SIGKILL);
    }
}
