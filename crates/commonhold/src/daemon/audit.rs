//! The audit log: each change that a client requested, each program that entered a unit, and each refused
//! request.
//!
//! Records go to systemd's journal, as journal fields (`journalctl COMMONHOLD_UID=1000`). On a machine
//! without it they go to the system logger over /dev/log, with the same fields as structured data of RFC 5424
//! and with facility `authpriv`. Each record is also printed as a line on standard output, unless standard
//! output is the journal.
//!
//! Nothing here blocks: if the logger's queue is full, the record is printed on standard output alone.
//!
//! A user can cause refusals at will, so records of refusals are rate limited: at most [`REFUSALS_MAX`] per
//! user in [`WINDOW_NS`]. When a user's refusals are logged again, a line first gives the number of
//! suppressed records.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use commonhold_client::wire::{Asked, Call};
use commonhold_policy::Time;

use super::clients::Caller;
use super::fair_queue::Party;
use crate::output;

const JOURNAL: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";
const REFUSALS_MAX: u32 = 20;
const WINDOW_NS: Time = 10_000_000_000;
/// The most users whose refusals are counted at one time.
const COUNTED_MAX: usize = 1_024;
/// A request's text, and the unit that the request names, are truncated to this length. A request may have 64
/// KiB, which is too much untrusted text for a log. Once escaped, such a text can even exceed the largest
/// datagram, so that the logger would never get the record.
const TEXT_CHARS_MAX: usize = 512;

/// The audit record of one request.
#[derive(Debug)]
pub(super) struct Record<'a> {
    pub(super) caller: &'a Caller,
    /// The caller's login name, or its number.
    pub(super) user: String,
    /// The kind of the request, such as `enter` or `offer`.
    pub(super) event: &'static str,
    /// The unit that the request names; empty if it names none.
    pub(super) unit: String,
    /// The request, as JSON.
    request: String,
    /// `done`, or the name of the error.
    pub(super) outcome: String,
}

impl<'a> Record<'a> {
    /// The record of a request; `None` for a request that changes nothing and is open to everybody. `name`
    /// looks up the caller's name. `error` is the name of the error in the reply, if the request was refused.
    pub(super) fn of(
        caller: &'a Caller,
        name: impl FnOnce() -> String,
        call: &Call,
        error: Option<&str>,
    ) -> Option<Record<'a>> {
        let (event, unit) = match call {
            Call::Enter { unit } => ("enter", unit.as_str()),
            Call::Change(asked) => event_and_unit(asked),
            _ => return None,
        };
        let (unit, request) = (truncated(unit), truncated(&serde_json::to_string(call).unwrap_or_default()));
        let outcome = error.unwrap_or("done").to_owned();
        Some(Record { caller, user: name(), event, unit, request, outcome })
    }

    fn is_refused(&self) -> bool {
        self.outcome != "done"
    }

    fn fields(&self) -> [(&'static str, String); 7] {
        [
            ("event", self.event.to_owned()),
            ("unit", self.unit.clone()),
            ("uid", self.caller.uid.to_string()),
            ("user", self.user.clone()),
            ("pid", self.caller.pid.to_string()),
            ("outcome", self.outcome.clone()),
            ("request", self.request.clone()),
        ]
    }

    fn message(&self) -> String {
        let Caller { uid, pid, .. } = self.caller;
        format!(
            "{} of {:?} by user {} (uid {uid}, pid {pid}): {}",
            self.event, self.unit, self.user, self.outcome
        )
    }

    /// The record as a line of `key=value` pairs. Values are quoted and escaped, so that no control character
    /// that a client sent reaches a terminal.
    fn line(&self) -> String {
        let mut line = "audit".to_owned();
        for (key, value) in self.fields() {
            let _ = write!(line, " {key}={value:?}");
        }
        line
    }

    /// The record in journald's native protocol: `KEY=value`, or length-prefixed if the value contains
    /// newlines.
    fn for_journal(&self) -> Vec<u8> {
        let priority = if self.is_refused() { "5" } else { "6" };
        let mut all = vec![
            ("MESSAGE".to_owned(), self.message()),
            ("PRIORITY".to_owned(), priority.to_owned()),
            ("SYSLOG_IDENTIFIER".to_owned(), "commonhold".to_owned()),
        ];
        let own = |(key, value): (&str, String)| (format!("COMMONHOLD_{}", key.to_uppercase()), value);
        all.extend(self.fields().map(own));
        let mut bytes = Vec::new();
        for (key, value) in all {
            bytes.extend_from_slice(key.as_bytes());
            if value.contains('\n') {
                bytes.push(b'\n');
                bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
            } else {
                bytes.push(b'=');
            }
            bytes.extend_from_slice(value.as_bytes());
            bytes.push(b'\n');
        }
        bytes
    }

    /// The record in RFC 5424 format. The logger fills in time and host.
    fn for_syslog(&self) -> String {
        const AUTHPRIV: u8 = 10 * 8;
        let severity = if self.is_refused() { 5 } else { 6 };
        let mut data = String::new();
        for (key, value) in self.fields() {
            let _ = write!(data, " {key}=\"");
            for c in value.chars() {
                if matches!(c, '"' | '\\' | ']') {
                    data.push('\\');
                }
                data.push(if c.is_control() { ' ' } else { c });
            }
            data.push('"');
        }
        let pid = std::process::id();
        format!("<{}>1 - - commonhold {pid} audit [commonhold{data}] {}", AUTHPRIV + severity, self.message())
    }
}

