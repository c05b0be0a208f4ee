//! The tables from which `matches.h` chooses the unit of a process that executes a program. As for `mod.rs`,
//! `build.rs` generates their C definitions.

// cbindgen leaves constants that are not `pub` out of the header.
#![allow(unreachable_pub)]

/// The maximum number of entries of all lists together: see [`Match`].
pub const MATCHES_MAX: usize = 4096;
/// Bytes of a pattern, including its terminating 0.
pub const GLOB_MAX: usize = 64;
/// Bytes of the executable's name, including its terminating 0. A longer name is treated as unknown.
pub const FILE_NAME: usize = 64;
/// Bytes of [`Texts`]; a power of two.
pub const TEXTS: usize = 256;

/// The test of an entry, applied to a process that executes a program; or the entry's role in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) enum Test {
    /// No test: the list ends. The process stays in the unit found so far.
    End,
    /// No test: the list begins at the entry with index `value`.
    List,
    /// Whether `glob` matches the executable's name, or the name under which it was executed.
    Command,
    /// As `Command`, and the effective user is `value`.
    CommandOfUser,
    /// As `Command`, and the process is in group `value`.
    CommandOfGroup,
    /// Whether the process inherits a unit that is one of this list's units, or lies within one. That one
    /// becomes its unit.
    Inherited,
    /// Whether the effective user is `value`.
    User,
    /// Whether the process is in group `value`.
    Group,
    /// Whether the effective user's number is from `value` to `last`.
    Users,
    /// Passed by every process.
    Otherwise,
    /// A test that cannot be made at exec: the process stays in the unit of its control group.
    Unknown,
}

/// An entry of the table of rules: a test, and the unit of a process that passes it.
///
/// The contract's rules form a list of entries for each unit that has sub-units. The first test that a
/// process passes determines its unit, and the search continues with that unit's list. The entry whose index
/// is a unit's number refers to the start of that unit's list; the entry of [`COMMON`](super::COMMON) refers
/// to the list for the outermost units. After the entries for all units, the table has two halves. One half
/// has the lists in force while the other half is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Match {
    /// [`Test`].
    pub(crate) test: u32,
    pub(crate) value: u32,
    /// The unit of a process that passes the test.
    pub(crate) unit: u32,
    pub(crate) last: u32,
    /// The pattern: `*` matches any text, `?` any character; ends with 0.
    pub(crate) glob: [u8; GLOB_MAX],
}

/// The texts that patterns are compared with. At offset 0: the executable's name. At offset [`FILE_NAME`]:
/// the executed path, which for a script is the script's, not its interpreter's. Each ends with 0.
#[repr(C)]
pub(crate) struct Texts {
    pub(crate) bytes: [u8; TEXTS],
}

/// The properties of a process that executes a program.
#[repr(C)]
pub(crate) struct Facts {
    /// The effective user.
    pub(crate) user: u32,
    /// The unit that it inherits: see [`Own::heir`](super::Own).
    pub(crate) heir: u32,
    /// The offset in `texts` of the executed path's base name; the offset of a 0 if the path is not known.
    pub(crate) program: u32,
    pub(crate) unused: u32,
    pub(crate) texts: Texts,
}

/// The decision: a process's unit.
#[repr(C)]
pub(crate) struct Place {
    pub(crate) unit: u32,
    /// [`By`](super::By): what determined the unit.
    pub(crate) by: u32,
}
