//! Writes JSON.

use std::fmt::{Display, Write};

/// A JSON document that is being written. Values follow each other with commas where they are needed.
#[derive(Default)]
pub(super) struct Json {
    text: String,
}

impl Json {
    pub(super) fn finish(self) -> String {
        self.text
    }

    pub(super) fn object(&mut self, write: impl FnOnce(&mut Json)) {
        self.nested('{', '}', write);
    }

    pub(super) fn array<T>(&mut self, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut Json, T)) {
        self.nested('[', ']', |json| {
            for item in items {
                json.separate();
                write(json, item);
            }
        });
    }

    fn nested(&mut self, open: char, close: char, write: impl FnOnce(&mut Json)) {
        self.text.push(open);
        write(self);
        self.text.push(close);
    }

    /// Adds a comma unless this is the first of its kind.
    fn separate(&mut self) {
        if !self.text.ends_with(['{', '[', ':', ',']) {
            self.text.push(',');
        }
    }

    /// The key of the next value of an object.
    pub(super) fn key(&mut self, key: &str) -> &mut Json {
        self.separate();
        self.string(key);
        self.text.push(':');
        self
    }

    pub(super) fn null(&mut self) {
        self.text.push_str("null");
    }

    /// An integer or a boolean.
    pub(super) fn plain(&mut self, value: impl Display) {
        let _ = write!(self.text, "{value}");
    }

    /// A number of seconds. JSON has no infinity.
    pub(super) fn seconds(&mut self, seconds: f64) {
        match seconds.is_finite() {
            true => self.plain(format_args!("{seconds:.6}")),
            false => self.null(),
        }
    }

    pub(super) fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                // U+2028 and U+2029 end a line in old JavaScript; `<` could end a script.
                '\0'..='\x1f' | '\x7f' | '\u{2028}' | '\u{2029}' | '<' => {
                    let _ = write!(self.text, "\\u{:04x}", character as u32);
                }
                _ => self.text.push(character),
            }
        }
        self.text.push('"');
    }

    pub(super) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Json, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.null(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_separated_and_escaped() {
        let mut json = Json::default();
        json.object(|json| {
            json.key("name").string("a \"quoted\"\\\n<b>\u{1}");
            json.key("none").null();
            json.key("numbers").array([1, 2, 3], |json, number| json.plain(number));
            json.key("empty").array([0; 0], |json, number: i32| json.plain(number));
            json.key("objects")
                .array(["x", "y"], |json, key| json.object(|json| json.key(key).seconds(0.5)));
            json.key("never").seconds(f64::INFINITY);
        });
        assert_eq!(
            json.finish(),
            r#"{"name":"a \"quoted\"\\\n\u003cb>\u0001","none":null,"numbers":[1,2,3],"empty":[],"objects":[{"x":0.500000},{"y":0.500000}],"never":null}"#
        );
    }

    #[test]
    fn a_string_that_ends_like_an_open_object_is_followed_by_a_comma() {
        let mut json = Json::default();
        json.array(["{", "a:", "["], |json, text| json.string(text));
        assert_eq!(json.finish(), r#"["{","a:","["]"#);
    }
}
