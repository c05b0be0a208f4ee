//! Writes a history: appends records to the three rings of a folder, and keeps the rings within their bounds.
//!
//! A ring is a sequence of append-only segment files. Its oldest segment is removed once the others have as
//! many records as the ring has to keep, or when the next record would exceed the ring's bound of bytes. The
//! age of records is counted in records, not by the wall clock, so a clock that is set forward removes
//! nothing.
//!
//! A record is written by one call, without fsync: it is in the page cache, and survives the daemon's death,
//! but not always the machine's. A record that was not written completely is cut off again, by the writer or
//! at the next start.
//!
//! Minutes and hours are summed up in memory. A minute is written when the first second of another minute
//! comes, an hour when the first minute of another hour comes. Each record states the last record of the
//! finer ring that it includes. So a later writer rebuilds the incomplete sums from the finer rings.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::Resolution;
use crate::folder::{Folder, OpenError, Segment};
use crate::frame::{self, Found, Header, Walk};
use crate::reader::{Reader, is_same};
use crate::record::{Record, add};
use crate::wire;

/// The default bound on a history's size, in bytes.
pub const BYTES_DEFAULT: u64 = 128 << 20;
/// The least bound that is possible, in bytes.
pub const BYTES_MIN: u64 = 1 << 20;

/// A ring is divided into about this many segments: this part of it is removed at once.
const SEGMENTS: u64 = 16;

/// The largest segment, which readers hold in memory, in bytes.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// How a history is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The bound on the size of all segments together, in bytes; at least [`BYTES_MIN`]. Segments of other
    /// versions of the format are not counted.
    pub bytes_max: u64,
    /// Whether only this user may read the history. Otherwise everybody may.
    pub private: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { bytes_max: BYTES_DEFAULT, private: false }
    }
}

/// The part of the bound for a ring. By default, 100 units have their hour of seconds.
fn bytes_of(resolution: Resolution, options: &Options) -> u64 {
    let sixteenth = options.bytes_max.max(BYTES_MIN) / 16;
    match resolution {
        Resolution::Second | Resolution::Hour => 5 * sixteenth,
        Resolution::Minute => 6 * sixteenth,
    }
}

/// A history that is open for writing. Only one writer has it open.
#[derive(Debug)]
pub struct Writer {
    folder: Folder,
    _lock: File,
    seconds: Ring,
    minutes: Ring,
    hours: Ring,
    /// The sum of the seconds since the last minute that was written.
    minute: Option<Record>,
    /// The sum of the minutes since the last hour that was written.
    hour: Option<Record>,
}

impl Writer {
    /// Opens a history for writing, and makes its folder if there is none; the folder's parent must exist.
    /// Also returns notes on what an earlier daemon left: a record that was not written completely, and files
    /// that stay as they are.
    ///
    /// Errors: the folder cannot be made, does not belong to this user, or may be written by others; another
    /// writer has it open; a sum that the earlier daemon left cannot be written.
    pub fn open(folder: &Path, options: &Options) -> Result<(Writer, Vec<String>), OpenError> {
        let (folder_mode, file_mode) = if options.private { (0o700, 0o600) } else { (0o755, 0o644) };
        let folder = Folder::make(folder, folder_mode)?;
        let path = folder.path().to_owned();
        let failed = |what, source| OpenError { path: path.clone(), what, source };
        let lock = folder.lock().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                failed("another daemon writes this history", io::ErrorKind::ResourceBusy.into())
            }
            _ => failed("cannot lock the history", error),
        })?;
        let reader = crate::reader::open(&path)?;
        let mut notes = Vec::new();
        let mut ring = |resolution| {
            let segments = reader.segments_of(resolution);
            Ring::open(&reader, segments, resolution, options, file_mode, &mut notes)
        };
        let [seconds, minutes, hours] = Resolution::ALL.map(&mut ring);
        let mut writer = Writer { folder, _lock: lock, seconds, minutes, hours, minute: None, hour: None };
        // Numbers stay ascending, even if the segments with the last ones are lost.
        writer.minutes.last = writer.minutes.last.max(writer.hours.through);
        writer.seconds.last = writer.seconds.last.max(writer.minutes.through);
        writer.resume(&reader).map_err(|error| failed("cannot write the history", error))?;
        Ok((writer, notes))
    }

    /// Appends the record of about a second, which must follow the previous one. On an error nothing was
    /// appended, and the same time may be appended later, with the time since.
    ///
    /// Errors: those of writing a file, such as a full disk.
    pub fn append(&mut self, mut record: Record) -> io::Result<()> {
        record.bound();
        self.complete_minute(&record)?;
        self.seconds.append(&self.folder, &mut record)?;
        self.add_second(record);
        Ok(())
    }

    /// The size of all segments, in bytes.
    pub fn bytes(&self) -> u64 {
        [&self.seconds, &self.minutes, &self.hours].into_iter().map(Ring::bytes).sum()
    }

    /// Rebuilds the incomplete sums from records that no coarser record includes.
    fn resume(&mut self, reader: &Reader) -> io::Result<()> {
        // Minutes without a number are the reader's own sums.
        let minutes = reader.after(Resolution::Minute, self.hours.through).flatten();
        for minute in minutes.filter(|minute| minute.number > 0) {
            self.complete_hour(&minute)?;
            self.add_minute(minute);
        }
        for second in reader.after(Resolution::Second, self.minutes.through).flatten() {
            self.complete_minute(&second)?;
            self.add_second(second);
        }
        Ok(())
    }

    /// Writes the sum of seconds, if `second` is of another minute.
    fn complete_minute(&mut self, second: &Record) -> io::Result<()> {
        let Some(minute) = self.minute.take_if(|sum| !is_same(Resolution::Minute, sum, second)) else {
            return Ok(());
        };
        // If writing fails, the sum goes on, and becomes longer than a minute.
        let mut written = minute.clone();
        written.bound();
        match self.complete_hour(&written).and_then(|()| self.minutes.append(&self.folder, &mut written)) {
            Ok(()) => {
                self.add_minute(written);
                Ok(())
            }
            Err(error) => {
                self.minute = Some(minute);
                Err(error)
            }
        }
    }

    /// Writes the sum of minutes, if `minute` is of another hour.
    fn complete_hour(&mut self, minute: &Record) -> io::Result<()> {
        let Some(hour) = self.hour.take_if(|sum| !is_same(Resolution::Hour, sum, minute)) else {
            return Ok(());
        };
        let mut written = hour.clone();
        written.bound();
        let appended = self.hours.append(&self.folder, &mut written);
        if appended.is_err() {
            self.hour = Some(hour);
        }
        appended
    }

    fn add_second(&mut self, second: Record) {
        add_to(&mut self.minute, second);
    }

    fn add_minute(&mut self, minute: Record) {
        add_to(&mut self.hour, minute);
    }
}

