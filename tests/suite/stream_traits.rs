//! `Stream` and `Sink` with the adapters of futures-util: nothing is lost when a `next()` or a stream is dropped.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt, TryStreamExt};
use futures_util::{Sink, SinkExt, stream};
use windlass::io::{AsyncRead, AsyncWrite, BufReader, BufResult, IoBufMut, duplex};
use windlass::net::{TcpListener, TcpStream};
use windlass::sync::broadcast::{self, RecvError};
use windlass::sync::{Closed, Queue, TryRecvError, TrySendError, thread, watch};
use windlass::task::{self, AsCompleted, JoinSet, as_completed, race, yield_now};
use windlass::time::{Instant, interval, interval_at, sleep};

use crate::support::{CountDrop, Folder, Random, on_every_driver, poll_once, rounds, turns, waker_calling};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Polls a stream, and counts the wakes in `woken`.
fn poll_next<S: Stream + Unpin>(stream: &mut S, woken: &Rc<Cell<usize>>) -> Poll<Option<S::Item>> {
    let woken = woken.clone();
    let waker = waker_calling(move || woken.set(woken.get() + 1));
    Pin::new(stream).poll_next(&mut Context::from_waker(&waker))
}

/// As [`poll_next`], for a sink's readiness.
fn poll_ready<T, S: Sink<T> + Unpin>(sink: &mut S, woken: &Rc<Cell<usize>>) -> Poll<Result<(), S::Error>> {
    let woken = woken.clone();
    let waker = waker_calling(move || woken.set(woken.get() + 1));
    Pin::new(sink).poll_ready(&mut Context::from_waker(&waker))
}

/// Drops a `next()` that waits.
async fn drop_a_next<S: Stream<Item: std::fmt::Debug> + Unpin>(stream: &mut S) {
    let polled = poll_once(pin!(stream.next())).await;
    assert!(polled.is_pending(), "{polled:?}");
}

// Time, signals, directories.

#[test]
fn an_interval_is_a_stream_of_the_times_when_ticks_were_due() {
    on_every_driver(|case| {
        case.run(async {
            let start = Instant::now();
            let mut ticks = interval_at(start + MS, MS);
            drop_a_next(&mut ticks).await;
            let due: Vec<Instant> = ticks.take(3).collect().await;
            assert_eq!(due, [start + MS, start + 2 * MS, start + 3 * MS]);

            // The wait of a stream follows a reset; that of a dropped `tick` leaves no timer.
            let timers = windlass::counters().timers;
            let mut ticks = interval_at(Instant::now() + HOUR, HOUR);
            assert!(poll_once(pin!(ticks.tick())).await.is_pending());
            assert_eq!(windlass::counters().timers, timers);
            drop_a_next(&mut ticks).await;
            assert_eq!(windlass::counters().timers, timers + 1);
            let due = Instant::now();
            ticks.reset_at(due);
            assert_eq!(ticks.next().await, Some(due));
            assert!(due.elapsed() < HOUR, "waited for the old deadline");
        });
    });
}

#[test]
fn an_interval_that_is_late_yields_to_other_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let has_run = Rc::new(Cell::new(false));
            let other = windlass::spawn({
                let has_run = has_run.clone();
                async move { has_run.set(true) }
            });
            // Due long ago: each tick is ready at once.
            let start = Instant::now();
            sleep(MS).await;
            let mut ticks = interval_at(start, Duration::from_nanos(1));
            while !has_run.get() {
                ticks.next().await;
            }
            other.await.unwrap();
        });
    });
}

#[test]
fn a_directory_is_a_stream() {
    on_every_driver(|case| {
        let folder = Folder::new();
        let mut expected: Vec<String> = (0..300).map(|n| format!("file {n:03}")).collect();
        for name in &expected {
            folder.file(name, "");
        }
        expected.sort();
        case.run(async move {
            let mut entries = windlass::fs::read_dir(folder.path()).await.unwrap();
            let mut names = Vec::new();
            // A `next()` that is dropped while the kernel reads loses no entry.
            loop {
                match poll_once(pin!(entries.next())).await {
                    Poll::Pending => yield_now().await,
                    Poll::Ready(Some(entry)) => names.push(entry.unwrap().file_name().into_string().unwrap()),
                    Poll::Ready(None) => break,
                }
            }
            names.sort();
            assert_eq!(names, expected);
            let entries = windlass::fs::read_dir(folder.path()).await.unwrap();
            let count = entries.try_fold(0, async |count, _| Ok(count + 1)).await.unwrap();
            assert_eq!(count, 300);
        });
    });
}

