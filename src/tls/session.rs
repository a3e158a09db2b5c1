//! The rustls connection of a stream and the state of both directions.

use std::cell::Cell;
use std::io::{self, BufRead, IoSlice, Write};

use rustls::Connection;

use super::error::{eof_in_handshake, tls_error, truncated};
use crate::io::ManagedBuf;

/// The protocol state. It is taken out of its cell while in use, because verifiers, key logs and session stores of the
/// configuration are user code that may call back.
pub(super) struct Session(Cell<Option<Box<State>>>);

pub(super) struct State {
    pub(super) tls: Connection,
    /// Received, but not yet accepted by rustls.
    ciphertext: ManagedBuf,
    /// The peer has sent close_notify.
    peer_closed: bool,
    /// The transport has reached EOF.
    transport_eof: bool,
    pub(super) close_notify_sent: bool,
    failure: Option<rustls::Error>,
}

impl Session {
    pub(super) fn new(tls: Connection) -> Session {
        Session(Cell::new(Some(Box::new(State {
            tls,
            ciphertext: ManagedBuf::default(),
            peer_closed: false,
            transport_eof: false,
            close_notify_sent: false,
            failure: None,
        }))))
    }

    /// Runs `action` on the state.
    ///
    /// # Panics
    ///
    /// When called from within `action`.
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
        action(state.expect(
            "a callback of the TLS configuration (verifier, key log or session store) must not use its own stream",
        ))
    }

    /// The state, without taking it out of its cell.
    pub(super) fn get_mut(&mut self) -> &mut State {
        self.0
            .get_mut()
            .as_deref_mut()
            .expect("`&mut self` excludes other uses")
    }
}

impl State {
    /// The next plaintext; empty if there is none.
    pub(super) fn plaintext(&mut self) -> &[u8] {
        // An error only says that there is none; `fill_plaintext` returns the reason.
        self.tls.reader().into_first_chunk().unwrap_or_default()
    }

    /// Marks this much plaintext as used.
    pub(super) fn consume(&mut self, count: usize) {
        self.tls.reader().consume(count);
    }

    /// Processes ciphertext until there is plaintext, EOF or an error. `None` if more has to be received first.
    pub(super) fn fill_plaintext(&mut self) -> Option<io::Result<()>> {
        loop {
            if !self.plaintext().is_empty() || self.peer_closed {
                return Some(Ok(()));
            }
            if let Some(error) = &self.failure {
                return Some(Err(tls_error(error.clone())));
            }
            if !self.ciphertext.is_empty() {
                self.process_ciphertext();
            } else if self.transport_eof {
                return Some(Err(truncated()));
            } else {
                return None;
            }
        }
    }

    /// Stores received ciphertext. An empty buffer is the transport's EOF.
    pub(super) fn received(&mut self, bytes: ManagedBuf) {
        debug_assert!(
            self.ciphertext.is_empty(),
            "received more before the session had consumed the last buffer"
        );
        self.transport_eof = bytes.is_empty();
        self.ciphertext = bytes;
    }

    /// Advances the handshake with the received ciphertext. True if it needs more.
    pub(super) fn advance_handshake(&mut self) -> io::Result<bool> {
        while self.tls.is_handshaking() {
            if let Some(error) = &self.failure {
                return Err(tls_error(error.clone()));
            }
            if self.ciphertext.is_empty() {
                return match self.transport_eof || self.peer_closed {
                    true => Err(eof_in_handshake()),
                    false => Ok(true),
                };
            }
            self.process_ciphertext();
        }
        Ok(false)
    }

    /// Passes ciphertext to rustls. The part that rustls does not accept waits until plaintext has been read.
    fn process_ciphertext(&mut self) {
        match self.tls.read_tls(&mut &self.ciphertext[..]) {
            Ok(count) => self.ciphertext.advance(count),
            // The message is too long for rustls' buffer.
            Err(error) => self.failure = Some(rustls::Error::General(error.to_string())),
        }
        if self.ciphertext.is_empty() {
            // Return it to its pool at once.
            self.ciphertext = ManagedBuf::default();
        }
        match self.tls.process_new_packets() {
            Ok(state) => self.peer_closed = state.peer_has_closed(),
            Err(error) => self.failure = Some(error),
        }
        if self.peer_closed {
            // Data after close_notify must be ignored.
            self.ciphertext = ManagedBuf::default();
        }
    }

    /// Encrypts as many bytes as rustls accepts and returns their number.
    pub(super) fn encrypt(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.close_notify_sent {
            return Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "write after shutdown of the TLS stream",
            ));
        }
        if let Some(error) = &self.failure {
            return Err(tls_error(error.clone()));
        }
        self.tls.writer().write_vectored(bytes)
    }

    /// Queues close_notify.
    pub(super) fn close(&mut self) {
        if !std::mem::replace(&mut self.close_notify_sent, true) {
            self.tls.send_close_notify();
        }
    }

    /// Appends the records that are ready to be sent.
    pub(super) fn take_records(&mut self, into: &mut Vec<u8>) {
        while self.tls.wants_write() {
            // Writing to a `Vec` does not fail.
            if self.tls.write_tls(into).is_err() {
                return;
            }
        }
    }
}
