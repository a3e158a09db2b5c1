//! Plain callbacks, no async: `cargo run --example callbacks`.

use std::time::Duration;

use windlass::EventLoop;

fn main() -> std::io::Result<()> {
    let event_loop = EventLoop::new()?;
    println!("driver: {}", event_loop.describe());

    event_loop.call_soon(|| {
        println!("first");
        // What a callback schedules runs in the next turn: after "second".
        windlass::call_soon(|| println!("third"));
    });
    event_loop.call_soon(|| println!("second"));

    let never = event_loop.call_soon(|| println!("never"));
    never.cancel();

    event_loop.call_later(Duration::from_millis(20), || println!("20 ms"));
    event_loop.call_later(Duration::from_millis(10), || println!("10 ms"));
    event_loop.call_later(Duration::from_millis(30), {
        let handle = event_loop.handle();
        move || {
            println!("30 ms: stop");
            handle.stop().expect("the loop is running");
        }
    });
    event_loop.run_forever()
}
