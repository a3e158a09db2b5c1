//! Protocols for datagrams, subprocesses and Unix connections.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{UdpSocket, UnixStream};
use windlass::process::Command;
use windlass::protocol::{
    DatagramProtocol, DatagramTransport, SubprocessProtocol, SubprocessTransport, attach, connect_datagram_endpoint,
    create_datagram_endpoint, create_unix_connection, create_unix_server, open_unix_connection, start_unix_server,
    subprocess_exec,
};
use windlass::time::{sleep, timeout};

use crate::protocol::{Event, Log, Recorder, until, until_lost};
use crate::support::{Folder, exceptions_of, on_every_driver, on_every_kernel_driver, rounds, turns};

#[derive(Clone, Debug, PartialEq, Eq)]
enum DatagramEvent {
    Made,
    Data(Vec<u8>, SocketAddr),
    Error(ErrorKind),
    Lost(Option<ErrorKind>),
    Pause,
    Resume,
}

type DatagramLog = Rc<RefCell<Vec<DatagramEvent>>>;

type Act = dyn FnMut(&DatagramEvent, &DatagramTransport);

struct DatagramRecorder {
    log: DatagramLog,
    transport: Option<DatagramTransport>,
    act: Box<Act>,
}

impl DatagramRecorder {
    fn new(log: &DatagramLog, act: impl FnMut(&DatagramEvent, &DatagramTransport) + 'static) -> DatagramRecorder {
        DatagramRecorder {
            log: log.clone(),
            transport: None,
            act: Box::new(act),
        }
    }

    fn record(&mut self, event: DatagramEvent) {
        self.log.borrow_mut().push(event.clone());
        let transport = self.transport.clone().expect("connection_made comes first");
        (self.act)(&event, &transport);
    }
}

impl DatagramProtocol for DatagramRecorder {
    fn connection_made(&mut self, transport: DatagramTransport) {
        self.transport = Some(transport);
        self.record(DatagramEvent::Made);
    }
    fn datagram_received(&mut self, data: &[u8], from: SocketAddr) {
        self.record(DatagramEvent::Data(data.to_vec(), from));
    }
    fn error_received(&mut self, error: io::Error) {
        self.record(DatagramEvent::Error(error.kind()));
    }
    fn connection_lost(&mut self, error: Option<io::Error>) {
        self.record(DatagramEvent::Lost(error.map(|error| error.kind())));
    }
    fn pause_writing(&mut self) {
        self.record(DatagramEvent::Pause);
    }
    fn resume_writing(&mut self) {
        self.record(DatagramEvent::Resume);
    }
}

