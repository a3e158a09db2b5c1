//! A strict parser for the head of a request, and the rules for who may ask.
//!
//! A browser runs code of any web site on the developer's machine, and that code can connect to loopback addresses. Three checks
//! keep it out:
//!
//! - The `Host` must be this server's address, `localhost` or a name that the program allows. A site that points its own name
//!   at 127.0.0.1 (DNS rebinding) sends its own name.
//! - An `Origin` must be this server's. `Sec-Fetch-Site`, which scripts cannot set, must not be another site.
//! - With a token, a request without it gets nothing.

use std::net::SocketAddr;

/// The largest head of a request.
pub(super) const MAX_HEAD: usize = 8 * 1024;

/// The parts of a request that matter here.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) is_head: bool,
    pub(super) path: String,
    query: Vec<(String, String)>,
    host: String,
    origin: Option<String>,
    fetch_site: Option<String>,
    authorization: Option<String>,
}

/// Why a request is refused: a status and a reason for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) &'static str, pub(super) &'static str);

pub(super) const BAD_REQUEST: Refusal = Refusal("400 Bad Request", "the request is malformed");
pub(super) const UNAUTHORIZED: Refusal = Refusal("401 Unauthorized", "a token is required");
pub(super) const FOREIGN_HOST: Refusal = Refusal("403 Forbidden", "the Host is not one of this console's");
pub(super) const FOREIGN_ORIGIN: Refusal = Refusal("403 Forbidden", "requests of other origins are refused");
pub(super) const NOT_FOUND: Refusal = Refusal("404 Not Found", "there is no such page");
pub(super) const NOT_ALLOWED: Refusal = Refusal("405 Method Not Allowed", "this console is read-only");
pub(super) const TOO_LARGE: Refusal = Refusal("431 Request Header Fields Too Large", "the request is too large");
pub(super) const BUSY: Refusal = Refusal("503 Service Unavailable", "this console has too many clients");
pub(super) const VERSION: Refusal = Refusal("505 HTTP Version Not Supported", "only HTTP/1.1 is supported");

/// Who may ask.
#[derive(Debug, Default)]
pub(super) struct Access {
    pub(super) token: Option<String>,
    /// Names besides `localhost` and addresses.
    pub(super) hosts: Vec<String>,
}

/// Where the empty line ends that ends the head.
pub(super) fn head_len(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .map(|at| at + 4)
}

impl Request {
    /// Parses a head, including the empty line.
    pub(super) fn parse(head: &[u8]) -> Result<Request, Refusal> {
        let head = std::str::from_utf8(head).map_err(|_| BAD_REQUEST)?;
        let mut lines = head.strip_suffix("\r\n\r\n").ok_or(BAD_REQUEST)?.split("\r\n");
        let line = lines.next().ok_or(BAD_REQUEST)?;
        let [method, target, version] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(BAD_REQUEST);
        };
        if !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
            return Err(if version.starts_with("HTTP/") {
                VERSION
            } else {
                BAD_REQUEST
            });
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Request {
            is_head: method == "HEAD",
            path: path.to_owned(),
            query: parse_query(query),
            ..Request::default()
        };
        let mut hosts = 0;
        for line in lines {
            let (name, value) = line.split_once(':').ok_or(BAD_REQUEST)?;
            if name.is_empty() || !name.bytes().all(is_token) || value.bytes().any(|byte| byte < 0x20 && byte != b'\t')
            {
                return Err(BAD_REQUEST);
            }
            let value = value.trim().to_owned();
            match name.to_ascii_lowercase().as_str() {
                "host" => {
                    hosts += 1;
                    request.host = value;
                }
                "origin" => request.origin = Some(value),
                "sec-fetch-site" => request.fetch_site = Some(value),
                "authorization" => request.authorization = Some(value),
                _ => {}
            }
        }
        match (hosts, method) {
            (1, "GET" | "HEAD") => Ok(request),
            (1, _) => Err(NOT_ALLOWED),
            _ => Err(BAD_REQUEST),
        }
    }

    /// The value of a parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Checks the request against the rules. `local` is the address that the client has connected to.
    pub(super) fn check(&self, access: &Access, local: SocketAddr) -> Result<(), Refusal> {
        if !access.allows_host(&self.host, local) {
            return Err(FOREIGN_HOST);
        }
        if let Some(origin) = &self.origin {
            let host = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
            if host.is_none_or(|host| !host.eq_ignore_ascii_case(&self.host)) {
                return Err(FOREIGN_ORIGIN);
            }
        }
        // `none`: the user typed the address.
        if !matches!(self.fetch_site.as_deref(), None | Some("same-origin" | "none")) {
            return Err(FOREIGN_ORIGIN);
        }
        match &access.token {
            Some(token) if !self.has_token(token) => Err(UNAUTHORIZED),
            _ => Ok(()),
        }
    }

    fn has_token(&self, token: &str) -> bool {
        let bearer = self.authorization.as_deref().and_then(|value| value.split_once(' '));
        let bearer = bearer
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        // A browser cannot add a header to these.
        let in_query = self
            .parameter("token")
            .filter(|_| matches!(self.path.as_str(), "/" | "/events"));
        [bearer, in_query]
            .into_iter()
            .flatten()
            .any(|given| is_equal(given.as_bytes(), token.as_bytes()))
    }
}

