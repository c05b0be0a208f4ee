// Compiles a program for BPF. Build scripts of crates with a BPF program include this file.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The environment variable that names the BPF compiler. Without it, the first installed of [`CLANGS`] is
/// used.
const CLANG: &str = "BPF_CLANG";
/// The compilers to try, in this order. Keep in sync with scripts/features.
const CLANGS: [&str; 6] = ["clang-19", "clang-20", "clang-21", "clang-18", "clang-17", "clang"];

/// Compiles a source to an object of the same name in the build's output folder. `headers` are folders of
/// headers besides libbpf's. A failure ends the build.
pub(crate) fn compile(source: &str, headers: &[PathBuf]) {
    println!("cargo::rerun-if-env-changed={CLANG}");
    println!("cargo::rerun-if-changed=../../scripts/bpf.rs");
    let clang = env::var_os(CLANG).unwrap_or_else(clang);
    // Set by the build of libbpf-sys, which has already run.
    let libbpf = env::var_os("DEP_BPF_INCLUDE").map_or_else(
        || fail("libbpf-sys did not report where its headers are: build it with its feature `vendored-libbpf`"),
        PathBuf::from,
    );
    let object = Path::new(source).with_extension("o");
    let object = out().join(object.file_name().unwrap_or(object.as_os_str()));
    let compiled = Command::new(&clang)
        // -mcpu=v3: atomic additions that return a value, and 32-bit registers. -g: the types (BTF) that
        // loading needs.
        .args(["-target", "bpf", "-mcpu=v3", "-std=gnu11", "-O2", "-g"])
        .args(["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-D__bpf__"])
        .args(headers.iter().chain([&libbpf]).flat_map(|folder| [OsString::from("-I"), folder.into()]))
        .args(["-c", source, "-o"])
        .arg(object)
        .status();
    let clang = clang.display();
    match compiled {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("{clang} could not compile {source} for BPF ({status}); see above")),
        Err(error) => fail(&format!(
            "{clang}, which compiles {source} for the kernel, cannot be run ({error}): install {}, or name another clang \
             in the variable {CLANG}",
            CLANGS[0]
        )),
    }
}

/// The first of [`CLANGS`] that is installed. If no clang is installed, the first of the list, which the
/// error then names.
fn clang() -> OsString {
    let runs = |clang: &&&str| {
        Command::new(clang).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    CLANGS.iter().find(runs).unwrap_or(&CLANGS[0]).into()
}

/// The build's output folder.
pub(crate) fn out() -> PathBuf {
    env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default()
}

/// Ends the build with an error.
pub(crate) fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    std::process::exit(1)
}
