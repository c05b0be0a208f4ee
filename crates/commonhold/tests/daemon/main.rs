//! The command on real processes: the daemon with the user backend, and its clients.
//!
//! Every process started here ends by itself, even if the test fails: a busy one soon, a sleeping one within
//! a minute. Contracts name their members by process ID, so nothing else on the machine is affected, and
//! tests can run concurrently.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod bad_contract;
mod bad_machine;
mod clients;
mod currencies;
mod exec;
mod gang_programs;
mod gangs;
mod killed;
mod membership;
mod programs;
mod reload;
mod running;
mod session;
mod signals;
#[path = "../../../live/tests/support/skipped.rs"]
mod skipped;
mod support;
mod tickets;
mod varlink;
