//! `commonhold history` and `commonhold account`: what units had in the past, from the files of the history.

mod when;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write as _};
use std::path::Path;

use commonhold_contract::Resource;
use commonhold_history::{Reader, Record, Resolution, Sample, UnitUse, UserUse};
use commonhold_ledger::{Statement, Verdict};
use commonhold_live::observe::names::SystemNames;
use commonhold_report::figures::{self, NOTHING, bytes, duration, percent_text, rate};
use commonhold_report::table::{Paint, Table, clean, wrap};
use commonhold_report::{JSON_VERSION, Style};
use jiff::ZonedDateTime;
use jiff::tz::TimeZone;

use commonhold_command::place::Place;

use crate::cli::{self, ByChoice, StepChoice};
use crate::exit::{Exit, Failure};
use crate::{output, place};
use when::{Period, rfc_3339, when, words};

/// The shortest time without records that is shown as a gap, in nanoseconds. Turns of the daemon, and so
/// records, may be some seconds apart.
const GAP_NS: u64 = 5_000_000_000;
/// The smallest setting of the clock that is shown, in milliseconds.
const CLOCK_SET_MS: u64 = 2_000;
/// The most intervals that `--step auto` shows.
const ROWS: u64 = 60;
/// The most gaps, or parts that cannot be read, that a text lists.
const LISTED_MAX: usize = 8;

pub(crate) fn history(args: &cli::History) -> Result<Exit, Failure> {
    let now = ZonedDateTime::now();
    let period = Period {
        from_ms: when(&args.since, &now).map_err(usage)?,
        to_ms: args
            .until
            .as_deref()
            .map_or_else(|| when("now", &now), |text| when(text, &now))
            .map_err(usage)?,
    };
    check(period, now.time_zone())?;
    let reader = open(args.output.history.as_deref(), &args.output.place)?;
    let resolution = resolution(args.step, &reader, period);
    let mut reading = Reading::new(args.unit.as_deref());
    let records = reader.records(resolution, period.from_ms, period.to_ms);
    let zone = now.time_zone();
    if args.output.json || args.output.csv {
        let mut out = Out::new();
        let (begin, end) = match args.output.json {
            true => (json_begin("commonhold.history", resolution, period, zone), "\n  ]\n}\n".to_owned()),
            false => (csv_head(&["start", "end", "covered_seconds"]), String::new()),
        };
        out.write(&begin)?;
        let mut is_first = true;
        for record in reading.records(records) {
            let text = match args.output.json {
                true => json_record(&record, zone, is_first),
                false => csv_record(&record, zone),
            };
            is_first = false;
            if !out.write(&text)? {
                return Ok(Exit::Ok);
            }
        }
        out.write(&end)?;
        out.finish()?;
    } else {
        let text = history_text(&mut reading, records, resolution, period, &now, output::style());
        let exit = reading.finish()?;
        output::print(&text)?;
        return Ok(exit);
    }
    reading.finish()
}

pub(crate) fn account(args: &cli::Account) -> Result<Exit, Failure> {
    let now = ZonedDateTime::now();
    let zone = now.time_zone();
    let reader = open(args.output.history.as_deref(), &args.output.place)?;
    let now_ms = when("now", &now).map_err(usage)?;
    let period = match (&args.month, &args.since) {
        (Some(month), _) => when::month(month, &now).map_err(usage)?,
        (None, since) => Period {
            from_ms: match since {
                Some(since) => when(since, &now).map_err(usage)?,
                None => reader.range().map_or(now_ms, |(from, _)| from.min(now_ms)),
            },
            to_ms: args.until.as_deref().map_or(Ok(now_ms), |text| when(text, &now)).map_err(usage)?,
        },
    };
    check(period, zone)?;
    let mut reading = Reading::new(args.unit.as_deref());
    let (mut total, mut coverage) = (None, Coverage::default());
    for record in reading.records(reader.finest(period.from_ms, period.to_ms)) {
        coverage.add(&record);
        commonhold_history::add(&mut total, record);
    }
    let total = total.unwrap_or_default();
    // The part of the period that is still to come is not missing.
    coverage.finish(Period { to_ms: period.to_ms.min(now_ms.max(period.from_ms)), ..period });
    let account =
        Account { total, coverage, period, unit: args.unit.clone(), skipped: reading.skipped.clone() };
    let names = SystemNames::new();
    let text = match (args.output.json, args.output.csv, args.by) {
        (true, _, _) => account.json(zone, &names),
        (_, true, ByChoice::Unit) => account.csv(zone),
        (_, true, ByChoice::User) => account.csv_by_user(zone, &names),
        (_, _, by) => account.text(by, zone, &names, output::style()),
    };
    let exit = reading.finish()?;
    output::print(&text)?;
    Ok(exit)
}

