//! Every report against its golden copy in `snapshots/`. `INSTA_UPDATE=always cargo test -p commonhold-report
//! --lib --test golden` writes them anew; review the difference.
#![allow(clippy::unwrap_used)]

mod fixture;

use commonhold_contract::{Contract, Resource, UnitId};
use commonhold_ledger::{Credits, Finding, FindingReason, Negotiated, Verdict, WaitCause};
use commonhold_policy::membership::Stays;
use commonhold_policy::{GroupBounds, Plan};
use commonhold_report::comparison::{self, Comparison};
use commonhold_report::holdings::{Holding, Outlook};
use commonhold_report::present::{self, Present};
use commonhold_report::switches::{CpuSwitches, Latency, Times, UnitSwitches};
use commonhold_report::{Style, html, plan, status, tree};
use insta::assert_snapshot;
use unicode_width::UnicodeWidthStr;

const COLOUR: Style = Style { colour: true, width: 80 };

#[track_caller]
fn assert_fits(text: &str, width: usize) {
    for line in text.lines() {
        assert!(line.width() <= width, "{} columns: {line}", line.width());
        assert!(!line.ends_with(' '), "spaces at the end: {line:?}");
    }
}

#[test]
fn tree_of_a_contract() {
    let (contract, machine, divisions) = fixture::physics();
    let text = tree::text(&contract, &machine, &divisions, Style::PLAIN);
    assert_fits(&text, 80);
    assert_snapshot!(text);
    assert_snapshot!(
        "tree_of_a_contract_json",
        tree::json(&contract, &machine, &divisions, Outlook::default(), &[0u8; 0])
    );
}

#[test]
fn tree_of_hostile_names_in_a_narrow_terminal() {
    let (contract, machine, divisions) = fixture::hostile();
    let text = tree::text(&contract, &machine, &divisions, Style { colour: false, width: 72 });
    assert_fits(&text, 72);
    assert!(!text.contains('\x1b'));
    assert_snapshot!(text);
}

#[test]
fn tree_without_units() {
    let (contract, machine, divisions) = fixture::flat(0);
    assert_snapshot!(tree::text(&contract, &machine, &divisions, Style::PLAIN));
}

#[test]
fn tree_of_a_thousand_units_flat_and_nested() {
    let (contract, machine, divisions) = fixture::flat(1_000);
    let text = tree::text(&contract, &machine, &divisions, Style::PLAIN);
    assert_fits(&text, 80);
    assert_eq!(text.lines().filter(|line| line.starts_with("unit-")).count(), 1_000);
    let (contract, machine, divisions) = fixture::nested(1_000);
    let text = tree::text(&contract, &machine, &divisions, Style::PLAIN);
    assert_fits(&text, 80);
    assert_eq!(text.lines().filter(|line| line.contains("unit-")).count(), 1_000);
}

#[test]
fn plan_of_the_first_step() {
    let (contract, plan) = fixture::plan();
    let text = plan::text(&contract, &plan, Style::PLAIN);
    assert_fits(&text, 80);
    assert_snapshot!(text);
    assert_snapshot!("plan_of_the_first_step_json", plan::json(&contract, &plan, plan::About::default()));
}

#[test]
fn who_is_in_which_unit() {
    let (contract, plan) = fixture::plan();
    let some = |counts: &[(&str, usize)]| counts.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    let ten: Vec<(String, usize)> = (1..=10).map(|n| (format!("program-{n}"), n)).collect();
    let of = |unit, users: &[(&str, usize)], programs, beyond_us| Present {
        unit,
        users: some(users),
        programs,
        beyond_us,
        moved: None,
        scoped: None,
        staying: Vec::new(),
        places: Vec::new(),
    };
    let first = contract.held().next().unwrap();
    let hostile = Present {
        moved: Some(50),
        staying: vec![(Stays::UserManager, 4), (Stays::Service, 1)],
        ..of(first, &[("ana\x1b", 54), ("root", 1)], ten, 1)
    };
    let shared = of(UnitId::SHARED, &[("root", 1)], some(&[("sshd", 1)]), 1);
    let rest = contract.held().skip(1).map(|unit| of(unit, &[], Vec::new(), 0));
    let all: Vec<Present> = std::iter::once(hostile).chain(rest).chain([shared]).collect();
    let text = present::text(&contract, &all, Style::PLAIN);
    assert_fits(&text, 80);
    assert!(!text.contains('\x1b'));
    assert_snapshot!(text);
    let measured = ["sda".to_owned()];
    let about = plan::About { present: &all[..2], io_cost: &measured, ..plan::About::default() };
    assert_snapshot!("who_is_in_which_unit_json", plan::json(&contract, &plan, about));
    let set = GroupBounds { memory: Some(300 << 20), cap: true, ..GroupBounds::default() };
    let in_place = Present {
        scoped: Some(2),
        staying: vec![(Stays::InPlace, 3)],
        places: vec![("/user.slice/user-1001.slice".to_owned(), set)],
        ..of(first, &[("ana", 5)], some(&[("sh", 5)]), 0)
    };
    let text = present::text(&contract, &[in_place], Style::PLAIN);
    assert!(text.contains("2 would get a scope of systemd's; 3 stay (held where they are)"), "{text}");
    let set = "in /user.slice/user-1001.slice (set by others: at most 300 MiB, a cap on CPU\n    time)";
    assert!(text.contains(set), "{text}");
    // Nobody is left out, and everybody can be held.
    let text = present::text(&contract, &[of(first, &[("root", 1)], some(&[("sh", 1)]), 0)], Style::PLAIN);
    let last = "Not held: kernel threads, process 1 and Commonhold itself.\n";
    assert_eq!(text, format!("Processes that would be held now\n  unit-0: 1 process of root: sh\n{last}"));
}

