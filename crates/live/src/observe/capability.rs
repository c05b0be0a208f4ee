//! What this kernel and these privileges can enforce: everything that `doctor` shows, and the values from
//! which the daemon chooses its backend.
//!
//! A finding is a *row*: a name, a state (yes, partly, no), the reason, and a remedy. Probing changes
//! nothing: it reads files, and opens and closes two perf counters. It never fails. A file that cannot be
//! read counts as missing, with the reason in the row.

mod bus;
mod cgroup;
mod context;
mod disk;
mod jobs;
mod memory;
mod resources;
mod sched_ext;
mod shared;
mod surroundings;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use commonhold_machine::Machine;
use commonhold_machine::capability::{Area, Enforcer, Findings, Row, State};

use self::cgroup::Cgroup;
use self::context::Context;
use super::topology;
use crate::host::perf::{self, Event};
use crate::host::{self, page_out};

pub(crate) use memory::means_at;
pub use sched_ext::BUILT_IN;
#[cfg(not(feature = "kernel"))]
pub(crate) use sched_ext::NOT_BUILT_IN;
pub(crate) use surroundings::GIVE_CAPABILITIES;

/// The part of the cgroup v2 hierarchy in which this program may make its subtree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupBase {
    /// Where cgroup v2 is mounted.
    pub mount: PathBuf,
    /// The directory below which the subtree may be made: `mount` itself, or this program's delegated cgroup.
    pub base: PathBuf,
    /// The controllers that `base` offers: the words of its `cgroup.controllers`.
    pub controllers: BTreeSet<String>,
    /// Whether `base` is a cgroup other than the root. Then it may not have both processes and child cgroups
    /// with controllers.
    pub delegated: bool,
}

impl CgroupBase {
    /// The control group delegated to this program, as /proc shows its path; `None` if it may manage the
    /// whole hierarchy.
    pub fn delegated_path(&self) -> Option<String> {
        let path = self.base.strip_prefix(&self.mount).ok().filter(|_| self.delegated)?;
        Some(format!("/{}", path.display()))
    }
}

/// The findings about what a machine can enforce.
#[derive(Debug, Clone)]
pub struct Capabilities {
    /// The machine; `None` if its facts cannot be read, with the reason in a row.
    pub machine: Option<Machine>,
    /// All findings, by area in the order of [`Area::ALL`].
    pub rows: Vec<Row>,
    /// The part of the cgroup hierarchy in which the `kernel` backend can hold CPU; otherwise the row with
    /// the reason. It is that of the `cgroup` backend, if the kernel accepts the scheduler.
    pub kernel: Result<CgroupBase, Row>,
    /// The part of the cgroup hierarchy in which the `cgroup` backend can hold CPU; otherwise the row with
    /// the reason. That takes the cpu controller. Without the cpuset controller, there are weights and caps
    /// but no home CPUs.
    pub cgroup: Result<CgroupBase, Row>,
    /// The row that says whether the `user` backend can hold CPU.
    pub user: Row,
    /// The row that says whether the `user` backend can hold memory, by having pages paged out.
    pub user_memory: Row,
}

/// Probes everything. `root` is `/`, or a folder that imitates it.
pub fn probe(root: &Path) -> Capabilities {
    let syscalls = Syscalls {
        counter: perf::counts_own(Event::MISSES),
        built_in: sched_ext::BUILT_IN,
        pages_out: page_out::is_offered(),
        moves_pages: jobs::kernel_moves_pages(),
    };
    probe_with(root, syscalls)
}

/// The row that says whether the `user` backend can hold memory, by having pages paged out.
pub fn paging_out(root: &Path) -> Row {
    memory::paging_out(&Context::read(root), page_out::is_offered())
}

/// Whether the `user` backend can hold other users' processes.
pub fn holds_other_users(root: &Path) -> bool {
    surroundings::holds_other_users(&Context::read(root))
}

/// The row that says that /proc hides other users' processes from this program, with the remedy; `None` if
/// /proc shows them.
pub fn hidden_processes(root: &Path) -> Option<Row> {
    surroundings::hidden_processes(&Context::read(root)).filter(|row| row.state != State::Yes)
}

