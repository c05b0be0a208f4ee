//! What the project's programs share: exit codes, output, progress bars, signals, common flags, and reading
//! contracts and machines from files.

pub mod exit;
mod fit;
pub mod flags;
mod here;
pub mod load;
pub mod output;
pub mod place;
pub mod progress;
pub mod signals;
