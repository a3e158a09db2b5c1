//! `sync`, cancelled at random: no item, permit or wake-up is lost.
//!
//! Each round has its own seed, printed when the round fails. Tasks rely on their wakers alone, so a lost wake-up
//! shows: some tasks are cancelled in random turns, and all others must finish.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use windlass::JoinHandle;
use windlass::sync::{
    Barrier, Condition, Event, Lock, Notify, OnceCell, Order, OrderedQueue, RwLock, Semaphore, broadcast, watch,
};
use windlass::time::{sleep, timeout};

use crate::support::{Random, on_every_driver, rounds, turns};

/// Runs many rounds on every driver, each with its own random numbers.
fn random_rounds<F: Future<Output = ()>>(round: impl Fn(Random) -> F + Clone + Send + 'static) {
    some_rounds(rounds(), round);
}

fn some_rounds<F: Future<Output = ()>>(count: usize, round: impl Fn(Random) -> F + Clone + Send + 'static) {
    on_every_driver(move |case| {
        case.run(async {
            for seed in 1..=count as u64 {
                let seed_printer = PrintSeed(seed);
                let random = Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                timeout(Duration::from_secs(60), round(random))
                    .await
                    .expect("a wake-up was lost: a task waits forever");
                crate::support::keep_forever(seed_printer);
            }
        });
    });
}

struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        eprintln!("seed {}", self.0);
    }
}

/// Cancels `count` of the tasks in random turns and returns the others.
async fn cancel_some(random: &mut Random, mut tasks: Vec<JoinHandle<()>>, count: u64) -> Vec<JoinHandle<()>> {
    for _ in 0..count {
        turns(random.below(4)).await;
        if tasks.is_empty() {
            break;
        }
        let at = random.below(tasks.len() as u64) as usize;
        let task = tasks.swap_remove(at);
        task.cancel();
        // Ended now or later: whatever it held is released in any case.
        if random.below(2) == 0
            && let Err(error) = task.await
        {
            assert!(error.is_cancelled(), "{error}");
        }
    }
    tasks
}

async fn join_all(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("no panic");
    }
}

/// The items in the order in which they came out, and in which they were put.
async fn queue_round<O: Order<u64> + 'static>(mut random: Random) -> (Vec<u64>, Vec<u64>) {
    let queue = OrderedQueue::<u64, O>::bounded(1 + random.below(3) as usize);
    let (put, got) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
    let mut tasks = Vec::new();
    for producer in 0..4 {
        let (queue, put) = (queue.clone(), put.clone());
        let pace = random.below(3);
        tasks.push(windlass::spawn(async move {
            for i in 0..5 {
                let item = producer * 100 + i;
                queue.put(item).await.expect("open");
                put.borrow_mut().push(item);
                turns(pace).await;
            }
        }));
    }
    for _ in 0..4 {
        let (queue, got) = (queue.clone(), got.clone());
        let pace = random.below(3);
        tasks.push(windlass::spawn(async move {
            for _ in 0..3 {
                let item = queue.get().await.expect("open");
                got.borrow_mut().push(item);
                turns(pace).await;
            }
        }));
    }
    let rest = cancel_some(&mut random, tasks, 5).await;
    // The remaining tasks are served: consumers by this producer, producers by that consumer, until the queue is
    // closed.
    let last = windlass::spawn({
        let (queue, put) = (queue.clone(), put.clone());
        async move {
            for item in 1000..1020 {
                queue.put(item).await.expect("open");
                put.borrow_mut().push(item);
            }
        }
    });
    let drain = windlass::spawn({
        let (queue, got) = (queue.clone(), got.clone());
        async move {
            while let Ok(item) = queue.get().await {
                got.borrow_mut().push(item);
            }
        }
    });
    join_all(rest).await;
    last.await.expect("no panic");
    queue.close();
    drain.await.expect("no panic");
    assert!(queue.is_empty() && queue.is_closed());
    let order = (got.take(), put.take());
    assert_eq!(queue.unfinished(), order.1.len());
    order
}

