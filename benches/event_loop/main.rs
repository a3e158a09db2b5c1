//! What do the loop's own parts cost, with no task in sight? `cargo bench --bench event_loop`
//!
//! `turn/empty`: a turn with nothing to run, which only an outer loop asks for (`turn_nowait`), and which always looks
//! at the kernel; `turn/one callback`: a turn as every run makes them, with one callback added and run; `call_soon` and
//! `call_later`: a callback added and run, one of 100 in a turn (those of `call_later` are due at once);
//! `call_later_cancel`: one added and cancelled; `call_soon_threadsafe`: what another thread pays for each of 100
//! callbacks that it sends to a sleeping loop at once.
//!
//!     cargo bench --bench event_loop                          about half a minute
//!     cargo bench --bench event_loop -- call_later            criterion's filter: only what contains that
//!     cargo bench --bench event_loop -- turn --measurement-time 10

#[cfg(target_os = "linux")]
#[path = "../kit/criteria.rs"]
mod criteria;
#[cfg(target_os = "linux")]
#[path = "../kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod run;

#[cfg(target_os = "linux")]
fn main() {
    kit::options::end_unless_bench(None);
    let mut criterion = criteria::criterion();
    run::measure(&mut criterion, &kit::drivers::available());
    criterion.final_summary();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("criterion is had on Linux only here: this needs Linux");
}
