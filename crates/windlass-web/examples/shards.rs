//! axum on all cores: `cargo run --release --example shards -- [127.0.0.1:8080]`. Ctrl-C stops it.

use axum::Router;
use axum::routing::get;

fn main() -> Result<(), windlass::shards::Error> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".to_owned());
    windlass_web::serve_shards(addr, |shard| {
        let greeting = format!("hello from shard {}\n", shard.index());
        Router::new().route("/", get(async move || greeting))
    })
}
