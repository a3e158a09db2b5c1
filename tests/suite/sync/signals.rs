//! `Event`, `Notify`, `Condition` and `Barrier`.

use std::rc::Rc;
use std::time::Duration;

use windlass::sync::{Barrier, BrokenBarrier, Condition, Event, Lock, Notify};
use windlass::time::timeout;

use super::{ByHand, now, panic_of};
use crate::support::{on_every_driver, poll_with, turns, waker_calling};

#[test]
fn an_event_releases_its_waiters_even_if_cleared_at_once() {
    let event = Event::new();
    let mut waiting = [ByHand::waiting(event.wait()), ByHand::waiting(event.wait())];
    event.set();
    event.set();
    now(event.wait());
    event.clear();
    let mut late = ByHand::waiting(event.wait());
    for waiting in &mut waiting {
        assert!(waiting.is_woken());
        assert_eq!(waiting.poll(), Some(()));
    }
    assert!(!event.is_set() && late.poll().is_none());
    event.set();
    drop(late);
    assert!(event.is_set());
}

#[test]
fn waiters_are_woken_in_order_despite_a_panicking_waker() {
    let event = Rc::new(Event::new());
    let order = Rc::new(std::cell::RefCell::new(Vec::new()));
    let mut waiting: Vec<_> = (0..5)
        .map(|i| {
            let waker = waker_calling({
                let (order, event) = (order.clone(), event.clone());
                move || {
                    order.borrow_mut().push(i);
                    assert!(event.is_set(), "a waker may use the event");
                    event.set();
                    assert_ne!(i, 1, "a panicking waker");
                }
            });
            let event = event.clone();
            let mut future = Box::pin(async move { event.wait().await });
            assert!(poll_with(&waker, future.as_mut()).is_pending());
            future
        })
        .collect();
    drop(waiting.remove(3));
    event.set();
    // Each waker sets the event again: the remaining waiters are woken inside, still in FIFO order.
    assert_eq!(*order.borrow(), [0, 1, 2, 4]);
}

#[test]
fn a_notification_is_stored_once_and_passed_on() {
    let notify = Notify::new();
    notify.notify_one();
    notify.notify_one();
    now(notify.notified());
    let (a, mut b) = (ByHand::waiting(notify.notified()), ByHand::waiting(notify.notified()));
    notify.notify_one();
    assert!(a.is_woken() && !b.is_woken());
    drop(a);
    assert!(b.is_woken());
    assert_eq!(b.poll(), Some(()));
    // Without another waiter it is stored.
    let c = ByHand::waiting(notify.notified());
    notify.notify_one();
    drop(c);
    now(notify.notified());
    drop(ByHand::waiting(notify.notified()));
}

#[test]
fn notify_waiters_wakes_every_existing_notified() {
    let notify = Notify::new();
    let (mut polled, not_polled) = (ByHand::waiting(notify.notified()), notify.notified());
    notify.notify_waiters();
    assert!(polled.is_woken());
    assert_eq!(polled.poll(), Some(()));
    now(not_polled);
    let late = ByHand::waiting(notify.notified());
    // Woken by `notify_waiters` and dropped: there is nothing to pass on.
    notify.notify_waiters();
    drop(late);
    drop(ByHand::waiting(notify.notified()));
}

#[test]
fn a_waiter_without_budget_misses_no_notification() {
    on_every_driver(|case| {
        case.run(async {
            let (notify, event) = (Notify::new(), Event::new());
            let notified = notify.notified();
            notify.notify_waiters();
            event.set();
            for _ in 0..200 {
                event.wait().await;
            }
            timeout(Duration::from_secs(60), notified).await.expect("notified");
            for _ in 0..200 {
                notify.notify_one();
                timeout(Duration::from_secs(60), notify.notified())
                    .await
                    .expect("notified");
            }
        });
    });
}

#[test]
fn a_condition_waits_without_the_lock_and_reacquires_it() {
    let (lock, condition) = (Lock::new(0), Condition::new());
    let mut waiting = ByHand::waiting(condition.wait(now(lock.lock())));
    assert!(!lock.is_locked());
    let guard = now(lock.lock());
    condition.notify_one();
    assert!(waiting.is_woken());
    assert!(waiting.poll().is_none(), "the lock is held");
    drop(guard);
    assert!(waiting.is_woken());
    let mut guard = waiting.poll().expect("notified");
    *guard += 1;
    assert!(lock.is_locked());
}

