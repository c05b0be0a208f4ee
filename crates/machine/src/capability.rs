//! The findings of `doctor`: whether the machine, its kernel and this process's privileges suffice to hold a
//! contract.
//!
//! This module has only types. The live crate finds out the values, and the report crate shows them.

use std::fmt;

use crate::Machine;

/// The subject of a finding, in the order of display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// Control groups as such: version, place, delegation.
    Cgroup,
    /// CPU time.
    Cpu,
    /// Memory and swap.
    Memory,
    /// Disks.
    Disk,
    /// The memory bus.
    Bus,
    /// Privileges over other processes.
    Privileges,
    /// The environment: kernel, container, virtual machine.
    Surroundings,
}

impl Area {
    /// All areas, in order of display.
    pub const ALL: [Area; 7] =
        [Area::Cgroup, Area::Cpu, Area::Memory, Area::Disk, Area::Bus, Area::Privileges, Area::Surroundings];

    /// The area's name in sentences, tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Area::Cgroup => "cgroup",
            Area::Cpu => "cpu",
            Area::Memory => "memory",
            Area::Disk => "disk",
            Area::Bus => "bus",
            Area::Privileges => "privileges",
            Area::Surroundings => "surroundings",
        }
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Whether a capability exists and can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It exists and can be used.
    Yes,
    /// It can be used with a restriction, which the reason states.
    Partly,
    /// It does not exist, or may not be used.
    No,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Yes => "yes",
            State::Partly => "partly",
            State::No => "no",
        })
    }
}

/// One finding. Its name is phrased such that the state `yes` is good for holding a contract.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Row {
    /// The subject.
    pub area: Area,
    /// The capability: `cpuset controller`.
    pub name: String,
    /// Whether the capability exists and can be used.
    pub state: State,
    /// The evidence, and where it was found.
    pub reason: String,
    /// A command or setting that would change the answer, if any.
    pub remedy: Option<String>,
}

impl Row {
    /// A capability that can be used.
    pub fn yes(area: Area, name: impl Into<String>, reason: impl Into<String>) -> Row {
        Row { area, name: name.into(), state: State::Yes, reason: reason.into(), remedy: None }
    }

    /// A capability that can be used with a restriction.
    pub fn partly(area: Area, name: impl Into<String>, reason: impl Into<String>) -> Row {
        Row { state: State::Partly, ..Row::yes(area, name, reason) }
    }

    /// A capability that does not exist or may not be used.
    pub fn no(area: Area, name: impl Into<String>, reason: impl Into<String>) -> Row {
        Row { state: State::No, ..Row::yes(area, name, reason) }
    }

    /// This finding with a command or setting that would change the answer.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Row {
        Row { remedy: Some(remedy.into()), ..self }
    }
}

/// The mechanism that can hold one resource on this machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Enforcer {
    /// The resource: one of [`Area::Cpu`], [`Area::Memory`], [`Area::Disk`], [`Area::Bus`].
    pub resource: Area,
    /// The enforcer's name, as in `run --backend`; `None` if the resource has no enforcer.
    pub name: Option<String>,
    /// Why this enforcer was chosen, or why the resource has none.
    pub why: String,
}

/// All results of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Findings {
    /// The machine; `None` if its facts cannot be read. A row then says why.
    pub machine: Option<Machine>,
    /// For each resource, the enforcer that `run` would choose.
    pub enforcers: Vec<Enforcer>,
    /// All findings; within an area, in the order of display.
    pub rows: Vec<Row>,
}
