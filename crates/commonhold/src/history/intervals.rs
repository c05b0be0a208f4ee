//! `commonhold history`: one row for each interval.

use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write as _};

use commonhold_contract::Resource;
use commonhold_history::{Reader, Record, Resolution};
use commonhold_ledger::Verdict;
use commonhold_report::figures::{self, NOTHING, bytes, duration, percent_text, rate};
use commonhold_report::table::{Paint, Table, clean};
use commonhold_report::{JSON_VERSION, Style};
use jiff::ZonedDateTime;
use jiff::tz::TimeZone;

use super::coverage::Coverage;
use super::when::{self, Period, rfc_3339, when, words};
use super::{Reading, check, csv, json_unit, mean, open, row_of, usage};
use crate::cli::{self, StepChoice};
use crate::exit::{Exit, Failure};
use crate::output;

/// The most intervals that `--step auto` shows.
const ROWS: u64 = 60;

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
    let mut reading = Reading::new(args.unit.as_deref(), &reader);
    let zone = now.time_zone();
    if args.output.json || args.output.csv {
        let mut out = Out::new();
        let (begin, end) = match args.output.json {
            true => (json_begin(resolution, period, zone), "\n  ]\n}\n"),
            false => (csv::head(), ""),
        };
        out.write(&begin)?;
        let mut is_first = true;
        let records = reader.records(resolution, period.from_ms, period.to_ms);
        for record in reading.records(records) {
            let text = match args.output.json {
                true => json_record(&record, zone, is_first),
                false => csv::units(
                    &record,
                    &csv::begin(record.start.wall_ms, record.end.wall_ms, record.duration_ns, zone),
                ),
            };
            is_first = false;
            if !out.write(&text)? {
                return Ok(Exit::Ok);
            }
        }
        out.write(end)?;
        out.finish()?;
    } else {
        let text = history_text(&mut reading, &reader, resolution, period, &now, output::style());
        let exit = reading.finish()?;
        output::print(&text)?;
        return Ok(exit);
    }
    reading.finish()
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

/// The tables of `history`, one for each resource.
fn history_text(
    reading: &mut Reading<'_>,
    reader: &Reader,
    resolution: Resolution,
    period: Period,
    now: &ZonedDateTime,
    style: Style,
) -> String {
    let zone = now.time_zone();
    let unit = reading.unit;
    let table = |heads: &'static str| Table::new(&heads.split('|').collect::<Vec<_>>());
    let mut cpu = table("from|entitled|using|used %|lent|borrowed|called\nback|longest|waited|kept");
    let mut memory = table("from|entitled|using|lent|borrowed|called\nback|longest|waited|kept");
    let mut disk = table("from|entitled|using|used %|lent|borrowed|called\nback|waited|kept");
    let (mut has_memory, mut has_disk, mut rows) = (false, false, 0);
    let mut coverage = Coverage::default();
    let label = |ms| match resolution {
        Resolution::Second => when::local(ms, zone, "%m-%d %H:%M:%S"),
        _ => when::local(ms, zone, "%m-%d %H:%M"),
    };
    let records = reader.records(resolution, period.from_ms, period.to_ms);
    for record in reading.records(records) {
        for line in coverage.add(&record).into_iter().map(|event| event.line(zone)) {
            for table in [&mut cpu, &mut memory, &mut disk] {
                table.line(Paint::Faint, line.clone());
            }
        }
        rows += 1;
        let (ns, of) = (record.duration_ns, row_of(&record, unit));
        // What every table ends with; `longest` is not known of disks.
        let end = |resource, has_longest: bool, waited_ns| {
            let back = of.call_backs.get(&resource).copied().unwrap_or_default();
            let longest = if back.count > 0 { duration(back.max_ns) } else { String::new() };
            let kept = of.verdicts.get(&resource).map_or(NOTHING, |verdict| match verdict {
                Verdict::Kept => "yes",
                Verdict::CannotTell => "?",
                Verdict::Broken => "no",
            });
            let longest = has_longest.then_some(longest);
            let cells = [back.count.to_string()].into_iter().chain(longest);
            cells.chain([duration(waited_ns), kept.to_owned()])
        };
        let row = |table: &mut Table, cells: &[String], end: &mut dyn Iterator<Item = String>| {
            let from = label(record.start.wall_ms);
            table.row(Paint::Plain, [from].into_iter().chain(cells.iter().cloned()).chain(end).collect());
        };
        let used = of.cpu;
        let cells = [
            mean_cpus(used.entitled_ns, ns),
            mean_cpus(used.used_ns, ns),
            percent_text(used.used_ns, used.entitled_ns),
            duration(used.lent_ns),
            duration(used.borrowed_ns),
        ];
        row(&mut cpu, &cells, &mut end(Resource::Cpu, true, used.waited_ns));
        has_memory |= of.memory.is_some();
        let used = of.memory.unwrap_or_default();
        let amounts = [used.entitled_byte_ms, used.used_byte_ms, used.lent_byte_ms, used.borrowed_byte_ms];
        let cells = amounts.map(|byte_ms| bytes(mean(byte_ms, ns)));
        row(&mut memory, &cells, &mut end(Resource::Memory, true, used.waited_ns));
        has_disk |= of.disk.is_some();
        let used = of.disk.unwrap_or_default();
        let moved = used.read_bytes.saturating_add(used.written_bytes);
        let cells = [
            rate(per_second(used.entitled_bytes, ns)),
            rate(per_second(moved, ns)),
            percent_text(moved, used.entitled_bytes),
            bytes(used.lent_bytes),
            bytes(used.borrowed_bytes),
        ];
        row(&mut disk, &cells, &mut end(Resource::Disk, false, used.waited_ns));
    }
    let of = unit.map_or_else(|| "all units".to_owned(), |unit| format!("unit {}", clean(unit)));
    if rows == 0 {
        let (from, to) = (words(period.from_ms, zone), words(period.to_ms, zone));
        let others = reader.range().map_or_else(String::new, |(first, last)| {
            format!("; there are records from {} to {}", words(first, zone), words(last, zone))
        });
        return format!("No record begins from {from} to {to}{others}.\n");
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

fn json_begin(resolution: Resolution, period: Period, zone: &TimeZone) -> String {
    format!(
        "{{\n  \"schema\": \"commonhold.history\",\n  \"version\": {JSON_VERSION},\n  \"step\": \"{}\",\n  \
         \"from\": \"{}\",\n  \"to\": \"{}\",\n  \"records\": [",
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
        "suspended_ns": record.suspended_ns,
        "machine": record.machine,
        "units": record.units.iter().map(json_unit).collect::<Vec<_>>(),
        "left_out": record.left_out,
    });
    format!("{}\n    {value}", if is_first { "" } else { "," })
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
