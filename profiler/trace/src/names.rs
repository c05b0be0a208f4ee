//! Resolves addresses to functions, source lines and variables.
//!
//! Debug information comes from the file itself or from `/usr/lib/debug/.build-id`, where distributions
//! install it. Without debug information, the symbol table is used. Without a symbol table, an address is
//! named by file and offset. JIT code is named by the program's *perf map*: lines of address, size and name.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::{Object, ObjectSymbol, ReadCache, SymbolKind};

use crate::image::{Address, ImageId, Images, Maker};

/// A called or inlined function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its name, or its file and offset.
    pub function: String,
    /// The source file, as given to the compiler, and the line.
    pub source: Option<(String, u32)>,
    /// The base name of its object file.
    pub module: String,
    /// What generated its code.
    pub maker: Maker,
    /// It has no name: `function` is file and offset.
    pub is_unnamed: bool,
}

impl Frame {
    /// `main.c:41`.
    pub fn place(&self) -> Option<String> {
        let (file, line) = self.source.as_ref()?;
        let base = file.rsplit('/').next().unwrap_or(file);
        Some(format!("{base}:{line}"))
    }
}

/// A cache of names.
#[derive(Default)]
pub struct Names {
    files: HashMap<ImageId, Named>,
    frames: HashMap<(Address, bool), Vec<Frame>>,
}

struct Named {
    /// Readers of debug information: of the separate file, if any, and of the file itself.
    loaders: Vec<Loader>,
    symbols: Symbols,
}

/// Symbols: address, size and name, by address.
#[derive(Default)]
struct Symbols {
    /// The path of separate debug information, if there is any.
    debug_file: Option<PathBuf>,
    functions: Vec<(u64, u64, String)>,
    variables: Vec<(u64, u64, String)>,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("frames", &self.frames).finish_non_exhaustive()
    }
}

impl Names {
    /// The functions at an address, the innermost inlined one first. A return address (`is_return`) belongs
    /// to the call before the address.
    pub fn frames(&mut self, images: &Images, address: Address, is_return: bool) -> &[Frame] {
        let key = (address, is_return);
        if !self.frames.contains_key(&key) {
            let frames = self.find(images, address, is_return);
            self.frames.insert(key, frames);
        }
        &self.frames[&key]
    }

    /// The start of the function at an address; `None` if it is unknown.
    pub fn function(&mut self, images: &Images, address: Address) -> Option<Address> {
        let (begins, _) = symbol_at(&self.file(images, address.image).symbols.functions, address.at)?;
        Some(Address { at: begins, ..address })
    }

    /// The variable at an address, with an offset: `table+8`.
    pub fn variable(&mut self, images: &Images, address: Address) -> Option<String> {
        let (start, name) = symbol_at(&self.file(images, address.image).symbols.variables, address.at)?;
        match address.at - start {
            0 => Some(name.to_owned()),
            offset => Some(format!("{name}+{offset}")),
        }
    }

    /// The address of a variable in a file.
    pub fn address_of(&mut self, images: &Images, image: ImageId, name: &str) -> Option<Address> {
        let variables = &self.file(images, image).symbols.variables;
        let (at, _, _) = variables.iter().find(|(_, _, variable)| variable == name)?;
        Some(Address { image, at: *at })
    }

    /// Reads the names of the JIT code at the `wanted` addresses, in ascending order, from a perf map.
    pub fn read_perf_map(&mut self, image: ImageId, text: &[u8], wanted: &[u64]) {
        let symbols = Symbols { functions: of_perf_map(text, wanted), ..Symbols::default() };
        self.files.insert(image, Named { loaders: Vec::new(), symbols });
    }

