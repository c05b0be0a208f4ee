//! Unwinds a copy of a thread's stack.
//!
//! Problem: the kernel shows only the instruction pointer and the stack pointer of a sleeping thread. The
//! frame pointer may be needed to find the caller's frame.
//!
//! Algorithm: exception tables (`.eh_frame`) give the end of a frame relative to the stack or frame pointer,
//! and where the caller's frame pointer was saved. If the frame pointer is needed but unknown, the stack is
//! scanned for a return address that follows a direct call of the function. If there is none, since the
//! function was called through a pointer, the first return address that follows any call is taken.
//!
//! Code without a table, such as JIT code, is unwound by the scan too. Go's functions have no tables but keep
//! frame pointers, which are followed from the first caller that the scan finds.
//!
//! Limits: x86-64. In code without a table the scan may miss callers or find stale ones.

use crate::image::{Address, Base, CALL_MAX, Images, Maker, Row};
use crate::space::Space;

/// Registers of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer.
    pub at: u64,
    /// Stack pointer.
    pub stack: u64,
    /// Frame pointer, if known.
    pub frame: Option<u64>,
}

/// A copy of a thread's stack, from the stack pointer on.
#[derive(Debug, Clone, Copy)]
pub struct Stack<'a> {
    /// Address of the first byte.
    pub from: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Stack<'_> {
    /// The word at an address; `None` if the copy does not have it.
    fn word(&self, at: u64) -> Option<u64> {
        let from = usize::try_from(at.checked_sub(self.from)?).ok()?;
        let bytes = self.bytes.get(from..from.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

const DEPTH_MAX: usize = 64;
/// The maximum number of words that are scanned for a return address.
const SEARCH_MAX: u64 = 1024;

/// The calls on a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Calls {
    /// The instruction pointer, then the return addresses, innermost first.
    pub at: Vec<Address>,
    /// Whether unwinding reached the thread's first function.
    pub is_whole: bool,
}

/// Reads the code before an address of a process, for code that is in no file.
pub type CodeBefore<'a> = &'a dyn Fn(u64) -> Option<[u8; CALL_MAX]>;

impl Images {
    /// Unwinds a stack, as deep as possible, up to 64 calls.
    pub fn unwind(&mut self, space: &Space, stack: Stack, registers: Registers, jit: CodeBefore) -> Calls {
        let (mut calls, mut is_whole) = (Vec::new(), false);
        let mut now = registers;
        while let (Some(address), true) = (space.code(now.at), calls.len() < DEPTH_MAX) {
            calls.push(address);
            if !cfg!(target_arch = "x86_64") {
                break;
            }
            // If a function ends with a call, the return address is in the next function: look up the byte
            // before it.
            let one_back = u64::from(calls.len() > 1);
            let row = self.row(Address { at: address.at.wrapping_sub(one_back), ..address });
            is_whole = row.is_some_and(|row| row.is_first);
            if is_whole {
                break;
            }
            let is_go = self.maker(address.image) == Maker::Go;
            let Some(caller) = self.caller(space, stack, now, row, is_go, jit) else { break };
            if caller.stack <= now.stack {
                break;
            }
            now = caller;
        }
        Calls { at: calls, is_whole }
    }

    /// The registers of the caller; `None` if it is not found.
    fn caller(
        &self,
        space: &Space,
        stack: Stack,
        now: Registers,
        row: Option<Row>,
        is_go: bool,
        jit: CodeBefore,
    ) -> Option<Registers> {
        let Some(row) = row else {
            // Without a table: follow Go's frame pointer if a return address lies above it, else scan for a
            // return address.
            let by_frame_pointer = now.frame.filter(|frame| is_go && *frame >= now.stack).and_then(|frame| {
                let at = frame.checked_add(8)?;
                self.call(space, stack.word(at)?, jit).map(|_| at)
            });
            let at = by_frame_pointer.or_else(|| self.search(space, stack, now.stack, None, jit))?;
            // A function without a frame has not saved the frame pointer: the register still has the
            // caller's.
            let saved =
                if at > now.stack { stack.word(at - 8).filter(|frame| *frame > at) } else { now.frame };
            return Some(Registers { at: stack.word(at)?, stack: at + 8, frame: saved.filter(|_| is_go) });
        };
        let end = match (row.base, now.frame) {
            (Base::Stack, _) => now.stack.checked_add_signed(row.offset)?,
            (Base::Frame, Some(frame)) => frame.checked_add_signed(row.offset)?,
            (Base::Frame, None) => {
                self.search(space, stack, now.stack, Some(row.begins), jit)?.checked_add(8)?
            }
        };
        let frame = match row.pointer_at {
            Some(offset) => stack.word(end.checked_add_signed(offset)?),
            None => now.frame,
        };
        Some(Registers { at: stack.word(end.checked_sub(8)?)?, stack: end, frame })
    }

    /// The call before the address in a word of the stack; `None` if the word is no return address.
    fn call(&self, space: &Space, word: u64, jit: CodeBefore) -> Option<Call> {
        let address = space.code(word)?;
        let before = match self.maker(address.image) {
            Maker::Program => jit(word)?,
            Maker::Compiler | Maker::Go => self.before(address)?,
        };
        called(before, address.at)
    }

    /// Scans the stack for a return address, preferring one that follows a direct call of `function`. Returns
    /// its position.
    fn search(
        &self,
        space: &Space,
        stack: Stack,
        from: u64,
        function: Option<u64>,
        jit: CodeBefore,
    ) -> Option<u64> {
        let mut first = None;
        for at in (0..SEARCH_MAX).map_while(|n| from.checked_add(n * 8)) {
            let Some(word) = stack.word(at) else { break };
            match self.call(space, word, jit) {
                Some(Call::Of(target)) if Some(target) == function => return Some(at),
                Some(_) if function.is_none() => return Some(at),
                Some(_) if first.is_none() => first = Some(at),
                _ => {}
            }
        }
        first
    }
}

/// A call in a program's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// A direct call of this address.
    Of(u64),
    /// An indirect call.
    Through,
}

