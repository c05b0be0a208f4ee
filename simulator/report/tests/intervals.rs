//! Interval plots of made-up claims. In each plot, the edges are at 8 and 472, and a tolerance with two ends
//! reaches from 168 to 312.
#![allow(clippy::unwrap_used)]

use commonhold_sim_report::claims::{Basis, Claim, Claims, Measured, Tolerance, Unit, Verdict, html};
use commonhold_sim_report::studies::{Frozen, Study, StudyRow};

const AROUND_2: Tolerance = Tolerance::Between { low: 1.0, high: 3.0 };

fn claim(id: &str, expected: &str, tolerance: Tolerance, figures: &[f64]) -> Claim {
    let mean = figures.iter().sum::<f64>() / f64::from(u32::try_from(figures.len()).unwrap().max(1));
    let measured = Measured { mean, half_95: Some(0.75), half_90: Some(0.5), by_seed: figures.to_vec() };
    Claim {
        id: id.to_owned(),
        seed: "003".to_owned(),
        place: "003, figure 1".to_owned(),
        says: format!("The statement of {id}"),
        expected: expected.to_owned(),
        tolerance,
        basis: Basis::Predicted,
        unit: Unit::Ratio,
        note: String::new(),
        runs: Vec::new(),
        measured: (!figures.is_empty()).then_some(measured),
        verdict: if figures.is_empty() {
            Verdict::NotMeasured { reason: "not run".to_owned() }
        } else {
            Verdict::Hit
        },
    }
}

fn studied(id: &str, is_held_out: bool, frozen: f64, interval: (f64, f64)) -> StudyRow {
    StudyRow {
        id: id.to_owned(),
        expected: String::new(),
        tolerance: AROUND_2,
        unit: Unit::Ratio,
        frozen: Some(Frozen { mean: Some(frozen), met: None }),
        is_held_out,
        interval: Some(interval),
        is_met: None,
        moved_by: None,
    }
}

fn page(rows: Vec<Claim>, studied: Vec<StudyRow>) -> String {
    let study = Study {
        seed: "003".to_owned(),
        settings: 8,
        groups: Vec::new(),
        seeds: 2,
        rows: studied,
        unknowns: Vec::new(),
        plots: Vec::new(),
    };
    let studies = if study.rows.is_empty() { Vec::new() } else { vec![study] };
    html(&Claims { seeds: vec![1, 2], rows, charts: Vec::new(), studies, command: String::new() })
}

/// The row of the table with the plot of the claim.
fn line<'a>(page: &'a str, id: &str) -> &'a str {
    let (_, after) = page.split_once(&format!("<tr><th scope=\"row\">{id} <span>")).unwrap();
    after.split_once("</tr>").unwrap().0
}

fn line_of(claim: Claim, row: Option<StudyRow>) -> String {
    let id = claim.id.clone();
    line(&page(vec![claim], row.into_iter().collect()), &id).to_owned()
}

#[test]
fn the_section() {
    let other = Claim {
        seed: "004".to_owned(),
        place: "004 fig. 8".to_owned(),
        ..claim("T-4", "", Tolerance::AlwaysAtMost { high: 2.0 }, &[1.0, 1.5])
    };
    let rows = vec![
        claim("T-1", "2", AROUND_2, &[2.0, 2.5]),
        Claim {
            place: "003, section 4".to_owned(),
            ..claim("T-2", "more", Tolerance::Above { bound: 1.0 }, &[2.0, 3.0])
        },
        claim("T-3", "+100 %", AROUND_2, &[9.0, 9.0]),
        other,
    ];
    let page =
        page(rows, vec![studied("T-1", true, 1.5, (0.0, 2.0)), studied("T-3", false, 9.5, (0.5, 8.0))]);
    let (_, section) = page.split_once("<h2>Published and measured values</h2>").unwrap();
    insta::assert_snapshot!(section.split_once("<h2>").unwrap().0);
}

