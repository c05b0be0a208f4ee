//! The profiler `commonhold scale`, as the program `commonhold-scale`.

mod scale;

use std::process::ExitCode;

use commonhold_command::{exit, flags, load, output, progress, signals};
use commonhold_scale_command::cli::{self, Cli, Command};

fn main() -> ExitCode {
    commonhold_live::host::child::keep_children();
    let Command::Scale(args) = flags::parse::<Cli>(|_| None).command;
    exit::leave(scale::main(&args))
}
