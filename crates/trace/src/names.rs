//! The names of addresses: functions, files and lines, variables.
//!
//! Debug information is taken from the file itself, or from where distributions put it: `/usr/lib/debug/.build-id`. Without
//! any, the table of symbols has the functions, and without that, an address is its file and offset.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::{Object, ObjectSymbol, ReadCache, SymbolKind};

use crate::image::{Address, ImageId, Images};

/// A function that was called, or that is part of one that was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its name, or its file and offset.
    pub function: String,
    /// The source file, as the compiler was given it, and the line.
    pub source: Option<(String, u32)>,
    /// The base name of the file that it is in.
    pub module: String,
}

impl Frame {
    /// `main.c:41`.
    pub fn place(&self) -> Option<String> {
        let (file, line) = self.source.as_ref()?;
        let base = file.rsplit('/').next().unwrap_or(file);
        Some(format!("{base}:{line}"))
    }
}

/// Names that were found.
#[derive(Default)]
pub struct Names {
    files: HashMap<ImageId, Named>,
    frames: HashMap<(Address, bool), Vec<Frame>>,
}

struct Named {
    /// Debug information that is apart, if any, and that of the file itself.
    loaders: Vec<Loader>,
    symbols: Symbols,
}

/// What tables of symbols say: address, size and name, by address.
#[derive(Default)]
struct Symbols {
    /// Where debug information is apart.
    apart: Option<PathBuf>,
    functions: Vec<(u64, u64, String)>,
    variables: Vec<(u64, u64, String)>,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("frames", &self.frames).finish_non_exhaustive()
    }
}

impl Names {
    /// The functions at an address, those that were put into others first. An address behind a call is of that call.
    pub fn frames(&mut self, images: &Images, address: Address, is_behind_call: bool) -> &[Frame] {
        let key = (address, is_behind_call);
        if !self.frames.contains_key(&key) {
            let frames = self.find(images, address, is_behind_call);
            self.frames.insert(key, frames);
        }
        &self.frames[&key]
    }

    /// Where the function begins that the address is in; none if nothing tells.
    pub fn function(&mut self, images: &Images, address: Address) -> Option<Address> {
        let (begins, _) = found(&self.file(images, address.image).symbols.functions, address.at)?;
        Some(Address { at: begins, ..address })
    }

    /// The variable at an address, and how far into it that is.
    pub fn variable(&mut self, images: &Images, address: Address) -> Option<String> {
        let (start, name) = found(&self.file(images, address.image).symbols.variables, address.at)?;
        match address.at - start {
            0 => Some(name.to_owned()),
            into => Some(format!("{name}+{into}")),
        }
    }

    fn find(&mut self, images: &Images, address: Address, is_behind_call: bool) -> Vec<Frame> {
        let probe = address.at.saturating_sub(u64::from(is_behind_call));
        let path = images.path(address.image);
        let module = path.rsplit('/').next().unwrap_or(path).to_owned();
        let named = self.file(images, address.image);
        let symbol = found(&named.symbols.functions, probe).map(|(_, name)| name.to_owned());
        let mut frames = Vec::new();
        for loader in &named.loaders {
            let Ok(mut inlined) = loader.find_frames(probe) else { continue };
            while let Ok(Some(frame)) = inlined.next() {
                let name = frame.function.as_ref().and_then(|name| Some(plain(name.raw_name().ok()?)));
                // A closure that was put into another function has no name but that it is one.
                let name = name.filter(|name| !name.starts_with("{closure"));
                let Some(function) = name.or_else(|| symbol.clone()) else { continue };
                let source = frame.location.and_then(|it| Some((it.file?.to_owned(), it.line?)));
                frames.push(Frame { function, source, module: module.clone() });
            }
            if !frames.is_empty() {
                return frames;
            }
        }
        if let Some(function) = symbol {
            return vec![Frame { function, source: None, module }];
        }
        vec![Frame { function: format!("{module}+{probe:#x}"), source: None, module }]
    }

