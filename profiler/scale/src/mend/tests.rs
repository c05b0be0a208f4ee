#![allow(clippy::unwrap_used)]
use super::*;

/// Numbers that are spread evenly from 0 to 1: of splitmix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        crate::real((z ^ (z >> 31)) >> 11) / 9_007_199_254_740_992.0
    }

    /// About normal: the sum of twelve.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}

/// A program as the model has it.
#[derive(Debug, Clone, Copy)]
struct Truth {
    system: System,
    /// Of the machine.
    cpus: u32,
    random: f64,
    hand_over: f64,
    elsewhere_s: f64,
    /// Other programs use the CPUs, too.
    busy: bool,
}

impl Truth {
    /// One run in which the lock is taken so often.
    fn run(&self, delay: Delay, delay_s: f64, noise: f64, numbers: &mut Numbers) -> Trial {
        const TAKEN: u64 = 10_000;
        let (inside, outside) = match delay {
            Delay::No => (0.0, 0.0),
            Delay::Inside => (delay_s, 0.0),
            Delay::Outside => (0.0, delay_s),
        };
        let mut about = |value: f64, part: f64| value * (1.0 + part * noise * numbers.normal());
        let System { threads, hold_cpu, hold_sleep, gap_cpu, gap_sleep, .. } = self.system;
        let delayed = System { hold_cpu: hold_cpu + inside, gap_cpu: gap_cpu + outside, ..self.system };
        let span_s = about(crate::real(TAKEN) / model(&delayed, self.random, self.hand_over), 1.0);
        let wall_s = span_s + self.elsewhere_s;
        let cycle = Cycle {
            threads: f64::from(threads),
            span_s,
            taken: TAKEN,
            hold_cpu_s: about(hold_cpu, 0.5) + inside,
            hold_sleep_s: about(hold_sleep, 0.5),
            gap_cpu_s: about(gap_cpu, 0.5) + outside,
            gap_sleep_s: about(gap_sleep, 0.5),
            queue_s: self.queue_s(),
            injected_s: inside + outside,
            samples: 100,
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Trial { delay, delay_ns: (delay_s * 1e9) as u64, wall_s, throughput: 1.0 / wall_s, cycle }
    }

    fn runs(&self, repeat: u32, noise: f64, numbers: &mut Numbers) -> Vec<Trial> {
        let hold = self.system.hold_cpu + self.system.hold_sleep;
        let plans = [
            (Delay::No, 0.0),
            (Delay::Inside, hold / 2.0),
            (Delay::Inside, hold),
            (Delay::Outside, hold / 2.0),
            (Delay::Outside, hold),
        ];
        (0..repeat)
            .flat_map(|_| plans)
            .map(|(delay, delay_s)| self.run(delay, delay_s, noise, numbers))
            .collect()
    }

    /// Waits for CPUs where others use them too; else less than the model has.
    fn queue_s(&self) -> f64 {
        let hand_over = self.system.hold_sleep + self.hand_over;
        System { hold_sleep: hand_over, ..self.system }.queue() * if self.busy { 1.0 } else { 0.5 }
    }

    /// What apart brings.
    fn gain(&self) -> f64 {
        let now = 10_000.0 / model(&self.system, self.random, self.hand_over);
        let then = 10_000.0 / model(&self.system.apart(), self.random, 0.0);
        (self.elsewhere_s + now) / (self.elsewhere_s + then)
    }
}

fn truth(threads: u32, cpus: u32, times_ms: [f64; 4]) -> Truth {
    let [hold_cpu, hold_sleep, gap_cpu, gap_sleep] = times_ms.map(|ms| ms / 1e3);
    let system = System {
        threads,
        cpus: f64::from(cpus),
        others: 0.0,
        hold_cpu,
        hold_sleep,
        gap_cpu,
        gap_sleep,
        spins: false,
    };
    Truth { system, cpus, random: 0.5, hand_over: 2e-5, elsewhere_s: 0.0, busy: false }
}

fn answer(truth: &Truth, noise: f64, seed: u64) -> Mend {
    let trials = truth.runs(4, noise, &mut Numbers(seed));
    study(&trials, truth.cpus, truth.system.spins, true).unwrap()
}

#[test]
fn without_noise_the_gain_is_found() {
    // A lock that is held all the time, whose work could be done by 8 CPUs: 8 threads, 1 ms of 1.5 ms under
    // it.
    let hot = truth(8, 8, [1.0, 0.0, 0.5, 0.0]);
    // Two bottlenecks: without the lock, 2 CPUs are busy.
    let two = truth(8, 2, [1.0, 0.0, 0.6, 0.5]);
    // No bottleneck at all.
    let free = truth(8, 8, [0.01, 0.0, 1.0, 1.0]);
    for (truth, verdict) in [(hot, Verdict::Gain), (two, Verdict::Gain), (free, Verdict::None)] {
        let found = answer(&truth, 0.0, 1);
        let expected = truth.gain();
        assert!((found.apart.times / expected - 1.0).abs() < 0.02, "{expected}: {found:?}");
        assert!(found.apart.low <= expected && expected <= found.apart.high, "{expected}: {found:?}");
        assert_eq!(found.verdict, verdict, "{found:?}");
        assert!(found.half.times <= found.apart.times + 1e-9 && found.half.times >= 1.0, "{found:?}");
    }
    assert!(
        (hot.gain() - 5.4).abs() < 0.2 && (1.2..1.4).contains(&two.gain()),
        "{} {}",
        hot.gain(),
        two.gain()
    );
}

#[test]
fn what_is_done_without_the_lock_stays_as_long_as_it_is() {
    let hot = truth(8, 8, [1.0, 0.0, 0.5, 0.0]);
    let took_s = 10_000.0 / model(&hot.system, hot.random, hot.hand_over);
    let half = Truth { elsewhere_s: took_s, ..hot };
    let found = answer(&half, 0.0, 1);
    assert!((found.elsewhere - 0.5).abs() < 1e-6);
    // Half of it cannot become shorter: less than twice as much in all.
    assert!((found.apart.times / half.gain() - 1.0).abs() < 0.02 && found.apart.times < 2.0, "{found:?}");
    // Where the program prints its rate, only that counts.
    let trials = half.runs(3, 0.0, &mut Numbers(1));
    let printed = study(&trials, 8, false, false).unwrap();
    assert!((printed.apart.times / hot.gain() - 1.0).abs() < 0.02, "{printed:?}");
}

#[test]
fn it_says_so_where_nothing_can_be_told() {
    let truth = truth(4, 2, [0.2, 0.0, 0.6, 0.5]);
    let trials = truth.runs(3, 0.01, &mut Numbers(5));
    let without: Vec<Trial> = trials.iter().copied().filter(|t| t.delay != Delay::Inside).collect();
    assert_eq!(study(&without, 2, false, true), None);
    assert_eq!(study(&trials[..2], 2, false, true), None);
    // Delays that slow nothing down contradict the model, so the interval is wide.
    let deaf: Vec<Trial> = trials
        .iter()
        .map(|t| Trial { cycle: Cycle { span_s: trials[0].cycle.span_s, ..t.cycle }, ..*t })
        .collect();
    let found = study(&deaf, 2, false, true).unwrap();
    let heard = study(&trials, 2, false, true).unwrap();
    assert!(
        found.apart.high - found.apart.low > 2.0 * (heard.apart.high - heard.apart.low),
        "{found:?} {heard:?}"
    );
}

#[test]
fn other_programs_take_cpus_and_that_is_no_hand_over() {
    // An uncontended lock, on two CPUs that other programs mostly use.
    let alone = truth(8, 2, [0.02, 0.0, 0.1, 2.0]);
    let system = System { others: 3.0, ..alone.system };
    let beside = Truth { system, busy: true, random: 1.0, ..alone };
    let found = answer(&beside, 0.005, 3);
    assert!((found.others - 3.0).abs() < 0.2, "{found:?}");
    assert!((found.apart.times / beside.gain() - 1.0).abs() < 0.02, "{}: {found:?}", beside.gain());
    assert!(answer(&alone, 0.005, 3).others.abs() < 1e-9);
}

#[test]
fn a_gain_is_one_whose_band_is_above_nothing() {
    let of = |low, times, high| verdict(&Gain { times, low, high });
    assert_eq!(of(1.5, 2.0, 2.5), Verdict::Gain);
    assert_eq!(of(0.9, 2.0, 2.5), Verdict::Unclear);
    assert_eq!(of(1.001, 1.01, 1.2), Verdict::Unclear);
    assert_eq!(of(0.99, 1.01, 1.04), Verdict::None);
}

#[test]
fn effects_tell_a_delay_inside_from_one_outside() {
    let found = answer(&truth(8, 8, [1.0, 0.0, 0.5, 0.0]), 0.0, 1);
    let effect = |delay: Delay| found.effects.iter().rfind(|effect| effect.delay == delay).unwrap();
    // A lock that is always held: held twice as long, half as much; afterwards there is time enough.
    assert!((effect(Delay::Inside).times - 0.5).abs() < 0.02, "{found:?}");
    assert!(effect(Delay::Outside).times > 0.95, "{found:?}");
    for effect in &found.effects {
        assert!((effect.times - effect.model).abs() < 0.01, "{effect:?}");
    }
}

#[test]
fn bands_have_the_truth_and_no_gain_is_beyond_the_bounds() {
    let mut numbers = Numbers(20);
    #[allow(clippy::disallowed_methods, reason = "a longer test is asked for by it")]
    let studies = std::env::var("COMMONHOLD_STUDIES").map_or(100, |studies| studies.parse().unwrap());
    let mut within = 0;
    for _ in 0..studies {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let threads = 2 + (numbers.next() * 4.0) as u32;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let cpus = 1 + (numbers.next() * 4.0) as u32;
        let mut time = |most: f64| numbers.next() * most;
        let times = [0.05 + time(1.0), time(0.5), 0.05 + time(2.0), time(3.0)];
        let truth = Truth {
            random: time(1.0),
            hand_over: time(1e-4),
            elsewhere_s: time(3.0),
            ..truth(threads, cpus, times)
        };
        let noise = 0.005 + time(0.02);
        let found = study(&truth.runs(3, noise, &mut numbers), cpus, false, true).unwrap();
        let gain = truth.gain();
        within += u32::from(found.apart.low <= gain && gain <= found.apart.high);
        for gain in [found.apart, found.half] {
            assert!(gain.low >= 1.0 && gain.low <= gain.times && gain.times <= gain.high, "{found:?}");
            // What the CPUs allow is as uncertain as the measured times.
            assert!(gain.times <= found.cpus_allow.max(1.0) * 1.000_1, "{found:?}");
        }
    }
    assert!(within * 100 >= studies * 93, "{within} of {studies}");
}
