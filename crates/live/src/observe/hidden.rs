//! The processes that /proc hides from ordinary users: its mount options `hidepid` and `gid`.

use std::path::Path;

use super::process::ProcFs;
use crate::LiveError;

/// Which callers /proc hides other users' processes from. With `hidepid=1` the kernel still lists them, but
/// shows none of their files; here this counts as hidden, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HiddenProcesses {
    /// Whether any process is hidden.
    are_any: bool,
    /// The group from whose members no process is hidden; `None`: there is no such group.
    exempt: Option<u32>,
}

impl HiddenProcesses {
    /// Reads the options of this program's /proc.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read(procfs: &mut ProcFs) -> Result<HiddenProcesses, LiveError> {
        let point = procfs.path().to_owned();
        let mounts = procfs.read_lines("self/mountinfo")?.map(String::from_utf8_lossy);
        Ok(mounts.map_or(HiddenProcesses::ALL, |mounts| HiddenProcesses::of(&mounts, &point)))
    }

    /// Every process is hidden from other users: to be assumed while the options are not known.
    pub const ALL: HiddenProcesses = HiddenProcesses { are_any: true, exempt: None };

    /// The options of the procfs at `point`, by a text in the format of /proc/PID/mountinfo.
    fn of(mounts: &str, point: &Path) -> HiddenProcesses {
        // If several file systems are mounted there, the last one covers the others.
        let options = mounts.lines().rev().find_map(|line| {
            let (mount, file_system) = line.split_once(" - ")?;
            let is_there = Path::new(mount.split(' ').nth(4)?) == point;
            let mut words = file_system.split(' ');
            (is_there && words.next() == Some("proc")).then(|| words.nth(1)).flatten()
        });
        let mut hidden = HiddenProcesses::default();
        for option in options.unwrap_or_default().split(',') {
            match option.split_once('=') {
                Some(("hidepid", value)) => hidden.are_any = !matches!(value, "0" | "off"),
                // Root's group exempts nobody: it is the default.
                Some(("gid", value)) => hidden.exempt = value.parse().ok().filter(|gid| *gid != 0),
                _ => {}
            }
        }
        hidden
    }

    /// Whether any process is hidden from any user.
    pub fn are_any(&self) -> bool {
        self.are_any
    }

    /// Whether other users' processes are hidden from an ordinary user in these groups.
    pub fn from(&self, gids: &[u32]) -> bool {
        self.are_any && self.exempt.is_none_or(|exempt| !gids.contains(&exempt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(options: &str) -> HiddenProcesses {
        let mounts = format!(
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw,hidepid=2\n\
             23 22 0:5 / /proc rw,nosuid - proc proc rw,hidepid=2\n\
             24 23 0:6 / /proc rw,nosuid shared:5 - proc proc {options}\n\
             25 22 0:7 / /jail/proc rw - proc proc rw,hidepid=2\n"
        );
        HiddenProcesses::of(&mounts, Path::new("/proc"))
    }

    #[test]
    fn the_options_of_the_uppermost_mount_count() {
        assert!(!of("rw").from(&[7]) && !of("rw,hidepid=0").from(&[7]) && !of("rw,hidepid=off").from(&[]));
        for value in ["1", "2", "4", "noaccess", "invisible", "ptraceable"] {
            assert!(of(&format!("rw,hidepid={value}")).from(&[0, 7]), "{value}");
        }
    }

    #[test]
    fn a_group_may_be_exempt() {
        let hidden = of("rw,gid=7,hidepid=invisible");
        assert!(hidden.from(&[1, 8]) && !hidden.from(&[1, 7]));
        assert!(HiddenProcesses::ALL.from(&[0, 7]));
    }

    /// Without a mount at this point, nothing is mounted that could hide processes.
    #[test]
    fn the_options_of_this_machine_can_be_read() -> Result<(), LiveError> {
        let mut procfs = ProcFs::open(Path::new("/proc"))?;
        let hidden = HiddenProcesses::read(&mut procfs)?;
        assert_eq!(hidden, HiddenProcesses::read(&mut procfs)?);
        assert_eq!(HiddenProcesses::of("", Path::new("/proc")), HiddenProcesses::default());
        Ok(())
    }
}
