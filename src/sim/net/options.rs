//! Socket options: those that were set, and the defaults of the others.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::conn::STREAM_CAPACITY;
use crate::driver::SocketOption;
use crate::sys::errno;

/// The options of a socket that were set, at most one of each kind.
#[derive(Clone, Default)]
pub(super) struct Options(Vec<SocketOption>);

impl Options {
    pub(super) fn set(&mut self, option: SocketOption) {
        match self.0.iter_mut().find(|other| is_alike(other, &option)) {
            Some(other) => *other = option,
            None => self.0.push(option),
        }
    }

    /// The option of the same kind as `like`.
    pub(super) fn get(&self, like: SocketOption) -> Result<SocketOption, i32> {
        let set = self.0.iter().find(|option| is_alike(option, &like));
        set.copied().or_else(|| default_value(like)).ok_or(errno::NOT_SUPPORTED)
    }

    pub(super) fn reuses_port(&self) -> bool {
        self.0.contains(&SocketOption::ReusePort(true))
    }

    pub(super) fn is_only_v6(&self) -> bool {
        self.0.contains(&SocketOption::OnlyV6(true))
    }

    /// `SO_LINGER` of zero: a close sends an RST.
    pub(super) fn resets_on_close(&self) -> bool {
        self.0.contains(&SocketOption::Linger(Some(Duration::ZERO)))
    }

    /// The sizes of the send buffer and the receive buffer.
    pub(super) fn buffers(&self) -> (usize, usize) {
        let mut sizes = (STREAM_CAPACITY, STREAM_CAPACITY);
        for option in &self.0 {
            match *option {
                SocketOption::SendBuffer(len) => sizes.0 = len,
                SocketOption::RecvBuffer(len) => sizes.1 = len,
                _ => {}
            }
        }
        sizes
    }
}

fn is_alike(one: &SocketOption, other: &SocketOption) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// The default value of an option; `None` for options that cannot be read.
fn default_value(like: SocketOption) -> Option<SocketOption> {
    Some(match like {
        SocketOption::Nodelay(_) => SocketOption::Nodelay(false),
        SocketOption::ReuseAddress(_) => SocketOption::ReuseAddress(false),
        SocketOption::ReusePort(_) => SocketOption::ReusePort(false),
        SocketOption::OnlyV6(_) => SocketOption::OnlyV6(false),
        SocketOption::KeepAlive(_) => SocketOption::KeepAlive(None),
        SocketOption::Linger(_) => SocketOption::Linger(None),
        SocketOption::SendBuffer(_) => SocketOption::SendBuffer(STREAM_CAPACITY),
        SocketOption::RecvBuffer(_) => SocketOption::RecvBuffer(STREAM_CAPACITY),
        SocketOption::Broadcast(_) => SocketOption::Broadcast(false),
        SocketOption::TtlV4(_) => SocketOption::TtlV4(64),
        SocketOption::HopsV6(_) => SocketOption::HopsV6(64),
        SocketOption::MulticastLoopV4(_) => SocketOption::MulticastLoopV4(true),
        SocketOption::MulticastLoopV6(_) => SocketOption::MulticastLoopV6(true),
        SocketOption::MulticastTtlV4(_) => SocketOption::MulticastTtlV4(1),
        SocketOption::MulticastHopsV6(_) => SocketOption::MulticastHopsV6(1),
        SocketOption::MulticastInterfaceV4(_) => SocketOption::MulticastInterfaceV4(Ipv4Addr::UNSPECIFIED),
        SocketOption::MulticastInterfaceV6(_) => SocketOption::MulticastInterfaceV6(0),
        SocketOption::UdpGro(_) => SocketOption::UdpGro(false),
        // Messages are not split here.
        SocketOption::UdpSegment(_) => return None,
        SocketOption::JoinV4 { .. }
        | SocketOption::LeaveV4 { .. }
        | SocketOption::JoinV6 { .. }
        | SocketOption::LeaveV6 { .. } => return None,
    })
}
