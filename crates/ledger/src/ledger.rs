//! The ledger proper: keeps the CPU account of each unit, and passes plans and snapshots on to the accounts
//! of the other resources.
//!
//! [`Ledger::observe`] charges the time since the previous snapshot, under the plans in force then.
//! [`Ledger::book`] enters a new plan. [`Ledger::statement`] sums each unit with its sub-units.

mod attribution;

use std::collections::BTreeMap;

use commonhold_contract::{Contract, MILLIONTH, UnitId};
use commonhold_machine::{CpuSet, Machine};
use commonhold_policy::plan::{self, CpuDecision};
use commonhold_policy::share::part_of;
use commonhold_policy::tree::Levels;
use commonhold_policy::{LoansByPair, Plan, Snapshot, SwitchLoans, Time, UnitFacts};

use crate::bus::Bus;
use crate::disk::Disks;
use crate::jobs::Jobs;
use crate::loans::Loans;
use crate::memory::Memory;
use crate::trade::Exchanges;
use crate::verdict::Window;
use crate::waits::Waits;
use crate::{Account, Credits, Imbalance, Place, Statement};
use attribution::OpenBatch;

/// A unit's running CPU account, sub-units excluded.
#[derive(Debug, Clone, Default)]
struct CpuEntry {
    facts: UnitFacts,
    /// Whether the next sample may be compared with `facts`: false before the first sample, and after a
    /// reload.
    has_baseline: bool,
    using_micro_cpus: u64,
    used_ns: u64,
    waited_ns: u64,
    /// Time for which the unit's limit kept its threads, and those of its sub-units, from running.
    limited_ns: u64,
    waited_on_ns: BTreeMap<UnitId, u64>,
    /// Call-backs in this batch that exceeded the promise: the longest, and their number.
    late: (u64, u64),
    entitled_micro_cpus: u64,
    entitled_ns: u64,
    /// Loans that plans made, in nanoseconds.
    by_plans: Loans,
    /// Loans that a scheduler made at switches, in nanoseconds.
    at_switches: Loans,
    /// The number of loans made by plans.
    loans: u64,
    called_back: u64,
    call_back_max_ns: u64,
    call_back_sum_ns: u64,
    call_backs_late: u64,
    credits: Credits,
}

impl CpuEntry {
    /// Enters the loans and call-backs that the scheduler made at switches since the previous sample.
    fn charge_switch_loans(&mut self, now: SwitchLoans, promised_ns: u64) {
        let before = if self.has_baseline { self.facts.loans } else { now };
        self.at_switches += Loans {
            lent: now.lent_ns.saturating_sub(before.lent_ns),
            borrowed: now.borrowed_ns.saturating_sub(before.borrowed_ns),
        };
        self.called_back += now.called_back.saturating_sub(before.called_back);
        self.call_back_sum_ns += now.call_back_sum_ns.saturating_sub(before.call_back_sum_ns);
        let is_longest = now.call_back_max_ns > before.call_back_max_ns && now.call_back_max_ns > promised_ns;
        let late = now.late.saturating_sub(before.late).max(u64::from(is_longest));
        if late > 0 {
            // The sum of all call-backs since then is an upper bound, too, and exact if there was only one.
            let all_ns = now.call_back_sum_ns.saturating_sub(before.call_back_sum_ns);
            self.note_late(
                if is_longest { now.call_back_max_ns } else { all_ns.min(now.call_back_max_ns) },
                late,
            );
        }
        if now.called_back > before.called_back {
            // The maximum is since the backend started: an upper bound of that since the ledger was opened.
            self.call_back_max_ns = self.call_back_max_ns.max(now.call_back_max_ns);
        }
    }

    fn note_late(&mut self, took_ns: u64, count: u64) {
        self.late = (self.late.0.max(took_ns), self.late.1 + count);
        self.call_backs_late += count;
    }

    /// Adds the sums of another account, which is being closed. Its current values, which are no sums, are
    /// dropped.
    fn merge(&mut self, other: CpuEntry) {
        self.used_ns += other.used_ns;
        self.waited_ns += other.waited_ns;
        self.limited_ns += other.limited_ns;
        for (unit, ns) in other.waited_on_ns {
            *self.waited_on_ns.entry(unit).or_insert(0) += ns;
        }
        self.by_plans += other.by_plans;
        self.at_switches += other.at_switches;
        self.loans += other.loans;
        self.called_back += other.called_back;
        self.call_back_max_ns = self.call_back_max_ns.max(other.call_back_max_ns);
        self.call_back_sum_ns += other.call_back_sum_ns;
        self.call_backs_late += other.call_backs_late;
    }
}

