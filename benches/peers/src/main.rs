//! windlass against other runtimes, in one run on this machine:
//!
//! ```sh
//! cargo run --release --manifest-path benches/peers/Cargo.toml
//! ```
//!
//! The contenders are minimal hand-written loops on epoll and io_uring (the lower bound); tokio, compio, monoio,
//! glommio and smol, each as its documentation recommends for one thread; and windlass on both drivers. Each runtime
//! has its own file here with its settings; the workloads are written once, over the trait [`runtime::Runtime`], in
//! [`work`].
//!
//! Every measurement is a new process on one core; the load or the waking thread is on another. The contenders are
//! interleaved (A B C, B C A, C A B), so that a machine that slows down affects all of them, and none is always first.
//! The tables have medians, and ratios computed within a round: to the best hand-written loop, and to the best peer.
//! The last table lists which targets this run reached. `--help` lists the options to measure less.
//!
//! windlass runs with its defaults. Some settings have their own rows where they matter: precise timers; the paced echo
//! without busy-polling, which shows whether busy-polling costs a slow loop anything; and eager tasks, because
//! glommio's are eager.

#[cfg(all(target_os = "linux", not(feature = "proactor")))]
compile_error!("the hand-written io_uring loop is part of the comparison: build with the default feature `proactor`");

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
mod summary;
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
    println!("peers needs Linux: it measures runtimes on io_uring and epoll");
}
