use super::*;
use crate::membership::is_within;
use crate::time::MS;
use commonhold_contract::{Growth, MILLIONTH, PerResource, Permission};
use proptest::prelude::*;

/// A contract of equal top-level units.
fn equals(n: usize, scheme: Scheme) -> (Contract, Vec<UnitId>) {
    let mut contract = Contract::default();
    contract.machine.scheme = scheme;
    let ids = (0..n).map(|i| contract.add(None, &format!("u{i}"))).collect();
    (contract, ids)
}

fn facts(used: u64, short: bool) -> Facts {
    Facts { present: true, used, short, ..Facts::default() }
}

/// The facts of `kernel`, `shared`, and these units.
fn seen(kernel: u64, shared: u64, units: &[Facts]) -> Vec<Facts> {
    let common = |used| Facts { present: false, used, ..Facts::default() };
    [common(kernel), common(shared)].into_iter().chain(units.iter().copied()).collect()
}

/// So many frames could be called back from a unit within any time that is promised.
fn within_any(frames: u64) -> Pace {
    Pace::default().then(frames, 750, 1_000)
}

thread_local! {
    static LOOKS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// The time of the next look, 200 ms after the one before.
fn next_look() -> Time {
    LOOKS.with(|looks| looks.replace(looks.get() + 1)) * 200 * MS
}

/// A step with frames of one byte, and the rights of who is there.
fn step(
    state: State,
    contract: &Contract,
    frames: u64,
    units: &[Facts],
    look: Look,
) -> (State, Vec<Allowance>) {
    let mut rights = Rights::new(contract);
    for (id, facts) in contract.ids().zip(units) {
        let _ = rights.set_present(id, facts.present);
    }
    step_of(state, contract, &rights, (frames, 1), units, look)
}

/// The same with these rights, and frames of so many bytes.
fn step_of(
    state: State,
    contract: &Contract,
    rights: &Rights,
    (frames, frame_bytes): (u64, u64),
    units: &[Facts],
    look: Look,
) -> (State, Vec<Allowance>) {
    let (now, delay_ns, first) = (next_look(), 0, &[][..]);
    let input = Input { contract, rights, frames, frame_bytes, units, now, look, delay_ns, first };
    let (state, shares) = super::step(state, input);
    let lent: u64 = shares.allowances.iter().map(|allowance| allowance.lent).sum();
    assert!(shares.terms.iter().map(|term| term.lent).sum::<u64>() >= lent, "{:?}", shares.terms);
    (state, shares.allowances)
}

fn look(state: State, contract: &Contract, frames: u64, units: &[Facts]) -> (State, Vec<Allowance>) {
    step(state, contract, frames, units, Look::Period)
}

fn looks(n: u32, state: State, contract: &Contract, frames: u64, units: &[Facts]) -> (State, Vec<Allowance>) {
    (0..n).fold((state, Vec::new()), |(state, _), _| look(state, contract, frames, units))
}

/// Of 1,000 frames, 100 are common. The first of two units leaves 430 idle, of which 80 are the reserve, and lends 350. The
/// contract has a third then: that changes nothing as long as it has no process. When it has, each is entitled to 300, and
/// the first leaves 280. So 150 come back, and no more.
#[test]
fn loans_outlast_a_unit_that_comes() {
    let (mut contract, _) = equals(2, Scheme::Isolate);
    let lends = [facts(20, false), facts(800, true)];
    let (state, all) = looks(30, State::default(), &contract, 1_000, &seen(60, 40, &lends));
    assert_eq!((all[2].lent, all[3].borrowed), (350, 350));
    contract.add(None, "new");
    let with = |new: Facts| seen(60, 40, &[lends[0], lends[1], new]);
    let (state, all) = look(state, &contract, 1_000, &with(Facts::default()));
    assert_eq!((all[2].lent, all[3].borrowed, all[4].allowed), (350, 350, 0));
    let (_, all) = look(state, &contract, 1_000, &with(facts(10, false)));
    assert_eq!((all[2].lent, all[3].borrowed, all[4].allowed), (200, 200, 300));
}

/// The first of two units called its frames back, and waits for them, far from its bound. It lends nothing anew until it has had
/// them for a second. A unit that was calm goes on lending what it does not need.
#[test]
fn who_waits_for_what_was_called_back_does_not_lend_it_anew() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let with = |owner: Facts| seen(60, 40, &[owner, facts(800, true)]);
    let waits = Facts { waits: true, ..facts(100, false) };
    let (state, all) = looks(30, State::default(), &contract, 1_000, &with(facts(20, false)));
    assert_eq!(all[2].lent, 350);
    let (calm, all) = look(state.clone(), &contract, 1_000, &with(waits));
    assert_eq!(all[2].lent, 270);
    assert!(calm.calm[2] >= CALM_LOOKS);
    let (state, all) = look(state, &contract, 1_000, &with(facts(100, true)));
    assert_eq!(all[2].lent, 0);
    let (state, all) = looks(2 * CALM_LOOKS, state, &contract, 1_000, &with(waits));
    assert_eq!(all[2].lent, 0);
    let had = with(facts(100, false));
    let (state, all) = looks(CALM_LOOKS - 1, state, &contract, 1_000, &had);
    assert_eq!(all[2].lent, 0);
    let (_, all) = look(state, &contract, 1_000, &had);
    assert!(all[2].lent > 0);
}

