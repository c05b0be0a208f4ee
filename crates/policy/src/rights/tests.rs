use super::*;
use commonhold_contract::{Amount, Each, Given, MILLIONTH, Newcomer, PerResource, Weighed};
use proptest::prelude::*;
use reference::Plain;

mod reference;

const CPU: u64 = MILLIONTH;
use Resource::{Cpu, Disk, Memory};

fn rights(contract: &Contract, cpus: u64, present: &[UnitId]) -> Rights {
    let mut rights = Rights::new(contract);
    rights.set_capacity(Cpu, Capacity::Known(cpus * CPU));
    for id in present {
        rights.set_present(*id, true).unwrap();
    }
    rights
}

/// Seed 004, section 5.2: with B3 asleep, A1 1/6, A2 1/3, B1 1/6, B2 1/3; when it wakes, B1 1/12, B2 1/6, B3
/// 1/4, and A1 and A2 keep theirs.
#[test]
fn currencies_insulate() {
    let mut c = Contract::default();
    let (a, b) = (c.add(None, "a"), c.add(None, "b"));
    let leaves = [(a, "a1"), (a, "a2"), (b, "b1"), (b, "b2"), (b, "b3")];
    let ids = leaves.map(|(parent, name)| c.add(Some(parent), name));
    let mut r = rights(&c, 12, &ids[..4]);
    for (id, tickets) in ids.iter().zip([1, 2, 1, 2, 3]) {
        r.set_tickets(*id, Cpu, tickets).unwrap();
    }
    assert_eq!(ids.map(|id| r.own(id, Cpu) / CPU), [2, 4, 2, 4, 0]);
    r.set_present(ids[4], true).unwrap();
    assert_eq!(ids.map(|id| r.own(id, Cpu) / CPU), [2, 4, 1, 2, 3]);
    assert_eq!((r.value(a, Cpu), r.value(b, Cpu), r.issued(Some(b), Cpu)), (6 * CPU, 6 * CPU, 6));
    // The capacity of memory is unknown, and b3 has the default tickets: 1/3 of a half.
    assert_eq!(r.value(ids[4], Memory), 166_667);
}

/// 8 CPUs: 2 hard for p, the other 6 by 200:100: p 2 + 4, s 2. Without s, p has all 8; with a limit of 5, 3
/// are unheld.
#[test]
fn hard_first_then_soft_then_limits() {
    let mut c = Contract::default();
    let (p, s) = (c.add(None, "p"), c.add(None, "s"));
    c.units[p.index()].hard.cpu = Some(Amount::Absolute(2 * CPU));
    let mut r = rights(&c, 8, &[p, s]);
    r.issue(p, Cpu, 100).unwrap();
    assert_eq!((r.own(p, Cpu), r.own(s, Cpu), r.unheld(Cpu)), (6 * CPU, 2 * CPU, 0));
    r.set_present(s, false).unwrap();
    assert_eq!((r.own(p, Cpu), r.own(s, Cpu)), (8 * CPU, 0));
    c.units[p.index()].limit.cpu = Some(Amount::Absolute(5 * CPU));
    r.adopt(&c);
    assert_eq!((r.own(p, Cpu), r.unheld(Cpu), r.tickets(p, Cpu)), (5 * CPU, 3 * CPU, 200));
}

/// Five limits of 1, 2, 3, 4 and 5 CPUs, and two units without: 14 CPUs by equal tickets are 2 each; the
/// first is limited to 1, so 13/6 each; then the second is full as well: 11/5 for each of the others.
#[test]
fn the_remainder_of_full_units_goes_to_the_others() {
    let mut c = Contract::default();
    let ids: Vec<UnitId> = (0..7).map(|n| c.add(None, &format!("u{n}"))).collect();
    for (id, cpus) in ids[2..].iter().zip(1..) {
        c.units[id.index()].limit.cpu = Some(Amount::Absolute(cpus * CPU));
    }
    let r = rights(&c, 14, &ids);
    let values: Vec<u64> = ids.iter().map(|id| r.value(*id, Cpu)).collect();
    assert_eq!(values, [2_200_000, 2_200_000, CPU, 2 * CPU, 2_200_000, 2_200_000, 2_200_000]);
}

/// 4 CPUs for p alone; its own processes count as a sub-unit of 100 tickets beside one of 300: 1 and 3.
#[test]
fn own_processes_are_one_more_sub_unit() {
    let mut c = Contract::default();
    let p = c.add(None, "p");
    let sub = c.add(Some(p), "sub");
    let mut r = rights(&c, 4, &[p, sub]);
    r.set_tickets(sub, Cpu, 300).unwrap();
    assert_eq!((r.value(p, Cpu), r.own(p, Cpu), r.own(sub, Cpu)), (4 * CPU, CPU, 3 * CPU));
    r.set_present(p, false).unwrap();
    assert_eq!((r.own(p, Cpu), r.own(sub, Cpu)), (0, 4 * CPU));
    // A limited sub-unit leaves the rest to its encloser, which has no processes of its own.
    c.units[sub.index()].limit.cpu = Some(Amount::Part(MILLIONTH / 4));
    r.adopt(&c);
    assert_eq!((r.own(p, Cpu), r.own(sub, Cpu), r.unheld(Cpu)), (3 * CPU, CPU, 0));
}

