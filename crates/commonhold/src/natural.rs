//! The natural contract, which `run` enforces if it is given no contract: each person who is logged in has an
//! equal part, system services have theirs, and everything idle is lent.

use std::path::Path;

use crate::cli::Run;
use crate::exit::{Exit, Failure};
use crate::load;

/// The contract's name where its file's name would stand.
pub(crate) const NAME: &str = "(natural)";

/// The numbers of people's accounts where /etc/login.defs does not say otherwise.
const PEOPLE: (u32, u32) = (1000, 60_000);

/// Where systemd runs, its services have a quarter of the machine. They seldom need it.
const SERVICES: &str = "
[unit.services]
members = [\"cgroup:/system.slice\"]
";

/// The text of the contract that `run` enforces, and its name in messages.
pub(crate) fn text_for(args: &Run) -> Result<(String, String), Failure> {
    match &args.contract {
        Some(path) => Ok((load::read_trusted(path)?, path.display().to_string())),
        None if rustix::process::geteuid().is_root() => Ok((here(Path::new("/")), NAME.to_owned())),
        None => Err(Failure::new(
            Exit::Usage,
            "give a contract: your own processes have no natural division; `commonhold init` writes one to begin \
             with. As root, `commonhold run` without a contract gives each person an equal part",
        )),
    }
}

/// The natural contract of the machine below `root`.
fn here(root: &Path) -> String {
    let defs = std::fs::read_to_string(root.join("etc/login.defs")).unwrap_or_default();
    text(people(&defs), root.join("run/systemd/system").is_dir())
}

/// The natural contract, for people whose accounts have numbers in this range.
fn text((first, last): (u32, u32), has_systemd: bool) -> String {
    let services = if has_systemd { SERVICES } else { "" };
    format!(
        "# Each person who is logged in has an equal part, and everything idle is lent.
version = 1

[unit.people]
members = [\"user:{first}-{last}\"]
each = \"user\"
tickets = 300
{services}"
    )
}

/// The first and the last number of people's accounts, by the text of /etc/login.defs (see login.defs(5)).
pub(crate) fn people(defs: &str) -> (u32, u32) {
    let value = |key: &str| {
        let mut words = defs.lines().map(str::split_ascii_whitespace);
        words.find_map(|mut words| (words.next()? == key).then(|| words.next()?.parse().ok())?)
    };
    let (first, last) = (value("UID_MIN").unwrap_or(PEOPLE.0), value("UID_MAX").unwrap_or(PEOPLE.1));
    if (1..=last).contains(&first) && last < u32::MAX { (first, last) } else { PEOPLE }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_contract_without_remarks() {
        for has_systemd in [true, false] {
            let parsed = commonhold_contract::parse(&text(PEOPLE, has_systemd));
            assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
            let contract = parsed.contract.unwrap();
            assert_eq!(contract.find("services").is_some(), has_systemd);
        }
    }

    #[test]
    fn login_defs_say_which_accounts_are_peoples() {
        let defs = "# UID_MIN 5\nUID_MIN\t\t\t 500\nUID_MAX 60001 # more\nSYS_UID_MAX 499\n";
        assert_eq!(people(defs), (500, 60_001));
        for nonsense in ["", "UID_MIN\nUID_MAX x", "UID_MIN 0", "UID_MIN 9\nUID_MAX 8", "UID_MAX 4294967295"]
        {
            assert_eq!(people(nonsense), PEOPLE, "{nonsense:?}");
        }
    }
}
