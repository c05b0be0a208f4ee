//! Every contract of `bad/` gets exactly these errors and warnings. The examples are accepted.
//!
//! `INSTA_UPDATE=always cargo test -p commonhold-contract` writes the expected texts anew; review them as a
//! diff.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is pure, its tests are not"
)]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use commonhold_contract::{Level, MEMBER_FORMS, parse, reference, render, schema};

/// The contracts of a folder by file name, in order.
fn contracts(folder: &Path) -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    assert!(!paths.is_empty(), "there are contracts in {}", folder.display());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn bad_contracts_are_explained() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    insta::with_settings!({ snapshot_path => "bad", prepend_module_to_snapshot => false, omit_expression => true }, {
        for (name, text) in contracts(&folder) {
            let parsed = parse(&text);
            assert!(!parsed.diagnostics.is_empty(), "{name} is a bad contract");
            let errors = parsed.diagnostics.iter().any(|d| d.level == Level::Error);
            assert_eq!(parsed.contract.is_none(), errors, "{name}: a contract if and only if there is no error");
            let shown = render(&parsed.diagnostics, &text, &name, false);
            insta::assert_snapshot!(name.trim_end_matches(".toml"), shown);
        }
    });
}

#[test]
fn the_examples_have_no_diagnostics() {
    for (name, text) in contracts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")) {
        let parsed = parse(&text);
        let shown = render(&parsed.diagnostics, &text, &name, false);
        assert!(parsed.contract.is_some() && parsed.diagnostics.is_empty(), "{shown}");
    }
}

/// Between these marks, `docs/contract-reference.md` is the output of `commonhold generate
/// contract-reference`.
const GENERATED: [&str; 2] =
    ["<!-- generated: commonhold generate contract-reference -->\n", "<!-- end of the generated part -->\n"];

#[test]
fn the_reference_in_the_documents_is_the_one_that_is_generated() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/contract-reference.md");
    let text = fs::read_to_string(&file).unwrap();
    let marks = GENERATED.map(|mark| {
        text.find(mark).unwrap_or_else(|| panic!("docs/contract-reference.md lacks the line {mark}"))
    });
    let (from, to) = (marks[0] + GENERATED[0].len(), marks[1]);
    let generated = format!("\n{}\n", reference());
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        fs::write(&file, format!("{}{generated}{}", &text[..from], &text[to..])).unwrap();
        return;
    }
    assert_eq!(
        &text[from..to],
        generated,
        "docs/contract-reference.md differs from the table of keys: run `INSTA_UPDATE=always cargo test -p commonhold-contract`"
    );
}

#[test]
fn members_begin_with_their_kind() {
    for form in MEMBER_FORMS {
        assert!(form.forms.iter().all(|text| text.starts_with(&format!("{}:", form.kind))), "{form:?}");
    }
}

/// The examples in the documents are valid contracts.
#[test]
fn contracts_in_the_documents_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut shown = 0;
    for name in documents_with_contracts(&root) {
        let text = fs::read_to_string(root.join(&name)).unwrap();
        for block in blocks(&text).iter().filter(|block| block.contains("[unit.")) {
            let parsed = parse(block);
            assert!(
                parsed.contract.is_some(),
                "{name}:\n{block}\n{}",
                render(&parsed.diagnostics, block, &name, false)
            );
            shown += 1;
        }
    }
    assert_eq!(shown, 18, "contracts that were found");
}

/// The documents whose contracts are checked, by their paths below the root: some named ones, and each page
/// of `docs/how-to`.
fn documents_with_contracts(root: &Path) -> Vec<String> {
    let named = ["README.md", "docs/contract.md", "docs/disk.md", "docs/memory.md"];
    let mut documents = Vec::from(named.map(String::from));
    for page in fs::read_dir(root.join("docs/how-to")).unwrap() {
        documents.push(format!("docs/how-to/{}", page.unwrap().file_name().to_str().unwrap()));
    }
    documents
}

/// The blocks of code in a document: fenced, or indented by four spaces.
fn blocks(text: &str) -> Vec<String> {
    let (mut blocks, mut block, mut fenced) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        let is_fence = line.starts_with("```");
        let code = if fenced { Some(line).filter(|_| !is_fence) } else { line.strip_prefix("    ") };
        let goes_on = !block.is_empty() && line.is_empty();
        match code.or(goes_on.then_some("")) {
            Some(code) => block.extend([code, "\n"]),
            None => blocks.push(std::mem::take(&mut block)),
        }
        fenced ^= is_fence;
    }
    blocks.push(block);
    blocks
}

#[test]
fn the_schema_says_what_the_table_of_keys_says() {
    insta::with_settings!({ omit_expression => true }, {
        insta::assert_snapshot!(serde_json::to_string_pretty(&schema()).unwrap());
    });
}
