//! The object files of programs: their segments, and the unwind tables of their functions.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, RegisterRule, UnwindContext, UnwindSection,
};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ObjectSection, ReadCache};

/// Identifies a file of [`Images`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(pub(crate) u32);

/// An address in a file, before relocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The file.
    pub image: ImageId,
    /// The address.
    pub at: u64,
}

/// A loadable segment of a file.
#[derive(Debug, Clone, Copy)]
struct Segment {
    /// Its offset in the file.
    offset: u64,
    /// Its size in the file.
    in_file: u64,
    /// Its address, before relocation.
    at: u64,
    /// Its size in memory.
    in_memory: u64,
}

/// An unwind rule: how to compute the caller's frame from a function's frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// The canonical frame address (CFA): a register and an offset.
    pub(crate) base: Base,
    pub(crate) offset: i64,
    /// Offset of the saved frame pointer from the CFA; `None` if it is still in its register.
    pub(crate) pointer_at: Option<i64>,
    /// Start of the function.
    pub(crate) begins: u64,
    /// Whether it is the thread's outermost function, which has no caller.
    pub(crate) is_first: bool,
}

/// The register that an unwind rule is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Stack,
    Frame,
}

// DWARF register numbers of x86-64.
const FRAME_POINTER: gimli::Register = gimli::X86_64::RBP;
const STACK_POINTER: gimli::Register = gimli::X86_64::RSP;
const RETURN_ADDRESS: gimli::Register = gimli::X86_64::RA;

/// What generated the code of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Maker {
    /// An ahead-of-time compiler.
    #[default]
    Compiler,
    /// Go's compiler: functions keep frame pointers, and threads switch stacks.
    Go,
    /// A just-in-time (JIT) compiler in the program; the code is in no file.
    Program,
}

/// One file, or the JIT code of one process.
#[derive(Debug, Default)]
struct Image {
    path: String,
    maker: Maker,
    file: Option<File>,
    segments: Vec<Segment>,
    frames: Option<Frames>,
    rows: HashMap<u64, Option<Row>>,
}

/// The unwind sections.
#[derive(Debug)]
struct Frames {
    header: Vec<u8>,
    frames: Vec<u8>,
    bases: BaseAddresses,
}

/// All files opened so far.
#[derive(Debug, Default)]
pub struct Images {
    all: Vec<Image>,
    /// Files by identity: device, inode, size and modification time. `None` for files that are no object
    /// files.
    by_file: HashMap<(u64, u64, u64, i64), Option<ImageId>>,
    context: UnwindContext<usize>,
}

impl Images {
    /// Opens a file by its path, below `root` or else in this process's own file system.
    pub(crate) fn open(&mut self, path: &str, root: &str) -> Option<ImageId> {
        let (file, metadata) = [format!("{root}{path}"), path.to_owned()].into_iter().find_map(|path| {
            // Opening a device may have side effects.
            std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
            // The path may lead to a FIFO by now: do not wait for the FIFO's writer.
            let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).ok()?;
            let metadata = file.metadata().ok().filter(|data| data.is_file() && data.len() <= FILE_MAX)?;
            Some((file, metadata))
        })?;
        let key = (metadata.dev(), metadata.ino(), metadata.len(), metadata.mtime());
        if let Some(known) = self.by_file.get(&key) {
            return *known;
        }
        let id = Image::of(path, file).and_then(|image| self.add(image));
        self.by_file.insert(key, id);
        id
    }

    /// Adds an image for the JIT code of a process with this program name. Its addresses are those of the
    /// process.
    pub fn jit(&mut self, program: &str) -> Option<ImageId> {
        self.add(Image { path: program.to_owned(), maker: Maker::Program, ..Image::default() })
    }

    fn add(&mut self, image: Image) -> Option<ImageId> {
        let id = ImageId(u32::try_from(self.all.len()).ok()?);
        self.all.push(image);
        Some(id)
    }

    /// What generated a file's code.
    pub fn maker(&self, id: ImageId) -> Maker {
        self.get(id).map_or(Maker::Compiler, |image| image.maker)
    }

    fn get(&self, id: ImageId) -> Option<&Image> {
        self.all.get(id.0 as usize)
    }

    /// The path of a file, as the process mapped it.
    pub fn path(&self, id: ImageId) -> &str {
        self.get(id).map_or("", |image| &image.path)
    }

    /// The open file of an image, usable after the process has ended; `None` for JIT code.
    pub(crate) fn file(&self, id: ImageId) -> Option<&File> {
        self.get(id)?.file.as_ref()
    }

    /// The load bias of a mapping at `start` of the file's content at `offset`: what to subtract from an
    /// address of the process.
    pub(crate) fn bias(&self, id: ImageId, start: u64, offset: u64) -> Option<u64> {
        let image = self.get(id)?;
        // A mapping starts at a page boundary, while a segment may start within the page.
        let holds = |segment: &&Segment| {
            offset + PAGE > segment.offset && offset < segment.offset + segment.in_file.max(1)
        };
        let segment = image.segments.iter().filter(holds).max_by_key(|segment| segment.offset)?;
        Some(start.wrapping_sub(segment.at.wrapping_add(offset).wrapping_sub(segment.offset)))
    }

    /// Whether an address is in a segment of the file.
    pub(crate) fn holds(&self, id: ImageId, at: u64) -> bool {
        let has = |segment: &Segment| at.checked_sub(segment.at).is_some_and(|into| into < segment.in_memory);
        self.get(id).is_some_and(|image| image.segments.iter().any(has))
    }

    /// The unwind rule at an address; `None` if the file has none.
    pub(crate) fn row(&mut self, address: Address) -> Option<Row> {
        let image = self.all.get_mut(address.image.0 as usize)?;
        if let Some(row) = image.rows.get(&address.at) {
            return *row;
        }
        let row = image.frames.as_ref().and_then(|frames| frames.row(address.at, &mut self.context));
        image.rows.insert(address.at, row);
        row
    }

    /// The bytes of code before an address; `None` if the file does not have them.
    pub(crate) fn before(&self, address: Address) -> Option<[u8; CALL_MAX]> {
        let image = self.get(address.image)?;
        let from = address.at.checked_sub(CALL_MAX as u64)?;
        let holds = |segment: &&Segment| from >= segment.at && address.at <= segment.at + segment.in_file;
        let segment = image.segments.iter().find(holds)?;
        let mut bytes = [0; CALL_MAX];
        image.file.as_ref()?.read_exact_at(&mut bytes, segment.offset + (from - segment.at)).ok()?;
        Some(bytes)
    }
}

