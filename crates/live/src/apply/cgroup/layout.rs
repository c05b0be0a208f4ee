//! The directory of each unit in the cgroup tree: `TOP/UNIT/SUBUNIT`, nested as in the contract.
//!
//! A cgroup may have either processes or child cgroups with controllers, but not both. So if a unit has
//! sub-units, the unit's own processes are in a child cgroup called [`OWN`], the *leaf*.

use std::path::{Path, PathBuf};

use commonhold_contract::{Contract, UnitId};

/// The leaf for the own processes of a unit with sub-units. No unit's directory can have this name.
pub(super) const OWN: &str = "own";

/// The location of one unit's directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Home {
    /// The unit's path, which identifies it across reloads.
    pub(super) unit: String,
    /// The enclosing unit, as an index into the same list.
    pub(super) parent: Option<usize>,
    /// The directory of the unit with its sub-units.
    pub(super) dir: PathBuf,
    /// Whether the unit has sub-units, and therefore a leaf [`OWN`].
    pub(super) inner: bool,
}

/// The homes of all units, parents first; and a second list with the index of each unit's home, by the unit's
/// number. The built-in units have no home, since their processes are not moved.
pub(super) fn homes(contract: &Contract, top: &Path) -> (Vec<Home>, Vec<Option<usize>>) {
    let mut homes: Vec<Home> = Vec::new();
    let mut index: Vec<Option<usize>> = vec![None; contract.units.len()];
    for id in contract.held() {
        let unit = contract.unit(id);
        let parent = unit.parent.and_then(|parent: UnitId| index[parent.index()]);
        if let Some(parent) = parent {
            homes[parent].inner = true;
        }
        let dir = parent.map_or(top, |parent| &homes[parent].dir).join(escape(&unit.name));
        index[id.index()] = Some(homes.len());
        homes.push(Home { unit: unit.path.clone(), parent, dir, inner: false });
    }
    (homes, index)
}

/// The directory name for a unit's name. It must not collide with a control file (all have a dot, like
/// `cpu.max`) or with [`OWN`]. So such names get the prefix `_`, and names that begin with `_` get it as
/// well, to stay distinct. Names of sub-units may come from the machine's user database, so `/` is replaced
/// to keep the directory inside its parent.
fn escape(name: &str) -> String {
    if name.contains(['.', '/', '\n']) || name.starts_with('_') || name == OWN {
        format!("_{}", name.replace(['/', '\n'], "_"))
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn units_nest_as_in_the_contract() {
        let mut contract = Contract::default();
        let physics = contract.add(None, "physics");
        contract.add(Some(physics), "night-batch");
        contract.add(None, "cpu.max");
        let (homes, index) = homes(&contract, Path::new("/c/commonhold"));
        let dirs: Vec<_> =
            homes.iter().map(|home| (home.dir.to_str().unwrap(), home.inner, home.parent)).collect();
        assert_eq!(
            dirs,
            [
                ("/c/commonhold/physics", true, None),
                ("/c/commonhold/physics/night-batch", false, Some(0)),
                ("/c/commonhold/_cpu.max", false, None),
            ]
        );
        assert_eq!(index, [None, None, Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn no_name_collides_with_a_file_of_the_kernel_or_with_another() {
        let names = ["cpu.max", "_cpu.max", "cgroup.procs", "own", "_own", "plain", "a_b"];
        let mut escaped: Vec<String> = names.iter().map(|name| escape(name)).collect();
        assert!(
            escaped.iter().all(|name| name != OWN && (!name.contains('.') || name.starts_with('_'))),
            "{escaped:?}"
        );
        escaped.sort();
        escaped.dedup();
        assert_eq!(escaped.len(), names.len());
    }
}
