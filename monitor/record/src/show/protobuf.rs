//! The wire format of protocol buffers, to write.

/// A message.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;

impl Message {
    /// Adds a field of type `uint64`, `bool` or `enum`; or `int32` or `int64`, not negative.
    pub(super) fn number(&mut self, field: u64, value: u64) -> &mut Message {
        self.varint(field << 3 | VARINT);
        self.varint(value);
        self
    }

    /// Adds a field of type `fixed64`.
    pub(super) fn fixed(&mut self, field: u64, value: u64) -> &mut Message {
        self.varint(field << 3 | FIXED_64);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Adds a field of type `double`.
    pub(super) fn double(&mut self, field: u64, value: f64) -> &mut Message {
        self.fixed(field, value.to_bits())
    }

    /// Adds a field of type `string` or `bytes`.
    pub(super) fn text(&mut self, field: u64, text: &str) -> &mut Message {
        self.bytes(field, text.as_bytes())
    }

    /// Adds a field whose type is a message.
    pub(super) fn message(&mut self, field: u64, inner: &Message) -> &mut Message {
        self.bytes(field, &inner.0)
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) -> &mut Message {
        self.varint(field << 3 | BYTES);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    /// The encoded message.
    pub(super) fn encoded(&self) -> &[u8] {
        &self.0
    }

    /// Whether it has no fields.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of <https://protobuf.dev/programming-guides/encoding>.
    #[test]
    fn fields_as_documented() {
        let mut inner = Message::default();
        inner.number(1, 150);
        assert_eq!(inner.encoded(), [0x08, 0x96, 0x01]);
        let mut outer = Message::default();
        outer.text(2, "testing").message(3, &inner).fixed(47, 1);
        let expected = b"\x12\x07testing\x1a\x03\x08\x96\x01\xf9\x02\x01\0\0\0\0\0\0\0";
        assert_eq!(outer.encoded(), expected);
    }
}
