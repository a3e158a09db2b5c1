//! Errors with context that keep their kind and the OS's code.

use std::fmt;
use std::io;

/// Adds context to an error: what was being done. The kind stays, and [`os_code`] still finds the OS's code.
pub(crate) fn context(what: impl fmt::Display, error: io::Error) -> io::Error {
    let kind = error.kind();
    let what = what.to_string();
    io::Error::new(kind, Context { what, error })
}

struct Context {
    what: String,
    error: io::Error,
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Context {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The OS's error code, also of an error to which this crate added context.
///
/// std's `raw_os_error` returns `None` for such an error, because it carries a message.
///
/// ```
/// let error = windlass::run(async { windlass::net::TcpListener::bind("192.0.2.1:0").await.unwrap_err() })?;
/// assert_eq!(error.kind(), std::io::ErrorKind::AddrNotAvailable);
/// assert!(windlass::os_code(&error).is_some());
/// assert!(error.to_string().contains("192.0.2.1:0"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn os_code(error: &io::Error) -> Option<i32> {
    if let Some(code) = error.raw_os_error() {
        return Some(code);
    }
    let inner = error.get_ref()?.downcast_ref::<Context>()?;
    os_code(&inner.error)
}

#[cfg(test)]
mod tests {
    use super::super::errno;
    use super::*;

    #[test]
    fn context_keeps_kind_and_code() {
        let error = context("bind", context("inner", io::Error::from_raw_os_error(errno::IN_USE)));
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(os_code(&error), Some(errno::IN_USE));
        assert!(error.to_string().starts_with("bind: inner: "));
    }
}
