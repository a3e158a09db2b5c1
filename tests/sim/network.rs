//! TCP, UDP and names between hosts.

use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{KeepAlive, TcpListener, TcpStream, UdpSocket, lookup_host};
use windlass::sim::{Crash, Dist, Link, Lookup};
use windlass::time::{Instant, sleep, timeout};

use crate::{MS, SEC, assert_kind, connect, ping, plain, seeds, start_echo};

#[test]
fn bytes_take_the_latency_of_the_link() {
    seeds(|sim| async move {
        sim.links(plain());
        start_echo(&sim, "server");
        sleep(MS).await;
        let begin = Instant::now();
        let stream = connect("server").await?;
        let connected = begin.elapsed();
        assert!(connected >= 2 * MS && connected < 4 * MS, "{connected:?}");
        let begin = Instant::now();
        ping(&stream, "ping").await?;
        let took = begin.elapsed();
        assert!(took >= 2 * MS && took < 3 * MS, "{took:?}");
        Ok(())
    });
}

#[test]
fn a_link_carries_its_bandwidth() {
    seeds(|sim| async move {
        sim.links(plain().bandwidth(1_000_000));
        start_echo(&sim, "server");
        sleep(MS).await;
        let stream = connect("server").await?;
        let begin = Instant::now();
        let text = vec![7; 100_000];
        let (sent, received) = windlass::task::join((
            async { stream.write_all(text).await.0 },
            stream.read_exact(vec![0; 100_000]),
        ))
        .await;
        sent?;
        received.0?;
        let took = begin.elapsed();
        assert!(took >= 100 * MS && took < 400 * MS, "{took:?}");
        Ok(())
    });
}

#[test]
fn reads_and_writes_are_cut_short_by_seed() {
    seeds(|sim| async move {
        sim.links(plain().short_counts(0.5));
        start_echo(&sim, "server");
        sleep(MS).await;
        let stream = connect("server").await?;
        let mut short = 0;
        for _ in 0..50 {
            let (result, _) = stream.write(vec![1; 100]).await;
            let sent = result?;
            short += u32::from(sent < 100);
            stream.read_exact(vec![0; sent]).await.0?;
        }
        assert!(short > 5, "{short}");
        Ok(())
    });
}

#[test]
fn loss_is_a_delay_for_streams_and_a_loss_for_datagrams() {
    seeds(|sim| async move {
        sim.links(plain().loss(0.2));
        start_echo(&sim, "server");
        sim.host("udp").start(|| async {
            let socket = UdpSocket::bind("0.0.0.0:9000").await?;
            loop {
                let (result, bytes) = socket.recv_from(vec![0; 64]).await;
                let (count, from) = result?;
                socket.send_to(bytes[..count].to_vec(), from).await.0?;
            }
            #[allow(unreachable_code)]
            Ok::<(), std::io::Error>(())
        });
        sleep(MS).await;
        let stream = connect("server").await?;
        let begin = Instant::now();
        for _ in 0..50 {
            ping(&stream, "ping").await?;
        }
        assert!(begin.elapsed() >= 300 * MS, "{:?}", begin.elapsed());

        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        socket.connect("udp:9000").await?;
        let mut lost = 0;
        for _ in 0..50 {
            socket.send("x").await.0?;
            lost += u32::from(timeout(100 * MS, socket.recv([0; 8])).await.is_err());
        }
        assert!(lost > 0 && lost < 50, "{lost}");
        Ok(())
    });
}

#[test]
fn datagrams_are_duplicated_and_reordered() {
    let report = seeds(|sim| async move {
        sim.links(plain().duplicate(0.2).reorder(0.2));
        let received = Rc::new(std::cell::RefCell::new(Vec::new()));
        let seen = received.clone();
        sim.host("server").start(move || {
            let seen = seen.clone();
            async move {
                let socket = UdpSocket::bind("0.0.0.0:9000").await?;
                loop {
                    let (result, bytes) = socket.recv_from([0; 8]).await;
                    result?;
                    seen.borrow_mut().push(bytes[0]);
                }
                #[allow(unreachable_code)]
                Ok::<(), std::io::Error>(())
            }
        });
        sleep(MS).await;
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        for number in 0..100u8 {
            socket.send_to([number], "server:9000").await.0?;
            sleep(MS / 2).await;
        }
        sleep(SEC).await;
        let received = received.borrow();
        sim.sometimes("duplicated", received.len() > 100);
        sim.sometimes("reordered", !received.is_sorted());
        let mut all = received.clone();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 100);
        Ok(())
    });
    assert!(report.never_met().is_empty(), "{report}");
}

