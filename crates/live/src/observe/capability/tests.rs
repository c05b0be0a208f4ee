//! Machines as fake trees. The tests may run as root, to whom no permission is denied. So a folder that may
//! not be written to is one whose files are missing.

#![allow(clippy::unwrap_used)]

use std::io;

use commonhold_machine::capability::{Area, Row, State};

use super::{Capabilities, Syscalls, probe, probe_with};
use crate::observe::files::fake;

const ROOT: (&str, &str) =
    ("/proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-3\n");
const ORDINARY: (&str, &str) = (
    "/proc/self/status",
    "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3\n",
);
const PURE_V2: (&str, &str) = (
    "/proc/self/mountinfo",
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n",
);
const TOP: &str = "/sys/fs/cgroup";
const SCOPE: &str = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope";

fn syscalls(counter: io::Result<()>, built_in: bool) -> Syscalls {
    Syscalls { counter, built_in, pages_out: true, moves_pages: true }
}

/// No perf counter, as in most virtual machines.
fn no_counter() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOENT))
}

fn probed(files: &[(&str, &str)]) -> (tempfile::TempDir, Capabilities) {
    let dir = fake::tree(files);
    let found = probe_with(dir.path(), syscalls(no_counter(), true));
    (dir, found)
}

/// A cgroup's directory that we may manage, as files.
fn managed(path: &str, controllers: &str) -> Vec<(String, String)> {
    vec![
        (format!("{path}/cgroup.procs"), String::new()),
        (format!("{path}/cgroup.subtree_control"), String::new()),
        (format!("{path}/cgroup.controllers"), format!("{controllers}\n")),
    ]
}

fn with<'a>(files: &'a [(String, String)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let owned = files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    owned.chain(more.iter().copied()).collect()
}

fn row<'a>(found: &'a Capabilities, name: &str) -> &'a Row {
    found.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row `{name}`"))
}

fn is(found: &Capabilities, name: &str, state: State, reason: &str, remedy: &str) {
    let row = row(found, name);
    let shown = row.remedy.clone().unwrap_or_default();
    assert!(row.state == state && row.reason.contains(reason) && shown.contains(remedy), "{row:#?}");
}

#[test]
fn root_on_a_pure_version_2_machine_has_the_top() {
    let top = managed(TOP, "cpuset cpu io memory pids");
    let (dir, found) =
        probed(&with(&top, &[ROOT, PURE_V2, ("/proc/self/cgroup", "0::/user.slice/x.scope\n")]));
    let place = found.cgroup.clone().unwrap();
    assert_eq!(
        (place.mount, place.base),
        (dir.path().join("sys/fs/cgroup"), dir.path().join("sys/fs/cgroup"))
    );
    assert!(!place.delegated && place.controllers.contains("cpuset"));
    is(&found, "cgroup backend", State::Yes, "cpuset for home CPUs", "");
    is(&found, "nsdelegate", State::Yes, "", "");
    assert_eq!(found.enforcers()[0].name.as_deref(), Some("cgroup"));
    assert_eq!(found.enforcers()[1].name.as_deref(), Some("cgroup"));
    is(&found, "memory guarantees", State::Yes, "in force", "");
    is(&found, "memory called back at once", State::Partly, "no cgroup here has memory.reclaim", "5.19");
    is(&found, "cold pages known (MGLRU)", State::Partly, "this kernel has no generations", "CONFIG_LRU_GEN");
    is(
        &found,
        "charges for shared files known",
        State::Partly,
        "has no /proc/kpagecgroup",
        "CONFIG_PROC_PAGE_MONITOR",
    );
}

#[test]
fn systemds_management_of_groups_is_reported() {
    let top = managed(TOP, "cpuset cpu io memory pids");
    let (_dir, found) = probed(&with(&top, &[ROOT, PURE_V2, ("/run/systemd/system/x", "")]));
    is(&found, "no other manager of groups", State::Partly, "root's `run` holds units there", "");
    let killer = ("/run/systemd/io.systemd.ManagedOOM", "");
    let (_dir, found) = probed(&with(&top, &[ROOT, PURE_V2, ("/run/systemd/system/x", ""), killer]));
    is(&found, "no other manager of groups", State::Partly, "systemd-oomd runs", "");
    let slurm = ("/sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs", "");
    let set = [
        ROOT,
        PURE_V2,
        ("/run/systemd/system/x", ""),
        slurm,
        ("/sys/fs/cgroup/user.slice/user-1001.slice/cgroup.procs", ""),
        ("/sys/fs/cgroup/user.slice/user-1001.slice/cpu.max", "150000 100000\n"),
        ("/sys/fs/cgroup/system.slice/slurmd.service/memory.max", "4096\n"),
    ];
    let (_dir, found) = probed(&with(&top, &set));
    is(&found, "no other manager of groups", State::Partly, "Slurm also makes groups", "");
    let name = "no bounds set by others in slices and services";
    is(&found, name, State::Partly, "in user.slice/user-1001.slice: as long", "");
    is(&found, name, State::Partly, "(`MemoryMax=`) in system.slice/slurmd.service", "");
    let (_dir, found) = probed(&with(&top, &[ROOT, PURE_V2]));
    is(&found, "no other manager of groups", State::Yes, "no sign of systemd", "");
}

