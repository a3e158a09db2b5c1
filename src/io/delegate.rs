//! Macros that implement the stream traits by delegation.

use std::future::Future;
use std::io;

use super::BufResult;
use super::buf::{IoBuf, IoBufMut};
use super::managed::ManagedBuf;
use super::read::{AsyncBufRead, AsyncRead};
use super::splice::KernelStream;
use super::split::Halves;
use super::write::AsyncWrite;

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

/// The methods of `AsyncWrite`, forwarded to an inner writer.
macro_rules! delegate_write {
    ($self:ident => $inner:expr) => {
        async fn write<B: $crate::io::IoBuf>(&mut $self, buf: B) -> $crate::io::BufResult<usize, B> {
            $crate::io::AsyncWrite::write(&mut $inner, buf).await
        }
        async fn flush(&mut $self) -> std::io::Result<()> {
            $crate::io::AsyncWrite::flush(&mut $inner).await
        }
        async fn shutdown(&mut $self) -> std::io::Result<()> {
            $crate::io::AsyncWrite::shutdown(&mut $inner).await
        }
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
            async fn read<B: $crate::io::IoBufMut>(&mut self, buf: B) -> $crate::io::BufResult<usize, B> {
                self.bytes().read(buf).await
            }
            async fn read_managed(&mut self) -> std::io::Result<$crate::io::ManagedBuf> {
                self.bytes().read_managed().await
            }
            async fn read_vectored<B: $crate::io::IoBufMut>(
                &mut self,
                bufs: Vec<B>,
            ) -> $crate::io::BufResult<usize, Vec<B>> {
                self.bytes().read_vectored(bufs).await
            }
            async fn read_exact<B: $crate::io::IoBufMut>(&mut self, buf: B) -> $crate::io::BufResult<(), B> {
                self.bytes().read_exact(buf).await
            }
            fn kernel_stream(&self) -> Option<$crate::io::KernelStream> {
                self.bytes().kernel_stream()
            }
        }
    };
}
pub(crate) use impl_async_read;

/// Implements `AsyncWrite` for a type with a method `fn bytes(&self) -> &ByteStream`. Without `closes`, `shutdown`
/// shuts down a socket; with it, `shutdown` closes the end of a pipe through `fn bytes_mut(&mut self)`.
macro_rules! impl_async_write {
    ([$($generics:tt)*], $stream:ty) => {
        $crate::io::impl_async_write!(
            [$($generics)*], $stream,
            /// Shuts down the write side: the peer reads end of stream.
            async fn shutdown(&mut self) -> std::io::Result<()> {
                self.bytes().shutdown(std::net::Shutdown::Write).await
            }
        );
    };
    ([$($generics:tt)*], $stream:ty, closes) => {
        $crate::io::impl_async_write!(
            [$($generics)*], $stream,
            /// Closes this end of the pipe after the write in progress: the reader sees end of stream.
            async fn shutdown(&mut self) -> std::io::Result<()> {
                self.bytes_mut().close().await
            }
        );
    };
    ([$($generics:tt)*], $stream:ty, $($shutdown:tt)*) => {
        impl<$($generics)*> $crate::io::AsyncWrite for $stream {
            async fn write<B: $crate::io::IoBuf>(&mut self, buf: B) -> $crate::io::BufResult<usize, B> {
                self.bytes().write(buf).await
            }
            /// Does nothing, because writes are not buffered.
            async fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
            $($shutdown)*
            async fn write_all<B: $crate::io::IoBuf>(&mut self, buf: B) -> $crate::io::BufResult<(), B> {
                self.bytes().write_all(buf).await
            }
            async fn write_vectored<B: $crate::io::IoBuf>(
                &mut self,
                bufs: Vec<B>,
            ) -> $crate::io::BufResult<usize, Vec<B>> {
                self.bytes().write_vectored(bufs).await
            }
            async fn write_all_vectored<B: $crate::io::IoBuf>(
                &mut self,
                bufs: Vec<B>,
            ) -> $crate::io::BufResult<(), Vec<B>> {
                self.bytes().write_all_vectored(bufs).await
            }
            fn kernel_stream(&self) -> Option<$crate::io::KernelStream> {
                self.bytes().kernel_stream()
            }
        }
    };
}
pub(crate) use impl_async_write;

/// Implements the traits for pointers to streams.
macro_rules! impl_for_pointers {
    ($($pointer:ty),*) => {$(
        impl<T: AsyncRead> AsyncRead for $pointer {
            fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
                (**self).read(buf)
            }
            fn read_managed(&mut self) -> impl Future<Output = io::Result<ManagedBuf>> {
                (**self).read_managed()
            }
            fn read_vectored<B: IoBufMut>(&mut self, bufs: Vec<B>) -> impl Future<Output = BufResult<usize, Vec<B>>> {
                (**self).read_vectored(bufs)
            }
            fn read_exact<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<(), B>> {
                (**self).read_exact(buf)
            }
            fn read_to_end(&mut self, into: &mut Vec<u8>, limit: usize) -> impl Future<Output = io::Result<usize>> {
                (**self).read_to_end(into, limit)
            }
            fn read_to_string(&mut self, limit: usize) -> impl Future<Output = io::Result<String>> {
                (**self).read_to_string(limit)
            }
            fn kernel_stream(&self) -> Option<KernelStream> {
                (**self).kernel_stream()
            }
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
            fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
                (**self).write(buf)
            }
            fn flush(&mut self) -> impl Future<Output = io::Result<()>> {
                (**self).flush()
            }
            fn shutdown(&mut self) -> impl Future<Output = io::Result<()>> {
                (**self).shutdown()
            }
            fn write_all<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<(), B>> {
                (**self).write_all(buf)
            }
            fn write_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> impl Future<Output = BufResult<usize, Vec<B>>> {
                (**self).write_vectored(bufs)
            }
            fn write_all_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> impl Future<Output = BufResult<(), Vec<B>>> {
                (**self).write_all_vectored(bufs)
            }
            fn kernel_stream(&self) -> Option<KernelStream> {
                (**self).kernel_stream()
            }
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
