use super::*;
use crate::rights::Change;
use commonhold_contract::Contract;
use proptest::prelude::*;

const WINDOW: u64 = WINDOW_NS;

/// How a unit's progress depends on its parts. All are concave, and 0 at 0.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Sequential: time at each resource in turn.
    InTurn,
    /// Parallel: as fast as the slowest resource.
    AtOnce,
    /// Additive.
    Apart,
}

#[derive(Debug, Clone, Copy)]
struct Nature {
    kind: Kind,
    /// The cost of a unit of work at each resource.
    needs: [u64; 3],
}

impl Nature {
    /// Progress in millionths of a CPU, given parts in millionths.
    fn progress(self, parts: [u64; 3]) -> u64 {
        let time = |at: usize| self.needs[at] * MILLION * 1_000 / parts[at].max(1);
        match self.kind {
            Kind::InTurn => MILLION * 100_000 / (100_000 + time(0) + time(1) + time(2)),
            Kind::AtOnce => MILLION * 100_000 / (100_000 + time(0).max(time(1)).max(time(2))),
            Kind::Apart => (0..3).map(|at| self.needs[at] * parts[at] / 300).sum(),
        }
    }

    /// Wants in millionths of a window.
    fn wants(self, parts: [u64; 3]) -> [u64; 3] {
        let time = |at: usize| self.needs[at] * MILLION / parts[at].max(1);
        let all = 100 + time(0) + time(1) + time(2);
        [0, 1, 2].map(|at| time(at) * MILLION / all)
    }
}

/// Simulated units with tickets and counters.
struct World {
    rights: Rights,
    natures: Vec<Nature>,
    /// Amplitude of the noise of a window's progress, in thousandths.
    noise: u64,
    seed: u64,
    facts: Vec<Facts>,
    /// All tickets, by resource.
    all: [u64; 3],
    now: Time,
}

impl World {
    fn new(natures: Vec<Nature>, tickets: &[[u64; 3]], noise: u64, seed: u64) -> World {
        let mut contract = Contract::default();
        let mut facts = Vec::new();
        for (n, tickets) in tickets.iter().enumerate() {
            let unit = contract.add(None, &format!("u{n}"));
            for (resource, tickets) in TRADED.into_iter().zip(tickets) {
                contract.units[unit.index()].tickets[resource] = *tickets;
            }
            contract.units[unit.index()].negotiate = true;
            let waited_ns = [0; 3];
            facts.push(Facts { unit, parent: None, negotiates: true, at: 0, used_ns: 0, waited_ns });
        }
        let all = [0, 1, 2].map(|at| tickets.iter().map(|tickets| tickets[at]).sum());
        let mut rights = Rights::new(&contract);
        for unit in contract.held() {
            rights.set_present(unit, true).unwrap();
        }
        World { rights, natures, noise, seed, facts, all, now: 0 }
    }

    fn chance(&mut self) -> u64 {
        // A step of a linear congruential generator (Knuth).
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed >> 33
    }

    fn tickets_of(&self, unit: usize, traded: bool) -> [u64; 3] {
        let id = self.facts[unit].unit;
        TRADED.map(|resource| {
            let (lent, borrowed) = self.rights.lent_and_borrowed(id, resource);
            let own = self.rights.tickets(id, resource);
            if traded { own + borrowed - lent } else { own }
        })
    }

    fn totals(&self) -> [u64; 3] {
        let all: Vec<_> = (0..self.facts.len()).map(|unit| self.tickets_of(unit, true)).collect();
        [0, 1, 2].map(|at| all.iter().map(|tickets| tickets[at]).sum())
    }

    /// A unit's progress with the tickets that it has, or with its own only.
    fn progress(&self, unit: usize, traded: bool) -> u64 {
        self.natures[unit].progress(self.parts(unit, traded))
    }

    fn parts(&self, unit: usize, traded: bool) -> [u64; 3] {
        let (all, has) = (self.all, self.tickets_of(unit, traded));
        [0, 1, 2].map(|at| millionths(has[at], all[at]))
    }

    /// Advances by a window.
    fn pass(&mut self) {
        self.now += WINDOW;
        for unit in 0..self.facts.len() {
            let parts = self.parts(unit, true);
            let off = self.chance() % (2 * self.noise + 1);
            let progress = self.natures[unit].progress(parts) * (1_000 + off - self.noise) / 1_000;
            let wants = self.natures[unit].wants(parts);
            let facts = &mut self.facts[unit];
            facts.at = self.now;
            facts.used_ns += fraction_of(progress, WINDOW);
            (0..3).for_each(|at| facts.waited_ns[at] += fraction_of(wants[at], WINDOW));
        }
    }

    fn observe(&mut self, negotiator: &mut Negotiator) -> Vec<Negotiation> {
        // No unit exceeds one CPU, apart from noise.
        let cpus = MILLION * (1_000 + self.noise) / 1_000;
        let seen = Seen { units: self.facts.clone(), held: [true; 3], cpus };
        let moves = negotiator.observe(self.now, &seen, &mut self.rights);
        let _ = self.rights.settle(self.now);
        moves
    }
}

