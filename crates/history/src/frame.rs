//! A segment's bytes: a header, and records in frames. Finds the records of any bytes.
//!
//! A frame is a marker, the payload's length and checksum, and the payload. After damage, the next record is
//! found by the marker. A marker may occur by chance, or be written on purpose; the number of false ones that
//! are followed is bounded, so that reading takes time proportional to the file's size.

use std::ops::Range;

use crate::Resolution;

/// The version of the format that is written, and the only one that is read.
pub(crate) const VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"CH-HIST\n";
/// The length of a header: magic, version, resolution, and five bytes of zeros.
pub(crate) const HEADER: usize = 16;

const MARKER: [u8; 4] = [0xc0, 0x1d, 0xfa, 0xce];
/// The length of a frame before the payload: marker, length, checksum.
pub(crate) const FRAME: usize = 12;
/// The largest payload.
pub(crate) const PAYLOAD_MAX: usize = 4 << 20;
/// The number of markers without a record after which the rest of a segment is given up.
const FALSE_MARKERS_MAX: u32 = 64;

/// The header of a segment of this resolution.
pub(crate) fn header(resolution: Resolution) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[10] = resolution as u8;
    header
}

/// What a segment's first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    /// A segment of this resolution, in the format that is read here.
    Own,
    /// A segment of another version of the format.
    Version(u16),
    /// No segment, or one of another resolution.
    Foreign,
    /// A header that is not complete.
    Torn,
}

/// Reads the header of a segment that is to be of this resolution.
pub(crate) fn read_header(bytes: &[u8], resolution: Resolution) -> Header {
    let expected = header(resolution);
    let Some(found) = bytes.get(..HEADER) else {
        return match expected.starts_with(bytes) {
            true => Header::Torn,
            false => Header::Foreign,
        };
    };
    if found[..8] != MAGIC {
        return Header::Foreign;
    }
    match u16::from_le_bytes([found[8], found[9]]) {
        VERSION if found == expected => Header::Own,
        VERSION => Header::Foreign,
        version => Header::Version(version),
    }
}

/// Appends a payload's frame to `bytes`.
pub(crate) fn push(bytes: &mut Vec<u8>, payload: &[u8]) {
    bytes.extend_from_slice(&MARKER);
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    bytes.extend_from_slice(payload);
}

/// What follows in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// A payload whose checksum is right.
    Payload(Range<usize>),
    /// Bytes that are no record, before the next record.
    Damaged(Range<usize>),
    /// Bytes at the end that are no record: a record that was not written completely, or damage.
    Tail(Range<usize>),
}

/// Walks through a segment's bytes.
#[derive(Debug)]
pub(crate) struct Walk {
    at: usize,
    false_markers: u32,
}

impl Walk {
    /// Begins behind the header.
    pub(crate) fn new() -> Walk {
        Walk { at: HEADER, false_markers: 0 }
    }

    /// The next piece of `bytes`, which must be the same at every call; `None` at the end.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Option<Found> {
        if self.at >= bytes.len() {
            return None;
        }
        if let Some(payload) = frame_at(bytes, self.at) {
            self.at = payload.end;
            return Some(Found::Payload(payload));
        }
        let from = self.at;
        let mut search = from + 1;
        while let Some(marker) = self.next_marker(bytes, search) {
            if frame_at(bytes, marker).is_some() {
                self.at = marker;
                return Some(Found::Damaged(from..marker));
            }
            self.false_markers += 1;
            search = marker + 1;
        }
        self.at = bytes.len();
        Some(Found::Tail(from..bytes.len()))
    }

    fn next_marker(&self, bytes: &[u8], from: usize) -> Option<usize> {
        if self.false_markers >= FALSE_MARKERS_MAX {
            return None;
        }
        let offset = bytes.get(from..)?.windows(MARKER.len()).position(|window| window == MARKER)?;
        Some(from + offset)
    }
}

/// The length of the payload of a frame that begins at `at`; `None` if no frame begins there, or if its
/// length is no payload's.
pub(crate) fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let frame = bytes.get(at..at.checked_add(FRAME)?)?;
    let length = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
    let length = usize::try_from(length).ok().filter(|length| *length <= PAYLOAD_MAX)?;
    (frame[..4] == MARKER).then_some(length)
}

