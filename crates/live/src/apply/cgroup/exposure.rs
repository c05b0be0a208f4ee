//! Which processes the kernel kills first when it is out of memory: by order, those of units that are *exposed*.
//!
//! Problem: the kernel kills the largest process.
//!
//! Algorithm: at each look at memory, every member of an exposed unit gets a raised [`oom_score`](crate::host::oom_score). A
//! process that a member starts is born with that value, and is recognised by it and by its parent. A member gets its
//! own value back when its unit is no longer exposed, or when it changes to a unit that is not. For some looks more, a
//! unit that was exposed is searched for processes that were born meanwhile.
//!
//! Properties:
//! - No process's value is lowered below its own.
//! - Nothing is written before the journal has it.
//! - A value that the owner of a process chose meanwhile becomes its own.
//! - A reused number is never touched.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::plan::MemoryPlan;

use crate::LiveError;
use crate::host::oom_score::{OomScore, raised};
use crate::observe::process::ProcessKey;
use crate::observe::roster::{Member, Roster};
use crate::undo::journal::{Entry, Journal, record};

/// For so many looks a unit is looked at after it was exposed.
const LOOKS_AFTER: u8 = 3;

/// A process under an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    /// What its owner chose.
    original: i16,
    given: i16,
}

/// The orders, and the processes under them.
#[derive(Debug, Default)]
pub(super) struct Exposure {
    exposed: BTreeSet<UnitId>,
    /// How many looks are left of those that were exposed.
    after: BTreeMap<UnitId, u8>,
    held: BTreeMap<ProcessKey, Held>,
    /// Values that the journal knows as ours.
    given: BTreeSet<i16>,
    /// Processes that the kernel does not let us touch.
    refused: BTreeSet<ProcessKey>,
    /// Processes of which was said that something went wrong.
    told: BTreeSet<ProcessKey>,
    /// What is said of units for as long as they are exposed.
    beyond: BTreeMap<UnitId, LiveError>,
}

impl Exposure {
    /// Takes note of an order.
    pub(super) fn order(&mut self, unit: UnitId, exposed: bool) {
        if exposed {
            self.exposed.insert(unit);
        } else if self.exposed.remove(&unit) {
            self.after.insert(unit, LOOKS_AFTER);
            self.beyond.remove(&unit);
        }
    }

    /// Follows another contract.
    pub(super) fn follow_contract(&mut self, contract: &Contract) {
        self.exposed.retain(|unit| contract.has(*unit));
        self.after.retain(|unit, _| contract.has(*unit));
        self.beyond.retain(|unit, _| contract.has(*unit));
    }

    /// What is wrong for as long as it lasts: units that are beyond what they may use.
    pub(super) fn standing(&self) -> impl Iterator<Item = &LiveError> {
        self.beyond.values()
    }

    /// Whether a unit was exposed lately, and is looked at still.
    pub(super) fn is_ending(&self) -> bool {
        !self.after.is_empty()
    }

    /// Whether nothing is ordered, nor remains to be taken back.
    fn is_idle(&self) -> bool {
        self.exposed.is_empty() && self.after.is_empty() && self.held.is_empty()
    }

    /// Takes note of who is beyond what it may use. The numbers are those of when it began, so that it is said once.
    pub(super) fn tell(&mut self, contract: &Contract, plan: &MemoryPlan) {
        for beyond in plan.beyond.iter().filter(|beyond| self.exposed.contains(&beyond.unit)) {
            let allowed = plan.units.get(beyond.unit.index()).map_or(0, |share| share.allowed);
            let said = || beyond_means(&contract.unit(beyond.unit).path, allowed, beyond.bytes);
            self.beyond.entry(beyond.unit).or_insert_with(said);
        }
    }

