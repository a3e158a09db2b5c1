//! rustls' half of a stream: what was received and not yet read, what the protocol has come to.

use std::cell::Cell;
use std::io::{self, BufRead, IoSlice, Write};

use rustls::Connection;

use super::error::{cut_off, ended, told};
use crate::io::ManagedBuf;

/// The protocol's state. It is out of its cell while it is used, since a configuration's verifiers, key logs and stores are
/// other people's code.
pub(super) struct Session(Cell<Option<Box<State>>>);

pub(super) struct State {
    pub(super) tls: Connection,
    /// Ciphertext that the session had no room for yet.
    unfed: ManagedBuf,
    /// The peer has said that it will send no more.
    has_peer_closed: bool,
    /// The stream below has ended.
    has_ended: bool,
    /// close_notify was sent.
    pub(super) has_closed: bool,
    failure: Option<rustls::Error>,
}

impl Session {
    pub(super) fn new(tls: Connection) -> Session {
        Session(Cell::new(Some(Box::new(State {
            tls,
            unfed: ManagedBuf::default(),
            has_peer_closed: false,
            has_ended: false,
            has_closed: false,
            failure: None,
        }))))
    }

    /// Uses the state.
    ///
    /// # Panics
    ///
    /// Within another use of it.
    pub(super) fn with<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        struct Borrowed<'a>(&'a Session, Option<Box<State>>);
        impl Drop for Borrowed<'_> {
            fn drop(&mut self) {
                self.0.0.set(self.1.take());
            }
        }
        let state = self.0.take();
        let mut borrowed = Borrowed(self, state);
        let state = borrowed.1.as_deref_mut();
        action(
            state
                .expect("a verifier, key log or store of a TLS configuration has used the stream that it is asked for"),
        )
    }
}

impl Session {
    /// The state, for who has the stream alone.
    pub(super) fn get_mut(&mut self) -> &mut State {
        self.0.get_mut().as_deref_mut().expect("nobody else uses it")
    }
}

impl State {
    /// The plaintext that comes next; empty if there is none.
    pub(super) fn plaintext(&mut self) -> &[u8] {
        // An error only says that there is nothing, for reasons that `look` tells.
        self.tls.reader().into_first_chunk().unwrap_or_default()
    }

    /// This much of the plaintext was used.
    pub(super) fn consume(&mut self, count: usize) {
        self.tls.reader().consume(count);
    }

    /// Whether there is plaintext, or an end to tell. `None` if more has to be received first.
    pub(super) fn look(&mut self) -> Option<io::Result<()>> {
        loop {
            if !self.plaintext().is_empty() || self.has_peer_closed {
                return Some(Ok(()));
            }
            if let Some(error) = &self.failure {
                return Some(Err(told(error.clone())));
            }
            if !self.unfed.is_empty() {
                self.feed();
            } else if self.has_ended {
                return Some(Err(cut_off()));
            } else {
                return None;
            }
        }
    }

    /// Takes in what was received; nothing is the end of the stream below.
    pub(super) fn received(&mut self, bytes: ManagedBuf) {
        debug_assert!(self.unfed.is_empty(), "more is received only when the session needs it");
        self.has_ended = bytes.is_empty();
        self.unfed = bytes;
    }

    /// One step of the handshake with what there is. True if it needs more.
    pub(super) fn shake(&mut self) -> io::Result<bool> {
        while self.tls.is_handshaking() {
            if let Some(error) = &self.failure {
                return Err(told(error.clone()));
            }
            if self.unfed.is_empty() {
                return match self.has_ended || self.has_peer_closed {
                    true => Err(ended()),
                    false => Ok(true),
                };
            }
            self.feed();
        }
        Ok(false)
    }

    /// Gives the session some of what it was not yet given. The rest waits until what came of it was read.
    fn feed(&mut self) {
        match self.tls.read_tls(&mut &self.unfed[..]) {
            Ok(count) => self.unfed.advance(count),
            // It has no room for so long a message.
            Err(error) => self.failure = Some(rustls::Error::General(error.to_string())),
        }
        if self.unfed.is_empty() {
            // Back to its pool at once.
            self.unfed = ManagedBuf::default();
        }
        match self.tls.process_new_packets() {
            Ok(state) => self.has_peer_closed = state.peer_has_closed(),
            Err(error) => self.failure = Some(error),
        }
        if self.has_peer_closed {
            // What comes behind the end is to be ignored.
            self.unfed = ManagedBuf::default();
        }
    }

    /// Makes records of as much as the session takes, and says how much that was.
    pub(super) fn encrypt(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.has_closed {
            return Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the TLS stream was shut down: nothing can be written to it any more",
            ));
        }
        if let Some(error) = &self.failure {
            return Err(told(error.clone()));
        }
        self.tls.writer().write_vectored(bytes)
    }

    /// Says that nothing more will be written.
    pub(super) fn close(&mut self) {
        if !std::mem::replace(&mut self.has_closed, true) {
            self.tls.send_close_notify();
        }
    }

    pub(super) fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Appends the records that are to be sent.
    pub(super) fn records(&mut self, into: &mut Vec<u8>) {
        while self.tls.wants_write() {
            // A vector takes everything.
            if self.tls.write_tls(into).is_err() {
                return;
            }
        }
    }
}
