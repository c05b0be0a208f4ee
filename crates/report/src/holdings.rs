//! What holds each resource, or why nothing does: lines for `check`, `run`, `run --dry-run` and `status`, and JSON.

use commonhold_contract::Resource;
use commonhold_machine::capability::State;
use serde::{Deserialize, Serialize};

use crate::table::{Style, wrap};

/// One resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// `cpu`, `memory`, `disk` or `bus`.
    pub resource: String,
    /// Whether it is held; *partly* if with a reservation, which `how` states.
    pub held: State,
    /// By which means and with which reservation; or why not, and the remedy: a sentence that begins with `held` or `not held`.
    pub how: String,
}

impl Holding {
    /// A resource that is held, by what follows `held`.
    pub fn held(resource: Resource, by: &str) -> Holding {
        Holding { resource: resource.name().to_owned(), held: State::Yes, how: format!("held {by}") }
    }

    /// A resource that is held with a reservation, and what follows `held`.
    pub fn partly(resource: Resource, by: &str) -> Holding {
        Holding { held: State::Partly, ..Holding::held(resource, by) }
    }

    /// A resource that is not held, and what follows `not held`.
    pub fn not_held(resource: Resource, why: &str) -> Holding {
        Holding { resource: resource.name().to_owned(), held: State::No, how: format!("not held{why}") }
    }

    /// Its line: `memory  held by control groups`.
    pub fn line(&self) -> String {
        format!("{:<8}{}", self.resource, self.how)
    }

    /// A note for a reader of this resource, unless it is held without reservation.
    pub fn warning(&self) -> Option<String> {
        (self.held != State::Yes).then(|| format!("warning: {} is {}", self.resource, self.how))
    }
}

/// Notes, as paragraphs.
pub fn notes(notes: &[&str], style: Style) -> String {
    notes.iter().map(|note| format!("\n{}\n", wrap(note, style.width, "", "").join("\n"))).collect()
}

/// The lines of all.
pub fn text(holdings: &[Holding]) -> String {
    holdings.iter().map(|holding| holding.line() + "\n").collect()
}