/// The kind of a change, and the unit that it names first; an empty name if the change names no unit.
fn event_and_unit(asked: &Asked) -> (&'static str, &str) {
    match asked {
        Asked::Set { unit, .. } => ("set", unit),
        Asked::Issue { unit, .. } => ("issue", unit),
        Asked::TakeBack { unit, .. } => ("take-back", unit),
        Asked::Transfer { from, .. } => ("transfer", from),
        Asked::Exchange { one, .. } => ("exchange", one),
        Asked::Offer { unit, .. } => ("offer", unit),
        Asked::Several { unit, .. } => ("several", unit),
        Asked::Fund { unit, .. } => ("fund", unit),
        Asked::Cancel { .. } => ("cancel", ""),
    }
}

/// The recent refusals of one user.
#[derive(Debug, Default)]
struct Refusals {
    since: Time,
    logged: u32,
    suppressed: u64,
}

/// The destinations of records.
#[derive(Debug)]
pub(super) struct Audit {
    socket: Option<UnixDatagram>,
    to_journal: bool,
    /// Whether standard output is the journal. A record that was sent to the journal is then not printed as
    /// well.
    output_is_journal: bool,
    refusals: BTreeMap<Party, Refusals>,
}

impl Audit {
    /// Connects to this machine's logger.
    pub(super) fn open() -> Audit {
        let output_is_journal = std::env::var_os("JOURNAL_STREAM").is_some() && !output::is_terminal();
        match connect(Path::new(JOURNAL)) {
            Ok(socket) => Audit::to(Some(socket), true, output_is_journal),
            Err(_) => Audit::to(connect(Path::new(SYSLOG)).ok(), false, false),
        }
    }

    fn to(socket: Option<UnixDatagram>, to_journal: bool, output_is_journal: bool) -> Audit {
        Audit { socket, to_journal, output_is_journal, refusals: BTreeMap::new() }
    }

    /// Logs a request, unless it is a refusal beyond its user's limit.
    pub(super) fn log(&mut self, record: &Record<'_>, now: Time) {
        if record.is_refused() {
            match self.admit(record.caller.party, now) {
                None => return,
                Some(0) => {}
                Some(suppressed) => output::say(&format!(
                    "audit: {suppressed} more refused requests of user {} are not listed",
                    record.user
                )),
            }
        }
        let bytes = if self.to_journal { record.for_journal() } else { record.for_syslog().into_bytes() };
        let sent = self.socket.as_ref().is_some_and(|socket| socket.send(&bytes).is_ok());
        if !(sent && self.output_is_journal) {
            output::say(&record.line());
        }
    }

