//! Finds the systemd unit that owns a control group, from the group's path, and the path of a slice, from its
//! name.
//!
//! Example: `/user.slice/user-1000.slice/session-3.scope` belongs to the systemd unit `session-3.scope`. In
//! `/system.slice/docker.service/a` the folder `a` belongs to `docker.service`, which may make groups below
//! its own group. Groups below `user@1000.service` belong to units of the user's own systemd.
//!
//! systemd prefixes `_` to a name that clashes with one of the kernel's files, as in `_cpu.service`, and to
//! one that begins with `_` or `.`. Escapes such as `\x2d` are part of a unit's name, and are kept.
//!
//! A `-` in a slice's name begins a level: `commonhold-physics-ana.slice` is in `commonhold-physics.slice`,
//! which is in `commonhold.slice`. So the slices for units of the contract nest as the units do.

use std::fmt::Write;
use std::path::{Component, Path};

/// The kinds of systemd units that own a control group.
const SUFFIXES: [&str; 6] = [".slice", ".scope", ".service", ".socket", ".mount", ".swap"];

/// The longest name of a systemd unit, in bytes.
const LENGTH_MAX: usize = 255;

/// The owner of a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOwner {
    /// The systemd unit.
    pub unit: String,
    /// The user whose systemd the unit belongs to; `None` for the machine's systemd.
    pub user: Option<u32>,
    /// Whether the group is the systemd unit's own, and not one that its processes made below it.
    pub is_its_own: bool,
}

/// The systemd unit that owns a control group. `cgroup` is the group's path below the root of systemd's
/// groups, which is the file system's mount point, except in a container. `None` if no systemd unit owns the
/// group.
pub fn unit_of(cgroup: &Path) -> Option<GroupOwner> {
    let mut owner = GroupOwner { unit: "-.slice".to_owned(), user: None, is_its_own: true };
    // Whether every group up to here is a slice: only then may the next group be another systemd unit's.
    let mut in_slices = true;
    for component in cgroup.components() {
        let name = match component {
            Component::RootDir => continue,
            Component::Normal(name) => name.to_str().and_then(unescaped),
            _ => return None,
        };
        match name {
            Some(name) if in_slices => {
                in_slices = is_slice(name);
                name.clone_into(&mut owner.unit);
            }
            // The group is below `user@UID.service`: there the user's own systemd has another hierarchy of
            // slices.
            Some(name) if owner.user.is_none() && owner.is_its_own && user_of(&owner.unit).is_some() => {
                owner = GroupOwner { unit: name.to_owned(), user: user_of(&owner.unit), is_its_own: true };
                in_slices = is_slice(name);
            }
            // Another program made this group directly below the root.
            None if owner.unit == "-.slice" => return None,
            // A group that the processes of the unit above made.
            _ => {
                owner.is_its_own = false;
                in_slices = false;
            }
        }
    }
    Some(owner)
}

/// The name of the slice for a unit of the contract, by the unit's path: `commonhold-physics-ana.slice` for
/// `physics/ana`. `None` if the name is too long for systemd.
pub fn slice_for(unit: &str) -> Option<String> {
    let mut slice = "commonhold".to_owned();
    for name in unit.split('/') {
        slice.push('-');
        for byte in name.bytes() {
            if byte.is_ascii_alphanumeric() || b":_.".contains(&byte) {
                slice.push(char::from(byte));
            } else {
                let _ = write!(slice, "\\x{byte:02x}");
            }
        }
    }
    slice.push_str(".slice");
    (slice.len() <= LENGTH_MAX).then_some(slice)
}

/// The path of a slice's control group below the root of systemd's groups: a folder for each level of the
/// slice's name.
pub fn group_of_slice(slice: &str) -> String {
    let stem = slice.strip_suffix(".slice").unwrap_or(slice);
    let mut group = String::new();
    for end in stem.match_indices('-').map(|(end, _)| end).chain([stem.len()]) {
        group.extend(["/", &stem[..end], ".slice"]);
    }
    group
}

