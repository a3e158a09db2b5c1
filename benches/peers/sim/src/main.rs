//! `windlass::sim` against turmoil and madsim, in one run on this machine:
//!
//! ```sh
//! cargo run --release --manifest-path benches/peers/sim/Cargo.toml
//! ```
//!
//! The programs are the same for all three, each in its own file: hosts that echo over TCP, and hosts that send
//! heartbeats over UDP ([`work`]). Every measurement is a new process on one core. The simulators are interleaved
//! (A B C, B C A, C A B); the tables have medians, and ratios computed within a round.
//!
//! madsim replaces the standard library's clock and random numbers in the whole program, and needs `--cfg madsim` for
//! it. So this program builds itself a second time with that flag, into a target directory of its own, and starts the
//! result for each of madsim's measurements.

#[cfg(target_os = "linux")]
#[cfg_attr(madsim, path = "madsim.rs")]
#[cfg_attr(not(madsim), path = "compare.rs")]
mod entry;
#[cfg(all(target_os = "linux", not(madsim)))]
mod kit;
#[cfg(all(target_os = "linux", not(madsim)))]
mod options;
#[cfg(all(target_os = "linux", not(madsim)))]
mod parts;
#[cfg(all(target_os = "linux", not(madsim)))]
mod turmoil;
#[cfg(all(target_os = "linux", not(madsim)))]
mod windlass;
#[cfg(target_os = "linux")]
mod work;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match entry::main() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("the comparison of simulators needs Linux");
}
