//! Files as the traits of [`io`](crate::io) see them: one byte after the other, from the position on.

use std::io;

use super::{File, Reader};
use crate::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufResult, IoBuf, IoBufMut, ManagedBuf};

/// What is read at once for somebody who does not say how much: enough that the calls do not count.
const PIECE_LEN: usize = 64 * 1024;

impl AsyncRead for &File {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        File::read(self, buf).await
    }
    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        let (result, bytes) = File::read(self, Vec::with_capacity(PIECE_LEN)).await;
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
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        AsyncRead::read(&mut &*self, buf).await
    }
    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        AsyncRead::read_managed(&mut &*self).await
    }
    async fn read_vectored<B: IoBufMut>(&mut self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        AsyncRead::read_vectored(&mut &*self, bufs).await
    }
    async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
        AsyncRead::read_exact(&mut &*self, buf).await
    }
}

impl AsyncWrite for &File {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        File::write(self, buf).await
    }
    /// Nothing is held back: the kernel has it. For it to be on the disk, see [`File::sync_all`].
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// A file has no end to tell.
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
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        AsyncWrite::write(&mut &*self, buf).await
    }
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
    async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
        AsyncWrite::write_all(&mut &*self, buf).await
    }
    async fn write_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        AsyncWrite::write_vectored(&mut &*self, bufs).await
    }
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
