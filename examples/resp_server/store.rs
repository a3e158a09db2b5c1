//! The protocol and the commands, without I/O.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// The maximum length of a request.
const MAX_REQUEST: usize = 1 << 20;
/// The maximum length of a line, and of a request that is one line.
const MAX_LINE: usize = 64 * 1024;
/// The maximum length of a reply with several values.
pub(crate) const MAX_REPLY: usize = 16 << 20;
/// The maximum number of arguments.
const MAX_ARGS: usize = 4096;

/// The start of the received bytes: a request or a part of one.
pub(crate) enum Parsed<'a> {
    /// The command with its arguments, and the length of the request.
    Request(Vec<&'a [u8]>, usize),
    /// No complete request before this number of bytes has been received.
    Needs(usize),
}

/// Parses the first request: an array of strings, or words on a line.
pub(crate) fn parse(input: &[u8]) -> io::Result<Parsed<'_>> {
    let Some((line, mut at)) = line(input, 0)? else {
        return needs(input.len() + 1);
    };
    let Some(count) = line.strip_prefix(b"*") else {
        let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        return Ok(Parsed::Request(words.collect(), at));
    };
    let mut request = Vec::new();
    for _ in 0..number(count, MAX_ARGS)? {
        let Some((header, start)) = self::line(input, at)? else {
            return needs(input.len() + 1);
        };
        let len = header.strip_prefix(b"$").ok_or_else(|| invalid("expected '$'"))?;
        let end = start + number(len, MAX_REQUEST)?;
        if input.len() < end + 2 {
            return needs(end + 2);
        }
        request.push(&input[start..end]);
        at = end + 2;
    }
    Ok(Parsed::Request(request, at))
}

fn needs(len: usize) -> io::Result<Parsed<'static>> {
    match len <= MAX_REQUEST {
        true => Ok(Parsed::Needs(len)),
        false => Err(invalid("too big request")),
    }
}

/// The line that starts at `start`, and where the next one starts.
fn line(input: &[u8], start: usize) -> io::Result<Option<(&[u8], usize)>> {
    let rest = &input[start..];
    match rest.iter().take(MAX_LINE).position(|byte| *byte == b'\n') {
        Some(len) => Ok(Some((rest[..len].trim_ascii_end(), start + len + 1))),
        None if rest.len() < MAX_LINE => Ok(None),
        None => Err(invalid("too big inline request")),
    }
}

fn number(text: &[u8], max: usize) -> io::Result<usize> {
    let number = integer(text).and_then(|number| usize::try_from(number).ok());
    number
        .filter(|number| *number <= max)
        .ok_or_else(|| invalid("invalid length"))
}

fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("Protocol error: {why}"))
}

/// The keys, in memory, without a limit on their number.
#[derive(Default)]
pub(crate) struct Store {
    entries: HashMap<Vec<u8>, Entry>,
}

struct Entry {
    value: Vec<u8>,
    expires: Option<Instant>,
}