async fn until_event(log: &DatagramLog, exists: impl Fn(&[DatagramEvent]) -> bool) {
    let waiting = async {
        while !exists(&log.borrow()) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = timeout(Duration::from_secs(60), waiting).await;
    assert!(waited.is_ok(), "{:?}", log.borrow());
}

#[test]
fn datagrams_keep_their_boundaries() {
    on_every_driver(|case| {
        case.run(async {
            let log = DatagramLog::default();
            let echo = || {
                DatagramRecorder::new(&log, |event, transport| {
                    if let DatagramEvent::Data(bytes, from) = event {
                        transport.send_to(bytes, *from);
                    }
                })
            };
            let (transport, _) = create_datagram_endpoint(echo, "127.0.0.1:0").await.unwrap();
            assert_eq!(log.borrow()[..], [DatagramEvent::Made]);
            let addr = transport.local_addr().unwrap();
            assert_eq!(transport.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
            let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let from = client.local_addr().unwrap();
            // Also longer than a managed buffer: no datagram is truncated.
            for len in [1, 0, 3_000, 20_000, 60_000] {
                let sent: Vec<u8> = (0..len).map(|at: usize| at as u8).collect();
                client.send_to(sent.clone(), addr).await.0.unwrap();
                let (result, buf) = client.recv_from(Vec::with_capacity(1 << 16)).await;
                assert_eq!(result.unwrap(), (len, addr));
                assert_eq!(buf, sent);
                let is_data = |event: &&DatagramEvent| matches!(event, DatagramEvent::Data(..));
                let log = log.borrow();
                assert!(
                    log.iter().rfind(is_data) == Some(&DatagramEvent::Data(sent, from)),
                    "{len}"
                );
            }
            transport.send_to("last", from);
            transport.close();
            assert!(transport.is_closing());
            transport.send_to("too late", from);
            assert_eq!(&*client.recv_managed().await.unwrap(), b"last");
            until_event(&log, |log| log.last() == Some(&DatagramEvent::Lost(None))).await;
            turns(10).await;
            // A long datagram may fill the send queue for a while.
            let is_flow = |event: &&DatagramEvent| matches!(event, DatagramEvent::Pause | DatagramEvent::Resume);
            assert_eq!(log.borrow().iter().filter(|event| !is_flow(event)).count(), 7);
            assert_eq!(transport.local_addr().unwrap(), addr);
        });
    });
}

#[test]
fn datagram_errors_are_reported_and_not_fatal() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let peer = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let addr = peer.local_addr().unwrap();
            let log = DatagramLog::default();
            let silent = || DatagramRecorder::new(&log, |_, _| {});
            let (transport, _) = connect_datagram_endpoint(silent, addr).await.unwrap();
            assert_eq!(transport.peer_addr().unwrap(), addr);
            transport.send("hello");
            transport.send_to("again", addr);
            for expected in ["hello", "again"] {
                assert_eq!(&*peer.recv_managed().await.unwrap(), expected.as_bytes());
            }
            // To another address, and too long.
            transport.send_to("stray", "127.0.0.1:9".parse().unwrap());
            until_event(&log, |log| {
                log.last() == Some(&DatagramEvent::Error(ErrorKind::InvalidInput))
            })
            .await;
            transport.send(vec![0; 100_000]);
            let errors = |log: &[DatagramEvent]| {
                log.iter()
                    .filter(|event| matches!(event, DatagramEvent::Error(_)))
                    .count()
            };
            until_event(&log, |log| errors(log) == 2).await;
            // The peer is closed.
            drop(peer);
            let refused = DatagramEvent::Error(ErrorKind::ConnectionRefused);
            while !log.borrow().contains(&refused) {
                transport.send("anyone?");
                sleep(Duration::from_millis(5)).await;
            }
            // The peer is open again.
            let peer = UdpSocket::bind(addr).await.unwrap();
            transport.send("welcome back");
            // Earlier datagrams may still have been waiting to be sent.
            loop {
                let received = peer.recv_managed().await.unwrap();
                if &*received == b"welcome back" {
                    break;
                }
                assert_eq!(&*received, b"anyone?");
            }
            transport.abort();
            until_event(&log, |log| log.last() == Some(&DatagramEvent::Lost(None))).await;

            let log = DatagramLog::default();
            let silent = || DatagramRecorder::new(&log, |_, _| {});
            let (transport, _) = create_datagram_endpoint(silent, "127.0.0.1:0").await.unwrap();
            transport.send("to whom?");
            until_event(&log, |log| {
                log.last() == Some(&DatagramEvent::Error(ErrorKind::NotConnected))
            })
            .await;
        });
    });
}

