//! Memory of units without control groups: measures what their processes use, and pages out the excess.
//!
//! Problem: without control groups, the kernel does not keep a unit to its memory bound.
//!
//! Algorithm: at each scan that is due, the memory of all members is summed from /proc. Pages that several
//! processes map count in portions ([`portions`](crate::observe::memory::portions)). If a unit exceeds its
//! bound by more than [`SLACK_BYTES`], the excess is paged out ([`pageout`](super::pageout)). Memory that the
//! policy orders to be reclaimed is paged out, too. Between two scans nothing is enforced.
//!
//! The policy gets these facts:
//! - *Used* is the resident memory that the unit's processes have mapped. Files that they read and write
//!   without mapping them are in the cache, which belongs to no unit.
//! - *Refused* counts the scans at which the unit exceeded its bound.
//! - *Refaulted* counts the unit's major faults, but at most as many as pages were taken from the unit.
//!
//! Cold pages, dirty pages and waiting times are not measured. So only unused memory is lent.
//!
//! Cost: a process that has not run since the last scan has not touched, mapped or freed memory, so its last
//! numbers are remembered and no file is read. But other programs can take pages from a sleeping process. So
//! the numbers of a sleeping process are read again
//! - in turn: at each scan, one in [`TURNS`] of the processes is read, but at most [`TURN_MAX`];
//! - if swap has filled since the last scan;
//! - if pages are being taken, or are about to be taken, from its unit, so that no page is taken on
//!   remembered numbers alone.
//!
//! Properties: a bound neither kills nor slows a process. If paging out cannot bring a unit within its bound,
//! this is reported once, and again only after the unit was within its bound. Scans take at most
//! 1/[`REST_TIMES`] of a CPU. If the kernel does not page out for us, nothing is enforced.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use commonhold_contract::{Contract, UnitId};
use commonhold_policy::Time;
use commonhold_policy::plan::MemoryOrder;
use commonhold_policy::plan::MemoryPlan;
use commonhold_policy::{MemoryFacts, MemoryMeans, UnitMemory};

use super::pageout::{Pageout, Problem, Taken};
use crate::LiveError;
use crate::host::clock;
use crate::observe::memory::facts::Charged;
use crate::observe::memory::machine::{Machine, MachineMemory};
use crate::observe::memory::portions::{Holder, Portions};
use crate::observe::memory::source::{Buffer, page_bytes};
use crate::observe::memory::swap::Swaps;
use crate::observe::process::{ProcessKey, Resident};
use crate::observe::roster::Roster;

/// A smaller excess is ignored, because searching for pages to take costs more.
const SLACK_BYTES: u64 = 1 << 20;
/// Within this number of scans, the files of each sleeping process are read once, unless [`TURN_MAX`] delays
/// that.
const TURNS: usize = 50;
/// The largest number of processes that are read in turn at one scan.
const TURN_MAX: usize = 5;
/// Scans take at most one `REST_TIMES`th of a CPU.
const REST_TIMES: u64 = 100;

/// What this backend can enforce, if the kernel pages out for us.
pub const MEANS: MemoryMeans = MemoryMeans {
    bounds: true,
    guarantees: false,
    reclaim: true,
    alarms: false,
    kill_order: false,
    frames: None,
};

/// The memory of all units.
#[derive(Debug)]
pub(super) struct Memory {
    machine: Machine,
    swaps: Swaps,
    buffer: Buffer,
    /// By unit.
    units: Vec<Unit>,
    /// The numbers of every member at the last scan.
    numbers: BTreeMap<ProcessKey, Numbers>,
    /// The number of the process that was last read in turn.
    turn: u32,
    /// Free swap at the last scan.
    swap_free: u64,
    /// The scan whose excess is not paged out yet.
    scanned: Option<Scanned>,
    pageout: Pageout,
    portions: Portions,
    /// When the policy needs the next facts.
    due: Time,
    /// No scan before this time, to limit their cost.
    rest_until: Time,
    problems: Vec<Problem>,
}

/// The results of a scan, by which the excess is paged out in the same iteration of the daemon.
#[derive(Debug)]
struct Scanned {
    /// The total that had been taken from each unit when the scan began.
    taken: Vec<Taken>,
    holders: Vec<Vec<Holder>>,
    swap_free: u64,
}

/// The numbers of a process when they were last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    /// The process's CPU clock before the reading.
    clock: Option<u64>,
    /// `None` if it cannot be read.
    resident: Option<Resident>,
    /// Since the process began.
    major_faults: u64,
}

