//! The memory mappings of a process.

use std::collections::HashMap;

use crate::image::{Address, ImageId, Images};

/// A mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    is_code: bool,
    is_shared: bool,
    device: (u32, u32),
    inode: u64,
    /// Empty for anonymous memory.
    path: String,
}

impl Mapping {
    /// Whether its file can be opened.
    fn has_file(&self) -> bool {
        self.path.starts_with('/') && !self.path.ends_with(DELETED)
    }

    /// Whether it has JIT code: executable, and in no file.
    fn is_jit(&self) -> bool {
        let is_in_memory =
            || ["[anon", "//anon", "/memfd:", "/dev/zero"].iter().any(|prefix| self.path.starts_with(prefix));
        self.is_code && (self.path.is_empty() || is_in_memory())
    }
}

/// The suffix of the path of a deleted file.
const DELETED: &str = " (deleted)";

/// A location in shared memory, which processes may have mapped at different addresses: file and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shared {
    /// Major and minor number of the file system's device. Anonymous shared memory has a device, too.
    pub device: (u32, u32),
    /// The file's inode number.
    pub inode: u64,
    /// The offset in the file.
    pub offset: u64,
}

impl Shared {
    /// The name of the location, such as `/dev/shm/pool+0x40`. `path`: the file's path, empty for anonymous
    /// memory: then `None`.
    pub fn name(&self, path: &str) -> Option<String> {
        (!path.is_empty()).then(|| format!("{path}+{:#x}", self.offset))
    }
}

/// A file that is mapped in a process.
#[derive(Debug, Clone, Copy)]
struct Placed {
    image: ImageId,
    /// Load bias: address in the process minus address in the file.
    bias: u64,
}

/// The address space of a process.
#[derive(Debug, Default)]
pub struct Space {
    /// Executable mappings of files, sorted by address: start, end and file.
    code: Vec<(u64, u64, Placed)>,
    /// The mapped files, each once.
    placed: Vec<Placed>,
    /// Shared mappings, sorted by address.
    shared: Vec<Mapping>,
    /// Mappings with JIT code, sorted by address: start and end.
    jit: Vec<(u64, u64)>,
    /// The image that stands for the process's JIT code.
    jit_image: Option<ImageId>,
}

impl Space {
    /// Parses the text of /proc/PID/maps. Files are read below `root`, the process's root directory, if they
    /// exist there.
    pub fn of(maps: &str, root: &str, images: &mut Images) -> Space {
        let (mut space, mut opened) = (Space::default(), HashMap::new());
        for mapping in maps.lines().filter_map(parse) {
            if mapping.is_shared {
                space.shared.push(mapping.clone());
            }
            if mapping.is_jit() {
                space.jit.push((mapping.start, mapping.end));
            }
            if !mapping.has_file() {
                continue;
            }
            let known = opened.get(&mapping.path).copied();
            let image = known.unwrap_or_else(|| images.open(&mapping.path, root));
            opened.entry(mapping.path.clone()).or_insert(image);
            let Some(image) = image else { continue };
            let Some(bias) = images.bias(image, mapping.start, mapping.offset) else { continue };
            let placed = Placed { image, bias };
            if !space.placed.iter().any(|known| (known.image, known.bias) == (image, bias)) {
                space.placed.push(placed);
            }
            if mapping.is_code {
                space.code.push((mapping.start, mapping.end, placed));
            }
        }
        space.code.sort_unstable_by_key(|(start, _, _)| *start);
        space.shared.sort_unstable_by_key(|mapping| mapping.start);
        space.jit.sort_unstable();
        space
    }

    /// Whether the process has JIT code.
    pub fn has_jit(&self) -> bool {
        !self.jit.is_empty()
    }

    /// Assigns the JIT code to an image.
    pub fn set_jit(&mut self, image: Option<ImageId>) {
        self.jit_image = image;
    }

