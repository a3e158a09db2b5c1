//! Conversions to and from raw, borrowed and owned descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::fs::File;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::io::pipe;
use crate::io::{AsyncFd, Stderr, Stdin, Stdout};
use crate::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use crate::process::{ChildStderr, ChildStdin, ChildStdout};
use crate::sys::AsSource;

/// Implements the traits for types that own a descriptor.
macro_rules! impl_raw_fd {
    ($($kind:ty: $owned:expr),* $(,)?) => {$(
        impl AsRawFd for $kind {
            /// The descriptor's number. For a socket of a driver with its own descriptors, such as the null driver, it
            /// means nothing to the kernel: see [`FdSpace::is_kernel`](crate::driver::FdSpace::is_kernel).
            fn as_raw_fd(&self) -> RawFd {
                let owned: fn(&$kind) -> &OwnedDescriptor = $owned;
                owned(self).fd()
            }
        }

        impl AsFd for $kind {
            /// # Panics
            ///
            /// For a socket of the null driver or of another driver with its own descriptors, and for a closed pipe.
            fn as_fd(&self) -> BorrowedFd<'_> {
                let owned: fn(&$kind) -> &OwnedDescriptor = $owned;
                crate::sys::borrow(owned(self).kernel_fd().unwrap_or(-1))
            }
        }
    )*};
}

impl_raw_fd!(
    TcpStream: TcpStream::socket,
    TcpListener: TcpListener::socket,
    UdpSocket: UdpSocket::socket,
    UnixStream: UnixStream::socket,
    UnixListener: UnixListener::socket,
    UnixDatagram: UnixDatagram::socket,
    pipe::Sender: |sender| &sender.bytes().owned,
    pipe::Receiver: |receiver| &receiver.bytes().owned,
    ChildStdin: |stdin| &stdin.bytes().owned,
    ChildStdout: |stdout| &stdout.bytes().owned,
    ChildStderr: |stderr| &stderr.bytes().owned,
    File: File::descriptor,
);

/// Implements the traits for the standard streams, whose numbers are fixed.
macro_rules! impl_std_fd {
    ($($kind:ty: $number:expr),*) => {$(
        impl AsRawFd for $kind {
            fn as_raw_fd(&self) -> RawFd {
                $number
            }
        }

        impl AsFd for $kind {
            fn as_fd(&self) -> BorrowedFd<'_> {
                crate::sys::borrow(self.as_raw_fd())
            }
        }
    )*};
}

impl_std_fd!(Stdin: 0, Stdout: 1, Stderr: 2);

impl<T: AsSource> AsRawFd for AsyncFd<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.number()
    }
}

impl<T: AsSource + AsFd> AsFd for AsyncFd<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.get_ref().as_fd()
    }
}

impl pipe::Receiver {
    /// Takes ownership of the read end of a pipe, or of another pollable descriptor, and makes it non-blocking.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn from_fd(fd: impl Into<OwnedFd>) -> io::Result<pipe::Receiver> {
        pipe::Receiver::adopt(fd.into())
    }

    /// Returns the descriptor, still non-blocking. Fails, and returns the receiver in the error, while a read is in
    /// progress or received bytes are unread: they would be lost.
    pub fn into_fd(self) -> Result<OwnedFd, IntoStdError<pipe::Receiver>> {
        self.release()
    }
}

impl pipe::Sender {
    /// Takes ownership of the write end of a pipe, or of another pollable descriptor, and makes it non-blocking.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn from_fd(fd: impl Into<OwnedFd>) -> io::Result<pipe::Sender> {
        pipe::Sender::adopt(fd.into())
    }

    /// Returns the descriptor, still non-blocking. Fails, and returns the sender in the error, while a write is in
    /// progress.
    pub fn into_fd(self) -> Result<OwnedFd, IntoStdError<pipe::Sender>> {
        self.release()
    }
}
