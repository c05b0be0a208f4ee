//! Reads `machine.toml`: the simulated hardware and what its kernel costs.
//!
//! Every key but `version` and `shape` has a default, that of a present-day machine. A wrong value is
//! reported and its default kept, so that the values that depend on it can be checked too.

use std::collections::BTreeMap;

use commonhold_contract::document::{Document, Named};
use commonhold_contract::{Amount, Diagnostic, MILLIONTH, Problem, Resource, quantity};
use commonhold_dispatch::CPUS_MAX;
use commonhold_dispatch::SLICE_NS;
use commonhold_machine::{Machine, SyntheticError};
use toml::de::DeTable;

use super::keys::{
    BUS, CACHE, CONTENTION, DISK, DISTURBANCE, KERNEL, Kind, LAST_CACHE, MACHINE, OF_MODELS, Table,
};
use super::limits::{BYTES_MAX, DISKS_MAX, SECTOR, TICK_MIN_NS};
use super::model::{
    BatchChosen, Bus, BusDivision, Cache, CallBack, Contention, Disk, DiskModel, DiskOrder, Disturbance,
    Enforces, Hardware, KernelCosts, LINE_BYTES, MemoryLoans, Scheduler,
};
use super::values::{Entry, Parsed, Span, missing, number, number_32, read, tables};
use super::{interrupts, latency};
use crate::Time;

/// Default for the part of memory that the kernel keeps for itself, in millionths.
const KERNEL_PART: u64 = 40_000;

/// Sectors of the HP 97560: 1962 cylinders of 19 tracks of 72 sectors.
const HP97560_SECTORS: u64 = 1962 * 19 * 72;

/// Transfer rate of the HP 97560: 72 sectors pass under a head in each of 4002 rotations a minute.
const HP97560_BYTES_PER_S: u64 = 72 * SECTOR * 4002 / 60;

/// `CONFIG_HZ=250`, as distributions set it.
const TICK_NS: Time = 4_000_000;

impl KernelCosts {
    /// The defaults of `machine.toml`: the costs of a present-day Linux on a machine with `memory_bytes` of
    /// memory.
    pub fn modern(memory_bytes: u64) -> Self {
        KernelCosts {
            tick_ns: TICK_NS,
            // Linux ends a slice at the first tick after it has expired.
            slice_ns: SLICE_NS.next_multiple_of(TICK_NS),
            scheduler: Scheduler::Commonhold,
            switch_ns: 2_000,
            ipi_ns: 1_000,
            ipi_delays_ns: Vec::new(),
            idle_delays_ns: Vec::new(),
            signal_ns: 10_000,
            counter_age_ns: 0,
            interrupt_ns: 0,
            fault_ns: 1_000,
            request_ns: 5_000,
            fork_ns: 300_000,
            call_back: CallBack::Now,
            frame_bytes: 4096,
            memory_bytes: Amount::Part(KERNEL_PART).of(memory_bytes),
            cluster_pages: 8,
            memory_period_ns: 100_000_000,
            memory_loans: MemoryLoans::InTime,
            read_ahead: 2,
            write_behind: 8,
            request_sectors: 256,
            dirty_limit: MILLIONTH / 10,
            dirty_age_ns: 30_000_000_000,
        }
    }
}

/// Reads a machine. One pass reports every mistake.
pub fn parse_machine(text: &str) -> Parsed<Hardware> {
    parse_with_scheduler_span(text).0
}

/// Reads a machine, and returns the position of `scheduler` if the text has that key. Whether the scheduler
/// can hold the scheme depends on the contract, so the caller checks that and points at the key.
pub(super) fn parse_with_scheduler_span(text: &str) -> (Parsed<Hardware>, Option<Span>) {
    let mut scheduler_span = None;
    let parsed = read(text, &MACHINE, |document, entries| {
        let mut reader = Reader { document, scheduler_span: None };
        let hardware = reader.machine(&entries);
        scheduler_span = reader.scheduler_span;
        hardware
    });
    (parsed, scheduler_span)
}

/// The position of the value of each key that a table of the text has.
type Places = BTreeMap<&'static str, Span>;

struct Reader<'d, 't> {
    document: &'d mut Document<'t>,
    /// The position of `scheduler` in the text, once read.
    scheduler_span: Option<Span>,
}

