//! Sockets as the traits of [`io`](crate::io) see them: their own calls under the same names.

use std::net::Shutdown;

use super::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::stream::TcpStream;
use crate::io::{Halves, reads_by_its_own_calls, writes_by_its_own_calls};

reads_by_its_own_calls!(TcpStream, &TcpStream, ReadHalf<'_>, OwnedReadHalf);
writes_by_its_own_calls!(TcpStream, |stream| stream.shutdown(Shutdown::Write).await);
writes_by_its_own_calls!(&TcpStream, |stream| stream.shutdown(Shutdown::Write).await);
writes_by_its_own_calls!(WriteHalf<'_>, |half| half.shutdown().await);
writes_by_its_own_calls!(OwnedWriteHalf, |half| half.shutdown().await);

impl Halves for TcpStream {
    type ReadHalf<'a> = ReadHalf<'a>;
    type WriteHalf<'a> = WriteHalf<'a>;

    fn halves(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        self.split()
    }
}
