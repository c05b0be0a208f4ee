//! Parses the rate that a program prints, or rejects it as ambiguous.
//!
//! Problem: `--rate 'rate: ([0-9.]+)'` matches `1.9` in `1.9k`, `2` in `2,235.5` and `980` in `980 K/s`. If
//! these matches were taken literally, one size would appear to have a thousandth of the throughput of
//! another.
//!
//! Algorithm: the match only locates the number. The number is parsed from the line, with thousands
//! separators (`2,235.5`), exponent (`1.5e6`), and a prefix of its unit or a multiplier word (`1.9k`, `3M/s`,
//! `2.5 MiB/s`, `4 million`). Any other text adjacent to the number makes it ambiguous; a word after a blank
//! does not.

use regex_lite::Regex;

/// The units that may have a prefix.
const UNITS: [&str; 35] = [
    "", "b", "bit", "bits", "byte", "bytes", "bps", "call", "calls", "event", "events", "flop", "flops",
    "hz", "io", "iops", "item", "items", "key", "keys", "lookups", "message", "messages", "msg", "msgs",
    "op", "ops", "packets", "pps", "qps", "queries", "req", "reqs", "requests", "rows",
];
const MORE_UNITS: [&str; 9] =
    ["rps", "tps", "transactions", "txn", "tx", "iterations", "it", "records", "frames"];
const PER_SECOND: [&str; 5] = ["/s", "/sec", "/second", "ps", ".s-1"];

/// The rate in the last line of the output in which the pattern is found.
pub(super) fn rate(pattern: &Regex, output: &str) -> Result<f64, String> {
    let found = output.lines().rev().find_map(|line| Some((line, pattern.captures(line)?)));
    let Some((line, captures)) = found else {
        return Err(format!("the program printed nothing that `{}` (--rate) is found in", pattern.as_str()));
    };
    let Some(at) = captures.get(1).or_else(|| captures.get(0)) else {
        return Err(format!("`{}` (--rate) finds no text for its parentheses", pattern.as_str()));
    };
    let text = at.as_str();
    let start = at.start() + (text.len() - text.trim_start().len());
    number(line, start, at.end()).map_err(|why| {
        format!(
            "`{}` (--rate) found `{}`, which {why}: put the number alone in parentheses, as in 'rate: ([0-9.]+)', and have \
             the program print it without a unit",
            pattern.as_str(),
            text.trim()
        )
    })
}

/// The number at `start` in a line, where a pattern matched up to `end`. The error says why the number is
/// ambiguous.
fn number(line: &str, start: usize, end: usize) -> Result<f64, String> {
    let (before, rest) = (line.get(..start).unwrap_or(""), line.get(start..).unwrap_or(""));
    let mut preceding = before.chars().rev();
    match (preceding.next(), preceding.next()) {
        (Some(c), _) if c.is_ascii_digit() => {
            return Err(format!("is the end of a longer number in `{line}`"));
        }
        (Some('.' | ',' | '\'' | '_'), Some(c)) if c.is_ascii_digit() => {
            return Err(format!("is the end of a longer number in `{line}`"));
        }
        (Some('-'), c) if c.is_none_or(|c| !c.is_alphanumeric()) => return Err(NOT_ABOVE_0.to_owned()),
        _ => {}
    }
    let (value, length) = mantissa(rest).ok_or_else(|| NOT_ABOVE_0.to_owned())?;
    if start + length < end && !line.get(start + length..end).unwrap_or("").trim_start().is_empty() {
        // The match continues after the number: only a unit may follow.
        let more = line.get(start + length..end).unwrap_or("");
        multiple(more.trim()).ok_or_else(|| format!("goes on with `{}`", more.trim()))?;
    }
    let behind = rest.get(length..).unwrap_or("");
    let value = value * multiplier(behind)?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(NOT_ABOVE_0.to_owned()) }
}

const NOT_ABOVE_0: &str = "is no number above 0";

/// The number at the start of a text, and its length.
fn mantissa(text: &str) -> Option<(f64, usize)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let sign = usize::from(text.starts_with('+'));
    let text = text.get(sign..)?;
    let first = digits(text);
    let mut length = first;
    let mut plain = text.get(..first)?.to_owned();
    // Thousands separators, all the same character.
    if let Some(separator) = text[length..].chars().next().filter(|c| matches!(c, ',' | '\'' | '_'))
        && (1..=3).contains(&first)
    {
        while text[length..].starts_with(separator) && digits(&text[length + 1..]) == 3 {
            plain += text.get(length + 1..length + 4)?;
            length += 4;
        }
    }
    if text[length..].starts_with('.') && digits(&text[length + 1..]) > 0 {
        let fraction = digits(&text[length + 1..]);
        plain += text.get(length..=length + fraction)?;
        length += 1 + fraction;
    }
    let rest = &text[length..];
    if rest.starts_with(['e', 'E']) {
        let sign = usize::from(rest[1..].starts_with(['+', '-']));
        let exponent = digits(&rest[1 + sign..]);
        if exponent > 0 {
            plain += rest.get(..1 + sign + exponent)?;
            length += 1 + sign + exponent;
        }
    }
    Some((plain.parse().ok()?, sign + length))
}

