//! The errors of a request, and the daemon's names for them.

use std::{fmt, io};

use crate::wire::{Explanation, Refusal};

/// Why a request failed: the daemon refused it, did not answer, or answered in another format.
#[derive(Debug)]
pub enum Error {
    /// The daemon refused the request. Nothing was changed, unless `why` is [`Why::Failed`] and the message
    /// says so.
    Refused {
        /// The daemon's error.
        why: Why,
        /// The reason in words, with a remedy.
        message: String,
    },
    /// No daemon could be reached, or the daemon did not answer in time.
    Io(io::Error),
    /// The daemon closed the connection: the daemon exited, or it needed the connection for other clients.
    /// Offers made with [`Offer::while_connected`](crate::Offer::while_connected) have ended, and the
    /// exchanges that served them.
    HungUp,
    /// The answer does not have the format of this version.
    NotUnderstood(String),
    /// An offer was not served: it was withdrawn, or its unit is gone.
    Withdrawn,
}

/// The daemon's errors.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The user may not do this.
    NotAllowed,
    /// The contract has no such unit.
    NoSuchUnit,
    /// There is no such process, or the process is in no unit.
    NoSuchProcess,
    /// A unit has fewer tickets than the request would subtract, or would have no tickets left.
    TooFewTickets,
    /// A unit would exceed the maximum number of tickets.
    TooManyTickets,
    /// The units are not in the same enclosing unit.
    NotSiblings,
    /// A unit cannot give to itself.
    SameUnit,
    /// A unit lends tickets in exchanges, and the tickets that it does not lend are too few for the request.
    TicketsLent,
    /// An offer gives and wants tickets of different resources.
    NoExchange,
    /// A unit has less reserved than it would lend.
    NotReserved,
    /// A unit would give away reserved memory that it uses.
    MemoryInUse,
    /// A currency would be funded by its own tickets, directly or through other currencies.
    Loop,
    /// The limit of open offers is reached.
    TooManyOffers,
    /// No open offer and no exchange has the number.
    NoSuchOffer,
    /// The limit of clients that hold offers or wait is reached.
    TooManyClients,
    /// The contract has no gangs.
    NoGangs,
    /// The limit of processes that report their transfers is reached.
    TooManyPages,
    /// An internal failure of the daemon.
    Failed,
    /// The request is not understood.
    InvalidParameter,
    /// The daemon has no such method.
    MethodNotFound,
    /// The daemon has no such interface.
    InterfaceNotFound,
    /// The daemon describes the method, but does not have it on this machine.
    MethodNotImplemented,
    /// The method needs [`Flags::more`](crate::wire::Flags::more).
    ExpectedMore,
    /// The daemon does not talk to this client.
    PermissionDenied,
    /// The name of an error that this version does not know, from a daemon of a later version.
    Other(String),
}

const NAMES: [(Why, &str); 24] = [
    (Why::NotAllowed, "io.commonhold.NotAllowed"),
    (Why::NoSuchUnit, "io.commonhold.NoSuchUnit"),
    (Why::NoSuchProcess, "io.commonhold.NoSuchProcess"),
    (Why::TooFewTickets, "io.commonhold.TooFewTickets"),
    (Why::TooManyTickets, "io.commonhold.TooManyTickets"),
    (Why::NotSiblings, "io.commonhold.NotSiblings"),
    (Why::SameUnit, "io.commonhold.SameUnit"),
    (Why::TicketsLent, "io.commonhold.TicketsLent"),
    (Why::NoExchange, "io.commonhold.NoExchange"),
    (Why::NotReserved, "io.commonhold.NotReserved"),
    (Why::MemoryInUse, "io.commonhold.MemoryInUse"),
    (Why::Loop, "io.commonhold.Loop"),
    (Why::TooManyOffers, "io.commonhold.TooManyOffers"),
    (Why::NoSuchOffer, "io.commonhold.NoSuchOffer"),
    (Why::TooManyClients, "io.commonhold.TooManyClients"),
    (Why::NoGangs, "io.commonhold.NoGangs"),
    (Why::TooManyPages, "io.commonhold.TooManyPages"),
    (Why::Failed, "io.commonhold.Failed"),
    (Why::InvalidParameter, "org.varlink.service.InvalidParameter"),
    (Why::MethodNotFound, "org.varlink.service.MethodNotFound"),
    (Why::InterfaceNotFound, "org.varlink.service.InterfaceNotFound"),
    (Why::MethodNotImplemented, "org.varlink.service.MethodNotImplemented"),
    (Why::ExpectedMore, "org.varlink.service.ExpectedMore"),
    (Why::PermissionDenied, "org.varlink.service.PermissionDenied"),
];

