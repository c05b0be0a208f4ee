//! The journal's text format: a header with the version, then one line per entry.
//!
//! A line is a letter and fields, separated by spaces. In a field, every byte other than a printable ASCII
//! character, and `%`, is written as `%` and two hexadecimal digits. So a field contains no space and no line
//! break, and a path that is not UTF-8 survives. An empty field is written as `%`. A malformed line is
//! skipped, because the other entries still need undoing.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use commonhold_machine::CpuSet;

use super::Entry;
use crate::host::io_priority::IoPriority;
use crate::observe::process::ProcessKey;
use crate::systemd::{Instance, Property, PropertyState, Value};

/// The first line, with the version of the format.
pub(super) const HEADER: &[u8] = b"commonhold journal 1\n";

/// Appends an entry's line.
pub(super) fn write(lines: &mut Vec<u8>, entry: &Entry) {
    match entry {
        Entry::Affinity { process, tid, cpus } => {
            put(
                lines,
                b'A',
                &[key(process).as_bytes(), tid.to_string().as_bytes(), cpus.to_string().as_bytes()],
            );
        }
        Entry::AffinityGiven { cpus } => put(lines, b'G', &[cpus.to_string().as_bytes()]),
        Entry::Priority { process, tid, priority } => {
            let number = priority.number().to_string();
            put(lines, b'P', &[key(process).as_bytes(), tid.to_string().as_bytes(), number.as_bytes()]);
        }
        Entry::PriorityGiven { priority } => put(lines, b'Q', &[priority.number().to_string().as_bytes()]),
        Entry::OomScore { process, value } => {
            put(lines, b'O', &[key(process).as_bytes(), value.to_string().as_bytes()]);
        }
        Entry::OomScoreGiven { value } => put(lines, b'N', &[value.to_string().as_bytes()]),
        Entry::Autogroup { number, nice, given } => {
            let (number, nice, given) = (number.to_string(), nice.to_string(), given.to_string());
            put(lines, b'T', &[number.as_bytes(), nice.as_bytes(), given.as_bytes()]);
        }
        Entry::Stopped { process } => put(lines, b'S', &[key(process).as_bytes()]),
        Entry::Continued { process } => put(lines, b'R', &[key(process).as_bytes()]),
        Entry::MayFollow { process } => put(lines, b'I', &[key(process).as_bytes()]),
        Entry::NoLongerFollows { process } => put(lines, b'J', &[key(process).as_bytes()]),
        Entry::Moved { process, from } => {
            put(lines, b'M', &[key(process).as_bytes(), from.as_os_str().as_bytes()]);
        }
        Entry::Created { cgroup } => put(lines, b'C', &[cgroup.as_os_str().as_bytes()]),
        Entry::Scope { cgroup } => put(lines, b'D', &[cgroup.as_os_str().as_bytes()]),
        Entry::ScopeEnded { cgroup } => put(lines, b'E', &[cgroup.as_os_str().as_bytes()]),
        Entry::ResourceGroup { dir } => put(lines, b'B', &[dir.as_os_str().as_bytes()]),
        Entry::Mounted { point } => put(lines, b'F', &[point.as_os_str().as_bytes()]),
        Entry::Knob { path, original } => {
            put(lines, b'K', &[path.as_os_str().as_bytes(), original.as_bytes()]);
        }
        Entry::KnobReleased { path } => put(lines, b'H', &[path.as_os_str().as_bytes()]),
        Entry::Line { path, original, given } => {
            put(lines, b'L', &[path.as_os_str().as_bytes(), original.as_bytes(), given.as_bytes()]);
        }
        Entry::Property { instance, unit, former } => {
            let PropertyState { property, value, file, content } = former;
            let content = content.as_ref().map_or("-".to_owned(), |content| format!("={content}"));
            let (value, file) = (value.text(*property), file.as_os_str().as_bytes());
            put_property(
                lines,
                b'U',
                instance,
                unit,
                *property,
                &[value.as_bytes(), file, content.as_bytes()],
            );
        }
        Entry::PropertyGiven { instance, unit, property, value } => {
            put_property(lines, b'V', instance, unit, *property, &[value.text(*property).as_bytes()]);
        }
        Entry::PropertyReverted { instance, unit, property } => {
            put_property(lines, b'W', instance, unit, *property, &[]);
        }
    }
}

/// The beginning of the header, in every version.
const NAME: &[u8] = b"commonhold journal ";

/// The part of a foreign file that a message quotes.
const QUOTED_BYTES: usize = 32;

