//! windlass beside its peers, in one run on this machine:
//!
//! ```sh
//! cargo run --release --manifest-path benches/peers/Cargo.toml
//! ```
//!
//! The contenders are loops by hand on epoll and on io_uring, with nothing above them (the limit that a runtime is judged
//! by), then tokio, compio, monoio, glommio and smol, each as its own documentation recommends for one thread, and windlass
//! on both drivers. Each runtime has a file of its own here, which says what it is set to; what is measured is written once,
//! over the trait [`runtime::Runtime`], in [`work`].
//!
//! Every measurement is a fresh process on one core, the load or the waking thread is on another, and the contenders take
//! turns round by round (A B C, B C A, C A B), so that a machine that slows down slows down everybody, and nobody is always
//! the first. The tables have medians, and ratios that were taken within a round: to the best loop by hand, and to the best
//! peer. The last table says which targets this run reached. `--help` says how to measure less.
//!
//! windlass takes part with its defaults. Some of its ways have rows of their own where they matter: precise timers
//! among the timers; no lookout in the paced echo, which shows whether looking out costs a slow loop anything; and eager tasks
//! among the tasks, since glommio's are.

#[cfg(all(target_os = "linux", not(feature = "proactor")))]
compile_error!("the io_uring loop by hand is part of the limit: build with the default feature `proactor`");

#[cfg(target_os = "linux")]
mod compio;
#[cfg(target_os = "linux")]
mod contender;
#[cfg(target_os = "linux")]
mod glommio;
#[cfg(target_os = "linux")]
mod hand;
#[cfg(target_os = "linux")]
mod instructions;
#[cfg(target_os = "linux")]
mod json;
#[cfg(target_os = "linux")]
#[path = "../../kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod measure;
#[cfg(target_os = "linux")]
mod monoio;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
mod results;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod runtime;
#[cfg(target_os = "linux")]
mod smol;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod targets;
#[cfg(target_os = "linux")]
mod tokio;
#[cfg(target_os = "linux")]
mod windlass;
#[cfg(target_os = "linux")]
mod work;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    run::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("peers measures runtimes on io_uring and epoll: it needs Linux");
}
