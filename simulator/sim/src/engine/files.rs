//! Files, page faults and page-outs: the memory that tasks request, and the disk transfers that result.
//!
//! A read that finds its pages in the cache costs nothing; otherwise it waits for the disk. A file that is read in
//! sequence is read ahead. A write goes to the cache, and write-behind takes it to the disk in large batches, on behalf of
//! the `shared` unit. A task that writes faster than the disk is throttled at the dirty limit. A page fault finds a free
//! frame, or makes its unit give one up.
//!
//! Sources: seed 000, sections 3.2, 3.3 and 4.5.

use commonhold_contract::UnitId;
use commonhold_dispatch::TaskId;

use super::program::{BEGUN, Done, NEW};
use super::task::TaskState;
use super::{Engine, NONE, number};
use crate::Time;
use crate::disk::Request;
use crate::memory::{FileId, Grant, PageOut, Source};
use crate::scenario::{Amount, Enforces, Spread};

/// Stages of a read: sequential reading beyond what was read before, and reading the pages that are not cached.
const READING_ON: u32 = 1;
const READING_MISSING: u32 = 2;
/// The stage of a read in which its pages are cached, and are copied.
const COPIES: u32 = 3;
/// Stages of a write, alternating for each batch if it is synchronous: into the cache, and then to the disk.
const CACHING: u32 = 1;
const CACHED: u32 = 2;
/// The last stage of a metadata write: its request was sent.
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
    cache: FileId,
    /// The file of its readers' copies, and the most pages that it may have; see [`Engine::copy`].
    copies: Option<(FileId, u64)>,
    drive: usize,
    /// Its first sector; its size and that of its pieces, in pages.
    start: u64,
    pages: u64,
    piece: u64,
    /// The page up to which the file was read or written at least once.
    front: u64,
    /// The pages up to which reads were requested, and up to which they have arrived.
    asked: u64,
    arrived: u64,
    /// The page ranges of reads in flight.
    coming: Vec<(u64, u64)>,
    /// Tasks that wait for pages, each with the page up to which it waits.
    waiting: Vec<(TaskId, u64)>,
    /// The page at which write-behind continues.
    flushed: u64,
}

