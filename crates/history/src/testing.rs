//! Records for tests.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use commonhold_contract::Resource;
use commonhold_ledger::{Verdict, Wait, WaitCause};

use crate::record::{CallBacks, CpuUse, DiskUse, MachineUse, MemoryUse, Moment, Record, UnitUse, UserUse};

pub(crate) const HOUR_MS: u64 = 3_600_000;
/// The beginning of an hour.
pub(crate) const START_MS: u64 = 1_795_000_000_000 / HOUR_MS * HOUR_MS;

/// A moment, in seconds after [`START_MS`].
fn moment(second: u64) -> Moment {
    Moment { wall_ms: START_MS + second * 1_000, boot: 7, boot_ns: (1_000 + second) * 1_000_000_000 }
}

/// The record from one second to another, in which unit `a` used `used_ns`.
pub(crate) fn record(from: u64, to: u64, used_ns: u64) -> Record {
    let unit = UnitUse {
        unit: "a".to_owned(),
        processes: 1,
        cpu: CpuUse { used_ns, ..CpuUse::default() },
        ..UnitUse::default()
    };
    let duration_ns = (to - from) * 1_000_000_000;
    Record {
        start: moment(from),
        end: moment(to),
        duration_ns,
        machine: MachineUse { cpus: 8, capacity_ns: 8 * duration_ns, ..MachineUse::default() },
        units: vec![unit],
        ..Record::default()
    }
}

/// The record of one second, in which unit `a` used one nanosecond.
pub(crate) fn second(n: u64) -> Record {
    record(n, n + 1, 1)
}

/// A unit that did all there is to do in a second.
pub(crate) fn busy(unit: &str, n: u64) -> UnitUse {
    let ns = |percent: u64| percent * 10_000_000 + n * 977 % 9_999_999;
    let byte_ms = |mib: u128| mib * 1_048_576_000 + u128::from(n) * 4_096_000;
    let wait = |cause, percent| Wait {
        resource: Resource::Cpu,
        cause,
        ns: ns(percent),
        beyond_ns: ns(percent / 2),
        inferred_ns: 0,
    };
    UnitUse {
        unit: unit.to_owned(),
        processes: 12,
        cpu: CpuUse {
            entitled_ns: ns(80),
            used_ns: ns(70),
            lent_ns: ns(20),
            borrowed_ns: ns(10),
            waited_ns: ns(30),
        },
        memory: Some(MemoryUse {
            entitled_byte_ms: byte_ms(2_000),
            used_byte_ms: byte_ms(1_500),
            lent_byte_ms: byte_ms(300),
            borrowed_byte_ms: 0,
            waited_ns: ns(1),
        }),
        disk: Some(DiskUse {
            entitled_bytes: 30_000_000 + n,
            read_bytes: 10_000_000 + n,
            written_bytes: 15_000_000 + n,
            lent_bytes: 5_000_000,
            borrowed_bytes: 0,
            waited_ns: ns(5),
        }),
        call_backs: BTreeMap::from([(Resource::Cpu, CallBacks { count: 9, late: 0, max_ns: 8_000_000 })]),
        waits: vec![
            wait(WaitCause::Unit { unit: "students".to_owned() }, 20),
            wait(WaitCause::Own, 8),
            wait(WaitCause::Switch, 2),
        ],
        verdicts: Resource::ALL
            .into_iter()
            .zip([Verdict::Kept, Verdict::Broken, Verdict::CannotTell])
            .collect(),
        users: vec![UserUse { uid: Some(1_000), used_ns: ns(70) }],
    }
}

/// A unit that lent all that it was entitled to of the CPUs.
pub(crate) fn idle(unit: &str, n: u64) -> UnitUse {
    UnitUse {
        call_backs: BTreeMap::new(),
        waits: Vec::new(),
        users: Vec::new(),
        disk: Some(DiskUse::default()),
        cpu: CpuUse { entitled_ns: 1_000_000_000, lent_ns: 1_000_000_000, ..CpuUse::default() },
        ..busy(unit, n)
    }
}
