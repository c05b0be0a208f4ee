//! `commonhold calibrate`.

use std::path::Path;
use std::time::Duration;

use commonhold_live::LiveError;
use commonhold_live::disk::calibrate::{Measured, PASS_COUNT, Target};
use commonhold_report::cost_model;

use crate::cli::Calibrate;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::progress::Progress;

pub(crate) fn main(args: &Calibrate) -> Result<Exit, Failure> {
    let target = Target::below(&args.folder).map_err(|error| match &error {
        LiveError::File { path, source, .. } if *path == args.folder => {
            Failure::new(Exit::of_named(source), error)
        }
        _ => error.into(),
    })?;
    let measured = {
        let progress = Progress::new("kinds of requests", PASS_COUNT);
        target.measure(Duration::from_secs(args.seconds), &|| progress.step())?
    };
    let kept = target.keep(&measured.model)?;
    let shown = shown(&target, &measured, &kept);
    output::print(&if args.json {
        cost_model::json(&shown)
    } else {
        cost_model::text(&shown, output::style())
    })?;
    Ok(Exit::Ok)
}

/// What there is to show of a measurement.
fn shown<'a>(target: &'a Target, measured: &Measured, kept: &'a Path) -> cost_model::Shown<'a> {
    let way = |way: commonhold_live::disk::model::Way| cost_model::Way {
        bytes_per_s: way.bytes_per_s,
        sequential_per_s: way.sequential_per_s,
        random_per_s: way.random_per_s,
        latency_us: way.latency_us,
    };
    cost_model::Shown {
        disk: &target.disk,
        model: &target.identity.model,
        serial: &target.identity.serial,
        bytes: target.identity.bytes,
        file_bytes: measured.file_bytes,
        read: way(measured.model.read),
        written: way(measured.model.write),
        kept,
    }
}
