//! HTTP/3, by h3 and h3-quinn: server and client on windlass.

use std::future::poll_fn;

use ::h3::client::new as new_client;
use ::h3::quic::BidiStream;
use ::h3::server::{Connection, RequestStream};
use bytes::{Buf, Bytes};
use http::{Method, Request, Response};
use windlass::task::JoinSet;
use windlass_quinn::quinn::Incoming;
use windlass_quinn::{client, server};

use crate::support::{block, configs, on_every_driver};

/// Answers each request of a connection in a task of its own, with its path and the length of its body, or with a large body.
async fn serve(incoming: Incoming) {
    let quic = ::h3_quinn::Connection::new(incoming.await.unwrap());
    let mut connection: Connection<_, Bytes> = Connection::new(quic).await.unwrap();
    while let Ok(Some(resolver)) = connection.accept().await {
        windlass::spawn(async move {
            let (request, stream) = resolver.resolve_request().await.unwrap();
            answer(request, stream).await;
        })
        .detach();
    }
}

async fn answer<S: BidiStream<Bytes>>(request: Request<()>, mut stream: RequestStream<S, Bytes>) {
    let mut uploaded = 0;
    while let Some(part) = stream.recv_data().await.unwrap() {
        uploaded += part.remaining();
    }
    let body = match request.uri().path() {
        "/large" => Bytes::from(block(0, 1 << 20)),
        path => Bytes::from(format!("{} {path} {uploaded}", request.method())),
    };
    stream
        .send_response(Response::builder().status(200).body(()).unwrap())
        .await
        .unwrap();
    stream.send_data(body).await.unwrap();
    stream.finish().await.unwrap();
}

#[test]
fn requests_and_responses() {
    on_every_driver(async || {
        let (server_config, client_config) = configs("h3");
        let server = server("127.0.0.1:0", server_config).unwrap();
        let addr = server.local_addr().unwrap();
        let serving = windlass::spawn(async move { serve(server.accept().await.unwrap()).await });

        let endpoint = client("127.0.0.1:0", client_config).unwrap();
        let quic = endpoint.connect(addr, "localhost").unwrap().await.unwrap();
        let (mut driver, requests) = new_client(::h3_quinn::Connection::new(quic)).await.unwrap();
        let driving = windlass::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });

        let mut tasks = JoinSet::new();
        for number in 0..20 {
            let mut requests = requests.clone();
            tasks.spawn(async move {
                let (method, path, upload) = match number % 3 {
                    0 => (Method::GET, "/small", 0),
                    1 => (Method::POST, "/upload", 100_000),
                    _ => (Method::GET, "/large", 0),
                };
                let request = Request::builder()
                    .method(&method)
                    .uri(format!("https://localhost{path}"))
                    .body(())
                    .unwrap();
                let mut stream = requests.send_request(request).await.unwrap();
                if upload > 0 {
                    stream.send_data(Bytes::from(block(0, upload))).await.unwrap();
                }
                stream.finish().await.unwrap();
                assert_eq!(stream.recv_response().await.unwrap().status(), 200);
                let mut body = Vec::new();
                while let Some(mut part) = stream.recv_data().await.unwrap() {
                    body.extend(part.copy_to_bytes(part.remaining()));
                }
                match path {
                    "/large" => assert_eq!(body, block(0, 1 << 20)),
                    path => assert_eq!(body, format!("{method} {path} {upload}").into_bytes()),
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        // The last sender closes the connection.
        drop(requests);
        driving.await.unwrap();
        serving.await.unwrap();
        endpoint.wait_idle().await;
    });
}
