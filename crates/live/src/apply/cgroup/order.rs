//! The order in which to write CPU sets into a tree of cgroups.
//!
//! Problem: a unit's processes must never run on CPUs outside both the old and the new set, not even between two writes.
//! The kernel intersects a cgroup's set with its parent's, and if the result is empty, uses *all* CPUs of the parent. So a
//! child written before its parent was widened escapes its set for a moment.
//!
//! Terms: a *cell* is one cgroup's CPU set. Leaf cells have processes. Inner cells have cgroups, and want the union of
//! the leaves below them.
//!
//! Algorithm: inner cells widen to the union of old and new, from the top down. Leaves take their new set. Inner cells
//! narrow to the wanted set, from the bottom up. Writes that change nothing are skipped.
//!
//! Properties (tested): before, between and after the writes every cell lies within its parent, and no set is empty.
//! Afterwards every cell has the wanted set. There are at most two writes per inner cell and one per leaf.
//!
//! Source: `update_cpumasks_hier()` in the kernel's kernel/cgroup/cpuset.c.

use commonhold_machine::CpuSet;

/// One cgroup's CPU set. `None` is the kernel's empty string: all CPUs of the parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    /// The index of the enclosing cell, smaller than its own; `None` for the outermost.
    pub(super) parent: Option<usize>,
    /// The set in the kernel.
    pub(super) now: Option<CpuSet>,
    /// The set to write. [`want_inner`] sets it for inner cells.
    pub(super) wanted: Option<CpuSet>,
}

/// Makes every inner cell want the union of its children.
pub(super) fn want_inner(cells: &mut [Cell]) {
    let mut seen = vec![false; cells.len()];
    for i in (0..cells.len()).rev() {
        let Some(parent) = cells[i].parent else { continue };
        cells[parent].wanted = if seen[parent] {
            union(cells[parent].wanted.as_ref(), cells[i].wanted.as_ref())
        } else {
            cells[i].wanted.clone()
        };
        seen[parent] = true;
    }
}

/// The writes that lead from the present to the wanted sets, in order: the cell's index and its set.
pub(super) fn writes(cells: &[Cell]) -> Vec<(usize, Option<CpuSet>)> {
    let mut now: Vec<Option<CpuSet>> = cells.iter().map(|cell| cell.now.clone()).collect();
    let mut inner = vec![false; cells.len()];
    cells.iter().filter_map(|cell| cell.parent).for_each(|parent| inner[parent] = true);
    let mut writes = Vec::new();
    let mut put = |i: usize, cpus: Option<CpuSet>| {
        if now[i] != cpus {
            now[i].clone_from(&cpus);
            writes.push((i, cpus));
        }
    };
    for (i, cell) in cells.iter().enumerate().filter(|(i, _)| inner[*i]) {
        put(i, union(cell.now.as_ref(), cell.wanted.as_ref()));
    }
    for (i, cell) in cells.iter().enumerate().filter(|(i, _)| !inner[*i]) {
        put(i, cell.wanted.clone());
    }
    for (i, cell) in cells.iter().enumerate().rev().filter(|(i, _)| inner[*i]) {
        put(i, cell.wanted.clone());
    }
    writes
}

fn union(a: Option<&CpuSet>, b: Option<&CpuSet>) -> Option<CpuSet> {
    Some(a?.union(b?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The effective set of a cell; `None` if a set is not within its parent's.
    fn effective(cells: &[Cell], now: &[Option<CpuSet>], all: &CpuSet, i: usize) -> Option<CpuSet> {
        let above = match cells[i].parent {
            Some(parent) => effective(cells, now, all, parent)?,
            None => all.clone(),
        };
        match &now[i] {
            None => Some(above),
            Some(own) => (!own.is_empty() && own.difference(&above).is_empty()).then(|| own.clone()),
        }
    }

    fn set(bits: u8) -> Option<CpuSet> {
        // 0 means "never confined".
        (bits != 0).then(|| (0..8).filter(|cpu| bits & (1 << cpu) != 0).collect())
    }

    /// A tree of up to 12 cells whose inner cells want, and have, the union of their leaves.
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
                    .map(|(i, seed)| Cell { parent: parent(i, seed.0), now: None, wanted: set(which(seed)) })
                    .collect();
                want_inner(&mut cells);
                cells
            };
            let (before, mut after) = (cells(&|seed| seed.1), cells(&|seed| seed.2));
            after.iter_mut().zip(before).for_each(|(cell, before)| cell.now = before.wanted);
            after
        })
    }

    proptest! {
        #[test]
        fn every_cell_lies_within_its_encloser_at_every_moment(cells in trees()) {
            let all: CpuSet = (0..8).collect();
            let mut now: Vec<_> = cells.iter().map(|cell| cell.now.clone()).collect();
            let mut allowed_before: Vec<CpuSet> = Vec::new();
            for i in 0..cells.len() {
                let effective = effective(&cells, &now, &all, i);
                prop_assert!(effective.is_some(), "the start is sound");
                allowed_before.push(effective.unwrap());
            }
            let wanted: Vec<_> = cells.iter().map(|cell| cell.wanted.clone()).collect();
            for (i, cpus) in writes(&cells) {
                prop_assert_ne!(&now[i], &cpus, "a write that changes nothing");
                now[i] = cpus;
                for leaf in 0..cells.len() {
                    let Some(may) = effective(&cells, &now, &all, leaf) else {
                        return Err(TestCaseError::fail(format!("cell {leaf} left its encloser: {now:?}")));
                    };
                    if cells.iter().any(|cell| cell.parent == Some(leaf)) || wanted[leaf].is_none() || cells[leaf].now.is_none() {
                        continue;
                    }
                    let ordered = allowed_before[leaf].union(wanted[leaf].as_ref().unwrap());
                    prop_assert!(may.difference(&ordered).is_empty(), "cell {leaf} ran on {may} outside {ordered}");
                }
            }
            prop_assert_eq!(now, wanted);
        }
    }

    #[test]
    fn a_parent_makes_room_before_its_child_moves_and_shrinks_after() {
        // physics has 0-1 itself, and 2 for a sub-unit that moves to 3: the parent must widen to 0-3 first.
        let cpus = |text: &str| Some(text.parse::<CpuSet>().unwrap());
        let mut cells = vec![
            Cell { parent: None, now: cpus("0-2"), wanted: None },
            Cell { parent: Some(0), now: cpus("0-1"), wanted: cpus("0-1") },
            Cell { parent: Some(0), now: cpus("2"), wanted: cpus("3") },
        ];
        want_inner(&mut cells);
        assert_eq!(writes(&cells), [(0, cpus("0-3")), (2, cpus("3")), (0, cpus("0-1,3"))]);
    }
}
