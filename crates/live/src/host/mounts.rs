//! Mounts the kernel's file systems (`mount(2)`).

use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};

use super::tamper::{About, Kind, pass};

/// Mounts a file system of this kind; mountinfo then shows `source`. Errors: `EBUSY` if the file system can
/// be mounted only once, and is mounted already.
pub(crate) fn mount(source: &str, kind: &str, point: &Path) -> io::Result<()> {
    pass(Kind::Mount, About::Path(point))?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount(source, point, kind, safe, None)?)
}

/// Unmounts the file system that is mounted at a folder. Errors: `EBUSY` if a file in it is open.
pub(crate) fn unmount(point: &Path) -> io::Result<()> {
    pass(Kind::Unmount, About::Path(point))?;
    Ok(rustix::mount::unmount(point, UnmountFlags::NOFOLLOW)?)
}
