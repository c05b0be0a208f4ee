//! The entry point of `commonhold`: parses the command line, runs the command, and converts its result to an
//! exit code.

mod bound;
mod calibrate;
mod check;
mod client;
mod daemon;
mod demo;
mod doctor;
mod explain;
mod history;
mod init;
mod natural;
mod program_beside;
mod why;

use std::process::ExitCode;

use commonhold::cli::{self, Cli, Command};
use commonhold_command::exit::{self, Exit, Failure};
use commonhold_command::{flags, load, output, place, progress, signals};
use commonhold_protocol::replies as protocol;

fn main() -> ExitCode {
    commonhold_live::host::child::keep_children();
    exit::leave(program_beside::run_if_named().and_then(|()| run(&flags::parse::<Cli>(|_| None).command)))
}

fn run(command: &Command) -> Result<Exit, Failure> {
    match command {
        Command::Init(args) => init::main(args),
        Command::Explain(args) => explain::main(args),
        Command::Check(args) => json_on_failure(args.json, check::main(args)),
        Command::Doctor(args) => doctor::main(args),
        Command::Calibrate(args) => calibrate::main(args),
        // `--json` is valid only with `--dry-run`.
        Command::Run(args) => json_on_failure(args.json, daemon::main(args)),
        Command::Exec(args) => client::exec(args),
        Command::Status(args) => client::status(args),
        Command::Why(args) => why::main(args),
        Command::History(args) => history::history(args),
        Command::Account(args) => history::account(args),
        Command::Tickets(args) => client::tickets(args),
        Command::Fund(args) => client::fund(args),
        Command::Issue(args) => client::issue(args),
        Command::Revoke(args) => client::revoke(args),
        Command::Offer(args) => client::offer(args),
        Command::Offers(args) => client::offers(args),
        Command::Cancel(args) => client::cancel(args),
        Command::Demo(args) => demo::main(args),
        Command::Caretaker(args) => Ok(daemon::caretaker(args)),
        Command::DemoTask(args) => demo::task(args),
        Command::Top(_)
        | Command::Serve(_)
        | Command::Record(_)
        | Command::Recording(_)
        | Command::Scale(_)
        | Command::Sim(_)
        | Command::Merge(_)
        | Command::Claims(_)
        | Command::WhatIf(_)
        | Command::Workload(_)
        | Command::Generate(_) => {
            unreachable!("program_beside runs these before the command line is parsed")
        }
    }
}

/// With `--json`, prints a failure as a JSON document and returns its exit code; otherwise returns `result`
/// unchanged.
fn json_on_failure(json: bool, result: Result<Exit, Failure>) -> Result<Exit, Failure> {
    match result {
        Err(failure) if json => load::fail_in_json(&failure),
        result => result,
    }
}
