//! Records tickets changed at run time, offers and exchanges, for the next daemon.
//!
//! Problem: these changes must survive a daemon that is killed or restarted. The journal cannot record them:
//! it is removed once everything in it is undone, and a daemon's end does not undo changes of tickets.
//!
//! Algorithm: a file beside the journal lists
//! - tickets that differ from the contract's, with the number of tickets that the contract had then;
//! - funding from other currencies;
//! - standing offers and exchanges in force, except for those that end with a program.
//!
//! Units are identified by path, because a unit's number is valid in one daemon only. Times are wall-clock
//! times. Before a change is made, the whole file is written under another name, synced, and renamed. If
//! nothing is to be recorded, there is no file. An unreadable file is never overwritten: it is renamed first.
//!
//! Properties (tested): what is written reads back. A failed write leaves the old file, or, if only syncing
//! the directory failed, the new one. Any content is read, or refused, safely. No symbolic link is followed.
//!
//! Limits: on a memory file system the file is lost at reboot, as the journal is.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use commonhold_contract::Resource;
use commonhold_policy::rights::{Offer, RING_MAX, TICKETS_MAX};
use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

use crate::LiveError;
use crate::host::{self, trust};

/// The file's name in the daemon's directory.
pub const FILE_NAME: &str = "tickets.json";

/// The version of the format. Version 1, which had tickets only, is read as well; other versions are refused.
const VERSION: u32 = 2;

/// The largest file that is read, in bytes: it has room for 100,000 units with tickets of every resource.
const BYTES_MAX: u64 = 64 << 20;

/// A unit's tickets of a resource that differ from the contract's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeptTickets {
    /// The unit's path.
    pub unit: String,
    /// The resource.
    pub resource: Resource,
    /// The number of tickets that the contract gave the unit when they were changed. If the contract gives
    /// another number now, it was edited since.
    pub contract: u64,
    /// The number of tickets that the unit has instead.
    #[serde(deserialize_with = "some_tickets")]
    pub tickets: u64,
}

/// Tickets that a unit holds of another currency than that of the unit around it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeptFunds {
    /// The unit's path.
    pub unit: String,
    /// The path of the unit whose currency the tickets are of; `None`: the base currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// The resource.
    pub resource: Resource,
    /// The number of tickets.
    #[serde(deserialize_with = "some_tickets")]
    pub tickets: u64,
}

/// A standing offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOffer {
    /// The offer's number.
    pub number: u64,
    /// The path of the unit that makes the offer.
    pub unit: String,
    /// The tickets that the unit gives.
    pub gives: Offer,
    /// The tickets that the unit wants in exchange.
    pub wants: Offer,
    /// The minimum that the unit accepts instead of `wants`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Offer>,
    /// The path of the only unit that may take the offer; `None`: any unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
    /// The longest duration of an exchange, in ns; `None`: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
}

/// An exchange in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptExchange {
    /// The exchange's number.
    pub number: u64,
    /// The loans that make up the exchange, one by each of two to four units.
    #[serde(deserialize_with = "some_legs")]
    pub lent: Vec<KeptLeg>,
    /// When the exchange ends, in ms since 1970; `None`: no set time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// One unit's loan in an exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptLeg {
    /// The path of the lending unit.
    pub from: String,
    /// The path of the borrowing unit.
    pub to: String,
    /// The tickets or the reservation lent.
    pub what: Offer,
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AllKept {
    /// Tickets that differ from the contract's.
    #[serde(default)]
    pub changed: Vec<KeptTickets>,
    /// Funding from other currencies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub funded: Vec<KeptFunds>,
    /// Standing offers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<KeptOffer>,
    /// Exchanges in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<KeptExchange>,
}

/// The file: its content with the version of the format.
#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(deserialize_with = "known_version")]
    version: u32,
    #[serde(flatten)]
    kept: AllKept,
}

/// Reads legs, and refuses a number of legs that no exchange has.
fn some_legs<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<KeptLeg>, D::Error> {
    let legs = Vec::deserialize(from)?;
    if (2..=RING_MAX).contains(&legs.len()) {
        return Ok(legs);
    }
    Err(D::Error::invalid_length(legs.len(), &&*format!("what 2 to {RING_MAX} units lend")))
}

