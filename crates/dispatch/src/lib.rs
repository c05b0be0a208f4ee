//! The switch-time scheduler: which task a CPU runs next, which CPU a woken task takes, which loan is called back.
//!
//! It is one C source, `dispatch.bpf.c`, written against the kernel's `sched_ext` interface. Compiled for BPF it runs in
//! the kernel; compiled natively it runs here, in a simulated kernel ([`Kernel`]) that plays the other side of that
//! interface: queues, idle CPUs, wake-ups, slices, ticks and kicks.

#[cfg(feature = "kernel")]
pub mod in_kernel;
mod kernel;
mod tables;

pub use kernel::{Kernel, Kick, Settings, TaskId};
pub use tables::{BORROWS, CPUS_MAX, KERNEL, LENDS, NOBODY, Recall, UNITS_MAX, Unit};
