//! One scenario, run with several seeds, as text, JSON, CSV and HTML.

use commonhold_contract::Scheme;
use commonhold_report::exchanges::{self, When};
use commonhold_report::figures::{NOTHING, bytes, count, cpus, duration, seconds};
use commonhold_report::svg::{AXIS_HEIGHT, Axis, WIDTH, add_axis, step_for};
use commonhold_report::table::{Paint, Style, Table, escape, escape_lines};
use commonhold_report::{bus, gangs, html};
use commonhold_sim::outcome::{CommonMemory, JobOutcome, OnlineCpus, Outcome, Spent, Stuck, UnitOutcome};
use commonhold_sim::scenario::Scheduler;
use serde::Serialize;

use crate::occupancy;

/// Runs of one scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Study {
    /// The scenario's folder, and its workload if another than the folder's was given.
    pub scenario: String,
    /// The title of the simulated machine; may be empty.
    pub machine: String,
    /// The scheme in force.
    #[serde(serialize_with = "as_text")]
    pub scheme: Scheme,
    /// The scheduler: the project's own or a baseline.
    #[serde(serialize_with = "as_text")]
    pub scheduler: Scheduler,
    /// A run is cut off at this virtual time, in ns.
    pub horizon_ns: u64,
    /// Size of a page frame, in bytes.
    pub frame_bytes: u64,
    /// One run per seed, in the order of the seeds.
    pub runs: Vec<Outcome>,
}

fn as_text<T: core::fmt::Display, S: serde::Serializer>(word: &T, out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(word)
}

/// The copies of one job over all runs.
pub(crate) struct JobRow {
    pub(crate) name: String,
    copies: usize,
    /// Response times of the copies that ended, in s.
    times: Vec<f64>,
    spent: Spent,
}

impl Study {
    /// Whether no run broke a check (`Outcome::broken`).
    pub fn sound(&self) -> bool {
        self.runs.iter().all(|run| run.broken == 0)
    }

    fn jobs(&self) -> Vec<JobRow> {
        rows_of(self.runs.iter().flat_map(|run| &run.jobs))
    }
}

/// The jobs of one unit over these runs.
pub(crate) fn jobs_of(runs: &[Outcome], unit: &str) -> Vec<JobRow> {
    rows_of(runs.iter().flat_map(|run| &run.jobs).filter(|job| job.unit == unit))
}

fn rows_of<'a>(jobs: impl Iterator<Item = &'a JobOutcome>) -> Vec<JobRow> {
    let mut rows: Vec<JobRow> = Vec::new();
    for job in jobs {
        let place = rows.iter().position(|row| row.name == job.name).unwrap_or_else(|| {
            rows.push(JobRow::of(job));
            rows.len() - 1
        });
        let row = &mut rows[place];
        row.copies += 1;
        #[expect(clippy::cast_precision_loss, reason = "times below 2^53 ns")]
        row.times.extend(job.response_ns().map(|ns| ns as f64 / 1e9));
        row.spent.add(&job.spent);
    }
    rows
}

impl JobRow {
    fn of(job: &JobOutcome) -> JobRow {
        JobRow { name: job.name.clone(), copies: 0, times: Vec::new(), spent: Spent::default() }
    }

    /// Whether every copy ended in every run.
    pub(crate) fn all_ended(&self) -> bool {
        self.times.len() == self.copies
    }

    /// Mean CPU time of a copy, in ns.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.spent.on_cpus_ns().checked_div(self.copies as u64).unwrap_or(0)
    }

    /// Mean response time of the copies that ended, in s.
    pub(crate) fn mean(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a count of runs")]
        (!self.times.is_empty()).then(|| self.times.iter().sum::<f64>() / self.times.len() as f64)
    }

    /// The shortest and the longest response time, in s.
    pub(crate) fn range(&self) -> Option<(f64, f64)> {
        let low = self.times.iter().copied().reduce(f64::min)?;
        Some((low, self.times.iter().copied().reduce(f64::max)?))
    }
}