#[test]
fn a_datagram_that_nobody_receives_is_refused_for_a_connected_socket() {
    seeds(|sim| async move {
        start_echo(&sim, "server");
        sleep(MS).await;
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        socket.send_to("x", "server:9000").await.0?;
        assert!(timeout(SEC, socket.recv([0; 8])).await.is_err());
        socket.connect("server:9000").await?;
        socket.send("x").await.0?;
        assert_kind(socket.recv([0; 8]).await.0, ErrorKind::ConnectionRefused);
        // A host without power refuses nothing.
        sim.crash("server", Crash::Power);
        socket.send("x").await.0?;
        assert!(timeout(SEC, socket.recv([0; 8])).await.is_err());
        Ok(())
    });
}

#[test]
fn a_full_datagram_queue_drops() {
    seeds(|sim| async move {
        sim.links(plain());
        let count = Rc::new(Cell::new(0));
        let counted = count.clone();
        sim.host("server").start(move || {
            let counted = counted.clone();
            async move {
                let socket = UdpSocket::bind("0.0.0.0:9000").await?;
                sleep(10 * SEC).await;
                while timeout(SEC, socket.recv(vec![0; 60_000])).await.is_ok() {
                    counted.set(counted.get() + 1);
                }
                Ok::<(), std::io::Error>(())
            }
        });
        sleep(MS).await;
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        for _ in 0..20 {
            socket.send_to(vec![1; 50_000], "server:9000").await.0?;
        }
        sleep(20 * SEC).await;
        assert_eq!(count.get(), 5);
        Ok(())
    });
}

#[test]
fn nobody_listens() {
    seeds(|sim| async move {
        sim.links(plain());
        start_echo(&sim, "server");
        sleep(MS).await;
        let begin = Instant::now();
        assert_kind(TcpStream::connect("server:1").await, ErrorKind::ConnectionRefused);
        assert!(begin.elapsed() < SEC);
        assert_kind(TcpStream::connect("10.9.9.9:1").await, ErrorKind::HostUnreachable);
        Ok(())
    });
}

#[test]
fn requests_to_a_dead_host_are_sent_again_and_time_out() {
    seeds(|sim| async move {
        sim.links(plain());
        start_echo(&sim, "server");
        sleep(MS).await;
        sim.crash("server", Crash::Power);
        let begin = Instant::now();
        let addr = lookup_host("server:7000")
            .await?
            .into_iter()
            .find(|addr| addr.is_ipv4());
        assert_kind(TcpStream::connect(addr.expect("an address")).await, ErrorKind::TimedOut);
        let took = begin.elapsed();
        assert!(took >= 127 * SEC && took < 128 * SEC, "{took:?}");
        Ok(())
    });
}

#[test]
fn a_request_arrives_after_the_cut() {
    seeds(|sim| async move {
        sim.links(plain());
        start_echo(&sim, "server");
        sleep(MS).await;
        sim.cut(["sim"], ["server"]);
        sim.after(2 * SEC, |sim| sim.heal());
        let addr = lookup_host("server:7000")
            .await?
            .into_iter()
            .find(|addr| addr.is_ipv4());
        let begin = Instant::now();
        let stream = TcpStream::connect(addr.expect("an address")).await?;
        let took = begin.elapsed();
        // Sent after 0, 1 and 3 seconds.
        assert!(took >= 3 * SEC && took < 4 * SEC, "{took:?}");
        ping(&stream, "ping").await?;
        Ok(())
    });
}

#[test]
fn a_full_backlog_delays_a_connection() {
    seeds(|sim| async move {
        sim.links(plain());
        sim.host("server").start(|| async {
            let listener = TcpListener::builder().backlog(0).listen("0.0.0.0:7000").await?;
            sleep(10 * SEC).await;
            let mut streams = Vec::new();
            loop {
                streams.push(listener.accept().await?);
            }
            #[allow(unreachable_code)]
            Ok::<(), std::io::Error>(())
        });
        sleep(MS).await;
        let addr = lookup_host("server:7000")
            .await?
            .into_iter()
            .find(|addr| addr.is_ipv4());
        let addr = addr.expect("an address");
        let _first = TcpStream::connect(addr).await?;
        sleep(10 * MS).await;
        let begin = Instant::now();
        let _second = TcpStream::connect(addr).await?;
        let took = begin.elapsed();
        assert!(took >= 10 * SEC && took < 20 * SEC, "{took:?}");
        Ok(())
    });
}

