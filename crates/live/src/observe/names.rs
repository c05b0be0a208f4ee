//! The machine's users and groups, each looked up once: a directory server must not be asked in every scan.
//!
//! Problem: a name may be unknown now and known later: an account is created, a server comes back. A lookup may take seconds
//! if a server is slow, and a daemon that waits for it holds no contract meanwhile.
//!
//! Algorithm: an answer is cached until [`SystemNames::forget`], which a reload calls. Once a minute, a separate thread
//! ([`again`]) repeats the lookups that have no answer yet, so that the loop never waits for them.
//!
//! Properties: an error never replaces an earlier answer, so an outage of a directory server takes no process out of its unit.
//! At most one lookup thread runs at a time, however slow the server is.
//!
//! Limits: the first lookup of a name, and those at a reload, block the caller.

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
use again::{Again, Answer, Question};
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
    again: RefCell<Again>,
    messages: RefCell<LookupNews>,
    changes: Cell<u64>,
}

impl Default for SystemNames {
    fn default() -> Self {
        SystemNames::asking(Arc::new(Nss))
    }
}

impl SystemNames {
    /// An empty cache.
    pub fn new() -> Self {
        SystemNames::default()
    }

    /// An empty cache of another name service.
    pub(crate) fn asking(service: Arc<dyn NameService>) -> Self {
        SystemNames {
            service,
            uids: Cache::default(),
            gids: Cache::default(),
            user_names: Cache::default(),
            groups: Cache::default(),
            again: RefCell::default(),
            messages: RefCell::default(),
            changes: Cell::default(),
        }
    }

    /// The number of a user or group; `None` if there is no such name.
    ///
    /// # Errors
    /// The name service does not answer, and did not find the name before.
    pub fn number(&self, book: Book, name: &str) -> Found<u32> {
        let question = || Question::Number(book, name.to_owned());
        self.numbers(book).get(name, || self.ask(&question(), || self.service.number(book, name)))
    }

    /// The name of a user; `None` if the number has none, or if the name service does not answer.
    pub fn user_name(&self, uid: u32) -> Option<String> {
        let ask = || self.service.user_name(uid).inspect_err(|e| self.complain(&format!("user {uid}"), *e));
        self.user_names.get(&uid, ask).ok().flatten()
    }

    /// The groups of a user, the primary one first; empty if the user is unknown, or if the name service does not answer.
    pub fn groups_of(&self, uid: u32) -> Vec<u32> {
        let ask = || self.ask(&Question::Groups(uid), || self.service.groups_of(uid));
        self.groups.get(&uid, ask).ok().flatten().unwrap_or_default()
    }

    /// Has every name looked up again when it is next needed: users may have changed since the last contract.
    pub fn forget(&self) {
        self.uids.age();
        self.gids.age();
        self.user_names.age();
        self.groups.age();
    }

    /// Takes the answers that arrived, and starts another lookup of unanswered names if one is due. Whether an answer can change
    /// memberships. Never blocks.
    pub(crate) fn look_again(&self, now: Time) -> bool {
        let before = self.changes.get();
        let mut again = self.again.borrow_mut();
        for answer in again.take() {
            self.accept(answer);
        }
        let unanswered = || self.unanswered();
        if let Err(e) = again.ask_if_due(now, &self.service, unanswered) {
            self.messages.borrow_mut().problems.push(format!(
                "cannot start a thread to look up unknown users and groups: {e}; retrying in a minute"
            ));
        }
        self.changes.get() != before
    }

    /// The number of answers that could change memberships, not counting [`SystemNames::forget`].
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Takes the messages since the last call.
    pub fn take_news(&self) -> LookupNews {
        self.messages.take()
    }

    fn numbers(&self, book: Book) -> &Cache<String, u32> {
        match book {
            Book::Passwd => &self.uids,
            Book::Group => &self.gids,
        }
    }

    fn ask<T>(&self, question: &Question, ask: impl FnOnce() -> Found<T>) -> Found<T> {
        ask().inspect_err(|e| self.complain(&question.to_string(), *e))
    }

