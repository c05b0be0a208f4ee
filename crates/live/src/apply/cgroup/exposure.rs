//! Makes the OOM killer prefer processes of *exposed* units: units that exceed their entitlement while memory
//! is tight.
//!
//! Problem: when memory runs out, the kernel kills the largest process of the machine, which may be in a unit
//! that stays within its entitlement.
//!
//! Algorithm: at each memory sample, every member of an exposed unit gets a raised `oom_score_adj`
//! ([`oom_score`](crate::host::oom_score)). A member's children inherit the raised value; such children are
//! recognised by this value and by their parent. A member gets its original value back when its unit is not
//! exposed any more, or when it moves to a unit that is not exposed. Children may be born while values are
//! restored; so a unit that was exposed is searched for them in [`SAMPLES_AFTER`] more samples.
//!
//! Properties:
//! - No process's value is set below the original.
//! - Nothing is written before the journal says how to undo it.
//! - A value that a process's owner sets meanwhile becomes the original.
//! - A process that reuses a PID is never touched.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::plan::MemoryPlan;

use crate::LiveError;
use crate::host::oom_score::{OomScore, raised};
use crate::observe::process::ProcessKey;
use crate::observe::roster::{Member, Roster};
use crate::undo::journal::{Entry, Journal, record};

/// The number of samples, after a unit was exposed, in which the unit is still searched for children that
/// inherited a raised value.
const SAMPLES_AFTER: u8 = 3;

/// The `oom_score_adj` of a process of an exposed unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AdjustedScore {
    /// The value that the process's owner chose.
    original: i16,
    /// The raised value that we give it while its unit is exposed.
    given: i16,
}

/// The exposed units and their processes.
#[derive(Debug, Default)]
pub(super) struct Exposure {
    exposed: BTreeSet<UnitId>,
    /// The units that were exposed lately and are still searched, each with the number of remaining samples.
    searched: BTreeMap<UnitId, u8>,
    /// The processes whose values are raised, or remain to be restored.
    adjusted: BTreeMap<ProcessKey, AdjustedScore>,
    /// Raised values that the journal lists as values that we gave.
    given: BTreeSet<i16>,
    /// Processes for which the kernel denies the write.
    refused: BTreeSet<ProcessKey>,
    /// Processes whose failure was reported.
    reported: BTreeSet<ProcessKey>,
    /// The standing problem of each exposed unit that exceeds its bound, because nothing of it can be paged
    /// out.
    beyond_means: BTreeMap<UnitId, LiveError>,
}

impl Exposure {
    /// Records whether a unit is exposed. [`Exposure::follow`] carries the order out.
    pub(super) fn order(&mut self, unit: UnitId, exposed: bool) {
        if exposed {
            self.exposed.insert(unit);
        } else if self.exposed.remove(&unit) {
            self.searched.insert(unit, SAMPLES_AFTER);
            self.beyond_means.remove(&unit);
        }
    }

    /// Forgets the units that are not in the new contract.
    pub(super) fn follow_contract(&mut self, contract: &Contract) {
        self.exposed.retain(|unit| contract.has(*unit));
        self.searched.retain(|unit, _| contract.has(*unit));
        self.beyond_means.retain(|unit, _| contract.has(*unit));
    }

    /// The standing problems: exposed units that exceed their bound and have nothing that can be paged out.
    pub(super) fn standing(&self) -> impl Iterator<Item = &LiveError> {
        self.beyond_means.values()
    }

    /// Whether a unit that was exposed lately is still searched.
    pub(super) fn is_ending(&self) -> bool {
        !self.searched.is_empty()
    }

    /// Whether no unit is exposed and no value remains to be restored.
    fn is_idle(&self) -> bool {
        self.exposed.is_empty() && self.searched.is_empty() && self.adjusted.is_empty()
    }

