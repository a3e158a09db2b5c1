//! Driver selection: `DriverChoice`, `WINDLASS_DRIVER`, the description of a driver, and fallback when io_uring is
//! refused.

use std::io;
use std::time::Duration;

use windlass::driver::{
    Completion, Control, Description, Driver, DriverCounters, Notify, Op, OpId, Reply, Scratch, Start, Wait,
};
use windlass::{Builder, DriverChoice, EventLoop};

use crate::child::{in_own_process, stderr_of_own_process, suite_with};
use crate::support::hoard;
use crate::support::{open_descriptors, pair, refuse_io_uring};

const HAS_PROACTOR: bool = cfg!(feature = "proactor");
const HAS_REACTOR: bool = cfg!(feature = "reactor");

/// Overrides the environment of the whole run.
const NO_PREFERENCE: [(&str, &str); 1] = [("WINDLASS_DRIVER", "auto")];

fn build(choice: DriverChoice) -> io::Result<EventLoop> {
    Builder::new().driver(choice).build()
}

/// Whether the kernel allows io_uring.
fn has_io_uring() -> bool {
    HAS_PROACTOR && build(DriverChoice::Proactor).is_ok()
}

/// Runs `body` on a thread for which the kernel refuses io_uring with this code.
fn refused<T: Send + 'static>(code: i32, body: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        // A seccomp filter applies to the thread that installs it and to threads that it starts.
        refuse_io_uring(code);
        body()
    });
    thread.join().expect("no panic")
}

#[test]
fn driver_choices_parse_from_their_names() {
    let names = [
        ("auto", DriverChoice::Auto),
        ("proactor", DriverChoice::Proactor),
        ("reactor", DriverChoice::Reactor),
        ("null", DriverChoice::Null),
    ];
    for (name, choice) in names {
        assert_eq!(name.parse::<DriverChoice>().expect(name), choice);
    }
    assert_eq!(DriverChoice::default(), DriverChoice::Auto);
    for bad in ["", "Auto", "auto ", "io_uring", "epoll", "steam"] {
        let error = bad.parse::<DriverChoice>().expect_err("no such driver");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let expected = format!("no driver is called '{bad}': choose auto, proactor, reactor or null");
        assert_eq!(error.to_string(), expected);
    }
}

fn expect_described(event_loop: &EventLoop, name: &str, reason: &str) {
    let description = event_loop.describe();
    assert_eq!(description.name, name, "{description}");
    assert!(description.reason.contains(reason), "{description}");
    match name {
        "epoll" => assert!(description.features.contains(&"edge-triggered"), "{description}"),
        "io_uring" if description.features.is_empty() => println!("-- an old kernel: {description}"),
        _ => {}
    }
    let features = description.features.join(", ");
    let line = description.to_string();
    assert!(line.starts_with(name) && line.contains(&features) && line.ends_with(&description.reason));
}

#[test]
fn a_loop_describes_its_driver() {
    let expected_reason = "the program asked for it";
    expect_described(&build(DriverChoice::Null).expect("always available"), "null", "");
    if cfg!(miri) {
        return;
    }
    if HAS_REACTOR {
        expect_described(
            &build(DriverChoice::Reactor).expect("always available"),
            "epoll",
            expected_reason,
        );
    }
    if has_io_uring() {
        let ring = build(DriverChoice::Proactor).expect("it is available");
        expect_described(&ring, "io_uring", expected_reason);
        let plain = Builder::new().driver(DriverChoice::Proactor).plain_ring(true).build();
        let (ring, plain) = (ring.describe(), plain.expect("it is available").describe());
        assert!(plain.features.len() <= ring.features.len(), "{plain}");
        expect_described(
            &build(DriverChoice::Auto).expect("some driver"),
            "io_uring",
            "the best driver",
        );
    }
}

/// Asking for a driver that is not built is a clear error; not asking for it prints nothing.
#[test]
fn a_driver_that_is_not_built_is_an_error() {
    let stderr = stderr_of_own_process(
        "driver_choice::a_driver_that_is_not_built_is_an_error",
        &NO_PREFERENCE,
        || {
            for (choice, is_built, feature) in [
                (DriverChoice::Proactor, HAS_PROACTOR, "`proactor`"),
                (DriverChoice::Reactor, HAS_REACTOR, "`reactor`"),
            ] {
                if !is_built {
                    let error = build(choice).expect_err("the driver is not built");
                    assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
                    let line = error.to_string();
                    assert!(line.contains("this build has no") && line.contains(feature), "{line}");
                }
            }
            if !HAS_PROACTOR {
                let event_loop = build(DriverChoice::Auto).expect("the reactor");
                expect_described(&event_loop, "epoll", "this build has no proactor");
            }
        },
    );
    let stderr = stderr.unwrap_or_default();
    assert!(!stderr.contains("windlass:"), "{stderr}");
}

