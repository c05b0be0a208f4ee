//! Dividing the worth of a unit, or of the machine, among the units directly in it.
//!
//! Problem: a level may have thousands of units, while often only the values of a few units are needed, so a
//! value must not cost a visit to all units. And values must not depend on how the present state was reached.
//!
//! Terms: siblings of one *class* have the same reservation and the same limit. A unit's *room* is the amount
//! that the unit may have beyond its reservation: limit minus reservation. A unit is *full* if its part by
//! tickets would exceed its room. `rest` is the value less all reservations. `left` is `rest` less the rooms
//! of all full units. `open` is the number of tickets of all units that are not full.
//!
//! Algorithm:
//! 1. Sum the reservations by class. If they exceed the value, scale them down in proportion, and stop.
//! 2. Start with no unit full. The price of a ticket is `left` / `open`. Units whose tickets are worth more
//!    than their room at this price are full, and get their room: subtract their rooms from `left` and their
//!    tickets from `open`. Repeat until no further unit is full. Within a class, the full units are those
//!    with the most tickets; a tree in the order of tickets sums them.
//! 3. The other units divide `left` in proportion to their tickets. Rounding is by prefix sums: a unit gets
//!    the rounded-down sum of all parts up to and including its own, less the rounded-down sum of the parts
//!    before its own. Units are ordered by class, then as in the class's tree; the encloser's own processes
//!    come last.
//!
//! Properties (tested): parts sum to the value exactly. Each part is within 1 of its exact value. No unit
//! exceeds its limit.
//!
//! Cost: one value takes one tree lookup per class and per round of step 2. Step 2 is Newton's method on a
//! concave function, from below: each round reduces the product of `left` and `open` to a quarter or less.

use alloc::collections::BTreeMap;

use commonhold_contract::{Amount, PerResource, Resource};

use super::entitlement::Capacity;
use super::ordered::{Entry, Forest, Sums, Tree};

/// The active units of a level for one resource, by class. No tree is empty.
pub(super) type Classes = BTreeMap<Terms, Tree>;

/// One class and its units.
type Class<'a> = (&'a Terms, &'a Tree);

/// A unit's reservation and limit for one resource: the key of its class. Ordered, so that rounding visits
/// the classes in a defined order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Terms {
    limit: Option<Ordered>,
    hard: Option<Ordered>,
}

/// An [`Amount`] that can be ordered.
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

    /// The same terms with the reservation reduced by `lent`, which is in the reservation's measure; at
    /// least 0.
    pub(super) fn less(self, lent: u64) -> Terms {
        let hard = self.hard.map(|hard| match hard {
            Ordered::Part(part) => Ordered::Part(part.saturating_sub(lent)),
            Ordered::Absolute(amount) => Ordered::Absolute(amount.saturating_sub(lent)),
        });
        Terms { hard, ..self }
    }

    /// Whether the class's tree is ordered by tickets. The trees of classes with a limit are, so that full
    /// units come last in them.
    pub(super) fn by_tickets(self) -> bool {
        self.limit.is_some()
    }

    /// A unit's reservation and room when `value` is divided. Without a limit, the limit counts as
    /// `u64::MAX`.
    fn hard_and_room(self, value: u64, capacity: Capacity) -> (u64, u64) {
        let weigh = |amount: Option<Ordered>| capacity.weigh(amount.map(Ordered::amount), value);
        let limit = weigh(self.limit).unwrap_or(u64::MAX);
        let hard = capacity.weigh_up(self.hard.map(Ordered::amount), value).unwrap_or(0).min(limit);
        (hard, limit - hard)
    }
}

/// The active holders of tickets of one currency: the units directly in the issuing unit, and units that hold
/// lots of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Level {
    /// The number of active holders.
    pub(super) active: PerResource<u32>,
    /// The active holders by class.
    pub(super) classes: PerResource<Classes>,
}

/// Compares counts and class keys only: the units of a class follow from [`super::Rights`]' units and lots.
impl PartialEq for Level {
    fn eq(&self, other: &Level) -> bool {
        let same_keys = |resource| self.classes[resource].keys().eq(other.classes[resource].keys());
        self.active == other.active && Resource::ALL.into_iter().all(same_keys)
    }
}

impl Eq for Level {}

/// The division of one value among a level's units.
#[derive(Debug, Clone, Copy)]
pub(super) struct Division<'a> {
    forest: &'a Forest,
    classes: &'a Classes,
    capacity: Capacity,
    value: u64,
    /// Tickets of the encloser's own processes; 0 if it has no processes.
    own_tickets: u64,
    /// The sum of all reservations.
    hard: u128,
    /// The amount that remains after reservations and the rooms of full units.
    left: u64,
    /// The tickets of units that are not full, including `own_tickets`.
    open: u64,
}

impl<'a> Division<'a> {
    pub(super) fn new(
        forest: &'a Forest,
        classes: &'a Classes,
        capacity: Capacity,
        value: u64,
        own_tickets: u64,
    ) -> Self {
        let (hard, left, open) = (0, value, own_tickets);
        let mut division = Division { forest, classes, capacity, value, own_tickets, hard, left, open };
        for (terms, tree) in classes {
            let sums = forest.total(*tree);
            let (hard, _) = terms.hard_and_room(value, capacity);
            division.hard += u128::from(hard) * u128::from(sums.units);
            division.open += sums.tickets;
        }
        // If the contract fits the machine, the top-level reservations do. But the reservations inside a unit
        // may exceed the unit's worth while the unit has less than it is guaranteed.
        division.left = match u64::try_from(division.hard) {
            Ok(hard) => value.saturating_sub(hard),
            Err(_) => 0,
        };
        if !division.is_overcommitted() {
            division.find_full();
        }
        division
    }

