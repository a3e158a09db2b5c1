//! Memory per task, timer and idle connection: `cargo bench --bench memory`
//!
//! Tasks and timers: 100,000 of each, counted by a counting allocator (exact and reproducible; spare capacity of the
//! loop's tables is included). Connections: a server process accepts 10,000 connections from this process, echoes 64
//! bytes on each, and then waits on all of them with managed reads. Its heap is counted in the same way, and its private
//! memory is read from the kernel; the growth is divided by the number of connections. The target is at most 800 bytes per
//! connection. Kernel memory is the growth of the slab allocator of the whole machine, so it has both ends of each
//! connection, and what other programs allocate meanwhile.
//!
//! Many connections come from several loopback addresses, because one has few ephemeral ports. If the machine does not
//! allow as many as requested, the bench says why, and measures as many as possible.
//!
//!     cargo bench --bench memory                              a few seconds
//!     cargo bench --bench memory -- --connections 100000      a minute, if the limits allow it
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
