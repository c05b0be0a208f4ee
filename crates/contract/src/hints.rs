//! Guesses the meaning of an unknown key: another tool's word, or a table in the wrong place.
//!
//! A hint is right in the common case. If an unknown key is a likely misspelling of a known one, that one is suggested
//! instead.

use toml::de::DeValue;

use crate::keys::{MACHINE, ROOT, Table, UNIT};
use crate::name::check_name;
use crate::nearest::nearest;

/// How to set amounts of a resource.
const AMOUNTS: &str = "`hard = { memory = \"8GiB\" }` reserves an amount of a resource, `limit = { memory = \"8GiB\" }` is the most that \
                       the unit may use, and `tickets` are its share of the rest";

/// Synonyms of a unit's keys, in lower case without `-`, `_` and `.`, with these keys.
const WORDS: [(&[&str], &str); 6] = [
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

/// Words for resources, as above.
const RESOURCES: [(&[&str], &str); 4] = [
    (&["cpus", "cores", "core", "threads", "processor"], "cpu"),
    (&["mem", "ram", "rss", "mems"], "memory"),
    (&["io", "disks", "storage", "blkio", "iops"], "disk"),
    (&["bandwidth", "membus", "membw", "mbw"], "bus"),
];

/// The remedy for an unknown key of a table; `None` if only the list of the table's keys is left. `header` is that of the unit,
/// without brackets; empty outside of units.
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
        title if title == ROOT.title => root(name, value),
        title if title == MACHINE.title => UNIT.key(name).map(|_| in_a_unit(name)),
        title if title == UNIT.title => unit(name, value, header),
        _ => {
            let word = plain(name);
            let known = RESOURCES.iter().find(|(words, _)| words.contains(&word.as_str()))?.1;
            table.key(known).map(|_| format!("write `{known}`"))
        }
    }
}

fn root(name: &str, value: &DeValue<'_>) -> Option<String> {
    let Some(table) = value.as_table() else {
        let in_machine = MACHINE.key(name).map(|_| in_machine(name));
        return in_machine.or_else(|| UNIT.key(name).map(|_| in_a_unit(name)));
    };
    let name = if check_name(name).is_ok() { name } else { "NAME" };
    let below = table.get("unit").and_then(|below| below.get_ref().as_table()?.keys().next());
    Some(match below {
        Some(below) if check_name(below.get_ref()).is_ok() => {
            format!("a sub-unit is written [unit.{name}.unit.{}]", below.get_ref())
        }
        _ => format!("a unit is written [unit.{name}]"),
    })
}

fn unit(name: &str, value: &DeValue<'_>, header: &str) -> Option<String> {
    let word = plain(name);
    if let Some((_, remedy)) = WORDS.iter().find(|(words, _)| words.contains(&word.as_str())) {
        return Some((*remedy).to_owned());
    }
    if value.as_table().is_some() {
        let name = if check_name(name).is_ok() { name } else { "NAME" };
        return Some(format!("a sub-unit is written [{header}.unit.{name}]"));
    }
    MACHINE.key(name).map(|_| in_machine(name))
}

fn in_machine(name: &str) -> String {
    format!("`{name}` is a key of the whole machine: write it below the header [machine]")
}

fn in_a_unit(name: &str) -> String {
    format!("`{name}` is a key of a unit: write it below the unit's header [unit.NAME]")
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_' | '.')).flat_map(char::to_lowercase).collect()
}