    /// Counts a refusal. Returns `None` if its record must be suppressed. Otherwise returns the number of
    /// records that were suppressed since the user's last logged refusal.
    fn admit(&mut self, party: Party, now: Time) -> Option<u64> {
        if self.refusals.len() >= COUNTED_MAX && !self.refusals.contains_key(&party) {
            self.refusals.clear();
        }
        let of_user = self.refusals.entry(party).or_insert(Refusals { since: now, ..Refusals::default() });
        if now.saturating_sub(of_user.since) >= WINDOW_NS {
            (of_user.since, of_user.logged) = (now, 0);
        }
        if of_user.logged >= REFUSALS_MAX {
            of_user.suppressed += 1;
            return None;
        }
        of_user.logged += 1;
        Some(std::mem::take(&mut of_user.suppressed))
    }
}

fn truncated(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(path)?;
    Ok(socket)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn caller() -> Caller {
        Caller { uid: 1_000, gids: vec![], pid: 4_711, key: None, party: Party::User(1_000) }
    }

    fn enter(unit: &str) -> Call {
        Call::Enter { unit: unit.to_owned() }
    }

    #[test]
    fn a_record_keeps_its_fields_in_every_form() {
        let caller = caller();
        let call = enter("a\n\"]b\u{1b}");
        let record = Record::of(&caller, || "ana".into(), &call, Some("io.commonhold.NotAllowed")).unwrap();
        assert_eq!(
            record.line(),
            concat!(
                r#"audit event="enter" unit="a\n\"]b\u{1b}" uid="1000" user="ana" pid="4711" "#,
                r#"outcome="io.commonhold.NotAllowed" request="{\"method\":\"io.commonhold.Enter\","#,
                r#"\"parameters\":{\"unit\":\"a\\n\\\"]b\\u001b\"}}""#
            )
        );
        let syslog = record.for_syslog();
        assert!(syslog.starts_with("<85>1 - - commonhold "), "{syslog}");
        assert!(syslog.contains(
            r#" audit [commonhold event="enter" unit="a \"\]b " uid="1000" user="ana" pid="4711""#
        ));
        assert!(!syslog.contains(char::is_control));
        let journal = record.for_journal();
        let long = b"COMMONHOLD_UNIT\n\x06\0\0\0\0\0\0\0a\n\"]b\x1b\nCOMMONHOLD_UID=1000\n";
        assert!(
            journal.windows(long.len()).any(|part| part == long),
            "{}",
            String::from_utf8_lossy(&journal)
        );
        assert!(journal.ends_with(b"\n"));
    }

    #[test]
    fn only_changes_and_entries_are_recorded() {
        let caller = caller();
        let of = |call: &Call| Record::of(&caller, || "ana".into(), call, None).is_some();
        assert!(of(&enter("a")) && of(&Call::Change(Asked::Cancel { number: 1 })));
        assert!(!of(&Call::Status { by_cpu: false }) && !of(&Call::Where { pid: 1 }));
    }

    /// Escaped, each character of this name takes eight bytes: uncut, it would not fit into a datagram.
    #[test]
    fn a_long_name_does_not_keep_its_record_from_the_logger() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let logger = UnixDatagram::bind(&path).unwrap();
        logger.set_nonblocking(true).unwrap();
        let caller = caller();
        let call = enter(&"\u{202e}".repeat(21_000));
        let record = Record::of(&caller, || "ana".into(), &call, Some("no")).unwrap();
        for to_journal in [true, false] {
            Audit::to(connect(&path).ok(), to_journal, true).log(&record, 0);
            let mut bytes = vec![0; 1 << 20];
            let length = logger.recv(&mut bytes).expect("the logger has the record");
            assert!(length < 16 << 10, "{length}");
        }
    }

    #[test]
    fn a_logger_gets_every_record_and_few_refusals() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let logger = UnixDatagram::bind(&path).unwrap();
        logger.set_nonblocking(true).unwrap();
        let mut audit = Audit::to(connect(&path).ok(), true, true);
        let caller = caller();
        let logged = |audit: &mut Audit, outcome: Option<&str>, now| {
            audit.log(&Record::of(&caller, || "ana".into(), &enter("a"), outcome).unwrap(), now);
            logger.recv(&mut [0; 4096]).is_ok()
        };
        assert!((0..50).all(|_| logged(&mut audit, None, 0)), "each change");
        let refusals = (0..50).filter(|_| logged(&mut audit, Some("no"), 0)).count();
        assert_eq!(refusals, REFUSALS_MAX as usize);
        assert_eq!(audit.admit(Party::User(1_000), WINDOW_NS), Some(30));
    }
}
