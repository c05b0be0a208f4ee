//! The scheduler in the running kernel, through `sched_ext`.
//!
//! When the program is loaded, the kernel's verifier checks it, and its tables are created. From
//! [`Scheduler::attach`] on, the program schedules every task of the machine except real-time ones. It ends
//! when the [`Scheduler`] is dropped, when the process ends for any reason, or when the kernel's watchdog
//! ejects it because a task waited too long. Then the kernel's own scheduler takes over, and
//! [`Scheduler::ended`] returns the reason. No task is lost in any of these cases.
//!
//! Control groups determine the unit of a task: [`Scheduler::admit`]. A control group must have the `cpu`
//! controller. Without that, the kernel counts its tasks to the nearest ancestor that has the controller.
//! Tasks in no unit's group belong to unit 1, and the kernel's own threads to unit [`KERNEL`](crate::KERNEL).
//!
//! A unit without home CPUs runs on time-shared CPUs, or by borrowing. Without either, its tasks wait until
//! the watchdog ends the scheduler. So leave unit 1 one of the two, or admit its group to unit `KERNEL`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, OpenMapMut, PrintLevel, ProgramInput};

use crate::matches::{self, Lists, Match};
use crate::simulated_kernel::Settings;
use crate::tables::kernel::EndTable;
use crate::tables::{
    Account, CPUS_MAX, Cpu, GANGS_MAX, Joined, LATENCIES, NOBODY, Near, Owned, Pairs, Put, Rules, Seated,
    Setting, Turned, UNITS_MAX, Unit,
};
use crate::unit_rules::UnitRules;
use crate::waits::take_pairs;

/// Compiled by build.rs.
static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dispatch.bpf.o"));

/// The names of the tables of callbacks in the program: for kernels since 7.1, and for older ones, which
/// support fewer flags.
const CALLBACKS: &str = "commonhold";
const CALLBACKS_BEFORE_7_1: &str = "commonhold_before_7_1";
const CALLBACKS_BEFORE_6_14: &str = "commonhold_before_6_14";
const TABLES: [&str; 3] = [CALLBACKS, CALLBACKS_BEFORE_7_1, CALLBACKS_BEFORE_6_14];

/// The section with a constant: whether units may have disciplines other than stride. If not, the verifier
/// removes the code of the other disciplines.
const DISCIPLINED: &str = ".rodata.disciplined";
/// The section with a constant: whether tasks may have seats. If not, the verifier removes the code for
/// seats.
const SEATED: &str = ".rodata.seated";
/// The section with a constant: whether tasks may be in gangs. If not, the verifier removes the code for
/// gangs.
const GATED: &str = ".rodata.gated";
/// The section with the table of gates: which gangs are shut.
const GATES: &str = ".data.gates";

/// A kernel function that exists since 7.1.
const SINCE_7_1: &str = "scx_bpf_dsq_move_to_local___v2";

/// The tables of callbacks to try in the running kernel, in this order.
fn callbacks_to_try() -> &'static [&'static str] {
    let since_7_1 =
        Btf::from_vmlinux().is_ok_and(|kernel| kernel.type_by_name::<Func<'_>>(SINCE_7_1).is_some());
    if since_7_1 { &TABLES[..1] } else { &TABLES[1..] }
}

/// How many lines of the output of libbpf and the verifier an error repeats: the last ones, since the cause
/// comes last.
const LOG_LINES: usize = 40;

/// An error in loading or using the scheduler.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More units or CPUs than the tables have room for.
    #[error("{number} {what}, but this build supports at most {room}")]
    TooMany {
        /// Units or CPUs.
        what: &'static str,
        /// The number requested.
        number: u32,
        /// The maximum number.
        room: u32,
    },
    /// The kernel rejects the program.
    #[error(
        "the kernel does not load the scheduler: {source:#}{log}\nIt needs Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT \
         and CONFIG_DEBUG_INFO_BTF, and CAP_SYS_ADMIN"
    )]
    Load {
        /// libbpf's error.
        source: libbpf_rs::Error,
        /// The last lines of the output of libbpf and the verifier.
        log: String,
    },
    /// The program is loaded, but cannot be attached as the scheduler.
    #[error("the kernel does not start the scheduler: {source:#}{log}{}", hint_of_loaded(loaded.as_deref()))]
    Attach {
        /// libbpf's error.
        source: libbpf_rs::Error,
        /// The last lines of libbpf's output.
        log: String,
        /// The scheduler that is already loaded, if any.
        loaded: Option<String>,
    },
    /// An operation on one of the loaded tables or programs failed.
    #[error("{what}: {source:#}")]
    Use {
        /// The operation.
        what: String,
        /// Why it failed.
        source: libbpf_rs::Error,
    },
    /// A table could not be mapped into memory.
    #[error("the scheduler's table {table} cannot be mapped: {source}")]
    Map {
        /// The table's name.
        table: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The compiled program lacks this map or program: a broken build.
    #[error("the scheduler as it was compiled has no {0}: build it again")]
    Part(&'static str),
}

/// Why the kernel ended the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The kernel's enum `scx_exit_kind`: from 64 on for an orderly exit, from 1,024 on for an error.
    pub kind: i32,
    /// For an orderly exit, the kernel's `SCX_ECODE_*`; otherwise 0.
    pub code: i64,
    /// The kernel's reason.
    pub reason: String,
    /// Details, or empty.
    pub message: String,
}

