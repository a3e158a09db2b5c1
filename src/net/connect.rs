//! Connecting to a name with several addresses: Happy Eyeballs (RFC 8305).
//!
//! An address that does not answer would hold up the next for minutes. So the attempts are staggered: the next begins when
//! one has failed, or when 250 ms have gone by without an answer, and the first that connects wins. The families take
//! turns, so that a broken IPv6 costs one such pause and not many. The losers are dropped, which ends their attempts in
//! the kernel and closes their sockets.

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

/// The pause before the next attempt begins beside those that have not answered: RFC 8305's recommendation.
const STAGGER: Duration = Duration::from_millis(250);

/// Connects to whichever address answers first.
pub(super) async fn connect_any(how: &TcpBuilder, addrs: Vec<SocketAddr>) -> io::Result<TcpStream> {
    match addrs[..] {
        [] => Err(io::Error::new(io::ErrorKind::InvalidInput, "the name has no address")),
        [addr] => how.connect_one(addr).await,
        _ => {
            let mut race = Race {
                how,
                waiting: in_turn(addrs),
                running: Vec::new(),
                pause: Box::pin(sleep(Duration::ZERO)),
                last_error: None,
            };
            std::future::poll_fn(|cx| race.poll(cx)).await
        }
    }
}

/// The families take turns, beginning with that of the first address.
fn in_turn(addrs: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
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
    how: &'a TcpBuilder,
    waiting: VecDeque<SocketAddr>,
    running: Vec<(SocketAddr, Attempt<'a>)>,
    /// Until the next attempt begins.
    pause: Pin<Box<Sleep>>,
    last_error: Option<io::Error>,
}

impl Race<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        loop {
            let before = self.running.len();
            if let Some(stream) = self.poll_running(cx) {
                return Poll::Ready(Ok(stream));
            }
            let has_room = self.running.is_empty() || self.running.len() < before;
            let is_time = has_room || self.pause.as_mut().poll(cx).is_ready();
            let next = if is_time { self.waiting.pop_front() } else { None };
            if let Some(addr) = next {
                let how = self.how;
                self.running.push((addr, Box::pin(how.connect_one(addr))));
                self.pause.set(sleep(STAGGER));
                continue;
            }
            if self.running.is_empty() {
                let error = self.last_error.take();
                return Poll::Ready(Err(error.expect("whatever was tried has failed")));
            }
            return Poll::Pending;
        }
    }

    /// Whether an attempt has succeeded; those that have failed leave, and make room for the next at once.
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
    fn families_take_turns() {
        let addrs = |list: &[&str]| {
            list.iter()
                .map(|addr| addr.parse().unwrap())
                .collect::<Vec<SocketAddr>>()
        };
        let given = addrs(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        let wanted = addrs(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
        assert_eq!(in_turn(given), wanted);
    }
}
