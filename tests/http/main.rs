//! hyper on windlass: HTTP/1.1 and HTTP/2, server and client, on every driver; and the traits of futures-io and tokio,
//! with tokio-util's codecs.
//!
//! The environment variables of `tests/suite` work here too.

mod client_server;
mod codecs;
mod misbehaving;
mod raw;
mod server;
mod threads;
mod timers;
mod traits;

#[path = "../suite/support.rs"]
mod support;
