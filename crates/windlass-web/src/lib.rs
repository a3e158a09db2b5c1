//! axum and tonic on windlass: servers, clients, TLS, graceful shutdown.
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use windlass::net::TcpListener;
//!
//! fn main() -> std::io::Result<()> {
//!     let app = Router::new().route("/", get(async || "hello\n"));
//!     windlass::run(async {
//!         windlass_web::serve(TcpListener::bind("0.0.0.0:8080").await?, app).await // HTTP/1.1 and HTTP/2, until Ctrl-C
//!     })?
//! }
//! ```
//!
//! | | feature |
//! |---|---|
//! | [`serve`], [`serve_shards`], [`Server`]: any tower service of HTTP requests, such as axum's `Router` or tonic's `Routes`, on one loop or on all cores | |
//! | [`timeout`]: time limits for requests, as tower layers | |
//! | [`Server::tls`]: HTTPS, with ALPN | `tls` |
//! | `client`: a pooled HTTP client | `client`, `webpki-roots` |
//! | `grpc`: a channel for tonic's clients, and deadlines for its servers | `grpc` |
//! | `ws`: WebSockets in axum's handlers | `ws` |
//! | `files`: a directory of static files, with ranges | `files` |
//!
//! No tokio runtime runs anywhere. Everything stays on the loop's thread; where a library insists on `Send`, its streams and
//! futures are wrapped in a [`ThreadBound`](windlass::compat::ThreadBound). Handlers that need a value which is not `Send`
//! do the same.
//!
//! # What does not work
//!
//! Parts of axum, tonic and tower that call tokio's runtime panic without one. Each has a replacement here:
//!
//! | instead of | use |
//! |---|---|
//! | `axum::serve` | [`serve`] |
//! | `axum::extract::ws` | `ws` |
//! | `axum::response::sse::KeepAlive` | [`windlass::time::interval`] in the stream |
//! | `tonic::transport::{Server, Channel}` | [`serve`], `grpc::Channel` |
//! | `tower::timeout`, `tower_http::timeout` | [`timeout`] |
//! | `tower_http::services::{ServeDir, ServeFile}` | `files` |
//! | `tokio::spawn`, `tokio::time`, `tokio::fs`, `tokio::net` in handlers | [`windlass::spawn`], [`windlass::time`], ... |
//!
//! `tokio::sync` works, as it needs no runtime.

mod app;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "files")]
pub mod files;
#[cfg(feature = "grpc")]
pub mod grpc;
mod listener;
mod server;
pub mod timeout;
#[cfg(feature = "ws")]
pub mod ws;

pub use self::app::App;
pub use self::listener::{Listener, Stream};
pub use self::server::{Server, serve, serve_shards, stopping};

/// An error of any type, as tower's services return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The blocks of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
