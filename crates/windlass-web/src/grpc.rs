//! gRPC with tonic: a channel for generated clients, and deadlines for servers. tonic's own transport needs tokio's runtime.
//!
//! ```
//! # mod greeter { include!("../examples/support/greeter.rs"); }
//! # use greeter::*;
//! use tonic::{Request, Response, Status, service::Routes};
//! use windlass_web::grpc::{Channel, DeadlineLayer};
//! use tower::Layer;
//!
//! struct Polite;
//!
//! #[tonic::async_trait]
//! impl greeter_server::Greeter for Polite {
//!     async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
//!         Ok(Response::new(HelloReply { message: format!("hello {}", request.into_inner().name) }))
//!     }
//! #   type CountStream = futures_util::stream::Empty<Result<HelloReply, Status>>;
//! #   async fn count(&self, _: Request<HelloRequest>) -> Result<Response<Self::CountStream>, Status> { todo!() }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! windlass::run(async {
//!     // The server: several services in `Routes`, or one alone. The layer applies the deadlines of clients.
//!     let listener = windlass::net::TcpListener::bind("127.0.0.1:0").await?;
//!     let uri = format!("http://{}", listener.local_addr()?);
//!     let app = DeadlineLayer::new().layer(Routes::new(greeter_server::GreeterServer::new(Polite)));
//!     windlass::spawn(async { windlass_web::serve(listener, app).await });
//!
//!     // The client.
//!     let mut client = greeter_client::GreeterClient::new(Channel::new(uri)?);
//!     let reply = client.say_hello(HelloRequest { name: "ada".into() }).await?;
//!     assert_eq!(reply.into_inner().message, "hello ada");
//!     Ok(())
//! })?
//! # }
//! ```
//!
//! The crate tonic is needed without its feature `transport`: `default-features = false, features = ["codegen", "router"]`.

mod channel;
mod deadline;

pub use self::channel::{Builder, Channel, ChannelFuture};
pub use self::deadline::{Deadline, DeadlineBody, DeadlineFuture, DeadlineLayer};
