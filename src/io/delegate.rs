//! Macros that implement the stream traits by delegation.

use std::future::Future;
use std::io;
use std::net::Shutdown;

use super::BufResult;
use super::buf::{IoBuf, IoBufMut};
use super::managed::ManagedBuf;
use super::read::{AsyncBufRead, AsyncRead};
use super::splice::KernelStream;
use super::split::Halves;
use super::write::AsyncWrite;
use crate::inflight::stream::ByteStream;

/// The methods of `AsyncRead`, forwarded to an inner reader.
macro_rules! delegate_read {
    ($self:ident => $inner:expr) => {
        async fn read<B: $crate::io::IoBufMut>(&mut $self, buf: B) -> $crate::io::BufResult<usize, B> {
            $crate::io::AsyncRead::read(&mut $inner, buf).await
        }
        async fn read_managed(&mut $self) -> std::io::Result<$crate::io::ManagedBuf> {
            $crate::io::AsyncRead::read_managed(&mut $inner).await
        }
        async fn read_vectored<B: $crate::io::IoBufMut>(
            &mut $self,
            bufs: Vec<B>,
        ) -> $crate::io::BufResult<usize, Vec<B>> {
            $crate::io::AsyncRead::read_vectored(&mut $inner, bufs).await
        }
        async fn read_exact<B: $crate::io::IoBufMut>(&mut $self, buf: B) -> $crate::io::BufResult<(), B> {
            $crate::io::AsyncRead::read_exact(&mut $inner, buf).await
        }
        async fn read_to_end(&mut $self, into: &mut Vec<u8>, limit: usize) -> std::io::Result<usize> {
            $crate::io::AsyncRead::read_to_end(&mut $inner, into, limit).await
        }
        async fn read_to_string(&mut $self, limit: usize) -> std::io::Result<String> {
            $crate::io::AsyncRead::read_to_string(&mut $inner, limit).await
        }
        #[allow(clippy::borrow_deref_ref, reason = "in the other methods `self` is a mutable reference")]
        fn kernel_stream(&$self) -> Option<$crate::io::KernelStream> {
            $crate::io::AsyncRead::kernel_stream(&$inner)
        }
    };
}
pub(crate) use delegate_read;

/// The methods of `AsyncWrite`, forwarded to an inner writer. A `shutdown` after the inner writer replaces the forwarded
/// one.
macro_rules! delegate_write {
    ($self:ident => $inner:expr) => {
        $crate::io::delegate_write!(
            $self => $inner,
            async fn shutdown(&mut $self) -> std::io::Result<()> {
                $crate::io::AsyncWrite::shutdown(&mut $inner).await
            }
        );
    };
    ($self:ident => $inner:expr, $($shutdown:tt)*) => {
        async fn write<B: $crate::io::IoBuf>(&mut $self, buf: B) -> $crate::io::BufResult<usize, B> {
            $crate::io::AsyncWrite::write(&mut $inner, buf).await
        }
        async fn flush(&mut $self) -> std::io::Result<()> {
            $crate::io::AsyncWrite::flush(&mut $inner).await
        }
        $($shutdown)*
        async fn write_all<B: $crate::io::IoBuf>(&mut $self, buf: B) -> $crate::io::BufResult<(), B> {
            $crate::io::AsyncWrite::write_all(&mut $inner, buf).await
        }
        async fn write_vectored<B: $crate::io::IoBuf>(
            &mut $self,
            bufs: Vec<B>,
        ) -> $crate::io::BufResult<usize, Vec<B>> {
            $crate::io::AsyncWrite::write_vectored(&mut $inner, bufs).await
        }
        async fn write_all_vectored<B: $crate::io::IoBuf>(
            &mut $self,
            bufs: Vec<B>,
        ) -> $crate::io::BufResult<(), Vec<B>> {
            $crate::io::AsyncWrite::write_all_vectored(&mut $inner, bufs).await
        }
        #[allow(clippy::borrow_deref_ref, reason = "in the other methods `self` is a mutable reference")]
        fn kernel_stream(&$self) -> Option<$crate::io::KernelStream> {
            $crate::io::AsyncWrite::kernel_stream(&$inner)
        }
    };
}
pub(crate) use delegate_write;

/// Implements `AsyncRead` for a type with a method `fn bytes(&self) -> &ByteStream`.
macro_rules! impl_async_read {
    ([$($generics:tt)*], $stream:ty) => {
        impl<$($generics)*> $crate::io::AsyncRead for $stream {
            $crate::io::delegate_read!(self => self.bytes());
        }
    };
}
pub(crate) use impl_async_read;

/// Implements `AsyncWrite` for a type with a method `fn bytes(&self) -> &ByteStream`.
macro_rules! impl_async_write {
    ([$($generics:tt)*], $stream:ty) => {
        impl<$($generics)*> $crate::io::AsyncWrite for $stream {
            $crate::io::delegate_write!(self => self.bytes());
        }
    };
}
pub(crate) use impl_async_write;

impl AsyncRead for &ByteStream {
    fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        ByteStream::read(self, buf)
    }
    fn read_managed(&mut self) -> impl Future<Output = io::Result<ManagedBuf>> {
        ByteStream::read_managed(self)
    }
    fn read_vectored<B: IoBufMut>(&mut self, bufs: Vec<B>) -> impl Future<Output = BufResult<usize, Vec<B>>> {
        ByteStream::read_vectored(self, bufs)
    }
    fn read_exact<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<(), B>> {
        ByteStream::read_exact(self, buf)
    }
    fn kernel_stream(&self) -> Option<KernelStream> {
        ByteStream::kernel_stream(self)
    }
}

impl AsyncWrite for &ByteStream {
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        ByteStream::write(self, buf)
    }
    /// Does nothing, because writes are not buffered.
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Shuts down the write side of a socket.
    fn shutdown(&mut self) -> impl Future<Output = io::Result<()>> {
        ByteStream::shutdown(self, Shutdown::Write)
    }
    fn write_all<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<(), B>> {
        ByteStream::write_all(self, buf)
    }
    fn write_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> impl Future<Output = BufResult<usize, Vec<B>>> {
        ByteStream::write_vectored(self, bufs)
    }
    fn write_all_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> impl Future<Output = BufResult<(), Vec<B>>> {
        ByteStream::write_all_vectored(self, bufs)
    }
    fn kernel_stream(&self) -> Option<KernelStream> {
        ByteStream::kernel_stream(self)
    }
}

/// Implements the traits for pointers to streams.
macro_rules! impl_for_pointers {
    ($($pointer:ty),*) => {$(
        impl<T: AsyncRead> AsyncRead for $pointer {
            delegate_read!(self => **self);
        }

        impl<T: AsyncBufRead> AsyncBufRead for $pointer {
            fn fill_buf(&mut self) -> impl Future<Output = io::Result<&[u8]>> {
                (**self).fill_buf()
            }
            fn consume(&mut self, count: usize) {
                (**self).consume(count);
            }
        }

        impl<T: AsyncWrite> AsyncWrite for $pointer {
            delegate_write!(self => **self);
        }

        impl<T: Halves> Halves for $pointer {
            type ReadHalf<'a> = T::ReadHalf<'a> where Self: 'a;
            type WriteHalf<'a> = T::WriteHalf<'a> where Self: 'a;

            fn halves(&mut self) -> (Self::ReadHalf<'_>, Self::WriteHalf<'_>) {
                (**self).halves()
            }
        }
    )*};
}

impl_for_pointers!(&mut T, Box<T>);
