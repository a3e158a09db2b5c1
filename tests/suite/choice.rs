//! Which driver a loop gets, what it says about that, and what happens when it cannot have it.

use std::io;
use std::time::Duration;

use windlass::driver::{
    Completion, Control, Description, Driver, DriverCounters, Notify, Op, OpId, Reply, Scratch, Start, Wait,
};
use windlass::{Builder, DriverChoice, EventLoop};

use crate::child::{heard_from_own_process, in_own_process, suite_with};
use crate::support::hoard;
use crate::support::{open_descriptors, pair, refuse_io_uring};

const HAS_PROACTOR: bool = cfg!(feature = "proactor");
const HAS_REACTOR: bool = cfg!(feature = "reactor");

/// Whatever the environment of the whole run asks for.
const NOT_ASKED: [(&str, &str); 1] = [("WINDLASS_DRIVER", "auto")];

fn build(choice: DriverChoice) -> io::Result<EventLoop> {
    Builder::new().driver(choice).build()
}

/// Whether the kernel lets us have io_uring.
fn can_have_io_uring() -> bool {
    HAS_PROACTOR && build(DriverChoice::Proactor).is_ok()
}

/// Runs `body` where the kernel refuses io_uring with this code.
fn refused<T: Send + 'static>(code: i32, body: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        // A filter binds the thread that sets it, and those that it starts.
        refuse_io_uring(code);
        body()
    });
    thread.join().expect("no panic")
}

#[test]
fn a_choice_has_a_name() {
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
    let asked = "the program asked for it";
    expect_described(&build(DriverChoice::Null).expect("always there"), "null", "");
    if cfg!(miri) {
        return;
    }
    if HAS_REACTOR {
        expect_described(&build(DriverChoice::Reactor).expect("always there"), "epoll", asked);
    }
    if can_have_io_uring() {
        let ring = build(DriverChoice::Proactor).expect("it can be had");
        expect_described(&ring, "io_uring", asked);
        let plain = Builder::new().driver(DriverChoice::Proactor).plain_ring(true).build();
        let (ring, plain) = (ring.describe(), plain.expect("it can be had").describe());
        assert!(plain.features.len() <= ring.features.len(), "{plain}");
        expect_described(
            &build(DriverChoice::Auto).expect("one of them"),
            "io_uring",
            "the best driver",
        );
    }
}

/// A driver that is not in the build is a clear error when it is asked for, and nothing to tell when it is not.
#[test]
fn a_driver_that_is_not_built_is_an_error() {
    let heard = heard_from_own_process("choice::a_driver_that_is_not_built_is_an_error", &NOT_ASKED, || {
        for (choice, is_built, feature) in [
            (DriverChoice::Proactor, HAS_PROACTOR, "`proactor`"),
            (DriverChoice::Reactor, HAS_REACTOR, "`reactor`"),
        ] {
            if !is_built {
                let error = build(choice).expect_err("it is not built");
                assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
                let line = error.to_string();
                assert!(line.contains("this build has no") && line.contains(feature), "{line}");
            }
        }
        if !HAS_PROACTOR {
            let event_loop = build(DriverChoice::Auto).expect("the reactor");
            expect_described(&event_loop, "epoll", "this build has no proactor");
        }
    });
    let heard = heard.unwrap_or_default();
    assert!(!heard.contains("windlass:"), "{heard}");
}

// What asks for a driver.

/// The loop that the variable, and nothing else, asks for.
fn asked_by_variable(test: &str, value: &str, check: impl FnOnce(io::Result<EventLoop>)) {
    in_own_process(test, &[("WINDLASS_DRIVER", value)], || check(Builder::new().build()));
}

#[test]
fn the_variable_asks_for_auto() {
    asked_by_variable("choice::the_variable_asks_for_auto", "auto", |built| {
        let name = built.expect("one of them").describe().name;
        let best = if can_have_io_uring() { "io_uring" } else { "epoll" };
        assert_eq!(name, best);
    });
}

#[test]
fn the_variable_asks_for_the_null_driver() {
    asked_by_variable("choice::the_variable_asks_for_the_null_driver", "null", |built| {
        assert_eq!(built.expect("always there").describe().name, "null");
        // For every way to make a loop.
        assert_eq!(EventLoop::new().expect("always there").describe().name, "null");
        windlass::run(pair()).expect("the loop runs");
    });
}

#[test]
fn the_variable_asks_for_the_reactor() {
    asked_by_variable(
        "choice::the_variable_asks_for_the_reactor",
        "reactor",
        |built| match HAS_REACTOR {
            true => expect_described(&built.expect("always there"), "epoll", "WINDLASS_DRIVER asks for it"),
            false => assert_eq!(built.expect_err("not built").kind(), io::ErrorKind::Unsupported),
        },
    );
}

#[test]
fn the_variable_asks_for_the_proactor() {
    asked_by_variable("choice::the_variable_asks_for_the_proactor", "proactor", |built| {
        match can_have_io_uring() {
            true => expect_described(
                &built.expect("it can be had"),
                "io_uring",
                "WINDLASS_DRIVER asks for it",
            ),
            // Who asks for it gets nothing else.
            false => drop(built.expect_err("it cannot be had")),
        }
    });
}