// Who chooses the driver.

/// The loop that `WINDLASS_DRIVER` alone selects.
fn with_driver_variable(test: &str, value: &str, check: impl FnOnce(io::Result<EventLoop>)) {
    in_own_process(test, &[("WINDLASS_DRIVER", value)], || check(Builder::new().build()));
}

#[test]
fn the_variable_selects_auto() {
    with_driver_variable("driver_choice::the_variable_selects_auto", "auto", |built| {
        let name = built.expect("some driver").describe().name;
        let best = if has_io_uring() { "io_uring" } else { "epoll" };
        assert_eq!(name, best);
    });
}

#[test]
fn the_variable_selects_the_null_driver() {
    with_driver_variable("driver_choice::the_variable_selects_the_null_driver", "null", |built| {
        expect_described(&built.expect("always available"), "null", "WINDLASS_DRIVER asks for it");
        // Every way to create a loop honours the variable.
        assert_eq!(EventLoop::new().expect("always available").describe().name, "null");
        windlass::run(pair()).expect("the loop runs");
    });
}

#[test]
fn the_variable_selects_the_reactor() {
    with_driver_variable(
        "driver_choice::the_variable_selects_the_reactor",
        "reactor",
        |built| match HAS_REACTOR {
            true => expect_described(
                &built.expect("always available"),
                "epoll",
                "WINDLASS_DRIVER asks for it",
            ),
            false => assert_eq!(built.expect_err("not built").kind(), io::ErrorKind::Unsupported),
        },
    );
}

#[test]
fn the_variable_selects_the_proactor() {
    with_driver_variable(
        "driver_choice::the_variable_selects_the_proactor",
        "proactor",
        |built| {
            match has_io_uring() {
                true => expect_described(
                    &built.expect("it is available"),
                    "io_uring",
                    "WINDLASS_DRIVER asks for it",
                ),
                // An explicit choice has no fallback.
                false => drop(built.expect_err("it is not available")),
            }
        },
    );
}

#[test]
fn the_program_overrules_the_variable() {
    with_driver_variable("driver_choice::the_program_overrules_the_variable", "null", |_| {
        if HAS_REACTOR {
            let chosen = build(DriverChoice::Reactor).expect("always available");
            expect_described(&chosen, "epoll", "the program asked for it");
        }
        let auto = build(DriverChoice::Auto).expect("some driver");
        assert_ne!(
            auto.describe().name,
            "null",
            "`Auto` in the program overrules the variable"
        );
        let custom = Builder::new().with_driver(Box::new(Idle)).build().expect("a driver");
        assert_eq!(custom.describe().name, "idle");
    });
}

/// A value that is not UTF-8 is an error, as an unknown name is.
#[test]
fn a_variable_that_is_not_utf8_is_an_error() {
    use std::os::unix::ffi::OsStrExt;
    in_own_process(
        "driver_choice::a_variable_that_is_not_utf8_is_an_error",
        &NO_PREFERENCE,
        || {
            let value = std::ffi::OsStr::from_bytes(b"re\xffactor");
            // SAFETY: this process has one test, and no other thread of it reads the environment.
            unsafe { std::env::set_var("WINDLASS_DRIVER", value) };
            let error = Builder::new().build().expect_err("no such driver");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
            build(DriverChoice::Null).expect("a choice in the program ignores the variable");
        },
    );
}

/// A driver that supports nothing.
struct Idle;

// SAFETY: no operation is ever started.
unsafe impl Driver for Idle {
    fn describe(&self) -> Description {
        Description::new("idle", vec!["patience"], "a test")
    }

    fn now(&self) -> windlass::time::Instant {
        windlass::time::Instant::from_origin(Duration::from_secs(1))
    }

    fn control(&mut self, _call: Control) -> io::Result<Reply> {
        Err(io::ErrorKind::Unsupported.into())
    }

    unsafe fn start(&mut self, _id: OpId, _op: &Op, _scratch: *mut Scratch) -> Start {
        unreachable!("no operation can be started")
    }

    fn cancel(&mut self, _id: OpId, _op: &Op) {}

