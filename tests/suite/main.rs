//! One body of tests for every driver.
//!
//! Each test calls `support::on_every_driver`, which runs its body on the null driver, on the reactor and, where the
//! kernel lets it, on io_uring. Variables steer the whole suite:
//!
//! - `WINDLASS_TEST_DRIVERS=null,proactor`: only these drivers;
//! - `WINDLASS_TEST_ROUNDS=100000`: how often the looping tests loop (1,000; under Miri, few);
//! - `WINDLASS_TEST_RING=1`: the submission ring's size, the completion ring's being twice that;
//! - `WINDLASS_TEST_PLAIN=1`: io_uring as an old kernel has it;
//! - `WINDLASS_TEST_REFUSE=EPERM` or `ENOSYS`: io_uring refused by the kernel, and `auto` as one more driver;
//! - `WINDLASS_TEST_ITIMER=1`: a timer interrupts each test's system calls a thousand times a second.

#[cfg(target_os = "linux")]
mod accept_ahead;
#[cfg(unix)]
mod async_fd;
mod blocking;
#[cfg(unix)]
mod blocking_loop;
mod bridge;
mod busy_poll;
mod bytes;
mod cancel;
mod cancel_points;
mod cancelling;
mod child;
#[cfg(target_os = "linux")]
mod choice;
#[cfg(target_os = "linux")]
mod closing;
mod connect;
mod contracts;
mod copying;
mod corners;
#[cfg(unix)]
mod descriptors;
#[cfg(target_os = "linux")]
mod driver_faults;
mod duplex;
mod eager;
mod edges;
#[cfg(unix)]
mod embed;
#[cfg(unix)]
mod endpoints;
mod event_loop;
#[cfg(target_os = "linux")]
mod faults;
mod files;
#[cfg(unix)]
mod files_abandoned;
#[cfg(target_os = "linux")]
mod files_linux;
mod groups;
mod insight;
mod joining;
mod lines;
mod locals;
#[cfg(unix)]
mod neighbours;
#[cfg(unix)]
mod numbers;
mod panics;
#[cfg(unix)]
mod paths;
mod pipes;
mod pool;
#[cfg(target_os = "linux")]
mod processes;
mod promises;
mod protocol;
mod protocol_flow;
mod quiet;
mod reader_writer;
mod reentrancy;
mod ring;
mod scan;
mod servers;
#[cfg(unix)]
mod shared_description;
#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod stdio;
mod streams;
mod support;
mod sync;
mod tasks;
mod tcp;
mod tcp_options;
mod threads;
mod timers;
mod udp;
#[cfg(unix)]
mod unix;
#[cfg(unix)]
mod unix_fds;
mod watch;
#[cfg(windows)]
mod windows_embed;
#[cfg(windows)]
mod windows_processes;