/// The kernel's `SCX_ECODE_ACT_RESTART`.
const RESTART: i64 = 1 << 48;

impl End {
    /// Whether the kernel requests a restart: a CPU came online or went offline.
    pub fn asks_for_restart(&self) -> bool {
        self.code & RESTART != 0
    }
}

/// The scheduler, loaded into the kernel.
pub struct Scheduler {
    // Fields are dropped in this order: first the program stops scheduling, then its tables are freed.
    links: Vec<Link>,
    units: Table<Unit>,
    accounts: Table<Account>,
    cpus: Table<Cpu>,
    pairs: Table<Pairs>,
    rules: Table<Rules>,
    matches: Table<Match>,
    /// Whether the lists in force are in the second half of `matches`.
    second_half: bool,
    gates: Table<[u32; GANGS_MAX as usize]>,
    end: Table<EndTable>,
    counts: Counts,
    /// The tables of callbacks that the kernel may accept.
    callbacks: &'static [&'static str],
    object: Object,
}

/// The argument of a program that changes the tables.
///
/// # Safety
/// The type consists of integers, without padding.
unsafe trait Argument: Copy {}
// SAFETY: the struct has only fields of four bytes, which are integers.
unsafe impl Argument for Owned {}
// SAFETY: likewise.
unsafe impl Argument for Joined {}
// SAFETY: likewise.
unsafe impl Argument for Put {}
// SAFETY: likewise.
unsafe impl Argument for Turned {}
// SAFETY: likewise.
unsafe impl Argument for Seated {}
// SAFETY: likewise.
unsafe impl Argument for Setting {}

/// The sizes of the tables.
#[derive(Debug, Clone, Copy)]
struct Counts {
    units: u32,
    cpus: u32,
}

impl Scheduler {
    /// Loads the program without attaching it. Units have no flags, and CPUs no owners.
    pub fn load(settings: &Settings) -> Result<Self, Error> {
        Self::load_with(settings, None)
    }

    /// As [`Scheduler::load`], with another timeout of the kernel's watchdog. The watchdog ends the scheduler
    /// when a task has waited for the timeout. The default, 30 s, is the longest timeout that the kernel
    /// allows. Tests use shorter ones to see the watchdog act.
    pub fn load_impatient(settings: &Settings, timeout_ms: u32) -> Result<Self, Error> {
        Self::load_with(settings, Some(timeout_ms))
    }

