//! The client side: the commands that call a running daemon, such as `exec`, `status`, `tickets` and `offer`.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use commonhold_client::wire::{Asked, Call};
use commonhold_client::{Client, Error, PATIENCE, Why};
use commonhold_contract::PerResource;
use commonhold_ledger::{Exchange, Verdict};
use commonhold_live::observe::roster::{MARKER, marker};
use commonhold_policy::rights::{How, TICKETS_MAX};
use commonhold_report::currency::{self, Currency};
use commonhold_report::table::wrap_whole;
use commonhold_report::{exchanges, findings, status, switches, tickets};
use serde::de::DeserializeOwned;

use crate::cli::{
    Cancel, Common, Exec, Fund, Issue, Number, Offer, Offers, Revoke, Status, Tickets, TicketsWhat,
};
use crate::exit::{Exit, Failure};
use crate::protocol::{
    ContractReply, EnterReply, OffersReply, StatusReply, TicketsReply, WhereReply, how_to_wire,
    numbers_to_wire, to_wire,
};
use crate::{bound, output, place};

/// Makes a call and returns its reply.
pub(crate) fn call<T: DeserializeOwned>(client: &mut Client, call: &Call) -> Result<T, Failure> {
    client.call(call).map_err(|e| call_failure(&e))
}

/// Maps a failed call to a message and an exit code.
fn call_failure(e: &Error) -> Failure {
    let no_answer = |what: &dyn std::fmt::Display| {
        Failure::new(Exit::Unavailable, format!("the daemon does not answer: {what}; see its output"))
    };
    let exit = match e {
        Error::Refused { why, .. } => match why {
            Why::NotAllowed => Exit::NotAllowed,
            Why::Failed => Exit::System,
            Why::TooFewTickets
            | Why::TooManyTickets
            | Why::NotSiblings
            | Why::SameUnit
            | Why::TicketsLent
            | Why::NoExchange
            | Why::NotReserved
            | Why::MemoryInUse
            | Why::Loop
            | Why::TooManyOffers
            | Why::NoSuchOffer => Exit::Refused,
            _ => Exit::Unavailable,
        },
        Error::NotUnderstood(_) => Exit::System,
        Error::HungUp => return no_answer(&"it hung up"),
        Error::Io(e) if e.kind() == ErrorKind::WouldBlock => {
            return no_answer(&format!("timeout after {} s", PATIENCE.as_secs()));
        }
        Error::Io(e) => return no_answer(e),
        Error::Withdrawn => Exit::Refused,
    };
    Failure::new(exit, e.to_string())
}

pub(crate) fn exec(args: &Exec) -> Result<Exit, Failure> {
    let stream = place::connect(&args.place)?;
    // The marker contains the daemon's process ID, so that a later daemon does not accept the marker. The
    // kernel says which process that is.
    let daemon_pid =
        rustix::net::sockopt::socket_peercred(&stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
    let mut client = Client::from(stream);
    let EnterReply { outside } = call(&mut client, &Call::Enter { unit: args.unit.clone() })?;
    if let Some(why) = outside {
        output::warn(&format!(
            "commonhold exec: warning: control groups do not hold this process in unit {}: it is {why}; start it from a login \
             session (a console, ssh) instead",
            args.unit
        ));
    }
    drop(client);
    let (program, arguments) =
        args.command.split_first().ok_or_else(|| Failure::new(Exit::Usage, "no command"))?;
    // By this environment variable the daemon recognises the program's descendants, even those whose parents
    // ended before the daemon sampled them.
    let error = commonhold_live::host::child::command(program)
        .args(arguments)
        .env(MARKER, marker(daemon_pid.unsigned_abs(), &args.unit))
        .exec();
    let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun };
    Err(Failure::new(exit, format!("cannot run `{}`: {error}", program.to_string_lossy())))
}

fn where_json(pid: u32, reply: &WhereReply) -> String {
    let mut json = serde_json::json!({ "pid": pid, "unit": reply.unit, "rule": reply.rule });
    if let Some(why) = &reply.outside {
        json["outside"] = why.as_str().into();
    }
    json.to_string()
}

