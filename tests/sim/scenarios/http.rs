//! hyper behind clogged links: pipelined requests, and connections that the server closes when they are idle.
//!
//! A client sends several requests at a time, and reads the responses in order. On an error or after a timeout it connects
//! again and repeats what was not answered. It pauses now and then for about as long as the server keeps an idle connection,
//! so that requests meet the close. The server numbers what it has done for each client, and answers a repetition from there.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use windlass::compat::Bridge;
use windlass::hyper::Timer;
use windlass::net::{TcpListener, TcpStream};
use windlass::rand::Rng;
use windlass::sim::{Chaos, Dist, FaultKind, Link, Sim};
use windlass::time::{sleep, timeout};

use super::{finds, passes};
use crate::TestResult;

#[derive(Clone, Copy, Default)]
struct Bugs {
    /// The server carries a repeated request out again.
    no_memory: bool,
    /// The server keeps idle connections for ever.
    no_idle_timeout: bool,
    /// The client keeps the part of a response that it received before its connection broke.
    keeps_partial_response: bool,
}

/// For how long the server keeps a connection without a request.
const IDLE: Duration = Duration::from_secs(3);

/// What survives crashes of the hosts: the totals of each client after each of its requests, and what it knows of them.
struct State {
    totals: RefCell<Vec<Vec<u64>>>,
    answered: RefCell<Vec<u64>>,
    /// Connections of the server.
    open: Cell<usize>,
    idle_closes: Cell<u64>,
}

/// Counts a connection while it lives.
struct Open(Rc<State>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
    }
}

/// What request `number` of a client adds to its total.
fn amount(client: u64, number: u64) -> u64 {
    1 + (client * 13 + number * 7) % 100
}

async fn serve(state: Rc<State>, bugs: Bugs) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        state.open.set(state.open.get() + 1);
        let guard = Open(state.clone());
        windlass::spawn(async move {
            let state = guard.0.clone();
            let service = service_fn(|request| answer(request, &state, bugs));
            let mut http = http1::Builder::new();
            http.timer(Timer).pipeline_flush(true);
            match bugs.no_idle_timeout {
                true => http.header_read_timeout(None),
                false => http.header_read_timeout(IDLE),
            };
            let served = http.serve_connection(Bridge::new(stream), service).await;
            if served.is_err_and(|error| error.is_timeout()) {
                state.idle_closes.set(state.idle_closes.get() + 1);
            }
            drop(guard);
        })
        .detach();
    }
}

/// `POST /client/number` with an amount as body: adds it to the client's total.
async fn answer(request: Request<Incoming>, state: &State, bugs: Bugs) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let mut numbers = path[1..].split('/').map(|part| part.parse::<u64>().unwrap_or(u64::MAX));
    let (client, number) = (numbers.next().unwrap_or(u64::MAX), numbers.next().unwrap_or(u64::MAX));
    let Ok(body) = request.into_body().collect().await else {
        // The connection has ended in the middle of the request.
        let mut refused = Response::new(Full::default());
        *refused.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(refused);
    };
    let mut rng = Rng::new();
    if rng.chance(0.3) {
        sleep(Duration::from_millis(rng.below(50))).await;
    }
    let body = body.to_bytes();
    let amount: u64 = std::str::from_utf8(&body)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let total = {
        let totals = &mut state.totals.borrow_mut()[client as usize];
        if number >= totals.len() as u64 || bugs.no_memory {
            let last = totals.last().copied().unwrap_or(0);
            totals.push(last + amount);
        }
        match bugs.no_memory {
            true => totals[totals.len() - 1],
            false => totals[number as usize],
        }
    };
    let padding = ".".repeat(rng.below(3_000) as usize);
    Ok(Response::new(Full::from(format!("{number} {total} {padding}"))))
}

/// Takes one response from the beginning of the bytes, if it is complete: its number and total.
fn take_response(bytes: &mut Vec<u8>) -> Option<(u64, u64)> {
    let head_len = 4 + bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..head_len]).to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "not a good response: {head}");
    let len = head.split("content-length: ").nth(1).expect("a length");
    let len: usize = len
        .split("\r\n")
        .next()
        .and_then(|len| len.parse().ok())
        .expect("a length");
    let body = bytes.get(head_len..head_len + len)?;
    let body = std::str::from_utf8(body).expect("text").to_owned();
    bytes.drain(..head_len + len);
    let mut words = body.split(' ').map(|word| word.parse().ok());
    Some((words.next()??, words.next()??))
}