    fn load_with(settings: &Settings, timeout_ms: Option<u32>) -> Result<Self, Error> {
        fits("units", settings.units, UNITS_MAX)?;
        fits("CPUs", settings.cpus, CPUS_MAX)?;
        let counts = Counts { units: settings.units, cpus: settings.cpus };
        let callbacks = callbacks_to_try();
        let object = logged(|| load(counts, timeout_ms, settings, callbacks))
            .map_err(|(source, log)| Error::Load { source, log })?;
        let units: Table<Unit> = Table::map(&object, "units", UNITS_MAX as usize)?;
        let accounts = Table::map(&object, "accounts", counts.accounts())?;
        let cpus: Table<Cpu> = Table::map(&object, "cpus", CPUS_MAX as usize)?;
        let pairs = Table::map(&object, "pairs", counts.cpus as usize)?;
        let matches = Table::map(&object, "matches", matches::ENTRIES)?;
        let end = Table::map(&object, ".data.end", 1)?;
        let gates = Table::map(&object, GATES, 1)?;
        let rules: Table<Rules> = Table::map(&object, ".data.rules", 1)?;
        let &Settings { cpus: cpu_count, units: unit_count, slice_ns, preempt_ns, ref near, recall, .. } =
            settings;
        let initial_rules = Rules {
            slice_ns,
            preempt_ns,
            units: unit_count,
            cpus: cpu_count,
            recall: recall as u32,
            pairs_half: 0,
        };
        // SAFETY: elements of the tables, which nothing reads before the scheduler is attached.
        unsafe {
            rules.at(0).write_volatile(initial_rules);
            for unit in 0..unit_count {
                units.at(unit as usize).write_volatile(Unit::with_slices(unit, slice_ns));
            }
            for cpu in 0..cpu_count as usize {
                let near =
                    near.get(cpu).copied().unwrap_or(Near { cache: NOBODY, node: NOBODY, socket: NOBODY });
                cpus.at(cpu).write_volatile(Cpu::new(near));
            }
        }
        Ok(Scheduler {
            links: Vec::new(),
            units,
            accounts,
            cpus,
            pairs,
            rules,
            matches,
            second_half: false,
            gates,
            end,
            counts,
            callbacks,
            object,
        })
    }

    /// Attaches the program as the kernel's scheduler. CPUs are time-shared until they get owners.
    pub fn attach(&mut self) -> Result<(), Error> {
        let mut attached = Err((libbpf_rs::Error::from_raw_os_error(libc::EINVAL), String::new()));
        for table in self.callbacks {
            attached = self.attach_callbacks(table)?;
            // If a table has flags that the kernel does not support, the kernel rejects it as invalid. Then
            // the next table is tried.
            if !matches!(&attached, Err((source, _)) if source.kind() == libbpf_rs::ErrorKind::InvalidInput) {
                break;
            }
        }
        self.links.push(attached.map_err(|(source, log)| Error::Attach {
            source,
            log,
            loaded: loaded_scheduler(),
        })?);
        let exec = self.program("dispatch_exec")?.attach().map_err(|source| Error::Use {
            what: "the unit of a process that executes a program is unknown until the next turn".to_owned(),
            source,
        })?;
        self.links.push(exec);
        Ok(())
    }

    fn attach_callbacks(&mut self, table: &str) -> Result<Result<Link, Refusal>, Error> {
        let mut maps = self.object.maps_mut();
        let mut ops = maps.find(|map| map.name() == table).ok_or(Error::Part("table of callbacks"))?;
        Ok(logged(|| ops.attach_struct_ops()))
    }

    /// Sets a unit's rules, before or after [`Scheduler::attach`]. Fails for a weight outside 1 to 10,000,
    /// more than [`DEPTH_MAX`](crate::DEPTH_MAX) levels, or another parent for a unit with tasks or
    /// sub-units.
    pub fn set_unit(&mut self, unit: u32, rules: UnitRules) -> Result<(), Error> {
        let UnitRules { parent, weight, .. } = rules;
        let setting = Setting::new(unit, rules);
        self.call("dispatch_set_unit_from_outside", setting).map_err(|source| Error::Use {
            what: format!("unit number {unit} cannot have weight {weight} below unit number {parent}"),
            source,
        })
    }

