//! The machine's users and groups, each looked up once: a directory server must not be asked in every scan.
//!
//! Problem: a name may be unknown now and known later: an account is created, a server comes back. If a
//! server is slow, a lookup may take seconds, and a daemon that waits for the answer holds no contract
//! meanwhile.
//!
//! Algorithm: an answer is cached until [`SystemNames::forget`], which a reload calls. Once a minute, a
//! separate thread ([`again`]) repeats the lookups that have no answer yet, so that the daemon's loop never
//! waits for them.
//!
//! Properties: an error never replaces an earlier answer, so an outage of a directory server takes no process
//! out of its unit. At most one lookup thread runs at a time, however slow the server is.
//!
//! Limits: the first lookup of a name, and the lookups at a reload, block the caller.

mod again;
mod nss;

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use commonhold_policy::Time;
use commonhold_policy::membership::Names;

use crate::observe::files::Tree;
use again::{Answer, Question, Retries};
use nss::{NameService, Nss};

pub use nss::{Book, Found, LookupError};

/// Messages about lookups since the last report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LookupNews {
    /// Names that became known.
    pub news: Vec<String>,
    /// Lookups that failed.
    pub problems: Vec<String>,
}

/// The machine's name service with a cache.
#[derive(Debug)]
pub struct SystemNames {
    service: Arc<dyn NameService>,
    uids: Cache<String, u32>,
    gids: Cache<String, u32>,
    user_names: Cache<u32, String>,
    groups: Cache<u32, Vec<u32>>,
    retries: RefCell<Retries>,
    messages: RefCell<LookupNews>,
    /// The number of late answers that could change memberships.
    changes: Cell<u64>,
}

impl Default for SystemNames {
    fn default() -> Self {
        SystemNames::with_service(Arc::new(Nss))
    }
}

impl SystemNames {
    /// An empty cache of the C library's name service.
    pub fn new() -> Self {
        SystemNames::default()
    }

    /// An empty cache of this name service.
    pub(crate) fn with_service(service: Arc<dyn NameService>) -> Self {
        SystemNames {
            service,
            uids: Cache::default(),
            gids: Cache::default(),
            user_names: Cache::default(),
            groups: Cache::default(),
            retries: RefCell::default(),
            messages: RefCell::default(),
            changes: Cell::default(),
        }
    }

    /// The number of a user or group; `None` if there is no such name.
    ///
    /// # Errors
    /// The name service does not answer, and has not found the name earlier.
    pub fn number(&self, book: Book, name: &str) -> Found<u32> {
        let question = || Question::Number(book, name.to_owned());
        self.numbers_of(book).get(name, || self.ask(&question(), || self.service.number(book, name)))
    }

    /// The name of a user; `None` if no user has this number, or if the name service does not answer.
    pub fn user_name(&self, uid: u32) -> Option<String> {
        let ask = || self.service.user_name(uid).inspect_err(|e| self.complain(&format!("user {uid}"), *e));
        self.user_names.get(&uid, ask).ok().flatten()
    }

    /// The groups of a user, the primary one first; empty if the user is unknown, or if the name service does
    /// not answer.
    pub fn groups_of(&self, uid: u32) -> Vec<u32> {
        let ask = || self.ask(&Question::Groups(uid), || self.service.groups_of(uid));
        self.groups.get(&uid, ask).ok().flatten().unwrap_or_default()
    }

    /// Has every name looked up again when it is next needed: users may have changed since the last contract.
    pub fn forget(&self) {
        self.uids.mark_stale();
        self.gids.mark_stale();
        self.user_names.mark_stale();
        self.groups.mark_stale();
    }

    /// Takes the answers that arrived from the lookup thread, and starts another round of lookups if one is
    /// due. Returns whether an answer can change memberships. Never blocks.
    pub(crate) fn retry_unanswered(&self, now: Time) -> bool {
        let changes_before = self.changes.get();
        let mut retries = self.retries.borrow_mut();
        for answer in retries.take_answers() {
            self.accept(answer);
        }
        let unanswered = || self.unanswered();
        if let Err(e) = retries.ask_if_due(now, &self.service, unanswered) {
            self.messages.borrow_mut().problems.push(format!(
                "cannot start a thread to look up unknown users and groups: {e}; retrying in a minute"
            ));
        }
        self.changes.get() != changes_before
    }

    /// The number of late answers that could change memberships. Names that change because of
    /// [`SystemNames::forget`] do not count.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Takes the messages since the last call.
    pub fn take_news(&self) -> LookupNews {
        self.messages.take()
    }

    fn numbers_of(&self, book: Book) -> &Cache<String, u32> {
        match book {
            Book::Passwd => &self.uids,
            Book::Group => &self.gids,
        }
    }

    /// Makes a lookup, and records a failure as a message.
    fn ask<T>(&self, question: &Question, look_up: impl FnOnce() -> Found<T>) -> Found<T> {
        look_up().inspect_err(|e| self.complain(&question.to_string(), *e))
    }

    /// Records a failed lookup as a message, unless there are [`PROBLEMS_MAX`] already.
    fn complain(&self, subject: &str, error: LookupError) {
        let problem = format!("cannot look up {subject}: {error}");
        let mut messages = self.messages.borrow_mut();
        // The messages may never be taken, and the same failure may occur for thousands of users.
        if messages.problems.len() < PROBLEMS_MAX && !messages.problems.contains(&problem) {
            messages.problems.push(problem);
        }
    }