/// An answer.
enum Reply {
    Ok,
    Pong,
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Store {
    /// Runs a command and appends its reply to `out`.
    pub(crate) fn execute(&mut self, request: &[&[u8]], out: &mut Vec<u8>) {
        // An empty line is ignored, as by Redis.
        let [name, args @ ..] = request else { return };
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        match self.run(&name, args) {
            Ok(reply) => reply.write(out),
            Err(error) => put(out, format_args!("-ERR {error}\r\n")),
        }
    }

    fn run(&mut self, name: &str, args: &[&[u8]]) -> Result<Reply, String> {
        let not_a_number = || "value is not an integer or out of range".to_owned();
        Ok(match (name, args) {
            ("ping", []) => Reply::Pong,
            ("ping" | "echo", [text]) => Reply::Bulk(Some(text.to_vec())),
            ("get", [key]) => Reply::Bulk(self.get(key)),
            ("mget", [_, ..]) => {
                let len_of = |key: &&[u8]| self.live(key).map_or(0, |entry| entry.value.len());
                if args.iter().map(len_of).sum::<usize>() > MAX_REPLY {
                    return Err("the reply is too long".to_owned());
                }
                Reply::Array(args.iter().map(|key| Reply::Bulk(self.get(key))).collect())
            }
            ("set", [key, value]) => self.set(key, value, None),
            ("set", [key, value, unit, time]) => {
                let time = integer(time).ok_or_else(not_a_number)?;
                let time = u64::try_from(time).ok().filter(|time| *time > 0);
                let time = time.ok_or("invalid expire time in 'set' command")?;
                let time = match unit.to_ascii_lowercase().as_slice() {
                    b"ex" => Duration::from_secs(time),
                    b"px" => Duration::from_millis(time),
                    _ => return Err("syntax error".to_owned()),
                };
                let expires = Instant::now().checked_add(time);
                self.set(key, value, Some(expires.ok_or("invalid expire time in 'set' command")?))
            }
            ("set", [_, _, ..]) => return Err("syntax error".to_owned()),
            ("mset", [_, ..]) if args.len().is_multiple_of(2) => {
                args.chunks(2).for_each(|pair| drop(self.set(pair[0], pair[1], None)));
                Reply::Ok
            }
            ("del", [_, ..]) => {
                let is_deleted = |key: &&&[u8]| self.live(key).is_some() && self.entries.remove(**key).is_some();
                Reply::Integer(args.iter().filter(is_deleted).count() as i64)
            }
            ("incr", [key]) => {
                let value = match self.get(key) {
                    Some(value) => integer(&value).ok_or_else(not_a_number)?,
                    None => 0,
                };
                let value = value
                    .checked_add(1)
                    .ok_or("increment or decrement would overflow".to_owned())?;
                let expires = self.entries.get(*key).and_then(|entry| entry.expires);
                self.set(key, value.to_string().as_bytes(), expires);
                Reply::Integer(value)
            }
            ("expire", [key, seconds]) => {
                let seconds = integer(seconds).ok_or_else(not_a_number)?;
                let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0)); // in the past: expires now
                let expires = Instant::now().checked_add(time);
                let expires = expires.ok_or("invalid expire time in 'expire' command")?;
                match self.live(key) {
                    Some(entry) => {
                        entry.expires = Some(expires);
                        Reply::Integer(1)
                    }
                    None => Reply::Integer(0),
                }
            }
            ("ttl", [key]) => Reply::Integer(match self.live(key).map(|entry| entry.expires) {
                None => -2,
                Some(None) => -1,
                Some(Some(at)) => ((at - Instant::now()).as_millis() as i64 + 500) / 1000,
            }),
            ("dbsize", []) => Reply::Integer(self.len() as i64),
            ("flushall", []) => {
                self.clear();
                Reply::Ok
            }
            ("ping" | "echo" | "get" | "mget" | "set" | "mset" | "del" | "incr" | "expire" | "ttl", _)
            | ("dbsize" | "flushall", _) => {
                return Err(format!("wrong number of arguments for '{name}' command"));
            }
            _ => return Err(format!("unknown command '{}'", name.escape_default())),
        })
    }

    /// An entry that has not expired.
    fn live(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(key);
        entry.filter(|entry| entry.expires.is_none_or(|at| at > Instant::now()))
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.live(key).map(|entry| entry.value.clone())
    }

    fn set(&mut self, key: &[u8], value: &[u8], expires: Option<Instant>) -> Reply {
        let value = value.to_vec();
        self.entries.insert(key.to_vec(), Entry { value, expires });
        Reply::Ok
    }

    /// The number of entries, with those that have expired since the last sweep.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Frees the entries that have expired.
    pub(crate) fn sweep(&mut self) {
        let now = Instant::now();
        self.entries.retain(|_, entry| entry.expires.is_none_or(|at| at > now));
    }
}

impl Reply {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Ok => put(out, format_args!("+OK\r\n")),
            Reply::Pong => put(out, format_args!("+PONG\r\n")),
            Reply::Integer(number) => put(out, format_args!(":{number}\r\n")),
            Reply::Bulk(None) => put(out, format_args!("$-1\r\n")),
            Reply::Bulk(Some(bytes)) => {
                put(out, format_args!("${}\r\n", bytes.len()));
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Array(replies) => {
                put(out, format_args!("*{}\r\n", replies.len()));
                replies.iter().for_each(|reply| reply.write(out));
            }
        }
    }
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector grows");
}
