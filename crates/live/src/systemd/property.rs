//! Properties of systemd units, and how their values are written in D-Bus messages, in drop-ins and in the
//! daemon's journal.

use std::fmt;

use commonhold_machine::CpuSet;

/// The number that stands for an unset weight, and for the limit *infinity*.
pub const UNSET: u64 = u64::MAX;

/// The number that stands for the weight `idle`.
const IDLE: u64 = 0;

macro_rules! properties {
    ($($name:ident $shape:ident $doc:literal,)*) => {
        /// The run-time properties that the daemon uses, by systemd's names.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(clippy::upper_case_acronyms, reason = "the names are systemd's")]
        pub enum Property { $(#[doc = $doc] $name,)* }

        impl Property {
            /// All properties, in the order in which systemd sorts their files.
            pub const ALL: &[Property] = &[$(Property::$name,)*];

            /// systemd's name of the property.
            pub fn name(self) -> &'static str {
                match self { $(Property::$name => stringify!($name),)* }
            }

            fn shape(self) -> Shape {
                match self { $(Property::$name => Shape::$shape,)* }
            }
        }
    };
}

/// The type and range of a property's values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Weight,
    /// Bytes of memory.
    Bound,
    Flag,
    Cpus,
    /// A rate for each device.
    Rates,
    /// A weight for each device.
    Weights,
}

properties! {
    AllowedCPUs Cpus "The CPUs that the unit's processes may run on; empty: all.",
    CPUAccounting Flag "Whether the unit's CPU time is counted.",
    CPUWeight Weight "The unit's weight for CPU time among its siblings: 1 to 10,000; 0 is `idle`.",
    IOAccounting Flag "Whether the unit's transfers are counted.",
    IODeviceWeight Weights "The unit's weight on single disks.",
    IOReadBandwidthMax Rates "The read limit on single disks, in bytes/s.",
    IOReadIOPSMax Rates "The read limit on single disks, in requests/s.",
    IOWeight Weight "The unit's weight on every disk: 1 to 10,000.",
    IOWriteBandwidthMax Rates "The write limit on single disks, in bytes/s.",
    IOWriteIOPSMax Rates "The write limit on single disks, in requests/s.",
    MemoryAccounting Flag "Whether the unit's memory is counted.",
    MemoryHigh Bound "The memory above which the unit's pages are reclaimed and its processes throttled.",
    MemoryLow Bound "The memory of the unit that is reclaimed last.",
    MemoryMax Bound "The memory beyond which the unit's processes are killed.",
    MemoryMin Bound "The memory of the unit that is never reclaimed.",
}

impl Property {
    /// The property with this name.
    pub fn named(name: &str) -> Option<Property> {
        Property::ALL.iter().copied().find(|property| property.name() == name)
    }

    /// Whether the value is a list with an entry for each device.
    pub fn is_by_device(self) -> bool {
        matches!(self.shape(), Shape::Rates | Shape::Weights)
    }

    /// The value of an unset property.
    pub fn nothing(self) -> Value {
        match self.shape() {
            Shape::Bound if matches!(self, Property::MemoryLow | Property::MemoryMin) => Value::Number(0),
            Shape::Weight | Shape::Bound => Value::Number(UNSET),
            Shape::Flag => Value::Flag(false),
            Shape::Cpus => Value::Cpus(CpuSet::default()),
            Shape::Rates | Shape::Weights => Value::Devices(Vec::new()),
        }
    }

    /// Parses a text in the format that [`Value::text`] writes; `None` if it is malformed.
    pub fn parse(self, text: &str) -> Option<Value> {
        match (self.shape(), text) {
            (Shape::Weight, "") | (Shape::Bound, "infinity") => Some(Value::Number(UNSET)),
            (Shape::Weight, "idle") => Some(Value::Number(IDLE)),
            (Shape::Weight | Shape::Bound, _) => text.parse().ok().map(Value::Number),
            (Shape::Flag, "yes") => Some(Value::Flag(true)),
            (Shape::Flag, "no") => Some(Value::Flag(false)),
            (Shape::Flag, _) => None,
            (Shape::Cpus, "") => Some(self.nothing()),
            (Shape::Cpus, _) => {
                text.split_whitespace().collect::<Vec<_>>().join(",").parse().ok().map(Value::Cpus)
            }
            (Shape::Rates | Shape::Weights, _) => {
                let parse_line = |line: &str| {
                    let (device, number) = line.rsplit_once(' ')?;
                    Some((device.to_owned(), number.parse().ok()?))
                };
                text.lines().map(parse_line).collect::<Option<_>>().map(Value::Devices)
            }
        }
    }

