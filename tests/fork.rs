//! Forking with a live loop: the child cannot use the loop but can drop it, and the parent is not affected.
//!
//! Each test runs in its own process, whose only other threads are those of the loop's pool.

#![cfg(unix)]

#[path = "suite/child.rs"]
mod child;
#[path = "suite/support.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::io::{PipeWriter, Read, Write};
use std::net::TcpStream as StdStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::process::Stdio;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use support::{Case, here_on_every_driver, poll_with, turns};
use windlass::blocking::{BlockingHandle, Pool, Shutdown};
use windlass::io::{AsyncRead, AsyncWrite};
use windlass::net::{TcpListener, TcpStream};
use windlass::{EventLoop, JoinHandle, LoopHandle, RemoteHandle};

/// A child that runs longer hangs, and SIGALRM kills it.
const HANG: u32 = 8;

/// Forks, runs `body` in the child, and returns the child's status and standard error.
fn fork(body: impl FnOnce()) -> (libc::c_int, String) {
    let mut stderr = tempfile();
    // SAFETY: this is the only thread of the process that holds locks.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: these calls touch no memory; the file stays open.
        unsafe {
            libc::alarm(HANG);
            libc::dup2(stderr.as_raw_fd(), 2);
        }
        let code = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(()) => 0,
            Err(_) => 101,
        };
        // Not `exit`, which would run the exit handlers of the parent's test harness.
        // SAFETY: this does not return.
        unsafe { libc::_exit(code) };
    }
    let status = wait_for(pid);
    use std::io::Seek;
    stderr.rewind().expect("rewind");
    let mut text = String::new();
    stderr.read_to_string(&mut text).expect("text");
    (status, text)
}

fn wait_for(pid: libc::pid_t) -> libc::c_int {
    let mut status = 0;
    // SAFETY: the kernel writes to the local.
    while unsafe { libc::waitpid(pid, &mut status, 0) } < 0 {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "waitpid: {error}");
    }
    status
}

fn tempfile() -> std::fs::File {
    let folder = support::Folder::new();
    let path = folder.file("stderr", "");
    // The path is removed with its folder; the file stays open.
    let mut options = std::fs::File::options();
    options.read(true).write(true).open(path).expect("a file")
}

#[track_caller]
fn assert_child_succeeded((status, stderr): (libc::c_int, String)) {
    assert_eq!(status, 0, "the child ended with status {status:#x}:\n{stderr}");
    assert_eq!(stderr, "", "the child wrote to its standard error");
}

/// A loop with everything in flight: a read, an accept, a timer, a blocking job, a watcher, a future of another thread.
struct Scene {
    /// First, so that a failing test opens the gates before the loop waits for its jobs.
    peers: Peers,
    case: Case,
    read: JoinHandle<Vec<u8>>,
    accept: JoinHandle<usize>,
    timer: JoinHandle<()>,
    job: JoinHandle<u32>,
    idle: TcpStream,
    unawaited: BlockingHandle<u32>,
    remote: RemoteHandle<u32>,
    pool: Pool,
    watched: Rc<UnixStream>,
    calls: Rc<Cell<usize>>,
    handle: LoopHandle,
    event_loop: EventLoop,
}

/// The other ends, which the parent holds.
struct Peers {
    client: Client,
    idle: Client,
    listener: Option<std::net::SocketAddr>,
    watched: UnixStream,
    /// Ends the blocking jobs. Pipes, because a channel has a lock: if the thread of a job holds it during the fork, the
    /// child would wait for it forever.
    gates: Vec<PipeWriter>,
}

/// The other end of a connection: std's on a kernel driver, the loop's own on the null driver.
enum Client {
    Std(StdStream),
    Ours(TcpStream),
}