/// Of 1,000 frames, 100 are common, and each of three units is entitled to 300. The first leaves 280 idle, of which 80 are the
/// reserve. It lends at most 100, and 20 of these then; or a third of its 300, which is the same. The second borrows 50 at
/// most; or a tenth of the 900, which are 90.
#[test]
fn no_more_is_lent_and_borrowed_than_the_amounts() {
    let (mut contract, _) = equals(3, Scheme::Isolate);
    let units = seen(60, 40, &[facts(20, false), facts(300, true), facts(300, false)]);
    let mut loans = |lend: Permission, borrow: Permission| {
        (contract.units[2].lend.memory, contract.units[3].borrow.memory) = (lend, borrow);
        let (_, all) = looks(20, State::default(), &contract, 1_000, &units);
        assert_eq!(all[2].lent, all[3].borrowed);
        all[2].lent
    };
    let frames = |most| Permission::AtMost(Amount::Absolute(most));
    let part = |millionths| Permission::AtMost(Amount::Part(millionths));
    assert_eq!(loans(Permission::Yes, Permission::Yes), 200);
    assert_eq!(loans(frames(100), Permission::Yes), 20);
    assert_eq!(loans(part(333_334), Permission::Yes), 20);
    assert_eq!(loans(Permission::Yes, frames(50)), 50);
    assert_eq!(loans(Permission::Yes, part(100_000)), 90);
    assert_eq!(loans(frames(0), Permission::Yes), 0);
    assert_eq!(loans(Permission::Yes, part(0)), 0);
    // The reserve goes off first; with none, the amount is what is lent.
    contract.machine.reserve = Amount::Part(0);
    contract.units[2].lend.memory = frames(100);
    contract.units[3].borrow.memory = Permission::Yes;
    let (state, all) = looks(20, State::default(), &contract, 1_000, &units);
    assert_eq!((all[2].lent, all[3].borrowed), (100, 100));
    // An amount that sinks ends what is beyond it at once.
    contract.units[3].borrow.memory = frames(30);
    let (_, all) = look(state, &contract, 1_000, &units);
    assert_eq!((all[2].lent, all[3].borrowed), (30, 30));
}

/// 10,000 bytes are two frames of 4,096, and 4,095 are none; a part stays one.
#[test]
fn amounts_of_loans_are_in_whole_frames() {
    let absolute = |bytes| Permission::AtMost(Amount::Absolute(bytes));
    assert_eq!(in_whole_frames(absolute(10_000), 4_096), absolute(2));
    assert!(!in_whole_frames(absolute(4_095), 4_096).allows());
    let part = Permission::AtMost(Amount::Part(7));
    assert_eq!(in_whole_frames(part, 4_096), part);
}

/// Two borrowers from whom 100 and 50 frames could be called back in all the time that there is. Alone, each borrows that; both
/// together, half of it.
#[test]
fn borrowers_share_the_time_of_a_call_back() {
    let (contract, _) = equals(3, Scheme::Isolate);
    let borrower = |short, callable| Facts { callable: Some(within_any(callable)), ..facts(300, short) };
    let borrowed = |both| {
        let units = seen(60, 40, &[facts(20, false), borrower(true, 100), borrower(both, 50)]);
        let (_, all) = looks(20, State::default(), &contract, 1_000, &units);
        [all[3].borrowed, all[4].borrowed]
    };
    assert_eq!(borrowed(false), [100, 0]);
    assert_eq!(borrowed(true), [50, 25]);
}

