//! Random scenarios, as texts, from a seed: all features of the three languages, in sizes that run in
//! milliseconds.
//!
//! Every scenario is valid. Locks are taken in the order of their numbers. No barrier and no run stands
//! inside a lock. The number of processes that run at once equals the number that a barrier waits for. So no
//! process can wait forever.

#![allow(dead_code, reason = "not every file of tests has use for both kinds")]

#[path = "../scene/chance.rs"]
mod chance;

use std::fmt::Write;

use chance::Chance;
use commonhold_contract::Discipline;

/// A scenario's files.
pub(crate) struct Texts {
    pub(crate) contract: String,
    pub(crate) machine: String,
    pub(crate) workload: String,
}

/// The scenario of a seed.
pub(crate) fn texts(seed: u64) -> Texts {
    let mut chance = Chance::of(seed);
    let machine = Machine::draw(&mut chance);
    let (contract, units) = contract(&mut chance);
    let pool = contract.contains("scheme = \"smp\"");
    // Drawn from a stream of its own, so that the other choices of a seed do not depend on it.
    let contract = placed(&mut Chance::of(seed ^ 0x5ea7), contract);
    Texts {
        contract,
        machine: machine.text(&mut chance, pool),
        workload: workload(&mut chance, &machine, &units),
    }
}

/// The scenario of a seed, sometimes of nested disciplines, on a machine whose nodes differ and whose CPUs go
/// offline and come online. All have the project's scheduler.
pub(crate) fn hotplugged(seed: u64) -> Texts {
    let mut chance = Chance::of(seed ^ 0x0ff1);
    let Texts { contract, machine, mut workload } = match chance.once_in(4) {
        true => nested(chance.one_of(&Discipline::ALL), chance.one_of(&Discipline::ALL), seed),
        false => texts(seed),
    };
    // Distances, and programs that access remote memory, are for two nodes.
    let nodes = match (machine.contains("[latency]"), machine.contains("nodes:2")) {
        (true, _) => 2,
        (false, two) => chance.from(1 + u64::from(two), 3),
    };
    let mut parts = |least| {
        let mut parts: Vec<u64> = (0..nodes).map(|_| chance.from(0, 4)).collect();
        let first = usize::try_from(chance.from(0, nodes - 1)).unwrap();
        parts[first] = parts[first].max(least);
        parts
    };
    let (cpus, memory) = (parts(2), parts(1));
    let memory_kib = memory_kib(&machine);
    let sum: u64 = memory.iter().sum();
    let list = |values: Vec<String>| values.join(",");
    let shape = format!(
        "cpus:{} memory:{}",
        list(cpus.iter().map(u64::to_string).collect()),
        list(memory.iter().map(|part| format!("{}KiB", memory_kib * part / sum)).collect())
    );
    let mut text = String::new();
    for line in machine.lines().filter(|line| !line.starts_with("scheduler")) {
        let _ = match line.starts_with("shape") {
            true => writeln!(text, "shape = \"{shape}\""),
            false => writeln!(text, "{line}"),
        };
    }
    workload += &go_and_come(&mut chance, cpus.iter().sum(), horizon_ms(&workload));
    Texts { contract, machine: text, workload }
}

/// All memory of a machine of this generator, in KiB.
fn memory_kib(machine: &str) -> u64 {
    let shape = machine.lines().find(|line| line.starts_with("shape")).unwrap();
    let shape = shape.split('"').nth(1).unwrap();
    commonhold_machine::Machine::synthetic(shape).unwrap().memory_bytes() / 1024
}

fn horizon_ms(workload: &str) -> u64 {
    let horizon = workload.split('"').nth(1).unwrap();
    let (number, unit) = horizon.split_at(horizon.find(|c: char| !c.is_ascii_digit()).unwrap());
    number.parse::<u64>().unwrap() * if unit == "s" { 1000 } else { 1 }
}

