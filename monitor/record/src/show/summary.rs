//! The summary of a recording, as text and JSON.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::rc::Rc;

use commonhold_ledger::latencies::{Latencies, quantile};
use commonhold_machine::Machine;
use commonhold_recording::{Block, End, Header, Method, Sample, UnitSample, Why};
use commonhold_report::Style;
use commonhold_report::figures::{NOTHING, bytes, count_of, cpus, duration, part};
use commonhold_report::table::{Paint, Table, clean, wrap_whole};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::follow::{After, Follower, Inconsistencies, PATH_BYTES_MAX, Piece, Seen, UNITS_MAX, Who, cut};

/// The longest text of how a resource is held that is kept, in bytes.
const HOW_BYTES_MAX: usize = 1024;
/// Processes that are counted once each.
const PROCESSES_MAX: usize = 1 << 20;
/// Classes of call-backs that are kept for a unit; schedulers have about 20.
const CLASSES_MAX: usize = 256;

/// What is summed up while a recording is read.
#[derive(Debug)]
pub(super) struct Summary {
    header: Header,
    end: Option<End>,
    damage: Option<String>,
    last_ns: u64,
    events: u64,
    samples: u64,
    contract_changes: u64,
    /// Why CPU time was not held at first or later, if that happened.
    cpu_not_held: Option<String>,
    processes_left_out: u32,
    inconsistencies: Inconsistencies,
    threads: BTreeMap<Rc<str>, OfThreads>,
    /// Units and processes that were counted.
    processes: HashSet<(Rc<str>, u32)>,
    accounts: BTreeMap<String, OfAccounts>,
    had_accounts: bool,
}

/// What a unit's threads did, without those of sub-units.
#[derive(Debug, Default)]
struct OfThreads {
    threads: u64,
    processes: u64,
    used_ns: u64,
    woken: Latencies,
    /// Waits of all kinds.
    waits: Latencies,
    sleeps: Latencies,
    transfers: Transfers,
}

/// Requests to disks.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Transfers {
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
}

/// What the accounts say of a unit, with its sub-units: sums of differences between samples.
#[derive(Debug, Default)]
struct OfAccounts {
    last: UnitSample,
    samples: u64,
    entitled_micro_cpus: u128,
    entitled_ns: u64,
    used_ns: u64,
    lent_ns: u64,
    borrowed_ns: u64,
    waited_ns: u64,
    call_backs: u64,
    call_backs_ns: u64,
    classes: BTreeMap<u64, u64>,
    /// The sum of the samples that have the unit's memory, and their number.
    memory: (u128, u64),
    disk: Option<(u64, u64)>,
}

impl Summary {
    pub(super) fn new(header: Header) -> Summary {
        Summary {
            header,
            end: None,
            damage: None,
            last_ns: 0,
            events: 0,
            samples: 0,
            contract_changes: 0,
            cpu_not_held: None,
            processes_left_out: 0,
            inconsistencies: Inconsistencies::default(),
            threads: BTreeMap::new(),
            processes: HashSet::new(),
            accounts: BTreeMap::new(),
            had_accounts: false,
        }
    }

    /// The time of the last block.
    pub(super) fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Takes over a block; the follower has seen the blocks before.
    pub(super) fn block(&mut self, block: &Block, follower: &mut Follower) {
        let at = match block {
            Block::Threads(_) => 0,
            Block::Events(events) => {
                self.events += events.len() as u64;
                events.last().map_or(0, |event| event.at_ns)
            }
            Block::Usage(usage) => {
                for thread in &usage.threads {
                    let who = follower.who(thread.tid);
                    let of = self.threads.entry(who.unit).or_default();
                    of.used_ns = of.used_ns.saturating_add(thread.ran_ns);
                    of.waits.add_sum(thread.turns.into(), thread.waited_ns);
                }
                usage.at_ns
            }
            Block::Sample(sample) => {
                self.sample(sample);
                sample.at_ns
            }
            Block::Contract(change) => {
                self.contract_changes += 1;
                change.at_ns
            }
            Block::Holding(change) => {
                if change.resource == "cpu" && !change.is_held && self.cpu_not_held.is_none() {
                    self.cpu_not_held = Some(cut(&change.how, HOW_BYTES_MAX).to_owned());
                }
                change.at_ns
            }
            Block::End(end) => {
                self.end = Some(end.clone());
                end.at_ns
            }
        };
        self.last_ns = self.last_ns.max(at);
    }

