//! WebSockets for axum: an extractor like `axum::extract::ws`, which needs tokio's runtime.
//!
//! ```
//! use axum::{Router, response::Response, routing::any};
//! use windlass_web::ws::{Message, WebSocket, WebSocketUpgrade};
//!
//! async fn echo(ws: WebSocketUpgrade) -> Response {
//!     ws.on_upgrade(async |mut socket: WebSocket| {
//!         while let Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) = socket.recv().await {
//!             if socket.send(message).await.is_err() {
//!                 break;
//!             }
//!         }
//!     })
//! }
//!
//! let app: Router = Router::new().route("/echo", any(echo));
//! ```
//!
//! It works over HTTP/1.1 and, for clients with RFC 8441, over HTTP/2. The handler is a task of the connection: it counts as
//! an open connection, and when the server stops it has the grace period. To end earlier, it waits for
//! [`stopping`](crate::stopping) too.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use async_tungstenite::WebSocketStream;
use async_tungstenite::tungstenite::handshake::derive_accept_key;
use async_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use axum_core::body::Body;
use axum_core::extract::FromRequestParts;
use axum_core::response::{IntoResponse, Response};
use futures_core::Stream;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use hyper::rt::{Read, ReadBuf, Write};
use hyper::upgrade::OnUpgrade;
use windlass::task::{JoinSet, TaskLocal};

pub use async_tungstenite::tungstenite::protocol::CloseFrame;
pub use async_tungstenite::tungstenite::{Error, Message};

/// Tungstenite's default of 128 KiB would be most of the memory of an idle connection.
const READ_BUFFER: usize = 16 * 1024;

/// Extracts a WebSocket handshake from a request. Route it with `axum::routing::any`: HTTP/2 uses the method CONNECT.
#[must_use = "the connection is upgraded by `on_upgrade`, and by returning its response"]
pub struct WebSocketUpgrade {
    config: WebSocketConfig,
    /// `None` over HTTP/2.
    key: Option<HeaderValue>,
    offered: Vec<String>,
    protocol: Option<HeaderValue>,
    upgrade: OnUpgrade,
}

impl WebSocketUpgrade {
    /// The largest message that is received. The default is 64 MiB.
    pub fn max_message_size(mut self, bytes: usize) -> WebSocketUpgrade {
        self.config = self.config.max_message_size(Some(bytes)).max_frame_size(Some(bytes));
        self
    }

    /// tungstenite's settings.
    pub fn config(&mut self) -> &mut WebSocketConfig {
        &mut self.config
    }

    /// The subprotocols that the client offers.
    pub fn requested_protocols(&self) -> impl Iterator<Item = &str> {
        self.offered.iter().map(String::as_str)
    }

    /// Selects the first of these subprotocols that the client offers, if any.
    pub fn protocols<'a>(mut self, known: impl IntoIterator<Item = &'a str>) -> WebSocketUpgrade {
        let selected = known
            .into_iter()
            .find(|known| self.offered.iter().any(|offered| offered == known));
        self.protocol = selected.and_then(|selected| HeaderValue::from_str(selected).ok());
        self
    }

    /// The response that accepts the handshake. `handler` runs in a task of its own on this loop; it need not be `Send`.
    /// If the client is gone before the upgrade, it does not run.
    pub fn on_upgrade<F: Future<Output = ()> + 'static>(
        self,
        handler: impl FnOnce(WebSocket) -> F + 'static,
    ) -> Response {
        let WebSocketUpgrade {
            config,
            key,
            protocol,
            upgrade,
            ..
        } = self;
        let selected = protocol.clone();
        Upgraded::spawn(async move {
            let Ok(upgraded) = upgrade.await else {
                return;
            };
            let inner =
                WebSocketStream::from_raw_socket(UpgradedStream { inner: Some(upgraded) }, Role::Server, Some(config))
                    .await;
            handler(WebSocket {
                inner,
                protocol: selected,
            })
            .await;
        });
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        if let Some(protocol) = protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        if let Some(key) = key {
            let accept = derive_accept_key(key.as_bytes()); // base64
            headers.insert(
                SEC_WEBSOCKET_ACCEPT,
                HeaderValue::from_str(&accept).expect("base64 is a header value"),
            );
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        }
        response
    }
}

impl<S: Send + Sync> FromRequestParts<S> for WebSocketUpgrade {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<WebSocketUpgrade, Response> {
        let key = check_handshake(parts).map_err(IntoResponse::into_response)?;
        let upgrade = parts
            .extensions
            .remove::<OnUpgrade>()
            .ok_or_else(|| (StatusCode::UPGRADE_REQUIRED, "this connection cannot be upgraded\n").into_response())?;
        let offered = parts.headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
        let offered = offered
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        Ok(WebSocketUpgrade {
            config: WebSocketConfig::default().read_buffer_size(READ_BUFFER),
            key,
            offered: offered.map(|protocol| protocol.trim().to_owned()).collect(),
            protocol: None,
            upgrade,
        })
    }
}

impl fmt::Debug for WebSocketUpgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketUpgrade")
            .field("config", &self.config)
            .field("offered", &self.offered)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