#[test]
fn datagram_endpoints_pause_writing_and_report_a_panic() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let run = event_loop.run_until_complete(async {
            let peer = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let addr = peer.local_addr().unwrap();
            let log = DatagramLog::default();
            let panicky =
                || DatagramRecorder::new(&log, |event, _| assert!(*event != DatagramEvent::Resume, "on purpose"));
            let (transport, _) = create_datagram_endpoint(panicky, "127.0.0.1:0").await.unwrap();
            transport.set_write_buffer_limits(1_000, 100).unwrap();
            transport.send_to(vec![1; 1_000], addr);
            assert_eq!(transport.get_write_buffer_size(), 1_000);
            turns(5).await;
            assert_eq!(log.borrow()[..], [DatagramEvent::Made]);
            transport.send_to(vec![1; 1_000], addr);
            transport.send_to("1", addr);
            until_event(&log, |log| matches!(log.last(), Some(DatagramEvent::Lost(_)))).await;
            let lost = DatagramEvent::Lost(Some(ErrorKind::Other));
            assert_eq!(
                log.borrow()[..],
                [DatagramEvent::Made, DatagramEvent::Pause, DatagramEvent::Resume, lost]
            );
        });
        run.unwrap();
        assert_eq!(exceptions.borrow().len(), 1, "{:?}", exceptions.borrow());
    });
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ProcessEvent {
    Made,
    PipeLost(i32, Option<ErrorKind>),
    Exited,
    Lost(Option<ErrorKind>),
    Pause,
    Resume,
}

#[derive(Default)]
struct ProcessLog {
    events: Vec<ProcessEvent>,
    output: [Vec<u8>; 3],
}

type SharedLog = Rc<RefCell<ProcessLog>>;

struct ProcessRecorder {
    seen: SharedLog,
    act: Box<dyn FnMut(&ProcessEvent)>,
}

impl ProcessRecorder {
    fn new(seen: &SharedLog) -> ProcessRecorder {
        ProcessRecorder {
            seen: seen.clone(),
            act: Box::new(|_| {}),
        }
    }

    fn record(&mut self, events: ProcessEvent) {
        self.seen.borrow_mut().events.push(events.clone());
        (self.act)(&events);
    }
}

impl SubprocessProtocol for ProcessRecorder {
    fn connection_made(&mut self, _transport: SubprocessTransport) {
        self.record(ProcessEvent::Made);
    }
    fn pipe_data_received(&mut self, fd: i32, data: &[u8]) {
        self.seen.borrow_mut().output[fd as usize].extend(data);
    }
    fn pipe_connection_lost(&mut self, fd: i32, error: Option<io::Error>) {
        self.record(ProcessEvent::PipeLost(fd, error.map(|error| error.kind())));
    }
    fn process_exited(&mut self) {
        self.record(ProcessEvent::Exited);
    }
    fn connection_lost(&mut self, error: Option<io::Error>) {
        self.record(ProcessEvent::Lost(error.map(|error| error.kind())));
    }
    fn pause_writing(&mut self) {
        self.record(ProcessEvent::Pause);
    }
    fn resume_writing(&mut self) {
        self.record(ProcessEvent::Resume);
    }
}

async fn until_exited(seen: &SharedLog) {
    let waiting = async {
        while !matches!(seen.borrow().events.last(), Some(ProcessEvent::Lost(_))) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = timeout(Duration::from_secs(60), waiting).await;
    assert!(waited.is_ok(), "{:?}", seen.borrow().events);
    let seen = seen.borrow();
    let count = |logged: &ProcessEvent| seen.events.iter().filter(|events| *events == logged).count();
    assert_eq!(seen.events.first(), Some(&ProcessEvent::Made));
    assert_eq!(
        (count(&ProcessEvent::Made), count(&ProcessEvent::Exited)),
        (1, 1),
        "{:?}",
        seen.events
    );
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn a_subprocess_protocol_receives_all_events() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let seen = SharedLog::default();
            let mut command = shell("cat; echo errors >&2; exit 3");
            let (transport, _) = subprocess_exec(|| ProcessRecorder::new(&seen), &mut command)
                .await
                .unwrap();
            assert!(transport.pid() > 0);
            assert_eq!(transport.exit_status(), None);
            let input = vec![b'x'; 1 << 20];
            transport.write(&input);
            transport.write_eof();
            until_exited(&seen).await;
            assert_eq!(transport.exit_status().unwrap().code(), Some(3));
            let seen = seen.borrow();
            assert_eq!(seen.output[1], input);
            assert_eq!(seen.output[2], b"errors\n");
            assert_eq!(
                seen.events[..4],
                [
                    ProcessEvent::Made,
                    ProcessEvent::Pause,
                    ProcessEvent::Resume,
                    ProcessEvent::PipeLost(0, None)
                ]
            );
            assert_eq!(seen.events.last(), Some(&ProcessEvent::Lost(None)));
            for fd in [1, 2] {
                assert!(
                    seen.events.contains(&ProcessEvent::PipeLost(fd, None)),
                    "{:?}",
                    seen.events
                );
            }
        });
    });
}