/// The account of a whole run of the daemon: what `run` prints at its end.
pub(crate) fn final_account(statement: &Statement, style: Style) -> String {
    let end = Sample { statement: statement.clone(), ..Sample::default() };
    let record = Sample::between(&Sample::default(), &end);
    let mut text = format!("account of {}:\n", duration(record.duration_ns));
    if record.units.is_empty() {
        text += "no unit had or used anything\n";
        return text;
    }
    let mut heads = vec!["unit", "CPU\nused", "\nentitled", "\nlent", "\nborrowed", "\nwaited"];
    let has_memory = record.units.iter().any(|unit| unit.memory.is_some());
    let has_disk = record.units.iter().any(|unit| unit.disk.is_some());
    if has_memory {
        heads.extend(["memory\nmean", "\nwaited"]);
    }
    if has_disk {
        heads.extend(["disk\nread", "\nwritten", "\nwaited"]);
    }
    let mut table = Table::new(&heads);
    for unit in &record.units {
        let cpu = unit.cpu;
        let times = [cpu.used_ns, cpu.entitled_ns, cpu.lent_ns, cpu.borrowed_ns, cpu.waited_ns];
        let mut cells = vec![indented(&unit.unit)];
        cells.extend(times.map(duration));
        if has_memory {
            let memory = unit.memory.unwrap_or_default();
            cells.extend([bytes(mean(memory.used_byte_ms, record.duration_ns)), duration(memory.waited_ns)]);
        }
        if has_disk {
            let disk = unit.disk.unwrap_or_default();
            cells.extend([bytes(disk.read_bytes), bytes(disk.written_bytes), duration(disk.waited_ns)]);
        }
        table.row(Paint::Plain, cells);
    }
    text + &table.render_in_blocks(style)
}

fn usage(message: String) -> Failure {
    Failure::new(Exit::Usage, message)
}

/// Refuses a period that ends before it begins.
fn check(period: Period, zone: &TimeZone) -> Result<(), Failure> {
    match period.from_ms < period.to_ms {
        true => Ok(()),
        false => Err(usage(format!(
            "the period ends before it begins: it is to begin at {}, and to end at {}",
            words(period.from_ms, zone),
            words(period.to_ms, zone)
        ))),
    }
}

/// Opens the history that the command line names, or the first one that exists.
pub(crate) fn open(named: Option<&Path>, place: &Place) -> Result<Reader, Failure> {
    let folders = named.map_or_else(|| place::histories(place), |folder| vec![folder.to_owned()]);
    let mut tried = Vec::new();
    for folder in &folders {
        match commonhold_history::open(folder) {
            Ok(reader) => return Ok(reader),
            Err(error) if error.is_missing() => tried.push(folder.display().to_string()),
            Err(error) => return Err(Failure::new(Exit::of_named(&error.source), error)),
        }
    }
    let why = format!(
        "there is no history in {}; `commonhold run CONTRACT` writes one; name its folder with --history",
        tried.join(" or ")
    );
    Err(Failure::new(Exit::NoInput, why))
}

/// The resolution that was chosen. `auto` is the coarsest that gives at least [`ROWS`] rows or so, and that
/// is still kept for the beginning of the period.
fn resolution(step: StepChoice, reader: &Reader, period: Period) -> Resolution {
    match step {
        StepChoice::Second => Resolution::Second,
        StepChoice::Minute => Resolution::Minute,
        StepChoice::Hour => Resolution::Hour,
        StepChoice::Auto => {
            let begin = reader.range().map_or(period.from_ms, |(from, _)| from.max(period.from_ms));
            let is_kept = |resolution: &Resolution| {
                // What coarser rings have not written yet is summed up from the finer ones.
                let range = reader.range_of(*resolution);
                range.is_some_and(|(from, _)| from <= begin + resolution.ms())
            };
            let rows = |resolution: &Resolution| period.to_ms.saturating_sub(begin) / resolution.ms();
            let fits = |resolution: &Resolution| rows(resolution) <= 3 * ROWS && is_kept(resolution);
            Resolution::ALL.into_iter().find(fits).unwrap_or(Resolution::Hour)
        }
    }
}

/// Reads records, of all units or of one, and remembers what could not be read.
struct Reading<'a> {
    unit: Option<&'a str>,
    is_found: bool,
    others: BTreeSet<String>,
    skipped: Vec<String>,
}