    /// Takes over what came of the events.
    pub(super) fn piece(&mut self, piece: &Piece) {
        match piece {
            Piece::Seen(seen) => self.seen(seen),
            Piece::Burst(burst) => {
                let of = self.of(&burst.who);
                of.used_ns = of.used_ns.saturating_add(burst.end_ns - burst.begin_ns);
            }
            Piece::Wait(wait) => {
                let of = self.of(&wait.who);
                of.waits.add(wait.end_ns - wait.begin_ns);
                if wait.after == After::Wake {
                    of.woken.add(wait.end_ns - wait.begin_ns);
                }
            }
            Piece::Sleep(sleep) => self.of(&sleep.who).sleeps.add(sleep.end_ns - sleep.begin_ns),
            Piece::Transfer { who, bytes, write } => {
                let transfers = &mut self.of(who).transfers;
                transfers.requests += 1;
                let sum = if *write { &mut transfers.written_bytes } else { &mut transfers.read_bytes };
                *sum = sum.saturating_add(u64::from(*bytes));
            }
            Piece::LoanBegan(_) | Piece::LoanEnded(..) | Piece::CallBack(_) => {}
        }
    }

    /// Notes where the file is damaged.
    pub(super) fn damaged(&mut self, damage: &str) {
        self.damage = Some(damage.to_owned());
    }

    /// Notes what the follower missed.
    pub(super) fn finish(&mut self, inconsistencies: Inconsistencies) {
        self.inconsistencies = inconsistencies;
    }

    fn of(&mut self, who: &Who) -> &mut OfThreads {
        self.threads.entry(Rc::clone(&who.unit)).or_default()
    }

    fn seen(&mut self, Seen { who, is_new, .. }: &Seen) {
        let is_new_process = who.pid != 0
            && self.processes.len() < PROCESSES_MAX
            && self.processes.insert((Rc::clone(&who.unit), who.pid));
        let of = self.of(who);
        of.threads += u64::from(*is_new);
        of.processes += u64::from(is_new_process);
    }

    fn sample(&mut self, sample: &Sample) {
        self.samples += 1;
        self.processes_left_out = self.processes_left_out.max(sample.processes_left_out);
        for unit in &sample.units {
            let path = cut(&unit.path, PATH_BYTES_MAX);
            if let Some(of) = self.accounts.get_mut(path) {
                of.add(unit);
            } else if self.accounts.len() < UNITS_MAX {
                let mut of = OfAccounts::default();
                // A unit that came later began with sums of zero.
                if !self.had_accounts {
                    of.last = unit.clone();
                }
                of.add(unit);
                self.accounts.insert(path.to_owned(), of);
            }
        }
        self.had_accounts |= !sample.units.is_empty();
    }

    /// All that is shown.
    fn view(&self) -> View<'_> {
        let accounts = self.accounts.keys().map(String::as_str);
        let threads = self.threads.keys().map(|path| &**path).filter(|path| !path.is_empty());
        // Sorted so that a unit's sub-units follow it.
        let paths: BTreeSet<Vec<&str>> =
            accounts.chain(threads).map(|path| path.split('/').collect()).collect();
        let mut units: Vec<UnitView> = paths.iter().map(|path| self.unit(&path.join("/"))).collect();
        if self.threads.contains_key("") {
            units.push(self.unit(""));
        }
        let used_ns = self.threads.values().fold(0_u64, |sum, of| sum.saturating_add(of.used_ns));
        for unit in &mut units {
            let share = (u128::from(unit.used_ns) * 1_000_000).checked_div(u128::from(used_ns));
            unit.share_ppm = share.and_then(|share| u64::try_from(share).ok());
        }
        let end = self.end.as_ref();
        View {
            header: &self.header,
            length_ns: self.last_ns,
            why_ended: end.map(|end| match end.why {
                Why::Time => "time",
                Why::Size => "size",
                Why::Told => "told",
            }),
            is_cut_short: end.is_none(),
            damage: self.damage.as_deref(),
            events: self.events,
            samples: self.samples,
            contract_changes: self.contract_changes,
            cpu_not_held: self.cpu_not_held.clone(),
            lost: end.map(|end| end.lost),
            disordered: end.map(|end| end.disordered),
            inconsistencies: self.inconsistencies,
            without_accounts_ns: end.map(|end| end.without_accounts_ns),
            processes_left_out: self.processes_left_out,
            recorder_ns: end.map(|end| end.recorder_ns),
            used_ns,
            units,
        }
    }

    /// A unit with its sub-units; with an empty path, the threads in no unit.
    fn unit(&self, path: &str) -> UnitView {
        let mut of = OfThreads::default();
        // Sub-units' paths are those between `path/` and `path0`, as 0 follows the slash.
        let (first, end) = (format!("{path}/"), format!("{path}0"));
        let inside = self.threads.range::<str, _>((Bound::Included(&*first), Bound::Excluded(&*end)));
        let inside = inside.filter(|_| !path.is_empty()).map(|(_, of)| of);
        self.threads.get(path).into_iter().chain(inside).for_each(|inner| of.add(inner));
        let by_events = self.header.method == Method::Events;
        UnitView {
            unit: path.to_owned(),
            processes: of.processes,
            threads: of.threads,
            used_ns: of.used_ns,
            share_ppm: None,
            waits_after_wake_ups: by_events.then(|| LengthsView::of(&of.woken)),
            waits: LengthsView::of(&of.waits),
            sleeps: by_events.then(|| LengthsView::of(&of.sleeps)),
            transfers: by_events.then_some(of.transfers),
            accounts: self.accounts.get(path).map(OfAccounts::view),
        }
    }

    /// The summary as JSON.
    pub(super) fn json(&self) -> String {
        commonhold_report::json("commonhold.recording", self.view())
    }

    /// The summary as text.
    pub(super) fn text(&self, style: Style, zone: &TimeZone) -> String {
        let view = self.view();
        let head = format!("Recording of {}, begun {}", duration(view.length_ns), view.began(zone));
        let mut text = style.paint(Paint::Strong, &head) + "\n\n";
        for (name, value) in view.facts() {
            let lines = wrap_whole(&clean(&value), style.width, &format!("{name:<10}  "), &" ".repeat(12));
            text += &(lines.join("\n") + "\n");
        }
        text.push('\n');
        if view.units.is_empty() {
            return text + "No unit was seen.\n";
        }
        text += &view.table(&self.header.method).render_in_blocks(style);
        if view.units.iter().any(|unit| unit.unit.contains('/')) {
            text += "\nFigures of a unit include its sub-units.\n";
        }
        text
    }
}

