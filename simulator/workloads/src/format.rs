//! The formats, and how a text shows which it has.

/// A format of workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON of rt-app.
    RtApp,
    /// A job file of fio.
    Fio,
    /// A log of I/O that fio recorded or replays.
    Iolog,
    /// A log of jobs in the Standard Workload Format.
    Swf,
    /// A trace of scheduling events from tracefs.
    Trace,
}

/// The format of a text, if its beginning leaves no doubt.
pub fn guess(text: &str) -> Option<Format> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next()?;
    if first.starts_with(['{']) || first.starts_with("/*") || first.starts_with("//") {
        return Some(Format::RtApp);
    }
    if first.starts_with("fio version ") && first.ends_with(" iolog") {
        return Some(Format::Iolog);
    }
    if first.starts_with("# tracer:") || first.starts_with("# commonhold unit ") {
        return Some(Format::Trace);
    }
    // `;` begins a comment in job files of fio and in logs of jobs.
    let content = core::iter::once(first).chain(lines).find(|line| !line.starts_with([';', '#']))?;
    if content.starts_with('[') && content.ends_with(']') {
        return Some(Format::Fio);
    }
    let is_job = content.split_whitespace().count() == 18
        && content.split_whitespace().all(|word| word.parse::<f64>().is_ok());
    is_job.then_some(Format::Swf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_shows_the_format() {
        for (text, format) in [
            ("{\n\"tasks\": {}}", Some(Format::RtApp)),
            ("/* a use case */ {", Some(Format::RtApp)),
            ("; a comment\n[global]\nbs=4k", Some(Format::Fio)),
            ("fio version 2 iolog\n/tmp/f add", Some(Format::Iolog)),
            ("; Version: 2.2\n1 0 0 60 4 -1 -1 4 60 -1 1 1 1 1 1 1 -1 -1", Some(Format::Swf)),
            ("# tracer: nop\n", Some(Format::Trace)),
            ("# commonhold unit a: 1\n", Some(Format::Trace)),
            ("version = 1\n", None),
            ("; only a comment", None),
            ("", None),
        ] {
            assert_eq!(guess(text), format, "{text}");
        }
    }
}
