//! The processes and threads of units, their memory, faults and transfers, and the machine's disks.

use std::collections::BTreeMap;
use std::path::Path;

use commonhold_live::LiveError;
use commonhold_live::host::clock;
use commonhold_live::observe::process::{ProcFs, SchedStat};
use commonhold_recording::{DiskSample, ProcessSample, Thread, ThreadUsage, Usage};

/// The most processes in a sample, and the most threads that are followed.
const PROCESSES_MAX: usize = 4_096;
const THREADS_MAX: usize = 16_384;
/// The unit of `/proc/diskstats`.
const SECTOR: u64 = 512;
/// The rounds in which a thread's name is read again: most threads are named, or execute their program, soon
/// after they begin.
const NAMING_ROUNDS: u64 = 3;

/// Follows the threads of units.
#[derive(Debug)]
pub(super) struct Processes {
    procfs: ProcFs,
    threads: BTreeMap<u32, Known>,
    /// The most threads that are followed.
    threads_max: usize,
    /// The number of the present round of [`Processes::sample`].
    round: u64,
    /// When the round before began, by the monotonic clock.
    last_round: Option<u64>,
    /// Names of the machine's whole disks.
    disks: Vec<String>,
}

/// A thread that was seen.
#[derive(Debug)]
struct Known {
    pid: u32,
    unit: String,
    name: String,
    /// The first round in which it was listed.
    first_round: u64,
    /// The last round in which it was listed.
    round: u64,
    /// Its clocks at the last reading; `None` if they count from zero, since the thread is new.
    clocks: Option<SchedStat>,
}

/// What a round finds.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) new: Vec<Thread>,
    pub(super) processes: Vec<ProcessSample>,
    /// Processes that were left out, or some of whose threads were.
    pub(super) left_out: u32,
}

/// A thread that is looked at.
enum Look {
    Known,
    New(Thread),
    /// The thread is beyond the limit.
    LeftOut,
}

impl Processes {
    /// Opens /proc. `disks` are the names of the disks to sample.
    ///
    /// # Errors
    ///
    /// /proc is missing.
    pub(super) fn open(disks: Vec<String>) -> Result<Processes, LiveError> {
        let procfs = ProcFs::open(Path::new("/proc"))?;
        let (threads, threads_max) = (BTreeMap::new(), THREADS_MAX);
        Ok(Processes { procfs, threads, threads_max, round: 0, last_round: None, disks })
    }

    /// Looks at the members of units, given as paths with processes. A process that ends meanwhile is left
    /// out.
    ///
    /// # Errors
    ///
    /// This program's own failure, such as too many open files.
    pub(super) fn sample(&mut self, members: &[(String, Vec<u32>)], at_ns: u64) -> Result<Found, LiveError> {
        self.round += 1;
        let now = clock::now();
        let mut found = Found::default();
        let mut tids = Vec::new();
        for (unit, pids) in members {
            for &pid in pids {
                if found.processes.len() == PROCESSES_MAX {
                    found.left_out += 1;
                    continue;
                }
                let Some(stat) = self.procfs.stat(pid)? else { continue };
                let memory = self.procfs.resident(pid)?.unwrap_or_default();
                // Another user's transfers may not be read.
                let transferred = self.procfs.transferred(pid).ok().flatten().unwrap_or_default();
                found.processes.push(ProcessSample {
                    pid,
                    anonymous: memory.anonymous,
                    of_files: memory.file,
                    faults: stat.minor_faults.saturating_add(stat.major_faults),
                    major_faults: stat.major_faults,
                    read: transferred.read,
                    written: transferred.written,
                });
                self.procfs.threads(pid, &mut tids)?;
                let mut is_whole = true;
                for &tid in &tids {
                    match self.thread(tid, pid, unit, at_ns)? {
                        Look::Known => {}
                        Look::New(thread) => found.new.push(thread),
                        Look::LeftOut => is_whole = false,
                    }
                }
                found.left_out += u32::from(!is_whole);
            }
        }
        let round = self.round;
        self.threads.retain(|_, known| known.round == round);
        self.last_round = Some(now);
        Ok(found)
    }