/// A member at this scan.
#[derive(Debug, Clone, Copy)]
struct Examined {
    process: ProcessKey,
    unit: usize,
    numbers: Numbers,
    /// Whether the numbers are remembered from an earlier scan, because the process sleeps.
    is_remembered: bool,
}

impl Examined {
    /// Examines a member. Reads its files if it has run since the numbers `before` were read, or if
    /// `must_read`.
    fn examine(
        roster: &mut Roster,
        process: ProcessKey,
        unit: usize,
        before: Option<Numbers>,
        must_read: bool,
    ) -> Result<Examined, LiveError> {
        let clock = roster.clock(process.pid);
        let asleep = before.filter(|before| clock.is_some() && before.clock == clock);
        if let Some(numbers) = asleep.filter(|_| !must_read) {
            return Ok(Examined { process, unit, numbers, is_remembered: true });
        }
        let resident = roster.procfs().resident(process.pid)?;
        let faults = match asleep {
            // A sleeping process does not fault.
            Some(before) => Some(before.major_faults),
            None if resident.is_none() => None,
            None => {
                let stat = roster.procfs().stat(process.pid)?.filter(|stat| stat.key == process);
                stat.map(|stat| stat.major_faults)
            }
        };
        let major_faults = faults.or(before.map(|before| before.major_faults)).unwrap_or(0);
        let numbers = Numbers { clock, resident, major_faults };
        Ok(Examined { process, unit, numbers, is_remembered: false })
    }
}

/// What is known of one unit. Sizes are in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Unit {
    /// `None`: unlimited.
    bound: Option<u64>,
    /// Used at the last scan.
    used: u64,
    /// The total that was taken from the unit until the last scan.
    taken: u64,
    /// Set by an order to reclaim: pages are taken, even within the bound, until the total taken from the
    /// unit reaches this value.
    reclaim_to: u64,
    /// The number of scans at which the unit exceeded its bound.
    refused: u64,
    /// Bytes that the unit's major faults brought back, but at most `taken`.
    refaulted: u64,
    /// Whether it was reported that the unit cannot be brought within its bound.
    reported: bool,
}

impl Memory {
    /// The memory of `units` units without bounds. Fails if the memory of the machine cannot be read.
    pub(super) fn new(units: usize) -> Result<Memory, LiveError> {
        Ok(Memory {
            machine: Machine::open("/proc".as_ref())?,
            swaps: Swaps::open(),
            buffer: Buffer::default(),
            units: vec![Unit::default(); units],
            numbers: BTreeMap::new(),
            turn: 0,
            swap_free: 0,
            scanned: None,
            pageout: Pageout::default(),
            portions: Portions::default(),
            due: 0,
            rest_until: 0,
            problems: Vec::new(),
        })
    }

    /// What this backend can enforce; [`MemoryMeans::NONE`] once the kernel has refused a page-out.
    pub(super) fn means(&self) -> MemoryMeans {
        if self.pageout.is_refused() { MemoryMeans::NONE } else { MEANS }
    }

    /// Adopts another contract: forgets the bounds of units that are not in it.
    pub(super) fn follow(&mut self, contract: &Contract) {
        self.units.resize(contract.units.len(), Unit::default());
        for unit in &contract.vacant {
            self.units[unit.index()] = Unit::default();
        }
        self.pageout.follow(contract);
        self.due = 0;
    }

    /// Records an order. The next scan carries it out.
    pub(super) fn order(&mut self, order: &MemoryOrder) {
        match *order {
            MemoryOrder::Allow { unit, bytes } => {
                if let Some(unit) = self.units.get_mut(unit.index()) {
                    unit.bound = bytes;
                }
            }
            MemoryOrder::Reclaim { unit: id, bytes, .. } => {
                let taken = self.pageout.taken(id).bytes;
                let unit = self.units.get_mut(id.index());
                // A unit beyond its bound is brought down to its bound anyway. An order to reclaim takes no
                // more from it than that.
                if let Some(unit) = unit.filter(|unit| unit.bound.is_none_or(|bound| unit.used <= bound)) {
                    unit.reclaim_to = taken.saturating_add(bytes);
                }
            }
            _ => return,
        }
        self.due = 0;
    }

