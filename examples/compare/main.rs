//! The comparison of asyncio's loops, measured here and now: `cargo run --release --example compare`.
//!
//! An article's table says what an echo server manages on each of asyncio's loops and how fine its timers are. This
//! measures the same on this machine, for windlass, for the real asyncio (if there is a `python3`), for uvloop (if it is
//! installed), and for the two loops that a runtime is judged by: epoll and io_uring by hand, with nothing above them.
//!
//! Every server is a process of its own on one core; the load comes from this process on another. All rounds are
//! interleaved (A B C A B C), so that a machine that slows down slows down everybody. Everything stays on the loopback.

#[cfg(target_os = "linux")]
mod echo;
#[cfg(target_os = "linux")]
mod json;
#[cfg(target_os = "linux")]
#[path = "../../benches/kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod python;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod tasks;
#[cfg(target_os = "linux")]
mod timers;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    run::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("compare measures io_uring against epoll: it needs Linux");
}
