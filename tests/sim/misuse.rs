//! Calls that leave the simulation are reported, with what to use instead.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use windlass::sim::{self, Sim};
use windlass::time::sleep;

use crate::TestResult;

#[track_caller]
fn assert_contains(report: &str, parts: &[&str]) {
    for part in parts {
        assert!(report.contains(part), "{part:?} is missing:\n{report}");
    }
}

fn report<F>(test: impl Fn(Sim) -> F + Sync) -> String
where
    F: Future<Output = TestResult> + 'static,
{
    sim::try_sweep(0..1, test).unwrap_err().report
}

/// A thread that sends to the loop until the loop is gone, and returns when it has sent something.
fn start_sending(handle: windlass::LoopHandle) {
    let (has_sent, first) = mpsc::channel();
    let send = move || {
        while handle.call_soon_threadsafe(|| {}).is_ok() {
            let _ = has_sent.send(());
            std::thread::yield_now();
        }
    };
    let thread = std::thread::Builder::new().name("courier".to_owned());
    thread.spawn(send).expect("a thread");
    first.recv().expect("it sends");
}

/// It is noticed whenever it sends: while the loop waits, and while it runs.
#[test]
fn a_thread_that_sends_all_the_time_is_reported() {
    for waits in [true, false] {
        let report = report(move |_| async move {
            start_sending(windlass::LoopHandle::current().expect("in a loop"));
            loop {
                match waits {
                    true => sleep(Duration::from_millis(1)).await,
                    false => windlass::task::yield_now().await,
                }
            }
        });
        assert_contains(
            &report,
            &[
                "the thread 'courier' woke a loop of the simulation",
                "use `windlass::spawn_blocking`",
            ],
        );
    }
}

/// A thread that is too slow to be seen: the report of the deadlock names the possible cause.
#[test]
fn a_deadlock_suggests_threads() {
    let report = report(|_| async {
        // Of a thread that answers later, if ever.
        std::future::pending::<TestResult>().await
    });
    assert_contains(
        &report,
        &[
            "deadlock: no event is left",
            "hint: ",
            "`std::thread`",
            "`windlass::spawn_blocking`",
        ],
    );
}

/// The warning with this text. There may be others: on a busy machine, a task that waits for a lock of the allocator can
/// look like one that blocks.
#[cfg(unix)]
fn the_warning<'a>(report: &'a sim::Report, text: &str) -> &'a str {
    let found = report.warnings.iter().find(|warning| warning.contains(text));
    found.unwrap_or_else(|| panic!("no warning contains {text:?}: {:?}", report.warnings))
}

/// The kernel counts the waits of a thread on Linux only.
#[cfg(target_os = "linux")]
#[test]
fn a_task_that_blocks_is_named() {
    let report = sim::sweep(0..1, |sim| async move {
        sim.host("a").start(|| async {
            let polite = windlass::task::Builder::new()
                .name("polite")
                .spawn(sleep(Duration::from_secs(1)));
            let rude = windlass::task::Builder::new().name("rude").spawn(async {
                std::thread::sleep(Duration::from_millis(30));
            });
            drop((polite.await, rude.await));
        });
        sleep(Duration::from_secs(2)).await;
        Ok(())
    });
    let warning = the_warning(&report, "'rude'");
    assert_contains(
        warning,
        &[
            "'rude', spawned at tests/sim/misuse.rs:",
            "blocked the simulation for ",
            "use `windlass::time::sleep` instead of `std::thread::sleep`",
        ],
    );
}

/// A run that differs by the real time.
async fn by_time(sim: Sim, uses_std: bool) -> TestResult {
    sim.host("a").start(move || async move {
        let task = windlass::task::Builder::new().name("clockwork").spawn(async move {
            for _ in 0..100 {
                let nanos = match uses_std {
                    true => std::time::SystemTime::now(),
                    false => windlass::time::wall_now(),
                };
                let nanos = nanos.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
                sleep(Duration::from_nanos(nanos.subsec_nanos().into())).await;
            }
        });
        drop(task.await);
    });
    sleep(Duration::from_secs(200)).await;
    Ok(())
}

#[test]
fn std_time_is_suspected_where_a_run_differs() {
    let report = report(|sim| by_time(sim, true));
    assert_contains(
        &report,
        &[
            "is not deterministic",
            "'clockwork', spawned at tests/sim/misuse.rs:",
            "suspect: `std::time::Instant` or `SystemTime`: use `windlass::time::Instant` and `windlass::time::wall_now`",
        ],
    );
    sim::sweep(0..3, |sim| by_time(sim, false));
}

/// A file of the machine that was opened by std, and then given to windlass.
#[cfg(unix)]
#[test]
fn a_real_file_is_reported() {
    let report = sim::sweep(0..1, |sim| async move {
        sim.host("a").start(|| async {
            let task = windlass::task::Builder::new().name("reader").spawn(async {
                let file = windlass::fs::File::from_std(std::fs::File::open("Cargo.toml")?);
                file.read_at(vec![0; 9], 0).await.0
            });
            assert_eq!(task.await.expect("it ends")?, 9);
            io::Result::Ok(())
        });
        sleep(Duration::from_secs(1)).await;
        Ok(())
    });
    let warning = the_warning(&report, "uses a file of this machine");
    assert_contains(
        warning,
        &[
            "'reader', spawned at tests/sim/misuse.rs:",
            "uses a file of this machine",
            "open it with `windlass::fs`",
        ],
    );
}

#[cfg(unix)]
#[test]
fn a_path_that_only_the_machine_has_is_explained() {
    let path = std::env::current_dir().expect("it exists").join("Cargo.toml");
    let shown = path.display().to_string();
    let opened = report(move |sim| {
        let path = path.clone();
        async move {
            sim.host("a").start(move || windlass::fs::read(path.clone()));
            sleep(Duration::from_secs(1)).await;
            Ok(())
        }
    });
    assert_contains(
        &opened,
        &[
            "(os error 2)",
            &format!("hint: a did not find {shown} on its simulated disk, although this machine has it"),
            &format!("sim.disk(\"a\").write(\"{shown}\", ...)"),
        ],
    );
    assert!(!opened.contains("std::fs"), "{opened}");
    // A path that neither has needs no explanation.
    let opened = report(move |sim| async move {
        sim.host("a").start(|| windlass::fs::read("/no/such/path"));
        sleep(Duration::from_secs(1)).await;
        Ok(())
    });
    assert!(!opened.contains("hint"), "{opened}");
}

#[cfg(unix)]
#[test]
fn a_file_that_std_does_not_find_is_explained() {
    let opened = report(|sim| async move {
        sim.host("a").start(|| async {
            windlass::fs::create_dir("/windlass-simulated").await?;
            windlass::fs::write("/windlass-simulated/log", "text").await?;
            std::fs::read("/windlass-simulated/log")
        });
        sleep(Duration::from_secs(1)).await;
        Ok(())
    });
    assert_contains(
        &opened,
        &[
            "(os error 2)",
            "hint: no simulated disk has reported this error: `std::fs` looks for files on this machine",
        ],
    );
}
