//! Loans of memory. With the bound on loans (`in-time`), anonymous memory comes back in the promised time.
//! Without the bound (`any`), it need not.

mod scene;

use commonhold_sim::outcome::UnitOutcome;
use proptest::prelude::*;

use scene::{MS, jobs, outcome, unit};

/// A machine with one disk, and the memory demand of its units.
#[derive(Debug, Clone)]
struct Case {
    memory_mib: u64,
    access_ms: u64,
    rate_mib: u64,
    promise_ms: u64,
    /// Whether the borrower's pages are a file's.
    writes: bool,
    idle_s: u64,
    borrowers: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    (128u64..256, 2u64..=6, 10u64..=40, 200u64..=1_000, any::<bool>(), 8u64..=12, 1u64..=2).prop_map(
        |(memory_mib, access_ms, rate_mib, promise_ms, writes, idle_s, borrowers)| Case {
            memory_mib,
            access_ms,
            rate_mib,
            promise_ms,
            writes,
            idle_s,
            borrowers,
        },
    )
}

impl Case {
    /// The lender sleeps while the borrowers take all memory, and then wants nearly all of its part within a
    /// second.
    fn run(&self, loans: &str) -> UnitOutcome {
        let Case { memory_mib, access_ms, rate_mib, promise_ms, writes, idle_s, borrowers } = self;
        let machine = format!(
            "version = 1\nshape = \"cpus:2 memory:{memory_mib}MiB\"\nenforces = \"irix\"\n[kernel]\nmemory_loans = \"{loans}\"\n\
             [disk.d0]\nmodel = \"fixed\"\naccess = \"{access_ms}ms\"\nrate = \"{rate_mib}MiB/s\"\nsize = \"100GiB\"\n"
        );
        let each = |of: &dyn Fn(u64) -> String| (0..*borrowers).map(of).collect::<String>();
        let contract = format!(
            "version = 1\n[machine]\nscheme = \"isolate\"\nreserve = \"1%\"\ncall-back-memory = \"{promise_ms}ms\"\n\
             [unit.lender]\n{}",
            each(&|i| format!("[unit.borrower{i}]\n"))
        );
        let part = memory_mib * 96 / 100 / (borrowers + 1);
        let (wanted, much) = (part * 98 / 100, memory_mib * 9 / 10);
        let (also, memory) = if *writes {
            (", { write = \"log\", bytes = \"1MiB\" }".to_owned(), much / 2)
        } else {
            (String::new(), much)
        };
        let workload = format!(
            "version = 1\nhorizon = \"10min\"\n[file.log]\nsize = \"{memory_mib}MiB\"\n\
             [program.burst]\nmemory = \"{wanted}MiB\"\nreuse = \"500ms\"\n\
                 do = [{{ sleep = \"{idle_s}s\" }}, {{ cpu = \"1s\" }}]\n\
             [program.greedy]\nmemory = \"{memory}MiB\"\ndo = [{{ repeat = \"forever\", do = [{{ cpu = \"20ms\" }}{also}] }}]\n\
             [job.lender]\nunit = \"lender\"\nprogram = \"burst\"\n\
             {}",
            each(&|i| format!(
                "[job.b{i}]\nunit = \"borrower{i}\"\nprogram = \"greedy\"\nbackground = true\n"
            ))
        );
        let end = outcome(&contract, &machine, &workload);
        assert_eq!(end.broken, 0, "{:?}", end.notes);
        assert!(jobs(&end, "lender").iter().all(|job| job.ended_ns.is_some()));
        unit(&end, "lender").clone()
    }
}

/// The tolerance of a wait beyond the promised time: half of the promise, since the borrower uses the disk
/// meanwhile, and a few requests.
fn slack_ns(promise_ns: u64) -> u64 {
    promise_ns / 2 + 100 * MS
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn who_wants_its_memory_back_waits_no_longer_than_was_promised(case in cases()) {
        let promise = case.promise_ms * MS;
        let (bounded, any) = (case.run("in-time"), case.run("any"));
        let most = promise + slack_ns(promise);
        if case.writes {
            // The dirty pages of the borrower's file go to the disk to which the borrower goes on writing. So
            // there is no bound on the wait, but the limit on loans still helps.
            prop_assert!(
                bounded.memory_waited_ns <= any.memory_waited_ns + slack_ns(promise),
                "{} ms with the bound, {} ms without", bounded.memory_waited_ns / MS, any.memory_waited_ns / MS
            );
        } else {
            prop_assert!(bounded.memory_waited_ns <= most, "{} ms with the bound", bounded.memory_waited_ns / MS);
            // A lender that slept for long was promised more time.
            let promised_ns = bounded.memory_call_backs.promised_max_ns.max(promise);
            prop_assert!(
                bounded.memory_call_backs.max_ns <= promised_ns + slack_ns(promise),
                "{:?}", bounded.memory_call_backs
            );
            prop_assert!(case.borrowers > 1 || any.memory_waited_ns > most, "{} ms without", any.memory_waited_ns / MS);
        }
    }
}
