//! Dividing the worth of a unit, or of the machine, among the units directly in it.
//!
//! Problem: a change affects the values of a few units only, while a level may have thousands. And values
//! must not depend on how the present state was reached.
//!
//! Terms: siblings of one *class* have the same reservation and the same limit in the contract. A unit's
//! *room* is what it may have beyond its reservation. A unit is *full* if its soft part would exceed its
//! room. `rest` is what remains after all reservations, `left` what the full units leave of that, and `open`
//! the number of tickets of units that are not full.
//!
//! Algorithm:
//! 1. Sum the reservations by class. If they exceed the value, scale them down in proportion, and stop.
//! 2. Start with every unit open. Units that are full at a price of `left` per `open` get their room, and are
//!    taken out of both. Repeat until no more are full. Within a class, the full units are those with the
//!    most tickets, summed by a tree in the order of tickets.
//! 3. The others share `left` by their tickets. Rounding is by prefix sums: a unit gets the rounded-down sum
//!    up to and including it, less the rounded-down sum before it. Units are ordered by class, then as in the
//!    class's tree; the encloser's own processes come last.
//!
//! Properties (tested): parts sum to the value exactly. Each is within 1 of its exact value. No unit exceeds
//! its limit.
//!
//! Cost: one value takes one tree lookup per class and per round of step 2. Step 2 is Newton's method on a
//! concave function, from below: the product of what is still to be divided and the open tickets falls to a
//! quarter or less each round.

use alloc::collections::BTreeMap;

use commonhold_contract::{Amount, PerResource, Resource};

use super::entitlement::Capacity;
use super::ordered::{Entry, Forest, Sums, Tree};

/// The active units of a level for one resource, by class. No tree is empty.
pub(super) type Classes = BTreeMap<Terms, Tree>;

/// One class.
type Class<'a> = (&'a Terms, &'a Tree);

/// A unit's reservation and limit for one resource. Ordered, so that classes have a defined order of
/// rounding.
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

    /// The first class with a limit.
    const LIMITED: Terms = Terms { limit: Some(Ordered::Part(0)), hard: None };

    pub(super) fn hard(self) -> Option<Amount> {
        self.hard.map(Ordered::amount)
    }

    /// The reservation reduced by `lent`, in its own measure; at least 0.
    pub(super) fn less(self, lent: u64) -> Terms {
        let hard = self.hard.map(|hard| match hard {
            Ordered::Part(part) => Ordered::Part(part.saturating_sub(lent)),
            Ordered::Absolute(amount) => Ordered::Absolute(amount.saturating_sub(lent)),
        });
        Terms { hard, ..self }
    }

    /// Classes with a limit are ordered by tickets, so that the full units come last.
    pub(super) fn by_tickets(self) -> bool {
        self.limit.is_some()
    }

    /// The reservation and the room beyond it when `value` is divided. No limit counts as a limit of
    /// `u64::MAX`.
    fn hard_and_room(self, value: u64, capacity: Capacity) -> (u64, u64) {
        let weigh = |amount: Option<Ordered>| capacity.weigh(amount.map(Ordered::amount), value);
        let limit = weigh(self.limit).unwrap_or(u64::MAX);
        let hard = capacity.weigh_up(self.hard.map(Ordered::amount), value).unwrap_or(0).min(limit);
        (hard, limit - hard)
    }
}

/// Sums over the holders of tickets in a unit, or at the top.
#[derive(Debug, Clone, Default)]
pub(super) struct Level {
    /// The number of active holders.
    pub(super) active: PerResource<u32>,
    /// The active holders by class.
    pub(super) classes: PerResource<Classes>,
}

/// Compares counts and class keys only: the members of a class follow from the units themselves.
impl PartialEq for Level {
    fn eq(&self, other: &Level) -> bool {
        let same = |resource| self.classes[resource].keys().eq(other.classes[resource].keys());
        self.active == other.active && Resource::ALL.into_iter().all(same)
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
    /// Tickets of the encloser's own processes; 0 if it has none.
    own: u64,
    /// The sum of all reservations.
    hard: u128,
    /// What reservations and full units leave.
    left: u64,
    /// The tickets of units that are not full, own processes included.
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
            let (hard, _) = terms.hard_and_room(value, capacity);
            division.hard += u128::from(hard) * u128::from(sums.units);
            division.open += sums.tickets;
        }
        // Reservations of the machine fit by contract. A nested unit's may not, if its encloser is worth less
        // than it is guaranteed.
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

