//! Figures 2 and 10 and sections 4.3, 4.4 and 4.6 of seed 000: four-way machines, CPU isolation, memory
//! isolation.

use commonhold_contract::Scheme::{self, Isolate, Quota, Smp};
use commonhold_sim_report::claims::Tolerance;

use super::{Row, above, below, between, parameter, predicted};
use crate::experiments::{
    CPU_ISOLATION, DUMP, Experiment, MEMORY_AMPLE, MEMORY_BALANCED, MEMORY_HALF, MEMORY_UNBALANCED, OTHERS,
    UNIPROCESSOR, on,
};
use crate::measure::{Seed, divide, smallest_step};

pub(crate) const UP: Experiment = on(UNIPROCESSOR, Smp);
pub(crate) const MP1_SMP: Experiment = on(OTHERS[0], Smp);
pub(crate) const MP1_ISOLATE: Experiment = on(OTHERS[0], Isolate);
pub(crate) const MP6_SMP: Experiment = on(OTHERS[5], Smp);
pub(crate) const MP6_ISOLATE: Experiment = on(OTHERS[5], Isolate);
pub(crate) const DUMP_SMP: Experiment = on(DUMP, Smp);
pub(crate) const DUMP_ISOLATE: Experiment = on(DUMP, Isolate);
const LOADS: [Experiment; 6] =
    [MP1_SMP, on(OTHERS[1], Smp), on(OTHERS[2], Smp), on(OTHERS[3], Smp), on(OTHERS[4], Smp), MP6_SMP];

/// The experiments of [`f9_5`]: the light unit beside a heavy one, and the light unit's job on half of the
/// machine.
pub(super) const F9_5: &[Experiment] = &[on(MEMORY_UNBALANCED, Isolate), on(MEMORY_HALF, Smp)];

/// The light unit's response time, divided by that on half of the machine.
pub(super) fn f9_5(at: Seed) -> Option<f64> {
    at.change(&["u1"], on(MEMORY_UNBALANCED, Isolate), on(MEMORY_HALF, Smp))
}

const fn cpu(scheme: Scheme) -> Experiment {
    on(CPU_ISOLATION, scheme)
}

/// The response time of a type of job under a scheme, divided by that without isolation (`smp`).
fn by_smp(at: Seed, job: &str, scheme: Scheme) -> Option<f64> {
    at.change(&[job], cpu(scheme), cpu(Smp))
}

/// A user's response time in the unbalanced configuration, divided by that in the balanced one, under the
/// same scheme.
fn by_balanced(at: Seed, user: &str, scheme: Scheme) -> Option<f64> {
    at.change(&[user], on(MEMORY_UNBALANCED, scheme), on(MEMORY_BALANCED, scheme))
}

/// The page faults of the second user's jobs in a run under quota.
fn faults(at: Seed, run: Experiment) -> Option<f64> {
    at.spent(run, &["u2"], |spent| spent.faults)
}

const CONFIGURATION: &str = "simulator/claims/tests/configuration.rs: four_ways_are_four_uniprocessors";

