//! Names for addresses in processes that may have ended: what was mapped where is kept, and the files are still there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};

/// Folders whose files are a compiler's or a library's: a line there tells less than the line that uses it.
const OTHERS: [&str; 3] = ["/usr/include/", "/usr/lib/", "/rustc/"];

/// Files are mapped from the beginning of a page of this size on, or of a larger one.
const PAGE: u64 = 4096;

/// What is mapped in one process: the first address of each file, and where its last mapping ends.
pub(crate) struct Maps(Vec<(u64, u64, PathBuf)>);

impl Maps {
    /// From lines of /proc/PID/maps that name files.
    pub(crate) fn parse(text: &str) -> Maps {
        let mut files: Vec<(u64, u64, PathBuf)> = Vec::new();
        for line in text.lines() {
            let Some((range, rest)) = line.split_once(' ') else { continue };
            let Some(path) = rest.find('/').map(|at| PathBuf::from(&rest[at..])) else { continue };
            let Some((from, to)) = range.split_once('-') else { continue };
            let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else {
                continue;
            };
            match files.last_mut() {
                Some(last) if last.2 == path => last.1 = to,
                _ => files.push((from, to, path)),
            }
        }
        Maps(files)
    }

    /// The file that an address is in, or right behind, with the address where it begins.
    fn find(&self, address: u64) -> Option<(u64, &Path)> {
        let before = self.0.iter().rfind(|(from, ..)| *from <= address)?;
        Some((before.0, &before.2))
    }
}

/// A file's names.
struct Names {
    loader: Option<Loader>,
    /// Functions and variables, by address: where each ends, and its name.
    symbols: BTreeMap<u64, (u64, String)>,
    /// What is to be taken from an address where the file is mapped from 0 on.
    first: u64,
    end: u64,
}

/// Finds names, and keeps what it read of files.
#[derive(Default)]
pub(crate) struct Namer {
    files: BTreeMap<PathBuf, Option<Names>>,
}

impl Namer {
    /// The place in the program to which a call returns: `push (queue.c:41)`, `push`, or `libqueue.so+0x41a`.
    pub(crate) fn place(&mut self, maps: &Maps, returns_to: u64) -> String {
        let Some((base, path)) = maps.find(returns_to) else { return format!("{returns_to:#x}") };
        let file = file_name(path);
        let Some(names) = self.names(path) else { return format!("{file}+{:#x}", returns_to - base) };
        // The call is the instruction before.
        let at = returns_to - 1 - base + names.first;
        let symbol = names.symbol(at).map(|(name, _)| name.to_owned());
        let (function, line) = names.loader.as_ref().map_or((None, None), |loader| line_of(loader, at));
        match (function.or(symbol), line) {
            (Some(name), Some(line)) => format!("{name} ({line})"),
            (Some(name), None) => name,
            (None, Some(line)) => line,
            (None, None) => format!("{file}+{:#x}", returns_to - base),
        }
    }

    /// The variable at an address; none where it is in no file, as what is on the heap.
    pub(crate) fn variable(&mut self, maps: &Maps, address: u64) -> Option<String> {
        let (base, path) = maps.find(address)?;
        let file = file_name(path);
        let names = self.names(path)?;
        let at = address - base + names.first;
        if at >= names.end {
            return None;
        }
        Some(match names.symbol(at) {
            Some((name, 0)) => name.to_owned(),
            Some((name, offset)) => format!("{name}+{offset:#x}"),
            None => format!("{file}+{:#x}", address - base),
        })
    }

    fn names(&mut self, path: &Path) -> Option<&Names> {
        self.files.entry(path.to_owned()).or_insert_with(|| Names::of(path)).as_ref()
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The innermost function and line of the program's own: what is inlined from a library is named by who uses it.
fn line_of(loader: &Loader, at: u64) -> (Option<String>, Option<String>) {
    let Ok(mut frames) = loader.find_frames(at) else { return (None, None) };
    let mut outer = None;
    while let Ok(Some(frame)) = frames.next() {
        let function = frame.function.and_then(|function| Some(function.demangle().ok()?.into_owned()));
        let location = frame.location.and_then(|location| Some((location.file?, location.line?)));
        if let Some((file, number)) =
            location.filter(|(file, _)| !OTHERS.iter().any(|other| file.starts_with(other)))
        {
            return (function, Some(format!("{}:{number}", file_name(Path::new(file)))));
        }
        outer = function.or(outer);
    }
    (outer, None)
}

impl Names {
    fn of(path: &Path) -> Option<Names> {
        let bytes = crate::host::read(path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let mut symbols = BTreeMap::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            let is_named = matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Data) && symbol.size() > 0;
            if let Some(name) = symbol.name().ok().filter(|name| is_named && !name.is_empty()) {
                let name = addr2line::demangle_auto(name.into(), None).into_owned();
                symbols.entry(symbol.address()).or_insert((symbol.address() + symbol.size(), name));
            }
        }
        let first = file.segments().map(|segment| segment.address() / PAGE * PAGE).min()?;
        let end = file.segments().map(|segment| segment.address() + segment.size()).max()?;
        Some(Names { loader: Loader::new(path).ok(), symbols, first, end })
    }

    fn symbol(&self, at: u64) -> Option<(&str, u64)> {
        let (from, (to, name)) = self.symbols.range(..=at).next_back()?;
        (at < *to).then_some((name.as_str(), at - from))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    static VARIABLE: [u64; 4] = [1, 2, 3, 4];

    #[test]
    fn this_test_finds_itself() {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let (maps, mut namer) = (Maps::parse(&text), Namer::default());
        let place = namer.place(&maps, this_test_finds_itself as fn() as usize as u64 + 1);
        assert!(place.contains("this_test_finds_itself") && place.contains("(symbols.rs:"), "{place}");
        let address = std::ptr::from_ref(std::hint::black_box(&VARIABLE[1])) as u64;
        let variable = namer.variable(&maps, address).unwrap();
        assert!(variable.contains("VARIABLE") && variable.ends_with("+0x8"), "{variable}");
        let heap = Box::new(5_u64);
        assert_eq!(namer.variable(&maps, std::ptr::from_ref(&*heap) as u64), None);
        assert_eq!(namer.place(&maps, 5), "0x5");
    }

    #[test]
    fn a_file_that_is_gone_is_named_all_the_same() {
        let maps =
            Maps::parse("1000-3000 r-xp 00000000 00:01 7   /no/such/file\n7000-8000 rw-p 0 00:00 0 \n");
        assert_eq!(Namer::default().place(&maps, 0x1234), "file+0x234");
        assert_eq!(Namer::default().variable(&maps, 0x1234), None);
    }
}
