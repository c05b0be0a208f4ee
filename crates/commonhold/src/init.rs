//! `commonhold init`: looks at this machine, and writes a contract to begin with.
//!
//! On a terminal, and without flags, it asks what it cannot know: at most four questions, each with an answer
//! that Enter takes.

mod facts;
mod text;

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

use crate::cli::{Init, JobsChoice};
use crate::exit::{Exit, Failure};
use crate::{load, output};
use commonhold_live::observe::names::SystemNames;
use commonhold_report::tree;
use facts::{Facts, Manager};
use text::{Choices, Shares};

/// The part of the machine that services get by default, as in the natural contract.
const SERVICES: &str = "25%";

pub(crate) fn main(args: &Init) -> Result<Exit, Failure> {
    let machine = load::machine_here()?.divided(false);
    let facts = Facts::of(Path::new("/"), &tree::summary(&machine));
    let asks = !args.has_choices() && io::stdin().is_terminal() && io::stderr().is_terminal();
    let choices = if asks { ask(&facts)? } else { chosen(args, &facts)? };
    let text = text::contract(&facts, &choices);
    // What is wrong with it on this machine, the user has to know, and it is written all the same.
    let loaded = load::check_text(&text, "the new contract", &machine, Some(&SystemNames::new()))?;
    output::complain_of(&loaded.warnings);
    if args.file.as_os_str() == "-" {
        output::print(text.trim_end())?;
        return Ok(Exit::Ok);
    }
    write(&args.file, &text, args.force)?;
    let file = args.file.display();
    output::print(&format!("{file} is written. Next:"))?;
    output::print(&format!("  commonhold explain {file}          what it says, in sentences"))?;
    output::print(&format!("  commonhold run --dry-run {file}    which processes would be in which unit"))?;
    output::print(&format!("  commonhold run {file}              enforce it until Ctrl-C"))?;
    Ok(Exit::Ok)
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true);
    match force {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => Failure::new(
            Exit::Usage,
            format!("{}: it exists already; name another file, or add --force", path.display()),
        ),
        _ => Failure::new(Exit::System, format!("{}: cannot write it: {e}", path.display())),
    })
}

/// The choices of the command line; what it leaves open is decided by what the machine has.
fn chosen(args: &Init, facts: &Facts) -> Result<Choices, Failure> {
    let usual = usual(facts);
    let shares = match (&args.groups, args.people) {
        (Some(groups), _) => Shares::Groups(shares(groups, &[])?),
        (None, true) => Shares::People,
        (None, false) => usual.shares,
    };
    let services = match &args.services {
        Some(part) if part == "none" => None,
        Some(part) => Some(percentage(part)?),
        None => usual.services,
    };
    let jobs = match args.jobs {
        Some(JobsChoice::None) => None,
        Some(JobsChoice::Slurm) => Some(Manager::Slurm),
        Some(JobsChoice::Podman) => Some(Manager::Podman),
        None => usual.jobs,
    };
    Ok(Choices { shares, services, jobs })
}

/// What is chosen without flags and questions.
fn usual(facts: &Facts) -> Choices {
    let groups: Vec<(String, u64)> = facts.groups.iter().map(|group| (group.name.clone(), 1)).collect();
    Choices {
        shares: if groups.len() > 1 { Shares::Groups(groups) } else { Shares::People },
        services: facts.has_systemd.then(|| SERVICES.to_owned()),
        jobs: facts.manager,
    }
}

