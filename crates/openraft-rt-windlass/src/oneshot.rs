//! The channel for one value: tokio's.

use std::fmt;

use openraft_rt::{Oneshot, OneshotSender, OptionalSend};
use tokio::sync::oneshot;

/// openraft's `Oneshot` for [`WindlassRuntime`](crate::WindlassRuntime).
#[derive(Debug)]
pub struct WindlassOneshot;

/// The sending half of a channel for one value.
pub struct WindlassOneshotSender<T>(oneshot::Sender<T>);

impl Oneshot for WindlassOneshot {
    type Sender<T: OptionalSend> = WindlassOneshotSender<T>;
    type Receiver<T: OptionalSend> = oneshot::Receiver<T>;
    type ReceiverError = oneshot::error::RecvError;

    fn channel<T: OptionalSend>() -> (WindlassOneshotSender<T>, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (WindlassOneshotSender(sender), receiver)
    }
}

impl<T: OptionalSend> OneshotSender<T> for WindlassOneshotSender<T> {
    fn send(self, value: T) -> Result<(), T> {
        self.0.send(value)
    }
}

impl<T> fmt::Debug for WindlassOneshotSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindlassOneshotSender").finish_non_exhaustive()
    }
}
