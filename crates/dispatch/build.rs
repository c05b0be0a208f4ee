//! Compiles the scheduler natively, for the simulator; with the feature `kernel` also for the kernel.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Compiles for BPF; the variable names another one.
const CLANG: (&str, &str) = ("BPF_CLANG", "clang-19");

fn main() {
    for file in ["dispatch.bpf.c", "intf.h", "kernel.h", "world.h", "native", "bpf"] {
        println!("cargo::rerun-if-changed=src/{file}");
    }
    for_the_simulator();
    if env::var_os("CARGO_FEATURE_KERNEL").is_some() {
        for_the_kernel();
    }
}

fn for_the_simulator() {
    cc::Build::new()
        .file("src/native/dispatch.c")
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .flag("-Wno-unused-parameter")
        .warnings_into_errors(true)
        .compile("commonhold_dispatch");
}

/// Leaves `dispatch.bpf.o` in the output folder, where `in_kernel.rs` includes it from.
fn for_the_kernel() {
    println!("cargo::rerun-if-env-changed={}", CLANG.0);
    let clang = env::var_os(CLANG.0).unwrap_or_else(|| CLANG.1.into());
    // Set by the build of libbpf-sys, which is done by now.
    let headers = env::var_os("DEP_BPF_INCLUDE").map_or_else(
        || fail("libbpf-sys did not tell where its headers are: build it with its feature `vendored-libbpf`"),
        PathBuf::from,
    );
    let object = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default().join("dispatch.bpf.o");
    let compiled = Command::new(&clang)
        // -mcpu=v3: atomic additions that return a value, and 32-bit registers. -g: the types (BTF) that loading needs.
        .args(["-target", "bpf", "-mcpu=v3", "-std=gnu11", "-O2", "-g"])
        .args(["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-D__bpf__", "-I"])
        .arg(headers)
        .args(["-c", "src/dispatch.bpf.c", "-o"])
        .arg(object)
        .status();
    let clang = clang.display();
    match compiled {
        Ok(status) if status.success() => {}
        Ok(status) => {
            fail(&format!("{clang} could not compile src/dispatch.bpf.c for BPF ({status}); see above"))
        }
        Err(error) => fail(&format!(
            "{clang}, which compiles the scheduler for the kernel, cannot be run ({error}): install {}, or name another \
             clang in the variable {}",
            CLANG.1, CLANG.0
        )),
    }
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    std::process::exit(1)
}
