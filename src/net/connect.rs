//! Connecting to a name with several addresses: Happy Eyeballs (RFC 8305).
//!
//! Waiting for an address that does not answer takes minutes. So attempts are staggered: the next one starts when one
//! has failed or after 250 ms, and the first that connects wins. The address families alternate, so broken IPv6 costs
//! one such delay and not several. The other attempts are cancelled and their sockets closed.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::builder::TcpBuilder;
use super::stream::TcpStream;
use crate::sys::context;
use crate::time::{Sleep, sleep};

/// The delay before the next attempt starts while earlier ones are pending, as RFC 8305 recommends.
const STAGGER: Duration = Duration::from_millis(250);

/// Connects to the address that answers first; there must be at least one.
pub(super) async fn connect_any(builder: &TcpBuilder, addrs: Vec<SocketAddr>) -> io::Result<TcpStream> {
    match addrs[..] {
        [addr] => builder.connect_one(addr).await,
        _ => {
            let mut race = Race {
                builder,
                waiting: alternate_families(addrs),
                running: Vec::new(),
                stagger: Box::pin(sleep(Duration::ZERO)),
                last_error: None,
            };
            std::future::poll_fn(|cx| race.poll(cx)).await
        }
    }
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

type Attempt<'a> = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + 'a>>;

struct Race<'a> {
    builder: &'a TcpBuilder,
    waiting: VecDeque<SocketAddr>,
    running: Vec<(SocketAddr, Attempt<'a>)>,
    /// The delay until the next attempt starts.
    stagger: Pin<Box<Sleep>>,
    last_error: Option<io::Error>,
}

impl Race<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        loop {
            let before = self.running.len();
            if let Some(stream) = self.poll_running(cx) {
                return Poll::Ready(Ok(stream));
            }
            let has_failed = self.running.is_empty() || self.running.len() < before;
            let is_due = has_failed || self.stagger.as_mut().poll(cx).is_ready();
            let next = if is_due { self.waiting.pop_front() } else { None };
            if let Some(addr) = next {
                let builder = self.builder;
                self.running.push((addr, Box::pin(builder.connect_one(addr))));
                self.stagger.set(sleep(STAGGER));
                continue;
            }
            if self.running.is_empty() {
                let error = self.last_error.take();
                return Poll::Ready(Err(error.expect("every attempt has failed")));
            }
            return Poll::Pending;
        }
    }

    /// Polls all attempts and returns the first connection. Removes failed attempts.
    fn poll_running(&mut self, cx: &mut Context<'_>) -> Option<TcpStream> {
        let mut at = 0;
        while at < self.running.len() {
            let (addr, attempt) = &mut self.running[at];
            match attempt.as_mut().poll(cx) {
                Poll::Ready(Ok(stream)) => return Some(stream),
                Poll::Ready(Err(error)) => {
                    self.last_error = Some(context(*addr, error));
                    drop(self.running.remove(at));
                }
                Poll::Pending => at += 1,
            }
        }
        None
    }
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
