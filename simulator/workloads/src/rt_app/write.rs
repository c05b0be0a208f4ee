//! Writes a workload as a use case of rt-app.
//!
//! Each job becomes a task, with an instance for each copy. A program's loops become the loop of the thread
//! and those of its phases; loops inside these are unrolled. Every key of a phase ends with a number, so that
//! rt-app reads the file without `workgen`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use commonhold_contract::Contract;
use commonhold_sim::scenario::{Job, Op, Program, Spread, Workload};

use super::structure::private_mutex;

/// The most events of a task, and the most copies of a job that start one after another.
const EVENTS_MAX: usize = 10_000;
const COPIES_MAX: u32 = 64;
/// The longest time that rt-app reads: microseconds in 31 bits.
const MICROS_MAX: u64 = i32::MAX as u64;

/// The result of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The text of the use case.
    pub text: String,
    /// What the use case does not say as the workload does, each once, in the order of jobs and steps.
    pub remarks: Vec<String>,
}

/// Writes a workload. `taskgroups`: each task is in a task group named after its unit.
pub fn export(workload: &Workload, contract: &Contract, taskgroups: bool) -> Exported {
    let mut writer = Writer {
        workload,
        remarks: Vec::new(),
        names: workload.jobs.iter().map(|job| job.name.clone()).collect(),
        forked: BTreeMap::new(),
        unwritten: BTreeMap::new(),
    };
    // A fork of a program that a task runs anyway names that task, if it is one for all copies.
    for job in workload.jobs.iter().filter(|job| job.every_ns == 0) {
        writer.forked.entry(job.program).or_insert_with(|| job.name.clone());
    }
    let mut tasks = Vec::new();
    for job in &workload.jobs {
        let unit = contract.unit(job.unit).path.as_str();
        let group = taskgroups.then(|| format!("/{unit}"));
        tasks.extend(writer.job(job, group.as_deref()));
    }
    let units: BTreeSet<_> = workload.jobs.iter().map(|job| job.unit.index()).collect();
    if units.len() > 1 && !taskgroups {
        writer.remark("all tasks are in one task group: --taskgroups writes one for each unit".to_owned());
    }
    // Forked programs that are no job of their own. Writing one may find further forks.
    while let Some((program, name)) = writer.unwritten.pop_first() {
        let body = writer.body(program, &name, 1);
        tasks.push(task_text(&name, &["\"instance\" : 0".to_owned()], &body));
    }
    writer.whole();
    let text = format!(
        "{{\n\t\"tasks\" : {{\n{}\n\t}},\n\t\"global\" : {{\n{}\n\t}}\n}}\n",
        tasks.join(",\n"),
        writer.global()
    );
    Exported { text, remarks: writer.remarks }
}

/// An event of a phase, or a loop.
#[derive(Debug, Clone)]
enum Item {
    /// The event's key without a number, and its value in JSON.
    Event(&'static str, String),
    /// The iterations, 0 for endless ones.
    Loop(u32, Vec<Item>),
}

struct Writer<'w> {
    workload: &'w Workload,
    remarks: Vec<String>,
    /// The names of all tasks, and of all jobs.
    names: BTreeSet<String>,
    /// By program: the task that a fork of it names.
    forked: BTreeMap<u32, String>,
    /// The programs of which the task is still to be written, with its name.
    unwritten: BTreeMap<u32, String>,
}

