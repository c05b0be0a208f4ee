//! Sub-units for users: what `each = "user"` makes of a unit's members as they are seen.

use crate::{Contract, Member, MemberKind, Principal, UnitId};

impl Contract {
    /// Gives every user seen in a unit with `each` (unit, user, user's name) a sub-unit; whether there were new ones.
    pub fn add_users(&mut self, users: &[(UnitId, u32, String)]) -> bool {
        let before = self.units.len();
        for (unit, uid, name) in users {
            add_user(self, *unit, *uid, name);
        }
        self.units.len() > before
    }

    /// Gives a contract that replaces `old` the sub-units of users seen so far, where it still has them.
    pub fn carry_users_over(&mut self, old: &Contract) {
        for unit in old.held().map(|id| old.unit(id)) {
            if let (Some(parent), [Member { kind: MemberKind::User(Principal::Id(uid)), .. }]) =
                (unit.parent, unit.members.as_slice())
                && old.unit(parent).each.is_some()
                && let Some(parent) = self.find(&old.unit(parent).path)
                && self.unit(parent).each.is_some()
            {
                add_user(self, parent, *uid, &unit.name);
            }
        }
    }
}

/// A sub-unit for one user, in equal parts with the others.
fn add_user(contract: &mut Contract, unit: UnitId, uid: u32, name: &str) {
    // A user's name may hold what a unit's name may not: the number stands in.
    let plain =
        name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && !name.starts_with(['-', '.']);
    let name = if plain && name != "own" { name.to_owned() } else { uid.to_string() };
    if contract.find(&format!("{}/{name}", contract.unit(unit).path)).is_none() {
        let id = contract.add(Some(unit), &name);
        // Users trade with each other where their unit trades with its siblings, and are ordered as users are.
        contract.units[id.index()].negotiate = contract.unit(unit).negotiate;
        contract.units[id.index()].discipline = contract.unit(unit).discipline;
        contract.units[id.index()].job = contract.unit(unit).job;
        let member = Member { kind: MemberKind::User(Principal::Id(uid)), span: 0..0 };
        contract.units[id.index()].members.push(member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_gets_one_sub_unit() {
        let mut contract = Contract::default();
        let students = contract.add(None, "students");
        for (uid, name) in [(1000, "ana"), (1001, "bo"), (1000, "ana"), (1002, "a/b"), (1003, "own")] {
            add_user(&mut contract, students, uid, name);
        }
        let paths: Vec<&str> = contract.held().map(|id| contract.unit(id).path.as_str()).collect();
        assert_eq!(paths, ["students", "students/ana", "students/bo", "students/1002", "students/1003"]);
    }
}
