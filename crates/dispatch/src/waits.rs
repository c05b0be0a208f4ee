//! What had a CPU while tasks waited for it: reads the scheduler's tables of pairs of units (`waits.h`).

use crate::tables::{Pair, Pairs};

/// Empties one half, 0 or 1, of a CPU's table of pairs. Calls `each` with the waiting unit, the unit that had
/// the CPU, and the time in ns.
///
/// # Safety
/// `pairs` points to a table, which nothing but this call changes at the same time in this half.
pub(crate) unsafe fn take_pairs(pairs: *mut Pairs, half: usize, mut each: impl FnMut(u32, u32, u64)) {
    // SAFETY: the caller's promise; plain integers, so every state is a value.
    unsafe {
        let used = &raw mut (*pairs).used[half];
        if used.read_volatile() == 0 {
            return;
        }
        used.write_volatile(0);
        let first = (&raw mut (*pairs).halves[half]).cast::<Pair>();
        for at in 0..crate::tables::PAIRS {
            let Pair { key, ns, .. } = first.add(at).read_volatile();
            if key != 0 {
                first.add(at).write_volatile(Pair::default());
                each(key >> 16, key & 0xffff, ns);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the numbers are small")]
mod tests {
    use std::collections::BTreeMap;
    use std::ptr;

    use super::*;
    use crate::tables::native::World;
    use crate::tables::{Account, Cpu, History, Holder, INTERVALS, NOBODY, Near, Occupancy, Rescues, Rules};

    unsafe extern "C" {
        fn dispatch_waits_begin(world: *mut World, unit: u32);
        fn dispatch_waits_stop(world: *mut World);
        fn dispatch_waits_higher(world: *mut World, from: u64);
        fn dispatch_waits_end(world: *mut World, waiter: u32, since: u64);
    }

    /// What had the CPU in the model: a unit, or the number of units for a higher class.
    type Occupant = u32;

    /// One CPU, and beside it a plain list of what had it.
    struct Machine {
        world: World,
        accounts: Vec<Account>,
        cpu: Box<Cpu>,
        history: Box<History>,
        occupancies: Vec<Occupancy>,
        pairs: Box<Pairs>,
        units: u32,
        model: Vec<(u64, u64, Occupant)>,
        /// The parts of all waits by the model: by the waiter, and by the other unit or the holder.
        expected: BTreeMap<(u32, Result<u32, usize>), u64>,
        random: u64,
    }

    impl Machine {
        fn new(units: u32, seed: u64) -> Box<Machine> {
            let near = Near { cache: NOBODY, node: NOBODY, socket: NOBODY };
            let rules = Rules { units, cpus: 1, ..Rules::default() };
            let mut machine = Box::new(Machine {
                world: World {
                    rules,
                    now: 1,
                    pass: 0,
                    rescues: Rescues::default(),
                    loan_pass: 0,
                    units: ptr::null_mut(),
                    accounts: ptr::null_mut(),
                    cpus: ptr::null_mut(),
                    histories: ptr::null_mut(),
                    occupancies: ptr::null_mut(),
                    pairs: ptr::null_mut(),
                    idle: ptr::null_mut(),
                    masks: ptr::null_mut(),
                    groups: ptr::null_mut(),
                    queued: ptr::null_mut(),
                    waits: ptr::null_mut(),
                    words: 0,
                    idling: 0,
                    here: NOBODY,
                    disciplined: 0,
                    seated: 0,
                    away: 0,
                    gated: 0,
                    unused: 0,
                    gates: ptr::null_mut(),
                    random: 1,
                },
                accounts: vec![Account::default(); units as usize],
                cpu: Box::new(Cpu::new(near)),
                history: Box::new(History::EMPTY),
                occupancies: vec![Occupancy::default(); units as usize + 1],
                pairs: Box::new(Pairs::EMPTY),
                units,
                model: Vec::new(),
                expected: BTreeMap::new(),
                random: seed | 1,
            });
            machine.world.accounts = machine.accounts.as_mut_ptr();
            machine.world.cpus = &raw mut *machine.cpu;
            machine.world.histories = &raw mut *machine.history;
            machine.world.occupancies = machine.occupancies.as_mut_ptr();
            machine.world.pairs = &raw mut *machine.pairs;
            machine
        }

        /// A random number below `end`.
        fn below(&mut self, end: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 16) % end
        }

        /// A task runs for a while.
        fn run(&mut self, unit: u32, ns: u64) {
            let from = self.world.now;
            // SAFETY: the world's tables are this machine's, here and below.
            unsafe { dispatch_waits_begin(&raw mut self.world, unit) };
            self.world.now += ns;
            // SAFETY: as above.
            unsafe { dispatch_waits_stop(&raw mut self.world) };
            match self.model.last_mut() {
                Some((_, until, occupant)) if *until == from && *occupant == unit => *until += ns,
                _ => self.push(from, unit),
            }
        }

        /// Adds an interval until now. An empty one before it is not kept.
        fn push(&mut self, from: u64, occupant: Occupant) {
            self.model.pop_if(|(from, until, _)| from == until);
            self.model.push((from, self.world.now, occupant));
        }

        /// The CPU idles.
        fn idle(&mut self, ns: u64) {
            self.world.now += ns;
        }

        /// A higher class has the CPU for a while.
        fn higher(&mut self, ns: u64) {
            let from = self.world.now;
            self.world.now += ns;
            // SAFETY: as above.
            unsafe { dispatch_waits_higher(&raw mut self.world, from) };
            self.push(from, self.units);
        }

        /// A task that has waited since this time is dispatched.
        fn end_wait(&mut self, waiter: u32, since: u64) {
            // SAFETY: as above.
            unsafe { dispatch_waits_end(&raw mut self.world, waiter, since) };
            let (now, units) = (self.world.now, self.units);
            let oldest = self.model.len().checked_sub(INTERVALS).map_or(0, |at| self.model[at].0);
            let known = since.max(oldest);
            let mut add = |part, ns| *self.expected.entry((waiter, part)).or_default() += ns;
            add(Err(Holder::Unknown as usize), known - since);
            let mut idle = now - known;
            for (from, until, occupant) in self.model.iter().rev().take_while(|(_, until, _)| *until > known)
            {
                let ns = until - from.max(&known);
                idle -= ns;
                match *occupant {
                    unit if unit == waiter => add(Err(Holder::Own as usize), ns),
                    unit if unit == units => add(Err(Holder::Higher as usize), ns),
                    unit => add(Ok(unit), ns),
                }
            }
            add(Err(Holder::Idle as usize), idle);
        }

        /// All parts as the scheduler counted them.
        fn counted(&mut self) -> BTreeMap<(u32, Result<u32, usize>), u64> {
            let mut counted = BTreeMap::new();
            for (waiter, account) in (0..).zip(&self.accounts) {
                for (holder, ns) in account.waited_for_ns.iter().enumerate() {
                    counted.insert((waiter, Err(holder)), *ns);
                }
            }
            // SAFETY: as above.
            unsafe {
                take_pairs(&raw mut *self.pairs, 0, |waiter, runner, ns| {
                    assert!(counted.insert((waiter, Ok(runner)), ns).is_none(), "a pair is listed twice");
                });
            }
            counted.retain(|_, ns| *ns > 0);
            counted
        }

        fn expected(&mut self) -> BTreeMap<(u32, Result<u32, usize>), u64> {
            self.expected.retain(|_, ns| *ns > 0);
            self.expected.clone()
        }

        /// Lets random things happen.
        fn play(&mut self, steps: u32, gaps: u64) {
            let units = u64::from(self.units);
            for _ in 0..steps {
                let (unit, ns) = (self.below(units) as u32, self.below(50));
                match self.below(20) {
                    0 => self.higher(1 + ns),
                    way if way < gaps => self.idle(ns),
                    _ => self.run(unit, ns),
                }
                if self.below(3) == 0 {
                    let scale = [40, 1_000, 12_000][self.below(3) as usize];
                    let since = self.world.now.saturating_sub(1 + self.below(scale)).max(1);
                    if since < self.world.now {
                        let waiter = self.below(units) as u32;
                        self.end_wait(waiter, since);
                    }
                }
            }
        }
    }

    /// Whatever happens on a CPU, the parts of all waits are those of a plain list of intervals. Waits longer
    /// than the ring are included.
    #[test]
    fn parts_are_those_of_a_plain_list() {
        for seed in 1..200 {
            for (units, gaps) in [(2, 3), (3, 10), (6, 2)] {
                let mut machine = Machine::new(units, seed * 0x9e37_79b9);
                machine.play(1_500, gaps);
                assert_eq!(machine.counted(), machine.expected(), "seed {seed}, {units} units");
            }
        }
    }

    #[test]
    fn a_wait_before_the_oldest_interval_is_unknown_up_to_it() {
        let mut machine = Machine::new(4, 1);
        for at in 0..2 * INTERVALS {
            machine.run(2 + (at % 2) as u32, 10);
        }
        machine.end_wait(2, 1);
        let counted = machine.counted();
        let half = (INTERVALS * 10) as u64;
        assert_eq!(counted[&(2, Err(Holder::Unknown as usize))], half);
        assert_eq!(counted[&(2, Err(Holder::Own as usize))], half / 2);
        assert_eq!(counted[&(2, Ok(3))], half / 2);
        assert_eq!(counted, machine.expected());
    }

    #[test]
    fn a_higher_class_is_no_unit() {
        let mut machine = Machine::new(4, 1);
        machine.run(2, 10);
        machine.idle(3);
        machine.higher(20);
        machine.end_wait(3, 5);
        assert_eq!(
            machine.counted(),
            BTreeMap::from([
                ((3, Ok(2)), 6),
                ((3, Err(Holder::Idle as usize)), 3),
                ((3, Err(Holder::Higher as usize)), 20),
            ])
        );
    }

    /// More pairs than the table has room for: the rest is unknown, and nothing is lost or counted twice.
    #[test]
    fn pairs_without_room_are_unknown() {
        let mut machine = Machine::new(600, 1);
        for unit in 2..600 {
            let since = machine.world.now;
            machine.run(unit, 10);
            machine.end_wait(1, since);
        }
        let counted = machine.counted();
        let unknown = counted[&(1, Err(Holder::Unknown as usize))];
        assert!(unknown >= 10 * (598 - crate::tables::PAIRS as u64) && unknown < 5_000, "{unknown}");
        assert_eq!(counted.values().sum::<u64>(), 5_980);
        // It was emptied, and has room again.
        let since = machine.world.now;
        machine.run(2, 10);
        machine.end_wait(1, since);
        assert_eq!(machine.counted()[&(1, Ok(2))], 10);
    }
}