    /// The lookups to repeat: names that are unknown, and lookups that failed.
    fn unanswered(&self) -> Vec<Question> {
        let users = self.uids.unanswered(|found| !matches!(found, Ok(Some(_))));
        let groups = self.gids.unanswered(|found| !matches!(found, Ok(Some(_))));
        // The groups of a user without an entry are not looked up again until a reload: containers have
        // thousands of such users.
        let groups_of = self.groups.unanswered(Result::is_err);
        let users = users.into_iter().map(|name| Question::Number(Book::Passwd, name));
        let groups = groups.into_iter().map(|name| Question::Number(Book::Group, name));
        users.chain(groups).chain(groups_of.into_iter().map(Question::Groups)).collect()
    }

    /// Records a late answer in the cache and as a message, unless the question was answered meanwhile after
    /// a reload.
    fn accept(&self, Answer { question, found }: Answer) {
        let became_known = match &question {
            Question::Number(book, name) => {
                let number = found.map(|found| found.and_then(|numbers| numbers.first().copied()));
                self.numbers_of(*book).add_late(name, number)
            }
            Question::Groups(uid) => self.groups.add_late(uid, found),
        };
        match (became_known, &question) {
            (Ok(false), _) => {}
            (Ok(true), Question::Number(book, name)) => {
                self.changes.set(self.changes.get() + 1);
                let news = format!("this machine knows {book} `{name}` now: rules that name it apply");
                self.messages.borrow_mut().news.push(news);
            }
            (Ok(true), Question::Groups(_)) => self.changes.set(self.changes.get() + 1),
            (Err(e), _) => self.complain(&question.to_string(), e),
        }
    }
}

/// The most lookup problems kept for [`SystemNames::take_news`].
const PROBLEMS_MAX: usize = 20;

impl Names for SystemNames {
    fn uid(&self, name: &str) -> Option<u32> {
        self.number(Book::Passwd, name).ok().flatten()
    }

    fn gid(&self, name: &str) -> Option<u32> {
        self.number(Book::Group, name).ok().flatten()
    }
}

/// The names in the first MiB of the machine's local file of users or groups, as suggestions for a mistyped
/// name. Other sources of the name service are not asked: a directory server may take minutes to list its
/// users.
pub fn local_names(root: &Path, book: Book) -> Vec<String> {
    // Only a hint: no names if the file cannot be read.
    let text = Tree::new(root).text(format!("/etc/{}", book.name())).unwrap_or_default();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect()
}

/// The name service's answers, by the name or number that was looked up.
#[derive(Debug)]
struct Cache<K, T>(RefCell<BTreeMap<K, Entry<T>>>);

#[derive(Debug)]
struct Entry<T> {
    found: Found<T>,
    /// False after [`Cache::mark_stale`]: look it up again before use.
    is_fresh: bool,
}

impl<K, T> Default for Cache<K, T> {
    fn default() -> Self {
        Cache(RefCell::default())
    }
}

impl<K: Ord + Clone, T: Clone> Cache<K, T> {
    /// The cached answer if it is fresh, else that of `look_up`. If the lookup fails, an earlier positive
    /// answer stays valid.
    fn get<Q>(&self, key: &Q, look_up: impl FnOnce() -> Found<T>) -> Found<T>
    where
        K: Borrow<Q>,
        Q: Ord + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(entry) = self.0.borrow().get(key).filter(|entry| entry.is_fresh) {
            return entry.found.clone();
        }
        let answer = look_up();
        let mut entries = self.0.borrow_mut();
        let earlier = entries.remove(key).filter(|entry| matches!(entry.found, Ok(Some(_))));
        let found = match (answer, earlier) {
            (Err(_), Some(earlier)) => earlier.found,
            (answer, _) => answer,
        };
        entries.insert(key.to_owned(), Entry { found: found.clone(), is_fresh: true });
        found
    }

    /// Marks all answers for another lookup before their next use. Negative answers are dropped, so that the
    /// cache does not grow from reload to reload.
    fn mark_stale(&self) {
        let mut entries = self.0.borrow_mut();
        entries.retain(|_, entry| matches!(entry.found, Ok(Some(_))));
        entries.values_mut().for_each(|entry| entry.is_fresh = false);
    }

    fn unanswered(&self, is_unanswered: impl Fn(&Found<T>) -> bool) -> Vec<K> {
        let entries = self.0.borrow();
        entries.iter().filter(|(_, entry)| is_unanswered(&entry.found)).map(|(key, _)| key.clone()).collect()
    }

    /// Records a late answer, and returns whether an unknown key became known by it. The answer is dropped if
    /// the key is no longer in the cache, or is known already.
    fn add_late(&self, key: &K, found: Found<T>) -> Result<bool, LookupError> {
        let mut entries = self.0.borrow_mut();
        let Some(entry) = entries.get_mut(key) else { return Ok(false) };
        if matches!(entry.found, Ok(Some(_))) {
            return Ok(false);
        }
        entry.found = found;
        entry.found.as_ref().map(Option::is_some).map_err(|e| *e)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests;
