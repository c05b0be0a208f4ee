//! The contract: what each unit of a shared machine is promised.
//!
//! This crate converts a contract's text to checked values, or to diagnostics. It opens no files, asks no
//! kernel and reads no clock. The policy crate decides whether a contract fits a machine. The programs that
//! read contracts check whether its users exist.
//!
//! Entry points: [`parse()`] converts TOML to a [`Contract`], and reports all [`Diagnostic`]s at once.
//! [`render()`] shows diagnostics to people. [`write()`] serialises a contract. [`schema()`] describes the
//! language to editors, and [`reference()`] to people.
//!
//! The stages of parsing, in order:
//! - `syntax`, with `recover`, converts text to a tree of spanned values;
//! - `read`, with `quantity`, `member` and `name`, converts the tree to values, key by key;
//! - `check` checks whether the values are consistent with each other.
//!
//! `model` has the types of the values, with `resource` (amounts) and `jobs` (pools and gangs). `keys` is the
//! table of all keys of a contract. [`document`] is the part of the parser that other TOML languages of the
//! project share.

mod check;
mod diagnostic;
pub mod document;
mod each;
mod hints;
mod jobs;
mod keys;
pub mod measure;
mod member;
mod model;
mod name;
mod nearest;
mod parse;
pub mod quantity;
mod read;
mod recover;
mod reference;
mod render;
mod resource;
mod schema;
mod syntax;
mod write;

pub use diagnostic::{Diagnostic, Level, Problem, Span, position};
pub use each::Newcomer;
pub use jobs::{GANG_WINDOW_MAX, GangRules, Gangs, GangsShare, JobKind, POOL_CPUS_MAX, Placement, PoolForm};
pub use member::{MEMBER_FORMS, MEMBER_RULES, MemberForm};
pub use model::{
    Contract, CpuMode, Deadline, Discipline, Each, Given, Growth, MachineRules, Member, MemberKind, Places,
    Principal, Promise, Scheme, Unit, UnitId, Weighed, Whose,
};
pub use nearest::nearest;
pub use parse::{Parsed, parse};
pub use quantity::{amount_text, duration_text};
pub use reference::{ReferenceKey, ReferenceTable, reference, reference_tables};
pub use render::render;
pub use resource::{Amount, DEFAULT_TICKETS, MILLIONTH, PerResource, Permission, Resource};
pub use schema::schema;
pub use write::write;