#[test]
fn terminate_kill_and_close_end_a_subprocess() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for (how, signal) in [
                ("terminate", libc::SIGTERM),
                ("kill", libc::SIGKILL),
                ("close", libc::SIGKILL),
            ] {
                let seen = SharedLog::default();
                // A grandchild that holds the pipes too is not waited for after `close`.
                let mut command = shell(match how {
                    "close" => "sleep 60; true",
                    _ => "exec sleep 60",
                });
                command.stderr(std::process::Stdio::null());
                let (transport, _) = subprocess_exec(|| ProcessRecorder::new(&seen), &mut command)
                    .await
                    .unwrap();
                transport.write(vec![0; 1 << 20]);
                sleep(Duration::from_millis(20)).await;
                match how {
                    "terminate" => transport.terminate(),
                    "kill" => transport.kill(),
                    _ => transport.close(),
                }
                until_exited(&seen).await;
                assert_eq!(transport.exit_status().unwrap().signal(), Some(signal), "{how}");
                assert!(transport.is_closing());
                assert_eq!(transport.get_write_buffer_size(), 0);
                transport.kill();
                transport.close();
            }
        });
    });
}

#[test]
fn a_subprocess_that_fails_to_start_or_read_is_reported() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let run = event_loop.run_until_complete(async {
            let mut missing = Command::new("/no/such/program");
            let unmade = || -> ProcessRecorder { unreachable!() };
            let error = subprocess_exec(unmade, &mut missing).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains("/no/such/program"), "{error}");

            // The child closes its input: that pipe is lost, the others are not.
            let seen = SharedLog::default();
            let folder = Folder::new();
            let goes_on = folder.join("go on");
            let script = "exec 0<&-; echo closed; until [ -e \"$0\" ]; do sleep 0.01; done; echo still here";
            let mut command = shell(script);
            command.arg(&goes_on);
            let (transport, _) = subprocess_exec(|| ProcessRecorder::new(&seen), &mut command)
                .await
                .unwrap();
            while seen.borrow().output[1].is_empty() {
                sleep(Duration::from_millis(1)).await;
            }
            let is_lost = || {
                let lost = ProcessEvent::PipeLost(0, Some(ErrorKind::BrokenPipe));
                seen.borrow().events.contains(&lost)
            };
            let losing = async {
                // More than once: a child that another test has forked, and that has not executed its program yet, holds a
                // copy of the pipe's other end.
                while !is_lost() {
                    transport.write("the child does not read this");
                    sleep(Duration::from_millis(1)).await;
                }
            };
            let lost = timeout(Duration::from_secs(60), losing).await;
            assert!(lost.is_ok(), "{:?}", seen.borrow().events);
            std::fs::write(&goes_on, "").expect("a new file");
            until_exited(&seen).await;
            assert_eq!(seen.borrow().output[1], b"closed\nstill here\n");

            // The protocol panics: the process is killed.
            let seen = SharedLog::default();
            let panicky = || {
                let mut process_recorder = ProcessRecorder::new(&seen);
                process_recorder.act = Box::new(|events| assert!(*events != ProcessEvent::Made, "on purpose"));
                process_recorder
            };
            let (transport, _) = subprocess_exec(panicky, &mut shell("exec sleep 60")).await.unwrap();
            let pid = transport.pid();
            while !matches!(
                seen.borrow().events.last(),
                Some(ProcessEvent::Lost(Some(ErrorKind::Other)))
            ) {
                sleep(Duration::from_millis(1)).await;
            }
            let exists = || {
                // SAFETY: signal 0 only checks whether the process exists.
                unsafe { libc::kill(pid as i32, 0) == 0 }
            };
            let gone = async {
                while exists() {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(Duration::from_secs(60), gone).await.expect("killed and reaped");
        });
        run.unwrap();
        assert_eq!(exceptions.borrow().len(), 1, "{:?}", exceptions.borrow());
    });
}

