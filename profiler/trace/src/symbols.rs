//! Names of kernel functions and variables (/proc/kallsyms).

use std::io;

/// A call site in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The function.
    pub function: String,
    /// How the program entered the kernel: by `rename(2)`, or by a `page fault`.
    pub call: Option<String>,
}

/// The kernel's functions and variables, each sorted by address.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    code: Vec<(u64, String)>,
    data: Vec<(u64, String)>,
}

/// Prefixes of functions that implement locks, waiting and tracing: the call site is their caller.
const PLUMBING: [&str; 35] = [
    "bpf_",
    "__bpf",
    "trace_",
    "__traceiter",
    "mutex_",
    "__mutex",
    "ww_mutex",
    "rwsem_",
    "down_",
    "__down",
    "down",
    "percpu_",
    "__percpu",
    "queued_",
    "native_queued",
    "__pv_queued",
    "pv_",
    "_raw_",
    "__raw_",
    "rt_mutex",
    "__rt_mutex",
    "rtlock",
    "osq_",
    "schedule",
    "__schedule",
    "io_schedule",
    "preempt_schedule",
    "__cond_resched",
    "wait_for_",
    "__wait_for",
    "do_wait_for",
    "bit_wait",
    "__wait_on_bit",
    "out_of_line_wait",
    "lock_mm_and_find_vma",
];
/// Exceptions: functions that have such a prefix, but are no part of a lock.
const NO_PLUMBING: [&str; 1] = ["down_trylock"];

impl Symbols {
    /// Reads /proc/kallsyms. Without the privilege to see addresses, all addresses there are 0, which is an
    /// error.
    pub(crate) fn read() -> io::Result<Symbols> {
        let text = std::fs::read_to_string("/proc/kallsyms")?;
        let symbols = Symbols::of(&text);
        if symbols.code.last().is_none_or(|(address, _)| *address == 0) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it hides addresses"));
        }
        Ok(symbols)
    }

    fn of(text: &str) -> Symbols {
        let mut symbols = Symbols::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            match kind {
                "t" | "T" | "w" | "W" => symbols.code.push((address, name.to_owned())),
                "d" | "D" | "b" | "B" => symbols.data.push((address, name.to_owned())),
                _ => {}
            }
        }
        symbols.code.sort();
        symbols.data.sort();
        symbols
    }

    /// The function that a return address belongs to.
    fn function(&self, address: u64) -> Option<&str> {
        // A return address follows the call, so it may be the start of the next function.
        let at = self.code.partition_point(|(start, _)| *start < address).checked_sub(1)?;
        let name = self.code.get(at).map(|(_, name)| name.as_str())?;
        // A compiler's clone of a function (`.isra.0`) is named as the function.
        Some(name.split_once('.').map_or(name, |(name, _)| name))
    }

    /// The variable at an address, with an offset: `tasklist_lock+8`.
    pub(crate) fn variable(&self, address: u64) -> Option<String> {
        let at = self.data.partition_point(|(start, _)| *start <= address).checked_sub(1)?;
        let (start, name) = self.data.get(at)?;
        Some(if *start == address { name.clone() } else { format!("{name}+{}", address - start) })
    }

    /// The call site of a stack: its innermost function that is not part of a lock; and how the program
    /// entered the kernel.
    pub(crate) fn place(&self, stack: &[u64]) -> Option<Place> {
        let names: Vec<&str> = stack.iter().filter_map(|address| self.function(*address)).collect();
        let is_plumbing = |name: &str| {
            !NO_PLUMBING.contains(&name) && PLUMBING.iter().any(|prefix| name.starts_with(prefix))
        };
        let function = names.iter().find(|name| !is_plumbing(name)).or(names.last())?;
        let call = names.iter().rev().find_map(|name| {
            let call = ["__x64_sys_", "__arm64_sys_", "__se_sys_", "__do_sys_"]
                .iter()
                .find_map(|prefix| name.strip_prefix(prefix));
            match call {
                Some(call) => Some(format!("{call}(2)")),
                None if name.ends_with("exc_page_fault") => Some("page fault".to_owned()),
                None => None,
            }
        });
        Some(Place { function: (*function).to_owned(), call })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_the_function_that_takes_the_lock() {
        let text = "ffff1000 T __x64_sys_rename\nffff2000 t lock_rename.part.0\nffff3000 T down_write\n\
                    ffff4000 t rwsem_down_write_slowpath\nffff5000 D tasklist_lock\nffff6000 T asm_exc_page_fault\nbad\n";
        let symbols = Symbols::of(text);
        let place = symbols.place(&[0xffff_4010, 0xffff_3010, 0xffff_2010, 0xffff_1010]).unwrap();
        assert_eq!(place, Place { function: "lock_rename".into(), call: Some("rename(2)".into()) });
        assert_eq!(symbols.place(&[0xffff_4010, 0xffff_6004]).unwrap().call.as_deref(), Some("page fault"));
        assert_eq!(symbols.place(&[]), None);
        assert_eq!(symbols.variable(0xffff_5000).as_deref(), Some("tasklist_lock"));
        assert_eq!(symbols.variable(0xffff_5008).as_deref(), Some("tasklist_lock+8"));
        assert_eq!(symbols.variable(0x10), None);
    }
}
