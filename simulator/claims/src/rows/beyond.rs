//! Rows of this project's own, beyond the papers.

use commonhold_contract::Scheme::{Isolate, Quota, Smp};
use commonhold_sim::scenario::{CallBack, DiskOrder};
use commonhold_sim_report::claims::{Basis, Tolerance, Unit};

use super::kernel::LIGHT;
use super::machines::UP;
use super::{Row, predicted};
use crate::experiments::{
    CALL_BACK, DUMP, Experiment, KERNEL_ONE, KERNEL_UNBALANCED, MEMORY_HALF, MEMORY_UNBALANCED, on,
};
use crate::measure::{Seed, real};

const LIGHT_OF_EIGHT: Experiment = on(KERNEL_UNBALANCED, Isolate).uncontended();
const ONE_OF_EIGHT: Experiment = on(KERNEL_ONE, Quota).uncontended();
const LIGHT_OF_TWO: Experiment = on(MEMORY_UNBALANCED, Isolate).uncontended();
const HALF: Experiment = on(MEMORY_HALF, Smp).uncontended();
pub(crate) const DUMP_BATCHED: Experiment = on(DUMP, Isolate).order(DiskOrder::Batched);
const AT_ONCE: Experiment = on(CALL_BACK[1], Isolate).call_back(CallBack::Now);

/// The mean and the longest call-back time of the light unit, in us.
fn call_back_us(at: Seed) -> Option<(f64, f64)> {
    let unit = at.unit(AT_ONCE, "light").filter(|unit| unit.called_back > 0)?;
    Some((real(unit.call_back_mean_ns) / 1e3, real(unit.call_back_max_ns) / 1e3))
}

pub(super) const ROWS: &[Row] = &[
    predicted(
        (
            "OURS-LIGHT-8",
            "ours",
            "Response time of a light user of eight (isolated, no kernel contention), relative to its share alone",
            "",
        ),
        Tolerance::AtMost { high: 1.02 },
        &[LIGHT_OF_EIGHT, ONE_OF_EIGHT],
        |at| at.ratio((LIGHT_OF_EIGHT, &LIGHT), (ONE_OF_EIGHT, &["u1"])),
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-LIGHT-2",
            "ours",
            "Response time of the light user of two (isolated, no kernel contention), relative to half of the machine",
            "",
        ),
        Tolerance::AtMost { high: 1.02 },
        &[LIGHT_OF_TWO, HALF],
        |at| at.change(&["u1"], LIGHT_OF_TWO, HALF),
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-DUMP",
            "ours",
            "Make beside three makes and a core dump, disk in bounded batches: response time relative to one CPU",
            "",
        ),
        Tolerance::Below { bound: 1.47 },
        &[DUMP_BATCHED, UP],
        |at| at.change(&["a"], DUMP_BATCHED, UP),
    )
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-CALL-MEAN",
            "ours",
            "Mean call-back time of a lent CPU that is called back at once, by an interrupt",
            "",
        ),
        Tolerance::None,
        &[AT_ONCE],
        |at| Some(call_back_us(at)?.0),
    )
    .unit(Unit::Microseconds)
    .basis(Basis::Beyond),
    predicted(
        (
            "OURS-CALL-MAX",
            "ours",
            "Longest call-back time of a lent CPU that is called back at once, by an interrupt",
            "",
        ),
        Tolerance::None,
        &[AT_ONCE],
        |at| Some(call_back_us(at)?.1),
    )
    .unit(Unit::Microseconds)
    .basis(Basis::Beyond),
];
