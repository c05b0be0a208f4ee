//! Where a program is: call stacks of its threads, from copies of their memory, and the names of addresses.
//!
//! [`Images`] are the files that a program is made of. [`Space`] says where these are in a process. [`Images::unwind`] makes a
//! call stack of a copied stack, and [`Names`] says in which function and line an address is.
//!
//! With the feature `kernel`, [`kernel::Watcher`] tells which of the kernel's locks a program waits for, and who wakes it.
//!
//! Reads files of programs. Reading a process's memory is its user's to do (`commonhold-live`).

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
