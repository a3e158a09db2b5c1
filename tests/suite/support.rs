//! Helpers shared by the tests.

#![allow(dead_code, reason = "not every build of the suite uses every helper")]

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::{Builder, DriverChoice, EventLoop, NullFiles};

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
    pub choice: DriverChoice,
    /// The seed of the quirks around the driver.
    seed: Option<u64>,
}

impl Case {
    const fn new(name: &'static str, choice: DriverChoice) -> Case {
        let seed = None;
        Case { name, choice, seed }
    }

    /// A builder for a loop on this driver. Files are the real ones, so that a test can compare them with std's.
    pub(crate) fn builder(&self) -> Builder {
        let builder = Builder::new().driver(self.choice).plain_ring(is_plain());
        let builder = quirks::wrap(builder.null_files(NullFiles::Real), self.seed);
        match variable("WINDLASS_TEST_RING") {
            Some(entries) => builder.ring_entries(entries).completion_entries(entries * 2),
            None => builder,
        }
    }

    pub(crate) fn event_loop(&self) -> EventLoop {
        self.builder().build().expect("the driver was opened before")
    }

    /// Runs a future to completion on a new loop, then closes the loop.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        self.event_loop().run_until_complete(future).expect("the loop runs")
    }

    /// As `run`, with files in memory on the null driver: a test that uses this crate's calls alone.
    pub(crate) fn run_on_own_files<F: Future>(&self, future: F) -> F::Output {
        let builder = self.builder().null_files(NullFiles::Memory);
        let event_loop = builder.build().expect("the driver was opened before");
        event_loop.run_until_complete(future).expect("the loop runs")
    }

    /// Whether the driver uses kernel descriptors and a real clock.
    pub(crate) fn is_kernel(&self) -> bool {
        self.choice != DriverChoice::Null
    }

    /// Whether the driver is wrapped in quirks. Turns, polls and completions cannot be counted then, and an operation
    /// may be started or complete some polls later than it could.
    pub(crate) fn has_quirks(&self) -> bool {
        self.seed.is_some()
    }

    /// Whether the driver has a submission ring that can be full and a completion ring that can overflow.
    pub(crate) fn has_rings(&self) -> bool {
        self.choice == DriverChoice::Proactor && cfg!(target_os = "linux")
    }

    /// Whether the driver is io_uring without newer kernel features.
    pub(crate) fn is_plain_ring(&self) -> bool {
        self.has_rings() && is_plain()
    }

    /// Whether an operation that need not wait completes when it is started.
    pub(crate) fn tries_first(&self) -> bool {
        // `Auto` is under test only when io_uring is refused: it then selects the reactor.
        let is_port = self.choice == DriverChoice::Proactor && cfg!(windows);
        is_port || matches!(self.choice, DriverChoice::Reactor | DriverChoice::Auto)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match self.seed {
            Some(seed) => write!(f, ", WINDLASS_TEST_SIM_SEED={seed}"),
            None => Ok(()),
        }
    }
}

/// The null driver wrapped in quirks.
#[cfg(feature = "sim")]
mod quirks {
    use std::cell::{Cell, RefCell};

    use windlass::sim::{Audit, Quirks};
    use windlass::{Builder, DriverChoice};

    use super::{Case, variable};

    thread_local! {
        static AUDIT: RefCell<Audit> = RefCell::default();
        /// The loops that were made on this thread: each behaves differently.
        static LOOPS: Cell<u64> = const { Cell::new(0) };
    }

    /// A case for each seed: `WINDLASS_TEST_SIM_SEED`, or as many as `WINDLASS_TEST_SIM_SEEDS` says.
    pub(super) fn cases() -> impl Iterator<Item = Case> {
        let seeds = match variable("WINDLASS_TEST_SIM_SEED") {
            Some(seed) => seed..seed + 1,
            None => 0..variable("WINDLASS_TEST_SIM_SEEDS").unwrap_or(3),
        };
        seeds.map(|seed| Case {
            seed: Some(seed),
            ..Case::new("sim", DriverChoice::Null)
        })
    }

    pub(super) fn wrap(builder: Builder, seed: Option<u64>) -> Builder {
        let Some(seed) = seed else { return builder };
        let number = LOOPS.replace(LOOPS.get() + 1);
        let quirks = Quirks::swarm(seed.wrapping_add(number << 32));
        let audit = AUDIT.with_borrow(Audit::clone);
        builder.wrap_driver(move |inner| quirks.wrap_audited(inner, &audit))
    }

    /// Fails the test if a loop of this thread has violated the driver contract, even if the panic was caught.
    pub(super) fn check() {
        let violations = AUDIT.take().violations();
        assert!(
            violations.is_empty(),
            "the driver contract was violated: {violations:#?}"
        );
    }
}

#[cfg(not(feature = "sim"))]
mod quirks {
    use windlass::Builder;

    use super::Case;

    pub(super) fn cases() -> impl Iterator<Item = Case> {
        std::iter::empty()
    }