/// Adds a record to the sum of a coarser one, which then includes it.
fn add_to(sum: &mut Option<Record>, record: Record) {
    let number = record.number;
    add(sum, record);
    if let Some(sum) = sum {
        sum.through = number;
        // A sum of many records has no more units than a record may have.
        sum.bound();
    }
}

/// One ring.
#[derive(Debug)]
struct Ring {
    resolution: Resolution,
    bytes_max: u64,
    file_mode: u32,
    /// The segments in the format of this program, the oldest first.
    segments: VecDeque<Held>,
    /// The file of the last segment; `None` if the next record begins a new one.
    active: Option<File>,
    /// The number of the next segment.
    next_segment: u64,
    /// The number of the last record.
    last: u64,
    /// [`Record::through`] of the last record.
    through: u64,
}

/// A segment of a ring.
#[derive(Debug)]
struct Held {
    segment: Segment,
    bytes: u64,
    /// The number of its first record, or of one before it.
    first: u64,
}

impl Ring {
    /// Opens a ring. Cuts off what is left of an incomplete record at the end of its last segment.
    fn open(
        reader: &Reader,
        segments: &[Segment],
        resolution: Resolution,
        options: &Options,
        file_mode: u32,
        notes: &mut Vec<String>,
    ) -> Ring {
        let folder = reader.folder();
        let last_head = reader.last_head(resolution);
        let mut ring = Ring {
            resolution,
            bytes_max: bytes_of(resolution, options),
            file_mode,
            segments: VecDeque::new(),
            active: None,
            next_segment: segments.last().map_or(1, |segment| segment.number.saturating_add(1)),
            last: last_head.map_or(0, |head| head.number),
            through: last_head.map_or(0, |head| head.through),
        };
        for (at, segment) in segments.iter().enumerate() {
            let is_last = at + 1 == segments.len();
            let opened = match folder.open_own(*segment, file_mode) {
                Ok(file) => ring.adopt(folder, reader, *segment, file, is_last),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => Err(error),
            };
            match opened {
                Ok(note) => notes.extend(note),
                Err(error) => notes.push(format!("{} stays as it is: {error}", segment.name())),
            }
        }
        ring
    }

