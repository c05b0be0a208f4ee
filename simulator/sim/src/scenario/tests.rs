//! What each key of the tables does, and that values arrive where they belong.
#![allow(clippy::unwrap_used)]

use commonhold_contract::{Contract, parse};

use super::keys::{
    BUS, CACHE, CONTENTION, DISK, EVENT, FILE, INTERRUPTS, JOB, KERNEL, Kind, LAST_CACHE, LATENCY, LOCK,
    MACHINE, OF_MODELS, PROGRAM, STEPS, TIMER, Table, WORKLOAD,
};
use super::{
    Amount, BatchChosen, Bus, Cache, CallBack, Contention, Disk, DiskModel, DiskOrder, Hardware, Op, Spread,
    Workload, parse_machine, parse_workload,
};

fn machine(text: &str) -> Hardware {
    let parsed = parse_machine(text);
    parsed.value.unwrap_or_else(|| panic!("{text}\n{:#?}", parsed.diagnostics))
}

fn contract() -> Contract {
    parse("version = 1\n[unit.physics]\n[unit.physics.unit.batch]").contract.unwrap()
}

fn workload(text: &str) -> Workload {
    let disks = "version = 1\nshape = \"memory:64MiB cache:8MiB\"\n[disk.first]\n[disk.d0]";
    let parsed = parse_workload(text, &contract(), &machine(disks));
    parsed.value.unwrap_or_else(|| panic!("{text}\n{:#?}", parsed.diagnostics))
}

/// A machine of a socket of two nodes with one key of a table set.
fn machine_with(table: &Table, line: &str) -> String {
    let head = "version = 1\nshape = \"nodes:2 sockets:1 memory:32MiB\"\n";
    match table.definition {
        "machine.toml" => format!("{head}{line}"),
        "[disk.NAME]" => format!("{head}[disk.d0]\n{line}"),
        definition => format!("{head}{definition}\n{line}"),
    }
}

#[test]
fn every_key_of_a_machine_is_read_and_has_the_default_that_the_table_says() {
    for table in [&MACHINE, &KERNEL, &CACHE, &LAST_CACHE, &LATENCY, &BUS, &CONTENTION, &INTERRUPTS, &DISK] {
        for key in table.keys {
            if matches!(key.kind, Kind::Version | Kind::Text | Kind::Shape) {
                continue;
            }
            let models =
                OF_MODELS.iter().find(|(name, _)| *name == key.name && table.definition == DISK.definition);
            let model = models.map_or(String::new(), |(_, models)| format!("model = \"{}\"\n", models[0]));
            let with = |value: &str| machine(&machine_with(table, &format!("{model}{} = {value}", key.name)));
            let bare = machine(&machine_with(table, &model));
            assert_ne!(with(key.example), bare, "`{}` of {}", key.name, table.title);
            if !key.default.is_empty() {
                assert_eq!(with(key.default), bare, "the default of `{}` of {}", key.name, table.title);
            }
        }
    }
}

/// A workload that uses everything once, with one line more below a header.
fn workload_with(header: &str, line: &str) -> String {
    let text = "version = 1\n[file.source]\n[lock.inode]\n[event.ready]\n[timer.frame]\n[program.hog]\n[program.p]\n[job.a]\n";
    let text = text.replace(header, &format!("{header}\n{line}"));
    let needs = [
        ("[file.source]", "size", "\"2MiB\""),
        ("[program.hog]", "do", "[{ cpu = \"2s\" }]"),
        ("[program.p]", "do", "[{ cpu = \"2s\" }]"),
        ("[job.a]", "unit", "\"shared\""),
        ("[job.a]", "program", "\"p\""),
    ];
    needs.iter().fold(text, |text, (below, key, value)| {
        let is_given = *below == header && line.starts_with(&format!("{key} ="));
        if is_given { text } else { text.replace(below, &format!("{below}\n{key} = {value}")) }
    })
}

#[test]
fn every_key_of_a_workload_is_read_and_has_the_default_that_the_table_says() {
    let headers = [
        (&WORKLOAD, "version = 1"),
        (&FILE, "[file.source]"),
        (&LOCK, "[lock.inode]"),
        (&EVENT, "[event.ready]"),
        (&TIMER, "[timer.frame]"),
        (&PROGRAM, "[program.p]"),
        (&JOB, "[job.a]"),
    ];
    for (table, header) in headers {
        for key in table.keys {
            if matches!(key.kind, Kind::Version | Kind::Text | Kind::Named(_)) {
                continue;
            }
            let with = |value: &str| workload(&workload_with(header, &format!("{} = {value}", key.name)));
            let bare = workload(&workload_with(header, ""));
            assert_ne!(with(key.example), bare, "`{}` of {}", key.name, table.title);
            if !key.default.is_empty() {
                assert_eq!(with(key.default), bare, "the default of `{}` of {}", key.name, table.title);
            }
        }
    }
}

