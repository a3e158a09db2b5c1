//! Compares windlass with asyncio and uvloop on this machine: `cargo run --release --example compare`.
//!
//! A published table lists, for each of asyncio's loops, the throughput of an echo server, the timer resolution and the
//! number of descriptors it can watch. This program measures the same for windlass on its two drivers, for asyncio and
//! uvloop (if there is a `python3`), and for hand-written epoll and io_uring loops, which are the lower bound. It adds
//! latency, CPU time, system calls, memory and stalls.
//!
//! Every server is a separate process on one core; the load comes from this process on another. All rounds are
//! interleaved (A B C, B C A, C A B), so that a machine that slows down affects all contenders. All traffic stays on
//! the loopback. One more measurement gives all cores to a pool of shards and to its load.
//!
//! `cargo bench --bench comparison` is the same program, so the modules refer to this file by `super`.

#[cfg(target_os = "linux")]
mod contender;
#[cfg(target_os = "linux")]
mod cores;
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
    eprintln!("compare needs Linux: it measures io_uring and epoll");
    std::process::ExitCode::SUCCESS
}
