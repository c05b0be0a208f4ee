//! A connection to the daemon.

use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::gang::WithFile;
use crate::reply::{Awaited, Changed, Made, Offers, State, Tickets};
use crate::wire::{Asked, Call, Flags, Receiver, Refusal, Reply, Request, Resource, receive, send};

/// The timeout of a request. A daemon answers within milliseconds, unless it is stopped or stuck.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to the daemon. Offers that were made with [`Offer::while_connected`] end with the connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

/// An offer of tickets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The path of the unit that offers.
    pub unit: String,
    /// The tickets that the unit gives, such as `disk:300`.
    pub gives: String,
    /// The tickets that the unit wants in exchange, such as `cpu:200`.
    pub wants: String,
    /// The least amount of `wants` that the unit accepts, for a proportional part of `gives`; `None`: all of
    /// `wants`.
    pub at_least: Option<String>,
    /// The path of the only unit that may serve the offer; `None`: any unit may.
    pub with: Option<String>,
    /// The longest duration of the exchange; `None`: it lasts until a call ends it.
    pub time: Option<Duration>,
    /// Whether the offer, and the exchange that serves it, end when the client disconnects.
    pub while_connected: bool,
}

impl Offer {
    /// An offer to all units. It stays open until it is served or withdrawn.
    pub fn new(unit: &str, gives: &str, wants: &str) -> Offer {
        Offer {
            unit: unit.to_owned(),
            gives: gives.to_owned(),
            wants: wants.to_owned(),
            at_least: None,
            with: None,
            time: None,
            while_connected: false,
        }
    }

    /// Accepts less than all of `wants`, but at least `amount`.
    #[must_use]
    pub fn at_least(self, amount: &str) -> Offer {
        Offer { at_least: Some(amount.to_owned()), ..self }
    }

    /// Allows only this unit to serve the offer.
    #[must_use]
    pub fn with(self, unit: &str) -> Offer {
        Offer { with: Some(unit.to_owned()), ..self }
    }

    /// Limits the duration of the exchange.
    #[must_use]
    pub fn lasting(self, time: Duration) -> Offer {
        Offer { time: Some(time), ..self }
    }

    /// Makes the offer, and the exchange that serves it, end when the client disconnects, in whatever way the
    /// program ends.
    #[must_use]
    pub fn while_connected(self) -> Offer {
        Offer { while_connected: true, ..self }
    }
}

/// The answer to [`Call::Where`].
#[derive(Deserialize)]
struct Found {
    unit: String,
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Client {
    /// Connects to a daemon's socket. The socket of root's daemon is `/run/commonhold/socket`.
    pub fn connect(socket: impl AsRef<Path>) -> Result<Client, Error> {
        Ok(Client::from(UnixStream::connect(socket)?))
    }

    /// All accounts, as `commonhold status --json` describes them.
    pub fn status(&mut self) -> Result<serde_json::Value, Error> {
        self.call(&Call::Status { by_cpu: false })
    }

    /// The path of the unit of a process; `shared` if it is in no other unit.
    pub fn unit_of(&mut self, pid: u32) -> Result<String, Error> {
        Ok(self.call::<Found>(&Call::Where { pid })?.unit)
    }

    /// The path of the unit of this process.
    pub fn own_unit(&mut self) -> Result<String, Error> {
        self.unit_of(std::process::id())
    }

    /// Every unit's tickets of every resource.
    pub fn tickets(&mut self) -> Result<Vec<Tickets>, Error> {
        Ok(self.call::<Changed>(&Call::Tickets {})?.tickets)
    }

    /// Transfers tickets of a unit to a sibling, permanently. Returns the present tickets of both units.
    pub fn transfer(
        &mut self,
        from: &str,
        to: &str,
        resource: Resource,
        tickets: u64,
    ) -> Result<Vec<Tickets>, Error> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.change(Asked::Transfer { from, to, resource, tickets }).map(|changed| changed.tickets)
    }

    /// Open offers, and exchanges.
    pub fn offers(&mut self) -> Result<Offers, Error> {
        self.call(&Call::Offers {})
    }

