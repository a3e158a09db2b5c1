//! Deadlines: the `grpc-timeout` of a request, for the whole call.
//!
//! tonic's servers and clients end the limit with the response's headers. gRPC's deadline includes the messages of a stream,
//! so the response's body has the limit too. Past it, the caller gets the status DEADLINE_EXCEEDED, as a response without
//! messages or as the trailers of a stream: the same for a server, which sends them, and for a client, which reads them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;
use windlass::time::{Sleep, sleep};

/// Ends calls at their deadline, with the status DEADLINE_EXCEEDED: for a server. The handler's future, or its stream, is
/// dropped. [`Channel`](super::Channel) does the same for a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeadlineLayer {
    at_most: Option<Duration>,
}

impl DeadlineLayer {
    /// A layer for the deadlines that clients ask for.
    pub const fn new() -> DeadlineLayer {
        DeadlineLayer { at_most: None }
    }

    /// Sets a limit for every call, also of clients that ask for a later deadline or none.
    #[must_use]
    pub const fn at_most(self, limit: Duration) -> DeadlineLayer {
        DeadlineLayer { at_most: Some(limit) }
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline {
            inner,
            at_most: self.at_most,
        }
    }
}

/// The service of [`DeadlineLayer`].
#[derive(Clone, Copy, Debug)]
pub struct Deadline<S> {
    inner: S,
    at_most: Option<Duration>,
}

impl<S, A, B> Service<Request<A>> for Deadline<S>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    type Response = Response<DeadlineBody<B>>;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> DeadlineFuture<S::Future> {
        let asked = request.headers().get("grpc-timeout").and_then(parse);
        let limit = [asked, self.at_most].into_iter().flatten().min();
        DeadlineFuture {
            inner: self.inner.call(request),
            sleep: limit.map(|limit| Box::pin(sleep(limit))),
        }
    }
}

/// At most eight digits and a unit.
fn parse(value: &HeaderValue) -> Option<Duration> {
    let (digits, unit) = value.to_str().ok()?.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// The status of a call past its deadline.
fn exceeded() -> HeaderMap {
    HeaderMap::from_iter([
        (
            tonic::Status::GRPC_STATUS.clone(),
            HeaderValue::from(tonic::Code::DeadlineExceeded as i32),
        ),
        (
            tonic::Status::GRPC_MESSAGE.clone(),
            HeaderValue::from_static("the deadline has passed"),
        ),
    ])
}

pin_project! {
    /// The future of [`Deadline`].
    #[derive(Debug)]
    pub struct DeadlineFuture<F> {
        #[pin]
        inner: F,
        sleep: Option<Pin<Box<Sleep>>>,
    }
}

impl<F, B, E> Future for DeadlineFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<DeadlineBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(result) = this.inner.poll(cx) {
            let sleep = this.sleep.take();
            return Poll::Ready(result.map(|response| {
                response.map(|body| DeadlineBody {
                    inner: Some(body),
                    sleep,
                })
            }));
        }
        let Some(sleep) = this.sleep else {
            return Poll::Pending;
        };
        ready!(sleep.as_mut().poll(cx));
        let mut response = Response::new(DeadlineBody::default());
        *response.headers_mut() = exceeded();
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        Poll::Ready(Ok(response))
    }
}

pin_project! {
    /// The body of [`Deadline`]'s responses.
    #[derive(Debug)]
    pub struct DeadlineBody<B> {
        // `None` past the deadline.
        #[pin]
        inner: Option<B>,
        sleep: Option<Pin<Box<Sleep>>>,
    }
}

/// An empty body, for interceptors that refuse a call.
impl<B> Default for DeadlineBody<B> {
    fn default() -> DeadlineBody<B> {
        DeadlineBody {
            inner: None,
            sleep: None,
        }
    }
}

impl<B: Body> Body for DeadlineBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = inner.poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let Some(sleep) = this.sleep else {
            return Poll::Pending;
        };
        ready!(sleep.as_mut().poll(cx));
        this.inner.set(None);
        Poll::Ready(Some(Ok(Frame::trailers(exceeded()))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        // With a deadline, the body may end early.
        match (&self.inner, &self.sleep) {
            (Some(inner), None) => inner.size_hint(),
            (Some(_), Some(_)) => SizeHint::default(),
            (None, _) => SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_limits_of_the_header() {
        let parse = |value| parse(&HeaderValue::from_static(value));
        assert_eq!(parse("3H"), Some(Duration::from_secs(10_800)));
        assert_eq!(parse("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse("42S"), Some(Duration::from_secs(42)));
        assert_eq!(parse("99999999m"), Some(Duration::from_millis(99_999_999)));
        assert_eq!(parse("1u"), Some(Duration::from_micros(1)));
        assert_eq!(parse("0n"), Some(Duration::ZERO));
        for wrong in ["", "S", "1", "1s", "+1S", "-1S", "100000000S", "1 S", "1.5S"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
