//! CPU quotas that others have set in control groups: systemd's `CPUQuota=`, `docker run --cpus`, a pod's
//! limits.
//!
//! The kernel enforces quotas only with its own scheduler, and not while a `sched_ext` scheduler is attached.
//! So the `kernel` backend must know whether any quota is set.

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

/// A search that takes `t` is repeated after `t * SEARCH_COST` at the earliest, so that it takes at most
/// 1/500 of a CPU.
const SEARCH_COST: Time = 500;

/// For this long after a quota was last seen, quotas still count as set. Otherwise, containers that start
/// every second would make the answer alternate.
const QUIET_NS: Time = 30 * SECOND;

/// Searches a cgroup v2 hierarchy for quotas.
#[derive(Debug)]
pub(crate) struct Caps {
    mount: PathBuf,
    next_search: Time,
    /// The group in which a quota was last seen, and when.
    last_seen: Option<(String, Time)>,
}

impl Caps {
    /// For the hierarchy mounted at `mount`. The first call of [`Caps::look`] searches it.
    pub(crate) fn new(mount: &Path) -> Caps {
        Caps { mount: mount.to_owned(), next_search: 0, last_seen: None }
    }

    /// A control group that has a quota set by another program, or had one within the last half minute, as
    /// /proc shows its path; `None` if there is no such group.
    ///
    /// `known` is a group that the caller knows to have a quota, which saves a search. `is_ours` returns
    /// whether this program wrote a text into the quota file of a group's folder; it is always true for
    /// groups that only this program manages.
    pub(crate) fn look(
        &mut self,
        now: Time,
        known: Option<&str>,
        is_ours: impl Fn(&Path, &str) -> bool,
    ) -> Option<&str> {
        if let Some(known) = known {
            self.last_seen = Some((known.to_owned(), now));
        } else if now >= self.next_search {
            let begun = clock::now();
            let found = self.find(&self.mount, &is_ours);
            self.next_search =
                now + SEARCH_NS.max(clock::now().saturating_sub(begun).saturating_mul(SEARCH_COST));
            if let Some(group) = found {
                self.last_seen = Some((group, now));
            } else {
                let is_recent = |(_, at): &(String, Time)| now < at.saturating_add(QUIET_NS);
                self.last_seen = self.last_seen.take().filter(is_recent);
            }
        }
        self.last_seen.as_ref().map(|(group, _)| group.as_str())
    }

    /// The first group below `dir` with a quota of another program, as /proc shows its path.
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
    fn a_quota_counts_until_half_a_minute_after_its_removal() {
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