    pub(super) fn wrap(builder: Builder, _seed: Option<u64>) -> Builder {
        builder
    }

    pub(super) fn check() {}
}

fn is_plain() -> bool {
    variable::<u32>("WINDLASS_TEST_PLAIN").is_some_and(|on| on > 0)
}

/// Runs a test on each available driver, each on its own thread, and fails it if it hangs.
pub(crate) fn on_every_driver(body: impl Fn(Case) + Send + Clone + 'static) {
    for case in cases() {
        run_case(case, body.clone());
    }
}

/// As `on_every_driver`, with files in memory on the null driver, for a body that uses this crate's calls alone. `tests/sim`
/// has a function of this name that runs the body in a simulated world.
pub(crate) fn everywhere<F: Future>(body: impl Fn() -> F + Copy + Send + Sync + 'static) {
    on_every_driver(move |case| drop(case.run_on_own_files(body())));
}

/// Whether a body of [`everywhere`] may run on a driver with quirks, where vectored calls can be short: only if asked for.
#[cfg(unix)]
pub(crate) fn may_have_quirks() -> bool {
    variable("WINDLASS_TEST_DRIVERS").is_some_and(|drivers: String| drivers.contains("sim"))
}

/// As `on_every_driver`, for behaviour that needs a real kernel.
pub(crate) fn on_every_kernel_driver(body: impl Fn(Case) + Send + Clone + 'static) {
    for case in cases().into_iter().filter(Case::is_kernel) {
        run_case(case, body.clone());
    }
}

/// As `on_every_driver`, for a test that depends on when operations start and complete, or on how many bytes one of them
/// transfers: not on drivers with quirks.
pub(crate) fn on_every_exact_driver(body: impl Fn(Case) + Send + Clone + 'static) {
    for case in cases().into_iter().filter(|case| !case.has_quirks()) {
        run_case(case, body.clone());
    }
}

/// As `on_every_driver`, on the caller's thread, for a process that must not have another one.
pub(crate) fn here_on_every_driver(body: impl Fn(Case)) {
    for case in cases() {
        println!("-- on {case}");
        body(case);
        quirks::check();
    }
}

fn run_case(case: Case, body: impl FnOnce(Case) + Send + 'static) {
    println!("-- on {case}");
    let (done, finished) = mpsc::channel::<()>();
    let thread = std::thread::Builder::new()
        .name(format!("test on {case}"))
        .spawn(move || {
            let _done = done;
            let _interrupting = machine::interrupt_if_asked();
            body(case);
            quirks::check();
        })
        .expect("a thread");
    if finished.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("hangs on {case}");
    }
    if let Err(payload) = thread.join() {
        std::panic::resume_unwind(payload);
    }
}

fn cases() -> Vec<Case> {
    let mut all = vec![
        Case::new("null", DriverChoice::Null),
        Case::new("proactor", DriverChoice::Proactor),
        Case::new("reactor", DriverChoice::Reactor),
    ];
    if machine::refuse_if_asked() {
        all.push(Case::new("auto", DriverChoice::Auto));
    }
    let wanted = std::env::var("WINDLASS_TEST_DRIVERS").ok();
    // Only on request: each of its seeds takes as long as another driver.
    if wanted.is_some() {
        all.extend(quirks::cases());
    }
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

/// The number of rounds of a looping test.
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

/// A connected pair through an existing listener: (client, server).
pub(crate) async fn pair_of(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let addr = listener.local_addr().expect("an address");
    let connecting = windlass::spawn(TcpStream::connect(addr));
    let (server, _) = listener.accept().await.expect("accept");
    let client = connecting.await.expect("no panic").expect("connect");
    (client, server)
}

/// Asserts that the loop becomes idle: in one of 20 sleeps of half a second it neither turns, nor calls the kernel, nor
/// polls. The first may still see events of earlier work: with thousands of sockets, the kernel reports them in many turns.
pub(crate) async fn assert_idle() {
    let mut costs = Vec::new();
    for _ in 0..20 {
        let before = windlass::counters();
        windlass::time::sleep(Duration::from_millis(500)).await;
        let after = windlass::counters();
        let (turns, enters) = (after.turns - before.turns, after.driver.enters - before.driver.enters);
        let spins = after.driver.spins - before.driver.spins;
        // The end of a sleep may be busy-polled, for up to 120 us. Half a second of polling would be a million polls.
        if turns <= 3 && enters <= 5 && spins <= 10_000 {
            return;
        }
        costs.push((turns, enters, spins));
    }
    panic!("the loop does not become idle: (turns, system calls, polls) {costs:?}");
}

/// Asserts that one of 20 attempts takes less than `bound`. A busy machine may delay a single attempt, but an attempt
/// that contains a pause is too slow each time.
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

/// Leaks a value without running its destructor, but keeps it reachable, so that a leak checker does not report it.
pub(crate) fn keep_forever<T>(value: T) {
    #[allow(dead_code, reason = "only a leak checker reads it")]
    struct Kept(*mut ());
    // SAFETY: the pointer is never dereferenced.
    unsafe impl Send for Kept {}
    static KEPT: std::sync::Mutex<Vec<Kept>> = std::sync::Mutex::new(Vec::new());
    let place = Kept(Box::into_raw(Box::new(value)).cast());
    KEPT.lock().expect("no panic").push(place);
}

/// Polls a future once.
pub(crate) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Lets the loop make `count` turns.
pub(crate) async fn turns(count: u64) {
    for _ in 0..count {
        windlass::task::yield_now().await;
    }
}

/// Turns the loop until a state is reached.
pub(crate) async fn turn_until(is_reached: impl Fn() -> bool) {
    while !is_reached() {
        turns(1).await;
    }
}

/// Lets every operation complete that can, also on a driver that reports completions late: the virtual clock advances
/// only when none is left.
pub(crate) async fn settle() {
    turns(3).await;
    windlass::time::sleep(Duration::from_millis(1)).await;
}

/// The next `len` bytes, in however many reads they come.
pub(crate) async fn gather<B, F>(len: usize, mut read: impl FnMut() -> F) -> Vec<u8>
where
    B: std::ops::Deref<Target = [u8]>,
    F: Future<Output = std::io::Result<B>>,
{
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let part = read().await.expect("read");
        assert!(!part.is_empty(), "the end after {bytes:?}");
        bytes.extend_from_slice(&part);
    }
    assert_eq!(bytes.len(), len, "more bytes than expected: {bytes:?}");
    bytes
}