#[test]
fn a_full_backlog_refuses_if_asked_to() {
    seeds(|sim| async move {
        sim.links(plain());
        sim.host("server").abort_on_overflow().start(|| async {
            let _listener = TcpListener::builder().backlog(0).listen("0.0.0.0:7000").await?;
            std::future::pending::<()>().await;
            Ok::<(), std::io::Error>(())
        });
        sleep(MS).await;
        let _first = connect("server").await?;
        sleep(10 * MS).await;
        assert_kind(connect("server").await, ErrorKind::ConnectionRefused);
        Ok(())
    });
}

#[test]
fn a_cut_stalls_a_connection_until_it_is_healed() {
    seeds(|sim| async move {
        sim.links(plain());
        start_echo(&sim, "server");
        sleep(MS).await;
        let stream = connect("server").await?;
        ping(&stream, "one").await?;
        sim.cut(["sim"], ["server"]);
        sim.after(5 * SEC, |sim| sim.heal());
        let begin = Instant::now();
        ping(&stream, "two").await?;
        let took = begin.elapsed();
        // Sent again after 0.2, 0.6, 1.4, 3, 6.2 seconds.
        assert!(took >= 5 * SEC && took < 8 * SEC, "{took:?}");
        Ok(())
    });
}

#[test]
fn a_cut_that_lasts_times_out() {
    seeds(|sim| async move {
        sim.links(plain());
        sim.tcp_timeout(30 * SEC);
        start_echo(&sim, "server");
        sleep(MS).await;
        for one_way in [false, true] {
            let stream = connect("server").await?;
            ping(&stream, "one").await?;
            match one_way {
                // Only the acknowledgements are lost.
                true => sim.cut_one_way(["server"], ["sim"]),
                false => sim.cut(["sim"], ["server"]),
            }
            stream.write_all("two").await.0?;
            let begin = Instant::now();
            assert_kind(stream.read_managed().await, ErrorKind::TimedOut);
            let took = begin.elapsed();
            assert!(took >= 30 * SEC && took < 120 * SEC, "{took:?}");
            sim.heal();
        }
        Ok(())
    });
}

#[test]
fn keep_alive_finds_a_dead_peer() {
    seeds(|sim| async move {
        sim.links(plain());
        start_echo(&sim, "server");
        sleep(MS).await;
        let stream = connect("server").await?;
        let probing = KeepAlive {
            idle: Some(10 * SEC),
            interval: Some(SEC),
            retries: Some(3),
        };
        stream.set_keepalive(Some(probing))?;
        // A peer that answers is no dead one.
        assert!(timeout(100 * SEC, stream.read_managed()).await.is_err());
        sim.cut(["sim"], ["server"]);
        let begin = Instant::now();
        assert_kind(stream.read_managed().await, ErrorKind::TimedOut);
        let took = begin.elapsed();
        assert!(took >= 3 * SEC && took < 15 * SEC, "{took:?}");
        Ok(())
    });
}

#[test]
fn held_bytes_arrive_after_the_release() {
    seeds(|sim| async move {
        sim.links(plain());
        start_echo(&sim, "server");
        sleep(MS).await;
        let stream = connect("server").await?;
        ping(&stream, "one").await?;
        sim.hold(["sim"], ["server"]);
        sim.after(SEC, |sim| sim.release(["sim"], ["server"]));
        let begin = Instant::now();
        ping(&stream, "two").await?;
        let took = begin.elapsed();
        assert!(took >= SEC && took < SEC + 10 * MS, "{took:?}");
        sim.slow(["sim"], ["server"], 100.0);
        let begin = Instant::now();
        ping(&stream, "three").await?;
        assert!(begin.elapsed() >= 200 * MS, "{:?}", begin.elapsed());
        Ok(())
    });
}

