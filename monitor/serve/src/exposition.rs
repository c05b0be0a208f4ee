//! Writes metrics as `OpenMetrics` 1.0, or in Prometheus's text format 0.0.4.
//!
//! Numbers are written exactly, as decimals of integers: the sum of rounded binary fractions could decrease.

use std::fmt::Write as _;

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// The format of an exposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Text,
}

impl Format {
    /// The format that a client prefers by its header `Accept`; the text format if it has no preference.
    pub(crate) fn preferred(headers: &HeaderMap) -> Format {
        let (mut open_metrics, mut text) = (0.0, 0.0);
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in accepted.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality =
                parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |q| q.parse().unwrap_or(0.0));
            let best: &mut f32 = match media.as_str() {
                "application/openmetrics-text" => &mut open_metrics,
                "text/plain" | "text/*" | "*/*" => &mut text,
                _ => continue,
            };
            *best = best.max(quality);
        }
        if open_metrics > 0.0 && open_metrics >= text { Format::OpenMetrics } else { Format::Text }
    }

    /// The value of `Content-Type`.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The type of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// A metric family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    /// The name, without the suffix `_total` or `_info`.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The unit, which the name ends with; empty if it has none.
    pub(crate) unit: &'static str,
    pub(crate) help: &'static str,
}

impl Family {
    /// The name by which queries find it: that of its samples, or without suffix for a histogram.
    pub(crate) fn queried_name(&self) -> String {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("{}{suffix}", self.name)
    }
}

/// The value of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    /// A whole number.
    Count(u64),
    /// Millionths.
    Micro(u64),
    /// Milliseconds, as seconds.
    Ms(u64),
    /// Nanoseconds, as seconds.
    Ns(u64),
}

/// Labels: names and values. A value may be any text.
pub(crate) type Labels<'a> = &'a [(&'static str, &'a str)];

/// An exposition that is being written.
#[derive(Debug)]
pub(crate) struct Exposition {
    format: Format,
    text: String,
    /// The name of the family's samples.
    name: String,
}

impl Exposition {
    pub(crate) fn new(format: Format) -> Exposition {
        Exposition { format, text: String::new(), name: String::new() }
    }

    /// Begins a family, to which the following samples belong.
    pub(crate) fn family(&mut self, family: &Family) {
        self.name = family.queried_name();
        let (name, kind) = match (self.format, family.kind) {
            (Format::OpenMetrics, Kind::Counter) => (family.name, "counter"),
            (Format::OpenMetrics, Kind::Info) => (family.name, "info"),
            (Format::Text, Kind::Counter) => (self.name.as_str(), "counter"),
            (_, Kind::Gauge) | (Format::Text, Kind::Info) => (self.name.as_str(), "gauge"),
            (_, Kind::Histogram) => (self.name.as_str(), "histogram"),
        };
        let _ = writeln!(self.text, "# HELP {name} {}", family.help);
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
        if self.format == Format::OpenMetrics && !family.unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {name} {}", family.unit);
        }
    }

    /// Adds a sample of the family.
    pub(crate) fn sample(&mut self, labels: Labels<'_>, value: Value) {
        self.suffixed_sample("", labels, value);
    }

    /// Adds a histogram of the family: ascending upper bounds in nanoseconds, each with the number of times
    /// up to it, and the number of all times. The sum of times is not written, since it is not known.
    pub(crate) fn histogram(&mut self, labels: Labels<'_>, buckets: &[(u64, u64)], count: u64) {
        for (bound, up_to) in buckets {
            let bound = decimal(*bound, 9);
            // OpenMetrics wants bounds as `1.0`.
            let bound = if bound.contains('.') { bound } else { bound + ".0" };
            self.suffixed_sample("_bucket", &[labels, &[("le", &bound)]].concat(), Value::Count(*up_to));
        }
        self.suffixed_sample("_bucket", &[labels, &[("le", "+Inf")]].concat(), Value::Count(count));
        self.suffixed_sample("_count", labels, Value::Count(count));
    }

    fn suffixed_sample(&mut self, suffix: &str, labels: Labels<'_>, value: Value) {
        self.text += &self.name;
        self.text += suffix;
        for (index, (name, value)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text += name;
            self.text += "=\"";
            escape_into(&mut self.text, value);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        self.text.push(' ');
        self.text += &match value {
            Value::Count(n) => n.to_string(),
            Value::Micro(n) => decimal(n, 6),
            Value::Ms(n) => decimal(n, 3),
            Value::Ns(n) => decimal(n, 9),
        };
        self.text.push('\n');
    }

    /// The whole text.
    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text += "# EOF\n";
        }
        self.text
    }
}

/// Escapes a label's value. The formats allow all characters but the three that are escaped; a NUL, which
/// ends the input of some parsers, is replaced.
fn escape_into(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => *text += "\\\\",
            '"' => *text += "\\\"",
            '\n' => *text += "\\n",
            '\0' => text.push(char::REPLACEMENT_CHARACTER),
            c => text.push(c),
        }
    }
}

/// `value` divided by ten to the power of `digits`, exactly, without zeros at the end.
fn decimal(value: u64, digits: u32) -> String {
    let unit = 10_u64.pow(digits);
    let (whole, part) = (value / unit, value % unit);
    if part == 0 {
        return whole.to_string();
    }
    let part = format!("{part:0width$}", width = digits as usize);
    format!("{whole}.{}", part.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn numbers_are_exact() {
        for (value, digits, text) in [
            (0, 9, "0"),
            (1, 9, "0.000000001"),
            (1_500_000_000, 9, "1.5"),
            (u64::MAX, 9, "18446744073.709551615"),
            (720_000, 6, "0.72"),
        ] {
            assert_eq!(decimal(value, digits), text);
        }
    }

    #[test]
    fn the_client_chooses_the_format() {
        for (accept, format) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html,*/*;q=0.8", Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text; version=1.0.0; q=0.5, text/plain;q=0.6", Format::Text),
            ("application/openmetrics-text;q=0,*/*", Format::Text),
            ("application/openmetrics-text;q=nan", Format::Text),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                Format::OpenMetrics,
            ),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(Format::preferred(&headers), format, "{accept}");
        }
    }
}
