//! Jobs, pools and gangs, as a contract has them: which tasks belong together, where they are placed, and which of them run at
//! the same time.

use std::fmt;

use crate::resource::{Amount, MILLIONTH};

/// A window over quanta is no longer than this.
pub const GANG_WINDOW_MAX: u32 = 1_000;

/// Pools of a given size have no more CPUs than this.
pub const POOL_CPUS_MAX: u32 = 65_536;

/// How the machine's CPUs are grouped into pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolForm {
    /// By what suits the machine.
    #[default]
    Auto,
    /// A pool for each last-level cache.
    Cache,
    /// For each NUMA node.
    Node,
    /// For each socket.
    Socket,
    /// One for the whole machine.
    Machine,
    /// Of so many CPUs, 1 to [`POOL_CPUS_MAX`], wherever they lie.
    Size(u32),
}

impl PoolForm {
    /// Those that are said by a word.
    pub const NAMED: [PoolForm; 5] =
        [PoolForm::Auto, PoolForm::Cache, PoolForm::Node, PoolForm::Socket, PoolForm::Machine];

    /// The word; `None` for a size, which is a number.
    pub const fn word(self) -> Option<&'static str> {
        match self {
            PoolForm::Auto => Some("auto"),
            PoolForm::Cache => Some("cache"),
            PoolForm::Node => Some("node"),
            PoolForm::Socket => Some("socket"),
            PoolForm::Machine => Some("machine"),
            PoolForm::Size(_) => None,
        }
    }
}

/// Which pool a job begins in, and goes on in when its pools are full (seed 001, section 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The pool with the most free CPUs.
    #[default]
    WorstFit,
    /// The first one with a free CPU.
    FirstFit,
    /// The one with the fewest free CPUs, but one at least.
    BestFit,
    /// The one with a free CPU in which the fewest jobs are.
    FewestJobs,
    /// The one where the thread was when it came, or else the nearest with a free CPU.
    Near,
}

impl Placement {
    /// All of them.
    pub const ALL: [Placement; 5] = [
        Placement::WorstFit,
        Placement::FirstFit,
        Placement::BestFit,
        Placement::FewestJobs,
        Placement::Near,
    ];

    /// As a contract has it.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::WorstFit => "worst-fit",
            Placement::FirstFit => "first-fit",
            Placement::BestFit => "best-fit",
            Placement::FewestJobs => "fewest-jobs",
            Placement::Near => "near",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which jobs run together in a quantum, where they are *gangs*: all threads of a job run, or none (seed 003, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gangs {
    /// Jobs are no gangs.
    #[default]
    Off,
    /// Those that fit by what each transferred in the latest quantum in which it ran.
    LatestQuantum,
    /// Those that fit by the average of what each transferred in the latest quanta in which it ran.
    QuantaWindow,
    /// Those that get on most, by what each would transfer if the bus were its own.
    Demand,
}

impl Gangs {
    /// All of them.
    pub const ALL: [Gangs; 4] = [Gangs::Off, Gangs::LatestQuantum, Gangs::QuantaWindow, Gangs::Demand];

    /// As a contract has it.
    pub const fn name(self) -> &'static str {
        match self {
            Gangs::Off => "off",
            Gangs::LatestQuantum => "latest-quantum",
            Gangs::QuantaWindow => "quanta-window",
            Gangs::Demand => "demand",
        }
    }
}

impl fmt::Display for Gangs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What threads that run at the same time share, and by which gangs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GangsShare {
    /// The memory bus: what each transfers.
    #[default]
    Bus,
    /// The last-level caches: what each holds of them.
    Cache,
    /// The cores, whose hardware threads share what computes: the instructions of each.
    Cores,
}

impl GangsShare {
    /// All of them.
    pub const ALL: [GangsShare; 3] = [GangsShare::Bus, GangsShare::Cache, GangsShare::Cores];

    /// As a contract has it.
    pub const fn name(self) -> &'static str {
        match self {
            GangsShare::Bus => "bus",
            GangsShare::Cache => "cache",
            GangsShare::Cores => "cores",
        }
    }
}

impl fmt::Display for GangsShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How gangs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangRules {
    /// By which measure.
    pub by: Gangs,
    /// Of what that they share.
    pub share: GangsShare,
    /// How long a choice stands, in nanoseconds (seed 003, section 5: 200 ms).
    pub quantum_ns: u64,
    /// Quanta in a window, 1 to [`GANG_WINDOW_MAX`] (seed 003, section 4: 5).
    pub window: u32,
    /// What a thread is taken to transfer, hold or do whose job was not measured yet; a part is of what there is for each CPU.
    /// The seed names none.
    pub first_rate: Amount,
}

impl Default for GangRules {
    fn default() -> Self {
        GangRules {
            by: Gangs::Off,
            share: GangsShare::Bus,
            quantum_ns: 200_000_000,
            window: 5,
            first_rate: Amount::Part(MILLIONTH),
        }
    }
}

/// What of a unit is one job: threads that belong together, and run near each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// All of the unit's own processes.
    Unit,
    /// Each process, with its threads.
    Process,
    /// Each process that a shell started, with all that it started itself.
    Tree,
    /// Each session: what one terminal, or one service, runs.
    Session,
    /// Each control group.
    Cgroup,
}

impl JobKind {
    /// All of them.
    pub const ALL: [JobKind; 5] =
        [JobKind::Unit, JobKind::Process, JobKind::Tree, JobKind::Session, JobKind::Cgroup];

    /// What one job is, in words.
    pub const fn meaning(self) -> &'static str {
        match self {
            JobKind::Unit => "all of its own processes together",
            JobKind::Process => "each process with its threads",
            JobKind::Tree => "each process that a shell started, with all that it started itself",
            JobKind::Session => "each session",
            JobKind::Cgroup => "each control group",
        }
    }

    /// As a contract has it.
    pub const fn name(self) -> &'static str {
        match self {
            JobKind::Unit => "unit",
            JobKind::Process => "process",
            JobKind::Tree => "tree",
            JobKind::Session => "session",
            JobKind::Cgroup => "cgroup",
        }
    }
}