    /// Sets the counters of a unit without tasks to 0, so that its number can be reused for another unit.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn clear(&mut self, unit: u32) {
        let entry = self.units.at(unit as usize);
        // SAFETY: an element of the table. The scheduler writes these fields only for a unit that has tasks.
        unsafe {
            (&raw mut (*entry).recalls).write_volatile(0);
            (&raw mut (*entry).recall_ns).write_volatile(0);
            (&raw mut (*entry).recall_ns_max).write_volatile(0);
            (&raw mut (*entry).recall_classes).write_volatile([0; LATENCIES]);
        }
        for cpu in 0..self.counts.cpus {
            // SAFETY: as above.
            unsafe { self.accounts.at(self.counts.account(unit, cpu)).write_volatile(Account::default()) };
        }
    }

    /// The present state of a unit.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn unit(&self, unit: u32) -> Unit {
        // SAFETY: an element of the table; plain integers, so every state that the kernel leaves it in is a
        // value.
        unsafe { self.units.at(unit as usize).read_volatile() }
    }

    /// A unit's account of one CPU, up to the last switch there. The table is mapped into memory, so reading
    /// it does not slow the scheduler down.
    ///
    /// # Panics
    /// If there is no such unit or CPU.
    pub fn account(&self, unit: u32, cpu: u32) -> Account {
        assert!(unit < self.counts.units, "unit {unit} of {}", self.counts.units);
        // SAFETY: as above.
        unsafe { self.accounts.at(self.counts.account(unit, cpu)).read_volatile() }
    }

    /// A unit's account of the whole machine.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn account_of(&self, unit: u32) -> Account {
        let mut sum = Account::default();
        for cpu in 0..self.counts.cpus {
            sum += self.account(unit, cpu);
        }
        sum
    }

    /// A unit's accounts of all CPUs, by number.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn accounts(&self, unit: u32) -> Vec<Account> {
        (0..self.counts.cpus).map(|cpu| self.account(unit, cpu)).collect()
    }

    /// Reports how long tasks of one unit waited while tasks of another had the CPU that they got: calls
    /// `each` with the waiting unit, the other unit, and the time in ns since it was last reported, for
    /// each CPU. What CPUs count from one call on is reported by the call after the next: by then, no CPU
    /// is still adding to it. [`Account::waited_for_ns`] has the other parts of a unit's waits.
    pub fn take_waits_for_others(&mut self, mut each: impl FnMut(u32, u32, u64)) {
        // SAFETY: a field of the table's only element, which no other code writes.
        let half = unsafe { &raw mut (*self.rules.at(0)).pairs_half };
        // SAFETY: as above.
        let idle = 1 - (unsafe { half.read_volatile() } & 1);
        for cpu in 0..self.counts.cpus {
            // SAFETY: an element of the table. CPUs add to the other half, since the previous call.
            unsafe { take_pairs(self.pairs.at(cpu as usize), idle as usize, &mut each) };
        }
        // SAFETY: as above.
        unsafe { half.write_volatile(idle) };
    }

    /// Maps a control group to a unit, and with it those of its descendants that are not mapped themselves.
    /// The mapping applies to tasks that enter the group later. When the scheduler is attached
    /// ([`Scheduler::attach`]), it also applies to the tasks that are in the group then.
    ///
    /// `cgroup` is the inode number of the group's directory.
    pub fn admit(&mut self, cgroup: u64, unit: u32) -> Result<(), Error> {
        let table = self
            .object
            .maps_mut()
            .find(|map| map.name() == "unit_of_cgroup")
            .ok_or(Error::Part("table of control groups"))?;
        table.update(&cgroup.to_ne_bytes(), &unit.to_ne_bytes(), MapFlags::ANY).map_err(|source| Error::Use {
            what: format!("control group {cgroup} cannot be given to unit {unit}"),
            source,
        })
    }

    /// Removes the mapping of a control group to a unit. From now on, the group belongs to the unit of its
    /// nearest mapped ancestor, but tasks that are in it change their unit only once they enter another
    /// group.
    pub fn forget(&mut self, cgroup: u64) -> Result<(), Error> {
        let table = self
            .object
            .maps_mut()
            .find(|map| map.name() == "unit_of_cgroup")
            .ok_or(Error::Part("table of control groups"))?;
        match table.delete(&cgroup.to_ne_bytes()) {
            Err(source) if source.kind() != libbpf_rs::ErrorKind::NotFound => Err(Error::Use {
                what: format!("control group {cgroup} cannot be taken from its unit"),
                source,
            }),
            _ => Ok(()),
        }
    }

    /// Replaces the rules for processes that execute a program. The rules apply before the program's first
    /// instruction. A process in a unit's control group stays in that unit, or moves to a sub-unit of it.
    pub fn set_matches(&mut self, lists: &Lists) {
        self.second_half = !self.second_half;
        for (at, entry) in matches::entries(lists, self.second_half) {
            // SAFETY: an element of the table. A concurrent reader sees the old or the new start of a list,
            // and both lists are present: plain integers in any case, and the program terminates for all
            // values.
            unsafe { self.matches.at(at).write_volatile(entry) };
        }
    }

    /// Gives a CPU another owner, an outermost unit or [`NOBODY`]. Call it after [`Scheduler::attach`], which
    /// removes all owners.
    pub fn own(&mut self, cpu: u32, unit: u32) -> Result<(), Error> {
        self.call("dispatch_own_cpu", Owned { cpu, unit }).map_err(|source| Error::Use {
            what: format!("CPU {cpu} cannot be given to unit {unit}"),
            source,
        })
    }

    /// Sets the pool of each CPU, by number.
    pub fn set_pools(&mut self, pools: &[u32]) {
        for (cpu, pool) in (0..self.counts.cpus as usize).zip(pools) {
            // SAFETY: an element of the table, and a number that only this function writes.
            unsafe { (&raw mut (*self.cpus.at(cpu)).pool).write_volatile(*pool) };
        }
    }

    /// Gives a thread a seat in the pool of a CPU; `None` removes it. Ignores a thread that has exited.
    pub fn seat(&mut self, thread: u32, cpu: Option<u32>) -> Result<(), Error> {
        let seated = Seated { thread, cpu: cpu.unwrap_or(NOBODY) };
        self.call("dispatch_seat", seated)
            .map_err(|source| Error::Use { what: format!("thread {thread} cannot have a seat"), source })
    }

    /// Puts a thread, and its later children, into a unit other than that of its control group. Ignores a
    /// thread that has exited.
    pub fn put(&mut self, thread: u32, unit: u32) -> Result<(), Error> {
        self.call("dispatch_put_thread", Put { thread, unit }).map_err(|source| Error::Use {
            what: format!("thread {thread} cannot be of unit number {unit}"),
            source,
        })
    }

    /// Sets the gang of a process, and of the processes that it starts later; `None`: no gang. Ignores a
    /// process that has exited.
    pub fn join(&mut self, process: u32, gang: Option<u32>) -> Result<(), Error> {
        let joined = Joined { process, gang: gang.unwrap_or(NOBODY) };
        self.call("dispatch_join", joined)
            .map_err(|source| Error::Use { what: format!("process {process} cannot be of a gang"), source })
    }

    /// Shuts (true) or opens (false) the gates of gangs, all at once. Gangs are numbers below [`GANGS_MAX`].
    /// While any gang is shut, call this regularly, to release tasks that exit: see gates.h.
    ///
    /// # Panics
    /// If there is no such gang.
    pub fn gate(&mut self, gangs: &[(u32, bool)]) -> Result<(), Error> {
        let gates = self.gates.at(0).cast::<u32>();
        for (gang, shut) in gangs {
            assert!(*gang < GANGS_MAX, "gang {gang} is beyond the table");
            // SAFETY: an element of the table's only entry. No other code writes it.
            unsafe { gates.add(*gang as usize).write_volatile(u32::from(*shut)) };
        }
        self.call("dispatch_turn", Turned { unused: 0 })
            .map_err(|source| Error::Use { what: "gangs cannot take turns".to_owned(), source })
    }

    fn program(&mut self, name: &'static str) -> Result<libbpf_rs::ProgramMut<'_>, Error> {
        self.object.progs_mut().find(|known| known.name() == name).ok_or(Error::Part(name))
    }

    /// Runs one of the programs that change the tables.
    fn call<T: Argument>(&mut self, program: &'static str, argument: T) -> Result<(), libbpf_rs::Error> {
        let Some(program) = self.object.progs_mut().find(|known| known.name() == program) else {
            return Err(libbpf_rs::Error::from_raw_os_error(libc::ENOENT));
        };
        let mut context = vec![0; size_of::<T>()];
        // SAFETY: both have that length and do not overlap; all bytes of an argument are initialised.
        unsafe {
            ptr::copy_nonoverlapping((&raw const argument).cast(), context.as_mut_ptr(), context.len());
        }
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        match program.test_run(input)?.return_value.cast_signed() {
            0 => Ok(()),
            error => Err(libbpf_rs::Error::from_raw_os_error(-error)),
        }
    }

    /// Why the kernel ended the scheduler; `None` while the scheduler runs.
    pub fn ended(&self) -> Option<End> {
        // SAFETY: the table's only element; plain integers, valid once `kind` is set, which is written last.
        let end = unsafe { self.end.at(0).read_volatile() };
        (end.kind != 0).then(|| End {
            kind: end.kind,
            code: end.code,
            reason: text(&end.reason),
            message: text(&end.message),
        })
    }

    /// Stops scheduling: the kernel's own scheduler takes over, and the counters keep their values. Also done
    /// on drop.
    pub fn detach(&mut self) {
        self.links.clear();
    }
}

