//! Persists changed tickets, offers and exchanges, so that the next daemon can restore them. Entries that the
//! contract in force no longer allows expire:
//!
//! - A change of tickets expires when the contract no longer has the unit, or when the contract's own number
//!   of tickets is no longer that of the time of the change. The second rule does not apply to sub-units that
//!   `each` makes for control groups: the contract does not state their tickets, which may follow the CPUs
//!   that the groups' manager sets.
//! - A change for a sub-unit that `each` will make, but that does not exist yet, *waits* until the sub-unit
//!   exists.
//! - An offer or an exchange waits until all of its units exist. It expires when the contract drops one of
//!   these units. An exchange also expires at its deadline. Offers and exchanges that end with a program are
//!   not persisted.

use std::path::{Path, PathBuf};

use commonhold_contract::{Contract, PerResource, Resource, UnitId};
use commonhold_live::LiveError;
use commonhold_live::undo::tickets::{
    self, AllKept, KeptExchange, KeptFunds, KeptLeg, KeptOffer, KeptTickets,
};
use commonhold_policy::Time;
use commonhold_policy::rights::{Bid, Change, Deal, Leg, Resumed, Rights};
use commonhold_steward::Changed;

const NS_PER_MS: u64 = 1_000_000;

/// The file of persisted rights in a daemon's directory.
pub(super) struct Keeper {
    directory: PathBuf,
    /// The entries that the file has.
    kept: AllKept,
    /// Whether the file may differ from `kept`, because a write failed.
    in_doubt: bool,
    /// Whether there is a file that could not be read. Before a new one is written, it is renamed.
    unreadable: bool,
    /// The entries about units that do not exist yet.
    waiting: AllKept,
    /// The number of units when the waiting entries were last looked up.
    units_at_lookup: usize,
}

/// Why a persisted entry is not in force.
enum NotInForce {
    /// A unit of the entry does not exist yet.
    Waiting,
    /// The entry has expired; a note for the user says why.
    Expired(String),
}

impl Keeper {
    /// Reads the file that an earlier daemon wrote. If the file cannot be read, returns a keeper without
    /// entries, and the problem in words.
    pub(super) fn open(directory: &Path) -> (Keeper, Option<String>) {
        let (kept, problem) = match tickets::read(directory) {
            Ok(kept) => (kept, None),
            Err(e) => {
                let aside = tickets::aside(directory);
                let stays = format!(
                    "it stays as it is; once tickets change, its name is {}",
                    aside.file_name().unwrap_or(aside.as_os_str()).display()
                );
                let problem = format!("{e}; the contract's own tickets are in force; {stays}");
                (AllKept::default(), Some(problem))
            }
        };
        let keeper = Keeper {
            directory: directory.to_owned(),
            kept,
            in_doubt: false,
            unreadable: problem.is_some(),
            waiting: AllKept::default(),
            units_at_lookup: 0,
        };
        (keeper, problem)
    }

    /// The persisted changes to make again under a contract, and notes on the expired ones. `now` is the time
    /// of the daemon's monotonic clock. `wall_ms` is the time of the wall clock, to which persisted deadlines
    /// refer.
    pub(super) fn restore(
        &mut self,
        contract: &Contract,
        now: Time,
        wall_ms: u64,
    ) -> (Vec<Change>, Vec<String>) {
        self.units_at_lookup = 0;
        let (changes, waiting, notes) = sort_out(contract, &self.kept, now, wall_ms);
        self.waiting = waiting;
        (changes, notes)
    }

    /// The waiting changes whose units have appeared since the last call. If no unit has appeared, the call
    /// is cheap.
    pub(super) fn for_new_units(&mut self, contract: &Contract, now: Time, wall_ms: u64) -> Vec<Change> {
        if self.waiting == AllKept::default() || self.units_at_lookup == contract.units.len() {
            return Vec::new();
        }
        self.units_at_lookup = contract.units.len();
        let (changes, waiting, _) = sort_out(contract, &self.waiting, now, wall_ms);
        self.waiting = waiting;
        changes
    }

    /// The changes of tickets that wait for units that do not exist yet.
    pub(super) fn waiting(&self) -> &[KeptTickets] {
        &self.waiting.changed
    }

