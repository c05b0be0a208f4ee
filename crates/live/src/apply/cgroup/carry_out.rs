//! Carries out a plan: routes each order to the part of the backend that writes it. Failures do not stop
//! further orders.

use std::collections::BTreeSet;
use std::path::Path;

use commonhold_contract::UnitId;
use commonhold_policy::plan::{BusOrder, CpuOrder, DiskOrder, MemoryOrder, PartOrder};
use commonhold_policy::{Plan, Step};

use super::CgroupBackend;
use super::disk::Disks;
use crate::LiveError;
use crate::host::clock;
use crate::live_backend::cannot;

impl CgroupBackend {
    /// [`Backend::apply`](crate::Backend::apply).
    pub(super) fn carry_out(&mut self, plan: &Plan) -> Vec<LiveError> {
        let mut problems: Vec<LiveError> =
            plan.orders.cpu.iter().flat_map(|step| self.order_cpus(&step.action)).collect();
        self.order_seats(&plan.orders.seats);
        if !plan.orders.gangs.is_empty() {
            self.seats.gate(&plan.orders.gangs, clock::now().max(self.now), &self.roster);
            problems.extend(self.enforce_gangs().err());
        }
        let reclaimed_unit = |step: &Step<PartOrder>| {
            matches!(step.action, PartOrder::Reclaim { .. }).then(|| step.action.unit())
        };
        let reclaimed_by_group: BTreeSet<UnitId> =
            plan.orders.parts.iter().filter_map(reclaimed_unit).collect();
        for step in &plan.orders.memory {
            // A unit with foreign groups has a reclaim order for each of its groups instead.
            let is_reclaim = matches!(step.action, MemoryOrder::Reclaim { .. });
            if !(is_reclaim && reclaimed_by_group.contains(&step.action.unit())) {
                problems.extend(self.order_memory(&step.action));
            }
        }
        problems.extend(plan.orders.disk.iter().flat_map(|step| self.order_disk(&step.action)));
        problems.extend(plan.orders.parts.iter().flat_map(|step| self.order_part(&step.action)));
        for step in &plan.orders.bus {
            let BusOrder::Throttle { unit, percent } = step.action;
            problems.extend(self.bus.order(unit, percent, &mut self.roster, &mut self.journal).err());
        }
        if let Some(memory) = &plan.decisions.memory {
            self.exposure.record_exceeding(&self.contract, memory);
        }
        let expose = |step: &Step<MemoryOrder>| matches!(step.action, MemoryOrder::Expose { .. });
        let exposes = plan.orders.memory.iter().any(expose);
        if exposes || plan.decisions.memory.is_some() || self.exposure.is_ending() {
            problems.extend(self.exposure.follow(&mut self.roster, &mut self.journal));
        }
        if let Some(memory) = &mut self.memory {
            memory.follow_plan(plan.decisions.memory.as_ref());
        }
        self.without_ended_groups(problems)
    }

    /// Carries out an order for one of a unit's control groups.
    fn order_part(&mut self, order: &PartOrder) -> Vec<LiveError> {
        let CgroupBackend { foreign, disks, journal, memory, .. } = self;
        match *order {
            _ if order.at().is_some() => foreign.carry_out(order, memory.as_mut(), disks, journal),
            PartOrder::Cap { unit, micro_cpus, .. } => self.order_cpus(&CpuOrder::Cap { unit, micro_cpus }),
            PartOrder::Guarantee { unit, min, low, own, .. } => {
                self.order_memory(&MemoryOrder::Guarantee { unit, min, low, own })
            }
            PartOrder::Allow { unit, bytes, .. } => self.order_memory(&MemoryOrder::Allow { unit, bytes }),
            PartOrder::Reclaim { unit, bytes, files, .. } => {
                self.order_memory(&MemoryOrder::Reclaim { unit, bytes, files })
            }
            PartOrder::Transfer { unit, ref disk, read, write, .. } => {
                self.order_disk(&DiskOrder::Cap { unit, disk: disk.clone(), read, write })
            }
            // A unit's own cgroup gets its weight and CPUs by [`CpuOrder`].
            PartOrder::Confine { .. } | PartOrder::Weigh { .. } => Vec::new(),
        }
    }

