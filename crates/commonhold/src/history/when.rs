//! Times of the command line, in the local time zone, and times in words.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, ZonedDateTime};

/// A period of the wall clock: from a time, and before another, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
}

/// Reads a time: `yesterday`, `2h` (ago), `2026-11-28 14:00`, RFC 3339, `@1795874400`. In milliseconds since
/// 1970; an error is a message.
pub(super) fn when(text: &str, now: &ZonedDateTime) -> Result<u64, String> {
    let remedy = || {
        format!(
            "`{text}` is not a time: write `10m`, `2h` or `7d` (ago), `today`, `yesterday`, `2026-11-28`, `2026-11-28 14:00`, \
             RFC 3339 with a time zone, or `@` and seconds since 1970"
        )
    };
    let beginning_of = |day: Result<ZonedDateTime, jiff::Error>| {
        Some(day.ok()?.start_of_day().ok()?.timestamp().as_millisecond())
    };
    let ms = match text {
        "now" => Some(now.timestamp().as_millisecond()),
        "today" => beginning_of(Ok(now.clone())),
        "yesterday" => beginning_of(now.yesterday()),
        _ => None,
    };
    let ms = ms
        .or_else(|| text.strip_prefix('@')?.parse::<i64>().ok()?.checked_mul(1_000))
        .or_else(|| now.timestamp().as_millisecond().checked_sub(ago_ms(text)?))
        .or_else(|| Some(text.parse::<Timestamp>().ok()?.as_millisecond()))
        .or_else(|| {
            let local = text.parse::<DateTime>().ok()?.to_zoned_datetime(now.time_zone().clone()).ok()?;
            Some(local.timestamp().as_millisecond())
        });
    ms.and_then(|ms| u64::try_from(ms).ok()).ok_or_else(remedy)
}

/// The milliseconds of `10m`, `2h`, `7d`, `3w` or `30s`.
fn ago_ms(text: &str) -> Option<i64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let seconds = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return None,
    };
    number.parse::<i64>().ok()?.checked_mul(seconds)?.checked_mul(1_000)
}

/// The month `YYYY-MM` of the local time zone; the present one if the text is empty.
pub(super) fn month(text: &str, now: &ZonedDateTime) -> Result<Period, String> {
    let remedy = || format!("`{text}` is not a month: write `2026-11`");
    let first = match text {
        "" => now.date().first_of_month(),
        _ if text.len() == 7 => format!("{text}-01").parse::<Date>().map_err(|_| remedy())?,
        _ => return Err(remedy()),
    };
    let begins = |date: Date| {
        let ms = date.to_zoned_datetime(now.time_zone().clone()).ok()?.timestamp().as_millisecond();
        u64::try_from(ms).ok()
    };
    let next = first.checked_add(1.month()).map_err(|_| remedy())?;
    match (begins(first), begins(next)) {
        (Some(from_ms), Some(to_ms)) => Ok(Period { from_ms, to_ms }),
        _ => Err(remedy()),
    }
}

/// A moment in the local time zone, as `format` of strftime has it.
pub(super) fn local(ms: u64, zone: &TimeZone, format: &str) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    // The clock of the machine may have been anywhere.
    time.map_or_else(
        || format!("@{}", ms / 1_000),
        |time| time.to_zoned_datetime(zone.clone()).strftime(format).to_string(),
    )
}

/// A moment to the second, for reading.
pub(super) fn words(ms: u64, zone: &TimeZone) -> String {
    local(ms, zone, "%Y-%m-%d %H:%M:%S")
}

/// A moment in RFC 3339, with milliseconds.
pub(super) fn rfc_3339(ms: u64, zone: &TimeZone) -> String {
    local(ms, zone, "%Y-%m-%dT%H:%M:%S.%3f%:z")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// 29 March 2026, when clocks go forward at 2 o'clock, at 15:30.
    fn now() -> ZonedDateTime {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        "2026-03-29 15:30".parse::<DateTime>().unwrap().to_zoned_datetime(zone).unwrap()
    }

    #[test]
    fn times() {
        for (text, expected) in [
            ("now", "2026-03-29T15:30:00.000+02:00"),
            ("today", "2026-03-29T00:00:00.000+01:00"),
            ("yesterday", "2026-03-28T00:00:00.000+01:00"),
            ("30s", "2026-03-29T15:29:30.000+02:00"),
            ("10m", "2026-03-29T15:20:00.000+02:00"),
            ("24h", "2026-03-28T14:30:00.000+01:00"),
            ("2w", "2026-03-15T14:30:00.000+01:00"),
            ("2026-03-28", "2026-03-28T00:00:00.000+01:00"),
            ("2026-03-29 14:00", "2026-03-29T14:00:00.000+02:00"),
            ("2026-03-29T14:00:05", "2026-03-29T14:00:05.000+02:00"),
            ("2026-03-29T14:00:00Z", "2026-03-29T16:00:00.000+02:00"),
            ("2026-03-29 14:00:00.25-05:00", "2026-03-29T21:00:00.250+02:00"),
            ("@1774791000", "2026-03-29T15:30:00.000+02:00"),
        ] {
            let ms = when(text, &now()).unwrap();
            assert_eq!(rfc_3339(ms, now().time_zone()), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_time() {
        for text in [
            "",
            "h",
            "10",
            "10 m",
            "10y",
            "99999999999999999999d",
            "2026-13-01",
            "-5m",
            "@",
            "@-1",
            "tomorrow",
            "\u{1b}",
        ] {
            let why = when(text, &now()).unwrap_err();
            assert!(why.contains("is not a time: write `10m`"), "{text}: {why}");
        }
    }

    #[test]
    fn months() {
        let bounds = |text| {
            let Period { from_ms, to_ms } = month(text, &now()).unwrap();
            [from_ms, to_ms].map(|ms| rfc_3339(ms, now().time_zone()))
        };
        let march = ["2026-03-01T00:00:00.000+01:00", "2026-04-01T00:00:00.000+02:00"];
        assert_eq!((bounds(""), bounds("2026-03")), (march.map(str::to_owned), march.map(str::to_owned)));
        assert_eq!(bounds("2025-12")[1], "2026-01-01T00:00:00.000+01:00");
        assert!(
            ["2026", "2026-13", "2026-3", "26-03-1", "march"].iter().all(|text| month(text, &now()).is_err())
        );
    }

    #[test]
    fn a_time_beyond_all_calendars_is_a_number() {
        assert_eq!(words(u64::MAX, &TimeZone::UTC), format!("@{}", u64::MAX / 1_000));
        assert_eq!(words(i64::MAX as u64, &TimeZone::UTC), format!("@{}", i64::MAX / 1_000));
    }
}
