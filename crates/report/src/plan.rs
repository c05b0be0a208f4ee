//! A plan with its reasons, for `run --dry-run`.

use std::collections::BTreeMap;

use commonhold_contract::measure::CpuCount;
use commonhold_contract::{Contract, GangsShare, UnitId};
use commonhold_machine::CpuSet;
use commonhold_policy::plan::{
    CpuDecision, CpuOrder, DiskOrder, Gang, GangOrder, MemoryOrder, NodePart, PartOrder, Seat, SeatOrder,
    SharedRate,
};
use commonhold_policy::{Plan, Reason};
use serde::{Serialize, Serializer};

use crate::figures::{count, duration};
use crate::holdings::Outlook;
use crate::present::{self, Present, PresentJson};
use crate::table::{Paint, Style, clean, wrap};
use crate::words::{Action, path, steps, words};

/// The plan as text: for each unit its steps, each with its number in the plan's order and its reason.
pub fn text(contract: &Contract, plan: &Plan, style: Style) -> String {
    let all = steps(plan);
    if all.is_empty() {
        return format!(
            "Nothing to do: what is in force is what the contract asks for.\n{}",
            look(contract, plan, style)
        );
    }
    let mut units: BTreeMap<UnitId, Vec<(usize, Action<'_>, Reason)>> = BTreeMap::new();
    for (number, (action, reason)) in (1..).zip(&all) {
        units.entry(action.unit()).or_default().push((number, *action, *reason));
    }
    let mut text =
        format!("{} for {}, numbered in their order\n", count(all.len(), "step"), count(units.len(), "unit"));
    let digits = all.len().to_string().len();
    for (unit, steps) in &units {
        text += &format!(
            "\n{}{}\n",
            style.paint(Paint::Strong, &clean(path(contract, *unit))),
            worth(plan, *unit)
        );
        for (number, action, reason) in steps {
            let first = format!("  {number:digits$}. ");
            let (what, why) = words(contract, *action, *reason);
            let (what, why) = (clean(&what), clean(&why));
            let rest = " ".repeat(first.len());
            for line in wrap(&format!("{what} ({why})"), style.width, &first, &rest) {
                text += &line;
                text.push('\n');
            }
        }
    }
    text + "\n" + &look(contract, plan, style)
}

/// The end of a unit's heading, `, entitled to 1.5 CPUs`; empty if the plan does not have the unit's
/// entitlement.
fn worth(plan: &Plan, unit: UnitId) -> String {
    plan.decisions
        .cpu
        .entitled
        .get(unit.index())
        .map_or_else(String::new, |micro| format!(", entitled to {}", CpuCount(*micro)))
}

/// A sentence that says when the daemon observes the machine next, and which units' demand it samples until
/// then.
fn look(contract: &Contract, plan: &Plan, style: Style) -> String {
    let mut text = match plan.next.checked_sub(plan.at) {
        Some(after) if after > 0 => format!("Looks again within {}", duration(after)),
        _ => "Looks again at once".to_owned(),
    };
    if !plan.watch.is_empty() {
        let watched: Vec<String> = plan.watch.iter().map(|unit| clean(path(contract, *unit))).collect();
        text += &format!(", each time at what {} can use", watched.join(", "));
    }
    wrap(&(text + "."), style.width, "", "").join("\n") + "\n"
}

#[derive(Serialize)]
struct PlanJson<'a> {
    #[serde(flatten)]
    outlook: Outlook<'a>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    io_cost: &'a [String],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    present: Vec<PresentJson<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    warnings: &'a [serde_json::Value],
    at_ns: u64,
    next_ns: u64,
    entitled: Vec<EntitledJson<'a>>,
    watch: Vec<&'a str>,
    steps: Vec<StepJson<'a>>,
}

#[derive(Serialize)]
struct EntitledJson<'a> {
    unit: &'a str,
    micro_cpus: u64,
}

