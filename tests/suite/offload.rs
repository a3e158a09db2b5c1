//! Drivers that do what threads and the kernel do otherwise: blocking jobs, copies and removals, completions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use windlass::blocking::Pool;
use windlass::driver::{
    BufferPool, Completion, Control, Description, Driver, DriverCounters, Fd, FdSpace, FileOp, Job, Notify, Op, OpId,
    OpResult, OsResult, Reply, Scratch, Start, Wait,
};
use windlass::time::{Instant, sleep, timeout};
use windlass::{Builder, DriverChoice, EventLoop, NullFiles, fs, spawn_blocking};

use crate::support::{Folder, exceptions_of, on_every_driver};

/// The jobs that the driver has taken, and what else it does differently.
#[derive(Default)]
struct Behaviour {
    takes_jobs: Cell<bool>,
    jobs: RefCell<VecDeque<Job>>,
    /// Copies and removals fail with `EOPNOTSUPP`.
    has_no_compounds: Cell<bool>,
    /// Completions are lost.
    is_stuck: Cell<bool>,
    polls: Cell<usize>,
}

struct Wrapper {
    inner: Box<dyn Driver>,
    behaviour: Rc<Behaviour>,
}

// SAFETY: an operation is either forwarded to the inner driver, which keeps the contract, or completes at once.
// Operations whose completions are lost stay in flight.
unsafe impl Driver for Wrapper {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn has_virtual_clock(&self) -> bool {
        self.inner.has_virtual_clock()
    }

    fn tries_first(&self) -> bool {
        self.inner.tries_first()
    }

    fn submits_in_batches(&self) -> bool {
        self.inner.submits_in_batches()
    }

    fn offload(&mut self, job: Job) -> Result<(), Job> {
        match self.behaviour.takes_jobs.get() {
            true => {
                self.behaviour.jobs.borrow_mut().push_back(job);
                Ok(())
            }
            false => Err(job),
        }
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        self.inner.control(call)
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
        match op {
            Op::File(FileOp::Copy { .. } | FileOp::RemoveAll { .. }) if self.behaviour.has_no_compounds.get() => {
                Start::Done(OpResult::new(Err(NOT_SUPPORTED)))
            }
            // SAFETY: the caller keeps the contract.
            _ => unsafe { self.inner.start(id, op, scratch) },
        }
    }

    unsafe fn attempt(&mut self, op: &Op, alone: bool) -> Option<OsResult> {
        // SAFETY: the caller keeps the contract.
        unsafe { self.inner.attempt(op, alone) }
    }

    fn cancel(&mut self, id: OpId, op: &Op) {
        self.inner.cancel(id, op);
    }

    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        self.inner.provide_buffers(pool)
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        self.behaviour.polls.set(self.behaviour.polls.get() + 1);
        let before = completed.len();
        let result = self.inner.poll(completed, wait);
        if self.behaviour.is_stuck.get() {
            completed.truncate(before);
        }
        result
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn descriptor(&mut self) -> io::Result<Fd> {
        self.inner.descriptor()
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.inner.notifier()
    }

    fn counters(&self) -> DriverCounters {
        self.inner.counters()
    }

    fn fd_space(&self) -> FdSpace {
        self.inner.fd_space()
    }
}

#[cfg(unix)]
const NOT_SUPPORTED: i32 = libc::EOPNOTSUPP;
#[cfg(windows)]
const NOT_SUPPORTED: i32 = 10045;

fn wrapped(builder: Builder) -> (EventLoop, Rc<Behaviour>) {
    let behaviour = Rc::new(Behaviour::default());
    let builder = builder.wrap_driver({
        let behaviour = behaviour.clone();
        move |inner| Box::new(Wrapper { inner, behaviour })
    });
    (builder.build().expect("a loop"), behaviour)
}

/// A loop on the null driver that takes jobs.
fn taking(builder: Builder) -> (EventLoop, Rc<Behaviour>) {
    let (event_loop, behaviour) = wrapped(builder.driver(DriverChoice::Null));
    behaviour.takes_jobs.set(true);
    (event_loop, behaviour)
}

