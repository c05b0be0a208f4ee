//! What `doctor` shows, word for word. `INSTA_UPDATE=always cargo test -p commonhold-report` rewrites the
//! files.

#![allow(clippy::unwrap_used)]

use commonhold_machine::Machine;
use commonhold_machine::capability::{Area, Enforcer, Findings, Row};
use commonhold_report::{Style, doctor};

fn machine() -> Machine {
    Machine::synthetic("nodes:4 cpus:2 memory:512MiB disks:1").unwrap()
}

fn findings() -> Findings {
    let why = "checked in contracts, not held by this version yet";
    Findings {
        machine: Some(machine()),
        enforcers: vec![
            Enforcer {
                resource: Area::Cpu,
                name: Some("user".into()),
                why: "affinity for home CPUs and loans, stop/continue for finer shares; not cgroup: it is not mounted"
                    .into(),
            },
            Enforcer { resource: Area::Memory, name: None, why: why.into() },
        ],
        rows: vec![
            Row::no(Area::Cgroup, "cgroup v2", "it is not mounted")
                .remedy("mount -t cgroup2 cgroup2 /sys/fs/cgroup"),
            Row::yes(Area::Cpu, "user backend", "affinity for home CPUs and loans, stop/continue for finer shares"),
            Row::partly(
                Area::Surroundings,
                "CPU time not capped",
                "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/a-very-long-name.scope/cpu.max holds us \
                 to 1.50 CPUs",
            )
            .remedy("echo max > \
             /sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/a-very-long-name.scope/cpu.max"),
            Row::yes(Area::Surroundings, "a name\u{1b}[2J that clears", "物理学部の計算機はここにあります。 そして続きます。 もう少し。"),
        ],
    }
}

#[test]
fn at_80_columns() {
    insta::assert_snapshot!(doctor::text(&findings(), Style::PLAIN));
}

#[test]
fn in_colour_and_narrow() {
    let text = doctor::text(&findings(), Style { colour: true, width: 50 });
    insta::assert_snapshot!(text.replace('\x1b', "␛"));
}

#[test]
fn without_findings() {
    let nothing = Findings { machine: None, enforcers: Vec::new(), rows: Vec::new() };
    insta::assert_snapshot!(doctor::text(&nothing, Style::PLAIN));
}

#[test]
fn as_json() {
    let small = Machine::synthetic("").unwrap();
    insta::assert_snapshot!(doctor::json(&Findings { machine: Some(small), ..findings() }));
}
