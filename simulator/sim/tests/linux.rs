//! A machine that enforces as Linux does, under the policies of live machines: loans and call-backs of all
//! resources at once.

mod scene;

use commonhold_sim::outcome::Outcome;

use scene::{S, jobs, outcome};

const MIB: u64 = 1 << 20;

/// Two units with half of the machine each. `b` always needs more than its half of memory and disk. `a` works
/// for 10 s, rests for 10 s, and comes back with twice as much work.
fn run(enforces: &str, more: &str) -> Outcome {
    let contract = "version = 1\n[machine]\nscheme = \"isolate\"\n[unit.a]\n[unit.b]\n";
    let machine = format!(
        "version = 1\nshape = \"cpus:8 memory:2GiB\"\nenforces = \"{enforces}\"\n[disk.vda]\nmodel = \"ssd\"\nchannels = 4\n\
         read = \"200us\"\nwrite = \"200us\"\nrate = \"25MiB/s\"\nsize = \"64GiB\"\n{more}"
    );
    let workload = "version = 1\nhorizon = \"60s\"\n[file.data]\nsize = \"4GiB\"\n\
        [program.hog]\nmemory = \"1200MiB\"\nreuse = \"2s\"\ndo = [{ cpu = \"50s\" }]\n\
        [program.light]\nmemory = \"700MiB\"\nreuse = \"1s\"\ndo = [{ cpu = \"10s\" }]\n\
        [program.reader]\ndo = [{ repeat = \"forever\", do = [\
        { read = \"data\", bytes = \"64KiB\", random = true }, { cpu = \"1ms\" }] }]\n\
        [job.hog]\nunit = \"b\"\nprogram = \"hog\"\nbackground = true\n\
        [job.b]\nunit = \"b\"\nprogram = \"reader\"\ncount = 8\nbackground = true\n\
        [job.first]\nunit = \"a\"\nprogram = \"light\"\nstart = \"1ms\"\n\
        [job.again]\nunit = \"a\"\nprogram = \"light\"\nstart = \"20s\"\n\
        [job.a]\nunit = \"a\"\nprogram = \"reader\"\ncount = 2\nstart = \"20s\"\nbackground = true\n";
    outcome(contract, &machine, workload)
}

#[test]
fn every_resource_is_lent_and_called_back() {
    let end = run("linux", "");
    let account = |name: &str| end.ledger.account(name).cloned().unwrap();
    let (a, b) = (account("a"), account("b"));
    // Within its half, a unit runs as if it were alone.
    for job in jobs(&end, "first").into_iter().chain(jobs(&end, "again")) {
        let took = job.response_ns().unwrap();
        assert!(took < 10 * S + S / 5, "{} took {took} ns", job.name);
    }
    let memory = a.memory.unwrap();
    assert!(memory.called_back > 0 && memory.call_back_max_ns < S, "{memory:?}");
    let borrowed = b.memory.unwrap();
    assert!(
        borrowed.borrowed_mean > 0 && borrowed.taken > 10 * MIB && borrowed.refaulted > MIB,
        "{borrowed:?}"
    );
    let disk = a.disk.unwrap();
    assert!(disk.called_back > 0 && disk.lent_bytes > 100 * MIB, "{disk:?}");
    let others = b.disk.unwrap();
    assert_eq!((disk.lent_bytes, disk.borrowed_bytes), (others.borrowed_bytes, others.lent_bytes));
}

/// The same load on a disk that honours weights: no unit has a rate, and `a`'s two readers are not throttled.
#[test]
fn a_disk_that_heeds_weights_is_held_by_them() {
    let (rates, weights) = (run("linux", ""), run("linux", "weighs = true\n"));
    let moved = |end: &Outcome, name: &str| {
        let disk = end.ledger.account(name).unwrap().disk.clone().unwrap();
        disk.read_bytes + disk.written_bytes
    };
    let all = |end: &Outcome| moved(end, "a") + moved(end, "b");
    assert!(
        moved(&weights, "a") * 100 >= moved(&rates, "a") * 95,
        "{} of {}",
        moved(&weights, "a"),
        moved(&rates, "a")
    );
    assert!(all(&weights) * 100 >= all(&rates) * 95, "what is idle is used");
}

/// The same load on the machine of the published experiments, which enforces by other means under the same
/// policies and checks.
#[test]
fn other_machines_have_other_means() {
    let end = run("irix", "");
    let account = |name: &str| end.ledger.account(name).cloned().unwrap();
    assert!(account("a").disk.unwrap().lent_bytes > 100 * MIB);
    let memory = account("b").memory.unwrap();
    assert!(memory.entitled > 500 * MIB && memory.taken > 0, "{memory:?}");
}

/// Two units that always want more CPU time than there is. One gives half of its tickets away, and gets them
/// back later. The CPU time of both follows their tickets.
#[test]
fn changes_of_rights_are_followed() {
    let contract = "version = 1\n[machine]\nscheme = \"isolate\"\n[unit.a]\n[unit.b]\n";
    let machine = "version = 1\nshape = \"cpus:4 memory:2GiB\"\n";
    let workload = "version = 1\nhorizon = \"30s\"\n[program.hog]\ndo = [{ repeat = \"forever\", do = [{ cpu = \"1s\" }] }]\n\
        [job.a]\nunit = \"a\"\nprogram = \"hog\"\ncount = 8\nbackground = true\n\
        [job.b]\nunit = \"b\"\nprogram = \"hog\"\ncount = 8\nbackground = true\n";
    let used = |changes: &str| {
        let end = outcome(contract, machine, &format!("{workload}{changes}"));
        ["a", "b"].map(|unit| (end.ledger.account(unit).unwrap().used_ns + S / 2) / S)
    };
    let give = |name: &str, at: &str, from: &str, to: &str| {
        format!(
            "[change.{name}]\nat = \"{at}\"\nunit = \"{from}\"\nto = \"{to}\"\nresource = \"cpu\"\ntickets = 50\n"
        )
    };
    assert_eq!(used(""), [60, 60]);
    // 20 s at a ratio of 1:3 on 4 CPUs.
    let [a, b] = used(&give("lend", "10s", "a", "b"));
    assert!((39..=41).contains(&a) && (79..=81).contains(&b), "{a} and {b}");
    let back = give("lend", "10s", "a", "b") + &give("back", "20s", "b", "a");
    let [a, b] = used(&back);
    assert!((49..=51).contains(&a) && (69..=71).contains(&b), "{a} and {b}");
    // The worth of the new number of tickets is relative to the other unit's 100.
    let [a, b] = used("[change.set]\nunit = \"a\"\nresource = \"cpu\"\ntickets = 300\n");
    assert!((89..=91).contains(&a) && (29..=31).contains(&b), "{a} and {b}");
}
