//! How fast does an echo server echo, and what does each request cost it? `cargo bench --bench echo`
//!
//! 1, 50 and 1000 connections; requests of 64 B, 1 KiB and 64 KiB; 1 and 16 of them in flight on each connection. The
//! server is a process of its own on one core, and the load comes from this one on another. Both drivers run beside a
//! loop of epoll by hand; rounds are interleaved, and the ratios to it are taken within a round. "Load" is the share of
//! its core that the load used: near 100 % it was the load that set the pace, and only the processor time per request
//! says something.
//!
//!     cargo bench --bench echo                                                about two minutes, longer on a busy machine
//!     cargo bench --bench echo -- --connections 50 --bytes 1024 --in-flight 1
//!     cargo bench --bench echo -- --bytes 64,1024 --driver reactor --rounds 7 --seconds 1

#[cfg(target_os = "linux")]
#[path = "../kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod run;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    kit::options::report("echo", run::main())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this compares with epoll by hand: it needs Linux");
}
