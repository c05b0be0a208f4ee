//! A thread that calls systemd, for a loop that may not block.
//!
//! Problem: a reply usually takes a tenth of a millisecond, but up to two seconds while systemd reloads its
//! files or is re-executed. The loop cannot wait that long, because it has CPUs to call back.
//!
//! Algorithm: requests go into a queue, and a thread makes the calls in order. The loop collects the answers
//! in its next iteration ([`Queue::done`]). After a call that systemd did not answer, queued requests fail
//! with the error of that call, without a call of their own, for a second: otherwise each would take another
//! two seconds. Each further failure doubles the second (exponential back-off, up to [`REST_MAX`]). After a
//! second without requests the connection is closed.
//!
//! Properties: the loop never blocks, except when it drops the queue. Requests are made in order. While
//! systemd does not answer, [`Queue::silence`] has the error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::manager::ANSWERS_WITHIN;
use super::{
    Error, Instance, Manager, Property, PropertyChange, PropertyState, Reverted, Scope, UnitState, Value,
};
use crate::LiveError;

/// The back-off after the first call without an answer.
const REST: Duration = Duration::from_secs(1);

/// The longest back-off.
const REST_MAX: Duration = Duration::from_secs(16);

/// How long an unused connection is kept open.
const IDLE: Duration = Duration::from_secs(1);

/// A request to systemd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Get the state of a systemd unit.
    State {
        /// The systemd unit.
        unit: String,
    },
    /// Get the present state of properties, to record in the journal before they are set.
    Properties {
        /// The systemd unit.
        unit: String,
        /// The properties.
        properties: Vec<Property>,
    },
    /// Set properties until the next reboot, except for those that another program changed meanwhile.
    Set {
        /// The systemd unit.
        unit: String,
        /// The new values.
        changes: Vec<Change>,
    },
    /// Revert properties.
    Revert {
        /// The systemd unit.
        unit: String,
        /// The changes to revert.
        changes: Vec<PropertyChange>,
    },
    /// Reload all files, which completes reverts ([`Reverted::reload`]).
    Reload,
    /// Start a scope.
    Start(Scope),
    /// Stop a systemd unit, which ends its processes.
    Stop {
        /// The systemd unit.
        unit: String,
    },
}

/// A new value for a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The property.
    pub property: Property,
    /// The value that the caller last saw.
    pub from: Value,
    /// The new value.
    pub to: Value,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The state of the systemd unit.
    State(UnitState),
    /// The present state of the properties.
    Properties(Vec<PropertyState>),
    /// The properties were set, except for these, which another program changed.
    Set(Vec<Property>),
    /// The outcome of reverting.
    Reverted(Reverted),
    /// Whether systemd has reloaded its files; if not, it is still doing so.
    Reloaded(bool),
    /// The scope has started, with its processes in it.
    Started,
    /// Whether the systemd unit has ended; if not, it is still ending.
    Stopped(bool),
}

/// A finished request.
#[derive(Debug)]
pub struct Done {
    /// The number that [`Queue::ask`] returned.
    pub number: u64,
    /// The answer.
    pub answer: Result<Answer, Error>,
}

/// The queue, and the thread that serves it.
#[derive(Debug)]
pub struct Queue {
    /// Numbered requests to the thread; `None` once the queue is being dropped.
    requests: Option<Sender<(u64, Request)>>,
    /// Finished requests from the thread.
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    /// Tells the thread to discard the remaining requests.
    ends: Arc<AtomicBool>,
    /// The number of requests so far.
    asked: u64,
    /// The number of answers that the loop has collected.
    answered: u64,
    /// The error of the call at which systemd stopped answering; `None` while systemd answers.
    silence: Option<String>,
}

