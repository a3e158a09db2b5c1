//! UDP sockets of a pool: one per shard, all with the same address.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;

use super::socket::FreeUdp;
use super::state::ShardState;
use crate::net::UdpSocket;
use crate::sys::lock;

pub(super) struct UdpPlan {
    /// By shard, until the shard or the pool has ended.
    pub(super) sockets: Vec<Mutex<Option<FreeUdp>>>,
}

impl UdpPlan {
    /// Closes the pool's copy of a shard's socket, because the shard has ended.
    pub(super) fn close(&self, shard: usize) {
        let socket = lock(&self.sockets[shard]).take();
        if let Some(socket) = socket {
            socket.close();
        }
    }
}

/// The UDP sockets of a pool, one per shard, with one address: [`Pool::udp`](super::Pool::udp) makes them. The kernel chooses
/// the socket by a hash of the sender's address, so the datagrams of one sender reach one shard. A plain handle: `Copy`,
/// `Send` and `Sync`.
#[derive(Clone, Copy)]
pub struct UdpSockets {
    pub(super) pool: u32,
    pub(super) index: u32,
    pub(super) addr: SocketAddr,
}

impl UdpSockets {
    /// This shard's socket. Every shard must receive from its own: the datagrams of a socket that no shard reads are lost
    /// when its buffer is full.
    ///
    /// # Panics
    ///
    /// Outside of a shard of its pool.
    pub async fn socket(&self) -> io::Result<UdpSocket> {
        let state = ShardState::current_in(self.pool)
            .expect("windlass: `shards::UdpSockets::socket` was called outside of a shard of its pool");
        let plan = state.shared().plan().sockets[self.index as usize].clone();
        let socket = lock(&plan.sockets[state.index]).as_ref().map(FreeUdp::share);
        // Closed, if what ends the shard asks for it.
        socket.ok_or(io::ErrorKind::NotConnected)?
    }

    /// The address that they are bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

impl fmt::Debug for UdpSockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSockets").field("addr", &self.addr).finish()
    }
}
