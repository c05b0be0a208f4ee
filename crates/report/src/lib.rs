//! See Cargo.toml; filled in next.
