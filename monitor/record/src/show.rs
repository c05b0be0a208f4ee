//! `commonhold recording`: shows a recording, or exports it.

use commonhold_command::exit::{Exit, Failure};

use crate::cli::Recording;

/// Runs the command.
///
/// # Errors
///
/// A failure with its exit code.
pub fn main(_args: &Recording) -> Result<Exit, Failure> {
    Err(Failure::new(Exit::Unavailable, "not built yet"))
}
