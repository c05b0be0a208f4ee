//! Subscriptions to the state of all units (`io.commonhold.Monitor`).
//!
//! **Problem.** Hundreds of clients may watch at the same time, each at its own interval. The state of 1,000
//! units is a megabyte of JSON, and most of it does not change from one second to the next. Any user may
//! subscribe, and may stop reading at any time.
//!
//! **Algorithm.** The state is computed at most once in a [`SLOT_NS`], for all subscribers together. Each
//! unit has a *revision*: the number of the computation that last changed it. A subscriber has the revision
//! of its last reply, and gets the units with a later one ([`Picture::since`]). So no queue of replies is
//! kept. A subscriber that has not read its last reply is skipped. Its next reply has all differences since
//! then.
//!
//! Replies are aligned to multiples of the interval. Subscribers with the same interval thus get the same
//! differences, which are encoded only once.
//!
//! **Properties.** When a reply is due, the subscriber becomes ready in the
//! [`FairQueue`](super::fair_queue::FairQueue), as if it had sent a request, and its user is charged for the
//! computation. A user whose bucket is empty gets its replies later; turns of the control loop always come
//! first. Nothing is computed while there are no subscribers. A subscriber is a kept client, so the number of
//! subscriptions is limited.

use std::collections::BTreeMap;
use std::rc::Rc;

use commonhold_client::wire::Refusal;
use commonhold_contract::{Resource, Scheme, UnitId};
use commonhold_ledger::{Account, Exchange, Statement};
use commonhold_live::apply::kernel::CallBacks;
use commonhold_live::host::clock;
use commonhold_policy::Time;
use commonhold_policy::share::part_of;
use commonhold_protocol::monitor::{
    CallBackView, EVERY_MS_MIN, Gauge, MachineView, MonitorReply, UnitTotals, UnitView,
};
use commonhold_report::gangs;

use super::requests::{self, About, Answer, encode, hide_programs, invalid};
use super::session::Session;

/// The state is computed at most once in each such period of the clock. It is the shortest interval of a
/// subscription.
const SLOT_NS: Time = EVERY_MS_MIN * 1_000_000;

/// The interval between two replies if a request names none, in milliseconds.
const EVERY_MS: u64 = 1_000;

/// The longest time over which a rate is computed. A rate since an older computation would not be a present
/// one.
const RATE_MAX_NS: Time = 10_000_000_000;

/// The most units that are remembered as gone. Control groups may come and go at any rate.
const GONE_MAX: usize = 10_000;

/// A client that gets differences.
#[derive(Debug)]
struct Subscriber {
    every_ns: Time,
    /// When the next reply is due; `None`: it is due, and the subscriber is ready to be served.
    due: Option<Time>,
    /// The revision of the last reply; `None`: there was none.
    seen: Option<u64>,
}

/// The state of all units as subscribers see it, and the subscribers.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    subscribers: BTreeMap<u64, Subscriber>,
    picture: Picture,
    /// The number of the [`SLOT_NS`] in which the picture was computed.
    slot: Option<Time>,
    /// Encoded replies, by the revision that they start from, by whether further replies follow, and by
    /// whether the client may see all processes.
    encoded: BTreeMap<(Option<u64>, bool, bool), Rc<[u8]>>,
    flows: Flows,
}

impl Monitor {
    /// The interval that a request asks for, in nanoseconds.
    pub(super) fn interval(every_ms: Option<u64>) -> Result<Time, Refusal> {
        match every_ms.unwrap_or(EVERY_MS) {
            ..EVERY_MS_MIN => Err(invalid(&format!("every_ms: it must be at least {EVERY_MS_MIN}"))),
            ms => Ok(ms.saturating_mul(1_000_000)),
        }
    }

    /// Subscribes a client. Its first reply is due at once.
    pub(super) fn subscribe(&mut self, client: u64, every_ns: Time) {
        self.subscribers.insert(client, Subscriber { every_ns, due: None, seen: None });
    }

    /// Ends a client's subscription, if it has one.
    pub(super) fn unsubscribe(&mut self, client: u64) {
        self.subscribers.remove(&client);
    }

    /// The subscribers.
    pub(super) fn clients(&self) -> impl Iterator<Item = u64> {
        self.subscribers.keys().copied()
    }

