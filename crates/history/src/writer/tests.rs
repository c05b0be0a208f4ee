#![allow(clippy::unwrap_used)]
use super::*;
use crate::reader::{self, Skipped};
use crate::record::sum;
use crate::testing::{HOUR_MS, START_MS, record, second};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;

thread_local! {
    /// How many bytes of each write fit on the disk; `None`: all.
    static ROOM: Cell<Option<usize>> = const { Cell::new(None) };
}

pub(super) fn room() -> Option<usize> {
    ROOM.get()
}

fn open(folder: &Path) -> Writer {
    let (writer, notes) = Writer::open(folder, &Options::default()).unwrap();
    assert_eq!(notes, Vec::<String>::new());
    writer
}

/// The records of a ring, and the messages about what was skipped.
fn read(folder: &Path, resolution: Resolution) -> (Vec<Record>, Vec<String>) {
    let reader = reader::open(folder).unwrap();
    let (mut records, mut skipped) = (Vec::new(), Vec::new());
    for record in reader.records(resolution, 0, u64::MAX) {
        match record {
            Ok(record) => records.push(record),
            Err(lost) => skipped.push(lost.to_string()),
        }
    }
    (records, skipped)
}

fn used(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.unit("a").map_or(0, |unit| unit.cpu.used_ns)).collect()
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "lock")
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_written_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("history");
    let mut writer = open(&folder);
    let mut expected: Vec<Record> = (0..200).map(second).collect();
    for record in &expected {
        writer.append(record.clone()).unwrap();
    }
    (1..).zip(&mut expected).for_each(|(number, record)| record.number = number);
    assert_eq!(read(&folder, Resolution::Second), (expected.clone(), vec![]));
    // Three minutes are written; the fourth, and the hour, are summed up by the reader.
    let (minutes, skipped) = read(&folder, Resolution::Minute);
    assert_eq!((minutes.len(), skipped.len()), (4, 0));
    assert_eq!(used(&minutes), [60, 60, 60, 20]);
    let (hours, _) = read(&folder, Resolution::Hour);
    let whole = sum(expected).unwrap();
    assert_eq!(hours, [Record { through: hours[0].through, ..whole }]);
    assert_eq!(files(&folder), ["minute-0000001.history", "second-0000001.history"]);
}

/// However a daemon ends, the next one continues the minute and the hour.
#[test]
fn sums_survive_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..400 {
        let mut writer = open(dir.path());
        for n in n * 20..(n + 1) * 20 {
            writer.append(second(n)).unwrap();
        }
    }
    let (hours, skipped) = read(dir.path(), Resolution::Hour);
    assert_eq!((used(&hours), skipped), (vec![3_600, 3_600, 800], vec![]));
    let (minutes, _) = read(dir.path(), Resolution::Minute);
    assert!(used(&minutes)[..133].iter().all(|used| *used == 60));
    let numbers: Vec<u64> = minutes[..133].iter().map(|minute| minute.through).collect();
    assert!(numbers.iter().zip(1..).all(|(through, n)| *through == 60 * n));
}

#[test]
fn a_record_that_was_not_written_completely_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("second-0000001.history");
    let mut writer = open(dir.path());
    (0..3).for_each(|n| writer.append(second(n)).unwrap());
    drop(writer);
    let whole = fs::read(&file).unwrap();
    let ends: Vec<usize> = {
        let mut walk = Walk::new();
        std::iter::from_fn(|| match walk.next(&whole)? {
            Found::Payload(payload) => Some(payload.end),
            _ => None,
        })
        .collect()
    };
    for cut in 0..whole.len() {
        fs::write(&file, &whole[..cut]).unwrap();
        let complete = ends.iter().filter(|end| **end <= cut).count();
        // A reader that comes before the writer.
        assert_eq!(read(dir.path(), Resolution::Second).0.len(), complete, "cut at {cut}");
        let (mut writer, notes) = Writer::open(dir.path(), &Options::default()).unwrap();
        let is_torn = cut > frame::HEADER && !ends.contains(&cut);
        assert_eq!(notes.len(), usize::from(is_torn), "{notes:?}");
        writer.append(second(7)).unwrap();
        drop(writer);
        let (records, skipped) = read(dir.path(), Resolution::Second);
        assert_eq!((records.len(), skipped.len()), (complete + 1, 0), "cut at {cut}: {skipped:?}");
        for other in files(dir.path()) {
            fs::remove_file(dir.path().join(other)).unwrap();
        }
    }
}