    /// Notes that a thread exists. It counts as new, too, if its unit or its name has changed.
    fn thread(&mut self, tid: u32, pid: u32, unit: &str, at_ns: u64) -> Result<Look, LiveError> {
        let round = self.round;
        let is_followed = self.threads.contains_key(&tid);
        let known = self.threads.get_mut(&tid).filter(|known| known.pid == pid);
        if let Some(known) = known {
            known.round = round;
            if known.unit == unit && round - known.first_round >= NAMING_ROUNDS {
                return Ok(Look::Known);
            }
        } else if !is_followed && self.threads.len() >= self.threads_max {
            return Ok(Look::LeftOut);
        }
        let comm = self.procfs.read(&format!("{pid}/task/{tid}/comm"))?;
        let name = String::from_utf8_lossy(comm.unwrap_or_default()).trim_end().to_owned();
        if let Some(known) = self.threads.get_mut(&tid).filter(|known| known.pid == pid) {
            // An empty name: the thread has just ended.
            if known.unit == unit && (known.name == name || name.is_empty()) {
                return Ok(Look::Known);
            }
            (known.unit, known.name) = (unit.to_owned(), name.clone());
        } else {
            // What it used before it was first seen would be missing otherwise.
            let clocks = if self.is_new(tid)? { None } else { self.procfs.thread_schedstat(pid, tid)? };
            let (unit, name) = (unit.to_owned(), name.clone());
            self.threads.insert(tid, Known { pid, unit, name, first_round: round, round, clocks });
        }
        Ok(Look::New(Thread { tid, pid, name, unit: unit.to_owned(), seen_ns: at_ns }))
    }

    /// Whether a thread began after the round before.
    fn is_new(&mut self, tid: u32) -> Result<bool, LiveError> {
        let Some(last_round) = self.last_round else { return Ok(false) };
        // The kernel has such a file for each thread, though it lists those of processes alone.
        let stat = self.procfs.stat(tid)?;
        Ok(stat.is_some_and(|stat| stat.key.may_be_younger_than(last_round)))
    }

    /// What the known threads used since their last reading. Threads that did nothing are left out.
    ///
    /// # Errors
    ///
    /// As [`Processes::sample`].
    pub(super) fn usage(&mut self, at_ns: u64, over_ns: u64) -> Result<Usage, LiveError> {
        let mut threads = Vec::new();
        for (&tid, known) in &mut self.threads {
            let Some(now) = self.procfs.thread_schedstat(known.pid, tid)? else { continue };
            let before = known.clocks.replace(now).unwrap_or_default();
            let used = ThreadUsage {
                tid,
                ran_ns: now.ran_ns.saturating_sub(before.ran_ns),
                waited_ns: now.waited_ns.saturating_sub(before.waited_ns),
                turns: u32::try_from(now.turns.saturating_sub(before.turns)).unwrap_or(u32::MAX),
            };
            if used.ran_ns > 0 || used.waited_ns > 0 {
                threads.push(used);
            }
        }
        Ok(Usage { at_ns, over_ns, threads })
    }

    /// The machine's disks, by /proc/diskstats.
    ///
    /// # Errors
    ///
    /// As [`Processes::sample`].
    pub(super) fn disks(&mut self) -> Result<Vec<DiskSample>, LiveError> {
        let text =
            String::from_utf8_lossy(self.procfs.read_lines("diskstats")?.unwrap_or_default()).into_owned();
        Ok(text.lines().filter_map(disk).filter(|disk| self.disks.contains(&disk.name)).collect())
    }
}

