//! The command line of `commonhold-generate`: `commonhold generate`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use commonhold_command::exit::Exit;
use commonhold_command::flags::in_paragraphs;

/// Print man pages, completions, schemas and references
#[derive(Debug, Parser)]
#[command(
    name = "commonhold",
    bin_name = "commonhold",
    version,
    after_help = Exit::table(),
    after_long_help = Exit::table(),
    mut_subcommands = in_paragraphs
)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command; `commonhold generate` passes its own name on as the first argument.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Generate(Generate),
}

/// Write man pages, completions, and the contract's schema
#[derive(Debug, Args)]
pub(crate) struct Generate {
    #[command(subcommand)]
    pub(crate) what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Man pages, one per command and one of the contract's language, into a directory
    Man {
        /// The directory, such as /usr/local/share/man; pages go into its man1 and man5, which are created if
        /// missing
        directory: PathBuf,
    },
    /// Completions for a shell, to standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// The contract's JSON schema, for editors, to standard output
    Schema,
    /// Every key of a contract, with an example, its values and its default, as Markdown, to standard output
    ContractReference,
    /// Every key of a scenario's machine.toml and workload.toml, with its default and range, to standard
    /// output
    ScenarioReference,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use commonhold_command::flags::assert_help_is_filled;

    use super::*;

    #[test]
    fn help_is_filled_to_the_terminals_width() {
        for width in [80, 90, 100] {
            let mut command = Cli::command();
            command.build();
            assert_help_is_filled(&mut command, width);
        }
    }
}