impl<'a> Reading<'a> {
    fn new(unit: Option<&'a str>) -> Reading<'a> {
        Reading { unit, is_found: unit.is_none(), others: BTreeSet::new(), skipped: Vec::new() }
    }

    /// The records, reduced to the unit and its sub-units if one is asked for.
    fn records<'r>(
        &'r mut self,
        records: impl Iterator<Item = Result<Record, commonhold_history::Skipped>> + 'r,
    ) -> impl Iterator<Item = Record> + 'r {
        records.filter_map(move |record| match record {
            Ok(mut record) => {
                if let Some(wanted) = self.unit {
                    if record.unit(wanted).is_some() {
                        self.is_found = true;
                    } else if self.others.len() < LISTED_MAX {
                        let outermost = record.units.iter().filter(|unit| !unit.unit.contains('/'));
                        self.others.extend(outermost.map(|unit| unit.unit.clone()));
                    }
                    record.units.retain(|unit| is_within(&unit.unit, wanted));
                }
                Some(record)
            }
            Err(skipped) => {
                self.skipped.push(skipped.to_string());
                None
            }
        })
    }

    /// Reports what could not be read. Fails if the history has nothing of the unit.
    fn finish(self) -> Result<Exit, Failure> {
        for skipped in self.skipped.iter().take(LISTED_MAX) {
            output::warn(&format!("warning: {skipped}"));
        }
        if self.skipped.len() > LISTED_MAX {
            output::warn(&format!("warning: and {} more parts are lost", self.skipped.len() - LISTED_MAX));
        }
        match self.unit {
            Some(unit) if !self.is_found && !self.others.is_empty() => {
                let others: Vec<String> = self.others.into_iter().take(LISTED_MAX).collect();
                let why = format!(
                    "unit `{unit}` had and did nothing in this period; units that did: {}",
                    others.join(", ")
                );
                Err(Failure::new(Exit::Unavailable, why))
            }
            _ => Ok(Exit::Ok),
        }
    }
}

