//! The decisions and orders of a plan, and their reasons, as sentences with the units' paths.

use std::fmt;

use commonhold_contract::measure::{Bytes, CpuCount, Cpus, Percent, Speed};
use commonhold_contract::{Amount, Contract, GangsShare, PerResource, Resource, UnitId, amount_text};
use commonhold_policy::plan::{
    CpuDecision, CpuOrder, DiskOrder, Gang, GangOrder, MemoryOrder, NodePart, PartOrder, RightsChange, Seat,
    SeatOrder, SharedRate,
};
use commonhold_policy::rights::{
    Change, Deal, Ending, How, Leg, Offer, Refused, Resumed, Stake, TICKETS_MAX, Trade, Waits,
};
use commonhold_policy::{MS, Plan, Reason};

use crate::figures::{count, duration};

/// A step of a plan: a decision or an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// A decision: which unit holds which CPU.
    Decision(&'a CpuDecision),
    /// An order about CPUs.
    Cpu(&'a CpuOrder),
    /// An order about memory.
    Memory(&'a MemoryOrder),
    /// An order about a disk.
    Disk(&'a DiskOrder),
    /// A decision: in which pool a thread of a job has its seat.
    Seat(&'a Seat),
    /// An order: on which CPUs a thread of a job runs, or on which nodes the job's pages are.
    Seating(&'a SeatOrder),
    /// A decision: which job runs in a quantum.
    Gang(&'a Gang),
    /// An order about gangs.
    Gate(&'a GangOrder),
    /// An order for one control group of a unit that has several.
    Part(&'a PartOrder),
}

/// The steps of a plan with their reasons: first the decisions, then the orders. Reports number the steps in
/// this order.
pub fn steps(plan: &Plan) -> Vec<(Action<'_>, Reason)> {
    let decisions = plan.decisions.cpu.steps.iter().map(|step| (Action::Decision(&step.action), step.reason));
    let cpus = plan.orders.cpu.iter().map(|step| (Action::Cpu(&step.action), step.reason));
    let memory = plan.orders.memory.iter().map(|step| (Action::Memory(&step.action), step.reason));
    let disks = plan.orders.disk.iter().map(|step| (Action::Disk(&step.action), step.reason));
    let seats = plan.decisions.seats.iter().map(|step| (Action::Seat(&step.action), step.reason));
    let places = plan.orders.seats.iter().map(|step| (Action::Seating(&step.action), step.reason));
    let chosen = plan.decisions.quantum.iter().flat_map(|quantum| &quantum.chosen);
    let chosen = chosen.map(|step| (Action::Gang(&step.action), step.reason));
    let gates = plan.orders.gangs.iter().map(|step| (Action::Gate(&step.action), step.reason));
    let decisions = decisions.chain(seats).chain(chosen);
    let parts = plan.orders.parts.iter().map(|step| (Action::Part(&step.action), step.reason));
    decisions.chain(cpus).chain(places).chain(gates).chain(memory).chain(disks).chain(parts).collect()
}

impl Action<'_> {
    /// The unit of the step: the owner, or the borrower of a loan.
    pub fn unit(&self) -> UnitId {
        match self {
            Action::Decision(decision) => decision.unit(),
            Action::Cpu(order) => order.unit(),
            Action::Memory(order) => order.unit(),
            Action::Disk(order) => order.unit(),
            Action::Seat(seat) => seat.unit,
            Action::Seating(order) => order.unit(),
            Action::Gang(gang) => gang.unit,
            Action::Gate(order) => order.unit(),
            Action::Part(order) => order.unit(),
        }
    }
}

/// A step in words, and its reason in words.
pub fn words(contract: &Contract, action: Action<'_>, reason: Reason) -> (String, String) {
    (Described(action, contract).to_string(), Because(reason, contract).to_string())
}

/// The reason why a gang runs or waits, in words. Unlike other reasons it names no unit, so it needs no
/// contract.
pub(crate) fn because(reason: Reason) -> String {
    Because(reason, &Contract::default()).to_string()
}

/// A change of rights as a sentence: the request, and the reason if it was refused.
pub fn rights(contract: &Contract, change: &RightsChange) -> String {
    let what = Asked(change.change, contract);
    match change.refused {
        None => what.to_string(),
        Some(why) => format!("{what}: refused, since {}", refused(contract, why)),
    }
}

/// Why a change of rights was refused, and what may be requested instead.
pub fn refused(contract: &Contract, why: Refused) -> String {
    let name = |unit: UnitId| path(contract, unit);
    match why {
        Refused::Unknown { unit } => {
            format!("unit {} holds no tickets: the contract in force gives it none", name(unit))
        }
        Refused::TooFew { unit, resource, has, fewer } => format!(
            "unit {} has {has} {resource} tickets of its own, and {fewer} fewer would leave none; take at most {}",
            name(unit),
            has.saturating_sub(1)
        ),
        Refused::TooMany { unit, resource, has, more } => format!(
            "unit {} has {has} {resource} tickets, and {more} more would exceed {TICKETS_MAX}; give at most {}",
            name(unit),
            TICKETS_MAX.saturating_sub(has)
        ),
        Refused::Enclosers { from, to } => format!(
            "units {} and {} have different parents, so their tickets are of different currencies; name two siblings",
            name(from),
            name(to)
        ),
        Refused::Lent { unit, resource, has, lent } => format!(
            "unit {} has {has} {resource} tickets, of which {lent} are lent in exchanges; leave at least {}, or end an exchange",
            name(unit),
            lent + 1
        ),
        Refused::NoExchange { unit } => format!(
            "an exchange of unit {} must give at least one ticket of a resource for at least one of another, and its \
             minimum must be of the resource that it wants, and no larger than what it wants",
            name(unit)
        ),
        Refused::NotReserved { unit, resource, left: None } => format!(
            "unit {} has no reserved {resource} to lend; reserve some with `hard` in the contract, or offer tickets, \
             a number without a unit",
            name(unit)
        ),
        Refused::NotReserved { unit, resource, left: Some(left) } => {
            format!(
                "unit {} would lend more {resource} than is reserved for it; lend at most {left}",
                name(unit)
            )
        }
        Refused::InUse { unit, used, reserved, most } => format!(
            "unit {} uses {} of the {} of memory that are reserved for it: {}; free some of its memory first",
            name(unit),
            Bytes(used),
            Bytes(reserved),
            spare_memory(most)
        ),
        Refused::Loop { unit } => format!(
            "unit {} would fund itself: a unit cannot hold tickets of its own currency, nor of a currency that its \
             own funds; name another unit",
            name(unit)
        ),
        Refused::TooManyOffers => {
            "there are too many open offers; try again when some have been matched or cancelled".to_owned()
        }
        Refused::TooManyOffersOfUnit { unit } => format!(
            "unit {} has as many open offers as a unit may have; try again when some have been matched or cancelled",
            name(unit)
        ),
        Refused::NoOffer { number } => {
            format!(
                "no open offer and no exchange in force has the number {number}; `commonhold offers` lists both"
            )
        }
        Refused::NumberTaken { number } => {
            format!("another offer or exchange has the number {number}; `commonhold offers` shows it")
        }
        Refused::Itself { unit } => {
            format!("unit {} cannot give tickets to itself; name a sibling", name(unit))
        }
    }
}

/// How much reserved memory a unit can give, in the syntax of an offer, rounded down to whole mebibytes.
fn spare_memory(most: u64) -> String {
    match most >> 20 << 20 {
        0 => "it can give none of it now".to_owned(),
        most => format!("it can give at most {} now", Offer::hard(Resource::Memory, Amount::Absolute(most))),
    }
}

/// Why an open offer has no match yet.
pub fn waits(contract: &Contract, why: Waits) -> String {
    let name = |unit: UnitId| path(contract, unit);
    let needs = |needs: Option<Offer>| {
        needs.map_or_else(|| "more than a unit can have".to_owned(), |it| it.to_string())
    };
    match why {
        Waits::Lacks(why) => refused(contract, why),
        Waits::NobodyGives(what) => format!("no offer of another unit gives {}", kind(what)),
        Waits::NobodyWants(what) => format!("no offer of another unit wants {}", kind(what)),
        Waits::ForOthers { offer } => {
            format!("offer {offer} would match, but one of the two accepts only another unit (`--with`)")
        }
        Waits::WaitsToo { offer } => format!("offer {offer} would match, but its unit does not have what it offers now"),
        Waits::NobodyActive { offer, within } => format!(
            "it cannot be compared with offer {offer} now: tickets of {} are worth nothing while no unit there is active",
            within.map_or_else(|| "the top level".to_owned(), |within| format!("unit {}", name(within)))
        ),
        Waits::NotWeighed { offer, what } => format!(
            "it cannot be compared with offer {offer}: {what} is an amount, and the total of {} is unknown",
            what.resource
        ),
        Waits::GivesLess { offer, gives, needs: it } => {
            format!("offer {offer} gives {gives}, but this one needs {}", needs(it))
        }
        Waits::WantsMore { offer, wants, needs: it } => {
            format!("offer {offer} wants at least {wants}, for which this one would have to give {}", needs(it))
        }
        Waits::Ratio { offer } => {
            format!("offer {offer} asks a higher price than this one pays")
        }
        Waits::Moves { offer, why } => format!("offer {offer} matches, but {}", refused(contract, why)),
        Waits::NoRing => {
            "some offers give what it wants, and others want what it gives, but they form no cycle of at most four".to_owned()
        }
    }
}

/// The kind of thing that an offer gives or wants: `cpu tickets` or `reserved memory`.
fn kind(what: Offer) -> String {
    match what.stake {
        Stake::Tickets(_) => format!("{} tickets", what.resource),
        Stake::Hard(_) => format!("reserved {}", what.resource),
    }
}

/// The outcome of offers, as a sentence.
pub fn trade(contract: &Contract, trade: &Trade) -> String {
    let name = |unit: UnitId| match path(contract, unit) {
        "?" => "a removed unit",
        path => path,
    };
    let legs = |deal: &Deal| {
        let leg = |leg: &Leg| format!("{} lends {} to {}", name(leg.from), Much(leg.what), name(leg.to));
        deal.legs.iter().map(leg).collect::<Vec<_>>().join(", ")
    };
    match trade {
        Trade::Offered { offer, .. } => format!("offer {offer} is open"),
        Trade::Withdrawn { offer } => format!("offer {offer} is closed"),
        Trade::Made { deal, what, .. } => format!("exchange {deal}: {}", legs(what)),
        Trade::Undone { deal, why, what } => {
            let why = match why {
                Ending::Over => "its time has ended",
                Ending::Ended => "a unit ended it",
                Ending::Gone => "a unit was removed",
                Ending::TooFew => "the contract leaves a unit too few tickets",
                Ending::Negotiated => "the negotiator ended it",
            };
            format!("exchange {deal} is reversed, since {why}: {}", legs(what))
        }
    }
}

struct Asked<'a>(Change, &'a Contract);

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |unit: UnitId| path(self.1, unit);
        match self.0 {
            Change::Set { unit, resource, tickets } => {
                write!(f, "{}: {tickets} {resource} tickets from now on", name(unit))
            }
            Change::Issue { unit, resource, tickets } => {
                write!(f, "{}: {tickets} more {resource} tickets", name(unit))
            }
            Change::TakeBack { unit, resource, tickets } => {
                write!(f, "{}: {tickets} fewer {resource} tickets", name(unit))
            }
            Change::Several { unit, how, tickets } => {
                let words = match how {
                    How::Set => "from now on",
                    How::Issue => "more",
                    How::TakeBack => "fewer",
                };
                write!(f, "{}: {} tickets {words}", name(unit), numbers(tickets))
            }
            Change::Transfer { from, to, resource, tickets } => {
                write!(f, "{}: gives {tickets} {resource} tickets to {}", name(from), name(to))
            }
            Change::Exchange { one, other, gives, gets } => {
                write!(f, "{}: gives {} to {} for {}", name(one), Much(gives), name(other), Much(gets))
            }
            Change::Offer { bid } => {
                write!(f, "{}: offers {} for {}", name(bid.by), Much(bid.gives), Much(bid.wants))?;
                if let Some(least) = bid.at_least {
                    write!(f, ", or less for {} at least", Much(least))?;
                }
                if let Some(with) = bid.with {
                    write!(f, ", to {} alone", name(with))?;
                }
                bid.for_ns.map_or(Ok(()), |ns| write!(f, ", for {}", duration(ns)))
            }
            Change::Cancel { number } => write!(f, "offer or exchange {number} is cancelled"),
            Change::Resume { number, what: Resumed::Offer { .. }, .. } => {
                write!(f, "offer {number} is open again")
            }
            Change::Resume { number, what: Resumed::Deal { .. }, .. } => {
                write!(f, "exchange {number} is in force again")
            }
            Change::Fund { unit, of, tickets } => {
                let of = of.map_or("the machine", |of| name(of));
                write!(f, "{}: {} tickets of {of} from now on, beside its own", name(unit), numbers(tickets))
            }
        }
    }
}

/// Numbers of tickets in words: `200 cpu and 100 disk`.
fn numbers(tickets: PerResource<Option<u64>>) -> String {
    let named = Resource::ALL.into_iter().filter_map(|resource| Some((tickets[resource]?, resource)));
    let words: Vec<String> = named.map(|(tickets, resource)| format!("{tickets} {resource}")).collect();
    match words.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => words.concat(),
    }
}

/// An offered amount in words: `30 disk tickets` or `2GiB of reserved memory`.
pub fn much(what: Offer) -> String {
    Much(what).to_string()
}

/// [`much`], for use in a format string.
pub(crate) struct Much(pub(crate) Offer);

impl fmt::Display for Much {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = self.0.resource;
        match self.0.stake {
            Stake::Tickets(tickets) => write!(f, "{tickets} {resource} tickets"),
            Stake::Hard(amount) => write!(f, "{} of reserved {resource}", amount_text(resource, amount)),
        }
    }
}

/// A unit's name; `?` for one that the contract does not have, or that a reload has dropped.
pub(crate) fn path(contract: &Contract, unit: UnitId) -> &str {
    let known = contract.units.get(unit.index()).map(|unit| unit.path.as_str());
    known.filter(|path| !path.is_empty()).unwrap_or("?")
}

struct Described<'a>(Action<'a>, &'a Contract);

/// A thread's use of the resource that gangs share: `1.1 GiB/s`, `4 MiB of cache`.
struct Shared(SharedRate);

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SharedRate::BytesPerS(rate) => write!(f, "{}/s", Bytes(rate)),
            SharedRate::CacheBytes(held) => write!(f, "{} of cache", Bytes(held)),
        }
    }
}