/// Reads a number of tickets, and refuses one that no unit may have.
fn some_tickets<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let tickets = u64::deserialize(from)?;
    if (1..=TICKETS_MAX).contains(&tickets) {
        return Ok(tickets);
    }
    Err(D::Error::invalid_value(Unexpected::Unsigned(tickets), &&*format!("1 to {TICKETS_MAX}")))
}

fn known_version<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    match u32::deserialize(from)? {
        known @ 1..=VERSION => Ok(known),
        other => Err(D::Error::custom(format!("it is of version {other}, and this program knows {VERSION}"))),
    }
}

/// Reads the changes that an earlier daemon recorded in its directory; empty if there is no file.
///
/// Errors: the file is not a regular file, or has more than 64 MiB; another user owns it or may write it; it
/// has an unknown version, or another format.
pub fn read(directory: &Path) -> Result<AllKept, LiveError> {
    let path = directory.join(FILE_NAME);
    let mut file = match trust::open_own(&path, OpenOptions::new().read(true), BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(AllKept::default()),
        opened => opened.map_err(|error| failed(&path, "open", error))?,
    };
    let bytes = file.read_at_most(BYTES_MAX).map_err(|error| failed(&path, "read", error))?;
    parse(&bytes).map_err(|error| failed(&path, "understand", error))
}

/// Parses the file's content. An error quotes the line that is wrong, because a user may mend it.
fn parse(bytes: &[u8]) -> io::Result<AllKept> {
    serde_json::from_slice(bytes).map(|Document { kept, .. }| kept).map_err(|error| {
        let text = error.to_string();
        // The message begins with the line's number, and needs no second one at its end.
        let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
        let line = bytes.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
        let quoted: String = String::from_utf8_lossy(line).trim().chars().take(60).collect();
        let quoted = quoted.replace(char::is_control, "\u{fffd}");
        let message = format!("line {}, `{quoted}`: {reason}", error.line().max(1));
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// An unused path in the daemon's directory, to which an unreadable file is renamed.
pub fn aside(directory: &Path) -> PathBuf {
    let name = |n: u32| directory.join(format!("{FILE_NAME}.unread-{n}"));
    (1..=u32::MAX).map(name).find(|path| !host::exists(path)).unwrap_or_else(|| name(0))
}

/// Renames an unreadable file to [`aside`], so that the next write does not replace it.
pub fn set_aside(directory: &Path) -> Result<(), LiveError> {
    let path = directory.join(FILE_NAME);
    match host::rename(&path, &aside(directory)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path, "set aside", error)),
        _ => Ok(()),
    }
}

/// Replaces the file's content durably: the new content survives a loss of power after this returns. After an
/// error the file may have the old or the new content: call this again.
pub fn write(directory: &Path, kept: &AllKept) -> Result<(), LiveError> {
    let path = directory.join(FILE_NAME);
    if *kept == AllKept::default() {
        return match host::remove_file(&path).and_then(|()| host::sync_dir(directory)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path, "remove", error)),
            _ => Ok(()),
        };
    }
    let document = Document { version: VERSION, kept: kept.clone() };
    replace(&path, &document)
        .and_then(|()| host::sync_dir(directory))
        .map_err(|error| failed(&path, "write", error))
}

/// Writes a document under another name, syncs it, and renames it over `path`.
fn replace(path: &Path, document: &Document) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(document)?;
    bytes.push(b'\n');
    let temporary = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = trust::open_own(&temporary, options.append(true).create(true).mode(0o600), u64::MAX)?;
    // A killed daemon may have left a part of its content.
    file.set_len(0)?;
    file.write_all(&bytes)?;
    // Sync before renaming: otherwise the file could be empty after a loss of power.
    file.sync()?;
    host::rename(&temporary, path)
}

