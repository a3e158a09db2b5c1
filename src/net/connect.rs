//! Connecting to a name with several addresses: Happy Eyeballs (RFC 8305).
//!
//! Waiting for an address that does not answer takes minutes. So attempts are staggered: the next one starts when one
//! has failed or after 250 ms, and the first that connects wins. The address families alternate, so broken IPv6 costs
//! one such delay and not several. The other attempts are cancelled and their sockets closed.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::builder::TcpBuilder;
use super::stream::TcpStream;
use crate::sys::context;
use crate::time::{Elapsed, timeout};

/// The delay before the next attempt starts while earlier ones are pending, as RFC 8305 recommends.
const STAGGER: Duration = Duration::from_millis(250);

type Attempt<'a> = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + 'a>>;

/// Connects to the address that answers first; there must be at least one.
pub(super) async fn connect_any(builder: &TcpBuilder, addrs: Vec<SocketAddr>) -> io::Result<TcpStream> {
    if let [addr] = addrs[..] {
        return builder.connect_one(addr).await;
    }
    let mut waiting = alternate_families(addrs);
    let mut running: Vec<Attempt<'_>> = Vec::new();
    loop {
        if let Some(addr) = waiting.pop_front() {
            let attempt = async move { builder.connect_one(addr).await.map_err(|error| context(addr, error)) };
            running.push(Box::pin(attempt));
        }
        let delay = if waiting.is_empty() { Duration::MAX } else { STAGGER };
        match timeout(delay, poll_fn(|cx| poll_attempts(&mut running, cx))).await {
            Ok(Err(error)) if waiting.is_empty() && running.is_empty() => return Err(error),
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(_)) | Err(Elapsed) => {}
        }
    }
}

/// The result of the first attempt that has one. Removes that attempt.
fn poll_attempts(running: &mut Vec<Attempt<'_>>, cx: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
    for at in 0..running.len() {
        if let Poll::Ready(result) = running[at].as_mut().poll(cx) {
            drop(running.remove(at));
            return Poll::Ready(result);
        }
    }
    Poll::Pending
}

/// Orders the addresses so that the families alternate, starting with that of the first address.
fn alternate_families(addrs: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
    let first_is_v6 = addrs.first().is_some_and(SocketAddr::is_ipv6);
    let (mut one, mut other): (VecDeque<_>, VecDeque<_>) =
        addrs.into_iter().partition(|addr| addr.is_ipv6() == first_is_v6);
    let mut ordered = VecDeque::with_capacity(one.len() + other.len());
    while !one.is_empty() || !other.is_empty() {
        ordered.extend(one.pop_front());
        ordered.extend(other.pop_front());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate() {
        let addrs = |list: &[&str]| {
            list.iter()
                .map(|addr| addr.parse().unwrap())
                .collect::<Vec<SocketAddr>>()
        };
        let given = addrs(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        let expected = addrs(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
        assert_eq!(alternate_families(given), expected);
    }
}