    /// The value that a drop-in's content, `file`, gives this property; `None` if it does not set the
    /// property, or the value is malformed. The file is read as systemd reads it: each line adds to a list of
    /// devices, and an empty line clears the list; of other values, the last one counts.
    pub(super) fn parse_file(self, file: &str) -> Option<Value> {
        let prefix = format!("{}=", self.name());
        let mut texts: Option<Vec<&str>> = None;
        for text in file.lines().filter_map(|line| line.trim().strip_prefix(&prefix)) {
            let in_force = texts.get_or_insert_default();
            if text.is_empty() || !self.is_by_device() {
                in_force.clear();
            }
            if !text.is_empty() {
                in_force.push(text);
            }
        }
        self.parse(&texts?.join("\n")).map(Value::sorted)
    }

    /// A drop-in's content without the lines that give a device a value in `removed`.
    pub(super) fn without(self, file: &str, removed: &[(String, u64)]) -> String {
        let prefix = format!("{}=", self.name());
        let is_removed = |line: &str| {
            let value = line.trim().strip_prefix(&prefix).and_then(|text| self.parse(text));
            let devices = value.as_ref().map_or(&[][..], Value::devices);
            !devices.is_empty() && devices.iter().all(|device| removed.contains(device))
        };
        file.split_inclusive('\n').filter(|line| !is_removed(line)).collect()
    }