/// The study for a terminal.
pub fn text(study: &Study, style: Style) -> String {
    let mut out = heading(study);
    out.push('\n');
    out += &jobs_table(study).render(style);
    out.push('\n');
    out += &units_table(study).render(style);
    out.push('\n');
    out += &memory_table(study).render(style);
    for table in memory_loans_table(study).into_iter().chain(online_table(study)) {
        out.push('\n');
        out += &table.render(style);
    }
    if study.runs.iter().any(|run| run.disks.iter().any(|disk| disk.requests > 0)) {
        out.push('\n');
        out += &disks_table(study).render(style);
    }
    for table in bus_tables(study, style) {
        out.push('\n');
        out += &table.render(style);
    }
    if let Some(exchanges) = exchanges_table(study) {
        out.push('\n');
        out += &exchanges.render(style);
    }
    let first = study.runs.first().map(|run| &run.ledger);
    let trials = first
        .and_then(|ledger| Some((ledger, exchanges::trials(&ledger.exchanges, &ledger.negotiated, style)?)));
    if let Some((ledger, trials)) = trials {
        if ledger.exchanges.is_empty() {
            out.push('\n');
        }
        out += &trials;
    }
    out.push('\n');
    if let Some((run, occupancy)) = study.runs.first().and_then(|run| Some((run, run.occupancy.as_ref()?))) {
        out += &occupancy::text(occupancy, &run.jobs);
        out.push('\n');
    }
    out + &closing(&study.runs.iter().collect::<Vec<_>>(), study.horizon_ns)
}

fn heading(study: &Study) -> String {
    let Study { scenario, machine, scheme, scheduler, runs, .. } = study;
    let machine = if machine.is_empty() { String::new() } else { format!("{machine}, ") };
    let baseline =
        if *scheduler == Scheduler::Commonhold { String::new() } else { format!("scheduler {scheduler}, ") };
    format!("{scenario}: {machine}scheme {scheme}, {baseline}{}\n", seeds(runs))
}

/// `seed 1`, `seeds 1 to 7`.
pub(crate) fn seeds(runs: &[Outcome]) -> String {
    match runs {
        [one] => format!("seed {}", one.seed),
        several => format!(
            "seeds {} to {}",
            several.first().map_or(0, |run| run.seed),
            several.last().map_or(0, |run| run.seed)
        ),
    }
}

/// The column for time lost to remote memory: right of `working`, which includes it.
const REMOTE_COLUMN: usize = 6;

fn jobs_table(study: &Study) -> Table {
    let jobs = study.jobs();
    // Without remote accesses the column would be all zeros.
    let has_remote = jobs.iter().any(|row| row.spent.remote_ns > 0);
    let mut heads =
        vec!["job", "copies", "response", "shortest", "longest", "working", "no CPU", "blocked", "faults"];
    if has_remote {
        heads.insert(REMOTE_COLUMN, "of it remote");
    }
    let mut table = Table::new(&heads);
    for row in jobs {
        let range = row.range();
        let per = |sum: u64| duration(sum / row.copies.max(1) as u64);
        let mut cells = vec![
            row.name.clone(),
            (row.copies / study.runs.len().max(1)).to_string(),
            row.mean().map_or(NOTHING.to_owned(), seconds),
            range.map_or(NOTHING.to_owned(), |(low, _)| seconds(low)),
            range.map_or(NOTHING.to_owned(), |(_, high)| seconds(high)),
            per(row.spent.computing_ns()),
            per(row.spent.waited_ns),
            per(row.spent.blocked_ns),
            (row.spent.faults / row.copies.max(1) as u64).to_string(),
        ];
        if has_remote {
            cells.insert(REMOTE_COLUMN, per(row.spent.remote_ns));
        }
        table.row(if row.all_ended() { Paint::Plain } else { Paint::Bad }, cells);
    }
    table
}

