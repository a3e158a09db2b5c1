//! `DelayQueue`: values come when they are due, with one timer for all of them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use windlass::counters;
use windlass::time::delay_queue::{DelayQueue, Key};
use windlass::time::{Instant, sleep};

use crate::support::{CountDrop, Random, on_every_driver, poll_once, turns};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn values_expire_in_the_order_of_their_deadlines() {
    on_every_driver(|case| {
        case.run(async {
            let start = Instant::now();
            let mut queue = DelayQueue::new();
            let keys = [3, 1, 2, 1].map(|ms| queue.insert_at(ms, start + ms * MS));
            assert_eq!((queue.len(), queue.peek()), (4, Some(keys[1])));
            let mut order = Vec::new();
            while let Some(expired) = queue.next().await {
                assert!(start.elapsed() >= *expired.get_ref() * MS, "early");
                if !case.is_kernel() && !case.has_quirks() {
                    assert_eq!(Instant::now(), expired.deadline(), "late on a virtual clock");
                }
                order.push((expired.key(), expired.into_inner()));
            }
            assert_eq!(order, [(keys[1], 1), (keys[3], 1), (keys[2], 2), (keys[0], 3)]);
            assert!(queue.is_empty() && queue.peek().is_none());
        });
    });
}

#[test]
fn all_values_share_one_timer() {
    on_every_driver(|case| {
        case.run(async {
            let timers = counters().timers;
            let mut queue = DelayQueue::new();
            let keys: Vec<Key> = (0..1000).map(|n| queue.insert(n, HOUR + n * MS)).collect();
            assert_eq!(counters().timers, timers, "not polled yet");
            assert!(poll_once(pin!(queue.next())).await.is_pending());
            assert!(poll_once(pin!(queue.next())).await.is_pending());
            assert_eq!(counters().timers, timers + 1);
            for key in &keys[..500] {
                queue.remove(key);
            }
            queue.insert(7, HOUR / 2);
            assert_eq!(counters().timers, timers + 1);
            drop(queue);
            assert_eq!(counters().timers, timers);
        });
    });
}

/// The next value of a queue that others change meanwhile.
async fn next_of<T>(queue: Rc<RefCell<DelayQueue<T>>>) -> Option<T> {
    let expired = std::future::poll_fn(|cx| queue.borrow_mut().poll_expired(cx)).await;
    expired.map(|expired| expired.into_inner())
}

#[test]
fn a_change_reaches_the_task_that_waits() {
    on_every_driver(|case| {
        case.run(async {
            let begin = Instant::now();
            let queue = Rc::new(RefCell::new(DelayQueue::new()));
            let late = queue.borrow_mut().insert("late", HOUR);
            let waiting = windlass::spawn(next_of(queue.clone()));
            turns(2).await;
            // An earlier value.
            queue.borrow_mut().insert("early", MS);
            assert_eq!(waiting.await.unwrap(), Some("early"));

            // An earlier deadline.
            let waiting = windlass::spawn(next_of(queue.clone()));
            turns(2).await;
            queue.borrow_mut().reset(&late, MS);
            assert_eq!(waiting.await.unwrap(), Some("late"));

            // The first value is postponed: the timer does not wake the task in between.
            let start = Instant::now();
            let key = queue.borrow_mut().insert_at("postponed", start + MS);
            let waiting = windlass::spawn(next_of(queue.clone()));
            turns(2).await;
            queue.borrow_mut().reset_at(&key, start + 3 * MS);
            assert_eq!(queue.borrow().deadline(&key), start + 3 * MS);
            assert_eq!(waiting.await.unwrap(), Some("postponed"));
            assert!(start.elapsed() >= 3 * MS);

            // No value is left.
            for clear in [false, true] {
                let key = queue.borrow_mut().insert("removed", HOUR);
                let waiting = windlass::spawn(next_of(queue.clone()));
                turns(2).await;
                match clear {
                    true => queue.borrow_mut().clear(),
                    false => assert_eq!(queue.borrow_mut().remove(&key).into_inner(), "removed"),
                }
                assert_eq!(waiting.await.unwrap(), None);
            }
            assert!(
                begin.elapsed() < HOUR,
                "waited for a value that was removed or was not the first"
            );
        });
    });
}

