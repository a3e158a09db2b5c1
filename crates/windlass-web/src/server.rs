//! The server: HTTP/1.1 and HTTP/2 on one port, for any tower service.
//!
//! Each connection is one task. It ends with its upgraded streams (WebSockets), so that limits and shutdown apply to them
//! too. A client can keep a connection only as long as it makes progress: there are time limits for the TLS handshake, the
//! first request, the headers of each request (HTTP/1.1), pings (HTTP/2) and unread responses.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{Extensions, Request};
use hyper::body::Incoming;
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tower_service::Service;
use windlass::compat::{Bridge, PollRead, PollWrite, ThreadBound};
use windlass::hyper::{Executor, Timer};
use windlass::net::TcpListener;
use windlass::shards::{self, Shard};
use windlass::signal::ShutdownSignal;
use windlass::task::{CancelToken, Either, JoinSet, TaskLocal, select};
use windlass::time::{sleep, timeout};

use crate::{App, BoxError, Listener, Stream};

/// The pause after an error of `accept`: a lasting error must not use a whole core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a shard may take to cut its connections after the grace period.
const CUT_TIME: Duration = Duration::from_secs(5);

/// Cancelled when the server of this task begins to stop.
static STOPPING: TaskLocal<CancelToken> = TaskLocal::new();

/// Serves a tower service of HTTP requests, such as axum's `Router` or tonic's `Routes`, on this loop, with the settings of
/// [`Server::new`].
///
/// It returns after Ctrl-C or SIGTERM, when the open connections have ended, or if `listener` ends.
///
/// # Errors
///
/// If the signals cannot be listened to. Errors of a connection or of `accept` do not end the server.
///
/// ```
/// use axum::{Router, routing::get};
/// use windlass::net::TcpListener;
///
/// # windlass::run(async {
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// let app = Router::new().route("/", get(async || "hello\n"));
/// # windlass::spawn(async {
/// windlass_web::serve(listener, app).await
/// # });
/// # Ok::<(), std::io::Error>(())
/// # })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn serve<L, S>(listener: L, app: S) -> io::Result<()>
where
    L: Listener,
    S: App,
{
    Server::new().stop_on_signals().serve(listener, app).await
}

/// Serves on all cores: a pool of [shards], one per cpu, each with its own connections and its own service.
///
/// `app` is called once on every shard, so a service need not be `Send`; with one that is, pass `move |_| app.clone()`. It
/// returns after Ctrl-C or SIGTERM, when the open connections have ended. For a pool with other settings, use
/// [`Server::serve`] within [`shards::Pool::run`].
///
/// # Errors
///
/// If the address cannot be bound, or as [`shards::Pool::run`].
///
/// ```no_run
/// use axum::{Router, routing::get};
///
/// let app = Router::new().route("/", get(async || "hello\n"));
/// windlass_web::serve_shards("0.0.0.0:8080", move |_shard| app.clone())?;
/// # Ok::<(), windlass::shards::Error>(())
/// ```
pub fn serve_shards<S>(
    addr: impl ToSocketAddrs,
    app: impl Fn(Shard) -> S + Send + Sync + 'static,
) -> Result<(), shards::Error>
where
    S: App,
{
    Server::new().serve_shards(addr, app)
}

/// Waits until the server that runs this handler begins to stop: for handlers that would otherwise never end, such as
/// WebSockets and event streams. Outside of a server it waits forever.
///
/// Call it in the handler, before the returned future or stream is polled elsewhere.
///
/// ```
/// use windlass::task::{Either, select};
///
/// async fn next_event() -> u32 {
/// #   7
/// }
///
/// async fn event_or_end() -> Option<u32> {
///     match select(next_event(), windlass_web::stopping()).await {
///         Either::Left(event) => Some(event),
///         Either::Right(()) => None,
///     }
/// }
/// ```
pub fn stopping() -> impl Future<Output = ()> + Send + Sync + Unpin + 'static {
    let token = STOPPING.try_get();
    ThreadBound::future(async move {
        match token {
            Some(token) => token.cancelled().await,
            None => pending().await,
        }
    })
}

