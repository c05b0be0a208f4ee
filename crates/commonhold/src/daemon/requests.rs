//! Parses the requests of clients, checks permissions, and answers.
//!
//! [`read`] parses a request, and [`answer`] computes the answer. Requests that change rights are handled by
//! the module [`tickets`]. A request that fails is answered by a [`Refusal`]: its name is a [`Why`], and its
//! text is for the user.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use commonhold_client::Why;
use commonhold_client::arena::PAGE_BYTES;
use commonhold_client::wire::{
    Call, Explanation, Flags, INTERFACE, Joined, METHODS, Refusal, Reply, Request, SERVICE,
};
use commonhold_contract::{UnitId, position};
use commonhold_ledger::Job;
use commonhold_live::apply::kernel::{Account, CallBacks, Cause, Had, UnitCounters};
use commonhold_live::host::clock;
use commonhold_live::observe::arena::NotJoined;
use commonhold_live::observe::hidden::HiddenProcesses;
use commonhold_live::observe::process::ThreadState;
use commonhold_live::{LiveBackend, MORE_FILES};
use commonhold_policy::Time;
use commonhold_policy::membership::{Placement, ProcessFacts, Rule, may_enter};
use commonhold_protocol::{DESCRIPTIONS, description};
use commonhold_report::switches::{CpuSwitches, Deadlines, Latency, Times, UnitSwitches};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::clients::Caller;
use super::fair_queue::Party;
use super::pace::Pace;
use super::session::Session;
use super::{as_contract, holdings, start, tickets};
use crate::protocol::{
    AwaitReply, DescriptionReply, EnterReply, InfoReply, Instead, MembersReply, StatusReply, WhereReply,
};

/// The most processes in a reply to `Members`.
const MEMBERS_MAX: usize = 2_000;

/// Facts about the daemon itself, and the settings that answers depend on.
pub(super) struct About {
    pub(super) contract_path: String,
    pub(super) contract_text: String,
    pub(super) pace: Pace,
    /// The processes that /proc hides from ordinary users.
    pub(super) hidden: HiddenProcesses,
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
pub(super) fn read(request: &[u8]) -> Result<Request<Call>, Refusal> {
    let object: Map<String, Value> = serde_json::from_slice(request)
        .map_err(|e| invalid(&format!("the request is no JSON object: {e}")))?;
    let flags = Flags {
        more: flag(&object, "more")?,
        oneway: flag(&object, "oneway")?,
        upgrade: flag(&object, "upgrade")?,
    };
    if flags.upgrade {
        return Err(invalid("upgrade"));
    }
    let Some(Value::String(method)) = object.get("method") else { return Err(invalid("method")) };
    if !METHODS.contains(&method.as_str()) {
        return Err(no_method(method));
    }
    let call = match object.get("parameters") {
        None | Some(Value::Null) => Call::deserialize(json!({"method": method, "parameters": {}})),
        // Parsed from the text, since `object` no longer has duplicate keys, which are an error.
        Some(Value::Object(_)) => serde_json::from_slice(request),
        Some(_) => return Err(invalid("parameters")),
    };
    Ok(Request { call: call.map_err(|e| invalid(&e.to_string()))?, flags })
}

/// Whether a request that cannot be parsed wants no reply nevertheless.
pub(super) fn is_oneway(request: &[u8]) -> bool {
    serde_json::from_slice::<Map<String, Value>>(request)
        .is_ok_and(|object| object.get("oneway") == Some(&Value::Bool(true)))
}

/// The value of a flag of a request; false if the request does not have it.
fn flag(request: &Map<String, Value>, name: &str) -> Result<bool, Refusal> {
    match request.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(is_set)) => Ok(*is_set),
        Some(_) => Err(invalid(name)),
    }
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
        Call::Status { by_cpu } => status(session, about, caller, *by_cpu),
        // This is a single reply. The daemon handles subscriptions, and caches the replies.
        Call::Monitor { .. } => Err(no_method("io.commonhold.Monitor")),
        Call::Where { pid } => find(session, about, caller, *pid),
        Call::Members { unit, at_most } => members(session, about, caller, unit, *at_most),
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
        Call::GetInfo {} => reply(&InfoReply {
            vendor: "The Commonhold authors".to_owned(),
            product: "commonhold".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            url: "file:///usr/share/doc/commonhold/protocol.md".to_owned(),
            interfaces: DESCRIPTIONS.iter().map(|(name, _)| (*name).to_owned()).collect(),
        }),
        Call::GetInterfaceDescription { interface } => match description(interface) {
            Some(description) => reply(&DescriptionReply { description: description.to_owned() }),
            None => Err(no_interface(interface.clone())),
        },
    };
    Answer { passed, ..Answer::of(answered) }
}

