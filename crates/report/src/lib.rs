//! Reports of contracts, decisions and accounts, as text, JSON and HTML.
//!
//! Every function here is pure: it opens no file, asks no kernel and reads no clock, so the same data give
//! the same bytes on any machine. Text is laid out for terminals. Its width is 80 columns unless the
//! [`Style`] has another.
// Text is put together from pieces all over this crate; `write!` to a `String` would return results that mean
// nothing.
#![allow(clippy::format_push_string, clippy::format_collect)]

pub mod bus;
pub mod bus_capacity;
pub mod comparison;
pub mod cost_model;
pub mod csv;
pub mod currency;
mod disks;
pub mod doctor;
pub mod exchanges;
pub mod explain;
pub mod figures;
pub mod findings;
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
pub mod why;
pub mod words;

pub use table::{Style, is_foul};

/// The version of the JSON documents' format. It rises when a field is removed or changes its meaning, but
/// not when a field is added.
pub const JSON_VERSION: u32 = 1;

/// A JSON document with its schema.
#[derive(serde::Serialize)]
struct Document<'a, T> {
    /// The name of the format, such as `commonhold.status` or `commonhold.plan`.
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