pub(crate) fn status(args: &Status) -> Result<Exit, Failure> {
    if let Some(pid) = args.pid {
        return status_of_process(pid, args);
    }
    if args.check {
        let statement = ask_status(args)?.statement;
        output::print(&status::check(&statement))?;
        return Ok(match findings::overall(&statement) {
            Verdict::Kept => Exit::Ok,
            Verdict::Broken => Exit::Broken,
            Verdict::CannotTell => Exit::CannotTell,
        });
    }
    let text = status_text(&ask_status(args)?, args.json);
    match args.watch {
        None => output::print(&text)?,
        Some(seconds) => watch(args, text, Duration::from_secs(seconds))?,
    }
    Ok(Exit::Ok)
}

fn status_of_process(pid: u32, args: &Status) -> Result<Exit, Failure> {
    let mut client = Client::from(place::connect(&args.place)?);
    let reply: WhereReply = call(&mut client, &Call::Where { pid })?;
    let text = if args.json {
        where_json(pid, &reply)
    } else {
        let outside =
            reply.outside.map(|why| format!("; it is not in the unit's control group, since it is {why}"));
        let outside = outside.unwrap_or_default();
        output::messages(&format!("process {pid} is in unit {} ({}){outside}", reply.unit, reply.rule))
    };
    output::print(&text)?;
    Ok(Exit::Ok)
}

