use proptest::prelude::*;

use crate::*;

fn header() -> Header {
    Header {
        program: "0.1.0".to_owned(),
        kernel: "6.12.1".to_owned(),
        began_wall_ms: 1_780_000_000_000,
        machine: "cpus = []\n".to_owned(),
        contract: "version = 1\n".to_owned(),
        contract_file: "/etc/commonhold.toml".to_owned(),
        scheme: "isolate".to_owned(),
        backend: "kernel".to_owned(),
        method: Method::Events,
        sample_ns: 1_000_000_000,
    }
}

fn end() -> End {
    End { at_ns: 5, why: Why::Time, lost: 0, disordered: 0, recorder_ns: 1, without_accounts_ns: 0 }
}

fn event(at_ns: u64, cpu: u32) -> TimedEvent {
    TimedEvent { at_ns, event: Event::Switch { cpu, from: 7, left: Left::Asleep, to: 0 } }
}

/// A recording with these blocks, as bytes.
fn recording(blocks: &[Block]) -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), &header(), u64::MAX).unwrap();
    for block in blocks {
        writer.write(block).unwrap();
    }
    writer.end(&end()).unwrap()
}

/// The blocks of a recording, and whether it was cut short.
fn read(bytes: &[u8]) -> Result<(Vec<Block>, bool), RecordingError> {
    let mut reader = Reader::open(bytes)?;
    let mut blocks = Vec::new();
    while let Some(block) = reader.next_block()? {
        blocks.push(block);
    }
    Ok((blocks, reader.is_cut_short()))
}

#[test]
fn what_was_written_is_read() {
    let thread = Thread { tid: 7, pid: 7, name: "make".to_owned(), unit: "physics".to_owned(), seen_ns: 0 };
    let usage = ThreadUsage { tid: 7, ran_ns: 3, waited_ns: 4, turns: 1 };
    let blocks = vec![
        Block::Threads(vec![thread]),
        Block::Events(vec![event(10, 0), event(10, 1), event(400, 0)]),
        Block::Sample(Sample { at_ns: 500, ..Sample::default() }),
        Block::Events(vec![event(1_000_000_000_000, 3)]),
        Block::Usage(Usage { at_ns: 9, over_ns: 9, threads: vec![usage] }),
        Block::Contract(ContractChange { at_ns: 6, text: "version = 1\n".to_owned() }),
        Block::Holding(HoldingChange {
            at_ns: 6,
            resource: "cpu".to_owned(),
            is_held: false,
            how: "not held: the kernel ended the scheduler".to_owned(),
        }),
    ];
    let bytes = recording(&blocks);
    assert_eq!(Reader::open(&bytes[..]).unwrap().header(), &header());
    let with_end = [blocks, vec![Block::End(end())]].concat();
    assert_eq!(read(&bytes).unwrap(), (with_end, false));
}

#[test]
fn a_recording_that_was_cut_short_is_read_up_to_the_last_whole_block() {
    let blocks = vec![Block::Events(vec![event(10, 0)]), Block::Events(vec![event(20, 0)])];
    let bytes = recording(&blocks);
    let mut whole = 0;
    for length in 0..bytes.len() {
        match read(&bytes[..length]) {
            Ok((read, is_cut_short)) => {
                assert!(is_cut_short);
                assert_eq!(read, blocks[..read.len()]);
                whole = whole.max(read.len());
            }
            Err(RecordingError::Foreign) => assert_eq!(length, 0),
            Err(RecordingError::NoHeader) => assert_eq!(whole, 0),
            Err(error) => panic!("{length}: {error}"),
        }
    }
    assert_eq!(whole, 2);
}

#[test]
fn foreign_files_and_other_versions_are_refused() {
    let message = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(message(b"# tracer: nop").starts_with("this is no recording"));
    let mut bytes = recording(&[]);
    bytes[8] = 1;
    assert_eq!(
        message(&bytes),
        "this recording has version 1 of the format, and this program reads version 2"
    );
}

#[test]
fn a_damaged_block_is_reported_with_its_position() {
    let mut bytes = recording(&[Block::Events(vec![event(10, 0)])]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let error = read(&bytes).unwrap_err().to_string();
    assert!(error.ends_with("a block whose checksum is wrong"), "{error}");
}

#[test]
fn a_writer_keeps_its_limit_and_has_room_for_the_end() {
    let limit = 8192;
    let mut writer = Writer::begin(Vec::new(), &header(), limit).unwrap();
    let noise = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let mut written = 0;
    let full = loop {
        let events =
            (0..64).map(|n| event(1 << 40, u32::try_from(noise(written * 64 + n)).unwrap())).collect();
        match writer.write(&Block::Events(events)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.to_string(), "the recording has reached its limit of 8192 bytes");
    assert!(written > 3);
    let bytes = writer.end(&end()).unwrap();
    assert!(bytes.len() as u64 <= limit);
    let (blocks, is_cut_short) = read(&bytes).unwrap();
    assert!(!is_cut_short);
    assert_eq!(blocks.len() as u64, written + 1);
}

#[test]
fn a_block_may_not_be_larger_than_it_says() {
    // A payload of 1,000 zeros that announces ten bytes.
    let mut bytes = recording(&[Block::Threads(vec![
        Thread {
            tid: 0,
            pid: 0,
            name: "\0".repeat(1000),
            unit: String::new(),
            seen_ns: 0
        };
        1
    ])]);
    let threads = 10 + BLOCK_HEAD + u32::from_le_bytes(bytes[15..19].try_into().unwrap()) as usize;
    assert_eq!(bytes[threads], Kind::Threads as u8);
    bytes[threads + 1..threads + 5].copy_from_slice(&10_u32.to_le_bytes());
    assert!(read(&bytes).unwrap_err().to_string().ends_with("cannot be decompressed"));
}

proptest! {
    /// Whatever the bytes are, reading ends, with an error or not.
    #[test]
    fn damage_never_panics(at in 0_usize..400, bits in 1_u8..=255) {
        let mut bytes = recording(&[Block::Events(vec![event(10, 0), event(11, 2)])]);
        let at = at % bytes.len();
        bytes[at] ^= bits;
        let _ = read(&bytes);
    }
}