    fn find(&mut self, images: &Images, address: Address, is_return: bool) -> Vec<Frame> {
        let probe = address.at.saturating_sub(u64::from(is_return));
        let path = images.path(address.image);
        let module = path.rsplit('/').next().unwrap_or(path).to_owned();
        let maker = images.maker(address.image);
        let named = self.file(images, address.image);
        let symbol = symbol_at(&named.symbols.functions, probe).map(|(_, name)| name.to_owned());
        let mut frames = Vec::new();
        for loader in &named.loaders {
            let Ok(mut inlined) = loader.find_frames(probe) else { continue };
            while let Ok(Some(frame)) = inlined.next() {
                let name = frame.function.as_ref().and_then(|name| Some(plain(name.raw_name().ok()?)));
                // An inlined closure has no other name.
                let name = name.filter(|name| !name.starts_with("{closure"));
                let Some(function) = name.or_else(|| symbol.clone()) else { continue };
                let source = frame.location.and_then(|place| Some((place.file?.to_owned(), place.line?)));
                frames.push(Frame { function, source, module: module.clone(), maker, is_unnamed: false });
            }
            if !frames.is_empty() {
                return frames;
            }
        }
        let is_unnamed = symbol.is_none();
        let function = symbol.unwrap_or_else(|| match maker {
            // Addresses of JIT code differ from run to run, so they would not identify the function.
            Maker::Program => format!("JIT code of {module}"),
            Maker::Compiler | Maker::Go => format!("{module}+{probe:#x}"),
        });
        vec![Frame { function, source: None, module, maker, is_unnamed }]
    }

    fn file(&mut self, images: &Images, id: ImageId) -> &Named {
        self.files.entry(id).or_insert_with(|| {
            let Some(file) = images.file(id) else {
                return Named { loaders: Vec::new(), symbols: Symbols::default() };
            };
            // The process may have ended, and its files may be deleted: use the open file.
            let open_file = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let symbols = Symbols::of(file);
            let paths = symbols.debug_file.iter().chain([&open_file]);
            let loaders = paths.filter_map(|path| Loader::new(path).ok()).collect();
            Named { loaders, symbols }
        })
    }
}

/// Demangles a name.
fn plain(name: std::borrow::Cow<str>) -> String {
    addr2line::demangle_auto(name, None).into_owned()
}

/// The start and name of the symbol at an address. A symbol without a size extends to the next symbol.
fn symbol_at(symbols: &[(u64, u64, String)], at: u64) -> Option<(u64, &str)> {
    let (start, size, name) =
        symbols.get(symbols.partition_point(|(start, _, _)| *start <= at).checked_sub(1)?)?;
    (*size == 0 || at - start < *size).then_some((*start, name.as_str()))
}

impl Symbols {
    fn of(file: &File) -> Symbols {
        let mut symbols = Symbols::default();
        let Ok(copy) = file.try_clone() else { return symbols };
        let cache = ReadCache::new(copy);
        let Ok(object) = object::read::elf::ElfFile64::<object::LittleEndian, _>::parse(&cache) else {
            return symbols;
        };
        let debug_file = object.build_id().ok().flatten().and_then(debug_file_of);
        symbols.debug_file = debug_file.filter(|path| path.exists());
        for symbol in object.symbols().chain(object.dynamic_symbols()).filter(ObjectSymbol::is_definition) {
            let Ok(name) = symbol.name() else { continue };
            let entry = || (symbol.address(), symbol.size(), plain(name.into()));
            match symbol.kind() {
                SymbolKind::Text => symbols.functions.push(entry()),
                SymbolKind::Data if symbol.size() > 0 => symbols.variables.push(entry()),
                _ => {}
            }
        }
        for all in [&mut symbols.functions, &mut symbols.variables] {
            all.sort();
            // Of several symbols at one address, the largest comes last.
            all.reverse();
            all.dedup_by_key(|(start, _, _)| *start);
            all.reverse();
        }
        symbols
    }
}

/// The path at which distributions install the separate debug information of the file with this build ID.
fn debug_file_of(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let hex = rest.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    Some(Path::new("/usr/lib/debug/.build-id").join(format!("{first:02x}")).join(hex + ".debug"))
}

