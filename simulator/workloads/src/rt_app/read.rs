//! Reads a use case of rt-app.
//!
//! Each task becomes a program, and a job of it with a copy for each instance. A task that other tasks fork
//! is run by them. Phases that run once are joined; the others become loops.
//!
//! rt-app takes the first letters of a key for the event: `run`, `run0` and `run_a` are the same. Repeated
//! keys are kept in order, as `workgen` numbers them.
//!
//! Where releases differ: `suspend` waits for the task's own name since May 2025, and for its value before.
//! The value counts here if a `resume` names it, since otherwise nobody would wake the task.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_contract::{Span, nearest};

use super::json::{self, Entry, Node, Value};
use super::structure::{Flat, Placed, structure};
use crate::draft::{
    Draft, File, Found, HORIZON_MAX_NS, Job, Lock, NameMaker, PROGRAMS_MAX, Program, S, STEPS_MAX, Step,
    Times, is_endless, span_ns, takes_time,
};
use crate::{Options, Units};

/// The assumed costs of events that rt-app measures in bytes: `mem` and `memrun` read and write ...
const MEM_BYTES_PER_NS: u64 = 10;
/// ... byte by byte, in `memrun` ...
const BYTES_PER_NS: u64 = 1;
/// ... or follow pointers, each of which misses the caches ...
const CHASE_NS: u64 = 80;
/// ... and `iorun` calls write(2) on /dev/null.
const WRITE_NS: u64 = 1_000;
/// The size of the file that `iorun` writes to, if it is not /dev/null.
const FILE_BYTES: u64 = 1 << 30;

/// The kinds of event, in the order in which rt-app compares the beginning of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Runtime,
    Run,
    Sleep,
    Memrun,
    Mem,
    Iorun,
    Lock,
    Unlock,
    Signal,
    Broad,
    Wait,
    Sync,
    Barrier,
    Timer,
    Resume,
    Suspend,
    Yield,
    Fork,
    SemPost,
    SemWait,
}

const KINDS: [(&str, Kind); 20] = [
    ("runtime", Kind::Runtime),
    ("run", Kind::Run),
    ("sleep", Kind::Sleep),
    ("memrun", Kind::Memrun),
    ("mem", Kind::Mem),
    ("iorun", Kind::Iorun),
    ("lock", Kind::Lock),
    ("unlock", Kind::Unlock),
    ("signal", Kind::Signal),
    ("broad", Kind::Broad),
    ("wait", Kind::Wait),
    ("sync", Kind::Sync),
    ("barrier", Kind::Barrier),
    ("timer", Kind::Timer),
    ("resume", Kind::Resume),
    ("suspend", Kind::Suspend),
    ("yield", Kind::Yield),
    ("fork", Kind::Fork),
    ("sem_post", Kind::SemPost),
    ("sem_wait", Kind::SemWait),
];

fn kind(key: &str) -> Option<Kind> {
    KINDS.iter().find(|(begin, _)| key.starts_with(begin)).map(|(_, kind)| *kind)
}

/// The numbers of a loop. rt-app takes more; the simulator does not.
const LOOPS: core::ops::RangeInclusive<i64> = i32::MIN as i64..=1_000_000_000;

/// The keys of `global` that say nothing about the workload, and the others.
const GLOBAL: [&str; 17] = [
    "calibration",
    "lock_pages",
    "logdir",
    "log_basename",
    "log_size",
    "ftrace",
    "gnuplot",
    "cumulative_slack",
    "frag",
    "comment",
    "duration",
    "default_policy",
    "pi_enabled",
    "io_device",
    "mem_buffer_size",
    "title",
    "name",
];
/// The keys of a task or phase that are no events.
const TASK: [&str; 17] = [
    "instance",
    "loop",
    "phases",
    "policy",
    "priority",
    "cpus",
    "nodes_membind",
    "taskgroup",
    "delay",
    "dl-runtime",
    "dl-period",
    "dl-deadline",
    "util_min",
    "util_max",
    "comment",
    "period",
    "deadline",
];

struct Global {
    duration_s: Option<u64>,
    policy: String,
    inherit: bool,
    io_device: String,
    buffer_bytes: u64,
}

/// A task, before its events are read.
struct Task<'n> {
    name: &'n str,
    at: &'n Span,
    entries: &'n [Entry],
    phases: Vec<Phase<'n>>,
    times: Times,
    /// It runs no iteration at all.
    is_idle: bool,
    instances: u64,
}

struct Phase<'n> {
    at: &'n Span,
    times: Times,
    events: Vec<Event<'n>>,
}

#[derive(Clone, Copy)]
struct Event<'n> {
    kind: Kind,
    entry: &'n Entry,
}

/// Reads a text.
pub(crate) fn read(text: &str, options: &Options) -> Draft {
    let mut draft = Draft { title: "rt-app".to_owned(), ..Draft::default() };
    let root = match json::parse(text) {
        Ok(root) => root,
        Err(wrong) => {
            let help = wrong.help.clone().unwrap_or_default();
            draft.found.error(wrong.code, &wrong.span, wrong.message, &help);
            return draft;
        }
    };
    let mut reader = Reader {
        found: Found::default(),
        options,
        locks: BTreeMap::new(),
        events: BTreeMap::new(),
        timers: BTreeMap::new(),
        lock_names: NameMaker::default(),
        event_names: NameMaker::default(),
        timer_names: NameMaker::default(),
        counting: BTreeSet::new(),
        writes_file: false,
    };
    reader.use_case(&root, &mut draft);
    draft.found = reader.found;
    draft
}