/// A unit's open risk, not yet charged to its account.
fn open_risk(negotiator: &Negotiator, unit: UnitId) -> u64 {
    let all = negotiator.trial.iter().chain(&negotiator.kept);
    let risk_in = |trial: &Trial| {
        let at = trial.pair.units.iter().position(|other| *other == unit);
        at.map_or(0, |at| trial.unsettled[at].cpu_ns + trial.before_retrial[at].cpu_ns)
    };
    all.map(risk_in).sum()
}

fn nature() -> impl Strategy<Value = Nature> {
    let kind = prop_oneof![Just(Kind::InTurn), Just(Kind::AtOnce), Just(Kind::Apart)];
    let need = prop_oneof![Just(0u64), 1u64..100];
    (kind, [need.clone(), need.clone(), need]).prop_map(|(kind, needs)| Nature { kind, needs })
}

/// A market whose units may change once: checks the promises at every window. Returns the number of kept
/// exchanges.
fn market(
    natures: Vec<Nature>,
    tickets: &[[u64; 3]],
    noise: u64,
    seed: u64,
    changes: &[(usize, usize, Nature)],
    windows: usize,
) -> usize {
    let mut world = World::new(natures, tickets, noise, seed);
    let mut negotiator = Negotiator::default();
    let mut kept = 0;
    let mut short = vec![0u64; world.facts.len()];
    // A loss within the noise of a window cannot be detected.
    let mut hidden = vec![0u64; world.facts.len()];
    let mut changed = 0;
    let _ = world.observe(&mut negotiator);
    for window in 1..windows {
        for (_, unit, nature) in changes.iter().filter(|(at, ..)| *at == window) {
            let unit = unit % world.facts.len();
            world.natures[unit] = *nature;
            changed = window;
        }
        for (unit, (short, hidden)) in short.iter_mut().zip(&mut hidden).enumerate() {
            let without = world.progress(unit, false);
            *short += fraction_of(without.saturating_sub(world.progress(unit, true)), WINDOW);
            *hidden += fraction_of(without, WINDOW) * noise / 1_000;
        }
        world.pass();
        let moves = world.observe(&mut negotiator);
        assert_eq!(world.totals(), world.all, "tickets are conserved");
        for entry in moves.iter().filter(|entry| entry.done == Move::Kept) {
            kept += 1;
            for side in entry.sides {
                let at = world.facts.iter().position(|facts| facts.unit == side.unit).unwrap();
                let (with, without) = (world.progress(at, true), world.progress(at, false));
                // A change during a trial is found by the next check only.
                let long_ago = changed == 0 || window - changed > 100;
                let margin = without * noise / 1_000;
                assert!(!long_ago || with + margin >= without, "{with} of {without}: {entry:?}");
            }
        }
        for (unit, (short, hidden)) in short.iter().zip(&hidden).enumerate() {
            let id = world.facts[unit].unit;
            assert!((0..3).all(|at| world.tickets_of(unit, true)[at] >= 1));
            let account = negotiator.accounts.get(&id).copied().unwrap_or_default();
            let risked = account.risked_ns + open_risk(&negotiator, id);
            // One unit of rounding per window.
            let rounding = window as u64 * WINDOW / MILLION * 8;
            assert!(
                *short <= risked + rounding + hidden,
                "window {window}, unit {unit}: {short} of {risked}"
            );
        }
    }
    kept
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// No unit falls behind its progress without trade by more than was risked; tickets are conserved; kept
    /// exchanges benefit both sides.
    #[test]
    fn no_unit_loses_more_than_was_risked(
        natures in proptest::collection::vec(nature(), 2..5),
        tickets in proptest::collection::vec([1u64..2_000, 1u64..2_000, 1u64..2_000], 4),
        noise in prop_oneof![Just(0u64), 1u64..50],
        seed in any::<u64>(),
        at in 1usize..160,
        changes in proptest::collection::vec((0usize..5, nature()), 0..3),
    ) {
        let n = natures.len();
        let changes: Vec<_> = changes.into_iter().map(|(unit, nature)| (at, unit, nature)).collect();
        market(natures, &tickets[..n], noise, seed, &changes, 120);
    }
}

/// Two units that compute and two that read, as in section 5.5.
fn two_and_two(noise: u64) -> World {
    let computes = Nature { kind: Kind::InTurn, needs: [100, 0, 0] };
    let reads = Nature { kind: Kind::InTurn, needs: [5, 0, 100] };
    World::new(vec![computes, reads, computes, reads], &[[1_000; 3]; 4], noise, 7)
}

#[test]
fn a_computing_and_a_reading_unit_become_a_pair() {
    let (mut world, mut negotiator) = (two_and_two(0), Negotiator::default());
    let before: Vec<u64> = (0..4).map(|unit| world.progress(unit, false)).collect();
    let _ = world.observe(&mut negotiator);
    let mut moves = Vec::new();
    for _ in 0..100 {
        world.pass();
        moves.extend(world.observe(&mut negotiator));
    }
    let kept: Vec<_> = moves.iter().filter(|entry| entry.done == Move::Kept).collect();
    assert_eq!(kept.len(), 2, "two pairs: {moves:?}");
    for (unit, before) in before.into_iter().enumerate() {
        assert!(world.progress(unit, true) > before * 11 / 10, "unit {unit} gains a tenth at least");
    }
    // Levels grow.
    let levels: Vec<u64> =
        moves.iter().filter(|entry| entry.done == Move::Tried).map(|entry| entry.level).collect();
    assert_eq!(levels[..2], [100, 200]);
}

