//! Turns the flat list of a thread's events, in which `lock` and `unlock` stand apart, into nested steps.
//!
//! Limits: a mutex is unlocked in the list, of the thread or of a phase that repeats, in which it was locked,
//! and mutexes are unlocked in reverse order. Other orders are errors, since steps cannot say them.

use commonhold_contract::Span;

use crate::draft::{Found, Step, Times};

/// The most mutexes that a thread holds at once.
const HELD_MAX: usize = 24;

/// The mutex that an export invents for a wait without a lock, since rt-app has no such wait.
pub(super) fn private_mutex(event: &str) -> String {
    format!("{event}-mutex")
}

/// An event at its position.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) at: Span,
    pub(super) event: Flat,
}

/// An event, or a phase that repeats.
#[derive(Debug)]
pub(super) enum Flat {
    Step(Step),
    Lock(String),
    Unlock(String),
    /// Waits for an event; `signals`: it first signals the event, as `sync` does.
    Wait {
        event: String,
        mutex: String,
        signals: bool,
    },
    Loop(Times, Vec<Placed>),
}

/// The steps of a list. `held`: the mutexes that the thread holds before it.
pub(super) fn structure(list: Vec<Placed>, held: &mut Vec<String>, found: &mut Found) -> Vec<Step> {
    let mut steps = Vec::new();
    // The mutexes locked in this list: where, and the steps before.
    let mut open: Vec<(Span, Vec<Step>)> = Vec::new();
    let outer = held.len();
    for Placed { at, event } in list {
        match event {
            Flat::Step(step) => steps.push(step),
            Flat::Loop(times, list) => {
                let steps_of_loop = structure(list, held, found);
                if !steps_of_loop.is_empty() {
                    steps.push(Step::Repeat { times, steps: steps_of_loop });
                }
            }
            Flat::Lock(mutex) if held.contains(&mutex) => {
                let message = format!("mutex `{mutex}` is locked again: the thread would wait for itself");
                found.error("deadlock", &at, message, "unlock it before, or remove this `lock`");
            }
            Flat::Lock(_) if held.len() == HELD_MAX => {
                let message = format!("the thread holds {HELD_MAX} mutexes already");
                found.error("too-deep", &at, message, "unlock some before");
            }
            Flat::Lock(mutex) => {
                open.push((at, core::mem::take(&mut steps)));
                held.push(mutex);
            }
            Flat::Unlock(mutex) => {
                if held.len() > outer
                    && held.last() == Some(&mutex)
                    && let Some((_, before)) = open.pop()
                {
                    held.pop();
                    let inside = core::mem::replace(&mut steps, before);
                    if let [Step::Wait { event, lock: Some(given_up) }] = &inside[..]
                        && *given_up == mutex
                        && mutex == private_mutex(event)
                    {
                        steps.push(Step::Wait { event: event.clone(), lock: None });
                        continue;
                    }
                    // A lock that is released at once still waits for the other holder.
                    let inside = if inside.is_empty() { vec![Step::Cpu(1)] } else { inside };
                    steps.push(Step::Lock { lock: mutex, steps: inside });
                } else {
                    refuse_unlock(&mutex, &at, held, outer, found);
                }
            }
            Flat::Wait { event, mutex, signals } => {
                steps.extend(wait(event, mutex, signals, &at, held, found));
            }
        }
    }
    for ((at, before), mutex) in open.into_iter().zip(held.drain(outer..)).rev() {
        let message = format!("mutex `{mutex}` is still locked where the thread or its repeated phase ends");
        found.error("not-unlocked", &at, message, "unlock it in the same phase");
        steps.splice(0..0, before);
    }
    steps
}

fn refuse_unlock(mutex: &str, at: &Span, held: &[String], outer: usize, found: &mut Found) {
    let (message, help) = match held.iter().position(|other| other == mutex) {
        None => (
            format!("mutex `{mutex}` is unlocked, and this thread has not locked it"),
            "lock it before, in the same phase",
        ),
        Some(index) if index < outer => (
            format!("mutex `{mutex}` is unlocked in a phase that repeats, and was locked before that phase"),
            "lock and unlock it in the same phase",
        ),
        Some(_) => (
            format!(
                "mutex `{mutex}` is unlocked before `{}`, which was locked later",
                held.last().map_or("", String::as_str)
            ),
            "unlock mutexes in reverse order: the simulator's locks are nested",
        ),
    };
    found.error("bad-unlock", at, message, help);
}

/// The steps of a `wait` or `sync` event.
fn wait(
    event: String,
    mutex: String,
    signals: bool,
    at: &Span,
    held: &[String],
    found: &mut Found,
) -> Vec<Step> {
    let is_held = held.contains(&mutex);
    let signal = signals.then(|| Step::Signal { event: event.clone(), all: false });
    let signal = signal.into_iter();
    if is_held {
        return signal.chain([Step::Wait { event, lock: Some(mutex) }]).collect();
    }
    if signals {
        // As rt-app's tutorial says. Its code neither locks nor unlocks.
        let steps = signal.chain([Step::Wait { event, lock: Some(mutex.clone()) }]).collect();
        return vec![Step::Lock { lock: mutex, steps }];
    }
    found.remark(
        "wait-unlocked",
        at,
        format!("the thread has not locked mutex `{mutex}`, and waits without a lock"),
    );
    vec![Step::Wait { event, lock: None }]
}
