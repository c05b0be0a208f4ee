//! Files, page faults and page-outs: the memory that tasks request, and the disk transfers that result.
//!
//! A read whose pages are in the cache costs nothing; otherwise it waits for the disk. A file that is read in
//! sequence is read ahead. A write goes to the cache, and write-behind takes it to the disk in large batches,
//! on behalf of the `shared` unit. A task that writes faster than the disk is throttled at the dirty limit. A
//! page fault takes a free frame, or makes its unit give up one.
//!
//! Sources: seed 000, sections 3.2, 3.3 and 4.5.

use commonhold_contract::UnitId;
use commonhold_dispatch::TaskId;

use super::program::{BEGUN, Done, NEW};
use super::task::TaskState;
use super::{Engine, NONE, number};
use crate::Time;
use crate::disk::Request;
use crate::memory::{FileId, Grant, PageOut, Source, SpaceId};
use crate::scenario::{Amount, Enforces, Spread};

// Stages of a read, after NEW:
/// The task reads sequentially beyond the part of the file that was read or written before.
const READING_ON: u32 = 1;
/// The task reads the pages that are not cached.
const READING_MISSING: u32 = 2;
/// All pages are cached, and are copied into the reader's own cache.
const COPIES: u32 = 3;
// Stages of a write, after NEW; a synchronous write alternates between them for each batch:
/// The task writes a batch into the cache.
const CACHING: u32 = 1;
/// The batch is in the cache, and is written to the disk.
const CACHED: u32 = 2;
/// The last stage of a metadata write: its request has been sent.
const METADATA_SENT: u32 = 2;
/// Bytes of a disk sector.
pub(super) const SECTOR: u64 = 512;
/// The number of clusters that the pager takes from a unit at once.
const PAGED_AT_ONCE: u32 = 4;
/// Pieces of a fragmented file are this many times their size apart.
const SCATTER: u64 = 6;

/// A file of an instance, or of the whole machine.
#[derive(Debug, Clone)]
pub(super) struct FileState {
    /// The file's pages in the page cache.
    cache: FileId,
    /// The readers' copies, which are cached as a file of their own, and the largest number of copied pages;
    /// see [`Engine::copy`].
    copies: Option<(FileId, u64)>,
    drive: usize,
    /// The file's first sector; the sizes of the file and of its fragments, in pages.
    start: u64,
    pages: u64,
    piece: u64,
    /// The end of the part that was read or written at least once, as a page number.
    front: u64,
    /// The pages up to which sequential reads were requested, and up to which they have arrived.
    requested: u64,
    arrived: u64,
    /// The page ranges of reads in flight.
    in_flight: Vec<(u64, u64)>,
    /// Tasks that wait for pages, each with the page up to which it waits.
    waiting: Vec<(TaskId, u64)>,
    /// The page at which write-behind continues.
    flushed: u64,
    hot: Hot,
}

/// The part of a file's pages that is read most often, and the part of the random reads that go there, in
/// millionths; none if either is 0.
#[derive(Debug, Clone, Copy)]
struct Hot {
    pages: u32,
    reads: u32,
}

impl Hot {
    /// How many pages would have to be cached if all were read alike, for the hit rate that `cached` pages of
    /// `all` have. The hot pages are the first in the cache.
    fn effective(self, cached: u64, all: u64) -> u64 {
        const WHOLE: u128 = 1_000_000;
        let (pages, reads) = (u128::from(self.pages), u128::from(self.reads));
        if pages == 0 || reads == 0 {
            return cached;
        }
        let (cached, all) = (u128::from(cached), u128::from(all));
        let hot = (all * pages / WHOLE).max(1);
        let from_hot = all * reads * cached.min(hot) / (WHOLE * hot);
        let cold = all.saturating_sub(hot);
        let from_cold =
            (all * (WHOLE - reads) * cached.saturating_sub(hot)).checked_div(WHOLE * cold).unwrap_or(0);
        u64::try_from(from_hot + from_cold).unwrap_or(u64::MAX)
    }
}

/// What a disk transfer is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// None: the request's number is free.
    Free,
    /// A delayed metadata write, for which no task waits.
    Nobody,
    /// A transfer that a task waits for.
    Task(TaskId),
    /// A sequential read, or read-ahead, of a file's pages into the cache.
    Ahead { file: u32, from: u64, to: u64 },
    /// A page-out.
    Out(PageOut),
    /// Write-behind.
    Behind(PageOut),
}

impl Purpose {
    /// The pages of memory that the transfer writes to disk.
    pub(super) fn pages_out(&self) -> u64 {
        match self {
            Purpose::Out(out) | Purpose::Behind(out) => out.pages(),
            Purpose::Free | Purpose::Nobody | Purpose::Task(_) | Purpose::Ahead { .. } => 0,
        }
    }
}

