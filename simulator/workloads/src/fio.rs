//! Reads a job file of fio.
//!
//! Each section becomes a program that reads and writes, and a job with a copy for each of its `numjobs`.
//! Sections that a `stonewall` separates are run by one job, one group after another.
//!
//! A process of the simulator has one access under way at a time. A section whose engine queues `iodepth`
//! accesses is divided among that many processes. Rates become periodic timers, which catch up as fio does.

use std::collections::BTreeMap;

use commonhold_contract::{Span, nearest};

use crate::Options;
use crate::draft::{
    Draft, File, Found, HORIZON_MAX_NS, Job, NameMaker, PROGRAMS_MAX, Program, S, Step, TIMES_MAX, Times,
    takes_time,
};

/// Options that shape the workload.
const READ: [&str; 31] = [
    "rw",
    "readwrite",
    "bs",
    "blocksize",
    "size",
    "io_size",
    "io_limit",
    "filesize",
    "runtime",
    "timeout",
    "time_based",
    "numjobs",
    "iodepth",
    "ioengine",
    "rate",
    "rate_iops",
    "thinktime",
    "thinktime_blocks",
    "thinktime_spin",
    "direct",
    "buffered",
    "fsync",
    "fdatasync",
    "filename",
    "directory",
    "startdelay",
    "stonewall",
    "wait_for_previous",
    "loops",
    "rwmixread",
    "rwmixwrite",
];
/// Further options that shape it.
const READ_TOO: [&str; 7] = ["sync", "kb_base", "cpuload", "cpuchunks", "new_group", "number_ios", "nrfiles"];
/// Options that change the workload in ways that are not simulated.
const LEFT_OUT: [&str; 60] = [
    "bsrange",
    "bssplit",
    "bs_unaligned",
    "ba",
    "random_distribution",
    "percentage_random",
    "rw_sequencer",
    "norandommap",
    "unique_filename",
    "filename_format",
    "file_service_type",
    "openfiles",
    "offset",
    "offset_increment",
    "file_append",
    "fill_device",
    "fadvise_hint",
    "sync_file_range",
    "fsync_on_close",
    "end_fsync",
    "write_barrier",
    "iodepth_batch",
    "iodepth_batch_submit",
    "iodepth_batch_complete",
    "iodepth_batch_complete_min",
    "iodepth_batch_complete_max",
    "iodepth_low",
    "serialize_overlap",
    "io_submit_mode",
    "ramp_time",
    "verify",
    "do_verify",
    "verify_only",
    "zonemode",
    "zonesize",
    "zonerange",
    "zoneskip",
    "thinktime_blocks_type",
    "thinktime_iotime",
    "rate_min",
    "rate_process",
    "rate_cycle",
    "rate_ignore_thinktime",
    "rate_iops_min",
    "latency_target",
    "latency_window",
    "latency_percentile",
    "wait_for",
    "flow",
    "flow_id",
    "nice",
    "prio",
    "prioclass",
    "cpumask",
    "cpus_allowed",
    "numa_cpu_nodes",
    "numa_mem_policy",
    "cgroup",
    "read_iolog",
    "lockmem",
];
/// Options that do not change it.
const IRRELEVANT: [&str; 62] = [
    "description",
    "name",
    "group_reporting",
    "thread",
    "randrepeat",
    "allrandrepeat",
    "randseed",
    "random_generator",
    "invalidate",
    "fallocate",
    "unlink",
    "unlink_each_loop",
    "create_on_open",
    "create_serialize",
    "create_fsync",
    "create_only",
    "allow_file_create",
    "pre_read",
    "overwrite",
    "mem",
    "iomem",
    "iomem_align",
    "hugepage-size",
    "exitall",
    "exit_what",
    "exitall_on_error",
    "gtod_reduce",
    "gtod_cpu",
    "disable_lat",
    "disable_clat",
    "disable_slat",
    "disable_bw_measurement",
    "clat_percentiles",
    "lat_percentiles",
    "slat_percentiles",
    "percentile_list",
    "significant_figures",
    "disk_util",
    "write_bw_log",
    "write_lat_log",
    "write_iops_log",
    "write_hist_log",
    "write_iolog",
    "log_avg_msec",
    "log_hist_msec",
    "log_offset",
    "log_max_value",
    "bwavgtime",
    "iopsavgtime",
    "per_job_logs",
    "unified_rw_reporting",
    "zero_buffers",
    "refill_buffers",
    "scramble_buffers",
    "buffer_pattern",
    "buffer_compress_percentage",
    "dedupe_percentage",
    "continue_on_error",
    "clocksource",
    "cpus_allowed_policy",
    "unit_base",
    "norandommap",
];

