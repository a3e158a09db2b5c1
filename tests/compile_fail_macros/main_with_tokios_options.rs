//! Options of other runtimes.

#[windlass::main(flavor = "current_thread")]
async fn main() {}

#[windlass::test(start_paused = true)]
async fn paused() {}

#[windlass::test(driver = "epoll")]
async fn epoll() {}

#[windlass::test]
async fn with_argument(argument: u32) {}
