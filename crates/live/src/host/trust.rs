//! Opens files that another user may have put in place, or may change.
//!
//! Problem: a daemon run by root reads files by path. Opening a FIFO blocks, opening a device may have
//! effects, and a file of several GB exhausts memory. Through a link, or through a directory that others may
//! write to, a path may lead to any file that another user chooses.
//!
//! Algorithm: the path is examined before it is opened, since opening a device has effects. It is then opened
//! without blocking, and the open descriptor's type, owner, mode, link count and size decide. There are four
//! entry points:
//! - [`open_own`] opens the daemon's own state: a regular file owned by this user, with one name, that no
//!   other user may write. It follows no symbolic link.
//! - [`read_kept`] reads such a state file of this user or of root.
//! - [`read_input`] reads a file that a person names: the path may be a link, and the file may belong to any
//!   user.
//! - [`read_trusted`] reads a contract that will be enforced. For root, neither the file nor a directory on
//!   its canonical path may be writable by any other user, as sshd requires of its own files.
//!
//! Properties (tested): each refusal is immediate and has a reason; no more than the bound is read.
//!
//! Limits: an access control list counts only through its mask, which the mode shows in the group bits.

use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::files::{File, check_size};
use super::tamper::{About, Kind, pass};

/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;
/// In a directory with this bit, only the owner of a file may remove or rename it.
const STICKY: u32 = 0o1000;

/// Opens a file of the daemon's own state with these options, which may include `create`.
///
/// Errors: `InvalidInput` if it is not a regular file, has more than one name, does not belong to the
/// effective user, or may be written by others; `FileTooLarge` above `bytes_max`; else the kernel's.
pub(crate) fn open_own(path: &Path, options: &mut OpenOptions, bytes_max: u64) -> io::Result<File> {
    open_owned_by(&[euid()], path, options, bytes_max)
}

/// Reads a state file that a daemon of this user or of root keeps, and that other programs read, too.
///
/// Errors: those of [`open_own`].
pub(crate) fn read_kept(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    open_owned_by(&[0, euid()], path, OpenOptions::new().read(true), bytes_max)?.read_at_most(bytes_max)
}

/// [`open_own`] for a file that belongs to one of these users.
fn open_owned_by(owners: &[u32], path: &Path, options: &mut OpenOptions, bytes_max: u64) -> io::Result<File> {
    // A file that does not exist may be made by the options.
    match examine(path, |path| fs::symlink_metadata(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        facts => regular(&facts?)?,
    }
    let file = File::open_with(path, options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK))?;
    let facts = file.look()?;
    regular(&facts)?;
    if !owners.contains(&facts.uid()) {
        return Err(refuse(format!("it belongs to another user (uid {})", facts.uid())));
    }
    if facts.mode() & OTHERS_WRITE != 0 {
        return Err(refuse(format!("others may write to it (mode {:04o})", facts.mode() & 0o7777)));
    }
    if facts.nlink() > 1 {
        return Err(refuse(format!("it is a hard link: the same file has {} names", facts.nlink())));
    }
    check_size(facts.len(), bytes_max)?;
    Ok(file)
}

/// Reads a file that a person named. Follows symbolic links.
///
/// Errors: `InvalidInput` if it is not a regular file; `FileTooLarge` above `bytes_max`; else the kernel's.
pub fn read_input(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read(open_input(path)?, bytes_max)
}

