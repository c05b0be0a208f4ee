//! Checks that the values of a workload fit each other and the machine.
//!
//! It reports what a simulation would find only late or never: jobs that never start or never end, barriers
//! at which processes wait forever, loops in which no time passes, files that do not fit on their disk, and
//! names that no job uses. The checks that follow one program to the next need programs without cycles, so
//! cycles are reported first.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::document::Document;
use commonhold_contract::{Diagnostic, quantity};

use super::cycles::{Edge, walk};
use super::demand::{self, Demand};
use super::limits::{BYTES_MAX, FILE_FIFTHS, SECTOR, TASKS_MAX};
use super::locks;
use super::machine;
use super::model::{File, Hardware, Job, Op, Workload, is_timed};
use super::swap;
use super::values::Span;
use crate::Time;

/// The positions of a workload's items in its text, by the items' indices.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub(crate) horizon: Span,
    pub(crate) files: Vec<Span>,
    pub(crate) locks: Vec<Span>,
    pub(crate) events: Vec<Span>,
    pub(crate) timers: Vec<Span>,
    pub(crate) programs: Vec<ProgramPlace>,
    pub(crate) jobs: Vec<JobPlace>,
}

/// The positions of a program and its steps.
#[derive(Debug)]
pub(crate) struct ProgramPlace {
    pub(crate) name: Span,
    /// The position of each step.
    pub(crate) steps: Vec<Span>,
    /// Some steps could not be read. Checks that depend on all steps are then skipped.
    pub(crate) partial: bool,
}

/// The positions of a job and its values.
#[derive(Debug)]
pub(crate) struct JobPlace {
    name: Span,
    /// The position of each value, by key.
    values: BTreeMap<&'static str, Span>,
}

impl JobPlace {
    pub(crate) fn at(name: Span) -> Self {
        JobPlace { name, values: BTreeMap::new() }
    }

    pub(crate) fn mark(&mut self, key: &'static str, value: Span) {
        self.values.insert(key, value);
    }

    /// The position of a key's value; the job's name if the job lacks the key.
    fn value(&self, key: &str) -> Span {
        self.values.get(key).unwrap_or(&self.name).clone()
    }
}

/// The workload to check, its positions in the text, and the machine.
pub(crate) struct Subject<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) places: &'a Places,
    pub(crate) hardware: &'a Hardware,
}

/// Processes that meet at barriers: the runs of one step, or the copies of a job.
struct Siblings {
    total: u32,
    at_once: u32,
    /// The position of the step or job that runs them.
    place: Span,
    /// The key that sets how many run at once.
    key: &'static str,
}

/// Checks a workload. References that could not be read were reported before, and are not in the workload.
pub(crate) fn workload(document: &mut Document, workload: &Workload, places: &Places, hardware: &Hardware) {
    let subject = Subject { workload, places, hardware };
    document.report_all(subject.steps());
    document.report_all(subject.starts());
    document.report_all(subject.no_disk());
    document.report_all(swap::check(&subject));
    let calls: Vec<Vec<Edge<(usize, usize)>>> =
        (0..workload.programs.len()).map(|program| subject.calls(program)).collect();
    let walk = walk(&calls);
    if !walk.cycles.is_empty() {
        // The demand of a program includes that of the programs it runs, which a cycle leaves undefined.
        document.report_all(walk.cycles.iter().map(|cycle| subject.runs_itself(cycle)));
        return;
    }
    let demands = demand::demands(&workload.programs, &walk.order, &hardware.kernel);
    document.report_all(subject.loops(&demands));
    document.report_all(subject.barriers());
    document.report_all(subject.meetings(&demands));
    document.report_all(locks::check(&subject, &demands));
    document.report_all(subject.endless_jobs(&demands));
    document.report_all(subject.tasks(&demands));
    document.report_all(subject.time(&demands));
    document.report_all(subject.disks(&demands));
    // After an error, an unused item may be the one that a mistyped name was meant for.
    if !document.found().iter().any(Diagnostic::is_error) {
        document.report_all(subject.unused(&walk.order, &demands));
    }
}