/// Engines that return from an access when it is done.
const IN_TURN: [&str; 8] = ["sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "splice", "null"];

/// The most accesses of a pattern that repeats.
const PATTERN_MAX: u64 = 1_000;
/// CPU time of an access for fio itself, where time would not pass otherwise: all pages may be cached.
const ACCESS_NS: u64 = 1_000;
/// The size of an access, by default.
const BLOCK_BYTES: u64 = 4_096;

/// A value and its position.
#[derive(Debug, Clone)]
struct Value<'t> {
    text: &'t str,
    at: Span,
}

/// A section with the options of the `[global]` sections before it.
struct Section<'t> {
    name: &'t str,
    at: Span,
    options: BTreeMap<&'t str, Value<'t>>,
}

/// Reads a text.
pub(crate) fn read(text: &str, options: &Options) -> Draft {
    let mut draft = Draft { title: "fio".to_owned(), ..Draft::default() };
    let mut found = Found::default();
    let sections = sections(text, &mut found);
    if sections.is_empty() && !found.has_error() {
        let help = "begin one with its name: [reader]";
        found.error("no-jobs", &(0..0), "the file has no section of a job".to_owned(), help);
    }
    if sections.len() * 2 > PROGRAMS_MAX {
        let message = format!("there are {} sections, more than {}", sections.len(), PROGRAMS_MAX / 2);
        found.error("too-many-jobs", &sections[0].at, message, "use `numjobs` for jobs that are alike");
        draft.found = found;
        return draft;
    }
    let mut reader = Reader {
        found,
        names: NameMaker::default(),
        files: BTreeMap::new(),
        file_names: NameMaker::default(),
    };
    let (mut groups, mut works) = (Vec::new(), Vec::new());
    for section in &sections {
        let Some(work) = reader.section(section) else { continue };
        if (section.is_set("stonewall") || section.is_set("wait_for_previous")) && !works.is_empty() {
            groups.push(core::mem::take(&mut works));
        }
        works.push(work);
    }
    groups.push(works);
    reader.build(groups, options, &mut draft);
    draft.files = reader.files.into_values().collect();
    draft.found = reader.found;
    draft
}

