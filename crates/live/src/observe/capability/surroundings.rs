//! This process's privileges, and its surroundings: kernel, container, virtual machine, limits.

use std::path::{Path, PathBuf};

use commonhold_machine::capability::{Area, Row};
use commonhold_machine::{CpuSet, Machine};

use super::context::{Capability, Context};
use crate::observe::caps::CAP;
use crate::observe::cpu_kinds::Isolation;
use crate::observe::topology;

/// The oldest kernel on which everything here works: `pidfd_open(2)` came with 5.3, waiting on a pidfd with
/// 5.4.
const KERNEL_MIN: (u32, u32) = (5, 4);

/// The remedy that gives this program the capabilities of the `user` backend. It names all of them, since
/// `setcap` replaces the capabilities that a file already has.
pub(crate) const GIVE_CAPABILITIES: &str =
    "run as root, or `setcap cap_kill,cap_sys_nice,cap_sys_ptrace+ep $(command -v commonhold)`";

/// The rows about this process's privileges.
pub(super) fn privileges(context: &Context) -> Vec<Row> {
    let (area, euid) = (Area::Privileges, context.status.euid);
    let root = match euid {
        0 => Row::yes(area, "root", "the effective user is root"),
        _ => Row::no(area, "root", format!("the effective user is {euid}: its own processes only"))
            .remedy("run as root to hold every user's processes"),
    };
    let capability = |name: &str, capability, what: &str, remedy: &str| {
        if context.status.has(capability) {
            Row::yes(area, name, what)
        } else {
            Row::no(area, name, what).remedy(remedy)
        }
    };
    vec![
        root,
        capability(
            "CAP_SYS_NICE",
            Capability::SysNice,
            "sets the CPU affinity of other users' processes",
            GIVE_CAPABILITIES,
        ),
        capability(
            "CAP_KILL",
            Capability::Kill,
            "stops and continues other users' processes",
            GIVE_CAPABILITIES,
        ),
        capability("CAP_SYS_ADMIN", Capability::SysAdmin, "mounts cgroup v2 and resctrl", "run as root"),
    ]
}

/// The row of the `user` backend, which holds processes of every user, or only our own user's.
pub(super) fn user_backend(context: &Context) -> Row {
    let (area, name) = (Area::Cpu, "user backend");
    let means = "affinity for home CPUs and loans, stop/continue for finer shares";
    if holds_other_users(context) {
        return Row::yes(area, name, means);
    }
    Row::partly(area, name, format!("{means}; our own user's processes only")).remedy(GIVE_CAPABILITIES)
}

/// Whether, with our privileges, the `user` backend can hold other users' processes.
pub(super) fn holds_other_users(context: &Context) -> bool {
    context.status.has(Capability::SysNice) && context.status.has(Capability::Kill)
}

/// The rows about the program's surroundings.
pub(super) fn surroundings(context: &Context) -> Vec<Row> {
    let hidden = hidden_processes(context);
    let first = [kernel(context)].into_iter().chain(hidden);
    let rest = [
        container(context),
        service_manager(context),
        bounds_of_others(context),
        virtual_machine(context),
        nice_counts(context),
        every_cpu(context),
        not_isolated(context),
        cpu_time_not_capped(context),
        memory_not_capped(context),
    ];
    first.chain(rest).collect()
}

/// The row that says whether we see other users' processes although /proc is mounted with `hidepid` (see
/// `proc(5)`); `None` if /proc is mounted without that option.
///
/// `ptraceable` hides processes that we may not trace, whatever our groups are. The other modes exempt the
/// group that `gid=` names, by default root's.
pub(super) fn hidden_processes(context: &Context) -> Option<Row> {
    let proc =
        context.mounts.iter().rfind(|mount| mount.kind == "proc" && mount.point == Path::new("/proc"))?;
    let option = |name: &str| proc.options.iter().find_map(|option| option.strip_prefix(name));
    let hides = option("hidepid=").filter(|how| !matches!(*how, "0" | "off"))?;
    let (area, name) = (Area::Surroundings, "other users' processes");
    if context.status.has(Capability::SysPtrace) {
        return Some(Row::yes(
            area,
            name,
            format!("seen with CAP_SYS_PTRACE, though /proc has hidepid={hides}"),
        ));
    }
    let exempt = option("gid=").and_then(|gid| gid.parse().ok()).unwrap_or(0);
    let by_group = !matches!(hides, "4" | "ptraceable");
    if by_group && context.status.groups.contains(&exempt) {
        return Some(Row::yes(
            area,
            name,
            format!("seen as a member of group {exempt}, though /proc has hidepid={hides}"),
        ));
    }
    let group = match by_group {
        true if exempt != 0 => format!(", add this user to group {exempt}"),
        _ => String::new(),
    };
    Some(
        Row::partly(area, name, format!("/proc hides them (hidepid={hides}): no rule can make them members"))
            .remedy(format!(
                "give this program CAP_SYS_PTRACE, which root has{group}, or mount /proc without hidepid"
            )),
    )
}