/// 100 by 1:1:1 is 33, 33, 34: of 33 1/3, 66 2/3 and 100 rounded down.
#[test]
fn parts_are_rounded_by_sums() {
    let mut c = Contract::default();
    let ids = ["a", "b", "c"].map(|name| c.add(None, name));
    let mut r = rights(&c, 1, &ids);
    r.set_capacity(Cpu, Capacity::Known(100));
    assert_eq!(ids.map(|id| r.value(id, Cpu)), [33, 33, 34]);
    assert_eq!(r.at_capacity(Cpu, Capacity::Known(10)).all().value[2..], [3, 3, 4]);
}

/// Under `quota` all parts wait for their owners: presence changes nothing, except that a unit with sub-units
/// has an own part while it has processes of its own.
#[test]
fn a_quota_waits_for_its_owner() {
    let mut c = Contract::default();
    c.machine.scheme = Scheme::Quota;
    let (p, s) = (c.add(None, "p"), c.add(None, "s"));
    let sub = c.add(Some(p), "sub");
    let mut r = rights(&c, 4, &[]);
    assert_eq!([p, s, sub].map(|id| r.own(id, Cpu) / CPU), [0, 2, 2]);
    r.set_present(s, true).unwrap();
    r.set_present(p, true).unwrap();
    assert_eq!([p, s, sub].map(|id| r.own(id, Cpu) / CPU), [1, 2, 1]);
    r.set_present(s, false).unwrap();
    assert_eq!(r.own(s, Cpu), 2 * CPU);
}

/// A Slurm prolog sets a job's memory tickets before Slurm sets its CPUs: the former stay, other resources
/// follow the CPUs.
#[test]
fn changed_tickets_of_a_job_stay_when_its_manager_sets_cpus() {
    let mut c = Contract::default();
    let slurm = c.add(None, "slurm");
    let around = &mut c.units[slurm.index()];
    (around.each, around.each_by) = (Some(Each::Cgroup), Weighed::Cpus);
    let job = Newcomer::group(slurm, "/slurmstepd.scope/job_17", Given::default());
    c.welcome(&[job], &std::collections::BTreeSet::new());
    let job = c.find("slurm/job_17").unwrap();
    let mut r = rights(&c, 4, &[job]);
    r.apply(Change::Set { unit: job, resource: Memory, tickets: 800 }).unwrap();
    for (cpus, tickets) in [(2, 200), (3, 300)] {
        assert!(c.give_cpus(&[(job, cpus)]));
        r.follow(&c);
        assert_eq!([Cpu, Memory, Disk].map(|of| r.tickets(job, of)), [tickets, 800, tickets]);
    }
}

/// Seed 004, section 5.5: seven units with 1,000 CPU and 1,000 disk tickets each; two exchange 800 for 800.
#[test]
fn an_exchange_changes_no_other_value() {
    let mut c = Contract::default();
    let ids = [0, 1, 2, 3, 4, 5, 6].map(|n| c.add(None, &format!("u{n}")));
    let mut r = rights(&c, 7, &ids);
    r.set_capacity(Disk, Capacity::Known(7000));
    for id in ids {
        r.set_tickets(id, Cpu, 1000).unwrap();
        r.set_tickets(id, Disk, 1000).unwrap();
    }
    let offer = |resource| Offer::tickets(resource, 800);
    let change = Change::Exchange { one: ids[0], other: ids[1], gives: offer(Disk), gets: offer(Cpu) };
    r.apply(change).unwrap();
    assert_eq!(ids.map(|id| r.value(id, Cpu) / 1000), [1800, 200, 1000, 1000, 1000, 1000, 1000]);
    assert_eq!(ids.map(|id| r.value(id, Disk)), [200, 1800, 1000, 1000, 1000, 1000, 1000]);
    // It has 200 disk tickets left, so the same again is refused, and neither half takes effect.
    let refused = r.apply(change);
    assert_eq!(refused, Err(Refused::TooFew { unit: ids[0], resource: Disk, has: 200, fewer: 800 }));
    let other_way = Change::Exchange { one: ids[0], other: ids[1], gives: offer(Cpu), gets: offer(Memory) };
    assert!(r.apply(other_way).is_err());
    assert_eq!(
        [ids[0], ids[1]].map(|id| (r.tickets(id, Cpu), r.tickets(id, Disk))),
        [(1800, 200), (200, 1800)]
    );
}