/// Divides the text into sections.
fn sections<'t>(text: &'t str, found: &mut Found) -> Vec<Section<'t>> {
    let mut global: BTreeMap<&str, Value> = BTreeMap::new();
    let mut sections: Vec<Section> = Vec::new();
    let mut in_global = true;
    let mut start = 0;
    for raw in text.split_inclusive('\n') {
        let line_start = start;
        start += raw.len();
        let line = raw.trim();
        let from = line_start + (raw.len() - raw.trim_start().len());
        let at = from..from + line.len();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let Some(name) = rest.strip_suffix(']') else {
                found.error("syntax", &at, "the section's name has no end".to_owned(), "write [name]");
                continue;
            };
            in_global = name == "global";
            if !in_global {
                sections.push(Section { name, at, options: global.clone() });
            }
            continue;
        }
        if line.starts_with("include ") {
            let help = "put the included file's text here";
            found.error("include", &at, "another file is included, which is not opened".to_owned(), help);
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let (key, value) = (key.trim(), value.trim());
        let value = Value { text: value, at: at.end - value.len()..at.end };
        let value = if value.text.is_empty() { Value { text: "", at: at.clone() } } else { value };
        let is_known = READ.contains(&key) || READ_TOO.contains(&key) || IRRELEVANT.contains(&key);
        if LEFT_OUT.contains(&key) {
            found.remark("left-out", &at, format!("`{key}` is not simulated"));
        } else if !is_known {
            let message = format!("unknown option `{key}`");
            match nearest(key, READ.iter().chain(&READ_TOO).chain(&LEFT_OUT).copied()) {
                Some(known) => found.advise("unknown-key", &at, message, format!("did you mean `{known}`?")),
                None => found.remark("unknown-key", &at, message),
            }
        }
        let table = if in_global { Some(&mut global) } else { sections.last_mut().map(|it| &mut it.options) };
        table.map(|table| table.insert(key, value));
    }
    sections
}

impl<'t> Section<'t> {
    fn find(&self, keys: &[&str]) -> Option<&Value<'t>> {
        keys.iter().find_map(|key| self.options.get(*key))
    }

    /// Whether a switch is on: it stands alone, or has a number other than 0.
    fn is_set(&self, key: &str) -> bool {
        self.options.get(key).is_some_and(|value| value.text != "0")
    }
}

/// What a section does: programs, and how they run.
struct Work {
    name: String,
    /// The program of one of its jobs, and of one of the processes that share a job.
    programs: Vec<Program>,
    jobs: u64,
    start_ns: u64,
    /// For how long it runs at most.
    runtime_ns: Option<u64>,
}

struct Reader {
    found: Found,
    names: NameMaker,
    /// The files by the text's name, or by the program's if they are a job's own.
    files: BTreeMap<String, File>,
    file_names: NameMaker,
}

impl Reader {
    fn section(&mut self, section: &Section) -> Option<Work> {
        let engine = section.find(&["ioengine"]).map_or("psync", |value| value.text);
        let name = self.names.make(section.name);
        let jobs = self.number(section, &["numjobs"], 1, 1..=1_000_000)?;
        let start_ns = self.time(section, "startdelay", S)?.unwrap_or(0);
        let runtime_ns = match section.find(&["runtime"]) {
            Some(_) => self.time(section, "runtime", S)?,
            None => self.time(section, "timeout", S)?,
        }
        .filter(|ns| *ns > 0);
        let time_based = section.is_set("time_based");
        if time_based && runtime_ns.is_none() {
            let message = format!("section `{}` is `time_based`, and has no `runtime`", section.name);
            self.found.error("no-runtime", &section.at, message, "write runtime=60");
            return None;
        }
        if engine == "cpuio" {
            return self.cpu_hog(section, name, jobs, start_ns, runtime_ns);
        }
        let (program, depth) = self.accesses(section, engine, &name, runtime_ns, time_based)?;
        let mut programs = vec![program];
        if depth > 1 {
            let message = format!(
                "`iodepth`: {depth} processes with one access each stand for one process with {depth} accesses"
            );
            self.found.remark(
                "iodepth",
                &section.find(&["iodepth"]).map_or(section.at.clone(), |it| it.at.clone()),
                message,
            );
            let inner = self.names.make(&format!("{name}-access"));
            programs[0].name.clone_from(&inner);
            let steps = vec![Step::Run { program: inner, times: depth, at_once: depth, beside: false }];
            programs.insert(0, Program { name: name.clone(), memory_bytes: 0, is_job: false, steps });
        }
        Some(Work { name, programs, jobs, start_ns, runtime_ns })
    }

