//! The switch-time scheduler. It decides which task a CPU runs next, which CPU a woken task takes, and which
//! loan is called back.
//!
//! The scheduler is one C source, `dispatch.bpf.c`, written against the kernel's `sched_ext` interface.
//! Compiled for BPF, it runs in the kernel (`in_kernel`). Compiled natively, it runs in a simulated kernel
//! ([`Kernel`]), which implements the kernel's side of that interface: queues, idle CPUs, wake-ups, slices,
//! ticks and kicks.

#[cfg(feature = "kernel")]
pub mod in_kernel;
mod matches;
mod near;
#[cfg(feature = "kernel")]
pub mod sabotage;
mod simulated_kernel;
mod tables;
mod unit_rules;
mod waits;

pub use matches::{Lists, Match, decision};
pub use near::near;
pub use simulated_kernel::{Kernel, Kick, Reload, SLICE_NS, Settings, TaskId};
pub use tables::{
    ANYWHERE, Account, BORROWS, COMMON, CPUS_MAX, CallBacks, Cause, DEPTH_MAX, Deadlines, Discipline,
    GANGS_MAX, Had, Holder, KERNEL, LATENCIES, LENDS, NOBODY, Near, Recall, SEATS, UNITS_MAX, Unit,
};
pub use unit_rules::{Deadline, UnitRules};
