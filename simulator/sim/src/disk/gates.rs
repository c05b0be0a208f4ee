//! Rates: what a unit and its sub-units may send to a disk, each way, as the kernel's io.max lets it pass.
//!
//! Problem: on a disk that ignores weights, only rates hold a unit. The kernel's rates pass requests in bursts, and the
//! policy must cope with these.
//!
//! Terms: a *gate* is a unit's rate one way. A request that must wait there is *held*. A *slice* is 100 ms.
//!
//! Algorithm, for each gate:
//! 1. The first request begins a slice. What the rate allows until the slice's end may pass, all at its begin.
//! 2. A request passes if it and what passed before it is allowed until the end of the slice that time is in.
//!    Otherwise it is held beyond the end of that slice, for the missing bytes divided by the rate. A request larger
//!    than a slice's worth thus waits for as long as its size needs.
//! 3. An unused allowance is lost after a slice without requests, or two slices later.
//! 4. A request goes through the gate of its unit, then through that of the unit around it, and so on. At each gate,
//!    requests that came from different sub-units take turns, and those of one go in order. One that is held keeps no
//!    other unit's back.
//! 5. Another rate begins another slice at once. What passed beyond the old rate, or less, counts against the new one
//!    while a request is held.
//!
//! A write to swap is not held, since others may wait for the memory. It counts as one that passed.
//!
//! Properties (tested): through a gate whose rate stays passes by any time since its first request what the rate makes
//! of that time, and a slice's worth at most.
//!
//! Limits: the kernel counts time in ticks, and may be a tick late; here it is exact. Kernels that have slices of 20 ms
//! for drives without an arm differ. Requests per second (`riops`, `wiops`) are not bounded. The common parts are in no
//! control group of ours and have no gates. Cost: O(gates) per look, O(depth of the tree) per request.
//!
//! Source: block/blk-throttle.c; "io.max" in the kernel's cgroup-v2.rst.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use commonhold_contract::UnitId;

use super::Request;
use crate::Time;

const SLICE_NS: Time = 100_000_000;
const SECOND_NS: i128 = 1_000_000_000;
const SECTOR_BYTES: i128 = 512;

/// A request on its way to the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Coming {
    /// In whose name it goes.
    pub(super) unit: UnitId,
    pub(super) request: Request,
    /// When it was submitted.
    pub(super) arrived: Time,
}

/// The inner units' gates come before those of the units around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    depth: Reverse<usize>,
    unit: UnitId,
    write: bool,
}

#[derive(Debug, Clone, Default)]
struct Gate {
    /// In bytes per second; none once it is taken away, until the last that it held has gone.
    rate: Option<u64>,
    /// The slice, and what passed in it, in bytes: less than none where more is allowed than its rate says.
    begun: Time,
    ends: Time,
    passed: i128,
    /// When the first that is held may pass.
    opens: Time,
    /// What is held, by where it came from: the unit itself or one of its sub-units. The first is next.
    held: VecDeque<(UnitId, VecDeque<Coming>)>,
}

/// All units' gates on one disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Gates {
    parents: Vec<Option<UnitId>>,
    gates: BTreeMap<Key, Gate>,
    len: u64,
}

impl Gates {
    /// Open to all. `parents` are by [`UnitId::index`]; a unit beyond their end has none.
    pub(super) fn new(parents: &[Option<UnitId>]) -> Gates {
        Gates { parents: parents.to_vec(), ..Gates::default() }
    }

    /// How many requests are held.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Sectors of all that are held. O(n).
    pub(super) fn sectors(&self) -> u64 {
        let all = self.gates.values().flat_map(|gate| &gate.held).flat_map(|(_, from)| from);
        all.map(|coming| u64::from(coming.request.sectors)).sum()
    }

    /// Another rate for a unit one way, in bytes per second.
    pub(super) fn set(&mut self, now: Time, unit: UnitId, write: bool, rate: Option<u64>) {
        let key = self.key(unit, write);
        let gate = self.gates.entry(key).or_default();
        gate.set(now, rate.map(|rate| rate.max(1)));
        if gate.rate.is_none() && gate.held.is_empty() {
            self.gates.remove(&key);
        }
    }

    /// A request comes; it is returned if no gate holds it.
    pub(super) fn enter(&mut self, now: Time, coming: Coming) -> Option<Coming> {
        let unit = coming.unit;
        if self.gates.is_empty() || unit.is_common() {
            Some(coming)
        } else {
            self.climb(now, unit, unit, coming)
        }
    }

    /// A request passes that no gate holds, at the expense of what comes after it.
    pub(super) fn owe(&mut self, now: Time, unit: UnitId, request: &Request) {
        let path: Vec<UnitId> = std::iter::successors(Some(unit), |unit| self.parent(*unit)).collect();
        for unit in path {
            let key = self.key(unit, request.write);
            if let Some(gate) = self.gates.get_mut(&key) {
                gate.renew(now, !gate.held.is_empty());
                gate.passed += bytes(request);
            }
        }
    }

