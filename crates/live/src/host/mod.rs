//! The one way to the kernel: files of /proc, /sys and control groups, and calls about processes.
//!
//! Problem: what goes wrong on a machine goes wrong here, and mostly not when a test looks. A write is refused, a group
//! goes between two calls, a process ends between look and order. Tests must be able to say when.
//!
//! Algorithm: everything in this crate that touches the kernel's files, or another process, calls a function of this
//! module. Clippy forbids the others (`clippy.toml`). Each function first asks a hook of the calling thread ([`tamper`]),
//! which is normally absent. It may have the call go on, be refused, be cut short, or be given other bytes. It runs before
//! the call, so it may also change the file, or end the process.
//!
//! Properties: without a hook, each function is the call that it names, no more and no fewer of the kernel's, and one look
//! at a flag of the thread's. A value for a file of the kernel's is written in one call. If the kernel takes only a part,
//! the rest is not written as if it were a value.
//!
//! Limits: threads that this crate starts itself (taking memory, looking at pages) have no hook. Clocks and
//! names of users are not asked about. What loads the scheduler into the kernel is in `commonhold-dispatch`.
#![allow(clippy::disallowed_methods, reason = "this is where they are allowed")]

pub mod affinity;
pub(crate) mod arena;
pub(crate) mod autogroup;
pub mod child;
pub mod clock;
pub(crate) mod copy;
mod dir;
pub(crate) mod exits;
mod files;
pub mod io_priority;
pub(crate) mod meter;
pub(crate) mod mounts;
pub mod oom_score;
pub(crate) mod page_out;
pub(crate) mod pages;
pub(crate) mod peer;
pub(crate) mod perf;
mod pinned;
pub(crate) mod shot;
pub(crate) mod signal;
pub(crate) mod stream;
mod tamper;
pub mod trust;

pub(crate) use dir::Dir;
pub(crate) use files::{
    Entry, File, canonical, empty_cpus, exists, free_bytes, is_dir, is_there, list, look, make_dir,
    make_dirs, mark, marked, may_write, overwrite, read, read_at_most, read_to_string, remove_dir,
    remove_file, rename, sync_dir, write, write_file, write_without_waiting,
};
pub use pinned::Pinned;
pub use tamper::{Access, Answer, Kind, Tampering, tamper};
