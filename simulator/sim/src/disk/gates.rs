//! Rate limits: how much a unit with its sub-units may send to a disk, per direction, as the kernel's io.max
//! does it.
//!
//! Problem: on a disk that ignores weights, only rate limits restrain a unit. The kernel lets requests pass
//! in bursts, and the policy must cope with bursts.
//!
//! Terms: a *gate* is a unit's rate limit in one direction. A request that must wait at a gate is *held*. A
//! *slice* is 100 ms.
//!
//! Algorithm, for each gate:
//! 1. The first request begins a slice. All that the rate allows up to the slice's end may pass at once.
//! 2. A request passes if its bytes, and those that passed before in the slice, are allowed up to the end of
//!    the present slice. Otherwise it is held until after the end of that slice, for the missing bytes
//!    divided by the rate. So a request larger than a slice's allowance waits in proportion to its size.
//! 3. An unused allowance expires after a slice without requests, and otherwise after two slices.
//! 4. A request passes the gate of its unit, then the gate of the unit around it, and so on. At each gate,
//!    requests from different sub-units alternate, and those of one sub-unit stay in order. A held request
//!    delays no other unit's.
//! 5. A new rate begins a new slice at once. If requests are held, the excess over the old rate, or the
//!    unused part of it, is carried to the new rate.
//!
//! A write to swap is not held, since other units may wait for the memory, but its bytes count as passed.
//!
//! Properties (tested): the bytes that pass a gate of constant rate within any time since its first request
//! are at most the rate times that time, plus one slice's allowance.
//!
//! Limits: the kernel counts time in ticks, and may be a tick late; the simulation is exact. Kernels with
//! slices of 20 ms for drives without an arm differ. Requests per second (`riops`, `wiops`) are not limited.
//! The built-in units `shared` and `kernel` have no gates. Cost: O(gates) per call of `release`, O(depth of
//! the tree) per request.
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

/// A request that was submitted and is not in the queue yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Submitted {
    /// The unit as whose request it is scheduled.
    pub(super) unit: UnitId,
    pub(super) request: Request,
    /// When it was submitted.
    pub(super) arrived: Time,
}

/// A gate's key. The order of keys puts the gates of sub-units before those of the units around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    depth: Reverse<usize>,
    unit: UnitId,
    write: bool,
}

#[derive(Debug, Clone, Default)]
struct Gate {
    /// In bytes per second. `None` after the limit was removed, until the last held request has passed.
    rate: Option<u64>,
    /// The present slice, and the bytes that passed in it; negative if an allowance was carried over from an
    /// old rate.
    begun: Time,
    ends: Time,
    passed: i128,
    /// When the next held request may pass.
    opens: Time,
    /// The held requests, by source: the unit itself or one of its sub-units. The first source is next.
    held: VecDeque<(UnitId, VecDeque<Submitted>)>,
}

/// All units' gates on one disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Gates {
    parents: Vec<Option<UnitId>>,
    gates: BTreeMap<Key, Gate>,
    /// The number of held requests.
    len: u64,
}

impl Gates {
    /// No gates. `parents` are by [`UnitId::index`]; a unit beyond the end of the list has no parent.
    pub(super) fn new(parents: &[Option<UnitId>]) -> Gates {
        Gates { parents: parents.to_vec(), ..Gates::default() }
    }

    /// The number of held requests.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The sectors of all held requests. O(n).
    pub(super) fn sectors(&self) -> u64 {
        let held = self.gates.values().flat_map(|gate| &gate.held).flat_map(|(_, requests)| requests);
        held.map(|submitted| u64::from(submitted.request.sectors)).sum()
    }

    /// Sets a unit's rate in one direction, in bytes per second; `None` for no limit.
    pub(super) fn set(&mut self, now: Time, unit: UnitId, write: bool, rate: Option<u64>) {
        let key = self.key(unit, write);
        let gate = self.gates.entry(key).or_default();
        gate.set(now, rate.map(|rate| rate.max(1)));
        if gate.rate.is_none() && gate.held.is_empty() {
            self.gates.remove(&key);
        }
    }

    /// Accepts a new request. Returns the request if no gate holds it.
    pub(super) fn enter(&mut self, now: Time, submitted: Submitted) -> Option<Submitted> {
        let unit = submitted.unit;
        if self.gates.is_empty() || unit.is_common() {
            Some(submitted)
        } else {
            self.pass_upwards(now, unit, unit, submitted)
        }
    }

    /// Counts the bytes of an urgent request, which no gate holds, as passed, so that later requests wait for
    /// them.
    pub(super) fn charge_urgent(&mut self, now: Time, unit: UnitId, request: &Request) {
        let path: Vec<UnitId> = std::iter::successors(Some(unit), |unit| self.parent(*unit)).collect();
        for unit in path {
            let key = self.key(unit, request.write);
            if let Some(gate) = self.gates.get_mut(&key) {
                gate.renew(now, !gate.held.is_empty());
                gate.passed += bytes(request);
            }
        }
    }

