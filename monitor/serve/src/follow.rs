//! Follows the daemon, and publishes each picture.

use std::sync::{Arc, Mutex, PoisonError};

use commonhold_command::exit::Failure;
use commonhold_command::output;
use commonhold_command::place::Place;
use commonhold_feed::Event;
use commonhold_protocol::monitor::MonitorReply;
use tokio::sync::watch;

use crate::picture::Published;
use crate::recent::Recent;
use crate::rising;

/// The time between pictures, in milliseconds.
const EVERY_MS: u64 = 1_000;

/// Starts to follow the daemon; returns what is published. A daemon that cannot be reached is reported once
/// for each time that it goes, and tried again.
pub(crate) fn start(
    place: &Place,
    recent: Arc<Mutex<Recent>>,
) -> Result<watch::Receiver<Arc<Published>>, Failure> {
    let (sender, receiver) = watch::channel(Arc::new(Published::default()));
    let mut published = sender.borrow().clone();
    commonhold_feed::follow_into(place, EVERY_MS, move |event| {
        match &event {
            Event::Picture(_) if published.lost.is_some() => {
                output::warn("commonhold serve: a daemon answers");
            }
            Event::Picture(_) => {}
            lost if published.lost.is_none() => {
                let why = why_lost(lost);
                output::warn(&format!("commonhold serve: {why}; trying again until a daemon answers"));
            }
            _ => {}
        }
        published = Arc::new(next(&published, event, &recent));
        sender.send(published.clone()).is_ok()
    })?;
    Ok(receiver)
}

/// Why there is no picture.
fn why_lost(event: &Event) -> String {
    match event {
        Event::Lost { why } => why.clone(),
        _ => "this daemon is older than this program, and cannot be followed; restart it".to_owned(),
    }
}

/// The publication that follows `published`.
fn next(published: &Published, event: Event, recent: &Mutex<Recent>) -> Published {
    let picture = match event {
        Event::Picture(picture) => picture,
        lost => return published.without_daemon(why_lost(&lost)),
    };
    let of_same_run =
        published.picture.as_ref().filter(|before| published.lost.is_none() && before.at_ns <= picture.at_ns);
    let (picture, opened_ms) = if let Some(before) = of_same_run {
        let mut picture = Arc::unwrap_or_clone(picture);
        rising::raise(&mut picture, before);
        (Arc::new(picture), published.opened_ms)
    } else {
        let opened_ms = opened_ms(&picture);
        (picture, opened_ms)
    };
    recent.lock().unwrap_or_else(PoisonError::into_inner).add(&picture);
    published.with_picture(picture, opened_ms)
}

/// When a picture's accounts were opened, in milliseconds since 1970, by the machine's present clock.
fn opened_ms(picture: &MonitorReply) -> u64 {
    picture.wall_ms.saturating_sub(picture.at_ns / 1_000_000)
}

#[cfg(test)]
mod tests {
    use crate::picture::sample;

    use super::*;

    #[test]
    fn a_restart_resets_counters_and_a_clock_that_jumps_does_not() {
        let recent = Mutex::new(Recent::default());
        let first = next(&Published::default(), Event::Picture(Arc::new(sample())), &recent);
        let mut jumped = sample();
        jumped.at_ns += 1_000_000_000;
        jumped.wall_ms += 3_600_000;
        jumped.units[0].totals.cpu_used_ns -= 1;
        let second = next(&first, Event::Picture(Arc::new(jumped)), &recent);
        assert_eq!(second.opened_ms, first.opened_ms);
        let used = |published: &Published| published.picture.as_ref().unwrap().units[0].totals.cpu_used_ns;
        assert_eq!(used(&second), used(&first));

        let mut restarted = sample();
        restarted.at_ns = 1_000_000_000;
        restarted.wall_ms += 10_000;
        restarted.units[0].totals.cpu_used_ns = 7;
        let third = next(&second, Event::Picture(Arc::new(restarted.clone())), &recent);
        assert_eq!(used(&third), 7);
        assert!(third.opened_ms > first.opened_ms);
        // A restart that was noticed as the loss of the connection.
        restarted.at_ns = u64::MAX;
        let lost = next(&second, Event::Lost { why: "gone".to_owned() }, &recent);
        assert_eq!(used(&next(&lost, Event::Picture(Arc::new(restarted)), &recent)), 7);
    }
}
