//! Busy-polling and early timer wake-up: no event is missed, no timer fires early, and idle loops do not pay for it.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use windlass::net::TcpStream;
use windlass::time::sleep;

use crate::readiness::with_std_peer;
use crate::support::{Random, assert_over, assert_reset, on_every_driver, on_every_kernel_driver, reset_on_close};

/// Round trips to a thread that answers at once.
async fn round_trips(stream: &TcpStream, times: usize) {
    for _ in 0..times {
        stream.write_all([7u8]).await.0.expect("write");
        stream.read_exact([0u8]).await.0.expect("read");
    }
}

/// A thread that echoes every byte until the stream ends.
fn answering(mut peer: std::net::TcpStream) -> std::thread::JoinHandle<()> {
    peer.set_nodelay(true).expect("nodelay");
    std::thread::spawn(move || {
        let mut byte = [0];
        while let Ok(1) = peer.read(&mut byte) {
            peer.write_all(&byte).expect("write");
        }
    })
}

/// After traffic that turned busy-polling on, the loop only sleeps, each time for less than a poll window.
#[test]
fn short_timers_do_not_keep_busy_polling_on() {
    const SLEEPS: u64 = 1_000;
    on_every_kernel_driver(|case| {
        case.run(async {
            let (stream, peer) = with_std_peer();
            stream.set_nodelay(true).expect("nodelay");
            let answering = answering(peer);
            round_trips(&stream, 1_000).await;
            drop(stream);
            answering.join().expect("no panic");
            let polls = || {
                let counters = windlass::counters().driver;
                counters.enters + counters.spins
            };
            let before = polls();
            for _ in 0..SLEEPS {
                sleep(Duration::from_micros(40)).await;
            }
            let polls = polls() - before;
            // One wait per sleep, perhaps one more poll, and one poll window that finds nothing. If busy-polling stayed
            // on, the loop would poll dozens of times per sleep.
            assert!(polls <= 4 * SLEEPS, "{polls} polls for {SLEEPS} sleeps");
        });
    });
}

/// A loop with few ready tasks sends inline, also on a driver that otherwise submits sends in a batch.
#[test]
fn inline_and_queued_sends_arrive_in_order() {
    on_every_kernel_driver(|case| {
        case.run(async {
            const ROUND_TRIPS: usize = 1_000;
            let (stream, mut peer) = with_std_peer();
            stream.set_nodelay(true).expect("nodelay");
            let reading = std::thread::spawn(move || {
                for _ in 0..ROUND_TRIPS {
                    let mut byte = [0];
                    peer.read_exact(&mut byte).expect("read");
                    peer.write_all(&byte).expect("write");
                }
                // Until the socket buffers are full.
                std::thread::sleep(Duration::from_millis(20));
                let mut rest = Vec::new();
                peer.read_to_end(&mut rest).expect("read");
                rest
            });
            round_trips(&stream, ROUND_TRIPS).await;
            let mut random = Random::new(5);
            let bytes: Vec<u8> = (0..8_000_000).map(|_| random.below(256) as u8).collect();
            // Much more than the socket buffers hold: the first part is sent inline, the rest when there is room.
            let sent = stream.write_all(bytes).await;
            drop(stream);
            assert!(reading.join().expect("no panic") == sent.1, "other bytes arrived");
            sent.0.expect("write");
        });
    });
}

