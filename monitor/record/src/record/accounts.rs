//! What the daemon knows: its accounts, its contract, and the members of units.

use std::collections::BTreeMap;

use commonhold_command::place::Place;
use commonhold_contract::Resource;
use commonhold_feed::{Connection, FeedError};
use commonhold_ledger::{Account, WaitCause};
use commonhold_protocol::replies::{ContractReply, MembersReply, StatusReply};
use commonhold_recording::{CallBacks, DiskUse, Loan, MemorySample, UnitSample, Wait};
use commonhold_report::holdings::Holding;
use commonhold_report::switches::UnitSwitches;
use serde_json::json;

/// A connection to the daemon.
#[derive(Debug)]
pub(super) struct Accounts {
    connection: Connection,
}

/// What the accounts say at a time.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) backend: String,
    pub(super) scheme: String,
    pub(super) contract_file: String,
    pub(super) units: Vec<UnitSample>,
    pub(super) loans: Vec<Loan>,
    /// How each resource is held.
    pub(super) holdings: Vec<Holding>,
}

impl Accounts {
    /// Connects to the daemon.
    ///
    /// # Errors
    ///
    /// There is no daemon, or it does not answer.
    pub(super) fn open(place: &Place) -> Result<Accounts, FeedError> {
        Ok(Accounts { connection: Connection::open(place)? })
    }

    /// The accounts.
    ///
    /// # Errors
    ///
    /// The daemon does not answer. This value is of no use afterwards.
    pub(super) fn statement(&mut self) -> Result<Statement, FeedError> {
        let reply: StatusReply = self.connection.call("io.commonhold.Status", json!({}))?;
        let switches: BTreeMap<&str, &UnitSwitches> =
            reply.switches.iter().map(|unit| (unit.unit.as_str(), unit)).collect();
        let sample = |account: &Account| unit(account, switches.get(account.unit.as_str()).copied());
        let loan = |loan: &commonhold_ledger::CpuLoan| Loan {
            lender: loan.lender.clone(),
            borrower: loan.borrower.clone(),
            micro_cpus: loan.micro_cpus,
        };
        Ok(Statement {
            units: reply.statement.accounts.iter().map(sample).collect(),
            loans: reply.statement.loans.iter().map(loan).collect(),
            scheme: reply.statement.scheme.name().to_owned(),
            backend: reply.backend,
            contract_file: reply.contract,
            holdings: reply.holdings,
        })
    }

    /// The contract with the tickets in force.
    ///
    /// # Errors
    ///
    /// As [`Accounts::statement`].
    pub(super) fn contract(&mut self) -> Result<String, FeedError> {
        let reply: ContractReply = self.connection.call("io.commonhold.AsContract", json!({}))?;
        Ok(reply.contract)
    }

    /// The processes of a unit that the daemon lists, and the number of all.
    ///
    /// # Errors
    ///
    /// As [`Accounts::statement`].
    pub(super) fn members(&mut self, unit: &str) -> Result<(Vec<u32>, u32), FeedError> {
        let reply: MembersReply = self.connection.call("io.commonhold.Members", json!({ "unit": unit }))?;
        Ok((reply.pids, reply.count))
    }
}

/// A unit's accounts as they are recorded.
fn unit(account: &Account, switches: Option<&UnitSwitches>) -> UnitSample {
    let counted = switches.filter(|counts| counts.called_back > 0);
    let call_backs = match counted {
        Some(counts) => CallBacks {
            count: counts.called_back,
            sum_ns: 0,
            max_ns: counts.call_back_max_ns.unwrap_or(0),
            classes: counts.call_backs.iter().filter_map(class).collect(),
        },
        None => CallBacks {
            count: account.called_back,
            sum_ns: account.call_back_sum_ns,
            max_ns: account.call_back_max_ns,
            classes: Vec::new(),
        },
    };
    UnitSample {
        path: account.unit.clone(),
        processes: account.processes,
        entitled_micro_cpus: account.entitled_micro_cpus,
        owned: account.owned.to_string(),
        entitled_ns: account.entitled_ns,
        used_ns: account.used_ns,
        lent_ns: account.lent_ns,
        borrowed_ns: account.borrowed_ns,
        waited_ns: account.waited_ns,
        call_backs,
        memory: account.memory.as_ref().map(|memory| MemorySample {
            entitled: memory.entitled,
            used: memory.used,
            lent: memory.lent,
            borrowed: memory.borrowed,
            stalled_ns: memory.waited_ns,
            refaulted: memory.refaulted,
        }),
        disk: account.disk.as_ref().map(|disk| DiskUse {
            read: disk.read_bytes,
            written: disk.written_bytes,
            requests: disk.requests,
            stalled_ns: disk.waited_ns,
        }),
        waits: account.waits.iter().map(wait).collect(),
        verdicts: account
            .findings
            .iter()
            .map(|finding| (finding.resource.name().to_owned(), word(&finding.verdict)))
            .collect(),
    }
}

/// A class of the scheduler's histogram; the last one has no upper bound, and its call-backs are in the count
/// alone.
fn class(latency: &commonhold_report::switches::Latency) -> Option<(u64, u64)> {
    let below_us = latency.below_us?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounds are whole ns below 2^53"
    )]
    let below_ns = (below_us * 1_000.0).round() as u64;
    Some((below_ns, latency.count))
}

fn wait(wait: &commonhold_ledger::Wait) -> Wait {
    let unit = match &wait.cause {
        WaitCause::Unit { unit } | WaitCause::CallBack { unit } => Some(unit.clone()),
        _ => None,
    };
    Wait { resource: Resource::name(wait.resource).to_owned(), cause: word(&wait.cause), unit, ns: wait.ns }
}

/// A value's name in the daemon's protocol: its serialised form, or the `cause` of that.
fn word(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    let name = value.as_str().or_else(|| value.get("cause").and_then(|cause| cause.as_str()));
    name.unwrap_or_default().to_owned()
}
