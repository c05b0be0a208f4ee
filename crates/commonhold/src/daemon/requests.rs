//! Parses the requests of clients, checks permissions, and answers.
//!
//! [`read`] parses a request, and [`answer`] computes the answer. Requests that change rights are handled by
//! the module [`tickets`]. A request that fails is answered by a [`Refusal`]: its name is a [`Why`], and its
//! text is for the user.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use commonhold_client::Why;
use commonhold_client::arena::PAGE_BYTES;
use commonhold_client::wire::{Call, Explanation, Joined, Refusal, Reply};
use commonhold_contract::{UnitId, position};
use commonhold_live::apply::kernel::{Account, CallBacks, Cause, Had, UnitCounters};
use commonhold_live::host::clock;
use commonhold_live::observe::arena::NotJoined;
use commonhold_live::observe::process::ThreadState;
use commonhold_live::{LiveBackend, MORE_FILES};
use commonhold_policy::Time;
use commonhold_policy::membership::{Placement, ProcessFacts, Rule, may_enter};
use commonhold_report::switches::{CpuSwitches, Deadlines, Latency, Times, UnitSwitches};
use serde::Serialize;

use super::clients::Caller;
use super::fair_queue::Party;
use super::pace::Pace;
use super::session::Session;
use super::{as_contract, holdings, start, tickets};
use crate::protocol::{AwaitReply, EnterReply, Instead, StatusReply, WhereReply};

/// Facts about the daemon itself, for `status`.
pub(super) struct About {
    pub(super) contract_path: String,
    pub(super) contract_text: String,
    pub(super) pace: Pace,
}

/// An answer, ready to be sent.
pub(super) struct Answer {
    /// The encoded message with its final NUL.
    pub(super) message: Rc<[u8]>,
    /// A descriptor to pass with the message.
    pub(super) passed: Option<OwnedFd>,
    /// The error's name, if the request was refused.
    pub(super) error: Option<String>,
}

impl Answer {
    pub(super) fn of(answered: Answered) -> Answer {
        let (message, error) = match answered {
            Ok(message) => (message, None),
            Err(refusal) => (serde_json::to_vec(&refusal).unwrap_or_default(), Some(refusal.error)),
        };
        Answer { message: with_nul(message), passed: None, error }
    }
}

fn with_nul(mut message: Vec<u8>) -> Rc<[u8]> {
    message.push(0);
    message.into()
}

/// Parses a request. The error is the refusal to send to the client.
pub(super) fn read(request: &[u8]) -> Result<Call, Refusal> {
    serde_json::from_slice(request).map_err(|e| malformed(request, &e))
}

/// Whether another turn is needed to find the unit of a process, since the process started after the last
/// sample (taken at `sampled_at`). A process that is older than the sample and still unknown, such as process
/// 1 or a thread, is in no unit. No turn is made for such a process. Otherwise a client could force turns at
/// will by asking for process 1.
pub(super) fn needs_new_sample(session: &mut Session, pid: u32, sampled_at: Time) -> bool {
    let roster = session.backend().roster_mut();
    roster.member(pid).is_none()
        && roster
            .procfs()
            .stat(pid)
            .ok()
            .flatten()
            .is_some_and(|stat| stat.key.may_be_younger_than(sampled_at))
}

/// The encoded reply to a request, or the reason why the request is refused.
pub(super) type Answered = Result<Vec<u8>, Refusal>;

/// Answers one request.
pub(super) fn answer(session: &mut Session, about: &About, caller: &Caller, call: &Call) -> Answer {
    let mut passed = None;
    let answered = match call {
        Call::Status { by_cpu } => status(session, about, *by_cpu),
        Call::Where { pid } => find(session, about, *pid),
        Call::Enter { unit } => enter(session, caller, unit),
        Call::Join {} => join(session, caller).and_then(|(joined, page)| {
            passed = Some(page);
            reply(&joined)
        }),
        Call::Tickets {} => tickets::all(session),
        Call::Currency { unit } => tickets::currency(session, unit),
        Call::AsContract {} => as_contract::answer(session, about),
        Call::Offers {} => tickets::offers(session),
        // The daemon has queued the change ([`tickets::queue`]) and made a turn before this call.
        Call::Change(asked) => tickets::outcome(session, asked),
        // This answers with the present state. A client that has to wait for the outcome is answered by the
        // daemon later.
        Call::Await { number, .. } => tickets::present_state(session, *number)
            .and_then(|state| reply(&AwaitReply { number: *number, state })),
    };
    Answer { passed, ..Answer::of(answered) }
}

