//! The command line of `commonhold-scale`, as a library: `commonhold-generate` makes man pages and completions of it.

pub mod cli;
