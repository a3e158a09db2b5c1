//! Looking out instead of sleeping, and waking in time: what it is worth, and who must not pay for it.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use windlass::net::TcpStream;
use windlass::time::sleep;

use crate::edges::with_std_peer;
use crate::support::{Random, assert_over, assert_reset, on_every_driver, on_every_kernel_driver, reset_on_close};

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

/// After a loop had every reason to look out, it only sleeps, for less than it would look out.
#[test]
fn short_timers_do_not_keep_it_on() {
    const SLEEPS: u64 = 1_000;
    on_every_kernel_driver(|case| {
        case.run(async {
            let (stream, peer) = with_std_peer();
            stream.set_nodelay(true).expect("nodelay");
            let answering = answering(peer);
            ask(&stream, 1_000).await;
            drop(stream);
            answering.join().expect("no panic");
            let looks = || {
                let counters = windlass::counters().driver;
                counters.enters + counters.spins
            };
            let before = looks();
            for _ in 0..SLEEPS {
                sleep(Duration::from_micros(40)).await;
            }
            let looks = looks() - before;
            // To sleep, and perhaps to look once more; and one lookout in vain. If it stayed on, it would look dozens of times
            // before each of them is over.
            assert!(looks <= 4 * SLEEPS, "{looks} looks for {SLEEPS} sleeps");
        });
    });
}

/// A loop with little to do sends at once what the kernel takes, also on a driver that otherwise hands sends over.
#[test]
fn what_is_sent_at_once_and_what_is_not_arrives_in_order() {
    on_every_kernel_driver(|case| {
        case.run(async {
            const ASKED: usize = 1_000;
            let (stream, mut peer) = with_std_peer();
            stream.set_nodelay(true).expect("nodelay");
            let reading = std::thread::spawn(move || {
                for _ in 0..ASKED {
                    let mut byte = [0];
                    peer.read_exact(&mut byte).expect("read");
                    peer.write_all(&byte).expect("write");
                }
                // Until there is no room left.
                std::thread::sleep(Duration::from_millis(20));
                let mut rest = Vec::new();
                peer.read_to_end(&mut rest).expect("read");
                rest
            });
            ask(&stream, ASKED).await;
            let mut random = Random::new(5);
            let bytes: Vec<u8> = (0..8_000_000).map(|_| random.below(256) as u8).collect();
            // Much more than fits: the beginning goes at once, the rest when there is room.
            let sent = stream.write_all(bytes).await;
            drop(stream);
            assert!(reading.join().expect("no panic") == sent.1, "these are other bytes");
            sent.0.expect("write");
        });
    });
}

/// Whether a socket waits is a matter of its description, which others may share and change.
#[test]
#[cfg(unix)]
fn a_send_at_once_does_not_block_the_loop_whatever_the_socket_says() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (stream, mut peer) = with_std_peer();
            socket2::SockRef::from(&stream)
                .set_nonblocking(false)
                .expect("a flag of the description");
            // Reads when the loop has gone on for a while, which it would not do in a send that blocks.
            let (go_on, has_gone_on) = std::sync::mpsc::channel::<()>();
            let reading = std::thread::spawn(move || {
                let is_blocked = has_gone_on.recv_timeout(Duration::from_secs(20)).is_err();
                assert!(!is_blocked, "the loop stands still");
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
                            go_on.send(()).expect("it waits");
                        }
                    }
                }
            });
            // More than fits: it is not done before somebody reads.
            stream.write_all(vec![7; 8_000_000]).await.0.expect("write");
            assert!(ticks.get() >= 3, "{} ticks", ticks.get());
            ticking.cancel();
            drop(stream);
            assert_eq!(reading.join().expect("no panic"), 8_000_000);
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
                let done = windlass::time::timeout(Duration::from_secs(60), job).await;
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
                    let reading = windlass::time::timeout(Duration::from_secs(60), stream.read([0u8; 8]));
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