/// Changes of the CPUs that are online.
fn go_and_come(chance: &mut Chance, cpus: u64, horizon_ms: u64) -> String {
    let (mut text, mut at_ms, mut online) = (String::new(), 0, vec![true; usize::try_from(cpus).unwrap()]);
    let latest = chance.one_of(&[0, 1, 30, 400]);
    for change in 0..chance.from(1, 8) {
        at_ms += latest + chance.one_of(&[0, 1, 40, 300, 1500]);
        let count = online.iter().filter(|online| **online).count();
        let goes = count == online.len() || count > 1 && chance.once_in(2);
        let mut chosen: Vec<usize> =
            (0..online.len()).filter(|cpu| online[*cpu] == goes && chance.once_in(2)).collect();
        if goes && chosen.len() == count {
            chosen.pop();
        }
        if at_ms >= horizon_ms || chosen.is_empty() {
            continue;
        }
        for cpu in &chosen {
            online[*cpu] = !goes;
        }
        let (key, list) = (if goes { "offline" } else { "online" }, chosen.iter().map(usize::to_string));
        let list = list.collect::<Vec<_>>().join(",");
        let _ = writeln!(text, "[cpus.c{change}]\nat = \"{at_ms}ms\"\n{key} = \"{list}\"");
    }
    text
}

/// A minute of endless work in a unit of one discipline with sub-units of others, the first of which has that
/// of `inner`.
///
/// Tasks that always compute, and tasks that often sleep, share few CPUs. So a discipline that can starve a
/// task does so here. Disks, memory and locks play no role.
pub(crate) fn nested(outer: Discipline, inner: Discipline, seed: u64) -> Texts {
    let mut chance = Chance::of(seed ^ 0x7e57);
    let mut units = vec![("u".to_owned(), outer, chance.from(0, 2))];
    for sub in 0..chance.from(1, 3) {
        let discipline = if sub == 0 { inner } else { chance.one_of(&Discipline::ALL) };
        units.push((format!("u/v{sub}"), discipline, chance.from(1, 4)));
    }
    if chance.once_in(3) {
        units.push(("u/v0/w".to_owned(), chance.one_of(&Discipline::ALL), chance.from(1, 3)));
    }
    if chance.once_in(2) {
        units.push(("beside".to_owned(), chance.one_of(&Discipline::ALL), chance.from(1, 4)));
    }
    let mode = chance.one_of(&["", "cpu = \"partition\"\n", "cpu = \"proportional\"\n"]);
    let mut contract = format!("version = 1\n[machine]\n{mode}");
    let mut workload = "version = 1\nhorizon = \"60s\"\n\
        [program.busy]\ndo = [{ repeat = \"forever\", do = [{ cpu = \"10s\" }] }]\n"
        .to_owned();
    for (name, cpu, sleep) in [("brief", 3, 1), ("long", 40, 7)] {
        let steps = format!("{{ cpu = \"{cpu}ms\" }}, {{ sleep = \"{sleep}ms\", spread = \"30%\" }}");
        let _ = writeln!(workload, "[program.{name}]\ndo = [{{ repeat = \"forever\", do = [{steps}] }}]");
    }
    for (number, (path, discipline, tasks)) in units.iter().enumerate() {
        let name = path.replace('/', ".unit.");
        let _ =
            write!(contract, "[unit.{name}]\ndiscipline = \"{discipline}\"\n{}", nested_keys(&mut chance));
        for task in 0..*tasks {
            let program = chance.one_of(&["busy", "busy", "brief", "long"]);
            let start = chance.one_of(&[0, 0, 3, 8000]);
            let _ = writeln!(
                workload,
                "[job.j{number}-{task}]\nunit = \"{path}\"\nprogram = \"{program}\"\nstart = \"{start}ms\"\n\
                 background = true"
            );
        }
    }
    let (cpus, slice) = (chance.from(1, 3), chance.one_of(&[5, 20, 30]));
    let machine = format!(
        "version = 1\nshape = \"cpus:{cpus} memory:64MiB\"\n\
         [kernel]\nslice = \"{slice}ms\"\ntick = \"1ms\"\ncall_back = \"now\"\n"
    );
    Texts { contract, machine, workload }
}

