//! The contract's membership rules in the scheduler's format. When a process executes a program, the
//! scheduler applies these rules, and puts the process into its unit before the program's first instruction.
//! So even a process that ends before the daemon could see it runs in its unit.
//!
//! The rules are the policy's ([`selectors`]), in the same order. The scheduler matches the user, the groups,
//! the program's names, and whether a `command:` rule put the parent into a unit. The scheduler also knows
//! the process's control group: a process that was moved into a unit's cgroup stays in that unit or a
//! sub-unit.
//!
//! Limits: the scheduler cannot decide some cases. The daemon decides them in its next iteration:
//! - `pid:` and `cgroup:` rules;
//! - a change of user or groups without an exec;
//! - a process that executes a program which a rule assigns to another unit, so that the process leaves the
//!   unit to which it was moved;
//! - the first process of a user who has no sub-unit yet, under `each = "user"`.
//!
//! Property (tested at random): in all other cases the decision equals
//! [`place`](commonhold_policy::membership::place)'s.

use std::collections::BTreeMap;

use commonhold_contract::{Contract, UnitId};
use commonhold_dispatch::{COMMON, Lists, Match};
use commonhold_policy::membership::{Names, Selector, Test, selectors};

/// For each unit, the tests that choose one of its direct sub-units for a process. The key `None` has the
/// tests that choose one of the outermost units.
pub(super) type Levels = BTreeMap<Option<UnitId>, Vec<Selector>>;

/// A contract's tests.
pub(super) fn levels(contract: &Contract, names: &impl Names) -> Levels {
    let levels = contract.held().map(Some).chain([None]);
    levels
        .map(|level| (level, selectors(contract, names, level)))
        .filter(|(_, tests)| !tests.is_empty())
        .collect()
}

/// Tests in the scheduler's format, with slots instead of unit numbers. Units without a slot are left out.
pub(super) fn in_slots(levels: Levels, slot: impl Fn(UnitId) -> Option<u32>) -> Lists {
    let list = |(level, tests): (Option<UnitId>, Vec<Selector>)| {
        let matches = tests.into_iter().filter_map(|test| to_match(&test, &slot)).collect();
        Some((level.map_or(Some(COMMON), &slot)?, matches))
    };
    levels.into_iter().filter_map(list).collect()
}

fn to_match(Selector { test, unit }: &Selector, slot: impl Fn(UnitId) -> Option<u32>) -> Option<Match> {
    let unit = unit.map(slot);
    Some(match test {
        Test::Inherited => Match::inherited(),
        Test::Command(glob) => Match::command(glob, unit??),
        Test::CommandOfUser(glob, uid) => Match::command_of_user(glob, *uid, unit??),
        Test::CommandOfGroup(glob, gid) => Match::command_of_group(glob, *gid, unit??),
        Test::User(uid) => Match::user(*uid, unit??),
        Test::Users(first, last) => Match::users(*first, *last, unit??),
        Test::Group(gid) => Match::group(*gid, unit??),
        // A process in no unit needs no rule to stay there.
        Test::Otherwise => Match::otherwise(unit?.filter(|slot| *slot != COMMON)?),
    })
}

#[cfg(test)]
mod tests {
    use commonhold_contract::{Member, MemberKind, Principal, Whose};
    use commonhold_dispatch::NOBODY;
    use commonhold_dispatch::decision::{Executes, decide};
    use commonhold_policy::membership::{Placement, ProcessFacts, Rule, is_within, place};
    use proptest::prelude::*;

    use super::*;

    struct NoNames;
    impl Names for NoNames {
        fn uid(&self, _: &str) -> Option<u32> {
            None
        }
        fn gid(&self, _: &str) -> Option<u32> {
            None
        }
    }

    /// Slots for the test: units in the contract's order, and the built-in units' own.
    fn slot_of(unit: UnitId) -> u32 {
        match unit {
            UnitId::KERNEL => 0,
            UnitId::SHARED => COMMON,
            UnitId(number) => number + 100,
        }
    }

