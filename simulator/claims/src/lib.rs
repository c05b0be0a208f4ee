//! The claims of seed 000, and what the simulator makes of them.
//!
//! Each row is a number or a statement of the paper. It says where the claim stands, which runs it needs, how it is
//! measured in them, and how far off the measured value may be. The runs are made for several seeds, and every row
//! gets a verdict.
//!
//! Code map, in the order of the flow:
//! - `rows`: what is claimed;
//! - `experiments`: what can be run;
//! - `run`: running it;
//! - `measure`: figures of runs;
//! - `verdict`: what they mean for a row;
//! - `figures`: what is drawn;
//! - `assess`: all of it as the data of a report. [`commonhold_sim_report::claims`] writes it as text, JSON and HTML.
//!
//! Rules: parameters of the mechanisms come from the paper's tables, or from a row that is marked as calibrated. All
//! other rows are predicted: their tolerances stand here before they are run for the first time. A ratio is taken
//! within one seed, so that both runs have the same luck.

mod assess;
pub mod experiments;
mod figures;
mod measure;
pub mod rows;
pub mod run;
pub mod verdict;

pub use assess::assess;
pub use rows::{Row, Unknown, rows, select};
pub use run::{Progress, Runs, SEEDS, run};
