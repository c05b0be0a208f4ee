//! The encoding of records: postcard, of structs of its own, so that the format does not follow the types
//! that other crates use.
//!
//! A payload is a [`Head`], by which readers find records without decoding the rest, and a [`Body`]. Paths
//! are front-coded: each has the number of bytes that it shares with the path before it, and the rest.
//! Units come first in the list of paths, then paths that only causes of waiting name.
//!
//! Behind the body there may be the time for which the machine was suspended. It came later: readers that do
//! not know it ignore what follows a body, and in older records it is missing.

use std::collections::BTreeMap;

use commonhold_contract::Resource;
use commonhold_ledger::{Verdict, Wait, WaitCause};
use serde::{Deserialize, Serialize};

use crate::record::{CallBacks, CpuUse, DiskUse, MachineUse, MemoryUse, Moment, Record, UnitUse, UserUse};

/// The longest path that is read, in bytes.
const PATH_MAX: usize = 4_096;
/// The most bytes of all paths of a record that is read.
const PATHS_MAX: usize = 64 << 20;

/// What is known of a record before its body is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) number: u64,
    pub(crate) through: u64,
    pub(crate) start: Moment,
    pub(crate) end: Moment,
    pub(crate) duration_ns: u64,
}

#[derive(Serialize, Deserialize)]
struct Body {
    machine: MachineUse,
    paths: Vec<(u32, String)>,
    units: Vec<WireUnit>,
    left_out: u32,
}

#[derive(Serialize, Deserialize)]
struct WireUnit {
    processes: u32,
    cpu: CpuUse,
    memory: Option<MemoryUse>,
    disk: Option<DiskUse>,
    call_backs: Vec<(u8, CallBacks)>,
    waits: Vec<WireWait>,
    /// Two bits for each resource, the first in the lowest: 0 none, 1 kept, 2 cannot tell, 3 broken.
    verdicts: u8,
    users: Vec<UserUse>,
}

#[derive(Serialize, Deserialize)]
struct WireWait {
    resource: u8,
    cause: u8,
    /// The path of the unit that the cause names, by its index in the list of paths; 0 for other causes.
    unit: u32,
    ns: u64,
    beyond_ns: u64,
    inferred_ns: u64,
}

/// The payload of a record.
///
/// Errors: none that a record can cause; postcard's type has one.
pub(crate) fn encode(record: &Record) -> Result<Vec<u8>, postcard::Error> {
    let head = Head {
        number: record.number,
        through: record.through,
        start: record.start,
        end: record.end,
        duration_ns: record.duration_ns,
    };
    let mut paths = Paths::default();
    for unit in &record.units {
        paths.push(&unit.unit);
    }
    let units = record.units.iter().map(|unit| wire_unit(unit, &mut paths)).collect();
    let body = Body { machine: record.machine, paths: paths.coded, units, left_out: record.left_out };
    let payload = postcard::to_extend(&body, postcard::to_extend(&head, Vec::new())?)?;
    if record.suspended_ns == 0 { Ok(payload) } else { postcard::to_extend(&record.suspended_ns, payload) }
}

/// The head of a payload, and the encoded body.
pub(crate) fn decode_head(payload: &[u8]) -> Option<(Head, &[u8])> {
    postcard::take_from_bytes(payload).ok()
}

/// The record of a head and its encoded body; `None` if the bytes are no body.
pub(crate) fn decode_body(head: Head, body: &[u8]) -> Option<Record> {
    let (body, rest): (Body, _) = postcard::take_from_bytes(body).ok()?;
    let suspended_ns = if rest.is_empty() { 0 } else { postcard::from_bytes(rest).ok()? };
    let paths = decode_paths(&body.paths)?;
    let mut names = paths.iter();
    let mut units = Vec::with_capacity(body.units.len());
    for unit in body.units {
        units.push(read_unit(unit, names.next()?, &paths)?);
    }
    let Head { number, through, start, end, duration_ns } = head;
    Some(Record {
        number,
        through,
        start,
        end,
        duration_ns,
        suspended_ns,
        machine: body.machine,
        units,
        left_out: body.left_out,
    })
}

/// The list of paths while it is written.
#[derive(Default)]
struct Paths<'r> {
    coded: Vec<(u32, String)>,
    last: &'r str,
    index: BTreeMap<&'r str, u32>,
}

