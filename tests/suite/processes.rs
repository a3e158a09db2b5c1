//! Child processes: std's results, and no zombie, thread or descriptor left. Children belong to the whole process, so
//! each test runs in its own.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use windlass::process::{Child, Command, Stdio};
use windlass::time::{sleep, timeout};

use crate::child::in_own_process;
use crate::support::hoard;
use crate::support::{
    Case, Folder, assert_same, on_every_driver, on_every_kernel_driver, open_descriptors, rounds, uninterrupted,
};

/// An event that should come at once is considered lost after this time.
const LONG: Duration = Duration::from_secs(60);

/// Runs a script in a shell.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// The children of this process, running and zombies.
fn children() -> Vec<(i32, char)> {
    let this = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").expect("Linux has /proc");
    let of = |entry: std::fs::DirEntry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name, in parentheses, may contain any character.
        let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
        let state = fields.next()?.chars().next()?;
        (fields.next()? == this).then_some((number, state))
    };
    processes.flatten().filter_map(of).collect()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Waits until a condition holds.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: {:?}", children());
        std::thread::sleep(Duration::from_millis(2));
    }
}

async fn until_async(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: {:?}", children());
        sleep(Duration::from_millis(2)).await;
    }
}

/// Whether the kernel has this process, as a zombie or alive.
fn exists(id: u32) -> bool {
    std::path::Path::new(&format!("/proc/{id}")).exists()
}

#[test]
fn results_are_those_of_std() {
    in_own_process("processes::results_are_those_of_std", &[], || {
        on_every_kernel_driver(results_as_std);
    });
}

fn results_as_std(case: Case) {
    let folder = Folder::new();
    let scripts = [
        "exit 0",
        "exit 7",
        "kill -9 $$",
        "kill -15 $$",
        "echo out; echo err >&2; exit 3",
        "pwd; echo $WINDLASS_ONE-$WINDLASS_TWO-$HOME",
        "cat; echo end",
        "head -c 100000 /dev/zero | tr '\\0' x",
    ];
    case.run(async {
        for script in scripts {
            let std = std::process::Command::new("sh")
                .args(["-c", script])
                .current_dir(folder.path())
                .env("WINDLASS_ONE", "1")
                .env_remove("HOME")
                .output()
                .expect("std starts it");
            let mut command = shell(script);
            command
                .current_dir(folder.path())
                .envs([("WINDLASS_ONE", "1")])
                .env_remove("HOME");
            let ours = command.output().await.expect("we start it");
            assert_eq!(ours, std, "{script}");
            // The same command again, for its status only; its output goes to null, and its input is empty.
            command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
            assert_eq!(command.status().await.expect("we start it"), std.status, "{script}");
        }
        // A stream that was configured explicitly stays so for `output`.
        let output = shell("echo out; echo err >&2").stderr(Stdio::null()).output().await;
        let output = output.expect("it starts");
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b""[..]));
        let output = Command::new("env").env_clear().env("A", "b").output().await;
        assert_eq!(output.expect("it starts").stdout, b"A=b\n");
    });
    assert_eq!(children(), []);
}

#[test]
fn an_error_names_the_program_that_cannot_start() {
    in_own_process("processes::an_error_names_the_program_that_cannot_start", &[], || {
        on_every_driver(|case| {
            let folder = Folder::new();
            let plain = folder.file("plain", "no program");
            std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
            let nowhere = folder.join("nowhere");
            case.run(async {
                let before = open_descriptors();
                if !case.is_kernel() {
                    let error = Command::new("true").spawn().expect_err("there is no kernel");
                    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                    assert_eq!(children(), [], "nothing was started");
                    return;
                }
                type Change = dyn Fn(&mut std::process::Command);
                let cases: [(&std::path::Path, &Change, &str); 5] = [
                    (&nowhere, &|_| {}, "nowhere"),
                    ("no-such-program-at-all".as_ref(), &|_| {}, "no-such-program-at-all"),
                    (&plain, &|_| {}, "plain"),
                    (folder.path(), &|_| {}, "windlass-test"),
                    (
                        "true".as_ref(),
                        &|command| {
                            command.current_dir("/no/such/folder");
                        },
                        "/no/such/folder",
                    ),
                ];
                for (program, change, named) in cases {
                    let mut command = std::process::Command::new(program);
                    change(&mut command);
                    let theirs = command.spawn().map(drop);
                    let mut command = Command::from(command);
                    command.stdin(Stdio::piped()).stdout(Stdio::piped());
                    let ours = command.spawn();
                    let text = ours.as_ref().expect_err("it cannot start").to_string();
                    assert!(text.contains(named), "{named} is not in: {text}");
                    assert_same(named, ours.map(drop), theirs);
                    let output = command.output().await.expect_err("it cannot start");
                    assert!(output.to_string().contains(named), "{output}");
                }
                // A name cannot contain NUL.
                let error = Command::new("a\0b").spawn().expect_err("no such name");
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
                assert_eq!(open_descriptors(), before);
                assert_eq!(children(), []);
            });
        });
    });
}

