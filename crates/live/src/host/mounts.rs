//! Mounts the kernel's file systems (`mount(2)`).

use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};

use super::tamper::{About, Kind, pass};

/// Mounts a file system of this kind; mountinfo then shows `source`. Errors: `EBUSY` if only one mount is possible, and exists.
pub(crate) fn mount(source: &str, kind: &str, point: &Path) -> io::Result<()> {
    pass(Kind::Mount, About::Path(point))?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount(source, point, kind, safe, None)?)
}

/// Unmounts it. Errors: `EBUSY` if a file in it is open.
pub(crate) fn unmount(point: &Path) -> io::Result<()> {
    pass(Kind::Unmount, About::Path(point))?;
    Ok(rustix::mount::unmount(point, UnmountFlags::NOFOLLOW)?)
}
