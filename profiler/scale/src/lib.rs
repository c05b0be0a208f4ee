//! How a program scales with CPUs, and where its time goes.
//!
//! A *study* has the measurements: the same program at growing *sizes*, with several runs of each. The study
//! answers three questions, in this order:
//!
//! 1. How does it scale? [`scaling::scaling`]: Gunther's law, fitted (`fit`), with confidence bands.
//! 2. Where does the time go? [`growth::growth`]: the microstates of its threads ([`states`]) at the smallest
//!    and the largest size, and which of them grew.
//! 3. Who is to blame? [`blame::blame`]: the locks, interrupts and disks that threads wait for, and how much
//!    these waits grew.
//!
//! A fourth question is answered by an experiment: would mending a lock help ([`mend::mend`])?
//!
//! The crate is pure: numbers in, numbers out. `commonhold-measure` runs and samples the program;
//! `commonhold-scale-report` has the words and plots.

pub mod blame;
mod chance;
mod fit;
pub mod growth;
pub mod law;
pub mod locks;
pub mod mend;
mod observed;
mod order;
pub mod scaling;
pub mod states;
pub mod study;
pub mod verdict;

pub use fit::{Band, Bands, Fit, Point};
pub use order::{default_sizes, nearest};

/// A count as a floating-point number. Exact below 2^53, which is a hundred days in nanoseconds.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn real(n: u64) -> f64 {
    n as f64
}
