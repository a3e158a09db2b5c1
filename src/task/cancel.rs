//! Cancel tokens: asking many to end, in a tree.
//!
//! A node knows its children, so that a cancel reaches them, and its parent, so that it can leave it. Cancelling goes down
//! the tree with nothing borrowed while wakers are woken. All of it is for one thread, and has no atomics.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::event_loop::exception::guard;

/// A request to end, which anybody who holds a clone can make and everybody can await.
///
/// Cancelling a token cancels its [children](CancelToken::child), and theirs, but not its parent. It stays cancelled.
/// Dropping tokens cancels nothing; a [`drop_guard`](CancelToken::drop_guard) does.
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
    /// The parent, and this one's place among its children.
    parent: Cell<Option<(Rc<Node>, usize)>>,
}

impl CancelToken {
    /// Makes a token without a parent.
    pub fn new() -> CancelToken {
        CancelToken { node: Node::new(false) }
    }

    /// Makes a token that is cancelled with this one, and can be cancelled alone.
    pub fn child(&self) -> CancelToken {
        let node = Node::new(self.is_cancelled());
        if !self.is_cancelled() {
            let place = self.node.children.borrow_mut().insert(Rc::downgrade(&node));
            node.parent.set(Some((self.node.clone(), place)));
        }
        CancelToken { node }
    }

    /// Cancels this token and its children, and theirs, and wakes whoever awaits one. A second time it does nothing.
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
        for waker in wakers {
            guard("a waker", || waker.wake());
        }
    }

    /// Whether it is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.node.is_cancelled.get()
    }

    /// Waits until it is cancelled. Dropping the wait has no effect on anybody else.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled {
            node: self.node.clone(),
            place: None,
        }
    }

    /// Runs `future` until it is done or this token is cancelled; then it is dropped, and there is `None`. A result that is
    /// there when the cancel comes is given. If the token is cancelled beforehand, the future is not polled at all.
    ///
    /// Dropping this drops the future.
    pub async fn run_until_cancelled<F: Future>(&self, future: F) -> Option<F::Output> {
        if self.is_cancelled() {
            return None;
        }
        let (mut future, mut cancelled) = (pin!(future), self.cancelled());
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            Pin::new(&mut cancelled).poll(cx).map(|()| None)
        })
        .await
    }

    /// A guard that cancels the token when it is dropped.
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

    /// Leaves the parent, which the caller lets go of.
    fn leave_parent(&self) -> Option<Rc<Node>> {
        let (parent, place) = self.parent.take()?;
        // A cancelled one has forgotten its children.
        parent.children.borrow_mut().try_remove(place);
        Some(parent)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A long chain of which only the last was held goes one by one, not each inside the destructor of the next.
        let mut next = self.leave_parent();
        while let Some(node) = next {
            next = Rc::into_inner(node).and_then(|node| node.leave_parent());
        }
    }
}

/// The future of [`CancelToken::cancelled`].
#[must_use = "it waits when it is awaited"]
pub struct Cancelled {
    node: Rc<Node>,
    /// Where the waker stands, until the cancel.
    place: Option<usize>,
}

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.node.is_cancelled.get() {
            self.place = None;
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        if self.node.is_cancelled.get() {
            // Inside of the clone, which is foreign code: the waiters are gone.
            self.place = None;
            return Poll::Ready(());
        }
        let old = match self.place {
            Some(place) => Some(std::mem::replace(&mut self.node.waiters.borrow_mut()[place], waker)),
            None => {
                let place = self.node.waiters.borrow_mut().insert(waker);
                self.place = Some(place);
                None
            }
        };
        super::waits_for(super::Reason::Named("a cancel"));
        drop(old);
        Poll::Pending
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        // A cancelled one has forgotten its waiters.
        let waker = self.node.waiters.borrow_mut().try_remove(place);
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

/// Cancels its token when it is dropped: made by [`CancelToken::drop_guard`].
#[derive(Debug)]
#[must_use = "dropping it cancels the token"]
pub struct DropGuard {
    token: Option<CancelToken>,
}

impl DropGuard {
    /// Gives the token back; it is not cancelled.
    pub fn disarm(mut self) -> CancelToken {
        self.token.take().expect("it is there until the guard is gone")
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(token) = &self.token {
            token.cancel();
        }
    }
}