fn kernel(context: &Context) -> Row {
    let Some(version) = context.release() else {
        let reason = format!("version `{}`: cannot tell whether it is recent enough", context.kernel);
        return Row::partly(Area::Surroundings, "kernel", reason);
    };
    if version >= KERNEL_MIN {
        return Row::yes(Area::Surroundings, "kernel", context.kernel.clone());
    }
    let reason = format!("{} is older than {}.{}", context.kernel, KERNEL_MIN.0, KERNEL_MIN.1);
    Row::no(Area::Surroundings, "kernel", reason).remedy("boot Linux 5.4 or later")
}

fn container(context: &Context) -> Row {
    let name = "outside a container";
    let Some(sign) = container_sign(context) else {
        return Row::yes(Area::Surroundings, name, "no sign of a container");
    };
    Row::partly(Area::Surroundings, name, format!("{sign}: only processes of this container can be held"))
        .remedy("run commonhold on the host")
}

/// Whether systemd is process 1, by the test of `sd_booted(3)`.
pub(super) fn systemd_runs(context: &Context) -> bool {
    context.tree.exists("/run/systemd/system")
}

/// The socket of systemd-oomd.
const OOMD: &str = "/run/systemd/io.systemd.ManagedOOM";

/// The row about systemd and other programs that manage control groups.
fn service_manager(context: &Context) -> Row {
    let name = "no other manager of groups";
    if !systemd_runs(context) {
        return Row::yes(Area::Surroundings, name, "no sign of systemd");
    }
    let oomd = "; systemd-oomd runs, and kills processes in the same groups under memory pressure, regardless of any contract";
    let managers: Vec<&str> =
        MANAGERS.iter().filter(|(sign, _)| context.tree.exists(*sign)).map(|(_, name)| *name).collect();
    let managers = match managers.is_empty() {
        true => String::new(),
        false => format!("; {} also makes groups: see `each = \"cgroup\"`", managers.join(", ")),
    };
    let reason = format!(
        "systemd keeps every session and service in a separate control group: root's `run` holds units there, and moves only \
         processes that a rule names; `run --dry-run` counts both; the `cgroup` backend holds whole CPUs there exactly, and \
         fractions of a CPU only among groups in one slice, such as users{managers}{}",
        if context.tree.exists(OOMD) { oomd } else { "" }
    );
    Row::partly(Area::Surroundings, name, reason)
}

/// Where cgroup v2 is mounted on a machine with systemd.
const GROUPS: &str = "/sys/fs/cgroup";

/// The most groups that a message names; it gives the number of the others.
const NAMED_MAX: usize = 3;

/// The row about bounds on CPU time and memory that others have set in slices and services. This program
/// never sets any there.
fn bounds_of_others(context: &Context) -> Row {
    let name = "no bounds set by others in slices and services";
    let is_set = |dir: &str, file: &str| {
        let text = context.tree.text(format!("{dir}/{file}"));
        text.is_some_and(|text| !text.is_empty() && !text.starts_with("max"))
    };
    let (mut capped, mut bounded) = (Vec::new(), Vec::new());
    for slice in ["user.slice", "system.slice", "machine.slice"] {
        // The entries with a dot include files of the cgroup itself; only folders have a cgroup.procs.
        let entries = context.tree.names(format!("{GROUPS}/{slice}")).into_iter();
        let entries = entries.filter(|name| name.contains('.'));
        let groups = entries.map(|name| format!("{slice}/{name}")).chain([slice.to_owned()]);
        for group in groups.filter(|group| context.tree.exists(format!("{GROUPS}/{group}/cgroup.procs"))) {
            let dir = format!("{GROUPS}/{group}");
            if is_set(&dir, CAP) {
                capped.push(group);
            } else if is_set(&dir, "memory.max") {
                bounded.push(group);
            }
        }
    }
    let list = |groups: &[String]| {
        let more = groups.len().saturating_sub(NAMED_MAX);
        let named = groups.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{named} and {more} more") } else { named }
    };
    let caps = (!capped.is_empty()).then(|| {
        format!(
            "caps on CPU time (`CPUQuota=`) in {}: as long as they exist, the scheduler of the `kernel` backend rests",
            list(&capped)
        )
    });
    let memory =
        (!bounded.is_empty()).then(|| format!("bounds of memory (`MemoryMax=`) in {}", list(&bounded)));
    let bounds: Vec<String> = caps.into_iter().chain(memory).collect();
    if bounds.is_empty() {
        return Row::yes(Area::Surroundings, name, "none is set");
    }
    let reason = format!("{}; they stay in force, and units are held within them", bounds.join("; "));
    Row::partly(Area::Surroundings, name, reason)
}