fn socket_path(name: &str) -> PathBuf {
    let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "");
    std::env::temp_dir().join(format!("windlass-{name}-{}-{thread}.sock", std::process::id()))
}

#[test]
fn unix_connections_support_protocols() {
    on_every_kernel_driver(|case| {
        let path = socket_path("protocol");
        let _ = std::fs::remove_file(&path);
        case.run(async {
            let served = Log::default();
            let echo = {
                let log = served.clone();
                move || {
                    Recorder::new(&log, |logged, transport| {
                        if let Event::Data(bytes) = logged {
                            transport.write(bytes);
                            transport.close();
                        }
                    })
                }
            };
            let server = create_unix_server(echo, &path).unwrap();
            assert_eq!(server.local_unix_addr().unwrap().as_pathname(), Some(&*path));
            assert_eq!(server.local_addr().unwrap_err().kind(), ErrorKind::Unsupported);
            let taken = create_unix_server(|| -> Recorder { unreachable!() }, &path).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse);
            let log = Log::default();
            let client = || Recorder::new(&log, |_, _| {});
            let (transport, _) = create_unix_connection(client, &path).await.unwrap();
            assert_eq!(transport.peer_unix_addr().unwrap().as_pathname(), Some(&*path));
            assert_eq!(transport.peer_addr().unwrap_err().kind(), ErrorKind::Unsupported);
            transport.write(vec![1; 1_000]);
            until_lost(&log).await;
            until_lost(&served).await;
            assert_eq!(
                log.borrow()[1..],
                [Event::Data(vec![1; 1_000]), Event::Eof, Event::Lost(None)]
            );
            server.close();
            server.wait_closed().await;
        });
        std::fs::remove_file(&path).unwrap();
        case.run(async {
            let server = start_unix_server(
                async |mut reader, writer| {
                    let line = reader.read_line().await?;
                    writer.write(line);
                    io::Result::Ok(())
                },
                &path,
            )
            .unwrap();
            let (mut reader, writer) = open_unix_connection(&path).await.unwrap();
            writer.write("over a file\n");
            assert_eq!(reader.read_line().await.unwrap(), "over a file\n");
            drop((reader, writer));
            server.close();
            server.wait_closed().await;

            let (one, other) = UnixStream::pair().unwrap();
            let log = Log::default();
            let (transport, _) = attach(other, Recorder::new(&log, |_, _| {}));
            one.write_all("pair").await.0.unwrap();
            until(&log, |logged| logged.len() == 2).await;
            transport.write("back");
            assert_eq!(&*one.read_managed().await.unwrap(), b"back");
        });
        std::fs::remove_file(&path).unwrap();
    });
}

/// Many endpoints are opened and closed: no operation and no task is left.
#[test]
fn endpoints_leave_nothing_behind() {
    on_every_driver(|case| {
        case.run(async {
            let before = windlass::counters();
            let made = Rc::new(Cell::new(0));
            for round in 0..rounds().min(300) {
                let log = DatagramLog::default();
                let made = made.clone();
                let recorder = || DatagramRecorder::new(&log, move |_, _| made.set(made.get() + 1));
                let (transport, _) = create_datagram_endpoint(recorder, "127.0.0.1:0").await.unwrap();
                let addr = transport.local_addr().unwrap();
                transport.send_to("to myself", addr);
                match round % 2 {
                    0 => transport.close(),
                    _ => transport.abort(),
                }
            }
            let settled = async {
                while windlass::counters().tasks > before.tasks || windlass::counters().ops > before.ops {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(Duration::from_secs(60), settled)
                .await
                .expect("all endpoints end");
            assert!(made.get() >= rounds().min(300));
        });
    });
}
