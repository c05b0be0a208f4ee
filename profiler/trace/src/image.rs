//! The files that programs are made of: where they are loaded, and how the frames of their functions lie on a stack.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, RegisterRule, UnwindContext, UnwindSection,
};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ObjectSection, ReadCache};

/// A file of [`Images`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(pub(crate) u32);

/// A place in a file's memory, as the file itself counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The file.
    pub image: ImageId,
    /// The place.
    pub at: u64,
}

/// A part of a file that is loaded.
#[derive(Debug, Clone, Copy)]
struct Segment {
    offset: u64,
    in_file: u64,
    at: u64,
    in_memory: u64,
}

/// How to get from a function's frame to its caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// The frame's upper end is so far from that register.
    pub(crate) base: Base,
    pub(crate) offset: i64,
    /// The caller's frame pointer is so far from the upper end; none: it is still in its register.
    pub(crate) pointer_at: Option<i64>,
    /// Where the function begins.
    pub(crate) begins: u64,
    /// Nobody called this function.
    pub(crate) is_first: bool,
}

/// Of x86-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Stack,
    Frame,
}

const FRAME_POINTER: gimli::Register = gimli::X86_64::RBP;
const STACK_POINTER: gimli::Register = gimli::X86_64::RSP;
const RETURN_ADDRESS: gimli::Register = gimli::X86_64::RA;

/// What the code of an image was made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Maker {
    /// A compiler, which wrote a file.
    #[default]
    Compiler,
    /// Go's compiler: its functions keep frame pointers, and its threads change stacks.
    Go,
    /// The program itself while it runs: code of a just-in-time (JIT) compiler, in no file.
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

/// The sections that say how frames lie.
#[derive(Debug)]
struct Frames {
    header: Vec<u8>,
    frames: Vec<u8>,
    bases: BaseAddresses,
}

/// All files that were met.
#[derive(Debug, Default)]
pub struct Images {
    all: Vec<Image>,
    /// By what tells files apart: device, number, size and time of change. Also those that are none.
    by_file: HashMap<(u64, u64, u64, i64), Option<ImageId>>,
    context: UnwindContext<usize>,
}

impl Images {
    /// A file by its path, in the tree of files `root`, or in this process's own.
    pub(crate) fn open(&mut self, path: &str, root: &str) -> Option<ImageId> {
        let (file, about) = [format!("{root}{path}"), path.to_owned()].into_iter().find_map(|at| {
            // What is mapped and no file, such as a device, may do something when it is opened.
            std::fs::metadata(&at).ok().filter(std::fs::Metadata::is_file)?;
            // The name may lead to a FIFO by now, whose writer is not to be waited for.
            let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&at).ok()?;
            let about = file.metadata().ok().filter(|about| about.is_file() && about.len() <= FILE_MAX)?;
            Some((file, about))
        })?;
        let key = (about.dev(), about.ino(), about.len(), about.mtime());
        if let Some(known) = self.by_file.get(&key) {
            return *known;
        }
        let id = Image::of(path, file).and_then(|image| self.add(image));
        self.by_file.insert(key, id);
        id
    }

    /// The JIT code of a process whose program has that name. Addresses in it are those of the process.
    pub fn jit(&mut self, program: &str) -> Option<ImageId> {
        self.add(Image { path: program.to_owned(), maker: Maker::Program, ..Image::default() })
    }

    fn add(&mut self, image: Image) -> Option<ImageId> {
        let id = ImageId(u32::try_from(self.all.len()).ok()?);
        self.all.push(image);
        Some(id)
    }

    /// What made a file's code.
    pub fn maker(&self, id: ImageId) -> Maker {
        self.get(id).map_or(Maker::Compiler, |image| image.maker)
    }

    fn get(&self, id: ImageId) -> Option<&Image> {
        self.all.get(id.0 as usize)
    }

    /// What a file was called by the process.
    pub fn path(&self, id: ImageId) -> &str {
        self.get(id).map_or("", |image| &image.path)
    }

    /// A file, also when its process is gone.
    pub(crate) fn file(&self, id: ImageId) -> Option<&File> {
        self.get(id)?.file.as_ref()
    }

    /// By how much addresses in memory are above those in the file, of a mapping at `start` of what is at `offset`.
    pub(crate) fn bias(&self, id: ImageId, start: u64, offset: u64) -> Option<u64> {
        let image = self.get(id)?;
        // A mapping begins at a page, where the segment may begin in the middle of it.
        let holds = |segment: &&Segment| {
            offset + PAGE > segment.offset && offset < segment.offset + segment.in_file.max(1)
        };
        let segment = image.segments.iter().filter(holds).max_by_key(|segment| segment.offset)?;
        Some(start.wrapping_sub(segment.at.wrapping_add(offset).wrapping_sub(segment.offset)))
    }

    /// Whether a file's memory has that address.
    pub(crate) fn holds(&self, id: ImageId, at: u64) -> bool {
        let has = |segment: &Segment| at.checked_sub(segment.at).is_some_and(|into| into < segment.in_memory);
        self.get(id).is_some_and(|image| image.segments.iter().any(has))
    }

    /// How frames lie at an address; none if the file does not say.
    pub(crate) fn row(&mut self, address: Address) -> Option<Row> {
        let image = self.all.get_mut(address.image.0 as usize)?;
        if let Some(row) = image.rows.get(&address.at) {
            return *row;
        }
        let row = image.frames.as_ref().and_then(|frames| frames.row(address.at, &mut self.context));
        image.rows.insert(address.at, row);
        row
    }

    /// The bytes before an address of code.
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

/// The longest call is so long.
pub const CALL_MAX: usize = 7;
const PAGE: u64 = 4096;
/// A larger file is a sparse one that is to fill the memory.
const FILE_MAX: u64 = 16 << 30;
/// The same of the tables for unwinding.
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