#[test]
fn the_effect_of_autogroup_on_the_daemon_is_reported() {
    let name = "nice value counts beyond its session";
    let switched = |state| ("/proc/sys/kernel/sched_autogroup_enabled", state);
    for (user, state) in [(ROOT, "0\n"), (ORDINARY, "0\n"), (ORDINARY, "")] {
        let (_dir, found) = probed(&[user, PURE_V2, switched(state)]);
        is(&found, name, State::Yes, "autogroup is off", "");
    }
    let (_dir, found) = probed(&[ROOT, PURE_V2, switched("1\n")]);
    is(&found, name, State::Yes, "`run` gives its session's autogroup the daemon's nice value", "");
    // A container's root, and a program that `setcap` gave CAP_SYS_NICE.
    let bounded = ("/proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\n");
    let given = ("/proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000800020\n");
    for user in [ORDINARY, bounded, given] {
        let (_dir, found) = probed(&[user, PURE_V2, switched("1\n")]);
        is(&found, name, State::Partly, "only root's `run` can raise", "sched_autogroup_enabled=0");
    }
}

/// A container that sees its control group as the root, and may not write there: every controller's row says
/// so, too.
#[test]
fn read_only_control_groups_of_a_container_are_reported() {
    let mount = "30 25 0:26 / /sys/fs/cgroup ro,nosuid,nodev - cgroup2 cgroup rw,nsdelegate\n";
    let (_dir, found) = probed(&[
        ROOT,
        ("/proc/self/mountinfo", mount),
        ("/proc/self/cgroup", "0::/\n"),
        ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids"),
    ]);
    assert!(found.cgroup.is_err());
    let place = "place for our cgroups";
    is(
        &found,
        place,
        State::No,
        "/sys/fs/cgroup is mounted read-only",
        "mount -o remount,rw /sys/fs/cgroup; in a container",
    );
    is(
        &found,
        "memory controller",
        State::No,
        "no place for our cgroups: /sys/fs/cgroup is mounted read-only",
        "",
    );
    assert!(found.enforcers()[1].why.contains("read-only"), "{}", found.enforcers()[1].why);
}

#[test]
fn an_ordinary_user_may_use_a_delegated_cgroup() {
    let own = managed(&format!("{TOP}{SCOPE}"), "cpu memory pids");
    let manager = format!("{TOP}/user.slice/user-1000.slice/user@1000.service");
    let (app_procs, manager_procs) =
        (format!("{manager}/app.slice/cgroup.procs"), format!("{manager}/cgroup.procs"));
    let (cgroup, kind) = (format!("0::{SCOPE}\n"), format!("{TOP}{SCOPE}/cgroup.type"));
    let low = format!("{TOP}/user.slice/memory.low");
    let (dir, found) = probed(&with(
        &own,
        &[
            ORDINARY,
            PURE_V2,
            ("/proc/self/cgroup", &cgroup),
            ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids"),
            ("/run/systemd/system/x", ""),
            (&kind, "domain\n"),
            (&low, "0\n"),
            (&app_procs, ""),
            (&manager_procs, ""),
        ],
    ));
    let place = found.cgroup.clone().unwrap();
    assert_eq!(place.base, dir.path().join(format!("sys/fs/cgroup{SCOPE}")));
    assert!(place.delegated && !place.controllers.contains("cpuset"));
    let reach = format!("only processes below {manager} can be moved");
    is(&found, "place for our cgroups", State::Partly, &reach, "run as root");
    is(
        &found,
        "memory guarantees",
        State::Partly,
        "other processes on the machine can take memory",
        "raise memory.low",
    );
    is(
        &found,
        "cpuset controller",
        State::No,
        "it is not passed on to",
        "Delegate=cpu cpuset io memory pids",
    );
    is(&found, "cgroup backend", State::Partly, "no home CPUs", "Delegate=cpu cpuset io memory pids");
    is(
        &found,
        "user backend",
        State::Partly,
        "our own user's processes only",
        "setcap cap_kill,cap_sys_nice,cap_sys_ptrace+ep",
    );
}

#[test]
fn an_ordinary_user_without_delegation_gets_a_remedy() {
    let files = [
        ORDINARY,
        PURE_V2,
        ("/proc/self/cgroup", "0::/user.slice/session-3.scope\n"),
        ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids"),
        ("/run/systemd/system/x", ""),
    ];
    let (_dir, found) = probed(&files);
    let row = found.cgroup.clone().unwrap_err();
    assert!(row.reason.contains(
        "neither to /sys/fs/cgroup nor to its own cgroup, /sys/fs/cgroup/user.slice/session-3.scope"
    ));
    assert!(row.remedy.unwrap().contains("systemd-run --user --scope -p Delegate=yes"));
    is(&found, "cpu controller", State::No, "no place for our cgroups", "");
    let cpu = &found.enforcers()[0];
    assert!(
        cpu.name.as_deref() == Some("user") && cpu.why.contains("not cgroup: this user may write neither"),
        "{cpu:?}"
    );
}

