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

/// Each thread that scans pages takes at most 1/800 of the machine's CPU time.
const THREAD_COST: u32 = 800;

/// How long a thread pauses after a scan, so that it stays within [`THREAD_COST`] of all CPUs together.
fn rest_after(took: Duration) -> Duration {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    took * (THREAD_COST / u32::try_from(cpus).unwrap_or(THREAD_COST)).max(1)
}
