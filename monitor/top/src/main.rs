//! `commonhold top`.

use std::process::ExitCode;

use commonhold_command::{exit, flags};
use commonhold_top::cli::{Cli, Command};

fn main() -> ExitCode {
    let Command::Top(args) = flags::parse::<Cli>(|_| None).command;
    exit::leave(commonhold_top::run(&args))
}
