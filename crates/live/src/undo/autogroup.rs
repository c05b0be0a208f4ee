//! Restores the nice value of the autogroup of the daemon's session.
//!
//! An autogroup's nice value is set through a process in the autogroup. The daemon may be dead, and the
//! caretaker has left the daemon's session, so any process that is still in the autogroup is used. Without
//! such a process the autogroup no longer exists. A value other than the daemon's was set by another program
//! meanwhile, and stays.

use std::io;
use std::path::Path;

use super::Undone;
use crate::LiveError;
use crate::host::autogroup::{Autogroup, AutogroupFile};
use crate::observe::process::ProcFs;
use crate::undo::journal::Entry;

pub(super) fn restore(entries: &[Entry], procfs: &mut ProcFs, undone: &mut Undone) {
    for entry in entries {
        if let Entry::Autogroup { number, nice, given } = *entry {
            let given = Autogroup { number, nice: given };
            if let Err(err) = restore_one(given, nice, procfs, undone) {
                undone.problems.push(format!("autogroup {number}: cannot restore: {err}"));
            }
        }
    }
}

/// Restores the `original` nice value of one autogroup. `given` is the autogroup with the nice value that the
/// daemon set.
fn restore_one(
    given: Autogroup,
    original: i32,
    procfs: &mut ProcFs,
    undone: &mut Undone,
) -> Result<(), LiveError> {
    let mut listed = Vec::new();
    procfs.processes(&mut listed)?;
    let mut refused = None;
    for pid in listed.iter().map(|entry| entry.pid) {
        let Some(current) = procfs.autogroup(pid)?.filter(|current| current.number == given.number) else {
            continue;
        };
        if current.nice == original {
            return Ok(());
        }
        if current != given {
            let (number, nice) = (current.number, current.nice);
            undone
                .notices
                .push(format!("autogroup {number}: its nice value stays {nice}: another program has set it"));
            return Ok(());
        }
        let path = procfs.path().join(format!("{pid}/autogroup"));
        match set(&path, given, original) {
            Ok(false) => {}
            Ok(true) => {
                undone.autogroups += 1;
                return Ok(());
            }
            Err(err) if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            // Try the next process: this user may own another process of the autogroup.
            Err(err) => refused = Some((path, err)),
        }
    }
    if let Some((path, err)) = refused {
        let path = path.display();
        undone.problems.push(format!(
            "{path}: cannot set the nice value {original}: {err}; set it by hand, as root: \
             echo {original} > {path}"
        ));
    }
    Ok(())
}

/// Restores the nice value through one process's file. False if the process has left the autogroup, or the
/// value is no longer the daemon's.
fn set(path: &Path, given: Autogroup, original: i32) -> io::Result<bool> {
    let mut file = AutogroupFile::open(path)?;
    if file.get()? != Some(given) {
        return Ok(false);
    }
    file.set(original).map(|()| true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host::{Answer, Kind, tamper};
    use crate::observe::files::fake;

    const ENTRY: Entry = Entry::Autogroup { number: 7, nice: 3, given: -15 };

    /// The outcome when processes 1, 2 and 3 have these autogroups, and whether each one's file was written.
    fn undone(autogroups: [&str; 3]) -> (Undone, Vec<bool>) {
        let names = ["/1/autogroup", "/2/autogroup", "/3/autogroup"];
        let files: Vec<(&str, &str)> = names.into_iter().zip(autogroups).collect();
        let dir = fake::tree(&files);
        let mut undone = Undone::default();
        restore(&[ENTRY], &mut ProcFs::open(dir.path()).unwrap(), &mut undone);
        let written =
            |name: &&str| std::fs::read_to_string(dir.path().join(&name[1..])).unwrap().starts_with('3');
        (undone, names.iter().map(written).collect())
    }

    const OTHER: &str = "/autogroup-6 nice -15\n";
    const OURS: &str = "/autogroup-7 nice -15\n";

    #[test]
    fn any_process_left_in_the_autogroup_will_do() {
        let (outcome, written) = undone(["", OTHER, OURS]);
        assert_eq!(
            (outcome, written),
            (Undone { autogroups: 1, ..Undone::default() }, vec![false, false, true])
        );
        let (outcome, written) = undone(["", OTHER, "/autogroup-70 nice -15\n"]);
        assert_eq!((outcome, written), (Undone::default(), vec![false; 3]), "no process is left");
        let (outcome, written) = undone(["", OTHER, "/autogroup-7 nice 3\n"]);
        assert_eq!((outcome, written), (Undone::default(), vec![false; 3]), "it has its value");
    }

    #[test]
    fn a_value_that_another_program_set_stays() {
        let (outcome, written) = undone(["", OTHER, "/autogroup-7 nice 5\n"]);
        assert_eq!(outcome.notices, ["autogroup 7: its nice value stays 5: another program has set it"]);
        assert_eq!((written, outcome.autogroups, outcome.problems.len()), (vec![false; 3], 0, 0));
    }

    /// A process of another user refuses. One that ends meanwhile is no problem.
    #[test]
    fn another_process_is_tried_and_a_refusal_by_all_is_reported() {
        let refuse = |pid: &'static str, errno| {
            tamper(move |access| match access.is(Kind::Open, &format!("{pid}/autogroup")) {
                true => Answer::Refuse(errno),
                false => Answer::GoOn,
            })
        };
        for (errno, problems) in [(libc::EACCES, 1), (libc::ESRCH, 0)] {
            let hook = refuse("2", errno);
            let (outcome, _) = undone(["", OURS, OTHER]);
            assert_eq!((outcome.autogroups, outcome.problems.len()), (0, problems), "{outcome:?}");
            let (outcome, written) = undone([OURS, OURS, OURS]);
            drop(hook);
            assert_eq!((outcome.autogroups, outcome.problems.len()), (1, 0), "{outcome:?}");
            assert_eq!(written.iter().filter(|written| **written).count(), 1);
        }
        let hook = refuse("2", libc::EACCES);
        let (outcome, _) = undone(["", OURS, OTHER]);
        drop(hook);
        let words = "2/autogroup: cannot set the nice value 3: Permission denied (os error 13); set it by hand, as root: echo 3";
        assert!(outcome.problems[0].contains(words), "{outcome:?}");
    }
}
