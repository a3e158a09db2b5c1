//! The services that can be served.

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use tower_service::Service;

use crate::BoxError;

/// A tower service of HTTP requests: axum's `Router`, tonic's `Routes` and generated servers, `tower::service_fn`, and any of
/// them under layers. The implementation is automatic. Neither the service nor its futures and bodies need be `Send`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be served",
    note = "it needs to be `Clone + 'static` and a `tower::Service<http::Request<hyper::body::Incoming>>` that returns an `http::Response`",
    note = "a `Router<State>` of axum becomes a service by `with_state`"
)]
pub trait App:
    Service<Request<Incoming>, Response = Response<Self::Body>, Error: Into<BoxError>, Future: 'static> + Clone + 'static
{
    /// The body of its responses.
    type Body: Body<Data: 'static, Error: Into<BoxError>> + 'static;
}

impl<S, B> App for S
where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: 'static> + Clone + 'static,
    B: Body<Data: 'static, Error: Into<BoxError>> + 'static,
{
    type Body = B;
}
