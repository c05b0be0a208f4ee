//! A cache of answers to clients. It has the answers that are the same for every client until the control
//! loop's next turn.

use std::collections::BTreeMap;
use std::rc::Rc;

use commonhold_client::wire::Call;
use commonhold_policy::Time;

/// The longest time for which an answer is reused. It is short, since some answers contain counters of the
/// kernel, which change between turns, too.
const AGE_MAX_NS: Time = 100_000_000;
/// The most answers kept at one time.
const KEPT_MAX: usize = 32;

/// Encoded answers, by request.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The time at which each answer was computed, and its message.
    computed: BTreeMap<String, (Time, Rc<[u8]>)>,
}

impl Answers {
    /// The cache key of a request whose answer depends only on the session's state and on whether the caller
    /// may see all processes; `None` for any other request.
    pub(super) fn key(call: &Call, sees_all: bool) -> Option<String> {
        match call {
            Call::Status { .. }
            | Call::Tickets {}
            | Call::Currency { .. }
            | Call::AsContract {}
            | Call::Offers {} => serde_json::to_string(&(call, sees_all)).ok(),
            // `Monitor` has a cache of its own, and the last two are cheap.
            Call::Monitor { .. }
            | Call::Where { .. }
            | Call::Members { .. }
            | Call::Enter { .. }
            | Call::Change(_)
            | Call::Join {}
            | Call::Await { .. }
            | Call::GetInfo {}
            | Call::GetInterfaceDescription { .. } => None,
        }
    }

    /// The cached answer to a request, unless it is stale.
    pub(super) fn get(&self, key: &str, now: Time) -> Option<Rc<[u8]>> {
        let (computed_at, message) = self.computed.get(key)?;
        (now.saturating_sub(*computed_at) < AGE_MAX_NS).then(|| message.clone())
    }

    /// Adds an answer. If the cache is full, all older answers are dropped first.
    pub(super) fn keep(&mut self, key: String, message: &Rc<[u8]>, now: Time) {
        if self.computed.len() >= KEPT_MAX {
            self.computed.clear();
        }
        self.computed.insert(key, (now, message.clone()));
    }

    /// Drops all answers, since the session's state has changed or was sampled again.
    pub(super) fn forget(&mut self) {
        self.computed.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_shared_until_it_is_old_or_something_changed() {
        let mut answers = Answers::default();
        let key = Answers::key(&Call::Status { by_cpu: false }, true).unwrap();
        assert_ne!(Some(&key), Answers::key(&Call::Status { by_cpu: true }, true).as_ref());
        assert_ne!(Some(&key), Answers::key(&Call::Status { by_cpu: false }, false).as_ref());
        assert_eq!(Answers::key(&Call::Where { pid: 1 }, true), None);
        answers.keep(key.clone(), &Rc::from(*b"x\0"), 5);
        assert_eq!(answers.get(&key, 5 + AGE_MAX_NS - 1).as_deref(), Some(&b"x\0"[..]));
        assert_eq!(answers.get(&key, 5 + AGE_MAX_NS), None);
        answers.forget();
        assert_eq!(answers.get(&key, 5), None);
        for unit in 0..1_000 {
            answers.keep(unit.to_string(), &Rc::from(*b"y\0"), 5);
        }
        assert!(answers.computed.len() <= KEPT_MAX);
    }
}
