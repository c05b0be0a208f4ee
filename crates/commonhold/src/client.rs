//! The client side: `exec`, `status`, `tickets` and `offer`.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use commonhold_live::roster::{MARKER, marker};
use commonhold_report::{exchanges, memory, status, switches, tickets};
use serde::de::DeserializeOwned;

use crate::cli::{Cancel, Exec, Offer, Offers, Status, Tickets, TicketsWhat};
use crate::exit::{Exit, Failure};
use crate::protocol::{
    Asked, Call, EnterReply, OffersReply, Refusal, Reply, StatusReply, TicketsReply, WhereReply, receive,
    refusal, send,
};
use crate::{output, place};

/// A daemon answers within milliseconds; one that does not within this is stopped or stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// One call and its answer.
pub(crate) fn call<T: DeserializeOwned>(stream: &mut UnixStream, call: &Call) -> Result<T, Failure> {
    let lost = |what: &dyn std::fmt::Display| {
        Failure::new(Exit::Unavailable, format!("the daemon does not answer: {what}; see what it printed"))
    };
    let slow = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::WouldBlock => lost(&format!("{} s are over", PATIENCE.as_secs())),
        _ => lost(&e),
    };
    stream.set_read_timeout(Some(PATIENCE)).map_err(|e| lost(&e))?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(|e| lost(&e))?;
    send(stream, call).map_err(slow)?;
    let bytes = receive(stream).map_err(slow)?.ok_or_else(|| lost(&"it hung up"))?;
    if let Ok(refused) = serde_json::from_slice::<Refusal>(&bytes) {
        let exit = match refused.error.as_str() {
            refusal::NOT_ALLOWED => Exit::NotAllowed,
            refusal::FAILED => Exit::System,
            refusal::TOO_FEW
            | refusal::TOO_MANY
            | refusal::NOT_SIBLINGS
            | refusal::SAME_UNIT
            | refusal::LENT
            | refusal::NO_EXCHANGE
            | refusal::TOO_MANY_OFFERS
            | refusal::NO_OFFER => Exit::Refused,
            _ => Exit::Unavailable,
        };
        return Err(Failure::new(exit, refused.parameters.message));
    }
    let reply: Reply<T> = serde_json::from_slice(&bytes).map_err(|e| {
        Failure::new(
            Exit::System,
            format!("the daemon's answer is not understood ({e}); is it of another version?"),
        )
    })?;
    Ok(reply.parameters)
}

pub(crate) fn exec(args: &Exec) -> Result<Exit, Failure> {
    let mut stream = place::connect(&args.place)?;
    // The daemon's process, as the kernel knows it: a marker is one daemon's.
    let daemon =
        rustix::net::sockopt::socket_peercred(&stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
    let EnterReply { outside } = call(&mut stream, &Call::Enter { unit: args.unit.clone() })?;
    if let Some(why) = outside {
        output::complain(&format!(
            "commonhold exec: warning: control groups do not hold this process in unit {}: it is {why}; start it from a login \
             session (a console, ssh) instead",
            args.unit
        ));
    }
    drop(stream);
    let (program, arguments) =
        args.command.split_first().ok_or_else(|| Failure::new(Exit::Usage, "no command"))?;
    // The variable tells the daemon of descendants whose parents it never saw.
    let error =
        Command::new(program).args(arguments).env(MARKER, marker(daemon.unsigned_abs(), &args.unit)).exec();
    let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun };
    Err(Failure::new(exit, format!("cannot run `{}`: {error}", program.to_string_lossy())))
}

fn json_of(pid: u32, found: &WhereReply) -> String {
    let mut json = serde_json::json!({ "pid": pid, "unit": found.unit, "rule": found.rule });
    if let Some(why) = &found.outside {
        json["outside"] = why.as_str().into();
    }
    json.to_string()
}

pub(crate) fn status(args: &Status) -> Result<Exit, Failure> {
    let mut stream = place::connect(&args.place)?;
    if let Some(pid) = args.pid {
        let found: WhereReply = call(&mut stream, &Call::Where { pid })?;
        let text = if args.json {
            json_of(pid, &found)
        } else {
            let outside =
                found.outside.map(|why| format!("; its control group does not hold it: it is {why}"));
            format!("process {pid} is in unit {} ({}){}", found.unit, found.rule, outside.unwrap_or_default())
        };
        output::print(&text)?;
        return Ok(Exit::Ok);
    }
    let reply: StatusReply = call(&mut stream, &Call::Status { by_cpu: args.json })?;
    let instead = reply.instead.as_ref();
    let holder = status::Holder {
        contract: &reply.contract,
        backend: &reply.backend,
        instead: instead.map(|it| status::Instead { of: &it.of, for_ns: it.for_ns, why: &it.why }),
        holdings: &reply.holdings,
        switches: &reply.switches,
        tickets: &reply.tickets,
        expected_tickets: &reply.expected_tickets,
        problems: &reply.problems,
    };
    if args.json {
        output::print(&status::json(holder, &reply.statement))?;
    } else {
        let mut tables = status::text(&reply.statement, output::style());
        if reply.statement.memory.is_some() {
            tables.push('\n');
            tables += &memory::text(&reply.statement, output::style());
        }
        if reply.switches.iter().any(|unit| unit.switches > 0) {
            tables.push('\n');
            tables += &switches::text(&reply.switches, output::style());
        }
        output::print(&format!("{tables}\n{}", status::holder(holder)))?;
    }
    Ok(Exit::Ok)
}