    /// Makes an offer, which may be served at once.
    pub fn offer(&mut self, offer: &Offer) -> Result<Made, Error> {
        let Offer { unit, gives, wants, at_least, with, time, while_connected } = offer.clone();
        let for_ns = time.map(ns);
        let asked = Asked::Offer { unit, gives, wants, with, for_ns, at_least, while_connected };
        let changed = self.change(asked)?;
        let number = changed.offer.ok_or_else(|| Error::NotUnderstood("an offer without a number".into()))?;
        Ok(Made { number, exchange: changed.exchange })
    }

    /// Waits until an offer is served or withdrawn, or until an exchange has ended, for at most `at_most`
    /// (`None`: no limit). If this time expires first, the returned state is [`State::Stands`] for an open
    /// offer, or [`State::InForce`] for an exchange. With [`Duration::ZERO`], returns the present state at
    /// once.
    pub fn wait(&mut self, number: u64, at_most: Option<Duration>) -> Result<Awaited, Error> {
        let call = Call::Await { number, at_most_ns: at_most.map(ns) };
        // The daemon answers when `at_most` has expired, so the socket's timeout must be longer than that.
        let timeout = at_most.map(|time| time.saturating_add(PATIENCE));
        self.call_within(&call, timeout)
    }

    /// Waits until an offer is served, for at most `at_most` (`None`: no limit). Returns the number of the
    /// exchange that serves the offer, or `None` if this time expires first.
    pub fn wait_until_served(&mut self, offer: u64, at_most: Option<Duration>) -> Result<Option<u64>, Error> {
        let awaited = self.wait(offer, at_most)?;
        match (awaited.state, awaited.exchange) {
            (State::Served, Some(exchange)) => Ok(Some(exchange)),
            (State::Stands, _) => Ok(None),
            _ => Err(Error::Withdrawn),
        }
    }

    /// Withdraws an offer, or ends an exchange. Returns the present tickets of the units that took part.
    pub fn cancel(&mut self, number: u64) -> Result<Vec<Tickets>, Error> {
        self.change(Asked::Cancel { number }).map(|changed| changed.tickets)
    }

    fn change(&mut self, asked: Asked) -> Result<Changed, Error> {
        self.call(&Call::Change(asked))
    }

    /// Makes any call, and waits at most [`PATIENCE`] for the answer.
    pub fn call<T: DeserializeOwned>(&mut self, call: &Call) -> Result<T, Error> {
        self.call_within(call, Some(PATIENCE))
    }

    /// Makes a call that has several replies, such as [`Call::Monitor`], and returns these replies as they
    /// arrive. The connection serves no other request any more.
    ///
    /// The subscription waits for a reply without a limit, unless [`Subscription::set_patience`] sets one. It
    /// ends when it is dropped.
    ///
    /// ```no_run
    /// use commonhold_client::{Client, wire::Call};
    ///
    /// # fn main() -> Result<(), commonhold_client::Error> {
    /// let client = Client::connect("/run/commonhold/socket")?;
    /// for reply in client.subscribe::<serde_json::Value>(&Call::Monitor { every_ms: Some(500) })? {
    ///     println!("{}", reply?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe<T: DeserializeOwned>(self, call: &Call) -> Result<Subscription<T>, Error> {
        let Client { stream } = self;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(None)?;
        let flags = Flags { more: true, ..Flags::default() };
        send(&stream, &Request { call, flags }).map_err(hung_up_or)?;
        Ok(Subscription { stream, receiver: Receiver::default(), has_ended: false, replies: PhantomData })
    }

    fn call_within<T: DeserializeOwned>(
        &mut self,
        call: &Call,
        timeout: Option<Duration>,
    ) -> Result<T, Error> {
        self.stream.set_read_timeout(timeout)?;
        self.call_from(call, &self.stream)
    }

    /// Makes a call, and also returns the file descriptor that came with the answer.
    pub(crate) fn call_for_file<T: DeserializeOwned>(
        &mut self,
        call: &Call,
    ) -> Result<(T, Option<OwnedFd>), Error> {
        self.stream.set_read_timeout(Some(PATIENCE))?;
        let mut with_file = WithFile::new(&self.stream);
        let answer = self.call_from(call, &mut with_file)?;
        Ok((answer, with_file.file))
    }

    /// Sends a call over the connection, and reads its answer from `from`. A failed connection is closed.
    fn call_from<T: DeserializeOwned>(&self, call: &Call, from: impl Read) -> Result<T, Error> {
        self.stream.set_write_timeout(Some(PATIENCE))?;
        let answer = send(&self.stream, call).and_then(|()| receive(from));
        let bytes = match answer {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Err(Error::HungUp),
            Err(e) => {
                // The connection is closed, since an answer that comes late would be taken for the answer to
                // the next request.
                let _ = self.stream.shutdown(std::net::Shutdown::Both);
                return Err(hung_up_or(e));
            }
        };
        Ok(parse(&bytes)?.parameters)
    }
}