    /// When [`Monitor::take_due`] will return a client; `None`: not before a client is served or subscribes.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.subscribers.values().filter_map(|subscriber| subscriber.due).min()
    }

    /// The subscribers that became due. Each of them is to be served, with [`Monitor::reply_to`].
    pub(super) fn take_due(&mut self, now: Time) -> Vec<u64> {
        let mut clients = Vec::new();
        for (client, subscriber) in &mut self.subscribers {
            if subscriber.due.is_some_and(|due| due <= now) {
                subscriber.due = None;
                clients.push(*client);
            }
        }
        clients
    }

    /// Whether a reply to a client is due.
    pub(super) fn is_due(&self, client: u64) -> bool {
        self.subscribers.get(&client).is_some_and(|subscriber| subscriber.due.is_none())
    }

    /// The reply that is due to a client, encoded; `None` if none is due. `sees_all`: /proc hides no process
    /// from the client.
    pub(super) fn reply_to(
        &mut self,
        client: u64,
        session: &mut Session,
        about: &About,
        sees_all: bool,
    ) -> Option<Rc<[u8]>> {
        let now = clock::now();
        let seen = self.subscribers.get(&client).filter(|subscriber| subscriber.due.is_none())?.seen;
        self.update(session, about, now);
        let message = self.encoded(seen, true, sees_all);
        let subscriber = self.subscribers.get_mut(&client)?;
        subscriber.seen = Some(self.picture.revision);
        subscriber.due = Some(next_reply(now, subscriber.every_ns));
        Some(message)
    }

    /// The whole state, encoded as a single reply.
    pub(super) fn whole(&mut self, session: &mut Session, about: &About, sees_all: bool) -> Rc<[u8]> {
        self.update(session, about, clock::now());
        self.encoded(None, false, sees_all)
    }

    /// Makes the next reply to each subscriber whole, since another contract is in force.
    pub(super) fn restart(&mut self) {
        (self.slot, self.picture.whole_since) = (None, self.picture.revision + 1);
        self.flows = Flows::default();
    }

    /// Computes the state, unless it was computed in this slot.
    fn update(&mut self, session: &mut Session, about: &About, now: Time) {
        let slot = now / SLOT_NS;
        if self.slot.replace(slot) == Some(slot) {
            return;
        }
        let statement = session.statement();
        self.flows.update(&statement);
        let units = units(session, &statement, &self.flows);
        let at_ns = statement.elapsed_ns;
        let machine = machine(session, about, statement);
        self.picture.update(at_ns, clock::wall_ms(), machine, units);
        self.encoded.clear();
    }

    /// The encoded difference between the reply with revision `seen` and the present state.
    fn encoded(&mut self, seen: Option<u64>, continues: bool, sees_all: bool) -> Rc<[u8]> {
        let picture = &self.picture;
        let encode = || {
            let mut reply = picture.since(seen);
            if let Some(machine) = reply.machine.as_mut().filter(|_| !sees_all) {
                hide_programs(&mut machine.jobs);
            }
            Answer::of(encode(&reply, continues)).message
        };
        self.encoded.entry((seen, continues, sees_all)).or_insert_with(encode).clone()
    }
}

/// When the next reply is due: at a multiple of the interval, so that subscribers with the same interval get
/// the same replies, but not before half of the interval has passed.
fn next_reply(now: Time, every_ns: Time) -> Time {
    now.saturating_add(every_ns / 2).div_ceil(every_ns).saturating_mul(every_ns)
}

/// The state of the machine and of all units, each with the revision in which it last changed.
#[derive(Debug, Default)]
struct Picture {
    /// The number of the present state.
    revision: u64,
    at_ns: u64,
    wall_ms: u64,
    machine: (u64, MachineView),
    /// In the contract's order.
    units: Vec<(u64, UnitView)>,
    /// The revision in which units came, went or changed their order.
    order: u64,
    /// The units that are gone, by path.
    gone: BTreeMap<String, u64>,
    /// Replies from an earlier revision to a later one than this are whole.
    whole_since: u64,
}

