//! `commonhold record`.

use commonhold_command::exit::{Exit, Failure};

use crate::cli::Record;

/// Runs the command.
///
/// # Errors
///
/// A failure with its exit code.
pub fn main(_args: &Record) -> Result<Exit, Failure> {
    Err(Failure::new(Exit::Unavailable, "not built yet"))
}