/// The entries of a perf map that contain one of the `wanted` addresses. A line is `7f00a010 40 name`, with
/// start and size in hexadecimal. JIT code moves, so later lines replace earlier ones that they overlap.
fn of_perf_map(text: &[u8], wanted: &[u64]) -> Vec<(u64, u64, String)> {
    let mut entries: Vec<(u64, u64, String)> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let mut hex = || {
            let digits = std::str::from_utf8(words.next()?).ok()?;
            u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
        };
        let (Some(start), Some(size)) = (hex(), hex().filter(|size| *size > 0)) else { continue };
        let Some(name) = words.next() else { continue };
        let end = start.saturating_add(size);
        let first = wanted.get(wanted.partition_point(|at| *at < start));
        if first.is_some_and(|at| *at < end) {
            entries.retain(|(from, size, _)| *from >= end || from.saturating_add(*size) <= start);
            let name = name.get(..NAME_MAX).unwrap_or(name).trim_ascii();
            entries.push((start, size, String::from_utf8_lossy(name).into_owned()));
        }
    }
    entries.sort();
    entries
}

/// Names in a perf map are cut at this length.
const NAME_MAX: usize = 512;

/// Prefixes of libraries that implement locks. The JVM is one: its caller is the program.
const LIBRARIES: [&str; 10] = [
    "libc.so",
    "libc-",
    "libpthread",
    "libstdc++",
    "libc++",
    "ld-linux",
    "ld-musl",
    "libgcc_s",
    "libgomp",
    "libjvm.so",
];
/// Prefixes of functions that implement locks.
const FUNCTIONS: [&str; 21] = [
    "std::",
    "core::",
    "alloc::",
    "<std::",
    "<core::",
    "<alloc::",
    "parking_lot",
    "<parking_lot",
    "lock_api",
    "<lock_api",
    "crossbeam_utils::sync",
    "pthread_",
    "__pthread",
    "___pthread",
    "__lll_",
    "__futex",
    "futex_",
    "__gthread",
    "syscall",
    "sem_",
    "__new_sem",
];
/// Source directories of standard libraries.
const SOURCES: [&str; 4] = ["/rustc/", "/library/std/", "/library/core/", "/include/c++/"];

/// Packages of Go's runtime.
const GO: [&str; 4] = ["runtime.", "sync.", "sync/", "internal/"];
/// In JIT code: packages of the Java library in both notations, and stubs of the JVM.
const JIT: [&str; 9] = [
    "java.util.concurrent.",
    "Ljava/util/concurrent/",
    "jdk.internal.",
    "Ljdk/internal/",
    "java.lang.Object.wait",
    "Ljava/lang/Object;::wait",
    "Interpreter",
    "StubRoutines",
    "RuntimeStub",
];
const STUBS: [&str; 2] = ["_Java", " Runtime1 stub"];

/// The name of a JIT function without return type and arguments: `void Queue.take(int)` becomes `Queue.take`.
fn method(function: &str) -> &str {
    let named = function.split_once('(').map_or(function, |(named, _)| named);
    named.trim_end().rsplit(' ').next().unwrap_or(named)
}

