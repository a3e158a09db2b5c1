//! Child processes, standard streams and console events on Windows. The children are this program again, in a role that
//! `WINDLASS_TEST_PART` names.
//!
//! Under Wine only a terminal has a console, and Ctrl-C reaches every process in it. It is tested in a separate run of
//! this program under `script`, with `WINDLASS_TEST_TERMINAL=1` and only the tests that match `ctrl_c_and`.

use std::io::{self, Read, Write};
use std::task::Poll;
use std::time::{Duration, Instant};

use windlass::io::{stderr, stdin, stdout};
use windlass::process::{Child, ChildStdout, Command, Stdio};
use windlass::protocol::{SubprocessProtocol, SubprocessTransport, subprocess_exec};
use windlass::signal::{SignalKind, ctrl_break, ctrl_c, signal};
use windlass::time::{sleep, timeout};
use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, GenerateConsoleCtrlEvent, SetConsoleCtrlHandler,
};
use windows_sys::Win32::System::Threading::{CREATE_NEW_PROCESS_GROUP, CREATE_NO_WINDOW};

use crate::child::in_own_process;
use crate::support::{
    Case, Random, on_every_driver, on_every_kernel_driver, open_descriptors, poll_once, rounds, variable,
};

/// An event that should come at once is considered lost after this time.
const LONG: Duration = Duration::from_secs(60);

const LARGE: usize = 1 << 20;

const PART: &str = "WINDLASS_TEST_PART";
const DRIVER: &str = "WINDLASS_DRIVER";

/// Marks the start of a child's own output: the test harness prints something before it.
const BEGIN: &str = "<<<begin>>>";