fn scene(case: Case) -> Scene {
    let event_loop = case.event_loop();
    let (listener, [(server, client), (idle, idle_client)]) = event_loop
        .run_until_complete(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let one = connection(case, &listener).await;
            let other = connection(case, &listener).await;
            (listener, [one, other])
        })
        .expect("the loop runs");
    let addr = listener.local_addr().expect("an address");
    let (watched, far) = UnixStream::pair().expect("a pair");
    watched.set_nonblocking(true).expect("non-blocking");
    let watched = Rc::new(watched);
    let calls = Rc::new(Cell::new(0));
    if case.is_kernel() {
        let (ours, calls) = (watched.clone(), calls.clone());
        event_loop
            .add_reader(&watched, move || {
                let mut bytes = [0; 8];
                let _ = (&*ours).read(&mut bytes);
                calls.set(calls.get() + 1);
            })
            .expect("a watcher");
    }
    let pool = Pool::builder().threads(1).build();
    let mut gates = Vec::new();
    let mut job = || {
        let (mut gate, open) = std::io::pipe().expect("a pipe");
        gates.push(open);
        move || {
            let _ = gate.read(&mut [0]);
            7
        }
    };
    let (work, unawaited) = (job(), pool.spawn(job()));
    let read = event_loop.spawn(async move {
        let (count, buf) = server.read(vec![0; 16]).await;
        buf[..count.expect("read")].to_vec()
    });
    let accept = event_loop.spawn(async move {
        let (stream, _) = listener.accept().await.expect("accept");
        stream.write_all("hello").await.0.expect("write");
        5
    });
    let timer = event_loop.spawn(windlass::time::sleep(Duration::from_millis(100)));
    let job = event_loop.spawn(async move { windlass::spawn_blocking(work).await.expect("no panic") });
    let handle = event_loop.handle();
    let remote = handle.spawn(async { 9 }).expect("it is open");
    if case.is_kernel() {
        event_loop.run_until_complete(turns(5)).expect("the loop runs");
    } else {
        event_loop.turn_nowait().expect("it turns");
    }
    Scene {
        case,
        read,
        accept,
        timer,
        job,
        idle,
        unawaited,
        remote,
        pool,
        watched,
        calls,
        handle,
        event_loop,
        peers: Peers {
            client,
            idle: idle_client,
            listener: case.is_kernel().then_some(addr),
            watched: far,
            gates,
        },
    }
}

async fn connection(case: Case, listener: &TcpListener) -> (TcpStream, Client) {
    let addr = listener.local_addr().expect("an address");
    if case.is_kernel() {
        let client = StdStream::connect(addr).expect("connect");
        let timeout = Some(Duration::from_secs(30));
        client.set_read_timeout(timeout).expect("a timeout");
        return (listener.accept().await.expect("accept").0, Client::Std(client));
    }
    let (client, server) = support::pair_of(listener).await;
    (server, Client::Ours(client))
}

impl Scene {
    /// Asserts that the parent's loop works as before.
    fn assert_works(self) {
        let Scene {
            case,
            read,
            accept,
            timer,
            job,
            idle,
            unawaited,
            remote,
            calls,
            event_loop,
            mut peers,
            ..
        } = self;
        assert!(!read.is_finished() && !accept.is_finished() && !job.is_finished());
        drop(peers.gates);
        let is_kernel = case.is_kernel();
        if let Client::Std(client) = &mut peers.client {
            client.write_all(b"later").expect("write");
        }
        if is_kernel {
            peers.watched.write_all(&[1]).expect("write");
        }
        let connecting = peers.listener.map(|addr| StdStream::connect(addr).expect("connect"));
        event_loop
            .run_until_complete(async {
                if let Client::Ours(client) = &peers.client {
                    client.write_all("later").await.0.expect("write");
                }
                assert_eq!(read.await.expect("no panic"), b"later");
                if connecting.is_some() {
                    assert_eq!(accept.await.expect("no panic"), 5);
                }
                timer.await.expect("no panic");
                assert_eq!(job.await.expect("no panic"), 7);
                assert_eq!(unawaited.await.expect("no panic"), 7);
                assert_eq!(remote.await.expect("no panic"), 9);
                idle.write_all("idle").await.0.expect("write");
                while is_kernel && calls.get() == 0 {
                    windlass::task::yield_now().await;
                }
                if let Client::Ours(client) = &peers.idle {
                    let (count, buf) = client.read(vec![0; 4]).await;
                    assert_eq!(&buf[..count.expect("read")], b"idle");
                }
            })
            .expect("the loop runs");
        if let Some(mut connected) = connecting {
            let mut hello = [0; 5];
            connected.read_exact(&mut hello).expect("hello");
        }
        // The connection is unchanged: no FIN, no RST.
        if let Client::Std(client) = &mut peers.idle {
            let mut bytes = [0; 4];
            client.read_exact(&mut bytes).expect("read");
            assert_eq!(&bytes, b"idle");
        }
    }
}

