//! `oneshot`, `broadcast` and `watch` channels.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use windlass::sync::{Closed, SendError, TryRecvError, broadcast, oneshot, watch};

use super::{ByHand, now, panic_of};
use crate::support::{CountDrop, PanicOnDrop};

#[test]
fn a_oneshot_value_arrives_or_is_returned() {
    let (sender, receiver) = oneshot::channel();
    let mut receiver = ByHand::waiting(receiver);
    sender.send(1).unwrap();
    assert!(receiver.is_woken());
    assert_eq!(receiver.poll(), Some(Ok(1)));
    let message = panic_of(|| receiver.poll());
    assert!(message.contains("polled after it returned its value"), "{message}");

    let (sender, receiver) = oneshot::channel();
    assert!(!sender.is_closed());
    drop(receiver);
    assert!(sender.is_closed());
    assert_eq!(sender.send(2), Err(SendError(2)));

    let (sender, receiver) = oneshot::channel::<u8>();
    let mut receiver = ByHand::waiting(receiver);
    drop(sender);
    assert!(receiver.is_woken());
    assert_eq!(receiver.poll(), Some(Err(Closed)));
}

#[test]
fn a_oneshot_can_be_tried_closed_and_awaited_by_reference() {
    let (mut sender, mut receiver) = oneshot::channel();
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    drop(ByHand::waiting(&mut receiver));
    let mut closed = ByHand::waiting(sender.closed());
    receiver.close();
    assert!(closed.is_woken());
    assert_eq!(closed.poll(), Some(()));
    drop(closed);
    assert_eq!(sender.send(1), Err(SendError(1)));
    assert_eq!(now(&mut receiver), Err(Closed));
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));

    // A value that was sent before the close can still be received.
    let (sender, mut receiver) = oneshot::channel();
    sender.send(1).unwrap();
    receiver.close();
    assert_eq!(now(receiver), Ok(1));

    // Closing wakes a waiting sender.
    let (_sender, receiver) = oneshot::channel::<u8>();
    let receiver = RefCell::new(receiver);
    let mut waiting = ByHand::waiting(std::future::poll_fn(|cx| {
        std::pin::Pin::new(&mut *receiver.borrow_mut()).poll(cx)
    }));
    receiver.borrow_mut().close();
    assert!(waiting.is_woken());
    assert_eq!(waiting.poll(), Some(Err(Closed)));
}

#[test]
fn an_unreceived_oneshot_value_is_dropped_with_the_receiver() {
    let drops = Rc::new(Cell::new(0));
    let (sender, receiver) = oneshot::channel();
    assert!(sender.send(CountDrop(drops.clone())).is_ok());
    assert_eq!(drops.get(), 0);
    drop(receiver);
    assert_eq!(drops.get(), 1);
}

#[test]
fn every_broadcast_receiver_gets_every_value_sent_after_it_subscribed() {
    let (sender, mut a) = broadcast::channel(4);
    assert_eq!(sender.send(1).unwrap(), 1);
    let mut b = sender.subscribe();
    let mut waiting = ByHand::waiting(b.recv());
    assert_eq!(sender.clone().send(2).unwrap(), 2);
    assert!(waiting.is_woken());
    assert_eq!(waiting.poll(), Some(Ok(2)));
    drop(waiting);
    assert_eq!((now(a.recv()), now(a.recv())), (Ok(1), Ok(2)));
    assert!(sender.is_empty(), "a value is left");
    assert_eq!(a.try_recv(), Err(broadcast::TryRecvError::Empty));
    sender.send(3).unwrap();
    drop(sender);
    assert_eq!(now(a.recv()), Ok(3));
    assert_eq!(now(a.recv()), Err(broadcast::RecvError::Closed));
    assert_eq!(a.try_recv(), Err(broadcast::TryRecvError::Closed));
    assert_eq!((b.len(), b.try_recv()), (1, Ok(3)));
}

#[test]
fn a_lagging_receiver_learns_how_many_values_it_missed() {
    let (sender, mut receiver) = broadcast::channel(2);
    for value in 0..5 {
        sender.send(value).unwrap();
    }
    assert_eq!((receiver.len(), sender.len()), (5, 2));
    let error = now(receiver.recv()).unwrap_err();
    assert_eq!(error, broadcast::RecvError::Lagged(3));
    assert!(error.to_string().contains("3 values were skipped"), "{error}");
    assert_eq!((now(receiver.recv()), receiver.try_recv()), (Ok(3), Ok(4)));
    assert!(receiver.resubscribe().is_empty());
    assert!(panic_of(|| broadcast::channel::<u8>(0)).contains("at least 1"));
    let (sender, receiver) = broadcast::channel(usize::MAX);
    sender.send(1).unwrap();
    drop(receiver);
    assert_eq!(sender.send(2), Err(SendError(2)));
}

#[test]
fn a_broadcast_value_is_moved_to_its_last_receiver() {
    struct Counted(Rc<Cell<u32>>, CountDrop);
    impl Clone for Counted {
        fn clone(&self) -> Counted {
            self.0.set(self.0.get() + 1);
            Counted(self.0.clone(), CountDrop(self.1.0.clone()))
        }
    }
    let (clones, drops) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (sender, mut a) = broadcast::channel(4);
    let (mut b, c) = (sender.subscribe(), sender.subscribe());
    for _ in 0..2 {
        let sent = sender.send(Counted(clones.clone(), CountDrop(drops.clone())));
        assert_eq!(sent.ok(), Some(3));
    }
    drop(now(a.recv()).ok().unwrap());
    assert_eq!((clones.get(), drops.get(), sender.len()), (1, 1, 2));
    // A receiver that has read nothing is dropped.
    drop(c);
    assert_eq!(sender.len(), 2);
    drop(now(b.recv()).ok().unwrap());
    assert_eq!((clones.get(), drops.get(), sender.len()), (1, 2, 1));
    drop((a, b));
    assert_eq!((drops.get(), sender.len()), (3, 0));
}

