//! WebSockets: over HTTP/1.1, TLS and HTTP/2.

use std::rc::Rc;
use std::time::Duration;

use async_tungstenite::tungstenite::Message;
use async_tungstenite::tungstenite::client::IntoClientRequest;
use async_tungstenite::{WebSocketStream, client_async};
use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::any;
use bytes::Bytes;
use futures_util::StreamExt;
use http::{Method, Request, Version};
use http_body_util::Empty;
use hyper::ext::Protocol;
use hyper::rt::{Read, ReadBuf, Write};
use windlass::compat::{Bridge, ThreadBound};
use windlass::net::TcpStream;
use windlass::task::{Either, select};
use windlass::tls::TlsConnector;
use windlass_web::ws::{CloseFrame, WebSocket, WebSocketUpgrade};
use windlass_web::{Server, client};

use crate::support::{self, Running, certificates, on_each_driver, start, start_with};

fn echo() -> Router {
    async fn echo(ws: WebSocketUpgrade) -> Response {
        let ws = ws.protocols(["chat.v2", "chat"]).max_message_size(2 << 20);
        ws.on_upgrade(async |mut socket: WebSocket| {
            // Not `Send`.
            let count = Rc::new(std::cell::Cell::new(0));
            while let Some(Ok(message)) = socket.recv().await {
                match message {
                    Message::Text(text) if text == "protocol" => {
                        let protocol = socket.protocol().unwrap_or("none").to_owned();
                        socket.send(Message::text(protocol)).await.unwrap();
                    }
                    Message::Text(_) | Message::Binary(_) => socket.send(message).await.unwrap(),
                    _ => {}
                }
                count.set(count.get() + 1);
            }
        })
    }
    Router::new().route("/", any(echo))
}

async fn connect(server: &Running) -> WebSocketStream<Bridge<TcpStream>> {
    let stream = Bridge::new(server.connect().await);
    client_async(format!("ws://{}/", server.addr), stream).await.unwrap().0
}

async fn converse<S>(mut socket: WebSocketStream<S>)
where
    S: futures_io::AsyncRead + futures_io::AsyncWrite + Unpin,
{
    for message in [
        Message::text("hello"),
        Message::binary(vec![1, 2, 3]),
        Message::binary(vec![7; 1 << 20]),
    ] {
        socket.send(message.clone()).await.unwrap();
        assert!(socket.next().await.unwrap().unwrap() == message);
    }
    socket
        .send(Message::Ping(Bytes::from_static(b"are you there")))
        .await
        .unwrap();
    assert_eq!(
        socket.next().await.unwrap().unwrap(),
        Message::Pong(Bytes::from_static(b"are you there"))
    );
    socket.close(None).await.unwrap();
    assert!(matches!(socket.next().await, Some(Ok(Message::Close(_)))));
    assert!(socket.next().await.is_none());
}

#[test]
fn echo_and_close() {
    on_each_driver(async || {
        let server = start(echo()).await;
        converse(connect(&server).await).await;
        // Many at once.
        let sockets = (0..50).map(async |_| converse(connect(&server).await).await);
        windlass::task::join_all(sockets).await;
        server.end().await;
    });
}

/// What a handler has sent arrives, although it returns at once.
#[test]
fn nothing_is_lost_at_the_end() {
    on_each_driver(async || {
        let large = async |ws: WebSocketUpgrade| {
            ws.on_upgrade(async |mut socket: WebSocket| socket.send(Message::binary(vec![7; 8 << 20])).await.unwrap())
        };
        let server = start(Router::new().route("/", any(large))).await;
        let mut socket = connect(&server).await;
        assert_eq!(socket.next().await.unwrap().unwrap().len(), 8 << 20);
        server.end().await;
    });
}

#[test]
fn over_tls() {
    on_each_driver(async || {
        let (server_config, client_config) = certificates();
        let server = start_with(Server::new().tls(server_config), echo()).await;
        let stream = TlsConnector::new(client_config)
            .connect("localhost", server.connect().await)
            .await
            .unwrap();
        let uri = format!("wss://localhost:{}/", server.addr.port());
        converse(client_async(uri, Bridge::new(stream)).await.unwrap().0).await;
        server.end().await;
    });
}

#[test]
fn subprotocols() {
    on_each_driver(async || {
        let server = start(echo()).await;
        for (offered, selected) in [("soap, chat", "chat"), ("chat, chat.v2", "chat.v2"), ("soap", "none")] {
            let mut request = format!("ws://{}/", server.addr).into_client_request().unwrap();
            request
                .headers_mut()
                .insert("sec-websocket-protocol", offered.parse().unwrap());
            // tungstenite refuses a server that selects none, so the handshake is made by hand.
            let stream = server.connect().await;
            let key = request.headers()["sec-websocket-key"].to_str().unwrap();
            let head = format!(
                "GET / HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\n\
                 sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\nsec-websocket-protocol: {offered}\r\n\r\n"
            );
            stream.write_all(head).await.0.unwrap();
            let answer = String::from_utf8(stream.read_managed().await.unwrap().to_vec()).unwrap();
            assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
            let header = answer
                .lines()
                .find_map(|line| line.strip_prefix("sec-websocket-protocol: "));
            assert_eq!(header.unwrap_or("none"), selected);
            let role = async_tungstenite::tungstenite::protocol::Role::Client;
            let mut socket = WebSocketStream::from_raw_socket(Bridge::new(stream), role, None).await;
            socket.send(Message::text("protocol")).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::text(selected));
        }
        server.end().await;
    });
}

