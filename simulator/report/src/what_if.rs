//! A recording replayed under another contract, as text, JSON and HTML: first how far the replay of the
//! recorded contract agrees with the recording, then what the other contract would have changed.

use std::collections::{BTreeMap, BTreeSet};

use commonhold_replay::bounds::{Bounds, Figure, compare_all};
use commonhold_replay::{Comparison, Figures, Trust, UnitFigures};
use commonhold_report::figures::{NOTHING, bytes, count, duration, seconds};
use commonhold_report::html;
use commonhold_report::table::{Paint, Style, Table, clean, escape, wrap};
use serde::Serialize;

/// A recording and its replays.
#[derive(Debug, Clone)]
pub struct WhatIf {
    /// The recording's file.
    pub recording: String,
    /// The recording in a line: length, machine, backend, kernel, method.
    pub about: String,
    /// The recorded contract's text.
    pub recorded_contract: String,
    /// The recorded machine, as the text of a machine file.
    pub recorded_machine: String,
    /// What leaves the recording or the replay in doubt, in sentences.
    pub doubts: Vec<String>,
    /// What was measured.
    pub recorded: Figures,
    /// The replay of the recorded contract on the recorded machine.
    pub replayed: Figures,
    /// The replay under another contract or on another machine, and its name.
    pub other: Option<(String, Figures)>,
    /// A second recording, made under the other contract, and its name.
    pub against: Option<(String, Figures)>,
}

/// The comparison of all units' figures, by path.
type Compared = BTreeMap<String, Vec<Comparison>>;

impl WhatIf {
    /// The replay of the recorded contract, compared with the recording.
    fn check(&self) -> Compared {
        compare_all(&Bounds::registered(), &self.recorded, &self.replayed)
    }

    /// The prediction, compared with a recording under the other contract.
    fn test(&self) -> Option<Compared> {
        let (_, against) = self.against.as_ref()?;
        let predicted = self.other.as_ref().map_or(&self.replayed, |(_, figures)| figures);
        Some(compare_all(&Bounds::registered(), against, predicted))
    }

    /// Whether a second recording disagrees with the prediction on any figure.
    pub fn is_refuted(&self) -> bool {
        self.test().is_some_and(|test| number(&test, Trust::NotTrusted) > 0)
    }
}

/// The number of figures with this verdict.
fn number(compared: &Compared, trust: Trust) -> usize {
    compared.values().flatten().filter(|comparison| comparison.trust == trust).count()
}

/// The report as text.
pub fn text(what_if: &WhatIf, style: Style) -> String {
    let check = what_if.check();
    let mut text = format!("{}\n{}\n\n", clean(&what_if.recording), clean(&what_if.about));
    for doubt in &what_if.doubts {
        text += &lines(&format!("note: {doubt}"), style);
    }
    if !what_if.doubts.is_empty() {
        text.push('\n');
    }
    text += &lines(&summary("The replay of the recorded contract", "the recording", &check), style);
    text += "\n";
    text += &comparison_table(&check, ["recorded", "replayed"]).render(style);
    if let Some((name, figures)) = &what_if.other {
        text += &format!("\nUnder {}:\n\n", clean(name));
        text += &prediction_table(what_if, &check, figures).render(style);
        text += &format!("\nWaiting, by cause, under {}:\n\n", clean(name));
        text += &waits_table(what_if, figures).render(style);
        let verdicts = verdicts(what_if, figures);
        if !verdicts.is_empty() {
            text += "\nVerdicts that change, at the end:\n";
            for line in verdicts {
                text += &format!("  {}\n", clean(&line));
            }
        }
        text += "\n";
        text += &lines(EXPLAINED, style);
    }
    if let (Some(test), Some((name, _))) = (what_if.test(), &what_if.against) {
        text += "\n";
        text += &lines(&summary("The prediction", &format!("the recording {}", clean(name)), &test), style);
        text += "\n";
        text += &comparison_table(&test, ["recorded", "predicted"]).render(style);
    }
    text
}

/// What the marks of the tables mean.
const EXPLAINED: &str = "A figure is not to be trusted if the replay of the recorded contract is off by more than the \
                         figure's registered bound. It is unverified if the recording has too little of it to compare.";

fn lines(text: &str, style: Style) -> String {
    wrap(text, style.width, "", "  ").iter().map(|line| format!("{line}\n")).collect()
}

/// In a sentence, on how many figures a replay agrees.
fn summary(what: &str, with: &str, compared: &Compared) -> String {
    let (good, bad) = (number(compared, Trust::Trusted), number(compared, Trust::NotTrusted));
    let unmeasured = number(compared, Trust::NotMeasured);
    let mut sentence = format!("{what} agrees with {with} on {good} of {}.", count(good + bad, "figure"));
    if unmeasured > 0 {
        sentence += &format!(
            " {} not measured.",
            if unmeasured == 1 { "One was".to_owned() } else { format!("{unmeasured} were") }
        );
    }
    sentence
}

