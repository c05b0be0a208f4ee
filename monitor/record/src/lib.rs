//! `commonhold record`: records a machine; `commonhold recording`: shows and exports recordings.
//!
//! The daemon is asked, as any client asks it, and never waits for the recorder. Everything else is read from
//! the kernel.

pub mod cli;
mod record;
mod show;

pub use record::main as record;
pub use show::main as show;