fn status(session: &mut Session, about: &About, by_cpu: bool) -> Answered {
    let active = session.backend().active();
    // Status lists the units that negotiate. Without this warning they would seem to wait for their first
    // trial.
    let no_trade = start::no_trade(session.contract(), active.name).map(str::to_owned);
    let instead = active.fallback_from.map(|other| Instead {
        of: other.name.to_owned(),
        for_ns: clock::now().saturating_sub(other.since),
        why: other.why,
    });
    reply(&StatusReply {
        holdings: holdings::now(session),
        backend: active.name.to_owned(),
        instead,
        contract: about.contract_path.clone(),
        statement: session.statement(),
        daemon: about.pace.now(),
        switches: switches(session, by_cpu),
        tickets: tickets::changed(session),
        expected_tickets: session.expected(),
        lots: tickets::lots(session.contract(), &session.rights(), |_| true),
        problems: session.problems().into_iter().chain(no_trade).collect(),
    })
}

/// The kernel scheduler's counters of every unit, and of tasks in no unit.
fn switches(session: &mut Session, by_cpu: bool) -> Vec<UnitSwitches> {
    let units = [UnitId::KERNEL, UnitId::SHARED].into_iter().chain(session.contract().listed());
    let described =
        |id| (id, session.contract().unit(id).path.clone(), session.contract().unit(id).deadline.is_some());
    let units: Vec<(UnitId, String, bool)> = units.map(described).collect();
    let backend = session.backend();
    let counters = |(id, unit, has_deadlines): (UnitId, String, bool)| {
        let UnitCounters { account, call_backs, deadlines: Had { met, missed, violated } } =
            backend.unit_counters(id)?;
        Some(UnitSwitches {
            unit,
            times: times(&account),
            called_back: call_backs.count,
            call_back_p50_ns: call_backs.within_ns(500_000),
            call_back_p99_ns: call_backs.within_ns(990_000),
            call_back_max_ns: call_backs.within_ns(1_000_000),
            moved_cache: account.moved_cache,
            moved_node: account.moved_node,
            moved_far: account.moved_far,
            strays: account.strays,
            switches: account.switches,
            rescues: account.rescues,
            deadlines: has_deadlines.then_some(Deadlines { met, missed, violated }),
            call_backs: latencies(&call_backs),
            cpus: if by_cpu { times_by_cpu(&backend.accounts(id)) } else { Vec::new() },
        })
    };
    units.into_iter().filter_map(counters).collect()
}

/// The histogram of call-back times, without empty classes.
fn latencies(call_backs: &CallBacks) -> Vec<Latency> {
    let classes = call_backs.classes().filter(|(_, _, count)| *count > 0);
    #[allow(clippy::cast_precision_loss, reason = "bounds are powers of two")]
    let us = |ns: u64| ns as f64 / 1000.0;
    classes
        .map(|(from_ns, below_ns, count)| Latency { from_us: us(from_ns), below_us: below_ns.map(us), count })
        .collect()
}

/// The times on each CPU. `accounts` has one account for each CPU number. CPUs without any time are left out.
fn times_by_cpu(accounts: &[Account]) -> Vec<CpuSwitches> {
    let switches = |(cpu, account): (u32, &Account)| CpuSwitches { cpu, times: times(account) };
    (0..).zip(accounts).map(switches).filter(|cpu| cpu.times != Times::default()).collect()
}

fn times(account: &Account) -> Times {
    Times {
        home_ns: account.home_ns,
        borrowed_ns: account.borrowed_ns,
        visiting_ns: account.visiting_ns,
        shared_ns: account.shared_ns,
        lent_ns: account.lent_ns,
        visited_ns: account.visited_ns,
        waited_own_ns: account.waited_ns(Cause::Own),
        waited_loan_ns: account.waited_ns(Cause::Loan),
        waited_higher_ns: account.waited_ns(Cause::Higher),
    }
}

pub(super) fn reply<T: Serialize>(parameters: &T) -> Answered {
    serde_json::to_vec(&Reply { parameters }).map_err(|e| refuse(&Why::Failed, e.to_string()))
}

