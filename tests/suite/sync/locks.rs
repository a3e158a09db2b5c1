//! `Lock`, `RwLock`, `Semaphore` and `OnceCell`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use windlass::sync::{
    Closed, Lock, OnceCell, OwnedRwLockWriteGuard, RwLock, RwLockWriteGuard, Semaphore, TryAcquireError, TryLockError,
};

use super::{ByHand, now, panic_of};
use crate::support::{on_every_driver, poll_with, turns, waker_calling};

#[test]
fn a_lock_is_handed_to_the_longest_waiter() {
    let lock = Lock::new(0);
    let guard = now(lock.lock());
    let (mut a, b, mut c) = (
        ByHand::waiting(lock.lock()),
        ByHand::waiting(lock.lock()),
        ByHand::waiting(lock.lock()),
    );
    assert!(lock.is_locked());
    drop(guard);
    assert!(a.is_woken() && !b.is_woken());
    assert_eq!(
        lock.try_lock().err(),
        Some(TryLockError),
        "the lock is reserved for the first waiter"
    );
    assert!(lock.is_locked());
    let guard = a.poll().expect("called");
    drop(b);
    drop(guard);
    assert!(c.is_woken());
    let guard = c.poll().expect("called");
    drop(guard);
    assert!(!lock.is_locked());
    assert!(lock.try_lock().is_ok());
}

#[test]
fn a_lock_handed_to_a_dropped_waiter_goes_to_the_next() {
    let lock = Lock::new(0);
    let guard = now(lock.lock());
    let (a, mut b) = (ByHand::waiting(lock.lock()), ByHand::waiting(lock.lock()));
    drop(guard);
    drop(a);
    assert!(b.is_woken());
    drop(b.poll());
    assert!(lock.try_lock().is_ok());
}

#[test]
fn a_waiter_wakes_the_task_that_polled_it_last() {
    let lock = Lock::new(0);
    let guard = now(lock.lock());
    let mut waiting = Box::pin(lock.lock());
    let wakes = Rc::new(RefCell::new(String::new()));
    for name in ['a', 'a', 'b'] {
        let wakes = wakes.clone();
        let waker = waker_calling(move || wakes.borrow_mut().push(name));
        assert!(poll_with(&waker, waiting.as_mut()).is_pending());
    }
    drop(guard);
    assert_eq!(*wakes.borrow(), "b");
}

#[test]
fn a_task_that_panics_frees_its_lock() {
    on_every_driver(|case| {
        case.run(async {
            let lock = Rc::new(Lock::new(0));
            let task = windlass::spawn({
                let lock = lock.clone();
                async move {
                    *lock.lock().await = 1;
                    let _guard = lock.lock().await;
                    turns(1).await;
                    panic!("with the lock");
                }
            });
            turns(1).await;
            assert!(format!("{lock:?}").contains("<locked>"));
            assert_eq!(*lock.lock().await, 1);
            assert!(task.await.unwrap_err().is_panic());
            assert!(format!("{lock:?}").contains("value: 1"));
        });
    });
}

#[test]
fn a_value_may_be_unsized_and_can_be_taken_out() {
    let lock: Rc<Lock<[i32]>> = Rc::new(Lock::new([1, 2, 3]));
    now(lock.lock())[1] = 5;
    let guard = now(lock.clone().lock_owned());
    assert_eq!(guard[..], [1, 5, 3]);
    assert!(lock.clone().try_lock_owned().is_err());
    drop(guard);
    assert!(lock.clone().try_lock_owned().is_ok());
    let mut lock = Lock::from("a");
    *lock.get_mut() = "b";
    assert_eq!(lock.into_inner(), "b");
}