impl Picture {
    /// Replaces the state by a later one.
    fn update(&mut self, at_ns: u64, wall_ms: u64, machine: MachineView, units: Vec<UnitView>) {
        self.revision += 1;
        (self.at_ns, self.wall_ms) = (at_ns, wall_ms);
        if machine != self.machine.1 {
            self.machine = (self.revision, machine);
        }
        let paths = self.units.iter().map(|(_, unit)| &unit.unit);
        if !paths.eq(units.iter().map(|unit| &unit.unit)) {
            self.order = self.revision;
        }
        let before = std::mem::take(&mut self.units).into_iter();
        let mut before: BTreeMap<String, (u64, UnitView)> =
            before.map(|(revision, unit)| (unit.unit.clone(), (revision, unit))).collect();
        for unit in units {
            self.gone.remove(&unit.unit);
            let revision = match before.remove(&unit.unit) {
                Some((revision, old)) if old == unit => revision,
                _ => self.revision,
            };
            self.units.push((revision, unit));
        }
        self.gone.extend(before.into_keys().map(|path| (path, self.revision)));
        if self.gone.len() > GONE_MAX {
            self.gone.clear();
            self.whole_since = self.revision;
        }
    }

    /// The difference between the state of a revision and the present one; `None`: the whole state.
    fn since(&self, seen: Option<u64>) -> MonitorReply {
        let seen = seen.filter(|seen| *seen >= self.whole_since);
        let is_new = |revision: u64| seen.is_none_or(|seen| revision > seen);
        let order = || self.units.iter().map(|(_, unit)| unit.unit.clone()).collect();
        let gone = self.gone.iter().filter(|(_, revision)| seen.is_some() && is_new(**revision));
        MonitorReply {
            whole: seen.is_none(),
            at_ns: self.at_ns,
            wall_ms: self.wall_ms,
            machine: is_new(self.machine.0).then(|| self.machine.1.clone()),
            units: self
                .units
                .iter()
                .filter(|(revision, _)| is_new(*revision))
                .map(|(_, it)| it.clone())
                .collect(),
            gone: gone.map(|(path, _)| path.clone()).collect(),
            order: is_new(self.order).then(order),
        }
    }
}

/// A unit's totals of amounts lent and borrowed, or their rates per second: nanoseconds of a CPU, and bytes
/// over disks and the bus.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    cpu: [u64; 2],
    disk: [u64; 2],
    bus: [u64; 2],
}

impl Flow {
    fn of(account: &Account) -> Flow {
        Flow {
            cpu: [account.lent_ns, account.borrowed_ns],
            disk: account.disk.as_ref().map_or([0; 2], |disk| [disk.lent_bytes, disk.borrowed_bytes]),
            bus: account.bus.as_ref().map_or([0; 2], |bus| [bus.lent_bytes, bus.borrowed_bytes]),
        }
    }

    /// The rates per second, given totals at the beginning of a period of `ns` nanoseconds.
    fn per_second(self, before: Flow, ns: u64) -> Flow {
        let rate = |now: [u64; 2], before: [u64; 2]| {
            [0, 1].map(|n| part_of(now[n].saturating_sub(before[n]), 1_000_000_000, ns))
        };
        let Flow { cpu, disk, bus } = self;
        Flow { cpu: rate(cpu, before.cpu), disk: rate(disk, before.disk), bus: rate(bus, before.bus) }
    }
}

/// The rates at which units lend and borrow, between the last two computations.
#[derive(Debug, Default)]
struct Flows {
    at_ns: u64,
    /// By the unit's path.
    totals: BTreeMap<String, Flow>,
    rates: BTreeMap<String, Flow>,
}

impl Flows {
    /// Computes the rates since the previous statement. If no time has passed since, they stay as they were.
    fn update(&mut self, statement: &Statement) {
        let ns = statement.elapsed_ns.saturating_sub(self.at_ns);
        if ns == 0 {
            return;
        }
        let totals: BTreeMap<String, Flow> =
            statement.accounts.iter().map(|account| (account.unit.clone(), Flow::of(account))).collect();
        let rate =
            |(path, now): (&String, &Flow)| Some((path.clone(), now.per_second(*self.totals.get(path)?, ns)));
        self.rates =
            if ns <= RATE_MAX_NS { totals.iter().filter_map(rate).collect() } else { BTreeMap::new() };
        (self.at_ns, self.totals) = (statement.elapsed_ns, totals);
    }

    fn of(&self, path: &str) -> Flow {
        self.rates.get(path).copied().unwrap_or_default()
    }
}