    /// Writes changes, offers, exchanges and waiting entries to the file, before they take effect. After an
    /// error the file may have its old or its new content, and the caller must retry.
    pub(super) fn persist(
        &mut self,
        contract: &Contract,
        changed: &[Changed],
        rights: &Rights,
        now: Time,
        wall_ms: u64,
    ) -> Result<(), LiveError> {
        let entry = |changed: &Changed| KeptTickets {
            unit: contract.unit(changed.unit).path.clone(),
            resource: changed.resource,
            contract: changed.contract,
            tickets: changed.tickets,
        };
        let mut all = persistent_trades(contract, rights, now, wall_ms);
        all.changed = changed.iter().map(entry).chain(self.waiting.changed.iter().cloned()).collect();
        all.changed.sort();
        all.funded.extend(self.waiting.funded.iter().cloned());
        all.offers.extend(self.waiting.offers.iter().cloned());
        all.exchanges.extend(self.waiting.exchanges.iter().cloned());
        if all == self.kept && !self.in_doubt {
            return Ok(());
        }
        if self.unreadable {
            tickets::set_aside(&self.directory)?;
            self.unreadable = false;
        }
        self.in_doubt = true;
        tickets::write(&self.directory, &all)?;
        (self.kept, self.in_doubt) = (all, false);
        Ok(())
    }
}

/// The funds, offers and exchanges to persist. Offers and exchanges that end with a program are left out.
fn persistent_trades(contract: &Contract, rights: &Rights, now: Time, wall_ms: u64) -> AllKept {
    let path = |unit: UnitId| contract.unit(unit).path.clone();
    let funded = Resource::ALL.into_iter().flat_map(|resource| {
        let kept = move |(unit, of, tickets): (UnitId, Option<UnitId>, u64)| KeptFunds {
            unit: path(unit),
            of: of.map(path),
            resource,
            tickets,
        };
        rights.funded(resource).map(kept)
    });
    let offer = |(number, bid): (&u64, &Bid)| KeptOffer {
        number: *number,
        unit: path(bid.by),
        gives: bid.gives,
        wants: bid.wants,
        at_least: bid.at_least,
        with: bid.with.map(path),
        for_ns: bid.for_ns,
    };
    let leg = |leg: &Leg| KeptLeg { from: path(leg.from), to: path(leg.to), what: leg.what };
    let exchange = |(number, deal): (&u64, &Deal)| KeptExchange {
        number: *number,
        lent: deal.legs.iter().map(leg).collect(),
        until_ms: deal.until.map(|until| wall_ms.saturating_add(until.saturating_sub(now) / NS_PER_MS)),
    };
    AllKept {
        changed: Vec::new(),
        funded: funded.collect(),
        offers: rights.offers().iter().filter(|(_, bid)| !bid.bound).map(offer).collect(),
        exchanges: rights.deals().iter().filter(|(_, deal)| !deal.bound).map(exchange).collect(),
    }
}

/// Validates persisted entries under a contract. Returns three lists: the changes that restore valid entries,
/// in the order in which they must be made; the entries that wait for units that do not exist yet; and notes
/// on the expired entries.
fn sort_out(
    contract: &Contract,
    kept: &AllKept,
    now: Time,
    wall_ms: u64,
) -> (Vec<Change>, AllKept, Vec<String>) {
    let (mut changes, mut waiting, mut notes) = (Vec::new(), AllKept::default(), Vec::new());
    for kept in &kept.changed {
        match set_change(contract, kept) {
            Ok(change) => changes.push(change),
            Err(NotInForce::Waiting) => waiting.changed.push(kept.clone()),
            Err(NotInForce::Expired(note)) => notes.push(note),
        }
    }
    for kept in &kept.funded {
        let lapse = || format!("tickets {}: no longer {} {} tickets", kept.unit, kept.tickets, kept.resource);
        let of = kept.of.as_deref().map(|of| find_unit(contract, of, &lapse)).transpose();
        match find_unit(contract, &kept.unit, &lapse).and_then(|unit| Ok((unit, of?))) {
            Ok((unit, of)) => {
                let mut tickets = PerResource::default();
                tickets[kept.resource] = Some(kept.tickets);
                changes.push(Change::Fund { unit, of, tickets });
            }
            Err(NotInForce::Waiting) => waiting.funded.push(kept.clone()),
            Err(NotInForce::Expired(note)) => notes.push(note),
        }
    }
    let mut resumed: Vec<(u64, Resumed)> = Vec::new();
    for kept in &kept.exchanges {
        match resumed_exchange(contract, kept, now, wall_ms) {
            Ok(exchange) => resumed.push((kept.number, exchange)),
            Err(NotInForce::Waiting) => waiting.exchanges.push(kept.clone()),
            Err(NotInForce::Expired(note)) => notes.push(note),
        }
    }
    for kept in &kept.offers {
        match resumed_offer(contract, kept) {
            Ok(offer) => resumed.push((kept.number, offer)),
            Err(NotInForce::Waiting) => waiting.offers.push(kept.clone()),
            Err(NotInForce::Expired(note)) => notes.push(note),
        }
    }
    // Exchanges are resumed before offers, since an offer may give tickets that the unit borrows by an
    // exchange.
    resumed.sort_by_key(|(number, what)| (matches!(what, Resumed::Offer { .. }), *number));
    changes.extend(resumed.into_iter().map(|(number, what)| Change::Resume { number, what, at: now }));
    (changes, waiting, notes)
}