impl Reader<'_, '_> {
    fn machine(&mut self, entries: &[Entry]) -> Hardware {
        let find = |name: &str| entries.iter().find(|entry| entry.key.name == name);
        let mut machine = find("shape").and_then(|entry| self.shape(entry));
        if find("shape").is_none() {
            let example = "\"nodes:1 cpus:8 memory:16GiB\"";
            missing(self.document, 0..0, "the machine", "shape", example);
        }
        let memory_bytes = machine.as_ref().map(Machine::memory_bytes);
        let kernel = self.kernel(find("kernel"), memory_bytes);
        let machine_without_disks = machine.clone();
        let cpus = machine.as_ref().map(|machine| machine.cpus.len());
        let disks = find("disk").map(|entry| self.disks(entry)).unwrap_or_default();
        if let Some(machine) = &mut machine {
            machine.disks = disks.iter().map(facts).collect();
        }
        let (cache, bus) =
            (find("cache").map(|entry| self.cache(entry)), find("bus").map(|entry| self.bus(entry)));
        if let (Some(machine), Some(bus)) = (&mut machine, &bus) {
            let line = cache.map_or(LINE_BYTES, |cache: Cache| cache.line_bytes);
            let capacity_bytes_per_s = bus.transactions_per_ms.saturating_mul(1_000).saturating_mul(line);
            machine.bus_bytes_per_s = machine.bus_bytes_per_s.or(Some(capacity_bytes_per_s));
        }
        // Stands in for a shape that could not be read, so that the other values are still checked.
        let empty_machine = Machine {
            cpus: Vec::new(),
            nodes: Vec::new(),
            swap_bytes: 0,
            disks: Vec::new(),
            bus_bytes_per_s: None,
            caches: Vec::new(),
        };
        Hardware {
            machine: machine.unwrap_or(empty_machine),
            enforces: find("enforces").and_then(|entry| self.enforces(entry)).unwrap_or_default(),
            kernel,
            latency: find("latency")
                .and_then(|entry| latency::read(self.document, entry, machine_without_disks.as_ref())),
            cache,
            last_cache_miss: find("last_cache").map_or(MILLIONTH, |entry| self.last_cache(entry)),
            bus,
            contention: find("contention").map(|entry| self.contention(entry)),
            interrupts: find("interrupts").map(|entry| interrupts::read(self.document, entry, cpus)),
            disturbance: find("disturbance").map(|entry| self.disturbance(entry)),
            disks,
        }
    }

    /// Reads `[disturbance]`.
    fn disturbance(&mut self, entry: &Entry) -> Disturbance {
        let mut disturbance =
            Disturbance { daemons: 0, every_ns: 100_000_000, runs_ns: 1_000_000, starts_ns: 0 };
        let Some(table) = self.document.table(entry) else { return disturbance };
        for entry in self.document.entries(&DISTURBANCE, table) {
            let field = match entry.key.name {
                "daemons" => {
                    disturbance.daemons = number_32(self.document, &entry).unwrap_or(0);
                    continue;
                }
                "every" => &mut disturbance.every_ns,
                "runs" => &mut disturbance.runs_ns,
                _ => &mut disturbance.starts_ns,
            };
            *field = number(self.document, &entry).unwrap_or(*field);
        }
        disturbance
    }

    /// The machine without its disks; `None` if the text is no valid shape.
    fn shape(&mut self, entry: &Entry) -> Option<Machine> {
        let text = self.document.string(entry, "a machine in words")?;
        match Machine::synthetic(text) {
            Ok(machine) if machine.cpus.len() > CPUS_MAX as usize => {
                let message =
                    format!("a machine of {} CPUs, and {CPUS_MAX} are simulated at most", machine.cpus.len());
                let span = self.document.span(entry.value);
                let help = "give it fewer nodes, or fewer CPUs of each";
                self.document.report(Diagnostic::error("bad-shape", span, message).help(help));
                None
            }
            Ok(machine) if machine.disks.is_empty() => Some(machine),
            Ok(machine) => {
                let message = "the disks of a simulated machine are not part of its shape";
                let help = "leave `disks` and `disk` out, and describe each disk below [disk.NAME]";
                let span = self.document.span(entry.value);
                self.document.report(Diagnostic::error("bad-shape", span, message).help(help));
                Some(machine)
            }
            Err(error) => {
                let problem = shape_problem(text, error);
                self.document.problem("bad-shape", entry.value, text, problem);
                None
            }
        }
    }

