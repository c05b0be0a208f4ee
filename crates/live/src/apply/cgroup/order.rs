//! The order in which to write CPU sets into a tree of cgroups.
//!
//! Problem: when CPU sets change, every unit's processes must always run on CPUs of the unit's old or new
//! set, even between two writes. The kernel intersects a cgroup's set with its parent's, and if the result is
//! empty, uses *all* CPUs of the parent. So if a child's set is written before its parent's set is widened,
//! the child's processes may run anywhere for a moment.
//!
//! Terms: a *cell* is one cgroup's CPU set. The cgroup of a *leaf* cell has processes. The cgroup of an
//! *inner* cell has cgroups, and its set is the union of the leaves below.
//!
//! Algorithm: first, each inner cell is widened to the union of its old and new set, from the top down. Then
//! each leaf gets its new set. Last, each inner cell is narrowed to its new set, from the bottom up. Writes
//! that change nothing are skipped.
//!
//! Properties (tested): before, between and after the writes every cell lies within its parent, and no set is
//! empty. Afterwards every cell has the wanted set. There are at most two writes per inner cell and one per
//! leaf.
//!
//! Source: `update_cpumasks_hier()` in the kernel's kernel/cgroup/cpuset.c.

use commonhold_machine::CpuSet;

/// One cgroup's CPU set. `None` is the kernel's empty string: all CPUs of the parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    /// The index of the enclosing cell, smaller than this cell's own; `None` for the outermost cell.
    pub(super) parent: Option<usize>,
    /// The set that the kernel has.
    pub(super) current: Option<CpuSet>,
    /// The set to write. [`set_inner_targets`] computes it for inner cells.
    pub(super) target: Option<CpuSet>,
}

/// Sets the target of every inner cell to the union of its children's targets.
pub(super) fn set_inner_targets(cells: &mut [Cell]) {
    let mut has_target = vec![false; cells.len()];
    // A parent precedes its children, so in reverse order each cell's target is complete before its parent
    // uses it.
    for i in (0..cells.len()).rev() {
        let Some(parent) = cells[i].parent else { continue };
        cells[parent].target = if has_target[parent] {
            union(cells[parent].target.as_ref(), cells[i].target.as_ref())
        } else {
            cells[i].target.clone()
        };
        has_target[parent] = true;
    }
}

/// The writes that lead from the current to the target sets, in order. Each is a cell's index and the set to
/// write.
pub(super) fn writes(cells: &[Cell]) -> Vec<(usize, Option<CpuSet>)> {
    let mut written: Vec<Option<CpuSet>> = cells.iter().map(|cell| cell.current.clone()).collect();
    let mut is_inner = vec![false; cells.len()];
    cells.iter().filter_map(|cell| cell.parent).for_each(|parent| is_inner[parent] = true);
    let mut writes = Vec::new();
    let mut write = |i: usize, cpus: Option<CpuSet>| {
        if written[i] != cpus {
            written[i].clone_from(&cpus);
            writes.push((i, cpus));
        }
    };
    // Widen inner cells, set the leaves, narrow inner cells.
    for (i, cell) in cells.iter().enumerate().filter(|(i, _)| is_inner[*i]) {
        write(i, union(cell.current.as_ref(), cell.target.as_ref()));
    }
    for (i, cell) in cells.iter().enumerate().filter(|(i, _)| !is_inner[*i]) {
        write(i, cell.target.clone());
    }
    for (i, cell) in cells.iter().enumerate().rev().filter(|(i, _)| is_inner[*i]) {
        write(i, cell.target.clone());
    }
    writes
}