#[test]
fn every_key_of_a_step_is_read_and_has_the_default_that_the_table_says() {
    let step = |keys: &str| {
        format!(
            "version = 1\n[file.source]\nsize = \"1MiB\"\n[file.objects]\nsize = \"1MiB\"\n[lock.inode]\n\
             [event.ready]\n[timer.frame]\n\
             [program.cc1]\ndo = [{{ cpu = \"1s\" }}]\n[program.p]\ndo = [{{ {keys} }}]\n[job.a]\nunit = \"shared\"\nprogram = \
             \"p\""
        )
    };
    for (verb, table) in &STEPS {
        let needs: Vec<String> = table
            .keys
            .iter()
            .filter(|key| key.default.is_empty())
            .map(|key| format!("{} = {}", key.name, key.example))
            .collect();
        // Eight at once are more than once in all.
        let needs = needs.join(", ") + if *verb == "run" { ", times = 8" } else { "" };
        if *verb == "wait" {
            // It has no key with a default, and stands within its lock.
            let within = format!("lock = \"inode\", do = [{{ {needs} }}]");
            assert!(matches!(
                workload(&step(&within)).programs[1].ops[1],
                Op::Wait { event: 0, lock: Some(0) }
            ));
            continue;
        }
        let bare = workload(&step(&needs));
        for key in table.keys.iter().filter(|key| !key.default.is_empty()) {
            let needs = if key.name == "times" { "run = \"cc1\"" } else { &needs };
            let with = |value: &str| workload(&step(&format!("{needs}, {} = {value}", key.name)));
            assert_ne!(with(key.example), bare, "`{}` of {}", key.name, table.title);
            if key.name == "times" {
                assert_eq!(with(key.default), workload(&step(needs)), "the default of `times`");
            } else {
                assert_eq!(with(key.default), bare, "the default of `{}` of {}", key.name, table.title);
            }
        }
    }
}

#[test]
fn a_machine_arrives() {
    let text = r#"
        version = 1
        shape = "nodes:2 cpus:4 memory:32MiB"
        [kernel]
        tick = "10ms"
        call_back = "entry"
        memory = "25%"
        [cache]
        line = "128B"
        [bus]
        transactions = 29500
        [contention]
        lock = "11.7%"
        stall = "1.77%"
        [disk.z]
        model = "hp97560"
        scale = 2
        order = "fair"
        [disk.a]
        model = "fixed"
        access = "3ms"
        rate = "5MiB/s"
        size = "1GiB"
        [disk.b]
        channels = 4
    "#;
    let hardware = machine(text);
    assert_eq!((hardware.machine.cpus.len(), hardware.machine.nodes.len()), (8, 2));
    let kernel = &hardware.kernel;
    assert_eq!(
        (kernel.tick_ns, kernel.call_back, kernel.memory_bytes),
        (10_000_000, CallBack::Entry, 16 << 20)
    );
    assert_eq!(hardware.cache, Some(Cache { bytes: 1 << 20, line_bytes: 128, miss_ns: 80 }));
    assert_eq!(hardware.bus, Some(Bus { transactions_per_ms: 29_500, ..Bus::DEFAULT }));
    assert_eq!(hardware.contention, Some(Contention { lock_demand: 117_000, stall: 17_700 }));
    let disk = |name: &str, model, order| Disk {
        name: name.to_owned(),
        model,
        order,
        weighs: false,
        depth: None,
        threshold_sectors: 64,
        half_life_ns: 500_000_000,
        batch: 2,
        batch_chosen: BatchChosen::AtCompletion,
    };
    // 512 B at 5 MiB/s are 97,656.25 ns, at 400 MiB/s 1,220.7 ns; 1 GiB is 2^21 sectors, 1 TiB 2^31.
    let fixed = DiskModel::Fixed { access_ns: 3_000_000, sector_ns: 97_656, sectors: 1 << 21 };
    let ssd =
        DiskModel::Ssd { channels: 4, read_ns: 80_000, write_ns: 20_000, sector_ns: 1_221, sectors: 1 << 31 };
    let expected = [
        disk("z", DiskModel::Hp97560 { scale: 2 }, Some(DiskOrder::Fair)),
        disk("a", fixed, None),
        disk("b", ssd, None),
    ];
    assert_eq!(hardware.disks, expected);
    let names: Vec<&str> = hardware.machine.disks.iter().map(|disk| disk.name.as_str()).collect();
    assert_eq!(names, ["z", "a", "b"]);
    assert_eq!(hardware.machine.disks[1].bytes, 1 << 30);
}

