//! Messages between nodes: frames over TCP, one request at a time on a connection.
//!
//! A frame is its length, in four bytes, and JSON. openraft has a client of its own for each purpose (replication, heartbeats,
//! votes) and node, and so a connection.

use std::future::Future;
use std::io;
use std::time::Duration;

use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::v2::RaftNetworkV2;
use openraft::network::{RPCOption, RaftNetworkFactory};
use openraft::{AnyError, OptionalSend};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass::net::{TcpListener, TcpStream};
use windlass::task::{Either, select};
use windlass::time::{sleep, timeout};

use crate::types::{
    AppendEntriesRequest, AppendEntriesResponse, Peer, Raft, Snapshot, SnapshotMeta, SnapshotResponse, TypeConfig,
    Vote, VoteRequest, VoteResponse,
};

/// Larger frames are refused: it is no peer that sends them.
const MAX_FRAME: usize = 256 << 20;
/// A connection without requests is closed: its peer may have lost power, and will never say so. Leaders send heartbeats.
const IDLE: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
enum Call {
    Append(AppendEntriesRequest),
    Vote(VoteRequest),
    PreVote(VoteRequest),
    Snapshot {
        vote: Vote,
        meta: SnapshotMeta,
        /// The snapshot is JSON.
        contents: String,
    },
}

#[derive(Serialize, Deserialize)]
enum Reply {
    Append(AppendEntriesResponse),
    Vote(VoteResponse),
    Snapshot(SnapshotResponse),
    /// The node has stopped.
    Stopped(String),
}

async fn send<T: Serialize>(stream: &TcpStream, message: &T) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let len = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&len.to_le_bytes());
    stream.write_all(frame).await.0
}

async fn receive<T: DeserializeOwned>(stream: &TcpStream) -> io::Result<T> {
    let (result, len) = stream.read_exact([0; 4]).await;
    result?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_FRAME {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let (result, frame) = stream.read_exact(vec![0; len]).await;
    result?;
    Ok(serde_json::from_slice(&frame)?)
}

/// Answers the other nodes.
pub(crate) async fn serve(listener: TcpListener, raft: Raft) -> io::Result<()> {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Too many descriptors, or a connection that was reset already.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let raft = raft.clone();
        // An error ends this connection alone.
        windlass::spawn(async move { drop(serve_connection(stream, raft).await) });
    }
}

async fn serve_connection(stream: TcpStream, raft: Raft) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let call = timeout(IDLE, receive(&stream)).await??;
        let reply = match call {
            Call::Append(request) => raft.append_entries(request).await.map(Reply::Append),
            Call::Vote(request) => raft.vote(request).await.map(Reply::Vote),
            Call::PreVote(request) => raft.pre_vote(request).await.map(Reply::Vote),
            Call::Snapshot { vote, meta, contents } => {
                let snapshot = Snapshot {
                    meta,
                    snapshot: contents.into_bytes(),
                };
                let installed = raft.install_full_snapshot(vote, snapshot).await;
                installed.map(Reply::Snapshot).map_err(Into::into)
            }
        };
        let reply = reply.unwrap_or_else(|error| Reply::Stopped(error.to_string()));
        timeout(IDLE, send(&stream, &reply)).await??;
    }
}

/// Makes the clients that openraft calls other nodes with.
#[derive(Clone, Debug, Default)]
pub struct Network {
    _private: (),
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Connection;

    async fn new_client(&mut self, _target: u64, peer: &Peer) -> Connection {
        Connection {
            addr: peer.raft.clone(),
            stream: None,
        }
    }
}

/// A client for one node. Connects when it is used, and again after an error.
#[derive(Debug)]
pub struct Connection {
    addr: String,
    stream: Option<TcpStream>,
}

impl Connection {
    async fn call(&mut self, call: Call, limit: Duration) -> Result<Reply, RPCError<TypeConfig>> {
        let exchange = async {
            // Taken out: if this future is dropped in the middle of an exchange, the connection is of no use.
            let stream = match self.stream.take() {
                Some(stream) => stream,
                None => {
                    let stream = TcpStream::connect(self.addr.as_str()).await?;
                    stream.set_nodelay(true)?;
                    stream
                }
            };
            send(&stream, &call).await?;
            let reply = receive(&stream).await?;
            self.stream = Some(stream);
            io::Result::Ok(reply)
        };
        match timeout(limit, exchange).await {
            Ok(Ok(Reply::Stopped(reason))) => Err(unreachable(&io::Error::other(reason))),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(unreachable(&error)),
            Err(elapsed) => Err(RPCError::Network(NetworkError::new(&elapsed))),
        }
    }
}

/// openraft waits a while before it calls again.
fn unreachable(error: &io::Error) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(error))
}

fn unexpected() -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::new(&AnyError::error("a reply to another request")))
}

impl RaftNetworkV2<TypeConfig> for Connection {
    type SnapshotData = Vec<u8>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse, RPCError<TypeConfig>> {
        match self.call(Call::Append(request), option.hard_ttl()).await? {
            Reply::Append(reply) => Ok(reply),
            _ => Err(unexpected()),
        }
    }

    async fn vote(&mut self, request: VoteRequest, option: RPCOption) -> Result<VoteResponse, RPCError<TypeConfig>> {
        match self.call(Call::Vote(request), option.hard_ttl()).await? {
            Reply::Vote(reply) => Ok(reply),
            _ => Err(unexpected()),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest,
        option: RPCOption,
    ) -> Result<VoteResponse, RPCError<TypeConfig>> {
        match self.call(Call::PreVote(request), option.hard_ttl()).await? {
            Reply::Vote(reply) => Ok(reply),
            _ => Err(unexpected()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse, StreamingError<TypeConfig>> {
        let contents = String::from_utf8(snapshot.snapshot);
        let contents = contents.map_err(|error| StreamingError::Network(NetworkError::new(&error)))?;
        let call = Call::Snapshot {
            vote,
            meta: snapshot.meta,
            contents,
        };
        match select(cancel, self.call(call, option.hard_ttl())).await {
            Either::Left(closed) => Err(closed.into()),
            Either::Right(Ok(Reply::Snapshot(reply))) => Ok(reply),
            Either::Right(Ok(_)) => Err(unexpected().into()),
            Either::Right(Err(error)) => Err(error.into()),
        }
    }
}
