//! The state of the screen, and what keys do to it.

use std::time::Duration;

use commonhold_contract::Resource;
use commonhold_protocol::monitor::MonitorReply;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::history::History;
use crate::processes::Listings;
use crate::rows::{Choice, Fold, Key, Row, Sight, rows};

/// The longest filter, in characters.
const FILTER_MAX: usize = 100;
/// The pictures that Page Up and Page Down step over while paused.
const STEPS: isize = 10;

/// What the table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum View {
    #[default]
    Overview,
    Cpu,
    Memory,
    Disk,
    /// Loans, trades, jobs and gangs.
    Trades,
}

impl View {
    pub(crate) const ALL: [View; 5] = [View::Overview, View::Cpu, View::Memory, View::Disk, View::Trades];

    pub(crate) fn name(self) -> &'static str {
        match self {
            View::Overview => "overview",
            View::Cpu => "cpu",
            View::Memory => "memory",
            View::Disk => "disk",
            View::Trades => "trades",
        }
    }

    /// The resource of a view of a single one.
    pub(crate) fn resource(self) -> Option<Resource> {
        match self {
            View::Overview | View::Trades => None,
            View::Cpu => Some(Resource::Cpu),
            View::Memory => Some(Resource::Memory),
            View::Disk => Some(Resource::Disk),
        }
    }
}

/// The connection to the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Link {
    Live,
    /// The daemon is gone; why, in words.
    Lost(String),
    /// The daemon has become one without subscriptions.
    TooOld,
}

/// The pane with details of the selected unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Details {
    #[default]
    Off,
    /// Below the table.
    Below,
    /// In place of the table.
    Whole,
}

/// What the program has to do after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Do {
    Nothing,
    Quit,
    /// Stop until the shell continues the program.
    Suspend,
}

/// The state of the screen.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) history: History,
    /// The picture that is shown; `None` before the first.
    pub(crate) sight: Option<Sight>,
    pub(crate) link: Link,
    /// Whether the picture stays while others come.
    pub(crate) is_paused: bool,
    pub(crate) view: View,
    pub(crate) choice: Choice,
    /// Whether keys are added to the filter.
    pub(crate) is_typing: bool,
    pub(crate) rows: Vec<Row>,
    /// The index of the selected row.
    pub(crate) selected: usize,
    /// The first row or line on the screen; drawing bounds it.
    pub(crate) top: usize,
    /// The number of rows that fit, when last drawn.
    pub(crate) page: usize,
    pub(crate) details: Details,
    /// The first line of the details on the screen, if they fill it; drawing bounds it.
    pub(crate) details_top: usize,
    pub(crate) is_help: bool,
    /// Whether bars have the length of the whole machine, rather than of the unit's entitlement.
    pub(crate) is_scale_whole: bool,
    pub(crate) listings: Listings,
    /// Whether the screen is printed: nothing is selected, and no keys are shown.
    pub(crate) is_printed: bool,
}

impl App {
    /// Shows all units, or the subtree of `root`.
    pub(crate) fn new(root: Option<&str>) -> App {
        App {
            history: History::default(),
            sight: None,
            link: Link::Live,
            is_paused: false,
            view: View::default(),
            choice: Choice { root: root.map(str::to_owned), ..Choice::default() },
            is_typing: false,
            rows: Vec::new(),
            selected: 0,
            top: 0,
            page: 1,
            details: Details::default(),
            details_top: 0,
            is_help: false,
            is_scale_whole: false,
            listings: Listings::new(),
            is_printed: false,
        }
    }

    /// Takes a new picture, which came at `now` since the program started.
    pub(crate) fn take_picture(&mut self, picture: &MonitorReply, now: Duration) {
        self.link = Link::Live;
        self.history.push(picture, now);
        if !self.is_paused {
            self.show_latest();
        }
    }

    /// The connection failed.
    pub(crate) fn take_loss(&mut self, link: Link) {
        self.link = link;
        self.history.disconnected();
    }

    /// Takes new processes of unfolded units.
    pub(crate) fn take_listings(&mut self, listings: Listings) {
        self.listings = listings;
        self.refresh();
    }

    /// The units whose processes are shown.
    pub(crate) fn wanted(&self) -> Vec<String> {
        let open = self.choice.folds.iter().filter(|(_, fold)| **fold == Fold::Processes);
        open.map(|(path, _)| path.clone()).collect()
    }

    fn show_latest(&mut self) {
        self.sight = self.history.latest().map(|frame| Sight::of(frame, &self.history));
        self.refresh();
    }

    /// Steps to an earlier or later picture, and pauses.
    fn step(&mut self, steps: isize) {
        let Some(sight) = &self.sight else { return };
        self.is_paused = true;
        self.sight =
            self.history.step(sight.frame.number, steps).map(|frame| Sight::of(frame, &self.history));
        self.refresh();
    }

    /// Computes the rows again. The same unit or process stays selected, or else its place.
    pub(crate) fn refresh(&mut self) {
        let selected = self.selected_key();
        self.refresh_with(selected);
    }

    fn refresh_with(&mut self, selected: Option<Key>) {
        let Some(sight) = &self.sight else { return };
        self.rows = rows(sight, &self.choice, &self.listings);
        let same = selected.and_then(|key| self.rows.iter().position(|row| row.key(sight) == key));
        self.selected = same.unwrap_or(self.selected).min(self.rows.len().saturating_sub(1));
    }

