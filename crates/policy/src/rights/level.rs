//! Dividing what one unit is worth, or the machine, among the units directly in it.
//!
//! Problem: each change of a unit asks for values of a few units only, and a level may have thousands. Values may not
//! depend on the way by which the present state was reached.
//!
//! Terms: siblings of one *class* have the same reservation and the same limit in the contract. The *room* of a unit
//! is what it may have beyond its reservation. A unit is *full* if its soft part would exceed its room. `rest` is
//! what all reservations leave, `left` what the full ones leave of that, and `open` the tickets of those that are not
//! full.
//!
//! Algorithm:
//! 1. Reservations are added up by class. If they exceed the value, each has its part of the value, and that is all.
//! 2. All begin as open. Those that are full at `left` by `open` have their room, and are taken out of both. This is
//!    done again until no more are full. In a class the full ones are those with the most tickets, which a tree in
//!    the order of tickets adds up.
//! 3. The others have `left` by their tickets. Parts are rounded by sums: a unit has what is rounded down for all up
//!    to it less the same for all before it. Their order is by class, then as in the class's tree; the encloser's own
//!    processes come last.
//!
//! Properties (tested): parts sum to the value, exactly. Each is off its exact value by less than 1. No unit exceeds
//! its limit.
//!
//! Limits: one value takes as many look-ups in trees as the level has classes, times the rounds of step 2. It is
//! Newton's method on a concave function, from below: what is still to be divided, times the open tickets, falls to a
//! quarter with every round at the latest.

use alloc::collections::BTreeMap;

use commonhold_contract::{Amount, PerResource};

use super::entitlement::Capacity;
use super::ordered::{Entry, Forest, Sums, Tree};

/// The active ones of a level, for one resource: those with one reservation and one limit are in one tree, and none is
/// empty.
pub(super) type Classes = BTreeMap<Terms, Tree>;

/// One class.
type Class<'a> = (&'a Terms, &'a Tree);

/// What a unit has beside its tickets, for one resource. Ordered, for the classes of a level to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Terms {
    limit: Option<Ordered>,
    hard: Option<Ordered>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ordered {
    Part(u64),
    Absolute(u64),
}

impl Ordered {
    fn new(amount: Amount) -> Ordered {
        match amount {
            Amount::Part(part) => Ordered::Part(part),
            Amount::Absolute(amount) => Ordered::Absolute(amount),
        }
    }

    fn amount(self) -> Amount {
        match self {
            Ordered::Part(part) => Amount::Part(part),
            Ordered::Absolute(amount) => Amount::Absolute(amount),
        }
    }
}

impl Terms {
    pub(super) fn new(hard: Option<Amount>, limit: Option<Amount>) -> Terms {
        Terms { hard: hard.map(Ordered::new), limit: limit.map(Ordered::new) }
    }

    /// The first that have a limit.
    const LIMITED: Terms = Terms { limit: Some(Ordered::Part(0)), hard: None };

    pub(super) fn hard(self) -> Option<Amount> {
        self.hard.map(Ordered::amount)
    }

    /// With so much less reserved, in the measure of the reservation: never less than nothing.
    pub(super) fn less(self, lent: u64) -> Terms {
        let hard = self.hard.map(|hard| match hard {
            Ordered::Part(part) => Ordered::Part(part.saturating_sub(lent)),
            Ordered::Absolute(amount) => Ordered::Absolute(amount.saturating_sub(lent)),
        });
        Terms { hard, ..self }
    }

    /// Where a limit may hold, the order is by tickets: the full ones are then the last.
    pub(super) fn by_tickets(self) -> bool {
        self.limit.is_some()
    }

    /// The reservation, and the room beyond it, where so much is divided; no limit is the largest number.
    fn of(self, value: u64, capacity: Capacity) -> (u64, u64) {
        let weigh = |amount: Option<Ordered>| capacity.weigh(amount.map(Ordered::amount), value);
        let limit = weigh(self.limit).unwrap_or(u64::MAX);
        let hard = capacity.weigh_up(self.hard.map(Ordered::amount), value).unwrap_or(0).min(limit);
        (hard, limit - hard)
    }
}

/// What is known of those that hold tickets in a unit, or at the top.
#[derive(Debug, Clone, Default)]
pub(super) struct Level {
    /// How many are active.
    pub(super) active: PerResource<u32>,
    /// These, by class.
    pub(super) classes: PerResource<Classes>,
}

