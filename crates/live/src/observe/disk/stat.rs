//! Parses the kernel's disk statistics.

use commonhold_policy::{DeviceUse, DiskUse};

/// Parses a control group's io.stat to its use of each device, by device number. The file has a line per
/// device, `259:0 rbytes=90112 wbytes=0 rios=22 wios=0 dbytes=0 dios=0` and possibly more keys. For a device
/// without statistics, some kernels write only the number, without a line break.
pub(crate) fn parse(text: &str) -> Vec<(&str, DiskUse)> {
    let mut devices: Vec<(&str, DiskUse)> = Vec::new();
    for word in text.split_whitespace() {
        let Some((key, value)) = word.split_once('=') else {
            if word.contains(':') {
                devices.push((word, DiskUse::default()));
            }
            continue;
        };
        let (Some((_, used)), Ok(value)) = (devices.last_mut(), value.parse::<u64>()) else { continue };
        match key {
            "rbytes" => used.read_bytes = value,
            "wbytes" => used.written_bytes = value,
            "rios" | "wios" => used.requests += value,
            _ => {}
        }
    }
    devices
}

/// The time during which some task was stalled on a disk, in nanoseconds, from the text of io.pressure.
pub(crate) fn stalled_ns(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    total.parse::<u64>().ok()?.checked_mul(1_000)
}

/// Parses a disk's `stat` (Documentation/block/stat.rst). Eleven fields: completed requests, merged requests,
/// sectors and milliseconds, for reads and then for writes; requests in flight; milliseconds during which any
/// were in flight; and a weighted time. Newer kernels append discards and flushes.
pub(crate) fn device(text: &str) -> Option<DeviceUse> {
    let values: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    let values = values.filter(|values| values.len() >= 11)?;
    // Flushes are left out: a flush is work for many requests, and does not queue behind others.
    let sum = |fields: [usize; 2]| fields.iter().map(|field| values[*field]).fold(0, u64::saturating_add);
    Some(DeviceUse {
        requests: sum([0, 4]),
        bytes: sum([2, 6]).saturating_mul(512),
        taken_ns: sum([3, 7]).saturating_mul(1_000_000),
        busy_ns: values[9].saturating_mul(1_000_000),
        under_way: values[8],
    })
}

/// The line about one device, given by its number, in a file with a line per device.
pub(crate) fn line_of<'t>(text: &'t str, number: &str) -> Option<&'t str> {
    text.lines().find(|line| line.split_whitespace().next() == Some(number))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_use_of_each_device_is_parsed() {
        let text = "8:0 259:0 rbytes=4096 wbytes=512 rios=1 wios=2 dbytes=0 dios=0 cost.usage=17\n253:0 rbytes=7 x=y\n";
        let used = |read_bytes, written_bytes, requests| DiskUse {
            read_bytes,
            written_bytes,
            requests,
            stalled_ns: None,
        };
        assert_eq!(
            parse(text),
            [("8:0", used(0, 0, 0)), ("259:0", used(4096, 512, 3)), ("253:0", used(7, 0, 0))]
        );
        assert_eq!(parse(""), []);
        assert_eq!(parse("rbytes=1"), []);
    }

    #[test]
    fn a_devices_statistics_are_parsed() {
        let text = "  100  7 8000  250  40  0 320  30  3  200  285  0 0 0 0  5 9\n";
        assert_eq!(
            device(text),
            Some(DeviceUse {
                requests: 140,
                bytes: 8_320 * 512,
                taken_ns: 280_000_000,
                busy_ns: 200_000_000,
                under_way: 3
            })
        );
        assert_eq!(
            device("1 2 3 4 5 6 7 8 9 10 11"),
            Some(DeviceUse {
                requests: 6,
                bytes: 10 * 512,
                taken_ns: 12_000_000,
                busy_ns: 10_000_000,
                under_way: 9
            })
        );
        assert_eq!((device("1 2 3"), device("a b c")), (None, None));
    }

    #[test]
    fn stalls() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=99\n";
        assert_eq!(stalled_ns(text), Some(1_234_000));
        assert_eq!(stalled_ns("full total=1\n"), None);
    }
}