#[test]
fn large_output_on_both_pipes_does_not_deadlock() {
    in_own_process("processes::large_output_on_both_pipes_does_not_deadlock", &[], || {
        on_every_kernel_driver(|case| {
            const LARGE: usize = 1 << 20;
            case.run(async {
                let before = open_descriptors();
                // Stderr first: a parent that reads stdout to its end first would wait forever.
                let script =
                    format!("yes e | head -c {LARGE} >&2; yes o | head -c {LARGE}; yes e | head -c {LARGE} >&2");
                let output = timeout(LONG, async { shell(&script).output().await });
                let output = output.await.expect("no deadlock").expect("it starts");
                assert!(output.status.success());
                assert!(
                    output.stdout == b"o\n".repeat(LARGE / 2),
                    "{} bytes",
                    output.stdout.len()
                );
                assert!(output.stderr == b"e\n".repeat(LARGE), "{} bytes", output.stderr.len());
                assert_eq!(open_descriptors(), before);

                // Through the child and back, in both directions at once.
                let mut cat = Command::new("cat");
                let mut child = cat
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("it starts");
                let stdin = child.stdin.take().expect("it is piped");
                let sent: Vec<u8> = (0..LARGE).map(|at| (at / 3) as u8).collect();
                let sending = windlass::spawn({
                    let sent = sent.clone();
                    async move { stdin.write_all(sent).await.0 }
                });
                let output = child.wait_with_output().await.expect("it ends");
                sending.await.expect("no panic").expect("sent");
                assert!(output.stdout == sent, "{} bytes", output.stdout.len());
                assert_eq!(open_descriptors(), before);
            });
            assert_eq!(children(), []);
        });
    });
}

#[test]
fn waiting_can_be_cancelled_and_repeated() {
    in_own_process("processes::waiting_can_be_cancelled_and_repeated", &[], || {
        on_every_kernel_driver(waits);
    });
}

