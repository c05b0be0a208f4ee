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

/// A unit that is present.
fn facts(used: u64, short: bool) -> Facts {
    Facts { present: true, used, short, ..Facts::default() }
}

/// The facts of `kernel`, `shared`, and these units.
fn all_facts(kernel: u64, shared: u64, units: &[Facts]) -> Vec<Facts> {
    let common = |used| Facts { present: false, used, ..Facts::default() };
    [common(kernel), common(shared)].into_iter().chain(units.iter().copied()).collect()
}

/// A curve by which `frames` could be called back within any promised time.
fn within_any(frames: u64) -> ReclaimCurve {
    ReclaimCurve::default().with_part(frames, 750, 1_000)
}

thread_local! {
    static SAMPLES: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// The time of the next sample, 200 ms after the one before.
fn next_sample() -> Time {
    SAMPLES.with(|samples| samples.replace(samples.get() + 1)) * 200 * MS
}

/// A step with frames of one byte, and the rights that follow from who is present.
fn step(
    loans: LoanBook,
    contract: &Contract,
    frames: u64,
    units: &[Facts],
    trigger: Trigger,
) -> (LoanBook, Vec<Allowance>) {
    let mut rights = Rights::new(contract);
    for (id, facts) in contract.ids().zip(units) {
        let _ = rights.set_present(id, facts.present);
    }
    step_with(loans, contract, &rights, (frames, 1), units, trigger)
}

/// The same with these rights and this size of frames.
fn step_with(
    loans: LoanBook,
    contract: &Contract,
    rights: &Rights,
    (frames, frame_bytes): (u64, u64),
    units: &[Facts],
    trigger: Trigger,
) -> (LoanBook, Vec<Allowance>) {
    let (now, delay_ns, first) = (next_sample(), 0, &[][..]);
    let input = Input { contract, rights, frames, frame_bytes, units, now, trigger, delay_ns, first };
    let (loans, shares) = super::step(loans, input);
    let lent: u64 = shares.allowances.iter().map(|allowance| allowance.lent).sum();
    assert!(shares.terms.iter().map(|term| term.lent).sum::<u64>() >= lent, "{:?}", shares.terms);
    (loans, shares.allowances)
}

fn period(loans: LoanBook, contract: &Contract, frames: u64, units: &[Facts]) -> (LoanBook, Vec<Allowance>) {
    step(loans, contract, frames, units, Trigger::Period)
}

fn periods(
    n: u32,
    loans: LoanBook,
    contract: &Contract,
    frames: u64,
    units: &[Facts],
) -> (LoanBook, Vec<Allowance>) {
    (0..n).fold((loans, Vec::new()), |(loans, _), _| period(loans, contract, frames, units))
}

/// Of 1,000 frames, 100 are common. The first of two units leaves 430 idle, of which 80 are the reserve, and
/// lends 350. Then the contract gets a third unit. That changes nothing while it has no processes. When it
/// has, each unit is entitled to 300, and the first leaves 280. So 150 come back, and no more.
#[test]
fn loans_survive_a_new_unit() {
    let (mut contract, _) = equals(2, Scheme::Isolate);
    let lends = [facts(20, false), facts(800, true)];
    let (state, all) = periods(30, LoanBook::default(), &contract, 1_000, &all_facts(60, 40, &lends));
    assert_eq!((all[2].lent, all[3].borrowed), (350, 350));
    contract.add(None, "new");
    let with = |new: Facts| all_facts(60, 40, &[lends[0], lends[1], new]);
    let (state, all) = period(state, &contract, 1_000, &with(Facts::default()));
    assert_eq!((all[2].lent, all[3].borrowed, all[4].allowed), (350, 350, 0));
    let (_, all) = period(state, &contract, 1_000, &with(facts(10, false)));
    assert_eq!((all[2].lent, all[3].borrowed, all[4].allowed), (200, 200, 300));
}

/// The first of two units called its frames back, and waits for them, far from its bound. It lends nothing
/// until it has had them for a second. A unit that is calm goes on lending what it does not need.
#[test]
fn a_unit_that_waits_for_its_frames_does_not_lend_them_again() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let with = |owner: Facts| all_facts(60, 40, &[owner, facts(800, true)]);
    let waits = Facts { waits: true, ..facts(100, false) };
    let (state, all) = periods(30, LoanBook::default(), &contract, 1_000, &with(facts(20, false)));
    assert_eq!(all[2].lent, 350);
    let (calm, all) = period(state.clone(), &contract, 1_000, &with(waits));
    assert_eq!(all[2].lent, 270);
    assert!(calm.calm[2] >= CALM_SAMPLES);
    let (state, all) = period(state, &contract, 1_000, &with(facts(100, true)));
    assert_eq!(all[2].lent, 0);
    let (state, all) = periods(2 * CALM_SAMPLES, state, &contract, 1_000, &with(waits));
    assert_eq!(all[2].lent, 0);
    let has_them = with(facts(100, false));
    let (state, all) = periods(CALM_SAMPLES - 1, state, &contract, 1_000, &has_them);
    assert_eq!(all[2].lent, 0);
    let (_, all) = period(state, &contract, 1_000, &has_them);
    assert!(all[2].lent > 0);
}

