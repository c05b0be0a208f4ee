//! A program that computes and hardly reads. It offers disk tickets for CPU tickets, waits a while, works,
//! and leaves.
//!
//! usage: trade [SOCKET [LIMIT]]     counts the primes below LIMIT; run it in a unit: commonhold exec UNIT -- trade

use std::time::Duration;

use commonhold_client::{Client, Error, Offer, State};

fn is_prime(n: u64) -> bool {
    n > 1 && (2..=n.isqrt()).all(|divisor| !n.is_multiple_of(divisor))
}

fn trade_and_work(socket: &str, below: u64) -> Result<(), Error> {
    let mut client = Client::connect(socket)?;
    let unit = client.own_unit()?;
    // The offer and its exchange end with this program, however that ends.
    let offer = client.offer(&Offer::new(&unit, "disk:30", "cpu:20").while_connected())?;
    println!("offer {} is open", offer.number);
    let mut exchange = client.wait_until_served(offer.number, Some(Duration::from_secs(10)))?;
    if let Some(exchange) = exchange {
        println!("exchange {exchange} is in force");
    } else {
        client.cancel(offer.number)?;
        println!("nobody wants disk tickets: working without more of the CPUs");
    }
    let mut primes = 0;
    for part in 0..10 {
        let numbers = below * part / 10..below * (part + 1) / 10;
        primes += numbers.filter(|n| is_prime(*n)).count();
        if let Some(number) = exchange
            && client.wait(number, Some(Duration::ZERO))?.state == State::Ended
        {
            println!("exchange {number} is over: going on with fewer tickets");
            exchange = None;
        }
    }
    println!("{primes} primes below {below}");
    Ok(())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().unwrap_or_else(|| "/run/commonhold/socket".to_owned());
    let below = arguments.next().and_then(|limit| limit.parse().ok()).unwrap_or(200_000);
    if let Err(e) = trade_and_work(&socket, below) {
        eprintln!("trade: {e}");
        std::process::exit(1);
    }
}
