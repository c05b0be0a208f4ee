//! The simulator: `commonhold sim` and `commonhold claims`.

mod claims;
mod sim;

use std::process::ExitCode;

use commonhold_command::{exit, flags, load, output, progress};
use commonhold_sim_command::cli::{self, Cli, Command};

fn main() -> ExitCode {
    exit::leave(match &flags::parse::<Cli>(cli::stray_interval).command {
        Command::Sim(args) => sim::main(args),
        Command::Claims(args) => claims::main(args),
    })
}
