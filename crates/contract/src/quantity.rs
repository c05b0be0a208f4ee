//! Quantities: `1.5`, `25%`, `8GiB`, `100MB/s`, `250ms`.
//!
//! Quantities are exact, without floating point. Fractions of the smallest unit (a byte, a nanosecond) are
//! rounded down. An ambiguous quantity is rejected, with a message that has both readings: `8G` may be 8 *
//! 1000^3 or 8 * 1024^3 bytes.

use std::fmt::Write;

use crate::diagnostic::{Problem, Span};
use crate::resource::{Amount, MILLIONTH, Resource};

/// The most decimals of a number: amounts are stored in millionths.
const DECIMALS_MAX: usize = 6;

/// The most decimals of a percentage: 0.0001 % is one millionth.
const PERCENT_DECIMALS_MAX: usize = 4;

/// The units of bytes: first decimal units, then the byte, then binary units. If a unit has several
/// spellings, [`amount_text`] writes the last one.
const BYTES: [(&str, u64); 12] = [
    ("KB", 1_000),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
];

/// Units of time, in nanoseconds.
const TIMES: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A quantity, split into its number and its unit.
struct Parsed<'t> {
    /// The number, times a million.
    millionths: u128,
    /// How many decimals the number has.
    decimals: usize,
    /// Whether a percentage is allowed, too, as for amounts of a resource. If so, remedies mention it.
    or_part: bool,
    /// The span of the number.
    number: Span,
    unit: &'t str,
    unit_span: Span,
}

/// Reads an amount of a resource: a percentage, or CPUs, bytes or bytes per second.
pub fn amount(text: &str, resource: Resource) -> Result<Amount, Problem> {
    let parsed = Parsed { or_part: true, ..split(text, example(resource))? };
    if parsed.unit == "%" {
        return percentage(&parsed).map(Amount::Part).map_err(|problem| match resource {
            // systemd's `CPUQuota=150%` is one and a half CPUs.
            Resource::Cpu if parsed.millionths > 100 * u128::from(MILLIONTH) => {
                let cpus = decimal(u64::try_from(parsed.millionths / 100).unwrap_or(u64::MAX), DECIMALS_MAX);
                Problem { help: format!("{}; {cpus} CPUs are written \"{cpus}\"", problem.help), ..problem }
            }
            _ => problem,
        });
    }
    let scale = match resource {
        Resource::Cpu => cpu_scale(&parsed)?,
        Resource::Memory => bytes_scale(&parsed, "memory")?,
        Resource::Disk | Resource::Bus => rate_scale(&parsed, &format!("{resource} bandwidth"))?,
    };
    scaled(&parsed, scale).map(Amount::Absolute)
}

/// Reads an amount of bytes: `8GiB`.
pub fn bytes(text: &str) -> Result<u64, Problem> {
    let parsed = split(text, "\"8GiB\"")?;
    let scale = bytes_scale(&parsed, "bytes")?;
    scaled(&parsed, scale)
}

/// Reads a rate: `100MB/s`, in bytes per second.
pub fn bytes_per_s(text: &str) -> Result<u64, Problem> {
    let parsed = split(text, "\"100MB/s\"")?;
    let scale = rate_scale(&parsed, "bandwidth")?;
    scaled(&parsed, scale)
}

/// Reads a percentage, in millionths: `25%`.
pub fn part(text: &str) -> Result<u64, Problem> {
    let parsed = split(text, "\"25%\"")?;
    if parsed.unit == "%" {
        return percentage(&parsed);
    }
    let message = match parsed.unit {
        "" => format!("`{text}` is no percentage"),
        unit => format!("`{unit}` is not `%`"),
    };
    Err(unit_problem(&parsed, message, "write a percentage: \"25%\""))
}

/// Reads a length of time, in nanoseconds: `250ms`.
pub fn duration_ns(text: &str) -> Result<u64, Problem> {
    let parsed = split(text, "\"250ms\"")?;
    let Some((_, scale)) = TIMES.iter().find(|(unit, _)| *unit == parsed.unit) else {
        let message = match parsed.unit {
            "" => format!("`{text}` has no unit of time"),
            unit => format!("`{unit}` is not a unit of time"),
        };
        return Err(unit_problem(&parsed, message, "write ns, us, ms, s, min or h: \"250ms\""));
    };
    scaled(&parsed, *scale)
}

