//! Moves processes into the cgroups of their units, and back at the end.
//!
//! Children inherit their parent's cgroup, so a process is moved once and its children not at all. A process that another
//! program moves away is moved back [`RETURNS_MAX`] times. Then it is left there and reported, because two daemons
//! that fight over a process cost more than either gains.
//!
//! Before Linux 6.2, a cgroup's CPU set overwrites the affinity that a thread chose, and the next cgroup gives the thread
//! all of its CPUs. On such kernels the journal has the affinity of every thread that chose one, to be restored after the
//! move back. Later kernels keep it ("sched: Always preserve the user requested cpumask").

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

/// How often a process that another program moved away is moved back.
const RETURNS_MAX: u8 = 3;

/// How often the back-off after a refused move doubles: up to a minute.
const WAIT_DOUBLED_MAX: u32 = 6;

/// A process and the cgroup it belongs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The process.
    pub(super) process: ProcessKey,
    /// Its program, for messages.
    pub(super) name: String,
    /// The cgroup it belongs in.
    pub(super) to: PathBuf,
}

/// The processes that were moved, or could not be.
#[derive(Debug)]
pub(super) struct Members {
    /// Where cgroup v2 is mounted.
    mount: PathBuf,
    /// The slice that has all our scopes.
    scopes: PathBuf,
    /// On kernels that overwrite affinities: the CPUs of a thread that chose none.
    overwritten: Option<CpuSet>,
    procfs: ProcFs,
    threads: Vec<u32>,
    /// The cgroup from which each process was moved.
    origins: BTreeMap<ProcessKey, PathBuf>,
    /// How often each was moved back.
    returns: BTreeMap<ProcessKey, u8>,
    /// Anonymous memory of each process when it was moved, in bytes. It stays charged to the cgroup it came from.
    brought: BTreeMap<ProcessKey, u64>,
    /// Processes that could not be moved, and when to retry.
    refused: BTreeMap<ProcessKey, Refused>,
    /// Processes that could not be moved back, with their names.
    stranded: BTreeMap<ProcessKey, String>,
    /// Processes that are left where another program keeps moving them.
    left: BTreeSet<ProcessKey>,
    /// Processes about which a failure was reported.
    reported: BTreeSet<ProcessKey>,
}

/// A move that the kernel refused.
#[derive(Debug, Default)]
struct Refused {
    tries: u32,
    /// How many more stray checks to skip before the next attempt.
    wait: u32,
}

impl Members {
    /// No process was moved yet. `overwritten` is for kernels that forget a thread's affinity.
    pub(super) fn new(mount: &Path, procfs: ProcFs, overwritten: Option<CpuSet>) -> Members {
        Members {
            mount: mount.to_owned(),
            scopes: mount.join("commonhold.slice"),
            overwritten,
            procfs,
            threads: Vec::new(),
            origins: BTreeMap::new(),
            returns: BTreeMap::new(),
            brought: BTreeMap::new(),
            refused: BTreeMap::new(),
            stranded: BTreeMap::new(),
            left: BTreeSet::new(),
            reported: BTreeSet::new(),
        }
    }