impl Subject<'_> {
    /// Each step of each program, with its position.
    fn all_steps(&self) -> impl Iterator<Item = (&Op, &Span)> {
        let programs = self.workload.programs.iter().zip(&self.places.programs);
        programs.flat_map(|(program, place)| program.ops.iter().zip(&place.steps))
    }

    /// The position of a step, given by the indices of its program and of the step in the program.
    pub(crate) fn step(&self, program: usize, step: usize) -> Span {
        self.places.programs[program].steps[step].clone()
    }

    /// Checks each step by itself.
    fn steps(&self) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        for (op, place) in self.all_steps() {
            match *op {
                Op::Read { file, bytes, .. } => {
                    found.extend(self.beyond_end("reads", file, bytes.mean, place));
                }
                Op::Write { file, bytes, .. } => {
                    found.extend(self.beyond_end("writes", file, bytes.mean, place));
                }
                Op::Cpu { bus_per_ms, cache_bytes, .. } => {
                    found.extend(self.above_bus(bus_per_ms, place));
                    found.extend(self.no_cache(cache_bytes, place));
                }
                _ => {}
            }
        }
        found
    }

    fn beyond_end(&self, does: &str, file: u16, bytes: u64, place: &Span) -> Option<Diagnostic> {
        let file = &self.workload.files[usize::from(file)];
        if bytes <= file.bytes {
            return None;
        }
        let [accessed, size] = [bytes, file.bytes].map(quantity::bytes_text);
        let message = format!("the step {does} {accessed} of file `{}`, which has {size}", file.name);
        let help = "make the file larger, or the step smaller";
        Some(Diagnostic::warning("beyond-end", place.clone(), message).help(help))
    }

    /// A warning if a step makes more bus transactions than the bus carries: a step's rate is its rate alone
    /// on the machine.
    fn above_bus(&self, bus_per_ms: u32, place: &Span) -> Option<Diagnostic> {
        let capacity = self.hardware.bus?.transactions_per_ms;
        let message = format!(
            "the step asks for {bus_per_ms} bus transactions per ms, and the machine's bus carries {capacity}: it is slowed \
             even when it runs alone"
        );
        let help = format!(
            "leave it if the rate was measured on a faster bus; `bus` counts transactions per microsecond, so {} is all \
             that this one carries",
            capacity / 1000
        );
        (u64::from(bus_per_ms) > capacity)
            .then(|| Diagnostic::warning("above-bus", place.clone(), message).help(help))
    }

    /// An error if a step has a working set in the last-level cache but the cache's size is unknown: the
    /// working set would have no effect. A machine without CPUs stands for a shape that could not be read,
    /// which was reported.
    fn no_cache(&self, bytes: u64, place: &Span) -> Option<Diagnostic> {
        let is_known = self.hardware.machine.cpus.is_empty() || self.hardware.machine.cache_bytes().is_some();
        let working_set = quantity::bytes_text(bytes);
        let message = format!(
            "the step keeps {working_set} in the last-level cache, and the machine does not say its size"
        );
        let help = "say it in the machine's `shape`, such as `cache:32MiB`";
        (bytes > 0 && !is_known)
            .then(|| Diagnostic::error("no-cache-size", place.clone(), message).help(help))
    }

    /// An edge to each program that a program runs; the edge's origin is the program and the step.
    fn calls(&self, program: usize) -> Vec<Edge<(usize, usize)>> {
        let ops = self.workload.programs[program].ops.iter().enumerate();
        ops.filter_map(|(step, op)| match op {
            Op::Run { program: child, .. } => Some(Edge { to: *child as usize, origin: (program, step) }),
            _ => None,
        })
        .collect()
    }

    /// The error of a program that runs itself, directly or through others.
    fn runs_itself(&self, cycle: &[(usize, usize)]) -> Diagnostic {
        let name = |program: usize| self.workload.programs[program].name.as_str();
        // The edge that closes the cycle is the last.
        let (program, step) = cycle.last().copied().unwrap_or_default();
        let mut path: Vec<&str> = cycle.iter().map(|(program, _)| name(*program)).collect();
        path.extend(path.first().copied());
        let message = format!("program `{}` runs itself: {}", path[0], path.join(" -> "));
        let help =
            "a process that starts itself never ends: for repetition, write { repeat = .., do = [..] }";
        let diagnostic = Diagnostic::error("runs-itself", self.step(program, step), message)
            .label("here again")
            .help(help);
        cycle[..cycle.len().saturating_sub(1)].iter().take(RELATED_MAX).fold(
            diagnostic,
            |diagnostic, (program, step)| {
                diagnostic.related(self.step(*program, *step), format!("run by `{}`", name(*program)))
            },
        )
    }

    /// Reports endless loops in which no time passes, and steps after an endless loop, which are never
    /// reached.
    fn loops(&self, demands: &[Demand]) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        for (program, place) in self.workload.programs.iter().zip(&self.places.programs) {
            if place.partial {
                continue;
            }
            for (step, op) in program.ops.iter().enumerate() {
                let Op::Again { to, times: 0, .. } = *op else { continue };
                let body = &program.ops[to as usize..step];
                if !body.iter().any(|op| demand::takes_time(op, demands)) {
                    let message = match is_timed(&program.ops, step) {
                        true => "the loop ends after a time, and no time passes in it",
                        false => "the loop never ends, and no time passes in it",
                    };
                    let help = "add a step that always takes time: cpu, sleep, busy, timer, or one that waits for the disk \
                                (metadata, write with `sync`)";
                    found.push(
                        Diagnostic::error("timeless-loop", place.steps[step].clone(), message).help(help),
                    );
                }
                let next_step = (step + 1..program.ops.len())
                    .find(|next| !matches!(program.ops[*next], Op::Release { .. }))
                    .filter(|_| !is_timed(&program.ops, step));
                if let Some(next_step) = next_step {
                    let message = "this is never reached: the loop before it never ends";
                    let help = "remove it, or give the loop a number";
                    let diagnostic =
                        Diagnostic::warning("never-reached", place.steps[next_step].clone(), message);
                    found.push(diagnostic.related(place.steps[step].clone(), "the loop").help(help));
                }
            }
        }
        found
    }

    /// Reports barriers that wait for more siblings than can reach them.
    fn barriers(&self) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        for (caller, program) in self.workload.programs.iter().enumerate() {
            for (step, op) in program.ops.iter().enumerate() {
                let Op::Run { program: child, times, at_once, .. } = *op else { continue };
                let runs = Siblings { total: times, at_once, place: self.step(caller, step), key: "at_once" };
                found.extend(self.incomplete_barriers(child as usize, &runs));
            }
        }
        for (job, place) in self.workload.jobs.iter().zip(&self.places.jobs) {
            let place = place.value("program");
            let copies = Siblings { total: job.count, at_once: job.count, place, key: "count" };
            found.extend(self.incomplete_barriers(job.program as usize, &copies));
        }
        found
    }

    /// Reports the barriers of a program at which some of these siblings would wait forever.
    fn incomplete_barriers(&self, program: usize, siblings: &Siblings) -> Vec<Diagnostic> {
        let Siblings { total, at_once, place, key } = siblings;
        let mut found = Vec::new();
        for (barrier, parties) in self.barriers_of(program) {
            let (message, help) = if parties > *at_once {
                let message = format!(
                    "the barrier waits for {parties} siblings, but no more than {at_once} run at once"
                );
                (message, format!("write `{key} = {parties}` where they are run"))
            } else if total % parties != 0 {
                let message = format!(
                    "the barrier waits for {parties} siblings at a time, and {total} in all is no multiple of that"
                );
                (message, format!("run a multiple of {parties}: the last siblings would wait forever"))
            } else {
                continue;
            };
            let diagnostic = Diagnostic::warning("lonely-barrier", barrier, message).help(help);
            found.push(diagnostic.related(place.clone(), "run here"));
        }
        found
    }

    /// The barriers of a program that wait for at least two processes: the position and the number of
    /// processes.
    fn barriers_of(&self, program: usize) -> impl Iterator<Item = (Span, u32)> {
        let ops = self.workload.programs[program].ops.iter().zip(&self.places.programs[program].steps);
        ops.filter_map(|(op, place)| match op {
            Op::Barrier { parties, event: None, .. } if *parties > 1 => Some((place.clone(), *parties)),
            _ => None,
        })
    }

    /// Reports barriers at events that too few processes of all jobs come to, and waits for events that no
    /// process signals.
    fn meetings(&self, demands: &[Demand]) -> Vec<Diagnostic> {
        // Steps that could not be read may be the signals.
        if self.places.programs.iter().any(|place| place.partial) {
            return Vec::new();
        }
        let used = || self.workload.jobs.iter().map(|job| (&demands[job.program as usize], job.count));
        let signalled: BTreeSet<u16> = used().flat_map(|(demand, _)| &demand.signals).copied().collect();
        let comers = |event: u16| {
            let of_job = |(demand, count): (&Demand, u32)| {
                demand.meets.get(&event).copied().unwrap_or(0).saturating_mul(u64::from(count))
            };
            used().map(of_job).fold(0, u64::saturating_add)
        };
        let mut found = Vec::new();
        for (op, place) in self.all_steps() {
            let name = |event: u16| &self.workload.events[usize::from(event)].name;
            match *op {
                Op::Barrier { parties, event: Some(event), .. } if comers(event) < u64::from(parties) => {
                    let message = format!(
                        "the barrier at event `{}` waits for {parties} processes, and {} of all jobs come to it",
                        name(event),
                        comers(event)
                    );
                    let help = "lower the number, or start more: they would wait forever";
                    found.push(Diagnostic::warning("lonely-barrier", place.clone(), message).help(help));
                }
                Op::Wait { event, .. } if !signalled.contains(&event) => {
                    let message = format!("no process of a job signals event `{}`", name(event));
                    let help = format!(
                        "add a step {{ signal = \"{}\" }}: whoever waits here waits forever",
                        name(event)
                    );
                    found.push(Diagnostic::warning("no-signal", place.clone(), message).help(help));
                }
                _ => {}
            }
        }
        found
    }

    /// Reports jobs that never end and are not in the background: the simulation would wait for them.
    fn endless_jobs(&self, demands: &[Demand]) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        for (job, place) in self.workload.jobs.iter().zip(&self.places.jobs) {
            let program = job.program as usize;
            let Some(step) = demands[program].endless.filter(|_| !job.background) else { continue };
            let message = format!("job `{}` never ends, and the simulation would wait for it", job.name);
            let help = "write `background = true` in the job, or give the loop a number";
            let at = place.values.get("background").unwrap_or(&place.name).clone();
            let diagnostic = Diagnostic::error("endless-job", at, message).help(help);
            found.push(diagnostic.related(self.step(program, step), "this never ends"));
        }
        found
    }

    /// Reports jobs that start after the horizon.
    fn starts(&self) -> Vec<Diagnostic> {
        let horizon_ns = self.workload.horizon_ns;
        let mut found = Vec::new();
        for (job, place) in self.workload.jobs.iter().zip(&self.places.jobs) {
            let last_ns = last_start(job);
            if last_ns < u128::from(horizon_ns) {
                continue;
            }
            let (which, key) =
                if job.start_ns >= horizon_ns { ("job", "start") } else { ("the last of job", "every") };
            let [start, end] = [last_ns, u128::from(horizon_ns)].map(about);
            let message =
                format!("{which} `{}` would start at {start}, and the simulation ends at {end}", job.name);
            let help = "write a later `horizon`, or an earlier start";
            found.push(Diagnostic::error("never-starts", place.value(key), message).help(help));
        }
        found
    }

    /// An error if more than [`TASKS_MAX`] tasks would live at the same time; it points at the job with the
    /// most.
    fn tasks(&self, demands: &[Demand]) -> Option<Diagnostic> {
        let tasks_of = |job: &Job| demands[job.program as usize].tasks.saturating_mul(u64::from(job.count));
        let total = self.workload.jobs.iter().map(tasks_of).fold(0, u64::saturating_add);
        let (job, place) =
            self.workload.jobs.iter().zip(&self.places.jobs).max_by_key(|(job, _)| tasks_of(job))?;
        let message = format!(
            "up to {total} tasks would live at the same time, {} of them of job `{}`: more than {TASKS_MAX}",
            tasks_of(job),
            job.name
        );
        let help = "lower `count` of the job, or `at_once` of what it runs";
        (total > TASKS_MAX)
            .then(|| Diagnostic::error("too-many-tasks", place.value("count"), message).help(help))
    }

    /// Reports jobs that cannot end before the horizon: each by itself, or else all together, by their CPU
    /// time.
    fn time(&self, demands: &[Demand]) -> Vec<Diagnostic> {
        let horizon_ns = u128::from(self.workload.horizon_ns);
        let help = "write a later `horizon`, or `background = true` in what need not end";
        let mut found = Vec::new();
        let mut work_ns: u128 = 0;
        for (job, place) in
            self.workload.jobs.iter().zip(&self.places.jobs).filter(|(job, _)| !job.background)
        {
            let demand = &demands[job.program as usize];
            work_ns = work_ns.saturating_add(demand.work_ns.saturating_mul(u128::from(job.count)));
            let end_ns = last_start(job).saturating_add(demand.span_ns);
            // A job that starts after the horizon was reported before.
            if demand.endless.is_none() && last_start(job) < horizon_ns && end_ns > horizon_ns {
                let [last, end] = [end_ns, horizon_ns].map(about);
                let message =
                    format!("job `{}` ends at {last} at the earliest, and the simulation at {end}", job.name);
                let at = place.value("program");
                found.push(Diagnostic::warning("horizon-too-short", at, message).help(help));
            }
        }
        let cpus = self.hardware.machine.cpus.len();
        if found.is_empty() && work_ns > horizon_ns.saturating_mul(cpus as u128) {
            let [work, end] = [work_ns, horizon_ns].map(about);
            let message = format!(
                "all jobs together take {work} of CPU time, more than {cpus} CPUs have until the end at {end}"
            );
            let at = self.places.horizon.clone();
            found.push(Diagnostic::warning("horizon-too-short", at, message).help(help));
        }
        found
    }

    /// An error if the workload has files, or memory that may be paged out, but the machine has no disk.
    fn no_disk(&self) -> Option<Diagnostic> {
        if !self.hardware.disks.is_empty() {
            return None;
        }
        let programs = self.workload.programs.iter().zip(&self.places.programs);
        let paged = programs.filter(|(program, _)| program.memory_bytes > 0).map(|(_, place)| &place.name);
        let (message, place) = match (self.places.files.first(), paged.min_by_key(|place| place.start)) {
            (Some(file), _) => ("the file has no disk to be on: the machine has none", file),
            (None, Some(program)) => {
                ("the program has memory, but the machine has no disk to page it out to", program)
            }
            (None, None) => return None,
        };
        let help = "declare one in the machine: [disk.d0]";
        Some(Diagnostic::error("no-disk", place.clone(), message).help(help))
    }

    /// Reports files that do not fit on their disk.
    fn disks(&self, demands: &[Demand]) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        // Bytes that each file needs on each disk, by disk and file.
        let mut needs: BTreeMap<(u16, u16), u128> = BTreeMap::new();
        for job in &self.workload.jobs {
            for file in &demands[job.program as usize].files {
                let File { bytes, gap_bytes, disk, shared, .. } = self.workload.files[usize::from(*file)];
                // A larger number stands for a size that could not be read.
                if bytes <= BYTES_MAX {
                    // The simulation places files beyond the disk's end on top of the first.
                    let room = u128::from(bytes) + u128::from(gap_bytes);
                    let copies = if shared { 0 } else { u128::from(job.count) };
                    let need = needs.entry((disk.unwrap_or(job.disk), *file)).or_default();
                    *need = need.saturating_add(room * copies);
                    if shared {
                        *need = room;
                    }
                }
            }
        }
        for (number, disk) in (0..=u16::MAX).zip(&self.hardware.disks) {
            let files_here = || needs.range((number, 0)..=(number, u16::MAX));
            let total: u128 = files_here().map(|(_, need)| *need).sum();
            let size = machine::sectors(disk) / 5 * FILE_FIFTHS * SECTOR;
            let Some(((_, largest), _)) = files_here().max_by_key(|(_, need)| **need) else { continue };
            if total > u128::from(size) {
                let [total, size] = [total, u128::from(size)].map(|bytes| rounded(bytes, &BYTE_UNITS));
                let message =
                    format!("the files on disk `{}` take {total}, and it has {size} for files", disk.name);
                let help = "use a larger disk, a smaller `gap`, or files that are `shared`: otherwise each job has its own";
                let at = self.places.files[usize::from(*largest)].clone();
                found.push(Diagnostic::error("disk-full", at, message).label("the largest").help(help));
            }
        }
        found.extend(self.shared_files(&needs));
        found
    }

    /// Reports shared files whose disk is ambiguous: jobs on several disks use the file, which names no disk.
    fn shared_files(&self, needs: &BTreeMap<(u16, u16), u128>) -> Vec<Diagnostic> {
        let mut first_disk: BTreeMap<u16, u16> = BTreeMap::new();
        let mut ambiguous: BTreeMap<u16, (u16, u16)> = BTreeMap::new();
        for (disk, file) in needs.keys().filter(|(_, file)| self.workload.files[usize::from(*file)].shared) {
            match first_disk.get(file) {
                Some(other) => drop(ambiguous.entry(*file).or_insert((*other, *disk))),
                None => drop(first_disk.insert(*file, *disk)),
            }
        }
        let name =
            |disk: u16| self.hardware.disks.get(usize::from(disk)).map_or("", |disk| disk.name.as_str());
        let diagnostic = |(file, (a, b)): (&u16, &(u16, u16))| {
            let message = format!(
                "file `{}` is one for the whole machine, but the jobs that use it are on disks `{}` and `{}`",
                self.workload.files[usize::from(*file)].name,
                name(*a),
                name(*b)
            );
            let help = format!("say where it is: disk = \"{}\"", name(*a));
            Diagnostic::error("ambiguous-disk", self.places.files[usize::from(*file)].clone(), message)
                .help(help)
        };
        ambiguous.iter().map(diagnostic).collect()
    }

    /// Reports files, locks and programs that no job uses. `order` has each program after the programs that
    /// it runs.
    fn unused(&self, order: &[usize], demands: &[Demand]) -> Vec<Diagnostic> {
        let Workload { files, locks, events, timers, programs, jobs, .. } = self.workload;
        if jobs.is_empty() {
            let help = "declare a job: [job.NAME]";
            let message = "the workload has no job: nothing would happen";
            return vec![Diagnostic::warning("no-jobs", 0..0, message).help(help)];
        }
        let mut found = Vec::new();
        if jobs.iter().all(|job| job.background) {
            let message =
                "all jobs run in the background: the simulation waits for none, and goes on to its horizon";
            let help = "add a job that ends, if it is to end earlier";
            let at = self.places.jobs.first().map_or(0..0, |place| place.value("background"));
            found.push(Diagnostic::warning("nothing-to-wait-for", at, message).help(help));
        }
        let mut used: BTreeSet<usize> = jobs.iter().map(|job| job.program as usize).collect();
        for program in order.iter().rev() {
            if used.contains(program) {
                used.extend(self.calls(*program).iter().map(|edge| edge.to));
            }
        }
        let in_use = |numbers: fn(&Demand) -> &BTreeSet<u16>| -> BTreeSet<u16> {
            used.iter().flat_map(|program| numbers(&demands[*program])).copied().collect()
        };
        let (used_files, used_locks) = (in_use(|demand| &demand.files), in_use(|demand| &demand.locks));
        let (used_events, used_timers) = (in_use(|demand| &demand.events), in_use(|demand| &demand.timers));
        let warn = |what: &str, name: &str, place: &Span| {
            let message = format!("no job uses {what} `{name}`");
            Diagnostic::warning("unused", place.clone(), message).help("use it, or remove it")
        };
        for ((number, file), place) in (0..=u16::MAX).zip(files).zip(&self.places.files) {
            found.extend((!used_files.contains(&number)).then(|| warn("file", &file.name, place)));
        }
        for ((number, lock), place) in (0..=u16::MAX).zip(locks).zip(&self.places.locks) {
            found.extend((!used_locks.contains(&number)).then(|| warn("lock", &lock.name, place)));
        }
        for ((number, event), place) in (0..=u16::MAX).zip(events).zip(&self.places.events) {
            found.extend((!used_events.contains(&number)).then(|| warn("event", &event.name, place)));
        }
        for ((number, timer), place) in (0..=u16::MAX).zip(timers).zip(&self.places.timers) {
            found.extend((!used_timers.contains(&number)).then(|| warn("timer", &timer.name, place)));
        }
        for ((number, program), place) in programs.iter().enumerate().zip(&self.places.programs) {
            found.extend((!used.contains(&number)).then(|| warn("program", &program.name, &place.name)));
        }
        found
    }
}

