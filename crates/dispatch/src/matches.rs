//! The contract's rules for processes that execute a program, in the form of the scheduler's table: see
//! matches.h.

use std::collections::BTreeMap;

use crate::tables::exec::{GLOB_MAX, MATCHES_MAX, Test};
use crate::tables::{NOBODY, UNITS_MAX};

pub use crate::tables::exec::Match;

/// Entries of the table: one per unit, which refers to the start of the unit's list; then two halves for the
/// lists.
pub(crate) const ENTRIES: usize = UNITS_MAX as usize + 2 * MATCHES_MAX;

/// By unit: the tests that choose among its direct sub-units, in order of precedence. The list of
/// [`COMMON`](crate::COMMON) chooses among the outermost units.
pub type Lists = BTreeMap<u32, Vec<Match>>;

impl Match {
    const fn new(test: Test, value: u32, unit: u32) -> Match {
        Match { test: test as u32, value, unit, last: 0, glob: [0; GLOB_MAX] }
    }

    /// Passed by a process if the pattern matches the name of the executable, or of the executed path. A
    /// pattern of 64 bytes or more cannot be tested: a process that reaches that entry stays in the unit of
    /// its control group.
    pub fn command(glob: &str, unit: u32) -> Match {
        if glob.len() >= GLOB_MAX {
            return Match::new(Test::Unknown, 0, NOBODY);
        }
        let mut entry = Match::new(Test::Command, 0, unit);
        entry.glob[..glob.len()].copy_from_slice(glob.as_bytes());
        entry
    }

    /// As [`Match::command`], but only for processes of a user.
    pub fn command_of_user(glob: &str, uid: u32, unit: u32) -> Match {
        Match::command(glob, unit).restrict(Test::CommandOfUser, uid)
    }

    /// As [`Match::command`], but only for processes in a group.
    pub fn command_of_group(glob: &str, gid: u32, unit: u32) -> Match {
        Match::command(glob, unit).restrict(Test::CommandOfGroup, gid)
    }

    /// Replaces a `Command` test by a stricter one. An entry whose pattern is too long remains untestable.
    fn restrict(self, test: Test, value: u32) -> Match {
        if self.test == Test::Command as u32 { Match { test: test as u32, value, ..self } } else { self }
    }

    /// Passed by a process if its parent's program put the parent into one of the list's units, or into a
    /// sub-unit of one. The process gets that unit of the list.
    pub fn inherited() -> Match {
        Match::new(Test::Inherited, 0, NOBODY)
    }

    /// Passed by processes of an effective user.
    pub fn user(uid: u32, unit: u32) -> Match {
        Match::new(Test::User, uid, unit)
    }

    /// Passed by processes of effective users with numbers in a range.
    pub fn users(first: u32, last: u32, unit: u32) -> Match {
        Match { last, ..Match::new(Test::Users, first, unit) }
    }

    /// Passed by processes in a group.
    pub fn group(gid: u32, unit: u32) -> Match {
        Match::new(Test::Group, gid, unit)
    }

    /// Passed by every process.
    pub fn otherwise(unit: u32) -> Match {
        Match::new(Test::Otherwise, 0, unit)
    }
}

/// The writes that put new lists in force, in this order; each is an index and an entry. The writes first
/// fill the unused half of the table. Then they redirect the start of each unit's list to that half. If the
/// lists do not fit, all are left out: then every process stays in the unit of its control group.
pub(crate) fn entries(lists: &Lists, second_half: bool) -> Vec<(usize, Match)> {
    let length: usize = lists.values().map(|list| list.len() + 1).sum();
    let no_lists = Lists::new();
    let lists = if length <= MATCHES_MAX { lists } else { &no_lists };
    let mut index = UNITS_MAX as usize + if second_half { MATCHES_MAX } else { 0 };
    let mut starts = vec![Match::new(Test::End, 0, NOBODY); UNITS_MAX as usize];
    let mut entries = Vec::with_capacity(length + starts.len());
    for (unit, list) in lists.iter().filter(|(unit, _)| **unit < UNITS_MAX) {
        // The conversion cannot fail: the table has 9,216 entries.
        starts[*unit as usize] = Match::new(Test::List, u32::try_from(index).unwrap_or(0), NOBODY);
        for entry in list.iter().copied().chain([Match::new(Test::End, 0, NOBODY)]) {
            entries.push((index, entry));
            index += 1;
        }
    }
    entries.extend(starts.into_iter().enumerate());
    entries
}

/// The scheduler's decision at exec, compiled natively for tests.
pub mod decision {
    use super::{ENTRIES, Lists, Match, NOBODY, Test, entries};
    use crate::tables::By;
    use crate::tables::exec::{FILE_NAME, Facts, Place, TEXTS, Texts};
    use crate::tables::native::Case;

