//! Implements the traits of [`io`](crate::io) for files: sequential access from the current position.

use std::io;

use super::{File, Reader};
use crate::io::{
    AsyncBufRead, AsyncRead, AsyncWrite, BufResult, IoBuf, IoBufMut, ManagedBuf, delegate_read, delegate_write,
};

/// The buffer size of a managed read: large enough that the cost per call does not matter.
const MANAGED_READ_LEN: usize = 64 * 1024;

impl AsyncRead for &File {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        File::read(self, buf).await
    }
    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        let (result, bytes) = File::read(self, Vec::with_capacity(MANAGED_READ_LEN)).await;
        result.map(|_| ManagedBuf::from(bytes))
    }
    async fn read_vectored<B: IoBufMut>(&mut self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        File::read_vectored(self, bufs).await
    }
    async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
        File::read_exact(self, buf).await
    }
}

impl AsyncRead for File {
    delegate_read!(self => &*self);
}

impl AsyncWrite for &File {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        File::write(self, buf).await
    }
    /// Does nothing, because writes are not buffered here. To write to the disk, call [`File::sync_all`].
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Does nothing, because a file has no peer to notify.
    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
    async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
        File::write_all(self, buf).await
    }
    async fn write_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        File::write_vectored(self, bufs).await
    }
}

impl AsyncWrite for File {
    delegate_write!(self => &*self);
}

impl AsyncRead for Reader {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        Reader::read(self, buf).await
    }
}

impl AsyncBufRead for Reader {
    async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Reader::fill_buf(self).await
    }
    fn consume(&mut self, count: usize) {
        Reader::consume(self, count);
    }
}
