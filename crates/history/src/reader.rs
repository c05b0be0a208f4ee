//! Reads a history: while a daemon writes, after one ended, and after damage.

use std::io;
use std::path::{Path, PathBuf};

use crate::Resolution;
use crate::folder::{Folder, OpenError, Segment};
use crate::frame::{self, Found, Header, Walk};
use crate::record::{Record, add};
use crate::wire::{self, Head};

/// A part of a history that could not be read. What follows it is read nevertheless.
#[derive(Debug, thiserror::Error)]
pub enum Skipped {
    /// A later version of this program wrote the file.
    #[error(
        "{file}: skipped, since it has format {version}, and this program reads format 1; read it with a newer one"
    )]
    Version {
        /// The file's name.
        file: String,
        /// The version of its format.
        version: u16,
    },
    /// The file is no history.
    #[error("{file}: skipped, since it is no history; remove it")]
    Foreign {
        /// The file's name.
        file: String,
    },
    /// Some of the file's bytes are no records.
    #[error("{file}: {bytes} bytes from byte {at} are damaged; the records in them are lost")]
    Damaged {
        /// The file's name.
        file: String,
        /// The number of the first of these bytes, from 0.
        at: usize,
        /// How many they are.
        bytes: usize,
    },
    /// The file cannot be read.
    #[error("{file}: skipped, since it cannot be read: {source}")]
    Unreadable {
        /// The file's name.
        file: String,
        /// Why.
        source: io::Error,
    },
}

/// Opens the history in a folder for reading.
///
/// Errors: the folder does not exist, is a symbolic link, or may not be read.
pub fn open(folder: &Path) -> Result<Reader, OpenError> {
    Reader::of(Folder::open(folder)?)
}

/// A history that is open for reading: the segments that existed when it was opened. Records that a daemon
/// appends to these later are read, too, but never a record in part. Segments that it removes meanwhile are
/// no longer read.
#[derive(Debug)]
pub struct Reader {
    folder: Folder,
    /// In ascending order.
    segments: Vec<Segment>,
}

/// An iterator over records in the order in which they were recorded, with what could not be read between
/// them.
pub struct Records<'r>(Box<dyn Iterator<Item = Result<Record, Skipped>> + 'r>);

impl Iterator for Records<'_> {
    type Item = Result<Record, Skipped>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

/// The records to decode.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// Those that begin in a period of the wall clock: from a time, and before another.
    Period(u64, u64),
    /// Those with higher numbers.
    After(u64),
}

impl Wanted {
    fn has(self, head: &Head) -> bool {
        match self {
            Wanted::Period(from_ms, to_ms) => (from_ms..to_ms).contains(&head.start.wall_ms),
            Wanted::After(number) => head.number > number,
        }
    }
}

impl Reader {
    pub(crate) fn of(folder: Folder) -> Result<Reader, OpenError> {
        let segments = folder.segments().map_err(|source| OpenError {
            path: folder.path().to_owned(),
            what: "cannot list the history's folder",
            source,
        })?;
        Ok(Reader { folder, segments })
    }

    /// The folder.
    pub fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// The period that the history covers, with gaps: the first and last moment of its records on the wall
    /// clock, in milliseconds since 1970. `None` if there are no records.
    pub fn range(&self) -> Option<(u64, u64)> {
        let ranges = Resolution::ALL.into_iter().filter_map(|resolution| self.range_of(resolution));
        ranges.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// [`Reader::range`] of one ring. A coarser ring ends before the finer ones: [`Reader::records`] sums up
    /// the rest from these.
    pub fn range_of(&self, resolution: Resolution) -> Option<(u64, u64)> {
        let segments = self.segments_of(resolution);
        let (last, earlier) = segments.split_last()?;
        let mut range: Option<(u64, u64)> = None;
        let mut include = |head: &Head| {
            let (from, to) = range.get_or_insert((head.start.wall_ms, head.end.wall_ms));
            *from = (*from).min(head.start.wall_ms);
            *to = (*to).max(head.end.wall_ms);
        };
        for segment in earlier {
            if let Some(head) = self.first_head(*segment) {
                include(&head);
            } else {
                self.heads(std::slice::from_ref(segment)).for_each(|head| include(&head));
            }
        }
        self.heads(std::slice::from_ref(last)).for_each(|head| include(&head));
        range
    }

    /// The records of one resolution that begin in a period of the wall clock, in milliseconds since 1970:
    /// from `from_ms`, and before `to_ms`. They come in the order in which they were recorded, in constant
    /// memory. Minutes and hours that are not complete yet are summed up from the finer ring, and come last.
    ///
    /// If the clock was set back, records of two stretches of time have the same label; both are in the
    /// period.
    pub fn records(&self, resolution: Resolution, from_ms: u64, to_ms: u64) -> Records<'_> {
        self.select(resolution, Wanted::Period(from_ms, to_ms))
    }