    /// Checks whether systemd accepts the value. The error is the remedy, which says what systemd accepts.
    pub(super) fn validate(self, value: &Value) -> Result<(), &'static str> {
        let is_weight = |number: u64| (1..=10_000).contains(&number);
        let is_path = |path: &str| path.starts_with('/') && !path.contains(char::is_whitespace);
        let (is_valid, remedy) = match (self.shape(), value) {
            (Shape::Weight, Value::Number(n)) => {
                let is_idle = self == Property::CPUWeight && *n == IDLE;
                (is_weight(*n) || *n == UNSET || is_idle, "a weight is 1 to 10,000")
            }
            (Shape::Bound, Value::Number(n)) => {
                let may_be_zero = matches!(self, Property::MemoryLow | Property::MemoryMin);
                (may_be_zero || *n > 0, "the minimum is 1 byte")
            }
            (Shape::Weights, Value::Devices(all)) => {
                let are_weights = all.iter().all(|(device, n)| is_path(device) && is_weight(*n));
                (are_weights, "name devices by their path in /dev, and give them weights of 1 to 10,000")
            }
            (Shape::Rates, Value::Devices(all)) => {
                (all.iter().all(|(device, _)| is_path(device)), "name devices by their path in /dev")
            }
            (Shape::Flag, Value::Flag(_)) | (Shape::Cpus, Value::Cpus(_)) => (true, ""),
            _ => (false, "this property takes values of another kind"),
        };
        if is_valid { Ok(()) } else { Err(remedy) }
    }

    /// Decodes a value from a D-Bus message; `None` if it has another type than the property.
    pub(super) fn parse_message(self, value: zvariant::Value<'_>) -> Option<Value> {
        use zvariant::Value as Sent;
        Some(match (self.shape(), value) {
            (Shape::Weight | Shape::Bound, Sent::U64(number)) => Value::Number(number),
            (Shape::Flag, Sent::Bool(flag)) => Value::Flag(flag),
            // A bit mask: bit 0 of byte 0 is CPU 0.
            (Shape::Cpus, sent @ Sent::Array(_)) => {
                let bytes: Vec<u8> = sent.try_into().ok()?;
                let cpus = bytes.iter().zip(0..).flat_map(|(byte, index)| {
                    (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| index * 8 + bit)
                });
                Value::Cpus(cpus.collect())
            }
            (Shape::Rates | Shape::Weights, sent @ Sent::Array(_)) => {
                Value::Devices(Vec::<(String, u64)>::try_from(sent).ok()?).sorted()
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A value of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A weight, or bytes of memory; may be [`UNSET`].
    Number(u64),
    /// Yes or no.
    Flag(bool),
    /// CPUs.
    Cpus(CpuSet),
    /// For each listed device (`/dev/sda`): a weight, bytes/s, or requests/s. The property is unset for other
    /// devices.
    Devices(Vec<(String, u64)>),
}

impl Value {
    /// The text that systemd writes into a drop-in after the property's name, with one line per device.
    pub fn text(&self, property: Property) -> String {
        match (property.shape(), self) {
            (Shape::Weight, Value::Number(UNSET)) => String::new(),
            (Shape::Weight, Value::Number(IDLE)) => "idle".to_owned(),
            (Shape::Bound, Value::Number(UNSET)) => "infinity".to_owned(),
            (_, Value::Number(number)) => number.to_string(),
            (_, Value::Flag(flag)) => if *flag { "yes" } else { "no" }.to_owned(),
            (_, Value::Cpus(cpus)) => cpus.to_string().replace(',', " "),
            (_, Value::Devices(devices)) => {
                let lines = devices.iter().map(|(device, number)| format!("{device} {number}"));
                lines.collect::<Vec<_>>().join("\n")
            }
        }
    }

    /// The value with its devices sorted, for comparisons: systemd lists devices in the order in which it
    /// first learned of them.
    pub(crate) fn sorted(mut self) -> Value {
        if let Value::Devices(devices) = &mut self {
            devices.sort();
        }
        self
    }

    /// The list of devices; empty if the value is not such a list.
    pub(super) fn devices(&self) -> &[(String, u64)] {
        match self {
            Value::Devices(devices) => devices,
            _ => &[],
        }
    }

    /// The entries of this list of devices that are not in `other`, or are there with another number.
    pub(super) fn beyond(&self, other: &Value) -> Vec<(String, u64)> {
        self.devices().iter().filter(|device| !other.devices().contains(device)).cloned().collect()
    }

    /// Encodes the value for a D-Bus message.
    pub(super) fn to_message(&self) -> zvariant::Value<'static> {
        match self {
            Value::Number(number) => (*number).into(),
            Value::Flag(flag) => (*flag).into(),
            Value::Cpus(cpus) => {
                let byte_count = cpus.iter().max().map_or(0, |last| last / 8 + 1);
                let byte_at = |index| {
                    let bits = (0..8).filter(move |bit| cpus.contains(index * 8 + bit));
                    bits.fold(0, |byte, bit| byte | 1 << bit)
                };
                (0..byte_count).map(byte_at).collect::<Vec<u8>>().into()
            }
            Value::Devices(devices) => devices.clone().into(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn samples() -> Vec<(Property, Value, &'static str)> {
        let devices = |all: &[(&str, u64)]| {
            Value::Devices(all.iter().map(|(device, n)| ((*device).to_owned(), *n)).collect())
        };
        vec![
            (Property::CPUWeight, Value::Number(200), "200"),
            (Property::CPUWeight, Value::Number(0), "idle"),
            (Property::CPUWeight, Value::Number(UNSET), ""),
            (Property::IOWeight, Value::Number(UNSET), ""),
            (Property::MemoryMax, Value::Number(UNSET), "infinity"),
            (Property::MemoryMin, Value::Number(0), "0"),
            (Property::MemoryHigh, Value::Number(1 << 40), "1099511627776"),
            (Property::IOAccounting, Value::Flag(true), "yes"),
            (Property::AllowedCPUs, Value::Cpus("0-3,9,70".parse().unwrap()), "0-3 9 70"),
            (Property::AllowedCPUs, Value::Cpus(CpuSet::default()), ""),
            (Property::IOReadIOPSMax, devices(&[]), ""),
            (
                Property::IODeviceWeight,
                devices(&[("/dev/sda", 7), ("/dev/sdb", 9)]),
                "/dev/sda 7\n/dev/sdb 9",
            ),
        ]
    }

    #[test]
    fn every_value_reads_back_from_text_and_messages() {
        for (property, value, text) in samples() {
            assert_eq!(
                (property.validate(&value), value.text(property).as_str()),
                (Ok(()), text),
                "{property}"
            );
            assert_eq!(property.parse(text).as_ref(), Some(&value), "{property}");
            assert_eq!(property.parse_message(value.to_message()), Some(value), "{property}");
        }
    }

    /// The signatures are those of systemd's table of properties (`src/core/dbus-cgroup.c`), also for empty
    /// lists.
    #[test]
    fn the_types_are_those_that_systemd_reads() {
        for (property, value, _) in samples() {
            let wanted = match value {
                Value::Number(_) => "t",
                Value::Flag(_) => "b",
                Value::Cpus(_) => "ay",
                Value::Devices(_) => "a(st)",
            };
            assert_eq!(value.to_message().value_signature().to_string(), wanted, "{property}");
        }
        let bitmap: Vec<u8> = Value::Cpus("0,9,11".parse().unwrap()).to_message().try_into().unwrap();
        assert_eq!(bitmap, [1, 0b1010]);
        // systemd's bitmaps are as long as those of the kernel.
        let long = zvariant::Value::from(vec![0_u8, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Property::AllowedCPUs.parse_message(long), Some(Value::Cpus("9".parse().unwrap())));
    }

    #[test]
    fn invalid_values_are_not_sent() {
        let devices = |device: &str, n| Value::Devices(vec![(device.to_owned(), n)]);
        for (property, value) in [
            (Property::CPUWeight, Value::Number(10_001)),
            (Property::IOWeight, Value::Number(0)),
            (Property::MemoryMax, Value::Number(0)),
            (Property::MemoryMax, Value::Flag(true)),
            (Property::AllowedCPUs, Value::Number(1)),
            (Property::IODeviceWeight, devices("/dev/sda", UNSET)),
            (Property::IOReadBandwidthMax, devices("8:0", 1)),
            (Property::IOReadBandwidthMax, devices("/dev/a b", 1)),
        ] {
            assert!(property.validate(&value).is_err(), "{property} {value:?}");
        }
    }

    #[test]
    fn a_drop_in_is_parsed() {
        let head = "# This is a drop-in unit file extension\n[Slice]\n";
        for (property, value, text) in samples() {
            let lines: Vec<String> = text.lines().map(|line| format!("{property}={line}\n")).collect();
            let lines = lines.concat();
            let file = format!("{head}{property}=7\n{property}=\n{lines}\n");
            // An empty line clears the value.
            assert_eq!(property.parse_file(&file), Some(value), "{file}");
        }
        assert_eq!(Property::CPUWeight.parse_file("[Slice]\nIOWeight=3\n"), None);
        assert_eq!(Property::CPUWeight.parse_file("[Slice]\nCPUWeight=many\n"), None);
        let two = format!("{head}IODeviceWeight=\nIODeviceWeight=/dev/sdb 9\nIODeviceWeight=/dev/sda 7\n");
        assert_eq!(
            Property::IODeviceWeight.parse_file(&two).as_ref(),
            samples().last().map(|(_, value, _)| value)
        );
    }

    #[test]
    fn lines_of_devices_are_removed_from_a_drop_in() {
        let file = "# by hand\n[Slice]\nIOReadBandwidthMax=\nIOReadBandwidthMax=/dev/sda 5\nIOReadBandwidthMax=/dev/sdb 7\n\
                    IOWriteBandwidthMax=/dev/sda 5\n";
        let gone = |devices: &[(&str, u64)]| -> String {
            let devices: Vec<(String, u64)> =
                devices.iter().map(|(device, n)| ((*device).to_owned(), *n)).collect();
            Property::IOReadBandwidthMax.without(file, &devices)
        };
        assert_eq!(
            gone(&[("/dev/sda", 5), ("/dev/sdb", 8)]),
            file.replace("IOReadBandwidthMax=/dev/sda 5\n", "")
        );
        assert_eq!(gone(&[]), file);
    }

    #[test]
    fn the_properties_are_in_the_order_of_their_files() {
        assert!(Property::ALL.is_sorted_by_key(|property| property.name()));
        for property in Property::ALL {
            assert_eq!(Property::named(property.name()), Some(*property));
            assert!(property.validate(&property.nothing()).is_ok(), "{property}");
        }
    }
}