/// Of 200 frames to lend, one unit has all, since all could be called back from it. Then another is short, from which 50 could:
/// of 150 and 50, 75 % and all of the time, 1/1.75 fits. The first gives back 56 at a look: while it has 144, 72 % of the
/// time, there is time for 28 % of the other's 50, rounded down.
#[test]
fn a_loan_waits_until_there_is_time_for_it() {
    let (contract, _) = equals(3, Scheme::Isolate);
    let units = |second: bool| {
        let borrower = |short, callable| Facts { callable: Some(within_any(callable)), ..facts(300, short) };
        seen(60, 40, &[facts(20, false), borrower(true, 200), borrower(second, 50)])
    };
    let borrowed = |all: &[Allowance]| [all[3].borrowed, all[4].borrowed];
    let (mut state, mut all) = looks(20, State::default(), &contract, 1_000, &units(false));
    assert_eq!(borrowed(&all), [200, 0]);
    for expected in [[144, 13], [88, 27], [86, 28], [86, 28]] {
        (state, all) = look(state, &contract, 1_000, &units(true));
        assert_eq!(borrowed(&all), expected);
    }
}

/// 100 frames a second come back, of which 75 are relied on in the first second, and 90 in each further one. Of 1,000 frames a
/// unit leaves 480 idle, and the reserve is 80. It lends as much as comes back within a second, at first; after 20 s within
/// two, after a minute within six, of which the eighths of an octave are rounded down.
#[test]
fn a_loan_grows_with_the_time_for_which_its_owner_left_it_idle() {
    let (mut contract, units) = equals(2, Scheme::Isolate);
    let pace = Pace::default().then(10_000, 10_000, 100);
    let seen = |owner: Facts| seen(0, 0, &[owner, Facts { callable: Some(pace), ..facts(1_000, true) }]);
    let idle = seen(facts(20, false));
    let lent = |contract: &Contract, looks: u32| {
        let (_, all) = self::looks(looks, State::default(), contract, 1_000, &idle);
        (all[2].lent, all[2].within_ns.unwrap_or(0) / MS, all[3].because)
    };
    assert_eq!(lent(&contract, 50), (75, 1_000, Because::BorrowsInTime));
    assert_eq!(lent(&contract, 102), (75 + 91, 2_013, Because::BorrowsInTime));
    assert_eq!(lent(&contract, 302).0, 400, "all of it but the reserve");
    contract.machine.reserve = Amount::Part(0);
    let (frames, within_ms, _) = lent(&contract, 302);
    assert_eq!((frames, within_ms), (480, 5_905));
    // A unit may say something else than the machine, and less than the first second is no bound.
    contract.units[units[0].index()].call_back_memory_grows.most_ns = Some(1_500 * MS);
    assert_eq!(lent(&contract, 302).0, 75 + 45);
    contract.units[units[0].index()].call_back_memory_grows.most_ns = Some(100 * MS);
    assert_eq!(lent(&contract, 302).0, 75);
    contract.units[units[0].index()].call_back_memory_grows = Growth { idle: Some(0), most_ns: None };
    assert_eq!(lent(&contract, 302).0, 75);
    // An owner that comes back has all of it at once, and begins anew.
    contract.units[units[0].index()].call_back_memory_grows = Growth::default();
    let (state, _) = self::looks(302, State::default(), &contract, 1_000, &idle);
    let (state, all) = look(state, &contract, 1_000, &seen(facts(21, true)));
    assert_eq!((all[2].lent, all[3].borrowed), (0, 0));
    let (_, all) = self::looks(30, state, &contract, 1_000, &idle);
    assert_eq!((all[2].lent, all[2].within_ns), (75, Some(1_000 * MS)));
}

/// One unit has slept for a minute, another needs its memory every second look but one: 75 frames of it would be back in a
/// second, 516 of the other's in six. What both lend is to be back in their times together.
#[test]
fn those_that_sleep_lend_more_than_those_that_come_back() {
    let (mut contract, _) = equals(3, Scheme::Isolate);
    contract.machine.reserve = Amount::Part(0);
    let pace = Pace::default().then(10_000, 10_000, 100);
    let all = |contract: &Contract, awake: u64| {
        let mut state = State::default();
        let mut last = Vec::new();
        for number in 0..305 {
            let used = if number % 20 == 0 { awake } else { 10 };
            let borrower = Facts { callable: Some(pace), ..facts(900, true) };
            let units = seen(0, 0, &[facts(13, false), facts(used, false), borrower]);
            (state, last) = look(state, contract, 1_000, &units);
        }
        (last[2].lent, last[3].lent, last[4].borrowed)
    };
    assert_eq!(all(&contract, 10), (257, 259, 516), "both sleep");
    // The second needs all of its 333 frames now and then: of these, what is back within a second, less what rounding takes.
    assert_eq!(all(&contract, 333), (318, 74, 392));
}

fn allowed(allowances: &[Allowance]) -> Vec<u64> {
    allowances.iter().map(|allowance| allowance.allowed).collect()
}

