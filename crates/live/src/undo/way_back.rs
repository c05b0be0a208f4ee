//! Chooses the control group to which a process goes when it leaves one of this program's groups.
//!
//! Problem: a process goes back to its original group, which may be gone: systemd removes a login session's
//! group when the last process leaves it, and this program may have moved that process out. The root of the
//! tree would take any process, but limits that an administrator set for a user or a service do not apply in
//! the root. And in another service's group, systemd would end the process together with that service.
//!
//! Algorithm: the process goes to the first of these groups that exists and takes it:
//! 1. the original group;
//! 2. the original group's nearest ancestor other than the root: `user-1001.slice` for a session that has
//!    ended;
//! 3. for a user's process, the slice of that user, then the slice of all users;
//! 4. the group of the process's parent;
//! 5. the group that contains this program's own groups.
//!
//! A process in a scope goes to its original group, or stays: systemd removes the scope when the processes in
//! it have ended.
//!
//! A slice is meant to contain groups only, and a group with controllers enabled for its children takes no
//! process itself. In both cases the process goes into a group below, the *leaf* [`LEAF`]. This program's
//! next start removes empty leaves.
//!
//! Properties: if the original group exists and refuses the process, that is an error, to be retried. Only
//! with `insist` does the process go into a leaf of the original group instead. The caller learns of each
//! process that did not go back to its original group.
//!
//! Source: "No Internal Process Constraint" in the kernel's cgroup-v2.rst.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::host;
use crate::observe::knob::processes;
use crate::observe::process::{ProcFs, ProcessKey, is_alive};

/// The name of the leaf for processes in a group that takes no processes itself.
pub(crate) const LEAF: &str = "commonhold.left";

/// The largest number of processes that a notice names. Of further processes, it gives only the number.
const NAMED_MAX: usize = 8;

/// Where a process went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Nowhere: the process had ended.
    Gone,
    /// To its original group.
    Home,
    /// To this other group.
    Elsewhere(PathBuf),
}

/// What the choice of a group depends on.
#[derive(Debug)]
pub(crate) struct WayBack<'a> {
    /// The last resort: the group that contains this program's groups, or the leaf beside them.
    pub(crate) last: &'a Path,
    /// This program's topmost group.
    pub(crate) ours: &'a Path,
}

impl WayBack<'_> {
    /// Sends a process to its original group, `origin`, if known, or else to the next best group. With
    /// `insist`, a process that its original group refuses goes into a leaf of that group; without it, the
    /// refusal is an error (`EBUSY`).
    pub(crate) fn send(
        &self,
        procfs: &mut ProcFs,
        key: ProcessKey,
        origin: Option<&Path>,
        insist: bool,
    ) -> io::Result<Sent> {
        if let Some(origin) = origin.filter(|origin| is_group(origin)) {
            return match enter(procfs, key, origin) {
                Err(err) if insist && err.raw_os_error() == Some(libc::EBUSY) => {
                    enter_leaf(procfs, key, origin)
                }
                entered => Ok(if entered? { Sent::Home } else { Sent::Gone }),
            };
        }
        for group in self.alternatives(procfs, key.pid, origin) {
            // Skip a group to which this program may not write, or that is gone by now.
            if let Ok(sent) = enter_or_leaf(procfs, key, &group) {
                return Ok(sent);
            }
        }
        let has_entered = enter(procfs, key, self.last)?;
        Ok(if has_entered { Sent::Elsewhere(self.last.to_owned()) } else { Sent::Gone })
    }

    /// The candidates after the original group and before the last resort, best first.
    fn alternatives(&self, procfs: &mut ProcFs, pid: u32, origin: Option<&Path>) -> Vec<PathBuf> {
        let root = root_above(self.last);
        let ancestors = origin.into_iter().flat_map(|origin| origin.ancestors().skip(1));
        let mut groups: Vec<PathBuf> = ancestors.map(Path::to_owned).collect();
        if let Ok(Some(identity)) = procfs.identity(pid)
            && identity.uid != 0
        {
            let users = root.join("user.slice");
            groups.extend([users.join(format!("user-{}.slice", identity.uid)), users]);
        }
        groups.extend(Self::parents_group(procfs, pid, &root));
        groups.retain(|group| {
            group.starts_with(&root) && *group != root && !group.starts_with(self.ours) && is_group(group)
        });
        groups
    }

    /// The group of a process's parent; `None` if the parent is process 1, which adopts orphans.
    fn parents_group(procfs: &mut ProcFs, pid: u32, root: &Path) -> Option<PathBuf> {
        let parent = procfs.stat(pid).ok()??.parent;
        let group = procfs.cgroup(parent).ok()?.filter(|_| parent > 1)?;
        Some(root.join(group.trim_start_matches('/')))
    }
}

