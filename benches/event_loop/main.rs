//! The cost of the loop itself, without tasks: `cargo bench --bench event_loop`
//!
//! - `turn/empty`: a turn with nothing to run (`turn_nowait`), as from an outer loop; it always polls the kernel.
//! - `turn/one callback`: a normal turn, with one callback added and run.
//! - `call_soon`, `call_later`: a callback added and run, one of 100 in a turn (those of `call_later` are due at once).
//! - `call_later_cancel`: a callback added and cancelled.
//! - `call_soon_threadsafe`: the time that another thread takes per callback, in bursts of 100 to a sleeping loop.
//!
//! ```sh
//! cargo bench --bench event_loop                          # about half a minute
//! cargo bench --bench event_loop -- call_later            # criterion's filter: names that contain this
//! cargo bench --bench event_loop -- turn --measurement-time 10
//! ```

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
    println!("this bench needs Linux: criterion is a dependency only there");
}