/// Pseudo-random numbers, the same in every run.
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

/// Collects the messages of the exceptions that the loop's exception handler receives.
pub(crate) fn exceptions_of(event_loop: &EventLoop) -> Rc<RefCell<Vec<String>>> {
    let messages = Rc::new(RefCell::new(Vec::new()));
    event_loop.set_exception_handler({
        let messages = messages.clone();
        move |exception| messages.borrow_mut().push(exception.to_string())
    });
    messages
}

/// Increments its counter when dropped.
pub(crate) struct CountDrop(pub Rc<Cell<usize>>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Panics when dropped.
pub(crate) struct PanicOnDrop(pub &'static str);

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("{}", self.0);
    }
}

/// The error of connecting to an address where no socket listens any more. A process started by another test inherits
/// our descriptors until it executes its program; until then the kernel still accepts connections.
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

/// A waker that runs a closure when it is woken and when its last clone is dropped. It must stay on this thread.
pub(crate) fn waker_with(on_wake: impl Fn() + 'static, on_drop: impl Fn() + 'static) -> Waker {
    Waker::from(Arc::new(Hooks { on_wake, on_drop }))
}

pub(crate) fn waker_calling(on_wake: impl Fn() + 'static) -> Waker {
    waker_with(on_wake, || {})
}

/// A waker that runs a closure when it is cloned, and counts wakes in `woken`. It must stay on this thread.
pub(crate) fn waker_cloning(woken: &Rc<Cell<usize>>, on_clone: impl Fn() + 'static) -> Waker {
    struct Cloning {
        on_clone: Box<dyn Fn()>,
        woken: Rc<Cell<usize>>,
    }
    fn raw(cloning: Rc<Cloning>) -> RawWaker {
        RawWaker::new(Rc::into_raw(cloning).cast(), &VTABLE)
    }
    // SAFETY (of each): `data` comes from `raw`, and the tests keep such a waker on one thread. Cloning and waking by
    // reference leave the reference count unchanged; waking by value and dropping release one reference.
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
    // SAFETY: the table keeps the waker contract, as long as the waker stays on this thread.
    unsafe { Waker::from_raw(raw(cloning)) }
}

/// Polls a future once with the given waker.
pub(crate) fn poll_with<F: Future + ?Sized>(waker: &Waker, future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Whether signals interrupt sleeps, so that turns and system calls cannot be counted.
pub(crate) fn is_interrupted() -> bool {
    variable::<u32>("WINDLASS_TEST_ITIMER").is_some_and(|on| on > 0)
}

/// A new folder, removed with its contents when dropped.
pub(crate) struct Folder(std::path::PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Process ids are reused.
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

    /// Creates a file in the folder, with these bytes.
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

/// Asserts the same result as std's: the same value, or an error of the same kind and, where std has one, OS code.
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

/// Repeats a call to std that a signal interrupted: not all of std does that itself.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Lets the loop turn until no operation is in flight.
pub(crate) async fn quiet() {
    while windlass::counters().in_flight > 0 {
        windlass::task::yield_now().await;
    }
}

/// Asserts that the result is a connection reset.
#[track_caller]
pub(crate) fn assert_reset<T: std::fmt::Debug>(result: std::io::Result<T>) {
    match result {
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        Ok(value) => panic!("no reset, but {value:?}"),
    }
}

/// A reset was reported before: this receive returns EOF, or the reset again on systems that repeat it.
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
