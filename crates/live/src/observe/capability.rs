//! What this kernel and these privileges can enforce: everything `doctor` shows, and the typed answers that the daemon
//! needs to choose its backend.
//!
//! Looking changes nothing: files are read, and two perf counters are opened and closed. A file that cannot be read
//! counts as not there, with the reason in its row. Looking never fails.

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

/// Where in the cgroup v2 hierarchy a subtree of ours may be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupPlace {
    /// Where cgroup v2 is mounted.
    pub mount: PathBuf,
    /// The directory below which we may create our subtree: `mount` itself, or our own delegated cgroup.
    pub base: PathBuf,
    /// The controllers that `base` offers: the words of its `cgroup.controllers`.
    pub controllers: BTreeSet<String>,
    /// Whether `base` is not the root of the hierarchy, so that the rule against processes in inner cgroups holds
    /// for it too.
    pub delegated: bool,
}

impl CgroupPlace {
    /// The control group that was given to this program, as /proc shows its path; `None` where everything may be managed.
    pub fn delegated_path(&self) -> Option<String> {
        let path = self.base.strip_prefix(&self.mount).ok().filter(|_| self.delegated)?;
        Some(format!("/{}", path.display()))
    }
}

/// What a machine can enforce.
#[derive(Debug, Clone)]
pub struct Capabilities {
    /// The machine; none if its facts cannot be read, which a row then says.
    pub machine: Option<Machine>,
    /// All findings, by area in the order of [`Area::ALL`].
    pub rows: Vec<Row>,
    /// Where the `kernel` backend can hold CPU: where the `cgroup` backend can, if the kernel takes the scheduler. Otherwise
    /// the row that says why not.
    pub kernel: Result<CgroupPlace, Row>,
    /// Where the `cgroup` backend can hold CPU. It needs the cpu controller; without cpuset, which the place's
    /// controllers tell, there are weights and caps but no home CPUs. Otherwise the row that says why not.
    pub cgroup: Result<CgroupPlace, Row>,
    /// What the `user` backend can do for CPU: everything, or a part which the row states.
    pub user: Row,
    /// Whether the `user` backend can have memory paged out, so that it holds memory.
    pub user_memory: Row,
}

/// Looks at everything. `root` is `/`, or a folder that looks like it.
pub fn probe(root: &Path) -> Capabilities {
    let unwritten = Unwritten {
        counter: perf::counts_own(Event::MISSES),
        instructions: perf::counts_own(Event::INSTRUCTIONS),
        built_in: sched_ext::BUILT_IN,
        pages_out: page_out::is_offered(),
        moves_pages: jobs::kernel_moves_pages(),
    };
    probe_with(root, unwritten)
}

/// Whether the `user` backend can have memory paged out; a row with state no, and the reason, where it cannot.
pub fn paging_out(root: &Path) -> Row {
    memory::paging_out(&Context::read(root), page_out::is_offered())
}

/// Whether the `user` backend can hold other users' processes, too.
pub fn holds_other_users(root: &Path) -> bool {
    surroundings::holds_other_users(&Context::read(root))
}

/// That /proc hides other users' processes from this program, and what to do about it; `None` if it shows them.
pub fn hidden_processes(root: &Path) -> Option<Row> {
    surroundings::hidden_processes(&Context::read(root)).filter(|row| row.state != State::Yes)
}

/// Whether systemd manages this machine, which keeps every session and service in a control group of its own.
pub fn systemd_runs(root: &Path) -> bool {
    surroundings::systemd_runs(&Context::read(root))
}

/// Whether a scheduler is being unloaded whose program has ended: another one may be loaded in a moment.
pub fn scheduler_is_leaving(root: &Path) -> bool {
    let state = host::read_to_string(&root.join("sys/kernel/sched_ext/state"));
    state.is_ok_and(|state| state.trim() == sched_ext::LEAVING)
}

/// Whether pages can be moved at all: there is more than one node, and the kernel has the call.
pub fn moves_pages() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| topology::node_numbers().len() > 1 && jobs::kernel_moves_pages())
}

/// How the `user` backend holds disks; a row with state no, and the reason, where it cannot.
pub fn disks_by_user(root: &Path) -> Row {
    disk::by_user(&Context::read(root))
}

/// The file systems that are mounted from other machines, on whose disks nothing can be held from here, in words; `None`
/// where there are none.
pub fn file_systems_elsewhere(root: &Path) -> Option<String> {
    disk::outside_of_control(&Context::read(root))
}

/// Those of some cgroups, by their paths as /proc/PID/cgroup shows them, that this machine does not have now. Where it shows
/// no cgroups at all, nobody can tell, and none is said to be missing.
pub fn missing_cgroups<'p>(root: &Path, paths: &BTreeSet<&'p str>) -> BTreeSet<&'p str> {
    if paths.is_empty() {
        return BTreeSet::new();
    }
    let context = Context::read(root);
    paths.iter().copied().filter(|path| context.has_cgroup(Path::new(path)) == Some(false)).collect()
}

