//! Sockets as the traits of [`io`](crate::io) see them: their own calls under the same names.

use super::split::{Connection, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::stream::TcpStream;
use crate::io::{Halves, reads_its_bytes, writes_its_bytes};

reads_its_bytes!([], TcpStream);
reads_its_bytes!([], &TcpStream);
writes_its_bytes!([], TcpStream);
writes_its_bytes!([], &TcpStream);

reads_its_bytes!([S: Connection], ReadHalf<'_, S>);
reads_its_bytes!([S: Connection], OwnedReadHalf<S>);
writes_its_bytes!([S: Connection], WriteHalf<'_, S>);
writes_its_bytes!([S: Connection], OwnedWriteHalf<S>);

impl Halves for TcpStream {
    type ReadHalf<'a> = ReadHalf<'a>;
    type WriteHalf<'a> = WriteHalf<'a>;

    fn halves(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        self.split()
    }
}
