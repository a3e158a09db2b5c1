//! Embedding in another event loop on Windows: the completion port is a waitable handle.

use std::os::windows::io::AsRawHandle;
use std::time::Duration;

use windlass::time::sleep;
use windows_sys::Win32::Foundation::{WAIT_OBJECT_0, WAIT_TIMEOUT};
use windows_sys::Win32::System::Threading::WaitForSingleObject;

use crate::support::{on_every_kernel_driver, pair};

/// Calls from other threads and arriving bytes signal the port, and nothing else does.
#[test]
fn the_completion_port_wakes_an_outer_loop() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let port = match event_loop.pollable() {
            Ok(port) => port.as_raw_handle(),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{error}");
                return println!("-- SKIPPED on {}: {error}", case.name);
            }
        };
        // SAFETY: the loop, and so its port, is open; the call takes a handle and an integer.
        let wait = |milliseconds: u32| unsafe { WaitForSingleObject(port, milliseconds) };
        let (client, server) = event_loop.run_until_complete(pair()).expect("the loop runs");
        let reading = event_loop.spawn(async move { server.read_managed().await.map(|bytes| bytes.to_vec()) });
        for _ in 0..3 {
            event_loop.turn_nowait().expect("a turn");
        }
        event_loop.flush().expect("flush");
        assert_eq!(wait(20), WAIT_TIMEOUT, "nothing has happened");

        let handle = event_loop.handle();
        std::thread::spawn(move || handle.call_soon_threadsafe(|| {}).expect("the loop is open"));
        assert_eq!(wait(10_000), WAIT_OBJECT_0, "a call from another thread");
        event_loop.turn_nowait().expect("a turn");

        event_loop.flush().expect("flush");
        assert_eq!(socket2::SockRef::from(&client).send(b"outer").expect("a send"), 5);
        assert_eq!(wait(10_000), WAIT_OBJECT_0, "bytes");
        let bytes = event_loop.run_until_complete(async {
            sleep(Duration::from_millis(1)).await;
            reading.await
        });
        assert_eq!(
            bytes.expect("the loop runs").expect("no panic").expect("read"),
            b"outer"
        );
    });
}