fn status(session: &mut Session, about: &About, caller: &Caller, by_cpu: bool) -> Answered {
    let (backend, instead) = backend_now(session);
    let mut statement = session.statement();
    if !sees_all(about, caller) {
        hide_programs(&mut statement.jobs);
    }
    reply(&StatusReply {
        holdings: holdings::now(session),
        backend,
        instead,
        contract: about.contract_path.clone(),
        statement,
        daemon: about.pace.now(),
        switches: switches(session, by_cpu),
        tickets: tickets::changed(session),
        expected_tickets: session.expected(),
        lots: tickets::lots(session.contract(), &session.rights(), |_| true),
        problems: problems_now(session),
    })
}

/// The active backend, and the preferred one if the active one is a fallback.
pub(super) fn backend_now(session: &mut Session) -> (String, Option<Instead>) {
    let active = session.backend().active();
    let instead = active.fallback_from.map(|other| Instead {
        of: other.name.to_owned(),
        for_ns: clock::now().saturating_sub(other.since),
        why: other.why,
    });
    (active.name.to_owned(), instead)
}

/// The problems so far, with a warning if units cannot negotiate. Without it, the units that negotiate would
/// seem to wait for their first trial.
pub(super) fn problems_now(session: &mut Session) -> Vec<String> {
    let backend = session.backend().active().name;
    let no_trade = start::no_trade(session.contract(), backend).map(str::to_owned);
    session.problems().into_iter().chain(no_trade).collect()
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
    encode(parameters, false)
}

/// Encodes a reply; `continues`: further replies to the same request follow.
pub(super) fn encode<T: Serialize>(parameters: &T, continues: bool) -> Answered {
    serde_json::to_vec(&Reply { parameters, continues }).map_err(|e| refuse(&Why::Failed, e.to_string()))
}

/// A refusal, with the reason and the remedy in words.
pub(super) fn refuse(why: &Why, message: String) -> Refusal {
    if *why == Why::InvalidParameter {
        return invalid(&message);
    }
    Refusal { error: why.name().to_owned(), parameters: Explanation { message, ..Explanation::default() } }
}

/// The refusal of an invalid request. This error of the standard has no message for people, so `parameter` is
/// the name of the invalid parameter, or states what is wrong.
pub(super) fn invalid(parameter: &str) -> Refusal {
    let parameter = Some(parameter.to_owned());
    let parameters = Explanation { parameter, ..Explanation::default() };
    Refusal { error: Why::InvalidParameter.name().to_owned(), parameters }
}

/// The refusal of a request for an unknown method.
fn no_method(method: &str) -> Refusal {
    match method.rsplit_once('.') {
        Some((interface, _)) if ![INTERFACE, SERVICE].contains(&interface) => {
            no_interface(interface.to_owned())
        }
        _ => {
            let parameters = Explanation { method: Some(method.to_owned()), ..Explanation::default() };
            Refusal { error: Why::MethodNotFound.name().to_owned(), parameters }
        }
    }
}

fn no_interface(interface: String) -> Refusal {
    let parameters = Explanation { interface: Some(interface), ..Explanation::default() };
    Refusal { error: Why::InterfaceNotFound.name().to_owned(), parameters }
}

/// Answers which unit a process is in, and by which rule. A process that /proc hides from the caller does not
/// exist for the caller.
fn find(session: &mut Session, about: &About, caller: &Caller, pid: u32) -> Answered {
    let nothing = |why| Err(refuse(&Why::NoSuchProcess, format!("process {pid} {why}")));
    if !may_see(session, about, caller, pid) {
        return nothing("does not exist");
    }
    let Some(member) = session.backend().roster().member(pid).cloned() else {
        let stat = session.backend().roster_mut().procfs().stat(pid).ok().flatten();
        return nothing(match stat.map(|stat| stat.state) {
            None => "does not exist",
            Some(ThreadState::Ended) => "has ended, and its parent has not collected it yet",
            Some(_) => "is in no unit: process 1 and the daemon's own processes never are",
        });
    };
    let unit = session.contract().unit(member.placement.unit).path.clone();
    let outside = member.stays.filter(|why| why.is_outside()).map(|why| why.to_string());
    reply(&WhereReply { unit, rule: explain(session, about, member.placement), outside })
}