impl Counts {
    fn account(self, unit: u32, cpu: u32) -> usize {
        cpu as usize * self.units as usize + unit as usize
    }

    fn accounts(self) -> usize {
        self.units as usize * self.cpus as usize
    }
}

/// The offset of the watchdog's timeout in the tables of callbacks: a `u32` behind 13 callbacks and the flags
/// (`struct sched_ext_ops` in bpf/kernel.h).
const TIMEOUT_AT: usize = 13 * 8 + 8;
/// The compiled value of that timeout (`TIMEOUT_MS` in bpf/ops.h).
const TIMEOUT_MS: u32 = 30_000;

/// Loads the program into the kernel, with tables of the sizes in `counts`. Of the program's tables of
/// callbacks, only those in the argument are loaded, since a kernel refuses a table with a callback that it
/// does not have.
fn load(
    counts: Counts,
    timeout_ms: Option<u32>,
    settings: &Settings,
    callbacks: &[&str],
) -> libbpf_rs::Result<Object> {
    let mut open = ObjectBuilder::default().open_memory(PROGRAM)?;
    let rooms = [
        ("accounts", counts.accounts()),
        ("histories", counts.cpus as usize),
        ("occupancies", counts.accounts() + counts.cpus as usize),
        ("pairs", counts.cpus as usize),
    ];
    for mut map in open.maps_mut() {
        if let Some((_, room)) = rooms.iter().find(|(name, _)| map.name() == *name) {
            map.set_max_entries(u32::try_from(*room).unwrap_or(u32::MAX))?;
        }
    }
    for mut map in open.maps_mut().filter(|map| TABLES.iter().any(|table| map.name() == *table)) {
        if let Some(timeout_ms) = timeout_ms {
            set_timeout(&mut map, timeout_ms)?;
        }
        let is_used = callbacks.iter().any(|table| map.name() == *table);
        map.set_autocreate(is_used)?;
    }
    let constants = [(DISCIPLINED, settings.disciplined), (SEATED, settings.seated), (GATED, settings.gated)];
    for (constant, value) in constants {
        let mut map = open.maps_mut().find(|map| map.name() == constant).ok_or_else(invalid)?;
        let bytes = map.initial_value_mut().and_then(|value| value.get_mut(..4)).ok_or_else(invalid)?;
        bytes.copy_from_slice(&u32::from(value).to_ne_bytes());
    }
    open.load()
}

