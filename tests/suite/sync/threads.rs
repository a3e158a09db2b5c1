//! `sync::thread`: channels between threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use windlass::sync::{Closed, SendError, TryRecvError, TrySendError, thread};
use windlass::time::timeout;

use super::{ByHand, now, panic_of};
use crate::support::{Random, on_every_driver, rounds, turns};

#[test]
fn channel_ends_and_their_futures_are_send() {
    fn assert_send<T: Send>(_: &T) {}
    let (sender, receiver) = thread::channel::<u8>(1);
    let (one, other) = thread::oneshot::<u8>();
    assert_send(&sender);
    assert_send(&receiver);
    assert_send(&sender.send(1));
    assert_send(&receiver.recv());
    assert_send(&one);
    assert_send(&other);
}

#[test]
fn a_channel_is_fair_and_closes_like_a_queue() {
    let (sender, receiver) = thread::channel(1);
    sender.try_send(1).unwrap();
    assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    let (dropped, mut waiting) = (ByHand::waiting(sender.send(3)), ByHand::waiting(sender.send(4)));
    assert_eq!(receiver.try_recv(), Ok(1));
    assert_eq!(
        sender.try_send(5),
        Err(TrySendError::Full(5)),
        "the free slot is reserved for the first sender"
    );
    assert!(dropped.is_woken());
    drop(dropped);
    assert!(waiting.is_woken());
    assert_eq!(waiting.poll(), Some(Ok(())));
    drop(waiting);
    let mut waiting = ByHand::waiting(sender.send(6));
    receiver.close();
    assert_eq!(waiting.poll(), Some(Err(SendError(6))));
    assert_eq!((now(receiver.recv()), now(receiver.recv())), (Ok(4), Err(Closed)));
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
    assert!(sender.is_closed() && sender.is_empty());

    let (sender, receiver) = thread::unbounded();
    let others = (sender.clone(), receiver.clone());
    let mut waiting = [ByHand::waiting(receiver.recv()), ByHand::waiting(receiver.recv())];
    sender.try_send(1).unwrap();
    assert!(waiting[0].is_woken() && receiver.is_empty());
    drop((sender, others));
    assert!(!waiting[1].is_woken(), "the item may still return to the channel");
    assert_eq!(waiting[0].poll(), Some(Ok(1)));
    assert!(waiting[1].is_woken());
    assert_eq!(waiting[1].poll(), Some(Err(Closed)));
    assert!(panic_of(|| thread::channel::<u8>(0)).contains("unbounded()"));
}

#[test]
fn the_last_receiver_drops_the_items() {
    let (sender, receiver) = thread::unbounded();
    let item = Arc::new(());
    sender.try_send(item.clone()).unwrap();
    drop(receiver.clone());
    assert_eq!(Arc::strong_count(&item), 2);
    drop(receiver);
    assert_eq!(Arc::strong_count(&item), 1);
    assert_eq!(now(sender.send(item.clone())), Err(SendError(item)));
}

#[test]
fn blocking_calls_on_a_loop_panic() {
    on_every_driver(|case| {
        case.run(async {
            let (sender, receiver) = thread::channel(1);
            let message = panic_of(|| sender.send_blocking(1));
            assert!(message.contains("await instead"), "{message}");
            let message = panic_of(|| receiver.recv_blocking());
            assert!(message.contains("await instead"), "{message}");
            assert!(receiver.is_empty());
        });
    });
}

#[test]
fn two_loops_share_a_channel() {
    on_every_driver(|case| {
        let many = rounds() as u64 * 5;
        let (requests, inbox) = thread::channel(4);
        let (replies, write_buffer) = thread::channel(4);
        let other = std::thread::spawn(move || {
            case.run(async {
                while let Ok(request) = inbox.recv().await {
                    replies.send(request + 1).await.unwrap();
                }
            });
        });
        case.run(async {
            let sending = windlass::spawn(async move {
                for request in 0..many {
                    requests.send(request).await.unwrap();
                }
            });
            for request in 0..many {
                assert_eq!(write_buffer.recv().await, Ok(request + 1));
            }
            sending.await.unwrap();
            assert_eq!(write_buffer.recv().await, Err(Closed));
        });
        other.join().unwrap();
    });
}