/// 1,000 frames, 60 for the kernel and 40 shared: three quotas of 300, whoever is there and whatever is idle. 1,001 leave a
/// frame over, which the first gets.
#[test]
fn quota_divides_what_the_common_parts_leave() {
    let (contract, _) = equals(3, Scheme::Quota);
    let units = seen(60, 40, &[facts(300, true), facts(10, false), Facts::default()]);
    let (_, first) = looks(20, State::default(), &contract, 1_000, &units);
    assert_eq!(allowed(&first)[2..], [300, 300, 300]);
    assert!(
        first[2..].iter().all(|a| a.because == Because::Scheme(Scheme::Quota) && a.borrowed + a.lent == 0)
    );
    let (_, second) = look(State::default(), &contract, 1_001, &units);
    assert_eq!(allowed(&second)[2..], [300, 300, 301]);
}

#[test]
fn smp_restricts_nobody() {
    let (contract, _) = equals(2, Scheme::Smp);
    let (_, all) =
        look(State::default(), &contract, 1_000, &seen(60, 40, &[facts(900, true), facts(0, true)]));
    assert_eq!(allowed(&all), [1_000; 4]);
}

/// 1,000 frames, reserve 8 % = 80, two units of 500. b is short with its 500, a uses 300. a is calm after 5 looks: the
/// excess is 200 - 80 = 120, and each look lends at most 1000/16 = 62 of it: 62, then 120, and there it stays.
#[test]
fn idle_less_the_reserve_is_lent_in_bounded_steps() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let at = |b| seen(0, 0, &[facts(300, false), facts(b, true)]);
    let (state, before) = looks(4, State::default(), &contract, 1_000, &at(500));
    assert_eq!(allowed(&before)[2..], [500, 500]);
    assert_eq!(before[3].because, Because::NothingIdle);
    let (state, first) = look(state, &contract, 1_000, &at(500));
    assert_eq!(allowed(&first)[2..], [438, 562]);
    assert_eq!((first[2].because, first[3].because), (Because::Lends, Because::Borrows));
    let (state, second) = look(state, &contract, 1_000, &at(562));
    assert_eq!(allowed(&second)[2..], [380, 620]);
    let (_, last) = looks(100, state, &contract, 1_000, &at(620));
    assert_eq!(allowed(&last)[2..], [380, 620]);
}

/// The same machine: a has lent 120, uses its 380, and is short: at the next look, be it between periods, it has its 500
/// again and b is down to 500.
#[test]
fn a_lender_that_is_short_has_its_entitlement_at_the_next_look() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let units = seen(0, 0, &[facts(300, false), facts(620, true)]);
    let (state, _) = looks(20, State::default(), &contract, 1_000, &units);
    let units = seen(0, 0, &[facts(380, true), facts(620, false)]);
    let (_, back) = step(state, &contract, 1_000, &units, Look::CallBack);
    assert_eq!(allowed(&back)[2..], [500, 500]);
    assert_eq!(back[2].because, Because::CalledBack { frames: 120 });
    assert_eq!(back[3].because, Because::GaveBack { frames: 120 });
}

/// b was short before a look between two periods, and waits for a frame since: at the period's end its loan grows all the
/// same, by 62, and does so once.
#[test]
fn shortness_between_two_periods_counts_at_the_next() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let at = |short| seen(0, 0, &[facts(300, false), facts(500, short)]);
    let (state, _) = looks(10, State::default(), &contract, 1_000, &at(false));
    let units = at(true);
    let (state, between) = step(state, &contract, 1_000, &units, Look::CallBack);
    assert_eq!(allowed(&between)[2..], [500, 500]);
    let (state, period) = look(state, &contract, 1_000, &at(false));
    assert_eq!(allowed(&period)[2..], [438, 562]);
    // Not short since, and not using it: it gives the loan back.
    let (_, after) = look(state, &contract, 1_000, &at(false));
    assert_eq!(allowed(&after)[2..], [500, 500]);
}

/// a has all its 500 frames in use, 300 of them cold: less the reserve of 8 %, 220 of 1,000 are lent, and 280 of 1,500 where
/// c does not use 100 of its own: those go first, and a lends the other 180.
#[test]
fn cold_frames_are_lent_after_unused_ones() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let cold = Facts { cold: 300, ..facts(500, false) };
    let (_, all) = looks(20, State::default(), &contract, 1_000, &seen(0, 0, &[cold, facts(720, true)]));
    assert_eq!(allowed(&all)[2..], [280, 720]);
    let (contract, _) = equals(3, Scheme::Isolate);
    let units = seen(0, 0, &[cold, facts(720, true), facts(400, false)]);
    let (_, all) = looks(30, State::default(), &contract, 1_500, &units);
    assert_eq!(
        all[2..].iter().map(|a| (a.lent, a.borrowed)).collect::<Vec<_>>(),
        [(180, 0), (0, 280), (100, 0)]
    );
}