    /// Records when the policy needs the next facts, and starts to page out the excess that the last scan
    /// found. This is done now, under the bounds in force at that scan, because at the next iteration the
    /// scan's results would be outdated: which pages are cold, and which process holds them.
    pub(super) fn follow_plan(&mut self, contract: &Contract, plan: Option<&MemoryPlan>) {
        if let Some(plan) = plan {
            self.due = plan.next;
        }
        if let Some(scanned) = self.scanned.take() {
            self.set_targets(contract, &scanned);
        }
    }

    /// The problems since the last call.
    pub(super) fn take_problems(&mut self) -> Vec<Problem> {
        self.problems.extend(self.pageout.take_problems());
        std::mem::take(&mut self.problems)
    }

    /// Reads the facts, if they are due. `None` if they are not, or if the kernel does not page out.
    pub(super) fn observe(
        &mut self,
        now: Time,
        contract: &Contract,
        roster: &mut Roster,
    ) -> Result<Option<MemoryFacts>, LiveError> {
        if now < self.due.max(self.rest_until) || self.pageout.is_refused() {
            return Ok(None);
        }
        // CPU time, not wall-clock time: waiting for a CPU costs nothing.
        let begun = clock::thread_cpu_ns();
        let taken: Vec<Taken> = contract.ids().map(|unit| self.pageout.taken(unit)).collect();
        let machine = self.machine.read(&mut self.buffer)?;
        let (holders, faulted) = self.holders(contract, roster, &taken, machine.swap_free)?;
        let facts = self.facts(&holders, &taken, &faulted, machine)?;
        self.scanned = Some(Scanned { taken, holders, swap_free: machine.swap_free });
        let cost_ns = clock::thread_cpu_ns().saturating_sub(begun);
        self.rest_until = now.saturating_add(cost_ns.saturating_mul(REST_TIMES));
        Ok(Some(facts))
    }

    /// For each unit, the processes that hold its memory, and the bytes of its major faults since the last
    /// scan. If the scan fails, the earlier numbers are kept, so that the next scan reports all faults since.
    fn holders(
        &mut self,
        contract: &Contract,
        roster: &mut Roster,
        taken: &[Taken],
        swap_free: u64,
    ) -> Result<(Vec<Vec<Holder>>, Vec<u64>), LiveError> {
        let before = (std::mem::take(&mut self.numbers), self.swap_free);
        let result = self.scan(contract, roster, taken, swap_free, &before.0);
        if result.is_err() {
            (self.numbers, self.swap_free) = before;
        }
        result
    }

    /// Does the work of [`Memory::holders`]. `before` has the numbers of the last scan.
    fn scan(
        &mut self,
        contract: &Contract,
        roster: &mut Roster,
        taken: &[Taken],
        swap_free: u64,
        before: &BTreeMap<ProcessKey, Numbers>,
    ) -> Result<(Vec<Vec<Holder>>, Vec<u64>), LiveError> {
        let units = contract.units.len();
        self.units.resize(units, Unit::default());
        // The units whose sleeping processes may have lost pages since the last scan.
        let has_swap_filled = swap_free.saturating_add(SLACK_BYTES) < self.swap_free;
        self.swap_free = swap_free;
        let may_have_lost = |(unit, taken): (&Unit, &Taken)| has_swap_filled || unit.taken != taken.bytes;
        let must_read: Vec<bool> = self.units.iter().zip(taken).map(may_have_lost).collect();
        let members = roster.members().filter(|member| !member.placement.unit.is_common());
        let mut members: Vec<_> = members.map(|member| (member.key, member.placement.unit.index())).collect();
        members.retain(|(_, unit)| *unit < units);
        let turn = self.next_turn(&members);
        let mut all = Vec::with_capacity(members.len());
        for (process, unit) in members {
            let must_read = must_read.get(unit).copied().unwrap_or(true) || turn.contains(&process.pid);
            all.push(Examined::examine(roster, process, unit, before.get(&process).copied(), must_read)?);
        }
        // Before pages are taken from a unit, its remembered numbers are verified.
        let mut holders = self.by_unit(units, &all);
        let due: Vec<bool> = (0u32..)
            .map(UnitId)
            .zip(&holders)
            .map(|(id, holders)| self.is_taking_due(id, holders, taken))
            .collect();
        let mut any_verified = false;
        for examined in all.iter_mut().filter(|examined| examined.is_remembered && due[examined.unit]) {
            let Examined { process, unit, numbers, .. } = *examined;
            *examined = Examined::examine(roster, process, unit, Some(numbers), true)?;
            any_verified = true;
        }
        if any_verified {
            holders = self.by_unit(units, &all);
        }
        let mut faulted = vec![0; units];
        for Examined { process, unit, numbers, .. } in &all {
            let earlier = before.get(process).map_or(numbers.major_faults, |before| before.major_faults);
            faulted[*unit] += numbers.major_faults.saturating_sub(earlier) * page_bytes();
        }
        self.numbers = all.into_iter().map(|examined| (examined.process, examined.numbers)).collect();
        Ok((holders, faulted))
    }

