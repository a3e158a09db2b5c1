//! Accepted connections per second: `cargo bench --bench accept`
//!
//! Two workloads: connections that exchange one byte and are closed (each is a task in windlass), and bursts of
//! connections that the server accepts and closes at once. Both drivers are compared with a hand-written epoll loop.
//! The server is a separate process on one core, the client is this process on another. Connections come in bursts of
//! 64, which any backlog holds; the side that closes first sends a RST, so that no port stays in TIME_WAIT.
//!
//!     cargo bench --bench accept                          about 15 seconds
//!     cargo bench --bench accept -- --only echo --rounds 9 --seconds 1

#[cfg(target_os = "linux")]
#[path = "../kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod run;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    kit::options::report("accept", run::main())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this bench needs Linux: it compares with hand-written epoll");
}
