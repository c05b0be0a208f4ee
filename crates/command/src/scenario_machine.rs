//! Machines of scenarios: `check --machine` also reads the simulator's `machine.toml`.
//!
//! Only the facts that a contract is checked against are read: CPUs, memory, disks and the memory bus. All other keys are
//! ignored. Formulas and defaults are those of `simulator/sim/src/scenario/machine.rs`; a test of `simulator/command`
//! compares the two on every scenario.

use commonhold_contract::document::integer;
use commonhold_contract::quantity;
use commonhold_machine::{Disk, Machine};
use toml::de::{DeTable, DeValue};

const SECTOR_BYTES: u64 = 512;

/// Size of the HP 97560: 1962 cylinders of 19 tracks of 72 sectors.
const HP97560_BYTES: u64 = 1962 * 19 * 72 * SECTOR_BYTES;

/// Media rate of the HP 97560: 72 sectors per rotation at 4002 rpm.
const HP97560_BYTES_PER_S: u64 = 72 * SECTOR_BYTES * 4002 / 60;

/// Reads the machine of a scenario.
///
/// `None` if the text is not TOML, has no `shape`, or gives one of the keys that are read a malformed value.
pub fn parse(text: &str) -> Option<Machine> {
    let document = DeTable::parse(text).ok()?;
    let document = document.get_ref();
    let shape = Machine::synthetic(value(document, "shape")?.as_str()?).ok()?;
    // The simulator refuses disks in the shape: each has its own table.
    let mut machine = Some(shape).filter(|machine| machine.disks.is_empty())?;
    if let Some(disks) = value(document, "disk") {
        machine.disks = read_disks(disks.as_table()?)?;
    }
    if let Some(bus) = value(document, "bus") {
        let transactions_per_ms = count(bus.as_table()?, "transactions", 400_000)?;
        let line_bytes = match value(document, "cache") {
            None => 64,
            Some(cache) => amount(cache.as_table()?, "line", 64, quantity::bytes)?,
        };
        let bytes_per_s = transactions_per_ms.saturating_mul(1_000).saturating_mul(line_bytes);
        machine.bus_bytes_per_s = machine.bus_bytes_per_s.or(Some(bytes_per_s));
    }
    Some(machine)
}

/// The disks in the order of the text.
fn read_disks(tables: &DeTable) -> Option<Vec<Disk>> {
    let mut tables: Vec<_> = tables.iter().collect();
    tables.sort_by_key(|(name, _)| name.span().start);
    tables.into_iter().map(|(name, table)| read_disk(name.get_ref(), table.get_ref().as_table()?)).collect()
}

fn read_disk(name: &str, table: &DeTable) -> Option<Disk> {
    let bytes = amount(table, "size", 1 << 40, quantity::bytes)?;
    let channel_bytes_per_s =
        amount(table, "rate", 400 << 20, quantity::bytes_per_s).filter(|rate| *rate > 0)?;
    // A simulated disk transfers whole sectors, each in a whole number of nanoseconds.
    let sector_ns = (SECTOR_BYTES * 1_000_000_000 + channel_bytes_per_s / 2) / channel_bytes_per_s;
    let rate = (SECTOR_BYTES * 1_000_000_000).checked_div(sector_ns)?;
    let whole_bytes = bytes / SECTOR_BYTES * SECTOR_BYTES;
    let (bytes, bytes_per_s) = match value(table, "model").map_or(Some("ssd"), DeValue::as_str)? {
        "ssd" => (whole_bytes, rate.checked_mul(count(table, "channels", 8)?)?),
        "fixed" => (whole_bytes, rate),
        "hp97560" => (HP97560_BYTES, HP97560_BYTES_PER_S.checked_mul(count(table, "scale", 1)?)?),
        _ => return None,
    };
    Some(Disk { name: name.to_owned(), bytes, bytes_per_s: Some(bytes_per_s) })
}

fn value<'t>(table: &'t DeTable<'t>, key: &str) -> Option<&'t DeValue<'t>> {
    table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value.get_ref())
}

/// A positive integer; `default` if the key is absent, `None` if its value is malformed.
fn count(table: &DeTable, key: &str, default: u64) -> Option<u64> {
    let Some(value) = value(table, key) else { return Some(default) };
    let DeValue::Integer(number) = value else { return None };
    integer(number).filter(|number| *number > 0)
}

/// A quoted quantity; `default` if the key is absent, `None` if its value is malformed.
fn amount<E>(table: &DeTable, key: &str, default: u64, read: impl Fn(&str) -> Result<u64, E>) -> Option<u64> {
    value(table, key).map_or(Some(default), |value| read(value.as_str()?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_and_the_bus_are_read_by_their_tables() {
        let text = "version = 1\nshape = \"nodes:2 cpus:2 memory:1GiB\"\n[kernel]\ntick = \"10ms\"\n[cache]\nline = \"128B\"\n\
                    [bus]\ntransactions = 29500\n[disk.slow]\nmodel = \"fixed\"\nrate = \"10MiB/s\"\nsize = \"1GiB\"\n\
                    [disk.arm]\nmodel = \"hp97560\"\nscale = 2\n[disk.fast]\n";
        let machine = parse(text).expect("a machine");
        assert_eq!((machine.cpus.len(), machine.memory_bytes()), (4, 2 << 30));
        // 29,500 transactions a millisecond of 128 bytes.
        assert_eq!(machine.bus_bytes_per_s, Some(3_776_000_000));
        let disks = machine.disks.iter().map(|disk| (disk.name.as_str(), disk.bytes, disk.bytes_per_s));
        // 512 B at 10 MiB/s take 48,828 ns; at 400 MiB/s 1,221 ns, in each of eight channels.
        let expected = [
            ("slow", 1 << 30, Some(10_485_786)),
            ("arm", 1_374_216_192, Some(2 * 2_458_828)),
            ("fast", 1 << 40, Some(8 * 419_328_419)),
        ];
        assert_eq!(disks.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn malformed_files_have_no_machine() {
        for text in [
            "",
            "version = 1",
            "shape = 1",
            "shape = \"cpus:0\"",
            "shape = \"cpus:1 disks:1\"",
            "shape = \"cpus:1\"\n[disk.d]\nrate = \"0B/s\"",
            "shape = \"cpus:1\"\n[disk.d]\nmodel = \"tape\"",
            "shape = \"cpus:1\"\n[bus]\ntransactions = \"many\"",
            "cpus = [",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
