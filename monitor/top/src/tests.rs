//! Screens and keys, on a terminal of ratatui's that only remembers.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use crate::app::{App, Details, Do, Link, View};
use crate::processes::Listings;
use crate::rows::Item;
use crate::sample::{app, listing, picture};
use crate::theme::Theme;

const ASCII: Theme = Theme { is_ascii: true, ..Theme::PLAIN };

/// The screen of a terminal of this size.
fn screen(app: &mut App, width: u16, height: u16, theme: Theme) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| crate::draw::draw(app, frame.buffer_mut(), theme)).unwrap();
    crate::lines(terminal.backend().buffer())
}

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '↑' => KeyCode::Up,
            '↓' => KeyCode::Down,
            '←' => KeyCode::Left,
            '→' => KeyCode::Right,
            '⏎' => KeyCode::Enter,
            '⎋' => KeyCode::Esc,
            '⌫' => KeyCode::Backspace,
            '⇞' => KeyCode::PageUp,
            '⇟' => KeyCode::PageDown,
            c => KeyCode::Char(c),
        };
        assert_eq!(app.key(KeyEvent::new(code, KeyModifiers::NONE)), Do::Nothing, "{key}");
    }
}

/// The names in the rows.
fn shown(app: &App) -> Vec<String> {
    let sight = app.sight.as_ref().unwrap();
    let name = |item: &Item| match item {
        Item::Unit(unit) => sight.frame.units[*unit].unit.clone(),
        Item::Process(_, process) => process.pid.to_string(),
        Item::Note(_, text) => text.clone(),
    };
    app.rows.iter().map(|row| name(&row.item)).collect()
}

fn selected(app: &App) -> String {
    shown(app)[app.selected].clone()
}

#[test]
fn screens() {
    for (width, height) in [(80, 24), (120, 40), (40, 10), (20, 5), (200, 24)] {
        insta::assert_snapshot!(
            format!("overview_{width}x{height}"),
            screen(&mut app(), width, height, Theme::PLAIN)
        );
    }
    for (view, name) in ["2", "3", "4", "5"].iter().zip(["cpu", "memory", "disk", "trades"]) {
        let mut app = app();
        press(&mut app, view);
        insta::assert_snapshot!(format!("{name}_80x24"), screen(&mut app, 80, 24, Theme::PLAIN));
        insta::assert_snapshot!(format!("{name}_120x40"), screen(&mut app, 120, 40, Theme::PLAIN));
    }
    insta::assert_snapshot!("ascii_80x24", screen(&mut app(), 80, 24, ASCII));
}

#[test]
fn screens_with_processes_details_and_help() {
    let mut app = app();
    press(&mut app, "→");
    app.take_listings(Listings::from([("physics".to_owned(), listing())]));
    insta::assert_snapshot!("processes_80x24", screen(&mut app, 80, 24, Theme::PLAIN));
    press(&mut app, "3");
    insta::assert_snapshot!("processes_memory_80x24", screen(&mut app, 80, 24, Theme::PLAIN));
    press(&mut app, "1⏎");
    insta::assert_snapshot!("details_80x24", screen(&mut app, 80, 24, Theme::PLAIN));
    press(&mut app, "⏎");
    insta::assert_snapshot!("details_whole_80x24", screen(&mut app, 80, 24, Theme::PLAIN));
    press(&mut app, "⎋?");
    insta::assert_snapshot!("help_80x24", screen(&mut app, 80, 24, Theme::PLAIN));
}

#[test]
fn a_lost_daemon_leaves_the_last_picture() {
    let mut app = app();
    app.take_loss(Link::Lost("no daemon runs here\u{1b}[2J".to_owned()));
    let text = screen(&mut app, 80, 24, Theme::PLAIN);
    assert!(text.starts_with("daemon gone, reconnecting: no daemon runs here\u{fffd}[2J\n"), "{text}");
    assert!(text.contains("physics"), "{text}");
    // The restarted daemon's totals begin anew: no rate is computed from both.
    app.take_picture(&picture(3), Duration::from_secs(120));
    let text = screen(&mut app, 80, 24, Theme::PLAIN);
    assert!(!text.contains("reconnecting") && !text.contains("idle"), "{text}");
    app.take_loss(Link::TooOld);
    assert!(screen(&mut app, 80, 24, Theme::PLAIN).starts_with("the daemon is older than this program"));
}

#[test]
fn no_size_and_no_key_makes_it_panic() {
    let keys = "?x→↓↓⏎⏎⏎5↓↓↑2345⇟⇞s/zz⏎⎋1ub,.,⇞⇟.p";
    let mut empty = App::new(None);
    for (width, height) in (0..30).map(|n| (n * 7, n)).chain([(1, 60), (300, 1), (20, 5), (5, 5)]) {
        if width == 0 || height == 0 {
            continue;
        }
        let mut app = app();
        screen(&mut empty, width, height, Theme::PLAIN);
        for key in keys.chars() {
            press(&mut app, &key.to_string());
            press(&mut empty, &key.to_string());
            screen(&mut app, width, height, ASCII);
            screen(&mut empty, width, height, Theme::PLAIN);
        }
    }
}

