//! What is known about an interval, and sums of intervals.

use std::collections::BTreeMap;

use commonhold_contract::Resource;
use commonhold_ledger::{Verdict, Wait, WaitCause};
use serde::{Deserialize, Serialize};

/// The most units of a record that is written. Of more, the innermost are left out first; the figures of the
/// units that enclose them include them.
pub(crate) const UNITS_MAX: usize = 10_000;
/// The most causes of waiting that a written record keeps for a unit. The shortest waits of more causes are
/// summed as [`WaitCause::Unknown`].
pub(crate) const WAITS_MAX: usize = 64;
/// The most users that a written record keeps for a unit. The others are summed as one without a number.
pub(crate) const USERS_MAX: usize = 256;

/// A moment, on the wall clock and on a clock that never jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Moment {
    /// Milliseconds since 1970 by the machine's wall clock, which may have been set meanwhile.
    pub wall_ms: u64,
    /// Identifies the boot: a part of `/proc/sys/kernel/random/boot_id`.
    pub boot: u64,
    /// Nanoseconds since that boot, suspended time included (`CLOCK_BOOTTIME`).
    pub boot_ns: u64,
}

impl Moment {
    /// The time from this moment to a later one, in nanoseconds: by the clock that never jumps, or by the
    /// wall clock if the machine booted in between.
    pub fn until_ns(&self, later: &Moment) -> u64 {
        match self.boot == later.boot {
            true => later.boot_ns.saturating_sub(self.boot_ns),
            false => later.wall_ms.saturating_sub(self.wall_ms).saturating_mul(1_000_000),
        }
    }

    /// By how many milliseconds the wall clock was set forward (or back, if negative) between this moment and
    /// a later one of the same boot; 0 across boots, where it is not known.
    pub fn clock_set_ms(&self, later: &Moment) -> i64 {
        if self.boot != later.boot {
            return 0;
        }
        let by_wall = i128::from(later.wall_ms) - i128::from(self.wall_ms);
        let by_boot = (i128::from(later.boot_ns) - i128::from(self.boot_ns)) / 1_000_000;
        i64::try_from(by_wall - by_boot).unwrap_or(0)
    }
}

/// What the machine and its units had, used and waited for over an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Record {
    /// The record's number in its ring, ascending by at least 1, across daemons and boots. 0 in a sum.
    #[serde(skip)]
    pub number: u64,
    /// The number of the last record of the finer ring that this one includes; 0 for seconds.
    #[serde(skip)]
    pub through: u64,
    /// The beginning of the interval.
    pub start: Moment,
    /// The end of the interval.
    pub end: Moment,
    /// The time of the interval in which a daemon ran, in nanoseconds. Less than the length of the interval
    /// if no daemon ran for a part of it, or if the machine was suspended.
    pub duration_ns: u64,
    /// The time for which the machine was suspended while a daemon ran, in nanoseconds.
    pub suspended_ns: u64,
    /// The machine's CPUs.
    pub machine: MachineUse,
    /// The units that had processes, were entitled to anything or used anything, in the contract's order.
    pub units: Vec<UnitUse>,
    /// The number of units left out, since the record would have become too large.
    pub left_out: u32,
}

/// The machine's CPU time over an interval. Units used `capacity_ns - idle_ns - common_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MachineUse {
    /// The number of CPUs at the end of the interval.
    pub cpus: u32,
    /// The memory that units divide at the end of the interval, in bytes; 0 if it is not controlled.
    pub memory_bytes: u64,
    /// CPU time that all CPUs could have run, in nanoseconds.
    pub capacity_ns: u64,
    /// Idle CPU time.
    pub idle_ns: u64,
    /// CPU time of everything outside the units.
    pub common_ns: u64,
}

/// What a unit had, used and waited for, its sub-units included unless the field states otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct UnitUse {
    /// The unit's path: `physics/night-batch`.
    pub unit: String,
    /// The unit's processes, sub-units excluded: at the end of a second, the most in a longer interval.
    pub processes: u32,
    /// CPU time.
    pub cpu: CpuUse,
    /// Memory over time; `None` if it was not controlled.
    pub memory: Option<MemoryUse>,
    /// Transfers of all disks together; `None` if they were not controlled.
    pub disk: Option<DiskUse>,
    /// Call-backs, of resources with any.
    pub call_backs: BTreeMap<Resource, CallBacks>,
    /// The waiting time by resource and cause, the causes of a resource in the order of their time.
    pub waits: Vec<Wait>,
    /// The worst verdict on each resource in the interval; none for resources without a verdict.
    pub verdicts: BTreeMap<Resource, Verdict>,
    /// CPU time by user, of the unit's own processes, sub-units excluded. The sum may be less than the unit's
    /// CPU time: processes too short-lived to be seen have no known user.
    pub users: Vec<UserUse>,
}

