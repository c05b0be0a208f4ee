//! The simulator: `commonhold sim`, `commonhold claims` and `commonhold what-if`.

mod claims;
mod run_progress;
mod sim;
mod what_if;

use std::process::ExitCode;

use commonhold_command::{exit, flags};
use commonhold_sim_command::cli::{self, Cli, Command};

fn main() -> ExitCode {
    exit::leave(match &flags::parse::<Cli>(cli::stray_interval).command {
        Command::Sim(args) => sim::main(args),
        Command::Claims(args) => claims::main(args),
        Command::WhatIf(args) => what_if::main(args),
    })
}
