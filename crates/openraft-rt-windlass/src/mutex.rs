//! The async mutex: tokio's, which is fair.

use std::future::Future;

use openraft_rt::OptionalSend;
use tokio::sync::{Mutex, MutexGuard};

/// openraft's `Mutex` for [`WindlassRuntime`](crate::WindlassRuntime).
#[derive(Debug)]
pub struct WindlassMutex<T>(Mutex<T>);

impl<T: OptionalSend + 'static> openraft_rt::Mutex<T> for WindlassMutex<T> {
    type Guard<'a> = MutexGuard<'a, T>;

    fn new(value: T) -> WindlassMutex<T> {
        WindlassMutex(Mutex::new(value))
    }

    fn lock(&self) -> impl Future<Output = MutexGuard<'_, T>> + OptionalSend {
        self.0.lock()
    }
}