#[test]
fn a_key_belongs_to_one_value() {
    on_every_driver(|case| {
        case.run(async {
            let mut queue = DelayQueue::with_capacity(1);
            let old = queue.insert(1, Duration::ZERO);
            assert_eq!(queue.next().await.unwrap().into_inner(), 1);
            // In the same slot.
            let new = queue.insert(2, HOUR);
            assert_ne!(old, new);
            assert!(queue.try_remove(&old).is_none());
            type Misuse = fn(&mut DelayQueue<i32>, &Key);
            let misuses: [Misuse; 3] = [
                |queue, key| _ = queue.remove(key),
                |queue, key| queue.reset(key, MS),
                |queue, key| _ = queue.deadline(key),
            ];
            for misuse in misuses {
                let payload = catch_unwind(AssertUnwindSafe(|| misuse(&mut queue, &old))).unwrap_err();
                assert!(payload.downcast_ref::<&str>().unwrap().contains("has left the queue"));
            }
            // A reset keeps the key.
            queue.reset(&new, 2 * HOUR);
            assert_eq!((queue.len(), queue.peek()), (1, Some(new)));
            assert_eq!(queue.try_remove(&new).unwrap().into_inner(), 2);
        });
    });
}

#[test]
fn a_dropped_next_loses_no_value_and_clear_drops_all() {
    on_every_driver(|case| {
        case.run(async {
            let dropped = Rc::new(std::cell::Cell::new(0));
            let mut queue = DelayQueue::new();
            queue.insert(CountDrop(dropped.clone()), MS);
            queue.insert(CountDrop(dropped.clone()), HOUR);
            assert!(poll_once(pin!(queue.next())).await.is_pending());
            sleep(2 * MS).await;
            assert_eq!((dropped.get(), queue.len()), (0, 2));
            drop(queue.next().await.unwrap());
            assert_eq!(dropped.get(), 1);
            queue.clear();
            assert_eq!((dropped.get(), queue.len()), (2, 0));
        });
    });
}

#[test]
fn many_expired_values_yield_to_other_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let mut queue = DelayQueue::new();
            let has_run = Rc::new(std::cell::Cell::new(false));
            for n in 0..10_000 {
                queue.insert(n, Duration::ZERO);
            }
            windlass::spawn({
                let has_run = has_run.clone();
                async move { has_run.set(true) }
            });
            let before = queue
                .by_ref()
                .take_while(|_| std::future::ready(!has_run.get()))
                .count()
                .await;
            assert!(before < 1000, "{before} values before another task ran");
        });
    });
}

/// Random changes, compared with a sorted list.
#[test]
fn a_queue_behaves_as_a_sorted_list() {
    on_every_driver(|case| {
        case.run(async {
            let mut random = Random::new(11);
            let start = Instant::now();
            let mut queue = DelayQueue::new();
            // The key, the deadline in milliseconds, and the order of setting it.
            let mut model: Vec<(Key, u32, u32)> = Vec::new();
            for step in 0..500 {
                let ms = 3600 + random.below(50) as u32;
                let any = random.below(model.len().max(1) as u64) as usize;
                match random.below(4) {
                    0 | 1 => model.push((queue.insert_at(step, start + ms * MS), ms, step)),
                    2 if !model.is_empty() => {
                        queue.reset_at(&model[any].0, start + ms * MS);
                        (model[any].1, model[any].2) = (ms, step);
                    }
                    3 if !model.is_empty() => {
                        queue.remove(&model.swap_remove(any).0);
                    }
                    _ => {}
                }
                let first = model.iter().min_by_key(|(_, ms, order)| (*ms, *order));
                assert_eq!(queue.peek(), first.map(|(key, ..)| *key));
            }
            model.sort_by_key(|(_, ms, order)| (*ms, *order));
            assert!(model.len() > 50);
            if case.is_kernel() {
                return;
            }
            for (key, ms, _) in model {
                let expired = queue.next().await.unwrap();
                assert_eq!((expired.key(), expired.deadline()), (key, start + ms * MS));
            }
            assert!(queue.next().await.is_none());
        });
    });
}
