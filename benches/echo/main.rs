//! Throughput and CPU time of an echo server: `cargo bench --bench echo`
//!
//! 1, 50 and 1000 connections; requests of 64 B, 1 KiB and 64 KiB; 1 and 16 of them in flight on each connection. The
//! server is a separate process on one core, and the load comes from this process on another. Both drivers are compared
//! with a hand-written epoll loop; rounds are interleaved, and ratios are computed within a round. "Load" is the CPU
//! use of the load generator: near 100 % it limits the rate, and only the CPU time per request is meaningful.
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
    println!("this bench needs Linux: it compares with hand-written epoll");
}
