//! The kernel's extensible scheduler class (`sched_ext`): whether the kernel has it, and whether the `kernel`
//! backend can use it.

use commonhold_machine::capability::{Area, Row, State};

use super::context::{Capability, Context};

/// Whether this program was built with the scheduler (the cargo feature `kernel`).
pub const BUILT_IN: bool = cfg!(feature = "kernel");

/// The reason and the remedy if the program was built without the scheduler.
pub(crate) const NOT_BUILT_IN: (&str, &str) = (
    "this binary was built without the scheduler, whether or not the kernel supports it",
    "build it with clang 17 or newer and the headers of libelf and zlib: `make packages-run build` (scripts/features says what \
     is missing)",
);

/// The first kernel that has `sched_ext`.
const KERNEL_MIN: (u32, u32) = (6, 12);
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// The kernel configuration's options for `sched_ext` and for its support of control groups.
const OPTION: &str = "CONFIG_SCHED_CLASS_EXT";
const OPTION_GROUPS: &str = "CONFIG_EXT_GROUP_SCHED";

/// The rows about what our scheduler needs.
pub(super) fn rows(context: &Context, built_in: bool) -> Vec<Row> {
    let mut rows = vec![scheduler(built_in), sched_ext(context)];
    rows.extend(groups(context));
    rows.extend([btf(context), may_load(context)]);
    rows
}

/// The row of the `kernel` backend. `cgroup` is the row of the `cgroup` backend, on which the `kernel`
/// backend builds.
pub(super) fn backend(context: &Context, cgroup: &Row, built_in: bool) -> Row {
    let name = "kernel backend";
    let is_yes = |row: &Row| row.state == State::Yes;
    let missing = rows(context, built_in).into_iter().chain([recent(context)]).find(|row| !is_yes(row));
    let no = |row: Row| Row { area: Area::Cpu, name: name.to_owned(), state: State::No, ..row };
    if let Some(row) = missing {
        return no(row);
    }
    if cgroup.state == State::No {
        return no(Row {
            reason: format!("it needs the cgroup backend: {}", cgroup.reason),
            ..cgroup.clone()
        });
    }
    let means = "our scheduler in the kernel (sched_ext): home CPUs, loans at every switch, shares by weight";
    Row::yes(Area::Cpu, name, means)
}

/// The row that says whether this program contains the scheduler.
fn scheduler(built_in: bool) -> Row {
    let name = "our scheduler";
    if built_in {
        return Row::yes(Area::Cpu, name, "built into this program, for the kernel backend to load");
    }
    Row::no(Area::Cpu, name, NOT_BUILT_IN.0).remedy(NOT_BUILT_IN.1)
}

/// The state of `sched_ext` in /sys while the kernel unloads a scheduler, until all tasks are queued with the
/// kernel's own.
pub(super) const LEAVING: &str = "disabling";

/// The row about `sched_ext` itself. Another program's scheduler keeps ours out, and changes the meaning of
/// cgroup weights.
pub(super) fn sched_ext(context: &Context) -> Row {
    let name = "sched_ext";
    let Some(state) = context.tree.text("/sys/kernel/sched_ext/state") else {
        let configured = match option(context, OPTION) {
            Some(false) => format!("was built without {OPTION}"),
            _ => "has no /sys/kernel/sched_ext".to_owned(),
        };
        return Row::no(Area::Cpu, name, format!("kernel {} {configured}", context.kernel)).remedy(format!(
            "boot a kernel, {}.{} or later, built with {OPTION}=y",
            KERNEL_MIN.0, KERNEL_MIN.1
        ));
    };
    if state == "disabled" {
        return Row::yes(Area::Cpu, name, "the kernel has it, and no scheduler is loaded");
    }
    let ops =
        context.tree.text("/sys/kernel/sched_ext/root/ops").unwrap_or_else(|| "of unknown name".to_owned());
    if ops == "commonhold" && state == LEAVING {
        let reason = "our own scheduler is being unloaded: its daemon has just ended";
        return Row::partly(Area::Cpu, name, reason).remedy("wait a moment");
    }
    if ops == "commonhold" {
        let reason = format!("our own scheduler is loaded ({state}): a daemon holds a contract with it");
        return Row::partly(Area::Cpu, name, reason).remedy("end the daemon that `commonhold status` shows");
    }
    let reason =
        format!("the scheduler `{ops}` is loaded ({state}): it divides CPU time, and may ignore cpu.weight");
    let stop =
        if context.systemd { "systemctl stop scx scx_loader" } else { "end the program that loaded it" };
    Row::partly(Area::Cpu, name, reason).remedy(stop)
}

/// The row that says whether the kernel reports control groups to schedulers, which identify units by them.
/// `None` if the kernel's configuration cannot be read.
fn groups(context: &Context) -> Option<Row> {
    let name = "cgroups in sched_ext";
    let is_built_in = option(context, OPTION)? && option(context, OPTION_GROUPS)?;
    Some(if is_built_in {
        Row::yes(Area::Cpu, name, format!("the kernel was built with {OPTION_GROUPS}"))
    } else {
        Row::no(Area::Cpu, name, format!("the kernel was built without {OPTION_GROUPS}"))
            .remedy(format!("boot a kernel built with {OPTION_GROUPS}=y"))
    })
}

/// The row about the kernel's type information, without which it loads no scheduler.
fn btf(context: &Context) -> Row {
    let name = "kernel types (BTF)";
    if context.tree.exists(BTF) {
        return Row::yes(Area::Cpu, name, format!("{BTF} exists; sched_ext needs it"));
    }
    Row::no(Area::Cpu, name, format!("{BTF} does not exist; sched_ext needs it"))
        .remedy("boot a kernel built with CONFIG_DEBUG_INFO_BTF=y")
}

/// The row that says whether we may load a scheduler. That takes `CAP_BPF` and `CAP_PERFMON`, or
/// `CAP_SYS_ADMIN`, from which both were split (Linux 5.8).
fn may_load(context: &Context) -> Row {
    let (name, what) = ("may load a scheduler", "CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON");
    let has = |capability| context.status.has(capability);
    if has(Capability::SysAdmin) || (has(Capability::Bpf) && has(Capability::Perfmon)) {
        return Row::yes(Area::Cpu, name, format!("we have {what}"));
    }
    Row::no(Area::Cpu, name, format!("it needs {what}")).remedy("run as root")
}

/// The row that says whether the kernel is recent enough.
fn recent(context: &Context) -> Row {
    let name = "kernel for sched_ext";
    match context.release() {
        Some(release) if release < KERNEL_MIN => {
            let (major, minor) = KERNEL_MIN;
            Row::no(Area::Cpu, name, format!("kernel {} is older than {major}.{minor}", context.kernel))
                .remedy(format!("boot Linux {major}.{minor} or later"))
        }
        _ => Row::yes(Area::Cpu, name, context.kernel.clone()),
    }
}

/// Whether the running kernel was built with an option; `None` if its configuration cannot be read. (The
/// compressed copy in /proc/config.gz is not read.)
fn option(context: &Context, name: &str) -> Option<bool> {
    let text = context.tree.text(format!("/boot/config-{}", context.kernel))?;
    Some(text.lines().any(|line| line.strip_prefix(name) == Some("=y")))
}