    /// Takes a segment of an earlier writer into the ring, and appends to the last one. Returns a note if
    /// something is odd about it.
    fn adopt(
        &mut self,
        folder: &Folder,
        reader: &Reader,
        segment: Segment,
        file: File,
        is_last: bool,
    ) -> io::Result<Option<String>> {
        let bytes = file.metadata()?.len();
        let mut begin = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(&file, frame::HEADER as u64), &mut begin)?;
        match frame::read_header(&begin, self.resolution) {
            Header::Own => {}
            // A daemon died between making the file and writing to it.
            Header::Torn => return folder.remove(segment).map(|()| None),
            Header::Version(version) => {
                let what = format!("{} stays as it is: it has format {version}", segment.name());
                return Ok(Some(what + ", and this program writes format 1"));
            }
            Header::Foreign => {
                return Ok(Some(format!("{} stays as it is: it is no history", segment.name())));
            }
        }
        let previous = self.segments.back().map_or(0, |held| held.first);
        let first = reader.first_head(segment).map_or(previous, |head| head.number);
        let mut held = Held { segment, bytes, first };
        let mut note = None;
        if is_last {
            let content = folder.read(segment)?;
            let mut walk = Walk::new();
            while let Some(found) = walk.next(&content) {
                if let Found::Tail(torn) = found {
                    file.set_len(torn.start as u64)?;
                    held.bytes = torn.start as u64;
                    note = Some(format!(
                        "{}: the last {} bytes are no complete record, and are cut off",
                        segment.name(),
                        bytes - held.bytes
                    ));
                }
            }
            self.active = Some(file);
        }
        self.segments.push_back(held);
        Ok(note)
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|held| held.bytes).sum()
    }

    /// Gives a record its number, and appends it.
    fn append(&mut self, folder: &Folder, record: &mut Record) -> io::Result<()> {
        record.number = self.last + 1;
        let bytes = self.encode(record)?;
        // A segment that somebody removed would take records that nobody can read.
        if self.active.as_ref().is_some_and(|file| file.metadata().is_ok_and(|facts| facts.nlink() == 0)) {
            self.active = None;
            self.segments.pop_back();
        }
        if self.is_segment_full(bytes.len() as u64) {
            self.active = None;
        }
        self.make_room(folder, bytes.len() as u64)?;
        self.write(folder, &bytes, record.number)?;
        (self.last, self.through) = (record.number, record.through);
        Ok(())
    }

    /// The frame of a record. Units are left out of a record that would be too large.
    fn encode(&self, record: &mut Record) -> io::Result<Vec<u8>> {
        let payload_max = usize::try_from(self.bytes_max / 4).unwrap_or(usize::MAX).min(frame::PAYLOAD_MAX);
        loop {
            let payload = wire::encode(record).map_err(io::Error::other)?;
            if payload.len() <= payload_max || record.units.is_empty() {
                let mut bytes = Vec::with_capacity(payload.len() + frame::FRAME);
                frame::push(&mut bytes, &payload);
                return Ok(bytes);
            }
            record.leave_out_to(record.units.len() / 2);
        }
    }

    /// Whether a record of `bytes` begins a new segment.
    fn is_segment_full(&self, bytes: u64) -> bool {
        let records_max = self.resolution.records_kept() / SEGMENTS;
        self.segments.back().is_none_or(|held| {
            held.bytes + bytes > (self.bytes_max / SEGMENTS).min(SEGMENT_BYTES_MAX)
                || self.last.saturating_sub(held.first) + 1 >= records_max
        })
    }

    /// Removes old segments, so that `bytes` can be appended.
    fn make_room(&mut self, folder: &Folder, bytes: u64) -> io::Result<()> {
        let kept = self.resolution.records_kept();
        loop {
            let is_old = self.segments.get(1).is_some_and(|next| next.first + kept <= self.last + 1);
            let is_large = self.bytes() + bytes + frame::HEADER as u64 > self.bytes_max;
            let may_go = self.segments.len() > usize::from(self.active.is_some());
            match self.segments.front() {
                Some(oldest) if (is_old || is_large) && may_go => folder.remove(oldest.segment)?,
                _ => return Ok(()),
            }
            self.segments.pop_front();
        }
    }

    /// Appends a frame to the last segment, or to a new one. On an error, nothing is left of it.
    fn write(&mut self, folder: &Folder, bytes: &[u8], first: u64) -> io::Result<()> {
        if let (Some(file), Some(held)) = (&self.active, self.segments.back_mut()) {
            return match write_at(file, bytes, held.bytes) {
                Ok(()) => {
                    held.bytes += bytes.len() as u64;
                    Ok(())
                }
                Err(error) => {
                    if file.set_len(held.bytes).is_err() {
                        // Readers skip what was written of the record.
                        self.active = None;
                    }
                    Err(error)
                }
            };
        }
        let segment = Segment { resolution: self.resolution, number: self.next_segment };
        let file = match folder.create(segment, self.file_mode) {
            // A file that another program put there stays as it is.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.next_segment += 1;
                return Err(error);
            }
            file => file?,
        };
        let mut content = frame::header(self.resolution).to_vec();
        content.extend_from_slice(bytes);
        if let Err(error) = write_at(&file, &content, 0) {
            folder.remove(segment)?;
            return Err(error);
        }
        self.next_segment += 1;
        self.segments.push_back(Held { segment, bytes: content.len() as u64, first });
        self.active = Some(file);
        Ok(())
    }
}

/// Writes bytes at a place of a file.
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    #[cfg(test)]
    if let Some(room) = tests::room() {
        file.write_all_at(&bytes[..room.min(bytes.len())], at)?;
        return if room < bytes.len() { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) };
    }
    file.write_all_at(bytes, at)
}

#[cfg(test)]
mod tests;
