//! gRPC with tonic: `cargo run --release --features grpc --example grpc -- serve`, then `... -- call ada`.

use std::time::Duration;

use futures_util::stream::{self, Stream};
use tonic::{Request, Response, Status};
use tower::Layer;
use windlass::net::TcpListener;
use windlass_web::grpc::{Channel, DeadlineLayer};

#[allow(clippy::all, unreachable_pub, missing_docs, reason = "generated code")]
#[path = "support/greeter.rs"]
mod greeter;

use greeter::greeter_client::GreeterClient;
use greeter::greeter_server::{Greeter, GreeterServer};
use greeter::{HelloReply, HelloRequest};

struct Polite;

#[tonic::async_trait]
impl Greeter for Polite {
    async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply {
            message: format!("hello {}", request.into_inner().name),
        }))
    }

    type CountStream = std::pin::Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

    async fn count(&self, request: Request<HelloRequest>) -> Result<Response<Self::CountStream>, Status> {
        let name = request.into_inner().name;
        let numbers = stream::unfold((1, name), async |(number, name)| {
            windlass::time::sleep(Duration::from_millis(100)).await;
            Some((
                Ok(HelloReply {
                    message: format!("{number}, {name}"),
                }),
                (number + 1, name),
            ))
        });
        Ok(Response::new(Box::pin(numbers)))
    }
}

async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let app = DeadlineLayer::new().layer(GreeterServer::new(Polite));
    Ok(windlass_web::serve(TcpListener::bind("127.0.0.1:50051").await?, app).await?)
}

async fn call(name: String) -> Result<(), Box<dyn std::error::Error>> {
    let channel = Channel::builder().keep_alive(Duration::from_secs(10), Duration::from_secs(5));
    let mut client = GreeterClient::new(channel.build("http://127.0.0.1:50051")?);
    println!(
        "{}",
        client
            .say_hello(HelloRequest { name: name.clone() })
            .await?
            .into_inner()
            .message
    );
    let mut request = Request::new(HelloRequest { name });
    request.set_timeout(Duration::from_secs(1)); // the stream has no end of its own
    let mut replies = client.count(request).await?.into_inner();
    loop {
        match replies.message().await {
            Ok(Some(reply)) => println!("{}", reply.message),
            Ok(None) => return Ok(()),
            Err(status) if status.code() == tonic::Code::DeadlineExceeded => return Ok(()),
            Err(status) => return Err(status.into()),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("serve") => windlass::run(serve())?,
        Some("call") => windlass::run(call(args.next().unwrap_or("you".to_owned())))?,
        _ => Err("usage: grpc serve | grpc call [NAME]".into()),
    }
}