/// The accounts of all units.
///
/// Conserved at every entry:
/// - used, idle and common CPU time sum to the machine's capacity;
/// - of loans made by plans, lent time equals borrowed time, including the loans of units that a reload
///   dropped;
/// - every lent CPU is owned by its lender.
///
/// Loans made at switches are not checked. The scheduler keeps its counters running while they are sampled,
/// so the lender's counter may be sampled a switch later than the borrower's, and the two may differ.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Indexed by unit.
    units: Vec<CpuEntry>,
    /// The loans (made by plans) of units that left the contract. They balance the loans of the units that
    /// remain.
    closed: Loans,
    /// The owner of each owned CPU.
    owner: BTreeMap<u32, UnitId>,
    /// Lender and borrower of each lent CPU.
    loan: BTreeMap<u32, (UnitId, UnitId)>,
    cpus: u32,
    opened_at: Option<Time>,
    at: Time,
    capacity_ns: u64,
    idle_ns: u64,
    /// The backend's counter of idle time at the latest snapshot.
    idle_seen_ns: u64,
    /// The same of the time for which CPUs were online, if the backend counts it.
    online_seen_ns: u64,
    disks: Disks,
    bus: Bus,
    memory: Memory,
    exchanges: Exchanges,
    jobs: Jobs,
    places: Vec<plan::ForeignGroup>,
    waits: Waits,
    window: Window,
    batch: OpenBatch,
    /// The loans of CPUs in the last second, in millionths of a CPU: made by plans, and made at switches.
    recent_loans: [BTreeMap<(UnitId, UnitId), u64>; 2],
    /// The latest sample of loans made at switches.
    loans_by_pair: LoansByPair,
    /// The promised time of a CPU's call-back.
    call_back_ns: u64,
}

impl Ledger {
    /// Opens an empty ledger. The time before the first snapshot is not charged.
    pub fn open(contract: &Contract, machine: &Machine) -> Ledger {
        Ledger {
            units: vec![CpuEntry::default(); contract.units.len()],
            closed: Loans::default(),
            owner: BTreeMap::new(),
            loan: BTreeMap::new(),
            cpus: cpus(machine),
            opened_at: None,
            at: 0,
            capacity_ns: 0,
            idle_ns: 0,
            idle_seen_ns: 0,
            online_seen_ns: 0,
            disks: Disks::default(),
            bus: Bus::default(),
            memory: Memory::default(),
            exchanges: Exchanges::default(),
            jobs: {
                let mut jobs = Jobs::default();
                jobs.adopt(contract);
                jobs
            },
            places: Vec::new(),
            waits: Waits::default(),
            window: Window::default(),
            batch: OpenBatch::default(),
            recent_loans: Default::default(),
            loans_by_pair: LoansByPair::default(),
            call_back_ns: contract.machine.call_back_ns,
        }
    }

    /// The foreign groups of units that are in the contract.
    fn places_of(&self, contract: &Contract) -> Vec<Place> {
        let in_contract = self.places.iter().filter(|place| contract.has(place.unit));
        let places = in_contract.map(|place| Place {
            place: place.id.0,
            unit: contract.unit(place.unit).path.clone(),
            group: place.path.clone(),
            set: place.most.clone(),
        });
        places.collect()
    }

    /// Charges the time since the previous snapshot, under the plans in force until now. Returns imbalances.
    #[must_use]
    pub fn observe(&mut self, contract: &Contract, machine: &Machine, snapshot: &Snapshot) -> Vec<Imbalance> {
        self.units.resize(self.units.len().max(snapshot.units.len()), CpuEntry::default());
        let elapsed = self.opened_at.map_or(0, |_| snapshot.at.saturating_sub(self.at));
        let idle = self.opened_at.map_or(0, |_| snapshot.idle_ns.saturating_sub(self.idle_seen_ns));
        let online = self.opened_at.and(snapshot.online_ns).map(|ns| ns.saturating_sub(self.online_seen_ns));
        self.opened_at.get_or_insert(snapshot.at);
        self.at = self.at.max(snapshot.at);
        self.idle_seen_ns = snapshot.idle_ns;
        self.online_seen_ns = snapshot.online_ns.unwrap_or(self.online_seen_ns);
        self.cpus = cpus(machine);
        let capacity = online.unwrap_or(u64::from(self.cpus) * elapsed);
        self.capacity_ns += capacity;
        // Some kernels count idle time by ticks and may overshoot: clamp it to the capacity.
        self.idle_ns += idle.min(capacity);
        self.charge_loans(elapsed);
        self.note_loans_at_switches(&snapshot.loans);
        for index in 0..self.units.len() {
            let facts = snapshot.units.get(index).copied().unwrap_or_default();
            self.charge_unit(index, facts, elapsed);
        }
        self.disks.observe(snapshot);
        self.memory.observe(snapshot);
        self.jobs.observe(machine, snapshot);
        self.attribute_stalls(contract);
        self.attribute_batch(contract, snapshot);
        self.imbalances()
    }

