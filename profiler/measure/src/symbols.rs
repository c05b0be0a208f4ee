//! Names addresses of processes that may have ended, from their recorded mappings and the mapped files.

use commonhold_trace::{Address, Frame, Images, Names, Space, is_plumbing};

/// Resolves names; caches parsed files.
#[derive(Default)]
pub(crate) struct Namer {
    images: Images,
    names: Names,
}

impl Namer {
    /// An address space, from the lines of /proc/PID/maps that name files.
    pub(crate) fn space(&mut self, maps: &str) -> Space {
        Space::of(maps, "", &mut self.images)
    }

    /// The call site of a return address: `push (queue.c:41)`, `push`, or `libqueue.so+0x41a`. If functions
    /// are inlined there, the innermost one that belongs to no lock library.
    pub(crate) fn place(&mut self, space: &Space, returns_to: u64) -> String {
        let Some(address) = space.code(returns_to) else { return format!("{returns_to:#x}") };
        let frames = self.names.frames(&self.images, address, true);
        let frame = frames.iter().find(|frame| !is_plumbing(frame)).or(frames.last());
        let named = |frame: &Frame| match frame.place() {
            Some(place) => format!("{} ({place})", frame.function),
            None => frame.function.clone(),
        };
        match frame.map(named) {
            Some(name) => name,
            None => self.offset(address),
        }
    }

    /// The variable at an address; `None` if the address is in no file, such as on the heap.
    pub(crate) fn variable(&mut self, space: &Space, address: u64) -> Option<String> {
        let address = space.data(address, &self.images)?;
        let name = self.names.variable(&self.images, address);
        Some(name.unwrap_or_else(|| self.offset(address)))
    }

    /// The base name of a file and the offset: `libqueue.so+0x41a`.
    fn offset(&self, address: Address) -> String {
        let path = self.images.path(address.image);
        format!("{}+{:#x}", path.rsplit('/').next().unwrap_or(path), address.at)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    static VARIABLE: [u64; 4] = [1, 2, 3, 4];

    #[test]
    fn this_test_finds_itself() {
        let mut namer = Namer::default();
        let space = namer.space(&std::fs::read_to_string("/proc/self/maps").unwrap());
        let place = namer.place(&space, this_test_finds_itself as fn() as usize as u64 + 1);
        assert!(place.contains("this_test_finds_itself") && place.contains("(symbols.rs:"), "{place}");
        let address = std::ptr::from_ref(std::hint::black_box(&VARIABLE[1])) as u64;
        let variable = namer.variable(&space, address).unwrap();
        assert!(variable.contains("VARIABLE") && variable.ends_with("+8"), "{variable}");
        let heap = Box::new(5_u64);
        assert_eq!(namer.variable(&space, std::ptr::from_ref(&*heap) as u64), None);
        assert_eq!(namer.place(&space, 5), "0x5");
    }
}
