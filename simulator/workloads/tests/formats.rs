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

/// The simulator's limits are errors of the import, and name the source.
#[test]
fn limits_of_the_simulator_are_checked() {
    let found = |text: &str, format: Format| {
        let imported = import(text, format, &options());
        assert!(imported.text.is_none(), "{format:?}");
        let errors = imported.diagnostics.into_iter().filter(commonhold_contract::Diagnostic::is_error);
        errors.map(|error| (error.code, error.message)).collect::<Vec<_>>()
    };
    let of = |event: fn(usize) -> String, count: usize| {
        let events = (0..count).map(event).collect::<Vec<_>>().join(", ");
        found(&format!("{{\"tasks\": {{\"a\": {{ \"loop\": 1, {events} }}}}}}"), Format::RtApp)
    };
    let locks = of(|lock| format!("\"lock\": \"m{lock}\", \"unlock\": \"m{lock}\""), 1025);
    let message = "a test becomes a workload with 1025 locks, more than 1024".to_owned();
    assert_eq!(locks, [("too-many-locks", message)]);
    assert_eq!(of(|event| format!("\"signal\": \"c{event}\""), 4097)[0].0, "too-many-events");
    let timer = |timer| format!("\"timer\": {{ \"ref\": \"t{timer}\", \"period\": 9 }}");
    assert_eq!(of(timer, 4097)[0].0, "too-many-timers");
    // Each section is a program and a group, and a quarter of them needs a third program.
    let section = |number: usize| format!("[s{number}]\nstonewall\nsize=1m\nstartdelay=1\n");
    assert_eq!(found(&(0..500).map(section).collect::<String>(), Format::Fio)[0].0, "too-many-programs");
    let reads = (0..4097).map(|file| format!("f{file} add\nf{file} read 0 512\n")).collect::<String>();
    assert_eq!(found(&format!("fio version 2 iolog\n{reads}"), Format::Iolog)[0].0, "too-many-files");
    // Files without an access are not in the workload.
    let added = (0..4097).map(|file| format!("g{file} add\n")).collect::<String>();
    let text = format!("fio version 2 iolog\n{added}f add\nf read 0 512\n");
    assert!(import(&text, Format::Iolog, &options()).text.is_some());
}

/// The options of `[global]` are not copied for sections that there may not be, nor those that say nothing.
#[test]
fn sections_are_bounded_while_they_are_read() {
    let global = (0..5_000).map(|option| format!("option{option}=1\n")).collect::<String>();
    let sections = (0..20_000).map(|section| format!("[s{section}]\n")).collect::<String>();
    let imported = import(&format!("[global]\nsize=1m\n{global}{sections}"), Format::Fio, &options());
    let errors: Vec<_> = imported.diagnostics.iter().filter(|found| found.is_error()).collect();
    assert_eq!((errors.len(), errors[0].code), (1, "too-many-jobs"));
    assert_eq!(errors[0].message, "there are more than 512 sections");
    // Remarks are bounded too, and the others are counted.
    assert_eq!(imported.diagnostics.len(), 1_002);
    let further = imported.diagnostics.iter().find(|found| found.code == "further").unwrap();
    assert_eq!(further.message, "4000 further remarks are left out, from this one on");
}

