//! A folder that behaves like a tree of control groups, into which tests inject faults. A hook before every
//! call to the kernel imitates the kernel.
//!
//! The backends and processes are real. The folder contains the kernel's files; a moved process is listed in
//! its new group and in no other group; only an empty group can be removed; a written value reads back.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use commonhold_live::host::{Access, Answer, Kind, Tampering, tamper};
use commonhold_live::observe::capability::CgroupBase;

/// An injected fault: the answer to a call, or `None` for the normal one.
type Fault = Box<dyn FnMut(&Access<'_>) -> Option<Answer>>;

/// The files of a group and their initial content.
const FILES: [(&str, &str); 8] = [
    ("cgroup.procs", ""),
    ("cgroup.subtree_control", "\n"),
    ("cgroup.freeze", "0\n"),
    ("cpu.stat", "usage_usec 0\n"),
    ("cpu.weight", "100\n"),
    ("cpu.max", "max 100000\n"),
    ("cpuset.cpus", "\n"),
    ("cpuset.cpus.effective", "0-7\n"),
];

/// The tree, while it exists.
pub struct Tree {
    pub root: PathBuf,
    fault: Rc<RefCell<Option<Fault>>>,
    _hook: Tampering,
}

impl Tree {
    pub fn new(root: &Path) -> Tree {
        fs::create_dir_all(root).unwrap();
        let (at, fault) = (root.to_owned(), Rc::<RefCell<Option<Fault>>>::default());
        let faults = Rc::clone(&fault);
        let hook = tamper(move |access| {
            let faulty = faults.borrow_mut().as_mut().and_then(|fault| fault(access));
            faulty.unwrap_or_else(|| kernel(&at, access))
        });
        Tree { root: root.to_owned(), fault, _hook: hook }
    }

    /// The root of the tree as a base with usable controllers.
    pub fn place(&self) -> CgroupBase {
        let controllers: BTreeSet<String> = ["cpu", "cpuset"].map(str::to_owned).into();
        CgroupBase { mount: self.root.clone(), base: self.root.clone(), controllers, delegated: false }
    }

    /// Injects this fault from now on.
    pub fn fault(&self, fault: impl FnMut(&Access<'_>) -> Option<Answer> + 'static) {
        *self.fault.borrow_mut() = Some(Box::new(fault));
    }

    /// Removes the fault.
    pub fn heal(&self) {
        *self.fault.borrow_mut() = None;
    }

    pub fn file(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap().trim().to_owned()
    }

    /// The processes of a group.
    pub fn procs(&self, group: &str) -> Vec<u32> {
        procs(&self.root.join(group))
    }
}

/// A fault: all calls of a kind about a path with this ending get this answer.
pub fn always(kind: Kind, end: &str, answer: Answer) -> impl FnMut(&Access<'_>) -> Option<Answer> + 'static {
    let end = end.to_owned();
    move |access| access.is(kind, &end).then(|| answer.clone())
}

/// [`always`], but only for the first such call.
pub fn once(kind: Kind, end: &str, answer: Answer) -> impl FnMut(&Access<'_>) -> Option<Answer> + 'static {
    let (mut fault, mut done) = (always(kind, end, answer), false);
    move |access| {
        let answer = if done { None } else { fault(access) };
        done |= answer.is_some();
        answer
    }
}

/// The kernel's answer to a call about the tree at `root`.
fn kernel(root: &Path, access: &Access<'_>) -> Answer {
    if let Some(pid) = pid_of_proc_file(access.path, "cgroup").filter(|_| access.kind == Kind::Read) {
        let group = groups(root).into_iter().find(|group| procs(group).contains(&pid));
        let path =
            group.map_or(String::new(), |group| group.strip_prefix(root).unwrap().display().to_string());
        return Answer::Falsify(format!("0::/{path}\n").into_bytes());
    }
    let Some(group) = access.path.parent().filter(|group| group.starts_with(root) && group.is_dir()) else {
        return Answer::GoOn;
    };
    for (file, text) in FILES {
        if !group.join(file).exists() {
            fs::write(group.join(file), text).unwrap();
        }
    }
    let name = access.path.file_name().unwrap().to_str().unwrap();
    match (access.kind, name) {
        (Kind::Read, "cgroup.events") => {
            let populated = groups(group).iter().any(|group| !procs(group).is_empty());
            let frozen = fs::read_to_string(group.join("cgroup.freeze")).unwrap();
            let events = format!("populated {}\nfrozen {}\n", u8::from(populated), frozen.trim());
            Answer::Falsify(events.into_bytes())
        }
        (Kind::Write, "cgroup.procs") => enter(root, group, access.bytes),
        (Kind::Write, "cgroup.subtree_control") => {
            let content = fs::read_to_string(access.path).unwrap();
            let mut enabled: BTreeSet<&str> = content.split_whitespace().collect();
            let orders = std::str::from_utf8(access.bytes).unwrap();
            for order in orders.split_whitespace() {
                match order.split_at(1) {
                    ("+", name) => enabled.insert(name),
                    (_, name) => enabled.remove(name),
                };
            }
            let enabled: Vec<&str> = enabled.into_iter().collect();
            let text = format!("{}\n", enabled.join(" "));
            fs::write(access.path, "").unwrap();
            Answer::Falsify(text.into_bytes())
        }
        (Kind::Write, _) => {
            if name == "cpuset.cpus" {
                let cpus = std::str::from_utf8(access.bytes).unwrap().trim();
                fs::write(group.join("cpuset.cpus.effective"), if cpus.is_empty() { "0-7" } else { cpus })
                    .unwrap();
            }
            // Remove the old value.
            fs::write(access.path, "").unwrap();
            Answer::GoOn
        }
        (Kind::RemoveDir, _) if access.path.is_dir() => {
            let inner = groups(access.path);
            if inner.len() > 1 || !procs(access.path).is_empty() {
                return Answer::Refuse(libc::EBUSY);
            }
            for file in fs::read_dir(access.path).unwrap().flatten() {
                fs::remove_file(file.path()).unwrap();
            }
            Answer::GoOn
        }
        _ => Answer::GoOn,
    }
}

/// Moves a process into a group: removes it from all other groups' lists, and adds it to this group's.
fn enter(root: &Path, group: &Path, pid: &[u8]) -> Answer {
    let pid: u32 = std::str::from_utf8(pid).unwrap().trim().parse().unwrap();
    let alive = fs::read_to_string(format!("/proc/{pid}/stat"));
    if alive.map_or(true, |stat| stat.contains(") Z ")) {
        return Answer::Refuse(libc::ESRCH);
    }
    for other in groups(root) {
        let remaining: Vec<String> = procs(&other)
            .into_iter()
            .filter(|other| *other != pid)
            .map(|other| format!("{other}\n"))
            .collect();
        fs::write(other.join("cgroup.procs"), remaining.concat()).unwrap();
    }
    let present = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    Answer::Falsify(format!("{present}{pid}\n").into_bytes())
}

/// A group and all groups below it.
fn groups(group: &Path) -> Vec<PathBuf> {
    let mut all = vec![group.to_owned()];
    for entry in fs::read_dir(group).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        all.extend(groups(&entry.path()));
    }
    all
}

fn procs(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let alive =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    text.lines().map(|line| line.parse().unwrap()).filter(alive).collect()
}

/// The process to which this path in /proc belongs, if the path names this file of the process.
pub fn pid_of_proc_file(path: &Path, file: &str) -> Option<u32> {
    let rest = path.strip_prefix("/proc").ok()?;
    (rest.file_name()?.to_str()? == file && rest.components().count() == 2)
        .then(|| rest.parent()?.to_str()?.parse().ok())?
}
