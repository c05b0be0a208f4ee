//! Remedies for unknown keys. The meaning of the key is guessed: it may be another tool's word for a known
//! key, or a known key in the wrong table.
//!
//! A guess may be wrong, so it only changes the remedy. No meaning is guessed if the unknown key is probably
//! a misspelling of a known key: then the known key is suggested.

use toml::de::DeValue;

use crate::keys::{MACHINE, ROOT, Table, UNIT};
use crate::name::check_name;
use crate::nearest::nearest;

/// The remedy for a resource as a key of a unit.
const AMOUNTS: &str = "`hard = { memory = \"8GiB\" }` reserves an amount of a resource, \
     `limit = { memory = \"8GiB\" }` is the most that the unit may use, and `tickets` are its share of the rest";

/// Synonyms of a unit's keys, in lower case and without `-`, `_` and `.`, each group with its remedy.
const UNIT_SYNONYMS: [(&[&str], &str); 6] = [
    (
        &[
            "user",
            "users",
            "group",
            "groups",
            "command",
            "commands",
            "cgroup",
            "cgroups",
            "pid",
            "pids",
            "uid",
            "gid",
            "uids",
            "gids",
            "process",
            "processes",
            "slice",
        ],
        "processes are listed in `members = [\"user:ana\", \"group:physics\", \"command:make\"]`",
    ),
    (
        &[
            "weight",
            "weights",
            "share",
            "shares",
            "cpuweight",
            "cpushares",
            "ioweight",
            "priority",
            "nice",
            "ratio",
        ],
        "a unit's share against its siblings is `tickets = 200`; a unit has 100 unless it says otherwise",
    ),
    (
        &[
            "quota",
            "quotas",
            "max",
            "maximum",
            "cap",
            "cpuquota",
            "cpumax",
            "memorymax",
            "memorylimit",
            "memoryhigh",
            "iomax",
            "soft",
            "ceiling",
        ],
        "the most that a unit may use is `limit = { cpu = \"2\", memory = \"8GiB\" }`",
    ),
    (
        &[
            "min",
            "minimum",
            "guarantee",
            "guaranteed",
            "reserve",
            "reserved",
            "reservation",
            "memorymin",
            "memorylow",
            "request",
            "requests",
        ],
        "what is reserved for a unit is `hard = { cpu = \"2\", memory = \"8GiB\" }`",
    ),
    (&["cpu", "cpus", "cores", "memory", "mem", "ram", "disk", "io", "bus", "bandwidth"], AMOUNTS),
    (&["name", "id", "title"], "a unit's name stands in its header: [unit.NAME]"),
];

/// Synonyms of resources, in lower case and without `-`, `_` and `.`, each group with the resource's key.
const RESOURCE_SYNONYMS: [(&[&str], &str); 4] = [
    (&["cpus", "cores", "core", "threads", "processor"], "cpu"),
    (&["mem", "ram", "rss", "mems"], "memory"),
    (&["io", "disks", "storage", "blkio", "iops"], "disk"),
    (&["bandwidth", "membus", "membw", "mbw"], "bus"),
];

/// The remedy for an unknown key of a table; `None` if its meaning cannot be guessed. `header` is the header
/// of the unit, without brackets, and empty outside of units.
pub(crate) fn for_key(
    table: &'static Table,
    name: &str,
    value: &DeValue<'_>,
    header: &str,
) -> Option<String> {
    if nearest(name, table.names()).is_some() {
        return None;
    }
    match table.title {
        title if title == ROOT.title => at_top_level(name, value),
        title if title == MACHINE.title => UNIT.key(name).map(|_| belongs_to_unit(name)),
        title if title == UNIT.title => in_unit(name, value, header),
        _ => {
            let word = normalised(name);
            let known = RESOURCE_SYNONYMS.iter().find(|(words, _)| words.contains(&word.as_str()))?.1;
            table.key(known).map(|_| format!("write `{known}`"))
        }
    }
}

/// The remedy for an unknown key at the top level of a contract.
fn at_top_level(name: &str, value: &DeValue<'_>) -> Option<String> {
    let Some(table) = value.as_table() else {
        let of_machine = MACHINE.key(name).map(|_| belongs_to_machine(name));
        return of_machine.or_else(|| UNIT.key(name).map(|_| belongs_to_unit(name)));
    };
    let name = if check_name(name).is_ok() { name } else { "NAME" };
    let sub_unit = table.get("unit").and_then(|units| units.get_ref().as_table()?.keys().next());
    Some(match sub_unit {
        Some(sub_unit) if check_name(sub_unit.get_ref()).is_ok() => {
            format!("a sub-unit is written [unit.{name}.unit.{}]", sub_unit.get_ref())
        }
        _ => format!("a unit is written [unit.{name}]"),
    })
}

/// The remedy for an unknown key of a unit.
fn in_unit(name: &str, value: &DeValue<'_>, header: &str) -> Option<String> {
    let word = normalised(name);
    if let Some((_, remedy)) = UNIT_SYNONYMS.iter().find(|(words, _)| words.contains(&word.as_str())) {
        return Some((*remedy).to_owned());
    }
    if value.as_table().is_some() {
        let name = if check_name(name).is_ok() { name } else { "NAME" };
        return Some(format!("a sub-unit is written [{header}.unit.{name}]"));
    }
    MACHINE.key(name).map(|_| belongs_to_machine(name))
}

fn belongs_to_machine(name: &str) -> String {
    format!("`{name}` is a key of the whole machine: write it below the header [machine]")
}

fn belongs_to_unit(name: &str) -> String {
    format!("`{name}` is a key of a unit: write it below the unit's header [unit.NAME]")
}

/// A word in lower case, without `-`, `_` and `.`.
fn normalised(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_' | '.')).flat_map(char::to_lowercase).collect()
}
