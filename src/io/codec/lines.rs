//! Lines of text.

use std::io;

use bytes::{Buf, BytesMut};

use super::{Decoder, Encoder, FrameBuf};
use crate::io::{NotUtf8, TooLong};
use crate::sys;

/// The default maximum line length, as for `BufReader`.
const MAX_LEN: usize = 64 * 1024;

const ADVICE: &str = "the line is too long and is skipped; raise `max_len` to accept it";

/// Lines of UTF-8 text, which end with `\n` or `\r\n`. An encoded line ends with `\n`.
///
/// A line that is too long is a [`TooLong`] error and is skipped; a line that is not UTF-8 is a [`NotUtf8`] error, which
/// contains it. In both cases decoding continues with the next line.
///
/// ```
/// use windlass::io::codec::{FramedRead, LinesCodec};
/// windlass::run(async {
///     let mut lines = FramedRead::new(&b"one\r\nmuch too long\ntwo"[..], LinesCodec::new().max_len(5));
///     assert_eq!(lines.next().await.transpose()?.as_deref(), Some("one"));
///     assert!(lines.next().await.unwrap().is_err());
///     assert_eq!(lines.next().await.transpose()?.as_deref(), Some("two"));
///     assert!(lines.next().await.is_none());
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LinesCodec {
    max_len: usize,
    /// The number of bytes at the start of the buffer that contain no newline.
    searched: usize,
    /// The bytes up to the next newline belong to a line that was too long.
    is_skipping: bool,
}

impl LinesCodec {
    /// A codec for lines of up to 64 KiB.
    pub fn new() -> LinesCodec {
        LinesCodec {
            max_len: MAX_LEN,
            searched: 0,
            is_skipping: false,
        }
    }

    /// Sets the maximum length of a line in bytes, without its newline.
    #[must_use]
    pub fn max_len(mut self, len: usize) -> LinesCodec {
        self.max_len = len;
        self
    }

    /// Removes `len` bytes and a newline, and returns the line.
    fn take_line(&mut self, buf: &mut BytesMut, len: usize, newline: usize) -> io::Result<Option<String>> {
        self.searched = 0;
        let mut line = buf[..len].to_vec();
        buf.advance(len + newline);
        if newline > 0 && line.last() == Some(&b'\r') {
            line.pop();
        }
        NotUtf8::check("line", line).map(Some)
    }
}

impl Default for LinesCodec {
    fn default() -> LinesCodec {
        LinesCodec::new()
    }
}

impl Decoder for LinesCodec {
    type Item = String;
    type Error = io::Error;

    fn decode(&mut self, buf: &mut BytesMut) -> io::Result<Option<String>> {
        if self.is_skipping {
            match sys::find_byte(buf, b'\n') {
                Some(at) => buf.advance(at + 1),
                None => {
                    buf.clear();
                    return Ok(None);
                }
            }
            self.is_skipping = false;
        }
        // The caller may have changed the buffer between two calls.
        let searched = self.searched.min(buf.len());
        let found = sys::find_byte(&buf[searched..], b'\n').map(|at| searched + at);
        let len = found.unwrap_or(buf.len());
        if len > self.max_len {
            self.searched = 0;
            self.is_skipping = found.is_none();
            buf.advance(found.map_or(len, |at| at + 1));
            return Err(TooLong::error(self.max_len, ADVICE, Vec::new()));
        }
        match found {
            Some(at) => self.take_line(buf, at, 1),
            None => {
                self.searched = len;
                Ok(None)
            }
        }
    }

    /// The last line may lack the newline.
    fn decode_eof(&mut self, buf: &mut BytesMut) -> io::Result<Option<String>> {
        match self.decode(buf)? {
            None if !buf.is_empty() => self.take_line(buf, buf.len(), 0),
            line => Ok(line),
        }
    }
}

impl<T: AsRef<str>> Encoder<T> for LinesCodec {
    type Error = io::Error;

    fn encode(&mut self, line: T, buf: &mut FrameBuf) -> io::Result<()> {
        let (line, buf) = (line.as_ref(), buf.bytes_mut());
        buf.reserve(line.len() + 1);
        buf.extend_from_slice(line.as_bytes());
        buf.extend_from_slice(b"\n");
        Ok(())
    }
}
