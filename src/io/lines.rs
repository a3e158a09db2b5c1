//! Reading line by line.

use std::io;

use super::buf_reader::BufReader;
use super::read::AsyncRead;

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
