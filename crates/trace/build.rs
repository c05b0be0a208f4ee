//! With the feature `kernel`, compiles the program that looks at the kernel's locks and wake-ups.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Names another compiler for BPF than the first of [`CLANGS`] that is there.
const CLANG: &str = "BPF_CLANG";
/// In scripts/features and crates/dispatch/build.rs, too.
const CLANGS: [&str; 6] = ["clang-19", "clang-20", "clang-21", "clang-18", "clang-17", "clang"];

fn main() {
    println!("cargo::rerun-if-changed=src/bpf");
    if env::var_os("CARGO_FEATURE_KERNEL").is_some() {
        for_the_kernel();
    }
}

/// Leaves `trace.bpf.o` in the output folder, where `kernel.rs` includes it from.
fn for_the_kernel() {
    println!("cargo::rerun-if-env-changed={CLANG}");
    let clang = env::var_os(CLANG).unwrap_or_else(clang);
    // Set by the build of libbpf-sys, which is done by now.
    let headers = env::var_os("DEP_BPF_INCLUDE").map_or_else(
        || fail("libbpf-sys did not tell where its headers are: build it with its feature `vendored-libbpf`"),
        PathBuf::from,
    );
    let object = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default().join("trace.bpf.o");
    let compiled = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-std=gnu11", "-O2", "-g"])
        .args(["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-D__bpf__", "-I"])
        .arg(headers)
        .args(["-c", "src/bpf/trace.bpf.c", "-o"])
        .arg(object)
        .status();
    let clang = clang.display();
    match compiled {
        Ok(status) if status.success() => {}
        Ok(status) => {
            fail(&format!("{clang} could not compile src/bpf/trace.bpf.c for BPF ({status}); see above"))
        }
        Err(error) => fail(&format!(
            "{clang}, which compiles what looks at the kernel's locks, cannot be run ({error}): install {}, or name \
             another clang in the variable {CLANG}",
            CLANGS[0]
        )),
    }
}

/// The first that is there; if none is, the first.
fn clang() -> OsString {
    let runs = |clang: &&&str| {
        Command::new(clang).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    CLANGS.iter().find(runs).unwrap_or(&CLANGS[0]).into()
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    std::process::exit(1)
}
