//! With the feature `kernel`, compiles the program that reports the scheduler's events.

#[path = "../../scripts/bpf.rs"]
mod bpf;

fn main() {
    println!("cargo::rerun-if-changed=src/bpf");
    if std::env::var_os("CARGO_FEATURE_KERNEL").is_some() {
        // `events.rs` includes it from the output folder.
        bpf::compile("src/bpf/record.bpf.c", &[]);
    }
}
