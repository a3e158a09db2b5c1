//! Fetches pages with reqwest inside of windlass tasks: `cargo run --example beside -- [http://URL...]`.
//!
//! tokio's runtime has a thread of its own, beside the loop. Without a URL, the program fetches from a server of its own, which
//! runs on the same loop.

use std::error::Error;

use windlass::net::TcpListener;
use windlass::task::JoinSet;
use windlass_tokio::WithTokio;

fn main() -> Result<(), Box<dyn Error>> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    windlass::run(async {
        if urls.is_empty() {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            urls = (1..=3)
                .map(|n| Ok(format!("http://{}/{n}", listener.local_addr()?)))
                .collect::<std::io::Result<_>>()?;
            windlass::spawn(serve(listener)).detach();
        }
        let client = reqwest::Client::new();
        let mut fetches = JoinSet::new();
        for url in urls {
            let client = client.clone();
            // The one line that reqwest needs: the future is polled and dropped inside of tokio's runtime.
            fetches.spawn(async move { client.get(&url).send().await?.text().await }.with_tokio());
        }
        while let Some(fetched) = fetches.join_next().await {
            println!("{} bytes", fetched??.len());
        }
        Ok(())
    })?
}

/// Answers every request with a greeting.
async fn serve(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        windlass::spawn(async move {
            drop(stream.read_managed().await?);
            stream
                .write_all("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nahoy!")
                .await
                .0
        })
        .detach();
    }
}