impl OfThreads {
    fn add(&mut self, inner: &OfThreads) {
        self.threads += inner.threads;
        self.processes += inner.processes;
        self.used_ns = self.used_ns.saturating_add(inner.used_ns);
        self.woken.merge(&inner.woken);
        self.waits.merge(&inner.waits);
        self.sleeps.merge(&inner.sleeps);
        let (sum, add) = (&mut self.transfers, inner.transfers);
        sum.requests += add.requests;
        sum.read_bytes = sum.read_bytes.saturating_add(add.read_bytes);
        sum.written_bytes = sum.written_bytes.saturating_add(add.written_bytes);
    }
}

/// The difference of two sums. Sums that are smaller than before are of a daemon that started meanwhile.
fn increase(sum: &mut u64, before: u64, now: u64) {
    *sum = sum.saturating_add(now.checked_sub(before).unwrap_or(now));
}

impl OfAccounts {
    fn add(&mut self, now: &UnitSample) {
        let last = &self.last;
        self.samples += 1;
        self.entitled_micro_cpus += u128::from(now.entitled_micro_cpus);
        increase(&mut self.entitled_ns, last.entitled_ns, now.entitled_ns);
        increase(&mut self.used_ns, last.used_ns, now.used_ns);
        increase(&mut self.lent_ns, last.lent_ns, now.lent_ns);
        increase(&mut self.borrowed_ns, last.borrowed_ns, now.borrowed_ns);
        increase(&mut self.waited_ns, last.waited_ns, now.waited_ns);
        increase(&mut self.call_backs, last.call_backs.count, now.call_backs.count);
        increase(&mut self.call_backs_ns, last.call_backs.sum_ns, now.call_backs.sum_ns);
        let before: BTreeMap<u64, u64> = last.call_backs.classes.iter().copied().collect();
        for (below_ns, n) in now.call_backs.classes.iter().take(CLASSES_MAX) {
            if self.classes.len() < CLASSES_MAX || self.classes.contains_key(below_ns) {
                let sum = self.classes.entry(*below_ns).or_default();
                increase(sum, before.get(below_ns).copied().unwrap_or(0), *n);
            }
        }
        if let Some(memory) = now.memory {
            self.memory = (self.memory.0 + u128::from(memory.used), self.memory.1 + 1);
        }
        if let Some(disk) = now.disk {
            let before = last.disk.unwrap_or_default();
            let (read, written) = self.disk.get_or_insert_default();
            increase(read, before.read, disk.read);
            increase(written, before.written, disk.written);
        }
        self.last = now.clone();
    }

