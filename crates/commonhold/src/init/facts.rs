//! What `init` sees of a machine: people, their groups, and managers of jobs.

use std::collections::BTreeMap;
use std::path::Path;

use crate::natural::people;

/// The most groups that are proposed: those with the most people.
const GROUPS_MAX: usize = 8;

/// A program that makes a control group for each of its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manager {
    Slurm,
    Podman,
}

impl Manager {
    pub(super) fn name(self) -> &'static str {
        match self {
            Manager::Slurm => "Slurm",
            Manager::Podman => "Podman",
        }
    }

    /// What it manages, in the plural.
    pub(super) fn jobs(self) -> &'static str {
        match self {
            Manager::Slurm => "jobs",
            Manager::Podman => "containers",
        }
    }

    /// The control group that has its jobs' groups.
    pub(super) fn group(self) -> &'static str {
        match self {
            Manager::Slurm => "/system.slice/slurmstepd.scope",
            Manager::Podman => "/machine.slice",
        }
    }
}

/// A group of people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) name: String,
    /// The number of its people in the local files.
    pub(super) people: usize,
}

/// The facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// The machine in a few words.
    pub(super) machine: String,
    /// The name of this user, if it is not root: a daemon of that user holds that user's processes alone.
    pub(super) user: Option<String>,
    pub(super) has_systemd: bool,
    /// The first and the last number of people's accounts.
    pub(super) people: (u32, u32),
    /// Groups of at least two people, the largest first.
    pub(super) groups: Vec<Group>,
    pub(super) manager: Option<Manager>,
}

impl Facts {
    /// Looks at the machine below `root`. A directory service is not asked, since it may take minutes to list
    /// its users.
    pub(super) fn of(root: &Path, machine: &str) -> Facts {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let people = people(&read("etc/login.defs"));
        let passwd = read("etc/passwd");
        let uid = rustix::process::geteuid();
        let is_this = |line: &&str| line.split(':').nth(2) == Some(&uid.as_raw().to_string());
        let name = || passwd.lines().find(is_this).and_then(|line| line.split(':').next()).map(str::to_owned);
        let exists = |path: &str| root.join(path).exists();
        let slurm = ["usr/sbin/slurmd", "usr/local/sbin/slurmd"].into_iter().any(exists);
        let manager = match (slurm, exists("usr/bin/podman")) {
            (true, _) => Some(Manager::Slurm),
            (false, true) => Some(Manager::Podman),
            (false, false) => None,
        };
        let has_systemd = exists("run/systemd/system");
        Facts {
            machine: machine.to_owned(),
            user: (!uid.is_root()).then(|| name().unwrap_or_else(|| uid.as_raw().to_string())),
            has_systemd,
            people,
            groups: groups(&passwd, &read("etc/group"), people),
            // Without systemd, the control groups have other names.
            manager: manager.filter(|_| has_systemd),
        }
    }
}

/// The groups of at least two people, by the texts of /etc/passwd and /etc/group. A user's private group has
/// one.
fn groups(passwd: &str, group: &str, (first, last): (u32, u32)) -> Vec<Group> {
    let is_in_range = |number: &str| number.parse().is_ok_and(|number: u32| (first..=last).contains(&number));
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for fields in passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()) {
        if let [name, _, uid, gid, ..] = fields[..]
            && is_in_range(uid)
        {
            names.insert(name, gid);
        }
    }
    let mut groups = Vec::new();
    for fields in group.lines().map(|line| line.split(':').collect::<Vec<_>>()) {
        let [name, _, gid, listed] = fields[..] else { continue };
        // System groups, such as `sudo` and `docker`, tell what people may do, and not to whom they belong.
        if !is_in_range(gid) {
            continue;
        }
        let is_listed = |person: &str| listed.split(',').any(|member| member == person);
        let people = names.iter().filter(|(person, primary)| **primary == gid || is_listed(person)).count();
        if people > 1 {
            groups.push(Group { name: name.to_owned(), people });
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.people));
    groups.truncate(GROUPS_MAX);
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_people_are_found() {
        let passwd = "root:x:0:0::/root:/bin/sh\nana:x:1000:1000::/:/bin/sh\nbo:x:1001:2000::/:/bin/sh\n\
                      eva:x:1002:2000::/:/bin/sh\nnobody:x:65534:65534::/:/bin/false\nbroken\n";
        let group = "root:x:0:\nsudo:x:27:ana,bo\nana:x:1000:\nphysics:x:2000:\nchem:x:2001:ana,bo,eva,gone\n\
                     few:x:2002:ana\nbroken:x\nnogroup:x:65534:ana,bo\n";
        let found = groups(passwd, group, (1000, 60_000));
        let found: Vec<(&str, usize)> = found.iter().map(|group| (&*group.name, group.people)).collect();
        assert_eq!(found, [("chem", 3), ("physics", 2)]);
    }
}
