//! Time limits as tower layers, on the loop's timers. Those of tower and tower-http need tokio's runtime.
//!
//! [`RequestTimeoutLayer`] answers a late request itself, so it fits axum's `Router::layer`. [`TimeoutLayer`] fails with
//! [`Elapsed`], for clients and other services.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;
use windlass::time::timeout;

pub use windlass::time::Elapsed;

use crate::BoxError;

/// Fails calls that take too long, with [`Elapsed`]. The future of the call is dropped.
///
/// ```
/// use std::time::Duration;
/// use tower::{Layer, ServiceExt, service_fn};
/// use windlass_web::timeout::{Elapsed, TimeoutLayer};
///
/// # windlass::run(async {
/// let never = service_fn(async |_: u32| std::future::pending::<Result<u32, std::io::Error>>().await);
/// let error = TimeoutLayer::new(Duration::from_millis(1)).layer(never).oneshot(7).await.unwrap_err();
/// assert!(error.is::<Elapsed>());
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TimeoutLayer {
    limit: Duration,
}

impl TimeoutLayer {
    /// A layer with this limit from the call to the result.
    pub const fn new(limit: Duration) -> TimeoutLayer {
        TimeoutLayer { limit }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Timeout<S> {
        Timeout {
            inner,
            limit: self.limit,
        }
    }
}

/// The service of [`TimeoutLayer`].
#[derive(Clone, Copy, Debug)]
pub struct Timeout<S> {
    inner: S,
    limit: Duration,
}

impl<S, R> Service<R> for Timeout<S>
where
    S: Service<R, Error: Into<BoxError>>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = TimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> TimeoutFuture<S::Future> {
        TimeoutFuture {
            limited: timeout(self.limit, self.inner.call(request)),
        }
    }
}

pin_project! {
    /// The future of [`Timeout`].
    #[derive(Debug)]
    pub struct TimeoutFuture<F> {
        #[pin]
        limited: windlass::time::Timeout<F>,
    }
}

impl<F, T, E> Future for TimeoutFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, BoxError>> {
        Poll::Ready(match ready!(self.project().limited.poll(cx)) {
            Ok(result) => result.map_err(Into::into),
            Err(elapsed) => Err(elapsed.into()),
        })
    }
}

/// Answers requests that take too long with a status and an empty body. The future of the handler is dropped.
///
/// The limit ends with the response's headers: the body may take longer.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, http::StatusCode, routing::get};
/// use windlass_web::timeout::RequestTimeoutLayer;
///
/// let app: Router = Router::new()
///     .route("/slow", get(async || windlass::time::sleep(Duration::from_secs(60)).await))
///     .layer(RequestTimeoutLayer::new(StatusCode::SERVICE_UNAVAILABLE, Duration::from_secs(10)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RequestTimeoutLayer {
    status: StatusCode,
    limit: Duration,
}

impl RequestTimeoutLayer {
    /// A layer that answers with this status after this limit.
    pub const fn new(status: StatusCode, limit: Duration) -> RequestTimeoutLayer {
        RequestTimeoutLayer { status, limit }
    }
}

impl<S> Layer<S> for RequestTimeoutLayer {
    type Service = RequestTimeout<S>;

    fn layer(&self, inner: S) -> RequestTimeout<S> {
        RequestTimeout { inner, layer: *self }
    }
}

/// The service of [`RequestTimeoutLayer`].
#[derive(Clone, Copy, Debug)]
pub struct RequestTimeout<S> {
    inner: S,
    layer: RequestTimeoutLayer,
}

impl<S, A, B> Service<Request<A>> for RequestTimeout<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    B: Default,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = RequestTimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> RequestTimeoutFuture<S::Future> {
        RequestTimeoutFuture {
            limited: timeout(self.layer.limit, self.inner.call(request)),
            status: self.layer.status,
        }
    }
}

pin_project! {
    /// The future of [`RequestTimeout`].
    #[derive(Debug)]
    pub struct RequestTimeoutFuture<F> {
        #[pin]
        limited: windlass::time::Timeout<F>,
        status: StatusCode,
    }
}

impl<F, B, E> Future for RequestTimeoutFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Default,
{
    type Output = Result<Response<B>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Response<B>, E>> {
        let this = self.project();
        Poll::Ready(ready!(this.limited.poll(cx)).unwrap_or_else(|_elapsed| {
            let mut late = Response::new(B::default());
            *late.status_mut() = *this.status;
            Ok(late)
        }))
    }
}
