//! Scopes of systemd's for processes that stand beside those of other units.
//!
//! Problem: a process that entered by `exec` stands in its user's session, with the shell. To hold it in its unit it must leave
//! that group. Moved behind systemd's back, it would be in a group that systemd does not know.
//!
//! Algorithm: who is due, the roster says ([`Roster::due_for_scopes`]). systemd is asked for a scope in the unit's slice: one for each
//! process that entered by `exec`, else one for all of a unit's that are due, at most twice a second. The journal has before where
//! each process was, and the scope. Where systemd says no twice, or nothing, the processes are moved into the unit's own group.
//!
//! Properties: a process is in no scope of a unit that it is not in, but while a call to systemd lasts. A scope that is empty is
//! gone by itself, and then the journal has it no more.
//!
//! Limits: where systemd answers too late, it may move a process out of the unit's own group into the scope. It is held there
//! as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use commonhold_contract::Contract;
use commonhold_policy::{MS, Time};

use super::members::Members;
use crate::LiveError;
use crate::host;
use crate::observe::process::ProcessKey;
use crate::observe::roster::{Due, Roster};
use crate::systemd::{Answer, Done, Queue, Request, Scope, Whose, group_of_slice, slice_for};
use crate::undo::journal::{Entry, Journal, record};

/// Processes that do not wait are brought into scopes no more often.
const BATCH_NS: Time = 500 * MS;

/// So often it is looked which scopes are gone.
const LOOK_NS: Time = 1_000 * MS;

/// So often systemd is asked for the same process: one of others may have ended meanwhile, and no scope is made then.
const TRIES_MAX: u8 = 2;

/// A scope that systemd was asked for.
#[derive(Debug)]
struct Asked {
    unit: String,
    keys: Vec<ProcessKey>,
}

/// What came of a look.
#[derive(Debug, Default)]
pub(super) struct Came {
    /// Processes that have a scope now.
    pub(super) arrived: Vec<u32>,
    /// Processes that get none.
    pub(super) refused: Vec<ProcessKey>,
    pub(super) problems: Vec<LiveError>,
}

/// Scopes, and who asks for them.
#[derive(Debug)]
pub(super) struct Scopes {
    mount: PathBuf,
    queue: Queue,
    asked: BTreeMap<u64, Asked>,
    /// Processes that systemd is asked about, or was: how often.
    tries: BTreeMap<ProcessKey, u8>,
    /// Those for which no answer has come yet.
    waiting: BTreeSet<ProcessKey>,
    /// Directories of scopes that the journal has.
    there: BTreeSet<PathBuf>,
    batch_at: Time,
    looked_at: Time,
    /// Refusals that were said.
    said: BTreeSet<String>,
}

impl Scopes {
    /// Of the machine's systemd; `None` where there is none.
    pub(super) fn begin(mount: &Path) -> Result<Option<Scopes>, LiveError> {
        let whose = Whose::system();
        whose.is_there().then(|| Scopes::of(mount, whose)).transpose()
    }

    pub(super) fn of(mount: &Path, whose: Whose) -> Result<Scopes, LiveError> {
        Ok(Scopes {
            mount: mount.to_owned(),
            queue: Queue::start(whose)?,
            asked: BTreeMap::new(),
            tries: BTreeMap::new(),
            waiting: BTreeSet::new(),
            there: BTreeSet::new(),
            batch_at: 0,
            looked_at: 0,
            said: BTreeSet::new(),
        })
    }

    /// Hears what systemd has answered, and asks it for scopes for those that are due.
    pub(super) fn look(
        &mut self,
        now: Time,
        contract: &Contract,
        roster: &mut Roster,
        (members, top): (&mut Members, &Path),
        journal: &mut Journal,
    ) -> Came {
        let mut came = Came::default();
        self.hear(&mut came);
        let is_answered =
            |due: &Due| !self.waiting.contains(&due.key) && !came.refused.contains(&due.key);
        let due: Vec<Due> = roster.due_for_scopes(now).into_iter().filter(is_answered).collect();
        let (entering, others): (Vec<Due>, Vec<Due>) = due.into_iter().partition(|due| due.enters);
        let mut groups: Vec<Vec<Due>> = entering.into_iter().map(|due| vec![due]).collect();
        if !others.is_empty() && now >= self.batch_at.saturating_add(BATCH_NS) {
            self.batch_at = now;
            let mut by_unit: BTreeMap<_, Vec<Due>> = BTreeMap::new();
            for due in others {
                by_unit.entry(due.unit).or_default().push(due);
            }
            groups.extend(by_unit.into_values());
        }
        for group in groups {
            let Some(first) = group.first() else { continue };
            let unit = &contract.unit(first.unit).path;
            let keys: Vec<ProcessKey> = group.iter().map(|due| due.key).collect();
            match slice_for(unit) {
                // Its name is too long for systemd.
                None => came.refused.extend(keys),
                Some(slice) => {
                    let origins = members.leave_for_scope(&keys, top);
                    came.problems.extend(self.ask(now, (unit, slice), keys, origins, journal).err());
                }
            }
        }
        if now >= self.looked_at.saturating_add(LOOK_NS) {
            self.looked_at = now;
            came.problems.extend(self.forget_those_gone(journal).err());
        }
        came
    }