/// Reads a line of /proc/diskstats (Documentation/admin-guide/iostats.rst).
fn disk(line: &str) -> Option<DiskSample> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let [major, minor] = [0, 1].map(|index| u32::try_from(number(index)?).ok());
    Some(DiskSample {
        name: (*fields.get(2)?).to_owned(),
        device: major?.checked_shl(20)? | minor?,
        reads: (number(3)?, number(5)?.saturating_mul(SECTOR)),
        writes: (number(7)?, number(9)?.saturating_mul(SECTOR)),
        busy_ns: number(12)?.saturating_mul(1_000_000),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_disks_line_is_read() {
        let line = " 253       0 vda 100 1 800 50 200 2 1600 70 0 90 120 0 0 0 0 0 0";
        let read = disk(line).unwrap();
        assert_eq!((read.name.as_str(), read.device), ("vda", 253 << 20));
        assert_eq!((read.reads, read.writes, read.busy_ns), ((100, 409_600), (200, 819_200), 90_000_000));
        assert_eq!(disk("253 0"), None);
    }

    #[test]
    fn a_thread_is_new_once() {
        let mut processes = Processes::open(Vec::new()).unwrap();
        let here = std::process::id();
        let members = [("physics".to_owned(), vec![here, u32::MAX])];
        let found = processes.sample(&members, 5).unwrap();
        assert_eq!(found.processes.len(), 1);
        assert!(found.processes[0].anonymous > 0);
        assert!(found.new.iter().any(|thread| thread.tid == here && thread.unit == "physics"));
        let again = processes.sample(&members, 6).unwrap();
        assert!(again.new.iter().all(|thread| thread.tid != here));
        let moved = processes.sample(&[("chemistry".to_owned(), vec![here])], 7).unwrap();
        assert!(moved.new.iter().any(|thread| thread.tid == here && thread.unit == "chemistry"));
    }

    #[test]
    fn a_young_threads_new_name_is_noticed() {
        let mut processes = Processes::open(Vec::new()).unwrap();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line; exec sleep 60"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let members = [("physics".to_owned(), vec![child.id()])];
        let names = |found: Found| found.new.into_iter().map(|thread| thread.name).collect::<Vec<_>>();
        let pid = child.id();
        let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        while comm() != "sh\n" {
            std::thread::yield_now();
        }
        assert_eq!(names(processes.sample(&members, 5).unwrap()), ["sh"]);
        drop(child.stdin.take());
        while comm() != "sleep\n" {
            std::thread::yield_now();
        }
        assert_eq!(names(processes.sample(&members, 6).unwrap()), ["sleep"]);
        assert!(processes.sample(&members, 7).unwrap().new.is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn threads_beyond_the_limit_are_counted() {
        let mut processes = Processes::open(Vec::new()).unwrap();
        processes.threads_max = 1;
        let here = std::process::id();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv());
        let found = processes.sample(&[("physics".to_owned(), vec![here])], 5).unwrap();
        assert_eq!((found.new.len(), found.processes.len(), found.left_out), (1, 1, 1));
        // A thread that is known may move, though the limit is reached.
        let moved = processes.sample(&[("chemistry".to_owned(), vec![here])], 6).unwrap();
        assert_eq!(moved.new.len(), 1);
        drop(end);
        let _ = other.join();
    }

    #[test]
    fn a_new_threads_clocks_count_from_its_start() {
        let mut processes = Processes::open(Vec::new()).unwrap();
        let members = [("physics".to_owned(), vec![std::process::id()])];
        processes.sample(&members, 5).unwrap();
        let (begun, begins) = std::sync::mpsc::channel::<u64>();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            while clock::thread_cpu_ns() < 20_000_000 {
                std::hint::spin_loop();
            }
            begun.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into()).unwrap();
            ended.recv()
        });
        let tid = u32::try_from(begins.recv().unwrap()).unwrap();
        let found = processes.sample(&members, 6).unwrap();
        assert!(found.new.iter().any(|thread| thread.tid == tid));
        let usage = processes.usage(7, 1).unwrap();
        let used = usage.threads.iter().find(|thread| thread.tid == tid).map(|thread| thread.ran_ns);
        // A kernel may keep no such statistics.
        if processes.threads[&tid].clocks.is_some() {
            assert!(used.is_some_and(|ns| ns >= 15_000_000), "{used:?}");
        }
        drop(end);
        let _ = other.join();
    }
}