/// A failure to send or receive: the daemon closed the connection, or another failure.
fn hung_up_or(e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Error::HungUp,
        _ => Error::Io(e),
    }
}

/// Parses a reply, or the refusal of the request.
fn parse<T: DeserializeOwned>(message: &[u8]) -> Result<Reply<T>, Error> {
    if let Ok(refusal) = serde_json::from_slice::<Refusal>(message) {
        return Err(refusal.into());
    }
    serde_json::from_slice(message).map_err(|e| Error::NotUnderstood(e.to_string()))
}

/// The replies to a call with several replies ([`Client::subscribe`]): an iterator that blocks until the next
/// reply.
///
/// It ends after the daemon's last reply. Any error ends it, too, except that the daemon did not reply in
/// time ([`Subscription::set_patience`]): then the next call waits again. No reply is lost. If the client
/// falls behind, the daemon skips replies, and the next one has the differences of all.
#[derive(Debug)]
pub struct Subscription<T> {
    stream: UnixStream,
    receiver: Receiver,
    has_ended: bool,
    replies: PhantomData<fn() -> T>,
}

impl<T> Subscription<T> {
    /// Limits the time for which the iterator waits for a reply; `None`: there is no limit. When the time
    /// expires, the iterator returns an [`Error::Io`] of the kind [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// `patience` is zero.
    pub fn set_patience(&self, patience: Option<Duration>) -> Result<(), Error> {
        Ok(self.stream.set_read_timeout(patience)?)
    }

    /// Another handle of the connection, by which another thread can end the subscription:
    /// [`UnixStream::shutdown`].
    pub fn connection(&self) -> Result<UnixStream, Error> {
        Ok(self.stream.try_clone()?)
    }
}

impl<T: DeserializeOwned> Iterator for Subscription<T> {
    type Item = Result<T, Error>;

    fn next(&mut self) -> Option<Result<T, Error>> {
        if self.has_ended {
            return None;
        }
        let reply = match self.receiver.receive(&self.stream) {
            Ok(Some(message)) => parse::<T>(&message),
            Ok(None) => Err(Error::HungUp),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Some(Err(Error::Io(e))),
            Err(e) => Err(hung_up_or(e)),
        };
        self.has_ended = !reply.as_ref().is_ok_and(|reply| reply.continues);
        Some(reply.map(|reply| reply.parameters))
    }
}

