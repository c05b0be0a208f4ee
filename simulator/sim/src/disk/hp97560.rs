//! The HP 97560: the positions of arm and platters, and the service time of a request.
//!
//! Problem: on a disk with an arm, the cost of a request depends on the request before it and on the moment
//! when it starts. Policies that ignore head position, and policies that consider nothing else, differ only
//! on a model with an arm.
//!
//! Terms:
//! - A *track* is one head's circle of 72 sectors. A *cylinder* is the 19 tracks under the arm.
//! - *Skew*: the first sector of a track lies 8 sectors behind the last sector of the track before it, or 18
//!   sectors if the cylinder changes. So a transfer continues across tracks without losing a revolution.
//! - A sector's *offset* is its distance from sector 0 along such an unbroken transfer, in sector times. So
//!   the offset modulo 72 is the angle at which the sector starts.
//!
//! Algorithm: the platters' angle is the time modulo a revolution; it needs no state, and advances in idle
//! time. A request has four steps: the controller's overhead; the seek by the table below (or a head switch,
//! if only the track differs); the rotation until its first sector passes the head; and the transfer,
//! including skews.
//!
//! After a read the drive continues to read into its 128 KB buffer, up to 64 KB beyond the read's end (the
//! fence), until another request needs the arm. If a read lies in the buffer, it takes overhead and bus
//! transfer. If it begins in the buffer and ends beyond, it lasts until the read-ahead has reached its end,
//! or until overhead and bus transfer are done, whichever is later. So a sequential reader gets the media
//! rate. A write that was queued behind the write that it continues does not pay the overhead again.
//!
//! | what | value | at scale 1 |
//! | --- | --- | --- |
//! | cylinders, tracks, sectors, bytes | 1962, 19, 72, 512 | 1.37 GB |
//! | rotation | 4002 rpm | 14.992 ms, 208.2 us a sector, 2.46 MB/s |
//! | seek of d cylinders, d <= 383 | 3.24 + 0.400 sqrt(d) ms | 3.64 ms for one |
//! | seek of more | 8.00 + 0.008 d ms | 23.69 ms for the full stroke |
//! | head switch, overhead | 1.6 ms, 2.2 ms | |
//! | bus | 10 MB/s | 51.2 us a sector |
//!
//! Properties: whole nanoseconds everywhere; square roots only in the seek table, rounded once. Sustained
//! sequential transfer is 1368 sectors in 1368 + 18 * 8 + 18 sector times, 2.20 MB/s. Cost: constant per
//! request, but for eight steps of bisection in the buffer.
//!
//! Limits: no spare tracks, no thermal recalibration, no extra settling time for writes, no early completion
//! of writes, and no contention for the bus. With these numbers, a random 8 KB read over the whole disk takes
//! 25 ms in the mean.
//!
//! Source: Ruemmler and Wilkes, "An introduction to disk drive modeling", 1994, for the table; the disk of
//! seed 000, sections 4.1 and 4.5, which divides every time by a scaling factor.

use super::mechanics::Service;
use crate::Time;

const CYLINDERS: u32 = 1_962;
const TRACKS: u64 = 19;
const TRACK_SECTORS: u64 = 72;
const CYLINDER_SECTORS: u64 = TRACKS * TRACK_SECTORS;
const TRACK_SKEW: u64 = 8;
const CYLINDER_SKEW: u64 = 18;
/// Sectors' worth of skew from one cylinder's start to the next one's.
const SKEW_PER_CYLINDER: u64 = (TRACKS - 1) * TRACK_SKEW + CYLINDER_SKEW;
const BUFFER_SECTORS: u64 = 256;
const FENCE_SECTORS: u64 = 128;
/// The number of sectors.
pub(super) const SECTORS: u64 = CYLINDERS as u64 * CYLINDER_SECTORS;
/// Sectors that pass a head in a minute, at scale 1.
const SECTORS_PER_MINUTE: f64 = 4_002.0 * 72.0;

/// The drive's state.
#[derive(Debug, Clone)]
pub(super) struct Hp97560 {
    sector_ns: Time,
    overhead_ns: Time,
    switch_ns: Time,
    bus_sector_ns: Time,
    /// The seek time by distance in cylinders.
    seek_ns: Vec<Time>,
    /// The track of the arm after the last request; not updated by read-ahead.
    track: u64,
    /// The read buffer and the progress of read-ahead. `None` after a write.
    buffer: Option<Buffer>,
    /// The end sector and end time of the last request, if that was a write.
    written: Option<(u64, Time)>,
}

