//! Mounting a file system of the kernel's (`mount(2)`).

use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};

use super::tamper::{About, Kind, pass};

/// Mounts one of that kind; `source` is what mountinfo shows of who mounted it. Errors: `EBUSY` where there can be only one,
/// and it is mounted.
pub(crate) fn mount(source: &str, kind: &str, point: &Path) -> io::Result<()> {
    pass(Kind::Mount, About::Path(point))?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount(source, point, kind, safe, None)?)
}

/// Takes it away. Errors: `EBUSY` where a file of it is open.
pub(crate) fn unmount(point: &Path) -> io::Result<()> {
    pass(Kind::Unmount, About::Path(point))?;
    Ok(rustix::mount::unmount(point, UnmountFlags::NOFOLLOW)?)
}
