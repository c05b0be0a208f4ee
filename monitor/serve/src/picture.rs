//! What is published: the last picture, its difference to the one before it, and both as JSON for the page.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use commonhold_contract::Resource;
use commonhold_ledger::{Exchange, Verdict, Wait};
use commonhold_protocol::monitor::{MachineView, MonitorReply, UnitView};
use commonhold_report::{exchanges, findings};
use serde::Serialize;

/// The state that clients see. It is replaced as a whole, and never changed.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Rises by one with each publication.
    pub(crate) number: u64,
    /// The last picture; `None` before the first. It stays while the daemon is lost.
    pub(crate) picture: Option<Arc<MonitorReply>>,
    /// Why the daemon cannot be reached; `None` while it is followed.
    pub(crate) lost: Option<String>,
    /// When the accounts were opened, in milliseconds since 1970.
    pub(crate) opened_ms: u64,
    /// The picture before this one. Its difference to this one is all that a client needs that has it.
    before: Option<Arc<MonitorReply>>,
    whole_json: OnceLock<String>,
    difference_json: OnceLock<String>,
}

impl Published {
    /// The publication after this one, with a new picture.
    pub(crate) fn with_picture(&self, picture: Arc<MonitorReply>, opened_ms: u64) -> Published {
        Published {
            number: self.number + 1,
            before: self.picture.clone(),
            picture: Some(picture),
            opened_ms,
            ..Published::default()
        }
    }

    /// The publication after this one, without the daemon.
    pub(crate) fn without_daemon(&self, why: String) -> Published {
        Published {
            number: self.number + 1,
            before: self.picture.clone(),
            picture: self.picture.clone(),
            lost: Some(why),
            opened_ms: self.opened_ms,
            ..Published::default()
        }
    }

    /// The JSON that brings a client up to date that has seen publication `seen`: the difference if it saw
    /// the previous one, else everything.
    pub(crate) fn json_after(&self, seen: Option<u64>) -> &str {
        match (&self.before, &self.picture) {
            (Some(old), Some(new)) if seen == Some(self.number - 1) => {
                self.difference_json.get_or_init(|| self.json(Some(old), Some(new)))
            }
            (_, new) => self.whole_json.get_or_init(|| self.json(None, new.as_deref())),
        }
    }

    fn json(&self, old: Option<&MonitorReply>, new: Option<&MonitorReply>) -> String {
        let picture = new.map(|new| difference(old, new));
        let page = Page { lost: self.lost.as_deref(), picture };
        serde_json::to_string(&page).expect("plain data with string keys has a JSON form")
    }
}

/// A message to the page.
#[derive(Serialize)]
struct Page<'a> {
    /// Why the daemon cannot be reached; missing while it is followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<&'a str>,
    #[serde(flatten)]
    picture: Option<PagePicture<'a>>,
}

/// A picture or a difference, as [`MonitorReply`] has it, with verdicts and causes in words.
#[derive(Serialize)]
struct PagePicture<'a> {
    whole: bool,
    wall_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<PageMachine<'a>>,
    units: Vec<PageUnit<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<Vec<&'a str>>,
}

#[derive(Serialize)]
struct PageMachine<'a> {
    /// The machine, without the field that is here in words.
    #[serde(flatten)]
    machine: MachineView,
    #[serde(rename = "exchanges", skip_serializing_if = "Vec::is_empty")]
    exchanges_in_words: Vec<PageExchange<'a>>,
}

/// An exchange of tickets. Times are in milliseconds since 1970.
#[derive(Serialize)]
struct PageExchange<'a> {
    number: u64,
    began_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    until_ms: Option<u64>,
    lent: Vec<PageLent<'a>>,
}

#[derive(Serialize)]
struct PageLent<'a> {
    from: &'a str,
    to: &'a str,
    /// The amount, in words.
    what: String,
}

impl<'a> PageMachine<'a> {
    fn of(view: &'a MachineView, picture: &MonitorReply) -> PageMachine<'a> {
        let wall_ms = |at_ns: u64| {
            picture.wall_ms.saturating_add(at_ns / 1_000_000).saturating_sub(picture.at_ns / 1_000_000)
        };
        let exchange = |exchange: &'a Exchange| PageExchange {
            number: exchange.number,
            began_ms: wall_ms(exchange.began_ns),
            until_ms: exchange.until_ns.map(wall_ms),
            lent: (exchange.lent.iter())
                .map(|lent| PageLent { from: &lent.from, to: &lent.to, what: exchanges::lent_amount(lent) })
                .collect(),
        };
        PageMachine {
            machine: MachineView { exchanges: Vec::new(), ..view.clone() },
            exchanges_in_words: view.exchanges.iter().map(exchange).collect(),
        }
    }
}

