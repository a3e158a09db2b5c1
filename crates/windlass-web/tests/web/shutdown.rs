//! Graceful shutdown: requests in progress are finished, idle connections closed, and the rest cut after the grace period.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use windlass::compat::{Bridge, ThreadBound};
use windlass::net::TcpStream;
use windlass::sync::{Notify, Semaphore};
use windlass_web::{Server, client};

use crate::support::{self, body, clients, get_text, on_each_driver, start, start_with};

/// An application whose handler reports that it runs, and waits for the gate.
fn gated() -> (Router, Rc<Semaphore>, Rc<Notify>) {
    let (running, gate) = (Rc::new(Semaphore::new(0)), Rc::new(Notify::new()));
    let shared = ThreadBound::new((running.clone(), gate.clone()));
    let handler = async move || {
        let (running, gate) = (*shared).clone();
        ThreadBound::future(async move {
            running.add_permits(1);
            gate.notified().await;
        })
        .await;
        "finished"
    };
    (
        Router::new()
            .route("/", get(handler))
            .route("/now", get(async || "now")),
        running,
        gate,
    )
}

#[test]
fn requests_in_progress_are_finished() {
    for is_h2 in [false, true] {
        on_each_driver(async || {
            let (app, running, gate) = gated();
            let server = start(app).await;
            let idle = client::plain();
            get_text(&idle, &server.uri("/now")).await; // leaves an idle connection
            let (client, uri) = (clients()[is_h2 as usize].clone(), server.uri("/"));
            let asked = windlass::spawn(async move { client.request(support::get(&uri)).await });
            running.acquire().await.unwrap().forget();
            let addr = server.addr;
            server.stop.cancel();
            // The listener is closed while the request is in progress.
            while TcpStream::connect(addr).await.is_ok() {
                windlass::task::yield_now().await;
            }
            assert!(!asked.is_finished() && !server.task.is_finished());
            gate.notify_one();
            let response = asked.await.unwrap().unwrap();
            if !is_h2 {
                assert_eq!(response.headers()["connection"], "close");
            }
            assert_eq!(body(response).await, "finished");
            server.end().await; // although the client keeps its connections
        });
    }
}

/// An HTTP/2 connection gets GOAWAY: it ends in order, and refuses further requests.
#[test]
fn goaway() {
    on_each_driver(async || {
        let (app, running, gate) = gated();
        let server = start(app).await;
        let stream = Bridge::new(server.connect().await);
        let (mut sender, connection) = hyper::client::conn::http2::handshake(windlass::hyper::Executor, stream)
            .await
            .unwrap();
        let connection = windlass::spawn(connection);
        let uri = server.uri("/");
        let asked = sender.send_request(support::get(&uri));
        let asked = windlass::spawn(asked);
        running.acquire().await.unwrap().forget();
        server.stop.cancel();
        // Until GOAWAY has arrived, further requests are accepted.
        while let Ok(response) = sender.send_request(support::get(&server.uri("/now"))).await {
            body(response).await;
        }
        gate.notify_one();
        assert_eq!(body(asked.await.unwrap().unwrap()).await, "finished");
        drop(sender);
        connection.await.unwrap().unwrap();
        server.end().await;
    });
}

/// Handlers that do not end are cancelled after the grace period.
#[test]
fn the_rest_is_cut() {
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    on_each_driver(async || {
        let (running, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (running.clone(), dropped.clone());
        let app = Router::new().route(
            "/",
            get(async move || {
                counts.0.fetch_add(1, SeqCst);
                let _count = Count(counts.1.clone());
                std::future::pending::<()>().await;
            }),
        );
        let server = start_with(Server::new().grace(Duration::from_millis(20)), app).await;
        let asked = clients().map(|client| {
            let uri = server.uri("/");
            windlass::spawn(async move { client.request(support::get(&uri)).await })
        });
        while running.load(SeqCst) < 2 {
            windlass::task::yield_now().await;
        }
        server.end().await;
        for asked in asked {
            asked.await.unwrap().unwrap_err();
        }
        // HTTP/2 handlers are tasks of their own, which end when their connection is gone.
        while dropped.load(SeqCst) < 2 {
            windlass::task::yield_now().await;
        }
    });
}

/// A handler without an end can wait for the stop.
#[test]
fn stopping() {
    on_each_driver(async || {
        let running = ThreadBound::new(Rc::new(Semaphore::new(0)));
        let entered = (*running).clone();
        let app = Router::new().route(
            "/",
            get(async move || {
                running.add_permits(1);
                windlass_web::stopping().await;
                "stopped"
            }),
        );
        let server = start(app).await;
        let asked = clients().map(|client| {
            let uri = server.uri("/");
            windlass::spawn(async move { get_text(&client, &uri).await })
        });
        entered.acquire_many(2).await.unwrap().forget();
        server.end().await;
        for asked in asked {
            assert_eq!(asked.await.unwrap(), "stopped");
        }
    });
}