impl Access {
    fn allows_host(&self, host: &str, local: SocketAddr) -> bool {
        let (name, port) = split_port(host);
        let is_name = |known: &str| name.eq_ignore_ascii_case(known);
        if self
            .hosts
            .iter()
            .any(|known| known.eq_ignore_ascii_case(host) || is_name(known))
        {
            return true;
        }
        // Without a port, the default one of HTTP.
        if port.unwrap_or("80") != local.port().to_string() {
            return false;
        }
        let name = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(name);
        match name.parse::<std::net::IpAddr>() {
            Ok(address) => {
                address == local.ip().to_canonical() || address.is_loopback() && local.ip().to_canonical().is_loopback()
            }
            Err(_) => is_name("localhost") && local.ip().to_canonical().is_loopback(),
        }
    }
}

/// Splits a `Host` into name and port. An IPv6 address contains colons, and is in brackets.
fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    }
}

/// Compares in a time that depends on the lengths only.
fn is_equal(left: &[u8], right: &[u8]) -> bool {
    let different = left
        .iter()
        .zip(right)
        .fold(0, |different, (left, right)| different | (left ^ right));
    left.len() == right.len() && std::hint::black_box(different) == 0
}

/// Whether a byte may be part of a header's name.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn parse_query(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}

/// Replaces `%XX` and `+`.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digit = |at: usize| tail.get(at).and_then(|&byte| (byte as char).to_digit(16));
        rest = match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                &tail[2..]
            }
            (b'+', ..) => {
                bytes.push(b' ');
                tail
            }
            _ => {
                bytes.push(*first);
                tail
            }
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Request, Refusal> {
        Request::parse(text.as_bytes())
    }

    #[test]
    fn a_request_is_parsed() {
        let request =
            parse("GET /events?filter=a%20b+c&limit=5 HTTP/1.1\r\nHost: localhost:1\r\nX: y\r\n\r\n").unwrap();
        assert_eq!((request.path.as_str(), request.is_head), ("/events", false));
        assert_eq!(request.parameter("filter"), Some("a b c"));
        assert_eq!(request.parameter("limit"), Some("5"));
        assert_eq!(request.parameter("sort"), None);
    }

    #[test]
    fn malformed_requests_are_refused() {
        for (text, refusal) in [
            ("", BAD_REQUEST),
            ("GET / HTTP/1.1\r\n\r\n", BAD_REQUEST),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", BAD_REQUEST),
            ("GET / HTTP/1.1\r\nHost: a\r\nbroken\r\n\r\n", BAD_REQUEST),
            ("GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", BAD_REQUEST),
            ("GET /  HTTP/1.1\r\nHost: a\r\n\r\n", BAD_REQUEST),
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", VERSION),
            ("POST / HTTP/1.1\r\nHost: a\r\n\r\n", NOT_ALLOWED),
            ("OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n", NOT_ALLOWED),
        ] {
            assert_eq!(parse(text).unwrap_err(), refusal, "{text:?}");
        }
    }

    #[test]
    fn only_hosts_of_this_server_are_allowed() {
        let check = |host: &str, local: &str| {
            let access = Access {
                hosts: vec!["console.example".into()],
                ..Access::default()
            };
            let request = parse(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
            request.check(&access, local.parse().unwrap()).is_ok()
        };
        for host in [
            "localhost:6669",
            "LOCALHOST:6669",
            "127.0.0.1:6669",
            "[::1]:6669",
            "console.example",
            "console.example:1",
        ] {
            assert!(check(host, "127.0.0.1:6669"), "{host}");
        }
        for host in [
            "evil.example:6669",
            "127.0.0.1",
            "localhost:80",
            "localhost.evil.example:6669",
            "10.0.0.1:6669",
            "",
        ] {
            assert!(!check(host, "127.0.0.1:6669"), "{host}");
        }
        assert!(check("10.0.0.1:6669", "10.0.0.1:6669"));
        assert!(check("10.0.0.1:6669", "[::ffff:10.0.0.1]:6669"));
        assert!(!check("localhost:6669", "10.0.0.1:6669"));
    }

    #[test]
    fn other_origins_and_wrong_tokens_are_refused() {
        let check = |target: &str, header: &str| {
            let access = Access {
                token: Some("secret".into()),
                ..Access::default()
            };
            let text = format!("GET {target} HTTP/1.1\r\nHost: localhost:1\r\n{header}\r\n\r\n");
            parse(&text).unwrap().check(&access, "127.0.0.1:1".parse().unwrap())
        };
        assert_eq!(check("/?token=secret", "Origin: http://localhost:1"), Ok(()));
        assert_eq!(check("/events?token=secret", "Sec-Fetch-Site: same-origin"), Ok(()));
        assert_eq!(check("/metrics", "Authorization: Bearer secret"), Ok(()));
        assert_eq!(
            check("/?token=secret", "Origin: http://evil.example"),
            Err(FOREIGN_ORIGIN)
        );
        assert_eq!(check("/?token=secret", "Origin: null"), Err(FOREIGN_ORIGIN));
        assert_eq!(
            check("/?token=secret", "Sec-Fetch-Site: cross-site"),
            Err(FOREIGN_ORIGIN)
        );
        assert_eq!(
            check("/?token=secret", "Sec-Fetch-Site: same-site"),
            Err(FOREIGN_ORIGIN)
        );
        for (target, header) in [
            ("/", "X: y"),
            ("/?token=", "X: y"),
            ("/?token=secre", "X: y"),
            ("/?token=secret2", "X: y"),
            ("/metrics?token=secret", "X: y"),
            ("/metrics", "Authorization: Bearer other"),
            ("/metrics", "Authorization: Basic secret"),
        ] {
            assert_eq!(check(target, header), Err(UNAUTHORIZED), "{target} {header}");
        }
    }
}