    fn file(&mut self, images: &Images, id: ImageId) -> &Named {
        self.files.entry(id).or_insert_with(|| {
            let Some(file) = images.file(id) else {
                return Named { loaders: Vec::new(), symbols: Symbols::default() };
            };
            // The process may be gone, and its files with it. What was opened is there.
            let kept = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let symbols = Symbols::of(file);
            let loaders =
                symbols.apart.iter().chain([&kept]).filter_map(|path| Loader::new(path).ok()).collect();
            Named { loaders, symbols }
        })
    }
}

/// A name as it was written.
fn plain(name: std::borrow::Cow<str>) -> String {
    addr2line::demangle_auto(name, None).into_owned()
}

/// What is at an address: where it begins, and its name. A symbol without a size reaches to the next.
fn found(symbols: &[(u64, u64, String)], at: u64) -> Option<(u64, &str)> {
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
        symbols.apart = object.build_id().ok().flatten().and_then(apart).filter(|path| path.exists());
        for symbol in object.symbols().chain(object.dynamic_symbols()).filter(ObjectSymbol::is_definition) {
            let Ok(name) = symbol.name() else { continue };
            let one = || (symbol.address(), symbol.size(), plain(name.into()));
            match symbol.kind() {
                SymbolKind::Text => symbols.functions.push(one()),
                SymbolKind::Data if symbol.size() > 0 => symbols.variables.push(one()),
                _ => {}
            }
        }
        for all in [&mut symbols.functions, &mut symbols.variables] {
            all.sort();
            // Of several names for one address, the last is that with the largest size.
            all.reverse();
            all.dedup_by_key(|(start, _, _)| *start);
            all.reverse();
        }
        symbols
    }
}

/// Where distributions put debug information.
fn apart(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let hex = rest.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    Some(Path::new("/usr/lib/debug/.build-id").join(format!("{first:02x}")).join(hex + ".debug"))
}

/// Libraries that locks are made of.
const LIBRARIES: [&str; 9] =
    ["libc.so", "libc-", "libpthread", "libstdc++", "libc++", "ld-linux", "ld-musl", "libgcc_s", "libgomp"];
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
/// Where compilers keep the sources of their libraries.
const SOURCES: [&str; 4] = ["/rustc/", "/library/std/", "/library/core/", "/include/c++/"];

/// Whether a function is of a library that locks are made of, and not of the program.
pub fn is_plumbing(frame: &Frame) -> bool {
    LIBRARIES.iter().any(|name| frame.module.starts_with(name))
        || FUNCTIONS.iter().any(|name| frame.function.starts_with(name))
        || frame.source.as_ref().is_some_and(|(file, _)| SOURCES.iter().any(|part| file.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_locks_are_made_of_is_not_the_program() {
        let frame = |function: &str, module: &str, file: Option<&str>| Frame {
            function: function.into(),
            source: file.map(|file| (file.into(), 41)),
            module: module.into(),
        };
        assert!(is_plumbing(&frame("libc.so.6+0x8b4f", "libc.so.6", None)));
        assert!(is_plumbing(&frame("std::sync::mutex::Mutex<T>::lock", "solve", None)));
        assert!(is_plumbing(&frame("lock<()>", "solve", Some("/rustc/abc/library/std/src/sync/mutex.rs"))));
        assert!(!is_plumbing(&frame("insert", "solve", Some("src/main.c"))));
        assert!(!is_plumbing(&frame("libcrypto.so.3+0x8", "libcrypto.so.3", None)));
        assert_eq!(frame("insert", "solve", Some("src/main.c")).place().as_deref(), Some("main.c:41"));
        assert_eq!(frame("insert", "solve", None).place(), None);
    }

    #[inline(never)]
    fn somewhere() -> u64 {
        std::hint::black_box(41) + 1
    }

    /// What returns to the very beginning of a function was called at the end of the one before.
    #[test]
    fn an_address_behind_a_call_is_of_that_call() {
        assert_eq!(somewhere(), 42);
        let (mut images, mut names) = (Images::default(), Names::default());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let space = crate::Space::of(&maps, "", &mut images);
        let begins = space.code(somewhere as fn() -> u64 as usize as u64).unwrap_or_else(|| panic!("{maps}"));
        let mut at = |is_behind_call| -> bool {
            let frames = names.frames(&images, begins, is_behind_call);
            frames.iter().any(|frame| frame.function.contains("somewhere"))
        };
        assert!(at(false));
        assert!(!at(true));
    }
}