/// An amount as a contract writes it. [`amount`] reads the text as the same amount.
pub fn amount_text(resource: Resource, amount: Amount) -> String {
    match (amount, resource) {
        (Amount::Part(millionths), _) => part_text(millionths),
        (Amount::Absolute(millionths), Resource::Cpu) => decimal(millionths, DECIMALS_MAX),
        (Amount::Absolute(bytes), Resource::Memory) => bytes_text(bytes),
        (Amount::Absolute(bytes), Resource::Disk | Resource::Bus) => bytes_text(bytes) + "/s",
    }
}

/// A length of time as a contract writes it: `250ms`. [`duration_ns`] reads the text as the same number of
/// nanoseconds.
pub fn duration_text(ns: u64) -> String {
    largest_exact(ns, &TIMES)
}

/// Millionths as a percentage: `25%`. [`part`] reads the text as the same number of millionths.
pub fn part_text(millionths: u64) -> String {
    decimal(millionths, PERCENT_DECIMALS_MAX) + "%"
}

/// Bytes in the unit that makes the shortest text: `8GiB`. [`bytes`] reads the text as the same number of
/// bytes.
pub fn bytes_text(bytes: u64) -> String {
    let binary = largest_exact(bytes, &BYTES[6..]);
    let decimal = largest_exact(bytes, &BYTES[..7]);
    // The shorter text is probably the one that the contract had: 100MB, not 97656.25KiB.
    if decimal.len() < binary.len() { decimal } else { binary }
}

/// The amount in the largest unit of which it is a whole number.
fn largest_exact(amount: u64, units: &[(&str, u64)]) -> String {
    let divides = |scale: &u64| amount != 0 && amount.is_multiple_of(*scale);
    let largest = units.iter().filter(|(_, scale)| divides(scale)).max_by_key(|(_, scale)| *scale);
    let (unit, scale) = largest.or(units.iter().find(|(_, scale)| *scale == 1)).unwrap_or(&("", 1));
    format!("{}{unit}", amount / scale)
}

/// The number `value` / 10^`decimals`, without trailing zeros.
fn decimal(value: u64, decimals: usize) -> String {
    let scale = 10u64.pow(u32::try_from(decimals).unwrap_or(0));
    let mut text = (value / scale).to_string();
    if !value.is_multiple_of(scale) {
        let _ = write!(text, ".{:0decimals$}", value % scale);
        text.truncate(text.trim_end_matches('0').len());
    }
    text
}

/// Splits a text into its number and its unit. `example` is shown in remedies.
fn split<'t>(text: &'t str, example: &str) -> Result<Parsed<'t>, Problem> {
    let start = text.len() - text.trim_start().len();
    let body = text.trim();
    let body_span = start..start + body.len();
    let problem = |span: Span, message: String, help: String| Err(Problem { span, message, help });
    if body.is_empty() {
        return problem(
            0..text.len(),
            "the quantity is empty".to_owned(),
            format!("write for example {example}"),
        );
    }
    if body.starts_with('-') {
        return problem(body_span, format!("`{body}` is negative"), "write zero or more".to_owned());
    }
    let number_len = body.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(body.len());
    let (number, rest) = body.split_at(number_len);
    let number_span = start..start + number_len;
    let (integer, decimals) = number.split_once('.').map_or((number, None), |(i, d)| (i, Some(d)));
    if integer.is_empty() || decimals.is_some_and(|d| d.is_empty() || d.contains('.')) {
        let message = format!("`{body}` does not begin with a number");
        return problem(body_span, message, format!("write for example {example}"));
    }
    let decimals = decimals.unwrap_or("");
    if decimals.len() > DECIMALS_MAX {
        let message = format!("`{number}` has more than {DECIMALS_MAX} decimals");
        return problem(number_span, message, format!("write at most {DECIMALS_MAX} decimals"));
    }
    let Some(millionths) = millionths(integer, decimals) else {
        return problem(
            number_span,
            format!("`{number}` is too large"),
            format!("write for example {example}"),
        );
    };
    let unit = rest.trim_start();
    if rest.strip_prefix(',').is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit())) {
        let message = format!("`{body}` has a comma in its number");
        let number = body.replacen(',', ".", 1);
        let help = format!("write decimals with a point (\"{number}\"), and thousands without a mark");
        return problem(body_span, message, help);
    }
    let unit_span = body_span.end - unit.len()..body_span.end;
    Ok(Parsed { millionths, decimals: decimals.len(), or_part: false, number: number_span, unit, unit_span })
}