/// O_NONBLOCK belongs to the open file description, which other processes may share and change.
#[test]
#[cfg(unix)]
fn an_inline_send_does_not_block_on_a_blocking_socket() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (stream, mut peer) = with_std_peer();
            socket2::SockRef::from(&stream)
                .set_nonblocking(false)
                .expect("set O_NONBLOCK");
            // The thread reads only after the loop has made progress, which a blocking send would prevent.
            let (make_progress, has_progressed) = std::sync::mpsc::channel::<()>();
            let reading = std::thread::spawn(move || {
                let is_blocked = has_progressed.recv_timeout(Duration::from_secs(20)).is_err();
                assert!(!is_blocked, "the loop is blocked");
                std::io::copy(&mut peer, &mut std::io::sink()).expect("read")
            });
            let ticks = std::rc::Rc::new(std::cell::Cell::new(0));
            let ticking = windlass::spawn({
                let ticks = ticks.clone();
                async move {
                    loop {
                        sleep(Duration::from_millis(5)).await;
                        ticks.set(ticks.get() + 1);
                        if ticks.get() == 3 {
                            make_progress.send(()).expect("the thread waits");
                        }
                    }
                }
            });
            // More than the socket buffers hold: the write completes only when the peer reads.
            stream.write_all(vec![7; 8_000_000]).await.0.expect("write");
            assert!(ticks.get() >= 3, "{} ticks", ticks.get());
            ticking.cancel();
            drop(stream);
            assert_eq!(reading.join().expect("no panic"), 8_000_000);
        });
    });
}

/// Neither sleeps with an early wake-up nor those that poll until the deadline.
#[test]
fn precise_timers_do_not_fire_early() {
    on_every_driver(|case| {
        let builder = case.builder().precise_timers(true);
        let run = builder.build().expect("a loop").run_until_complete(async {
            let mut random = Random::new(3);
            for _ in 0..if cfg!(miri) { 3 } else { 200 } {
                let length = Duration::from_nanos(random.below(700_000));
                let begin = windlass::time::Instant::now();
                sleep(length).await;
                assert!(begin.elapsed() >= length, "{:?} instead of {length:?}", begin.elapsed());
            }
        });
        run.expect("the loop runs");
    });
}

/// A busy-polling loop sees wake-ups from other threads as a sleeping one does.
#[test]
fn no_wake_from_another_thread_is_missed() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for round in 0..2_000 {
                // The job ends before or after the loop is asleep.
                let job = windlass::spawn_blocking(move || {
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_micros(round % 80) {
                        std::hint::spin_loop();
                    }
                });
                let done = windlass::time::timeout(Duration::from_secs(60), job).await;
                done.expect("the loop is woken").expect("no panic");
            }
        });
    });
}

/// The loop lowers the thread's timer slack for a sleep and restores it afterwards.
#[test]
#[cfg(target_os = "linux")]
fn timer_slack_is_restored() {
    // SAFETY: these calls touch no memory.
    let slack = || unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    on_every_kernel_driver(move |case| {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 70_000 as libc::c_ulong) };
        case.run(async move {
            for micros in [100, 300, 1_300] {
                sleep(Duration::from_micros(micros)).await;
                assert_eq!(slack(), 70_000);
            }
        });
    });
}

/// The read before emptied the socket, so this receive waits for readiness before it is tried.
#[test]
fn eof_and_reset_after_the_last_byte_are_reported() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for waits_first in [false, true] {
                for resets in [false, true] {
                    let (stream, mut peer) = with_std_peer();
                    for _ in 0..3 {
                        peer.write_all(&[7]).expect("write");
                        assert_eq!(stream.read([0u8; 8]).await.0.expect("read"), 1);
                    }
                    let end = move || {
                        if resets {
                            reset_on_close(&peer);
                        }
                        drop(peer);
                    };
                    let ending = match waits_first {
                        false => {
                            end();
                            None
                        }
                        true => Some(std::thread::spawn(move || {
                            std::thread::sleep(Duration::from_millis(5));
                            end();
                        })),
                    };
                    let reading = windlass::time::timeout(Duration::from_secs(60), stream.read([0u8; 8]));
                    let (result, _) = reading.await.expect("the end is reported");
                    match resets {
                        true => assert_reset(result),
                        false => assert_over(result),
                    }
                    if let Some(ending) = ending {
                        ending.join().expect("no panic");
                    }
                }
            }
        });
    });
}