/// The union of two sets, of which `None` is all CPUs.
fn union(a: Option<&CpuSet>, b: Option<&CpuSet>) -> Option<CpuSet> {
    Some(a?.union(b?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The effective set of a cell; `None` if a set is not within its parent's.
    fn effective(cells: &[Cell], current: &[Option<CpuSet>], all: &CpuSet, i: usize) -> Option<CpuSet> {
        let of_parent = match cells[i].parent {
            Some(parent) => effective(cells, current, all, parent)?,
            None => all.clone(),
        };
        match &current[i] {
            None => Some(of_parent),
            Some(own) => (!own.is_empty() && own.difference(&of_parent).is_empty()).then(|| own.clone()),
        }
    }

    fn set(bits: u8) -> Option<CpuSet> {
        // 0 means "never confined".
        (bits != 0).then(|| (0..8).filter(|cpu| bits & (1 << cpu) != 0).collect())
    }

    /// A tree of up to 12 cells. Both the current and the target set of an inner cell is the union of its
    /// leaves' sets.
    fn trees() -> impl Strategy<Value = Vec<Cell>> {
        proptest::collection::vec((any::<u16>(), any::<u8>(), any::<u8>()), 1..12).prop_map(|seeds| {
            let parent = |i: usize, seed: u16| match usize::from(seed) % (i + 1) {
                0 => None,
                p => Some(p - 1),
            };
            let cells = |which: &dyn Fn(&(u16, u8, u8)) -> u8| {
                let mut cells: Vec<Cell> = seeds
                    .iter()
                    .enumerate()
                    .map(|(i, seed)| Cell {
                        parent: parent(i, seed.0),
                        current: None,
                        target: set(which(seed)),
                    })
                    .collect();
                set_inner_targets(&mut cells);
                cells
            };
            let (before, mut after) = (cells(&|seed| seed.1), cells(&|seed| seed.2));
            after.iter_mut().zip(before).for_each(|(cell, before)| cell.current = before.target);
            after
        })
    }

    proptest! {
        #[test]
        fn every_cell_lies_within_its_parent_at_every_moment(cells in trees()) {
            let all: CpuSet = (0..8).collect();
            let mut current: Vec<_> = cells.iter().map(|cell| cell.current.clone()).collect();
            let mut allowed_before: Vec<CpuSet> = Vec::new();
            for i in 0..cells.len() {
                let effective = effective(&cells, &current, &all, i);
                prop_assert!(effective.is_some(), "the start is sound");
                allowed_before.push(effective.unwrap());
            }
            let targets: Vec<_> = cells.iter().map(|cell| cell.target.clone()).collect();
            for (i, cpus) in writes(&cells) {
                prop_assert_ne!(&current[i], &cpus, "a write that changes nothing");
                current[i] = cpus;
                for leaf in 0..cells.len() {
                    let Some(effective) = effective(&cells, &current, &all, leaf) else {
                        return Err(TestCaseError::fail(format!("cell {leaf} left its parent: {current:?}")));
                    };
                    let is_inner = cells.iter().any(|cell| cell.parent == Some(leaf));
                    if is_inner || targets[leaf].is_none() || cells[leaf].current.is_none() {
                        continue;
                    }
                    let allowed = allowed_before[leaf].union(targets[leaf].as_ref().unwrap());
                    prop_assert!(
                        effective.difference(&allowed).is_empty(),
                        "cell {leaf} ran on {effective} outside {allowed}"
                    );
                }
            }
            prop_assert_eq!(current, targets);
        }
    }

    #[test]
    fn a_parent_is_widened_before_its_child_moves_and_narrowed_after() {
        // physics has 0-1 itself, and 2 for a sub-unit that moves to 3: the parent must widen to 0-3 first.
        let cpus = |text: &str| Some(text.parse::<CpuSet>().unwrap());
        let mut cells = vec![
            Cell { parent: None, current: cpus("0-2"), target: None },
            Cell { parent: Some(0), current: cpus("0-1"), target: cpus("0-1") },
            Cell { parent: Some(0), current: cpus("2"), target: cpus("3") },
        ];
        set_inner_targets(&mut cells);
        assert_eq!(writes(&cells), [(0, cpus("0-3")), (2, cpus("3")), (0, cpus("0-1,3"))]);
    }
}
