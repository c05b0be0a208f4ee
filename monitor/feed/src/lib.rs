//! Follows a daemon: subscribes to `io.commonhold.Monitor`, merges the differences into whole pictures, and
//! reconnects when the daemon restarts.
//!
//! [`Feed`] does all of it on a thread. [`Subscription`] is one connection, for programs that want a few
//! pictures and then end. [`rates`] has what happened per second between two pictures.

pub mod rates;
mod subscription;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::place::Place;
use commonhold_protocol::monitor::MonitorReply;

pub use subscription::{Connection, FeedError, Subscription};

/// The time before the first attempt to reconnect. It doubles with each failed attempt.
const RETRY_MIN: Duration = Duration::from_millis(250);
/// The longest time between attempts to reconnect.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// The number of events that wait for a slow reader. Then the feed reads no more from the daemon.
const EVENTS_MAX: usize = 4;

/// What a feed reports.
#[derive(Debug, Clone)]
pub enum Event {
    /// A whole picture of the present state.
    Picture(Arc<MonitorReply>),
    /// There is no daemon, or its connection failed. The feed tries again; each failed attempt is reported.
    Lost {
        /// Why, in words. It may quote the daemon.
        why: String,
    },
    /// The daemon is older than this program, and has no subscriptions. The feed tries again, since the
    /// daemon may be restarted.
    TooOld,
}

/// A thread that follows a daemon. It ends soon after this value is dropped.
#[derive(Debug)]
pub struct Feed {
    events: Receiver<Event>,
}

impl Feed {
    /// Follows the daemon at `place`, with a picture every `every_ms` milliseconds, at least
    /// [`EVERY_MS_MIN`](commonhold_protocol::monitor::EVERY_MS_MIN).
    ///
    /// # Errors
    ///
    /// [`Exit::System`] if no thread can be started. A missing daemon is no error, but [`Event::Lost`].
    pub fn follow(place: &Place, every_ms: u64) -> Result<Feed, Failure> {
        let (send, events) = sync_channel(EVENTS_MAX);
        follow_into(place, every_ms, move |event| send.send(event).is_ok())?;
        Ok(Feed { events })
    }

    /// The events, in order. The channel is closed only if the feed's thread panicked.
    pub fn events(&self) -> &Receiver<Event> {
        &self.events
    }
}

/// Follows a daemon as [`Feed::follow`] does, and gives each event to `take`, on the feed's own thread. The
/// feed ends when `take` returns `false`.
///
/// # Errors
///
/// [`Exit::System`] if no thread can be started.
pub fn follow_into(
    place: &Place,
    every_ms: u64,
    mut take: impl FnMut(Event) -> bool + Send + 'static,
) -> Result<(), Failure> {
    let place = place.clone();
    let run = move || {
        let mut pause = RETRY_MIN;
        loop {
            match follow_once(&place, every_ms, &mut pause, &mut take) {
                Ok(()) => return,
                Err(e) if !take(e.event()) => return,
                Err(_) => {}
            }
            thread::sleep(pause);
            pause = (pause * 2).min(RETRY_MAX);
        }
    };
    let started = thread::Builder::new().name("feed".to_owned()).spawn(run);
    started.map(|_| ()).map_err(|e| Failure::new(Exit::System, format!("cannot start a thread: {e}")))
}

/// Follows one connection until it fails; returns `Ok` if `take` wants no more.
fn follow_once(
    place: &Place,
    every_ms: u64,
    pause: &mut Duration,
    take: &mut impl FnMut(Event) -> bool,
) -> Result<(), FeedError> {
    let mut subscription = Subscription::open(place, every_ms)?;
    loop {
        let picture = subscription.next_picture()?;
        *pause = RETRY_MIN;
        if !take(Event::Picture(picture)) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use commonhold_command::place::socket;

    use super::*;

    #[test]
    fn a_daemon_that_hangs_up_is_called_again() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket(folder.path())).unwrap();
        let answers = [
            "{\"parameters\":{\"whole\":true,\"at_ns\":1,\"wall_ms\":1},\"continues\":true}\0",
            "{\"error\":\"org.varlink.service.MethodNotFound\"}\0",
            "{\"parameters\":{\"whole\":true,\"at_ns\":2,\"wall_ms\":2},\"continues\":true}\0",
        ];
        thread::spawn(move || {
            for answer in answers {
                let (mut client, _) = listener.accept().unwrap();
                let _ = client.read(&mut [0; 256]);
                let _ = client.write_all(answer.as_bytes());
            }
        });
        let place = Place { directory: Some(folder.path().to_owned()) };
        let feed = Feed::follow(&place, 1_000).unwrap();
        let next = || feed.events().recv().unwrap();
        assert!(matches!(next(), Event::Picture(picture) if picture.at_ns == 1));
        assert!(matches!(next(), Event::Lost { why } if why == "the daemon hung up"));
        assert!(matches!(next(), Event::TooOld));
        assert!(matches!(next(), Event::Picture(picture) if picture.at_ns == 2));
        assert!(matches!(next(), Event::Lost { .. }));
        assert!(matches!(next(), Event::Lost { .. }));
    }
}
