//! Unix connections as the traits of [`io`](crate::io) see them.

use super::UnixStream;
use crate::io::{Halves, reads_its_bytes, writes_its_bytes};
use crate::net::split::{ReadHalf, WriteHalf};

reads_its_bytes!([], UnixStream);
reads_its_bytes!([], &UnixStream);
writes_its_bytes!([], UnixStream);
writes_its_bytes!([], &UnixStream);

impl Halves for UnixStream {
    type ReadHalf<'a> = ReadHalf<'a, UnixStream>;
    type WriteHalf<'a> = WriteHalf<'a, UnixStream>;

    fn halves(&mut self) -> (ReadHalf<'_, UnixStream>, WriteHalf<'_, UnixStream>) {
        self.split()
    }
}
