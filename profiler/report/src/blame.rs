//! The third question in words: who is to blame?

use commonhold_report::figures::{NOTHING, seconds};
use commonhold_report::table::{Paint, Table, clean};
use commonhold_scale::blame::{At, Blame, Culprit, Held, Holding, Interrupts, Kind, Link, Site, Waker};
use commonhold_scale::states::State;
use commonhold_scale::study::Sizes;

use crate::{Answered, Finding, Work, number, size};

/// The maximum number of locks shown.
const LOCKS_MAX: usize = 6;
/// The maximum number of call sites, and of holders, that are shown for a lock.
const SITES_MAX: usize = 3;
/// The maximum number of sources of interrupts shown.
const SOURCES_MAX: usize = 3;
/// Locks are not shown if waits for them are below this fraction of the threads' lives.
const LIVES_MIN: f64 = 0.002;
/// Call sites and holders below this fraction of a lock's waits are not shown.
const PART_MIN: f64 = 0.05;
/// Interrupts below this fraction of a CPU's time are negligible.
const CPU_MIN: f64 = 0.001;
/// Disks below this utilisation are not shown.
const DISK_MIN: f64 = 0.02;
/// Waits below this fraction of the threads' lives are not blamed.
const BLAME_MIN: f64 = 0.02;
/// Throughput is called lower if it is below the best by at least this fraction.
const SLOWER_MIN: f64 = 0.05;

/// The sentence before the table.
pub(super) fn lead(answered: &Answered) -> String {
    let work = answered.blame.as_ref().map_or(Work::of(0.0), work);
    let waits = work.verb("wait");
    format!("What {} for at the smallest and the largest size, added up over its threads:", lower(&waits))
}

/// With the article in lower case, for use within a sentence.
fn lower(text: &str) -> String {
    text.replacen('A', "a", 1)
}

/// The amount of work that fits the longest wait.
fn work(blame: &Blame) -> Work {
    Work::of(shown(blame).map(|culprit| culprit.after_s.max(culprit.before_s)).fold(0.0, f64::max))
}

/// The locks that are shown: those with significant waits.
fn shown(blame: &Blame) -> impl Iterator<Item = &Culprit> {
    let is_significant = |culprit: &&Culprit| culprit.part_of_lives >= LIVES_MIN;
    blame.culprits.iter().filter(is_significant).take(LOCKS_MAX)
}

/// The locks, with their call sites and holders.
pub(super) fn table(answered: &Answered) -> Option<Table> {
    let blame = answered.blame.as_ref().filter(|blame| shown(blame).next().is_some())?;
    let mut table =
        Table::new(&["waited for", "at the\nsmallest", "at the\nlargest", "grew by", "part of\nlives"]);
    let work = work(blame);
    let time = |s: f64| if s > 0.0 { work.seconds(s) } else { NOTHING.to_owned() };
    for culprit in shown(blame) {
        let before = if blame.from == blame.to { NOTHING.to_owned() } else { time(culprit.before_s) };
        let grew = if blame.from == blame.to { NOTHING.to_owned() } else { signed(work, culprit.more_s()) };
        table.row(
            Paint::Plain,
            vec![title(culprit), before, time(culprit.after_s), grew, percent(culprit.part_of_lives)],
        );
        let taken = if culprit.kind.has_holder() { "taken in" } else { "waited for in" };
        table.line(Paint::Faint, format!("  {taken} {}", sites(culprit)));
        if let Some(held) = held(culprit) {
            table.line(Paint::Faint, format!("  {held}"));
        }
    }
    Some(table)
}

