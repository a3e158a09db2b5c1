//! A panic caused by a caller's mistake names the caller's file and line, not windlass's own.
//!
//! A binary of its own with one test, because the panic hook, which sees the location, belongs to the whole process.

use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Duration;

use windlass::compat::ThreadBound;
use windlass::time::Instant;

/// The last panic's file and line.
static LOCATION: Mutex<Option<(String, u32)>> = Mutex::new(None);

/// Where a call panics, as the panic hook sees it.
fn location_of<T>(call: impl FnOnce() -> T) -> (String, u32) {
    let printing = panic::take_hook();
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(|at| (at.file().to_owned(), at.line()));
        *LOCATION.lock().unwrap() = location;
    }));
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    panic::set_hook(printing);
    assert!(result.is_err(), "the call does not panic");
    LOCATION.lock().unwrap().take().expect("the hook has run")
}

/// The call panics, and the panic names the line of the call.
macro_rules! assert_names_this_line {
    ($call:expr) => {
        let expected = (file!().to_owned(), line!());
        assert_eq!(location_of(|| $call), expected, "{}", stringify!($call));
    };
}

#[test]
fn panics_name_the_line_of_the_caller() {
    outside_of_a_loop();
    on_another_thread();
}

fn outside_of_a_loop() {
    assert_names_this_line!(windlass::spawn(async {}));
    assert_names_this_line!(windlass::call_soon(|| {}));
    assert_names_this_line!(windlass::call_later(Duration::ZERO, || {}));
    assert_names_this_line!(ThreadBound::new(1));
    assert_names_this_line!(windlass::call_at(Instant::now(), || {}));
    assert_names_this_line!(windlass::spawn_blocking(|| {}));
    assert_names_this_line!(windlass::task::spawn_eager(async {}));
    assert_names_this_line!(windlass::task::Builder::new().name("a").spawn(async {}));
    assert_names_this_line!(windlass::task::JoinSet::new().spawn(async {}));
    assert_names_this_line!(windlass::task::gather([async { Ok::<(), std::io::Error>(()) }]));
    assert_names_this_line!(windlass::promise::<()>());
    assert_names_this_line!(windlass::dump());
    assert_names_this_line!(windlass::metrics::metrics());
    assert_names_this_line!(windlass::counters());
    assert_names_this_line!(windlass::io::pipe::pipe());
    assert_names_this_line!(windlass::signal::shutdown());
    let socket = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert_names_this_line!(windlass::net::TcpListener::from_std(socket()));
    assert_names_this_line!(windlass::io::AsyncFd::new(socket()));
    assert_names_this_line!(windlass::add_reader(&socket(), || {}));
}

fn on_another_thread() {
    let event_loop = windlass::Builder::new().build().unwrap();
    let mut bound = event_loop
        .run_until_complete(async { ThreadBound::new(Rc::new(1)) })
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_names_this_line!(Rc::strong_count(&bound));
            assert_names_this_line!(ThreadBound::clone(&bound));
            assert_names_this_line!(Rc::get_mut(&mut bound).is_some());
        });
    });
}
