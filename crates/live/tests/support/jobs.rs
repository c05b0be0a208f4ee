//! The daemon's loop over jobs of one unit, under the `user` backend.

use std::path::PathBuf;
use std::time::Duration;

use commonhold_contract::{Contract, JobKind, Member, MemberKind};
use commonhold_live::apply::user::UserBackend;
use commonhold_live::host::{affinity, clock};
use commonhold_live::observe::roster::Roster;
use commonhold_live::undo::journal::Journal;
use commonhold_live::undo::{Undone, undo};
use commonhold_machine::Machine;
use commonhold_policy::{Plan, Snapshot};
use commonhold_steward::Steward;

use super::Job;

pub(crate) struct Loop {
    pub(crate) backend: UserBackend,
    pub(crate) steward: Steward,
    journal: PathBuf,
    _directory: tempfile::TempDir,
}

impl Loop {
    /// A unit with these processes as jobs of this kind.
    pub(crate) fn over(jobs: &[&Job], kind: JobKind, mut contract: Contract, machine: Machine) -> Loop {
        let unit = contract.add(None, "unit");
        contract.units[unit.index()].job = Some(kind);
        for job in jobs {
            let member = Member { kind: MemberKind::Pid(job.pid()), span: 0..0 };
            contract.units[unit.index()].members.push(member);
        }
        let directory = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::create(directory.path()).unwrap();
        let path = journal.path().to_owned();
        let roster = Roster::new("/proc".as_ref(), &[]).unwrap();
        let backend = UserBackend::new(contract.clone(), affinity::get(0).unwrap(), roster, journal);
        Loop { backend, steward: Steward::new(contract, machine), journal: path, _directory: directory }
    }

    /// One turn of the loop. Returns also the time to wait before the next turn.
    pub(crate) fn step(&mut self) -> (Snapshot, Plan, Duration) {
        let turn = self.steward.turn(&mut self.backend, 0).unwrap();
        let wrong: Vec<String> = turn.wrong.iter().map(ToString::to_string).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        let wait = turn.next(clock::now()).saturating_sub(clock::now()).min(50_000_000);
        (turn.snapshot, turn.plan, Duration::from_nanos(wait))
    }

    /// Ends the daemon as a crash would, and undoes the journal.
    pub(crate) fn undo(self) -> Undone {
        drop(self.backend);
        undo(&Journal::read(&self.journal).unwrap(), "/proc".as_ref())
    }
}
