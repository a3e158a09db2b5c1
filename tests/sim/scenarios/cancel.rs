//! A transfer of numbered records whose reads, writes, accepts and connects are cancelled at random.
//!
//! The network loses nothing and resets nothing, and the drivers have quirks. So whatever is lost or comes twice was lost or
//! repeated by a cancellation.
//!
//! A cancelled read, accept or timeout is repeated: it must not have taken anything away. A cancelled write may have sent any
//! part of its record. So the client gives that connection up, and the server tells it on the next one which record comes next.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::rand::Rng;
use windlass::sim::{Dist, Link, Quirks, Sim};
use windlass::time::{sleep, timeout};

use super::{finds, passes};
use crate::TestResult;

#[derive(Clone, Copy, Default)]
struct Bugs {
    /// The client repeats a record on the connection on which its write was cancelled.
    keeps_connection: bool,
    /// The server collects the bytes of a record in the future that is cancelled.
    collects_in_read: bool,
    /// The server accepts a connection and learns whose it is in one future that is cancelled.
    greets_in_accept: bool,
}

/// Client, number and length of a record, before its payload.
const HEADER: usize = 24;

/// The longest payload, and one byte.
const MOST_LEN: u64 = 3_000;

/// Much longer than an answer takes.
const LONG: Duration = Duration::from_millis(300);

fn record(client: u64, number: u64, len: u64) -> Vec<u8> {
    let mut record: Vec<u8> = [client, number, len]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    record.extend((0..len).map(|at| payload_byte(client, number, at)));
    record
}

fn payload_byte(client: u64, number: u64, at: u64) -> u8 {
    (client * 89 + number * 31 + at * 7) as u8
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|at| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("8 bytes")))
}

/// Cancels at random.
struct Canceller {
    rng: Rng,
    /// How long a future may take at most, in microseconds.
    most: u64,
}

impl Canceller {
    /// `None` if the future was cancelled: by one timeout, or by one of two.
    async fn run<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let micros = |rng: &mut Rng, most: u64| Duration::from_micros(rng.below(most));
        let most = match self.rng.below(4) {
            0 => 50,
            1 => self.most,
            _ => self.most * 20,
        };
        let first = micros(&mut self.rng, most);
        match self.rng.chance(0.2) {
            true => {
                let second = micros(&mut self.rng, most);
                timeout(second, timeout(first, future)).await.ok()?.ok()
            }
            false => timeout(first, future).await.ok(),
        }
    }

    /// Exactly `len` bytes, by as many reads as it takes. `None` at the end of the stream.
    async fn read_exact(&mut self, stream: &TcpStream, len: usize, bugs: Bugs) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let missing = len - bytes.len();
            match self.rng.below(3) {
                _ if bugs.collects_in_read => {
                    let collecting = async {
                        let mut collected = Vec::new();
                        while collected.len() < missing {
                            let (result, part) = stream.read(vec![0; missing - collected.len()]).await;
                            match result? {
                                0 => break,
                                count => collected.extend_from_slice(&part[..count]),
                            }
                        }
                        io::Result::Ok(collected)
                    };
                    match self.run(collecting).await {
                        Some(collected) => bytes.extend(collected?),
                        None => continue,
                    }
                }
                0 => {
                    // Keeps a part for the next read.
                    let Some((result, part)) = self.run(stream.read_exact(vec![0; missing])).await else {
                        continue;
                    };
                    match result {
                        Ok(()) => bytes.extend(part),
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                        Err(error) => return Err(error),
                    }
                }
                1 => {
                    let most = 1 + self.rng.below(missing as u64) as usize;
                    let Some((result, part)) = self.run(stream.read(vec![0; most])).await else {
                        continue;
                    };
                    match result? {
                        0 => return Ok(None),
                        count => bytes.extend_from_slice(&part[..count]),
                    }
                }
                _ => {
                    let halves = vec![vec![0; missing / 2], vec![0; missing - missing / 2]];
                    let Some((result, parts)) = self.run(stream.read_vectored(halves)).await else {
                        continue;
                    };
                    match result? {
                        0 => return Ok(None),
                        count => bytes.extend(parts.concat().into_iter().take(count)),
                    }
                }
            }
        }
        Ok(Some(bytes))
    }
}

/// The next record of each client, and how many clients are done.
#[derive(Default)]
struct Ledger {
    next: Vec<u64>,
    done: usize,
}

async fn serve(ledger: Rc<RefCell<Ledger>>, most: u64, bugs: Bugs) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7000").await?;
    let mut canceller = Canceller { rng: Rng::new(), most };
    loop {
        let accepting = async {
            let (stream, _) = listener.accept().await?;
            let mut client = None;
            if bugs.greets_in_accept {
                client = Some(stream.read_exact([0; 8]).await.1);
            }
            io::Result::Ok((stream, client))
        };
        let Some(accepted) = canceller.run(accepting).await else {
            continue;
        };
        let (stream, client) = accepted?;
        let mut canceller = Canceller { rng: Rng::new(), most };
        let ledger = ledger.clone();
        windlass::spawn(async move {
            let client = match client {
                Some(client) => Some(client.to_vec()),
                None => canceller.read_exact(&stream, 8, bugs).await.unwrap_or_default(),
            };
            if let Some(client) = client {
                let [client] = words(&client);
                // A client whose write was cancelled has closed the connection.
                let _ = session(client, stream, canceller, ledger, bugs).await;
            }
        })
        .detach();
    }
}

