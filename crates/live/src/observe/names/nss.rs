//! Lookups of users and groups in the machine's name service (NSS), which uses files, LDAP and other sources,
//! as configured in `/etc/nsswitch.conf`.
//!
//! Every lookup is one call into the C library, repeated with a larger buffer while the entry does not fit. A
//! call blocks until the servers behind it answer.

use std::ffi::{CStr, CString};
use std::fmt;
use std::ptr;

use thiserror::Error;

/// The two databases in which names have numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Book {
    /// Users.
    Passwd,
    /// Groups.
    Group,
}

impl Book {
    /// The database's name for `getent`.
    pub fn name(self) -> &'static str {
        match self {
            Book::Passwd => "passwd",
            Book::Group => "group",
        }
    }
}

/// Shows the kind of the database's entries: `user` or `group`.
impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Book::Passwd => "user",
            Book::Group => "group",
        })
    }
}

/// Why the name service gave no answer. That an entry does not exist is an answer, and no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LookupError {
    /// The entry does not fit into the largest buffer.
    #[error("its entry takes more than {} MiB (ERANGE); name a smaller group", BUFFER_BYTES_MAX >> 20)]
    TooLarge,
    /// An error number: a server does not answer, files may not be read, memory is exhausted.
    #[error("the name service fails: {}", std::io::Error::from_raw_os_error(*.0))]
    Service(i32),
}

/// The answer to a lookup; `None` if the name service has no such entry.
pub type Found<T> = Result<Option<T>, LookupError>;

/// The largest buffer, in bytes. A group of 60,000 members takes about 2 MB; LDAP allows names of 256 bytes.
const BUFFER_BYTES_MAX: usize = 64 << 20;

/// The name service. A trait, so that a test can use a service that is slow or fails.
pub(crate) trait NameService: fmt::Debug + Send + Sync {
    /// The number of a user or of a group.
    fn number(&self, book: Book, name: &str) -> Found<u32>;
    /// The login name of a user.
    fn user_name(&self, uid: u32) -> Found<String>;
    /// The groups of a user, the primary one first.
    fn groups_of(&self, uid: u32) -> Found<Vec<u32>>;
}

/// The C library's name service.
#[derive(Debug)]
pub(crate) struct Nss;

impl NameService for Nss {
    fn number(&self, book: Book, name: &str) -> Found<u32> {
        // A name with a NUL byte matches no entry.
        let Ok(name) = CString::new(name) else { return Ok(None) };
        match book {
            Book::Passwd => uid_of(&name),
            Book::Group => gid_of(&name),
        }
    }

    fn user_name(&self, uid: u32) -> Found<String> {
        let Some((record, _buffer)) = by_uid(uid)? else { return Ok(None) };
        // SAFETY: after success pw_name points to a string in the buffer, which is still alive here.
        Ok(Some(unsafe { CStr::from_ptr(record.pw_name) }.to_string_lossy().into_owned()))
    }

    fn groups_of(&self, uid: u32) -> Found<Vec<u32>> {
        let Some((record, _buffer)) = by_uid(uid)? else { return Ok(None) };
        groups_that_fit(|groups, count| {
            // SAFETY: pw_name points to a string in the buffer, which is still alive here; `count` is the
            // length of `groups`.
            unsafe { libc::getgrouplist(record.pw_name, record.pw_gid, groups.as_mut_ptr(), count) }
        })
        .map(Some)
    }
}

fn uid_of(name: &CStr) -> Found<u32> {
    let entry = with_buffer(|record: &mut libc::passwd, buffer, found| {
        // SAFETY: `name` ends with NUL; record, buffer and found are valid for writing, the buffer's true
        // length is given.
        unsafe { libc::getpwnam_r(name.as_ptr(), record, buffer.as_mut_ptr().cast(), buffer.len(), found) }
    })?;
    Ok(entry.map(|(record, _buffer)| record.pw_uid))
}

fn gid_of(name: &CStr) -> Found<u32> {
    let entry = with_buffer(|record: &mut libc::group, buffer, found| {
        // SAFETY: as in `uid_of`.
        unsafe { libc::getgrnam_r(name.as_ptr(), record, buffer.as_mut_ptr().cast(), buffer.len(), found) }
    })?;
    Ok(entry.map(|(record, _buffer)| record.gr_gid))
}

/// A user's entry, with the buffer that contains its strings.
fn by_uid(uid: u32) -> Found<(libc::passwd, Vec<u8>)> {
    with_buffer(|record: &mut libc::passwd, buffer, found| {
        // SAFETY: as in `uid_of`.
        unsafe { libc::getpwuid_r(uid, record, buffer.as_mut_ptr().cast(), buffer.len(), found) }
    })
}

/// Calls `look_up`, a reentrant function of the C library, with growing buffers until the entry fits. Returns
/// the record with the buffer that it points into.
fn with_buffer<T>(mut look_up: impl FnMut(&mut T, &mut [u8], *mut *mut T) -> i32) -> Found<(T, Vec<u8>)> {
    let mut buffer = vec![0u8; 1024];
    loop {
        // SAFETY: passwd and group are plain C records for which all zeroes is a valid value.
        let mut record: T = unsafe { std::mem::zeroed() };
        let mut found: *mut T = ptr::null_mut();
        match look_up(&mut record, &mut buffer, &raw mut found) {
            0 if found.is_null() => return Ok(None),
            0 => return Ok(Some((record, buffer))),
            libc::EINTR => {}
            libc::ERANGE if buffer.len() < BUFFER_BYTES_MAX => buffer.resize(buffer.len() * 2, 0),
            libc::ERANGE => return Err(LookupError::TooLarge),
            errno => return Err(LookupError::Service(errno)),
        }
    }
}

