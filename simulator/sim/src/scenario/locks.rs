//! Deadlocks that can be read from a workload's text.
//!
//! Terms: a program *holds* a lock between the first and the last step of a `lock` step, also while a program that it
//! started runs.
//!
//! Algorithm: one pass over each program's steps with the locks held at each. A `run` step counts as taking every lock of
//! the program it runs.
//! - A lock that is taken while the same program holds it can never be granted.
//! - Where a lock is taken while another is held, an edge leads from the held lock to the other. Along a cycle of edges,
//!   processes may wait for each other.
//! - A barrier for several processes, reached with an exclusive lock held, waits for processes that need that lock.
//!
//! Limits: a warning is given for two programs whose locks form a cycle, even if they never run at the same time.

use std::collections::BTreeMap;

use commonhold_contract::Diagnostic;

use super::check::{RELATED_MAX, Subject};
use super::cycles::{Edge, walk};
use super::demand::Demand;
use super::model::Op;

/// A step: its program and its place among the program's steps.
type Step = (usize, usize);

/// The edges, (held lock, taken lock), each with the first step that takes the second while the first is held.
type Pairs = BTreeMap<(u16, u16), Step>;

/// Finds locks that a process would wait for forever.
pub(crate) fn check(subject: &Subject, demands: &[Demand]) -> Vec<Diagnostic> {
    let (mut found, mut pairs) = (Vec::new(), Pairs::new());
    for (program, place) in subject.places.programs.iter().enumerate() {
        // Where steps are missing, the locks held are unknown.
        if !place.partial {
            found.extend(of_program(subject, program, demands, &mut pairs));
        }
    }
    found.extend(circles(subject, &pairs));
    found
}

fn of_program(subject: &Subject, program: usize, demands: &[Demand], pairs: &mut Pairs) -> Vec<Diagnostic> {
    // The locks that are held, each with the step that took it.
    let mut held: Vec<(u16, bool, usize)> = Vec::new();
    let mut found = Vec::new();
    let mut take = |lock: u16, step: usize, held: &[(u16, bool, usize)]| {
        for (other, _, _) in held.iter().filter(|(other, _, _)| *other != lock) {
            pairs.entry((*other, lock)).or_insert((program, step));
        }
        held.iter().find(|(other, _, _)| *other == lock).map(|(_, _, since)| *since)
    };
    for (step, op) in subject.workload.programs[program].ops.iter().enumerate() {
        match *op {
            Op::Acquire { lock, read } => {
                if let Some(since) = take(lock, step, &held) {
                    found.push(taken_twice(subject, lock, (program, since), (program, step), None));
                }
                found.extend(reader_of_no_readers(subject, lock, read, (program, step)));
                held.push((lock, read, step));
            }
            Op::Release { .. } => {
                held.pop();
            }
            Op::Run { program: child, .. } if !held.is_empty() => {
                for lock in &demands[usize::from(child)].locks {
                    if let Some(since) = take(*lock, step, &held) {
                        let child = subject.workload.programs[usize::from(child)].name.as_str();
                        found.push(taken_twice(
                            subject,
                            *lock,
                            (program, since),
                            (program, step),
                            Some(child),
                        ));
                    }
                }
            }
            Op::Barrier { parties, .. } if parties > 1 => {
                let exclusive = held.iter().find(|(lock, read, _)| !(*read && readers(subject, *lock)));
                found.extend(
                    exclusive
                        .map(|(lock, _, since)| barrier(subject, *lock, (program, *since), (program, step))),
                );
            }
            _ => {}
        }
    }
    found
}

fn name<'a>(subject: &'a Subject, lock: u16) -> &'a str {
    &subject.workload.locks[usize::from(lock)].name
}

fn readers(subject: &Subject, lock: u16) -> bool {
    subject.workload.locks[usize::from(lock)].readers
}

/// Readers are no exception: the second read may queue behind a writer that waits for the first to end.
fn taken_twice(subject: &Subject, lock: u16, since: Step, again: Step, child: Option<&str>) -> Diagnostic {
    let lock = name(subject, lock);
    let message = match child {
        None => format!("lock `{lock}` is taken while it is held: its holder would wait for itself"),
        Some(child) => format!("lock `{lock}` is held while program `{child}` runs, which takes it too"),
    };
    let diagnostic = Diagnostic::error("deadlock", subject.step(again.0, again.1), message);
    let help = match child {
        None => "remove one of the two `lock` steps",
        Some(_) => "end the `lock` step before the run",
    };
    diagnostic.related(subject.step(since.0, since.1), "taken here").help(help)
}

fn reader_of_no_readers(subject: &Subject, lock: u16, read: bool, step: Step) -> Option<Diagnostic> {
    let message = format!(
        "lock `{}` has no readers: a process that reads holds it alone all the same",
        name(subject, lock)
    );
    let help = "write `readers = true` in the lock, or remove `read` here";
    (read && !readers(subject, lock))
        .then(|| Diagnostic::warning("no-readers", subject.step(step.0, step.1), message).help(help))
}

fn barrier(subject: &Subject, lock: u16, since: Step, step: Step) -> Diagnostic {
    let message = format!(
        "the barrier waits for others while lock `{}` is held; they need that lock to reach the barrier",
        name(subject, lock)
    );
    let diagnostic = Diagnostic::error("deadlock", subject.step(step.0, step.1), message);
    diagnostic
        .related(subject.step(since.0, since.1), "taken here")
        .help("move the barrier out of the `lock` step")
}

/// Locks that are taken in a circle.
fn circles(subject: &Subject, pairs: &Pairs) -> Vec<Diagnostic> {
    let mut graph: Vec<Vec<Edge<(u16, Step)>>> = Vec::new();
    graph.resize_with(subject.workload.locks.len(), Vec::new);
    for ((held, taken), step) in pairs {
        graph[usize::from(*held)].push(Edge { to: usize::from(*taken), origin: (*held, *step) });
    }
    walk(&graph).cycles.iter().map(|cycle| circle(subject, cycle)).collect()
}

fn circle(subject: &Subject, cycle: &[(u16, Step)]) -> Diagnostic {
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