    /// Whether reservations exceed the value, and so are scaled down.
    fn is_overcommitted(&self) -> bool {
        self.hard > u128::from(self.value)
    }

    /// Step 2: finds the full units, and computes `left` and `open`. Returns the number of rounds.
    fn find_full(&mut self) -> u32 {
        let (rest, all_tickets) = (self.left, self.open);
        for round in 1.. {
            let (mut rooms, mut full_tickets) = (0, 0);
            for class in self.classes.range(Terms::LIMITED..) {
                let full = self.full(class);
                if full.units > 0 {
                    let (_, room) = class.0.hard_and_room(self.value, self.capacity);
                    // The sum is at most `rest`: each full unit's part by tickets would have exceeded its
                    // room.
                    rooms += room * full.units;
                    full_tickets += full.tickets;
                }
            }
            let is_stable = all_tickets - full_tickets == self.open;
            (self.left, self.open) = (rest - rooms, all_tickets - full_tickets);
            if is_stable || self.open == 0 {
                return round;
            }
        }
        0
    }

    /// Sums over the full units of a class, at the present price of `left` per `open`.
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
            Some(tickets_that_fit) => total.less(self.forest.up_to(*tree, tickets_that_fit)),
            // Nothing is left to divide, so no unit exceeds its room.
            None => Sums::default(),
        }
    }

    /// The amount that stays with the encloser: the part of its own processes, and the amount that no unit
    /// may take because of limits.
    pub(super) fn own(&self) -> u64 {
        if self.is_overcommitted() {
            0
        } else {
            let tickets_of_units = self.open - self.own_tickets;
            self.left - portion(self.left, u128::from(tickets_of_units), u128::from(self.open))
        }
    }

    /// The price of a ticket, as a fraction: `left` and `open`. `None` if there is no ticket of a unit that
    /// is not full.
    pub(super) fn per_ticket(&self) -> Option<(u64, u64)> {
        (self.open > 0).then_some((self.left, self.open))
    }

    /// The part of an active unit in the class of `terms`.
    pub(super) fn part(&self, terms: Terms, unit: Entry) -> Part {
        let mut prefix = Prefix::default();
        for class in self.classes.range(..terms) {
            self.skip_class(&mut prefix, class);
        }
        let Some(tree) = self.classes.get(&terms) else { return Part::default() };
        // Within the unit's own class, full units come last: if any precedes this unit, this unit is full as
        // well, and `next_part` does not use `open`.
        let before = self.forest.before(*tree, unit);
        let (hard, _) = terms.hard_and_room(self.value, self.capacity);
        prefix.hard += u128::from(hard) * u128::from(before.units);
        prefix.open += before.tickets;
        self.next_part(&mut prefix, terms, unit)
    }

    /// Calls `visit` with the entry number and the part of every active holder.
    pub(super) fn for_each(&self, visit: &mut dyn FnMut(u64, Part)) {
        let mut prefix = Prefix::default();
        for (terms, tree) in self.classes {
            self.forest
                .for_each(*tree, &mut |unit| visit(unit.id, self.next_part(&mut prefix, *terms, unit)));
        }
    }

    /// Adds all units of a class to the prefix sums.
    fn skip_class(&self, prefix: &mut Prefix, class: Class<'_>) {
        let all = self.forest.total(*class.1);
        let (hard, _) = class.0.hard_and_room(self.value, self.capacity);
        prefix.hard += u128::from(hard) * u128::from(all.units);
        prefix.open += all.less(self.full(class)).tickets;
    }

    /// Returns the part of the unit that follows the prefix, and adds that unit to the prefix sums.
    fn next_part(&self, prefix: &mut Prefix, terms: Terms, unit: Entry) -> Part {
        let (hard, room) = terms.hard_and_room(self.value, self.capacity);
        if self.is_overcommitted() {
            let hard_before = prefix.hard;
            prefix.hard += u128::from(hard);
            let up_to = |hard_sum: u128| portion(self.value, hard_sum, self.hard);
            let part = up_to(prefix.hard) - up_to(hard_before);
            return Part { hard: part, total: part };
        }
        if unit.tickets == 0 {
            return Part { hard, total: hard };
        }
        let is_full = self.open == 0
            || u128::from(unit.tickets) * u128::from(self.left) > u128::from(room) * u128::from(self.open);
        if is_full {
            return Part { hard, total: hard + room };
        }
        let open_before = prefix.open;
        prefix.open += unit.tickets;
        let up_to = |tickets: u64| portion(self.left, u128::from(tickets), u128::from(self.open));
        Part { hard, total: hard + (up_to(prefix.open) - up_to(open_before)) }
    }
}

/// A unit's part of a division.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    /// The part by reservation.
    pub(super) hard: u64,
    /// The part by reservation and tickets together.
    pub(super) total: u64,
}

/// Sums over the units that precede a unit in the order of rounding.
#[derive(Default)]
struct Prefix {
    /// The sum of their reservations.
    hard: u128,
    /// The sum of the tickets of preceding units that are not full.
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
        // The product does not fit 128 bits: long division, bit by bit of `total`.
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

    /// Limits that units reach one after the other, to the resolution of 64 bits. Each limit lies below the
    /// mean of the amount left, by the distance of the limit before, divided by the number of remaining
    /// units. By the bound above there are at most (64 + 2 log n) / 2 + 1 rounds; for 18 units, 37.
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
        let rounds = division.find_full();
        assert!((12..=37).contains(&rounds), "{rounds} rounds");
    }
}
