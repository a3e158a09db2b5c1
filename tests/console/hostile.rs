//! Requests that must get nothing, and clients that must not keep others out.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use windlass::console::{self, Console};
use windlass::task::Builder;

use crate::client::{Response, connect, get, loop_when, read, request, send};
use crate::support::on_every_kernel_driver;
use crate::{Program, serve};

const PATHS: [&str; 6] = ["/", "/events", "/tasks.json", "/metrics", "/dump.txt", "/health"];

/// A response that tells nothing about the program.
fn assert_refused(response: Option<Response>, status: u16, what: &str) {
    let response = response.unwrap_or_else(|| panic!("no response: {what}"));
    assert_eq!(response.status, status, "{what}: {response:?}");
    assert!(response.body.len() < 100, "{what}: {response:?}");
    assert!(!response.body.contains("loop"), "{what}: {response:?}");
}

fn ask(console: &Console, method: &str, target: &str, headers: &str) -> Option<Response> {
    let addr = console.local_addr();
    send(addr, request(method, addr, target, headers).as_bytes())
}

#[test]
fn other_hosts_and_origins_get_nothing() {
    let console = serve();
    let (addr, port) = (console.local_addr(), console.local_addr().port());
    for path in PATHS {
        for host in [
            "evil.example".to_owned(),
            format!("evil.example:{port}"),
            format!("10.0.0.1:{port}"),
            String::new(),
        ] {
            let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_refused(send(addr, text.as_bytes()), 403, &format!("{path} of {host}"));
        }
        let without = format!("GET {path} HTTP/1.1\r\n\r\n");
        assert_refused(send(addr, without.as_bytes()), 400, "no Host");
        for header in [
            "Origin: http://evil.example\r\n".to_owned(),
            "Origin: null\r\n".to_owned(),
            format!("Origin: http://localhost:{}\r\n", port.wrapping_add(1)),
            "Sec-Fetch-Site: cross-site\r\n".to_owned(),
            "Sec-Fetch-Site: same-site\r\n".to_owned(),
        ] {
            assert_refused(
                ask(&console, "GET", path, &header),
                403,
                &format!("{path} with {header}"),
            );
        }
    }
    for host in [
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        format!("[::1]:{port}"),
    ] {
        let text = format!(
            "GET /health HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n\r\n"
        );
        let response = send(addr, text.as_bytes()).expect("a response");
        assert_eq!((response.status, response.body.as_str()), (200, "ok\n"), "{host}");
        assert_eq!(response.header("access-control-allow-origin"), None);
    }
    console.stop();
}

#[test]
fn without_the_token_there_is_nothing() {
    let console = console::Builder::new()
        .token("correct-horse")
        .serve("127.0.0.1:0")
        .expect("a console");
    for path in PATHS {
        for (query, header) in [
            ("", ""),
            ("?token=", ""),
            ("?token=correct-hors", ""),
            ("?token=correct-horsecorrect-horse", ""),
            ("", "Authorization: Bearer wrong\r\n"),
            ("", "Authorization: Basic correct-horse\r\n"),
            ("", "Authorization: Bearer\r\n"),
        ] {
            let target = format!("{path}{query}");
            let response = ask(&console, "GET", &target, header);
            assert_eq!(
                response
                    .as_ref()
                    .and_then(|response| response.header("www-authenticate")),
                Some("Bearer")
            );
            assert_refused(response, 401, &format!("{target} with {header}"));
        }
        let header = "Authorization: Bearer correct-horse\r\n";
        assert_eq!(
            ask(&console, "HEAD", path, header).expect("a response").status,
            200,
            "{path}"
        );
    }
    assert_eq!(
        ask(&console, "HEAD", "/?token=correct-horse", "")
            .expect("a response")
            .status,
        200
    );
    assert_eq!(
        ask(&console, "HEAD", "/events?token=correct-horse", "")
            .expect("a response")
            .status,
        200
    );
    assert_refused(
        ask(&console, "GET", "/metrics?token=correct-horse", ""),
        401,
        "only where a header cannot be set",
    );
    console.stop();
    for token in ["", "two words", "line\r\nbreak", "ümlaut"] {
        assert!(
            console::Builder::new().token(token).serve("127.0.0.1:0").is_err(),
            "{token:?}"
        );
    }
}