#[test]
fn a_value_may_use_its_channel_in_clone_and_drop() {
    struct Reentrant(broadcast::Sender<Reentrant>);
    impl Clone for Reentrant {
        fn clone(&self) -> Reentrant {
            assert!(self.0.len() <= 2);
            Reentrant(self.0.clone())
        }
    }
    impl Drop for Reentrant {
        fn drop(&mut self) {
            let _receivers = self.0.receiver_count();
        }
    }
    let (sender, mut a) = broadcast::channel(1);
    let b = sender.subscribe();
    for _ in 0..3 {
        assert!(sender.send(Reentrant(sender.clone())).is_ok());
    }
    assert!(now(a.recv()).is_err());
    assert!(now(a.recv()).is_ok());
    drop((a, b));
    assert!(sender.is_empty());

    let (sender, receiver) = broadcast::channel(4);
    let count = Rc::new(Cell::new(0));
    assert!(sender.send((PanicOnDrop("a value"), CountDrop(count.clone()))).is_ok());
    drop(receiver);
    assert_eq!(count.get(), 1, "the panic stopped the drop");
}

#[test]
fn a_watch_receiver_sees_the_latest_value_and_is_woken_by_changes() {
    let (sender, mut receiver) = watch::channel(0);
    assert_eq!(receiver.has_changed(), Ok(false));
    let waiting = ByHand::waiting(receiver.changed());
    sender.send(1).unwrap();
    sender.send(2).unwrap();
    assert!(waiting.is_woken());
    drop(waiting);
    assert_eq!(
        receiver.has_changed(),
        Ok(true),
        "a dropped wait does not mark the value as seen"
    );
    assert_eq!(*receiver.borrow(), 2);
    assert_eq!(now(receiver.changed()), Ok(()));
    assert_eq!(receiver.has_changed(), Ok(false));
    receiver.mark_changed();
    assert_eq!(now(receiver.changed()), Ok(()));
    sender.send(3).unwrap();
    assert_eq!(*receiver.borrow_and_update(), 3);
    assert_eq!(receiver.has_changed(), Ok(false));
    sender.send(4).unwrap();
    drop(sender);
    assert_eq!(
        (now(receiver.changed()), now(receiver.changed())),
        (Ok(()), Err(Closed))
    );
    assert_eq!((*receiver.borrow(), receiver.has_changed()), (4, Err(Closed)));
}

#[test]
fn send_if_modified_notifies_only_if_modified() {
    let (sender, mut receiver) = watch::channel(vec![1]);
    assert!(!sender.send_if_modified(|_| false));
    assert_eq!(receiver.has_changed(), Ok(false));
    sender.send_modify(|value| value.push(2));
    assert_eq!(*receiver.borrow_and_update(), [1, 2]);
    let message = panic_of(|| sender.send_modify(|_| panic!("in the middle")));
    assert_eq!(message, "in the middle");
    assert_eq!((receiver.has_changed(), sender.borrow().len()), (Ok(false), 2));
    assert_eq!(sender.send_replace(vec![]), [1, 2]);
    let mut waiting = ByHand::waiting(receiver.wait_for(|value| value.len() == 3));
    sender.send(vec![1]).unwrap();
    assert!(waiting.poll().is_none());
    sender.send(vec![1, 2, 3]).unwrap();
    assert_eq!(*waiting.poll().unwrap().unwrap(), [1, 2, 3]);
    drop(waiting);
    assert!(panic_of(|| now(receiver.wait_for(|_| panic!("a predicate")))).contains("a predicate"));
    assert_eq!(now(receiver.wait_for(|value| value.len() == 3)).unwrap().len(), 3);
}

#[test]
fn sending_while_a_watch_value_is_borrowed_panics() {
    let (sender, receiver) = watch::channel(0);
    let borrowed = receiver.borrow();
    let message = panic_of(|| sender.send(1));
    assert!(message.contains("drop the `Ref` before an await"), "{message}");
    drop(borrowed);
    let message = panic_of(|| sender.send_modify(|_| drop(receiver.borrow())));
    assert!(message.contains("closure that changes it"), "{message}");
    assert_eq!(*receiver.borrow(), 0);
}

#[test]
fn a_watch_sender_knows_when_it_has_no_receiver() {
    let (sender, receiver) = watch::channel(0);
    let other = receiver.clone();
    assert!(receiver.same_channel(&other));
    let mut closed = ByHand::waiting(sender.closed());
    drop(receiver);
    assert!(!closed.is_woken());
    drop(other);
    assert!(closed.is_woken() && sender.is_closed());
    assert_eq!(closed.poll(), Some(()));
    assert_eq!(sender.send(1), Err(SendError(1)));
    assert_eq!(*sender.borrow(), 0);
    sender.send_replace(2);
    assert_eq!(*sender.subscribe().borrow(), 2);
}

#[test]
fn an_old_watch_value_may_borrow_the_channel_when_dropped() {
    struct Look(Option<watch::Sender<Look>>);
    impl Drop for Look {
        fn drop(&mut self) {
            if let Some(sender) = &self.0 {
                assert!(sender.borrow().0.is_none());
            }
        }
    }
    let (sender, _receiver) = watch::channel(Look(None));
    assert!(sender.send(Look(Some(sender.clone()))).is_ok());
    assert!(sender.send(Look(None)).is_ok());
}