fn is_slice(unit: &str) -> bool {
    unit.strip_suffix(".slice").is_some()
}

/// The user of a `user@UID.service`, which is the user's own systemd; `None` for other systemd units.
fn user_of(unit: &str) -> Option<u32> {
    unit.strip_prefix("user@")?.strip_suffix(".service")?.parse().ok()
}

/// The name of the systemd unit whose control group has this folder name; `None` if no systemd unit's group
/// is named so.
fn unescaped(name: &str) -> Option<&str> {
    let name = name.strip_prefix('_').unwrap_or(name);
    let stem = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix))?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    // A template (`user@.service`) has no group.
    let is_name = !stem.is_empty() && !stem.starts_with('@') && !stem.ends_with('@');
    (is_name && name.len() <= LENGTH_MAX && name.bytes().all(is_allowed)).then_some(name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn owner_of(path: &str) -> String {
        unit_of(Path::new(path)).map_or("none".to_owned(), |owner| {
            let user = owner.user.map_or(String::new(), |user| format!(" of {user}"));
            format!("{}{user}{}", owner.unit, if owner.is_its_own { "" } else { ", inside" })
        })
    }

    #[test]
    fn a_units_slice_is_in_its_enclosers_slice() {
        for (unit, slice) in [
            ("physics", "commonhold-physics.slice"),
            ("physics/ana", "commonhold-physics-ana.slice"),
            ("night-batch/a b", r"commonhold-night\x2dbatch-a\x20b.slice"),
            ("a.b/_c", "commonhold-a.b-_c.slice"),
            ("é", r"commonhold-\xc3\xa9.slice"),
        ] {
            assert_eq!(slice_for(unit).as_deref(), Some(slice));
            let group = group_of_slice(slice);
            assert_eq!(owner_of(&group), slice, "{group}");
        }
        assert_eq!(
            group_of_slice("commonhold-a-b.slice"),
            "/commonhold.slice/commonhold-a.slice/commonhold-a-b.slice"
        );
        assert_eq!(slice_for(&"-".repeat(70)), None);
    }

    #[test]
    fn a_path_determines_the_owner_of_a_group() {
        for (path, owner) in [
            ("/", "-.slice"),
            ("/init.scope", "init.scope"),
            ("/user.slice/user-1000.slice", "user-1000.slice"),
            ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
            ("user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
            ("/user.slice/user-1000.slice/user@1000.service", "user@1000.service"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/a.service", "a.service of 1000"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice", "app.slice of 1000"),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", "init.scope of 1000"),
            ("/user.slice/user-1000.slice/user@1000.service/a.scope/b.scope", "a.scope of 1000, inside"),
            ("/user.slice/user-1000.slice/user@1000.service/x/app.slice", "user@1000.service, inside"),
            ("/system.slice/docker.service/a", "docker.service, inside"),
            ("/system.slice/docker.service/a.slice", "docker.service, inside"),
            ("/system.slice/_cpu.service", "cpu.service"),
            ("/system.slice/dev-disk\\x2dby.swap", "dev-disk\\x2dby.swap"),
            ("/machine.slice/machine-qemu\\x2d1.scope/libvirt", "machine-qemu\\x2d1.scope, inside"),
            ("/system.slice/getty@tty1.service", "getty@tty1.service"),
            ("/system.slice/getty@.service", "system.slice, inside"),
            ("/system.slice/other", "system.slice, inside"),
            ("/system.slice/other/x.service", "system.slice, inside"),
            ("/commonhold/a", "none"),
            ("/commonhold", "none"),
            ("/commonhold/x.slice", "none"),
            ("/../x", "none"),
            ("/.service", "none"),
        ] {
            assert_eq!(owner_of(path), owner, "{path}");
        }
        assert_eq!(owner_of(&format!("/{}.service", "x".repeat(250))), "none");
    }
}
