//! The control group that a process counts as being in for `cgroup` rules after this program has moved it.
//!
//! Problem: `cgroup:/lab` puts a process into a unit. A backend that holds units as control groups then moves it out of /lab.
//! Read again, it would no longer match, leave its unit and be moved back, where it matches again.
//!
//! Algorithm: while a process is in that backend's subtree, it counts as being in the group that it came from. A process that
//! started there counts as being where its parent does. If the parent has ended, it counts as being where the last process
//! read in the same group came from. The same applies to scopes that systemd makes for processes of units.

use std::collections::BTreeMap;

/// The subtree to see through, and where the processes in it came from.
#[derive(Debug, Default)]
pub(super) struct Origins {
    subtree: Option<String>,
    /// The slice of all scopes, if scopes are made.
    scopes: Option<&'static str>,
    /// By control group in the subtree: where the process read last in it came from.
    last: BTreeMap<String, String>,
}

impl Origins {
    /// Sees through a control group and everything below it.
    pub(super) fn see_through(&mut self, subtree: &str) {
        self.subtree = Some(subtree.trim_end_matches('/').to_owned());
    }

    /// Sees through the scopes that systemd makes for processes of units, in this slice.
    pub(super) fn see_through_scopes(&mut self, slice: &'static str) {
        self.scopes = Some(slice);
    }

    /// Whether a control group is in the backend's subtree.
    pub(super) fn is_own(&self, cgroup: &str) -> bool {
        self.subtree.as_deref().is_some_and(|subtree| is_below(cgroup, subtree))
    }

    /// Whether a control group is a scope for processes of units, or in one.
    pub(super) fn is_scope(&self, cgroup: &str) -> bool {
        self.scopes.is_some_and(|slice| is_below(cgroup, slice))
    }

    /// Whether a control group is one to see through.
    fn hides(&self, cgroup: &str) -> bool {
        self.is_own(cgroup) || self.is_scope(cgroup)
    }

    /// The group in which a process counts that is now in `seen` and counted in `before` so far.
    pub(super) fn counts_as(&mut self, seen: String, before: &str) -> String {
        if !self.hides(&seen) {
            return seen;
        }
        self.last.insert(seen, before.to_owned());
        before.to_owned()
    }

    /// The group in which a new process counts. `parent` is its parent's.
    pub(super) fn of_newborn(&self, seen: String, parent: Option<&str>) -> String {
        if !self.hides(&seen) {
            return seen;
        }
        parent.or(self.last.get(&seen).map(String::as_str)).unwrap_or_default().to_owned()
    }
}

fn is_below(cgroup: &str, around: &str) -> bool {
    cgroup.strip_prefix(around).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins() -> Origins {
        let mut origins = Origins::default();
        origins.see_through("/commonhold");
        origins
    }

    #[test]
    fn a_moved_process_counts_as_being_where_it_came_from() {
        let mut origins = origins();
        assert_eq!(origins.counts_as("/commonhold/a".to_owned(), "/lab"), "/lab");
        // Its user moved it elsewhere, so it counts as being there.
        assert_eq!(origins.counts_as("/other".to_owned(), "/lab"), "/other");
        assert_eq!(origins.counts_as("/commonhold.daemon".to_owned(), "/lab"), "/commonhold.daemon");
    }

    #[test]
    fn a_process_started_there_counts_as_being_where_its_parent_does() {
        let mut origins = origins();
        assert_eq!(origins.of_newborn("/commonhold/a".to_owned(), Some("/lab")), "/lab");
        assert_eq!(origins.of_newborn("/commonhold/a".to_owned(), None), "");
        origins.counts_as("/commonhold/a".to_owned(), "/lab");
        assert_eq!(origins.of_newborn("/commonhold/a".to_owned(), None), "/lab");
        assert_eq!(origins.of_newborn("/else".to_owned(), Some("/lab")), "/else");
    }

    #[test]
    fn without_a_subtree_nothing_is_hidden() {
        assert_eq!(Origins::default().counts_as("/commonhold/a".to_owned(), "/lab"), "/commonhold/a");
    }
}
