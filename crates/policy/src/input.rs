//! Everything that a step reads.

use commonhold_contract::Contract;
use commonhold_machine::Machine;

use crate::rights::Change;
use crate::snapshot::{Means, Snapshot};

/// Everything that a step reads.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The contract.
    pub contract: &'a Contract,
    /// The machine as it is now.
    pub machine: &'a Machine,
    /// What the backend can enforce.
    pub means: Means,
    /// What the backend saw.
    pub snapshot: &'a Snapshot,
    /// Changes of rights since the step before, in order.
    pub changes: &'a [Change],
}
