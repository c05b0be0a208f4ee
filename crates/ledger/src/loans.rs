//! The amounts of a resource that were lent and borrowed: two sums that must balance over all units.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

/// Amounts lent and borrowed, in the resource's measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Loans {
    pub(crate) lent: u64,
    pub(crate) borrowed: u64,
}

impl Add for Loans {
    type Output = Loans;

    fn add(self, other: Loans) -> Loans {
        Loans { lent: self.lent + other.lent, borrowed: self.borrowed + other.borrowed }
    }
}

impl AddAssign for Loans {
    fn add_assign(&mut self, other: Loans) {
        *self = *self + other;
    }
}

impl Sum for Loans {
    fn sum<I: Iterator<Item = Loans>>(loans: I) -> Loans {
        loans.fold(Loans::default(), Loans::add)
    }
}
