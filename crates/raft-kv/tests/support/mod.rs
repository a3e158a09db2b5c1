//! Clients that record what they see, for tests with processes and with simulated hosts.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use raft_kv::client::{self, Error};
use raft_kv::linearizability::{self, Action, Op};
use windlass::rand::Rng;
use windlass::time::{Instant, sleep, timeout_at};

/// The keys in use change after this many requests: the check of a key takes longer the more requests it has.
const REQUESTS_PER_KEYS: u64 = 600;
/// The keys in use at a time.
const KEYS: u64 = 4;

/// What all clients have seen.
#[derive(Default)]
pub(crate) struct History {
    ops: RefCell<Vec<Op>>,
    events: Cell<u64>,
    /// For each key with a single writer: the last number that was acknowledged.
    acknowledged: RefCell<BTreeMap<String, u64>>,
    /// Requests with a known result.
    pub(crate) done: Cell<u64>,
    /// Changes with an unknown result.
    pub(crate) unknown: Cell<u64>,
}

impl History {
    fn event(&self) -> u64 {
        self.events.set(self.events.get() + 1);
        self.events.get()
    }

    fn push(&self, key: &str, action: Action, begin: u64, end: Option<u64>) {
        let key = key.to_owned();
        self.ops.borrow_mut().push(Op {
            key,
            action,
            begin,
            end,
        });
    }

    /// Requests so far, without those that had no effect.
    pub(crate) fn len(&self) -> u64 {
        self.done.get() + self.unknown.get()
    }

    /// Reads every key once more, and checks everything. All nodes must be up.
    pub(crate) async fn finish(&self, addrs: &[String]) -> Result<usize, Box<dyn std::error::Error>> {
        let client = Client::new(0, addrs, Duration::from_secs(60));
        let mut keys: Vec<String> = self.ops.borrow().iter().map(|op| op.key.clone()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let begin = self.event();
            let value = client.until_known(async |addr| client::get(addr, &key).await).await?;
            self.push(&key, Action::Get(value.clone()), begin, Some(self.event()));
            if let Some(acknowledged) = self.acknowledged.borrow().get(&key) {
                let number: u64 = value.as_deref().unwrap_or("0").parse()?;
                assert!(
                    number >= *acknowledged,
                    "lost: {key} was set to {acknowledged}, and is {number}"
                );
            }
        }
        Ok(linearizability::check(&self.ops.borrow())?)
    }
}

/// One client.
pub(crate) struct Client {
    number: u64,
    addrs: Vec<String>,
    /// The node that it asks first.
    target: Cell<usize>,
    /// How long it tries.
    limit: Duration,
}

/// No node has accepted the request, so it had no effect.
#[derive(Debug)]
pub(crate) struct NotDone;

impl Client {
    pub(crate) fn new(number: u64, addrs: &[String], limit: Duration) -> Client {
        Client {
            number,
            addrs: addrs.to_vec(),
            target: Cell::new(number as usize % addrs.len()),
            limit,
        }
    }

    /// Sends a request until a node has accepted it. `None`: its result is unknown.
    async fn request<T>(&self, send: impl AsyncFn(&str) -> Result<T, Error>) -> Result<Option<T>, NotDone> {
        let deadline = Instant::now() + self.limit;
        loop {
            let target = self.target.get();
            let sent = timeout_at(deadline, send(&self.addrs[target])).await;
            match sent {
                Ok(Ok(result)) => return Ok(Some(result)),
                Ok(Err(Error::NotDone(leader))) => {
                    let leader = leader.and_then(|leader| self.addrs.iter().position(|addr| *addr == leader));
                    self.target.set(leader.unwrap_or((target + 1) % self.addrs.len()));
                    if Instant::now() >= deadline {
                        return Err(NotDone);
                    }
                    let pause = if leader.is_some() { 1 } else { 20 };
                    sleep(Duration::from_millis(pause)).await;
                }
                Ok(Err(_)) | Err(_) => {
                    self.target.set((target + 1) % self.addrs.len());
                    return Ok(None);
                }
            }
        }
    }

    /// Sends a read until it has a result.
    async fn until_known<T>(&self, send: impl AsyncFn(&str) -> Result<T, Error>) -> Result<T, String> {
        for _ in 0..20 {
            if let Ok(Some(result)) = self.request(&send).await {
                return Ok(result);
            }
        }
        Err("no node answers a read".to_owned())
    }

    /// Sends requests as long as `goes_on` says so, and records them.
    pub(crate) async fn run(self, history: Rc<History>, pause: Duration, goes_on: impl Fn() -> bool) {
        let mut rng = Rng::new();
        let mut number = 0;
        // What this client has last seen of the keys.
        let mut last: BTreeMap<String, Option<String>> = BTreeMap::new();
        while goes_on() {
            sleep(pause.mul_f64(rng.unit() * 2.0)).await;
            number += 1;
            let value = format!("{}.{number}", self.number);
            let key = format!("k{}.{}", history.events.get() / 2 / REQUESTS_PER_KEYS, rng.below(KEYS));
            let begin = history.event();
            let end = |is_known: bool| is_known.then(|| history.event());
            match rng.below(10) {
                0 => {
                    let key = format!("own{}", self.number);
                    let value = number.to_string();
                    let sent = self.request(async |addr| client::put(addr, &key, &value).await).await;
                    let Ok(result) = sent else { continue };
                    history.push(&key, Action::Put(value), begin, end(result.is_some()));
                    count(&history, result.is_some());
                    if result.is_some() {
                        history.acknowledged.borrow_mut().insert(key, number);
                    }
                }
                1..=4 => {
                    let sent = self.request(async |addr| client::get(addr, &key).await).await;
                    // A read without a result says nothing.
                    let Ok(Some(value)) = sent else { continue };
                    history.push(&key, Action::Get(value.clone()), begin, end(true));
                    count(&history, true);
                    last.insert(key, value);
                }
                5..=6 => {
                    let sent = self.request(async |addr| client::put(addr, &key, &value).await).await;
                    let Ok(result) = sent else { continue };
                    history.push(&key, Action::Put(value.clone()), begin, end(result.is_some()));
                    count(&history, result.is_some());
                    last.insert(key, Some(value));
                }
                _ => {
                    let expect = last.get(&key).cloned().flatten();
                    let sent = self
                        .request(async |addr| client::cas(addr, &key, expect.clone(), &value).await)
                        .await;
                    let Ok(result) = sent else { continue };
                    let end = end(result.is_some());
                    count(&history, result.is_some());
                    let result = result.unwrap_or(Ok(()));
                    let seen = match &result {
                        Ok(()) => Some(value.clone()),
                        Err(current) => current.clone(),
                    };
                    history.push(&key, Action::Cas { expect, value, result }, begin, end);
                    last.insert(key, seen);
                }
            }
        }
    }
}

fn count(history: &History, is_known: bool) {
    let counter = if is_known { &history.done } else { &history.unknown };
    counter.set(counter.get() + 1);
}

/// Waits until a state is reached. The caller has a limit, or none.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(check: impl Fn() -> F) -> T {
    loop {
        if let Some(found) = check().await {
            return found;
        }
        sleep(Duration::from_millis(20)).await;
    }
}
