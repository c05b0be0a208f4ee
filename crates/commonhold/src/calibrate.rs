//! `commonhold calibrate`: measures the speed of a disk or of the memory bus, and stores the result for
//! `check` and `run`.

use std::path::Path;
use std::time::Duration;

use commonhold_live::LiveError;
use commonhold_live::apply::bus::probe;
use commonhold_live::apply::calibrate::{Measured, PASS_COUNT, Target};
use commonhold_report::{bus_capacity, cost_model};

use crate::cli::Calibrate;
use crate::exit::{Exit, Failure};
use crate::progress::Progress;
use crate::{load, output};

pub(crate) fn main(args: &Calibrate) -> Result<Exit, Failure> {
    // The command line requires either a folder or --bus.
    args.folder.as_deref().map_or_else(|| bus(args), |folder| disk(folder, args))
}

/// Measures the disk that a folder's file system is on.
fn disk(folder: &Path, args: &Calibrate) -> Result<Exit, Failure> {
    if folder.exists() && !folder.is_dir() {
        let what = "it is not a folder; give a folder on a file system of the disk";
        return Err(Failure::new(Exit::NoInput, format!("{}: {what}", folder.display())));
    }
    let target = Target::below(folder).map_err(|error| match &error {
        LiveError::File { path, source, .. } if path == folder => Failure::new(Exit::of_named(source), error),
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

/// Measures the memory bus.
fn bus(args: &Calibrate) -> Result<Exit, Failure> {
    let target = probe::Target::here()?;
    load::warn_of_renumbering();
    let measured = {
        let progress = Progress::new("parts", (probe::KINDS * probe::STEPS) as usize);
        target.measure(Duration::from_secs(args.seconds), &|| progress.step())?
    };
    let kept = target.keep(&measured.capacity)?;
    let shown = bus_capacity::Shown {
        model: &target.identity.model,
        cpus: measured.capacity.cpus,
        cpus_present: target.identity.cpus,
        nodes: target.identity.nodes,
        arrays_bytes: measured.arrays_bytes,
        one_bytes_per_s: measured.capacity.one_bytes_per_s,
        all_bytes_per_s: measured.capacity.all_bytes_per_s,
        others_percent: measured.capacity.others_percent,
        kept: &kept,
    };
    output::print(&if args.json {
        bus_capacity::json(&shown)
    } else {
        bus_capacity::text(&shown, output::style())
    })?;
    Ok(Exit::Ok)
}

/// The results of a disk measurement, in the form that reports print. `kept` is the file that stores them.
fn shown<'a>(target: &'a Target, measured: &Measured, kept: &'a Path) -> cost_model::Shown<'a> {
    let shown_way = |way: commonhold_live::observe::disk::model::Way| cost_model::Way {
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
        read: shown_way(measured.model.read),
        written: shown_way(measured.model.write),
        kept,
    }
}
