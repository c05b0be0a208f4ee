//! Commands that separate programs implement: `commonhold NAME ARGS` runs `commonhold-NAME NAME ARGS`, as
//! cargo does.
//!
//! The separate program must be in the directory of this program. PATH is not searched, since a command that
//! root runs must not depend on PATH.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use clap::CommandFactory;
use commonhold_live::host::child::command;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};

/// The external commands that --help lists, each with the name of its program.
const LISTED: [(&str, &str); 11] = [
    ("top", "commonhold-top"),
    ("serve", "commonhold-serve"),
    ("record", "commonhold-record"),
    ("recording", "commonhold-record"),
    ("sim", "commonhold-sim"),
    ("merge", "commonhold-sim"),
    ("claims", "commonhold-sim"),
    ("what-if", "commonhold-sim"),
    ("workload", "commonhold-sim"),
    ("scale", "commonhold-scale"),
    ("generate", "commonhold-generate"),
];

/// If the command line names an external command, executes its program in place of this one, and does not
/// return. Returns `Ok` if the command is built in or unknown.
///
/// # Errors
///
/// [`Exit::Unavailable`] if a listed command's program is not installed, [`Exit::CannotRun`] if the kernel
/// refuses to run it.
pub(crate) fn run_if_named() -> Result<(), Failure> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Some((name, rest)) = external_command(&arguments) else { return Ok(()) };
    let listed = LISTED.iter().find(|(command, _)| *command == name).map(|(_, program)| *program);
    let program = listed.map_or_else(|| format!("commonhold-{name}"), str::to_owned);
    let path = directory()?.join(&program);
    if !path.is_file() {
        return match listed {
            // clap reports the unknown command, with the nearest known one.
            None => Ok(()),
            Some(_) => Err(Failure::new(
                Exit::Unavailable,
                format!(
                    "`commonhold {name}` needs the program {}, which is not there; install it",
                    path.display()
                ),
            )),
        };
    }
    // Returns only on failure.
    let error = command(&path).arg(name).args(rest).exec();
    Err(Failure::new(Exit::CannotRun, format!("{}: cannot run it: {error}", path.display())))
}

/// The name and the arguments of an external command, if `arguments` could name one. `help NAME` becomes
/// `NAME --help`.
fn external_command(arguments: &[OsString]) -> Option<(&str, Vec<OsString>)> {
    let (first, rest) = arguments.split_first()?;
    let is_help = first == "help";
    let (name, rest) = if is_help { rest.split_first()? } else { (first, rest) };
    let name = name.to_str().filter(|name| is_name(name) && !is_built_in(name))?;
    let help = is_help.then(|| OsString::from("--help"));
    Some((name, rest.iter().cloned().chain(help).collect()))
}

/// Whether a text can be NAME in `commonhold-NAME`: it is neither a path nor an option.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(is_plain)
}

/// Whether this program implements the command.
fn is_built_in(name: &str) -> bool {
    let is_listed = LISTED.iter().any(|(command, _)| *command == name);
    name == "help" || !is_listed && Cli::command().find_subcommand(OsStr::new(name)).is_some()
}

/// The directory of this program's file.
fn directory() -> Result<PathBuf, Failure> {
    let failed = |e| Failure::new(Exit::System, format!("cannot find this program's own file: {e}"));
    let mut path = std::env::current_exe().map_err(failed)?;
    path.pop();
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_of_other_programs_are_looked_for() {
        let named_in = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            external_command(&arguments).map(|(name, rest)| (name.to_owned(), rest.join(OsStr::new(" "))))
        };
        let found = |name: &str, rest: &str| Some((name.to_owned(), OsString::from(rest)));
        assert_eq!(named_in("sim far --json"), found("sim", "far --json"));
        assert_eq!(named_in("help generate man"), found("generate", "man --help"));
        assert_eq!(named_in("top"), found("top", ""));
        for own in ["check a", "help check", "help", "--version", "../sim", "", "a/b", "A", "help help"] {
            assert_eq!(named_in(own), None, "{own}");
        }
    }
}