#[derive(Serialize)]
struct StepJson<'a> {
    unit: &'a str,
    action: ActionJson<'a>,
    action_text: String,
    reason: ReasonJson<'a>,
    reason_text: String,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum ActionJson<'a> {
    Own {
        cpu: u32,
        unit: &'a str,
    },
    Disown {
        cpu: u32,
        unit: &'a str,
    },
    Lend {
        cpu: u32,
        lender: &'a str,
        borrower: &'a str,
    },
    CallBack {
        cpu: u32,
        lender: &'a str,
        borrower: &'a str,
        since_ns: u64,
    },
    Return {
        cpu: u32,
        lender: &'a str,
        borrower: &'a str,
    },
    Confine {
        unit: &'a str,
        cpus: Option<&'a CpuSet>,
    },
    Weigh {
        unit: &'a str,
        weight: u32,
    },
    Credit {
        unit: &'a str,
        credit_ms: i32,
    },
    Cap {
        unit: &'a str,
        micro_cpus: Option<u64>,
    },
    Gate {
        unit: &'a str,
        open: bool,
    },
    WeighDisk {
        unit: &'a str,
        disk: &'a str,
        weight: u32,
    },
    StopForDisk {
        unit: &'a str,
        disk: &'a str,
        stopped: bool,
    },
    ShareDisk {
        unit: &'a str,
        disk: &'a str,
        share: u64,
    },
    Seat {
        thread: u64,
        job: u32,
        unit: &'a str,
        pool: Option<u32>,
    },
    RunOn {
        thread: u64,
        job: u32,
        unit: &'a str,
        cpus: Option<&'a CpuSet>,
    },
    Bring {
        job: u32,
        unit: &'a str,
        nodes: &'a [NodePart],
        divided: bool,
    },
    RunTogether {
        job: u32,
        unit: &'a str,
        cpus: u32,
        #[serde(flatten)]
        rate: SharedRate,
    },
    GateJob {
        job: u32,
        unit: &'a str,
        open: bool,
    },
    CapDisk {
        unit: &'a str,
        disk: &'a str,
        read_bytes_per_s: Option<u64>,
        written_bytes_per_s: Option<u64>,
    },
    Guarantee {
        unit: &'a str,
        min: u64,
        low: u64,
        own: u64,
    },
    Allow {
        unit: &'a str,
        bytes: Option<u64>,
    },
    Reclaim {
        unit: &'a str,
        bytes: u64,
        files: bool,
    },
    Expose {
        unit: &'a str,
        exposed: bool,
    },
    Part {
        unit: &'a str,
        order: &'a PartOrder,
    },
}

/// A reason in JSON. It is written as the policy serialises it, except that units are given by path, and that
/// the name of a rate contains its unit of measure.
struct ReasonJson<'a> {
    contract: &'a Contract,
    reason: Reason,
}

/// The reasons that are written in another form than the policy serialises them in.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Adapted<'a> {
    Fittest {
        #[serde(flatten)]
        left: LeftJson,
    },
    LargerClaim {
        of: &'a str,
    },
    YieldsTheBus {
        to: &'a str,
    },
    DiskWanted {
        part: u64,
        by: &'a str,
        since_ns: u64,
    },
}

/// The unused amount of the shared resource for each CPU that was left when a gang was chosen.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum LeftJson {
    LeftBytesPerS(i64),
    LeftCacheBytes(i64),
}

impl Serialize for ReasonJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = |unit: UnitId| path(self.contract, unit);
        let adapted = match self.reason {
            Reason::Fittest { of, left } => Adapted::Fittest {
                left: match of {
                    GangsShare::Bus => LeftJson::LeftBytesPerS(left),
                    GangsShare::Cache => LeftJson::LeftCacheBytes(left),
                },
            },
            Reason::LargerClaim { of } => Adapted::LargerClaim { of: name(of) },
            Reason::YieldsTheBus { to } => Adapted::YieldsTheBus { to: name(to) },
            Reason::DiskWanted { part, by, since } => {
                Adapted::DiskWanted { part, by: name(by), since_ns: since }
            }
            reason => return reason.serialize(serializer),
        };
        adapted.serialize(serializer)
    }
}

/// The plan as JSON, with the steps in the plan's order. Times are in nanoseconds on the backend's clock.
/// Each action and each reason is given as fields and as a sentence. `entitled` includes `shared`, which owns
/// what no unit holds. It does not include `kernel`, which is entitled to nothing and never restricted.
pub fn json(contract: &Contract, plan: &Plan, about: About<'_>) -> String {
    let content = PlanJson {
        outlook: about.outlook,
        io_cost: about.io_cost,
        present: present::json(contract, about.present),
        warnings: about.warnings,
        at_ns: plan.at,
        next_ns: plan.next,
        entitled: (0..)
            .zip(&plan.decisions.cpu.entitled)
            .filter(|(unit, _)| UnitId(*unit) != UnitId::KERNEL)
            .map(|(unit, micro_cpus)| EntitledJson {
                unit: path(contract, UnitId(unit)),
                micro_cpus: *micro_cpus,
            })
            .collect(),
        watch: plan.watch.iter().map(|unit| path(contract, *unit)).collect(),
        steps: steps(plan).iter().map(|(action, reason)| step_json(contract, *action, *reason)).collect(),
    };
    crate::json("commonhold.plan", content)
}

