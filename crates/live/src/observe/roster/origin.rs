//! The control group that a process counts as being in for `cgroup` rules after this program has moved it.
//!
//! Problem: `cgroup:/lab` puts a process into a unit. A backend that holds units as control groups then moves
//! the process out of /lab. Read again, the process would no longer match, leave its unit and be moved back
//! to /lab, where it matches again.
//!
//! Algorithm: while a process is in the backend's subtree, `cgroup` rules see it in its *origin*, the group
//! that it came from. A process that started in the subtree has its parent's origin. If the parent has ended,
//! its origin is that of the process read last in the same group. Scopes that systemd makes for processes of
//! units are treated like the subtree.

use std::collections::BTreeMap;

/// The groups into which processes are moved by this program (the subtree) or by systemd on its request
/// (scopes). Rules *see through* these groups: they see a process in its origin instead.
#[derive(Debug, Default)]
pub(super) struct Origins {
    subtree: Option<String>,
    /// The slice of all scopes, if scopes are made.
    scopes: Option<&'static str>,
    /// For each control group in the subtree or a scope, the origin of the process that was read last in that
    /// group.
    last_origins: BTreeMap<String, String>,
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

    /// Whether a control group is a scope for processes of units, or is inside such a scope.
    pub(super) fn is_scope(&self, cgroup: &str) -> bool {
        self.scopes.is_some_and(|slice| is_below(cgroup, slice))
    }

    /// Whether processes in a control group count as being in their origins instead.
    fn is_seen_through(&self, cgroup: &str) -> bool {
        self.is_own(cgroup) || self.is_scope(cgroup)
    }

    /// The group in which rules see a known process. That is `current`, the group in which the process is
    /// now; but if rules see through that group, it is the process's previous origin.
    pub(super) fn origin_of(&mut self, current: String, previous: &str) -> String {
        if !self.is_seen_through(&current) {
            return current;
        }
        self.last_origins.insert(current, previous.to_owned());
        previous.to_owned()
    }

    /// The group in which rules see a new process that is now in the group `current`. `parents` is the origin
    /// of the process's parent, if known. The result is empty if rules see through `current` and no origin is
    /// known.
    pub(super) fn origin_of_new(&self, current: String, parents: Option<&str>) -> String {
        if !self.is_seen_through(&current) {
            return current;
        }
        parents.or(self.last_origins.get(&current).map(String::as_str)).unwrap_or_default().to_owned()
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
        assert_eq!(origins.origin_of("/commonhold/a".to_owned(), "/lab"), "/lab");
        // Its user moved it elsewhere, so it counts as being there.
        assert_eq!(origins.origin_of("/other".to_owned(), "/lab"), "/other");
        assert_eq!(origins.origin_of("/commonhold.daemon".to_owned(), "/lab"), "/commonhold.daemon");
    }

    #[test]
    fn a_process_started_in_the_subtree_has_its_parents_origin() {
        let mut origins = origins();
        assert_eq!(origins.origin_of_new("/commonhold/a".to_owned(), Some("/lab")), "/lab");
        assert_eq!(origins.origin_of_new("/commonhold/a".to_owned(), None), "");
        origins.origin_of("/commonhold/a".to_owned(), "/lab");
        assert_eq!(origins.origin_of_new("/commonhold/a".to_owned(), None), "/lab");
        assert_eq!(origins.origin_of_new("/else".to_owned(), Some("/lab")), "/else");
    }

    #[test]
    fn without_a_subtree_every_process_counts_where_it_is() {
        assert_eq!(Origins::default().origin_of("/commonhold/a".to_owned(), "/lab"), "/commonhold/a");
    }
}
