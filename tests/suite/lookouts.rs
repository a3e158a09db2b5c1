//! Looking out instead of sleeping, and waking in time: what it is worth, and who must not pay for it.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use windlass::Builder;
use windlass::net::TcpStream;
use windlass::time::sleep;

use crate::child::{UNDISTURBED, in_own_process};
use crate::edges::with_std_peer;
use crate::support::{
    Random, assert_over, assert_reset, on_every_driver, on_every_kernel_driver, reset_on_close, thread_time,
};

/// Asks a thread, which answers at once.
async fn ask(stream: &TcpStream, times: usize) {
    for _ in 0..times {
        stream.write_all([7u8]).await.0.expect("write");
        stream.read_exact([0u8]).await.0.expect("read");
    }
}

/// A thread that answers every byte until the stream ends.
fn answering(mut peer: std::net::TcpStream) -> std::thread::JoinHandle<()> {
    peer.set_nodelay(true).expect("nodelay");
    std::thread::spawn(move || {
        let mut byte = [0];
        while let Ok(1) = peer.read(&mut byte) {
            peer.write_all(&byte).expect("write");
        }
    })
}

/// The processor time that a loop takes for sleeps of 40 us, after it had every reason to look out.
fn time_for_short_sleeps(builder: Builder) -> Duration {
    let event_loop = builder.build().expect("the driver was tried before");
    let run = event_loop.run_until_complete(async {
        let (stream, peer) = with_std_peer();
        stream.set_nodelay(true).expect("nodelay");
        let answering = answering(peer);
        ask(&stream, 1_000).await;
        drop(stream);
        answering.join().expect("no panic");
        let before = thread_time();
        for _ in 0..1_000 {
            sleep(Duration::from_micros(40)).await;
        }
        thread_time() - before
    });
    run.expect("the loop runs")
}

#[test]
fn short_timers_do_not_keep_it_on() {
    in_own_process("lookouts::short_timers_do_not_keep_it_on", &UNDISTURBED, || {
        on_every_kernel_driver(|case| {
            let least = |lookout: fn(Builder) -> Builder| {
                let times = (0..5).map(|_| time_for_short_sleeps(lookout(case.builder())));
                times.min().expect("some")
            };
            let sleeping = least(|builder| builder.lookout(Duration::ZERO));
            let looking = least(|builder| builder);
            // If it stayed on, each would cost its whole 40 us.
            let most = sleeping.mul_f64(1.25) + Duration::from_millis(3);
            assert!(looking <= most, "{looking:?} with a lookout, {sleeping:?} without");
        });
    });
}

/// Neither those that are woken early, nor those that look out for the rest.
#[test]
fn precise_sleeps_do_not_end_early() {
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

/// A loop that looks out hears of other threads as one that sleeps does.
#[test]
fn nothing_that_other_threads_send_is_missed() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for round in 0..2_000 {
                // Now before the loop is asleep, now after.
                let job = windlass::spawn_blocking(move || {
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_micros(round % 80) {
                        std::hint::spin_loop();
                    }
                });
                let done = windlass::time::timeout(Duration::from_secs(10), job).await;
                done.expect("it is heard").expect("no panic");
            }
        });
    });
}

/// The kernel's leave to put this thread's timers off is taken back for a sleep, and given again.
#[test]
#[cfg(target_os = "linux")]
fn the_slack_of_timers_is_as_it_was() {
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

/// A receive that waits before it is tried, since the one before had emptied the socket.
#[test]
fn the_end_is_heard_after_the_last_byte() {
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
                    let reading = windlass::time::timeout(Duration::from_secs(5), stream.read([0u8; 8]));
                    let (result, _) = reading.await.expect("it is heard");
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