fn units_table(study: &Study) -> Table {
    let heads =
        ["unit", "entitled", "used", "lent", "borrowed", "calls", "mean", "longest", "waited at most"];
    let mut table = Table::new(&heads);
    let Some(first) = study.runs.first() else { return table };
    for unit in &first.units {
        let (mean, most) = mean_and_most(study, &unit.name);
        table.row(
            Paint::Plain,
            vec![
                unit.name.clone(),
                cpus(unit.entitled_micro_cpus),
                duration(mean(|unit| unit.used_ns)),
                duration(mean(|unit| unit.lent_ns)),
                duration(mean(|unit| unit.borrowed_ns)),
                mean(|unit| unit.called_back).to_string(),
                duration(mean(|unit| unit.call_back_mean_ns)),
                duration(most(|unit| unit.call_back_max_ns)),
                duration(most(|unit| unit.waited_max_ns)),
            ],
        );
    }
    table
}

/// Returns two functions: the mean and the maximum over all runs of a figure of a unit.
fn mean_and_most<'a>(
    study: &'a Study,
    unit: &'a str,
) -> (impl Fn(Figure) -> u64 + 'a, impl Fn(Figure) -> u64 + 'a) {
    let same = move || study.runs.iter().flat_map(|run| &run.units).filter(move |other| other.name == unit);
    let runs = study.runs.len() as u64;
    (
        move |figure| same().map(figure).sum::<u64>() / runs,
        move |figure| same().map(figure).max().unwrap_or(0),
    )
}

/// One figure of a unit.
type Figure = fn(&UnitOutcome) -> u64;

/// Page frames of each unit, and of the parts of memory outside the units.
fn memory_table(study: &Study) -> Table {
    let mut table = Table::new(&["memory", "in the mean", "at most", "at the end"]);
    let Some(first) = study.runs.first() else { return table };
    for unit in &first.units {
        let (mean, most) = mean_and_most(study, &unit.name);
        let cells = [mean(|unit| unit.frames_mean), most(|unit| unit.frames_max), mean(|unit| unit.frames)];
        let cells = cells.map(|frames| bytes(frames.saturating_mul(study.frame_bytes)));
        table.row(Paint::Plain, std::iter::once(unit.name.clone()).chain(cells).collect());
    }
    for (part, place) in first.common.iter().zip(0..) {
        let all = || study.runs.iter().filter_map(|run| run.common.get(place));
        let mean =
            |figure: fn(&CommonMemory) -> u64| all().map(figure).sum::<u64>() / study.runs.len() as u64;
        let most = all().map(|part| part.frames_max).max().unwrap_or(0);
        if most > 0 {
            let cells = [mean(|part| part.frames_mean), most, mean(|part| part.frames)];
            let cells = cells.map(|frames| bytes(frames.saturating_mul(study.frame_bytes)));
            table.row(Paint::Faint, std::iter::once(part.name.clone()).chain(cells).collect());
        }
    }
    table
}

/// A table of the units' waits for memory and of the call-back times of memory loans. `None` if no unit has
/// either.
fn memory_loans_table(study: &Study) -> Option<Table> {
    let mut table =
        Table::new(&["memory", "waited for", "calls", "half within", "longest", "later than promised"]);
    let waits = |unit: &UnitOutcome| unit.memory_waited_ns > 0 || unit.memory_call_backs.count > 0;
    let first = study.runs.first()?;
    if !study.runs.iter().flat_map(|run| &run.units).any(waits) {
        return None;
    }
    for unit in &first.units {
        let (mean, most) = mean_and_most(study, &unit.name);
        let calls = mean(|unit| unit.memory_call_backs.count);
        let took = |ns| if calls == 0 { NOTHING.to_owned() } else { duration(ns) };
        let cells = vec![
            unit.name.clone(),
            duration(mean(|unit| unit.memory_waited_ns)),
            calls.to_string(),
            took(mean(|unit| unit.memory_call_backs.median_ns)),
            took(most(|unit| unit.memory_call_backs.max_ns)),
            mean(|unit| unit.memory_call_backs.late).to_string(),
        ];
        table.row(Paint::Plain, cells);
    }
    Some(table)
}

