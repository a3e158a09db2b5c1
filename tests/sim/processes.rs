//! Crashes, restarts, pauses, signals, clocks, blocking work, and how a run ends.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::signal::{SignalKind, signal};
use windlass::sim::{self, Crash, Sim};
use windlass::task::yield_now;
use windlass::time::{Instant, sleep, timeout, wall_now};

use crate::{MS, SEC, TestResult, assert_kind, connect, echo, failure_of, ping, plain, seeds, start_echo};

#[test]
fn a_killed_process_closes_its_connections() {
    seeds(|sim| async move {
        sim.links(plain());
        start_echo(&sim, "server");
        sleep(MS).await;
        let idle = connect("server").await?;
        ping(&idle, "ping").await?;
        sim.crash("server", Crash::Process);
        assert!(idle.read_managed().await?.is_empty());
        assert_kind(connect("server").await, ErrorKind::ConnectionRefused);
        sim.restart("server");
        sleep(10 * MS).await;
        ping(&connect("server").await?, "again").await?;
        Ok(())
    });
}

#[test]
fn a_killed_process_with_unread_bytes_resets() {
    seeds(|sim| async move {
        sim.links(plain());
        sim.host("server").start(|| async {
            let listener = TcpListener::bind("0.0.0.0:7000").await?;
            let _stream = listener.accept().await?;
            std::future::pending::<()>().await;
            Ok::<(), std::io::Error>(())
        });
        sleep(MS).await;
        let stream = connect("server").await?;
        stream.write_all("unread").await.0?;
        sleep(10 * MS).await;
        sim.crash("server", Crash::Process);
        assert_kind(stream.read_managed().await, ErrorKind::ConnectionReset);
        Ok(())
    });
}

#[test]
fn a_host_without_power_is_silent_and_forgets() {
    seeds(|sim| async move {
        sim.links(plain());
        start_echo(&sim, "server");
        sleep(MS).await;
        let stream = connect("server").await?;
        ping(&stream, "ping").await?;
        sim.crash("server", Crash::Power);
        assert!(timeout(60 * SEC, stream.read_managed()).await.is_err());
        sim.restart("server");
        // Half-open: the client learns of it when it sends.
        assert!(timeout(60 * SEC, stream.read_managed()).await.is_err());
        stream.write_all("anyone?").await.0?;
        assert_kind(stream.read_managed().await, ErrorKind::ConnectionReset);
        ping(&connect("server").await?, "again").await?;
        Ok(())
    });
}

#[test]
fn a_crash_runs_no_cleanup_and_destructors_reach_nobody() {
    struct SendOnDrop(Option<TcpStream>, Rc<Cell<u32>>);
    impl Drop for SendOnDrop {
        fn drop(&mut self) {
            self.1.set(self.1.get() + 1);
            drop(self.0.take());
        }
    }
    seeds(|sim| async move {
        let drops = Rc::new(Cell::new(0));
        let counted = drops.clone();
        sim.host("server").start(move || {
            let counted = counted.clone();
            async move {
                let listener = TcpListener::bind("0.0.0.0:7000").await?;
                let (stream, _) = listener.accept().await?;
                let _kept = SendOnDrop(Some(stream), counted);
                std::future::pending::<()>().await;
                Ok::<(), std::io::Error>(())
            }
        });
        sleep(MS).await;
        let stream = connect("server").await?;
        sleep(10 * MS).await;
        sim.crash("server", Crash::Power);
        yield_now().await;
        sleep(MS).await;
        assert_eq!(drops.get(), 1);
        // Not even a FIN.
        assert!(timeout(60 * SEC, stream.read_managed()).await.is_err());
        Ok(())
    });
}

/// Two restarts in one turn, such as that of `calm` and one of the test's own, start one process; after a crash, none.
#[test]
fn a_host_has_one_process() {
    seeds(|sim| async move {
        let starts = Rc::new(Cell::new(0));
        let counted = starts.clone();
        sim.host("server").start(move || {
            counted.set(counted.get() + 1);
            std::future::pending::<()>()
        });
        sleep(MS).await;
        assert_eq!(starts.get(), 1);
        sim.crash("server", Crash::Power);
        sim.restart("server");
        sim.restart("server");
        sleep(MS).await;
        assert_eq!(starts.get(), 2);
        sim.restart("server");
        sim.crash("server", Crash::Process);
        sleep(MS).await;
        assert_eq!(starts.get(), 2);
        Ok(())
    });
}

