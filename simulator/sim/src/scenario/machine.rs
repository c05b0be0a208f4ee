//! Reads `machine.toml`: the simulated hardware and what its kernel costs.
//!
//! Every key but `version` and `shape` has a default, that of a present-day machine. A wrong value is reported and its
//! default kept, so that the values that depend on it can be checked too.

use std::collections::BTreeMap;

use commonhold_contract::document::{Document, Named};
use commonhold_contract::{Amount, Diagnostic, MILLIONTH, Problem, Resource, quantity};
use commonhold_dispatch::CPUS_MAX;
use commonhold_dispatch::SLICE_NS;
use commonhold_machine::{Machine, SyntheticError};
use toml::de::DeTable;

use super::keys::{BUS, CACHE, CONTENTION, DISK, KERNEL, Kind, LAST_CACHE, MACHINE, OF_MODELS, Table};
use super::limits::{BYTES_MAX, DISKS_MAX, SECTOR, TICK_MIN_NS};
use super::model::{
    Bus, Cache, CallBack, Contention, Disk, DiskModel, DiskOrder, Enforces, Hardware, KernelCosts,
    LINE_BYTES, MemoryLoans, Scheduler,
};
use super::values::{Entry, Parsed, Span, missing, number, number_32, read, tables};
use super::{interrupts, latency};
use crate::Time;

/// Part of memory that the kernel keeps for itself where a machine does not say, in millionths.
const KERNEL_PART: u64 = 40_000;

/// Sectors of the HP 97560: 1962 cylinders of 19 tracks of 72 sectors.
const HP97560_SECTORS: u64 = 1962 * 19 * 72;

/// What passes under a head of the HP 97560 in a second, in bytes: 72 sectors in each of 4002 rotations a minute.
const HP97560_BYTES_PER_S: u64 = 72 * SECTOR * 4002 / 60;

/// `CONFIG_HZ=250`, as distributions set it.
const TICK_NS: Time = 4_000_000;