fn some_turns(event_loop: &EventLoop) {
    for _ in 0..10 {
        event_loop.turn_nowait().expect("a turn");
    }
}

fn run_next(behaviour: &Behaviour) {
    let job = behaviour.jobs.borrow_mut().pop_front().expect("a job");
    job();
}

#[test]
fn a_driver_runs_jobs_and_time_passes_meanwhile() {
    let (event_loop, behaviour) = taking(Builder::new());
    let here = std::thread::current().id();
    let task = event_loop.spawn(async move {
        let job = spawn_blocking(move || std::thread::current().id() == here);
        // The clock is not held for the job.
        sleep(Duration::from_secs(3600)).await;
        assert!(!job.is_finished());
        let is_here = timeout(Duration::from_secs(3600), job)
            .await
            .expect("in time")
            .expect("it runs");
        assert!(is_here, "the driver runs the job, not a thread");
        let panicked = spawn_blocking(|| panic!("in a job")).await;
        assert!(panicked.expect_err("a panic").is_panic());
    });
    event_loop
        .run_until_complete(sleep(Duration::from_secs(3601)))
        .expect("the loop runs");
    run_next(&behaviour);
    some_turns(&event_loop);
    run_next(&behaviour);
    event_loop
        .run_until_complete(task)
        .expect("the loop runs")
        .expect("the task ends");
    assert_eq!(event_loop.counters().blocking.started, 0, "no thread");
}

#[test]
fn a_driver_gets_as_many_jobs_as_the_pool_has_threads() {
    let (event_loop, behaviour) = taking(Builder::new());
    let pool = Pool::builder().threads(2).queue(2).build();
    let ran = Arc::new(std::sync::Mutex::new(Vec::new()));
    let add = |number: i32| {
        let ran = ran.clone();
        move || ran.lock().expect("not poisoned").push(number)
    };
    let mut handles = event_loop
        .run_until_complete(async { (0..4).map(|number| pool.spawn(add(number))).collect::<Vec<_>>() })
        .expect("the loop runs");
    assert_eq!(behaviour.jobs.borrow().len(), 2);
    assert_eq!(pool.counters().queued, 2);
    event_loop
        .run_until_complete(async { assert!(pool.try_spawn(add(9)).is_err(), "the queue is full") })
        .expect("the loop runs");
    // Cancelled in the driver's hands, and in the queue.
    handles[0].cancel();
    handles[3].cancel();
    assert!(handles[0].is_finished() && handles[3].is_finished());
    run_next(&behaviour);
    some_turns(&event_loop);
    // The place of the first job went to the third.
    assert_eq!(behaviour.jobs.borrow().len(), 2);
    run_next(&behaviour);
    run_next(&behaviour);
    some_turns(&event_loop);
    assert!(behaviour.jobs.borrow().is_empty());
    assert_eq!(*ran.lock().expect("not poisoned"), [1, 2]);
    assert!(handles.iter().all(|handle| handle.is_finished()));
    assert_eq!(pool.counters().started, 0, "no thread");
}

#[test]
fn a_job_that_the_driver_drops_is_cancelled() {
    let (event_loop, behaviour) = taking(Builder::new());
    let job = event_loop
        .run_until_complete(async { Some(spawn_blocking(|| ())) })
        .expect("the loop runs")
        .expect("a job");
    behaviour.jobs.borrow_mut().clear();
    let ended = event_loop.run_until_complete(job).expect("the loop runs");
    assert!(ended.expect_err("it did not run").is_cancelled());
}

