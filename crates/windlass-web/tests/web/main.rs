//! axum and tonic on every driver, from one body of tests. No tokio runtime runs on the loops' threads.

mod app;
mod client;
mod files;
mod grpc;
mod limits;
mod programs;
mod shutdown;
mod support;
mod ws;

#[allow(clippy::all, unreachable_pub, missing_docs, reason = "generated code")]
mod echo;
