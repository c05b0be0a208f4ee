//! The record of the time between two statements of the ledger.

use std::collections::BTreeMap;

use commonhold_contract::Resource;
use commonhold_ledger::{Account, DiskAccount, MemoryAccount, Statement, Wait};

use crate::record::{CallBacks, CpuUse, DiskUse, MachineUse, MemoryUse, Moment, Record, UnitUse, UserUse};

/// CPU time in nanoseconds since the daemon began, by the path of a unit and by user, sub-units excluded. The
/// user `None` stands for all further users.
pub type UsersCpu = BTreeMap<String, BTreeMap<Option<u32>, u64>>;

/// The least time for which the machine was suspended that a record has, in nanoseconds. The two clocks are
/// read one after another, and are not compared more closely.
const SUSPENDED_MIN_NS: u64 = 2_000_000_000;

/// The ledger's statement at a moment. Two samples of one daemon give a record.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// The moment.
    pub at: Moment,
    /// The statement.
    pub statement: Statement,
    /// CPU time by unit and user.
    pub users: UsersCpu,
}

impl Sample {
    /// The record of the time from one sample to a later one of the same daemon. Its number is not set yet.
    ///
    /// A unit that the earlier sample does not have began in between. An account that was closed in between
    /// has nothing to add: the time since the earlier sample is lost for that unit, but not for the unit
    /// that encloses it.
    pub fn between(before: &Sample, after: &Sample) -> Record {
        let (from, to) = (&before.statement, &after.statement);
        let since = |part: fn(&Statement) -> u64| part(to).saturating_sub(part(from));
        // Both statements mostly list the same units in the same order.
        let mut others: Option<BTreeMap<&str, &Account>> = None;
        let mut account_before = |at: usize, unit: &str| match from.accounts.get(at) {
            Some(account) if account.unit == unit => Some(account),
            _ => others
                .get_or_insert_with(|| {
                    from.accounts.iter().map(|account| (account.unit.as_str(), account)).collect()
                })
                .get(unit)
                .copied(),
        };
        let fresh = Account::default();
        let units = to.accounts.iter().enumerate().map(|(at, account)| {
            let earlier = account_before(at, &account.unit).unwrap_or(&fresh);
            let users = users_between(before.users.get(&account.unit), after.users.get(&account.unit));
            unit_between(earlier, account, users)
        });
        let duration_ns = since(|statement| statement.elapsed_ns);
        let suspended_ns = before.at.until_ns(&after.at).saturating_sub(duration_ns);
        Record {
            number: 0,
            through: 0,
            start: before.at,
            end: after.at,
            duration_ns,
            // The ledger's clock stops meanwhile.
            suspended_ns: if suspended_ns < SUSPENDED_MIN_NS { 0 } else { suspended_ns },
            machine: MachineUse {
                cpus: to.cpus,
                memory_bytes: to.memory.map_or(0, |memory| memory.divided),
                capacity_ns: since(|statement| statement.capacity_ns),
                idle_ns: since(|statement| statement.idle_ns),
                common_ns: since(|statement| statement.common_ns),
            },
            units: units.filter(|unit| !unit.is_empty()).collect(),
            left_out: 0,
        }
    }
}

fn unit_between(before: &Account, after: &Account, users: Vec<UserUse>) -> UnitUse {
    let since = |part: fn(&Account) -> u64| part(after).saturating_sub(part(before));
    let mut call_backs = BTreeMap::new();
    let mut add = |resource, found: CallBacks| {
        if found.count > 0 {
            call_backs.insert(resource, found);
        }
    };
    let count = since(|account| account.called_back);
    add(
        Resource::Cpu,
        CallBacks {
            count,
            late: since(|account| account.call_backs_late),
            // The ledger has the longest since it was opened. All of the interval's together are no less
            // than the longest of these.
            max_ns: after.call_back_max_ns.min(since(|account| account.call_back_sum_ns)),
        },
    );
    if let Some(memory) = &after.memory {
        add(Resource::Memory, memory_call_backs(before.memory.as_ref(), memory));
    }
    if let Some(disk) = &after.disk {
        let count = disk.called_back.saturating_sub(before.disk.as_ref().map_or(0, |disk| disk.called_back));
        add(Resource::Disk, CallBacks { count, late: 0, max_ns: disk.call_back_max_ns });
    }
    UnitUse {
        unit: after.unit.clone(),
        processes: after.processes,
        cpu: CpuUse {
            entitled_ns: since(|account| account.entitled_ns),
            used_ns: since(|account| account.used_ns),
            lent_ns: since(|account| account.lent_ns),
            borrowed_ns: since(|account| account.borrowed_ns),
            waited_ns: since(|account| account.waited_ns),
        },
        memory: after.memory.as_ref().map(|memory| memory_between(before.memory.as_ref(), memory)),
        disk: after.disk.as_ref().map(|disk| disk_between(before.disk.as_ref(), disk)),
        call_backs,
        waits: waits_between(&before.waits, &after.waits),
        verdicts: after.findings.iter().map(|finding| (finding.resource, finding.verdict)).collect(),
        users,
    }
}

