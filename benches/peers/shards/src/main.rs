//! Calls between two event loops on two threads, in one run on this machine:
//!
//! ```sh
//! cargo run --release --manifest-path benches/peers/shards/Cargo.toml
//! ```
//!
//! `ping`: one call at a time, and its answer: the median time of a round trip. `burst`: 20,000 tasks make one call each, with
//! at most 256 in flight: the time for each. windlass's calls run a closure on the other shard and return its value, cancel it
//! if they are dropped and report its panic. The others have channels: a request is a number, the answer the number plus one.
//! `crossbeam calls` does what a call of windlass does, with channels: a closure in a box, and a channel for its result.
//!
//! `--only NAME` measures the contenders whose name contains this.
//!
//! Each contender runs in a process of its own with a thread on each of two processors, and the contenders are interleaved.

#[cfg(target_os = "linux")]
mod contenders;

#[cfg(target_os = "linux")]
fn main() {
    contenders::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this benchmark needs Linux: glommio has no other system");
}