/// Of 1,000 frames, 100 are common, and each of three units is entitled to 300. The first leaves 280 idle,
/// and the reserve is
/// 80. If the first may lend 100, or a third of its 300, 20 of these are beyond the reserve. The second may
///     borrow 50, or a
/// tenth of the 900.
#[test]
fn loans_do_not_exceed_the_permitted_amounts() {
    let (mut contract, _) = equals(3, Scheme::Isolate);
    let units = all_facts(60, 40, &[facts(20, false), facts(300, true), facts(300, false)]);
    let mut loans = |lend: Permission, borrow: Permission| {
        (contract.units[2].lend.memory, contract.units[3].borrow.memory) = (lend, borrow);
        let (_, all) = periods(20, LoanBook::default(), &contract, 1_000, &units);
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
    // The reserve is subtracted from the amount; without a reserve, the whole amount is lent.
    contract.machine.reserve = Amount::Part(0);
    contract.units[2].lend.memory = frames(100);
    contract.units[3].borrow.memory = Permission::Yes;
    let (state, all) = periods(20, LoanBook::default(), &contract, 1_000, &units);
    assert_eq!((all[2].lent, all[3].borrowed), (100, 100));
    // If the amount sinks, what exceeds it comes back at once.
    contract.units[3].borrow.memory = frames(30);
    let (_, all) = period(state, &contract, 1_000, &units);
    assert_eq!((all[2].lent, all[3].borrowed), (30, 30));
}

/// 10,000 bytes are two frames of 4,096, and 4,095 are no frame; a percentage stays a percentage.
#[test]
fn amounts_of_loans_are_in_whole_frames() {
    let absolute = |bytes| Permission::AtMost(Amount::Absolute(bytes));
    assert_eq!(in_whole_frames(absolute(10_000), 4_096), absolute(2));
    assert!(!in_whole_frames(absolute(4_095), 4_096).allows());
    let part = Permission::AtMost(Amount::Part(7));
    assert_eq!(in_whole_frames(part, 4_096), part);
}

/// 100 and 50 frames could be called back from two borrowers in the promised time. Alone, each borrows that;
/// together, each borrows half of it.
#[test]
fn borrowers_share_the_time_of_a_call_back() {
    let (contract, _) = equals(3, Scheme::Isolate);
    let borrower = |short, callable| Facts { callable: Some(within_any(callable)), ..facts(300, short) };
    let borrowed = |both| {
        let units = all_facts(60, 40, &[facts(20, false), borrower(true, 100), borrower(both, 50)]);
        let (_, all) = periods(20, LoanBook::default(), &contract, 1_000, &units);
        [all[3].borrowed, all[4].borrowed]
    };
    assert_eq!(borrowed(false), [100, 0]);
    assert_eq!(borrowed(true), [50, 25]);
}

/// One unit borrows all 200 lendable frames, since all could be called back from it. Then another is short,
/// from which 50 could. Of 150 and 50, which take 75 % and all of the time, 1/1.75 fits. The first gives back
/// 56 at a sample. While it has 144, which take 72 % of the time, there is time for 28 % of the other's 50,
/// rounded down.
#[test]
fn a_loan_waits_until_it_could_be_called_back_in_time() {
    let (contract, _) = equals(3, Scheme::Isolate);
    let units = |second: bool| {
        let borrower = |short, callable| Facts { callable: Some(within_any(callable)), ..facts(300, short) };
        all_facts(60, 40, &[facts(20, false), borrower(true, 200), borrower(second, 50)])
    };
    let borrowed = |all: &[Allowance]| [all[3].borrowed, all[4].borrowed];
    let (mut state, mut all) = periods(20, LoanBook::default(), &contract, 1_000, &units(false));
    assert_eq!(borrowed(&all), [200, 0]);
    for expected in [[144, 13], [88, 27], [86, 28], [86, 28]] {
        (state, all) = period(state, &contract, 1_000, &units(true));
        assert_eq!(borrowed(&all), expected);
    }
}

/// 100 frames a second can be reclaimed; 75 are relied on in the first second, and 90 in each further one. Of
/// 1,000 frames a unit leaves 480 idle, and the reserve is 80. At first it lends what comes back within a
/// second; after 20 s, within two; after a minute, within six, rounded down to an eighth of an octave.
#[test]
fn a_loan_grows_with_the_idle_time_of_its_memory() {
    let (mut contract, units) = equals(2, Scheme::Isolate);
    let curve = ReclaimCurve::default().with_part(10_000, 10_000, 100);
    let with_owner =
        |owner: Facts| all_facts(0, 0, &[owner, Facts { callable: Some(curve), ..facts(1_000, true) }]);
    let idle = with_owner(facts(20, false));
    let lent = |contract: &Contract, samples: u32| {
        let (_, all) = periods(samples, LoanBook::default(), contract, 1_000, &idle);
        (all[2].lent, all[2].within_ns.unwrap_or(0) / MS, all[3].because)
    };
    assert_eq!(lent(&contract, 50), (75, 1_000, Because::BorrowsInTime));
    assert_eq!(lent(&contract, 102), (75 + 91, 2_013, Because::BorrowsInTime));
    assert_eq!(lent(&contract, 302).0, 400, "all of it but the reserve");
    contract.machine.reserve = Amount::Part(0);
    let (frames, within_ms, _) = lent(&contract, 302);
    assert_eq!((frames, within_ms), (480, 5_905));
    // A unit's own bound replaces the machine's, but a bound below the first second has no effect.
    contract.units[units[0].index()].call_back_memory_grows.most_ns = Some(1_500 * MS);
    assert_eq!(lent(&contract, 302).0, 75 + 45);
    contract.units[units[0].index()].call_back_memory_grows.most_ns = Some(100 * MS);
    assert_eq!(lent(&contract, 302).0, 75);
    contract.units[units[0].index()].call_back_memory_grows = Growth { idle: Some(0), most_ns: None };
    assert_eq!(lent(&contract, 302).0, 75);
    // An owner that is short has all of it back at once, and its idle time begins anew.
    contract.units[units[0].index()].call_back_memory_grows = Growth::default();
    let (state, _) = periods(302, LoanBook::default(), &contract, 1_000, &idle);
    let (state, all) = period(state, &contract, 1_000, &with_owner(facts(21, true)));
    assert_eq!((all[2].lent, all[3].borrowed), (0, 0));
    let (_, all) = periods(30, state, &contract, 1_000, &idle);
    assert_eq!((all[2].lent, all[2].within_ns), (75, Some(1_000 * MS)));
}

/// One unit has slept for a minute; another needs its memory every four seconds. 75 frames would be back in a
/// second, 516 in six. What both lend is to be back within both times.
#[test]
fn a_sleeping_unit_lends_more_than_one_that_wakes_often() {
    let (mut contract, _) = equals(3, Scheme::Isolate);
    contract.machine.reserve = Amount::Part(0);
    let curve = ReclaimCurve::default().with_part(10_000, 10_000, 100);
    let loans_with = |contract: &Contract, awake: u64| {
        let mut state = LoanBook::default();
        let mut last = Vec::new();
        for number in 0..305 {
            let used = if number % 20 == 0 { awake } else { 10 };
            let borrower = Facts { callable: Some(curve), ..facts(900, true) };
            let units = all_facts(0, 0, &[facts(13, false), facts(used, false), borrower]);
            (state, last) = period(state, contract, 1_000, &units);
        }
        (last[2].lent, last[3].lent, last[4].borrowed)
    };
    assert_eq!(loans_with(&contract, 10), (257, 259, 516), "both sleep");
    // The second needs all of its 333 frames now and then: it lends what is back within a second, less
    // rounding.
    assert_eq!(loans_with(&contract, 333), (318, 74, 392));
}

fn allowed(allowances: &[Allowance]) -> Vec<u64> {
    allowances.iter().map(|allowance| allowance.allowed).collect()
}

/// 1,000 frames, 60 for the kernel and 40 shared: three quotas of 300, regardless of which units are present
/// and whatever is idle. Of 1,001, one unit gets the remaining frame.
#[test]
fn quota_divides_what_the_common_parts_leave() {
    let (contract, _) = equals(3, Scheme::Quota);
    let units = all_facts(60, 40, &[facts(300, true), facts(10, false), Facts::default()]);
    let (_, first) = periods(20, LoanBook::default(), &contract, 1_000, &units);
    assert_eq!(allowed(&first)[2..], [300, 300, 300]);
    assert!(
        first[2..].iter().all(|a| a.because == Because::Scheme(Scheme::Quota) && a.borrowed + a.lent == 0)
    );
    let (_, second) = period(LoanBook::default(), &contract, 1_001, &units);
    assert_eq!(allowed(&second)[2..], [300, 300, 301]);
}

#[test]
fn smp_restricts_no_unit() {
    let (contract, _) = equals(2, Scheme::Smp);
    let (_, all) = period(
        LoanBook::default(),
        &contract,
        1_000,
        &all_facts(60, 40, &[facts(900, true), facts(0, true)]),
    );
    assert_eq!(allowed(&all), [1_000; 4]);
}

/// 1,000 frames, reserve 8 % = 80, two units of 500. b is short with its 500, a uses 300. a is calm after 5
/// samples: the excess is 200 - 80 = 120, and each sample lends at most 1000/16 = 62 of it: 62, then 120,
/// where it stays.
#[test]
fn idle_less_the_reserve_is_lent_in_bounded_steps() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let at = |b| all_facts(0, 0, &[facts(300, false), facts(b, true)]);
    let (state, before) = periods(4, LoanBook::default(), &contract, 1_000, &at(500));
    assert_eq!(allowed(&before)[2..], [500, 500]);
    assert_eq!(before[3].because, Because::NothingIdle);
    let (state, first) = period(state, &contract, 1_000, &at(500));
    assert_eq!(allowed(&first)[2..], [438, 562]);
    assert_eq!((first[2].because, first[3].because), (Because::Lends, Because::Borrows));
    let (state, second) = period(state, &contract, 1_000, &at(562));
    assert_eq!(allowed(&second)[2..], [380, 620]);
    let (_, last) = periods(100, state, &contract, 1_000, &at(620));
    assert_eq!(allowed(&last)[2..], [380, 620]);
}

