//! tonic: every kind of call, deadlines, keep-alive, reconnecting; and with tonic's own transport at the other end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status, Streaming};
use tower::Layer;
use windlass::net::{TcpListener, TcpStream};
use windlass_web::grpc::{Channel, DeadlineLayer};
use windlass_web::{Server, client};

use crate::echo::Message;
use crate::echo::echo_client::EchoClient;
use crate::echo::echo_server::{Echo, EchoServer};
use crate::support::{certificates, get_text, on_each_driver, start, start_at, start_with};

/// Which runtime's sleep the service uses.
#[derive(Clone, Copy)]
enum Clock {
    Windlass,
    Tokio,
}

/// Counts the calls that run.
#[derive(Clone)]
struct Service {
    running: Arc<AtomicUsize>,
    clock: Clock,
}

struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Running {
        count.fetch_add(1, SeqCst);
        Running(count.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

type Messages = Pin<Box<dyn Stream<Item = Result<Message, Status>> + Send>>;

impl Service {
    fn new(clock: Clock) -> Service {
        Service {
            running: Arc::default(),
            clock,
        }
    }

    async fn obey(&self, message: &Message) -> Result<(), Status> {
        match message.text.as_str() {
            "fail" => Err(Status::failed_precondition("as asked: 100 % € \n")),
            "wait" => {
                let _running = Running::new(&self.running);
                match self.clock {
                    Clock::Windlass => windlass::time::sleep(Duration::from_secs(3600)).await,
                    Clock::Tokio => tokio::time::sleep(Duration::from_secs(3600)).await,
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl Echo for Service {
    async fn unary(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        let mark = request.metadata().get("x-mark").cloned();
        self.obey(request.get_ref()).await?;
        let mut response = Response::new(request.into_inner());
        if let Some(mark) = mark {
            response.metadata_mut().insert("x-mark", mark);
        }
        Ok(response)
    }

    type ServerStreamStream = Messages;

    async fn server_stream(&self, request: Request<Message>) -> Result<Response<Messages>, Status> {
        let asked = request.into_inner();
        let service = self.clone();
        let count = asked.count;
        let messages = stream::iter(0..count).map(move |number| {
            Ok(Message {
                count: number,
                ..asked.clone()
            })
        });
        // After its messages, the stream waits or fails if the text asks for it.
        let end = stream::once(async move {
            let text = if count > 0 { "wait" } else { "fail" };
            service
                .obey(&Message {
                    text: text.into(),
                    ..Default::default()
                })
                .await?;
            Err(Status::internal("unreachable"))
        });
        let is_ended = count < 1000;
        Ok(Response::new(match is_ended {
            true => Box::pin(messages.chain(end)),
            false => Box::pin(messages),
        }))
    }

    async fn client_stream(&self, request: Request<Streaming<Message>>) -> Result<Response<Message>, Status> {
        let mut messages = request.into_inner();
        let (mut count, mut bytes) = (0, 0);
        while let Some(message) = messages.message().await? {
            count += message.count;
            bytes += message.payload.len();
        }
        Ok(Response::new(Message {
            count,
            text: bytes.to_string(),
            payload: Bytes::new(),
        }))
    }

    type BothStreamStream = Messages;

    async fn both_stream(&self, request: Request<Streaming<Message>>) -> Result<Response<Messages>, Status> {
        Ok(Response::new(Box::pin(request.into_inner())))
    }
}

fn message(count: u32, payload: usize) -> Message {
    Message {
        text: String::new(),
        count,
        payload: vec![7; payload].into(),
    }
}

fn text(text: &str) -> Message {
    Message {
        text: text.into(),
        ..Default::default()
    }
}

/// Every kind of call. Without a runtime: the futures of the client are polled by any.
async fn converse<T>(mut client: EchoClient<T>)
where
    T: tonic::client::GrpcService<tonic::body::Body> + Clone + 'static,
    T::Error: Into<tonic::codegen::StdError>,
    T::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<tonic::codegen::StdError> + Send,
{
    // One message each way, empty, and large: more than the windows of HTTP/2.
    for sent in [Message::default(), message(1, 1 << 20)] {
        assert!(client.unary(sent.clone()).await.unwrap().into_inner() == sent);
    }
    let mut marked = Request::new(text("hello"));
    marked.metadata_mut().insert("x-mark", "here".parse().unwrap());
    assert_eq!(
        client.unary(marked).await.unwrap().metadata().get("x-mark").unwrap(),
        "here"
    );
    let status = client.unary(text("fail")).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::FailedPrecondition, "as asked: 100 % € \n")
    );

    // Streams: from the server, 1000 messages of a kilobyte; a failing one.
    let mut answers = client.server_stream(message(1000, 1024)).await.unwrap().into_inner();
    for number in 0..1000 {
        assert_eq!(answers.message().await.unwrap().unwrap().count, number);
    }
    assert!(answers.message().await.unwrap().is_none());
    let mut answers = client.server_stream(message(0, 0)).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap_err().code(), Code::FailedPrecondition);

    // From the client.
    let sent = stream::iter(0..1000).map(|_| message(2, 1024));
    let answer = client.client_stream(sent).await.unwrap().into_inner();
    assert_eq!((answer.count, answer.text.as_str()), (2000, "1024000"));

    // Both ways, one message at a time.
    let (sender, receiver) = futures_channel();
    let mut answers = client.both_stream(receiver).await.unwrap().into_inner();
    for number in 0..100 {
        sender.send(message(number, 100)).unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap().count, number);
    }
    drop(sender);
    assert!(answers.message().await.unwrap().is_none());

    // Many at once.
    let calls = (0..100).map(|number| {
        let mut client = client.clone();
        async move { client.unary(message(number, 10)).await.unwrap().into_inner().count }
    });
    let answers = futures_util::future::join_all(calls).await;
    assert_eq!(answers, (0..100).collect::<Vec<_>>());
}

fn futures_channel() -> (
    tokio::sync::mpsc::UnboundedSender<Message>,
    impl Stream<Item = Message> + Send + 'static,
) {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    (sender, stream::poll_fn(move |cx| receiver.poll_recv(cx)))
}

fn routes(service: &Service) -> Routes {
    Routes::new(EchoServer::new(service.clone()))
}

#[test]
fn every_kind_of_call() {
    on_each_driver(async || {
        let service = Service::new(Clock::Windlass);
        let server = start(DeadlineLayer::new().layer(routes(&service))).await;
        converse(EchoClient::new(Channel::new(server.uri("")).unwrap())).await;
        server.end().await;
    });
}

#[test]
fn over_tls() {
    on_each_driver(async || {
        let (server_config, client_config) = certificates();
        let service = Service::new(Clock::Windlass);
        let server = start_with(Server::new().tls(server_config), EchoServer::new(service)).await;
        let channel = Channel::builder().tls(client_config);
        let channel = channel
            .build(format!("https://localhost:{}", server.addr.port()))
            .unwrap();
        converse(EchoClient::new(channel)).await;
        server.end().await;
    });
}

/// axum and tonic on one port.
#[test]
fn beside_axum() {
    on_each_driver(async || {
        let service = Service::new(Clock::Windlass);
        let app = routes(&service).into_axum_router().layer(DeadlineLayer::new());
        let app = Router::new().route("/health", get(async || "well")).merge(app);
        let server = start(app).await;
        assert_eq!(get_text(&client::plain(), &server.uri("/health")).await, "well");
        let mut client = EchoClient::new(Channel::new(server.uri("")).unwrap());
        assert_eq!(client.unary(text("hello")).await.unwrap().into_inner().text, "hello");
        server.end().await;
    });
}

/// A thread with tokio's runtime and tonic's server.
fn tonic_server(
    service: Service,
) -> (
    std::net::SocketAddr,
    std::thread::JoinHandle<()>,
    tokio::sync::oneshot::Sender<()>,
) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let incoming =
                tonic::transport::server::TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
            let server = tonic::transport::Server::builder().add_service(EchoServer::new(service));
            let stopped = async { drop(stopped.await) };
            server.serve_with_incoming_shutdown(incoming, stopped).await.unwrap();
        });
    });
    (addr, thread, stop)
}