/// What waits at a name, each kind with names of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Condition,
    Barrier,
    Semaphore,
}

struct Reader<'o> {
    found: Found,
    options: &'o Options,
    /// By the text's names: the workload's.
    locks: BTreeMap<String, String>,
    events: BTreeMap<(Place, String), String>,
    /// Timers by whether each process has its own.
    timers: BTreeMap<(bool, String), String>,
    lock_names: NameMaker,
    event_names: NameMaker,
    timer_names: NameMaker,
    /// The events that are semaphores.
    counting: BTreeSet<String>,
    /// Whether an event writes to the file that stands for the I/O device.
    writes_file: bool,
}

/// What the events of all tasks say together.
struct Whole<'n> {
    global: Global,
    tasks: Vec<Task<'n>>,
    /// The workload's names of the tasks' programs.
    programs: Vec<String>,
    /// The names that `resume` has.
    resumes: BTreeSet<&'n str>,
    /// The names for which `wait`, `sync` and `suspend` wait.
    awaited: BTreeSet<&'n str>,
    /// The number of threads that meet at a barrier.
    meets: BTreeMap<&'n str, u64>,
    /// The names of timers that several threads use.
    shared_timers: BTreeSet<&'n str>,
    /// The timers of absolute mode: the task if the timer is its own.
    absolute: BTreeSet<(Option<usize>, &'n str)>,
    /// The tasks that others fork.
    forked: BTreeSet<&'n str>,
    /// The tasks by name: the first of each.
    by_name: BTreeMap<&'n str, usize>,
    /// By task, whether it uses a timer.
    has_timer: Vec<bool>,
}

impl<'n> Whole<'n> {
    /// Gathers what must be known of all tasks before the events of one can be read.
    fn of(global: Global, tasks: Vec<Task<'n>>, programs: Vec<String>) -> Whole<'n> {
        let mut whole = Whole {
            global,
            tasks: Vec::new(),
            programs,
            resumes: BTreeSet::new(),
            awaited: BTreeSet::new(),
            meets: BTreeMap::new(),
            shared_timers: BTreeSet::new(),
            absolute: BTreeSet::new(),
            forked: BTreeSet::new(),
            by_name: BTreeMap::new(),
            has_timer: vec![false; tasks.len()],
        };
        // By name of a timer: the task that uses it.
        let mut timers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut suspends: Vec<(&str, Option<&str>)> = Vec::new();
        for (index, task) in tasks.iter().enumerate() {
            whole.by_name.entry(task.name).or_insert(index);
            for event in task.phases.iter().flat_map(|phase| &phase.events) {
                let value = &event.entry.node.value;
                whole.has_timer[index] |= event.kind == Kind::Timer;
                match (event.kind, value) {
                    (Kind::Resume, Value::Text(name)) => drop(whole.resumes.insert(name)),
                    (Kind::Suspend, Value::Text(name)) => suspends.push((task.name, Some(name))),
                    (Kind::Suspend, _) => suspends.push((task.name, None)),
                    (Kind::Wait | Kind::Sync, _) => drop(whole.awaited.insert(reference(event.entry))),
                    (Kind::Barrier, Value::Text(name)) => {
                        *whole.meets.entry(name).or_default() += task.instances;
                    }
                    (Kind::Fork, Value::Text(name)) => drop(whole.forked.insert(name)),
                    (Kind::Timer, Value::Object(entries)) => {
                        let name = reference(event.entry);
                        let is_own = name.starts_with("unique");
                        let user = timers.insert(name, index);
                        if !is_own && (task.instances > 1 || user.is_some_and(|user| user != index)) {
                            whole.shared_timers.insert(name);
                        }
                        let mode = find(entries, "mode").map(|entry| &entry.node.value);
                        if matches!(mode, Some(Value::Text(mode)) if mode.starts_with("absolute")) {
                            whole.absolute.insert((is_own.then_some(index), name));
                        }
                    }
                    _ => {}
                }
            }
        }
        whole.tasks = tasks;
        for (task, value) in suspends {
            let name =
                value.filter(|value| !value.is_empty() && whole.resumes.contains(value)).unwrap_or(task);
            whole.awaited.insert(name);
        }
        whole
    }
}

/// The events of a task that were read, and the memory that they use.
struct Body {
    steps: Vec<Step>,
    memory_bytes: u64,
}

impl Reader<'_> {
    fn use_case(&mut self, root: &Node, draft: &mut Draft) {
        let Some(entries) = self.object(root, "a use case") else { return };
        self.unknown_keys(entries, &["tasks", "global", "resources"], false);
        let global = self.global(find(entries, "global"));
        let Some(tasks) = find(entries, "tasks") else {
            let help = "write \"tasks\": { \"thread0\": { \"run\": 20000, \"sleep\": 80000 } }";
            self.found.error("no-tasks", &root.at, "the use case has no \"tasks\"".to_owned(), help);
            return;
        };
        let Some(table) = self.object(&tasks.node, "`tasks`") else { return };
        if table.is_empty() {
            let help = "write at least one: \"thread0\": { \"run\": 20000 }";
            self.found.error("no-tasks", &tasks.node.at, "there are no tasks".to_owned(), help);
        }
        if table.len() > PROGRAMS_MAX {
            let message = format!("there are {} tasks, more than {PROGRAMS_MAX}", table.len());
            self.found.error(
                "too-many-tasks",
                &tasks.key_at,
                message,
                "use `instance` for tasks that are alike",
            );
            return;
        }
        let tasks: Vec<Task> = table.iter().filter_map(|entry| self.task(entry)).collect();
        let events: usize = tasks.iter().flat_map(|task| &task.phases).map(|phase| phase.events.len()).sum();
        if events > STEPS_MAX {
            let message = format!("there are {events} events, more than {STEPS_MAX}");
            self.found.error("too-many-events", &root.at, message, "use `loop` for events that repeat");
            return;
        }
        let mut names = NameMaker::default();
        let programs = tasks.iter().map(|task| names.make(task.name)).collect();
        let whole = Whole::of(global, tasks, programs);
        self.check_forks(&whole);
        if self.found.has_error() {
            // The events are still read, for their mistakes.
            for (index, task) in whole.tasks.iter().enumerate() {
                drop((self.settings(&whole, task, false), self.body(&whole, index)));
            }
            return;
        }
        self.build(&whole, draft);
    }

