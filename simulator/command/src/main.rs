//! The simulator: `commonhold sim`, `commonhold claims` and `commonhold workload`.

mod claims;
mod run_progress;
mod sim;
mod workload;

use std::process::ExitCode;

use commonhold_command::{exit, flags};
use commonhold_sim_command::cli::{self, Cli, Command};

fn main() -> ExitCode {
    exit::leave(match &flags::parse::<Cli>(cli::stray_interval).command {
        Command::Sim(args) => sim::main(args),
        Command::Claims(args) => claims::main(args),
        Command::Workload(args) => workload::main(&args.action),
    })
}