#[test]
fn invalid_changes_are_refused() {
    let mut c = Contract::default();
    let (p, s) = (c.add(None, "p"), c.add(None, "s"));
    let sub = c.add(Some(p), "sub");
    let mut r = rights(&c, 1, &[]);
    let unknown = |unit| Err(Refused::Unknown { unit });
    assert_eq!(r.set_present(UnitId(5), true), unknown(UnitId(5)));
    assert_eq!(r.issue(UnitId::SHARED, Cpu, 1), unknown(UnitId::SHARED));
    assert_eq!(r.transfer(p, UnitId(9), Cpu, 1), unknown(UnitId(9)));
    assert_eq!(r.transfer(sub, s, Cpu, 1), Err(Refused::Enclosers { from: sub, to: s }));
    assert_eq!(r.transfer(p, p, Cpu, 1), Err(Refused::Itself { unit: p }));
    let too_few = |fewer| Err(Refused::TooFew { unit: p, resource: Cpu, has: 100, fewer });
    assert_eq!((r.take_back(p, Cpu, 100), r.set_tickets(p, Cpu, 0)), (too_few(100), too_few(100)));
    assert_eq!((r.take_back(p, Cpu, 101), r.transfer(p, s, Cpu, 100)), (too_few(101), too_few(100)));
    let too_many = |unit, has, more| Err(Refused::TooMany { unit, resource: Cpu, has, more });
    assert_eq!(r.issue(p, Cpu, u64::MAX), too_many(p, 100, u64::MAX));
    assert_eq!(r.set_tickets(p, Cpu, TICKETS_MAX + 1), too_many(p, 100, TICKETS_MAX - 99));
    assert_eq!(r.set_tickets(p, Cpu, TICKETS_MAX), Ok(()));
    assert_eq!(r.transfer(s, p, Cpu, 1), too_many(p, TICKETS_MAX, 1));
    assert_eq!((r.tickets(p, Cpu), r.tickets(s, Cpu), r.tickets(p, Disk)), (TICKETS_MAX, 100, 100));
    assert_eq!((r.tickets(UnitId(7), Cpu), r.value(UnitId(7), Cpu), r.own(UnitId(7), Cpu)), (0, 0, 0));
    let text = Refused::TooFew { unit: s, resource: Disk, has: 100, fewer: 100 }.to_string();
    assert_eq!(text, "unit 3 has 100 disk tickets: 100 fewer would leave it none");
}

#[test]
fn a_contract_has_the_same_maximum_of_tickets() {
    let errors = |tickets: u64| {
        let text = format!("version = 1\n[unit.a]\nmembers = [\"user:ana\"]\ntickets = {tickets}\n");
        commonhold_contract::parse(&text).diagnostics.len()
    };
    assert_eq!((errors(TICKETS_MAX), errors(1)), (0, 0));
    assert!(errors(TICKETS_MAX + 1) > 0 && errors(0) > 0);
}

#[test]
fn a_journal_can_keep_changes() {
    let transfer = Change::Transfer { from: UnitId(2), to: UnitId(3), resource: Disk, tickets: 40 };
    let gives = Offer::tickets(Disk, 1);
    let exchange = Change::Exchange { one: UnitId(2), other: UnitId(3), gives, gets: gives };
    for change in [transfer, exchange, Change::TakeBack { unit: UnitId(2), resource: Cpu, tickets: 1 }] {
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(serde_json::from_str::<Change>(&text).unwrap(), change);
    }
    let text = r#"{"transfer":{"from":2,"to":3,"resource":"disk","tickets":40}}"#;
    assert_eq!(serde_json::to_string(&transfer).unwrap(), text);
}

#[test]
fn a_change_is_about_every_unit_and_resource_once() {
    let (one, other) = (UnitId(3), UnitId(4));
    let (gives, gets) = (Offer::tickets(Disk, 1), Offer::tickets(Cpu, 2));
    let exchange = Change::Exchange { one, other, gives, gets };
    assert_eq!(exchange.about(), [(one, Disk), (one, Cpu), (other, Disk), (other, Cpu)]);
    let same = Change::Exchange { one, other, gives: gets, gets };
    assert_eq!(same.about(), [(one, Cpu), (other, Cpu)]);
    assert_eq!(Change::Set { unit: one, resource: Cpu, tickets: 1 }.about(), [(one, Cpu)]);
    let tickets = PerResource { disk: Some(1), cpu: Some(2), ..PerResource::default() };
    let several = Change::Several { unit: one, how: How::Set, tickets };
    assert_eq!(several.about(), [(one, Cpu), (one, Disk)]);
}

