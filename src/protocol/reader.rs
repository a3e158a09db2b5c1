//! `StreamReader`: the read half of a connection.
//!
//! Calls receive into one buffer through managed reads, on demand, and return slices of it that are valid until the
//! next call: no allocation per line. Bytes leave the buffer only when a call or its error returns them, so a cancelled
//! or failed call loses none.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use super::streams::SharedStream;

/// asyncio's default.
const LIMIT: usize = 64 * 1024;

/// A fully read buffer of more than this capacity is freed, to keep idle connections small.
const RETAINED_MAX: usize = 16 * 1024;

/// The read half of a connection: asyncio's `StreamReader`.
///
/// **Cancel safety:** no call loses data: the next call returns the bytes that a dropped future had received.
///
/// ```
/// use windlass::net::{open_connection, start_server};
/// windlass::run(async {
///     let server = start_server(async |_, writer| writer.write("name: windlass\r\n\r\nbody"), "127.0.0.1:0").await?;
///     let (mut reader, _writer) = open_connection(server.local_addr()?).await?;
///     assert_eq!(reader.read_line().await?, "name: windlass\r\n");
///     assert_eq!(reader.read_until("\r\n").await?, b"\r\n");
///     assert_eq!(reader.read_exactly(2).await?, b"bo");
///     assert_eq!(reader.read(100).await?, b"dy");
///     assert!(reader.read(100).await?.is_empty());
///     assert!(reader.at_eof());
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct StreamReader {
    shared: Rc<SharedStream>,
    buf: Vec<u8>,
    /// Bytes before this position were returned.
    pos: usize,
    limit: usize,
    eof: bool,
}

impl StreamReader {
    pub(super) fn new(shared: Rc<SharedStream>) -> StreamReader {
        StreamReader {
            shared,
            buf: Vec::new(),
            pos: 0,
            limit: LIMIT,
            eof: false,
        }
    }

    /// Returns between one and `n` bytes: those that are buffered, even if they are fewer than `n`, or else those that the
    /// next receive returns. The result is empty at EOF, and if `n` is 0, which waits for nothing. Unlike in asyncio,
    /// there is no default for `n` that reads until EOF: see [`read_to_end`](StreamReader::read_to_end).
    pub async fn read(&mut self, n: usize) -> io::Result<&[u8]> {
        if n > 0 && self.leftover().is_empty() {
            self.receive().await?;
        }
        let count = n.min(self.leftover().len());
        Ok(self.consume(count))
    }

    /// Returns exactly `n` bytes. `n` is not limited, and the bytes are buffered: check it if the peer chooses it.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the stream ends first. It contains the partial data: see [`IncompleteRead`].
    pub async fn read_exactly(&mut self, n: usize) -> io::Result<&[u8]> {
        while self.leftover().len() < n {
            if !self.receive().await? {
                return Err(self.incomplete(Some(n)));
            }
        }
        Ok(self.consume(n))
    }

    /// Returns everything up to and including the first `separator`.
    ///
    /// # Errors
    ///
    /// - `InvalidData` with a [`LimitOverrun`] if more bytes than the [limit](StreamReader::set_limit) precede the
    ///   separator. The bytes stay buffered.
    /// - `UnexpectedEof` if the stream ends first. It contains the partial data: see [`IncompleteRead`].
    /// - `InvalidInput` if the separator is empty.
    pub async fn read_until(&mut self, separator: impl AsRef<[u8]>) -> io::Result<&[u8]> {
        let separator = separator.as_ref();
        match self.find(separator).await? {
            Some(end) => Ok(self.consume(end)),
            None => Err(self.incomplete(None)),
        }
    }

    /// Returns a line including its `\n`, which the last line may lack. Empty at EOF.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the line is not UTF-8, or, with a [`LimitOverrun`], longer than the
    /// [limit](StreamReader::set_limit). The bytes stay buffered: [`read_until`](StreamReader::read_until) or
    /// [`read`](StreamReader::read) returns them.
    pub async fn read_line(&mut self) -> io::Result<&str> {
        let end = match self.find(b"\n").await? {
            Some(end) => end,
            None => self.leftover().len(),
        };
        if let Err(error) = std::str::from_utf8(&self.leftover()[..end]) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        let line = self.consume(end);
        Ok(std::str::from_utf8(line).expect("checked above"))
    }

    /// Returns everything up to EOF. More than `max` bytes are an `InvalidData` error, a [`LimitOverrun`], and stay
    /// buffered.
    pub async fn read_to_end(&mut self, max: usize) -> io::Result<&[u8]> {
        loop {
            let eof = !self.receive().await?;
            let len = self.leftover().len();
            if len > max {
                return Err(overrun(len, max));
            }
            if eof {
                return Ok(self.consume(len));
            }
        }
    }

    /// Whether a call has received EOF and everything was read.
    pub fn at_eof(&self) -> bool {
        self.eof && self.leftover().is_empty()
    }

