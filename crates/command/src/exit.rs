//! Exit codes, and how a failure reaches the user: the one place where both are mapped.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::output;

/// Every exit code of the program. Those from 64 to 78 have the meaning of BSD's sysexits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All went well.
    Ok,
    /// The contract is invalid, or this machine cannot give what it promises.
    Invalid,
    /// The command line is wrong.
    Usage,
    /// `scale`: the program failed, or what it did cannot be measured.
    Unmeasured,
    /// A change of tickets cannot be made.
    Refused,
    /// A file cannot be read, or is not what was asked for.
    NoInput,
    /// No daemon runs here, or the machine lacks what was asked for.
    Unavailable,
    /// The program's own checks found it wrong.
    Broken,
    /// The kernel refused what should have worked.
    System,
    /// Another daemon, or another program, owns what this one needs.
    Taken,
    /// A file that is to be written cannot be. It shares its code with [`Exit::Taken`].
    CannotCreate,
    /// The caller may not do this.
    NotAllowed,
    /// `exec`, `offer`, `scale`: the command was found and cannot be run.
    CannotRun,
    /// `exec`, `offer`, `scale`: there is no such command.
    NotFound,
    /// `scale`: a signal came.
    Interrupted,
}

impl Exit {
    /// One for each code.
    pub const ALL: [Exit; 14] = [
        Exit::Ok,
        Exit::Invalid,
        Exit::Usage,
        Exit::Unmeasured,
        Exit::Refused,
        Exit::NoInput,
        Exit::Unavailable,
        Exit::Broken,
        Exit::System,
        Exit::Taken,
        Exit::NotAllowed,
        Exit::CannotRun,
        Exit::NotFound,
        Exit::Interrupted,
    ];

    /// The number that the program exits with.
    pub fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Invalid => 1,
            Exit::Usage => 2,
            Exit::Unmeasured => 3,
            Exit::Refused => 65,
            Exit::NoInput => 66,
            Exit::Unavailable => 69,
            Exit::Broken => 70,
            Exit::System => 71,
            Exit::Taken | Exit::CannotCreate => 73,
            Exit::NotAllowed => 77,
            Exit::CannotRun => 126,
            Exit::NotFound => 127,
            Exit::Interrupted => 130,
        }
    }

    /// For what the system answered about a file or folder that the user named.
    pub fn of_named(answer: &io::Error) -> Exit {
        use io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory, NotFound, PermissionDenied};
        match answer.kind() {
            PermissionDenied => Exit::NotAllowed,
            NotFound | AlreadyExists | NotADirectory | IsADirectory => Exit::NoInput,
            _ => Exit::System,
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "all went well",
            Exit::Invalid => "the contract or another input is invalid, or exceeds what the machine has",
            Exit::Usage => "the command line is wrong",
            Exit::Unmeasured => "scale: the program failed at some size, or could not be measured there",
            Exit::Refused => "tickets: such a change cannot be made, and nothing changed",
            Exit::NoInput => "a file cannot be read, or is of another kind than needed",
            Exit::Unavailable => "no daemon runs here, or it or the machine has not what was asked for",
            Exit::Broken => "sim: one of the program's own checks failed; do not trust the result",
            Exit::System => "the kernel refused something that should have worked",
            Exit::Taken | Exit::CannotCreate => {
                "a file cannot be written, or another daemon or program owns what is needed"
            }
            Exit::NotAllowed => "the caller may not do this",
            Exit::CannotRun => "exec, offer, scale: the command was found and cannot be run",
            Exit::NotFound => "exec, offer, scale: there is no such command",
            Exit::Interrupted => "scale: a signal ended it, and it ended the program",
        }
    }

    /// The table for `--help` and the man page.
    pub fn table() -> String {
        let row = |exit: &Exit| format!("  {:>3}  {}\n", exit.code(), exit.meaning());
        let rows: String = Exit::ALL.iter().map(row).collect();
        format!("Exit codes:\n{rows}exec and offer pass on the exit code of the command they ran.")
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// The exit code of a program's main function. A failure is written to standard error first.
pub fn leave(result: Result<Exit, Failure>) -> ExitCode {
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::complain(&failure.to_string());
            failure.exit.into()
        }
    }
}

/// What ends the program early: what to say on standard error, and with which code to leave.
#[derive(Debug)]
pub struct Failure {
    /// The code to exit with.
    pub exit: Exit,
    /// Free of control characters, but for line ends and for the colours of diagnostics.
    message: String,
    /// Diagnostics have their own headings.
    is_rendered: bool,
}

impl Failure {
    /// Says what a user, a daemon or a file said, as it may be shown: see [`output::shown`].
    pub fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure { exit, message: output::shown(&message.to_string()), is_rendered: false }
    }

    /// Of diagnostics, as [`commonhold_contract::render`] wrote them.
    pub fn rendered(exit: Exit, diagnostics: &str) -> Failure {
        Failure { exit, message: diagnostics.trim_end().to_owned(), is_rendered: true }
    }

    /// What went wrong, without a heading.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = if self.is_rendered { "" } else { "error: " };
        write!(f, "{heading}{}", self.message)
    }
}

impl From<commonhold_live::LiveError> for Failure {
    fn from(error: commonhold_live::LiveError) -> Failure {
        use commonhold_live::LiveError::{File, NotInForce, Process, Unavailable};
        use io::ErrorKind::{FileTooLarge, InvalidData, InvalidInput};
        let exit = match &error {
            Unavailable { .. } => Exit::Unavailable,
            File { source, .. } | Process { source, .. }
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Exit::NotAllowed
            }
            // No number of the kernel's: the file is not what it should be.
            File { source, .. }
                if source.raw_os_error().is_none()
                    && matches!(source.kind(), InvalidInput | InvalidData | FileTooLarge) =>
            {
                Exit::NoInput
            }
            File { .. } | Process { .. } | NotInForce { .. } => Exit::System,
        };
        Failure::new(exit, error)
    }
}
