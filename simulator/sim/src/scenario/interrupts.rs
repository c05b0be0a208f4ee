//! Reads `[interrupts]`: the CPU time that interrupts take from tasks.

use commonhold_contract::Diagnostic;
use commonhold_contract::document::Document;

use super::keys::INTERRUPTS;
use super::model::Interrupts;
use super::values::{Entry, number, number_32};

/// Reads the table for a machine of `cpus` CPUs. If their number is unknown (`None`), any CPU is accepted.
pub(crate) fn read(document: &mut Document, entry: &Entry, cpus: Option<usize>) -> Interrupts {
    let mut interrupts = Interrupts { part: 0, cpu: None };
    let Some(table) = document.table(entry) else { return interrupts };
    for entry in document.entries(&INTERRUPTS, table) {
        if entry.key.name == "part" {
            interrupts.part = number(document, &entry).unwrap_or(0);
            continue;
        }
        interrupts.cpu = number_32(document, &entry);
        if let (Some(cpu), Some(cpus)) = (interrupts.cpu, cpus)
            && cpu as usize >= cpus
        {
            let message = format!("there is no CPU {cpu}: the machine has {cpus}, from 0 on");
            let help = "name one of them, or remove `cpu`, so that interrupts go to all alike";
            let span = document.span(entry.value);
            document.report(Diagnostic::error("no-such-cpu", span, message).help(help));
        }
    }
    interrupts
}
