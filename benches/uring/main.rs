//! What further io_uring features would gain, by hand-written loops: `cargo bench --bench uring`
//!
//! Each table compares loops that differ in one feature; the first row is windlass, or does what windlass does. Rounds
//! are short and interleaved, and ratios are computed within a round. These are upper bounds: a runtime also pays for
//! keeping its guarantees.
//!
//! - `echo`: an echo server with the ring and its buffers set up as in windlass, with one-shot and multishot receives. CPU
//!   time and system calls per request.
//! - `setup`: the same server with other flags of the ring, of a receive or of the system call.
//! - `bulk`: receiving one large stream into single buffers of a ring, into bundles of them, and into large buffers. CPU
//!   time of the receiver per MiB.
//! - `send`: sending with and without zero-copy. CPU time of the sender per MiB. On loopback and on a veth pair the kernel
//!   copies zero-copy data when it reaches the receiving socket; the table says so. `unread` is the cost of a send without a
//!   receiver: the peer does not read, so the data stays in the send queue, as if it waited for the network card.
//! - `file`: sending a cached file by reads and sends, and inside the kernel.
//!
//! Usage:
//!
//!     cargo bench --bench uring                                   two minutes
//!     cargo bench --bench uring -- --only echo --connections 50,200 --rounds 200
//!     cargo bench --bench uring -- --only send --bytes 65536
//!
//! To send through a veth pair, as root:
//!
//!     ip netns add near && ip netns add far && ip -n near link add veth0 type veth peer name veth0 netns far
//!     ip -n near addr add 192.0.2.1/30 dev veth0 && ip -n near link set veth0 up && ip -n near link set lo up
//!     ip -n far addr add 192.0.2.2/30 dev veth0 && ip -n far link set veth0 up
//!     ip netns exec near cargo bench --bench uring -- --only send --namespace far --address 192.0.2.2
//!     ip netns del near && ip netns del far

#[cfg(all(target_os = "linux", feature = "proactor"))]
mod bulk;
#[cfg(all(target_os = "linux", feature = "proactor"))]
mod echo;
#[cfg(all(target_os = "linux", feature = "proactor"))]
mod file;
#[cfg(all(target_os = "linux", feature = "proactor"))]
#[path = "../kit/mod.rs"]
mod kit;
#[cfg(all(target_os = "linux", feature = "proactor"))]
mod ring;
#[cfg(all(target_os = "linux", feature = "proactor"))]
mod run;
#[cfg(all(target_os = "linux", feature = "proactor"))]
mod send;

#[cfg(all(target_os = "linux", feature = "proactor"))]
fn main() -> std::process::ExitCode {
    kit::options::report("uring", run::main())
}

#[cfg(not(all(target_os = "linux", feature = "proactor")))]
fn main() {
    println!("this bench needs Linux and the feature `proactor`: it measures io_uring");
}
