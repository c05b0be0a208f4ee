//! Moves processes into the cgroups of their units, and back at the end.
//!
//! Children inherit their parent's cgroup, so a process is moved once, and its children need no move. The
//! cgroup from which a process was moved is its *origin*, to which it is moved back when it leaves its unit.
//! A process that another program has moved out of its unit's cgroup is *displaced*. It is moved back
//! [`RETURNS_MAX`] times. If it is displaced once more, it is left where it is and reported, because two
//! daemons that fight over a process cost more than either gains.
//!
//! Before Linux 6.2, a cgroup's CPU set overwrites the affinity that a thread chose, and a move to another
//! cgroup gives the thread all CPUs of that cgroup's set. So on such kernels, the affinity of every thread
//! that chose one is recorded in the journal, and restored after the move back. Later kernels keep the chosen
//! affinity ("sched: Always preserve the user requested cpumask").

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use commonhold_machine::CpuSet;

use super::claim::Tree;
use crate::LiveError;
use crate::host::{self, affinity};
use crate::observe::process::{ProcFs, ProcessKey};
use crate::undo::journal::{Entry, Journal, record};
use crate::undo::way_back::{self, Sent, WayBack, origin_of, refusal};

/// The number of times that a process which another program moved away is moved back.
const RETURNS_MAX: u8 = 3;

/// The number of times that the back-off after a refused move doubles: up to a minute.
const WAIT_DOUBLED_MAX: u32 = 6;

/// A process and the cgroup it belongs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The process.
    pub(super) process: ProcessKey,
    /// The name of its program, for messages.
    pub(super) name: String,
    /// The cgroup it belongs in.
    pub(super) to: PathBuf,
}

/// The processes that were moved into cgroups of units, or could not be moved.
#[derive(Debug)]
pub(super) struct Members {
    /// Where cgroup v2 is mounted.
    mount: PathBuf,
    /// The slice that has all scopes that systemd makes for us.
    scopes: PathBuf,
    /// On kernels that overwrite affinities: the affinity of a thread that chose none.
    overwritten: Option<CpuSet>,
    procfs: ProcFs,
    /// A buffer.
    threads: Vec<u32>,
    /// The cgroup from which each process was moved.
    origins: BTreeMap<ProcessKey, PathBuf>,
    /// The number of times that each process was moved back.
    returns: BTreeMap<ProcessKey, u8>,
    /// Anonymous memory of each process when it was moved, in bytes. It stays charged to the process's
    /// origin.
    charged_to_origin: BTreeMap<ProcessKey, u64>,
    /// Processes that could not be moved into their units' cgroups.
    refused: BTreeMap<ProcessKey, Refused>,
    /// Processes that could not be moved back to their origins, with their names.
    stranded: BTreeMap<ProcessKey, String>,
    /// Processes that another program moved away too often, and that are left where they are.
    given_up: BTreeSet<ProcessKey>,
    /// Processes about which a failure was reported.
    reported: BTreeSet<ProcessKey>,
}

/// A move that the kernel refused.
#[derive(Debug, Default)]
struct Refused {
    /// The number of attempts so far.
    tries: u32,
    /// The number of checks for displaced processes to skip before the next attempt.
    wait: u32,
}

impl Members {
    /// No process was moved yet. `overwritten`: the affinity of a thread that chose none, on kernels that
    /// overwrite affinities.
    pub(super) fn new(mount: &Path, procfs: ProcFs, overwritten: Option<CpuSet>) -> Members {
        Members {
            mount: mount.to_owned(),
            scopes: mount.join("commonhold.slice"),
            overwritten,
            procfs,
            threads: Vec::new(),
            origins: BTreeMap::new(),
            returns: BTreeMap::new(),
            charged_to_origin: BTreeMap::new(),
            refused: BTreeMap::new(),
            stranded: BTreeMap::new(),
            given_up: BTreeSet::new(),
            reported: BTreeSet::new(),
        }
    }

    /// Moves processes to their units' cgroups, after recording their origins in the journal. Returns the
    /// errors.
    pub(super) fn bring(
        &mut self,
        arrivals: &[Arrival],
        tree: &Tree,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        let mut entries = Vec::new();
        let mut moves = Vec::new();
        for arrival in arrivals {
            self.stranded.remove(&arrival.process);
            let Some(current) = self.current_cgroup(arrival.process) else { continue };
            if current == arrival.to {
                continue;
            }
            // A process in one of our cgroups or scopes was moved there, and its origin is recorded already.
            if !current.starts_with(&tree.top) && !current.starts_with(&self.scopes) {
                self.set_origin(arrival.process, current, &mut entries);
            }
            moves.push(arrival);
        }
        if let Err(error) = record(journal, &entries) {
            return vec![error];
        }
        moves.into_iter().filter_map(|arrival| self.move_one(arrival)).collect()
    }

