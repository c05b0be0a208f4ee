//! What holds each resource, or why nothing does: lines for `run`, `run --dry-run` and `status`, and JSON.

use commonhold_contract::Resource;
use serde::{Deserialize, Serialize};

/// One resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// `cpu`, `memory`, `disk` or `bus`.
    pub resource: String,
    /// Whether it is held.
    pub held: bool,
    /// By what and how far; or why not, and what to do: a sentence that begins with `held` or `not held`.
    pub how: String,
}

impl Holding {
    /// A resource that is held, by what follows `held`.
    pub fn held(resource: Resource, by: &str) -> Holding {
        Holding { resource: resource.name().to_owned(), held: true, how: format!("held {by}") }
    }

    /// A resource that is not held, and what follows `not held`.
    pub fn not_held(resource: Resource, why: &str) -> Holding {
        Holding { resource: resource.name().to_owned(), held: false, how: format!("not held{why}") }
    }

    /// Its line: `memory  held by control groups`.
    pub fn line(&self) -> String {
        format!("{:<8}{}", self.resource, self.how)
    }
}