/// Runs a test's body on every driver, in a process with one thread.
fn single_threaded(test: &str, body: impl Fn(Case)) {
    child::in_own_process(test, &child::UNDISTURBED, || here_on_every_driver(body));
}

#[test]
fn a_child_can_drop_everything() {
    single_threaded("a_child_can_drop_everything", |case| {
        let scene = scene(case);
        let scene = Cell::new(Some(scene));
        let ended = fork(|| drop(scene.take()));
        assert_child_succeeded(ended);
        scene.take().expect("the parent's scene").assert_works();
    });
}

/// In the other order: the loop is dropped first, and its objects outlive it.
#[test]
fn a_child_can_drop_the_loop_first() {
    single_threaded("a_child_can_drop_the_loop_first", |case| {
        let scene = Cell::new(Some(scene(case)));
        let ended = fork(|| {
            let Scene { event_loop, .. } = &mut scene.take().expect("the child's");
            let new = case.event_loop();
            drop(std::mem::replace(event_loop, new));
        });
        assert_child_succeeded(ended);
        scene.take().expect("the parent's").assert_works();
    });
}

#[test]
fn a_child_can_exit() {
    single_threaded("a_child_can_exit", |case| {
        let scene = scene(case);
        // SAFETY: this ends the child; its exit handlers run.
        let ended = fork(|| unsafe { libc::exit(0) });
        assert_eq!(ended.0, 0, "{}", ended.1);
        scene.assert_works();
    });
}

/// Asserts an error that names the fork.
#[track_caller]
fn assert_refused<T>(what: &str, result: Result<T, impl std::fmt::Display>) {
    match result {
        Ok(_) => panic!("{what} worked in the child"),
        Err(error) => assert!(error.to_string().contains("fork"), "{what}: {error}"),
    }
}

#[test]
fn a_child_that_uses_the_loop_gets_an_error() {
    single_threaded("a_child_that_uses_the_loop_gets_an_error", |case| {
        let scene = Cell::new(Some(scene(case)));
        let ended = fork(|| use_everything(scene.take().expect("the child's")));
        assert_child_succeeded(ended);
        scene.take().expect("the parent's").assert_works();
    });
}