    /// Sets how many bytes may precede a separator or newline. The default is 64 KiB.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The limit set by [`set_limit`](StreamReader::set_limit).
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The peer's IP address, also after the connection is closed. An error for Unix sockets.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.shared.addrs.peer.inet()
    }

    /// The local IP address, also after the connection is closed. An error for Unix sockets.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.addrs.local.inet()
    }

    fn leftover(&self) -> &[u8] {
        &self.buf[self.pos..]
    }

    /// The end of the first separator, relative to `leftover()`; `None` at EOF.
    async fn find(&mut self, separator: &[u8]) -> io::Result<Option<usize>> {
        if separator.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the separator is empty"));
        }
        let mut searched = 0;
        loop {
            let leftover = self.leftover();
            if let Some(begin) = position(&leftover[searched..], separator).map(|begin| begin + searched) {
                if begin > self.limit {
                    return Err(overrun(begin, self.limit));
                }
                return Ok(Some(begin + separator.len()));
            }
            // The buffer may end with a part of the separator.
            searched = (leftover.len() + 1).saturating_sub(separator.len());
            if searched > self.limit {
                return Err(overrun(searched, self.limit));
            }
            if !self.receive().await? {
                return Ok(None);
            }
        }
    }

    /// Receives once; false at EOF.
    async fn receive(&mut self) -> io::Result<bool> {
        if self.eof {
            return Ok(false);
        }
        if self.pos == self.buf.len() {
            self.pos = 0;
            self.buf.clear();
            if self.buf.capacity() > RETAINED_MAX {
                self.buf = Vec::new();
            }
        }
        let bytes = self.shared.receive().await?;
        if bytes.is_empty() {
            self.eof = true;
            return Ok(false);
        }
        // Reuse the consumed space before growing.
        if self.pos > 0 && self.buf.len() + bytes.len() > self.buf.capacity() {
            self.buf.drain(..self.pos);
            self.pos = 0;
        }
        self.buf.extend_from_slice(&bytes);
        Ok(true)
    }

    fn consume(&mut self, count: usize) -> &[u8] {
        let begin = self.pos;
        self.pos += count;
        &self.buf[begin..self.pos]
    }

    fn incomplete(&mut self, expected: Option<usize>) -> io::Error {
        let len = self.leftover().len();
        let partial = self.consume(len).to_vec();
        io::Error::new(io::ErrorKind::UnexpectedEof, IncompleteRead { partial, expected })
    }
}

/// The position of the first occurrence of `wanted`.
fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    match wanted {
        [byte] => bytes.iter().position(|other| other == byte),
        _ => bytes.windows(wanted.len()).position(|window| window == wanted),
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.shared.reader_dropped();
    }
}

impl fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamReader")
            .field("local", &self.local_addr().ok())
            .field("peer", &self.peer_addr().ok())
            .field("unread", &self.leftover().len())
            .field("at_eof", &self.at_eof())
            .finish()
    }
}

/// The stream ended before a read was complete: asyncio's `IncompleteReadError`.
///
/// ```
/// use windlass::net::{open_connection, start_server};
/// use windlass::protocol::IncompleteRead;
/// windlass::run(async {
///     let server = start_server(async |_, writer| writer.write("abc"), "127.0.0.1:0").await?;
///     let (mut reader, _writer) = open_connection(server.local_addr()?).await?;
///     let error = reader.read_exactly(10).await.unwrap_err();
///     assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
///     assert_eq!(IncompleteRead::of(&error).unwrap().partial(), b"abc");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct IncompleteRead {
    partial: Vec<u8>,
    expected: Option<usize>,
}

impl IncompleteRead {
    /// The `IncompleteRead` inside an error of a [`StreamReader`], if there is one.
    pub fn of(error: &io::Error) -> Option<&IncompleteRead> {
        error.get_ref()?.downcast_ref()
    }

    /// The bytes before the end.
    pub fn partial(&self) -> &[u8] {
        &self.partial
    }

    /// The requested number of bytes, if the call had one.
    pub fn expected(&self) -> Option<usize> {
        self.expected
    }
}

impl fmt::Display for IncompleteRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let received = self.partial.len();
        match self.expected {
            Some(expected) => write!(f, "the stream ended after {received} of {expected} bytes"),
            None => write!(f, "the stream ended after {received} bytes, before the separator"),
        }
    }
}

impl std::error::Error for IncompleteRead {}

/// More bytes arrived than the limit allows: asyncio's `LimitOverrunError`. The bytes stay buffered.
///
/// ```
/// use windlass::net::{open_connection, start_server};
/// use windlass::protocol::LimitOverrun;
/// windlass::run(async {
///     let server = start_server(async |_, writer| writer.write("far too long\n"), "127.0.0.1:0").await?;
///     let (mut reader, _writer) = open_connection(server.local_addr()?).await?;
///     reader.set_limit(5);
///     let error = reader.read_line().await.unwrap_err();
///     assert_eq!(LimitOverrun::of(&error).unwrap().limit(), 5);
///     reader.set_limit(100);
///     assert_eq!(reader.read_line().await?, "far too long\n");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct LimitOverrun {
    found: usize,
    limit: usize,
}

impl LimitOverrun {
    /// The `LimitOverrun` inside an error of a [`StreamReader`], if there is one.
    pub fn of(error: &io::Error) -> Option<&LimitOverrun> {
        error.get_ref()?.downcast_ref()
    }

    /// The number of buffered bytes without a separator (for `read_to_end`, all of them): asyncio's `consumed`.
    pub fn consumed(&self) -> usize {
        self.found
    }

    /// The limit that was exceeded.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

impl fmt::Display for LimitOverrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes exceed the limit of {}", self.found, self.limit)
    }
}

impl std::error::Error for LimitOverrun {}

fn overrun(found: usize, limit: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, LimitOverrun { found, limit })
}
