//! Raises the limit on open files (`RLIMIT_NOFILE`), since a daemon keeps several files open for every unit
//! that has a control group.
//!
//! Shells and service managers set a soft limit of 1,024, since programs that use select(2) fail with more.
//! The hard limit is higher. The daemon does not use select(2), so it raises its soft limit to the hard
//! limit. If a contract needs more files than that, the daemon raises the hard limit, too, which only root
//! may do. No program of a user inherits the raised limit: the daemon starts no process but the caretaker,
//! and programs under `exec` are started by the client.

use commonhold_live::MORE_FILES;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::clients::CLIENTS_MAX;
use crate::exit::{Exit, Failure};

/// The number of open files that belong to no unit: clients, the scheduler's maps, the journal, and files
/// that threads read.
const OTHER_FILES: u64 = 192 + CLIENTS_MAX as u64;

/// The fewest units to provide for. The contract may have fewer now, but sub-units for users are added later.
const UNITS_MIN: usize = 256;

/// Raises the limit on open files so that it suffices for `units` units with `files_each` open files each.
/// Fails if the limit cannot be raised that far, since a daemon that runs out of descriptors later would
/// leave some units unheld.
pub(super) fn make_room(units: usize, files_each: usize) -> Result<(), Failure> {
    let needed = files(units, files_each);
    let limit = getrlimit(Resource::Nofile);
    let new_limit = candidates(limit, files(units.max(UNITS_MIN), files_each), needed)
        .into_iter()
        .find(|candidate| *candidate == limit || setrlimit(Resource::Nofile, *candidate).is_ok());
    match new_limit.unwrap_or(limit).current {
        Some(allowed) if allowed < needed => Err(too_few(units, needed, allowed)),
        _ => Ok(()),
    }
}

/// The number of open files of a daemon with `units` units and `each` files per unit.
fn files(units: usize, each: usize) -> u64 {
    u64::try_from(units.saturating_mul(each)).unwrap_or(u64::MAX).saturating_add(OTHER_FILES)
}

/// The limits to try, best first: one that allows `desired` files, one that allows `needed` files, and one
/// that raises only the soft limit, to the present hard limit, for which no privilege is needed. None of them
/// lowers the hard limit.
fn candidates(limit: Rlimit, desired: u64, needed: u64) -> [Rlimit; 3] {
    // In an `Rlimit`, `None` means that there is no limit.
    let at_least = |files: u64| limit.maximum.map(|hard| hard.max(files));
    let soft_and_hard = |files: Option<u64>| Rlimit { current: files, maximum: files };
    [soft_and_hard(at_least(desired)), soft_and_hard(at_least(needed)), soft_and_hard(limit.maximum)]
}

fn too_few(units: usize, needed: u64, allowed: u64) -> Failure {
    let what = format!(
        "{units} units, the built-in ones included, need {needed} open files, and this process may have {allowed}{MORE_FILES}"
    );
    Failure::new(Exit::Unavailable, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(soft: u64, hard: u64) -> Rlimit {
        Rlimit { current: Some(soft), maximum: Some(hard) }
    }

    #[test]
    fn the_hard_limit_is_used_and_raised_no_further_than_needed() {
        let same = |files| [limit(files, files); 3];
        assert_eq!(
            candidates(limit(1_024, 524_288), 6_448, 6_448),
            same(524_288),
            "the hard limit is enough"
        );
        let raised = [limit(9_000, 9_000), limit(6_448, 6_448), limit(4_096, 4_096)];
        assert_eq!(candidates(limit(1_024, 4_096), 9_000, 6_448), raised);
        let none = Rlimit { current: None, maximum: None };
        assert_eq!(candidates(Rlimit { current: Some(1_024), ..none }, 9_000, 6_448), [none; 3]);
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_limit() {
        make_room(1, 6).expect("every machine allows 454 open files");
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
    }

    #[test]
    fn an_impossible_limit_is_refused_with_the_number_and_the_remedy() {
        // More than fs.nr_open can allow: root is refused, too.
        let refused = make_room(usize::MAX, 6).expect_err("no machine allows it").to_string();
        assert!(
            refused.contains("included, need 18446744073709551615 open files, and this process may have")
        );
        assert!(refused.contains("`ulimit -n`") && refused.contains("LimitNOFILE="), "{refused}");
        assert_eq!((files(1_000, 6), files(usize::MAX, 6)), (6_448, u64::MAX));
    }
}