    /// Reads `[kernel]`; without the table, the defaults. `memory_bytes` is `None` if the shape is wrong.
    fn kernel(&mut self, entry: Option<&Entry>, memory_bytes: Option<u64>) -> KernelCosts {
        let mut kernel = KernelCosts::modern(memory_bytes.unwrap_or(BYTES_MAX));
        let Some((entry, table)) = entry.and_then(|entry| Some((entry, self.document.table(entry)?))) else {
            self.check_kernel_memory(&kernel, memory_bytes, 0..0);
            return kernel;
        };
        let mut places = Places::new();
        for entry in self.document.entries(&KERNEL, table) {
            places.insert(entry.key.name, self.document.span(entry.value));
            self.kernel_cost(&entry, &mut kernel, memory_bytes);
        }
        let at = |name: &str| places.get(name).unwrap_or(&entry.at).clone();
        self.check_kernel(&kernel, at);
        let memory = if places.contains_key("memory") { at("memory") } else { at("frame") };
        self.check_kernel_memory(&kernel, memory_bytes, memory);
        kernel
    }

    /// Reads one key of `[kernel]` into its field. A wrong value is reported, and leaves the field at its
    /// default.
    fn kernel_cost(&mut self, entry: &Entry, kernel: &mut KernelCosts, memory_bytes: Option<u64>) {
        let document = &mut *self.document;
        let field_64: &mut u64 = match entry.key.name {
            "tick" => &mut kernel.tick_ns,
            "slice" => &mut kernel.slice_ns,
            "switch" => &mut kernel.switch_ns,
            "ipi" => &mut kernel.ipi_ns,
            "signal" => &mut kernel.signal_ns,
            "counter_age" => &mut kernel.counter_age_ns,
            "interrupt" => &mut kernel.interrupt_ns,
            "fault" => &mut kernel.fault_ns,
            "request" => &mut kernel.request_ns,
            "fork" => &mut kernel.fork_ns,
            "frame" => &mut kernel.frame_bytes,
            "memory_period" => &mut kernel.memory_period_ns,
            "dirty_limit" => &mut kernel.dirty_limit,
            "dirty_age" => &mut kernel.dirty_age_ns,
            "memory" => {
                kernel.memory_bytes = self.kernel_memory(entry, memory_bytes).unwrap_or(kernel.memory_bytes);
                return;
            }
            "scheduler" => {
                self.scheduler_span = Some(document.span(entry.value));
                kernel.scheduler = self.scheduler(entry).unwrap_or(kernel.scheduler);
                return;
            }
            "call_back" => {
                kernel.call_back = self.call_back(entry).unwrap_or(kernel.call_back);
                return;
            }
            "memory_loans" => {
                kernel.memory_loans = self.memory_loans(entry).unwrap_or(kernel.memory_loans);
                return;
            }
            name => {
                let field_32 = match name {
                    "cluster" => &mut kernel.cluster_pages,
                    "read_ahead" => &mut kernel.read_ahead,
                    "write_behind" => &mut kernel.write_behind,
                    _ => &mut kernel.request_sectors,
                };
                *field_32 = number_32(document, entry).unwrap_or(*field_32);
                return;
            }
        };
        *field_64 = number(document, entry).unwrap_or(*field_64);
    }

    fn enforces(&mut self, entry: &Entry) -> Option<Enforces> {
        let word = self.word(entry)?;
        [Enforces::Irix, Enforces::Linux].into_iter().find(|enforces| enforces.name() == word)
    }

    fn scheduler(&mut self, entry: &Entry) -> Option<Scheduler> {
        let word = self.word(entry)?;
        Scheduler::ALL.into_iter().find(|scheduler| scheduler.name() == word)
    }

    fn call_back(&mut self, entry: &Entry) -> Option<CallBack> {
        let Kind::Choice(words) = entry.key.kind else { return None };
        Some(match self.document.choice(entry, words)? {
            "tick" => CallBack::Tick,
            "entry" => CallBack::Entry,
            _ => CallBack::Now,
        })
    }

    fn memory_loans(&mut self, entry: &Entry) -> Option<MemoryLoans> {
        Some(match self.word(entry)? {
            "any" => MemoryLoans::Any,
            _ => MemoryLoans::InTime,
        })
    }

