//! Protocols and transports: the order of callbacks, calls from within callbacks, and the end of a connection.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::TcpStream;
use windlass::protocol::{Protocol, ProtocolRef, Transport, attach, create_server};
use windlass::time::{sleep, timeout};

use crate::support::{CountDrop, assert_reset, exceptions_of, on_every_driver, pair, reset_on_close, turns};

/// A callback that a protocol received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Made,
    Data(Vec<u8>),
    Eof,
    Lost(Option<ErrorKind>),
    Pause,
    Resume,
    /// Not from the transport: a marker that a test adds.
    Mark(&'static str),
}

use Event::{Data, Eof, Lost, Made, Mark, Pause, Resume};

pub(crate) type Log = Rc<RefCell<Vec<Event>>>;

type Act = dyn FnMut(&Event, &Transport);

/// Records each callback, then runs the test's closure; `eof_received` returns `stays`.
pub(crate) struct Recorder {
    log: Log,
    pub(crate) transport: Option<Transport>,
    stays: bool,
    act: Box<Act>,
    /// Whether a callback is running; shared by all recorders of a test.
    is_running: Rc<Cell<bool>>,
}

impl Recorder {
    pub(crate) fn new(log: &Log, act: impl FnMut(&Event, &Transport) + 'static) -> Recorder {
        Recorder {
            log: log.clone(),
            transport: None,
            stays: false,
            act: Box::new(act),
            is_running: Rc::default(),
        }
    }

    pub(crate) fn quiet(log: &Log) -> Recorder {
        Recorder::new(log, |_, _| {})
    }

    fn staying(mut self) -> Recorder {
        self.stays = true;
        self
    }