fn failed(path: &Path, what: &str, source: io::Error) -> LiveError {
    let remedy = match source.kind() {
        io::ErrorKind::StorageFull => "; free some space there, or use another directory for the daemon",
        io::ErrorKind::InvalidData => {
            "; mend it and start the daemon again, or change the tickets anew with `commonhold tickets`"
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

    fn all(changed: &[KeptTickets]) -> AllKept {
        AllKept { changed: changed.to_vec(), ..AllKept::default() }
    }

    fn kept(unit: &str, tickets: u64) -> KeptTickets {
        KeptTickets { unit: unit.to_owned(), resource: Resource::Disk, contract: 100, tickets }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap().changed, []);
        write(dir.path(), &all(&[])).unwrap();
        let rows = [kept("physics/night-batch", 150), kept("a", 1)];
        write(dir.path(), &all(&rows)).unwrap();
        assert_eq!(read(dir.path()).unwrap().changed, rows);
        write(dir.path(), &all(&rows[1..])).unwrap();
        assert_eq!(read(dir.path()).unwrap().changed, rows[1..]);
        write(dir.path(), &all(&[])).unwrap();
        assert!(!dir.path().join(FILE_NAME).exists());
    }

    #[test]
    fn offers_and_exchanges_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let leg = |from: &str, to: &str, what: &str| KeptLeg {
            from: from.to_owned(),
            to: to.to_owned(),
            what: what.parse().unwrap(),
        };
        let lent = vec![leg("a", "b", "disk:30"), leg("b", "a", "memory:2GiB")];
        let offer = KeptOffer {
            number: 4,
            unit: "a".to_owned(),
            gives: "cpu:1.5cpus".parse().unwrap(),
            wants: "disk:10%".parse().unwrap(),
            at_least: None,
            with: Some("b".to_owned()),
            for_ns: Some(7),
        };
        let funds =
            KeptFunds { unit: "b".to_owned(), of: Some("a".to_owned()), resource: Resource::Bus, tickets: 3 };
        let kept = AllKept {
            funded: vec![funds],
            offers: vec![offer],
            exchanges: vec![KeptExchange { number: 3, lent, until_ms: Some(1_700_000_000_000) }],
            ..AllKept::default()
        };
        write(dir.path(), &kept).unwrap();
        assert_eq!(read(dir.path()).unwrap(), kept);
        let text = std::fs::read_to_string(dir.path().join(FILE_NAME)).unwrap();
        for (is, is_not) in [("disk:30", "disk:0"), ("memory:2GiB", "memory:2G"), ("\"lent\"", "\"legs\"")] {
            std::fs::write(dir.path().join(FILE_NAME), text.replacen(is, is_not, 1)).unwrap();
            assert!(read(dir.path()).is_err(), "{is_not}");
        }
    }

    /// Whichever call is refused: the old content is still there, and the next write succeeds.
    #[test]
    fn a_failed_write_leaves_the_old_file() {
        for kind in [Kind::Open, Kind::Resize, Kind::Write, Kind::Sync, Kind::Rename] {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &all(&[kept("a", 7)])).unwrap();
            let mut part = kind == Kind::Write;
            let hook = host::tamper(move |access| match access.kind {
                Kind::Write if std::mem::take(&mut part) => Answer::Shorten(5),
                refused if refused == kind => Answer::Refuse(libc::ENOSPC),
                _ => Answer::GoOn,
            });
            let error = write(dir.path(), &all(&[kept("a", 8)])).unwrap_err().to_string();
            assert!(error.contains("free some space"), "{kind:?}: {error}");
            drop(hook);
            assert_eq!(read(dir.path()).unwrap().changed, [kept("a", 7)], "{kind:?}");
            write(dir.path(), &all(&[kept("a", 9)])).unwrap();
            assert_eq!(read(dir.path()).unwrap().changed, [kept("a", 9)], "{kind:?}");
        }
    }

    /// The order is: content synced, renamed, directory synced, answered.
    #[test]
    fn the_content_is_synced_before_it_is_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let calls = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let seen = calls.clone();
        let hook = host::tamper(move |access| {
            seen.borrow_mut().push((access.kind, access.path.file_name().unwrap().to_owned()));
            Answer::GoOn
        });
        write(dir.path(), &all(&[kept("a", 7)])).unwrap();
        let folder = dir.path().file_name().unwrap();
        // Opening it makes look calls, too.
        let matters = |(kind, _): &(Kind, _)| matches!(kind, Kind::Write | Kind::Sync | Kind::Rename);
        let found: Vec<_> = calls.take().into_iter().filter(matters).collect();
        let expected = [
            (Kind::Write, "tickets.new".as_ref()),
            (Kind::Sync, "tickets.new".as_ref()),
            (Kind::Rename, "tickets.new".as_ref()),
            (Kind::Sync, folder),
        ];
        assert_eq!(found.iter().map(|(kind, name)| (*kind, name.as_os_str())).collect::<Vec<_>>(), expected);
        write(dir.path(), &all(&[])).unwrap();
        let last = calls.take();
        let gone = [(Kind::RemoveFile, FILE_NAME.as_ref()), (Kind::Sync, folder)];
        assert_eq!(last.iter().map(|(kind, name)| (*kind, name.as_os_str())).collect::<Vec<_>>(), gone);
        drop(hook);
        let hook = host::tamper({
            let folder = dir.path().to_owned();
            move |access| match (access.kind, access.path == folder) {
                (Kind::Sync, true) => Answer::Refuse(libc::EIO),
                _ => Answer::GoOn,
            }
        });
        assert!(write(dir.path(), &all(&[kept("a", 8)])).is_err(), "it may not outlive a loss of power");
        drop(hook);
    }

    #[test]
    fn malformed_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let row = |tickets: &str| {
            format!(
                "{{\"version\": 1, \"changed\": [\n {{\"unit\": \"a\", \"resource\": \"cpu\", \"contract\": 1,\n  \"tickets\": \
                 {tickets}}}]}}"
            )
        };
        for (text, words) in [
            (String::new(), "line 1, ``: EOF while parsing a value; mend it and start the daemon again"),
            ("{\"version\": 3, \"changed\": 7}".to_owned(), "it is of version 3, and this program knows 2"),
            (
                "{\"version\": 1, \"changed\": [{\"unit\": \"a\"}]}".to_owned(),
                "missing field `resource`; mend it",
            ),
            (
                row("0"),
                "line 3, `\"tickets\": 0}]}`: invalid value: integer `0`, expected 1 to 1000000; mend it",
            ),
            (row("1000001"), "expected 1 to 1000000"),
            (row("7")[..60].to_owned(), "line 2, `{\"unit\": \"a\", \"resource\": \"cpu\"`: EOF"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = read(dir.path()).unwrap_err().to_string();
            let file = format!("{}: cannot understand the changed tickets: line", path.display());
            assert!(error.starts_with(&file) && error.contains(words), "{text}: {error}");
        }
        // An unreadable file is never overwritten.
        for n in 1..=2 {
            std::fs::write(&path, format!("nonsense {n}")).unwrap();
            let to = aside(dir.path());
            assert_eq!(to, dir.path().join(format!("tickets.json.unread-{n}")));
            set_aside(dir.path()).unwrap();
            assert_eq!(std::fs::read_to_string(to).unwrap(), format!("nonsense {n}"));
            assert_eq!(read(dir.path()).unwrap().changed, []);
        }
        set_aside(dir.path()).unwrap();
        std::fs::write(&path, "").unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(dir.path().join("victim"), "{\"version\": 1, \"changed\": []}").unwrap();
        std::os::unix::fs::symlink(dir.path().join("victim"), &path).unwrap();
        assert!(read(dir.path()).is_err(), "a link is not followed");
    }

    /// Anything else under the file's name, or that of its replacement: nothing waits, and nothing is changed
    /// there.
    #[test]
    fn a_foreign_file_is_refused_at_once() {
        trust::tests::each_impostor(|path, words| {
            let directory = path.parent().unwrap();
            std::fs::rename(path, directory.join("tickets.new")).unwrap();
            let error = write(directory, &all(&[kept("a", 7)])).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
            std::fs::rename(directory.join("tickets.new"), directory.join(FILE_NAME)).unwrap();
            let error = read(directory).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("a file of this user"), "{words}: {error}");
        });
        let dir = tempfile::tempdir().unwrap();
        trust::tests::huge(&dir.path().join(FILE_NAME));
        assert!(read(dir.path()).unwrap_err().to_string().contains("it has more than 64 MiB"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