/// Sends the requests that were not answered, up to `last`, and reads their responses.
async fn exchange(stream: &TcpStream, received: &mut Vec<u8>, client: u64, last: u64, state: &State) -> io::Result<()> {
    let next = || state.answered.borrow()[client as usize];
    let mut requests = String::new();
    for number in next()..last {
        let body = amount(client, number).to_string();
        let len = body.len();
        requests += &format!("POST /{client}/{number} HTTP/1.1\r\nhost: server\r\ncontent-length: {len}\r\n\r\n{body}");
    }
    stream.write_all(requests).await.0?;
    while next() < last {
        let Some((number, total)) = take_response(received) else {
            let bytes = stream.read_managed().await?;
            if bytes.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            received.extend_from_slice(&bytes);
            continue;
        };
        assert_eq!(number, next(), "the response to another request");
        let expected: u64 = (0..=number).map(|number| amount(client, number)).sum();
        assert_eq!(total, expected, "the wrong total after request {number}");
        state.answered.borrow_mut()[client as usize] += 1;
    }
    Ok(())
}

async fn request_all(client: u64, requests: u64, state: Rc<State>, bugs: Bugs) {
    let mut rng = Rng::new();
    let mut connection = None;
    let mut received = Vec::new();
    while state.answered.borrow()[client as usize] < requests {
        let attempt = async {
            if connection.is_none() {
                connection = Some(TcpStream::connect("server:80").await?);
            }
            let stream = connection.as_ref().expect("it is connected");
            let answered = state.answered.borrow()[client as usize];
            let last = requests.min(answered + rng.range(1..=6));
            exchange(stream, &mut received, client, last, &state).await
        };
        if !matches!(timeout(Duration::from_secs(5), attempt).await, Ok(Ok(()))) {
            connection = None;
            if !bugs.keeps_partial_response {
                received.clear();
            }
            sleep(Duration::from_millis(rng.range(10..500))).await;
        }
        if rng.chance(0.2) {
            sleep(IDLE - Duration::from_millis(2) + Duration::from_micros(rng.below(4_000))).await;
        }
    }
    std::future::pending().await
}

async fn scenario(sim: Sim, bugs: Bugs) -> TestResult {
    let mut rng = sim.rng();
    let clients = sim.size("clients", 1..=2);
    let requests = sim.size("requests", 1..=30);
    let state = Rc::new(State {
        totals: RefCell::new(vec![Vec::new(); clients as usize]),
        answered: RefCell::new(vec![0; clients as usize]),
        open: Cell::new(0),
        idle_closes: Cell::new(0),
    });
    let latency = Dist::uniform(Duration::from_micros(100), Duration::from_millis(rng.range(1..5)));
    let mut link = Link::new().latency(latency).short_counts(0.3 * rng.unit());
    if rng.chance(0.5) {
        link = link.bandwidth(rng.range(2_000..200_000));
    }
    sim.links(link);
    sim.host("server").start({
        let state = state.clone();
        move || serve(state.clone(), bugs)
    });
    for client in 0..clients {
        let state = state.clone();
        sim.host(&format!("c{client}"))
            .start(move || request_all(client, requests, state.clone(), bugs));
    }
    let kinds = [
        FaultKind::Slow,
        FaultKind::Cut,
        FaultKind::CutOneWay,
        FaultKind::Lossy,
        FaultKind::Pause,
        FaultKind::Kill,
        FaultKind::PowerLoss,
    ];
    sim.chaos(
        Chaos::only(kinds)
            .every(Duration::from_secs(4))
            .during(Duration::from_secs(20)),
    );
    sleep(Duration::from_secs(sim.size("seconds", 1..=20))).await;
    sim.calm();
    let is_done = || state.answered.borrow().iter().all(|answered| *answered == requests);
    let answered = sim.within(Duration::from_secs(300), async {
        while !is_done() {
            sleep(Duration::from_millis(200)).await;
        }
        TestResult::Ok(())
    });
    assert!(answered.await.is_ok(), "a request is not answered");
    let closed = sim.within(Duration::from_secs(300), async {
        while state.open.get() > 0 {
            sleep(Duration::from_secs(1)).await;
        }
        TestResult::Ok(())
    });
    assert!(closed.await.is_ok(), "connections are left open");
    sim.sometimes("the server has closed an idle connection", state.idle_closes.get() > 0);
    Ok(())
}

#[test]
fn each_request_takes_effect_once_and_idle_connections_end() {
    passes(|sim| scenario(sim, Bugs::default()));
}

#[test]
fn a_request_that_takes_effect_twice_is_found() {
    finds("the wrong total", |sim| {
        let bugs = Bugs {
            no_memory: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn idle_connections_that_stay_are_found() {
    finds("connections are left open", |sim| {
        let bugs = Bugs {
            no_idle_timeout: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn a_partial_response_that_is_kept_is_found() {
    finds("response", |sim| {
        let bugs = Bugs {
            keeps_partial_response: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}