/// The view of the machine.
fn machine(session: &mut Session, about: &About, statement: Statement) -> MachineView {
    let (backend, instead) = requests::backend_now(session);
    let in_force = |exchange: &Exchange| exchange.ended_ns.is_none();
    MachineView {
        contract: about.contract_path.clone(),
        scheme: statement.scheme.to_string(),
        backend,
        instead,
        holdings: super::holdings::now(session),
        cpus: statement.cpus,
        used_ns: statement.capacity_ns - statement.idle_ns - statement.common_ns,
        common_ns: statement.common_ns,
        idle_ns: statement.idle_ns,
        memory: statement.memory,
        call_back_promised_ns: session.contract().machine.call_back_ns,
        daemon: about.pace.now(),
        problems: requests::problems_now(session),
        exchanges: statement.exchanges.into_iter().filter(in_force).collect(),
        jobs: statement.jobs,
        loans: statement.loans,
    }
}

/// The views of all units, in the contract's order.
fn units(session: &mut Session, statement: &Statement, flows: &Flows) -> Vec<UnitView> {
    let listed = session.contract().listed();
    let call_backs = call_backs_at_switches(session, &listed);
    let switches = session.backend().means().switches;
    let accounts = || statement.accounts.iter().zip(&listed);
    let outermost = || {
        let is_outermost = |unit: UnitId| session.contract().unit(unit).parent.is_none();
        accounts().filter(move |(_, unit)| is_outermost(**unit)).map(|(account, _)| account)
    };
    let wholes = Wholes {
        cpu: session.whole(Resource::Cpu),
        memory: statement.memory.map_or(0, |memory| memory.divided),
        disk: outermost().filter_map(|account| Some(account.disk.as_ref()?.using_bytes_per_s)).sum(),
        bus: outermost().filter_map(|account| Some(account.bus.as_ref()?.entitled_bytes_per_s)).sum(),
    };
    let lends = session.scheme() == Scheme::Isolate;
    let promised_ns = lends.then_some(session.contract().machine.call_back_ns);
    let view = |(account, id): (&Account, &UnitId)| {
        let flow = flows.of(&account.unit);
        let mut view = unit(account, flow, &wholes, switches);
        let cpu = call_backs.get(id).copied().unwrap_or_default();
        view.call_backs = call_backs_of(account, &cpu, promised_ns);
        view
    };
    accounts().map(view).collect()
}

/// The amounts of each resource that all units together divide.
struct Wholes {
    cpu: u64,
    memory: u64,
    disk: u64,
    bus: u64,
}

/// The view of a unit, without its call-backs. With `switches`, loans of CPUs are made at context switches,
/// so that only their rate is known.
fn unit(account: &Account, flow: Flow, wholes: &Wholes, switches: bool) -> UnitView {
    // The last digits are noise that would make a difference each time: of CPUs below thousandths, and of
    // memory what the kernel takes and gives back all the time.
    let rounded = |micro_cpus: u64| micro_cpus.saturating_add(500) / 1_000 * 1_000;
    let in_steps = |bytes: u64, step: u64| if bytes < step { bytes } else { bytes / step * step };
    let micro_cpus = |cpus: &commonhold_machine::CpuSet| cpus.len() as u64 * 1_000_000;
    let [lent, borrowed] = if switches {
        flow.cpu.map(|ns_per_s| rounded(ns_per_s / 1_000))
    } else {
        [micro_cpus(&account.lending), micro_cpus(&account.borrowing)]
    };
    let (disk, bus, memory) = (account.disk.as_ref(), account.bus.as_ref(), account.memory.as_ref());
    UnitView {
        unit: account.unit.clone(),
        processes: account.processes,
        cpu: Gauge {
            whole: wholes.cpu,
            entitled: account.entitled_micro_cpus,
            using: rounded(account.using_micro_cpus),
            lent,
            borrowed,
        },
        memory: memory.map(|memory| Gauge {
            whole: in_steps(wholes.memory, 16 << 20),
            entitled: in_steps(memory.entitled, 1 << 20),
            using: memory.used,
            lent: memory.lent,
            borrowed: memory.borrowed,
        }),
        disk: disk.map(|disk| Gauge {
            whole: wholes.disk,
            entitled: part_of(disk.entitled_part, wholes.disk, 1_000_000),
            using: disk.using_bytes_per_s,
            lent: flow.disk[0],
            borrowed: flow.disk[1],
        }),
        bus: bus.map(|bus| Gauge {
            whole: wholes.bus,
            entitled: bus.entitled_bytes_per_s,
            using: bus.using_bytes_per_s,
            lent: flow.bus[0],
            borrowed: flow.bus[1],
        }),
        totals: UnitTotals {
            cpu_used_ns: account.used_ns,
            cpu_lent_ns: account.lent_ns,
            cpu_borrowed_ns: account.borrowed_ns,
            cpu_waited_ns: account.waited_ns,
            memory_waited_ns: memory.map_or(0, |memory| memory.waited_ns),
            disk_waited_ns: disk.map_or(0, |disk| disk.waited_ns),
            disk_read_bytes: disk.map_or(0, |disk| disk.read_bytes),
            disk_written_bytes: disk.map_or(0, |disk| disk.written_bytes),
        },
        waits: account.waits.clone(),
        call_backs: BTreeMap::new(),
        findings: account.findings.clone(),
        gangs: account.gangs.map_or_else(String::new, |gangs| gangs::summary(gangs.running, gangs.waiting)),
    }
}