    /// Records a standing problem for each exposed unit that exceeds its bound. A problem keeps its first
    /// message, although the numbers in it change, so that it is reported once.
    pub(super) fn record_exceeding(&mut self, contract: &Contract, plan: &MemoryPlan) {
        for beyond in plan.beyond.iter().filter(|beyond| self.exposed.contains(&beyond.unit)) {
            let allowed = plan.units.get(beyond.unit.index()).map_or(0, |share| share.allowed);
            let problem = || beyond_means(&contract.unit(beyond.unit).path, allowed, beyond.bytes);
            self.beyond_means.entry(beyond.unit).or_insert_with(problem);
        }
    }

    /// Raises the values of processes of exposed units, and restores the values of other processes. Returns
    /// the errors.
    pub(super) fn follow(&mut self, roster: &mut Roster, journal: &mut Journal) -> Vec<LiveError> {
        if self.is_idle() {
            return Vec::new();
        }
        let is_examined = |unit: &UnitId| self.exposed.contains(unit) || self.searched.contains_key(unit);
        // Memory of members in other control groups is not charged to the unit, so these members are not
        // exposed with it.
        let members =
            roster.members().filter(|member| member.stays.is_none() && is_examined(&member.placement.unit));
        let keys: BTreeSet<ProcessKey> =
            members.map(|member| member.key).chain(self.adjusted.keys().copied()).collect();
        let (mut changes, mut entries, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        for key in keys {
            if self.refused.contains(&key) {
                continue;
            }
            match open_score(roster, key).and_then(|score| score.map(|score| score.get()).transpose()) {
                Ok(Some(value)) => {
                    let adjusted = self.examine(roster, key, value, &mut entries);
                    let is_due = |adjusted: &AdjustedScore| {
                        self.target(roster, key, *adjusted) != value
                            || self.adjusted.get(&key) != Some(adjusted)
                    };
                    changes.extend(adjusted.filter(is_due).map(|adjusted| (key, value, adjusted)));
                }
                Ok(None) => drop(self.adjusted.remove(&key)),
                Err(source) => problems.extend(self.note_error(roster, key, source)),
            }
        }
        // No value is written that the journal could not undo.
        if let Err(error) = record(journal, &entries) {
            problems.push(error);
            return problems;
        }
        for entry in entries {
            if let Entry::OomScoreGiven { value } = entry {
                self.given.insert(value);
            }
        }
        for (key, value, adjusted) in changes {
            let target = self.target(roster, key, adjusted);
            let set = |score: Option<OomScore>| score.map_or(Ok(()), |score| score.set(target));
            let result = if target == value { Ok(()) } else { open_score(roster, key).and_then(set) };
            match result {
                Ok(()) => drop(self.adjusted.insert(key, adjusted)),
                // The earlier record is kept, so that the next sample can restore the original.
                Err(source) => problems.extend(self.note_error(roster, key, source)),
            }
        }
        self.end_searches(roster);
        problems
    }

    fn is_exposed(&self, roster: &Roster, key: ProcessKey) -> bool {
        unit_of(roster, key).is_some_and(|unit| self.exposed.contains(&unit))
    }

    /// The value that a process should have now.
    fn target(&self, roster: &Roster, key: ProcessKey, adjusted: AdjustedScore) -> i16 {
        if self.is_exposed(roster, key) { adjusted.given } else { adjusted.original }
    }

    /// The original and the raised value of a process whose `oom_score_adj` is `value` now; `None` if nothing
    /// must be written for the process. Adds the journal entries that undo the write to `entries`.
    fn examine(
        &self,
        roster: &Roster,
        key: ProcessKey,
        value: i16,
        entries: &mut Vec<Entry>,
    ) -> Option<AdjustedScore> {
        let known = self.adjusted.get(&key);
        let original = match known {
            Some(known) if known.given == value => known.original,
            // The original is restored already, or the owner has chosen another value.
            Some(_) => value,
            None => self.inherited_original(roster, key, value).unwrap_or(value),
        };
        let adjusted = AdjustedScore { original, given: raised(original) };
        // In a unit that is not exposed, only a process that inherited a raised value needs a write.
        if adjusted.given == original
            || (known.is_none() && original == value && !self.is_exposed(roster, key))
        {
            return None;
        }
        if known.is_none_or(|known| known.original != original) {
            entries.push(Entry::OomScore { process: key, value: original });
        }
        let given = Entry::OomScoreGiven { value: adjusted.given };
        if !self.given.contains(&adjusted.given) && !entries.contains(&given) {
            entries.push(given);
        }
        Some(adjusted)
    }

    /// The original value of the process from which this process inherited its raised `value`: its parent; if
    /// the parent has exited, any process of its session, or else any process of its user in its unit.
    fn inherited_original(&self, roster: &Roster, key: ProcessKey, value: i16) -> Option<i16> {
        if !self.given.contains(&value) {
            return None;
        }
        let member = roster.member(key.pid).filter(|member| member.key == key)?;
        let with_value =
            |other: &Member| self.adjusted.get(&other.key).filter(|adjusted| adjusted.given == value);
        // An orphan's parent is the init process.
        if let Some(parent) = roster.member(member.parent).filter(|_| member.parent > 1) {
            return with_value(parent).map(|adjusted| adjusted.original);
        }
        let original_among = |is_related: &dyn Fn(&Member) -> bool| {
            let mut related = roster.members().filter(|other| is_related(other));
            related.find_map(with_value).map(|adjusted| adjusted.original)
        };
        let (session, unit, uid) = (member.session, member.placement.unit, member.uid);
        original_among(&|other| other.session == session)
            .or_else(|| original_among(&|other| other.placement.unit == unit && other.uid == uid))
    }

    /// Counts a sample of the searches, and forgets the processes of units that are not searched any more.
    fn end_searches(&mut self, roster: &Roster) {
        self.searched.retain(|_, samples| {
            *samples -= 1;
            *samples > 0
        });
        let (exposed, searched) = (&self.exposed, &self.searched);
        self.reported.retain(|key| unit_of(roster, *key).is_some());
        self.adjusted.retain(|key, _| {
            unit_of(roster, *key).is_some_and(|unit| exposed.contains(&unit) || searched.contains_key(&unit))
        });
    }

    /// Returns the error to report for a process whose value could not be read or written: once per process,
    /// and never for a process that has exited.
    fn note_error(&mut self, roster: &Roster, key: ProcessKey, source: io::Error) -> Option<LiveError> {
        let has_exited =
            source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(libc::ESRCH);
        if has_exited {
            self.adjusted.remove(&key);
            return None;
        }
        // A refusal is final. Other errors are transient: the next sample retries.
        if matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM)) {
            self.refused.insert(key);
            self.adjusted.remove(&key);
        }
        if !self.reported.insert(key) {
            return None;
        }
        Some(LiveError::Process {
            pid: key.pid,
            name: roster.member(key.pid).map(|member| member.comm.clone()).unwrap_or_default(),
            what: "set its oom_score_adj, by which the kernel chooses what to kill when memory runs out"
                .to_owned(),
            source,
            remedy: "; run the daemon as root".to_owned(),
        })
    }
}