    /// Enters a plan that was carried out at `applied_at`. Returns imbalances.
    #[must_use]
    pub fn book(&mut self, plan: &Plan, applied_at: Time) -> Vec<Imbalance> {
        let promised_ns = self.call_back_ns;
        let entitled = &plan.decisions.cpu.entitled;
        self.units.resize(self.units.len().max(entitled.len()), CpuEntry::default());
        for (entry, entitled) in self.units.iter_mut().zip(entitled) {
            entry.entitled_micro_cpus = *entitled;
        }
        self.copy_credits(plan);
        for step in &plan.decisions.cpu.steps {
            match step.action {
                CpuDecision::Own { cpu, unit } => drop(self.owner.insert(cpu, unit)),
                CpuDecision::Disown { cpu, .. } => drop(self.owner.remove(&cpu)),
                CpuDecision::Lend { cpu, lender, borrower } => {
                    self.loan.insert(cpu, (lender, borrower));
                    self.unit(lender).loans += 1;
                }
                CpuDecision::CallBack { cpu, lender, since, .. } => {
                    self.loan.remove(&cpu);
                    let latency = applied_at.saturating_sub(since);
                    let entry = self.unit(lender);
                    entry.called_back += 1;
                    entry.call_back_sum_ns += latency;
                    entry.call_back_max_ns = entry.call_back_max_ns.max(latency);
                    if latency > promised_ns {
                        entry.note_late(latency, 1);
                    }
                }
                CpuDecision::Return { cpu, .. } => drop(self.loan.remove(&cpu)),
            }
        }
        self.memory.book(plan);
        self.jobs.book(plan);
        if let Some(places) = &plan.decisions.foreign_groups {
            self.places.clone_from(places);
        }
        self.bus.book(plan);
        self.disks.book(plan, applied_at);
        let mut imbalances = self.exchanges.book(plan);
        imbalances.extend(self.imbalances());
        imbalances
    }

    /// Copies each unit's credits from the plan. If the plan has no decision on memory, the credits for
    /// memory stay unchanged.
    fn copy_credits(&mut self, plan: &Plan) {
        let (cpu, memory, disk) = (&plan.decisions.cpu, &plan.decisions.memory, &plan.decisions.disk);
        let credit = |credits: &[i64], n: usize| credits.get(n).copied().unwrap_or(0);
        for (n, entry) in self.units.iter_mut().enumerate() {
            entry.credits.cpu_ns = credit(&cpu.credits, n);
            entry.credits.disk_bytes = credit(&disk.credits, n);
            if let Some(memory) = memory {
                entry.credits.memory_byte_s = credit(&memory.credits, n);
            }
        }
    }

    /// Adopts another contract after a reload. The accounts of units that left are closed. From then on, the
    /// CPU time that they used counts as common, and their loans stay in the sums.
    pub fn adopt(&mut self, contract: &Contract) {
        self.units.resize(self.units.len().max(contract.units.len()), CpuEntry::default());
        for (id, entry) in (0u32..).map(UnitId).zip(&mut self.units) {
            if contract.has(id) {
                // The backend may restart its counters for the new contract.
                entry.has_baseline = false;
                entry.waited_on_ns.retain(|unit, _| contract.has(*unit));
            } else {
                self.closed += entry.by_plans;
                *entry = CpuEntry::default();
            }
        }
        self.disks.adopt(contract);
        self.memory.adopt(contract);
        self.waits.rebase();
        self.window.clear();
        self.recent_loans = Default::default();
        self.loans_by_pair = LoansByPair::default();
        self.follow(contract);
        self.begin_batch();
    }

    /// Closes the accounts of sub-units that ended, such as jobs, and adds them to their enclosers' accounts.
    /// Other accounts continue.
    pub fn close(&mut self, ended: &[UnitId], contract: &Contract) {
        for unit in ended {
            if let Some(encloser) = contract.unit(*unit).parent {
                let entry = std::mem::take(self.unit(*unit));
                self.unit(encloser).merge(entry);
                self.disks.close_into(*unit, encloser);
                self.memory.close_into(*unit, encloser);
                self.waits.close_into(*unit, encloser);
                self.window.close_into(*unit, encloser);
                self.batch.close_into(*unit, encloser);
            }
        }
        for entry in &mut self.units {
            entry.waited_on_ns.retain(|unit, _| contract.has(*unit));
        }
        self.memory.adopt(contract);
        self.follow(contract);
    }

    /// Drops state of units that left the contract.
    fn follow(&mut self, contract: &Contract) {
        self.bus.adopt(contract);
        self.exchanges.adopt(contract);
        self.jobs.adopt(contract);
        self.waits.adopt(contract);
        self.call_back_ns = contract.machine.call_back_ns;
        self.owner.retain(|_, unit| contract.has(*unit));
        self.loan.retain(|_, (lender, borrower)| contract.has(*lender) && contract.has(*borrower));
    }

    /// The account of a unit, opened if necessary.
    fn unit(&mut self, unit: UnitId) -> &mut CpuEntry {
        let index = unit.index();
        if index >= self.units.len() {
            self.units.resize(index + 1, CpuEntry::default());
        }
        &mut self.units[index]
    }