/// The table of a comparison: a row for each figure that was measured.
fn comparison_table(compared: &Compared, [before, after]: [&'static str; 2]) -> Table {
    let mut table = Table::new(&["unit", "figure", before, after, "off", "bound", ""]);
    let bounds = Bounds::registered();
    for (unit, comparisons) in compared {
        for comparison in comparisons.iter().filter(|comparison| comparison.trust != Trust::NotMeasured) {
            let Comparison { figure, recorded, replayed, off, trust } = *comparison;
            let bound = bounds.of(figure);
            let bound = match (bound.relative, bound.factor) {
                (Some(relative), _) => format!("{:.0} %", relative * 100.0),
                (None, Some(factor)) => format!("x {factor}"),
                (None, None) => NOTHING.to_owned(),
            };
            let (paint, verdict) = match trust {
                Trust::NotTrusted => (Paint::Bad, "not to be trusted"),
                _ => (Paint::Plain, "agrees"),
            };
            let cells = vec![
                clean(unit),
                words(figure).to_owned(),
                shown(figure, recorded),
                shown(figure, replayed),
                off.map_or(NOTHING.to_owned(), |off| format!("{:+.1} %", off * 100.0)),
                bound,
                verdict.to_owned(),
            ];
            table.row(paint, cells);
        }
    }
    table
}

/// The table of a prediction: each figure under the recorded contract, as replayed, and under the other.
fn prediction_table(what_if: &WhatIf, check: &Compared, other: &Figures) -> Table {
    let mut table = Table::new(&["unit", "figure", "recorded\ncontract", "other\ncontract", "change", ""]);
    for path in paths(&what_if.replayed, other) {
        let comparisons = check.get(path).map_or(&[][..], Vec::as_slice);
        for comparison in comparisons {
            let figure = comparison.figure;
            let value = |figures: &Figures| figures.unit(path).and_then(|unit| figure.of(unit));
            let (present, predicted) = (value(&what_if.replayed), value(other));
            if present.unwrap_or(0.0) <= 0.0 && predicted.unwrap_or(0.0) <= 0.0 {
                continue;
            }
            let (paint, predicted_text, remark) = match comparison.trust {
                Trust::Trusted => (Paint::Plain, shown(figure, predicted), ""),
                Trust::NotMeasured => (Paint::Faint, shown(figure, predicted), "unverified"),
                Trust::NotTrusted => (Paint::Faint, NOTHING.to_owned(), "not to be trusted"),
            };
            let change = match comparison.trust {
                Trust::NotTrusted => NOTHING.to_owned(),
                _ => change(present, predicted),
            };
            let cells = vec![
                clean(path),
                words(figure).to_owned(),
                shown(figure, present),
                predicted_text,
                change,
                remark.to_owned(),
            ];
            table.row(paint, cells);
        }
    }
    table
}

/// The table of waits by cause, of all units that waited for a hundredth of the time or more.
fn waits_table(what_if: &WhatIf, other: &Figures) -> Table {
    let mut table =
        Table::new(&["unit", "resource", "cause", "recorded", "recorded\ncontract", "other\ncontract"]);
    let least_ns = what_if.recorded.length_ns / 100;
    for path in paths(&what_if.replayed, other) {
        let of = |figures: &Figures| figures.unit(path).map(|unit| unit.waits.clone()).unwrap_or_default();
        let all = [of(&what_if.recorded), of(&what_if.replayed), of(other)];
        let causes: BTreeSet<&(String, String)> = all.iter().flat_map(BTreeMap::keys).collect();
        for cause in causes {
            let spans = all.each_ref().map(|waits| waits.get(cause).copied().unwrap_or(0));
            if spans.iter().all(|ns| *ns < least_ns) {
                continue;
            }
            let mut cells = vec![clean(path), clean(&cause.0), clean(&cause.1)];
            cells.extend(spans.map(duration));
            table.row(Paint::Plain, cells);
        }
    }
    table
}

/// The verdicts that differ between the replay of the recorded contract and that of the other.
fn verdicts(what_if: &WhatIf, other: &Figures) -> Vec<String> {
    let mut lines = Vec::new();
    for unit in &other.units {
        let present: BTreeMap<&str, &str> =
            what_if.replayed.unit(&unit.unit).map(resources).unwrap_or_default();
        for (resource, verdict) in resources(unit) {
            let before = present.get(resource).copied().unwrap_or("none");
            if before != verdict {
                lines.push(format!("{} {resource}: {before}, then {verdict}", unit.unit));
            }
        }
    }
    lines
}

fn resources(unit: &UnitFigures) -> BTreeMap<&str, &str> {
    unit.verdicts.iter().map(|(resource, verdict)| (resource.as_str(), verdict.as_str())).collect()
}

/// The paths of all units.
fn paths<'a>(a: &'a Figures, b: &'a Figures) -> BTreeSet<&'a str> {
    a.units.iter().chain(&b.units).map(|unit| unit.unit.as_str()).collect()
}

/// A figure's name for people.
fn words(figure: Figure) -> &'static str {
    match figure {
        Figure::Share => "share of CPU",
        Figure::Response => "response",
        Figure::Slowdown => "slowdown",
        Figure::WakeP99 => "wake-up, 99 %",
        Figure::CallBacks => "call-backs",
        Figure::CallBackP99 => "call-back, 99 %",
        Figure::Memory => "memory",
        Figure::Transferred => "disk",
    }
}

