//! Calls systemd as the daemon does, to try it on a machine with systemd.
//!
//! usage: `cargo run --example systemd -- [--user] COMMAND`, as root or with `--user`
//!
//! - `show UNIT [PROPERTY...]`: shows properties
//! - `hold UNIT PROPERTY=VALUE...`: sets properties until the next reboot, waits for a line, and reverts the
//!   properties
//! - `journal DIR UNIT PROPERTY=VALUE...`: sets properties, with a journal in the folder DIR, and ends
//!   without reverting them
//! - `undo DIR`: undoes the journal in the folder DIR
//! - `scope NAME SLICE PID...`: starts a scope, waits for a line, and stops the scope
//! - `of PATH`: shows the owner of a control group
//!
//! Values have the format of systemd's files. Lines of several devices are separated by commas:
//! `IOReadBandwidthMax='/dev/sda 1000000,/dev/sdb 2000000'`.

use std::error::Error;
use std::io::{self, BufRead};
use std::path::Path;

use commonhold_live::systemd::{Instance, Manager, Property, PropertyChange, Scope, Value, unit_of};
use commonhold_live::undo::journal::{Entry, Journal};
use commonhold_live::undo::undo;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let is_user = args.first().is_some_and(|arg| arg == "--user");
    if is_user {
        args.remove(0);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let instance = if is_user { Instance::user() } else { Instance::system() };
    if !instance.is_there() {
        println!("{} has no systemd", instance.run().display());
    }
    let mut manager = Manager::new(instance);
    match args.as_slice() {
        ["of", path] => println!("{:?}", unit_of(Path::new(path))),
        ["show", unit, properties @ ..] => {
            let mut named: Vec<Property> =
                properties.iter().map(|name| property(name)).collect::<Result<_, _>>()?;
            if named.is_empty() {
                named = Property::ALL.to_vec();
            }
            println!("{:?}", manager.state(unit)?);
            for (property, value) in manager.show(unit, &named)? {
                println!("{property}={}", value.text(property).replace('\n', ","));
            }
        }
        ["hold", unit, settings @ ..] => {
            let (settings, changes) = prepare(&mut manager, unit, settings)?;
            manager.set_runtime(unit, &settings)?;
            wait(&format!("{} are set", settings.len()));
            let reverted = manager.revert(unit, &changes)?;
            println!("{reverted:?}");
            if reverted.reload {
                println!("files reloaded: {}", manager.reload()?);
            }
        }
        ["journal", dir, unit, settings @ ..] => {
            let (mut journal, _) = Journal::create(Path::new(dir))?;
            let (settings, changes) = prepare(&mut manager, unit, settings)?;
            journal.record(&Entry::of_properties(manager.instance(), unit, &changes))?;
            manager.set_runtime(unit, &settings)?;
        }
        ["undo", dir] => {
            let (mut journal, entries) = Journal::create(Path::new(dir))?;
            println!("{:?}", undo(&entries, Path::new("/proc")));
            journal.clear()?;
        }
        ["scope", name, slice, pids @ ..] => {
            let pids: Vec<u32> = pids.iter().map(|pid| pid.parse()).collect::<Result<_, _>>()?;
            let description = "a trial by commonhold".to_owned();
            let (name, slice) = ((*name).to_owned(), (*slice).to_owned());
            manager.start_scope(&Scope {
                name: name.clone(),
                slice,
                description,
                pids,
                properties: vec![],
            })?;
            wait(&format!("{:?}", manager.state(&name)?));
            println!("stopped: {}", manager.stop(&name)?);
        }
        _ => return Err("see the head of crates/live/examples/systemd.rs for its commands".into()),
    }
    Ok(())
}

type Settings = Vec<(Property, Value)>;

/// Parses settings of the form `PROPERTY=VALUE`, and reads the unit's former values. Returns the settings,
/// and the changes with which to revert them.
fn prepare(
    manager: &mut Manager,
    unit: &str,
    settings: &[&str],
) -> Result<(Settings, Vec<PropertyChange>), Box<dyn Error>> {
    let settings: Settings = settings.iter().map(|text| setting(text)).collect::<Result<_, _>>()?;
    let properties: Vec<Property> = settings.iter().map(|(property, _)| *property).collect();
    let former = manager.former(unit, &properties)?;
    let given = |property: Property| {
        settings.iter().filter(|(set, _)| *set == property).map(|(_, value)| value.clone()).collect()
    };
    let changes =
        former.into_iter().map(|former| PropertyChange { given: given(former.property), former }).collect();
    Ok((settings, changes))
}

fn property(name: &str) -> Result<Property, Box<dyn Error>> {
    Property::named(name)
        .ok_or_else(|| format!("{name}: unknown property; known are {:?}", Property::ALL).into())
}

fn setting(text: &str) -> Result<(Property, Value), Box<dyn Error>> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text}: write PROPERTY=VALUE"))?;
    let property = property(name)?;
    let value = property
        .parse(&value.replace(',', "\n"))
        .ok_or_else(|| format!("{text}: not a value of this property"))?;
    Ok((property, value))
}

/// Prints the state reached, and waits for a line of input.
fn wait(state: &str) {
    println!("{state}; enter a line, or end the input, to continue");
    let _ = io::stdin().lock().read_line(&mut String::new());
}
