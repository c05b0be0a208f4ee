//! Programs that are gangs: the protocol between `commonhold_gang.h` and the daemon, and the state after the
//! daemon's end.

use std::io::Read;
use std::mem::offset_of;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use commonhold_client::arena::{LEFT, Page, VERSION};
use commonhold_client::{Client, Error, Why};

use crate::programs::{compile, compiled, root};
use crate::support::{Daemon, Place, Process, eventually, is_there, kill, said, state};

const SANITIZE: [&str; 4] = ["-g", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// A contract whose unit's processes are gangs.
pub(crate) fn contract(members: &[u32]) -> String {
    let members: Vec<String> = members.iter().map(|pid| format!("\"pid:{pid}\"")).collect();
    format!(
        "version = 1\n[machine]\ngangs = \"latest-quantum\"\nquantum = \"50ms\"\n\
         [unit.u]\njob = \"process\"\nmembers = [{}]\n",
        members.join(", ")
    )
}

/// The output folder of `scripts/gangs`.
pub(crate) fn built(place: &Place) -> PathBuf {
    let to = place.path().join("gangs");
    let script = Command::new(root().join("scripts/gangs")).arg(&to).status().unwrap();
    assert!(script.success(), "install gcc, as scripts/packages-run says");
    to
}

/// A program that is killed at the end of the test.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has mapped a page from the daemon.
    pub(crate) fn has_joined(&self) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap_or_default();
        maps.contains("memfd:commonhold-gang")
    }

    fn said(mut self) -> (String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        self.0.wait().unwrap();
        (out, err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No problem but a verdict: others may use this machine meanwhile, and the unit then has less than its part.
pub(crate) fn no_problem(place: &Place) {
    let status = place.status();
    let problems: Vec<&str> =
        status["problems"].as_array().unwrap().iter().filter_map(|problem| problem.as_str()).collect();
    assert!(problems.iter().all(|problem| problem.starts_with("verdict: ")), "{problems:?}");
}

#[test]
fn c_and_rust_have_the_page_alike() {
    let place = Place::new();
    let program = place.path().join("gang_test");
    assert_eq!(compiled("clients/c/gang_test.c", &program, &["-pthread"]).code, Some(0));
    let here = [
        size_of::<Page>(),
        offset_of!(Page, version),
        offset_of!(Page, every_ns),
        offset_of!(Page, looked_at_ns),
        offset_of!(Page, sequence),
        offset_of!(Page, at_ns),
        offset_of!(Page, bytes),
        offset_of!(Page, writer),
        offset_of!(Page, unmeasured),
    ];
    let here: Vec<String> = here.iter().map(ToString::to_string).collect();
    let said = said(Command::new(&program).arg("layout"));
    assert_eq!(said.out.trim(), format!("{} {VERSION} {LEFT}", here.join(" ")));
}

/// Against a mock daemon: refusals, forks, threads that start and end.
#[test]
fn the_library_in_c_keeps_to_its_words() {
    let place = Place::new();
    for more in [&[][..], &["-DCOUNTED"], &["-DCOUNTED", "-DCH__GANG_INHERIT_THREAD_BIT=63"]] {
        let program = place.path().join(format!("gang_test{}", more.len()));
        let with = |flags: &[&str]| compiled("clients/c/gang_test.c", &program, &[flags, more].concat());
        if with(&SANITIZE).code != Some(0) {
            // Some distributions package the sanitizers separately.
            assert_eq!(with(&["-pthread"]).code, Some(0), "install gcc, as scripts/packages-run says");
        }
        let said = said(&mut Command::new(&program));
        // 3: this kernel refuses all counters.
        let may_be = if more.is_empty() { &[0][..] } else { &[0, 3] };
        assert!(may_be.contains(&said.code.unwrap()) && said.out.is_empty(), "{more:?} {said:?}");
    }
}

fn ns_per_write(program: &Path) -> f64 {
    let said = said(Command::new(program).arg("0.5").env_remove("COMMONHOLD_SOCKET"));
    let words: Vec<&str> = said.out.split_whitespace().collect();
    words[2].parse().unwrap_or_else(|_| panic!("{said:?}"))
}

/// BBMA's writes miss the cache and nBBMA's hit it, so the latter's are several times faster.
#[test]
fn what_fills_the_bus_is_slower_than_what_leaves_it_alone() {
    let place = Place::new();
    let programs = built(&place);
    // Other load on the machine may spoil some attempts.
    eventually("a write within the cache takes a third of the time", || {
        ns_per_write(&programs.join("bbma")) > 3.0 * ns_per_write(&programs.join("nbbma"))
    });
}

#[test]
fn programs_join_and_are_stopped_by_turns() {
    let place = Place::new();
    let programs = built(&place);
    let begin = |name: &str| {
        Running::start(Command::new(programs.join(name)).arg("0").env("COMMONHOLD_SOCKET", place.socket()))
    };
    // They join when they start, so the daemon must already run. Their process IDs are known only then: a
    // reload names them.
    place.write(&contract(&[]));
    let daemon = place.run(&[]);
    let cpus = std::thread::available_parallelism().unwrap().get();
    let gangs: Vec<Running> = (0..=cpus).map(|n| begin(if n % 2 == 0 { "bbma" } else { "nbbma" })).collect();
    let pids: Vec<u32> = gangs.iter().map(Running::pid).collect();
    eventually("all have joined", || gangs.iter().all(Running::has_joined));
    place.write(&contract(&pids));
    daemon.signal(libc::SIGHUP);
    for pid in &pids {
        eventually("each is stopped once", || state(*pid) == 'T');
        eventually("and runs again", || state(*pid) == 'R');
    }
    no_problem(&place);
    kill(pids[0], libc::SIGTERM);
    kill(pids[0], libc::SIGCONT);
    drop(daemon);
    let mut gangs = gangs.into_iter();
    let (out, err) = gangs.next().unwrap().said();
    assert!(out.contains("ns each") && err.is_empty(), "{out} {err}");
}

#[test]
fn a_killed_daemon_leaves_no_gang_stopped() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let members: Vec<Process> = (0..=cpus).map(|_| Process::spinner()).collect();
    let pids: Vec<u32> = members.iter().map(Process::pid).collect();
    let place = Place::with(&contract(&pids));
    let mut daemon = place.run(&[]);
    eventually("one is stopped", || members.iter().any(Process::is_stopped));
    let caretaker = daemon.caretaker();
    daemon.kill();
    eventually("all run", || members.iter().all(Process::is_free));
    eventually("the caretaker ends", || !is_there(caretaker));
}

/// A multi-threaded program that knows nothing of gangs.
const PLAIN: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *run(void *argument) { return argument; }
int main(int count, char **arguments) {
	pthread_t thread;
	void *same;
	for (int n = 0; n < 100; n++) {
		if (pthread_create(&thread, 0, run, &thread) != 0 || pthread_join(thread, &same) != 0 || same != &thread)
			return 3;
	}
	puts("done");
	fflush(stdout);
	if (count > 1) {
		/* The child joins when it starts a thread. */
		if (fork() == 0) {
			if (pthread_create(&thread, 0, run, 0) != 0)
				_exit(3);
			pause();
		}
		pause();
	}
	(void)arguments;
	return 0;
}
"#;

fn plain(place: &Place) -> PathBuf {
    let (source, program) = (place.path().join("plain.c"), place.path().join("plain"));
    std::fs::write(&source, PLAIN).unwrap();
    let cc = Command::new("cc").args(["-pthread", "-o"]).args([&program, &source]).status().unwrap();
    assert!(cc.success());
    program
}

#[test]
fn a_program_that_knows_nothing_of_gangs_joins() {
    let place = Place::with(&contract(&[]));
    let shim = built(&place).join("libcommonhold-gang.so");
    let program = plain(&place);
    let preloaded = |command: &mut Command| {
        command.env("LD_PRELOAD", &shim).env("COMMONHOLD_SOCKET", place.socket());
    };
    // Without a daemon, nothing happens and nothing is printed.
    let mut alone = Command::new(&program);
    preloaded(&mut alone);
    let alone = said(&mut alone);
    assert_eq!((alone.code, &*alone.out, &*alone.err), (Some(0), "done\n", ""));
    let daemon = place.run(&[]);
    let mut command = Command::new(&program);
    preloaded(&mut command);
    let mut running = Running::start(command.arg("stay"));
    eventually("it has joined", || running.has_joined());
    let children = || {
        let list = format!("/proc/{0}/task/{0}/children", running.pid());
        let text = std::fs::read_to_string(list).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    eventually("its child has joined", || {
        children().iter().any(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().contains("memfd:commonhold-gang")
        })
    });
    let child = children()[0];
    kill(child, libc::SIGKILL);
    running.0.kill().unwrap();
    // Neither with a daemon without gangs.
    place.write("version = 1\n[unit.u]\n");
    daemon.signal(libc::SIGHUP);
    daemon.says("reloaded");
    let mut without = Command::new(&program);
    preloaded(&mut without);
    let without = said(&mut without);
    assert_eq!((without.code, &*without.out, &*without.err), (Some(0), "done\n", ""));
}

/// Requests a page over the raw protocol.
fn join(place: &Place) -> Result<u64, Error> {
    let mut client = Client::connect(place.socket()).unwrap();
    let joined: commonhold_client::wire::Joined = client.call(&commonhold_client::wire::Call::Join {})?;
    Ok(joined.every_ns)
}

#[test]
fn whoever_asks_for_pages_gets_no_more_than_one() {
    let place = Place::with(&contract(&[]));
    let daemon: Daemon = place.run(&[]);
    assert_eq!(join(&place).unwrap(), 25_000_000);
    let files = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    let pages = || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
        maps.matches("memfd:commonhold-gang").count()
    };
    let before = files();
    for _ in 0..1000 {
        join(&place).unwrap();
    }
    eventually("its descriptors are closed", || files() <= before);
    assert_eq!(pages(), 1);
    // Neither the answers nor the descriptors passed with them are received.
    let deaf: Vec<UnixStream> = (0..100)
        .map(|_| {
            let stream = UnixStream::connect(place.socket()).unwrap();
            let call = commonhold_client::wire::Call::Join {};
            commonhold_client::wire::send(&stream, &call).unwrap();
            stream
        })
        .collect();
    assert_eq!(join(&place).unwrap(), 25_000_000);
    drop(deaf);
    eventually("their descriptors are closed", || files() <= before);
    assert_eq!(pages(), 1);
    place.write("version = 1\n[unit.u]\n");
    daemon.signal(libc::SIGHUP);
    daemon.says("reloaded");
    let refused = join(&place).unwrap_err();
    assert!(refused.why() == Some(&Why::NoGangs) && refused.to_string().contains("`gangs` in [machine]"));
}

/// `compile` reports a missing compiler.
#[test]
fn programs_are_compiled_without_a_warning() {
    let place = Place::new();
    let source = place.path().join("joins.c");
    let text = "#define _GNU_SOURCE\n#define COMMONHOLD_GANG_IMPLEMENTATION\n#include \"commonhold_gang.h\"\n\
                int main(void) { char why[CH_GANG_WORDS]; return ch_gang_join(\"/nowhere\", why) != CH_SYSTEM; }\n";
    std::fs::write(&source, text).unwrap();
    let program = place.path().join("joins");
    compile(source.to_str().unwrap(), &program);
    assert_eq!(said(&mut Command::new(program)).code, Some(0));
}