impl<'r> Paths<'r> {
    fn push(&mut self, path: &'r str) -> u32 {
        let shared = shared_bytes(self.last, path);
        let index = u32::try_from(self.coded.len()).unwrap_or(u32::MAX);
        self.coded.push((u32::try_from(shared).unwrap_or(0), path[shared..].to_owned()));
        self.index.insert(path, index);
        self.last = path;
        index
    }

    fn index_of(&mut self, path: &'r str) -> u32 {
        match self.index.get(path) {
            Some(index) => *index,
            None => self.push(path),
        }
    }
}

/// The number of bytes at the beginning of two texts that are equal, up to the end of a character.
fn shared_bytes(a: &str, b: &str) -> usize {
    let equal = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    (0..=equal).rev().find(|at| b.is_char_boundary(*at)).unwrap_or(0)
}

fn decode_paths(coded: &[(u32, String)]) -> Option<Vec<String>> {
    let mut paths: Vec<String> = Vec::with_capacity(coded.len());
    let mut bytes = 0;
    for (shared, rest) in coded {
        let last = paths.last().map_or("", String::as_str);
        let mut path = last.get(..usize::try_from(*shared).ok()?)?.to_owned();
        path.push_str(rest);
        bytes += path.len();
        if path.len() > PATH_MAX || bytes > PATHS_MAX {
            return None;
        }
        paths.push(path);
    }
    Some(paths)
}

fn wire_unit<'r>(unit: &'r UnitUse, paths: &mut Paths<'r>) -> WireUnit {
    let verdict = |resource| match unit.verdicts.get(resource) {
        None => 0,
        Some(Verdict::Kept) => 1,
        Some(Verdict::CannotTell) => 2,
        Some(Verdict::Broken) => 3u8,
    };
    WireUnit {
        processes: unit.processes,
        cpu: unit.cpu,
        memory: unit.memory,
        disk: unit.disk,
        call_backs: unit.call_backs.iter().map(|(resource, found)| (code(*resource), *found)).collect(),
        waits: unit.waits.iter().map(|wait| wire_wait(wait, paths)).collect(),
        verdicts: Resource::ALL.iter().rev().fold(0, |all, resource| all << 2 | verdict(resource)),
        users: unit.users.clone(),
    }
}

fn wire_wait<'r>(wait: &'r Wait, paths: &mut Paths<'r>) -> WireWait {
    let (cause, unit) = match &wait.cause {
        WaitCause::Own => (0, 0),
        WaitCause::Unit { unit } => (1, paths.index_of(unit)),
        WaitCause::CallBack { unit } => (2, paths.index_of(unit)),
        WaitCause::Limit => (3, 0),
        WaitCause::Common => (4, 0),
        WaitCause::HigherClass => (5, 0),
        WaitCause::Switch => (6, 0),
        WaitCause::Gate => (7, 0),
        WaitCause::OtherUnits => (8, 0),
        WaitCause::Unknown => (9, 0),
    };
    let Wait { resource, cause: _, ns, beyond_ns, inferred_ns } = *wait;
    WireWait { resource: code(resource), cause, unit, ns, beyond_ns, inferred_ns }
}

fn read_unit(wire: WireUnit, path: &str, paths: &[String]) -> Option<UnitUse> {
    let mut verdicts = BTreeMap::new();
    for (n, resource) in Resource::ALL.into_iter().enumerate() {
        let verdict = match wire.verdicts >> (2 * n) & 3 {
            0 => continue,
            1 => Verdict::Kept,
            2 => Verdict::CannotTell,
            _ => Verdict::Broken,
        };
        verdicts.insert(resource, verdict);
    }
    let call_backs = wire.call_backs.into_iter().map(|(code, found)| Some((resource(code)?, found)));
    let waits = wire.waits.into_iter().map(|wait| read_wait(&wait, paths));
    Some(UnitUse {
        unit: path.to_owned(),
        processes: wire.processes,
        cpu: wire.cpu,
        memory: wire.memory,
        disk: wire.disk,
        call_backs: call_backs.collect::<Option<_>>()?,
        waits: waits.collect::<Option<_>>()?,
        verdicts,
        users: wire.users,
    })
}

