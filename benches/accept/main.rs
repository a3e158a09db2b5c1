//! How many connections can be accepted per second? `cargo bench --bench accept`
//!
//! Twice: connections that send one byte, get it back and are closed (each is a task in windlass), and bursts of
//! connections that the server accepts and closes at once. Both drivers run beside a loop of epoll by hand, which is as
//! simple as it looks. The server is a process of its own on one core, the client this one on another. Connections come
//! in bursts of 64, which any backlog holds; whoever closes first resets, so that no port stays in TIME_WAIT.
//!
//!     cargo bench --bench accept                          about a quarter of a minute
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
    println!("this compares with epoll by hand: it needs Linux");
}
