//! What is mapped where in a process.

use std::collections::HashMap;

use crate::image::{Address, Images};

/// A part of a process's memory that has a file behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    is_code: bool,
    path: String,
}

/// A file's place in a process.
#[derive(Debug, Clone, Copy)]
struct Placed {
    image: crate::ImageId,
    /// What is to be added to an address in the file.
    bias: u64,
}

/// A process's memory.
#[derive(Debug, Default)]
pub struct Space {
    /// By address.
    code: Vec<(u64, u64, Placed)>,
    placed: Vec<Placed>,
}

impl Space {
    /// Of what /proc/PID/maps says. Files are read in the process's own tree of files, `/proc/PID/root`, if they are there.
    pub fn of(maps: &str, root: &str, images: &mut Images) -> Space {
        let (mut space, mut opened) = (Space::default(), HashMap::new());
        for mapping in maps.lines().filter_map(parse) {
            let known = opened.get(&mapping.path).copied();
            let image = known.unwrap_or_else(|| images.open(&mapping.path, root));
            opened.entry(mapping.path.clone()).or_insert(image);
            let Some(image) = image else { continue };
            let Some(bias) = images.bias(image, mapping.start, mapping.offset) else { continue };
            let placed = Placed { image, bias };
            if !space.placed.iter().any(|its| (its.image, its.bias) == (image, bias)) {
                space.placed.push(placed);
            }
            if mapping.is_code {
                space.code.push((mapping.start, mapping.end, placed));
            }
        }
        space.code.sort_unstable_by_key(|(start, _, _)| *start);
        space
    }

    /// What file, and where in it, an address of code is.
    pub fn code(&self, address: u64) -> Option<Address> {
        let at = self.code.partition_point(|(start, _, _)| *start <= address).checked_sub(1)?;
        let (_, end, placed) = self.code.get(at)?;
        (address < *end).then(|| Address { image: placed.image, at: address.wrapping_sub(placed.bias) })
    }

    /// The same of a variable. Memory that begins as zeros has no file, but a place in one.
    pub fn data(&self, address: u64, images: &Images) -> Option<Address> {
        let of = |placed: &Placed| {
            let at = address.wrapping_sub(placed.bias);
            images.holds(placed.image, at).then_some(Address { image: placed.image, at })
        };
        self.placed.iter().find_map(of)
    }
}

/// `7f00-7f10 r-xp 00001000 08:01 123   /lib/x.so`. What has no file, or one that is gone, is not told.
fn parse(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.split_once(' ')?;
        rest = after.trim_start();
        Some(word)
    };
    let (range, rights, offset) = (word()?, word()?, word()?);
    let (_device, _inode) = (word()?, word()?);
    let (start, end) = range.split_once('-')?;
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let path = rest.trim_end();
    (path.starts_with('/') && !path.ends_with(" (deleted)")).then_some(())?;
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        is_code: rights.contains('x'),
        path: path.to_owned(),
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
        assert!(mapping.is_code && mapping.path == "/usr/lib/a b.so");
        assert_eq!(parse("7ffc0-7ffd0 rw-p 00000000 00:00 0                          [stack]"), None);
        assert_eq!(parse("7ffc0-7ffd0 rw-p 00000000 00:00 0 "), None);
        assert_eq!(parse("7ffc0-7ffd0 r-xp 00000000 fd:00 1 /tmp/x (deleted)"), None);
        assert_eq!(parse("nothing"), None);
    }
}
