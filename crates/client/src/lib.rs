//! A client library for the daemon `commonhold run`. A program can read units' tickets, offer tickets in
//! exchange for others, and wait until an offer is served. With the module [`gang`] it can report its
//! memory-bus transfers.
//!
//! ```no_run
//! use commonhold_client::{Client, Offer};
//!
//! # fn main() -> Result<(), commonhold_client::Error> {
//! let mut client = Client::connect("/run/commonhold/socket")?;
//! let unit = client.own_unit()?;
//! // The offer, and the exchange that serves it, last as long as this client at most.
//! let made = client.offer(&Offer::new(&unit, "disk:30", "cpu:20").while_connected())?;
//! let exchange = client.wait_until_served(made.number, None)?;
//! println!("exchange {exchange:?} is in force");
//! // ... the work ...
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] is one connection, and its requests are synchronous, so each thread should have its own
//! client. [`Client::subscribe`] turns a client into a [`Subscription`] to the state of all units. The wire
//! format is that of varlink: JSON objects, each followed by a NUL, over a UNIX socket. The module [`wire`]
//! defines the messages for client and daemon.
//!
//! The daemon authenticates a client by the socket's peer credentials: the user of the process when it
//! connected.

pub mod arena;
mod client;
mod error;
pub mod gang;
mod reply;
pub mod wire;

/// Compiles the examples of docs/programs.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/programs.md")]
struct Programs;

/// Compiles the examples of docs/gangs.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/gangs.md")]
struct Gangs;

pub use client::{Client, Offer, PATIENCE, Subscription};
pub use error::{Error, Why};
pub use reply::{Awaited, Exchange, Lent, Made, Offers, Standing, State, Tickets};
pub use wire::Resource;
