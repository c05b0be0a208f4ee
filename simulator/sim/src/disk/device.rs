//! The device's internal queue: requests that were handed to the device and have not begun.
//!
//! Problem: a kernel hands a device more requests than the device serves at once. They wait in the device's
//! own order, which weights and rates no longer influence. The policy can infer these waits only from the
//! time that requests take.
//!
//! Algorithm: a device with an arm takes the request closest at or ahead of the head; if no request is ahead,
//! the first on the disk. A request that too many others have overtaken goes next. A device without an arm
//! serves in order of arrival.
//!
//! Properties: no request waits for ever. Cost: O(n) for n requests in the device.

use commonhold_contract::UnitId;

use super::Request;
use crate::Time;

/// A request in the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handed {
    pub(super) request: Request,
    /// The unit as whose request it was scheduled.
    pub(super) scheduled_unit: UnitId,
    /// When it was submitted, and when it was handed over.
    pub(super) arrived: Time,
    pub(super) handed: Time,
}

/// The requests that wait in a device.
#[derive(Debug, Clone, Default)]
pub(super) struct Device {
    /// By arrival, each with the number of requests that had begun before it arrived.
    waiting: Vec<(u64, Handed)>,
    /// The number of requests that have begun so far.
    begun: u64,
}

impl Device {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn sectors(&self) -> u64 {
        self.waiting.iter().map(|(_, handed)| u64::from(handed.request.sectors)).sum()
    }

    pub(super) fn push(&mut self, handed: Handed) {
        self.waiting.push((self.begun, handed));
    }

    /// Removes the request that begins next. `head` is the position of the arm; `None` if the device has no
    /// arm.
    pub(super) fn take(&mut self, head: Option<u64>) -> Option<Handed> {
        let next = head.map_or(0, |head| self.next_in_sweep(head));
        (next < self.waiting.len()).then(|| {
            self.begun += 1;
            self.waiting.remove(next).1
        })
    }

    /// The index of the next request in the sweep, or of the oldest if too many requests have overtaken it.
    fn next_in_sweep(&self, head: u64) -> usize {
        // As in `Queue::overtaken`.
        let limit = 4 * self.waiting.len() as u64 + 16;
        if self.waiting.first().is_some_and(|(before, _)| self.begun - before > limit) {
            return 0;
        }
        let key = |index: &usize| {
            let lba = self.waiting[*index].1.request.lba;
            (lba < head, lba, *index)
        };
        (0..self.waiting.len()).min_by_key(key).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(lbas: &[u64]) -> Device {
        let mut device = Device::default();
        for lba in lbas {
            device.push(handed(*lba));
        }
        device
    }

    fn handed(lba: u64) -> Handed {
        let unit = UnitId(2);
        let request = Request { id: 0, unit, lba, sectors: 8, write: false, owners: Vec::new() };
        Handed { request, scheduled_unit: unit, arrived: 0, handed: 0 }
    }

    fn taken(mut device: Device, mut head: Option<u64>) -> Vec<u64> {
        let mut lbas = Vec::new();
        while let Some(next) = device.take(head) {
            lbas.push(next.request.lba);
            head = head.map(|_| next.request.lba + 8);
        }
        lbas
    }

    #[test]
    fn an_arm_sweeps_and_others_go_in_order() {
        let lbas = [100, 50, 10, 90, 49];
        assert_eq!(taken(device(&lbas), Some(50)), [50, 90, 100, 10, 49]);
        assert_eq!(taken(device(&lbas), None), lbas);
    }

    #[test]
    fn none_is_passed_over_for_ever() {
        // One at 900 and one more: 4 * 2 + 16 = 24 may go before it.
        let mut device = device(&[900]);
        let before = (0..100).take_while(|_| {
            device.push(handed(100));
            device.take(Some(0)).unwrap().request.lba == 100
        });
        assert_eq!(before.count(), 25);
        // What began before a request came has not overtaken it.
        let mut later = Device { begun: 1_000, ..Device::default() };
        for lba in [900, 100] {
            later.push(handed(lba));
        }
        assert_eq!(later.take(Some(0)).unwrap().request.lba, 100);
    }
}
