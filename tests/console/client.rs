//! A client of the console, on blocking sockets, and the JSON that it gets.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use windlass::console::Console;

/// A request that takes longer hangs.
const HANG: Duration = Duration::from_secs(120);

/// The response to a request.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }
}

pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("the console listens");
    stream.set_read_timeout(Some(HANG)).expect("a timeout");
    stream
}

/// Sends bytes as they are. `None` if the connection ends without a response.
pub(crate) fn send(addr: SocketAddr, request: &[u8]) -> Option<Response> {
    let mut stream = connect(addr);
    // A server that refuses the request may close before it has read all of it.
    let _ = stream.write_all(request);
    read(stream)
}

/// Reads a response to its end.
pub(crate) fn read(mut stream: TcpStream) -> Option<Response> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "no response");
    }
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Response {
        status,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

/// A request as a browser or `curl` sends it, with further header lines.
pub(crate) fn request(method: &str, addr: SocketAddr, target: &str, headers: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: {addr}\r\n{headers}\r\n")
}

pub(crate) fn get(console: &Console, target: &str) -> Response {
    let addr = console.local_addr();
    send(addr, request("GET", addr, target, "").as_bytes()).expect("a response")
}

/// The document at `target`.
pub(crate) fn json(console: &Console, target: &str) -> Json {
    let response = get(console, target);
    assert_eq!(response.status, 200, "{response:?}");
    parse(&response.body)
}

/// The loop with this name, once a snapshot of it fulfils the condition.
pub(crate) fn loop_when(console: &Console, target: &str, name: &str, mut is_met: impl FnMut(&Json) -> bool) -> Json {
    let mut last = Json::Null;
    for _ in 0..2_000 {
        let document = json(console, target);
        if let Some(found) = find_loop(&document, name) {
            if is_met(found) {
                return found.clone();
            }
            last = found.clone();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the condition is never met: {last:?}");
}

pub(crate) fn find_loop<'a>(document: &'a Json, name: &str) -> Option<&'a Json> {
    document["loops"]
        .items()
        .iter()
        .find(|each| each["name"].text() == name)
}

/// A stream of events.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    pub(crate) fn open(console: &Console, target: &str) -> Events {
        let addr = console.local_addr();
        let mut stream = connect(addr);
        stream
            .write_all(request("GET", addr, target, "").as_bytes())
            .expect("sent");
        let mut events = Events(BufReader::new(stream));
        let head: Vec<String> = std::iter::from_fn(|| Some(events.line()).filter(|line| !line.is_empty())).collect();
        assert!(head[0].contains(" 200 "), "{head:?}");
        assert!(
            head.iter()
                .any(|line| line.starts_with("Content-Type: text/event-stream")),
            "{head:?}"
        );
        events
    }

    /// The next line, without its end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.0.read_line(&mut line).expect("a line"), 0, "the stream has ended");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    /// The next event or comment: its lines.
    pub(crate) fn next_lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if !line.is_empty() => lines.push(line),
                _ if lines.is_empty() => {}
                _ => return lines,
            }
        }
    }

    /// The data of the next snapshot.
    pub(crate) fn next_snapshot(&mut self) -> Json {
        loop {
            let lines = self.next_lines();
            if lines[0].starts_with(':') {
                continue;
            }
            assert_eq!((lines.len(), lines[0].as_str()), (2, "event: snapshot"));
            return parse(lines[1].strip_prefix("data: ").expect("data"));
        }
    }
}

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        match self {
            Json::Text(text) => text,
            other => panic!("not a string: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn number(&self) -> f64 {
        match self {
            Json::Number(number) => *number,
            other => panic!("not a number: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn items(&self) -> &[Json] {
        match self {
            Json::Array(items) => items,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// The task of this name.
    #[track_caller]
    pub(crate) fn task(&self, name: &str) -> &Json {
        self.find_task(name)
            .unwrap_or_else(|| panic!("no task '{name}' in {self:?}"))
    }

    pub(crate) fn find_task(&self, name: &str) -> Option<&Json> {
        self["tasks"]
            .items()
            .iter()
            .find(|task| task["name"] == Json::Text(name.to_owned()))
    }
}

impl std::ops::Index<&str> for Json {
    type Output = Json;

    #[track_caller]
    fn index(&self, key: &str) -> &Json {
        match self {
            Json::Object(members) => members.get(key).unwrap_or_else(|| panic!("no '{key}' in {members:?}")),
            other => panic!("not an object: {other:?}"),
        }
    }
}

/// Parses a whole document, and nothing but JSON.
#[track_caller]
pub(crate) fn parse(text: &str) -> Json {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value();
    assert_eq!(parser.at, text.len(), "more after the value");
    value
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> u8 {
        self.text.as_bytes()[self.at]
    }

    fn take(&mut self, expected: &str) {
        let rest = &self.text[self.at..];
        assert!(
            rest.starts_with(expected),
            "expected {expected} at {}",
            rest.chars().take(40).collect::<String>()
        );
        self.at += expected.len();
    }

    fn value(&mut self) -> Json {
        match self.peek() {
            b'n' => {
                self.take("null");
                Json::Null
            }
            b't' => {
                self.take("true");
                Json::Bool(true)
            }
            b'f' => {
                self.take("false");
                Json::Bool(false)
            }
            b'"' => Json::Text(self.string()),
            b'[' => {
                let mut items = Vec::new();
                self.sequence("[", "]", |parser| items.push(parser.value()));
                Json::Array(items)
            }
            b'{' => {
                let mut members = BTreeMap::new();
                self.sequence("{", "}", |parser| {
                    let key = parser.string();
                    parser.take(":");
                    let value = parser.value();
                    assert!(members.insert(key, value).is_none(), "a key occurs twice");
                });
                Json::Object(members)
            }
            _ => {
                let rest = &self.text[self.at..];
                let len = rest.find([',', ']', '}']).unwrap_or(rest.len());
                self.at += len;
                Json::Number(rest[..len].parse().expect("a number"))
            }
        }
    }

    fn sequence(&mut self, open: &str, close: &str, mut item: impl FnMut(&mut Self)) {
        self.take(open);
        if self.text[self.at..].starts_with(close) {
            return self.take(close);
        }
        loop {
            item(self);
            match self.text[self.at..].starts_with(close) {
                true => return self.take(close),
                false => self.take(","),
            }
        }
    }

    fn string(&mut self) -> String {
        self.take("\"");
        let mut text = String::new();
        loop {
            let character = self.text[self.at..].chars().next().expect("the end of the string");
            self.at += character.len_utf8();
            match character {
                '"' => return text,
                '\\' => {
                    let escaped = self.peek();
                    self.at += 1;
                    text.push(match escaped {
                        b'n' => '\n',
                        b'u' => {
                            let code = u32::from_str_radix(&self.text[self.at..self.at + 4], 16).expect("four digits");
                            self.at += 4;
                            char::from_u32(code).expect("a character")
                        }
                        other => other as char,
                    });
                }
                character => {
                    assert!(character >= ' ', "a control character");
                    text.push(character);
                }
            }
        }
    }
}