/// The same machine: a has lent 120, uses its 380, and is short. At the next sample, even between periods, it
/// has its 500 again and b is down to 500.
#[test]
fn a_lender_that_is_short_has_its_entitlement_at_the_next_sample() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let units = all_facts(0, 0, &[facts(300, false), facts(620, true)]);
    let (state, _) = periods(20, LoanBook::default(), &contract, 1_000, &units);
    let units = all_facts(0, 0, &[facts(380, true), facts(620, false)]);
    let (_, back) = step(state, &contract, 1_000, &units, Trigger::CallBack);
    assert_eq!(allowed(&back)[2..], [500, 500]);
    assert_eq!(back[2].because, Because::CalledBack { frames: 120 });
    assert_eq!(back[3].because, Because::GaveBack { frames: 120 });
}

/// b was short at a sample between two periods, and has waited for a frame since: at the period's end its
/// loan still grows, by 62, and only once.
#[test]
fn shortness_between_two_periods_counts_at_the_periods_end() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let at = |short| all_facts(0, 0, &[facts(300, false), facts(500, short)]);
    let (state, _) = periods(10, LoanBook::default(), &contract, 1_000, &at(false));
    let units = at(true);
    let (state, between) = step(state, &contract, 1_000, &units, Trigger::CallBack);
    assert_eq!(allowed(&between)[2..], [500, 500]);
    let (state, at_end) = period(state, &contract, 1_000, &at(false));
    assert_eq!(allowed(&at_end)[2..], [438, 562]);
    // Not short since, and not using it: it gives the loan back.
    let (_, after) = period(state, &contract, 1_000, &at(false));
    assert_eq!(allowed(&after)[2..], [500, 500]);
}