    fn global(&mut self, entry: Option<&Entry>) -> Global {
        let mut global = Global {
            duration_s: None,
            policy: "SCHED_OTHER".to_owned(),
            inherit: false,
            io_device: "/dev/null".to_owned(),
            buffer_bytes: 4 << 20,
        };
        let Some(entries) = entry.and_then(|entry| self.object(&entry.node, "`global`")) else {
            return global;
        };
        self.unknown_keys(entries, &GLOBAL, false);
        for entry in entries {
            match entry.key.as_str() {
                "duration" => {
                    let seconds = self.integer(entry, i64::from(i32::MIN)..=i64::from(i32::MAX));
                    global.duration_s = seconds.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
                }
                "default_policy" => global.policy = self.text(entry).unwrap_or(&global.policy).to_owned(),
                "pi_enabled" => global.inherit = entry.node.value == Value::Bool(true),
                "io_device" => global.io_device = self.text(entry).unwrap_or(&global.io_device).to_owned(),
                "mem_buffer_size" => {
                    let bytes =
                        self.integer(entry, 1..=i64::from(i32::MAX)).and_then(|n| u64::try_from(n).ok());
                    global.buffer_bytes = bytes.unwrap_or(global.buffer_bytes);
                }
                _ => {}
            }
        }
        global
    }