    /// Releases the held requests that may pass all gates by now, in this order.
    pub(super) fn release(&mut self, now: Time) -> Vec<Submitted> {
        let mut released = Vec::new();
        if self.len == 0 {
            return released;
        }
        // Gates of sub-units first: a request that they release arrives at the outer gates now.
        let keys: Vec<Key> = self.gates.keys().copied().collect();
        for key in keys {
            while let Some(submitted) = self.gates.get_mut(&key).and_then(|gate| gate.release(now)) {
                self.len -= 1;
                released.extend(match self.parent(key.unit) {
                    Some(parent) => self.pass_upwards(now, parent, key.unit, submitted),
                    None => Some(submitted),
                });
            }
        }
        self.gates.retain(|_, gate| gate.rate.is_some() || !gate.held.is_empty());
        released
    }

    /// When to call [`Gates::release`]; `None` if no request is held.
    pub(super) fn next(&self) -> Option<Time> {
        self.gates.values().filter(|gate| !gate.held.is_empty()).map(|gate| gate.opens).min()
    }

    /// Passes a request through the gates from `unit` upwards; it arrives at the first gate from `source`.
    /// Returns the request if no gate holds it.
    fn pass_upwards(
        &mut self,
        now: Time,
        unit: UnitId,
        source: UnitId,
        submitted: Submitted,
    ) -> Option<Submitted> {
        let (mut unit, mut source) = (unit, source);
        loop {
            let key = self.key(unit, submitted.request.write);
            if let Some(gate) = self.gates.get_mut(&key)
                && (!gate.held.is_empty() || !gate.try_pass(now, &submitted.request, false))
            {
                gate.hold(source, submitted);
                self.len += 1;
                return None;
            }
            let Some(parent) = self.parent(unit) else { return Some(submitted) };
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
        // The excess over the old rate is carried over while requests are held.
        let excess = self.rate.map_or(0, |old| self.passed - allowed(old, now.saturating_sub(self.begun)));
        self.passed = if self.held.is_empty() { 0 } else { excess };
        (self.rate, self.begun, self.ends, self.opens) = (rate, now, now + SLICE_NS, now);
    }

    /// Lets a request pass if the rate allows it now, and counts its bytes. Returns whether it passed; if
    /// not, sets when the gate opens. `has_held`: whether requests are held at the gate.
    fn try_pass(&mut self, now: Time, request: &Request, has_held: bool) -> bool {
        let Some(rate) = self.rate else { return true };
        self.renew(now, has_held);
        let bytes = bytes(request);
        let elapsed = now.saturating_sub(self.begun);
        let slice_end = elapsed.max(1).next_multiple_of(SLICE_NS);
        let missing_bytes = self.passed + bytes - allowed(rate, slice_end);
        if missing_bytes > 0 {
            // Rounded up.
            let missing_ns = (missing_bytes * SECOND_NS + i128::from(rate) - 1) / i128::from(rate);
            let missing_ns = Time::try_from(missing_ns).unwrap_or(Time::MAX);
            self.opens = (self.begun + slice_end).saturating_add(missing_ns);
            return false;
        }
        self.passed += bytes;
        // Forgets all slices but the last whole one, whose unused allowance is kept.
        let whole_slices = elapsed / SLICE_NS * SLICE_NS;
        if whole_slices >= 2 * SLICE_NS {
            let expired = whole_slices - SLICE_NS;
            self.begun += expired;
            self.passed = (self.passed - allowed(rate, expired)).max(0);
        }
        true
    }

    /// Begins a new slice if the present one has expired, unless held requests depend on its allowance.
    fn renew(&mut self, now: Time, has_held: bool) {
        if now >= self.ends && !has_held {
            (self.begun, self.passed) = (now, 0);
        }
        self.ends = self.ends.max(now + SLICE_NS);
    }

    /// Holds a request behind the others of its source.
    fn hold(&mut self, source: UnitId, submitted: Submitted) {
        match self.held.iter_mut().find(|(other, _)| *other == source) {
            Some((_, held)) => held.push_back(submitted),
            None => self.held.push_back((source, VecDeque::from([submitted]))),
        }
    }

    /// Releases the next held request if it may pass. Its source goes to the end of the round robin.
    fn release(&mut self, now: Time) -> Option<Submitted> {
        if self.rate.is_some() && now < self.opens {
            return None;
        }
        let (source, mut held) = self.held.pop_front()?;
        let passes = held.front().is_some_and(|next| self.try_pass(now, &next.request, true));
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

/// The bytes that a rate allows in a time, rounded down.
fn allowed(rate: u64, elapsed: Time) -> i128 {
    i128::from(rate) * i128::from(elapsed) / SECOND_NS
}