#[test]
fn a_paused_process_answers_later() {
    seeds(|sim| async move {
        sim.links(plain());
        start_echo(&sim, "server");
        sleep(MS).await;
        let stream = connect("server").await?;
        sim.pause("server");
        sim.after(7 * SEC, |sim| sim.resume("server"));
        let begin = Instant::now();
        // Its kernel still accepts bytes and connections.
        let _other = connect("server").await?;
        assert!(begin.elapsed() < SEC);
        ping(&stream, "ping").await?;
        assert!(begin.elapsed() >= 7 * SEC);
        assert!(begin.elapsed() < 8 * SEC);
        Ok(())
    });
}

#[test]
fn a_signal_is_heard_or_ends_the_process() {
    seeds(|sim| async move {
        let heard = Rc::new(Cell::new(0));
        let counted = heard.clone();
        sim.host("listening").start(move || {
            let counted = counted.clone();
            async move {
                let mut signals = signal(SignalKind::terminate())?;
                loop {
                    signals.recv().await;
                    counted.set(counted.get() + 1);
                }
                #[allow(unreachable_code)]
                Ok::<(), std::io::Error>(())
            }
        });
        start_echo(&sim, "deaf");
        sleep(MS).await;
        for number in 1..=3 {
            sim.signal("listening", SignalKind::terminate());
            sleep(MS).await;
            assert_eq!(heard.get(), number);
        }
        let stream = connect("deaf").await?;
        ping(&stream, "ping").await?;
        sim.signal("deaf", SignalKind::window_change());
        sleep(10 * MS).await;
        ping(&stream, "ping").await?;
        sim.signal("deaf", SignalKind::terminate());
        assert!(stream.read_managed().await?.is_empty());
        Ok(())
    });
}

#[test]
fn clocks_drift_and_jump() {
    seeds(|sim| async move {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let times = seen.clone();
        sim.host("fast").drift_ppm(1_000).wall_ahead(60 * SEC).start(move || {
            let times = times.clone();
            async move {
                let begin = Instant::now();
                for _ in 0..1_000 {
                    times.borrow_mut().push((begin.elapsed(), wall_now()));
                    sleep(100 * SEC).await;
                }
            }
        });
        let begin = wall_now();
        sleep(50 * SEC).await;
        sim.jump_wall("fast", -3_600.0);
        sleep(1_000 * SEC).await;
        let seen = seen.borrow();
        // 1,050 s are 1,051.05 s there.
        assert_eq!(seen.len(), 11);
        assert!(seen.iter().is_sorted_by_key(|(elapsed, _)| *elapsed));
        assert!(seen[0].1 >= begin + 60 * SEC && seen[0].1 < begin + 61 * SEC);
        assert!(seen[1].1 < begin - 3_300 * SEC, "the wall clock has gone back");
        Ok(())
    });
}

#[test]
fn blocking_work_takes_virtual_time_and_is_deterministic() {
    seeds(|sim| async move {
        let begin = Instant::now();
        let jobs: Vec<_> = (0..20).map(|number| windlass::spawn_blocking(move || number)).collect();
        let mut sum = 0;
        for job in jobs {
            sum += job.await?;
        }
        assert_eq!(sum, 190);
        let took = begin.elapsed();
        assert!(took > Duration::ZERO && took < SEC, "{took:?}");
        // Time passes meanwhile.
        let job = windlass::spawn_blocking(|| std::thread::sleep(MS));
        assert!(timeout(10 * SEC, job).await.is_ok());
        assert_eq!(sim.seed(), sim.seed());
        Ok(())
    });
}

#[test]
fn yielding_takes_time() {
    seeds(|_| async move {
        let deadline = Instant::now() + MS;
        while Instant::now() < deadline {
            yield_now().await;
        }
        Ok(())
    });
}