impl Writer<'_> {
    fn remark(&mut self, remark: String) {
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    /// A name that no other task has.
    fn unique(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut number = 1u32;
        while !self.names.insert(name.clone()) {
            number += 1;
            name = format!("{wanted}-{number}");
        }
        name
    }

    /// The tasks of a job: one, or one for each copy if the copies start one after another.
    fn job(&mut self, job: &Job, group: Option<&str>) -> Vec<String> {
        let name = &job.name;
        if job.deadline_ns.is_some() {
            self.remark(format!("job `{name}`: its `deadline` is left out"));
        }
        let starts = if job.every_ns == 0 { 1 } else { job.count.min(COPIES_MAX) };
        if starts > 1 && starts < job.count {
            self.remark(format!("job `{name}`: only the first {COPIES_MAX} of its {} copies", job.count));
        }
        let mut tasks = Vec::new();
        for copy in 0..starts {
            let task = if starts > 1 { self.unique(&format!("{name}-{copy}")) } else { name.clone() };
            let instances = if job.every_ns == 0 { job.count } else { 1 };
            let start_ns = job.start_ns.saturating_add(job.every_ns.saturating_mul(u64::from(copy)));
            let mut head = vec![format!("\"instance\" : {instances}")];
            if start_ns > 0 {
                let micros = self.micros(start_ns, &format!("job `{name}`: its start"));
                head.push(format!("\"delay\" : {micros}"));
            }
            head.extend(group.map(|group| format!("\"taskgroup\" : {}", quoted(group))));
            let body = self.body(job.program, &task, instances);
            tasks.push(task_text(&task, &head, &body));
        }
        tasks
    }

    /// The loop of the thread, 0 for an endless one, and its phases.
    fn body(&mut self, program: u32, task: &str, instances: u32) -> (u32, Vec<(u32, Vec<Item>)>) {
        let program = &self.workload.programs[program as usize];
        let mut items = self.items(program, task, instances);
        let times = match &mut items[..] {
            [Item::Loop(times, inner)] => {
                let times = *times;
                items = core::mem::take(inner);
                times
            }
            _ => 1,
        };
        let mut phases: Vec<(u32, Vec<Item>)> = Vec::new();
        let mut budget = EVENTS_MAX;
        for item in items {
            match item {
                Item::Loop(times, inner) => {
                    let mut flat = Vec::new();
                    self.unroll(inner, &mut flat, &mut budget, program);
                    phases.push((times, flat));
                }
                event @ Item::Event(..) => match phases.last_mut() {
                    Some((1, events)) => events.push(event),
                    _ => phases.push((1, vec![event])),
                },
            }
        }
        phases.retain(|(_, events)| !events.is_empty());
        if phases.is_empty() {
            self.remark(format!("program `{}` has no step that rt-app can say", program.name));
            phases.push((1, vec![Item::Event("sleep", "0".to_owned())]));
        }
        (times, phases)
    }

    /// Writes out the iterations of loops in a phase.
    fn unroll(&mut self, items: Vec<Item>, flat: &mut Vec<Item>, budget: &mut usize, program: &Program) {
        for item in items {
            match item {
                Item::Loop(times, inner) => {
                    for iteration in 0..times.max(1) {
                        if times == 0 || *budget < inner.len() {
                            let message = "a loop inside two others is left out after";
                            self.remark(format!(
                                "program `{}`: {message} {} iterations",
                                program.name,
                                iteration + 1
                            ));
                            self.unroll(inner, flat, budget, program);
                            break;
                        }
                        self.unroll(inner.clone(), flat, budget, program);
                    }
                }
                event @ Item::Event(..) => {
                    *budget = budget.saturating_sub(1);
                    flat.push(event);
                }
            }
        }
    }

    /// The events of a program, with its loops.
    fn items(&mut self, program: &Program, task: &str, instances: u32) -> Vec<Item> {
        // Each item with the index of its first op.
        let mut items: Vec<(usize, Item)> = Vec::new();
        let mut skip = false;
        for (index, op) in program.ops.iter().enumerate() {
            if core::mem::take(&mut skip) {
                continue;
            }
            if let Op::Again { to, times, .. } = *op {
                let first = items.partition_point(|(at, _)| *at < to as usize);
                let inner: Vec<Item> = items.drain(first..).map(|(_, item)| item).collect();
                // Nothing to repeat: all its steps are left out.
                if !inner.is_empty() {
                    items.push((to as usize, Item::Loop(times, inner)));
                }
                continue;
            }
            // The lock that a wait takes again is part of its event.
            skip = matches!(op, Op::Wait { lock: Some(_), .. });
            let events = self.op(op, program, task, instances, index);
            items.extend(events.into_iter().map(|(key, value)| (index, Item::Event(key, value))));
        }
        items.into_iter().map(|(_, item)| item).collect()
    }

    fn op(
        &mut self,
        op: &Op,
        program: &Program,
        task: &str,
        instances: u32,
        index: usize,
    ) -> Vec<(&'static str, String)> {
        let of = format!("program `{}`", program.name);
        let lock = |number: u16| quoted(&self.workload.locks[usize::from(number)].name);
        match *op {
            Op::Cpu { work, kernel, bus_per_ms, cache_bytes, core } => {
                let mut left_out = Vec::new();
                for (key, is_set) in [
                    ("spread", work.spread != Spread::None),
                    ("kernel", kernel > 0),
                    ("bus", bus_per_ms > 0),
                    ("cache", cache_bytes > 0),
                    ("core", core > 0),
                ] {
                    left_out.extend(is_set.then_some(key));
                }
                if !left_out.is_empty() {
                    self.remark(format!("{of}: `cpu` without its {}", left_out.join(", ")));
                }
                // A nanosecond stands for no work at all.
                if work.mean < 1_000 {
                    return Vec::new();
                }
                vec![("run", self.micros(work.mean, &of).to_string())]
            }
            Op::Sleep { span } | Op::Busy { span } => {
                if span.spread != Spread::None {
                    self.remark(format!("{of}: times without their `spread`"));
                }
                let key = if matches!(op, Op::Busy { .. }) { "runtime" } else { "sleep" };
                vec![(key, self.micros(span.mean, &of).to_string())]
            }
            Op::Timer { timer, period_ns, catch_up } => {
                let timer = &self.workload.timers[usize::from(timer)];
                let is_unique = timer.name.starts_with("unique");
                let name = match (timer.shared, is_unique) {
                    (false, false) => format!("unique-{}", timer.name),
                    (true, true) => format!("shared-{}", timer.name),
                    _ => timer.name.clone(),
                };
                let mode = if catch_up { "absolute" } else { "relative" };
                let period = self.micros(period_ns, &of);
                vec![(
                    "timer",
                    format!(
                        "{{ \"ref\" : {}, \"period\" : {period}, \"mode\" : \"{mode}\" }}",
                        quoted(&name)
                    ),
                )]
            }
            Op::Acquire { lock: number, read } => {
                let name = lock(number);
                if read {
                    self.remark(format!("{of}: a reader locks a mutex alone"));
                }
                vec![("lock", name)]
            }
            Op::Release { lock: number } => vec![("unlock", lock(number))],
            Op::Wait { event, lock: held } => {
                let event = &self.workload.events[usize::from(event)];
                let name = quoted(&event.name);
                match held {
                    Some(held) => {
                        vec![("wait", format!("{{ \"ref\" : {name}, \"mutex\" : {} }}", lock(held)))]
                    }
                    None if event.counts => vec![("sem_wait", name)],
                    None if event.name == task => vec![("suspend", name)],
                    None => {
                        let mutex = quoted(&private_mutex(&event.name));
                        let wait = format!("{{ \"ref\" : {name}, \"mutex\" : {mutex} }}");
                        vec![("lock", mutex.clone()), ("wait", wait), ("unlock", mutex)]
                    }
                }
            }
            Op::Signal { event, all } => {
                let event = &self.workload.events[usize::from(event)];
                let key = match (event.counts, all) {
                    (true, _) => "sem_post",
                    (false, true) => "broad",
                    (false, false) => "signal",
                };
                let name = quoted(&event.name);
                if event.counts && all {
                    self.remark(format!("{of}: a semaphore's signal wakes one that waits, and not all"));
                }
                vec![(key, name)]
            }
            Op::Barrier { parties, event, spin_ns } => {
                if spin_ns > 0 {
                    self.remark(format!("{of}: a process that waits at a barrier sleeps at once"));
                }
                let (name, comers) = match event {
                    Some(event) => {
                        (self.workload.events[usize::from(event)].name.clone(), self.comers(event))
                    }
                    None => (format!("{task}-barrier-{index}"), u64::from(instances)),
                };
                if comers != u64::from(parties) {
                    self.remark(format!(
                        "{of}: barrier `{name}` waits for {comers} threads in place of {parties}"
                    ));
                }
                vec![("barrier", quoted(&name))]
            }
            Op::Run { program: child, times, beside: true, .. } if times as usize <= EVENTS_MAX => {
                let name = quoted(&self.task_of(child));
                vec![("fork", name); times as usize]
            }
            Op::Run { program: child, .. } => {
                let child = &self.workload.programs[child as usize].name;
                self.remark(format!(
                    "{of}: the run of `{child}` is left out: rt-app waits for no forked task"
                ));
                Vec::new()
            }
            Op::Write { bytes, sync, direct, .. } => {
                self.remark(format!("{of}: it writes to rt-app's one I/O device, in sequence"));
                if sync || direct {
                    self.remark(format!("{of}: it does not wait until its writes are on the disk"));
                }
                vec![("iorun", bytes.mean.min(MICROS_MAX).to_string())]
            }
            Op::Read { .. } | Op::Metadata { .. } => {
                self.remark(format!("{of}: its `read` and `metadata` steps are left out"));
                Vec::new()
            }
            Op::Begin { .. } | Op::Over { .. } => {
                self.remark(format!("{of}: a loop does not end after the time of its `for`"));
                Vec::new()
            }
            Op::Piece { .. } => {
                self.remark(format!("{of}: the steps of `pieces` run once in each process"));
                Vec::new()
            }
            Op::Again { .. } => Vec::new(),
        }
    }

    /// The name of a task that runs a program: that of a job, or one like the program's.
    fn task_of(&mut self, program: u32) -> String {
        if let Some(name) = self.forked.get(&program) {
            return name.clone();
        }
        let name = self.unique(&self.workload.programs[program as usize].name);
        self.forked.insert(program, name.clone());
        self.unwritten.insert(program, name.clone());
        name
    }

    /// How many threads rt-app counts for a barrier: the instances of a task, for each of its events.
    fn comers(&self, event: u16) -> u64 {
        let steps = |job: &Job| {
            let ops = &self.workload.programs[job.program as usize].ops;
            let is_here = |op: &&Op| matches!(op, Op::Barrier { event: Some(other), .. } if *other == event);
            ops.iter().filter(is_here).count() as u64
        };
        self.workload.jobs.iter().map(|job| steps(job) * u64::from(job.count)).sum()
    }

    /// Remarks on what belongs to no job.
    fn whole(&mut self) {
        let Workload { locks, programs, changes, awaited, jobs, .. } = self.workload;
        if locks.iter().any(|lock| lock.readers || lock.spins) {
            self.remark("locks with `readers` or `spins` become mutexes".to_owned());
        }
        if locks.iter().any(|lock| lock.inherit) && !locks.iter().all(|lock| lock.inherit) {
            self.remark("no lock inherits: rt-app has one setting for all".to_owned());
        }
        for program in programs.iter().filter(|program| program.memory_bytes > 0) {
            self.remark(format!("program `{}`: its `memory` is left out", program.name));
        }
        if !changes.is_empty() || !awaited.is_empty() {
            self.remark("changes and offers of tickets are left out".to_owned());
        }
        if !self.workload.horizon_ns.is_multiple_of(1_000_000_000) && jobs.iter().any(|job| job.background) {
            self.remark("the duration is rounded up to seconds".to_owned());
        }
    }

    fn global(&self) -> String {
        let Workload { locks, jobs, horizon_ns, .. } = self.workload;
        let duration = match jobs.iter().any(|job| job.background) {
            true => i64::try_from(horizon_ns.div_ceil(1_000_000_000)).unwrap_or(i64::MAX),
            false => -1,
        };
        let inherits = !locks.is_empty() && locks.iter().all(|lock| lock.inherit);
        let mut lines = vec![
            format!("\t\t\"duration\" : {}", duration.min(i64::from(i32::MAX))),
            "\t\t\"calibration\" : \"CPU0\"".to_owned(),
            "\t\t\"default_policy\" : \"SCHED_OTHER\"".to_owned(),
            format!("\t\t\"pi_enabled\" : {inherits}"),
            "\t\t\"lock_pages\" : false".to_owned(),
        ];
        let mut ops = self.workload.programs.iter().flat_map(|program| &program.ops);
        if ops.any(|op| matches!(op, Op::Write { .. })) {
            // By default, rt-app writes to /dev/null.
            lines.push("\t\t\"io_device\" : \"./rt-app-io\"".to_owned());
        }
        lines.join(",\n")
    }

    /// A time in microseconds, rounded to the nearest.
    fn micros(&mut self, ns: u64, of: &str) -> u64 {
        if !ns.is_multiple_of(1_000) {
            self.remark(format!("{of}: times are rounded to microseconds"));
        }
        let micros = ns.saturating_add(500) / 1_000;
        if micros > MICROS_MAX {
            self.remark(format!("{of}: times are cut to 2147 s, which is all that rt-app reads"));
        }
        micros.min(MICROS_MAX)
    }
}

