//! Orders for one control group of a unit that has several, in words.

use std::fmt;

use commonhold_contract::measure::{Bytes, CpuCount, Speed};
use commonhold_policy::GroupId;
use commonhold_policy::plan::PartOrder;

/// The control group that an order is for: a place, or the unit's own group.
struct At(Option<GroupId>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, "at place {}", place.0),
            None => f.write_str("in its own group"),
        }
    }
}

/// Writes an order for one of the control groups of the unit named `unit`.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, order: &PartOrder, unit: &str) -> fmt::Result {
    let at = At(order.at());
    write!(f, "{unit}, {at}: ")?;
    match order {
        PartOrder::Confine { cpus: Some(cpus), .. } => write!(f, "runs on cpus {cpus}"),
        PartOrder::Confine { cpus: None, .. } => f.write_str("runs on any cpu"),
        PartOrder::Weigh { weight, .. } => write!(f, "weight {weight}"),
        PartOrder::Cap { micro_cpus: Some(micro), .. } => write!(f, "at most {}", CpuCount(*micro)),
        PartOrder::Cap { micro_cpus: None, .. } => f.write_str("no cap"),
        PartOrder::Guarantee { min, low, .. } => {
            write!(f, "{} of memory are guaranteed, {} of these in any case", Bytes(*low), Bytes(*min))
        }
        PartOrder::Allow { bytes: Some(bytes), .. } => write!(f, "at most {} of memory", Bytes(*bytes)),
        PartOrder::Allow { bytes: None, .. } => f.write_str("no bound on memory"),
        PartOrder::Reclaim { bytes, .. } => write!(f, "gives up {} of memory", Bytes(*bytes)),
        PartOrder::Transfer { disk, read: None, write: None, .. } => write!(f, "no bound on disk {disk}"),
        PartOrder::Transfer { disk, read, write, .. } => {
            write!(f, "at most {} read, {} written on disk {disk}", Speed(*read), Speed(*write))
        }
    }
}
