//! A client of the HTTP API, with a connection per request.

use std::fmt;
use std::io;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{HOST, LOCATION};
use hyper::{Method, Request, StatusCode};
use windlass::compat::Bridge;
use windlass::net::TcpStream;

use crate::api::{CompareAndSet, Status};

/// Why a request has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// It had no effect: the node cannot be reached, does not lead, or knows no leader. Contains the address of the leader,
    /// if the node knows it.
    NotDone(Option<String>),
    /// A change may have been made or not, or may be made yet.
    Unknown(Box<dyn std::error::Error>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotDone(Some(leader)) => write!(f, "not done: {leader} leads"),
            Error::NotDone(None) => f.write_str("not done: no leader can be reached there"),
            Error::Unknown(error) => write!(f, "unknown result: {error}"),
        }
    }
}

impl std::error::Error for Error {}

fn unknown(error: impl Into<Box<dyn std::error::Error>>) -> Error {
    Error::Unknown(error.into())
}

/// The value of a key.
pub async fn get(addr: &str, key: &str) -> Result<Option<String>, Error> {
    let (status, body) = send(addr, Method::GET, &format!("/kv/{key}"), Bytes::new()).await?;
    match status {
        StatusCode::OK => String::from_utf8(body.into()).map(Some).map_err(unknown),
        StatusCode::NOT_FOUND => Ok(None),
        _ => Err(unexpected(status, &body)),
    }
}

/// Sets a key.
pub async fn put(addr: &str, key: &str, value: &str) -> Result<(), Error> {
    let body = value.to_owned().into();
    let (status, body) = send(addr, Method::PUT, &format!("/kv/{key}"), body).await?;
    match status {
        StatusCode::NO_CONTENT => Ok(()),
        _ => Err(unexpected(status, &body)),
    }
}

/// Sets a key if it has the expected value. Returns the value that it has otherwise.
pub async fn cas(
    addr: &str,
    key: &str,
    expect: Option<String>,
    value: &str,
) -> Result<Result<(), Option<String>>, Error> {
    let value = value.to_owned();
    let body = serde_json::to_vec(&CompareAndSet { expect, value }).map_err(|_| Error::NotDone(None))?;
    let (status, body) = send(addr, Method::POST, &format!("/kv/{key}"), body.into()).await?;
    match status {
        StatusCode::NO_CONTENT => Ok(Ok(())),
        StatusCode::CONFLICT => serde_json::from_slice(&body).map(Err).map_err(unknown),
        _ => Err(unexpected(status, &body)),
    }
}

/// What a node knows of its cluster.
pub async fn status(addr: &str) -> Result<Status, Error> {
    let (_, body) = send(addr, Method::GET, "/status", Bytes::new()).await?;
    serde_json::from_slice(&body).map_err(unknown)
}

fn unexpected(status: StatusCode, body: &[u8]) -> Error {
    unknown(format!("{status}: {}", String::from_utf8_lossy(body)))
}

async fn send(addr: &str, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), Error> {
    let connect = async {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        io::Result::Ok(stream)
    };
    let stream = connect.await.map_err(|_| Error::NotDone(None))?;
    let (mut sender, connection) = http1::handshake(Bridge::new(stream)).await.map_err(unknown)?;
    // Its errors are those of the request.
    let task = windlass::spawn(async move { drop(connection.await) });
    let request = Request::builder().method(method).uri(path).header(HOST, addr);
    let request = request.body(Full::new(body)).map_err(|_| Error::NotDone(None))?;
    let response = sender.send_request(request).await.map_err(unknown)?;
    let status = response.status();
    let leader = response
        .headers()
        .get(LOCATION)
        .and_then(|location| location.to_str().ok());
    let leader = leader.and_then(|location| location.strip_prefix("http://")?.split('/').next());
    match status {
        StatusCode::TEMPORARY_REDIRECT => return Err(Error::NotDone(leader.map(str::to_owned))),
        StatusCode::SERVICE_UNAVAILABLE => return Err(Error::NotDone(None)),
        _ => {}
    }
    let body = response.into_body().collect().await.map_err(unknown)?;
    task.cancel();
    Ok((status, body.to_bytes()))
}
