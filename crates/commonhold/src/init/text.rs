//! The text of a new contract, with comments.

use std::fmt::Write as _;

use super::facts::{Facts, Manager};

/// Among whom the machine is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shares {
    /// All people, equally.
    People,
    /// Groups, each with a number in proportion.
    Groups(Vec<(String, u64)>),
}

/// What the contract says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choices {
    pub(super) shares: Shares,
    /// The percentage of system services, if they are a unit.
    pub(super) services: Option<String>,
    /// The manager each of whose jobs is a unit.
    pub(super) jobs: Option<Manager>,
}

/// The tickets of a group with the number 1.
const TICKETS: u64 = 100;

/// The contract. For an ordinary user, it divides that user's own processes, whatever `choices` says.
pub(super) fn contract(facts: &Facts, choices: &Choices) -> String {
    let mut text = format!(
        "# A contract for a machine with {}.\n\
         # What a unit leaves idle is lent to the others, and called back when the unit needs it.\n\
         # `man commonhold-contract` explains every key.\n\
         version = 1\n",
        facts.machine
    );
    if let Some(user) = &facts.user {
        text += &own(user);
        return text;
    }
    if let Some(services) = &choices.services {
        let _ = write!(
            text,
            "\n# Logins, databases and other services of the system.\n\
             [unit.services]\n\
             members = [\"cgroup:/system.slice\"]\n\
             hard = {{ cpu = \"{services}\", memory = \"{services}\", disk = \"{services}\" }}    # reserved; lent while idle\n\
             tickets = 1                          # hardly anything beyond that\n"
        );
    }
    match &choices.shares {
        Shares::People => text += &people(facts.people),
        Shares::Groups(groups) => {
            let mut taken = vec!["services".to_owned(), "jobs".to_owned()];
            for (name, number) in groups {
                let unit = unit_name(name, &taken);
                let _ = write!(
                    text,
                    "\n[unit.{}]\nmembers = [\"group:{name}\"]\ntickets = {}                        # in proportion to \
                     those of the other units\neach = \"user\"                        # its users have equal parts\n",
                    unit,
                    number * TICKETS
                );
                taken.push(unit);
            }
        }
    }
    if let Some(manager) = choices.jobs {
        let _ = write!(
            text,
            "\n# Each of {}'s {} is a sub-unit.\n[unit.jobs]\nmembers = [\"cgroup:{}\"]\neach = \"cgroup\"\n{}",
            manager.name(),
            manager.jobs(),
            manager.group(),
            if manager == Manager::Slurm {
                "each-by = \"cpus\"                     # in proportion to its CPUs\n"
            } else {
                ""
            }
        );
    }
    text += "\n# Processes that no rule matches are in no unit, and not restricted. To give them a part, add a unit, and\n\
             # name it here:\n\
             #[machine]\n\
             #default = \"rest\"\n";
    text
}

/// A unit for all people, each with an equal part.
fn people((first, last): (u32, u32)) -> String {
    format!(
        "\n# Every person with processes on this machine has an equal part.\n\
         [unit.people]\n\
         members = [\"user:{first}-{last}\"]        # accounts with these numbers\n\
         each = \"user\"\n"
    )
}

/// Units of one user's own processes.
fn own(user: &str) -> String {
    format!(
        "\n# All your programs, but those below.\n\
         [unit.work]\n\
         members = [\"user:{user}\"]\n\
         tickets = 900\n\
         \n\
         # Programs that give way to the others. `commonhold exec batch -- PROGRAM` starts any program here.\n\
         [unit.batch]\n\
         members = [\"command:make@user:{user}\", \"command:ninja@user:{user}\", \"command:cargo@user:{user}\"]\n\
         tickets = 100\n"
    )
}

/// A unit's name for a group, other than those that are taken. The characters that names may not have are
/// replaced.
fn unit_name(group: &str, taken: &[String]) -> String {
    let name: String = group
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c.to_ascii_lowercase() } else { '-' })
        .collect();
    let name = name.trim_matches('-');
    let name = if name.is_empty() { "group" } else { name };
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::facts::Group;
    use super::*;

    #[test]
    fn every_contract_is_valid() {
        let facts = Facts {
            machine: "8 CPUs".to_owned(),
            user: None,
            has_systemd: true,
            people: (1000, 60_000),
            groups: vec![Group { name: "physics".to_owned(), people: 2 }],
            manager: Some(Manager::Slurm),
        };
        let names = ["physics", "Domain Users", "domain-users", "services", "\u{e9}"];
        let groups = Shares::Groups(names.map(|name| (name.to_owned(), 2)).into());
        for shares in [Shares::People, groups] {
            for jobs in [None, Some(Manager::Slurm), Some(Manager::Podman)] {
                for services in [None, Some("25%".to_owned())] {
                    for user in [None, Some("ana".to_owned())] {
                        let choices = Choices { shares: shares.clone(), services: services.clone(), jobs };
                        let text = contract(&Facts { user, ..facts.clone() }, &choices);
                        let parsed = commonhold_contract::parse(&text);
                        assert!(parsed.diagnostics.is_empty(), "{text}\n{:?}", parsed.diagnostics);
                        assert!(parsed.contract.unwrap().held().count() > 0);
                    }
                }
            }
        }
    }
}