#[test]
fn plan_of_every_action_and_reason_as_json() {
    let (contract, plan) = fixture::every_step();
    assert_snapshot!(plan::json(&contract, &plan, plan::About::default()));
}

#[test]
fn plan_without_steps_and_with_units_that_the_contract_lacks() {
    let contract = Contract::default();
    assert_snapshot!(plan::text(&contract, &Plan::default(), Style::PLAIN));
    let (_, strange) = fixture::plan();
    assert!(plan::text(&contract, &strange, Style::PLAIN).contains("owned by ?"));
    let watched = Plan { next: 250_000_000, watch: vec![UnitId::SHARED], ..Plan::default() };
    assert!(
        plan::text(&contract, &watched, Style::PLAIN)
            .contains("within 250.0 ms, each time at what shared can use.")
    );
}

fn holder(problems: &[String]) -> status::Holder<'_> {
    status::Holder {
        contract: "lab.toml",
        backend: "user",
        instead: None,
        holdings: &[],
        switches: &[],
        tickets: &[],
        expected_tickets: &[],
        lots: &[],
        problems,
    }
}

/// What is remembered of loans, of every resource and on both sides; of a unit of which nothing is, nothing
/// is said.
#[test]
fn status_of_units_whose_loans_are_remembered() {
    let mut statement = fixture::statement();
    let remembered = [
        Some(Credits { cpu_ns: 8_000_000_000, memory_byte_s: -(3 << 29), disk_bytes: 4 << 20 }),
        Some(Credits { cpu_ns: 0, memory_byte_s: 1 << 30, disk_bytes: 0 }),
        Some(Credits { cpu_ns: -8_000_000_000, memory_byte_s: 0, disk_bytes: -(4 << 20) }),
    ];
    for (account, credits) in statement.accounts.iter_mut().zip(remembered) {
        account.credits = credits;
    }
    let text = status::text(&statement, Style::PLAIN);
    assert_fits(&text, 80);
    assert_snapshot!(text);
    let nothing = Credits::default();
    for account in &mut statement.accounts {
        account.credits = account.credits.map(|_| nothing);
    }
    assert!(!status::text(&statement, Style::PLAIN).contains("remembered"));
}

#[test]
fn status_of_gangs_and_of_the_bus() {
    let statement = fixture::gangs();
    let text = status::text(&statement, Style::PLAIN);
    assert_fits(&text, 80);
    assert_snapshot!(text);
    let live = status::live(&statement, Style::PLAIN, 9);
    assert_fits(&live, 80);
    assert_snapshot!("live_table_with_the_bus", live);
    let json: serde_json::Value = serde_json::from_str(&status::json(holder(&[]), &statement)).unwrap();
    assert_snapshot!(
        "gangs_and_bus_as_json",
        format!("{:#}\n{:#}", json["jobs"][0], json["accounts"][0]["bus"])
    );
}

