//! CPU quotas that others have set in control groups: systemd's `CPUQuota=`, `docker run --cpus`, a pod's limits.
//!
//! The kernel enforces them with its own scheduler, and not under `sched_ext`.

use std::path::{Path, PathBuf};

use commonhold_policy::Time;

use crate::host;
use crate::host::clock;
use crate::observe::knob::read;

/// The file with a control group's CPU quota.
pub(crate) const CAP: &str = "cpu.max";

const SECOND: Time = 1_000_000_000;

/// How often the hierarchy is searched.
const SEARCH_NS: Time = 5 * SECOND;

/// A search that takes `t` is repeated after `t * SEARCH_COST` at the earliest, so that it takes at most 1/500 of a CPU.
const SEARCH_COST: Time = 500;

/// How long after the last quota was seen none counts as set. A container may start every second.
const QUIET_NS: Time = 30 * SECOND;

/// Searches a cgroup v2 hierarchy for quotas.
#[derive(Debug)]
pub(crate) struct Caps {
    mount: PathBuf,
    next_search: Time,
    /// The group seen last with a quota, and when.
    seen: Option<(String, Time)>,
}

impl Caps {
    /// For the hierarchy mounted at `mount`, which was not searched yet.
    pub(crate) fn new(mount: &Path) -> Caps {
        Caps { mount: mount.to_owned(), next_search: 0, seen: None }
    }

    /// A control group with a quota, or one that had it within the last half minute, as /proc shows its path. `known`: a group
    /// that the caller knows to have one, which saves a search. `is_ours`: whether this program wrote this text into a group's
    /// file; always true of groups that only this program manages.
    pub(crate) fn look(
        &mut self,
        now: Time,
        known: Option<&str>,
        is_ours: impl Fn(&Path, &str) -> bool,
    ) -> Option<&str> {
        if let Some(known) = known {
            self.seen = Some((known.to_owned(), now));
        } else if now >= self.next_search {
            let begun = clock::now();
            let found = self.find(&self.mount, &is_ours);
            self.next_search =
                now + SEARCH_NS.max(clock::now().saturating_sub(begun).saturating_mul(SEARCH_COST));
            match found {
                Some(found) => self.seen = Some((found, now)),
                None => self.seen = self.seen.take().filter(|(_, at)| now < at.saturating_add(QUIET_NS)),
            }
        }
        self.seen.as_ref().map(|(group, _)| group.as_str())
    }

    fn find(&self, dir: &Path, is_ours: &impl Fn(&Path, &str) -> bool) -> Option<String> {
        // A group may have vanished meanwhile.
        let groups = host::list(dir).unwrap_or_default();
        for group in groups.iter().filter(|entry| entry.is_dir) {
            let cap = read(&group.path.join(CAP)).unwrap_or_default();
            let is_cap = !cap.is_empty() && !cap.starts_with("max") && !is_ours(&group.path, &cap);
            if is_cap && let Ok(path) = group.path.strip_prefix(&self.mount) {
                return Some(format!("/{}", path.display()));
            }
            if let Some(found) = self.find(&group.path, is_ours) {
                return Some(found);
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_seen_until_half_a_minute_after_it_went() {
        let root = tempfile::tempdir().unwrap();
        let put = |group: &str, text: &str| {
            let dir = root.path().join(group);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(CAP), text).unwrap();
        };
        put("user.slice/user-1001.slice", "max 100000\n");
        put("commonhold/a", "150000 100000\n");
        put("system.slice/a.service", "5000 100000\n");
        let mut caps = Caps::new(root.path());
        let mut look = |now: Time, known: Option<&str>| {
            let ours = |dir: &Path, text: &str| {
                dir.starts_with(root.path().join("commonhold"))
                    || (dir.ends_with("a.service") && text == "5000 100000")
            };
            caps.look(now * SECOND, known, ours).map(str::to_owned)
        };
        assert_eq!(look(0, None), None);
        put("user.slice/user-1001.slice", "150000 100000\n");
        assert_eq!(look(4, None), None, "a search every five seconds");
        let slice = Some("/user.slice/user-1001.slice".to_owned());
        assert_eq!(look(5, None), slice);
        put("user.slice/user-1001.slice", "max 100000\n");
        assert_eq!((look(10, None), look(34, None)), (slice.clone(), slice));
        assert_eq!(look(40, None), None);
        put("system.slice/a.service", "6000 100000\n");
        assert_eq!(
            look(45, None),
            Some("/system.slice/a.service".to_owned()),
            "it differs from what this program wrote"
        );
        assert_eq!(look(46, Some("/b")), Some("/b".to_owned()));
    }
}