/// This program again, in a given role.
fn part(case: Case, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command
        .args([
            "--exact",
            "windows_processes::the_child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PART, name)
        .env(DRIVER, case.name);
    command
}

/// The output of a child without that of the test harness.
fn output_of(output: &[u8]) -> &[u8] {
    let at = output
        .windows(BEGIN.len())
        .position(|window| window == BEGIN.as_bytes());
    &output[at.expect("the child has begun") + BEGIN.len()..]
}

fn large_data(seed: usize) -> Vec<u8> {
    (0..LARGE).map(|at| (at / 7 + seed) as u8).collect()
}

/// The roles. Not a test by itself.
#[test]
fn the_child() {
    let Ok(part) = std::env::var(PART) else { return };
    let plain = |bytes: &[u8]| {
        io::stdout().write_all(bytes).expect("it is read");
        io::stdout().flush().expect("it is read");
    };
    plain(BEGIN.as_bytes());
    let on_loop = |part: &str| windlass::run(on_a_loop(part.to_owned())).expect("a loop");
    let code = match part.as_str() {
        "cat" => {
            let mut bytes = vec![0; 64 * 1024];
            loop {
                match io::stdin().read(&mut bytes).expect("a pipe") {
                    0 => break 0,
                    count => plain(&bytes[..count]),
                }
            }
        }
        "both" => {
            // Stderr first: a parent that reads stdout to its end first would wait forever.
            io::stderr().write_all(&large_data(1)).expect("it is read");
            plain(&large_data(2));
            io::stderr().write_all(&large_data(3)).expect("it is read");
            3
        }
        "sleep" => {
            std::thread::sleep(Duration::from_secs(1_000));
            0
        }
        "one line" => {
            let mut line = String::new();
            io::stdin().read_line(&mut line).expect("a pipe");
            line.trim().parse().expect("a number")
        }
        other => on_loop(other),
    };
    std::process::exit(code);
}

async fn on_a_loop(part: String) -> i32 {
    match part.as_str() {
        // Like "cat", with windlass's streams.
        "loop cat" => loop {
            let (result, bytes) = stdin().read(Vec::with_capacity(10_000)).await;
            if result.expect("a pipe") == 0 {
                stderr().write_all("end of input").await.0.expect("it is read");
                break 7;
            }
            stdout().write_all(bytes).await.0.expect("it is read");
        },
        // Nothing is written: reads are dropped, and consume nothing.
        "idle input" => {
            for _ in 0..20 {
                let given_up = timeout(Duration::from_millis(5), stdin().read(vec![0; 16])).await;
                assert!(given_up.is_err());
            }
            stdout().write_all("ready").await.0.expect("it is read");
            let (result, bytes) = timeout(LONG, stdin().read(Vec::with_capacity(16)))
                .await
                .expect("it comes");
            assert_eq!((result.expect("a pipe"), &bytes[..]), (4, &b"ping"[..]));
            // The loop ends with a read in flight.
            windlass::spawn(async { stdin().read(vec![0; 16]).await });
            sleep(Duration::from_millis(20)).await;
            0
        }
        // Numbers arrive in pieces, and reads are dropped in between.
        "dropped reads" => {
            let (mut random, mut received) = (Random::new(7), Vec::new());
            loop {
                let input = stdin();
                let mut reading = Box::pin(input.read(Vec::with_capacity(1 + random.below(600) as usize)));
                let mut patience = random.below(4);
                let completed = loop {
                    match poll_once(reading.as_mut()).await {
                        Poll::Ready(completed) => break Some(completed),
                        Poll::Pending if patience == 0 => break None,
                        Poll::Pending => windlass::task::yield_now().await,
                    }
                    patience -= 1;
                };
                drop(reading);
                match completed {
                    None => {}
                    Some((Ok(0), _)) => break,
                    Some((result, bytes)) => {
                        result.expect("a pipe");
                        received.extend(bytes);
                    }
                }
            }
            let (numbers, rest) = received.as_chunks::<4>();
            let in_order = numbers
                .iter()
                .copied()
                .map(u32::from_le_bytes)
                .eq(0..numbers.len() as u32);
            assert!(in_order && rest.is_empty(), "{} bytes", received.len());
            stdout()
                .write_all(format!("{} numbers", numbers.len()))
                .await
                .0
                .expect("it is read");
            0
        }
        // Nothing is read: a write is dropped, and the loop ends.
        "idle output" => {
            let output = stdout();
            let given_up = timeout(Duration::from_millis(50), output.write_all(large_data(0))).await;
            assert!(given_up.is_err());
            0
        }
        // The parent sends Ctrl-Break.
        "listen" => {
            let mut breaks = signal(SignalKind::ctrl_break()).expect("a listener");
            let mut interrupts = signal(SignalKind::interrupt()).expect("a listener");
            stdout().write_all("ready").await.0.expect("it is read");
            timeout(LONG, breaks.recv()).await.expect("it comes");
            assert!(timeout(Duration::from_millis(50), interrupts.recv()).await.is_err());
            5
        }
        "console" => {
            ignore_ctrl_c(false);
            let waiting = windlass::spawn(ctrl_c());
            let other = windlass::spawn(ctrl_break());
            let mut twice = signal(SignalKind::interrupt()).expect("a listener");
            windlass::task::yield_now().await;
            if !raise(CTRL_C_EVENT) {
                return NO_CONSOLE;
            }
            let received = timeout(LONG, waiting).await.expect("it comes");
            received.expect("no panic").expect("received");
            timeout(LONG, twice.recv()).await.expect("every listener receives it");
            assert!(!other.is_finished());
            if !raise(CTRL_BREAK_EVENT) {
                return NO_BREAK;
            }
            let received = timeout(LONG, other).await.expect("it comes");
            received.expect("no panic").expect("received");
            6
        }
        other => panic!("unknown role {other}"),
    }
}

/// The exit codes of the role if there is no console, or one without Ctrl-Break.
const NO_CONSOLE: i32 = 77;
const NO_BREAK: i32 = 78;

/// Sends an event to every process on our console. False if there is no console, or if it does not support the event.
fn raise(event: u32) -> bool {
    // SAFETY: the call takes two integers.
    unsafe { GenerateConsoleCtrlEvent(event, 0) != 0 }
}

/// For this process and its future children.
fn ignore_ctrl_c(ignore: bool) {
    // SAFETY: without a function the call only takes a flag.
    let set = unsafe { SetConsoleCtrlHandler(None, i32::from(ignore)) };
    assert_ne!(set, 0, "{}", io::Error::last_os_error());
}

/// Waits until a child has printed that it is ready.
async fn until_ready(stdout: &ChildStdout) {
    let mut said = Vec::new();
    while !said.ends_with(b"ready") {
        let bytes = timeout(LONG, stdout.read_managed())
            .await
            .expect("it is soon")
            .expect("a pipe");
        assert!(!bytes.is_empty(), "{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&bytes);
    }
}

async fn wait_for_exit(child: &mut Child) -> Option<i32> {
    let began = Instant::now();
    let ended = timeout(LONG, child.wait()).await.expect("it ends");
    // The wake-up of the timeout would poll the wait too.
    assert!(began.elapsed() < LONG / 2, "the task was not woken");
    ended.expect("a status").code()
}

/// The threads of a closed loop take a moment to end, and so do the system's.
fn handles_settle_at(most: usize) {
    let deadline = Instant::now() + LONG;
    while open_descriptors() > most {
        let open = open_descriptors();
        assert!(Instant::now() < deadline, "{open} handles are open, {most} were before");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn results_are_those_of_std() {
    on_every_driver(|case| {
        case.run(async {
            if !case.is_kernel() {
                let error = Command::new("cmd").spawn().expect_err("there is no kernel");
                assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                return;
            }
            for arguments in [
                &["/c", "echo ahoy"][..],
                &["/c", "exit 3"],
                &["/c", "echo woe>&2&exit 4"],
            ] {
                let std = std::process::Command::new("cmd")
                    .args(arguments)
                    .output()
                    .expect("std starts it");
                let ours = Command::new("cmd").args(arguments).output().await.expect("we start it");
                assert_eq!(ours, std, "{arguments:?}");
                let mut quiet = Command::new("cmd");
                quiet.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
                let status = quiet.status();
                assert_eq!(status.await.expect("we start it"), std.status, "{arguments:?}");
            }
            let raw = Command::new("cmd")
                .raw_arg("/c echo \"a  b\"")
                .output()
                .await
                .expect("it starts");
            assert_eq!(String::from_utf8_lossy(&raw.stdout).trim(), "\"a  b\"");
            let theirs = std::process::Command::new("no-such-program-at-all")
                .spawn()
                .expect_err("it is not there");
            let ours = Command::new("no-such-program-at-all")
                .spawn()
                .expect_err("it is not there");
            assert_eq!(ours.kind(), theirs.kind());
            assert!(ours.to_string().contains("no-such-program-at-all"), "{ours}");
        });
    });
}

#[test]
fn large_output_on_both_pipes_does_not_deadlock() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let output = timeout(LONG, async { part(case, "both").output().await });
            let output = output.await.expect("no deadlock").expect("it starts");
            assert_eq!(output.status.code(), Some(3));
            assert!(
                output_of(&output.stdout) == large_data(2),
                "{} bytes",
                output.stdout.len()
            );
            assert!(
                output.stderr == [large_data(1), large_data(3)].concat(),
                "{} bytes",
                output.stderr.len()
            );
            for name in ["cat", "loop cat"] {
                through(case, name).await;
            }
        });
    });
}

