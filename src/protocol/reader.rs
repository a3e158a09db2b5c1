//! The reading half of a connection.
//!
//! Bytes come in by managed reads, when somebody asks for more than is there, and wait in one buffer. What a call gives is a
//! part of that buffer, until the next call: nothing is allocated per line. Bytes leave the buffer only when a call gives
//! them out, so a call that is dropped, or that fails, has lost none.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use super::streams::Conversation;

/// asyncio's limit.
const LIMIT: usize = 64 * 1024;

/// A buffer that has been read to its end is kept if it is no larger: an idle connection should not hold much.
const KEPT_MAX: usize = 16 * 1024;

/// The reading half of a connection: asyncio's `StreamReader`.
///
/// Dropping the future of any of these calls loses nothing: the next call finds what had been received.
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
    conversation: Rc<Conversation>,
    buf: Vec<u8>,
    /// What is in front of this was given out.
    at: usize,
    limit: usize,
    has_ended: bool,
}

impl StreamReader {
    pub(super) fn new(conversation: Rc<Conversation>) -> StreamReader {
        StreamReader {
            conversation,
            buf: Vec::new(),
            at: 0,
            limit: LIMIT,
            has_ended: false,
        }
    }

    /// Gives some bytes, at most `n`: those that are there, or else the next that come. None means that the stream has
    /// ended.
    ///
    /// Dropping the future loses nothing.
    pub async fn read(&mut self, n: usize) -> io::Result<&[u8]> {
        if n > 0 && self.leftover().is_empty() {
            self.receive().await?;
        }
        let count = n.min(self.leftover().len());
        Ok(self.give(count))
    }

    /// Gives exactly `n` bytes, however many that is.
    ///
    /// If the stream ends first, the error is `UnexpectedEof`, and it has the bytes that came: see [`IncompleteRead`].
    /// Dropping the future loses nothing.
    pub async fn read_exactly(&mut self, n: usize) -> io::Result<&[u8]> {
        while self.leftover().len() < n {
            if !self.receive().await? {
                return Err(self.incomplete(Some(n)));
            }
        }
        Ok(self.give(n))
    }

    /// Gives everything up to the first `separator`, which is included.
    ///
    /// If more than the [limit](StreamReader::set_limit) comes in front of it, the error is `InvalidData`, a
    /// [`LimitOverrun`]; the bytes stay there, for other calls. If the stream ends first, the error is `UnexpectedEof`, and it
    /// has the bytes that came: see [`IncompleteRead`]. An empty separator is the error `InvalidInput`.
    ///
    /// Dropping the future loses nothing.
    pub async fn read_until(&mut self, separator: impl AsRef<[u8]>) -> io::Result<&[u8]> {
        let separator = separator.as_ref();
        match self.find(separator).await? {
            Some(end) => Ok(self.give(end)),
            None => Err(self.incomplete(None)),
        }
    }

    /// Gives a line with its `\n`; the last one may have none. An empty text means that the stream has ended.
    ///
    /// A line longer than the [limit](StreamReader::set_limit) is the error `InvalidData`, a [`LimitOverrun`]; so is one that
    /// is not UTF-8. In either case the bytes stay there: [`read_until`](StreamReader::read_until) or
    /// [`read`](StreamReader::read) gets them. Dropping the future loses nothing.
    pub async fn read_line(&mut self) -> io::Result<&str> {
        let end = match self.find(b"\n").await? {
            Some(end) => end,
            None => self.leftover().len(),
        };
        if let Err(error) = std::str::from_utf8(&self.leftover()[..end]) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        let link = self.give(end);
        Ok(std::str::from_utf8(link).expect("it was just looked at"))
    }

    /// Gives everything up to the end of the stream. More than `max` bytes are the error `InvalidData`, and stay there.
    ///
    /// Dropping the future loses nothing.
    pub async fn read_to_end(&mut self, max: usize) -> io::Result<&[u8]> {
        loop {
            let has_ended = !self.receive().await?;
            let len = self.leftover().len();
            if len > max {
                return Err(overrun(LimitOverrun { found: len, limit: max }));
            }
            if has_ended {
                return Ok(self.give(len));
            }
        }
    }

    /// Whether the stream has ended and everything was read. That it has ended is known when a call has met the end.
    pub fn at_eof(&self) -> bool {
        self.has_ended && self.leftover().is_empty()
    }

