//! The traits of [`io`](crate::io) for Unix streams.

use super::UnixStream;
use crate::io::{Halves, impl_async_read, impl_async_write};
use crate::net::split::{ReadHalf, WriteHalf};

impl_async_read!([], UnixStream);
impl_async_read!([], &UnixStream);
impl_async_write!([], UnixStream);
impl_async_write!([], &UnixStream);

impl Halves for UnixStream {
    type ReadHalf<'a> = ReadHalf<'a, UnixStream>;
    type WriteHalf<'a> = WriteHalf<'a, UnixStream>;

    fn halves(&mut self) -> (ReadHalf<'_, UnixStream>, WriteHalf<'_, UnixStream>) {
        self.split()
    }
}
