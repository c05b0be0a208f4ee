//! Reads a program's steps, and flattens nested lists of steps into one list of [`Op`]s.
//!
//! `{ lock = .., do = [..] }` becomes `Acquire`, the steps, `Release`. `{ repeat = .., do = [..] }` becomes
//! the steps and `Again`, which jumps back to the first of these steps. `{ pieces = .., do = [..] }` becomes
//! the steps between two `Piece`s. `{ wait = .., lock = .. }` becomes `Wait`, which releases the lock, and
//! `Acquire`. Beside each op stands its position in the text, for messages.

use commonhold_contract::document::{Document, article};
use commonhold_contract::{Diagnostic, nearest, quantity};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{STEPS, Table};
use super::limits::{NESTING_MAX, TIMES_MAX};
use super::model::{Amount, LOOPS_MAX, Op, Spread};
use super::values::{Entry, Names, Span, missing, number, number_32};
use crate::Time;

/// The declared names that a step may refer to.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) files: Names,
    pub(crate) locks: Names,
    pub(crate) events: Names,
    pub(crate) timers: Names,
    pub(crate) programs: Names,
}

/// The steps of a program.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) ops: Vec<Op>,
    /// The position of each op in the text.
    pub(crate) places: Vec<Span>,
    /// Some steps could not be read. Checks that depend on all steps are then skipped.
    pub(crate) partial: bool,
}

/// Reads the list of a program's steps.
pub(crate) fn read(document: &mut Document, known: &Known, list: &Entry) -> Steps {
    let mut reader = Reader { document, known, steps: Steps::default(), nesting: 0, loops: 0 };
    reader.list(list);
    reader.steps
}

struct Reader<'d, 't> {
    document: &'d mut Document<'t>,
    known: &'d Known,
    steps: Steps,
    /// The number of lists of steps that enclose the current step.
    nesting: usize,
    /// The number of loops that enclose the current step.
    loops: usize,
}

/// One step as a table of the text.
struct Step<'e, 'a> {
    /// The key that says what the step does, such as `cpu`.
    verb: &'static str,
    /// The step's position in the text.
    at: Span,
    entries: &'e [Entry<'a>],
}

impl<'e, 'a> Step<'e, 'a> {
    fn find(&self, name: &str) -> Option<&'e Entry<'a>> {
        self.entries.iter().find(|entry| entry.key.name == name)
    }
}

impl Reader<'_, '_> {
    /// Reads a list of steps, and appends its ops.
    fn list(&mut self, entry: &Entry) {
        let Some(list) = entry.value.get_ref().as_array() else {
            self.document.wrong_type(entry, "a list of steps");
            self.steps.partial = true;
            return;
        };
        if list.is_empty() {
            let span = self.document.span(entry.value);
            let diagnostic = Diagnostic::error("no-steps", span, "there are no steps in the list");
            self.document.report(diagnostic.help("write at least one: { cpu = \"1ms\" }"));
            self.steps.partial = true;
        }
        self.nesting += 1;
        for value in list {
            self.step(value);
        }
        self.nesting -= 1;
    }

    fn step(&mut self, value: &Spanned<DeValue>) {
        let Some(table) = value.get_ref().as_table() else {
            let span = self.document.span(value);
            let message = format!("a step must be a table, not {}", article(value.get_ref()));
            let help = "for example: { cpu = \"10ms\" }";
            self.document.report(Diagnostic::error("wrong-type", span, message).help(help));
            self.steps.partial = true;
            return;
        };
        let at = self.document.span(value);
        let Some((verb, keys)) = self.verb(table, &at) else {
            self.steps.partial = true;
            return;
        };
        let entries = self.document.entries(keys, table);
        let read = self.read_step(&Step { verb, at, entries: &entries });
        self.steps.partial |= read.is_none();
    }

    /// Finds the key that says what the step does, with the table of keys of such steps. Reports a step with
    /// no such key or with two.
    fn verb(&mut self, table: &DeTable, at: &Span) -> Option<(&'static str, &'static Table)> {
        let mut verbs = STEPS.iter().filter(|(verb, _)| table.contains_key(*verb));
        let Some((verb, keys)) = verbs.next() else {
            self.report_no_verb(table, at);
            return None;
        };
        if let Some((second, _)) = verbs.find(|(second, _)| keys.key(second).is_none()) {
            let message = format!("a step does one thing, and this one has both `{verb}` and `{second}`");
            let place = table.get_key_value(*second).map_or(at.clone(), |(key, _)| self.document.span(key));
            let help = format!("write two steps: {{ {verb} = .. }}, {{ {second} = .. }}");
            self.document.report(Diagnostic::error("two-verbs", place, message).help(help));
            return None;
        }
        Some((*verb, *keys))
    }