#[derive(Serialize)]
struct PageUnit<'a> {
    /// The unit, without the fields that are here in words.
    #[serde(flatten)]
    unit: UnitView,
    #[serde(rename = "waits")]
    waits_in_words: Vec<PageWait<'a>>,
    verdicts: Vec<PageVerdict>,
}

#[derive(Serialize)]
struct PageWait<'a> {
    #[serde(flatten)]
    wait: &'a Wait,
    /// The cause, in words.
    said: String,
}

#[derive(Serialize)]
struct PageVerdict {
    resource: Resource,
    verdict: Verdict,
    /// The reason, in words.
    said: String,
    /// What to do, in words; empty if nothing is to be done.
    remedy: String,
}

impl<'a> From<&'a UnitView> for PageUnit<'a> {
    fn from(view: &'a UnitView) -> PageUnit<'a> {
        let in_words = |wait: &'a Wait| PageWait { wait, said: findings::cause(&wait.cause) };
        let verdicts = view.findings.iter().map(|finding| PageVerdict {
            resource: finding.resource,
            verdict: finding.verdict,
            said: findings::sentence(finding),
            remedy: findings::remedy(finding),
        });
        PageUnit {
            unit: UnitView { waits: Vec::new(), findings: Vec::new(), ..view.clone() },
            waits_in_words: view.waits.iter().map(in_words).collect(),
            verdicts: verdicts.collect(),
        }
    }
}

/// What changed from `old` to `new`; everything without `old`.
fn difference<'a>(old: Option<&'a MonitorReply>, new: &'a MonitorReply) -> PagePicture<'a> {
    let paths = |picture: &'a MonitorReply| picture.units.iter().map(|unit| unit.unit.as_str());
    let before: BTreeMap<&str, &UnitView> =
        old.iter().flat_map(|old| &old.units).map(|unit| (unit.unit.as_str(), unit)).collect();
    let changed = new.units.iter().filter(|unit| before.get(unit.unit.as_str()) != Some(unit));
    let now: std::collections::BTreeSet<&str> = paths(new).collect();
    let has_same_order = old.is_some_and(|old| paths(old).eq(paths(new)));
    PagePicture {
        whole: old.is_none(),
        wall_ms: new.wall_ms,
        machine: new
            .machine
            .as_ref()
            .filter(|machine| old.and_then(|old| old.machine.as_ref()) != Some(machine))
            .map(|machine| PageMachine::of(machine, new)),
        units: changed.map(PageUnit::from).collect(),
        gone: before.keys().filter(|path| !now.contains(**path)).copied().collect(),
        order: (!has_same_order).then(|| paths(new).collect()),
    }
}

/// A picture for tests: five units, one of which is short of CPUs.
#[cfg(test)]
pub(crate) fn sample() -> MonitorReply {
    serde_json::from_str(include_str!("../tests/sample.json")).unwrap()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_client_gets_everything_first_and_then_differences() {
        let first = Published::default().with_picture(Arc::new(sample()), 0);
        let whole = parsed(first.json_after(None));
        assert_eq!(whole["whole"], true);
        assert_eq!(whole["units"].as_array().unwrap().len(), sample().units.len());
        assert!(whole["units"][0]["verdicts"][0]["said"].is_string());
        assert!(whole["units"][0]["waits"][0]["said"].is_string());
        let exchange = &whole["machine"]["exchanges"][0];
        assert_eq!(exchange["lent"][0]["what"], "30 disk");
        assert_eq!(exchange["began_ms"], sample().wall_ms - 120_000);

        let mut changed = sample();
        changed.units[1].processes += 1;
        let gone = changed.units.pop().unwrap().unit;
        let second = first.with_picture(Arc::new(changed), 0);
        let difference = parsed(second.json_after(Some(1)));
        assert_eq!(difference["whole"], false);
        assert_eq!(difference["units"].as_array().unwrap().len(), 1);
        assert_eq!(difference["gone"], serde_json::json!([gone]));
        assert!(difference["order"].is_array());
        assert!(difference.get("machine").is_none());
        // A client that missed one gets everything.
        assert_eq!(parsed(second.json_after(Some(0)))["whole"], true);

        let lost = second.without_daemon("gone".to_owned());
        assert_eq!(parsed(lost.json_after(Some(2)))["lost"], "gone");
        assert_eq!(parsed(lost.json_after(None))["whole"], true);
        assert!(
            parsed(Published::default().without_daemon("x".to_owned()).json_after(None))
                .get("whole")
                .is_none()
        );
    }
}
