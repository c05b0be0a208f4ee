//! The contract: what each unit of a shared machine is promised.
//!
//! Text goes in; checked values or diagnostics come out. This crate opens no files, asks no kernel and reads no clock.
//! The policy crate decides whether a contract fits a machine. The machine at hand is asked whether its users exist.
//!
//! Entry points: [`parse()`] turns TOML into a [`Contract`], or into all of its [`Diagnostic`]s at once. [`render()`]
//! shows those to people. [`write()`] turns a contract into a text that says it. [`schema()`] tells editors what a contract may say, and [`reference()`] tells people.
//!
//! Code map, in the order of the flow:
//! - `syntax`, with `recover`: text to a tree of spanned values;
//! - `read`, with `quantity` and `member`: the tree to values, key by key;
//! - `check`: whether the values fit each other.
//!
//! `keys` is the one table of what a contract may say. [`document`] is the part of this that other languages of TOML
//! share.

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
mod nearest;
mod parse;
pub mod quantity;
mod read;
mod recover;
mod reference;
mod render;
mod schema;
mod syntax;
mod write;

pub use diagnostic::{Diagnostic, Level, Problem, position};
pub use each::{Given, Newcomer};
pub use jobs::{GANG_WINDOW_MAX, GangRules, Gangs, GangsShare, JobKind, POOL_CPUS_MAX, Placement, PoolForm};
pub use member::{MEMBER_FORMS, MEMBER_RULES, MemberForm};
pub use model::{
    Amount, Contract, CpuMode, DEFAULT_TICKETS, Deadline, Discipline, Each, Growth, MILLIONTH, MachineRules,
    Member, MemberKind, PerResource, Permission, Places, Principal, Promise, Resource, Scheme, Span, Unit,
    UnitId, Weighed, Whose,
};
pub use nearest::nearest;
pub use parse::{Parsed, parse};
pub use quantity::{amount_text, duration_text};
pub use reference::{ReferenceKey, ReferenceTable, reference, reference_tables};
pub use render::render;
pub use schema::schema;
pub use write::write;