    fn members() -> impl Strategy<Value = Vec<MemberKind>> {
        let member = prop_oneof![
            (0..4u32).prop_map(|uid| MemberKind::User(Principal::Id(uid))),
            (0..4u32).prop_map(|gid| MemberKind::Group(Principal::Id(gid))),
            (0..4u32, 0..3u32).prop_map(|(first, more)| MemberKind::Users(first, first + more)),
            "[ab*?]{1,4}".prop_map(MemberKind::Command),
            ("[ab*?]{1,4}", 0..4u32)
                .prop_map(|(glob, id)| MemberKind::CommandOf(glob, Whose::User(Principal::Id(id)))),
            ("[ab*?]{1,4}", 0..4u32)
                .prop_map(|(glob, id)| MemberKind::CommandOf(glob, Whose::Group(Principal::Id(id)))),
            // An unknown user.
            Just(MemberKind::User(Principal::Name("x".to_owned()))),
        ];
        proptest::collection::vec(member, 0..4)
    }

    prop_compose! {
        /// A tree of units with rules; any of them, or `shared`, is the default unit.
        fn contracts()(
            units in proptest::collection::vec((any::<prop::sample::Index>(), members()), 1..9),
            default in any::<prop::sample::Index>(),
        ) -> Contract {
            let mut contract = Contract::default();
            let mut ids: Vec<Option<UnitId>> = vec![None];
            for (number, (parent, members)) in units.into_iter().enumerate() {
                let id = contract.add(ids[parent.index(ids.len())], &format!("u{number}"));
                let members = members.into_iter().map(|kind| Member { kind, span: 0..0 });
                contract.units[id.index()].members.extend(members);
                ids.push(Some(id));
            }
            contract.default_unit = ids[default.index(ids.len())].unwrap_or(UnitId::SHARED);
            contract
        }
    }

    prop_compose! {
        fn processes()(
            uid in 0..4u32,
            gids in proptest::collection::vec(0..4u32, 0..3),
            comm in "[ab]{0,4}",
            program in "[ab]{0,4}",
        ) -> ProcessFacts {
            ProcessFacts { pid: 10, uid, gids, comm, program, ..ProcessFacts::default() }
        }
    }

    proptest! {
        /// A parent and a child: the scheduler decides as the policy, by rules and by inheritance. If the
        /// parent was moved already, a child that belongs to a sub-unit of the parent's unit is still found
        /// there.
        #[test]
        fn the_scheduler_decides_as_the_policy_does(
            contract in contracts(), parent in processes(), child in processes(),
        ) {
            let lists = in_slots(levels(&contract, &NoNames), |unit| Some(slot_of(unit)));
            let mut around = vec![NOBODY; 100 + contract.units.len()];
            for unit in contract.held() {
                around[slot_of(unit) as usize] = contract.unit(unit).parent.map_or(NOBODY, slot_of);
            }
            let decided = |process: &ProcessFacts, base: u32, heir| {
                let ProcessFacts { uid, gids, comm, program, .. } = process;
                let path = &format!("/bin/{comm}");
                decide(&lists, &around, &Executes { base, uid: *uid, gids, file: program, path, heir })
            };
            let expected = |placed: Placement| (slot_of(placed.unit), placed.rule == Rule::Command);
            let first = place(&contract, &NoNames, &parent);
            prop_assert_eq!(decided(&parent, COMMON, None), expected(first));
            let child = ProcessFacts { parent: Some(first), ..child };
            let second = place(&contract, &NoNames, &child);
            let heir = (first.rule == Rule::Command).then_some(slot_of(first.unit));
            prop_assert_eq!(decided(&child, COMMON, heir), expected(second));
            // A default unit within another may take processes that left that other unit.
            let outermost = contract.unit(contract.default_unit).parent.is_none();
            if outermost && is_within(&contract, second.unit, first.unit) {
                prop_assert_eq!(decided(&child, slot_of(first.unit), heir).0, slot_of(second.unit));
            }
        }
    }
}