    /// A section of the engine `cpuio`, which computes a part of the time.
    fn cpu_hog(
        &mut self,
        section: &Section,
        name: String,
        jobs: u64,
        start_ns: u64,
        runtime_ns: Option<u64>,
    ) -> Option<Work> {
        let load = self.number(section, &["cpuload"], 100, 1..=100)?;
        let chunk_us = self.number(section, &["cpuchunks"], 50_000, 1..=1_000_000_000)?;
        let Some(runtime) = runtime_ns else {
            let message = format!("section `{}` computes for ever: it has no `runtime`", section.name);
            self.found.error("no-runtime", &section.at, message, "write runtime=60");
            return None;
        };
        let busy_ns = chunk_us * 1_000;
        let mut steps = vec![Step::Cpu(busy_ns)];
        if load < 100 {
            steps.push(Step::Sleep((busy_ns * (100 - load) / load).max(1)));
        }
        let steps = vec![Step::Repeat { times: Times { most: None, for_ns: Some(runtime) }, steps }];
        let programs = vec![Program { name: name.clone(), memory_bytes: 0, is_job: false, steps }];
        Some(Work { name, programs, jobs, start_ns, runtime_ns })
    }

    /// The program of one process of a section, and the number of processes that share its job.
    fn accesses(
        &mut self,
        section: &Section,
        engine: &str,
        name: &str,
        runtime_ns: Option<u64>,
        time_based: bool,
    ) -> Option<(Program, u64)> {
        let (random, mix) = self.direction(section)?;
        let block = self.blocks(section, mix)?;
        let amount = self.size(section, &["io_size", "io_limit"])?;
        let Some(size) = self.size(section, &["size"])?.or(self.size(section, &["filesize"])?).or(amount)
        else {
            let message = format!("section `{}` does not say its `size`", section.name);
            self.found.error("missing-key", &section.at, message, "write size=1g");
            return None;
        };
        let amount = amount.unwrap_or(size);
        let file = self.file(section, name, size);
        let is_async = !IN_TURN.contains(&engine);
        let depth = if is_async { self.number(section, &["iodepth"], 1, 1..=65_536)? } else { 1 };
        let loops = self.number(section, &["loops"], 1, 1..=TIMES_MAX)?;
        let is_direct =
            section.is_set("direct") || section.find(&["buffered"]).is_some_and(|it| it.text == "0");
        if let Some(value) = section.find(&["direct", "buffered"]).filter(|_| is_direct && mix != Mix::WRITES)
        {
            let message = "`direct`: reads go through the page cache, which serves what was read before";
            self.found.remark("direct", &value.at, message);
        }
        let every_sync = is_direct || section.is_set("sync");
        let fsync = match self.number(section, &["fsync", "fdatasync"], 0, 0..=TIMES_MAX)? {
            _ if every_sync => 1,
            fsync => fsync,
        };
        let rate_ns = self.rate(section, mix, block, depth)?;
        let think = self.think(section)?;
        let pattern = Pattern { file, random, mix, block, fsync, rate_ns, think };
        let accesses = (amount / block.0.max(block.1)).max(1).div_ceil(depth);
        let (mut round, length) = self.round(&pattern, section);
        if time_based && !takes_time(&round) {
            round.push(Step::Cpu(ACCESS_NS * length));
        }
        let rounds = accesses.saturating_mul(loops).div_ceil(length);
        if rounds > TIMES_MAX && !time_based {
            let message = format!("section `{}` makes more than {TIMES_MAX} accesses", section.name);
            self.found.error(
                "out-of-range",
                &section.at,
                message,
                "write a smaller `size`, or a larger `bs`",
            );
            return None;
        }
        let most = (!time_based).then_some(rounds);
        let times = Times { most, for_ns: runtime_ns };
        let steps =
            if times == Times::exactly(1) { round } else { vec![Step::Repeat { times, steps: round }] };
        Some((Program { name: name.to_owned(), memory_bytes: 0, is_job: false, steps }, depth))
    }