/// CPU time in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuUse {
    /// The entitlement, integrated over time.
    pub entitled_ns: u64,
    /// Used.
    pub used_ns: u64,
    /// On the unit's CPUs, by others.
    pub lent_ns: u64,
    /// On others' CPUs.
    pub borrowed_ns: u64,
    /// The time for which threads were runnable without a CPU.
    pub waited_ns: u64,
}

/// Memory, integrated over time, in bytes times milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryUse {
    /// The entitlement.
    pub entitled_byte_ms: u128,
    /// Used.
    pub used_byte_ms: u128,
    /// Lent to others.
    pub lent_byte_ms: u128,
    /// Borrowed from others.
    pub borrowed_byte_ms: u128,
    /// Time in which a process was stalled for memory, in nanoseconds.
    pub waited_ns: u64,
}

/// Transfers in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskUse {
    /// The unit's part of what all units transferred.
    pub entitled_bytes: u64,
    /// Read.
    pub read_bytes: u64,
    /// Written.
    pub written_bytes: u64,
    /// Of the unit's part, transferred by others.
    pub lent_bytes: u64,
    /// Transferred beyond the unit's part.
    pub borrowed_bytes: u64,
    /// Time in which a process was stalled for a disk, in nanoseconds.
    pub waited_ns: u64,
}

/// Call-backs of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CallBacks {
    /// Their number.
    pub count: u64,
    /// The number of those that are known to have taken longer than promised; 0 for disks, of which nothing
    /// is promised. There may have been more of CPUs
    /// ([`Account::call_backs_late`](commonhold_ledger::Account::call_backs_late)).
    pub late: u64,
    /// An upper bound of the longest, in nanoseconds.
    pub max_ns: u64,
}

/// CPU time of one user's processes in a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserUse {
    /// The user's number; `None`: all further users.
    pub uid: Option<u32>,
    /// CPU time used, in nanoseconds.
    pub used_ns: u64,
}

impl Record {
    /// The use of a unit; `None` if it neither had nor did anything.
    pub fn unit(&self, path: &str) -> Option<&UnitUse> {
        self.units.iter().find(|unit| unit.unit == path)
    }

    /// The time of the interval for which nothing is known, in nanoseconds.
    pub fn missing_ns(&self) -> u64 {
        self.start.until_ns(&self.end).saturating_sub(self.duration_ns)
    }

    /// Adds a later record: the sum has the interval from the beginning of this one to the end of `later`.
    pub fn add(&mut self, later: Record) {
        self.end = later.end;
        self.duration_ns = self.duration_ns.saturating_add(later.duration_ns);
        self.suspended_ns = self.suspended_ns.saturating_add(later.suspended_ns);
        self.machine.add(later.machine);
        self.left_out = self.left_out.max(later.left_out);
        // Units mostly stay in their order: look for each where the previous one was found.
        let mut next = 0;
        let mut index: Option<BTreeMap<String, usize>> = None;
        for unit in later.units {
            if self.units.get(next).is_some_and(|here| here.unit == unit.unit) {
                self.units[next].add(unit);
                next += 1;
                continue;
            }
            let index = index.get_or_insert_with(|| {
                self.units.iter().enumerate().map(|(at, unit)| (unit.unit.clone(), at)).collect()
            });
            if let Some(at) = index.get(&unit.unit) {
                self.units[*at].add(unit);
                next = at + 1;
            } else {
                index.insert(unit.unit.clone(), self.units.len());
                self.units.push(unit);
            }
        }
    }

    /// Keeps the record within the bounds of written records.
    pub(crate) fn bound(&mut self) {
        if self.units.len() > UNITS_MAX {
            self.leave_out_to(UNITS_MAX);
        }
        for unit in &mut self.units {
            unit.bound();
        }
    }

    /// Leaves out all but `count` units: those that are nested most deeply, and of these the last.
    pub(crate) fn leave_out_to(&mut self, count: usize) {
        let depth = |unit: &UnitUse| unit.unit.matches('/').count();
        let mut order: Vec<usize> = (0..self.units.len()).collect();
        order.sort_by_key(|at| depth(&self.units[*at]));
        let mut keep = vec![false; self.units.len()];
        order.iter().take(count).for_each(|at| keep[*at] = true);
        let before = self.units.len();
        let mut keep = keep.into_iter();
        self.units.retain(|_| keep.next().unwrap_or(false));
        let left_out = u32::try_from(before - self.units.len()).unwrap_or(u32::MAX);
        self.left_out = self.left_out.saturating_add(left_out);
    }
}

