//! Memory per task, timer and idle connection: `cargo bench --bench memory`
//!
//! Tasks and timers: 100,000 of each, counted by a counting allocator (exact and reproducible; spare capacity of the
//! loop's tables is included). Connections: a server process accepts 10,000 connections, echoes 64 bytes on each, and
//! then waits on all of them with managed reads. Its heap is counted in the same way, and its private memory is read
//! from the kernel; the growth is divided by the number of connections. Kernel memory for sockets is not included. The
//! target is at most 800 bytes per connection.
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
    println!("this bench needs Linux: it reads the memory of a process from /proc");
}
