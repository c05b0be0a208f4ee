//! Loans of memory that the owner left idle for long: the owner waits no longer than promised, on both kinds
//! of machines.

mod scene;

use commonhold_sim::outcome::Outcome;
use proptest::prelude::*;

use scene::{MS, S, jobs, outcome, unit};

/// A machine with a separate drive for swap, and the memory demand of its units.
#[derive(Debug, Clone)]
struct Case {
    enforces: &'static str,
    memory_mib: u64,
    rate_mib: u64,
    reserve: u64,
    /// In per cent of the idleness.
    growth: u64,
    idle_s: u64,
    borrowers: u64,
    /// The anonymous memory of each borrower, in per cent of its part.
    memory: u64,
    /// Whether the borrowers also read files.
    reads: bool,
}

fn cases(enforces: &'static str) -> impl Strategy<Value = Case> {
    // A borrower whose memory fits its part borrows nothing, and fast swap makes the bound irrelevant: both
    // are excluded.
    let (rate, growth, memory) =
        if enforces == "linux" { (5u64..=20, 1u64..=6, 150u64..=220) } else { (10..=60, 1..=20, 80..=160) };
    let machine = (192u64..512, rate, 0u64..=8, growth);
    let work = (15u64..=90, 1u64..=2, memory, any::<bool>());
    (machine, work).prop_map(
        move |((memory_mib, rate_mib, reserve, growth), (idle_s, borrowers, memory, reads))| Case {
            enforces,
            memory_mib,
            rate_mib,
            reserve,
            growth,
            idle_s,
            borrowers,
            memory,
            reads,
        },
    )
}

impl Case {
    /// The lender sleeps while the borrowers take all memory, and then wants nearly all of its part at once.
    fn run(&self) -> Outcome {
        self.run_with(true)
    }

    /// The workload, with or without the borrowers' jobs.
    fn run_with(&self, beside: bool) -> Outcome {
        let Case { enforces, memory_mib, rate_mib, reserve, growth, idle_s, borrowers, memory, reads } = self;
        let machine = format!(
            "version = 1\nshape = \"cpus:4 memory:{memory_mib}MiB\"\nenforces = \"{enforces}\"\n\
             [disk.data]\nmodel = \"fixed\"\naccess = \"1ms\"\nrate = \"100MiB/s\"\nsize = \"100GiB\"\n\
             [disk.swap]\nmodel = \"fixed\"\naccess = \"0s\"\nrate = \"{rate_mib}MiB/s\"\nsize = \"100GiB\"\n"
        );
        let each = |of: &dyn Fn(u64) -> String| (0..*borrowers).map(of).collect::<String>();
        let contract = format!(
            "version = 1\n[machine]\nreserve = \"{reserve}%\"\ncall-back-memory-idle = \"{growth}%\"\n[unit.lender]\n{}",
            each(&|i| format!("[unit.borrower{i}]\n"))
        );
        let part = memory_mib * 94 / 100 / (borrowers + 1);
        let (wanted, much) = (part * 95 / 100, part * memory / 100);
        let reader = |i: u64| {
            let job = format!(
                "[job.r{i}]\nunit = \"borrower{i}\"\nprogram = \"reader\"\ndisk = \"data\"\nbackground = true\n"
            );
            if *reads { job } else { String::new() }
        };
        let workload = format!(
            "version = 1\nhorizon = \"10min\"\n[file.archive]\nsize = \"{memory_mib}MiB\"\n\
             [program.burst]\nmemory = \"{wanted}MiB\"\nreuse = \"200ms\"\n\
                 do = [{{ sleep = \"{idle_s}s\" }}, {{ cpu = \"1s\" }}]\n\
             [program.greedy]\nmemory = \"{much}MiB\"\nreuse = \"1s\"\n\
                 do = [{{ repeat = \"forever\", do = [{{ cpu = \"20ms\" }}] }}]\n\
             [program.reader]\n\
             do = [{{ repeat = \"forever\", do = [{{ read = \"archive\", bytes = \"1MiB\" }}, {{ cpu = \"5ms\" }}] }}]\n\
             [job.lender]\nunit = \"lender\"\nprogram = \"burst\"\ndisk = \"swap\"\n{}",
            if beside {
                each(&|i| {
                    format!(
                        "[job.b{i}]\nunit = \"borrower{i}\"\nprogram = \"greedy\"\ndisk = \"swap\"\nbackground = true\n{}",
                        reader(i)
                    )
                })
            } else {
                String::new()
            }
        );
        let end = outcome(&contract, &machine, &workload);
        assert!(jobs(&end, "lender").iter().all(|job| job.ended_ns.is_some()));
        end
    }

    /// The lender's response time, less that without borrowers.
    fn waited_ns(&self, end: &Outcome) -> u64 {
        let ended =
            |end: &Outcome| jobs(end, "lender").iter().filter_map(|job| job.ended_ns).max().unwrap_or(0);
        ended(end).saturating_sub(ended(&self.run_with(false)))
    }

    /// The longest call-back time that the lender may be promised: a second, or a part of the time for which
    /// its memory was idle. The last piece of memory is idle until the lender wants it.
    fn promise_ns(&self, end: &Outcome) -> u64 {
        let ended = jobs(end, "lender").iter().filter_map(|job| job.ended_ns).max().unwrap_or(0);
        (ended * self.growth / 100).clamp(S, 30 * S)
    }

    fn holds(&self) -> Result<(), TestCaseError> {
        let end = self.run();
        let lender = unit(&end, "lender");
        let backs = lender.memory_call_backs;
        // Where the kernel takes pages, a task waits in many ways: for what it takes itself, too.
        let waited = if self.enforces == "linux" { self.waited_ns(&end) } else { lender.memory_waited_ns };
        prop_assert!(backs.promised_max_ns <= self.promise_ns(&end), "{backs:?}");
        // A lender that grows calls back piece by piece, without ever being short: the ledger has these.
        // Where nothing was called back, the usual promise stands.
        let account = end.ledger.accounts.iter().find(|account| account.unit == "lender");
        let memory = account.and_then(|account| account.memory.as_ref());
        let pieces = memory.map_or(&[][..], |memory| &memory.last_call_backs[..]);
        let promised =
            pieces.iter().map(|back| back.promised_ns).fold(backs.promised_max_ns.max(S), u64::max);
        prop_assert!(promised <= self.promise_ns(&end), "{} ms were promised", promised / MS);
        let most = promised + self.slack_ns(promised);
        prop_assert!(waited <= most, "waited for {} ms, and {} ms were promised", waited / MS, promised / MS);
        prop_assert!(backs.max_ns <= most, "{backs:?}");
        Ok(())
    }

    /// The tolerance of a wait beyond the promised time: half of the promise, since the borrower uses the
    /// disk meanwhile, and a few requests. If the kernel reclaims pages, the borrower's tasks also delay
    /// others at the disk.
    fn slack_ns(&self, promise_ns: u64) -> u64 {
        let part = if self.enforces == "linux" { promise_ns } else { promise_ns / 2 };
        part + 100 * MS
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn who_slept_waits_no_longer_than_was_promised_on_linux(case in cases("linux")) {
        case.holds()?;
    }

    #[test]
    fn who_slept_waits_no_longer_than_was_promised_where_loans_are_in_time(case in cases("irix")) {
        case.holds()?;
    }
}
