//! All access to the kernel: files of /proc, /sys and control groups, and system calls about processes.
//!
//! Problem: most failures on a machine occur in these accesses, and rarely during a test. A write is refused,
//! a group is removed between two calls, a process ends between sample and order. Tests must be able to
//! inject such failures.
//!
//! Algorithm: all code in this crate that accesses the kernel's files or another process calls a function of
//! this module. Clippy forbids the standard library's functions (`clippy.toml`). Each function first asks a
//! hook of the calling thread ([`tamper`]), which is normally absent. The hook may let the call proceed,
//! refuse the call, shorten it, or replace its bytes. The hook runs before the call, so it may also change
//! the file or end the process.
//!
//! Properties: without a hook, each function makes exactly the system calls that its name implies, and checks
//! one thread-local flag. A value for a kernel file is written in one call. After a partial write, the
//! remaining bytes are not written, since the kernel would take them for another value.
//!
//! Limits: threads that this crate starts itself (paging out memory, scanning pages) have no hook. Clocks and
//! lookups of user names do not ask the hook. Loading the scheduler into the kernel is in
//! `commonhold-dispatch`.
#![allow(clippy::disallowed_methods, reason = "this is where they are allowed")]

pub mod affinity;
pub(crate) mod arena;
pub(crate) mod autogroup;
pub mod child;
pub mod clock;
mod dir;
mod files;
pub mod io_priority;
pub(crate) mod mounts;
pub mod oom_score;
pub(crate) mod page_out;
pub(crate) mod pages;
pub(crate) mod peer;
pub mod perf;
mod pinned;
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
