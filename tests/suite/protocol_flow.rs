//! Flow control of transports, in both directions, and how queued writes are sent.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use windlass::protocol::{Protocol, Transport, attach};
use windlass::time::sleep;

use crate::protocol::Event::{Made, Pause, Resume};
use crate::protocol::{Event, Recorder, bytes, fill, recorded, until, until_lost};
use crate::support::{on_every_driver, pair, turns};

#[test]
fn writing_pauses_and_resumes_at_the_watermarks() {
    on_every_driver(|case| {
        case.run(async {
            let (client, transport, _, log) = recorded(Recorder::quiet).await;
            assert_eq!(transport.get_write_buffer_limits(), (16 << 10, 64 << 10));
            transport.set_write_buffer_limits(usize::MAX, 0).unwrap();
            let size = fill(&transport).await;
            let none = |event: &Event| *event == Pause || *event == Resume;
            assert!(!log.borrow().iter().any(none));

            transport.set_write_buffer_limits(size + 100_000, size - 1).unwrap();
            transport.write(vec![1; 100_000]);
            turns(5).await;
            assert_eq!(transport.get_write_buffer_size(), size + 100_000);
            assert_eq!(log.borrow()[..], [Made], "the high watermark itself does not pause");
            transport.write("1");
            assert_eq!(log.borrow()[..], [Made], "`write` ran the callback synchronously");
            turns(5).await;
            assert_eq!(log.borrow()[..], [Made, Pause]);
            transport.write("more");
            turns(5).await;
            assert_eq!(log.borrow()[..], [Made, Pause], "paused twice");

            // Resumes at the low watermark, not later.
            let resumed_at = Rc::new(Cell::new(usize::MAX));
            while log.borrow().len() == 2 {
                resumed_at.set(transport.get_write_buffer_size());
                client.read(Vec::with_capacity(4_096)).await.0.unwrap();
                turns(3).await;
            }
            assert_eq!(log.borrow()[..], [Made, Pause, Resume]);
            assert!(transport.get_write_buffer_size() < size);
            assert!(resumed_at.get() >= size, "resumed late: {}", resumed_at.get());

            // Lowering the watermarks can pause too, as in asyncio.
            transport.set_write_buffer_limits(usize::MAX, 0).unwrap();
            let size = fill(&transport).await;
            transport.set_write_buffer_limits(size - 1, None).unwrap();
            turns(5).await;
            assert_eq!(log.borrow()[..], [Made, Pause, Resume, Pause]);
            transport.abort();
            until_lost(&log).await;
        });
    });
}

#[test]
fn watermarks_follow_the_rules_of_asyncio() {
    on_every_driver(|case| {
        case.run(async {
            let (_client, transport, _, _) = recorded(Recorder::quiet).await;
            let set = |high: Option<usize>, low: Option<usize>| {
                transport.set_write_buffer_limits(high, low)?;
                Ok::<_, io::Error>(transport.get_write_buffer_limits())
            };
            assert_eq!(set(Some(1_000), None).unwrap(), (250, 1_000));
            assert_eq!(set(None, Some(1_000)).unwrap(), (1_000, 4_000));
            assert_eq!(set(None, None).unwrap(), (16 << 10, 64 << 10));
            assert_eq!(set(Some(0), None).unwrap(), (0, 0));
            assert_eq!(set(Some(10), Some(10)).unwrap(), (10, 10));
            assert_eq!(set(None, Some(usize::MAX)).unwrap(), (usize::MAX, usize::MAX));
            set(Some(10), Some(10)).unwrap();
            let error = set(Some(1), Some(2)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(transport.get_write_buffer_limits(), (10, 10));
        });
    });
}

/// A protocol that honours pause and resume has a bounded write buffer, however slow the peer and however much it
/// sends.
#[test]
fn a_slow_peer_does_not_grow_the_write_buffer() {
    const CHUNK: usize = 10_000;
    const ALL: usize = if cfg!(miri) { 1 << 20 } else { 100_000_000 };

    struct Source {
        transport: Option<Transport>,
        left: usize,
        most: Rc<Cell<usize>>,
    }

    impl Source {
        fn push(&mut self) {
            let transport = self.transport.clone().unwrap();
            // As much as it is allowed to.
            while self.left > 0 && transport.get_write_buffer_size() <= transport.get_write_buffer_limits().1 {
                let len = CHUNK.min(self.left);
                transport.write(&[9; CHUNK][..len]);
                self.left -= len;
                self.most.set(self.most.get().max(transport.get_write_buffer_size()));
            }
            if self.left == 0 {
                transport.close();
            }
        }
    }

    impl Protocol for Source {
        fn connection_made(&mut self, transport: Transport) {
            self.transport = Some(transport);
            self.push();
        }
        fn resume_writing(&mut self) {
            self.push();
        }
    }

    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let most = Rc::new(Cell::new(0));
            let source = Source {
                transport: None,
                left: ALL,
                most: most.clone(),
            };
            attach(server, source);
            let mut got = 0;
            let mut buf = Vec::with_capacity(256 << 10);
            loop {
                let result;
                (result, buf) = client.read(buf).await;
                match result.unwrap() {
                    0 => break,
                    count => got += count,
                }
                // A slow reader.
                windlass::task::yield_now().await;
            }
            assert_eq!(got, ALL);
            assert!(most.get() <= (64 << 10) + CHUNK, "{} bytes queued", most.get());
        });
    });
}