#[test]
fn the_program_overrules_the_variable() {
    asked_by_variable("choice::the_program_overrules_the_variable", "null", |_| {
        if HAS_REACTOR {
            let chosen = build(DriverChoice::Reactor).expect("always there");
            expect_described(&chosen, "epoll", "the program asked for it");
        }
        let auto = build(DriverChoice::Auto).expect("one of them");
        assert_ne!(auto.describe().name, "null", "Auto in the program is a choice too");
        let custom = Builder::new().with_driver(Box::new(Idle)).build().expect("a driver");
        assert_eq!(custom.describe().name, "idle");
    });
}

/// What cannot even be read is no better than what is not known.
#[test]
fn a_variable_that_is_no_text_is_an_error() {
    use std::os::unix::ffi::OsStrExt;
    in_own_process("choice::a_variable_that_is_no_text_is_an_error", &NOT_ASKED, || {
        let value = std::ffi::OsStr::from_bytes(b"re\xffactor");
        // SAFETY: this process has one test, and no other thread of it reads the environment.
        unsafe { std::env::set_var("WINDLASS_DRIVER", value) };
        let error = Builder::new().build().expect_err("there is no such driver");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        build(DriverChoice::Null).expect("who chooses in the program does not depend on it");
    });
}

/// Does nothing.
struct Idle;

// SAFETY: nothing is ever started here.
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

    unsafe fn start(&mut self, _id: OpId, _op: Op, _scratch: *mut Scratch) -> Start {
        unreachable!("nothing can be made to start")
    }

    fn cancel(&mut self, _id: OpId) {}

    fn poll(&mut self, _landed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        assert_eq!(wait, Wait::No, "nothing would ever happen");
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn notifier(&self) -> std::sync::Arc<dyn Notify> {
        struct Nobody;
        impl Notify for Nobody {
            fn notify(&self) {}
        }
        std::sync::Arc::new(Nobody)
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters::default()
    }
}

#[test]
fn a_driver_of_ones_own_is_used() {
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
            .expect_err("it has none");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        42
    });
    assert_eq!(answer.expect("the loop runs"), 42);
}

// io_uring refused.

/// Auto makes do with the reactor, says why in the description, and says it aloud once, however many loops there are.
#[test]
fn auto_makes_do_where_io_uring_is_forbidden() {
    let test = "choice::auto_makes_do_where_io_uring_is_forbidden";
    auto_says_so_once(test, libc::EPERM, "refused by");
}

#[test]
fn auto_makes_do_where_io_uring_is_unknown() {
    let test = "choice::auto_makes_do_where_io_uring_is_unknown";
    auto_says_so_once(test, libc::ENOSYS, "this kernel has no io_uring");
}

fn auto_says_so_once(test: &str, code: i32, cause: &'static str) {
    let run = || refused(code, move || auto_falls_back(cause));
    let Some(heard) = heard_from_own_process(test, &NOT_ASKED, run) else {
        return;
    };
    let told: Vec<_> = heard.lines().filter(|line| line.starts_with("windlass: ")).collect();
    if HAS_PROACTOR && HAS_REACTOR {
        assert_eq!(told.len(), 1, "{heard}");
        assert!(told[0].contains("epoll") && told[0].contains(cause), "{}", told[0]);
    } else {
        assert!(told.is_empty(), "{heard}");
    }
}

fn auto_falls_back(cause: &'static str) {
    if !HAS_PROACTOR {
        return expect_described(&build(DriverChoice::Auto).expect("the reactor"), "epoll", "no proactor");
    }
    let error = build(DriverChoice::Proactor).expect_err("who asks for it gets nothing else");
    assert!(error.to_string().contains(cause), "{error}");
    if !HAS_REACTOR {
        let error = build(DriverChoice::Auto).expect_err("there is nothing else");
        assert!(error.to_string().contains(cause), "{error}");
        return;
    }
    let make = move || {
        let event_loop = build(DriverChoice::Auto).expect("the reactor");
        expect_described(&event_loop, "epoll", "the proactor cannot be had");
        expect_described(&event_loop, "epoll", cause);
        event_loop.run_until_complete(pair()).expect("the loop runs");
        event_loop
    };
    let _first = make();
    let _second = make();
    std::thread::spawn(move || drop(make())).join().expect("no panic");
    windlass::run(pair()).expect("the loop runs");
    expect_described(
        &build(DriverChoice::Reactor).expect("always there"),
        "epoll",
        "asked for it",
    );
}

/// A machine that has run out of something is not helped by another driver.
#[test]
fn exhaustion_is_an_error_and_no_reason_for_the_reactor() {
    if !HAS_PROACTOR {
        return;
    }
    in_own_process(
        "choice::exhaustion_is_an_error_and_no_reason_for_the_reactor",
        &NOT_ASKED,
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
            build(DriverChoice::Auto).expect("what was lacking is there again");
        },
    );
}

/// A part of the suite where the kernel refuses io_uring, on Auto; `.ci/run` has all of it.
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
        suite_with(&["bytes::", "tcp::", "cancel::", "pool::", "edges::a_"], &settings);
    }
}
