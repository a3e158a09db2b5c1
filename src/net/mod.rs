//! TCP, UDP and Unix sockets, and name lookup.
//!
//! ```
//! use windlass::net::{TcpListener, TcpStream};
//! windlass::run(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let client = TcpStream::connect(listener.local_addr()?).await?;
//!     let (server, peer) = listener.accept().await?;
//!     assert_eq!(peer, client.local_addr()?);
//!     client.write_all("hello").await.0?;
//!     assert_eq!(&*server.read_managed().await?, b"hello");
//!     Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```

mod accept;
mod addr;
mod builder;
mod connect;
mod datagram;
mod incoming;
mod listener;
mod recv_batch;
mod send_batch;
mod socket;
mod split;
mod stream;
mod udp;
mod udp_builder;
#[cfg(unix)]
pub(crate) mod unix;
#[cfg(not(unix))]
#[path = "no_unix.rs"]
pub(crate) mod unix;

pub use self::addr::{ToSocketAddrs, lookup_host};
pub(crate) use self::addr::{resolve, try_each};
pub use self::builder::TcpBuilder;
pub use self::incoming::Incoming;
pub use self::listener::TcpListener;
pub use self::recv_batch::{BatchIter, Coalesced, DatagramRef, RecvBatch};
pub use self::send_batch::SendBatch;
pub(crate) use self::socket::inet;
pub(crate) use self::split::Connection;
pub use self::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use self::stream::TcpStream;
pub use self::udp::{Datagram, UdpSocket};
pub use self::udp_builder::UdpBuilder;
#[cfg(unix)]
pub use self::unix::{Received, UnixDatagram, UnixListener, UnixStream};
pub use crate::inflight::descriptor::IntoStdError;
pub use crate::protocol::{StreamReader, StreamWriter, open_connection, start_server};
#[cfg(unix)]
pub use crate::sys::Credentials;
pub use crate::sys::KeepAlive;
