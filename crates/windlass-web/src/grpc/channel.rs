//! The client's side: a pooled HTTP/2 connection to one server.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::USER_AGENT;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use tonic::{Code, Status, body::Body};
use tower_service::Service;

use super::deadline::{Deadline, DeadlineFuture};
use super::{DeadlineBody, DeadlineLayer};
use crate::client::{self, Client, Connector};
use tower_layer::Layer;

/// A connection to a gRPC server, for the generated clients of tonic: `GreeterClient::new(channel)`.
///
/// It connects at the first call, and again after a failure or when the server goes away; calls share one HTTP/2 connection.
/// Clones are cheap and share it too. The deadline of a call is `Request::set_timeout`, or [`Builder::timeout`]; past it, the
/// call, including the messages of its stream, ends with `Code::DeadlineExceeded`. A connection that cannot be opened, or that
/// is lost, is `Code::Unavailable`.
///
/// It is `Send`, so that handlers can own one. Use it on one loop, as [`client::Client`].
#[derive(Clone)]
pub struct Channel {
    service: Deadline<Origin>,
}

impl Channel {
    /// A channel to `uri`, such as `http://[::1]:50051`. For `https`, use [`builder`](Channel::builder) with `tls`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `uri` is invalid, or has no scheme or host.
    pub fn new(uri: impl TryInto<Uri, Error: Into<http::Error>>) -> io::Result<Channel> {
        Channel::builder().build(uri)
    }

    /// Settings of a channel.
    pub fn builder() -> Builder {
        let mut http = client::builder();
        http.http2_only(true).http2_adaptive_window(true);
        Builder {
            http,
            connector: Connector::plain(),
            timeout: None,
            user_agent: HeaderValue::from_static(concat!("windlass-web/", env!("CARGO_PKG_VERSION"))),
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

/// Settings of a [`Channel`].
///
/// ```
/// use std::time::Duration;
/// use windlass_web::grpc::Channel;
///
/// let channel = Channel::builder()
///     .timeout(Duration::from_secs(5)) // of each call
///     .keep_alive(Duration::from_secs(30), Duration::from_secs(10))
///     .build("http://127.0.0.1:50051")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub struct Builder {
    http: legacy::Builder,
    connector: Connector,
    timeout: Option<Duration>,
    user_agent: HeaderValue,
}

impl Builder {
    /// The longest time for a call, if it has no earlier deadline of its own. There is none by default.
    pub fn timeout(mut self, limit: Duration) -> Builder {
        self.timeout = Some(limit);
        self
    }

    /// Sends a ping after `interval` without traffic, also while there is no call. If it is not answered within `timeout`,
    /// the connection is closed and its calls end with `Code::Unavailable`. Off by default; servers may refuse frequent pings.
    pub fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Builder {
        self.http
            .http2_keep_alive_interval(interval)
            .http2_keep_alive_timeout(timeout)
            .http2_keep_alive_while_idle(true);
        self
    }

    /// The time limit for lookup, connection and TLS handshake together. The default is 10 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Builder {
        self.connector = self.connector.connect_timeout(limit);
        self
    }

    /// The configuration of rustls for `https`. ALPN is set to HTTP/2.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, mut config: windlass::tls::rustls::ClientConfig) -> Builder {
        config.alpn_protocols = vec![b"h2".to_vec()];
        self.connector = self.connector.replace_tls(config);
        self
    }

    /// `https` with Mozilla's root certificates.
    #[cfg(feature = "webpki-roots")]
    pub fn webpki_roots(self) -> Builder {
        self.tls(client::webpki_config())
    }

    /// The header `user-agent`.
    pub fn user_agent(mut self, name: HeaderValue) -> Builder {
        self.user_agent = name;
        self
    }

    /// hyper-util's settings of the connection: window sizes, frame sizes, buffers.
    pub fn http(mut self, set: impl FnOnce(&mut legacy::Builder)) -> Builder {
        set(&mut self.http);
        self
    }

    /// The channel to `uri`. It connects at the first call.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `uri` is invalid, or has no scheme or host.
    pub fn build(self, uri: impl TryInto<Uri, Error: Into<http::Error>>) -> io::Result<Channel> {
        let invalid = |error: http::Error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let parts = uri.try_into().map_err(|error| invalid(error.into()))?.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            let message = "the address of a gRPC server has a scheme and a host, such as http://localhost:50051";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        let mut deadline = DeadlineLayer::new();
        if let Some(limit) = self.timeout {
            deadline = deadline.at_most(limit);
        }
        let client = self.http.build(self.connector);
        let origin = Origin {
            client,
            scheme,
            authority,
            user_agent: self.user_agent,
        };
        Ok(Channel {
            service: deadline.layer(origin),
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<DeadlineBody<StatusBody>>;
    type Error = Status;
    type Future = DeadlineFuture<ChannelFuture>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> DeadlineFuture<ChannelFuture> {
        self.service.call(request)
    }
}

/// A response's body, with the errors of gRPC.
type StatusBody = http_body_util::combinators::MapErr<Incoming, fn(hyper::Error) -> Status>;

/// Completes the URI of requests, which have a path only.
#[derive(Clone)]
struct Origin {
    client: Client<Body>,
    scheme: Scheme,
    authority: Authority,
    user_agent: HeaderValue,
}

impl Service<Request<Body>> for Origin {
    type Response = Response<StatusBody>;
    type Error = Status;
    type Future = ChannelFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> ChannelFuture {
        let mut uri = std::mem::take(request.uri_mut()).into_parts();
        uri.scheme = Some(self.scheme.clone());
        uri.authority = Some(self.authority.clone());
        uri.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
        *request.uri_mut() = Uri::from_parts(uri).expect("scheme, authority and path make a URI");
        request
            .headers_mut()
            .entry(USER_AGENT)
            .or_insert_with(|| self.user_agent.clone());
        ChannelFuture(self.client.request(request))
    }
}

/// The future of a call until its response's headers.
#[derive(Debug)]
pub struct ChannelFuture(legacy::ResponseFuture);

impl Future for ChannelFuture {
    type Output = Result<Response<StatusBody>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|result| match result {
            Ok(response) => Ok(response.map(|body| http_body_util::BodyExt::map_err(body, body_error as fn(_) -> _))),
            Err(error) => Err(status(error.is_connect(), Box::new(error))),
        })
    }
}

fn body_error(error: hyper::Error) -> Status {
    status(false, Box::new(error))
}

/// The status for an error of the transport. The codes are those of the gRPC specification for HTTP/2
/// (PROTOCOL-HTTP2.md, "Errors"); a lost connection is UNAVAILABLE.
fn status(is_connect: bool, error: crate::BoxError) -> Status {
    let chain = || std::iter::successors(Some(&*error as &(dyn Error + 'static)), |&error| error.source());
    let reason = chain()
        .find_map(|error| error.downcast_ref::<h2::Error>())
        .and_then(h2::Error::reason);
    let code = match reason {
        _ if is_connect => Code::Unavailable,
        None | Some(h2::Reason::REFUSED_STREAM) => Code::Unavailable,
        Some(h2::Reason::CANCEL) => Code::Cancelled,
        Some(h2::Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(h2::Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        Some(_) => Code::Internal,
    };
    let message = chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
    let mut status = Status::new(code, message);
    status.set_source(error.into());
    status
}