/// Whether a unit is `around`, or is inside of it.
fn is_within(path: &str, around: &str) -> bool {
    path.strip_prefix(around).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A unit's row begins with the last part of its path, indented by its depth.
fn indented(path: &str) -> String {
    "  ".repeat(path.matches('/').count()) + &clean(path.rsplit('/').next().unwrap_or(path))
}

/// The mean of an amount that was integrated over time, in its own unit.
fn mean(integral_ms: u128, ns: u64) -> u64 {
    let mean = (integral_ms * 1_000_000).checked_div(u128::from(ns)).unwrap_or(0);
    u64::try_from(mean).unwrap_or(u64::MAX)
}

/// `n / ns` per second.
fn per_second(n: u64, ns: u64) -> u64 {
    let rate = (u128::from(n) * 1_000_000_000).checked_div(u128::from(ns)).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// CPU time over an interval as a number of CPUs.
fn mean_cpus(used_ns: u64, ns: u64) -> String {
    let micro = (u128::from(used_ns) * 1_000_000).checked_div(u128::from(ns)).unwrap_or(0);
    let micro = u64::try_from(micro).unwrap_or(u64::MAX);
    figures::cpus(micro.saturating_add(5_000) / 10_000 * 10_000)
}

/// The use of the unit that was asked for, or of all units together.
fn row_of(record: &Record, unit: Option<&str>) -> UnitUse {
    if let Some(unit) = unit {
        return record.unit(unit).cloned().unwrap_or_default();
    }
    let mut all = UnitUse::default();
    let processes = record.units.iter().map(|unit| unit.processes).fold(0, u32::saturating_add);
    for unit in record.units.iter().filter(|unit| !unit.unit.contains('/')) {
        all.add(unit.clone());
    }
    UnitUse { processes, ..all }
}

/// The tables of `history`, one for each resource.
fn history_text(
    reading: &mut Reading<'_>,
    records: commonhold_history::Records<'_>,
    resolution: Resolution,
    period: Period,
    now: &ZonedDateTime,
    style: Style,
) -> String {
    let zone = now.time_zone();
    let unit = reading.unit;
    let mut cpu = Table::new(&[
        "from",
        "entitled",
        "using",
        "used %",
        "lent",
        "borrowed",
        "called\nback",
        "longest",
        "waited",
        "kept",
    ]);
    let mut memory = Table::new(&[
        "from",
        "entitled",
        "using",
        "lent",
        "borrowed",
        "called\nback",
        "longest",
        "waited",
        "kept",
    ]);
    let mut disk = Table::new(&[
        "from",
        "entitled",
        "using",
        "used %",
        "lent",
        "borrowed",
        "called\nback",
        "waited",
        "kept",
    ]);
    let (mut has_memory, mut has_disk, mut rows) = (false, false, 0);
    let mut coverage = Coverage::default();
    let label = |ms| match resolution {
        Resolution::Second => when::local(ms, zone, "%m-%d %H:%M:%S"),
        _ => when::local(ms, zone, "%m-%d %H:%M"),
    };
    for record in reading.records(records) {
        for line in coverage.add(&record).into_iter().map(|event| event.line(zone)) {
            for table in [&mut cpu, &mut memory, &mut disk] {
                table.line(Paint::Faint, line.clone());
            }
        }
        rows += 1;
        let (ns, of) = (record.duration_ns, row_of(&record, unit));
        let back = |resource| of.call_backs.get(&resource).copied().unwrap_or_default();
        let longest = |resource| match back(resource).count {
            0 => String::new(),
            _ => duration(back(resource).max_ns),
        };
        let called = |resource| back(resource).count.to_string();
        let verdict = |resource| {
            let kept = of.verdicts.get(&resource).map_or(NOTHING, |verdict| match verdict {
                Verdict::Kept => "yes",
                Verdict::CannotTell => "?",
                Verdict::Broken => "no",
            });
            kept.to_owned()
        };
        let from = label(record.start.wall_ms);
        cpu.row(
            Paint::Plain,
            vec![
                from.clone(),
                mean_cpus(of.cpu.entitled_ns, ns),
                mean_cpus(of.cpu.used_ns, ns),
                percent_text(of.cpu.used_ns, of.cpu.entitled_ns),
                duration(of.cpu.lent_ns),
                duration(of.cpu.borrowed_ns),
                called(Resource::Cpu),
                longest(Resource::Cpu),
                duration(of.cpu.waited_ns),
                verdict(Resource::Cpu),
            ],
        );
        has_memory |= of.memory.is_some();
        let used = of.memory.unwrap_or_default();
        memory.row(
            Paint::Plain,
            vec![
                from.clone(),
                bytes(mean(used.entitled_byte_ms, ns)),
                bytes(mean(used.used_byte_ms, ns)),
                bytes(mean(used.lent_byte_ms, ns)),
                bytes(mean(used.borrowed_byte_ms, ns)),
                called(Resource::Memory),
                longest(Resource::Memory),
                duration(used.waited_ns),
                verdict(Resource::Memory),
            ],
        );
        has_disk |= of.disk.is_some();
        let used = of.disk.unwrap_or_default();
        let moved = used.read_bytes.saturating_add(used.written_bytes);
        disk.row(
            Paint::Plain,
            vec![
                from,
                rate(per_second(used.entitled_bytes, ns)),
                rate(per_second(moved, ns)),
                percent_text(moved, used.entitled_bytes),
                bytes(used.lent_bytes),
                bytes(used.borrowed_bytes),
                called(Resource::Disk),
                duration(used.waited_ns),
                verdict(Resource::Disk),
            ],
        );
    }
    let of = unit.map_or_else(|| "all units".to_owned(), |unit| format!("unit {}", clean(unit)));
    if rows == 0 {
        return format!(
            "No daemon ran from {} to {}, or its records are no longer kept.\n",
            words(period.from_ms, zone),
            words(period.to_ms, zone)
        );
    }
    let mut text = String::new();
    let tables = [("CPUs", &cpu, true), ("Memory", &memory, has_memory), ("Disks", &disk, has_disk)];
    for (name, table, _) in tables.into_iter().filter(|(_, _, is_known)| *is_known) {
        let separator = if text.is_empty() { "" } else { "\n" };
        let head = style.paint(Paint::Strong, &format!("{name} of {of}, by {}", resolution.name()));
        let _ = write!(text, "{separator}{head}\n{}", side_by_side(table, style));
    }
    text
}

/// A table, in blocks only if it would be too wide with narrow gaps, too.
fn side_by_side(table: &Table, style: Style) -> String {
    let text = table.render(Style { colour: false, ..style });
    let fits = text.lines().all(|line| line.chars().count() <= style.width) && !text.contains('…');
    if fits { table.render(style) } else { table.render_in_blocks(style) }
}

/// What happened between two records, or within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// Nothing was recorded between two times, in milliseconds since 1970.
    Gap(u64, u64),
    /// Nothing was recorded for a part of the interval that begins at a time, in nanoseconds.
    Partial(u64, u64),
    /// The clock was set by this number of milliseconds, at a time by the clock then.
    ClockSet(i64, u64),
}

impl Event {
    fn line(self, zone: &TimeZone) -> String {
        match self {
            Event::Gap(from, to) => format!("no daemon ran from {}", span(from, to, zone)),
            Event::Partial(from, ns) => {
                format!("no daemon ran for {} of the interval from {}", duration(ns), words(from, zone))
            }
            Event::ClockSet(ms, at) => {
                let by = duration(ms.unsigned_abs().saturating_mul(1_000_000));
                let whither = if ms < 0 { "back" } else { "forward" };
                format!("the clock was set {whither} by {by} at {}", words(at, zone))
            }
        }
    }
}

/// `2026-11-28 02:10:00 to 07:45:10`.
fn span(from: u64, to: u64, zone: &TimeZone) -> String {
    let (first, last) = (words(from, zone), words(to, zone));
    let last = match (first.split_once(' '), last.split_once(' ')) {
        (Some((a, _)), Some((b, time))) if a == b => time.to_owned(),
        _ => last,
    };
    format!("{first} to {last}")
}

/// The part of a period that records cover.
#[derive(Debug, Default)]
struct Coverage {
    first_ms: Option<u64>,
    last: Option<commonhold_history::Moment>,
    /// The number of the last record.
    number: u64,
    covered_ns: u64,
    events: Vec<Event>,
}

impl Coverage {
    /// Adds the next record; returns what happened before it.
    fn add(&mut self, record: &Record) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(last) = self.last {
            let set = last.clock_set_ms(&record.start);
            let is_set = set.unsigned_abs() >= CLOCK_SET_MS;
            // If the clock was set out of the period and back, the records in between have other labels.
            let is_next = record.number == self.number + 1;
            if last.until_ns(&record.start) >= GAP_NS && (is_next || !is_set) {
                events.push(Event::Gap(last.wall_ms, record.start.wall_ms));
            }
            if is_set {
                events.push(Event::ClockSet(set, last.wall_ms));
            }
        }
        if record.missing_ns() >= GAP_NS {
            events.push(Event::Partial(record.start.wall_ms, record.missing_ns()));
        }
        let set = record.start.clock_set_ms(&record.end);
        if set.unsigned_abs() >= CLOCK_SET_MS {
            events.push(Event::ClockSet(set, record.start.wall_ms));
        }
        self.first_ms.get_or_insert(record.start.wall_ms);
        self.last = Some(record.end);
        self.number = record.number;
        self.covered_ns = self.covered_ns.saturating_add(record.duration_ns);
        self.events.extend(&events);
        events
    }

    /// Adds the gaps at the beginning and the end of the period.
    fn finish(&mut self, period: Period) {
        let is_gap = |from: u64, to: u64| to.saturating_sub(from) >= GAP_NS / 1_000_000;
        match (self.first_ms, self.last) {
            (Some(first), Some(last)) => {
                if is_gap(period.from_ms, first) {
                    self.events.insert(0, Event::Gap(period.from_ms, first));
                }
                if is_gap(last.wall_ms, period.to_ms) {
                    self.events.push(Event::Gap(last.wall_ms, period.to_ms));
                }
            }
            _ if is_gap(period.from_ms, period.to_ms) => {
                self.events.push(Event::Gap(period.from_ms, period.to_ms));
            }
            _ => {}
        }
    }
}