/// Opens the file with the value of a process; `None` if the process has exited. The file is opened before
/// the process's identity is checked, because an open file refers to the same process even if its number is
/// reused later.
fn open_score(roster: &mut Roster, key: ProcessKey) -> io::Result<Option<OomScore>> {
    let score = OomScore::open(key.pid);
    let stat = roster.procfs().stat(key.pid).map_err(io::Error::other)?;
    if stat.is_some_and(|stat| stat.key == key) { score.map(Some) } else { Ok(None) }
}

/// The unit of a process; `None` if the process is no member any more.
fn unit_of(roster: &Roster, key: ProcessKey) -> Option<UnitId> {
    roster.member(key.pid).filter(|member| member.key == key).map(|member| member.placement.unit)
}

/// The problem of a unit that exceeds its bound while memory is short and nothing of it can be paged out.
fn beyond_means(path: &str, allowed: u64, excess: u64) -> LiveError {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    LiveError::Unavailable {
        what: format!(
            "unit `{path}` uses {} MiB and is allowed {}, and memory is short: {} MiB are beyond its bound, since no swap \
             is free for anonymous pages",
            mib(allowed.saturating_add(excess)),
            mib(allowed),
            mib(excess)
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

    /// Has the job start one more child.
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

    /// A write that fails once is retried with the next sample, both to raise and to restore a value.
    #[test]
    fn a_score_that_was_refused_is_written_with_the_next_sample() {
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
            // The value is at its maximum in this environment.
            return end(jobs);
        }
        roster.refresh(&contract, clock::now(), Scan::Full).unwrap();
        let mut exposure = Exposure::default();
        let mut sample = |exposure: &mut Exposure, refuses: bool| {
            let _hook = host::tamper(move |access| {
                let refused = refuses && access.is(host::Kind::Write, "oom_score_adj");
                if refused { host::Answer::Refuse(libc::ENOMEM) } else { host::Answer::GoOn }
            });
            let problems = exposure.follow(&mut roster, &mut journal);
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        exposure.order(unit, true);
        let reported = sample(&mut exposure, true);
        assert!(reported.len() == 1 && reported[0].contains("oom_score_adj"), "{reported:?}");
        assert_eq!(of(jobs[0].id()), own);
        assert!(sample(&mut exposure, false).is_empty());
        assert_eq!(of(jobs[0].id()), raised(own));
        exposure.order(unit, false);
        assert!(sample(&mut exposure, true).is_empty(), "reported before");
        assert_eq!(of(jobs[0].id()), raised(own));
        assert!(sample(&mut exposure, false).is_empty());
        assert_eq!(of(jobs[0].id()), own);
        end(jobs);
    }

    /// Of two units one is exposed: its processes and their children are killed first. All get their original
    /// values back when it is no longer exposed or the daemon is killed, including children that the daemon
    /// never saw.
    #[test]
    fn exposed_processes_get_raised_scores_and_then_their_own_again() {
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
            // The value is at its maximum in this environment.
            return end(jobs);
        }
        let mut exposure = Exposure::default();
        let mut sample = |exposure: &mut Exposure| {
            roster.refresh(&contract, clock::now(), Scan::Full).unwrap();
            let problems = exposure.follow(&mut roster, &mut journal);
            assert!(problems.is_empty(), "{problems:?}");
        };
        exposure.order(units[0], true);
        sample(&mut exposure);
        assert_eq!(of(jobs[0].id()), raised(own));
        let born = fork(&jobs[0]);
        assert_eq!(of(born), raised(own), "inherited");
        sample(&mut exposure);
        assert_eq!((of(born), of(jobs[1].id())), (raised(own), own));

        let unseen = fork(&jobs[0]);
        exposure.order(units[0], false);
        sample(&mut exposure);
        assert_eq!([jobs[0].id(), born, unseen].map(of), [own; 3]);
        for _ in 0..SAMPLES_AFTER {
            sample(&mut exposure);
        }
        assert!(exposure.is_idle());

        // A value that its owner chose is restored.
        let chosen = own.max(200);
        oom_score::set(&Pinned::of(born).unwrap(), born, chosen).unwrap();
        exposure.order(units[0], true);
        sample(&mut exposure);
        assert_eq!([jobs[0].id(), born].map(of), [raised(own), raised(chosen)]);
        let unseen = fork(&jobs[0]);
        drop(journal);
        let undone = undo(&Journal::read(&directory.path().join("journal")).unwrap(), "/proc".as_ref());
        assert!(undone.problems.is_empty() && undone.oom_scores >= 3, "{undone:?}");
        assert_eq!([jobs[0].id(), unseen, born, jobs[1].id()].map(of), [own, own, chosen, own]);
        end(jobs);
    }
}