    /// Carries out an order for CPUs.
    fn order_cpus(&mut self, order: &CpuOrder) -> Vec<LiveError> {
        let unit = order.unit();
        let controller = match order {
            CpuOrder::Confine { .. } => Some("cpuset"),
            CpuOrder::Weigh { .. } | CpuOrder::Cap { .. } => Some("cpu"),
            CpuOrder::Gate { .. } => None,
            // For the scheduler of the backend above.
            CpuOrder::Credit { .. } => return Vec::new(),
        };
        if let Err(error) = self.ensure_enforceable(unit, controller) {
            return vec![error];
        }
        match order {
            CpuOrder::Confine { cpus, .. } => {
                match cpus {
                    Some(cpus) => self.confined.insert(unit, cpus.clone()),
                    None => self.confined.remove(&unit),
                };
                self.groups.confine(unit, cpus.as_ref())
            }
            CpuOrder::Weigh { weight, .. } => self.groups.weigh(unit, *weight),
            CpuOrder::Cap { micro_cpus, .. } => self.groups.cap(unit, *micro_cpus),
            CpuOrder::Credit { .. } => Vec::new(),
            CpuOrder::Gate { open, .. } => {
                let mut problems: Vec<LiveError> = Vec::new();
                if !open {
                    self.journal.beats().watch();
                    problems.extend(self.remember(unit).err());
                }
                problems.extend(self.groups.gate(unit, *open, self.now));
                problems
            }
        }
    }

    /// Carries out an order for memory.
    fn order_memory(&mut self, order: &MemoryOrder) -> Vec<LiveError> {
        let unit = order.unit();
        if let Err(error) = self.ensure_enforceable(unit, Some("memory")) {
            return vec![error];
        }
        if let MemoryOrder::Expose { exposed, .. } = order {
            self.exposure.order(unit, *exposed);
            return Vec::new();
        }
        let memory = self.memory.as_mut();
        memory.map_or_else(Vec::new, |memory| memory.carry_out(order, &mut self.journal))
    }

    /// Carries out an order for a disk.
    fn order_disk(&mut self, order: &DiskOrder) -> Vec<LiveError> {
        let unit = order.unit();
        if let Err(error) = self.ensure_enforceable(unit, Some("io")) {
            return vec![error];
        }
        match order {
            DiskOrder::Weigh { disk, weight, .. } => {
                self.on_directory(unit, |disks, dir| disks.weigh(dir, disk, *weight))
            }
            DiskOrder::Cap { disk, read, write, .. } => {
                self.on_directory(unit, |disks, dir| disks.cap(dir, disk, *read, *write))
            }
            DiskOrder::Share { disk, .. } => vec![cannot(&format!("schedule disk {disk} by shares"))],
            DiskOrder::Stop { .. } => vec![cannot("stop a unit for its disks")],
        }
    }

    /// Carries out a disk order on a unit's cgroup.
    fn on_directory(
        &mut self,
        unit: UnitId,
        order: impl Fn(&mut Disks, &Path) -> Result<(), LiveError>,
    ) -> Vec<LiveError> {
        self.groups.dir(unit).and_then(|dir| order(&mut self.disks, dir).err()).into_iter().collect()
    }

    /// Fails if the unit has no cgroup, or the order's controller is missing. To ignore such an order would
    /// leave the contract unenforced without notice.
    fn ensure_enforceable(&self, unit: UnitId, controller: Option<&str>) -> Result<(), LiveError> {
        if self.groups.leaf(unit).is_none() {
            return Err(LiveError::Unavailable {
                what: format!(
                    "unit number {} has no cgroup: it is a built-in unit, or not in this contract",
                    unit.0
                ),
                remedy: "give the backend the contract that the plan was made for".to_owned(),
            });
        }
        match controller.filter(|name| !self.groups.tree().has(name)) {
            None => Ok(()),
            Some(name) => Err(LiveError::Unavailable {
                what: format!(
                    "the {name} controller is not available in {}",
                    self.groups.tree().top.display()
                ),
                remedy: "see `commonhold doctor` for what it needs".to_owned(),
            }),
        }
    }
}