/// A number of threads in words: `3 threads`.
fn several_threads(n: u32) -> String {
    count(n as usize, "thread")
}

/// A number of free CPUs in words: `3 cpus free`.
fn free_cpus(n: u32) -> String {
    format!("{} free", count(n as usize, "cpu"))
}

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |unit: &UnitId| path(self.1, *unit);
        match self.0 {
            Action::Decision(CpuDecision::Own { cpu, unit }) => {
                write!(f, "cpu {cpu}: owned by {}", name(unit))
            }
            Action::Decision(CpuDecision::Disown { cpu, unit }) => {
                write!(f, "cpu {cpu}: no longer owned by {}", name(unit))
            }
            Action::Decision(CpuDecision::Lend { cpu, lender, borrower }) => {
                write!(f, "cpu {cpu}: lent by {} to {}", name(lender), name(borrower))
            }
            Action::Decision(CpuDecision::CallBack { cpu, lender, borrower, .. }) => {
                write!(f, "cpu {cpu}: called back by {} from {}", name(lender), name(borrower))
            }
            Action::Decision(CpuDecision::Return { cpu, lender, borrower }) => {
                write!(f, "cpu {cpu}: returned to {} by {}", name(lender), name(borrower))
            }
            Action::Cpu(CpuOrder::Confine { unit, cpus: Some(cpus) }) => {
                write!(f, "{}: runs on cpus {cpus}", name(unit))
            }
            Action::Cpu(CpuOrder::Confine { unit, cpus: None }) => {
                write!(f, "{}: runs on any cpu", name(unit))
            }
            Action::Cpu(CpuOrder::Weigh { unit, weight }) => write!(f, "{}: weight {weight}", name(unit)),
            Action::Cpu(CpuOrder::Credit { unit, credit_ms }) => {
                let size = credit_ms.unsigned_abs();
                let goes = if *credit_ms < 0 { "after" } else { "before" };
                write!(f, "{}: borrows {goes} others, by {size} ms of a cpu", name(unit))
            }
            Action::Cpu(CpuOrder::Cap { unit, micro_cpus: Some(micro) }) => {
                write!(f, "{}: at most {}", name(unit), CpuCount(*micro))
            }
            Action::Cpu(CpuOrder::Cap { unit, micro_cpus: None }) => write!(f, "{}: no cap", name(unit)),
            Action::Memory(MemoryOrder::Guarantee { unit, min, low, .. }) => {
                write!(
                    f,
                    "{}: {} of memory are guaranteed, {} of these in any case",
                    name(unit),
                    Bytes(*low),
                    Bytes(*min)
                )
            }
            Action::Memory(MemoryOrder::Allow { unit, bytes: Some(bytes) }) => {
                write!(f, "{}: at most {} of memory", name(unit), Bytes(*bytes))
            }
            Action::Memory(MemoryOrder::Allow { unit, bytes: None }) => {
                write!(f, "{}: any amount of memory", name(unit))
            }
            Action::Seat(Seat { thread, job, unit, pool: Some(pool) }) => {
                write!(f, "{}, job {}: thread {} in pool {pool}", name(unit), job.0, thread.0)
            }
            Action::Seat(Seat { thread, job, unit, pool: None }) => {
                write!(f, "{}, job {}: thread {} in no pool", name(unit), job.0, thread.0)
            }
            Action::Gang(Gang { job, unit, cpus, rate }) => {
                let cpus = CpuCount(u64::from(*cpus) * 1_000_000);
                let rate = Shared(*rate);
                write!(f, "{}, job {}: runs on {cpus}, {rate} for each thread", name(unit), job.0)
            }
            Action::Gate(GangOrder::Gate { job, unit, open: true }) => {
                write!(f, "{}, job {}: continues", name(unit), job.0)
            }
            Action::Gate(GangOrder::Gate { job, unit, open: false }) => {
                write!(f, "{}, job {}: is stopped", name(unit), job.0)
            }
            Action::Seating(SeatOrder::Seat { thread, job, unit, cpus: Some(cpus) }) => {
                write!(f, "{}, job {}: thread {} runs on cpus {cpus}", name(unit), job.0, thread.0)
            }
            Action::Seating(SeatOrder::Seat { thread, job, unit, cpus: None }) => {
                write!(f, "{}, job {}: thread {} runs on any cpu of its unit", name(unit), job.0, thread.0)
            }
            Action::Seating(SeatOrder::Bring { job, unit, nodes, divided }) => {
                let whole: u64 = nodes.iter().map(|it| it.part).sum();
                let part = |it: &NodePart| match divided {
                    true => format!("{} ({} %)", it.node, crate::figures::percent_text(it.part, whole)),
                    false => it.node.to_string(),
                };
                let nodes = nodes.iter().map(part).collect::<Vec<_>>().join(", ");
                write!(f, "{}, job {}: its pages move to node {nodes}", name(unit), job.0)
            }
            Action::Part(order) => crate::parts::write(f, order, name(&order.unit())),
            Action::Memory(MemoryOrder::Reclaim { unit, bytes, .. }) => {
                write!(f, "{}: gives up {} of memory", name(unit), Bytes(*bytes))
            }
            Action::Memory(MemoryOrder::Expose { unit, exposed: true }) => {
                write!(f, "{}: if memory runs out, the kernel kills its processes first", name(unit))
            }
            Action::Memory(MemoryOrder::Expose { unit, exposed: false }) => {
                write!(
                    f,
                    "{}: if memory runs out, the kernel kills its processes by their size again",
                    name(unit)
                )
            }
            Action::Cpu(CpuOrder::Gate { unit, open: true }) => write!(f, "{}: continues", name(unit)),
            Action::Cpu(CpuOrder::Gate { unit, open: false }) => {
                write!(f, "{}: stopped until its turn", name(unit))
            }
            Action::Disk(DiskOrder::Weigh { unit, disk, weight }) => {
                write!(f, "{}: weight {weight} on disk {disk}", name(unit))
            }
            Action::Disk(DiskOrder::Stop { unit, stopped: true, .. }) => {
                write!(f, "{}: stopped until its rate has earned what it transferred", name(unit))
            }
            Action::Disk(DiskOrder::Stop { unit, stopped: false, .. }) => {
                write!(f, "{}: continues", name(unit))
            }
            Action::Disk(DiskOrder::Share { unit, disk, share }) => {
                write!(f, "{}: share {share} of disk {disk}", name(unit))
            }
            Action::Disk(DiskOrder::Cap { unit, disk, read: None, write: None }) => {
                write!(f, "{}: no bound on disk {disk}", name(unit))
            }
            Action::Disk(DiskOrder::Cap { unit, disk, read, write }) => {
                write!(
                    f,
                    "{}: at most {} read, {} written on disk {disk}",
                    name(unit),
                    Speed(*read),
                    Speed(*write)
                )
            }
        }
    }
}

