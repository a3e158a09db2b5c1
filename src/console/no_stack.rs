//! Stacks of other threads are captured on Linux only.

use crate::sys::ThreadNumber;

#[derive(Debug)]
pub(super) struct Stack;

pub(super) async fn capture(_thread: ThreadNumber) -> Option<Stack> {
    None
}

pub(super) fn warm_up() {}

impl Stack {
    pub(super) fn resolve(&self) -> Vec<String> {
        Vec::new()
    }
}