// Bytes.

#[test]
fn lines_are_a_stream() {
    on_every_driver(|case| {
        case.run(async {
            let (mut client, server) = duplex(64);
            let mut lines = BufReader::new(server).max_line_len(16).lines().into_stream();
            drop_a_next(&mut lines).await;
            client.write_all("half").await.0.unwrap();
            drop_a_next(&mut lines).await;
            client.write_all(" a line\nnext\n").await.0.unwrap();
            assert_eq!(lines.next().await.unwrap().unwrap(), "half a line");
            assert_eq!(lines.next().await.unwrap().unwrap(), "next");
            // Errors that concern one line.
            client
                .write_all(b"\xff\nlonger than sixteen\ngood\n".to_vec())
                .await
                .0
                .unwrap();
            drop(client);
            let rest: Vec<Result<String, io::ErrorKind>> = lines.map_err(|error| error.kind()).collect().await;
            let invalid = || Err(io::ErrorKind::InvalidData);
            assert_eq!(rest, [invalid(), invalid(), Ok("good".to_owned())]);
        });
    });
}

/// Returns some bytes, then fails at each read.
struct Failing(Option<&'static [u8]>);

impl AsyncRead for Failing {
    async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        match self.0.take() {
            Some(bytes) => (Ok(buf.fill_from(bytes)), buf),
            None => (Err(io::Error::other("broken")), buf),
        }
    }
}

#[test]
fn a_stream_of_lines_ends_after_an_error_of_the_reader() {
    on_every_driver(|case| {
        case.run(async {
            let lines = BufReader::new(Failing(Some(b"one\ntw"))).lines().into_stream();
            let all: Vec<_> = lines.map_err(|error| error.to_string()).take(5).collect().await;
            assert_eq!(all, [Ok("one".to_owned()), Err("broken".to_owned())]);
        });
    });
}

#[cfg(feature = "bytes")]
#[test]
fn frames_go_from_a_sink_to_a_stream() {
    use windlass::io::codec::{FramedRead, FramedWrite, LinesCodec};
    on_every_driver(|case| {
        case.run(async {
            let count = 500;
            let (client, server) = duplex(32);
            let mut writer = FramedWrite::new(client, LinesCodec::new());
            writer.set_max_buffered(100);
            let mut sink = writer.into_sink();
            // Without a reader, the sink is full at some point.
            let woken = Rc::new(Cell::new(0));
            let mut sent = 0;
            while poll_ready::<String, _>(&mut sink, &woken).is_ready() {
                Pin::new(&mut sink).start_send(sent.to_string()).unwrap();
                sent += 1;
                assert!(sent < 100, "the sink buffers without bound");
            }
            let rest = stream::iter(sent..count).map(|n| Ok(n.to_string())).forward(sink);
            let mut frames = FramedRead::new(server, LinesCodec::new()).into_stream();
            let received = async {
                let mut received = Vec::new();
                loop {
                    // Half of the `next()`s are dropped.
                    if let Poll::Ready(None) = poll_once(pin!(frames.next()))
                        .await
                        .map(|frame| frame.map(|frame| received.push(frame.unwrap())))
                    {
                        break;
                    }
                    yield_now().await;
                }
                received
            };
            let (forwarded, received) = task::join((rest, received)).await;
            forwarded.unwrap();
            let expected: Vec<String> = (0..count).map(|n| n.to_string()).collect();
            assert_eq!(received, expected, "and the end, because `forward` closes the sink");
        });
    });
}

