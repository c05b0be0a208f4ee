//! The command line of `commonhold` as a library, for the man pages and completions of `commonhold-generate`.

pub mod cli;