fn nested_keys(chance: &mut Chance) -> String {
    let mut text = format!("tickets = {}\n", chance.one_of(&[50, 100, 300]));
    if chance.once_in(3) {
        text += "lend = { cpu = false }\n";
    }
    // Without effect if the parent's discipline has no deadlines.
    if chance.once_in(2) {
        text += "deadline = { period = \"100ms\", budget = \"5ms\", misses = 1, of = 10 }\n";
    }
    text
}

/// The facts of a machine on which the workload depends.
struct Machine {
    cpus: u64,
    nodes: u64,
    memory_kib: u64,
    disks: u64,
    bus: bool,
}

impl Machine {
    fn draw(chance: &mut Chance) -> Machine {
        let nodes = if chance.once_in(4) { 2 } else { 1 };
        Machine {
            cpus: chance.from(1, 12 / nodes),
            nodes,
            // From so little memory that nearly every program pages to enough memory for all.
            memory_kib: chance.one_of(&[1024, 2048, 4096, 8192, 16_384, 65_536]) / nodes,
            disks: chance.from(1, 3),
            bus: chance.once_in(3),
        }
    }

    /// `pool`: without isolation, so that it may have a baseline's scheduler.
    fn text(&self, chance: &mut Chance, pool: bool) -> String {
        let Machine { cpus, nodes, memory_kib, disks, bus } = self;
        let enforces = chance.one_of(&["irix", "irix", "linux"]);
        let mut text = format!(
            "version = 1\nshape = \"nodes:{nodes} cpus:{cpus} memory:{memory_kib}KiB\"\nenforces = \"{enforces}\"\n[kernel]\n"
        );
        let frame_kib = chance.one_of(&[4, 4, 4, 16]);
        let tick_ms = chance.one_of(&[0, 1, 4, 10]);
        let call_back = if tick_ms == 0 { "now" } else { chance.one_of(&["now", "tick", "entry"]) };
        let lines = [
            format!("frame = \"{frame_kib}KiB\"\ntick = \"{tick_ms}ms\"\ncall_back = \"{call_back}\""),
            format!("slice = \"{}ms\"", chance.one_of(&[1, 5, 20, 30])),
            format!("switch = \"{}us\"", chance.one_of(&[0, 2, 20])),
            format!("ipi = \"{}us\"", chance.one_of(&[0, 1, 10, 300])),
            format!("fault = \"{}us\"", chance.one_of(&[0, 1, 20])),
            format!("request = \"{}us\"", chance.one_of(&[0, 5, 150])),
            format!("fork = \"{}us\"", chance.one_of(&[0, 300, 2000])),
            format!("memory = \"{}%\"", chance.one_of(&[1, 4, 20])),
            format!("cluster = {}", chance.one_of(&[1, 4, 8])),
            format!("memory_period = \"{}ms\"", chance.one_of(&[10, 100, 300])),
            format!("read_ahead = {}", chance.from(0, 3)),
            format!("write_behind = {}", chance.from(1, 4)),
            format!("request_sectors = {}", chance.one_of(&[32, 78, 256])),
            format!("dirty_limit = \"{}%\"", chance.one_of(&[0, 1, 10, 50])),
            format!("dirty_age = \"{}ms\"", chance.one_of(&[0, 50, 1000, 30_000])),
        ];
        text += &lines.join("\n");
        text += "\n";
        if pool {
            let _ = writeln!(
                text,
                "scheduler = \"{}\"",
                chance.one_of(&["commonhold", "irix-decay", "linux-2.4", "irix-decay", "linux-2.4"])
            );
        }
        if chance.once_in(2) {
            let bytes = chance.one_of(&[64, 1024]);
            let _ = writeln!(text, "[cache]\nbytes = \"{bytes}KiB\"\nline = \"128B\"\nmiss = \"500ns\"");
        }
        if *nodes > 1 && chance.once_in(2) {
            let far = chance.one_of(&[
                "remote = \"80ns\"",
                "remote = \"200ns\"",
                "distances = [[10, 21], [13, 10]]",
            ]);
            let _ = writeln!(text, "[latency]\n{far}");
        }
        if *bus {
            let _ = writeln!(text, "[bus]\ntransactions = {}", chance.one_of(&[5000, 29_500]));
        }
        if chance.once_in(3) {
            let (lock, stall) = (chance.one_of(&[0, 12, 60]), chance.one_of(&[0, 2, 20]));
            let _ = writeln!(text, "[contention]\nlock = \"{lock}%\"\nstall = \"{stall}%\"");
        }
        for disk in 0..*disks {
            let _ = write!(text, "[disk.d{disk}]\n{}", disk_keys(chance));
        }
        text
    }
}