/// Broken verdicts stand first, with remedies, whatever the order of units. Those that cannot be told are
/// only counted.
#[test]
fn status_begins_with_broken_verdicts() {
    let mut statement = fixture::statement();
    let finding = |resource, verdict, reason| Finding {
        resource,
        verdict,
        reason,
        entitled: 720_000,
        wanted: 1_400_000,
        had: 130_000,
    };
    let students = WaitCause::Unit { unit: "students".to_owned() };
    let short = FindingReason::Short { by: students, waited_ns: 94_000_000_000 };
    let late = FindingReason::Late { promised_ns: 10_000_000, took_ns: 596_000_000, count: 1 };
    statement.accounts[0].findings = vec![
        finding(Resource::Cpu, Verdict::Kept, FindingReason::HadWanted),
        finding(Resource::Disk, Verdict::CannotTell, FindingReason::NotHeld),
    ];
    statement.accounts[1].findings = vec![finding(Resource::Cpu, Verdict::Broken, late)];
    statement.accounts[2].findings = vec![finding(Resource::Cpu, Verdict::Broken, short)];
    let text = status::text(&statement, Style::PLAIN);
    assert_fits(&text, 80);
    assert!(text.contains("\n\nscheme isolate"), "{text}");
    assert_snapshot!(text);
    assert_snapshot!("status_check_of_broken_verdicts", status::check(&statement));
    let narrow = status::text(&statement, Style { colour: false, width: 40 });
    let verdicts = narrow.split("\n\n").next().unwrap();
    assert_fits(verdicts, 40);
    let mut physics = statement.clone();
    assert!(status::only(&mut physics, "physics"));
    let units: Vec<&str> = physics.accounts.iter().map(|account| account.unit.as_str()).collect();
    assert_eq!(units, ["physics", "physics/night-batch"]);
    assert!(!status::only(&mut physics, "phys"), "no part of a name is a unit");
    statement.accounts[0].findings.truncate(1);
    statement.accounts.truncate(1);
    assert_eq!(status::check(&statement), "kept\n");
    assert!(status::text(&statement, COLOUR).starts_with("\x1b[32mEvery unit has what it is entitled to."));
    assert_eq!(status::check(&fixture::nothing()), "Too early to tell: a verdict needs 10 s of accounts.\n");
}

#[test]
fn status_lists_few_of_many_broken_verdicts() {
    let mut statement = fixture::crowd(1_000);
    for account in &mut statement.accounts {
        account.findings = vec![Finding {
            resource: Resource::Memory,
            verdict: Verdict::Broken,
            reason: FindingReason::Short { by: WaitCause::Unknown, waited_ns: 0 },
            entitled: 2 << 30,
            wanted: 3 << 30,
            had: 1 << 30,
        }];
    }
    let text = status::text(&statement, Style::PLAIN);
    assert!(text.starts_with("1000 of 1000 verdicts are broken.\n"), "{text}");
    assert_eq!(text.matches("memory: broken").count(), 20);
    assert!(text.contains("\n  and 980 more: see `status --check`\n\n"), "{text}");
}

#[test]
fn status_of_units_that_lend() {
    let statement = fixture::statement();
    let text = status::text(&statement, Style::PLAIN);
    assert_fits(&text, 80);
    // Units that negotiate are named where nothing was tried yet.
    let mut negotiates = statement.clone();
    assert!(negotiates.exchanges.is_empty());
    negotiates.negotiated = vec![Negotiated { unit: "physics".to_owned(), ..Negotiated::default() }];
    let said = "\nunits that negotiate: physics; no trial yet\n";
    assert_eq!(status::text(&negotiates, Style::PLAIN), text.clone() + said);
    assert_snapshot!(text);
    let problems = ["the caretaker was killed".to_owned()];
    let holder = holder(&problems);
    assert_snapshot!("status_of_units_that_lend_json", status::json(holder, &statement));
    assert_eq!(
        status::holder(holder, None),
        "Contract lab.toml, held by the user backend.\nproblem: the caretaker was killed\n"
    );
    let weakly = Holding::partly(Resource::Disk, "weakly, by stopping");
    assert_eq!(weakly.warning().as_deref(), Some("warning: disk is held weakly, by stopping"));
    assert_eq!(Holding::held(Resource::Cpu, "by the cgroup backend").warning(), None);
    assert_eq!(
        serde_json::to_value(&weakly).unwrap(),
        serde_json::json!({ "resource": "disk", "held": "partly", "how": "held weakly, by stopping" })
    );
    let holdings = [
        Holding::held(Resource::Cpu, "by the cgroup backend"),
        Holding::not_held(Resource::Memory, ": no memory controller here"),
    ];
    let instead = status::Instead { of: "kernel", for_ns: 12_000_000_000, why: "it stalled" };
    let holder = status::Holder {
        contract: "lab.toml",
        backend: "cgroup",
        instead: Some(instead),
        holdings: &holdings,
        switches: &[],
        tickets: &[],
        expected_tickets: &[],
        lots: &[],
        problems: &[],
    };
    assert_eq!(
        status::holder(holder, None),
        "Contract lab.toml, held by the cgroup backend.\n\
         The kernel backend has not held it for 12.0 s: it stalled.\n\
         cpu     held by the cgroup backend\n\
         memory  not held: no memory controller here\n"
    );
    assert!(status::json(holder, &statement).contains("\"of\": \"kernel\""));
    assert!(status::text(&statement, COLOUR).contains("\x1b["));
}

