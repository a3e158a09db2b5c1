//! The errors [`TooLong`] and [`NotUtf8`], which contain the refused bytes.

use std::fmt;
use std::io;
use std::str::Utf8Error;

/// A stream or a line is longer than its limit.
///
/// Readers return it inside an [`io::Error`] of the kind `InvalidData`; `downcast_ref` gets it back.
///
/// ```
/// use windlass::io::{AsyncRead, TooLong};
/// windlass::run(async {
///     let mut bytes = Vec::new();
///     let error = (&b"too much"[..]).read_to_end(&mut bytes, 3).await.unwrap_err();
///     assert_eq!(error.get_ref().unwrap().downcast_ref::<TooLong>().unwrap().limit(), 3);
///     assert_eq!(bytes, b"too ");
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TooLong {
    limit: usize,
    advice: &'static str,
    bytes: Vec<u8>,
}

impl TooLong {
    pub(super) fn error(limit: usize, advice: &'static str, bytes: Vec<u8>) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, TooLong { limit, advice, bytes })
    }

    pub(super) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<TooLong>())
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes read before the limit was exceeded, unless they are in a buffer of the caller or still in the reader.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than the limit of {} bytes: {}", self.limit, self.advice)
    }
}

impl std::error::Error for TooLong {}

/// Text is not valid UTF-8. The error contains the bytes.
///
/// Readers return it inside an [`io::Error`] of the kind `InvalidData`; `downcast` gets it back.
///
/// ```
/// use windlass::io::{BufReader, NotUtf8};
/// windlass::run(async {
///     let mut lines = BufReader::new(&b"caf\xe9\nbar\n"[..]).lines();
///     let error = lines.next_line().await.unwrap_err();
///     let not_utf8 = error.into_inner().unwrap().downcast::<NotUtf8>().unwrap();
///     assert_eq!(not_utf8.into_bytes(), b"caf\xe9\n");
///     assert_eq!(lines.next_line().await?.as_deref(), Some("bar"));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct NotUtf8 {
    source: &'static str,
    bytes: Vec<u8>,
    error: Utf8Error,
}

impl NotUtf8 {
    /// Converts the bytes to text, or to an error that contains them.
    pub(super) fn check(source: &'static str, bytes: Vec<u8>) -> io::Result<String> {
        String::from_utf8(bytes).map_err(|invalid| {
            let error = invalid.utf8_error();
            let bytes = invalid.into_bytes();
            io::Error::new(io::ErrorKind::InvalidData, NotUtf8 { source, bytes, error })
        })
    }

    pub(super) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<NotUtf8>())
    }

    /// All bytes of the line or stream.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// std's error, with the position of the first invalid byte.
    pub fn utf8_error(&self) -> Utf8Error {
        self.error
    }
}

impl fmt::Display for NotUtf8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} is not UTF-8: {}", self.source, self.error)
    }
}

impl std::error::Error for NotUtf8 {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
