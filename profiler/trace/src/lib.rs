//! Unwinds call stacks from copies of threads' stacks, and resolves addresses to names.
//!
//! [`Images`] are the files of a program. [`Space`] has their mappings in a process. [`Images::unwind`]
//! unwinds a copied stack, and [`Names`] resolves an address to function and line.
//!
//! With the feature `kernel`, [`kernel::Watcher`] traces the kernel's locks that a program waits for, and its
//! wake-ups.
//!
//! This crate reads the files of programs. The memory of processes is read by its caller,
//! `commonhold-measure`.

mod image;
#[cfg(feature = "kernel")]
pub mod kernel;
mod names;
mod space;
#[cfg(feature = "kernel")]
mod symbols;
mod unwind;

pub use image::{Address, CALL_MAX, ImageId, Images, Maker};
pub use names::{Frame, Names, is_plumbing};
pub use space::{Shared, Space};
pub use unwind::{Calls, CodeBefore, Registers, Stack};