/// Parses a journal's content. A last line without a line break is incomplete, and skipped.
///
/// Errors: `InvalidData` if the content has another version, or is no journal. It must not be taken for an
/// empty journal, since the changes that it lists would never be undone.
pub(super) fn parse(content: &[u8]) -> io::Result<Vec<Entry>> {
    let Some(lines) = content.strip_prefix(HEADER) else {
        // A daemon that died while it wrote the header had recorded nothing.
        return if HEADER.starts_with(content) { Ok(Vec::new()) } else { Err(foreign(content)) };
    };
    let Some(end) = lines.iter().rposition(|byte| *byte == b'\n') else { return Ok(Vec::new()) };
    Ok(lines[..end].split(|byte| *byte == b'\n').filter_map(parse_line).collect())
}

/// The error for content whose first line is not [`HEADER`].
fn foreign(content: &[u8]) -> io::Error {
    let quoted = |bytes: &[u8]| {
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        line[..line.len().min(QUOTED_BYTES)].escape_ascii().to_string()
    };
    let why = match content.strip_prefix(NAME) {
        Some(version) => format!("it is of version {}, and this program reads version 1", quoted(version)),
        None => format!("line 1, `{}`, is not the header of a journal", quoted(content)),
    };
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// The field that identifies a process: number and start time.
fn key(process: &ProcessKey) -> String {
    format!("{}-{}", process.pid, process.start)
}

/// Appends a line: a letter and escaped fields.
fn put(lines: &mut Vec<u8>, letter: u8, fields: &[&[u8]]) {
    lines.push(letter);
    for field in fields {
        lines.push(b' ');
        escape(lines, field);
    }
    lines.push(b'\n');
}

/// Appends a line about a property of a systemd unit. The first field has `u` for a user's systemd or `s` for
/// the machine's, and the folder of its sockets.
fn put_property(
    lines: &mut Vec<u8>,
    letter: u8,
    instance: &Instance,
    unit: &str,
    property: Property,
    more: &[&[u8]],
) {
    let run = instance.run().as_os_str().as_bytes();
    let instance_field = [if instance.is_user() { b"u" } else { b"s" }, run].concat();
    let mut fields = vec![instance_field.as_slice(), unit.as_bytes(), property.name().as_bytes()];
    fields.extend(more);
    put(lines, letter, &fields);
}

/// Appends a field as the module's header describes.
fn escape(lines: &mut Vec<u8>, field: &[u8]) {
    if field.is_empty() {
        lines.push(b'%');
    }
    for byte in field {
        match byte {
            b'%' | 0..=b' ' | 0x7f.. => lines.extend_from_slice(format!("%{byte:02x}").as_bytes()),
            _ => lines.push(*byte),
        }
    }
}

/// Reverses [`escape`]; `None` if a `%` is not followed by two hexadecimal digits.
fn unescape(field: &[u8]) -> Option<Vec<u8>> {
    if field == b"%" {
        return Some(Vec::new());
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        if *byte == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*byte);
            rest = after;
        }
    }
    Some(bytes)
}

/// Parses one line, without its line break; `None` if it is malformed or has too many fields.
fn parse_line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let letter = fields.next()?;
    let mut field = || fields.next().and_then(unescape);
    let entry = match letter {
        b"A" => {
            let (process, tid) = (parse_key(field()?)?, parse_field(field()?)?);
            Entry::Affinity { process, tid, cpus: parse_cpus(field()?)? }
        }
        b"G" => Entry::AffinityGiven { cpus: parse_cpus(field()?)? },
        b"P" => {
            let (process, tid) = (parse_key(field()?)?, parse_field(field()?)?);
            Entry::Priority { process, tid, priority: parse_priority(field()?)? }
        }
        b"Q" => Entry::PriorityGiven { priority: parse_priority(field()?)? },
        b"O" => Entry::OomScore { process: parse_key(field()?)?, value: parse_field(field()?)? },
        b"N" => Entry::OomScoreGiven { value: parse_field(field()?)? },
        b"T" => {
            let (number, nice) = (parse_field(field()?)?, parse_field(field()?)?);
            Entry::Autogroup { number, nice, given: parse_field(field()?)? }
        }
        b"S" => Entry::Stopped { process: parse_key(field()?)? },
        b"R" => Entry::Continued { process: parse_key(field()?)? },
        b"I" => Entry::MayFollow { process: parse_key(field()?)? },
        b"J" => Entry::NoLongerFollows { process: parse_key(field()?)? },
        b"M" => Entry::Moved { process: parse_key(field()?)?, from: parse_path(field()?) },
        b"C" => Entry::Created { cgroup: parse_path(field()?) },
        b"D" => Entry::Scope { cgroup: parse_path(field()?) },
        b"E" => Entry::ScopeEnded { cgroup: parse_path(field()?) },
        b"B" => Entry::ResourceGroup { dir: parse_path(field()?) },
        b"F" => Entry::Mounted { point: parse_path(field()?) },
        b"K" => Entry::Knob { path: parse_path(field()?), original: String::from_utf8(field()?).ok()? },
        b"H" => Entry::KnobReleased { path: parse_path(field()?) },
        b"L" => Entry::Line {
            path: parse_path(field()?),
            original: String::from_utf8(field()?).ok()?,
            given: field().map_or(Some(String::new()), |field| String::from_utf8(field).ok())?,
        },
        b"U" => {
            let (instance, unit, property) = parse_property(&mut field)?;
            let value = parse_value(property, field()?)?;
            let file = parse_path(field()?);
            // `-` for a file that did not exist, else `=` and the content.
            let content = String::from_utf8(field()?).ok()?;
            let content = match content.strip_prefix('=') {
                None if content == "-" => None,
                None => return None,
                Some(content) => Some(content.to_owned()),
            };
            Entry::Property { instance, unit, former: PropertyState { property, value, file, content } }
        }
        b"V" => {
            let (instance, unit, property) = parse_property(&mut field)?;
            Entry::PropertyGiven { instance, unit, property, value: parse_value(property, field()?)? }
        }
        b"W" => {
            let (instance, unit, property) = parse_property(&mut field)?;
            Entry::PropertyReverted { instance, unit, property }
        }
        _ => return None,
    };
    fields.next().is_none().then_some(entry)
}

