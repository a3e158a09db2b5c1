//! Sockets between loops: those that the pool keeps, and connections on their way to another shard.
//!
//! In a simulation the numbers of a host's sockets are valid on all its loops, so a number is all that travels.

use std::io;
use std::net::SocketAddr;

#[cfg(feature = "sim")]
use crate::driver::Control;
#[cfg(feature = "sim")]
use crate::event_loop::core::LoopCore;
#[cfg(feature = "sim")]
use crate::inflight::descriptor::OwnedDescriptor;
use crate::net::{TcpBuilder, TcpListener, TcpStream, UdpBuilder, UdpSocket};
#[cfg(feature = "sim")]
use crate::sys::Fd;

/// A socket that belongs to no loop.
pub(super) enum FreeSocket<S> {
    Kernel(S),
    #[cfg(feature = "sim")]
    Simulated(Fd),
}

pub(super) type FreeListener = FreeSocket<std::net::TcpListener>;
pub(super) type FreeStream = FreeSocket<std::net::TcpStream>;
pub(super) type FreeUdp = FreeSocket<std::net::UdpSocket>;

impl<S> FreeSocket<S> {
    /// Closes it. In a simulation, on a loop of its host.
    pub(super) fn close(self) {
        match self {
            FreeSocket::Kernel(socket) => drop(socket),
            #[cfg(feature = "sim")]
            FreeSocket::Simulated(fd) => {
                if let Some(core) = LoopCore::try_current() {
                    let _ = core.control(Control::Close { fd });
                }
            }
        }
    }
}

impl FreeListener {
    /// Binds a listener, on the current loop if it is simulated.
    pub(super) fn bind(
        builder: &TcpBuilder,
        addr: SocketAddr,
        is_simulated: bool,
    ) -> io::Result<(FreeListener, SocketAddr)> {
        #[cfg(feature = "sim")]
        if is_simulated {
            let listener = builder.listen_on(addr)?;
            let addr = listener.local_addr()?;
            return Ok((FreeSocket::Simulated(listener.socket().release_simulated()?), addr));
        }
        debug_assert!(!is_simulated);
        let listener = builder.listen_std(addr)?;
        let addr = listener.local_addr()?;
        Ok((FreeSocket::Kernel(listener), addr))
    }

    /// A listener of the current loop on the same socket.
    pub(super) fn share(&self) -> io::Result<TcpListener> {
        match self {
            FreeSocket::Kernel(socket) => TcpListener::from_std(socket.try_clone()?),
            #[cfg(feature = "sim")]
            &FreeSocket::Simulated(fd) => Ok(TcpListener::from_socket(OwnedDescriptor::share_simulated(fd)?)),
        }
    }
}

impl FreeUdp {
    /// As [`FreeListener::bind`].
    pub(super) fn bind(
        builder: &UdpBuilder,
        addr: SocketAddr,
        is_simulated: bool,
    ) -> io::Result<(FreeUdp, SocketAddr)> {
        #[cfg(feature = "sim")]
        if is_simulated {
            let socket = builder.bind_to(addr)?;
            let addr = socket.local_addr()?;
            return Ok((FreeSocket::Simulated(socket.socket().release_simulated()?), addr));
        }
        debug_assert!(!is_simulated);
        let socket = builder.bind_std(addr)?;
        let addr = socket.local_addr()?;
        Ok((FreeSocket::Kernel(socket), addr))
    }

    /// A socket of the current loop for the same address.
    pub(super) fn share(&self) -> io::Result<UdpSocket> {
        match self {
            FreeSocket::Kernel(socket) => UdpSocket::from_std(socket.try_clone()?),
            #[cfg(feature = "sim")]
            &FreeSocket::Simulated(fd) => Ok(UdpSocket::from_socket(OwnedDescriptor::share_simulated(fd)?)),
        }
    }
}

impl FreeStream {
    /// Takes a connection from its loop, or returns it if it has operations in flight.
    pub(super) fn release(stream: TcpStream) -> Result<FreeStream, TcpStream> {
        #[cfg(feature = "sim")]
        if stream.socket().kernel_fd().is_none() {
            return match stream.socket().release_simulated() {
                Ok(fd) => Ok(FreeSocket::Simulated(fd)),
                Err(_) => Err(stream),
            };
        }
        match stream.into_std() {
            Ok(stream) => Ok(FreeSocket::Kernel(stream)),
            Err(refused) => Err(refused.into_inner()),
        }
    }

    /// Gives it to the current loop.
    pub(super) fn adopt(self) -> io::Result<TcpStream> {
        match self {
            FreeSocket::Kernel(stream) => TcpStream::from_std(stream),
            #[cfg(feature = "sim")]
            FreeSocket::Simulated(fd) => {
                let core = LoopCore::current("a simulated connection").rc();
                Ok(TcpStream::from_socket(OwnedDescriptor::new(core, fd)))
            }
        }
    }
}
