//! Amounts of bytes as people write them: `512MiB`, `100MB/s`. Amounts are exact integers; an ambiguous
//! amount is refused.

/// The largest amount of bytes, or of bytes per second, that a description of a machine may state, singly or
/// in total: 1 EiB. With this limit every sum of amounts fits into 64 bits, and into TOML's integers.
pub(crate) const BYTES_MAX: u64 = 1 << 60;

/// The units of amounts, each with its number of bytes.
const UNITS: [(&str, u64); 11] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
];

/// Why a text is not a valid amount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// The problem, in words that call the text `it`.
    pub(crate) what: String,
    /// What to write instead.
    pub(crate) remedy: String,
}

/// Parses an amount of bytes: digits and a unit, `512MiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, Wrong> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    if digits.is_empty() {
        return Err(wrong(
            "it does not start with a whole number",
            "write a number and a unit, such as `512MiB`",
        ));
    }
    let unit_bytes = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, bytes)| *bytes);
    let unit_bytes = unit_bytes.ok_or_else(|| wrong_unit(digits, unit))?;
    let amount =
        digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit_bytes)).filter(|n| *n <= BYTES_MAX);
    amount.ok_or_else(|| wrong("it is more than 1 EiB", "write a smaller amount"))
}

/// Parses a rate in bytes per second: an amount of bytes and `/s`, `100MB/s`.
pub(crate) fn bytes_per_s(text: &str) -> Result<u64, Wrong> {
    let amount = text.strip_suffix("/s");
    bytes(amount.ok_or_else(|| wrong("it is not a rate", "write bytes per second, such as `100MB/s`"))?)
}

/// The error for an unknown unit. If the unit can be read in two ways, such as `G`, the remedy names both.
fn wrong_unit(digits: &str, unit: &str) -> Wrong {
    let letter = unit.trim_end_matches(['B', 'b', 'i']).to_ascii_uppercase();
    match letter.as_str() {
        _ if unit.starts_with('.') => {
            wrong("it is not a whole number", "write it in a smaller unit: `1536MiB` for 1.5 GiB")
        }
        _ if unit.is_empty() => wrong("it has no unit", &format!("write `{digits}MiB` or `{digits}GiB`")),
        "K" | "M" | "G" | "T" | "P" => {
            let decimal = if letter == "K" { "k" } else { &letter };
            let power = 1 + "KMGTP".find(&letter).unwrap_or(0);
            wrong(
                &format!("the unit `{unit}` is ambiguous"),
                &format!("write `{digits}{letter}iB` (1024^{power}) or `{digits}{decimal}B` (1000^{power})"),
            )
        }
        _ => wrong(
            &format!("`{unit}` is not a unit of bytes"),
            "use B, KiB, MiB, GiB, TiB, PiB (powers of 1024) or kB, MB, GB, TB, PB (powers of 1000)",
        ),
    }
}

fn wrong(what: &str, remedy: &str) -> Wrong {
    Wrong { what: what.to_owned(), remedy: remedy.to_owned() }
}

/// Bytes for people, in three digits and rounded down: `23.5 GiB`.
pub(crate) fn show_bytes(bytes: u64) -> String {
    // The first six units are powers of 1024, in ascending order.
    let (name, unit_bytes) =
        UNITS[..6].iter().rev().find(|(_, unit_bytes)| bytes >= *unit_bytes).unwrap_or(&UNITS[0]);
    let (whole, tenths) = (bytes / unit_bytes, bytes % unit_bytes * 10 / unit_bytes);
    if *unit_bytes == 1 || tenths == 0 || whole >= 100 {
        format!("{whole} {name}")
    } else {
        format!("{whole}.{tenths} {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        assert_eq!(bytes("512MiB"), Ok(512 << 20));
        assert_eq!(bytes("8GB"), Ok(8_000_000_000));
        assert_eq!(bytes("0B"), Ok(0));
        assert_eq!(bytes("1024PiB"), Ok(BYTES_MAX));
        assert_eq!(bytes_per_s("100MB/s"), Ok(100_000_000));
    }

    #[test]
    fn invalid_amounts_are_refused_with_a_remedy() {
        let remedy = |text: &str| bytes(text).map_err(|wrong| format!("{}; {}", wrong.what, wrong.remedy));
        let is = |text: &str, expected: &str| assert_eq!(remedy(text), Err(expected.to_owned()), "{text}");
        is("8G", "the unit `G` is ambiguous; write `8GiB` (1024^3) or `8GB` (1000^3)");
        is("1.5GiB", "it is not a whole number; write it in a smaller unit: `1536MiB` for 1.5 GiB");
        is("1k", "the unit `k` is ambiguous; write `1KiB` (1024^1) or `1kB` (1000^1)");
        is("8", "it has no unit; write `8MiB` or `8GiB`");
        is("-8GiB", "it does not start with a whole number; write a number and a unit, such as `512MiB`");
        is("1025PiB", "it is more than 1 EiB; write a smaller amount");
        is("99999999999999999999B", "it is more than 1 EiB; write a smaller amount");
        for text in ["", "GiB", "1.5GiB", "8Gbit", "8 GiB", "8é"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert!(bytes_per_s("100MB").is_err());
    }

    #[test]
    fn amounts_for_people() {
        let shown = [0, 1023, 1024, 1536, 25_276_502_016, 200 << 40].map(show_bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "23.5 GiB", "200 TiB"]);
    }
}