/// `integer.decimals` times a million; `None` if the integer part does not fit in 64 bits.
fn millionths(integer: &str, decimals: &str) -> Option<u128> {
    let whole: u64 = integer.parse().ok()?;
    let padded = format!("{decimals:0<DECIMALS_MAX$}");
    let fraction: u64 = padded.parse().ok()?;
    Some(u128::from(whole) * u128::from(MILLIONTH) + u128::from(fraction))
}

/// A percentage in millionths, at most [`MILLIONTH`].
fn percentage(parsed: &Parsed) -> Result<u64, Problem> {
    let span = parsed.number.start..parsed.unit_span.end;
    if parsed.decimals > PERCENT_DECIMALS_MAX {
        let message = format!("the percentage has more than {PERCENT_DECIMALS_MAX} decimals");
        return Err(Problem { span, message, help: "0.0001% (one millionth) is the finest part".to_owned() });
    }
    match u64::try_from(parsed.millionths / 100) {
        Ok(part) if part <= MILLIONTH => Ok(part),
        _ => {
            let help = match parsed.or_part {
                true => "write at most 100%: the whole of what the enclosing unit or the machine holds",
                false => "write at most 100%",
            };
            let help = help.to_owned();
            Err(Problem { span, message: "the percentage is above 100%".to_owned(), help })
        }
    }
}

/// The number times `scale`, rounded down. `scale` is the value of the quantity's unit in the smallest unit,
/// such as bytes.
fn scaled(parsed: &Parsed, scale: u64) -> Result<u64, Problem> {
    let amount =
        parsed.millionths.checked_mul(u128::from(scale)).map(|product| product / u128::from(MILLIONTH));
    amount.and_then(|amount| u64::try_from(amount).ok()).ok_or_else(|| Problem {
        span: parsed.number.start..parsed.unit_span.end,
        message: "the quantity does not fit in 64 bits".to_owned(),
        help: if parsed.or_part { "write less, or a percentage" } else { "write less" }.to_owned(),
    })
}

/// The value of the unit in an amount of CPU, in millionths of a CPU. CPUs have no unit.
fn cpu_scale(parsed: &Parsed) -> Result<u64, Problem> {
    if parsed.unit.is_empty() {
        return Ok(MILLIONTH);
    }
    let message = format!("`{}` is not a unit of CPU", parsed.unit);
    Err(unit_problem(parsed, message, "write CPUs as a number without a unit (\"1.5\"), or a part (\"25%\")"))
}

/// The value of a unit of bytes, such as `GiB`, in bytes. `noun` names the quantity in messages.
fn bytes_scale(parsed: &Parsed, noun: &str) -> Result<u64, Problem> {
    if let Some(scale) = bytes_unit(parsed.unit) {
        return Ok(scale);
    }
    if let Some(unit) = parsed.unit.strip_suffix("/s").filter(|unit| bytes_unit(unit).is_some()) {
        let help = match noun {
            "memory" => format!("memory is an amount, not a rate: write {unit}"),
            _ => format!("this is an amount, not a rate: write {unit}"),
        };
        return Err(unit_problem(parsed, format!("`{}` is not a unit of {noun}", parsed.unit), &help));
    }
    Err(bytes_problem(parsed, parsed.unit, "", noun))
}

/// The value of a unit of bytes per second, such as `MB/s`, in bytes per second. `noun` names the quantity in
/// messages.
fn rate_scale(parsed: &Parsed, noun: &str) -> Result<u64, Problem> {
    let (unit, per_second) = match parsed.unit.strip_suffix("/s") {
        Some(unit) => (unit, true),
        None => (parsed.unit, false),
    };
    match bytes_unit(unit) {
        Some(scale) if per_second => Ok(scale),
        Some(_) => {
            let message = format!("`{unit}` is an amount, and {noun} is a rate");
            Err(unit_problem(parsed, message, &format!("write {unit}/s")))
        }
        None => Err(bytes_problem(parsed, unit, "/s", noun)),
    }
}

/// The value of a unit in bytes; `None` if it is not a unit of bytes.
fn bytes_unit(unit: &str) -> Option<u64> {
    BYTES.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale)
}