#[cfg(feature = "bytes")]
#[test]
fn a_sink_of_frames_reports_the_writers_error() {
    use windlass::io::codec::{FramedWrite, LinesCodec};
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = duplex(32);
            drop(server);
            let mut sink = FramedWrite::new(client, LinesCodec::new()).into_sink();
            assert_eq!(sink.send("lost").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            assert_eq!(sink.send("again").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        });
    });
}

// Connections.

#[test]
fn connections_are_a_stream() {
    on_every_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let connect = |_| async move { TcpStream::connect(addr).await.unwrap().local_addr().unwrap() };
            let clients = task::join_all((0..3).map(connect));
            let served = listener.incoming().map_ok(|stream| stream.peer_addr());
            let (mut clients, served) = task::join((clients, served.take(3).try_collect::<Vec<_>>())).await;
            clients.sort();
            // A client may have closed already, and then has no address.
            assert_eq!(served.unwrap().len(), clients.len());

            let mut incoming = listener.into_incoming();
            let client = windlass::spawn(TcpStream::connect(addr));
            let server = incoming.next().await.unwrap().unwrap();
            assert_eq!(
                server.peer_addr().unwrap(),
                client.await.unwrap().unwrap().local_addr().unwrap()
            );
        });
    });
}

#[test]
fn a_dropped_stream_of_connections_loses_none() {
    on_every_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let mut random = Random::new(7);
            let (mut from_streams, mut from_accepts) = (0, 0);
            for _ in 0..rounds().min(200) {
                let client = windlass::spawn(TcpStream::connect(addr));
                let mut incoming = listener.incoming();
                let mut accepted = None;
                for _ in 0..random.below(8) {
                    // Both the `next()` and then the stream are dropped, at various points of the accept.
                    if let Poll::Ready(next) = poll_once(pin!(incoming.next())).await {
                        accepted = Some(next.unwrap().unwrap());
                        break;
                    }
                    yield_now().await;
                }
                drop(incoming);
                match &accepted {
                    Some(_) => from_streams += 1,
                    None => from_accepts += 1,
                }
                let server = match accepted {
                    Some(server) => server,
                    None => listener.accept().await.unwrap().0,
                };
                let client = client.await.unwrap().unwrap();
                assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
            }
            assert!(from_streams > 0 && from_accepts > 0, "{from_streams} {from_accepts}");
        });
    });
}

#[cfg(unix)]
#[test]
fn unix_connections_are_a_stream() {
    use windlass::net::{UnixListener, UnixStream};
    on_every_driver(|case| {
        let folder = Folder::new();
        case.run(async move {
            let path = folder.join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            {
                let mut incoming = listener.incoming();
                drop_a_next(&mut incoming).await;
            }
            let client = UnixStream::connect(&path).await.unwrap();
            client.write_all("hello").await.0.unwrap();
            let server = listener.incoming().next().await.unwrap().unwrap();
            assert_eq!(crate::support::gather(5, || server.read_managed()).await, b"hello");
            drop_a_next(&mut listener.into_incoming()).await;
        });
    });
}

// Channels.

#[test]
fn a_queue_is_a_stream() {
    on_every_driver(|case| {
        case.run(async {
            let woken = Rc::new(Cell::new(0));
            let queue = Queue::bounded(2);
            let mut items = queue.clone().into_stream();
            assert!(poll_next(&mut items, &woken).is_pending());
            queue.try_put(1).unwrap();
            assert_eq!(woken.get(), 1);
            assert_eq!(
                queue.try_get(),
                Err(TryRecvError::Empty),
                "the item is reserved for the stream"
            );
            assert_eq!(items.next().await, Some(1));
            drop_a_next(&mut items).await;
            queue.try_put(2).unwrap();
            assert_eq!(items.next().await, Some(2));

            // A dropped stream gives its item to the next getter.
            assert!(poll_next(&mut items, &woken).is_pending());
            queue.try_put(3).unwrap();
            drop(items);
            assert_eq!(queue.try_get(), Ok(3));

            // Two consumers share the items; both end with the queue.
            let (one, other) = (queue.clone().into_stream(), queue.clone().into_stream());
            let producer = async {
                for n in 0..100 {
                    queue.put(n).await.unwrap();
                }
                queue.close();
            };
            let (one, other, ()) = task::join((one.collect::<Vec<_>>(), other.collect::<Vec<_>>(), producer)).await;
            assert!(!one.is_empty() && !other.is_empty());
            let mut all = [one, other].concat();
            all.sort();
            assert_eq!(all, (0..100).collect::<Vec<_>>());
        });
    });
}