#[test]
fn nothing_on_the_screen_steers_the_terminal() {
    let mut app = app();
    press(&mut app, "→");
    app.take_listings(Listings::from([("physics".to_owned(), listing())]));
    for view in ["1", "2", "5", "⏎", "⏎"] {
        press(&mut app, view);
        for theme in [Theme::PLAIN, ASCII] {
            let text = screen(&mut app, 120, 60, theme);
            let is_foul = |c: char| c != '\n' && commonhold_report::is_foul(c);
            assert!(!text.contains(is_foul), "{text:?}");
            assert!(!theme.is_ascii || text.is_ascii(), "{text}");
        }
    }
}

#[test]
fn folding_shows_sub_units_and_then_processes() {
    let mut app = app();
    let at = |app: &App, n: usize| shown(app)[..n].join(" ");
    assert_eq!(at(&app, 4), "physics physics/night-batch physics/solver students");
    press(&mut app, "←");
    assert_eq!((at(&app, 2), app.wanted().len()), ("physics students".to_owned(), 0));
    press(&mut app, "→→");
    assert_eq!(app.wanted(), ["physics"]);
    assert_eq!(at(&app, 5), "physics physics/night-batch physics/solver processes: being read students");
    app.take_listings(Listings::from([("physics".to_owned(), listing())]));
    let note = "and 1 that cannot be seen, or have ended";
    assert_eq!(at(&app, 6), format!("physics physics/night-batch physics/solver 4711 4712 {note}"));
    // Left on a process selects its unit, then folds.
    press(&mut app, "↓↓↓");
    assert_eq!(selected(&app), "4711");
    press(&mut app, "←←");
    assert_eq!((selected(&app).as_str(), app.wanted().len()), ("physics", 0));
    // A unit without sub-units has only processes.
    press(&mut app, "↓→");
    assert_eq!(app.wanted(), ["physics/night-batch"]);
    press(&mut app, "←");
    assert!(app.wanted().is_empty());
    press(&mut app, "←");
    assert_eq!(selected(&app), "physics");
}

#[test]
fn sorting_keeps_the_tree_and_the_selection() {
    let mut app = app();
    press(&mut app, "↓↓↓↓");
    assert_eq!(selected(&app), "students/ana");
    press(&mut app, "s");
    assert_eq!(shown(&app)[..4], ["students", "students/ana", "students/bo", "backup"]);
    assert_eq!(selected(&app), "students/ana");
    press(&mut app, "s");
    assert_eq!(shown(&app)[0], "physics");
    press(&mut app, "sss");
    assert_eq!(shown(&app)[1..3], ["backup", "physics"]);
    press(&mut app, "s");
    assert_eq!(app.choice.sort.name(), "contract");
}

#[test]
fn a_filter_shows_matches_and_the_units_around_them() {
    let mut app = app();
    press(&mut app, "/SOLV");
    assert_eq!(shown(&app), ["physics", "physics/solver"]);
    assert!(app.rows[0].is_around && !app.rows[1].is_around);
    // The keys of commands are text now.
    press(&mut app, "qq⌫⌫⏎");
    assert_eq!(app.choice.filter, "SOLV");
    press(&mut app, "⎋");
    assert_eq!(shown(&app).len(), 9);
    press(&mut app, "/none⏎");
    assert!(shown(&app).is_empty());
    press(&mut app, "↓⏎→←u⎋⎋");
    assert_eq!(app.details, Details::Off);
}

#[test]
fn a_subtree_is_shown_alone() {
    let mut app = app();
    press(&mut app, "↓↓↓u");
    assert_eq!(shown(&app), ["students", "students/ana", "students/bo"]);
    press(&mut app, "u");
    assert_eq!((shown(&app).len(), selected(&app).as_str()), (9, "students"));
    let mut gone = App::new(Some("gone"));
    gone.take_picture(&picture(1), Duration::ZERO);
    assert!(screen(&mut gone, 80, 24, Theme::PLAIN).contains("no unit gone now; u shows all"));
}

#[test]
fn a_paused_picture_stays_and_can_be_stepped() {
    let mut app = app();
    let at = |app: &App| app.sight.as_ref().unwrap().frame.number;
    press(&mut app, ",,");
    assert_eq!((app.is_paused, at(&app)), (true, 7));
    app.take_picture(&picture(110), Duration::from_secs(110));
    assert_eq!(at(&app), 7);
    assert!(screen(&mut app, 80, 24, Theme::PLAIN).contains("paused, 3 s ago"));
    press(&mut app, ".⇞");
    assert_eq!(at(&app), 0);
    press(&mut app, "⇟⇟ ");
    assert_eq!((app.is_paused, at(&app)), (false, 10));
}

#[test]
fn keys_switch_views_and_end_the_program() {
    let mut app = app();
    press(&mut app, "4");
    assert_eq!(app.view, View::Disk);
    let key = |app: &mut App, code, modifiers| app.key(KeyEvent::new(code, modifiers));
    assert_eq!(key(&mut app, KeyCode::Char('c'), KeyModifiers::CONTROL), Do::Quit);
    assert_eq!(key(&mut app, KeyCode::Char('z'), KeyModifiers::CONTROL), Do::Suspend);
    press(&mut app, "/");
    assert_eq!(key(&mut app, KeyCode::Char('c'), KeyModifiers::CONTROL), Do::Quit);
    press(&mut app, "⎋");
    assert_eq!(key(&mut app, KeyCode::Char('q'), KeyModifiers::NONE), Do::Quit);
}

#[test]
fn one_picture_as_text() {
    let mut app = app();
    insta::assert_snapshot!("once_80", crate::text(&mut app, 80, Theme::PLAIN));
    insta::assert_snapshot!("once_120", crate::text(&mut app, 120, Theme::PLAIN));
}
