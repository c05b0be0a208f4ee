//! D-Bus messages: a header, and a body of values. [`zvariant`] has the encoding; this module has the header.

use zvariant::serialized::{Context, Data};
use zvariant::{Endian, LE, ObjectPath, Type, Value, to_bytes};

/// Larger than any reply to our calls. A message that claims to be larger is rejected.
const BYTES_MAX: usize = 4 << 20;

/// The length in bytes of the fixed part of a header. That part has the lengths of the header's fields and of
/// the body.
const HEAD: usize = 16;

/// The flag `NO_AUTO_START`: the bus must not try to start systemd for this message.
const NO_AUTO_START: u8 = 2;

/// The type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Call,
    Return,
    Error,
    Signal,
}

/// A method call.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// The destination; `None` without a bus.
    pub(super) to: Option<&'static str>,
    pub(super) path: String,
    pub(super) interface: &'static str,
    pub(super) method: &'static str,
    /// The encoded values, and their signature.
    body: Vec<u8>,
    types: String,
}

/// A received message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// The serial of the call to which the message replies; `None` if it is no reply.
    pub(super) reply_to: Option<u32>,
    /// The D-Bus name of the error; `None` if the message is no error reply.
    pub(super) error: Option<String>,
    /// The signature of the encoded values.
    types: String,
    body: Vec<u8>,
    context: Context,
}

/// The codes of the header's fields.
mod field {
    pub(super) const PATH: u8 = 1;
    pub(super) const INTERFACE: u8 = 2;
    pub(super) const MEMBER: u8 = 3;
    pub(super) const ERROR: u8 = 4;
    pub(super) const REPLY_SERIAL: u8 = 5;
    pub(super) const DESTINATION: u8 = 6;
    pub(super) const SIGNATURE: u8 = 8;
}

/// Endianness, message type, flags, protocol version, length of the body, serial, and fields by code.
type Header<'a> = (u8, u8, u8, u8, u32, u32, Vec<(u8, Value<'a>)>);

impl Call {
    /// A call of a method with these values.
    pub(super) fn new<T: serde::Serialize + zvariant::DynamicType>(
        path: &str,
        interface: &'static str,
        method: &'static str,
        values: &T,
    ) -> Result<Call, zvariant::Error> {
        let types = values.signature().to_string_no_parens();
        let body = to_bytes(Context::new_dbus(LE, 0), values)?.bytes().to_vec();
        Ok(Call { to: None, path: path.to_owned(), interface, method, body, types })
    }

    /// The encoded call, with the serial `number`.
    pub(super) fn bytes(&self, number: u32) -> Result<Vec<u8>, zvariant::Error> {
        let mut fields: Vec<(u8, Value<'_>)> = vec![
            (field::PATH, ObjectPath::try_from(self.path.as_str())?.into()),
            (field::INTERFACE, self.interface.into()),
            (field::MEMBER, self.method.into()),
        ];
        fields.extend(self.to.map(|to| (field::DESTINATION, to.into())));
        encode(1, NO_AUTO_START, number, fields, &self.types, &self.body)
    }
}