pub(super) fn refuse(why: &Why, message: String) -> Refusal {
    Refusal { error: why.name().to_owned(), parameters: Explanation { message } }
}

/// The refusal of a malformed request: it names an unknown method, or wrong parameters of a known method.
fn malformed(request: &[u8], e: &serde_json::Error) -> Refusal {
    let value: Option<serde_json::Value> = serde_json::from_slice(request).ok();
    let method = value.as_ref().and_then(|value| value.get("method")).and_then(|method| method.as_str());
    let known = [
        "Status",
        "Where",
        "Enter",
        "Tickets",
        "Currency",
        "AsContract",
        "Offers",
        "Change",
        "Join",
        "Await",
    ]
    .map(|name| format!("io.commonhold.{name}"));
    match method {
        Some(method) if !known.iter().any(|known| known == method) => {
            refuse(&Why::MethodNotFound, format!("no method `{method}`; there are {}", known.join(", ")))
        }
        _ => refuse(&Why::InvalidParameter, format!("the request is not understood: {e}")),
    }
}

/// Answers which unit a process is in, and by which rule.
fn find(session: &mut Session, about: &About, pid: u32) -> Answered {
    let Some(member) = session.backend().roster().member(pid).cloned() else {
        let stat = session.backend().roster_mut().procfs().stat(pid).ok().flatten();
        let why = match stat.map(|stat| stat.state) {
            None => "does not exist",
            Some(ThreadState::Ended) => "has ended, and its parent has not collected it yet",
            Some(_) => "is in no unit: process 1 and the daemon's own processes never are",
        };
        return Err(refuse(&Why::NoSuchProcess, format!("process {pid} {why}")));
    };
    let unit = session.contract().unit(member.placement.unit).path.clone();
    let outside = member.stays.filter(|why| why.is_outside()).map(|why| why.to_string());
    reply(&WhereReply { unit, rule: explain(session, about, member.placement), outside })
}

/// The rule by which a process is in its unit, in words.
fn explain(session: &Session, about: &About, placement: Placement) -> String {
    let rule = match (placement.rule, placement.member) {
        (_, Some((unit, position_in_list))) => {
            let unit = session.contract().unit(unit);
            let member = &unit.members[usize::from(position_in_list)];
            // Sub-units made by `each` have no position in the file.
            if member.span.is_empty() {
                format!("each user has a sub-unit: {}", member.kind)
            } else {
                let (line, _) = position(&about.contract_text, member.span.start);
                format!("matches \"{}\" of {} ({}:{line})", member.kind, unit.path, about.contract_path)
            }
        }
        (Rule::Exec, None) => "entered by `commonhold exec`".to_owned(),
        (Rule::Kernel, None) => "a thread of the kernel's own".to_owned(),
        (_, None) => "matches no rule of the contract: the default unit".to_owned(),
    };
    if placement.inherited { format!("inherited from its parent, which {rule}") } else { rule }
}

/// Looks up a unit by its path. Built-in units are refused, with a message that they cannot be `done`: a
/// participle such as `entered`.
pub(super) fn unit_of(session: &Session, path: &str, done: &str) -> Result<UnitId, Refusal> {
    let unit = session.contract().find(path);
    if unit.is_some_and(UnitId::is_common) {
        let message = format!(
            "unit `{path}` is built in and cannot be {done}: it holds the processes that are in no other unit"
        );
        return Err(refuse(&Why::NoSuchUnit, message));
    }
    unit.ok_or_else(|| {
        let units = session.contract().listed();
        let units: Vec<&str> =
            units.iter().map(|id| session.contract().unit(*id).path.as_str()).take(20).collect();
        refuse(
            &Why::NoSuchUnit,
            format!("the contract in force has no unit `{path}`; it has {}", units.join(", ")),
        )
    })
}