    /// `rw`: whether accesses are random, and how many are reads.
    fn direction(&mut self, section: &Section) -> Option<(bool, Mix)> {
        let value = section.find(&["rw", "readwrite"]);
        let (word, at) = value.map_or(("read", section.at.clone()), |value| (value.text, value.at.clone()));
        let (word, sequence) = word.split_once(':').map_or((word, false), |(word, _)| (word, true));
        if sequence {
            self.found.remark("left-out", &at, "the number behind `rw` is not simulated");
        }
        let mixed = |reader: &mut Self| {
            let writes = reader.number(section, &["rwmixwrite"], 50, 0..=100)?;
            let reads = reader.number(section, &["rwmixread"], 100 - writes, 0..=100)?;
            Some(Mix::of(reads))
        };
        Some(match word {
            "read" => (false, Mix::READS),
            "write" => (false, Mix::WRITES),
            "randread" => (true, Mix::READS),
            "randwrite" => (true, Mix::WRITES),
            "rw" | "readwrite" => (false, mixed(self)?),
            "randrw" => (true, mixed(self)?),
            _ => {
                let known = ["read", "write", "randread", "randwrite", "rw", "readwrite", "randrw"];
                let help = nearest(word, known)
                    .map_or(format!("write one of {}", known.join(", ")), |known| {
                        format!("did you mean `{known}`?")
                    });
                self.found.error("unknown-word", &at, format!("`rw` cannot be `{word}`"), &help);
                return None;
            }
        })
    }

    /// The sizes of a read and of a write.
    fn blocks(&mut self, section: &Section, mix: Mix) -> Option<(u64, u64)> {
        let Some(value) = section.find(&["bs", "blocksize"]) else { return Some((BLOCK_BYTES, BLOCK_BYTES)) };
        let mut sizes = Vec::new();
        for part in value.text.split([',', '-']).filter(|part| !part.is_empty()) {
            sizes.push(self.bytes(section, "bs", &Value { text: part, at: value.at.clone() })?);
        }
        if value.text.contains('-') {
            let message = "a range of `bs`: all accesses have the smallest size";
            self.found.remark("left-out", &value.at, message);
            return sizes.first().map(|size| (*size, *size));
        }
        let read = *sizes.first().unwrap_or(&BLOCK_BYTES);
        let write = *sizes.get(1).unwrap_or(&read);
        if sizes.len() > 1 && mix == Mix::READS {
            return Some((read, read));
        }
        Some((read, write))
    }

    /// The name of the section's file. It is the job's own unless `filename` names it.
    fn file(&mut self, section: &Section, program: &str, bytes: u64) -> String {
        let named = section.find(&["filename"]);
        let (id, wanted, shared) = match named {
            Some(value) => {
                if value.text.contains(':') {
                    self.found.remark("left-out", &value.at, "several files: all accesses go to the first");
                }
                let path = value.text.split(':').next().unwrap_or_default();
                let folder = section.find(&["directory"]).map_or("", |value| value.text);
                (format!("{folder}/{path}"), path.rsplit('/').next().unwrap_or(path).to_owned(), true)
            }
            // A path does not end with a slash.
            None => (format!("{program}/"), program.to_owned(), false),
        };
        let names = &mut self.file_names;
        let file = self.files.entry(id).or_insert_with(|| File { name: names.make(&wanted), bytes, shared });
        file.bytes = file.bytes.max(bytes);
        file.name.clone()
    }

