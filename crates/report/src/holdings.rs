//! The mechanism that holds each resource, or the reason why the resource is not held: a line for `check`,
//! `run`, `run --dry-run` and `status`, and JSON.

use commonhold_contract::Resource;
use commonhold_machine::capability::State;
use serde::{Deserialize, Serialize};

use crate::table::{Style, wrap, wrap_whole};

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

    /// [`Holding::line`], wrapped at `width`, if there is one. Further lines begin below the words.
    pub fn wrapped(&self, width: Option<usize>) -> String {
        let Some(width) = width else { return self.line() };
        wrap_whole(&self.how, width, &format!("{:<8}", self.resource), &" ".repeat(8)).join("\n")
    }

    /// A warning for users of the resource; `None` if it is held without any restriction.
    pub fn warning(&self) -> Option<String> {
        (self.held != State::Yes).then(|| format!("warning: {} is {}", self.resource, self.how))
    }
}

/// What `run` would report about a contract on this machine; empty for another machine.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Outlook<'a> {
    /// The holding of each resource.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub holdings: &'a [Holding],
    /// What cannot be kept, in sentences.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub cannot_keep: &'a [String],
    /// Further notes, in sentences.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub notes: &'a [&'a str],
}

/// Notes, as paragraphs.
pub fn notes(notes: &[&str], style: Style) -> String {
    notes.iter().map(|note| format!("\n{}\n", wrap(note, style.width, "", "").join("\n"))).collect()
}

/// A line for each holding, wrapped at `width`, if there is one.
pub fn text(holdings: &[Holding], width: Option<usize>) -> String {
    holdings.iter().map(|holding| holding.wrapped(width) + "\n").collect()
}

/// What cannot be kept here, as a paragraph with a heading, wrapped at `width`, if there is one; empty if
/// there is nothing to say.
pub fn cannot_be_kept(limits: &[String], width: Option<usize>) -> String {
    if limits.is_empty() {
        return String::new();
    }
    let line = |limit: &String| match width {
        Some(width) => wrap_whole(limit, width, "- ", "  ").join("\n"),
        None => format!("- {limit}"),
    };
    let lines: Vec<String> = limits.iter().map(line).collect();
    format!("Cannot be kept here:\n{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_below_their_words_and_only_on_terminals() {
        let cpu = Holding::held(Resource::Cpu, "by the user backend (as asked)");
        let all = [cpu];
        assert_eq!(text(&all, None), "cpu     held by the user backend (as asked)\n");
        assert_eq!(text(&all, Some(30)), "cpu     held by the user\n        backend (as asked)\n");
        let limits = ["One limit of several words.".to_owned(), "Another.".to_owned()];
        let said = "Cannot be kept here:\n- One limit of several words.\n- Another.\n";
        assert_eq!(cannot_be_kept(&limits, None), said);
        let narrow = "Cannot be kept here:\n- One limit of\n  several words.\n- Another.\n";
        assert_eq!(cannot_be_kept(&limits, Some(16)), narrow);
        assert_eq!(cannot_be_kept(&[], None), "");
    }
}
