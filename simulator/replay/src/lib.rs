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
//! Each task computes and sleeps as long as it did. A sleep after requests to a disk becomes a transfer of as
//! many bytes, whose length the simulated disk decides. A task that computed when the recording ended
//! computes on. Tasks in no unit are replayed, too, since they take CPU time from the units.
//!
//! # Limits
//!
//! A child starts at its recorded time, even if its parent is slower; a task does not wait for another task's
//! message, but for the recorded time. Writes that the kernel made later on behalf of a task are not
//! replayed. Pages of files are not replayed: a request to a disk is one in the simulation, too, whatever is
//! cached. The scheduler is always Commonhold's, also where the recorded backend was `cgroup` or `user`.

pub mod bounds;
pub mod figures;
pub mod recorded;
pub mod scenario;

pub use bounds::{Bounds, Comparison, Trust};
pub use figures::{Figures, UnitFigures};
pub use recorded::{Recorded, ReplayError};