pub(super) const ROWS: &[Row] = &[
    parameter(
        ("PI-F2-UP", "figure 2", "Response time of one make on one CPU, the baseline of figure 2", "100"),
        &[CONFIGURATION],
    ),
    parameter(
        (
            "PI-F2-CFG",
            "1.1",
            "Four CPUs, with four times the memory and disks; one make, six makes, or four and a core dump",
            "",
        ),
        &[CONFIGURATION],
    ),
    predicted(
        (
            "PI-F2-MP1",
            "1.1",
            "Response time of a make alone on four CPUs without isolation, relative to one CPU",
            "35 % less",
        ),
        between(0.60, 0.70),
        &[MP1_SMP, UP],
        |at| at.change(&["a"], MP1_SMP, UP),
    ),
    predicted(
        (
            "PI-F2-MP6",
            "1.1",
            "Response time of a make beside five others without isolation, relative to alone on one CPU",
            "236 %",
        ),
        between(2.006, 2.714),
        &[MP6_SMP, UP],
        |at| at.change(&["a"], MP6_SMP, UP),
    )
    .note("the paper does not state this machine's memory; the model has 44 MB, as the kernel-intensive machine"),
    predicted(
        (
            "PI-F2-MP4D",
            "1.1",
            "Response time of a make beside three makes and a core dump without isolation, relative to one CPU",
            "over 300 %",
        ),
        Tolerance::AtLeast { low: 2.5 },
        &[DUMP_SMP, UP],
        |at| at.change(&["a"], DUMP_SMP, UP),
    ),
    predicted(
        (
            "PI-F2-Q",
            "1.1",
            "Smallest ratio of successive response times as other users' makes grow from 0 to 5, no isolation",
            "",
        ),
        above(1.0),
        &LOADS,
        |at| {
            let times: Option<Vec<f64>> = LOADS.iter().map(|run| at.response(*run, &["a"])).collect();
            smallest_step(&times?)
        },
    ),
    predicted(
        ("PI-F8-1a", "4.3", "Response time of Ocean under isolation, relative to no isolation", ""),
        below(0.85),
        &[cpu(Isolate), cpu(Smp)],
        |at| by_smp(at, "ocean", Isolate),
    ),
    predicted(
        ("PI-F8-1b", "4.3", "Response time of Ocean under fixed quotas, relative to no isolation", ""),
        below(0.85),
        &[cpu(Quota), cpu(Smp)],
        |at| by_smp(at, "ocean", Quota),
    ),
    predicted(
        (
            "PI-F8-2a",
            "4.3",
            "Response time of Flashlite under fixed quotas (six jobs on four CPUs), relative to no isolation",
            "",
        ),
        between(1.1, 1.3),
        &[cpu(Quota), cpu(Smp)],
        |at| by_smp(at, "flashlite", Quota),
    ),
    predicted(
        (
            "PI-F8-2b",
            "4.3",
            "Response time of VCS under fixed quotas (six jobs on four CPUs), relative to no isolation",
            "",
        ),
        between(1.1, 1.3),
        &[cpu(Quota), cpu(Smp)],
        |at| by_smp(at, "vcs", Quota),
    ),
    predicted(
        ("PI-F8-3a", "4.3", "Response time of Flashlite under isolation, relative to no isolation", ""),
        between(0.9, 1.1),
        &[cpu(Isolate), cpu(Smp)],
        |at| by_smp(at, "flashlite", Isolate),
    ),
    predicted(
        ("PI-F8-3b", "4.3", "Response time of VCS under isolation, relative to no isolation", ""),
        between(0.9, 1.1),
        &[cpu(Isolate), cpu(Smp)],
        |at| by_smp(at, "vcs", Isolate),
    ),
    parameter(
        (
            "PI-F8-4",
            "4.3",
            "Ten processes on eight CPUs; memory suffices, and kernel work occurs only at the start",
            "",
        ),
        &["simulator/claims/tests/configuration.rs: cpu_isolation"],
    ),
    predicted(
        (
            "PI-F9-1a",
            "4.4",
            "Response time of user 1 under isolation, when user 2 has two jobs relative to one job",
            "",
        ),
        below(1.08),
        &[on(MEMORY_UNBALANCED, Isolate), on(MEMORY_BALANCED, Isolate)],
        |at| by_balanced(at, "u1", Isolate),
    ),
    predicted(
        (
            "PI-F9-1b",
            "4.4",
            "Response time of user 1 under fixed quotas, when user 2 has two jobs relative to one job",
            "",
        ),
        below(1.08),
        &[on(MEMORY_UNBALANCED, Quota), on(MEMORY_BALANCED, Quota)],
        |at| by_balanced(at, "u1", Quota),
    ),
    predicted(
        (
            "PI-F9-1c",
            "4.4",
            "Response time of user 1 without isolation, when user 2 has two jobs relative to one job",
            "",
        ),
        above(1.20),
        &[on(MEMORY_UNBALANCED, Smp), on(MEMORY_BALANCED, Smp)],
        |at| by_balanced(at, "u1", Smp),
    ),
    predicted(
        (
            "PI-F9-2",
            "4.4",
            "Response time of user 2 (two jobs) under fixed quotas with 16 MB, relative to ample memory",
            "",
        ),
        above(1.2),
        &[on(MEMORY_UNBALANCED, Quota), on(MEMORY_AMPLE, Quota)],
        |at| at.change(&["u2"], on(MEMORY_UNBALANCED, Quota), on(MEMORY_AMPLE, Quota)),
    ),
    predicted(
        (
            "PI-F9-3a",
            "4.4",
            "Response time of user 2 (two jobs) under isolation, relative to no isolation",
            "",
        ),
        between(0.8, 1.2),
        &[on(MEMORY_UNBALANCED, Isolate), on(MEMORY_UNBALANCED, Smp)],
        |at| at.change(&["u2"], on(MEMORY_UNBALANCED, Isolate), on(MEMORY_UNBALANCED, Smp)),
    ),
    predicted(
        (
            "PI-F9-3b",
            "4.4",
            "Response time of user 2 (two jobs) under isolation, relative to fixed quotas",
            "",
        ),
        below(1.0),
        &[on(MEMORY_UNBALANCED, Isolate), on(MEMORY_UNBALANCED, Quota)],
        |at| at.change(&["u2"], on(MEMORY_UNBALANCED, Isolate), on(MEMORY_UNBALANCED, Quota)),
    ),
    predicted(
        (
            "PI-F9-4",
            "4.4",
            "Page faults per job of user 2 under fixed quotas, with two jobs relative to one job",
            "",
        ),
        above(5.0),
        &[on(MEMORY_UNBALANCED, Quota), on(MEMORY_BALANCED, Quota)],
        |at| {
            let one = faults(at, on(MEMORY_BALANCED, Quota))?.max(1.0);
            divide(faults(at, on(MEMORY_UNBALANCED, Quota))?, one)
        },
    )
    .note("with one job, at least one fault is assumed"),
    predicted(
        (
            "PI-F9-5",
            "4.4",
            "Response time of user 1 beside two jobs under isolation, relative to alone on half of the machine",
            "+4 %",
        ),
        between(1.02, 1.06),
        F9_5,
        f9_5,
    ),
    predicted(
        (
            "PI-F10-1",
            "4.6",
            "Response time of a make alone on four CPUs under isolation, relative to no isolation",
            "",
        ),
        between(0.95, 1.05),
        &[MP1_ISOLATE, MP1_SMP],
        |at| at.change(&["a"], MP1_ISOLATE, MP1_SMP),
    ),
    predicted(
        (
            "PI-F10-2a",
            "4.6",
            "Response time of a make beside five others under isolation, relative to no isolation",
            "over 50 % less",
        ),
        Tolerance::AtMost { high: 0.50 },
        &[MP6_ISOLATE, MP6_SMP],
        |at| at.change(&["a"], MP6_ISOLATE, MP6_SMP),
    ),
    predicted(
        (
            "PI-F10-2b",
            "4.6",
            "Response time of a make beside five others under isolation, relative to one CPU (half of 236 %)",
            "",
        ),
        Tolerance::AtMost { high: 1.18 },
        &[MP6_ISOLATE, UP],
        |at| at.change(&["a"], MP6_ISOLATE, UP),
    ),
    predicted(
        (
            "PI-F10-2c",
            "4.6",
            "Response time of a make beside three makes and a core dump under isolation, relative to no isolation",
            "over 50 % less",
        ),
        Tolerance::AtMost { high: 0.50 },
        &[DUMP_ISOLATE, DUMP_SMP],
        |at| at.change(&["a"], DUMP_ISOLATE, DUMP_SMP),
    ),
    predicted(
        (
            "PI-F10-3",
            "4.6",
            "Response time of a make beside three makes and a core dump under isolation, relative to one CPU",
            "+47 %",
        ),
        between(1.27, 1.67),
        &[DUMP_ISOLATE, UP],
        |at| at.change(&["a"], DUMP_ISOLATE, UP),
    ),
];