    /// The time between two accesses of a process, in ns; the inner `None` if the section has no rate.
    #[expect(clippy::option_option, reason = "a wrong rate, and no rate")]
    fn rate(&mut self, section: &Section, mix: Mix, block: (u64, u64), depth: u64) -> Option<Option<u64>> {
        let is_iops = section.find(&["rate_iops"]).is_some();
        let Some(value) = section.find(&["rate_iops", "rate"]) else { return Some(None) };
        let mut rates = Vec::new();
        for text in value.text.split(',').filter(|text| !text.is_empty()) {
            rates.push(self.bytes(section, "rate", &Value { text, at: value.at.clone() })?);
        }
        let first = *rates.first().unwrap_or(&1);
        let second = *rates.get(1).unwrap_or(&first);
        let per_s = match mix {
            Mix::READS => first,
            Mix::WRITES => second,
            _ => first.saturating_add(second),
        };
        let amount = match (is_iops, mix) {
            (true, _) => 1,
            (false, Mix::WRITES) => block.1,
            (false, _) => block.0,
        };
        let ns = u128::from(amount) * u128::from(S) * u128::from(depth) / u128::from(per_s);
        Some(Some(u64::try_from(ns).unwrap_or(u64::MAX).max(1)))
    }

    /// The pauses of a process: after how many accesses, for how long, and how much of that it computes.
    #[expect(clippy::option_option, reason = "a wrong pause, and no pause")]
    fn think(&mut self, section: &Section) -> Option<Option<(u64, u64, u64)>> {
        let Some(ns) = self.time(section, "thinktime", 1_000)?.filter(|ns| *ns > 0) else {
            return Some(None);
        };
        let spin_ns = self.time(section, "thinktime_spin", 1_000)?.unwrap_or(0).min(ns);
        let blocks = self.number(section, &["thinktime_blocks"], 1, 1..=TIMES_MAX)?;
        Some(Some((blocks, ns, spin_ns)))
    }

    /// The accesses that a process repeats, and their number.
    fn round(&mut self, pattern: &Pattern, section: &Section) -> (Vec<Step>, u64) {
        // Several accesses between two releases of a timer, if they are less than a microsecond apart.
        let per_release = pattern.rate_ns.map_or(1, |ns| 1_000u64.div_ceil(ns));
        let mut length = pattern.mix.length();
        let parts = [pattern.fsync.max(1), pattern.think.map_or(1, |(blocks, ..)| blocks), per_release];
        for part in parts {
            let both = length / gcd(length, part) * part;
            if both > PATTERN_MAX {
                let message = format!(
                    "section `{}`: `fsync`, `thinktime_blocks` and `rate` count no more than {PATTERN_MAX} accesses",
                    section.name
                );
                self.found.remark("left-out", &section.at, message);
            } else {
                length = both;
            }
        }
        let mut steps: Vec<Step> = Vec::new();
        let mut writes = 0;
        for access in 1..=length {
            let is_read = pattern.mix.is_read(access);
            let file = pattern.file.clone();
            writes += u64::from(!is_read);
            let random = pattern.random;
            steps.push(if is_read {
                Step::Read { file, bytes: pattern.block.0, random }
            } else {
                let sync = pattern.fsync > 0 && writes % pattern.fsync == 0;
                Step::Write { file, bytes: pattern.block.1, random, sync }
            });
            if let Some((blocks, ns, spin_ns)) = pattern.think
                && access % blocks.min(length) == 0
            {
                steps.extend((spin_ns > 0).then_some(Step::Cpu(spin_ns)));
                steps.extend((ns > spin_ns).then_some(Step::Sleep(ns - spin_ns)));
            }
            if let Some(ns) = pattern.rate_ns
                && access % per_release.min(length) == 0
            {
                let period_ns =
                    ns.saturating_mul(per_release.min(length)).clamp(1_000, crate::draft::STEP_MAX_NS);
                steps.push(Step::Timer { timer: "rate".to_owned(), period_ns, catch_up: true });
            }
        }
        (steps, length)
    }

