//! What the tests share.

#![allow(dead_code, reason = "not every build of the suite uses every helper")]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::{Builder, DriverChoice, EventLoop};

#[cfg(unix)]
#[path = "unix_machine.rs"]
mod machine;
#[cfg(windows)]
#[path = "windows_machine.rs"]
mod machine;

#[allow(unused_imports, reason = "not every system has every helper")]
pub(crate) use self::machine::*;

/// A test that takes longer than this hangs.
const HANG: Duration = Duration::from_secs(if cfg!(miri) { 1_200 } else { 300 });

/// One driver under test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub name: &'static str,
    choice: DriverChoice,
}

impl Case {
    /// A builder for a loop on this driver.
    pub(crate) fn builder(&self) -> Builder {
        let plain = variable::<u32>("WINDLASS_TEST_PLAIN").is_some_and(|on| on > 0);
        let builder = Builder::new().driver(self.choice).plain_ring(plain);
        match variable("WINDLASS_TEST_RING") {
            Some(entries) => builder.ring_entries(entries).completion_entries(entries * 2),
            None => builder,
        }
    }

    pub(crate) fn event_loop(&self) -> EventLoop {
        self.builder().build().expect("the driver was tried before")
    }

    /// Runs a future to its end on a new loop, which is closed afterwards.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        self.event_loop().run_until_complete(future).expect("the loop runs")
    }

    /// Whether descriptors are the kernel's and the clock is real.
    pub(crate) fn is_kernel(&self) -> bool {
        self.choice != DriverChoice::Null
    }

    /// Whether there is a submission ring that can be full and a completion ring that can overflow.
    pub(crate) fn has_rings(&self) -> bool {
        self.choice == DriverChoice::Proactor && cfg!(target_os = "linux")
    }

    /// Whether an operation that need not wait is over as soon as it is started.
    pub(crate) fn tries_first(&self) -> bool {
        // With io_uring refused, which is when it is under test, that is what Auto comes to.
        let is_port = self.choice == DriverChoice::Proactor && cfg!(windows);
        is_port || matches!(self.choice, DriverChoice::Reactor | DriverChoice::Auto)
    }
}

/// Runs a test on each driver that can be had here, each on a thread of its own, and fails it if it hangs.
pub(crate) fn on_every_driver(body: impl Fn(Case) + Send + Clone + 'static) {
    for case in cases() {
        run_case(case, body.clone());
    }
}

/// The same for what only a real kernel does.
pub(crate) fn on_every_kernel_driver(body: impl Fn(Case) + Send + Clone + 'static) {
    for case in cases().into_iter().filter(Case::is_kernel) {
        run_case(case, body.clone());
    }
}

/// The same on the thread of the caller, for a process that must have no other.
pub(crate) fn here_on_every_driver(body: impl Fn(Case)) {
    for case in cases() {
        println!("-- on {}", case.name);
        body(case);
    }
}

fn run_case(case: Case, body: impl FnOnce(Case) + Send + 'static) {
    println!("-- on {}", case.name);
    let (done, finished) = mpsc::channel::<()>();
    let thread = std::thread::Builder::new()
        .name(format!("test on {}", case.name))
        .spawn(move || {
            let _done = done;
            let _interrupting = machine::interrupt_if_asked();
            body(case);
        })
        .expect("a thread");
    if finished.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("hangs on {}", case.name);
    }
    if let Err(payload) = thread.join() {
        std::panic::resume_unwind(payload);
    }
}

fn cases() -> Vec<Case> {
    let mut all = vec![
        Case {
            name: "null",
            choice: DriverChoice::Null,
        },
        Case {
            name: "proactor",
            choice: DriverChoice::Proactor,
        },
        Case {
            name: "reactor",
            choice: DriverChoice::Reactor,
        },
    ];
    if machine::refuse_if_asked() {
        all.push(Case {
            name: "auto",
            choice: DriverChoice::Auto,
        });
    }
    let wanted = std::env::var("WINDLASS_TEST_DRIVERS").ok();
    let is_wanted = |case: &Case| match &wanted {
        Some(names) => names.split(',').any(|name| name == case.name),
        None => true,
    };
    let can_open = |case: &Case| {
        if cfg!(miri) && case.is_kernel() {
            return false;
        }
        match case.builder().build() {
            Ok(_) => true,
            Err(error) => {
                assert!(wanted.is_none(), "{} was asked for: {error}", case.name);
                println!("-- SKIPPED on {}: {error}", case.name);
                false
            }
        }
    };
    all.into_iter().filter(is_wanted).filter(can_open).collect()
}

/// How often a looping test loops.
pub(crate) fn rounds() -> usize {
    let default = if cfg!(miri) { 20 } else { 1_000 };
    variable("WINDLASS_TEST_ROUNDS").map_or(default, |rounds: usize| rounds)
}

