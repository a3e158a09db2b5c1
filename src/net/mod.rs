//! Sockets.
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

mod addr;
mod listener;
mod socket;
mod split;
mod stream;

pub use crate::descriptor::IntoStdError;
pub use addr::ToSocketAddrs;
pub use listener::TcpListener;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::TcpStream;

pub use crate::protocol::{StreamReader, StreamWriter, open_connection, start_server};
