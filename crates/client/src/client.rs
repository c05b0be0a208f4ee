//! A connection to the daemon.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::gang::WithFile;
use crate::reply::{Awaited, Changed, Made, Offers, State, Tickets};
use crate::wire::{Asked, Call, Refusal, Reply, Resource, receive, send};

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
                return Err(match e.kind() {
                    std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset => Error::HungUp,
                    _ => Error::Io(e),
                });
            }
        };
        if let Ok(refusal) = serde_json::from_slice::<Refusal>(&bytes) {
            return Err(refusal.into());
        }
        let reply: Reply<T> =
            serde_json::from_slice(&bytes).map_err(|e| Error::NotUnderstood(e.to_string()))?;
        Ok(reply.parameters)
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
}
