//! The contract: what each unit of a shared machine is promised.
//!
//! Text in, checked values or diagnostics out. This crate opens no files, asks no kernel and reads no clock; whether a
//! contract fits a machine is decided by the policy crate, whether its users exist is asked of the machine at hand.
//!
//! Entry points: [`parse`] turns TOML into a [`Contract`] or into all of its [`Diagnostic`]s at once.

mod model;

pub use model::{
    Amount, Contract, CpuMode, Each, MachineRules, Member, MemberKind, PerResource, Principal, Resource, Scheme, Span,
    Unit, UnitId, DEFAULT_TICKETS, MILLIONTH,
};