    /// The range of process numbers that are read at this scan although the processes sleep: round robin.
    /// `members` is sorted by process number.
    fn next_turn(&mut self, members: &[(ProcessKey, usize)]) -> RangeInclusive<u32> {
        let count = members.len().div_ceil(TURNS).min(TURN_MAX);
        let range_after = |turn: u32| {
            let pids = members.iter().map(|(process, _)| process.pid);
            let mut next = pids.filter(|pid| *pid > turn).take(count);
            next.next().map(|first| (first, next.last().unwrap_or(first)))
        };
        // Without members, the range contains only process 0, the kernel's, which is never a member.
        let (first, last) = range_after(self.turn).or_else(|| range_after(0)).unwrap_or((0, 0));
        self.turn = last;
        first..=last
    }

    /// The holders of each unit, each with its portion of pages that several processes map.
    fn by_unit(&mut self, units: usize, all: &[Examined]) -> Vec<Vec<Holder>> {
        let mut holders = vec![Vec::new(); units];
        for Examined { process, unit, numbers, .. } in all {
            if let Some(resident) = numbers.resident {
                let holder =
                    Holder { process: *process, shown: resident, own: resident, clock: numbers.clock };
                holders[*unit].push(holder);
            }
        }
        self.portions.follow(&holders);
        self.portions.apply(&mut holders);
        holders
    }

    /// Whether pages must be taken from a unit whose memory these processes hold, and the last pass took at
    /// least half of its target.
    fn is_taking_due(&self, id: UnitId, holders: &[Holder], taken: &[Taken]) -> bool {
        let (Some(unit), Some(taken)) = (self.units.get(id.index()), taken.get(id.index())) else {
            return false;
        };
        let used = sum_of(holders).bytes();
        let exceeds_bound = unit.bound.is_some_and(|bound| used > bound.saturating_add(SLACK_BYTES));
        (exceeds_bound || unit.reclaim_to > taken.bytes) && !self.pageout.is_stuck(id)
    }

    /// The facts for the policy.
    fn facts(
        &mut self,
        holders: &[Vec<Holder>],
        taken: &[Taken],
        faulted: &[u64],
        machine: MachineMemory,
    ) -> Result<MemoryFacts, LiveError> {
        let sums: Vec<Resident> = holders.iter().map(|unit| sum_of(unit)).collect();
        let all = sums.iter().fold(Resident::default(), |sum, unit| sum.with(*unit));
        let charged = Charged { current: all.bytes(), cached: all.file, ..Charged::default() };
        let (kernel, shared) = machine.common(&charged);
        let mut units = Vec::with_capacity(sums.len());
        for (((unit, sum), taken), faulted) in self.units.iter_mut().zip(&sums).zip(taken).zip(faulted) {
            unit.refaulted = unit.refaulted.saturating_add(*faulted).min(taken.bytes);
            let used = sum.bytes();
            (unit.used, unit.taken) = (used, taken.bytes);
            unit.refused +=
                u64::from(unit.bound.is_some_and(|bound| used > bound.saturating_add(SLACK_BYTES)));
            units.push(UnitMemory {
                used,
                anonymous: sum.anonymous,
                refused: unit.refused,
                refaulted: unit.refaulted,
                taken: taken.bytes,
                taking_ns: u64::try_from(taken.time.as_nanos()).unwrap_or(u64::MAX),
                ..UnitMemory::default()
            });
        }
        let packing = self.swaps.read(machine, &mut self.buffer)?;
        Ok(MemoryFacts {
            total: machine.total,
            kernel,
            shared,
            swap_free: machine.swap_free,
            swap_next: packing.next,
            packed_permille: packing.permille,
            units,
        })
    }