/// Sends a process in a scope to its original group. False if the process has ended, or if it stays because
/// the original group is gone or unknown.
pub(crate) fn send_out_of_scope(
    procfs: &mut ProcFs,
    key: ProcessKey,
    origin: Option<&Path>,
) -> io::Result<bool> {
    match origin.filter(|origin| is_group(origin)) {
        Some(origin) => enter(procfs, key, origin),
        None => Ok(false),
    }
}

/// The original group of a process. `known` has the original groups of the processes that the daemon moved. A
/// process that is not in `known` was born later; its original group is that of its nearest known ancestor,
/// or else of its session's leader. `None` if neither is known.
pub(crate) fn origin_of(
    procfs: &mut ProcFs,
    pid: u32,
    known: &BTreeMap<ProcessKey, PathBuf>,
) -> Option<PathBuf> {
    let process = procfs.stat(pid).ok()??;
    let (session, start) = (process.session, process.key.start);
    let mut next = Some(process);
    // No parent is younger than its child, so this ends. The bound guards against a tree that changes
    // meanwhile.
    for _ in 0..1000 {
        let Some(stat) = next else { break };
        if let Some(origin) = known.get(&stat.key) {
            return Some(origin.clone());
        }
        next = (stat.parent > 1).then(|| procfs.stat(stat.parent).ok().flatten()).flatten();
    }
    // A session's number is the number of its leader, and is not reused while the session lasts. So of the
    // known processes with this number, the leader is the youngest one that is not younger than the process
    // itself.
    let leaders = ProcessKey { pid: session, start: 0 }..=ProcessKey { pid: session, start };
    known.range(leaders).next_back().map(|(_, origin)| origin.clone())
}

/// Removes empty leaves of former runs. `base` is the group that will contain this program's groups.
pub(crate) fn tidy(base: &Path) {
    remove_leaves(&root_above(base));
}

/// Removes empty leaves in all groups below a group.
fn remove_leaves(dir: &Path) {
    for entry in host::list(dir).unwrap_or_default().iter().filter(|entry| entry.is_dir) {
        if entry.name() == LEAF {
            // The kernel refuses to remove a leaf that still has processes.
            let _ = host::remove_dir(&entry.path);
        } else {
            remove_leaves(&entry.path);
        }
    }
}

/// The root of the control group tree that contains a group.
fn root_above(group: &Path) -> PathBuf {
    let root = group.ancestors().take_while(|group| is_group(group)).last();
    root.unwrap_or(group).to_owned()
}

fn is_group(dir: &Path) -> bool {
    host::exists(&dir.join("cgroup.procs"))
}

/// Moves a process into a group. False if the process has ended.
///
/// The kernel's file takes a bare process number, so the start time is read before the write and again after
/// it. If the number was reused before the first reading, nothing is written. If it was reused between the
/// two readings, the newborn process goes to its parent's group, where it would have been born.
pub(crate) fn enter(procfs: &mut ProcFs, key: ProcessKey, group: &Path) -> io::Result<bool> {
    let mut is_alive_now = || is_alive(procfs, key).map_err(io::Error::other);
    if !is_alive_now()? {
        return Ok(false);
    }
    match host::overwrite(&group.join("cgroup.procs"), &key.pid.to_string()) {
        Err(err) if err.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        Err(err) => Err(err),
        Ok(()) if is_alive_now()? => Ok(true),
        Ok(()) => take_back(procfs, key, group).map(|()| false),
    }
}

