//! What the scheduler shares with its loader. Described here as the tables are, for the kernel's build alone.

/// Why the scheduler ended.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EndTable {
    pub(crate) code: i64,
    /// 0: it has not; written last.
    pub(crate) kind: i32,
    pub(crate) unused: u32,
    /// The kernel's reason; ends with 0.
    pub(crate) reason: [u8; 64],
    /// Details; ends with 0.
    pub(crate) message: [u8; 256],
}