/// a uses all its 500 frames, 300 of them cold: less the reserve of 8 %, 220 of 1,000 are lent. Of 1,500
/// frames 280 are lent if c leaves 100 unused: those go first, and a lends the other 180.
#[test]
fn cold_frames_are_lent_after_unused_ones() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let cold = Facts { cold: 300, ..facts(500, false) };
    let (_, all) =
        periods(20, LoanBook::default(), &contract, 1_000, &all_facts(0, 0, &[cold, facts(720, true)]));
    assert_eq!(allowed(&all)[2..], [280, 720]);
    let (contract, _) = equals(3, Scheme::Isolate);
    let units = all_facts(0, 0, &[cold, facts(720, true), facts(400, false)]);
    let (_, all) = periods(30, LoanBook::default(), &contract, 1_500, &units);
    assert_eq!(
        all[2..].iter().map(|a| (a.lent, a.borrowed)).collect::<Vec<_>>(),
        [(180, 0), (0, 280), (100, 0)]
    );
}

/// a uses its 500 frames and three more, and 303 are cold: it gives up the three, and lends of the other 300
/// what the reserve leaves. If only 200 of 800 are cold, or no unit is short, it keeps what it borrows.
#[test]
fn a_unit_gives_up_cold_frames_beyond_its_entitlement_before_it_lends() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let after = |used: u64, cold: u64, short: bool| {
        let owner = Facts { cold, ..facts(used, false) };
        let units = all_facts(0, 0, &[owner, facts(if short { 500 } else { 100 }, short)]);
        let (_, all) = periods(20, LoanBook::default(), &contract, 1_000, &units);
        assert!(all.iter().all(|a| a.lent == 0 || a.borrowed == 0), "{all:?}");
        (all[2].lent, all[2].borrowed)
    };
    assert_eq!(after(503, 303, true), (220, 0));
    assert_eq!(after(503, 303, false), (0, 3));
    assert_eq!(after(800, 200, true), (0, 0));
    assert_eq!(after(800, 200, false), (0, 300));
}