#[test]
fn a_reset_reaches_both_ends() {
    seeds(|sim| async move {
        let error = Rc::new(Cell::new(None));
        let seen = error.clone();
        sim.host("server").start(move || {
            let seen = seen.clone();
            async move {
                let listener = TcpListener::bind("0.0.0.0:7000").await?;
                let (stream, _) = listener.accept().await?;
                seen.set(stream.read_managed().await.err().map(|error| error.kind()));
                std::future::pending::<()>().await;
                Ok::<(), std::io::Error>(())
            }
        });
        sleep(MS).await;
        let stream = connect("server").await?;
        sleep(10 * MS).await;
        sim.reset("sim", "server");
        assert_kind(stream.read_managed().await, ErrorKind::ConnectionReset);
        assert!(stream.read_managed().await?.is_empty());
        assert_kind(stream.write_all("x").await.0, ErrorKind::BrokenPipe);
        sleep(10 * MS).await;
        assert_eq!(error.get(), Some(ErrorKind::ConnectionReset));
        Ok(())
    });
}

#[test]
fn a_peer_that_closes_is_seen_later() {
    seeds(|sim| async move {
        sim.links(plain());
        sim.host("server").start(|| async {
            let listener = TcpListener::bind("0.0.0.0:7000").await?;
            let (stream, _) = listener.accept().await?;
            stream.write_all("bye").await.0?;
            drop(stream);
            std::future::pending::<()>().await;
            Ok::<(), std::io::Error>(())
        });
        sleep(MS).await;
        let stream = connect("server").await?;
        let (result, bytes) = stream.read_exact([0; 3]).await;
        result?;
        assert_eq!(&bytes, b"bye");
        assert!(stream.read_managed().await?.is_empty());
        // The first bytes are sent, and answered with an RST.
        stream.write_all("x").await.0?;
        sleep(10 * MS).await;
        assert_kind(stream.write_all("x").await.0, ErrorKind::BrokenPipe);
        Ok(())
    });
}

#[test]
fn a_sender_waits_for_its_receiver() {
    seeds(|sim| async move {
        sim.links(plain());
        sim.host("server").start(|| async {
            let listener = TcpListener::bind("0.0.0.0:7000").await?;
            let (stream, _) = listener.accept().await?;
            sleep(10 * SEC).await;
            stream.read_exact(vec![0; 1 << 20]).await.0?;
            stream.write_all("done").await.0
        });
        sleep(MS).await;
        let stream = connect("server").await?;
        let begin = Instant::now();
        stream.write_all(vec![1; 1 << 20]).await.0?;
        assert!(begin.elapsed() >= 9 * SEC, "{:?}", begin.elapsed());
        assert_eq!(&*stream.read_managed().await?, b"done");
        Ok(())
    });
}

#[test]
fn names_are_found_or_not() {
    seeds(|sim| async move {
        start_echo(&sim, "server");
        let mut found = lookup_host("server:7000").await?;
        found.sort();
        assert_eq!(found.len(), 2);
        assert!(found[0].to_string().starts_with("10.0."), "{found:?}");
        assert!(found[1].to_string().starts_with("[fd00::"), "{found:?}");
        assert!(lookup_host("nowhere:1").await.is_err());
        sim.lookups("server", Lookup::TryAgain);
        let error = lookup_host("server:7000").await.unwrap_err();
        assert!(error.to_string().contains("Temporary failure"), "{error}");
        sim.lookups("server", Lookup::NotFound);
        let error = lookup_host("server:7000").await.unwrap_err();
        assert!(error.to_string().contains("not known"), "{error}");
        sim.lookups("server", Lookup::Found);
        sim.lookup_time(Dist::constant(Duration::from_secs(5)));
        let begin = Instant::now();
        lookup_host("server:7000").await?;
        assert!(begin.elapsed() >= 5 * SEC);
        // A lookup that takes too long can be given up.
        assert!(timeout(SEC, lookup_host("server:7000")).await.is_err());
        Ok(())
    });
}

#[test]
fn addresses_belong_to_their_hosts() {
    seeds(|sim| async move {
        sim.link("sim", "sim", Link::new());
        assert_kind(TcpListener::bind("10.77.0.1:80").await, ErrorKind::AddrNotAvailable);
        let listener = TcpListener::bind("127.0.0.1:80").await?;
        let (client, server) = windlass::task::join((TcpStream::connect("localhost:80"), listener.accept())).await;
        let (client, (server, peer)) = (client?, server?);
        assert_eq!(client.local_addr()?, peer);
        assert_eq!(client.peer_addr()?, server.local_addr()?);
        Ok(())
    });
}