    /// Writes programs and jobs. With several groups, one job runs them in turn.
    fn build(&mut self, groups: Vec<Vec<Work>>, options: &Options, draft: &mut Draft) {
        let mut longest_ns = 0u64;
        let has_groups = groups.len() > 1;
        let mut turns = Vec::new();
        for group in groups {
            let mut runs = Vec::new();
            let mut group_ns = 0;
            for mut work in group {
                group_ns = group_ns.max(work.start_ns.saturating_add(work.runtime_ns.unwrap_or(3600 * S)));
                if has_groups {
                    // Each run counts as a job, for its response time.
                    work.programs[0].is_job = true;
                    let (mut program, mut times) = (work.name.clone(), work.jobs);
                    if work.start_ns > 0 {
                        // A process of its own waits for the start: timers count from a process's start.
                        let run = Step::Run { program, times, at_once: times, beside: false };
                        (program, times) = (self.names.make(&format!("{}-later", work.name)), 1);
                        let (name, steps) = (program.clone(), vec![Step::Sleep(work.start_ns), run]);
                        work.programs.push(Program { name, memory_bytes: 0, is_job: false, steps });
                    }
                    // All begin at once.
                    runs.push(Step::Run { program, times, at_once: 1, beside: true });
                } else {
                    draft.jobs.push(Job {
                        name: work.name.clone(),
                        unit: options.unit.clone(),
                        program: work.name.clone(),
                        start_ns: work.start_ns,
                        count: work.jobs,
                        deadline_ns: None,
                        background: false,
                    });
                }
                draft.programs.append(&mut work.programs);
            }
            longest_ns = longest_ns.saturating_add(group_ns);
            if has_groups {
                let name = self.names.make("group");
                let run = Step::Run { program: name.clone(), times: 1, at_once: 1, beside: false };
                draft.programs.push(Program { name, memory_bytes: 0, is_job: false, steps: runs });
                turns.push(run);
            }
        }
        if has_groups {
            let name = self.names.make("fio");
            draft.jobs.push(Job {
                name: name.clone(),
                unit: options.unit.clone(),
                program: name.clone(),
                start_ns: 0,
                count: 1,
                deadline_ns: None,
                background: false,
            });
            draft.programs.push(Program { name, memory_bytes: 0, is_job: false, steps: turns });
        }
        if draft.programs.iter().any(|program| has_timer(&program.steps)) {
            draft.timers.push(("rate".to_owned(), false));
        }
        draft.horizon_ns = longest_ns.saturating_mul(2).clamp(3600 * S, HORIZON_MAX_NS);
    }

    /// A whole number; `default` if the section lacks the option.
    fn number(
        &mut self,
        section: &Section,
        keys: &[&str],
        default: u64,
        range: core::ops::RangeInclusive<u64>,
    ) -> Option<u64> {
        let Some(value) = section.find(keys) else { return Some(default) };
        let number = value.text.parse::<u64>().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let message = format!("`{}` cannot be `{}`", keys[0], value.text);
            let help = format!("write a whole number from {} to {}", range.start(), range.end());
            self.found.error("out-of-range", &value.at, message, &help);
        }
        number
    }

    /// An amount of bytes; the inner `None` if the section lacks the options.
    #[expect(clippy::option_option, reason = "a wrong size, and no size")]
    fn size(&mut self, section: &Section, keys: &[&str]) -> Option<Option<u64>> {
        let Some((key, value)) = keys.iter().find_map(|key| Some((*key, section.options.get(key)?))) else {
            return Some(None);
        };
        self.bytes(section, key, value).map(Some)
    }

    fn bytes(&mut self, section: &Section, key: &str, value: &Value) -> Option<u64> {
        let kilo_is_1000 = section.find(&["kb_base"]).is_some_and(|value| value.text == "1000");
        let bytes = bytes(value.text, kilo_is_1000).filter(|bytes| (1..=1 << 50).contains(bytes));
        if bytes.is_none() {
            let message = format!("`{key}` cannot be `{}`", value.text);
            let help = "write bytes with a suffix, up to 1p: 4k, 1g";
            self.found.error("out-of-range", &value.at, message, help);
        }
        bytes
    }

    /// A time in ns; a number without a suffix is in units of `unit_ns`.
    #[expect(clippy::option_option, reason = "a wrong time, and no time")]
    fn time(&mut self, section: &Section, key: &str, unit_ns: u64) -> Option<Option<u64>> {
        let Some(value) = section.options.get(key) else { return Some(None) };
        let time = time(value.text, unit_ns).filter(|ns| *ns <= crate::draft::STEP_MAX_NS);
        if time.is_none() {
            let message = format!("`{key}` cannot be `{}`", value.text);
            let help = "write a number with a suffix, up to a year: 30s, 5m, 100ms";
            self.found.error("out-of-range", &value.at, message, help);
        }
        time.map(Some)
    }
}