/// a has its 500 frames in use and three more, which are as cold as 300 of the former: it gives up the three, and lends of the
/// 300 what the reserve leaves. Where only 200 of 800 are cold, or nobody is short, it keeps what it borrows.
#[test]
fn who_is_beyond_its_own_gives_up_what_is_cold_before_it_lends() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let after = |used: u64, cold: u64, short: bool| {
        let owner = Facts { cold, ..facts(used, false) };
        let units = seen(0, 0, &[owner, facts(if short { 500 } else { 100 }, short)]);
        let (_, all) = looks(20, State::default(), &contract, 1_000, &units);
        assert!(all.iter().all(|a| a.lent == 0 || a.borrowed == 0), "{all:?}");
        (all[2].lent, all[2].borrowed)
    };
    assert_eq!(after(503, 303, true), (220, 0));
    assert_eq!(after(503, 303, false), (0, 3));
    assert_eq!(after(800, 200, true), (0, 0));
    assert_eq!(after(800, 200, false), (0, 300));
}

/// Of three with 500 each, one borrows 100 and has 400 cold: that goes back, and then it lends as who never borrowed.
#[test]
fn a_cold_loan_is_given_back() {
    let (contract, _) = equals(3, Scheme::Isolate);
    let units =
        |short| seen(0, 0, &[Facts { cold: 400, ..facts(600, false) }, facts(500, short), facts(300, false)]);
    let (state, all) = looks(20, State::default(), &contract, 1_500, &units(false));
    assert_eq!([all[2].borrowed, all[4].lent], [80, 80]);
    let (_, all) = looks(20, state, &contract, 1_500, &units(true));
    assert_eq!(
        all[2..].iter().map(|a| (a.lent, a.borrowed)).collect::<Vec<_>>(),
        [(180, 0), (0, 380), (200, 0)]
    );
}

/// Who is short is lent 62 of 1,000; between two periods it keeps them, used or not, unless their owner wants them or they could
/// not be called back; at the period's end it gives back what it did not use.
#[test]
fn who_was_just_lent_something_is_given_a_period_to_use_it() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let units = |owner, borrower| seen(0, 0, &[owner, borrower]);
    let rests = facts(100, false);
    let (state, _) = looks(CALM_LOOKS, State::default(), &contract, 1_000, &units(rests, facts(500, false)));
    let (state, all) = look(state, &contract, 1_000, &units(rests, facts(500, true)));
    assert_eq!(allowed(&all)[2..], [438, 562]);
    let after = |owner, borrower, look| {
        let units = units(owner, borrower);
        allowed(&step(state.clone(), &contract, 1_000, &units, look).1)[3]
    };
    assert_eq!(after(rests, facts(500, false), Look::CallBack), 562);
    assert_eq!(after(facts(438, true), facts(500, false), Look::CallBack), 500);
    assert_eq!(
        after(rests, Facts { callable: Some(within_any(20)), ..facts(500, false) }, Look::CallBack),
        520
    );
    assert_eq!(after(rests, facts(510, false), Look::Period), 510);
}

/// Of 500 idle frames, less 80, a borrower has 420; if only 100 could be called back in time, it has 100, and gives the rest
/// back as soon as that is known, by 62 at a look.
#[test]
fn a_loan_is_no_larger_than_can_be_called_back() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let at = |b, callable: Option<u64>| {
        let callable = callable.map(within_any);
        seen(0, 0, &[facts(0, false), Facts { callable, ..facts(b, true) }])
    };
    let (state, all) = looks(20, State::default(), &contract, 1_000, &at(500, None));
    assert_eq!(all[3].borrowed, 420);
    let (state, all) = look(state, &contract, 1_000, &at(920, Some(100)));
    assert_eq!(all[3].borrowed, 358);
    let (_, all) = looks(20, state, &contract, 1_000, &at(600, Some(100)));
    assert_eq!((all[3].borrowed, all[2].lent), (100, 100));
    let (_, all) = looks(20, State::default(), &contract, 1_000, &at(500, Some(100)));
    assert_eq!(all[3].borrowed, 100);
}

