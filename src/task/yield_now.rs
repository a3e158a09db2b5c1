//! Letting others run.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Lets everything else that is ready run first. What `asyncio.sleep(0)` is for.
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

/// The future of [`yield_now`].
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
