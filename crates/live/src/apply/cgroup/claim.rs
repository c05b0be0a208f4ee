//! Claims a subtree of cgroups: `BASE/commonhold`.
//!
//! Problem: only one daemon may use the subtree, since two daemons that write the same files would undo each
//! other's work without noticing. Also, BASE's child cgroups may still be without controllers.
//!
//! Algorithm: the extended attribute [`MARK`] of the subtree's directory names its owner by PID and start
//! time.
//! - If the owner still runs, the claim is refused.
//! - If the owner has exited, the directory is removed.
//! - A directory without a mark is removed if it holds no processes; otherwise the claim is refused.
//!
//! Then the controllers are enabled, from the top down. If BASE is the hierarchy's root, the kernel always
//! allows that. Otherwise, the kernel allows it only while no process is in BASE itself. In a delegated
//! cgroup, the daemon and the process that started it are in BASE, so they first move to the leaf [`ASIDE`].
//! The caretaker must be started before that: then the caretaker is moved as well, and knows how to undo the
//! moves.
//!
//! Properties: every change is in the journal before it is made.
//!
//! Limits: where the file system has no extended attributes (kernels before 5.7), another program's subtree
//! is recognised only if it holds processes, and only the journal's lock keeps two daemons apart.
//!
//! Source: "No Internal Process Constraint" and "Delegation" in the kernel's cgroup-v2.rst.

use std::io;
use std::path::{Path, PathBuf};

use crate::LiveError;
use crate::host::{self, write};
use crate::observe::capability::CgroupBase;
use crate::observe::knob::{self, failed, read, value_of};
use crate::observe::process::{ProcFs, ProcessKey, is_alive};
use crate::undo::journal::{Entry, Journal, record};
use crate::undo::way_back::{self, Elsewhere, Sent, WayBack};

/// The directory of the subtree.
pub(super) const TOP: &str = "commonhold";
/// The leaf beside the subtree, for processes that were in BASE.
pub(super) const ASIDE: &str = "commonhold.daemon";
/// The extended attribute that names the subtree's owner: `PID START`.
const MARK: &str = "user.commonhold";
/// The controllers that this backend can use. `io` needs `memory` to charge writeback to the cgroup that
/// dirtied a page.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "io", "memory"];
/// How many passes to make over a cgroup whose processes fork while they are moved out.
const SWEEPS_MAX: usize = 100;

/// The claimed subtree.
#[derive(Debug)]
pub(super) struct Tree {
    /// `BASE/commonhold`.
    pub(super) top: PathBuf,
    /// A cgroup outside the subtree into which processes may be moved: those that leave the subtree after
    /// their original cgroup was removed.
    pub(super) outside: PathBuf,
    /// The [`CONTROLLERS`] that are enabled in the subtree.
    pub(super) controllers: Vec<&'static str>,
}

impl Tree {
    /// Claims the subtree. Returns the subtree, and errors in spite of which the subtree can be used.
    pub(super) fn claim(
        place: &CgroupBase,
        procfs: &mut ProcFs,
        journal: &mut Journal,
    ) -> Result<(Tree, Vec<LiveError>), LiveError> {
        let top = place.base.join(TOP);
        refuse_if_owned(&top, procfs)?;
        way_back::tidy(&place.base);
        let outside =
            if place.delegated { step_aside(&place.base, procfs, journal)? } else { place.base.clone() };
        let notices = clear_away(&top, &outside, procfs)?;
        let mut problems = enable(place, journal)?;
        let refused_count = problems.len();
        problems.extend(notices);
        let enabled = words(&place.base.join("cgroup.subtree_control"))?;
        let controllers: Vec<&str> =
            CONTROLLERS.into_iter().filter(|name| enabled.iter().any(|word| word == name)).collect();
        let is_missing = |name: &&str| place.controllers.contains(*name) && !controllers.contains(name);
        let missing: Vec<&str> = CONTROLLERS.into_iter().filter(is_missing).collect();
        // Refused controllers have been reported already.
        if refused_count == 0 && !missing.is_empty() {
            problems.push(LiveError::NotInForce {
                path: place.base.join("cgroup.subtree_control"),
                wrote: format!("+{}", missing.join(" +")),
                read: enabled.join(" "),
                remedy: "; another program writes this file too: stop it, and start commonhold again"
                    .to_owned(),
            });
        }
        let tree = Tree { top, outside, controllers };
        make(&tree.top, &tree.outside, journal)?;
        mark(&tree.top, procfs)?;
        tree.open_up(&tree.top)?;
        Ok((tree, problems))
    }