/// Moves a process that reused the number of `meant` out of the group that was intended for `meant`, to its
/// parent's group.
pub(crate) fn take_back(procfs: &mut ProcFs, meant: ProcessKey, group: &Path) -> io::Result<()> {
    let newborn = procfs.stat(meant.pid).map_err(io::Error::other)?;
    let Some(newborn) = newborn.filter(|stat| stat.key != meant) else { return Ok(()) };
    let current_group = procfs.cgroup(meant.pid).map_err(io::Error::other)?.unwrap_or_default();
    let parents_group = procfs.cgroup(newborn.parent).map_err(io::Error::other)?;
    let root = root_above(group);
    let dir = |path: &str| root.join(path.trim_start_matches('/'));
    // Leave a process alone that was born in its parent's group, or that is not where the write put it.
    let is_misplaced =
        |parents_group: &String| dir(&current_group) == group && *parents_group != current_group;
    let Some(parents_group) = parents_group.filter(is_misplaced) else {
        return Ok(());
    };
    match host::overwrite(&dir(&parents_group).join("cgroup.procs"), &meant.pid.to_string()) {
        Err(err) if err.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result,
    }
}

/// The processes in a group, without those in groups below.
///
/// The group's list is read twice, and the start times in between. A number that was reused in between is
/// dropped, unless the new process is in the group as well.
pub(crate) fn residents(procfs: &mut ProcFs, group: &Path) -> io::Result<Vec<ProcessKey>> {
    let mut keys = Vec::new();
    for pid in processes(group)? {
        keys.extend(procfs.stat(pid).map_err(io::Error::other)?.map(|stat| stat.key));
    }
    if !keys.is_empty() {
        let listed_again = processes(group)?;
        keys.retain(|key| listed_again.contains(&key.pid));
    }
    Ok(keys)
}

/// Moves a process into a group, or into the group's leaf if the group is a slice or takes no processes
/// itself.
fn enter_or_leaf(procfs: &mut ProcFs, key: ProcessKey, group: &Path) -> io::Result<Sent> {
    if group.extension().is_some_and(|kind| kind == "slice") {
        return enter_leaf(procfs, key, group);
    }
    match enter(procfs, key, group) {
        Err(err) if err.raw_os_error() == Some(libc::EBUSY) => enter_leaf(procfs, key, group),
        entered => Ok(if entered? { Sent::Elsewhere(group.to_owned()) } else { Sent::Gone }),
    }
}

/// Moves a process into a group's leaf, which is created if needed.
fn enter_leaf(procfs: &mut ProcFs, key: ProcessKey, group: &Path) -> io::Result<Sent> {
    let leaf = group.join(LEAF);
    match host::make_dir(&leaf) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
        _ => {}
    }
    Ok(if enter(procfs, key, &leaf)? { Sent::Elsewhere(leaf) } else { Sent::Gone })
}

/// The reason why a process did not go back to a group, as a predicate for a notice.
pub(crate) fn refusal(group: &Path) -> &'static str {
    if is_group(group) { "takes no processes any more" } else { "is gone" }
}

/// The processes that did not go back to their original groups, by original group and present group.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere(BTreeMap<(Option<PathBuf>, PathBuf), Vec<String>>);

impl Elsewhere {
    /// Adds a process, which came from `origin` and went to the group `to`.
    pub(crate) fn note(&mut self, procfs: &mut ProcFs, pid: u32, origin: Option<&Path>, to: PathBuf) {
        let name = procfs.stat(pid).ok().flatten().map_or_else(|| "?".to_owned(), |stat| stat.comm);
        let key = (origin.map(Path::to_owned), to);
        self.0.entry(key).or_default().push(format!("{pid} ({name})"));
    }