/// Which units are in a class follows from what is known of these.
impl PartialEq for Level {
    fn eq(&self, other: &Level) -> bool {
        let same = |of: fn(&PerResource<Classes>) -> &Classes| {
            of(&self.classes).keys().eq(of(&other.classes).keys())
        };
        self.active == other.active
            && same(|all| &all.cpu)
            && same(|all| &all.memory)
            && same(|all| &all.disk)
            && same(|all| &all.bus)
    }
}

impl Eq for Level {}

/// A level's division of one value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Division<'a> {
    forest: &'a Forest,
    classes: &'a Classes,
    capacity: Capacity,
    value: u64,
    /// The tickets of the encloser's own processes; 0 if it has none.
    own: u64,
    /// All reservations.
    hard: u128,
    /// What the full ones leave of what reservations leave.
    left: u64,
    /// The tickets of those that are not full.
    open: u64,
}

impl<'a> Division<'a> {
    pub(super) fn new(
        forest: &'a Forest,
        classes: &'a Classes,
        capacity: Capacity,
        value: u64,
        own: u64,
    ) -> Self {
        let mut division =
            Division { forest, classes, capacity, value, own, hard: 0, left: value, open: own };
        for (terms, tree) in classes {
            let sums = forest.total(*tree);
            let (hard, _) = terms.of(value, capacity);
            division.hard += u128::from(hard) * u128::from(sums.units);
            division.open += sums.tickets;
        }
        // Only a nested unit whose encloser is worth less than was promised at the least can get there: all shrink
        // alike.
        division.left = match u64::try_from(division.hard) {
            Ok(hard) => value.saturating_sub(hard),
            Err(_) => 0,
        };
        if !division.shrinks() {
            division.fill();
        }
        division
    }

    /// Whether reservations exceed the value.
    fn shrinks(&self) -> bool {
        self.hard > u128::from(self.value)
    }

    /// Step 2. How many rounds it took.
    fn fill(&mut self) -> u32 {
        let (rest, all) = (self.left, self.open);
        for round in 1.. {
            let (mut taken, mut full) = (0, 0);
            for class in self.classes.range(Terms::LIMITED..) {
                let sums = self.full(class);
                if sums.units > 0 {
                    let (_, room) = class.0.of(self.value, self.capacity);
                    // No more than is left: each would have had more.
                    taken += room * sums.units;
                    full += sums.tickets;
                }
            }
            let done = all - full == self.open;
            (self.left, self.open) = (rest - taken, all - full);
            if done || self.open == 0 {
                return round;
            }
        }
        0
    }

    /// The full ones of a class.
    fn full(&self, (terms, tree): Class<'_>) -> Sums {
        let total = self.forest.total(*tree);
        if !terms.by_tickets() {
            return Sums::default();
        }
        if self.open == 0 {
            return total;
        }
        let (_, room) = terms.of(self.value, self.capacity);
        match (u128::from(room) * u128::from(self.open)).checked_div(u128::from(self.left)) {
            Some(most) => total.less(self.forest.up_to(*tree, most)),
            // Nothing is left, so nobody has too much of it.
            None => Sums::default(),
        }
    }

    /// What stays with the encloser: its own processes', and what nobody may take.
    pub(super) fn own(&self) -> u64 {
        if self.shrinks() {
            0
        } else {
            self.left - portion(self.left, u128::from(self.open - self.own), u128::from(self.open))
        }
    }

    /// What one ticket is worth that is not full: what is left, by the tickets. `None`: nobody has any.
    pub(super) fn per_ticket(&self) -> Option<(u64, u64)> {
        (self.open > 0).then_some((self.left, self.open))
    }

    /// What one has that is active, and in the class of those terms.
    pub(super) fn part(&self, terms: Terms, unit: Entry) -> Part {
        let mut before = Before::default();
        for class in self.classes.range(..terms) {
            self.pass(&mut before, class);
        }
        let Some(tree) = self.classes.get(&terms) else { return Part::default() };
        let here = self.forest.before(*tree, unit);
        before.hard += u128::from(terms.of(self.value, self.capacity).0) * u128::from(here.units);
        before.open += here.tickets;
        self.next(&mut before, terms, unit)
    }

    /// Calls `each` with the number and the part of every active one.
    pub(super) fn each(&self, each: &mut dyn FnMut(u64, Part)) {
        let mut before = Before::default();
        for (terms, tree) in self.classes {
            self.forest.each(*tree, &mut |unit| each(unit.id, self.next(&mut before, *terms, unit)));
        }
    }