pub(crate) fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(value) => Some(value),
        Err(_) => panic!("{name}={value} is not a number"),
    }
}

/// A connected pair: (client, server).
pub(crate) async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    pair_of(&listener).await
}

/// The same from a listener.
pub(crate) async fn pair_of(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let addr = listener.local_addr().expect("an address");
    let connecting = windlass::spawn(TcpStream::connect(addr));
    let (server, _) = listener.accept().await.expect("accept");
    let client = connecting.await.expect("no panic").expect("connect");
    (client, server)
}

/// The current loop has nothing to do: while it sleeps for half a second, it neither turns, nor calls the kernel, nor polls.
pub(crate) async fn assert_idle() {
    let before = windlass::counters();
    windlass::time::sleep(Duration::from_millis(500)).await;
    let after = windlass::counters();
    let (turns, enters) = (after.turns - before.turns, after.driver.enters - before.driver.enters);
    let spins = after.driver.spins - before.driver.spins;
    assert!(turns <= 3, "{turns} turns of an idle loop");
    assert!(enters <= 5, "{enters} system calls of an idle loop");
    // The rest of a sleep may be polled for: up to 120 us. Half a second of it would be a million polls.
    assert!(spins <= 10_000, "{spins} polls of an idle loop");
}

/// Asserts that something takes less than `bound`. On a busy machine a single attempt may take any time, so one of many
/// attempts is enough: what has a pause in it takes too long each time.
#[track_caller]
pub(crate) fn assert_one_is_quick(what: &str, bound: Duration, mut attempt: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    while took.len() < 20 {
        took.push(attempt());
        if took.last().is_some_and(|last| *last < bound) {
            return;
        }
    }
    panic!("{what} never took less than {bound:?}, but {took:?}");
}

/// Forgets a value, so that its destructor never runs, but keeps it reachable: a leak checker does not count it as lost.
pub(crate) fn keep_forever<T>(value: T) {
    #[allow(dead_code, reason = "only a leak checker reads it")]
    struct Kept(*mut ());
    // SAFETY: nothing is done with the pointer.
    unsafe impl Send for Kept {}
    static KEPT: std::sync::Mutex<Vec<Kept>> = std::sync::Mutex::new(Vec::new());
    let place = Kept(Box::into_raw(Box::new(value)).cast());
    KEPT.lock().expect("no panic").push(place);
}

/// Polls a future once.
pub(crate) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Lets the loop turn this often.
pub(crate) async fn turns(count: u64) {
    for _ in 0..count {
        windlass::task::yield_now().await;
    }
}

/// Numbers that look random and are the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Collects, as lines, what the loop's exception handler is told.
pub(crate) fn exceptions_of(event_loop: &EventLoop) -> Rc<RefCell<Vec<String>>> {
    let told = Rc::new(RefCell::new(Vec::new()));
    event_loop.set_exception_handler({
        let told = told.clone();
        move |exception| told.borrow_mut().push(exception.to_string())
    });
    told
}

/// Adds one to its count when it is dropped.
pub(crate) struct CountDrop(pub Rc<Cell<usize>>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Panics when it is dropped.
pub(crate) struct PanicOnDrop(pub &'static str);

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("{}", self.0);
    }
}

/// How connecting fails where no socket listens any more. A process that another test starts holds copies of our descriptors
/// until it runs its program: for that long the kernel goes on taking connections.
pub(crate) async fn connect_error(addr: impl windlass::net::ToSocketAddrs + Clone) -> std::io::Error {
    let begin = std::time::Instant::now();
    loop {
        match TcpStream::connect(addr.clone()).await {
            Err(error) => return error,
            Ok(_) => assert!(begin.elapsed() < Duration::from_secs(60), "a socket listens there"),
        }
        windlass::time::sleep(Duration::from_millis(1)).await;
    }
}

struct Hooks<W: Fn(), D: Fn()> {
    on_wake: W,
    on_drop: D,
}

// SAFETY: the tests that use such a waker keep it on one thread.
unsafe impl<W: Fn(), D: Fn()> Send for Hooks<W, D> {}
// SAFETY: as above.
unsafe impl<W: Fn(), D: Fn()> Sync for Hooks<W, D> {}

impl<W: Fn() + 'static, D: Fn() + 'static> Wake for Hooks<W, D> {
    fn wake(self: Arc<Self>) {
        (self.on_wake)();
    }
}

impl<W: Fn(), D: Fn()> Drop for Hooks<W, D> {
    fn drop(&mut self) {
        (self.on_drop)();
    }
}

