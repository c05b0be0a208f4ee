//! Requests that were handed to the device and have not begun there.
//!
//! Problem: a kernel hands a device more than it can do at once. What waits there, waits in the device's order, and no
//! weight or rate reaches it any more. The policy has to find out by the times that requests take.
//!
//! Algorithm: a device with an arm takes the request closest at or ahead of the head, and when none is ahead, the first
//! on the disk. One that too many went before goes next. A device without an arm takes the one that came first.
//!
//! Properties: no request is passed over for ever. Cost: O(n), with as many as the device holds.

use commonhold_contract::UnitId;

use super::Request;
use crate::Time;

/// A request in the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handed {
    pub(super) request: Request,
    /// In whose turn it was chosen.
    pub(super) turn_of: UnitId,
    /// When it was submitted, and when it was handed over.
    pub(super) arrived: Time,
    pub(super) handed: Time,
}

/// What waits in a device.
#[derive(Debug, Clone, Default)]
pub(super) struct Device {
    /// In the order in which they came, each with the number of requests that had begun by then.
    waiting: Vec<(u64, Handed)>,
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

    /// Takes out the one that begins next, with the head at `head` if there is an arm.
    pub(super) fn take(&mut self, head: Option<u64>) -> Option<Handed> {
        let at = head.map_or(0, |head| self.closest(head));
        (at < self.waiting.len()).then(|| {
            self.begun += 1;
            self.waiting.remove(at).1
        })
    }

    fn closest(&self, head: u64) -> usize {
        // As in `Queue::overtaken`.
        let limit = 4 * self.waiting.len() as u64 + 16;
        if self.waiting.first().is_some_and(|(before, _)| self.begun - before > limit) {
            return 0;
        }
        let key = |at: &usize| {
            let lba = self.waiting[*at].1.request.lba;
            (lba < head, lba, *at)
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
        Handed { request, turn_of: unit, arrived: 0, handed: 0 }
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