/// Length of the longest call instruction.
pub const CALL_MAX: usize = 7;
const PAGE: u64 = 4096;
/// Larger files are rejected: a sparse file could exhaust memory.
const FILE_MAX: u64 = 16 << 30;
/// Larger unwind tables are rejected.
const SECTION_MAX: u64 = 512 << 20;

impl Image {
    fn of(path: &str, file: File) -> Option<Image> {
        let cache = ReadCache::new(file.try_clone().ok()?);
        let object = object::read::elf::ElfFile64::<object::LittleEndian, _>::parse(&cache).ok()?;
        let endian = object.endian();
        let headers = object.elf_header().program_headers(endian, &cache).ok()?;
        let segments = headers
            .iter()
            .filter(|header| header.p_type(endian) == object::elf::PT_LOAD)
            .map(|header| Segment {
                offset: header.p_offset(endian),
                in_file: header.p_filesz(endian),
                at: header.p_vaddr(endian),
                in_memory: header.p_memsz(endian),
            })
            .collect();
        let section = |name: &str| {
            let section = object.section_by_name(name).filter(|section| section.size() <= SECTION_MAX)?;
            Some((section.address(), section.data().ok()?.to_vec()))
        };
        let is_go =
            object.section_by_name(".gopclntab").or(object.section_by_name(".go.buildinfo")).is_some();
        let frames =
            section(".eh_frame_hdr").zip(section(".eh_frame")).map(|((header_at, header), (at, frames))| {
                let mut bases = BaseAddresses::default().set_eh_frame_hdr(header_at).set_eh_frame(at);
                for (name, set) in
                    [(".text", BaseAddresses::set_text as fn(_, _) -> _), (".got", BaseAddresses::set_got)]
                {
                    if let Some(section) = object.section_by_name(name) {
                        bases = set(bases, section.address());
                    }
                }
                Frames { header, frames, bases }
            });
        drop(object);
        let maker = if is_go { Maker::Go } else { Maker::Compiler };
        Some(Image { path: path.to_owned(), maker, file: Some(file), segments, frames, rows: HashMap::new() })
    }
}

impl Frames {
    fn row(&self, at: u64, context: &mut UnwindContext<usize>) -> Option<Row> {
        let header = EhFrameHdr::new(&self.header, LittleEndian).parse(&self.bases, 8).ok()?;
        let frames = EhFrame::new(&self.frames, LittleEndian);
        let entry =
            header.table()?.fde_for_address(&frames, &self.bases, at, EhFrame::cie_from_offset).ok()?;
        if entry.is_signal_trampoline() {
            return None;
        }
        let begins = entry.initial_address();
        let row = entry.unwind_info_for_address(&frames, &self.bases, context, at).ok()?;
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { return None };
        let base = match register {
            STACK_POINTER => Base::Stack,
            FRAME_POINTER => Base::Frame,
            _ => return None,
        };
        let pointer_at = match row.register(FRAME_POINTER) {
            Some(RegisterRule::Offset(offset)) => Some(offset),
            _ => None,
        };
        let is_first = matches!(row.register(RETURN_ADDRESS), Some(RegisterRule::Undefined));
        Some(Row { base, offset, pointer_at, begins, is_first })
    }
}