    /// Reads how much memory the kernel keeps: bytes, or a percentage of the machine's memory. If the key
    /// `shape` is invalid, `memory_bytes` is `None`, and a percentage gives `None`.
    fn kernel_memory(&mut self, entry: &Entry, memory_bytes: Option<u64>) -> Option<u64> {
        let text = self.document.string(entry, "an amount of memory in quotes")?;
        match quantity::amount(text, Resource::Memory) {
            Ok(Amount::Part(part)) => memory_bytes.map(|bytes| Amount::Part(part).of(bytes)),
            Ok(Amount::Absolute(bytes)) => Some(bytes),
            Err(problem) => {
                self.document.problem("quantity", entry.value, text, problem);
                None
            }
        }
    }

    /// Reports values of `[kernel]` that contradict each other; `at` gives a key's position in the text.
    fn check_kernel(&mut self, kernel: &KernelCosts, at: impl Fn(&str) -> Span) {
        let mut report = |name: &str, message: String, help: &str| {
            self.document.report(Diagnostic::error("impossible-machine", at(name), message).help(help));
        };
        let frame = kernel.frame_bytes;
        if !frame.is_power_of_two() {
            let message = format!("a frame of {} is no power of two", quantity::bytes_text(frame));
            report("frame", message, "write a power of two, such as \"4KiB\"");
        }
        let request_bytes = u64::from(kernel.request_sectors) * SECTOR;
        if request_bytes < frame {
            let message = format!(
                "a request of {} sectors does not hold a frame of {}",
                kernel.request_sectors,
                quantity::bytes_text(frame)
            );
            let help = format!("write `request_sectors = {}` at least", frame.div_ceil(SECTOR));
            report("request_sectors", message, &help);
        }
        if (1..TICK_MIN_NS).contains(&kernel.tick_ns) {
            let message = format!(
                "a clock that ticks every {} does nothing else",
                quantity::duration_text(kernel.tick_ns)
            );
            let help =
                format!("write \"{}\" at least, or \"0s\" for none", quantity::duration_text(TICK_MIN_NS));
            report("tick", message, &help);
        }
        if kernel.tick_ns == 0 && kernel.call_back != CallBack::Now {
            let message = "a lent CPU goes back at a clock tick, but the machine has none".to_owned();
            report("tick", message, "write `call_back = \"now\"`, or a tick longer than \"0s\"");
        }
        if kernel.switch_ns >= kernel.slice_ns {
            let message =
                "a switch takes as long as the slice that it begins: no task would get on".to_owned();
            report("switch", message, "make `switch` shorter than `slice`");
        }
    }

    /// Reports a kernel that leaves not one frame of the machine's memory to processes.
    fn check_kernel_memory(&mut self, kernel: &KernelCosts, memory_bytes: Option<u64>, at: Span) {
        let Some(memory_bytes) = memory_bytes else { return };
        if kernel.memory_bytes.saturating_add(kernel.frame_bytes) <= memory_bytes {
            return;
        }
        let [kernel_memory, frame, memory] =
            [kernel.memory_bytes, kernel.frame_bytes, memory_bytes].map(quantity::bytes_text);
        let message = format!(
            "the kernel keeps {kernel_memory} of the machine's {memory} for itself, which leaves no frame of {frame}"
        );
        let help = "lower `memory` in [kernel], or give the machine more in its `shape`";
        self.document.report(Diagnostic::error("impossible-machine", at, message).help(help));
    }

    /// Reads a table whose values are all numbers: the numbers in the order of the table's keys, and the
    /// position of each value in the text. `defaults` has the same order.
    fn numbers<const N: usize>(
        &mut self,
        entry: &Entry,
        table: &'static Table,
        defaults: [u64; N],
    ) -> ([u64; N], Places) {
        let (mut numbers, mut places) = (defaults, Places::new());
        let Some(toml) = self.document.table(entry) else { return (numbers, places) };
        for entry in self.document.entries(table, toml) {
            places.insert(entry.key.name, self.document.span(entry.value));
            let index = table.names().position(|name| name == entry.key.name);
            if let (Some(index), Some(number)) = (index, number(self.document, &entry)) {
                numbers[index] = number;
            }
        }
        (numbers, places)
    }

    fn cache(&mut self, entry: &Entry) -> Cache {
        let ([bytes, line_bytes, miss_ns], places) = self.numbers(entry, &CACHE, [1 << 20, 64, 80]);
        if line_bytes > bytes {
            let [line, cache] = [line_bytes, bytes].map(quantity::bytes_text);
            let message = format!("a line of {line} does not fit into a cache of {cache}");
            let at = places.get("line").or(places.get("bytes")).unwrap_or(&entry.at).clone();
            let help = "make the cache larger, or the line shorter";
            self.document.report(Diagnostic::error("impossible-machine", at, message).help(help));
        }
        Cache { bytes, line_bytes, miss_ns }
    }