#[test]
fn only_get_and_head_of_known_paths_are_answered() {
    let console = serve();
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get"] {
        for path in PATHS {
            let response = ask(&console, method, path, "Content-Length: 3\r\n");
            assert_eq!(
                response.as_ref().and_then(|response| response.header("allow")),
                Some("GET, HEAD"),
                "{method}"
            );
            assert_refused(response, 405, method);
        }
    }
    for path in [
        "/favicon.ico",
        "/../etc/passwd",
        "//",
        "/tasks.json/",
        "/%2e%2e/",
        "*",
        "http://127.0.0.1/",
        "/TASKS.JSON",
    ] {
        assert_refused(ask(&console, "GET", path, ""), 404, path);
    }
    for text in [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9\r\nHost: a\r\n\r\n",
        "\0\x01\x02\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    ] {
        let response = send(console.local_addr(), text.as_bytes()).expect("a response");
        assert!(matches!(response.status, 400 | 505), "{text:?}: {response:?}");
    }
    let head = ask(&console, "HEAD", "/tasks.json", "").expect("a response");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert!(
        head.header("content-length")
            .expect("a length")
            .parse::<usize>()
            .expect("a number")
            > 100
    );
    console.stop();
}

#[test]
fn responses_forbid_what_a_page_could_do_with_them() {
    let console = serve();
    for path in ["/", "/tasks.json", "/metrics", "/dump.txt", "/health", "/missing"] {
        let response = get(&console, path);
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(
            response.header("cross-origin-resource-policy"),
            Some("same-origin"),
            "{path}"
        );
        assert_eq!(response.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(response.header("referrer-policy"), Some("no-referrer"), "{path}");
    }
    let nonce_of = |response: &Response| {
        let policy = response.header("content-security-policy").expect("a policy").to_owned();
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        let (_, rest) = policy.split_once("script-src 'nonce-").expect("a nonce");
        let nonce = rest.split_once('\'').expect("its end").0.to_owned();
        assert!(response.body.contains(&format!("nonce=\"{nonce}\"")), "{nonce}");
        nonce
    };
    let (first, second) = (get(&console, "/"), get(&console, "/"));
    assert_ne!(nonce_of(&first), nonce_of(&second));
    assert_eq!(first.header("content-type"), Some("text/html; charset=utf-8"));
    for placeholder in ["/*STYLE*/", "/*SCRIPT*/", "\"NONCE\""] {
        assert!(!first.body.contains(placeholder), "{placeholder}");
    }
    assert!(
        !first.body.contains("src=\"http") && !first.body.contains("@import"),
        "the page loads nothing"
    );
    console.stop();
}

#[test]
fn a_head_that_is_too_large_or_too_slow_is_refused() {
    let console = serve();
    let addr = console.local_addr();
    for filler in ["X: y\r\n".repeat(10_000), format!("X: {}\r\n", "y".repeat(100_000))] {
        // The connection may be reset while the client still sends.
        if let Some(response) = send(addr, request("GET", addr, "/tasks.json", &filler).as_bytes()) {
            assert_refused(Some(response), 431, "a large head");
        }
    }
    // An endless head is cut off at the limit.
    let mut endless = connect(addr);
    while endless.write_all(&[b'a'; 4096]).is_ok() {}
    // A byte at a time keeps no connection open.
    let mut slow = connect(addr);
    let began = Instant::now();
    slow.set_nodelay(true).expect("an option");
    for byte in request("GET", addr, "/tasks.json", "").bytes().cycle() {
        let is_open = byte != b'\r' && slow.write_all(&[byte.max(b' ')]).is_ok();
        if byte != b'\r' && !is_open {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(
            began.elapsed() < Duration::from_secs(100),
            "a slow head is never refused"
        );
    }
    assert_eq!(get(&console, "/health").status, 200);
    console.stop();
}

#[test]
fn a_thousand_connections_get_nothing_and_leave_the_program_alone() {
    on_every_kernel_driver(|case| {
        let console = console::Builder::new()
            .max_clients(8)
            .serve("127.0.0.1:0")
            .expect("a console");
        let program = Program::start(case);
        program.call(|| drop(Builder::new().name("undisturbed").spawn(std::future::pending::<()>())));
        let addr = console.local_addr();
        let mut streams: Vec<TcpStream> = (0..1_000)
            .map(|_| {
                let mut stream = connect(addr);
                // The console may have closed it.
                let _ = stream.write_all(request("GET", addr, "/events", "").as_bytes());
                stream
            })
            .collect();
        // Up to the limit they get a stream of events; a few get an error, the others nothing.
        let mut viewers = 0;
        for stream in &mut streams {
            let mut head = [0; 12];
            let is_answered = stream.read_exact(&mut head).is_ok();
            viewers += usize::from(is_answered && head == *b"HTTP/1.1 200");
        }
        assert!((1..=8).contains(&viewers), "{viewers} viewers");
        assert_eq!(program.call(|| 6 * 7), 42);
        drop(streams);
        // Room for others again.
        loop_when_answered(&console);
        loop_when(&console, "/tasks.json", &program.name, |found| {
            found.find_task("undisturbed").is_some()
        });
        console.stop();
    });
}

/// Waits until the console has noticed that its clients are gone.
fn loop_when_answered(console: &Console) {
    for _ in 0..2_000 {
        if ask(console, "GET", "/health", "").is_some_and(|response| response.status == 200) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the console does not answer");
}

#[test]
fn viewers_beyond_the_limit_are_refused_until_one_leaves() {
    let console = console::Builder::new()
        .max_clients(2)
        .serve("127.0.0.1:0")
        .expect("a console");
    let open = || crate::client::Events::open(&console, "/events?limit=0");
    let (mut first, mut second) = (open(), open());
    first.next_snapshot();
    second.next_snapshot();
    assert_refused(ask(&console, "GET", "/tasks.json", ""), 503, "a third client");
    drop(first);
    loop_when_answered(&console);
    drop(second);
    console.stop();
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    on_every_kernel_driver(|case| {
        let console = console::Builder::new()
            .max_clients(1)
            .serve("127.0.0.1:0")
            .expect("a console");
        let program = Program::start(case);
        program.call(|| {
            for number in 0..3_000 {
                Builder::new()
                    .name(format!("task {number} {}", "x".repeat(2_000)))
                    .spawn(std::future::pending::<()>());
            }
        });
        let addr = console.local_addr();
        let mut stream = connect(addr);
        stream
            .write_all(request("GET", addr, "/tasks.json", "").as_bytes())
            .expect("sent");
        // Nothing is read. The kernel's buffers are smaller than the document.
        loop_when_answered(&console);
        let response = read(stream);
        assert!(
            response.is_none_or(|response| response.body.len() < 6_000_000),
            "the whole document was sent"
        );
        console.stop();
    });
}

#[test]
fn other_machines_are_refused_unless_allowed() {
    let error = console::serve("0.0.0.0:0").expect_err("not a loopback address");
    assert!(error.to_string().contains("allow_remote"), "{error}");
    assert!(console::serve("[::]:0").is_err());
    let console = console::Builder::new()
        .allow_remote(true)
        .allow_host("console.example")
        .serve("0.0.0.0:0")
        .expect("a console");
    let port = console.local_addr().port();
    let addr = format!("127.0.0.1:{port}").parse().expect("an address");
    let status = |host: &str| {
        send(addr, format!("GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
            .expect("a response")
            .status
    };
    assert_eq!(status(&format!("127.0.0.1:{port}")), 200);
    assert_eq!(status("console.example"), 200);
    assert_eq!(status(&format!("0.0.0.0:{port}")), 403);
    assert_eq!(status("other.example"), 403);
    console.stop();
    assert!(console::serve("127.0.0.1").is_err(), "no port");
}