/// The change that resumes a persisted exchange.
fn resumed_exchange(
    contract: &Contract,
    kept: &KeptExchange,
    now: Time,
    wall_ms: u64,
) -> Result<Resumed, NotInForce> {
    let lapse = || format!("exchange {} is not in force again", kept.number);
    if kept.until_ms.is_some_and(|until| until <= wall_ms) {
        return Err(NotInForce::Expired(format!("{}, since its time had expired", lapse())));
    }
    let leg = |leg: &KeptLeg| {
        let (from, to) = (find_unit(contract, &leg.from, &lapse)?, find_unit(contract, &leg.to, &lapse)?);
        let (of, into) = (contract.unit(from).parent, contract.unit(to).parent);
        Ok(Leg { from, to, what: leg.what, of, into })
    };
    let legs: Vec<Leg> = kept.lent.iter().map(leg).collect::<Result<_, _>>()?;
    // The deadline on the daemon's monotonic clock.
    let deadline = |until: u64| now.saturating_add((until - wall_ms).saturating_mul(NS_PER_MS));
    Ok(Resumed::deal(&legs, kept.until_ms.map(deadline)))
}

/// The change that resumes a persisted offer.
fn resumed_offer(contract: &Contract, kept: &KeptOffer) -> Result<Resumed, NotInForce> {
    let lapse = || format!("offer {} is closed", kept.number);
    let by = find_unit(contract, &kept.unit, &lapse)?;
    let with = kept.with.as_deref().map(|with| find_unit(contract, with, &lapse)).transpose()?;
    let KeptOffer { gives, wants, at_least, for_ns, .. } = *kept;
    Ok(Resumed::Offer { bid: Bid { by, gives, wants, with, for_ns, at_least, bound: false } })
}

/// Looks up a unit of a persisted entry by its path. If there is no such unit, the entry waits if `each` may
/// still make the unit, and has expired otherwise. `lapse` gives the beginning of the note about an expired
/// entry.
fn find_unit(contract: &Contract, path: &str, lapse: &dyn Fn() -> String) -> Result<UnitId, NotInForce> {
    if let Some(id) = contract.find(path).filter(|id| !id.is_common()) {
        return Ok(id);
    }
    let encloser = path.rsplit_once('/').and_then(|(encloser, _)| contract.find(encloser));
    Err(match encloser.is_some_and(|encloser| contract.unit(encloser).each.is_some()) {
        true => NotInForce::Waiting,
        false => NotInForce::Expired(format!("{}, since the contract has no unit {path}", lapse())),
    })
}