#[test]
fn a_queue_is_a_sink() {
    on_every_driver(|case| {
        case.run(async {
            let woken = Rc::new(Cell::new(0));
            let queue = Queue::bounded(1);
            let (mut first, mut second) = (queue.clone().into_sink(), queue.clone().into_sink());
            assert_eq!(poll_ready(&mut first, &woken), Poll::Ready(Ok(())));
            assert_eq!(
                poll_ready(&mut first, &woken),
                Poll::Ready(Ok(())),
                "the slot is still reserved"
            );
            assert_eq!(queue.try_put(9), Err(TrySendError::Full(9)));
            assert!(poll_ready(&mut second, &woken).is_pending());
            // A dropped sink gives its slot to the next one.
            drop(first);
            assert_eq!(woken.get(), 1);
            assert_eq!(poll_ready(&mut second, &woken), Poll::Ready(Ok(())));
            Pin::new(&mut second).start_send(1).unwrap();
            assert!(poll_ready(&mut second, &woken).is_pending());
            assert_eq!(queue.get().await, Ok(1));
            second.send(2).await.unwrap();
            second.close().await.unwrap();
            assert!(!queue.is_closed());
            assert_eq!(queue.get().await, Ok(2));
            assert_eq!(poll_ready(&mut second, &woken), Poll::Ready(Ok(())));
            queue.close();
            assert_eq!(Pin::new(&mut second).start_send(3), Err(Closed));
            assert_eq!(second.send(4).await, Err(Closed));
            assert_eq!(queue.try_get(), Err(TryRecvError::Closed));
        });
    });
}

#[test]
fn a_channel_between_threads_is_a_stream() {
    on_every_driver(|case| {
        let (sender, receiver) = thread::channel(3);
        let producer = std::thread::spawn(move || {
            for n in 0..1000 {
                sender.send_blocking(n).unwrap();
            }
        });
        case.run(async move {
            let woken = Rc::new(Cell::new(0));
            let all: Vec<i32> = receiver.into_stream().collect().await;
            assert_eq!(all, (0..1000).collect::<Vec<_>>());

            let (sender, receiver) = thread::channel(2);
            let mut items = receiver.clone().into_stream();
            drop_a_next(&mut items).await;
            sender.try_send(1).unwrap();
            assert_eq!(
                receiver.try_recv(),
                Err(TryRecvError::Empty),
                "the item is reserved for the stream"
            );
            drop(items);
            assert_eq!(receiver.try_recv(), Ok(1));
            // The items above may have used the task's budget up, and a poll without budget wakes at once.
            turns(1).await;
            let mut items = receiver.into_stream();
            assert!(poll_next(&mut items, &woken).is_pending());
            drop(sender);
            assert_eq!(woken.get(), 1);
            assert_eq!(items.next().await, None);
            assert_eq!(items.next().await, None);
        });
        producer.join().unwrap();
    });
}

#[test]
fn a_channel_between_threads_is_a_sink() {
    on_every_driver(|case| {
        case.run(async {
            let woken = Rc::new(Cell::new(0));
            let (sender, receiver) = thread::channel(1);
            let (mut first, mut second) = (sender.clone().into_sink(), sender.into_sink());
            assert_eq!(poll_ready(&mut first, &woken), Poll::Ready(Ok(())));
            assert!(poll_ready(&mut second, &woken).is_pending());
            // A closed sink gives its room to the next one, and the channel stays open for that one.
            first.close().await.unwrap();
            assert_eq!(first.send(9).await, Err(Closed));
            assert_eq!(woken.get(), 1);
            second.send(1).await.unwrap();
            assert_eq!(receiver.recv().await, Ok(1));
            assert_eq!(poll_ready(&mut second, &woken), Poll::Ready(Ok(())));
            drop(second);
            assert_eq!(receiver.recv().await, Err(Closed));

            let (sender, receiver) = thread::channel(1);
            let received = receiver.into_stream().collect::<Vec<_>>();
            let sent = stream::iter(0..100).map(Ok).forward(sender.into_sink());
            let (sent, received) = task::join((sent, received)).await;
            assert_eq!((sent, received), (Ok(()), (0..100).collect()));
        });
    });
}

