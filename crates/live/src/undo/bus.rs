//! Removes the `resctrl` groups that the daemon made, and unmounts the file system if the daemon mounted it.
//!
//! The kernel moves the tasks of a removed group to the default group. The file system stays mounted if
//! another program mounted it, or has groups there.

use std::io;
use std::path::Path;

use super::Undone;
use crate::host::{self, mounts};
use crate::observe::bus::resctrl::{SOURCE, mounted};
use crate::observe::files::Tree;
use crate::undo::journal::Entry;

pub(super) fn restore(entries: &[Entry], root: &Path, undone: &mut Undone) {
    for entry in entries.iter().rev() {
        let result = match entry {
            Entry::ResourceGroup { dir } => remove(dir, undone),
            Entry::Mounted { point } => unmount(root, point, undone),
            _ => Ok(()),
        };
        if let (Err(err), Entry::ResourceGroup { dir: path } | Entry::Mounted { point: path }) =
            (result, entry)
        {
            let command = if matches!(entry, Entry::Mounted { .. }) { "umount" } else { "rmdir" };
            let path = path.display();
            undone
                .problems
                .push(format!("{path}: cannot remove: {err}; remove it by hand: {command} {path}"));
        }
    }
}

fn remove(dir: &Path, undone: &mut Undone) -> io::Result<()> {
    match host::remove_dir(dir) {
        Ok(()) => undone.removed += 1,
        Err(err) if err.kind() == io::ErrorKind::NotFound => {}
        Err(err) => return Err(err),
    }
    Ok(())
}

/// Unmounts `resctrl`, unless another program mounted it there or made groups in it. `root` is the root of
/// the tree in which `/proc` is read.
fn unmount(root: &Path, point: &Path, undone: &mut Undone) -> io::Result<()> {
    let is_ours =
        mounted(&Tree::new(root)).is_some_and(|mount| mount.source == SOURCE && mount.point == point);
    if !is_ours {
        return Ok(());
    }
    let kernels_folders = ["info", "mon_groups", "mon_data"];
    // Any other folder is a resource group of another program.
    let foreign_group = |folder: &Path, kernels_folders: &[&str]| {
        let entries = host::list(folder).unwrap_or_default();
        entries.into_iter().find(|entry| entry.is_dir && !kernels_folders.contains(&entry.name()))
    };
    let foreign =
        foreign_group(point, &kernels_folders).or_else(|| foreign_group(&point.join("mon_groups"), &[]));
    if let Some(other) = foreign {
        let (point, other) = (point.display(), other.path.display());
        undone.notices.push(format!("{point}: resctrl stays mounted, since {other} uses it"));
        return Ok(());
    }
    mounts::unmount(point)?;
    undone.unmounted += 1;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::observe::files::fake;

    fn at(dir: &tempfile::TempDir, path: &str) -> std::path::PathBuf {
        dir.path().join("sys/fs/resctrl").join(path)
    }

    #[test]
    fn groups_are_removed_and_another_programs_mount_stays() {
        let line = "30 23 0:26 / /sys/fs/resctrl rw - resctrl resctrl rw\n";
        let dir = fake::tree(&[("/proc/self/mountinfo", line)]);
        std::fs::create_dir_all(at(&dir, "mon_groups/commonhold-3-a")).unwrap();
        let entries = [
            Entry::Mounted { point: dir.path().join("sys/fs/resctrl") },
            Entry::ResourceGroup { dir: at(&dir, "mon_groups/commonhold-3-a") },
            Entry::ResourceGroup { dir: at(&dir, "commonhold-4-b") },
        ];
        let mut undone = Undone::default();
        restore(&entries, dir.path(), &mut undone);
        assert_eq!(undone, Undone { removed: 1, ..Undone::default() });
        assert!(!at(&dir, "mon_groups/commonhold-3-a").exists());
        // Ours, but another program uses it: no unmount is attempted (it would fail on a plain folder).
        fake::add(&dir, &[("/proc/self/mountinfo", &line.replace("resctrl rw\n", "commonhold rw\n"))]);
        std::fs::create_dir_all(at(&dir, "p0")).unwrap();
        restore(&entries, dir.path(), &mut undone);
        assert_eq!((undone.notices.len(), undone.problems.len()), (1, 0), "{undone:?}");
        std::fs::remove_dir(at(&dir, "p0")).unwrap();
        restore(&entries, dir.path(), &mut undone);
        assert_eq!(undone.problems.len(), 1, "a folder is no mount: {undone:?}");
    }

    #[test]
    fn a_group_that_cannot_be_removed_is_reported() {
        let dir = fake::tree(&[("/sys/fs/resctrl/g/busy", "")]);
        let mut undone = Undone::default();
        restore(&[Entry::ResourceGroup { dir: at(&dir, "g") }], dir.path(), &mut undone);
        assert!(undone.problems[0].contains("rmdir"), "{undone:?}");
    }
}
