//! What a recording is of, in a page: its origin, what was lost, and what each unit did.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_command::output::shown;
use commonhold_machine::Machine;
use commonhold_recording::{Block, End, Header, Method, Sample, UnitSample};
use commonhold_report::figures::{NOTHING, bytes, count, cpus, duration, percent_text};
use commonhold_report::table::{Paint, Style, Table, wrap};
use serde::Serialize;

use super::follow::{Ended, Follower};

/// Latencies, each rounded down by less than one part in 64.
#[derive(Debug, Default)]
struct Latencies {
    by_length: BTreeMap<u64, u64>,
    count: u64,
    sum_ns: u64,
}

impl Latencies {
    fn add(&mut self, span: u64) {
        let dropped_bits = span.checked_ilog2().unwrap_or(0).saturating_sub(6);
        *self.by_length.entry(span >> dropped_bits << dropped_bits).or_default() += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(span);
    }

    fn p99(&self) -> Option<u64> {
        percentile(self.by_length.iter().map(|(span, count)| (*span, *count)))
    }
}

/// The value at the 99th percentile of values with counts, in ascending order.
fn percentile(values: impl Iterator<Item = (u64, u64)> + Clone) -> Option<u64> {
    let all: u64 = values.clone().map(|(_, count)| count).sum();
    let rank = (all * 99).div_ceil(100);
    let mut before = 0;
    values
        .filter(|(_, count)| *count > 0)
        .find(|(_, count)| {
            before += count;
            before >= rank
        })
        .map(|(value, _)| value)
}

/// What a unit did, as it is summed up.
#[derive(Debug, Default)]
struct Summed {
    threads: BTreeSet<u32>,
    used_ns: u64,
    waits: Latencies,
    waited_ns: u64,
    memory: (u64, u64),
}

/// Sums up a recording.
#[derive(Debug, Default)]
pub(super) struct Summary {
    units: BTreeMap<String, Summed>,
    first: Option<Sample>,
    last: Option<Sample>,
    contract_changes: usize,
    left_out: u32,
    end: Option<End>,
    last_ns: u64,
    events: u64,
    /// CPU time of threads in no unit, of which events tell.
    others_ns: u64,
    /// With clocks: each thread's unit.
    clocked: BTreeMap<u32, String>,
}

/// The summary, complete.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    file: String,
    header: JsonHeader<'a>,
    machine: String,
    length_ns: u64,
    events: u64,
    /// How it ended; `None`: it was cut short.
    ended: Option<String>,
    lost: u64,
    disordered: u64,
    missing_switches: u64,
    processes_left_out: u32,
    without_accounts_ns: u64,
    contract_changes: usize,
    damage: Option<String>,
    recorder_ns: Option<u64>,
    others_ns: u64,
    units: Vec<UnitReport>,
}

#[derive(Debug, Serialize)]
struct JsonHeader<'a> {
    program: &'a str,
    kernel: &'a str,
    began_wall_ms: u64,
    backend: &'a str,
    scheme: &'a str,
    method: String,
    contract_file: &'a str,
    contract: &'a str,
}

/// A unit's line.
#[derive(Debug, Serialize)]
struct UnitReport {
    unit: String,
    threads: usize,
    entitled_micro_cpus: Option<u64>,
    used_ns: u64,
    waited_ns: u64,
    /// Waits for a CPU after wake-ups; `None` if the recording has no events.
    wakes: Option<u64>,
    wake_mean_ns: Option<u64>,
    wake_p99_ns: Option<u64>,
    called_back: Option<u64>,
    call_back_p99_ns: Option<u64>,
    memory_mean: Option<u64>,
    disk_read: Option<u64>,
    disk_written: Option<u64>,
}

impl Summary {
    /// Takes a block, except for its events.
    pub(super) fn block(&mut self, block: &Block) {
        match block {
            Block::Threads(threads) => {
                for thread in threads.iter().filter(|thread| !thread.unit.is_empty()) {
                    self.units.entry(thread.unit.clone()).or_default().threads.insert(thread.tid);
                    self.clocked.insert(thread.tid, thread.unit.clone());
                }
            }
            Block::Usage(usage) => {
                self.last_ns = self.last_ns.max(usage.at_ns);
                for used in &usage.threads {
                    if let Some(unit) = self.clocked.get(&used.tid).and_then(|unit| self.units.get_mut(unit))
                    {
                        unit.used_ns = unit.used_ns.saturating_add(used.ran_ns);
                        unit.waited_ns = unit.waited_ns.saturating_add(used.waited_ns);
                    }
                }
            }
            Block::Sample(sample) => self.sample(sample),
            Block::Contract(_) => self.contract_changes += 1,
            Block::End(end) => self.end = Some(end.clone()),
            Block::Events(events) => {
                self.events += events.len() as u64;
                self.last_ns = events.last().map_or(self.last_ns, |event| event.at_ns.max(self.last_ns));
            }
        }
    }