    fn poll(&mut self, _completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        assert_eq!(wait, Wait::No, "a wait would never end");
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn notifier(&self) -> std::sync::Arc<dyn Notify> {
        struct NoNotify;
        impl Notify for NoNotify {
            fn notify(&self) {}
        }
        std::sync::Arc::new(NoNotify)
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters::default()
    }
}

#[test]
fn a_custom_driver_is_used() {
    let event_loop = Builder::new()
        .driver(DriverChoice::Reactor)
        .with_driver(Box::new(Idle))
        .build()
        .expect("a driver");
    assert_eq!(event_loop.describe().to_string(), "idle [patience]: a test");
    let answer = event_loop.run_until_complete(async {
        windlass::task::yield_now().await;
        let error = windlass::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect_err("unsupported");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        42
    });
    assert_eq!(answer.expect("the loop runs"), 42);
}

// io_uring refused.

/// `Auto` falls back to the reactor, gives the reason in the description, and prints it once for all loops.
#[test]
fn auto_falls_back_when_io_uring_is_forbidden() {
    let test = "driver_choice::auto_falls_back_when_io_uring_is_forbidden";
    auto_warns_once(test, libc::EPERM, "refused by");
}

#[test]
fn auto_falls_back_when_the_kernel_lacks_io_uring() {
    let test = "driver_choice::auto_falls_back_when_the_kernel_lacks_io_uring";
    auto_warns_once(test, libc::ENOSYS, "this kernel has no io_uring");
}

fn auto_warns_once(test: &str, code: i32, cause: &'static str) {
    let run = || refused(code, move || auto_falls_back(cause));
    let Some(stderr) = stderr_of_own_process(test, &NO_PREFERENCE, run) else {
        return;
    };
    let warnings: Vec<_> = stderr.lines().filter(|line| line.starts_with("windlass: ")).collect();
    if HAS_PROACTOR && HAS_REACTOR {
        assert_eq!(warnings.len(), 1, "{stderr}");
        assert!(
            warnings[0].contains("epoll") && warnings[0].contains(cause),
            "{}",
            warnings[0]
        );
    } else {
        assert!(warnings.is_empty(), "{stderr}");
    }
}

fn auto_falls_back(cause: &'static str) {
    if !HAS_PROACTOR {
        return expect_described(&build(DriverChoice::Auto).expect("the reactor"), "epoll", "no proactor");
    }
    let error = build(DriverChoice::Proactor).expect_err("an explicit choice has no fallback");
    assert!(error.to_string().contains(cause), "{error}");
    if !HAS_REACTOR {
        let error = build(DriverChoice::Auto).expect_err("there is no other driver");
        assert!(error.to_string().contains(cause), "{error}");
        return;
    }
    let make = move || {
        let event_loop = build(DriverChoice::Auto).expect("the reactor");
        expect_described(&event_loop, "epoll", "the proactor is not available");
        expect_described(&event_loop, "epoll", cause);
        event_loop.run_until_complete(pair()).expect("the loop runs");
        event_loop
    };
    let _first = make();
    let _second = make();
    std::thread::spawn(move || drop(make())).join().expect("no panic");
    windlass::run(pair()).expect("the loop runs");
    expect_described(
        &build(DriverChoice::Reactor).expect("always available"),
        "epoll",
        "asked for it",
    );
}

/// Another driver would not help when descriptors or memory have run out.
#[test]
fn resource_exhaustion_is_an_error_without_fallback() {
    if !HAS_PROACTOR {
        return;
    }
    in_own_process(
        "driver_choice::resource_exhaustion_is_an_error_without_fallback",
        &NO_PREFERENCE,
        || {
            for (code, cause) in [
                (libc::EMFILE, "no descriptor is left"),
                (libc::ENFILE, "no descriptor is left"),
                (libc::ENOMEM, "no memory"),
            ] {
                refused(code, move || {
                    for choice in [DriverChoice::Auto, DriverChoice::Proactor] {
                        let error = build(choice).expect_err("a clear error");
                        assert_eq!(windlass::os_code(&error), Some(code), "{error}");
                        let line = error.to_string();
                        assert!(line.contains(cause) && line.contains("io_uring"), "{line}");
                    }
                });
            }
            let before = open_descriptors();
            for left in [0, 1] {
                let hoard = hoard(left);
                let error = build(DriverChoice::Auto).expect_err("a clear error");
                assert_eq!(windlass::os_code(&error), Some(libc::EMFILE), "{error}");
                assert!(error.to_string().contains("descriptor"), "{error}");
                drop(hoard);
                assert_eq!(open_descriptors(), before, "a failed build leaks a descriptor");
            }
            build(DriverChoice::Auto).expect("descriptors are available again");
        },
    );
}

/// A part of the suite with io_uring refused, on `Auto`; `.ci/run` runs all of it.
#[test]
fn the_suite_passes_with_io_uring_refused() {
    let is_chosen = |name| std::env::var_os(name).is_some();
    if !HAS_REACTOR || is_chosen("WINDLASS_TEST_DRIVERS") || is_chosen("WINDLASS_TEST_REFUSE") {
        return;
    }
    for code in ["EPERM", "ENOSYS"] {
        let settings = [
            ("WINDLASS_TEST_REFUSE", code),
            ("WINDLASS_TEST_DRIVERS", "auto"),
            ("WINDLASS_TEST_ROUNDS", "100"),
        ];
        suite_with(&["bytes::", "tcp::", "cancel::", "pool::", "readiness::a_"], &settings);
    }
}