/// Tells the client which record comes next, and takes its records.
async fn session(
    client: u64,
    stream: TcpStream,
    mut canceller: Canceller,
    ledger: Rc<RefCell<Ledger>>,
    bugs: Bugs,
) -> io::Result<()> {
    let mut next = ledger.borrow().next[client as usize];
    stream.write_all(next.to_le_bytes().to_vec()).await.0?;
    loop {
        let Some(header) = canceller.read_exact(&stream, HEADER, bugs).await? else {
            return Ok(());
        };
        let [owner, number, len] = words(&header);
        let is_plausible = owner == client && len < MOST_LEN;
        assert!(is_plausible, "wrong record: its header is damaged");
        let payload = timeout(LONG, canceller.read_exact(&stream, len as usize, bugs)).await;
        let Some(payload) = payload.expect("wrong record: a part of it is missing")? else {
            return Ok(());
        };
        let is_whole = (0..)
            .zip(&payload)
            .all(|(at, byte)| *byte == payload_byte(client, number, at));
        assert!(is_whole, "wrong record: its payload is damaged");
        assert_eq!(number, next, "wrong record: lost or repeated");
        next += 1;
        // An earlier connection may have delivered it since this one began.
        let delivered = ledger.borrow().next[client as usize];
        ledger.borrow_mut().next[client as usize] = next.max(delivered);
        stream.write_all(next.to_le_bytes().to_vec()).await.0?;
    }
}

async fn send_all(client: u64, records: u64, ledger: Rc<RefCell<Ledger>>, most: u64, bugs: Bugs) -> io::Result<()> {
    let mut rng = Rng::new();
    let mut canceller = Canceller { rng: Rng::new(), most };
    'connections: loop {
        let Some(stream) = canceller.run(TcpStream::connect("server:7000")).await else {
            continue;
        };
        let Ok(stream) = stream else {
            // The server does not listen yet.
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        stream.write_all(client.to_le_bytes().to_vec()).await.0?;
        let greeting = canceller.read_exact(&stream, 8, Bugs::default()).await;
        let greeting = greeting.unwrap_or_default();
        let [mut next] = words(&greeting.expect("an accepted connection was dropped"));
        while next < records {
            // Several at a time: a record that is damaged is followed by others.
            let last = records.min(next + 1 + rng.below(3));
            for number in next..last {
                let record = record(client, number, rng.below(MOST_LEN));
                loop {
                    match canceller.run(stream.write_all(record.clone())).await {
                        Some((result, _)) => break result?,
                        None if bugs.keeps_connection => {}
                        None => continue 'connections,
                    }
                }
            }
            for number in next..last {
                let answer = timeout(LONG, canceller.read_exact(&stream, 8, Bugs::default())).await;
                let answer = answer.expect("wrong record: the server does not answer")?;
                let [answered] = words(&answer.expect("the server keeps the session"));
                assert_eq!(answered, number + 1, "wrong record: the answer to another one");
            }
            next = last;
        }
        assert_eq!(
            ledger.borrow().next[client as usize],
            records,
            "wrong number of records"
        );
        ledger.borrow_mut().done += 1;
        return Ok(());
    }
}

async fn scenario(sim: Sim, bugs: Bugs) -> TestResult {
    let clients = sim.size("clients", 1..=3);
    let records = sim.size("records", 1..=20);
    let mut rng = sim.rng();
    let latency = Dist::uniform(Duration::from_micros(50), Duration::from_micros(rng.range(60..2_000)));
    sim.links(Link::new().latency(latency).short_counts(0.3 * rng.unit()));
    let most = sim.size("patience", 300..=5_000);
    let ledger = Rc::new(RefCell::new(Ledger {
        next: vec![0; clients as usize],
        done: 0,
    }));
    let mut host = |name: &str| {
        let quirks = Quirks::swarm(rng.next_u64());
        sim.host(name).builder(move |builder| {
            let quirks = quirks.clone();
            builder.wrap_driver(move |inner| quirks.wrap(inner))
        })
    };
    host("server").start({
        let ledger = ledger.clone();
        move || serve(ledger.clone(), most, bugs)
    });
    for client in 0..clients {
        let ledger = ledger.clone();
        host(&format!("c{client}")).start(move || send_all(client, records, ledger.clone(), most, bugs));
    }
    sim.within(Duration::from_secs(3), async {
        while ledger.borrow().done < clients as usize {
            sleep(Duration::from_millis(5)).await;
        }
        TestResult::Ok(())
    })
    .await
}

#[test]
fn cancelling_loses_and_repeats_nothing() {
    passes(|sim| scenario(sim, Bugs::default()));
}

#[test]
fn a_write_after_a_cancelled_one_is_found() {
    finds("wrong record", |sim| {
        let bugs = Bugs {
            keeps_connection: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn bytes_collected_in_a_cancelled_future_are_found() {
    finds("wrong record", |sim| {
        let bugs = Bugs {
            collects_in_read: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn a_connection_lost_with_a_cancelled_greeting_is_found() {
    finds("an accepted connection was dropped", |sim| {
        let bugs = Bugs {
            greets_in_accept: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}
