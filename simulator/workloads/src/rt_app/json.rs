//! Reads JSON as json-c does for rt-app: comments and commas at the end are allowed; and a value may be
//! left out, as in files for `workgen`.
//!
//! Unlike in json-c, keys keep their order and may be repeated: rt-app's files repeat `run` and `sleep`,
//! which its script `workgen` numbers before rt-app reads them.

#![allow(clippy::result_large_err, reason = "a text is read once, and has one error at most")]

use commonhold_contract::{Diagnostic, Span};

/// The deepest nesting, as json-c's.
const DEPTH_MAX: usize = 32;
/// The most values of a text.
const VALUES_MAX: usize = 4_000_000;

/// A value and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) at: Span,
    pub(super) value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i64),
    /// A number with decimals or an exponent.
    Decimal,
    Text(String),
    List(Vec<Node>),
    Object(Vec<Entry>),
}

/// A key and its value in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_at: Span,
    pub(super) node: Node,
}

impl Value {
    /// What messages call it.
    pub(super) fn noun(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "true or false",
            Value::Integer(_) => "a whole number",
            Value::Decimal => "a number with decimals",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Object(_) => "an object",
        }
    }
}

/// Reads a text. The error is the first mistake.
pub(super) fn parse(text: &str) -> Result<Node, Diagnostic> {
    let mut reader = Reader { text, at: 0, values: 0 };
    let node = reader.value(0)?;
    reader.skip()?;
    match reader.peek() {
        None => Ok(node),
        Some(_) => Err(reader.wrong("the text goes on after the first object", "remove what follows it")),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    values: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn wrong(&self, message: &str, help: &str) -> Diagnostic {
        let end = self.text[self.at..].chars().next().map_or(self.at, |c| self.at + c.len_utf8());
        Diagnostic::error("syntax", self.at..end, message).help(help)
    }

    /// Skips spaces and comments.
    fn skip(&mut self) -> Result<(), Diagnostic> {
        loop {
            let rest = &self.text[self.at..];
            self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{b}', '\u{c}']).len();
            let rest = &self.text[self.at..];
            if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if let Some(comment) = rest.strip_prefix("/*") {
                let end = comment.find("*/").ok_or_else(|| {
                    self.wrong("the comment that begins here has no end", "close it with `*/`")
                })?;
                self.at += end + 4;
            } else {
                return Ok(());
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, Diagnostic> {
        self.skip()?;
        self.values += 1;
        if self.values > VALUES_MAX {
            let message = format!("the text has more than {VALUES_MAX} values");
            return Err(self.wrong(&message, "divide it into several files"));
        }
        let start = self.at;
        let value = match self.peek() {
            Some(b'{' | b'[') if depth == DEPTH_MAX => {
                let message = format!("values are nested more than {DEPTH_MAX} deep");
                return Err(self.wrong(&message, "nest them less"));
            }
            Some(b'{') => Value::Object(self.object(depth)?),
            Some(b'[') => Value::List(self.list(depth)?),
            Some(quote @ (b'"' | b'\'')) => Value::Text(self.string(quote)?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(_) => self.word()?,
            None => return Err(self.wrong("the text ends where a value is expected", "complete it")),
        };
        Ok(Node { at: start..self.at, value })
    }

    fn object(&mut self, depth: usize) -> Result<Vec<Entry>, Diagnostic> {
        let mut entries = Vec::new();
        self.at += 1;
        loop {
            self.skip()?;
            let start = self.at;
            let key = match self.peek() {
                Some(b'}') => break,
                Some(quote @ (b'"' | b'\'')) => self.string(quote)?,
                _ => return Err(self.wrong("here should be a key in quotes, or `}`", "write \"key\": value")),
            };
            let key_at = start..self.at;
            self.skip()?;
            let node = match self.peek() {
                Some(b':') => {
                    self.at += 1;
                    self.value(depth + 1)?
                }
                // `workgen` completes values that are left out, such as that of `suspend`.
                Some(b',' | b'}') => Node { at: key_at.clone(), value: Value::Null },
                _ => return Err(self.wrong("after a key comes `:`", "write \"key\": value")),
            };
            entries.push(Entry { key, key_at, node });
            if !self.comma(b'}')? {
                break;
            }
        }
        self.at += 1;
        Ok(entries)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Diagnostic> {
        let mut nodes = Vec::new();
        self.at += 1;
        loop {
            self.skip()?;
            if self.peek() == Some(b']') {
                break;
            }
            nodes.push(self.value(depth + 1)?);
            if !self.comma(b']')? {
                break;
            }
        }
        self.at += 1;
        Ok(nodes)
    }

    /// Reads the comma after an element. Returns false at the closing bracket, which it leaves.
    fn comma(&mut self, close: u8) -> Result<bool, Diagnostic> {
        self.skip()?;
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == close => Ok(false),
            _ => {
                let message = format!("here should be `,` or `{}`", char::from(close));
                Err(self.wrong(&message, "separate elements with commas, and close each bracket"))
            }
        }
    }

    fn string(&mut self, quote: u8) -> Result<String, Diagnostic> {
        let start = self.at;
        let unclosed = |reader: &Self| {
            let message = "the string that begins here has no end";
            Diagnostic::error("syntax", start..reader.text.len().min(start + 1), message)
                .help("close it with a quotation mark")
        };
        self.at += 1;
        let mut out = String::new();
        loop {
            let c = self.text[self.at..].chars().next().ok_or_else(|| unclosed(self))?;
            self.at += c.len_utf8();
            match c {
                c if u32::from(c) == u32::from(quote) => return Ok(out),
                '\\' => {
                    let escaped = self.text[self.at..].chars().next().ok_or_else(|| unclosed(self))?;
                    self.at += escaped.len_utf8();
                    out.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        'u' => {
                            let code = self.text.get(self.at..self.at + 4);
                            let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
                            let help = "write four hexadecimal digits after \\u";
                            let code = code.ok_or_else(|| self.wrong("this is no character's code", help))?;
                            self.at += 4;
                            // Half of a pair stands for no character.
                            char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
                        }
                        other => other,
                    });
                }
                c => out.push(c),
            }
        }
    }

    fn number(&mut self) -> Result<Value, Diagnostic> {
        let rest = &self.text[self.at..];
        let length = rest.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(rest.len());
        let word = &rest[..length];
        let value = match word.parse::<i64>() {
            Ok(number) => Value::Integer(number),
            Err(_)
                if word.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()) && word != "-" =>
            {
                // json-c takes the nearest number that fits.
                Value::Integer(if word.starts_with('-') { i64::MIN } else { i64::MAX })
            }
            Err(_) if word.parse::<f64>().is_ok() => Value::Decimal,
            Err(_) => return Err(self.wrong("this is no number", "write digits: 20000")),
        };
        self.at += length;
        Ok(value)
    }

    fn word(&mut self) -> Result<Value, Diagnostic> {
        let rest = &self.text[self.at..];
        let length = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let value = match rest[..length].to_ascii_lowercase().as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            "nan" | "infinity" => Value::Decimal,
            _ => {
                let help = "write a number, a string in quotes, true, false, a list or an object";
                return Err(self.wrong("here should be a value", help));
            }
        };
        self.at += length;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_repeated_keys_comments_and_last_commas() {
        let text = "/* a */ { // b\n 'run': 1, \"suspend\", \"run\" : -2, \"t\":{ \"x\" : [0, 2,], }, \"u\": TRUE, \"v\":1.5,\n}";
        let node = parse(text).unwrap();
        let Value::Object(entries) = &node.value else { panic!("{node:?}") };
        let keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(keys, ["run", "suspend", "run", "t", "u", "v"]);
        assert_eq!(entries[2].node.value, Value::Integer(-2));
        assert_eq!(&text[entries[2].key_at.clone()], "\"run\"");
        assert_eq!((&entries[4].node.value, &entries[5].node.value), (&Value::Bool(true), &Value::Decimal));
    }

    #[test]
    fn strings_and_large_numbers() {
        let node = parse(r#"["a\"\u00e9\n\/", 99999999999999999999, -99999999999999999999, null]"#).unwrap();
        let Value::List(nodes) = node.value else { panic!() };
        let values: Vec<Value> = nodes.into_iter().map(|node| node.value).collect();
        let text = Value::Text("a\"é\n/".to_owned());
        assert_eq!(values, [text, Value::Integer(i64::MAX), Value::Integer(i64::MIN), Value::Null]);
    }

    #[test]
    fn the_first_mistake_is_reported_where_it_is() {
        for (text, at, message) in [
            ("", 0, "the text ends where a value is expected"),
            ("{", 1, "here should be a key in quotes, or `}`"),
            ("{\"a\" 1}", 5, "after a key comes `:`"),
            ("{\"a\": 1 \"b\": 2}", 8, "here should be `,` or `}`"),
            ("[1 2]", 3, "here should be `,` or `]`"),
            ("{} x", 3, "the text goes on after the first object"),
            ("/* x", 0, "the comment that begins here has no end"),
            ("[\"x]", 1, "the string that begins here has no end"),
            ("[-]", 1, "this is no number"),
            ("[\"\\uD\"]", 4, "this is no character's code"),
            ("[ö]", 1, "here should be a value"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!((error.span.start, error.message.as_str()), (at, message), "{text}");
        }
        let deep = "[".repeat(100);
        assert_eq!(parse(&deep).unwrap_err().message, "values are nested more than 32 deep");
    }
}