    fn record(&mut self, event: Event) {
        assert!(!self.is_running.replace(true), "{event:?} inside another callback");
        struct Stop(Rc<Cell<bool>>);
        impl Drop for Stop {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        let _stop = Stop(self.is_running.clone());
        self.log.borrow_mut().push(event.clone());
        let transport = self.transport.clone().expect("connection_made comes first");
        (self.act)(&event, &transport);
    }
}

impl Protocol for Recorder {
    fn connection_made(&mut self, transport: Transport) {
        assert!(self.transport.replace(transport).is_none(), "made twice");
        self.record(Made);
    }
    fn data_received(&mut self, data: &[u8]) {
        assert!(!data.is_empty());
        self.record(Data(data.to_vec()));
    }
    fn eof_received(&mut self) -> bool {
        self.record(Eof);
        self.stays
    }
    fn connection_lost(&mut self, error: Option<io::Error>) {
        self.record(Lost(error.map(|error| error.kind())));
    }
    fn pause_writing(&mut self) {
        self.record(Pause);
    }
    fn resume_writing(&mut self) {
        self.record(Resume);
    }
}

/// Waits until the log satisfies a predicate.
pub(crate) async fn until(log: &Log, predicate: impl Fn(&[Event]) -> bool) {
    let waiting = async {
        while !predicate(&log.borrow()) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = timeout(Duration::from_secs(60), waiting).await;
    assert!(waited.is_ok(), "only these events came: {:?}", brief(&log.borrow()));
}

fn brief(events: &[Event]) -> Vec<String> {
    events
        .iter()
        .map(|event| match event {
            Data(bytes) => format!("Data({})", bytes.len()),
            event => format!("{event:?}"),
        })
        .collect()
}

pub(crate) async fn until_lost(log: &Log) {
    until(log, |events| matches!(events.last(), Some(Lost(_)))).await;
    // No callback follows `connection_lost`.
    turns(10).await;
    let log = log.borrow();
    assert!(matches!(log.last(), Some(Lost(_))), "{:?}", brief(&log));
    assert_eq!(log.iter().filter(|event| matches!(event, Lost(_))).count(), 1);
    assert_eq!(log.first(), Some(&Made));
    assert_eq!(log.iter().filter(|event| **event == Made).count(), 1);
}

/// All received bytes, in however many pieces they came.
pub(crate) fn bytes(log: &Log) -> Vec<u8> {
    let mut all = Vec::new();
    for event in &*log.borrow() {
        if let Data(bytes) = event {
            all.extend_from_slice(bytes);
        }
    }
    all
}

/// The log without `Data`.
fn events(log: &Log) -> Vec<Event> {
    let log = log.borrow();
    log.iter().filter(|event| !matches!(event, Data(_))).cloned().collect()
}

/// A recorder on one end of a connection, a plain stream on the other.
pub(crate) async fn recorded(
    recorder: impl FnOnce(&Log) -> Recorder,
) -> (TcpStream, Transport, ProtocolRef<Recorder>, Log) {
    let (client, server) = pair().await;
    let log = Log::default();
    let (transport, protocol) = attach(server, recorder(&log));
    turns(2).await;
    assert_eq!(log.borrow().first(), Some(&Made));
    (client, transport, protocol, log)
}

pub(crate) async fn read_all(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(&bytes);
    }
}

/// Writes until the kernel accepts no more for a while, and returns the number of queued bytes, which stays constant
/// from then on.
pub(crate) async fn fill(transport: &Transport) -> usize {
    let mut before = 0;
    loop {
        turns(20).await;
        sleep(Duration::from_millis(20)).await;
        let size = transport.get_write_buffer_size();
        if size > 0 && size == before {
            return size;
        }
        if size == 0 {
            transport.write(vec![1; 1 << 20]);
        }
        before = transport.get_write_buffer_size();
    }
}

#[test]
fn callbacks_come_in_order() {
    on_every_driver(|case| {
        case.run(async move {
            let log = Log::default();
            let server = create_server(
                {
                    let log = log.clone();
                    move || {
                        Recorder::new(&log, |event, transport| {
                            if let Data(bytes) = event {
                                transport.write(bytes);
                            }
                        })
                    }
                },
                "127.0.0.1:0",
            )
            .await
            .unwrap();
            let client = TcpStream::connect(server.local_addr().unwrap()).await.unwrap();
            for text in ["one", "two", "three"] {
                client.write_all(text).await.0.unwrap();
                let (result, echo) = client.read_exact(vec![0; text.len()]).await;
                result.unwrap();
                assert_eq!(echo, text.as_bytes());
            }
            assert_eq!(server.connections(), 1);
            client.shutdown(Shutdown::Write).await.unwrap();
            assert!(client.read_managed().await.unwrap().is_empty());
            until_lost(&log).await;
            let data = |text: &str| Data(text.into());
            let expected = [Made, data("one"), data("two"), data("three"), Eof, Lost(None)];
            assert_eq!(bytes(&log), b"onetwothree");
            assert_eq!(events(&log), [Made, Eof, Lost(None)]);
            assert!(log.borrow()[..] == expected || case.has_quirks(), "{:?}", log.borrow());
            assert_eq!(server.connections(), 0);
        });
    });
}

/// Every transport call from within every callback: none calls back synchronously, which the recorder checks.
#[test]
fn a_protocol_may_call_its_transport_in_any_callback() {
    on_every_driver(|case| {
        case.run(async {
            let (client, transport, _, log) = recorded(|log| {
                Recorder::new(log, |_, transport| {
                    transport.set_write_buffer_limits(0, 0).unwrap();
                    transport.pause_reading();
                    assert!(!transport.is_reading());
                    transport.write("x");
                    transport.writelines(["y", "z"]);
                    transport.resume_reading();
                    let _ = (
                        transport.get_write_buffer_size(),
                        transport.peer_addr(),
                        transport.is_closing(),
                    );
                })
            })
            .await;
            client.write_all("go").await.0.unwrap();
            until(&log, |events| {
                events.iter().filter(|event| **event == Resume).count() > 3
            })
            .await;
            transport.abort();
            transport.abort();
            transport.close();
            until_lost(&log).await;
            assert!(!transport.is_reading());
            let events = events(&log);
            for (at, event) in events[1..events.len() - 1].iter().enumerate() {
                assert_eq!(*event, if at % 2 == 0 { Pause } else { Resume }, "at {at}");
            }
            transport.write("not sent");
            assert_eq!(transport.get_write_buffer_size(), 0);
            drop(client);
        });
    });
}

/// A callback that was scheduled runs before the next protocol callback, and `abort` keeps its order among scheduled
/// calls.
#[test]
fn each_callback_is_a_turn_of_its_own() {
    on_every_driver(|case| {
        let event_loop = case.builder().managed_buffers(4, 100).build().unwrap();
        let run = event_loop.run_until_complete(async {
            let (client, _, _, log) = recorded(|log| {
                let soon = log.clone();
                Recorder::new(log, move |event, transport| {
                    let mark = |text: &'static str| {
                        let soon = soon.clone();
                        windlass::call_soon(move || soon.borrow_mut().push(Mark(text)));
                    };
                    match event {
                        Data(bytes) if bytes.ends_with(b"!") => {
                            mark("before");
                            transport.abort();
                            mark("after");
                        }
                        Data(_) => mark("soon"),
                        _ => {}
                    }
                })
            })
            .await;
            let mut text = vec![b'.'; 1_000];
            text[999] = b'!';
            client.write_all(text).await.0.unwrap();
            until(&log, |events| events.last() == Some(&Mark("after"))).await;
            let log = log.borrow();
            let events: Vec<_> = log.iter().filter(|event| !matches!(event, Made)).collect();
            let (data, end) = events.split_last_chunk::<4>().expect("ten pieces");
            for pair in data.chunks(2) {
                assert!(
                    matches!(pair, [Data(_), Mark("soon")]),
                    "the scheduled call did not run in between: {pair:?}"
                );
            }
            assert!(matches!(end[0], Data(_)));
            assert_eq!(end[1..], [&Mark("before"), &Lost(None), &Mark("after")]);
        });
        run.unwrap();
        let run = event_loop.run_until_complete(async {
            // The same for a connection that closes as soon as it is made.
            let (_client, server) = pair().await;
            let log = Log::default();
            let soon = log.clone();
            let closing = Recorder::new(&log, move |event, transport| {
                if *event == Made {
                    let soon = soon.clone();
                    windlass::call_soon(move || soon.borrow_mut().push(Mark("before")));
                    transport.close();
                }
            });
            attach(server, closing);
            until_lost(&log).await;
            assert_eq!(log.borrow()[..], [Made, Mark("before"), Lost(None)]);
        });
        run.unwrap();
    });
}