/// Information that is printed with a plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct About<'a> {
    /// The present processes of each unit.
    pub present: &'a [Present],
    /// How each resource would be held, and what cannot be kept.
    pub outlook: Outlook<'a>,
    /// The disks for which io.cost would be switched on.
    pub io_cost: &'a [String],
    /// The contract's warnings, in the format in which the errors of an invalid contract are given.
    pub warnings: &'a [serde_json::Value],
}

fn step_json<'a>(contract: &'a Contract, action: Action<'a>, reason: Reason) -> StepJson<'a> {
    let (action_text, reason_text) = words(contract, action, reason);
    StepJson {
        unit: path(contract, action.unit()),
        action: action_json(contract, action),
        action_text,
        reason: ReasonJson { contract, reason },
        reason_text,
    }
}

fn action_json<'a>(contract: &'a Contract, action: Action<'a>) -> ActionJson<'a> {
    let name = |unit: UnitId| path(contract, unit);
    match action {
        Action::Decision(&CpuDecision::Own { cpu, unit }) => ActionJson::Own { cpu, unit: name(unit) },
        Action::Decision(&CpuDecision::Disown { cpu, unit }) => ActionJson::Disown { cpu, unit: name(unit) },
        Action::Decision(&CpuDecision::Lend { cpu, lender, borrower }) => {
            ActionJson::Lend { cpu, lender: name(lender), borrower: name(borrower) }
        }
        Action::Decision(&CpuDecision::CallBack { cpu, lender, borrower, since }) => {
            ActionJson::CallBack { cpu, lender: name(lender), borrower: name(borrower), since_ns: since }
        }
        Action::Decision(&CpuDecision::Return { cpu, lender, borrower }) => {
            ActionJson::Return { cpu, lender: name(lender), borrower: name(borrower) }
        }
        Action::Cpu(&CpuOrder::Confine { unit, ref cpus }) => {
            ActionJson::Confine { unit: name(unit), cpus: cpus.as_ref() }
        }
        Action::Cpu(&CpuOrder::Weigh { unit, weight }) => ActionJson::Weigh { unit: name(unit), weight },
        Action::Cpu(&CpuOrder::Credit { unit, credit_ms }) => {
            ActionJson::Credit { unit: name(unit), credit_ms }
        }
        Action::Cpu(&CpuOrder::Cap { unit, micro_cpus }) => ActionJson::Cap { unit: name(unit), micro_cpus },
        Action::Cpu(&CpuOrder::Gate { unit, open }) => ActionJson::Gate { unit: name(unit), open },
        Action::Seat(&Seat { thread, job, unit, pool }) => {
            ActionJson::Seat { thread: thread.0, job: job.0, unit: name(unit), pool }
        }
        Action::Seating(&SeatOrder::Seat { thread, job, unit, ref cpus }) => {
            ActionJson::RunOn { thread: thread.0, job: job.0, unit: name(unit), cpus: cpus.as_ref() }
        }
        Action::Seating(&SeatOrder::Bring { job, unit, ref nodes, divided }) => {
            ActionJson::Bring { job: job.0, unit: name(unit), nodes, divided }
        }
        Action::Gang(&Gang { job, unit, cpus, rate }) => {
            ActionJson::RunTogether { job: job.0, unit: name(unit), cpus, rate }
        }
        Action::Gate(&GangOrder::Gate { job, unit, open }) => {
            ActionJson::GateJob { job: job.0, unit: name(unit), open }
        }
        Action::Disk(&DiskOrder::Weigh { unit, ref disk, weight }) => {
            ActionJson::WeighDisk { unit: name(unit), disk, weight }
        }
        Action::Disk(&DiskOrder::Stop { unit, ref disk, stopped }) => {
            ActionJson::StopForDisk { unit: name(unit), disk, stopped }
        }
        Action::Disk(&DiskOrder::Share { unit, ref disk, share }) => {
            ActionJson::ShareDisk { unit: name(unit), disk, share }
        }
        Action::Disk(&DiskOrder::Cap { unit, ref disk, read, write }) => {
            ActionJson::CapDisk { unit: name(unit), disk, read_bytes_per_s: read, written_bytes_per_s: write }
        }
        Action::Memory(&MemoryOrder::Guarantee { unit, min, low, own }) => {
            ActionJson::Guarantee { unit: name(unit), min, low, own }
        }
        Action::Memory(&MemoryOrder::Allow { unit, bytes }) => ActionJson::Allow { unit: name(unit), bytes },
        Action::Memory(&MemoryOrder::Reclaim { unit, bytes, files }) => {
            ActionJson::Reclaim { unit: name(unit), bytes, files }
        }
        Action::Memory(&MemoryOrder::Expose { unit, exposed }) => {
            ActionJson::Expose { unit: name(unit), exposed }
        }
        Action::Part(order) => ActionJson::Part { unit: name(order.unit()), order },
    }
}
