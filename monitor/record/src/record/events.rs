//! The scheduler's events, and requests to disks, through BPF.
//!
//! [`Events::attach`] loads the program (`bpf/record.bpf.c`), which writes events to a ring buffer for each
//! CPU. [`Events::drain`] empties the buffers. Dropping the value detaches the program.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use commonhold_recording::{Event, Left, TimedEvent};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Typedef, Var};
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, PrintLevel, Program, RingBuffer,
    RingBufferBuilder,
};

/// Compiled by build.rs.
static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/record.bpf.o"));

/// The size of a CPU's buffer in bytes. Most events take 32 bytes with
/// the kernel's header of 8 bytes, so it has room for 16,384; a transfer takes 40.
const BUFFER_BYTES: u32 = 512 << 10;
/// The bits of a CPU's preemption count while it serves an interrupt, by include/linux/preempt.h: the lowest
/// of those of software interrupts (the others count that they are disabled), of hardware interrupts, and of
/// NMIs.
const INTERRUPT_BITS: u32 = 1 << 8 | 0xf << 16 | 0xf << 20;
const INTERRUPT_BITS_7_2: u32 = 1 << 8 | 0xf << 24 | 1 << 28;

/// As in the program.
const CPUS_MAX: usize = 1024;

/// An attached program.
pub(super) struct Events {
    /// The program is attached as long as these exist.
    links: Vec<Link>,
    ring: RingBuffer<'static>,
    drained: Rc<RefCell<Vec<TimedEvent>>>,
    /// When the recording began, by the monotonic clock.
    begin_ns: u64,
    object: Object,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    /// Loads and attaches the program, which may take seconds.
    ///
    /// # Errors
    ///
    /// Why the kernel refuses, in words.
    pub(super) fn attach() -> Result<Events, String> {
        let quiet = libbpf_rs::set_print(Some((PrintLevel::Warn, |_, _| ())));
        let loaded = load(true).or_else(|_| load(false));
        libbpf_rs::set_print(quiet);
        let object = loaded.map_err(|error| format!("the kernel does not load the program: {error:#}"))?;
        let drained = Rc::new(RefCell::new(Vec::new()));
        let buffers = buffers(&object).map_err(|error| format!("cannot make buffers: {error:#}"))?;
        let mut builder = RingBufferBuilder::new();
        for buffer in &buffers {
            let drained = Rc::clone(&drained);
            let take = move |bytes: &[u8]| {
                drained.borrow_mut().extend(event(bytes));
                0
            };
            builder.add(buffer, take).map_err(|error| format!("cannot read a buffer: {error:#}"))?;
        }
        let ring = builder.build().map_err(|error| format!("cannot read the buffers: {error:#}"))?;
        let mut events = Events { links: Vec::new(), ring, drained, begin_ns: 0, object };
        for program in events.object.progs_mut() {
            if program.autoload() {
                let link =
                    program.attach().map_err(|error| format!("cannot attach the program: {error:#}"))?;
                events.links.push(link);
            }
        }
        Ok(events)
    }

    /// Forgets all events before `begin_ns` of the monotonic clock. Later events have their times since then.
    pub(super) fn begin(&mut self, begin_ns: u64) {
        self.begin_ns = begin_ns;
    }

    /// Appends the events since the last call to `into`, ordered by CPU, not by time.
    pub(super) fn drain(&mut self, into: &mut Vec<TimedEvent>) {
        // The callbacks do not fail.
        let _ = self.ring.consume();
        let since_begin = |mut timed: TimedEvent| {
            timed.at_ns = timed.at_ns.checked_sub(self.begin_ns)?;
            Some(timed)
        };
        into.extend(self.drained.borrow_mut().drain(..).filter_map(since_begin));
    }

    /// The number of events that were lost, because a buffer was full, or because the program was interrupted
    /// and an event of the same kind came meanwhile.
    pub(super) fn lost(&self) -> u64 {
        let map = self.object.maps().find(|map| map.name() == "lost");
        let count = map.and_then(|map| map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok().flatten());
        let full = count.and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?))).unwrap_or(0);
        full.saturating_add(self.missed())
    }

    /// How often the kernel skipped a program because it was already running on that CPU.
    fn missed(&self) -> u64 {
        let programs = self.object.progs().filter(libbpf_rs::ProgramImpl::autoload);
        let ids: Vec<u32> =
            programs.filter_map(|program| Program::id_from_fd(program.as_fd()).ok()).collect();
        let infos = ProgInfoIter::default().filter(|info| ids.contains(&info.id));
        infos.map(|info| info.recursion_misses).sum()
    }
}