/// The account of a period.
struct Account {
    total: Record,
    coverage: Coverage,
    period: Period,
    unit: Option<String>,
    skipped: Vec<String>,
}

/// CPU time in hours.
fn hours(ns: u64) -> String {
    const NS_PER_HOUR: u128 = 3_600_000_000_000;
    let rounded = |digits: u128| (u128::from(ns) * digits + NS_PER_HOUR / 2) / NS_PER_HOUR;
    match rounded(1_000) {
        0 if ns > 0 => "<0.001".to_owned(),
        0 => "0".to_owned(),
        thousandths @ 1..10_000 => format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000),
        _ => format!("{}.{}", rounded(10) / 10, rounded(10) % 10),
    }
}

/// An amount of bytes times hours, or bytes, in GiB.
fn gib(bytes: u128) -> String {
    let thousandths = (bytes * 1_000 + (1 << 29)) >> 30;
    match thousandths {
        0 if bytes > 0 => "<0.001".to_owned(),
        0 => "0".to_owned(),
        1..10_000 => format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000),
        _ => format!("{}.{}", thousandths / 1_000, thousandths % 1_000 / 100),
    }
}

fn gib_hours(byte_ms: u128) -> String {
    gib(byte_ms / 3_600_000)
}

impl Account {
    fn text(&self, by: ByChoice, zone: &TimeZone, names: &SystemNames, style: Style) -> String {
        let Period { from_ms, to_ms } = self.period;
        let head = format!("Account from {} to {}", words(from_ms, zone), words(to_ms, zone));
        let mut text = style.paint(Paint::Strong, &head) + "\n\n";
        if self.total.units.is_empty() {
            text += "No unit had or used anything.\n";
        } else {
            let table = match by {
                ByChoice::Unit => self.by_unit(),
                ByChoice::User => self.by_user(names),
            };
            text += &table.render_in_blocks(style);
        }
        text.push('\n');
        let mut remarks =
            vec![format!("The history covers {} of this period.", duration(self.coverage.covered_ns))];
        let events = &self.coverage.events;
        remarks.extend(events.iter().take(LISTED_MAX).map(|event| sentence(&event.line(zone))));
        if events.len() > LISTED_MAX {
            remarks.push(format!("And {} more gaps.", events.len() - LISTED_MAX));
        }
        if self.total.left_out > 0 {
            remarks.push(format!(
                "{} sub-units were left out of records that would have been too large; units that enclose them include their \
                 figures.",
                self.total.left_out
            ));
        }
        for line in remarks.iter().flat_map(|remark| wrap(remark, style.width, "", "  ")) {
            text += &line;
            text.push('\n');
        }
        text
    }

