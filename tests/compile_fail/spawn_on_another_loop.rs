//! A future with a timer belongs to one loop: it cannot be sent to another thread.

use std::time::Duration;
use windlass::time::sleep;

fn main() {
    let background = windlass::LoopThread::start().unwrap();
    background.handle().spawn(async { sleep(Duration::from_secs(1)).await }).unwrap();
}