impl Engine<'_> {
    pub(super) fn frame_bytes(&self) -> u64 {
        self.scenario.hardware.kernel.frame_bytes
    }

    fn sectors(&self, pages: u64) -> u32 {
        capped(pages * self.frame_bytes() / SECTOR)
    }

    /// Pages of one read-ahead or write-behind request.
    fn batch(&self) -> u64 {
        (u64::from(self.scenario.hardware.kernel.request_sectors) * SECTOR / self.frame_bytes()).max(1)
    }

    /// The index of the open file that an instance means by the workload's file number `named`. Opens the
    /// file at the instance's first access; a file that the workload shares among instances is opened once.
    fn file(&mut self, instance: u32, named: u16) -> u32 {
        let known = self.instances[instance as usize].files[named as usize];
        if known != NONE {
            return known;
        }
        let definition = &self.scenario.workload.files[named as usize];
        let opened_by_other = match definition.shared {
            true => self.instances.iter().map(|other| other.files[named as usize]).find(|file| *file != NONE),
            false => None,
        };
        let file = opened_by_other.unwrap_or_else(|| {
            let drive = definition.disk.map_or(self.instances[instance as usize].disk, usize::from);
            let pages = definition.bytes.div_ceil(self.frame_bytes()).max(1);
            let piece = match definition.fragment_bytes {
                0 => pages,
                bytes => bytes.div_ceil(self.frame_bytes()).min(pages),
            };
            let copied = (definition.buffer_bytes / self.frame_bytes()).min(pages);
            let room = u64::from(self.sectors(pages)) * if piece < pages { SCATTER } else { 1 };
            let start = self.place(drive, room, definition.gap_bytes / SECTOR);
            self.files.push(FileState {
                cache: self.memory.open_file(pages),
                copies: (copied > 0).then(|| (self.memory.open_file(copied), copied)),
                drive,
                start,
                pages,
                piece,
                front: 0,
                requested: 0,
                arrived: 0,
                in_flight: Vec::new(),
                waiting: Vec::new(),
                flushed: 0,
                hot: Hot { pages: definition.hot, reads: definition.hot_reads },
            });
            number(self.files.len() - 1)
        });
        self.instances[instance as usize].files[named as usize] = file;
        file
    }

    /// Allocates `room` sectors of a drive for a file, and leaves `gap` sectors free behind it. Files follow
    /// each other on the first four fifths of the drive, and start over at its beginning; the rest is swap.
    /// Returns the first sector.
    fn place(&mut self, drive: usize, room: u64, gap: u64) -> u64 {
        let swap_start = self.drives[drive].sectors() / 5 * 4;
        let next = self.file_at[drive];
        let start = if next.saturating_add(room) > swap_start { 0 } else { next };
        self.file_at[drive] = start.saturating_add(room).saturating_add(gap);
        start
    }

    /// The sector at which a page of a file begins.
    fn lba(&self, file: u32, page: u64) -> u64 {
        let file = &self.files[file as usize];
        let (piece, page_in_piece) = (page / file.piece, page % file.piece);
        let sector = self.frame_bytes() / SECTOR;
        let pieces = file.pages.div_ceil(file.piece);
        // Pieces are not in order on the disk. A stride that is coprime to their number reaches them all.
        let stride = if pieces > 2 { coprime(pieces / 3 + 1, pieces) } else { 1 };
        let slot = piece * stride % pieces;
        let spacing = if pieces > 1 { file.piece * SCATTER } else { 0 };
        let drive_end = self.drives[file.drive].sectors();
        (file.start + (slot * spacing + page_in_piece) * sector).min(drive_end - sector)
    }

    /// Queues a transfer at a drive, on behalf of a unit. The transfer of a page-out or of write-behind is
    /// charged to the owners of its pages.
    fn transfer(
        &mut self,
        drive: usize,
        unit: UnitId,
        lba: u64,
        sectors: u32,
        write: bool,
        purpose: Purpose,
    ) {
        let owners = match &purpose {
            Purpose::Out(out) | Purpose::Behind(out) => {
                out.charges().iter().map(|(unit, pages)| (*unit, self.sectors(*pages))).collect()
            }
            _ => Vec::new(),
        };
        let id = if let Some(id) = self.free_purposes.pop() {
            self.purposes[id as usize] = purpose;
            id
        } else {
            self.purposes.push(purpose);
            number(self.purposes.len() - 1)
        };
        let drive_end = self.drives[drive].sectors();
        let sectors = sectors.max(1);
        let lba = lba.min(drive_end - u64::from(sectors));
        // On Linux, no rate limit or weight delays a write to swap.
        let urgent = matches!(&self.purposes[id as usize], Purpose::Out(out) if out.is_to_swap());
        let request = Request { id, unit, lba, sectors, write, owners };
        match urgent && self.enforces() == Enforces::Linux {
            true => self.drives[drive].submit_urgent(self.now, request),
            false => self.drives[drive].submit(self.now, request),
        }
        self.serve_drive(drive);
    }

    /// Lets a drive start requests, and sets its timer to its next event.
    pub(super) fn serve_drive(&mut self, drive: usize) {
        self.drives[drive].start(self.now);
        let timer = self.drive_timer(drive);
        let interrupt = self.interrupts[drive].first().map(|(at, _)| *at);
        match [self.drives[drive].next(), interrupt].into_iter().flatten().min() {
            Some(at) => self.timers.set(timer, at.max(self.now)),
            None => self.timers.clear(timer),
        }
    }

    /// A drive's timer has expired: a transfer ends, the interrupt of an ended transfer arrives, or the drive
    /// stops waiting for a nearby request.
    pub(super) fn drive_event(&mut self, drive: usize) {
        while let Some((_, id)) = self.interrupts[drive].first().copied().filter(|(at, _)| *at <= self.now) {
            self.interrupts[drive].pop_first();
            self.transfer_ends(id);
        }
        if let Some(finished) = self.drives[drive].complete(self.now) {
            match self.lateness() {
                0 => self.transfer_ends(finished.request.id),
                late => {
                    self.drives[drive].delay_interrupt(late);
                    self.interrupts[drive].insert((self.now.saturating_add(late), finished.request.id));
                }
            }
        }
        self.serve_drive(drive);
    }

    /// A random delay of an interrupt, from a device or a timer.
    pub(super) fn lateness(&mut self) -> Time {
        match self.scenario.hardware.kernel.interrupt_ns {
            0 => 0,
            mean => self.chance.amount(Amount { mean, spread: Spread::Exponential }),
        }
    }

    /// Handles the end of a transfer as the kernel does at its interrupt.
    fn transfer_ends(&mut self, id: u32) {
        let purpose = core::mem::replace(&mut self.purposes[id as usize], Purpose::Free);
        self.free_purposes.push(id);
        match purpose {
            Purpose::Free | Purpose::Nobody => {}
            Purpose::Task(task) => self.transferred(task),
            Purpose::Ahead { file, from, to } => self.pages_arrived(file, from, to),
            Purpose::Out(out) => {
                self.page_out_ends(out);
                self.feed_starved();
                self.release_throttled();
            }
            Purpose::Behind(out) => {
                self.flushing -= 1;
                let _ = self.memory.written(out);
                self.feed_starved();
                self.write_behind();
                self.release_throttled();
            }
        }
    }

    /// A transfer that a task waits for has ended. Wakes the task after its last transfer.
    fn transferred(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        task.transfers -= 1;
        if task.transfers == 0 {
            self.wake(id);
        }
    }

    /// Pages of a sequential read have arrived. Wakes the tasks whose pages are all there.
    fn pages_arrived(&mut self, file: u32, from: u64, to: u64) {
        let state = &mut self.files[file as usize];
        state.in_flight.retain(|pages| *pages != (from, to));
        state.arrived = state.in_flight.iter().map(|(from, _)| *from).min().unwrap_or(state.requested);
        let arrived = state.arrived;
        let ready: Vec<TaskId> =
            state.waiting.iter().filter(|(_, until)| *until <= arrived).map(|(task, _)| *task).collect();
        state.waiting.retain(|(_, until)| *until > arrived);
        for task in ready {
            self.wake(task);
        }
    }

    /// The pages that an access covers: the first, and how many. A sequential access moves the task's
    /// position in the file.
    fn span(&mut self, id: TaskId, named: u16, file: u32, bytes: Amount, random: bool) -> (u64, u64) {
        let (frame, pages) = (self.frame_bytes(), self.files[file as usize].pages);
        let task = &mut self.tasks[id as usize];
        let bytes = task.chance.amount(bytes).max(1);
        if random {
            let wanted = bytes.div_ceil(frame).min(pages);
            return (task.chance.below(pages - wanted + 1), wanted);
        }
        let entry = task.positions.iter().position(|(file, _)| *file == named).unwrap_or_else(|| {
            task.positions.push((named, 0));
            task.positions.len() - 1
        });
        let position = &mut task.positions[entry].1;
        // After the end of the file, access continues at its beginning. A single access does not wrap around.
        if *position >= pages * frame {
            *position = 0;
        }
        let (from, to) = (*position, position.saturating_add(bytes).min(pages * frame));
        *position = to;
        (from / frame, to.div_ceil(frame) - from / frame)
    }

    /// A task reads a file: reads the missing pages from disk, then copies them if the file has a reader's
    /// cache.
    pub(super) fn read(&mut self, id: TaskId, named: u16, bytes: Amount, random: bool) -> Done {
        let file = self.file(self.tasks[id as usize].instance, named);
        match self.read_pages(id, named, file, bytes, random) {
            Done::Next => self.copy(id, file),
            done => done,
        }
    }

    /// Copies pages that were read into the reader's own cache, if the file has one.
    ///
    /// The copies are cached like a second file that is used whenever the first is, and never written. So
    /// copies and originals have the same age, and reclaim takes from the larger group. If a whole file may
    /// be copied, there are as many copies as originals, so only half of the frames hold different pages.
    /// Only pages in the page cache are copied, so copies save no disk transfers.
    fn copy(&mut self, id: TaskId, file: u32) -> Done {
        let state = &self.files[file as usize];
        let Some((copies, copies_max)) = state.copies else { return Done::Next };
        let originals = self.memory.cached(state.cache).min(copies_max);
        let lacking = originals.saturating_sub(self.memory.cached(copies));
        let task = &mut self.tasks[id as usize];
        // The read itself has ended: a retry after a refusal of frames repeats only the copying.
        task.stage = COPIES;
        let (unit, accessed) = (UnitId(task.unit), u64::from(task.copies));
        let batch = lacking.min(accessed).min(self.memory.request_pages_max());
        if batch > 0 {
            if self.memory.cache_anywhere(copies, unit, capped(batch)) == Grant::Short {
                return self.make_room(id, batch);
            }
            self.tasks[id as usize].copies -= capped(batch);
            self.memory.reference(copies, unit, capped(batch));
            return Done::Again;
        }
        self.memory.reference(copies, unit, capped(accessed.min(self.memory.cached(copies))));
        Done::Next
    }

    /// Brings the pages of a read into the cache. An access that goes beyond what has arrived of the file in
    /// sequence is read ahead; in all others, each page misses the cache with the file's miss rate.
    fn read_pages(&mut self, id: TaskId, named: u16, file: u32, bytes: Amount, random: bool) -> Done {
        if self.tasks[id as usize].stage == NEW {
            let (from, pages) = self.span(id, named, file, bytes, random);
            let task = &mut self.tasks[id as usize];
            (task.from_page, task.pages, task.copies) = (from, capped(pages), capped(pages));
            let state = &self.files[file as usize];
            // A reader of pages that another has requested, or that were read ahead, waits until they arrive.
            let fresh = !random && from + pages > state.front.min(state.arrived);
            task.stage = if fresh { READING_ON } else { READING_MISSING };
            if !fresh {
                let missing = self.misses(id, file, random);
                self.tasks[id as usize].pages = missing;
                if missing == 0 {
                    return Done::Next;
                }
            }
            return self.charge(id, self.scenario.hardware.kernel.request_ns);
        }
        match self.tasks[id as usize].stage {
            READING_ON => self.read_on(id, file),
            READING_MISSING => self.read_missing(id, file, random),
            _ => Done::Next,
        }
    }

    /// Draws how many pages of an access miss the cache. The hit rate is the cached fraction of the whole
    /// file (random access), or of the part that was read and written in sequence. Of a file with hot pages,
    /// these are cached first.
    fn misses(&mut self, id: TaskId, file: u32, random: bool) -> u32 {
        let state = &self.files[file as usize];
        let accessible = if random { state.pages } else { state.front.max(1) };
        let cached = self.memory.cached(state.cache).min(accessible);
        let cached = if random { state.hot.effective(cached, accessible) } else { cached };
        let task = &mut self.tasks[id as usize];
        let missing = (0..task.pages).filter(|_| task.chance.below(accessible) >= cached).count();
        let (unit, hits) = (task.unit, u64::from(task.pages) - missing as u64);
        let cache = state.cache;
        if hits > 0 {
            self.memory.reference(cache, UnitId(unit), capped(hits));
        }
        number(missing)
    }

    /// Reads the missing pages of an access without read-ahead: one request at a time.
    fn read_missing(&mut self, id: TaskId, file: u32, random: bool) -> Done {
        let task = &self.tasks[id as usize];
        let (pages, from, unit) = (u64::from(task.pages), task.from_page, UnitId(task.unit));
        let (cache, drive) = (self.files[file as usize].cache, self.files[file as usize].drive);
        let batch = pages.min(self.batch());
        if batch == 0 {
            return Done::Next;
        }
        let grant = match random {
            true => self.memory.cache_anywhere(cache, unit, capped(batch)),
            false => self.memory.cache(cache, unit, capped(batch), false),
        };
        if grant == Grant::Short {
            return self.make_room(id, batch);
        }
        self.memory.reference(cache, unit, capped(batch));
        let task = &mut self.tasks[id as usize];
        (task.from_page, task.pages, task.transfers) = (from + batch, capped(pages - batch), 1);
        let (lba, sectors) = (self.lba(file, from), self.sectors(batch));
        self.transfer(drive, unit, lba, sectors, false, Purpose::Task(id));
        Done::Wait(TaskState::Transfer)
    }

    /// A sequential read with read-ahead: requests the pages that the task needs and those that follow, and
    /// waits only for the pages that the task needs.
    fn read_on(&mut self, id: TaskId, file: u32) -> Done {
        let task = &self.tasks[id as usize];
        let (needed_to, unit) = (task.from_page + u64::from(task.pages), UnitId(task.unit));
        let batch = self.batch();
        let ahead = batch * u64::from(self.scenario.hardware.kernel.read_ahead);
        loop {
            let state = &self.files[file as usize];
            let from = state.requested;
            let to = (from + batch).min(state.pages);
            if from >= state.pages || from >= needed_to + ahead {
                break;
            }
            let (cache, drive) = (state.cache, state.drive);
            if self.memory.cache(cache, unit, capped(to - from), false) == Grant::Short {
                if from >= needed_to {
                    // All needed pages are requested: no frames are reclaimed for read-ahead.
                    break;
                }
                return self.make_room(id, to - from);
            }
            let state = &mut self.files[file as usize];
            state.requested = to;
            state.front = state.front.max(to);
            state.in_flight.push((from, to));
            let (lba, sectors) = (self.lba(file, from), self.sectors(to - from));
            self.transfer(drive, unit, lba, sectors, false, Purpose::Ahead { file, from, to });
        }
        let state = &mut self.files[file as usize];
        if state.arrived >= needed_to {
            let (cache, pages) = (state.cache, self.tasks[id as usize].pages);
            self.memory.reference(cache, unit, pages);
            return Done::Next;
        }
        state.waiting.push((id, needed_to));
        Done::Wait(TaskState::File)
    }

    /// A task reads or writes a file past the page cache, one request after another.
    pub(super) fn transfer_directly(
        &mut self,
        id: TaskId,
        named: u16,
        bytes: Amount,
        random: bool,
        write: bool,
    ) -> Done {
        let file = self.file(self.tasks[id as usize].instance, named);
        if self.tasks[id as usize].stage == NEW {
            let (from, pages) = self.span(id, named, file, bytes, random);
            let task = &mut self.tasks[id as usize];
            (task.from_page, task.pages, task.stage) = (from, capped(pages), BEGUN);
            return self.charge(id, self.scenario.hardware.kernel.request_ns);
        }
        let task = &self.tasks[id as usize];
        let (from, pages, unit) = (task.from_page, u64::from(task.pages), UnitId(task.unit));
        let batch = pages.min(self.batch());
        if batch == 0 {
            return Done::Next;
        }
        let (lba, sectors) = (self.lba(file, from), self.sectors(batch));
        let drive = self.files[file as usize].drive;
        let task = &mut self.tasks[id as usize];
        (task.from_page, task.pages, task.transfers) = (from + batch, capped(pages - batch), 1);
        self.transfer(drive, unit, lba, sectors, write, Purpose::Task(id));
        Done::Wait(TaskState::Transfer)
    }

    /// A task writes a file: each batch goes into the cache, and with `sync` to the disk before the next
    /// batch.
    pub(super) fn write(&mut self, id: TaskId, named: u16, bytes: Amount, random: bool, sync: bool) -> Done {
        let file = self.file(self.tasks[id as usize].instance, named);
        if self.tasks[id as usize].stage == NEW {
            let (from, pages) = self.span(id, named, file, bytes, random);
            let task = &mut self.tasks[id as usize];
            (task.from_page, task.pages) = (from, capped(pages));
            task.stage = CACHING;
            return self.charge(id, self.scenario.hardware.kernel.fault_ns * pages);
        }
        let task = &self.tasks[id as usize];
        let (from, pages, unit) = (task.from_page, u64::from(task.pages), UnitId(task.unit));
        match task.stage {
            CACHING => self.write_to_cache(id, file, from, pages, unit, sync),
            CACHED => {
                let batch = pages.min(self.batch());
                let (lba, sectors) = (self.lba(file, from), self.sectors(batch));
                let task = &mut self.tasks[id as usize];
                (task.stage, task.from_page, task.pages) = (CACHING, from + batch, capped(pages - batch));
                self.write_and_wait(id, file, unit, lba, sectors)
            }
            _ => Done::Next,
        }
    }

    /// Writes the next batch of pages into the cache. A writer at the dirty limit is throttled, unless it
    /// writes synchronously.
    fn write_to_cache(
        &mut self,
        id: TaskId,
        file: u32,
        from: u64,
        pages: u64,
        unit: UnitId,
        sync: bool,
    ) -> Done {
        if !sync && self.memory.dirty_pages() >= self.dirty_limit() {
            self.write_behind();
            self.throttled.push_back(id);
            return Done::Wait(TaskState::Throttled);
        }
        if pages == 0 {
            return Done::Next;
        }
        let batch = pages.min(self.batch());
        let state = &self.files[file as usize];
        let (cache, front) = (state.cache, state.front);
        // Pages beyond `front` are new in the cache; the others are overwritten.
        let fresh = (from + batch).saturating_sub(front.max(from)).min(batch);
        if fresh > 0 && self.memory.cache(cache, unit, capped(fresh), !sync) == Grant::Short {
            return self.make_room(id, fresh);
        }
        if batch > fresh && !sync {
            self.memory.dirty(cache, unit, capped(batch - fresh));
        }
        let state = &mut self.files[file as usize];
        state.front = state.front.max(from + batch);
        state.requested = state.requested.max(state.front);
        if state.in_flight.is_empty() {
            state.arrived = state.requested;
        }
        if sync {
            self.tasks[id as usize].stage = CACHED;
            return Done::Again;
        }
        self.write_behind();
        let task = &mut self.tasks[id as usize];
        (task.from_page, task.pages) = (from + batch, capped(pages - batch));
        Done::Again
    }

    /// Starts a write to a file's drive that the task waits for.
    fn write_and_wait(&mut self, id: TaskId, file: u32, unit: UnitId, lba: u64, sectors: u32) -> Done {
        let drive = self.files[file as usize].drive;
        self.tasks[id as usize].transfers = 1;
        self.transfer(drive, unit, lba, sectors, true, Purpose::Task(id));
        Done::Wait(TaskState::Transfer)
    }

    /// A task writes a sector of a file's metadata. It waits for the write unless the write is `delayed`.
    pub(super) fn write_metadata(&mut self, id: TaskId, named: u16, delayed: bool) -> Done {
        let file = self.file(self.tasks[id as usize].instance, named);
        match self.tasks[id as usize].stage {
            NEW => {
                self.tasks[id as usize].stage = BEGUN;
                self.charge(id, self.scenario.hardware.kernel.request_ns)
            }
            BEGUN => {
                self.tasks[id as usize].stage = METADATA_SENT;
                let unit = UnitId(self.tasks[id as usize].unit);
                let (lba, drive) = (self.files[file as usize].start, self.files[file as usize].drive);
                if delayed {
                    self.transfer(drive, unit, lba, 1, true, Purpose::Nobody);
                    return Done::Next;
                }
                self.write_and_wait(id, file, unit, lba, 1)
            }
            _ => Done::Next,
        }
    }

    /// The number of dirty pages at which writers are throttled: twice the number at which write-behind
    /// starts.
    fn dirty_limit(&self) -> u64 {
        let limit_millionths = u128::from(self.scenario.hardware.kernel.dirty_limit);
        let twice_the_limit = u128::from(self.memory.frames()) * limit_millionths / 500_000;
        u64::try_from(twice_the_limit).unwrap_or(u64::MAX).max(self.batch())
    }

    /// Starts write-behind of pages that are due, a few requests at a time.
    pub(super) fn write_behind(&mut self) {
        while self.flushing < self.scenario.hardware.kernel.write_behind {
            let Some(out) = self.memory.flush() else { return };
            self.flushing += 1;
            self.write_out(out, true);
        }
    }

    /// Wakes throttled writers while fewer pages are dirty than the limit.
    pub(super) fn release_throttled(&mut self) {
        while self.memory.dirty_pages() < self.dirty_limit() {
            let Some(id) = self.throttled.pop_front() else { return };
            self.wake(id);
        }
    }

    /// Writes pages to disk: a file's pages to the file, a process's to swap. Write-behind is a request of
    /// the `shared` unit (seed 000, section 3.3), a page-out one of the first unit charged for the pages.
    pub(super) fn write_out(&mut self, out: PageOut, behind: bool) {
        self.page_out_begins(&out);
        let pages = out.pages();
        let sectors = self.sectors(pages);
        let owner = out.charges().first().map_or(UnitId::SHARED, |(unit, _)| *unit);
        let (drive, lba) = match out.source() {
            Source::File(cache) => {
                let file = self.files.iter().position(|file| file.cache == cache).unwrap_or(0);
                let state = &mut self.files[file];
                let start = if state.flushed + pages > state.front.max(pages) { 0 } else { state.flushed };
                state.flushed = start + pages;
                (state.drive, self.lba(number(file), start))
            }
            Source::Space(_) => {
                let drive = self.swap_drive(owner);
                (drive, self.swap_slot(drive, sectors))
            }
        };
        let (unit, purpose) =
            if behind { (UnitId::SHARED, Purpose::Behind(out)) } else { (owner, Purpose::Out(out)) };
        self.transfer(drive, unit, lba, sectors, true, purpose);
    }

    /// The drive that a unit swaps to: the drive of its first job.
    fn swap_drive(&self, unit: UnitId) -> usize {
        self.instances.iter().find(|instance| instance.unit == unit).map_or(0, |instance| instance.disk)
    }

    /// The size of a drive's swap area, in bytes.
    pub(super) fn swap_bytes(&self, drive: usize) -> u64 {
        self.drives[drive].sectors() / 5 * SECTOR
    }

    /// Allocates sectors in a drive's swap area, which is the last fifth of the drive and is used cyclically.
    /// Returns the first.
    fn swap_slot(&mut self, drive: usize, sectors: u32) -> u64 {
        let drive_sectors = self.drives[drive].sectors();
        let (base, size) = (drive_sectors / 5 * 4, self.swap_bytes(drive) / SECTOR);
        let next = self.swap_at[drive];
        let offset = if next + u64::from(sectors) > size { 0 } else { next };
        self.swap_at[drive] = offset + u64::from(sectors);
        base + offset
    }

    /// Reclaims frames for a task whose request for `pages` frames was refused. The task retries at once if
    /// frames are free now, and otherwise waits until frames become free.
    pub(super) fn make_room(&mut self, id: TaskId, pages: u64) -> Done {
        let unit = self.tasks[id as usize].unit;
        // On Linux, a unit that meets its bound raises an alarm, but a machine that is short of memory does
        // not.
        if self.enforces() == Enforces::Irix || self.memory.would_exceed_bound(UnitId(unit), pages) {
            self.alarm(UnitId(unit));
        }
        // The alarm may have called a loan back, so that the unit need not give up frames of its own.
        if self.came_back(UnitId(unit), pages) {
            return Done::Again;
        }
        let wanted = pages.max(u64::from(self.scenario.hardware.kernel.cluster_pages));
        let reclaimed = self.memory.reclaim(UnitId(unit), capped(wanted));
        for out in reclaimed.writes {
            self.write_out(out, false);
        }
        if reclaimed.freed > 0 || reclaimed.forced {
            return Done::Again;
        }
        self.starved[unit as usize].push_back(id);
        Done::Wait(TaskState::Frame)
    }

    /// The kernel's periodic work on memory: the pager, and write-behind of pages that have long been dirty.
    pub(super) fn memory_event(&mut self) {
        self.note_swap();
        self.feed_starved();
        if self.enforces() == Enforces::Irix {
            self.page_out();
        }
        self.write_behind();
        self.release_throttled();
        let period = self.scenario.hardware.kernel.memory_period_ns;
        self.timers.set(self.policy_timer() + 1, self.now + period);
    }

    /// The pager: takes frames from units that are low on frames, before a task has to wait for a frame (seed
    /// 000, section 3.2). The cached pages of a unit without processes stay until another unit needs the
    /// frames.
    pub(super) fn page_out(&mut self) {
        let cluster = self.scenario.hardware.kernel.cluster_pages;
        for id in self.scenario.contract.ids() {
            let present = id.is_common() || self.units.present[id.index()] > 0;
            if (present || self.memory.is_low()) && self.memory.is_unit_low(id) && self.memory.used(id) > 0 {
                for out in self.memory.reclaim(id, cluster * PAGED_AT_ONCE).writes {
                    self.write_out(out, false);
                }
            }
        }
    }

    /// Frames may have become free: wakes every task that waits for a frame, to retry its request.
    pub(super) fn feed_starved(&mut self) {
        for unit in 0..self.starved.len() {
            for id in core::mem::take(&mut self.starved[unit]) {
                self.wake(id);
            }
        }
    }

    /// Whether a task waits for pages of its own to be read back from swap.
    pub(super) fn reads_back(&self, id: TaskId) -> bool {
        self.tasks[id as usize].pages == FETCHED
    }

    /// Opens a new process's memory. Returns it, and how many pages of the working set are resident from the
    /// beginning.
    pub(super) fn open_space(&mut self, program: u32, unit: UnitId) -> (SpaceId, u64) {
        let program = &self.scenario.workload.programs[program as usize];
        let space = self.memory.open_space(unit, program.reuse_ns);
        let pages = if program.resident { program.memory_bytes / self.frame_bytes() } else { 0 };
        let cluster = u64::from(self.scenario.hardware.kernel.cluster_pages.max(1));
        let mut resident = 0;
        while resident < pages {
            let growth = cluster.min(pages - resident);
            if self.memory.grow(space, capped(growth)) == Grant::Short {
                break;
            }
            resident += growth;
        }
        (space, resident)
    }

    /// Divides a task's remaining work into the part up to its next page fault, and the part after.
    pub(super) fn compute_to_next_fault(&mut self, id: TaskId) {
        let until_fault = self.time_to_fault(id);
        let task = &mut self.tasks[id as usize];
        task.left = task.beyond.min(until_fault);
        task.beyond -= task.left;
    }

    /// CPU time until a task touches a page that is not resident. At first, a task touches its whole working
    /// set within one reuse time, cluster by cluster. Later, it touches each page that was paged out once per
    /// reuse time.
    fn time_to_fault(&self, id: TaskId) -> Time {
        let task = &self.tasks[id as usize];
        let program = &self.scenario.workload.programs[task.program as usize];
        let pages = program.memory_bytes / self.frame_bytes();
        let cluster = u64::from(self.scenario.hardware.kernel.cluster_pages.max(1));
        let missing = if task.touched < pages { pages } else { self.memory.missing(task.space) };
        match missing {
            0 => Time::MAX,
            missing => (program.reuse_ns * cluster / missing).max(1),
        }
    }

    /// A task touches a page that is not resident, or continues to compute once its pages were read from
    /// swap.
    pub(super) fn touch(&mut self, id: TaskId) -> Done {
        let task = &self.tasks[id as usize];
        let program = &self.scenario.workload.programs[task.program as usize];
        let (space, touched) = (task.space, task.touched);
        let pages = program.memory_bytes / self.frame_bytes();
        let cluster = u64::from(self.scenario.hardware.kernel.cluster_pages.max(1));
        if task.transfers == 0 && task.pages == FETCHED {
            self.tasks[id as usize].pages = 0;
            self.compute_to_next_fault(id);
            return Done::Compute;
        }
        // First touch: the next cluster of the working set needs frames, but no disk.
        if touched < pages {
            let growth = cluster.min(pages - touched);
            if self.memory.grow(space, capped(growth)) == Grant::Short {
                return self.make_room(id, growth);
            }
            self.tasks[id as usize].touched += growth;
            // The fault's own time is part of the kernel's work for the program.
            let fault = self.scenario.hardware.kernel.fault_ns;
            self.tasks[id as usize].beyond += fault;
            self.compute_to_next_fault(id);
            return Done::Compute;
        }
        let missing = self.memory.missing(space).min(cluster);
        if missing > 0 {
            if self.memory.swap_in(space, capped(missing)) == Grant::Short {
                return self.make_room(id, missing);
            }
            let unit = UnitId(self.tasks[id as usize].unit);
            let drive = self.instances[self.tasks[id as usize].instance as usize].disk;
            let sectors = self.sectors(missing);
            // It is not known where in swap the pages are: a random place in the used part.
            let used = self.swap_at[drive].max(u64::from(sectors));
            let task = &mut self.tasks[id as usize];
            let lba = self.drives[drive].sectors() / 5 * 4 + task.chance.below(used);
            task.pages = FETCHED;
            task.transfers = 1;
            self.instances[task.instance as usize].spent.faults += 1;
            self.transfer(drive, unit, lba, sectors, false, Purpose::Task(id));
            return Done::Wait(TaskState::Transfer);
        }
        self.compute_to_next_fault(id);
        Done::Compute
    }
}

/// The value of a computing task's `pages` while the pages that it faulted on are read from swap.
const FETCHED: u32 = u32::MAX;

/// A number of pages or sectors as 32 bits, capped at `u32::MAX`.
fn capped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The first number from `from` on that is coprime to `of`.
fn coprime(from: u64, of: u64) -> u64 {
    let divisor = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (from..from + of).find(|number| divisor(*number, of) == 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::Hot;

    /// 80 % of the reads go to 200 of 1,000 pages.
    #[test]
    fn hot_pages_are_cached_first() {
        let hot = Hot { pages: 200_000, reads: 800_000 };
        let hits_per_mille = [0, 100, 200, 600, 1000].map(|cached| hot.effective(cached, 1000));
        assert_eq!(hits_per_mille, [0, 400, 800, 900, 1000]);
        assert_eq!(Hot { pages: 0, reads: 0 }.effective(600, 1000), 600);
        let all = Hot { pages: 1_000_000, reads: 1_000_000 };
        assert_eq!(all.effective(600, 1000), 600);
    }
}