#[test]
fn our_client_and_tonics_server() {
    on_each_driver(async || {
        let (addr, thread, stop) = tonic_server(Service::new(Clock::Tokio));
        let channel = Channel::new(format!("http://{addr}")).unwrap();
        converse(EchoClient::new(channel.clone())).await;
        let mut late = Request::new(text("wait"));
        late.set_timeout(Duration::from_millis(50));
        assert_eq!(
            EchoClient::new(channel).unary(late).await.unwrap_err().code(),
            Code::DeadlineExceeded
        );
        stop.send(()).unwrap();
        windlass::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
    });
}

#[test]
fn tonics_client_and_our_server() {
    on_each_driver(async || {
        let service = Service::new(Clock::Windlass);
        let server = start(DeadlineLayer::new().layer(routes(&service))).await;
        let uri = server.uri("");
        windlass::spawn_blocking(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let endpoint = tonic::transport::Endpoint::from_shared(uri).unwrap();
                let channel = endpoint.connect().await.unwrap();
                converse(EchoClient::new(channel.clone())).await;
                let mut late = Request::new(text("wait"));
                late.set_timeout(Duration::from_millis(50));
                let code = EchoClient::new(channel).unary(late).await.unwrap_err().code();
                // tonic's client may be first, with a code of its own.
                assert!(matches!(code, Code::DeadlineExceeded | Code::Cancelled), "{code:?}");
            });
        })
        .await
        .unwrap();
        server.end().await;
    });
}

