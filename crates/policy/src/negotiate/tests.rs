use super::*;
use crate::rights::Change;
use commonhold_contract::Contract;
use proptest::prelude::*;

const WINDOW: u64 = WINDOW_NS;

/// How a unit gets on with the parts that it holds. All are concave, and nothing of nothing.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// One thing after the other: so much time at each resource.
    InTurn,
    /// All at once: as fast as the slowest.
    AtOnce,
    /// Each helps by itself.
    Apart,
}

#[derive(Debug, Clone, Copy)]
struct Nature {
    kind: Kind,
    /// What a unit of work needs of each resource.
    needs: [u64; 3],
}

impl Nature {
    /// Millionths of a CPU, of parts in millionths.
    fn progress(self, parts: [u64; 3]) -> u64 {
        let time = |at: usize| self.needs[at] * MILLION * 1_000 / parts[at].max(1);
        match self.kind {
            Kind::InTurn => MILLION * 100_000 / (100_000 + time(0) + time(1) + time(2)),
            Kind::AtOnce => MILLION * 100_000 / (100_000 + time(0).max(time(1)).max(time(2))),
            Kind::Apart => (0..3).map(|at| self.needs[at] * parts[at] / 300).sum(),
        }
    }

    /// Millionths of a window.
    fn wants(self, parts: [u64; 3]) -> [u64; 3] {
        let time = |at: usize| self.needs[at] * MILLION / parts[at].max(1);
        let all = 100 + time(0) + time(1) + time(2);
        [0, 1, 2].map(|at| time(at) * MILLION / all)
    }
}

/// Units with tickets, and their counts.
struct World {
    rights: Rights,
    natures: Vec<Nature>,
    /// Each window's progress is off by up to so many thousandths.
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

    fn counting(&self, unit: usize, traded: bool) -> [u64; 3] {
        let id = self.facts[unit].unit;
        TRADED.map(|resource| {
            let (lent, got) = self.rights.lent_and_got(id, resource);
            let own = self.rights.tickets(id, resource);
            if traded { own + got - lent } else { own }
        })
    }

    fn totals(&self) -> [u64; 3] {
        let all: Vec<_> = (0..self.facts.len()).map(|unit| self.counting(unit, true)).collect();
        [0, 1, 2].map(|at| all.iter().map(|tickets| tickets[at]).sum())
    }

    /// What a unit does with the tickets that it has, or would with its own.
    fn progress(&self, unit: usize, traded: bool) -> u64 {
        self.natures[unit].progress(self.parts(unit, traded))
    }

    fn parts(&self, unit: usize, traded: bool) -> [u64; 3] {
        let (all, has) = (self.all, self.counting(unit, traded));
        [0, 1, 2].map(|at| part(has[at], all[at]))
    }

    /// A window passes.
    fn pass(&mut self) {
        self.now += WINDOW;
        for unit in 0..self.facts.len() {
            let parts = self.parts(unit, true);
            let off = self.chance() % (2 * self.noise + 1);
            let progress = self.natures[unit].progress(parts) * (1_000 + off - self.noise) / 1_000;
            let wants = self.natures[unit].wants(parts);
            let facts = &mut self.facts[unit];
            facts.at = self.now;
            facts.used_ns += times(progress, WINDOW);
            (0..3).for_each(|at| facts.waited_ns[at] += times(wants[at], WINDOW));
        }
    }

    fn look(&mut self, state: &mut State) -> Vec<Negotiation> {
        // Nobody does more than one CPU can, and is measured so to what noise adds.
        let cpus = MILLION * (1_000 + self.noise) / 1_000;
        let seen = Seen { units: self.facts.clone(), held: [true; 3], cpus };
        let said = state.look(self.now, &seen, &mut self.rights);
        let _ = self.rights.settle(self.now);
        said
    }
}

/// What may have been lost of a unit and was not counted yet.
fn open_risk(state: &State, unit: UnitId) -> u64 {
    let all = state.trial.iter().chain(&state.kept);
    let of = |trial: &Trial| {
        let at = trial.pair.units.iter().position(|other| *other == unit);
        at.map_or(0, |at| trial.unsure[at].1 + trial.doubt[at].1)
    };
    all.map(of).sum()
}