    /// Records a process's origin, before it is moved. Adds the journal entries that undo the move.
    fn set_origin(&mut self, process: ProcessKey, origin: PathBuf, entries: &mut Vec<Entry>) {
        if let Some(unchosen) = &self.overwritten
            && self.procfs.threads(process.pid, &mut self.threads).is_ok()
        {
            let masks = self.threads.iter().filter_map(|&tid| Some((tid, affinity::get(tid).ok()?)));
            let chosen = masks.filter(|(_, cpus)| cpus != unchosen);
            entries.extend(chosen.map(|(tid, cpus)| Entry::Affinity { process, tid, cpus }));
        }
        self.charged_to_origin.insert(process, anonymous_bytes(process.pid).unwrap_or(0));
        self.origins.insert(process, origin.clone());
        entries.push(Entry::Moved { process, from: origin });
    }

    /// The journal entries that undo the moves of these processes by systemd into a scope. A process in one
    /// of our cgroups, below `top`, or in another of our scopes needs none, because its origin is recorded
    /// already.
    pub(super) fn leave_for_scope(&mut self, processes: &[ProcessKey], top: &Path) -> Vec<Entry> {
        let mut entries = Vec::new();
        for process in processes {
            if let Some(current) = self.current_cgroup(*process)
                && !current.starts_with(&self.scopes)
                && !current.starts_with(top)
            {
                self.set_origin(*process, current, &mut entries);
            }
        }
        entries
    }

    /// Moves a process out of another unit's scope, back to its origin or that of its parent. If that cgroup
    /// does not exist any more, the process stays in the scope, which belongs to systemd anyway. Returns an
    /// error once per process.
    pub(super) fn send_out_of_scope(&mut self, process: ProcessKey, name: &str) -> Option<LiveError> {
        let origin = origin_of(&mut self.procfs, process.pid, &self.origins);
        match way_back::send_out_of_scope(&mut self.procfs, process, origin.as_deref()) {
            Ok(_) => {
                self.origins.remove(&process);
                None
            }
            Err(source) => self
                .reported
                .insert(process)
                .then(|| could_not_move(process, name, "out of another unit's scope", source)),
        }
    }

    /// Moves a process to its unit's cgroup. Returns an error once per process. The move is retried by later
    /// checks for displaced processes ([`Members::bring_back`]).
    fn move_one(&mut self, arrival: &Arrival) -> Option<LiveError> {
        let source = match way_back::enter(&mut self.procfs, arrival.process, &arrival.to) {
            // The process has ended.
            Ok(false) => return None,
            Ok(true) => {
                if self.refused.remove(&arrival.process).is_some() {
                    self.reported.remove(&arrival.process);
                }
                return None;
            }
            Err(error) => error,
        };
        self.origins.remove(&arrival.process);
        let refused = self.refused.entry(arrival.process).or_default();
        // Exponential back-off, counted in checks for displaced processes.
        refused.wait = (1 << refused.tries.min(WAIT_DOUBLED_MAX)) - 1;
        refused.tries += 1;
        let to = format!("to {}", arrival.to.display());
        self.reported
            .insert(arrival.process)
            .then(|| could_not_move(arrival.process, &arrival.name, &to, source))
    }

    /// Moves displaced processes back to their units' cgroups. Two kinds are left alone: processes that were
    /// displaced too often, and processes whose last move was refused a short while ago.
    pub(super) fn bring_back(
        &mut self,
        displaced: &[Arrival],
        tree: &Tree,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        let mut problems = Vec::new();
        let mut to_move = Vec::new();
        for arrival in displaced {
            if self.given_up.contains(&arrival.process) {
                continue;
            }
            if let Some(refused) = self.refused.get_mut(&arrival.process).filter(|refused| refused.wait > 0) {
                refused.wait -= 1;
                continue;
            }
            let current = self.current_cgroup(arrival.process);
            let Some(current) = current.filter(|current| *current != arrival.to) else { continue };
            if self.refused.contains_key(&arrival.process) {
                // This process was never in its unit's cgroup, so this attempt does not count as a return.
                to_move.push(arrival.clone());
                continue;
            }
            let returns = self.returns.entry(arrival.process).or_default();
            if *returns < RETURNS_MAX {
                *returns += 1;
                to_move.push(arrival.clone());
                continue;
            }
            self.given_up.insert(arrival.process);
            problems.push(LiveError::Process {
                pid: arrival.process.pid,
                name: arrival.name.clone(),
                what: format!("keep it in {}", arrival.to.display()),
                source: io::Error::other(format!(
                    "another program moves it to {} again and again",
                    current.display()
                )),
                remedy:
                    "; it is left there: tell that program to leave it alone, or take it out of the contract"
                        .to_owned(),
            });
        }
        problems.extend(self.bring(&to_move, tree, journal));
        problems
    }