/// A write of which only a part fits is undone. The same time is written later.
#[test]
fn a_full_disk_is_waited_for() {
    for fits in [0, 1, 20, 40] {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = open(dir.path());
        for n in 0..59 {
            writer.append(second(n)).unwrap();
        }
        let before = files(dir.path()).len();
        ROOM.set(Some(fits));
        // The first is of the same minute; the second begins another, and would write the minute.
        for n in [59, 60] {
            let error = writer.append(second(n)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        assert_eq!((read(dir.path(), Resolution::Second).0.len(), files(dir.path()).len()), (59, before));
        ROOM.set(None);
        writer.append(record(59, 62, 3)).unwrap();
        writer.append(second(62)).unwrap();
        drop(writer);
        open(dir.path());
        let (minutes, skipped) = read(dir.path(), Resolution::Minute);
        assert_eq!((used(&minutes), skipped), (vec![62, 1], vec![]));
    }
}

#[test]
fn damage_in_the_middle_costs_only_what_it_hits() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("second-0000001.history");
    let mut writer = open(dir.path());
    (0..50).for_each(|n| writer.append(second(n)).unwrap());
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&file, &bytes).unwrap();
    let (records, skipped) = read(dir.path(), Resolution::Second);
    assert_eq!((records.len(), skipped.len()), (49, 1));
    assert!(skipped[0].starts_with("second-0000001.history: ") && skipped[0].contains("damaged"));
    // The writer goes on behind it.
    drop(writer);
    let mut writer = open(dir.path());
    writer.append(second(50)).unwrap();
    assert_eq!(read(dir.path(), Resolution::Second).0.len(), 50);
}

/// Whichever bit is flipped: readers lose one record, or a file whose header is damaged, and report it.
#[test]
fn no_flipped_bit_goes_unnoticed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("second-0000001.history");
    let mut writer = open(dir.path());
    (0..3).for_each(|n| writer.append(second(n)).unwrap());
    writer.append(Record { suspended_ns: 5, ..second(3) }).unwrap();
    let (whole, bytes) = (read(dir.path(), Resolution::Second).0, fs::read(&file).unwrap());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&file, flipped).unwrap();
        let (records, skipped) = read(dir.path(), Resolution::Second);
        let lost = if bit / 8 < frame::HEADER { 4 } else { 1 };
        assert_eq!(records.len(), 4 - lost, "bit {bit}");
        assert!(records.iter().all(|record| whole.contains(record)), "bit {bit}");
        // The last record may be one that is being written.
        let is_last = records.len() == 3 && records[2].number == 3;
        assert_eq!(skipped.len(), usize::from(!is_last), "bit {bit}: {skipped:?}");
    }
}

#[test]
fn other_formats_and_files_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let future = dir.path().join("second-0000009.history");
    let mut header = frame::header(Resolution::Second);
    header[8] = 9;
    fs::write(&future, header).unwrap();
    fs::write(dir.path().join("minute-0000004.history"), "my own notes on history").unwrap();
    fs::write(dir.path().join("hour-4.history"), "another spelling").unwrap();
    fs::write(dir.path().join("README"), "text").unwrap();
    let (mut writer, notes) = Writer::open(dir.path(), &Options::default()).unwrap();
    assert_eq!(
        notes,
        [
            "second-0000009.history stays as it is: it has format 9, and this program writes format 1",
            "minute-0000004.history stays as it is: it is no history",
        ]
    );
    for n in 0..70 {
        writer.append(second(n)).unwrap();
    }
    assert_eq!(fs::read(&future).unwrap(), header);
    assert!(dir.path().join("second-0000010.history").exists());
    let (records, skipped) = read(dir.path(), Resolution::Minute);
    assert_eq!(used(&records), [60, 10]);
    assert_eq!(skipped, ["minute-0000004.history: skipped, since it is no history; remove it"]);
    let (_, skipped) = read(dir.path(), Resolution::Second);
    assert!(skipped.len() == 1 && skipped[0].contains("has format 9"), "{skipped:?}");
}

