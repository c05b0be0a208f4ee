//! With the feature `kernel`, compiles the program that looks at the kernel's locks and wake-ups.

#[path = "../../scripts/bpf.rs"]
mod bpf;

fn main() {
    println!("cargo::rerun-if-changed=src/bpf");
    if std::env::var_os("CARGO_FEATURE_KERNEL").is_some() {
        // `kernel.rs` includes it from the output folder.
        bpf::compile("src/bpf/trace.bpf.c", &[]);
    }
}