    /// Takes what ended at `to_ns`.
    pub(super) fn ended(&mut self, to_ns: u64, follower: &Follower, ended: Ended) {
        let (Ended::Ran { thread, from_ns, .. } | Ended::Waited { thread, from_ns, .. }) = ended;
        let span = to_ns.saturating_sub(from_ns);
        let unit = follower.unit(thread);
        if unit.is_empty() {
            if matches!(ended, Ended::Ran { .. }) {
                self.others_ns = self.others_ns.saturating_add(span);
            }
            return;
        }
        if !self.units.contains_key(unit) {
            self.units.insert(unit.to_owned(), Summed::default());
        }
        let Some(summed) = self.units.get_mut(unit) else { return };
        summed.threads.insert(thread);
        match ended {
            Ended::Ran { .. } => summed.used_ns = summed.used_ns.saturating_add(span),
            Ended::Waited { woken, .. } => {
                summed.waited_ns = summed.waited_ns.saturating_add(span);
                if woken {
                    summed.waits.add(span);
                }
            }
        }
    }

    fn sample(&mut self, sample: &Sample) {
        self.last_ns = self.last_ns.max(sample.at_ns);
        self.left_out = self.left_out.max(sample.processes_left_out);
        for unit in &sample.units {
            if let (Some(memory), Some(summed)) = (unit.memory, self.units.get_mut(&unit.path)) {
                summed.memory.0 = summed.memory.0.saturating_add(memory.used);
                summed.memory.1 += 1;
            }
        }
        if !sample.units.is_empty() {
            self.first.get_or_insert_with(|| sample.clone());
            self.last = Some(sample.clone());
        }
    }

    /// The report.
    pub(super) fn report<'a>(
        &self,
        file: &str,
        header: &'a Header,
        missing_switches: u64,
        damage: Option<String>,
    ) -> Report<'a> {
        let machine = Machine::from_toml(&header.machine)
            .map_or_else(|error| format!("not readable: {error}"), |machine| machine.summary());
        let end = self.end.as_ref();
        Report {
            file: file.to_owned(),
            header: JsonHeader {
                program: &header.program,
                kernel: &header.kernel,
                began_wall_ms: header.began_wall_ms,
                backend: &header.backend,
                scheme: &header.scheme,
                method: header.method.to_string(),
                contract_file: &header.contract_file,
                contract: &header.contract,
            },
            machine,
            length_ns: end.map_or(self.last_ns, |end| end.at_ns),
            events: self.events,
            ended: end.map(|end| end.why.to_string()),
            lost: end.map_or(0, |end| end.lost),
            disordered: end.map_or(0, |end| end.disordered),
            missing_switches,
            processes_left_out: self.left_out,
            without_accounts_ns: end.map_or(0, |end| end.without_accounts_ns),
            contract_changes: self.contract_changes,
            damage,
            recorder_ns: end.map(|end| end.recorder_ns),
            others_ns: self.others_ns,
            units: self.units.iter().map(|(path, summed)| self.unit(path, summed, header.method)).collect(),
        }
    }

    fn unit(&self, path: &str, summed: &Summed, method: Method) -> UnitReport {
        let find = |sample: &'_ Option<Sample>| -> Option<UnitSample> {
            sample.as_ref()?.units.iter().find(|unit| unit.path == path).cloned()
        };
        let both = find(&self.first).zip(find(&self.last));
        let between = |of: fn(&UnitSample) -> Option<u64>| {
            let (first, last) = both.as_ref()?;
            Some(of(last)?.saturating_sub(of(first)?))
        };
        let has_wakes = method == Method::Events;
        let calls: Vec<(u64, u64)> = both.as_ref().map_or_else(Vec::new, |(first, last)| {
            let before: BTreeMap<u64, u64> = first.call_backs.classes.iter().copied().collect();
            let classes = last.call_backs.classes.iter();
            classes
                .map(|(below, count)| (*below, count.saturating_sub(before.get(below).copied().unwrap_or(0))))
                .collect()
        });
        UnitReport {
            unit: path.to_owned(),
            threads: summed.threads.len(),
            entitled_micro_cpus: both.as_ref().map(|(_, last)| last.entitled_micro_cpus),
            used_ns: summed.used_ns,
            waited_ns: summed.waited_ns,
            wakes: has_wakes.then_some(summed.waits.count),
            wake_mean_ns: summed.waits.sum_ns.checked_div(summed.waits.count).filter(|_| has_wakes),
            wake_p99_ns: summed.waits.p99().filter(|_| has_wakes),
            called_back: between(|unit| Some(unit.call_backs.count)),
            call_back_p99_ns: percentile(calls.iter().copied()),
            memory_mean: summed.memory.0.checked_div(summed.memory.1),
            disk_read: between(|unit| Some(unit.disk?.read)),
            disk_written: between(|unit| Some(unit.disk?.written)),
        }
    }
}