fn read_wait(wire: &WireWait, paths: &[String]) -> Option<Wait> {
    let unit = || paths.get(usize::try_from(wire.unit).ok()?).cloned();
    let cause = match wire.cause {
        0 => WaitCause::Own,
        1 => WaitCause::Unit { unit: unit()? },
        2 => WaitCause::CallBack { unit: unit()? },
        3 => WaitCause::Limit,
        4 => WaitCause::Common,
        5 => WaitCause::HigherClass,
        6 => WaitCause::Switch,
        7 => WaitCause::Gate,
        8 => WaitCause::OtherUnits,
        _ => WaitCause::Unknown,
    };
    let WireWait { ns, beyond_ns, inferred_ns, .. } = *wire;
    Some(Wait { resource: resource(wire.resource)?, cause, ns, beyond_ns, inferred_ns })
}

fn code(resource: Resource) -> u8 {
    match resource {
        Resource::Cpu => 0,
        Resource::Memory => 1,
        Resource::Disk => 2,
        Resource::Bus => 3,
    }
}

fn resource(code: u8) -> Option<Resource> {
    Resource::ALL.into_iter().find(|resource| self::code(*resource) == code)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{busy, idle, second};

    fn read(payload: &[u8]) -> Option<Record> {
        let (head, body) = decode_head(payload)?;
        decode_body(head, body)
    }

    #[test]
    fn every_part_of_a_record_is_encoded() {
        let mut record = second(3);
        (record.number, record.through, record.left_out) = (5, 300, 2);
        record.units.extend([busy("physics", 1), busy("physics/night", 2), busy("physics/nächte", 3)]);
        let causes = [
            WaitCause::Own,
            WaitCause::Unit { unit: "students".to_owned() },
            WaitCause::CallBack { unit: "elsewhere/äh".to_owned() },
            WaitCause::Limit,
            WaitCause::Common,
            WaitCause::HigherClass,
            WaitCause::Switch,
            WaitCause::Gate,
            WaitCause::Unknown,
        ];
        let waits = Resource::ALL.into_iter().zip(1..).flat_map(|(resource, ns)| {
            let wait = move |cause: &WaitCause| Wait {
                resource,
                cause: cause.clone(),
                ns,
                beyond_ns: 2,
                inferred_ns: 3,
            };
            causes.each_ref().map(wait)
        });
        record.units[1].waits = waits.collect();
        record.units[1].users.push(UserUse { uid: None, used_ns: 8 });
        record.units[1].verdicts.insert(Resource::Bus, Verdict::Broken);
        let payload = encode(&record).unwrap();
        assert_eq!(read(&payload), Some(record.clone()));
        assert_eq!(read(&payload[..payload.len() - 1]), None);
        record.suspended_ns = 1_000_000;
        let longer = encode(&record).unwrap();
        assert_eq!(read(&longer), Some(record.clone()));
        assert!(longer.starts_with(&payload) && read(&longer[..longer.len() - 1]).is_none());
        // A program of before, which knows no such time, reads the rest.
        let (_, body) = decode_head(&longer).unwrap();
        assert_eq!(postcard::from_bytes::<Body>(body).unwrap().left_out, record.left_out);
    }

    /// docs/history.md has these sizes.
    #[test]
    fn a_unit_second_takes_few_bytes() {
        let bytes_each = |unit: &dyn Fn(u64) -> UnitUse| {
            let mut record = second(0);
            record.units = (0..1_000).map(unit).collect();
            encode(&record).unwrap().len() / 1_000
        };
        let busy = |n| busy(&format!("students/user-{n}"), n);
        let idle = |n| idle(&format!("students/user-{n}"), n);
        assert_eq!((bytes_each(&busy), bytes_each(&idle)), (129, 52));
    }

    /// Paths that share ever more of the path before them cannot fill the memory.
    #[test]
    fn long_paths_are_refused() {
        let coded = [(0, "x".repeat(5_000))];
        assert_eq!(decode_paths(&coded), None);
        let coded: Vec<(u32, String)> = std::iter::once((0, "x".repeat(4_000)))
            .chain((0..20_000).map(|_| (4_000, String::new())))
            .collect();
        assert_eq!(decode_paths(&coded), None);
        assert_eq!(decode_paths(&[(0, "ä".to_owned()), (1, "x".to_owned())]), None, "inside a character");
    }
}