/// One of several numbers is too large, too small, or below what is lent: nothing changes.
#[test]
fn several_are_changed_or_none() {
    let mut c = Contract::default();
    let (p, s) = (c.add(None, "p"), c.add(None, "s"));
    let mut r = rights(&c, 1, &[p, s]);
    let several = |how, cpu, disk| {
        let tickets = PerResource { cpu: Some(cpu), disk: Some(disk), ..PerResource::default() };
        Change::Several { unit: p, how, tickets }
    };
    let has = |r: &Rights| Resource::ALL.map(|resource| r.tickets(p, resource));
    r.apply(several(How::Set, 200, 50)).unwrap();
    assert_eq!(has(&r), [200, 100, 50, 100]);
    r.apply(several(How::Issue, 1, 2)).unwrap();
    r.apply(several(How::TakeBack, 51, 2)).unwrap();
    assert_eq!(has(&r), [150, 100, 50, 100]);
    let before = r.clone();
    for (change, refused) in [
        (several(How::Set, 7, 0), Refused::TooFew { unit: p, resource: Disk, has: 50, fewer: 50 }),
        (
            several(How::Set, TICKETS_MAX + 1, 7),
            Refused::TooMany { unit: p, resource: Cpu, has: 150, more: TICKETS_MAX - 149 },
        ),
        (
            several(How::Issue, 1, u64::MAX),
            Refused::TooMany { unit: p, resource: Disk, has: 50, more: u64::MAX },
        ),
        (several(How::TakeBack, 1, 50), Refused::TooFew { unit: p, resource: Disk, has: 50, fewer: 50 }),
    ] {
        assert_eq!(r.apply(change), Err(refused));
        assert!(r == before, "{change:?}");
    }
    let unknown = Change::Several { unit: UnitId(9), how: How::Set, tickets: PerResource::default() };
    assert_eq!(r.apply(unknown), Err(Refused::Unknown { unit: UnitId(9) }));
    let text = serde_json::to_string(&several(How::TakeBack, 1, 2)).unwrap();
    assert_eq!(serde_json::from_str::<Change>(&text).unwrap(), several(How::TakeBack, 1, 2));
}

/// A reload: units that stay keep changes, except of resources for which the contract gives a new number.
#[test]
fn a_reload_keeps_changes_unless_the_contract_changed_too() {
    let mut c = Contract::default();
    let (p, s) = (c.add(None, "p"), c.add(None, "s"));
    let sub = c.add(Some(p), "sub");
    let mut r = rights(&c, 4, &[p, s, sub]);
    r.transfer(s, p, Cpu, 40).unwrap();
    r.issue(sub, Cpu, 7).unwrap();
    r.set_present_for(s, Disk, false).unwrap();
    r.issue(s, Disk, 5).unwrap();
    c.units[p.index()].tickets.cpu = 200;
    c.units[s.index()].tickets.disk = 30;
    c.units[sub.index()].parent = Some(s);
    let new = c.add(None, "new");
    r.adopt(&c);
    assert_eq!([p, s, sub, new].map(|id| r.tickets(id, Cpu)), [200, 60, 100, 100]);
    assert_eq!([p, s, sub, new].map(|id| r.tickets(id, Disk)), [100, 30, 100, 100]);
    assert_eq!([p, s, sub, new].map(|id| r.is_active(id, Cpu)), [true, true, true, false]);
    assert_eq!([p, s, sub, new].map(|id| r.is_active(id, Disk)), [true, true, true, false]);
    r.set_present(sub, false).unwrap();
    assert_eq!([p, s, sub, new].map(|id| r.is_active(id, Disk)), [true, false, false, false]);
    assert_eq!(r.capacity(Cpu), Capacity::Known(4 * CPU));
}

/// A unit of a contract: a random number for its encloser, its tickets, reservation and limit.
type UnitSpec = (usize, u64, Option<Amount>, Option<Amount>);

fn any_amount(most: u64) -> impl Strategy<Value = Option<Amount>> {
    // Few distinct values, so that some units share a class.
    let part = (0u64..=8).prop_map(move |eighths| Amount::Part(most * eighths / 8));
    let absolute = prop_oneof![
        (0u64..40).prop_map(Amount::Absolute),
        (0u64..9).prop_map(|half_cpus| Amount::Absolute(half_cpus * CPU / 2)),
        Just(Amount::Absolute(u64::MAX)),
    ];
    prop_oneof![3 => Just(None), 1 => part.prop_map(Some), 1 => absolute.prop_map(Some)]
}

fn any_unit() -> impl Strategy<Value = UnitSpec> {
    let tickets = prop_oneof![1u64..4, 1u64..500, 1u64..=TICKETS_MAX];
    (0usize..1000, tickets, any_amount(MILLIONTH / 4), any_amount(MILLIONTH))
}

fn contract(units: &[UnitSpec], scheme: Scheme) -> Contract {
    let mut c = Contract::default();
    c.machine.scheme = scheme;
    for (n, (seed, tickets, hard, limit)) in units.iter().enumerate() {
        // Half of the units are at the top; some of the earlier ones enclose others.
        let parent = (seed % 2 == 1 && n > 0).then(|| UnitId(u32::try_from(2 + seed / 2 % n).unwrap()));
        let id = c.add(parent, &format!("u{n}"));
        let unit = &mut c.units[id.index()];
        unit.tickets = PerResource::all(*tickets);
        // The same for two resources, so that each history exercises both, from different states.
        (unit.hard.cpu, unit.limit.cpu) = (*hard, *limit);
        (unit.hard.disk, unit.limit.disk) = (*limit, *hard);
    }
    c
}

