//! Memory of the machine, of control groups and of processes.

pub(crate) mod ages;
pub(crate) mod alarms;
pub(crate) mod around;
pub(crate) mod facts;
pub(crate) mod machine;
pub(crate) mod mappings;
pub(crate) mod portions;
pub(crate) mod sharing;
pub(crate) mod source;
pub(crate) mod swap;

use std::num::NonZero;
use std::thread;
use std::time::Duration;

/// Each thread that scans pages takes at most one part in 800 of the machine's CPU time.
const SCAN_COST_DIVISOR: u32 = 800;

/// How long a thread pauses after a scan of this duration, so that it takes at most 1/[`SCAN_COST_DIVISOR`]
/// of all CPUs together.
fn rest_after(scan: Duration) -> Duration {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    scan * (SCAN_COST_DIVISOR / u32::try_from(cpus).unwrap_or(SCAN_COST_DIVISOR)).max(1)
}
