//! The rows of the tree: units, and the processes of unfolded units, filtered and sorted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use commonhold_feed::rates::{MachineRates, Rates};
use commonhold_ledger::{Finding, Verdict};
use commonhold_protocol::monitor::UnitView;

use crate::history::{Frame, History};
use crate::processes::{Listings, Process};

/// A picture with the rates at its time.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) frame: Arc<Frame>,
    /// In the order of the frame's units; all 0 before there is a second picture.
    pub(crate) rates: Vec<Rates>,
    pub(crate) machine: MachineRates,
    /// The time that the rates are of, in nanoseconds; 0 without a second picture.
    pub(crate) over_ns: u64,
}

impl Sight {
    pub(crate) fn of(frame: &Arc<Frame>, history: &History) -> Sight {
        let base = history.base(frame);
        let over_ns = base.map_or(0, |base| frame.at_ns - base.at_ns);
        let earlier: HashMap<&str, &Arc<UnitView>> =
            base.iter().flat_map(|base| &base.units).map(|unit| (unit.unit.as_str(), unit)).collect();
        let rates = |unit: &Arc<UnitView>| match earlier.get(unit.unit.as_str()) {
            Some(before) if !Arc::ptr_eq(before, unit) => Rates::between(before, unit, over_ns),
            _ => Rates::default(),
        };
        Sight {
            rates: frame.units.iter().map(rates).collect(),
            machine: base.map_or_else(MachineRates::default, |base| {
                MachineRates::between(&base.machine, &frame.machine, over_ns)
            }),
            over_ns,
            frame: Arc::clone(frame),
        }
    }

    /// Broken findings with their units, in the contract's order.
    pub(crate) fn broken(&self) -> impl Iterator<Item = (&UnitView, &Finding)> {
        self.frame.units.iter().flat_map(|unit| {
            unit.findings
                .iter()
                .filter(|finding| finding.verdict == Verdict::Broken)
                .map(move |finding| (&**unit, finding))
        })
    }
}

/// The order of siblings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sort {
    #[default]
    Contract,
    Cpu,
    Waiting,
    Memory,
    Disk,
    Name,
}

impl Sort {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Sort::Contract => "contract",
            Sort::Cpu => "cpu",
            Sort::Waiting => "waiting",
            Sort::Memory => "memory",
            Sort::Disk => "disk",
            Sort::Name => "name",
        }
    }

    pub(crate) fn next(self) -> Sort {
        match self {
            Sort::Contract => Sort::Cpu,
            Sort::Cpu => Sort::Waiting,
            Sort::Waiting => Sort::Memory,
            Sort::Memory => Sort::Disk,
            Sort::Disk => Sort::Name,
            Sort::Name => Sort::Contract,
        }
    }

    /// The key of a unit; the smallest comes first.
    fn key(self, unit: &UnitView, rates: &Rates) -> Reverse<u64> {
        Reverse(match self {
            Sort::Contract | Sort::Name => 0,
            Sort::Cpu => unit.cpu.using,
            Sort::Waiting => rates.cpu_waiting,
            Sort::Memory => unit.memory.map_or(0, |memory| memory.using),
            Sort::Disk => unit.disk.map_or(0, |disk| disk.using),
        })
    }
}

/// How far a unit is unfolded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fold {
    /// Nothing below it is shown.
    Closed,
    /// Its sub-units are shown.
    Units,
    /// Its sub-units and its processes are shown.
    Processes,
}

/// What the rows depend on beside the picture.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) sort: Sort,
    /// Only units are shown whose path contains this, in any case, and the units around them.
    pub(crate) filter: String,
    /// Only this unit and its sub-units are shown.
    pub(crate) root: Option<String>,
    /// Units that are not unfolded to their sub-units alone.
    pub(crate) folds: BTreeMap<String, Fold>,
}

impl Choice {
    /// How far a unit is unfolded; one without sub-units is closed unless it shows its processes.
    pub(crate) fn fold(&self, path: &str) -> Fold {
        self.folds.get(path).copied().unwrap_or(Fold::Units)
    }
}

/// What a row shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// The unit with this index.
    Unit(usize),
    /// A process of the unit with this index.
    Process(usize, Process),
    /// A remark on the processes of the unit with this index.
    Note(usize, String),
}

/// What identifies a row from picture to picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) unit: String,
    pub(crate) pid: Option<u32>,
}

/// A row of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) item: Item,
    /// The number of units around it that are shown.
    pub(crate) depth: usize,
    /// Whether it can be unfolded, and is: `Some(true)`.
    pub(crate) open: Option<bool>,
    /// Whether it is shown only because of the units in it.
    pub(crate) is_around: bool,
}

impl Row {
    pub(crate) fn unit(&self) -> usize {
        match self.item {
            Item::Unit(unit) | Item::Process(unit, _) | Item::Note(unit, _) => unit,
        }
    }

