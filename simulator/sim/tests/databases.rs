//! A file that is in memory twice: in the page cache, and in its readers' own caches, as with a database.

mod scene;

use commonhold_sim::outcome::Outcome;
use scene::outcome;

/// 1,000 random reads of a page by a unit limited to `pages` pages.
fn run(pages: u64, file: &str) -> Outcome {
    let contract = format!(
        "version = 1\n[machine]\nreserve = \"0%\"\n[unit.db]\nlimit = {{ memory = \"{}KiB\" }}\n",
        pages * 4
    );
    let machine = "version = 1\nshape = \"cpus:1 memory:16MiB\"\nenforces = \"irix\"\n[kernel]\nread_ahead = 0\n\
                   request_sectors = 8\ncluster = 1\n[disk.d0]\nmodel = \"fixed\"\naccess = \"1ms\"\nsize = \"1GiB\"\n";
    let workload = format!(
        "version = 1\nhorizon = \"10min\"\n[file.data]\n{file}\n[program.db]\n\
         do = [ {{ repeat = 20000, do = [ {{ read = \"data\", \
         bytes = \"4KiB\", random = true }}, {{ cpu = \"10us\" }} ] }} ]\n[job.db]\nunit = \"db\"\nprogram = \"db\"\n"
    );
    outcome(&contract, machine, &workload)
}

/// The peak of pages in memory, and the number of reads from the disk.
fn pages_and_reads(pages: u64, file: &str) -> (u64, u64) {
    let outcome = run(pages, file);
    (outcome.units[0].frames_max, outcome.disks[0].requests)
}

/// With copies, 100 pages need 200 frames. With 100 frames, half of the pages are in memory, so half of
/// 20,000 reads are from the disk. Without copies, half of the frames are enough for the same result.
#[test]
fn what_is_there_twice_takes_twice_the_memory() {
    let twice = "size = \"400KiB\"\nbuffer = \"400KiB\"";
    assert_eq!(pages_and_reads(300, twice), (200, 100));
    let (frames, reads) = pages_and_reads(100, twice);
    assert!(frames == 100 && (9_700..10_500).contains(&reads), "{frames} {reads}");
    assert_eq!(pages_and_reads(300, "size = \"400KiB\""), (100, 100));
}

/// Of a large file only a few pages are in memory twice: as many as the reader's own cache holds.
#[test]
fn copies_are_as_many_as_the_buffer_has() {
    let file = "size = \"4000KiB\"\nbuffer = \"40KiB\"";
    assert_eq!(pages_and_reads(2_000, file), (1_010, 1_000));
    // 100 of 110 frames have distinct pages of 1,000: nine tenths of 20,000 reads are from the disk.
    let (frames, reads) = pages_and_reads(110, file);
    assert!(frames == 110 && (17_800..18_300).contains(&reads), "{frames} {reads}");
}
