//! One endpoint per shard of a pool, all at one address.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use quinn::{Endpoint, EndpointConfig, ServerConfig};
use quinn_proto::HashedConnectionIdGenerator;
use windlass::shards::{Pool, UdpSockets};

use crate::endpoint::endpoint;

/// Binds one endpoint per shard to an address, now. Each shard then starts its own: [`ShardEndpoints::endpoint`].
///
/// The kernel chooses the shard by a hash of the client's address, so a connection stays on its shard while the client keeps its
/// address. A client that changes its address (migration, a new port of its NAT) reaches another shard; that shard's endpoint
/// answers with a stateless reset, which ends the connection at once, and the client can connect again. All shards share the
/// keys for resets, retries and address validation.
///
/// # Errors
///
/// `Unsupported` where the system does not distribute datagrams over sockets that share a port (macOS, Windows).
///
/// ```no_run
/// # fn config() -> windlass_quinn::quinn::ServerConfig { unimplemented!() }
/// let pool = windlass::shards::Builder::new().build()?;
/// let endpoints = windlass_quinn::per_shard(&pool, "0.0.0.0:4433", config())?;
/// pool.run(move |_shard| {
///     let endpoints = endpoints.clone();
///     async move {
///         let endpoint = endpoints.endpoint().await?;
///         while let Some(incoming) = endpoint.accept().await {
///             windlass::spawn(async move { incoming.await.map(drop) }).detach();
///         }
///         Ok::<(), std::io::Error>(())
///     }
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn per_shard(pool: &Pool, addr: impl ToSocketAddrs, config: ServerConfig) -> io::Result<ShardEndpoints> {
    // Made once, because its key for stateless resets is random.
    let mut endpoint = EndpointConfig::default();
    // An endpoint sends resets only for connection ids of its own form, which depends on this key. It is not a secret that
    // protects anything: quinn uses it to recognize datagrams that are not QUIC.
    let key = RandomState::new().hash_one(());
    endpoint.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(key)));
    Ok(ShardEndpoints {
        sockets: pool.udp(addr)?,
        endpoint,
        server: Arc::new(config),
    })
}

/// The endpoints of a pool: see [`per_shard`]. `Clone`, `Send` and `Sync`.
#[derive(Clone, Debug)]
pub struct ShardEndpoints {
    sockets: UdpSockets,
    endpoint: EndpointConfig,
    server: Arc<ServerConfig>,
}

impl ShardEndpoints {
    /// Starts this shard's endpoint; once per shard. Every shard must start its own: a shard that does not loses the
    /// datagrams of its share of clients.
    ///
    /// # Panics
    ///
    /// Outside of a shard of the pool.
    pub async fn endpoint(&self) -> io::Result<Endpoint> {
        let socket = self.sockets.socket().await?.into_std()?;
        endpoint(self.endpoint.clone(), Some(ServerConfig::clone(&self.server)), socket)
    }

    /// The address that the endpoints are bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.sockets.local_addr()
    }
}