    /// Moves processes to their cgroups, after the journal has where they were.
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
            let Some(here) = self.whereabouts(arrival.process) else { continue };
            if here == arrival.to {
                continue;
            }
            // One of our scopes is no origin.
            if !here.starts_with(&tree.top) && !here.starts_with(&self.scopes) {
                self.remember(arrival.process, here, &mut entries);
            }
            moves.push(arrival);
        }
        if let Err(error) = record(journal, &entries) {
            return vec![error];
        }
        moves.into_iter().filter_map(|arrival| self.move_one(arrival)).collect()
    }

    /// Adds the journal entries that undo a move out of `here`.
    fn remember(&mut self, process: ProcessKey, here: PathBuf, entries: &mut Vec<Entry>) {
        if let Some(every_cpu) = &self.overwritten
            && self.procfs.threads(process.pid, &mut self.threads).is_ok()
        {
            let masks = self.threads.iter().filter_map(|&tid| Some((tid, affinity::get(tid).ok()?)));
            let chosen = masks.filter(|(_, cpus)| cpus != every_cpu);
            entries.extend(chosen.map(|(tid, cpus)| Entry::Affinity { process, tid, cpus }));
        }
        self.brought.insert(process, anonymous_bytes(process.pid).unwrap_or(0));
        self.origins.insert(process, here.clone());
        entries.push(Entry::Moved { process, from: here });
    }

    /// The journal entries that undo a move by systemd into a scope. One of our own cgroups or another scope is no origin, so a
    /// process in one has its entry already.
    pub(super) fn leave_for_scope(&mut self, processes: &[ProcessKey], top: &Path) -> Vec<Entry> {
        let mut entries = Vec::new();
        for process in processes {
            if let Some(here) = self.whereabouts(*process)
                && !here.starts_with(&self.scopes)
                && !here.starts_with(top)
            {
                self.remember(*process, here, &mut entries);
            }
        }
        entries
    }

    /// Moves a process out of a scope, back to the origin of it or of its parent. If that cgroup is gone it stays in the scope,
    /// which systemd knows.
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

    fn move_one(&mut self, arrival: &Arrival) -> Option<LiveError> {
        let source = match way_back::enter(&mut self.procfs, arrival.process, &arrival.to) {
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
        // Exponential back-off, in stray checks.
        refused.wait = (1 << refused.tries.min(WAIT_DOUBLED_MAX)) - 1;
        refused.tries += 1;
        let to = format!("to {}", arrival.to.display());
        self.reported
            .insert(arrival.process)
            .then(|| could_not_move(arrival.process, &arrival.name, &to, source))
    }

    /// Moves strayed processes back, except those that strayed too often.
    pub(super) fn bring_back(
        &mut self,
        strayed: &[Arrival],
        tree: &Tree,
        journal: &mut Journal,
    ) -> Vec<LiveError> {
        let mut problems = Vec::new();
        let mut again = Vec::new();
        for arrival in strayed {
            if self.left.contains(&arrival.process) {
                continue;
            }
            if let Some(refused) = self.refused.get_mut(&arrival.process).filter(|refused| refused.wait > 0) {
                refused.wait -= 1;
                continue;
            }
            let Some(here) = self.whereabouts(arrival.process).filter(|here| *here != arrival.to) else {
                continue;
            };
            if self.refused.contains_key(&arrival.process) {
                // It was never moved in, so no program moved it away.
                again.push(arrival.clone());
                continue;
            }
            let returns = self.returns.entry(arrival.process).or_default();
            if *returns < RETURNS_MAX {
                *returns += 1;
                again.push(arrival.clone());
                continue;
            }
            self.left.insert(arrival.process);
            problems.push(LiveError::Process {
                pid: arrival.process.pid,
                name: arrival.name.clone(),
                what: format!("keep it in {}", arrival.to.display()),
                source: io::Error::other(format!(
                    "another program moves it to {} again and again",
                    here.display()
                )),
                remedy:
                    "; it is left there: tell that program to leave it alone, or take it out of the contract"
                        .to_owned(),
            });
        }
        problems.extend(self.bring(&again, tree, journal));
        problems
    }

    /// Moves a process that no longer belongs in our subtree back to the origin of it or of its parent, or, failing that, to
    /// the next best cgroup, which is reported. A process outside the subtree is left alone.
    pub(super) fn send_home(&mut self, process: ProcessKey, name: &str, tree: &Tree) -> Option<LiveError> {
        let here = self.whereabouts(process)?;
        if !here.starts_with(&tree.top) {
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

    /// Retries processes that could not be moved back.
    pub(super) fn send_stranded(&mut self, tree: &Tree) -> Vec<LiveError> {
        let stranded = std::mem::take(&mut self.stranded);
        stranded.iter().filter_map(|(process, name)| self.send_home(*process, name, tree)).collect()
    }

    /// The process with that PID, and its name.
    pub(super) fn identify(&mut self, pid: u32) -> Option<(ProcessKey, String)> {
        let stat = self.procfs.stat(pid).ok()??;
        Some((stat.key, stat.comm))
    }

    /// The directory of a process's cgroup; `None` if the process has exited.
    fn whereabouts(&mut self, process: ProcessKey) -> Option<PathBuf> {
        let path = self.procfs.cgroup(process.pid).ok()??;
        if self.procfs.stat(process.pid).ok()??.key != process || path.ends_with(" (deleted)") {
            return None;
        }
        Some(self.mount.join(path.trim_start_matches('/')))
    }

    /// The memory of a process that is charged to the cgroup it was moved from, in bytes.
    pub(super) fn charged_elsewhere(&self, process: ProcessKey) -> u64 {
        self.brought.get(&process).copied().unwrap_or(0)
    }

    /// A process has exited.
    pub(super) fn forget(&mut self, process: ProcessKey) {
        self.origins.remove(&process);
        self.returns.remove(&process);
        self.brought.remove(&process);
        self.refused.remove(&process);
        self.stranded.remove(&process);
        self.left.remove(&process);
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

/// A process's anonymous memory in bytes: resident less shared pages of /proc/PID/statm.
fn anonymous_bytes(pid: u32) -> Option<u64> {
    let text = host::read_to_string(format!("/proc/{pid}/statm").as_ref()).ok()?;
    let mut pages = text.split_whitespace().skip(1).map(|word| word.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared) * crate::observe::memory::source::page_bytes())
}

/// Whether a kernel of this release overwrites a thread's affinity when its cgroup's CPU set changes.
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
