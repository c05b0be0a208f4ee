//! Follows the events of a recording: what ran on each CPU, and what each thread waited for.
//!
//! The kernel does not report every switch on every machine. A thread that leaves a CPU on which another one
//! was seen last shows that a switch is missing: the other one has left, at an unknown time up to now.

use std::collections::HashMap;

use commonhold_recording::{Event, Left, Thread};

/// CPUs with higher numbers are not followed: a damaged recording may name any.
const CPUS_MAX: u32 = 1 << 14;
/// The most threads that are followed at a time.
const THREADS_MAX: usize = 1 << 20;

/// What an event ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// A thread left a CPU.
    Ran {
        /// The thread.
        thread: u32,
        /// The CPU.
        cpu: u32,
        /// When it began to run.
        from_ns: u64,
        /// Why it left; `None` if that was not seen.
        left: Option<Left>,
    },
    /// A thread got a CPU for which it had waited.
    Waited {
        /// The thread.
        thread: u32,
        /// The CPU.
        cpu: u32,
        /// Since when it was runnable.
        from_ns: u64,
        /// Whether a wake-up began the wait; otherwise it was preempted.
        woken: bool,
        /// The thread that left the CPU; 0: the CPU was idle.
        before: u32,
    },
}

/// A thread.
#[derive(Debug, Default)]
struct Followed {
    unit: String,
    name: String,
    /// Since when it is runnable, and whether a wake-up made it so.
    ready: Option<(u64, bool)>,
}

/// The state of all CPUs and threads.
#[derive(Debug, Default)]
pub(super) struct Follower {
    /// By CPU: the thread that runs there, and since when.
    cpus: Vec<Option<(u32, u64)>>,
    threads: HashMap<u32, Followed>,
    /// The number of switches that are missing.
    pub(super) missing: u64,
}

impl Follower {
    /// Notes the unit and the name of a thread.
    pub(super) fn know(&mut self, thread: &Thread) {
        if let Some(followed) = self.thread(thread.tid) {
            followed.unit.clone_from(&thread.unit);
            followed.name.clone_from(&thread.name);
        }
    }

    /// A thread's unit; empty if it is in no unit.
    pub(super) fn unit(&self, thread: u32) -> &str {
        self.threads.get(&thread).map_or("", |followed| &followed.unit)
    }

    /// A thread's name; empty if it is not known.
    pub(super) fn name(&self, thread: u32) -> &str {
        self.threads.get(&thread).map_or("", |followed| &followed.name)
    }

    /// The thread that runs on a CPU now; 0 if the CPU is idle or not known.
    pub(super) fn running(&self, cpu: u32) -> u32 {
        self.cpus.get(cpu as usize).copied().flatten().map_or(0, |(thread, _)| thread)
    }

    /// Follows an event, and reports what it ended.
    pub(super) fn event(&mut self, at_ns: u64, event: &Event, mut report: impl FnMut(&Follower, Ended)) {
        match *event {
            Event::Switch { cpu, from, left, to } => {
                if cpu >= CPUS_MAX {
                    return;
                }
                self.leave(at_ns, cpu, from, left, &mut report);
                self.enter(at_ns, cpu, from, to, &mut report);
            }
            Event::Wake { thread, .. } => {
                let is_running = self.cpus.iter().flatten().any(|(running, _)| *running == thread);
                if let Some(followed) = self.thread(thread).filter(|_| !is_running) {
                    followed.ready.get_or_insert((at_ns, true));
                }
            }
            Event::Fork { parent, child } => {
                let (unit, name) = (self.unit(parent).to_owned(), self.name(parent).to_owned());
                if let Some(followed) = self.thread(child) {
                    *followed = Followed { unit, name, ready: None };
                }
            }
            Event::Transfer { .. } => {}
        }
    }

    fn leave(
        &mut self,
        at_ns: u64,
        cpu: u32,
        from: u32,
        left: Left,
        report: &mut impl FnMut(&Follower, Ended),
    ) {
        match self.place(cpu).take() {
            Some((thread, from_ns)) if thread == from => {
                report(self, Ended::Ran { thread, cpu, from_ns, left: Some(left) });
            }
            Some((thread, from_ns)) => {
                self.missing += 1;
                report(self, Ended::Ran { thread, cpu, from_ns, left: None });
            }
            None => {}
        }
        let ready = (left == Left::Preempted).then_some((at_ns, false));
        if left == Left::Ended {
            self.threads.remove(&from);
        } else if let Some(followed) = self.thread(from) {
            followed.ready = ready;
        }
    }

