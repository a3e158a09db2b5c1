//! The attribute runs an `async fn`.

#[windlass::main]
fn main() {}