/// Asks the daemon for its status. With a unit on the command line, leaves only what concerns that unit.
fn ask_status(args: &Status) -> Result<StatusReply, Failure> {
    let mut client = Client::from(place::connect(&args.place)?);
    let mut reply: StatusReply = call(&mut client, &Call::Status { by_cpu: args.json })?;
    if let Some(unit) = &args.unit {
        let known: Vec<String> = reply.statement.accounts.iter().map(|it| it.unit.clone()).collect();
        if !status::only(&mut reply.statement, unit) {
            let known = known.iter().take(UNITS_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
            let what = format!("no unit `{unit}` holds tickets; units are {known}");
            return Err(Failure::new(Exit::Unavailable, what));
        }
        let is_within = |path: &str| status::is_within(path, unit);
        reply.switches.retain(|it| is_within(&it.unit));
        reply.tickets.retain(|it| is_within(&it.unit));
        reply.expected_tickets.retain(|it| is_within(&it.unit));
        reply.lots.retain(|it| is_within(&it.unit));
    }
    Ok(reply)
}

/// The most units that the message about an unknown unit names.
const UNITS_NAMED: usize = 10;

fn status_text(reply: &StatusReply, json: bool) -> String {
    let instead = reply.instead.as_ref();
    let holder = status::Holder {
        contract: &reply.contract,
        backend: &reply.backend,
        instead: instead.map(|other| status::Instead {
            of: &other.of,
            for_ns: other.for_ns,
            why: &other.why,
        }),
        holdings: &reply.holdings,
        switches: &reply.switches,
        tickets: &reply.tickets,
        expected_tickets: &reply.expected_tickets,
        lots: &reply.lots,
        problems: &reply.problems,
    };
    if json {
        return status::json(holder, &reply.statement);
    }
    let style = output::style();
    let mut text = status::text(&reply.statement, style);
    text.push('\n');
    text += &status::holder(holder, output::message_width());
    if reply.switches.iter().any(|unit| unit.switches > 0) {
        text.push('\n');
        text += &switches::text(&reply.switches, style);
    }
    text
}

/// Shows the status again and again, in place if standard output is a terminal. While the daemon does not
/// answer, shows why, and keeps asking: it may be about to restart. Ends when standard output has no reader
/// any more, or by a signal.
fn watch(args: &Status, first: String, interval: Duration) -> Result<(), Failure> {
    let mut text = first;
    loop {
        let screen = match output::size() {
            Some((_, rows)) if !args.json => in_place(&text, rows),
            _ => text,
        };
        if !output::print_to_reader(&screen)? {
            return Ok(());
        }
        std::thread::sleep(interval);
        text = match ask_status(args) {
            Ok(reply) => status_text(&reply, args.json),
            Err(failure) if args.json => {
                output::complain(&failure.to_string());
                String::new()
            }
            Err(failure) => {
                wrap_whole(&failure.to_string(), output::style().width, "", "  ").join("\n") + "\n"
            }
        };
    }
}

/// A text that replaces the terminal's content: at most `rows` lines, the last of which says how many are
/// left out. The cursor ends below the text, where the shell continues after Ctrl-C.
fn in_place(text: &str, rows: usize) -> String {
    // A line that is wider than the terminal is cut rather than wrapped, so that each line takes one row.
    const NO_WRAP_HOME: &str = "\x1b[?7l\x1b[H";
    const CLEAR_BELOW_WRAP: &str = "\x1b[J\x1b[?7h";
    const CLEAR_TO_END_OF_LINE: &str = "\x1b[K";
    let lines: Vec<&str> = text.lines().collect();
    // The cursor needs a row of its own.
    let room = rows.saturating_sub(1).max(1);
    let shown = if lines.len() <= room { lines.len() } else { room - 1 };
    let mut screen = NO_WRAP_HOME.to_owned();
    for line in &lines[..shown] {
        screen += line;
        screen += CLEAR_TO_END_OF_LINE;
        screen.push('\n');
    }
    if shown < lines.len() {
        let _ = writeln!(screen, "... {} more lines{CLEAR_TO_END_OF_LINE}", lines.len() - shown);
    }
    screen.insert_str(screen.len() - 1, CLEAR_BELOW_WRAP);
    screen
}

pub(crate) fn tickets(args: &Tickets) -> Result<Exit, Failure> {
    if args.as_contract {
        let reply: ContractReply =
            call(&mut place::connect(&args.common.place)?.into(), &Call::AsContract {})?;
        return print(&reply.contract);
    }
    if let Some(unit) = &args.unit {
        let request = Call::Currency { unit: unit.clone() };
        let reply: Currency = call(&mut place::connect(&args.common.place)?.into(), &request)?;
        return print(&match args.common.json {
            true => currency::json(&reply),
            false => currency::text(&reply, output::style()),
        });
    }
    let (request, common) = match &args.what {
        None => (Call::Tickets {}, &args.common),
        Some(TicketsWhat::Set { unit, resource, tickets, common }) => {
            let asked =
                Asked::Set { unit: unit.clone(), resource: to_wire((*resource).into()), tickets: *tickets };
            (Call::Change(asked), common)
        }
        Some(TicketsWhat::Give { from, to, resource, tickets, common }) => {
            let (from, to) = (from.clone(), to.clone());
            let asked =
                Asked::Transfer { from, to, resource: to_wire((*resource).into()), tickets: *tickets };
            (Call::Change(asked), common)
        }
    };
    let reply: TicketsReply = call(&mut place::connect(&common.place)?.into(), &request)?;
    let beside = tickets::Beside { expected: &reply.expected, lots: &reply.lots, not_held: &reply.not_held };
    let text = match (common.json, &args.what) {
        (true, _) => tickets::json(&reply.tickets, beside),
        (false, None) => tickets::text(&reply.tickets, beside, output::style()),
        (false, Some(_)) => output::messages(&tickets::outcome(&reply.tickets, beside)),
    };
    output::print(&text)?;
    Ok(Exit::Ok)
}

pub(crate) fn fund(args: &Fund) -> Result<Exit, Failure> {
    let (unit, numbers) = (&args.unit, &args.tickets);
    let parent = unit.rsplit_once('/').map_or("/", |(parent, _)| parent);
    // Without `--from`, or if `--from` names the parent unit, the unit's own tickets are set.
    let Some(from) = args.from.as_deref().filter(|from| parent != *from) else {
        return change_several(unit, How::Set, numbers, &args.common);
    };
    let of = (from != "/").then(|| from.to_owned());
    let tickets = numbers_to_wire(by_resource(numbers)?);
    change(Asked::Fund { unit: unit.clone(), of, tickets }, &args.common)
}

pub(crate) fn issue(args: &Issue) -> Result<Exit, Failure> {
    change_several(&args.unit, How::Issue, &args.tickets, &args.common)
}

pub(crate) fn revoke(args: &Revoke) -> Result<Exit, Failure> {
    change_several(&args.unit, How::TakeBack, &args.tickets, &args.common)
}

/// Changes a unit's tickets of several resources: all of them or none.
fn change_several(unit: &str, how: How, numbers: &[Number], common: &Common) -> Result<Exit, Failure> {
    if let Some(Number { resource, .. }) = numbers.iter().find(|number| number.tickets == 0) {
        let message =
            format!("{resource}=0: a unit has one ticket of its own at least; write 1 to {TICKETS_MAX}");
        return Err(Failure::new(Exit::Usage, message));
    }
    let tickets = numbers_to_wire(by_resource(numbers)?);
    change(Asked::Several { unit: unit.to_owned(), how: how_to_wire(how), tickets }, common)
}

/// Sorts the numbers of the command line by resource. Fails if a resource is named twice.
fn by_resource(numbers: &[Number]) -> Result<PerResource<Option<u64>>, Failure> {
    let mut tickets: PerResource<Option<u64>> = PerResource::default();
    for Number { resource, tickets: number } in numbers {
        if let Some(first) = tickets[*resource].replace(*number) {
            let message = format!(
                "{resource} is named twice, as {resource}={first} and {resource}={number}; name each resource once"
            );
            return Err(Failure::new(Exit::Usage, message));
        }
    }
    Ok(tickets)
}

/// Requests a change, and prints its outcome.
fn change(asked: Asked, common: &Common) -> Result<Exit, Failure> {
    let reply: TicketsReply = call(&mut place::connect(&common.place)?.into(), &Call::Change(asked))?;
    let beside = tickets::Beside { expected: &reply.expected, lots: &reply.lots, not_held: &reply.not_held };
    print(&match common.json {
        true => tickets::json(&reply.tickets, beside),
        false => output::messages(&tickets::outcome(&reply.tickets, beside)),
    })
}

pub(crate) fn offer(args: &Offer) -> Result<Exit, Failure> {
    let unit = if let Some(unit) = &args.unit {
        unit.clone()
    } else {
        let where_am_i = Call::Where { pid: std::process::id() };
        let unit = call::<WhereReply>(&mut place::connect(&args.common.place)?.into(), &where_am_i)?.unit;
        if ["kernel", "shared"].contains(&&*unit) {
            let message = "this command runs in no unit; name one that is to offer tickets, with --unit";
            return Err(Failure::new(Exit::Unavailable, message));
        }
        unit
    };
    let for_ns = args.time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let with = args.with.clone();
    let at_least = args.at_least.map(|least| least.to_string());
    let (gives, wants) = (args.give.to_string(), args.want.to_string());
    let while_connected = !args.program.is_empty();
    let asked = Asked::Offer { unit, gives, wants, with, for_ns, at_least, while_connected };
    let mut client = Client::from(place::connect(&args.common.place)?);
    let reply: TicketsReply = call(&mut client, &Call::Change(asked))?;
    if let Some((program, arguments)) = args.program.split_first() {
        let code = bound::run(program, arguments)?;
        // The daemon takes the offer back when the connection closes.
        drop(client);
        std::process::exit(code);
    }
    if args.common.json {
        return print(&exchanges::offered(reply.offer, reply.exchange, &reply.tickets));
    }
    let number = reply.offer.unwrap_or(0);
    let text = match reply.exchange {
        Some(exchange) => {
            format!(
                "offer {number} is served by exchange {exchange}; `commonhold cancel {exchange}` ends it\n"
            )
        }
        None => format!("offer {number} is open; `commonhold cancel {number}` withdraws it\n"),
    };
    let beside = tickets::Beside { expected: &[], lots: &reply.lots, not_held: &reply.not_held };
    print(&output::messages(&(text + &tickets::outcome(&reply.tickets, beside))))
}

pub(crate) fn offers(args: &Offers) -> Result<Exit, Failure> {
    let reply: OffersReply = call(&mut place::connect(&args.common.place)?.into(), &Call::Offers {})?;
    let OffersReply { offers, exchanges, negotiated, elapsed_ns } = reply;
    print(&match args.common.json {
        true => exchanges::json(&offers, &exchanges, &negotiated, elapsed_ns),
        false => exchanges::text(&offers, &exchanges, &negotiated, elapsed_ns, output::style()),
    })
}

pub(crate) fn cancel(args: &Cancel) -> Result<Exit, Failure> {
    let mut client: Client = place::connect(&args.common.place)?.into();
    if let Some(unit) = &args.all {
        return cancel_all(&mut client, unit, args.common.json);
    }
    // The command line requires a number unless `--all` is given.
    let number = args.number.unwrap_or(0);
    let reply: TicketsReply = call(&mut client, &Call::Change(Asked::Cancel { number }))?;
    let beside = tickets::Beside { expected: &[], lots: &reply.lots, not_held: &reply.not_held };
    print(&match args.common.json {
        true => tickets::json(&reply.tickets, beside),
        false => output::messages(&cancelled_text(number, &reply)),
    })
}

/// The outcome of a cancellation in words. If an open offer was taken back, no tickets have moved, and none
/// are listed.
fn cancelled_text(number: u64, reply: &TicketsReply) -> String {
    let beside = tickets::Beside { expected: &[], lots: &reply.lots, not_held: &reply.not_held };
    match reply.tickets.is_empty() {
        true => format!("offer {number} is cancelled\n"),
        false => format!("exchange {number} has ended\n{}", tickets::outcome(&reply.tickets, beside)),
    }
}

/// Cancels all offers and exchanges of a unit. The offers are cancelled first. Otherwise the end of an
/// exchange could return tickets with which an open offer is served at once.
fn cancel_all(client: &mut Client, unit: &str, json: bool) -> Result<Exit, Failure> {
    // This call only finds out whether the unit exists. Without it, a mistyped name would silently cancel
    // nothing.
    let _: serde_json::Value = call(client, &Call::Currency { unit: unit.to_owned() })?;
    let reply: OffersReply = call(client, &Call::Offers {})?;
    let offers = reply.offers.iter().filter(|offer| offer.unit == unit).map(|offer| offer.number);
    let involves_unit =
        |exchange: &&Exchange| exchange.lent.iter().any(|lent| lent.from == unit || lent.to == unit);
    let exchanges =
        reply.exchanges.iter().filter(|exchange| exchange.ended_ns.is_none()).filter(involves_unit);
    let (mut text, mut cancelled) = (String::new(), Vec::new());
    for number in offers.chain(exchanges.map(|exchange| exchange.number)) {
        let cancel = Call::Change(Asked::Cancel { number });
        // A refusal is no failure if the offer or exchange has ended since it was listed.
        let has_ended =
            |e: &Error| matches!(e, Error::Refused { why: Why::NoSuchOffer | Why::NoExchange, .. });
        let reply: TicketsReply = match client.call(&cancel) {
            Err(e) if has_ended(&e) => continue,
            Err(e) => return Err(call_failure(&e)),
            Ok(reply) => reply,
        };
        text += &cancelled_text(number, &reply);
        cancelled.push(number);
    }
    if text.is_empty() {
        text = format!("unit {unit} has no offer and is in no exchange\n");
    }
    if json {
        text = format!(
            "{:#}\n",
            serde_json::json!({ "schema": "commonhold.cancelled",
            "version": commonhold_report::JSON_VERSION, "unit": unit, "cancelled": cancelled })
        );
    }
    print(&text)
}

fn print(text: &str) -> Result<Exit, Failure> {
    output::print(text)?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_has_no_more_lines_than_the_terminal() {
        let lines = |text: &str, rows| in_place(text, rows).matches('\n').count();
        let text = "1\n2\n3\n4\n5\n";
        assert_eq!((lines(text, 80), lines(text, 6), lines(text, 5), lines(text, 1)), (5, 5, 4, 1));
        assert!(in_place(text, 5).contains("3\x1b[K\n... 2 more lines\x1b[K"), "{:?}", in_place(text, 5));
        assert!(in_place(text, 6).ends_with("5\x1b[K\x1b[J\x1b[?7h\n"));
    }
}