fn waits(case: Case) {
    case.run(async {
        let before = (open_descriptors(), windlass::counters().tasks);
        // `cat` ends at the end of its input, which `wait` closes.
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("it starts");
        assert!(child.stdin.is_some());
        assert!(timeout(LONG, child.wait()).await.expect("it ends").is_ok());

        let mut child = shell("read line; exit 5")
            .stdin(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdin = child.stdin.take().expect("it is piped");
        assert!(child.id().is_some_and(exists));
        for _ in 0..20 {
            assert!(timeout(Duration::from_millis(1), child.wait()).await.is_err());
            assert_eq!(child.try_wait().expect("it runs"), None);
        }
        stdin.write_all("go\n").await.0.expect("it reads");
        let id = child.id().expect("it is not waited for");
        for _ in 0..2 {
            let ended = timeout(LONG, child.wait()).await.expect("it ends");
            assert_eq!(ended.expect("a status").code(), Some(5));
        }
        assert_eq!(
            child.try_wait().expect("it has ended").and_then(|status| status.code()),
            Some(5)
        );
        assert_eq!(child.id(), None, "the process id may be reused");
        child.start_kill().expect("nothing to kill");
        child.kill().await.expect("nothing to kill");
        assert!(!exists(id), "no zombie");
        drop((child, stdin));

        let mut child = Command::new("sleep").arg("1000").spawn().expect("it starts");
        child.kill().await.expect("it is killed");
        assert_eq!(child.wait().await.expect("a status").signal(), Some(libc::SIGKILL));
        drop(child);
        assert_eq!(children(), []);
        until_async("every resource is released", || {
            (open_descriptors(), windlass::counters().tasks) == before
        })
        .await;
    });
}

#[test]
fn many_children_run_at_once() {
    in_own_process("processes::many_children_run_at_once", &[], || {
        on_every_kernel_driver(many_at_once)
    });
}

fn many_at_once(case: Case) {
    case.run(async {
        let before = open_descriptors();
        let waiting: Vec<_> = (0..40)
            .map(|code| {
                let mut child = shell(&format!("exit {code}")).spawn().expect("it starts");
                windlass::spawn(async move { (code, child.wait().await.expect("a status").code()) })
            })
            .collect();
        for waiting in waiting {
            let waited = timeout(LONG, waiting).await.expect("each ends");
            let (code, ended) = waited.expect("no panic");
            assert_eq!(ended, Some(code));
        }
        assert_eq!(children(), []);
        assert_eq!(open_descriptors(), before);
    });
}

#[test]
fn a_dropped_child_leaves_no_zombie() {
    in_own_process("processes::a_dropped_child_leaves_no_zombie", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let before = (open_descriptors(), windlass::counters().tasks);
                for round in 0..rounds() / 5 {
                    let mut command = Command::new("true");
                    command.stdin(Stdio::null());
                    if round % 3 == 0 {
                        command.stdin(Stdio::piped()).stdout(Stdio::piped());
                    }
                    drop(command.spawn().expect("it starts"));
                    if round % 64 == 0 {
                        sleep(Duration::from_millis(1)).await;
                        // Zombies do not accumulate either: the loop reaps them while it runs.
                        until_async("few are left", || children().len() < 16).await;
                    }
                }
                until_async("no child is left", || children().is_empty()).await;
                until_async("every resource is released", || {
                    (open_descriptors(), windlass::counters().tasks) == before
                })
                .await;
            });
        });
    });
}

#[test]
fn a_child_that_outlives_its_loop_is_reaped() {
    in_own_process("processes::a_child_that_outlives_its_loop_is_reaped", &[], || {
        on_every_kernel_driver(outlives_its_loop);
    });
}

fn outlives_its_loop(case: Case) {
    let before = (open_descriptors(), threads());
    let mut pipes = Vec::new();
    let mut start = || -> Child {
        // The child ends at the end of its input, which the test closes.
        let (theirs, ours) = io::pipe().expect("a pipe");
        pipes.push(ours);
        Command::new("cat").stdin(theirs).spawn().expect("it starts")
    };
    // Children that are dropped before, with and after their loops, held by tasks, and awaited when the loop closes.
    let event_loop = case.event_loop();
    let run = async {
        drop((start(), start()));
        let mut awaited = start();
        windlass::spawn(async move { awaited.wait().await });
        sleep(Duration::from_millis(5)).await;
        start()
    };
    let outlives = event_loop.run_until_complete(run).expect("the loop runs");
    let run = async { start() };
    drop(event_loop.run_until_complete(run).expect("the loop runs"));
    event_loop.close();
    drop(outlives);
    assert_eq!(children().len(), 5, "no child was killed");
    let killed = case.run(async {
        let mut command = Command::new("sleep");
        command.arg("1000").kill_on_drop(true).spawn().expect("it starts")
    });
    drop(killed);
    until("the killed child is reaped", || children().len() == 5);
    for (ended, pipe) in pipes.into_iter().enumerate() {
        drop(pipe);
        until("the children end one by one", || children().len() == 4 - ended);
    }
    until("the reaper thread ends with the last child", || {
        (open_descriptors(), threads()) == before
    });

    // And again: the reaper thread restarts.
    let event_loop = case.event_loop();
    let run = async { Command::new("cat").stdin(Stdio::piped()).spawn().expect("it starts") };
    let mut child = event_loop.run_until_complete(run).expect("the loop runs");
    let stdin = child.stdin.take();
    event_loop.close();
    drop(child);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(children().len(), 1);
    drop(stdin);
    until("no child is left", || children().is_empty());
    until("nothing is left", || (open_descriptors(), threads()) == before);
}