/// The contents of the read buffer, and the read-ahead that fills it.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    /// The first sector in the buffer.
    from: u64,
    /// The sector up to which the drive had read at the time `at`.
    next: u64,
    at: Time,
    /// The sector at which the read-ahead stops.
    fence: u64,
}

impl Hp97560 {
    /// A drive with its arm at the first track. All times are divided by `scale`, rounded to nanoseconds.
    pub(super) fn new(scale: u32) -> Hp97560 {
        let scaled = |ns: f64| rounded(ns / f64::from(scale.max(1)));
        let seek_ns = (0..CYLINDERS).map(|distance| scaled(seek_ms(distance) * 1e6)).collect();
        Hp97560 {
            // At least 1 ns, since a large scale would round it to 0.
            sector_ns: scaled(60e9 / SECTORS_PER_MINUTE).max(1),
            overhead_ns: scaled(2.2e6),
            switch_ns: scaled(1.6e6),
            bus_sector_ns: scaled(512.0 / 10e6 * 1e9),
            seek_ns,
            track: 0,
            buffer: None,
            written: None,
        }
    }

    /// The mean time to reposition: a seek over a third of the cylinders and half a revolution.
    pub(super) fn reposition_ns(&self) -> Time {
        self.seek_ns[self.seek_ns.len() / 3] + self.revolution_ns() / 2
    }

    /// The controller's time per request.
    pub(super) fn overhead_ns(&self) -> Time {
        self.overhead_ns
    }

    /// The number of sectors of a cylinder, and the time of their transfer up to the next cylinder's first
    /// sector.
    pub(super) fn cylinder(&self) -> (u64, Time) {
        (CYLINDER_SECTORS, (CYLINDER_SECTORS + SKEW_PER_CYLINDER) * self.sector_ns)
    }

    /// Serves a request that starts at `now`, and returns its time.
    pub(super) fn service(&mut self, now: Time, lba: u64, sectors: u64, write: bool) -> Service {
        if write { self.write(now, lba, lba + sectors) } else { self.read(now, lba, lba + sectors) }
    }

    fn read(&mut self, now: Time, lba: u64, end: u64) -> Service {
        self.written = None;
        let buffer = self.buffer.map(|buffer| self.read_ahead(buffer, now));
        if let Some(buffer) = buffer.filter(|buffer| buffer.from <= lba && lba <= buffer.next) {
            return self.read_buffered(now, buffer, end, end - lba);
        }
        let service = self.access(now, lba, end, self.overhead_ns);
        let at = now + service.total_ns();
        self.buffer = Some(Buffer { from: lba, next: end, at, fence: fence(end) });
        service
    }

    /// Serves a read of `sectors` sectors up to `end` that begins in the buffer, or where the read-ahead
    /// continues.
    fn read_buffered(&mut self, now: Time, buffer: Buffer, end: u64, sectors: u64) -> Service {
        let mut service = Service { overhead_ns: self.overhead_ns, ..Service::default() };
        let bus_done = now + self.overhead_ns + sectors * self.bus_sector_ns;
        // If the read-ahead has stopped at the fence, it resumes when that sector passes the head again.
        let stopped = buffer.next == buffer.fence && buffer.at < now;
        let at = if stopped { self.resume_time(now, buffer.next) } else { buffer.at };
        let next = buffer.next.max(end);
        let media_done = at + self.continue_ns(buffer.next, next);
        let done = if end > buffer.next { bus_done.max(media_done) } else { bus_done };
        self.buffer =
            Some(Buffer { from: buffer.from, next, at: media_done, fence: fence(end).max(buffer.fence) });
        // The overhead overlaps with the read-ahead; only the rest counts as overhead.
        service.overhead_ns = service.overhead_ns.min(done - now);
        let late_ns = if end > buffer.next { at.saturating_sub(now + service.overhead_ns) } else { 0 };
        service.rotation_ns = late_ns.min(done - now - service.overhead_ns);
        service.transfer_ns = done - now - service.overhead_ns - service.rotation_ns;
        service
    }