/// Loads the program. `knows_interrupts`: a wake-up says whether an interrupt caused it.
fn load(knows_interrupts: bool) -> libbpf_rs::Result<Object> {
    let mut open = ObjectBuilder::default().open_memory(PROGRAM)?;
    let inner = buffer()?;
    for mut map in open.maps_mut() {
        if map.name() == "buffers" {
            map.set_inner_map_fd(inner.as_fd())?;
        }
    }
    let kernel = Btf::from_vmlinux()?;
    // A kernel without block devices has no such tracepoint.
    let has_disks = kernel.type_by_name::<Typedef<'_>>("btf_trace_block_bio_queue").is_some();
    // Since Linux 7.2, the preemption count also has the depth of disabled interrupts.
    let counts_disabled = kernel.type_by_name::<Var<'_>>("local_interrupt_disable_state").is_some();
    let interrupt_bits = if counts_disabled { INTERRUPT_BITS_7_2 } else { INTERRUPT_BITS };
    for mut map in open.maps_mut().filter(|map| map.name().to_string_lossy().ends_with(".rodata")) {
        // The program has one constant.
        if let Some(constant) = map.initial_value_mut().and_then(|value| value.get_mut(..4)) {
            constant.copy_from_slice(&interrupt_bits.to_ne_bytes());
        }
    }
    for mut program in open.progs_mut() {
        match &*program.name().to_string_lossy() {
            "on_request" => program.set_autoload(has_disks),
            "on_wakeup" | "on_first_wakeup" => program.set_autoload(knows_interrupts),
            "on_wakeup_by_any" | "on_first_wakeup_by_any" => program.set_autoload(!knows_interrupts),
            _ => {}
        }
    }
    open.load()
}

fn buffer() -> libbpf_rs::Result<MapHandle> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    MapHandle::create(MapType::RingBuf, Some("buffer"), 0, 0, BUFFER_BYTES, &options)
}

/// Makes a buffer for each CPU, and puts it into the program's table.
fn buffers(object: &Object) -> libbpf_rs::Result<Vec<MapHandle>> {
    let table = object.maps().find(|map| map.name() == "buffers");
    let table = table.ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))?;
    let cpus = libbpf_rs::num_possible_cpus()?.min(CPUS_MAX);
    (0..cpus)
        .map(|cpu| {
            let buffer = buffer()?;
            let index = u32::try_from(cpu).unwrap_or(u32::MAX).to_ne_bytes();
            table.update(&index, &buffer.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)?;
            Ok(buffer)
        })
        .collect()
}

/// An event from its bytes: `struct event` of the program, with the monotonic clock's time. `None` if they
/// are too short.
fn event(bytes: &[u8]) -> Option<TimedEvent> {
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (thread, other, detail) = (word(8)?, word(12)?, *bytes.get(19)?);
    let cpu = u32::from(u16::from_ne_bytes(bytes.get(16..18)?.try_into().ok()?));
    let event = match *bytes.get(18)? {
        1 => {
            let left = match detail {
                0 => Left::Preempted,
                1 => Left::Asleep,
                2 => Left::Blocked,
                _ => Left::Ended,
            };
            Event::Switch { cpu, from: thread, left, to: other }
        }
        2 => Event::Wake { cpu, thread, by: other, by_interrupt: detail != 0 },
        3 => Event::Fork { parent: thread, child: other },
        4 => {
            let (bytes, sector) = (word(20)?, long(24)?);
            Event::Transfer { thread, device: other, sector, bytes, write: detail != 0 }
        }
        _ => return None,
    };
    Some(TimedEvent { at_ns: long(0)?, event })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_programs_layout() {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&1_500_u64.to_ne_bytes());
        bytes.extend_from_slice(&7_u32.to_ne_bytes());
        bytes.extend_from_slice(&9_u32.to_ne_bytes());
        bytes.extend_from_slice(&3_u16.to_ne_bytes());
        bytes.extend_from_slice(&[1, 2]);
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        let blocked = Event::Switch { cpu: 3, from: 7, left: Left::Blocked, to: 9 };
        assert_eq!(event(&bytes), Some(TimedEvent { at_ns: 1_500, event: blocked }));
        bytes[18] = 4;
        assert_eq!(event(&bytes), None, "a transfer has a sector, too");
        bytes.extend_from_slice(&64_u64.to_ne_bytes());
        let transfer = Event::Transfer { thread: 7, device: 9, sector: 64, bytes: 0, write: true };
        assert_eq!(event(&bytes), Some(TimedEvent { at_ns: 1_500, event: transfer }));
        assert_eq!(event(&bytes[..20]), None);
    }
}