/// In 100 windows the computing side uses 0.9 of a CPU with the exchange, and gives 4/5 of its disk tickets.
/// If it depended on the disk alone, it would use 4.5 CPUs without: the machine has one, so it could gain at
/// most another 0.1.
#[test]
fn the_risk_of_a_trial_is_bounded_by_the_machines_cpus() {
    let (mut world, mut negotiator) = (two_and_two(0), Negotiator::default());
    let _ = world.observe(&mut negotiator);
    for _ in 0..6 {
        world.pass();
        let _ = world.observe(&mut negotiator);
    }
    let mut trial = negotiator.trial.unwrap();
    let risk = |windows, cpu_windows| Risk { weighted_ns: windows * WINDOW, cpu_ns: cpu_windows * WINDOW };
    (trial.fractions, trial.unsettled) = ([800_000, 0], Default::default());
    trial.add_risk(100 * WINDOW, [900_000, 500_000], MILLION);
    assert_eq!(trial.unsettled, [risk(80, 10), risk(0, 0)]);
    // On eight CPUs, 4.5 CPUs would be possible, and 4/5 of them are at risk.
    trial.unsettled = Default::default();
    trial.add_risk(100 * WINDOW, [900_000, 500_000], 8 * MILLION);
    assert_eq!(trial.unsettled[0], risk(80, 360));
}

/// The exchange ends when a side no longer benefits.
#[test]
fn a_side_that_loses_ends_the_exchange_and_the_pair_backs_off() {
    let (mut world, mut negotiator) = (two_and_two(0), Negotiator::default());
    world.facts[2].negotiates = false;
    world.facts[3].negotiates = false;
    let _ = world.observe(&mut negotiator);
    let pass = |world: &mut World, negotiator: &mut Negotiator, windows: usize| {
        let mut moves = Vec::new();
        for _ in 0..windows {
            world.pass();
            moves.extend(world.observe(negotiator));
        }
        moves
    };
    let moves = pass(&mut world, &mut negotiator, 60);
    assert!(moves.iter().any(|entry| entry.done == Move::Kept));
    assert_eq!(world.rights.deals().len(), 1);
    // The computing unit reads from now on.
    world.natures[0] = Nature { kind: Kind::InTurn, needs: [5, 0, 100] };
    let moves = pass(&mut world, &mut negotiator, 8);
    let lost = Why::Lost { unit: world.facts[0].unit };
    assert!(moves.iter().any(|entry| entry.done == Move::Undone { why: lost }), "{moves:?}");
    assert!(world.rights.deals().is_empty());
    assert_eq!(negotiator.back_offs.values().map(|rest| rest.failures).collect::<Vec<_>>(), [1]);
}

/// Units' own offers stay as they are, and the negotiator's offers do not serve them.
#[test]
fn offers_of_units_are_left_alone() {
    let (mut world, mut negotiator) = (two_and_two(0), Negotiator::default());
    let [one, other] = [world.facts[1].unit, world.facts[0].unit];
    let bid = Bid {
        by: one,
        gives: Offer::tickets(Resource::Cpu, 999),
        wants: Offer::tickets(Resource::Disk, 1),
        with: Some(other),
        for_ns: None,
        at_least: None,
        bound: false,
    };
    world.rights.apply(Change::Offer { bid }).unwrap();
    let _ = world.observe(&mut negotiator);
    for _ in 0..60 {
        world.pass();
        let _ = world.observe(&mut negotiator);
        assert_eq!(world.rights.offers().values().copied().collect::<Vec<_>>(), [bid]);
    }
    assert!(!negotiator.kept.is_empty());
}

/// An exchange ended by a unit is not made again at once, and a unit that stops negotiating is left alone.
#[test]
fn an_exchange_ended_by_a_unit_is_not_retried_at_once() {
    let (mut world, mut negotiator) = (two_and_two(0), Negotiator::default());
    let _ = world.observe(&mut negotiator);
    for _ in 0..6 {
        world.pass();
        let _ = world.observe(&mut negotiator);
    }
    let number = *world.rights.deals().keys().next().unwrap();
    let pair = negotiator.trial.as_ref().unwrap().pair;
    world.rights.apply(Change::Cancel { number }).unwrap();
    world.pass();
    let moves = world.observe(&mut negotiator);
    assert_eq!(moves[0].done, Move::Undone { why: Why::Ended });
    assert!(negotiator.back_offs[&pair].until > world.now);
    for facts in &mut world.facts {
        facts.negotiates = false;
    }
    for _ in 0..20 {
        world.pass();
        let _ = world.observe(&mut negotiator);
    }
    assert!(world.rights.deals().is_empty() && !negotiator.is_at_work());
}