/// Which CPUs were online from when on, in the first run; `None` if all were online all the time.
fn online_table(study: &Study) -> Option<Table> {
    let periods = &study.runs.first()?.online;
    let mut table = Table::new(&["from", "CPUs", "online", "the daemon noticed after"]);
    for OnlineCpus { at_ns, count, cpus, noticed_ns } in periods {
        let noticed = noticed_ns.map_or_else(|| "not in time".to_owned(), |at| duration(at - at_ns));
        table.row(Paint::Plain, vec![duration(*at_ns), count.to_string(), cpus.to_string(), noticed]);
    }
    (!periods.is_empty()).then_some(table)
}

/// The memory bus by unit, and the gangs, both of the first run; empty if the run has neither.
fn bus_tables(study: &Study, style: Style) -> Vec<Table> {
    let Some(first) = study.runs.first() else { return Vec::new() };
    let tables = bus::table(&first.ledger, style).into_iter().chain(gangs::units(&first.ledger));
    let of_first = format!("of the run with seed {}", first.seed);
    let several = study.runs.len() > 1;
    tables
        .map(|mut table| {
            if several {
                table.line(Paint::Faint, of_first.clone());
            }
            table
        })
        .collect()
}

/// The exchanges of the first run: the workload makes the offers, so they hardly depend on the seed.
fn exchanges_table(study: &Study) -> Option<Table> {
    exchanges::table(&study.runs.first()?.ledger.exchanges, When::At)
}

fn disks_table(study: &Study) -> Table {
    let mut table = Table::new(&["disk", "requests", "busy", "service", "queue", "wait"]);
    let Some(run) = study.runs.first() else { return table };
    for disk in run.disks.iter().filter(|disk| disk.requests > 0) {
        let part = percent(disk.busy_ns, run.ended_ns);
        let row = |name: String, requests: u64, busy: String, service: f64, queue: String, wait: String| {
            vec![name, requests.to_string(), busy, format!("{service:.1} ms"), queue, wait]
        };
        let queue = format!("{:.2}", disk.queue);
        table.row(
            Paint::Strong,
            row(disk.name.clone(), disk.requests, part, disk.latency_ms, queue, NOTHING.to_owned()),
        );
        for unit in &disk.units {
            let (none, wait) = (NOTHING.to_owned(), format!("{:.1} ms", unit.wait_ms));
            table.row(
                Paint::Plain,
                row(format!("  {}", unit.unit), unit.requests, none.clone(), unit.service_ms, none, wait),
            );
        }
    }
    if study.runs.len() > 1 {
        table.line(Paint::Faint, format!("disks: of the run with seed {}", run.seed));
    }
    table
}