#[test]
fn controllers_bound_to_version_1_are_named_with_their_mount() {
    let files = [
        ROOT,
        (
            "/proc/self/mountinfo",
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
            33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        ),
        (
            "/proc/cgroups",
            "#subsys_name\thierarchy\tnum_cgroups\tenabled\n\
            cpuset\t3\t1\t1\ncpu\t1\t12\t1\nmemory\t0\t1\t0\n",
        ),
    ];
    let top = managed("/sys/fs/cgroup/unified", "");
    let (_dir, found) = probed(&with(&top, &files));
    is(&found, "cgroup v2", State::Partly, "beside 2 cgroup v1 hierarchies", "cgroup_no_v1=all");
    is(
        &found,
        "cpu controller",
        State::No,
        "bound to cgroup v1 at /sys/fs/cgroup/cpu",
        "boot with `cgroup_no_v1=all` on the kernel command line: /sys/fs/cgroup/cpu has cgroups",
    );
    is(
        &found,
        "cpuset controller",
        State::No,
        "",
        "umount /sys/fs/cgroup/cpuset, where it has no cgroups, until the next boot; for good, boot with",
    );
    is(
        &found,
        "memory controller",
        State::No,
        "disabled on the kernel command line",
        "cgroup_disable=memory",
    );
    is(&found, "io controller", State::No, "built without it", "CONFIG_BLK_CGROUP");
    assert!(found.cgroup.unwrap_err().reason.contains("the cpu controller is missing (bound to cgroup v1"));
    let (_dir, found) =
        probed(&[ROOT, PURE_V2, ("/proc/cmdline", "quiet cgroup_disable=pressure,memory ro\n")]);
    is(
        &found,
        "memory controller",
        State::No,
        "disabled on the kernel command line",
        "cgroup_disable=memory",
    );
    is(&found, "cpuset controller", State::No, "built without it", "CONFIG_CPUSETS");
}

#[test]
fn another_programs_scheduler_makes_cgroup_partly_usable() {
    let top = managed(TOP, "cpuset cpu");
    let (_dir, found) = probed(&with(
        &top,
        &[
            ROOT,
            PURE_V2,
            ("/sys/kernel/sched_ext/state", "enabled\n"),
            ("/sys/kernel/sched_ext/root/ops", "rusty_1.0\n"),
        ],
    ));
    is(&found, "sched_ext", State::Partly, "`rusty_1.0` is loaded (enabled)", "end the program");
    is(&found, "cgroup backend", State::Partly, "may ignore cpu.weight", "end the program");
    let (_dir, found) = probed(&[ROOT, ("/sys/kernel/sched_ext/state", "disabled\n")]);
    is(&found, "sched_ext", State::Yes, "no scheduler is loaded", "");
}

/// Everything that the `kernel` backend needs, and then each requirement missing in turn.
#[test]
fn the_kernel_backend_and_what_it_needs() {
    const RELEASE: &str = "/proc/sys/kernel/osrelease";
    const STATE: &str = "/sys/kernel/sched_ext/state";
    const CONFIG: &str = "/boot/config-6.16.3-amd64";
    let top = managed(TOP, "cpuset cpu");
    let both = "CONFIG_SCHED_CLASS_EXT=y\nCONFIG_EXT_GROUP_SCHED=y\n";
    let all = [
        ROOT,
        PURE_V2,
        (RELEASE, "6.16.3-amd64\n"),
        (STATE, "disabled\n"),
        ("/sys/kernel/btf/vmlinux", ""),
        (CONFIG, both),
    ];
    let probed = |built_in: bool, other: (&str, &str)| {
        let dir = fake::tree(&with(&top, &all));
        fake::add(&dir, &[other]);
        if other.1.is_empty() {
            std::fs::remove_file(dir.path().join(other.0.trim_start_matches('/'))).unwrap();
        }
        probe_with(dir.path(), syscalls(no_counter(), built_in))
    };
    let found = probed(true, ROOT);
    is(&found, "kernel backend", State::Yes, "loans at every switch", "");
    assert_eq!(found.kernel.as_ref().ok(), found.cgroup.as_ref().ok());
    assert_eq!(found.enforcers()[0].name.as_deref(), Some("kernel"));
    // The kernel's configuration need not be readable.
    is(&probed(true, (CONFIG, "")), "kernel backend", State::Yes, "", "");
    let missing = |built_in, other, reason, remedy| {
        let found = probed(built_in, other);
        is(&found, "kernel backend", State::No, reason, remedy);
        assert!(
            found.kernel.is_err() && found.enforcers()[0].why.contains(reason),
            "{:?}",
            found.enforcers()
        );
        found
    };
    let found = missing(false, ROOT, "this binary was built without the scheduler", "build it with clang");
    is(&found, "our scheduler", State::No, "", "");
    missing(true, (RELEASE, "6.11.9\n"), "6.11.9 is older than 6.12", "boot Linux 6.12");
    missing(true, (STATE, ""), "has no /sys/kernel/sched_ext", "CONFIG_SCHED_CLASS_EXT=y");
    missing(true, (STATE, "enabled\n"), "`of unknown name` is loaded (enabled)", "end the program");
    missing(true, ("/sys/kernel/btf/vmlinux", ""), "vmlinux does not exist", "CONFIG_DEBUG_INFO_BTF");
    let without = "CONFIG_SCHED_CLASS_EXT=y\n# CONFIG_EXT_GROUP_SCHED is not set\n";
    let found =
        missing(true, (CONFIG, without), "without CONFIG_EXT_GROUP_SCHED", "CONFIG_EXT_GROUP_SCHED=y");
    is(&found, "cgroups in sched_ext", State::No, "", "");
    let unprivileged = "Uid:\t0\t0\t0\t0\nCapEff:\t0000008000000000\n";
    let found = missing(true, (ROOT.0, unprivileged), "CAP_BPF and CAP_PERFMON", "run as root");
    is(&found, "may load a scheduler", State::No, "", "");
    let enough = probed(true, (ROOT.0, "Uid:\t0\t0\t0\t0\nCapEff:\t000000c000000000\n"));
    is(&enough, "kernel backend", State::Yes, "", "");
    let found = probed(true, ("/sys/fs/cgroup/cgroup.controllers", "memory\n"));
    let reason = "it needs the cgroup backend: the cpu controller is missing";
    is(&found, "kernel backend", State::No, reason, "");
}