/// Calls `look_up`, which fills a list with groups, with growing lists until all groups fit. If they do not
/// fit, `look_up` returns a negative number, and sets its second argument to the number of groups.
fn groups_that_fit(
    mut look_up: impl FnMut(&mut [u32], *mut libc::c_int) -> i32,
) -> Result<Vec<u32>, LookupError> {
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).map_err(|_| LookupError::TooLarge)?;
        let status = look_up(&mut groups, &raw mut count);
        let count = usize::try_from(count).unwrap_or(0);
        if status >= 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        if count <= groups.len() {
            // The list was long enough, so the failure has another cause. For getgrouplist(3), that can only
            // be an allocation.
            return Err(LookupError::Service(libc::ENOMEM));
        }
        if count > BUFFER_BYTES_MAX / size_of::<u32>() {
            return Err(LookupError::TooLarge);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn root_is_found_and_unknown_names_are_not() {
        assert_eq!(Nss.number(Book::Passwd, "root"), Ok(Some(0)));
        assert_eq!(Nss.number(Book::Group, "root"), Ok(Some(0)));
        assert_eq!(Nss.number(Book::Passwd, "no such user"), Ok(None));
        assert_eq!(Nss.number(Book::Group, "no\0group"), Ok(None));
        assert_eq!(Nss.user_name(0), Ok(Some("root".to_owned())));
        assert_eq!(Nss.user_name(3_999_999_999), Ok(None));
        assert_eq!(Nss.groups_of(0).unwrap().unwrap().first(), Some(&0));
        assert_eq!(Nss.groups_of(3_999_999_999), Ok(None));
    }

    #[cfg(target_env = "gnu")]
    unsafe extern "C" {
        fn fgetgrent_r(
            stream: *mut libc::FILE,
            record: *mut libc::group,
            buffer: *mut libc::c_char,
            length: libc::size_t,
            found: *mut *mut libc::group,
        ) -> libc::c_int;
    }

    /// The C library reads a real file: 60,000 names of 23 characters and their pointers are 1.9 MB.
    #[cfg(target_env = "gnu")]
    #[test]
    fn a_group_of_sixty_thousand_members_fits() {
        let mut file = tempfile::tempfile().unwrap();
        let members: Vec<String> = (0..60_000).map(|n| format!("student-of-physics-{n:05}")).collect();
        writeln!(file, "students:x:5000:{}", members.join(",")).unwrap();
        // SAFETY: the descriptor is open, and closed only after the stream's last use; the mode ends with
        // NUL.
        let stream = unsafe { libc::fdopen(libc::dup(file.as_raw_fd()), c"r".as_ptr()) };
        assert!(!stream.is_null());
        let entry = with_buffer(|record: &mut libc::group, buffer, found| {
            // SAFETY: the stream is open; record, buffer and found are valid for writing, the true length is
            // given.
            unsafe {
                libc::rewind(stream);
                fgetgrent_r(stream, record, buffer.as_mut_ptr().cast(), buffer.len(), found)
            }
        });
        // SAFETY: nothing uses the stream any more.
        unsafe { libc::fclose(stream) };
        let (record, buffer) = entry.unwrap().unwrap();
        assert_eq!(record.gr_gid, 5000);
        assert!(buffer.len() > 1 << 20);
    }

    #[test]
    fn a_buffer_grows_up_to_its_limit_until_the_entry_fits() {
        let ask_for = |bytes: usize| {
            let mut asked = Vec::new();
            let entry = with_buffer(|record: &mut libc::group, buffer, found| {
                asked.push(buffer.len());
                record.gr_gid = 7;
                // SAFETY: `found` is valid for writing.
                unsafe { *found = record };
                if buffer.len() < bytes { libc::ERANGE } else { 0 }
            });
            (entry.map(|entry| entry.map(|(record, _)| record.gr_gid)), asked)
        };
        assert_eq!(ask_for(5_000), (Ok(Some(7)), vec![1024, 2048, 4096, 8192]));
        let (entry, asked) = ask_for(usize::MAX);
        assert_eq!((entry, asked.last()), (Err(LookupError::TooLarge), Some(&BUFFER_BYTES_MAX)));
    }

    #[test]
    fn an_error_differs_from_a_missing_entry() {
        for errno in [libc::EIO, libc::ENOENT, libc::EMFILE, libc::ECONNREFUSED] {
            let entry = with_buffer(|_: &mut libc::passwd, _, _| errno);
            assert_eq!(entry.map(|entry| entry.is_some()), Err(LookupError::Service(errno)));
        }
        let mut interrupted = 3;
        let entry = with_buffer(|_: &mut libc::passwd, _, _| {
            interrupted -= 1;
            if interrupted == 0 { 0 } else { libc::EINTR }
        });
        assert_eq!(entry.map(|entry| entry.is_some()), Ok(false));
        let message = LookupError::Service(libc::EIO).to_string();
        assert_eq!(message, "the name service fails: Input/output error (os error 5)");
        assert_eq!(
            LookupError::TooLarge.to_string().split(';').next(),
            Some("its entry takes more than 64 MiB (ERANGE)")
        );
    }

    #[test]
    fn a_list_of_groups_grows_until_all_fit() {
        let groups_of = |count_of_user: i32, refuses: bool| {
            groups_that_fit(|groups, count| {
                let fits = groups.len() >= usize::try_from(count_of_user).unwrap();
                // SAFETY: `count` is valid for writing.
                unsafe { *count = count_of_user };
                if fits && !refuses { count_of_user } else { -1 }
            })
        };
        assert_eq!(groups_of(70_000, false).map(|groups| groups.len()), Ok(70_000));
        assert_eq!(groups_of(3, true), Err(LookupError::Service(libc::ENOMEM)));
        assert_eq!(groups_of(i32::MAX, false), Err(LookupError::TooLarge));
    }
}
