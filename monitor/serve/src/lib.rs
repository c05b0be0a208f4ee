//! `commonhold serve`: metrics for Prometheus, and one live page, over HTTP.
//!
//! A thread follows the daemon through its socket ([`follow`]), and publishes each picture. The HTTP server
//! runs on a single-threaded runtime, and only reads what is published: a slow or hostile client costs
//! neither the daemon nor other clients anything.

pub mod cli;
mod exposition;
mod follow;
mod history;
mod http;
mod listen;
mod metrics;
mod page;
mod picture;
mod recent;
mod rising;
mod stall;

use std::sync::{Arc, Mutex};

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::{output, place};
use tokio::signal::unix::{SignalKind, signal};

use cli::Serve;
use http::{Limits, Shared};
use recent::Recent;

/// How long blocking reads of the daemon's history may delay the program's end.
const LAST_READS: std::time::Duration = std::time::Duration::from_secs(1);

/// Serves until a signal asks the program to end.
///
/// # Errors
///
/// [`Exit::NotAllowed`] for root, and for an address or path that this user may not listen on;
/// [`Exit::Usage`] for an address that other machines can reach, unless `--any-address` is given;
/// [`Exit::InUse`] if another program listens there.
pub fn main(args: &Serve) -> Result<Exit, Failure> {
    if rustix::process::geteuid().is_root() && !args.as_root {
        return Err(Failure::new(
            Exit::NotAllowed,
            "this program serves any client that connects, and needs no privileges: run it as an ordinary \
             user, by `systemctl start commonhold-serve` (which uses DynamicUser=), or force it with --as-root",
        ));
    }
    listen::check_address(&args.listen, args.any_address)?;
    let failed = |e| Failure::new(Exit::System, format!("cannot start the server: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()
        .map_err(failed)?;
    let ended = runtime.block_on(async {
        let listener = listen::open(&args.listen)?;
        output::say(&format!("commonhold serve: {}", listener.describe()));
        let recent = Arc::new(Mutex::new(Recent::default()));
        let published = follow::start(&args.place, recent.clone())?;
        let check_host = matches!(args.listen, cli::Listen::Tcp(_)) && !args.any_address;
        let shared =
            Shared::new(published, recent, place::histories(&args.place), check_host, Limits::default());
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        tokio::select! {
            () = http::serve(&listener, shared) => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(Exit::Ok)
    });
    runtime.shutdown_timeout(LAST_READS);
    ended
}