/// The call-backs that the scheduler in the kernel counted, of each of these units with its sub-units.
fn call_backs_at_switches(session: &mut Session, listed: &[UnitId]) -> BTreeMap<UnitId, CallBacks> {
    let mut sums: BTreeMap<UnitId, CallBacks> = BTreeMap::new();
    for id in listed {
        let Some(counters) = session.backend().unit_counters(*id) else { continue };
        let mut level = Some(*id);
        while let Some(unit) = level {
            *sums.entry(unit).or_default() += counters.call_backs;
            level = session.contract().unit(unit).parent;
        }
    }
    sums
}

/// A unit's call-backs of each resource. `at_switches`: those of CPUs that the scheduler in the kernel
/// counted.
fn call_backs_of(
    account: &Account,
    at_switches: &CallBacks,
    promised_ns: Option<u64>,
) -> BTreeMap<Resource, CallBackView> {
    let cpu = CallBackView {
        count: account.called_back.max(at_switches.count),
        promised_ns,
        p99_ns: at_switches.within_ns(990_000),
        max_ns: account.call_back_max_ns.max(at_switches.max_ns),
        classes: if at_switches.count == 0 {
            Vec::new()
        } else {
            at_switches.classes().filter_map(|(_, below_ns, count)| Some((below_ns?, count))).collect()
        },
    };
    let memory = account.memory.as_ref().map(|memory| CallBackView {
        count: memory.called_back,
        promised_ns: memory.within_ns.or(memory.last_call_backs.last().map(|last| last.promised_ns)),
        p99_ns: Some(memory.call_back_p99_ns),
        max_ns: memory.call_back_max_ns,
        classes: Vec::new(),
    });
    let disk = account.disk.as_ref().map(|disk| CallBackView {
        count: disk.called_back,
        promised_ns: None,
        p99_ns: Some(disk.call_back_p99_ns),
        max_ns: disk.call_back_max_ns,
        classes: Vec::new(),
    });
    [(Resource::Cpu, Some(cpu)), (Resource::Memory, memory), (Resource::Disk, disk)]
        .into_iter()
        .filter_map(|(resource, view)| Some((resource, view.filter(|view| view.count > 0)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_ledger::{BusAccount, DiskAccount, Job, MemoryAccount};
    use proptest::prelude::*;

    /// A picture of units with these paths and numbers of processes.
    fn update(picture: &mut Picture, units: &[(&str, u32)]) {
        let view = |(unit, processes): &(&str, u32)| UnitView {
            unit: (*unit).to_owned(),
            processes: *processes,
            ..UnitView::default()
        };
        let machine = MachineView { cpus: units.len().try_into().unwrap_or(0), ..MachineView::default() };
        let at_ns = picture.at_ns + 1;
        picture.update(at_ns, 0, machine, units.iter().map(view).collect());
    }

    fn names(reply: &MonitorReply) -> Vec<&str> {
        reply.units.iter().map(|unit| unit.unit.as_str()).collect()
    }

    #[test]
    fn a_difference_has_only_what_changed() {
        let mut picture = Picture::default();
        update(&mut picture, &[("a", 1), ("b", 1)]);
        let first = picture.since(None);
        assert!(first.whole && first.machine.is_some() && first.order.is_some());
        assert_eq!(names(&first), ["a", "b"]);
        update(&mut picture, &[("a", 1), ("b", 2)]);
        let second = picture.since(Some(1));
        assert!(!second.whole && second.machine.is_none() && second.order.is_none());
        assert_eq!((names(&second), second.at_ns), (vec!["b"], 2));
        update(&mut picture, &[("c", 1), ("a", 1)]);
        let third = picture.since(Some(2));
        assert_eq!((names(&third), third.gone.as_slice()), (vec!["c"], &["b".to_owned()][..]));
        assert_eq!(third.order.as_deref(), Some(&["c".to_owned(), "a".to_owned()][..]));
        // A unit that went and came back is not gone.
        update(&mut picture, &[("b", 2), ("c", 1), ("a", 1)]);
        assert_eq!((names(&picture.since(Some(1))), picture.since(Some(1)).gone.len()), (vec!["b", "c"], 0));
        picture.whole_since = picture.revision + 1;
        update(&mut picture, &[]);
        assert!(picture.since(Some(4)).whole && !picture.since(Some(5)).whole);
    }

    #[test]
    fn a_flood_of_units_that_go_is_forgotten() {
        let mut picture = Picture::default();
        let names: Vec<String> = (0..=GONE_MAX).map(|n| n.to_string()).collect();
        let units: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        update(&mut picture, &units);
        update(&mut picture, &[]);
        assert!(picture.gone.is_empty() && picture.since(Some(1)).whole);
    }

    /// A state, as numbers of units' paths and of their processes, and which of two subscribers then get a
    /// reply.
    type Step = (Vec<(usize, u32)>, [bool; 2]);

    /// Every subscriber has the present state after its reply, whatever replies it missed.
    fn check_pictures(steps: &[Step]) {
        const PATHS: [&str; 5] = ["a", "a/b", "c", "d", "e"];
        let mut picture = Picture::default();
        let mut seen: [(Option<u64>, MonitorReply); 2] = Default::default();
        for (units, replied) in steps {
            let mut unique: Vec<(&str, u32)> = Vec::new();
            for (n, processes) in units {
                if unique.iter().all(|(path, _)| *path != PATHS[*n]) {
                    unique.push((PATHS[*n], *processes));
                }
            }
            update(&mut picture, &unique);
            for ((seen, had), _) in seen.iter_mut().zip(replied).filter(|(_, replied)| **replied) {
                picture.since(*seen).merge_into(had);
                *seen = Some(picture.revision);
                assert_eq!(*had, MonitorReply { whole: true, ..picture.since(None) });
            }
        }
    }

    proptest! {
        #[test]
        fn differences_sum_to_the_whole(
            steps in prop::collection::vec(
                (prop::collection::vec((0usize..5, 0u32..3), 0..5), any::<[bool; 2]>()), 1..30)
        ) {
            check_pictures(&steps);
        }

        /// Replies to one subscriber are at least half an interval apart, and those to all subscribers with
        /// the same interval coincide.
        #[test]
        fn replies_are_aligned(now in 0..Time::MAX, every_ms in EVERY_MS_MIN..=u64::MAX) {
            let Ok(every_ns) = Monitor::interval(Some(every_ms)) else { panic!("{every_ms}") };
            let next = next_reply(now, every_ns);
            prop_assert!(next.saturating_sub(now) >= every_ns / 2 || next == Time::MAX || now > Time::MAX - every_ns);
            prop_assert!(next.is_multiple_of(every_ns) || next == Time::MAX);
        }
    }

    #[test]
    fn a_subscriber_is_due_once_until_it_is_served() {
        assert!(Monitor::interval(Some(0)).is_err() && Monitor::interval(Some(EVERY_MS_MIN - 1)).is_err());
        assert_eq!(Monitor::interval(None).ok(), Some(1_000_000_000));
        let mut monitor = Monitor::default();
        monitor.subscribe(7, 1_000);
        assert!(monitor.is_due(7) && !monitor.is_due(8));
        assert_eq!((monitor.next_due(), monitor.take_due(5)), (None, vec![]), "it is ready already");
        monitor.subscribers.insert(7, Subscriber { every_ns: 1_000, due: Some(9), seen: None });
        assert_eq!((monitor.next_due(), monitor.take_due(8)), (Some(9), vec![]));
        assert_eq!((monitor.take_due(9), monitor.next_due()), (vec![7], None));
        monitor.unsubscribe(7);
        assert!(!monitor.is_due(7) && monitor.clients().next().is_none());
    }

    /// An account of 2.0004 CPUs, disks, memory and bus; half a second ago it had lent 250 ms less.
    #[test]
    fn a_view_has_rates_and_parts() {
        let account = |lent_ns| Account {
            unit: "a".to_owned(),
            using_micro_cpus: 2_000_400,
            lent_ns,
            borrowing: [3].into_iter().collect(),
            disk: Some(DiskAccount { entitled_part: 250_000, using_bytes_per_s: 400, ..Default::default() }),
            bus: Some(BusAccount { entitled_bytes_per_s: 70, ..Default::default() }),
            memory: Some(MemoryAccount { entitled: (5 << 20) + 7, used: 4, ..Default::default() }),
            ..Account::default()
        };
        let statement = |elapsed_ns, lent_ns| Statement {
            elapsed_ns,
            accounts: vec![account(lent_ns)],
            ..Statement::default()
        };
        let mut flows = Flows::default();
        flows.update(&statement(1_000_000_000, 50_000_000));
        flows.update(&statement(1_500_000_000, 300_000_000));
        // No turn was made since.
        flows.update(&statement(1_500_000_000, 300_000_000));
        let wholes = Wholes { cpu: 8_000_000, memory: (32 << 20) + 9, disk: 1_000, bus: 100 };
        let view = |switches| unit(&account(0), flows.of("a"), &wholes, switches);
        let cpu = Gauge { whole: 8_000_000, entitled: 0, using: 2_000_000, lent: 500_000, borrowed: 0 };
        assert_eq!(view(true).cpu, cpu);
        assert_eq!(view(false).cpu, Gauge { lent: 0, borrowed: 1_000_000, ..cpu });
        let disk = Gauge { whole: 1_000, entitled: 250, using: 400, lent: 0, borrowed: 0 };
        assert_eq!(view(true).disk, Some(disk));
        let memory = Gauge { whole: 32 << 20, entitled: 5 << 20, using: 4, lent: 0, borrowed: 0 };
        assert_eq!(view(true).memory, Some(memory));
        assert_eq!(view(true).bus.map(|bus| (bus.whole, bus.entitled)), Some((100, 70)));
        // A rate over an hour is no present one.
        flows.update(&statement(3_600_000_000_000, 400_000_000));
        assert_eq!(flows.of("a").cpu, [0, 0]);
    }

    /// Two encodings of one state.
    #[test]
    fn names_of_programs_are_hidden_from_who_may_not_see_them() {
        let mut monitor = Monitor::default();
        let jobs = vec![Job { name: "secret 7".to_owned(), ..Job::default() }];
        monitor.picture.update(1, 1, MachineView { jobs, ..MachineView::default() }, Vec::new());
        let mut has_name = |sees_all| {
            let message = monitor.encoded(None, true, sees_all);
            message.windows(6).any(|part| part == b"secret")
        };
        assert_eq!((has_name(true), has_name(false)), (true, false));
    }

    #[test]
    fn call_backs_without_a_count_are_left_out() {
        let mut account = Account { called_back: 2, call_back_max_ns: 9, ..Account::default() };
        let views = call_backs_of(&account, &CallBacks::default(), Some(10));
        let cpu = CallBackView { count: 2, promised_ns: Some(10), max_ns: 9, ..CallBackView::default() };
        assert_eq!(views, BTreeMap::from([(Resource::Cpu, cpu)]));
        let mut counted = CallBacks { count: 4, max_ns: 2_000, ..CallBacks::default() };
        (counted.classes[0], counted.classes[1]) = (3, 1);
        let views = call_backs_of(&account, &counted, None);
        let cpu = &views[&Resource::Cpu];
        assert_eq!(
            (cpu.count, cpu.p99_ns, &cpu.classes[..2]),
            (4, Some(2_000), &[(1_024, 3), (2_048, 1)][..])
        );
        account.called_back = 0;
        assert_eq!(call_backs_of(&account, &CallBacks::default(), None), BTreeMap::new());
    }
}
