//! Amounts as text for people, rounded to a few digits. (Exact texts, which a contract can contain, are in
//! [`quantity`](crate::quantity).)

use std::fmt;

/// Millionths as a percentage with at most one decimal.
pub struct Percent(pub u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.saturating_add(500) / 1_000;
        match tenths % 10 {
            0 => write!(f, "{}", tenths / 10),
            rest => write!(f, "{}.{rest}", tenths / 10),
        }
    }
}

/// A rate in bytes per second, shown in a few digits: `12.5 MB/s`. `None` means unlimited, and is shown as
/// `any amount`.
pub struct Speed(pub Option<u64>);

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(rate) = self.0 else { return write!(f, "any amount") };
        match rate {
            0..10_000 => write!(f, "{rate} B/s"),
            10_000..1_000_000 => write!(f, "{} kB/s", rate / 1_000),
            _ => write!(f, "{}.{} MB/s", rate / 1_000_000, rate / 100_000 % 10),
        }
    }
}

/// Millionths of a CPU as a decimal with up to three places: `1.5`, `0.333`, `2`.
pub struct Cpus(pub u64);

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thousandths = self.0.saturating_add(500) / 1_000;
        let (whole, rest) = (thousandths / 1_000, thousandths % 1_000);
        match rest {
            0 => write!(f, "{whole}"),
            _ if rest % 100 == 0 => write!(f, "{whole}.{}", rest / 100),
            _ if rest % 10 == 0 => write!(f, "{whole}.{:02}", rest / 10),
            _ => write!(f, "{whole}.{rest:03}"),
        }
    }
}

/// Millionths of a CPU as a decimal with its noun: `1 CPU`, `1.5 CPUs`.
pub struct CpuCount(pub u64);

impl fmt::Display for CpuCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = self.0.saturating_add(500) / 1_000 == 1_000;
        write!(f, "{} {}", Cpus(self.0), if one { "CPU" } else { "CPUs" })
    }
}

/// Bytes in the largest binary unit of which there is at least 1, with at most one decimal: `512 KiB`,
/// `1.5 GiB`, `2 GiB`.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measures = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let Some((measure, name)) = measures.into_iter().find(|(measure, _)| self.0 >= *measure) else {
            return write!(f, "{} bytes", self.0);
        };
        let tenths = u128::from(self.0) * 10 / u128::from(measure);
        match tenths % 10 {
            0 => write!(f, "{} {name}", tenths / 10),
            tenth => write!(f, "{}.{tenth} {name}", tenths / 10),
        }
    }
}
