//! `commonhold record` and `commonhold recording`.

use std::process::ExitCode;

use commonhold_command::{exit, flags};
use commonhold_record::cli::{Cli, Command};

fn main() -> ExitCode {
    exit::leave(match flags::parse::<Cli>(|_| None).command {
        Command::Record(args) => commonhold_record::record(&args),
        Command::Recording(args) => commonhold_record::show(&args),
    })
}
