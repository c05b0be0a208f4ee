//! One connection to a daemon, with a subscription.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use commonhold_client::wire::{MESSAGE_BYTES_MAX, Refusal, Reply, send};
use commonhold_client::{Error, PATIENCE, Why};
use commonhold_command::exit::{Exit, Failure};
use commonhold_command::place::{self, Place};
use commonhold_protocol::monitor::{EVERY_MS_MIN, MonitorReply};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Event;

/// Why a subscription failed.
#[derive(Debug)]
pub enum FeedError {
    /// No daemon can be reached.
    NoDaemon(Failure),
    /// The daemon is older than this program: it does not know the method.
    TooOld,
    /// The call or the connection failed.
    Failed(Error),
}

impl fmt::Display for FeedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FeedError::NoDaemon(failure) => f.write_str(failure.message()),
            FeedError::TooOld => f.write_str(
                "the daemon is older than this program and cannot be watched; restart it to run the installed version",
            ),
            FeedError::Failed(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for FeedError {}

impl From<Error> for FeedError {
    fn from(e: Error) -> FeedError {
        match e.why() {
            Some(Why::MethodNotFound) => FeedError::TooOld,
            _ => FeedError::Failed(e),
        }
    }
}

impl From<FeedError> for Failure {
    fn from(e: FeedError) -> Failure {
        match e {
            FeedError::NoDaemon(failure) => failure,
            FeedError::Failed(Error::NotUnderstood(_)) => Failure::new(Exit::System, e),
            FeedError::Failed(ref error) if error.why() == Some(&Why::NotAllowed) => {
                Failure::new(Exit::NotAllowed, e)
            }
            FeedError::TooOld | FeedError::Failed(_) => Failure::new(Exit::Unavailable, e),
        }
    }
}

impl FeedError {
    /// Whether the daemon answered, and refused the call. Its connection can still be used.
    pub fn is_refusal(&self) -> bool {
        matches!(self, FeedError::Failed(Error::Refused { .. }))
    }

    pub(crate) fn event(&self) -> Event {
        match self {
            FeedError::TooOld => Event::TooOld,
            other => Event::Lost { why: other.to_string() },
        }
    }
}

/// A request.
#[derive(Serialize)]
struct Request<'a, P> {
    method: &'a str,
    parameters: P,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

/// A subscription to a daemon's pictures.
#[derive(Debug)]
pub struct Subscription {
    messages: Messages,
    /// The state up to the last reply; `None` before the first.
    picture: Option<Arc<MonitorReply>>,
}

impl Subscription {
    /// Connects to the daemon at `place` and subscribes, with a reply every `every_ms` milliseconds, at least
    /// [`EVERY_MS_MIN`].
    ///
    /// # Errors
    ///
    /// [`FeedError::NoDaemon`] if no daemon can be reached; [`FeedError::Failed`] if the request cannot be
    /// sent.
    pub fn open(place: &Place, every_ms: u64) -> Result<Subscription, FeedError> {
        let stream = place::connect(place).map_err(FeedError::NoDaemon)?;
        Ok(Subscription::over(stream, every_ms)?)
    }

    /// Subscribes over this connection.
    fn over(stream: UnixStream, every_ms: u64) -> Result<Subscription, Error> {
        #[derive(Serialize)]
        struct Parameters {
            every_ms: u64,
        }
        let every_ms = every_ms.max(EVERY_MS_MIN);
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE.saturating_add(Duration::from_millis(every_ms))))?;
        let parameters = Parameters { every_ms };
        send(&stream, &Request { method: "io.commonhold.Monitor", parameters, more: true }).map_err(lost)?;
        Ok(Subscription { messages: Messages::from(stream), picture: None })
    }

    /// Waits for the next reply, and returns the whole picture. It is cheap if the earlier pictures were
    /// dropped; otherwise it is copied.
    ///
    /// # Errors
    ///
    /// [`FeedError::TooOld`] if the daemon has no subscriptions; [`FeedError::Failed`] if the connection
    /// ended, no reply came in time, or the reply cannot be read. The subscription is of no use afterwards.
    pub fn next_picture(&mut self) -> Result<Arc<MonitorReply>, FeedError> {
        let reply: MonitorReply = parse(&self.messages.next()?)?;
        let picture = match &mut self.picture {
            Some(picture) => {
                reply.merge_into(Arc::make_mut(picture));
                picture
            }
            None if reply.whole => self.picture.insert(Arc::new(reply)),
            None => return Err(Error::NotUnderstood("its first reply is not whole".to_owned()).into()),
        };
        Ok(Arc::clone(picture))
    }
}

/// A connection for single calls.
#[derive(Debug)]
pub struct Connection {
    messages: Messages,
}

impl Connection {
    /// Connects to the daemon at `place`.
    ///
    /// # Errors
    ///
    /// As [`Subscription::open`].
    pub fn open(place: &Place) -> Result<Connection, FeedError> {
        let stream = place::connect(place).map_err(FeedError::NoDaemon)?;
        let timeouts = [stream.set_write_timeout(Some(PATIENCE)), stream.set_read_timeout(Some(PATIENCE))];
        timeouts.into_iter().collect::<io::Result<()>>().map_err(Error::Io)?;
        Ok(Connection { messages: Messages::from(stream) })
    }

    /// Makes a call, and waits up to [`PATIENCE`] for the reply.
    ///
    /// # Errors
    ///
    /// As [`Subscription::next_picture`]. Unless the daemon refused the call, the connection is of no use
    /// afterwards.
    pub fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        parameters: impl Serialize,
    ) -> Result<T, FeedError> {
        send(&self.messages.stream, &Request { method, parameters, more: false }).map_err(lost)?;
        Ok(parse(&self.messages.next()?)?)
    }
}