impl KernelCosts {
    /// What a present-day Linux costs on a machine of so much memory, in bytes: the defaults of `machine.toml`.
    pub fn modern(memory_bytes: u64) -> Self {
        KernelCosts {
            tick_ns: TICK_NS,
            // Linux ends a slice at the first tick after it has expired.
            slice_ns: SLICE_NS.next_multiple_of(TICK_NS),
            scheduler: Scheduler::Commonhold,
            switch_ns: 2_000,
            ipi_ns: 1_000,
            signal_ns: 10_000,
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

/// Reads a machine, and finds every mistake in one go.
pub fn parse_machine(text: &str) -> Parsed<Hardware> {
    parse_with_place(text).0
}

/// The same, with the place of `scheduler`, where the machine says it: whether it can hold the scheme, the contract says.
pub(super) fn parse_with_place(text: &str) -> (Parsed<Hardware>, Option<Span>) {
    let mut place = None;
    let parsed = read(text, &MACHINE, |document, entries| {
        let mut reader = Reader { document, scheduler_at: None };
        let hardware = reader.machine(&entries);
        place = reader.scheduler_at;
        hardware
    });
    (parsed, place)
}

/// Where each key of a table stands that has a value.
type Places = BTreeMap<&'static str, Span>;

struct Reader<'d, 't> {
    document: &'d mut Document<'t>,
    scheduler_at: Option<Span>,
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
        let found = machine.clone();
        let cpus = machine.as_ref().map(|machine| machine.cpus.len());
        let disks = find("disk").map(|entry| self.disks(entry)).unwrap_or_default();
        if let Some(machine) = &mut machine {
            machine.disks = disks.iter().map(facts).collect();
        }
        let (cache, bus) =
            (find("cache").map(|entry| self.cache(entry)), find("bus").map(|entry| self.bus(entry)));
        if let (Some(machine), Some(bus)) = (&mut machine, &bus) {
            let line = cache.map_or(LINE_BYTES, |cache: Cache| cache.line_bytes);
            let carries = bus.transactions_per_ms.saturating_mul(1_000).saturating_mul(line);
            machine.bus_bytes_per_s = machine.bus_bytes_per_s.or(Some(carries));
        }
        let nowhere = Machine {
            cpus: Vec::new(),
            nodes: Vec::new(),
            swap_bytes: 0,
            disks: Vec::new(),
            bus_bytes_per_s: None,
            caches: Vec::new(),
        };
        Hardware {
            machine: machine.unwrap_or(nowhere),
            enforces: find("enforces").and_then(|entry| self.enforces(entry)).unwrap_or_default(),
            kernel,
            latency: find("latency").and_then(|entry| latency::read(self.document, entry, found.as_ref())),
            cache,
            last_cache_miss: find("last_cache").map_or(MILLIONTH, |entry| self.last_cache(entry)),
            bus,
            contention: find("contention").map(|entry| self.contention(entry)),
            interrupts: find("interrupts").map(|entry| interrupts::read(self.document, entry, cpus)),
            disks,
        }
    }

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

    fn kernel(&mut self, entry: Option<&Entry>, memory_bytes: Option<u64>) -> KernelCosts {
        let mut kernel = KernelCosts::modern(memory_bytes.unwrap_or(BYTES_MAX));
        let Some((entry, table)) = entry.and_then(|entry| Some((entry, self.document.table(entry)?))) else {
            self.memory_left(&kernel, memory_bytes, 0..0);
            return kernel;
        };
        let mut places = Places::new();
        for entry in self.document.entries(&KERNEL, table) {
            places.insert(entry.key.name, self.document.span(entry.value));
            self.kernel_cost(&entry, &mut kernel, memory_bytes);
        }
        let at = |name: &str| places.get(name).unwrap_or(&entry.at).clone();
        self.kernel_checks(&kernel, at);
        let memory = if places.contains_key("memory") { at("memory") } else { at("frame") };
        self.memory_left(&kernel, memory_bytes, memory);
        kernel
    }

    fn kernel_cost(&mut self, entry: &Entry, kernel: &mut KernelCosts, memory_bytes: Option<u64>) {
        let document = &mut *self.document;
        let long: &mut u64 = match entry.key.name {
            "tick" => &mut kernel.tick_ns,
            "slice" => &mut kernel.slice_ns,
            "switch" => &mut kernel.switch_ns,
            "ipi" => &mut kernel.ipi_ns,
            "signal" => &mut kernel.signal_ns,
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
                self.scheduler_at = Some(document.span(entry.value));
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
                let short = match name {
                    "cluster" => &mut kernel.cluster_pages,
                    "read_ahead" => &mut kernel.read_ahead,
                    "write_behind" => &mut kernel.write_behind,
                    _ => &mut kernel.request_sectors,
                };
                *short = number_32(document, entry).unwrap_or(*short);
                return;
            }
        };
        *long = number(document, entry).unwrap_or(*long);
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

    /// Bytes, or a part of the machine's memory, which is not known where the shape is wrong.
    fn kernel_memory(&mut self, entry: &Entry, memory_bytes: Option<u64>) -> Option<u64> {
        let text = self.document.string(entry, "an amount of memory in quotes")?;
        match quantity::amount(text, Resource::Memory) {
            Ok(Amount::Part(part)) => memory_bytes.map(|whole| Amount::Part(part).of(whole)),
            Ok(Amount::Absolute(bytes)) => Some(bytes),
            Err(problem) => {
                self.document.problem("quantity", entry.value, text, problem);
                None
            }
        }
    }

    /// Whether the values of `[kernel]` fit each other; `at` is where a key stands.
    fn kernel_checks(&mut self, kernel: &KernelCosts, at: impl Fn(&str) -> Span) {
        let mut wrong = |name: &str, message: String, help: &str| {
            self.document.report(Diagnostic::error("impossible-machine", at(name), message).help(help));
        };
        let frame = kernel.frame_bytes;
        if !frame.is_power_of_two() {
            let message = format!("a frame of {} is no power of two", quantity::bytes_text(frame));
            wrong("frame", message, "write a power of two, such as \"4KiB\"");
        }
        let request_bytes = u64::from(kernel.request_sectors) * SECTOR;
        if request_bytes < frame {
            let message = format!(
                "a request of {} sectors does not hold a frame of {}",
                kernel.request_sectors,
                quantity::bytes_text(frame)
            );
            let help = format!("write `request_sectors = {}` at least", frame.div_ceil(SECTOR));
            wrong("request_sectors", message, &help);
        }
        if (1..TICK_MIN_NS).contains(&kernel.tick_ns) {
            let message = format!(
                "a clock that ticks every {} does nothing else",
                quantity::duration_text(kernel.tick_ns)
            );
            let help =
                format!("write \"{}\" at least, or \"0s\" for none", quantity::duration_text(TICK_MIN_NS));
            wrong("tick", message, &help);
        }
        if kernel.tick_ns == 0 && kernel.call_back != CallBack::Now {
            let message = "a lent CPU goes back at a clock tick, but the machine has none".to_owned();
            wrong("tick", message, "write `call_back = \"now\"`, or a tick longer than \"0s\"");
        }
        if kernel.switch_ns >= kernel.slice_ns {
            let message =
                "a switch takes as long as the slice that it begins: no task would get on".to_owned();
            wrong("switch", message, "make `switch` shorter than `slice`");
        }
    }

    fn memory_left(&mut self, kernel: &KernelCosts, memory_bytes: Option<u64>, at: Span) {
        let Some(memory_bytes) = memory_bytes else { return };
        if kernel.memory_bytes.saturating_add(kernel.frame_bytes) <= memory_bytes {
            return;
        }
        let [own, frame, whole] =
            [kernel.memory_bytes, kernel.frame_bytes, memory_bytes].map(quantity::bytes_text);
        let message = format!(
            "the kernel keeps {own} of the machine's {whole} for itself, which leaves no frame of {frame}"
        );
        let help = "lower `memory` in [kernel], or give the machine more in its `shape`";
        self.document.report(Diagnostic::error("impossible-machine", at, message).help(help));
    }

    /// The numbers of a small table, by key, the defaults of which are given in the same order as its keys.
    fn numbers<const N: usize>(
        &mut self,
        entry: &Entry,
        table: &'static Table,
        defaults: [u64; N],
    ) -> ([u64; N], Places) {
        let (mut numbers, mut places) = (defaults, Places::new());
        let Some(found) = self.document.table(entry) else { return (numbers, places) };
        for entry in self.document.entries(table, found) {
            places.insert(entry.key.name, self.document.span(entry.value));
            let place = table.names().position(|name| name == entry.key.name);
            if let (Some(place), Some(number)) = (place, number(self.document, &entry)) {
                numbers[place] = number;
            }
        }
        (numbers, places)
    }

    fn cache(&mut self, entry: &Entry) -> Cache {
        let ([bytes, line_bytes, miss_ns], places) = self.numbers(entry, &CACHE, [1 << 20, 64, 80]);
        if line_bytes > bytes {
            let [line, whole] = [line_bytes, bytes].map(quantity::bytes_text);
            let message = format!("a line of {line} does not fit into a cache of {whole}");
            let at = places.get("line").or(places.get("bytes")).unwrap_or(&entry.at).clone();
            let help = "make the cache larger, or the line shorter";
            self.document.report(Diagnostic::error("impossible-machine", at, message).help(help));
        }
        Cache { bytes, line_bytes, miss_ns }
    }

    fn last_cache(&mut self, entry: &Entry) -> u64 {
        let ([thousandths], _) = self.numbers(entry, &LAST_CACHE, [1_000]);
        thousandths * 1_000
    }

    fn bus(&mut self, entry: &Entry) -> Bus {
        let ([transactions_per_ms], _) = self.numbers(entry, &BUS, [400_000]);
        Bus { transactions_per_ms }
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
        let mut sketch = Sketch::default();
        let (mut order, mut weighs, mut threshold_sectors, mut half_life_ns) = (None, false, 64, 500_000_000);
        let mut batch = 2;
        for entry in &entries {
            match entry.key.name {
                "model" => model = self.word(entry),
                "order" => order = self.word(entry).map(disk_order),
                "weighs" => weighs = self.document.switch(entry).unwrap_or(weighs),
                "threshold" => {
                    threshold_sectors = number(self.document, entry).unwrap_or(threshold_sectors);
                }
                "half_life" => half_life_ns = number(self.document, entry).unwrap_or(half_life_ns),
                "batch" => batch = number_32(self.document, entry).unwrap_or(batch),
                name => sketch.set(name, number(self.document, entry)),
            }
        }
        if let Some(model) = model {
            self.keys_of_model(&entries, model);
        }
        let (name, model) = (named.name.to_owned(), sketch.model(model.unwrap_or("ssd")));
        Disk { name, model, order, weighs, threshold_sectors, half_life_ns, batch }
    }

    fn word<'a>(&mut self, entry: &Entry<'a>) -> Option<&'a str> {
        let Kind::Choice(words) = entry.key.kind else { return None };
        self.document.choice(entry, words)
    }

