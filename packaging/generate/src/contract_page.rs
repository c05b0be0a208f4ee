//! The man page commonhold-contract(5): the contract language.

use commonhold_contract::{MEMBER_FORMS, MEMBER_RULES, ReferenceKey, reference_tables};
use roff::{Inline, Roff, bold, italic, roman};

/// An example contract.
const EXAMPLE: &str = include_str!("../../../examples/three-groups.toml");

/// Renders the page. Markdown code becomes bold, and links lose their addresses.
pub(super) fn page() -> String {
    let mut page = Roff::new();
    let version = concat!("commonhold ", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["commonhold-contract", "5", "", version]);
    page.control("SH", ["NAME"]);
    page.text([roman("commonhold-contract - what each unit holds of the machine")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text(words(
        "A contract is a TOML file. It names units, which are groups of processes. It says what each unit holds of the CPUs, \
         the memory, the disks and the memory bus.",
    ));
    page.control("PP", []);
    page.text(words(
        "`commonhold check FILE` says what a contract is worth on this machine. `commonhold run FILE --dry-run` says \
         which processes would be in which unit. The system's service holds `/etc/commonhold/contract.toml`.",
    ));
    page.control("PP", []);
    page.text(words(
        "Amounts are numbers with a unit, such as `\"8GiB\"`, `\"100MB/s\"` or `\"500ms\"`, or parts, such as `\"25%\"`. \
         CPUs may be plain numbers, such as `1.5`.",
    ));
    for table in reference_tables() {
        page.control("SH", [upper(table.heading).as_str()]);
        for key in table.keys {
            entry(&mut page, &key);
        }
    }
    page.control("SH", ["MEMBERS"]);
    page.text([roman("A member is one of these:")]);
    for form in MEMBER_FORMS {
        page.control("TP", []);
        page.text(words(&format!("`{}`", form.forms.join("`, `"))));
        page.text(words(&format!("Processes {}.", form.who)));
    }
    for paragraph in MEMBER_RULES {
        page.control("PP", []);
        page.text(words(paragraph));
    }
    page.control("SH", ["EXAMPLE"]);
    page.control("nf", []);
    for line in EXAMPLE.lines() {
        page.text([roman(if line.is_empty() { " " } else { line })]);
    }
    page.control("fi", []);
    page.control("SH", ["SEE ALSO"]);
    let pages = ["check", "run", "doctor", "generate-schema"].map(|name| format!("commonhold-{name}"));
    let see = pages.iter().enumerate().flat_map(|(i, name)| {
        let comma = if i == 0 { "" } else { ", " };
        [roman(comma), bold(name.as_str()), roman("(1)")]
    });
    page.text(see.collect::<Vec<_>>());
    page.to_roff()
}

/// Adds a key: its values, its meaning, an example and its default.
fn entry(page: &mut Roff, key: &ReferenceKey) {
    page.control("TP", []);
    page.text([bold(key.name), roman(" = "), italic(plain(&key.values))]);
    page.text(words(key.doc));
    page.control("IP", []);
    let mut example = words(&format!("For example `{}`.", key.example));
    if !key.default.is_empty() {
        example.extend(words(&format!(" If not said: `{}`.", key.default)));
    }
    page.text(example);
}

/// Converts a line of Markdown: code becomes bold, and links lose their addresses.
fn words(markdown: &str) -> Vec<Inline> {
    let parts = without_links(markdown);
    let parts = parts.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(i, part)| if i % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

/// Markdown as plain text: without the marks of code and the addresses of links.
fn plain(markdown: &str) -> String {
    without_links(markdown).replace('`', "")
}

/// `[text](address)` becomes `text`, but not within backquotes.
fn without_links(markdown: &str) -> String {
    let mut out = String::new();
    let (mut rest, mut in_code) = (markdown, false);
    while let Some(at) = rest.find(['`', '[']) {
        let (before, from) = rest.split_at(at);
        out += before;
        let link = from.strip_prefix('[').filter(|_| !in_code).and_then(|text| {
            let (text, address) = text.split_once("](")?;
            Some((text, address.split_once(')')?.1))
        });
        if let Some((text, after)) = link {
            out += text;
            rest = after;
        } else {
            in_code ^= from.starts_with('`');
            out += &from[..1];
            rest = &from[1..];
        }
    }
    out + rest
}

/// A heading in the capitals of man pages; code stays as it is written.
fn upper(markdown: &str) -> String {
    let part = |(i, part): (usize, &str)| if i % 2 == 1 { part.to_owned() } else { part.to_uppercase() };
    markdown.split('`').enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_code_become_words_of_a_page() {
        assert_eq!(plain("a list of [members](#members), and `[unit]`"), "a list of members, and [unit]");
        assert_eq!(plain("[not closed](there"), "[not closed](there");
        assert_eq!(words("so `a-b` is"), [roman("so "), bold("a-b"), roman(" is")]);
        assert_eq!(upper("`[unit.NAME]`, and `hard` below"), "[unit.NAME], AND hard BELOW");
    }
}