/// Whether /proc would show a process to the caller. The kernel shows a process to a user only if all user
/// numbers of the process are that user's.
pub(super) fn may_see(session: &mut Session, about: &About, caller: &Caller, pid: u32) -> bool {
    if sees_all(about, caller) {
        return true;
    }
    let identity = session.backend().roster_mut().procfs().identity(pid).ok().flatten();
    identity.is_some_and(|identity| identity.uid == caller.uid && identity.uid_real == caller.uid)
}

/// Removes the names of programs and the process numbers from jobs, for callers from whom /proc hides
/// processes.
pub(super) fn hide_programs(jobs: &mut [Job]) {
    for job in jobs {
        "hidden".clone_into(&mut job.name);
    }
}

/// Whether /proc hides no process from the caller.
pub(super) fn sees_all(about: &About, caller: &Caller) -> bool {
    is_privileged(caller) || !about.hidden.from(&caller.gids)
}

/// Lists the processes of a unit that the caller may see.
fn members(
    session: &mut Session,
    about: &About,
    caller: &Caller,
    path: &str,
    at_most: Option<u32>,
) -> Answered {
    let common = session.contract().find(path).filter(|unit| unit.is_common());
    let unit = match common {
        Some(unit) => unit,
        None => unit_of(session, path, "listed")?,
    };
    let at_most = at_most.map_or(MEMBERS_MAX, |most| (most as usize).min(MEMBERS_MAX));
    let sees_all = sees_all(about, caller);
    let mut reply_with = MembersReply::default();
    for member in session.backend().roster().members_of(unit) {
        if sees_all || member.uid == caller.uid {
            if reply_with.pids.len() < at_most {
                reply_with.pids.push(member.key.pid);
            }
            reply_with.count += 1;
        }
    }
    reply(&reply_with)
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
    use super::super::session;
    use super::*;
    use commonhold_client::wire::{Asked, How, Numbers, Resource};
    use commonhold_live::host::child;
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
            [Why::InvalidParameter, Why::MethodNotFound, Why::InterfaceNotFound]
                .contains(&Why::of(&refusal.error)),
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

        /// Flags are read as they were sent, whatever the order and the method; only `upgrade`, and values
        /// that are no truth values, are refused.
        #[test]
        fn flags_are_read_or_refused(
            method in proptest::sample::select(METHODS.to_vec()),
            values in prop::array::uniform3(prop::sample::select(vec!["true", "false", "null", "1", "\"true\"", "{}"])),
            with_parameters: bool,
        ) {
            let [more, oneway, upgrade] = values;
            let parameters = if with_parameters { ",\"parameters\":null" } else { "" };
            let request = format!(
                "{{\"upgrade\":{upgrade},\"more\":{more},\"method\":\"{method}\",\"oneway\":{oneway}{parameters}}}"
            );
            let is_flag = |value: &str| matches!(value, "true" | "false" | "null");
            let is_wrong = upgrade == "true" || !values.iter().all(|value| is_flag(value));
            if let Ok(Request { flags, .. }) = read(request.as_bytes()) {
                prop_assert!(!is_wrong, "{request}");
                let (more, oneway) = (more == "true", oneway == "true");
                prop_assert_eq!(flags, Flags { more, oneway, upgrade: false });
            } else {
                let error = error_of(request.as_bytes());
                prop_assert_eq!(error.as_deref(), Some(Why::InvalidParameter.name()));
                let bare = format!("{{\"method\":\"{method}\",\"parameters\":{{}}}}");
                prop_assert!(is_wrong || serde_json::from_str::<Call>(&bare).is_err(), "{request}");
            }
        }

        /// An encoded request parses to the same request; a damaged one is answered with an error.
        #[test]
        fn a_change_is_read_as_it_was_asked_for(asked in any_asked(), at: usize, byte: u8) {
            let mut request = serde_json::to_vec(&Call::Change(asked.clone())).unwrap();
            let Ok(Request { call: Call::Change(found), .. }) = read(&request) else { panic!("{asked:?}") };
            prop_assert_eq!(found, asked);
            prop_assert!(error_of(&request[..at % request.len()]).is_some(), "a part of a request is none");
            let at = at % request.len();
            request[at] = byte;
            error_of(&request);
        }
    }

    /// What these callers learn about a process of this user, with /proc that shows all processes, and with
    /// one that hides those of others.
    #[test]
    fn a_process_that_proc_hides_does_not_exist() {
        let directory = tempfile::tempdir().unwrap();
        let (mut session, _) = session::tests::troubled(directory.path());
        let mut sleeper = child::command("sleep").arg("60").spawn().unwrap();
        // A step may not yet be able to read a process that has just begun.
        let mut steps = 0;
        while session.backend().roster().member(sleeper.id()).is_none() {
            session.step().unwrap();
            steps += 1;
            assert!(steps < 1_000, "the process is not found");
        }
        let me = rustix::process::geteuid().as_raw();
        let mut asked = |uid, party, hidden, call: &Call| {
            let about = About {
                contract_path: String::new(),
                contract_text: String::new(),
                pace: Pace::default(),
                hidden,
            };
            let answer = answer(&mut session, &about, &caller(uid, party), call);
            serde_json::from_slice::<Value>(answer.message.split_last().unwrap().1).unwrap()
        };
        let (pid, nobody) = (sleeper.id(), me + 1_000);
        let (shown, hidden) = (HiddenProcesses::default(), HiddenProcesses::ALL);
        let sees = [
            (me, Party::Privileged, hidden, true),
            (me, Party::User(me), hidden, true),
            (nobody, Party::User(nobody), shown, true),
            (nobody, Party::User(nobody), hidden, false),
        ];
        for (uid, party, hidden, sees) in sees {
            let found = asked(uid, party, hidden, &Call::Where { pid });
            let members =
                asked(uid, party, hidden, &Call::Members { unit: "shared".to_owned(), at_most: None });
            let members = &members["parameters"];
            let pids = members["pids"].as_array().unwrap();
            assert_eq!(pids.contains(&json!(pid)), sees, "{party:?} {hidden:?}: {found} {members}");
            assert!(members["count"].as_u64().unwrap() >= pids.len() as u64);
            if sees {
                assert_eq!(found["parameters"]["unit"], "shared", "{party:?} {hidden:?}");
            } else {
                // No process can have this number.
                let nothing = asked(uid, party, hidden, &Call::Where { pid: 1 << 30 });
                let words = |answer: &Value| answer.to_string().replace(&pid.to_string(), "PID");
                assert_eq!(words(&found), words(&nothing).replace("1073741824", "PID"));
            }
        }
        let first = asked(
            me,
            Party::Privileged,
            shown,
            &Call::Members { unit: "shared".to_owned(), at_most: Some(1) },
        );
        assert_eq!(first["parameters"]["pids"].as_array().unwrap().len(), 1);
        assert!(first["parameters"]["count"].as_u64().unwrap() > 1);
        let unknown =
            asked(me, Party::Privileged, shown, &Call::Members { unit: "x".to_owned(), at_most: None });
        assert_eq!(unknown["error"], Why::NoSuchUnit.name());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
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
        let Ok(Request { call: Call::Change(asked), .. }) = read(request) else { panic!("it is one") };
        assert_eq!(asked, Asked::TakeBack { unit: "a/b".into(), resource: Resource::Disk, tickets: 40 });
        let unknown = br#"{"method":"io.commonhold.Steal","parameters":{}}"#;
        assert_eq!(error_of(unknown).as_deref(), Some(Why::MethodNotFound.name()));
    }

    #[test]
    fn a_refusal_has_the_parameters_of_the_standard() {
        let refused = |request: &str| {
            let refusal = read(request.as_bytes()).unwrap_err();
            serde_json::to_string(&refusal).unwrap().replace("org.varlink.service.", "")
        };
        assert_eq!(
            refused("{\"method\":\"io.commonhold.Steal\"}"),
            "{\"error\":\"MethodNotFound\",\"parameters\":{\"method\":\"io.commonhold.Steal\"}}"
        );
        assert_eq!(
            refused("{\"method\":\"io.systemd.Steal\"}"),
            "{\"error\":\"InterfaceNotFound\",\"parameters\":{\"interface\":\"io.systemd\"}}"
        );
        assert_eq!(
            refused("{\"method\":\"io.commonhold.Offers\",\"upgrade\":true}"),
            "{\"error\":\"InvalidParameter\",\"parameters\":{\"parameter\":\"upgrade\"}}"
        );
        assert!(refused("{\"method\":\"io.commonhold.Where\"}").contains("missing field `pid`"));
        assert!(refused("[]").contains("the request is no JSON object"));
    }
}
