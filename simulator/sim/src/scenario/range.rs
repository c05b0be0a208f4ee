//! Reads the values that a key has in a sweep: `50..400:50`, `10ms,20ms`, `1GiB..4GiB:1GiB`.

use commonhold_contract::quantity::{self, bytes, bytes_per_s, bytes_text, duration_ns, duration_text, part};
use commonhold_contract::{Amount, Resource, amount_text};

/// The most values of one key.
pub const VALUES_MAX: usize = 10_000;

/// Reads and writes a number of one kind, as a whole number of the kind's smallest unit.
struct Scale {
    read: fn(&str) -> Option<u64>,
    write: fn(u64) -> String,
}

const SCALES: [Scale; 5] = [
    Scale { read: plain, write: |number| amount_text(Resource::Cpu, Amount::Absolute(number)) },
    Scale { read: |text| bytes(text).ok(), write: bytes_text },
    Scale { read: |text| duration_ns(text).ok(), write: duration_text },
    Scale { read: |text| part(text).ok(), write: quantity::part_text },
    Scale { read: |text| bytes_per_s(text).ok(), write: |rate| bytes_text(rate) + "/s" },
];

/// A number without a unit, in millionths.
fn plain(text: &str) -> Option<u64> {
    match quantity::amount(text, Resource::Cpu) {
        Ok(Amount::Absolute(millionths)) => Some(millionths),
        _ => None,
    }
}

/// The numeric value of one of these texts, in the smallest unit of its kind; `None` if it is no quantity.
pub fn number(text: &str) -> Option<u64> {
    SCALES.iter().find_map(|scale| (scale.read)(text))
}

/// Reads a list of values, separated by commas. An item is a value, or a range `FROM..TO:STEP`, which has TO
/// if a step meets it.
///
/// # Errors
///
/// A message with a remedy: an item is empty or occurs twice, a range has no value or none of its parts fit
/// together, or there are more than [`VALUES_MAX`] values.
pub fn values(text: &str) -> Result<Vec<String>, String> {
    let mut values: Vec<String> = Vec::new();
    for item in text.split(',').map(str::trim) {
        match item.split_once("..") {
            Some((from, rest)) => values.extend(range(item, from, rest)?),
            None if item.is_empty() => {
                return Err(format!(
                    "`{text}` has an empty value; write values with commas between them: 50,100"
                ));
            }
            None => values.push(item.to_owned()),
        }
        if values.len() > VALUES_MAX {
            return Err(too_many(text));
        }
    }
    let mut sorted: Vec<&String> = values.iter().collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("`{text}` has the value `{}` twice; leave one out", pair[0])),
        None => Ok(values),
    }
}

fn too_many(text: &str) -> String {
    format!("`{text}` has more than {VALUES_MAX} values; write a larger STEP")
}

fn range(item: &str, from: &str, rest: &str) -> Result<Vec<String>, String> {
    let Some((to, step)) = rest.split_once(':') else {
        return Err(format!("`{item}` has no STEP; write FROM..TO:STEP, such as 50..400:50"));
    };
    let same =
        |scale: &Scale| Some(((scale.read)(from)?, (scale.read)(to)?, (scale.read)(step)?, scale.write));
    let Some((from, to, step, write)) = SCALES.iter().find_map(same) else {
        return Err(format!(
            "`{item}` has no numbers of one kind; write FROM..TO:STEP, such as 50..400:50, 10ms..50ms:10ms, \
             1GiB..4GiB:1GiB or 10%..50%:10%"
        ));
    };
    if step == 0 {
        return Err(format!("`{item}` has a STEP of 0; write a larger one"));
    }
    if from > to {
        return Err(format!("`{item}` is empty: FROM is above TO"));
    }
    let count = (to - from) / step + 1;
    if count > VALUES_MAX as u64 {
        return Err(too_many(item));
    }
    Ok((0..count).map(|index| write(from + index * step)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_include_their_ends() {
        for (text, expected) in [
            ("50..200:50", "50 100 150 200"),
            ("50..199:50", "50 100 150"),
            ("0.5..1.5:0.25", "0.5 0.75 1 1.25 1.5"),
            ("10ms..30ms:10ms", "10ms 20ms 30ms"),
            ("500us..1.5ms:500us", "500us 1ms 1500us"),
            ("1GiB..4GiB:1GiB", "1GiB 2GiB 3GiB 4GiB"),
            ("512MiB..1GiB:256MiB", "512MiB 768MiB 1GiB"),
            ("10%..12.5%:1.25%", "10% 11.25% 12.5%"),
            ("100MB/s..200MB/s:50MB/s", "100MB/s 150MB/s 200MB/s"),
            ("7..7:1", "7"),
            ("isolate,quota", "isolate quota"),
            ("1, 2 ,10..20:10", "1 2 10 20"),
        ] {
            assert_eq!(values(text).map(|values| values.join(" ")), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_of_values_is_refused() {
        for (text, message) in [
            ("", "`` has an empty value; write values with commas between them: 50,100"),
            ("1,,2", "`1,,2` has an empty value"),
            ("1..2", "`1..2` has no STEP; write FROM..TO:STEP"),
            ("400..50:50", "`400..50:50` is empty: FROM is above TO"),
            ("1..2:0", "`1..2:0` has a STEP of 0; write a larger one"),
            ("1ms..2GiB:1ms", "`1ms..2GiB:1ms` has no numbers of one kind"),
            ("a..b:c", "`a..b:c` has no numbers of one kind"),
            ("-1..2:1", "`-1..2:1` has no numbers of one kind"),
            ("1,2,1", "`1,2,1` has the value `1` twice; leave one out"),
            ("0..18446744073709:0.000001", "`0..18446744073709:0.000001` has more than 10000 values"),
            ("1..10000:1,0", "`1..10000:1,0` has more than 10000 values; write a larger STEP"),
        ] {
            let error = values(text).unwrap_err();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
}
