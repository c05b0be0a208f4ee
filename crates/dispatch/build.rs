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

/// The definition of the tables, from which the C header `tables.h` is generated.
const TABLES: &str = "src/tables/mod.rs";
/// The types in the header, by their names in Rust and in C. An enum's name prefixes its values:
/// `DISPATCH_RECALL_NOW`.
const NAMES: [(&str, &str); 34] = [
    ("Account", "dispatch_account"),
    ("By", "dispatch_by"),
    ("Cause", "dispatch_wait"),
    ("Cpu", "dispatch_cpu"),
    ("Deadlines", "dispatch_deadlines"),
    // A short prefix for values that are used often: DISPATCH_STRIDE.
    ("Discipline", "dispatch"),
    ("Facts", "dispatch_facts"),
    ("Had", "dispatch_had"),
    ("History", "dispatch_history"),
    ("Holder", "dispatch_holder"),
    ("Interval", "dispatch_interval"),
    ("Joined", "dispatch_joined"),
    ("Match", "dispatch_match"),
    ("Memory", "dispatch_memory"),
    ("Occupancy", "dispatch_occupancy"),
    ("Order", "dispatch_order"),
    ("Own", "dispatch_task"),
    ("Owned", "dispatch_owned"),
    ("Pair", "dispatch_pair"),
    ("Pairs", "dispatch_pairs"),
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
/// The types of the native build only: the kernel has its own `struct task_struct`.
const NATIVE_NAMES: [(&str, &str); 4] = [
    ("Case", "dispatch_case"),
    ("Entity", "sched_ext_entity"),
    ("Task", "task_struct"),
    ("World", "dispatch_world"),
];
/// The types of the kernel's build only.
const KERNEL_NAMES: [(&str, &str); 1] = [("EndTable", "dispatch_end")];
/// The libraries that libbpf needs besides the C library.
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
        "waits.h",
        "waking.h",
        "world.h",
        "native",
        "bpf",
        "tables",
    ] {
        println!("cargo::rerun-if-changed=src/{file}");
    }
    compile_for_the_simulator();
    if env::var_os("CARGO_FEATURE_KERNEL").is_some() {
        // `in_kernel.rs` includes the compiled program from the output folder.
        bpf::compile("src/dispatch.bpf.c", &[header("bpf", &KERNEL_NAMES)]);
        if let Err(why) = link_libelf_statically() {
            println!(
                "cargo::warning=the program will need the libraries libelf and zlib where it runs: {why}"
            );
        }
    }
}

/// Writes the header `tables.h` for one build into a separate folder, and returns that folder. The header has
/// the types that both builds share and the `additional` ones of this build.
fn header(build: &str, additional: &[(&str, &str)]) -> PathBuf {
    let names =
        || NAMES.iter().chain(additional).map(|(name, in_c)| ((*name).to_owned(), (*in_c).to_owned()));
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
            // Adds a last value, which equals the number of values: `DISPATCH_RECALL_SENTINEL`.
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

fn compile_for_the_simulator() {
    cc::Build::new()
        .include(header("native", &NATIVE_NAMES))
        .file("src/native/dispatch.c")
        .file("src/native/matches.c")
        .file("src/native/waits.c")
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .flag("-Wno-unused-parameter")
        // The thread-local variable `world` is read at every step. In a program, unlike in a shared library,
        // this model finds it without a call.
        .flag("-ftls-model=initial-exec")
        .warnings_into_errors(true)
        .compile("commonhold_dispatch");
}

/// Links libelf and zlib statically, so that the program runs where they are not installed. libbpf-sys links
/// the variant that the linker finds first. So the linker is given a folder that has only the static
/// variants.
fn link_libelf_statically() -> Result<(), String> {
    let folder = out().join("static");
    let compiler = cc::Build::new().try_get_compiler().map_err(|error| error.to_string())?;
    let mut paths = Vec::new();
    for library in LIBRARIES {
        let output = compiler.to_command().arg(format!("-print-file-name={library}")).output();
        let answer = output.map_err(|error| error.to_string())?.stdout;
        // The compiler prints an absolute path, or the bare name of a library that it does not find.
        let path = PathBuf::from(String::from_utf8_lossy(&answer).trim());
        paths.push(path.is_absolute().then_some(path).ok_or(format!("there is no {library}"))?);
    }
    if !links_without_others(&compiler, &paths, &folder.with_file_name("alone")) {
        return Err(format!("{} needs more than {}", LIBRARIES[0], LIBRARIES[1]));
    }
    fill(&folder, &paths).map_err(|error| format!("{}: {error}", folder.display()))?;
    println!("cargo::rustc-link-search=native={}", folder.display());
    Ok(())
}

/// Whether the libraries need only each other and the C library: some builds of libelf also need libzstd.
/// Links an empty program with all of their contents to find out.
fn links_without_others(compiler: &cc::Tool, libraries: &[PathBuf], executable: &Path) -> bool {
    let program = executable.with_extension("c");
    fs::write(&program, "int main(void) { return 0; }\n").is_ok()
        && compiler
            .to_command()
            .arg(&program)
            .arg("-Wl,--whole-archive")
            .args(libraries)
            .args(["-Wl,--no-whole-archive", "-o"])
            .arg(executable)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
}

/// Makes the folder anew, with links to the libraries.
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
