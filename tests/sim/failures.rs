//! How runs fail, and what their reports say.

use std::cell::Cell;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::sim::{self, Chaos, Crash, FaultKind, Sim};
use windlass::time::sleep;

use crate::TestResult;

/// The report of a test that fails with its first seed.
fn report<F>(test: impl Fn(Sim) -> F + Sync) -> String
where
    F: Future<Output = TestResult> + 'static,
{
    sim::try_sweep(0..1, test).unwrap_err().report
}

#[track_caller]
fn assert_contains(report: &str, parts: &[&str]) {
    for part in parts {
        assert!(report.contains(part), "{part:?} is missing:\n{report}");
    }
}

#[test]
fn a_panic_in_the_test_is_reported_with_its_place() {
    let line = line!() + 2;
    let report = report(|_| async {
        assert_eq!(1 + 1, 3, "sums are wrong");
        Ok(())
    });
    assert_contains(
        &report,
        &[
            "seed 0x0 failed at 0.000 s",
            "sums are wrong",
            &format!("tests/sim/failures.rs:{line}:"),
        ],
    );
}

#[track_caller]
fn fail(message: &str) {
    panic!("{message}");
}

#[test]
fn panics_in_a_host_a_task_and_a_job_fail_the_run() {
    let in_host = report(|sim| async move {
        sim.host("a").start(|| async { fail("in the host") });
        sleep(Duration::from_secs(60)).await;
        Ok(())
    });
    assert_contains(&in_host, &["in the host", "tests/sim/failures.rs"]);
    let in_task = report(|sim| async move {
        sim.host("a").start(|| async {
            windlass::spawn(async { fail("in the task") }).detach();
            sleep(Duration::MAX).await;
        });
        sleep(Duration::from_secs(60)).await;
        Ok(())
    });
    assert_contains(&in_task, &["in the task", "tests/sim/failures.rs"]);
    let in_job = report(|sim| async move {
        sim.host("a").start(|| async {
            windlass::spawn_blocking(|| fail("in the job")).await.unwrap();
        });
        sleep(Duration::from_secs(60)).await;
        Ok(())
    });
    assert_contains(&in_job, &["in the job", "tests/sim/failures.rs"]);
}

#[test]
fn a_deadlock_is_found_and_every_loop_dumped() {
    let report = report(|sim| async move {
        sim.host("a").start(|| async {
            let listener = TcpListener::bind("0.0.0.0:7000").await?;
            listener.accept().await.map(drop)
        });
        windlass::task::Builder::new()
            .name("stuck")
            .spawn(std::future::pending::<()>())
            .await?;
        Ok(())
    });
    assert_contains(
        &report,
        &["deadlock", "loop 0 on sim:", "'stuck'", "loop 1 on a:", "accept"],
    );
}

async fn count_up(shared: Rc<Cell<u64>>) {
    for own in 1.. {
        sleep(Duration::from_millis(100)).await;
        shared.set(own);
    }
}

/// Fails if the environment asks for it: run by [`the_printed_lines_replay_the_failure`] in a process of its own.
///
/// The client's counter is lost with its host's power, since it is in memory only.
#[test]
fn loses_a_counter_if_asked() {
    if std::env::var_os("WINDLASS_TEST_LOSE").is_none() {
        return;
    }
    sim::sweep(0..100, |sim| async move {
        let count = Rc::new(Cell::new(0u64));
        let total = sim.size("total", 10..=500);
        for name in ["a", "b", "c"] {
            let shared = count.clone();
            sim.host(name).start(move || count_up(shared.clone()));
        }
        sim.chaos(Chaos::only([
            FaultKind::Kill,
            FaultKind::Slow,
            FaultKind::Cut,
            FaultKind::Pause,
        ]));
        let mut highest = 0;
        for _ in 0..total {
            sleep(Duration::from_millis(100)).await;
            assert!(
                count.get() + 20 > highest,
                "the counter went back from {highest} to {}",
                count.get()
            );
            highest = highest.max(count.get());
        }
        Ok(())
    });
}

