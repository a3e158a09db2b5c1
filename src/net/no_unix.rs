//! Uninhabited Unix socket types for systems without Unix sockets, so that code for any address family compiles.

use std::io;

use crate::inflight::stream::ByteStream;

/// Has no values.
#[derive(Clone, Debug)]
pub(crate) enum UnixAddr {}

/// Has no values.
pub(crate) enum UnixStream {}

impl UnixStream {
    pub(crate) fn bytes(&self) -> &ByteStream {
        match *self {}
    }
}

/// Has no values.
pub(crate) enum UnixListener {}

impl UnixListener {
    pub(crate) async fn accept(&self) -> io::Result<(UnixStream, UnixAddr)> {
        match *self {}
    }

    pub(crate) fn local_addr(&self) -> io::Result<UnixAddr> {
        match *self {}
    }
}