/// Returns the key of an HTTP/1.1 handshake (RFC 6455, section 4.2.1); an HTTP/2 one has none (RFC 8441, section 5).
fn check_handshake(parts: &Parts) -> Result<Option<HeaderValue>, (StatusCode, &'static str)> {
    let headers = &parts.headers;
    let key = if parts.version <= Version::HTTP_11 {
        if parts.method != Method::GET {
            return Err((
                StatusCode::METHOD_NOT_ALLOWED,
                "a WebSocket handshake is a GET request\n",
            ));
        }
        if !has_token(headers, CONNECTION, "upgrade") || !has_token(headers, UPGRADE, "websocket") {
            return Err((StatusCode::UPGRADE_REQUIRED, "this is a WebSocket\n"));
        }
        let missing = (StatusCode::BAD_REQUEST, "the handshake has no sec-websocket-key\n");
        Some(headers.get(SEC_WEBSOCKET_KEY).ok_or(missing)?.clone())
    } else {
        let protocol = parts.extensions.get::<hyper::ext::Protocol>();
        if parts.method != Method::CONNECT || protocol.is_none_or(|protocol| protocol.as_str() != "websocket") {
            return Err((
                StatusCode::METHOD_NOT_ALLOWED,
                "over HTTP/2, a WebSocket handshake is an extended CONNECT\n",
            ));
        }
        None
    };
    if headers
        .get(SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version.as_bytes() != b"13")
    {
        return Err((StatusCode::BAD_REQUEST, "the version of the WebSocket is not 13\n"));
    }
    Ok(key)
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().eq_ignore_ascii_case(token))
}

/// A WebSocket connection: also a `Stream` of messages. Pings are answered while it is read.
#[derive(Debug)]
pub struct WebSocket {
    inner: WebSocketStream<UpgradedStream>,
    protocol: Option<HeaderValue>,
}

impl WebSocket {
    /// The next message; `None` after the close handshake. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Result<Message, Error>> {
        poll_fn(|cx| Pin::new(&mut self.inner).poll_next(cx)).await
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// If the connection is closed, or the message is larger than the limits of the [configuration](WebSocketUpgrade::config).
    pub async fn send(&mut self, message: impl Into<Message>) -> Result<(), Error> {
        self.inner.send(message.into()).await
    }

    /// Begins the close handshake. Read until `None` to complete it.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub async fn close(&mut self, frame: Option<CloseFrame>) -> Result<(), Error> {
        self.inner.close(frame).await
    }

    /// The selected subprotocol.
    pub fn protocol(&self) -> Option<&str> {
        self.protocol.as_ref().and_then(|protocol| protocol.to_str().ok())
    }

    /// The stream of async-tungstenite, which can be split into two halves.
    pub fn into_inner(self) -> WebSocketStream<UpgradedStream> {
        self.inner
    }
}

impl Stream for WebSocket {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        Pin::new(&mut self.inner).poll_next(cx)
    }
}

/// An upgraded connection with the traits of futures-io.
///
/// Dropped, it is shut down in the background: what was sent reaches the client, and so does TLS' close_notify.
#[derive(Debug)]
pub struct UpgradedStream {
    /// `None` only while it is dropped.
    inner: Option<hyper::upgrade::Upgraded>,
}

impl UpgradedStream {
    fn inner(self: Pin<&mut Self>) -> Pin<&mut hyper::upgrade::Upgraded> {
        Pin::new(self.get_mut().inner.as_mut().expect("not dropped"))
    }
}

impl Drop for UpgradedStream {
    fn drop(&mut self) {
        // Without its connection, it is being cancelled.
        if let (Some(mut inner), Some(tasks)) = (self.inner.take(), Upgraded::current()) {
            drop(tasks.borrow().spawn(async move {
                let _ = poll_fn(|cx| Pin::new(&mut inner).poll_shutdown(cx)).await;
            }));
        }
    }
}

impl futures_io::AsyncRead for UpgradedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(buf);
        ready!(self.inner().poll_read(cx, buf.unfilled()))?;
        Poll::Ready(Ok(buf.filled().len()))
    }
}

impl futures_io::AsyncWrite for UpgradedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.inner().poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(cx)
    }
}

/// The tasks of a connection's WebSockets. The connection waits for them, and cancels them when it is dropped.
pub(crate) struct Upgraded(Rc<RefCell<JoinSet<()>>>);

static UPGRADED: TaskLocal<Weak<RefCell<JoinSet<()>>>> = TaskLocal::new();

impl Upgraded {
    /// Collects the WebSockets of this task and of the tasks that it spawns: one per request over HTTP/2.
    pub(crate) fn of_this_task() -> Upgraded {
        let tasks = Rc::new(RefCell::new(JoinSet::new()));
        UPGRADED.set(Rc::downgrade(&tasks));
        Upgraded(tasks)
    }

    /// Waits for all of them.
    pub(crate) async fn ended(self) {
        while poll_fn(|cx| self.0.borrow_mut().poll_join_next(cx)).await.is_some() {}
    }

    fn current() -> Option<Rc<RefCell<JoinSet<()>>>> {
        UPGRADED.try_get()?.upgrade()
    }

    fn spawn(task: impl Future<Output = ()> + 'static) {
        match Upgraded::current() {
            Some(tasks) => drop(tasks.borrow().spawn(task)),
            None => drop(windlass::spawn(task)), // not a server of this crate
        }
    }
}
