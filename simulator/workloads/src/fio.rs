//! Reads a job file of fio.
//!
//! Each section becomes a program that reads and writes, and a job with a copy for each of its `numjobs`.
//! Sections that a `stonewall` separates are run by one job, one group after another.
//!
//! A process of the simulator has one access under way at a time. A section whose engine queues `iodepth`
//! accesses is divided among that many processes. Rates become periodic timers, which catch up as fio does.

use std::collections::BTreeMap;

use commonhold_contract::{Span, duration_text, nearest};

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
const READ_TOO: [&str; 4] = ["sync", "kb_base", "cpuload", "cpuchunks"];
/// Options that change the workload in ways that are not simulated.
const LEFT_OUT: [&str; 65] = [
    "number_ios",
    "nrfiles",
    "exitall",
    "create_only",
    "pre_read",
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
const IRRELEVANT: [&str; 59] = [
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
    "allow_file_create",
    "overwrite",
    "mem",
    "iomem",
    "iomem_align",
    "hugepage-size",
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
    "new_group",
];

/// Options of these that are off if their value is 0.
const SWITCHES: [&str; 3] = ["exitall", "create_only", "pre_read"];
/// Other names of options; the last line in the file counts, by whichever name. `buffered` is the contrary of
/// `direct`.
const ALIASES: [(&str, &str); 6] = [
    ("readwrite", "rw"),
    ("blocksize", "bs"),
    ("timeout", "runtime"),
    ("io_limit", "io_size"),
    ("wait_for_previous", "stonewall"),
    ("buffered", "direct"),
];

/// Engines that return from an access when it is done.
const IN_TURN: [&str; 7] = ["sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "splice"];
/// Engines that have several accesses to a file under way.
const ASYNCHRONOUS: [&str; 5] = ["libaio", "io_uring", "posixaio", "solarisaio", "windowsaio"];

/// The most sections. Each has a copy of the options of `[global]`, and up to two programs.
const SECTIONS_MAX: usize = PROGRAMS_MAX / 2;
/// The most accesses of a pattern that repeats.
const PATTERN_MAX: u64 = 1_000;
/// CPU time of an access for fio itself, where time would not pass otherwise: all pages may be cached.
const ACCESS_NS: u64 = 1_000;
/// The size of an access, by default.
const BLOCK_BYTES: u64 = 4_096;

/// A value and its position.
#[derive(Debug, Clone)]
struct Value<'t> {
    /// The option, by the name that the file gives it.
    key: &'t str,
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
    if sections.len() > SECTIONS_MAX {
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
        if section.is_set("stonewall") && !works.is_empty() {
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

/// Divides the text into sections: one more than there may be, at most.
fn sections<'t>(text: &'t str, found: &mut Found) -> Vec<Section<'t>> {
    let mut global: BTreeMap<&str, Value> = BTreeMap::new();
    let mut sections: Vec<Section> = Vec::new();
    let mut in_global = true;
    let mut start = 0;
    for raw in text.split_inclusive('\n') {
        let line_start = start;
        start += raw.len();
        // fio cuts a comment off wherever it begins, also within a value.
        let line = raw.split([';', '#']).next().unwrap_or_default().trim();
        let from = line_start + (raw.len() - raw.trim_start().len());
        let at = from..from + line.len();
        if line.is_empty() {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let Some(name) = rest.strip_suffix(']') else {
                found.error("syntax", &at, "the section's name has no end".to_owned(), "write [name]");
                continue;
            };
            in_global = name == "global";
            if !in_global && sections.len() == SECTIONS_MAX {
                let message = format!("there are more than {SECTIONS_MAX} sections");
                found.error("too-many-jobs", &at, message, "use `numjobs` for jobs that are alike");
                sections.push(Section { name, at, options: BTreeMap::new() });
                break;
            }
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
        let value_at = if value.is_empty() { at.clone() } else { at.end - value.len()..at.end };
        let is_read = READ.contains(&key) || READ_TOO.contains(&key);
        if LEFT_OUT.contains(&key) {
            if !(SWITCHES.contains(&key) && value == "0") {
                found.remark("left-out", &at, format!("`{key}` is not simulated"));
            }
        } else if !is_read && !IRRELEVANT.contains(&key) {
            let message = format!("unknown option `{key}`");
            found.advise("unknown-key", &at, message, || {
                let known = nearest(key, READ.iter().chain(&READ_TOO).chain(&LEFT_OUT).copied())?;
                Some(format!("did you mean `{known}`?"))
            });
        }
        if !is_read {
            continue;
        }
        let name = ALIASES.iter().find(|(alias, _)| *alias == key).map_or(key, |(_, name)| name);
        let text = match key {
            "buffered" if value == "0" => "1",
            "buffered" => "0",
            _ => value,
        };
        let value = Value { key, text, at: value_at };
        let table = if in_global { Some(&mut global) } else { sections.last_mut().map(|it| &mut it.options) };
        table.map(|table| table.insert(name, value));
    }
    sections
}

impl<'t> Section<'t> {
    fn find(&self, key: &str) -> Option<&Value<'t>> {
        self.options.get(key)
    }

    /// Whether a switch is on: it stands alone, or has a value other than 0 and `none`.
    fn is_set(&self, key: &str) -> bool {
        self.options.get(key).is_some_and(|value| !matches!(value.text, "0" | "none"))
    }

    /// Where an option stands, or else the section.
    fn place(&self, key: &str) -> Span {
        self.options.get(key).map_or(self.at.clone(), |value| value.at.clone())
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
        let engine = section.find("ioengine").map_or("psync", |value| value.text);
        let name = self.names.make(section.name);
        let jobs = self.number(section, "numjobs", 1, 1..=1_000_000)?;
        let start_ns = self.time(section, "startdelay", S)?.unwrap_or(0);
        let runtime_ns = self.time(section, "runtime", S)?.filter(|ns| *ns > 0);
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
            self.found.remark("iodepth", &section.place("iodepth"), message);
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
        let load = self.number(section, "cpuload", 100, 1..=100)?;
        let chunk_us = self.number(section, "cpuchunks", 50_000, 1..=1_000_000_000)?;
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
        let amount = self.size(section, "io_size")?;
        let Some(size) = self.size(section, "size")?.or(self.size(section, "filesize")?).or(amount) else {
            let message = format!("section `{}` does not say its `size`", section.name);
            self.found.error("missing-key", &section.at, message, "write size=1g");
            return None;
        };
        let amount = amount.unwrap_or(size);
        let direct = section.is_set("direct");
        let mut think = self.think(section)?;
        let depth = self.depth(section, engine, direct, think.as_mut())?;
        let file = match engine {
            "null" => {
                let message = "`null`: no access to a file, but 1 us of CPU time for each";
                self.found.remark("ioengine", &section.place("ioengine"), message);
                None
            }
            _ => Some(self.file(section, name, size)),
        };
        let loops = self.number(section, "loops", 1, 1..=TIMES_MAX)?;
        let [fsync, fdatasync] =
            ["fsync", "fdatasync"].map(|key| self.number(section, key, 0, 0..=TIMES_MAX));
        let fsync = match (fsync?, fdatasync?) {
            _ if section.is_set("sync") => 1,
            (0, fdatasync) => fdatasync,
            (fsync, _) => fsync,
        };
        let rate_ns = self.rate(section, mix, block, depth)?;
        let mut pattern = Pattern { file, random, mix, block, direct, fsync, rate_ns, think, per_release: 1 };
        // The accesses of `of` accesses have this many bytes.
        let bytes = mix.reads * block.0 + (mix.of - mix.reads) * block.1;
        let accesses = u128::from(amount) * u128::from(mix.of) / u128::from(bytes);
        let accesses = u64::try_from(accesses).unwrap_or(u64::MAX).max(1).div_ceil(depth);
        let length = self.length(&mut pattern, section);
        let mut round = pattern.steps(length, length);
        if time_based && !takes_time(&round) {
            round.push(Step::Cpu(ACCESS_NS * length));
        }
        let accesses = accesses.saturating_mul(loops);
        let (rounds, rest) = (accesses / length, accesses % length);
        if rounds > TIMES_MAX && !time_based {
            let message = format!("section `{}` makes more than {TIMES_MAX} accesses", section.name);
            let help = "write a smaller `size`, or a larger `bs`";
            self.found.error("out-of-range", &section.at, message, help);
            return None;
        }
        let mut steps = Vec::new();
        match (Times { most: (!time_based).then_some(rounds), for_ns: runtime_ns }) {
            Times { most: Some(0), .. } => {}
            Times { most: Some(1), for_ns: None } => steps = round,
            times => steps.push(Step::Repeat { times, steps: round }),
        }
        if !time_based {
            // The last round ends with the last access.
            steps.extend(pattern.steps(length, rest));
        }
        Some((Program { name: name.to_owned(), memory_bytes: 0, is_job: false, steps }, depth))
    }

    /// How many processes share the accesses of a job. Their pauses become as long as those of the one
    /// process that they stand for.
    fn depth(
        &mut self,
        section: &Section,
        engine: &str,
        direct: bool,
        think: Option<&mut Think>,
    ) -> Option<u64> {
        let at = section.place("ioengine");
        if engine == "null" || IN_TURN.contains(&engine) {
            return Some(1);
        }
        if !ASYNCHRONOUS.contains(&engine) {
            let message = format!(
                "the engine `{engine}` is not simulated: asynchronous accesses to a file stand for it"
            );
            self.found.advise("ioengine", &at, message, || {
                let known = nearest(engine, ASYNCHRONOUS.iter().chain(&IN_TURN).copied())?;
                Some(format!("did you mean `{known}`?"))
            });
        }
        let depth = self.number(section, "iodepth", 1, 1..=65_536)?;
        if engine == "libaio" && !direct && depth > 1 {
            let message =
                "`libaio` without `direct=1`: Linux makes the accesses in turn, as with `iodepth=1`";
            self.found.remark("iodepth", &section.place("iodepth"), message);
            return Some(1);
        }
        let Some(think) = think.filter(|_| depth > 1) else { return Some(depth) };
        // fio lets the accesses under way end before a pause, and there are no more than between two pauses.
        let depth = depth.min(think.blocks);
        *think = think.divided(think.blocks.div_ceil(depth), depth);
        let message = match (depth, think.blocks, duration_text(think.ns)) {
            (1, ..) => "`thinktime` after each access: one is under way at a time, whatever `iodepth` says"
                .to_owned(),
            (_, 1, pause) => {
                format!(
                    "`thinktime`: each of the {depth} processes pauses for {pause} after each of its accesses"
                )
            }
            (_, each, pause) => {
                format!(
                    "`thinktime`: each of the {depth} processes pauses for {pause} after {each} of its accesses"
                )
            }
        };
        self.found.remark("thinktime", &section.place("thinktime"), message);
        Some(depth)
    }

    /// `rw`: whether accesses are random, and how many are reads.
    fn direction(&mut self, section: &Section) -> Option<(bool, Mix)> {
        let value = section.find("rw");
        let (word, at) = value.map_or(("read", section.at.clone()), |value| (value.text, value.at.clone()));
        let (word, sequence) = word.split_once(':').map_or((word, false), |(word, _)| (word, true));
        if sequence {
            self.found.remark("left-out", &at, "the number behind `rw` is not simulated");
        }
        let mixed = |reader: &mut Self| {
            let writes = reader.number(section, "rwmixwrite", 50, 0..=100)?;
            let reads = reader.number(section, "rwmixread", 100 - writes, 0..=100)?;
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
        let Some(value) = section.find("bs") else { return Some((BLOCK_BYTES, BLOCK_BYTES)) };
        if value.text.contains('-') {
            let message = "a range of `bs`: all accesses have the smallest size";
            self.found.remark("left-out", &value.at, message);
        }
        // Of reads, writes and trims. The last counts for the others too; one that is empty is the default.
        let mut sizes = Vec::new();
        for part in value.text.split(',').take(2) {
            let text = part.split('-').next().unwrap_or_default().trim();
            sizes.push(match text {
                "" if value.text.contains(',') => BLOCK_BYTES,
                _ => self.bytes(section, "bs", &Value { text, ..value.clone() })?,
            });
        }
        let read = sizes.first().copied().unwrap_or(BLOCK_BYTES);
        let write = sizes.get(1).copied().unwrap_or(read);
        Some(match mix {
            Mix::READS => (read, read),
            Mix::WRITES => (write, write),
            _ => (read, write),
        })
    }

    /// The name of the section's file. It is the job's own unless `filename` names it.
    fn file(&mut self, section: &Section, program: &str, bytes: u64) -> String {
        let named = section.find("filename");
        let (id, wanted, shared) = match named {
            Some(value) => {
                if value.text.contains(':') {
                    self.found.remark("left-out", &value.at, "several files: all accesses go to the first");
                }
                let path = value.text.split(':').next().unwrap_or_default();
                let folder = section.find("directory").map_or("", |value| value.text);
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
        let Some(value) = section.find("rate_iops").or(section.find("rate")) else { return Some(None) };
        let is_iops = value.key == "rate_iops";
        // Of reads, writes and trims. The last counts for the others too; one that is empty or 0 is no limit.
        let mut rates = Vec::new();
        for text in value.text.split(',').map(str::trim).take(2) {
            rates.push(match text {
                "0" => None,
                "" if value.text.contains(',') => None,
                _ => Some(self.bytes(section, value.key, &Value { text, ..value.clone() })?),
            });
        }
        let read = rates.first().copied().flatten();
        let write = rates.get(1).copied().unwrap_or(read);
        // Of `of` accesses: what those of the directions with a limit amount to.
        let (reads, writes) = (mix.reads, mix.of - mix.reads);
        let of = |accesses: u64, block: u64| if is_iops { accesses } else { accesses * block };
        let (amount, per_s) = match (read.filter(|_| reads > 0), write.filter(|_| writes > 0)) {
            (None, None) => return Some(None),
            (Some(read), None) => (of(reads, block.0), read),
            (None, Some(write)) => (of(writes, block.1), write),
            (Some(read), Some(write)) => {
                (of(reads, block.0) + of(writes, block.1), read.saturating_add(write))
            }
        };
        if reads > 0 && writes > 0 && (read.is_none() || write.is_none()) {
            let (with, without) = if read.is_some() { ("reads", "writes") } else { ("writes", "reads") };
            let message =
                format!("`{}` of {with}: {without} keep to the same pace, as the mix says", value.key);
            self.found.remark("rate", &value.at, message);
        }
        let ns =
            u128::from(amount) * u128::from(S) * u128::from(depth) / (u128::from(per_s) * u128::from(mix.of));
        Some(Some(u64::try_from(ns).unwrap_or(u64::MAX).max(1)))
    }

    /// The pauses of a process.
    #[expect(clippy::option_option, reason = "a wrong pause, and no pause")]
    fn think(&mut self, section: &Section) -> Option<Option<Think>> {
        let Some(ns) = self.time(section, "thinktime", 1_000)?.filter(|ns| *ns > 0) else {
            return Some(None);
        };
        let spin_ns = self.time(section, "thinktime_spin", 1_000)?.unwrap_or(0).min(ns);
        let blocks = self.number(section, "thinktime_blocks", 1, 1..=TIMES_MAX)?;
        Some(Some(Think { blocks, ns, spin_ns }))
    }

    /// How many accesses a process repeats. What the pattern counts becomes less where that would be too
    /// many.
    fn length(&mut self, pattern: &mut Pattern, section: &Section) -> u64 {
        let mut length = pattern.mix.of;
        // A number of accesses that fits, for one that is wanted.
        let mut fit = |wanted: u64| {
            if length / gcd(length, wanted) * wanted <= PATTERN_MAX {
                length = length / gcd(length, wanted) * wanted;
                wanted
            } else {
                length *= (wanted / length).clamp(1, (PATTERN_MAX / length).max(1));
                length
            }
        };
        // Several accesses between two releases of a timer, if they are less than a microsecond apart.
        let per_release = pattern.rate_ns.map_or(1, |ns| 1_000u64.div_ceil(ns));
        // Rounded up where it does not fit, for a period that is long enough.
        pattern.per_release = match fit(per_release) {
            fits if fits < per_release => fit(per_release.next_multiple_of(pattern.mix.of)),
            fits => fits,
        };
        let writes = pattern.mix.of - pattern.mix.reads;
        if pattern.fsync > 0 && writes > 0 && pattern.syncs() {
            // After how many accesses both the mix and the count of writes begin again.
            let fsync = pattern.fsync;
            let wanted = pattern.mix.of.saturating_mul(fsync / gcd(fsync, writes));
            let fits = fit(wanted);
            if fits != wanted {
                pattern.fsync = fits / pattern.mix.of * writes;
                let key = if section.is_set("fsync") { "fsync" } else { "fdatasync" };
                let message =
                    format!("`{key}`: every {}th write waits, and not every {fsync}th", pattern.fsync);
                self.found.remark(key, &section.place(key), message);
            }
        }
        if let Some(think) = &mut pattern.think {
            let wanted = think.blocks;
            let fits = fit(wanted);
            if fits != wanted {
                *think = think.divided(fits, 1);
                let message = format!(
                    "`thinktime_blocks`: a pause of {} after {fits} accesses, and not after {wanted}",
                    duration_text(think.ns)
                );
                self.found.remark("thinktime", &section.place("thinktime_blocks"), message);
            }
        }
        length
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
        key: &str,
        default: u64,
        range: core::ops::RangeInclusive<u64>,
    ) -> Option<u64> {
        let Some(value) = section.find(key) else { return Some(default) };
        let number = value.text.parse::<u64>().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let message = format!("`{}` cannot be `{}`", value.key, value.text);
            let help = format!("write a whole number from {} to {}", range.start(), range.end());
            self.found.error("out-of-range", &value.at, message, &help);
        }
        number
    }

    /// An amount of bytes; the inner `None` if the section lacks the option.
    #[expect(clippy::option_option, reason = "a wrong size, and no size")]
    fn size(&mut self, section: &Section, key: &str) -> Option<Option<u64>> {
        let Some(value) = section.find(key) else { return Some(None) };
        self.bytes(section, value.key, value).map(Some)
    }

    fn bytes(&mut self, section: &Section, key: &str, value: &Value) -> Option<u64> {
        let kilo_is_1000 = section.find("kb_base").is_some_and(|value| value.text == "1000");
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
            let message = format!("`{}` cannot be `{}`", value.key, value.text);
            let help = "write a number with a suffix, up to a year: 30s, 5m, 100ms";
            self.found.error("out-of-range", &value.at, message, help);
        }
        time.map(Some)
    }
}

/// The accesses of a process.
struct Pattern {
    /// `None`: an access only takes CPU time.
    file: Option<String>,
    random: bool,
    mix: Mix,
    /// The sizes of a read and of a write.
    block: (u64, u64),
    /// Whether accesses go past the page cache.
    direct: bool,
    /// After how many writes one waits until it is on the disk; 0: never.
    fsync: u64,
    /// The time between two accesses.
    rate_ns: Option<u64>,
    think: Option<Think>,
    /// How many accesses are made between two releases of the timer.
    per_release: u64,
}

impl Pattern {
    /// Whether `fsync` says anything: accesses past the page cache wait anyway.
    fn syncs(&self) -> bool {
        !self.direct && self.file.is_some()
    }

    /// The first `count` accesses of a round of `length`.
    fn steps(&self, length: u64, count: u64) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        let mut writes = 0;
        for access in 1..=count.min(length) {
            let is_read = self.mix.is_read(access);
            writes += u64::from(!is_read);
            let (random, direct) = (self.random, self.direct);
            steps.push(match (self.file.clone(), is_read) {
                (None, _) => Step::Cpu(ACCESS_NS),
                (Some(file), true) => Step::Read { file, bytes: self.block.0, random, direct },
                (Some(file), false) => {
                    let sync = self.syncs() && self.fsync > 0 && writes % self.fsync == 0;
                    Step::Write { file, bytes: self.block.1, random, sync, direct }
                }
            });
            if let Some(Think { blocks, ns, spin_ns }) = self.think
                && access % blocks == 0
            {
                steps.extend((spin_ns > 0).then_some(Step::Cpu(spin_ns)));
                steps.extend((ns > spin_ns).then_some(Step::Sleep(ns - spin_ns)));
            }
            if let Some(ns) = self.rate_ns
                && access % self.per_release == 0
            {
                let period_ns = ns.saturating_mul(self.per_release).clamp(1_000, crate::draft::STEP_MAX_NS);
                steps.push(Step::Timer { timer: "rate".to_owned(), period_ns, catch_up: true });
            }
        }
        steps
    }
}

/// The pauses of a process.
#[derive(Debug, Clone, Copy)]
struct Think {
    /// After how many accesses it pauses.
    blocks: u64,
    /// For how long.
    ns: u64,
    /// How much of that it computes.
    spin_ns: u64,
}

impl Think {
    /// The pauses of each of `processes` after every `blocks` of its accesses: together, they pause and
    /// compute as much for each access as the one process that they stand for.
    fn divided(self, blocks: u64, processes: u64) -> Think {
        let pause = |ns: u64, of: u64| {
            let ns = u128::from(ns) * u128::from(blocks) * u128::from(of) / u128::from(self.blocks);
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        let ns = pause(self.ns, processes).clamp(1, crate::draft::STEP_MAX_NS);
        Think { blocks, ns, spin_ns: pause(self.spin_ns, 1).min(ns) }
    }
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
        assert_eq!((mix.of, reads.iter().filter(|is_read| **is_read).count()), (10, 7));
        assert!(!reads.windows(2).any(|pair| pair == [false, false]));
    }
}
