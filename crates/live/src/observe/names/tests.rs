//! The cache with a name service that is slow, fails, and learns names.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

pub(crate) use super::again::PAUSE_NS;
use super::*;

/// A name service whose answers are set by a test, and that blocks while it hangs.
#[derive(Debug, Default)]
pub(crate) struct Scripted {
    pub(crate) script: Mutex<Script>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) numbers: BTreeMap<(Book, String), u32>,
    pub(crate) fails: Option<i32>,
    hangs: bool,
    asked: u32,
}

impl Scripted {
    fn answer<T>(&self, find: impl FnOnce(&Script) -> Option<T>) -> Found<T> {
        let mut script = self.script.lock().unwrap();
        script.asked += 1;
        let script = self.changed.wait_while(script, |script| script.hangs).unwrap();
        match script.fails {
            Some(errno) => Err(LookupError::Service(errno)),
            None => Ok(find(&script)),
        }
    }

    fn hang(&self, hangs: bool) {
        self.script.lock().unwrap().hangs = hangs;
        self.changed.notify_all();
    }

    fn asked(&self) -> u32 {
        self.script.lock().unwrap().asked
    }

    pub(crate) fn learn(&self, book: Book, name: &str, number: u32) {
        self.script.lock().unwrap().numbers.insert((book, name.to_owned()), number);
    }

    fn fail(&self, errno: Option<i32>) {
        self.script.lock().unwrap().fails = errno;
    }
}

impl NameService for Scripted {
    fn number(&self, book: Book, name: &str) -> Found<u32> {
        self.answer(|script| script.numbers.get(&(book, name.to_owned())).copied())
    }

    fn user_name(&self, uid: u32) -> Found<String> {
        let is_user = |(key, number): (&(Book, String), &u32)| {
            (key.0 == Book::Passwd && *number == uid).then(|| key.1.clone())
        };
        self.answer(|script| script.numbers.iter().find_map(is_user))
    }

    fn groups_of(&self, uid: u32) -> Found<Vec<u32>> {
        self.answer(|_| Some(vec![uid]))
    }
}

fn names() -> (Arc<Scripted>, SystemNames) {
    let service = Arc::new(Scripted::default());
    (service.clone(), SystemNames::with_service(service))
}

/// Repeats a call at one moment until an answer of the thread changes memberships.
fn until_changed(names: &SystemNames, now: Time) {
    let begun = Instant::now();
    while !names.retry_unanswered(now) {
        assert!(begun.elapsed() < Duration::from_mins(1), "no answer came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_name_is_looked_up_once_until_forgotten() {
    let (service, names) = names();
    service.learn(Book::Passwd, "ana", 1000);
    for _ in 0..3 {
        assert_eq!((names.uid("ana"), names.gid("ana"), names.uid("bo")), (Some(1000), None, None));
        assert_eq!(names.user_name(1000).as_deref(), Some("ana"));
        assert_eq!(names.groups_of(1000), [1000]);
    }
    assert_eq!(service.asked(), 5);
    service.learn(Book::Passwd, "bo", 1001);
    names.forget();
    assert_eq!((names.uid("ana"), names.uid("bo"), service.asked()), (Some(1000), Some(1001), 7));
}

#[test]
fn a_name_that_appears_is_found_within_a_minute_and_reported() {
    let (service, names) = names();
    assert_eq!((names.uid("ana"), names.gid("lab")), (None, None));
    assert!(!names.retry_unanswered(0));
    service.learn(Book::Passwd, "ana", 1000);
    assert!(!names.retry_unanswered(PAUSE_NS - 1), "it is not due");
    assert_eq!((names.uid("ana"), service.asked()), (None, 2));
    until_changed(&names, PAUSE_NS);
    assert_eq!((names.uid("ana"), names.gid("lab"), names.changes()), (Some(1000), None, 1));
    let messages = names.take_news();
    assert_eq!(messages.news, ["this machine knows user `ana` now: rules that name it apply"]);
    assert_eq!((messages.problems.len(), names.take_news()), (0, LookupNews::default()));
}

#[test]
fn a_server_that_does_not_answer_blocks_only_one_thread() {
    let (service, names) = names();
    assert_eq!(names.uid("ana"), None);
    assert!(!names.retry_unanswered(0));
    service.hang(true);
    let begun = Instant::now();
    for minute in 1..10 {
        assert!(!names.retry_unanswered(minute * PAUSE_NS));
    }
    while service.asked() < 2 {
        assert!(begun.elapsed() < Duration::from_mins(1), "no thread asked");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!names.retry_unanswered(10 * PAUSE_NS));
    assert_eq!((names.uid("ana"), service.asked()), (None, 2));
    service.learn(Book::Passwd, "ana", 1000);
    service.hang(false);
    until_changed(&names, 11 * PAUSE_NS);
    assert_eq!(names.uid("ana"), Some(1000));
}

#[test]
fn an_outage_loses_no_answer_and_is_reported() {
    let (service, names) = names();
    service.learn(Book::Group, "lab", 50);
    assert_eq!((names.gid("lab"), names.groups_of(7)), (Some(50), vec![7]));
    service.fail(Some(libc::EIO));
    names.forget();
    assert_eq!((names.gid("lab"), names.groups_of(7)), (Some(50), vec![7]));
    assert_eq!(names.number(Book::Passwd, "ana"), Err(LookupError::Service(libc::EIO)));
    let problems = names.take_news().problems;
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(
        problems[0].starts_with("cannot look up group `lab`: the name service fails: Input"),
        "{problems:?}"
    );
    // Both failed lookups and unknown names are repeated.
    service.fail(None);
    service.learn(Book::Passwd, "ana", 1000);
    assert!(!names.retry_unanswered(0));
    until_changed(&names, PAUSE_NS);
    assert_eq!(names.uid("ana"), Some(1000));
}

#[test]
fn the_real_service_answers() {
    let names = SystemNames::new();
    assert_eq!((names.uid("root"), names.gid("root"), names.uid("no such user")), (Some(0), Some(0), None));
    assert_eq!((names.user_name(0).as_deref(), names.groups_of(0).first()), (Some("root"), Some(&0)));
    let root = tempfile::tempdir().unwrap();
    assert_eq!(local_names(root.path(), Book::Group), [""; 0]);
    std::fs::create_dir(root.path().join("etc")).unwrap();
    std::fs::write(root.path().join("etc/group"), "root:x:0:\nphysics:x:50:ana,bo\n\nbad line\n").unwrap();
    assert_eq!(local_names(root.path(), Book::Group), ["root", "physics"]);
}
