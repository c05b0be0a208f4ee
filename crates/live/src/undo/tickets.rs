//! Tickets that were changed while a contract was in force, kept for the next daemon.
//!
//! Problem: what was changed at run time must survive a daemon that is killed or restarted. The journal cannot hold
//! it: it is removed once everything in it was undone, and a change is not undone by a daemon's end.
//!
//! Algorithm: a file beside the journal has every unit's tickets that are not those of the contract, with the number
//! that the contract gave it then. A unit has its path there: numbers are one daemon's. The file is written before a
//! change is made, as a whole, under another name, and then takes the place of the one before. No row, no file.
//!
//! Properties (tested): what is written is read. A write that fails leaves the file as it was. Any bytes are read, or
//! refused, without harm. No link is followed.
//!
//! Limits: on a memory file system it ends with the machine's run, as the journal does.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use commonhold_contract::Resource;
use serde::{Deserialize, Serialize};

use crate::LiveError;
use crate::host::{self, File};

/// The file's name in the daemon's directory.
pub const FILE_NAME: &str = "tickets.json";

/// The version of the file's shape. A file of another is refused.
const VERSION: u32 = 1;

/// A unit's tickets of a resource that are not those of the contract.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Kept {
    /// The unit's path.
    pub unit: String,
    /// Of what.
    pub resource: Resource,
    /// What the contract gave it when they were changed. Where it gives another number, it was changed since.
    pub contract: u64,
    /// What it has instead; 1 to 1,000,000 where a daemon wrote it.
    pub tickets: u64,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    changed: Vec<Kept>,
}

/// What an earlier daemon kept in its directory; nothing where there is no file.
///
/// Refused: a file that cannot be read, is of another version or none of ours, or belongs to another user.
pub fn read(directory: &Path) -> Result<Vec<Kept>, LiveError> {
    let path = directory.join(FILE_NAME);
    let mut options = OpenOptions::new();
    let mut file = match File::open_with(&path, options.read(true).custom_flags(libc::O_NOFOLLOW)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(|error| failed(&path, "open", error))?,
    };
    let owner = file.look().map_err(|error| failed(&path, "examine", error))?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(LiveError::Unavailable {
            what: format!("{} belongs to another user (uid {owner})", path.display()),
            remedy: "remove it, or use another directory for the daemon".to_owned(),
        });
    }
    let bytes = file.read_to_end().map_err(|error| failed(&path, "read", error))?;
    parse(&bytes).map_err(|error| failed(&path, "understand", error))
}

fn parse(bytes: &[u8]) -> io::Result<Vec<Kept>> {
    let Document { version, changed } = serde_json::from_slice(bytes)?;
    match version {
        VERSION => Ok(changed),
        other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is of version {other}"))),
    }
}

/// Keeps these, and nothing else, for the next daemon. They are in the file when this returns.
pub fn write(directory: &Path, changed: &[Kept]) -> Result<(), LiveError> {
    let path = directory.join(FILE_NAME);
    if changed.is_empty() {
        return match host::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path, "remove", error)),
            _ => Ok(()),
        };
    }
    let document = Document { version: VERSION, changed: changed.to_vec() };
    replace(&path, &document).map_err(|error| failed(&path, "write", error))
}

fn replace(path: &Path, document: &Document) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(document)?;
    bytes.push(b'\n');
    let temporary = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = File::open_with(&temporary, &options)?;
    // A daemon that was killed may have left a part of it.
    file.set_len(0)?;
    file.write_all(&bytes)?;
    host::rename(&temporary, path)
}

fn failed(path: &Path, what: &str, source: io::Error) -> LiveError {
    let remedy = match source.kind() {
        io::ErrorKind::StorageFull => "; free some space there, or use another directory for the daemon",
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            "; remove it, and change the tickets anew with `commonhold tickets`"
        }
        _ => "; it must be a file of this user in the daemon's directory",
    };
    LiveError::File {
        path: PathBuf::from(path),
        what: format!("{what} the changed tickets"),
        source,
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host::{Answer, Kind};
    use proptest::prelude::*;

    fn kept(unit: &str, tickets: u64) -> Kept {
        Kept { unit: unit.to_owned(), resource: Resource::Disk, contract: 100, tickets }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), []);
        write(dir.path(), &[]).unwrap();
        let rows = [kept("physics/night-batch", 150), kept("a", 1)];
        write(dir.path(), &rows).unwrap();
        assert_eq!(read(dir.path()).unwrap(), rows);
        write(dir.path(), &rows[1..]).unwrap();
        assert_eq!(read(dir.path()).unwrap(), rows[1..]);
        write(dir.path(), &[]).unwrap();
        assert!(!dir.path().join(FILE_NAME).exists());
    }

    /// Whatever call is refused: what was kept is still kept, and the next write is whole.
    #[test]
    fn a_write_that_fails_leaves_what_was_kept() {
        for kind in [Kind::Open, Kind::Resize, Kind::Write, Kind::Rename] {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &[kept("a", 7)]).unwrap();
            let mut part = kind == Kind::Write;
            let hook = host::tamper(move |access| match access.kind {
                Kind::Write if std::mem::take(&mut part) => Answer::Shorten(5),
                refused if refused == kind => Answer::Refuse(libc::ENOSPC),
                _ => Answer::GoOn,
            });
            let error = write(dir.path(), &[kept("a", 8)]).unwrap_err().to_string();
            assert!(error.contains("free some space"), "{kind:?}: {error}");
            drop(hook);
            assert_eq!(read(dir.path()).unwrap(), [kept("a", 7)], "{kind:?}");
            write(dir.path(), &[kept("a", 9)]).unwrap();
            assert_eq!(read(dir.path()).unwrap(), [kept("a", 9)], "{kind:?}");
        }
    }

    #[test]
    fn what_is_none_of_ours_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        for (text, words) in [
            ("", "remove it"),
            ("{\"version\": 2, \"changed\": []}", "it is of version 2"),
            ("{\"version\": 1, \"changed\": [{\"unit\": \"a\"}]}", "remove it"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(dir.path()).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(dir.path().join("victim"), "{\"version\": 1, \"changed\": []}").unwrap();
        std::os::unix::fs::symlink(dir.path().join("victim"), &path).unwrap();
        assert!(read(dir.path()).is_err(), "a link is not followed");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