impl Queue {
    /// Starts the thread, which connects to systemd at the first request.
    pub fn start(instance: Instance) -> Result<Queue, LiveError> {
        let (requests, asked) = channel();
        let (answers, done) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let threads_ends = ends.clone();
        let work = move || serve(Manager::new(instance), &asked, &answers, &threads_ends);
        let thread = thread::Builder::new().name("systemd".to_owned()).spawn(work).map_err(|source| {
            LiveError::Unavailable {
                what: format!("systemd cannot be called: no thread: {source}"),
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

    /// Queues a request; returns its number.
    pub fn ask(&mut self, request: Request) -> u64 {
        self.asked += 1;
        if let Some(requests) = &self.requests {
            // Sending cannot fail: the thread lives as long as the queue.
            let _ = requests.send((self.asked, request));
        }
        self.asked
    }

    /// The number of requests whose answers were not collected yet.
    pub fn waiting(&self) -> u64 {
        self.asked - self.answered
    }

    /// The answers since the last call, in the order of the requests. Does not block.
    pub fn done(&mut self) -> Vec<Done> {
        let all: Vec<Done> = self.done.try_iter().collect();
        self.answered += all.len() as u64;
        for done in &all {
            match &done.answer {
                // Keep the first error: the following errors are its consequences.
                Err(error) if error.is_silence() => {
                    self.silence.get_or_insert_with(|| error.to_string());
                }
                _ => self.silence = None,
            }
        }
        all
    }

    /// The error of the call at which systemd stopped answering; `None` while systemd answers. Updated by
    /// [`Queue::done`].
    pub fn silence(&self) -> Option<&str> {
        self.silence.as_deref()
    }
}

impl Drop for Queue {
    /// Waits for the call in flight, and discards the queued requests, so that nothing is set while the
    /// changes are undone.
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's loop: makes the calls in order until the queue is dropped.
fn serve(
    mut manager: Manager,
    requests: &Receiver<(u64, Request)>,
    answers: &Sender<Done>,
    ends: &AtomicBool,
) {
    // The end of the back-off, and the error of the call that had no answer.
    let mut back_off: Option<(Instant, String)> = None;
    let mut next_back_off = REST;
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
        let answer = match &back_off {
            Some((until, why)) if Instant::now() < *until => Err(Error::Resting { why: why.clone() }),
            _ => call(&mut manager, request),
        };
        match &answer {
            Err(Error::Resting { .. }) => {}
            Err(error) if error.is_silence() => {
                back_off = Some((Instant::now() + next_back_off, error.to_string()));
                next_back_off = (next_back_off * 2).min(REST_MAX);
            }
            _ => (back_off, next_back_off) = (None, REST),
        }
        if answers.send(Done { number, answer }).is_err() {
            return;
        }
    }
}

/// Makes the calls of one request.
fn call(manager: &mut Manager, request: Request) -> Result<Answer, Error> {
    Ok(match request {
        Request::State { unit } => Answer::State(manager.state(&unit)?),
        Request::Properties { unit, properties } => Answer::Properties(manager.former(&unit, &properties)?),
        Request::Set { unit, changes } => Answer::Set(set_unchanged(manager, &unit, changes)?),
        Request::Revert { unit, changes } => Answer::Reverted(manager.revert(&unit, &changes)?),
        Request::Reload => Answer::Reloaded(manager.reload()?),
        Request::Start(scope) => {
            manager.start_scope(&scope)?;
            Answer::Started
        }
        Request::Stop { unit } => Answer::Stopped(manager.stop(&unit)?),
    })
}

/// Sets those properties that still have the value which the caller last saw. A value that an administrator
/// has set since then is not overwritten. Returns the properties that were not set.
fn set_unchanged(manager: &mut Manager, unit: &str, changes: Vec<Change>) -> Result<Vec<Property>, Error> {
    let properties: Vec<Property> = changes.iter().map(|change| change.property).collect();
    let current_values = manager.show(unit, &properties)?;
    let is_unchanged = |change: &Change| {
        current_values.iter().any(|(property, value)| *property == change.property && *value == change.from)
    };
    let (to_set, not_set): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(is_unchanged);
    for Change { property, from, to } in &to_set {
        manager.remove_persistent(unit, *property, &from.beyond(to), Instant::now() + ANSWERS_WITHIN)?;
    }
    let to_set: Vec<(Property, Value)> =
        to_set.into_iter().map(|change| (change.property, change.to)).collect();
    manager.set_runtime(unit, &to_set)?;
    Ok(not_set.into_iter().map(|change| change.property).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::fake::{FakeSystemd, Fault};
    use super::*;

    /// A request to set a weight that was unset.
    fn set(weight: u64) -> Request {
        let property = Property::CPUWeight;
        let changes = vec![Change { property, from: property.nothing(), to: Value::Number(weight) }];
        Request::Set { unit: "a.slice".to_owned(), changes }
    }

    /// Polls until this many requests are answered, as the loop does.
    fn answered(queue: &mut Queue, wanted: usize) -> Vec<Done> {
        let mut all = Vec::new();
        while all.len() < wanted {
            all.extend(queue.done());
            thread::sleep(Duration::from_millis(1));
        }
        all
    }

    #[test]
    fn requests_are_answered_in_order() {
        let systemd = FakeSystemd::new(true);
        systemd.unit("a.slice", false, &[]);
        let mut queue = Queue::start(systemd.instance()).unwrap();
        let former =
            Request::Properties { unit: "a.slice".to_owned(), properties: vec![Property::CPUWeight] };
        let numbers =
            [queue.ask(former), queue.ask(set(10_001)), queue.ask(set(7)), queue.ask(Request::Reload)];
        let all = answered(&mut queue, 4);
        assert_eq!(all.iter().map(|done| done.number).collect::<Vec<_>>(), numbers);
        assert!(matches!(&all[0].answer, Ok(Answer::Properties(all)) if all.len() == 1));
        assert!(matches!(all[1].answer, Err(Error::Unsuitable { .. })));
        assert!(matches!(&all[2].answer, Ok(Answer::Set(left)) if left.is_empty()));
        assert!(matches!(all[3].answer, Ok(Answer::Reloaded(true))));
        assert_eq!((queue.waiting(), queue.silence()), (0, None));
    }

    /// The loop saw no weight; an administrator sets one before the loop's request is made.
    #[test]
    fn a_value_changed_meanwhile_is_not_overwritten() {
        let systemd = FakeSystemd::new(true);
        systemd.unit("a.slice", false, &[]);
        systemd.set("a.slice", Property::CPUWeight, Value::Number(300));
        let mut queue = Queue::start(systemd.instance()).unwrap();
        queue.ask(set(7));
        let all = answered(&mut queue, 1);
        assert!(matches!(&all[0].answer, Ok(Answer::Set(left)) if *left == [Property::CPUWeight]));
        assert_eq!(systemd.value("a.slice", Property::CPUWeight), Value::Number(300));
    }

    #[test]
    fn silence_is_reported_once_and_costs_the_time_of_one_call() {
        let systemd = FakeSystemd::new(true);
        systemd.unit("a.slice", false, &[]);
        systemd.fail("SetUnitProperties", Fault::Silence);
        let mut queue = Queue::start(systemd.instance()).unwrap();
        for weight in 1..20 {
            queue.ask(set(weight));
        }
        let all = answered(&mut queue, 19);
        assert!(all.iter().all(|done| done.answer.as_ref().is_err_and(Error::is_silence)));
        assert_eq!(systemd.stage().heard.len(), 1, "the others were not asked");
        assert!(queue.silence().is_some());
        thread::sleep(REST);
        queue.ask(set(50));
        assert!(matches!(&answered(&mut queue, 1)[0].answer, Ok(Answer::Set(left)) if left.is_empty()));
        assert_eq!(queue.silence(), None);
    }

    #[test]
    fn dropping_the_queue_discards_pending_requests() {
        let systemd = FakeSystemd::new(true);
        systemd.unit("a.slice", false, &[]);
        systemd.fail("SetUnitProperties", Fault::Silence);
        let mut queue = Queue::start(systemd.instance()).unwrap();
        queue.ask(set(1));
        queue.ask(set(2));
        while systemd.stage().heard.is_empty() && queue.done().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        drop(queue);
        assert_eq!(systemd.stage().heard, ["SetUnitProperties"]);
        assert_eq!(systemd.value("a.slice", Property::CPUWeight), Property::CPUWeight.nothing());
    }
}
