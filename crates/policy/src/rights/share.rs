//! Dividing an integer by weights so that the parts sum exactly.
//!
//! Algorithm: largest remainder (Hamilton). Each part is first rounded down. What then remains of the total
//! goes, 1 each, to the parts with the largest remainders; ties go to the earlier part.
//!
//! Properties: the parts sum to the total if any weight is positive. Each part is within 1 of its exact
//! value. Parts of equal weight differ by at most 1.
//!
//! Limit: as with every quota method, a part may shrink by 1 although its own weight stays and only another
//! weight grows. At the resolution of a millionth of a CPU that is harmless.

use alloc::vec;
use alloc::vec::Vec;

/// Divides `total` in proportion to `weights`. If all weights are zero, all parts are.
pub fn split(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    if sum == 0 || total == 0 {
        return vec![0; weights.len()];
    }
    let exact = |w: u64| u128::from(total) * u128::from(w);
    let mut parts: Vec<u64> = weights.iter().map(|w| narrow(exact(*w) / sum)).collect();
    let remainder = total - parts.iter().sum::<u64>();
    if remainder == 0 {
        return parts;
    }
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|i| (core::cmp::Reverse(exact(weights[*i]) % sum), *i));
    // `remainder` is less than the number of parts with a positive remainder, so no part of weight 0 grows.
    for i in by_remainder.into_iter().take(usize::try_from(remainder).unwrap_or(usize::MAX)) {
        parts[i] += 1;
    }
    parts
}

/// As [`split`], but no part exceeds its cap: the excess goes to the other parts. Also returns the amount
/// that remains if all parts are at their caps.
pub fn split_capped(total: u64, weights: &[u64], caps: &[u64]) -> (Vec<u64>, u64) {
    let mut parts = vec![0; weights.len()];
    let mut uncapped: Vec<usize> = (0..weights.len()).filter(|i| weights[*i] > 0).collect();
    let mut remaining = total;
    // Each round caps at least one more part, or is the last.
    loop {
        let offers = split(remaining, &uncapped.iter().map(|i| weights[*i]).collect::<Vec<_>>());
        let uncapped_before = uncapped.len();
        if uncapped.iter().zip(&offers).all(|(i, offer)| *offer <= caps[*i]) {
            for (i, offer) in uncapped.into_iter().zip(offers) {
                parts[i] = offer;
                remaining -= offer;
            }
            return (parts, remaining);
        }
        let mut offers = offers.into_iter();
        uncapped.retain(|i| {
            let fits = offers.next().is_none_or(|offer| offer <= caps[*i]);
            if !fits {
                parts[*i] = caps[*i];
                remaining -= caps[*i];
            }
            fits
        });
        debug_assert!(uncapped.len() < uncapped_before, "every round but the last closes a part");
    }
}

/// `whole * part / of`, rounded down and saturating at `u64::MAX`. A zero `of` counts as 1.
pub fn part_of(whole: u64, part: u64, of: u64) -> u64 {
    narrow(u128::from(whole) * u128::from(part) / u128::from(of.max(1)))
}

/// Saturating conversion. Quotients of `split` always fit: they are products of two 64-bit numbers over a sum
/// at least as large as one of them.
fn narrow(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn by_hand() {
        // 8 by 1:2:3:2 is exact. 100 by 1:1:1 leaves 1 for the first. 10 by 6:3:1 is 6, 3, 1.
        assert_eq!(split(8, &[1, 2, 3, 2]), [1, 2, 3, 2]);
        assert_eq!(split(100, &[1, 1, 1]), [34, 33, 33]);
        assert_eq!(split(10, &[6, 3, 1]), [6, 3, 1]);
        // 10 by 1:1:2 is 2.5, 2.5, 5: the remainders tie, the first gets it.
        assert_eq!(split(10, &[1, 1, 2]), [3, 2, 5]);
        assert_eq!(split(10, &[0, 0]), [0, 0]);
        assert_eq!(
            split(u64::MAX, &[u64::MAX, u64::MAX]).iter().map(|p| u128::from(*p)).sum::<u128>(),
            u64::MAX.into()
        );
        assert_eq!((part_of(10, 2, 3), part_of(10, 0, 3), part_of(10, 2, 0)), (6, 0, 20));
        assert_eq!((part_of(u64::MAX, 3, 4), part_of(u64::MAX, 2, 1)), (u64::MAX / 4 * 3 + 2, u64::MAX));
        // 100 by 1:1, the first capped at 10: the second gets 90. Both capped at 10: 80 are left.
        assert_eq!(split_capped(100, &[1, 1], &[10, 200]), (vec![10, 90], 0));
        assert_eq!(split_capped(100, &[1, 1], &[10, 10]), (vec![10, 10], 80));
    }

    proptest! {
        #[test]
        fn parts_sum_and_stay_within_one(total in 0u64..1 << 40, weights in proptest::collection::vec(0u64..1_000_000, 1..50)) {
            let parts = split(total, &weights);
            let sum: u64 = weights.iter().sum();
            if sum > 0 {
                prop_assert_eq!(parts.iter().sum::<u64>(), total);
                for (part, weight) in parts.iter().zip(&weights) {
                    let exact = u128::from(total) * u128::from(*weight);
                    prop_assert!((u128::from(*part) * u128::from(sum)).abs_diff(exact) < u128::from(sum));
                }
            }
        }

        #[test]
         fn caps_hold_and_nothing_is_lost(
            total in 0u64..1 << 40,
            both in proptest::collection::vec((1u64..1_000, 0u64..1 << 38), 1..30),
        ) {
            let (weights, caps): (Vec<u64>, Vec<u64>) = both.into_iter().unzip();
            let (parts, left) = split_capped(total, &weights, &caps);
            prop_assert_eq!(parts.iter().sum::<u64>() + left, total);
            prop_assert!(parts.iter().zip(&caps).all(|(part, cap)| part <= cap));
            // Something is left over only if every part is at its cap.
            prop_assert!(left == 0 || parts == caps);
        }

        #[test]
         fn a_larger_weight_never_gets_less(
            total in 0u64..1 << 40,
            weights in proptest::collection::vec(1u64..1_000, 2..20),
            more in 1u64..1_000,
        ) {
            let before = split(total, &weights)[0];
            let mut raised = weights;
            raised[0] += more;
            prop_assert!(split(total, &raised)[0] + 1 >= before);
        }
    }
}
