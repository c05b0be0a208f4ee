use commonhold_recording::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (from, to): (u64, u64) = (a[2].parse().unwrap(), a[3].parse().unwrap());
    let mut reader = Reader::open(std::fs::File::open(&a[1]).unwrap()).unwrap();
    while let Some(b) = reader.next_block().unwrap() {
        match b {
            Block::Events(es) => {
                for e in es {
                    if e.at_ns >= from && e.at_ns <= to {
                        println!("{:?}", e);
                    }
                }
            }
            Block::End(e) => println!("{e:?}"),
            _ => {}
        }
    }
}
