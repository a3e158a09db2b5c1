//! The log as text: the timeline of a failure, and a trace for Perfetto.

use std::fmt::{self, Write as _};
use std::io;

use super::kind::{DISK_FAULTS, EventKind, Word};
use super::{EventLog, Record};

impl EventLog {
    /// The line of a record in the timeline, with its text if it has one.
    pub(crate) fn line_of(&self, record: &Record) -> String {
        let entry = self.entries().find(|(_, other, _)| *other == record);
        self.line(record, entry.and_then(|(.., text)| text))
    }

    /// One line of the timeline, without the line's end.
    fn line(&self, record: &Record, text: Option<&str>) -> String {
        let mut line = String::new();
        let _ = write!(
            line,
            "{:>14}  {:<8} ",
            Seconds(record.at_ns.saturating_sub(self.origin_ns)),
            self.host_name(record.host)
        );
        if record.task != 0 {
            let _ = write!(line, "#{:<5} ", record.task);
        } else {
            line.push_str("       ");
        }
        self.write_event(&mut line, record, text);
        line
    }

    fn write_event(&self, out: &mut String, record: &Record, text: Option<&str>) {
        let (name, a, b) = record.kind.parts();
        match text {
            Some("") => out.push_str(name),
            // The text of a note says it all.
            Some(text) if record.kind == EventKind::Note => out.push_str(text),
            Some(text) => {
                let _ = write!(out, "{name}: {text}");
            }
            None => {
                out.push_str(name);
                self.write_word(out, a, record.a);
                self.write_word(out, b, record.b);
            }
        }
    }

    fn write_word(&self, out: &mut String, word: Word, value: u64) {
        let _ = match word {
            Word::Unused => Ok(()),
            Word::Count(label) => write!(out, " {label}={value}"),
            Word::Signed(label) => write!(out, " {label}={}", value as i64),
            Word::Hash(label) => write!(out, " {label}={value:016x}"),
            Word::Host(label) => write!(out, " {label} {}", self.host_name(value as u16)),
            Word::DiskFault => write!(out, " {}", DISK_FAULTS.get(value as usize).unwrap_or(&"unknown")),
            Word::Nanos(label) => write!(out, " {label} {} us", value as f64 / 1_000.0),
            Word::Quirk => match self.quirk_names.get(value as usize) {
                Some(name) => write!(out, " {name}"),
                None => write!(out, " kind={value}"),
            },
            Word::Op(label) => match self.op_names.get(value as usize) {
                Some(name) => write!(out, " {name}"),
                None => write!(out, " {label}={value}"),
            },
        };
    }

    /// The kept records with their texts, oldest first.
    fn entries(&self) -> impl Iterator<Item = (u64, &Record, Option<&str>)> {
        let mut texts = self.texts.iter().peekable();
        self.records().map(move |(index, record)| {
            while texts.next_if(|text| text.index < index).is_some() {}
            let text = texts.next_if(|text| text.index == index);
            (index, record, text.map(|text| text.text.as_str()))
        })
    }

    /// The timeline of the kept records.
    pub(crate) fn write_timeline(&self, out: &mut impl io::Write) -> io::Result<()> {
        for (_, record, text) in self.entries() {
            writeln!(out, "{}", self.line(record, text))?;
        }
        Ok(())
    }

    /// The end of the timeline for a reader of a failure: the last events with a text, and the very last of all kinds but
    /// turns, which show nothing that the program did.
    pub(crate) fn last_lines(&self, count: usize) -> Vec<String> {
        let texts = self.entries().filter(|(.., text)| text.is_some()).count();
        let from_text = texts.saturating_sub(count);
        let from_index = self.len.saturating_sub(count as u64 / 2);
        let mut lines = Vec::new();
        let mut text_number = 0;
        for (index, record, text) in self.entries() {
            let is_late_text = text.is_some() && text_number >= from_text;
            text_number += usize::from(text.is_some());
            if is_late_text || index >= from_index && record.kind != EventKind::Turn {
                lines.push(self.line(record, text));
            }
        }
        lines
    }

    /// The kept records as a trace for Perfetto or `chrome://tracing`: a process per host, a thread per task.
    pub(crate) fn write_json(&self, out: &mut impl io::Write) -> io::Result<()> {
        writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        for (number, name) in self.hosts.iter().enumerate() {
            writeln!(
                out,
                "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{number},\"args\":{{\"name\":{}}}}},",
                Json(name)
            )?;
        }
        for (index, record, text) in self.entries() {
            let mut event = String::new();
            self.write_event(&mut event, record, text);
            let (phase, length) = match record.kind {
                EventKind::Turn | EventKind::Job => ("X", record.b),
                _ => ("i", 0),
            };
            write!(
                out,
                "{{\"name\":{},\"cat\":\"sim\",\"ph\":\"{phase}\",\"ts\":{},\"pid\":{},\"tid\":{}",
                Json(record.kind.name()),
                Micros(record.at_ns.saturating_sub(self.origin_ns)),
                record.host,
                record.task,
            )?;
            if phase == "X" {
                write!(out, ",\"dur\":{}", Micros(length))?;
            } else {
                write!(out, ",\"s\":\"t\"")?;
            }
            writeln!(out, ",\"args\":{{\"event\":{},\"index\":{index}}}}},", Json(&event))?;
        }
        // The format forbids a comma after the last event.
        writeln!(
            out,
            "{{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0,\"args\":{{\"hash\":\"{:016x}\",\"events\":{}}}}}\n]}}",
            self.hash, self.len
        )
    }
}

/// Nanoseconds, printed as seconds with six digits.
pub(crate) struct Seconds(pub(crate) u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:06}", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000))
    }
}

/// Nanoseconds, printed as microseconds with three digits.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

/// A text as a JSON string.
struct Json<'a>(&'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for char in self.0.chars() {
            match char {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                char if (char as u32) < 0x20 => write!(f, "\\u{:04x}", char as u32)?,
                char => f.write_char(char)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::super::LogMode;
    use super::*;

    #[test]
    fn the_timeline_reads_well() {
        let mut log = EventLog::new(LogMode::All);
        log.name_host(0, "sim");
        log.name_host(1, "b");
        log.name_ops(&["read", "write"]);
        log.set_origin(500_000);
        log.append(1_500_000, 0, EventKind::Send, 12, 1, 64);
        log.record(2_000_000, 1, EventKind::Complete, 1, -104i64 as u64);
        log.note(40_001_500_000, 1, EventKind::Crash, "power");
        log.note(41_000_500_000, 0, EventKind::Note, "put 40 \"answered\"");
        let mut text = Vec::new();
        log.write_timeline(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(
            text,
            "      0.001000  sim      #12    send to b bytes=64\n\
             \x20     0.001500  b               complete write result=-104\n\
             \x20    40.001000  b               crash: power\n\
             \x20    41.000000  sim             put 40 \"answered\"\n"
        );
        assert_eq!(log.last_lines(10).len(), 4);
        let last = log.last_lines(2);
        assert_eq!(last.len(), 2);
        assert!(last[0].ends_with("crash: power"));
        let mut json = Vec::new();
        log.write_json(&mut json).unwrap();
        let json = String::from_utf8(json).unwrap();
        assert!(
            json.contains(r#""args":{"event":"put 40 \"answered\"","index":3}"#),
            "{json}"
        );
        assert!(
            json.contains(r#""name":"process_name","pid":1,"args":{"name":"b"}"#),
            "{json}"
        );
        assert!(!json.contains(",\n]"), "{json}");
    }
}
