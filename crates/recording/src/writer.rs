//! Writes a recording.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde::Serialize;

use crate::{Block, END_BYTES, End, Header, Kind, MAGIC, PAYLOAD_MAX, TimedEvent, VERSION};

/// Writes blocks, up to a limit in bytes.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    written: u64,
    limit: u64,
    /// The time of the last event, from which the next block's times are counted.
    last_ns: u64,
}

/// Why a block was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The block would exceed the limit. Nothing of it was written.
    #[error("the recording has reached its limit of {limit} bytes")]
    Full {
        /// The limit.
        limit: u64,
    },
    /// The file cannot be written. A part of the block may be in it.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl<W: Write> Writer<W> {
    /// Begins a recording of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// [`WriteError::Full`] if not even the header fits, [`WriteError::Io`] if the file cannot be written.
    pub fn begin(to: W, header: &Header, limit: u64) -> Result<Writer<W>, WriteError> {
        let mut writer = Writer { to, written: 0, limit, last_ns: 0 };
        let block = block(Kind::Header, header)?;
        let start = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        writer.room_for((start.len() + block.len()) as u64)?;
        writer.put(&start)?;
        writer.put(&block)?;
        Ok(writer)
    }

    /// Writes a block. Events must follow those of earlier blocks in time.
    ///
    /// # Errors
    ///
    /// See [`WriteError`]. After [`WriteError::Full`], a smaller block may still fit, and [`Writer::end`]
    /// always does.
    pub fn write(&mut self, content: &Block) -> Result<(), WriteError> {
        let (bytes, last_ns) = match content {
            Block::Threads(threads) => (block(Kind::Threads, threads)?, None),
            Block::Events(events) => {
                let (relative, last) = relative(events, self.last_ns);
                (block(Kind::Events, &relative)?, Some(last))
            }
            Block::Usage(usage) => (block(Kind::Usage, usage)?, None),
            Block::Sample(sample) => (block(Kind::Sample, sample)?, None),
            Block::Contract(change) => (block(Kind::Contract, change)?, None),
            Block::Holding(change) => (block(Kind::Holding, change)?, None),
            Block::End(end) => (block(Kind::End, end)?, None),
        };
        self.room_for(bytes.len() as u64)?;
        self.put(&bytes)?;
        self.last_ns = last_ns.unwrap_or(self.last_ns);
        Ok(())
    }

    /// Writes the last block, and returns the file.
    ///
    /// # Errors
    ///
    /// The file's.
    pub fn end(mut self, end: &End) -> Result<W, WriteError> {
        // The limit has room for it: END_BYTES.
        let bytes = block(Kind::End, end)?;
        self.put(&bytes)?;
        self.to.flush()?;
        Ok(self.to)
    }

    /// The bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    fn room_for(&self, bytes: u64) -> Result<(), WriteError> {
        let needed = self.written.saturating_add(bytes).saturating_add(END_BYTES);
        if needed > self.limit { Err(WriteError::Full { limit: self.limit }) } else { Ok(()) }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// Events with times since the event before, which take fewer bytes; and the last event's time.
fn relative(events: &[TimedEvent], mut last_ns: u64) -> (Vec<TimedEvent>, u64) {
    let since_last = |timed: &TimedEvent| {
        let since = timed.at_ns.saturating_sub(last_ns);
        last_ns = last_ns.max(timed.at_ns);
        TimedEvent { at_ns: since, event: timed.event }
    };
    let relative = events.iter().map(since_last).collect();
    (relative, last_ns)
}

/// The bytes of a block.
fn block(kind: Kind, content: &impl Serialize) -> io::Result<Vec<u8>> {
    let payload = postcard::to_stdvec(content).map_err(io::Error::other)?;
    if payload.len() > PAYLOAD_MAX {
        let message = format!("a block of {} bytes is larger than {PAYLOAD_MAX}", payload.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(payload.len() / 2), Compression::fast());
    encoder.write_all(&payload)?;
    let compressed = encoder.finish()?;
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = vec![kind as u8];
    bytes.extend_from_slice(&length(&payload));
    bytes.extend_from_slice(&length(&compressed));
    bytes.extend_from_slice(&crc32fast::hash(&compressed).to_le_bytes());
    bytes.extend_from_slice(&compressed);
    Ok(bytes)
}