fn ask(facts: &Facts) -> Result<Choices, Failure> {
    let mut choices = usual(facts);
    if facts.user.is_some() {
        return Ok(choices);
    }
    let known: Vec<String> =
        facts.groups.iter().map(|group| format!("{} ({})", group.name, group.people)).collect();
    if !known.is_empty() {
        say(&format!("This machine has these groups of people: {}.", known.join(", ")));
        let by_default = if matches!(choices.shares, Shares::Groups(_)) { "groups" } else { "people" };
        let answer =
            question("Divide it among `groups`, or equally among all `people`?", by_default, |answer| {
                match answer {
                    "groups" | "people" => Ok(answer == "groups"),
                    _ => Err("write groups or people".to_owned()),
                }
            })?;
        choices.shares = Shares::People;
        if answer {
            let names: Vec<String> = facts.groups.iter().map(|group| group.name.clone()).collect();
            let all = names.join(",");
            let groups = question(
                "Which groups, and in which proportion, as in physics=2,chemistry=1?",
                &all,
                |answer| shares(answer, &names).map_err(|failure| failure.message().to_owned()),
            )?;
            choices.shares = Shares::Groups(groups);
        }
    }
    if facts.has_systemd {
        let part = question(
            "Which part do system services keep when they need it (`none`: as much as the kernel gives them)?",
            SERVICES,
            |answer| match answer {
                "none" => Ok(None),
                part => percentage(part).map(Some).map_err(|failure| failure.message().to_owned()),
            },
        )?;
        choices.services = part;
    }
    if let Some(manager) = facts.manager {
        let asked = format!("Give each of {}'s {} a part of its own?", manager.name(), manager.jobs());
        let yes = question(&asked, "yes", |answer| match answer {
            "yes" | "y" => Ok(true),
            "no" | "n" => Ok(false),
            _ => Err("write yes or no".to_owned()),
        })?;
        choices.jobs = yes.then_some(manager);
    }
    Ok(choices)
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Asks until `read` understands the answer. An empty answer is `by_default`.
fn question<T>(text: &str, by_default: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<T, Failure> {
    loop {
        let _ = write!(io::stderr(), "{text} [{by_default}] ");
        let mut answer = String::new();
        let length = io::stdin().lock().read_line(&mut answer).unwrap_or(0);
        if length == 0 {
            return Err(Failure::new(Exit::Interrupted, "no answer was given, and nothing was written"));
        }
        let answer = match answer.trim() {
            "" => by_default,
            answer => answer,
        };
        match read(answer) {
            Ok(value) => return Ok(value),
            Err(why) => say(&why),
        }
    }
}

/// Reads `physics=2,chemistry`: names and tickets in proportion, 1 by default. With `known`, other names are
/// refused.
fn shares(text: &str, known: &[String]) -> Result<Vec<(String, u64)>, Failure> {
    let wrong =
        |why: String| Failure::new(Exit::Usage, format!("{why}; write them as in physics=2,chemistry=1"));
    let mut shares: Vec<(String, u64)> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, number) = part.split_once('=').unwrap_or((part, "1"));
        let number = number.trim().parse().ok().filter(|number| (1..=1_000_000).contains(number));
        let number = number.ok_or_else(|| wrong(format!("`{part}` has no number from 1 to 1000000")))?;
        let name = name.trim().to_owned();
        if name.is_empty() || name.contains(['"', '\\', '*', '?']) || name.chars().any(char::is_control) {
            return Err(wrong(format!("`{part}` names no group")));
        }
        if !known.is_empty() && !known.contains(&name) {
            return Err(wrong(format!("`{name}` is none of {}", known.join(", "))));
        }
        if shares.iter().any(|(other, _)| *other == name) {
            return Err(wrong(format!("`{name}` occurs twice")));
        }
        shares.push((name, number));
    }
    if shares.is_empty() { Err(wrong("no group is named".to_owned())) } else { Ok(shares) }
}

/// Checks a whole percentage from 1 to 90: `25%`.
fn percentage(text: &str) -> Result<String, Failure> {
    let number =
        text.trim_end_matches('%').trim().parse().ok().filter(|number: &u32| (1..=90).contains(number));
    let remedy =
        || Failure::new(Exit::Usage, format!("`{text}` is no part from 1% to 90%; write 25%, or none"));
    Ok(format!("{}%", number.ok_or_else(remedy)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_names_with_numbers() {
        let read = |text: &str| shares(text, &[]).map_err(|failure| failure.message().to_owned());
        assert_eq!(
            read("physics=2, chemistry").unwrap(),
            [("physics".to_owned(), 2), ("chemistry".to_owned(), 1)]
        );
        for wrong in ["", ",", "a=0", "a=x", "=2", "a,a", "a\"b"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(shares("c", &["a".to_owned()]).is_err());
    }

    #[test]
    fn a_part_is_a_percentage() {
        assert_eq!(percentage("30").unwrap(), "30%");
        for wrong in ["0%", "91%", "x", ""] {
            assert!(percentage(wrong).is_err(), "{wrong}");
        }
    }
}
