//! `commonhold history` and `commonhold account`: what units had in the past, from the files of the history.
//! This file has what both use: finding the history, reading its records, and the use of one unit or of all.

mod account;
mod coverage;
mod csv;
mod intervals;
mod when;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use commonhold_command::place::Place;
use commonhold_history::{Reader, Record, UnitUse};
use commonhold_report::status::is_within;
use commonhold_report::table::clean;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::{output, place};
pub(crate) use account::{account, final_account};
pub(crate) use intervals::history;
use when::{Period, words};

/// The most gaps, or parts that cannot be read, that a text lists.
const LISTED_MAX: usize = 8;

fn usage(message: String) -> Failure {
    Failure::new(Exit::Usage, message)
}

/// Refuses a period that ends before it begins.
fn check(period: Period, zone: &TimeZone) -> Result<(), Failure> {
    match period.from_ms < period.to_ms {
        true => Ok(()),
        false => Err(usage(format!(
            "the period ends before it begins: it is to begin at {}, and to end at {}; give an earlier --since or a \
             later --until",
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
            Err(error) => {
                let remedy = match error.source.kind() {
                    ErrorKind::PermissionDenied => "; read it as the daemon's user or as root",
                    ErrorKind::NotADirectory => "; name the folder that has the history's files",
                    _ => "",
                };
                return Err(Failure::new(Exit::of_named(&error.source), format!("{error}{remedy}")));
            }
        }
    }
    let why = format!(
        "there is no history in {}; `commonhold run CONTRACT` writes one; name its folder with --history",
        tried.join(" or ")
    );
    Err(Failure::new(Exit::NoInput, why))
}

/// Reads records, of all units or of one, and remembers what could not be read.
struct Reading<'a> {
    unit: Option<&'a str>,
    folder: PathBuf,
    is_found: bool,
    others: BTreeSet<String>,
    skipped: Vec<String>,
}

impl<'a> Reading<'a> {
    fn new(unit: Option<&'a str>, reader: &Reader) -> Reading<'a> {
        let (folder, is_found) = (reader.path(), unit.is_none());
        Reading { unit, folder, is_found, others: BTreeSet::new(), skipped: Vec::new() }
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
                self.skipped.push(format!("{}/{skipped}", self.folder.display()));
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

/// A unit's row begins with the last part of its path, indented by its depth.
fn indented(path: &str) -> String {
    "  ".repeat(path.matches('/').count()) + &clean(path.rsplit('/').next().unwrap_or(path))
}

/// The mean of an amount that was integrated over time, in its own unit.
fn mean(integral_ms: u128, ns: u64) -> u64 {
    let mean = (integral_ms * 1_000_000).checked_div(u128::from(ns)).unwrap_or(0);
    u64::try_from(mean).unwrap_or(u64::MAX)
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

/// A unit's use as JSON. Memory is in bytes times milliseconds, which exceed JSON's numbers: as text.
fn json_unit(unit: &UnitUse) -> Value {
    let memory = unit.memory.map(|of| {
        json!({
            "entitled_byte_ms": of.entitled_byte_ms.to_string(),
            "used_byte_ms": of.used_byte_ms.to_string(),
            "lent_byte_ms": of.lent_byte_ms.to_string(),
            "borrowed_byte_ms": of.borrowed_byte_ms.to_string(),
            "waited_ns": of.waited_ns,
        })
    });
    json!({
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