/// Of three units with 500 each, one borrows 100 and has 400 cold. Once another unit is short, that loan goes
/// back, and then the unit lends.
#[test]
fn a_cold_loan_is_given_back() {
    let (contract, _) = equals(3, Scheme::Isolate);
    let units = |short| {
        all_facts(0, 0, &[Facts { cold: 400, ..facts(600, false) }, facts(500, short), facts(300, false)])
    };
    let (state, all) = periods(20, LoanBook::default(), &contract, 1_500, &units(false));
    assert_eq!([all[2].borrowed, all[4].lent], [80, 80]);
    let (_, all) = periods(20, state, &contract, 1_500, &units(true));
    assert_eq!(
        all[2..].iter().map(|a| (a.lent, a.borrowed)).collect::<Vec<_>>(),
        [(180, 0), (0, 380), (200, 0)]
    );
}

/// A unit that is short is lent 62 of 1,000. Between two periods it keeps them, used or not, unless their
/// owner is short or they could not be called back in time. At the period's end it gives back what it did not
/// use.
#[test]
fn a_new_loan_is_kept_for_a_period() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let units = |owner, borrower| all_facts(0, 0, &[owner, borrower]);
    let rests = facts(100, false);
    let (state, _) =
        periods(CALM_SAMPLES, LoanBook::default(), &contract, 1_000, &units(rests, facts(500, false)));
    let (state, all) = period(state, &contract, 1_000, &units(rests, facts(500, true)));
    assert_eq!(allowed(&all)[2..], [438, 562]);
    let after = |owner, borrower, trigger| {
        let units = units(owner, borrower);
        allowed(&step(state.clone(), &contract, 1_000, &units, trigger).1)[3]
    };
    assert_eq!(after(rests, facts(500, false), Trigger::CallBack), 562);
    assert_eq!(after(facts(438, true), facts(500, false), Trigger::CallBack), 500);
    assert_eq!(
        after(rests, Facts { callable: Some(within_any(20)), ..facts(500, false) }, Trigger::CallBack),
        520
    );
    assert_eq!(after(rests, facts(510, false), Trigger::Period), 510);
}