fn invalid() -> libbpf_rs::Error {
    libbpf_rs::Error::from_raw_os_error(libc::EINVAL)
}

/// Replaces the timeout in a table of callbacks. Fails if [`TIMEOUT_MS`] is not where it is expected.
fn set_timeout(callbacks: &mut OpenMapMut<'_>, timeout_ms: u32) -> libbpf_rs::Result<()> {
    match callbacks.initial_value_mut().and_then(|value| value.get_mut(TIMEOUT_AT..TIMEOUT_AT + 4)) {
        Some(bytes) if *bytes == TIMEOUT_MS.to_ne_bytes() => {
            bytes.copy_from_slice(&timeout_ms.to_ne_bytes());
            Ok(())
        }
        _ => Err(invalid()),
    }
}

fn fits(what: &'static str, number: u32, room: u32) -> Result<(), Error> {
    if number > room { Err(Error::TooMany { what, number, room }) } else { Ok(()) }
}

/// A C string in an array of fixed length; empty without a terminating 0.
fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// What libbpf has printed since [`logged`] began.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn log_line(_: PrintLevel, line: String) {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).push(line);
}

/// libbpf's error, and what it printed.
type Refusal = (libbpf_rs::Error, String);

/// The name of the `sched_ext` scheduler that the kernel has loaded, if any.
fn loaded_scheduler() -> Option<String> {
    std::fs::read_to_string("/sys/kernel/sched_ext/root/ops").ok().map(|name| name.trim().to_owned())
}

/// The part of a message that names the scheduler that is already loaded; empty without one.
fn hint_of_loaded(loaded: Option<&str>) -> String {
    loaded.map_or(String::new(), |name| {
        format!("\nThe scheduler `{name}` is loaded, and a kernel has one at a time: end the program that loaded it")
    })
}

/// Calls libbpf. An error includes the last lines that libbpf printed during the call, each on a new line.
fn logged<T>(work: impl FnOnce() -> libbpf_rs::Result<T>) -> Result<T, Refusal> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, log_line)));
    let result = work();
    libbpf_rs::set_print(before);
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner).concat();
    result.map_err(|source| (source, last_lines(&log)))
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(LOG_LINES)).flat_map(|line| ["\n", line]).collect()
}