#[test]
fn close_sends_queued_bytes_first() {
    on_every_driver(|case| {
        case.run(async {
            let (client, transport, _, log) = recorded(Recorder::quiet).await;
            let all: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
            for piece in all.chunks(5_000) {
                transport.write(piece);
            }
            transport.close();
            transport.close();
            assert!(transport.is_closing());
            transport.write("too late");
            // The peer does not read, so the connection cannot be closed yet.
            if !case.is_kernel() {
                turns(50).await;
                assert!(transport.get_write_buffer_size() > 0);
                assert!(!log.borrow().contains(&Lost(None)));
            }
            // Bytes that arrive now are not received any more.
            client.write_all("too late").await.0.unwrap();
            let mut got = Vec::new();
            loop {
                match client.read_managed().await {
                    Ok(bytes) if bytes.is_empty() => break,
                    Ok(bytes) => got.extend_from_slice(&bytes),
                    // The kernel resets a connection that is closed with unread bytes; the peer may or may not have
                    // received everything by then.
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                        break;
                    }
                }
            }
            until_lost(&log).await;
            assert_eq!(events(&log), [Made, Pause, Resume, Lost(None)]);
            assert!(all.starts_with(&got), "{} bytes", got.len());
        });
        case.run(async {
            // The same without unread bytes: every byte arrives.
            let (client, transport, _, log) = recorded(Recorder::quiet).await;
            let mut all: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
            transport.write(all.clone());
            // More is written after part of it was sent.
            turns(10).await;
            transport.write("the end");
            all.extend_from_slice(b"the end");
            transport.close();
            assert!(read_all(&client).await.unwrap() == all);
            until_lost(&log).await;
        });
    });
}

