//! Numbers in words: `1.5`, `12.3 s`, `8.1 ms`, `10.1 GiB`, `66.7%`.

use commonhold_contract::measure::Cpus;
use commonhold_contract::{Amount, MILLIONTH, Resource};

/// The placeholder of an empty cell.
pub const NOTHING: &str = "-";

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A time in the largest unit that leaves three or four digits: `0 s`, `8.1 ms`, `12.3 s`, `16.7 min`.
pub fn duration(ns: u64) -> String {
    // Each limit is half a tenth below a round number, since a larger time would be rounded up to
    // `1000.0 ms`.
    match ns {
        0 => "0 s".to_owned(),
        1..50_000 => "<0.1 ms".to_owned(),
        50_000..999_950_000 => format!("{} ms", tenths(ns, MS)),
        _ if ns < 1_000 * SECOND - 50 * MS => format!("{} s", tenths(ns, SECOND)),
        _ if ns < 600 * MINUTE - 3 * SECOND => format!("{} min", tenths(ns, MINUTE)),
        _ if ns < 100 * HOUR - 180 * SECOND => format!("{} h", tenths(ns, HOUR)),
        _ => format!("{} d", tenths(ns, DAY)),
    }
}

/// `value` in units of `unit`, rounded to one decimal.
fn tenths(value: u64, unit: u64) -> String {
    let tenths = (u128::from(value) * 10 + u128::from(unit) / 2) / u128::from(unit);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// A measured time in seconds, as [`duration`] writes it. Times of a few seconds have three digits, so that
/// they can be compared.
pub fn seconds(s: f64) -> String {
    if (0.999_95..9.995).contains(&s) {
        format!("{s:.2} s")
    } else if s.is_finite() && s >= 0.0 {
        // Saturates at 584 years.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        duration((s * 1e9) as u64)
    } else {
        NOTHING.to_owned()
    }
}

/// Millionths of a CPU as a number of CPUs: `1.5`.
pub fn cpus(micro: u64) -> String {
    // `Cpus` adds half a thousandth in order to round, which would overflow with the largest numbers.
    Cpus(micro.min(u64::MAX - 1_000)).to_string()
}

/// A number with its noun: `1 CPU`, `2 CPUs`. `one` is the singular.
pub fn count(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// A number with its noun, of which `one` is the singular and `many` the plural: `1 switch`, `2 switches`.
pub fn count_of(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Bytes: `512 MiB`, `10.1 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut power = 0;
    // A unit is used up to the number that one decimal would round up to 1024.0.
    while power + 1 < UNITS.len() && u128::from(n) * 20 >= (1024 * 20 - 1) * (1 << (10 * power)) {
        power += 1;
    }
    let number = tenths(n, 1 << (10 * power));
    format!("{} {}", number.strip_suffix(".0").unwrap_or(&number), UNITS[power])
}

/// A rate in bytes per second, with decimal units, as disks and contracts have them: `100 MB/s`.
pub fn rate(n: u64) -> String {
    thousands(n) + "B/s"
}

/// A number with a decimal prefix, to which the caller adds a unit: `2.1 G`, `12 `.
pub fn thousands(n: u64) -> String {
    const POWERS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let (mut power, mut unit) = (0, 1);
    // A prefix is used up to the number that one decimal would round up to 1000.0.
    while power + 1 < POWERS.len() && u128::from(n) * 20 >= (1000 * 20 - 1) * u128::from(unit) {
        power += 1;
        unit *= 1_000;
    }
    let number = tenths(n, unit);
    format!("{} {}", number.strip_suffix(".0").unwrap_or(&number), POWERS[power])
}

/// Millionths of a whole: `25%`, `66.7%`.
pub fn part(millionths: u64) -> String {
    let number = tenths(millionths, MILLIONTH / 100);
    format!("{}%", number.strip_suffix(".0").unwrap_or(&number))
}

/// An amount of a resource with its unit of measure, such as `1.5 CPUs`; a part as a percentage.
pub fn amount(resource: Resource, amount: Amount) -> String {
    match (resource, amount) {
        (_, Amount::Part(millionths)) => part(millionths),
        (Resource::Cpu, Amount::Absolute(micro)) => cpus(micro),
        (Resource::Memory, Amount::Absolute(n)) => bytes(n),
        (Resource::Disk | Resource::Bus, Amount::Absolute(n)) => rate(n),
    }
}

/// `n` as a percentage of `whole`, rounded; `None` if `whole` is 0.
pub fn percent(n: u64, whole: u64) -> Option<u64> {
    let (n, whole) = (u128::from(n), u128::from(whole));
    let percent = (n * 100 + whole / 2).checked_div(whole)?;
    Some(u64::try_from(percent).unwrap_or(u64::MAX))
}

/// `n` as a percentage of `whole`, in words, without `%`.
pub fn percent_text(n: u64, whole: u64) -> String {
    percent(n, whole).map_or_else(|| NOTHING.to_owned(), |percent| percent.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_never_show_a_thousand_of_a_smaller_unit() {
        for (ns, text) in [
            (0, "0 s"),
            (1, "<0.1 ms"),
            (49_999, "<0.1 ms"),
            (50_000, "0.1 ms"),
            (8_100_000, "8.1 ms"),
            (999_949_999, "999.9 ms"),
            (999_950_000, "1.0 s"),
            (12_345_678_901, "12.3 s"),
            (999_949_999_999, "999.9 s"),
            (999_950_000_000, "16.7 min"),
            (36_000 * SECOND, "10.0 h"),
            (360_000 * SECOND, "4.2 d"),
            (u64::MAX, "213504.0 d"),
        ] {
            assert_eq!(duration(ns), text, "{ns} ns");
        }
    }

    #[test]
    fn measured_seconds_that_are_no_time_are_said_to_be_nothing() {
        for (s, text) in
            [(1.254, "1.25 s"), (0.9999, "999.9 ms"), (9.99, "9.99 s"), (9.996, "10.0 s"), (0.0, "0 s")]
        {
            assert_eq!(seconds(s), text);
        }
        for s in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(seconds(s), "-");
        }
        assert_eq!(seconds(1e300), "213504.0 d");
    }

    #[test]
    fn rates_are_in_powers_of_ten() {
        for (n, text) in [
            (0, "0 B/s"),
            (999, "999 B/s"),
            (1_500, "1.5 kB/s"),
            (999_949, "999.9 kB/s"),
            (999_950, "1 MB/s"),
            (100_000_000, "100 MB/s"),
            (u64::MAX, "18.4 EB/s"),
        ] {
            assert_eq!(rate(n), text, "{n}");
        }
    }

    #[test]
    fn byte_counts() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1 MiB"),
            (8 << 30, "8 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(n), text, "{n}");
        }
    }

    #[test]
    fn parts_and_percents() {
        assert_eq!((part(250_000), part(666_667), part(0)), ("25%".into(), "66.7%".into(), "0%".into()));
        assert_eq!((percent(1, 0), percent(0, 0), percent(1, 3)), (None, None, Some(33)));
        assert_eq!(percent(u64::MAX, 1), Some(u64::MAX));
        assert_eq!((count(1, "CPU"), count(0, "unit")), ("1 CPU".into(), "0 units".into()));
        let switches = [0, 1, 2].map(|n| count_of(n, "switch", "switches"));
        assert_eq!(switches, ["0 switches", "1 switch", "2 switches"]);
    }
}