#[test]
fn the_printed_lines_replay_the_failure() {
    let run = |variables: &[(String, String)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["failures::loses_a_counter_if_asked", "--exact", "--nocapture"]);
        for name in ["SEED", "SEEDS", "SET", "JOBS", "CHECK", "SHRINK"] {
            command.env_remove(format!("WINDLASS_SIM_{name}"));
        }
        command.env("WINDLASS_TEST_LOSE", "1").envs(variables.iter().cloned());
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let first = run(&[]);
    let line = |start: &str| {
        let line = first.lines().find(|line| line.trim_start().starts_with(start));
        line.unwrap_or_else(|| panic!("{start:?} is missing:\n{first}"))
            .trim_start()
            .to_owned()
    };
    let failure = first.lines().find(|line| line.starts_with("sim: seed")).unwrap();
    let place = failure.rsplit_once('(').unwrap().1;
    for start in ["replay:", "shrunk:"] {
        let words = line(start);
        assert!(
            words.contains(" cargo test ") && words.contains("--test sim failures::loses_a_counter_if_asked"),
            "{words}"
        );
        let variables: Vec<(String, String)> = words
            .split_whitespace()
            .filter_map(|word| word.split_once('='))
            .filter(|(name, _)| name.starts_with("WINDLASS_SIM_"))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let again = run(&variables);
        let failure = again.lines().find(|line| line.starts_with("sim: seed")).unwrap();
        assert_eq!(failure.rsplit_once('(').unwrap().1, place, "{again}");
    }
    let shrunk = line("shrunk:");
    let episodes = shrunk
        .split([' ', ','])
        .find_map(|word| word.strip_prefix("episodes="))
        .unwrap();
    assert!(episodes.split('+').count() <= 2, "{shrunk}");
}

#[test]
fn calm_ends_every_fault() {
    sim::sweep(0..50, |sim| async move {
        for name in ["a", "b", "c"] {
            sim.host(name).start(|| async {
                let listener = TcpListener::bind("0.0.0.0:7000").await?;
                while let Ok((stream, _)) = listener.accept().await {
                    let _ = stream.write_all("hello").await.0;
                }
                std::io::Result::Ok(())
            });
        }
        sim.chaos(Chaos::swarm().lasting(Duration::from_secs(600)));
        sleep(Duration::from_secs(sim.size("seconds", 1..=60))).await;
        sim.calm();
        for name in ["a", "b", "c"] {
            let greeted = async {
                let stream = TcpStream::connect((name, 7000)).await?;
                stream.read_exact(vec![0; 5]).await.0
            };
            sim.within(Duration::from_secs(5), greeted).await?;
        }
        Ok(())
    });
}

#[test]
fn a_crashed_host_of_the_test_stays_down() {
    sim::sweep(0..20, |sim| async move {
        sim.host("a").start(std::future::pending::<()>);
        sim.crash("a", Crash::Process);
        sim.chaos(Chaos::only([FaultKind::Kill]).every(Duration::from_secs(1)));
        sleep(Duration::from_secs(60)).await;
        sim.calm();
        assert!(TcpStream::connect("a:7000").await.is_err());
        Ok(())
    });
}

#[test]
fn a_test_can_set_its_limits() {
    let hour = Duration::from_secs(3_600);
    let sleep_for_a_day = |limit| {
        sim::try_sweep(0..1, move |sim| async move {
            sim.time_limit(limit);
            sleep(24 * hour).await;
            Ok(())
        })
    };
    sleep_for_a_day(25 * hour).unwrap();
    let failed = sleep_for_a_day(20 * hour).unwrap_err();
    assert_contains(&failed.report, &["has not ended after 72000s of virtual time"]);
    let many_events = report(|sim| async move {
        sim.event_limit(100);
        for _ in 0..1_000 {
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    });
    assert_contains(&many_events, &["has not ended after 100 events"]);
}