/// The place of the payload of a frame that begins at `at`; `None` if there is no complete frame with the
/// right checksum.
fn frame_at(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let begin = at + FRAME;
    let payload = begin..begin + length_at(bytes, at)?;
    let checksum = u32::from_le_bytes(bytes.get(begin - 4..begin)?.try_into().ok()?);
    (crc32fast::hash(bytes.get(payload.clone())?) == checksum).then_some(payload)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{busy, second};
    use crate::wire;
    use proptest::prelude::*;

    /// Three records, and the ends of the pieces of the segment.
    fn segment() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header(Resolution::Second).to_vec();
        let mut ends = vec![HEADER];
        for n in 0..3 {
            let mut record = second(n);
            record.units.push(busy("b", n));
            push(&mut bytes, &wire::encode(&record).unwrap());
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    /// The payloads of any bytes. The pieces of a walk follow each other without gaps.
    fn payloads(bytes: &[u8]) -> Vec<Range<usize>> {
        let (mut walk, mut payloads, mut at) = (Walk::new(), Vec::new(), HEADER);
        while let Some(found) = walk.next(bytes) {
            let (from, to) = match &found {
                Found::Payload(range) => (range.start - FRAME, range.end),
                Found::Damaged(range) | Found::Tail(range) => (range.start, range.end),
            };
            assert_eq!(from, at);
            at = to;
            if let Found::Payload(range) = found {
                payloads.push(range);
            }
        }
        assert!(bytes.len() <= HEADER || at == bytes.len());
        payloads
    }

    #[test]
    fn headers() {
        let own = header(Resolution::Minute);
        assert_eq!(read_header(&own, Resolution::Minute), Header::Own);
        assert_eq!(read_header(&own, Resolution::Hour), Header::Foreign);
        assert!((0..HEADER).all(|cut| read_header(&own[..cut], Resolution::Minute) == Header::Torn));
        let mut future = own;
        future[9] = 1;
        assert_eq!(read_header(&future, Resolution::Minute), Header::Version(257));
        assert_eq!(read_header(b"text", Resolution::Minute), Header::Foreign);
    }

    #[test]
    fn false_markers_are_followed_only_so_often() {
        let (mut bytes, ends) = segment();
        let rest = bytes.split_off(ends[1]);
        bytes.extend((0..1_000).flat_map(|_| [&MARKER[..], &4_000u32.to_le_bytes()].concat()));
        bytes.extend(rest);
        assert_eq!(payloads(&bytes).len(), 1);
    }

    proptest! {
        /// Any bytes are read without a panic.
        #[test]
        fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            payloads(&bytes);
            if let Some((head, body)) = wire::decode_head(&bytes) {
                wire::decode_body(head, body);
            }
        }

        /// A changed record is decoded, or refused, without a panic: a checksum does not keep anybody from
        /// writing bad records.
        #[test]
        fn changed_payloads(at in 0usize..400, to in any::<u8>(), cut in 0usize..400) {
            let mut record = second(1);
            record.units.push(busy("b/ä", 1));
            let mut payload = wire::encode(&record).unwrap();
            let length = payload.len();
            payload[at % length] = to;
            payload.truncate(length - cut % 3);
            if let Some((head, body)) = wire::decode_head(&payload) {
                wire::decode_body(head, body);
            }
        }

        /// Records before and after damage are found.
        #[test]
        fn damage(at in HEADER..700usize, length in 1usize..40, with in any::<u8>()) {
            let (mut bytes, ends) = segment();
            let at = at.min(bytes.len() - 1);
            let to = (at + length).min(bytes.len());
            let before = bytes.clone();
            bytes[at..to].fill(with);
            let is_whole = |piece: &[usize]| before[piece[0]..piece[1]] == bytes[piece[0]..piece[1]];
            let whole: Vec<usize> =
                ends.windows(2).filter(|piece| is_whole(piece)).map(|piece| piece[1]).collect();
            let found: Vec<usize> = payloads(&bytes).iter().map(|range| range.end).collect();
            prop_assert_eq!(found, whole);
        }

        /// What is cut out of the middle costs at most the records that it touches.
        #[test]
        fn cuts(at in HEADER..700usize, length in 1usize..300) {
            let (mut bytes, ends) = segment();
            let at = at.min(bytes.len() - 1);
            let to = (at + length).min(bytes.len());
            let untouched = ends.windows(2).filter(|piece| piece[1] <= at || piece[0] >= to).count();
            bytes.drain(at..to);
            // A cut from one frame's marker to the next one's may leave a whole frame.
            prop_assert!((untouched..=untouched + 1).contains(&payloads(&bytes).len()));
        }
    }
}
