//! Reports: contracts, decisions and accounts, as text, JSON and HTML.
//!
//! Pure: data in, text out. Nothing here opens a file, asks a kernel or reads a clock, so the same data give the same
//! bytes on any machine. Text is for terminals, 80 columns wide unless the [`Style`] says otherwise.
// Text is put together from pieces all over this crate; `write!` to a `String` would return results that mean nothing.
#![allow(clippy::format_push_string, clippy::format_collect)]

pub mod bus;
pub mod bus_capacity;
pub mod comparison;
pub mod cost_model;
pub mod currency;
mod disks;
pub mod doctor;
pub mod exchanges;
pub mod figures;
pub mod gangs;
pub mod holdings;
pub mod html;
mod jobs;
pub mod memory;
mod parts;
mod places;
pub mod plan;
pub mod present;
pub mod status;
pub mod svg;
pub mod switches;
pub mod table;
pub mod tickets;
pub mod tree;
pub mod words;

pub use table::{Style, is_foul};

/// The version of the JSON documents' shape. It rises when a field changes its meaning or goes away, not when one is
/// added.
pub const JSON_VERSION: u32 = 1;

/// A JSON document with its schema.
#[derive(serde::Serialize)]
struct Document<'a, T> {
    /// `commonhold.status`, `commonhold.plan` and so on.
    schema: &'a str,
    version: u32,
    #[serde(flatten)]
    content: T,
}

/// A JSON document named `schema`: pretty-printed, in the order of the fields, with a newline at the end.
pub fn json(schema: &str, content: impl serde::Serialize) -> String {
    let document = Document { schema, version: JSON_VERSION, content };
    let mut text =
        serde_json::to_string_pretty(&document).expect("plain data with string keys has a JSON form");
    text.push('\n');
    text
}