/// The deadline ends the call at both ends: for one message, and within a stream.
#[test]
fn deadlines() {
    on_each_driver(async || {
        let service = Service::new(Clock::Windlass);
        let server = start(DeadlineLayer::new().layer(routes(&service))).await;
        let mut client = EchoClient::new(Channel::new(server.uri("")).unwrap());
        let late = |message| {
            let mut request = Request::new(message);
            request.set_timeout(Duration::from_secs(1));
            request
        };
        assert_eq!(
            client.unary(late(text("wait"))).await.unwrap_err().code(),
            Code::DeadlineExceeded
        );
        let mut answers = client.server_stream(late(message(3, 10))).await.unwrap().into_inner();
        let mut count = 0;
        let status = loop {
            match answers.message().await {
                Ok(Some(_)) => count += 1,
                Ok(None) => panic!("the stream does not end"),
                Err(status) => break status,
            }
        };
        assert_eq!((count, status.code()), (3, Code::DeadlineExceeded));
        while service.running.load(SeqCst) > 0 {
            windlass::time::sleep(Duration::from_millis(1)).await; // the server drops them
        }

        // The default of a channel, and the server's limit.
        let channel = Channel::builder()
            .timeout(Duration::from_millis(50))
            .build(server.uri(""))
            .unwrap();
        let status = EchoClient::new(channel).unary(text("wait")).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        server.end().await;
        let server = start(
            DeadlineLayer::new()
                .at_most(Duration::from_millis(50))
                .layer(routes(&service)),
        )
        .await;
        let mut client = EchoClient::new(Channel::new(server.uri("")).unwrap());
        assert_eq!(
            client.unary(text("wait")).await.unwrap_err().code(),
            Code::DeadlineExceeded
        );
        assert_eq!(client.unary(text("hello")).await.unwrap().into_inner().text, "hello");
        server.end().await;
    });
}

/// A dropped call is cancelled at the server.
#[test]
fn cancelling() {
    on_each_driver(async || {
        let service = Service::new(Clock::Windlass);
        let server = start(routes(&service)).await;
        let mut client = EchoClient::new(Channel::new(server.uri("")).unwrap());
        let mut caller = client.clone();
        let call = windlass::spawn(async move { caller.unary(text("wait")).await });
        while service.running.load(SeqCst) == 0 {
            windlass::time::sleep(Duration::from_millis(1)).await;
        }
        call.cancel();
        while service.running.load(SeqCst) > 0 {
            windlass::time::sleep(Duration::from_millis(1)).await;
        }
        client.unary(text("hello")).await.unwrap(); // on the same connection
        server.end().await;
    });
}

