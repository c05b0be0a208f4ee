//! Compiles the meter of locks, which is loaded into other programs: a shared object, left in the output
//! folder.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    for file in ["meter.c", "meter.h"] {
        println!("cargo::rerun-if-changed=src/meter/{file}");
    }
    let compiler = cc::Build::new()
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .pic(true)
        .debug(false)
        .get_compiler();
    let object = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default().join("meter.so");
    let mut command: Command = compiler.to_command();
    command.args(["-shared", "-fvisibility=hidden", "src/meter/meter.c", "-o"]).arg(&object);
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("the C compiler could not make {}: {status}; see above", object.display()),
        Err(error) => {
            panic!("the C compiler cannot be run: {error}; install one, or name it in the variable CC")
        }
    }
}