fn memory_between(before: Option<&MemoryAccount>, after: &MemoryAccount) -> MemoryUse {
    const NS_PER_MS: u128 = 1_000_000;
    let fresh = MemoryAccount::default();
    let before = before.unwrap_or(&fresh);
    // Both sums are rounded, not the difference, so that rounding errors do not add up.
    let since =
        |part: fn(&MemoryAccount) -> u128| (part(after) / NS_PER_MS).saturating_sub(part(before) / NS_PER_MS);
    MemoryUse {
        entitled_byte_ms: since(|memory| memory.integrals.entitled_byte_ns),
        used_byte_ms: since(|memory| memory.integrals.used_byte_ns),
        lent_byte_ms: since(|memory| memory.integrals.lent_byte_ns),
        borrowed_byte_ms: since(|memory| memory.integrals.borrowed_byte_ns),
        waited_ns: after.waited_ns.saturating_sub(before.waited_ns),
    }
}

fn memory_call_backs(before: Option<&MemoryAccount>, after: &MemoryAccount) -> CallBacks {
    let fresh = MemoryAccount::default();
    let before = before.unwrap_or(&fresh);
    let count = after.called_back.saturating_sub(before.called_back);
    let listed = usize::try_from(count).ok().filter(|count| *count <= after.last_call_backs.len());
    // If there were more than the account lists, the longest of all is an upper bound.
    let max_ns = listed.map_or(after.call_back_max_ns, |count| {
        after.last_call_backs.iter().rev().take(count).map(|back| back.took_ns).max().unwrap_or(0)
    });
    CallBacks { count, late: after.call_backs_late.saturating_sub(before.call_backs_late), max_ns }
}

fn disk_between(before: Option<&DiskAccount>, after: &DiskAccount) -> DiskUse {
    let fresh = DiskAccount::default();
    let before = before.unwrap_or(&fresh);
    let since = |part: fn(&DiskAccount) -> u64| part(after).saturating_sub(part(before));
    DiskUse {
        entitled_bytes: since(|disk| disk.entitled_bytes),
        read_bytes: since(|disk| disk.read_bytes),
        written_bytes: since(|disk| disk.written_bytes),
        lent_bytes: since(|disk| disk.lent_bytes),
        borrowed_bytes: since(|disk| disk.borrowed_bytes),
        waited_ns: since(|disk| disk.waited_ns),
    }
}

/// The waits that grew, the causes of a resource in the order of their growth.
fn waits_between(before: &[Wait], after: &[Wait]) -> Vec<Wait> {
    let earlier: BTreeMap<_, &Wait> =
        before.iter().map(|wait| ((wait.resource, &wait.cause), wait)).collect();
    let mut grown: Vec<Wait> = after
        .iter()
        .map(|wait| {
            let since = |part: fn(&Wait) -> u64| {
                let before = earlier.get(&(wait.resource, &wait.cause)).map_or(0, |wait| part(wait));
                part(wait).saturating_sub(before)
            };
            Wait {
                ns: since(|wait| wait.ns),
                beyond_ns: since(|wait| wait.beyond_ns),
                inferred_ns: since(|wait| wait.inferred_ns),
                ..wait.clone()
            }
        })
        .filter(|wait| wait.ns > 0)
        .collect();
    grown.sort_by(|a, b| (a.resource, b.ns).cmp(&(b.resource, a.ns)));
    grown
}