#[test]
fn the_bound_of_bytes_wins() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { bytes_max: BYTES_MIN, private: false };
    let (mut writer, _) = Writer::open(dir.path(), &options).unwrap();
    for n in 0..20_000 {
        let mut record = second(n);
        record.units = (0..20).map(|k| crate::testing::busy(&format!("unit-{k}"), n)).collect();
        writer.append(record).unwrap();
        let on_disk = || -> u64 {
            let names = files(dir.path()).into_iter();
            names.map(|name| fs::metadata(dir.path().join(name)).unwrap().len()).sum()
        };
        if n % 500 == 0 {
            assert_eq!(writer.bytes(), on_disk());
            assert!(writer.bytes() <= BYTES_MIN);
        }
    }
    let (seconds, skipped) = read(dir.path(), Resolution::Second);
    assert!(seconds.len() > 60 && seconds.len() < 3_600 && skipped.is_empty(), "{}", seconds.len());
    assert_eq!(seconds.last().unwrap().number, 20_000);
    // A writer with a smaller history than it finds.
    drop(writer);
    let (mut writer, _) = Writer::open(dir.path(), &options).unwrap();
    writer.append(second(20_000)).unwrap();
    assert!(writer.bytes() <= BYTES_MIN);
}

/// docs/history.md has these numbers.
#[test]
fn the_default_size_holds_an_hour_of_a_hundred_units() {
    let held = |units: u64, resolution: Resolution| {
        let (busy, mut record) = (crate::testing::busy, second(0));
        let path = |n| format!("students/user-{n}");
        let idle = |n| crate::testing::idle(&path(n), n);
        record.units = (0..units).map(|n| if n % 2 == 0 { busy(&path(n), n) } else { idle(n) }).collect();
        let record = sum(std::iter::repeat_n(record, (resolution.ms() / 1_000) as usize)).unwrap();
        let bytes = (wire::encode(&record).unwrap().len() + frame::FRAME) as u64;
        // Just after the oldest segment was removed.
        let least = bytes_of(resolution, &Options::default()) / SEGMENTS * (SEGMENTS - 1) / bytes;
        least.min(resolution.records_kept())
    };
    let rows = [10, 50, 100, 1_000].map(|units| Resolution::ALL.map(|resolution| held(units, resolution)));
    assert_eq!(rows, [[3_600, 10_080, 8_760], [3_600, 8_980, 6_773], [3_600, 4_522, 3_408], [433, 452, 341]]);
}

/// A ring keeps its number of records, whatever the clock says.
#[test]
fn old_records_go_and_a_clock_that_jumps_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    for n in 0..9_000 {
        let mut record = second(n);
        if n == 8_000 {
            record.start.wall_ms += 1_000 * 365 * 24 * HOUR_MS;
        }
        writer.append(record).unwrap();
    }
    let (seconds, _) = read(dir.path(), Resolution::Second);
    assert!((3_600..3_600 + 2 * 225).contains(&seconds.len()), "{}", seconds.len());
    let (minutes, _) = read(dir.path(), Resolution::Minute);
    assert_eq!(used(&minutes).iter().sum::<u64>(), 9_000);
}

#[test]
fn one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path());
    let error = Writer::open(dir.path(), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("another daemon writes this history"), "{error}");
    drop(writer);
    open(dir.path());
}

/// A year of hours, a week of minutes and an hour of seconds give the same account as the seconds alone.
#[test]
fn no_time_is_counted_twice() {
    // 11 days, in which minutes and seconds are removed.
    const MINUTES: u64 = 11 * 24 * 60;
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    for minute in 0..MINUTES {
        // Six "seconds" of ten seconds each.
        for n in 0..6 {
            let from = minute * 60 + n * 10;
            writer.append(record(from, from + 10, 10)).unwrap();
        }
    }
    let reader = reader::open(dir.path()).unwrap();
    let all: Vec<Record> = reader.finest(0, u64::MAX).map(Result::unwrap).collect();
    assert_eq!(used(&all).iter().sum::<u64>(), MINUTES * 60);
    let lengths: std::collections::BTreeSet<u64> =
        all.iter().map(|it| it.duration_ns / 1_000_000_000).collect();
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [10, 60, 3_600]);
    assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
    let (from, to) = reader.range().unwrap();
    assert_eq!((from, to), (START_MS, START_MS + MINUTES * 60_000));
    let last_day: Vec<Record> = reader.finest(to - 24 * HOUR_MS, to).map(Result::unwrap).collect();
    assert_eq!(used(&last_day).iter().sum::<u64>(), 24 * 3_600);
}