fn percent(part: u64, whole: u64) -> String {
    let tenths = (u128::from(part) * 1000).checked_div(u128::from(whole)).unwrap_or(0);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

/// The last lines: counts of events and checks, and every run that was cut off, got stuck or broke a check.
pub(crate) fn closing(runs: &[&Outcome], horizon_ns: u64) -> String {
    let sum = |figure: fn(&Outcome) -> u64| runs.iter().map(|run| figure(run)).sum::<u64>();
    let mut out = format!(
        "{}, {} events, {} switches; {} checks, {} broken\n",
        count(runs.len(), "run"),
        sum(|run| run.events),
        sum(|run| run.switches),
        sum(|run| run.checks),
        sum(|run| run.broken)
    );
    if runs.iter().any(|run| run.cut_off) {
        out += &format!("cut off at the horizon, {}: jobs were not finished\n", duration(horizon_ns));
    }
    for run in runs {
        for stuck in &run.stuck {
            out += &format!("stuck with seed {}: {}\n", run.seed, waits_for_ever(stuck));
        }
    }
    if let Some(short @ 1..) = runs.iter().map(|run| run.swap_short_bytes).max() {
        out += &format!(
            "swap areas were too small by {}: a live machine would have run out of memory\n",
            bytes(short)
        );
    }
    for run in runs {
        for note in &run.notes {
            out += &format!("broken with seed {}: {note}\n", run.seed);
        }
    }
    out
}

fn waits_for_ever(stuck: &Stuck) -> String {
    let named = |noun: &str, names: &[String]| {
        let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        format!("{noun}{} {}", if names.len() == 1 { "" } else { "s" }, quoted.join(", "))
    };
    let at_barriers = match (stuck.for_events, &stuck.events[..]) {
        (0, events @ [_, ..]) => format!("at a barrier of {}", named("event", events)),
        _ => "at a barrier".to_owned(),
    };
    let parts = [
        (stuck.for_locks, format!("for {}", named("lock", &stuck.locks))),
        (stuck.for_events, format!("for {}", named("event", &stuck.events))),
        (stuck.at_barriers, at_barriers),
        (stuck.for_children, "for children".to_owned()),
    ];
    let parts: Vec<String> =
        parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let (since, parts) = (duration(stuck.since_ns), parts.join(", "));
    format!("{}: processes wait for each other for ever, since {since}: {parts}", stuck.job)
}

/// The study as JSON: every run in full.
pub fn json(study: &Study) -> String {
    commonhold_report::json("commonhold.simulation", study)
}

/// A line per copy of a job and run, with times in ns, under a line of names.
pub fn csv(study: &Study) -> String {
    CSV_HEAD.to_owned() + &csv_lines("", &study.runs)
}

/// The header line.
pub(crate) const CSV_HEAD: &str = "seed,job,unit,started_ns,ended_ns,response_ns,work_ns,lock_ns,stall_ns,remote_ns,\
                                   spin_ns,switch_ns,waited_ns,blocked_ns,faults,transactions\n";

/// A line per copy of a job and run, each with the prefix `first`.
pub(crate) fn csv_lines(first: &str, runs: &[Outcome]) -> String {
    let mut out = String::new();
    for run in runs {
        for job in &run.jobs {
            let Spent {
                work_ns,
                lock_ns,
                stall_ns,
                remote_ns,
                spin_ns,
                switch_ns,
                waited_ns,
                blocked_ns,
                faults,
                transferred,
            } = job.spent;
            let transactions = transferred / 1_000_000;
            let optional = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
            out += &format!(
                "{first}{},{},{},{},{},{},{work_ns},{lock_ns},{stall_ns},{remote_ns},\
                 {spin_ns},{switch_ns},{waited_ns},{blocked_ns},{faults},{transactions}\n",
                run.seed,
                job.name,
                job.unit,
                job.started_ns,
                optional(job.ended_ns),
                optional(job.response_ns()),
            );
        }
    }
    out
}

/// The states that a job's time is divided into: name and colour.
const PARTS: [(&str, &str); 7] = [
    ("working", "#3a7ca5"),
    ("lock", "#c1666b"),
    ("stalled", "#e4b363"),
    ("remote", "#8e6c8a"),
    ("overhead", "#8a8a8a"),
    ("without a CPU", "#b7b7a4"),
    ("blocked", "#d8e2dc"),
];

/// The study as a page.
pub fn html(study: &Study) -> String {
    let mut page = html::open(&format!("{} under {}", study.scenario, study.scheme), "");
    page += &format!("<p>{}</p>\n<h2>Response times</h2>\n", escape_lines(&heading(study)));
    page += &response_bars(study);
    if let Some(occupancy) = study.runs.first().and_then(|run| run.occupancy.as_ref()) {
        page += "<h2>Jobs on CPUs</h2>\n";
        page += &occupancy::plot(occupancy);
    }
    page += "<h2>Figures</h2>\n";
    let tables = [jobs_table(study), units_table(study), memory_table(study)].into_iter();
    for table in tables
        .chain(memory_loans_table(study))
        .chain(online_table(study))
        .chain([disks_table(study)])
        .chain(bus_tables(study, Style::PLAIN))
        .chain(exchanges_table(study))
    {
        page += &table.html();
    }
    page += &format!(
        "<p>{}</p>\n",
        escape_lines(&closing(&study.runs.iter().collect::<Vec<_>>(), study.horizon_ns))
    );
    page + html::CLOSE
}

/// Left edge of the bars: half of the width of the axis's `0`.
const LEFT: f64 = 6.0;
/// Margin at the right.
const RIGHT: f64 = 18.0;
/// From the top of one job's name to the next.
const PITCH: f64 = 44.0;
/// From the top of a job's name to its bar.
const BAR_TOP: f64 = 20.0;
/// The parts in a row of the legend.
const LEGEND_COLUMNS: u32 = 4;

/// A bar per job: its length is the mean response time, its colours the states in which the job's tasks spent
/// it.
fn response_bars(study: &Study) -> String {
    let jobs = study.jobs();
    let longest = jobs.iter().filter_map(JobRow::range).map(|(_, high)| high).fold(0.0, f64::max);
    #[expect(clippy::cast_precision_loss, reason = "a number of jobs")]
    let bottom = PITCH * jobs.len() as f64;
    let height = bottom + AXIS_HEIGHT + 44.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"response time of each job\">\n"
    );
    for (job, row) in jobs.iter().zip(0u32..) {
        let (top, Some(mean)) = (f64::from(row) * PITCH, job.mean()) else { continue };
        let long = mean / longest * (WIDTH - LEFT - RIGHT);
        svg += &format!(
            "<text x='0' y='{:.1}'>{}<tspan class='figure' dx='10'>{}</tspan></text>\n",
            top + 14.0,
            escape(&job.name),
            seconds(mean)
        );
        svg += &divided(&job.spent, LEFT, top + BAR_TOP, long);
    }
    let axis =
        Axis { left: LEFT, right: WIDTH - RIGHT, until: longest, step: step_for(longest), unit: "seconds" };
    add_axis(&mut svg, &axis, bottom);
    svg += &legend(height - 28.0);
    svg + "</svg>\n"
}

