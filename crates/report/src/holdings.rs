//! The mechanism that holds each resource, or the reason why nothing holds it: lines for `check`, `run`, `run --dry-run` and
//! `status`, and JSON.

use commonhold_contract::Resource;
use commonhold_machine::capability::State;
use serde::{Deserialize, Serialize};

use crate::table::{Style, wrap};

/// How one resource is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// `cpu`, `memory`, `disk` or `bus`.
    pub resource: String,
    /// Whether the resource is held; *partly* if with a restriction, which `how` states.
    pub held: State,
    /// A sentence that begins with `held` or `not held`: the mechanism and its restriction, or the reason and the remedy.
    pub how: String,
}

impl Holding {
    /// A resource that is held. The text follows the word `held`.
    pub fn held(resource: Resource, by: &str) -> Holding {
        Holding { resource: resource.name().to_owned(), held: State::Yes, how: format!("held {by}") }
    }

    /// A resource that is held with a restriction. The text follows the word `held`.
    pub fn partly(resource: Resource, by: &str) -> Holding {
        Holding { held: State::Partly, ..Holding::held(resource, by) }
    }

    /// A resource that is not held. The text follows the words `not held`.
    pub fn not_held(resource: Resource, why: &str) -> Holding {
        Holding { resource: resource.name().to_owned(), held: State::No, how: format!("not held{why}") }
    }

    /// The resource's line: `memory  held by control groups`.
    pub fn line(&self) -> String {
        format!("{:<8}{}", self.resource, self.how)
    }

    /// A note for a reader of this resource's figures; `None` if the resource is held without restriction.
    pub fn warning(&self) -> Option<String> {
        (self.held != State::Yes).then(|| format!("warning: {} is {}", self.resource, self.how))
    }
}

/// Notes as paragraphs.
pub fn notes(notes: &[&str], style: Style) -> String {
    notes.iter().map(|note| format!("\n{}\n", wrap(note, style.width, "", "").join("\n"))).collect()
}

/// The lines of all resources.
pub fn text(holdings: &[Holding]) -> String {
    holdings.iter().map(|holding| holding.line() + "\n").collect()
}
