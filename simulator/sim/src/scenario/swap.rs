//! Checks that the memory of one process of each program fits into the machine: into the frames that the
//! kernel leaves, and swap.

use commonhold_contract::Diagnostic;

use super::check::{BYTE_UNITS, Subject, rounded};
use super::limits::{BYTES_MAX, FILE_FIFTHS, SECTOR};
use super::machine;

/// Reports programs of which even a single process would not fit. Whether several processes fit together is
/// only seen in a simulation.
pub(crate) fn check(subject: &Subject<'_>) -> Vec<Diagnostic> {
    let hardware = subject.hardware;
    // Without a disk nothing can be paged out; `check` reports that.
    if hardware.disks.is_empty() {
        return Vec::new();
    }
    let frames = hardware.machine.memory_bytes().saturating_sub(hardware.kernel.memory_bytes);
    let fifths = 5 - FILE_FIFTHS;
    let swap: u64 = hardware.disks.iter().map(|disk| machine::sectors(disk) / 5 * fifths * SECTOR).sum();
    let programs = subject.workload.programs.iter().zip(&subject.places.programs);
    let too_large = programs.filter(|(program, _)| {
        // A larger number stands for a size that could not be read.
        program.memory_bytes <= BYTES_MAX && program.memory_bytes > frames.saturating_add(swap)
    });
    too_large
        .map(|(program, place)| {
            let shown = |bytes: u64| rounded(u128::from(bytes), &BYTE_UNITS);
            let message =
                format!("a process of program `{}` has {}", program.name, shown(program.memory_bytes));
            let label = format!(
                "there are {} of memory beside the kernel's, and {} of swap",
                shown(frames),
                shown(swap)
            );
            let help =
                "lower its `memory`, or give the machine more, or a larger disk: a fifth of each is swap";
            Diagnostic::error("memory-full", place.name.clone(), message).label(label).help(help)
        })
        .collect()
}
