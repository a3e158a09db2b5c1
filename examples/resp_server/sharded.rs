//! The server on several cores: each key belongs to one shard, and every shard serves connections.
//!
//! The pipelined requests of a connection are executed in batches, with one call to each shard that owns a key. A command
//! with several keys is split by key, so it is not atomic. The commands of a connection take effect in their order.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use windlass::io::BufReader;
use windlass::net::{TcpListener, TcpStream};
use windlass::shards::{self, Accept, Listener, Shard, Sharded};
use windlass::sync::Semaphore;
use windlass::task::{Either, JoinSet, join_all, select};
use windlass::time::timeout;

use super::store::{MAX_REPLY, Parsed, Store, parse};
use super::support::{GRACE, accept_failed, drain, outln, reap};
use super::{MAX_CONNECTIONS, MAX_OUTPUT, PATIENCE, send, sweep};

/// The maximum number of requests in a batch: with the longest values, their replies are not longer than [`MAX_REPLY`].
const MAX_BATCH: usize = 16;
/// How long a shard may take to cut its connections after the grace period.
const CUT_TIME: Duration = Duration::from_secs(5);

type Stores = Sharded<RefCell<Store>>;
type Request = Vec<Vec<u8>>;

/// The address and, after `--shards`, the number of shards: 0 for one per cpu.
pub(crate) fn arguments() -> io::Result<(String, Option<usize>)> {
    let (mut addr, mut shards) = ("127.0.0.1:6379".to_owned(), None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--shards" => {
                let value = args.next().unwrap_or_default();
                let count = if value == "all" { Some(0) } else { value.parse().ok() };
                shards = Some(count.ok_or_else(|| io::Error::other("--shards needs a number or 'all'"))?);
            }
            _ => addr = arg,
        }
    }
    Ok((addr, shards))
}

pub(crate) fn run(addr: &str, count: usize) -> io::Result<()> {
    let mut builder = shards::Builder::new().stop_on_signals().grace(GRACE + CUT_TIME);
    if count > 0 {
        builder = builder.count(count);
    }
    let pool = builder.build()?;
    let listener = pool.listen_with(TcpListener::builder().nodelay(true), addr, Accept::default())?;
    let stores: Stores = pool.service(|_shard| async { Ok::<_, io::Error>(RefCell::default()) });
    outln!(
        "{} shards\nlistening on {}",
        pool.shard(0).count(),
        listener.local_addr()
    );
    pool.run(move |shard| accept(shard, listener, stores))?;
    Ok(())
}