/// Signs of other managers of control groups.
const MANAGERS: [(&str, &str); 4] = [
    ("/sys/fs/cgroup/kubepods.slice", "Kubernetes"),
    ("/sys/fs/cgroup/system.slice/slurmd.service", "Slurm"),
    ("/sys/fs/cgroup/system.slice/docker.service", "docker"),
    ("/sys/fs/cgroup/machine.slice", "a manager of containers or machines"),
];

/// The sign that this process runs in a container, if any.
fn container_sign(context: &Context) -> Option<String> {
    let tree = &context.tree;
    let manager = tree.text("/run/systemd/container").filter(|name| !name.is_empty());
    if let Some(manager) = manager {
        return Some(format!("/run/systemd/container says {manager}"));
    }
    if let Some(file) = ["/.dockerenv", "/run/.containerenv"].iter().find(|file| tree.exists(**file)) {
        return Some(format!("{file} exists"));
    }
    let uid_map = tree.text("/proc/self/uid_map").unwrap_or_default();
    let identity = ["0", "0", "4294967295"];
    if !uid_map.is_empty() && !uid_map.split_whitespace().eq(identity) {
        return Some("a user namespace maps our users".to_owned());
    }
    let paths = context.own_cgroups.iter().map(|own| own.path.to_string_lossy().into_owned());
    let names = ["docker", "kubepods", "libpod", "lxc"];
    let path = paths.into_iter().find(|path| names.iter().any(|name| path.contains(name)))?;
    Some(format!("our cgroup is {path}"))
}

/// The row that says whether this is a virtual machine, whose host may take CPU time away.
fn virtual_machine(context: &Context) -> Row {
    let name = "outside a VM";
    let hypervisor = context.tree.text("/sys/hypervisor/type");
    let sign = match hypervisor {
        Some(kind) if !kind.is_empty() => format!("/sys/hypervisor/type says {kind}"),
        _ if context.cpu_flags.contains("hypervisor") => {
            "the processor's flag `hypervisor` is set".to_owned()
        }
        _ => return Row::yes(Area::Surroundings, name, "no sign of a hypervisor"),
    };
    let steal = steal_per_mille(&context.tree.text("/proc/stat").unwrap_or_default());
    let steal = steal.map(|s| format!(" ({}.{} % of it so far)", s / 10, s % 10)).unwrap_or_default();
    Row::partly(Area::Surroundings, name, format!("{sign}: its host may take CPU time away{steal}"))
}

/// CPU time stolen by the host, in thousandths of all CPU time: column 8 of the first line of /proc/stat
/// relative to columns 1 to 8.
fn steal_per_mille(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // Columns 9 and 10 (guest time) are left out, since columns 1 and 2 contain them.
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    let total = ticks.iter().copied().fold(0u64, u64::saturating_add);
    ticks.get(7)?.saturating_mul(1000).checked_div(total)
}

/// The row that says whether the daemon's nice value counts against processes of other sessions. With
/// autogroup, it counts only within a session: see `sched(7)`.
fn nice_counts(context: &Context) -> Row {
    let (area, name) = (Area::Surroundings, "nice value counts beyond its session");
    if context.tree.text("/proc/sys/kernel/sched_autogroup_enabled").as_deref() != Some("1") {
        return Row::yes(area, name, "autogroup is off");
    }
    // Files in /proc/PID of a program with file capabilities (`setcap`) belong to root, so such a daemon
    // cannot write there.
    if context.status.euid == 0 && context.status.has(Capability::SysNice) {
        let reason = "autogroup is on: until it ends, `run` gives its session's autogroup the daemon's nice value, too";
        return Row::yes(area, name, reason);
    }
    let reason = "autogroup is on, and only root's `run` can raise its session's nice value: the daemon may wait behind other \
         sessions";
    Row::partly(area, name, reason).remedy("run as root, or sysctl kernel.sched_autogroup_enabled=0")
}

/// The row that says whether this process may use all online CPUs.
fn every_cpu(context: &Context) -> Row {
    let name = "every CPU usable";
    if let Some(renumbered) = topology::renumbered_in(&context.tree) {
        return Row::partly(Area::Surroundings, name, renumbered.to_string())
            .remedy("run commonhold on the host, where CPU numbers are consistent");
    }
    let online = context.tree.text("/sys/devices/system/cpu/online").and_then(|list| list.parse().ok());
    let online: CpuSet = online.unwrap_or_default();
    let ours = context.status.cpus.intersection(&online);
    if ours == online {
        return Row::yes(Area::Surroundings, name, format!("CPUs {online}"));
    }
    let reason = format!("{ours} of {online}: a cpuset or our parent's affinity confines us");
    Row::partly(Area::Surroundings, name, reason).remedy(format!("taskset -c {online} commonhold ..."))
}

