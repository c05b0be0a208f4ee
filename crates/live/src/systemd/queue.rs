//! A thread that asks systemd, for a loop that may not wait.
//!
//! Problem: an answer takes a tenth of a millisecond, and two seconds where systemd reads its files anew or is being replaced.
//! The loop has CPUs to call back meanwhile.
//!
//! Algorithm: requests stand in a queue, and a thread makes them in turn. The loop takes their answers at its next look
//! ([`Queue::done`]). Where systemd does not answer, what stands in the queue is answered with the same error, without asking,
//! for a second: else a queue of many would take two seconds for each. That time doubles with each call that is not answered
//! (exponential back-off, [`REST_MAX`] at most). When nothing was asked for a second, the connection ends.
//!
//! Properties: no call of the loop waits, but for the end. What is asked for is asked in order. [`Queue::silence`] says for as
//! long as systemd does not answer what was seen of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::manager::ANSWERS_WITHIN;
use super::{Error, Former, Held, Manager, Property, Reverted, Scope, State, Value, Whose};
use crate::LiveError;

/// For how long nothing is asked of a systemd that has not answered once.
const REST: Duration = Duration::from_secs(1);

/// The same after it has not answered several times.
const REST_MAX: Duration = Duration::from_secs(16);

/// For how long a connection is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(1);

/// What systemd is to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// What it knows of one of its units.
    State {
        /// Which.
        unit: String,
    },
    /// What properties are, for the journal, before they are set.
    Former {
        /// Of which systemd unit.
        unit: String,
        /// Which.
        properties: Vec<Property>,
    },
    /// To set properties until the machine's next start, but for those that somebody has changed meanwhile.
    Set {
        /// Of which systemd unit.
        unit: String,
        /// Which.
        changes: Vec<Change>,
    },
    /// To take properties back.
    Revert {
        /// Of which systemd unit.
        unit: String,
        /// Which.
        held: Vec<Held>,
    },
    /// To read all its files anew: once, after what was taken back.
    Reload,
    /// To start a scope.
    Start(Scope),
    /// To stop a systemd unit, which ends its processes.
    Stop {
        /// Which.
        unit: String,
    },
}

/// A property that is to have another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub property: Property,
    /// What it was when it was asked for last.
    pub from: Value,
    /// What it is to be.
    pub to: Value,
}

/// What came of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// What it knows.
    State(State),
    /// What properties are.
    Former(Vec<Former>),
    /// They are set; these are not, since somebody has changed them.
    Set(Vec<Property>),
    /// What was taken back.
    Reverted(Reverted),
    /// Whether it has read its files; it still does, otherwise.
    Reloaded(bool),
    /// The scope is there, with its processes.
    Started,
    /// Whether it has ended; it is still ending, otherwise.
    Stopped(bool),
}

/// A request that was made, by its number, in the order of the requests.
#[derive(Debug)]
pub struct Done {
    /// What [`Queue::ask`] returned.
    pub number: u64,
    /// What came of it.
    pub answer: Result<Answer, Error>,
}

/// The queue, and the thread that makes what stands in it.
#[derive(Debug)]
pub struct Queue {
    requests: Option<Sender<(u64, Request)>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    ends: Arc<AtomicBool>,
    asked: u64,
    answered: u64,
    /// What was seen when it stopped answering, if it has not begun again.
    silence: Option<String>,
}

impl Queue {
    /// Starts the thread. systemd is called when it is asked for something.
    pub fn start(whose: Whose) -> Result<Queue, LiveError> {
        let (requests, asked) = channel();
        let (answers, done) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = ends.clone();
        let work = move || serve(Manager::new(whose), &asked, &answers, &is_over);
        let thread = thread::Builder::new().name("systemd".to_owned()).spawn(work).map_err(|source| {
            LiveError::Unavailable {
                what: format!("systemd cannot be asked: no thread: {source}"),
                remedy: "raise the limit of processes (ulimit -u)".to_owned(),
            }
        })?;
        Ok(Queue {
            requests: Some(requests),
            done,
            thread: Some(thread),
            ends,
            asked: 0,
            answered: 0,
            silence: None,
        })
    }

