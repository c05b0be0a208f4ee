//! Replays a recording of a live machine in the simulator, under the recorded contract or another one, and
//! judges how far the replay can be trusted.
//!
//! The flow:
//! - [`recorded`] folds the blocks of a recording into the units' tasks and the figures that were measured;
//! - [`scenario`] makes a scenario of them: the recorded machine, a contract, and a job for each task;
//! - [`figures`] has the figures of each unit, taken alike from a recording and from a run;
//! - [`bounds`] has the registered bounds, and compares the replay of the recorded contract with the
//!   recording.
//!
//! # What is replayed
//!
//! Each task computes as long as it did, and forks its children where it did. A sleep from which another task
//! of a unit woke it lasts until that task has come as far. A sleep after requests to a disk becomes a
//! transfer of as many bytes, whose length the simulated disk decides. Other sleeps last as long as they did.
//! A task that was there when the recording ended begins again, since the replay may be faster. Tasks in no
//! unit are replayed, too, since they take CPU time from the units.
//!
//! # Limits
//!
//! A wake-up by an interrupt comes at its recorded time, even if another task caused it. Writes that the
//! kernel made later on behalf of a task are not replayed, and neither are affinity and nice values. Pages of
//! files are not replayed: a request to a disk is one in the simulation, too, whatever is cached. The
//! scheduler is always Commonhold's, also where the recorded backend was `cgroup` or `user`.

pub mod bounds;
pub mod figures;
pub mod recorded;
pub mod scenario;

pub use bounds::{Bounds, Comparison, Trust};
pub use figures::{Figures, UnitFigures};
pub use recorded::{Recorded, ReplayError};