    /// Gives every process what is ordered for its unit.
    pub(super) fn follow(&mut self, roster: &mut Roster, journal: &mut Journal) -> Vec<LiveError> {
        if self.is_idle() {
            return Vec::new();
        }
        let looked_at = |unit: &UnitId| self.exposed.contains(unit) || self.after.contains_key(unit);
        // Memory of processes that stay elsewhere is not charged to the unit: they do not make it exceed.
        let members =
            roster.members().filter(|member| member.stays.is_none() && looked_at(&member.placement.unit));
        let keys: BTreeSet<ProcessKey> =
            members.map(|member| member.key).chain(self.held.keys().copied()).collect();
        let (mut changes, mut entries, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        for key in keys {
            if self.refused.contains(&key) {
                continue;
            }
            match opened(roster, key).and_then(|score| score.map(|score| score.get()).transpose()) {
                Ok(Some(now)) => {
                    let held = self.look_at(roster, key, now, &mut entries);
                    let due = |held: &Held| {
                        self.wanted(roster, key, *held) != now || self.held.get(&key) != Some(held)
                    };
                    changes.extend(held.filter(due).map(|held| (key, now, held)));
                }
                Ok(None) => drop(self.held.remove(&key)),
                Err(source) => problems.extend(self.refuse(roster, key, source)),
            }
        }
        if let Err(error) = record(journal, &entries) {
            problems.push(error);
            return problems;
        }
        for entry in entries {
            if let Entry::OomScoreGiven { value } = entry {
                self.given.insert(value);
            }
        }
        for (key, now, held) in changes {
            let wanted = self.wanted(roster, key, held);
            let set = |score: Option<OomScore>| score.map_or(Ok(()), |score| score.set(wanted));
            let done = if wanted == now { Ok(()) } else { opened(roster, key).and_then(set) };
            match done {
                Ok(()) => drop(self.held.insert(key, held)),
                // What it had of its own stays known, so that the next look can give it back.
                Err(source) => problems.extend(self.refuse(roster, key, source)),
            }
        }
        self.let_go(roster);
        problems
    }

    fn is_exposed(&self, roster: &Roster, key: ProcessKey) -> bool {
        unit_of(roster, key).is_some_and(|unit| self.exposed.contains(&unit))
    }

    /// What a process is to have now.
    fn wanted(&self, roster: &Roster, key: ProcessKey, held: Held) -> i16 {
        if self.is_exposed(roster, key) { held.given } else { held.original }
    }

    /// What a process has of its own, and what it is given while its unit is exposed; nothing where that is the same.
    fn look_at(&self, roster: &Roster, key: ProcessKey, now: i16, entries: &mut Vec<Entry>) -> Option<Held> {
        let before = self.held.get(&key);
        let original = match before {
            Some(held) if held.given == now => held.original,
            // It has its own again, or its owner chose another.
            Some(_) => now,
            None => self.born_with(roster, key, now).unwrap_or(now),
        };
        let held = Held { original, given: raised(original) };
        // Without an order, only who was born with what we gave is to be given anything.
        if held.given == original || (before.is_none() && original == now && !self.is_exposed(roster, key)) {
            return None;
        }
        if before.is_none_or(|before| before.original != original) {
            entries.push(Entry::OomScore { process: key, value: original });
        }
        let given = Entry::OomScoreGiven { value: held.given };
        if !self.given.contains(&held.given) && !entries.contains(&given) {
            entries.push(given);
        }
        Some(held)
    }

    /// What the maker of a process had of its own, if the process has what we gave that one. Where its maker is gone, that of
    /// one of its session, or else of one of its user in its unit.
    fn born_with(&self, roster: &Roster, key: ProcessKey, now: i16) -> Option<i16> {
        if !self.given.contains(&now) {
            return None;
        }
        let member = roster.member(key.pid).filter(|member| member.key == key)?;
        let maker = |other: &Member| self.held.get(&other.key).filter(|held| held.given == now);
        if let Some(parent) = roster.member(member.parent).filter(|_| member.parent > 1) {
            return maker(parent).map(|held| held.original);
        }
        let among = |related: &dyn Fn(&Member) -> bool| {
            roster.members().filter(|other| related(other)).find_map(maker).map(|held| held.original)
        };
        let (session, unit, uid) = (member.session, member.placement.unit, member.uid);
        among(&|other| other.session == session)
            .or_else(|| among(&|other| other.placement.unit == unit && other.uid == uid))
    }

    /// Forgets processes that have their own and are looked at no more.
    fn let_go(&mut self, roster: &Roster) {
        self.after.retain(|_, looks| {
            *looks -= 1;
            *looks > 0
        });
        let (exposed, after) = (&self.exposed, &self.after);
        self.told.retain(|key| unit_of(roster, *key).is_some());
        self.held.retain(|key, _| {
            unit_of(roster, *key).is_some_and(|unit| exposed.contains(&unit) || after.contains_key(&unit))
        });
    }

    fn refuse(&mut self, roster: &Roster, key: ProcessKey, source: io::Error) -> Option<LiveError> {
        let gone = source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(libc::ESRCH);
        if gone {
            self.held.remove(&key);
            return None;
        }
        // What is refused now and then is tried again by the next look.
        if matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM)) {
            self.refused.insert(key);
            self.held.remove(&key);
        }
        if !self.told.insert(key) {
            return None;
        }
        Some(LiveError::Process {
            pid: key.pid,
            name: roster.member(key.pid).map(|member| member.comm.clone()).unwrap_or_default(),
            what: "say by its oom_score_adj whether the kernel kills it first for memory".to_owned(),
            source,
            remedy: "; run the daemon as root".to_owned(),
        })
    }
}

