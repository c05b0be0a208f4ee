//! Where goroutines of Go's wait.
//!
//! Problem: a goroutine that waits for a lock leaves its thread to another one. A thread without any sleeps at a futex of its own,
//! and its stack has nothing but Go's scheduler.
//!
//! Algorithm: Go keeps all its goroutines in a table, `runtime.allgptr`, each with the stack pointer and the place where it left
//! its thread. Such a stack stands still as well: it is copied like that of a thread that sleeps, and must be the same
//! afterwards. In every look as many goroutines count as there are threads that wait: the threads could have run these.
//!
//! Limits: of more than [`LOOKED_MAX`] goroutines, every so manieth is looked at. The layout is that of Go 1.5 to 1.26 on
//! 64-bit machines. What is not laid out like this is left out: a goroutine must point to itself, and its stack pointer into
//! its stack. Without a table of symbols (`-ldflags=-s`) there is no way to the goroutines.

use commonhold_trace::{ImageId, Images, Names, Registers, Stack};

use super::{Key, STACK_BYTES, StackId, Waits};
use crate::host::copy;

/// Goroutines that a look copies.
const LOOKED_MAX: u64 = 64;
/// More is no table.
const ALL_MAX: u64 = 1 << 28;
/// Looks that are kept of a run.
const KEPT_MAX: usize = 20_000;

/// Go's table, in a process's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables {
    length_at: u64,
    table_at: u64,
}

/// Goroutines that waited at a look.
pub(super) struct Parked {
    pub(super) pid: u32,
    /// How long a look counts, and how many threads of that process waited.
    pub(super) ns: u64,
    pub(super) threads: u64,
    /// Each stack stands for this many goroutines.
    pub(super) every: u64,
    pub(super) stacks: Vec<StackId>,
}

/// One that is on no thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Goroutine {
    stack_to: u64,
    stack: u64,
    at: u64,
}

/// `runtime.g` up to `sched.g`: `stack.lo`, `stack.hi`, two guards, two lists, `m`, `sched.sp`, `sched.pc`, `sched.g`.
const WORDS: usize = 10;

impl Goroutine {
    /// Of what is at `address`.
    fn parse(address: u64, words: [u64; WORDS]) -> Option<Goroutine> {
        let [stack_from, stack_to, _, _, _, _, thread, stack, at, itself] = words;
        let is_parked = thread == 0 && itself == address && (stack_from..stack_to).contains(&stack);
        is_parked.then_some(Goroutine { stack_to, stack, at })
    }
}

fn words<const N: usize>(pid: u32, at: u64) -> Option<[u64; N]> {
    let mut bytes = vec![0; N * 8];
    (copy::memory(pid, at, &mut bytes).ok()? == bytes.len()).then_some(())?;
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<u64>>().try_into().ok()
}

impl Tables {
    /// In a program of Go's that has symbols.
    pub(super) fn find(image: ImageId, bias: u64, images: &Images, names: &mut Names) -> Option<Tables> {
        let mut at = |name: &str| Some(names.address_of(images, image, name)?.at.wrapping_add(bias));
        Some(Tables { length_at: at("runtime.allglen")?, table_at: at("runtime.allgptr")? })
    }

    /// Where goroutines are, and how many each of these stands for. Another look has others, if they are many.
    fn some(self, pid: u32, look: u64) -> Option<(Vec<u64>, u64)> {
        let [all] = words(pid, self.length_at)?;
        let [table] = words(pid, self.table_at)?;
        if all > ALL_MAX {
            return None;
        }
        let every = all.div_ceil(LOOKED_MAX).max(1);
        let chosen = (look % every..all).step_by(usize::try_from(every).ok()?);
        let at = chosen.filter_map(|n| words(pid, table.checked_add(n * 8)?)).map(|[at]: [u64; 1]| at);
        Some((at.collect(), every))
    }
}

impl Waits {
    /// Copies the stacks of goroutines, where threads of Go's wait.
    pub(super) fn goroutines(&mut self) {
        let with_go = self.spaces.iter().filter_map(|(pid, known)| Some((*pid, known.go?)));
        for (pid, tables) in with_go.collect::<Vec<_>>() {
            let waits = |key: &Option<Key>| matches!(key, Some(Key::Futex { pid: its, .. }) if *its == pid);
            let threads = self.here.iter().filter(|there| waits(&there.key)).count() as u64;
            if threads == 0 || self.parked.len() >= KEPT_MAX {
                continue;
            }
            let Some((found, every)) = tables.some(pid, self.looks) else { continue };
            let stacks = found.into_iter().filter_map(|at| self.goroutine(pid, at)).collect();
            self.parked.push(Parked { pid, ns: self.passed_ns, threads, every, stacks });
        }
    }

    fn goroutine(&mut self, pid: u32, at: u64) -> Option<StackId> {
        let goroutine = Goroutine::parse(at, words(pid, at)?)?;
        let size = usize::try_from(goroutine.stack_to - goroutine.stack).ok()?.min(STACK_BYTES);
        let mut bytes = vec![0; size];
        let copied = copy::memory(pid, goroutine.stack, &mut bytes).ok()?;
        if Goroutine::parse(at, words(pid, at)?)? != goroutine {
            return None;
        }
        let registers = Registers { at: goroutine.at, stack: goroutine.stack, frame: None };
        let stack = Stack { from: goroutine.stack, bytes: bytes.get(..copied)? };
        let calls = self.calls(pid, stack, registers);
        self.known(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_laid_out_like_a_goroutine_is_one() {
        let words = [0x1000, 0x2000, 7, 7, 0, 0, 0, 0x1f00, 0x40_1000, 0xc000];
        let parked = Goroutine { stack_to: 0x2000, stack: 0x1f00, at: 0x40_1000 };
        assert_eq!(Goroutine::parse(0xc000, words), Some(parked));
        let with = |at: usize, word: u64| {
            let mut words = words;
            words[at] = word;
            Goroutine::parse(0xc000, words)
        };
        // On a thread; of another layout; with a stack pointer outside of its stack.
        assert_eq!((with(6, 0xc100), with(9, 0xc008), with(7, 0x2000), with(1, 0)), (None, None, None, None));
    }
}
