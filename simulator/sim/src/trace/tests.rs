#![allow(clippy::unwrap_used, reason = "tests")]

use commonhold_contract::render;

use super::{End, Event, History, Recorded, Recording, Step, SwitchReason, Waits, read};

const MS: u64 = 1_000_000;

/// Two units on one CPU: `a` (11) runs when the recording begins, `b` (12) waits, 13 of `b` sleeps; 14 is in
/// no unit.
const WRITTEN: &str = "\
# commonhold unit a: 11
# commonhold unit team/b: 12 13
# tracer: nop
#
# entries-in-buffer/entries-written: 9/9   #P:1
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
              a b-11      [000] d..2.   100.000000: sched_stat_runtime: comm=a pid=11 runtime=1 [ns]
              a b-11      [000] d..2.   100.004000: sched_switch: prev_comm=a b prev_pid=11 prev_prio=120 prev_state=R+ ==> next_comm=x pid=9 next_pid=12 next_prio=120
              b-12        [000] d..2.   100.007000: sched_switch: prev_comm=b prev_pid=12 prev_prio=120 prev_state=R ==> next_comm=a next_pid=11 next_prio=120
              a-11        [000] d..2.   100.008000: sched_switch: prev_comm=a prev_pid=11 prev_prio=120 prev_state=S ==> next_comm=o next_pid=14 next_prio=120
              o-14        [000] dN.2.   100.009000: sched_wakeup: comm=c pid=13 prio=120 target_cpu=000
              o-14        [000] d..2.   100.010000: sched_switch: prev_comm=o prev_pid=14 prev_prio=120 prev_state=D ==> next_comm=b next_pid=12 next_prio=120
              b-12        [000] .....   100.011000: sched_process_fork: comm=b pid=12 child_comm=b child_pid=20
              b-12        [000] d..2.   100.012000: sched_wakeup_new: comm=b pid=20 prio=120 target_cpu=000
              b-12        [000] d..2.   100.013000: sched_switch: prev_comm=b prev_pid=12 prev_prio=120 prev_state=S ==> next_comm=b next_pid=20 next_prio=120
              b-20        [000] d..2.   100.015000: sched_wakeup: comm=a pid=11 prio=120 target_cpu=000
              b-20        [000] d..2.   100.016000: sched_switch: prev_comm=b prev_pid=20 prev_prio=120 prev_state=Z ==> next_comm=c next_pid=13 next_prio=120
              c-13        [000] d..2.   100.020000: sched_wakeup: comm=o pid=14 prio=120 target_cpu=000
";

fn task(pid: u32, unit: &str, start_ns: u64, steps: &[Step], end: End) -> Recorded {
    Recorded {
        serial: 0,
        parent: None,
        pid,
        unit: unit.to_owned(),
        start_ns,
        steps: steps.to_vec(),
        waits: Waits::default(),
        end,
    }
}

/// The recording of a text, without its waits, forks and serial numbers.
fn tasks(text: &str) -> Recording {
    let mut recording = read(text).unwrap();
    for task in &mut recording.tasks {
        (task.serial, task.parent, task.waits) = (0, None, Waits::default());
        task.steps.retain(|step| !matches!(step, Step::Fork { .. }));
    }
    recording.others.clear();
    recording
}

#[test]
fn waits_for_a_cpu_are_counted() {
    let tasks = read(WRITTEN).unwrap().tasks;
    let waits = |index: usize| {
        let Waits { sum_ns, after_wakes, responses, .. } = &tasks[index].waits;
        (sum_ns / MS, after_wakes.sum_ns() / MS, responses.sum_ns() / MS)
    };
    // 11 is preempted for 3 ms, and woken 5 ms before the end.
    assert_eq!(waits(0), (8, 0, 0));
    assert_eq!(waits(2), (7, 7, 0));
    // The first wake-up of a new task is not one from a sleep.
    assert_eq!(waits(3), (1, 0, 0));
}

#[test]
fn bursts_and_sleeps_are_read() {
    let (cpu, sleep) = (|ms| Step::Cpu(ms * MS), |ms| Step::Sleep(ms * MS));
    let expected = Recording {
        length_ns: 20 * MS,
        tasks: vec![
            task(11, "a", 0, &[cpu(5), sleep(7)], End::Computing),
            task(12, "team/b", 0, &[cpu(4), cpu(2)], End::Asleep { slept_ns: 7 * MS }),
            task(13, "team/b", 0, &[sleep(9), cpu(4)], End::Computing),
            task(20, "team/b", 12 * MS, &[cpu(3)], End::Gone),
        ],
        others: Vec::new(),
        unwoken: 0,
    };
    assert_eq!(tasks(WRITTEN), expected);
    assert_eq!(read(WRITTEN).unwrap().others_ns(), 2 * MS);
}