#[test]
fn abort_drops_queued_bytes_and_resets() {
    on_every_driver(|case| {
        case.run(async {
            let (client, transport, _, log) = recorded(Recorder::quiet).await;
            assert!(fill(&transport).await > 0);
            transport.abort();
            assert_eq!(transport.get_write_buffer_size(), 0);
            assert!(transport.is_closing());
            assert!(
                !log.borrow().contains(&Lost(None)),
                "`abort` ran the callback synchronously"
            );
            until_lost(&log).await;
            assert_eq!(events(&log).last(), Some(&Lost(None)));
            assert_reset(read_all(&client).await);

            // The same when nothing is queued and everything was read.
            let (client, transport, _, log) = recorded(Recorder::quiet).await;
            transport.abort();
            until_lost(&log).await;
            assert_reset(client.read_managed().await);
        });
    });
}

#[test]
fn a_protocol_may_write_after_the_eof_of_its_peer() {
    on_every_driver(|case| {
        case.run(async {
            // The protocol keeps the connection open and can still write.
            let (client, transport, _, log) = recorded(|log| Recorder::quiet(log).staying()).await;
            client.write_all("all").await.0.unwrap();
            client.shutdown(Shutdown::Write).await.unwrap();
            until(&log, |events| events.last() == Some(&Eof)).await;
            turns(20).await;
            assert!(!transport.is_closing());
            transport.write("still here");
            transport.close();
            assert_eq!(read_all(&client).await.unwrap(), b"still here");
            until_lost(&log).await;
            assert_eq!(
                (&*bytes(&log), &*events(&log)),
                (&b"all"[..], &[Made, Eof, Lost(None)][..])
            );

            // The protocol lets the connection close: its queued bytes are sent first.
            let (client, _, _, log) = recorded(|log| {
                Recorder::new(log, |event, transport| {
                    if *event == Eof {
                        transport.write(vec![3; 1 << 20]);
                    }
                })
            })
            .await;
            client.shutdown(Shutdown::Write).await.unwrap();
            assert_eq!(read_all(&client).await.unwrap().len(), 1 << 20);
            until_lost(&log).await;
        });
    });
}

#[test]
fn a_protocol_receives_after_its_own_write_eof() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let run = event_loop.run_until_complete(async {
            let (client, transport, _, log) = recorded(Recorder::quiet).await;
            assert!(transport.can_write_eof());
            transport.write(vec![5; 100_000]);
            transport.write_eof();
            transport.write_eof();
            assert!(!transport.is_closing());
            transport.write("after the end");
            assert_eq!(read_all(&client).await.unwrap().len(), 100_000);
            client.write_all("an answer").await.0.unwrap();
            until(&log, |_| bytes(&log) == b"an answer").await;
            drop(client);
            until_lost(&log).await;
            assert_eq!(bytes(&log), b"an answer");
        });
        run.unwrap();
        let exceptions = exceptions.borrow();
        assert_eq!(exceptions.len(), 1, "{exceptions:?}");
        assert!(exceptions[0].contains("after write_eof"), "{exceptions:?}");
    });
}

#[test]
fn connection_lost_reports_a_reset() {
    on_every_driver(|case| {
        case.run(async move {
            for is_writing in [false, true] {
                let (client, transport, _, log) = recorded(Recorder::quiet).await;
                if is_writing {
                    fill(&transport).await;
                }
                // Unread bytes cause a reset on the null driver, and SO_LINGER does on a kernel.
                transport.write("unread");
                sleep(Duration::from_millis(20)).await;
                reset_on_close(&client);
                drop(client);
                until_lost(&log).await;
                let expected = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                // A socket reports the reset once: to the read in flight, and the write then fails with a broken pipe. A
                // driver may report the two in either order.
                let expected = &expected[..if is_writing && case.has_quirks() { 2 } else { 1 }];
                let log = log.borrow();
                let is_expected = |kind| expected.contains(kind);
                assert!(
                    matches!(log.last(), Some(Lost(Some(kind))) if is_expected(kind)),
                    "{:?}",
                    log.last()
                );
                assert!(transport.is_closing());
            }
        });
    });
}