/// Whether systemd manages this machine, with a control group for every session and service.
pub fn systemd_runs(root: &Path) -> bool {
    surroundings::systemd_runs(&Context::read(root))
}

/// Whether a `sched_ext` scheduler whose program has ended is being unloaded, so that another can be loaded
/// in a moment.
pub fn scheduler_is_leaving(root: &Path) -> bool {
    let state = host::read_to_string(&root.join("sys/kernel/sched_ext/state"));
    state.is_ok_and(|state| state.trim() == sched_ext::LEAVING)
}

/// Whether pages can be moved: the machine has more than one node, and the kernel has the system call.
pub fn moves_pages() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| topology::node_numbers().len() > 1 && jobs::kernel_moves_pages())
}

/// The row that says how the `user` backend holds disks, or that it cannot.
pub fn disks_by_user(root: &Path) -> Row {
    disk::by_user(&Context::read(root))
}

/// A message about file systems mounted from other machines, whose disks cannot be held from this machine;
/// `None` if no such file system is mounted.
pub fn file_systems_elsewhere(root: &Path) -> Option<String> {
    disk::outside_of_control(&Context::read(root))
}

/// The cgroups in `paths` that do not exist now, given as /proc/PID/cgroup shows them. Empty if the machine
/// shows no cgroup hierarchy, since existence is then unknown.
pub fn missing_cgroups<'p>(root: &Path, paths: &BTreeSet<&'p str>) -> BTreeSet<&'p str> {
    if paths.is_empty() {
        return BTreeSet::new();
    }
    let context = Context::read(root);
    paths.iter().copied().filter(|path| context.has_cgroup(Path::new(path)) == Some(false)).collect()
}

/// Facts that come from system calls and from the build, and not from files.
struct Syscalls {
    /// The result of opening a counter of cache misses.
    counter: io::Result<()>,
    /// Whether the scheduler is built in.
    built_in: bool,
    /// Whether the kernel can page out another process's memory.
    pages_out: bool,
    /// Whether the kernel can move another process's memory between nodes.
    moves_pages: bool,
}

/// [`probe`] with given results of system calls. Several rows are needed twice: as a finding, and as the
/// reason in the row of a backend that depends on them.
fn probe_with(root: &Path, syscalls: Syscalls) -> Capabilities {
    let Syscalls { counter, built_in, pages_out, moves_pages } = syscalls;
    let context = Context::read(root);
    let cgroup = Cgroup::probe(&context);
    let backend = cgroup.backend(&context);
    let kernel = sched_ext::backend(&context, &backend, built_in);
    let user = surroundings::user_backend(&context);
    let controller = |area, name| cgroup.controller(&context, area, name);

    // The order of rows within an area is that in which `doctor` shows them.
    let mut rows = cgroup.rows(&context);
    rows.extend([kernel.clone(), backend.clone(), user.clone()]);
    rows.extend([controller(Area::Cpu, "cpu"), controller(Area::Cpu, "cpuset")]);
    rows.push(resources::cpu(&context));
    rows.extend(sched_ext::rows(&context, built_in));
    let (memory, io) = (controller(Area::Memory, "memory"), controller(Area::Disk, "io"));
    rows.push(memory.clone());
    rows.extend(resources::memory(&context));
    rows.extend(memory::rows(&context, cgroup.base_for_backends(&context).as_ref()));
    let user_memory = memory::paging_out(&context, pages_out);
    rows.push(user_memory.clone());
    rows.push(io.clone());
    rows.extend(disk::rows(&context, &io, &memory));
    rows.extend(bus::rows(&context, counter));
    rows.push(shared::cache_use(&context));
    rows.extend(surroundings::privileges(&context));
    rows.extend(surroundings::surroundings(&context));
    let machine = topology::read(root).map_err(|error| {
        rows.push(Row::no(Area::Surroundings, "facts of the machine", error.to_string()));
    });
    // Rows that depend on the machine's facts come last; sorting by area, which is stable, puts each into its
    // area.
    if let Ok(machine) = &machine {
        rows.push(bus::capacity(&context, machine));
        rows.push(shared::cache_size(machine));
        rows.push(surroundings::equal_capacity(machine));
        rows.extend(jobs::rows(&context, machine, moves_pages));
        rows.sort_by_key(|row| row.area);
    }

    let base_if_usable = |row: &Row| cgroup.base_for_backends(&context).filter(|_| row.state != State::No);
    Capabilities {
        machine: machine.ok(),
        rows,
        kernel: base_if_usable(&kernel).ok_or(kernel),
        cgroup: base_if_usable(&backend).ok_or(backend),
        user,
        user_memory,
    }
}

