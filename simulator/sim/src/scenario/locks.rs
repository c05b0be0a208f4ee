//! Finds deadlocks from a workload's text alone.
//!
//! Terms: a program *holds* a lock from the first to the last step inside a `lock` step, also while a program
//! that it started runs, except during a `wait` step with that lock.
//!
//! Algorithm: one pass over each program's steps keeps the set of held locks. A `run` step counts as taking
//! every lock of the program that it runs.
//! - A program that takes a lock twice waits for itself forever: an error.
//! - A program that takes lock B while it holds lock A adds an edge from A to B. On a cycle of edges,
//!   processes may wait for each other: a warning (lock-order inversion).
//! - A barrier for several processes inside an exclusive lock waits for processes that need that lock: an
//!   error.
//!
//! Limits: two programs whose locks form a cycle get a warning even if they never run at the same time.

use std::collections::BTreeMap;

use commonhold_contract::Diagnostic;

use super::check::{RELATED_MAX, Subject};
use super::cycles::{Edge, walk};
use super::demand::Demand;
use super::model::Op;

/// A step: the indices of its program and of the step in the program.
type Step = (usize, usize);

/// The edges (held lock, taken lock), each with the first step that takes the second lock while the first is
/// held.
type LockOrder = BTreeMap<(u16, u16), Step>;

/// Reports locks for which a process would wait forever, and orders of locks in which it might.
pub(crate) fn check(subject: &Subject, demands: &[Demand]) -> Vec<Diagnostic> {
    let (mut diagnostics, mut order) = (Vec::new(), LockOrder::new());
    for (program, place) in subject.places.programs.iter().enumerate() {
        // Where steps are missing, the locks held are unknown.
        if !place.partial {
            diagnostics.extend(check_program(subject, program, demands, &mut order));
        }
    }
    diagnostics.extend(inversions(subject, &order));
    diagnostics
}

/// Checks one program, and adds its pairs of locks to `order`.
fn check_program(
    subject: &Subject,
    program: usize,
    demands: &[Demand],
    order: &mut LockOrder,
) -> Vec<Diagnostic> {
    // The held locks: the lock, whether it is held as a reader, and the step that took it.
    let mut held: Vec<(u16, bool, usize)> = Vec::new();
    let mut diagnostics = Vec::new();
    // A step that takes a lock again which the `wait` step before it did not hold: reported already.
    let mut unheld = None;
    // Records the order of `lock` after each held lock; returns the step that took the same lock before, if
    // any.
    let mut take = |lock: u16, step: usize, held: &[(u16, bool, usize)]| {
        for (other, _, _) in held.iter().filter(|(other, _, _)| *other != lock) {
            order.entry((*other, lock)).or_insert((program, step));
        }
        held.iter().find(|(other, _, _)| *other == lock).map(|(_, _, taken_at)| *taken_at)
    };
    for (step, op) in subject.workload.programs[program].ops.iter().enumerate() {
        match *op {
            Op::Acquire { .. } if unheld == Some(step) => {}
            Op::Acquire { lock, read } => {
                if let Some(taken_at) = take(lock, step, &held) {
                    diagnostics.push(taken_twice(subject, lock, (program, taken_at), (program, step), None));
                }
                diagnostics.extend(read_of_exclusive_lock(subject, lock, read, (program, step)));
                held.push((lock, read, step));
            }
            Op::Release { lock } => {
                if let Some(index) = held.iter().rposition(|(other, _, _)| *other == lock) {
                    held.remove(index);
                }
            }
            // The next op takes the lock again.
            Op::Wait { lock: Some(lock), .. } => {
                if let Some(index) = held.iter().rposition(|(other, _, _)| *other == lock) {
                    let (_, read, taken_at) = held.remove(index);
                    let is_reader = read && allows_readers(subject, lock);
                    let wrong = || wait_of_reader(subject, lock, (program, taken_at), (program, step));
                    diagnostics.extend(is_reader.then(wrong));
                } else {
                    diagnostics.push(wait_without_lock(subject, lock, (program, step)));
                    unheld = Some(step + 1);
                }
            }
            Op::Run { program: child, .. } if !held.is_empty() => {
                for lock in &demands[child as usize].locks {
                    if let Some(taken_at) = take(*lock, step, &held) {
                        let child = subject.workload.programs[child as usize].name.as_str();
                        let (first, second) = ((program, taken_at), (program, step));
                        diagnostics.push(taken_twice(subject, *lock, first, second, Some(child)));
                    }
                }
            }
            Op::Barrier { parties, event: None, .. } if parties > 1 => {
                let exclusive =
                    held.iter().find(|(lock, read, _)| !(*read && allows_readers(subject, *lock)));
                diagnostics.extend(exclusive.map(|(lock, _, taken_at)| {
                    barrier_in_lock(subject, *lock, (program, *taken_at), (program, step))
                }));
            }
            _ => {}
        }
    }
    diagnostics
}

