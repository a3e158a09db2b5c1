//! Names of Unix sockets: paths, and abstract names.
//!
//! As in the kernel, a path outlives its socket: until it is removed it cannot be bound again, and a connect to it is
//! refused. An abstract name ends with its socket.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Network, State};
use crate::sys::{Fd, Name, errno};

/// The Unix sockets of a host by name; `None` for a path whose socket is closed.
pub(super) type Names = BTreeMap<Rc<[u8]>, Option<Fd>>;

/// Where a path begins in a name: after the address family.
const PATH_AT: usize = 2;

impl Network {
    /// Binds a socket to a name that is free.
    pub(super) fn bind_name(&mut self, host: u16, fd: Fd, name: &Name) -> Result<Rc<[u8]>, i32> {
        let names = &mut self.hosts[usize::from(host)].names;
        if names.contains_key(name.as_bytes()) {
            return Err(errno::IN_USE);
        }
        let name: Rc<[u8]> = name.as_bytes().into();
        names.insert(name.clone(), Some(fd));
        Ok(name)
    }

    fn socket_named(&mut self, host: u16, name: &Name) -> Result<Fd, i32> {
        match self.hosts[usize::from(host)].names.get(name.as_bytes()) {
            Some(Some(fd)) => Ok(*fd),
            Some(None) => Err(errno::REFUSED),
            None if is_abstract(name.as_bytes()) => Err(errno::REFUSED),
            None => Err(errno::NOT_FOUND),
        }
    }

    /// The stream listener with this name.
    pub(super) fn listener_named(&mut self, host: u16, name: &Name) -> Result<Fd, i32> {
        let fd = self.socket_named(host, name)?;
        match self.socket(fd)?.state {
            State::Listener(_) => Ok(fd),
            State::Datagrams(_) => Err(errno::WRONG_TYPE),
            State::Fresh(_) | State::Connecting { .. } | State::SynSent(_) | State::Stream { .. } => {
                Err(errno::REFUSED)
            }
        }
    }

    /// The datagram socket with this name.
    pub(super) fn datagrams_named(&mut self, host: u16, name: &Name) -> Result<Fd, i32> {
        let fd = self.socket_named(host, name)?;
        match self.socket(fd)?.state {
            State::Datagrams(_) => Ok(fd),
            State::Fresh(_)
            | State::Connecting { .. }
            | State::SynSent(_)
            | State::Listener(_)
            | State::Stream { .. } => Err(errno::WRONG_TYPE),
        }
    }

    /// The socket with this name is closed.
    pub(super) fn close_name(&mut self, host: u16, name: &Rc<[u8]>, fd: Fd) {
        let names = &mut self.hosts[usize::from(host)].names;
        match names.get_mut(name) {
            Some(bound) if *bound == Some(fd) && !is_abstract(name) => *bound = None,
            Some(bound) if *bound == Some(fd) => drop(names.remove(name)),
            _ => {}
        }
    }

    /// Removes a path, which is free again even if its socket is open. False if no socket was bound there.
    pub(crate) fn remove_path(&mut self, host: u16, path: &[u8]) -> bool {
        let names = &mut self.hosts[usize::from(host)].names;
        let is_at = |name: &Rc<[u8]>| name.get(PATH_AT..).is_some_and(|bytes| without_nul(bytes) == path);
        let Some(name) = names.keys().find(|name| is_at(name)).cloned() else {
            return false;
        };
        names.remove(&name);
        true
    }
}

/// Whether the name is not a path: it starts with NUL.
fn is_abstract(name: &[u8]) -> bool {
    name.get(PATH_AT) == Some(&0)
}

fn without_nul(path: &[u8]) -> &[u8] {
    path.split(|byte| *byte == 0).next().unwrap_or_default()
}
