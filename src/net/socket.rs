//! Socket calls other than reads and writes: addresses, options, connect, shutdown.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use crate::driver::op::Op;
use crate::driver::{Control, Reply};
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::OwnedDescriptor;
use crate::inflight::stream::count;
use crate::inflight::{OnOrphan, OpFuture};
use crate::sys::{Name, SocketKind, SocketOption};

impl OwnedDescriptor {
    /// Creates a socket on the current loop.
    pub(crate) fn socket(kind: SocketKind) -> io::Result<OwnedDescriptor> {
        let core = LoopCore::current("a socket's constructor").rc();
        match core.control(Control::Socket { kind })? {
            Reply::Fd(fd) => Ok(OwnedDescriptor::new(core, fd)),
            other => unreachable!("unexpected reply to a socket call: {other:?}"),
        }
    }

    pub(crate) fn bind(&self, name: &Name) -> io::Result<()> {
        self.core().control(Control::Bind { fd: self.fd(), name })?;
        Ok(())
    }

    pub(crate) fn listen(&self, backlog: i32) -> io::Result<()> {
        self.core().control(Control::Listen { fd: self.fd(), backlog })?;
        Ok(())
    }

    /// Connects. Dropping the future cancels the attempt.
    pub(crate) fn connect(&self, name: Name) -> impl Future<Output = io::Result<()>> {
        let descriptor = &self.descriptor;
        let (core, queue, fd) = (&*descriptor.core, &descriptor.write, descriptor.fd);
        async move {
            let _guard = queue.begin(core).await;
            let payload = (descriptor.clone(), name);
            let plan = |(_, name): &mut (Rc<_>, Name)| Op::Connect { fd, name };
            let (op_result, _) = OpFuture::start_op(core, queue, OnOrphan::Discard, payload, plan).await;
            count(op_result.res()).map(|_| ())
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        inet(&self.local_name()?)
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        inet(&self.peer_name()?)
    }

    pub(crate) fn local_name(&self) -> io::Result<Name> {
        self.name(Control::LocalName { fd: self.fd() })
    }

    pub(crate) fn peer_name(&self) -> io::Result<Name> {
        self.name(Control::PeerName { fd: self.fd() })
    }

    fn name(&self, call: Control<'_>) -> io::Result<Name> {
        match self.core().control(call)? {
            Reply::Name(name) => Ok(name),
            other => unreachable!("unexpected reply to {call:?}: {other:?}"),
        }
    }

    pub(crate) fn set(&self, option: SocketOption) -> io::Result<()> {
        self.core().control(Control::SetOption { fd: self.fd(), option })?;
        if let SocketOption::Linger(time) = option {
            self.note_linger(time);
        }
        Ok(())
    }

    /// Records whether closing the socket may block because of `SO_LINGER`.
    pub(crate) fn note_linger(&self, time: Option<Duration>) {
        let lingers = time.is_some_and(|time| time > Duration::ZERO);
        self.descriptor.lingers.set(lingers);
    }

    /// Reads the option of the same kind as `like`, whose value is ignored.
    pub(crate) fn get(&self, like: SocketOption) -> io::Result<SocketOption> {
        match self.core().control(Control::Option { fd: self.fd(), like })? {
            Reply::Option(option) => Ok(option),
            other => unreachable!("unexpected reply for {like:?}: {other:?}"),
        }
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.core().control(Control::Shutdown { fd: self.fd(), how })?;
        Ok(())
    }
}

/// Formats a socket with its addresses, as far as they are known.
pub(crate) fn debug_socket(f: &mut fmt::Formatter<'_>, name: &str, socket: &OwnedDescriptor) -> fmt::Result {
    let mut debug = f.debug_struct(name);
    debug.field("fd", &socket.fd());
    let addrs = [("local", socket.local_name()), ("peer", socket.peer_name())];
    for (field, addr) in addrs {
        if let Ok(addr) = addr {
            debug.field(field, &format_args!("{addr}"));
        }
    }
    debug.finish()
}

/// Converts a name to an IP address and port.
pub(crate) fn inet(name: &Name) -> io::Result<SocketAddr> {
    name.as_socket().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "the socket's address is neither IPv4 nor IPv6",
        )
    })
}

/// The maximum number of hops of a packet, for either address family.
pub(crate) fn hops(socket: &OwnedDescriptor) -> io::Result<u32> {
    let like = match socket.local_addr()?.is_ipv4() {
        true => SocketOption::TtlV4(0),
        false => SocketOption::HopsV6(0),
    };
    match socket.get(like)? {
        SocketOption::TtlV4(hops) | SocketOption::HopsV6(hops) => Ok(hops),
        other => unreachable!("unexpected reply for the hop limit: {other:?}"),
    }
}

pub(crate) fn set_hops(socket: &OwnedDescriptor, hops: u32) -> io::Result<()> {
    socket.set(match socket.local_addr()?.is_ipv4() {
        true => SocketOption::TtlV4(hops),
        false => SocketOption::HopsV6(hops),
    })
}