/// A network that swallows everything is noticed by pings alone: by the client, and by the server.
#[test]
fn keep_alive() {
    on_each_driver(async || {
        let service = Service::new(Clock::Windlass);
        let mut settings = Server::new();
        settings
            .http()
            .http2()
            .keep_alive_interval(Duration::from_millis(50))
            .keep_alive_timeout(Duration::from_secs(3));
        let server = start_with(settings, routes(&service)).await;
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", proxy.local_addr().unwrap());
        let is_open = std::rc::Rc::new(std::cell::Cell::new(true));
        let (addr, open) = (server.addr, is_open.clone());
        windlass::spawn(async move {
            loop {
                let (outer, _) = proxy.accept().await.unwrap();
                let inner = std::rc::Rc::new(TcpStream::connect(addr).await.unwrap());
                let outer = std::rc::Rc::new(outer);
                for (from, to) in [(outer.clone(), inner.clone()), (inner, outer)] {
                    let open = open.clone();
                    windlass::spawn(async move {
                        while let Ok(bytes) = from.read_managed().await {
                            if bytes.is_empty() {
                                break;
                            }
                            if open.get() {
                                let _ = to.write_all(bytes).await.0;
                            }
                        }
                    });
                }
            }
        });
        let channel = Channel::builder().keep_alive(Duration::from_millis(50), Duration::from_secs(3));
        let mut client = EchoClient::new(channel.build(uri).unwrap());
        client.unary(text("hello")).await.unwrap();
        let mut caller = client.clone();
        let call = windlass::spawn(async move { caller.unary(text("wait")).await });
        while service.running.load(SeqCst) == 0 {
            windlass::time::sleep(Duration::from_millis(1)).await;
        }
        windlass::time::sleep(Duration::from_millis(500)).await; // pings are answered
        assert!(!call.is_finished());
        is_open.set(false);
        assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Unavailable);
        while service.running.load(SeqCst) > 0 {
            windlass::time::sleep(Duration::from_millis(1)).await;
        }
        is_open.set(true);
        client.unary(text("hello")).await.unwrap(); // on a new connection
        server.end().await;
    });
}

/// A channel outlives its server: it fails while there is none, and connects to the next one.
#[test]
fn reconnecting() {
    on_each_driver(async || {
        let service = Service::new(Clock::Windlass);
        let server = start(routes(&service)).await;
        let addr = server.addr;
        let mut client = EchoClient::new(Channel::new(server.uri("")).unwrap());
        client.unary(text("hello")).await.unwrap();
        server.end().await; // GOAWAY
        let status = client.unary(text("hello")).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        let listener = TcpListener::bind(addr).await.unwrap();
        let server = start_at(listener, Server::new(), routes(&service));
        client.unary(text("hello")).await.unwrap();
        server.end().await;
    });
}

/// Interceptors, and handlers that call another server: a channel is `Send`.
#[test]
fn interceptors_and_handlers() {
    on_each_driver(async || {
        let service = Service::new(Clock::Windlass);
        let server = start(routes(&service)).await;
        let channel = Channel::new(server.uri("")).unwrap();
        let mut refused =
            EchoClient::with_interceptor(channel.clone(), |_: Request<()>| Err(Status::permission_denied("no")));
        assert_eq!(
            refused.unary(text("hello")).await.unwrap_err().code(),
            Code::PermissionDenied
        );
        let client = EchoClient::new(channel);
        let app = Router::new().route(
            "/",
            get(async move || client.clone().unary(text("through")).await.unwrap().into_inner().text),
        );
        let front = start(app).await;
        assert_eq!(get_text(&client::plain(), &front.uri("/")).await, "through");
        front.end().await;
        server.end().await;
        Channel::new("localhost:50051").unwrap_err();
    });
}