    fn ask(
        &mut self,
        now: Time,
        (unit, slice): (&str, String),
        keys: Vec<ProcessKey>,
        origins: Vec<Entry>,
        journal: &mut Journal,
    ) -> Result<(), LiveError> {
        let Some(first) = keys.first() else { return Ok(()) };
        // A name that no scope of this machine has had: processes and times are not given twice together.
        let name = format!("commonhold-{}-{}.scope", first.pid, now / MS);
        let cgroup = self.mount.join(group_of_slice(&slice).trim_start_matches('/')).join(&name);
        let mut entries = vec![Entry::Scope { cgroup: cgroup.clone() }];
        entries.extend(origins);
        record(journal, &entries)?;
        self.there.insert(cgroup);
        for key in &keys {
            self.waiting.insert(*key);
            *self.tries.entry(*key).or_default() += 1;
        }
        let scope = Scope {
            name,
            slice,
            description: format!("processes of the unit {unit} of Commonhold's contract"),
            pids: keys.iter().map(|key| key.pid).collect(),
            properties: Vec::new(),
        };
        let number = self.queue.ask(Request::Start(scope));
        self.asked.insert(number, Asked { unit: unit.to_owned(), keys });
        Ok(())
    }

    fn hear(&mut self, came: &mut Came) {
        for Done { number, answer } in self.queue.done() {
            let Some(Asked { unit, keys }) = self.asked.remove(&number) else { continue };
            for key in &keys {
                self.waiting.remove(key);
            }
            match answer {
                Ok(Answer::Started) => came.arrived.extend(keys.iter().map(|key| key.pid)),
                Ok(_) => {}
                Err(error) => {
                    let is_last = |key: &ProcessKey| {
                        error.is_silence() || self.tries.get(key).is_none_or(|tries| *tries >= TRIES_MAX)
                    };
                    let (refused, again): (Vec<ProcessKey>, Vec<ProcessKey>) =
                        keys.into_iter().partition(is_last);
                    // It may have done it, and its answer was lost.
                    came.arrived.extend(again.iter().chain(&refused).map(|key| key.pid));
                    if !refused.is_empty() && self.said.insert(kind_of(&error.to_string(), error.is_silence()))
                    {
                        came.problems.push(LiveError::Unavailable {
                            what: format!("systemd makes no scope for processes of unit {unit}: {error}"),
                            remedy: "they are moved into the unit's own control group".to_owned(),
                        });
                    }
                    came.refused.extend(refused);
                }
            }
        }
    }

    /// A scope that systemd has ended, or has not made, is none to undo.
    fn forget_those_gone(&mut self, journal: &mut Journal) -> Result<(), LiveError> {
        if !self.asked.is_empty() {
            return Ok(());
        }
        let gone: Vec<PathBuf> =
            self.there.iter().filter(|dir| matches!(host::is_there(dir), Ok(false))).cloned().collect();
        let over = gone.iter().map(|cgroup| Entry::ScopeOver { cgroup: cgroup.clone() });
        record(journal, &over.collect::<Vec<_>>())?;
        self.there.retain(|dir| !gone.contains(dir));
        Ok(())
    }

    /// A process is gone.
    pub(super) fn forget(&mut self, key: ProcessKey) {
        self.tries.remove(&key);
    }
}

/// What is said once of errors that differ in names and numbers only.
fn kind_of(error: &str, is_silent: bool) -> String {
    if is_silent { "silent".to_owned() } else { error.replace(|c: char| c.is_ascii_digit(), "") }
}