    /// Reports a step without a verb. If the step has a key that no step has, the message suggests the verb
    /// most like that key.
    fn report_no_verb(&mut self, table: &DeTable, at: &Span) {
        let verbs: Vec<&str> = STEPS.iter().map(|(verb, _)| *verb).collect();
        let mut help = format!("a step has one of the keys {}", verbs.join(", "));
        let is_known = |name: &str| STEPS.iter().any(|(_, keys)| keys.key(name).is_some());
        let mistyped = table.iter().filter(|(name, _)| !is_known(name.get_ref()));
        let meant =
            mistyped.filter_map(|(name, _)| Some((name, nearest(name.get_ref(), verbs.iter().copied())?)));
        // The table sorts its keys by name; the verb is usually the first key in the text.
        let meant = meant.min_by_key(|(name, _)| name.span().start);
        let place = meant.map_or(at.clone(), |(name, _)| self.document.span(name));
        if let Some((_, verb)) = meant {
            help = format!("did you mean `{verb}`? {help}");
        }
        let message = "the step does not say what it does";
        self.document.report(Diagnostic::error("no-verb", place, message).help(help));
    }

    /// Reads a step, and appends its ops. `None` if the step could not be read in full.
    fn read_step(&mut self, step: &Step) -> Option<()> {
        let verb = step.find(step.verb)?;
        let op = match step.verb {
            "wait" => return self.wait(step, verb),
            "lock" => return self.locked(step, verb),
            "repeat" => return self.repeated(step, verb),
            "pieces" => return self.pieces(step, verb),
            "cpu" => self.cpu(step, verb),
            "sleep" => self.amount(step, Some(verb)).map(|span| Op::Sleep { span }),
            "busy" => self.amount(step, Some(verb)).map(|span| Op::Busy { span }),
            "timer" => self.timer(step, verb),
            "signal" => self.signal(step, verb),
            "read" | "write" => self.transfer(step, verb),
            "metadata" => self.metadata(step, verb),
            "run" => self.run(step, verb),
            _ => self.barrier(step, verb),
        };
        self.push(op?, step.at.clone());
        Some(())
    }

    fn push(&mut self, op: Op, place: Span) {
        self.steps.ops.push(op);
        self.steps.places.push(place);
    }

    /// The index that the next op will have.
    fn next_index(&self) -> u32 {
        // A text with more steps than `u32::MAX` would not fit in memory.
        u32::try_from(self.steps.ops.len()).unwrap_or(u32::MAX)
    }

    fn cpu(&mut self, step: &Step, verb: &Entry) -> Option<Op> {
        let work = self.amount(step, Some(verb));
        let kernel = self.number_32(step, "kernel", 0);
        let bus_per_ms = self.number_32(step, "bus", 0);
        let core = self.number_32(step, "core", 0);
        let cache_bytes = step.find("cache").map_or(Some(0), |entry| number(self.document, entry));
        let (bus_per_ms, cache_bytes, core) = (bus_per_ms?, cache_bytes?, core?);
        Some(Op::Cpu { work: work?, kernel: kernel?, bus_per_ms, cache_bytes, core })
    }

    fn timer(&mut self, step: &Step, verb: &Entry) -> Option<Op> {
        let timer = self.known.timers.find(self.document, verb);
        let period = step.find("period");
        if period.is_none() {
            missing(self.document, step.at.clone(), "the `timer` step", "period", "\"20ms\"");
        }
        let period_ns = period.and_then(|entry| number(self.document, entry));
        let catch_up = self.switch(step, "catch_up");
        Some(Op::Timer { timer: timer?, period_ns: period_ns?, catch_up: catch_up? })
    }

    fn signal(&mut self, step: &Step, verb: &Entry) -> Option<Op> {
        let event = self.known.events.find(self.document, verb);
        let all = self.switch(step, "all");
        Some(Op::Signal { event: event?, all: all? })
    }