/// Adds a record to a sum that may still be empty.
pub fn add(sum: &mut Option<Record>, record: Record) {
    match sum {
        Some(sum) => sum.add(record),
        None => *sum = Some(Record { number: 0, through: 0, ..record }),
    }
}

/// The sum of records in ascending order; `None` if there are none.
pub fn sum(records: impl IntoIterator<Item = Record>) -> Option<Record> {
    let mut sum = None;
    for record in records {
        add(&mut sum, record);
    }
    sum
}

impl MachineUse {
    fn add(&mut self, later: MachineUse) {
        (self.cpus, self.memory_bytes) = (later.cpus, later.memory_bytes);
        self.capacity_ns = self.capacity_ns.saturating_add(later.capacity_ns);
        self.idle_ns = self.idle_ns.saturating_add(later.idle_ns);
        self.common_ns = self.common_ns.saturating_add(later.common_ns);
    }
}

impl UnitUse {
    /// Whether the unit neither had nor did anything.
    pub(crate) fn is_empty(&self) -> bool {
        let nothing = UnitUse {
            unit: self.unit.clone(),
            memory: self.memory.map(|_| MemoryUse::default()),
            disk: self.disk.map(|_| DiskUse::default()),
            // A verdict on a unit without processes says that it wanted nothing.
            verdicts: self.verdicts.clone(),
            ..UnitUse::default()
        };
        *self == nothing && self.verdicts.values().all(|verdict| *verdict != Verdict::Broken)
    }

    /// Adds the use of the same unit in a later interval. The number of processes is the larger of the two.
    pub fn add(&mut self, later: UnitUse) {
        self.processes = self.processes.max(later.processes);
        self.cpu.add(later.cpu);
        if let Some(memory) = later.memory {
            self.memory.get_or_insert_default().add(memory);
        }
        if let Some(disk) = later.disk {
            self.disk.get_or_insert_default().add(disk);
        }
        for (resource, call_backs) in later.call_backs {
            self.call_backs.entry(resource).or_default().add(call_backs);
        }
        for (resource, verdict) in later.verdicts {
            let worst = self.verdicts.entry(resource).or_insert(verdict);
            *worst = (*worst).max(verdict);
        }
        for wait in later.waits {
            add_wait(&mut self.waits, wait);
        }
        self.sort_waits();
        for user in later.users {
            add_user(&mut self.users, user);
        }
    }

    fn sort_waits(&mut self) {
        self.waits.sort_by(|a, b| (a.resource, b.ns, &a.cause).cmp(&(b.resource, a.ns, &b.cause)));
    }

    /// Keeps the number of causes and users within the bounds of written records.
    fn bound(&mut self) {
        if self.waits.len() > WAITS_MAX {
            self.waits.sort_by_key(|wait| std::cmp::Reverse(wait.ns));
            for wait in self.waits.split_off(WAITS_MAX - Resource::ALL.len()) {
                add_wait(&mut self.waits, Wait { cause: WaitCause::Unknown, ..wait });
            }
            self.sort_waits();
        }
        if self.users.len() > USERS_MAX {
            self.users.sort_by_key(|user| std::cmp::Reverse(user.used_ns));
            for user in self.users.split_off(USERS_MAX - 1) {
                add_user(&mut self.users, UserUse { uid: None, ..user });
            }
        }
    }
}

fn add_wait(waits: &mut Vec<Wait>, wait: Wait) {
    match waits.iter_mut().find(|here| here.resource == wait.resource && here.cause == wait.cause) {
        Some(here) => {
            here.ns = here.ns.saturating_add(wait.ns);
            here.beyond_ns = here.beyond_ns.saturating_add(wait.beyond_ns);
            here.inferred_ns = here.inferred_ns.saturating_add(wait.inferred_ns);
        }
        None => waits.push(wait),
    }
}

fn add_user(users: &mut Vec<UserUse>, user: UserUse) {
    match users.iter_mut().find(|here| here.uid == user.uid) {
        Some(here) => here.used_ns = here.used_ns.saturating_add(user.used_ns),
        None => users.push(user),
    }
}