fn parse_field<T: std::str::FromStr>(field: Vec<u8>) -> Option<T> {
    String::from_utf8(field).ok()?.parse().ok()
}

fn parse_cpus(field: Vec<u8>) -> Option<CpuSet> {
    // An empty mask is malformed: the kernel accepts none, so no thread ever had one.
    parse_field::<CpuSet>(field).filter(|cpus| !cpus.is_empty())
}

fn parse_priority(field: Vec<u8>) -> Option<IoPriority> {
    parse_field(field).map(IoPriority::from_number)
}

fn parse_path(field: Vec<u8>) -> PathBuf {
    OsString::from_vec(field).into()
}

/// Parses the first three fields of a line that [`put_property`] wrote.
fn parse_property(mut field: impl FnMut() -> Option<Vec<u8>>) -> Option<(Instance, String, Property)> {
    let mut run = field()?;
    let is_user = match run.first()? {
        b'u' => true,
        b's' => false,
        _ => return None,
    };
    let instance = Instance::at(&parse_path(run.split_off(1)), is_user);
    let unit = String::from_utf8(field()?).ok()?;
    Some((instance, unit, Property::named(std::str::from_utf8(&field()?).ok()?)?))
}

fn parse_value(property: Property, field: Vec<u8>) -> Option<Value> {
    property.parse(&String::from_utf8(field).ok()?)
}

