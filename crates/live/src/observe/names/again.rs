//! Repeats unanswered lookups of users and groups once a minute, in a thread, since a directory server may
//! take long to answer.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use commonhold_policy::Time;

use super::nss::{Book, Found, NameService};

/// The pause between two rounds of lookups.
pub(crate) const PAUSE_NS: Time = 60_000_000_000;

/// A lookup to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    /// The number behind a name.
    Number(Book, String),
    /// The groups of a user.
    Groups(u32),
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Question::Number(book, name) => write!(f, "{book} `{name}`"),
            Question::Groups(uid) => write!(f, "the groups of user {uid}"),
        }
    }
}

/// The name service's answer to a question.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) question: Question,
    /// One number for a name, or the numbers of a user's groups.
    pub(super) found: Found<Vec<u32>>,
}

/// The lookup thread, while there is one, and the time of the next round of lookups.
#[derive(Debug, Default)]
pub(super) struct Retries {
    due: Option<Time>,
    /// The channel with the thread's answers, while a thread runs. The channel closes when the thread has
    /// asked all questions.
    answers: Option<Receiver<Answer>>,
}

impl Retries {
    /// Takes the answers that arrived since the last call.
    pub(super) fn take_answers(&mut self) -> Vec<Answer> {
        let Some(answers) = &self.answers else { return Vec::new() };
        let mut arrived = Vec::new();
        loop {
            match answers.try_recv() {
                Ok(answer) => arrived.push(answer),
                Err(mpsc::TryRecvError::Empty) => return arrived,
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.answers = None;
                    return arrived;
                }
            }
        }
    }

    /// Starts a thread that asks `questions`, if a round is due and no earlier thread is still waiting for
    /// its server.
    pub(super) fn ask_if_due(
        &mut self,
        now: Time,
        service: &Arc<dyn NameService>,
        questions: impl FnOnce() -> Vec<Question>,
    ) -> io::Result<()> {
        // Every name was looked up when first needed, so the first pause begins now.
        let due = *self.due.get_or_insert(now.saturating_add(PAUSE_NS));
        if now < due || self.answers.is_some() {
            return Ok(());
        }
        self.due = Some(now.saturating_add(PAUSE_NS));
        let questions = questions();
        if questions.is_empty() {
            return Ok(());
        }
        let (sender, answers) = mpsc::channel();
        let service = Arc::clone(service);
        // Never joined: the daemon must be able to end while a server does not answer.
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            for question in questions {
                let found = ask(service.as_ref(), &question);
                if sender.send(Answer { question, found }).is_err() {
                    return;
                }
            }
        })?;
        self.answers = Some(answers);
        Ok(())
    }
}

fn ask(service: &dyn NameService, question: &Question) -> Found<Vec<u32>> {
    match question {
        Question::Number(book, name) => Ok(service.number(*book, name)?.map(|number| vec![number])),
        Question::Groups(uid) => service.groups_of(*uid),
    }
}