/// The problem with a unit that is no unit of bytes: a single letter, as in `8G`, is ambiguous, and `8gib` is
/// in the wrong case. `suffix` is `/s` for a rate; `noun` names the quantity in messages.
fn bytes_problem(parsed: &Parsed, unit: &str, suffix: &str, noun: &str) -> Problem {
    let letter = unit.chars().next().map(|c| c.to_ascii_uppercase());
    let power = letter.and_then(|letter| "KMGTP".find(letter)).map(|index| index + 1);
    if let (Some(letter), Some(power), 1) = (letter, power, unit.len()) {
        let decimal = if letter == 'K' { 'k' } else { letter };
        let help = format!(
            "write {letter}iB{suffix} (1024^{power} bytes) or {decimal}B{suffix} (1000^{power} bytes)"
        );
        return unit_problem(parsed, format!("`{}` is ambiguous", parsed.unit), &help);
    }
    if let Some((name, _)) = BYTES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        let message = format!("`{}` is not a unit of {noun}", parsed.unit);
        return unit_problem(parsed, message, &format!("write {name}{suffix}: capitals matter in units"));
    }
    let message = match parsed.unit {
        "" => format!("the amount of {noun} has no unit"),
        unit => format!("`{unit}` is not a unit of {noun}"),
    };
    let or_part = if parsed.or_part { ", or a part such as 25%" } else { "" };
    let help =
        format!("write GiB{suffix} (1024^3 bytes), GB{suffix} (1000^3 bytes) or similar units{or_part}");
    unit_problem(parsed, message, &help)
}

/// A problem at the unit, or at the number if the unit is missing.
fn unit_problem(parsed: &Parsed, message: String, help: &str) -> Problem {
    let span = if parsed.unit.is_empty() { parsed.number.clone() } else { parsed.unit_span.clone() };
    Problem { span, message, help: help.to_owned() }
}

