//! The command: parses flags, wires the parts, maps errors to exit codes.

mod bound;
mod calibrate;
mod check;
mod claims;
mod cli;
mod client;
mod daemon;
mod demo;
mod doctor;
mod exit;
mod fit;
mod generate;
mod here;
mod load;
mod output;
mod place;
mod progress;
mod protocol;
mod scale;
mod signals;
mod sim;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use cli::{Cli, Command};
use exit::{Exit, Failure};

fn main() -> ExitCode {
    commonhold_live::host::child::keep_children();
    // clap leaves with 2 on wrong usage and with 0 on --help and --version.
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        // clap quotes arguments as they are.
        let args: Vec<String> =
            std::env::args_os().map(|arg| output::shown(&arg.to_string_lossy())).collect();
        match cli::stray_interval(&args) {
            Some(said) if error.use_stderr() => Cli::command().error(ErrorKind::NoEquals, said).exit(),
            _ if error.use_stderr() => Cli::try_parse_from(args).err().unwrap_or(error).exit(),
            _ => error.exit(),
        }
    });
    let result = match &cli.command {
        Command::Check(args) => in_form(args.json, check::main(args)),
        Command::Doctor(args) => doctor::main(args),
        Command::Calibrate(args) => calibrate::main(args),
        // Only --dry-run prints JSON.
        Command::Run(args) => in_form(args.json, daemon::main(args)),
        Command::Exec(args) => client::exec(args),
        Command::Status(args) => client::status(args),
        Command::Tickets(args) => client::tickets(args),
        Command::Fund(args) => client::fund(args),
        Command::Issue(args) => client::issue(args),
        Command::Revoke(args) => client::revoke(args),
        Command::Offer(args) => client::offer(args),
        Command::Offers(args) => client::offers(args),
        Command::Cancel(args) => client::cancel(args),
        Command::Demo(args) => demo::main(args),
        Command::Claims(args) => claims::main(args),
        Command::Scale(args) => scale::main(args),
        Command::Sim(args) => sim::main(args),
        Command::Generate(args) => generate::main(args),
        Command::Caretaker(args) => Ok(daemon::caretaker(args)),
        Command::DemoTask(args) => demo::task(args),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::complain(&failure.to_string());
            failure.exit.into()
        }
    }
}

/// A failure of a command that was asked for JSON is JSON, too.
fn in_form(json: bool, result: Result<Exit, Failure>) -> Result<Exit, Failure> {
    match result {
        Err(failure) if json => load::fail_in_json(&failure),
        result => result,
    }
}