pub(crate) fn tickets(args: &Tickets) -> Result<Exit, Failure> {
    let (request, common) = match &args.what {
        None => (Call::Tickets {}, &args.common),
        Some(TicketsWhat::Set { unit, resource, tickets, common }) => {
            let asked = Asked::Set { unit: unit.clone(), resource: (*resource).into(), tickets: *tickets };
            (Call::Change(asked), common)
        }
        Some(TicketsWhat::Give { from, to, resource, tickets, common }) => {
            let (from, to) = (from.clone(), to.clone());
            let asked = Asked::Transfer { from, to, resource: (*resource).into(), tickets: *tickets };
            (Call::Change(asked), common)
        }
    };
    let reply: TicketsReply = call(&mut place::connect(&common.place)?, &request)?;
    let beside = tickets::Beside { expected: &reply.expected, not_held: &reply.not_held };
    let text = match (common.json, &args.what) {
        (true, _) => tickets::json(&reply.tickets, beside),
        (false, None) => tickets::text(&reply.tickets, beside, output::style()),
        (false, Some(_)) => tickets::outcome(&reply.tickets, beside),
    };
    output::print(&text)?;
    Ok(Exit::Ok)
}

pub(crate) fn offer(args: &Offer) -> Result<Exit, Failure> {
    let unit = if let Some(unit) = &args.unit {
        unit.clone()
    } else {
        let own = Call::Where { pid: std::process::id() };
        let unit = call::<WhereReply>(&mut place::connect(&args.common.place)?, &own)?.unit;
        if ["kernel", "shared"].contains(&&*unit) {
            let message = "this command runs in no unit; name one that is to offer tickets, with --unit";
            return Err(Failure::new(Exit::Unavailable, message));
        }
        unit
    };
    let for_ns = args.time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let with = args.with.clone();
    let at_least = args.at_least;
    let asked = Asked::Offer { unit, gives: args.give, wants: args.want, with, for_ns, at_least };
    let reply: TicketsReply = call(&mut place::connect(&args.common.place)?, &Call::Change(asked))?;
    if args.common.json {
        return said(&exchanges::offered(reply.offer, reply.exchange, &reply.tickets));
    }
    let number = reply.offer.unwrap_or(0);
    let text = match reply.exchange {
        Some(exchange) => {
            format!(
                "offer {number} is served by exchange {exchange}; `commonhold cancel {exchange}` ends it\n"
            )
        }
        None => format!("offer {number} stands; `commonhold cancel {number}` takes it back\n"),
    };
    let beside = tickets::Beside { expected: &[], not_held: &reply.not_held };
    said(&(text + &tickets::outcome(&reply.tickets, beside)))
}

pub(crate) fn offers(args: &Offers) -> Result<Exit, Failure> {
    let reply: OffersReply = call(&mut place::connect(&args.common.place)?, &Call::Offers {})?;
    let OffersReply { offers, exchanges, elapsed_ns } = reply;
    said(&match args.common.json {
        true => exchanges::json(&offers, &exchanges, elapsed_ns),
        false => exchanges::text(&offers, &exchanges, elapsed_ns, output::style()),
    })
}

pub(crate) fn cancel(args: &Cancel) -> Result<Exit, Failure> {
    let asked = Call::Change(Asked::Cancel { number: args.number });
    let reply: TicketsReply = call(&mut place::connect(&args.common.place)?, &asked)?;
    let beside = tickets::Beside { expected: &[], not_held: &reply.not_held };
    said(&match (args.common.json, reply.tickets.is_empty()) {
        (true, _) => tickets::json(&reply.tickets, beside),
        (false, true) => format!("offer {} is taken back\n", args.number),
        (false, false) => {
            format!("exchange {} is over\n{}", args.number, tickets::outcome(&reply.tickets, beside))
        }
    })
}

fn said(text: &str) -> Result<Exit, Failure> {
    output::print(text)?;
    Ok(Exit::Ok)
}