#[test]
fn every_word_of_a_choice_means_something_of_its_own() {
    for table in [&KERNEL, &DISK] {
        for key in table.keys {
            let Kind::Choice(words) = key.kind else { continue };
            let read = |word: &&str| machine(&machine_with(table, &format!("{} = \"{word}\"", key.name)));
            let machines: Vec<Hardware> = words.iter().map(read).collect();
            for (i, a) in machines.iter().enumerate() {
                assert!(machines[i + 1..].iter().all(|b| a != b), "{} of {}", words[i], key.name);
            }
        }
    }
}

#[test]
fn steps_are_flattened() {
    let text = r#"
        version = 1
        [file.z]
        size = "1MiB"
        [file.a]
        size = "1MiB"
        [lock.l]
        readers = true
        [program.main]
        do = [
          { repeat = 3, do = [
            { lock = "l", read = true, do = [{ read = "a", bytes = "4KiB", spread = "50%" }] },
            { repeat = 2, do = [{ cpu = "1ms", kernel = "30%", bus = 0.5 }] },
          ] },
          { repeat = 2, do = [{ run = "child", times = 4, at_once = 2 }] },
        ]
        [program.child]
        do = [{ sleep = "1s", spread = "exponential" }, { write = "z", bytes = "1KiB", sync = true, spread = "0%" }]
        [job.b]
        unit = "physics/batch"
        program = "main"
        disk = "d0"
        [job.a]
        unit = "physics"
        program = "child"
        start = "2s"
        count = 3
        every = "1min"
    "#;
    let workload = workload(text);
    let exact = |mean| Amount { mean, spread: Spread::None };
    let expected = [
        Op::Acquire { lock: 0, read: true },
        Op::Read {
            file: 1,
            bytes: Amount { mean: 4096, spread: Spread::Uniform(500_000) },
            random: false,
            direct: false,
        },
        Op::Release { lock: 0 },
        Op::Cpu { work: exact(1_000_000), kernel: 300_000, bus_per_ms: 500, cache_bytes: 0, core: 0 },
        Op::Again { to: 3, times: 2, counter: 1 },
        Op::Again { to: 0, times: 3, counter: 0 },
        Op::Run { program: 1, times: 4, at_once: 2, beside: false },
        Op::Again { to: 6, times: 2, counter: 0 },
    ];
    assert_eq!(workload.programs[0].ops, expected);
    let expected = [
        Op::Sleep { span: Amount { mean: 1_000_000_000, spread: Spread::Exponential } },
        Op::Write { file: 0, bytes: exact(1024), random: false, sync: true, direct: false },
    ];
    assert_eq!(workload.programs[1].ops, expected);
    let [b, a] = &workload.jobs[..] else { panic!("two jobs, in the order of the text") };
    assert_eq!((b.name.as_str(), Some(b.unit), b.disk), ("b", contract().find("physics/batch"), 1));
    assert_eq!((a.program, a.start_ns, a.count, a.every_ns), (1, 2_000_000_000, 3, 60_000_000_000));
}

#[test]
fn limits_of_numbers_are_kept() {
    let programs = |count: usize| {
        let one = |i: usize| format!("[program.p{i}]\ndo = [{{ cpu = \"1ms\" }}]\n");
        let text = "version = 1\n".to_owned() + &(0..count).map(one).collect::<String>();
        let diagnostics =
            parse_workload(&text, &contract(), &machine("version = 1\nshape = \"\"")).diagnostics;
        diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).map(|d| d.code).collect::<Vec<_>>()
    };
    assert_eq!(programs(super::limits::PROGRAMS_MAX), [] as [&str; 0]);
    assert_eq!(programs(super::limits::PROGRAMS_MAX + 1), ["too-many-names"]);
}

#[test]
fn the_largest_bus_rate_fits() {
    let bus = |rate: &str| {
        let text = workload_with("[program.p]", &format!("do = [{{ cpu = \"1s\", bus = {rate} }}]"));
        let machine = machine("version = 1\nshape = \"\"\n[disk.d0]");
        parse_workload(&text, &contract(), &machine).value.map(|workload| workload.programs[1].ops[0])
    };
    let Some(Op::Cpu { bus_per_ms, .. }) = bus("1000000") else { panic!("it is in the range") };
    assert_eq!(bus_per_ms, 1_000_000_000);
    assert!(bus("1000000.001").is_none());
}