/// A value of a figure.
fn shown(figure: Figure, value: Option<f64>) -> String {
    let Some(value) = value else { return NOTHING.to_owned() };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, and not negative")]
    let whole = value.max(0.0) as u64;
    match figure {
        Figure::Share => format!("{:.1} %", value * 100.0),
        Figure::Slowdown => format!("{value:.2}"),
        Figure::Response | Figure::WakeP99 | Figure::CallBackP99 => seconds(value),
        Figure::CallBacks => format!("{value:.0}"),
        Figure::Memory | Figure::Transferred => bytes(whole),
    }
}

fn change(present: Option<f64>, predicted: Option<f64>) -> String {
    match present.zip(predicted) {
        Some((present, predicted)) if present > 0.0 => {
            format!("{:+.1} %", (predicted / present - 1.0) * 100.0)
        }
        _ => NOTHING.to_owned(),
    }
}

/// The report as a page.
pub fn html(what_if: &WhatIf) -> String {
    let check = what_if.check();
    let mut page = html::open("What if", "");
    let paragraph = |text: &str| format!("<p>{}</p>\n", escape(text));
    page += &paragraph(&format!("{}: {}", what_if.recording, what_if.about));
    for doubt in &what_if.doubts {
        page += &paragraph(&format!("Note: {doubt}"));
    }
    page += "<h2>The replay of the recorded contract</h2>\n";
    page += &paragraph(&summary("The replay of the recorded contract", "the recording", &check));
    page += &comparison_table(&check, ["recorded", "replayed"]).html();
    if let Some((name, figures)) = &what_if.other {
        page += &format!("<h2>Under {}</h2>\n", escape(name));
        page += &prediction_table(what_if, &check, figures).html();
        page += &paragraph(EXPLAINED);
        page += "<h2>Waiting, by cause</h2>\n";
        page += &waits_table(what_if, figures).html();
        let verdicts = verdicts(what_if, figures);
        if !verdicts.is_empty() {
            page += "<h2>Verdicts that change, at the end</h2>\n";
            for line in verdicts {
                page += &paragraph(&line);
            }
        }
    }
    if let (Some(test), Some((name, _))) = (what_if.test(), &what_if.against) {
        page += &format!("<h2>The prediction and {}</h2>\n", escape(name));
        page += &paragraph(&summary("The prediction", "that recording", &test));
        page += &comparison_table(&test, ["recorded", "predicted"]).html();
    }
    page + html::CLOSE
}

/// A unit's figures in JSON.
#[derive(Serialize)]
struct JsonUnit<'a> {
    unit: &'a str,
    figures: BTreeMap<&'static str, Option<f64>>,
    /// The waiting time in ns, by resource and cause.
    waits_ns: BTreeMap<String, u64>,
    verdicts: BTreeMap<&'a str, &'a str>,
}

impl<'a> JsonUnit<'a> {
    fn of(unit: &'a UnitFigures) -> JsonUnit<'a> {
        JsonUnit {
            unit: &unit.unit,
            figures: Figure::ALL.into_iter().map(|figure| (figure.name(), figure.of(unit))).collect(),
            waits_ns: unit
                .waits
                .iter()
                .map(|((resource, cause), ns)| (format!("{resource}: {cause}"), *ns))
                .collect(),
            verdicts: resources(unit),
        }
    }
}

#[derive(Serialize)]
struct Json<'a> {
    recording: &'a str,
    about: &'a str,
    recorded_contract: &'a str,
    recorded_machine: &'a str,
    doubts: &'a [String],
    length_ns: u64,
    recorded: Vec<JsonUnit<'a>>,
    replayed: Vec<JsonUnit<'a>>,
    check: Compared,
    #[serde(skip_serializing_if = "Option::is_none")]
    contract: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<Vec<JsonUnit<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    test: Option<Compared>,
}

/// The report as JSON.
pub fn json(what_if: &WhatIf) -> String {
    let json = Json {
        recording: &what_if.recording,
        about: &what_if.about,
        recorded_contract: &what_if.recorded_contract,
        recorded_machine: &what_if.recorded_machine,
        doubts: &what_if.doubts,
        length_ns: what_if.recorded.length_ns,
        recorded: units_of(&what_if.recorded),
        replayed: units_of(&what_if.replayed),
        check: what_if.check(),
        contract: what_if.other.as_ref().map(|(name, _)| name.as_str()),
        predicted: what_if.other.as_ref().map(|(_, figures)| units_of(figures)),
        against: what_if.against.as_ref().map(|(name, _)| name.as_str()),
        test: what_if.test(),
    };
    commonhold_report::json("commonhold.what-if", &json)
}

fn units_of(figures: &Figures) -> Vec<JsonUnit<'_>> {
    figures.units.iter().map(JsonUnit::of).collect()
}
