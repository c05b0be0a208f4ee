//! The inputs of one step of the policy, gathered in one value that is passed to every resource.

use commonhold_contract::Contract;
use commonhold_machine::Machine;

use crate::rights::Change;
use crate::snapshot::{Means, Snapshot};

/// The inputs of one step of the policy.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The contract.
    pub contract: &'a Contract,
    /// The machine's present topology.
    pub machine: &'a Machine,
    /// What the backend can enforce.
    pub means: Means,
    /// What the backend observed.
    pub snapshot: &'a Snapshot,
    /// The changes of rights queued since the last step, oldest first
    /// ([`rights::Change`](crate::rights::Change)).
    pub changes: &'a [Change],
}