/// Makes the calling process a member of a unit, if the caller may enter the unit.
fn enter(session: &mut Session, caller: &Caller, path: &str) -> Answered {
    let unit = unit_of(session, path, "entered")?;
    let contract = session.contract().clone();
    let backend = session.backend();
    if !can_enter(backend, caller, &contract, unit) {
        let name = name_of(backend, caller);
        let message = format!(
            "user {name} may not enter unit `{path}`: only root, the daemon's own user and the unit's members may; \
             the contract's `members` lists these"
        );
        return Err(refuse(&Why::NotAllowed, message));
    }
    let has_exited = || refuse(&Why::NoSuchProcess, format!("process {} is gone", caller.pid));
    let key = caller.key.ok_or_else(has_exited)?;
    let roster = backend.roster_mut();
    let entered =
        roster.stays_on_entering(key.pid).and_then(|why| Ok((why, roster.enter(&contract, key, unit)?)));
    match entered {
        Ok((why, true)) => reply(&EnterReply { outside: why.map(|why| why.to_string()) }),
        Ok((_, false)) => Err(has_exited()),
        Err(e) => Err(refuse(&Why::Failed, e.to_string())),
    }
}

/// Creates a page in which the calling process reports its transfers over the memory bus.
fn join(session: &mut Session, caller: &Caller) -> Result<(Joined, OwnedFd), Refusal> {
    let has_exited = || refuse(&Why::NoSuchProcess, format!("process {} is gone", caller.pid));
    let key = caller.key.ok_or_else(has_exited)?;
    let no_gangs = || {
        let message =
            "the contract in force has no gangs: `gangs` in [machine] and `job` in a unit make some";
        refuse(&Why::NoGangs, message.to_owned())
    };
    match session.backend().join(key, charged_user(caller)).ok_or_else(no_gangs)? {
        Ok((page, every_ns)) => Ok((Joined { page_bytes: PAGE_BYTES, every_ns }, page)),
        Err(NotJoined::TooMany(why)) => Err(refuse(&Why::TooManyPages, why)),
        Err(NotJoined::Failed(e)) => {
            let no_descriptor = e.raw_os_error() == Some(libc::EMFILE);
            let remedy = if no_descriptor { MORE_FILES } else { "" };
            Err(refuse(&Why::Failed, format!("no page can be made for process {}: {e}{remedy}", key.pid)))
        }
    }
}

/// The caller's login name, or the user number if there is no name. A caller in a user namespace gets its
/// number without a lookup. A user can have thousands of numbers there that have no name, and each lookup may
/// wait for a directory service.
pub(super) fn name_of(backend: &mut dyn LiveBackend, caller: &Caller) -> String {
    let name = is_charged_as_itself(caller).then(|| backend.roster().names().user_name(caller.uid)).flatten();
    name.unwrap_or_else(|| caller.uid.to_string())
}

/// The user whose limit of pages a page counts against. For a caller in a user namespace, this is the user
/// who created the namespace. Otherwise one user could have the full number of pages under each of thousands
/// of user numbers, and leave no pages to others.
fn charged_user(caller: &Caller) -> u32 {
    match caller.party {
        Party::User(user) => user,
        Party::Privileged | Party::Exited => caller.uid,
    }
}

/// Whether the caller is charged under its own number. A caller in a user namespace is charged under the
/// creator's number.
fn is_charged_as_itself(caller: &Caller) -> bool {
    caller.party == Party::Privileged || caller.party == Party::User(caller.uid)
}

/// Whether the caller is root or the daemon's own user, who may do everything.
pub(super) fn is_privileged(caller: &Caller) -> bool {
    caller.party == Party::Privileged
}

/// The facts about the caller's process by which membership rules decide.
pub(super) fn facts(caller: &Caller) -> ProcessFacts {
    let Caller { uid, gids, pid, .. } = caller;
    ProcessFacts { pid: *pid, uid: *uid, gids: gids.clone(), ..ProcessFacts::default() }
}