fn signed(work: Work, s: f64) -> String {
    if s < 0.0 { format!("-{}", work.seconds(-s)) } else { work.seconds(s) }
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

/// Kind and name, such as `mutex table_lock`.
fn title(culprit: &Culprit) -> String {
    let kind = kind(culprit.kind);
    match &culprit.name {
        Some(name) => format!("{kind} {}", clean(name)),
        None if culprit.locks > 1 => format!("{kind}, one of {}", culprit.locks),
        None => kind.to_owned(),
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Mutex => "mutex",
        Kind::ReadWrite => "lock for readers and writers",
        Kind::Condition => "condition variable",
        Kind::Barrier => "barrier",
        Kind::Semaphore => "semaphore",
        Kind::Park => "place where threads are parked",
        Kind::Futex => "futex",
        Kind::File => "file lock",
        Kind::KernelMutex => "kernel's mutex",
        Kind::KernelReadWrite => "kernel's lock for readers and writers",
        Kind::KernelSpin => "kernel's spin lock",
        Kind::KernelOther => "kernel's lock",
    }
}

/// `insert (main.c:41)`.
fn place(site: &Site) -> String {
    match &site.place {
        Some(place) => format!("{} ({})", clean(&site.function), clean(place)),
        None => clean(&site.function),
    }
}

/// The call sites in words, with their fractions if there are several.
fn sites(culprit: &Culprit) -> String {
    let shown: Vec<&At> = culprit
        .taken
        .iter()
        .enumerate()
        .filter(|(n, at)| *n == 0 || at.part >= PART_MIN)
        .map(|(_, at)| at)
        .collect();
    let mut findings: Vec<String> = shown
        .iter()
        .take(SITES_MAX)
        .map(|at| match shown.len() {
            1 => place(&at.site),
            _ => format!("{} {:.0} %", place(&at.site), at.part * 100.0),
        })
        .collect();
    findings.extend(shown.len().checked_sub(SITES_MAX + 1).map(|more| format!("and {} more", more + 1)));
    findings.join(", ")
}

/// What the holders of a lock do, in words; `None` if that is unknown.
fn held(culprit: &Culprit) -> Option<String> {
    let known: Vec<&Held> = culprit
        .held
        .iter()
        .filter(|held| held.holding != Holding::Unknown && held.part >= PART_MIN)
        .collect();
    if known.is_empty() {
        return None;
    }
    let words = |held: &&Held| {
        let at = held.site.as_ref().map(|site| format!(" in {}", place(site))).unwrap_or_default();
        format!("{:.0} % by `{}`, {}{at}", held.part * 100.0, clean(&held.thread), doing(held.holding))
    };
    Some(format!("held {}", known.iter().take(SITES_MAX).map(words).collect::<Vec<_>>().join("; ")))
}

fn doing(holding: Holding) -> &'static str {
    match holding {
        Holding::Runs => "which runs",
        Holding::Waits(State::Lock) => "which waits for another lock",
        Holding::Waits(State::Io) => "which waits for a disk",
        Holding::Waits(State::Fault) => "which waits for a page",
        Holding::Waits(State::Join) => "which waits for a thread or process to end",
        Holding::Waits(State::Stopped) => "which is stopped",
        Holding::Waits(_) => "which sleeps",
        Holding::Unknown => "whose state is unknown",
    }
}

/// The findings on who is to blame.
pub(super) fn findings(answered: &Answered) -> Vec<Finding> {
    let Some(blame) = &answered.blame else {
        return vec![("blame", "Waits of threads were not sampled.".to_owned())];
    };
    let mut findings = vec![("blame", verdict(answered, blame))];
    findings.extend(chain(&blame.chain));
    findings.extend(interrupts(answered, blame));
    findings.extend(disks(answered, blame));
    findings
}

/// The answer in two sentences.
fn verdict(answered: &Answered, blame: &Blame) -> String {
    let kind = answered.study.sizes_are;
    let to = size(kind, blame.to);
    let growing =
        || blame.culprits.iter().filter(|lock| lock.part_of_lives >= BLAME_MIN && lock.more_s() > 0.0);
    // At a condition variable or barrier, threads wait for work or for each other, which is no contention. So
    // a lock is blamed first.
    let lock = growing().find(|lock| lock.kind.has_holder());
    let meeting = growing().find(|lock| !lock.kind.has_holder());
    let Some(worst) = lock.or(meeting) else {
        if answered.is_inconclusive() {
            return format!(
                "{}At {to}, threads waited for CPUs that others had. How long they would wait for locks if they ran is unknown.",
                slower(answered)
            );
        }
        return format!("{}At {to}, threads hardly wait for locks.", slower(answered));
    };
    let name = match (&worst.name, worst.kind.has_holder()) {
        (Some(name), _) => format!("`{}`, a {}", clean(name), self::kind(worst.kind)),
        (None, _) if worst.locks > 1 => {
            format!("{} locks that are taken alike ({})", worst.locks, self::kind(worst.kind))
        }
        (None, true) if worst.kind.is_kernels() => format!("one lock ({})", self::kind(worst.kind)),
        (None, true) => format!("one lock (a {})", self::kind(worst.kind)),
        (None, false) => format!("one {}", self::kind(worst.kind)),
    };
    let mut text = format!(
        "{}At {to}, {:.0} % of what its threads live they wait for {name}",
        slower(answered),
        worst.part_of_lives * 100.0
    );
    if let Some(at) = worst.taken.first() {
        let word = if worst.kind.has_holder() { "taken" } else { "waited for" };
        text += &format!(", {word} in `{}`", place(&at.site));
    }
    let holder = worst.held.iter().find(|held| held.holding != Holding::Unknown && held.site.is_some());
    if let Some(site) = holder.and_then(|held| held.site.as_ref()) {
        text += &format!(", held in `{}`", place(site));
    }
    text += ".";
    if blame.from != blame.to {
        let work = Work::of(worst.after_s.max(worst.before_s));
        text += &format!(
            " {} {} for it, and {} at {}.",
            work.verb("wait"),
            work.seconds(worst.after_s),
            work.seconds(worst.before_s),
            size(kind, blame.from)
        );
    }
    if let (Some(lock), Some(meeting)) = (lock, meeting)
        && meeting.more_s() > lock.more_s()
    {
        text += &format!(
            " Longer than that, {:.0} %, they wait at a {}{}: for work, or for each other.",
            meeting.part_of_lives * 100.0,
            self::kind(meeting.kind),
            meeting.taken.first().map(|at| format!(" in `{}`", place(&at.site))).unwrap_or_default()
        );
    }
    text
}

