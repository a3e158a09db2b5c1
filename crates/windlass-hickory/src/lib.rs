//! DNS lookups by [hickory] on [windlass]: a resolver of its own, with a cache, instead of the system's resolver on a thread.
//!
//! [`Resolver`] is hickory's resolver on the current loop, with [`connect`](Resolver::connect) for TCP:
//!
//! ```no_run
//! use windlass_hickory::Resolver;
//!
//! windlass::run(async {
//!     let resolver = Resolver::from_system()?; // /etc/resolv.conf and the hosts file
//!     let stream = resolver.connect("example.com", 80).await?;
//!     stream.write_all("GET / HTTP/1.0\r\nhost: example.com\r\n\r\n").await.0?;
//!     for record in resolver.mx_lookup("example.com.").await.map_err(std::io::Error::other)?.answers() {
//!         println!("{record}");
//!     }
//!     Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`Provider`] is the part for hickory's other users: it implements [`RuntimeProvider`], hence everything in hickory that is
//! generic over it.
//!
//! A lookup over UDP uses a socket of its own, and no task. A TCP connection to a name server is a task of the loop that opened
//! it. A `Resolver` can be cloned and sent to other loops, for example to all shards; its cache is shared.
//!
//! [hickory]: hickory_resolver
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod provider;
mod resolver;
mod udp;

pub use hickory_resolver;
pub use hickory_resolver::net::runtime::RuntimeProvider;

pub use self::provider::{Provider, Spawner, TcpConnection, Timer};
pub use self::resolver::Resolver;
pub use self::udp::UdpSocket;

/// The program of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