/// The most related positions that one diagnostic shows; more would hide the main one.
pub(crate) const RELATED_MAX: usize = 4;

/// The time at which the last copy of a job starts, in ns.
fn last_start(job: &Job) -> u128 {
    u128::from(job.start_ns) + u128::from(job.every_ns) * u128::from(job.count.saturating_sub(1))
}

const TIME_UNITS: [(&str, u128); 6] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

pub(crate) const BYTE_UNITS: [(&str, u128); 6] =
    [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A time in words: exact if that takes at most six characters, else rounded down.
fn about(ns: u128) -> String {
    let exact = Time::try_from(ns).map(quantity::duration_text).ok().filter(|text| text.len() <= 6);
    exact.unwrap_or_else(|| rounded(ns, &TIME_UNITS))
}

/// An amount in words, in the largest unit that leaves at least two digits, rounded down.
pub(crate) fn rounded(amount: u128, units: &[(&str, u128)]) -> String {
    let (unit, scale) =
        units.iter().find(|(_, scale)| amount >= 10 * scale).unwrap_or(&units[units.len() - 1]);
    match amount / scale {
        number if number >= 1_000_000_000 => format!("more than a billion {unit}"),
        number => format!("{number}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_for_people() {
        let shown = [0, 1_500, 90_000_000_000, 3_600_000_000_000, 12_345_678_901, u128::MAX].map(about);
        assert_eq!(shown, ["0ns", "1500ns", "90s", "1h", "12s", "more than a billion h"]);
        assert_eq!(rounded(1_259_348_992, &BYTE_UNITS), "1201MiB");
    }
}