#[test]
fn files_are_as_readable_as_the_options_say() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("history");
    for private in [false, true, false] {
        let (mut writer, _) = Writer::open(&folder, &Options { private, ..Options::default() }).unwrap();
        writer.append(second(0)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let modes = (mode(&folder), mode(&folder.join("second-0000001.history")));
        assert_eq!(modes, if private { (0o700, 0o600) } else { (0o755, 0o644) });
    }
}

#[test]
fn no_link_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    assert!(Writer::open(&link, &Options::default()).is_err());
    assert!(reader::open(&link).is_err());
    // A link in place of a segment, and of the lock.
    let victim = dir.path().join("victim");
    fs::write(&victim, "untouched").unwrap();
    std::os::unix::fs::symlink(&victim, real.join("second-0000001.history")).unwrap();
    let (mut writer, notes) = Writer::open(&real, &Options::default()).unwrap();
    assert_eq!(notes.len(), 1);
    writer.append(second(0)).unwrap();
    let skipped = read(&real, Resolution::Second);
    assert!(skipped.0.len() == 1 && skipped.1.len() == 1, "{skipped:?}");
    assert_eq!(fs::read(&victim).unwrap(), b"untouched");
    drop(writer);
    fs::remove_file(real.join("lock")).unwrap();
    std::os::unix::fs::symlink(&victim, real.join("lock")).unwrap();
    assert!(Writer::open(&real, &Options::default()).is_err());
    // Others may write there.
    fs::set_permissions(&real, fs::Permissions::from_mode(0o777)).unwrap();
    let error = Writer::open(&real, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("others may write to it (mode 0777)"), "{error}");
}

/// Somebody removes the files while the daemon writes.
#[test]
fn removed_files_are_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    (0..3).for_each(|n| writer.append(second(n)).unwrap());
    fs::remove_file(dir.path().join("second-0000001.history")).unwrap();
    writer.append(second(3)).unwrap();
    let (records, skipped) = read(dir.path(), Resolution::Second);
    assert_eq!((used(&records), skipped), (vec![1], vec![]));
}

#[test]
fn a_record_too_large_leaves_inner_units_out() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) =
        Writer::open(dir.path(), &Options { bytes_max: BYTES_MIN, private: false }).unwrap();
    let mut large = second(0);
    let unit = |k: usize| crate::testing::busy(&format!("outer-{}/inner-{k}", k % 10), 1);
    large.units.extend((0..5_000).map(unit));
    writer.append(large).unwrap();
    let (records, _) = read(dir.path(), Resolution::Second);
    assert!(records[0].left_out > 0 && records[0].unit("a").is_some());
    assert_eq!(records[0].units.len() + records[0].left_out as usize, 5_001);
    assert!(writer.bytes() <= BYTES_MIN);
}

#[test]
fn skipped_parts_have_their_reason() {
    let skipped =
        Skipped::Unreadable { file: "x".to_owned(), source: io::ErrorKind::PermissionDenied.into() };
    assert_eq!(skipped.to_string(), "x: skipped, since it cannot be read: permission denied");
}

/// A reader that comes at any time sees whole records, in order.
#[test]
fn a_reader_beside_the_writer_sees_whole_records() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_owned();
    let mut writer = open(&folder);
    writer.append(second(0)).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (1..3_000).for_each(|n| writer.append(second(n)).unwrap());
            is_done.store(true, std::sync::atomic::Ordering::Release);
        });
        let mut seen = 0;
        loop {
            let last = is_done.load(std::sync::atomic::Ordering::Acquire);
            let (records, skipped) = read(&folder, Resolution::Second);
            assert_eq!(skipped, Vec::<String>::new());
            assert!((1..).zip(&records).all(|(number, record)| record.number == number));
            assert!(records.len() >= seen);
            seen = records.len();
            if last {
                break;
            }
        }
        assert_eq!(seen, 3_000);
    });
}