fn nature() -> impl Strategy<Value = Nature> {
    let kind = prop_oneof![Just(Kind::InTurn), Just(Kind::AtOnce), Just(Kind::Apart)];
    let need = prop_oneof![Just(0u64), 1u64..100];
    (kind, [need.clone(), need.clone(), need]).prop_map(|(kind, needs)| Nature { kind, needs })
}

/// One market, whose units may change once: what is promised holds at every window. How many exchanges were kept.
fn market(
    natures: Vec<Nature>,
    tickets: &[[u64; 3]],
    noise: u64,
    seed: u64,
    changes: &[(usize, usize, Nature)],
    windows: usize,
) -> usize {
    let mut world = World::new(natures, tickets, noise, seed);
    let mut state = State::default();
    let mut kept = 0;
    let mut short = vec![0u64; world.facts.len()];
    // A loss within what a window's measure is off by cannot be told from none.
    let mut hidden = vec![0u64; world.facts.len()];
    let mut changed = 0;
    let _ = world.look(&mut state);
    for window in 1..windows {
        for (_, unit, nature) in changes.iter().filter(|(at, ..)| *at == window) {
            let unit = unit % world.facts.len();
            world.natures[unit] = *nature;
            changed = window;
        }
        for (unit, (short, hidden)) in short.iter_mut().zip(&mut hidden).enumerate() {
            let without = world.progress(unit, false);
            *short += times(without.saturating_sub(world.progress(unit, true)), WINDOW);
            *hidden += times(without, WINDOW) * noise / 1_000;
        }
        world.pass();
        let said = world.look(&mut state);
        assert_eq!(world.totals(), world.all, "tickets are conserved");
        for said in said.iter().filter(|said| said.done == Move::Kept) {
            kept += 1;
            for side in said.sides {
                let at = world.facts.iter().position(|facts| facts.unit == side.unit).unwrap();
                let (with, without) = (world.progress(at, true), world.progress(at, false));
                // What changed while it was tried, the next check finds.
                let long_ago = changed == 0 || window - changed > 100;
                let margin = without * noise / 1_000;
                assert!(!long_ago || with + margin >= without, "{with} of {without}: {said:?}");
            }
        }
        for (unit, (short, hidden)) in short.iter().zip(&hidden).enumerate() {
            let id = world.facts[unit].unit;
            assert!((0..3).all(|at| world.counting(unit, true)[at] >= 1));
            let account = state.accounts.get(&id).copied().unwrap_or_default();
            let risked = account.risked_ns + open_risk(&state, id);
            // Of each window a unit of the last place.
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

    /// Nobody has less than it would have without trade by more than was risked; tickets are conserved; what is kept is in
    /// both sides' favour.
    #[test]
    fn nobody_loses_more_than_was_risked(
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

/// One computes and one reads, as in section 5.5, beside one of each.
fn two_and_two(noise: u64) -> World {
    let computes = Nature { kind: Kind::InTurn, needs: [100, 0, 0] };
    let reads = Nature { kind: Kind::InTurn, needs: [5, 0, 100] };
    World::new(vec![computes, reads, computes, reads], &[[1_000; 3]; 4], noise, 7)
}

#[test]
fn the_one_that_computes_and_the_one_that_reads_find_each_other() {
    let (mut world, mut state) = (two_and_two(0), State::default());
    let before: Vec<u64> = (0..4).map(|unit| world.progress(unit, false)).collect();
    let _ = world.look(&mut state);
    let mut said = Vec::new();
    for _ in 0..100 {
        world.pass();
        said.extend(world.look(&mut state));
    }
    let kept: Vec<_> = said.iter().filter(|said| said.done == Move::Kept).collect();
    assert_eq!(kept.len(), 2, "two pairs: {said:?}");
    for (unit, before) in before.into_iter().enumerate() {
        assert!(world.progress(unit, true) > before * 11 / 10, "unit {unit} gains a tenth at least");
    }
    // Tried from small to large.
    let levels: Vec<u64> =
        said.iter().filter(|said| said.done == Move::Tried).map(|said| said.level).collect();
    assert_eq!(levels[..2], [100, 200]);
}

/// In 100 windows the side that computes uses nine tenths of a CPU with the exchange, and gives four fifths of its disk tickets. If it
/// lived by the disk, it would have 4.5 CPUs without: the machine has one, so it would have a tenth of one more at most.
#[test]
fn what_a_trial_may_cost_is_no_more_than_the_machine_has() {
    let (mut world, mut state) = (two_and_two(0), State::default());
    let _ = world.look(&mut state);
    for _ in 0..6 {
        world.pass();
        let _ = world.look(&mut state);
    }
    let mut trial = state.trial.unwrap();
    (trial.parts, trial.unsure) = ([800_000, 0], Default::default());
    trial.passed(100 * WINDOW, [900_000, 500_000], MILLION);
    assert_eq!(trial.unsure, [(80 * WINDOW, 10 * WINDOW), (0, 0)]);
    // On eight CPUs it could have that, and four fifths of it are at stake.
    trial.unsure = Default::default();
    trial.passed(100 * WINDOW, [900_000, 500_000], 8 * MILLION);
    assert_eq!(trial.unsure[0], (80 * WINDOW, 360 * WINDOW));
}

/// The exchange ends when one side wants no more what it got.
#[test]
fn a_side_that_loses_ends_it_and_the_pair_rests_longer_each_time() {
    let (mut world, mut state) = (two_and_two(0), State::default());
    world.facts[2].negotiates = false;
    world.facts[3].negotiates = false;
    let _ = world.look(&mut state);
    let pass = |world: &mut World, state: &mut State, windows: usize| {
        let mut said = Vec::new();
        for _ in 0..windows {
            world.pass();
            said.extend(world.look(state));
        }
        said
    };
    let said = pass(&mut world, &mut state, 60);
    assert!(said.iter().any(|said| said.done == Move::Kept));
    assert_eq!(world.rights.deals().len(), 1);
    // The one that computed reads from now on.
    world.natures[0] = Nature { kind: Kind::InTurn, needs: [5, 0, 100] };
    let said = pass(&mut world, &mut state, 8);
    let lost = Why::Lost { unit: world.facts[0].unit };
    assert!(said.iter().any(|said| said.done == Move::Undone { why: lost }), "{said:?}");
    assert!(world.rights.deals().is_empty());
    assert_eq!(state.rests.values().map(|rest| rest.failures).collect::<Vec<_>>(), [1]);
}

/// What units offered themselves stays as it is, and is not served by what the negotiator offers.
#[test]
fn offers_of_units_are_left_alone() {
    let (mut world, mut state) = (two_and_two(0), State::default());
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
    let _ = world.look(&mut state);
    for _ in 0..60 {
        world.pass();
        let _ = world.look(&mut state);
        assert_eq!(world.rights.offers().values().copied().collect::<Vec<_>>(), [bid]);
    }
    assert!(!state.kept.is_empty());
}

/// Somebody who ends an exchange, or says that a unit negotiates no more, is heard.
#[test]
fn an_exchange_that_somebody_ended_is_not_made_again_at_once() {
    let (mut world, mut state) = (two_and_two(0), State::default());
    let _ = world.look(&mut state);
    for _ in 0..6 {
        world.pass();
        let _ = world.look(&mut state);
    }
    let number = *world.rights.deals().keys().next().unwrap();
    let pair = state.trial.as_ref().unwrap().pair;
    world.rights.apply(Change::Cancel { number }).unwrap();
    world.pass();
    let said = world.look(&mut state);
    assert_eq!(said[0].done, Move::Undone { why: Why::Ended });
    assert!(state.rests[&pair].until > world.now);
    for facts in &mut world.facts {
        facts.negotiates = false;
    }
    for _ in 0..20 {
        world.pass();
        let _ = world.look(&mut state);
    }
    assert!(world.rights.deals().is_empty() && !state.is_at_work());
}