/// The result in a reply, or the daemon's refusal.
fn parse<T: DeserializeOwned>(message: &[u8]) -> Result<T, Error> {
    match serde_json::from_slice::<Reply<T>>(message) {
        Ok(reply) => Ok(reply.parameters),
        Err(e) => match serde_json::from_slice::<Refusal>(message) {
            Ok(refusal) => Err(refusal.into()),
            Err(_) => Err(Error::NotUnderstood(e.to_string())),
        },
    }
}

/// Several messages from one connection, each ended by a NUL.
#[derive(Debug)]
struct Messages {
    stream: UnixStream,
    /// Bytes that were read, and are not yet part of a returned message.
    bytes: Vec<u8>,
    /// The number of these bytes in which there is no NUL.
    searched: usize,
}

impl From<UnixStream> for Messages {
    fn from(stream: UnixStream) -> Messages {
        Messages { stream, bytes: Vec::new(), searched: 0 }
    }
}

impl Messages {
    /// Waits for the next message; returns it without its NUL.
    fn next(&mut self) -> Result<Vec<u8>, Error> {
        let mut chunk = vec![0; 64 << 10];
        loop {
            if let Some(at) = self.bytes[self.searched..].iter().position(|byte| *byte == 0) {
                let rest = self.bytes.split_off(self.searched + at + 1);
                let mut message = std::mem::replace(&mut self.bytes, rest);
                message.pop();
                self.searched = 0;
                return Ok(message);
            }
            self.searched = self.bytes.len();
            if self.bytes.len() > MESSAGE_BYTES_MAX {
                return Err(Error::NotUnderstood(format!(
                    "a message is longer than {MESSAGE_BYTES_MAX} bytes"
                )));
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Error::HungUp),
                Ok(n) => self.bytes.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(lost(e)),
            }
        }
    }
}

/// An error of a connection; if the daemon closed it, [`Error::HungUp`].
fn lost(e: io::Error) -> Error {
    match e.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Error::HungUp,
        _ => Error::Io(e),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use commonhold_protocol::monitor::{MachineView, UnitView};

    use super::*;

    /// A subscription to a daemon that sends these bytes and hangs up, and the request that it got.
    fn subscribed(bytes: Vec<u8>) -> (Subscription, String) {
        let (client, mut daemon) = UnixStream::pair().unwrap();
        let subscription = Subscription::over(client, 1).unwrap();
        let mut asked = [0; 4096];
        let n = daemon.read(&mut asked).unwrap();
        thread::spawn(move || daemon.write_all(&bytes));
        (subscription, String::from_utf8(asked[..n].to_vec()).unwrap())
    }

    fn message(reply: &MonitorReply) -> Vec<u8> {
        let mut bytes =
            serde_json::to_vec(&serde_json::json!({ "parameters": reply, "continues": true })).unwrap();
        bytes.push(0);
        bytes
    }

    fn unit(path: &str, processes: u32) -> UnitView {
        UnitView { unit: path.to_owned(), processes, ..UnitView::default() }
    }

    #[test]
    fn differences_are_merged_into_whole_pictures() {
        let whole = MonitorReply {
            whole: true,
            at_ns: 1,
            machine: Some(MachineView { cpus: 8, ..MachineView::default() }),
            units: vec![unit("a", 1), unit("b", 2)],
            order: Some(vec!["a".to_owned(), "b".to_owned()]),
            ..MonitorReply::default()
        };
        let difference = MonitorReply { at_ns: 2, units: vec![unit("b", 3)], ..MonitorReply::default() };
        let (mut feed, asked) = subscribed([message(&whole), message(&difference)].concat());
        assert_eq!(
            asked,
            "{\"method\":\"io.commonhold.Monitor\",\"parameters\":{\"every_ms\":250},\"more\":true}\0"
        );
        let first = feed.next_picture().unwrap();
        assert_eq!(*first, whole);
        let second = feed.next_picture().unwrap();
        assert_eq!((second.at_ns, second.units[0].processes, second.units[1].processes), (2, 1, 3));
        assert_eq!(second.machine, whole.machine);
        // An earlier picture that is kept does not change.
        assert_eq!(*first, whole);
        assert!(matches!(feed.next_picture(), Err(FeedError::Failed(Error::HungUp))));
    }

    #[test]
    fn an_older_daemon_and_wrong_answers_are_told_apart() {
        let next = |bytes: &[u8]| subscribed(bytes.to_vec()).0.next_picture().unwrap_err();
        let old = b"{\"error\":\"org.varlink.service.MethodNotFound\",\"parameters\":{\"message\":\"no\"}}\0";
        assert!(matches!(next(old), FeedError::TooOld));
        let refused = b"{\"error\":\"io.commonhold.NotAllowed\",\"parameters\":{\"message\":\"no\"}}\0";
        assert!(next(refused).is_refusal() && !next(old).is_refusal());
        assert_eq!(Failure::from(next(refused)).exit, Exit::NotAllowed);
        for bytes in [&b"nonsense\0"[..], b"{}\0", b"\0", &message(&MonitorReply::default())] {
            assert!(matches!(next(bytes), FeedError::Failed(Error::NotUnderstood(_))), "{bytes:?}");
        }
        assert!(matches!(next(b"{\"parameters\":"), FeedError::Failed(Error::HungUp)));
    }
}
