//! How much memory does each task, each timer and each idle connection hold? `cargo bench --bench memory`
//!
//! Tasks and timers: 100,000 of each that wait, counted by an allocator that counts (exact, and so the same in every
//! run; the room that the loop's tables keep for more is in it). Connections: a server in a process of its own gets
//! 10,000 connections, echoes 64 bytes on each once, and then waits for more on all of them with managed reads. Its
//! heap is counted the same way, and the kernel is asked what memory of its own the process holds; the difference to
//! before is divided by the connections. What the kernel holds for sockets is not in it. The aim is at most 1 KiB for
//! each.
//!
//!     cargo bench --bench memory                              a few seconds
//!     cargo bench --bench memory -- --connections 1000 --count 10000 --driver reactor

#[cfg(target_os = "linux")]
#[path = "../kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod run;

#[cfg(target_os = "linux")]
#[global_allocator]
static HEAP: kit::heap::Counting = kit::heap::Counting;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    kit::options::report("memory", run::main())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this asks Linux what memory a process holds: it needs Linux");
}