    /// One notice for each pair of original group and present group.
    pub(crate) fn notices(&self) -> Vec<String> {
        let notice = |((origin, destination), processes): (&(Option<PathBuf>, PathBuf), &Vec<String>)| {
            let named = processes.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
            let more = match processes.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let why = match origin {
                Some(origin) => format!("{}, where they came from, {}", origin.display(), refusal(origin)),
                None => "their origin is unknown".to_owned(),
            };
            format!("{}: these processes are here now, since {why}: {named}{more}", destination.display())
        };
        self.0.iter().map(notice).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    const PID: u32 = 90_000_001;
    const KEY: ProcessKey = ProcessKey { pid: PID, start: 101 };

    /// A tree of folders that look like control groups, and a user's process in a folder that looks like
    /// /proc.
    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new(uid: u32, groups: &[&str]) -> Fake {
            let fake = Fake(tempfile::tempdir().unwrap());
            for group in ["", "commonhold", "commonhold/a"].iter().chain(groups) {
                fs::create_dir_all(fake.group(group)).unwrap();
                fs::write(fake.group(group).join("cgroup.procs"), "").unwrap();
            }
            for (pid, parent, group) in
                [(PID, PID + 1, "commonhold/a"), (PID + 1, 1, "system.slice/x.service")]
            {
                let dir = fake.0.path().join(format!("proc/{pid}"));
                fs::create_dir_all(&dir).unwrap();
                let stat = format!("{pid} (sleep) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 101 0\n");
                fs::write(dir.join("stat"), stat).unwrap();
                fs::write(dir.join("status"), format!("Uid:\t{uid}\t{uid}\nGid:\t0\t0\nGroups:\t\n"))
                    .unwrap();
                fs::write(dir.join("cgroup"), format!("0::/{group}\n")).unwrap();
            }
            fake
        }

        fn group(&self, name: &str) -> PathBuf {
            // Joining an empty path would leave a `/` at the end.
            let root = self.0.path().join("cgroup");
            if name.is_empty() { root } else { root.join(name) }
        }

        /// Where a process from that group is sent.
        fn send(&self, origin: Option<&str>) -> Sent {
            let mut procfs = ProcFs::open(&self.0.path().join("proc")).unwrap();
            let way_back = WayBack { last: &self.group(""), ours: &self.group("commonhold") };
            let origin = origin.map(|origin| self.group(origin));
            // Like the kernel: a new group has the file.
            let _hook = host::tamper(|access| {
                if access.is(host::Kind::Write, "cgroup.procs") && !access.path.exists() {
                    let _ = fs::write(access.path, "");
                }
                host::Answer::GoOn
            });
            let sent = way_back.send(&mut procfs, KEY, origin.as_deref(), false).unwrap();
            let to = match &sent {
                Sent::Elsewhere(to) => to.clone(),
                _ => origin.unwrap(),
            };
            assert_eq!(fs::read_to_string(to.join("cgroup.procs")).unwrap(), PID.to_string());
            sent
        }

        fn elsewhere(&self, name: &str) -> Sent {
            Sent::Elsewhere(self.group(name))
        }
    }

    const SESSION: &str = "user.slice/user-7.slice/session-3.scope";

    #[test]
    fn a_process_goes_back_to_where_it_came_from() {
        let fake = Fake::new(7, &["user.slice", "user.slice/user-7.slice", SESSION]);
        assert_eq!(fake.send(Some(SESSION)), Sent::Home);
    }

    #[test]
    fn processes_of_an_ended_session_go_to_the_users_slice() {
        let fake = Fake::new(7, &["user.slice", "user.slice/user-7.slice", "user.slice/user-8.slice"]);
        assert_eq!(fake.send(Some(SESSION)), fake.elsewhere("user.slice/user-7.slice/commonhold.left"));
        assert_eq!(fake.send(None), fake.elsewhere("user.slice/user-7.slice/commonhold.left"));
        let fake = Fake::new(9, &["user.slice", "user.slice/user-8.slice"]);
        assert_eq!(fake.send(None), fake.elsewhere("user.slice/commonhold.left"));
    }

    #[test]
    fn processes_of_an_ended_service_go_to_its_slice() {
        let fake = Fake::new(0, &["system.slice", "system.slice/x.service"]);
        assert_eq!(
            fake.send(Some("system.slice/gone.service")),
            fake.elsewhere("system.slice/commonhold.left")
        );
        assert_eq!(fake.send(None), fake.elsewhere("system.slice/x.service"), "its parent's");
    }

    #[test]
    fn the_root_is_the_last_choice() {
        let fake = Fake::new(7, &[]);
        assert_eq!(fake.send(Some(SESSION)), fake.elsewhere(""));
        assert_eq!(fake.send(None), fake.elsewhere(""));
    }