    fn view(&self) -> AccountsView {
        let mean =
            |sum: u128, n: u64| sum.checked_div(u128::from(n)).and_then(|mean| u64::try_from(mean).ok());
        let known_ns = (self.call_backs_ns > 0).then_some(self.call_backs_ns);
        AccountsView {
            entitled_micro_cpus: mean(self.entitled_micro_cpus, self.samples).unwrap_or(0),
            entitled_ns: self.entitled_ns,
            used_ns: self.used_ns,
            lent_ns: self.lent_ns,
            borrowed_ns: self.borrowed_ns,
            waited_ns: self.waited_ns,
            call_backs: CallBacksView {
                count: self.call_backs,
                mean_ns: known_ns.and_then(|sum| sum.checked_div(self.call_backs)),
                p99_below_ns: quantile(
                    self.classes.iter().map(|(below, n)| (*below, *n)),
                    self.call_backs,
                    990,
                ),
            },
            memory_mean_bytes: mean(self.memory.0, self.memory.1),
            disk_read_bytes: self.disk.map(|(read, _)| read),
            disk_written_bytes: self.disk.map(|(_, written)| written),
        }
    }
}

/// What the JSON document has.
#[derive(Debug, Serialize)]
struct View<'a> {
    header: &'a Header,
    length_ns: u64,
    /// `time`, `size` or `told`; null if the file was cut short.
    why_ended: Option<&'static str>,
    is_cut_short: bool,
    damage: Option<&'a str>,
    events: u64,
    samples: u64,
    contract_changes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_not_held: Option<String>,
    /// Null if the file was cut short, since the end has this number.
    lost: Option<u64>,
    disordered: Option<u64>,
    inconsistencies: Inconsistencies,
    without_accounts_ns: Option<u64>,
    processes_left_out: u32,
    recorder_ns: Option<u64>,
    /// CPU time of all threads.
    used_ns: u64,
    units: Vec<UnitView>,
}

#[derive(Debug, Serialize)]
struct UnitView {
    /// Empty for threads in no unit.
    unit: String,
    processes: u64,
    threads: u64,
    used_ns: u64,
    /// Millionths of the CPU time of all threads.
    share_ppm: Option<u64>,
    waits_after_wake_ups: Option<LengthsView>,
    /// All waits for a CPU.
    waits: LengthsView,
    sleeps: Option<LengthsView>,
    transfers: Option<Transfers>,
    accounts: Option<AccountsView>,
}

#[derive(Debug, Serialize)]
struct LengthsView {
    count: u64,
    mean_ns: Option<u64>,
    p99_ns: Option<u64>,
}

impl LengthsView {
    fn of(lengths: &Latencies) -> LengthsView {
        LengthsView { count: lengths.count(), mean_ns: lengths.mean_ns(), p99_ns: lengths.quantile_ns(990) }
    }
}

#[derive(Debug, Serialize)]
struct AccountsView {
    entitled_micro_cpus: u64,
    entitled_ns: u64,
    used_ns: u64,
    lent_ns: u64,
    borrowed_ns: u64,
    waited_ns: u64,
    call_backs: CallBacksView,
    memory_mean_bytes: Option<u64>,
    disk_read_bytes: Option<u64>,
    disk_written_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct CallBacksView {
    count: u64,
    mean_ns: Option<u64>,
    /// The upper bound of the class of the 99th percentile.
    p99_below_ns: Option<u64>,
}

impl View<'_> {
    fn began(&self, zone: &TimeZone) -> String {
        let ms = self.header.began_wall_ms;
        let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        // The clock of the machine may have been anywhere.
        time.map_or_else(
            || format!("@{}", ms / 1_000),
            |time| time.to_zoned_datetime(zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        )
    }

    /// The lines before the table: names and values.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let header = self.header;
        let machine = match Machine::from_toml(&header.machine) {
            Ok(machine) => machine.summary(),
            Err(error) => format!("unknown: {error}"),
        };
        let end = match (self.damage, self.why_ended) {
            (Some(damage), _) => damage.to_owned(),
            (None, Some("time")) => Why::Time.to_string(),
            (None, Some("size")) => Why::Size.to_string(),
            (None, Some(_)) => Why::Told.to_string(),
            (None, None) => "the file was cut short".to_owned(),
        };
        let changes = match self.contract_changes {
            0 => String::new(),
            1 => "; it changed once".to_owned(),
            n => format!("; it changed {n} times"),
        };
        let content = [count_of(self.events, "event", "events"), count_of(self.samples, "sample", "samples")];
        vec![
            ("machine", machine),
            ("kernel", header.kernel.clone()),
            ("contract", format!("{}, scheme {}{changes}", header.contract_file, header.scheme)),
            ("backend", header.backend.clone()),
            ("program", header.program.clone()),
            ("method", format!("{}; samples every {}", header.method, duration(header.sample_ns))),
            ("content", content.join(", ")),
            ("end", end),
            ("lost", self.losses()),
            ("recorder", self.recorder()),
        ]
    }

