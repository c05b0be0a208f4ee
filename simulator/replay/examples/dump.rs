use commonhold_recording::*;
use commonhold_sim::trace;
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let r = commonhold_replay::Recorded::read(std::fs::File::open(&path).unwrap()).unwrap();
    println!("idle wake {:?} impossible {}", r.idle_wake_ns, r.impossible);
    let mut by = std::collections::BTreeMap::new();
    for t in &r.activity.tasks {
        *by.entry((t.unit.clone(), format!("{:?}", t.end))).or_insert(0) += 1;
        if t.used_ns() > 100_000_000 || t.end == trace::End::Computing {
            println!(
                "{} {} start {} used {} steps {} waits {} end {:?}",
                t.pid,
                t.unit,
                t.start_ns,
                t.used_ns(),
                t.steps.len(),
                t.waits.sum_ns,
                t.end
            );
        }
    }
    println!("{by:?}");
    for t in &r.activity.others {
        if t.used_ns() > 50_000_000 {
            println!("other {} used {} steps {}", t.pid, t.used_ns(), t.steps.len());
        }
    }
    let mut reader = Reader::open(std::fs::File::open(&path).unwrap()).unwrap();
    let mut h = trace::History::default();
    let mut n = 0;
    while let Some(b) = reader.next_block().unwrap() {
        if let Block::Events(es) = b {
            for e in es {
                h.advance(e.at_ns);
                let c = match e.event {
                    Event::Switch { from, left, to, .. } => trace::Event::Switch {
                        from,
                        to,
                        reason: match left {
                            Left::Preempted => trace::SwitchReason::Preempted,
                            Left::Asleep => trace::SwitchReason::Asleep,
                            Left::Blocked => trace::SwitchReason::Blocked,
                            Left::Ended => trace::SwitchReason::Ended,
                        },
                    },
                    Event::Wake { thread, .. } => trace::Event::Wake { pid: thread },
                    Event::Fork { parent, child } => trace::Event::Fork { parent, child },
                    _ => trace::Event::Other,
                };
                if let Err(i) = h.event(c) {
                    n += 1;
                    if n < 10 {
                        println!("{:?} {:?}", e, i);
                    }
                }
            }
        }
    }
}