/// The multiplier of a number, from the text behind the number.
fn multiplier(behind: &str) -> Result<f64, String> {
    let attached = behind.chars().next().filter(|c| !c.is_whitespace());
    let word = behind.split_whitespace().next().unwrap_or("");
    let ends = [';', ')', ']', '}', '"', '|', '<', '\''];
    let word = word.split(ends).next().unwrap_or("").trim_end_matches(['.', ',', ':', '!']);
    match attached {
        // Non-breaking and thin spaces may separate thousands: reject them rather than misread the number.
        None if behind.starts_with(['\u{a0}', '\u{202f}', '\u{2009}'])
            && word.starts_with(|c: char| c.is_ascii_digit()) =>
        {
            Err(format!("goes on with `{behind}`"))
        }
        None => Ok(multiple(word).unwrap_or(1.0)),
        Some(_) => multiple(word).ok_or_else(|| format!("goes on with `{word}`")),
    }
}

/// The multiplier of a unit; `None` if it is unknown.
fn multiple(word: &str) -> Option<f64> {
    match word {
        "thousand" => return Some(1e3),
        "million" => return Some(1e6),
        "billion" => return Some(1e9),
        _ => {}
    }
    let is_unit = |text: &str| {
        let text = text.to_lowercase();
        let bare = PER_SECOND.iter().find_map(|end| text.strip_suffix(end)).unwrap_or(&text);
        [bare, &text].iter().any(|unit| UNITS.contains(unit) || MORE_UNITS.contains(unit))
    };
    if is_unit(word) {
        return Some(1.0);
    }
    let prefixes = [("k", 1e3, 1024.0), ("K", 1e3, 1024.0), ("M", 1e6, 1_048_576.0)];
    let larger = [("G", 1e9, 1_073_741_824.0), ("T", 1e12, 1_099_511_627_776.0)];
    prefixes.into_iter().chain(larger).find_map(|(prefix, by, binary)| {
        let rest = word.strip_prefix(prefix)?;
        match rest.strip_prefix('i') {
            Some(rest) if is_unit(rest) => Some(binary),
            _ => is_unit(rest).then_some(by),
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn found(line: &str) -> Result<f64, String> {
        rate(&Regex::new("rate: *([0-9.]+)").unwrap(), line)
    }

    #[test]
    fn the_last_number_that_is_printed_counts() {
        let pattern = Regex::new(r"rate: ([0-9.]+)").unwrap();
        assert_eq!(rate(&pattern, "rate: 1\nrate: 2.5 widgets\nbye\n"), Ok(2.5));
        assert_eq!(rate(&Regex::new("[0-9]+$").unwrap(), "took 7"), Ok(7.0));
        assert!(rate(&pattern, "nothing").unwrap_err().contains("is found in"));
        assert!(rate(&pattern, "rate: 0").unwrap_err().contains("no number above 0"));
        assert!(rate(&Regex::new("rate: (-?[0-9]+)").unwrap(), "rate: -4").unwrap_err().contains("above 0"));
    }

    #[test]
    fn separators_exponents_and_units_are_understood() {
        for (line, value) in [
            ("rate: 1.9k", 1_900.0),
            ("rate: 2,235.5", 2_235.5),
            ("rate: 1,002,235 ops", 1_002_235.0),
            ("rate: 1'000", 1_000.0),
            ("rate: 3M/s", 3e6),
            ("rate: 2.5 MB/s", 2.5e6),
            ("rate: 2 MiB/sec, all well", 2_097_152.0),
            ("rate: 1.5e+06 req/s", 1.5e6),
            ("rate: 4 million of them", 4e6),
            ("rate: 120req/s", 120.0),
            ("rate: 7.25 (of 9)", 7.25),
            ("rate: 7, errors 3", 7.0),
            ("{\"rate: 12\"}", 12.0),
            ("rate: 3 Miles", 3.0),
        ] {
            assert_eq!(found(line), Ok(value), "{line}");
        }
    }

    #[test]
    fn ambiguous_numbers_are_rejected() {
        for line in [
            "rate: 1.2.3",
            "rate: 2.235,5",
            "rate: 5,6",
            "rate: 5ms",
            "rate: 3m",
            "rate: 99%",
            "rate: 0x1f",
            "rate: 7/9",
            "rate: 5-6",
            "rate: 12\u{202f}345",
            "rate: 1000,5",
            "rate: 1e999",
        ] {
            assert!(found(line).is_err(), "{line}: {:?}", found(line));
        }
        let greedy = Regex::new("rate.*([0-9]+)").unwrap();
        assert!(rate(&greedy, "rate: 1235").unwrap_err().contains("longer number"));
        assert!(rate(&Regex::new("rate: ([a-z0-9 ]+)").unwrap(), "rate: 5 or 6").is_err());
        assert_eq!(rate(&Regex::new("rate: ([0-9.]+k?)").unwrap(), "rate: 1.9k"), Ok(1_900.0));
    }
}