    /// Reads a `wait` step: an op that waits, and one that takes the lock again.
    fn wait(&mut self, step: &Step, verb: &Entry) -> Option<()> {
        let event = self.known.events.find(self.document, verb);
        let lock = match step.find("lock") {
            None => None,
            Some(entry) => Some(self.known.locks.find(self.document, entry)?),
        };
        self.push(Op::Wait { event: event?, lock }, step.at.clone());
        if let Some(lock) = lock {
            self.push(Op::Acquire { lock, read: false }, step.at.clone());
        }
        Some(())
    }

    fn metadata(&mut self, step: &Step, verb: &Entry) -> Option<Op> {
        let file = self.known.files.find(self.document, verb);
        let delayed = self.switch(step, "delayed");
        Some(Op::Metadata { file: file?, delayed: delayed? })
    }

    fn transfer(&mut self, step: &Step, verb: &Entry) -> Option<Op> {
        let file = self.known.files.find(self.document, verb);
        if step.find("bytes").is_none() {
            let owner = format!("the `{}` step", step.verb);
            missing(self.document, step.at.clone(), &owner, "bytes", "\"16KiB\"");
        }
        let bytes = self.amount(step, step.find("bytes"));
        let random = self.switch(step, "random");
        let sync = self.switch(step, "sync");
        let direct = self.switch(step, "direct");
        let (file, bytes, random, direct) = (file?, bytes?, random?, direct?);
        Some(match step.verb {
            "read" => Op::Read { file, bytes, random, direct },
            _ => Op::Write { file, bytes, random, sync: sync?, direct },
        })
    }

    fn run(&mut self, step: &Step, verb: &Entry) -> Option<Op> {
        let program = self.known.programs.find(self.document, verb);
        let times = self.number_32(step, "times", 1)?;
        let beside = self.switch(step, "beside")?;
        let at_once = self.number_32(step, "at_once", if beside { times } else { 1 })?;
        if at_once > times {
            let entry = step.find("at_once")?;
            let message = format!("{at_once} runs at once are more than the {times} in all");
            let help = format!("write `times = {at_once}`, or a smaller `at_once`");
            let span = self.document.span(entry.value);
            self.document.report(Diagnostic::error("at-once-above-times", span, message).help(help));
        }
        if beside && at_once < times {
            let entry = step.find("at_once")?;
            let message =
                format!("runs beside the next steps begin all at once, and not {at_once} at a time");
            let span = self.document.span(entry.value);
            let help = "remove `at_once`";
            self.document.report(Diagnostic::error("beside-at-once", span, message).help(help));
        }
        Some(Op::Run { program: u32::from(program?), times, at_once, beside })
    }

    fn barrier(&mut self, step: &Step, verb: &Entry) -> Option<Op> {
        let parties = number_32(self.document, verb);
        let spins = self.switch(step, "spin");
        let spin_for = step.find("spin_for");
        if let Some(entry) = spin_for.filter(|_| spins == Some(false)) {
            let message = "the processes sleep at once: the step has `spin_for` without `spin`";
            let span = self.document.span(entry.value);
            let help = "add `spin = true`, or remove `spin_for`";
            self.document.report(Diagnostic::warning("spin-for-without-spin", span, message).help(help));
        }
        let most_ns = spin_for.map_or(Some(Time::MAX), |entry| number(self.document, entry));
        let spin_ns = most_ns.filter(|_| spins == Some(true)).unwrap_or(0);
        let event = match step.find("at") {
            None => None,
            Some(entry) => Some(self.known.events.find(self.document, entry)?),
        };
        Some(Op::Barrier { parties: parties?, event, spin_ns })
    }

    /// Reads a `lock` step. If the lock is unknown, the inner steps are still read, for their mistakes.
    fn locked(&mut self, step: &Step, verb: &Entry) -> Option<()> {
        let lock = self.known.locks.find(self.document, verb);
        let is_reader = self.switch(step, "read");
        let place = self.document.span(verb.value);
        let lock_and_mode = lock.zip(is_reader);
        if let Some((lock, read)) = lock_and_mode {
            self.push(Op::Acquire { lock, read }, place.clone());
        }
        self.body(step)?;
        let (lock, _) = lock_and_mode?;
        self.push(Op::Release { lock }, place);
        Some(())
    }

