//! The processes of unfolded units: the daemon says which they are, and `/proc` what they do.
//!
//! `/proc` shows other users' processes only where the system permits it; nothing else is read of them. A
//! pass is cheap at first and then paced: the thread rests 200 times as long as it computed.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use commonhold_command::place::Place;
use commonhold_feed::{Connection, FeedError};
use commonhold_live::observe::names::SystemNames;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

/// The most processes of a unit that are read.
const PROCESSES_MAX: usize = 2_000;
/// The most units whose processes are read in a pass.
const UNITS_MAX: usize = 64;
/// The shortest time between two passes.
const REST_MIN: Duration = Duration::from_secs(2);
/// The longest.
const REST_MAX: Duration = Duration::from_secs(60);
/// The longest command line that is kept, in bytes.
const COMMAND_MAX: usize = 512;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Its user's name or number.
    pub(crate) user: String,
    /// The command line, or else the name in brackets.
    pub(crate) command: String,
    /// CPU time used since the previous pass, in millionths of a CPU; `None` in the first pass.
    pub(crate) cpu: Option<u64>,
    /// Resident memory in bytes.
    pub(crate) resident: u64,
}

/// The processes of a unit, those that use most CPU first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Listing {
    pub(crate) processes: Vec<Process>,
    /// The number of the unit's processes; more than `processes` has if some may not be seen, have ended, or
    /// exceed the maximum.
    pub(crate) all: usize,
    /// Why there is no list.
    pub(crate) why: Option<String>,
}

/// The processes of units, by path.
pub(crate) type Listings = BTreeMap<String, Listing>;

/// The reply to `io.commonhold.Members`.
#[derive(Deserialize)]
struct Members {
    pids: Vec<u32>,
    all: usize,
}

/// What is remembered of a process between passes.
struct Known {
    /// When it started, in ticks since boot: it tells processes with the same number apart.
    started: u64,
    name: String,
    command: String,
    user: String,
    ticks: u64,
    at: Instant,
    /// The pass in which it was last seen.
    pass: u64,
}

/// Reads the processes of the units that come over `wanted`, each time all that are wanted, until `give`
/// returns `false` or the channel is closed.
pub(crate) fn read(place: &Place, wanted: &Receiver<Vec<String>>, mut give: impl FnMut(Listings) -> bool) {
    let mut reader = Reader::default();
    let mut units: Vec<String> = Vec::new();
    let mut rest = Duration::ZERO;
    loop {
        let next = match units.is_empty() {
            true => wanted.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => wanted.recv_timeout(rest),
        };
        match next {
            // While a key is held down, only the last message counts.
            Ok(new) => units = wanted.try_iter().last().unwrap_or(new),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if units.is_empty() {
            continue;
        }
        let before = cpu_time();
        if !give(reader.pass(place, &units)) {
            return;
        }
        rest = (cpu_time().saturating_sub(before) * 200).clamp(REST_MIN, REST_MAX);
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[derive(Default)]
struct Reader {
    connection: Option<Connection>,
    names: SystemNames,
    known: HashMap<u32, Known>,
    passes: u64,
}

impl Reader {
    fn pass(&mut self, place: &Place, units: &[String]) -> Listings {
        self.passes += 1;
        let listings =
            units.iter().take(UNITS_MAX).map(|unit| (unit.clone(), self.unit(place, unit))).collect();
        self.known.retain(|_, known| known.pass == self.passes);
        listings
    }

    fn unit(&mut self, place: &Place, unit: &str) -> Listing {
        let Members { pids, all } = match self.members(place, unit) {
            Ok(members) => members,
            Err(FeedError::TooOld) => {
                let why = "the daemon is older than this program and does not list processes".to_owned();
                return Listing { why: Some(why), ..Listing::default() };
            }
            Err(e) => return Listing { why: Some(e.to_string()), ..Listing::default() },
        };
        let mut processes: Vec<Process> =
            pids.iter().take(PROCESSES_MAX).filter_map(|pid| self.process(*pid)).collect();
        processes.sort_by_key(|process| (std::cmp::Reverse(process.cpu), process.pid));
        Listing { processes, all: all.max(pids.len()), why: None }
    }

    fn members(&mut self, place: &Place, unit: &str) -> Result<Members, FeedError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(place)?,
        };
        let members = connection.call("io.commonhold.Members", serde_json::json!({ "unit": unit }));
        // Another call over a broken connection would fail, too. A refusal leaves it intact, but is
        // rare enough for a new one.
        if members.is_ok() {
            self.connection = Some(connection);
        }
        members
    }

    /// The process, if it exists and may be seen.
    fn process(&mut self, pid: u32) -> Option<Process> {
        let stat = Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        let now = Instant::now();
        let known = self.known.remove(&pid).filter(|known| known.started == stat.started);
        let cpu = known.as_ref().map(|known| {
            let ticks = u128::from(stat.ticks.saturating_sub(known.ticks)) * 1_000_000_000_000;
            let elapsed = u128::from(rustix::param::clock_ticks_per_second()) * (now - known.at).as_micros();
            // Ticks are coarse, so that a busy thread may seem to use more than a CPU.
            ticks.checked_div(elapsed).map_or(0, |cpu| u64::try_from(cpu).unwrap_or(u64::MAX))
        });
        let (command, user) = match known {
            // A program that executes another one changes its name, or nearly always does.
            Some(Known { name, command, user, .. }) if name == stat.name => (command, user),
            _ => (command(pid, &stat.name), self.user(pid)),
        };
        let process = Process { pid, user, command, cpu, resident: stat.resident };
        let Process { command, user, .. } = process.clone();
        let Stat { name, ticks, started, .. } = stat;
        self.known.insert(pid, Known { started, name, command, user, ticks, at: now, pass: self.passes });
        Some(process)
    }

    fn user(&self, pid: u32) -> String {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let uid = uids.and_then(|uids| uids.split_whitespace().next()?.parse().ok());
        uid.map_or_else(String::new, |uid: u32| self.names.user_name(uid).unwrap_or_else(|| uid.to_string()))
    }
}

/// The arguments of a process with spaces between them. Kernel threads, and processes that have ended, have
/// none: then the name in brackets.
fn command(pid: u32, name: &str) -> String {
    let mut bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes.truncate(COMMAND_MAX);
    let text = String::from_utf8_lossy(&bytes);
    match text.trim_end_matches('\0') {
        "" => format!("[{name}]"),
        arguments => arguments.replace('\0', " "),
    }
}

/// The fields of `/proc/PID/stat` that are used.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    /// CPU time in ticks.
    ticks: u64,
    started: u64,
    resident: u64,
}

