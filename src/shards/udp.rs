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
    /// By shard, until the pool has ended.
    pub(super) sockets: Vec<Mutex<Option<FreeUdp>>>,
}

/// The UDP sockets of a pool, one per shard, with one address: [`Pool::udp`](super::Pool::udp) makes them. The kernel chooses
/// the socket by a hash of the sender's address, so the datagrams of one sender reach one shard. A plain handle: `Copy`,
/// `Send` and `Sync`.
#[derive(Clone, Copy)]
pub struct UdpSockets {
    pub(super) index: u32,
    pub(super) addr: SocketAddr,
}

impl UdpSockets {
    /// This shard's socket. Every shard must receive from its own: the datagrams of a socket that no shard reads are lost
    /// when its buffer is full.
    ///
    /// # Panics
    ///
    /// Outside of a shard of the pool.
    pub async fn socket(&self) -> io::Result<UdpSocket> {
        let state =
            ShardState::current().expect("windlass: `shards::UdpSockets::socket` was called outside of a shard");
        let plan = state.shared().plan().sockets[self.index as usize].clone();
        let socket = lock(&plan.sockets[state.index]).as_ref().map(FreeUdp::share);
        socket.expect("the pool's sockets are open while its shards run")
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
