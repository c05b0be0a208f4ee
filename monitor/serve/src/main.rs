//! The program `commonhold-serve`: `commonhold serve`.

use std::process::ExitCode;

use commonhold_command::{exit, flags};
use commonhold_serve::cli::{Cli, Command};

fn main() -> ExitCode {
    let Command::Serve(args) = flags::parse::<Cli>(|_| None).command;
    exit::leave(commonhold_serve::main(&args))
}
