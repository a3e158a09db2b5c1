//! Conversions to and from raw, borrowed and owned sockets and handles.

use std::io;
use std::os::windows::io::{
    AsHandle, AsRawHandle, AsRawSocket, AsSocket, BorrowedHandle, BorrowedSocket, OwnedHandle, RawHandle, RawSocket,
};

use crate::fs::File;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::io::pipe;
use crate::io::{AsyncFd, Stderr, Stdin, Stdout};
use crate::net::{TcpListener, TcpStream, UdpSocket};
use crate::process::{ChildStderr, ChildStdin, ChildStdout};
use crate::sys::AsSource;

macro_rules! impl_raw_socket {
    ($($kind:ty),*) => {$(
        impl AsRawSocket for $kind {
            /// The socket's number. For a socket of the null driver it means nothing to the system.
            fn as_raw_socket(&self) -> RawSocket {
                crate::sys::socket(self.socket().fd()) as RawSocket
            }
        }

        impl AsSocket for $kind {
            /// # Panics
            ///
            /// For a socket of the null driver.
            fn as_socket(&self) -> BorrowedSocket<'_> {
                let is_ours = self.socket().kernel_fd().is_none();
                assert!(!is_ours, "the driver's sockets are its own, and not the system's");
                // SAFETY: the socket is open for as long as its owner is borrowed.
                unsafe { BorrowedSocket::borrow_raw(self.as_raw_socket()) }
            }
        }
    )*};
}

impl_raw_socket!(TcpStream, TcpListener, UdpSocket);

macro_rules! impl_raw_handle {
    ($($kind:ty: $owned:expr),* $(,)?) => {$(
        impl AsRawHandle for $kind {
            fn as_raw_handle(&self) -> RawHandle {
                let owned: fn(&$kind) -> &OwnedDescriptor = $owned;
                crate::sys::handle(owned(self).fd())
            }
        }

        impl AsHandle for $kind {
            /// # Panics
            ///
            /// For a pipe that was closed.
            fn as_handle(&self) -> BorrowedHandle<'_> {
                crate::sys::borrow(crate::sys::number_of_handle(self.as_raw_handle()))
            }
        }
    )*};
}

impl_raw_handle!(
    File: File::descriptor,
    pipe::Sender: |sender| &sender.bytes().owned,
    pipe::Receiver: |receiver| &receiver.bytes().owned,
    ChildStdin: |stdin| &stdin.bytes().owned,
    ChildStdout: |stdout| &stdout.bytes().owned,
    ChildStderr: |stderr| &stderr.bytes().owned,
);

/// Implements the traits for the standard streams, with the handles of std.
macro_rules! impl_std_handle {
    ($($kind:ty: $std:expr),*) => {$(
        impl AsRawHandle for $kind {
            /// Null if there is none.
            fn as_raw_handle(&self) -> RawHandle {
                $std.as_raw_handle()
            }
        }

        impl AsHandle for $kind {
            fn as_handle(&self) -> BorrowedHandle<'_> {
                // SAFETY: it belongs to the process, which keeps it open.
                unsafe { BorrowedHandle::borrow_raw(self.as_raw_handle()) }
            }
        }
    )*};
}

impl_std_handle!(Stdin: std::io::stdin(), Stdout: std::io::stdout(), Stderr: std::io::stderr());

impl<T: AsSource> AsRawSocket for AsyncFd<T> {
    fn as_raw_socket(&self) -> RawSocket {
        crate::sys::socket(self.number()) as RawSocket
    }
}

impl pipe::Receiver {
    /// Takes ownership of the read end of a pipe, which must be open for overlapped calls (`FILE_FLAG_OVERLAPPED`).
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn from_handle(handle: impl Into<OwnedHandle>) -> io::Result<pipe::Receiver> {
        pipe::Receiver::adopt(handle.into().into())
    }

    /// Returns the handle. Fails, and returns the receiver in the error, while a read is in progress or received bytes
    /// are unread: they would be lost.
    pub fn into_handle(self) -> Result<OwnedHandle, IntoStdError<pipe::Receiver>> {
        self.release().map(crate::sys::Foreign::into_handle)
    }
}

impl pipe::Sender {
    /// Takes ownership of the write end of a pipe, which must be open for overlapped calls (`FILE_FLAG_OVERLAPPED`).
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn from_handle(handle: impl Into<OwnedHandle>) -> io::Result<pipe::Sender> {
        pipe::Sender::adopt(handle.into().into())
    }

    /// Returns the handle. Fails, and returns the sender in the error, while a write is in progress.
    pub fn into_handle(self) -> Result<OwnedHandle, IntoStdError<pipe::Sender>> {
        self.release().map(crate::sys::Foreign::into_handle)
    }
}