    /// Refuses keys that only other models have: a `scale` that changes nothing would be believed.
    fn keys_of_model(&mut self, entries: &[Entry], model: &str) {
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

/// The mechanics of a disk whose model is not known yet.
struct Sketch {
    scale: u32,
    access_ns: Time,
    channels: u32,
    read_ns: Time,
    write_ns: Time,
    bytes_per_s: u64,
    bytes: u64,
}

impl Default for Sketch {
    fn default() -> Self {
        Sketch {
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

impl Sketch {
    fn set(&mut self, name: &str, value: Option<u64>) {
        let Some(value) = value else { return };
        // The table of keys keeps both within 32 bits.
        let short = u32::try_from(value).unwrap_or(u32::MAX);
        match name {
            "scale" => self.scale = short,
            "access" => self.access_ns = value,
            "channels" => self.channels = short,
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

/// The time that a sector takes at a rate, rounded to the nearest nanosecond.
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

/// What policies see of a disk.
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

/// How many sectors a disk has.
pub(crate) fn sectors(disk: &Disk) -> u64 {
    match disk.model {
        DiskModel::Hp97560 { .. } => HP97560_SECTORS,
        DiskModel::Fixed { sectors, .. } | DiskModel::Ssd { sectors, .. } => sectors,
    }
}

/// The error of a machine in words, as a problem with the part of the text that the word takes.
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
