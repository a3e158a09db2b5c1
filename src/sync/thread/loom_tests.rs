//! `RUSTFLAGS="--cfg loom" cargo test --release --lib loom_` explores the interleavings of the real channels.
//!
//! loom reports a thread that waits forever, so each `*_blocking` call that returns proves that no wake-up was lost.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use loom::thread;

use super::super::error::{Closed, TryRecvError};
use super::{channel, oneshot};

/// Explores interleavings with up to three preemptions; two already order every pair of steps of two threads both ways.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

/// Polls once and drops the future.
fn try_poll<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[test]
fn loom_two_senders_and_one_slot_lose_nothing() {
    model(|| {
        let (sender, receiver) = channel(1);
        let senders: Vec<_> = (1..=2)
            .map(|item| {
                let sender = sender.clone();
                thread::spawn(move || sender.send_blocking(item).unwrap())
            })
            .collect();
        drop(sender);
        let mut sum = 0;
        while let Ok(item) = receiver.recv_blocking() {
            sum += item;
        }
        assert_eq!(sum, 3);
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

#[test]
fn loom_an_item_for_a_dropped_receiver_goes_to_the_next() {
    model(|| {
        let (sender, receiver) = channel(1);
        let impatient = {
            let receiver = receiver.clone();
            thread::spawn(move || try_poll(receiver.recv()).is_some_and(|item| item.is_ok()))
        };
        let patient = thread::spawn(move || receiver.recv_blocking());
        sender.send_blocking(7).unwrap();
        // The channel is closed now, but `patient` must not fail while the item may still be returned.
        drop(sender);
        let expected = match impatient.join().unwrap() {
            true => Err(Closed),
            false => Ok(7),
        };
        assert_eq!(patient.join().unwrap(), expected);
    });
}

#[test]
fn loom_room_for_a_dropped_sender_goes_to_the_next() {
    model(|| {
        let (sender, receiver) = channel(1);
        sender.try_send(0).unwrap();
        let impatient = {
            let sender = sender.clone();
            thread::spawn(move || try_poll(sender.send(1)).is_some() as usize)
        };
        let patient = thread::spawn(move || sender.send_blocking(2).unwrap());
        let mut items = vec![receiver.recv_blocking().unwrap()];
        while let Ok(item) = receiver.recv_blocking() {
            items.push(item);
        }
        patient.join().unwrap();
        assert_eq!(items.len(), 2 + impatient.join().unwrap());
        assert_eq!(items[0], 0);
    });
}

#[test]
fn loom_an_item_is_received_or_given_back() {
    model(|| {
        let (sender, receiver) = channel(1);
        let sender = thread::spawn(move || (1..=2).filter(|&item| sender.send_blocking(item).is_ok()).count());
        receiver.close();
        let mut received = 0;
        loop {
            match receiver.try_recv() {
                Ok(_) => received += 1,
                Err(TryRecvError::Closed) => break,
                Err(TryRecvError::Empty) => unreachable!("no other receiver exists"),
            }
        }
        assert_eq!(sender.join().unwrap(), received);
    });
}

#[test]
fn loom_dropping_the_last_receiver_fails_waiting_senders() {
    model(|| {
        let (sender, receiver) = channel(1);
        sender.try_send(1).unwrap();
        let waiting = thread::spawn(move || sender.send_blocking(2).is_err());
        drop(receiver);
        assert!(waiting.join().unwrap());
    });
}

#[test]
fn loom_a_oneshot_value_is_received_or_given_back() {
    model(|| {
        let (sender, mut receiver) = oneshot();
        let sending = thread::spawn(move || sender.send(7).is_ok());
        receiver.close();
        let received = receiver.recv_blocking();
        assert_eq!(sending.join().unwrap(), received == Ok(7));
    });
}

#[test]
fn loom_a_oneshot_receiver_is_woken() {
    model(|| {
        let (sender, receiver) = oneshot();
        let sending = thread::spawn(move || sender.send(7).unwrap());
        assert_eq!(receiver.recv_blocking(), Ok(7));
        sending.join().unwrap();
        let (sender, receiver) = oneshot::<u8>();
        let leaving = thread::spawn(move || drop(sender));
        assert_eq!(receiver.recv_blocking(), Err(Closed));
        leaving.join().unwrap();
    });
}