/// The connections of one shard.
async fn accept(shard: Shard, listener: Listener, stores: Stores) -> io::Result<()> {
    windlass::spawn(sweep(stores.local())).detach();
    let permits = Rc::new(Semaphore::new(MAX_CONNECTIONS.div_ceil(shard.count())));
    let mut connections = JoinSet::new();
    loop {
        let Either::Left(permit) = select(permits.clone().acquire_owned(), shard.stopping()).await else {
            break;
        };
        let (stream, peer) = match listener.accept().await {
            Ok(Some(accepted)) => accepted,
            Ok(None) => break,
            Err(error) => {
                accept_failed(error).await;
                continue;
            }
        };
        reap(&mut connections);
        let shard = shard.clone();
        connections.spawn(async move {
            let _permit = permit;
            if let Err(error) = serve(stream, &shard, stores).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
    drain(connections, GRACE).await;
    Ok(())
}

async fn serve(stream: TcpStream, shard: &Shard, stores: Stores) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut batch, mut output) = (Batch::new(shard), Vec::new());
    loop {
        match parse(reader.buffer()) {
            Ok(Parsed::Request(request, len)) => {
                let is_for_all = matches!(&request[..], [name] if is_command(name, &["dbsize", "flushall"]));
                if !is_for_all {
                    batch.add(shard, &request);
                }
                if is_for_all || batch.is_full() {
                    batch.execute(shard, stores, &mut output).await;
                }
                if is_for_all {
                    execute_on_all(request[0], stores, &mut output).await;
                }
                reader.consume(len);
                if output.len() > MAX_OUTPUT {
                    send(reader.get_ref(), &mut output).await?;
                }
            }
            Ok(Parsed::Needs(len)) => {
                batch.execute(shard, stores, &mut output).await;
                send(reader.get_ref(), &mut output).await?;
                // A client may be idle between requests, not within one.
                let patience = if reader.buffer().is_empty() {
                    Duration::MAX
                } else {
                    PATIENCE
                };
                if timeout(patience, reader.fill_at_least(len)).await??.is_empty() {
                    return Ok(());
                }
            }
            Err(error) => {
                batch.execute(shard, stores, &mut output).await;
                output.extend_from_slice(format!("-ERR {error}\r\n").as_bytes());
                return send(reader.get_ref(), &mut output).await;
            }
        }
    }
}

fn is_command(name: &[u8], names: &[&str]) -> bool {
    names.iter().any(|one| name.eq_ignore_ascii_case(one.as_bytes()))
}

async fn execute_on_all(name: &[u8], stores: Stores, output: &mut Vec<u8>) {
    let reply = if is_command(name, &["dbsize"]) {
        let size = stores.map_reduce(|store| store.borrow().len(), 0, |sum, len| sum + len);
        size.await.map(|size| format!(":{size}\r\n"))
    } else {
        let cleared = stores.on_all(|store| store.borrow_mut().clear()).await;
        let cleared: Result<Vec<()>, _> = cleared.into_iter().collect();
        cleared.map(|_| "+OK\r\n".to_owned())
    };
    let reply = reply.unwrap_or_else(|error| format!("-ERR {error}\r\n"));
    output.extend_from_slice(reply.as_bytes());
}

/// Requests that are executed together, and the parts of them for each shard.
struct Batch {
    requests: Vec<Pending>,
    parts: Vec<Vec<Request>>,
    has_array: bool,
}

/// A request whose reply is made of the replies to its parts.
struct Pending {
    combine: Combine,
    /// The shards of its parts.
    owners: Vec<usize>,
}

/// How the reply to a request is made.
enum Combine {
    /// It is the reply to its only part.
    One,
    Ok,
    Sum,
    Array,
}

impl Batch {
    fn new(shard: &Shard) -> Batch {
        Batch {
            requests: Vec::new(),
            parts: vec![Vec::new(); shard.count()],
            has_array: false,
        }
    }

    /// An array is the last request, since its reply can be as long as those of a full batch.
    fn is_full(&self) -> bool {
        self.requests.len() >= MAX_BATCH || self.has_array
    }

    fn add(&mut self, shard: &Shard, request: &[&[u8]]) {
        // An empty line is ignored, as by Redis.
        let [name, args @ ..] = request else { return };
        let (combine, command, step) = match args.len() {
            2.. if args.len().is_multiple_of(2) && is_command(name, &["mset"]) => (Combine::Ok, &b"set"[..], 2),
            1.. if is_command(name, &["mget"]) => (Combine::Array, &b"get"[..], 1),
            2.. if is_command(name, &["del"]) => (Combine::Sum, *name, 1),
            0 => (Combine::One, *name, 1),
            len => (Combine::One, *name, len),
        };
        self.has_array |= matches!(combine, Combine::Array);
        let mut owners = Vec::new();
        let mut add = |args: &[&[u8]]| {
            let owner = match args.first() {
                Some(key) if !is_command(command, &["ping", "echo"]) => shard.by_key(*key).index(),
                _ => shard.index(),
            };
            let part = std::iter::once(&command).chain(args);
            self.parts[owner].push(part.map(|word| word.to_vec()).collect());
            owners.push(owner);
        };
        match args {
            [] => add(args),
            _ => args.chunks(step).for_each(add),
        }
        self.requests.push(Pending { combine, owners });
    }

    /// Executes the requests, each shard its parts in their order, and appends the replies.
    async fn execute(&mut self, shard: &Shard, stores: Stores, output: &mut Vec<u8>) {
        if self.requests.is_empty() {
            return;
        }
        let calls = shard.all().zip(&mut self.parts).map(|(owner, parts)| async move {
            let (count, parts) = (parts.len(), std::mem::take(parts));
            if count == 0 {
                return Vec::new().into_iter();
            }
            let replies = stores.on(&owner, |store| execute(&mut store.borrow_mut(), parts)).await;
            let failed = |error| vec![format!("-ERR {error}\r\n").into_bytes(); count];
            replies.unwrap_or_else(failed).into_iter()
        });
        let mut replies = join_all(calls.collect::<Vec<_>>()).await;
        for request in self.requests.drain(..) {
            let parts = request.owners.iter().filter_map(|owner| replies[*owner].next());
            request.combine.write(parts.collect(), output);
        }
        self.has_array = false;
    }
}

/// Executes the parts of a shard.
fn execute(store: &mut Store, parts: Vec<Request>) -> Vec<Vec<u8>> {
    let mut total = 0;
    let replies = parts.iter().map(|part| {
        if total > MAX_REPLY {
            return b"-ERR the reply is too long\r\n".to_vec();
        }
        let mut reply = Vec::new();
        store.execute(&part.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut reply);
        total += reply.len();
        reply
    });
    replies.collect()
}

impl Combine {
    fn write(self, parts: Vec<Vec<u8>>, output: &mut Vec<u8>) {
        if let Some(error) = parts.iter().find(|part| part.starts_with(b"-")) {
            return output.extend_from_slice(error);
        }
        match self {
            Combine::One => output.extend(parts.into_iter().flatten()),
            Combine::Ok => output.extend_from_slice(b"+OK\r\n"),
            Combine::Sum => {
                let number = |part: &Vec<u8>| std::str::from_utf8(part).ok()?.trim_end()[1..].parse::<u64>().ok();
                let sum: u64 = parts.iter().filter_map(number).sum();
                output.extend_from_slice(format!(":{sum}\r\n").as_bytes());
            }
            Combine::Array => {
                output.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
                parts.iter().for_each(|part| output.extend_from_slice(part));
            }
        }
    }
}
