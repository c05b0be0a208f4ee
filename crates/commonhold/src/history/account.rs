//! `commonhold account`: the sum of a period, and the account that the daemon prints at its end.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use commonhold_history::{Record, Sample, UnitUse, UserUse};
use commonhold_ledger::Statement;
use commonhold_live::observe::names::SystemNames;
use commonhold_report::Style;
use commonhold_report::csv::line;
use commonhold_report::figures::{bytes, duration, percent_text};
use commonhold_report::table::{Paint, Table, clean, wrap};
use jiff::ZonedDateTime;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::coverage::Coverage;
use super::when::{self, Period, rfc_3339, when, words};
use super::{LISTED_MAX, Reading, check, csv, indented, json_unit, mean, open, row_of, usage};
use crate::cli::{self, ByChoice};
use crate::exit::{Exit, Failure};
use crate::output;

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
    let mut reading = Reading::new(args.unit.as_deref(), &reader);
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

/// The account of a period.
struct Account {
    total: Record,
    coverage: Coverage,
    period: Period,
    unit: Option<String>,
    skipped: Vec<String>,
}

/// A number of thousandths: of numbers from 10, only tenths are shown.
fn thousandths(n: u128, is_zero: bool) -> String {
    match n {
        0 if is_zero => "0".to_owned(),
        0 => "<0.001".to_owned(),
        1..10_000 => format!("{}.{:03}", n / 1_000, n % 1_000),
        _ => format!("{}.{}", (n + 50) / 1_000, (n + 50) % 1_000 / 100),
    }
}

/// CPU time in hours.
fn hours(ns: u64) -> String {
    const NS_PER_HOUR: u128 = 3_600_000_000_000;
    thousandths((u128::from(ns) * 1_000 + NS_PER_HOUR / 2) / NS_PER_HOUR, ns == 0)
}

/// An amount of bytes times hours, or bytes, in GiB.
fn gib(bytes: u128) -> String {
    thousandths((bytes * 1_000 + (1 << 29)) >> 30, bytes == 0)
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
        remarks.extend(events.iter().take(LISTED_MAX).map(|event| event.sentence(zone)));
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
        users.sort_by_key(|(user, used_ns)| (Reverse(*used_ns), *user));
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
        csv::head() + &csv::units(&self.total, &self.csv_begin(zone))
    }

    fn csv_by_user(&self, zone: &TimeZone, names: &SystemNames) -> String {
        let mut text = "start,end,covered_seconds,unit,uid,user,cpu_used_seconds\r\n".to_owned();
        let begin = self.csv_begin(zone);
        for unit in &self.total.units {
            for (user, used_ns) in self.users_of(unit) {
                let uid = user.uid().map_or_else(String::new, |uid| uid.to_string());
                let cells = [unit.unit.clone(), uid, user.name(names), csv::seconds(used_ns)];
                text += &line(&[&begin[..], &cells].concat());
            }
        }
        text
    }

    fn csv_begin(&self, zone: &TimeZone) -> [String; 3] {
        csv::begin(self.period.from_ms, self.period.to_ms, self.coverage.covered_ns, zone)
    }

    fn json(&self, zone: &TimeZone, names: &SystemNames) -> String {
        let Period { from_ms, to_ms } = self.period;
        let user = |(user, used_ns): (User, u64)| json!({ "uid": user.uid(), "user": user.name(names), "used_ns": used_ns });
        let users = self.total.units.iter().map(|unit| {
            (unit.unit.as_str(), self.users_of(unit).into_iter().map(user).collect::<Vec<Value>>())
        });
        let gaps = self.coverage.events.iter().filter_map(|event| event.gap());
        let document = json!({
            "from": rfc_3339(from_ms, zone),
            "to": rfc_3339(to_ms, zone),
            "covered_ns": self.coverage.covered_ns,
            "suspended_ns": self.total.suspended_ns,
            "gaps": gaps.map(|(from, to)| json!({ "from": rfc_3339(from, zone), "to": rfc_3339(to, zone) })).collect::<Vec<_>>(),
            "lost": self.skipped,
            "machine": self.total.machine,
            "units": self.total.units.iter().map(json_unit).collect::<Vec<_>>(),
            "users": users.collect::<BTreeMap<_, _>>(),
            "left_out": self.total.left_out,
        });
        commonhold_report::json("commonhold.account", document)
    }
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