    fn by_unit(&self) -> Table {
        let units = &self.total.units;
        let has_memory = units.iter().any(|unit| unit.memory.is_some());
        let has_disk = units.iter().any(|unit| unit.disk.is_some());
        let mut heads =
            vec!["unit", "CPU-h\nentitled", "CPU-h\nused", "CPU-h\nlent", "CPU-h\nborrowed", "CPU-h\nwaited"];
        if has_memory {
            heads.extend(["GiB-h\nentitled", "GiB-h\nused", "GiB-h\nlent", "GiB-h\nborrowed"]);
        }
        if has_disk {
            heads.extend(["GiB\nentitled", "GiB\nread", "GiB\nwritten", "GiB\nlent", "GiB\nborrowed"]);
        }
        let mut table = Table::new(&heads);
        let mut row = |name: String, unit: &UnitUse, paint| {
            let cpu = unit.cpu;
            let mut cells = vec![name];
            cells.extend(
                [cpu.entitled_ns, cpu.used_ns, cpu.lent_ns, cpu.borrowed_ns, cpu.waited_ns].map(hours),
            );
            if has_memory {
                let of = unit.memory.unwrap_or_default();
                let amounts = [of.entitled_byte_ms, of.used_byte_ms, of.lent_byte_ms, of.borrowed_byte_ms];
                cells.extend(amounts.map(gib_hours));
            }
            if has_disk {
                let of = unit.disk.unwrap_or_default();
                let amounts =
                    [of.entitled_bytes, of.read_bytes, of.written_bytes, of.lent_bytes, of.borrowed_bytes];
                cells.extend(amounts.map(|bytes| gib(u128::from(bytes))));
            }
            table.row(paint, cells);
        };
        for unit in units {
            row(indented(&unit.unit), unit, Paint::Plain);
        }
        if self.unit.is_none() {
            row("all units".to_owned(), &row_of(&self.total, None), Paint::Strong);
        }
        table
    }

    fn by_user(&self, names: &SystemNames) -> Table {
        let mut table = Table::new(&["unit, user", "CPU-h\nused", "% of\nunit"]);
        for unit in &self.total.units {
            table.row(Paint::Strong, vec![indented(&unit.unit), hours(unit.cpu.used_ns), String::new()]);
            let indent = "  ".repeat(unit.unit.matches('/').count() + 1);
            for (user, used_ns) in self.users_of(unit) {
                let name = indent.clone() + &clean(&user.name(names));
                table.row(Paint::Plain, vec![name, hours(used_ns), percent_text(used_ns, unit.cpu.used_ns)]);
            }
        }
        table
    }

    /// The users of a unit's own processes, those with the most CPU time first, and then the CPU time of
    /// processes that were too short-lived to be seen.
    fn users_of(&self, unit: &UnitUse) -> Vec<(User, u64)> {
        let mut users: Vec<(User, u64)> = unit.users.iter().map(|user| (user.into(), user.used_ns)).collect();
        users.sort_by_key(|(user, used_ns)| (std::cmp::Reverse(*used_ns), *user));
        let is_direct = |inner: &&UnitUse| {
            let rest = inner.unit.strip_prefix(&unit.unit).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(|rest| !rest.contains('/'))
        };
        let inner: u64 = self.total.units.iter().filter(is_direct).map(|inner| inner.cpu.used_ns).sum();
        let seen: u64 = users.iter().map(|(_, used_ns)| used_ns).sum();
        let unseen = unit.cpu.used_ns.saturating_sub(inner).saturating_sub(seen);
        if unseen > 0 {
            users.push((User::Unseen, unseen));
        }
        users
    }

    fn csv(&self, zone: &TimeZone) -> String {
        let mut text = csv_head(&["start", "end", "covered_seconds"]);
        let begin = self.csv_begin(zone);
        for unit in &self.total.units {
            text += &csv_line(&[&begin[..], &csv_unit(unit)].concat());
        }
        text
    }

    fn csv_by_user(&self, zone: &TimeZone, names: &SystemNames) -> String {
        let heads = ["start", "end", "covered_seconds", "unit", "uid", "user", "cpu_used_seconds"];
        let mut text = csv_line(&heads.map(str::to_owned));
        let begin = self.csv_begin(zone);
        for unit in &self.total.units {
            for (user, used_ns) in self.users_of(unit) {
                let uid = user.uid().map_or_else(String::new, |uid| uid.to_string());
                let cells = [unit.unit.clone(), uid, user.name(names), csv_seconds(used_ns)];
                text += &csv_line(&[&begin[..], &cells].concat());
            }
        }
        text
    }

