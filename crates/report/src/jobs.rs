//! Jobs in a statement: where their threads have seats, and where their memory is.

use commonhold_ledger::Statement;

use crate::figures::{bytes, percent_text};
use crate::table::{Paint, Style, Table, clean};

/// A row for each job; nothing where there are none.
pub(crate) fn table(statement: &Statement, style: Style) -> String {
    if statement.jobs.is_empty() {
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
    format!("\n{}", table.render(style))
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_ledger::Job;

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
        statement.jobs.clear();
        assert_eq!(table(&statement, Style::default()), "");
    }
}