/// Through a child and back, in both directions at once.
async fn through(case: Case, name: &str) {
    let mut command = part(case, name);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let stdin = child.stdin.take().expect("it is piped");
    let sending = windlass::spawn(async move { stdin.write_all(large_data(4)).await.0 });
    let output = timeout(LONG, child.wait_with_output())
        .await
        .expect("no hang")
        .expect("it ends");
    sending.await.expect("no panic").expect("sent");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output_of(&output.stdout) == large_data(4),
        "{name}: {} bytes: {errors}",
        output.stdout.len()
    );
    match name {
        "loop cat" => assert_eq!((output.status.code(), &*errors), (Some(7), "end of input")),
        _ => assert_eq!((output.status.code(), &*errors), (Some(0), "")),
    }
}

#[test]
fn waiting_can_be_cancelled_and_repeated() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let mut command = part(case, "one line");
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("it starts");
            let stdin = child.stdin.take().expect("it is piped");
            assert!(child.id().is_some() && child.handle().is_some());
            for _ in 0..20 {
                assert!(timeout(Duration::from_millis(1), child.wait()).await.is_err());
                assert_eq!(child.try_wait().expect("it runs"), None);
            }
            // The loop sleeps while it waits.
            let turns = windlass::counters().turns;
            assert!(timeout(Duration::from_millis(200), child.wait()).await.is_err());
            assert!(windlass::counters().turns - turns < 20);
            stdin.write_all("5\n").await.0.expect("it reads");
            for _ in 0..2 {
                assert_eq!(wait_for_exit(&mut child).await, Some(5));
            }
            assert_eq!(
                child.try_wait().expect("it has ended").and_then(|status| status.code()),
                Some(5)
            );
            assert_eq!(child.id(), None, "the process id may be reused");
            child.start_kill().expect("nothing to kill");
            child.kill().await.expect("nothing to kill");

            let mut child = part(case, "sleep").stdout(Stdio::null()).spawn().expect("it starts");
            timeout(LONG, child.kill())
                .await
                .expect("it ends")
                .expect("it is killed");
            assert_eq!(
                wait_for_exit(&mut child).await,
                Some(1),
                "the exit code given to TerminateProcess"
            );
            // `wait` closes the input, which ends `cat`.
            let mut command = part(case, "cat");
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("it starts");
            assert_eq!(wait_for_exit(&mut child).await, Some(0));
        });
    });
}