/// The accesses of a process.
struct Pattern {
    file: String,
    random: bool,
    mix: Mix,
    /// The sizes of a read and of a write.
    block: (u64, u64),
    /// After how many writes one waits until it is on the disk; 0: never.
    fsync: u64,
    /// The time between two accesses.
    rate_ns: Option<u64>,
    /// As [`Reader::think`] returns it.
    think: Option<(u64, u64, u64)>,
}

/// How many of how many accesses are reads, as a fraction in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mix {
    reads: u64,
    of: u64,
}

impl Mix {
    const READS: Mix = Mix { reads: 1, of: 1 };
    const WRITES: Mix = Mix { reads: 0, of: 1 };

    fn of(percent: u64) -> Mix {
        let common = gcd(percent, 100);
        Mix { reads: percent / common, of: 100 / common }
    }

    fn length(self) -> u64 {
        self.of
    }

    /// Whether an access, counted from 1, is a read: reads are spread evenly.
    fn is_read(self, access: u64) -> bool {
        access * self.reads / self.of > (access - 1) * self.reads / self.of
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

fn has_timer(steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Timer { .. } => true,
        Step::Repeat { steps, .. } => has_timer(steps),
        _ => false,
    })
}

/// An amount of bytes as fio reads it: `k` is 1024 and `ki` 1000, unless `kb_base` is 1000.
fn bytes(text: &str, kilo_is_1000: bool) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let suffix = text[digits..].trim_end_matches('b');
    let (letter, is_iec) = match suffix.strip_suffix('i') {
        Some(letter) => (letter, true),
        None => (suffix, false),
    };
    let power = match letter {
        "" if !is_iec => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    let kilo: u64 = if is_iec == kilo_is_1000 { 1024 } else { 1000 };
    number.checked_mul(kilo.checked_pow(power)?)
}

/// A time as fio reads it, in ns.
fn time(text: &str, unit_ns: u64) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let scale = match &text[digits..] {
        "" => unit_ns,
        "d" => 86_400 * S,
        "h" => 3_600 * S,
        "m" => 60 * S,
        "s" => S,
        "ms" | "msec" => 1_000_000,
        "us" | "usec" => 1_000,
        _ => return None,
    };
    number.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_fios_suffixes() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("4k", Some(4096)),
            ("4KB", Some(4096)),
            ("4KiB", Some(4000)),
            ("1g", Some(1 << 30)),
            ("50%", None),
            ("k", None),
            ("4x", None),
            ("99999999999999999999", None),
            ("99999999999p", None),
        ] {
            assert_eq!(bytes(text, false), expected, "{text}");
        }
        assert_eq!((bytes("4k", true), bytes("4ki", true)), (Some(4000), Some(4096)));
        assert_eq!(
            (time("5", S), time("5m", S), time("5", 1_000)),
            (Some(5 * S), Some(300 * S), Some(5_000))
        );
        assert_eq!((time("100ms", S), time("x", S)), (Some(S / 10), None));
    }

    #[test]
    fn reads_are_spread_evenly() {
        let mix = Mix::of(70);
        let reads: Vec<bool> = (1..=10).map(|access| mix.is_read(access)).collect();
        assert_eq!((mix.length(), reads.iter().filter(|is_read| **is_read).count()), (10, 7));
        assert!(!reads.windows(2).any(|pair| pair == [false, false]));
    }
}
