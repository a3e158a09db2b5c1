//! Hosts that run out of descriptors and of memory for sockets, and limits of links.

use std::io;

use windlass::fs::File;
use windlass::net::{TcpListener, TcpStream, UdpSocket};
use windlass::os_code;
use windlass::sim::{Crash, Dist, Link, Sim};
use windlass::time::{sleep, timeout};

use crate::{MS, SEC, assert_kind, connect, seeds, start_echo};

/// A host with a listener on port 7000 that keeps each connection for ten seconds.
async fn keep_connections() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7000").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        windlass::spawn(async move {
            stream.write_all("!").await.0?;
            sleep(10 * SEC).await;
            drop(stream);
            io::Result::Ok(())
        });
    }
}

async fn is_greeted(stream: &TcpStream) -> bool {
    timeout(SEC, stream.read_exact([0]))
        .await
        .is_ok_and(|(result, _)| result.is_ok())
}

#[test]
fn a_connection_waits_for_a_descriptor() {
    seeds(|sim: Sim| async move {
        sim.host("a").max_descriptors(3).start(keep_connections);
        sleep(MS).await;
        let mut streams = Vec::new();
        for _ in 0..4 {
            // The kernel accepts them all; the process has descriptors for two.
            streams.push(connect("a").await?);
        }
        for (number, stream) in streams.iter().enumerate() {
            assert_eq!(is_greeted(stream).await, number < 2, "connection {number}");
        }
        // The first two are closed by now, or soon.
        sleep(8 * SEC).await;
        assert!(is_greeted(&streams[2]).await && is_greeted(&streams[3]).await);
        Ok(())
    });
}

#[test]
fn sockets_pipes_and_files_count() {
    seeds(|sim: Sim| async move {
        let host = sim.host("a").max_descriptors(2);
        sim.disk("a").write("/f", "")?;
        host.start(|| async {
            let socket = UdpSocket::bind("0.0.0.0:0").await?;
            let error = windlass::io::pipe::pipe().expect_err("there is one descriptor");
            assert_eq!(os_code(&error), Some(libc::EMFILE));
            let file = File::open("/f").await?;
            for error in [
                File::open("/f").await.expect_err("there is none"),
                UdpSocket::bind("0.0.0.0:0").await.expect_err("there is none"),
            ] {
                assert_eq!(os_code(&error), Some(libc::EMFILE));
            }
            drop((socket, file));
            drop(windlass::io::pipe::pipe()?);
            // A limit of one host is not one of the others.
            std::future::pending::<io::Result<()>>().await
        });
        sim.host("b").start(keep_connections);
        sleep(SEC).await;
        assert!(is_greeted(&connect("b").await?).await);
        Ok(())
    });
}

#[test]
fn a_connection_waits_for_memory() {
    seeds(|sim: Sim| async move {
        sim.host("a").start(|| async {
            // Sockets of the test's own host are not concerned.
            TcpListener::bind("0.0.0.0:7000").await?.accept().await
        });
        sim.host("b").socket_shortage(1.0).start(|| async {
            let error = TcpStream::connect("a:7000").await.expect_err("there is no memory");
            assert_eq!(os_code(&error), Some(libc::ENOBUFS));
        });
        sleep(SEC).await;
        Ok(())
    });
    seeds(|sim: Sim| async move {
        // The listener has its socket before the shortage.
        sim.host("a").socket_shortage(0.9).start(|| async {
            let listener = loop {
                match TcpListener::bind("0.0.0.0:7000").await {
                    Ok(listener) => break listener,
                    Err(error) => assert_eq!(os_code(&error), Some(libc::ENOBUFS)),
                }
            };
            let (stream, _) = listener.accept().await?;
            stream.write_all("!").await.0
        });
        sleep(SEC).await;
        let stream = connect("a").await?;
        sim.calm();
        assert!(is_greeted(&stream).await);
        Ok(())
    });
}

/// The RST of a host that has lost its connections is lost too; the sender tries again and gets the next one.
#[test]
fn a_lost_reset_is_not_the_last_one() {
    seeds(|sim: Sim| async move {
        sim.host("a").start(keep_connections);
        sleep(MS).await;
        let stream = connect("a").await?;
        assert!(is_greeted(&stream).await);
        sim.crash("a", Crash::Power);
        sim.restart("a");
        sleep(MS).await;
        sim.cut_one_way(["a"], ["sim"]);
        stream.write_all("?").await.0?;
        sleep(SEC).await;
        sim.heal();
        let read = timeout(60 * SEC, stream.read_exact([0])).await;
        let (result, _) = read.expect("the connection is reset");
        assert_kind(result, io::ErrorKind::ConnectionReset);
        Ok(())
    });
}

/// As above, but the way back is cut while the RST is on it.
#[test]
fn a_reset_lost_on_its_way_is_not_the_last_one() {
    seeds(|sim: Sim| async move {
        sim.links(Link::new().latency(Dist::constant(100 * MS)));
        sim.host("a").start(keep_connections);
        sleep(MS).await;
        let stream = connect("a").await?;
        assert!(is_greeted(&stream).await);
        sim.crash("a", Crash::Power);
        sim.restart("a");
        stream.write_all("?").await.0?;
        // The segment has arrived after 100 ms, and the RST would after 200.
        sleep(150 * MS).await;
        sim.cut_one_way(["a"], ["sim"]);
        sleep(SEC).await;
        sim.heal();
        let read = timeout(60 * SEC, stream.read_exact([0])).await;
        let (result, _) = read.expect("the connection is reset");
        assert_kind(result, io::ErrorKind::ConnectionReset);
        Ok(())
    });
}

#[test]
fn reads_and_writes_have_a_longest_count() {
    seeds(|sim: Sim| async move {
        sim.links(Link::new().max_count(1));
        start_echo(&sim, "a");
        sleep(MS).await;
        let stream = connect("a").await?;
        assert_eq!(stream.write("hello").await.0?, 1);
        stream.write_all("ello").await.0?;
        for byte in b"hello" {
            let (result, bytes) = stream.read(vec![0; 9]).await;
            assert_eq!((result?, bytes[0]), (1, *byte));
        }
        Ok(())
    });
}