/// Facts that are in no file.
struct Unwritten {
    /// What opening a perf counter said.
    counter: io::Result<()>,
    /// The same of instructions.
    instructions: io::Result<()>,
    /// Whether the scheduler is built in.
    built_in: bool,
    /// Whether the kernel has the call to page out another process's memory.
    pages_out: bool,
    /// Whether the kernel has the call to move another process's memory between nodes.
    moves_pages: bool,
}

/// The same, given the facts that are in no file.
fn probe_with(root: &Path, unwritten: Unwritten) -> Capabilities {
    let Unwritten { counter, instructions, built_in, pages_out, moves_pages } = unwritten;
    let context = Context::read(root);
    let cgroup = Cgroup::probe(&context);
    let backend = cgroup.backend(&context);
    let kernel = sched_ext::backend(&context, &backend, built_in);
    let user = surroundings::user_backend(&context);
    let controller = |area, name| cgroup.controller(&context, area, name);

    let mut rows = cgroup.rows(&context);
    rows.extend([kernel.clone(), backend.clone(), user.clone()]);
    rows.extend([controller(Area::Cpu, "cpu"), controller(Area::Cpu, "cpuset")]);
    rows.push(resources::cpu(&context));
    rows.extend(sched_ext::rows(&context, built_in));
    let (memory, io) = (controller(Area::Memory, "memory"), controller(Area::Disk, "io"));
    rows.push(memory.clone());
    rows.extend(resources::memory(&context));
    rows.extend(memory::rows(&context, cgroup.typed(&context).as_ref()));
    let user_memory = memory::paging_out(&context, pages_out);
    rows.push(user_memory.clone());
    rows.push(io.clone());
    rows.extend(disk::rows(&context, &io, &memory));
    rows.extend(bus::rows(&context, counter));
    rows.extend(shared::rows(&context, instructions));
    rows.extend(surroundings::privileges(&context));
    rows.extend(surroundings::surroundings(&context));
    let machine = topology::read(root).map_err(|error| {
        rows.push(Row::no(Area::Surroundings, "facts of the machine", error.to_string()));
    });
    if let Ok(machine) = &machine {
        rows.push(bus::capacity(&context, machine));
        rows.extend(shared::machine_rows(machine));
        rows.push(surroundings::equal_capacity(machine));
        rows.extend(jobs::rows(&context, machine, moves_pages));
        rows.sort_by_key(|row| row.area);
    }

    let place = |row: &Row| cgroup.typed(&context).filter(|_| row.state != State::No);
    Capabilities {
        machine: machine.ok(),
        rows,
        kernel: place(&kernel).ok_or(kernel),
        cgroup: place(&backend).ok_or(backend),
        user,
        user_memory,
    }
}

impl Capabilities {
    /// Per resource what `run` takes on this machine, and why: of the enforcers that this version has, the best that
    /// works at least partly.
    pub fn enforcers(&self) -> Vec<Enforcer> {
        let memory = memory::enforcer(self.cgroup.as_ref(), &self.rows, &self.user_memory);
        vec![self.cpu_enforcer(), memory, self.disk_enforcer(), self.bus_enforcer()]
    }

    /// What `doctor` shows.
    pub fn findings(&self) -> Findings {
        Findings { machine: self.machine.clone(), enforcers: self.enforcers(), rows: self.rows.clone() }
    }

    /// The bus is held where the contract has gangs, and by the processor where that can slow units down.
    fn bus_enforcer(&self) -> Enforcer {
        let cap = self.rows.iter().find(|row| row.name == bus::CAP && row.state == State::Yes);
        let gangs = "jobs wait for a quantum, where the contract has `gangs` in [machine]";
        let (name, why) = match cap {
            Some(row) => ("processor", format!("{}; {gangs}", row.reason)),
            None => ("gangs", gangs.to_owned()),
        };
        Enforcer { resource: Area::Bus, name: Some(name.to_owned()), why }
    }

    /// Disks are held where control groups are, whatever holds CPU; without these by what the `user` backend can do.
    fn disk_enforcer(&self) -> Enforcer {
        let by_groups = self.disks_by_groups();
        let mut by_user = self.rows.iter().filter(|row| row.name == disk::BY_USER && row.state != State::No);
        match (&self.cgroup, by_user.next()) {
            (Err(_), Some(how)) => {
                let why = format!("{}; not cgroup: {}", how.reason, by_groups.why);
                Enforcer { name: Some("user".to_owned()), why, ..by_groups }
            }
            _ => by_groups,
        }
    }

    fn disks_by_groups(&self) -> Enforcer {
        let mut disks =
            self.rows.iter().filter(|row| row.area == Area::Disk && row.name.starts_with("disk "));
        let unheld = |why: String| Enforcer { resource: Area::Disk, name: None, why };
        match (&self.cgroup, disks.clone().find(|row| row.state != State::No), disks.next()) {
            // Without the io controller a cgroup backend would not help.
            (_, None, Some(row)) => unheld(row.reason.clone()),
            (Err(row), ..) => unheld(format!("no cgroup backend: {}", row.reason)),
            (Ok(_), Some(row), _) => {
                Enforcer { resource: Area::Disk, name: Some("cgroup".to_owned()), why: row.reason.clone() }
            }
            (Ok(_), None, None) => unheld("there is no disk in /sys/block".to_owned()),
        }
    }

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
