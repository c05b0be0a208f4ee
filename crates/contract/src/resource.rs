//! The shared resources, and amounts of them in a contract.

use std::fmt;
use std::ops::{Index, IndexMut};

/// One part in a million: the unit of [`Amount::Part`] (25 % is 250,000) and of CPU amounts (one CPU is
/// 1,000,000).
pub const MILLIONTH: u64 = 1_000_000;

/// The default number of tickets. For example, `tickets = 200` is twice the share of a sibling with the
/// default.
pub const DEFAULT_TICKETS: u64 = 100;

/// A shared resource. Every table of resources has them in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Processor time, in millionths of a CPU.
    Cpu,
    /// Memory, in bytes.
    Memory,
    /// Disk bandwidth, in bytes per second of each disk, or a part of it.
    Disk,
    /// Memory-bus bandwidth, in bytes per second, or a part of it.
    Bus,
}

impl Resource {
    /// Every resource, in the order of reports.
    pub const ALL: [Resource; 4] = [Resource::Cpu, Resource::Memory, Resource::Disk, Resource::Bus];

    /// The name that contracts and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
            Resource::Disk => "disk",
            Resource::Bus => "bus",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One value per resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PerResource<T> {
    /// Processor time.
    pub cpu: T,
    /// Memory.
    pub memory: T,
    /// Disk bandwidth.
    pub disk: T,
    /// Memory-bus bandwidth.
    pub bus: T,
}

impl<T> PerResource<T> {
    /// The same value for every resource.
    pub fn all(value: T) -> Self
    where
        T: Clone,
    {
        PerResource { cpu: value.clone(), memory: value.clone(), disk: value.clone(), bus: value }
    }

    /// The value, if all resources have the same one.
    pub fn single(&self) -> Option<&T>
    where
        T: PartialEq,
    {
        Some(&self.cpu).filter(|cpu| [&self.memory, &self.disk, &self.bus].iter().all(|other| other == cpu))
    }
}

impl<T> Index<Resource> for PerResource<T> {
    type Output = T;
    fn index(&self, resource: Resource) -> &T {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
            Resource::Disk => &self.disk,
            Resource::Bus => &self.bus,
        }
    }
}

impl<T> IndexMut<Resource> for PerResource<T> {
    fn index_mut(&mut self, resource: Resource) -> &mut T {
        match resource {
            Resource::Cpu => &mut self.cpu,
            Resource::Memory => &mut self.memory,
            Resource::Disk => &mut self.disk,
            Resource::Bus => &mut self.bus,
        }
    }
}

/// An amount of a resource: absolute, or a percentage of an amount that depends on the place in the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Amount {
    /// A percentage, in millionths, at most [`MILLIONTH`]. A reservation in percent is a part of the
    /// enclosing unit's entitlement; at the top level, of the machine.
    Part(u64),
    /// An absolute amount, in millionths of a CPU, in bytes of memory, or in bytes per second of a disk or of
    /// the bus.
    Absolute(u64),
}

impl Amount {
    /// The amount in the resource's unit of measure, rounded down. A percentage is taken of `whole`.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Amount::Part(millionths) => {
                let part = u128::from(whole) * u128::from(millionths) / u128::from(MILLIONTH);
                u64::try_from(part).unwrap_or(u64::MAX)
            }
            Amount::Absolute(amount) => amount,
        }
    }
}

/// Whether a unit may lend or borrow a resource, and how much at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Permission {
    /// The unit may not lend (or borrow) the resource.
    No,
    /// The unit may lend (or borrow) any amount.
    #[default]
    Yes,
    /// The unit may lend (or borrow) up to this amount. A percentage to lend is of the unit's entitlement. A
    /// percentage to borrow is of the same amount as a percentage in `limit`. Callers of [`Permission::most`]
    /// pass the amount of which a percentage is.
    AtMost(Amount),
}

impl Permission {
    /// Whether anything may be lent or borrowed. With an amount of zero, nothing may.
    pub fn allows(self) -> bool {
        !matches!(self, Permission::No | Permission::AtMost(Amount::Part(0) | Amount::Absolute(0)))
    }

    /// The most that may be lent or borrowed, in the resource's unit of measure, rounded down; [`u64::MAX`]
    /// if there is no such limit. A percentage is taken of `whole`.
    pub fn most(self, whole: u64) -> u64 {
        match self {
            Permission::No => 0,
            Permission::Yes => u64::MAX,
            Permission::AtMost(amount) => amount.of(whole),
        }
    }

    /// The amount, if the contract sets one.
    pub fn amount(self) -> Option<Amount> {
        match self {
            Permission::AtMost(amount) => Some(amount),
            Permission::No | Permission::Yes => None,
        }
    }

    /// Changes the amount, if the contract sets one.
    #[must_use]
    pub fn map(self, change: impl FnOnce(Amount) -> Amount) -> Permission {
        match self {
            Permission::AtMost(amount) => Permission::AtMost(change(amount)),
            Permission::No | Permission::Yes => self,
        }
    }
}

impl From<bool> for Permission {
    fn from(allowed: bool) -> Self {
        if allowed { Permission::Yes } else { Permission::No }
    }
}

/// Serialised as in a contract: `true`, `false`, or an amount.
impl serde::Serialize for Permission {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Permission::No => serializer.serialize_bool(false),
            Permission::Yes => serializer.serialize_bool(true),
            Permission::AtMost(amount) => amount.serialize(serializer),
        }
    }
}