fn parse_key(field: Vec<u8>) -> Option<ProcessKey> {
    let text = String::from_utf8(field).ok()?;
    let (pid, start) = text.split_once('-')?;
    Some(ProcessKey { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::systemd::Value as PropertyValue;
    use proptest::prelude::*;
    use proptest::strategy::Strategy;

    fn some_key() -> impl Strategy<Value = ProcessKey> {
        (any::<u32>(), any::<u64>()).prop_map(|(pid, start)| ProcessKey { pid, start })
    }

    fn some_cpus() -> impl Strategy<Value = CpuSet> {
        proptest::collection::btree_set(0u32..3000, 1..20).prop_map(|cpus| cpus.into_iter().collect())
    }

    fn some_path() -> impl Strategy<Value = PathBuf> {
        proptest::collection::vec(any::<u8>(), 0..30).prop_map(|bytes| OsString::from_vec(bytes).into())
    }

    fn some_property() -> impl Strategy<Value = (Property, PropertyValue)> {
        (proptest::sample::select(Property::ALL), any::<u64>(), some_cpus()).prop_map(
            |(property, n, cpus)| {
                let value = match property.nothing() {
                    PropertyValue::Number(_) => PropertyValue::Number(n),
                    PropertyValue::Flag(_) => PropertyValue::Flag(n % 2 == 0),
                    PropertyValue::Cpus(_) => PropertyValue::Cpus(cpus),
                    PropertyValue::Devices(_) => {
                        PropertyValue::Devices((0..n % 3).map(|at| (format!("/dev/{at}"), n)).collect())
                    }
                };
                (property, value)
            },
        )
    }

    fn some_entry() -> impl Strategy<Value = Entry> {
        let instance = || (some_path(), any::<bool>()).prop_map(|(run, is_user)| Instance::at(&run, is_user));
        prop_oneof![
            (instance(), any::<String>(), some_property(), some_path(), any::<Option<String>>()).prop_map(
                |(instance, unit, (property, value), file, content)| Entry::Property {
                    instance,
                    unit,
                    former: PropertyState { property, value, file, content }
                }
            ),
            (instance(), any::<String>(), some_property()).prop_map(|(instance, unit, (property, value))| {
                Entry::PropertyGiven { instance, unit, property, value }
            }),
            (instance(), any::<String>(), some_property()).prop_map(|(instance, unit, (property, _))| {
                Entry::PropertyReverted { instance, unit, property }
            }),
            (some_key(), any::<u32>(), some_cpus()).prop_map(|(process, tid, cpus)| Entry::Affinity {
                process,
                tid,
                cpus
            }),
            some_cpus().prop_map(|cpus| Entry::AffinityGiven { cpus }),
            (some_key(), any::<u32>(), any::<u16>()).prop_map(|(process, tid, number)| Entry::Priority {
                process,
                tid,
                priority: IoPriority::from_number(number)
            }),
            any::<u16>()
                .prop_map(|number| Entry::PriorityGiven { priority: IoPriority::from_number(number) }),
            (some_key(), any::<i16>()).prop_map(|(process, value)| Entry::OomScore { process, value }),
            any::<i16>().prop_map(|value| Entry::OomScoreGiven { value }),
            (any::<u64>(), any::<i32>(), any::<i32>()).prop_map(|(number, nice, given)| Entry::Autogroup {
                number,
                nice,
                given
            }),
            some_key().prop_map(|process| Entry::Stopped { process }),
            some_key().prop_map(|process| Entry::Continued { process }),
            some_key().prop_map(|process| Entry::MayFollow { process }),
            some_key().prop_map(|process| Entry::NoLongerFollows { process }),
            (some_key(), some_path()).prop_map(|(process, from)| Entry::Moved { process, from }),
            some_path().prop_map(|cgroup| Entry::Created { cgroup }),
            some_path().prop_map(|cgroup| Entry::Scope { cgroup }),
            some_path().prop_map(|cgroup| Entry::ScopeEnded { cgroup }),
            some_path().prop_map(|dir| Entry::ResourceGroup { dir }),
            some_path().prop_map(|point| Entry::Mounted { point }),
            (some_path(), any::<String>()).prop_map(|(path, original)| Entry::Knob { path, original }),
            some_path().prop_map(|path| Entry::KnobReleased { path }),
            (some_path(), any::<String>(), any::<String>()).prop_map(|(path, original, given)| Entry::Line {
                path,
                original,
                given
            }),
        ]
    }

    fn text(entries: &[Entry]) -> Vec<u8> {
        let mut content = HEADER.to_vec();
        for entry in entries {
            write(&mut content, entry);
        }
        content
    }

    proptest! {
        #[test]
        fn every_entry_reads_back(entries in proptest::collection::vec(some_entry(), 0..20)) {
            prop_assert_eq!(parse(&text(&entries)).unwrap(), entries);
        }

        #[test]
        fn a_torn_journal_reads_back_to_its_last_whole_line(
            entries in proptest::collection::vec(some_entry(), 1..10), cut in 0usize..400,
        ) {
            let content = text(&entries);
            let cut = cut.min(content.len());
            let whole = content[..cut].split(|byte| *byte == b'\n').count().saturating_sub(2);
            prop_assert_eq!(parse(&content[..cut]).unwrap(), entries[..whole].to_vec());
        }

        #[test]
        fn nonsense_never_panics(content in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut text = HEADER.to_vec();
            text.extend(&content);
            parse(&text).unwrap();
            let _ = parse(&content);
        }
    }

    #[test]
    fn malformed_lines_are_skipped() {
        let content =
            b"commonhold journal 1\nS 1-2\nX what\nS 1\nS 1-2 3\nG 3-1\nG %\nM 1-2\nC %zz\n\nS 3-4\n";
        let stopped = |pid, start| Entry::Stopped { process: ProcessKey { pid, start } };
        assert_eq!(parse(content).unwrap(), [stopped(1, 2), stopped(3, 4)]);
    }

    #[test]
    fn a_foreign_file_is_not_taken_for_an_empty_journal() {
        let why = |content: &[u8]| parse(content).unwrap_err().to_string();
        assert_eq!(
            why(b"commonhold journal 2\nS 1-2\n"),
            "it is of version 2, and this program reads version 1"
        );
        assert_eq!(
            why(&[0; 9]),
            r"line 1, `\x00\x00\x00\x00\x00\x00\x00\x00\x00`, is not the header of a journal"
        );
        assert_eq!(why(b"\ncommonhold journal 1\n"), "line 1, ``, is not the header of a journal");
    }
}