#[test]
fn status_of_the_kernel_backend_has_cpus_and_latencies_in_json() {
    let unit = UnitSwitches {
        unit: "light".into(),
        times: Times { home_ns: 1_500_000_000, lent_ns: 7_000, ..Times::default() },
        called_back: 12,
        call_back_p50_ns: Some(16_384),
        switches: 4_711,
        call_backs: vec![
            Latency { from_us: 0.0, below_us: Some(1.024), count: 4 },
            Latency { from_us: 4_294_967.296, below_us: None, count: 8 },
        ],
        cpus: vec![
            CpuSwitches {
                cpu: 0,
                times: Times { home_ns: 1_400_000_000, waited_own_ns: 5, ..Times::default() },
            },
            CpuSwitches { cpu: 7, times: Times { home_ns: 100_000_000, lent_ns: 7_000, ..Times::default() } },
        ],
        ..UnitSwitches::default()
    };
    let holder = status::Holder {
        contract: "lab.toml",
        backend: "kernel",
        instead: None,
        holdings: &[],
        switches: &[unit],
        tickets: &[],
        expected_tickets: &[],
        lots: &[],
        problems: &[],
    };
    assert_snapshot!(status::json(holder, &fixture::nothing()));
}

#[test]
fn status_of_nothing_and_of_huge_numbers() {
    assert_snapshot!(status::text(&fixture::nothing(), Style::PLAIN));
    assert_snapshot!("status_of_huge_numbers", status::text(&fixture::huge(), Style::PLAIN));
}

#[test]
fn live_table() {
    let live = status::live(&fixture::statement(), Style::PLAIN, 9);
    assert_fits(&live, 80);
    assert_snapshot!(live);
}

#[test]
fn live_table_says_what_it_leaves_out() {
    let live = |height| status::live(&fixture::statement(), Style::PLAIN, height);
    assert!(live(5).contains("… and 2 more units"), "{}", live(5));
    assert!(live(6).contains("students") && !live(6).contains('…'), "{}", live(6));
}

#[test]
fn live_table_always_has_the_same_height_and_fits() {
    for statement in [fixture::statement(), fixture::nothing(), fixture::huge(), fixture::crowd(1_000)] {
        for (width, height) in [(80, 4), (80, 24), (40, 10), (10, 5), (200, 60)] {
            let live = status::live(&statement, Style { colour: false, width }, height);
            assert_eq!(live.lines().count(), height);
            assert!(live.lines().all(|line| line.width() <= width), "{width} columns:\n{live}");
        }
    }
}

#[test]
fn comparison_of_a_good_run() {
    let comparison = fixture::comparison();
    let text = comparison::text(&comparison, Style::PLAIN);
    assert_fits(&text, 80);
    assert_snapshot!(text);
    assert_snapshot!("comparison_of_a_good_run_json", comparison::json(&comparison));
    assert_snapshot!("comparison_of_a_good_run_html", html::page(&comparison));
    assert!(comparison::verdicts(&comparison).iter().all(|verdict| verdict.kept() == Some(true)));
}

#[test]
fn comparison_of_a_bad_run_says_so() {
    let mut comparison = fixture::comparison();
    for repeat in &mut comparison.rows[3].repeats {
        repeat.light_s = 20.0;
    }
    for repeat in &mut comparison.rows[1].repeats {
        repeat.heavy_s = None;
    }
    let kept: Vec<_> = comparison::verdicts(&comparison).iter().map(comparison::Verdict::kept).collect();
    assert_eq!(kept, [Some(false), None]);
    assert_snapshot!(comparison::text(&comparison, Style::PLAIN));
    let page = html::page(&comparison);
    assert!(page.contains("<li class=\"broken\">"));
    assert!(page.contains("Nothing to compare with: smp was not measured. smp: not measured; quota: 15.8 s"));
}

