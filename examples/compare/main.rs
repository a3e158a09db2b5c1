//! The comparison of asyncio's loops, measured here and now: `cargo run --release --example compare`.
//!
//! An article's table says what an echo server manages on each of asyncio's loops, how fine its timers are, and how
//! many descriptors it can watch. This measures the same on this machine: for windlass on its two drivers, for the real
//! asyncio and the real uvloop (if there is a `python3`), and for the loops that a runtime is judged by: epoll and
//! io_uring by hand, with nothing above them. Then what the table leaves out: latency, processor time, system calls,
//! memory, stalls.
//!
//! Every server is a process of its own on one core; the load comes from this process on another. All rounds are
//! interleaved (A B C, B C A, C A B), so that a machine that slows down slows down everybody. Everything stays on the loopback.
//!
//! `cargo bench --bench comparison` is the same program: so the rooms say `super` where they mean this file.

#[cfg(target_os = "linux")]
mod contender;
#[cfg(target_os = "linux")]
mod echo;
#[cfg(target_os = "linux")]
mod json;
#[cfg(target_os = "linux")]
#[path = "../../benches/kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod python;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(target_os = "linux")]
mod stall;
#[cfg(target_os = "linux")]
mod syscalls;
#[cfg(target_os = "linux")]
mod tables;
#[cfg(target_os = "linux")]
mod tasks;
#[cfg(target_os = "linux")]
mod timers;

#[cfg(target_os = "linux")]
pub(crate) fn main() -> std::process::ExitCode {
    run::main()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn main() -> std::process::ExitCode {
    eprintln!("compare measures io_uring against epoll: it needs Linux");
    std::process::ExitCode::SUCCESS
}
