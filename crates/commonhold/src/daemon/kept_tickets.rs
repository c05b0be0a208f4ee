//! Changed tickets that outlive a daemon: which of those that were kept are still meant, under the contract of now.
//!
//! A change is over when the contract gives that unit another number of tickets of that resource than when it was made,
//! or has no such unit. A sub-unit that `each` makes may not be there yet: its change waits until its user is seen.

use std::path::{Path, PathBuf};

use commonhold_contract::{Contract, UnitId};
use commonhold_live::LiveError;
use commonhold_live::tickets::{self, Kept};
use commonhold_policy::rights::Change;
use commonhold_steward::Changed;

/// What is kept in a daemon's directory.
pub(super) struct Keeper {
    directory: PathBuf,
    /// What the file holds.
    kept: Vec<Kept>,
    /// Whether the file may hold something else, since a write failed.
    in_doubt: bool,
    /// Whether there is a file that could not be read.
    unread: bool,
    /// What of that is about units that are not there yet.
    waiting: Vec<Kept>,
    /// How many units there were when these were looked for last.
    looked_among: usize,
}

/// What becomes of a change that was kept.
enum Fate {
    InForce(UnitId),
    Waits,
    /// Why.
    Over(String),
}

impl Keeper {
    /// What an earlier daemon kept, and the problem where that cannot be told.
    pub(super) fn open(directory: &Path) -> (Keeper, Option<String>) {
        let (kept, problem) = match tickets::read(directory) {
            Ok(kept) => (kept, None),
            Err(e) => {
                let aside = tickets::aside(directory);
                let stays = format!(
                    "it stays as it is; once tickets change, its name is {}",
                    aside.file_name().unwrap_or(aside.as_os_str()).display()
                );
                (Vec::new(), Some(format!("{e}; the contract's own tickets are in force; {stays}")))
            }
        };
        let keeper = Keeper {
            directory: directory.to_owned(),
            kept,
            in_doubt: false,
            unread: problem.is_some(),
            waiting: Vec::new(),
            looked_among: 0,
        };
        (keeper, problem)
    }

    /// The changes that are to be made again under a contract, and what is to be said of the others.
    pub(super) fn restore(&mut self, contract: &Contract) -> (Vec<Change>, Vec<String>) {
        let (mut changes, mut notes) = (Vec::new(), Vec::new());
        (self.looked_among, self.waiting) = (0, Vec::new());
        for kept in &self.kept {
            match fate(contract, kept) {
                Fate::InForce(unit) => changes.push(set(unit, kept)),
                Fate::Waits => self.waiting.push(kept.clone()),
                Fate::Over(note) => notes.push(note),
            }
        }
        (changes, notes)
    }

    /// The changes that are about units that have come since. It costs nothing at a turn at which none came.
    pub(super) fn of_newcomers(&mut self, contract: &Contract) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.waiting.is_empty() || self.looked_among == contract.units.len() {
            return changes;
        }
        self.looked_among = contract.units.len();
        self.waiting.retain(|kept| match fate(contract, kept) {
            Fate::InForce(unit) => {
                changes.push(set(unit, kept));
                false
            }
            Fate::Waits => true,
            Fate::Over(_) => false,
        });
        changes
    }

    /// The changes that wait for units that are not there yet.
    pub(super) fn waiting(&self) -> &[Kept] {
        &self.waiting
    }

    /// Keeps what is changed now, and what waits, before it is in force. After an error the file may be either, and this is
    /// to be called again.
    pub(super) fn keep(&mut self, contract: &Contract, changed: &[Changed]) -> Result<(), LiveError> {
        let of = |it: &Changed| Kept {
            unit: contract.unit(it.unit).path.clone(),
            resource: it.resource,
            contract: it.contract,
            tickets: it.tickets,
        };
        let mut all: Vec<Kept> = changed.iter().map(of).chain(self.waiting.iter().cloned()).collect();
        all.sort();
        if all == self.kept && !self.in_doubt {
            return Ok(());
        }
        if self.unread {
            tickets::set_aside(&self.directory)?;
            self.unread = false;
        }
        self.in_doubt = true;
        tickets::write(&self.directory, &all)?;
        (self.kept, self.in_doubt) = (all, false);
        Ok(())
    }
}

fn set(unit: UnitId, kept: &Kept) -> Change {
    Change::Set { unit, resource: kept.resource, tickets: kept.tickets }
}