    /// Charges `elapsed` to both sides of each loan in force.
    fn charge_loans(&mut self, elapsed: Time) {
        for (lender, borrower) in self.loan.values().copied().collect::<Vec<_>>() {
            self.unit(lender).by_plans.lent += elapsed;
            self.unit(borrower).by_plans.borrowed += elapsed;
            *self.batch.loans.entry((lender, borrower)).or_insert(0) += elapsed;
        }
    }

    /// Enters a unit's facts, and its entitlement over `elapsed`.
    fn charge_unit(&mut self, index: usize, facts: UnitFacts, elapsed: Time) {
        let unit = UnitId(u32::try_from(index).unwrap_or(u32::MAX));
        let promised_ns = self.call_back_ns;
        let entry = &mut self.units[index];
        entry.entitled_ns += cpu_time(entry.entitled_micro_cpus, elapsed);
        let since_sample = facts.at.saturating_sub(entry.facts.at);
        let used = if entry.has_baseline { facts.used_ns.saturating_sub(entry.facts.used_ns) } else { 0 };
        let waited =
            if entry.has_baseline { facts.waited_ns.saturating_sub(entry.facts.waited_ns) } else { 0 };
        entry.used_ns += used;
        entry.waited_ns += waited;
        if entry.has_baseline {
            entry.limited_ns += facts.limited_ns.saturating_sub(entry.facts.limited_ns);
        }
        entry.charge_switch_loans(facts.loans, promised_ns);
        // A second sample at the same time gives no rate, but may add CPU time used before.
        if since_sample > 0 || !entry.has_baseline {
            entry.using_micro_cpus = part_of(used, MILLIONTH, since_sample.max(1));
        }
        (entry.facts, entry.has_baseline) = (facts, true);
        self.attribute_wait(unit, waited);
    }

    /// Attributes a lender's waiting time to the current borrowers of its CPUs, in equal parts.
    fn attribute_wait(&mut self, lender: UnitId, waited_ns: u64) {
        if waited_ns == 0 {
            return;
        }
        let borrowers: Vec<UnitId> =
            self.loan.values().filter(|(from, _)| *from == lender).map(|(_, borrower)| *borrower).collect();
        if borrowers.is_empty() {
            return;
        }
        let part_ns = waited_ns / borrowers.len() as u64;
        let entry = self.unit(lender);
        for borrower in borrowers {
            *entry.waited_on_ns.entry(borrower).or_insert(0) += part_ns;
        }
    }

    /// The sums of all resources that do not balance.
    fn imbalances(&self) -> Vec<Imbalance> {
        let open: Loans = self.units.iter().map(|entry| entry.by_plans).sum();
        let Loans { lent, borrowed } = open + self.closed;
        let time = (lent != borrowed).then_some(Imbalance::CpuTime { lent, borrowed });
        let stranger = |(cpu, (lender, _)): (&u32, &(UnitId, UnitId))| {
            let owner = self.owner.get(cpu).copied();
            (owner != Some(*lender)).then_some(Imbalance::Stranger { cpu: *cpu, lender: *lender, owner })
        };
        let strangers = self.loan.iter().find_map(stranger);
        let resources = self.disks.imbalance().into_iter().chain(self.bus.imbalance());
        let resources = resources.chain(self.memory.imbalances());
        time.into_iter().chain(strangers).chain(resources).collect()
    }

    /// The current accounts.
    pub fn statement(&self, contract: &Contract) -> Statement {
        let (units, levels) = (contract.listed(), Levels::of(contract));
        let accounts: Vec<Account> =
            units.iter().map(|unit| self.account(contract, *unit, &levels.within(*unit))).collect();
        let is_top_level = |unit: UnitId| contract.unit(unit).parent.is_none();
        let top_accounts = units.iter().zip(&accounts).filter(|(unit, _)| is_top_level(**unit));
        let used: u64 = top_accounts.map(|(_, account)| account.used_ns).sum();
        // If more CPU time was counted than there was capacity, raise the capacity, so that the sum is exact.
        let capacity_ns = self.capacity_ns.max(used);
        let idle_ns = self.idle_ns.min(capacity_ns - used);
        Statement {
            scheme: contract.machine.scheme,
            cpus: self.cpus,
            elapsed_ns: self.opened_at.map_or(0, |opened| self.at.saturating_sub(opened)),
            capacity_ns,
            idle_ns,
            common_ns: capacity_ns - used - idle_ns,
            memory: self.memory.totals(),
            accounts,
            loans: self.loans_now(contract),
            exchanges: self.exchanges.statement(contract, self.opened_at.unwrap_or(0)),
            negotiated: self.exchanges.negotiated(contract),
            jobs: self.jobs.statement(contract),
            places: self.places_of(contract),
        }
    }

