//! The gangs of a statement: which jobs run now, which jobs wait and for how many quanta, and how much of the
//! shared resource each job is estimated to use.

use commonhold_ledger::{Account, Gang, GangState, Job, Known, Statement};
use commonhold_policy::plan::SharedRate;

use crate::figures::{NOTHING, bytes, count, rate};
use crate::table::{Paint, Style, Table, clean, depth, indented, wrap};
use crate::words;

/// A summary of the gangs of all units: `3 gangs run, 2 wait`; `None` without gangs.
pub(crate) fn now(statement: &Statement) -> Option<String> {
    let gangs =
        || statement.accounts.iter().filter(|account| depth(&account.unit) == 0).filter_map(|it| it.gangs);
    gangs().next()?;
    let running: u32 = gangs().map(|gangs| gangs.running).fold(0, u32::saturating_add);
    let waiting: u32 = gangs().map(|gangs| gangs.waiting).fold(0, u32::saturating_add);
    Some(summary(running, waiting))
}

/// Numbers of gangs in words: `3 gangs run, 2 wait`.
pub fn summary(running: u32, waiting: u32) -> String {
    let run = if running == 1 { "runs" } else { "run" };
    let wait = if waiting == 1 { "waits" } else { "wait" };
    format!("{} {run}, {waiting} {wait}", count(running as usize, "gang"))
}

/// A table with a row for each unit that has, or had, gangs; `None` if no unit had any.
pub fn units(statement: &Statement) -> Option<Table> {
    let mut table = Table::new(&["gangs", "running", "waiting", "quanta\nrun", "waited", "longest"]);
    let mut any = false;
    for account in &statement.accounts {
        let Account { unit, gangs: Some(gangs), .. } = account else { continue };
        let mut cells = vec![indented(unit)];
        cells.extend([gangs.running, gangs.waiting].map(|count| count.to_string()));
        cells.extend([gangs.ran, gangs.waited, gangs.longest].map(|quanta| quanta.to_string()));
        table.row(Paint::Plain, cells);
        any = true;
    }
    any.then_some(table)
}

/// The tables that `status` shows, each after an empty line.
pub(crate) fn text(statement: &Statement, style: Style) -> String {
    let tables = units(statement).into_iter().chain(jobs(statement, style));
    tables.map(|table| "\n".to_owned() + &table.render(style)).collect()
}

/// A table with a row for each job that is a gang. Below it stands the reason why the job runs or waits.
fn jobs(statement: &Statement, style: Style) -> Option<Table> {
    let rates = || statement.jobs.iter().filter_map(|job| job.gang.as_ref()?.rate);
    let does = match rates().next() {
        None | Some(SharedRate::BytesPerS(_)) => "thread\ntransfers",
        Some(SharedRate::CacheBytes(_)) => "thread\nholds",
    };
    let heads = ["gang", "unit", "CPUs", "now", does, "that\nis", "quanta\nrun", "waited"];
    let mut table = Table::new(&heads);
    let mut any = false;
    for (job, gang) in statement.jobs.iter().filter_map(|job| Some((job, job.gang.as_ref()?))) {
        table.row(Paint::Plain, cells(job, gang));
        let why = gang.because.filter(|_| gang.state == GangState::Runs).map(words::because);
        for line in why.iter().flat_map(|why| wrap(why, style.width, "     ", "       ")) {
            table.line(Paint::Faint, line);
        }
        any = true;
    }
    any.then_some(table)
}

fn shared(has: SharedRate) -> String {
    match has {
        SharedRate::BytesPerS(transfers) => rate(transfers),
        SharedRate::CacheBytes(holds) => bytes(holds),
    }
}

fn cells(job: &Job, gang: &Gang) -> Vec<String> {
    let now = match (gang.state, gang.waits) {
        (GangState::Runs, _) => "runs".to_owned(),
        (GangState::Sleeps, _) => "sleeps".to_owned(),
        (GangState::Waits, 0) => "waits".to_owned(),
        (GangState::Waits, quanta) => format!("waits {quanta}"),
    };
    let known = match (gang.rate, gang.known) {
        (None, _) => NOTHING,
        (_, Known::Told) => "told",
        (_, Known::Taken) => "taken",
    };
    vec![
        format!("{:>3} {}", job.job, clean(&job.name)),
        clean(&job.unit),
        if gang.cpus == 0 { NOTHING.to_owned() } else { gang.cpus.to_string() },
        now,
        gang.rate.map_or_else(|| NOTHING.to_owned(), shared),
        known.to_owned(),
        gang.ran.to_string(),
        gang.waited.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(rate: SharedRate) -> String {
        let gang = Gang { rate: Some(rate), known: Known::Told, ..Gang::default() };
        let job = Job { job: 1, name: "solve (4711)".to_owned(), gang: Some(gang), ..Job::default() };
        let statement = Statement { jobs: vec![job], ..Statement::default() };
        text(&statement, Style::PLAIN)
    }

    #[test]
    fn what_a_thread_has_is_said_in_its_measure() {
        for (rate, head, cell) in [
            (SharedRate::BytesPerS(8_800_000_000), "transfers", "8.8 GB/s"),
            (SharedRate::CacheBytes(3 << 20), "holds", "3 MiB"),
        ] {
            let text = status(rate);
            assert!(text.contains(head) && text.contains(cell), "{text}");
        }
    }
}