#[test]
fn a_broadcast_is_a_stream() {
    on_every_driver(|case| {
        case.run(async {
            let woken = Rc::new(Cell::new(0));
            let (sender, mut receiver) = broadcast::channel(2);
            assert!(poll_next(&mut receiver, &woken).is_pending());
            sender.send(1).unwrap();
            assert_eq!(woken.get(), 1);
            // Received by another method than the one that waited.
            assert_eq!(receiver.try_recv(), Ok(1));
            drop_a_next(&mut receiver).await;
            for n in 2..=5 {
                sender.send(n).unwrap();
            }
            let mut late = sender.subscribe();
            assert!(poll_next(&mut late, &woken).is_pending());
            drop(sender);
            assert_eq!(woken.get(), 2);
            assert_eq!(late.next().await, None);
            let all: Vec<_> = receiver.collect().await;
            assert_eq!(all, [Err(RecvError::Lagged(2)), Ok(4), Ok(5)]);
        });
    });
}

#[test]
fn a_watched_value_is_a_stream() {
    on_every_driver(|case| {
        case.run(async {
            let woken = Rc::new(Cell::new(0));
            let (sender, mut receiver) = watch::channel(0);
            assert!(poll_next(&mut receiver, &woken).is_pending());
            sender.send(1).unwrap();
            assert_eq!(woken.get(), 1);
            // Seen by another method than the one that waited.
            assert_eq!(*receiver.borrow_and_update(), 1);
            drop_a_next(&mut receiver).await;
            sender.send(2).unwrap();
            sender.send(3).unwrap();
            assert_eq!(receiver.next().await, Some(3));
            assert!(poll_next(&mut receiver.clone(), &woken).is_pending());
            sender.send(4).unwrap();
            drop(sender);
            assert_eq!(receiver.collect::<Vec<_>>().await, [4]);
            assert_eq!(woken.get(), 1, "the dropped clone was not woken");
        });
    });
}

// Futures and tasks.

async fn after(turns: u32, output: u32) -> u32 {
    for _ in 0..turns {
        yield_now().await;
    }
    output
}

#[test]
fn futures_can_be_added_while_others_run() {
    on_every_driver(|case| {
        case.run(async {
            let mut futures = as_completed([after(3, 30), after(1, 10)]);
            assert_eq!(futures.next_numbered().await, Some((1, 10)));
            assert_eq!(futures.push(after(0, 0)), 2);
            assert_eq!(futures.push(after(20, 200)), 3);
            assert_eq!(futures.len(), 3);
            assert_eq!(futures.next_numbered().await, Some((2, 0)));
            assert_eq!(futures.next_numbered().await, Some((0, 30)));
            // In the slot of a future that has completed.
            assert_eq!(futures.push(after(1, 11)), 4);
            assert_eq!(futures.next_numbered().await, Some((4, 11)));
            assert_eq!(StreamExt::next(&mut futures).await, Some(200));
            assert_eq!((futures.next().await, futures.is_empty()), (None, true));
            futures.push(after(0, 5));
            assert_eq!(futures.collect::<Vec<_>>().await, [5]);
        });
    });
}

#[test]
fn adding_a_future_wakes_the_task_that_waits() {
    on_every_driver(|case| {
        case.run(async {
            let futures = Rc::new(RefCell::new(AsCompleted::<Pin<Box<dyn Future<Output = u32>>>>::new()));
            futures.borrow_mut().push(Box::pin(forever()));
            let waiting = windlass::spawn({
                let futures = futures.clone();
                std::future::poll_fn(move |cx| Pin::new(&mut *futures.borrow_mut()).poll_next(cx))
            });
            turns(5).await;
            assert!(!waiting.is_finished());
            futures.borrow_mut().push(Box::pin(after(2, 2)));
            assert_eq!(waiting.await.unwrap(), Some(2));
        });
    });
}