fn can_enter(
    backend: &mut dyn LiveBackend,
    caller: &Caller,
    contract: &commonhold_contract::Contract,
    unit: UnitId,
) -> bool {
    is_privileged(caller) || may_enter(contract, backend.roster().names(), &facts(caller), unit)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use commonhold_client::wire::{Asked, How, Numbers, Resource};
    use proptest::prelude::*;

    fn caller(uid: u32, party: Party) -> Caller {
        Caller { uid, gids: vec![], pid: 1, key: None, party }
    }

    fn any_resource() -> impl Strategy<Value = Resource> {
        proptest::sample::select(Resource::ALL.to_vec())
    }

    fn any_asked() -> impl Strategy<Value = Asked> {
        let words = || (any::<String>(), any::<String>(), any::<String>(), any::<String>());
        (0..9, words(), any_resource(), any::<u64>(), any::<bool>()).prop_map(
            |(kind, (one, other, gives, gets), resource, tickets, while_connected)| match kind {
                0 => Asked::Set { unit: one, resource, tickets },
                1 => Asked::Issue { unit: one, resource, tickets },
                2 => Asked::TakeBack { unit: one, resource, tickets },
                3 => Asked::Transfer { from: one, to: other, resource, tickets },
                4 => Asked::Exchange { one, other, gives, gets },
                5 => Asked::Cancel { number: tickets },
                6 => Asked::Fund {
                    unit: one,
                    of: Some(other),
                    tickets: Numbers { disk: Some(tickets), ..Numbers::default() },
                },
                7 => {
                    let how = [How::Set, How::Issue, How::TakeBack][usize::try_from(tickets % 3).unwrap()];
                    Asked::Several {
                        unit: one,
                        how,
                        tickets: Numbers { disk: Some(tickets), ..Numbers::default() },
                    }
                }
                _ => {
                    let (with, for_ns) = ((!other.is_empty()).then_some(other), Some(tickets));
                    let at_least = Some(gets.clone());
                    Asked::Offer { unit: one, gives, wants: gets, with, for_ns, at_least, while_connected }
                }
            },
        )
    }

    /// The error of a malformed request; `None` if it parses.
    fn error_of(request: &[u8]) -> Option<String> {
        let refusal = read(request).err()?;
        let answer = Answer::of(Err(refusal));
        let (end, message) = answer.message.split_last().unwrap();
        assert!(*end == 0 && !message.contains(&0), "a NUL would end the answer early");
        let refusal: Refusal = serde_json::from_slice(message).unwrap();
        assert!(
            [Why::InvalidParameter, Why::MethodNotFound].contains(&Why::of(&refusal.error)),
            "{refusal:?}"
        );
        Some(refusal.error)
    }

    proptest! {
        /// Any input is either parsed as a request or answered with an error.
        #[test]
        fn any_bytes_are_read_or_answered(bytes: Vec<u8>, method in "[A-Za-z.]{0,24}", parameters: Vec<u8>) {
            error_of(&bytes);
            let mut request = format!("{{\"method\":\"io.commonhold.{method}\",\"parameters\":").into_bytes();
            request.extend(parameters);
            request.push(b'}');
            error_of(&request);
        }

        /// An encoded request parses to the same request; a damaged one is answered with an error.
        #[test]
        fn a_change_is_read_as_it_was_asked_for(asked in any_asked(), at: usize, byte: u8) {
            let mut request = serde_json::to_vec(&Call::Change(asked.clone())).unwrap();
            let Ok(Call::Change(found)) = read(&request) else { panic!("{asked:?}") };
            prop_assert_eq!(found, asked);
            prop_assert!(error_of(&request[..at % request.len()]).is_some(), "a part of a request is none");
            let at = at % request.len();
            request[at] = byte;
            error_of(&request);
        }
    }

    #[test]
    fn only_callers_charged_under_their_own_number_are_looked_up() {
        let is_looked_up = |uid, party| is_charged_as_itself(&caller(uid, party));
        assert!(is_looked_up(0, Party::Privileged) && is_looked_up(1_000, Party::User(1_000)));
        assert!(!is_looked_up(100_000, Party::User(1_000)) && !is_looked_up(100_000, Party::Exited));
    }

    #[test]
    fn pages_in_a_namespace_count_for_the_user_who_created_it() {
        assert_eq!(charged_user(&caller(1_000, Party::User(1_000))), 1_000);
        assert_eq!(charged_user(&caller(100_000, Party::User(1_000))), 1_000);
        assert_eq!(charged_user(&caller(0, Party::Privileged)), 0);
    }

    #[test]
    fn a_change_is_five_words_of_json() {
        let request = br#"{"method":"io.commonhold.Change","parameters":
            {"kind":"take-back","unit":"a/b","resource":"disk","tickets":40}}"#;
        let Ok(Call::Change(asked)) = read(request) else { panic!("it is one") };
        assert_eq!(asked, Asked::TakeBack { unit: "a/b".into(), resource: Resource::Disk, tickets: 40 });
        let unknown = br#"{"method":"io.commonhold.Steal","parameters":{}}"#;
        assert_eq!(error_of(unknown).as_deref(), Some(Why::MethodNotFound.name()));
    }
}
