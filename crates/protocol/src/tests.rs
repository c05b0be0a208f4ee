//! The descriptions of the interfaces are true: they have every method and error, and each message has the
//! declared fields, of the declared types.

#![allow(clippy::unwrap_used)]
#![allow(clippy::unnecessary_wraps, reason = "samples of optional fields are always there")]

use std::collections::{BTreeMap, BTreeSet};

use commonhold_client::Why;
use commonhold_client::wire::{self, Asked, Call, Joined, METHODS, Numbers};
use commonhold_contract::{PerResource, Resource};
use commonhold_ledger::{
    Account, BusAccount, CallBacks, Cause, CpuLoan, Credits, DiskAccount, Done, Exchange, Finding,
    FindingReason, Gang, GangAccount, Job, Lent, MemoryAccount, MemoryTotals, Negotiated, Place, Return,
    Side, Statement, Trial, Verdict, Wait, WaitCause,
};
use commonhold_policy::plan::{NoMore, SharedRate};
use commonhold_policy::rights::Ending;
use commonhold_policy::{GroupBounds, Reason};
use commonhold_report::currency::Currency;
use commonhold_report::exchanges::Standing;
use commonhold_report::holdings::Holding;
use commonhold_report::switches::{CpuSwitches, Deadlines, Latency, Times, UnitSwitches};
use commonhold_report::tickets::{Expected, Lot, Tickets};
use serde::Serialize;
use serde_json::Value;

use crate::DESCRIPTIONS;
use crate::monitor::{CallBackView, Gauge, MachineView, MonitorReply, UnitTotals, UnitView};
use crate::replies::{
    AwaitReply, Awaited, ContractReply, DescriptionReply, EnterReply, InfoReply, Instead, MembersReply,
    OffersReply, PaceReply, StatusReply, TicketsReply, WhereReply,
};

/// A type in a description.
#[derive(Debug, Clone)]
enum Type {
    Bool,
    Int,
    Float,
    Text,
    Any,
    Named(String),
    Maybe(Box<Type>),
    Array(Box<Type>),
    Map(Box<Type>),
    Struct(Vec<(String, Type)>),
    Enum(Vec<String>),
}

/// A description: types, parameters and results of methods, and parameters of errors, by name.
#[derive(Debug, Default)]
struct Interface {
    types: BTreeMap<String, Type>,
    methods: BTreeMap<String, (Type, Type)>,
    errors: BTreeMap<String, Type>,
}

