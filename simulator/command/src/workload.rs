//! `commonhold workload`.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

use commonhold_command::exit::{Exit, Failure};
use commonhold_command::load;
use commonhold_command::output;
use commonhold_contract::render;
use commonhold_recording::MAGIC;
use commonhold_sim::scenario::{Part, read};
use commonhold_sim_command::cli::{
    ExportWorkload, FormatChoice, ImportWorkload, UnitsChoice, WorkloadAction,
};
use commonhold_workloads::{Format, Imported, Options, Units};

/// The largest file of a format other than a recording's.
const TEXT_BYTES_MAX: usize = 64 << 20;

pub(crate) fn main(action: &WorkloadAction) -> Result<Exit, Failure> {
    match action {
        WorkloadAction::Import(args) => import(args),
        WorkloadAction::Export(args) => export(args),
    }
}

fn import(args: &ImportWorkload) -> Result<Exit, Failure> {
    let name = args.file.display().to_string();
    if is_recording(&args.file) {
        let why = "it is a recording of `commonhold record`, not a workload of another program";
        return Err(Failure::new(
            Exit::NoInput,
            format!("{name}: {why}; replay it with `commonhold what-if`"),
        ));
    }
    let text = load::foreign_workload(&args.file)?;
    let format =
        args.from.map(format_of).or_else(|| commonhold_workloads::guess(&text)).ok_or_else(|| {
            let remedy = "say it with --from rt-app, fio, iolog, swf or trace";
            Failure::new(Exit::Usage, format!("{name}: its beginning does not show its format; {remedy}"))
        })?;
    if format != Format::Trace && text.len() > TEXT_BYTES_MAX {
        let message = format!("{name}: it has {} MiB, more than {}", text.len() >> 20, TEXT_BYTES_MAX >> 20);
        return Err(Failure::new(Exit::NoInput, format!("{message}; cut it, or give another file")));
    }
    let options = options(args, format)?;
    let Imported { text: workload, diagnostics } = commonhold_workloads::import(&text, format, &options);
    let said = render(&diagnostics, &text, &name, std::io::stderr().is_terminal());
    let Some(workload) = workload else { return Err(Failure::rendered(Exit::Invalid, &said)) };
    output::complain_of(&said);
    put(args.output.as_deref(), "workload", &workload)?;
    Ok(Exit::Ok)
}

/// Whether a file begins as recordings do. A file that cannot be read does not.
fn is_recording(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    // A FIFO would lose its beginning.
    let is_file = path.metadata().is_ok_and(|facts| facts.is_file());
    is_file && File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == MAGIC
}

fn options(args: &ImportWorkload, format: Format) -> Result<Options, Failure> {
    let units = match args.units {
        None => Units::One,
        Some(UnitsChoice::Taskgroup) => Units::Taskgroup,
        Some(UnitsChoice::User) => Units::User,
        Some(UnitsChoice::Group) => Units::Group,
        Some(UnitsChoice::Queue) => Units::Queue,
        Some(UnitsChoice::Partition) => Units::Partition,
    };
    let has = match units {
        Units::One => true,
        Units::Taskgroup => format == Format::RtApp,
        _ => format == Format::Swf,
    };
    if !has {
        let message = "only rt-app has task groups, and only swf has users, groups, queues and partitions";
        return Err(Failure::new(Exit::Usage, format!("--units: {message}; leave it out")));
    }
    let source = args.file.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(Options {
        unit: args.unit.clone(),
        units,
        source: source.unwrap_or_default(),
        horizon_ns: args.horizon.map(|horizon| u64::try_from(horizon.as_nanos()).unwrap_or(u64::MAX)),
        jobs: args.jobs,
        names: args.names.iter().cloned().collect(),
    })
}

fn export(args: &ExportWorkload) -> Result<Exit, Failure> {
    let names = ["contract.toml", "machine.toml", "workload.toml"].map(|name| args.scenario.join(name));
    let given = [None, None, args.workload.as_deref()];
    let paths: Vec<&Path> = names.iter().zip(given).map(|(path, given)| given.unwrap_or(path)).collect();
    let texts = paths
        .iter()
        .map(|path| {
            load::text_of(path, "scenario", "a folder with contract.toml, machine.toml and workload.toml")
        })
        .collect::<Result<Vec<_>, _>>()?;
    let read = read(&texts[0], &texts[1], &texts[2]);
    let mut said = String::new();
    for finding in &read.findings {
        let index = match finding.part {
            Part::Contract => 0,
            Part::Machine => 1,
            Part::Workload => 2,
        };
        let colour = std::io::stderr().is_terminal();
        said += &render(&finding.diagnostics, &texts[index], &paths[index].display().to_string(), colour);
    }
    let Some(scenario) = read.scenario else { return Err(Failure::rendered(Exit::Invalid, &said)) };
    let exported = commonhold_workloads::export(&scenario.workload, &scenario.contract, args.taskgroups);
    for remark in &exported.remarks {
        output::warn(&format!("warning: {remark}"));
    }
    put(args.output.as_deref(), "use case", &exported.text)?;
    Ok(Exit::Ok)
}

/// Writes a text to a file, or prints it. `what` is what messages call it.
fn put(path: Option<&Path>, what: &str, text: &str) -> Result<(), Failure> {
    let Some(path) = path else { return output::print(text) };
    std::fs::write(path, text).map_err(|e| {
        let remedy = "give a path in a folder that you may write to";
        Failure::new(
            Exit::CannotCreate,
            format!("{}: cannot write the {what}: {e}; {remedy}", path.display()),
        )
    })
}

fn format_of(choice: FormatChoice) -> Format {
    match choice {
        FormatChoice::RtApp => Format::RtApp,
        FormatChoice::Fio => Format::Fio,
        FormatChoice::Iolog => Format::Iolog,
        FormatChoice::Swf => Format::Swf,
        FormatChoice::Trace => Format::Trace,
    }
}