    /// The records that begin in a period, each stretch of time at the finest resolution that is still kept:
    /// hours, then minutes, then seconds. No time is in two of them, so their sum is the account of the
    /// period.
    pub fn finest(&self, from_ms: u64, to_ms: u64) -> Records<'_> {
        let period = Wanted::Period(from_ms, to_ms);
        let first = |resolution| {
            let mut heads = self.heads(self.segments_of(resolution));
            heads.next().map_or(u64::MAX, |head: Head| head.number)
        };
        let first_number = [first(Resolution::Second), first(Resolution::Minute)];
        let mut left = vec![Resolution::Second, Resolution::Minute, Resolution::Hour];
        let mut scan: Option<(Resolution, Scan<'_>)> = None;
        // The last record of the finer ring that is included in those of the coarser rings so far.
        let mut through = 0;
        // The number up to which the present ring's records are included in coarser ones.
        let mut included = 0;
        Records(Box::new(std::iter::from_fn(move || {
            loop {
                let (resolution, records) = if let Some((resolution, records)) = &mut scan {
                    (*resolution, records)
                } else {
                    let resolution = left.pop()?;
                    // Seconds that no minute accounts for may be part of an hour if the minutes are lost.
                    let minutes_are_lost = through == 0 && included > 0;
                    included = if minutes_are_lost { u64::MAX } else { through };
                    through = 0;
                    let (_, records) = scan.insert((resolution, self.scan(self.segments_of(resolution))));
                    (resolution, records)
                };
                let finer_first = match resolution {
                    Resolution::Second => u64::MAX,
                    Resolution::Minute => first_number[0],
                    Resolution::Hour => first_number[1],
                };
                let is_used = |head: &Head| {
                    // The finer ring still has all of it.
                    head.number > included && (resolution == Resolution::Second || through + 1 < finer_first)
                };
                match records.next(|head| period.has(head) && is_used(head)) {
                    None => scan = None,
                    Some(Err(skipped)) => return Some(Err(skipped)),
                    Some(Ok((head, record))) => {
                        if head.number <= included || through + 1 < finer_first {
                            through = head.through;
                        }
                        if let Some(record) = record {
                            return Some(Ok(record));
                        }
                    }
                }
            }
        })))
    }

    /// The records of a ring after a number, and those to come, as [`Reader::records`] has them.
    pub(crate) fn after(&self, resolution: Resolution, number: u64) -> Records<'_> {
        self.select(resolution, Wanted::After(number))
    }

    /// The head of a ring's last record.
    pub(crate) fn last_head(&self, resolution: Resolution) -> Option<Head> {
        let segments = self.segments_of(resolution);
        segments.iter().rev().find_map(|segment| self.heads(std::slice::from_ref(segment)).last())
    }

    /// The head of a segment's first record; `None` if it is damaged.
    pub(crate) fn first_head(&self, segment: Segment) -> Option<Head> {
        Some(wire::decode_head(&self.folder.first_payload(segment)?)?.0)
    }

    pub(crate) fn segments_of(&self, resolution: Resolution) -> &[Segment] {
        let from = self.segments.partition_point(|segment| segment.resolution < resolution);
        let to = self.segments.partition_point(|segment| segment.resolution <= resolution);
        &self.segments[from..to]
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    fn heads<'r>(&'r self, segments: &'r [Segment]) -> impl Iterator<Item = Head> + 'r {
        let mut scan = self.scan(segments);
        std::iter::from_fn(move || {
            loop {
                if let Ok((head, _)) = scan.next(|_| false)? {
                    return Some(head);
                }
            }
        })
    }

    fn scan<'r>(&'r self, segments: &'r [Segment]) -> Scan<'r> {
        Scan { folder: &self.folder, segments: segments.iter(), current: None }
    }

    fn select(&self, resolution: Resolution, wanted: Wanted) -> Records<'_> {
        // Segments before the first that can have a record after the number need not be read.
        let segments = match wanted {
            Wanted::After(number) => {
                let segments = self.segments_of(resolution);
                let is_before =
                    |segment: &Segment| self.first_head(*segment).is_some_and(|head| head.number <= number);
                &segments[segments.iter().rposition(is_before).unwrap_or(0)..]
            }
            Wanted::Period(..) => self.segments_of(resolution),
        };
        let mut scan = Some(self.scan(segments));
        let mut through = 0;
        let mut tail = Vec::new().into_iter();
        Records(Box::new(std::iter::from_fn(move || {
            while let Some(records) = &mut scan {
                match records.next(|head| wanted.has(head)) {
                    Some(Err(skipped)) => return Some(Err(skipped)),
                    Some(Ok((head, record))) => {
                        through = head.through;
                        if let Some(record) = record {
                            return Some(Ok(record));
                        }
                    }
                    None => {
                        scan = None;
                        tail = self.tail(resolution, through, wanted).into_iter();
                    }
                }
            }
            tail.next()
        })))
    }

    /// The records of a ring that the writer has not written yet: sums of the finer ring's records after a
    /// number.
    fn tail(&self, resolution: Resolution, through: u64, wanted: Wanted) -> Vec<Result<Record, Skipped>> {
        let Some(finer) = resolution.finer() else { return Vec::new() };
        let mut tail: Vec<Result<Record, Skipped>> = Vec::new();
        let mut sum: Option<Record> = None;
        for record in self.after(finer, through) {
            match record {
                Ok(record) => {
                    let is_next = |sum: &Record| !is_same(resolution, sum, &record);
                    if let Some(complete) = sum.take_if(|sum| is_next(sum)) {
                        tail.push(Ok(complete));
                    }
                    add(&mut sum, record);
                }
                Err(skipped) => tail.push(Err(skipped)),
            }
        }
        tail.extend(sum.map(Ok));
        tail.retain(|record| match (record, wanted) {
            (Ok(record), Wanted::Period(from_ms, to_ms)) => (from_ms..to_ms).contains(&record.start.wall_ms),
            _ => true,
        });
        tail
    }
}