/// The change that sets persisted tickets again.
fn set_change(contract: &Contract, kept: &KeptTickets) -> Result<Change, NotInForce> {
    let KeptTickets { unit, resource, contract: before, tickets } = kept;
    let lapse = || format!("tickets {unit}: no longer {tickets} {resource} tickets");
    let id = find_unit(contract, unit, &lapse)?;
    match contract.unit(id).tickets[*resource] {
        now if now == *before || contract.group_of(id).is_some() => {
            Ok(Change::Set { unit: id, resource: *resource, tickets: *tickets })
        }
        now => Err(NotInForce::Expired(format!(
            "{}, since the contract gives it {now} instead of {before}",
            lapse()
        ))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use commonhold_contract::{Each, Given, Newcomer, Weighed};
    use commonhold_live::host::{Answer, Kind, tamper};

    fn kept(unit: &str, contract: u64) -> KeptTickets {
        KeptTickets { unit: unit.to_owned(), resource: Resource::Cpu, contract, tickets: 7 }
    }

    fn changed_alone(changed: &[KeptTickets]) -> AllKept {
        AllKept { changed: changed.to_vec(), ..AllKept::default() }
    }

    fn keep(keeper: &mut Keeper, contract: &Contract, changed: &[Changed]) -> Result<(), LiveError> {
        keeper.persist(contract, changed, &Rights::new(contract), 0, 0)
    }

    /// The next daemon restores funds, offers, and exchanges for their remaining time. Offers bound to a
    /// program are not persisted, and those that name a unit that is gone expire.
    #[test]
    fn what_is_traded_outlives_a_daemon() {
        const S: Time = 1_000_000_000;
        let dir = tempfile::tempdir().unwrap();
        let mut contract = Contract::default();
        let (a, b) = (contract.add(None, "a"), contract.add(None, "b"));
        let sub = contract.add(Some(b), "sub");
        let mut rights = Rights::new(&contract);
        let bid = |by, gives: &str, wants: &str| Bid {
            by,
            gives: gives.parse().unwrap(),
            wants: wants.parse().unwrap(),
            with: None,
            for_ns: None,
            at_least: None,
            bound: false,
        };
        let mut offer = |bid| rights.apply(Change::Offer { bid }).unwrap();
        offer(Bid { for_ns: Some(60 * S), ..bid(a, "disk:30", "cpu:20") });
        offer(bid(b, "cpu:20", "disk:30"));
        offer(Bid { with: Some(sub), ..bid(a, "disk:10", "bus:99") });
        offer(Bid { bound: true, ..bid(a, "disk:10", "bus:98") });
        rights.settle(100 * S);
        let tickets = PerResource { cpu: Some(7), ..PerResource::default() };
        rights.apply(Change::Fund { unit: sub, of: None, tickets }).unwrap();
        let (mut keeper, _) = Keeper::open(dir.path());
        keeper.persist(&contract, &[], &rights, 110 * S, 5_000).unwrap();
        // Another daemon with another monotonic clock, 20 s later by the wall clock.
        let again = |contract: &Contract, wall_ms| {
            let (mut keeper, problem) = Keeper::open(dir.path());
            assert_eq!(problem, None);
            let (changes, notes) = keeper.restore(contract, 3 * S, wall_ms);
            let mut rights = Rights::new(contract);
            for change in changes {
                rights.apply(change).unwrap();
            }
            rights.settle(3 * S);
            (rights, notes)
        };
        let (now, notes) = again(&contract, 25_000);
        assert_eq!(notes, Vec::<String>::new());
        let deal = |rights: &Rights| {
            rights.deals().iter().map(|(n, deal)| (*n, deal.legs.clone())).collect::<Vec<_>>()
        };
        assert_eq!(deal(&now), deal(&rights));
        assert_eq!(now.next(), Some(33 * S), "of 60 s, 50 were left");
        assert_eq!(now.lent_and_borrowed(a, Resource::Disk), (30, 0));
        assert_eq!(now.offers().keys().collect::<Vec<_>>(), [&3]);
        assert_eq!(now.funded(Resource::Cpu).collect::<Vec<_>>(), [(sub, None, 7)]);
        let (now, notes) = again(&contract, 55_000);
        assert_eq!((now.deals().len(), notes.len()), (0, 1), "{notes:?}");
        let mut fewer = Contract::default();
        fewer.add(None, "a");
        let (now, notes) = again(&fewer, 25_000);
        let expected = [
            "tickets b/sub: no longer 7 cpu tickets, since the contract has no unit b/sub",
            "exchange 5 is not in force again, since the contract has no unit b",
            "offer 3 is closed, since the contract has no unit b/sub",
        ];
        assert_eq!(notes, expected);
        assert_eq!((now.deals().len(), now.offers().len()), (0, 0));
    }

    #[test]
    fn a_change_expires_when_the_contract_says_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let mut contract = Contract::default();
        let (a, b) = (contract.add(None, "a"), contract.add(None, "b"));
        contract.units[b.index()].tickets.cpu = 200;
        let all = [kept("a", 100), kept("b", 100), kept("gone", 100), kept("shared", 100)];
        tickets::write(dir.path(), &changed_alone(&all)).unwrap();
        let (mut keeper, problem) = Keeper::open(dir.path());
        assert_eq!(problem, None);
        let (changes, notes) = keeper.restore(&contract, 0, 0);
        assert_eq!(changes, [Change::Set { unit: a, resource: Resource::Cpu, tickets: 7 }]);
        let expected = [
            "tickets b: no longer 7 cpu tickets, since the contract gives it 200 instead of 100",
            "tickets gone: no longer 7 cpu tickets, since the contract has no unit gone",
            "tickets shared: no longer 7 cpu tickets, since the contract has no unit shared",
        ];
        assert_eq!(notes, expected);
        let changed = Changed { unit: a, resource: Resource::Cpu, contract: 100, tickets: 7 };
        keep(&mut keeper, &contract, &[changed]).unwrap();
        assert_eq!(tickets::read(dir.path()).unwrap().changed, all[..1]);
    }

    /// A failed write is repeated, even if the state in force equals that before the write.
    #[test]
    fn a_file_in_doubt_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut contract = Contract::default();
        let a = contract.add(None, "a");
        let changed = |tickets| Changed { unit: a, resource: Resource::Cpu, contract: 100, tickets };
        let (mut keeper, _) = Keeper::open(dir.path());
        keep(&mut keeper, &contract, &[changed(7)]).unwrap();
        // The rename succeeded, but the fsync of the directory failed.
        let folder = dir.path().to_owned();
        let hook = tamper(move |access| match access.kind == Kind::Sync && access.path == folder {
            true => Answer::Refuse(libc::EIO),
            false => Answer::GoOn,
        });
        keep(&mut keeper, &contract, &[changed(8)]).unwrap_err();
        drop(hook);
        keep(&mut keeper, &contract, &[changed(7)]).unwrap();
        assert_eq!(tickets::read(dir.path()).unwrap().changed, [kept("a", 100)]);
    }

    /// An unreadable file is renamed before a new one is written, so nothing is lost.
    #[test]
    fn a_file_that_cannot_be_read_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(tickets::FILE_NAME);
        std::fs::write(&file, "nonsense").unwrap();
        let mut contract = Contract::default();
        let a = contract.add(None, "a");
        let (mut keeper, problem) = Keeper::open(dir.path());
        let problem = problem.unwrap();
        for words in
            ["line 1, `nonsense`", "mend it", "it stays as it is", "its name is tickets.json.unread-1"]
        {
            assert!(problem.contains(words), "{problem}");
        }
        keeper.restore(&contract, 0, 0);
        keep(&mut keeper, &contract, &[]).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "nonsense");
        let changed = Changed { unit: a, resource: Resource::Cpu, contract: 100, tickets: 7 };
        // It is not overwritten while it cannot be renamed.
        let hook = tamper(|access| match access.is(Kind::Rename, tickets::FILE_NAME) {
            true => Answer::Refuse(libc::EROFS),
            false => Answer::GoOn,
        });
        let error = keep(&mut keeper, &contract, &[changed]).unwrap_err().to_string();
        assert!(error.contains("cannot set aside"), "{error}");
        drop(hook);
        keep(&mut keeper, &contract, &[changed]).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("tickets.json.unread-1")).unwrap(), "nonsense");
        assert_eq!(tickets::read(dir.path()).unwrap().changed, [kept("a", 100)]);
    }

    /// A change for a user without processes is persisted, and made once the user has some.
    #[test]
    fn a_users_sub_unit_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut contract = Contract::default();
        let students = contract.add(None, "students");
        contract.units[students.index()].each = Some(Each::User);
        tickets::write(dir.path(), &changed_alone(&[kept("students/ana", 100)])).unwrap();
        let (mut keeper, _) = Keeper::open(dir.path());
        assert_eq!(keeper.restore(&contract, 0, 0), (Vec::new(), Vec::new()));
        keep(&mut keeper, &contract, &[]).unwrap();
        assert_eq!(tickets::read(dir.path()).unwrap().changed, [kept("students/ana", 100)]);
        assert_eq!(keeper.for_new_units(&contract, 0, 0), []);
        let ana = contract.add(Some(students), "ana");
        let change = Change::Set { unit: ana, resource: Resource::Cpu, tickets: 7 };
        assert_eq!(keeper.for_new_units(&contract, 0, 0), [change]);
        assert_eq!(keeper.for_new_units(&contract, 0, 0), []);
    }

    /// Slurm may have assigned a job's CPUs after its tickets were changed.
    #[test]
    fn a_change_of_a_job_outlives_a_daemon_whatever_cpus_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let mut contract = Contract::default();
        let slurm = contract.add(None, "slurm");
        let around = &mut contract.units[slurm.index()];
        (around.each, around.each_by) = (Some(Each::Cgroup), Weighed::Cpus);
        tickets::write(dir.path(), &changed_alone(&[kept("slurm/job_17", 100)])).unwrap();
        let (mut keeper, _) = Keeper::open(dir.path());
        assert_eq!(keeper.restore(&contract, 0, 0), (Vec::new(), Vec::new()));
        let given = Given { cpus: Some(2), weight: None };
        contract.welcome(&[Newcomer::group(slurm, "/s/job_17", given)], &BTreeSet::new());
        let job = contract.find("slurm/job_17").unwrap();
        assert_eq!(contract.unit(job).tickets.cpu, 200);
        let change = Change::Set { unit: job, resource: Resource::Cpu, tickets: 7 };
        assert_eq!(keeper.for_new_units(&contract, 0, 0), [change]);
        // A reload reports no such change as ended.
        assert_eq!(keeper.restore(&contract, 0, 0), (vec![change], Vec::new()));
    }
}
