//! Figures in few columns: `0.13/0.72`, `3.1/4 GiB`, `8.1/10 ms`.

use commonhold_contract::Resource;
use commonhold_report::figures::NOTHING;

/// Millionths of a CPU or thread with two or three digits: `0.13`, `12.5`, `125`.
pub(crate) fn cpus(micro: u64) -> String {
    match micro {
        0..9_995_000 => {
            let hundredths = micro.saturating_add(5_000) / 10_000;
            format!("{}.{:02}", hundredths / 100, hundredths % 100)
        }
        9_995_000..99_950_000 => {
            let tenths = micro.saturating_add(50_000) / 100_000;
            format!("{}.{}", tenths / 10, tenths % 10)
        }
        _ => (micro.saturating_add(500_000) / 1_000_000).to_string(),
    }
}

/// Millionths of the time: `<1%`, `12%`.
pub(crate) fn share(millionths: u64) -> String {
    match millionths {
        0 => NOTHING.to_owned(),
        1..10_000 => "<1%".to_owned(),
        _ => format!("{}%", millionths.saturating_add(5_000) / 10_000),
    }
}

/// An amount of a resource, as short as it can be: `0.13`, `3.1 GiB`, `12 MB/s`.
pub(crate) fn amount(resource: Resource, n: u64) -> String {
    if resource == Resource::Cpu {
        return cpus(n);
    }
    let scale = Scale::of(resource, n);
    format!("{} {}", scale.number(n), scale.name)
}

/// Two amounts of a resource in the same measure: `0.13/0.72`, `3.1/4 GiB`.
pub(crate) fn pair(resource: Resource, one: u64, other: u64) -> String {
    if resource == Resource::Cpu {
        return format!("{}/{}", cpus(one), cpus(other));
    }
    let scale = Scale::of(resource, one.max(other));
    format!("{}/{} {}", scale.number(one), scale.number(other), scale.name)
}

/// Two times in nanoseconds in the same measure: `8.1/10 ms`. The second may be missing.
pub(crate) fn times(one: u64, other: Option<u64>) -> String {
    let in_seconds = one.max(other.unwrap_or(0)) >= 9_950_000_000;
    let (unit, name) = if in_seconds { (1_000_000_000, "s") } else { (1_000_000, "ms") };
    let scale = Scale { unit, name };
    match other {
        Some(other) => format!("{}/{} {name}", scale.number(one), scale.number(other)),
        None => format!("{} {name}", scale.number(one)),
    }
}

/// A measure: a multiple of the base, with its name.
struct Scale {
    unit: u64,
    name: &'static str,
}

impl Scale {
    /// The measure in which `n` has three digits at most.
    fn of(resource: Resource, n: u64) -> Scale {
        const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        const DECIMAL: [&str; 7] = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s"];
        let (step, names) = if resource == Resource::Memory { (1024, BINARY) } else { (1000, DECIMAL) };
        let (mut unit, mut power) = (1, 0);
        while power + 1 < names.len() && u128::from(n) * 2 >= 1_999 * u128::from(unit) {
            unit *= step;
            power += 1;
        }
        Scale { unit, name: names[power] }
    }

    /// `n` in this measure: with a decimal below 10, unless it is 0.
    fn number(&self, n: u64) -> String {
        let tenths = (u128::from(n) * 10 + u128::from(self.unit) / 2) / u128::from(self.unit);
        match tenths {
            0 if n > 0 => "0.0".to_owned(),
            1..100 if tenths % 10 != 0 => format!("{}.{}", tenths / 10, tenths % 10),
            0..100 => (tenths / 10).to_string(),
            _ => ((u128::from(n) + u128::from(self.unit) / 2) / u128::from(self.unit)).to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_in_one_measure() {
        for (micro, text) in [
            (0, "0.00"),
            (134_999, "0.13"),
            (9_994_999, "9.99"),
            (9_995_000, "10.0"),
            (99_949_999, "99.9"),
            (99_950_000, "100"),
            (125_400_000, "125"),
            (u64::MAX, "18446744073709"),
        ] {
            assert_eq!(cpus(micro), text, "{micro}");
        }
        let gib = 1 << 30;
        for (resource, one, other, text) in [
            (Resource::Cpu, 130_000, 720_000, "0.13/0.72"),
            (Resource::Memory, 3 * gib + gib / 10, 4 * gib, "3.1/4 GiB"),
            (Resource::Memory, 1, 4 * gib, "0.0/4 GiB"),
            (Resource::Memory, 0, 0, "0/0 B"),
            (Resource::Memory, 999 << 20, 1023 << 20, "1/1 GiB"),
            (Resource::Disk, 12_400_000, 100_000_000, "12/100 MB/s"),
            (Resource::Bus, u64::MAX, 0, "18/0 EB/s"),
        ] {
            assert_eq!(pair(resource, one, other), text);
        }
        assert_eq!(times(8_100_000, Some(10_000_000)), "8.1/10 ms");
        assert_eq!(times(596_000_000, Some(10_000_000)), "596/10 ms");
        assert_eq!(times(12_000_000_000, Some(500_000_000)), "12/0.5 s");
        assert_eq!(
            (times(0, None), share(0), share(9_999), share(123_456)),
            ("0 ms".into(), "-".into(), "<1%".into(), "12%".into())
        );
    }
}