#[test]
fn a_protocol_can_be_replaced() {
    on_every_driver(|case| {
        case.run(async {
            let drops = Rc::new(Cell::new(0));
            let second = Log::default();
            let (client, transport, first, log) = recorded(|log| {
                let (second, counted) = (second.clone(), CountDrop(drops.clone()));
                Recorder::new(log, move |event, transport| {
                    let _ = &counted;
                    // A part of the message may be all that a read returns.
                    if matches!(event, Data(part) if part.ends_with(b"!")) {
                        let mut next = Recorder::quiet(&second);
                        next.transport = Some(transport.clone());
                        transport.set_protocol(next);
                    }
                })
            })
            .await;
            client.write_all("upgrade!").await.0.unwrap();
            until(&log, |_| bytes(&log) == b"upgrade!").await;
            let before = log.borrow().len();
            client.write_all("new").await.0.unwrap();
            until(&second, |_| bytes(&second) == b"new").await;
            // The handle still refers to the first protocol.
            assert_eq!(first.with(|first| first.log.borrow().len()), before);
            assert_eq!(drops.get(), 0);
            drop(first);
            assert_eq!(drops.get(), 1);
            drop(client);
            until(&second, |events| events.last() == Some(&Lost(None))).await;
            assert_eq!(events(&second), [Eof, Lost(None)]);
            assert_eq!(log.borrow().len(), before);
            let third = transport.set_protocol(Recorder::quiet(&log));
            assert!(!third.with(|third| third.stays));
        });
    });
}

/// A panic in each callback in turn: the exception handler receives it, the connection ends with `connection_lost`, and
/// another connection goes on.
#[test]
fn a_panic_ends_only_its_own_connection() {
    on_every_driver(|case| {
        for culprit in ["Made", "Data", "Eof", "Pause", "Resume", "Lost"] {
            let event_loop = case.event_loop();
            let exceptions = exceptions_of(&event_loop);
            let run = event_loop.run_until_complete(async {
                let (neighbour, _neighbour, _, neighbour_log) = recorded(Recorder::quiet).await;
                let (client, server) = pair().await;
                let log = Log::default();
                let recorder = Recorder::new(&log, move |event, transport| {
                    if matches!(event, Data(_)) {
                        transport.set_write_buffer_limits(0, 0).unwrap();
                        transport.write(vec![1; 100_000]);
                    }
                    assert!(!format!("{event:?}").starts_with(culprit), "on purpose");
                });
                let (transport, _protocol) = attach(server, recorder);
                // One byte, of which the reset cannot find a part unsent.
                let written = client.write_all("!").await.0;
                // The first callback may panic before a driver with quirks starts the write.
                let mut is_reset = culprit == "Made" && case.has_quirks() && written.is_err();
                assert!(is_reset || written.is_ok(), "{written:?}");
                if culprit != "Made" && culprit != "Data" {
                    let read = client.read_exact(vec![0; 100_000]).await.0;
                    is_reset = read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
                }
                client.shutdown(Shutdown::Write).await.ok();
                until_lost(&log).await;
                let expected = match culprit {
                    "Lost" => Lost(None),
                    _ => Lost(Some(ErrorKind::Other)),
                };
                assert_eq!(log.borrow().last(), Some(&expected), "{culprit}");
                assert!(transport.is_closing());
                if culprit != "Lost" && !is_reset {
                    assert_reset(read_all(&client).await);
                }
                neighbour.write_all("unharmed").await.0.unwrap();
                until(&neighbour_log, |_| bytes(&neighbour_log) == b"unharmed").await;
            });
            run.unwrap();
            let exceptions = exceptions.borrow();
            assert_eq!(exceptions.len(), 1, "{culprit}: {exceptions:?}");
            assert!(exceptions[0].contains("on purpose"), "{exceptions:?}");
            assert_eq!(event_loop.counters().ops, event_loop.counters().in_flight, "{culprit}");
        }
    });
}