/// The call instruction that these bytes end with, if any. `behind`: the address behind them.
fn called(before: [u8; CALL_MAX], behind: u64) -> Option<Call> {
    // Direct `call`: e8, with the distance of the target.
    if before[2] == 0xe8 {
        let distance = i32::from_le_bytes([before[3], before[4], before[5], before[6]]);
        return behind.checked_add_signed(i64::from(distance)).map(Call::Of);
    }
    // Indirect `call`: ff /2, with the length of its operand.
    let is_call = |length: usize| {
        let (code, form) = (before[CALL_MAX - length], before[CALL_MAX - length + 1]);
        let (mode, base) = (form >> 6, form & 7);
        let operand = match (mode, base) {
            (0, 5) | (2, 0..=3 | 5..) => 4,
            (0, 4) | (1, 0..=3 | 5..) => 1,
            (1, _) => 2,
            (2, _) => 5,
            _ => 0,
        };
        code == 0xff && (form >> 3) & 7 == 2 && length == 2 + operand
    };
    [2, 3, 4, 6, 7].into_iter().any(is_call).then_some(Call::Through)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_distinguished_from_other_code() {
        // call -16; call *%rax; call *0x8(%rbx); call *0x1000(%rip); and some that are no calls.
        assert_eq!(called([0x90, 0x90, 0xe8, 0xf0, 0xff, 0xff, 0xff], 0x1000), Some(Call::Of(0xff0)));
        assert_eq!(called([0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0], 0x1000), Some(Call::Through));
        assert_eq!(called([0x90, 0x90, 0x90, 0x90, 0xff, 0x53, 0x08], 0x1000), Some(Call::Through));
        assert_eq!(called([0x90, 0xff, 0x15, 0x00, 0x10, 0x00, 0x00], 0x1000), Some(Call::Through));
        assert_eq!(called([0x90; CALL_MAX], 0x1000), None);
        assert_eq!(called([0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xe0], 0x1000), None);
    }

    #[test]
    fn words_outside_of_the_copy_are_not_there() {
        let stack = Stack { from: 0x1000, bytes: &[1, 0, 0, 0, 0, 0, 0, 0, 2] };
        assert_eq!(
            (stack.word(0x1000), stack.word(0x1001), stack.word(0xff8)),
            (Some(1), Some(2 << 56), None)
        );
        assert_eq!(stack.word(0x1002), None);
        assert_eq!(stack.word(u64::MAX), None);
    }
}
