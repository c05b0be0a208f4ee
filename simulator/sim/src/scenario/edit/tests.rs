use super::*;

fn texts() -> Texts {
    Texts {
        contract: "version = 1\n[unit.physics]   # half of it\ntickets = 200\n[unit.physics.unit.batch]\nhard = { cpu = 1 }\n\
                   [unit.kernel]\nlend = {}\n"
            .to_owned(),
        machine: "version = 1\nshape = \"cpus:4\"\n[kernel]\ntick = \"4ms\"\n".to_owned(),
        workload: "version = 1\n[program.p]\ndo = [ { cpu = \"1s\" }, { repeat = 2, do = [ { cpu = \"2s\" } ] } ]\n\
                   [job.\"a.b\"]\nunit = \"physics\"\ncount = 3\n"
            .to_owned(),
    }
}

#[test]
fn short_forms_are_resolved() {
    for (written, key) in [
        ("tickets.physics", "contract:unit.physics.tickets"),
        ("tickets.physics/batch", "contract:unit.physics.unit.batch.tickets"),
        ("tickets.physics.cpu", "contract:unit.physics.tickets.cpu"),
        ("physics.hard.memory", "contract:unit.physics.hard.memory"),
        ("unit.physics.tickets", "contract:unit.physics.tickets"),
        ("machine.scheme", "contract:machine.scheme"),
        ("machine:kernel.slice", "machine:kernel.slice"),
        ("shape", "machine:shape"),
        ("job.\"a.b\".count", "workload:job.\"a.b\".count"),
        ("program.p.do.1.do.0.cpu", "workload:program.p.do.1.do.0.cpu"),
    ] {
        assert_eq!(texts().find(written).map(|key| key.to_string()), Ok(key.to_owned()), "{written}");
    }
}

#[test]
fn what_cannot_be_resolved_is_explained() {
    for (written, message) in [
        ("tickets.phisics", "there is no unit `phisics` in the contract; did you mean `physics`?"),
        ("contract:unit.x.tickets", "there is no unit `x` in the contract; it has "),
        ("job.sweep.count", "there is no job `sweep` in workload.toml; it has a.b"),
        ("machine:disk.d0.rate", "there is no disk `d0` in machine.toml; it has no disk"),
        (
            "kernel.slice",
            "`kernel.slice` is ambiguous: write `contract:unit.kernel.slice` or `machine:kernel.slice`",
        ),
        ("title", "`title` is ambiguous: write `machine:title` or `workload:title`"),
        ("kernal.slice", "no file of the scenario has a key or unit `kernal`; did you mean `kernel`? write "),
        ("physics..tickets", "`physics..tickets` is no key: write names with dots between them"),
        ("job.\"a.count", "`job.\"a.count` is no key: write names with dots between them"),
        ("", "`` is no key"),
    ] {
        let error = texts().find(written).unwrap_err();
        assert!(error.starts_with(message), "{written}: {error}");
    }
}

/// The changed lines of the file after an edit.
fn edited(written: &str, value: &str) -> Result<String, String> {
    let (before, mut after) = (texts(), texts());
    let key = after.find(written)?;
    after.set(&key, value)?;
    let old: Vec<&str> = before.of(key.part).lines().collect();
    let new = after.of(key.part).lines().filter(|line| !old.contains(line));
    Ok(new.collect::<Vec<_>>().join("\n").trim().to_owned())
}

#[test]
fn values_are_replaced_or_added() {
    for (written, value, lines) in [
        ("tickets.physics", "50", "tickets = 50"),
        ("physics.hard.memory", "1GiB", "hard.memory = \"1GiB\""),
        ("physics/batch.hard.cpu", "1.5", "hard = { cpu = 1.5 }"),
        ("physics/batch.hard.memory", "25%", "hard = { memory = \"25%\", cpu = 1 }"),
        ("contract:unit.kernel.lend.cpu", "false", "lend = { cpu = false}"),
        ("machine.scheme", "quota", "[machine]\nscheme = \"quota\""),
        ("machine:kernel.slice", "5ms", "slice = \"5ms\""),
        ("machine:kernel.tick", "1ms", "tick = \"1ms\""),
        ("machine:cache.bytes", "1MiB", "[cache]\nbytes = \"1MiB\""),
        ("machine:enforces", "irix", "enforces = \"irix\""),
        ("job.\"a.b\".count", "7", "count = 7"),
        (
            "program.p.do.1.do.0.cpu",
            "9s",
            "do = [ { cpu = \"1s\" }, { repeat = 2, do = [ { cpu = \"9s\" } ] } ]",
        ),
    ] {
        assert_eq!(edited(written, value).as_deref(), Ok(lines), "{written}");
    }
}

#[test]
fn what_is_no_single_value_is_refused() {
    for (written, message) in [
        (
            "contract:unit.physics",
            "`contract:unit.physics` is a table: name one of its keys, `contract:unit.physics.KEY`",
        ),
        (
            "program.p.do",
            "`workload:program.p.do` is a list: name one of its items by its index, `workload:program.p.do.0`",
        ),
        ("program.p.do.2.cpu", "`program.p.do` has no item `2`: its 2 items are numbered from 0"),
        ("tickets.physics.cpu", "`unit.physics.tickets` is a number, and has no `cpu`"),
    ] {
        assert_eq!(edited(written, "1"), Err(message.to_owned()), "{written}");
    }
    // Dotted keys alone define this table.
    let mut texts = Texts { machine: "version = 1\nkernel.tick = \"4ms\"\n".to_owned(), ..texts() };
    let key = texts.find("machine:kernel.slice").unwrap();
    let error =
        "`machine:kernel.slice` cannot be added to machine.toml: write it there first, with any value";
    assert_eq!(texts.set(&key, "5ms"), Err(error.to_owned()));
}

#[test]
fn numbers_stay_numbers() {
    for (value, literal_text) in [
        ("50", "50"),
        ("0.5", "0.5"),
        ("true", "true"),
        ("007", "\"007\""),
        ("1.", "\"1.\""),
        ("10ms", "\"10ms\""),
        ("\"2\"", "\"2\""),
        ("a\"b\\\n", "\"a\\\"b\\\\\\u000A\""),
    ] {
        assert_eq!(literal(value), literal_text);
    }
}