    /// The mapped files, with their load bias.
    pub fn files(&self) -> impl Iterator<Item = (ImageId, u64)> + '_ {
        self.placed.iter().map(|placed| (placed.image, placed.bias))
    }

    /// The file and the address in it of a code address.
    pub fn code(&self, address: u64) -> Option<Address> {
        let of_file = || {
            let at = self.code.partition_point(|(start, _, _)| *start <= address).checked_sub(1)?;
            let (_, end, placed) = self.code.get(at)?;
            (address < *end).then(|| Address { image: placed.image, at: address.wrapping_sub(placed.bias) })
        };
        let of_jit = || {
            let at = self.jit.partition_point(|(start, _)| *start <= address).checked_sub(1)?;
            let (_, end) = self.jit.get(at)?;
            (address < *end).then_some(Address { image: self.jit_image?, at: address })
        };
        of_file().or_else(of_jit)
    }

    /// The location of an address in a shared mapping, and the path of its file, which is empty for anonymous
    /// memory.
    pub fn shared(&self, address: u64) -> Option<(Shared, &str)> {
        let at = self.shared.partition_point(|mapping| mapping.start <= address).checked_sub(1)?;
        let mapping = self.shared.get(at).filter(|mapping| address < mapping.end)?;
        let offset = mapping.offset.wrapping_add(address - mapping.start);
        let path = if mapping.has_file() { mapping.path.as_str() } else { "" };
        Some((Shared { device: mapping.device, inode: mapping.inode, offset }, path))
    }

    /// The file and the address in it of a data address, .bss included.
    pub fn data(&self, address: u64, images: &Images) -> Option<Address> {
        let of = |placed: &Placed| {
            let at = address.wrapping_sub(placed.bias);
            images.holds(placed.image, at).then_some(Address { image: placed.image, at })
        };
        self.placed.iter().find_map(of)
    }
}

/// `7f00-7f10 r-xp 00001000 08:01 123   /lib/x.so`.
fn parse(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after.trim_start();
        Some(word).filter(|word| !word.is_empty())
    };
    let (range, rights, offset, device, inode) = (word()?, word()?, word()?, word()?, word()?);
    let (start, end) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let number = |digits: &str| u32::from_str_radix(digits, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        is_code: rights.contains('x'),
        is_shared: rights.ends_with('s'),
        device: (number(major)?, number(minor)?),
        inode: inode.parse().ok()?,
        path: rest.trim_end().to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let line = "7f0010-7f0030 r-xp 00001000 fd:00 12345                      /usr/lib/a b.so";
        let mapping = parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7f_0010, 0x7f_0030, 0x1000));
        assert_eq!((mapping.device, mapping.inode), ((0xfd, 0), 12345));
        assert!(
            mapping.is_code && mapping.path == "/usr/lib/a b.so" && mapping.has_file() && !mapping.is_jit()
        );
        let is_jit = |line: &str| parse(line).unwrap().is_jit();
        assert!(is_jit("7ffc0-7ffd0 rwxp 00000000 00:00 0 "));
        assert!(is_jit("7ffc0-7ffd0 r-xs 00000000 00:01 7    /memfd:doublemapper (deleted)"));
        assert!(!is_jit("7ffc0-7ffd0 rw-p 00000000 00:00 0"));
        assert!(!is_jit("7ffc0-7ffd0 r-xp 00000000 00:00 0    [vdso]"));
        let gone = parse("7ffc0-7ffd0 r-xp 00000000 fd:00 1 /tmp/x (deleted)").unwrap();
        assert!(!gone.has_file() && !gone.is_jit());
        assert_eq!(parse("nothing"), None);
        assert_eq!(parse(""), None);
    }

    /// Two processes have one page of a file at different addresses, and each a page of memory of its own.
    #[test]
    fn shared_memory_is_identified_by_its_file() {
        let mut images = Images::default();
        let mut space = |maps: &str| Space::of(maps, "", &mut images);
        let one = space("5000-7000 rw-s 00002000 00:19 42   /dev/shm/pool\n8000-9000 rw-p 00000000 00:00 0");
        let other = space(
            "1000-2000 rw-s 00003000 00:19 42   /dev/shm/pool\n3000-4000 rw-s 00000000 00:01 7 /dev/zero (deleted)",
        );
        let place = Shared { device: (0, 0x19), inode: 42, offset: 0x3010 };
        assert_eq!(one.shared(0x6010), Some((place, "/dev/shm/pool")));
        assert_eq!(other.shared(0x1010), Some((place, "/dev/shm/pool")));
        assert_eq!(other.shared(0x3008), Some((Shared { device: (0, 1), inode: 7, offset: 8 }, "")));
        assert_eq!((one.shared(0x8010), one.shared(0x7000), one.shared(0x10)), (None, None, None));
    }
}