#[test]
fn closing_the_loop_runs_the_jobs_that_count_as_running() {
    let (event_loop, behaviour) = taking(Builder::new().max_blocking_threads(1));
    let ran = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    event_loop
        .run_until_complete(async {
            for _ in 0..2 {
                let ran = ran.clone();
                drop(spawn_blocking(move || {
                    ran.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
                }));
            }
        })
        .expect("the loop runs");
    drop(event_loop);
    assert_eq!(
        ran.load(std::sync::atomic::Ordering::SeqCst),
        1,
        "the queued job is cancelled, as with threads"
    );
    // Nothing is left to run.
    for job in behaviour.jobs.take() {
        job();
    }
    assert_eq!(ran.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn operations_left_to_threads_are_jobs_too() {
    let folder = Folder::new();
    let (event_loop, behaviour) = taking(Builder::new().null_files(NullFiles::Real));
    let path = folder.join("file");
    let task = event_loop.spawn(async move { fs::write(path, "bytes").await });
    while !task.is_finished() {
        some_turns(&event_loop);
        let job = behaviour.jobs.borrow_mut().pop_front();
        if let Some(job) = job {
            job();
        }
    }
    event_loop
        .run_until_complete(task)
        .expect("the loop runs")
        .expect("not cancelled")
        .expect("written");
    assert_eq!(std::fs::read(folder.join("file")).expect("it exists"), b"bytes");
    assert_eq!(event_loop.counters().files.started, 0, "no thread");
}

#[test]
fn copies_and_removals_are_composed_where_the_driver_has_none() {
    on_every_driver(|case| {
        let folder = Folder::new();
        let (event_loop, behaviour) = wrapped(case.builder());
        behaviour.has_no_compounds.set(true);
        let (deep, from, to) = (folder.join("a/b/c"), folder.join("a/from"), folder.join("a/b/to"));
        let bytes: Vec<u8> = (0..200_000u32).map(|number| number as u8).collect();
        event_loop
            .run_until_complete(async {
                fs::create_dir_all(&deep).await?;
                fs::write(&from, bytes.clone()).await?;
                let mut permissions = fs::metadata(&from).await?.permissions();
                permissions.set_readonly(true);
                fs::set_permissions(&from, permissions).await?;
                assert_eq!(fs::copy(&from, &to).await?, 200_000);
                assert_eq!(fs::read(&to).await?, bytes);
                assert!(fs::metadata(&to).await?.permissions().readonly());
                let error = fs::copy(&deep, &folder.join("x")).await.expect_err("a directory");
                assert_eq!(
                    error.kind(),
                    std::fs::copy(&deep, folder.join("x")).expect_err("as std").kind()
                );
                let error = fs::remove_dir_all(&from).await.expect_err("a file");
                assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
                // Wine cannot remove read-only files.
                for path in [&from, &to] {
                    let mut permissions = fs::metadata(path).await?.permissions();
                    #[allow(clippy::permissions_set_readonly_false, reason = "they are removed at once")]
                    permissions.set_readonly(false);
                    fs::set_permissions(path, permissions).await?;
                }
                fs::remove_dir_all(folder.join("a")).await?;
                assert!(!fs::try_exists(folder.join("a")).await?);
                Ok::<(), io::Error>(())
            })
            .expect("the loop runs")
            .expect("every call succeeds");
    });
}

#[test]
fn a_virtual_clock_does_not_wait_for_a_driver_that_never_completes() {
    let (event_loop, behaviour) = wrapped(Builder::new().driver(DriverChoice::Null).close_within(Duration::MAX));
    let reported = exceptions_of(&event_loop);
    let left = event_loop
        .run_until_complete(async {
            let listener = windlass::net::TcpListener::bind("127.0.0.1:0")
                .await
                .expect("a listener");
            let task = windlass::spawn(async move { drop(listener.accept().await) });
            windlass::task::yield_now().await;
            windlass::task::yield_now().await;
            vec![task]
        })
        .expect("the loop runs");
    behaviour.is_stuck.set(true);
    let before = behaviour.polls.get();
    drop(event_loop);
    assert!(behaviour.polls.get() - before < 1_000);
    let reported = format!("{:?}", reported.borrow());
    assert!(
        reported.contains("1 accept") && reported.contains("bug of the driver"),
        "{reported}"
    );
    drop(left);
}

#[test]
fn the_wall_clock_is_the_systems_by_default() {
    on_every_driver(|case| {
        let before = std::time::SystemTime::now();
        let now = case.run(async { windlass::time::wall_now() });
        assert!(before <= now && now <= std::time::SystemTime::now());
    });
}
