//! hyper 1.x on windlass: its streams, its timer and its executor.
//!
//! hyper knows no runtime; it wants to be told what to read from ([`Bridge`](crate::compat::Bridge)), how to wait ([`Timer`]) and where to run what
//! it does beside ([`Executor`]). With these it serves and asks, HTTP/1.1 and HTTP/2, on either driver. Nothing here needs
//! `Send`: services, bodies and what they hold stay on the loop's thread, so `Rc` and `RefCell` are welcome.
//!
//! ```no_run
//! use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
//! use windlass::{compat::Bridge, hyper::Timer, net::TcpListener};
//!
//! async fn hello(_: Request<Incoming>) -> Result<Response<String>, std::convert::Infallible> {
//!     Ok(Response::new("hello\n".to_owned()))
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     windlass::run(async {
//!         let listener = TcpListener::bind("127.0.0.1:8080").await?;
//!         loop {
//!             let (stream, _) = listener.accept().await?;
//!             let connection = http1::Builder::new()
//!                 .timer(Timer)
//!                 .serve_connection(Bridge::new(stream), service_fn(hello));
//!             windlass::spawn(connection);
//!         }
//!     })?
//! }
//! ```
//!
//! What hyper itself wants to be `Send` is the stream of a connection with `with_upgrades`, which it hands to another task. Here a
//! connection is upgraded by `without_shutdown` and `into_parts`, which ask for nothing.
//!
//! `examples/http_server.rs` is a server with both versions, ranges, uploads and a shutdown that waits for what is under way;
//! `examples/http_client.rs` is the other end.

mod executor;
mod io;
mod timer;

pub use self::executor::Executor;
pub use self::timer::{Sleep, Timer};