fn fate(contract: &Contract, kept: &Kept) -> Fate {
    let Kept { unit, resource, contract: before, tickets } = kept;
    let over = |why: String| {
        Fate::Over(format!("tickets {unit}: no longer {tickets} {resource} tickets, since {why}"))
    };
    let Some(id) = contract.find(unit).filter(|id| !id.is_common()) else {
        let encloser = unit.rsplit_once('/').and_then(|(encloser, _)| contract.find(encloser));
        return match encloser.is_some_and(|encloser| contract.unit(encloser).each.is_some()) {
            true => Fate::Waits,
            false => over("the contract has no such unit".to_owned()),
        };
    };
    match contract.unit(id).tickets[*resource] {
        now if now == *before => Fate::InForce(id),
        now => over(format!("the contract gives it {now} instead of {before}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use commonhold_contract::{Each, Resource};
    use commonhold_live::host::{Answer, Kind, tamper};

    fn kept(unit: &str, contract: u64) -> Kept {
        Kept { unit: unit.to_owned(), resource: Resource::Cpu, contract, tickets: 7 }
    }

    #[test]
    fn a_change_is_over_when_the_file_says_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let mut contract = Contract::default();
        let (a, b) = (contract.add(None, "a"), contract.add(None, "b"));
        contract.units[b.index()].tickets.cpu = 200;
        let all = [kept("a", 100), kept("b", 100), kept("gone", 100), kept("shared", 100)];
        tickets::write(dir.path(), &all).unwrap();
        let (mut keeper, problem) = Keeper::open(dir.path());
        assert_eq!(problem, None);
        let (changes, notes) = keeper.restore(&contract);
        assert_eq!(changes, [Change::Set { unit: a, resource: Resource::Cpu, tickets: 7 }]);
        let expected = [
            "tickets b: no longer 7 cpu tickets, since the contract gives it 200 instead of 100",
            "tickets gone: no longer 7 cpu tickets, since the contract has no such unit",
            "tickets shared: no longer 7 cpu tickets, since the contract has no such unit",
        ];
        assert_eq!(notes, expected);
        let changed = Changed { unit: a, resource: Resource::Cpu, contract: 100, tickets: 7 };
        keeper.keep(&contract, &[changed]).unwrap();
        assert_eq!(tickets::read(dir.path()).unwrap(), all[..1]);
    }

    /// A write that failed is made again, even where what is in force is what was kept before it.
    #[test]
    fn a_file_in_doubt_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut contract = Contract::default();
        let a = contract.add(None, "a");
        let changed = |tickets| Changed { unit: a, resource: Resource::Cpu, contract: 100, tickets };
        let (mut keeper, _) = Keeper::open(dir.path());
        keeper.keep(&contract, &[changed(7)]).unwrap();
        // The new name is there, and the disk does not say that it has it.
        let folder = dir.path().to_owned();
        let hook = tamper(move |access| match access.kind == Kind::Sync && access.path == folder {
            true => Answer::Refuse(libc::EIO),
            false => Answer::GoOn,
        });
        keeper.keep(&contract, &[changed(8)]).unwrap_err();
        drop(hook);
        keeper.keep(&contract, &[changed(7)]).unwrap();
        assert_eq!(tickets::read(dir.path()).unwrap(), [kept("a", 100)]);
    }

    /// Nothing is lost: the file that could not be read has another name once there is one to be written.
    #[test]
    fn a_file_that_cannot_be_read_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(tickets::FILE_NAME);
        std::fs::write(&file, "nonsense").unwrap();
        let mut contract = Contract::default();
        let a = contract.add(None, "a");
        let (mut keeper, problem) = Keeper::open(dir.path());
        let problem = problem.unwrap();
        for words in
            ["line 1, `nonsense`", "mend it", "it stays as it is", "its name is tickets.json.unread-1"]
        {
            assert!(problem.contains(words), "{problem}");
        }
        keeper.restore(&contract);
        keeper.keep(&contract, &[]).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "nonsense");
        let changed = Changed { unit: a, resource: Resource::Cpu, contract: 100, tickets: 7 };
        // Nothing takes its place while it cannot have another name.
        let hook = tamper(|access| match access.is(Kind::Rename, tickets::FILE_NAME) {
            true => Answer::Refuse(libc::EROFS),
            false => Answer::GoOn,
        });
        let error = keeper.keep(&contract, &[changed]).unwrap_err().to_string();
        assert!(error.contains("cannot set aside"), "{error}");
        drop(hook);
        keeper.keep(&contract, &[changed]).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("tickets.json.unread-1")).unwrap(), "nonsense");
        assert_eq!(tickets::read(dir.path()).unwrap(), [kept("a", 100)]);
    }

    /// What is about a user who has not come yet is kept until then, and made then.
    #[test]
    fn a_users_sub_unit_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut contract = Contract::default();
        let students = contract.add(None, "students");
        contract.units[students.index()].each = Some(Each::User);
        tickets::write(dir.path(), &[kept("students/ana", 100)]).unwrap();
        let (mut keeper, _) = Keeper::open(dir.path());
        assert_eq!(keeper.restore(&contract), (Vec::new(), Vec::new()));
        keeper.keep(&contract, &[]).unwrap();
        assert_eq!(tickets::read(dir.path()).unwrap(), [kept("students/ana", 100)]);
        assert_eq!(keeper.of_newcomers(&contract), []);
        let ana = contract.add(Some(students), "ana");
        let change = Change::Set { unit: ana, resource: Resource::Cpu, tickets: 7 };
        assert_eq!(keeper.of_newcomers(&contract), [change]);
        assert_eq!(keeper.of_newcomers(&contract), []);
    }
}
