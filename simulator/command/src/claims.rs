//! `commonhold claims`.

use commonhold_claims::unknowns::Document;
use commonhold_claims::{assess, fit, run, run::count, select};
use commonhold_command::exit::{Exit, Failure};
use commonhold_command::output::{self, Page};
use commonhold_command::progress::Progress;
use commonhold_report::Style;
use commonhold_sim_command::cli::Claims;
use commonhold_sim_report::claims::{COLUMNS, html, json, text};

pub(crate) fn main(args: &Claims) -> Result<Exit, Failure> {
    let rows = select(&args.ids).map_err(|e| Failure::new(Exit::Usage, e))?;
    let page = args.html.as_deref().map(Page::at).transpose()?;
    let seeds: Vec<u64> = (1..=args.seeds).collect();
    let is_studied = |document: &Document| rows.iter().any(|row| fit::document(row) == Some(*document));
    let studied: Vec<Document> = match args.quick {
        true => Vec::new(),
        false => Document::ALL.into_iter().filter(is_studied).collect(),
    };
    let fits: usize = studied.iter().map(|document| fit::count(*document)).sum();
    let mut needed = rows.clone();
    for row in studied.iter().flat_map(|document| fit::needed(*document)) {
        if !needed.iter().any(|other| other.id == row.id) {
            needed.push(row);
        }
    }
    let progress = Progress::new("runs", count(&needed, seeds.len()) + fits);
    let runs = run(&needed, &seeds, &|_| progress.step());
    let studies: Vec<_> =
        studied.iter().map(|document| fit::study(*document, &runs, &|_| progress.step())).collect();
    drop(progress);
    let claims = assess(&rows, &runs, &studies, &command(args));
    // Only a terminal bounds the width.
    let style = output::style();
    let style = if output::is_terminal() { style } else { Style { width: COLUMNS, ..style } };
    Page::print_then_write(page, &if args.json { json(&claims) } else { text(&claims, style) }, || {
        html(&claims)
    })?;
    Ok(if runs.sound() { Exit::Ok } else { Exit::CheckFailed })
}

/// The command line that repeats the table.
fn command(args: &Claims) -> String {
    let mut words = vec!["commonhold claims".to_owned()];
    words.extend(args.ids.iter().cloned());
    if args.quick {
        words.push("--quick".to_owned());
    }
    if args.seeds != 7 {
        words.push(format!("--seeds {}", args.seeds));
    }
    words.join(" ")
}
