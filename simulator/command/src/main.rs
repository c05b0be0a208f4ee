//! The simulator: `commonhold sim`, `merge`, `what-if`, `workload` and `claims`.

mod claims;
mod first;
mod merge;
mod run_files;
mod run_progress;
mod sim;
mod sweep;
mod what_if;
mod workload;

use std::process::ExitCode;

use commonhold_command::{exit, flags};
use commonhold_sim_command::cli::{self, Cli, Command};

fn main() -> ExitCode {
    exit::leave(match &flags::parse::<Cli>(cli::stray_interval).command {
        Command::Sim(args) => sim::main(args),
        Command::Merge(args) => merge::main(args),
        Command::Claims(args) => claims::main(args),
        Command::WhatIf(args) => what_if::main(args),
        Command::Workload(args) => workload::main(&args.action),
    })
}