    /// Sets the units' targets for paging out, and reports units that cannot be brought within their bounds.
    fn set_targets(&mut self, contract: &Contract, scanned: &Scanned) {
        for id in contract.held() {
            let index = id.index();
            let (Some(unit), Some(taken), Some(holders)) =
                (self.units.get_mut(index), scanned.taken.get(index), scanned.holders.get(index))
            else {
                continue;
            };
            let (used, bound) = (unit.used, unit.bound.unwrap_or(u64::MAX));
            let excess = Some(used.saturating_sub(bound)).filter(|excess| *excess > SLACK_BYTES);
            let target = excess.unwrap_or(0).max(unit.reclaim_to.saturating_sub(taken.bytes));
            self.pageout.set_target(id, target, *taken, holders, scanned.swap_free > 0);
            let is_stuck = self.pageout.is_stuck(id);
            if is_stuck {
                unit.reclaim_to = 0;
            }
            match (excess, is_stuck && !self.pageout.is_refused()) {
                (None, _) => unit.reported = false,
                (Some(excess), true) if !std::mem::replace(&mut unit.reported, true) => {
                    let path = &contract.unit(id).path;
                    self.problems.push((
                        None,
                        "",
                        beyond_means(path, used, bound, excess, scanned.swap_free),
                    ));
                }
                _ => {}
            }
        }
    }
}

/// The sum of the portions of these processes.
fn sum_of(holders: &[Holder]) -> Resident {
    holders.iter().fold(Resident::default(), |sum, holder| sum.with(holder.own))
}

/// The report on a unit that cannot be brought within its bound.
fn beyond_means(path: &str, used: u64, bound: u64, excess: u64, swap_free: u64) -> LiveError {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let why = if swap_free == 0 {
        "no swap is free for memory that is in no file"
    } else {
        "they are locked, not yet written to disk, mapped by several processes, or in constant use"
    };
    let remedy = if swap_free == 0 {
        "add swap: see `commonhold doctor`; or use the cgroup backend, which slows a unit that grows"
    } else {
        "use the cgroup backend, which slows a unit that grows"
    };
    LiveError::Unavailable {
        what: format!(
            "unit `{path}` uses {} MiB and is allowed {}: {} MiB are beyond its bound, since {why}",
            mib(used),
            mib(bound),
            mib(excess)
        ),
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use commonhold_contract::{Member, MemberKind};

    use super::*;
    use crate::host::{Answer, Kind, tamper};
    use crate::observe::roster::Scan;

    /// Beyond any `pid_max`, so that no real process has it.
    const FIRST: u32 = 90_000_001;

    /// Faults between two scans are reported by the first that succeeds.
    #[test]
    fn a_failed_scan_loses_no_faults() {
        let root = tempfile::tempdir().unwrap();
        let put = |pid: u32, faults: u64| {
            let folder = root.path().join(pid.to_string());
            fs::create_dir_all(&folder).unwrap();
            let stat = format!("{pid} (it) S 0 1 {pid} 0 -1 0 0 0 {faults} 0 0 0 0 0 20 0 1 0 7 0\n");
            let status = "Uid:\t7\t7\nGid:\t7\t7\nGroups:\t\nRssAnon:\t8 kB\nRssFile:\t4 kB\nRssShmem:\t0 kB\nVmSwap:\t0 kB\n";
            for (name, text) in
                [("stat", stat.as_str()), ("status", status), ("cmdline", "it\0"), ("cgroup", "0::/\n")]
            {
                fs::write(folder.join(name), text).unwrap();
            }
        };
        let mut contract = Contract::default();
        let unit = contract.add(None, "unit");
        for pid in [FIRST, FIRST + 1] {
            put(pid, 5);
            contract.units[unit.index()].members.push(Member { kind: MemberKind::Pid(pid), span: 0..0 });
        }
        let mut roster = Roster::new(root.path(), &[]).unwrap();
        roster.refresh(&contract, 1, Scan::Full).unwrap();
        let mut memory = Memory::new(contract.units.len()).unwrap();
        let taken = vec![Taken::default(); contract.units.len()];
        let mut faulted =
            || memory.holders(&contract, &mut roster, &taken, 0).map(|(_, faulted)| faulted[unit.index()]);
        assert_eq!(faulted().unwrap(), 0);
        put(FIRST, 9);
        let last = format!("{}/status", FIRST + 1);
        let hook = tamper(move |access| match access.is(Kind::Read, &last) {
            true => Answer::Refuse(libc::EIO),
            false => Answer::GoOn,
        });
        assert!(faulted().is_err());
        drop(hook);
        assert_eq!(faulted().unwrap(), 4 * page_bytes());
        assert_eq!(faulted().unwrap(), 0);
    }
}
