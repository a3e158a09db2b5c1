//! A timer: `cargo run --example hello`.

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use support::outln;
use windlass::time::{interval, sleep};

fn main() -> std::io::Result<()> {
    windlass::run(async {
        let ticker = windlass::spawn(async {
            let mut every = interval(Duration::from_millis(100));
            loop {
                every.tick().await;
                outln!("tick");
            }
        });
        outln!("hello");
        sleep(Duration::from_millis(450)).await;
        ticker.cancel();
        outln!(
            "world: the ticker ended with \"{}\"",
            ticker.await.map(|never: ()| never).unwrap_err()
        );
    })
}