#[test]
fn many_children_run_at_once() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (mut inputs, mut waiting) = (Vec::new(), Vec::new());
            for code in 0..20 {
                let mut command = part(case, "one line");
                let mut child = command
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .spawn()
                    .expect("it starts");
                inputs.push(child.stdin.take().expect("it is piped"));
                waiting.push(windlass::spawn(async move { (code, wait_for_exit(&mut child).await) }));
            }
            // Each wait starts before its child ends; then all end together.
            sleep(Duration::from_millis(50)).await;
            assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
            for (code, input) in inputs.iter().enumerate() {
                input.write_all(format!("{code}\n")).await.0.expect("it reads");
            }
            for waiting in waiting {
                let (code, ended) = waiting.await.expect("no panic");
                assert_eq!(ended, Some(code));
            }
        });
    });
}

#[test]
fn dropped_children_leak_no_handle() {
    // Counts handles, which belong to the whole process.
    in_own_process("windows_processes::dropped_children_leak_no_handle", &[], || {
        on_every_kernel_driver(|case| {
            let sleeper = || {
                let mut command = part(case, "sleep");
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
                command
            };
            let rounds = (rounds() / 50).clamp(4, 40);
            let dropping = async || {
                for round in 0..rounds {
                    let mut child = sleeper().spawn().expect("it starts");
                    match round % 3 {
                        0 => drop(child),
                        // With a pending wait.
                        1 => assert!(timeout(Duration::from_millis(1), child.wait()).await.is_err()),
                        // With a pending read.
                        _ => {
                            let stdout = child.stdout.take().expect("it is piped");
                            let begun = timeout(Duration::from_secs(10), stdout.read_exact(vec![0; BEGIN.len()])).await;
                            begun.expect("it begins").0.expect("a pipe");
                            assert!(
                                timeout(Duration::from_millis(1), stdout.read_exact(vec![0; 1 << 16]))
                                    .await
                                    .is_err()
                            );
                        }
                    }
                }
            };
            // One-time allocations of the system and of std exist after the first round.
            case.run(dropping());
            let before = open_descriptors();
            case.run(async {
                dropping().await;
                let tasks = windlass::counters().tasks;
                assert_eq!(tasks, 1, "a task is left");
            });
            // And the loop itself may be dropped first, with the child running, or with a pending wait for it.
            for waits in [false, true] {
                let mut child = case.run(async {
                    let mut child = sleeper().spawn().expect("it starts");
                    if waits {
                        assert!(timeout(Duration::from_millis(1), child.wait()).await.is_err());
                    }
                    drop((child.stdin.take(), child.stdout.take()));
                    child
                });
                assert_eq!(child.try_wait().expect("it runs"), None);
            }
            handles_settle_at(before);
        });
    });
}

/// Without `kill_on_drop` the child runs on and ends by itself.
#[test]
fn a_dropped_child_runs_on() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let mut command = part(case, "cat");
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts");
            let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
            drop(child);
            stdin.write_all("still here").await.0.expect("it lives");
            drop(stdin);
            let mut said = Vec::new();
            loop {
                let bytes = timeout(LONG, stdout.read_managed())
                    .await
                    .expect("it ends")
                    .expect("a pipe");
                match bytes.is_empty() {
                    true => break,
                    false => said.extend_from_slice(&bytes),
                }
            }
            assert_eq!(output_of(&said), b"still here");
        });
    });
}