    fn task<'n>(&mut self, entry: &'n Entry) -> Option<Task<'n>> {
        let entries = self.object(&entry.node, "a task")?;
        let instances = find(entries, "instance").map_or(Some(1), |entry| self.integer(entry, 0..=1_000_000));
        let loops = find(entries, "loop");
        let times = loops.map_or(Some(-1), |entry| self.integer(entry, LOOPS));
        let (phases, times, is_idle) = if let Some(phases) = find(entries, "phases") {
            self.unknown_keys(entries, &TASK, false);
            let list = self.object(&phases.node, "`phases`")?;
            let phases = list.iter().filter_map(|phase| self.phase(&phase.key_at, &phase.node)).collect();
            (phases, endless_below(times.unwrap_or(1), 0), times == Some(0))
        } else {
            // Events in a task are a single phase, which `loop` repeats.
            let phase = self.phase(&entry.key_at, &entry.node)?;
            let times = if loops.is_some() { Times::exactly(1) } else { Times::FOR_EVER };
            (vec![phase], times, false)
        };
        Some(Task {
            name: &entry.key,
            at: &entry.key_at,
            entries,
            phases,
            times,
            is_idle,
            instances: u64::try_from(instances.unwrap_or(1)).unwrap_or(0),
        })
    }

    fn phase<'n>(&mut self, at: &'n Span, node: &'n Node) -> Option<Phase<'n>> {
        let entries = self.object(node, "a phase")?;
        self.unknown_keys(entries, &TASK, true);
        let times = find(entries, "loop").map_or(Some(1), |entry| self.integer(entry, LOOPS));
        let events: Vec<Event> =
            entries.iter().filter_map(|entry| Some(Event { kind: kind(&entry.key)?, entry })).collect();
        if events.is_empty() {
            let help = "write at least one, such as \"run\": 10000";
            self.found.error("no-events", at, "no event in a task or phase".to_owned(), help);
        }
        // rt-app counts up until the number is reached, which is never below 1.
        Some(Phase { at, times: endless_below(times.unwrap_or(1), 1), events })
    }

    /// Reports forks of unknown tasks, forks in a circle, and forks without end.
    fn check_forks(&mut self, whole: &Whole) {
        let mut edges: Vec<Vec<(usize, &Span)>> = Vec::new();
        for task in &whole.tasks {
            let mut forks = Vec::new();
            for phase in &task.phases {
                for event in phase.events.iter().filter(|event| event.kind == Kind::Fork) {
                    let Value::Text(name) = &event.entry.node.value else { continue };
                    let at = &event.entry.node.at;
                    match whole.by_name.get(name.as_str()).copied() {
                        Some(child) => forks.push((child, at)),
                        None => self.unknown_task(whole, name, "forked", at),
                    }
                    if task.times.is_endless() || phase.times.is_endless() {
                        let message = format!("`{name}` is forked in a loop that never ends");
                        let help = "give the loop a number: rt-app ends with an error after 1024 forks";
                        self.found.error("endless-forks", at, message, help);
                    }
                }
            }
            edges.push(forks);
        }
        let mut states = vec![0u8; edges.len()];
        for task in 0..edges.len() {
            let mut path = Vec::new();
            self.visit(task, &edges, &mut states, &mut path, whole);
        }
    }

    /// Follows forks depth first: state 1 is on the path, 2 is done. The depth is at most the number of
    /// tasks.
    fn visit(
        &mut self,
        task: usize,
        edges: &[Vec<(usize, &Span)>],
        states: &mut [u8],
        path: &mut Vec<usize>,
        whole: &Whole,
    ) {
        if states[task] != 0 {
            return;
        }
        states[task] = 1;
        path.push(task);
        for (child, at) in &edges[task] {
            if states[*child] == 1 {
                let from = path.iter().position(|it| it == child).unwrap_or(0);
                let mut names: Vec<&str> = path[from..].iter().map(|it| whole.tasks[*it].name).collect();
                names.push(whole.tasks[*child].name);
                let message = format!("tasks fork each other in a circle: {}", names.join(" -> "));
                self.found.error(
                    "circular-forks",
                    at,
                    message,
                    "remove one of the forks: they would never end",
                );
            } else {
                self.visit(*child, edges, states, path, whole);
            }
        }
        path.pop();
        states[task] = 2;
    }

    fn unknown_task(&mut self, whole: &Whole, name: &str, what: &str, at: &Span) {
        if self.found.is_full() {
            return;
        }
        let help = match nearest(name, whole.tasks.iter().map(|task| task.name)) {
            Some(known) => format!("did you mean \"{known}\"?"),
            None => "name a task of \"tasks\"".to_owned(),
        };
        self.found.error(
            "unknown-task",
            at,
            format!("task `{name}` is {what}, but no task has that name"),
            &help,
        );
    }

    /// Writes programs and jobs.
    fn build(&mut self, whole: &Whole, draft: &mut Draft) {
        let mut jobs = Vec::new();
        // A task that never ends, also one that others fork.
        let mut endless = None;
        for (index, task) in whole.tasks.iter().enumerate() {
            let is_forked = whole.forked.contains(task.name);
            let settings = self.settings(whole, task, is_forked);
            let Body { mut steps, memory_bytes } = self.body(whole, index);
            if steps.is_empty() {
                let is_endless =
                    task.times.is_endless() || task.phases.iter().any(|it| it.times.is_endless());
                if task.is_idle || !is_endless {
                    self.found.remark("idle-task", task.at, format!("task `{}` does nothing", task.name));
                } else {
                    let message = format!("task `{}` loops for ever, and does nothing", task.name);
                    self.found.error("timeless", task.at, message, "write a `run` or `sleep` above 0");
                }
                steps.push(Step::Cpu(1));
            }
            if task.instances == 0 && !is_forked {
                self.found.remark("unused-task", task.at, format!("task `{}` has no instance", task.name));
                continue;
            }
            if has_timeless_loop(&steps) {
                let message = format!("task `{}` loops for ever, and no time passes in the loop", task.name);
                let help = "write a `run`, `sleep` or `timer` into the loop";
                self.found.error("timeless-loop", task.at, message, help);
            }
            let program = whole.programs[index].clone();
            if is_endless(&steps) {
                endless.get_or_insert(task.at);
            }
            if task.instances > 0 {
                jobs.push((span_ns(&steps), task.at));
                draft.jobs.push(Job {
                    name: program.clone(),
                    unit: settings.unit,
                    program: program.clone(),
                    start_ns: settings.delay_ns,
                    count: task.instances,
                    deadline_ns: settings.deadline_ns,
                    background: false,
                });
            }
            draft.programs.push(Program { name: program, memory_bytes, is_job: false, steps });
        }
        self.end(whole, draft, endless, &jobs);
        let inherit = whole.global.inherit;
        let mut used = BTreeSet::new();
        draft.programs.iter().for_each(|program| locks_of(&program.steps, &mut used));
        let locks = self.locks.values().filter(|name| used.contains(name.as_str()));
        draft.locks = locks.map(|name| Lock { name: name.clone(), inherit }).collect();
        draft.events =
            self.events.values().map(|name| (name.clone(), self.counting.contains(name))).collect();
        draft.timers = self
            .timers
            .iter()
            .map(|((is_own, name), made)| {
                (made.clone(), !is_own && whole.shared_timers.contains(name.as_str()))
            })
            .collect();
        if self.writes_file {
            draft.files.push(File { name: "io_device".to_owned(), bytes: FILE_BYTES, shared: true });
        }
    }

    /// When the run ends, and which jobs it waits for. `endless`: the position of a task that never ends;
    /// `jobs`: by job, its time and its position.
    fn end(&mut self, whole: &Whole, draft: &mut Draft, endless: Option<&Span>, jobs: &[(u64, &Span)]) {
        let duration_ns = whole.global.duration_s.map(|s| s.saturating_mul(S));
        let length_ns = self.options.horizon_ns.or(duration_ns);
        if let (Some(at), None) = (endless, length_ns) {
            let message = "a task loops for ever, and \"global\" has no \"duration\"";
            let help = "write \"duration\": 60 (in seconds) in \"global\", or pass --horizon 60s";
            self.found.error("no-duration", at, message.to_owned(), help);
        }
        // rt-app runs for its whole duration, also if some threads have ended.
        draft.jobs.iter_mut().for_each(|job| job.background = endless.is_some());
        let spans = jobs.iter().map(|(span_ns, _)| *span_ns).zip(&draft.jobs);
        let all = spans
            .map(|(span_ns, job)| span_ns.saturating_add(job.start_ns).saturating_mul(job.count))
            .fold(0, u64::saturating_add);
        draft.horizon_ns =
            length_ns.unwrap_or_else(|| all.saturating_mul(10).clamp(3600 * S, HORIZON_MAX_NS));
        if let Some((_, at)) =
            jobs.iter().zip(&draft.jobs).find(|(_, job)| job.start_ns >= draft.horizon_ns).map(|(job, _)| job)
        {
            let message = "a task's `delay` is beyond the end of the use case";
            self.found.error(
                "never-starts",
                at,
                message.to_owned(),
                "write a shorter `delay`, or a longer `duration`",
            );
        }
    }
}