/// Of 500 idle frames less 80, a borrower has 420. If only 100 could be called back in time, it gets 100, and
/// gives back the rest as soon as that is known, by 62 at a sample.
#[test]
fn a_loan_is_no_larger_than_can_be_called_back() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let at = |b, callable: Option<u64>| {
        let callable = callable.map(within_any);
        all_facts(0, 0, &[facts(0, false), Facts { callable, ..facts(b, true) }])
    };
    let (state, all) = periods(20, LoanBook::default(), &contract, 1_000, &at(500, None));
    assert_eq!(all[3].borrowed, 420);
    let (state, all) = period(state, &contract, 1_000, &at(920, Some(100)));
    assert_eq!(all[3].borrowed, 358);
    let (_, all) = periods(20, state, &contract, 1_000, &at(600, Some(100)));
    assert_eq!((all[3].borrowed, all[2].lent), (100, 100));
    let (_, all) = periods(20, LoanBook::default(), &contract, 1_000, &at(500, Some(100)));
    assert_eq!(all[3].borrowed, 100);
}

/// Four units of 250, no reserve: d lends 200. a has all of it, then b and c become short too: 200/3 is 67,
/// 67 and 66, and a gives up one step of 1000/16 = 62 after the other until it is down to 67.
#[test]
fn borrowers_converge_to_equal_loans() {
    let (mut contract, _) = equals(4, Scheme::Isolate);
    contract.machine.reserve = Amount::Part(0);
    let units = |a, b, c| {
        all_facts(0, 0, &[facts(a, true), facts(b, b >= 250), facts(c, c >= 250), facts(50, false)])
    };
    // While b and c are not short, they lend too: 250 - 200 each.
    let (state, first) = periods(30, LoanBook::default(), &contract, 1_000, &units(550, 200, 200));
    assert_eq!(allowed(&first)[2], 550);
    // Called back at once: 100 frames of b and c. d's 200 stay lent.
    let (state, second) = period(state, &contract, 1_000, &units(550, 250, 250));
    assert_eq!(allowed(&second)[2..], [450, 250, 250, 50]);
    let (state, third) = period(state, &contract, 1_000, &units(450, 250, 250));
    assert_eq!(allowed(&third)[2..], [450 - 124, 312, 312, 50]);
    let (_, last) = periods(20, state, &contract, 1_000, &units(326, 312, 312));
    assert_eq!(allowed(&last)[2..], [317, 317, 316, 50]);
}

/// In frames of 4,096 bytes, b is limited to 600 and a fraction: beyond its 499 it gets 101. The 4,097 bytes
/// that a reserves are two frames; the rest is divided equally. The machine's reserve is rounded up as well.
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
        let units = all_facts(0, 0, &[facts(100, false), facts(600, true)]);
        let last = (0..30).fold((LoanBook::default(), Vec::new()), |(state, _), _| {
            step_with(state, &contract, &rights, (1_000, 4_096), &units, Trigger::Period)
        });
        (allowed(&last.1)[3], last.1[3].entitled)
    };
    assert_eq!(lent(Amount::Part(0)), (600, 499));
    // Of the 401 frames that a leaves, all but 2.
    assert_eq!(lent(Amount::Absolute(399 * 4096 + 1)), (500, 499));
}

