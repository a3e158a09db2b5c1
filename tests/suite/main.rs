//! One suite of tests that runs on every driver.
//!
//! Each test calls `support::on_every_driver`, which runs its body on the null driver, on the reactor and, where the kernel
//! allows it, on io_uring. Environment variables configure the whole suite:
//!
//! - `WINDLASS_TEST_DRIVERS=null,proactor`: run only these drivers.
//! - `WINDLASS_TEST_ROUNDS=100000`: iterations of the looping tests (default 1,000; fewer under Miri).
//! - `WINDLASS_TEST_RING=1`: size of the submission ring; the completion ring has twice as many entries.
//! - `WINDLASS_TEST_PLAIN=1`: io_uring without the features of newer kernels.
//! - `WINDLASS_TEST_REFUSE=EPERM` or `ENOSYS`: the kernel refuses io_uring, and `auto` is tested as one more driver.
//! - `WINDLASS_TEST_ITIMER=1`: a timer interrupts the system calls of each test a thousand times a second.

#[cfg(target_os = "linux")]
mod accept_ahead;
#[cfg(all(target_os = "linux", not(miri)))]
mod affinity;
#[cfg(unix)]
mod async_fd;
mod blocking;
#[cfg(unix)]
mod blocking_loop;
mod bridge;
mod buf_reader;
mod busy_poll;
mod bytes;
mod cancel;
mod cancel_points;
mod child;
#[cfg(target_os = "linux")]
mod closing;
#[cfg(feature = "bytes")]
mod codec;
mod connect;
mod contracts;
mod copying;
mod delay_queue;
#[cfg(unix)]
mod descriptors;
mod diagnostics;
#[cfg(target_os = "linux")]
mod driver_choice;
#[cfg(target_os = "linux")]
mod driver_faults;
mod duplex;
mod edge_cases;
#[cfg(unix)]
mod embed;
#[cfg(unix)]
mod endpoints;
mod enter;
mod event_loop;
#[cfg(target_os = "linux")]
mod faults;
#[cfg(unix)]
mod fd_reuse;
#[cfg(target_os = "linux")]
mod file_batches;
#[cfg(unix)]
mod file_rules;
mod files;
#[cfg(unix)]
mod files_abandoned;
#[cfg(target_os = "linux")]
mod files_linux;
#[cfg(unix)]
mod foreign_fds;
mod groups;
mod join_sets;
mod joining;
mod loop_threads;
mod macros;
#[cfg(target_os = "linux")]
mod network_rules;
#[cfg(not(miri))]
mod offload;
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
mod reader_writer;
mod readiness;
mod reentrancy;
mod ring;
mod scan;
mod servers;
#[cfg(unix)]
mod shared_description;
#[cfg(unix)]
mod signals;
mod spawn_eager;
#[cfg(unix)]
mod stdio;
mod stream_traits;
mod streams;
mod support;
mod sync;
mod syscall_counts;
mod task_cancellation;
mod task_locals;
mod tasks;
mod tcp;
mod tcp_options;
mod thread_bound;
mod threads;
mod timers;
mod udp;
mod udp_batches;
#[cfg(unix)]
mod unix;
#[cfg(unix)]
mod unix_fds;
mod watch;
#[cfg(windows)]
mod windows_embed;
#[cfg(windows)]
mod windows_processes;
