//! CPU affinity of one thread, for machines of any size.
//!
//! The C library's `cpu_set_t` and rustix's `CpuSet` are limited to 1,024 CPUs; the kernel is not. So this
//! module makes the raw system calls of `sched_getaffinity(2)` and `sched_setaffinity(2)`. When reading, the
//! mask grows until the kernel's mask fits.

use std::io;

use commonhold_machine::CpuSet;

use super::tamper::{About, Answer, Kind, ask, has_hook};

/// The first mask to try: 1,024 CPUs, which is enough on nearly every machine.
const WORDS_FIRST: usize = 16;

/// The largest mask to try: 65,536 CPUs, the bound of [`CpuSet`]'s list format.
const WORDS_MAX: usize = 1024;

/// The CPUs on which a thread may run. `tid` 0 is the calling thread.
///
/// Errors are the kernel's: `ESRCH` if the thread has ended.
pub fn get(tid: u32) -> io::Result<CpuSet> {
    match ask(Kind::Affinity, About::Process(tid), []) {
        Answer::Refuse(errno) => Err(io::Error::from_raw_os_error(errno)),
        Answer::Falsify(list) => parse_list(&list),
        _ => get_from(tid, WORDS_FIRST),
    }
}

/// Parses a list of CPUs in the kernel's format, such as `0-3,8`.
fn parse_list(list: &[u8]) -> io::Result<CpuSet> {
    String::from_utf8_lossy(list).trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// [`get`] with a first mask of `words_first` words, which doubles until the kernel accepts it.
fn get_from(tid: u32, words_first: usize) -> io::Result<CpuSet> {
    let mut words = vec![0u64; words_first];
    loop {
        match get_into(tid, &mut words) {
            // EINVAL means that the kernel's mask is longer than ours.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && words.len() < WORDS_MAX => {
                words.resize(words.len().max(1) * 2, 0);
            }
            Err(error) => return Err(error),
            Ok(bytes) => {
                words.truncate(bytes.div_ceil(size_of::<u64>()));
                return Ok(CpuSet::from_words(words));
            }
        }
    }
}

/// Restricts a thread to these CPUs. `tid` 0 is the calling thread.
///
/// The kernel silently drops CPUs outside the thread's cpuset. A caller for which that matters reads the
/// result back with [`get`]. Errors are the kernel's: `ESRCH` if the thread has ended, `EPERM` if it is
/// another user's, `EINVAL` if the thread may use no CPU of the set, for example because the set is empty.
pub fn set(tid: u32, cpus: &CpuSet) -> io::Result<()> {
    if has_hook() {
        match ask(Kind::SetAffinity, About::Process(tid), cpus.to_string()) {
            Answer::Falsify(list) => return set_without_hook(tid, &parse_list(&list)?),
            answer => answer.passed()?,
        }
    }
    set_without_hook(tid, cpus)
}

fn set_without_hook(tid: u32, cpus: &CpuSet) -> io::Result<()> {
    let words = cpus.as_words();
    // SAFETY: the kernel reads `size_of_val(words)` bytes from `words`, which is exactly the slice (for the
    // empty slice: none), and keeps no reference to them.
    let rc = unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, kernel_id(tid)?, size_of_val(words), words.as_ptr())
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes one call, with a mask of this size. Returns the number of bytes that the kernel filled.
fn get_into(tid: u32, words: &mut [u64]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `size_of_val(words)` bytes to `words`, which is exactly the slice;
    // every bit pattern is a valid u64.
    let rc = unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, kernel_id(tid)?, size_of_val(words), words.as_mut_ptr())
    };
    usize::try_from(rc).map_err(|_| io::Error::last_os_error())
}

/// Converts a thread id to the kernel's type. `ESRCH` for a number that is too large to name a thread.
fn kernel_id(tid: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(tid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_thread_is_confined_and_restored() {
        std::thread::spawn(|| {
            let original = get(0).unwrap();
            let first: CpuSet = original.iter().take(1).collect();
            set(0, &first).unwrap();
            assert_eq!(get(0).unwrap(), first);
            set(0, &original).unwrap();
            assert_eq!(get(0).unwrap(), original);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_mask_grows_until_the_kernel_accepts_it() {
        // An empty mask is too short for any machine: it gives the same EINVAL as 16 words on a large
        // machine.
        assert_eq!(get_into(0, &mut []).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(get_from(0, 0).unwrap(), get(0).unwrap());
    }

    #[test]
    fn errors_of_the_kernel_are_returned() {
        assert_eq!(get(u32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(get(0x3fff_ffff).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(set(0, &CpuSet::new()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