/// A protocol that paused reading gets no data, and the transport reads at most one piece from the kernel; the peer has
/// to wait.
#[test]
fn a_paused_reader_makes_the_peer_wait() {
    on_every_driver(|case| {
        case.run(async {
            let (client, transport, _, log) = recorded(Recorder::quiet).await;
            assert!(transport.is_reading());
            transport.pause_reading();
            assert!(!transport.is_reading());
            let sent = Rc::new(Cell::new(0));
            let sending = windlass::spawn({
                let sent = sent.clone();
                async move {
                    while sent.get() < 100_000_000 {
                        client.write_all(vec![4; 50_000]).await.0?;
                        sent.set(sent.get() + 50_000);
                    }
                    Ok::<_, io::Error>(client)
                }
            });
            let mut before = usize::MAX;
            while before != sent.get() {
                before = sent.get();
                sleep(Duration::from_millis(100)).await;
                turns(50).await;
            }
            assert!(sent.get() < 40_000_000, "{} bytes were buffered", sent.get());
            assert_eq!(log.borrow()[..], [Made]);
            assert_eq!(sent.get(), before);

            // Resumed for a moment, then paused again.
            transport.resume_reading();
            until(&log, |events| events.len() > 1).await;
            transport.pause_reading();
            turns(2).await;
            let count = log.borrow().len();
            sleep(Duration::from_millis(50)).await;
            turns(50).await;
            assert_eq!(log.borrow().len(), count, "data received while paused");
            let got = bytes(&log);
            assert_eq!(got, vec![4; got.len()]);
            sending.cancel();
            let _ = sending.await;
            transport.resume_reading();
            until_lost(&log).await;
            assert!(bytes(&log).len() >= sent.get(), "sent bytes are missing");
        });
    });
}

#[test]
fn small_writes_of_one_turn_are_sent_together() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, transport, _, _) = recorded(Recorder::quiet).await;
            sleep(Duration::from_millis(5)).await;
            let before = windlass::counters().driver.submissions;
            for _ in 0..500 {
                transport.write("0123456789");
            }
            // A large write and an owned one follow as separate slices, in order.
            transport.write(vec![b'-'; 3_000]);
            transport.write([b'+'; 5]);
            turns(10).await;
            let sends = windlass::counters().driver.submissions - before;
            assert!(sends <= 1 || case.has_quirks(), "{sends} sends");
            let (result, got) = client.read_exact(vec![0; 8_005]).await;
            result.unwrap();
            let expected = ["0123456789".repeat(500), "-".repeat(3_000), "+".repeat(5)].concat();
            assert_eq!(got, expected.as_bytes());
        });
    });
}

/// Buffers whose destructor calls the transport that they were written to, and one whose destructor panics.
#[cfg(feature = "bytes")]
#[test]
fn a_buffer_may_use_the_transport_when_dropped() {
    use bytes::Bytes;

    struct Owner(Vec<u8>, std::sync::mpsc::Sender<usize>);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            SENDER.with_borrow(|transport| {
                let transport = transport.as_ref().expect("set by the test");
                transport.write("dropped");
                let _ = self.1.send(transport.get_write_buffer_size());
            });
            assert!(self.0.len() < 10_000, "on purpose");
        }
    }

    thread_local! {
        static SENDER: std::cell::RefCell<Option<Transport>> = const { std::cell::RefCell::new(None) };
    }

    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = crate::support::exceptions_of(&event_loop);
        let run = event_loop.run_until_complete(async {
            let (client, transport, _, _) = recorded(Recorder::quiet).await;
            SENDER.set(Some(transport.clone()));
            let (sender, receiver) = std::sync::mpsc::channel();
            for len in [10, 5_000, 20_000] {
                transport.write(Bytes::from_owner(Owner(vec![b'x'; len], sender.clone())));
            }
            let (result, got) = client.read_exact(vec![0; 25_010 + 3 * 7]).await;
            result.unwrap();
            assert_eq!(got.iter().filter(|byte| **byte == b'x').count(), 25_010);
            assert_eq!(receiver.try_iter().count(), 3);
            SENDER.take();
        });
        run.unwrap();
        assert_eq!(exceptions.borrow().len(), 1, "{:?}", exceptions.borrow());
    });
}