fn use_everything(scene: Scene) {
    let Scene {
        event_loop,
        idle,
        handle,
        remote,
        unawaited,
        pool,
        watched,
        ..
    } = scene;
    assert_refused("turn", event_loop.turn());
    assert_refused("turn_nowait", event_loop.turn_nowait());
    assert_refused("run_forever", event_loop.run_forever());
    assert_refused("run_until_complete", event_loop.run_until_complete(async {}));
    let spawned = event_loop.spawn(async { 1 });
    assert_refused("run after spawn", event_loop.run_until_complete(spawned));
    assert_refused("flush", event_loop.flush());
    assert_refused("pollable", event_loop.pollable());
    assert_refused("add_reader", event_loop.add_reader(&watched, || {}));
    assert_refused("local_addr", idle.local_addr());
    assert_refused("set_nodelay", idle.set_nodelay(true));
    let waker = Waker::noop();
    match poll_with(waker, pin!(idle.read(vec![0; 4]))) {
        Poll::Ready((result, _)) => assert_refused("read", result),
        Poll::Pending => panic!("a read waits forever"),
    }
    match poll_with(waker, pin!(idle.write(vec![0; 4]))) {
        Poll::Ready((result, _)) => assert_refused("write", result),
        Poll::Pending => panic!("a write waits forever"),
    }
    assert_refused("call_soon_threadsafe", handle.call_soon_threadsafe(|| {}));
    assert_refused("stop", handle.stop());
    assert_refused("LoopHandle::spawn", handle.spawn(async {}));
    assert!(handle.is_closed());
    assert_refused("RemoteHandle::wait", remote.wait());
    match poll_with(waker, pin!(unawaited)) {
        Poll::Ready(result) => assert_refused("BlockingHandle", result),
        Poll::Pending => panic!("a job without a thread is pending"),
    }
    match poll_with(waker, pin!(pool.spawn(|| 1))) {
        Poll::Ready(result) => assert_refused("Pool::spawn", result),
        Poll::Pending => panic!("a pool without threads accepts work"),
    }
    pool.shutdown(Shutdown::Wait);
    // Calls that need no driver still work.
    let _ = (event_loop.time(), event_loop.describe(), event_loop.counters());
    let _ = format!("{event_loop:?} {pool:?} {handle:?}");
}

/// Echoes on a new loop of the child.
fn echo(case: Case) {
    let event_loop = case.event_loop();
    let echoed = event_loop.run_until_complete(async {
        let (client, server) = support::pair().await;
        let echo = windlass::spawn(async move {
            let bytes = server.read_managed().await.expect("read");
            server.write_all(bytes).await.0.expect("write");
        });
        client.write_all("again").await.0.expect("write");
        let (count, buf) = client.read(vec![0; 16]).await;
        echo.await.expect("no panic");
        windlass::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(windlass::spawn_blocking(|| 3).await.expect("no panic"), 3);
        if case.is_kernel() {
            let status = windlass::process::Command::new("true").status().await;
            assert!(status.expect("a process").success());
        }
        buf[..count.expect("read")].to_vec()
    });
    assert_eq!(echoed.expect("the loop runs"), b"again");
}

#[test]
fn a_child_can_create_a_new_loop() {
    single_threaded("a_child_can_create_a_new_loop", |case| {
        let scene = Cell::new(Some(scene(case)));
        let ended = fork(|| {
            let old = scene.take();
            echo(case);
            drop(old);
            echo(case);
        });
        assert_child_succeeded(ended);
        scene.take().expect("the parent's").assert_works();
    });
}

/// A task forks: the child may run a new loop there, and returns to an error.
#[test]
fn a_task_can_fork() {
    single_threaded("a_task_can_fork", |case| {
        let scene = scene(case);
        let ran = Rc::new(Cell::new(false));
        let other = ran.clone();
        let ended = Rc::new(RefCell::new(None));
        let ended_here = ended.clone();
        // SAFETY: as in `fork`; the child exits below.
        let parent = unsafe { libc::getpid() };
        let result = scene.event_loop.run_until_complete(async {
            // Ready when this task is polled, so it runs next.
            windlass::spawn(async move { other.set(true) });
            // SAFETY: as in `fork`.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                // SAFETY: this touches no memory.
                unsafe { libc::alarm(HANG) };
                echo(case);
                windlass::task::yield_now().await;
                panic!("the old loop runs on in the child");
            }
            ended_here.replace(Some(wait_for(pid)));
            windlass::task::yield_now().await;
        });
        // SAFETY: this touches no memory.
        if unsafe { libc::getpid() } != parent {
            let code = match result {
                Err(error) if error.to_string().contains("fork") && !ran.get() => 0,
                Err(_) => 1,
                Ok(()) => 2,
            };
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(scene)));
            // SAFETY: this does not return.
            unsafe { libc::_exit(if dropped.is_err() { 3 } else { code }) };
        }
        result.expect("the parent's loop runs");
        assert!(ran.get());
        assert_eq!(ended.take(), Some(0), "how the child ended");
        scene.assert_works();
    });
}