/// Whether two records begin in the same minute, or hour, of the wall clock: whether they are in the same
/// sum.
pub(crate) fn is_same(resolution: Resolution, a: &Record, b: &Record) -> bool {
    a.start.wall_ms / resolution.ms() == b.start.wall_ms / resolution.ms()
}

/// A walk through the records of segments.
struct Scan<'r> {
    folder: &'r Folder,
    segments: std::slice::Iter<'r, Segment>,
    current: Option<Current>,
}

struct Current {
    segment: Segment,
    bytes: Vec<u8>,
    walk: Walk,
}

/// The head of a record, and the record if it was wanted.
type Scanned = (Head, Option<Record>);

impl Scan<'_> {
    /// The next record, or what could not be read before it. The record is decoded only if it is wanted.
    fn next(&mut self, wanted: impl Fn(&Head) -> bool) -> Option<Result<Scanned, Skipped>> {
        loop {
            let Some(Current { segment, bytes, walk }) = &mut self.current else {
                let segment = *self.segments.next()?;
                match self.begin(segment) {
                    Ok(current) => self.current = current,
                    Err(skipped) => return Some(Err(skipped)),
                }
                continue;
            };
            let damaged = |range: std::ops::Range<usize>| {
                Some(Err(Skipped::Damaged { file: segment.name(), at: range.start, bytes: range.len() }))
            };
            match walk.next(bytes) {
                None => self.current = None,
                Some(Found::Damaged(range)) => return damaged(range),
                Some(Found::Tail(range)) => {
                    // The ring's last segment may end with a record that is being written.
                    if self.segments.len() > 0 {
                        return damaged(range);
                    }
                    self.current = None;
                }
                Some(Found::Payload(range)) => {
                    let Some((head, body)) = wire::decode_head(&bytes[range.clone()]) else {
                        return damaged(range);
                    };
                    if !wanted(&head) {
                        return Some(Ok((head, None)));
                    }
                    return match wire::decode_body(head, body) {
                        Some(record) => Some(Ok((head, Some(record)))),
                        None => damaged(range),
                    };
                }
            }
        }
    }

    /// Reads a segment; `None` if it is gone or empty.
    fn begin(&self, segment: Segment) -> Result<Option<Current>, Skipped> {
        let file = || segment.name();
        let bytes = match self.folder.read(segment) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Skipped::Unreadable { file: file(), source }),
        };
        match frame::read_header(&bytes, segment.resolution) {
            Header::Own => Ok(Some(Current { segment, bytes, walk: Walk::new() })),
            Header::Torn => Ok(None),
            Header::Version(version) => Err(Skipped::Version { file: file(), version }),
            Header::Foreign => Err(Skipped::Foreign { file: file() }),
        }
    }
}