    /// How much longer a step takes without its data in the last-level cache, in millionths.
    fn last_cache(&mut self, entry: &Entry) -> u64 {
        let ([thousandths], _) = self.numbers(entry, &LAST_CACHE, [1_000]);
        thousandths * 1_000
    }

    fn bus(&mut self, entry: &Entry) -> Bus {
        let mut bus = Bus::DEFAULT;
        let Some(table) = self.document.table(entry) else { return bus };
        for entry in self.document.entries(&BUS, table) {
            match entry.key.name {
                "transactions" => {
                    bus.transactions_per_ms =
                        number(self.document, &entry).unwrap_or(bus.transactions_per_ms);
                }
                "streams" => bus.streams = number_32(self.document, &entry).unwrap_or(bus.streams),
                _ if self.word(&entry) == Some("even") => bus.division = BusDivision::Even,
                _ => {}
            }
        }
        bus
    }

    fn contention(&mut self, entry: &Entry) -> Contention {
        let ([lock_demand, stall], _) = self.numbers(entry, &CONTENTION, [0, 0]);
        Contention { lock_demand, stall }
    }

    fn disks(&mut self, entry: &Entry) -> Vec<Disk> {
        let tables = tables(self.document, entry, "disk", DISKS_MAX);
        tables.iter().map(|(named, table)| self.disk(named, table)).collect()
    }

    fn disk(&mut self, named: &Named, table: &DeTable) -> Disk {
        let entries = self.document.entries(&DISK, table);
        let mut model = Some("ssd");
        let mut mechanics = Mechanics::default();
        let (mut order, mut weighs, mut threshold_sectors, mut half_life_ns) = (None, false, 64, 500_000_000);
        let (mut batch, mut batch_chosen) = (2, BatchChosen::AtCompletion);
        let mut depth = None;
        for entry in &entries {
            match entry.key.name {
                "model" => model = self.word(entry),
                "order" => order = self.word(entry).map(disk_order),
                "weighs" => weighs = self.document.switch(entry).unwrap_or(weighs),
                "depth" => depth = number_32(self.document, entry),
                "threshold" => {
                    threshold_sectors = number(self.document, entry).unwrap_or(threshold_sectors);
                }
                "half_life" => half_life_ns = number(self.document, entry).unwrap_or(half_life_ns),
                "batch" => batch = number_32(self.document, entry).unwrap_or(batch),
                "batch_chosen" => {
                    batch_chosen = match self.word(entry) {
                        Some("after-resubmission") => BatchChosen::AfterResubmission,
                        _ => BatchChosen::AtCompletion,
                    };
                }
                name => mechanics.set(name, number(self.document, entry)),
            }
        }
        if let Some(model) = model {
            self.refuse_keys_of_other_models(&entries, model);
        }
        let (name, model) = (named.name.to_owned(), mechanics.model(model.unwrap_or("ssd")));
        Disk { name, model, order, weighs, depth, threshold_sectors, half_life_ns, batch, batch_chosen }
    }

    /// The word of a key whose value is one of a few words; `None` if the value is another.
    fn word<'a>(&mut self, entry: &Entry<'a>) -> Option<&'a str> {
        let Kind::Choice(words) = entry.key.kind else { return None };
        self.document.choice(entry, words)
    }

    /// Refuses keys that only other models of disk have: the user would believe that they have an effect.
    fn refuse_keys_of_other_models(&mut self, entries: &[Entry], model: &str) {
        for entry in entries {
            let models =
                OF_MODELS.iter().find(|(name, _)| *name == entry.key.name).map(|(_, models)| *models);
            let Some(models) = models.filter(|models| !models.contains(&model)) else { continue };
            let name = entry.key.name;
            let message = format!("a disk of model `{model}` has no `{name}`");
            let help = format!("remove it, or write `model = \"{}\"`", models[0]);
            self.document
                .report(Diagnostic::error("key-of-other-model", entry.at.clone(), message).help(help));
        }
    }
}

/// The values of all models' keys, collected before the disk's model is known: the keys of a table come in
/// any order.
struct Mechanics {
    scale: u32,
    access_ns: Time,
    channels: u32,
    read_ns: Time,
    write_ns: Time,
    bytes_per_s: u64,
    bytes: u64,
}