fn name<'a>(subject: &'a Subject, lock: u16) -> &'a str {
    &subject.workload.locks[usize::from(lock)].name
}

fn allows_readers(subject: &Subject, lock: u16) -> bool {
    subject.workload.locks[usize::from(lock)].readers
}

/// The error of a lock that is taken at step `first` and again at step `second`, by the program itself or by
/// the `child` that it runs. Readers are no exception: the second read may queue behind a writer that waits
/// for the first to end.
fn taken_twice(subject: &Subject, lock: u16, first: Step, second: Step, child: Option<&str>) -> Diagnostic {
    let lock = name(subject, lock);
    let message = match child {
        None => format!("lock `{lock}` is taken while it is held: its holder would wait for itself"),
        Some(child) => format!("lock `{lock}` is held while program `{child}` runs, which takes it too"),
    };
    let diagnostic = Diagnostic::error("deadlock", subject.step(second.0, second.1), message);
    let help = match child {
        None => "remove one of the two `lock` steps",
        Some(_) => "end the `lock` step before the run",
    };
    diagnostic.related(subject.step(first.0, first.1), "taken here").help(help)
}

/// The error of a `wait` step that gives up a lock which the process does not hold.
fn wait_without_lock(subject: &Subject, lock: u16, step: Step) -> Diagnostic {
    let lock = name(subject, lock);
    let message = format!("the step gives up lock `{lock}` while it waits, and does not hold it");
    let help = format!("write the step within {{ lock = \"{lock}\", do = [..] }}, or remove its `lock`");
    Diagnostic::error("not-held", subject.step(step.0, step.1), message).help(help)
}

/// The error of a `wait` step whose lock is held as a reader.
fn wait_of_reader(subject: &Subject, lock: u16, taken_at: Step, step: Step) -> Diagnostic {
    let message = format!(
        "the step gives up lock `{}` while it waits, and the lock is held as a reader",
        name(subject, lock)
    );
    let help = "take the lock without `read`: a process that waits for an event changes what the lock guards";
    let diagnostic = Diagnostic::error("not-held", subject.step(step.0, step.1), message).help(help);
    diagnostic.related(subject.step(taken_at.0, taken_at.1), "taken here")
}

/// A warning if a step takes a lock as a reader though the lock has no `readers`.
fn read_of_exclusive_lock(subject: &Subject, lock: u16, read: bool, step: Step) -> Option<Diagnostic> {
    let message = format!(
        "lock `{}` has no readers: a process that reads holds it alone all the same",
        name(subject, lock)
    );
    let help = "write `readers = true` in the lock, or remove `read` here";
    (read && !allows_readers(subject, lock))
        .then(|| Diagnostic::warning("no-readers", subject.step(step.0, step.1), message).help(help))
}

/// The error of a barrier at `step` while the lock that step `taken_at` took is held.
fn barrier_in_lock(subject: &Subject, lock: u16, taken_at: Step, step: Step) -> Diagnostic {
    let message = format!(
        "the barrier waits for others while lock `{}` is held; they need that lock to reach the barrier",
        name(subject, lock)
    );
    let diagnostic = Diagnostic::error("deadlock", subject.step(step.0, step.1), message);
    diagnostic
        .related(subject.step(taken_at.0, taken_at.1), "taken here")
        .help("move the barrier out of the `lock` step")
}

/// A warning for each cycle of locks.
fn inversions(subject: &Subject, order: &LockOrder) -> Vec<Diagnostic> {
    let mut graph: Vec<Vec<Edge<(u16, Step)>>> = Vec::new();
    graph.resize_with(subject.workload.locks.len(), Vec::new);
    for ((held, taken), step) in order {
        graph[usize::from(*held)].push(Edge { to: usize::from(*taken), origin: (*held, *step) });
    }
    walk(&graph).cycles.iter().map(|cycle| inversion(subject, cycle)).collect()
}

/// The warning for one cycle: for each lock of the cycle, the step that takes the next lock while it is held.
fn inversion(subject: &Subject, cycle: &[(u16, Step)]) -> Diagnostic {
    let mut names: Vec<&str> = cycle.iter().map(|(held, _)| name(subject, *held)).collect();
    names.extend(names.first().copied());
    let (_, (program, step)) = cycle.last().copied().unwrap_or_default();
    let message =
        format!("locks are taken in a circle, {}: processes may wait for each other", names.join(" -> "));
    let diagnostic = Diagnostic::warning("lock-order", subject.step(program, step), message)
        .help("take them in the same order everywhere");
    let others = &cycle[..cycle.len().saturating_sub(1)];
    others.iter().take(RELATED_MAX).zip(names.iter().skip(1)).fold(
        diagnostic,
        |diagnostic, ((held, (program, step)), taken)| {
            let label = format!("`{taken}` while `{}` is held", name(subject, *held));
            diagnostic.related(subject.step(*program, *step), label)
        },
    )
}