impl CpuUse {
    fn add(&mut self, later: CpuUse) {
        self.entitled_ns = self.entitled_ns.saturating_add(later.entitled_ns);
        self.used_ns = self.used_ns.saturating_add(later.used_ns);
        self.lent_ns = self.lent_ns.saturating_add(later.lent_ns);
        self.borrowed_ns = self.borrowed_ns.saturating_add(later.borrowed_ns);
        self.waited_ns = self.waited_ns.saturating_add(later.waited_ns);
    }
}

impl MemoryUse {
    fn add(&mut self, later: MemoryUse) {
        self.entitled_byte_ms = self.entitled_byte_ms.saturating_add(later.entitled_byte_ms);
        self.used_byte_ms = self.used_byte_ms.saturating_add(later.used_byte_ms);
        self.lent_byte_ms = self.lent_byte_ms.saturating_add(later.lent_byte_ms);
        self.borrowed_byte_ms = self.borrowed_byte_ms.saturating_add(later.borrowed_byte_ms);
        self.waited_ns = self.waited_ns.saturating_add(later.waited_ns);
    }
}

impl DiskUse {
    fn add(&mut self, later: DiskUse) {
        self.entitled_bytes = self.entitled_bytes.saturating_add(later.entitled_bytes);
        self.read_bytes = self.read_bytes.saturating_add(later.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(later.written_bytes);
        self.lent_bytes = self.lent_bytes.saturating_add(later.lent_bytes);
        self.borrowed_bytes = self.borrowed_bytes.saturating_add(later.borrowed_bytes);
        self.waited_ns = self.waited_ns.saturating_add(later.waited_ns);
    }
}

impl CallBacks {
    fn add(&mut self, later: CallBacks) {
        self.count = self.count.saturating_add(later.count);
        self.late = self.late.saturating_add(later.late);
        self.max_ns = self.max_ns.max(later.max_ns);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{busy, record, second};

    #[test]
    fn moments() {
        let at = |boot, wall_ms, boot_ms: u64| Moment { wall_ms, boot, boot_ns: boot_ms * 1_000_000 };
        let (a, later) = (at(1, 10_000, 500), at(1, 4_000, 1_500));
        assert_eq!((a.until_ns(&later), a.clock_set_ms(&later)), (1_000_000_000, -7_000));
        let next_boot = at(2, 12_000, 3);
        assert_eq!((a.until_ns(&next_boot), a.clock_set_ms(&next_boot)), (2_000_000_000, 0));
        assert_eq!(next_boot.until_ns(&a), 0);
    }

    #[test]
    fn a_sum_has_the_units_of_all_records() {
        let mut later = record(70, 80, 5);
        later.units.insert(0, busy("b", 1));
        let sum = sum([second(0), later.clone(), later]).unwrap();
        assert_eq!(sum.unit("a").unwrap().cpu.used_ns, 11);
        let (b, once) = (sum.unit("b").unwrap(), busy("b", 1));
        assert_eq!(b.cpu.used_ns, 2 * once.cpu.used_ns);
        assert_eq!((b.waits.len(), b.waits[0].ns, b.processes), (3, 2 * once.waits[0].ns, 12));
        assert_eq!((b.call_backs[&Resource::Cpu].count, b.verdicts.len()), (18, 3));
        // The records are a second and two of ten seconds; the second one begins at 70 twice.
        assert_eq!((sum.duration_ns, sum.missing_ns()), (21_000_000_000, 59_000_000_000));
    }

    #[test]
    fn written_records_are_bounded() {
        let mut record = second(0);
        record.units = (0..UNITS_MAX + 5).map(|n| busy(&format!("a/{n}"), 1)).collect();
        record.units.push(busy("outer", 1));
        let outer = record.units.last_mut().unwrap();
        outer.waits = (0..1_000)
            .map(|n| Wait {
                resource: Resource::ALL[n % 4],
                cause: WaitCause::Unit { unit: n.to_string() },
                ns: n as u64,
                beyond_ns: 1,
                inferred_ns: 0,
            })
            .collect();
        outer.users = (0..1_000).map(|n| UserUse { uid: Some(n), used_ns: u64::from(n) }).collect();
        record.bound();
        assert_eq!((record.units.len(), record.left_out), (UNITS_MAX, 6));
        let outer = record.unit("outer").unwrap();
        assert_eq!((outer.waits.len(), outer.users.len()), (WAITS_MAX, USERS_MAX));
        assert_eq!(outer.waits.iter().map(|wait| wait.ns).sum::<u64>(), 999 * 500);
        assert_eq!(outer.users.iter().map(|user| user.used_ns).sum::<u64>(), 999 * 500);
        assert!(outer.users.iter().any(|user| user.uid.is_none()));
    }
}
