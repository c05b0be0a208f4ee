//! Memory: what the kernel tells of the machine's, of control groups' and of processes'.

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

/// The threads that look at pages take at most this part of the machine each.
const THREAD_PART: u32 = 800;

/// How long a thread rests that looked at pages for so long: for as long as it takes of one CPU what is allowed of all.
fn rest_after(took: Duration) -> Duration {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    took * (THREAD_PART / u32::try_from(cpus).unwrap_or(THREAD_PART)).max(1)
}