    /// Enables the controllers for the child cgroups of a cgroup, which must not hold processes itself.
    pub(super) fn open_up(&self, dir: &Path) -> Result<(), LiveError> {
        if self.controllers.is_empty() {
            return Ok(());
        }
        let file = dir.join("cgroup.subtree_control");
        let value: Vec<String> = self.controllers.iter().map(|name| format!("+{name}")).collect();
        let value = value.join(" ");
        write(&file, &value).map_err(|source| failed(&file, format!("write `{value}`"), source))?;
        let read = words(&file)?;
        if self.controllers.iter().all(|name| read.iter().any(|word| word == name)) {
            return Ok(());
        }
        let remedy = "; another program writes this file too: stop it".to_owned();
        Err(LiveError::NotInForce { path: file, wrote: value, read: read.join(" "), remedy })
    }

    /// Whether a controller is enabled in the subtree.
    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.contains(&controller)
    }
}

/// Fails if the subtree's owner is running, or if another program made the subtree and it holds processes.
fn refuse_if_owned(top: &Path, procfs: &mut ProcFs) -> Result<(), LiveError> {
    if !host::is_dir(top) {
        return Ok(());
    }
    match owner_of(top) {
        Some(owner) if is_alive(procfs, owner)? => Err(LiveError::Unavailable {
            what: format!("{} belongs to a running commonhold, process {}", top.display(), owner.pid),
            remedy: format!("use that one, or stop it: kill {}", owner.pid),
        }),
        None if is_populated(top)? => Err(LiveError::Unavailable {
            what: format!("{} was made by another program and holds processes", top.display()),
            remedy: "stop that program, or move its processes to another cgroup, and remove this one"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The owner that the mark names.
fn owner_of(top: &Path) -> Option<ProcessKey> {
    let mut buffer = [0u8; 64];
    let n = host::marked(top, MARK, &mut buffer).ok()?;
    let (pid, start) = std::str::from_utf8(&buffer[..n]).ok()?.split_once(' ')?;
    Some(ProcessKey { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

/// Marks the subtree as owned by this process, where the file system supports extended attributes.
fn mark(top: &Path, procfs: &mut ProcFs) -> Result<(), LiveError> {
    let pid = std::process::id();
    let start = procfs.stat(pid)?.map_or(0, |stat| stat.key.start);
    let value = format!("{pid} {start}");
    match host::mark(top, MARK, value.as_bytes()) {
        Err(source) if !matches!(source.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EPERM)) => {
            Err(failed(top, format!("mark it as ours ({MARK})"), source))
        }
        _ => Ok(()),
    }
}

/// Whether there are processes in a cgroup or in its descendants.
fn is_populated(dir: &Path) -> Result<bool, LiveError> {
    let file = dir.join("cgroup.events");
    let text = read(&file).map_err(|source| failed(&file, "read it".to_owned(), source))?;
    Ok(value_of(&text, "populated") == Some(1))
}

/// Removes a cgroup with its descendants, and moves their remaining processes to the cgroup `outside`. A
/// cgroup that disappears meanwhile counts as removed.
pub(super) fn remove(dir: &Path, outside: &Path) -> Result<(), LiveError> {
    match try_to_remove(dir, outside) {
        Err(_) if matches!(host::is_there(dir), Ok(false)) => Ok(()),
        result => result,
    }
}

fn try_to_remove(dir: &Path, outside: &Path) -> Result<(), LiveError> {
    let entries = match host::list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed(dir, "list it".to_owned(), source)),
        Ok(entries) => entries,
    };
    for entry in entries.iter().filter(|entry| entry.is_dir) {
        remove(&entry.path, outside)?;
    }
    empty(dir, outside, |_| Ok(()))?;
    host::remove_dir(dir).map_err(|source| failed(dir, "remove this cgroup".to_owned(), source))
}

/// Removes the subtree of a daemon that died and whose journal this daemon does not have. So the origins of
/// the processes in the subtree are unknown; the returned notices say to which cgroups the processes were
/// moved.
fn clear_away(top: &Path, outside: &Path, procfs: &mut ProcFs) -> Result<Vec<LiveError>, LiveError> {
    let (way_back, mut elsewhere) = (WayBack { last: outside, ours: top }, Elsewhere::default());
    let mut groups = vec![top.to_owned()];
    while let Some(group) = groups.pop() {
        for key in if host::is_dir(&group) { residents(procfs, &group)? } else { Vec::new() } {
            if let Ok(Sent::Elsewhere(to)) = way_back.send(procfs, key, None, true) {
                elsewhere.note(procfs, key.pid, None, to);
            }
        }
        let entries = host::list(&group).unwrap_or_default();
        groups.extend(entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.path));
    }
    remove(top, outside)?;
    let notice = |what| LiveError::Unavailable {
        what,
        remedy: "a daemon with another --directory left them; move them by hand where they belong".to_owned(),
    };
    Ok(elsewhere.notices().into_iter().map(notice).collect())
}

/// Moves every process out of a cgroup, including processes that are forked meanwhile. Calls `before_move`
/// with each PID.
pub(super) fn empty(
    dir: &Path,
    to: &Path,
    mut before_move: impl FnMut(u32) -> Result<(), LiveError>,
) -> Result<(), LiveError> {
    if processes(dir)?.is_empty() {
        return Ok(());
    }
    let mut procfs = ProcFs::open(Path::new("/proc"))?;
    for _ in 0..SWEEPS_MAX {
        for key in residents(&mut procfs, dir)? {
            before_move(key.pid)?;
            if let Err(source) = way_back::enter(&mut procfs, key, to) {
                let what = format!("write `{}`", key.pid);
                return Err(failed(&to.join("cgroup.procs"), what, source));
            }
        }
        if processes(dir)?.is_empty() {
            return Ok(());
        }
    }
    let source = io::Error::from_raw_os_error(libc::EBUSY);
    Err(failed(dir, "empty it: its processes fork faster than they can be moved".to_owned(), source))
}

/// The processes in a cgroup, without its descendants, identified by number and start time.
fn residents(procfs: &mut ProcFs, dir: &Path) -> Result<Vec<ProcessKey>, LiveError> {
    let read = way_back::residents(procfs, dir);
    read.map_err(|source| failed(&dir.join("cgroup.procs"), "read it".to_owned(), source))
}

/// The PIDs in a cgroup, without its descendants.
pub(super) fn processes(dir: &Path) -> Result<Vec<u32>, LiveError> {
    let read = knob::processes(dir);
    read.map_err(|source| failed(&dir.join("cgroup.procs"), "read it".to_owned(), source))
}

/// Makes a cgroup. If it exists already, because a removal failed or a creation was incomplete, it is removed
/// first: a new cgroup has no settings.
pub(super) fn make(dir: &Path, outside: &Path, journal: &mut Journal) -> Result<(), LiveError> {
    record(journal, &[Entry::Created { cgroup: dir.to_owned() }])?;
    let mut result = host::make_dir(dir);
    if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
        remove(dir, outside)?;
        result = host::make_dir(dir);
    }
    result.map_err(|source| failed(dir, "create this cgroup".to_owned(), source))
}

/// Enables the missing controllers for the children of BASE. Writes them one by one, since a single write
/// would fail as a whole if one controller is refused. Returns the refusals.
fn enable(place: &CgroupBase, journal: &mut Journal) -> Result<Vec<LiveError>, LiveError> {
    let file = place.base.join("cgroup.subtree_control");
    let enabled = words(&file)?;
    let is_missing =
        |name: &&str| place.controllers.contains(*name) && !enabled.iter().any(|word| word == name);
    let missing: Vec<&str> = CONTROLLERS.into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    record(journal, &[Entry::Knob { path: file.clone(), original: enabled.join(" ") }])?;
    let try_one =
        |name: &str| write(&file, &format!("+{name}")).err().map(|source| refused(&file, name, source));
    Ok(missing.into_iter().filter_map(try_one).collect())
}

/// The error for a controller that could not be enabled.
fn refused(file: &Path, name: &str, source: io::Error) -> LiveError {
    let what = format!("enable the {name} controller");
    if (name, source.raw_os_error()) != ("cpu", Some(libc::EINVAL)) {
        return failed(file, what, source);
    }
    let remedy = "; there are real-time processes outside the root cgroup, which this kernel (RT_GROUP_SCHED) does not \
                  allow: give them an ordinary scheduling class with `chrt --other -p 0 PID`";
    LiveError::File { path: file.to_owned(), what, source, remedy: remedy.to_owned() }
}

/// Moves the processes in BASE into the leaf [`ASIDE`], whose path is returned.
fn step_aside(base: &Path, procfs: &mut ProcFs, journal: &mut Journal) -> Result<PathBuf, LiveError> {
    let aside = base.join(ASIDE);
    record(journal, &[Entry::Created { cgroup: aside.clone() }])?;
    match host::make_dir(&aside) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed(&aside, "create this cgroup".to_owned(), source));
        }
        _ => {}
    }
    empty(base, &aside, |pid| {
        let Some(stat) = procfs.stat(pid)? else { return Ok(()) };
        record(journal, &[Entry::Moved { process: stat.key, from: base.to_owned() }])
    })?;
    Ok(aside)
}

/// The words in a file, for example the names of controllers.
fn words(file: &Path) -> Result<Vec<String>, LiveError> {
    let text = read(file).map_err(|source| failed(file, "read it".to_owned(), source))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}