/// A table of the kernel (a BPF map of type array), mapped into this process's memory.
struct Table<T> {
    start: NonNull<T>,
    length: usize,
}

impl<T: Copy> Table<T> {
    /// Maps the table of this name. Its elements must be of type `T`, and at least `length`.
    fn map(object: &Object, table: &'static str, length: usize) -> Result<Self, Error> {
        // The kernel keeps elements at multiples of eight bytes.
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let map = object.maps().find(|map| map.name() == table).ok_or(Error::Part(table))?;
        if map.value_size() as usize != size_of::<T>() || (map.max_entries() as usize) < length {
            return Err(Error::Part(table));
        }
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, map.as_fd().as_raw_fd());
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), length * size_of::<T>(), access, libc::MAP_SHARED, fd, 0) };
        match NonNull::new(start.cast::<T>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Table { start, length }),
            _ => Err(Error::Map { table, source: io::Error::last_os_error() }),
        }
    }

    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.length, "element {index} of {}", self.length);
        // SAFETY: within the mapping, by the assertion.
        unsafe { self.start.as_ptr().add(index) }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: this mapping, of that length; no pointer into it remains.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length * size_of::<T>()) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Recall;

    fn settings(cpus: u32, units: u32) -> Settings {
        Settings {
            cpus,
            units,
            slice_ns: 1_000_000,
            preempt_ns: 0,
            near: Vec::new(),
            recall: Recall::Now,
            disciplined: false,
            seated: false,
            gated: false,
            seed: 0,
        }
    }

    #[test]
    fn too_many_units_or_cpus_are_refused() {
        let error = Scheduler::load(&settings(8, UNITS_MAX + 1)).err().unwrap();
        assert_eq!(error.to_string(), "1025 units, but this build supports at most 1024");
        let error = Scheduler::load(&settings(CPUS_MAX + 1, 2)).err().unwrap();
        assert_eq!(error.to_string(), "4097 CPUs, but this build supports at most 4096");
    }

    #[test]
    fn the_program_has_the_parts_that_are_looked_for_by_name() {
        let object = ObjectBuilder::default().open_memory(PROGRAM).unwrap();
        let maps: Vec<_> = object.maps().map(|map| map.name().to_string_lossy().into_owned()).collect();
        for part in [
            "commonhold",
            "units",
            "accounts",
            "cpus",
            "histories",
            "occupancies",
            "pairs",
            "unit_of_cgroup",
            "matches",
            ".data.rules",
            ".data.end",
        ] {
            assert!(maps.iter().any(|map| map == part), "{part} is not among {maps:?}");
        }
        for part in [
            "dispatch_own_cpu",
            "dispatch_seat",
            "dispatch_join",
            "dispatch_put_thread",
            "dispatch_turn",
            "dispatch_set_unit_from_outside",
        ] {
            assert!(object.progs().any(|program| program.name() == part), "{part}");
        }
        let size = |name: &str| object.maps().find(|map| map.name() == name).unwrap().value_size() as usize;
        assert_eq!(size("units"), size_of::<Unit>());
        assert_eq!(size("accounts"), size_of::<Account>());
        assert_eq!(size("cpus"), size_of::<Cpu>());
        assert_eq!(size("pairs"), size_of::<Pairs>());
        assert_eq!(size("matches"), size_of::<Match>());
        assert_eq!(size(".data.rules"), size_of::<Rules>());
        assert_eq!(size(".data.end"), size_of::<EndTable>());
    }

    #[test]
    fn the_timeout_is_at_its_expected_offset() {
        let mut object = ObjectBuilder::default().open_memory(PROGRAM).unwrap();
        for table in TABLES {
            let mut map = object.maps_mut().find(|map| map.name() == table).unwrap();
            set_timeout(&mut map, 2_000).unwrap();
            // The compiled value has been replaced.
            assert!(set_timeout(&mut map, 2_000).is_err());
        }
    }

    #[test]
    fn errors_repeat_the_end_of_the_log() {
        let log: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        let last = last_lines(&log.join("\n"));
        assert!(last.starts_with("\nline 60\n") && last.ends_with("\nline 99"), "{last}");
        assert_eq!(last_lines(""), "");
    }

    #[test]
    fn texts_end_at_the_first_nul() {
        assert_eq!(text(b"runnable task stall\0\0\0"), "runnable task stall");
        assert_eq!(text(b"not ended"), "");
    }
}
