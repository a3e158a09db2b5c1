//! Wakes of loops from outside of their turns, and threads that are not the world's.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use crate::driver::Notify;
use crate::sys::lock;

/// Wakes of loops from outside of their turns.
pub(super) struct Notified {
    pub(super) is_any: AtomicBool,
    pub(super) loops: Mutex<Vec<u32>>,
    pub(super) thread: ThreadId,
    /// The name of a thread that is not the world's.
    pub(super) foreign: Mutex<Option<String>>,
}

pub(super) struct LoopNotifier {
    pub(super) loop_index: u32,
    pub(super) notified: Arc<Notified>,
}

impl Notified {
    /// Remembers a thread that is not the world's. Called for every event that is sent to a loop.
    pub(super) fn check_thread(&self) {
        let thread = std::thread::current();
        if thread.id() != self.thread {
            let name = thread.name().unwrap_or("without a name").to_owned();
            lock(&self.foreign).get_or_insert(name);
            self.is_any.store(true, SeqCst);
        }
    }
}

impl Notify for LoopNotifier {
    fn notify(&self) {
        self.notified.check_thread();
        lock(&self.notified.loops).push(self.loop_index);
        self.notified.is_any.store(true, SeqCst);
    }
}
