//! The crawler, on a site that this test serves.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::{Running, drivers, example};

/// A time limit in seconds that no page exceeds, however busy the machine is.
const HOUR: &str = "3600";

/// Serves pages by their path, and ends with the test.
fn serve(page: impl Fn(&str, TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let host = listener.local_addr().expect("an address").to_string();
    let page = Arc::new(page);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, page) = (stream.expect("accept"), page.clone());
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
                let Some(Ok(first)) = lines.next() else { return };
                while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                page(first.split(' ').nth(1).expect("a path"), stream);
            });
        }
    });
    host
}

fn answer(mut stream: TcpStream, status: &str, body: &str) {
    // A client that has stopped may be gone.
    let _ = write!(
        stream,
        "HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
}

/// The lines that the crawler prints, sorted, and its exit code.
fn crawl(driver: &str, args: &[&str]) -> (Vec<String>, i32) {
    let output = example("crawler", driver).args(args).output().expect("it is built");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    (lines, output.status.code().expect("it exits"))
}

#[test]
fn pages_of_one_host() {
    // A link to another host would be counted here.
    let foreign = Arc::new(AtomicUsize::new(0));
    let other = serve({
        let foreign = foreign.clone();
        move |_, stream| {
            foreign.fetch_add(1, Ordering::Relaxed);
            answer(stream, "200 OK", "");
        }
    });
    let host = serve(move |path, stream| match path {
        "/" => {
            let links = [
                "a.html".to_owned(),
                "/b/c.html".to_owned(),
                "missing".to_owned(),
                "#top".to_owned(),
                "mailto:me@example.org".to_owned(),
                "https://example.org/".to_owned(),
                "//example.org/".to_owned(),
                "two words".to_owned(),
                format!("http://{other}/"),
            ];
            let links = links.map(|link| format!("<a href=\"{link}\">x</a>"));
            answer(stream, "200 OK", &links.concat());
        }
        "/a.html" => answer(stream, "200 OK", "<a href=\"./\"></a><a href=\"b/c.html#part\"></a>"),
        "/b/c.html" => answer(stream, "200 OK", "<a href=\"../a.html\"></a><a href=\"d?x=/y\"></a>"),
        "/b/d?x=/y" => answer(stream, "200 OK", "<a href=\"e\">"),
        "/b/e" => answer(stream, "200 OK", "the end"),
        _ => answer(stream, "404 Not Found", "nothing"),
    });
    for driver in drivers() {
        let (lines, code) = crawl(driver, &[&format!("http://{host}"), "8", HOUR]);
        let paths: Vec<&str> = lines
            .iter()
            .map(|line| line.split(',').next().expect("a path"))
            .collect();
        assert_eq!(
            paths,
            [
                "200 /",
                "200 /a.html",
                "200 /b/c.html",
                "200 /b/d?x=/y",
                "200 /b/e",
                "404 /missing",
                "6 pages"
            ],
            "on {driver}"
        );
        assert_eq!(code, 0);
        assert_eq!(foreign.load(Ordering::Relaxed), 0, "on {driver}");
    }
}

/// Three requests at a time: the server answers when three have arrived, so fewer would hang, and it counts how many are
/// open, after giving a fourth some time to arrive.
#[test]
fn concurrency_limit() {
    const JOBS: usize = 3;
    #[derive(Default)]
    struct Requests {
        arrived: usize,
        open: usize,
        most: usize,
    }
    let shared = Arc::new((Mutex::new(Requests::default()), Condvar::new()));
    let host = serve({
        let shared = shared.clone();
        move |path, stream| {
            if path == "/" {
                let links: String = (0..JOBS * 4)
                    .map(|number| format!("<a href=\"{number}\"></a>"))
                    .collect();
                return answer(stream, "200 OK", &links);
            }
            let (requests, changed) = &*shared;
            let mut requests = requests.lock().expect("no panic");
            requests.arrived += 1;
            requests.open += 1;
            requests.most = requests.most.max(requests.open);
            changed.notify_all();
            // The number of pages is a multiple of the limit, so every round is complete.
            let round = requests.arrived.next_multiple_of(JOBS);
            drop(
                changed
                    .wait_while(requests, |requests| requests.arrived < round)
                    .expect("no panic"),
            );
            std::thread::sleep(Duration::from_millis(20));
            shared.0.lock().expect("no panic").open -= 1;
            answer(stream, "200 OK", "");
        }
    });
    for driver in drivers() {
        let (lines, code) = crawl(driver, &[&format!("http://{host}/"), &JOBS.to_string(), HOUR]);
        assert_eq!((lines.len(), code), (JOBS * 4 + 2, 0), "on {driver}: {lines:?}");
        assert_eq!(shared.0.lock().expect("no panic").most, JOBS, "on {driver}");
    }
}

/// A page that never comes is given up; the others are fetched.
#[test]
fn a_slow_page_times_out() {
    let kept = Mutex::new(Vec::new());
    let host = serve(move |path, stream| match path {
        "/" => answer(stream, "200 OK", "<a href=\"slow\"></a><a href=\"fast\"></a>"),
        "/fast" => answer(stream, "200 OK", "fast"),
        // Open, and silent.
        _ => kept.lock().expect("no panic").push(stream),
    });
    for driver in drivers() {
        // On a busy machine the other pages may be slow too: then it gets more time.
        let mut seen = Vec::new();
        let is_right = ["1", "4", "16", "64"].iter().any(|seconds| {
            seen = crawl(driver, &[&format!("http://{host}/"), "2", seconds]).0;
            seen == [
                "/slow: the timeout expired",
                "2 pages, 1 failed",
                "200 /, 38 bytes",
                "200 /fast, 4 bytes",
            ]
        });
        assert!(is_right, "on {driver}: {seen:?}");
    }
}

#[test]
fn wrong_answers_are_errors() {
    let host = serve(|path, mut stream| match path {
        "/" => answer(
            stream,
            "200 OK",
            "<a href=\"huge\"></a><a href=\"nonsense\"></a><a href=\"closed\"></a>",
        ),
        "/huge" => answer(stream, "200 OK", &"x".repeat(2 << 20)),
        "/nonsense" => drop(stream.write_all(b"hello")),
        _ => {}
    });
    for driver in drivers() {
        let (lines, code) = crawl(driver, &[&format!("http://{host}/"), "8", HOUR]);
        assert_eq!((lines.len(), code), (5, 1), "on {driver}: {lines:?}");
        assert!(
            lines.contains(&"1 pages, 3 failed".to_owned()),
            "on {driver}: {lines:?}"
        );
    }
    for wrong in [
        &[][..],
        &["https://example.org"],
        &["http://example.org", "0"],
        &["http://example.org", "1", "x"],
    ] {
        let (lines, code) = crawl("reactor", wrong);
        assert_eq!((lines.len(), code), (0, 2), "{wrong:?}");
    }
}

#[test]
fn an_interrupted_crawl_reports_what_it_has() {
    let kept = Mutex::new(Vec::new());
    let host = serve(move |path, stream| match path {
        "/" => answer(stream, "200 OK", "<a href=\"slow\"></a>"),
        _ => kept.lock().expect("no panic").push(stream),
    });
    for driver in drivers() {
        for signal in [libc::SIGTERM, libc::SIGINT] {
            let mut crawler = Running::start(example("crawler", driver).args([&format!("http://{host}/"), "1", HOUR]));
            crawler.until("200 /");
            crawler.send(signal);
            crawler.until("interrupted");
            crawler.until("1 pages, 0 failed");
            crawler.ends_well();
        }
    }
}
