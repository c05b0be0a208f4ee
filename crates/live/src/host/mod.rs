//! The one way to the kernel: files, control groups, processes.

pub mod affinity;
pub mod clock;
pub mod io_priority;
pub mod oom_score;
pub(crate) mod page_out;
pub(crate) mod signal;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// Writes a value as a whole: the kernel's files take one write, not several.
pub(crate) fn write(path: &Path, value: &str) -> io::Result<()> {
    // An empty string would be no write at all; the kernel takes a newline for it.
    let text = if value.is_empty() { "\n" } else { value };
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}