fn divided(spent: &Spent, left: f64, top: f64, long: f64) -> String {
    let parts = [
        spent.work_ns,
        spent.lock_ns,
        spent.stall_ns,
        spent.remote_ns,
        spent.spin_ns + spent.switch_ns,
        spent.waited_ns,
        spent.blocked_ns,
    ];
    let sum: u64 = parts.iter().sum();
    let mut at = left;
    let mut out = String::new();
    for (part, (name, colour)) in parts.iter().zip(PARTS) {
        #[expect(clippy::cast_precision_loss, reason = "a length in a picture")]
        let wide = *part as f64 / sum.max(1) as f64 * long;
        out += &format!(
            "<rect x='{at:.1}' y='{top:.1}' width='{wide:.1}' height='19' fill='{colour}'><title>{name}: {}</title></rect>\n",
            percent(*part, sum)
        );
        at += wide;
    }
    out
}

fn legend(y: f64) -> String {
    let mut out = String::new();
    for ((name, colour), place) in PARTS.iter().zip(0u32..) {
        let x = f64::from(place % LEGEND_COLUMNS) * (WIDTH / f64::from(LEGEND_COLUMNS));
        let y = y + f64::from(place / LEGEND_COLUMNS) * 18.0;
        out += &format!(
            "<rect x='{x}' y='{:.0}' width='10' height='10' fill='{colour}'/>\
             <text class='small' x='{}' y='{y:.0}'>{name}</text>\n",
            y - 9.0,
            x + 14.0
        );
    }
    out
}