#[test]
fn notify_wakes_n_waiters_in_fifo_order() {
    let (lock, condition) = (Rc::new(Lock::new(0)), Condition::new());
    let wait = || ByHand::waiting(condition.wait(now(lock.clone().lock_owned())));
    let mut waiting: Vec<_> = (0..5).map(|_| wait()).collect();
    condition.notify(2);
    let woken: Vec<bool> = waiting.iter().map(ByHand::is_woken).collect();
    assert_eq!(woken, [true, true, false, false, false]);
    drop(waiting[0].poll().expect("notified"));
    // Dropped before it could use its notification.
    waiting.remove(1);
    assert!(waiting[1].is_woken());
    condition.notify_all();
    assert!(waiting[2].is_woken() && waiting[3].is_woken());
    condition.notify(usize::MAX);
    assert!(!lock.is_locked());
}

#[test]
fn a_notification_is_passed_on_by_a_waiter_dropped_while_locking() {
    let (lock, condition) = (Lock::new(0), Condition::new());
    let mut a = ByHand::waiting(condition.wait(now(lock.lock())));
    let mut b = ByHand::waiting(condition.wait(now(lock.lock())));
    let guard = now(lock.lock());
    condition.notify_one();
    assert!(a.poll().is_none(), "the waiter has to wait for the lock");
    drop(a);
    assert!(b.is_woken());
    drop(guard);
    assert!(b.poll().is_some());
}

#[test]
fn a_predicate_that_panics_frees_the_lock_and_passes_the_notification_on() {
    let (lock, condition) = (Lock::new(0), Condition::new());
    let mut bad = ByHand::waiting(condition.wait_for(now(lock.lock()), |value| {
        assert_eq!(*value, 0, "a predicate");
        false
    }));
    let mut good = ByHand::waiting(condition.wait_for(now(lock.lock()), |value| *value == 1));
    *now(lock.lock()) = 1;
    condition.notify_one();
    let message = panic_of(|| bad.poll());
    assert!(message.contains("a predicate"), "{message}");
    drop(bad);
    assert!(good.is_woken());
    let mut guard = good.poll().expect("the predicate holds");
    *guard = 2;
    drop(guard);
    // The predicate holds already: no wait, and no notification is consumed.
    assert_eq!(*now(condition.wait_for(now(lock.lock()), |value| *value == 2)), 2);
}

#[test]
fn a_barrier_releases_all_tasks_and_can_be_reused() {
    let barrier = Barrier::new(3);
    for _ in 0..3 {
        let (mut a, dropped, mut b) = (
            ByHand::waiting(barrier.wait()),
            ByHand::waiting(barrier.wait()),
            None::<ByHand<'_, _>>,
        );
        drop(dropped);
        assert_eq!(barrier.waiting(), 1);
        b.replace(ByHand::waiting(barrier.wait()));
        let mut b = b.unwrap();
        let last = now(barrier.wait()).unwrap();
        assert!(a.is_woken() && b.is_woken());
        let (a, b) = (a.poll().unwrap().unwrap(), b.poll().unwrap().unwrap());
        assert_eq!([a.index(), b.index(), last.index()], [0, 1, 2]);
        assert!(a.is_leader() && !b.is_leader() && !last.is_leader());
    }
    assert_eq!((barrier.parties(), barrier.waiting()), (3, 0));
}

#[test]
fn a_broken_barrier_returns_an_error_until_reset() {
    let barrier = Barrier::new(2);
    let mut waiting = ByHand::waiting(barrier.wait());
    barrier.reset();
    assert_eq!(waiting.poll(), Some(Err(BrokenBarrier)));
    let mut waiting = ByHand::waiting(barrier.wait());
    barrier.abort();
    assert!(waiting.is_woken() && barrier.is_broken());
    assert_eq!(waiting.poll(), Some(Err(BrokenBarrier)));
    assert_eq!(now(barrier.wait()), Err(BrokenBarrier));
    barrier.reset();
    let mut waiting = ByHand::waiting(barrier.wait());
    assert!(now(barrier.wait()).is_ok());
    assert!(matches!(waiting.poll(), Some(Ok(_))));
    assert!(now(Barrier::new(1).wait()).unwrap().is_leader());
    assert!(panic_of(|| Barrier::new(0)).contains("at least one"));
}

#[test]
fn waits_that_are_ready_at_once_yield_to_other_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let event = Rc::new(Event::new());
            let lock = Rc::new(Lock::new(0));
            event.set();
            let busy = windlass::spawn({
                let (event, lock) = (event.clone(), lock.clone());
                async move {
                    for _ in 0..100_000 {
                        event.wait().await;
                        *lock.lock().await += 1;
                    }
                }
            });
            turns(3).await;
            busy.cancel();
            assert!(busy.await.unwrap_err().is_cancelled());
            let count = *lock.lock().await;
            assert!(count > 0 && count <= 200, "{count} in three turns");
        });
    });
}
