//! hyper 1.x on windlass: I/O, timer and executor.
//!
//! hyper is runtime-agnostic: its builders take a stream ([`Bridge`](crate::compat::Bridge)), a [`Timer`] and an
//! [`Executor`]. These support HTTP/1.1 and HTTP/2, client and server. Nothing here needs `Send`: services, bodies and
//! their contents stay on the loop's thread and may use `Rc` and `RefCell`.
//!
//! ```no_run
//! use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
//! use windlass::{compat::Bridge, hyper::Timer, net::TcpListener, time::sleep};
//!
//! async fn hello(_: Request<Incoming>) -> Result<Response<String>, std::convert::Infallible> {
//!     Ok(Response::new("hello\n".to_owned()))
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     windlass::run(async {
//!         let listener = TcpListener::bind("127.0.0.1:8080").await?;
//!         loop {
//!             let stream = match listener.accept().await {
//!                 Ok((stream, _)) => stream,
//!                 Err(error) => {
//!                     eprintln!("accept: {error}");
//!                     sleep(std::time::Duration::from_millis(50)).await;
//!                     continue;
//!                 }
//!             };
//!             let connection = http1::Builder::new()
//!                 .timer(Timer)
//!                 .serve_connection(Bridge::new(stream), service_fn(hello));
//!             windlass::spawn(connection).detach(); // passes an error to the exception handler
//!         }
//!     })?
//! }
//! ```
//!
//! hyper's `with_upgrades` requires a `Send` stream, because it moves the stream to another task:
//! [`Bridge::into_send`](crate::compat::Bridge::into_send) makes one. `without_shutdown` and `into_parts` have no such bound.
//!
//! `examples/http_server.rs` is a server for both versions with ranges, uploads and graceful shutdown;
//! `examples/http_client.rs` is a client.

mod executor;
mod io;
mod timer;

pub use self::executor::Executor;
pub use self::timer::Timer;
pub use crate::time::Sleep;
