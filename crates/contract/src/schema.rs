//! The contract's JSON schema (draft 2020-12), for editors: completion, documentation and checks while
//! typing.
//!
//! The schema is generated from the parser's table of keys. It covers less than the parser checks: rules that
//! involve several values (a limit below its reservation) are left to `check`.

use serde_json::{Value, json};

use crate::keys::{HARD, Key, Kind, LEND, MACHINE, MEMBERS_MAX, ROOT, TICKETS, Table, UNIT, VERSION};
use crate::member::KINDS;
use crate::name::NAME_CHARS_MAX;
use crate::resource::Resource;

/// The contract's JSON schema.
pub fn schema() -> Value {
    let mut root = table_schema(&ROOT);
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("Commonhold contract");
    root["description"] = json!("What each unit holds of a shared machine.");
    root["required"] = json!(["version"]);
    let definitions = [&MACHINE, &UNIT, &TICKETS, &HARD, &LEND]
        .map(|table| (table.definition.to_owned(), table_schema(table)));
    root["$defs"] = Value::Object(definitions.into_iter().collect());
    root
}

/// The schema of a table: its keys and no others.
fn table_schema(table: &Table) -> Value {
    let properties = table.keys.iter().map(|key| (key.name.to_owned(), key_schema(key)));
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": Value::Object(properties.collect()),
    })
}

/// The schema of a key's value, with its description and default.
fn key_schema(key: &Key) -> Value {
    let mut schema = kind_schema(key.kind);
    schema["description"] = json!(key.doc);
    // A default that is a table or a list is always empty, so that editors need not insert it.
    if let Some(default) = scalar_value(key.default) {
        schema["default"] = default;
    }
    schema
}

/// A TOML value as JSON: the text of strings, numbers and booleans is the same in both. `None` for tables,
/// lists and an empty text.
fn scalar_value(toml: &str) -> Option<Value> {
    serde_json::from_str(toml).ok().filter(|value: &Value| !value.is_array() && !value.is_object())
}

/// The schema of a type of value.
fn kind_schema(kind: Kind) -> Value {
    match kind {
        Kind::Version => json!({ "const": VERSION }),
        Kind::Table(table) => json!({ "$ref": reference(table) }),
        Kind::Units => json!({
            "type": "object",
            "propertyNames": { "pattern": name_pattern() },
            "additionalProperties": { "$ref": reference(&UNIT) },
        }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::WordOrCount { words, min, max } => {
            json!({ "anyOf": [{ "enum": words }, { "type": "integer", "minimum": min, "maximum": max }] })
        }
        Kind::Count { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Members => json!({
            "type": "array",
            "maxItems": MEMBERS_MAX,
            "uniqueItems": true,
            "items": { "type": "string", "pattern": format!("^({}):.+$", KINDS.join("|")) },
        }),
        Kind::Owner => json!({ "type": "string", "pattern": "^(user|group):.+$" }),
        Kind::Amount(Resource::Cpu) => json!({
            "anyOf": [
                { "type": "number", "minimum": 0 },
                { "type": "string", "pattern": r"^\d+(\.\d{1,6})?( *%)?$" },
            ],
        }),
        Kind::Amount(Resource::Memory) => amount_schema(""),
        Kind::Amount(Resource::Disk | Resource::Bus) => amount_schema("/s"),
        Kind::Part => json!({ "type": "string", "pattern": r"^\d+(\.\d{1,4})? *%$" }),
        Kind::Duration { .. } => {
            json!({ "type": "string", "pattern": r"^\d+(\.\d{1,6})? *(ns|us|ms|s|min|h)$" })
        }
        Kind::UnitPath => json!({ "type": "string", "minLength": 1 }),
        Kind::Counts(table) => json!({ "anyOf": [count_for_all_keys(table), { "$ref": reference(table) }] }),
        Kind::Permission(resource) => {
            json!({ "anyOf": [{ "type": "boolean" }, kind_schema(Kind::Amount(resource))] })
        }
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Permissions(table) => json!({ "anyOf": [{ "type": "boolean" }, { "$ref": reference(table) }] }),
    }
}

/// The schema of a number that stands for all keys of a table, which all have the same range.
fn count_for_all_keys(table: &Table) -> Value {
    table.keys.first().map_or(Value::Bool(false), |key| kind_schema(key.kind))
}

/// The schema of an amount of bytes, or of a rate (with `/s` as suffix).
fn amount_schema(suffix: &str) -> Value {
    let pattern = format!(r"^\d+(\.\d{{1,6}})? *(%|(B|[kKMGTP]B|[KMGTP]iB){suffix})$");
    json!({ "type": "string", "pattern": pattern })
}

/// A regular expression for names of units. Reserved names are left to the parser.
fn name_pattern() -> String {
    format!("^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{}}}$", NAME_CHARS_MAX - 1)
}

/// A reference to the schema of a table.
fn reference(table: &Table) -> String {
    format!("#/$defs/{}", table.definition)
}