    fn complain(&self, subject: &str, error: LookupError) {
        let problem = format!("cannot look up {subject}: {error}");
        let mut messages = self.messages.borrow_mut();
        // The messages may never be taken, and the same failure may occur for thousands of users.
        if messages.problems.len() < PROBLEMS_MAX && !messages.problems.contains(&problem) {
            messages.problems.push(problem);
        }
    }

    fn unanswered(&self) -> Vec<Question> {
        let users = self.uids.unanswered(|found| !matches!(found, Ok(Some(_))));
        let groups = self.gids.unanswered(|found| !matches!(found, Ok(Some(_))));
        // A user without an entry is not asked about until a reload: containers have thousands of them.
        let groups_of = self.groups.unanswered(Result::is_err);
        let users = users.into_iter().map(|name| Question::Number(Book::Passwd, name));
        let groups = groups.into_iter().map(|name| Question::Number(Book::Group, name));
        users.chain(groups).chain(groups_of.into_iter().map(Question::Groups)).collect()
    }

    /// Enters a late answer, unless a reload has had the question answered meanwhile.
    fn accept(&self, Answer { question, found }: Answer) {
        let is_new = match &question {
            Question::Number(book, name) => {
                let number = found.map(|found| found.and_then(|numbers| numbers.first().copied()));
                self.numbers(*book).answer(name, number)
            }
            Question::Groups(uid) => self.groups.answer(uid, found),
        };
        match (is_new, &question) {
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

/// The most problems that wait to be taken.
const PROBLEMS_MAX: usize = 20;

impl Names for SystemNames {
    fn uid(&self, name: &str) -> Option<u32> {
        self.number(Book::Passwd, name).ok().flatten()
    }

    fn gid(&self, name: &str) -> Option<u32> {
        self.number(Book::Group, name).ok().flatten()
    }
}

/// The names in the machine's local file of users or groups (its first MiB), as suggestions for a mistyped name. Other sources
/// of the name service are not asked: a directory server may take minutes to list its users.
pub fn local_names(root: &Path, book: Book) -> Vec<String> {
    // Only a hint: no names if the file cannot be read.
    let text = Tree::new(root).text(format!("/etc/{}", book.name())).unwrap_or_default();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect()
}

/// Answers by question.
#[derive(Debug)]
struct Cache<K, T>(RefCell<BTreeMap<K, Entry<T>>>);

#[derive(Debug)]
struct Entry<T> {
    found: Found<T>,
    /// False after [`Cache::age`]: look it up again before use.
    fresh: bool,
}

impl<K, T> Default for Cache<K, T> {
    fn default() -> Self {
        Cache(RefCell::default())
    }
}

impl<K: Ord + Clone, T: Clone> Cache<K, T> {
    fn get<Q>(&self, key: &Q, ask: impl FnOnce() -> Found<T>) -> Found<T>
    where
        K: Borrow<Q>,
        Q: Ord + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(entry) = self.0.borrow().get(key).filter(|entry| entry.fresh) {
            return entry.found.clone();
        }
        let answer = ask();
        let mut entries = self.0.borrow_mut();
        let known = entries.remove(key).filter(|entry| matches!(entry.found, Ok(Some(_))));
        let found = match (answer, known) {
            (Err(_), Some(known)) => known.found,
            (answer, _) => answer,
        };
        entries.insert(key.to_owned(), Entry { found: found.clone(), fresh: true });
        found
    }

    /// Marks all answers for another lookup. Negative ones are dropped, so that the cache does not grow from reload to reload.
    fn age(&self) {
        let mut entries = self.0.borrow_mut();
        entries.retain(|_, entry| matches!(entry.found, Ok(Some(_))));
        entries.values_mut().for_each(|entry| entry.fresh = false);
    }

    fn unanswered(&self, is_unanswered: impl Fn(&Found<T>) -> bool) -> Vec<K> {
        let entries = self.0.borrow();
        entries.iter().filter(|(_, entry)| is_unanswered(&entry.found)).map(|(key, _)| key.clone()).collect()
    }

    /// Enters a late answer. Whether a name that was unknown is known now. An answer to a question no longer in the cache is
    /// dropped.
    fn answer(&self, key: &K, found: Found<T>) -> Result<bool, LookupError> {
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
