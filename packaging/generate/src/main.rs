//! `commonhold generate`: man pages, completions, the schema and references from their single definitions.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, Command as Definition, CommandFactory};
use commonhold_command::exit::{self, Exit, Failure};
use commonhold_command::{flags, output};

use cli::{Cli, Command, What};

mod cli;
mod contract_page;

fn main() -> ExitCode {
    let Command::Generate(args) = flags::parse::<Cli>(|_| None).command;
    exit::leave(generate(&args.what))
}

fn generate(what: &What) -> Result<Exit, Failure> {
    match what {
        What::Man { directory } => man(directory)?,
        What::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut combined_definition(), "commonhold", &mut text);
            output::print(&String::from_utf8_lossy(&text))?;
        }
        What::ContractReference => output::print(&commonhold_contract::reference())?,
        What::ScenarioReference => output::print(&commonhold_sim::scenario::reference())?,
        What::Schema => output::print(&format!("{:#}", commonhold_contract::schema()))?,
    }
    Ok(Exit::Ok)
}

/// Writes pages to the folders that `man` searches below `directory`: `man1` has the commands, `man5` the
/// contract.
fn man(directory: &Path) -> Result<(), Failure> {
    let cannot = |e: std::io::Error| {
        let remedy = "give a folder that you may write to, or the name of a new one";
        Failure::new(
            Exit::CannotCreate,
            format!("{}: cannot write man pages: {e}; {remedy}", directory.display()),
        )
    };
    let [man1, man5] = ["man1", "man5"].map(|section| directory.join(section));
    fs::create_dir_all(&man1).and_then(|()| fs::create_dir_all(&man5)).map_err(cannot)?;
    let mut commands = combined_definition().disable_help_subcommand(true);
    // Gives every command its full name and --help.
    commands.build();
    clap_mangen::generate_to(with_synopses(commands), man1).map_err(cannot)?;
    fs::write(man5.join("commonhold-contract.5"), contract_page::page()).map_err(cannot)
}

/// Sets synopses that show which options take values, unlike clap's default synopses.
fn with_synopses(command: Definition) -> Definition {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let is_shown = |arg: &&Arg| !arg.is_hide_set();
    let options = command.get_opts().filter(is_shown).map(|option| format!(" [{option}]"));
    // Flags without a value come after the options.
    let flags =
        command.get_arguments().filter(|arg| !arg.is_positional() && !arg.get_action().takes_values());
    let flags = flags.filter(is_shown).map(|flag| format!(" [{flag}]"));
    let positionals = command.get_positionals().filter(is_shown).map(|positional| format!(" {positional}"));
    let subcommand = match (command.has_subcommands(), command.is_subcommand_required_set()) {
        (true, true) => " <COMMAND>",
        (true, false) => " [COMMAND]",
        (false, _) => "",
    };
    let synopsis: String = options.chain(flags).chain(positionals).collect();
    let usage = format!("{name}{synopsis}{subcommand}");
    command.override_usage(usage).mut_subcommands(with_synopses)
}

/// The definition of the commands of all programs together. Hidden commands are left out, since completions
/// would offer them. The definition of an external command is that of the program that implements the
/// command.
fn combined_definition() -> Definition {
    let cli = commonhold::cli::Cli::command();
    let other_programs = [
        commonhold_sim_command::cli::Cli::command(),
        commonhold_scale_command::cli::Cli::command(),
        commonhold_top::cli::Cli::command(),
        commonhold_serve::cli::Cli::command(),
        commonhold_record::cli::Cli::command(),
        Cli::command(),
    ];
    let implemented = |command: &Definition| {
        let find = |program: &Definition| program.find_subcommand(command.get_name()).cloned();
        other_programs.iter().find_map(find).unwrap_or_else(|| command.clone())
    };
    let commands: Vec<Definition> =
        cli.get_subcommands().filter(|command| !command.is_hide_set()).map(implemented).collect();
    // clap cannot remove a subcommand, so a new top level gets copies of the commands and texts that are
    // shown.
    Definition::new("commonhold")
        .version(env!("CARGO_PKG_VERSION"))
        .about(cli.get_about().cloned().unwrap_or_default())
        .long_about(cli.get_long_about().cloned().unwrap_or_default())
        .after_help(Exit::table())
        .after_long_help(Exit::table())
        .subcommand_required(true)
        .subcommands(commands)
}