/// Reads a file that decides what the daemon does to others. Like [`read_input`], but root refuses files that
/// others may change.
///
/// Errors: those of [`read_input`], and `PermissionDenied` with the reason of [`who_else_may_change`].
pub fn read_trusted(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open_input(path)?;
    if let Some(why) = why_changeable(path, &file.metadata()?)? {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    read(file, bytes_max)
}

/// Why a user other than root may change the content that root reads at this path; `None` if no other user
/// may. Always `None` if this process does not run as root: an ordinary user risks only their own processes.
///
/// Errors: the kernel's, about the file and the directories on its canonical path.
pub fn who_else_may_change(path: &Path) -> io::Result<Option<String>> {
    why_changeable(path, &examine(path, |path| fs::metadata(path))?)
}

/// [`who_else_may_change`] for a path whose file has the metadata `opened`.
fn why_changeable(path: &Path, opened: &Metadata) -> io::Result<Option<String>> {
    if euid() != 0 {
        return Ok(None);
    }
    // Check the canonical path: wherever a link leads, only root may be able to change the file there.
    let canonical = super::canonical(path)?;
    let named = examine(&canonical, |path| fs::symlink_metadata(path))?;
    if (named.dev(), named.ino()) != (opened.dev(), opened.ino()) {
        return Ok(Some("it was replaced while it was read".to_owned()));
    }
    if let Some(why) = others_may_write(opened, 0, OTHERS_WRITE) {
        return Ok(Some(why));
    }
    others_may_write_above(&canonical, 0, OTHERS_WRITE)
}

/// Why another user may replace the content of a directory of this user, through one of its ancestors; `None`
/// if no other user may. All ancestors must belong to root or to this user. Others may write to an ancestor
/// only if it has the sticky bit; for root, the same holds for groups.
///
/// Errors: the kernel's, about these directories.
pub fn who_else_may_replace(directory: &Path) -> io::Result<Option<String>> {
    let mask = if euid() == 0 { OTHERS_WRITE } else { 0o002 };
    others_may_write_above(&super::canonical(directory)?, euid(), mask)
}

/// Why others than root and `owner` may write to an ancestor of a canonical path; `None` if they may not.
/// `mask` has the permission bits that others must not have, unless the ancestor has the sticky bit.
fn others_may_write_above(canonical: &Path, owner: u32, mask: u32) -> io::Result<Option<String>> {
    for directory in canonical.ancestors().skip(1) {
        let facts = examine(directory, |path| fs::symlink_metadata(path))?;
        let mask = if facts.mode() & STICKY == 0 { mask } else { 0 };
        if let Some(why) = others_may_write(&facts, owner, mask) {
            return Ok(Some(format!("of the directory {} around it, {why}", directory.display())));
        }
    }
    Ok(None)
}

/// Why others than root and `owner` may write to one file or directory; `None` if they may not.
fn others_may_write(facts: &Metadata, owner: u32, mask: u32) -> Option<String> {
    if facts.uid() != 0 && facts.uid() != owner {
        return Some(format!("the owner is the user with the number {}", facts.uid()));
    }
    let mode = facts.mode() & 0o7777;
    (mode & mask != 0).then(|| format!("the mode {mode:04o} lets others write"))
}

/// Opens a regular file that a person named.
fn open_input(path: &Path) -> io::Result<fs::File> {
    regular(&examine(path, |path| fs::metadata(path))?)?;
    pass(Kind::Open, About::Path(path))?;
    // The path may lead to a FIFO by now, which must not block.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// Reads a whole file of at most `bytes_max` bytes.
fn read(file: fs::File, bytes_max: u64) -> io::Result<Vec<u8>> {
    check_size(file.metadata()?.len(), bytes_max)?;
    let mut bytes = Vec::new();
    // The size is checked again: the file may grow meanwhile, and generated kernel files have no size.
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    check_size(bytes.len() as u64, bytes_max)?;
    Ok(bytes)
}

/// Reads a file's metadata by a function that follows links or not, as the hook decides.
fn examine(path: &Path, metadata: impl Fn(&Path) -> io::Result<Metadata>) -> io::Result<Metadata> {
    pass(Kind::Look, About::Path(path))?;
    metadata(path)
}

/// Refuses anything but a regular file. Errors: `InvalidInput`, with a message that names the kind of file.
pub fn regular(facts: &Metadata) -> io::Result<()> {
    let kind = facts.file_type();
    let name = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a FIFO or pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() => "a character device",
        () if kind.is_block_device() => "a block device",
        () => "of an unknown kind",
    };
    Err(refuse(format!("it is {name}, not a regular file")))
}

/// The error of a file that is not of the required kind.
fn refuse(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    /// For each kind of file that must not be opened: puts one in place, and calls `check` with the message
    /// of the refusal.
    pub(crate) fn each_impostor(mut check: impl FnMut(&Path, &str)) {
        type Make = fn(&Path);
        let fifo: Make = |path| {
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        };
        let hard_link: Make = |path| {
            let other = path.with_extension("other");
            fs::write(&other, "x").unwrap();
            fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
            fs::hard_link(other, path).unwrap();
        };
        let writable: Make = |path| {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o662)).unwrap();
        };
        let mut impostors: Vec<(Make, &str)> = vec![
            (fifo, "it is a FIFO or pipe, not a regular file"),
            (|path| fs::create_dir(path).unwrap(), "it is a directory, not a regular file"),
            (|path| symlink("/dev/zero", path).unwrap(), "it is a symbolic link, not a regular file"),
            (|path| drop(std::os::unix::net::UnixListener::bind(path).unwrap()), "it is a socket"),
            (hard_link, "it is a hard link: the same file has 2 names"),
            (writable, "others may write to it (mode 0662)"),
        ];
        if euid() == 0 {
            impostors.push((
                |path| {
                    fs::write(path, "x").unwrap();
                    chown(path, Some(54_321), None).unwrap();
                },
                "it belongs to another user (uid 54321)",
            ));
        }
        for (make, words) in impostors {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            make(&path);
            check(&path, words);
        }
    }

    /// A file with a hole of 3 GB.
    pub(crate) fn huge(path: &Path) {
        let file = fs::File::create(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        file.set_len(3 << 30).unwrap();
    }

    #[test]
    fn state_is_a_regular_file_of_this_user() {
        let open = |path: &Path| {
            open_own(path, OpenOptions::new().read(true).append(true).create(true).mode(0o600), 1 << 20)
        };
        each_impostor(|path, words| {
            for error in [open(path).unwrap_err(), read_kept(path, 1 << 20).unwrap_err()] {
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
                assert!(error.to_string().starts_with(words), "{words}: {error}");
            }
        });
        let dir = tempfile::tempdir().unwrap();
        open(&dir.path().join("new")).unwrap();
        open(&dir.path().join("new")).unwrap();
        huge(&dir.path().join("huge"));
        let error = open(&dir.path().join("huge")).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 1 MiB");
    }

    #[test]
    fn input_is_a_regular_file_of_any_user() {
        each_impostor(|path, words| {
            let read = read_input(path, 1 << 20);
            if words.contains("not a regular") && !words.contains("link") || words.contains("socket") {
                assert!(read.unwrap_err().to_string().starts_with(words), "{words}");
            } else if words.contains("symbolic") {
                let error = read.unwrap_err().to_string();
                assert_eq!(error, "it is a character device, not a regular file");
            } else {
                assert_eq!(read.unwrap(), b"x", "{words}");
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("huge");
        huge(&path);
        assert_eq!(read_input(&path, 7).unwrap_err().to_string(), "it has more than 7 bytes");
        fs::write(&path, "1234567").unwrap();
        symlink(&path, dir.path().join("link")).unwrap();
        assert_eq!(read_input(&dir.path().join("link"), 7).unwrap(), b"1234567");
        // A kernel file without a size.
        assert!(read_input("/proc/self/status".as_ref(), 7).is_err());
        assert!(read_input("/proc/self/status".as_ref(), 1 << 20).unwrap().starts_with(b"Name:"));
    }

    #[test]
    fn root_trusts_what_root_alone_may_change() {
        if euid() != 0 {
            assert_eq!(who_else_may_change("/proc/self/status".as_ref()).unwrap(), None);
            eprintln!("skipped the rest: only root must not trust others");
            return;
        }
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (middle, path) = (dir.path().join("middle"), dir.path().join("middle/contract"));
        fs::create_dir(&middle).unwrap();
        fs::write(&path, "text").unwrap();
        mode(&middle, 0o755);
        mode(&path, 0o644);
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        let check = |words: &str| {
            for name in [&path, &link] {
                let (why, read) = (who_else_may_change(name).unwrap(), read_trusted(name, 9));
                assert_eq!(why.is_none(), words.is_empty(), "{why:?}");
                assert!(why.unwrap_or_default().ends_with(words));
                assert_eq!(read.is_ok(), words.is_empty());
            }
        };
        check("");
        for (changed, bad, good, words) in [
            (&path, 0o664, 0o644, "the mode 0664 lets others write"),
            (&path, 0o646, 0o644, "the mode 0646 lets others write"),
            (&middle, 0o775, 0o755, "middle around it, the mode 0775 lets others write"),
            (&middle, 0o757, 0o755, "middle around it, the mode 0757 lets others write"),
        ] {
            mode(changed, bad);
            check(words);
            mode(changed, good);
            check("");
        }
        // As in /tmp, others can make files there but not touch ours.
        mode(&middle, 0o1777);
        check("");
        for changed in [&path, &middle] {
            chown(changed, Some(54_321), None).unwrap();
            check("the owner is the user with the number 54321");
            chown(changed, Some(0), None).unwrap();
        }
        assert_eq!(who_else_may_replace(&middle).unwrap(), None);
        mode(dir.path(), 0o777);
        assert!(who_else_may_replace(&middle).unwrap().unwrap().ends_with("the mode 0777 lets others write"));
        mode(dir.path(), 0o700);
    }
}
