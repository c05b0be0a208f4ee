//! Reads a recording, block by block.

use std::io::{self, Read};

use flate2::read::DeflateDecoder;
use serde::de::DeserializeOwned;

use crate::{BLOCK_HEAD, Block, Header, Kind, MAGIC, PAYLOAD_MAX, VERSION};

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file is not a recording.
    #[error("this is no recording: it does not begin as the files of `commonhold record` do")]
    Foreign,
    /// The file has another version of the format.
    #[error("this recording has version {0} of the format, and this program reads version {VERSION}")]
    Version(u16),
    /// The file has no complete header.
    #[error("this recording was cut short before its header was complete")]
    NoHeader,
    /// A block is damaged.
    #[error("the recording is damaged at byte {at}: {what}")]
    Damaged {
        /// The block's position in the file.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads the blocks of a recording in order.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    header: Header,
    /// The position of the next block.
    at: u64,
    /// The time of the last event.
    last_ns: u64,
    ended: bool,
    cut_short: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    ///
    /// See [`RecordingError`].
    pub fn open(mut from: R) -> Result<Reader<R>, RecordingError> {
        let mut start = [0; MAGIC.len() + 2];
        let have = read_up_to(&mut from, &mut start)?;
        let known = have.min(MAGIC.len());
        if have == 0 || start[..known] != MAGIC[..known] {
            return Err(RecordingError::Foreign);
        }
        if have < start.len() {
            return Err(RecordingError::NoHeader);
        }
        let version = u16::from_le_bytes([start[MAGIC.len()], start[MAGIC.len() + 1]]);
        if version != VERSION {
            return Err(RecordingError::Version(version));
        }
        let at = start.len() as u64;
        match raw_block(&mut from, at)? {
            Some((Kind::Header, payload, bytes)) => {
                let header = decode(&payload, at)?;
                let at = at + bytes;
                Ok(Reader { from, header, at, last_ns: 0, ended: false, cut_short: false })
            }
            Some(_) => Err(damaged(at, "it does not begin with a header")),
            None => Err(RecordingError::NoHeader),
        }
    }

    /// What the recording says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether the file ended before the recording's last block. Known once [`Reader::next_block`] has
    /// returned `None`.
    pub fn is_cut_short(&self) -> bool {
        self.cut_short
    }

    /// The next block; `None` after the last one, or where the file was cut short.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Damaged`] or [`RecordingError::Io`]. What follows a damaged block cannot be read,
    /// since its times continue from that block.
    pub fn next_block(&mut self) -> Result<Option<Block>, RecordingError> {
        if self.ended {
            return Ok(None);
        }
        let at = self.at;
        let Some((kind, payload, bytes)) = raw_block(&mut self.from, at)? else {
            (self.ended, self.cut_short) = (true, true);
            return Ok(None);
        };
        self.at += bytes;
        let block = match kind {
            Kind::Header => return Err(damaged(at, "a second header")),
            Kind::Threads => Block::Threads(decode(&payload, at)?),
            Kind::Events => {
                let mut events: Vec<crate::TimedEvent> = decode(&payload, at)?;
                for event in &mut events {
                    let time = self.last_ns.checked_add(event.at_ns);
                    self.last_ns = time.ok_or_else(|| damaged(at, "a time out of range"))?;
                    event.at_ns = self.last_ns;
                }
                Block::Events(events)
            }
            Kind::Usage => Block::Usage(decode(&payload, at)?),
            Kind::Sample => Block::Sample(decode(&payload, at)?),
            Kind::Contract => Block::Contract(decode(&payload, at)?),
            Kind::Holding => Block::Holding(decode(&payload, at)?),
            Kind::End => {
                self.ended = true;
                Block::End(decode(&payload, at)?)
            }
        };
        Ok(Some(block))
    }
}

/// The next block's kind, its payload, and its length in the file; `None` if the file ends before the end of
/// the block.
fn raw_block(from: &mut impl Read, at: u64) -> Result<Option<(Kind, Vec<u8>, u64)>, RecordingError> {
    let mut head = [0; BLOCK_HEAD];
    if read_up_to(from, &mut head)? < BLOCK_HEAD {
        return Ok(None);
    }
    let number =
        |from: usize| u32::from_le_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]]);
    let kind = Kind::of(head[0]).ok_or_else(|| damaged(at, "a block of an unknown kind"))?;
    let (length, compressed_length, checksum) = (number(1) as usize, number(5) as usize, number(9));
    if length > PAYLOAD_MAX || compressed_length > PAYLOAD_MAX + PAYLOAD_MAX / 8 {
        return Err(damaged(at, "a block that is too large"));
    }
    let mut compressed = Vec::new();
    from.by_ref().take(compressed_length as u64).read_to_end(&mut compressed)?;
    if compressed.len() < compressed_length {
        return Ok(None);
    }
    if crc32fast::hash(&compressed) != checksum {
        return Err(damaged(at, "a block whose checksum is wrong"));
    }
    let mut payload = Vec::with_capacity(length);
    // One byte more than announced shows that the length is wrong.
    let read = DeflateDecoder::new(&compressed[..]).take(length as u64 + 1).read_to_end(&mut payload);
    if read.is_err() || payload.len() != length {
        return Err(damaged(at, "a block that cannot be decompressed"));
    }
    Ok(Some((kind, payload, (BLOCK_HEAD + compressed_length) as u64)))
}

fn decode<T: DeserializeOwned>(payload: &[u8], at: u64) -> Result<T, RecordingError> {
    postcard::from_bytes(payload)
        .map_err(|error| damaged(at, &format!("a block that cannot be decoded: {error}")))
}

fn damaged(at: u64, what: &str) -> RecordingError {
    RecordingError::Damaged { at, what: what.to_owned() }
}

/// Fills the buffer, or reads up to the end of the file; returns the number of bytes read.
fn read_up_to(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match from.read(&mut buffer[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(have)
}
