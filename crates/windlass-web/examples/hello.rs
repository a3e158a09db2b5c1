//! axum in one line: `cargo run --release --example hello`, then `curl http://127.0.0.1:8080/`. Ctrl-C stops it.

use axum::Router;
use axum::routing::get;
use windlass::net::TcpListener;

fn main() -> std::io::Result<()> {
    let app = Router::new().route("/", get(async || "hello\n"));
    windlass::run(async { windlass_web::serve(TcpListener::bind("127.0.0.1:8080").await?, app).await })?
}