#[test]
fn threads_and_loops_lose_no_item_when_waits_are_dropped() {
    on_every_driver(|case| {
        let each = rounds() as u64;
        let (sender, receiver) = thread::channel(2);
        let (sent, received) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        // On each side, two blocking threads and a loop that drops its waits.
        for i in 0..2 {
            let (sender, receiver) = (sender.clone(), receiver.clone());
            let (sent, received) = (sent.clone(), received.clone());
            threads.push(std::thread::spawn(move || {
                for item in 0..each {
                    sender.send_blocking(item).unwrap();
                    sent.fetch_add(item + 1, SeqCst);
                }
            }));
            threads.push(std::thread::spawn(move || {
                while let Ok(item) = receiver.recv_blocking() {
                    received.fetch_add(item + 1, SeqCst);
                }
                let _ = i;
            }));
        }
        let impatient = {
            let (receiver, received) = (receiver.clone(), received.clone());
            std::thread::spawn(move || {
                case.run(async {
                    let mut random = Random::new(7);
                    loop {
                        let patience = Duration::from_micros(random.below(20));
                        match timeout(patience, receiver.recv()).await {
                            Ok(Ok(item)) => drop(received.fetch_add(item + 1, SeqCst)),
                            Ok(Err(Closed)) => break,
                            Err(_) => turns(random.below(3)).await,
                        }
                    }
                });
            })
        };
        drop(receiver);
        case.run(async {
            let mut random = Random::new(9);
            for item in 0..each {
                let patience = Duration::from_micros(random.below(20));
                if let Ok(result) = timeout(patience, sender.send(item)).await {
                    result.unwrap();
                    sent.fetch_add(item + 1, SeqCst);
                }
            }
            drop(sender);
        });
        for thread in threads {
            thread.join().unwrap();
        }
        impatient.join().unwrap();
        assert!(sent.load(SeqCst) > 0);
        assert_eq!(received.load(SeqCst), sent.load(SeqCst));
    });
}

#[test]
fn a_oneshot_crosses_threads_in_both_directions() {
    on_every_driver(|case| {
        let (question, asked) = thread::oneshot();
        let (answer, answered) = thread::oneshot();
        let other = std::thread::spawn(move || {
            let question: u32 = asked.recv_blocking().unwrap();
            answer.send(question + 1).unwrap();
        });
        case.run(async {
            question.send(41).unwrap();
            assert_eq!(answered.await, Ok(42));
        });
        other.join().unwrap();
    });
    let (mut sender, mut receiver) = thread::oneshot::<u8>();
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    let mut closed = ByHand::waiting(sender.closed());
    receiver.close();
    assert_eq!(closed.poll(), Some(()));
    drop(closed);
    assert!(sender.is_closed());
    assert_eq!(sender.send(1), Err(SendError(1)));
    assert_eq!(now(receiver), Err(Closed));
}

#[test]
fn a_closing_loop_closes_its_end_of_the_channel() {
    on_every_driver(|case| {
        let (sender, receiver) = thread::channel(1);
        let (started, start) = thread::oneshot();
        let looping = std::thread::spawn(move || {
            case.run(async {
                windlass::spawn(async move { while receiver.recv().await.is_ok() {} });
                turns(2).await;
                started.send(()).unwrap();
            });
        });
        start.recv_blocking().unwrap();
        let mut sent = 0;
        while sender.send_blocking(()).is_ok() {
            sent += 1;
            assert!(sent < 1_000_000, "the channel is still open after its loop ended");
        }
        looping.join().unwrap();
    });
}
