//! Imports of small files of each format, and their mistakes, against golden files; and workloads that are
//! exported and imported again.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is pure, its tests are not"
)]
#![allow(clippy::unwrap_used, clippy::format_collect, reason = "texts of tests")]

#[path = "../../../crates/live/tests/support/skipped.rs"]
mod skipped;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use commonhold_contract::{Contract, render};
use commonhold_sim::scenario::{Hardware, Workload, parse_machine, parse_workload};
use commonhold_workloads::{Format, Imported, Options, Units, export, guess, import};

fn options() -> Options {
    Options {
        unit: "shared".to_owned(),
        units: Units::One,
        source: "a test".to_owned(),
        horizon_ns: None,
        jobs: None,
        names: BTreeMap::new(),
    }
}

fn machine() -> Hardware {
    parse_machine("version = 1\nshape = \"cpus:4 memory:1GiB\"\n[disk.d0]\n").value.unwrap()
}

fn contract() -> Contract {
    commonhold_contract::parse(
        "version = 1\n[unit.physics]\n[unit.physics.unit.batch]\n[unit.user3]\n[unit.user7]\n",
    )
    .contract
    .unwrap()
}

/// The workload of a text, which must have no errors.
fn workload(text: &str) -> Workload {
    let parsed = parse_workload(text, &contract(), &machine());
    let wrong: Vec<_> =
        parsed.diagnostics.into_iter().filter(commonhold_contract::Diagnostic::is_error).collect();
    assert!(wrong.is_empty(), "{}\n{text}", render(&wrong, text, "workload.toml", false));
    parsed.value.unwrap()
}

/// An import as a golden file has it: the diagnostics, and the text.
fn shown(imported: &Imported, text: &str, name: &str) -> String {
    format!(
        "{}{}",
        render(&imported.diagnostics, text, name, false),
        imported.text.as_deref().unwrap_or("no workload\n")
    )
}

/// The files of the folder `files`, without their golden copies.
fn files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension != "snap"));
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn files_become_the_workloads_of_their_golden_copies() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("files");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for (name, text) in files() {
            let guessed = guess(&text);
            let (stem, extension) = name.split_once('.').unwrap();
            let format = match extension {
                "json" => Format::RtApp,
                "fio" => Format::Fio,
                "log" => Format::Iolog,
                _ => Format::Swf,
            };
            assert!(guessed == Some(format) || stem.starts_with("bad"), "{name}: {guessed:?}");
            let mut options = options();
            match stem {
                "users" => {
                    options.units = Units::User;
                    options.names = BTreeMap::from([(5, "physics".to_owned())]);
                }
                "groups" => options.units = Units::Taskgroup,
                _ => {}
            }
            let imported = import(&text, format, &options);
            let shown = shown(&imported, &text, &name);
            assert_eq!(imported.text.is_none(), stem.starts_with("bad"), "{name}: {shown}");
            imported.text.as_deref().map(workload);
            insta::assert_snapshot!(name.clone(), shown);
        }
    });
}

/// Of a use case that was exported and imported again, an export is the same, and so are the steps.
#[track_caller]
fn comes_back(text: &str) {
    let first = workload(text);
    let exported = export(&first, &contract(), false);
    let imported = import(&exported.text, Format::RtApp, &options());
    let Some(again) = &imported.text else { panic!("{}", shown(&imported, &exported.text, "exported.json")) };
    let second = workload(again);
    assert_eq!(export(&second, &contract(), false).text, exported.text);
    if exported.remarks.is_empty() {
        let ops = |workload: &Workload| workload.programs.iter().map(|it| it.ops.clone()).collect::<Vec<_>>();
        assert_eq!(ops(&first), ops(&second), "{text}\n{again}");
        let jobs = |workload: &Workload| {
            let jobs = workload.jobs.iter();
            jobs.map(|job| (job.name.clone(), job.count, job.start_ns, job.background)).collect::<Vec<_>>()
        };
        assert_eq!(jobs(&first), jobs(&second), "{text}\n{again}");
    }
}

#[test]
fn use_cases_come_back_from_an_export() {
    for (name, text) in files() {
        if Path::new(&name).extension().is_some_and(|extension| extension == "json")
            && let Some(text) = import(&text, Format::RtApp, &options()).text
        {
            comes_back(&text);
        }
    }
}