fn any_contract(units: usize) -> impl Strategy<Value = Contract> {
    let scheme = prop_oneof![4 => Just(Scheme::Isolate), 1 => Just(Scheme::Quota)];
    (proptest::collection::vec(any_unit(), 1..units), scheme)
        .prop_map(|(units, scheme)| contract(&units, scheme))
}

fn any_capacity() -> impl Strategy<Value = Capacity> {
    prop_oneof![
        Just(Capacity::Parts),
        (0u64..200).prop_map(Capacity::Known),
        (0u64..64).prop_map(|cpus| Capacity::Known(cpus * CPU)),
        // The reference multiplies by sums of tickets in 128 bits.
        (0u64..1 << 60).prop_map(Capacity::Known),
    ]
}

/// A random event. Units are given as indices among those that exist.
#[derive(Debug, Clone)]
enum Event {
    Present(usize, bool),
    PresentFor(usize, Resource, bool),
    Change(usize, usize, usize, Resource, u64),
    Capacity(Resource, Capacity),
    Adopt(Contract),
}

fn any_resource() -> impl Strategy<Value = Resource> {
    prop_oneof![Just(Cpu), Just(Disk)]
}

fn any_event(units: usize) -> impl Strategy<Value = Event> {
    let tickets = prop_oneof![0u64..200, 0u64..=TICKETS_MAX, any::<u64>()];
    let change = (0usize..8, 0..units, 0..units, any_resource(), tickets);
    prop_oneof![
        6 => (0..units, any::<bool>()).prop_map(|(n, present)| Event::Present(n, present)),
        2 => (0..units, any_resource(), any::<bool>()).prop_map(|(n, r, present)| Event::PresentFor(n, r, present)),
        6 => change.prop_map(|(kind, a, b, r, tickets)| Event::Change(kind, a, b, r, tickets)),
        1 => (any_resource(), any_capacity()).prop_map(|(r, capacity)| Event::Capacity(r, capacity)),
        1 => any_contract(units).prop_map(Event::Adopt),
    ]
}

/// The implementation and the reference model, after the same events.
struct Both {
    rights: Rights,
    plain: Plain,
}

impl Both {
    fn new(contract: &Contract) -> Both {
        Both { rights: Rights::new(contract), plain: Plain::new(contract) }
    }

    fn unit(&self, n: usize) -> UnitId {
        UnitId(u32::try_from(2 + n % (self.plain.contract.units.len() - 2)).unwrap())
    }

