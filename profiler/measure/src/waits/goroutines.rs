//! Finds the places where goroutines wait.
//!
//! Problem: a goroutine that waits for a lock yields its thread to another goroutine. A thread without a
//! goroutine sleeps at its own futex, and its stack shows only Go's scheduler.
//!
//! Algorithm: Go keeps all goroutines in a table, `runtime.allgptr`, each with its saved stack pointer and
//! program counter. The stack of a parked goroutine does not change. The stack is copied like that of a
//! sleeping thread, and the copy is discarded if the goroutine has moved during the copy. A sample counts as
//! many goroutines as threads wait, since these threads could have run them.
//!
//! Limits: of more than [`SAMPLED_MAX`] goroutines, every n-th is sampled. The layout is that of Go 1.5 to
//! 1.26 on 64-bit machines; a goroutine is skipped unless it points to itself and its stack pointer lies in
//! its stack. Without a symbol table (`-ldflags=-s`) goroutines cannot be found.

use commonhold_trace::{ImageId, Images, Names, Registers, Stack};

use super::{Key, STACK_BYTES, StackId, Waits};
use crate::remote_memory;

/// The maximum number of goroutines per sample.
const SAMPLED_MAX: u64 = 64;
/// The maximum plausible length of the table: a larger number is no length.
const LENGTH_MAX: u64 = 1 << 28;
/// The maximum number of samples kept of a run.
const KEPT_MAX: usize = 20_000;

/// Addresses of Go's table and its length in a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables {
    length_at: u64,
    table_at: u64,
}

/// Parked goroutines of one sample.
pub(super) struct Parked {
    pub(super) pid: u32,
    /// The time that the sample counts for.
    pub(super) ns: u64,
    /// The number of threads of that process that waited.
    pub(super) threads: u64,
    /// The number of goroutines that each stack represents.
    pub(super) every: u64,
    pub(super) stacks: Vec<StackId>,
}

/// A goroutine that is on no thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Goroutine {
    /// The end of its stack.
    stack_to: u64,
    /// Its saved stack pointer.
    stack: u64,
    /// Its saved program counter.
    at: u64,
}

/// `runtime.g` up to `sched.g`: `stack.lo`, `stack.hi`, two guards, two lists, `m`, `sched.sp`, `sched.pc`,
/// `sched.g`.
const WORDS: usize = 10;

impl Goroutine {
    /// Parses the words at `address`; `None` if they are no parked goroutine.
    fn parse(address: u64, words: [u64; WORDS]) -> Option<Goroutine> {
        let [stack_from, stack_to, _, _, _, _, thread, stack, at, itself] = words;
        let is_parked = thread == 0 && itself == address && (stack_from..stack_to).contains(&stack);
        is_parked.then_some(Goroutine { stack_to, stack, at })
    }
}

/// Copies `N` words from the memory of a process.
fn words<const N: usize>(pid: u32, at: u64) -> Option<[u64; N]> {
    let mut bytes = vec![0; N * 8];
    (remote_memory::copy(pid, at, &mut bytes).ok()? == bytes.len()).then_some(())?;
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<u64>>().try_into().ok()
}

impl Tables {
    /// Finds the addresses by their symbols; `None` if the program has no symbols.
    pub(super) fn find(image: ImageId, bias: u64, images: &Images, names: &mut Names) -> Option<Tables> {
        let mut at = |name: &str| Some(names.address_of(images, image, name)?.at.wrapping_add(bias));
        Some(Tables { length_at: at("runtime.allglen")?, table_at: at("runtime.allgptr")? })
    }

    /// Addresses of every n-th goroutine, and n. Different samples begin at different goroutines.
    fn choose(self, pid: u32, sample: u64) -> Option<(Vec<u64>, u64)> {
        let [length] = words(pid, self.length_at)?;
        let [table] = words(pid, self.table_at)?;
        if length > LENGTH_MAX {
            return None;
        }
        let every = length.div_ceil(SAMPLED_MAX).max(1);
        let chosen = (sample % every..length).step_by(usize::try_from(every).ok()?);
        let addresses =
            chosen.filter_map(|n| words(pid, table.checked_add(n * 8)?)).map(|[address]: [u64; 1]| address);
        Some((addresses.collect(), every))
    }
}

impl Waits {
    /// Copies the stacks of goroutines in processes where Go threads wait.
    pub(super) fn sample_goroutines(&mut self) {
        let with_go = self.spaces.iter().filter_map(|(pid, known)| Some((*pid, known.go?)));
        for (pid, tables) in with_go.collect::<Vec<_>>() {
            let waits = |key: &Option<Key>| matches!(key, Some(Key::Futex { pid: of, .. }) if *of == pid);
            let threads = self.threads.iter().filter(|thread| waits(&thread.key)).count() as u64;
            if threads == 0 || self.parked.len() >= KEPT_MAX {
                continue;
            }
            let Some((addresses, every)) = tables.choose(pid, self.samples) else { continue };
            let stacks = addresses.into_iter().filter_map(|at| self.copy_goroutine(pid, at)).collect();
            self.parked.push(Parked { pid, ns: self.elapsed_ns, threads, every, stacks });
        }
    }

    /// The stack of the goroutine at an address; `None` if it is not parked, or moved during the copy.
    fn copy_goroutine(&mut self, pid: u32, at: u64) -> Option<StackId> {
        let goroutine = Goroutine::parse(at, words(pid, at)?)?;
        let size = usize::try_from(goroutine.stack_to - goroutine.stack).ok()?.min(STACK_BYTES);
        let mut bytes = vec![0; size];
        let copied = remote_memory::copy(pid, goroutine.stack, &mut bytes).ok()?;
        if Goroutine::parse(at, words(pid, at)?)? != goroutine {
            return None;
        }
        let registers = Registers { at: goroutine.at, stack: goroutine.stack, frame: None };
        let stack = Stack { from: goroutine.stack, bytes: bytes.get(..copied)? };
        let calls = self.calls(pid, stack, registers);
        self.intern(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_laid_out_like_a_goroutine_are_one() {
        let words = [0x1000, 0x2000, 7, 7, 0, 0, 0, 0x1f00, 0x40_1000, 0xc000];
        let parked = Goroutine { stack_to: 0x2000, stack: 0x1f00, at: 0x40_1000 };
        assert_eq!(Goroutine::parse(0xc000, words), Some(parked));
        let with = |at: usize, word: u64| {
            let mut words = words;
            words[at] = word;
            Goroutine::parse(0xc000, words)
        };
        // On a thread; another layout; stack pointer outside of the stack.
        assert_eq!((with(6, 0xc100), with(9, 0xc008), with(7, 0x2000), with(1, 0)), (None, None, None, None));
    }
}