#[test]
fn a_waiting_writer_precedes_later_readers() {
    let lock = RwLock::new(0);
    let (one, two) = (now(lock.read()), now(lock.read()));
    let mut writer = ByHand::waiting(lock.write());
    let (mut three, mut four) = (ByHand::waiting(lock.read()), ByHand::waiting(lock.read()));
    assert!(lock.try_read().is_err(), "a writer waits");
    drop(one);
    assert!(!writer.is_woken());
    drop(two);
    assert!(writer.is_woken() && !three.is_woken());
    let writing = writer.poll().expect("called");
    assert!(lock.try_read().is_err() && lock.try_write().is_err());
    let last = ByHand::waiting(lock.write());
    drop(writing);
    assert!(three.is_woken() && four.is_woken() && !last.is_woken());
    let (three, four) = (three.poll().expect("called"), four.poll().expect("called"));
    assert_eq!((*three, *four), (0, 0));
    drop((three, four));
    assert!(last.is_woken());
    drop(last);
    assert!(!lock.is_locked());
}

#[test]
fn readers_proceed_when_the_waiting_writer_is_dropped() {
    let lock = RwLock::new(0);
    let reading = now(lock.read());
    let writer = ByHand::waiting(lock.write());
    let mut reader = ByHand::waiting(lock.read());
    drop(writer);
    assert!(reader.is_woken());
    assert_eq!(*reader.poll().expect("called"), *reading);
}

#[test]
fn a_downgraded_writer_admits_readers_but_no_writer() {
    let lock = Rc::new(RwLock::new(0));
    let mut writing = now(lock.write());
    *writing = 7;
    let (mut reader, mut writer) = (ByHand::waiting(lock.read()), ByHand::waiting(lock.write()));
    let reading = RwLockWriteGuard::downgrade(writing);
    assert!(reader.is_woken() && !writer.is_woken());
    assert_eq!(*reader.poll().expect("called"), 7);
    drop(reading);
    assert!(writer.is_woken());
    drop(writer.poll().expect("called"));
    let reading = OwnedRwLockWriteGuard::downgrade(now(lock.clone().write_owned()));
    assert_eq!(*reading, 7);
    assert!(lock.try_read().is_ok() && lock.try_write().is_err());
    let also = lock.clone().try_read_owned().expect("readers are admitted");
    assert!(lock.clone().try_write_owned().is_err());
    drop(reading);
    assert_eq!(*also, 7);
    drop(also);
    assert!(!lock.is_locked());
    assert_eq!(Rc::strong_count(&lock), 1);
}

#[test]
fn a_request_for_many_permits_is_not_overtaken() {
    let semaphore = Semaphore::new(3);
    let held = now(semaphore.acquire_many(2)).unwrap();
    let mut many = ByHand::waiting(semaphore.acquire_many(3));
    assert_eq!(semaphore.available_permits(), 1);
    assert_eq!(semaphore.try_acquire().err(), Some(TryAcquireError::NoPermits));
    let few = ByHand::waiting(semaphore.acquire());
    drop(held);
    assert!(many.is_woken() && !few.is_woken());
    let mut all = many.poll().expect("called").unwrap();
    let part = all.split(1).expect("there are three");
    assert_eq!((all.count(), part.count()), (2, 1));
    assert!(all.split(3).is_none());
    drop(part);
    assert!(few.is_woken());
    drop(few);
    drop(all);
    assert_eq!(semaphore.available_permits(), 3);
}

#[test]
fn dropping_a_request_for_many_permits_serves_the_next() {
    let semaphore = Semaphore::new(1);
    let many = ByHand::waiting(semaphore.acquire_many(2));
    let mut few = ByHand::waiting(semaphore.acquire());
    drop(many);
    assert!(few.is_woken());
    assert_eq!(few.poll().expect("called").unwrap().count(), 1);
}

#[test]
fn permits_are_added_forgotten_and_counted() {
    let semaphore = Rc::new(Semaphore::new(0));
    let mut two = ByHand::waiting(semaphore.acquire_many(2));
    semaphore.add_permits(1);
    assert!(!two.is_woken());
    semaphore.add_permits(2);
    assert!(two.is_woken());
    two.poll().expect("called").unwrap().forget();
    assert_eq!(semaphore.available_permits(), 1);
    assert_eq!(semaphore.forget_permits(5), 1);
    drop(two);
    assert_eq!(semaphore.available_permits(), 0);
    // Acquiring zero permits always succeeds.
    drop(now(semaphore.acquire_many(0)).unwrap());
    semaphore.add_permits(1);
    let mut owned = semaphore.clone().try_acquire_owned().unwrap();
    assert!(owned.split(1).is_some());
    assert_eq!(owned.count(), 0);
    owned.forget();
    drop(now(semaphore.clone().acquire_owned()).unwrap());
    assert_eq!(Rc::strong_count(&semaphore), 1);
}