    /// The buffer at `now`, with the progress of read-ahead since `buffer.at`, found by bisection.
    fn read_ahead(&self, buffer: Buffer, now: Time) -> Buffer {
        let (mut low, mut high) = (buffer.next, buffer.fence);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if buffer.at + self.continue_ns(buffer.next, middle) <= now {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        let at = buffer.at + self.continue_ns(buffer.next, low);
        Buffer { from: buffer.from.max(low.saturating_sub(BUFFER_SECTORS)), next: low, at, ..buffer }
    }

    fn write(&mut self, now: Time, lba: u64, end: u64) -> Service {
        let overhead_ns = if self.written == Some((lba, now)) { 0 } else { self.overhead_ns };
        // If the write continues the last on another track, the skew covers the head switch.
        let service = self.access(now, lba, end, overhead_ns);
        self.buffer = None;
        self.written = Some((end, now + service.total_ns()));
        service
    }

    /// Moves the arm and transfers from `lba` to `end`.
    fn access(&mut self, now: Time, lba: u64, end: u64, overhead_ns: Time) -> Service {
        let continues_write = overhead_ns == 0;
        let seek_ns = if continues_write { 0 } else { self.move_ns(self.track_at(now), lba / TRACK_SECTORS) };
        let rotation_ns = self.wait_ns(now + overhead_ns + seek_ns, lba);
        self.track = (end - 1) / TRACK_SECTORS;
        Service { overhead_ns, seek_ns, rotation_ns, transfer_ns: self.span_ns(lba, end) }
    }

    /// The track of the arm at `now`, which read-ahead may have moved.
    fn track_at(&self, now: Time) -> u64 {
        // The track of the last sector read: the arm moves to the next track only with the next sector.
        self.buffer.map_or(self.track, |buffer| (self.read_ahead(buffer, now).next - 1) / TRACK_SECTORS)
    }

    /// The time to move the arm between tracks: a seek, or a head switch within a cylinder.
    fn move_ns(&self, from: u64, to: u64) -> Time {
        let distance = (from / TRACKS).abs_diff(to / TRACKS) as usize;
        if distance == 0 && from != to { self.switch_ns } else { self.seek_ns[distance] }
    }

    /// The time from `now` until the start of sector `lba` passes the head.
    fn wait_ns(&self, now: Time, lba: u64) -> Time {
        let revolution = self.revolution_ns();
        let angle = offset(lba) % TRACK_SECTORS * self.sector_ns;
        (angle + revolution - now % revolution) % revolution
    }

    /// The time from the start of sector `from` until all sectors before `end` have passed the head.
    fn span_ns(&self, from: u64, end: u64) -> Time {
        if from == end { 0 } else { (offset(end - 1) + 1 - offset(from)) * self.sector_ns }
    }

    /// The time from the end of the sector before `next` until all sectors before `end` have passed the head.
    fn continue_ns(&self, next: u64, end: u64) -> Time {
        (offset(end - 1) - offset(next - 1)) * self.sector_ns
    }

    /// The time to continue from with [`Hp97560::continue_ns`] when read-ahead resumes at `next` after `now`:
    /// `next` less the skew before it.
    fn resume_time(&self, now: Time, next: u64) -> Time {
        let skew_ns = (offset(next) - offset(next - 1) - 1) * self.sector_ns;
        (now + self.wait_ns(now, next)).saturating_sub(skew_ns)
    }

    fn revolution_ns(&self) -> Time {
        self.sector_ns * TRACK_SECTORS
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of this drive, below 24e6 ns"
)]
fn rounded(ns: f64) -> Time {
    libm::round(ns) as Time
}

/// The seek time over a distance in cylinders, at scale 1.
fn seek_ms(distance: u32) -> f64 {
    match distance {
        0 => 0.0,
        1..=383 => 3.24 + 0.4 * libm::sqrt(f64::from(distance)),
        _ => 8.0 + 0.008 * f64::from(distance),
    }
}

/// A sector's distance from sector 0 along an unbroken transfer, in sector times.
fn offset(lba: u64) -> u64 {
    lba + lba / CYLINDER_SECTORS * SKEW_PER_CYLINDER + lba % CYLINDER_SECTORS / TRACK_SECTORS * TRACK_SKEW
}

/// The fence of a read that ends at `end`.
fn fence(end: u64) -> u64 {
    (end + FENCE_SECTORS).min(SECTORS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Time = 1_000;
    const SECTOR: Time = 208_229;
    const REVOLUTION: Time = 72 * SECTOR;

    fn cylinder(n: u64) -> u64 {
        n * CYLINDER_SECTORS
    }

    #[test]
    fn seeks_by_the_table() {
        // 3.24 + 0.4 * 1 = 3.64. 3.24 + 0.4 * sqrt(100) = 7.24. 8 + 0.008 * 384 = 11.072. 8 + 0.008 * 1961 =
        // 23.688.
        let drive = Hp97560::new(1);
        let seek = |distance: u64| drive.move_ns(0, distance * TRACKS);
        assert_eq!([seek(0), seek(1), seek(100)], [0, 3_640 * US, 7_240 * US]);
        assert_eq!([seek(384), seek(1_961)], [11_072 * US, 23_688 * US]);
        // Another head of the same cylinder: 1.6 ms. One of another cylinder: the seek has the switch in it.
        assert_eq!([drive.move_ns(0, 18), drive.move_ns(18, 19)], [1_600 * US, 3_640 * US]);
        // At scale 2, all is half.
        let half = Hp97560::new(2);
        assert_eq!(
            [half.move_ns(0, 19), half.overhead_ns, half.switch_ns],
            [1_820 * US, 1_100 * US, 800 * US]
        );
        assert_eq!((half.sector_ns, half.bus_sector_ns), (104_115, 25_600));
    }

    #[test]
    fn a_revolution_is_lost_by_coming_just_late() {
        // At time 0, sector 0 is under the head. After 2.2 ms of overhead it is 2.2 ms past: a revolution
        // less that.
        let mut drive = Hp97560::new(1);
        let service = drive.service(0, 0, 1, false);
        assert_eq!(service.overhead_ns, 2_200 * US);
        assert_eq!((service.seek_ns, service.rotation_ns), (0, REVOLUTION - 2_200 * US));
        assert_eq!(service.transfer_ns, SECTOR);
        // 4002 rpm is 14.9925 ms a revolution; the sector's nanoseconds are rounded, 72 of them differ by 16
        // ns.
        assert_eq!(REVOLUTION, 14_992_488);
    }

    #[test]
    fn full_stroke() {
        // Overhead 2.2 + seek 23.688 = 25.888 ms. Sector 0 of the last cylinder starts at offset 1961 *
        // (1368 + 162), modulo 72 that is 1961 * 18 mod 72 = 18: 18 * 208,229 ns = 3.748 ms; 25.888 ms is
        // 10.8955 ms into a revolution. The wait is 3.748,122 + 14.992,488 - 10.895,512 = 7.845,098 ms.
        let mut drive = Hp97560::new(1);
        let service = drive.service(0, cylinder(1_961), 1, true);
        assert_eq!((service.seek_ns, service.rotation_ns), (23_688 * US, 7_845_098));
    }

    #[test]
    fn skews_cover_what_they_are_for() {
        let drive = Hp97560::new(1);
        // From the last sector of a track to the first of the next: 8 sectors' time, 1.67 ms, for a switch of
        // 1.6.
        assert_eq!(drive.span_ns(71, 73) - 2 * SECTOR, TRACK_SKEW * SECTOR);
        assert!(drive.switch_ns <= TRACK_SKEW * SECTOR);
        assert_eq!(drive.span_ns(cylinder(1) - 1, cylinder(1) + 1) - 2 * SECTOR, CYLINDER_SKEW * SECTOR);
        assert!(drive.move_ns(18, 19) <= CYLINDER_SKEW * SECTOR);
    }

    /// The rate of `sectors` sectors in `ns` nanoseconds, in bytes per second.
    #[allow(clippy::cast_precision_loss, reason = "both below 2^53")]
    fn bytes_per_s(sectors: u64, ns: Time) -> f64 {
        sectors as f64 * 512.0 / (ns as f64 / 1e9)
    }

    /// Bytes per second of sequential requests of `sectors` sectors from sector 0 on, each after a pause.
    fn rate(scale: u32, sectors: u64, write: bool, pause_ns: Time) -> f64 {
        let mut drive = Hp97560::new(scale);
        let (mut now, mut lba) = (0, 0);
        while lba < cylinder(50) {
            now += pause_ns + drive.service(now + pause_ns, lba, sectors, write).total_ns();
            lba += sectors;
        }
        bytes_per_s(lba, now)
    }

    #[test]
    fn sustained_rate() {
        // 1368 sectors of 512 bytes in 1530 sector times of 208.2 us: 2.1986 MB/s.
        for (sectors, write) in [(78, false), (16, false), (78, true), (1_368, true)] {
            let rate = rate(1, sectors, write, 0);
            assert!((2.156e6..2.243e6).contains(&rate), "{sectors} sectors a time: {rate} bytes/s");
        }
        let doubled = rate(2, 78, false, 0);
        assert!((4.31e6..4.49e6).contains(&doubled), "{doubled}");
        // With pauses of 5 ms, the drive still reads 78 sectors (16.2 ms) ahead in time; writes lose a
        // revolution.
        assert!(rate(1, 78, false, 5_000 * US) > 2.15e6);
        assert!(rate(1, 78, true, 5_000 * US) < 1.5e6);
    }

    #[test]
    fn the_buffer_serves_up_to_the_fence() {
        let mut drive = Hp97560::new(1);
        let end = drive.service(0, 0, 16, false).total_ns();
        // 128 sectors more are in the buffer after 128 + 8 sector times (they cross one track end), 28.3 ms.
        let later = end + 136 * SECTOR;
        let hit = |sectors: u64| 2_200 * US + sectors * 51_200;
        let fresh = drive.clone();
        assert_eq!(drive.service(later, 16, 128, false).total_ns(), hit(128));
        assert_eq!(fresh.clone().service(later, 0, 16, false).total_ns(), hit(16));
        // A nanosecond earlier the last sector is not there, but overhead and bus take longer than what it
        // lacks.
        assert_eq!(fresh.clone().service(later - 1, 16, 128, false).total_ns(), hit(128));
        // Half a second later one sector beyond the fence has to come round: on average half a revolution.
        let beyond = fresh.clone().service(later + 500_000 * US, 16, 129, false).total_ns();
        assert!(beyond > hit(129) && beyond <= REVOLUTION + SECTOR, "{beyond}");
        // A write empties the buffer.
        let mut drive = fresh;
        let written = later + drive.service(later, 2_000, 8, true).total_ns();
        assert!(drive.service(written, 16, 16, false).seek_ns > 0);
    }

    #[test]
    fn the_buffer_holds_128_kb() {
        let mut drive = Hp97560::new(1);
        let mut now = drive.service(0, 0, 200, false).total_ns();
        now += drive.service(now, 200, 200, false).total_ns();
        // 400 sectors were read, and it goes on to 528; then those from 272 on are there, and 271 is not.
        let later = now + 1_000_000 * US;
        assert_eq!(drive.clone().service(later, 272, 1, false).total_ns(), 2_251_200);
        assert!(drive.service(later, 271, 1, false).total_ns() > 2_251_200);
    }

    #[test]
    fn random_reads() {
        // Mean seek: the sum of (N - d) / N^2 * 2 * seek(d) over all d. Half a revolution is 7.496 ms, 16
        // sectors with on average 15/72 of a skew of 8 take 3.68 ms, the overhead is 2.2 ms.
        let n = f64::from(CYLINDERS);
        let seek: f64 = (1..CYLINDERS).map(|d| 2.0 * (n - f64::from(d)) / (n * n) * seek_ms(d)).sum();
        let expected = seek + 7.496 + 3.68 + 2.2;
        let mut drive = Hp97560::new(1);
        let (mut now, mut state) = (0, 1u64);
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            now += drive.service(now, (state >> 20) % (SECTORS - 16), 16, false).total_ns();
        }
        let mean = f64::from(u32::try_from(now / 20_000).unwrap()) / 1e6;
        assert!((mean / expected - 1.0).abs() < 0.01, "mean {mean} ms, expected {expected} ms");
        assert!((24.0..27.0).contains(&mean));
    }

    #[test]
    fn both_ends_of_the_disk() {
        let mut drive = Hp97560::new(1);
        let first = drive.service(0, SECTORS - 8, 8, false).total_ns();
        // Reading on stops at the end of the disk.
        let hit = drive.service(first + 1_000_000 * US, SECTORS - 8, 8, false).total_ns();
        assert_eq!(hit, 2_200 * US + 8 * 51_200);
        assert!(drive.service(first + 2_000_000 * US, 0, 8, true).seek_ns == 23_688 * US);
    }
}