fn users_between(
    before: Option<&BTreeMap<Option<u32>, u64>>,
    after: Option<&BTreeMap<Option<u32>, u64>>,
) -> Vec<UserUse> {
    let earlier = |uid: &Option<u32>| before.and_then(|users| users.get(uid)).copied().unwrap_or(0);
    let since =
        |(uid, ns): (&Option<u32>, &u64)| UserUse { uid: *uid, used_ns: ns.saturating_sub(earlier(uid)) };
    after.into_iter().flatten().map(since).filter(|user| user.used_ns > 0).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use commonhold_ledger::{Finding, FindingReason, MemoryIntegrals, Return, Verdict, WaitCause};

    fn account(unit: &str, n: u64) -> Account {
        let wait = |cause, ns| Wait { resource: Resource::Cpu, cause, ns, beyond_ns: ns / 2, inferred_ns: 0 };
        Account {
            unit: unit.to_owned(),
            processes: 2,
            entitled_ns: 100 * n,
            used_ns: 50 * n,
            lent_ns: 7 * n,
            borrowed_ns: 3 * n,
            waited_ns: 9 * n,
            called_back: n,
            call_back_sum_ns: 10 * n,
            call_back_max_ns: 500,
            call_backs_late: n / 2,
            disk: Some(DiskAccount { read_bytes: 4 * n, called_back: n, ..DiskAccount::default() }),
            memory: Some(MemoryAccount {
                integrals: MemoryIntegrals {
                    used_byte_ns: u128::from(n) * 1_500_000,
                    ..MemoryIntegrals::default()
                },
                called_back: n,
                call_backs_late: n / 2,
                last_call_backs: [90, 20, 30].map(|took_ns| Return { took_ns, ..Return::default() }).to_vec(),
                call_back_max_ns: 1_000,
                ..MemoryAccount::default()
            }),
            waits: vec![wait(WaitCause::Own, 5), wait(WaitCause::Switch, n), wait(WaitCause::Limit, 2 * n)],
            findings: vec![Finding {
                resource: Resource::Disk,
                verdict: Verdict::Broken,
                reason: FindingReason::HadWanted,
                entitled: 1,
                wanted: 1,
                had: 0,
            }],
            ..Account::default()
        }
    }

    fn sample(second: u64, accounts: Vec<Account>) -> Sample {
        let statement = Statement {
            cpus: 4,
            elapsed_ns: second * 1_000,
            capacity_ns: second * 4_000,
            idle_ns: second * 100,
            accounts,
            ..Statement::default()
        };
        let at = Moment { wall_ms: second, boot: 1, boot_ns: second * 1_000_000 };
        let users = BTreeMap::from([(Some(7), second * 2), (Some(8), 5), (None, second)]);
        Sample { at, statement, users: BTreeMap::from([("a".to_owned(), users)]) }
    }

    #[test]
    fn a_record_has_the_differences() {
        let before = sample(3, vec![account("a", 3), account("gone", 9), account("idle", 0)]);
        let idle = Account { unit: "idle".to_owned(), ..Account::default() };
        let after = sample(5, vec![account("new", 1), account("a", 5), idle]);
        let record = Sample::between(&before, &after);
        assert_eq!((record.start, record.end, record.duration_ns), (before.at, after.at, 2_000));
        assert_eq!(
            (record.machine.cpus, record.machine.capacity_ns, record.machine.idle_ns),
            (4, 8_000, 200)
        );
        let units: Vec<&str> = record.units.iter().map(|unit| unit.unit.as_str()).collect();
        assert_eq!(units, ["new", "a"]);
        assert_eq!(record.unit("new").unwrap().cpu.used_ns, 50);
        let a = record.unit("a").unwrap();
        let cpu = CpuUse { entitled_ns: 200, used_ns: 100, lent_ns: 14, borrowed_ns: 6, waited_ns: 18 };
        assert_eq!((a.cpu, a.processes, a.disk.unwrap().read_bytes), (cpu, 2, 8));
        // 4.5 and 7.5 byte-milliseconds, each rounded down.
        assert_eq!(a.memory.unwrap().used_byte_ms, 3);
        let back = |count, late, max_ns| CallBacks { count, late, max_ns };
        // Two call-backs of 20 ns together; the latest two of three; one without a time.
        assert_eq!(
            a.call_backs.clone().into_iter().collect::<Vec<_>>(),
            [
                (Resource::Cpu, back(2, 1, 20)),
                (Resource::Memory, back(2, 1, 30)),
                (Resource::Disk, back(2, 0, 0))
            ]
        );
        let waits: Vec<_> = a.waits.iter().map(|wait| (wait.cause.clone(), wait.ns)).collect();
        assert_eq!(waits, [(WaitCause::Limit, 4), (WaitCause::Switch, 2)]);
        assert_eq!(a.verdicts, BTreeMap::from([(Resource::Disk, Verdict::Broken)]));
        let user = |uid, used_ns| UserUse { uid, used_ns };
        assert_eq!(a.users, [user(None, 2), user(Some(7), 4)]);
    }

    #[test]
    fn the_clock_that_stops_tells_that_the_machine_was_suspended() {
        let (before, mut after) = (sample(3, vec![]), sample(5, vec![]));
        after.at.boot_ns += 1_990_000_000;
        assert_eq!(Sample::between(&before, &after).suspended_ns, 0);
        after.at.boot_ns += 60_000_000_000;
        let record = Sample::between(&before, &after);
        assert_eq!((record.duration_ns, record.suspended_ns), (2_000, record.missing_ns()));
        let twice = crate::sum([record.clone(), record.clone()]).unwrap();
        assert_eq!(twice.suspended_ns, 2 * record.suspended_ns);
    }

    /// An account that was closed, and opened again, has less than before.
    #[test]
    fn sums_that_shrink_count_as_nothing() {
        let record = Sample::between(&sample(5, vec![account("a", 5)]), &sample(4, vec![account("a", 4)]));
        assert_eq!((record.duration_ns, record.unit("a").unwrap().cpu), (0, CpuUse::default()));
    }
}