#[test]
fn huge_counts_neither_wrap_nor_hang() {
    let semaphore = Semaphore::new(usize::MAX);
    let message = panic_of(|| semaphore.add_permits(1));
    assert!(message.contains("usize::MAX"), "{message}");
    let all = now(semaphore.acquire_many(usize::MAX)).unwrap();
    let message = panic_of(|| semaphore.add_permits(1));
    assert!(message.contains("usize::MAX"), "acquired permits count too: {message}");
    drop(all);
    assert_eq!(semaphore.available_permits(), usize::MAX);
}

#[test]
fn a_closed_semaphore_returns_an_error() {
    let semaphore = Semaphore::new(2);
    let held = now(semaphore.acquire()).unwrap();
    let mut waiting = ByHand::waiting(semaphore.acquire_many(2));
    semaphore.close();
    assert!(waiting.is_woken());
    assert_eq!(waiting.poll().expect("called").err(), Some(Closed));
    assert_eq!(now(semaphore.acquire()).err(), Some(Closed));
    assert_eq!(semaphore.try_acquire().err(), Some(TryAcquireError::Closed));
    drop(held);
    assert_eq!(semaphore.available_permits(), 2);
    assert!(semaphore.is_closed());
}

#[test]
fn one_caller_initialises_a_once_cell_and_the_others_wait() {
    let cell = OnceCell::new();
    let made = Cell::new(0);
    let mut first = ByHand::waiting(cell.get_or_init(async || {
        made.set(made.get() + 1);
        yield_by_hand().await;
        5
    }));
    let mut others = [
        ByHand::waiting(cell.get_or_init(async || 6)),
        ByHand::waiting(cell.get_or_init(async || 7)),
    ];
    assert_eq!(cell.set(8), Err(8));
    assert_eq!(first.poll(), Some(&5));
    for other in &mut others {
        assert!(other.is_woken());
        assert_eq!(other.poll(), Some(&5));
    }
    drop((first, others));
    assert_eq!((made.get(), cell.set(9)), (1, Err(9)));
    let mut cell = cell;
    *cell.get_mut().unwrap() += 1;
    assert_eq!(cell.take(), Some(6));
    assert_eq!(cell.set(1), Ok(()));
    assert_eq!(OnceCell::from(1).into_inner(), cell.into_inner());
}

#[test]
fn after_a_failed_initialiser_the_next_one_runs() {
    let cell = OnceCell::new();
    let mut fails = ByHand::waiting(cell.get_or_try_init(async || {
        yield_by_hand().await;
        Err("failed")
    }));
    let mut panics = ByHand::waiting(cell.get_or_init(async || panic!("initialiser panics")));
    let mut never = ByHand::waiting(cell.get_or_init(async || std::future::pending().await));
    let mut last = ByHand::waiting(cell.get_or_init(async || 4));
    assert_eq!(fails.poll(), Some(Err("failed")));
    assert!(panics.is_woken() && !never.is_woken());
    assert_eq!(panic_of(|| panics.poll()), "initialiser panics");
    drop(panics);
    assert!(never.is_woken());
    assert_eq!(never.poll(), None);
    assert!(!last.is_woken());
    drop(never);
    assert!(last.is_woken());
    assert_eq!(last.poll(), Some(&4));
}

/// Pending at the first poll.
async fn yield_by_hand() {
    let mut polled = false;
    std::future::poll_fn(|_| match std::mem::replace(&mut polled, true) {
        true => std::task::Poll::Ready(()),
        false => std::task::Poll::Pending,
    })
    .await;
}