/// An example of an amount of the resource, for remedies.
fn example(resource: Resource) -> &'static str {
    match resource {
        Resource::Cpu => "\"1.5\" or \"25%\"",
        Resource::Memory => "\"8GiB\" or \"25%\"",
        Resource::Disk | Resource::Bus => "\"100MB/s\" or \"25%\"",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Resource::{Bus, Cpu, Disk, Memory};

    #[test]
    fn amounts() {
        for (text, resource, expected) in [
            ("2", Cpu, Amount::Absolute(2_000_000)),
            ("1.5", Cpu, Amount::Absolute(1_500_000)),
            ("0.000001", Cpu, Amount::Absolute(1)),
            ("25%", Cpu, Amount::Part(250_000)),
            ("100%", Memory, Amount::Part(MILLIONTH)),
            ("0.0001%", Memory, Amount::Part(1)),
            ("33.3333 %", Bus, Amount::Part(333_333)),
            ("8GiB", Memory, Amount::Absolute(8 << 30)),
            ("1.5GiB", Memory, Amount::Absolute(3 << 29)),
            (" 512 MiB ", Memory, Amount::Absolute(512 << 20)),
            ("8GB", Memory, Amount::Absolute(8_000_000_000)),
            // 0.000001 of 1024 bytes is less than a byte.
            ("0.000001KiB", Memory, Amount::Absolute(0)),
            ("100MB/s", Disk, Amount::Absolute(100_000_000)),
            ("50MiB/s", Bus, Amount::Absolute(50 << 20)),
            ("18446744073709551615B", Memory, Amount::Absolute(u64::MAX)),
        ] {
            assert_eq!(amount(text, resource), Ok(expected), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, ns) in [
            ("250ms", 250_000_000),
            ("1s", 1_000_000_000),
            ("500us", 500_000),
            ("0.5us", 500),
            ("1.5min", 90_000_000_000),
            ("2h", 7_200_000_000_000),
        ] {
            assert_eq!(duration_ns(text), Ok(ns), "{text}");
        }
        for text in
            ["250", "1m", "1M", "1hour", "1d", "ms", "1.ms", ".5s", "-1s", "99999999999999999999s", "1e3s"]
        {
            assert!(duration_ns(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_rates_and_percentages_outside_of_amounts() {
        assert_eq!(
            (bytes("1.5KiB"), bytes_per_s("5MB/s"), part("0.5%")),
            (Ok(1536), Ok(5_000_000), Ok(5_000))
        );
        let said = |result: Result<u64, Problem>| result.map_err(|p| format!("{}; {}", p.message, p.help));
        let is = |result, expected: &str| assert_eq!(said(result), Err(expected.to_owned()));
        is(
            bytes("25%"),
            "`%` is not a unit of bytes; write GiB (1024^3 bytes), GB (1000^3 bytes) or similar units",
        );
        is(bytes("1MB/s"), "`MB/s` is not a unit of bytes; this is an amount, not a rate: write MB");
        is(bytes("18446744073709551615PiB"), "the quantity does not fit in 64 bits; write less");
        is(bytes_per_s("1MB"), "`MB` is an amount, and bandwidth is a rate; write MB/s");
        is(part("0.25"), "`0.25` is no percentage; write a percentage: \"25%\"");
        is(part("5ms"), "`ms` is not `%`; write a percentage: \"25%\"");
        is(part("101%"), "the percentage is above 100%; write at most 100%");
        is(
            part("0.00001%"),
            "the percentage has more than 4 decimals; 0.0001% (one millionth) is the finest part",
        );
    }

    /// The text that the problem points at, what is wrong, and the remedy.
    #[track_caller]
    fn check(text: &str, resource: Resource, at: &str, message: &str, help: &str) {
        let problem = amount(text, resource).unwrap_err();
        assert_eq!(&text[problem.span.clone()], at, "{problem:?}");
        assert!(problem.message.contains(message), "{problem:?}");
        assert!(problem.help.contains(help), "{problem:?}");
    }

    #[test]
    fn an_ambiguous_unit_is_refused_with_both_readings() {
        check("8G", Memory, "G", "`G` is ambiguous", "write GiB (1024^3 bytes) or GB (1000^3 bytes)");
        check("1K", Memory, "K", "ambiguous", "write KiB (1024^1 bytes) or kB (1000^1 bytes)");
        check("5m/s", Disk, "m/s", "ambiguous", "MiB/s");
        check("8gib", Memory, "gib", "not a unit", "write GiB: capitals matter");
    }

    #[test]
    fn problems_point_into_the_value() {
        check("8GiB/s", Memory, "GiB/s", "not a unit of memory", "write GiB");
        check("8GiB", Bus, "GiB", "is a rate", "write GiB/s");
        check("8", Memory, "8", "no unit", "GiB");
        check("2GiB", Cpu, "GiB", "not a unit of CPU", "\"1.5\"");
        check("101%", Cpu, "101%", "above 100%", "at most 100%");
        check("100.0001%", Cpu, "100.0001%", "above 100%", "at most 100%");
        check("0.00001%", Cpu, "0.00001%", "more than 4 decimals", "millionth");
        check("1.1234567", Cpu, "1.1234567", "more than 6 decimals", "6");
        check("-1", Cpu, "-1", "negative", "zero or more");
        check("", Cpu, "", "empty", "1.5");
        check("  ", Cpu, "  ", "empty", "1.5");
        check("lots", Memory, "lots", "does not begin with a number", "8GiB");
        check("1.2.3", Cpu, "1.2.3", "does not begin with a number", "1.5");
        check("99999999999999999999", Cpu, "99999999999999999999", "too large", "1.5");
        check("18446744073709551615", Cpu, "18446744073709551615", "64 bits", "percentage");
        check("18446744073709551615PiB", Memory, "18446744073709551615PiB", "64 bits", "percentage");
    }

    #[test]
    fn texts_use_the_shortest_exact_unit() {
        for (resource, value, text) in [
            (Cpu, Amount::Absolute(1_500_000), "1.5"),
            (Cpu, Amount::Part(80_000), "8%"),
            (Memory, Amount::Absolute(8 << 30), "8GiB"),
            (Memory, Amount::Absolute(0), "0B"),
            (Disk, Amount::Absolute(100_000_000), "100MB/s"),
            (Memory, Amount::Absolute(1_234_567), "1234567B"),
        ] {
            assert_eq!(amount_text(resource, value), text);
        }
        assert_eq!(duration_text(250_000_000), "250ms");
        assert_eq!(duration_text(1_000_000_000), "1s");
        assert_eq!(duration_text(5_400_000_000_000), "90min");
    }

    proptest! {
        #[test]
        fn a_written_quantity_is_read_as_the_same_quantity(value: u64, part in 0..=MILLIONTH, shift in 0u32..64) {
            for resource in Resource::ALL {
                for value in [Amount::Absolute(value >> shift), Amount::Absolute(value << shift), Amount::Part(part)] {
                    prop_assert_eq!(amount(&amount_text(resource, value), resource), Ok(value));
                }
            }
            prop_assert_eq!(duration_ns(&duration_text(value >> shift)), Ok(value >> shift));
        }

        #[test]
        fn problems_lie_in_the_text_on_character_boundaries(text in "[ 0-9.%-]{0,8}[ \\PC]{0,6}") {
            for resource in Resource::ALL {
                if let Err(problem) = amount(&text, resource) {
                    prop_assert!(text.get(problem.span.clone()).is_some(), "{:?}", problem);
                }
            }
            if let Err(problem) = duration_ns(&text) {
                prop_assert!(text.get(problem.span.clone()).is_some(), "{:?}", problem);
            }
        }
    }
}
