//! Cancel tokens: a tree of flags that tasks can await.
//!
//! A node holds weak references to its children, to cancel them too, and a strong one to its parent, to remove itself.
//! `cancel` collects the wakers of the whole subtree and wakes them when nothing is borrowed. No atomics.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::event_loop::exception::wake_all;

/// A request to stop, shared by its clones on one thread. Any clone can cancel it; any number of tasks can await it.
///
/// Cancelling a token also cancels its [children](CancelToken::child) and their descendants, but not its parent. It
/// cannot be undone. Dropping a token does not cancel it; use a [`drop_guard`](CancelToken::drop_guard) for that.
///
/// ```
/// use std::time::Duration;
/// use windlass::{spawn, task::CancelToken, time::sleep};
/// windlass::run(async {
///     let server = CancelToken::new();
///     let connection = server.child();
///     let task = spawn(async move { connection.run_until_cancelled(sleep(Duration::MAX)).await });
///     server.cancel();
///     assert_eq!(task.await.unwrap(), None);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct CancelToken {
    node: Rc<Node>,
}

struct Node {
    is_cancelled: Cell<bool>,
    waiters: RefCell<Slab<Waker>>,
    children: RefCell<Slab<Weak<Node>>>,
    /// The parent, and the key in its `children`.
    parent: Cell<Option<(Rc<Node>, usize)>>,
}

impl CancelToken {
    /// Creates a token without a parent.
    pub fn new() -> CancelToken {
        CancelToken { node: Node::new(false) }
    }

    /// Creates a token that is cancelled with this one and can also be cancelled alone.
    pub fn child(&self) -> CancelToken {
        let node = Node::new(self.is_cancelled());
        if !self.is_cancelled() {
            let index = self.node.children.borrow_mut().insert(Rc::downgrade(&node));
            node.parent.set(Some((self.node.clone(), index)));
        }
        CancelToken { node }
    }

    /// Cancels this token and its descendants, and wakes all waiting tasks. Does nothing if it is cancelled already.
    pub fn cancel(&self) {
        let (mut nodes, mut wakers) = (vec![self.node.clone()], Vec::new());
        while let Some(node) = nodes.pop() {
            if node.is_cancelled.replace(true) {
                continue;
            }
            wakers.extend(node.waiters.take().into_iter().map(|(_, waker)| waker));
            let children = node.children.take();
            nodes.extend(children.into_iter().filter_map(|(_, child)| child.upgrade()));
        }
        wake_all(wakers);
    }

    /// Whether the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.node.is_cancelled.get()
    }

    /// Waits until the token is cancelled. Cancel-safe.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled {
            node: self.node.clone(),
            index: None,
        }
    }

    /// Runs `future` until it completes or the token is cancelled. Returns `None` if the token is cancelled first; the
    /// future is dropped. If both happen in the same poll, the output is returned. A token that is already cancelled
    /// returns `None` without polling the future.
    ///
    /// Dropping this future drops `future`.
    pub async fn run_until_cancelled<F: Future>(&self, future: F) -> Option<F::Output> {
        if self.is_cancelled() {
            return None;
        }
        match super::select(future, self.cancelled()).await {
            super::Either::Left(output) => Some(output),
            super::Either::Right(()) => None,
        }
    }

    /// Converts the token into a guard that cancels it when dropped.
    ///
    /// ```
    /// let token = windlass::task::CancelToken::new();
    /// drop(token.clone().drop_guard());
    /// assert!(token.is_cancelled());
    /// ```
    pub fn drop_guard(self) -> DropGuard {
        DropGuard { token: Some(self) }
    }
}

impl Default for CancelToken {
    fn default() -> CancelToken {
        CancelToken::new()
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken")
            .field("cancelled", &self.is_cancelled())
            .field("waiters", &self.node.waiters.borrow().len())
            .field("children", &self.node.children.borrow().len())
            .finish()
    }
}

impl Node {
    fn new(is_cancelled: bool) -> Rc<Node> {
        Rc::new(Node {
            is_cancelled: Cell::new(is_cancelled),
            waiters: RefCell::default(),
            children: RefCell::default(),
            parent: Cell::new(None),
        })
    }

    /// Removes this node from its parent. Returns the parent for the caller to drop.
    fn leave_parent(&self) -> Option<Rc<Node>> {
        let (parent, index) = self.parent.take()?;
        // A cancelled parent has already cleared its children.
        parent.children.borrow_mut().try_remove(index);
        Some(parent)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Iterative: dropping the last handle of a long chain would otherwise recurse once per node.
        let mut next = self.leave_parent();
        while let Some(node) = next {
            next = Rc::into_inner(node).and_then(|node| node.leave_parent());
        }
    }
}

/// The future returned by [`CancelToken::cancelled`].
#[must_use = "futures do nothing unless awaited"]
pub struct Cancelled {
    node: Rc<Node>,
    /// The key of the waker in `waiters`. Cancelling the token clears those for good.
    index: Option<usize>,
}

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.node.is_cancelled.get() {
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        // Cloning is foreign code: it may have cancelled the token, which has then cleared its waiters.
        if self.node.is_cancelled.get() {
            return Poll::Ready(());
        }
        let old = match self.index {
            Some(index) => Some(std::mem::replace(&mut self.node.waiters.borrow_mut()[index], waker)),
            None => {
                let index = self.node.waiters.borrow_mut().insert(waker);
                self.index = Some(index);
                None
            }
        };
        super::set_wait_reason(super::WaitReason::Named(&"a cancel"));
        drop(old);
        Poll::Pending
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        let Some(index) = self.index.take() else { return };
        // A cancelled node has already cleared its waiters.
        let waker = self.node.waiters.borrow_mut().try_remove(index);
        drop(waker);
    }
}

impl fmt::Debug for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancelled")
            .field("is_cancelled", &self.node.is_cancelled.get())
            .finish()
    }
}

/// Cancels its token when dropped. Created by [`CancelToken::drop_guard`].
#[derive(Debug)]
#[must_use = "dropping it cancels the token"]
pub struct DropGuard {
    token: Option<CancelToken>,
}

impl DropGuard {
    /// Returns the token without cancelling it.
    pub fn disarm(mut self) -> CancelToken {
        self.token
            .take()
            .expect("the token is present until the guard is consumed")
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(token) = &self.token {
            token.cancel();
        }
    }
}