#[test]
fn our_own_scheduler_is_recognised() {
    let (_dir, found) = probed(&[
        ROOT,
        ("/sys/kernel/sched_ext/state", "enabled\n"),
        ("/sys/kernel/sched_ext/root/ops", "commonhold\n"),
    ]);
    is(&found, "sched_ext", State::Partly, "a daemon holds a contract with it", "commonhold status");
    let (dir, found) = probed(&[
        ROOT,
        ("/sys/kernel/sched_ext/state", "disabling\n"),
        ("/sys/kernel/sched_ext/root/ops", "commonhold\n"),
    ]);
    is(&found, "sched_ext", State::Partly, "is being unloaded", "wait a moment");
    assert!(super::scheduler_is_leaving(dir.path()));
    let old = [("/proc/sys/kernel/osrelease", "5.10.0"), ("/boot/config-5.10.0", "CONFIG_X86=y")];
    is(&self::probed(&old).1, "sched_ext", State::No, "5.10.0 was built without CONFIG_SCHED_CLASS_EXT", "");
}

#[test]
fn disks_have_rows_for_weights_and_layers() {
    let disk = |name, dev, scheduler| {
        vec![
            (format!("/sys/block/{name}/size"), "8".to_owned()),
            (format!("/sys/block/{name}/dev"), format!("{dev}\n")),
            (format!("/sys/block/{name}/queue/scheduler"), format!("{scheduler}\n")),
            (format!("/sys/block/{name}/mq/0/nr_tags"), "31\n".to_owned()),
        ]
    };
    let files =
        [disk("sda", "8:0", "none [bfq]"), disk("sdb", "8:16", "[none]"), disk("dm-0", "253:0", "")].concat();
    let qos = [ROOT, PURE_V2, ("/sys/fs/cgroup/io.cost.qos", "8:0 enable=1 ctrl=auto\n8:16 enable=0\n")];
    let (_dir, found) = probed(&with(&files, &qos));
    is(
        &found,
        "io.cost",
        State::Partly,
        "it is off on sdb",
        "echo '8:16 enable=1' > /sys/fs/cgroup/io.cost.qos",
    );
    is(
        &found,
        "BFQ",
        State::Partly,
        "sda: none [bfq]; sdb: [none]",
        "modprobe bfq && echo bfq > /sys/block/sdb/queue",
    );
    is(&found, "disk sda", State::No, "cannot be held without the io controller", "");
    let (_dir, found) = probed(&with(&disk("sda", "8:0", "[bfq]"), &qos));
    is(&found, "io.cost", State::Yes, "not needed beside BFQ", "");
    is(&found, "BFQ", State::Yes, "schedules sda", "");
    let (_dir, found) = probed(&with(&disk("sda", "8:0", "[none]"), &qos));
    is(&found, "io.cost", State::Yes, "enabled on sda", "");
}