    fn csv_begin(&self, zone: &TimeZone) -> Vec<String> {
        let Period { from_ms, to_ms } = self.period;
        vec![rfc_3339(from_ms, zone), rfc_3339(to_ms, zone), csv_seconds(self.coverage.covered_ns)]
    }

    fn json(&self, zone: &TimeZone, names: &SystemNames) -> String {
        let Period { from_ms, to_ms } = self.period;
        let users: BTreeMap<&str, Vec<serde_json::Value>> = self
            .total
            .units
            .iter()
            .map(|unit| {
                let user = |(user, used_ns): (User, u64)| {
                    serde_json::json!({ "uid": user.uid(), "user": user.name(names), "used_ns": used_ns })
                };
                (unit.unit.as_str(), self.users_of(unit).into_iter().map(user).collect())
            })
            .collect();
        let gaps = self.coverage.events.iter().filter_map(|event| match event {
            Event::Gap(from, to) => {
                Some(serde_json::json!({ "from": rfc_3339(*from, zone), "to": rfc_3339(*to, zone) }))
            }
            _ => None,
        });
        let document = serde_json::json!({
            "from": rfc_3339(from_ms, zone),
            "to": rfc_3339(to_ms, zone),
            "covered_ns": self.coverage.covered_ns,
            "gaps": gaps.collect::<Vec<_>>(),
            "lost": self.skipped,
            "machine": self.total.machine,
            "units": self.total.units.iter().map(json_unit).collect::<Vec<_>>(),
            "users": users,
            "left_out": self.total.left_out,
        });
        commonhold_report::json("commonhold.account", document)
    }
}

/// A gap as a sentence.
fn sentence(line: &str) -> String {
    let mut chars = line.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).chain(['.']).collect()
}

/// Whose CPU time an account has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum User {
    Uid(u32),
    /// All users beyond those that are counted separately.
    Others,
    /// Processes that no scan saw.
    Unseen,
}

impl From<&UserUse> for User {
    fn from(user: &UserUse) -> User {
        user.uid.map_or(User::Others, User::Uid)
    }
}

impl User {
    fn uid(self) -> Option<u32> {
        match self {
            User::Uid(uid) => Some(uid),
            User::Others | User::Unseen => None,
        }
    }

    fn name(self, names: &SystemNames) -> String {
        match self {
            User::Uid(uid) => names.user_name(uid).unwrap_or_else(|| format!("uid {uid}")),
            User::Others => "(other users)".to_owned(),
            User::Unseen => "(unseen)".to_owned(),
        }
    }
}

/// A unit's use as JSON. Memory is in bytes times milliseconds, which exceed JSON's numbers: as text.
fn json_unit(unit: &UnitUse) -> serde_json::Value {
    let memory = unit.memory.map(|of| {
        serde_json::json!({
            "entitled_byte_ms": of.entitled_byte_ms.to_string(),
            "used_byte_ms": of.used_byte_ms.to_string(),
            "lent_byte_ms": of.lent_byte_ms.to_string(),
            "borrowed_byte_ms": of.borrowed_byte_ms.to_string(),
            "waited_ns": of.waited_ns,
        })
    });
    serde_json::json!({
        "unit": unit.unit,
        "processes": unit.processes,
        "cpu": unit.cpu,
        "memory": memory,
        "disk": unit.disk,
        "call_backs": unit.call_backs,
        "waits": unit.waits,
        "verdicts": unit.verdicts,
        "users": unit.users,
    })
}

fn json_begin(schema: &str, resolution: Resolution, period: Period, zone: &TimeZone) -> String {
    format!(
        "{{\n  \"schema\": \"{schema}\",\n  \"version\": {JSON_VERSION},\n  \"step\": \"{}\",\n  \"from\": \"{}\",\n  \
         \"to\": \"{}\",\n  \"records\": [",
        resolution.name(),
        rfc_3339(period.from_ms, zone),
        rfc_3339(period.to_ms, zone)
    )
}

fn json_record(record: &Record, zone: &TimeZone, is_first: bool) -> String {
    let value = serde_json::json!({
        "start": rfc_3339(record.start.wall_ms, zone),
        "end": rfc_3339(record.end.wall_ms, zone),
        "boot": format!("{:016x}", record.start.boot),
        "boot_ns": record.start.boot_ns,
        "duration_ns": record.duration_ns,
        "machine": record.machine,
        "units": record.units.iter().map(json_unit).collect::<Vec<_>>(),
        "left_out": record.left_out,
    });
    format!("{}\n    {value}", if is_first { "" } else { "," })
}