impl Why {
    /// All errors that this version knows: all but [`Why::Other`].
    pub fn all() -> impl Iterator<Item = Why> {
        NAMES.iter().map(|(why, _)| why.clone())
    }

    /// The daemon's name of the error, as messages have it.
    pub fn name(&self) -> &str {
        match self {
            Why::Other(name) => name,
            known => NAMES.iter().find(|(why, _)| why == known).map_or("", |(_, name)| name),
        }
    }

    /// The error with the daemon's name `name`; [`Why::Other`] if this version does not know the name.
    pub fn of(name: &str) -> Why {
        let known = NAMES.iter().find(|(_, known)| *known == name);
        known.map_or_else(|| Why::Other(name.to_owned()), |(why, _)| why.clone())
    }
}

impl Error {
    /// The daemon's error; `None` if the daemon did not refuse the request.
    pub fn why(&self) -> Option<&Why> {
        match self {
            Error::Refused { why, .. } => Some(why),
            _ => None,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        let Refusal { error, parameters } = refusal;
        let Explanation { message, parameter, method, interface } = parameters;
        // The standard errors have no message.
        let standard = || match (parameter, method, interface) {
            (Some(parameter), ..) => format!("the request is invalid: {parameter}"),
            (_, Some(name), _) => format!("the daemon has no method `{name}`; is it of an earlier version?"),
            (.., Some(name)) => format!("the daemon has no interface `{name}`; is it of an earlier version?"),
            (None, None, None) => String::new(),
        };
        Error::Refused {
            why: Why::of(&error),
            message: if message.is_empty() { standard() } else { message },
        }
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        Error::Io(e)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused { why, message } if message.is_empty() => f.write_str(why.name()),
            Error::Refused { message, .. } => f.write_str(message),
            Error::Io(e) if e.kind() == io::ErrorKind::WouldBlock => {
                f.write_str("the daemon does not answer in time")
            }
            Error::Io(e) => write!(f, "the daemon cannot be reached: {e}"),
            Error::HungUp => f.write_str("the daemon hung up"),
            Error::NotUnderstood(why) => {
                write!(f, "the daemon's answer is not understood ({why}); is it of another version?")
            }
            Error::Withdrawn => f.write_str("the offer was closed without a match"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(e) => Some(e),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_name_of_its_own() {
        for (why, name) in &NAMES {
            assert_eq!((why.name(), Why::of(name)), (*name, why.clone()));
            assert_eq!(NAMES.iter().filter(|(_, other)| other == name).count(), 1);
        }
        assert_eq!(Why::of("io.commonhold.New").name(), "io.commonhold.New");
    }

    #[test]
    fn a_standard_error_is_put_into_words() {
        let words = |parameters: &str| {
            let refusal = format!("{{\"error\":\"org.varlink.service.Any\",\"parameters\":{parameters}}}");
            Error::from(serde_json::from_str::<Refusal>(&refusal).unwrap()).to_string()
        };
        assert_eq!(
            words("{\"method\":\"io.commonhold.X\"}"),
            "the daemon has no method `io.commonhold.X`; is it of an earlier version?"
        );
        assert!(words("{\"parameter\":\"every_ms\"}").contains("is invalid: every_ms"));
        assert_eq!(words("{}"), "org.varlink.service.Any");
        assert_eq!(words("{\"message\":\"no\",\"parameter\":\"unit\"}"), "no");
    }
}
