//! A pooled client: `cargo run --release --features webpki-roots --example client -- https://example.org/ ...`

use http_body_util::BodyExt;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    windlass::run(async {
        let client = windlass_web::client::new();
        for uri in std::env::args().skip(1) {
            let response = client.get(uri.parse()?).await?;
            let (status, version) = (response.status(), response.version());
            let body = response.into_body().collect().await?.to_bytes();
            println!("{uri}: {version:?} {status}, {} bytes", body.len());
        }
        Ok(())
    })?
}