/// A child cannot use an overlapped pipe, so a thread relays the bytes.
#[test]
fn children_form_a_pipeline() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let mut first = part(case, "both")
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts");
            let pipe: Stdio = first
                .stdout
                .take()
                .expect("piped")
                .try_into()
                .expect("nothing is under way");
            let output = timeout(LONG, async { part(case, "cat").stdin(pipe).output().await });
            let output = output.await.expect("no hang").expect("it starts");
            assert!(
                output_of(output_of(&output.stdout)) == large_data(2),
                "{} bytes",
                output.stdout.len()
            );
            assert_eq!(wait_for_exit(&mut first).await, Some(3));

            // The other way: one child's input as another's output.
            let mut last = part(case, "cat")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts");
            let pipe: Stdio = last
                .stdin
                .take()
                .expect("piped")
                .try_into()
                .expect("nothing is under way");
            let mut command = part(case, "both");
            let mut first = command.stdout(pipe).stderr(Stdio::null()).spawn().expect("it starts");
            // The command holds the pipe too.
            drop(command);
            let output = timeout(LONG, last.wait_with_output()).await;
            let output = output.expect("the relay ends with the child").expect("it ends");
            assert!(
                output_of(output_of(&output.stdout)) == large_data(2),
                "{} bytes",
                output.stdout.len()
            );
            assert_eq!(wait_for_exit(&mut first).await, Some(3));

            // Bytes that were already received block the conversion instead of being lost.
            let mut echo = Command::new("cmd")
                .args(["/c", "echo x"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts");
            let pipe = echo.stdout.take().expect("piped");
            pipe.read_exact(vec![0; 100])
                .await
                .0
                .expect_err("it writes three bytes");
            let refused = Stdio::try_from(pipe).expect_err("three bytes are unread");
            assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
            assert_eq!(wait_for_exit(&mut echo).await, Some(0));
        });
    });
}

/// A thread waits for an idle stream, and that wait can be cancelled.
#[test]
fn idle_standard_streams_do_not_block_the_exit() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let mut command = part(case, "idle input");
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts");
            let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
            until_ready(&stdout).await;
            stdin.write_all("ping").await.0.expect("it reads");
            let began = Instant::now();
            let ended = timeout(LONG, async {
                // The pipe stays open.
                while child.try_wait().expect("a child").is_none() {
                    sleep(Duration::from_millis(5)).await;
                }
            });
            ended.await.expect("it ends");
            assert_eq!(wait_for_exit(&mut child).await, Some(0));
            assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
            drop(stdin);

            let mut command = part(case, "idle output");
            let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
            let began = Instant::now();
            assert_eq!(wait_for_exit(&mut child).await, Some(0));
            assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        });
    });
}

#[test]
fn dropped_reads_of_standard_input_lose_no_byte() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let total = (rounds() * 20) as u32;
            let mut command = part(case, "dropped reads");
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts");
            let stdin = child.stdin.take().expect("piped");
            let sending = windlass::spawn(async move {
                let (mut random, mut next) = (Random::new(5), 0);
                while next < total {
                    let count = (random.below(300) as u32).min(total - next);
                    let bytes: Vec<u8> = (next..next + count).flat_map(u32::to_le_bytes).collect();
                    stdin.write_all(bytes).await.0.expect("it reads");
                    next += count;
                    if random.below(20) == 0 {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            });
            let output = timeout(LONG, child.wait_with_output())
                .await
                .expect("no hang")
                .expect("it ends");
            sending.await.expect("no panic");
            let said = String::from_utf8_lossy(output_of(&output.stdout)).into_owned();
            assert_eq!(said, format!("{total} numbers"));
        });
    });
}