/// The report as text.
pub(super) fn text(report: &Report<'_>, style: Style) -> String {
    let header = &report.header;
    let mut text = format!("{}\n", shown(&report.file));
    let mut line = |name: &str, value: String| {
        let lines = wrap(&shown(&value), style.width, &format!("  {name:<12}"), &" ".repeat(14));
        lines.iter().for_each(|line| text += &format!("{line}\n"));
    };
    line("machine", report.machine.clone());
    line("kernel", format!("Linux {}", header.kernel));
    line("daemon", format!("backend {}, scheme {}, {}", header.backend, header.scheme, header.contract_file));
    line("method", header.method.clone());
    let ended = report.ended.clone().unwrap_or_else(|| "the recording was cut short".to_owned());
    line("length", format!("{}: {ended}", duration(report.length_ns)));
    line("events", report.events.to_string());
    if let Some(recorder_ns) = report.recorder_ns {
        let part = percent_text(recorder_ns, report.length_ns);
        line(
            "cost",
            format!("{} of CPU time, {part} % of one CPU, beside the kernel's part", duration(recorder_ns)),
        );
    }
    line("in no unit", format!("{} of CPU time", duration(report.others_ns)));
    let doubts = doubts(report);
    if !doubts.is_empty() {
        text.push('\n');
    }
    for doubt in doubts {
        wrap(&shown(&doubt), style.width, "note: ", "  ")
            .iter()
            .for_each(|line| text += &format!("{line}\n"));
    }
    text.push('\n');
    text += &table(report).render_in_blocks(style);
    text
}

/// What leaves the recording in doubt, in sentences.
fn doubts(report: &Report<'_>) -> Vec<String> {
    let number = |n: u64, one: &str| count(usize::try_from(n).unwrap_or(usize::MAX), one);
    let mut doubts: Vec<String> =
        report.damage.iter().map(|damage| format!("{damage}; what follows is missing")).collect();
    if report.ended.is_none() && report.damage.is_none() {
        doubts.push("the file was truncated, or the recorder was killed; what is there is whole".to_owned());
    }
    if report.lost > 0 {
        doubts
            .push(format!("{} were lost, since the recorder did not keep up", number(report.lost, "event")));
    }
    if report.disordered > 0 {
        doubts.push(format!("{} came too late and are left out", number(report.disordered, "event")));
    }
    if report.missing_switches > 0 {
        let these = number(report.missing_switches, "time");
        doubts.push(format!("{these} the kernel did not report a switch; the times around it are estimates"));
    }
    if report.processes_left_out > 0 {
        let these = number(u64::from(report.processes_left_out), "process").replace("processs", "processes");
        doubts.push(format!("{these} had no room in the samples"));
    }
    if report.without_accounts_ns > 0 {
        doubts.push(format!("no daemon answered for {}", duration(report.without_accounts_ns)));
    }
    if report.contract_changes > 0 {
        let these = number(report.contract_changes as u64, "time");
        doubts.push(format!("the contract or its tickets changed {these}"));
    }
    doubts
}

fn table(report: &Report<'_>) -> Table {
    let mut table = Table::new(&[
        "unit",
        "threads",
        "entitled,\nCPUs",
        "CPU time",
        "of all,\n%",
        "waited",
        "wake-ups",
        "mean\nwait",
        "99 %\nwithin",
        "called\nback",
        "99 %\nbelow",
        "memory",
        "read",
        "written",
    ]);
    let all: u64 = report.units.iter().map(|unit| unit.used_ns).sum();
    let or_nothing = |value: Option<u64>, words: fn(u64) -> String| value.map_or(NOTHING.to_owned(), words);
    for unit in &report.units {
        let cells = vec![
            shown(&unit.unit),
            unit.threads.to_string(),
            or_nothing(unit.entitled_micro_cpus, cpus),
            duration(unit.used_ns),
            percent_text(unit.used_ns, all),
            duration(unit.waited_ns),
            or_nothing(unit.wakes, |wakes| wakes.to_string()),
            or_nothing(unit.wake_mean_ns, duration),
            or_nothing(unit.wake_p99_ns, duration),
            or_nothing(unit.called_back, |calls| calls.to_string()),
            or_nothing(unit.call_back_p99_ns, duration),
            or_nothing(unit.memory_mean, bytes),
            or_nothing(unit.disk_read, bytes),
            or_nothing(unit.disk_written, bytes),
        ];
        table.row(Paint::Plain, cells);
    }
    table
}

/// The report as JSON.
pub(super) fn json(report: &Report<'_>) -> String {
    commonhold_report::json("commonhold.recording", report)
}