#[test]
fn the_reason_for_a_missing_cost_model_is_reported() {
    let top = managed(TOP, "cpu io memory");
    let disk = |more: &[(&'static str, &'static str)]| {
        let files = [
            ROOT,
            PURE_V2,
            ("/proc/self/cgroup", "0::/\n"),
            ("/proc/sys/kernel/osrelease", "6.12\n"),
            ("/sys/block/nvme0n1/size", "1000\n"),
            ("/sys/block/nvme0n1/dev", "259:0\n"),
        ];
        let files = [files.as_slice(), more].concat();
        probed(&with(&top, &files)).1
    };
    is(&disk(&[]), "io.cost", State::No, "this kernel was built without it", "CONFIG_BLK_CGROUP_IOCOST=y");
    let config = ("/boot/config-6.12", "CONFIG_X=y\nCONFIG_BLK_CGROUP_IOCOST=y\n");
    is(&disk(&[config]), "io.cost", State::No, "was built with it", "");
    let inner = ("/sys/fs/cgroup/cgroup.events", "populated 1\n");
    is(&disk(&[inner]), "io.cost", State::No, "does not show the hierarchy's root", "outside this container");
    let file = ("/sys/fs/cgroup/io.cost.qos", "");
    is(&disk(&[file]), "io.cost", State::Partly, "nvme0n1 cannot have it", "nvme_core.multipath=N");
    let queue = ("/sys/block/nvme0n1/mq/0/nr_tags", "31\n");
    is(
        &disk(&[file, queue]),
        "io.cost",
        State::Partly,
        "off on nvme0n1",
        "commonhold calibrate FOLDER, then",
    );
    is(
        &disk(&[file]),
        "throughput of disks measured",
        State::No,
        "no disk was measured",
        "commonhold calibrate",
    );
    let way = r#"{"bytes_per_s":8000000,"sequential_per_s":2,"random_per_s":1,"latency_us":3}"#;
    let model = format!(r#"{{"read":{way},"write":{way}}}"#);
    let known: &'static str = model.leak();
    let found = disk(&[file, queue, ("/var/lib/commonhold/disks/__512000.json", known)]);
    is(&found, "io.cost", State::Partly, "off on nvme0n1", "commonhold run switches it on; or, unmeasured");
    is(&found, "throughput of disks measured", State::Yes, "nvme0n1: 8.0 MB/s read, 8.0 MB/s written", "");
}

#[test]
fn a_missing_controller_is_reported_for_its_own_resource() {
    let (_dir, found) = probed(&[
        ROOT,
        (
            "/proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             32 23 0:28 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n\
             33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        ),
        ("/proc/self/cgroup", "0::/\n"),
        ("/sys/block/sda/size", "8"),
        ("/sys/block/sda/dev", "8:0"),
    ]);
    for (resource, controller) in [(1, "memory"), (2, "blkio")] {
        let enforcer = &found.enforcers()[resource];
        assert!(enforcer.name.is_none() && enforcer.why.contains(controller), "{enforcer:?}");
    }
}

#[test]
fn each_disk_has_a_row_with_the_mechanism_that_holds_it() {
    let top = managed(TOP, "cpu io memory");
    let mounts = format!(
        "{}31 23 8:1 / / rw - ext4 /dev/sda1 rw\n32 23 8:2 / /efi rw - vfat /dev/sda2 rw\n33 23 0:40 / /home rw - nfs4 a:/b rw\n",
        PURE_V2.1
    );
    let files = [
        ROOT,
        ("/proc/self/mountinfo", mounts.as_str()),
        ("/proc/self/cgroup", "0::/\n"),
        ("/sys/block/sda/size", "8"),
        ("/sys/block/sda/dev", "8:0"),
        ("/sys/block/sda/queue/scheduler", "none [bfq]"),
        ("/sys/block/sda/sda1/holders/dm-0/x", ""),
        ("/sys/block/sdb/size", "8"),
        ("/sys/block/sdb/dev", "8:16"),
    ];
    let (dir, found) = probed(&with(&top, &files));
    let elsewhere = super::file_systems_elsewhere(dir.path());
    assert_eq!(
        elsewhere.as_deref(),
        Some("outside of control, since the disks belong to another machine: /home (nfs4)")
    );
    assert_eq!(super::file_systems_elsewhere(std::path::Path::new("/none")), None);
    is(&found, "disk sda", State::Yes, "held by BFQ's weights", "");
    is(&found, "disk sdb", State::Yes, "rates (io.max) that follow use", "");
    is(&found, "layers on disks", State::Yes, "dm-0 on sda: requests are counted", "");
    is(&found, "write-back is attributed", State::Partly, "/efi (vfat) does not attribute", "ext4");
    is(&found, "file systems are local", State::Partly, "/home (nfs4)", "where the disks are");
    let disk = &found.enforcers()[2];
    assert_eq!((disk.name.as_deref(), disk.why.contains("BFQ")), (Some("cgroup"), true), "{disk:?}");
}

/// Layers whose kernel threads make transfers are named, since these are held for no unit.
#[test]
fn layers_with_unattributed_requests_are_reported() {
    let files = [
        ROOT,
        PURE_V2,
        ("/sys/block/sda/size", "8"),
        ("/sys/block/sda/dev", "8:0"),
        ("/sys/block/sda/holders/bcache0/x", ""),
        ("/sys/block/bcache0/size", "8"),
        ("/sys/block/bcache0/slaves/sda/x", ""),
        ("/sys/block/zd0/size", "8"),
    ];
    let (_dir, found) = probed(&with(&managed(TOP, "cpu io memory"), &files));
    let disks: Vec<&str> = found.rows.iter().filter_map(|row| row.name.strip_prefix("disk ")).collect();
    assert_eq!(disks, ["sda"]);
    let layers = |words| is(&found, "layers on disks", State::Partly, words, "on a file system on a disk");
    layers("bcache0 on sda: requests are counted and held at the disk below; zd0: all requests of ZFS");
    layers("bcache0: bcache's write-back and cache fills are attributed to no unit");
}

/// Writes to an array with parity are held at the array, since its drives attribute them to no unit.
#[test]
fn an_array_is_held_in_place_of_its_drives() {
    let array = [
        ROOT,
        PURE_V2,
        ("/proc/self/cgroup", "0::/\n"),
        ("/proc/self/io", "rchar: 0\n"),
        ("/sys/fs/cgroup/io.cost.qos", ""),
        ("/sys/block/md0/size", "8"),
        ("/sys/block/md0/dev", "9:0"),
        ("/sys/block/md0/md/level", "raid5"),
        ("/sys/block/md0/slaves/sda1/x", ""),
        ("/sys/block/md0/slaves/sdb/x", ""),
        ("/sys/block/md0/holders/dm-0/x", ""),
        ("/sys/block/sda/size", "8"),
        ("/sys/block/sda/dev", "8:0"),
        ("/sys/block/sda/sda1/holders/md0/x", ""),
        ("/sys/block/sdb/size", "8"),
        ("/sys/block/sdb/dev", "8:16"),
        ("/sys/block/sdb/holders/md0/x", ""),
    ];
    let found = |more: &[(&'static str, &'static str)]| {
        probed(&with(&managed(TOP, "cpu io memory"), &[array.as_slice(), more].concat())).1
    };
    let alone = found(&[]);
    let rows = |found: &Capabilities| -> Vec<String> {
        let disks = found.rows.iter().filter(|row| row.name.starts_with("disk "));
        disks.map(|row| row.name.clone()).collect()
    };
    assert_eq!(rows(&alone), ["disk md0"]);
    is(&alone, "disk md0", State::Yes, "raid5 on sda1, sdb, held by rates (io.max) that follow use", "");
    is(&alone, "BFQ", State::No, "an array has no request queue", "");
    is(&alone, "io.cost", State::Partly, "md0 cannot have it: the kernel has no request queue", "");
    is(&alone, "layers on disks", State::Yes, "dm-0 on md0: requests are counted and held", "");
    is(
        &alone,
        "user backend, disks",
        State::Partly,
        "no scheduler honours priorities on md0 (raid5)",
        "use control groups",
    );
    assert_eq!(row(&alone, "user backend, disks").remedy.as_deref(), Some("use control groups"));
    // A partition of a drive has another use.
    let beside = found(&[("/sys/block/sda/sda2/stat", "9 0 99999 0 9 0 0 0")]);
    assert_eq!(rows(&beside), ["disk md0", "disk sda"]);
    is(&beside, "layers on disks", State::Yes, "what md0 writes there is held at md0", "");
    is(&beside, "BFQ", State::No, "sda: none", "echo bfq > /sys/block/sda/queue/scheduler");
    let volume =
        found(&[("/sys/block/sdb/holders/dm-1/x", ""), ("/sys/block/dm-1/dm/name", "vg-lv_rimage_0\n")]);
    is(&volume, "layers on disks", State::Partly, "writes to RAID 4 to 6 made by LVM", "mdadm");
}

#[test]
fn caps_of_a_container_are_found_in_either_version() {
    let (_dir, found) = probed(&[
        ROOT,
        PURE_V2,
        ("/.dockerenv", ""),
        ("/proc/self/cgroup", "0::/a/b\n"),
        ("/sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
        ("/sys/fs/cgroup/a/b/cpu.max", "200000 100000\n"),
        ("/sys/fs/cgroup/cpu.max", "max 100000\n"),
        ("/sys/fs/cgroup/a/b/memory.max", "1073741824\n"),
        ("/sys/devices/system/cpu/online", "0-7\n"),
    ]);
    is(&found, "outside a container", State::Partly, "/.dockerenv exists", "on the host");
    is(
        &found,
        "CPU time not capped",
        State::Partly,
        "a/cpu.max holds us to 1.50 CPUs",
        "echo max > /sys/fs/cgroup/a/cpu.max",
    );
    is(&found, "memory not capped", State::Partly, "b/memory.max holds us to 1024 MiB", "echo max >");
    is(&found, "every CPU usable", State::Partly, "0-3 of 0-7", "taskset -c 0-7");
    let (_dir, found) = probed(&[
        ROOT,
        ("/proc/self/mountinfo", "32 31 0:29 /docker/x /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"),
        ("/proc/self/cgroup", "1:cpu:/docker/x\n"),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
        ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
    ]);
    is(&found, "CPU time not capped", State::Partly, "holds us to 0.50 CPUs", "echo -1 >");
    is(&found, "outside a container", State::Partly, "our cgroup is /docker/x", "");
}

#[test]
fn bus_and_privileges_have_rows() {
    let files = [
        ("/proc/cpuinfo", "processor : 0\nflags : fpu mba cqm cqm_mbm_local hypervisor\n"),
        ("/proc/sys/kernel/perf_event_paranoid", "2\n"),
        ("/sys/fs/resctrl/x", ""),
        ("/proc/stat", "cpu  10 0 10 70 0 0 0 10 5 0\n"),
    ];
    let dir = fake::tree(&[ROOT, files[0], files[1], files[2], files[3]]);
    let found = probe_with(dir.path(), syscalls(Ok(()), true));
    is(&found, "bandwidth meter (MBM)", State::Yes, "`cqm_mbm_local`", "");
    is(&found, "bandwidth cap (MBA)", State::Yes, "`mba`", "");
    is(&found, "resctrl file system", State::No, "not mounted", "mount -t resctrl resctrl /sys/fs/resctrl");
    is(&found, "hardware counters", State::Yes, "every process", "");
    is(&found, "outside a VM", State::Partly, "(10.0 % of it so far)", "");
    fake::add(&dir, &[ORDINARY]);
    let denied = || Err(io::Error::from_raw_os_error(libc::EACCES));
    is(
        &probe_with(dir.path(), syscalls(Ok(()), true)),
        "hardware counters",
        State::Partly,
        "our own processes",
        "run as root",
    );
    is(
        &probe_with(dir.path(), syscalls(denied(), true)),
        "hardware counters",
        State::No,
        "paranoid = 2",
        "sysctl",
    );
    is(&probe_with(dir.path(), syscalls(denied(), true)), "root", State::No, "user is 1000", "run as root");
}

#[test]
fn sources_of_bus_use_are_reported() {
    let found_with = |files: &[(&str, &str)], counter: fn() -> io::Result<()>| {
        let dir = fake::tree(files);
        let found = probe_with(dir.path(), syscalls(counter(), true));
        (dir, found)
    };
    let (yes, no) = (|| Ok(()), || Err(io::Error::from_raw_os_error(libc::ENOENT)));
    let none = [ROOT, ("/proc/cpuinfo", "flags : fpu\n"), ("/proc/sys/kernel/perf_event_paranoid", "2\n")];
    let (_dir, found) = found_with(&none, no);
    is(&found, "bus use of units", State::No, "no resctrl", "LD_PRELOAD");
    is(&found, "bus use of jobs", State::No, "cannot count cache misses", "LD_PRELOAD");
    is(&found, "bus use reported by programs", State::Partly, "only by their own count", "LD_PRELOAD");
    is(&found, "bus use assumed", State::Partly, "first-rate", "first-rate");
    is(&found, "cache held by jobs", State::No, "no flag `cqm_occup_llc`", "gangs-share");
    is(&found, "bus use of units capped", State::No, "no cap", "");

    let could = [ROOT, ("/proc/cpuinfo", "flags : mba cqm_mbm_total\n"), ("/sys/fs/resctrl/x", ""), none[2]];
    let (_dir, found) = found_with(&could, yes);
    is(&found, "bus use of units", State::Yes, "`run` mounts resctrl", "");
    is(&found, "bus use of jobs", State::Yes, "times a line", "");
    is(&found, "bus use reported by programs", State::Yes, "by hardware counters", "");
    is(&found, "bus use of units capped", State::Partly, "`run` mounts", "");

    let mount = ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/resctrl rw - resctrl resctrl rw\n");
    let mon = |features| ("/sys/fs/resctrl/info/L3_MON/mon_features", features);
    let mounted = [
        ROOT,
        mount,
        mon("llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"),
        ("/sys/fs/resctrl/info/MB/min_bandwidth", "10\n"),
        ("/sys/fs/resctrl/info/MB/bandwidth_gran", "20\n"),
        ("/sys/fs/resctrl/schemata", "MB:0=100\n"),
        ("/sys/fs/resctrl/tasks", ""),
        ("/sys/fs/resctrl/info/L3_MON/num_rmids", "32\n"),
    ];
    let (dir, found) = found_with(&mounted, yes);
    is(&found, "bus use of units", State::Yes, "mbm_total_bytes", "");
    is(&found, "cache held by jobs", State::Yes, "for 31 groups", "");
    is(&found, "bus use of units capped", State::Yes, "from 10 % in steps of 20 %", "");
    fake::add(&dir, &[mon("mbm_local_bytes\n"), ("/sys/fs/resctrl/schemata", "MB:0=2048\n")]);
    let found = probe_with(dir.path(), syscalls(Ok(()), true));
    is(&found, "bus use of units", State::Partly, "the node where they run", "");
    is(&found, "cache held by jobs", State::No, "counts no llc_occupancy", "gangs-share");
    is(&found, "bus use of units capped", State::No, "rates of each cache", "");
    fake::add(&dir, &[mon("llc_occupancy\n")]);
    let found = probe_with(dir.path(), syscalls(Ok(()), true));
    is(&found, "bus use of units", State::No, "counts no transfers", "LD_PRELOAD");
}

#[test]
fn the_measured_bus_bandwidth_is_reported() {
    let files = [
        ("/proc/meminfo", "MemTotal: 1000 kB\n"),
        ("/proc/cpuinfo", "model name : X\n"),
        ("/sys/devices/system/cpu/online", "0\n"),
        ("/sys/devices/system/cpu/present", "0\n"),
        ("/sys/devices/system/cpu/cpu0/online", "1\n"),
    ];
    let row = |found: &Capabilities, state, words: &str, remedy: &str| {
        is(found, "bus bandwidth measured", state, words, remedy);
    };
    let dir = fake::tree(&files);
    let found = probe_with(dir.path(), syscalls(Ok(()), true));
    row(&found, State::No, "10 GB/s", "commonhold calibrate --bus");
    is(&found, "size of last-level caches", State::Partly, "2 MiB are assumed", "");
    let kept = r#"{"one_bytes_per_s":9000000000,"all_bytes_per_s":28750000000,"cpus":4,"others_percent":5}"#;
    let file = "/var/lib/commonhold/bus/X_1_1_1.json";
    fake::add(&dir, &[(file, kept)]);
    let words = "28.7 GB/s by 4 CPUs together, 9.0 GB/s by one";
    row(&probe_with(dir.path(), syscalls(Ok(()), true)), State::Yes, words, "");
    fake::add(&dir, &[(file, &kept.replace("\":5", "\":6"))]);
    row(&probe_with(dir.path(), syscalls(Ok(()), true)), State::Partly, "6 %", "while nothing else runs");
}

#[test]
fn on_an_empty_machine_every_row_is_no() {
    let (_dir, found) = probed(&[]);
    assert!(found.cgroup.is_err() && found.user.state == State::Partly);
    assert_eq!(found.findings().machine, None);
    is(&found, "facts of the machine", State::No, "online: cannot read it", "");
    is(&found, "cgroup v2", State::No, "no control groups", "CONFIG_CGROUPS");
    is(&found, "kernel", State::Partly, "version `unknown`", "");
    is(&found, "disks", State::No, "", "");
}

#[test]
fn malformed_files_do_not_fail_the_probe() {
    let noise = "\u{0}: - ::\n99999999999999999999 -1 x/y,,,\n \n";
    let files = [
        "/proc/self/status",
        "/proc/self/mountinfo",
        "/proc/self/cgroup",
        "/proc/self/uid_map",
        "/proc/cgroups",
        "/proc/cpuinfo",
        "/proc/stat",
        "/proc/swaps",
        "/proc/sys/kernel/osrelease",
        "/proc/pressure/cpu",
        "/proc/sys/kernel/perf_event_paranoid",
        "/sys/devices/system/cpu/online",
        "/sys/block/sda/size",
        "/sys/kernel/sched_ext/state",
        "/sys/hypervisor/type",
    ];
    let (_dir, found) = probed(&files.map(|file| (file, noise)));
    assert!(found.cgroup.is_err());
    let (_dir, found) =
        probed(&[PURE_V2, ("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/cpu.max", "5 0\n")]);
    is(&found, "CPU time not capped", State::Yes, "", "");
}

#[test]
fn this_machine_has_a_row_for_every_area_and_rows_are_sorted_by_area() {
    let found = probe(std::path::Path::new("/"));
    let mut areas: Vec<Area> = found.rows.iter().map(|row| row.area).collect();
    assert!(areas.is_sorted());
    areas.dedup();
    assert_eq!(areas, Area::ALL);
}

/// Without control groups, the `user` backend holds memory and disks, and the rows say how much more weakly.
#[test]
fn limitations_of_the_user_backend_are_reported() {
    let files = [
        ("/proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-3\n"),
        ("/proc/self/pagemap", ""),
        ("/proc/self/io", "read_bytes: 0\n"),
        ("/sys/block/sda/size", "2000\n"),
        ("/sys/block/sda/dev", "8:0\n"),
        ("/sys/block/sda/queue/scheduler", "none [mq-deadline] bfq\n"),
    ];
    let dir = fake::tree(&files);
    let probe = |pages_out| probe_with(dir.path(), Syscalls { pages_out, ..syscalls(no_counter(), true) });
    let found = probe(true);
    is(&found, "user backend, memory", State::Partly, "without swap pages of files only", "add swap");
    let reason =
        "shares are not held: no scheduler honours priorities on sda (mq-deadline honours classes only)";
    is(&found, "user backend, disks", State::Partly, reason, "echo bfq > /sys/block/sda/queue/scheduler");
    let held: Vec<_> = found.enforcers().iter().map(|enforcer| enforcer.name.clone()).collect();
    let user = || Some("user".to_owned());
    assert_eq!(held, [user(), user(), user(), Some("gangs".to_owned())]);
    assert!(found.enforcers()[1].why.contains("; not cgroup: "), "{:?}", found.enforcers()[1]);

    is(&probe(false), "user backend, memory", State::No, "does not have process_madvise", "Linux 5.10");
    assert_eq!(probe(false).enforcers()[1].name, None);

    fake::add(
        &dir,
        &[
            ("/sys/block/sda/queue/scheduler", "none [bfq]\n"),
            ("/proc/swaps", "Filename\n/dev/sdb partition 1 0 -2\n"),
            ("/proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n"),
        ],
    );
    let found = probe(true);
    is(&found, "user backend, memory", State::No, "takes CAP_SYS_NICE", "setcap cap_kill,cap_sys_nice");
    let reason = "in eight steps on sda; our own user's processes only";
    is(&found, "user backend, disks", State::Partly, reason, "use control groups");
}

#[test]
fn a_cgroup_is_searched_in_the_hierarchy_that_proc_shows() {
    let missing = |mounts: &str, there: &str| -> Vec<&str> {
        let dir = fake::tree(&[("/proc/self/mountinfo", mounts), (&format!("{there}/cgroup.procs"), "")]);
        let paths = ["/lab/x", "/lab/y"].into();
        super::missing_cgroups(dir.path(), &paths).into_iter().collect()
    };
    assert_eq!(missing(PURE_V2.1, "/sys/fs/cgroup/lab/x"), ["/lab/y"]);
    // Beside version 1, if every process is at `/` in version 2.
    let v1 = "31 23 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
    assert_eq!(missing(v1, "/sys/fs/cgroup/systemd/lab/y"), ["/lab/x"]);
    // A part of the hierarchy with neither is mounted, or nothing: unknown.
    let part = "30 23 0:26 /docker /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    assert_eq!(missing(part, "/sys/fs/cgroup/lab/x"), [] as [&str; 0]);
    assert_eq!(missing("", "/sys/fs/cgroup/lab/x"), [] as [&str; 0]);
}

/// A /proc that hides processes, seen by programs with and without the privilege to see them.
#[test]
fn hidden_processes_are_reported_unless_we_see_them() {
    let seen = |options: &str, groups: &str, capabilities: &str| {
        let mounts = format!(
            "22 1 0:20 / /proc rw - proc proc rw\n23 22 0:21 / /proc rw,nosuid,nodev - proc proc rw{options}\n\
             24 22 0:22 / /srv/proc rw - proc proc rw,hidepid=invisible\n"
        );
        let status =
            format!("Uid:\t7\t7\t7\t7\nGid:\t7\t7\t7\t7\nGroups:\t{groups}\nCapEff:\t{capabilities}\n");
        let files = [("/proc/self/mountinfo", mounts.as_str()), ("/proc/self/status", status.as_str())];
        let (dir, found) = probed(&files);
        let row = found.rows.iter().find(|row| row.name == "other users' processes").cloned();
        let hidden = super::hidden_processes(dir.path());
        assert_eq!(hidden.is_some(), row.as_ref().is_some_and(|row| row.state == State::Partly));
        (row.map(|row| row.state), hidden.and_then(|row| row.remedy).unwrap_or_default())
    };
    let (none, ptrace) = ("0000000000000000", "0000000000080000");
    for options in ["", ",hidepid=0", ",hidepid=off", ",gid=5"] {
        assert_eq!(seen(options, "7", none).0, None, "{options}");
    }
    for hides in ["1", "noaccess", "2", "invisible", "4", "ptraceable"] {
        let options = format!(",gid=5,hidepid={hides}");
        assert_eq!(seen(&options, "7 50", none).0, Some(State::Partly), "{hides}");
        assert_eq!(seen(&options, "7", ptrace).0, Some(State::Yes), "{hides}");
        let by_group = !matches!(hides, "4" | "ptraceable");
        let expected = if by_group { State::Yes } else { State::Partly };
        assert_eq!(seen(&options, "7 5", none).0, Some(expected), "{hides}");
        let remedy = seen(&options, "7", none).1;
        assert_eq!(remedy.contains("group 5"), by_group, "{remedy}");
    }
    // Without `gid=`, root's group is exempt.
    assert_eq!(seen(",hidepid=2", "7 0", none).0, Some(State::Yes));
    assert!(!seen(",hidepid=2", "7", none).1.contains("group"), "no user should be added to root's group");
}