    /// Puts a request into the queue; its number.
    pub fn ask(&mut self, request: Request) -> u64 {
        self.asked += 1;
        if let Some(requests) = &self.requests {
            // The thread lives as long as this.
            let _ = requests.send((self.asked, request));
        }
        self.asked
    }

    /// How many requests are not answered yet.
    pub fn waiting(&self) -> u64 {
        self.asked - self.answered
    }

    /// What was answered since the last call. It does not wait.
    pub fn done(&mut self) -> Vec<Done> {
        let all: Vec<Done> = self.done.try_iter().collect();
        self.answered += all.len() as u64;
        for done in &all {
            match &done.answer {
                // The first one: others that follow from it are no news.
                Err(error) if error.is_silence() => {
                    self.silence.get_or_insert_with(|| error.to_string());
                }
                _ => self.silence = None,
            }
        }
        all
    }

    /// What was seen when systemd stopped answering; `None` while it answers. [`Queue::done`] learns it.
    pub fn silence(&self) -> Option<&str> {
        self.silence.as_deref()
    }
}

impl Drop for Queue {
    /// Waits for the call that is being made, and makes no other. So nothing is set behind the back of who undoes.
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    mut manager: Manager,
    requests: &Receiver<(u64, Request)>,
    answers: &Sender<Done>,
    ends: &AtomicBool,
) {
    let mut rest: Option<(Instant, String)> = None;
    let mut pause = REST;
    loop {
        let (number, request) = match requests.recv_timeout(IDLE) {
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => {
                manager.disconnect();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if ends.load(Ordering::Relaxed) {
            return;
        }
        let answer = match &rest {
            Some((until, why)) if Instant::now() < *until => Err(Error::Resting { why: why.clone() }),
            _ => make(&mut manager, request),
        };
        match &answer {
            Err(Error::Resting { .. }) => {}
            Err(error) if error.is_silence() => {
                rest = Some((Instant::now() + pause, error.to_string()));
                pause = (pause * 2).min(REST_MAX);
            }
            _ => (rest, pause) = (None, REST),
        }
        if answers.send(Done { number, answer }).is_err() {
            return;
        }
    }
}

fn make(manager: &mut Manager, request: Request) -> Result<Answer, Error> {
    Ok(match request {
        Request::State { unit } => Answer::State(manager.state(&unit)?),
        Request::Former { unit, properties } => Answer::Former(manager.former(&unit, &properties)?),
        Request::Set { unit, changes } => Answer::Set(change(manager, &unit, changes)?),
        Request::Revert { unit, held } => Answer::Reverted(manager.revert(&unit, &held)?),
        Request::Reload => Answer::Reloaded(manager.reload()?),
        Request::Start(scope) => {
            manager.start_scope(&scope)?;
            Answer::Started
        }
        Request::Stop { unit } => Answer::Stopped(manager.stop(&unit)?),
    })
}

/// Sets properties that are still what they were: what an administrator sets between a look at them and now is not written over.
/// The properties that are not.
fn change(manager: &mut Manager, unit: &str, changes: Vec<Change>) -> Result<Vec<Property>, Error> {
    let properties: Vec<Property> = changes.iter().map(|change| change.property).collect();
    let now = manager.show(unit, &properties)?;
    let is_as_it_was = |change: &Change| {
        now.iter().any(|(property, value)| *property == change.property && *value == change.from)
    };
    let (to_set, left): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(is_as_it_was);
    for Change { property, from, to } in &to_set {
        manager.take_out(unit, *property, &from.beyond(to), Instant::now() + ANSWERS_WITHIN)?;
    }
    let to_set: Vec<(Property, Value)> =
        to_set.into_iter().map(|change| (change.property, change.to)).collect();
    manager.set_runtime(unit, &to_set)?;
    Ok(left.into_iter().map(|change| change.property).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::played::{Fault, Played};
    use super::*;

    /// Of a weight that nobody has set so far.
    fn set(weight: u64) -> Request {
        let property = Property::CPUWeight;
        let changes = vec![Change { property, from: property.nothing(), to: Value::Number(weight) }];
        Request::Set { unit: "a.slice".to_owned(), changes }
    }

    /// Looks until so many are answered, as a loop does again and again.
    fn answered(queue: &mut Queue, wanted: usize) -> Vec<Done> {
        let mut all = Vec::new();
        while all.len() < wanted {
            all.extend(queue.done());
            thread::sleep(Duration::from_millis(1));
        }
        all
    }

    #[test]
    fn what_is_asked_is_answered_in_order() {
        let played = Played::new(true);
        played.unit("a.slice", false, &[]);
        let mut queue = Queue::start(played.whose()).unwrap();
        let former = Request::Former { unit: "a.slice".to_owned(), properties: vec![Property::CPUWeight] };
        let numbers =
            [queue.ask(former), queue.ask(set(10_001)), queue.ask(set(7)), queue.ask(Request::Reload)];
        let all = answered(&mut queue, 4);
        assert_eq!(all.iter().map(|done| done.number).collect::<Vec<_>>(), numbers);
        assert!(matches!(&all[0].answer, Ok(Answer::Former(all)) if all.len() == 1));
        assert!(matches!(all[1].answer, Err(Error::Unsuitable { .. })));
        assert!(matches!(&all[2].answer, Ok(Answer::Set(left)) if left.is_empty()));
        assert!(matches!(all[3].answer, Ok(Answer::Reloaded(true))));
        assert_eq!((queue.waiting(), queue.silence()), (0, None));
    }

    /// The loop has seen no weight; an administrator sets one before the loop's own is asked for.
    #[test]
    fn what_somebody_changed_meanwhile_is_not_written_over() {
        let played = Played::new(true);
        played.unit("a.slice", false, &[]);
        played.set("a.slice", Property::CPUWeight, Value::Number(300));
        let mut queue = Queue::start(played.whose()).unwrap();
        queue.ask(set(7));
        let all = answered(&mut queue, 1);
        assert!(matches!(&all[0].answer, Ok(Answer::Set(left)) if *left == [Property::CPUWeight]));
        assert_eq!(played.value("a.slice", Property::CPUWeight), Value::Number(300));
    }

    #[test]
    fn silence_is_said_once_and_costs_the_time_of_one_call() {
        let played = Played::new(true);
        played.unit("a.slice", false, &[]);
        played.fail("SetUnitProperties", Fault::Silence);
        let mut queue = Queue::start(played.whose()).unwrap();
        for weight in 1..20 {
            queue.ask(set(weight));
        }
        let all = answered(&mut queue, 19);
        assert!(all.iter().all(|done| done.answer.as_ref().is_err_and(Error::is_silence)));
        assert_eq!(played.stage().heard.len(), 1, "the others were not asked");
        assert!(queue.silence().is_some());
        thread::sleep(REST);
        queue.ask(set(50));
        assert!(matches!(&answered(&mut queue, 1)[0].answer, Ok(Answer::Set(left)) if left.is_empty()));
        assert_eq!(queue.silence(), None);
    }

    #[test]
    fn at_the_end_nothing_more_is_set() {
        let played = Played::new(true);
        played.unit("a.slice", false, &[]);
        played.fail("SetUnitProperties", Fault::Silence);
        let mut queue = Queue::start(played.whose()).unwrap();
        queue.ask(set(1));
        queue.ask(set(2));
        while played.stage().heard.is_empty() && queue.done().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        drop(queue);
        assert_eq!(played.stage().heard, ["SetUnitProperties"]);
        assert_eq!(played.value("a.slice", Property::CPUWeight), Property::CPUWeight.nothing());
    }
}
