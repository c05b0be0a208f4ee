//! Measuring one run of a program: how long it takes, what its threads do, and which locks they wait for.
//!
//! [`program::run`] runs it once. A sampler reads its threads in `/proc` while it runs (`threads`,
//! `thread_sample`) and copies the stacks of those that wait (`waits`). A meter that is loaded into it counts
//! its locks (`meter`). With the feature `kernel`, a BPF program reports the kernel's locks and wake-ups
//! (`kernel_locks`).
//!
//! This crate only measures. The crate `commonhold-scale` interprets the measurements.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests start programs as they like"))]

mod child;
mod kernel_locks;
mod machine_counters;
mod meter;
mod metered;
mod perf_map;
mod polling;
pub mod program;
pub mod quota;
mod remote_memory;
mod running_stack;
mod stalls;
mod symbols;
mod taskstats;
mod thread_sample;
mod threads;
mod waits;