/// a's job has ended and left 400 frames of page cache. b alone is then entitled to everything, but while it
/// is not short a's pages may stay.
#[test]
fn page_cache_of_an_absent_unit_stays_until_another_unit_is_short() {
    let (contract, _) = equals(2, Scheme::Isolate);
    let both = all_facts(0, 0, &[facts(400, false), facts(300, false)]);
    let (state, _) = periods(10, LoanBook::default(), &contract, 1_000, &both);
    let left = |b, short| all_facts(0, 0, &[Facts { used: 400, ..Facts::default() }, facts(b, short)]);
    let (state, calm) = periods(10, state, &contract, 1_000, &left(300, false));
    assert_eq!(allowed(&calm)[2..], [400, 600]);
    let (_, pressed) = period(state, &contract, 1_000, &left(600, true));
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

/// The facts of units that want exactly these numbers of frames, and use what they may.
fn demand(wanted: &[u64], allowances: &[Allowance], present: &[bool]) -> Vec<Facts> {
    let used = |(i, wanted): (usize, &u64)| {
        let used = (*wanted).min(allowances[i + 2].allowed);
        Facts { present: present[i], used, short: present[i] && *wanted > used, ..Facts::default() }
    };
    all_facts(30, 20, &wanted.iter().enumerate().map(used).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn promises_hold_whatever_happens(
        contract in contracts(),
        history in proptest::collection::vec((any_facts(), any::<bool>(), 1u32..9), 1..20),
    ) {
        let frames = 2_000;
        let mut state = LoanBook::default();
        // Each set of facts lasts for some samples, so that units become calm, and lend.
        let lasting = history.iter().flat_map(|(units, periodic, n)| {
            (0..*n).map(move |i| (units, if *periodic || i + 1 < *n { Trigger::Period } else { Trigger::CallBack }))
        });
        for (units, trigger) in lasting {
            let before = state.allowed.clone();
            let (next, all) = step(state, &contract, frames, units, trigger);
            state = next;
            prop_assert!(sum(&all) + units[0].used + units[1].used <= frames);
            let total = |figure: fn(&Allowance) -> u64| all.iter().map(figure).sum::<u64>();
            prop_assert!(total(|a| a.lent) <= total(|a| a.borrowed), "all that is lent has a borrower");
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
                let contract = &contract;
                let inside = |unit: UnitId| contract.held().filter(move |sub| is_within(contract, *sub, unit));
                let around = match contract.unit(id).parent {
                    Some(parent) => inside(parent).map(|sub| all[sub.index()].entitled).sum(),
                    None => frames - units[0].used - units[1].used,
                };
                prop_assert!(a.lent <= contract.unit(id).lend.memory.most(a.entitled));
                prop_assert!(a.borrowed <= contract.unit(id).borrow.memory.most(around));
                if let Some(Amount::Absolute(limit)) = contract.unit(id).limit.memory {
                    let within: u64 = contract
                        .held()
                        .filter(|sub| is_within(contract, *sub, id))
                        .map(|sub| all[sub.index()].allowed)
                        .sum();
                    prop_assert!(within <= limit, "{} of {}", within, limit);
                }
                if let (Trigger::CallBack, Some(before)) = (trigger, before.get(id.index())) {
                    prop_assert!(a.allowed <= (*before).max(a.entitled));
                }
            }
        }
    }

    /// A permission for an amount that exceeds the machine is an unlimited permission.
    #[test]
    fn huge_amounts_are_unlimited_permissions(
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
                // A parent's entitlement may be less than what is lent from outside.
                if huge == Amount::Part(MILLIONTH) && unit.parent.is_some() {
                    unit.borrow.memory = Permission::Yes;
                }
            }
            contract
        };
        let both = [with(Permission::Yes), with(Permission::AtMost(huge))];
        let mut states = [LoanBook::default(), LoanBook::default()];
        for (units, periodic, n) in &history {
            for i in 0..*n {
                let trigger = if *periodic || i + 1 < *n { Trigger::Period } else { Trigger::CallBack };
                let mut results = Vec::new();
                for (contract, state) in both.iter().zip(&mut states) {
                    let (next, all) = step(core::mem::take(state), contract, 2_000, units, trigger);
                    *state = next;
                    results.push(all);
                }
                prop_assert_eq!(&results[0], &results[1]);
            }
        }
    }

    /// Call-back times are constant here. While they grow, lenders replace each other.
    #[test]
    fn constant_demands_come_to_rest(
        mut contract in contracts(),
        wanted in proptest::collection::vec(0u64..1_200, 6),
        present in proptest::collection::vec(any::<bool>(), 6),
        start in any_facts(),
    ) {
        contract.machine.call_back_memory_grows = Growth::default();
        let (mut state, mut all) = periods(7, LoanBook::default(), &contract, 2_000, &start);
        let n = contract.units.len() - 2;
        let mut settled = Vec::new();
        for i in 0..120 {
            let units = demand(&wanted[..n], &all, &present);
            (state, all) = period(state, &contract, 2_000, &units);
            if i == 60 {
                settled.clone_from(&all);
            }
            if i > 60 {
                prop_assert_eq!(allowed(&all), allowed(&settled), "at sample {}", i);
            }
        }
    }

    /// Borrowers that are called on at once share the time. At rest, all loans would come back within it;
    /// until then no loan grows.
    #[test]
    fn all_that_is_lent_comes_back_in_time(
        contract in contracts(),
        wanted in proptest::collection::vec(0u64..1_200, 6),
        callable in proptest::collection::vec(proptest::option::of(0u64..600), 6),
        start in any_facts(),
    ) {
        let n = contract.units.len() - 2;
        let (mut state, mut all) = periods(7, LoanBook::default(), &contract, 2_000, &start);
        let (mut before, mut millionths) = (allowed(&all), 0);
        for _ in 0..60 {
            let mut units = demand(&wanted[..n], &all, &[true; 6]);
            units[2..].iter_mut().zip(&callable).for_each(|(unit, callable)| unit.callable = callable.map(within_any));
            (state, all) = period(state, &contract, 2_000, &units);
            let loans = all[2..].iter().zip(&callable).filter(|(a, _)| a.borrowed > 0);
            // A loan of which nothing could be called back takes more than all the time.
            let part = |(a, callable): (&Allowance, &Option<u64>)| {
                callable.map_or(0, |all| (a.borrowed * 1_000_000).checked_div(all).unwrap_or(2_000_000))
            };
            millionths = loans.map(part).sum::<u64>();
            for ((a, before), callable) in all[2..].iter().zip(&before[2..]).zip(&callable) {
                // Frames that come back at once take no time.
                let grew = callable.is_some() && a.allowed > a.entitled.max(*before);
                prop_assert!(millionths <= 1_000_000 || !grew, "{} millionths", millionths);
            }
            before = allowed(&all);
        }
        prop_assert!(millionths <= 1_000_000, "{} millionths", millionths);
    }

    /// At rest, a unit that wants more than there is gets no less with more tickets, to within a frame per
    /// unit and level.
    #[test]
    fn more_tickets_are_never_less(
        contract in contracts(),
        more in 1u64..500,
        lender in proptest::collection::vec(any::<bool>(), 5),
    ) {
        let n = contract.units.len() - 2;
        let others = lender[..n - 1].iter().map(|lends| if *lends { 20 } else { 3_000 });
        let wanted: Vec<u64> = core::iter::once(3_000).chain(others).collect();
        let at_rest = |contract: &Contract| {
            let (mut state, mut all) = periods(1, LoanBook::default(), contract, 2_000, &all_facts(30, 20, &[]));
            for _ in 0..60 {
                let units = demand(&wanted, &all, &[true; 6]);
                (state, all) = period(state, contract, 2_000, &units);
            }
            all[2].allowed
        };
        let mut raised = contract.clone();
        raised.units[2].tickets.memory += more;
        // With limits or without permission to lend, shares depend on more than tickets.
        let without_limits = |contract: &Contract| {
            let mut contract = contract.clone();
            contract.units.iter_mut().for_each(|unit| {
                unit.limit.memory = None;
                unit.lend.memory = true.into();
                unit.borrow.memory = true.into();
            });
            contract
        };
        prop_assert!(at_rest(&without_limits(&raised)) + 2 * n as u64 >= at_rest(&without_limits(&contract)));
    }
}