    pub(crate) fn key(&self, sight: &Sight) -> Key {
        let unit = sight.frame.units.get(self.unit()).map_or_else(String::new, |unit| unit.unit.clone());
        let pid = match &self.item {
            Item::Process(_, process) => Some(process.pid),
            // There is no process 0, so the number is free for the remark.
            Item::Note(..) => Some(0),
            Item::Unit(_) => None,
        };
        Key { unit, pid }
    }
}

/// The rows of a picture.
pub(crate) fn rows(sight: &Sight, choice: &Choice, listings: &Listings) -> Vec<Row> {
    let units = &sight.frame.units;
    let index_of: HashMap<&str, usize> =
        units.iter().enumerate().map(|(index, unit)| (unit.unit.as_str(), index)).collect();
    // A unit whose encloser is not in the picture is shown below the nearest one that is.
    let parent = |path: &str| {
        let mut path = path;
        while let Some((above, _)) = path.rsplit_once('/') {
            if let Some(index) = index_of.get(above) {
                return Some(*index);
            }
            path = above;
        }
        None
    };
    let mut children: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
    for (index, unit) in units.iter().enumerate() {
        children.entry(parent(&unit.unit)).or_default().push(index);
    }
    for siblings in children.values_mut() {
        match choice.sort {
            Sort::Contract => {}
            Sort::Name => siblings.sort_by_key(|index| &units[*index].unit),
            by => siblings.sort_by_key(|index| by.key(&units[*index], &sight.rates[*index])),
        }
    }
    let filter = choice.filter.to_lowercase();
    let matches: HashSet<usize> =
        (0..units.len()).filter(|index| units[*index].unit.to_lowercase().contains(&filter)).collect();
    let mut around = BTreeSet::new();
    for index in &matches {
        let mut at = parent(&units[*index].unit);
        while let Some(above) = at.filter(|above| around.insert(*above)) {
            at = parent(&units[above].unit);
        }
    }
    let tree = Tree { sight, choice, listings, children, matches, around, is_filtered: !filter.is_empty() };
    let mut rows = Vec::new();
    match choice.root.as_ref().and_then(|root| index_of.get(root.as_str())) {
        Some(root) => tree.add(*root, 0, &mut rows),
        // A subtree that is gone shows nothing, rather than everything.
        None if choice.root.is_some() => {}
        None => {
            for index in tree.children.get(&None).into_iter().flatten() {
                tree.add(*index, 0, &mut rows);
            }
        }
    }
    rows
}

struct Tree<'a> {
    sight: &'a Sight,
    choice: &'a Choice,
    listings: &'a Listings,
    children: BTreeMap<Option<usize>, Vec<usize>>,
    /// The units that match the filter.
    matches: HashSet<usize>,
    /// The units around those.
    around: BTreeSet<usize>,
    is_filtered: bool,
}

impl Tree<'_> {
    /// Adds the row of a unit and those below it. The depth of paths is bounded by the contract.
    fn add(&self, index: usize, depth: usize, rows: &mut Vec<Row>) {
        let (is_match, is_around) = (self.matches.contains(&index), self.around.contains(&index));
        if !is_match && !is_around {
            return;
        }
        let unit = &self.sight.frame.units[index];
        let below = self.children.get(&Some(index)).map_or(&[][..], Vec::as_slice);
        let fold = self.choice.fold(&unit.unit);
        let open = match (below.is_empty(), unit.processes) {
            (true, 0) => None,
            (true, _) => Some(fold == Fold::Processes),
            (false, _) => Some(fold != Fold::Closed),
        };
        rows.push(Row { item: Item::Unit(index), depth, open, is_around: !is_match });
        // A match deep in the tree is shown even if the units around it are folded.
        if fold != Fold::Closed || self.is_filtered && is_around {
            for below in below {
                self.add(*below, depth + 1, rows);
            }
        }
        if fold == Fold::Processes && unit.processes > 0 {
            self.add_processes(index, &unit.unit, depth + 1, rows);
        }
    }

    fn add_processes(&self, index: usize, path: &str, depth: usize, rows: &mut Vec<Row>) {
        let row = |item| Row { item, depth, open: None, is_around: false };
        let note = |text: String| row(Item::Note(index, text));
        let Some(listing) = self.listings.get(path) else {
            rows.push(note("processes: being read".to_owned()));
            return;
        };
        if let Some(why) = &listing.why {
            rows.push(note(format!("processes: {why}")));
            return;
        }
        rows.extend(listing.processes.iter().map(|process| row(Item::Process(index, process.clone()))));
        let missing = listing.all.saturating_sub(listing.processes.len());
        if missing > 0 {
            rows.push(note(format!("and {missing} that cannot be seen, or have ended")));
        }
    }
}