#[test]
fn forks_and_wake_ups_are_steps() {
    let mut history = History::default();
    let mut at = |ms: u64, event: Event| {
        history.advance(ms * MS);
        history.event(event).unwrap();
    };
    let switch = |from, reason, to| Event::Switch { from, reason, to };
    at(0, switch(0, SwitchReason::Preempted, 5));
    at(1, Event::Fork { parent: 5, child: 6 });
    at(1, Event::Wake { pid: 6, by: 5 });
    at(2, switch(5, SwitchReason::Asleep, 6));
    // The child wakes its parent, and wakes it again as it ends. An interrupt wakes the child.
    at(3, Event::Wake { pid: 5, by: 6 });
    at(4, switch(6, SwitchReason::Asleep, 5));
    at(5, switch(5, SwitchReason::Asleep, 0));
    at(6, Event::Wake { pid: 6, by: 0 });
    at(6, switch(0, SwitchReason::Preempted, 6));
    at(7, Event::Wake { pid: 5, by: 6 });
    at(8, switch(6, SwitchReason::Ended, 5));
    at(9, switch(5, SwitchReason::Asleep, 0));
    history.advance(11 * MS);
    let others = history.close().others;
    let cpu = |ms| Step::Cpu(ms * MS);
    let child = others[1].serial;
    let wait = |ms| Step::Wait { slept_ns: ms * MS, by: child };
    assert_eq!(others[0].steps, [cpu(1), Step::Fork { child }, cpu(1), wait(1), cpu(1), wait(2), cpu(1)]);
    let wake = Step::Wake { task: others[0].serial };
    assert_eq!(others[1].steps, [cpu(1), wake, cpu(1), Step::Sleep(2 * MS), cpu(1), wake, cpu(1)]);
    assert_eq!((others[0].end, others[1].end), (End::Asleep { slept_ns: 2 * MS }, End::Gone));
    assert_eq!((others[0].parent, others[1].parent), (None, Some(others[0].serial)));
}

/// A thread belongs to the unit that lists it, even if another unit forked it: 20 is listed for `a`, and
/// forked by `b` or by somebody in no unit.
#[test]
fn a_listed_thread_stays_listed_whoever_forks_it() {
    for forks in ["pid=12 child_comm", "pid=14 child_comm"] {
        let text = WRITTEN.replace("unit a: 11", "unit a: 11 20").replace("pid=12 child_comm", forks);
        let found: Vec<_> = tasks(&text).tasks.into_iter().filter(|task| task.pid == 20).collect();
        assert_eq!(found, [task(20, "a", 12 * MS, &[Step::Cpu(3 * MS)], End::Gone)]);
    }
}

#[test]
fn a_sleep_that_a_signal_ended_is_none() {
    let text = WRITTEN.lines().filter(|line| !line.contains("pid=13 prio=120 target")).fold(
        String::new(),
        |mut text, line| {
            text += line;
            text += "\n";
            text
        },
    );
    // 13 sleeps since before the beginning: what it did until it ran is not known, and counts as waiting.
    let read = read(&text).unwrap();
    assert_eq!(read.tasks[2].steps, [Step::Cpu(4 * MS)]);
    let text = WRITTEN.replace("sched_wakeup: comm=a pid=11", "sched_wakeup: comm=o pid=99");
    let text = text.replace("next_comm=c next_pid=13", "next_comm=a next_pid=11");
    let read = super::read(&text).unwrap();
    assert_eq!((read.unwoken, &read.tasks[0].steps[..]), (1, &[Step::Cpu(9 * MS)][..]));
}

#[test]
fn a_workload_is_written() {
    insta::assert_snapshot!(read(WRITTEN).unwrap().workload("a \"test\""));
}

/// The first thing wrong, as it is shown.
fn refused(text: &str) -> String {
    match read(text) {
        Ok(recording) => format!("accepted: {recording:?}\n"),
        Err(wrong) => render(&[wrong], text, "trace.txt", false),
    }
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let lost = "CPU:1 [LOST 45 EVENTS]\n";
    let cases = [
        ("lost, by the header", WRITTEN.replace("9/9", "9/12")),
        ("lost, by a line", WRITTEN.to_owned() + lost),
        ("no units", WRITTEN.replace("# commonhold", "#")),
        ("no events", "# commonhold unit a: 11\n".to_owned()),
        ("a unit without a colon", WRITTEN.replace("unit a: 11", "unit a 11")),
        ("a unit with a word", WRITTEN.replace("b: 12 13", "b: 12 x")),
        ("a thread in two units", WRITTEN.replace("b: 12 13", "b: 12 11")),
        ("no event", WRITTEN.to_owned() + "half a li"),
        ("a cut value", WRITTEN.replace("next_pid=14", "")),
        ("a damaged value", WRITTEN.replace("next_pid=14", "next_pid=1o4")),
        ("another clock", WRITTEN.replace("100.010000", "100.000009")),
        ("a missing switch to it", WRITTEN.replace("next_pid=20", "next_pid=30")),
        (
            "a missing switch from it",
            WRITTEN.replace("prev_pid=12 prev_prio=120 prev_state=R ", "prev_pid=31 prev_state=R "),
        ),
        ("one that had ended", WRITTEN.replace("next_comm=c next_pid=13", "next_comm=c next_pid=20")),
        ("no wake-ups", WRITTEN.replace("sched_wakeup", "sched_waking")),
    ];
    let shown: Vec<String> =
        cases.iter().map(|(what, text)| format!("== {what}\n{}", refused(text))).collect();
    insta::assert_snapshot!(shown.concat());
}

#[test]
fn more_tasks_than_a_workload_has_programs_are_refused() {
    let pids: Vec<String> = (1..2000).map(|pid: u32| pid.to_string()).collect();
    let text = format!("# commonhold unit a: {}\n", pids.join(" "));
    assert_eq!(read(&text).unwrap_err().code, "too-many-tasks");
}