    /// The account of a unit: sums over `family`, the unit and its sub-units in the order of their numbers.
    fn account(&self, contract: &Contract, unit: UnitId, family: &[UnitId]) -> Account {
        let entries: Vec<&CpuEntry> = family.iter().filter_map(|id| self.units.get(id.index())).collect();
        let sum = |figure: &dyn Fn(&CpuEntry) -> u64| entries.iter().map(|entry| figure(entry)).sum::<u64>();
        let credit = |figure: &dyn Fn(&Credits) -> i64| {
            entries.iter().map(|entry| figure(&entry.credits)).fold(0, i64::saturating_add)
        };
        let credits = Credits {
            cpu_ns: credit(&|credits| credits.cpu_ns),
            memory_byte_s: credit(&|credits| credits.memory_byte_s),
            disk_bytes: credit(&|credits| credits.disk_bytes),
        };
        let in_family = |id: UnitId| family.binary_search(&id).is_ok();
        let entry = self.units.get(unit.index());
        let mut waited_on_ns = BTreeMap::new();
        for (id, ns) in entries.iter().flat_map(|entry| &entry.waited_on_ns) {
            let path = contract.units.get(id.index()).map_or("?", |unit| unit.path.as_str());
            *waited_on_ns.entry(path.to_owned()).or_insert(0) += ns;
        }
        Account {
            unit: contract.unit(unit).path.clone(),
            processes: entry.map_or(0, |entry| entry.facts.processes),
            outside: entry.map_or(0, |entry| entry.facts.outside),
            entitled_micro_cpus: entry.map_or(0, |entry| entry.entitled_micro_cpus),
            owned: self
                .owner
                .iter()
                .filter(|(_, id)| in_family(**id))
                .map(|(cpu, _)| *cpu)
                .collect::<CpuSet>(),
            lending: self
                .loan
                .iter()
                .filter(|(_, (lender, _))| in_family(*lender))
                .map(|(cpu, _)| *cpu)
                .collect(),
            borrowing: self
                .loan
                .iter()
                .filter(|(_, (_, borrower))| in_family(*borrower))
                .map(|(cpu, _)| *cpu)
                .collect(),
            using_micro_cpus: sum(&|entry| entry.using_micro_cpus),
            entitled_ns: entry.map_or(0, |entry| entry.entitled_ns),
            used_ns: sum(&|entry| entry.used_ns),
            lent_ns: sum(&|entry| entry.by_plans.lent + entry.at_switches.lent),
            borrowed_ns: sum(&|entry| entry.by_plans.borrowed + entry.at_switches.borrowed),
            loans: sum(&|entry| entry.loans),
            called_back: sum(&|entry| entry.called_back),
            call_back_max_ns: entries.iter().map(|entry| entry.call_back_max_ns).max().unwrap_or(0),
            call_back_sum_ns: sum(&|entry| entry.call_back_sum_ns),
            call_backs_late: sum(&|entry| entry.call_backs_late),
            waited_ns: sum(&|entry| entry.waited_ns),
            waited_on_ns,
            disk: self.disks.account(family),
            bus: self.bus.account(unit),
            gangs: self.jobs.gangs_of(family),
            memory: self.memory.account(contract, family),
            waits: self.waits.of_family(contract, family),
            findings: self.window.findings(contract, unit, family),
            credits: Some(credits).filter(|credits| *credits != Credits::default()),
        }
    }
}

/// The number of a machine's CPUs.
fn cpus(machine: &Machine) -> u32 {
    u32::try_from(machine.cpus.len()).unwrap_or(u32::MAX)
}