/// A waker that runs foreign code when it is woken and when its last clone goes. It must stay on this thread.
pub(crate) fn waker_with(on_wake: impl Fn() + 'static, on_drop: impl Fn() + 'static) -> Waker {
    Waker::from(Arc::new(Hooks { on_wake, on_drop }))
}

pub(crate) fn waker_calling(on_wake: impl Fn() + 'static) -> Waker {
    waker_with(on_wake, || {})
}

/// A waker that runs foreign code when it is cloned, and counts in `woken`. It must stay on this thread.
pub(crate) fn waker_cloning(woken: &Rc<Cell<usize>>, on_clone: impl Fn() + 'static) -> Waker {
    struct Cloning {
        on_clone: Box<dyn Fn()>,
        woken: Rc<Cell<usize>>,
    }
    fn raw(cloning: Rc<Cloning>) -> RawWaker {
        RawWaker::new(Rc::into_raw(cloning).cast(), &VTABLE)
    }
    // SAFETY (of each): `data` comes from `raw`, and the tests keep such a waker on one thread. Cloning and waking by reference
    // leave the count as it was, waking and dropping give one up.
    static VTABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            let data = data.cast::<Cloning>();
            // SAFETY: as above.
            let cloned = unsafe {
                Rc::increment_strong_count(data);
                Rc::from_raw(data)
            };
            (cloned.on_clone)();
            raw(cloned)
        },
        |data| {
            // SAFETY: as above.
            let cloning = unsafe { Rc::from_raw(data.cast::<Cloning>()) };
            cloning.woken.set(cloning.woken.get() + 1);
        },
        |data| {
            // SAFETY: as above.
            let cloning = unsafe { &*data.cast::<Cloning>() };
            cloning.woken.set(cloning.woken.get() + 1);
        },
        // SAFETY: as above.
        |data| drop(unsafe { Rc::from_raw(data.cast::<Cloning>()) }),
    );
    let cloning = Rc::new(Cloning {
        on_clone: Box::new(on_clone),
        woken: woken.clone(),
    });
    // SAFETY: the table keeps the contract, on this thread.
    unsafe { Waker::from_raw(raw(cloning)) }
}

/// Polls a future once with a waker of the test's own.
pub(crate) fn poll_with<F: Future + ?Sized>(waker: &Waker, future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Whether signals end sleeps early, so that turns and system calls cannot be counted.
pub(crate) fn is_interrupted() -> bool {
    variable::<u32>("WINDLASS_TEST_ITIMER").is_some_and(|on| on > 0)
}

/// A new folder, removed at the end with everything in it.
pub(crate) struct Folder(std::path::PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Processes come and go, and their numbers are used again.
        let now = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |now| now.as_nanos());
        let path = std::env::temp_dir().join(format!("windlass-test-{}-{number}-{now:x}", std::process::id()));
        std::fs::create_dir(&path).expect("a new folder");
        Folder(path)
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> std::path::PathBuf {
        self.0.join(name)
    }

    /// A file in it, with these bytes.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> std::path::PathBuf {
        let path = self.join(name);
        std::fs::write(&path, bytes).expect("a new file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// The same result as std's: the same value, or an error of the same kind, with the same code where std has one.
#[track_caller]
pub(crate) fn assert_same<T: PartialEq + std::fmt::Debug>(
    what: impl std::fmt::Debug,
    ours: std::io::Result<T>,
    theirs: std::io::Result<T>,
) {
    match (&ours, &theirs) {
        (Ok(our), Ok(their)) => assert_eq!(our, their, "{what:?}"),
        (Err(our), Err(their)) => {
            assert_eq!(our.kind(), their.kind(), "{what:?}: {our} instead of {their}");
            if their.raw_os_error().is_some() {
                assert_eq!(windlass::os_code(our), their.raw_os_error(), "{what:?}: {our}");
            }
        }
        _ => panic!("{what:?}: {ours:?} instead of {theirs:?}"),
    }
}

/// Calls std until no signal interrupts it: not all of std does that by itself.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Lets the loop turn until nothing is in the air.
pub(crate) async fn quiet() {
    while windlass::counters().in_flight > 0 {
        windlass::task::yield_now().await;
    }
}

/// The connection was reset, and that is told.
#[track_caller]
pub(crate) fn assert_reset<T: std::fmt::Debug>(result: std::io::Result<T>) {
    match result {
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        Ok(value) => panic!("no reset, but {value:?}"),
    }
}

/// A reset was told before: this receive is told of the end, or of the reset once more.
#[track_caller]
pub(crate) fn assert_over(result: std::io::Result<usize>) {
    match result {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert!(
            REPEATS_RESETS && error.kind() == std::io::ErrorKind::ConnectionReset,
            "{error}"
        ),
    }
}