#[test]
fn other_requests_are_refused() {
    on_each_driver(async || {
        let server = start(echo()).await;
        let client = client::plain();
        let response = client.request(support::get(&server.uri("/"))).await.unwrap();
        assert_eq!(response.status(), StatusCode::UPGRADE_REQUIRED);
        let old = Request::get(server.uri("/"))
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-version", "8");
        let response = client.request(old.body(Default::default()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let response = support::h2_client()
            .request(support::get(&server.uri("/")))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        server.end().await;
    });
}

/// RFC 8441: an extended CONNECT. The client writes and reads the frames itself.
#[test]
fn over_http2() {
    on_each_driver(async || {
        let server = start(echo()).await;
        let stream = Bridge::new(server.connect().await).into_send();
        let (mut sender, connection) = hyper::client::conn::http2::handshake(windlass::hyper::Executor, stream)
            .await
            .unwrap();
        windlass::spawn(connection);
        let mut request = Request::builder()
            .method(Method::CONNECT)
            .version(Version::HTTP_2)
            .uri(server.uri("/"))
            .header("sec-websocket-version", "13")
            .body(Empty::<Bytes>::new())
            .unwrap();
        request.extensions_mut().insert(Protocol::from_static("websocket"));
        sender.ready().await.unwrap();
        let response = loop {
            // The server's settings, which allow it, may not have arrived yet.
            match sender.send_request(request.clone()).await {
                Ok(response) => break response,
                Err(_) => windlass::task::yield_now().await,
            }
        };
        assert_eq!(response.status(), StatusCode::OK);
        let mut upgraded = hyper::upgrade::on(response).await.unwrap();
        // A masked text frame, and its echo without a mask.
        let frame = [0x81, 0x82, 0, 0, 0, 0, b'h', b'i'];
        let mut written = 0;
        while written < frame.len() {
            let write = std::future::poll_fn(|cx| std::pin::Pin::new(&mut upgraded).poll_write(cx, &frame[written..]));
            written += write.await.unwrap();
        }
        let mut answer = Vec::new();
        while answer.len() < 4 {
            let mut bytes = [0; 16];
            let mut buf = ReadBuf::new(&mut bytes);
            std::future::poll_fn(|cx| std::pin::Pin::new(&mut upgraded).poll_read(cx, buf.unfilled()))
                .await
                .unwrap();
            assert!(!buf.filled().is_empty());
            answer.extend_from_slice(buf.filled());
        }
        assert_eq!(answer, [0x81, 2, b'h', b'i']);
        drop((upgraded, sender));
        server.end().await;
    });
}

/// Open sockets count as connections, learn of the stop, and are cut after the grace period.
#[test]
fn shutdown() {
    on_each_driver(async || {
        async fn polite(ws: WebSocketUpgrade) -> Response {
            let stopping = windlass_web::stopping();
            ws.on_upgrade(
                async move |mut socket: WebSocket| match select(socket.recv(), stopping).await {
                    Either::Left(_) => panic!("nothing is sent"),
                    Either::Right(()) => {
                        let frame = CloseFrame {
                            code: 1001.into(),
                            reason: "going away".into(),
                        };
                        let _ = socket.close(Some(frame)).await;
                        while socket.recv().await.is_some() {}
                    }
                },
            )
        }
        let server = start_with(Server::new().max_connections(1), Router::new().route("/", any(polite))).await;
        let mut socket = connect(&server).await;
        let second = server.connect().await; // beyond the limit: not accepted
        let second =
            windlass::spawn(async move { client_async("ws://localhost/", Bridge::new(second)).await.is_err() });
        server.stop.cancel();
        let Message::Close(Some(frame)) = socket.next().await.unwrap().unwrap() else {
            panic!("the server closes the socket");
        };
        assert_eq!(frame.reason.as_str(), "going away");
        while socket.next().await.is_some() {}
        server.end().await;
        assert!(second.await.unwrap(), "refused");

        // One that ignores it.
        let dropped = ThreadBound::new(Rc::new(()));
        let kept = Rc::downgrade(&*dropped);
        let stubborn = async move |ws: WebSocketUpgrade| {
            let dropped = dropped.clone();
            ws.on_upgrade(async move |_socket| {
                let _dropped = dropped;
                std::future::pending::<()>().await;
            })
        };
        let app = Router::new().route("/", any(stubborn));
        let server = start_with(Server::new().grace(Duration::from_millis(20)), app).await;
        let mut socket = connect(&server).await;
        server.end().await;
        assert!(socket.next().await.is_none_or(|message| message.is_err()));
        assert_eq!(kept.strong_count(), 0);
    });
}