    /// What may pass by now, in the order in which it passes.
    pub(super) fn release(&mut self, now: Time) -> Vec<Coming> {
        let mut released = Vec::new();
        if self.len == 0 {
            return released;
        }
        // Inner gates first: what they let go, the outer ones have before them now.
        let keys: Vec<Key> = self.gates.keys().copied().collect();
        for key in keys {
            while let Some(coming) = self.gates.get_mut(&key).and_then(|gate| gate.release(now)) {
                self.len -= 1;
                released.extend(match self.parent(key.unit) {
                    Some(parent) => self.climb(now, parent, key.unit, coming),
                    None => Some(coming),
                });
            }
        }
        self.gates.retain(|_, gate| gate.rate.is_some() || !gate.held.is_empty());
        released
    }

    /// When to call [`Gates::release`].
    pub(super) fn next(&self) -> Option<Time> {
        self.gates.values().filter(|gate| !gate.held.is_empty()).map(|gate| gate.opens).min()
    }

    /// From the gate of `unit` up; it came there from `source`.
    fn climb(&mut self, now: Time, unit: UnitId, source: UnitId, coming: Coming) -> Option<Coming> {
        let (mut unit, mut source) = (unit, source);
        loop {
            let key = self.key(unit, coming.request.write);
            if let Some(gate) = self.gates.get_mut(&key)
                && (!gate.held.is_empty() || !gate.lets_pass(now, &coming.request, false))
            {
                gate.hold(source, coming);
                self.len += 1;
                return None;
            }
            let Some(parent) = self.parent(unit) else { return Some(coming) };
            (source, unit) = (unit, parent);
        }
    }

    fn parent(&self, unit: UnitId) -> Option<UnitId> {
        self.parents.get(unit.index()).copied().flatten()
    }

    fn key(&self, unit: UnitId, write: bool) -> Key {
        let depth = std::iter::successors(self.parent(unit), |above| self.parent(*above)).count();
        Key { depth: Reverse(depth), unit, write }
    }
}

impl Gate {
    fn set(&mut self, now: Time, rate: Option<u64>) {
        if self.rate == rate {
            return;
        }
        let ahead = self.rate.map_or(0, |old| self.passed - allowed(old, now.saturating_sub(self.begun)));
        self.passed = if self.held.is_empty() { 0 } else { ahead };
        (self.rate, self.begun, self.ends, self.opens) = (rate, now, now + SLICE_NS, now);
    }

    /// Whether a request may pass now, beside others that are held or not; if so, it has.
    fn lets_pass(&mut self, now: Time, request: &Request, others: bool) -> bool {
        let Some(rate) = self.rate else { return true };
        self.renew(now, others);
        let bytes = bytes(request);
        let elapsed = now.saturating_sub(self.begun);
        let until = elapsed.max(1).next_multiple_of(SLICE_NS);
        let lacking = self.passed + bytes - allowed(rate, until);
        if lacking > 0 {
            // Rounded up.
            let takes_ns = (lacking * SECOND_NS + i128::from(rate) - 1) / i128::from(rate);
            let takes_ns = Time::try_from(takes_ns).unwrap_or(Time::MAX);
            self.opens = (self.begun + until).saturating_add(takes_ns);
            return false;
        }
        self.passed += bytes;
        // The last whole slice is kept, with what was not used in it.
        let whole = elapsed / SLICE_NS * SLICE_NS;
        if whole >= 2 * SLICE_NS {
            let gone = whole - SLICE_NS;
            self.begun += gone;
            self.passed = (self.passed - allowed(rate, gone)).max(0);
        }
        true
    }

    /// Replaces an expired slice by the next, unless held requests still count on it.
    fn renew(&mut self, now: Time, others: bool) {
        if now >= self.ends && !others {
            (self.begun, self.passed) = (now, 0);
        }
        self.ends = self.ends.max(now + SLICE_NS);
    }

    fn hold(&mut self, source: UnitId, coming: Coming) {
        match self.held.iter_mut().find(|(from, _)| *from == source) {
            Some((_, held)) => held.push_back(coming),
            None => self.held.push_back((source, VecDeque::from([coming]))),
        }
    }

    /// The next that is held, if it may pass.
    fn release(&mut self, now: Time) -> Option<Coming> {
        if self.rate.is_some() && now < self.opens {
            return None;
        }
        let (source, mut held) = self.held.pop_front()?;
        let passes = held.front().is_some_and(|next| self.lets_pass(now, &next.request, true));
        if !passes {
            self.held.push_front((source, held));
            return None;
        }
        let next = held.pop_front();
        if !held.is_empty() {
            self.held.push_back((source, held));
        }
        next
    }
}

fn bytes(request: &Request) -> i128 {
    i128::from(request.sectors) * SECTOR_BYTES
}

/// Bytes at a rate, rounded down.
fn allowed(rate: u64, elapsed: Time) -> i128 {
    i128::from(rate) * i128::from(elapsed) / SECOND_NS
}