#[test]
fn a_queue_loses_no_item_and_keeps_the_order() {
    random_rounds(async |random| {
        let (got, put) = queue_round::<windlass::sync::Fifo>(random).await;
        assert_eq!(got, put);
    });
}

#[test]
fn a_priority_queue_loses_no_item() {
    random_rounds(async |random| {
        let (mut got, mut put) = queue_round::<windlass::sync::SmallestFirst>(random).await;
        got.sort_unstable();
        put.sort_unstable();
        assert_eq!(got, put);
    });
}

#[test]
fn timeouts_lose_no_item() {
    // Fewer rounds: half a dozen timeouts each take time on a real clock.
    some_rounds(rounds().min(20_000), async |mut random| {
        let queue = OrderedQueue::<u64, windlass::sync::Fifo>::bounded(1);
        // Never zero: a virtual clock does not advance while a task is busy polling.
        let micros = |random: &mut Random| Duration::from_micros(1 + random.below(60));
        let (late, patience) = (micros(&mut random), micros(&mut random));
        let producer = windlass::spawn({
            let queue = queue.clone();
            async move {
                let mut put = 0;
                for _ in 0..4 {
                    sleep(late).await;
                    if let Ok(result) = timeout(patience, queue.put(1)).await {
                        result.expect("open");
                        put += 1;
                    }
                }
                queue.close();
                put
            }
        });
        let mut got = 0;
        loop {
            match timeout(patience, queue.get()).await {
                Ok(Ok(item)) => got += item,
                Ok(Err(_)) => break,
                Err(_) => turns(1).await,
            }
        }
        assert_eq!(got, producer.await.expect("no panic"));
    });
}

#[test]
fn a_lock_is_never_held_twice_nor_lost() {
    random_rounds(async |mut random| {
        let lock = Rc::new(Lock::new(0));
        let tasks = (0..6).map(|_| {
            let lock = lock.clone();
            let stay = random.below(3);
            windlass::spawn(async move {
                for _ in 0..2 {
                    let mut holders = lock.lock().await;
                    *holders += 1;
                    assert_eq!(*holders, 1);
                    let _leave = Leave(&mut holders);
                    turns(stay).await;
                }
            })
        });
        let tasks = tasks.collect();
        join_all(cancel_some(&mut random, tasks, 4).await).await;
        assert_eq!(*timeout(Duration::from_secs(60), lock.lock()).await.expect("free"), 0);
        turns(2).await;
        assert!(!lock.is_locked());
    });
}

/// Decrements the count, also if its task is cancelled.
struct Leave<'a>(&'a mut i32);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        *self.0 -= 1;
    }
}

#[test]
fn readers_and_a_writer_exclude_each_other_and_no_permit_is_lost() {
    random_rounds(async |mut random| {
        let lock = Rc::new(RwLock::new(()));
        let inside = Rc::new(Cell::new(0i32));
        let tasks = (0..8).map(|_| {
            let (lock, inside) = (lock.clone(), inside.clone());
            let (stay, writes) = (random.below(3), random.below(3) == 0);
            windlass::spawn(async move {
                // A writer counts as a hundred.
                let (weight, _write, _read);
                match writes {
                    true => (weight, _write) = (100, lock.write().await),
                    false => (weight, _read) = (1, lock.read().await),
                }
                inside.set(inside.get() + weight);
                let _leave = Weight(&inside, weight);
                assert!(inside.get() == 100 || inside.get() < 100 && weight == 1);
                turns(stay).await;
            })
        });
        let tasks = tasks.collect();
        join_all(cancel_some(&mut random, tasks, 4).await).await;
        turns(6).await;
        assert_eq!(inside.get(), 0);
        assert!(!lock.is_locked() && lock.try_write().is_ok());
    });
}

struct Weight<'a>(&'a Cell<i32>, i32);

impl Drop for Weight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