#[test]
fn ctrl_break_reaches_a_process_group() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let plain = part(case, "sleep")
                .stdout(Stdio::null())
                .kill_on_drop(true)
                .spawn()
                .expect("it starts");
            let refused = plain.send_ctrl_break().expect_err("it would reach us too");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
            drop(plain);

            let mut command = part(case, "listen");
            command.creation_flags(CREATE_NEW_PROCESS_GROUP).stdout(Stdio::piped());
            let mut child = command.spawn().expect("it starts");
            let stdout = child.stdout.take().expect("piped");
            until_ready(&stdout).await;
            match child.send_ctrl_break() {
                Ok(()) => assert_eq!(wait_for_exit(&mut child).await, Some(5)),
                Err(error) => {
                    println!("-- SKIPPED: no console to send Ctrl-Break to, or one of Wine 8, which cannot: {error}");
                    timeout(LONG, child.kill())
                        .await
                        .expect("it ends")
                        .expect("it is killed");
                }
            }
            child.send_ctrl_break().expect("sending to an ended child succeeds");
        });
    });
}

#[test]
fn ctrl_c_and_ctrl_break_are_received() {
    on_every_driver(|case| {
        case.run(async {
            if !case.is_kernel() {
                let error = signal(SignalKind::interrupt()).expect_err("there is no kernel");
                assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                return;
            }
            let error = signal(SignalKind::from_raw(9)).expect_err("there is no such signal");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let mut command = part(case, "console");
            let mut child = command
                .stdout(Stdio::null())
                .creation_flags(CREATE_NO_WINDOW)
                .spawn()
                .expect("it starts");
            let mut code = wait_for_exit(&mut child).await;
            if code == Some(NO_CONSOLE) && variable::<u32>("WINDLASS_TEST_TERMINAL").is_some_and(|on| on > 0) {
                // Wine has no console without a window, but a terminal becomes one. This process shares it.
                ignore_ctrl_c(true);
                code =
                    wait_for_exit(&mut part(case, "console").stdout(Stdio::null()).spawn().expect("it starts")).await;
                assert_ne!(code, Some(NO_CONSOLE), "this is not a terminal");
            }
            match code {
                Some(NO_CONSOLE) => println!("-- SKIPPED: there is no console; see WINDLASS_TEST_TERMINAL"),
                Some(NO_BREAK) => println!("-- SKIPPED half: this console has no Ctrl-Break, like that of Wine 8"),
                code => assert_eq!(code, Some(6)),
            }
        });
    });
}

#[test]
fn a_subprocess_with_protocol_callbacks() {
    struct Cat {
        output: Vec<u8>,
        events: Vec<&'static str>,
        done: Option<windlass::Promise<()>>,
    }

    impl SubprocessProtocol for Cat {
        fn connection_made(&mut self, transport: SubprocessTransport) {
            transport.write("to the cat and back");
            transport.write_eof();
        }
        fn pipe_data_received(&mut self, fd: i32, data: &[u8]) {
            assert_eq!(fd, 1);
            self.output.extend(data);
        }
        fn process_exited(&mut self) {
            self.events.push("exited");
        }
        fn connection_lost(&mut self, error: Option<io::Error>) {
            assert!(error.is_none(), "{error:?}");
            self.events.push("lost");
            let _ = self.done.take().expect("once").resolve(());
        }
    }

    struct Mute;
    impl SubprocessProtocol for Mute {}

    on_every_kernel_driver(|case| {
        case.run(async {
            let (done, is_done) = windlass::promise();
            let cat = || Cat {
                output: Vec::new(),
                events: Vec::new(),
                done: Some(done),
            };
            let (transport, cat) = subprocess_exec(cat, &mut part(case, "cat")).await.expect("it starts");
            timeout(LONG, is_done).await.expect("it ends").expect("resolved");
            assert!(transport.exit_status().expect("it has ended").success());
            assert_eq!(cat.with(|cat| output_of(&cat.output).to_vec()), b"to the cat and back");
            assert_eq!(cat.with(|cat| cat.events.clone()), ["exited", "lost"]);

            for end in [
                SubprocessTransport::kill,
                SubprocessTransport::terminate,
                SubprocessTransport::close,
            ] {
                let (transport, _) = subprocess_exec(|| Mute, &mut part(case, "sleep"))
                    .await
                    .expect("it starts");
                assert!(transport.pid() > 0 && transport.exit_status().is_none());
                end(&transport);
                let ended = timeout(LONG, async {
                    while transport.exit_status().is_none() {
                        sleep(Duration::from_millis(1)).await;
                    }
                });
                ended.await.expect("it ends");
            }
        });
    });
}