/// The value of a process; `None` if it is gone. Opened before it is looked whose number it is: what is open stays that one's.
fn opened(roster: &mut Roster, key: ProcessKey) -> io::Result<Option<OomScore>> {
    let score = OomScore::open(key.pid);
    let stat = roster.procfs().stat(key.pid).map_err(io::Error::other)?;
    if stat.is_some_and(|stat| stat.key == key) { score.map(Some) } else { Ok(None) }
}

fn unit_of(roster: &Roster, key: ProcessKey) -> Option<UnitId> {
    roster.member(key.pid).filter(|member| member.key == key).map(|member| member.placement.unit)
}

/// What is said of a unit from which nothing can be taken while memory is short.
fn beyond_means(path: &str, allowed: u64, beyond: u64) -> LiveError {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    LiveError::Unavailable {
        what: format!(
            "unit `{path}` uses {} MiB and is allowed {}, and memory is short: {} MiB are beyond means, since no swap \
             is free to page out what belongs to no file",
            mib(allowed.saturating_add(beyond)),
            mib(allowed),
            mib(beyond)
        ),
        remedy:
            "if memory runs out, the kernel kills this unit's processes first: add swap (see `commonhold \
            doctor`), end some of them, or give the unit a smaller `limit`"
                .to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host::{self, Pinned, clock, oom_score};
    use crate::observe::roster::Scan;
    use crate::undo::undo;
    use commonhold_contract::{Member, MemberKind};
    use std::process::{Child, Command, Stdio};

    /// A shell that starts a program at each line.
    fn job() -> Child {
        Command::new("sh")
            .args(["-c", "while read line; do sleep 60 & done"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn children(pid: u32) -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Has it start one more.
    fn fork(job: &Child) -> u32 {
        let before = children(job.id()).len();
        std::io::Write::write_all(&mut job.stdin.as_ref().unwrap(), b"go\n").unwrap();
        while children(job.id()).len() == before {
            std::thread::yield_now();
        }
        *children(job.id()).last().unwrap()
    }

    fn end(jobs: Vec<Child>) {
        for mut job in jobs {
            for pid in children(job.id()).into_iter().chain([job.id()]) {
                // SAFETY: a signal to a process that this test started.
                unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
            }
            job.wait().unwrap();
        }
    }

    /// A write that fails now and then is made by the next look, when a unit is exposed as when it is no longer.
    #[test]
    fn a_score_that_was_refused_is_written_by_the_next_look() {
        let jobs = vec![job()];
        let mut contract = Contract::default();
        let unit = contract.add(None, "unit");
        contract.units[unit.index()].members =
            vec![Member { kind: MemberKind::Pid(jobs[0].id()), span: 0..0 }];
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::create(directory.path()).unwrap();
        let mut roster = Roster::new("/proc".as_ref(), &[]).unwrap();
        let of = |pid: u32| oom_score::get(pid).unwrap();
        let own = of(jobs[0].id());
        if raised(own) == own {
            // Nobody's here can be raised.
            return end(jobs);
        }
        roster.refresh(&contract, clock::now(), Scan::Full).unwrap();
        let mut exposure = Exposure::default();
        let mut look = |exposure: &mut Exposure, refuses: bool| {
            let _hook = host::tamper(move |access| {
                let refused = refuses && access.is(host::Kind::Write, "oom_score_adj");
                if refused { host::Answer::Refuse(libc::ENOMEM) } else { host::Answer::GoOn }
            });
            let problems = exposure.follow(&mut roster, &mut journal);
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        exposure.order(unit, true);
        let said = look(&mut exposure, true);
        assert!(said.len() == 1 && said[0].contains("oom_score_adj"), "{said:?}");
        assert_eq!(of(jobs[0].id()), own);
        assert!(look(&mut exposure, false).is_empty());
        assert_eq!(of(jobs[0].id()), raised(own));
        exposure.order(unit, false);
        assert!(look(&mut exposure, true).is_empty(), "it was said before");
        assert_eq!(of(jobs[0].id()), raised(own));
        assert!(look(&mut exposure, false).is_empty());
        assert_eq!(of(jobs[0].id()), own);
        end(jobs);
    }

    /// Of two units one is exposed: its processes go first, those that they start too; all have their own again when it is exposed
    /// no longer, or the daemon is killed, also those that it never saw.
    #[test]
    fn exposed_processes_go_first_and_have_their_own_again() {
        let jobs = vec![job(), job()];
        let mut contract = Contract::default();
        let units: Vec<UnitId> = jobs
            .iter()
            .map(|job| {
                let unit = contract.add(None, &format!("unit{}", job.id()));
                contract.units[unit.index()].members =
                    vec![Member { kind: MemberKind::Pid(job.id()), span: 0..0 }];
                unit
            })
            .collect();
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::create(directory.path()).unwrap();
        let mut roster = Roster::new("/proc".as_ref(), &[]).unwrap();
        let of = |pid: u32| oom_score::get(pid).unwrap();
        let own = of(jobs[0].id());
        if raised(own) == own {
            // Nobody's here can be raised.
            return end(jobs);
        }
        let mut exposure = Exposure::default();
        let mut look = |exposure: &mut Exposure| {
            roster.refresh(&contract, clock::now(), Scan::Full).unwrap();
            let problems = exposure.follow(&mut roster, &mut journal);
            assert!(problems.is_empty(), "{problems:?}");
        };
        exposure.order(units[0], true);
        look(&mut exposure);
        assert_eq!(of(jobs[0].id()), raised(own));
        let born = fork(&jobs[0]);
        assert_eq!(of(born), raised(own), "inherited");
        look(&mut exposure);
        assert_eq!((of(born), of(jobs[1].id())), (raised(own), own));

        let unseen = fork(&jobs[0]);
        exposure.order(units[0], false);
        look(&mut exposure);
        assert_eq!([jobs[0].id(), born, unseen].map(of), [own; 3]);
        for _ in 0..LOOKS_AFTER {
            look(&mut exposure);
        }
        assert!(exposure.is_idle());

        // Its owner's own choice is what it gets back.
        let chosen = own.max(200);
        oom_score::set(&Pinned::of(born).unwrap(), born, chosen).unwrap();
        exposure.order(units[0], true);
        look(&mut exposure);
        assert_eq!([jobs[0].id(), born].map(of), [raised(own), raised(chosen)]);
        let unseen = fork(&jobs[0]);
        drop(journal);
        let undone = undo(&Journal::read(&directory.path().join("journal")).unwrap(), "/proc".as_ref());
        assert!(undone.problems.is_empty() && undone.oom_scores >= 3, "{undone:?}");
        assert_eq!([jobs[0].id(), unseen, born, jobs[1].id()].map(of), [own, own, chosen, own]);
        end(jobs);
    }
}
