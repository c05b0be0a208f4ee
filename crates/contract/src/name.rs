//! The rules for names of units. A unit's name becomes the name of a folder in the cgroup file system, and a
//! part of paths in commands.

/// The longest name of a unit, in characters.
pub(crate) const NAME_CHARS_MAX: usize = 64;

/// Names that units may not take: the built-in units, and the leaf cgroup of a unit that has sub-units.
const RESERVED_NAMES: [&str; 3] = ["kernel", "shared", "own"];

/// The prefixes, up to the first dot, of the kernel's own files in a cgroup's folder. A unit whose name
/// begins with such a prefix could collide with a file of the kernel
/// (Documentation/admin-guide/cgroup-v2.rst, "Avoid Name Collisions").
const KERNEL_PREFIXES: [&str; 11] =
    ["cgroup", "cpu", "cpuset", "memory", "io", "irq", "pids", "rdma", "hugetlb", "misc", "dmem"];

/// Checks the name of a unit. The error is a message and a remedy.
pub(crate) fn check_name(name: &str) -> Result<(), (String, String)> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let rule = format!("names are 1 to {NAME_CHARS_MAX} letters (a to z), digits, `-`, `_` and `.`");
    if name.is_empty() {
        return Err(("the name of a unit is empty".to_owned(), rule));
    }
    if let Some(bad) = name.chars().find(|c| !allowed(*c)) {
        return Err((format!("`{bad}` cannot be in the name of a unit"), rule));
    }
    if name.len() > NAME_CHARS_MAX {
        return Err((format!("the name of a unit is {} characters long", name.len()), rule));
    }
    if name.starts_with(['.', '-']) {
        return Err((
            format!("unit `{name}` begins with `{}`", &name[..1]),
            "begin with a letter, a digit or `_`".to_owned(),
        ));
    }
    if RESERVED_NAMES.contains(&name) {
        let help = format!("choose another name than {}: they are built in", RESERVED_NAMES.join(", "));
        return Err((format!("unit `{name}` has a reserved name"), help));
    }
    if let Some((prefix, _)) = name.split_once('.').filter(|(prefix, _)| KERNEL_PREFIXES.contains(prefix)) {
        let message = format!("unit `{name}` is named like a file of the kernel's in a cgroup");
        return Err((message, format!("do not begin with `{prefix}.`")));
    }
    Ok(())
}
