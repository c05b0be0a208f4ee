//! What the command says, to the byte: `commands/*.trycmd`. Update with `TRYCMD=overwrite cargo test -p commonhold --test
//! golden`, and review the difference.

#[test]
fn commands() {
    trycmd::TestCases::new().env("COLUMNS", "100").case("tests/commands/*.trycmd");
}