impl Stat {
    /// Parses the line. The name in it may have spaces and brackets.
    fn parse(line: &str) -> Option<Stat> {
        let (before, after) = line.rsplit_once(") ")?;
        let (_, name) = before.split_once(" (")?;
        // The first of these fields is the third of the line.
        let fields: Vec<&str> = after.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let pages = field(24)?;
        Some(Stat {
            name: name.to_owned(),
            ticks: field(14)?.saturating_add(field(15)?),
            started: field(22)?,
            resident: pages.saturating_mul(u64::try_from(rustix::param::page_size()).ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_stat_may_have_brackets_and_spaces() {
        let line = "7 (a ) (b) R 1 7 7 0 -1 0 0 0 0 0 30 12 0 0 20 0 1 0 4711 1000 2 0 0\n";
        let stat = Stat::parse(line).unwrap();
        let page = u64::try_from(rustix::param::page_size()).unwrap();
        let expected = Stat { name: "a ) (b".to_owned(), ticks: 42, started: 4711, resident: 2 * page };
        assert_eq!(stat, expected);
        for wrong in ["", "7 (a", "7 (a) R 1", "7 (a) R x x x x x x x x x x x x x x x x x x x x x x"] {
            assert_eq!(Stat::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_process_is_read_with_its_command_and_rate() {
        let mut reader = Reader::default();
        let me = std::process::id();
        let first = reader.process(me).unwrap();
        assert_eq!((first.pid, first.cpu), (me, None));
        assert!(!first.user.is_empty() && !first.command.is_empty() && first.resident > 0, "{first:?}");
        assert!(reader.process(me).unwrap().cpu.is_some());
        assert_eq!(reader.process(u32::MAX), None);
    }

    #[test]
    fn the_daemon_says_which_processes_are_read() {
        use std::io::{Read, Write};
        let folder = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        let me = std::process::id();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let gone = u32::MAX;
            let members = format!("{{\"parameters\":{{\"pids\":[{me},{gone}],\"all\":5}}}}\0");
            let unknown = "{\"error\":\"org.varlink.service.MethodNotFound\"}\0".to_owned();
            for answer in [members, unknown] {
                let _ = client.read(&mut [0; 256]);
                let _ = client.write_all(answer.as_bytes());
            }
        });
        let place = Place { directory: Some(folder.path().to_owned()) };
        let mut reader = Reader::default();
        let units = ["a".to_owned()];
        let listing = &reader.pass(&place, &units)["a"];
        assert_eq!((listing.processes.len(), listing.processes[0].pid, listing.all), (1, me, 5));
        let old = &reader.pass(&place, &units)["a"];
        assert!(old.why.as_ref().is_some_and(|why| why.contains("does not list processes")), "{old:?}");
        let gone = &reader.pass(&place, &units)["a"];
        assert!(gone.why.is_some() && gone.processes.is_empty(), "{gone:?}");
    }
}