#[test]
fn kill_on_drop_kills_the_child() {
    in_own_process("processes::kill_on_drop_kills_the_child", &[], || {
        on_every_kernel_driver(kills_on_drop)
    });
}

fn kills_on_drop(case: Case) {
    case.run(async {
        let mut command = Command::new("sleep");
        command.arg("1000").kill_on_drop(true);
        drop(command.spawn().expect("it starts"));
        until_async("it is killed and reaped", || children().is_empty()).await;
        // Cancelled with the future that owns it.
        assert!(timeout(Duration::from_millis(20), command.status()).await.is_err());
        until_async("it is killed and reaped", || children().is_empty()).await;
        assert!(timeout(Duration::from_millis(20), command.output()).await.is_err());
        until_async("it is killed and reaped", || children().is_empty()).await;
        // Without `kill_on_drop` the child runs on.
        let child = command.kill_on_drop(false).spawn().expect("it starts");
        let id = child.id().expect("it runs");
        drop(child);
        sleep(Duration::from_millis(20)).await;
        assert_eq!(children().len(), 1);
        // SAFETY: kill(2) takes two integers, and the child has not been reaped yet.
        assert_eq!(unsafe { libc::kill(id as i32, libc::SIGKILL) }, 0);
        until_async("it is reaped", || children().is_empty()).await;
    });
}

/// Without pidfd_open (an old kernel or a sandbox), children are reaped through SIGCHLD.
#[test]
fn children_are_reaped_without_pidfds() {
    in_own_process("processes::children_are_reaped_without_pidfds", &[], || {
        on_every_kernel_driver(|case| {
            crate::support::refuse_call(libc::SYS_pidfd_open, libc::ENOSYS);
            // SAFETY: the call is refused, and would touch no memory.
            let refused = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
            assert_eq!(refused, -1);
            results_as_std(case);
            waits(case);
            many_at_once(case);
            kills_on_drop(case);
            outlives_its_loop(case);
            case.run(async {
                for _ in 0..rounds() / 20 {
                    drop(Command::new("true").spawn().expect("it starts"));
                }
                until_async("no child is left", || children().is_empty()).await;
            });
        });
    });
}

#[test]
fn a_spawn_without_free_descriptors_leaks_nothing() {
    in_own_process("processes::a_spawn_without_free_descriptors_leaks_nothing", &[], || {
        on_every_kernel_driver(|case| {
            let event_loop = case.event_loop();
            let run = async {
                // A child without pipes can be started; then there may be no descriptor left to observe its end.
                for piped in [false, true] {
                    let (mut started, mut refused) = (0, 0);
                    for left in 0..16 {
                        let mut command = Command::new("sleep");
                        command.arg("1000");
                        if piped {
                            command
                                .stdin(Stdio::piped())
                                .stdout(Stdio::piped())
                                .stderr(Stdio::piped());
                        }
                        let hoard = hoard(left);
                        match command.spawn() {
                            Ok(mut child) => {
                                child.start_kill().expect("it runs");
                                let ended = timeout(LONG, child.wait()).await.expect("it ends");
                                assert_eq!(ended.expect("a status").signal(), Some(libc::SIGKILL));
                                started += 1;
                            }
                            Err(error) => {
                                assert_eq!(windlass::os_code(&error), Some(libc::EMFILE), "{error}");
                                assert!(error.to_string().contains("sleep"), "{error}");
                                refused += 1;
                            }
                        }
                        // Listing the children needs a descriptor too.
                        drop(hoard);
                        until_async("no child is left", || children().is_empty()).await;
                    }
                    assert!(started > 0 && refused > 0, "{started} started, {refused} refused");
                }
            };
            let before = open_descriptors();
            event_loop.run_until_complete(run).expect("the loop runs");
            until("every resource is released", || open_descriptors() == before);
        });
    });
}