    /// A sibling of a unit, or itself if it has none, so that most transfers are between siblings.
    fn sibling(&self, unit: UnitId, n: usize) -> UnitId {
        let siblings: Vec<UnitId> =
            self.plain.contract.children(self.plain.contract.unit(unit).parent).collect();
        siblings[n % siblings.len()]
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Present(n, present) => {
                let unit = self.unit(*n);
                self.rights.set_present(unit, *present).unwrap();
                for resource in Resource::ALL {
                    self.plain.present.insert((unit, resource), *present);
                }
            }
            Event::PresentFor(n, resource, present) => {
                let unit = self.unit(*n);
                self.rights.set_present_for(unit, *resource, *present).unwrap();
                self.plain.present.insert((unit, *resource), *present);
            }
            Event::Change(kind, a, b, resource, tickets) => self.change(*kind, *a, *b, *resource, *tickets),
            Event::Capacity(resource, capacity) => {
                self.rights.set_capacity(*resource, *capacity);
                self.plain.capacity.insert(*resource, *capacity);
            }
            Event::Adopt(contract) => {
                self.rights.adopt(contract);
                self.plain = self.plain.adopted(contract);
            }
        }
    }

    /// Changes tickets by the simple rule: the result must be within bounds.
    fn change(&mut self, kind: usize, a: usize, b: usize, resource: Resource, tickets: u64) {
        let unit = self.unit(a);
        let other = if b.is_multiple_of(8) { self.unit(b) } else { self.sibling(unit, b) };
        let back = tickets / 3;
        let amount = |id: UnitId, more: i128| ((id, resource), more);
        let signed = i128::from(tickets);
        let (change, moves) = match kind {
            0 => {
                let has = i128::from(self.plain.tickets[&(unit, resource)]);
                (Change::Set { unit, resource, tickets }, vec![amount(unit, signed - has)])
            }
            1 => (Change::Issue { unit, resource, tickets }, vec![amount(unit, signed)]),
            2 => (Change::TakeBack { unit, resource, tickets }, vec![amount(unit, -signed)]),
            3 => {
                let moves = vec![amount(unit, -signed), amount(other, signed)];
                (Change::Transfer { from: unit, to: other, resource, tickets }, moves)
            }
            5.. => {
                // Two resources at once: if one number is refused, neither changes.
                let how = [How::Set, How::Issue, How::TakeBack][kind - 5];
                let mut several = PerResource::default();
                (several[resource], several[Memory]) = (Some(tickets), Some(back));
                let moves = [(resource, tickets), (Memory, back)].map(|(resource, tickets)| {
                    let has = i128::from(self.plain.tickets[&(unit, resource)]);
                    let more = match how {
                        How::Set => i128::from(tickets) - has,
                        How::Issue => i128::from(tickets),
                        How::TakeBack => -i128::from(tickets),
                    };
                    ((unit, resource), more)
                });
                (Change::Several { unit, how, tickets: several }, moves.to_vec())
            }
            _ => {
                let for_memory = Offer::tickets(Memory, back);
                let gives = Offer::tickets(resource, tickets);
                let back = i128::from(back);
                let moves = vec![
                    amount(unit, -signed),
                    amount(other, signed),
                    ((other, Memory), -back),
                    ((unit, Memory), back),
                ];
                (Change::Exchange { one: unit, other, gives, gets: for_memory }, moves)
            }
        };
        let mut after = self.plain.tickets.clone();
        let mut good = ![3, 4].contains(&kind)
            || unit != other
                && self.plain.contract.unit(unit).parent == self.plain.contract.unit(other).parent;
        for (key, more) in moves {
            let now = i128::from(after[&key]) + more;
            good &= (1..=i128::from(TICKETS_MAX)).contains(&now);
            after.insert(key, u64::try_from(now.clamp(0, 1 << 62)).unwrap());
        }
        assert_eq!(self.rights.apply(change).is_ok(), good, "{change:?}");
        if good {
            self.plain.tickets = after;
        }
    }

    /// Compares every value through every accessor.
    fn check(&self) {
        for resource in [Cpu, Disk, Memory] {
            let capacity = self.plain.capacity(resource);
            let due = self.plain.all(resource, capacity);
            assert_eq!(self.rights.entitlement(resource), due);
            assert_eq!(due.own.iter().sum::<u64>() + due.unheld, capacity.total());
            assert_eq!(self.rights.unheld(resource), due.unheld);
            let mut issued: BTreeMap<Option<UnitId>, u64> = BTreeMap::new();
            for id in self.plain.contract.held() {
                let (value, own) = (self.rights.value(id, resource), self.rights.own(id, resource));
                assert_eq!((value, own), (due.value(id), due.own(id)), "{id:?}");
                assert_eq!(self.rights.is_active(id, resource), self.plain.is_active(id, resource));
                let tickets = self.plain.tickets[&(id, resource)];
                assert_eq!(self.rights.tickets(id, resource), tickets);
                if self.plain.is_active(id, resource) {
                    *issued.entry(self.plain.contract.unit(id).parent).or_default() += tickets;
                }
                if self.plain.is_present(id, resource) {
                    *issued.entry(Some(id)).or_default() += DEFAULT_TICKETS;
                }
                self.check_level(id, resource, &due);
            }
            for (level, tickets) in issued {
                assert_eq!(self.rights.issued(level, resource), tickets);
            }
        }
        let other = self.rights.at_capacity(Cpu, Capacity::Known(12_345));
        assert_eq!(other.all(), self.plain.all(Cpu, Capacity::Known(12_345)));
    }

    /// The same rights, built directly.
    fn in_one_go(&self) -> Rights {
        let mut rights = Rights::new(&self.plain.contract);
        for ((unit, resource), tickets) in &self.plain.tickets {
            rights.set_tickets(*unit, *resource, *tickets).unwrap();
            rights.set_present_for(*unit, *resource, self.plain.is_set_present(*unit, *resource)).unwrap();
        }
        for (resource, capacity) in &self.plain.capacity {
            rights.set_capacity(*resource, *capacity);
        }
        rights
    }

    /// A unit's value equals its own part plus its sub-units' values, and is within its limit.
    fn check_level(&self, id: UnitId, resource: Resource, due: &Entitlement) {
        let contract = &self.plain.contract;
        let below: u64 = contract.children(Some(id)).map(|sub| due.value(sub)).sum();
        assert_eq!(due.value(id), due.own(id) + below);
        let capacity = self.plain.capacity(resource);
        let whole = contract.unit(id).parent.map_or(capacity.total(), |parent| due.value(parent));
        if let Some(limit) = capacity.weigh(contract.unit(id).limit[resource], whole) {
            assert!(due.value(id) <= limit);
        }
    }
}

/// The state after a random history.
fn any_both(units: usize, events: usize) -> impl Strategy<Value = Both> {
    let history = proptest::collection::vec(any_event(units), 0..events);
    (any_contract(units), any_capacity(), history).prop_map(|(contract, capacity, history)| {
        let mut both = Both::new(&contract);
        both.happen(&Event::Capacity(Cpu, capacity));
        for event in &history {
            both.happen(event);
        }
        both
    })
}