    /// Goes past all units of a class.
    fn pass(&self, before: &mut Before, class: Class<'_>) {
        let all = self.forest.total(*class.1);
        let (hard, _) = class.0.of(self.value, self.capacity);
        before.hard += u128::from(hard) * u128::from(all.units);
        before.open += all.less(self.full(class)).tickets;
    }

    /// The part of the unit that comes next after those before it.
    fn next(&self, before: &mut Before, terms: Terms, unit: Entry) -> Part {
        let (hard, room) = terms.of(self.value, self.capacity);
        if self.shrinks() {
            let from = before.hard;
            before.hard += u128::from(hard);
            let part = portion(self.value, before.hard, self.hard) - portion(self.value, from, self.hard);
            return Part { hard: part, all: part };
        }
        if unit.tickets == 0 {
            return Part { hard, all: hard };
        }
        let offered = u128::from(unit.tickets) * u128::from(self.left);
        if self.open == 0 || offered > u128::from(room) * u128::from(self.open) {
            return Part { hard, all: hard + room };
        }
        let from = before.open;
        before.open += unit.tickets;
        let up_to = |tickets: u64| portion(self.left, u128::from(tickets), u128::from(self.open));
        Part { hard, all: hard + (up_to(before.open) - up_to(from)) }
    }
}

/// What one has of a division.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    /// What is reserved for it.
    pub(super) hard: u64,
    /// All of it.
    pub(super) all: u64,
}

/// What comes before a unit in the order of rounding.
#[derive(Default)]
struct Before {
    /// Reservations.
    hard: u128,
    /// Tickets of those that are not full.
    open: u64,
}

/// `total` by `part` of `whole`, rounded down; 0 of nothing. `part` is at most `whole`, and `whole` below 2^126.
fn portion(total: u64, part: u128, whole: u128) -> u64 {
    if whole == 0 {
        return 0;
    }
    let quotient = match u128::from(total).checked_mul(part) {
        Some(product) => product / whole,
        None => {
            (0..u64::BITS)
                .rev()
                .fold((0, 0), |(quotient, rest): (u128, u128), bit| {
                    let rest = 2 * rest + if total >> bit & 1 == 1 { part } else { 0 };
                    (2 * quotient + rest / whole, rest % whole)
                })
                .0
        }
    };
    u64::try_from(quotient).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_portion_by_hand() {
        assert_eq!(
            [portion(10, 1, 3), portion(10, 2, 3), portion(10, 3, 3), portion(10, 0, 0)],
            [3, 6, 10, 0]
        );
        // A third of 2^64 - 1 is (2^64 - 1) / 3, whatever the third is a third of.
        assert_eq!(portion(u64::MAX, 1 << 80, 3 << 80), u64::MAX / 3);
        assert_eq!(portion(u64::MAX, 3 << 80, 3 << 80), u64::MAX);
    }

    proptest! {
        /// Both ways of dividing: a fraction that is not reduced needs the long one.
        #[test]
        fn a_portion_is_that_of_the_reduced_fraction(
            total: u64, part in 0u64..1 << 40, more in 1u64..1 << 40, by in 64u32..80,
        ) {
            let (part, whole) = (u128::from(part), u128::from(part) + u128::from(more));
            prop_assert_eq!(portion(total, part << by, whole << by), portion(total, part, whole));
        }
    }

    /// Limits of which each is met only once those before it are, as far as 64 bits can say it: each is as little
    /// below the mean of what is left as the last one's difference, divided among those that remain, allows. By the
    /// bound above, there are no more than (64 + 2 log n) / 2 rounds and one; for 18 units, 37.
    #[test]
    fn rounds_are_few() {
        let mut forest = Forest::default();
        let mut classes = Classes::new();
        let (value, n) = (u64::MAX / 4, 18_u32);
        let (mut left, mut less) = (value, value / u64::from(n));
        for id in 0..n {
            let mean = left / u64::from(n - id);
            let limit = mean - less.min(mean);
            (left, less) = (left - limit, less / u64::from(n - id));
            let mut tree = Tree::new(true);
            forest.insert(&mut tree, Entry { id: u64::from(id), tickets: 1 });
            classes.insert(Terms::new(None, Some(Amount::Absolute(limit))), tree);
        }
        let mut division = Division::new(&forest, &classes, Capacity::Known(value), value, 0);
        (division.left, division.open) = (value, u64::from(n));
        let rounds = division.fill();
        assert!((12..=37).contains(&rounds), "{rounds} rounds");
    }
}