    fn selected_key(&self) -> Option<Key> {
        Some(self.rows.get(self.selected)?.key(self.sight.as_ref()?))
    }

    fn selected_path(&self) -> Option<String> {
        let unit = self.rows.get(self.selected)?.unit();
        Some(self.sight.as_ref()?.frame.units.get(unit)?.unit.clone())
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Do {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Do::Quit,
                KeyCode::Char('z') => Do::Suspend,
                _ => Do::Nothing,
            };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Do::Nothing;
        }
        if self.is_help {
            self.is_help = false;
            return if key.code == KeyCode::Char('q') { Do::Quit } else { Do::Nothing };
        }
        let page = isize::try_from(self.page.max(2) - 1).unwrap_or(1);
        match key.code {
            KeyCode::Char('q') => return Do::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.is_help = true,
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp if self.is_paused => self.step(-STEPS),
            KeyCode::PageDown if self.is_paused => self.step(STEPS),
            KeyCode::PageUp => self.move_by(-page),
            KeyCode::PageDown => self.move_by(page),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.move_by(isize::MAX),
            KeyCode::Right | KeyCode::Char('l') => self.unfold(),
            KeyCode::Left => self.fold(),
            KeyCode::Enter | KeyCode::Char('i') => {
                self.details = match self.details {
                    Details::Off => Details::Below,
                    Details::Below => Details::Whole,
                    Details::Whole => Details::Off,
                };
                self.details_top = 0;
            }
            KeyCode::Esc => self.leave(),
            KeyCode::Char('s') => {
                self.choice.sort = self.choice.sort.next();
                self.refresh();
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('u') => self.toggle_root(),
            KeyCode::Char('b') => self.is_scale_whole ^= true,
            KeyCode::Char('p' | ' ') if self.is_paused => {
                self.is_paused = false;
                self.show_latest();
            }
            KeyCode::Char('p' | ' ') => self.is_paused = self.sight.is_some(),
            KeyCode::Char(',') => self.step(-1),
            KeyCode::Char('.') => self.step(1),
            KeyCode::Char(digit @ '1'..='5') => {
                let index = usize::from(u8::try_from(digit).unwrap_or(b'1') - b'1');
                self.view = View::ALL[index];
                self.top = 0;
            }
            _ => {}
        }
        Do::Nothing
    }

    /// Escape: closes the pane; without it, ends the filter; without one, ends the subtree.
    fn leave(&mut self) {
        if self.details != Details::Off {
            self.details = Details::Off;
        } else if !self.choice.filter.is_empty() {
            self.choice.filter.clear();
            self.refresh();
        } else if self.choice.root.is_some() {
            self.toggle_root();
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.choice.filter.clear();
                self.is_typing = false;
            }
            KeyCode::Backspace if self.choice.filter.is_empty() => self.is_typing = false,
            KeyCode::Backspace => {
                self.choice.filter.pop();
            }
            KeyCode::Char(c) if self.choice.filter.chars().count() < FILTER_MAX => self.choice.filter.push(c),
            _ => {}
        }
        self.refresh();
    }

    /// Moves the selection, or scrolls lines.
    fn move_by(&mut self, rows: isize) {
        if self.details == Details::Whole {
            self.details_top = self.details_top.saturating_add_signed(rows);
        } else if self.view == View::Trades {
            self.top = self.top.saturating_add_signed(rows);
        } else {
            let last = self.rows.len().saturating_sub(1);
            self.selected = self.selected.saturating_add_signed(rows).min(last);
        }
    }

    fn unfold(&mut self) {
        let Some((path, has_units, processes)) = self.foldable() else { return };
        let next = match (self.choice.fold(&path), has_units) {
            (Fold::Closed, true) => Fold::Units,
            _ if processes > 0 => Fold::Processes,
            _ => return,
        };
        self.choice.folds.insert(path, next);
        self.refresh();
    }

    /// Folds the selected unit by a step; if it is folded, selects the unit around it. On a process, selects
    /// its unit.
    fn fold(&mut self) {
        let Some(row) = self.rows.get(self.selected) else { return };
        let (depth, is_unit) = (row.depth, matches!(row.item, crate::rows::Item::Unit(_)));
        if is_unit && row.open == Some(true) {
            let Some((path, has_units, _)) = self.foldable() else { return };
            match (self.choice.fold(&path), has_units) {
                (Fold::Processes, _) => self.choice.folds.remove(&path),
                _ => self.choice.folds.insert(path, Fold::Closed),
            };
            self.refresh();
        } else if let Some(above) = self.rows[..self.selected].iter().rposition(|row| row.depth < depth) {
            self.selected = above;
        }
    }

    /// The selected unit: its path, whether it has sub-units, and its processes. `None` on another row.
    fn foldable(&self) -> Option<(String, bool, u32)> {
        let row = self.rows.get(self.selected)?;
        let crate::rows::Item::Unit(index) = row.item else { return None };
        let units = &self.sight.as_ref()?.frame.units;
        let unit = units.get(index)?;
        let below = format!("{}/", unit.unit);
        Some((unit.unit.clone(), units.iter().any(|other| other.unit.starts_with(&below)), unit.processes))
    }

    fn toggle_root(&mut self) {
        let selected = self.selected_key();
        self.choice.root = match self.choice.root {
            Some(_) => None,
            None => self.selected_path(),
        };
        self.refresh_with(selected);
    }
}
