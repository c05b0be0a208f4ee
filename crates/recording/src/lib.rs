//! Recordings: what the threads of a machine's units did, and what the daemon's accounts said meanwhile.
//!
//! `commonhold record` writes a recording, and `commonhold what-if` replays it. [`Writer`] and [`Reader`]
//! have the format; neither opens a file. [`model`] has the content.
//!
//! # Format
//!
//! Version 2. A file begins with [`MAGIC`] and the version (16 bits). All numbers of fixed size are
//! little-endian. Blocks follow: a byte for the kind, the length of the payload (32 bits), the length of the
//! payload compressed by deflate (32 bits), the CRC-32 of the compressed bytes, and these bytes. A payload is
//! encoded by [postcard](https://postcard.jamesmunns.com/wire-format), version 1, from the types of
//! [`model`]. The first block is the [`Header`], the last one the [`End`]. A file without an end was cut
//! short; the blocks before are good.
//!
//! # Bounds
//!
//! A writer has a limit in bytes, and keeps [`END_BYTES`] of it for the end. It refuses a block that does not
//! fit. A reader refuses blocks that are larger than [`PAYLOAD_MAX`] before it decompresses them, so a
//! hostile file cannot exhaust its memory.

mod model;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use model::*;
pub use reader::{Reader, RecordingError};
pub use writer::{WriteError, Writer};

/// The first bytes of a recording.
pub const MAGIC: [u8; 8] = *b"CH-RECD\n";
/// The version of the format that is written, and the only one that is read.
pub const VERSION: u16 = 2;
/// The largest payload of a block, in bytes.
pub const PAYLOAD_MAX: usize = 16 << 20;
/// What a writer keeps free for the last block, in bytes.
pub const END_BYTES: u64 = 4096;
/// The length of a block before its payload: kind, both lengths, checksum.
const BLOCK_HEAD: usize = 13;

/// The kind of a block, as its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Header = 1,
    Threads = 2,
    Events = 3,
    Usage = 4,
    Sample = 5,
    Contract = 6,
    End = 7,
    Holding = 8,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Header,
        Kind::Threads,
        Kind::Events,
        Kind::Usage,
        Kind::Sample,
        Kind::Contract,
        Kind::End,
        Kind::Holding,
    ];

    fn of(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}