/// The columns of a unit, in the order of [`csv_unit`].
const CSV_UNIT: [&str; 28] = [
    "unit",
    "processes",
    "cpu_entitled_seconds",
    "cpu_used_seconds",
    "cpu_lent_seconds",
    "cpu_borrowed_seconds",
    "cpu_call_backs",
    "cpu_call_back_longest_seconds",
    "cpu_waited_seconds",
    "cpu_verdict",
    "memory_entitled_byte_seconds",
    "memory_used_byte_seconds",
    "memory_lent_byte_seconds",
    "memory_borrowed_byte_seconds",
    "memory_call_backs",
    "memory_call_backs_late",
    "memory_call_back_longest_seconds",
    "memory_waited_seconds",
    "memory_verdict",
    "disk_entitled_bytes",
    "disk_read_bytes",
    "disk_written_bytes",
    "disk_lent_bytes",
    "disk_borrowed_bytes",
    "disk_call_backs",
    "disk_call_back_longest_seconds",
    "disk_waited_seconds",
    "disk_verdict",
];

fn csv_head(first: &[&str]) -> String {
    csv_line(&first.iter().chain(&CSV_UNIT).map(|head| (*head).to_owned()).collect::<Vec<_>>())
}

/// The lines of a record, one for each unit.
fn csv_record(record: &Record, zone: &TimeZone) -> String {
    let begin = [
        rfc_3339(record.start.wall_ms, zone),
        rfc_3339(record.end.wall_ms, zone),
        csv_seconds(record.duration_ns),
    ];
    record.units.iter().map(|unit| csv_line(&[&begin[..], &csv_unit(unit)].concat())).collect()
}

fn csv_unit(unit: &UnitUse) -> Vec<String> {
    let back = |resource| unit.call_backs.get(&resource).copied().unwrap_or_default();
    let longest = |resource| csv_seconds(back(resource).max_ns);
    let verdict = |resource| {
        let verdict = unit.verdicts.get(&resource).map_or("", |verdict| match verdict {
            Verdict::Kept => "kept",
            Verdict::CannotTell => "cannot tell",
            Verdict::Broken => "broken",
        });
        verdict.to_owned()
    };
    let cpu = unit.cpu;
    let mut cells = vec![unit.unit.clone(), unit.processes.to_string()];
    cells.extend([cpu.entitled_ns, cpu.used_ns, cpu.lent_ns, cpu.borrowed_ns].map(csv_seconds));
    cells.extend([back(Resource::Cpu).count.to_string(), longest(Resource::Cpu), csv_seconds(cpu.waited_ns)]);
    cells.push(verdict(Resource::Cpu));
    match unit.memory {
        Some(of) => {
            let amounts = [of.entitled_byte_ms, of.used_byte_ms, of.lent_byte_ms, of.borrowed_byte_ms];
            cells.extend(amounts.map(|byte_ms| (byte_ms / 1_000).to_string()));
            let found = back(Resource::Memory);
            cells.extend([found.count.to_string(), found.late.to_string(), longest(Resource::Memory)]);
            cells.push(csv_seconds(of.waited_ns));
        }
        None => cells.extend(std::iter::repeat_n(String::new(), 8)),
    }
    cells.push(verdict(Resource::Memory));
    match unit.disk {
        Some(of) => {
            let amounts =
                [of.entitled_bytes, of.read_bytes, of.written_bytes, of.lent_bytes, of.borrowed_bytes];
            cells.extend(amounts.map(|bytes| bytes.to_string()));
            cells.extend([back(Resource::Disk).count.to_string(), longest(Resource::Disk)]);
            cells.push(csv_seconds(of.waited_ns));
        }
        None => cells.extend(std::iter::repeat_n(String::new(), 8)),
    }
    cells.push(verdict(Resource::Disk));
    cells
}

/// Seconds with all digits of the nanoseconds.
fn csv_seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// A line of RFC 4180.
fn csv_line(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n"
}

/// Standard output, written piece by piece.
struct Out {
    out: BufWriter<StdoutLock<'static>>,
}

impl Out {
    fn new() -> Out {
        Out { out: BufWriter::new(io::stdout().lock()) }
    }

    /// Writes a piece; false if nobody reads it (`| head`).
    fn write(&mut self, text: &str) -> Result<bool, Failure> {
        Out::check(self.out.write_all(text.as_bytes()))
    }

    fn finish(mut self) -> Result<bool, Failure> {
        Out::check(self.out.flush())
    }

    fn check(result: io::Result<()>) -> Result<bool, Failure> {
        match result {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(Failure::new(Exit::System, format!("cannot write to standard output: {e}"))),
        }
    }
}