#[test]
fn a_child_reaped_by_foreign_code_gives_the_error_of_std() {
    in_own_process(
        "processes::a_child_reaped_by_foreign_code_gives_the_error_of_std",
        &[],
        || {
            on_every_kernel_driver(|case| {
                let steal = |id: u32| {
                    // SAFETY: waitpid(2) with a null status pointer touches no memory.
                    let stolen = uninterrupted(|| match unsafe { libc::waitpid(id as i32, std::ptr::null_mut(), 0) } {
                        -1 => Err(io::Error::last_os_error()),
                        id => Ok(id),
                    });
                    assert_eq!(stolen.expect("it ends"), id as i32);
                };
                let mut theirs = std::process::Command::new("true").spawn().expect("it starts");
                steal(theirs.id());
                let theirs = uninterrupted(|| theirs.wait());
                case.run(async {
                    let mut ours = Command::new("true").spawn().expect("it starts");
                    steal(ours.id().expect("a number"));
                    let waited = timeout(LONG, ours.wait()).await;
                    assert_same("wait", waited.expect("no hang"), theirs);
                });
            });
        },
    );
}

#[test]
fn a_child_inherits_no_descriptor_of_the_loop() {
    in_own_process("processes::a_child_inherits_no_descriptor_of_the_loop", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                use windlass::signal::{SignalKind, signal};
                let _listener = signal(SignalKind::user_defined1()).expect("a signal");
                let mut sleeper = Command::new("sleep");
                sleeper
                    .arg("1000")
                    .kill_on_drop(true)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped());
                let _child = sleeper.spawn().expect("it starts");
                let _pipe = windlass::io::pipe::pipe().expect("a pipe");
                windlass::io::stderr().write_all("").await.0.expect("nothing to write");
                windlass::io::stdin()
                    .read(vec![0])
                    .await
                    .0
                    .expect("there is a standard input");
                let output = Command::new("ls")
                    .arg("/proc/self/fd")
                    .output()
                    .await
                    .expect("it starts");
                // The last descriptor belongs to the directory listing itself.
                let std = std::process::Command::new("ls")
                    .arg("/proc/self/fd")
                    .output()
                    .expect("it starts");
                assert_eq!(
                    String::from_utf8_lossy(&output.stdout),
                    String::from_utf8_lossy(&std.stdout)
                );
            });
            until("no child is left", || children().is_empty());
        });
    });
}

#[test]
fn children_form_a_pipeline() {
    in_own_process("processes::children_form_a_pipeline", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut first = shell("yes | head -c 1000000")
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("it starts");
                let pipe = first.stdout.take().expect("it is piped");
                // A dropped read consumed nothing.
                let pipe: Stdio = pipe.try_into().expect("nothing is under way");
                let output = Command::new("wc")
                    .arg("-c")
                    .stdin(pipe)
                    .output()
                    .await
                    .expect("it starts");
                assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1000000");
                assert!(first.wait().await.expect("a status").success());

                // Bytes that were already received block the conversion instead of being lost.
                let mut echo = Command::new("echo")
                    .arg("x")
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("it starts");
                let pipe = echo.stdout.take().expect("it is piped");
                let error = pipe.read_exact(vec![0; 100]).await.0.expect_err("it writes two bytes");
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                let refused = Stdio::try_from(pipe).expect_err("two bytes are unread");
                assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
                echo.wait().await.expect("a status");
            });
        });
    });
}

/// Children's pipes implement the stream traits: copied to and from, and read by lines.
#[test]
fn child_pipes_are_streams() {
    in_own_process("processes::child_pipes_are_streams", &[], || {
        on_every_kernel_driver(|case| {
            use windlass::io::{AsyncWrite, BufReader, copy};
            case.run(async {
                let mut cat = Command::new("cat");
                let mut child = cat
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("it starts");
                let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
                let stdin = stdin.as_mut().expect("it is piped");
                let mut lines = BufReader::new(stdout.expect("it is piped")).lines();
                let copied = copy(&mut &b"one\ntwo\nthree"[..], stdin).await;
                assert_eq!(copied.expect("it reads"), 13);
                // `cat` ends only at the end of its input.
                stdin.shutdown().await.expect("a pipe");
                AsyncWrite::write(stdin, "more").await.0.expect_err("it is closed");
                for expected in [Some("one"), Some("two"), Some("three"), None] {
                    let line = timeout(LONG, lines.next_line()).await.expect("it ends");
                    assert_eq!(line.expect("text").as_deref(), expected);
                }
                assert!(child.wait().await.expect("a status").success());
            });
        });
    });
}