impl Capabilities {
    /// The enforcer that `run` uses for each resource on this machine, and why: the best that works at least
    /// partly.
    pub fn enforcers(&self) -> Vec<Enforcer> {
        let memory = memory::enforcer(self.cgroup.as_ref(), &self.rows, &self.user_memory);
        vec![self.cpu_enforcer(), memory, self.disk_enforcer(), self.bus_enforcer()]
    }

    /// All findings, in the form that `doctor` shows.
    pub fn findings(&self) -> Findings {
        Findings { machine: self.machine.clone(), enforcers: self.enforcers(), rows: self.rows.clone() }
    }

    /// The memory bus is held by gangs if the contract has gangs, and by the processor if the processor can
    /// throttle units.
    fn bus_enforcer(&self) -> Enforcer {
        let cap = self.rows.iter().find(|row| row.name == bus::CAP && row.state == State::Yes);
        let gangs = "jobs wait for a quantum, where the contract has `gangs` in [machine]";
        let (name, why) = match cap {
            Some(row) => ("processor", format!("{}; {gangs}", row.reason)),
            None => ("gangs", gangs.to_owned()),
        };
        Enforcer { resource: Area::Bus, name: Some(name.to_owned()), why }
    }

    /// Disks are held by control groups if this program may make any, whichever backend holds CPU; else by
    /// the `user` backend.
    fn disk_enforcer(&self) -> Enforcer {
        let by_groups = self.disks_by_groups();
        let mut by_user = self.rows.iter().filter(|row| row.name == disk::BY_USER && row.state != State::No);
        match (&self.cgroup, by_user.next()) {
            (Err(_), Some(row)) => {
                let why = format!("{}; not cgroup: {}", row.reason, by_groups.why);
                Enforcer { name: Some("user".to_owned()), why, ..by_groups }
            }
            _ => by_groups,
        }
    }

    /// The enforcer of disks if control groups hold them; without a name if they cannot, with the reason.
    fn disks_by_groups(&self) -> Enforcer {
        let mut disks =
            self.rows.iter().filter(|row| row.area == Area::Disk && row.name.starts_with("disk "));
        let unheld = |why: String| Enforcer { resource: Area::Disk, name: None, why };
        match (&self.cgroup, disks.clone().find(|row| row.state != State::No), disks.next()) {
            // No disk can be held, such as without the io controller: then a cgroup backend would not help.
            (_, None, Some(row)) => unheld(row.reason.clone()),
            (Err(row), ..) => unheld(format!("no cgroup backend: {}", row.reason)),
            (Ok(_), Some(row), _) => {
                Enforcer { resource: Area::Disk, name: Some("cgroup".to_owned()), why: row.reason.clone() }
            }
            (Ok(_), None, None) => unheld("there is no disk in /sys/block".to_owned()),
        }
    }

    /// CPU is held by the `kernel` backend, else by the `cgroup` backend, else by the `user` backend, which
    /// always works in part.
    fn cpu_enforcer(&self) -> Enforcer {
        let reason = |name: &str| {
            let row = self.rows.iter().find(|row| row.area == Area::Cpu && row.name == name);
            row.map(|row| row.reason.clone()).unwrap_or_default()
        };
        let (name, why) = match (&self.kernel, &self.cgroup) {
            (Ok(_), _) => ("kernel", reason("kernel backend")),
            (Err(kernel), Ok(_)) => {
                ("cgroup", format!("{}; not kernel: {}", reason("cgroup backend"), kernel.reason))
            }
            (Err(_), Err(row)) => ("user", format!("{}; not cgroup: {}", self.user.reason, row.reason)),
        };
        Enforcer { resource: Area::Cpu, name: Some(name.to_owned()), why }
    }
}
