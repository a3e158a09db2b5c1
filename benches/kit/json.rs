//! A minimal JSON writer: objects, lists, strings and numbers.

pub(crate) fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("{}:{value}", string(name)))
        .collect();
    format!("{{{}}}", fields.join(","))
}

pub(crate) fn list(values: impl IntoIterator<Item = String>) -> String {
    let values: Vec<String> = values.into_iter().collect();
    format!("[{}]", values.join(","))
}

pub(crate) fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            // Escaped, so that the text can be embedded in an HTML script.
            '<' => out += "\\u003c",
            char if char.is_control() => out += &format!("\\u{:04x}", char as u32),
            char => out.push(char),
        }
    }
    out + "\""
}

/// A number, or null for NaN and infinities.
pub(crate) fn number(value: f64) -> String {
    match value.is_finite() {
        true => format!("{value:.4}"),
        false => "null".into(),
    }
}
