//! The task of a connection: the only caller of its protocol.
//!
//! One task polls both directions, so an idle connection costs one task. As in asyncio, it calls
//! [`data_received`](super::Protocol::data_received) at most once per turn, and tasks scheduled by a callback run
//! before the next call. Data that a callback writes is sent in the same poll, after the callback returns.

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::rc::Rc;

use super::any_stream::{AnyStream, StreamAddrs};
use super::server::{Client, ServerState};
use super::transport::Transport;
use super::transport_state::{BaseProtocol, CloseMode, TaskGuard, TransportState};
use super::{Protocol, ProtocolRef};
use crate::io::write_buffer::WriteBuffer;

pub(super) type ConnectionState = TransportState<dyn Protocol>;

impl BaseProtocol for dyn Protocol {
    type Queue = WriteBuffer;
    type Info = StreamAddrs;

    fn connection_made(&mut self, state: Rc<ConnectionState>) {
        Protocol::connection_made(self, Transport { state });
    }
    fn pause_writing(&mut self) {
        Protocol::pause_writing(self);
    }
    fn resume_writing(&mut self) {
        Protocol::resume_writing(self);
    }
    fn connection_lost(&mut self, error: Option<io::Error>) {
        Protocol::connection_lost(self, error);
    }
}

impl Client for ConnectionState {
    fn close_client(self: Rc<Self>) {
        self.close();
    }

    fn abort_client(self: Rc<Self>) {
        self.force_close(None, CloseMode::Reset);
    }
}

/// Starts the task of a connection, which may belong to a server.
#[track_caller]
pub(super) fn open<P: Protocol + 'static>(
    stream: AnyStream,
    protocol: P,
    server: Option<Rc<ServerState>>,
) -> (Transport, ProtocolRef<P>) {
    let protocol = Rc::new(RefCell::new(protocol));
    let state = ConnectionState::new(protocol.clone(), stream.addrs());
    let guard = TaskGuard {
        state: state.clone(),
        _registration: server.map(|server| server.register(Rc::downgrade(&state) as _)),
    };
    crate::task::spawn(run_connection(guard, stream));
    (Transport { state }, ProtocolRef(protocol))
}

async fn run_connection(guard: TaskGuard<dyn Protocol>, stream: AnyStream) {
    let state = &guard.state;
    let sending = state.write_buffer.send_all(&stream, || {});
    let reason = state.run(pin!(sending), pin!(receive_all(state, &stream))).await;
    if state.report_lost(reason) == CloseMode::Reset {
        stream.reset_on_close();
    }
    // The descriptor closes before waiters are notified.
    drop(stream);
}

/// Delivers received data and EOF to the protocol. Never completes.
async fn receive_all(state: &ConnectionState, stream: &AnyStream) {
    loop {
        state.wait_reading().await;
        let mut received = stream.receive().await;
        state.begin_delivery(&mut received).await;
        match received {
            Ok(bytes) if !bytes.is_empty() => {
                state.call("data_received", |protocol| protocol.data_received(&bytes));
            }
            Ok(_) => {
                let keep_open = state.call("eof_received", |protocol| protocol.eof_received());
                if keep_open == Some(false) {
                    state.close();
                }
                return pending().await;
            }
            Err(error) => {
                state.force_close(Some(error), CloseMode::Normal);
                return pending().await;
            }
        }
    }
}
