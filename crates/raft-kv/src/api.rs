//! The HTTP API for clients.
//!
//! | request | replies |
//! |---|---|
//! | `GET /kv/KEY` | 200 and the value; 404 |
//! | `PUT /kv/KEY`, the body is the value | 204 |
//! | `POST /kv/KEY`, the body is `{"expect": VALUE or null, "value": VALUE}` | 204; 409 and the current value, as JSON |
//! | `GET /status` | 200 and a [`Status`], as JSON |
//!
//! Any node answers. One that is not the leader redirects to it (307), or knows none (503): the request had no effect then.
//! After any other error, or none at all, a change may be made or not.
//!
//! Reads are linearizable: the leader asks a quorum whether it still leads before it reads (read index).

use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderValue, LOCATION};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use openraft::ReadPolicy;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, LinearizableReadError, RaftError};
use serde::{Deserialize, Serialize};
use windlass::compat::Bridge;
use windlass::hyper::Timer;
use windlass::net::{TcpListener, TcpStream};
use windlass::time::sleep;

use crate::node::Bug;
use crate::state::StateMachine;
use crate::types::{Applied, ForwardToLeader, Raft, Request};

const MAX_BODY: usize = 1 << 20;
/// A client must send its headers, and take each reply, within this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// The body of a compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareAndSet {
    /// The value that the key must have; `None`: it must be absent.
    pub expect: Option<String>,
    /// Its new value.
    pub value: String,
}

/// What a node knows of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The number of the node.
    pub node: u64,
    /// The leader that it knows.
    pub leader: Option<u64>,
    /// Its term.
    pub term: u64,
    /// The last entry that it has applied.
    pub applied: Option<u64>,
    /// The last entry in its snapshot.
    pub snapshot: Option<u64>,
    /// The last entry that it has purged from its log.
    pub purged: Option<u64>,
}

/// The parts of a node that requests need.
pub(crate) struct Api {
    pub(crate) raft: Raft,
    pub(crate) state: StateMachine,
    pub(crate) bug: Option<Bug>,
}

pub(crate) async fn serve(listener: TcpListener, api: Api) -> io::Result<()> {
    let api = Rc::new(api);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let api = api.clone();
        // An error ends this connection alone.
        windlass::spawn(async move { drop(serve_connection(stream, api).await) });
    }
}

async fn serve_connection(stream: TcpStream, api: Rc<Api>) -> hyper::Result<()> {
    let service = service_fn(|request| {
        let api = api.clone();
        async move { Ok::<_, Infallible>(api.answer(request).await) }
    });
    http1::Builder::new()
        .timer(Timer)
        .header_read_timeout(PATIENCE)
        // The real time of day has no place in a simulation.
        .auto_date_header(false)
        .serve_connection(Bridge::new(stream).write_timeout(PATIENCE), service)
        .await
}

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
}

/// The request had no effect. The client may send it to the leader.
fn forward(to: &ForwardToLeader, path: &str) -> Answer {
    let leader = to.leader_node.as_ref();
    let location = leader.and_then(|peer| HeaderValue::from_str(&format!("http://{}{path}", peer.http)).ok());
    let Some(location) = location else {
        return answer(StatusCode::SERVICE_UNAVAILABLE, "no leader\n");
    };
    let mut response = answer(StatusCode::TEMPORARY_REDIRECT, "");
    response.headers_mut().insert(LOCATION, location);
    response
}

fn failed(error: impl ToString) -> Answer {
    answer(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

impl Api {
    async fn answer(&self, request: hyper::Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
            return answer(StatusCode::BAD_REQUEST, "the body is incomplete or too large\n");
        };
        let body = body.to_bytes();
        let path = parts.uri.path();
        if path == "/status" {
            return self.status();
        }
        let Some(key) = path.strip_prefix("/kv/").filter(|key| !key.is_empty()) else {
            return answer(StatusCode::NOT_FOUND, "try /kv/KEY or /status\n");
        };
        let key = key.to_owned();
        match parts.method {
            Method::GET => self.get(&key, path).await,
            Method::PUT => match String::from_utf8(body.into()) {
                Ok(value) => self.write(Request::Put { key, value }, path).await,
                Err(error) => answer(StatusCode::BAD_REQUEST, error.to_string()),
            },
            Method::POST => match serde_json::from_slice(&body) {
                Ok(CompareAndSet { expect, value }) => self.write(Request::Cas { key, expect, value }, path).await,
                Err(error) => answer(StatusCode::BAD_REQUEST, error.to_string()),
            },
            _ => answer(StatusCode::METHOD_NOT_ALLOWED, "GET, PUT or POST\n"),
        }
    }

    async fn get(&self, key: &str, path: &str) -> Answer {
        if self.bug != Some(Bug::UncheckedRead) || !self.raft.is_leader() {
            let linearizer = match self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
                Ok(linearizer) => linearizer,
                Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(leader))) => {
                    return forward(&leader, path);
                }
                Err(error) => return failed(error),
            };
            if let Err(error) = linearizer.await_ready(&self.raft).await {
                return failed(error);
            }
        }
        match self.state.get(key) {
            Some(value) => answer(StatusCode::OK, value),
            None => answer(StatusCode::NOT_FOUND, ""),
        }
    }

    async fn write(&self, request: Request, path: &str) -> Answer {
        match self.raft.client_write(request).await {
            Ok(written) => match written.data {
                Applied::Mismatch(current) => match serde_json::to_vec(&current) {
                    Ok(current) => answer(StatusCode::CONFLICT, current),
                    Err(error) => failed(error),
                },
                Applied::Set | Applied::Nothing => answer(StatusCode::NO_CONTENT, ""),
            },
            // Refused before the entry was appended.
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(leader))) => forward(&leader, path),
            Err(error) => failed(error),
        }
    }

    fn status(&self) -> Answer {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let index = |log_id: Option<crate::types::LogId>| log_id.map(|log_id| log_id.index);
        let status = Status {
            node: metrics.id,
            leader: metrics.current_leader,
            term: metrics.current_term,
            applied: index(metrics.last_applied),
            snapshot: index(metrics.snapshot),
            purged: index(metrics.purged),
        };
        match serde_json::to_vec(&status) {
            Ok(status) => answer(StatusCode::OK, status),
            Err(error) => failed(error),
        }
    }
}
