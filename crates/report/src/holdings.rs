//! The mechanism that holds each resource, or the reason why the resource is not held: a line for `check`,
//! `run`, `run --dry-run` and `status`, and JSON.

use commonhold_contract::Resource;
use commonhold_machine::capability::State;
use serde::{Deserialize, Serialize};

use crate::table::{Style, wrap};

/// How a resource is held, or why it is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The resource: `cpu`, `memory`, `disk` or `bus`; or `jobs` or `gangs`, which are listed with them.
    pub resource: String,
    /// Whether the resource is held. *Partly*: with a restriction, which `how` states.
    pub held: State,
    /// A sentence that begins with `held` or `not held`. It gives the means and any restriction, or the
    /// reason and the remedy.
    pub how: String,
}

impl Holding {
    /// A resource that is held; `by` is the text after `held`.
    pub fn held(resource: Resource, by: &str) -> Holding {
        Holding { resource: resource.name().to_owned(), held: State::Yes, how: format!("held {by}") }
    }

    /// A resource that is held with a restriction; `by` is the text after `held`.
    pub fn partly(resource: Resource, by: &str) -> Holding {
        Holding { held: State::Partly, ..Holding::held(resource, by) }
    }

    /// A resource that is not held; `why` is the text after `not held`.
    pub fn not_held(resource: Resource, why: &str) -> Holding {
        Holding { resource: resource.name().to_owned(), held: State::No, how: format!("not held{why}") }
    }

    /// The resource's line: `memory  held by control groups`.
    pub fn line(&self) -> String {
        format!("{:<8}{}", self.resource, self.how)
    }

    /// A warning for users of the resource; `None` if it is held without any restriction.
    pub fn warning(&self) -> Option<String> {
        (self.held != State::Yes).then(|| format!("warning: {} is {}", self.resource, self.how))
    }
}

/// Notes, as paragraphs.
pub fn notes(notes: &[&str], style: Style) -> String {
    notes.iter().map(|note| format!("\n{}\n", wrap(note, style.width, "", "").join("\n"))).collect()
}

/// A line for each holding.
pub fn text(holdings: &[Holding]) -> String {
    holdings.iter().map(|holding| holding.line() + "\n").collect()
}