/// Four units of 250, no reserve: d lends 200. a has all of it, then b and c become short too: 200/3 is 67, 67 and 66, and
/// a gives up one step of 1000/16 = 62 after the other until it is down to 67.
#[test]
fn borrowers_are_levelled() {
    let (mut contract, _) = equals(4, Scheme::Isolate);
    contract.machine.reserve = Amount::Part(0);
    let units =
        |a, b, c| seen(0, 0, &[facts(a, true), facts(b, b >= 250), facts(c, c >= 250), facts(50, false)]);
    // While b and c are not short, they have lent too: 250 - 200 each.
    let (state, first) = looks(30, State::default(), &contract, 1_000, &units(550, 200, 200));
    assert_eq!(allowed(&first)[2], 550);
    // Called back at once: 100 frames of b and c. d's 200 stay lent.
    let (state, second) = look(state, &contract, 1_000, &units(550, 250, 250));
    assert_eq!(allowed(&second)[2..], [450, 250, 250, 50]);
    let (state, third) = look(state, &contract, 1_000, &units(450, 250, 250));
    assert_eq!(allowed(&third)[2..], [450 - 124, 312, 312, 50]);
    let (_, last) = looks(20, state, &contract, 1_000, &units(326, 312, 312));
    assert_eq!(allowed(&last)[2..], [317, 317, 316, 50]);
}

/// Of frames of 4,096 bytes, b is limited to 600 and a part of one: beyond its 499 it gets 101. The 4,097 bytes that a
/// reserves are two frames, of which the others divide the rest alike; a reserve of 4,097 bytes is two frames too.
#[test]
fn limits_bound_loans_in_frames() {
    let (mut contract, ids) = equals(2, Scheme::Isolate);
    contract.machine.reserve = Amount::Part(0);
    contract.units[ids[1].index()].limit.memory = Some(Amount::Absolute(600 * 4096 + 4095));
    contract.units[ids[0].index()].hard.memory = Some(Amount::Absolute(4097));
    let mut rights = Rights::new(&contract);
    for id in &ids {
        rights.set_present(*id, true).unwrap();
    }
    let mut lent = |reserve: Amount| {
        contract.machine.reserve = reserve;
        let units = seen(0, 0, &[facts(100, false), facts(600, true)]);
        let last = (0..30).fold((State::default(), Vec::new()), |(state, _), _| {
            let (look, units, contract) = (Look::Period, &units[..], &contract);
            step_of(state, contract, &rights, (1_000, 4_096), units, look)
        });
        (allowed(&last.1)[3], last.1[3].entitled)
    };
    assert_eq!(lent(Amount::Part(0)), (600, 499));
    // Of the 401 frames that a leaves, all but 2.
    assert_eq!(lent(Amount::Absolute(399 * 4096 + 1)), (500, 499));
}

/// a's job has ended and left 400 frames of page cache. b alone is entitled to everything then, but as long as it is not
/// short a's pages may stay.
#[test]
fn what_an_absent_unit_left_stays_until_somebody_is_short() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let both = seen(0, 0, &[facts(400, false), facts(300, false)]);
    let (state, _) = looks(10, State::default(), &contract, 1_000, &both);
    let left = |b, short| seen(0, 0, &[Facts { used: 400, ..Facts::default() }, facts(b, short)]);
    let (state, calm) = looks(10, state, &contract, 1_000, &left(300, false));
    assert_eq!(allowed(&calm)[2..], [400, 600]);
    let (_, pressed) = look(state, &contract, 1_000, &left(600, true));
    assert_eq!(allowed(&pressed)[2..], [0, 1_000]);
}

fn permissions() -> impl Strategy<Value = Permission> {
    prop_oneof![
        2 => any::<bool>().prop_map(Permission::from),
        1 => (0u64..600).prop_map(|frames| Permission::AtMost(Amount::Absolute(frames))),
        1 => (0u64..=1_000_000).prop_map(|part| Permission::AtMost(Amount::Part(part))),
    ]
}

/// A random flat or nested contract.
fn contracts() -> impl Strategy<Value = Contract> {
    let unit = (
        1u64..500,
        permissions(),
        permissions(),
        proptest::option::of(1u64..1_500),
        proptest::option::of(0usize..4),
    );
    (proptest::collection::vec(unit, 1..7), 0u64..150_000).prop_map(|(units, reserve)| {
        let mut contract = Contract::default();
        contract.machine.reserve = Amount::Part(reserve);
        for (tickets, lend, borrow, limit, parent) in units {
            let parent = parent.map(|i| i + 2).filter(|i| *i < contract.units.len());
            let parent = parent.map(|i| UnitId(u32::try_from(i).unwrap()));
            let id = contract.add(parent, "u");
            let unit = &mut contract.units[id.index()];
            unit.tickets = PerResource::all(tickets);
            unit.lend.memory = lend;
            unit.borrow.memory = borrow;
            unit.limit.memory = limit.map(Amount::Absolute);
        }
        contract
    })
}

