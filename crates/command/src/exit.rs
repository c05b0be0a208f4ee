//! The program's exit codes, and [`Failure`]: an error message together with the exit code that it leads to.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::output;

/// Every exit code of the program. The codes from 64 to 78 mean what they mean in BSD's sysexits.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Ok,
    /// The contract is invalid, or exceeds this machine's capacity.
    Invalid,
    /// `status --check`: the contract is broken for a unit; `what-if --against`: a figure is beyond its
    /// bound. It shares its code with [`Exit::Invalid`].
    Broken,
    /// The command line is invalid.
    Usage,
    /// `scale`: the program failed, or its work cannot be measured.
    Unmeasured,
    /// `status --check`: whether the contract is kept cannot be told. It shares its code with
    /// [`Exit::Unmeasured`].
    CannotTell,
    /// `merge`: runs of the sweep are missing. It shares its code with [`Exit::Unmeasured`].
    Incomplete,
    /// A change of tickets or offers was refused.
    Refused,
    /// A file cannot be read, or is of the wrong kind.
    NoInput,
    /// No daemon is running, or the daemon or machine lacks what was requested.
    Unavailable,
    /// `sim`, `merge`, `claims`: an internal check of the simulation failed.
    CheckFailed,
    /// The kernel refused an operation that should have worked.
    System,
    /// Another daemon or program owns a resource that this one requires.
    InUse,
    /// An output file cannot be written. It shares its code with [`Exit::InUse`].
    CannotCreate,
    /// The caller lacks the permission.
    NotAllowed,
    /// `exec`, `offer`, `scale`: the command was found but cannot be run.
    CannotRun,
    /// `exec`, `offer`, `scale`: command not found.
    NotFound,
    /// `scale`: interrupted by a signal.
    Interrupted,
}

impl Exit {
    /// One variant for each exit code. [`Exit::Broken`], [`Exit::CannotTell`], [`Exit::Incomplete`] and
    /// [`Exit::CannotCreate`] are left out, since they share the codes of others.
    pub const ALL: [Exit; 14] = [
        Exit::Ok,
        Exit::Invalid,
        Exit::Usage,
        Exit::Unmeasured,
        Exit::Refused,
        Exit::NoInput,
        Exit::Unavailable,
        Exit::CheckFailed,
        Exit::System,
        Exit::InUse,
        Exit::NotAllowed,
        Exit::CannotRun,
        Exit::NotFound,
        Exit::Interrupted,
    ];

    /// The number that the program exits with.
    pub fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Invalid | Exit::Broken => 1,
            Exit::Usage => 2,
            Exit::Unmeasured | Exit::CannotTell | Exit::Incomplete => 3,
            Exit::Refused => 65,
            Exit::NoInput => 66,
            Exit::Unavailable => 69,
            Exit::CheckFailed => 70,
            Exit::System => 71,
            Exit::InUse | Exit::CannotCreate => 73,
            Exit::NotAllowed => 77,
            Exit::CannotRun => 126,
            Exit::NotFound => 127,
            Exit::Interrupted => 130,
        }
    }

    /// The exit code for an I/O error on a path that the user gave.
    pub fn of_named(error: &io::Error) -> Exit {
        use io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory, NotFound, PermissionDenied};
        match error.kind() {
            PermissionDenied => Exit::NotAllowed,
            NotFound | AlreadyExists | NotADirectory | IsADirectory => Exit::NoInput,
            _ => Exit::System,
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "success",
            Exit::Invalid | Exit::Broken => {
                "an input is invalid, or exceeds the machine's capacity; status --check: the contract is broken; what-if \
                 --against: a figure is beyond its bound"
            }
            Exit::Usage => "the command line is invalid",
            Exit::Unmeasured | Exit::CannotTell | Exit::Incomplete => {
                "scale: the program failed, or could not be measured; status --check: it cannot be told; merge: runs are \
                 missing"
            }
            Exit::Refused => "a change of tickets or offers was refused; nothing has changed",
            Exit::NoInput => "a file cannot be read, or is of the wrong kind",
            Exit::Unavailable => "no daemon is running, or the daemon or machine lacks what was requested",
            Exit::CheckFailed => "sim, merge, claims: an internal check failed; do not trust the result",
            Exit::System => "the kernel refused an operation that should have worked",
            Exit::InUse | Exit::CannotCreate => {
                "a file cannot be written, or another daemon or program owns a required resource"
            }
            Exit::NotAllowed => "permission denied",
            Exit::CannotRun => "exec, offer, scale: the command was found but cannot be run",
            Exit::NotFound => "exec, offer, scale: command not found",
            Exit::Interrupted => "scale: interrupted by a signal; the measured program was terminated",
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

/// Returns the exit code for a program's result. A failure is first printed to standard error.
pub fn leave(result: Result<Exit, Failure>) -> ExitCode {
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::complain(&failure.to_string());
            failure.exit.into()
        }
    }
}

/// An error that ends the program: a message for standard error, and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// The code to exit with.
    pub exit: Exit,
    /// The message. It has no control characters except newlines, tabs and the colours of diagnostics.
    message: String,
    /// Whether the message consists of rendered diagnostics. These begin with `error:` themselves.
    is_rendered: bool,
}

impl Failure {
    /// A failure with a message. The message may quote users, daemons or files, so its control characters are
    /// escaped ([`output::shown`]).
    pub fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure { exit, message: output::shown(&message.to_string()), is_rendered: false }
    }

    /// A failure with diagnostics that [`commonhold_contract::render`] wrote.
    pub fn rendered(exit: Exit, diagnostics: &str) -> Failure {
        Failure { exit, message: diagnostics.trim_end().to_owned(), is_rendered: true }
    }

    /// The failure with a line before it that says what it is about. Rendered diagnostics stay below that
    /// line.
    #[must_use]
    pub fn within(self, about: &str) -> Failure {
        let about = output::shown(about);
        let message = match self.is_rendered {
            true => format!("error: {about}\n{}", self.message),
            false => format!("{about}: {}", self.message),
        };
        Failure { message, ..self }
    }

    /// The message without the heading `error:`.
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
            // An error without an errno does not come from the kernel, but from the function that read the
            // file: the file is of the wrong kind.
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
