//! The command line of `commonhold-scale`, as a library: `commonhold-generate` generates man pages and
//! completions from it.

pub mod cli;
