//! The jobs of a statement: the pools in which their threads have seats, and the nodes on which their memory
//! is.

use commonhold_ledger::{Job, Statement};

use crate::figures::{bytes, percent_text};
use crate::table::{Paint, Style, Table, clean, wrap};

/// A table with a row for each job. Empty if there are no jobs, or if the jobs are gangs that are not placed
/// in pools.
pub(crate) fn table(statement: &Statement, style: Style) -> String {
    let is_placed =
        |job: &Job| job.gang.is_none() || !job.pools.is_empty() || !job.memory.is_empty() || job.moved > 0;
    if !statement.jobs.iter().any(is_placed) {
        return String::new();
    }
    let mut table = Table::new(&[
        "job",
        "begun by",
        "unit",
        "threads",
        "in pools",
        "in its\npool %",
        "moved",
        "memory in nodes",
    ]);
    for job in &statement.jobs {
        let pools = job.pools.iter().map(|(pool, threads)| format!("{pool}: {threads}"));
        let memory = job.memory.iter().map(|(node, held)| format!("{node}: {}", bytes(*held)));
        let listed = |items: Vec<String>| if items.is_empty() { "-".to_owned() } else { items.join(", ") };
        let cells = vec![
            job.job.to_string(),
            clean(&job.name),
            clean(&job.unit),
            job.threads.to_string(),
            listed(pools.collect()),
            percent_text(job.at_home, job.looks),
            job.moved.to_string(),
            listed(memory.collect()),
        ];
        table.row(Paint::Plain, cells);
    }
    format!("\n{}{}", table.render(style), legend(statement, style))
}

/// A line that explains `-`, for the columns that have it.
fn legend(statement: &Statement, style: Style) -> String {
    let some = |is_empty: fn(&Job) -> bool| statement.jobs.iter().any(is_empty);
    let columns = [
        (
            some(|job| job.pools.is_empty()),
            "in pools",
            "no thread has a seat, since all rest or no seat is free",
        ),
        (some(|job| job.looks == 0), "in its pool %", "no thread with a seat wanted a CPU yet"),
        (
            some(|job| job.memory.is_empty()),
            "memory in nodes",
            "not looked at yet, or the machine has one node; the memory of a job that runs is looked at every few seconds",
        ),
    ];
    let lines = columns.into_iter().filter(|(is_there, ..)| *is_there);
    let wrapped =
        lines.flat_map(|(_, column, why)| wrap(&format!("- {column}: {why}"), style.width, "", "  "));
    wrapped.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_each_job() {
        let job = Job {
            job: 3,
            name: "make (4711)".to_owned(),
            unit: "physics".to_owned(),
            threads: 5,
            pools: vec![(0, 4), (2, 1)],
            moved: 2,
            at_home: 95,
            looks: 100,
            memory: vec![(0, 3 << 20)],
            gang: None,
        };
        let mut statement = Statement { jobs: vec![job], ..Statement::default() };
        let text = table(&statement, Style::default());
        assert!(
            text.contains("make (4711)")
                && text.contains("0: 4, 2: 1")
                && text.contains("95")
                && text.contains("0: 3 MiB"),
            "{text}"
        );
        assert!(!text.contains("- in pools"), "{text}");
        let new =
            Job { pools: Vec::new(), at_home: 0, looks: 0, memory: Vec::new(), ..statement.jobs[0].clone() };
        statement.jobs.push(new);
        let text = table(&statement, Style::default());
        for explained in
            ["\n- in pools: no thread", "\n- in its pool %: no thread", "\n- memory in nodes: not looked"]
        {
            assert!(text.contains(explained), "{text}");
        }
        statement.jobs.clear();
        assert_eq!(table(&statement, Style::default()), "");
    }
}