/// rt-app's own examples, where its package is installed. They are not part of this repository: their license
/// is the GPL.
#[test]
fn the_examples_of_rt_app_are_imported() {
    let folder = Path::new("/usr/share/doc/rt-app/examples");
    if !folder.exists() {
        skipped::skipped("Debian's package rt-app is not installed");
        return;
    }
    let mut count = 0;
    for path in files_below(folder) {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
        // Some run until they are interrupted.
        let options =
            Options { horizon_ns: (!text.contains("duration")).then_some(1_000_000_000), ..options() };
        let imported = import(&text, Format::RtApp, &options);
        // These are parts of a use case in the language of rt-app before 2014.
        if name.starts_with("merge/") {
            assert!(imported.text.is_none(), "{name}");
            continue;
        }
        let Some(workload_text) = &imported.text else { panic!("{}", shown(&imported, &text, &name)) };
        comes_back(workload_text);
        count += 1;
    }
    assert!(count > 10, "{count} examples");
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else if path.extension().is_some_and(|it| it == "json") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Input of every kind ends in a result.
#[test]
fn large_and_strange_files_are_bounded() {
    let codes = |text: &str, format: Format| {
        let found = import(text, format, &options()).diagnostics;
        let errors = found.into_iter().filter(commonhold_contract::Diagnostic::is_error);
        errors.map(|error| error.code).collect::<Vec<_>>()
    };
    let tasks =
        (0..1025).map(|task| format!("\"t{task}\": {{ \"run\": 1, \"loop\": 1 }},")).collect::<String>();
    assert_eq!(codes(&format!("{{\"tasks\": {{{tasks}}}}}"), Format::RtApp), ["too-many-tasks"]);
    let events = "\"run\": 1, ".repeat(1_000_001);
    let text = format!("{{\"tasks\": {{\"a\": {{ \"loop\": 1, {events} }}}}}}");
    assert_eq!(codes(&text, Format::RtApp), ["too-many-events"]);
    assert_eq!(codes(&"{\"a\":".repeat(100_000), Format::RtApp), ["syntax"]);
    let locks = (0..30).map(|lock| format!("\"lock\": \"m{lock}\", ")).collect::<String>();
    let text = format!("{{\"tasks\": {{\"a\": {{ \"loop\": 1, {locks} \"run\": 1 }}}}}}");
    assert!(codes(&text, Format::RtApp).contains(&"too-deep"));
    let sections = (0..1000).map(|section| format!("[s{section}]\nsize=1m\n")).collect::<String>();
    assert_eq!(codes(&sections, Format::Fio), ["too-many-jobs"]);
    let job = "1 0 0 60 4 -1 -1 4 60 -1 1 1 1 1 1 1 -1 -1\n";
    assert_eq!(codes(&job.repeat(65_537), Format::Swf), ["too-many-jobs"]);
    assert_eq!(codes(&job.replace(" 4 ", " 90000 ").repeat(20), Format::Swf), ["too-many-tasks"]);
    let reads = (0..1_000_002).map(|read| format!("f read {} 512\n", read % 3 * 4096)).collect::<String>();
    assert_eq!(codes(&format!("fio version 2 iolog\nf add\n{reads}"), Format::Iolog), ["too-many-steps"]);
    for format in [Format::RtApp, Format::Fio, Format::Iolog, Format::Swf] {
        assert!(!codes("", format).is_empty() && !codes("\u{0}ü\n\n[", format).is_empty(), "{format:?}");
    }
}

/// More shapes of jobs than programs: run times are rounded, by less than a tenth.
#[test]
fn many_jobs_share_programs() {
    let line = |job: u64| format!("{job} {job} 0 {} 4 -1 -1 4 60 -1 1 1 1 1 1 1 -1 -1\n", 1000 + job);
    let text = (1..=2000).map(line).collect::<String>();
    let imported = import(&text, Format::Swf, &Options { jobs: Some(1500), ..options() });
    let messages: Vec<_> = imported.diagnostics.iter().map(|it| it.code).collect();
    assert_eq!(messages, ["rounded", "jobs"]);
    let workload = workload(imported.text.as_deref().unwrap());
    assert_eq!((workload.jobs.len(), workload.programs.len() <= 1024), (1500, true));
}