/// The sentence that larger sizes are slower; empty if the runs do not show that.
fn slower(answered: &Answered) -> String {
    let study = answered.study;
    let throughputs: Vec<(u32, (f64, f64, f64))> =
        study.measured().filter_map(|size| Some((size.n, size.throughput()?))).collect();
    let best = throughputs.iter().copied().max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0));
    match (best, throughputs.last()) {
        // All runs of the largest size are slower than all runs of the best size.
        (Some((at, (best_median, best_lowest, _))), Some((_, (last_median, _, last_highest))))
            if *last_median < best_median * (1.0 - SLOWER_MIN) && *last_highest < best_lowest =>
        {
            let what = if study.sizes_are == Sizes::Number { "A larger {n}" } else { "Adding CPUs" };
            format!("{what} past {at} makes it slower. ")
        }
        _ => String::new(),
    }
}

/// The sentence on the wake chain.
fn chain(links: &[Link]) -> Vec<Finding> {
    let words = |link: &Link| {
        let waker = match &link.waker {
            Waker::Thread(name) => format!("`{}`", clean(name)),
            Waker::Other(name) => format!("another program, `{}`", clean(name)),
            Waker::Interrupt => "an interrupt: a device or a timer".to_owned(),
        };
        let at = link.at.as_ref().map(|site| format!(" in {}", place(site))).unwrap_or_default();
        format!(
            "`{}` wait {} a run{at} until they are woken by {waker}, which is {:.0} % of their waiting",
            clean(&link.waiter),
            seconds(link.waited_s),
            link.part * 100.0
        )
    };
    match links.is_empty() {
        true => Vec::new(),
        false => vec![("chain", links.iter().map(words).collect::<Vec<_>>().join("; ") + ".")],
    }
}

fn interrupts(answered: &Answered, blame: &Blame) -> Option<Finding> {
    let Interrupts { before_s, after_s, by_cpu, by_source } = blame.interrupts.as_ref()?;
    let kind = answered.study.sizes_are;
    let (worst, most) = by_cpu.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    #[allow(clippy::cast_precision_loss)]
    let mean = by_cpu.iter().map(|(_, part)| part).sum::<f64>() / by_cpu.len().max(1) as f64;
    let mut text = if *most < CPU_MIN {
        format!("At {}, interrupts take hardly any time of the program's CPUs.", size(kind, blame.to))
    } else {
        format!(
            "At {}, interrupts take {} of the program's CPUs, most of CPU {worst}: {}.",
            size(kind, blame.to),
            percent(mean),
            percent(*most)
        )
    };
    if blame.from != blame.to && *most >= CPU_MIN {
        text += &format!(
            " {} {} of that, and {} at {}.",
            Work::of(after_s.max(*before_s)).verb("cost"),
            Work::of(after_s.max(*before_s)).seconds(*after_s),
            Work::of(after_s.max(*before_s)).seconds(*before_s),
            size(kind, blame.from)
        );
    }
    let sources = by_source.iter().take(SOURCES_MAX);
    let sources: Vec<String> =
        sources.map(|(source, rate)| format!("{} ({}/s)", clean(source), number(*rate))).collect();
    if !sources.is_empty() {
        text += &format!(" Most often: {}.", sources.join(", "));
    }
    Some(("interrupts", text))
}

fn disks(answered: &Answered, blame: &Blame) -> Vec<Finding> {
    let kind = answered.study.sizes_are;
    let mut findings = Vec::new();
    for disk in blame.disks.iter().filter(|disk| disk.busy.1 >= DISK_MIN) {
        let mounts = if disk.mounts.is_empty() {
            String::new()
        } else {
            format!(" ({})", disk.mounts.iter().map(|mount| clean(mount)).collect::<Vec<_>>().join(", "))
        };
        let mut text = format!(
            "{}{mounts} is busy {:.0} % of the time at {}; a request takes {}, and there are {} per piece of work.",
            clean(&disk.name),
            disk.busy.1 * 100.0,
            size(kind, blame.to),
            seconds(disk.request_s.1),
            number(disk.requests.1)
        );
        if blame.from != blame.to {
            text += &format!(
                " At {}: {:.0} %, {}, {}.",
                size(kind, blame.from),
                disk.busy.0 * 100.0,
                seconds(disk.request_s.0),
                number(disk.requests.0)
            );
        }
        findings.push((if findings.is_empty() { "disks" } else { "" }, text));
    }
    if let Some((read, written)) = blame.io_bytes.filter(|(read, written)| read + written >= 1.0) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let bytes = |bytes: f64| commonhold_report::figures::bytes(bytes as u64);
        let text =
            format!("A piece of work reads {} from disks, and writes {}.", bytes(read), bytes(written));
        findings.push((if findings.is_empty() { "disks" } else { "" }, text));
    }
    findings
}
