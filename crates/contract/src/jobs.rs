//! A contract's rules for jobs, pools and gangs: which threads form a job, in which pool a job is placed, and
//! which jobs run at the same time.

use std::fmt;

use crate::resource::{Amount, MILLIONTH};

/// The longest window of [`Gangs::QuantaWindow`], in quanta.
pub const GANG_WINDOW_MAX: u32 = 1_000;

/// The largest size of pools, in CPUs.
pub const POOL_CPUS_MAX: u32 = 65_536;

/// The rule that groups the machine's CPUs into pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolForm {
    /// Pools at the level that suits the machine.
    #[default]
    Auto,
    /// A pool for each last-level cache.
    Cache,
    /// A pool for each NUMA node.
    Node,
    /// A pool for each socket.
    Socket,
    /// One pool for the whole machine.
    Machine,
    /// Pools of this many CPUs, 1 to [`POOL_CPUS_MAX`], whatever the topology.
    Size(u32),
}

impl PoolForm {
    /// The forms with a name.
    pub const NAMED: [PoolForm; 5] =
        [PoolForm::Auto, PoolForm::Cache, PoolForm::Node, PoolForm::Socket, PoolForm::Machine];

    /// The form's name in a contract; `None` for a size, which is written as a number.
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

/// The rule that chooses the pool in which a job starts. The same rule chooses a further pool when the job's
/// pools are full (seed 001, section 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The pool with the most free CPUs.
    #[default]
    WorstFit,
    /// The first pool with a free CPU.
    FirstFit,
    /// The pool with the fewest free CPUs, at least one.
    BestFit,
    /// Among pools with a free CPU, the one with the fewest jobs.
    FewestJobs,
    /// The pool where the thread ran when it appeared, or the nearest pool with a free CPU.
    Near,
}

impl Placement {
    /// All placements.
    pub const ALL: [Placement; 5] = [
        Placement::WorstFit,
        Placement::FirstFit,
        Placement::BestFit,
        Placement::FewestJobs,
        Placement::Near,
    ];

    /// Its name in a contract.
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

/// Whether jobs are *gangs*, and which gangs run together in a quantum. In a quantum, either all threads of a
/// gang run or none (seed 003, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gangs {
    /// Jobs are not gangs.
    #[default]
    Off,
    /// Jobs run together whose bandwidths fit the bus. A job's bandwidth is that of the latest quantum in
    /// which it ran.
    LatestQuantum,
    /// Jobs run together whose bandwidths fit the bus. A job's bandwidth is its average over the latest
    /// quanta in which it ran.
    QuantaWindow,
    /// Those jobs run together that make the most progress, as estimated from the bandwidth that each would
    /// use without contention.
    Demand,
}

impl Gangs {
    /// All values of `gangs`.
    pub const ALL: [Gangs; 4] = [Gangs::Off, Gangs::LatestQuantum, Gangs::QuantaWindow, Gangs::Demand];

    /// Its name in a contract.
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

/// The shared resource by which gangs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GangsShare {
    /// The memory bus, of which a job uses bandwidth.
    #[default]
    Bus,
    /// The last-level caches, of which a job occupies a part.
    Cache,
}

impl GangsShare {
    /// All resources by which gangs may be chosen.
    pub const ALL: [GangsShare; 2] = [GangsShare::Bus, GangsShare::Cache];

    /// Its name in a contract.
    pub const fn name(self) -> &'static str {
        match self {
            GangsShare::Bus => "bus",
            GangsShare::Cache => "cache",
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
    /// Whether jobs are gangs, and how gangs are chosen.
    pub by: Gangs,
    /// The shared resource by which gangs are chosen.
    pub share: GangsShare,
    /// The quantum: the time for which gangs are chosen, in nanoseconds (seed 003, section 5: 200 ms).
    pub quantum_ns: u64,
    /// The number of quanta in the average of [`Gangs::QuantaWindow`], 1 to [`GANG_WINDOW_MAX`] (seed 003,
    /// section 4: 5).
    pub window: u32,
    /// How much of the shared resource each thread of a job is assumed to use before the job was measured. A
    /// percentage is of the resource's capacity divided by the number of CPUs. The seed gives no value.
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

/// The rule that says which processes of a unit form one job. The threads of a job are placed near each
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// All of the unit's own processes.
    Unit,
    /// Each process, with its threads.
    Process,
    /// Each child of a shell, with its descendants.
    Tree,
    /// Each session: the processes of one terminal, or of one service.
    Session,
    /// Each control group.
    Cgroup,
}

impl JobKind {
    /// All kinds of jobs.
    pub const ALL: [JobKind; 5] =
        [JobKind::Unit, JobKind::Process, JobKind::Tree, JobKind::Session, JobKind::Cgroup];

    /// A description of what one job is, for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            JobKind::Unit => "all of its own processes together",
            JobKind::Process => "each process with its threads",
            JobKind::Tree => "each process that a shell started, with all that it started itself",
            JobKind::Session => "each session",
            JobKind::Cgroup => "each control group",
        }
    }

    /// Its name in a contract.
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