/// What a task sets beside its events.
struct TaskSettings {
    unit: String,
    delay_ns: u64,
    deadline_ns: Option<u64>,
}

impl Reader<'_> {
    fn settings(&mut self, whole: &Whole, task: &Task, is_forked: bool) -> TaskSettings {
        let entries = task.entries;
        let policy_entry = find(entries, "policy");
        let policy =
            policy_entry.and_then(|entry| self.text(entry)).unwrap_or(&whole.global.policy).to_owned();
        self.policy(&policy, policy_entry.map_or(task.at, |entry| &entry.node.at), false);
        let micros = |reader: &mut Self, keys: &[&str]| {
            let entry = keys.iter().find_map(|key| find(entries, key))?;
            let micros = reader.integer(entry, 0..=i64::from(i32::MAX))?;
            u64::try_from(micros).ok().filter(|micros| *micros > 0).map(|micros| micros * 1_000)
        };
        let deadline_ns = (policy == "SCHED_DEADLINE")
            .then(|| micros(self, &["dl-deadline", "deadline", "dl-period", "period", "dl-runtime"]))
            .flatten();
        let delay_ns = micros(self, &["delay"]).unwrap_or(0);
        if is_forked && delay_ns > 0 {
            self.found.remark("forked-delay", task.at, "`delay` of a forked task: it starts at once");
        }
        let mut unit = self.options.unit.clone();
        for entry in entries {
            self.setting(entry, &policy);
            if let ("taskgroup", Units::Taskgroup, Value::Text(path)) =
                (entry.key.as_str(), self.options.units, &entry.node.value)
            {
                let path = path.trim_matches('/');
                unit = if path.is_empty() { unit } else { path.to_owned() };
            }
        }
        if find(entries, "phases").is_some() {
            for phase in phases_of(entries) {
                let own = find(phase, "policy");
                let own = own.and_then(|entry| Some((self.text(entry)?.to_owned(), &entry.node.at)));
                if let Some((own, at)) = &own {
                    self.policy(own, at, true);
                }
                let policy = own.map_or_else(|| policy.clone(), |(own, _)| own);
                for entry in phase {
                    self.setting(entry, &policy);
                    if let "taskgroup" = entry.key.as_str()
                        && self.options.units == Units::Taskgroup
                    {
                        let message =
                            "`taskgroup` of a phase: the task stays in the unit of its own `taskgroup`";
                        self.found.remark("taskgroup", &entry.node.at, message);
                    }
                }
            }
        }
        TaskSettings { unit, delay_ns, deadline_ns }
    }

    /// Remarks on a policy. `of_phase`: it is that of a phase.
    fn policy(&mut self, policy: &str, at: &Span, of_phase: bool) {
        let message = match policy {
            "SCHED_OTHER" => return,
            "SCHED_BATCH" | "SCHED_IDLE" => format!("{policy}: the task runs as under SCHED_OTHER"),
            "SCHED_FIFO" | "SCHED_RR" => format!(
                "{policy}: the task runs as under SCHED_OTHER, without precedence; a unit of its own, or a discipline of its \
                 unit, may give it that"
            ),
            "SCHED_DEADLINE" if of_phase => {
                format!("{policy} of a phase: it runs as under SCHED_OTHER, and has no deadline of its own")
            }
            "SCHED_DEADLINE" => format!(
                "{policy}: the task runs as under SCHED_OTHER; whether it meets its deadline is counted"
            ),
            _ => {
                let known =
                    ["SCHED_OTHER", "SCHED_BATCH", "SCHED_IDLE", "SCHED_RR", "SCHED_FIFO", "SCHED_DEADLINE"];
                let help = nearest(policy, known)
                    .map_or("name one of Linux's policies".to_owned(), |known| {
                        format!("did you mean \"{known}\"?")
                    });
                self.found.error("unknown-policy", at, format!("there is no policy `{policy}`"), &help);
                return;
            }
        };
        self.found.remark("policy", at, message);
    }

    /// Remarks on a setting of a task or phase that is not simulated.
    fn setting(&mut self, entry: &Entry, policy: &str) {
        let at = &entry.node.at;
        match (entry.key.as_str(), &entry.node.value) {
            ("priority", Value::Integer(0)) => {}
            ("priority", _) if matches!(policy, "SCHED_OTHER" | "SCHED_BATCH") => self.nice(entry),
            ("cpus", _) => {
                let message = "`cpus`: affinity is not simulated; the contract says which CPUs a unit has";
                self.found.remark("cpus", at, message);
            }
            ("nodes_membind", _) => {
                self.found.remark(
                    "nodes-membind",
                    at,
                    "`nodes_membind`: memory goes where the kernel puts it",
                );
            }
            ("taskgroup", _) if self.options.units != Units::Taskgroup => {
                let message =
                    "`taskgroup`: the task is in the unit of the others; `--units taskgroup` makes it a unit";
                self.found.remark("taskgroup", at, message);
            }
            ("util_min" | "util_max", _) => {
                self.found.remark("util-clamp", at, "`util_min`, `util_max`: CPUs have one frequency");
            }
            ("dl-runtime", _) if policy == "SCHED_OTHER" => {
                self.found.remark("slice", at, "`dl-runtime`: a task has the slice of the machine");
            }
            _ => {}
        }
    }

    fn nice(&mut self, entry: &Entry) {
        if self.integer(entry, -20..=19).is_some() {
            let message = "`priority`: nice values are not simulated; all processes of a unit weigh the same";
            self.found.remark("priority", &entry.node.at, message);
        }
    }

    /// The steps of a task's events.
    fn body(&mut self, whole: &Whole, index: usize) -> Body {
        let task = &whole.tasks[index];
        let (mut list, mut memory_bytes) = (Vec::new(), 0);
        for (number, phase) in task.phases.iter().enumerate() {
            let mut events = Vec::new();
            for event in &phase.events {
                let flats = self.event(whole, index, event, &mut memory_bytes);
                let at = event.entry.key_at.start..event.entry.node.at.end;
                events.extend(flats.into_iter().map(|event| Placed { at: at.clone(), event }));
            }
            if phase.times == Times::exactly(1) {
                list.append(&mut events);
            } else {
                list.push(Placed { at: phase.at.clone(), event: Flat::Loop(phase.times, events) });
            }
            if phase.times.is_endless() && number + 1 < task.phases.len() {
                let next = task.phases[number + 1].at;
                self.found.remark(
                    "never-reached",
                    next,
                    "this phase is never reached: that before it never ends",
                );
                break;
            }
        }
        let mut steps = structure(list, &mut Vec::new(), &mut self.found);
        if task.is_idle {
            steps.clear();
        }
        if task.times != Times::exactly(1) && !steps.is_empty() {
            // A loop around nothing but an endless loop says nothing.
            let is_endless_alone = matches!(&steps[..], [Step::Repeat { times, .. }] if times.is_endless());
            if !is_endless_alone {
                steps = vec![Step::Repeat { times: task.times, steps }];
            }
        }
        Body { steps, memory_bytes }
    }

    fn event(&mut self, whole: &Whole, task: usize, event: &Event, memory_bytes: &mut u64) -> Vec<Flat> {
        let Event { kind, entry } = *event;
        let at = &entry.node.at;
        let flat = match kind {
            Kind::Run | Kind::Runtime | Kind::Sleep => {
                let Some(ns) = self.micros(entry) else { return Vec::new() };
                let step = match kind {
                    Kind::Run => Step::Cpu,
                    Kind::Runtime => Step::Busy,
                    _ => Step::Sleep,
                };
                return (ns > 0).then(|| Flat::Step(step(ns))).into_iter().collect();
            }
            Kind::Mem | Kind::Iorun => return self.bytes(whole, event, memory_bytes),
            Kind::Memrun => return self.memrun(entry, memory_bytes),
            Kind::Lock | Kind::Unlock => self.text(entry).map(str::to_owned).map(|mutex| {
                let lock = self.lock(&mutex);
                if kind == Kind::Lock { Flat::Lock(lock) } else { Flat::Unlock(lock) }
            }),
            Kind::Signal | Kind::Broad => self.text(entry).map(str::to_owned).map(|name| {
                let event = self.named(Place::Condition, &name);
                Flat::Step(Step::Signal { event, all: kind == Kind::Broad })
            }),
            Kind::Wait | Kind::Sync => {
                if self.object(&entry.node, "the value of `wait` and `sync`").is_none() {
                    return Vec::new();
                }
                let event = self.named(Place::Condition, reference(entry));
                let mutex = member(entry, "mutex").unwrap_or("unknown").to_owned();
                let mutex = self.lock(&mutex);
                Some(Flat::Wait { event, mutex, signals: kind == Kind::Sync })
            }
            Kind::Barrier => self.text(entry).map(str::to_owned).map(|name| {
                let parties = whole.meets.get(name.as_str()).copied().unwrap_or(1).clamp(1, 1_000_000);
                let event = self.named(Place::Barrier, &name);
                Flat::Step(Step::Barrier { parties, event })
            }),
            Kind::Timer => self.timer(whole, task, entry),
            Kind::Suspend => {
                let own = whole.tasks[task].name;
                let value = match &entry.node.value {
                    Value::Text(value) if !value.is_empty() && value != own => Some(value.as_str()),
                    _ => None,
                };
                let value = value.filter(|value| whole.resumes.contains(value));
                if let Some(value) = value {
                    let message = format!(
                        "`suspend` waits for `{value}`, as in rt-app 1.0; later releases wait for the task's own name"
                    );
                    self.found.remark("suspend", at, message);
                }
                let event = self.named(Place::Condition, value.unwrap_or(own));
                Some(Flat::Step(Step::Wait { event, lock: None }))
            }
            Kind::Resume => return self.resume(whole, entry),
            Kind::Yield => {
                self.found.remark(
                    "yield",
                    at,
                    "`yield`: the task keeps its CPU until the scheduler takes it",
                );
                None
            }
            Kind::Fork => {
                let name = self.text(entry);
                let child = name.and_then(|name| whole.by_name.get(name).copied());
                child.map(|child| {
                    if whole.has_timer[child] {
                        let message =
                            "a forked task's timers count from its own start, and not from that of rt-app";
                        self.found.remark("forked-timer", at, message);
                    }
                    let program = whole.programs[child].clone();
                    Flat::Step(Step::Run { program, times: 1, at_once: 1, beside: true })
                })
            }
            Kind::SemPost | Kind::SemWait => self.text(entry).map(str::to_owned).map(|name| {
                let event = self.named(Place::Semaphore, &name);
                Flat::Step(match kind {
                    Kind::SemPost => Step::Signal { event, all: false },
                    _ => Step::Wait { event, lock: None },
                })
            }),
        };
        flat.into_iter().collect()
    }

    fn resume(&mut self, whole: &Whole, entry: &Entry) -> Vec<Flat> {
        let Some(name) = self.text(entry) else { return Vec::new() };
        if whole.awaited.contains(name) {
            let event = self.named(Place::Condition, name);
            return vec![Flat::Step(Step::Signal { event, all: true })];
        }
        if whole.by_name.contains_key(name) {
            let message = format!("`resume` wakes nobody: task `{name}` never suspends itself");
            self.found.remark("resume", &entry.node.at, message);
        } else {
            self.unknown_task(whole, name, "resumed", &entry.node.at);
        }
        Vec::new()
    }

    fn timer(&mut self, whole: &Whole, task: usize, entry: &Entry) -> Option<Flat> {
        let entries = self.object(&entry.node, "the value of `timer`")?;
        self.unknown_keys(entries, &["ref", "period", "mode"], false);
        let name = reference(entry);
        let owner = name.starts_with("unique").then_some(task);
        let period_ns = match find(entries, "period") {
            Some(period) => self.micros(period)?,
            None => 0,
        };
        if period_ns == 0 {
            self.found.remark("timer", &entry.node.at, "a `timer` without a period never waits");
            return None;
        }
        let made = self.timers.entry((owner.is_some(), name.to_owned()));
        let timer = made.or_insert_with(|| self.timer_names.make(name)).clone();
        let catch_up = whole.absolute.contains(&(owner, name));
        Some(Flat::Step(Step::Timer { timer, period_ns, catch_up }))
    }

    /// An event that writes bytes: to memory, or to the I/O device.
    fn bytes(&mut self, whole: &Whole, event: &Event, memory_bytes: &mut u64) -> Vec<Flat> {
        let Some(bytes) = self.integer(event.entry, 0..=i64::from(i32::MAX)) else { return Vec::new() };
        let (bytes, at) = (u64::try_from(bytes).unwrap_or(0), &event.entry.node.at);
        *memory_bytes = (*memory_bytes).max(whole.global.buffer_bytes);
        let step = match (event.kind, whole.global.io_device.as_str()) {
            _ if bytes == 0 => return Vec::new(),
            (Kind::Mem, _) => {
                self.found.remark("mem", at, "`mem`: the time assumes 10 GB/s; the memory bus is not used");
                Step::Cpu((bytes / MEM_BYTES_PER_NS).max(1))
            }
            (_, "/dev/null") => {
                self.found.remark("iorun", at, "`iorun` to /dev/null: the time assumes 1 us for each write");
                Step::Cpu(bytes.div_ceil(whole.global.buffer_bytes) * WRITE_NS)
            }
            (_, device) => {
                let message =
                    format!("`iorun` to {device}: a file of 1GiB, which is written again from its beginning");
                self.found.remark("iorun", at, message);
                self.writes_file = true;
                Step::Write {
                    file: "io_device".to_owned(),
                    bytes: bytes.min(FILE_BYTES),
                    random: false,
                    sync: false,
                    direct: false,
                }
            }
        };
        vec![Flat::Step(step)]
    }

    fn memrun(&mut self, entry: &Entry, memory_bytes: &mut u64) -> Vec<Flat> {
        let Some(entries) = self.object(&entry.node, "the value of `memrun`") else { return Vec::new() };
        self.unknown_keys(entries, &["type", "size", "count", "stride", "pattern", "ref"], false);
        let number = |reader: &mut Self, key: &str| {
            let Some(found) = find(entries, key) else {
                let message = format!("`memrun` does not say its `{key}`");
                let help = format!("write \"{key}\": 4194304");
                reader.found.error("missing-key", &entry.node.at, message, &help);
                return None;
            };
            reader.integer(found, 0..=i64::from(i32::MAX)).and_then(|n| u64::try_from(n).ok())
        };
        let (Some(size), Some(count)) = (number(self, "size"), number(self, "count")) else {
            return Vec::new();
        };
        let ns = match member(entry, "type") {
            Some("chase") => count * CHASE_NS,
            Some("read" | "write") => count / BYTES_PER_NS,
            _ => {
                let message = "`memrun` has no known `type`".to_owned();
                self.found.error(
                    "unknown-type",
                    &entry.node.at,
                    message,
                    "write \"type\": \"read\", \"write\" or \"chase\"",
                );
                return Vec::new();
            }
        };
        *memory_bytes = memory_bytes.saturating_add(size);
        let message =
            "`memrun`: the time assumes 1 GB/s for `read` and `write`, and 80 ns for each pointer of `chase`";
        self.found.remark("memrun", &entry.node.at, message);
        (ns > 0).then_some(Flat::Step(Step::Cpu(ns))).into_iter().collect()
    }

    fn lock(&mut self, mutex: &str) -> String {
        let made = self.locks.entry(mutex.to_owned());
        made.or_insert_with(|| self.lock_names.make(mutex)).clone()
    }

    fn named(&mut self, place: Place, name: &str) -> String {
        let made = self.events.entry((place, name.to_owned()));
        let made = made.or_insert_with(|| self.event_names.make(name)).clone();
        if place == Place::Semaphore {
            self.counting.insert(made.clone());
        }
        made
    }

    /// A time in ns, from one in microseconds.
    fn micros(&mut self, entry: &Entry) -> Option<u64> {
        let micros = self.integer(entry, 0..=i64::from(i32::MAX))?;
        u64::try_from(micros).ok().map(|micros| micros * 1_000)
    }

    fn integer(&mut self, entry: &Entry, range: core::ops::RangeInclusive<i64>) -> Option<i64> {
        let Value::Integer(number) = entry.node.value else {
            let message = format!("`{}` must be a whole number, not {}", entry.key, entry.node.value.noun());
            self.found.error("wrong-type", &entry.node.at, message, "write digits without quotes");
            return None;
        };
        if !range.contains(&number) {
            let message = format!("`{}` cannot be {number}", entry.key);
            let help = format!("write a number from {} to {}", range.start(), range.end());
            self.found.error("out-of-range", &entry.node.at, message, &help);
            return None;
        }
        Some(number)
    }

    fn text<'n>(&mut self, entry: &'n Entry) -> Option<&'n str> {
        if let Value::Text(text) = &entry.node.value {
            return Some(text);
        }
        let message = format!("`{}` must be a string, not {}", entry.key, entry.node.value.noun());
        self.found.error("wrong-type", &entry.node.at, message, "write a name in quotes");
        None
    }

    fn object<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n [Entry]> {
        if let Value::Object(entries) = &node.value {
            return Some(entries);
        }
        let message = format!("{what} must be an object, not {}", node.value.noun());
        self.found.error("wrong-type", &node.at, message, "write { \"key\": value }");
        None
    }

    /// Remarks on keys that rt-app does not know either. `events`: keys of events are known.
    fn unknown_keys(&mut self, entries: &[Entry], known: &[&str], events: bool) {
        for entry in entries {
            let is_event = kind(&entry.key).is_some();
            if known.contains(&entry.key.as_str()) || events && is_event {
                continue;
            }
            if is_event && known == TASK {
                let message =
                    format!("`{}` stands beside `phases`, where rt-app does not look for events", entry.key);
                self.found.remark("unknown-key", &entry.key_at, message);
                continue;
            }
            let words = known.iter().copied().chain(KINDS.iter().map(|(word, _)| *word).filter(|_| events));
            let message = format!("unknown key `{}`, which rt-app ignores too", entry.key);
            self.found.advise("unknown-key", &entry.key_at, message, || {
                nearest(&entry.key, words).map(|known| format!("did you mean \"{known}\"?"))
            });
        }
    }
}