impl From<UnixStream> for Client {
    fn from(stream: UnixStream) -> Client {
        Client { stream }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use super::*;
    use crate::error::Why;

    /// A client of a daemon that answers with these bytes and hangs up; and what it was asked.
    fn answered(answer: &'static [u8]) -> (Client, thread::JoinHandle<Vec<u8>>) {
        let (client, mut daemon) = UnixStream::pair().unwrap();
        let asked = thread::spawn(move || {
            let mut asked = vec![0; 4096];
            let n = daemon.read(&mut asked).unwrap();
            daemon.write_all(answer).unwrap();
            asked.truncate(n);
            asked
        });
        (Client::from(client), asked)
    }

    fn waited(answer: &'static [u8]) -> Result<Awaited, Error> {
        answered(answer).0.wait(1, Some(Duration::ZERO))
    }

    #[test]
    fn an_offer_is_sent_with_its_terms() {
        let (mut client, asked) = answered(b"{\"parameters\":{\"offer\":4,\"tickets\":[],\"new\":[]}}\0");
        let offer = Offer::new("a/b", "disk:30", "memory:2GiB").with("c").lasting(Duration::from_secs(1));
        let made = client.offer(&offer.while_connected()).unwrap();
        assert_eq!(made, Made { number: 4, exchange: None });
        let asked = String::from_utf8(asked.join().unwrap()).unwrap();
        let expected = "{\"method\":\"io.commonhold.Change\",\"parameters\":{\"kind\":\"offer\",\"unit\":\"a/b\",\
                        \"gives\":\"disk:30\",\"wants\":\"memory:2GiB\",\"with\":\"c\",\"for_ns\":1000000000,\
                        \"while_connected\":true}}\0";
        assert_eq!(asked, expected);
    }

    #[test]
    fn any_reply_is_a_result_or_an_error() {
        let served =
            waited(b"{\"parameters\":{\"number\":1,\"state\":\"served\",\"exchange\":7}}\0").unwrap();
        assert_eq!((served.state, served.exchange), (State::Served, Some(7)));
        let refused =
            waited(b"{\"error\":\"io.commonhold.NoSuchOffer\",\"parameters\":{\"message\":\"no\"}}\0");
        assert!(refused.as_ref().is_err_and(|e| e.why() == Some(&Why::NoSuchOffer) && e.to_string() == "no"));
        let bare = waited(b"{\"error\":\"io.commonhold.Later\"}\0").unwrap_err();
        assert_eq!(bare.to_string(), "io.commonhold.Later");
        for answer in
            [&b"nonsense\0"[..], b"\0", b"{}\0", b"{\"parameters\":{\"number\":1,\"state\":\"lost\"}}\0"]
        {
            assert!(matches!(waited(answer), Err(Error::NotUnderstood(_))), "{answer:?}");
        }
        for answer in [&b""[..], b"{\"parameters\":{}}"] {
            assert!(matches!(waited(answer), Err(Error::HungUp)), "{answer:?}");
        }
    }

    /// What comes too late is not taken for the answer to the next request.
    #[test]
    fn a_late_answer_is_not_taken_for_the_next_one() {
        let (client, mut daemon) = UnixStream::pair().unwrap();
        let mut client = Client::from(client);
        let call = Call::Offers {};
        let late = client.call_within::<Offers>(&call, Some(Duration::from_millis(10))).unwrap_err();
        assert_eq!(late.to_string(), "the daemon does not answer in time");
        let _ = daemon.write_all(b"{\"parameters\":{\"offers\":[],\"exchanges\":[],\"elapsed_ns\":0}}\0");
        assert!(matches!(client.offers(), Err(Error::HungUp)));
    }

    #[test]
    fn a_subscription_ends_with_the_last_reply_or_an_error() {
        let numbers = |answer| {
            let (client, asked) = answered(answer);
            let call = Call::Monitor { every_ms: Some(250) };
            let replies: Vec<Result<u32, Error>> = client.subscribe(&call).unwrap().collect();
            let asked = String::from_utf8(asked.join().unwrap()).unwrap();
            let expected =
                "{\"method\":\"io.commonhold.Monitor\",\"parameters\":{\"every_ms\":250},\"more\":true}\0";
            assert_eq!(asked, expected);
            replies
        };
        let two = numbers(b"{\"parameters\":1,\"continues\":true}\0{\"parameters\":2}\0{\"parameters\":3}\0");
        assert!(matches!(two[..], [Ok(1), Ok(2)]), "{two:?}");
        let cut = numbers(b"{\"parameters\":1,\"continues\":true}\0{\"param");
        assert!(matches!(cut[..], [Ok(1), Err(Error::HungUp)]), "{cut:?}");
        let refused =
            numbers(b"{\"error\":\"io.commonhold.TooManyClients\",\"parameters\":{\"message\":\"no\"}}\0");
        assert!(
            matches!(&refused[..], [Err(Error::Refused { why: Why::TooManyClients, .. })]),
            "{refused:?}"
        );
    }

    #[test]
    fn a_subscription_continues_after_a_timeout() {
        let (client, mut daemon) = UnixStream::pair().unwrap();
        let call = Call::Monitor { every_ms: None };
        let mut replies = Client::from(client).subscribe::<u32>(&call).unwrap();
        replies.set_patience(Some(Duration::from_millis(1))).unwrap();
        daemon.write_all(b"{\"parameters\":1,\"cont").unwrap();
        let late = replies.next().unwrap().unwrap_err();
        assert!(matches!(&late, Error::Io(e) if e.kind() == io::ErrorKind::WouldBlock), "{late}");
        daemon.write_all(b"inues\":true}\0").unwrap();
        assert!(matches!(replies.next(), Some(Ok(1))));
        replies.connection().unwrap().shutdown(std::net::Shutdown::Both).unwrap();
        assert!(matches!(replies.next(), Some(Err(Error::HungUp))) && replies.next().is_none());
    }
}
