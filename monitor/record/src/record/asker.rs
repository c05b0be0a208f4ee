//! Asks the daemon on a thread of its own. A daemon may be stopped, stuck or slow, and meanwhile the recorder
//! must empty the kernel's buffers and handle signals.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::place::Place;
use commonhold_feed::FeedError;

use super::accounts::{Accounts, Statement};

/// What the daemon says at a time.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) statement: Statement,
    /// The processes of each unit that has any.
    pub(super) members: Vec<(String, Vec<u32>)>,
    /// Processes that the daemon did not list, since it lists 2,000 of a unit.
    pub(super) not_listed: u32,
    pub(super) contract: String,
}

/// The thread that asks. It has one question at a time, and ends after this value was dropped.
#[derive(Debug)]
pub(super) struct Asker {
    questions: SyncSender<()>,
    answers: Receiver<Result<Answers, FeedError>>,
    is_waiting: bool,
}

impl Asker {
    /// Starts the thread. It connects to the daemon when it is asked, and again after each failure.
    ///
    /// # Errors
    ///
    /// [`Exit::System`] if no thread can be started.
    pub(super) fn start(place: &Place) -> Result<Asker, Failure> {
        let (questions, asked) = sync_channel::<()>(1);
        let (send, answers) = sync_channel(1);
        let place = place.clone();
        let run = move || {
            let mut accounts = None;
            while asked.recv().is_ok() {
                let answer = ask(&place, &mut accounts);
                if answer.is_err() {
                    accounts = None;
                }
                if send.send(answer).is_err() {
                    return;
                }
            }
        };
        let started = thread::Builder::new().name("asker".to_owned()).spawn(run);
        started.map_err(|error| Failure::new(Exit::System, format!("cannot start a thread: {error}")))?;
        Ok(Asker { questions, answers, is_waiting: false })
    }

    /// Asks, unless an answer is still to come.
    pub(super) fn ask(&mut self) {
        if !self.is_waiting {
            self.is_waiting = self.questions.try_send(()).is_ok();
        }
    }

    /// Whether an answer is still to come.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// The answer, if it comes within this time.
    pub(super) fn answer(&mut self, within: Duration) -> Option<Result<Answers, FeedError>> {
        if !self.is_waiting {
            return None;
        }
        let answer = self.answers.recv_timeout(within).ok()?;
        self.is_waiting = false;
        Some(answer)
    }
}

/// The accounts, each unit's members, and the contract.
fn ask(place: &Place, connection: &mut Option<Accounts>) -> Result<Answers, FeedError> {
    let accounts = match connection {
        Some(accounts) => accounts,
        None => connection.insert(Accounts::open(place)?),
    };
    let statement = accounts.statement()?;
    let (mut members, mut not_listed) = (Vec::new(), 0_u32);
    for unit in statement.units.iter().filter(|unit| unit.processes > 0) {
        match accounts.members(&unit.path) {
            Ok((pids, count)) => {
                let listed = u32::try_from(pids.len()).unwrap_or(u32::MAX);
                not_listed = not_listed.saturating_add(count.saturating_sub(listed));
                members.push((unit.path.clone(), pids));
            }
            // The unit may have been removed since the statement. The other units' members are still of use.
            Err(error) if error.is_refusal() => {}
            Err(error) => return Err(error),
        }
    }
    let contract = accounts.contract()?;
    Ok(Answers { statement, members, not_listed, contract })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use commonhold_command::place::socket;

    use super::*;

    #[test]
    fn a_daemon_that_does_not_answer_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket(folder.path())).unwrap();
        let place = Place { directory: Some(folder.path().to_owned()) };
        let mut asker = Asker::start(&place).unwrap();
        assert!(asker.answer(Duration::ZERO).is_none() && !asker.is_waiting());
        asker.ask();
        let (silent, _) = listener.accept().unwrap();
        assert!(asker.answer(Duration::from_millis(1)).is_none() && asker.is_waiting());
        asker.ask();
        drop((silent, listener));
        let is_lost = |answer: Option<Result<Answers, FeedError>>| answer.is_some_and(|got| got.is_err());
        assert!(is_lost(asker.answer(Duration::from_secs(20))));
        assert!(!asker.is_waiting());
        asker.ask();
        assert!(is_lost(asker.answer(Duration::from_secs(20))), "nobody listens");
    }
}