/// The row about isolated CPUs.
fn not_isolated(context: &Context) -> Row {
    let name = "no isolated CPUs";
    let isolation = Isolation::read(&context.tree);
    if isolation.by.is_empty() {
        return Row::yes(Area::Surroundings, name, "none by isolcpus, nohz_full or a cpuset partition");
    }
    let reason = format!("isolated: {isolation}; units get none of them unless the contract says so");
    Row::partly(Area::Surroundings, name, reason).remedy(
        "write `isolated = true` in [machine]; CPUs of isolcpus are divided if `run` may use them, as under `taskset -c LIST`",
    )
}

/// The row about CPUs of different capacity.
pub(super) fn equal_capacity(machine: &Machine) -> Row {
    let name = "CPUs of equal capacity";
    match machine.unequal_capacity() {
        None => Row::yes(Area::Surroundings, name, "the kernel reports no CPU as slower than others"),
        Some(unequal) => Row::partly(Area::Surroundings, name, unequal),
    }
}

/// The row about the tightest cap on this process's CPU time, in either version of cgroups. Values are in
/// hundredths of a CPU.
fn cpu_time_not_capped(context: &Context) -> Row {
    let name = "CPU time not capped";
    let version2 = find_cap(context, None, "cpu.max", |text, _| {
        let mut words = text.split_whitespace();
        let (quota, period) = (words.next()?.parse::<u64>().ok()?, words.next()?.parse::<u64>().ok()?);
        (quota.saturating_mul(100)).checked_div(period)
    });
    let version1 = || {
        find_cap(context, Some("cpu"), "cpu.cfs_quota_us", |text, file| {
            // -1 means no cap, and does not parse as an unsigned number.
            let quota = text.parse::<u64>().ok()?;
            let period = context.tree.text(file.with_file_name("cpu.cfs_period_us"))?.parse::<u64>().ok()?;
            quota.saturating_mul(100).checked_div(period)
        })
    };
    match version2.or_else(version1) {
        None => Row::yes(Area::Surroundings, name, "our cgroup and those above it have no cap"),
        Some(cap) => {
            let (cpus, hundredths) = (cap.value / 100, cap.value % 100);
            let reason = format!("{} holds us to {cpus}.{hundredths:02} CPUs", cap.file.display());
            let no_cap = if cap.file.ends_with("cpu.max") { "max" } else { "-1" };
            Row::partly(Area::Surroundings, name, reason)
                .remedy(format!("echo {no_cap} > {}", cap.file.display()))
        }
    }
}

/// The row about the tightest cap on this process's memory, in either version of cgroups.
fn memory_not_capped(context: &Context) -> Row {
    let name = "memory not capped";
    // Version 1 says "no cap" with a number near 2^63, version 2 with the word `max`.
    let bytes = |text: &str, _: &Path| text.parse::<u64>().ok().filter(|bytes| *bytes < 1 << 62);
    let version2 = find_cap(context, None, "memory.max", bytes);
    let version1 = || find_cap(context, Some("memory"), "memory.limit_in_bytes", bytes);
    match version2.or_else(version1) {
        None => Row::yes(Area::Surroundings, name, "our cgroup and those above it have no cap"),
        Some(cap) => {
            let reason = format!("{} holds us to {} MiB", cap.file.display(), cap.value >> 20);
            let no_cap = if cap.file.ends_with("memory.max") { "max" } else { "-1" };
            Row::partly(Area::Surroundings, name, reason)
                .remedy(format!("echo {no_cap} > {}", cap.file.display()))
        }
    }
}

/// A cap in force for this process, and the file that sets it.
struct Cap {
    file: PathBuf,
    value: u64,
}

/// The tightest cap in our own cgroup and its visible ancestors, in the v2 hierarchy (`controller: None`) or
/// in that of a v1 controller. `parse` returns the value of a cap from the text and the path of a file;
/// `None` if the file sets no cap.
fn find_cap(
    context: &Context,
    controller: Option<&str>,
    file: &str,
    parse: impl Fn(&str, &Path) -> Option<u64>,
) -> Option<Cap> {
    let (top, own) = context.own_cgroup(controller)?;
    let cap = |dir: &Path| {
        let file = dir.join(file);
        let value = parse(&context.tree.text(&file)?, &file)?;
        Some(Cap { file, value })
    };
    own.ancestors().take_while(|dir| dir.starts_with(&top)).filter_map(cap).min_by_key(|cap| cap.value)
}
