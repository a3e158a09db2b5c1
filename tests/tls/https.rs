//! HTTP over TLS: hyper on windlass; hyper, curl and broken clients at the other end.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::rc::Rc;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use windlass::compat::Bridge;
use windlass::hyper::{Executor, Timer};
use windlass::net::{TcpListener, TcpStream};
use windlass::process::Command;
use windlass::tls::{TlsAcceptor, TlsConnector};

use super::{Authority, client_config, server_config};
use crate::support::{Folder, on_every_driver, on_every_kernel_driver};

/// Responds with the HTTP version and the length of the body.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let version = request.version();
    let len = request
        .into_body()
        .collect()
        .await
        .map_or(0, |body| body.to_bytes().len());
    Ok(Response::new(Full::from(format!("{version:?}, {len} bytes\n"))))
}

/// Serves HTTP/1.1 or HTTP/2, as negotiated, and counts failed handshakes.
async fn serve(listener: TcpListener, failed: Rc<Cell<u32>>) {
    let mut config = server_config();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::new(config);
    loop {
        let (stream, _) = listener.accept().await.expect("accept");
        let (acceptor, failed) = (acceptor.clone(), failed.clone());
        windlass::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return failed.set(failed.get() + 1);
            };
            let is_h2 = stream.alpn_protocol().as_deref() == Some(b"h2");
            let (stream, service) = (Bridge::new(stream), service_fn(answer));
            // How a connection ends is up to its client.
            let _ = match is_h2 {
                true => {
                    let builder = hyper::server::conn::http2::Builder::new(Executor);
                    builder.serve_connection(stream, service).await
                }
                false => {
                    let mut builder = hyper::server::conn::http1::Builder::new();
                    builder.timer(Timer).serve_connection(stream, service).await
                }
            };
        });
    }
}

#[test]
fn hyper_speaks_both_versions_over_tls() {
    on_every_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let addr = listener.local_addr().expect("an address");
            let serving = windlass::spawn(serve(listener, Rc::default()));
            let mut config = client_config();
            config.alpn_protocols = vec![b"h2".to_vec()];
            let connector = TlsConnector::new(config);
            let stream = TcpStream::connect(addr).await.expect("connect");
            let stream = connector.connect("localhost", stream).await.expect("a handshake");
            assert_eq!(stream.alpn_protocol().as_deref(), Some(&b"h2"[..]));
            let (mut sender, connection) = hyper::client::conn::http2::handshake(Executor, Bridge::new(stream))
                .await
                .expect("a handshake");
            let connection = windlass::spawn(connection);
            // Many requests at once over one connection, with bodies larger than a flow-control window.
            let mut asked = Vec::new();
            for number in 0..20_usize {
                let request = Request::post(format!("https://localhost/{number}"));
                let body = Full::new(Bytes::from(vec![7; number * 20_000]));
                asked.push(sender.send_request(request.body(body).expect("a request")));
            }
            for (number, asked) in asked.into_iter().enumerate() {
                let answer = asked.await.expect("an answer");
                assert_eq!(answer.version(), Version::HTTP_2);
                let body = answer.into_body().collect().await.expect("a body").to_bytes();
                assert_eq!(body, format!("HTTP/2.0, {} bytes\n", number * 20_000).as_bytes());
            }
            drop(sender);
            connection.await.expect("no panic").expect("a clean end");

            let stream = TcpStream::connect(addr).await.expect("connect");
            let stream = TlsConnector::new(client_config())
                .connect("localhost", stream)
                .await
                .expect("a handshake");
            let (mut sender, connection) = hyper::client::conn::http1::handshake(Bridge::new(stream))
                .await
                .expect("a handshake");
            windlass::spawn(connection);
            for _ in 0..5 {
                let request = Request::get("/").header("host", "localhost");
                let request = request.body(Empty::<Bytes>::new()).expect("a request");
                let answer = sender.send_request(request).await.expect("an answer");
                let body = answer.into_body().collect().await.expect("a body").to_bytes();
                assert_eq!(body, &b"HTTP/1.1, 0 bytes\n"[..]);
            }
            serving.cancel();
            let _ = serving.await;
        });
    });
}

#[test]
fn curl_is_served_and_failed_handshakes_do_not_stop_the_server() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let ca = folder.file("ca.pem", Authority::trusted().0.pem());
            let body = folder.file("body", vec![b'x'; 300_000]);
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let port = listener.local_addr().expect("an address").port();
            let failed = Rc::<Cell<u32>>::default();
            let serving = windlass::spawn(serve(listener, failed.clone()));
            let curl = async |options: &[&str], url: String| {
                let mut command = Command::new("curl");
                command.args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*"]);
                command.args(["--resolve", &format!("localhost:{port}:127.0.0.1")]);
                command.args(["--resolve", &format!("example.org:{port}:127.0.0.1")]);
                command.args(options).arg(url).output().await
            };
            let ca = ca.to_str().expect("a path of text");
            let upload = format!("@{}", body.to_str().expect("a path of text"));
            let here = || format!("https://localhost:{port}/");
            let output = match curl(&["--cacert", ca, "--http1.1"], here()).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return println!("-- SKIPPED: curl is not installed");
                }
                output => output.expect("curl runs"),
            };
            assert_eq!(output.stdout, b"HTTP/1.1, 0 bytes\n", "{output:?}");
            let post = ["--cacert", ca, "--data-binary", &upload];
            let output = curl(&[&post[..], &["--http1.1"]].concat(), here())
                .await
                .expect("curl runs");
            assert_eq!(output.stdout, b"HTTP/1.1, 300000 bytes\n", "{output:?}");
            let output = curl(&[&post[..], &["--http2"]].concat(), here())
                .await
                .expect("curl runs");
            assert_eq!(output.stdout, b"HTTP/2.0, 300000 bytes\n", "{output:?}");
            let output = curl(&["--cacert", ca, "--tlsv1.2", "--tls-max", "1.2"], here()).await;
            assert!(output.expect("curl runs").status.success());
            assert_eq!(failed.get(), 0);

            // An unknown authority; another name (both exit with 60); no TLS at all (curl takes the alert for a
            // response, or for none).
            let output = curl(&[], here()).await.expect("curl runs");
            assert_eq!(output.status.code(), Some(60), "{output:?}");
            let output = curl(&["--cacert", ca], format!("https://example.org:{port}/"))
                .await
                .expect("curl runs");
            assert_eq!(output.status.code(), Some(60), "{output:?}");
            let output = curl(&[], format!("http://localhost:{port}/")).await.expect("curl runs");
            assert!(!output.status.success(), "{output:?}");
            let output = curl(&["--cacert", ca, "--tls-max", "1.1", "--tlsv1.0"], here())
                .await
                .expect("curl runs");
            assert!(!output.status.success(), "{output:?}");
            assert!(failed.get() >= 3, "{} handshakes failed", failed.get());

            let output = curl(&["--cacert", ca], here()).await.expect("curl runs");
            assert!(output.status.success(), "the server does not respond: {output:?}");
            serving.cancel();
            let _ = serving.await;
        });
    });
}
