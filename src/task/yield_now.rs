//! Yielding to the loop.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Yields once, so that everything else that is ready runs first: asyncio's `sleep(0)`.
///
/// ```
/// windlass::run(async {
///     windlass::task::yield_now().await;
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false }
}

/// The future returned by [`yield_now`].
#[derive(Debug)]
#[must_use = "yielding happens when this is awaited"]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