/// A destructor forks while the loop closes: the child returns into the close of its parent's loop.
#[test]
fn a_destructor_can_fork_during_a_close() {
    /// In the parent, the status of the child.
    struct Forks(Rc<Cell<Option<libc::c_int>>>);
    impl Drop for Forks {
        fn drop(&mut self) {
            // SAFETY: as in `fork`; the child exits below.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            match pid {
                // SAFETY: this touches no memory.
                0 => drop(unsafe { libc::alarm(HANG) }),
                pid => self.0.set(Some(wait_for(pid))),
            }
        }
    }
    single_threaded("a_destructor_can_fork_during_a_close", |case| {
        let event_loop = case.event_loop();
        let status = Rc::new(Cell::new(None));
        let forks = Forks(status.clone());
        // Dropped after all tasks, when nothing is in flight any more.
        event_loop.call_later(Duration::from_secs(3600), move || drop(forks));
        event_loop.run_until_complete(turns(2)).expect("the loop runs");
        // SAFETY: this touches no memory.
        let parent = unsafe { libc::getpid() };
        let closed = catch_unwind(AssertUnwindSafe(|| event_loop.close()));
        // SAFETY: as above.
        if unsafe { libc::getpid() } != parent {
            // SAFETY: this does not return.
            unsafe { libc::_exit(if closed.is_err() { 101 } else { 0 }) };
        }
        closed.expect("the parent closes its loop");
        assert_eq!(status.get(), Some(0), "how the child ended");
        echo(case);
    });
}

/// Processes are children of the parent, not of the child: dropping their handles in the child kills and reaps none.
#[test]
fn a_child_does_not_kill_the_parents_processes() {
    single_threaded("a_child_does_not_kill_the_parents_processes", |case| {
        if !case.is_kernel() {
            return;
        }
        let event_loop = case.event_loop();
        let started = event_loop.run_until_complete(async {
            let mut command = windlass::process::Command::new("cat");
            let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.kill_on_drop(true).spawn().expect("a process")
        });
        let both = Cell::new(Some((started.expect("the loop runs"), event_loop)));
        assert_child_succeeded(fork(|| drop(both.take())));
        let (mut process, event_loop) = both.take().expect("the parent's");
        // A killed process may be reported late, but it copies no byte.
        let copied = event_loop.run_until_complete(async {
            let (stdin, stdout) = (process.stdin.as_mut(), process.stdout.as_mut());
            let _ = stdin.expect("a pipe").write_all("alive").await;
            stdout.expect("a pipe").read(Vec::with_capacity(16)).await.1
        });
        assert_eq!(copied.expect("the loop runs"), b"alive", "the process was killed");
        let killed = event_loop.run_until_complete(async { process.kill().await });
        killed.expect("the loop runs").expect("it is killed now");
    });
}

/// A signal to the child is not seen by the parent.
#[test]
fn a_signal_to_the_child_does_not_reach_the_parent() {
    use windlass::signal::{SignalKind, signal};
    single_threaded("a_signal_to_the_child_does_not_reach_the_parent", |case| {
        if !case.is_kernel() {
            return;
        }
        let event_loop = case.event_loop();
        event_loop
            .run_until_complete(async {
                let mut listener = signal(SignalKind::user_defined1()).expect("a listener");
                let turns_before = windlass::counters().driver.completions;
                // SAFETY: this touches no memory.
                let ended = fork(|| assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0));
                assert_child_succeeded(ended);
                turns(3).await;
                windlass::time::sleep(Duration::from_millis(1)).await;
                let after = windlass::counters().driver.completions;
                assert_eq!(after, turns_before, "the child wrote to the parent's socket");
                // SAFETY: this touches no memory.
                assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
                assert!(listener.recv().await.is_some());
            })
            .expect("the loop runs");
    });
}
