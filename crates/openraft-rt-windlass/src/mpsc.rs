//! The bounded channel: tokio's, which needs no runtime, is `Send`, and serves waiting senders in order.

use std::fmt;
use std::future::Future;

use openraft_rt::{Mpsc, MpscReceiver, MpscSender, MpscWeakSender, OptionalSend, SendError, TryRecvError};
use tokio::sync::mpsc;

/// openraft's `Mpsc` for [`WindlassRuntime`](crate::WindlassRuntime).
#[derive(Debug)]
pub struct WindlassMpsc;

/// The sending half of a bounded channel.
pub struct WindlassMpscSender<T>(mpsc::Sender<T>);

/// The receiving half of a bounded channel.
pub struct WindlassMpscReceiver<T>(mpsc::Receiver<T>);

/// A sender that does not keep the channel open.
pub struct WindlassMpscWeakSender<T>(mpsc::WeakSender<T>);

impl Mpsc for WindlassMpsc {
    type Sender<T: OptionalSend> = WindlassMpscSender<T>;
    type Receiver<T: OptionalSend> = WindlassMpscReceiver<T>;
    type WeakSender<T: OptionalSend> = WindlassMpscWeakSender<T>;

    fn channel<T: OptionalSend>(buffer: usize) -> (WindlassMpscSender<T>, WindlassMpscReceiver<T>) {
        let (sender, receiver) = mpsc::channel(buffer);
        (WindlassMpscSender(sender), WindlassMpscReceiver(receiver))
    }
}

impl<T: OptionalSend> MpscSender<WindlassMpsc, T> for WindlassMpscSender<T> {
    async fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.0.send(value).await.map_err(|error| SendError(error.0))
    }

    fn downgrade(&self) -> WindlassMpscWeakSender<T> {
        WindlassMpscWeakSender(self.0.downgrade())
    }
}

impl<T: OptionalSend> MpscReceiver<T> for WindlassMpscReceiver<T> {
    fn recv(&mut self) -> impl Future<Output = Option<T>> + OptionalSend {
        self.0.recv()
    }

    fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            mpsc::error::TryRecvError::Empty => TryRecvError::Empty,
            mpsc::error::TryRecvError::Disconnected => TryRecvError::Disconnected,
        })
    }
}

impl<T: OptionalSend> MpscWeakSender<WindlassMpsc, T> for WindlassMpscWeakSender<T> {
    fn upgrade(&self) -> Option<WindlassMpscSender<T>> {
        self.0.upgrade().map(WindlassMpscSender)
    }
}

impl<T> Clone for WindlassMpscSender<T> {
    fn clone(&self) -> WindlassMpscSender<T> {
        WindlassMpscSender(self.0.clone())
    }
}

impl<T> Clone for WindlassMpscWeakSender<T> {
    fn clone(&self) -> WindlassMpscWeakSender<T> {
        WindlassMpscWeakSender(self.0.clone())
    }
}

impl<T> fmt::Debug for WindlassMpscSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindlassMpscSender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for WindlassMpscReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindlassMpscReceiver").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for WindlassMpscWeakSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindlassMpscWeakSender").finish_non_exhaustive()
    }
}
