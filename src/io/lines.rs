//! Reading line by line.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::buf_reader::BufReader;
use super::error::{NotUtf8, TooLong};
use super::read::AsyncRead;
use crate::stream::Generator;

/// The lines of a reader, created by [`BufReader::lines`].
///
/// ```
/// use windlass::io::BufReader;
/// windlass::run(async {
///     let mut lines = BufReader::new(&b"one\r\ntwo\nthree"[..]).lines();
///     let mut all = Vec::new();
///     while let Some(line) = lines.next_line().await? {
///         all.push(line);
///     }
///     assert_eq!(all, ["one", "two", "three"]);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Lines<R> {
    pub(super) reader: BufReader<R>,
}

impl<R> Lines<R> {
    /// The reader.
    pub fn get_ref(&self) -> &BufReader<R> {
        &self.reader
    }

    /// The reader, mutably, for instance to write to its stream.
    pub fn get_mut(&mut self) -> &mut BufReader<R> {
        &mut self.reader
    }

    /// Returns the reader with its buffered bytes.
    pub fn into_inner(self) -> BufReader<R> {
        self.reader
    }
}

impl<'a, R: AsyncRead + 'a> Lines<R> {
    /// A [`Stream`] of the lines: tokio's `LinesStream`.
    ///
    /// A line that is too long or not UTF-8 is an error, and the next line follows. Any other error ends the stream.
    /// Dropping the stream drops the reader with its buffered bytes; to keep them, call
    /// [`next_line`](Lines::next_line).
    ///
    /// ```
    /// use futures_util::TryStreamExt;
    /// use windlass::io::BufReader;
    /// windlass::run(async {
    ///     let lines = BufReader::new(&b"3\n4\n"[..]).lines().into_stream();
    ///     let sum = lines.try_fold(0, async |sum, line| Ok(sum + line.len())).await?;
    ///     assert_eq!(sum, 2);
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_stream(mut self) -> LinesStream<'a> {
        LinesStream {
            lines: Generator::new(async move |lines| {
                while let Some(line) = self.next_line().await.transpose() {
                    let is_last = line
                        .as_ref()
                        .is_err_and(|error| !TooLong::is(error) && !NotUtf8::is(error));
                    lines.emit(line).await;
                    if is_last {
                        break;
                    }
                }
            }),
        }
    }
}

/// The lines of a reader: see [`Lines::into_stream`].
#[must_use = "a stream does nothing until it is polled"]
pub struct LinesStream<'a> {
    lines: Generator<'a, io::Result<String>>,
}

impl Stream for LinesStream<'_> {
    type Item = io::Result<String>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<String>>> {
        self.lines.poll_next(cx)
    }
}

impl fmt::Debug for LinesStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinesStream").finish_non_exhaustive()
    }
}

impl<R: AsyncRead> Lines<R> {
    /// Returns the next line without its `\n` or `\r\n`, or `None` at the end. The last line may lack the newline.
    ///
    /// Errors and cancel safety are as for [`BufReader::read_line`].
    pub async fn next_line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        if line.ends_with('\n') {
            line.pop();
            if line.ends_with('\r') {
                line.pop();
            }
        }
        Ok(Some(line))
    }
}