/// What a transfer is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Nothing: the number is free.
    Free,
    /// No task waits for it.
    Nobody,
    /// A task waits for it.
    Task(TaskId),
    /// A read of pages of a file into the cache.
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
        small(pages * self.frame_bytes() / SECTOR)
    }

    /// Pages of one read-ahead or write-behind request.
    fn batch(&self) -> u64 {
        (u64::from(self.scenario.hardware.kernel.request_sectors) * SECTOR / self.frame_bytes()).max(1)
    }

    /// The file that an instance means, opened if this is the first time.
    fn file(&mut self, instance: u32, named: u16) -> u32 {
        let known = self.instances[instance as usize].files[named as usize];
        if known != NONE {
            return known;
        }
        let what = &self.scenario.workload.files[named as usize];
        let other = |files: &[u32]| files[named as usize];
        let opened = match what.shared {
            true => self.instances.iter().map(|i| other(&i.files)).find(|file| *file != NONE),
            false => None,
        };
        let file = opened.unwrap_or_else(|| {
            let drive = what.disk.map_or(self.instances[instance as usize].disk, usize::from);
            let pages = what.bytes.div_ceil(self.frame_bytes()).max(1);
            let piece = match what.fragment_bytes {
                0 => pages,
                bytes => bytes.div_ceil(self.frame_bytes()).min(pages),
            };
            let copied = (what.buffer_bytes / self.frame_bytes()).min(pages);
            let room = u64::from(self.sectors(pages)) * if piece < pages { SCATTER } else { 1 };
            let start = self.place(drive, room);
            self.files.push(FileState {
                cache: self.memory.open_file(pages),
                copies: (copied > 0).then(|| (self.memory.open_file(copied), copied)),
                drive,
                start,
                pages,
                piece,
                front: 0,
                asked: 0,
                arrived: 0,
                coming: Vec::new(),
                waiting: Vec::new(),
                flushed: 0,
            });
            number(self.files.len() - 1)
        });
        self.instances[instance as usize].files[named as usize] = file;
        file
    }

    /// Allocates `room` sectors of a drive: files follow each other on the first four fifths; the rest is swap.
    fn place(&mut self, drive: usize, room: u64) -> u64 {
        let most = self.drives[drive].sectors() / 5 * 4;
        let at = self.file_at[drive];
        let start = if at + room > most { 0 } else { at };
        self.file_at[drive] = start + room;
        start
    }

    /// The sector at which a page of a file begins.
    fn lba(&self, file: u32, page: u64) -> u64 {
        let file = &self.files[file as usize];
        let (piece, within) = (page / file.piece, page % file.piece);
        let sector = self.frame_bytes() / SECTOR;
        let pieces = file.pages.div_ceil(file.piece);
        // Pieces are not in order on the disk. A stride that is coprime to their number reaches them all.
        let stride = if pieces > 2 { coprime(pieces / 3 + 1, pieces) } else { 1 };
        let slot = piece * stride % pieces;
        let apart = if pieces > 1 { file.piece * SCATTER } else { 0 };
        let most = self.drives[file.drive].sectors();
        (file.start + (slot * apart + within) * sector).min(most - sector)
    }

    /// Queues a transfer at a drive.
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
        let most = self.drives[drive].sectors();
        let sectors = sectors.max(1);
        let lba = lba.min(most - u64::from(sectors));
        // On Linux, a write to swap is not delayed.
        let urgent = matches!(&self.purposes[id as usize], Purpose::Out(out) if out.is_to_swap());
        let request = Request { id, unit, lba, sectors, write, owners };
        match urgent && self.enforces() == Enforces::Linux {
            true => self.drives[drive].submit_urgent(self.now, request),
            false => self.drives[drive].submit(self.now, request),
        }
        self.drive_on(drive);
    }

    /// Lets a drive start the requests that it can, and sets its timer.
    pub(super) fn drive_on(&mut self, drive: usize) {
        self.drives[drive].start(self.now);
        let timer = self.drive_timer(drive);
        let interrupt = self.interrupts[drive].first().map(|(at, _)| *at);
        match [self.drives[drive].next(), interrupt].into_iter().flatten().min() {
            Some(at) => self.timers.set(timer, at.max(self.now)),
            None => self.timers.clear(timer),
        }
    }

    /// A transfer is done, or its interrupt has arrived, or a drive stops waiting for another request.
    pub(super) fn drive_event(&mut self, drive: usize) {
        while let Some((_, id)) = self.interrupts[drive].first().copied().filter(|(at, _)| *at <= self.now) {
            self.interrupts[drive].pop_first();
            self.transfer_ends(id);
        }
        if let Some(finished) = self.drives[drive].complete(self.now) {
            match self.lateness() {
                0 => self.transfer_ends(finished.request.id),
                late => {
                    self.drives[drive].told_late(late);
                    self.interrupts[drive].insert((self.now.saturating_add(late), finished.request.id));
                }
            }
        }
        self.drive_on(drive);
    }

    /// The delay of the next interrupt of a device or a timer; random.
    pub(super) fn lateness(&mut self) -> Time {
        match self.scenario.hardware.kernel.interrupt_ns {
            0 => 0,
            mean => self.chance.amount(Amount { mean, spread: Spread::Exponential }),
        }
    }

    /// The kernel handles the end of a transfer.
    fn transfer_ends(&mut self, id: u32) {
        let purpose = core::mem::replace(&mut self.purposes[id as usize], Purpose::Free);
        self.free_purposes.push(id);
        match purpose {
            Purpose::Free | Purpose::Nobody => {}
            Purpose::Task(task) => self.transferred(task),
            Purpose::Ahead { file, from, to } => self.pages_came(file, from, to),
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

    fn transferred(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        task.transfers -= 1;
        if task.transfers == 0 {
            self.wake(id);
        }
    }

    fn pages_came(&mut self, file: u32, from: u64, to: u64) {
        let state = &mut self.files[file as usize];
        state.coming.retain(|pages| *pages != (from, to));
        state.arrived = state.coming.iter().map(|(from, _)| *from).min().unwrap_or(state.asked);
        let arrived = state.arrived;
        let ready: Vec<TaskId> =
            state.waiting.iter().filter(|(_, until)| *until <= arrived).map(|(task, _)| *task).collect();
        state.waiting.retain(|(_, until)| *until > arrived);
        for task in ready {
            self.wake(task);
        }
    }

    /// The pages that an access covers: the first, and how many.
    fn span(&mut self, id: TaskId, named: u16, file: u32, bytes: Amount, random: bool) -> (u64, u64) {
        let (frame, pages) = (self.frame_bytes(), self.files[file as usize].pages);
        let task = &mut self.tasks[id as usize];
        let bytes = task.chance.amount(bytes).max(1);
        if random {
            let wanted = bytes.div_ceil(frame).min(pages);
            return (task.chance.below(pages - wanted + 1), wanted);
        }
        let place = task.positions.iter().position(|(of, _)| *of == named).unwrap_or_else(|| {
            task.positions.push((named, 0));
            task.positions.len() - 1
        });
        let at = &mut task.positions[place].1;
        // At its end, reading starts again at the beginning; a single access does not wrap around.
        if *at >= pages * frame {
            *at = 0;
        }
        let (from, to) = (*at, at.saturating_add(bytes).min(pages * frame));
        *at = to;
        (from / frame, to.div_ceil(frame) - from / frame)
    }

    pub(super) fn read(&mut self, id: TaskId, named: u16, bytes: Amount, random: bool) -> Done {
        let file = self.file(self.tasks[id as usize].instance, named);
        match self.read_pages(id, named, file, bytes, random) {
            Done::Next => self.copy(id, file),
            done => done,
        }
    }

    /// Copies pages that were read into the reader's own cache, if the file has one.
    ///
    /// The copies are pages of a file of their own in the cache, used whenever the file's are, and never written. So both have
    /// the same age, and reclaim takes from the larger. Where all of a file may be copied, there are as many copies as
    /// originals, so only half of their frames hold different pages. Only pages in the page cache are copied, so copies save no
    /// disk transfers.
    fn copy(&mut self, id: TaskId, file: u32) -> Done {
        let state = &self.files[file as usize];
        let Some((copies, most)) = state.copies else { return Done::Next };
        let lacking = self.memory.cached(state.cache).min(most).saturating_sub(self.memory.cached(copies));
        let task = &mut self.tasks[id as usize];
        // The read has ended: only the copies are tried again from here on.
        task.stage = COPIES;
        let (unit, accessed) = (UnitId(task.unit), u64::from(task.copies));
        let some = lacking.min(accessed).min(self.memory.request_pages_max());
        if some > 0 {
            if self.memory.cache_anywhere(copies, unit, small(some)) == Grant::Short {
                return self.make_room(id, some);
            }
            self.tasks[id as usize].copies -= small(some);
            self.memory.reference(copies, unit, small(some));
            return Done::Again;
        }
        self.memory.reference(copies, unit, small(accessed.min(self.memory.cached(copies))));
        Done::Next
    }

    fn read_pages(&mut self, id: TaskId, named: u16, file: u32, bytes: Amount, random: bool) -> Done {
        if self.tasks[id as usize].stage == NEW {
            let (from, pages) = self.span(id, named, file, bytes, random);
            let task = &mut self.tasks[id as usize];
            (task.from_page, task.pages, task.copies) = (from, small(pages), small(pages));
            let state = &self.files[file as usize];
            let fresh = !random && from + pages > state.front;
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

    /// How many pages of an access miss the cache. The hit rate is the cached part of the whole file (random access), or of the
    /// part that was read and written in sequence.
    fn misses(&mut self, id: TaskId, file: u32, random: bool) -> u32 {
        let state = &self.files[file as usize];
        let whole = if random { state.pages } else { state.front.max(1) };
        let cached = self.memory.cached(state.cache).min(whole);
        let task = &mut self.tasks[id as usize];
        let missing = (0..task.pages).filter(|_| task.chance.below(whole) >= cached).count();
        let (unit, hits) = (task.unit, u64::from(task.pages) - missing as u64);
        let cache = state.cache;
        if hits > 0 {
            self.memory.reference(cache, UnitId(unit), small(hits));
        }
        number(missing)
    }

    /// A read without read-ahead: one request at a time.
    fn read_missing(&mut self, id: TaskId, file: u32, random: bool) -> Done {
        let task = &self.tasks[id as usize];
        let (pages, from, unit) = (u64::from(task.pages), task.from_page, UnitId(task.unit));
        let (cache, drive) = (self.files[file as usize].cache, self.files[file as usize].drive);
        let some = pages.min(self.batch());
        if some == 0 {
            return Done::Next;
        }
        let grant = match random {
            true => self.memory.cache_anywhere(cache, unit, small(some)),
            false => self.memory.cache(cache, unit, small(some), false),
        };
        if grant == Grant::Short {
            return self.make_room(id, some);
        }
        self.memory.reference(cache, unit, small(some));
        let task = &mut self.tasks[id as usize];
        (task.from_page, task.pages, task.transfers) = (from + some, small(pages - some), 1);
        let (lba, sectors) = (self.lba(file, from), self.sectors(some));
        self.transfer(drive, unit, lba, sectors, false, Purpose::Task(id));
        Done::Wait(TaskState::Transfer)
    }

    /// A sequential read: requests the pages that it needs and those that follow, and waits for those that it needs.
    fn read_on(&mut self, id: TaskId, file: u32) -> Done {
        let task = &self.tasks[id as usize];
        let (need, unit) = (task.from_page + u64::from(task.pages), UnitId(task.unit));
        let batch = self.batch();
        let ahead = batch * u64::from(self.scenario.hardware.kernel.read_ahead);
        loop {
            let state = &self.files[file as usize];
            let from = state.asked;
            let to = (from + batch).min(state.pages);
            if from >= state.pages || from >= need + ahead {
                break;
            }
            let (cache, drive) = (state.cache, state.drive);
            if self.memory.cache(cache, unit, small(to - from), false) == Grant::Short {
                if from >= need {
                    break; // what is needed is on its way; reading ahead waits for better times
                }
                return self.make_room(id, to - from);
            }
            let state = &mut self.files[file as usize];
            state.asked = to;
            state.front = state.front.max(to);
            state.coming.push((from, to));
            let (lba, sectors) = (self.lba(file, from), self.sectors(to - from));
            self.transfer(drive, unit, lba, sectors, false, Purpose::Ahead { file, from, to });
        }
        let state = &mut self.files[file as usize];
        if state.arrived >= need {
            let (cache, pages) = (state.cache, self.tasks[id as usize].pages);
            self.memory.reference(cache, unit, pages);
            return Done::Next;
        }
        state.waiting.push((id, need));
        Done::Wait(TaskState::File)
    }

    pub(super) fn write(&mut self, id: TaskId, named: u16, bytes: Amount, random: bool, sync: bool) -> Done {
        let file = self.file(self.tasks[id as usize].instance, named);
        if self.tasks[id as usize].stage == NEW {
            let (from, pages) = self.span(id, named, file, bytes, random);
            let task = &mut self.tasks[id as usize];
            (task.from_page, task.pages) = (from, small(pages));
            task.stage = CACHING;
            return self.charge(id, self.scenario.hardware.kernel.fault_ns * pages);
        }
        let task = &self.tasks[id as usize];
        let (from, pages, unit) = (task.from_page, u64::from(task.pages), UnitId(task.unit));
        match task.stage {
            CACHING => self.write_to_cache(id, file, from, pages, unit, sync),
            CACHED => {
                let some = pages.min(self.batch());
                let (lba, sectors) = (self.lba(file, from), self.sectors(some));
                let task = &mut self.tasks[id as usize];
                (task.stage, task.from_page, task.pages) = (CACHING, from + some, small(pages - some));
                self.transfer_for(id, file, unit, lba, sectors)
            }
            _ => Done::Next,
        }
    }

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
        let whole = pages;
        let pages = pages.min(self.batch());
        let state = &self.files[file as usize];
        let (cache, front) = (state.cache, state.front);
        let fresh = (from + pages).saturating_sub(front.max(from)).min(pages);
        if fresh > 0 && self.memory.cache(cache, unit, small(fresh), !sync) == Grant::Short {
            return self.make_room(id, fresh);
        }
        if pages > fresh && !sync {
            self.memory.dirty(cache, unit, small(pages - fresh));
        }
        let state = &mut self.files[file as usize];
        state.front = state.front.max(from + pages);
        state.asked = state.asked.max(state.front);
        if state.coming.is_empty() {
            state.arrived = state.asked;
        }
        if sync {
            self.tasks[id as usize].stage = CACHED;
            return Done::Again;
        }
        self.write_behind();
        let task = &mut self.tasks[id as usize];
        (task.from_page, task.pages) = (from + pages, small(whole - pages));
        Done::Again
    }

    /// One transfer that a task waits for.
    fn transfer_for(&mut self, id: TaskId, file: u32, unit: UnitId, lba: u64, sectors: u32) -> Done {
        let drive = self.files[file as usize].drive;
        self.tasks[id as usize].transfers = 1;
        self.transfer(drive, unit, lba, sectors, true, Purpose::Task(id));
        Done::Wait(TaskState::Transfer)
    }

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
                self.transfer_for(id, file, unit, lba, 1)
            }
            _ => Done::Next,
        }
    }

    /// The number of dirty pages from which writers are throttled: twice that from which write-behind starts.
    fn dirty_limit(&self) -> u64 {
        let part = u128::from(self.memory.frames()) * u128::from(self.scenario.hardware.kernel.dirty_limit);
        u64::try_from(part / 500_000).unwrap_or(u64::MAX).max(self.batch())
    }

    /// Starts write-behind of pages that are due, a few requests at a time.
    pub(super) fn write_behind(&mut self) {
        while self.flushing < self.scenario.hardware.kernel.write_behind {
            let Some(out) = self.memory.flush() else { return };
            self.flushing += 1;
            self.write_out(out, true);
        }
    }

    pub(super) fn release_throttled(&mut self) {
        while self.memory.dirty_pages() < self.dirty_limit() {
            let Some(id) = self.throttled.pop_front() else { return };
            self.wake(id);
        }
    }

    /// Writes pages to disk: a file's to the file, a process's to swap. Write-behind is charged to the `shared` unit (seed
    /// 000, section 3.3); page-outs are requests of the first unit charged for the pages.
    pub(super) fn write_out(&mut self, out: PageOut, behind: bool) {
        self.page_out_begins(&out);
        let pages = out.pages();
        let sectors = self.sectors(pages);
        let owner = out.charges().first().map_or(UnitId::SHARED, |(unit, _)| *unit);
        let (drive, lba) = match out.source() {
            Source::File(cache) => {
                let file = self.files.iter().position(|file| file.cache == cache).unwrap_or(0);
                let state = &mut self.files[file];
                let at = if state.flushed + pages > state.front.max(pages) { 0 } else { state.flushed };
                state.flushed = at + pages;
                (state.drive, self.lba(number(file), at))
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

    /// The drive that a unit swaps to: its first job's.
    fn swap_drive(&self, unit: UnitId) -> usize {
        self.instances.iter().find(|instance| instance.unit == unit).map_or(0, |instance| instance.disk)
    }

    /// The size of a drive's swap area.
    pub(super) fn swap_bytes(&self, drive: usize) -> u64 {
        self.drives[drive].sectors() / 5 * SECTOR
    }

    /// Allocates sectors of swap, which is the last fifth of a drive and is used cyclically.
    fn swap_slot(&mut self, drive: usize, sectors: u32) -> u64 {
        let all = self.drives[drive].sectors();
        let (base, size) = (all / 5 * 4, self.swap_bytes(drive) / SECTOR);
        let at = self.swap_at[drive];
        let at = if at + u64::from(sectors) > size { 0 } else { at };
        self.swap_at[drive] = at + u64::from(sectors);
        base + at
    }

    /// Makes a unit give up frames for a task that needs some. The task retries at once, or when frames are free.
    pub(super) fn make_room(&mut self, id: TaskId, pages: u64) -> Done {
        let unit = self.tasks[id as usize].unit;
        // Linux reports that a unit is at its bound, but not that the machine is short of memory.
        if self.enforces() == Enforces::Irix || self.memory.meets_bound(UnitId(unit), pages) {
            self.alarm(UnitId(unit));
        }
        if self.came_back(UnitId(unit), pages) {
            return Done::Again;
        }
        let wanted = pages.max(u64::from(self.scenario.hardware.kernel.cluster_pages));
        let reclaimed = self.memory.reclaim(UnitId(unit), small(wanted));
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

    /// The pager: units that are low on frames give up some before they have to wait for one (seed 000, section 3.2). The
    /// cached pages of a unit without processes stay until a unit needs their frames.
    pub(super) fn page_out(&mut self) {
        let cluster = self.scenario.hardware.kernel.cluster_pages;
        for id in self.scenario.contract.ids() {
            let present = id.is_common() || self.units.present[id.index()] > 0;
            if (present || self.memory.low()) && self.memory.low_unit(id) && self.memory.used(id) > 0 {
                for out in self.memory.reclaim(id, cluster * PAGED_AT_ONCE).writes {
                    self.write_out(out, false);
                }
            }
        }
    }

    /// Frames may have become free: wakes every task that waits for one, to retry.
    pub(super) fn feed_starved(&mut self) {
        for unit in 0..self.starved.len() {
            for id in core::mem::take(&mut self.starved[unit]) {
                self.wake(id);
            }
        }
    }

    /// Whether a task waits for pages of its own that were paged out.
    pub(super) fn reads_back(&self, id: TaskId) -> bool {
        self.tasks[id as usize].pages == FETCHED
    }

    /// Sets how long a task computes until it touches a page that is not resident.
    pub(super) fn stretch(&mut self, id: TaskId) {
        let until = self.touches_in(id);
        let task = &mut self.tasks[id as usize];
        task.left = task.beyond.min(until);
        task.beyond -= task.left;
    }

    /// CPU time until a task touches a page that is not resident. While its working set grows, it touches all of it within
    /// the first `reuse`, cluster by cluster; later, it touches each page that was taken once in every `reuse`.
    fn touches_in(&self, id: TaskId) -> Time {
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

    /// A task touches a page that is not resident, or continues to compute once the page has arrived.
    pub(super) fn touch(&mut self, id: TaskId) -> Done {
        let task = &self.tasks[id as usize];
        let program = &self.scenario.workload.programs[task.program as usize];
        let (space, grown) = (task.space, task.touched);
        let pages = program.memory_bytes / self.frame_bytes();
        let cluster = u64::from(self.scenario.hardware.kernel.cluster_pages.max(1));
        if task.transfers == 0 && task.pages == FETCHED {
            self.tasks[id as usize].pages = 0;
            self.stretch(id);
            return Done::Compute;
        }
        if grown < pages {
            let some = cluster.min(pages - grown);
            if self.memory.grow(space, small(some)) == Grant::Short {
                return self.make_room(id, some);
            }
            self.tasks[id as usize].touched += some;
            // The fault's own time is part of the kernel's work for the program.
            let fault = self.scenario.hardware.kernel.fault_ns;
            self.tasks[id as usize].beyond += fault;
            self.stretch(id);
            return Done::Compute;
        }
        let missing = self.memory.missing(space).min(cluster);
        if missing > 0 {
            if self.memory.swap_in(space, small(missing)) == Grant::Short {
                return self.make_room(id, missing);
            }
            let unit = UnitId(self.tasks[id as usize].unit);
            let drive = self.instances[self.tasks[id as usize].instance as usize].disk;
            let sectors = self.sectors(missing);
            // The place to which it was paged out: random within the used part of swap.
            let used = self.swap_at[drive].max(u64::from(sectors));
            let task = &mut self.tasks[id as usize];
            let lba = self.drives[drive].sectors() / 5 * 4 + task.chance.below(used);
            task.pages = FETCHED;
            task.transfers = 1;
            self.instances[task.instance as usize].spent.faults += 1;
            self.transfer(drive, unit, lba, sectors, false, Purpose::Task(id));
            return Done::Wait(TaskState::Transfer);
        }
        self.stretch(id);
        Done::Compute
    }
}

/// In a computing task's `pages`: the pages that it faulted on were requested from swap.
const FETCHED: u32 = u32::MAX;

/// A number of pages or sectors, capped at `u32::MAX`.
fn small(count: u64) -> u32 {
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