impl Default for Mechanics {
    fn default() -> Self {
        Mechanics {
            scale: 1,
            access_ns: 5_000_000,
            channels: 8,
            read_ns: 80_000,
            write_ns: 20_000,
            bytes_per_s: 400 << 20,
            bytes: 1 << 40,
        }
    }
}

impl Mechanics {
    /// Sets the value of a key; `None`, a value that could not be read, leaves the default.
    fn set(&mut self, key: &str, value: Option<u64>) {
        let Some(value) = value else { return };
        // The table of keys keeps `scale` and `channels` within 32 bits.
        let value_32 = u32::try_from(value).unwrap_or(u32::MAX);
        match key {
            "scale" => self.scale = value_32,
            "access" => self.access_ns = value,
            "channels" => self.channels = value_32,
            "read" => self.read_ns = value,
            "write" => self.write_ns = value,
            "rate" => self.bytes_per_s = value,
            _ => self.bytes = value,
        }
    }

    fn model(&self, model: &str) -> DiskModel {
        let (sector_ns, sectors) = (sector_ns(self.bytes_per_s), self.bytes / SECTOR);
        match model {
            "hp97560" => DiskModel::Hp97560 { scale: self.scale },
            "fixed" => DiskModel::Fixed { access_ns: self.access_ns, sector_ns, sectors },
            _ => DiskModel::Ssd {
                channels: self.channels,
                read_ns: self.read_ns,
                write_ns: self.write_ns,
                sector_ns,
                sectors,
            },
        }
    }
}

/// The transfer time of one sector at this rate, rounded to the nearest nanosecond.
fn sector_ns(bytes_per_s: u64) -> Time {
    (SECTOR * 1_000_000_000 + bytes_per_s / 2) / bytes_per_s
}

fn disk_order(word: &str) -> DiskOrder {
    match word {
        "position" => DiskOrder::Position,
        "isolation" => DiskOrder::Isolation,
        "fair" => DiskOrder::Fair,
        "linux" => DiskOrder::Linux,
        "yfq" => DiskOrder::Yfq,
        _ => DiskOrder::Batched,
    }
}

/// The disk as policies see it: name, size and transfer rate.
fn facts(disk: &Disk) -> commonhold_machine::Disk {
    let rate = |sector_ns: Time| SECTOR * 1_000_000_000 / sector_ns;
    let bytes_per_s = match disk.model {
        DiskModel::Hp97560 { scale } => HP97560_BYTES_PER_S * u64::from(scale),
        DiskModel::Fixed { sector_ns, .. } => rate(sector_ns),
        DiskModel::Ssd { channels, sector_ns, .. } => rate(sector_ns) * u64::from(channels),
    };
    let name = disk.name.clone();
    commonhold_machine::Disk { name, bytes: sectors(disk) * SECTOR, bytes_per_s: Some(bytes_per_s) }
}

/// The number of sectors of a disk.
pub(crate) fn sectors(disk: &Disk) -> u64 {
    match disk.model {
        DiskModel::Hp97560 { .. } => HP97560_SECTORS,
        DiskModel::Fixed { sectors, .. } | DiskModel::Ssd { sectors, .. } => sectors,
    }
}

/// Turns an error in a machine's shape into a problem of the document. The error counts columns in
/// characters; the problem's span counts bytes.
fn shape_problem(text: &str, error: SyntheticError) -> Problem {
    let start = text.char_indices().nth(error.column - 1).map_or(text.len(), |(offset, _)| offset);
    let end = text.len().min(start + error.word.len());
    let message = match error.word.is_empty() {
        true => format!("the machine's shape: {}", error.what),
        false => format!("the machine's shape, `{}`: {}", error.word, error.what),
    };
    Problem { span: start..end, message, help: error.remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_sector_is_rounded_to_the_nearest() {
        // 512 B at 5 MiB/s: 97,656.25 ns. At 2 GiB/s: 238.42 ns. At 300 MB/s: 1,706.67 ns.
        assert_eq!([5 << 20, 2 << 30, 300_000_000].map(sector_ns), [97_656, 238, 1_707]);
    }

    #[test]
    fn the_hp_97560_has_the_size_and_rate_of_its_data_sheet() {
        // 1.37 GB; 36,864 bytes a track, 66.7 tracks a second: 2.46 MB/s.
        assert_eq!((HP97560_SECTORS * SECTOR, HP97560_BYTES_PER_S), (1_374_216_192, 2_458_828));
    }
}