    /// Sets how many bytes may come in front of a separator (64 KiB).
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// How many bytes may come in front of a separator.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The address of the other end; also when the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.conversation.ends.peer_addr()
    }

    /// The address of this end; also when the connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.conversation.ends.local_addr()
    }

    fn leftover(&self) -> &[u8] {
        &self.buf[self.at..]
    }

    /// Where the first separator ends, counted from what is unread; `None` if the stream ends without one.
    async fn find(&mut self, separator: &[u8]) -> io::Result<Option<usize>> {
        if separator.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a separator needs at least one byte",
            ));
        }
        let mut searched = 0;
        loop {
            let leftover = self.leftover();
            if let Some(begin) = position(&leftover[searched..], separator).map(|begin| begin + searched) {
                if begin > self.limit {
                    return Err(overrun(LimitOverrun {
                        found: begin,
                        limit: self.limit,
                    }));
                }
                return Ok(Some(begin + separator.len()));
            }
            // The separator may have come half.
            searched = (leftover.len() + 1).saturating_sub(separator.len());
            if searched > self.limit {
                return Err(overrun(LimitOverrun {
                    found: searched,
                    limit: self.limit,
                }));
            }
            if !self.receive().await? {
                return Ok(None);
            }
        }
    }

    /// Receives once; false at the end.
    async fn receive(&mut self) -> io::Result<bool> {
        if self.has_ended {
            return Ok(false);
        }
        if self.at == self.buf.len() {
            self.at = 0;
            self.buf.clear();
            if self.buf.capacity() > KEPT_MAX {
                self.buf = Vec::new();
            }
        }
        let bytes = self.conversation.receive().await?;
        if bytes.is_empty() {
            self.has_ended = true;
            return Ok(false);
        }
        // What was given out makes room before the buffer grows.
        if self.at > 0 && self.buf.len() + bytes.len() > self.buf.capacity() {
            self.buf.drain(..self.at);
            self.at = 0;
        }
        self.buf.extend_from_slice(&bytes);
        Ok(true)
    }

    fn give(&mut self, count: usize) -> &[u8] {
        let begin = self.at;
        self.at += count;
        &self.buf[begin..self.at]
    }

    fn incomplete(&mut self, expected: Option<usize>) -> io::Error {
        let len = self.leftover().len();
        let partial = self.give(len).to_vec();
        io::Error::new(io::ErrorKind::UnexpectedEof, IncompleteRead { partial, expected })
    }
}

/// Where `wanted` begins.
fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    match wanted {
        [byte] => bytes.iter().position(|other| other == byte),
        _ => bytes.windows(wanted.len()).position(|window| window == wanted),
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.conversation.reader_dropped();
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

/// The stream ended before everything that was asked for had come: asyncio's `IncompleteReadError`. It has what did come.
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
    /// The one inside of an error of a [`StreamReader`], if that is what it is.
    pub fn of(error: &io::Error) -> Option<&IncompleteRead> {
        error.get_ref()?.downcast_ref()
    }

    /// What came before the end.
    pub fn partial(&self) -> &[u8] {
        &self.partial
    }

    /// How many bytes were asked for, if that was a number.
    pub fn expected(&self) -> Option<usize> {
        self.expected
    }
}

impl fmt::Display for IncompleteRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let came = self.partial.len();
        match self.expected {
            Some(expected) => write!(f, "the stream ended after {came} of {expected} bytes"),
            None => write!(f, "the stream ended after {came} bytes, without the separator"),
        }
    }
}

impl std::error::Error for IncompleteRead {}

/// More bytes came than the limit allows: asyncio's `LimitOverrunError`. They are still there to be read.
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
    /// The one inside of an error of a [`StreamReader`], if that is what it is.
    pub fn of(error: &io::Error) -> Option<&LimitOverrun> {
        error.get_ref()?.downcast_ref()
    }

    /// How many bytes may be read away, which hold no separator: asyncio's `consumed`.
    pub fn consumed(&self) -> usize {
        self.found
    }

    /// The limit.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

impl fmt::Display for LimitOverrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes without an end, where at most {} are allowed",
            self.found, self.limit
        )
    }
}

impl std::error::Error for LimitOverrun {}

fn overrun(overrun: LimitOverrun) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, overrun)
}