/// Parses the subset of the language that systemd parses, too: arrays and maps are not nested, and a comment
/// in a list stands before a field.
struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn parse(text: &str) -> (String, Interface) {
        let mut parser = Parser { rest: text };
        parser.keyword("interface");
        let name = parser.take_while(|c| c.is_ascii_alphanumeric() || c == '.');
        let mut interface = Interface::default();
        let mut names = BTreeSet::new();
        while !parser.skipped(true).is_empty() {
            let kind = parser.name();
            let name = parser.name();
            assert!(name.starts_with(char::is_uppercase) && !name.contains('_'), "{name}");
            assert!(names.insert(name.clone()), "{name} is declared twice");
            let parameters = parser.list();
            match kind.as_str() {
                "type" => drop(interface.types.insert(name, parameters)),
                "error" => drop(interface.errors.insert(name, parameters)),
                "method" => {
                    parser.keyword("->");
                    let results = parser.list();
                    interface.methods.insert(name, (parameters, results));
                }
                other => panic!("{other} {name}"),
            }
        }
        (name, interface)
    }

    /// The rest after white space and, if they are allowed here, comments.
    fn skipped(&mut self, comments: bool) -> &str {
        loop {
            self.rest = self.rest.trim_start();
            match self.rest.strip_prefix('#') {
                Some(comment) if comments => self.rest = comment.split_once('\n').unwrap().1,
                _ => return self.rest,
            }
        }
    }

    fn accepts(&mut self, token: &str) -> bool {
        let rest = self.skipped(false).strip_prefix(token).map(str::len);
        rest.inspect(|len| self.rest = &self.rest[self.rest.len() - len..]).is_some()
    }

    fn keyword(&mut self, token: &str) {
        self.skipped(true);
        assert!(self.accepts(token), "`{token}` expected before {:.40}", self.rest);
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> String {
        let rest = self.skipped(false);
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest;
        token.to_owned()
    }

    fn name(&mut self) -> String {
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
        let is_valid = name.starts_with(|c: char| c.is_ascii_alphabetic()) && !name.ends_with('_');
        assert!(is_valid && !name.contains("__"), "a name expected: {name}{:.40}", self.rest);
        name
    }

    /// A list of fields or values in parentheses.
    fn list(&mut self) -> Type {
        self.keyword("(");
        self.skipped(true);
        if self.accepts(")") {
            return Type::Struct(Vec::new());
        }
        let (mut fields, mut values) = (Vec::new(), Vec::new());
        loop {
            self.skipped(true);
            let name = self.name();
            if self.accepts(":") {
                fields.push((name, self.field_type()));
            } else {
                values.push(name);
            }
            if self.accepts(")") {
                break;
            }
            assert!(self.accepts(","), "a comma expected before {:.40}", self.rest);
        }
        assert!(fields.is_empty() || values.is_empty(), "fields and values: {fields:?} {values:?}");
        if fields.is_empty() { Type::Enum(values) } else { Type::Struct(fields) }
    }

    fn field_type(&mut self) -> Type {
        if self.accepts("?") {
            return Type::Maybe(Box::new(self.collection()));
        }
        self.collection()
    }

    fn collection(&mut self) -> Type {
        if self.accepts("[]") {
            return Type::Array(Box::new(self.element()));
        }
        if self.accepts("[string]") {
            return Type::Map(Box::new(self.element()));
        }
        self.element()
    }

    fn element(&mut self) -> Type {
        if self.skipped(false).starts_with('(') {
            return self.list();
        }
        match self.name().as_str() {
            "bool" => Type::Bool,
            "int" => Type::Int,
            "float" => Type::Float,
            "string" => Type::Text,
            "object" => Type::Any,
            name => Type::Named(name.to_owned()),
        }
    }
}

impl Interface {
    /// Checks a value, and adds the fields that it has to `found`.
    fn check(&self, is: &Type, value: &Value, at: &str, found: &mut BTreeSet<String>) {
        let is_right = match (is, value) {
            (Type::Maybe(_), Value::Null) | (Type::Any, _) => true,
            (Type::Maybe(some), value) => return self.check(some, value, at, found),
            (Type::Bool, value) => value.is_boolean(),
            (Type::Int, value) => value.is_i64() || value.is_u64(),
            (Type::Float, value) => value.is_number(),
            (Type::Text, value) => value.is_string(),
            (Type::Enum(values), Value::String(value)) => values.contains(value),
            (Type::Named(name), value) => {
                let declared = self.types.get(name).unwrap_or_else(|| panic!("{at}: no type {name}"));
                return self.check(declared, value, name, found);
            }
            (Type::Array(element), Value::Array(values)) => {
                return values.iter().for_each(|value| self.check(element, value, at, found));
            }
            (Type::Map(element), Value::Object(values)) => {
                return values.values().for_each(|value| self.check(element, value, at, found));
            }
            (Type::Struct(fields), Value::Object(values)) => {
                for name in values.keys() {
                    assert!(fields.iter().any(|(field, _)| field == name), "{at}.{name} is not declared");
                }
                for (name, is) in fields {
                    let at = format!("{at}.{name}");
                    match (values.get(name), is) {
                        (Some(value), _) => {
                            self.check(is, value, &at, found);
                            found.insert(at);
                        }
                        (None, Type::Maybe(_)) => {}
                        (None, _) => panic!("{at} is missing, and declared as always there"),
                    }
                }
                return;
            }
            _ => false,
        };
        assert!(is_right, "{at}: {value} is no {is:?}");
    }

