//! What do tasks cost: to spawn and join one, to yield, and to wake one from another thread? `cargo bench --bench
//! tasks`
//!
//! criterion measures the costs: `spawn_join`, `yield` (by one task, and each of the yields of 100 tasks), `wake` (what
//! a sender on another thread pays for each of the 100 tasks that it wakes in a burst). Latency is a matter of
//! percentiles, and follows in a table of its own: from the wake on one thread to the task's poll on another, while the
//! loop sleeps, right after it went to sleep, and while it is busy with others; and how many write(2) calls the sender
//! made for each burst: one, unless the loop wakes, is done and sleeps again before the burst is over.
//!
//!     cargo bench --bench tasks                               about half a minute
//!     cargo bench --bench tasks -- spawn_join                 criterion's filter: only what contains that
//!     cargo bench --bench tasks -- latency                    only the table
//!     cargo bench --bench tasks -- wake --measurement-time 10

#[cfg(target_os = "linux")]
mod costs;
#[cfg(target_os = "linux")]
#[path = "../kit/criteria.rs"]
mod criteria;
#[cfg(target_os = "linux")]
#[path = "../kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod latency;
#[cfg(target_os = "linux")]
mod sleeper;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    kit::options::end_unless_bench(None);
    let drivers = kit::drivers::available();
    let mut criterion = criteria::criterion();
    costs::measure(&mut criterion, &drivers);
    criterion.final_summary();
    match latency::is_wanted() {
        true => kit::options::report("tasks", latency::measure(&drivers)),
        false => std::process::ExitCode::SUCCESS,
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("criterion is had on Linux only here: this needs Linux");
}