    fn enter(
        &mut self,
        at_ns: u64,
        cpu: u32,
        before: u32,
        to: u32,
        report: &mut impl FnMut(&Follower, Ended),
    ) {
        let ready = self.thread(to).and_then(|followed| followed.ready.take());
        if let Some((from_ns, woken)) = ready {
            report(self, Ended::Waited { thread: to, cpu, from_ns, woken, before });
        }
        *self.place(cpu) = (to != 0).then_some((to, at_ns));
    }

    fn place(&mut self, cpu: u32) -> &mut Option<(u32, u64)> {
        let index = cpu as usize;
        if self.cpus.len() <= index {
            self.cpus.resize(index + 1, None);
        }
        &mut self.cpus[index]
    }

    /// A thread, which is followed from now on; `None` for the idle task, or if too many are followed.
    fn thread(&mut self, tid: u32) -> Option<&mut Followed> {
        if tid == 0 || self.threads.len() >= THREADS_MAX && !self.threads.contains_key(&tid) {
            return None;
        }
        Some(self.threads.entry(tid).or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn thread(tid: u32, unit: &str) -> Thread {
        Thread { tid, pid: tid, name: format!("t{tid}"), unit: unit.to_owned(), seen_ns: 0 }
    }

    fn follow(events: &[(u64, Event)]) -> Vec<Ended> {
        let mut follower = Follower::default();
        follower.know(&thread(7, "light"));
        let mut all = Vec::new();
        for (at_ns, event) in events {
            follower.event(*at_ns, event, |_, ended| all.push(ended));
        }
        all
    }

    #[test]
    fn bursts_and_waits_are_found() {
        let switch = |from, left, to| Event::Switch { cpu: 1, from, left, to };
        let all = follow(&[
            (0, switch(0, Left::Preempted, 9)),
            (10, Event::Wake { cpu: 0, thread: 7, by: 3 }),
            (30, switch(9, Left::Preempted, 7)),
            (50, switch(7, Left::Asleep, 9)),
        ]);
        let nine = Ended::Ran { thread: 9, cpu: 1, from_ns: 0, left: Some(Left::Preempted) };
        let waited = Ended::Waited { thread: 7, cpu: 1, from_ns: 10, woken: true, before: 9 };
        let seven = Ended::Ran { thread: 7, cpu: 1, from_ns: 30, left: Some(Left::Asleep) };
        let again = Ended::Waited { thread: 9, cpu: 1, from_ns: 30, woken: false, before: 7 };
        assert_eq!(all, [nine, waited, seven, again]);
    }

    #[test]
    fn a_missing_switch_ends_a_burst() {
        let all = follow(&[
            (0, Event::Switch { cpu: 0, from: 0, left: Left::Preempted, to: 7 }),
            (20, Event::Switch { cpu: 0, from: 8, left: Left::Asleep, to: 0 }),
        ]);
        assert_eq!(all, [Ended::Ran { thread: 7, cpu: 0, from_ns: 0, left: None }]);
    }

    #[test]
    fn a_child_is_in_its_parents_unit() {
        let mut follower = Follower::default();
        follower.know(&thread(7, "light"));
        follower.event(1, &Event::Fork { parent: 7, child: 8 }, |_, _| {});
        assert_eq!((follower.unit(8), follower.name(8)), ("light", "t7"));
    }

    proptest! {
        /// Whatever the events are, bursts of a CPU do not overlap.
        #[test]
        fn bursts_of_a_cpu_do_not_overlap(
            steps in prop::collection::vec((0_u32..3, 0_u32..5, 0_u32..5, 0_u8..4, 0_u8..4), 0..200)
        ) {
            let mut follower = Follower::default();
            let mut ends = [0_u64; 3];
            for (at, (cpu, from, to, left, kind)) in steps.into_iter().enumerate() {
                let left = [Left::Preempted, Left::Asleep, Left::Blocked, Left::Ended][left as usize];
                let event = match kind {
                    0 => Event::Wake { cpu, thread: to, by: from },
                    1 => Event::Fork { parent: from, child: to },
                    _ => Event::Switch { cpu, from, left, to },
                };
                let at_ns = at as u64;
                let mut overlaps = false;
                follower.event(at_ns, &event, |_, ended| {
                    if let Ended::Ran { cpu, from_ns, .. } = ended {
                        overlaps |= from_ns < ends[cpu as usize];
                        ends[cpu as usize] = at_ns;
                    }
                });
                prop_assert!(!overlaps);
            }
        }
    }
}