/// Equal names, and scans of earlier steps: with time that grows as the square of the size, this would take
/// hours.
#[test]
fn large_files_take_time_with_their_size() {
    let job = "1 0 0 60 1 -1 -1 4 60 -1 1 1 1 1 1 1 -1 -1\n";
    assert!(import(&job.repeat(65_536), Format::Swf, &options()).text.is_some());
    let waits = "f wait 1000 0\nf sync 0 0\n".repeat(200_000);
    let text = format!("fio version 2 iolog\nf add\nf write 0 512\n{waits}");
    assert!(import(&text, Format::Iolog, &options()).text.is_some());
    let (forks, events) = ("\"fork\": \"b\", ".repeat(50_000), "\"run\": 1, ".repeat(50_000));
    let text = format!(
        "{{\"tasks\": {{\"a\": {{ \"loop\": 1, {forks} }}, \"b\": {{ \"instance\": 0, \"loop\": 1, {events} }}}}}}"
    );
    assert!(import(&text, Format::RtApp, &options()).text.is_some());
    let remarks = (0..20_000).map(|number| format!("x{number}=1\n")).collect::<String>();
    let errors = "[x\n".repeat(200_000);
    assert!(import(&format!("[a]\n{remarks}{errors}"), Format::Fio, &options()).text.is_none());
    // Names that are alike are sought only for what is shown.
    let tasks =
        (0..1000).map(|task| format!("\"task{task}\": {{ \"loop\": 1, \"run\": 1 }},")).collect::<String>();
    let forks = "\"fork\": \"taskx\", ".repeat(50_000);
    let text = format!("{{\"tasks\": {{\"a\": {{ \"loop\": 1, {forks} }}, {tasks} }}}}");
    assert!(import(&text, Format::RtApp, &options()).text.is_none());
    let options_of_fio = "numjosb=1\n".repeat(1_000_000);
    assert!(import(&format!("[a]\nsize=1m\n{options_of_fio}"), Format::Fio, &options()).text.is_some());
}

/// The exported use case of a workload for units `physics` and others.
fn exported(workload_text: &str) -> String {
    export(&workload(&format!("version = 1\nhorizon = \"1s\"\n{workload_text}")), &contract(), false).text
}

#[test]
fn forks_name_tasks_that_exist_and_names_are_unique() {
    // The only job of `child` starts its copies one after another, by names with numbers, one of which
    // another job has; `other` is forked, and a job of another program has its name.
    let text = exported(
        r#"
        [program.child]
        do = [{ cpu = "1ms" }]
        [program.other]
        do = [{ cpu = "2ms" }]
        [program.parent]
        do = [{ run = "child", beside = true }, { run = "other", beside = true }]
        [job.child]
        unit = "user3"
        program = "child"
        count = 2
        every = "10ms"
        [job.child-0]
        unit = "user3"
        program = "parent"
        [job.other]
        unit = "user3"
        program = "parent"
        "#,
    );
    let mut tasks: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("\t\t\"")).collect();
    tasks.retain(|line| line.ends_with(": {"));
    let tasks: Vec<&str> = tasks.iter().filter_map(|line| line.split('"').next()).collect();
    assert_eq!(tasks, ["child-0-2", "child-1", "child-0", "other", "child-2", "other-2"], "{text}");
    for fork in ["child-2", "other-2"] {
        assert!(text.contains(&format!("\"fork{}\" : \"{fork}\"", usize::from(fork == "other-2"))), "{text}");
    }
    assert!(import(&text, Format::RtApp, &options()).text.is_some());
}

#[test]
fn loops_without_steps_are_not_unrolled() {
    let text = exported(
        r#"
        [file.f]
        size = "1MiB"
        [program.reader]
        do = [
            { cpu = "1ms" },
            { repeat = 3, do = [
                { repeat = 1000000000, do = [{ repeat = 1000000000, do = [{ read = "f", bytes = "4KiB" }] }] },
                { cpu = "1ms" },
            ] },
        ]
        [job.reader]
        unit = "user3"
        program = "reader"
        "#,
    );
    assert_eq!(text.matches("\"run").count(), 2, "{text}");
}

/// Used memory is left out before run times are rounded much.
#[test]
fn memory_of_jobs_gives_way_to_run_times() {
    let line = |job: u64| {
        format!("{job} {job} 0 {} 4 -1 {} 4 60 -1 1 1 1 1 1 1 -1 -1\n", 100 + job % 400, job * 7 % 997)
    };
    let imported = import(&(1..=2000).map(line).collect::<String>(), Format::Swf, &options());
    let codes: Vec<_> = imported.diagnostics.iter().map(|it| it.code).collect();
    assert_eq!(codes, ["memory"]);
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