fn disk_keys(chance: &mut Chance) -> String {
    let mut text = match chance.from(0, 2) {
        0 => format!("model = \"hp97560\"\nscale = {}\n", chance.one_of(&[1, 2, 20])),
        1 => format!(
            "model = \"fixed\"\naccess = \"{}us\"\nrate = \"{}MiB/s\"\nsize = \"{}MiB\"\n",
            chance.one_of(&[0, 500, 5000]),
            chance.one_of(&[1, 10, 400]),
            chance.one_of(&[256, 1024])
        ),
        _ => format!(
            "model = \"ssd\"\nchannels = {}\nread = \"{}us\"\nwrite = \"20us\"\nsize = \"1GiB\"\n",
            chance.one_of(&[1, 2, 8]),
            chance.one_of(&[0, 80])
        ),
    };
    if chance.once_in(2) {
        let order = chance.one_of(&["position", "isolation", "fair", "batched", "linux", "yfq"]);
        let _ = writeln!(text, "order = \"{order}\"");
    }
    if chance.once_in(2) {
        let _ = writeln!(text, "threshold = {}", chance.one_of(&[0, 64, 1000]));
    }
    text
}

/// A contract, and the paths of units that jobs can be in.
fn contract(chance: &mut Chance) -> (String, Vec<String>) {
    let scheme = chance.one_of(&["isolate", "isolate", "isolate", "quota", "smp"]);
    let mut text = format!("version = 1\n[machine]\nscheme = \"{scheme}\"\n");
    if chance.once_in(3) {
        let _ = writeln!(text, "cpu = \"{}\"", chance.one_of(&["partition", "proportional"]));
    }
    if chance.once_in(2) {
        let _ = writeln!(text, "rotation = \"{}ms\"", chance.one_of(&[10, 50, 500]));
    }
    if chance.once_in(3) {
        let _ = writeln!(text, "reserve = \"{}%\"", chance.one_of(&[0, 2, 20]));
    }
    let mut paths = Vec::new();
    for unit in 0..chance.from(1, 6) {
        let name = format!("u{unit}");
        let _ = write!(text, "[unit.{name}]\n{}", unit_keys(chance));
        if chance.once_in(4) {
            for inner in 0..chance.from(1, 3) {
                let _ = write!(text, "[unit.{name}.unit.v{inner}]\n{}", unit_keys(chance));
                paths.push(format!("{name}/v{inner}"));
            }
        } else {
            paths.push(name);
        }
    }
    if chance.once_in(6) {
        paths.push("shared".to_owned());
    }
    (text, paths)
}

