//! Plain callbacks, no async: `cargo run --example callbacks`.

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use support::outln;
use windlass::EventLoop;

fn main() -> std::io::Result<()> {
    let event_loop = EventLoop::new()?;
    outln!("driver: {}", event_loop.describe());

    event_loop.call_soon(|| {
        outln!("first");
        // A callback scheduled by a callback runs in the next turn: after "second".
        windlass::call_soon(|| outln!("third"));
    });
    event_loop.call_soon(|| outln!("second"));

    let never = event_loop.call_soon(|| outln!("never"));
    never.cancel();

    event_loop.call_later(Duration::from_millis(20), || outln!("20 ms"));
    event_loop.call_later(Duration::from_millis(10), || outln!("10 ms"));
    event_loop.call_later(Duration::from_millis(30), {
        let handle = event_loop.handle();
        move || {
            outln!("30 ms: stop");
            handle.stop().expect("the loop is running");
        }
    });
    event_loop.run_forever()
}