    #[test]
    fn an_orphan_has_the_origin_of_its_session_leader() {
        let fake = Fake::new(7, &[]);
        let mut procfs = ProcFs::open(&fake.0.path().join("proc")).unwrap();
        let key = |pid: u32, start: u64| ProcessKey { pid, start };
        let mut known =
            BTreeMap::from([(key(1, 5), PathBuf::from("/session")), (key(1, 102), "/later".into())]);
        assert_eq!(origin_of(&mut procfs, PID, &known), Some("/session".into()), "a leader is no younger");
        known.insert(key(PID + 1, 99), "/reused".into());
        assert_eq!(origin_of(&mut procfs, PID, &known), Some("/session".into()), "another of that number");
        known.insert(key(PID + 1, 101), "/parent".into());
        assert_eq!(origin_of(&mut procfs, PID, &known), Some("/parent".into()));
        assert_eq!(origin_of(&mut procfs, PID + 5, &known), None, "it is gone");
    }

    /// Red if the start time is not read again after the write: the number has been reused when the kernel
    /// takes it, and the new process stays in a group that is not its own.
    #[test]
    fn a_process_that_reuses_a_number_during_a_move_goes_to_its_parents_group() {
        let fake = Fake::new(7, &["target", "system.slice/x.service"]);
        let mut procfs = ProcFs::open(&fake.0.path().join("proc")).unwrap();
        let process_dir = fake.0.path().join(format!("proc/{PID}"));
        let target = fake.group("target/cgroup.procs");
        let hook = host::tamper(move |access| {
            if access.kind == host::Kind::Write && access.path == target {
                let stat = fs::read_to_string(process_dir.join("stat")).unwrap();
                fs::write(process_dir.join("stat"), stat.replace(" 101 0", " 999 0")).unwrap();
                fs::write(process_dir.join("cgroup"), "0::/target\n").unwrap();
            }
            host::Answer::GoOn
        });
        assert!(!enter(&mut procfs, KEY, &fake.group("target")).unwrap());
        drop(hook);
        let parents = fake.group("system.slice/x.service/cgroup.procs");
        assert_eq!(fs::read_to_string(&parents).unwrap(), PID.to_string());
        // From now on the number is known to be reused, and nothing is written.
        let _hook = host::tamper(|access| {
            assert_ne!(access.kind, host::Kind::Write);
            host::Answer::GoOn
        });
        assert!(!enter(&mut procfs, KEY, &fake.group("target")).unwrap());
    }

    /// A listed number is reused before its start time is read.
    #[test]
    fn a_number_reused_while_a_group_is_listed_is_dropped() {
        let fake = Fake::new(7, &["target"]);
        let mut procfs = ProcFs::open(&fake.0.path().join("proc")).unwrap();
        let target = fake.group("target/cgroup.procs");
        fs::write(&target, format!("{PID}\n")).unwrap();
        assert_eq!(residents(&mut procfs, &fake.group("target")).unwrap(), [KEY]);
        let _hook = host::tamper(move |access| {
            if access.is(host::Kind::Read, &format!("{PID}/stat")) {
                fs::write(&target, "").unwrap();
            }
            host::Answer::GoOn
        });
        assert_eq!(residents(&mut procfs, &fake.group("target")).unwrap(), []);
    }

    #[test]
    fn leaves_of_former_runs_are_removed_wherever_they_are() {
        let fake = Fake::new(7, &["system.slice"]);
        let leaf = fake.group("system.slice").join(LEAF);
        fs::create_dir(&leaf).unwrap();
        tidy(&fake.group(""));
        assert!(!leaf.exists());
    }

    #[test]
    fn processes_that_did_not_go_back_are_reported_by_place() {
        let fake = Fake::new(7, &[]);
        let mut procfs = ProcFs::open(&fake.0.path().join("proc")).unwrap();
        let mut elsewhere = Elsewhere::default();
        for n in 0..10 {
            elsewhere.note(
                &mut procfs,
                PID + n,
                Some(Path::new("/c/session-3.scope")),
                "/c/user-7.slice".into(),
            );
        }
        elsewhere.note(&mut procfs, PID, None, "/c".into());
        let notices = elsewhere.notices();
        assert_eq!(
            notices[0],
            format!("/c: these processes are here now, since their origin is unknown: {PID} (sleep)")
        );
        assert!(notices[1].contains("/c/session-3.scope, where they came from, is gone"), "{}", notices[1]);
        assert!(notices[1].ends_with("90000008 (?) and 2 more"), "{}", notices[1]);
    }
}