/// Encodes a message: its type (1 is a call), flags, serial, header fields, and the signature and bytes of
/// its values.
fn encode(
    kind: u8,
    flags: u8,
    number: u32,
    fields: Vec<(u8, Value<'_>)>,
    types: &str,
    body: &[u8],
) -> Result<Vec<u8>, zvariant::Error> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| zvariant::Error::OutOfBounds);
    let header: Header<'_> = (b'l', kind, flags, 1, length(body)?, number, fields);
    let mut bytes = to_bytes(Context::new_dbus(LE, 0), &header)?.bytes().to_vec();
    if !types.is_empty() {
        // The signature's field is appended by hand, because the library would put the signature of several
        // values into parentheses, as for one structure.
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let count = u8::try_from(types.len()).map_err(|_| zvariant::Error::OutOfBounds)?;
        bytes.extend([field::SIGNATURE, 1, b'g', 0, count]);
        bytes.extend_from_slice(types.as_bytes());
        bytes.push(0);
        let fields_length = length(&bytes[HEAD..])?;
        bytes[HEAD - 4..HEAD].copy_from_slice(&fields_length.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// The length in bytes of the message that begins with these bytes; `None` if there are too few to tell. An
/// error if the bytes begin no message, or a message longer than [`BYTES_MAX`].
pub(super) fn length(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some((head, _)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
    let number_at = |offset: usize| {
        let bytes = [head[offset], head[offset + 1], head[offset + 2], head[offset + 3]];
        (if head[0] == b'B' { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }) as usize
    };
    if !matches!(head[0], b'l' | b'B') || head[3] != 1 {
        return Err("it does not begin like a D-Bus message".to_owned());
    }
    let (body, fields) = (number_at(4), number_at(12));
    if body > BYTES_MAX || fields > BYTES_MAX {
        return Err(format!("a message of {} bytes, which is too long", body.saturating_add(fields)));
    }
    Ok(Some((HEAD + fields).next_multiple_of(8) + body))
}

impl Message {
    /// Decodes a message.
    pub(super) fn parse(bytes: &[u8]) -> Result<Message, String> {
        let endian = if bytes.first() == Some(&b'B') { Endian::Big } else { Endian::Little };
        let context = Context::new_dbus(endian, 0);
        let data = Data::new(bytes, context);
        let (header, _): (Header<'_>, usize) = data.deserialize().map_err(|error| error.to_string())?;
        let (_, kind, _, _, length, _, fields) = header;
        let kind = match kind {
            1 => Kind::Call,
            2 => Kind::Return,
            3 => Kind::Error,
            4 => Kind::Signal,
            other => return Err(format!("a message of type {other}")),
        };
        let body = bytes.len().checked_sub(length as usize).ok_or("it is shorter than its header claims")?;
        let mut message = Message {
            kind,
            reply_to: None,
            error: None,
            types: String::new(),
            body: bytes[body..].to_vec(),
            context,
        };
        for (number, value) in fields {
            match (number, value) {
                (field::REPLY_SERIAL, Value::U32(number)) => message.reply_to = Some(number),
                (field::ERROR, Value::Str(name)) => message.error = Some(name.to_string()),
                (field::SIGNATURE, Value::Signature(types)) => message.types = types.to_string_no_parens(),
                _ => {}
            }
        }
        Ok(message)
    }

    /// The decoded values. An error if their signature is not that of `T`.
    pub(super) fn values<T: Type + serde::de::DeserializeOwned>(&self) -> Result<T, String> {
        let expected = T::SIGNATURE.to_string_no_parens();
        if self.types != expected {
            return Err(format!("values of the types `{}` instead of `{expected}`", self.types));
        }
        let data = Data::new(self.body.as_slice(), self.context);
        data.deserialize().map(|(values, _)| values).map_err(|error| error.to_string())
    }

    /// The text of an error reply: its first value, if that is a string.
    pub(super) fn error_text(&self) -> String {
        let data = Data::new(self.body.as_slice(), self.context);
        let text = data.deserialize::<String>().ok().filter(|_| self.types.starts_with('s'));
        text.map_or_else(|| "it gave no reason".to_owned(), |(text, _)| text)
    }
}

/// The server's side of the protocol, for the simulated systemd in tests.
#[cfg(test)]
pub(super) mod fake {
    use super::*;

    /// A call that the simulated systemd received.
    pub(in crate::systemd) struct Heard {
        pub(in crate::systemd) number: u32,
        pub(in crate::systemd) to: Option<String>,
        pub(in crate::systemd) path: String,
        pub(in crate::systemd) interface: String,
        pub(in crate::systemd) method: String,
        pub(in crate::systemd) flags: u8,
        pub(in crate::systemd) message: Message,
    }

    impl Heard {
        pub(in crate::systemd) fn parse(bytes: &[u8]) -> Heard {
            let message = Message::parse(bytes).unwrap();
            let data = Data::new(bytes, message.context);
            let (_, _, flags, _, _, number, fields) = data.deserialize::<Header<'_>>().unwrap().0;
            let text = |wanted| {
                let field = fields.iter().find(|(field, _)| *field == wanted)?;
                match &field.1 {
                    Value::Str(text) => Some(text.to_string()),
                    Value::ObjectPath(path) => Some(path.to_string()),
                    _ => None,
                }
            };
            if !message.types.is_empty() {
                // The signature as it was sent: the library omits the parentheses around the whole.
                let count = u8::try_from(message.types.len()).unwrap();
                let sent = [&[field::SIGNATURE, 1, b'g', 0, count], message.types.as_bytes(), &[0]].concat();
                assert!(bytes.windows(sent.len()).any(|part| part == sent), "{}", message.types);
            }
            Heard {
                number,
                flags,
                to: text(field::DESTINATION),
                path: text(field::PATH).unwrap(),
                interface: text(field::INTERFACE).unwrap(),
                method: text(field::MEMBER).unwrap(),
                message,
            }
        }

        pub(in crate::systemd) fn types(&self) -> &str {
            &self.message.types
        }
    }

    /// A reply with values to the call with serial `to`.
    pub(in crate::systemd) fn answer<T: serde::Serialize + zvariant::DynamicType>(
        to: u32,
        values: &T,
    ) -> Vec<u8> {
        let types = values.signature().to_string_no_parens();
        let body = to_bytes(Context::new_dbus(LE, 0), values).unwrap().bytes().to_vec();
        encode(2, 1, 7, vec![(field::REPLY_SERIAL, to.into())], &types, &body).unwrap()
    }

    /// An error reply to the call with serial `to`: the error's D-Bus name and its text.
    pub(in crate::systemd) fn refusal(to: u32, name: &str, says: &str) -> Vec<u8> {
        let body = to_bytes(Context::new_dbus(LE, 0), says).unwrap().bytes().to_vec();
        let fields = vec![(field::ERROR, name.into()), (field::REPLY_SERIAL, to.into())];
        encode(3, 1, 7, fields, "s", &body).unwrap()
    }

    /// A signal. On its private socket, systemd sends all signals to every client.
    pub(in crate::systemd) fn signal() -> Vec<u8> {
        let fields = vec![
            (field::PATH, ObjectPath::try_from("/org/freedesktop/systemd1").unwrap().into()),
            (field::INTERFACE, "org.freedesktop.systemd1.Manager".into()),
            (field::MEMBER, "UnitNew".into()),
        ];
        encode(4, 1, 7, fields, "", &[]).unwrap()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes of the D-Bus specification, written out by hand.
    #[test]
    fn a_call_is_these_bytes() {
        let mut call = Call::new("/a", "b.c", "D", &("e",)).unwrap();
        call.to = Some("f.g");
        let mut bytes = vec![b'l', 1, 2, 1, 6, 0, 0, 0, 9, 0, 0, 0, 70, 0, 0, 0];
        bytes.extend(b"\x01\x01o\0\x02\0\0\0/a\0\0\0\0\0\0");
        bytes.extend(b"\x02\x01s\0\x03\0\0\0b.c\0\0\0\0\0");
        bytes.extend(b"\x03\x01s\0\x01\0\0\0D\0\0\0\0\0\0\0");
        bytes.extend(b"\x06\x01s\0\x03\0\0\0f.g\0\0\0\0\0");
        bytes.extend(b"\x08\x01g\0\x01s\0\0");
        let fields = bytes.len() - HEAD - 1;
        bytes[12] = u8::try_from(fields).unwrap();
        bytes.extend(b"\x01\0\0\0e\0");
        assert_eq!(call.bytes(9).unwrap(), bytes);
        assert_eq!(length(&bytes), Ok(Some(bytes.len())));
        assert_eq!(length(&bytes[..15]), Ok(None));
        let two = Call::new("/a", "b.c", "D", &("e", 1_u64)).unwrap().bytes(9).unwrap();
        assert!(two.windows(8).any(|part| part == b"\x08\x01g\0\x02st\0"), "{two:?}");
        assert_eq!(Call::new("/a", "b.c", "D", &()).unwrap().bytes(9).unwrap().len(), 88 - 24);
    }

    #[test]
    fn answers_and_refusals_are_understood() {
        let answer = Message::parse(&fake::answer(5, &("x", 3_u64))).unwrap();
        assert_eq!((answer.kind, answer.reply_to), (Kind::Return, Some(5)));
        assert_eq!(answer.values::<(String, u64)>(), Ok(("x".to_owned(), 3)));
        let error = answer.values::<(String, u32)>().unwrap_err();
        assert_eq!(error, "values of the types `st` instead of `su`");
        let refusal = Message::parse(&fake::refusal(6, "a.B", "no")).unwrap();
        assert_eq!(
            (refusal.kind, refusal.reply_to, refusal.error.as_deref()),
            (Kind::Error, Some(6), Some("a.B"))
        );
        assert_eq!((refusal.error_text().as_str(), answer.error_text().as_str()), ("no", "x"));
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = length(&bytes);
            let _ = Message::parse(&bytes).map(|message| message.values::<(String, Vec<u64>)>());
        }

        #[test]
        fn a_damaged_message_never_panics(at in 0usize..96, with in any::<u8>()) {
            let mut bytes = fake::answer(5, &("x", vec![(1_u64, "abc")]));
            let at = at % bytes.len();
            bytes[at] = with;
            let _ = length(&bytes);
            let _ = Message::parse(&bytes).map(|message| message.values::<(String, Vec<(u64, String)>)>());
        }
    }
}
