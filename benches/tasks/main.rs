//! The cost of tasks: spawn and join, yield, and wake from another thread. `cargo bench --bench tasks`
//!
//! criterion measures `spawn_join`, `yield` (by one task, and per yield among 100 tasks) and `wake` (the time that
//! another thread takes per wake, in bursts to 100 tasks). A separate table has percentiles of the latency from the
//! wake on one thread to the poll on another: while the loop sleeps, right after it fell asleep, and while it is busy
//! with other tasks. It also has the number of write(2) calls of the sender per burst: one, unless the loop falls
//! asleep again during the burst.
//!
//!     cargo bench --bench tasks                               about half a minute
//!     cargo bench --bench tasks -- spawn_join                 criterion's filter: names that contain this
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
    println!("this bench needs Linux: criterion is a dependency only there");
}