fn any_facts() -> impl Strategy<Value = Vec<Facts>> {
    let one = (any::<bool>(), 0u64..600, 0u64..600, any::<bool>(), proptest::option::of(0u64..600));
    let facts = |(present, used, cold, short, callable)| {
        let cold = if used % 2 == 0 { u64::min(used, cold) } else { 0 };
        let callable = Option::map(callable, within_any);
        let on_trial = (used % 7 == 0).then_some(used / 2);
        Facts { present, used, cold, short, waits: cold % 2 == 1, on_trial, callable }
    };
    proptest::collection::vec(one.prop_map(facts), 9)
}

fn sum(allowances: &[Allowance]) -> u64 {
    allowances[2..].iter().map(|allowance| allowance.allowed).sum()
}

/// Units that want so many frames, no more and no less, and use what they may.
fn demand(wanted: &[u64], allowances: &[Allowance], present: &[bool]) -> Vec<Facts> {
    let used = |(i, wanted): (usize, &u64)| {
        let used = (*wanted).min(allowances[i + 2].allowed);
        Facts { present: present[i], used, short: present[i] && *wanted > used, ..Facts::default() }
    };
    seen(30, 20, &wanted.iter().enumerate().map(used).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn promises_hold_whatever_happens(
        contract in contracts(),
        history in proptest::collection::vec((any_facts(), any::<bool>(), 1u32..9), 1..20),
    ) {
        let frames = 2_000;
        let mut state = State::default();
        // Each state of affairs lasts for some looks, so that units become calm, and lend.
        let lasting = history.iter().flat_map(|(units, periodic, n)| {
            (0..*n).map(move |i| (units, if *periodic || i + 1 < *n { Look::Period } else { Look::CallBack }))
        });
        for (units, look) in lasting {
            let before = state.allowed.clone();
            let (next, all) = step(state, &contract, frames, units, look);
            state = next;
            prop_assert!(sum(&all) + units[0].used + units[1].used <= frames);
            let of = |part: fn(&Allowance) -> u64| all.iter().map(part).sum::<u64>();
            prop_assert!(of(|a| a.lent) <= of(|a| a.borrowed), "what is lent has a borrower");
            for id in contract.held() {
                let (a, facts) = (all[id.index()], units[id.index()]);
                prop_assert_eq!(a.allowed, a.entitled - a.lent + a.borrowed);
                prop_assert!(a.lent == 0 || a.borrowed == 0);
                prop_assert!(a.allowed >= a.entitled.min(facts.used - facts.cold));
                if facts.short {
                    prop_assert!(a.allowed >= a.entitled);
                }
                if !contract.unit(id).borrow.memory.allows() {
                    prop_assert!(a.allowed <= a.entitled);
                }
                if !contract.unit(id).lend.memory.allows() {
                    prop_assert!(a.allowed >= a.entitled);
                }
                let asked = &contract;
                let inside = |unit: UnitId| asked.held().filter(move |sub| is_within(asked, *sub, unit));
                let around = match contract.unit(id).parent {
                    Some(parent) => inside(parent).map(|sub| all[sub.index()].entitled).sum(),
                    None => frames - units[0].used - units[1].used,
                };
                prop_assert!(a.lent <= contract.unit(id).lend.memory.most(a.entitled));
                prop_assert!(a.borrowed <= contract.unit(id).borrow.memory.most(around));
                if let Some(Amount::Absolute(limit)) = contract.unit(id).limit.memory {
                    let within: u64 = contract
                        .held()
                        .filter(|sub| is_within(&contract, *sub, id))
                        .map(|sub| all[sub.index()].allowed)
                        .sum();
                    prop_assert!(within <= limit, "{} of {}", within, limit);
                }
                if let (Look::CallBack, Some(before)) = (look, before.get(id.index())) {
                    prop_assert!(a.allowed <= (*before).max(a.entitled));
                }
            }
        }
    }

    /// Amounts that are more than there is are a yes.
    #[test]
    fn boundless_amounts_change_nothing(
        contract in contracts(),
        history in proptest::collection::vec((any_facts(), any::<bool>(), 1u32..9), 1..20),
        huge in prop_oneof![Just(Amount::Absolute(u64::MAX)), Just(Amount::Absolute(2_000)), Just(Amount::Part(MILLIONTH))],
    ) {
        let with = |yes: Permission| {
            let mut contract = contract.clone();
            for unit in &mut contract.units {
                for permission in [&mut unit.lend.memory, &mut unit.borrow.memory] {
                    *permission = if permission.allows() { yes } else { Permission::No };
                }
                // What a unit around one is entitled to may be less than what is lent from outside.
                if huge == Amount::Part(MILLIONTH) && unit.parent.is_some() {
                    unit.borrow.memory = Permission::Yes;
                }
            }
            contract
        };
        let both = [with(Permission::Yes), with(Permission::AtMost(huge))];
        let mut states = [State::default(), State::default()];
        for (units, periodic, n) in &history {
            for i in 0..*n {
                let look = if *periodic || i + 1 < *n { Look::Period } else { Look::CallBack };
                let mut made = Vec::new();
                for (contract, state) in both.iter().zip(&mut states) {
                    let (next, all) = step(core::mem::take(state), contract, 2_000, units, look);
                    *state = next;
                    made.push(all);
                }
                prop_assert_eq!(&made[0], &made[1]);
            }
        }
    }

    /// As soon as no time grows any more: until then, lenders take each other's place.
    #[test]
    fn constant_demands_come_to_rest(
        mut contract in contracts(),
        wanted in proptest::collection::vec(0u64..1_200, 6),
        present in proptest::collection::vec(any::<bool>(), 6),
        start in any_facts(),
    ) {
        contract.machine.call_back_memory_grows = Growth::default();
        let (mut state, mut all) = looks(7, State::default(), &contract, 2_000, &start);
        let n = contract.units.len() - 2;
        let mut settled = Vec::new();
        for i in 0..120 {
            let units = demand(&wanted[..n], &all, &present);
            (state, all) = look(state, &contract, 2_000, &units);
            if i == 60 {
                settled.clone_from(&all);
            }
            if i > 60 {
                prop_assert_eq!(allowed(&all), allowed(&settled), "at look {}", i);
            }
        }
    }

    /// Borrowers that are called on at once share the time: what all have on loan comes back within it, at rest, and no loan
    /// grows while that is not so.
    #[test]
    fn all_that_is_lent_comes_back_in_time(
        contract in contracts(),
        wanted in proptest::collection::vec(0u64..1_200, 6),
        callable in proptest::collection::vec(proptest::option::of(0u64..600), 6),
        start in any_facts(),
    ) {
        let n = contract.units.len() - 2;
        let (mut state, mut all) = looks(7, State::default(), &contract, 2_000, &start);
        let (mut before, mut millionths) = (allowed(&all), 0);
        for _ in 0..60 {
            let mut units = demand(&wanted[..n], &all, &[true; 6]);
            units[2..].iter_mut().zip(&callable).for_each(|(unit, callable)| unit.callable = callable.map(within_any));
            (state, all) = look(state, &contract, 2_000, &units);
            let loans = all[2..].iter().zip(&callable).filter(|(a, _)| a.borrowed > 0);
            // A loan where nothing could be called back takes all the time, and more.
            let part = |(a, callable): (&Allowance, &Option<u64>)| {
                callable.map_or(0, |all| (a.borrowed * 1_000_000).checked_div(all).unwrap_or(2_000_000))
            };
            millionths = loans.map(part).sum::<u64>();
            for ((a, before), callable) in all[2..].iter().zip(&before[2..]).zip(&callable) {
                // What is there at once takes no time.
                let grew = callable.is_some() && a.allowed > a.entitled.max(*before);
                prop_assert!(millionths <= 1_000_000 || !grew, "{} millionths", millionths);
            }
            before = allowed(&all);
        }
        prop_assert!(millionths <= 1_000_000, "{} millionths", millionths);
    }

    /// What a unit may have, at rest, that wants more than there is, whatever others want: to within a frame per unit and level.
    #[test]
    fn more_tickets_are_never_less(
        contract in contracts(),
        more in 1u64..500,
        lender in proptest::collection::vec(any::<bool>(), 5),
    ) {
        let n = contract.units.len() - 2;
        let others = lender[..n - 1].iter().map(|lends| if *lends { 20 } else { 3_000 });
        let wanted: Vec<u64> = core::iter::once(3_000).chain(others).collect();
        let rest = |contract: &Contract| {
            let (mut state, mut all) = looks(1, State::default(), contract, 2_000, &seen(30, 20, &[]));
            for _ in 0..60 {
                let units = demand(&wanted, &all, &[true; 6]);
                (state, all) = look(state, contract, 2_000, &units);
            }
            all[2].allowed
        };
        let mut raised = contract.clone();
        raised.units[2].tickets.memory += more;
        // Others' limits make what a share is worth depend on more than tickets.
        let free = |contract: &Contract| {
            let mut contract = contract.clone();
            contract.units.iter_mut().for_each(|unit| {
                unit.limit.memory = None;
                unit.lend.memory = true.into();
                unit.borrow.memory = true.into();
            });
            contract
        };
        prop_assert!(rest(&free(&raised)) + 2 * n as u64 >= rest(&free(&contract)));
    }
}