    /// Step 2. Returns the number of rounds.
    fn fill(&mut self) -> u32 {
        let (rest, all) = (self.left, self.open);
        for round in 1.. {
            let (mut taken, mut full) = (0, 0);
            for class in self.classes.range(Terms::LIMITED..) {
                let sums = self.full(class);
                if sums.units > 0 {
                    let (_, room) = class.0.hard_and_room(self.value, self.capacity);
                    // At most `rest`: each full unit's soft part would have exceeded its room.
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

    /// Sums over the full units of a class.
    fn full(&self, (terms, tree): Class<'_>) -> Sums {
        let total = self.forest.total(*tree);
        if !terms.by_tickets() {
            return Sums::default();
        }
        if self.open == 0 {
            return total;
        }
        let (_, room) = terms.hard_and_room(self.value, self.capacity);
        match (u128::from(room) * u128::from(self.open)).checked_div(u128::from(self.left)) {
            Some(most) => total.less(self.forest.up_to(*tree, most)),
            // Nothing is left to divide, so no unit exceeds its room.
            None => Sums::default(),
        }
    }

    /// What stays with the encloser: its own processes' part, and what limits leave over.
    pub(super) fn own(&self) -> u64 {
        if self.shrinks() {
            0
        } else {
            self.left - portion(self.left, u128::from(self.open - self.own), u128::from(self.open))
        }
    }

    /// The price of a ticket as a ratio: what is left, and the open tickets. `None` if no holder is open.
    pub(super) fn per_ticket(&self) -> Option<(u64, u64)> {
        (self.open > 0).then_some((self.left, self.open))
    }

    /// The part of an active unit in the class of `terms`.
    pub(super) fn part(&self, terms: Terms, unit: Entry) -> Part {
        let mut before = Before::default();
        for class in self.classes.range(..terms) {
            self.pass(&mut before, class);
        }
        let Some(tree) = self.classes.get(&terms) else { return Part::default() };
        let here = self.forest.before(*tree, unit);
        before.hard += u128::from(terms.hard_and_room(self.value, self.capacity).0) * u128::from(here.units);
        before.open += here.tickets;
        self.next(&mut before, terms, unit)
    }

    /// Calls `each` with the number and part of every active unit.
    pub(super) fn each(&self, each: &mut dyn FnMut(u64, Part)) {
        let mut before = Before::default();
        for (terms, tree) in self.classes {
            self.forest.each(*tree, &mut |unit| each(unit.id, self.next(&mut before, *terms, unit)));
        }
    }

    /// Advances past all units of a class.
    fn pass(&self, before: &mut Before, class: Class<'_>) {
        let all = self.forest.total(*class.1);
        let (hard, _) = class.0.hard_and_room(self.value, self.capacity);
        before.hard += u128::from(hard) * u128::from(all.units);
        before.open += all.less(self.full(class)).tickets;
    }

    /// The part of the next unit in order, and advances past it.
    fn next(&self, before: &mut Before, terms: Terms, unit: Entry) -> Part {
        let (hard, room) = terms.hard_and_room(self.value, self.capacity);
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

/// A unit's part of a division.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    /// The reserved part.
    pub(super) hard: u64,
    /// The whole part.
    pub(super) all: u64,
}

/// Prefix sums over the units before one, in the order of rounding.
#[derive(Default)]
struct Before {
    /// Their reservations.
    hard: u128,
    /// Tickets of those among them that are not full.
    open: u64,
}

/// `total * part / whole`, rounded down; 0 if `whole` is 0. `part` is at most `whole`, and `whole` below
/// 2^126.
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
        /// Compares both ways of dividing: an unreduced fraction overflows and needs long division.
        #[test]
        fn a_portion_is_that_of_the_reduced_fraction(
            total: u64, part in 0u64..1 << 40, more in 1u64..1 << 40, by in 64u32..80,
        ) {
            let (part, whole) = (u128::from(part), u128::from(part) + u128::from(more));
            prop_assert_eq!(portion(total, part << by, whole << by), portion(total, part, whole));
        }
    }

    /// Limits each of which is met only after those before it, to the resolution of 64 bits: each lies as
    /// little below the mean of what is left as the last difference, divided among the remaining units,
    /// allows. By the bound above there are at most (64 + 2 log n) / 2 + 1 rounds; for 18 units, 37.
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