#[test]
fn a_host_can_have_several_loops() {
    seeds(|sim| async move {
        sim.host("server").start_loops(4, |_| async {
            let listener = TcpListener::builder().reuse_port(true).listen("0.0.0.0:7000").await?;
            loop {
                let (stream, _) = listener.accept().await?;
                windlass::spawn(async move { stream.write_all("hello").await.0 });
            }
            #[allow(unreachable_code)]
            Ok::<(), std::io::Error>(())
        });
        sleep(MS).await;
        for _ in 0..20 {
            let stream = connect("server").await?;
            let (result, bytes) = stream.read_exact([0; 5]).await;
            result?;
            assert_eq!(&bytes, b"hello");
        }
        Ok(())
    });
}

#[test]
fn the_same_seed_is_the_same_run() {
    async fn test(sim: Sim) -> TestResult {
        for name in ["a", "b", "c"] {
            sim.host(name).start(echo);
        }
        sim.links(plain().loss(0.05));
        sleep(MS).await;
        for round in 0..sim.size("rounds", 1..=20) {
            let name = ["a", "b", "c"][round as usize % 3];
            ping(&connect(name).await?, "ping").await?;
        }
        Ok(())
    }
    let hashes: Vec<u64> = (0..20).map(|seed| sim::run(seed, test).hash).collect();
    let again: Vec<u64> = (0..20).map(|seed| sim::run(seed, test).hash).collect();
    assert_eq!(hashes, again);
    let mut different = hashes.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 20);
}

#[test]
fn a_deadlock_is_reported_with_the_tasks() {
    let text = failure_of(|sim| async move {
        sim.host("server")
            .start(|| async { std::future::pending::<()>().await });
        let listener = TcpListener::bind("0.0.0.0:7000").await?;
        listener.accept().await?;
        Ok(())
    });
    assert!(text.contains("deadlock"), "{text}");
    assert!(text.contains("on server"), "{text}");
}

#[test]
fn a_run_that_does_not_end_is_reported() {
    let text = failure_of(|_| async move {
        loop {
            sleep(SEC).await;
        }
    });
    assert!(text.contains("has not ended"), "{text}");
}

#[test]
fn a_panic_or_an_error_fails_the_run() {
    let text = failure_of(|sim| async move {
        sim.host("server").start(|| async {
            sleep(SEC).await;
            assert!(windlass::time::wall_now() < std::time::UNIX_EPOCH, "something is wrong");
        });
        sleep(10 * SEC).await;
        Ok(())
    });
    assert!(text.contains("something is wrong"), "{text}");
    let text = failure_of(|sim| async move {
        sim.host("server").start(|| async { Err::<(), _>("no disk") });
        sleep(10 * SEC).await;
        Ok(())
    });
    assert!(text.contains("no disk"), "{text}");
    seeds(|sim| async move {
        sim.host("server")
            .may_fail()
            .start(|| async { Err::<(), _>("no disk") });
        sleep(10 * SEC).await;
        Ok(())
    });
}

#[test]
fn a_foreign_thread_is_reported() {
    let text = failure_of(|sim| async move {
        let waker = std::future::poll_fn(|cx| std::task::Poll::Ready(cx.waker().clone())).await;
        sim.after(SEC, |_| {
            let stranger = std::thread::Builder::new().name("a stranger".to_owned());
            let stranger = stranger.spawn(move || waker.wake()).expect("a thread");
            stranger.join().expect("no panic");
        });
        sleep(10 * SEC).await;
        Ok(())
    });
    assert!(text.contains("a stranger"), "{text}");
}

#[test]
fn a_missing_host_is_a_panic() {
    let text = failure_of(|sim| async move {
        sim.crash("nobody", Crash::Process);
        Ok(())
    });
    assert!(text.contains("there is no host 'nobody'"), "{text}");
    let text = failure_of(|sim| async move {
        let late = async {
            sleep(10 * SEC).await;
            Ok::<(), std::io::Error>(())
        };
        sim.within(SEC, late).await
    });
    assert!(text.contains("not done within"), "{text}");
}
