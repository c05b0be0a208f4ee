//! Compiles the scheduler natively, for the simulator; with the feature `kernel` also for the kernel.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

#[path = "../../scripts/bpf.rs"]
mod bpf;

use bpf::{fail, out};

/// The description of the tables that C takes from the header `tables.h`.
const TABLES: &str = "src/tables/mod.rs";
/// The types that C takes from it, and their names there. The values of an enum are named after it: `DISPATCH_RECALL_NOW`.
const NAMES: [(&str, &str); 28] = [
    ("Account", "dispatch_account"),
    ("By", "dispatch_by"),
    ("Cause", "dispatch_wait"),
    ("Cpu", "dispatch_cpu"),
    ("Deadlines", "dispatch_deadlines"),
    // Its values are used much, and are names enough: DISPATCH_STRIDE.
    ("Discipline", "dispatch"),
    ("Facts", "dispatch_facts"),
    ("Had", "dispatch_had"),
    ("Joined", "dispatch_joined"),
    ("Match", "dispatch_match"),
    ("Memory", "dispatch_memory"),
    ("Order", "dispatch_order"),
    ("Own", "dispatch_task"),
    ("Owned", "dispatch_owned"),
    ("Place", "dispatch_place"),
    ("Put", "dispatch_put"),
    ("Recall", "dispatch_recall"),
    ("Rescue", "dispatch_rescue"),
    ("Rescues", "dispatch_rescues"),
    ("Rules", "dispatch_rules"),
    ("Seated", "dispatch_seated"),
    ("Setting", "dispatch_setting"),
    ("Stretch", "dispatch_stretch"),
    ("Test", "dispatch_test"),
    ("Texts", "dispatch_texts"),
    ("Turned", "dispatch_turned"),
    ("Unit", "dispatch_unit"),
    ("WAITS_BLOCK", "WAITS_BLOCK"),
];
/// Those of the native build alone: the kernel has a `struct task_struct` of its own.
const NATIVE_NAMES: [(&str, &str); 4] = [
    ("Case", "dispatch_case"),
    ("Entity", "sched_ext_entity"),
    ("Task", "task_struct"),
    ("World", "dispatch_world"),
];
/// Those of the kernel's build alone.
const KERNEL_NAMES: [(&str, &str); 1] = [("EndTable", "dispatch_end")];
/// What libbpf needs; every machine has the C library.
const LIBRARIES: [&str; 2] = ["libelf.a", "libz.a"];

fn main() {
    for file in [
        "accounts.h",
        "choice.h",
        "discipline",
        "dispatch.bpf.c",
        "gates.h",
        "intf.h",
        "kernel.h",
        "matches.h",
        "rescue.h",
        "seats.h",
        "tree.h",
        "waking.h",
        "world.h",
        "native",
        "bpf",
        "tables",
    ] {
        println!("cargo::rerun-if-changed=src/{file}");
    }
    for_the_simulator();
    if env::var_os("CARGO_FEATURE_KERNEL").is_some() {
        // `in_kernel.rs` includes it from the output folder.
        bpf::compile("src/dispatch.bpf.c", &[header("bpf", &KERNEL_NAMES)]);
        if let Err(why) = link_libelf_in() {
            println!(
                "cargo::warning=the program will need the libraries libelf and zlib where it runs: {why}"
            );
        }
    }
}

/// Writes `tables.h` into a folder of its own, which is returned: with what both builds share, and what one has alone.
fn header(build: &str, alone: &[(&str, &str)]) -> PathBuf {
    let names = || NAMES.iter().chain(alone).map(|(name, in_c)| ((*name).to_owned(), (*in_c).to_owned()));
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        no_includes: true,
        include_guard: Some("DISPATCH_TABLES_H".to_owned()),
        documentation_style: cbindgen::DocumentationStyle::C,
        defines: [("feature = kernel".to_owned(), "__bpf__".to_owned())].into(),
        export: cbindgen::ExportConfig {
            // Without this, cbindgen omits all types, since the header has no functions that use them.
            include: names().map(|(name, _)| name).collect(),
            rename: names().collect(),
            prefix: Some("DISPATCH_".to_owned()),
            renaming_overrides_prefixing: true,
            ..cbindgen::ExportConfig::default()
        },
        enumeration: cbindgen::EnumConfig {
            rename_variants: cbindgen::RenameRule::QualifiedScreamingSnakeCase,
            // A last value, whose number is how many there are: `DISPATCH_RECALL_SENTINEL`.
            add_sentinel: true,
            ..cbindgen::EnumConfig::default()
        },
        ..cbindgen::Config::default()
    };
    let tables = cbindgen::Builder::new().with_config(config).with_src(TABLES).generate();
    let folder = out().join(build);
    match tables {
        Ok(tables) => tables.write_to_file(folder.join("tables.h")),
        Err(error) => fail(&format!("no header can be made of {TABLES}: {error}")),
    };
    folder
}

fn for_the_simulator() {
    cc::Build::new()
        .include(header("native", &NATIVE_NAMES))
        .file("src/native/dispatch.c")
        .file("src/native/matches.c")
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .flag("-Wno-unused-parameter")
        // The one thread-local variable is that of a program, and read at every step: no call is needed to find it.
        .flag("-ftls-model=initial-exec")
        .warnings_into_errors(true)
        .compile("commonhold_dispatch");
}

/// Has libelf and zlib linked into the program, so that it runs where they are not installed. libbpf-sys asks for whatever
/// the linker finds first: that is what stands in a folder of its own, with nothing but the static ones.
fn link_libelf_in() -> Result<(), String> {
    let folder = out().join("static");
    let compiler = cc::Build::new().try_get_compiler().map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for library in LIBRARIES {
        let asked = compiler.to_command().arg(format!("-print-file-name={library}")).output();
        let answer = asked.map_err(|error| error.to_string())?.stdout;
        // A name that is not found comes back as it was.
        let path = PathBuf::from(String::from_utf8_lossy(&answer).trim());
        found.push(path.is_absolute().then_some(path).ok_or(format!("there is no {library}"))?);
    }
    if !link_alone(&compiler, &found, &folder.with_file_name("alone")) {
        return Err(format!("{} needs more than {}", LIBRARIES[0], LIBRARIES[1]));
    }
    fill(&folder, &found).map_err(|error| format!("{}: {error}", folder.display()))?;
    println!("cargo::rustc-link-search=native={}", folder.display());
    Ok(())
}

/// Whether the libraries need nothing but each other and the C library: some are built to need libzstd.
fn link_alone(compiler: &cc::Tool, libraries: &[PathBuf], to: &Path) -> bool {
    let program = to.with_extension("c");
    fs::write(&program, "int main(void) { return 0; }\n").is_ok()
        && compiler
            .to_command()
            .arg(&program)
            .arg("-Wl,--whole-archive")
            .args(libraries)
            .args(["-Wl,--no-whole-archive", "-o"])
            .arg(to)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
}

fn fill(folder: &Path, libraries: &[PathBuf]) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    for library in libraries {
        symlink(library, folder.join(library.file_name().unwrap_or_default()))?;
    }
    Ok(())
}