/// Whether and how threads are placed in pools.
fn placed(chance: &mut Chance, contract: String) -> String {
    if !chance.once_in(3) {
        return contract;
    }
    let mut text = String::new();
    for line in contract.lines() {
        let _ = writeln!(text, "{line}");
        if line == "[machine]" {
            let pools = chance.one_of(&["1", "2", "3", "4", "\"node\"", "\"auto\""]);
            let placement = chance.one_of(&["worst-fit", "first-fit", "best-fit", "fewest-jobs", "near"]);
            let repartition = chance.once_in(2);
            let _ =
                write!(text, "pools = {pools}\nplacement = \"{placement}\"\nrepartition = {repartition}\n");
        } else if line.starts_with("[unit.") && !chance.once_in(4) {
            let _ = writeln!(text, "job = \"{}\"", chance.one_of(&["tree", "process", "unit"]));
        }
    }
    text
}

fn unit_keys(chance: &mut Chance) -> String {
    let mut text = String::new();
    if chance.once_in(2) {
        let _ = writeln!(text, "tickets = {}", chance.one_of(&[10, 50, 200, 300]));
    }
    for key in ["lend", "borrow"] {
        if chance.once_in(3) {
            let value = chance.one_of(&[
                "false",
                "{ cpu = false }",
                "{ memory = false }",
                "{ disk = false }",
                "{ cpu = 1, memory = \"2MiB\", disk = \"20%\" }",
            ]);
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    if chance.once_in(5) {
        let _ = writeln!(text, "hard = {{ cpu = \"10%\", memory = \"5%\" }}");
    }
    if chance.once_in(5) {
        let _ = writeln!(text, "limit = {{ memory = \"{}%\" }}", chance.one_of(&[20, 50, 90]));
    }
    text
}

/// What the steps of a program may use.
struct Means<'a> {
    machine: &'a Machine,
    files: u64,
    locks: u64,
}

fn workload(chance: &mut Chance, machine: &Machine, units: &[String]) -> String {
    let mut text = format!("version = 1\nhorizon = \"{}ms\"\n", chance.one_of(&[1500, 5000, 20_000]));
    let means = Means { machine, files: chance.from(1, 4), locks: chance.from(0, 2) };
    for file in 0..means.files {
        let _ = write!(text, "[file.f{file}]\n{}", file_keys(chance, machine));
    }
    for lock in 0..means.locks {
        let (readers, inherit) = (chance.once_in(2), chance.once_in(2));
        let _ = writeln!(text, "[lock.l{lock}]\nreaders = {readers}");
        if chance.once_in(3) {
            let unfair = chance.once_in(2);
            let line_ns = chance.one_of(&[0, 200, 40_000]);
            let _ = writeln!(text, "spins = true\nunfair = {unfair}\nline = \"{line_ns}ns\"");
        } else {
            let _ = writeln!(text, "inherit = {inherit}");
        }
    }
    let parties = chance.from(2, 5);
    let leaf = steps(chance, &means, 0, 0);
    let _ = write!(text, "[program.leaf]\n{}do = [{leaf}]\n", program_keys(chance, machine));
    let (before, after) = (steps(chance, &means, 1, 0), steps(chance, &means, 1, 0));
    let wait = chance.one_of(&[
        "",
        ", spin = true",
        ", spin = true, spin_for = \"3ms\"",
        ", spin = true, spin_for = \"50us\"",
    ]);
    let pieces = chance.from(1, 9);
    let party = format!(
        "{before}, {{ barrier = {parties}{wait} }}, {after}, {{ barrier = {parties}{wait} }}, \
         {{ pieces = {pieces}, do = [{{ cpu = \"1ms\" }}] }}"
    );
    let _ = write!(text, "[program.party]\n{}do = [{party}]\n", program_keys(chance, machine));
    let make = make(chance, &means, parties);
    let _ = write!(text, "[program.make]\n{}do = [{make}]\n", program_keys(chance, machine));
    let round = steps(chance, &means, 1, 0);
    text += "[event.given]\ncounts = true\n[event.heard]\n[timer.own]\n[timer.shared]\nshared = true\n";
    let rest = periodic(chance);
    let endless = format!("{{ repeat = \"forever\", do = [{round}, {rest}] }}");
    let _ = write!(text, "[program.endless]\n{}do = [{endless}]\n", program_keys(chance, machine));
    text + &jobs(chance, machine, units, parties) + &changes(chance, units)
}

/// Changes of tickets. Tickets are never transferred: a transfer of tickets that a unit lacks would be an
/// error.
fn changes(chance: &mut Chance, units: &[String]) -> String {
    let mut text = String::new();
    let declared: Vec<&str> = units.iter().map(String::as_str).filter(|unit| *unit != "shared").collect();
    if declared.is_empty() || !chance.once_in(3) {
        return text;
    }
    for change in 0..chance.from(1, 4) {
        let (unit, at) = (chance.one_of(&declared), chance.one_of(&[0, 50, 333, 1200]));
        let resource = chance.one_of(&["cpu", "memory", "disk"]);
        let tickets = chance.one_of(&[1, 70, 1000]);
        let _ = writeln!(
            text,
            "[change.c{change}]\nat = \"{at}ms\"\nunit = \"{unit}\"\nresource = \"{resource}\"\ntickets = {tickets}"
        );
    }
    text
}

fn jobs(chance: &mut Chance, machine: &Machine, units: &[String], parties: u64) -> String {
    let mut text = String::new();
    for job in 0..chance.from(1, 6) {
        let unit = chance.one_of(&units.iter().map(String::as_str).collect::<Vec<_>>());
        let program = chance.one_of(&["leaf", "make", "make", "party", "endless"]);
        let count = if program == "party" { parties } else { chance.from(1, 3) };
        let (start, every) = (chance.one_of(&[0, 0, 7, 300]), chance.one_of(&[0, 1, 100]));
        let background = program == "endless" || chance.once_in(10);
        let disk = chance.from(0, machine.disks - 1);
        let _ = writeln!(
            text,
            "[job.j{job}]\nunit = \"{unit}\"\nprogram = \"{program}\"\ncount = {count}\nstart = \"{start}ms\"\n\
             every = \"{every}ms\"\nbackground = {background}\ndisk = \"d{disk}\""
        );
    }
    text
}

fn file_keys(chance: &mut Chance, machine: &Machine) -> String {
    let mut text = format!("size = \"{}KiB\"\n", chance.one_of(&[1, 64, 500, 2000]));
    let shared = chance.once_in(2);
    if shared || chance.once_in(3) {
        let _ = writeln!(text, "shared = {shared}\ndisk = \"d{}\"", chance.from(0, machine.disks - 1));
    }
    if chance.once_in(3) {
        let _ = writeln!(text, "gap = \"{}KiB\"", chance.one_of(&[64, 1000]));
    }
    if chance.once_in(2) {
        let _ = writeln!(text, "fragment = \"{}KiB\"", chance.one_of(&[1, 8, 100]));
    }
    text
}

fn program_keys(chance: &mut Chance, machine: &Machine) -> String {
    let mut text = String::new();
    if chance.once_in(2) {
        let part = chance.one_of(&[2, 8, 30]);
        let kib = machine.memory_kib / part;
        let _ = writeln!(text, "memory = \"{kib}KiB\"\nreuse = \"{}ms\"", chance.one_of(&[1, 20, 300]));
        let _ = writeln!(text, "resident = {}", chance.once_in(3));
    }
    if chance.once_in(3) {
        let _ = writeln!(text, "hot = \"{}KiB\"", chance.one_of(&[1, 32, 4096]));
    }
    if machine.nodes > 1 && chance.once_in(2) {
        let _ = writeln!(text, "stalled = \"{}%\"", chance.one_of(&[10, 60, 100]));
    }
    text
}

/// How a round of an endless program ends: a sleep, a timer, or both with signals. Each process takes only
/// signals that it gave before, so none waits forever; a signal of `heard` is heard by nobody.
fn periodic(chance: &mut Chance) -> String {
    let us = chance.one_of(&[1000, 5000, 20_000]);
    let (timer, catch_up) = (chance.one_of(&["own", "shared"]), chance.once_in(2));
    let timer = format!("{{ timer = \"{timer}\", period = \"{us}us\", catch_up = {catch_up} }}");
    match chance.from(0, 3) {
        0 => format!("{{ sleep = \"5ms\" }}, {{ busy = \"{us}us\", spread = \"30%\" }}"),
        1 => format!("{timer}, {{ sleep = \"1ms\" }}"),
        2 => format!(
            "{{ repeat = \"forever\", for = \"30ms\", do = [{{ cpu = \"{us}us\" }}, {timer}] }}, {{ sleep = \"5ms\" }}"
        ),
        _ => format!(
            "{{ signal = \"given\" }}, {{ signal = \"heard\", all = {catch_up} }}, {{ wait = \"given\" }}, {timer}, \
             {{ sleep = \"1ms\" }}"
        ),
    }
}

/// A program that runs others.
fn make(chance: &mut Chance, means: &Means, parties: u64) -> String {
    let (before, after) = (steps(chance, means, 1, 0), steps(chance, means, 1, 0));
    let times = chance.from(1, 8);
    let at_once = chance.from(1, times.min(4));
    let run = format!("{{ run = \"leaf\", times = {times}, at_once = {at_once} }}");
    let rounds = chance.from(1, 2) * parties;
    let meet = match chance.once_in(2) {
        true => format!(", {{ run = \"party\", times = {rounds}, at_once = {parties} }}"),
        false => String::new(),
    };
    format!("{before}, {run}{meet}, {after}")
}

/// Some steps. They wait for other processes only at locks whose numbers are `lock` or higher.
fn steps(chance: &mut Chance, means: &Means, depth: u64, lock: u64) -> String {
    let all: Vec<String> = (0..chance.from(1, 4)).map(|_| step(chance, means, depth, lock)).collect();
    all.join(", ")
}

fn step(chance: &mut Chance, means: &Means, depth: u64, lock: u64) -> String {
    let file = chance.from(0, means.files - 1);
    let kib = chance.one_of(&[1, 4, 13, 64, 300]);
    let random = chance.once_in(2);
    let spread = chance.one_of(&["0%", "30%", "100%", "exponential"]);
    match chance.from(0, 9) {
        0..=2 => {
            let us = chance.one_of(&[1, 30, 700, 4000, 15_000]);
            let bus = if means.machine.bus { chance.one_of(&[0, 1, 5]) } else { 0 };
            let kernel = chance.one_of(&[0, 30, 100]);
            format!("{{ cpu = \"{us}us\", spread = \"{spread}\", kernel = \"{kernel}%\", bus = {bus} }}")
        }
        3 | 4 => {
            let direct = chance.once_in(6);
            format!(
                "{{ read = \"f{file}\", bytes = \"{kib}KiB\", random = {random}, direct = {direct}, \
                 spread = \"{spread}\" }}"
            )
        }
        5 => {
            let (sync, direct) = (chance.once_in(3), chance.once_in(6));
            format!(
                "{{ write = \"f{file}\", bytes = \"{kib}KiB\", random = {random}, sync = {sync}, direct = {direct} }}"
            )
        }
        6 => format!("{{ metadata = \"f{file}\", delayed = {} }}", chance.once_in(2)),
        7 => format!("{{ sleep = \"{}us\", spread = \"{spread}\" }}", chance.one_of(&[1, 400, 6000])),
        8 if depth < 3 => {
            format!("{{ repeat = {}, do = [{}] }}", chance.from(1, 5), steps(chance, means, depth + 1, lock))
        }
        9 if depth < 3 && lock < means.locks => {
            let held = chance.from(lock, means.locks - 1);
            let read = chance.once_in(2);
            format!(
                "{{ lock = \"l{held}\", read = {read}, do = [{}] }}",
                steps(chance, means, depth + 1, held + 1)
            )
        }
        _ => "{ cpu = \"500us\" }".to_owned(),
    }
}