#[test]
fn no_permit_is_lost() {
    random_rounds(async |mut random| {
        let total = 1 + random.below(3);
        let semaphore = Rc::new(Semaphore::new(total as usize));
        let out = Rc::new(Cell::new(0i32));
        let tasks = (0..8).map(|_| {
            let (semaphore, out) = (semaphore.clone(), out.clone());
            let (stay, count) = (random.below(3), 1 + random.below(total));
            windlass::spawn(async move {
                for _ in 0..2 {
                    let _permit = semaphore.acquire_many(count as usize).await.expect("open");
                    out.set(out.get() + count as i32);
                    let _leave = Weight(&out, count as i32);
                    assert!(out.get() <= total as i32);
                    turns(stay).await;
                }
            })
        });
        let tasks = tasks.collect();
        join_all(cancel_some(&mut random, tasks, 5).await).await;
        let all = timeout(Duration::from_secs(60), semaphore.acquire_many(total as usize)).await;
        drop(all.expect("every permit was released").expect("open"));
        turns(4).await;
        assert_eq!(semaphore.available_permits(), total as usize);
    });
}

#[test]
fn a_condition_loses_no_notification() {
    random_rounds(async |mut random| {
        let shared = Rc::new((Lock::new(VecDeque::new()), Condition::new()));
        let got = Rc::new(Cell::new(0));
        let tasks = (0..6).map(|_| {
            let (shared, got) = (shared.clone(), got.clone());
            windlass::spawn(async move {
                let (lock, condition) = &*shared;
                let mut items = condition.wait_for(lock.lock().await, |items| !items.is_empty()).await;
                items.pop_front();
                got.set(got.get() + 1);
            })
        });
        let tasks = tasks.collect();
        let producer = windlass::spawn({
            let (shared, pace) = (shared.clone(), random.below(3));
            async move {
                for item in 0..3 {
                    shared.0.lock().await.push_back(item);
                    shared.1.notify_one();
                    turns(pace).await;
                }
            }
        });
        let rest = cancel_some(&mut random, tasks, 3).await;
        producer.await.expect("no panic");
        // Three or more are left, minus those that have their item: enough for all.
        turns(30).await;
        assert_eq!(got.get(), 3, "an item is available, but its consumer was not woken");
        shared.0.lock().await.extend(0..6);
        shared.1.notify_all();
        join_all(rest).await;
    });
}

#[test]
fn notify_loses_no_notification() {
    random_rounds(async |mut random| {
        let shared = Rc::new((Notify::new(), Cell::new(0)));
        let got = Rc::new(Cell::new(0));
        let tasks = (0..6).map(|_| {
            let (shared, got) = (shared.clone(), got.clone());
            windlass::spawn(async move {
                let (notify, level) = &*shared;
                while level.get() == 0 {
                    notify.notified().await;
                }
                level.set(level.get() - 1);
                got.set(got.get() + 1);
                if level.get() > 0 {
                    notify.notify_one();
                }
            })
        });
        let tasks = tasks.collect();
        let producer = windlass::spawn({
            let (shared, pace) = (shared.clone(), random.below(3));
            async move {
                for _ in 0..3 {
                    shared.1.set(shared.1.get() + 1);
                    shared.0.notify_one();
                    turns(pace).await;
                }
            }
        });
        let rest = cancel_some(&mut random, tasks, 3).await;
        producer.await.expect("no panic");
        turns(30).await;
        assert_eq!(
            (shared.1.get(), got.get()),
            (0, 3),
            "an item is available, but its consumer was not woken"
        );
        shared.1.set(10);
        shared.0.notify_waiters();
        join_all(rest).await;
    });
}