type AddInfo = Arc<dyn Fn(SocketAddr, &mut Extensions) + Send + Sync>;
type Report = Arc<dyn Fn(&BoxError, Option<SocketAddr>) + Send + Sync>;

/// Settings of a server. Cloning it copies them: one value can serve several listeners and shards.
///
/// ```no_run
/// use std::time::Duration;
/// use axum::{Router, extract::ConnectInfo, routing::get};
/// use windlass::net::TcpListener;
/// use windlass_web::Server;
///
/// # windlass::run(async {
/// let mut server = Server::new()
///     .stop_on_signals()
///     .grace(Duration::from_secs(30))
///     .max_connections(1000)
///     .connect_info(ConnectInfo) // for handlers with the argument `ConnectInfo<SocketAddr>`
///     .on_error(|error, peer| eprintln!("{peer:?}: {error}"));
/// server.http().http2().max_concurrent_streams(100); // all settings of hyper
/// let app: Router = Router::new().route("/", get(async || "hello\n"));
/// server.serve(TcpListener::bind("0.0.0.0:8080").await?, app).await
/// # })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Server {
    http: auto::Builder<Executor>,
    #[cfg(feature = "tls")]
    tls: Option<windlass::tls::TlsAcceptor>,
    connect_info: Option<AddInfo>,
    on_error: Option<Report>,
    max_connections: usize,
    header_timeout: Duration,
    write_timeout: Duration,
    grace: Duration,
    stops_on_signals: bool,
}

impl Server {
    /// The defaults: 10,000 connections, 30 s for a client that sends or reads nothing, a ping every 30 s on HTTP/2
    /// connections, 10 s of grace.
    pub fn new() -> Server {
        let mut http = auto::Builder::new(Executor);
        http.http1().timer(Timer);
        http.http2()
            .timer(Timer)
            .keep_alive_interval(Duration::from_secs(30))
            .enable_connect_protocol(); // WebSockets over HTTP/2
        Server {
            http,
            #[cfg(feature = "tls")]
            tls: None,
            connect_info: None,
            on_error: None,
            max_connections: 10_000,
            header_timeout: Duration::ZERO,
            write_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(10),
            stops_on_signals: false,
        }
        .header_timeout(Duration::from_secs(30))
    }

    /// hyper's settings: header limits, window sizes, HTTP/2 pings, one version only. The executor and the timers are
    /// windlass's.
    pub fn http(&mut self) -> &mut auto::Builder<Executor> {
        &mut self.http
    }

    /// Serves HTTPS. The configuration is rustls' own; if it has no ALPN protocols, HTTP/2 and HTTP/1.1 are offered.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, config: impl Into<Arc<windlass::tls::rustls::ServerConfig>>) -> Server {
        let mut config = config.into();
        if config.alpn_protocols.is_empty() {
            Arc::make_mut(&mut config).alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        self.tls = Some(windlass::tls::TlsAcceptor::new(config));
        self
    }

    /// The maximum number of open connections of one loop, WebSockets included. Further ones wait in the listener's backlog.
    #[must_use]
    pub fn max_connections(mut self, max: usize) -> Server {
        self.max_connections = max.max(1);
        self
    }

    /// How long a client may take for its TLS handshake, for its first request, and for the headers of each HTTP/1.1
    /// request. An idle HTTP/1.1 connection is closed after this time.
    #[must_use]
    pub fn header_timeout(mut self, time: Duration) -> Server {
        self.http.http1().header_read_timeout(time);
        self.header_timeout = time;
        self
    }

    /// How long a client may read nothing of its response.
    #[must_use]
    pub fn write_timeout(mut self, time: Duration) -> Server {
        self.write_timeout = time;
        self
    }

    /// How long open connections may take to end when the server stops. The rest is cut.
    #[must_use]
    pub fn grace(mut self, time: Duration) -> Server {
        self.grace = time;
        self
    }

    /// Stops on Ctrl-C and SIGTERM; a second one cuts the open connections.
    #[must_use]
    pub fn stop_on_signals(mut self) -> Server {
        self.stops_on_signals = true;
        self
    }