struct Because<'a>(Reason, &'a Contract);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Reason::Scheme { scheme } => write!(f, "the scheme is {scheme}"),
            Reason::Entitled { micro_cpus } => write!(f, "it is entitled to {}", CpuCount(micro_cpus)),
            Reason::Turn { part } => write!(f, "its turn: it holds {} of a shared cpu", Cpus(part)),
            Reason::PoolsChanged => write!(f, "pools are formed in another way"),
            Reason::TurnOver => write!(f, "its turn on a shared cpu has ended"),
            Reason::EntitlementChanged { from, to } => {
                write!(f, "its entitlement changed from {} to {}", Cpus(from), CpuCount(to))
            }
            Reason::NoSeatFree => write!(f, "no pool that it may use has a free cpu"),
            Reason::ThreadGone => write!(f, "it has ended, or is no longer in a job"),
            Reason::Rests => write!(f, "it has not wanted a cpu for a while"),
            Reason::FirstOfItsJob { placement, free } => {
                write!(f, "the first of its job: {placement} chose the pool, with {}", free_cpus(free))
            }
            Reason::BesideItsJob { threads } => write!(f, "beside {} of its job", several_threads(threads)),
            Reason::PoolsOfItsJobFull { placement, free } => {
                write!(
                    f,
                    "the pools of its job are full: {placement} chose another, with {}",
                    free_cpus(free)
                )
            }
            Reason::Together { from, threads } => {
                write!(
                    f,
                    "moved from pool {from} to bring its job together: beside {} of its job",
                    several_threads(threads)
                )
            }
            Reason::PagesApart { bytes } => {
                write!(f, "{} of its memory are on other nodes than its threads", Bytes(bytes))
            }
            Reason::HeadOfList { waited: 0 } => write!(f, "no other gang of its unit waited longer"),
            Reason::HeadOfList { waited: 1 } => write!(f, "it waited longest, for 1 quantum"),
            Reason::HeadOfList { waited } => write!(f, "it waited longest, for {waited} quanta"),
            Reason::Fittest { of, left } if left < 0 => f.write_str(match of {
                GangsShare::Bus => "the chosen gangs saturate the bus, and it transfers least",
                GangsShare::Cache => "the chosen gangs fill the caches, and it occupies least",
            }),
            Reason::Fittest { of, left } => {
                let what = match of {
                    GangsShare::Bus => "the bus",
                    GangsShare::Cache => "the caches",
                };
                let left = Shared(SharedRate::of(of, left.unsigned_abs()));
                write!(f, "best fit for what is left of {what} per cpu, {left}")
            }
            Reason::GetsOnBeside { permille } => write!(
                f,
                "beside the gangs chosen, it yields the most progress: {}.{} % of that without contention",
                permille / 10,
                permille % 10
            ),
            Reason::CpusLeft => write!(f, "cpus were free"),
            Reason::YieldsTheBus { to } => write!(
                f,
                "it transferred more than its share of the memory bus, at the expense of {}",
                path(self.1, to)
            ),
            Reason::MostOfTheBus { most } => {
                write!(f, "it transferred more than the {}/s of the memory bus that it may", Bytes(most))
            }
            Reason::BusIsLeft => write!(f, "every unit has its share of the memory bus"),
            Reason::FollowsUse => write!(f, "the unit's parts follow what is used where its processes are"),
            Reason::NotThisQuantum => write!(f, "others run in this quantum"),
            Reason::NoGang => write!(f, "it is no longer a gang"),
            Reason::OwnerIdle { idle_ns } => {
                write!(f, "idle for {} ms, and the borrower waits", idle_ns / MS)
            }
            Reason::OwnerIdleToGiver { idle_ns, credit_ns } => write!(
                f,
                "idle for {} ms; the borrower waits, and has lent {} ms more than it borrowed",
                idle_ns / MS,
                credit_ns / MS
            ),
            Reason::Remembered => {
                write!(f, "its recent loans to others less what it borrowed")
            }
            Reason::OwnerWants { runnable, kept } => {
                write!(f, "the owner has {runnable} threads to run and kept {kept} cpus")
            }
            Reason::BorrowerIdle => write!(f, "the borrower has no use for it"),
            Reason::LargerClaim { of } => {
                let name = path(self.1, of);
                write!(f, "{name} has the larger claim")
            }
            Reason::HoldsChanged => write!(f, "the cpus it holds changed"),
            Reason::Proportion { micro_cpus } => {
                write!(f, "time-shared: it is entitled to {}", CpuCount(micro_cpus))
            }
            Reason::Limit { micro_cpus } => write!(f, "the contract limits it to {}", CpuCount(micro_cpus)),
            Reason::MayNotBorrow => write!(f, "it may not borrow"),
            Reason::LoanLimit => write!(f, "the contract limits the loan"),
            Reason::NobodyThere => write!(f, "it no longer has processes"),
            Reason::HoldsAgain => write!(f, "it holds a cpu again"),
            Reason::CpuGone => write!(f, "the cpu is gone"),
            Reason::DiskPart { part } => write!(f, "it is entitled to {} % of the disk", Percent(part)),
            Reason::DiskWanted { part, by, .. } => {
                let name = path(self.1, by);
                write!(f, "it transferred more than its {} % of the disk, and {name} waits", Percent(part))
            }
            Reason::DiskCorrected { part, by } => {
                write!(
                    f,
                    "to get {} % of the disk, it needs {} % of the usual weight",
                    Percent(part),
                    Percent(by)
                )
            }
            Reason::DiskLimit { bytes_per_s } => {
                write!(f, "the contract limits it to {}", Speed(Some(bytes_per_s)))
            }
            Reason::DiskDebt { bytes } => {
                write!(f, "it transferred {} more than its limit on disks allows", Bytes(bytes))
            }
            Reason::DiskDebtPaid => write!(f, "its limit on disks allows it again"),
            Reason::DiskFree => write!(f, "no other unit wants the disk"),
            Reason::EntitledTo { bytes } => write!(f, "it is entitled to {}", Bytes(bytes)),
            Reason::Lends { bytes, within_ns } => write!(
                f,
                "it lends {} that it does not need, to be returned within {}",
                Bytes(bytes),
                duration(within_ns)
            ),
            Reason::BorrowsInTime { bytes } => {
                write!(f, "it is short, and borrows {}: more would not be back in time", Bytes(bytes))
            }
            Reason::CallsBack { bytes } => {
                write!(f, "it is short, and calls back {} that it lent", Bytes(bytes))
            }
            Reason::Borrows { bytes } => write!(f, "it is short, and borrows {}", Bytes(bytes)),
            Reason::BorrowsFirst { bytes } => {
                write!(f, "it is short, and borrows {} before others, since it lent before", Bytes(bytes))
            }
            Reason::GivesBack { bytes } => write!(f, "it gives back {}", Bytes(bytes)),
            Reason::AtLimit => write!(f, "it is short, and at a limit of the contract"),
            Reason::NothingIdle => write!(f, "it is short, and no unit has memory to lend"),
            Reason::Owes { allowed } => write!(f, "it is allowed {}", Bytes(allowed)),
            Reason::OnTrial => write!(f, "a trial: how fast it gives up memory decides what it may borrow"),
            Reason::Beyond { bytes } => {
                write!(f, "memory is tight, and it uses {} beyond its entitlement", Bytes(bytes))
            }
            Reason::Enough => write!(f, "memory is no longer tight, or the unit is within its entitlement"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonhold_policy::rights::Rights;

    #[test]
    fn why_an_offer_waits_is_said() {
        let mut contract = Contract::default();
        let lab = contract.add(None, "lab");
        let ana = contract.add(Some(lab), "ana");
        let (disk, cpu) = (Offer::tickets(Resource::Disk, 30), Offer::tickets(Resource::Cpu, 20));
        let memory = |mebibytes: u64| Offer::hard(Resource::Memory, Amount::Absolute(mebibytes << 20));
        let uses = |most: u64| Refused::InUse { unit: ana, used: 1_639 << 20, reserved: 2 << 30, most };
        for (why, words) in [
            (
                Waits::Lacks(uses(409 << 20)),
                "unit lab/ana uses 1.6 GiB of the 2 GiB of memory that are reserved for it: it can give at most \
                 memory:409MiB now; free some of its memory first",
            ),
            (
                Waits::Lacks(uses(1_000)),
                "unit lab/ana uses 1.6 GiB of the 2 GiB of memory that are reserved for it: it can give none of it now; free \
                 some of its memory first",
            ),
            (
                Waits::Moves { offer: 2, why: Refused::Loop { unit: lab } },
                "offer 2 matches, but unit lab would fund itself: a unit cannot hold tickets of its own currency, nor of a \
                 currency that its own funds; name another unit",
            ),
            (Waits::NobodyGives(cpu), "no offer of another unit gives cpu tickets"),
            (Waits::NobodyWants(memory(1)), "no offer of another unit wants reserved memory"),
            (
                Waits::ForOthers { offer: 2 },
                "offer 2 would match, but one of the two accepts only another unit (`--with`)",
            ),
            (
                Waits::WaitsToo { offer: 2 },
                "offer 2 would match, but its unit does not have what it offers now",
            ),
            (
                Waits::NobodyActive { offer: 2, within: Some(lab) },
                "it cannot be compared with offer 2 now: tickets of unit lab are worth nothing while no unit there is active",
            ),
            (
                Waits::NobodyActive { offer: 2, within: None },
                "it cannot be compared with offer 2 now: tickets of the top level are worth nothing while no unit \
                 there is active",
            ),
            (
                Waits::NotWeighed { offer: 2, what: memory(3) },
                "it cannot be compared with offer 2: memory:3MiB is an amount, and the total of memory is unknown",
            ),
            (
                Waits::GivesLess { offer: 2, gives: cpu, needs: Some(Offer::tickets(Resource::Cpu, 25)) },
                "offer 2 gives cpu:20, but this one needs cpu:25",
            ),
            (
                Waits::WantsMore { offer: 2, wants: disk, needs: None },
                "offer 2 wants at least disk:30, for which this one would have to give more than a unit can have",
            ),
            (Waits::Ratio { offer: 2 }, "offer 2 asks a higher price than this one pays"),
            (
                Waits::NoRing,
                "some offers give what it wants, and others want what it gives, but they form no cycle of at most four",
            ),
        ] {
            assert_eq!(waits(&contract, why), words);
        }
    }

    /// The number that a refusal suggests instead is accepted by the rights.
    #[test]
    fn changes_and_refusals_name_units_and_remedies() {
        let mut contract = Contract::default();
        let (a, b) = (contract.add(None, "a"), contract.add(None, "b"));
        let sub = contract.add(Some(a), "sub");
        let (gives, gets) = (Offer::tickets(Resource::Disk, 30), Offer::tickets(Resource::Cpu, 10));
        let mut rights = Rights::new(&contract);
        let mut said = |change: Change| {
            let refused = rights.apply(change).err();
            super::rights(&contract, &RightsChange { change, refused })
        };
        let cpu = Resource::Cpu;
        let several = |how, cpu, disk| {
            let tickets = PerResource { cpu: Some(cpu), disk: Some(disk), ..PerResource::default() };
            Change::Several { unit: b, how, tickets }
        };
        for (change, words) in [
            (Change::Set { unit: a, resource: cpu, tickets: 150 }, "a: 150 cpu tickets from now on"),
            (
                Change::Several {
                    unit: b,
                    how: How::Set,
                    tickets: PerResource { disk: Some(100), cpu: Some(90), bus: None, memory: Some(7) },
                },
                "b: 90 cpu, 7 memory and 100 disk tickets from now on",
            ),
            (several(How::Issue, 1, 2), "b: 1 cpu and 2 disk tickets more"),
            (several(How::TakeBack, 1, 2), "b: 1 cpu and 2 disk tickets fewer"),
            (
                Change::Exchange { one: a, other: b, gives, gets },
                "a: gives 30 disk tickets to b for 10 cpu tickets",
            ),
            (Change::Transfer { from: b, to: a, resource: cpu, tickets: 1 }, "b: gives 1 cpu tickets to a"),
            (
                Change::TakeBack { unit: b, resource: cpu, tickets: 79 },
                "b: 79 fewer cpu tickets: refused, since unit b has 79 cpu tickets of its own, and 79 fewer would \
                 leave none; take at most 78",
            ),
            (
                Change::Issue { unit: sub, resource: cpu, tickets: TICKETS_MAX },
                "a/sub: 1000000 more cpu tickets: refused, since unit a/sub has 100 cpu tickets, and 1000000 more would \
                 exceed 1000000; give at most 999900",
            ),
            (
                Change::Transfer { from: sub, to: b, resource: cpu, tickets: 1 },
                "a/sub: gives 1 cpu tickets to b: refused, since units a/sub and b have different parents, so \
                 their tickets are of different currencies; name two siblings",
            ),
            (
                Change::Transfer { from: b, to: b, resource: cpu, tickets: 1 },
                "b: gives 1 cpu tickets to b: refused, since unit b cannot give tickets to itself; name a sibling",
            ),
            (
                Change::Set { unit: UnitId(77), resource: cpu, tickets: 1 },
                "?: 1 cpu tickets from now on: refused, since unit ? holds no tickets: the contract in force gives it none",
            ),
        ] {
            assert_eq!(said(change), words);
        }
        for (change, most) in [
            (Change::TakeBack { unit: b, resource: cpu, tickets: 78 }, None),
            (Change::Issue { unit: sub, resource: cpu, tickets: 999_900 }, None),
        ] {
            assert_eq!(rights.apply(change).err(), most);
        }
    }
}