#[test]
fn an_event_and_a_barrier_release_every_waiter() {
    random_rounds(async |mut random| {
        let shared = Rc::new((Event::new(), Barrier::new(3)));
        let passed = Rc::new(Cell::new(0));
        let tasks = (0..8).map(|_| {
            let (shared, passed) = (shared.clone(), passed.clone());
            windlass::spawn(async move {
                shared.0.wait().await;
                if shared.1.wait().await.is_ok() {
                    passed.set(passed.get() + 1);
                }
            })
        });
        let tasks = tasks.collect();
        let setting = windlass::spawn({
            let (shared, turn) = (shared.clone(), random.below(6));
            async move {
                turns(turn).await;
                shared.0.set();
                shared.0.clear();
            }
        });
        let rest = cancel_some(&mut random, tasks, 3).await;
        setting.await.expect("no panic");
        turns(10).await;
        let waiting = shared.1.waiting();
        assert!(waiting < 3, "{waiting} wait at a barrier for three");
        shared.1.abort();
        join_all(rest).await;
        assert!(passed.get() <= 6);
    });
}

#[test]
fn after_a_cancelled_initialiser_the_next_one_runs() {
    random_rounds(async |mut random| {
        let cell = Rc::new(OnceCell::new());
        let began = Rc::new(Cell::new(0));
        let tasks = (0..5).map(|i| {
            let (cell, began) = (cell.clone(), began.clone());
            let (long, fails) = (random.below(4), random.below(3) == 0);
            windlass::spawn(async move {
                let made = cell.get_or_try_init(async || {
                    began.set(began.get() + 1);
                    turns(long).await;
                    if fails { Err(()) } else { Ok(i) }
                });
                if let Ok(value) = made.await {
                    assert_eq!(Some(value), cell.get());
                }
            })
        });
        let tasks = tasks.collect();
        join_all(cancel_some(&mut random, tasks, 3).await).await;
        let before = began.get();
        let value = *cell.get_or_init(async || 99).await;
        assert!(value == 99 || (value < 5 && before > 0));
        assert_eq!(cell.get(), Some(&value));
    });
}

#[test]
fn a_broadcast_receiver_gets_or_counts_every_value() {
    random_rounds(async |mut random| {
        let (sender, first) = broadcast::channel(1 + random.below(4) as usize);
        let receivers = [first, sender.subscribe(), sender.subscribe()];
        let tasks: Vec<_> = receivers
            .into_iter()
            .map(|mut receiver| {
                let mut random = Random::new(random.next());
                windlass::spawn(async move {
                    let mut next = 0;
                    loop {
                        // Dropped after one poll, or two, or awaited.
                        let received = match random.below(2) {
                            0 => Some(receiver.recv().await),
                            _ => timeout(Duration::ZERO, receiver.recv()).await.ok(),
                        };
                        match received {
                            Some(Ok(value)) => {
                                assert_eq!(value, next);
                                next += 1;
                            }
                            Some(Err(broadcast::RecvError::Lagged(missed))) => next += missed,
                            Some(Err(broadcast::RecvError::Closed)) => break,
                            None => {}
                        }
                        turns(random.below(3)).await;
                    }
                    assert_eq!(next, 12);
                })
            })
            .collect();
        for value in 0..12 {
            turns(random.below(3)).await;
            assert_eq!(sender.send(value).expect("receivers"), 3);
        }
        drop(sender);
        join_all(tasks).await;
    });
}

#[test]
fn a_watch_receiver_sees_the_last_value() {
    random_rounds(async |mut random| {
        let (sender, receiver) = watch::channel(0);
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let mut receiver = receiver.clone();
                let mut random = Random::new(random.next());
                windlass::spawn(async move {
                    let mut seen = 0;
                    loop {
                        let changed = match random.below(2) {
                            0 => Some(receiver.changed().await),
                            _ => timeout(Duration::ZERO, receiver.changed()).await.ok(),
                        };
                        match changed {
                            Some(Ok(())) => {
                                let value = *receiver.borrow();
                                assert!(value > seen, "{value} after {seen}");
                                seen = value;
                            }
                            Some(Err(_)) => break,
                            None => turns(random.below(2)).await,
                        }
                    }
                    assert_eq!(seen, 10);
                })
            })
            .collect();
        drop(receiver);
        for value in 1..=10 {
            turns(random.below(3)).await;
            sender.send(value).expect("receivers");
        }
        drop(sender);
        join_all(tasks).await;
    });
}
