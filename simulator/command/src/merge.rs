//! `commonhold merge`: puts together the result files of a sweep's shards.

use std::collections::BTreeMap;
use std::path::Path;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::output::{self, Page};
use commonhold_report::figures::count;
use commonhold_sim_command::cli::{Merge, Shard};
use commonhold_sim_report::sweep::{self, Sweep};

use crate::run_files::{Header, Runs, is_unbegun, read};

/// The most shards or points that a report of missing runs names, and the most seeds of each.
const NAMED_MAX: usize = 10;

pub(crate) fn main(args: &Merge) -> Result<Exit, Failure> {
    let page = args.html.as_deref().map(Page::at).transpose()?;
    let mut merged = Merged::default();
    for file in &args.files {
        if args.files.len() > 1 && is_unbegun(file)? {
            let remedy = "its runs count as missing; repeat the command that wrote the file";
            output::warn(&format!("note: {}: it has no whole line: {remedy}", file.display()));
            continue;
        }
        merged.add(file)?;
    }
    let Some((first, _)) = merged.first else {
        return Err(Failure::new(
            Exit::NoInput,
            "no file has a run; repeat the commands that wrote the files",
        ));
    };
    if merged.doubled > 0 {
        let runs = count(merged.doubled, "run");
        output::warn(&format!(
            "note: {runs} more than once, with the same figures each time; each counts once"
        ));
    }
    report(&first, merged.runs, &merged.shards, (args.json, args.csv), page)
}

/// The files so far.
#[derive(Default)]
struct Merged<'a> {
    /// The first file's header, and its path.
    first: Option<(Header, &'a Path)>,
    shards: Vec<Shard>,
    runs: Runs,
    /// The number of the file of each run.
    files: BTreeMap<(u64, u64), &'a Path>,
    /// The number of repetitions with equal figures.
    doubled: usize,
}

impl<'a> Merged<'a> {
    fn add(&mut self, file: &'a Path) -> Result<(), Failure> {
        let Merged { first, shards, runs, files, doubled } = self;
        let content = read(file, |header, point, figures| {
            if let Some((first, other)) = first.as_ref()
                && let Some(why) = first.differs(header)
            {
                let (file, other) = (file.display(), other.display());
                let message =
                    format!("{file} is of another sweep than {other}: {why}; merge files of one sweep");
                return Err(Failure::new(Exit::Invalid, message));
            }
            let place = (point, figures.seed);
            let Some(known) = runs.get(&place) else {
                files.insert(place, file);
                runs.insert(place, figures);
                return Ok(());
            };
            if *known == figures {
                *doubled += 1;
                return Ok(());
            }
            let other = files.get(&place).copied().unwrap_or(file);
            Err(Failure::new(
                Exit::CheckFailed,
                format!(
                    "{} and {} have different figures for {}, seed {}: the same run has the same figures, so one of the files \
                     was changed, or is of another build of this program; repeat one of them",
                    other.display(),
                    file.display(),
                    header.space.point_text(point),
                    figures.seed
                ),
            ))
        })?;
        if content.is_torn {
            let remedy = "its run counts as missing; repeat the command that wrote the file";
            output::warn(&format!("note: {}: the last line is torn: {remedy}", file.display()));
        }
        if let Some((first, other)) = first.as_ref()
            && let Some(why) = first.differs(&content.header)
        {
            let (file, other) = (file.display(), other.display());
            let message = format!("{file} is of another sweep than {other}: {why}; merge files of one sweep");
            return Err(Failure::new(Exit::Invalid, message));
        }
        shards.push(content.header.shard);
        first.get_or_insert((content.header, file));
        Ok(())
    }
}

/// Prints the report of a sweep, and writes its page. `shards` are those that have a file; `(json, csv)`
/// selects the form.
pub(crate) fn report(
    header: &Header,
    mut runs: Runs,
    shards: &[Shard],
    form: (bool, bool),
    page: Option<Page>,
) -> Result<Exit, Failure> {
    let missing = missing(header, &runs, shards);
    let points = header.space.points().unwrap_or(0);
    let mut by_point = Vec::new();
    for point in 0..points {
        let later = runs.split_off(&(point + 1, 0));
        by_point.push(std::mem::replace(&mut runs, later).into_values().collect());
    }
    let sweep = Sweep {
        scenario: header.scenario.clone(),
        machine: header.machine.clone(),
        space: header.space.clone(),
        seed: header.seed,
        seeds: header.seeds,
        runs: by_point,
        missing,
    };
    let text = match form {
        (true, _) => sweep::json(&sweep),
        (_, true) => sweep::csv(&sweep),
        _ => sweep::text(&sweep, output::style()),
    };
    Page::print_then_write(page, &text, || sweep::html(&sweep))?;
    // The text has these lines itself.
    if form != (false, false) {
        sweep.missing.iter().for_each(|line| output::warn(line));
    }
    Ok(match (sweep.sound(), sweep.missing.is_empty()) {
        (false, _) => Exit::CheckFailed,
        (true, false) => Exit::Incomplete,
        (true, true) => Exit::Ok,
    })
}

/// What is missing, in words: how many runs, of which shards, and at which points with which seeds.
fn missing(header: &Header, runs: &Runs, shards: &[Shard]) -> Vec<String> {
    let all = header.runs();
    let absent: Vec<u64> = (0..all).filter(|index| !runs.contains_key(&header.run(*index))).collect();
    if absent.is_empty() {
        return Vec::new();
    }
    let are = if absent.len() == 1 { "is" } else { "are" };
    let mut lines = vec![format!("incomplete: {} of {} {are} missing", absent.len(), count_64(all, "run"))];
    // Shards have numbers that mean the same in all files only if there are as many in each.
    if let Some(of) =
        shards.first().map(|shard| shard.of).filter(|of| shards.iter().all(|shard| shard.of == *of))
    {
        let mut by_shard: BTreeMap<u64, u64> = BTreeMap::new();
        for index in &absent {
            *by_shard.entry(index % of + 1).or_default() += 1;
        }
        let line = |(number, lacks): (&u64, &u64)| {
            let shard = Shard { number: *number, of };
            let whole = all / of + u64::from(all % of >= *number);
            if shards.contains(&shard) {
                format!("shard {number}/{of} lacks {lacks} of its {}", count_64(whole, "run"))
            } else {
                format!("shard {number}/{of} has no file: {} missing", count_64(*lacks, "run"))
            }
        };
        if of > 1 {
            push_some(&mut lines, by_shard.iter().map(line), "shard");
        }
    }
    let mut by_point: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for index in absent {
        let (point, seed) = header.run(index);
        by_point.entry(point).or_default().push(seed);
    }
    let line = |(point, seeds): (&u64, &Vec<u64>)| {
        let named: Vec<String> = seeds.iter().take(NAMED_MAX).map(u64::to_string).collect();
        let more = match seeds.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let noun = if seeds.len() == 1 { "seed" } else { "seeds" };
        format!("missing at {}: {noun} {}{more}", header.space.point_text(*point), named.join(", "))
    };
    push_some(&mut lines, by_point.iter().map(line), "point");
    lines
}

/// Adds the first lines, and the number of the others.
fn push_some(lines: &mut Vec<String>, mut some: impl ExactSizeIterator<Item = String>, noun: &str) {
    lines.extend(some.by_ref().take(NAMED_MAX));
    if some.len() > 0 {
        lines.push(format!("and {} that lack runs", count(some.len(), &format!("more {noun}"))));
    }
}

fn count_64(n: u64, one: &str) -> String {
    count(usize::try_from(n).unwrap_or(usize::MAX), one)
}
