//! UDP sockets with hickory's polls.
//!
//! windlass's operations own their buffers, and hickory's polls borrow one. So the socket keeps the operation that a poll has
//! started, with a buffer of its own, and copies what it received: at most 4 KiB per answer. This needs no readiness interface,
//! so it works with every driver.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hickory_resolver::net::runtime::DnsUdpSocket;
use windlass::compat::ThreadBound;
use windlass::net;

use crate::provider::Timer;

type Receiving = Pin<Box<dyn Future<Output = (io::Result<(usize, SocketAddr)>, Vec<u8>)>>>;
type Sending = Pin<Box<dyn Future<Output = io::Result<usize>>>>;

/// A UDP socket for hickory. One task at a time can wait in each direction.
pub struct UdpSocket(ThreadBound<Inner>);

struct Inner {
    socket: Rc<net::UdpSocket>,
    /// The operations that the last polls have started.
    receiving: RefCell<Option<Receiving>>,
    sending: RefCell<Option<Sending>>,
}

impl UdpSocket {
    pub(crate) async fn bind(local: SocketAddr) -> io::Result<UdpSocket> {
        Ok(UdpSocket(ThreadBound::new(Inner {
            socket: Rc::new(net::UdpSocket::bind(local).await?),
            receiving: RefCell::default(),
            sending: RefCell::default(),
        })))
    }
}

impl DnsUdpSocket for UdpSocket {
    type Time = Timer;

    fn poll_recv_from(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>> {
        let inner = &*self.0;
        poll_kept(
            &inner.receiving,
            || {
                let (socket, own) = (inner.socket.clone(), Vec::with_capacity(buf.len()));
                Box::pin(async move { socket.recv_from(own).await })
            },
            cx,
        )
        .map(|(result, own)| {
            let (count, from) = result?;
            // hickory may have passed a longer buffer before.
            let count = count.min(buf.len());
            buf[..count].copy_from_slice(&own[..count]);
            Ok((count, from))
        })
    }

    fn poll_send_to(&self, cx: &mut Context<'_>, buf: &[u8], target: SocketAddr) -> Poll<io::Result<usize>> {
        let inner = &*self.0;
        let start = || -> Sending {
            let (socket, own) = (inner.socket.clone(), buf.to_vec());
            Box::pin(async move { socket.send_to(own, target).await.0 })
        };
        poll_kept(&inner.sending, start, cx)
    }
}

/// Polls the operation in progress, or a new one, and keeps it until it has ended.
fn poll_kept<F: Future + Unpin>(
    kept: &RefCell<Option<F>>,
    start: impl FnOnce() -> F,
    cx: &mut Context<'_>,
) -> Poll<F::Output> {
    // Not borrowed while the operation is polled: that may drop a waker, whose destructor is foreign code.
    let mut operation = kept.take().unwrap_or_else(start);
    let result = Pin::new(&mut operation).poll(cx);
    if result.is_pending() {
        kept.replace(Some(operation));
    }
    result
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let socket = self.0.get().map(|inner| &inner.socket);
        f.debug_tuple("UdpSocket").field(&socket).finish()
    }
}