/// 144 of the plot's units are the tolerance's width, here 2: a value of 2.25 is at 168 + 1.25 × 72 = 258.
#[test]
fn a_tolerance_with_two_ends_has_the_same_width_in_any_unit() {
    let band = "<rect class='band' x='168.0' y='0' width='144.0'";
    let one = line_of(claim("T", "2", AROUND_2, &[2.0, 2.5]), None);
    assert!(one.contains(band) && one.contains("<circle class='mean' cx='258.0'"), "{one}");
    let thousand = Tolerance::Between { low: 1000.0, high: 3000.0 };
    let thousands = line_of(claim("T", "2000", thousand, &[2000.0, 2500.0]), None);
    assert!(thousands.contains(band) && thousands.contains("<circle class='mean' cx='258.0'"), "{thousands}");
    // From 1.75 to 2.75: 90 % and not 95 %.
    assert!(
        one.contains("<path class='whisker' d='M222.0 10.0H294.0M222.0 5.0V15.0M294.0 5.0V15.0'/>"),
        "{one}"
    );
    assert!(one.contains(">2.25 ±0.50</td>"), "{one}");
}

#[test]
fn a_bound_is_open_to_one_side() {
    for (tolerance, left, bound) in [
        (Tolerance::AtLeast { low: 1.0 }, 168.0, 168.0),
        (Tolerance::Above { bound: 1.0 }, 168.0, 168.0),
        (Tolerance::AtMost { high: 1.0 }, 8.0, 312.0),
        (Tolerance::Below { bound: 1.0 }, 8.0, 312.0),
        (Tolerance::AlwaysAtMost { high: 1.0 }, 8.0, 312.0),
    ] {
        let line = line_of(claim("T", "2", tolerance, &[0.5, 40.0]), None);
        assert!(line.contains(&format!("<rect class='band' x='{left:.1}' y='0' width='304.0'")), "{line}");
        assert_eq!(line.matches("class='axis'").count(), 1, "{line}");
        assert!(line.contains(&format!("<line class='axis' x1='{bound:.1}'")), "{line}");
        // The scale is such that nothing measured or published is outside.
        assert!(
            line.contains("<circle class='mean'") && line.contains("<path class='published' d='M"),
            "{line}"
        );
        assert!(!line.contains("l-9 -5"), "{line}");
    }
}

/// Values at the bound, or none at all, give no scale.
#[test]
fn a_bound_without_other_values_is_drawn() {
    let at_bound = Claim {
        measured: Some(Measured { mean: 0.0, half_95: None, half_90: None, by_seed: vec![0.0] }),
        ..claim("T", "0", Tolerance::AtMost { high: 0.0 }, &[])
    };
    let line = line_of(at_bound, None);
    assert!(line.contains("<circle class='mean' cx='312.0'"), "{line}");
    let nothing = line_of(claim("T", "", Tolerance::AtMost { high: -5.0 }, &[]), None);
    assert!(nothing.contains("x='8.0' y='0' width='304.0'") && !nothing.contains("NaN"), "{nothing}");
}

#[test]
fn what_is_outside_is_an_arrow_with_its_number() {
    let above = line_of(claim("T", "2", AROUND_2, &[9.0, 9.5]), None);
    assert!(above.contains("<path class='mean' d='M472.0 10.0l-9 -5v10Z'/>"), "{above}");
    assert!(above.contains("text-anchor='end'>9.25</text>"), "{above}");
    assert!(!above.contains("<circle"), "{above}");
    let below = line_of(claim("T", "2", AROUND_2, &[-9.0, -9.5]), None);
    assert!(below.contains("<path class='mean' d='M8.0 10.0l9 -5v10Z'/>"), "{below}");
    assert!(below.contains("text-anchor='start'>-9.25</text>"), "{below}");
    // A whisker from 4.5 to 5.5, beyond the edge at 5.2, has one cap.
    let partly = line_of(claim("T", "2", AROUND_2, &[5.0, 5.0]), None);
    assert!(partly.contains("d='M420.0 10.0H472.0M420.0 5.0V15.0'/>"), "{partly}");
    // Two arrows at one edge stand side by side.
    let fit = line_of(claim("T", "2", AROUND_2, &[2.0]), Some(studied("T", true, 12.0, (8.0, 9.0))));
    assert!(fit.contains("<path class='held-out' d='M472.0 30.0l-9 -5v10Z'/>"), "{fit}");
    assert!(fit.contains("<path class='frozen' d='M463.0 30.0l-9 -5v10Z'/>"), "{fit}");
    assert!(fit.contains(">8.00..9.00, 12.0</text>"), "{fit}");
}

