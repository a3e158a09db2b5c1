//! Implements the traits of [`io`](crate::io) for connections and their halves.

use super::split::{Connection, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::stream::TcpStream;
use crate::io::{Halves, impl_async_read, impl_async_write};

impl_async_read!([], TcpStream);
impl_async_read!([], &TcpStream);
impl_async_write!([], TcpStream);
impl_async_write!([], &TcpStream);

impl_async_read!([S: Connection], ReadHalf<'_, S>);
impl_async_read!([S: Connection], OwnedReadHalf<S>);
impl_async_write!([S: Connection], WriteHalf<'_, S>);
impl_async_write!([S: Connection], OwnedWriteHalf<S>);

impl Halves for TcpStream {
    type ReadHalf<'a> = ReadHalf<'a>;
    type WriteHalf<'a> = WriteHalf<'a>;

    fn halves(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        self.split()
    }
}