    /// All fields, and the names of all types that fields have.
    fn fields(is: &Type, at: &str, into: &mut BTreeSet<String>, named: &mut BTreeSet<String>) {
        match is {
            Type::Named(name) => drop(named.insert(name.clone())),
            Type::Maybe(is) | Type::Array(is) | Type::Map(is) => Interface::fields(is, at, into, named),
            Type::Struct(fields) => {
                for (name, is) in fields {
                    let at = format!("{at}.{name}");
                    Interface::fields(is, &at, into, named);
                    into.insert(at);
                }
            }
            Type::Bool | Type::Int | Type::Float | Type::Text | Type::Any | Type::Enum(_) => {}
        }
    }
}

fn interfaces() -> BTreeMap<String, Interface> {
    let parsed: BTreeMap<_, _> = DESCRIPTIONS.iter().map(|(_, text)| Parser::parse(text)).collect();
    assert!(parsed.keys().eq(DESCRIPTIONS.iter().map(|(name, _)| name)), "{:?}", parsed.keys());
    parsed
}

#[test]
fn every_method_and_every_error_is_declared() {
    let interfaces = interfaces();
    let declared = interfaces.iter().flat_map(|(interface, declared)| {
        declared.methods.keys().map(move |method| format!("{interface}.{method}"))
    });
    assert_eq!(declared.collect::<BTreeSet<_>>(), METHODS.map(str::to_owned).into());
    let declared = interfaces.iter().flat_map(|(interface, declared)| {
        declared.errors.keys().map(move |error| format!("{interface}.{error}"))
    });
    let known = Why::all().map(|why| why.name().to_owned());
    assert_eq!(declared.collect::<BTreeSet<_>>(), known.collect());
    for (name, error) in &interfaces[wire::INTERFACE].errors {
        assert!(
            matches!(error, Type::Struct(fields) if fields.len() == 1 && fields[0].0 == "message"),
            "{name}"
        );
    }
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn some(name: &str) -> Option<String> {
    Some(text(name))
}

fn holdings() -> Vec<Holding> {
    vec![Holding::held(Resource::Cpu, "by tests"), Holding::not_held(Resource::Bus, ", alas")]
}

fn instead() -> Option<Instead> {
    Some(Instead { of: text("kernel"), for_ns: 1, why: text("lost") })
}

fn tickets() -> Vec<Tickets> {
    let (unit, resource) = (text("a"), Resource::Disk);
    vec![Tickets { unit, resource, contract: 1, tickets: 2, lent: 3, got: 4, entitled: 5, active: true }]
}

fn expected() -> Vec<Expected> {
    vec![Expected { unit: text("a"), resource: Resource::Memory, tickets: 1, when: text("later") }]
}

fn lots() -> Vec<Lot> {
    vec![Lot { unit: text("a"), of: some("b"), what: "cpu:30".parse().unwrap() }]
}

fn exchanges() -> Vec<Exchange> {
    let side = Side { unit: text("a"), without: 1, with: Some(2), noise: 3 };
    let trial = Trial {
        number: 1,
        level: 2,
        done: Done::Kept,
        why: Some(Cause::NoGain),
        lost: some("a"),
        sides: vec![side],
    };
    let lent = Lent { from: text("a"), to: text("b"), what: "disk:3".parse().unwrap(), of: some("c") };
    vec![Exchange {
        number: 1,
        lent: vec![lent],
        began_ns: 1,
        until_ns: Some(2),
        ended_ns: Some(3),
        why: Some(Ending::TooFew),
        trial: Some(trial),
    }]
}

fn negotiated() -> Vec<Negotiated> {
    vec![Negotiated { unit: text("a"), ..Negotiated::default() }]
}

fn waits() -> Vec<Wait> {
    let causes = [
        WaitCause::Own,
        WaitCause::Unit { unit: text("b") },
        WaitCause::CallBack { unit: text("b") },
        WaitCause::HigherClass,
    ];
    let wait = |cause| Wait { resource: Resource::Cpu, cause, ns: 3, beyond_ns: 2, inferred_ns: 1 };
    causes.map(wait).into()
}

fn findings() -> Vec<Finding> {
    let by = WaitCause::Unit { unit: text("b") };
    let reasons = [
        (Verdict::Kept, FindingReason::HadWanted),
        (Verdict::Kept, FindingReason::OwnDoing { by: WaitCause::Limit }),
        (Verdict::Broken, FindingReason::Short { by, waited_ns: 1 }),
        (Verdict::Broken, FindingReason::Late { promised_ns: 1, took_ns: 2, count: 3 }),
        (Verdict::CannotTell, FindingReason::UnknownCause),
    ];
    let finding = |(verdict, reason)| Finding {
        resource: Resource::Memory,
        verdict,
        reason,
        entitled: 1,
        wanted: 2,
        had: 3,
    };
    reasons.map(finding).into()
}

fn jobs() -> Vec<Job> {
    let gang = |because, rate| Some(Gang { because, rate, ..Gang::default() });
    let bus = gang(Some(Reason::CpusLeft), Some(SharedRate::BytesPerS(1)));
    let cache = gang(Some(Reason::HeadOfList { waited: 1 }), Some(SharedRate::CacheBytes(1)));
    let job = |gang| Job {
        name: text("make 7"),
        pools: vec![(0, 1)],
        memory: vec![(0, 4096)],
        gang,
        ..Job::default()
    };
    vec![job(bus), job(cache), job(None)]
}

fn account() -> Account {
    let memory = MemoryAccount {
        within_ns: Some(1),
        no_more: Some(NoMore::NothingIdle),
        called_back_from: BTreeMap::from([(text("b"), CallBacks::default())]),
        last_call_backs: vec![Return::default()],
        ..MemoryAccount::default()
    };
    Account {
        unit: text("a"),
        owned: [0, 1].into_iter().collect(),
        waited_on_ns: BTreeMap::from([(text("b"), 1)]),
        disk: Some(DiskAccount::default()),
        bus: Some(BusAccount { most_bytes_per_s: Some(1), owed_bytes: -1, ..BusAccount::default() }),
        gangs: Some(GangAccount::default()),
        memory: Some(memory),
        waits: waits(),
        findings: findings(),
        credits: Some(Credits { cpu_ns: -1, ..Credits::default() }),
        ..Account::default()
    }
}

fn loans() -> Vec<CpuLoan> {
    vec![CpuLoan { lender: text("a"), borrower: text("b"), micro_cpus: 1 }]
}

fn statement() -> Statement {
    let set =
        GroupBounds { memory: Some(1), cpus: Some([3].into_iter().collect()), ..GroupBounds::default() };
    Statement {
        memory: Some(MemoryTotals::default()),
        accounts: vec![account(), Account::default()],
        loans: loans(),
        exchanges: exchanges(),
        negotiated: negotiated(),
        jobs: jobs(),
        places: vec![Place { place: 1, unit: text("a"), group: text("/b"), set }],
        ..Statement::default()
    }
}

fn status() -> StatusReply {
    let latency = |below_us| Latency { from_us: 0.0, below_us, count: 1 };
    let switches = UnitSwitches {
        unit: text("a"),
        call_back_p50_ns: Some(1),
        deadlines: Some(Deadlines::default()),
        call_backs: vec![latency(Some(1.024)), latency(None)],
        cpus: vec![CpuSwitches { cpu: 1, times: Times::default() }],
        ..UnitSwitches::default()
    };
    StatusReply {
        backend: text("cgroup"),
        instead: instead(),
        contract: text("x.toml"),
        holdings: holdings(),
        statement: statement(),
        daemon: PaceReply::default(),
        switches: vec![switches],
        tickets: tickets(),
        expected_tickets: expected(),
        lots: lots(),
        problems: vec![text("none")],
    }
}

fn monitor() -> MonitorReply {
    let gauge = || Some(Gauge::default());
    let machine = MachineView {
        scheme: text("quota"),
        instead: instead(),
        holdings: holdings(),
        memory: Some(MemoryTotals::default()),
        problems: vec![text("none")],
        exchanges: exchanges(),
        jobs: jobs(),
        loans: loans(),
        ..MachineView::default()
    };
    let call_backs = CallBackView {
        promised_ns: Some(1),
        p99_ns: Some(1),
        classes: vec![(1_024, 1)],
        ..Default::default()
    };
    let unit = UnitView {
        unit: text("a"),
        memory: gauge(),
        disk: gauge(),
        bus: gauge(),
        totals: UnitTotals::default(),
        waits: waits(),
        call_backs: BTreeMap::from([(Resource::Disk, call_backs)]),
        findings: findings(),
        gangs: text("1 gang runs, 0 wait"),
        ..UnitView::default()
    };
    MonitorReply {
        whole: true,
        machine: Some(machine),
        units: vec![unit, UnitView::default()],
        gone: vec![text("b")],
        order: Some(vec![text("a")]),
        ..MonitorReply::default()
    }
}

fn currency() -> Currency {
    Currency {
        unit: text("a/b"),
        encloser: some("a"),
        governors: text("root"),
        funding: tickets(),
        issued_around: PerResource::default(),
        worth_around: PerResource::default(),
        issued: tickets(),
        own: PerResource::default(),
        own_worth: PerResource::default(),
        lots: lots(),
        exchanges: exchanges(),
        not_held: holdings(),
    }
}

fn offers() -> OffersReply {
    let standing = Standing {
        number: 1,
        unit: text("a"),
        gives: "disk:3".parse().unwrap(),
        wants: "cpu:2".parse().unwrap(),
        with: some("b"),
        at_least: Some("cpu:1".parse().unwrap()),
        for_ns: Some(1),
        waits: some("nobody"),
    };
    OffersReply { offers: vec![standing], exchanges: exchanges(), negotiated: negotiated(), elapsed_ns: 9 }
}

/// Changes of every kind.
fn changes() -> Vec<Asked> {
    let (unit, resource) = (|| text("a"), wire::Resource::Bus);
    let tickets = Numbers { cpu: Some(1), ..Numbers::default() };
    vec![
        Asked::Set { unit: unit(), resource, tickets: 1 },
        Asked::Issue { unit: unit(), resource, tickets: 1 },
        Asked::TakeBack { unit: unit(), resource, tickets: 1 },
        Asked::Transfer { from: unit(), to: unit(), resource, tickets: 1 },
        Asked::Exchange { one: unit(), other: unit(), gives: unit(), gets: unit() },
        Asked::Offer {
            unit: unit(),
            gives: unit(),
            wants: unit(),
            with: some("b"),
            for_ns: Some(1),
            at_least: some("cpu:1"),
            while_connected: true,
        },
        Asked::Several { unit: unit(), how: wire::How::TakeBack, tickets },
        Asked::Fund { unit: unit(), of: some("b"), tickets },
        Asked::Cancel { number: 1 },
    ]
}

/// Samples of all requests.
fn calls() -> Vec<Call> {
    let unit = || text("a");
    let mut calls = vec![
        Call::Status { by_cpu: true },
        Call::Monitor { every_ms: Some(250) },
        Call::Where { pid: 1 },
        Call::Members { unit: unit(), at_most: Some(1) },
        Call::Enter { unit: unit() },
        Call::Tickets {},
        Call::Currency { unit: unit() },
        Call::AsContract {},
        Call::Offers {},
        Call::Join {},
        Call::Await { number: 1, at_most_ns: Some(1) },
        Call::GetInfo {},
        Call::GetInterfaceDescription { interface: unit() },
    ];
    calls.extend(changes().into_iter().map(Call::Change));
    calls
}

/// Samples of all replies, by method.
fn replies() -> Vec<(&'static str, Value)> {
    fn reply(method: &'static str, reply: impl Serialize) -> (&'static str, Value) {
        (method, serde_json::to_value(reply).unwrap())
    }
    let awaited = |state| reply("io.commonhold.Await", AwaitReply { number: 1, state });
    let all = TicketsReply {
        offer: None,
        exchange: None,
        tickets: tickets(),
        expected: expected(),
        lots: lots(),
        not_held: holdings(),
    };
    let changed = TicketsReply {
        offer: Some(1),
        exchange: Some(2),
        tickets: tickets(),
        expected: Vec::new(),
        lots: lots(),
        not_held: holdings(),
    };
    let info = InfoReply {
        vendor: text("a"),
        product: text("b"),
        version: text("c"),
        url: text("d"),
        interfaces: vec![text("e")],
    };
    vec![
        reply("io.commonhold.Status", status()),
        reply("io.commonhold.Monitor", monitor()),
        reply("io.commonhold.Monitor", MonitorReply::default()),
        reply(
            "io.commonhold.Where",
            WhereReply { unit: text("a"), rule: text("by exec"), outside: some("a service") },
        ),
        reply("io.commonhold.Members", MembersReply { pids: vec![7], count: 1 }),
        reply("io.commonhold.Enter", EnterReply { outside: some("a service") }),
        reply("io.commonhold.Tickets", all),
        reply("io.commonhold.Currency", currency()),
        reply("io.commonhold.AsContract", ContractReply { contract: text("") }),
        reply("io.commonhold.Offers", offers()),
        reply("io.commonhold.Change", changed),
        reply("io.commonhold.Join", Joined { page_bytes: 1, every_ns: 2 }),
        awaited(Awaited::Stands),
        awaited(Awaited::Served { exchange: 1 }),
        awaited(Awaited::Ended { why: Ending::Over }),
        reply("org.varlink.service.GetInfo", info),
        reply("org.varlink.service.GetInterfaceDescription", DescriptionReply { description: text("") }),
    ]
}

#[test]
fn messages_have_exactly_the_declared_fields() {
    let interfaces = interfaces();
    let mut found = BTreeSet::new();
    let method = |name: &str| {
        let (interface, method) = name.rsplit_once('.').unwrap();
        let interface = &interfaces[interface];
        (interface, &interface.methods[method])
    };
    for call in calls() {
        let request = serde_json::to_value(&call).unwrap();
        let name = request["method"].as_str().unwrap();
        let (interface, (parameters, _)) = method(name);
        interface.check(parameters, &request["parameters"], &format!("{name}()"), &mut found);
    }
    for (name, reply) in replies() {
        let (interface, (_, results)) = method(name);
        interface.check(results, &reply, name, &mut found);
    }
    let (mut declared, mut named) = (BTreeSet::new(), BTreeSet::new());
    for (name, interface) in &interfaces {
        for (method, (parameters, results)) in &interface.methods {
            Interface::fields(parameters, &format!("{name}.{method}()"), &mut declared, &mut named);
            Interface::fields(results, &format!("{name}.{method}"), &mut declared, &mut named);
        }
        for (name, is) in &interface.types {
            Interface::fields(is, name, &mut declared, &mut named);
        }
    }
    let never_sent: Vec<_> = declared.difference(&found).collect();
    assert!(never_sent.is_empty(), "declared, but in no message: {never_sent:?}");
    let types = interfaces.values().flat_map(|interface| interface.types.keys().cloned()).collect();
    assert_eq!(named, types, "each type is used, and declared");
}