/// The first entry of a key. `workgen` renames later ones, which rt-app then ignores.
fn find<'n>(entries: &'n [Entry], key: &str) -> Option<&'n Entry> {
    entries.iter().find(|entry| entry.key == key)
}

/// A text in an event's object.
fn member<'n>(entry: &'n Entry, key: &str) -> Option<&'n str> {
    let Value::Object(entries) = &entry.node.value else { return None };
    match &find(entries, key)?.node.value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// The name that an event refers to.
fn reference(entry: &Entry) -> &str {
    member(entry, "ref").unwrap_or("unknown")
}

/// The entries of each phase of a task.
fn phases_of(entries: &[Entry]) -> impl Iterator<Item = &[Entry]> {
    let phases = find(entries, "phases").map(|entry| &entry.node.value);
    let phases = match phases {
        Some(Value::Object(phases)) => &phases[..],
        _ => &[],
    };
    phases.iter().filter_map(|phase| match &phase.node.value {
        Value::Object(entries) => Some(&entries[..]),
        _ => None,
    })
}

/// The iterations of a loop: endless if the number is below `least`.
fn endless_below(times: i64, least: i64) -> Times {
    match u64::try_from(times) {
        Ok(times) if times >= least.unsigned_abs() => Times::exactly(times),
        _ => Times::FOR_EVER,
    }
}

/// Whether there is an endless loop in which no time passes.
fn has_timeless_loop(steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Repeat { times, steps } => times.is_endless() && !takes_time(steps) || has_timeless_loop(steps),
        Step::Lock { steps, .. } => has_timeless_loop(steps),
        _ => false,
    })
}

/// Adds the locks that steps take.
fn locks_of<'s>(steps: &'s [Step], used: &mut BTreeSet<&'s str>) {
    for step in steps {
        match step {
            Step::Lock { lock, steps } => {
                used.insert(lock);
                locks_of(steps, used);
            }
            Step::Repeat { steps, .. } => locks_of(steps, used),
            _ => {}
        }
    }
}
