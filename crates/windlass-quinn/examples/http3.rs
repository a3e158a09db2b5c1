//! An HTTP/3 server and a client, by h3 and h3-quinn.
//!
//! `cargo run --example http3 -- serve 127.0.0.1:4433` serves until it is interrupted, with a certificate of its own.
//! Without arguments, the program starts a server, sends it requests, and ends.

use std::error::Error;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use h3::server::Connection;
use http::{Request, Response};
use windlass_quinn::quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use windlass_quinn::quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use windlass_quinn::quinn::rustls::{self, RootCertStore};
use windlass_quinn::quinn::{ClientConfig, Endpoint, Incoming, ServerConfig};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (certificate, key) = (
        made.cert.der().clone(),
        PrivateKeyDer::try_from(made.signing_key.serialize_der())?,
    );
    let args: Vec<String> = std::env::args().skip(1).collect();
    windlass::run(async {
        match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["serve", addr] => {
                let server = windlass_quinn::server(addr, server_config(certificate, key)?)?;
                println!("listening on {}", server.local_addr()?);
                serve(server).await;
                Ok(())
            }
            [] => {
                let server = windlass_quinn::server("127.0.0.1:0", server_config(certificate.clone(), key)?)?;
                let addr = server.local_addr()?;
                windlass::spawn(serve(server)).detach();
                request(addr, certificate).await
            }
            _ => Err("usage: http3 [serve ADDRESS]".into()),
        }
    })?
}

/// A connection is a task, and each of its requests too.
async fn serve(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        windlass::spawn(async move {
            if let Err(error) = serve_connection(incoming).await {
                eprintln!("a connection failed: {error}");
            }
        })
        .detach();
    }
}

async fn serve_connection(incoming: Incoming) -> Result<()> {
    let quic = h3_quinn::Connection::new(incoming.await?);
    let mut connection: Connection<_, Bytes> = Connection::new(quic).await?;
    loop {
        let resolver = match connection.accept().await {
            Ok(Some(resolver)) => resolver,
            Ok(None) => return Ok(()),
            Err(error) if error.is_h3_no_error() => return Ok(()), // the client has closed the connection
            Err(error) => return Err(error.into()),
        };
        windlass::spawn(async move {
            let (request, mut stream) = resolver.resolve_request().await?;
            stream.send_response(Response::builder().status(200).body(())?).await?;
            stream
                .send_data(Bytes::from(format!("you asked for {}\n", request.uri().path())))
                .await?;
            stream.finish().await?;
            Result::Ok(())
        })
        .detach();
    }
}

async fn request(addr: SocketAddr, certificate: CertificateDer<'static>) -> Result<()> {
    let endpoint = windlass_quinn::client("0.0.0.0:0", client_config(certificate)?)?;
    let quic = endpoint.connect(addr, "localhost")?.await?;
    let (mut driver, mut requests) = h3::client::new(h3_quinn::Connection::new(quic)).await?;
    let driving = windlass::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
    for path in ["/", "/tea", "/coffee"] {
        let request = Request::get(format!("https://localhost{path}")).body(())?;
        let mut stream = requests.send_request(request).await?;
        stream.finish().await?;
        let response = stream.recv_response().await?;
        let mut body = Vec::new();
        while let Some(mut part) = stream.recv_data().await? {
            body.extend(part.copy_to_bytes(part.remaining()));
        }
        print!("{}: {}", response.status(), String::from_utf8_lossy(&body));
    }
    drop(requests); // The last sender closes the connection.
    println!("closed: {}", driving.await?);
    endpoint.wait_idle().await;
    Ok(())
}

fn server_config(certificate: CertificateDer<'static>, key: PrivateKeyDer<'static>) -> Result<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"h3".to_vec()];
    Ok(ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(config)?)))
}

fn client_config(certificate: CertificateDer<'static>) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    Ok(ClientConfig::new(Arc::new(QuicClientConfig::try_from(config)?)))
}
