//! Users and groups as this machine knows them: from files, LDAP, or whatever its name service is told to ask.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::ptr;

use commonhold_policy::membership::Names;

/// The machine's name service, each answer asked for once: a directory server must not be asked at every look.
#[derive(Debug, Default)]
pub struct SystemNames {
    uids: RefCell<BTreeMap<String, Option<u32>>>,
    gids: RefCell<BTreeMap<String, Option<u32>>>,
    user_names: RefCell<BTreeMap<u32, Option<String>>>,
    groups: RefCell<BTreeMap<u32, Vec<u32>>>,
}

impl SystemNames {
    /// Nothing asked yet.
    pub fn new() -> Self {
        SystemNames::default()
    }

    /// The name of a user; `None` if the number has none.
    pub fn user_name(&self, uid: u32) -> Option<String> {
        self.user_names.borrow_mut().entry(uid).or_insert_with(|| ask_user_name(uid)).clone()
    }

    /// The groups that a user is in, the primary one first; none of a user that is not known.
    pub fn groups_of(&self, uid: u32) -> Vec<u32> {
        self.groups.borrow_mut().entry(uid).or_insert_with(|| ask_groups(uid).unwrap_or_default()).clone()
    }

    /// Forgets every answer, so that the next questions are asked anew: users come and go between two contracts.
    pub fn forget(&self) {
        self.uids.borrow_mut().clear();
        self.gids.borrow_mut().clear();
        self.user_names.borrow_mut().clear();
        self.groups.borrow_mut().clear();
    }
}

impl Names for SystemNames {
    fn uid(&self, name: &str) -> Option<u32> {
        cached(&self.uids, name, ask_uid)
    }

    fn gid(&self, name: &str) -> Option<u32> {
        cached(&self.gids, name, ask_gid)
    }
}

fn cached(
    answers: &RefCell<BTreeMap<String, Option<u32>>>,
    name: &str,
    ask: fn(&CStr) -> Option<u32>,
) -> Option<u32> {
    if let Some(answer) = answers.borrow().get(name) {
        return *answer;
    }
    // A name with a NUL in it is nobody's.
    let answer = CString::new(name).ok().and_then(|name| ask(&name));
    answers.borrow_mut().insert(name.to_owned(), answer);
    answer
}

fn ask_uid(name: &CStr) -> Option<u32> {
    with_room(|record: &mut libc::passwd, room, found| {
        // SAFETY: `name` ends with NUL; record, room and found are valid for writing, room's true length is given.
        unsafe { libc::getpwnam_r(name.as_ptr(), record, room.as_mut_ptr().cast(), room.len(), found) }
    })
    .map(|(record, _room)| record.pw_uid)
}

fn ask_gid(name: &CStr) -> Option<u32> {
    with_room(|record: &mut libc::group, room, found| {
        // SAFETY: as in `ask_uid`.
        unsafe { libc::getgrnam_r(name.as_ptr(), record, room.as_mut_ptr().cast(), room.len(), found) }
    })
    .map(|(record, _room)| record.gr_gid)
}

fn ask_user_name(uid: u32) -> Option<String> {
    let (record, _room) = with_room(|record: &mut libc::passwd, room, found| {
        // SAFETY: as in `ask_uid`.
        unsafe { libc::getpwuid_r(uid, record, room.as_mut_ptr().cast(), room.len(), found) }
    })?;
    // SAFETY: after success pw_name points to a string in the room, which is still alive here.
    Some(unsafe { CStr::from_ptr(record.pw_name) }.to_string_lossy().into_owned())
}

fn ask_groups(uid: u32) -> Option<Vec<u32>> {
    let (record, _room) = with_room(|record: &mut libc::passwd, room, found| {
        // SAFETY: as in `ask_uid`.
        unsafe { libc::getpwuid_r(uid, record, room.as_mut_ptr().cast(), room.len(), found) }
    })?;
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).ok()?;
        // SAFETY: pw_name points to a string in the room, which is still alive here; `count` is the length of `groups`.
        let fits =
            unsafe { libc::getgrouplist(record.pw_name, record.pw_gid, groups.as_mut_ptr(), &raw mut count) };
        let count = usize::try_from(count).ok()?;
        if fits >= 0 {
            groups.truncate(count);
            return Some(groups);
        }
        if count <= groups.len() || count > ROOM_BYTES_MAX {
            return None;
        }
        groups.resize(count, 0);
    }
}

/// The largest room that is tried: a group of 30,000 members takes less.
const ROOM_BYTES_MAX: usize = 1 << 20;

/// Asks with more and more room until the answer fits. Returns the record together with the room that it points into.
fn with_room<T>(mut ask: impl FnMut(&mut T, &mut [u8], *mut *mut T) -> i32) -> Option<(T, Vec<u8>)> {
    let mut room = vec![0u8; 1024];
    loop {
        // SAFETY: passwd and group are plain C records for which all zeroes is a valid value.
        let mut record: T = unsafe { std::mem::zeroed() };
        let mut found: *mut T = ptr::null_mut();
        match ask(&mut record, &mut room, &raw mut found) {
            0 if found.is_null() => return None,
            0 => return Some((record, room)),
            libc::EINTR => {}
            libc::ERANGE if room.len() < ROOM_BYTES_MAX => room.resize(room.len() * 2, 0),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_nonsense_is_not() {
        let names = SystemNames::new();
        for _ in 0..2 {
            assert_eq!((names.uid("root"), names.gid("root")), (Some(0), Some(0)));
            assert_eq!((names.uid("no such user"), names.gid("no\0group")), (None, None));
            assert_eq!(names.user_name(0).as_deref(), Some("root"));
            assert_eq!(names.user_name(3_999_999_999), None);
        }
        assert_eq!((names.groups_of(0).first(), names.groups_of(3_999_999_999)), (Some(&0), Vec::new()));
        names.forget();
        assert_eq!(names.uid("root"), Some(0));
    }

    #[test]
    fn room_grows_until_the_answer_fits() {
        let mut asked = Vec::new();
        let answer = with_room(|record: &mut libc::group, room, found| {
            asked.push(room.len());
            record.gr_gid = 7;
            // SAFETY: `found` is valid for writing.
            unsafe { *found = record };
            if room.len() < 5_000 { libc::ERANGE } else { 0 }
        });
        assert_eq!(answer.map(|(record, _)| record.gr_gid), Some(7));
        assert_eq!(asked, [1024, 2048, 4096, 8192]);
    }
}
