//! QUIC by [quinn] on [windlass]: quinn's [`Runtime`](quinn::Runtime), and endpoints in one line.
//!
//! [`server`] and [`client`] make endpoints on the current loop. Connections and streams are quinn's:
//!
//! ```
//! # use windlass_quinn::quinn::{ClientConfig, ServerConfig, rustls};
//! # use std::sync::Arc;
//! # fn configs() -> Result<(ServerConfig, ClientConfig), Box<dyn std::error::Error>> {
//! #     let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
//! #     let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
//! #     let mut roots = rustls::RootCertStore::empty();
//! #     roots.add(made.cert.der().clone())?;
//! #     let server = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key)?;
//! #     Ok((server, ClientConfig::with_root_certificates(Arc::new(roots))?))
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (server_config, client_config) = configs()?; // certificates: quinn's own types
//! windlass::run(async {
//!     let server = windlass_quinn::server("127.0.0.1:0", server_config)?;
//!     let addr = server.local_addr()?;
//!     windlass::spawn(async move {
//!         while let Some(incoming) = server.accept().await {
//!             windlass::spawn(async move {
//!                 let (mut send, mut recv) = incoming.await?.accept_bi().await?;
//!                 let request = recv.read_to_end(1024).await?;
//!                 send.write_all(&request).await?;
//!                 send.finish()?;
//!                 send.stopped().await?; // until the client has everything
//!                 Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//!             })
//!             .detach();
//!         }
//!     })
//!     .detach();
//!
//!     let client = windlass_quinn::client("127.0.0.1:0", client_config)?;
//!     let connection = client.connect(addr, "localhost")?.await?;
//!     let (mut send, mut recv) = connection.open_bi().await?;
//!     send.write_all(b"ping").await?;
//!     send.finish()?;
//!     assert_eq!(recv.read_to_end(1024).await?, b"ping");
//!     connection.close(0_u8.into(), b"done");
//!     client.wait_idle().await; // the close is sent
//!     Ok(())
//! })?
//! # }
//! ```
//!
//! Each endpoint and each connection is a task of the loop. Datagrams pass through [`quinn::udp`], with segmentation offload in
//! both directions where the kernel has it (GSO, GRO), ECN and path MTU discovery. quinn's types are `Send`: streams and
//! connections can be used on other threads, while their tasks stay on the loop.
//!
//! [`per_shard`] makes one endpoint per shard of a pool.

mod endpoint;
mod runtime;
mod shards;
mod socket;
mod timer;

pub use quinn;

pub use self::endpoint::{client, server};
pub use self::runtime::Runtime;
pub use self::shards::{ShardEndpoints, per_shard};

/// The programs of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
