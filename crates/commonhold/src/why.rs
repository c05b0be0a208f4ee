//! `commonhold why`: where the time of a unit, a process or a job went.
//!
//! The waits of a period come from the history on disk. Without a history they come from the daemon's
//! accounts, which cover the time since it started.

use std::fs;
use std::time::Duration;

use commonhold_client::Client;
use commonhold_client::wire::Call;
use commonhold_history::{Reader, Record, UnitUse};
use commonhold_ledger::{Job, Statement, Wait};
use commonhold_live::host::clock;
use commonhold_report::why::{self, Asked, Explained};

use crate::cli::Why;
use crate::client::call;
use crate::exit::{Exit, Failure};
use crate::protocol::{StatusReply, WhereReply};
use crate::{history, output, place};

pub(crate) fn main(args: &Why) -> Result<Exit, Failure> {
    let period = args.last;
    let mut client = place::connect(&args.place).ok().map(Client::from);
    let subject = subject(args, client.as_mut())?;
    let recorded = match history::open(args.history.as_deref(), &args.place) {
        Ok(reader) => from_history(&reader, &subject.unit, period),
        Err(no_history) => match &mut client {
            Some(client) => from_daemon(client, &subject.unit, &no_history)?,
            None => return Err(no_history),
        },
    };
    let Some(Recorded { period_ns, recorded_ns, used }) = recorded else {
        return Err(Failure::new(
            Exit::Unavailable,
            format!(
                "unit `{}` did nothing in the last {}, or does not exist; `commonhold status` lists units",
                output::shown(&subject.unit),
                commonhold_report::figures::duration(nanoseconds(period))
            ),
        ));
    };
    let explained = Explained {
        unit: subject.unit,
        asked: subject.asked,
        period_ns,
        recorded_ns,
        entitled_ns: used.entitled_ns,
        used_ns: used.used_ns,
        waits: used.waits,
    };
    output::print(&if args.json { why::json(&explained) } else { why::text(&explained, output::style()) })?;
    Ok(Exit::Ok)
}

/// The unit whose waits answer the question.
struct Subject {
    unit: String,
    asked: Option<Asked>,
}

/// What is known about the period.
struct Recorded {
    period_ns: u64,
    recorded_ns: u64,
    used: Used,
}

/// A unit's CPU time and waits in the period.
#[derive(Default)]
struct Used {
    entitled_ns: u64,
    used_ns: u64,
    waits: Vec<Wait>,
}

/// Finds the unit: a number is a process; a name is a unit, or else a job.
fn subject(args: &Why, client: Option<&mut Client>) -> Result<Subject, Failure> {
    let name = &args.subject;
    if let Ok(pid) = name.parse::<u32>() {
        let client = match client {
            Some(client) => client,
            None => &mut Client::from(place::connect(&args.place)?),
        };
        let reply: WhereReply = call(client, &Call::Where { pid })?;
        let asked = Some(Asked::Process { pid, waited_ns: waited_ns(pid) });
        return Ok(Subject { unit: reply.unit, asked });
    }
    if let Some(client) = client {
        let reply: StatusReply = call(client, &Call::Status { by_cpu: false })?;
        let Statement { accounts, jobs, .. } = reply.statement;
        let is_unit = accounts.iter().any(|account| account.unit == *name);
        if let (false, Some(Job { name, unit, .. })) =
            (is_unit, jobs.into_iter().find(|job| job.name == *name))
        {
            return Ok(Subject { unit, asked: Some(Asked::Job { name }) });
        }
    }
    Ok(Subject { unit: name.clone(), asked: None })
}

/// The time for which a process's threads waited for a CPU, in nanoseconds; `None` if the kernel does not
/// report it, or not to this user.
fn waited_ns(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let waited = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    threads.flatten().map(waited).sum()
}

/// Sums up the records of the period. `None`: no record has the unit, though there are records.
///
/// The clock may have been set in the period. So of this boot's records, those count that began in the period
/// by the time since boot; of other boots', those whose labels are in it.
fn from_history(reader: &Reader, unit: &str, period: Duration) -> Option<Recorded> {
    let (now_ms, since_boot_ns, boot) = (clock::wall_ms(), clock::since_boot(), clock::boot());
    let period_ns = nanoseconds(period);
    let from_ms = now_ms.saturating_sub(period_ns / 1_000_000);
    let is_in_period = |record: &Record| match record.start.boot == boot {
        true => record.start.boot_ns >= since_boot_ns.saturating_sub(period_ns),
        false => record.start.wall_ms <= now_ms,
    };
    let mut sum: Option<Record> = None;
    for record in reader.finest(from_ms, u64::MAX) {
        match record {
            Ok(record) if is_in_period(&record) => commonhold_history::add(&mut sum, record),
            Ok(_) => {}
            Err(skipped) => output::warn(&format!("warning: {skipped}")),
        }
    }
    let Some(sum) = sum else { return Some(Recorded { period_ns, recorded_ns: 0, used: Used::default() }) };
    let UnitUse { cpu, waits, .. } = sum.unit(unit)?.clone();
    let used = Used { entitled_ns: cpu.entitled_ns, used_ns: cpu.used_ns, waits };
    Some(Recorded { period_ns, recorded_ns: sum.duration_ns, used })
}

/// The daemon's accounts since it started, with a warning that there is no history.
fn from_daemon(client: &mut Client, unit: &str, no_history: &Failure) -> Result<Option<Recorded>, Failure> {
    let reply: StatusReply = call(client, &Call::Status { by_cpu: false })?;
    output::warn(&format!("warning: {no_history}; these are the accounts since the daemon started"));
    let elapsed_ns = reply.statement.elapsed_ns;
    let account = reply.statement.account(unit).cloned();
    Ok(account.map(|account| Recorded {
        period_ns: elapsed_ns,
        recorded_ns: elapsed_ns,
        used: Used { entitled_ns: account.entitled_ns, used_ns: account.used_ns, waits: account.waits },
    }))
}

fn nanoseconds(period: Duration) -> u64 {
    u64::try_from(period.as_nanos()).unwrap_or(u64::MAX)
}
