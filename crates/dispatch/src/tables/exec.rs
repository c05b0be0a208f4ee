//! What the decision about a process that executes a program is made of: see `matches.h`. Described here as the tables are.

// As in `mod.rs`.
#![allow(unreachable_pub)]

/// Entries of all lists together: see [`Match`].
pub const MATCHES_MAX: usize = 4096;
/// Bytes of a pattern, with its end.
pub const GLOB_MAX: usize = 64;
/// Bytes of the name of the file that runs, with its end. A longer one counts as none.
pub const FILE_NAME: usize = 64;
/// Bytes of [`Texts`]; a power of two.
pub const TEXTS: usize = 256;

/// What is tested of a process that executes a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) enum Test {
    /// None: the list ends, and a process that came so far stays.
    End,
    /// None: the list goes on at the entry `value`.
    List,
    /// Whether `glob` matches the name of the file that runs, or that by which it was executed.
    Command,
    /// The same, of the effective user `value`'s.
    CommandOfUser,
    /// The same, of those in the group `value`.
    CommandOfGroup,
    /// Whether it is the heir of a unit of this level, or of one below: that is its unit then.
    Inherited,
    /// Whether it is the effective user `value`'s.
    User,
    /// Whether it is in the group `value`.
    Group,
    /// Passed by all.
    Otherwise,
    /// What cannot be tested here: then it stays where its control group says.
    Unknown,
}

/// A test, and the unit of a process that passes it.
///
/// The rules of the contract come in lists of these, for a process that executes a program: the first test that it passes
/// says the unit, and the unit's own list goes on. The entry with a unit's number says where its list begins, that of
/// [`COMMON`](super::COMMON) where that of the outermost units does. The entries after the units' are the lists, in two halves, of which
/// one is in force while the other is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Match {
    /// [`Test`].
    pub(crate) test: u32,
    pub(crate) value: u32,
    /// Of a process that passes.
    pub(crate) unit: u32,
    pub(crate) unused: u32,
    /// `*` is any text, `?` any character; ends with 0.
    pub(crate) glob: [u8; GLOB_MAX],
}

/// The texts that patterns are compared with: the name of the file that runs, from the beginning; behind [`FILE_NAME`] bytes
/// the path that was executed, which is a script's where the file is its interpreter; then 0.
#[repr(C)]
pub(crate) struct Texts {
    pub(crate) bytes: [u8; TEXTS],
}

/// What is known of a process that executes a program.
#[repr(C)]
pub(crate) struct Facts {
    /// The effective one.
    pub(crate) user: u32,
    /// As [`Own`](super::Own)'s.
    pub(crate) heir: u32,
    /// Where in `texts` the base name of the path that was executed begins; at a 0 if it is not known.
    pub(crate) program: u32,
    pub(crate) unused: u32,
    pub(crate) texts: Texts,
}

/// Where a process belongs.
#[repr(C)]
pub(crate) struct Place {
    pub(crate) unit: u32,
    /// [`By`](super::By).
    pub(crate) by: u32,
}