    fn repeated(&mut self, step: &Step, verb: &Entry) -> Option<()> {
        let times = self.times(verb);
        let place = self.document.span(verb.value);
        if self.loops == LOOPS_MAX {
            let message = format!("this loop is inside {LOOPS_MAX} others");
            let help =
                format!("nest at most {LOOPS_MAX} loops: move the inner ones into a program, and run it");
            self.document.report(Diagnostic::error("too-deep", place, message).help(help));
            return None;
        }
        let counter = u8::try_from(self.loops).unwrap_or(u8::MAX);
        let span_ns = step.find("for").map(|entry| number(self.document, entry));
        if span_ns.is_some() {
            self.push(Op::Begin { counter }, place.clone());
        }
        let to = self.next_index();
        self.loops += 1;
        let body = self.body(step);
        self.loops -= 1;
        body?;
        if self.next_index() > to {
            if let Some(span_ns) = span_ns {
                self.push(Op::Over { counter, span_ns: span_ns? }, place.clone());
            }
            self.push(Op::Again { to, times: times?, counter }, place);
        }
        Some(())
    }

    /// Reads a `pieces` step: an op before the steps, and one after them, each of which takes a piece.
    fn pieces(&mut self, step: &Step, verb: &Entry) -> Option<()> {
        let pieces = number_32(self.document, verb);
        let place = self.document.span(verb.value);
        if self.loops > 0 {
            let message =
                "`pieces` is inside a loop: a job has one supply of pieces, and the second time none is left";
            let help = "move the loop into `do`, or run a program with `job = true` for each time";
            self.document.report(Diagnostic::error("pieces-in-loop", place.clone(), message).help(help));
        }
        let first = self.steps.ops.len();
        self.push(Op::Piece { pieces: 0, to: 0, past: 0 }, place.clone());
        let body = self.body(step);
        let to = u32::try_from(first + 1).unwrap_or(u32::MAX);
        let past = self.next_index().saturating_add(1);
        let op = Op::Piece { pieces: pieces.unwrap_or(0), to, past };
        self.steps.ops[first] = op;
        self.push(op, place);
        body.zip(pieces).map(|_| ())
    }

    /// The number of iterations of a loop; 0 for "forever".
    fn times(&mut self, verb: &Entry) -> Option<u32> {
        match verb.value.get_ref() {
            DeValue::String(word) if word == "forever" => Some(0),
            DeValue::Integer(_) => {
                self.document.count(verb, 1..=TIMES_MAX).and_then(|times| u32::try_from(times).ok())
            }
            _ => {
                self.document.wrong_type(verb, "a whole number or \"forever\"");
                None
            }
        }
    }

    /// Reads the inner steps of a `lock` or `repeat` step. `None` if `do` is missing or nested too deep.
    fn body(&mut self, step: &Step) -> Option<()> {
        let Some(list) = step.find("do") else {
            let owner = format!("the `{}` step", step.verb);
            missing(self.document, step.at.clone(), &owner, "do", "[{ cpu = \"1ms\" }]");
            return None;
        };
        if self.nesting == NESTING_MAX {
            let message = format!("these steps are nested {} deep", NESTING_MAX + 1);
            let help = format!("nest at most {NESTING_MAX} deep");
            let span = self.document.span(list.value);
            self.document.report(Diagnostic::error("too-deep", span, message).help(help));
            return None;
        }
        self.list(list);
        Some(())
    }

    /// An amount: the mean from `entry`, and the step's `spread`. `None` if the entry is missing or either is
    /// wrong.
    fn amount(&mut self, step: &Step, entry: Option<&Entry>) -> Option<Amount> {
        let spread = step.find("spread").map_or(Some(Spread::None), |entry| self.spread(entry));
        let mean = number(self.document, entry?);
        Some(Amount { mean: mean?, spread: spread? })
    }

    fn spread(&mut self, entry: &Entry) -> Option<Spread> {
        let text = self.document.string(entry, "a percentage, or \"exponential\"")?;
        if text == "exponential" {
            return Some(Spread::Exponential);
        }
        if !text.trim_start().starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.') {
            return self.document.choice(entry, &["exponential", "20%"]).map(|_| Spread::Exponential);
        }
        match quantity::part(text) {
            Ok(0) => Some(Spread::None),
            Ok(part) => u32::try_from(part).ok().map(Spread::Uniform),
            Err(problem) => {
                self.document.problem("quantity", entry.value, text, problem);
                None
            }
        }
    }

    fn number_32(&mut self, step: &Step, name: &str, default: u32) -> Option<u32> {
        step.find(name).map_or(Some(default), |entry| number_32(self.document, entry))
    }

    /// The value of a switch; off if the step lacks the key, `None` if the value is wrong.
    fn switch(&mut self, step: &Step, name: &str) -> Option<bool> {
        step.find(name).map_or(Some(false), |entry| self.document.switch(entry))
    }
}
