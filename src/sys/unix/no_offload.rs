//! Batches of datagrams where the system has no call for them, and does not split or coalesce datagrams.

use std::io;

use socket2::SockRef;

pub(crate) use crate::sys::msg_batch::{recv_one_by_one as recv_batch, send_one_by_one as send_batch};

/// The level and type of the control message with the segment size of a send.
#[cfg(unix)]
pub(super) const SEGMENT: Option<(libc::c_int, libc::c_int)> = None;
/// The level and type of the control message with the segment size of a receive.
#[cfg(unix)]
pub(super) const GRO: Option<(libc::c_int, libc::c_int)> = None;

pub(crate) fn set_gro(_socket: &SockRef<'_>, on: bool) -> io::Result<()> {
    match on {
        true => Err(no_offload()),
        false => Ok(()),
    }
}

pub(crate) fn gro(_socket: &SockRef<'_>) -> io::Result<bool> {
    Ok(false)
}

pub(crate) fn segment_size(_socket: &SockRef<'_>) -> io::Result<u16> {
    Err(no_offload())
}

fn no_offload() -> io::Error {
    let why = "this system neither splits nor coalesces datagrams";
    io::Error::new(io::ErrorKind::Unsupported, why)
}