/// The text of a task.
fn task_text(name: &str, head: &[String], (times, phases): &(u32, Vec<(u32, Vec<Item>)>)) -> String {
    let times_text = |times: u32| if times == 0 { "-1".to_owned() } else { times.to_string() };
    let mut lines: Vec<String> = head.iter().map(|line| format!("\t\t\t{line}")).collect();
    lines.push(format!("\t\t\t\"loop\" : {}", times_text(*times)));
    let mut texts = Vec::new();
    for (number, (times, items)) in phases.iter().enumerate() {
        let mut events = vec![format!("\t\t\t\t\t\"loop\" : {}", times_text(*times))];
        let mut counts = BTreeMap::<&str, u32>::new();
        for item in items {
            let Item::Event(key, value) = item else { continue };
            let count = counts.entry(key).or_default();
            events.push(format!("\t\t\t\t\t\"{key}{count}\" : {value}"));
            *count += 1;
        }
        texts.push(format!("\t\t\t\t\"p{number}\" : {{\n{}\n\t\t\t\t}}", events.join(",\n")));
    }
    lines.push(format!("\t\t\t\"phases\" : {{\n{}\n\t\t\t}}", texts.join(",\n")));
    format!("\t\t{} : {{\n{}\n\t\t}}", quoted(name), lines.join(",\n"))
}

/// A text as a string of JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out + "\""
}
