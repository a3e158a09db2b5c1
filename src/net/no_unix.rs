//! This system has no sockets within the machine: their types are there for those that serve any family, and have no
//! values.

use std::io;

use crate::inflight::stream::ByteStream;

/// Nobody has one.
#[derive(Clone, Debug)]
pub(crate) enum UnixAddr {}

/// Nobody has one.
pub(crate) enum UnixStream {}

impl UnixStream {
    pub(crate) fn bytes(&self) -> &ByteStream {
        match *self {}
    }

    pub(crate) fn local_addr(&self) -> io::Result<UnixAddr> {
        match *self {}
    }

    pub(crate) fn peer_addr(&self) -> io::Result<UnixAddr> {
        match *self {}
    }
}

/// Nobody has one.
pub(crate) enum UnixListener {}

impl UnixListener {
    pub(crate) async fn accept(&self) -> io::Result<(UnixStream, UnixAddr)> {
        match *self {}
    }

    pub(crate) fn local_addr(&self) -> io::Result<UnixAddr> {
        match *self {}
    }
}
