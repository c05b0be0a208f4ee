//! The published claims of the papers (seeds 000 to 004), tested in the simulator.
//!
//! Each row is a number or a statement of a paper. The row names the claim's section, the experiments that it
//! needs, the formula that measures it, and a tolerance. Each experiment runs with several random seeds, and
//! every row gets a verdict.
//!
//! Code map, in the order of the flow:
//! - `rows`: the claims;
//! - `experiments`: the scenarios that can be run, with their variations;
//! - `run`: runs the experiments;
//! - `measure`: figures of runs, for the rows' formulas;
//! - `verdict`: compares the figures of a row with its tolerance;
//! - `unknowns`: what the documents leave unsaid; `fit`: fits it to one half of the rows, and predicts the
//!   other;
//! - `figures`: the charts;
//! - `assess`: collects the results as the data of a report. [`commonhold_sim_report::claims`] writes it as
//!   text, JSON and HTML.
//!
//! Rules: parameters of the mechanisms come from the paper's tables, or from a row that is marked as
//! calibrated. All other rows are predicted: their tolerances were written down before their first run. A
//! ratio compares two runs with the same random seed, so that both see the same random draws.

mod assess;
pub mod experiments;
mod figures;
pub mod fit;
mod frozen;
mod measure;
pub mod rows;
pub mod run;
pub mod unknowns;
pub mod verdict;

pub use assess::assess;
pub use rows::{NoSuchClaim, Row, rows, select};
pub use run::{Progress, Runs, SEEDS, run};