/// Whether a function belongs to a library that implements locks, not to the program.
pub fn is_plumbing(frame: &Frame) -> bool {
    let has = |names: &[&str], function: &str| names.iter().any(|name| function.starts_with(name));
    let is_of_runtime = match frame.maker {
        Maker::Compiler => false,
        Maker::Go => has(&GO, &frame.function),
        Maker::Program => {
            has(&JIT, method(&frame.function)) || STUBS.iter().any(|end| frame.function.ends_with(end))
        }
    };
    if is_of_runtime {
        return true;
    }
    LIBRARIES.iter().any(|name| frame.module.starts_with(name))
        || FUNCTIONS.iter().any(|name| frame.function.starts_with(name))
        || frame.source.as_ref().is_some_and(|(file, _)| SOURCES.iter().any(|part| file.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_implement_locks_are_not_the_program() {
        let frame = |function: &str, module: &str, file: Option<&str>| Frame {
            function: function.into(),
            source: file.map(|file| (file.into(), 41)),
            module: module.into(),
            maker: Maker::Compiler,
            is_unnamed: false,
        };
        assert!(is_plumbing(&frame("libc.so.6+0x8b4f", "libc.so.6", None)));
        assert!(is_plumbing(&frame("std::sync::mutex::Mutex<T>::lock", "solve", None)));
        assert!(is_plumbing(&frame("lock<()>", "solve", Some("/rustc/abc/library/std/src/sync/mutex.rs"))));
        assert!(!is_plumbing(&frame("insert", "solve", Some("src/main.c"))));
        assert!(!is_plumbing(&frame("libcrypto.so.3+0x8", "libcrypto.so.3", None)));
        assert_eq!(frame("insert", "solve", Some("src/main.c")).place().as_deref(), Some("main.c:41"));
        assert_eq!(frame("insert", "solve", None).place(), None);
    }

    #[test]
    fn libraries_of_go_and_of_java_are_not_the_program() {
        let of = |maker: Maker, function: &str| {
            let module = "program".to_owned();
            is_plumbing(&Frame { function: function.into(), source: None, module, maker, is_unnamed: false })
        };
        for function in ["runtime.futex.abi0", "sync.(*Mutex).Lock", "internal/sync.(*Mutex).lockSlow"] {
            assert!(of(Maker::Go, function) && !of(Maker::Compiler, function), "{function}");
        }
        assert!(!of(Maker::Go, "main.take") && !of(Maker::Go, "example.org/internal/sync.Take"));
        for function in [
            "void java.util.concurrent.locks.ReentrantLock.lock()",
            "java.lang.Object java.util.concurrent.LinkedBlockingQueue.take()",
            "Ljava/util/concurrent/locks/ReentrantLock;::lock",
            "_complete_monitor_locking_Java",
            "monitorenter_nofpu Runtime1 stub",
            "StubRoutines (1)",
            "Interpreter",
        ] {
            assert!(of(Maker::Program, function), "{function}");
        }
        // Return type and arguments are not the function.
        assert!(!of(
            Maker::Program,
            "java.util.concurrent.locks.Lock Main.take(java.util.concurrent.locks.Lock)"
        ));
        assert!(!of(Maker::Program, "LazyCompile:*take /srv/x.js:1:1"));
    }

    #[test]
    fn a_perf_map_is_read_for_the_wanted_addresses() {
        let text =
            b"1000 20 old name\nnoise\n10 zz x\n0x2000 0x10 void Main.take(int)\n3000 8 other\n1010 20 \
         new\xff\r\n\n5000 0 nothing\nffffffffffffff00 ffffffffffffffff last";
        let of = |wanted: &[u64]| of_perf_map(text, wanted);
        let named = |start, size, name: &str| (start, size, name.to_owned());
        assert_eq!(of(&[0x200f]), [named(0x2000, 0x10, "void Main.take(int)")]);
        // Code moved there: the later line wins where they overlap.
        assert_eq!(of(&[0x1008, 0x1018]), [named(0x1010, 0x20, "new\u{fffd}")]);
        assert_eq!(of(&[0x1008]), [named(0x1000, 0x20, "old name")]);
        assert_eq!(of(&[0x2010, 0x2fff, 0x3008, 0x5000]), []);
        assert_eq!(of(&[u64::MAX - 1]), [named(u64::MAX - 255, u64::MAX, "last")]);
        assert_eq!(of(&[]), []);
    }

    #[inline(never)]
    fn somewhere() -> u64 {
        std::hint::black_box(41) + 1
    }

    /// A return address at the start of a function belongs to a call at the end of the function before.
    #[test]
    fn a_return_address_belongs_to_the_call_before_it() {
        assert_eq!(somewhere(), 42);
        let (mut images, mut names) = (Images::default(), Names::default());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let space = crate::Space::of(&maps, "", &mut images);
        let begins = space.code(somewhere as fn() -> u64 as usize as u64).unwrap_or_else(|| panic!("{maps}"));
        let mut at = |is_return| -> bool {
            let frames = names.frames(&images, begins, is_return);
            frames.iter().any(|frame| frame.function.contains("somewhere"))
        };
        assert!(at(false));
        assert!(!at(true));
    }
}