    /// The process that executes a program.
    #[derive(Debug, Clone, Default)]
    pub struct Executes<'a> {
        /// The unit of its control group, or [`COMMON`](crate::COMMON).
        pub base: u32,
        /// Its effective user.
        pub uid: u32,
        /// All of its groups.
        pub gids: &'a [u32],
        /// The name of the executable, of at most 63 bytes.
        pub file: &'a str,
        /// The path that was executed; empty if it is not known. A path of more than 190 bytes is treated as
        /// unknown.
        pub path: &'a str,
        /// The parent's unit, if the parent's program determined that unit.
        pub heir: Option<u32>,
    }

    unsafe extern "C" {
        fn dispatch_place(case: *const Case, facts: *const Facts) -> Place;
    }

    /// The unit of a process, and whether its children inherit that unit. `parents` has the parent of each
    /// unit, or [`NOBODY`].
    ///
    /// # Panics
    /// If the executable's name has more than 63 bytes.
    pub fn decide(lists: &Lists, parents: &[u32], who: &Executes<'_>) -> (u32, bool) {
        let mut table = vec![Match::new(Test::End, 0, NOBODY); ENTRIES];
        for (index, entry) in entries(lists, true) {
            table[index] = entry;
        }
        let mut texts = [0; TEXTS];
        assert!(who.file.len() < FILE_NAME, "a file's name has 63 bytes at most here: {}", who.file);
        texts[..who.file.len()].copy_from_slice(who.file.as_bytes());
        let mut program = TEXTS - 1;
        if FILE_NAME + who.path.len() < TEXTS - 1 {
            texts[FILE_NAME..FILE_NAME + who.path.len()].copy_from_slice(who.path.as_bytes());
            program = FILE_NAME + who.path.rfind('/').map_or(0, |slash| slash + 1);
        }
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let case = Case {
            matches: table.as_ptr(),
            parents: parents.as_ptr(),
            groups: who.gids.as_ptr(),
            matches_count: number(table.len()),
            units: number(parents.len()),
            groups_count: number(who.gids.len()),
            base: who.base,
        };
        let facts = Facts {
            user: who.uid,
            heir: who.heir.unwrap_or(NOBODY),
            program: number(program),
            unused: 0,
            texts: Texts { bytes: texts },
        };
        // SAFETY: `case` and `facts` outlive the call, their pointers are to as many elements as the counts
        // beside them, and C keeps no pointer.
        let place = unsafe { dispatch_place(&raw const case, &raw const facts) };
        (place.unit, place.by == By::Command as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::decision::{Executes, decide};
    use super::*;
    use crate::COMMON;

    #[test]
    fn patterns_match_like_shell_globs() {
        for (glob, text, hit) in [
            ("make", "make", true),
            ("make", "cmake", false),
            ("make", "makes", false),
            ("*make", "cmake", true),
            ("sim*late", "simulate", true),
            ("sim*late", "simulated", false),
            ("?c", "cc", true),
            ("?c", "c", false),
            ("*", "", false),
            ("a*b*c", "aXbYbZc", true),
            ("**", "x", true),
            ("?x", "\u{e9}x", true),
            ("??x", "\u{e9}x", false),
            ("*??", "\u{e9}", false),
            ("*\u{e9}", "a\u{e9}\u{e9}", true),
        ] {
            let lists = Lists::from([(COMMON, vec![Match::command(glob, 2)])]);
            let parents = [NOBODY; 3];
            for who in [
                Executes { base: COMMON, file: text, ..Executes::default() },
                Executes { base: COMMON, path: &format!("/usr/a/{text}"), ..Executes::default() },
            ] {
                assert_eq!(decide(&lists, &parents, &who).0 == 2, hit, "{glob} against {text}");
            }
        }
    }

    #[test]
    fn an_untestable_entry_leaves_the_process_in_its_control_groups_unit() {
        let long = "x".repeat(GLOB_MAX);
        let list = |matches: Vec<Match>| Lists::from([(COMMON, matches)]);
        let who = Executes { base: COMMON, uid: 7, file: "make", ..Executes::default() };
        let lists = list(vec![Match::command("make", 2), Match::command(&long, 2), Match::user(7, 3)]);
        assert_eq!(decide(&lists, &[NOBODY; 4], &who), (2, true));
        let of = |glob: &str, uid, gid| {
            let lists =
                list(vec![Match::command_of_user(glob, uid, 2), Match::command_of_group(glob, gid, 3)]);
            decide(&lists, &[NOBODY; 4], &Executes { gids: &[5], ..who.clone() }).0
        };
        assert_eq!([of("make", 7, 5), of("make", 8, 5), of("make", 8, 6)], [2, 3, COMMON]);
        assert_eq!([of("cc", 7, 5), of(&long, 7, 5)], [COMMON; 2]);
        let lists = list(vec![Match::command(&long, 2), Match::user(7, 3)]);
        assert_eq!(decide(&lists, &[NOBODY; 4], &who), (COMMON, false));
        // More than there is room for.
        let lists = list(vec![Match::user(7, 3); MATCHES_MAX]);
        assert_eq!(decide(&lists, &[NOBODY; 4], &who), (COMMON, false));
        let lists = list(vec![Match::user(7, 3); MATCHES_MAX - 1]);
        assert_eq!(decide(&lists, &[NOBODY; 4], &who), (3, false));
    }
}
