//! The terminal: events in, screens out.

use std::sync::mpsc::{RecvTimeoutError, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::signals::{Signals, end_by};
use commonhold_feed::{Event as FeedEvent, follow_into};
use crossterm::event::{self, Event as Input, KeyEventKind};
use ratatui::DefaultTerminal;

use crate::app::{App, Do, Link};
use crate::cli::Top;
use crate::processes::{self, Listings};
use crate::theme::Theme;

/// The number of events that wait for the screen.
const EVENTS_MAX: usize = 64;

/// What the screen reacts to.
enum Event {
    Feed(FeedEvent),
    Input(Input),
    /// The terminal cannot be read any more.
    Deaf(std::io::Error),
    Processes(Listings),
    Signal(i32),
}

/// Shows units until the user quits. A signal that ends programs restores the terminal first.
pub(crate) fn run(args: &Top, every_ms: u64, theme: Theme) -> Result<Exit, Failure> {
    // Signals are blocked before threads start, which inherit that.
    let signals = Signals::of_an_end()?;
    let (send, events) = sync_channel(EVENTS_MAX);
    let to_screen = send.clone();
    follow_into(&args.place, every_ms, move |event| to_screen.send(Event::Feed(event)).is_ok())?;
    let (want, wanted) = channel();
    let to_screen = send.clone();
    let place = args.place.clone();
    start("processes", move || {
        processes::read(&place, &wanted, |listings| to_screen.send(Event::Processes(listings)).is_ok());
    })?;
    let to_screen = send.clone();
    start("signals", move || {
        loop {
            signals.came_within(Duration::from_secs(3_600));
            if let Some(came) = signals.next()
                && to_screen.send(Event::Signal(came.signal)).is_err()
            {
                return;
            }
        }
    })?;
    let mut terminal = open()?;
    start("keys", move || {
        loop {
            let event = event::read();
            let is_deaf = event.is_err();
            let event = event.map_or_else(Event::Deaf, Event::Input);
            if send.send(event).is_err() || is_deaf {
                return;
            }
        }
    })?;
    let began = Instant::now();
    let mut app = App::new(args.root());
    let mut asked: Vec<String> = Vec::new();
    loop {
        draw(&mut terminal, &mut app, theme)?;
        let Ok(mut event) = events.recv() else { return Ok(close()) };
        // All that came meanwhile is taken before the screen is drawn again.
        loop {
            match event {
                Event::Feed(FeedEvent::Picture(picture)) => app.take_picture(&picture, began.elapsed()),
                Event::Feed(FeedEvent::Lost { why }) => app.take_loss(Link::Lost(why)),
                Event::Feed(FeedEvent::TooOld) => app.take_loss(Link::TooOld),
                Event::Processes(listings) => app.take_listings(listings),
                Event::Signal(signal) => {
                    ratatui::restore();
                    end_by(signal);
                }
                Event::Deaf(e) => {
                    ratatui::restore();
                    return Err(Failure::new(Exit::System, format!("cannot read keys: {e}")));
                }
                Event::Input(Input::Key(key)) if key.kind != KeyEventKind::Release => match app.key(key) {
                    Do::Nothing => {}
                    Do::Quit => return Ok(close()),
                    Do::Suspend => {
                        ratatui::restore();
                        let me = rustix::process::getpid();
                        let _ = rustix::process::kill_process(me, rustix::process::Signal::TSTP);
                        terminal = open()?;
                    }
                },
                Event::Input(_) => {}
            }
            match events.recv_timeout(Duration::ZERO) {
                Ok(next) => event = next,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let wants = app.wanted();
        if wants != asked {
            // If the thread has ended, processes are no longer updated.
            let _ = want.send(wants.clone());
            asked = wants;
        }
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map(|_| ()).map_err(|e| Failure::new(Exit::System, format!("cannot start a thread: {e}")))
}

/// Takes the terminal. A panic restores it.
fn open() -> Result<DefaultTerminal, Failure> {
    ratatui::try_init().map_err(|e| {
        ratatui::restore();
        Failure::new(
            Exit::System,
            format!("cannot use the terminal: {e}; give --once to print one picture as text"),
        )
    })
}

fn close() -> Exit {
    ratatui::restore();
    Exit::Ok
}

fn draw(terminal: &mut DefaultTerminal, app: &mut App, theme: Theme) -> Result<(), Failure> {
    let drawn = terminal.draw(|frame| crate::draw::draw(app, frame.buffer_mut(), theme));
    drawn.map(|_| ()).map_err(|e| {
        ratatui::restore();
        Failure::new(Exit::System, format!("cannot write to the terminal: {e}"))
    })
}
