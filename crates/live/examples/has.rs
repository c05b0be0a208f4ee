//! A program that uses memory: `has MIB [FILE]`. It touches MIB mebibytes of anonymous memory, maps FILE,
//! reads all of FILE, and prints `ready`. For each line of input, it touches and reads everything again. It
//! ends when its input ends, and after a minute at the latest.
#![allow(clippy::disallowed_methods)]

use std::env;
use std::fs::File;
use std::io::{self, BufRead};
use std::os::fd::AsRawFd;
use std::process;
use std::thread;
use std::time::Duration;

const PAGE: usize = 4_096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(60));
        process::exit(1);
    });
    let mut arguments = env::args().skip(1);
    let mib: usize = arguments.next().ok_or("usage: has MIB [FILE]")?.parse()?;
    let mut anonymous = vec![0u8; mib << 20];
    let mapped = arguments.next().map(|path| map(&path)).transpose()?;
    touch(&mut anonymous, mapped);
    println!("ready");
    for line in io::stdin().lock().lines() {
        line?;
        touch(&mut anonymous, mapped);
        println!("ready");
    }
    Ok(())
}

/// Writes to every page of the anonymous memory, and reads every page of the mapped file.
fn touch(anonymous: &mut [u8], mapped: Option<&[u8]>) {
    for page in anonymous.chunks_mut(PAGE) {
        page[0] = page[0].wrapping_add(1);
    }
    let sum = mapped.unwrap_or_default().chunks(PAGE).fold(0u64, |sum, page| sum + u64::from(page[0]));
    std::hint::black_box(sum);
}

fn map(path: &str) -> io::Result<&'static [u8]> {
    let file = File::open(path)?;
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    // SAFETY: a new mapping, never unmapped, of a file that no process truncates.
    unsafe {
        let address =
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(std::slice::from_raw_parts(address.cast(), length))
    }
}