    /// What the recording lacks, in words.
    fn losses(&self) -> String {
        let Inconsistencies { switches, wake_ups, impossible } = self.inconsistencies;
        let several = |n: u64, one: &str, many: &str| (n > 0).then(|| count_of(n, one, many));
        let events = |n: u64| several(n, "event", "events");
        let left_out = several(self.processes_left_out.into(), "process", "processes");
        let without = self.without_accounts_ns.filter(|ns| *ns > 0);
        let known = [
            self.lost.is_none().then(|| "the number of lost events is unknown".to_owned()),
            self.lost.and_then(events),
            self.disordered.and_then(events).map(|text| text + " out of order"),
            several(switches, "switch", "switches").map(|text| text + " without an event"),
            several(wake_ups, "wake-up", "wake-ups").map(|text| text + " without an event"),
            events(impossible).map(|text| text + " with an invalid CPU number"),
            left_out.map(|text| text + " left out of samples, wholly or in part"),
            without.map(|ns| format!("no accounts for {}", duration(ns))),
            self.cpu_not_held.as_ref().map(|how| format!("CPU time was {how}")),
        ];
        let known: Vec<String> = known.into_iter().flatten().collect();
        if known.is_empty() { "nothing".to_owned() } else { known.join(", ") }
    }

    fn recorder(&self) -> String {
        let parts = |ns: u64| {
            let ppm = (u128::from(ns) * 1_000_000).checked_div(u128::from(self.length_ns));
            ppm.and_then(|ppm| u64::try_from(ppm).ok())
        };
        match self.recorder_ns.and_then(parts) {
            Some(ppm) => format!("used {} of a CPU", part(ppm)),
            None => "its CPU time is unknown".to_owned(),
        }
    }

    fn table(&self, method: &Method) -> Table {
        let by_events = *method == Method::Events;
        let [waits, mean, p99] = match by_events {
            true => ["wake-up\nwaits", "wake-up\nmean", "wake-up\n99 %"],
            false => ["CPU\nwaits", "CPU wait\nmean", "CPU wait\n99 %"],
        };
        // A table that is too wide is split, so each heading is complete.
        let mut table = Table::new(&[
            "unit",
            "processes",
            "threads",
            "entitled\nCPUs",
            "CPU\ntime",
            "CPU\nshare",
            waits,
            mean,
            p99,
            "call-\nbacks",
            "call-back\nmean",
            "call-back\n99 % below",
            "memory\nmean",
            "disk\nread",
            "disk\nwritten",
        ]);
        for unit in &self.units {
            let accounts = unit.accounts.as_ref();
            let waits = unit.waits_after_wake_ups.as_ref().unwrap_or(&unit.waits);
            let call_backs = accounts.map(|of| &of.call_backs);
            let time = |ns: Option<u64>| ns.map_or_else(|| NOTHING.to_owned(), duration);
            let size = |n: Option<u64>| n.map_or_else(|| NOTHING.to_owned(), bytes);
            let cells = vec![
                name(&unit.unit),
                unit.processes.to_string(),
                unit.threads.to_string(),
                accounts.map_or_else(|| NOTHING.to_owned(), |of| cpus(of.entitled_micro_cpus)),
                duration(unit.used_ns),
                unit.share_ppm.map_or_else(|| NOTHING.to_owned(), part),
                waits.count.to_string(),
                time(waits.mean_ns),
                time(waits.p99_ns),
                call_backs.map_or_else(|| NOTHING.to_owned(), |of| of.count.to_string()),
                time(call_backs.and_then(|of| of.mean_ns)),
                time(call_backs.and_then(|of| of.p99_below_ns)),
                size(accounts.and_then(|of| of.memory_mean_bytes)),
                size(accounts.and_then(|of| of.disk_read_bytes)),
                size(accounts.and_then(|of| of.disk_written_bytes)),
            ];
            table.row(Paint::Plain, cells);
        }
        table
    }
}

/// The first cell of a unit's row.
fn name(path: &str) -> String {
    match path.rsplit_once('/') {
        _ if path.is_empty() => "(in no unit)".to_owned(),
        Some((around, last)) => "  ".repeat(around.split('/').count()) + &clean(last),
        None => clean(path),
    }
}