    /// Moves a process back to its origin, or to its parent's, because its unit has no cgroup or the process
    /// must not be in it. If that is not possible, moves the process to the next best cgroup, and reports
    /// that. A process outside our subtree is left alone.
    pub(super) fn send_home(&mut self, process: ProcessKey, name: &str, tree: &Tree) -> Option<LiveError> {
        let current = self.current_cgroup(process)?;
        if !current.starts_with(&tree.top) {
            return None;
        }
        let origin = origin_of(&mut self.procfs, process.pid, &self.origins);
        let way_back = WayBack { last: &tree.outside, ours: &tree.top };
        let sent = way_back.send(&mut self.procfs, process, origin.as_deref(), true);
        if sent.is_ok() {
            self.origins.remove(&process);
            self.stranded.remove(&process);
        }
        let error = match sent {
            Ok(Sent::Gone | Sent::Home) => return None,
            Ok(Sent::Elsewhere(to)) => {
                let from = match &origin {
                    Some(group) => format!("{}, which {}", group.display(), refusal(group)),
                    None => "where it came from, which is not known".to_owned(),
                };
                return Some(LiveError::Unavailable {
                    what: format!("process {} ({name}) cannot go back to {from}", process.pid),
                    remedy: format!("it is in {} now", to.display()),
                });
            }
            Err(source) => source,
        };
        self.stranded.insert(process, name.to_owned());
        self.reported
            .insert(process)
            .then(|| could_not_move(process, name, "out of this program's groups", error))
    }

    /// Retries to move back the processes that could not be moved back to their origins. Returns the errors.
    pub(super) fn send_stranded(&mut self, tree: &Tree) -> Vec<LiveError> {
        let stranded = std::mem::take(&mut self.stranded);
        stranded.iter().filter_map(|(process, name)| self.send_home(*process, name, tree)).collect()
    }

    /// The process that has this PID now, and its name.
    pub(super) fn identify(&mut self, pid: u32) -> Option<(ProcessKey, String)> {
        let stat = self.procfs.stat(pid).ok()??;
        Some((stat.key, stat.comm))
    }

    /// The directory of a process's cgroup; `None` if the process has exited.
    fn current_cgroup(&mut self, process: ProcessKey) -> Option<PathBuf> {
        let path = self.procfs.cgroup(process.pid).ok()??;
        if self.procfs.stat(process.pid).ok()??.key != process || path.ends_with(" (deleted)") {
            return None;
        }
        Some(self.mount.join(path.trim_start_matches('/')))
    }

    /// The memory of a process that is charged to its origin, in bytes.
    pub(super) fn charged_elsewhere(&self, process: ProcessKey) -> u64 {
        self.charged_to_origin.get(&process).copied().unwrap_or(0)
    }

    /// Forgets a process that has exited.
    pub(super) fn forget(&mut self, process: ProcessKey) {
        self.origins.remove(&process);
        self.returns.remove(&process);
        self.charged_to_origin.remove(&process);
        self.refused.remove(&process);
        self.stranded.remove(&process);
        self.given_up.remove(&process);
        self.reported.remove(&process);
    }
}

fn could_not_move(process: ProcessKey, name: &str, to: &str, source: io::Error) -> LiveError {
    LiveError::Process {
        pid: process.pid,
        name: name.to_owned(),
        what: format!("move it {to}"),
        remedy: remedy(&source).to_owned(),
        source,
    }
}

/// A process's anonymous memory in bytes: the resident less the shared pages in /proc/PID/statm.
fn anonymous_bytes(pid: u32) -> Option<u64> {
    let text = host::read_to_string(format!("/proc/{pid}/statm").as_ref()).ok()?;
    let mut pages = text.split_whitespace().skip(1).map(|word| word.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared) * crate::observe::memory::source::page_bytes())
}

/// Whether a kernel of this release overwrites a thread's affinity when the CPU set of the thread's cgroup
/// changes.
pub(super) fn forgets_affinity(release: &str) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version < (6, 2)
}

/// The remedy for a move that the kernel refused.
fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::ENOENT) => {
            "; it is outside the cgroups that this program may change: start it with `commonhold exec`, or run \
             the daemon as root"
        }
        Some(libc::EINVAL) => {
            "; this kernel (RT_GROUP_SCHED) keeps real-time processes out of groups: give it an ordinary scheduling \
             class with `chrt --other -p 0 PID`"
        }
        Some(libc::EOPNOTSUPP) => {
            "; it is in a threaded cgroup, which only holds threads: the program that made it must undo it"
        }
        Some(libc::EBUSY) => {
            "; the cgroup passes controllers on and takes no processes: another program changed it"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_remember_affinities_since_6_2() {
        for (release, forgets) in [
            ("6.1.0-28-cloud-amd64", true),
            ("5.15.0", true),
            ("6.2", false),
            ("6.18.44-x", false),
            ("7.3.4", false),
        ] {
            assert_eq!(forgets_affinity(release), forgets, "{release}");
        }
    }
}
