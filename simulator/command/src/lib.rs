//! The command line of `commonhold-sim`, as a library: `commonhold-generate` makes man pages and completions
//! of it.

pub mod cli;