/// The CPU time, in nanoseconds, that `micro_cpus` (millionths of a CPU) provide during `elapsed`.
fn cpu_time(micro_cpus: u64, elapsed: Time) -> u64 {
    part_of(micro_cpus, elapsed, MILLIONTH)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use commonhold_policy::LentTo;
    use commonhold_policy::plan::{CpuPlan, Decisions};
    use commonhold_policy::{MS, Reason, Step};

    use crate::{CpuLoan, FindingReason, WaitCause};

    const HEAVY: UnitId = UnitId(3);
    const LIGHT: UnitId = UnitId(2);

    fn facts(at: Time, used_ns: u64, waited_ns: u64) -> UnitFacts {
        UnitFacts { at, processes: 1, runnable: 1, used_ns, waited_ns, ..UnitFacts::default() }
    }

    fn because(action: CpuDecision) -> Step<CpuDecision> {
        Step { action, reason: Reason::HoldsChanged }
    }

    fn plan(steps: Vec<Step<CpuDecision>>, entitled: Vec<u64>) -> Plan {
        let decisions =
            Decisions { cpu: CpuPlan { entitled, steps, ..CpuPlan::default() }, ..Decisions::default() };
        Plan { decisions, ..Plan::default() }
    }

    /// Two CPUs for a second: the light unit lends its CPU at once and calls it back at 600 ms, 8 ms after it
    /// was last seen idle. Used: light 300, heavy 1,500 ms of 2,000; idle 150; the rest, 50, is common.
    #[test]
    fn a_second_by_hand() {
        let mut contract = Contract::default();
        let machine = Machine::synthetic("cpus:2 memory:1GiB").unwrap();
        assert_eq!([contract.add(None, "light"), contract.add(None, "heavy")], [LIGHT, HEAVY]);
        let mut ledger = Ledger::open(&contract, &machine);
        let snapshot = |at: Time, light: (u64, u64), heavy: u64, idle: u64| Snapshot {
            at: at * MS,
            units: vec![
                UnitFacts::default(),
                UnitFacts::default(),
                facts(at * MS, light.0 * MS, light.1 * MS),
                facts(at * MS, heavy * MS, 0),
            ],
            idle_ns: idle * MS,
            ..Snapshot::default()
        };
        // Counts from before the ledger was opened are ignored.
        assert_eq!(ledger.observe(&contract, &machine, &snapshot(5_000, (70, 7), 90, 1_000)), []);
        let steps = vec![
            because(CpuDecision::Own { cpu: 0, unit: HEAVY }),
            because(CpuDecision::Own { cpu: 1, unit: LIGHT }),
            because(CpuDecision::Lend { cpu: 1, lender: LIGHT, borrower: HEAVY }),
        ];
        let entitled = vec![0, 0, MILLIONTH, MILLIONTH];
        assert_eq!(ledger.book(&plan(steps, entitled.clone()), 5_000 * MS), []);
        assert_eq!(ledger.observe(&contract, &machine, &snapshot(5_600, (70, 12), 1_190, 1_100)), []);
        let back = CpuDecision::CallBack { cpu: 1, lender: LIGHT, borrower: HEAVY, since: 5_592 * MS };
        assert_eq!(ledger.book(&plan(vec![because(back)], entitled), 5_601 * MS), []);
        assert_eq!(ledger.observe(&contract, &machine, &snapshot(6_000, (370, 12), 1_590, 1_150)), []);
        let statement = ledger.statement(&contract);
        let ms = |ns: u64| ns / MS;
        let light = statement.account("light").unwrap();
        assert_eq!((ms(light.entitled_ns), ms(light.used_ns), ms(light.lent_ns)), (1_000, 300, 600));
        assert_eq!((light.loans, light.called_back, ms(light.call_back_max_ns)), (1, 1, 9));
        assert_eq!((ms(light.waited_ns), ms(light.waited_on_ns["heavy"])), (5, 5));
        let heavy = statement.account("heavy").unwrap();
        assert_eq!(
            (ms(heavy.used_ns), ms(heavy.borrowed_ns), heavy.using_micro_cpus),
            (1_500, 600, MILLIONTH)
        );
        let whole = [statement.capacity_ns, statement.idle_ns, statement.common_ns].map(ms);
        assert_eq!((ms(statement.elapsed_ns), whole), (1_000, [2_000, 150, 50]));
    }

    /// Two CPUs for a second, then one of them for another second. The daemon learns that 300 ms later, and
    /// the sums are exact nonetheless. A backend that does not count says nothing about these 300 ms.
    #[test]
    fn capacity_is_the_time_for_which_cpus_were_online() {
        let (both, one) = (Machine::synthetic("cpus:2").unwrap(), Machine::synthetic("cpus:1").unwrap());
        for (counted, expected_ms) in [(true, [3_000, 2_500, 500]), (false, [3_300, 2_500, 800])] {
            let contract = Contract::default();
            let mut ledger = Ledger::open(&contract, &both);
            for (machine, at, online, idle) in
                [(&both, 0, 0, 0), (&both, 1_300, 2_300, 1_800), (&one, 2_000, 3_000, 2_500)]
            {
                let snapshot = Snapshot {
                    at: at * MS,
                    idle_ns: idle * MS,
                    online_ns: counted.then_some(online * MS),
                    ..Snapshot::default()
                };
                assert_eq!(ledger.observe(&contract, machine, &snapshot), []);
            }
            let statement = ledger.statement(&contract);
            let sums = [statement.capacity_ns, statement.idle_ns, statement.common_ns];
            assert_eq!((sums.map(|ns| ns / MS), statement.cpus), (expected_ms, 1));
        }
    }

    /// A scheduler that lends at every switch: 300 ms of the light unit's CPU by the second sample, 100 ms of
    /// them before the ledger was opened, and one call-back of 7 ms in between.
    #[test]
    fn loans_at_switches_are_taken_from_the_snapshots() {
        let mut contract = Contract::default();
        let machine = Machine::synthetic("cpus:2 memory:1GiB").unwrap();
        assert_eq!([contract.add(None, "light"), contract.add(None, "heavy")], [LIGHT, HEAVY]);
        let mut ledger = Ledger::open(&contract, &machine);
        for (at, lent, called_back, took) in [(1_000, 100, 2, 9), (2_000, 300, 3, 16)] {
            let mut units = vec![UnitFacts::default(); 4];
            let with = |loans| UnitFacts { loans, ..facts(at * MS, at * MS, 0) };
            let (sum, max) = (took * MS, 8 * MS);
            units[LIGHT.index()] = with(SwitchLoans {
                lent_ns: lent * MS,
                called_back,
                call_back_sum_ns: sum,
                call_back_max_ns: max,
                ..SwitchLoans::default()
            });
            units[HEAVY.index()] = with(SwitchLoans { borrowed_ns: lent * MS, ..SwitchLoans::default() });
            assert_eq!(
                ledger.observe(&contract, &machine, &Snapshot { at: at * MS, units, ..Snapshot::default() }),
                []
            );
        }
        let statement = ledger.statement(&contract);
        let (light, heavy) = (statement.account("light").unwrap(), statement.account("heavy").unwrap());
        assert_eq!((light.lent_ns, light.borrowed_ns, heavy.borrowed_ns), (200 * MS, 0, 200 * MS));
        assert_eq!((light.called_back, light.call_back_sum_ns, light.call_back_max_ns), (1, 7 * MS, 8 * MS));
    }

    /// A ledger of two units that observes a snapshot each 100 ms, with the loans that `at` returns: at
    /// switches, and by pair.
    fn observed(snapshots: u64, at: impl Fn(u64) -> (SwitchLoans, LoansByPair)) -> (Ledger, Contract) {
        let mut contract = Contract::default();
        let machine = Machine::synthetic("cpus:2 memory:1GiB").unwrap();
        assert_eq!([contract.add(None, "light"), contract.add(None, "heavy")], [LIGHT, HEAVY]);
        let mut ledger = Ledger::open(&contract, &machine);
        for n in 1..=snapshots {
            let (switches, loans) = at(n);
            let mut units = vec![UnitFacts::default(); 4];
            units[LIGHT.index()] = UnitFacts { loans: switches, ..facts(n * 100 * MS, 0, 0) };
            units[HEAVY.index()] = facts(n * 100 * MS, 0, 0);
            let snapshot = Snapshot { at: n * 100 * MS, units, loans, ..Snapshot::default() };
            assert_eq!(ledger.observe(&contract, &machine, &snapshot), []);
        }
        (ledger, contract)
    }

    /// The statement after [`observed`].
    fn over(snapshots: u64, at: impl Fn(u64) -> (SwitchLoans, LoansByPair)) -> Statement {
        let (ledger, contract) = observed(snapshots, at);
        ledger.statement(&contract)
    }

    /// The longest call-back, of 596 ms, is long ago. A later one of 40 ms is late, too.
    #[test]
    fn a_late_call_back_that_is_not_the_longest_breaks_the_contract() {
        let switches = |n: u64| {
            let (called_back, sum, late) = if n < 130 { (7, 600, 1) } else { (8, 640, 2) };
            SwitchLoans {
                called_back,
                late,
                call_back_sum_ns: sum * MS,
                call_back_max_ns: 596 * MS,
                ..SwitchLoans::default()
            }
        };
        let reason = |snapshots| {
            let statement = over(snapshots, |n| (switches(n), LoansByPair::default()));
            statement.account("light").unwrap().findings[0].reason.clone()
        };
        assert_eq!(reason(125), FindingReason::HadWanted);
        assert_eq!(reason(145), FindingReason::Late { promised_ns: 10 * MS, took_ns: 40 * MS, count: 1 });
        assert_eq!(reason(260), FindingReason::HadWanted);
    }

    /// The backend samples pairs once a second, which is not when the ledger looks.
    #[test]
    fn loans_at_switches_are_rates_between_samples() {
        let pairs = |n: u64| {
            let at = n * 100 * MS / (1_100 * MS) * 1_100 * MS;
            let lent = |lender, borrower, ns| LentTo { lender, borrower, ns };
            LoansByPair { at, lent: vec![lent(LIGHT, HEAVY, at / 2), lent(HEAVY, LIGHT, 7)] }
        };
        let loan = CpuLoan { lender: "light".to_owned(), borrower: "heavy".to_owned(), micro_cpus: 500_000 };
        for snapshots in [22, 25, 40] {
            assert_eq!(
                over(snapshots, |n| (SwitchLoans::default(), pairs(n))).loans,
                std::slice::from_ref(&loan)
            );
        }
        assert_eq!(over(21, |n| (SwitchLoans::default(), pairs(n))).loans, [], "there is one sample");
        assert_eq!(over(40, |_| (SwitchLoans::default(), LoansByPair::default())).loans, []);
        // A reload may give a unit's number to another unit.
        let (mut ledger, contract) = observed(40, |n| (SwitchLoans::default(), pairs(n)));
        ledger.adopt(&contract);
        assert_eq!(ledger.statement(&contract).loans, []);
    }

    /// A limit around two sub-units throttles both, in proportion to their waits; the rest of the waits has
    /// another cause.
    #[test]
    fn an_enclosing_limit_is_the_cause_of_waits_within() {
        let mut contract = Contract::default();
        let machine = Machine::synthetic("cpus:2 memory:1GiB").unwrap();
        let outer = contract.add(None, "outer");
        let [a, b] = ["a", "b"].map(|name| contract.add(Some(outer), name));
        let mut ledger = Ledger::open(&contract, &machine);
        for s in 0..=2 {
            let mut units = vec![UnitFacts::default(); 5];
            let unit = |waited_ms: u64, limited_ms: u64| UnitFacts {
                waited_ns: waited_ms * s * MS,
                limited_ns: limited_ms * s * MS,
                ..facts(s * 1_000 * MS, s * 10 * MS, 0)
            };
            units[outer.index()] = unit(0, 300);
            units[a.index()] = unit(100, 0);
            units[b.index()] = unit(500, 0);
            let snapshot = Snapshot { at: s * 1_000 * MS, units, ..Snapshot::default() };
            assert_eq!(ledger.observe(&contract, &machine, &snapshot), []);
        }
        let statement = ledger.statement(&contract);
        let limited = |unit: &str| {
            let waits = &statement.account(unit).unwrap().waits;
            waits.iter().filter(|wait| wait.cause == WaitCause::Limit).map(|wait| wait.ns / MS).sum::<u64>()
        };
        assert_eq!(["outer/a", "outer/b", "outer"].map(limited), [100, 500, 600]);
    }

    /// The light unit lends its CPU to the heavy one for 100 ms; a reload drops one of the two, and a new
    /// unit takes its number. After 100 ms without loans, the remaining unit lends to the new one, or borrows
    /// from it, for another 100 ms.
    #[test]
    fn loans_of_a_dropped_unit_stay_in_the_sums() {
        for dropped in [LIGHT, HEAVY] {
            let mut contract = Contract::default();
            let machine = Machine::synthetic("cpus:2 memory:1GiB").unwrap();
            assert_eq!([contract.add(None, "light"), contract.add(None, "heavy")], [LIGHT, HEAVY]);
            let mut ledger = Ledger::open(&contract, &machine);
            let snapshot = |at: Time, used: u64| {
                let units =
                    vec![UnitFacts::default(), UnitFacts::default(), facts(at, used, 0), facts(at, used, 0)];
                Snapshot { at, units, ..Snapshot::default() }
            };
            let lend = || {
                let steps = vec![
                    because(CpuDecision::Own { cpu: 1, unit: LIGHT }),
                    because(CpuDecision::Lend { cpu: 1, lender: LIGHT, borrower: HEAVY }),
                ];
                plan(steps, Vec::new())
            };
            assert_eq!(ledger.observe(&contract, &machine, &snapshot(0, 0)), []);
            assert_eq!(ledger.book(&lend(), 0), []);
            assert_eq!(ledger.observe(&contract, &machine, &snapshot(100 * MS, 70 * MS)), []);
            let mut without = contract.clone();
            without.vacant.insert(dropped);
            ledger.adopt(&without);
            assert_eq!(ledger.book(&Plan::default(), 100 * MS), []);
            assert_eq!(ledger.observe(&contract, &machine, &snapshot(200 * MS, 0)), []);
            assert_eq!(ledger.book(&lend(), 200 * MS), []);
            assert_eq!(ledger.observe(&contract, &machine, &snapshot(300 * MS, 30 * MS)), []);
            let statement = ledger.statement(&contract);
            let (light, heavy) = (statement.account("light").unwrap(), statement.account("heavy").unwrap());
            // The unit that stayed has both loans, its successor only the second.
            let loans = if dropped == LIGHT { (100, 200) } else { (200, 100) };
            assert_eq!((light.lent_ns / MS, heavy.borrowed_ns / MS), loans);
            let gone = if dropped == LIGHT { (100, 0) } else { (0, 100) };
            assert_eq!((ledger.closed.lent / MS, ledger.closed.borrowed / MS), gone);
            // The dropped unit's use is common: 70 ms of one unit and 30 of both are in accounts.
            let used = light.used_ns + heavy.used_ns;
            assert_eq!(used / MS, 130);
            assert_eq!(used + statement.idle_ns + statement.common_ns, statement.capacity_ns);
        }
    }

    /// A loan of an unowned CPU, and one without a borrower's account: both are reported with numbers, and
    /// the ledger continues.
    #[test]
    fn imbalances_are_reported() {
        let mut contract = Contract::default();
        let machine = Machine::synthetic("cpus:2 memory:1GiB").unwrap();
        contract.add(None, "light");
        let mut ledger = Ledger::open(&contract, &machine);
        let lend = because(CpuDecision::Lend { cpu: 1, lender: LIGHT, borrower: HEAVY });
        let stranger = Imbalance::Stranger { cpu: 1, lender: LIGHT, owner: None };
        assert_eq!(ledger.book(&plan(vec![lend], Vec::new()), 0), std::slice::from_ref(&stranger));
        ledger.unit(LIGHT).by_plans.lent = 7;
        let time = Imbalance::CpuTime { lent: 7, borrowed: 0 };
        assert_eq!(
            ledger.observe(&contract, &machine, &Snapshot::default()),
            [time.clone(), stranger.clone()]
        );
        assert_eq!(
            [time, stranger].map(|wrong| wrong.to_string()),
            [
                "the accounts of CPU time do not balance: 7 ns are lent and 0 ns borrowed",
                "the accounts of CPUs do not balance: CPU 1 is on loan from unit number 2, and its owner is no unit",
            ]
        );
    }
}