async fn forever() -> u32 {
    std::future::pending().await
}

#[test]
fn an_added_future_is_dropped_once_and_polled_only_when_woken() {
    on_every_driver(|case| {
        case.run(async {
            let (dropped, polls) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let counted = |turns| {
                let (dropped, polls) = (CountDrop(dropped.clone()), polls.clone());
                async move {
                    let _dropped = dropped;
                    let mut work = pin!(after(turns, turns));
                    std::future::poll_fn(|cx| {
                        polls.set(polls.get() + 1);
                        work.as_mut().poll(cx)
                    })
                    .await
                }
            };
            for round in 0..50 {
                let mut futures = AsCompleted::new();
                futures.push(counted(round % 3));
                futures.push(counted(1_000_000));
                assert_eq!(futures.next().await, Some(round % 3));
                assert_eq!(dropped.take(), 1, "the one that has completed");
                drop(futures);
                assert_eq!(dropped.take(), 1, "the other one");
            }
            let mut futures = AsCompleted::new();
            futures.extend([counted(0), counted(2)]);
            polls.set(0);
            while futures.next().await.is_some() {}
            assert_eq!(polls.get(), 4);
        });
    });
}

#[test]
fn a_join_set_is_a_stream() {
    on_every_driver(|case| {
        case.run(async {
            let mut set = JoinSet::new();
            set.spawn(after(2, 2));
            set.spawn(async { panic!("of a task") });
            drop_a_next(&mut set).await;
            let results: Vec<_> = set
                .by_ref()
                .map(|result| result.map_err(|error| error.is_panic()))
                .collect()
                .await;
            assert_eq!(results, [Err(true), Ok(2)]);
            set.spawn(after(0, 7));
            assert_eq!(set.next().await.unwrap().unwrap(), 7);
        });
    });
}

#[test]
fn a_tuple_of_futures_races() {
    on_every_driver(|case| {
        case.run(async {
            let dropped = Rc::new(Cell::new(0));
            let loser = {
                let dropped = CountDrop(dropped.clone());
                async move {
                    let _dropped = dropped;
                    forever().await
                }
            };
            assert_eq!(race((loser, after(2, 2), after(5, 5))).await, 2);
            assert_eq!(dropped.get(), 1);
            // All are ready: the first wins.
            assert_eq!(race((async { 'a' }, std::future::ready('b'))).await, 'a');
            let eight = race((
                forever(),
                forever(),
                forever(),
                forever(),
                forever(),
                forever(),
                forever(),
                after(3, 8),
            ));
            assert_eq!(eight.await, 8);
            assert_eq!(race([after(4, 4), after(1, 1)]).await, 1);
            assert_eq!(race((1..4).rev().map(|n| after(n, n))).await, 1);
        });
    });
}

#[test]
fn a_race_of_a_tuple_waits_for_the_children_of_the_losers() {
    on_every_driver(|case| {
        case.run(async {
            let ended = Rc::new(Cell::new(0));
            let group = task::group({
                let ended = ended.clone();
                async move |group| {
                    let ended = CountDrop(ended);
                    group.spawn(async move {
                        let _ended = ended;
                        forever().await
                    });
                    forever().await
                }
            });
            let won = race((async { group.await.unwrap() }, after(3, 3))).await;
            assert_eq!((won, ended.get()), (3, 1));
        });
    });
}

#[test]
fn adapters_of_futures_util_work_on_an_interval() {
    on_every_driver(|case| {
        case.run(async {
            let (stop, mut stopped) = watch::channel(false);
            let ticks = interval(MS).enumerate().map(|(number, _)| number);
            let until = ticks.take_until(async move { stopped.changed().await });
            let mut seen = Vec::new();
            let mut until = pin!(until);
            while let Some(number) = until.next().await {
                seen.push(number);
                if number == 4 {
                    stop.send(true).unwrap();
                }
            }
            assert_eq!(seen, [0, 1, 2, 3, 4]);
        });
    });
}
