//! The table of the kernel's build alone: what the scheduler reports to its loader when it ends. `build.rs`
//! generates its C definition.

/// Why the scheduler ended.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EndTable {
    pub(crate) code: i64,
    /// The kernel's `scx_exit_kind`; 0: the scheduler has not ended. Written last.
    pub(crate) kind: i32,
    pub(crate) unused: u32,
    /// The kernel's reason; ends with 0.
    pub(crate) reason: [u8; 64],
    /// Details; ends with 0.
    pub(crate) message: [u8; 256],
}
