//! What a host's kernel runs out of: descriptors, and memory for sockets.

use super::Network;
use crate::rand::Rng;
use crate::sys::errno;

/// The limits of one host.
#[derive(Default)]
pub(super) struct Limits {
    /// The most descriptors that its process has open; `None` is no limit.
    descriptors: Option<usize>,
    /// The probability that there is no memory for a socket, and its random numbers.
    shortage: Option<(f64, Rng)>,
}

impl Network {
    /// Limits the open descriptors of a host.
    pub(crate) fn set_max_descriptors(&mut self, host: u16, most: usize) {
        self.hosts[usize::from(host)].limits.descriptors = Some(most);
    }

    /// Makes accepts and new sockets of a host fail with this probability.
    pub(crate) fn set_shortage(&mut self, host: u16, probability: f64, rng: Rng) {
        self.hosts[usize::from(host)].limits.shortage = Some((probability, rng));
    }

    /// There is enough memory everywhere.
    pub(crate) fn end_shortages(&mut self) {
        for host in &mut self.hosts {
            host.limits.shortage = None;
        }
    }

    /// `EMFILE` if a host's process cannot open this many descriptors more; `files` are those that are not sockets or pipes.
    pub(crate) fn check_descriptors(&self, host: u16, files: usize, more: usize) -> Result<(), i32> {
        let Some(most) = self.hosts[usize::from(host)].limits.descriptors else {
            return Ok(());
        };
        let sockets = self.sockets.iter();
        let open = sockets.filter(|(_, socket)| socket.host == host && socket.is_open);
        match open.count() + files + more <= most {
            true => Ok(()),
            false => Err(errno::PROCESS_FILES),
        }
    }

    /// `ENOBUFS` if a host's kernel has no memory for a socket now.
    pub(super) fn check_memory(&mut self, host: u16) -> Result<(), i32> {
        let Some((probability, rng)) = &mut self.hosts[usize::from(host)].limits.shortage else {
            return Ok(());
        };
        match rng.chance(*probability) {
            true => Err(errno::NO_BUFFERS),
            false => Ok(()),
        }
    }
}