impl std::fmt::Debug for Both {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units: Vec<_> = self
            .plain
            .contract
            .held()
            .map(|id| self.plain.contract.unit(id))
            .map(|u| (u.parent, u.hard.cpu, u.limit.cpu))
            .collect();
        write!(f, "{units:?} {:?} {:?} {:?}", self.plain.tickets, self.plain.present, self.plain.capacity)
    }
}

fn is_within(contract: &Contract, unit: UnitId, encloser: UnitId) -> bool {
    crate::membership::is_within(contract, unit, encloser)
}

proptest! {
    /// After every event, all values equal those of a full recomputation.
    #[test]
    fn any_history_comes_to_a_full_recomputation(
        contract in any_contract(14),
        history in proptest::collection::vec(any_event(14), 1..30),
    ) {
        let mut both = Both::new(&contract);
        both.check();
        for event in &history {
            both.happen(event);
            both.check();
        }
    }

    /// A change inside a unit whose activity does not change has no effect outside it.
    #[test]
    fn rights_are_local(
        mut both in any_both(14, 30), n in 0usize..14, a in 0usize..14, b in 0usize..14, event in any_event(14),
    ) {
        let contract = both.plain.contract.clone();
        let unit = both.unit(n);
        let inside: Vec<UnitId> = contract.held().filter(|id| is_within(&contract, *id, unit)).collect();
        // The unit's own presence is inside, its tickets are not.
        let number = |id: UnitId| id.index() - 2;
        let present = number(inside[a % inside.len()]);
        let subs: Vec<UnitId> = inside.iter().copied().filter(|id| *id != unit).collect();
        let event = match event {
            Event::Change(kind, _, _, resource, tickets) if !subs.is_empty() => {
                // An odd number is a sibling's.
                Event::Change(kind, number(subs[a % subs.len()]), b | 1, resource, tickets)
            }
            Event::PresentFor(_, resource, there) => Event::PresentFor(present, resource, there),
            _ => Event::Present(present, a % 2 == 0),
        };
        let before = both.rights.clone();
        both.happen(&event);
        for resource in [Cpu, Disk] {
            if both.rights.is_active(unit, resource) == before.is_active(unit, resource) {
                for id in contract.held().filter(|id| *id == unit || !inside.contains(id)) {
                    prop_assert_eq!(both.rights.value(id, resource), before.value(id, resource));
                }
            }
        }
    }

    /// Equality of rights does not depend on history, and one difference breaks it.
    #[test]
    fn equal_rights(mut both in any_both(14, 30), n in 0usize..14) {
        prop_assert!(both.rights == both.in_one_go());
        let (before, unit) = (both.rights.clone(), both.unit(n));
        let tickets = both.rights.tickets(unit, Disk);
        both.rights.set_tickets(unit, Disk, if tickets > 1 { tickets - 1 } else { 2 }).unwrap();
        prop_assert!(both.rights != before);
    }

    /// With tickets alone, a part is within 1 of its exact value.
    #[test]
    fn parts_are_near_their_exact_value(
        tickets in proptest::collection::vec(1u64..=TICKETS_MAX, 1..40), total in 0u64..1 << 50,
    ) {
        let mut c = Contract::default();
        let ids: Vec<UnitId> = (0..tickets.len()).map(|n| c.add(None, &format!("u{n}"))).collect();
        let mut r = rights(&c, 1, &ids);
        r.set_capacity(Cpu, Capacity::Known(total));
        for (id, tickets) in ids.iter().zip(&tickets) {
            r.set_tickets(*id, Cpu, *tickets).unwrap();
        }
        let sum = u128::from(tickets.iter().sum::<u64>());
        for (id, tickets) in ids.iter().zip(&tickets) {
            let exact = u128::from(total) * u128::from(*tickets);
            prop_assert!((u128::from(r.value(*id, Cpu)) * sum).abs_diff(exact) < sum);
        }
    }

    /// A unit that becomes active makes no active unit richer anywhere, within rounding at each level and for
    /// each percentage.
    #[test]
    fn a_unit_that_becomes_active_makes_no_unit_richer(mut both in any_both(14, 30), n in 0usize..14) {
        let contract = both.plain.contract.clone();
        let unit = both.unit(n);
        for id in contract.held().filter(|id| is_within(&contract, *id, unit)) {
            both.rights.set_present(id, false).unwrap();
        }
        let before = both.rights.clone();
        both.rights.set_present(unit, true).unwrap();
        for id in contract.held().filter(|id| before.is_active(*id, Cpu)) {
            prop_assert!(both.rights.value(id, Cpu) <= before.value(id, Cpu) + 28);
        }
    }

    /// More tickets are never worth less, within rounding.
    #[test]
    fn more_tickets_are_never_worth_less(mut both in any_both(14, 30), n in 0usize..14, more in 1u64..10_000) {
        let unit = both.unit(n);
        both.rights.set_present(unit, true).unwrap();
        let before = both.rights.value(unit, Cpu);
        let many = (both.rights.tickets(unit, Cpu) + more).min(TICKETS_MAX);
        both.rights.set_tickets(unit, Cpu, many).unwrap();
        prop_assert!(both.rights.value(unit, Cpu) + 1 >= before);
    }

    /// A unit that becomes active makes no active sibling richer, within rounding, whatever limits and
    /// reservations there are.
    #[test]
    fn a_unit_that_becomes_active_makes_no_sibling_richer(mut both in any_both(14, 30), n in 0usize..14) {
        let contract = both.plain.contract.clone();
        let unit = both.unit(n);
        let parent = contract.unit(unit).parent;
        for id in contract.held().filter(|id| is_within(&contract, *id, unit)) {
            both.rights.set_present(id, false).unwrap();
        }
        if let Some(parent) = parent {
            both.rights.set_present(parent, true).unwrap();
        }
        let before = both.rights.clone();
        both.rights.set_present(unit, true).unwrap();
        for id in contract.children(parent).filter(|id| *id != unit) {
            prop_assert!(both.rights.value(id, Cpu) <= before.value(id, Cpu) + 1);
        }
        // Nor the encloser's own processes.
        if let Some(parent) = parent {
            prop_assert!(both.rights.value(parent, Cpu) == before.value(parent, Cpu));
        }
    }

    /// A transfer between two active siblings without limits changes siblings within rounding only, and
    /// nothing outside their encloser.
    #[test]
    fn a_transfer_changes_no_other_value(mut both in any_both(14, 30), a in 0usize..100, b in 0usize..100, tickets: u64) {
        let contract = both.plain.contract.clone();
        let open = |id: &UnitId| contract.unit(*id).limit.cpu.is_none();
        let siblings = |id: UnitId| contract.children(contract.unit(id).parent).filter(open).collect::<Vec<_>>();
        let givers: Vec<UnitId> = contract.held().filter(open).filter(|id| siblings(*id).len() > 1).collect();
        if givers.is_empty() {
            return Ok(());
        }
        let from = givers[a % givers.len()];
        let takers: Vec<UnitId> = siblings(from).into_iter().filter(|id| *id != from).collect();
        let to = takers[b % takers.len()];
        both.rights.set_present(from, true).unwrap();
        both.rights.set_present(to, true).unwrap();
        let before = both.rights.clone();
        let room = TICKETS_MAX - before.tickets(to, Cpu);
        both.rights.transfer(from, to, Cpu, (tickets % before.tickets(from, Cpu)).min(room)).unwrap();
        let parent = contract.unit(from).parent;
        let value = |rights: &Rights, id| rights.value(id, Cpu);
        for id in contract.held().filter(|id| ![from, to].contains(id)) {
            if contract.unit(id).parent == parent {
                prop_assert!(value(&both.rights, id).abs_diff(value(&before, id)) <= 1);
            } else if parent.is_some_and(|parent| id == parent || !is_within(&contract, id, parent)) {
                prop_assert_eq!(value(&both.rights, id), value(&before, id));
            }
        }
        prop_assert!(value(&both.rights, to) + 1 >= value(&before, to));
        prop_assert!(value(&both.rights, from) <= value(&before, from) + 1);
    }

    /// An exchange among others never takes from a unit what it would have with all siblings active and none
    /// limited (seed 004, section 5.5). Only tickets are tested; with reservations, this holds for what they
    /// leave.
    #[test]
    fn an_exchange_leaves_others_their_right(
        tickets in proptest::collection::vec((1u64..1000, any::<bool>(), proptest::option::of(0u64..4 * CPU)), 3..10),
        from in 0usize..10, to in 0usize..10, many in 1u64..1000,
    ) {
        let mut c = Contract::default();
        let n = tickets.len();
        for (i, (tickets, _, limit)) in tickets.iter().enumerate() {
            let id = c.add(None, &format!("u{i}"));
            c.units[id.index()].tickets = PerResource::all(*tickets);
            c.units[id.index()].limit.cpu = limit.map(Amount::Absolute);
        }
        let ids: Vec<UnitId> = c.held().collect();
        let there: Vec<UnitId> = ids.iter().zip(&tickets).filter(|(_, (_, present, _))| *present).map(|(id, _)| *id).collect();
        let mut r = rights(&c, 8, &there);
        let (from, to) = (from % n, if from % n == to % n { (to + 1) % n } else { to % n });
        r.transfer(ids[from], ids[to], Cpu, many % tickets[from].0).unwrap();
        let all: u64 = tickets.iter().map(|(tickets, ..)| tickets).sum();
        for (i, id) in ids.iter().enumerate().filter(|(i, id)| ![from, to].contains(i) && there.contains(id)) {
            let right = 8 * CPU * tickets[i].0 / all;
            let right = tickets[i].2.map_or(right, |limit| right.min(limit));
            prop_assert!(r.value(*id, Cpu) + 1 >= right);
        }
    }
}

proptest! {
    // The full recomputation is slow.
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// As above, with many siblings.
    #[test]
    fn many_siblings_come_to_a_full_recomputation(both in any_both(120, 250)) {
        both.check();
    }
}