/// A disturbed repeat does not count beside one that was not disturbed. If all were, there is no verdict.
#[test]
fn a_disturbed_comparison_is_inconclusive() {
    let mut comparison = fixture::comparison();
    let word = |comparison: &Comparison| {
        let verdicts = comparison::verdicts(comparison);
        verdicts.iter().map(|verdict| (verdict.kept(), verdict.disturbed.clone())).collect::<Vec<_>>()
    };
    let repeats = &mut comparison.rows[3].repeats;
    (repeats[0].light_s, repeats[0].others) = (20.0, 0.5);
    assert_eq!(word(&comparison), [(Some(true), None), (Some(true), None)]);
    for (repeat, others) in comparison.rows[3].repeats.iter_mut().zip([0.3, 0.44, 0.06]) {
        repeat.others = others;
    }
    comparison.rows[0].repeats[1].others = 0.9;
    let disturbed = comparison::Disturbed { run: "isolate", others: 0.44 };
    assert_eq!(word(&comparison), [(None, Some(disturbed.clone())), (None, Some(disturbed))]);
    let text = comparison::text(&comparison, Style::PLAIN);
    assert_fits(&text, 80);
    assert_snapshot!(text);
    assert!(html::page(&comparison).contains("<li class=\"unknown\"><strong>inconclusive</strong>"));
}

/// The median breaks the bound, and so would a slower machine during these repeats.
#[test]
fn a_comparison_that_varies_is_inconclusive() {
    let mut comparison = fixture::comparison();
    let set = |comparison: &mut Comparison, row: usize, times: [f64; 3]| {
        for (repeat, light_s) in comparison.rows[row].repeats.iter_mut().zip(times) {
            repeat.light_s = light_s;
        }
    };
    set(&mut comparison, 0, [2.0, 2.0, 2.4]);
    set(&mut comparison, 3, [2.3, 2.5, 2.5]);
    let verdict = comparison::verdicts(&comparison).remove(0);
    assert_eq!((verdict.kept(), verdict.ratio), (None, Some(1.25)));
    assert!(comparison::text(&comparison, Style::PLAIN).contains("but the repeats vary: 0.96 times at"));
    // Even the best repeat breaks it.
    set(&mut comparison, 3, [2.7, 2.8, 2.8]);
    assert_eq!(comparison::verdicts(&comparison).remove(0).kept(), Some(false));
}

#[test]
fn comparison_of_nothing() {
    let nothing = Comparison { rows: Vec::new(), ..fixture::comparison() };
    assert_snapshot!(comparison::text(&nothing, Style::PLAIN));
    assert!(html::page(&nothing).contains("<p>Not measured.</p>"));
}

#[test]
fn comparison_of_times_that_are_no_times() {
    let mut comparison = fixture::comparison();
    for (repeat, light_s) in comparison.rows[0].repeats.iter_mut().zip([0.0, f64::NAN, f64::INFINITY]) {
        repeat.light_s = light_s;
    }
    for repeat in &mut comparison.rows[1].repeats {
        repeat.heavy_s = Some(-1.0);
    }
    for repeat in &mut comparison.rows[2].repeats {
        repeat.light_s = 1e300;
    }
    for sample in &mut comparison.rows[3].samples {
        sample.using[0].1 = f64::NAN;
        sample.at_s = 0.0;
    }
    comparison.rows[2].samples[0].at_s = f64::NAN;
    comparison.rows[2].samples[1].at_s = f64::INFINITY;
    for page in [html::page(&comparison), comparison::text(&comparison, Style::PLAIN)] {
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }
    assert!(comparison::json(&comparison).contains("\"light_s\": null"));
}

#[test]
fn html_escapes_every_name_and_needs_nothing_else() {
    let page = html::page(&fixture::hostile_comparison());
    assert!(!page.contains("<script") && !page.contains("<&") && !page.contains("onload=\""), "{page}");
    assert!(page.contains("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;"));
    for outside in ["http://", "https://", "url(h", "src=", "@import"] {
        assert!(!page.contains(outside), "{outside} in the page");
    }
    assert_eq!(page, html::page(&fixture::hostile_comparison()), "the same bytes every time");
}

#[test]
fn html_of_a_thousand_units_stays_small() {
    let mut comparison = fixture::comparison();
    comparison.rows[3].statement = Some(fixture::crowd(1_000));
    let names: Vec<String> = (0..1_000).map(|i| format!("unit-{i}")).collect();
    for sample in &mut comparison.rows[3].samples {
        sample.using = names.iter().map(|name| (name.clone(), 0.002)).collect();
    }
    let page = html::page(&comparison);
    assert!(
        page.contains("992 units that used less are not shown.")
            && page.contains("900 more units not shown.")
    );
    assert!(page.len() < 200_000, "{} bytes", page.len());
}