/// From 0.5 to beyond the right edge: 168 - 0.5 × 72 = 132.
#[test]
fn a_part_in_the_fit_shows_by_the_form_of_the_bar() {
    for (is_held_out, class) in [(true, "held-out"), (false, "fitted")] {
        let row = studied("T", is_held_out, 1.5, (0.5, 8.0));
        let line = line_of(claim("T", "2", AROUND_2, &[2.0]), Some(row));
        assert!(line.contains(&format!("<rect class='{class}' x='132.0' y='27.0' width='340.0'")), "{line}");
        assert!(line.contains(&format!("<path class='{class}' d='M472.0 30.0l-9 -5v10Z'/>")), "{line}");
        assert!(line.contains("<circle class='frozen' cx='204.0'"), "{line}");
    }
    let alone = line_of(claim("T", "2", AROUND_2, &[2.0]), None);
    assert!(!alone.contains("frozen") && !alone.contains("y='27.0'"), "{alone}");
}

#[test]
fn what_was_not_measured_has_its_tolerance_and_published_value() {
    let line = line_of(claim("T", "2", AROUND_2, &[]), None);
    assert!(
        line.contains("class='band'") && line.contains("<path class='published' d='M240.0 2.0"),
        "{line}"
    );
    assert!(!line.contains("class='mean'") && !line.contains("class='whisker'"), "{line}");
    assert!(line.contains(">not measured</td>"), "{line}");
}

#[test]
fn published_values_are_read_in_the_unit_of_the_row() {
    let at_most = Tolerance::AtMost { high: 3.0 };
    for (expected, unit, tolerance, at) in [
        ("2.5", Unit::Ratio, AROUND_2, Some("276.0")),
        ("2.5 s", Unit::Seconds, AROUND_2, Some("276.0")),
        // A number in another unit is the centre of its tolerance.
        ("+100 %", Unit::Ratio, AROUND_2, Some("240.0")),
        ("2.5 s", Unit::Ratio, AROUND_2, Some("240.0")),
        ("1.5-2.5", Unit::Ratio, AROUND_2, Some("240.0")),
        ("30", Unit::Ratio, AROUND_2, Some("240.0")),
        ("10s of ms", Unit::Milliseconds, AROUND_2, None),
        ("a little better", Unit::Ratio, AROUND_2, None),
        ("", Unit::Ratio, AROUND_2, None),
        ("3", Unit::Ratio, at_most, Some("312.0")),
        ("8 %", Unit::Ratio, at_most, None),
        ("inf", Unit::Ratio, at_most, None),
    ] {
        let line = line_of(Claim { unit, ..claim("T", expected, tolerance, &[]) }, None);
        let mark =
            line.split_once("<path class='published' d='M").map(|(_, rest)| rest.split_once(' ').unwrap().0);
        assert_eq!(mark, at, "{expected} {unit:?}");
    }
}

/// The seeds reach from 0.5 to 40, the confidence interval from 19.75 to 20.75.
#[test]
fn where_every_seed_counts_the_whisker_spans_the_seeds() {
    let whisker = |tolerance| {
        let line = line_of(claim("T", "", tolerance, &[0.5, 40.0]), None);
        line.split_once("class='whisker' d='").unwrap().1.split_once('\'').unwrap().0.to_owned()
    };
    let (all, mean) =
        (whisker(Tolerance::AlwaysAtMost { high: 1.0 }), whisker(Tolerance::AtMost { high: 1.0 }));
    // 0.9 × 160 units are 39.
    assert!(all.starts_with("M310.2 10.0H456.0"), "{all}");
    assert!(mean.starts_with("M448.7 10.0H456.0"), "{mean}");
}

#[test]
fn only_claims_of_documents_with_a_tolerance_are_drawn() {
    let ours = Claim { basis: Basis::Beyond, seed: String::new(), ..claim("OURS", "", AROUND_2, &[2.0]) };
    let free = claim("FREE", "", Tolerance::None, &[2.0]);
    let page = page(vec![ours, free], Vec::new());
    assert!(!page.contains("Published and measured values") && !page.contains("<svg"), "{page}");
}

#[test]
fn text_of_a_claim_cannot_break_the_page() {
    let hostile = Claim {
        seed: "<s>".to_owned(),
        place: "<i>&".to_owned(),
        says: "</span><script>".to_owned(),
        ..claim("' onload='<x>", "<b>", AROUND_2, &[2.0])
    };
    let page = page(vec![hostile], vec![studied("' onload='<x>", true, 2.0, (1.0, 2.0))]);
    for foul in ["<s>", "<i>", "<script", "onload='", "<x>", "<b>"] {
        assert!(!page.contains(foul), "{foul}");
    }
    assert!(page.contains("&lt;/span&gt;&lt;script&gt;") && page.contains("id='interval-&#39; onload=&#39;"));
}