    /// Adds a value made from the address of the client to the extensions of each request: axum's `ConnectInfo`, or your own.
    #[must_use]
    pub fn connect_info<T: Clone + Send + Sync + 'static>(
        mut self,
        info: impl Fn(SocketAddr) -> T + Send + Sync + 'static,
    ) -> Server {
        self.connect_info = Some(Arc::new(move |peer, extensions: &mut Extensions| {
            extensions.insert(info(peer));
        }));
        self
    }

    /// Calls `report` for failed connections and for errors of `accept`. By default they are ignored: clients disconnect
    /// at any time.
    #[must_use]
    pub fn on_error(mut self, report: impl Fn(&BoxError, Option<SocketAddr>) + Send + Sync + 'static) -> Server {
        self.on_error = Some(Arc::new(report));
        self
    }

    /// Serves until `listener` ends, or until a signal after [`stop_on_signals`](Server::stop_on_signals); without either,
    /// until the future is dropped, which cuts all connections.
    ///
    /// # Errors
    ///
    /// If the signals cannot be listened to.
    pub async fn serve<L, S>(&self, listener: L, app: S) -> io::Result<()>
    where
        L: Listener,
        S: App,
    {
        self.serve_until(listener, app, pending()).await
    }

    /// As [`serve`](Server::serve), and stops when `stop` completes: the server closes the listener, finishes the requests
    /// in progress (`connection: close`, GOAWAY), and cuts what is left after the [grace period](Server::grace).
    ///
    /// # Errors
    ///
    /// If the signals cannot be listened to.
    ///
    /// ```
    /// use windlass::{net::TcpListener, task::CancelToken};
    ///
    /// # windlass::run(async {
    /// # let app = axum::Router::<()>::new();
    /// let stop = CancelToken::new();
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let stopped = stop.cancelled();
    /// let serving = windlass::spawn(async { windlass_web::Server::new().serve_until(listener, app, stopped).await });
    /// // ...
    /// stop.cancel();
    /// serving.await?
    /// # })?.unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn serve_until<L, S>(&self, mut listener: L, app: S, stop: impl Future<Output = ()>) -> io::Result<()>
    where
        L: Listener,
        S: App,
    {
        let mut signal = match self.stops_on_signals {
            true => Some(windlass::signal::shutdown()?),
            false => None,
        };
        let server = Rc::new(self.clone());
        let stopping = CancelToken::new();
        let mut connections = JoinSet::new();
        {
            let mut stop = pin!(select(stop, next_signal(&mut signal)));
            loop {
                while connections.try_join_next().is_some() {}
                let next = async {
                    while connections.len() >= server.max_connections {
                        connections.join_next().await;
                    }
                    listener.accept().await
                };
                match select(stop.as_mut(), next).await {
                    Either::Left(_) | Either::Right(None) => break,
                    Either::Right(Some(Ok((stream, peer)))) => {
                        let connection = server.clone().connection(stream, peer, app.clone(), stopping.clone());
                        drop(connections.spawn(connection));
                    }
                    Either::Right(Some(Err(error))) => {
                        server.report(error.into(), None);
                        if timeout(ACCEPT_PAUSE, stop.as_mut()).await.is_ok() {
                            break;
                        }
                    }
                }
            }
        }
        drop((listener, app)); // from here on, new connections are refused
        stopping.cancel();
        let ended = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(server.grace, select(ended, next_signal(&mut signal))).await;
        connections.shutdown().await;
        Ok(())
    }

    /// [`serve_shards`](crate::serve_shards) with these settings.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound, or as [`shards::Pool::run`].
    pub fn serve_shards<S>(
        &self,
        addr: impl ToSocketAddrs,
        app: impl Fn(Shard) -> S + Send + Sync + 'static,
    ) -> Result<(), shards::Error>
    where
        S: App,
    {
        let server = Server {
            stops_on_signals: false,
            ..self.clone()
        };
        // The servers cut their connections after the grace period. The pool's own limit is for a shard that does not.
        let pool = shards::Builder::new()
            .stop_on_signals()
            .grace(self.grace + CUT_TIME)
            .build()?;
        let listener = pool.listen_with(TcpListener::builder().nodelay(true), addr, shards::Accept::default())?;
        pool.run(move |shard| {
            let (server, app) = (server.clone(), app(shard));
            async move { server.serve(listener, app).await }
        })?;
        Ok(())
    }

    /// One connection, with its upgraded streams.
    async fn connection<I, S>(self: Rc<Self>, stream: I, peer: Option<SocketAddr>, app: S, stopping: CancelToken)
    where
        I: Stream,
        S: App,
    {
        STOPPING.set(stopping.clone());
        #[cfg(feature = "ws")]
        let upgraded = crate::ws::Upgraded::of_this_task();
        if let Err(error) = self.handshake(stream, peer, app, &stopping).await {
            self.report(error, peer);
        }
        #[cfg(feature = "ws")]
        upgraded.ended().await;
    }

    /// The TLS handshake, if any, and HTTP.
    async fn handshake<I, S>(
        &self,
        stream: I,
        peer: Option<SocketAddr>,
        app: S,
        stopping: &CancelToken,
    ) -> Result<(), BoxError>
    where
        I: Stream,
        S: App,
    {
        #[cfg(feature = "tls")]
        if let Some(acceptor) = &self.tls {
            let handshake = timeout(self.header_timeout, acceptor.accept(stream));
            let Some(stream) = stopping.run_until_cancelled(handshake).await else {
                return Ok(());
            };
            let stream = stream.map_err(|_| "no TLS handshake within the time limit")??;
            return self.http_connection(stream, peer, app, stopping).await;
        }
        self.http_connection(stream, peer, app, stopping).await
    }

    async fn http_connection<I, S>(
        &self,
        stream: I,
        peer: Option<SocketAddr>,
        app: S,
        stopping: &CancelToken,
    ) -> Result<(), BoxError>
    where
        I: PollRead + PollWrite + Unpin + 'static,
        S: App,
    {
        let has_asked = Rc::new(Cell::new(false));
        let app = Prepared {
            app,
            has_asked: has_asked.clone(),
            connect_info: self.connect_info.clone().zip(peer),
        };
        let stream = Bridge::new(stream).write_timeout(self.write_timeout).into_send();
        let mut connection = pin!(
            self.http
                .serve_connection_with_upgrades(stream, TowerToHyperService::new(app))
        );
        let mut stop = Some(pin!(stopping.cancelled()));
        // While hyper-util waits for the bytes that identify the version, hyper runs no timer.
        let mut first = Some(Box::pin(sleep(self.header_timeout)));
        poll_fn(|cx| {
            if stop.as_mut().is_some_and(|stop| stop.as_mut().poll(cx).is_ready()) {
                stop = None;
                connection.as_mut().graceful_shutdown();
            }
            if let Poll::Ready(result) = connection.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            if has_asked.get() {
                first = None;
            }
            match &mut first {
                Some(first) => first
                    .as_mut()
                    .poll(cx)
                    .map(|()| Err("no request within the time limit".into())),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn report(&self, error: BoxError, peer: Option<SocketAddr>) {
        if let Some(report) = &self.on_error {
            report(&error, peer);
        }
    }
}

impl Default for Server {
    fn default() -> Server {
        Server::new()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("max_connections", &self.max_connections)
            .field("header_timeout", &self.header_timeout)
            .field("write_timeout", &self.write_timeout)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

async fn next_signal(signal: &mut Option<ShutdownSignal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => pending().await,
    }
}

/// The application's service as a connection calls it.
#[derive(Clone)]
struct Prepared<S> {
    app: S,
    /// Whether the connection had a request.
    has_asked: Rc<Cell<bool>>,
    connect_info: Option<(AddInfo, SocketAddr)>,
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for Prepared<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.app.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> S::Future {
        self.has_asked.set(true);
        if let Some((add, peer)) = &self.connect_info {
            add(*peer, request.extensions_mut());
        }
        self.app.call(request)
    }
}
